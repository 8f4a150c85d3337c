/* announce.c - an operation on the device path: its slot at commd-gpu, and the words that streams
 * write and wait for. See shm/gpu/session.h.
 *
 * Slots are taken in the order of the process's calls. A slot is free when its operation has ended:
 * with SESSION_SLOTS pending operations the caller waits for the oldest, and holds no lock but its
 * group's meanwhile. Counts and blocks that do not fit into a slot lie in a ring. Half of the ring
 * is used: commd-gpu may still hold what it has read when this process sees the operation's end.
 *
 * An operation that this rank cannot do, mostly because commd-gpu lends no memory for it, is
 * announced as declined (SESSION_DECLINED). So all ranks count alike, whatever the others have
 * announced by then. The operation fails with this rank's reason when all ranks have announced it,
 * and later operations go on. On this rank the call has told of the failure, no stream waits, and
 * the limit begins with the call. */
#include "client/lib/device/note.h"
#include "client/lib/device/session.h"

#include <assert.h>
#include <stdio.h>

enum { AUX_MOST = SESSION_AUX / 2, WAIT_NAP_US = 50, WATCH_EVERY = 20 };
enum { SLOT_BUSY = LENT_BUSY + 1 }; /* nothing has happened: the caller tries again */

static struct announced *announced_of(struct gate *gate)
{
    return container_of(gate, struct announced, gate);
}

/* ---- a pending operation as a gate ----------------------------------------------------------- */

static void gate_unref_announced(struct gate *gate)
{
    announced_unref(announced_of(gate));
}

static void gate_result(struct gate *gate, struct commd_error *e)
{
    struct announced *a = announced_of(gate);

    assert(a->session);
    assert(gate_landed(gate));
    pthread_mutex_lock(&a->session->pend);
    session_ended(a);
    if (a->error.code)
        *e = a->error;
    pthread_mutex_unlock(&a->session->pend);
}

static int gate_wait_stream(struct gate *gate, void *stream)
{
    struct announced *a = announced_of(gate);
    const char *name = coll_name((unsigned)a->coll);
    struct scope scope;
    int r = scope_enter_known(name, stream, a->ctx, &scope);

    assert(a->session);
    assert(a->ctx);
    if (r)
        return r;
    r = announced_await(a, stream);
    scope_leave(&scope);
    return r;
}

static void gate_warn(struct gate *gate, double seconds)
{
    struct announced *a = announced_of(gate);
    const struct membership *g;

    assert(seconds >= 0);
    pthread_mutex_lock(&a->session->pend);
    g = a->group ? a->group->group : NULL;
    if (g && a->state != ANNOUNCED_ENDED)
        fprintf(
            stderr,
            "commd: rank %u of group \"%s\" on node %s has waited for %.1f s for operation %llu "
            "on GPUs (%s): its own stream has not come to it; commctl why says more\n",
            g->rank, g->name, g->ctx->node, seconds, (unsigned long long)a->seq,
            coll_name((unsigned)a->coll));
    pthread_mutex_unlock(&a->session->pend);
}

static const struct gate_ops announced_ops = {
    .unref = gate_unref_announced,
    .result = gate_result,
    .warn = gate_warn,
    .wait_stream = gate_wait_stream,
};

/* ---- what is announced ----------------------------------------------------------------------- */

/* The words beside the slot, and the memory that stands in for buffers. */
struct beside {
    uint64_t *words; /* owned */
    uint32_t n, bits;
    struct lent *lent; /* owned; NULL: none */
    bool send, recv;   /* of which sides */
    uint64_t returns;  /* LENT_BUSY: see lent_wait() */
    uint32_t aux_len;  /* bytes of the words; 0: not known yet */
    bool late;         /* the operation's limit has passed while it waited for memory */
    cu_ptr send_at, recv_at;
};

static void put_counts(struct beside *b, const size_t *counts, unsigned n, unsigned world,
                       uint32_t bit)
{
    assert(n <= world);
    assert(b->n + world <= 6 * world);
    for (unsigned k = 0; k < world; k++)
        b->words[b->n++] = k < n ? counts[k] : 0;
    b->bits |= bit;
}

