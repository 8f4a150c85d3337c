/* oracle.h - random programs of collectives and what must come out of them.
 *
 *   draw.c    a program from a seed: cluster, groups, operations, and who calls what when
 *   data.c    buffers of one rank for one operation, and the serial reference
 *   play.c    a rank going through its program; all ranks polled in an order the seed chooses
 *   threads.c the same with a thread for each rank, one for the engines, and the library's own
 *   gpu.c     buffers on a GPU that is none
 *   oracle.c  the program's command line */
#ifndef COMMD_TESTS_ORACLE_H
#define COMMD_TESTS_ORACLE_H

#include "tests/lib/arena_commd.h"
#include "tests/lib/cluster.h"

enum {
    MAX_WORLD = 8,
    MAX_NODES = MAX_WORLD,
    MAX_GROUPS = 4,
    MAX_OPS = 48,
    MAX_ELEMENTS = 1 << 22,
    /* A buffer repeats after so many elements: a prime, so that no chunk or page boundary falls
     * on a repetition and data that end up in a wrong place are seen. */
    PERIOD = 1021,
    TIMEOUT_MS = 120000,
};

struct knobs {
    size_t most; /* elements of a buffer */
    bool threads;
    bool gpu;
    bool verbose;
    const char *kernels; /* NULL: any that this CPU has */
};

/* xorshift64* (Vigna 2016) */
uint32_t draw(uint64_t *rng, uint32_t below);
uint64_t draw_bits(uint64_t *rng);

struct group_spec {
    unsigned world;
    uint16_t rank[MAX_WORLD]; /* rank in the cluster of each rank of the group */
    unsigned nnodes;
    /* Who receives from any source must know whose message it will be: of one source only, for
     * all of the program. -1: from whoever it is, by name. */
    int8_t only_source[MAX_WORLD];
    bool any_tag[MAX_WORLD]; /* the same for tags: only 1 is sent */
};

/* How the call of the odd rank differs from that of the others. */
enum odd { ODD_NONE, ODD_COUNT, ODD_REDOP, ODD_DTYPE, ODD_ROOT, ODD_COLL };

/* One operation of a group. Ranks are the group's. A message has coll COMMD_SEND; root sends
 * it. */
struct op_spec {
    unsigned group;
    int coll, dtype, redop, root;
    size_t count;
    size_t counts[MAX_WORLD][MAX_WORLD]; /* counted: elements from one rank to the other; where a
                                 rank has one count it is the same in a row or column */
    unsigned to;                         /* message: its receiver, */
    int tag;                             /* */
    size_t spare;                        /* and how many elements more than it has would fit */
    double scale[MAX_WORLD];
    bool any_bits; /* floats of any value: one node, where the order is by rank */
    bool in_place, lists;
    uint32_t sync; /* by rank: blocking */
    uint32_t gpu;  /* by rank: its buffers are on a GPU */
    enum odd odd;
    unsigned odd_rank;
    unsigned phase;              /* a rank waits for all of a phase before it begins the next */
    uint64_t seed;               /* of data, alignment and gaps */
    size_t plen;                 /* elements of the patterns */
    uint8_t *pattern[MAX_WORLD]; /* owned: what each rank sends */
    uint8_t *reduced;            /* owned: what comes of it */
};

struct program {
    uint64_t seed;
    unsigned world, nnodes;
    uint16_t rank_node[MAX_WORLD];
    const char *kernels;
    bool gpu;
    uint32_t plans; /* enum plan_known: of members of all boards */
    unsigned ngroups, nops;
    struct group_spec group[MAX_GROUPS];
    struct op_spec op[MAX_OPS];
    /* per rank of the cluster: the operations it takes part in, in its own order */
    unsigned ncalls[MAX_WORLD];
    uint8_t call[MAX_WORLD][MAX_OPS];
};

void program_draw(uint64_t seed, const struct knobs *knobs, struct program *ret_program);
void program_free(struct program *p);
void program_print(const struct program *p);
/* Has rank @rank of the group a call to make? */
bool takes_part(const struct op_spec *op, unsigned rank);
/* Rank in the group of rank @rank of the cluster; -1: no member. */
int group_rank_of(const struct group_spec *g, unsigned rank);

/* ---- what each collective takes and gives (data.c) -------------------------------------- */

enum coll_shape { NOTHING, ONE, MANY }; /* many: a block for each rank */
enum coll_shape shape_of(const struct op_spec *op, bool send, unsigned rank);
bool is_message(int coll);
/* "all_reduce", "message" */
const char *name_of(int coll);
bool is_counted(int coll);
bool is_rooted(int coll);
bool is_reducing(int coll);
/* Elements of block @b of what @rank sends or receives; b == 0 if it is one block. */
size_t block_elements(const struct op_spec *op, bool send, unsigned rank, unsigned b);
size_t all_elements(const struct op_spec *op, unsigned world, bool send, unsigned rank);

