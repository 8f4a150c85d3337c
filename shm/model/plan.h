/* plan.h - how an operation is cut into steps: a pure function of its description and the
 * group's geometry, computed alike by every member and engine of the group.
 *
 * In each step a member announces its contribution; members reduce (large reductions), the
 * engine exchanges with the other nodes (groups on several nodes), members take the result. Within
 * a step the result window is divided by node, or by rank in node order, see plan_segment();
 * windows of cells by pair of ranks, see plan_cell_out().
 *
 * A plan decides what nobody decides again: on which path members and engine carry the operation
 * out, and by which schedule engines exchange. */
#ifndef COMMD_PLAN_H
#define COMMD_PLAN_H

#include "shm/model/coll.h"
#include "shm/model/dtype.h"
#include "shm/model/sched.h"

enum {
    /* Bytes of a window or result slot: on one node at most, see tune.h; across nodes what a step
     * of a schedule over several segments may take. */
    PLAN_CHUNK = 256 << 10,
    PLAN_CHUNK_NET = 512 << 10,
    PLAN_CHUNK_HALVING = 256 << 10, /* by halving, whose largest message has half of a step */
    /* On one node, if each member has a core, medium sizes are cut finer: into so many steps, but
     * none shorter. Then members write one step while they read another (all_reduce over 2 ranks:
     * 256 KB 12.9 us instead of 17.5, 32 KB 2.35 instead of 3.2). Not where members take turns on a
     * core: there a step costs each of them a turn (4 ranks on 2 cores: 450 us instead of 92). */
    PLAN_STEPS_FINE = 4,
    PLAN_CHUNK_FINE = 16 << 10,
    PLAN_CHUNK_MIN = 128 << 10, /* across nodes medium sizes are cut finer, to overlap */
    /* Two nodes: up to this in one step if that is one message; two overlap too little to pay (256
     * KB: 121 us, in two steps 172). Longer ones are cut finer than that (1 MB: 400 us, in steps of
     * 256 KB 560). */
    PLAN_ONE_STEP = 256 << 10,
    /* What one message should carry: it goes without asking (fabric.h), and stays in cache on its
     * way from hand to hand (16 MB between two nodes: 10.9 ms, with 512 KiB 12.5). */
    PLAN_MESSAGE = 128 << 10,
    /* On one node, what a member may have for others in a rooted operation that it does not wait
     * for them: up to 16 operations. Of more it waits for nobody as long as its window has room. */
    PLAN_POST = 8 << 10,
    PLAN_MAX_WORLD = 16384, /* a step must hold one 8-byte element of each rank */
    PLAN_TEAM_STEPS = 3,    /* of a small operation in two levels */
    PLAN_DEPTH_ONE = 8,     /* window slots in a one-node group, if tune.h knows of no caches */
    PLAN_DEPTH_NET = 8,     /* across nodes: chunks in flight on the wire */
    /* Payload of a small operation: on one node; and across nodes, where it goes with the
     * consistency check, which saves the hops of a schedule of its own. */
    PLAN_SMALL = 8 << 10,
    /* The same of an all_reduce of two members with a core each. Each reads all that the other has,
     * instead of half of it and half of the result: as many bytes, and two hand-overs less. (32 KB:
     * 1.0 us instead of 1.2, on cores that are far apart 2.6 instead of 4.3; 256 KB there 15
     * instead of 20. 1 MB, in steps: 36 instead of 34.) */
    PLAN_SMALL_PAIR = PLAN_CHUNK,
    PLAN_SMALL_PAIR_HALF = PLAN_SMALL_PAIR / 4, /* half floats take longer to add up */
    PLAN_SMALL_NET = 64 << 10,
    PLAN_SMALL_MOST = 192 << 10, /* of an all_reduce on three nodes or more: plan_small_net() */
    PLAN_ENGINE_MBS = 8000,      /* how fast an engine adds up what comes, there */
    PLAN_MESSAGE_NS = 1500,      /* what a message costs an engine, whatever its length */
    PLAN_LATENCY_US = 30,        /* of struct plan_net, by default: two engines on one machine */
    PLAN_MBYTES_S = 1024,
    /* On one node where members take turns on a core a hand-over costs a turn of each: more is
     * small, as long as what a core reads for all its members stays below so much. */
    PLAN_SMALL_TURNS = 64 << 10,
    PLAN_SMALL_CORE = 1 << 20,
    /* Of so few members the root of a reduce adds up all by itself, whatever the size, if two of
     * them have a core each or if they take turns: the others then need not read anything, nor the
     * root a result (2 on cores of their own 16 MB: 510 us instead of 640; 4 on 2: 2.9 ms instead
     * of 4.3; 8 on 2: no difference). */
    PLAN_ROOT_ALONE = 4,
    /* So much that members reduce it together rather than leave it to the engine. */
    PLAN_SMALL_ALONE = 32 << 10,
    PLAN_BRIEF = 8 << 10, /* what a member reads in an operation that is over in a microsecond */
/* What processes map is made of pages, which are not larger than this. */
#if defined(__x86_64__)
    PLAN_PAGE = 4 << 10,
#else
    PLAN_PAGE = 64 << 10,
#endif
    /* From here on members work in each other's registered memory, but for a page at both ends. Two
     * more synchronisations cost less than the copies (64 KB: 2.7 us instead of 5.8). */
    PLAN_REGISTERED = 16 * PLAN_PAGE,
    PLAN_REGISTERED_TURNS = 128 * PLAN_PAGE, /* where members take turns on a core */
    /* The same for what only reads from others, all blocks together: a copy is less to save, and a
     * broadcast's root need not wait otherwise. */
    PLAN_REGISTERED_READ = 4 << 20,
    PLAN_AROUND_LEAST = 4 << 20, /* what a rank gives and gets: less is in caches of some core */
};