/* The operation's counts. Of gather_v and scatter_v each rank gives its own count, too. */
static void put_all_counts(struct beside *b, const struct device_group *dg,
                           const struct commd_op *op)
{
    const struct coll_info *info = &coll_table[op->coll];
    unsigned world = dg->group->board.world;
    bool root = info->rooted && (unsigned)op->root == dg->group->rank;

    assert(op->coll >= 0);
    assert(op->coll < COLL_COUNT);
    if (!info->counted)
        return;
    if (coll_blocks(info->send) ? coll_at(info->send, root) : info->window == WINDOW_CELLS)
        put_counts(b, op->send_counts, coll_blocks(info->send) ? world : 1, world,
                   SESSION_SEND_COUNTS);
    if (coll_blocks(info->recv) ? coll_at(info->recv, root) : info->window == WINDOW_CELLS)
        put_counts(b, op->recv_counts, coll_blocks(info->recv) ? world : 1, world,
                   SESSION_RECV_COUNTS);
}

/* COMMD_E_*, or MEMORY_ALONE, MEMORY_ELSEWHERE: nothing of the side is put. */
static int put_side(struct session *s, const struct side_place *p, const char *name,
                    struct beside *b, uint32_t bit, struct session_place *ret_place)
{
    uint32_t n = b->n;

    assert_held(&s->calls);
    assert(b->words);
    assert((bit == SESSION_SEND_BLOCKS || bit == SESSION_RECV_BLOCKS));
    *ret_place = (struct session_place){0};
    if (!p->n || !p->bytes)
        return 0;
    if (!p->blocks)
        return memory_place(s, name, (cu_ptr)(uintptr_t)p->base, p->bytes, ret_place);
    for (unsigned k = 0; k < p->n; k++) {
        struct session_place at;
        int r = memory_place(s, name, (cu_ptr)(uintptr_t)p->blocks[k], side_block_bytes(p, k), &at);

        if (r) {
            b->n = n;
            return r;
        }
        b->words[b->n++] = at.memory;
        b->words[b->n++] = at.offset;
    }
    b->bits |= bit;
    return 0;
}

/* commd-gpu lends memory for the sides that b->send and b->recv name. The blocks of a side lie one
 * behind the other there. */
static int put_lent(struct session *s, const char *name, const struct side_places *p,
                    struct beside *b, struct session_slot *slot)
{
    const struct side_place *sides[] = {b->send ? &p->send : NULL, b->recv ? &p->recv : NULL};
    size_t recv_at, bytes = lent_bytes(p, b->send, b->recv, &recv_at);
    int r = lent_take(s, name, bytes, b->late ? NULL : &b->returns, &b->lent);

    assert(b->send || b->recv);
    for (unsigned i = 0; i < 2 && !r; i++) {
        uintptr_t lo, hi;
        int gpu = -1;

        if (!sides[i])
            continue;
        side_span(sides[i], &lo, &hi);
        driver_owns((const void *)lo, &gpu);
        r = lent_reach(s, name, b->lent, gpu);
    }
    if (r)
        return r;
    assert(b->lent);
    assert(recv_at < b->lent->bytes);
    b->send_at = b->lent->at;
    b->recv_at = b->lent->at + recv_at;
    if (b->send)
        slot->send = (struct session_place){.memory = b->lent->id};
    if (b->recv)
        slot->recv = (struct session_place){.memory = b->lent->id, .offset = recv_at};
    return 0;
}

static int64_t limit_of(const struct device_group *dg, const struct commd_op *op)
{
    assert(!is_p2p(op));
    return op->timeout_ms ? op->timeout_ms : atomic_load(&dg->group->timeout_ms);
}

/* All but what depends on the slot's number. */
static int fill(struct device_group *dg, const struct commd_op *op, const struct op_desc *desc,
                const struct side_places *p, struct session_slot *slot, struct beside *b)
{
    const char *name = op_name(op);
    int r;

    assert(!b->words);
    assert(!b->n);
    assert(dg->session);
    assert(dg->attached);
    *slot = (struct session_slot){.group = dg->attached, .desc = *desc, .scale = op->scale};
    slot->desc.seq = dg->next_seq;
    b->words = calloc(6 * dg->group->board.world, sizeof *b->words);
    if (!b->words)
        return error_set(error_mine(), COMMD_E_NOMEM, name, "%s: no memory for an operation", name);
    put_all_counts(b, dg, op);
    r = put_side(dg->session, &p->send, name, b, SESSION_SEND_BLOCKS, &slot->send);
    b->send = r > 0;
    if (r >= 0)
        r = put_side(dg->session, &p->recv, name, b, SESSION_RECV_BLOCKS, &slot->recv);
    b->recv = r > 0;
    if (r < 0)
        return r;
    assert(b->n <= 6 * dg->group->board.world);
    slot->aux_bits = b->bits;
    slot->aux_len = b->n * (uint32_t)sizeof *b->words;
    if (slot->aux_len > AUX_MOST)
        return error_set(error_mine(), COMMD_E_NOMEM, name, "%s: too many blocks", name);
    return b->send || b->recv ? put_lent(dg->session, name, p, b, slot) : 0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool is_free(struct session *s, unsigned i)
{
    bool ended;

    assert_held(&s->calls);
    assert(i < SESSION_SLOTS);
    pthread_mutex_lock(&s->pend);
    ended = !s->slots[i] || session_ended(s->slots[i]);
    pthread_mutex_unlock(&s->pend);
    return ended;
}

static size_t aux_pending(struct session *s)
{
    size_t sum = 0;

    assert_held(&s->calls);
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i] && !session_ended(s->slots[i]))
            sum += s->slots[i]->aux_len;
    pthread_mutex_unlock(&s->pend);
    return sum;
}

