/* board.h - the group board: the shared memory in which the members of a group on one node
 * carry out its collectives, and through which the node's engine takes part in those that
 * span nodes. Made and sealed by commd; one per group and node. See board.c for the model.
 *
 *   hdr | ranks[world] | members[nlocal] | on_core[nlocal] | slots[nlocal][BOARD_SLOTS] |
 *   posts[nlocal][BOARD_SLOTS], on one node | recorders[nlocal] | window[nlocal][depth][chunk] |
 *   result[depth][chunk] | posted[nlocal][BOARD_SLOTS][PLAN_POST], on one node |
 *   theirs[depth][chunk], on two nodes | counts[nlocal][depth][2][world], on several nodes |
 *   mail (mail.h)
 *
 * The file is sparse: a page costs memory only once it was used. */
#ifndef COMMD_BOARD_H
#define COMMD_BOARD_H

#include <stdatomic.h>

#include "shm/util/base.h"
#include "shm/board/mail.h"
#include "shm/board/recorder.h"
#include "shm/model/plan.h"
#include "shm/model/tune.h"
#include "shm/util/wait.h"

enum {
    /* Raised with every change of the layout, of plan.c or of board_offset(): a member and an
     * engine that cut operations differently would take each other's bytes for their own. Not with
     * what all members of a board agree upon: enum plan_known. */
    BOARD_VERSION = 22,
    BOARD_SLOTS = 16,     /* announcements in flight per member */
    BOARD_INLINE = 48,    /* payload bytes that travel in the announcement's cache line */
    BOARD_STAY = 1 << 10, /* payload that always lies at the beginning of its slot */
    BOARD_MAX_LOCAL = 1024,
    BOARD_TEXT = 256,
    BOARD_NAME = 64,
    BOARD_GPU_LOST = 17, /* -COMMD_E_GPU_LOST: enum cause has no such value */
    /* Steps skipped after a refused operation: more than any member can have run ahead. */
    BOARD_SKIP = 2 * BOARD_SLOTS,
};
/* Counters start shortly before the wrap, so that every group exercises it. */
#define BOARD_FIRST_STEP ((uint32_t) - 16)
#define BOARD_MAGIC      0x31647262646d6f63ull /* "comdbrd1" */
#define BOARD_NO_MEMBER  0xffff
#define BOARD_BY_ENGINE  0x100u /* in `broken`: the cause is the engine's */

struct board_geom {
    uint64_t group, epoch;     /* the id tells groups apart; epoch is 1, see doc/glossary.md */
    uint32_t world;            /* ranks in the group */
    uint32_t nnodes;           /* nodes in the group */
    uint32_t me;               /* this node's index among them */
    uint32_t nlocal;           /* members here */
    const uint16_t *rank_node; /* world entries: node index of each rank */
    struct plan_net net;
    bool gpu;                       /* all nodes of the group have a GPU service */
    uint32_t plans;                 /* enum plan_known: that all members here know */
    const struct topology *machine; /* borrowed; NULL: this one */
};

/* Do the counts that ranks gave for each other fit? What i sends to j is added, what j expects from
 * i is subtracted; over all ranks the sum is zero. If it is not, and one pair alone differs, diff
 * and checksum tell the pair: checksum = diff * (i * world + j + 1). Arithmetic modulo 2^64. */
struct op_balance {
    uint64_t hash, diff, checksum;
};

/* What a step announces. */
enum board_kind {
    BOARD_PAYLOAD, /* this member's contribution */
    BOARD_OFFER,   /* where its buffers lie in registered memory; the edges are in the window */
    BOARD_VOTE_NO, /* this member cannot work in what the others offer */
    BOARD_VOTE_YES,
    BOARD_TEAM,     /* the result of a team, or of all; all ranks that the leader saw agree */
    BOARD_TEAM_BAD, /* likewise; ranks that the leader saw do not agree */
    /* Of a post: */
    BOARD_WAITS,   /* this member waits for that of another, or has taken it */
    BOARD_REFUSES, /* the operation fails on all who take it */
};

/* The buffers of a member: numbers of its arenas and bytes from their beginning. Read once, then
 * checked against the arena (client/lib/coll/registered.c). */
struct board_offer {
    uint64_t send_arena, send_offset, recv_arena, recv_offset;
};

/* Of a post in pieces, which lie in the window of who posts: how many are there, and piece i lies
 * where step first + i would. Of who takes them: how many it has taken. */
