/* commd_perf_report.c - what rank 0 says: a table on stdout as it grows, a progress line on
 * stderr if that is a terminal, and the JSON file at the end, of an interrupted run as well.
 *
 * algbw is the size over the median time, with several groups that of all of them together;
 * busbw is that times the collective's factor (commd_perf_coll.c). */
#include <stdio.h>
#include <time.h>

#include "client/perf/commd_perf.h"
#include "shm/model/dtype.h"

enum { PROGRESS_EVERY_MS = 100 };

static double algbw(const struct perf_report *report, const struct perf_row *row)
{
    return row->p50_us > 0 ? (double)row->bytes * report->perf->groups / row->p50_us / 1e3 : 0;
}

static double busbw(const struct perf_report *report, const struct perf_row *row)
{
    return algbw(report, row) * perf_bus_factor(report->perf->coll, report->ranks);
}

/* The host, and the time. */
static void where_and_when(char host[256], char when[32])
{
    time_t now = time(NULL);
    struct tm tm;

    if (gethostname(host, 256) < 0)
        host[0] = 0;
    host[255] = 0;
    gmtime_r(&now, &tm);
    strftime(when, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static const char *redop_shown(const struct perf *perf)
{
    return perf_reduces(perf->coll) ? redop_name((unsigned)perf->redop) : "none";
}

static const char *dtype_shown(const struct perf *perf)
{
    return perf->coll == COMMD_BARRIER ? "none" : dtype_name((unsigned)perf->dtype);
}

void report_begin(struct perf_report *report, const struct perf *perf, int ranks, int nodes,
                  double join_us, const char *gpu)
{
    char host[256], when[32];

    *report = (struct perf_report){.perf = perf,
                                   .ranks = ranks,
                                   .nodes = nodes,
                                   .join_us = join_us,
                                   .gpu = gpu,
                                   .live = isatty(STDERR_FILENO)};
    where_and_when(host, when);
    printf("# commd-perf %s: %s%s, %d rank%s on %d node%s, times: %s, from %s, %s\n", PERF_VERSION,
           perf_coll_name(perf->coll), perf->registered ? " in registered memory" : "", ranks,
           ranks == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s", perf_average_name(perf->average),
           host, when);
    if (gpu)
        printf("# buffers on a GPU, rank 0's is %s; %d operation%s at a time\n", gpu, perf->queue,
               perf->queue == 1 ? "" : "s");
    if (perf->groups > 1)
        printf("# %d groups at once, each made in %.0f us\n", perf->groups, join_us);
    printf("#%11s %12s %5s %6s %11s %11s %11s %11s %9s %9s %7s", "bytes", "count", "type", "redop",
           "min us", "p50 us", "p99 us", "p99.9 us", "algbw", "busbw", "wrong");
    if (perf->async)
        printf(" %11s %11s %8s", "compute us", "both us", "overlap");
    putchar('\n');
    fflush(stdout);
}

static void clear_progress(const struct perf_report *report)
{
    if (report->live && report->live_ms)
        fputs("\r\033[K", stderr);
}

void report_progress(struct perf_report *report, size_t bytes, int done, int of, double us)
{
    int64_t ms = (int64_t)(perf_now_us() / 1e3);

    if (!report->live)
        return;
    if (ms - report->live_ms < PROGRESS_EVERY_MS)
        return;
    report->live_ms = ms;
    if (of)
        fprintf(stderr, "\r%zu B: %d of %d, the last in %.1f us\033[K", bytes, done, of, us);
    else
        fprintf(stderr, "\r%zu B: warming up, the last in %.1f us\033[K", bytes, us);
}

static void print_row(const struct perf_report *report, const struct perf_row *row)
{
    const struct perf *perf = report->perf;
    char wrong[24] = "-";

    if (perf->check && perf->coll != COMMD_BARRIER)
        snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)row->wrong);
    clear_progress(report);
    printf("%12zu %12zu %5s %6s %11.2f %11.2f %11.2f %11.2f %9.3f %9.3f %7s", row->bytes,
           row->count, dtype_shown(perf), redop_shown(perf), row->min_us, row->p50_us, row->p99_us,
           row->p999_us, algbw(report, row), busbw(report, row), wrong);
    if (perf->async)
        printf(" %11.2f %11.2f %7.1f%%", row->compute_us, row->together_us, 100 * row->overlap);
    putchar('\n');
    fflush(stdout);
}