/* Is there room for an operation with @aux_len bytes beside its slot? 0; SLOT_BUSY: not before an
 * older one has ended; COMMD_E_GPU_LOST. */
static int look_for_room(struct device_group *dg, const struct commd_op *op, uint32_t aux_len)
{
    struct session *s = dg->session;

    assert_held(&s->calls);
    if (atomic_load(&s->lost)) {
        path_lost(dg);
        return error_set(error_mine(), COMMD_E_GPU_LOST, op_name(op), "%s: commd-gpu is gone",
                         op_name(op));
    }
    return is_free(s, s->count % SESSION_SLOTS) &&
                   (!aux_len || aux_pending(s) + aux_len <= AUX_MOST)
               ? 0
               : SLOT_BUSY;
}

static void ring(struct session *s)
{
    struct session_region *rg = s->region;

    assert(s->bell >= 0 || atomic_load(&s->lost));
    atomic_thread_fence(memory_order_seq_cst); /* the slot before the look at asleep */
    if (atomic_load_explicit(&rg->asleep, memory_order_relaxed) && atomic_exchange(&rg->asleep, 0))
        (void)!write(s->bell, &(uint64_t){1}, sizeof(uint64_t));
}

/* From here on it is an operation, whatever happens. */
static void publish(struct session *s, struct announced *a, struct session_slot *slot,
                    const void *words)
{
    unsigned i = a->n % SESSION_SLOTS;
    struct session_slot *to = &s->region->slots[i];

    assert_held(&s->calls);
    assert(a->n == s->count);
    assert(slot->aux_len <= AUX_MOST);
    assert(slot->aux_len % sizeof(uint64_t) == 0);
    assert(slot->desc.seq == a->seq);
    assert(a->group);
    if (slot->aux_len) {
        if (s->aux_at + slot->aux_len > SESSION_AUX)
            s->aux_at = 0;
        slot->aux_offset = (uint32_t)s->aux_at;
        memcpy(s->region->aux + s->aux_at, words, slot->aux_len);
        s->aux_at += slot->aux_len;
        assert(s->aux_at <= SESSION_AUX);
    }
    memcpy((uint8_t *)to + sizeof to->seq, (uint8_t *)slot + sizeof slot->seq,
           sizeof *slot - sizeof slot->seq);
    pthread_mutex_lock(&s->pend);
    announced_unref(s->slots[i]);
    s->slots[i] = a;
    atomic_fetch_add(&a->group->pending, 1);
    pthread_mutex_unlock(&s->pend);
    atomic_store_explicit(&to->seq, session_mark(a->n), memory_order_release);
    s->count++;
    ring(s);
}

static struct announced *announced_new(struct device_group *dg, const struct commd_op *op,
                                       const struct telling *how, bool lands)
{
    struct session *s = dg->session;
    struct announced *a = calloc(1, sizeof *a);
    unsigned i = s->count % SESSION_SLOTS;

    assert_held(&s->calls);
    assert(!lands || s->landed);
    if (!a)
        return NULL;
    atomic_init(&a->refs, 2);
    a->session = s;
    a->group = dg;
    a->n = s->count;
    a->seq = dg->next_seq;
    a->coll = op->coll;
    a->tells = how->ret_work || how->on_done ? TELLS_WORK : TELLS_NEXT_CALL;
    a->limit_ms = limit_of(dg, op);
    a->gate = (struct gate){.ops = &announced_ops,
                            .ready = &s->region->flags.ready[i],
                            .done = &s->region->flags.done[i],
                            .landed = lands ? &s->landed[i] : &s->region->flags.done[i],
                            .base = session_mark(s->count) - 1,
                            .pieces = 1};
    driver(NULL)->ctx_get(&a->ctx);
    return a;
}

