/* commd_perf.h - the parts of commd-perf: options, the collectives and their test data, the
 * measurement of one rank, the report of rank 0, and the launcher. commd-perf.c has the model.
 *
 * What measures knows its library only as struct perf_library: tests/bench/mpi_perf.c puts the
 * same options, data, loop and statistics over MPI. */
#ifndef COMMD_PERF_H
#define COMMD_PERF_H

#include <commd/commd.h>
#include <signal.h>
#include <stdio.h>

#include "shm/util/base.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#define PERF_VERSION COMMD_BUILD_VERSION
#else /* beside mpi_perf.c, which knows no configure */
#define PERF_VERSION "unknown"
#endif

enum { PERF_OK = 0, PERF_FAILED = 1, PERF_USAGE = 64, PERF_INTERRUPTED = 130 };
/* Beside enum commd_coll: what takes two operations of libcommd. */
enum { PERF_SENDRECV = 1000, PERF_PINGPONG = 1001 };
/* Whose time an iteration took, with the numbers of nccl-tests. */
enum { PERF_RANK0, PERF_AVG, PERF_MIN, PERF_MAX };
enum { PERF_MAX_NODES = 64, PERF_MAX_RANKS = 1024, PERF_MAX_GROUPS = 4096 };

struct perf {
    int coll, dtype, redop; /* enum commd_*; coll also PERF_* */
    int root;
    size_t min_bytes, max_bytes;
    size_t step;           /* from size to size; 0: a factor */
    int factor;            /* 0: a step */
    int iterations;        /* 0: chosen by size */
    int limit_ms;          /* fewer iterations if that is over; 0: none */
    int warmup, warmup_ms; /* iterations, and how long at least */
    int average;           /* PERF_RANK0 to PERF_MAX */
    int check;             /* 0: no */
    bool async;            /* start and wait; then once more with computing between the two */
    bool registered;       /* buffers from commd_alloc() */
    bool on_gpu;           /* buffers on a GPU */
    int queue;             /* on a GPU: operations that are enqueued before they are waited for */
    int groups;            /* at once, each with an operation of its own */
    bool cyclic;           /* rank r on node r mod nodes, else node by node */
    int per_node;          /* ranks to launch on each socket */
    int nnodes;
    const char *sockets[PERF_MAX_NODES]; /* NULL: the default */
    const char *json;                    /* NULL: none */
    const char *turns;                   /* NULL: none; commd_perf_turns.c */
    char group[128];
    bool launched; /* by torchrun, srun or mpirun: rank and size are the environment's */
    int rank, size;
};

/* commd_perf_options.c. -1 to go on, else the exit code; what is wrong was said. */
int perf_parse(int argc, char **argv, struct perf *ret_perf);
const char *perf_average_name(int average);

/* ---- commd_perf_coll.c: what each collective does with how many elements --------------------- */

const char *perf_coll_name(int coll);
int perf_coll_find(const char *name, int *ret_coll); /* 0 or -ENOENT */
void perf_coll_names(FILE *to);                      /* with commas */
bool perf_reduces(int coll);
/* Works on one buffer, because that is how programs call it. */
bool perf_in_place(int coll);
bool perf_point_to_point(int coll);
/* The rank that it sends to and receives from; -1: it looks on. */
int perf_dest(int coll, int rank, int size);
int perf_source(int coll, int rank, int size);
/* How many ranks' times count, and whether @rank's does: a rank that answers pings waits for none.
 */
int perf_timed(int coll, int size);
bool perf_is_timed(int coll, int rank, int size);
/* busbw / algbw with @ranks. */
double perf_bus_factor(int coll, int ranks);

/* Elements of the vector, or of a block, for a wanted size: at least one. And the size that is.
 */
size_t perf_count(const struct perf *perf, int size, size_t bytes);
size_t perf_bytes(const struct perf *perf, int size, size_t count);

/* What one rank sends and receives. */
struct perf_shape {
    int rank, size;
    size_t count;          /* elements of the vector, or of the average block */
    size_t send_n, recv_n; /* elements in this rank's two buffers; 0: not used */
    size_t *send_counts,
        *recv_counts; /* owned; as struct commd_op wants them; NULL: all the same */
};
int perf_shape_init(const struct perf *perf, int rank, int size, size_t count,
                    struct perf_shape *ret_shape);
void perf_shape_fini(struct perf_shape *shape);

struct perf_data;
void perf_fill(const struct perf *perf, const struct perf_shape *shape,
               const struct perf_data *data, void *send, void *recv);
void perf_op(const struct perf *perf, const struct perf_shape *shape, const void *send, void *recv,
             struct commd_op *ret_op);
/* Wrong elements of what this rank has received; *ret_first: the first of them. */
size_t perf_wrong(const struct perf *perf, const struct perf_shape *shape, struct perf_data *data,
                  const void *recv, size_t *ret_first);

/* ---- commd_perf_data.c: inputs whose results are known exactly ------------------------------- */

int perf_data_new(const struct perf *perf, int rank, int size, struct perf_data **ret_data);
void perf_data_free(struct perf_data *data);
/* The input of this rank: @n elements that stand at @from in its whole input. */
void perf_data_fill(const struct perf_data *data, void *buf, size_t from, size_t n);
/* Counts the elements of the result that are wrong, out of @n that stand at @from in the whole
 * result; *ret_first: the first of them. @source: the rank whose input it is, for collectives
 * that move; then @from is the place in that input. */