int report_row(struct perf_report *report, const struct perf_row *row)
{
    struct perf_row *rows = realloc(report->rows, (report->nrows + 1) * sizeof(*rows));

    assert(row->iterations > 0);
    if (!rows) {
        perf_complain(0, "out of memory");
        return PERF_FAILED;
    }
    rows[report->nrows++] = *row;
    report->rows = rows;
    if (!report->quiet)
        print_row(report, row);
    return PERF_OK;
}

static void write_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fputc('\\', f);
        if ((unsigned char)*s >= ' ')
            fputc(*s, f);
    }
    fputc('"', f);
}

void report_write_row(FILE *f, const struct perf_report *report, const struct perf_row *row)
{
    fprintf(f,
            "{\"bytes\": %zu, \"count\": %zu, \"iterations\": %d, \"p50_us\": %.3f, "
            "\"p99_us\": %.3f, \"p999_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, "
            "\"algbw_gbs\": %.6f, \"busbw_gbs\": %.6f, ",
            row->bytes, row->count, row->iterations, row->p50_us, row->p99_us, row->p999_us,
            row->min_us, row->max_us, algbw(report, row), busbw(report, row));
    if (report->perf->async)
        fprintf(f, "\"compute_us\": %.3f, \"together_us\": %.3f, \"overlap\": %.4f, ",
                row->compute_us, row->together_us, row->overlap);
    if (report->perf->check)
        fprintf(f, "\"wrong\": %llu}", (unsigned long long)row->wrong);
    else
        fputs("\"wrong\": null}", f);
}

static int write_json(const struct perf_report *report, bool interrupted)
{
    const struct perf *perf = report->perf;
    FILE *f = fopen(perf->json, "we");
    char host[256], when[32];
    int bad;

    if (!f)
        return -errno;
    where_and_when(host, when);
    fprintf(f, "{\n  \"collective\": \"%s\", \"dtype\": \"%s\", \"redop\": \"%s\",\n",
            perf_coll_name(perf->coll), dtype_shown(perf), redop_shown(perf));
    fprintf(f, "  \"ranks\": %d, \"nodes\": %d, \"host\": ", report->ranks, report->nodes);
    write_string(f, host);
    fprintf(f,
            ",\n  \"groups\": %d, \"join_us\": %.3f, \"async\": %s, \"registered\": %s, "
            "\"average\": \"%s\"",
            perf->groups, report->join_us, perf->async ? "true" : "false",
            perf->registered ? "true" : "false", perf_average_name(perf->average));
    fputs(", \"gpu\": ", f);
    if (report->gpu)
        write_string(f, report->gpu);
    else
        fputs("null", f);
    fprintf(f, ",\n  \"version\": \"%s\", \"date\": \"%s\", \"interrupted\": %s,\n  \"rows\": [",
            PERF_VERSION, when, interrupted ? "true" : "false");
    for (size_t i = 0; i < report->nrows; i++) {
        fputs(i ? ",\n    " : "\n    ", f);
        report_write_row(f, report, &report->rows[i]);
    }
    fputs("\n  ]\n}\n", f);
    bad = ferror(f);
    return fclose(f) || bad ? -EIO : 0;
}

int report_end(struct perf_report *report, bool interrupted)
{
    uint64_t wrong = 0;
    int r = 0;

    clear_progress(report);
    for (size_t i = 0; i < report->nrows; i++)
        wrong += report->rows[i].wrong;
    if (interrupted)
        puts("# interrupted");
    if (report->perf->json)
        r = write_json(report, interrupted);
    if (r)
        perf_complain(0, "%s: cannot write the result (%s)", report->perf->json, strerror(-r));
    free(report->rows);
    report->rows = NULL;
    fflush(stdout);
    return r || wrong ? PERF_FAILED : PERF_OK;
}