/* All blocks of a side, which lie one behind the other at @at. */
static int copy_lent(const struct announced *a, const struct side_place *p, cu_ptr at, bool there,
                     cu_stream s)
{
    cu_result r = 0;

    assert(a->lent);
    assert(p->esize > 0);
    for (unsigned k = 0; k < (p->blocks ? p->n : 1) && !r; k++) {
        size_t bytes = p->blocks ? side_block_bytes(p, k) : p->bytes;
        cu_ptr theirs = (cu_ptr)(uintptr_t)(p->blocks ? p->blocks[k] : p->base);

        if (bytes)
            r = there ? driver(NULL)->copy(at, theirs, bytes, s)
                      : driver(NULL)->copy(theirs, at, bytes, s);
        at += bytes;
    }
    return driver_error(coll_name((unsigned)a->coll), "cuMemcpyAsync", r);
}

/* What streams do for an operation with memory that commd-gpu lends: see lent.c. */
static int enqueue_lent(struct device_group *dg, struct announced *a, const struct commd_op *op,
                        const struct side_places *p, const struct beside *b, bool wait)
{
    bool root = op->coll == COMMD_BROADCAST && (unsigned)op->root == dg->group->rank;
    const struct side_place *in = op->coll == COMMD_BROADCAST ? &p->recv : &p->send;
    cu_stream down = op->stream, up = op->stream;
    struct stream_lane *lane;
    int r = 0;

    assert(announced_lands(a));
    assert(a->lent);
    assert((b->send || b->recv));
    if (!wait) {
        r = stream_lane_from(dg, op_name(op), a->ctx, op->stream, &lane);
        if (r)
            return r;
        down = lane->down;
        up = lane->up;
    }
    r = staged_follow(dg, in, down);
    if (!r)
        r = announced_follow_before(a, in, down);
    if (!r && b->send)
        r = copy_lent(a, &p->send, b->send_at, true, down);
    if (!r && b->recv && root)
        r = copy_lent(a, &p->recv, b->recv_at, true, down);
    if (!r)
        r = announced_ready(a, down);
    if (!r)
        r = announced_await_done(a, up);
    if (!r)
        r = announced_follow_before(a, &p->recv, up);
    if (!r && b->recv && !root)
        r = copy_lent(a, &p->recv, b->recv_at, false, up);
    return r ? r : announced_land(a, up);
}

static int enqueue_flags(struct device_group *dg, struct announced *a, const struct commd_op *op,
                         const struct side_places *p, bool wait)
{
    const struct side_place *in = op->coll == COMMD_BROADCAST ? &p->recv : &p->send;
    int r = staged_follow(dg, in, op->stream);

    assert(!announced_lands(a));
    if (!r)
        r = announced_follow_before(a, in, op->stream);
    if (!r)
        r = announced_ready(a, op->stream);
    if (r)
        return r;
    return wait ? announced_await(a, op->stream) : 0;
}

/* This rank's device or process is of no more use: nobody shall wait for it. */
static void announce_abort(struct device_group *dg, const struct commd_error *why)
{
    struct session_msg m = {.type = SESSION_ABORT, .id = dg->attached};

    assert(why->code);
    assert(dg->session);
    assert(dg->attached);
    if (atomic_load(&dg->session->lost))
        return;
    m.answer.code = why->code;
    m.answer.rank = (int)dg->group->rank;
    snprintf(m.answer.text, sizeof m.answer.text, "rank %u: %.200s", dg->group->rank, why->message);
    session_tell(dg->session, &m);
}

/* The operation of @slot, which this rank cannot do. Returns why. */
static int announce_declined(struct device_group *dg, const struct commd_op *op,
                             struct session_slot *slot)
{
    static const struct telling told = {0};
    const struct commd_error why = *commd_last_error();
    struct session_declined words = {.code = why.code};
    struct session *s = dg->session;
    struct announced *a = NULL;

    assert(why.code < 0);
    if (!commd_error_breaks_group(why.code) && why.code != COMMD_E_GPU_LOST)
        a = announced_new(dg, op, &told, false);
    if (!a) {
        announce_abort(dg, &why);
        return why.code;
    }
    snprintf(words.text, sizeof words.text, "%.*s", (int)sizeof words.text - 1, why.message);
    a->refs = 1; /* the slot's */
    a->tells = TELLS_CALL;
    announced_begin(a, ANNOUNCED_WARNED, (int64_t)now_ms()); /* nobody waits for it */
    a->aux_len = slot->aux_len = sizeof words;
    slot->aux_bits = SESSION_DECLINED;
    slot->send = slot->recv = (struct session_place){0};
    note_announced(dg->group, &slot->desc, 0);
    publish(s, a, slot, &words);
    note_ended(dg->group, (uint32_t)slot->desc.seq, why.code);
    dg->next_seq++;
    if (atomic_load(&s->lost)) /* meanwhile: as in announce_locked() */
        session_release(s);
    *error_mine() = why;
    return why.code;
}