size_t perf_data_wrong(struct perf_data *data, const void *buf, size_t from, size_t n, int source,
                       size_t *ret_first);
/* COMMD_PREMUL_SUM: what rank @rank multiplies with. */
double perf_data_scale(int rank);

/* ---- commd_perf_stats.c ---------------------------------------------------------------------- */

void perf_sort(double *times, int n);
/* The smallest of @n sorted times that @permille of them do not exceed. */
double perf_percentile(const double *sorted, int n, int permille);
/* The part of the shorter of the two, communication and computing, that was hidden behind the
 * other, 0 to 1: as IMB-NBC defines it. */
double perf_overlap(double pure, double compute, double together);

struct perf_row {
    size_t bytes, count; /* of one group's operation */
    int iterations;
    double min_us, p50_us, p99_us, p999_us, max_us;
    double compute_us, together_us, overlap; /* medians; --async only */
    uint64_t wrong;                          /* elements, all iterations, all ranks */
};
void perf_row_times(struct perf_row *row, double *times, int n); /* sorts them */

/* ---- commd_perf_report.c: rank 0's ----------------------------------------------------------- */

struct perf_report {
    const struct perf *perf;
    int ranks, nodes;
    double join_us;        /* median time to make one of the groups */
    struct perf_row *rows; /* owned */
    size_t nrows;
    const char *gpu; /* its name; NULL: buffers in host memory */
    bool quiet;      /* no table */
    bool live;       /* a progress line is on stderr */
    int64_t live_ms; /* when it was written last */
};
void report_begin(struct perf_report *report, const struct perf *perf, int ranks, int nodes,
                  double join_us, const char *gpu);
/* @of 0: warming up. */
void report_progress(struct perf_report *report, size_t bytes, int done, int of, double us);
int report_row(struct perf_report *report, const struct perf_row *row);
void report_write_row(FILE *f, const struct perf_report *report, const struct perf_row *row);
/* Prints the end of the table and writes the JSON file; frees the rows. 0 or PERF_FAILED. */
int report_end(struct perf_report *report, bool interrupted);

/* ---- commd_perf_gpu.c: --device cuda ----------------------------------------------------------
 */

struct perf_gpu;
/* 0 or PERF_FAILED, and it was said why. */
int perf_gpu_open(int rank, struct perf_gpu **ret_gpu);
struct perf_gpu *perf_gpu_close(struct perf_gpu *gpu); /* NULL ok; returns NULL */
const char *perf_gpu_name(const struct perf_gpu *gpu);
void *perf_gpu_stream(const struct perf_gpu *gpu);
/* ---- commd_perf_loop.c: the measurement, over any library ------------------------------------ */

/* All but failed: 0 or an error. @ops: one for each group; with PERF_* they have both buffers.
 */
struct perf_library {
    int (*prepare)(void *arg, const struct commd_op *ops); /* before a size; may be NULL */
    int (*barrier)(void *arg);
    int (*run)(void *arg, const struct commd_op *ops);
    int (*start)(void *arg, const struct commd_op *ops); /* NULL with wait: no --async */
    int (*wait)(void *arg);
    int (*reduce)(void *arg, uint64_t *values, size_t n, int redop); /* over all ranks, in place */
    int (*alloc)(void *arg, size_t bytes, void **ret_ptr);           /* NULL: no --registered */
    void (*free)(void *arg, void *ptr);          /* what alloc() gave, or NULL */
    void (*failed)(void *arg, const char *what); /* complains about the error just returned */
};

/* Memory that the host does not see, and the stream on which operations in it are enqueued. */
struct perf_memory {
    int (*alloc)(struct perf_gpu *gpu, size_t bytes, void **ret_ptr);
    void (*free)(struct perf_gpu *gpu, void *ptr);
    /* Between the host and the GPU, either way; waits for it. */
    int (*copy)(struct perf_gpu *gpu, void *to, const void *from, size_t bytes);
    int (*wait)(struct perf_gpu *gpu); /* for what was enqueued */
};
extern const struct perf_memory perf_gpu_memory; /* commd_perf_gpu.c */

struct perf_loop {
    const struct perf *perf;
    const struct perf_library *library;
    void *arg; /* the library's */
    int rank, size;
    const volatile sig_atomic_t *interrupted;
    struct perf_report *report;       /* rank 0's; else NULL */
    const struct perf_memory *memory; /* NULL: the host's */
    struct perf_gpu *gpu;
    void *stream;
};
/* All sizes; an exit code. */
int perf_measure(const struct perf_loop *loop);
double perf_now_us(void);

/* "commd-perf: rank N: ..." on stderr. Of the ranks that one process launched only the first
 * is heard: the failures of the others are its consequences. */
void perf_complain(int rank, const char *format, ...) _printf_(2, 3);
/* Stand around a complaint. False: another rank of this launcher has complained, or @interrupted.
 */
bool perf_begin_complaint(const volatile sig_atomic_t *interrupted);
void perf_end_complaint(void);

/* commd_perf_turns.c: measures what it is told to, until the other side closes. An exit code.
 */
int perf_take_turns(const struct perf_loop *loop);

/* commd_perf_run.c: one rank from connecting to leaving; its exit code. */
int perf_rank(const struct perf *perf, int rank, int size, const char *socket);

/* commd_perf_launch.c: all ranks as children of this process; the exit code. */
int perf_launch(const struct perf *perf);

#endif