/* What an operation is, as a member announces it. Equal on all ranks, or the operation is
 * refused on all (later, where senders wait for nobody: PATH_POST). A rank that cannot take part
 * in it says so in its place (declined: -COMMD_E_*, else 0): by a barrier whose root is the rank,
 * so that no two ranks say the same. */
struct op_desc {
    uint64_t seq; /* 1, 2, ... in the group */
    uint64_t count;
    uint32_t root;
    uint8_t coll, dtype, redop, declined;
    uint64_t digest; /* of the counts, where all ranks give the same; else 0 */
};
_Static_assert(sizeof(struct op_desc) == 32, "op_desc is part of the board's layout");

enum plan_path {
    /* Always one step. One node: each member reduces all contributions itself, so that one
     * synchronisation is enough; several nodes: one hop, see PLAN_SMALL_NET. */
    PATH_SMALL,
    /* A small one in two levels, by teams of ranks (team.h), in three steps: what each rank has,
     * what each team has together, what all have. */
    PATH_TEAM,
    PATH_STEPS,
    /* In registered memory, if all members offer theirs; else in steps, as the rest of the plan
     * says: client/lib/coll/registered.c. */
    PATH_REGISTERED,
    /* In steps, whose number depends on counts that are not all known yet: plan_close(). */
    PATH_OPEN,
    /* Who sends posts what it has and is done; no steps are taken: client/lib/coll/posts.c. */
    PATH_POST,
    PATH_COUNT
};

/* Plans that came after the first of this BOARD_VERSION. Each client says which it knows
 * (CLIENT_HELLO); commd notes on the board of a group which all members on its node know, and they
 * go by these alone. So a bit is for what members of one node do among themselves. */
enum plan_known {
    PLAN_SENDERS_GO_ON = 1 << 0,   /* reduce and gather by PATH_POST */
    PLAN_POSTS_IN_WINDOW = 1 << 1, /* PATH_POST also of more than PLAN_POST, in pieces */
    PLAN_KNOWN = PLAN_SENDERS_GO_ON | PLAN_POSTS_IN_WINDOW,
};

struct plan {
    uint8_t coll, dtype, redop;
    uint8_t path;     /* enum plan_path */
    uint8_t schedule; /* enum sched_kind: between nodes, if there are several */
    bool reduces;     /* members reduce their slice of each step cooperatively */
    /* What a rank gets may be more than the caches hold. Then it is written past them, but in
     * place. Whether it is, is measured (struct copy_choice), and `around` is where that begins. */
    bool measured, around;
    bool brief;    /* on one node, and little: soon over if all are there */
    bool to_root;  /* PATH_POST: all post for the root, and not the root for all */
    bool pieces;   /* PATH_POST: in the window of who sends, a piece in place of each step */
    uint16_t team; /* PATH_TEAM: ranks of one */
    uint32_t root;
    uint32_t steps;
    size_t esize;
    uint64_t count;         /* elements of the vector or of each block; counted: of the largest */
    uint64_t unit;          /* elements per step: of the vector or of each block */
    const uint64_t *counts; /* borrowed; by rank, if blocks have counts that all ranks know */
};

/* The network between nodes, as the model in plan.c has it; 0: the default. */
struct plan_net {
    uint32_t latency_us; /* of a short message, from an engine to another */
    uint32_t mbytes_s;   /* 2^20 bytes per second */
};

/* Geometry that plans depend on. node_start[n]..node_start[n+1] are the positions of node n: ranks
 * are ordered node by node, ascending within a node. */
