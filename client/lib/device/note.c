/* note.c - see note.h. An announcement costs a few stores into lines that nobody else looks at
 * while all is well, and one look at the clock. That an input is there only the progress thread can
 * see: it writes that down when it looks, some times a second.
 *
 * gpu_ended is the number before the oldest operation that has not ended: the ring of the recorder
 * says which of the later ones have.
 *
 * Who writes: this rank, under device_group.lock (announced) or session.pend (ended, ready). What
 * if the rank dies now: the words stay as they are. */
#include "client/lib/device/note.h"

#include <stdio.h>

#include "shm/util/ranks.h"

static struct board_member *me(const struct membership *g)
{
    assert(g->local < g->board.nlocal);
    return &g->board.members[g->local];
}

void note_announced(struct membership *g, const struct op_desc *desc, uint64_t bytes)
{
    struct board_member *m = me(g);

    assert(desc->seq && desc->coll < COLL_COUNT);
    recorder_gpu_begin(&g->board.recorders[g->local], desc, bytes, now_ns());
    atomic_store_explicit(&m->gpu_bytes,
                          atomic_load_explicit(&m->gpu_bytes, memory_order_relaxed) + bytes,
                          memory_order_relaxed);
    /* release: who sees the number finds the operation in the ring */
    atomic_store_explicit(&m->gpu_begun, (uint32_t)desc->seq, memory_order_release);
}

_Static_assert(COMMD_E_GPU_LOST == -BOARD_GPU_LOST, "commd knows it by this");

void note_ended(struct membership *g, uint32_t seq, int code)
{
    struct board_recorder *rec = &g->board.recorders[g->local];
    struct board_member *m = me(g);
    uint32_t ended = atomic_load_explicit(&m->gpu_ended, memory_order_relaxed), next;

    assert(code <= 0);
    recorder_gpu_end(rec, seq, code, now_ns());
    atomic_thread_fence(memory_order_seq_cst); /* of two that end at once one sees both */
    do {                                       /* operations of two sessions have two locks */
        uint32_t begun = atomic_load_explicit(&m->gpu_begun, memory_order_acquire);

        /* no more than can be pending: what stands on the board another process may have written */
        next = ended;
        for (unsigned i = 0; i < RECORDER_GPU_RING && (int32_t)(begun - next) > 0 &&
                             recorder_gpu_ended(rec, next + 1);
             i++)
            next++;
    } while (next != ended &&
             !atomic_compare_exchange_weak_explicit(&m->gpu_ended, &ended, next,
                                                    memory_order_release, memory_order_acquire));
}

void note_ready(struct membership *g, uint32_t seq, uint64_t now)
{
    struct board_member *m = me(g);
    uint32_t oldest = atomic_load_explicit(&m->gpu_ended, memory_order_relaxed) + 1;

    if (seq != oldest || atomic_load_explicit(&m->gpu_ready_op, memory_order_relaxed) == oldest)
        return;
    atomic_store_explicit(&m->gpu_ready_ms, (uint32_t)now, memory_order_relaxed);
    atomic_store_explicit(&m->gpu_ready_op, oldest, memory_order_release);
}

/* ---- who is missing -------------------------------------------------------------------------- */

static bool has_come(const struct board_member *m, uint32_t seq)
{
    return (int32_t)(atomic_load_explicit(&m->gpu_begun, memory_order_relaxed) - seq) >= 0;
}

/* The member's stream has not come to the operation, nor has it ended. */
static bool is_unready(const struct board_member *m, uint32_t seq)
{
    return (int32_t)(atomic_load_explicit(&m->gpu_ended, memory_order_relaxed) - seq) < 0 &&
           (int32_t)(atomic_load_explicit(&m->gpu_ready_op, memory_order_relaxed) - seq) < 0;
}

/* Ranks of this node, of which @come says whether they are those that have come. */
static unsigned list(const struct membership *g, uint32_t seq, bool come, char *buf, size_t len)
{
    struct rank_list ranks;

    rank_list_init(&ranks, buf, len);
    for (unsigned i = 0; i < g->board.nlocal; i++) {
        const struct board_member *m = &g->board.members[i];

        if (has_come(m, seq) == come && (!come || is_unready(m, seq)))
            rank_list_add(&ranks, g->local_rank[i]);
    }
    rank_list_end(&ranks);
    return ranks.n;
}

void note_missing(const struct membership *g, uint32_t seq, char *buf, size_t len)
{
    char ranks[120];
    unsigned n = list(g, seq, false, ranks, sizeof ranks);

    assert(len > 0);
    if (n) {
        snprintf(buf, len, "rank%s %s of this node did not come", n == 1 ? "" : "s", ranks);
        return;
    }
    n = list(g, seq, true, ranks, sizeof ranks);
    if (n)
        snprintf(buf, len, "the stream of rank%s %s of this node has not come to it",
                 n == 1 ? "" : "s", ranks);
    else if (g->board.nnodes > 1)
        snprintf(buf, len, "all ranks of this node have come");
    else
        snprintf(buf, len, "all ranks have come, and commd-gpu has not ended it");
}

bool note_speaks(const struct membership *g, uint32_t seq)
{
    assert(g->local < g->board.nlocal);
    for (unsigned i = 0; i < g->local; i++)
        if (has_come(&g->board.members[i], seq) && !is_unready(&g->board.members[i], seq))
            return false;
    return true;
}
