/* commd_perf_report.c - what rank 0 says: a table on stdout as it grows, a progress line on
 * stderr if that is a terminal, and the JSON file at the end, of an interrupted run as well.
 *
 * Bandwidths are nccl-tests': algbw is the size over the median time; busbw is what each link of
 * an ideal ring carries, so that it can be compared with the hardware: all_reduce 2(n-1)/n of
 * algbw, all_gather and reduce_scatter (n-1)/n, broadcast 1. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "client/commd_perf.h"

enum { PROGRESS_EVERY_MS = 100 };

static double algbw(const struct perf_row *row)
{
    return row->p50_us > 0 ? (double)row->bytes / row->p50_us / 1e3 : 0;
}

static double busbw(const struct perf_report *report, const struct perf_row *row)
{
    double n = report->ranks, factor = 1;

    if (report->perf->coll == COMMD_ALL_REDUCE)
        factor = 2 * (n - 1) / n;
    else if (report->perf->coll != COMMD_BROADCAST)
        factor = (n - 1) / n;
    return algbw(row) * factor;
}

static void host_name(char *to, size_t size)
{
    if (gethostname(to, size) < 0)
        to[0] = 0;
    to[size - 1] = 0;
}

static void date(char *to, size_t size)
{
    time_t now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(to, size, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static const char *redop_shown(const struct perf *perf)
{
    return perf->coll == COMMD_ALL_REDUCE || perf->coll == COMMD_REDUCE_SCATTER
               ? perf_redop_name(perf->redop)
               : "none";
}

static const char *dtype_shown(const struct perf *perf)
{
    return perf->coll == COMMD_BARRIER ? "none" : perf_dtype_name(perf->dtype);
}

void report_begin(struct perf_report *report, const struct perf *perf, int ranks, int nodes)
{
    char host[256], when[32];

    *report = (struct perf_report){
        .perf = perf, .ranks = ranks, .nodes = nodes, .live = isatty(STDERR_FILENO)};
    host_name(host, sizeof(host));
    date(when, sizeof(when));
    printf("# commd-perf %s: %s, %d rank%s on %d node%s, from %s, %s\n", PERF_VERSION,
           perf_coll_name(perf->coll), ranks, ranks == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
           host, when);
    printf("#%11s %12s %5s %6s %11s %11s %11s %9s %9s %7s\n", "bytes", "count", "type", "redop",
           "min us", "p50 us", "p99 us", "algbw", "busbw", "wrong");
    fflush(stdout);
}

static void clear_progress(const struct perf_report *report)
{
    if (report->live && report->live_ms)
        fputs("\r\033[K", stderr);
}

void report_progress(struct perf_report *report, size_t bytes, int done, int of)
{
    struct timespec ts;
    int64_t ms;

    if (!report->live)
        return;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ms = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
    if (ms - report->live_ms < PROGRESS_EVERY_MS)
        return;
    report->live_ms = ms;
    fprintf(stderr, "\r%zu B: %d of %d\033[K", bytes, done, of);
}

int report_row(struct perf_report *report, const struct perf_row *row)
{
    const struct perf *perf = report->perf;
    struct perf_row *rows = realloc(report->rows, (report->nrows + 1) * sizeof(*rows));
    char wrong[24] = "-";

    if (!rows) {
        perf_complain(0, "out of memory");
        return PERF_FAILED;
    }
    rows[report->nrows++] = *row;
    report->rows = rows;
    if (perf->check && perf->coll != COMMD_BARRIER)
        snprintf(wrong, sizeof(wrong), "%llu", (unsigned long long)row->wrong);
    clear_progress(report);
    printf("%12zu %12zu %5s %6s %11.2f %11.2f %11.2f %9.3f %9.3f %7s\n", row->bytes, row->count,
           dtype_shown(perf), redop_shown(perf), row->min_us, row->p50_us, row->p99_us, algbw(row),
           busbw(report, row), wrong);
    fflush(stdout);
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

static void write_row(FILE *f, const struct perf_report *report, const struct perf_row *row)
{
    fprintf(f,
            "    {\"bytes\": %zu, \"count\": %zu, \"p50_us\": %.3f, \"p99_us\": %.3f, "
            "\"min_us\": %.3f, \"algbw_gbs\": %.6f, \"busbw_gbs\": %.6f, \"wrong\": ",
            row->bytes, row->count, row->p50_us, row->p99_us, row->min_us, algbw(row),
            busbw(report, row));
    if (report->perf->check)
        fprintf(f, "%llu}", (unsigned long long)row->wrong);
    else
        fputs("null}", f);
}

static int write_json(const struct perf_report *report, bool interrupted)
{
    const struct perf *perf = report->perf;
    FILE *f = fopen(perf->json, "we");
    char host[256], when[32];
    int bad;

    if (!f)
        return -errno;
    host_name(host, sizeof(host));
    date(when, sizeof(when));
    fprintf(f, "{\n  \"collective\": \"%s\", \"dtype\": \"%s\", \"redop\": \"%s\",\n",
            perf_coll_name(perf->coll), dtype_shown(perf), redop_shown(perf));
    fprintf(f, "  \"ranks\": %d, \"nodes\": %d, \"host\": ", report->ranks, report->nodes);
    write_string(f, host);
    fprintf(f, ",\n  \"version\": \"%s\", \"date\": \"%s\", \"interrupted\": %s,\n  \"rows\": [",
            PERF_VERSION, when, interrupted ? "true" : "false");
    for (size_t i = 0; i < report->nrows; i++) {
        fputs(i ? ",\n" : "\n", f);
        write_row(f, report, &report->rows[i]);
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