struct board_pieces {
    _Atomic uint32_t n;
    uint32_t first;
};

/* A member's announcement of step g in slot g % BOARD_SLOTS: its contribution to the step is
 * in place. The first line carries all that a small operation needs. */
struct board_slot {
    _Atomic uint32_t seq; /* board_mark(step); release: pairs with acquire in board_arrived() */
    uint32_t kind;        /* enum board_kind */
    uint64_t fingerprint; /* op_fingerprint() of desc */
    union {
        uint8_t inl[BOARD_INLINE];
        struct board_offer offer;
        struct board_pieces pieces;
    };
    struct op_desc desc;
    struct op_balance balance;
    uint64_t most; /* largest count of a cell that this member sends or receives */
} __attribute__((aligned(CACHELINE)));
_Static_assert(sizeof(struct board_slot) == 128, "two cache lines");

/* Of a member of a group on one node. */
enum member_alive {
    MEMBER_UNKNOWN, /* only its pid can tell */
    MEMBER_LOCKED,  /* it holds the lock on the byte with its rank's number as long as it lives */
    MEMBER_LEFT
};

struct board_member {
    _Atomic uint32_t reduced; /* steps whose own slice is reduced into the result window */
    /* Operations on GPUs (client/lib/device/note.c), for people alone. Operations by commd-gpu have
     * numbers of their own, from 1. gpu_begun: the last that was announced; gpu_ended: the one
     * before the oldest that has not ended; gpu_ready_op: that oldest, once its input is there,
     * since gpu_ready_ms (now_ms()). unready_op: an operation through host memory whose input this
     * rank's stream has not brought, since unready_ms. */
    _Atomic uint32_t gpu_begun, gpu_ended, gpu_ready_op, gpu_ready_ms;
    _Atomic uint32_t unready_op, unready_ms;
    _Atomic uint32_t messages;  /* that were sent or received to their end, for people */
    _Atomic uint64_t gpu_bytes; /* given to operations by commd-gpu */
    /* While it waits for a message (message_ms): another message, which has come and for which no
     * receive is posted. Its sender's rank + 1, 0: none. */
    _Atomic uint32_t unasked_from;
    _Atomic int32_t unasked_tag;
    /* The last operation that this member has ended before the others had got what it sent. It is
     * counted in `ops` later: client/lib/coll/early.c. Older than ops: no matter. */
    _Atomic uint32_t early;
    uint8_t pad0[12];
    _Atomic uint32_t consumed; /* steps this member will not look at again */
    _Atomic uint32_t ops;      /* operations completed; read by commd when the member is gone */
    _Atomic uint32_t started;  /* operations begun */
    _Atomic uint32_t alive;    /* enum member_alive, see client/lib/context/alive.c */
    /* Of the last operation in registered memory, by its number in the group; see
     * client/lib/coll/registered.c. */
    _Atomic uint64_t entered;  /* this member may write into the others' memory */
    _Atomic uint64_t finished; /* its slice is in all outputs */
    _Atomic uint64_t stopped;  /* it will not write any more, whether it has finished or not */
    /* What it sleeps in, for people who ask why a job hangs: board_seat(). It decides nothing. */
    _Atomic uint32_t asleep_ms, asleep_op; /* since when (now_ms()), in which operation */
    _Atomic uint32_t message_ms;           /* since when for a message, 0: for none */
    _Atomic int32_t message_peer, message_tag;
    _Atomic uint32_t message_send; /* 1: it sends, 0: it receives */
} __attribute__((aligned(CACHELINE)));
_Static_assert(sizeof(struct board_member) == 128 && offsetof(struct board_member, consumed) == 64,
               "two cache lines");

struct board_rank {
    _Atomic uint32_t gone; /* 0: here, for operations; else completed operations + 1, set last */
    /* enum cause: of one that is gone. While it is not: its node is lost, or it ended after the
     * group was broken, by which operations fail. For who would wait for it elsewhere. */
    _Atomic uint32_t cause;
    uint32_t pid;
    uint16_t node;  /* index into the group's nodes */
    uint16_t local; /* member index on this node, BOARD_NO_MEMBER if elsewhere */
};

/* Why the group is broken, or which two descriptions collided. */
struct board_cause {
    int32_t rank;
    uint32_t pid;
    char node[BOARD_NAME];
    char text[BOARD_TEXT];
};

struct board_mismatch {
    uint32_t rank_a, rank_b;
    struct op_desc a, b;
    struct op_balance balance; /* not zero: a and b agree, but counts do not fit */
};