static uint64_t given(const struct commd_op *op, const struct side_places *p, unsigned rank)
{
    assert(!is_p2p(op));
    if (op->coll == COMMD_BROADCAST)
        return (unsigned)op->root == rank ? p->recv.bytes : 0;
    return p->send.bytes;
}

/* LENT_BUSY, SLOT_BUSY: nothing has happened. */
static int announce_locked(struct device_group *dg, const struct commd_op *op,
                           const struct op_desc *desc, const struct side_places *p,
                           const struct telling *how, struct beside *b)
{
    struct session *s = dg->session;
    struct session_slot slot;
    struct announced *a;
    struct commd_work *w;
    int r;

    assert_held(&dg->lock);
    assert(dg->attached);
    r = look_for_room(dg, op, b->aux_len);
    if (r)
        return r;
    r = fill(dg, op, desc, p, &slot, b);
    if (r == LENT_BUSY)
        return r;
    if (r)
        return atomic_load(&s->lost) ? r : announce_declined(dg, op, &slot);
    b->aux_len = slot.aux_len;
    r = look_for_room(dg, op, b->aux_len);
    if (r)
        return r;
    a = announced_new(dg, op, how, b->lent);
    if (!a) {
        error_set(error_mine(), COMMD_E_NOMEM, op_name(op), "no memory for an operation");
        return announce_declined(dg, op, &slot);
    }
    r = async_work_new(dg->group, op, how->on_done, how->arg, &w);
    if (r) {
        free(a);
        return announce_declined(dg, op, &slot);
    }
    a->aux_len = slot.aux_len;
    side_span(&p->recv, &a->lo, &a->hi);
    a->lent = steal_ptr(b->lent);
    assert(a->n == s->count);
    assert(a->seq == dg->next_seq);
    note_announced(dg->group, &slot.desc, given(op, p, dg->group->rank));
    publish(s, a, &slot, b->words);
    dg->next_seq++;
    w->gate = &a->gate;
    r = announced_lands(a) ? enqueue_lent(dg, a, op, p, b, how->wait)
                           : enqueue_flags(dg, a, op, p, how->wait);
    if (r) { /* a stream of ours does not do what was announced */
        if (announced_lands(a))
            atomic_store_explicit(a->gate.landed, session_mark(a->n), memory_order_release);
        session_lose(s, commd_last_error()->message);
    }
    if (how->ret_gate) {
        atomic_fetch_add(&a->refs, 1);
        *how->ret_gate = &a->gate;
    }
    if (!how->ret_work)
        atomic_fetch_sub(&w->refs, 1); /* one is left: of what lands */
    else
        *how->ret_work = w;
    async_land(w);
    if (atomic_load(&s->lost)) /* meanwhile: session_release() may have missed this operation */
        session_release(s);
    return 0;
}

int announce(struct device_group *dg, const struct commd_op *op, const struct op_desc *desc,
             const struct telling *how)
{
    struct side_places p = side_places_of(dg->group, op);
    int64_t limit = limit_of(dg, op), until = 0; /* 0: nobody has waited yet */
    uint32_t aux_len = 0;
    unsigned naps = 0;
    bool late = false;
    int r;

    assert(dg->session);
    assert(dg->attached);
    do {
        struct beside b = {.late = late, .aux_len = aux_len};

        pthread_mutex_lock(&dg->session->calls);
        r = announce_locked(dg, op, desc, &p, how, &b);
        if (b.lent)
            lent_return(dg->session, b.lent);
        pthread_mutex_unlock(&dg->session->calls);
        free(b.words);
        aux_len = b.aux_len;
        assert(r <= 0 || r == SLOT_BUSY || r == LENT_BUSY);
        if (r == SLOT_BUSY) {
            usleep(WAIT_NAP_US); /* nobody rings, and the oldest is about to end */
            if (++naps % WATCH_EVERY ==
                0) /* the progress thread watches only if works are to land */
                session_watch(dg->session);
        }
        if (r == LENT_BUSY && !until)
            until = limit < 0 ? -1 : (int64_t)now_ms() + limit;
        late = r == LENT_BUSY && !lent_wait(dg->session, b.returns, until);
    } while (r == SLOT_BUSY || r == LENT_BUSY);
    return r;
}
