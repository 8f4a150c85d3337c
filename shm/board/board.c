/* board.c - the group board. The model:
 *
 * All collectives of a group, but those in which senders wait for nobody (below), run through one
 * endless sequence of steps, numbered by a free-running u32. An operation takes plan.steps of them.
 * In step g each local member announces its contribution in its slot g % BOARD_SLOTS (payload in
 * the slot itself, or in its window g % depth); what follows is told by counters that only ever
 * grow:
 *
 *   slot.seq == mark(g) the member's contribution to g is in place
 *   reduced  >= g+1     the member has reduced its slice of g into the result window
 *   published >= g+1    (engine) the result of g over all nodes is in the result window
 *   sent     >= g+1     (engine) the network no longer reads the result window of g
 *   consumed >= g+1     the member will not look at g again
 *
 * A member may announce step g only when everybody has consumed step g - BOARD_SLOTS, and, if
 * the step uses a window, g - depth (and the engine has sent it). Each counter has one writer
 * and its own cache line.
 *
 * Every operation starts with everybody's announcement of its first step, which carries the
 * description. Members (one node) or engines (several) compare them before any result is
 * believed. If they differ, all skip to base + BOARD_SKIP and the group goes on.
 *
 * A rooted operation on one node takes no steps, as a rule. Who sends leaves what it has in its
 * post for the number of the operation, or in its window; client/lib/coll/posts.c has the model.
 *
 * A member can die at any instruction. Nobody takes a lock here; commd, which sees the death,
 * sets ranks[].gone to the number of operations the member had completed and rings the bell. In a
 * group that is broken already it sets ranks[].cause alone (board_mark_missed()).
 * A waiter whose condition holds goes on regardless; one whose condition does not hold looks
 * at `broken` and `ngone` and gives up if a member it may be waiting for is gone.
 *
 * Memory order, of all of a board and of its waiters:
 *
 *   Counters, slot.seq, and the seq and fill words of mail. Every write is a release, every read an
 *   acquire: what was written before the word is visible to its reader. Two words are ordered with
 *   each other only by the full fences that are named here and in client/lib/coll/registered.c.
 *   `broken` and ranks[].gone are written last, behind what they are about.
 *   Sleeping is Dekker's handshake. The sleeper stores "I sleep" and then loads the condition; the
 *   waker stores the condition and then loads "does anybody sleep". On every machine a store may be
 *   delayed past a later load, so without a full fence between the two on BOTH sides each can miss
 *   the other's store, and the sleeper sleeps for ever (107 of 298,221 sleeps without fences, none
 *   of 299,999 with them). The sleeper's fence is the seq_cst increment in bell_prepare(), the
 *   waker's the one in bell_ring(). A short operation on one node looks for sleepers once, late:
 *   when it has to wait, or at its end (run_advance(), turn_give()). The engine's sleep
 *   (engine_asleep) and the bits of mail (mail_flag(), mail_collect()) are the same handshake.
 *   on_core is a hint, and relaxed.
 *
 * All members of a board belong to one user. What they write here is trusted by nobody else:
 * the engine copies descriptions before it checks them, reads payload as values only, and
 * keeps every bound in private memory (struct board). */
#include "shm/board/board.h"

#include <stdio.h>
#include <sys/mman.h>

#include "shm/model/team.h"
#include "shm/util/memfd.h"
#include "shm/util/topology.h"
#include "shm/proto/msg.h"

/* What commd decides by is kept here: what stands on the board members can write. */
struct board_ctl {
    struct board_hdr *hdr;
    struct board_rank *ranks;
    struct board_member *members;
    const struct board_slot *slots, *posts; /* posts NULL: several nodes */
    const struct board_recorder *recorders;
    size_t mapped;
    size_t size;
    uint32_t world, nlocal;
    uint32_t ngone;
    bool broken;
    /* What members cannot write. */
    struct gone {
        uint64_t at_ms;    /* now_ms() when we were told */
        uint32_t ops, nth; /* of this rank; the rank that was gone as the i-th of all */
        uint8_t cause;     /* 0: it is here */
        uint8_t missed;    /* while it is here: board_mark_missed() */
    } gone[];              /* by rank */
};