struct board_hdr {
    uint64_t magic;
    uint32_t version;
    uint32_t world, nnodes, me, nlocal, depth;
    uint32_t cores;  /* that commd may run on: one number for all members, whose own may differ */
    uint32_t team;   /* ranks of a team, likewise; 0: none */
    uint32_t chunk;  /* bytes of a window or result slot, by tune_one_node() or PLAN_CHUNK_NET */
    uint64_t around; /* likewise */
    struct plan_net net;   /* the same on all nodes of the group */
    uint32_t gpu;          /* likewise; 1: all of them have a GPU service */
    uint32_t memory_nodes; /* of the CPUs that commd may run on: place.h */
    uint64_t group, epoch;
    uint64_t size; /* of the file */
    struct board_offsets {
        uint64_t ranks, members, on_core, slots, posts, recorders, window, result, posted, counts,
            mail;
    } off;
    _Atomic uint32_t record; /* by commd: enum recorder_timing */
    uint32_t plans;          /* enum plan_known: that all members here know; of a commd before: 0 */

    /* of sleeping members: see bell_ring() */
    _Atomic uint32_t bell __attribute__((aligned(CACHELINE)));
    _Atomic uint32_t sleepers;

    /* broken: written by commd and by the engine, each has a cause of its own; the first wins */
    _Atomic uint32_t broken __attribute__((aligned(CACHELINE))); /* enum cause, set last; perhaps
                                                                    with BOARD_BY_ENGINE */
    _Atomic uint32_t ngone; /* how many ranks[] have gone set */
    /* The last operation in which a member found that another one meant something else, and that
     * one knows nothing of it: client/lib/coll/posts.c. `mismatch` is written before. */
    _Atomic uint64_t disputed;
    _Atomic uint64_t disputing; /* likewise; who sets it may write `mismatch` */

    /* the engine's side of the counters */
    _Atomic uint32_t published __attribute__((aligned(CACHELINE))); /* steps whose global
                                                                       result is in place */
    _Atomic uint32_t sent;        /* steps whose result window the network no longer reads */
    _Atomic uint64_t refused;     /* seq of the last refused operation, 0: none; written before
                                     published */
    _Atomic uint32_t engine_core; /* core_now() of the engine when it last looked; 0: not yet */
    /* What the engine has on the wire, for whoever asks when it has died: board_quiet(). It is
     * written before anything is sent, and after all is done. 0: this engine keeps no account. */
    _Atomic uint32_t ops_begun, ops_done;              /* operations, and 1 is added */
    _Atomic uint32_t mail_begun, mail_sent, mail_came; /* messages between ranks */
    _Atomic uint32_t ops_agreed; /* the last operation, and 1 is added, of which all ranks mean the
                                    same and whose data follow; 0: this engine does not tell */

    _Atomic uint32_t engine_asleep __attribute__((aligned(CACHELINE)));

    struct board_cause cause __attribute__((aligned(CACHELINE)));
    struct board_cause engine_cause;
    struct board_mismatch mismatch;
};

_Static_assert(offsetof(struct board_hdr, plans) == 188 && offsetof(struct board_hdr, bell) == 192,
               "boards of a commd before have 0 there");

/* How far a group is on a node whose engine has nothing of it on the wire. */
struct board_position {
    uint32_t ops;        /* operations that the engine has done */
    uint32_t sent, came; /* messages between ranks, to other nodes and from them; they wrap */
};

/* A mapping of a whole board, with bounds that were checked once and are kept privately:
 * nothing here is read from shared memory again. */
struct board {
    struct board_hdr *hdr;
    size_t size;
    uint32_t world, nnodes, me, nlocal, depth, cores, team;
    struct plan_net net;
    bool gpu;       /* all nodes of the group have a GPU service */
    uint32_t plans; /* enum plan_known */
    uint32_t memory_nodes;
    size_t chunk;    /* bytes of a window or result slot */
    uint64_t around; /* struct tune */
    uint64_t group, epoch;
    struct board_rank *ranks;
    struct board_member *members;
    _Atomic uint32_t *on_core; /* core_now() of each member, when it last looked; 0: not yet */
    struct board_slot *slots, *posts;
    struct board_recorder *recorders; /* of each member */
    uint8_t *window;
    uint8_t *result;
    uint8_t *posted;
    uint64_t *counts; /* groups on several nodes */
    struct mail mail;
};

