/* commd_perf.h - the parts of commd-perf: options, test data, the measurement of one rank, the
 * report of rank 0, and the launcher. commd-perf.c has the model. */
#ifndef COMMD_PERF_H
#define COMMD_PERF_H

#include "client/commd.h"
#include "shm/base.h"

#define PERF_STRING_(x) #x
#define PERF_STRING(x) PERF_STRING_(x)
#define PERF_VERSION                                                                             \
    PERF_STRING(COMMD_VERSION_MAJOR)                                                             \
    "." PERF_STRING(COMMD_VERSION_MINOR) "." PERF_STRING(COMMD_VERSION_PATCH)

enum { PERF_OK = 0, PERF_FAILED = 1, PERF_USAGE = 64, PERF_INTERRUPTED = 130 };
enum { PERF_MAX_NODES = 64, PERF_MAX_RANKS = 1024 };

struct perf {
    int coll, dtype, redop; /* enum commd_* */
    int root;
    size_t min_bytes, max_bytes;
    size_t factor, step; /* one of them is 0 */
    int iterations;      /* 0: chosen by size */
    int warmup;
    bool check;
    int per_node; /* ranks to launch on each socket */
    int nnodes;
    const char *sockets[PERF_MAX_NODES]; /* NULL: the default */
    const char *json;                    /* NULL: none */
    char group[128];
    bool launched; /* by torchrun, srun or mpirun: rank and size are the environment's */
    int rank, size;
};

/* commd_perf_options.c. -1 to go on, else the exit code; what is wrong was said. */
int perf_parse(int argc, char **argv, struct perf *ret_perf);
const char *perf_coll_name(int coll);
const char *perf_dtype_name(int dtype);
const char *perf_redop_name(int redop);

/* commd_perf_data.c: inputs whose results are known exactly. */
struct perf_data; /* of one rank; blocks of one period each */
int perf_data_new(const struct perf *perf, int rank, int size, struct perf_data **ret_data);
void perf_data_free(struct perf_data *data);
/* The input of this rank: @n elements that stand at @from in its whole input. */
void perf_data_fill(const struct perf_data *data, void *buf, size_t from, size_t n);
/* Counts the elements of the result that are wrong, out of @n that stand at @from in the whole
 * result; *ret_first: the first of them. @source: the rank whose input it is (all_gather,
 * broadcast; a reduction ignores it). */
size_t perf_data_wrong(struct perf_data *data, const void *buf, size_t from, size_t n, int source,
                       size_t *ret_first);

struct perf_row {
    size_t bytes, count;
    double min_us, p50_us, p99_us;
    uint64_t wrong; /* elements, all iterations, all ranks */
};

/* commd_perf_report.c: rank 0's. */
struct perf_report {
    const struct perf *perf;
    int ranks, nodes;
    struct perf_row *rows; /* owned */
    size_t nrows;
    bool live;         /* a progress line is on stderr */
    int64_t live_ms;   /* when it was written last */
};
void report_begin(struct perf_report *report, const struct perf *perf, int ranks, int nodes);
void report_progress(struct perf_report *report, size_t bytes, int done, int of);
int report_row(struct perf_report *report, const struct perf_row *row);
/* Prints the end of the table and writes the JSON file; frees the rows. 0 or PERF_FAILED. */
int report_end(struct perf_report *report, bool interrupted);

/* commd_perf_run.c: one rank from connecting to leaving; its exit code. */
int perf_rank(const struct perf *perf, int rank, int size, const char *socket);
/* "commd-perf: rank N: ..." on stderr. Of the ranks that one process launched only the first
 * is heard: the failures of the others are its consequences. */
void perf_complain(int rank, const char *format, ...) _printf_(2, 3);
void perf_share_complaints(void); /* before the ranks are forked */

/* commd_perf_launch.c: all ranks as children of this process; the exit code. */
int perf_launch(const struct perf *perf);

#endif