struct layout {
    struct board_offsets off;
    size_t size;
    uint32_t chunk, depth;
    struct mail box;
};

static const struct topology *machine_of(const struct board_geom *g)
{
    return g->machine ? g->machine : topology_here();
}

static void tune_board(const struct board_geom *g, struct tune *ret_tune)
{
    if (g->nnodes > 1)
        *ret_tune = (struct tune){.chunk = PLAN_CHUNK_NET, .depth = PLAN_DEPTH_NET};
    else
        tune_one_node(machine_of(g), g->nlocal, ret_tune);
}

static struct layout board_layout(uint32_t world, uint32_t nnodes, uint32_t nlocal, uint32_t chunk,
                                  uint32_t depth)
{
    struct layout l = {.chunk = chunk, .depth = depth};

    l.off.ranks = ALIGN_UP(sizeof(struct board_hdr), CACHELINE);
    l.off.members = ALIGN_UP(l.off.ranks + world * sizeof(struct board_rank), CACHELINE);
    l.off.on_core = ALIGN_UP(l.off.members + nlocal * sizeof(struct board_member), CACHELINE);
    l.off.slots = ALIGN_UP(l.off.on_core + nlocal * sizeof(uint32_t), 4096);
    l.off.posts = l.off.slots + (size_t)nlocal * BOARD_SLOTS * sizeof(struct board_slot);
    l.off.recorders = ALIGN_UP(
        l.off.posts + (nnodes > 1 ? 0 : (size_t)nlocal * BOARD_SLOTS * sizeof(struct board_slot)),
        4096);
    l.off.window = l.off.recorders + nlocal * sizeof(struct board_recorder);
    l.off.result = l.off.window + (size_t)nlocal * depth * chunk;
    l.off.posted = l.off.result + (size_t)depth * chunk * (nnodes == 2 ? 2 : 1);
    l.off.counts = l.off.posted + (nnodes > 1 ? 0 : (size_t)nlocal * BOARD_SLOTS * PLAN_POST);
    l.off.mail = l.off.counts;
    if (nnodes > 1)
        l.off.mail += (size_t)nlocal * depth * 2 * world * sizeof(uint64_t);
    l.off.mail = ALIGN_UP(l.off.mail, 4096);
    mail_layout(world, nnodes, nlocal, &l.box);
    l.size = l.off.mail + l.box.size;
    return l;
}

size_t board_size(const struct board_geom *g)
{
    struct tune t;

    tune_board(g, &t);
    return board_layout(g->world, g->nnodes, g->nlocal, t.chunk, t.depth).size;
}

static bool geom_valid(uint32_t world, uint32_t nnodes, uint32_t me, uint32_t nlocal)
{
    return world >= 1 && world <= PLAN_MAX_WORLD && nnodes >= 1 && nnodes <= world && me < nnodes &&
           nlocal >= 1 && nlocal <= BOARD_MAX_LOCAL && nlocal <= world;
}

_Static_assert((int)TUNE_DEPTH_MAX <= (int)BOARD_SLOTS,
               "a window is not ahead of its announcements");
_Static_assert(2 * (int)PLAN_PAGE <= (int)TUNE_CHUNK_MIN,
               "edges in registered memory fit into a slot");

static bool cut_valid(uint32_t nnodes, uint32_t chunk, uint32_t depth)
{
    return nnodes > 1 ? chunk == PLAN_CHUNK_NET && depth == PLAN_DEPTH_NET
                      : tune_valid(chunk, depth);
}

static unsigned team_of(const struct board_geom *g)
{
    const struct topology *t = machine_of(g);
    const struct team_machine machine = {.cpus = t->cpus, .caches = t->caches};

    return g->nnodes == 1 ? team_size(g->nlocal, &machine) : 0;
}

static void fill_header(struct board_hdr *h, const struct board_geom *g, const struct layout *l,
                        uint64_t around)
{
    h->version = BOARD_VERSION;
    h->world = g->world;
    h->nnodes = g->nnodes;
    h->me = g->me;
    h->nlocal = g->nlocal;
    h->depth = l->depth;
    h->cores = wait_cores();
    h->team = team_of(g);
    h->chunk = l->chunk;
    h->around = around;
    h->memory_nodes = machine_of(g)->nodes;
    h->net = g->net;
    h->gpu = g->gpu;
    h->plans = g->plans;
    h->group = g->group;
    h->epoch = g->epoch;
    h->size = l->size;
    h->off = l->off;
    atomic_init(&h->published, BOARD_FIRST_STEP);
    atomic_init(&h->sent, BOARD_FIRST_STEP);
    h->magic = BOARD_MAGIC;
}