enum { BOARD_E_BAD = 1 }; /* not a board, or its header contradicts itself */

size_t board_size(const struct board_geom *geom);
/* Whole mapping of a received fd: seals, size, magic and offsets are checked. */
int board_map(int fd, struct board *ret_board);
void board_unmap(struct board *b);

/* ---- commd's side: only the control pages are mapped ----------------------------------------- */
struct board_ctl;
int board_create(const struct board_geom *geom, int *ret_fd, struct board_ctl **ret_ctl);
/* The board of another commd of this node, which has ended: @fd is checked like a stranger's
 * against
 * @geom. 0, BOARD_E_BAD or a negative errno. What became of ranks has to be told again. */
int board_adopt(const struct board_geom *geom, int fd, struct board_ctl **ret_ctl);
struct board_ctl *board_ctl_free(struct board_ctl *ctl);
size_t board_ctl_bytes(const struct board_ctl *ctl); /* size of the sealed file, for quotas */
/* Operations that the i-th local member (ranks of this node in ascending order) completed, for who
 * has to know what still comes of it; and for people, of whom it does not wait for others to have
 * got what it sent. */
uint32_t board_rank_ops(const struct board_ctl *ctl, unsigned local);
uint32_t board_rank_ended(const struct board_ctl *ctl, unsigned local);
/* Has this member said on the board that it leaves? A member may write anything there. */
bool board_rank_left(const struct board_ctl *ctl, unsigned local);
/* Operations that this member has begun. */
uint32_t board_rank_started(const struct board_ctl *ctl, unsigned local);
/* Messages that this member has sent or received. */
uint32_t board_rank_messages(const struct board_ctl *ctl, unsigned local);
/* Why rank @rank of the group is gone, as board_mark_gone() was told; 0: it is not. */
unsigned board_rank_gone(const struct board_ctl *ctl, uint32_t rank);
/* When the rank was marked as gone, by now_ms(); 0: it is not gone. */
uint64_t board_gone_ms(const struct board_ctl *ctl, uint32_t rank);
/* The @i-th rank that was marked as gone, and how many operations it had completed. Why it is gone;
 * 0: there are not so many. */
unsigned board_gone_at(const struct board_ctl *ctl, unsigned i, uint32_t *ret_rank,
                       uint32_t *ret_ops);
/* Is @op the last operation that the engine has refused, because ranks did not mean the same? */
bool board_refused(const struct board_ctl *ctl, uint32_t op);
/* What a local member is doing, for people: all of it is the member's to write. */
struct board_seat {
    uint32_t ops, started;
    bool pending; /* in an operation that it has begun */
    bool asleep;  /* and sleeps there, for asleep_ms */
    uint32_t asleep_ms;
    uint32_t messages; /* that it has sent or received */
    bool message;      /* sleeps until a message comes or is taken, for message_ms */
    bool message_send;
    uint32_t message_ms;
    int32_t message_peer, message_tag; /* as in commd_send(), commd_recv() */
    int64_t unasked_from; /* of a message that has come and that it does not ask for; -1: none */
    int32_t unasked_tag;
    struct op_desc now, last; /* of `started`, if pending, and of `ops`; seq 0: not known */
    bool unready;             /* the operation after `started` was called: it waits for its input */
    uint32_t unready_ms;
    /* by commd-gpu */
    struct board_seat_gpu {
        uint32_t begun, ended;
        bool pending, ready; /* the input of the oldest that is pending is there */
        uint32_t ms;         /* for which it is ready; if it is not, was announced */
        int code;            /* how the last one ended: one of enum commd_result */
        struct op_desc now, last;
    } gpu;
};
/* @now_ms: now_ms(). @local as above; a member that there is not does nothing. */
void board_seat(const struct board_ctl *ctl, unsigned local, uint64_t now_ms,
                struct board_seat *ret_seat);
/* What member @local wrote down of its operations; NULL: there is no such member. */
const struct board_recorder *board_recorder(const struct board_ctl *ctl, unsigned local);
/* Bytes that member @local gave to operations by commd-gpu; how many it announced, and ended. */
uint64_t board_rank_gpu_bytes(const struct board_ctl *ctl, unsigned local);
uint32_t board_rank_gpu_begun(const struct board_ctl *ctl, unsigned local);
uint32_t board_rank_gpu_ended(const struct board_ctl *ctl, unsigned local);
/* Has the engine that had this board left nothing on the wire, as it wrote down? A member may write
 * anything there: then its own group goes wrong. */