struct plan_geom {
    uint32_t world, nnodes, me, nlocal;
    uint32_t cores;  /* of this node; this and team are only looked at if it is the only one */
    uint32_t team;   /* team_size() */
    uint32_t chunk;  /* likewise: tune.h; 0: PLAN_CHUNK */
    uint64_t around; /* tune.h; 0: never */
    struct plan_net net;
    uint32_t plans;             /* enum plan_known, that all members of this node know */
    const uint32_t *node_start; /* nnodes + 1 entries */
    const uint32_t *rank_at;    /* world entries */
};

/* Bytes of a window or result slot. */
static inline size_t plan_chunk(const struct plan_geom *g)
{
    return g->nnodes > 1 ? (size_t)PLAN_CHUNK_NET : g->chunk ? g->chunk : (size_t)PLAN_CHUNK;
}

/* @counts: by rank, of a counted collective whose window holds blocks; else ignored. false if the
 * description is not a valid operation of this group (hostile or a bug). */
bool plan_make(const struct op_desc *desc, const struct plan_geom *geom, const uint64_t *counts,
               struct plan *ret_plan);
/* Bytes from which on an operation may be done in registered memory; UINT64_MAX: never. */
uint64_t plan_registered(const struct plan_geom *g, unsigned coll);
/* Once it is known that no cell that this node sends or receives has more than @most elements.
 * Nodes may need different numbers of steps. false: more than an operation can have. */
bool plan_close(struct plan *p, uint64_t most);

/* Bytes up to which an all_reduce over @nnodes goes with the consistency check, by recursive
 * doubling. */
uint64_t plan_small_net(const struct plan_net *net, uint32_t nnodes);
/* Bytes up to which a larger one, an all_gather or a reduce_scatter goes by halving, and then
 * around a ring; 0: never by halving, as over two nodes; UINT64_MAX: never around. */
uint64_t plan_halving_net(const struct plan_net *net, uint32_t nnodes, unsigned coll);

/* Two nodes send each other all of theirs, and members reduce the two: as many bytes as a ring of
 * two, but one hop, and the engine reduces nothing. */
static inline bool plan_swaps(const struct plan *p)
{
    return p->schedule == SCHED_EXCHANGE && p->coll == COLL_ALL_REDUCE;
}

/* Elements of step @c of a block with @count elements. */
static inline uint64_t plan_part(const struct plan *p, uint64_t count, uint32_t c)
{
    uint64_t done = (uint64_t)c * p->unit;

    return count > done ? MIN(p->unit, count - done) : 0;
}

/* Elements of step @c: of the vector or of the largest block; less than unit in the last step. */
static inline uint64_t plan_step_count(const struct plan *p, uint32_t c)
{
    return plan_part(p, p->count, c);
}

/* Elements of rank @k's block in step @c, if all ranks know that. */
static inline uint64_t plan_block_count(const struct plan *p, unsigned k, uint32_t c)
{
    return plan_part(p, p->counts ? p->counts[k] : p->count, c);
}

/* Byte in a window of blocks at which that of @pos begins; pos == world: where all end. */
size_t plan_block_at(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned pos);

/* Windows of cells. A member puts what is for @pos at plan_cell_out() of its window; the engine
 * puts what came from @pos for the local member @m at plan_cell_in() of the result window. */
size_t plan_cell(const struct plan *p, uint32_t c); /* bytes from one cell to the next */
size_t plan_cell_out(const struct plan *p, uint32_t c, unsigned pos);
size_t plan_cell_in(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned pos,
                    unsigned m);

/* Bytes that a member contributes to step @c: they travel in the announcement or in its window,
 * see board_payload(). */
size_t plan_payload_blocks(const struct plan *p, const struct plan_geom *g, uint32_t c);
static inline size_t plan_payload(const struct plan *p, const struct plan_geom *g, uint32_t c)
{
    return coll_table[p->coll].window == WINDOW_VECTOR ? plan_step_count(p, c) * p->esize
                                                       : plan_payload_blocks(p, g, c);
}

/* Bytes of the result window that step @c uses. */
size_t plan_result(const struct plan *p, const struct plan_geom *g, uint32_t c);

/* Slice of @n elements that part @i of @parts handles: contiguous, multiples of a cache line
 * of elements but for the last. */
void plan_slice(uint64_t n, unsigned parts, unsigned i, size_t esize, uint64_t *ret_lo,
                uint64_t *ret_hi);
/* Bytes [lo, hi) of the result window that belong to the network segments [seg, seg + nseg) in
 * step @c, for windows of vectors and blocks. Segments: nodes; a whole vector has one. */
void plan_segment(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned seg,
                  unsigned nseg, size_t *ret_lo, size_t *ret_hi);

#endif