/* Maps the control pages. */
static int ctl_new(const struct board_geom *g, const struct layout *l, int fd,
                   struct board_ctl **ret_ctl)
{
    struct board_ctl *ctl = calloc(1, sizeof *ctl + g->world * sizeof ctl->gone[0]);
    void *map;
    int r;

    if (!ctl)
        return -ENOMEM;
    r = memfd_map(fd, l->off.window, &map); /* no data */
    if (r) {
        free(ctl);
        return r;
    }
    ctl->hdr = map;
    ctl->ranks = (void *)((uint8_t *)map + l->off.ranks);
    ctl->members = (void *)((uint8_t *)map + l->off.members);
    ctl->slots = (const void *)((uint8_t *)map + l->off.slots);
    if (g->nnodes == 1)
        ctl->posts = (const void *)((uint8_t *)map + l->off.posts);
    ctl->recorders = (const void *)((uint8_t *)map + l->off.recorders);
    ctl->mapped = l->off.window;
    ctl->size = l->size;
    ctl->world = g->world;
    ctl->nlocal = g->nlocal;
    *ret_ctl = ctl;
    return 0;
}

int board_create(const struct board_geom *g, int *ret_fd, struct board_ctl **ret_ctl)
{
    _cleanup_(close_fdp) int fd = -1;
    struct board_ctl *ctl;
    unsigned local = 0;
    struct layout l;
    struct tune t;
    int r;

    tune_board(g, &t);
    l = board_layout(g->world, g->nnodes, g->nlocal, t.chunk, t.depth);
    if (!geom_valid(g->world, g->nnodes, g->me, g->nlocal))
        return -EINVAL;
    r = memfd_new("commd-board", l.size, &fd);
    if (r == 0)
        r = ctl_new(g, &l, fd, &ctl);
    if (r)
        return r;
    for (uint32_t i = 0; i < g->world; i++) {
        ctl->ranks[i].node = g->rank_node[i];
        ctl->ranks[i].local = g->rank_node[i] == g->me ? (uint16_t)local++ : BOARD_NO_MEMBER;
    }
    for (uint32_t i = 0; i < g->nlocal; i++) {
        atomic_init(&ctl->members[i].reduced, BOARD_FIRST_STEP);
        atomic_init(&ctl->members[i].consumed, BOARD_FIRST_STEP);
    }
    if (local != g->nlocal) {
        board_ctl_free(ctl);
        return -EINVAL;
    }
    fill_header(ctl->hdr, g, &l, t.around);
    *ret_fd = steal_fd(&fd);
    *ret_ctl = ctl;
    return 0;
}

/* Members can write the header: what steers us is computed from @g, and the header has to agree. */
static bool header_fits(const struct board_hdr *h, const struct board_geom *g)
{
    return h->magic == BOARD_MAGIC && h->version == BOARD_VERSION && h->group == g->group &&
           h->epoch == g->epoch && h->world == g->world && h->nnodes == g->nnodes &&
           h->me == g->me && h->nlocal == g->nlocal;
}

int board_adopt(const struct board_geom *g, int fd, struct board_ctl **ret_ctl)
{
    uint32_t chunk = 0, depth = 0;
    struct board_ctl *ctl;
    struct layout l;
    size_t size;
    int r;

    if (!geom_valid(g->world, g->nnodes, g->me, g->nlocal))
        return BOARD_E_BAD;
    r = memfd_check(fd, SIZE_MAX / 2, &size);
    if (r)
        return r < 0 ? r : BOARD_E_BAD;
    l = board_layout(g->world, g->nnodes, g->nlocal, 0, 0); /* up to the window */
    if (size < l.off.window)
        return BOARD_E_BAD;
    r = ctl_new(g, &l, fd, &ctl);
    if (r)
        return r;
    if (header_fits(ctl->hdr, g)) {
        chunk = ctl->hdr->chunk;
        depth = ctl->hdr->depth;
    }
    if (!chunk || !cut_valid(g->nnodes, chunk, depth) ||
        board_layout(g->world, g->nnodes, g->nlocal, chunk, depth).size != size) {
        board_ctl_free(ctl);
        return BOARD_E_BAD;
    }
    for (uint32_t i = 0; i < g->world; i++)
        if (!atomic_load(&ctl->ranks[i].gone))
            atomic_store(&ctl->ranks[i].cause, CAUSE_NONE); /* a node that was lost may be back */
    ctl->size = size;
    *ret_ctl = ctl;
    return 0;
}

