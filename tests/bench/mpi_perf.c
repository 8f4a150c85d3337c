/* mpi_perf.c - the same loop as commd-perf over MPI, for tests/bench/compare.py: a barrier,
 * then one timed MPI_Allreduce (f32, sum, in place), rank 0's times. Prints one JSON line per
 * size: {"bytes", "p50_us", "min_us", "p99_us", "wrong"}. Built by compare.py with mpicc.
 * Usage: mpi_perf BYTES[,BYTES...] [ITERATIONS] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 5, MAX_ITERS = 100000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int iterations(size_t bytes)
{
    return bytes < (64u << 10) ? 2000 : bytes <= (8u << 20) ? 50 : 12;
}

static void measure(size_t bytes, int iters, int rank, int size)
{
    size_t n = bytes / sizeof(float);
    float *buf = malloc(bytes ? bytes : 1);
    double *t = malloc((size_t)iters * sizeof *t);
    long wrong = 0, all = 0;

    for (int i = 0; i < iters + WARMUP; i++) {
        double t0;

        for (size_t k = 0; k < n; k++)
            buf[k] = (float)(rank + 1);
        MPI_Barrier(MPI_COMM_WORLD);
        t0 = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, buf, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= WARMUP)
            t[i - WARMUP] = (MPI_Wtime() - t0) * 1e6;
    }
    for (size_t k = 0; k < n; k++)
        wrong += buf[k] != (float)(size * (size + 1) / 2);
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    qsort(t, (size_t)iters, sizeof *t, by_value);
    if (rank == 0)
        printf("{\"bytes\": %zu, \"p50_us\": %.3f, \"min_us\": %.3f, \"p99_us\": %.3f, "
               "\"wrong\": %ld}\n",
               bytes, t[iters / 2], t[0], t[iters * 99 / 100], all);
    free(t);
    free(buf);
}

int main(int argc, char **argv)
{
    int rank, size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) {
        fprintf(stderr, "usage: mpi_perf BYTES[,BYTES...] [ITERATIONS]\n");
        MPI_Abort(MPI_COMM_WORLD, 64);
    }
    for (char *s = strtok(argv[1], ","); s; s = strtok(NULL, ",")) {
        size_t bytes = strtoull(s, NULL, 10);
        int iters = argc > 2 ? atoi(argv[2]) : iterations(bytes);

        measure(bytes, iters < 1 ? 1 : iters > MAX_ITERS ? MAX_ITERS : iters, rank, size);
    }
    MPI_Finalize();
    return 0;
}
