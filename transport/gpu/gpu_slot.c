/* gpu_slot.c - what a client announces: a slot of its region, copied once, then checked.
 *
 * All that can be wrong with an operation by itself is found here: after that, each address and
 * length in it lies in memory that this client has told of and the driver has confirmed. A client
 * whose slot breaks the rules is closed. What an honest program can get wrong, because of where its
 * buffers lie, fails the operation alone (gannounce.bad), and so does what the client says itself
 * that it cannot do (SESSION_DECLINED).
 *
 * A slot is free again when its operation has ended here, which can be a little later than the
 * client sees the end: what is announced meanwhile stays where it is. So SESSION_SLOTS operations
 * of a session are kept at most, and as many counts as fit into its region. */
#include "transport/gpu/gpu_op.h"

#include "shm/gpu/able.h"

enum { ANNOUNCES = 8 }; /* of a session in one look */

/* ---- results --------------------------------------------------------------------------------- */

void slot_finish(struct gsession *s, uint64_t n)
{
    assert_loop(s->g);
    assert(n >= s->low && n < s->next && !s->finished[n % SESSION_SLOTS]);
    s->finished[n % SESSION_SLOTS] = true;
    while (s->low < s->next && s->finished[s->low % SESSION_SLOTS])
        s->finished[s->low++ % SESSION_SLOTS] = false;
    memory_turn(s);
}

static void slot_result(struct gsession *s, uint64_t n, int code, int rank, uint32_t pid,
                        const char *text)
{
    struct session_result *r = &s->region->results[n % SESSION_SLOTS];

    assert(n >= s->low && n < s->next);
    r->code = code;
    r->rank = rank;
    r->pid = pid;
    strncpy(r->text, text, sizeof r->text - 1);
    r->text[sizeof r->text - 1] = 0;
}

void slot_succeed(struct gsession *s, uint64_t n)
{
    slot_result(s, n, 0, -1, 0, "");
}

void slot_retell(struct gsession *s, uint64_t n, int code, const char *text)
{
    slot_result(s, n, code, -1, 0, text);
}

void slot_fail(struct gsession *s, uint64_t n, int code, int rank, uint32_t pid, const char *text)
{
    slot_result(s, n, code, rank, pid, text);
    atomic_store_explicit(&s->region->flags.done[n % SESSION_SLOTS], session_mark(n),
                          memory_order_release);
    slot_finish(s, n);
}

void slots_fail_all(struct gsession *s, int code, const char *text)
{
    for (uint64_t n = s->low; n < s->next; n++) {
        _Atomic uint32_t *done = &s->region->flags.done[n % SESSION_SLOTS];

        if (s->finished[n % SESSION_SLOTS] || seq_reached(atomic_load(done), session_mark(n)))
            continue;
        slot_result(s, n, code, -1, 0, text);
        atomic_store_explicit(done, session_mark(n), memory_order_release);
    }
}

bool slot_ready(const struct gsession *s, uint64_t n)
{
    uint32_t ready =
        atomic_load_explicit(&s->region->flags.ready[n % SESSION_SLOTS], memory_order_acquire);

    return seq_reached(ready, session_mark(n));
}

void announce_free(struct gannounce *a)
{
    assert(!a || a->session->aux_held >= a->aux_len);
    if (a)
        a->session->aux_held -= a->aux_len;
    free(a);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What is being checked. */
struct look {
    struct gsession *s;
    struct gmember *member;
    struct gannounce *a;
    const struct session_slot *slot;
    const struct coll_info *info;
    size_t esize;
    bool root;
    struct gmemory *last; /* that was named */
    const char *why;      /* it breaks the rules */
};

static bool wrong(struct look *l, const char *why)
{
    l->why = why;
    return false;
}

static void look_bad(struct look *l, int code, const char *why)
{
    l->a->bad = why;
    l->a->bad_code = code;
}

/* Address of @bytes bytes at @place. */
static bool look_place(struct look *l, struct session_place place, uint64_t bytes, cu_ptr *ret)
{
    size_t end;

    *ret = 0;
    if (!bytes)
        return true;
    if (!l->last || l->last->id != place.memory)
        l->last = memory_get(l->s, place.memory);
    if (!l->last)
        return wrong(l, "it names memory that it has not told of");
    if (add_overflows(place.offset, bytes, &end) || end > l->last->bytes)
        return wrong(l, "a buffer does not lie in its memory");
    *ret = l->last->at + place.offset;
    if (*ret % l->esize)
        look_bad(l, COMMD_E_INVALID, "a buffer's address is no multiple of its elements' size");
    return true;
}

/* Blocks, of @counts[r] or of @count elements each, beginning at @place, or one by one at the
 * places in @blocks, which become addresses. */
static bool look_blocks(struct look *l, const uint64_t *counts, struct session_place place,
                        uint64_t *blocks, cu_ptr *ret, uint64_t *ret_bytes)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < l->member->group->world; r++) {
        size_t bytes;

        if (mul_overflows(counts ? counts[r] : l->a->desc.count, l->esize, &bytes) ||
            add_overflows(sum, bytes, &sum) || sum > INT64_MAX)
            return wrong(l, "its counts are too large");
        if (blocks) {
            struct session_place at = {.memory = (uint32_t)blocks[2 * r],
                                       .offset = blocks[2 * r + 1]};

            if (!look_place(l, at, bytes, &blocks[r]))
                return false;
        }
    }
    *ret_bytes = sum;
    return blocks ? true : look_place(l, place, sum, ret);
}