struct board_ctl *board_ctl_free(struct board_ctl *ctl)
{
    if (ctl) {
        munmap(ctl->hdr, ctl->mapped);
        free(ctl);
    }
    return NULL;
}

size_t board_ctl_bytes(const struct board_ctl *ctl)
{
    return ctl->size;
}

/* Words of a member, which may be any numbers; 0: there is no such member. */
#define RANK_WORD(type, name, order)                                                               \
    type board_rank_##name(const struct board_ctl *ctl, unsigned local)                            \
    {                                                                                              \
        return local < ctl->nlocal ? atomic_load_explicit(&ctl->members[local].name, order) : 0;   \
    }
RANK_WORD(uint32_t, started, memory_order_relaxed)
RANK_WORD(uint32_t, messages, memory_order_relaxed)
RANK_WORD(uint32_t, gpu_begun, memory_order_acquire)
RANK_WORD(uint32_t, gpu_ended, memory_order_acquire)
RANK_WORD(uint64_t, gpu_bytes, memory_order_relaxed)

/* One operation at most is ended early and not counted yet. */
uint32_t board_rank_ended(const struct board_ctl *ctl, unsigned local)
{
    const struct board_member *m = &ctl->members[local];
    uint32_t ops, early;

    if (local >= ctl->nlocal)
        return 0;
    early = atomic_load_explicit(&m->early, memory_order_acquire);
    ops = atomic_load_explicit(&m->ops, memory_order_acquire);
    return early && early == ops + 1 ? early : ops;
}

/* The engine counts 1 more; what it has done is out. */
uint32_t board_rank_ops(const struct board_ctl *ctl, unsigned local)
{
    uint32_t ended = board_rank_ended(ctl, local), ops;

    if (local >= ctl->nlocal)
        return 0;
    ops = atomic_load_explicit(&ctl->members[local].ops, memory_order_acquire);
    if (ops != ended &&
        seq_reached(atomic_load_explicit(&ctl->hdr->ops_done, memory_order_acquire), ended + 1))
        return ended;
    return ops;
}

bool board_rank_left(const struct board_ctl *ctl, unsigned local)
{
    return local < ctl->nlocal &&
           atomic_load_explicit(&ctl->members[local].alive, memory_order_acquire) == MEMBER_LEFT;
}

unsigned board_rank_gone(const struct board_ctl *ctl, uint32_t rank)
{
    return rank < ctl->world ? ctl->gone[rank].cause : CAUSE_NONE;
}

uint64_t board_gone_ms(const struct board_ctl *ctl, uint32_t rank)
{
    return board_rank_gone(ctl, rank) ? ctl->gone[rank].at_ms : 0;
}

unsigned board_gone_at(const struct board_ctl *ctl, unsigned i, uint32_t *ret_rank,
                       uint32_t *ret_ops)
{
    if (i >= ctl->ngone)
        return CAUSE_NONE;
    *ret_rank = ctl->gone[i].nth;
    *ret_ops = ctl->gone[*ret_rank].ops;
    return ctl->gone[*ret_rank].cause;
}

const struct board_recorder *board_recorder(const struct board_ctl *ctl, unsigned local)
{
    return local < ctl->nlocal ? &ctl->recorders[local] : NULL;
}

void board_record(struct board_ctl *ctl, enum recorder_timing timing)
{
    atomic_store_explicit(&ctl->hdr->record, timing, memory_order_relaxed);
}