bool board_quiet(const struct board_ctl *ctl, struct board_position *ret_position);
/* From now on the operations that @timing names are timed, because somebody watches. */
void board_record(struct board_ctl *ctl, enum recorder_timing timing);
/* Says of a rank that is not gone why nobody has to wait for it; @cause 0: it may come after all,
 * if only its node was lost. Changes nothing for operations, and wakes nobody. */
void board_mark_missed(struct board_ctl *ctl, uint32_t rank, unsigned cause);
/* Both wake every sleeping member. First cause wins. */
void board_mark_gone(struct board_ctl *ctl, uint32_t rank, uint32_t ops, unsigned cause,
                     uint32_t pid);
void board_mark_broken(struct board_ctl *ctl, unsigned cause, int32_t rank, uint32_t pid,
                       const char *node, const char *text);
/* The same by the engine. */
void board_break(struct board_hdr *hdr, unsigned cause, int32_t rank, uint32_t pid,
                 const char *node, const char *text);
/* Why it is broken: an enum cause, 0 if it is not. */
unsigned board_broken(const struct board_hdr *hdr, struct board_cause *ret_cause);

/* ---- addressing ------------------------------------------------------------------------------ */
static inline struct board_slot *board_slot(const struct board *b, unsigned member, uint32_t step)
{
    invariant(member < b->nlocal);
    return &b->slots[member * BOARD_SLOTS + step % BOARD_SLOTS];
}

/* Where in its slot of a window a payload of @len bytes lies in @step. Medium ones take turns over
 * all of the slot: a write to lines that still are in the reader's cache from the last time costs
 * several times as much as to lines that have left it (32 KiB between two cores with 1 MiB of L2
 * each: 5.5 us against 2.0). The smallest stay where they are: they gain nothing. */
static inline size_t board_offset(const struct board *b, uint32_t step, size_t len)
{
    size_t offset = ALIGN_UP(len, (size_t)4096);

    if (len <= BOARD_STAY || offset > b->chunk / 2 || b->nnodes > 1)
        return 0;
    return step / b->depth % (b->chunk / offset) * offset;
}

static inline uint8_t *board_window(const struct board *b, unsigned member, uint32_t step,
                                    size_t len)
{
    invariant(member < b->nlocal);
    return b->window + ((size_t)member * b->depth + step % b->depth) * b->chunk +
           board_offset(b, step, len);
}

/* @len: of the whole result of the step, plan_result(). */
static inline uint8_t *board_result(const struct board *b, uint32_t step, size_t len)
{
    return b->result + (size_t)(step % b->depth) * b->chunk + board_offset(b, step, len);
}

/* Has @rank died or left? What ranks[] tells of that is there then. */
static inline bool board_is_gone(const struct board *b, unsigned rank)
{
    assert(rank < b->world);
    return atomic_load_explicit(&b->ranks[rank].gone, memory_order_acquire) != 0;
}
/* Why nobody has to wait for @rank any more, in an operation or elsewhere: CAUSE_LEFT,
 * CAUSE_NODE_LOST while its node is lost, CAUSE_RANK_LOST. 0: it may come. */
unsigned board_missed(const struct board *b, unsigned rank);
/* The first rank that has died, which is more than that it left; -1: none. */
int board_first_dead(const struct board *b);

/* Says where this member runs. Was another one last seen on the same core? Then who waits has to
 * let it run. Only a hint: it may have moved since, and members write what they like. */
static inline bool board_shares_core(const struct board *b, unsigned me)
{
    uint32_t core = core_now();

    invariant(me < b->nlocal);
    if (unlikely(atomic_load_explicit(&b->on_core[me], memory_order_relaxed) != core))
        atomic_store_explicit(&b->on_core[me], core, memory_order_relaxed);
    for (unsigned m = 0; m < b->nlocal; m++)
        if (m != me && atomic_load_explicit(&b->on_core[m], memory_order_relaxed) == core)
            return true;
    return false;
}

/* The engine says where it runs. */
static inline void board_tell_engine_core(const struct board *b)
{
    uint32_t core = core_now();

    if (unlikely(atomic_load_explicit(&b->hdr->engine_core, memory_order_relaxed) != core))
        atomic_store_explicit(&b->hdr->engine_core, core, memory_order_relaxed);
}