static bool look_one(struct look *l, uint64_t count, struct session_place place, cu_ptr *ret,
                     uint64_t *ret_bytes)
{
    if (mul_overflows(count, l->esize, ret_bytes) || *ret_bytes > INT64_MAX)
        return wrong(l, "its count is too large");
    return look_place(l, place, *ret_bytes, ret);
}

/* Elements of the one vector or block that the send or receive buffer holds. */
static uint64_t one_count(const struct look *l, bool send)
{
    const struct gpu_rank *r = &l->a->rank;

    switch (l->a->desc.coll) {
    case COLL_ALL_GATHER_V:
        return r->recv_counts[r->rank];
    case COLL_REDUCE_SCATTER_V:
        return r->send_counts[r->rank];
    case COLL_GATHER_V:
    case COLL_SCATTER_V:
        return send ? r->send_counts[0] : r->recv_counts[0];
    default:
        return l->a->desc.count;
    }
}

static bool look_buffers(struct look *l)
{
    const struct session_slot *slot = l->slot;
    struct gpu_rank *r = &l->a->rank;
    uint64_t bytes = 0, got = 0;
    bool ok = true;

    if (coll_at(l->info->send, l->root))
        ok = coll_blocks(l->info->send)
                 ? look_blocks(l, r->send_counts, slot->send, (uint64_t *)r->send_blocks, &r->send,
                               &bytes)
                 : look_one(l, one_count(l, true), slot->send, &r->send, &bytes);
    if (ok && coll_at(l->info->recv, l->root))
        ok = coll_blocks(l->info->recv)
                 ? look_blocks(l, r->recv_counts, slot->recv, (uint64_t *)r->recv_blocks, &r->recv,
                               &got)
                 : look_one(l, one_count(l, false), slot->recv, &r->recv, &got);
    if (l->a->desc.coll == COLL_BROADCAST && l->root)
        bytes = got;
    l->a->reads = bytes;
    l->a->counts = MAX(bytes, got);
    return ok;
}

/* Which words beside the slot an operation must have, and may have. */
static void look_needs(const struct look *l, uint32_t *ret_must, uint32_t *ret_may)
{
    static const uint32_t all[COLL_COUNT] = {
        [COLL_ALL_GATHER_V] = SESSION_RECV_COUNTS,
        [COLL_REDUCE_SCATTER_V] = SESSION_SEND_COUNTS,
        [COLL_GATHER_V] = SESSION_SEND_COUNTS,
        [COLL_SCATTER_V] = SESSION_RECV_COUNTS,
        [COLL_ALL_TO_ALL_V] = SESSION_SEND_COUNTS | SESSION_RECV_COUNTS,
    };
    static const uint32_t root[COLL_COUNT] = {
        [COLL_GATHER_V] = SESSION_RECV_COUNTS,
        [COLL_SCATTER_V] = SESSION_SEND_COUNTS,
    };
    unsigned coll = l->slot->desc.coll;

    *ret_must = all[coll] | (l->root ? root[coll] : 0);
    *ret_may = *ret_must;
    if (coll_blocks(l->info->send) && coll_at(l->info->send, l->root))
        *ret_may |= SESSION_SEND_BLOCKS;
    if (coll_blocks(l->info->recv) && coll_at(l->info->recv, l->root))
        *ret_may |= SESSION_RECV_BLOCKS;
}

/* Checks the description. */
static bool look_desc(struct look *l)
{
    const struct op_desc *d = &l->slot->desc;
    const struct ggroup *gr = l->member->group;

    if (d->seq != l->member->next)
        return wrong(l, "its operations of a group are not in order");
    if (!gpu_able(d, gr->nunits))
        return wrong(l, "commd-gpu cannot do the operation");
    l->info = &coll_table[d->coll];
    if (l->info->rooted && d->root >= gr->world)
        return wrong(l, "its root is no rank of the group");
    l->root = l->info->rooted && d->root == l->member->rank;
    l->esize = d->coll == COLL_BARRIER ? 1 : dtype_size(d->dtype);
    return true;
}