bool board_refused(const struct board_ctl *ctl, uint32_t op)
{
    uint64_t refused = atomic_load_explicit(&ctl->hdr->refused, memory_order_acquire);

    return refused && (uint32_t)refused == op;
}

bool board_quiet(const struct board_ctl *ctl, struct board_position *ret_position)
{
    const struct board_hdr *h = ctl->hdr;
    uint32_t done = atomic_load(&h->ops_done);

    ret_position->ops = done - 1;
    ret_position->sent = atomic_load(&h->mail_sent);
    ret_position->came = atomic_load(&h->mail_came);
    return done && atomic_load(&h->ops_begun) == done &&
           atomic_load(&h->mail_begun) == ret_position->sent;
}

/* A description stays in its slot until an operation begins there again. */
static void seat_descriptions(const struct board_ctl *ctl, unsigned local, struct board_seat *seat)
{
    const struct board_slot *rows[] = {ctl->slots, ctl->posts};

    for (unsigned i = 0; i < 2 * BOARD_SLOTS; i++) {
        const struct board_slot *row = rows[i / BOARD_SLOTS];
        struct op_desc desc;

        if (!row)
            continue;
        desc = row[(size_t)local * BOARD_SLOTS + i % BOARD_SLOTS].desc;
        if (!desc.seq)
            continue;
        if (seat->pending && (uint32_t)desc.seq == seat->started)
            seat->now = desc;
        if ((uint32_t)desc.seq == seat->ops)
            seat->last = desc;
    }
}

/* A member may write down a moment after @now_ms was read; that is no time, and not 49 days. */
static uint32_t ms_since(uint32_t since, uint64_t now_ms)
{
    enum { AHEAD_MS = 60000 };

    return since - (uint32_t)now_ms < AHEAD_MS ? 0 : (uint32_t)now_ms - since;
}

/* The operation @seq by commd-gpu, if it is remembered. */
static bool seat_gpu_op(const struct board_recorder *rec, uint32_t seq, struct op_desc *ret_desc,
                        int *ret_code, uint64_t *ret_begun_ms)
{
    struct recorder_op op;
    struct op_desc desc;
    int code;

    if (!seq || !recorder_gpu_read(rec, seq, &op, &desc, &code) || op.seq != seq)
        return false;
    *ret_desc = desc;
    *ret_code = code <= 0 && code >= -BOARD_GPU_LOST ? code : -CAUSE_INTERNAL;
    *ret_begun_ms = op.begun_ns / 1000000;
    return true;
}

static void seat_gpu(const struct board_ctl *ctl, unsigned local, uint64_t now_ms,
                     struct board_seat_gpu *gpu)
{
    const struct board_member *m = &ctl->members[local];
    const struct board_recorder *rec = &ctl->recorders[local];
    uint64_t begun_ms = 0;
    int unused;

    gpu->begun = board_rank_gpu_begun(ctl, local);
    gpu->ended = board_rank_gpu_ended(ctl, local);
    if (!gpu->begun)
        return; /* not a look at pages that it may not have */
    seat_gpu_op(rec, gpu->ended, &gpu->last, &gpu->code, &begun_ms);
    gpu->pending = (int32_t)(gpu->begun - gpu->ended) > 0;
    if (!gpu->pending)
        return;
    gpu->ready = atomic_load_explicit(&m->gpu_ready_op, memory_order_acquire) == gpu->ended + 1;
    if (seat_gpu_op(rec, gpu->ended + 1, &gpu->now, &unused, &begun_ms))
        gpu->ms = ms_since((uint32_t)begun_ms, now_ms);
    if (gpu->ready)
        gpu->ms = ms_since(atomic_load_explicit(&m->gpu_ready_ms, memory_order_relaxed), now_ms);
}

void board_seat(const struct board_ctl *ctl, unsigned local, uint64_t now_ms,
                struct board_seat *ret_seat)
{
    const struct board_member *m;
    uint32_t since;