/* Draws what each rank sends and computes the reduction, one element after the other. */
void patterns_new(struct op_spec *op, unsigned world);

/* One allocation with a send or a receive buffer in it, or both; what lies beside them must
 * stay as it is. */
struct memory {
    uint8_t *mem, *want; /* owned */
    size_t bytes;
    bool registered; /* mem is from commd_alloc() */
    uint8_t *image;  /* owned: host memory beside mem, which is on a GPU; else NULL */
};

/* One rank's part in one operation. */
struct part {
    const struct op_spec *spec;
    unsigned rank, world;      /* in the group */
    struct commd_context *ctx; /* borrowed */
    struct op_spec *own;       /* owned: as the odd rank sees it; else NULL */
    struct commd_op op;
    struct memory send, recv; /* one of them is empty if in place */
    size_t send_counts[MAX_WORLD], recv_counts[MAX_WORLD];
    void *send_at[MAX_WORLD], *recv_at[MAX_WORLD];
};

void part_new(struct part *p, const struct op_spec *spec, const struct group_spec *g, unsigned rank,
              struct commd_context *ctx);
/* Can it be done in registered memory without copies? */
bool may_be_registered(int coll);
/* Are the buffers of @rank in registered memory of its context? */
bool is_registered(const struct op_spec *spec, unsigned rank);
/* What the call must return. */
int part_result(const struct part *p);
/* Is @st what a receive must have got? */
bool part_status(const struct part *p, const struct commd_status *st);
/* False, and one line in @why, if the result @code or the data are not what they must be. */
bool part_check(const struct part *p, int code, const char *message, char *why, size_t len);
void part_free(struct part *p);

/* ---- on a GPU (gpu.c) ------------------------------------------------------------------------ */

enum { GPU_STREAMS = 3 };
struct gpu_rank {
    void *stream[GPU_STREAMS];
};
void gpu_load(void);
bool is_on_gpu(const struct op_spec *op, unsigned rank);
void gpu_rank_begin(struct gpu_rank *r, unsigned rank); /* on the rank's thread */
void gpu_rank_end(struct gpu_rank *r);
void gpu_memory_new(struct memory *m);
void gpu_memory_free(struct memory *m);
/* Before the call: its buffers get on @stream what they hold now, and nothing before. */
void gpu_part_fill(struct part *p, void *stream);
/* What they hold when @stream comes to it. */
void gpu_part_take(struct part *p, void *stream);

/* ---- playing (play.c, threads.c) ------------------------------------------------------------- */

/* All ranks' contexts and groups; no daemon is involved. */
struct stage {
    const struct program *program;
    struct cluster *cluster;
    struct commd_context *ctx[MAX_WORLD];
    struct arena_commd *commd; /* at the other ends of the contexts' sockets */
    struct cluster_group *group[MAX_GROUPS];
};

void stage_new(struct stage *s, const struct program *p, int doorbell);
void stage_free(struct stage *s);

/* One call of a rank, or the first of several that are one batch. */
struct call {
    struct part part;
    struct commd_work *work; /* NULL: not under way, or not the first of its batch */
    unsigned batch;          /* operations in the work */
    _Atomic unsigned told;   /* calls of on_done */
};

/* One rank going through its program. */
struct player {
    struct stage *stage;
    unsigned rank;
    unsigned next; /* call to make */
    unsigned open; /* works under way */
    struct call call[MAX_OPS];
    struct gpu_rank gpu;
    pthread_t thread;
};

const struct op_spec *player_spec(const struct player *pl, unsigned i);
struct commd_group *player_group(const struct player *pl, unsigned i);
/* The stream of a call on a GPU. */
void *player_stream(const struct player *pl, unsigned i);
/* Is call @i a blocking one? */
bool player_blocks(const struct player *pl, unsigned i);
/* Makes the buffers of call @i. */
void player_part(struct player *pl, unsigned i);
/* Starts the next call, or several as a batch. Like the next two: 0, or -1 after a line on
 * stderr. */
int player_start(struct player *pl);
/* Checks and frees call @i, of which @code and this thread's last error say how it ended. */
int player_check(struct player *pl, unsigned i, int code);
/* The same for the work that call @i has started and that has ended, or waits for that. */
int player_finish(struct player *pl, unsigned i);
int player_wrong(const struct player *pl, unsigned i, const char *why);

/* 0, or -1 after a line about what went wrong was written to stderr. */
int play_polled(const struct program *p);
int play_threads(const struct program *p);
/* Prints the program and how to run it again, and ends the process: the other ranks would wait.
 */
void failed(const struct program *p) __attribute__((noreturn));

#endif
