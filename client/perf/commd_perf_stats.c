/* commd_perf_stats.c - from the times of single operations to what is reported. */
#include "client/perf/commd_perf.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void perf_sort(double *times, int n)
{
    qsort(times, (size_t)n, sizeof(*times), by_value);
}

/* Nearest rank: a time that was measured, never one in between. */
double perf_percentile(const double *sorted, int n, int permille)
{
    int64_t k = ((int64_t)n * permille + 999) / 1000;

    assert(n > 0 && permille > 0 && permille <= 1000);
    return sorted[MAX(k, (int64_t)1) - 1];
}

double perf_overlap(double pure, double compute, double together)
{
    double shorter = MIN(pure, compute), hidden = pure + compute - together;

    if (shorter <= 0 || hidden <= 0)
        return 0;
    return MIN(hidden / shorter, 1.0);
}

void perf_row_times(struct perf_row *row, double *times, int n)
{
    assert(n > 0);
    perf_sort(times, n);
    row->iterations = n;
    row->min_us = times[0];
    row->p50_us = perf_percentile(times, n, 500);
    row->p99_us = perf_percentile(times, n, 990);
    row->p999_us = perf_percentile(times, n, 999);
    row->max_us = times[n - 1];
}