    *ret_seat = (struct board_seat){0};
    if (local >= ctl->nlocal)
        return;
    m = &ctl->members[local];
    ret_seat->ops = board_rank_ended(ctl, local);
    ret_seat->started = atomic_load_explicit(&m->started, memory_order_acquire);
    ret_seat->pending = ret_seat->started != ret_seat->ops;
    ret_seat->asleep =
        ret_seat->pending &&
        atomic_load_explicit(&m->asleep_op, memory_order_acquire) == ret_seat->started;
    ret_seat->asleep_ms =
        ms_since(atomic_load_explicit(&m->asleep_ms, memory_order_relaxed), now_ms);
    ret_seat->messages = board_rank_messages(ctl, local);
    since = atomic_load_explicit(&m->message_ms, memory_order_acquire);
    ret_seat->message = since != 0;
    ret_seat->message_ms = ms_since(since, now_ms);
    ret_seat->message_peer = atomic_load_explicit(&m->message_peer, memory_order_relaxed);
    ret_seat->message_tag = atomic_load_explicit(&m->message_tag, memory_order_relaxed);
    ret_seat->message_send = atomic_load_explicit(&m->message_send, memory_order_relaxed) != 0;
    ret_seat->unasked_from =
        (int64_t)atomic_load_explicit(&m->unasked_from, memory_order_relaxed) - 1;
    ret_seat->unasked_tag = atomic_load_explicit(&m->unasked_tag, memory_order_relaxed);
    ret_seat->unready =
        !ret_seat->pending &&
        atomic_load_explicit(&m->unready_op, memory_order_acquire) == ret_seat->started + 1;
    ret_seat->unready_ms =
        ms_since(atomic_load_explicit(&m->unready_ms, memory_order_relaxed), now_ms);
    seat_gpu(ctl, local, now_ms, &ret_seat->gpu);
    seat_descriptions(ctl, local, ret_seat);
}

int board_first_dead(const struct board *b)
{
    if (!atomic_load_explicit(&b->hdr->ngone, memory_order_acquire))
        return -1;
    for (unsigned k = 0; k < b->world; k++)
        if (board_is_gone(b, k) && b->ranks[k].cause != CAUSE_LEFT)
            return (int)k;
    return -1;
}

unsigned board_missed(const struct board *b, unsigned rank)
{
    uint32_t cause;

    assert(rank < b->world);
    cause = atomic_load(&b->ranks[rank].cause);
    return !cause || cause == CAUSE_LEFT || cause == CAUSE_NODE_LOST ? cause : CAUSE_RANK_LOST;
}

void board_mark_gone(struct board_ctl *ctl, uint32_t rank, uint32_t ops, unsigned cause,
                     uint32_t pid)
{
    struct board_rank *r;

    if (rank >= ctl->world || ctl->gone[rank].cause)
        return;
    ctl->gone[rank].cause = (uint8_t)cause;
    ctl->gone[rank].at_ms = now_ms();
    ctl->gone[rank].ops = ops;
    ctl->gone[ctl->ngone].nth = rank;
    r = &ctl->ranks[rank];
    r->cause = cause;
    r->pid = pid;
    /* ops + 1 must not become "here" by wrapping; a member may have written anything there */
    atomic_store_explicit(&r->gone, MIN(ops, UINT32_MAX - 1) + 1, memory_order_release);
    atomic_store(&ctl->hdr->ngone, ++ctl->ngone); /* seq_cst: before the bell */
    bell_ring_slow(&ctl->hdr->bell);
}

void board_mark_missed(struct board_ctl *ctl, uint32_t rank, unsigned cause)
{
    struct gone *gone = rank < ctl->world ? &ctl->gone[rank] : NULL;

    if (!gone || gone->cause || (gone->missed && gone->missed != CAUSE_NODE_LOST))
        return;
    gone->missed = (uint8_t)cause;
    atomic_store(&ctl->ranks[rank].cause, cause);
}

/* Never waits: members can write to every word here. commd and the engine may both come; each
 * writes its own cause, and who sets `broken` first is believed. @by: 0 or BOARD_BY_ENGINE. */
static void break_by(struct board_hdr *h, uint32_t by, unsigned cause, int32_t rank, uint32_t pid,
                     const char *node, const char *text)
{
    struct board_cause *c = by ? &h->engine_cause : &h->cause;
    uint32_t none = 0;

    if (!atomic_load(&h->broken)) {
        c->rank = rank;
        c->pid = pid;
        snprintf(c->node, sizeof c->node, "%s", node);
        snprintf(c->text, sizeof c->text, "%s", text);
        /* release: pairs with acquire in board_broken() */
        atomic_compare_exchange_strong(&h->broken, &none, cause | by);
    }
    bell_ring_slow(&h->bell);
}

