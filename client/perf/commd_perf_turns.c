/* commd_perf_turns.c - measures what somebody else asks for, line by line.
 *
 * To compare libraries on a machine whose speed changes from minute to minute they must take
 * turns, a few milliseconds each, without being started anew: tests/bench/compare.py starts all
 * of them, and lets one work while the others sleep. A rank that waits must sleep as well, and
 * most MPIs spin while they wait for a message; so every rank reads its orders from a pipe of
 * its own.
 *
 * DIR/R is the pipe of rank R: a line holds the words of a command line ("all_reduce -b 8 -e
 * 8"). To DIR/out rank 0 writes a line of JSON per size, and one at the end of each turn:
 * {"done": EXIT CODE}; the first one, before any turn, says that all ranks are there. The end
 * of the input ends the run. Groups, ranks and nodes are what they were at the start. */
#include <fcntl.h>
#include <stdio.h>

#include "client/perf/commd_perf.h"

enum { WORDS = 64 };

static FILE *open_pipe(const struct perf_loop *loop, const char *name, const char *mode)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", loop->perf->turns, name);
    f = fopen(path, mode);
    if (!f)
        perf_complain(loop->rank, "%s: %s", path, strerror(errno));
    return f;
}

static int parse_line(const struct perf_loop *base, char *line, struct perf *ret_perf)
{
    char *words[WORDS + 1] = {"commd-perf"}, *save = NULL;
    int n = 1, r;

    for (char *w = strtok_r(line, " \n", &save); w && n < WORDS; w = strtok_r(NULL, " \n", &save))
        words[n++] = w;
    r = perf_parse(n, words, ret_perf);
    if (r >= 0)
        return r;
    if (ret_perf->root >= base->size || (ret_perf->async && !base->library->start) ||
        (ret_perf->registered && !base->library->alloc))
        return PERF_USAGE;
    ret_perf->groups = base->perf->groups;
    ret_perf->on_gpu = base->perf->on_gpu;
    ret_perf->size = base->size;
    return -1;
}

static int turn(const struct perf_loop *base, char *line, FILE *out)
{
    struct perf_loop loop = *base;
    struct perf_report report;
    struct perf perf;
    int r = parse_line(base, line, &perf);

    if (r >= 0)
        return r;
    report = (struct perf_report){.perf = &perf, .ranks = base->size, .quiet = true};
    loop.perf = &perf;
    loop.report = base->rank == 0 ? &report : NULL;
    r = perf_measure(&loop);
    for (size_t i = 0; out && i < report.nrows; i++) {
        report_write_row(out, &report, &report.rows[i]);
        fputc('\n', out);
    }
    free(report.rows);
    return r;
}

int perf_take_turns(const struct perf_loop *loop)
{
    char name[16], *line = NULL;
    FILE *in, *out = NULL;
    size_t space = 0;
    int r = PERF_OK;

    assert(loop->perf->turns);
    snprintf(name, sizeof(name), "%d", loop->rank);
    in = open_pipe(loop, name, "re");
    if (in && loop->rank == 0)
        out = open_pipe(loop, "out", "we");
    if (!in || (loop->rank == 0 && !out) || loop->library->barrier(loop->arg))
        r = PERF_FAILED;
    if (out)
        fprintf(out, "{\"done\": %d}\n", r);
    while (!r && !(out && fflush(out)) && getline(&line, &space, in) > 0) {
        r = turn(loop, line, out);
        if (out)
            fprintf(out, "{\"done\": %d}\n", r);
    }
    free(line);
    if (in)
        fclose(in);
    if (out)
        fclose(out);
    return r;
}