/* Was the engine last seen on the caller's core? A hint likewise. */
static inline bool board_engine_here(const struct board *b)
{
    uint32_t core = core_now(); /* 0: nobody knows */

    return core && atomic_load_explicit(&b->hdr->engine_core, memory_order_relaxed) == core;
}

/* What the other one of two nodes has for @step, see plan_swaps(). */
static inline uint8_t *board_theirs(const struct board *b, uint32_t step, size_t len)
{
    invariant(b->nnodes == 2);
    return board_result(b, step, len) + (size_t)b->depth * b->chunk;
}

/* The engine learns from these two rows of world entries each, by rank, what the cells of a counted
 * operation that begins with @step hold: [0] what @member sends, [1] what it receives; of blocks
 * whose counts all know: [1]. */
static inline uint64_t *board_counts(const struct board *b, unsigned member, uint32_t step,
                                     unsigned row)
{
    invariant(b->nnodes > 1 && member < b->nlocal && row < 2);
    return b->counts + (((size_t)member * b->depth + step % b->depth) * 2 + row) * b->world;
}

/* What slot->seq says of @step: 1 for the first one, so that the zero of a fresh page says of
 * no step of the first lap that it has been announced. */
static inline uint32_t board_mark(uint32_t step)
{
    return step - BOARD_FIRST_STEP + 1;
}

/* acquire: pairs with the release store of slot->seq by the announcing member */
static inline bool board_arrived(const struct board *b, unsigned member, uint32_t step)
{
    return atomic_load_explicit(&board_slot(b, member, step)->seq, memory_order_acquire) ==
           board_mark(step);
}

/* The same, where later steps may lie in that slot meanwhile. */
static inline bool board_has_met(const struct board *b, unsigned member, uint32_t step)
{
    const struct board_slot *s = board_slot(b, member, step);

    return seq_reached(atomic_load_explicit(&s->seq, memory_order_acquire), board_mark(step));
}

/* Where member's contribution to @step lies, by its length. */
static inline const uint8_t *board_payload(const struct board *b, unsigned member, uint32_t step,
                                           size_t len)
{
    return len <= BOARD_INLINE ? board_slot(b, member, step)->inl
                               : board_window(b, member, step, len);
}

/* Posts: what a member has for others in a rooted operation on one node. It does not wait for
 * them. They lie by the number of the operation. client/lib/coll/posts.c has the model. */
static inline struct board_slot *board_post(const struct board *b, unsigned member, uint64_t seq)
{
    invariant(member < b->nlocal && b->nnodes == 1);
    return &b->posts[member * BOARD_SLOTS + seq % BOARD_SLOTS];
}

/* No post has 0, which stands in a fresh page. */
static inline uint32_t board_post_mark(uint64_t seq)
{
    return 2 * (uint32_t)seq + 1;
}

static inline uint8_t *board_posted(const struct board *b, unsigned member, uint64_t seq,
                                    size_t len)
{
    return len <= BOARD_INLINE
               ? board_post(b, member, seq)->inl
               : b->posted + (member * BOARD_SLOTS + seq % BOARD_SLOTS) * (size_t)PLAN_POST;
}

/* ---- operation.c ----------------------------------------------------------------------------- */

/* Adds (@sign 1) or subtracts (-1) that rank @from has @count elements for rank @to. */
void op_balance_add(struct op_balance *bal, unsigned world, unsigned from, unsigned to,
                    uint64_t count, int sign);
#define OP_BALANCE_KEY 0x70616972ull
/* Likewise, by another number: one that whoever gives the counts does not know. */
void op_balance_add_by(uint64_t key, struct op_balance *bal, unsigned world, unsigned from,
                       unsigned to, uint64_t count, int sign);
static inline bool op_balanced(const struct op_balance *bal)
{
    return (bal->hash | bal->diff | bal->checksum) == 0;
}
/* "what rank 1 sends to rank 2 ..." of a balance that is not zero. */
void op_balance_text(const struct op_balance *bal, unsigned world, char *buf, size_t len);
/* Fingerprint of the counts of all ranks. */
uint64_t op_digest(const uint64_t *counts, unsigned world);
/* Likewise, by a number that whoever gives the counts does not know. */
uint64_t op_digest_by(uint64_t key, const uint64_t *counts, unsigned world);
/* 64-bit fingerprint of a description. */
uint64_t op_fingerprint(const struct op_desc *d);
/* "all_reduce f32 sum, 100 elements" */
void op_text(const struct op_desc *d, char *buf, size_t len);

#endif