void board_break(struct board_hdr *h, unsigned cause, int32_t rank, uint32_t pid, const char *node,
                 const char *text)
{
    break_by(h, BOARD_BY_ENGINE, cause, rank, pid, node, text);
}

void board_mark_broken(struct board_ctl *ctl, unsigned cause, int32_t rank, uint32_t pid,
                       const char *node, const char *text)
{
    if (ctl->broken)
        return;
    ctl->broken = true;
    break_by(ctl->hdr, 0, cause, rank, pid, node, text);
}

unsigned board_broken(const struct board_hdr *h, struct board_cause *ret_cause)
{
    uint32_t word = atomic_load_explicit(&h->broken, memory_order_acquire);
    uint32_t cause = word & ~BOARD_BY_ENGINE;

    if (!word)
        return 0;
    *ret_cause = word & BOARD_BY_ENGINE ? h->engine_cause : h->cause; /* copied before use */
    ret_cause->node[sizeof ret_cause->node - 1] = ret_cause->text[sizeof ret_cause->text - 1] = 0;
    return cause == 0 || cause == CAUSE_LEFT || cause >= CAUSE_COUNT ? CAUSE_RANK_LOST : cause;
}

int board_map(int fd, struct board *ret_board)
{
    struct board b = {0};
    struct layout l;
    size_t size;
    void *map;
    int r;

    r = memfd_check(fd, SIZE_MAX / 2, &size);
    if (r < 0)
        return r;
    if (r > 0 || size < sizeof(struct board_hdr))
        return BOARD_E_BAD;
    r = memfd_map(fd, size, &map);
    if (r)
        return r;
    b.hdr = map;
    b.size = size;
    b.world = b.hdr->world;
    b.nnodes = b.hdr->nnodes;
    b.me = b.hdr->me;
    b.nlocal = b.hdr->nlocal;
    b.cores = b.hdr->cores;
    b.team = b.hdr->team;
    b.chunk = b.hdr->chunk;
    b.depth = b.hdr->depth;
    b.around = b.hdr->around;
    b.memory_nodes = b.hdr->memory_nodes;
    b.net = b.hdr->net;
    b.gpu = b.hdr->gpu;
    b.plans = b.hdr->plans;
    b.group = b.hdr->group;
    b.epoch = b.hdr->epoch;
    /* The layout is recomputed from the copied numbers and only compared with the file's. */
    if (b.hdr->magic != BOARD_MAGIC || b.hdr->version != BOARD_VERSION ||
        !geom_valid(b.world, b.nnodes, b.me, b.nlocal) || b.team == 1 || b.team > b.nlocal ||
        !cut_valid(b.nnodes, (uint32_t)b.chunk, b.depth)) {
        munmap(map, size);
        return BOARD_E_BAD;
    }
    l = board_layout(b.world, b.nnodes, b.nlocal, (uint32_t)b.chunk, b.depth);
    if (l.size != size || memcmp(&b.hdr->off, &l.off, sizeof l.off)) {
        munmap(map, size);
        return BOARD_E_BAD;
    }
    b.ranks = (void *)((uint8_t *)map + l.off.ranks);
    b.members = (void *)((uint8_t *)map + l.off.members);
    b.on_core = (void *)((uint8_t *)map + l.off.on_core);
    b.slots = (void *)((uint8_t *)map + l.off.slots);
    b.posts = (void *)((uint8_t *)map + l.off.posts);
    b.recorders = (void *)((uint8_t *)map + l.off.recorders);
    b.window = (uint8_t *)map + l.off.window;
    b.result = (uint8_t *)map + l.off.result;
    b.posted = (uint8_t *)map + l.off.posted;
    b.counts = (void *)((uint8_t *)map + l.off.counts);
    b.mail = l.box;
    b.mail.base = (uint8_t *)map + l.off.mail;
    *ret_board = b;
    return 0;
}

void board_unmap(struct board *b)
{
    if (b->hdr)
        munmap(b->hdr, b->size);
    memset(b, 0, sizeof *b);
}