/* The words beside the slot, into @a->aux. */
static bool look_aux(struct look *l)
{
    const struct session_slot *slot = l->slot;
    struct gannounce *a = l->a;
    uint64_t *at = a->aux;
    uint32_t world = l->member->group->world;

    memcpy(a->aux, l->s->region->aux + slot->aux_offset, slot->aux_len);
    a->aux_len = slot->aux_len;
    l->s->aux_held += slot->aux_len;
    if (slot->aux_bits & SESSION_SEND_COUNTS) {
        a->rank.send_counts = at;
        at += world;
    }
    if (slot->aux_bits & SESSION_RECV_COUNTS) {
        a->rank.recv_counts = at;
        at += world;
    }
    if (slot->aux_bits & SESSION_SEND_BLOCKS) {
        a->rank.send_blocks = at;
        at += 2 * world;
    }
    if (slot->aux_bits & SESSION_RECV_BLOCKS)
        a->rank.recv_blocks = at;
    return true;
}

/* The words say why the client cannot do it. */
static bool look_declined(struct look *l)
{
    struct session_declined *why = (void *)l->a->aux;
    char text[sizeof why->text];

    memcpy(why, l->s->region->aux + l->slot->aux_offset, sizeof *why);
    l->a->aux_len = sizeof *why;
    l->s->aux_held += sizeof *why;
    client_text(why->text, sizeof text, text);
    memcpy(why->text, text, sizeof text);
    look_bad(l, client_code(why->code), why->text);
    return true;
}

/* Checks which words come with the slot, and where they lie. */
static bool look_aux_len(struct look *l)
{
    const struct session_slot *slot = l->slot;
    uint32_t must, may, bits = slot->aux_bits, words, len;

    look_needs(l, &must, &may);
    if (bits != SESSION_DECLINED && ((bits & must) != must || (bits & ~may)))
        return wrong(l, "it gives other counts or blocks than the operation has");
    words = !!(bits & SESSION_SEND_COUNTS) + !!(bits & SESSION_RECV_COUNTS) +
            2 * (!!(bits & SESSION_SEND_BLOCKS) + !!(bits & SESSION_RECV_BLOCKS));
    len = bits == SESSION_DECLINED ? (uint32_t)sizeof(struct session_declined)
                                   : words * l->member->group->world * (uint32_t)sizeof(uint64_t);
    if (slot->aux_len != len || slot->aux_offset % sizeof(uint64_t) ||
        slot->aux_offset > SESSION_AUX || slot->aux_len > SESSION_AUX - slot->aux_offset)
        return wrong(l, "its counts and blocks do not lie where they may");
    if (l->s->aux_held + slot->aux_len > SESSION_AUX)
        return wrong(l, "its counts and blocks overlap those of other operations");
    return true;
}

static bool look_all(struct look *l)
{
    l->member = member_find(l->s, l->slot->group);
    if (!l->member)
        return wrong(l, "it is not in that group");
    if (!look_desc(l) || !look_aux_len(l))
        return false;
    l->a = calloc(1, sizeof *l->a + l->slot->aux_len);
    if (!l->a)
        return wrong(l, "commd-gpu has no memory for its operation");
    l->a->session = l->s;
    l->a->n = l->s->next;
    l->a->desc = l->slot->desc;
    l->a->rank.rank = l->member->rank;
    l->a->rank.scale = l->slot->scale;
    if (l->slot->aux_bits == SESSION_DECLINED)
        return look_declined(l);
    return look_aux(l) && look_buffers(l);
}

/* ---- turns ----------------------------------------------------------------------------------- */

bool slot_waits(const struct gsession *s)
{
    const struct session_slot *slot = &s->region->slots[s->next % SESSION_SLOTS];

    return s->next - s->low < SESSION_SLOTS &&
           atomic_load_explicit(&slot->seq, memory_order_acquire) == session_mark(s->next);
}

bool slot_turn(struct gsession *s)
{
    bool moved = false;

    for (unsigned i = 0; i < ANNOUNCES && s->state == SESSION_OPEN && slot_waits(s); i++) {
        struct session_slot copy;
        struct look l = {.s = s, .slot = &copy};

        memcpy(&copy, &s->region->slots[s->next % SESSION_SLOTS], sizeof copy);
        __asm__ volatile("" ::: "memory"); /* the copy is all that is looked at */
        moved = true;
        if (!look_all(&l)) {
            announce_free(l.a);
            session_break(s, "operation %llu: %s", (unsigned long long)s->next, l.why);
            break;
        }
        s->next++;
        assert(s->next - s->low <= SESSION_SLOTS && s->aux_held <= SESSION_AUX);
        l.member->next++;
        group_announced(l.member, l.a);
    }
    return moved;
}
