/* p2p_out.c - what goes out: messages, answers to messages, parts of long messages. What could not
 * be put into a ring at once stays in a list, and the next p2p_push() tries again. The lists: peers
 * that have to be told something (talk), receives that have to ask (pulls), sends whose receivers
 * have asked (streams). */
#include "client/lib/p2p/p2p.h"

/* ---- records --------------------------------------------------------------------------------- */

/* Some records need no credit: see shm/board/mail.c. */
static bool needs_credit(unsigned kind)
{
    return kind != MAIL_ACK && kind != MAIL_PROBE;
}

static bool has_room(struct p2p *p, struct p2p_peer *peer, unsigned kind)
{
    assert(kind > MAIL_NONE && kind < MAIL_KINDS);
    if (peer->local >= 0)
        return mail_room(&peer->tx);
    return mail_room(&p->engine) &&
           (!needs_credit(kind) || peer->sent - peer->acked < mail_credit(p->mail));
}

static void rec_init(struct mail_rec *rec, enum mail_kind kind)
{
    assert(kind > MAIL_NONE && kind < MAIL_KINDS);
    memset(rec, 0, CACHELINE);
    rec->kind = (uint8_t)kind;
}

static void emit(struct p2p *p, struct p2p_peer *peer, struct mail_rec *rec)
{
    assert_held(&p->lock);
    assert(has_room(p, peer, rec->kind));
    rec->src = (uint16_t)p->group->rank;
    rec->dst = (uint16_t)peer->rank;
    if (peer->local >= 0) {
        struct mail_box *box = mail_box(p->mail, (unsigned)peer->local);

        mail_put(&peer->tx, rec);
        mail_flag(peer->tx.word, peer->tx.bit);
        bell_ring_fenced(&box->bell, &box->sleepers);
        return;
    }
    rec->ack = peer->told = peer->taken;
    memcpy(rec->freed, peer->rx_freed, sizeof rec->freed);
    peer->rx_untold = 0;
    peer->sent += needs_credit(rec->kind);
    mail_put(&p->engine, rec);
    mail_flag(p->engine.word, p->engine.bit);
    group_wake_engine(p->group);
}

/* ---- out slots ------------------------------------------------------------------------------- */

/* A receiver that is gone will not free what it was sent. */
static bool abandoned(struct p2p *p, const struct p2p_slot *s)
{
    struct p2p_peer *peer = &p->peers[s->dst];

    assert(s->busy && s->dst < p->group->board.world);
    return peer->local >= 0 && board_is_gone(&p->group->board, peer->rank);
}

static void look_at_slots(struct p2p *p)
{
    bool gone = atomic_load_explicit(&p->group->board.hdr->ngone, memory_order_relaxed);

    assert(p->mail->slots <= MAIL_OUT_SLOTS);
    for (unsigned i = 0; i < p->mail->slots; i++) {
        struct p2p_slot *s = &p->slot[i];

        /* acquire: pairs with the release of whoever has read the slot */
        if (s->busy && (atomic_load_explicit(&p->box->out[i], memory_order_acquire) == s->id ||
                        (gone && abandoned(p, s)))) {
            s->busy = false;
            assert(!s->eager || p->eager_busy > 0);
            p->eager_busy -= s->eager;
        }
    }
}

/* Only streams wait for slots: what finds none free is announced. One that begins takes it back. */
void p2p_say_content(struct p2p *p)
{
    assert_held(&p->lock);
    if (TAILQ_EMPTY(&p->streams))
        atomic_store_explicit(&p->box->content, 1, memory_order_relaxed);
}

static int next_free(const struct p2p *p, unsigned begin, unsigned end)
{
    unsigned first = p->next_slot >= begin && p->next_slot < end ? p->next_slot : begin;

    assert(begin < end && end <= MAIL_OUT_SLOTS);
    for (unsigned k = 0; k < end - begin; k++) {
        unsigned i = first + k < end ? first + k : first + k - (end - begin);

        if (!p->slot[i].busy)
            return (int)i;
    }
    return -1;
}

/* In turn: see shm/board/mail.c. The slot is not taken before fill_slot(). */
static int p2p_free_slot(struct p2p *p, enum mail_kind kind)
{
    bool eager = kind == MAIL_EAGER;
    unsigned begin = eager ? 0 : p->mail->data_begin;
    unsigned end = eager ? p->mail->eager_end : p->mail->slots;
    int slot = next_free(p, begin, end);

    assert(kind == MAIL_EAGER || kind == MAIL_DATA);
    if (slot != (int)p->next_slot || (eager && p->eager_busy == p->mail->eager_most)) {
        look_at_slots(p);
        slot = next_free(p, begin, end);
    }
    return eager && p->eager_busy == p->mail->eager_most ? -1 : slot;
}

/* For another node the kernel reads it, on whatever core: the caches are best. */
static void copy_to_slot(struct p2p_peer *peer, uint8_t *to, const uint8_t *from, size_t n)
{
    if (peer->local >= 0)
        copy_in(&peer->way, to, from, n);
    else
        copy_out(to, from, n);
}

/* Of an eager payload for this node the first piece: fill_rest() writes the others once the record
 * is out. */
static void fill_slot(struct p2p *p, struct p2p_peer *peer, struct mail_rec *rec, unsigned slot,
                      const uint8_t *from)
{
    struct p2p_slot *s = &p->slot[slot];
    uint8_t *to = mail_out(p->mail, p->group->local, slot);

    assert(slot < p->mail->slots && !s->busy);
    rec->slot = (uint8_t)slot;
    rec->id = s->id = ++p->next_use;
    s->dst = (uint16_t)peer->rank;
    s->busy = true;
    s->eager = rec->kind == MAIL_EAGER;
    p->eager_busy += s->eager;
    p->next_slot = (slot + 1) % p->mail->slots;
    if (s->eager && peer->local >= 0) {
        rec->off = mail_offset(s->uses++, rec->len);
        copy_to_slot(peer, to + rec->off, from, MIN(rec->len, (uint64_t)MAIL_PIECE));
    } else {
        copy_to_slot(peer, to, from, rec->len);
    }
}

/* What its reader may begin to read meanwhile. */
static void fill_rest(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec,
                      const uint8_t *from)
{
    uint8_t *to = mail_out(p->mail, p->group->local, rec->slot) + rec->off;
    struct mail_box *box = mail_box(p->mail, (unsigned)peer->local);

    assert(peer->local >= 0 && rec->kind == MAIL_EAGER && rec->slot < MAIL_OUT_SLOTS);
    for (size_t off = MAIL_PIECE, n; off < rec->len; off += n) {
        n = MIN(rec->len - off, (uint64_t)MAIL_PIECE);
        copy_to_slot(peer, to + off, from + off, n);
        mail_fill_to(p->box, rec->slot, rec->id, (uint32_t)(off + n));
    }
    bell_ring(&box->bell, &box->sleepers);
}

static int free_rx_slot(const struct p2p_peer *peer)
{
    assert(peer->local < 0);
    for (int i = 0; i < MAIL_RX_SLOTS; i++)
        if (peer->rx_used[i] == peer->rx_done[i])
            return i;
    return -1;
}

/* ---- sends ----------------------------------------------------------------------------------- */

static bool make_eager(struct p2p *p, struct p2p_peer *peer, const struct p2p_op *op,
                       struct mail_rec *rec)
{
    size_t most = peer->local >= 0 ? (size_t)MAIL_EAGER_MAX : mail_eager_remote(p->mail);
    int slot, rx = 0;

    assert(op->send && !op->declined);
    if (op->size > most)
        return false;
    slot = p2p_free_slot(p, MAIL_EAGER);
    if (slot >= 0 && peer->local < 0)
        rx = free_rx_slot(peer);
    if (slot < 0 || rx < 0)
        return false;
    rec->kind = MAIL_EAGER;
    rec->rx = (uint8_t)rx;
    peer->rx_used[rx] += peer->local < 0;
    fill_slot(p, peer, rec, (unsigned)slot, op->buf);
    return true;
}

/* Tells the receiver of @op; a short one is done then. */
static bool p2p_publish(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    struct mail_rec rec;

    assert(op->send && op->state == P2P_QUEUED && op->peer == (int)peer->rank);
    if (!has_room(p, peer, MAIL_INLINE))
        return false;
    rec_init(&rec, MAIL_INLINE);
    rec.tag = op->tag;
    rec.len = op->size;
    rec.id = op->id;
    if (op->declined) {
        rec.kind = MAIL_DECLINED;
        rec.declined = (uint8_t)-op->declined;
    } else if (op->size <= MAIL_INLINE_MAX) {
        if (op->size)
            memcpy(rec.inl, op->buf, op->size);
    } else if (!make_eager(p, peer, op, &rec)) {
        rec.kind = MAIL_RTS;
        op->state = P2P_OFFERED;
        op_move(op, &p->offers);
        emit(p, peer, &rec);
        return true;
    }
    emit(p, peer, &rec);
    if (rec.kind == MAIL_EAGER && peer->local >= 0 && rec.len > MAIL_PIECE)
        fill_rest(p, peer, &rec, op->buf);
    p2p_end(p, op);
    return true;
}

static bool send_part(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op,
                      const struct p2p_part *part)
{
    struct mail_rec rec;
    int slot;

    assert(part->off <= op->size && part->len <= op->size - part->off);
    if (!has_room(p, peer, MAIL_DATA))
        return false;
    slot = p2p_free_slot(p, MAIL_DATA);
    if (slot < 0)
        return false;
    rec_init(&rec, MAIL_DATA);
    rec.peer_id = op->peer_id;
    rec.off = part->off;
    rec.len = part->len;
    rec.rx = part->rx;
    fill_slot(p, peer, &rec, (unsigned)slot, op->buf + part->off);
    emit(p, peer, &rec);
    op->moved += part->len;
    return true;
}

static bool stream_here(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    bool moved = false;

    assert(op->state == P2P_STREAMING && peer->local >= 0);
    while (op->moved < op->size) {
        struct p2p_part part = {.off = op->moved,
                                .len = (uint32_t)MIN(op->size - op->moved, (size_t)MAIL_CHUNK_ONE)};

        if (!send_part(p, peer, op, &part))
            return moved;
        moved = true;
    }
    p2p_end(p, op);
    return true;
}

static bool stream_there(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    bool moved = false;

    assert(op->state == P2P_STREAMING && peer->local < 0 && op->nparts <= MAIL_IN_SLOTS);
    while (op->nparts && send_part(p, peer, op, &op->part[0])) {
        op->nparts--;
        memmove(&op->part[0], &op->part[1], op->nparts * sizeof op->part[0]);
        moved = true;
    }
    if (op->moved >= op->size) {
        p2p_end(p, op);
    } else if (!op->nparts) {
        op->state = P2P_OFFERED;
        op_move(op, &p->offers);
    }
    return moved;
}

static struct p2p_op *find_send(struct p2p_list *list, const struct p2p_peer *peer, uint32_t id)
{
    struct p2p_op *op;

    TAILQ_FOREACH(op, list, link)
        if (op->id == id && op->peer == (int)peer->rank)
            return op;
    return NULL;
}

/* What is asked of a send that has ended meanwhile (it was given up) concerns nobody. */
void p2p_asked(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    struct p2p_op *op = find_send(&p->offers, peer, rec->peer_id);

    assert_held(&p->lock);
    assert(rec->kind == MAIL_CTS || rec->kind == MAIL_GET || rec->kind == MAIL_SKIP);
    if (!op)
        op = find_send(&p->streams, peer, rec->peer_id);
    if (!op)
        return;
    assert(op->send && (op->state == P2P_OFFERED || op->state == P2P_STREAMING));
    if (rec->kind == MAIL_SKIP) {
        if (rec->declined)
            p2p_peer_declined(p, op, peer->rank, rec->declined);
        p2p_end(p, op);
        return;
    }
    if (rec->kind == MAIL_GET) {
        if (peer->local >= 0 || op->nparts == MAIL_IN_SLOTS || rec->rx >= MAIL_IN_SLOTS ||
            !rec->len || rec->len > p->mail->chunk || rec->off > op->size ||
            rec->len > op->size - rec->off) {
            p2p_bad(p, COMMD_E_PROTOCOL, "rank %u asked for what cannot be", peer->rank);
            return;
        }
        assert(op->nparts < MAIL_IN_SLOTS);
        op->part[op->nparts++] =
            (struct p2p_part){.off = rec->off, .len = (uint32_t)rec->len, .rx = rec->rx};
    } else if (peer->local < 0) {
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u opened a stream between nodes", peer->rank);
        return;
    }
    op->peer_id = rec->id;
    op->state = P2P_STREAMING;
    op_move(op, &p->streams);
    atomic_store_explicit(&p->box->content, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* another thread may sleep: mail_slot_read() */
}

/* ---- receives that ask ----------------------------------------------------------------------- */

static bool tell_once(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op, enum mail_kind kind)
{
    struct mail_rec rec;

    assert(op->state == P2P_PULLING && !op->send);
    if (!has_room(p, peer, kind))
        return false;
    rec_init(&rec, kind);
    rec.id = op->id;
    rec.peer_id = op->peer_id;
    rec.declined = (uint8_t)-op->declined;
    emit(p, peer, &rec);
    return true;
}

static bool ask_for_parts(struct p2p *p, struct p2p_peer *peer, struct p2p_op *op)
{
    bool moved = false;

    assert(op->asked <= op->len && peer->local < 0);
    for (unsigned i = 0; i < MAIL_IN_SLOTS && op->asked < op->len; i++) {
        struct mail_rec rec;

        if (p->in_owner[i])
            continue;
        if (!has_room(p, peer, MAIL_GET))
            break;
        rec_init(&rec, MAIL_GET);
        rec.id = op->id;
        rec.peer_id = op->peer_id;
        rec.off = op->asked;
        rec.len = MIN(op->len - op->asked, p->mail->chunk);
        rec.rx = (uint8_t)i;
        p->in_owner[i] = op;
        p->in[i] = (struct p2p_part){.off = rec.off, .len = (uint32_t)rec.len};
        op->asked += rec.len;
        emit(p, peer, &rec);
        moved = true;
    }
    return moved;
}

static bool pull(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->status.source];

    assert(op->state == P2P_PULLING && op->status.source >= 0);
    if (op->filling)
        return p2p_take_filled(p, op);
    if (op->skip) {
        if (!tell_once(p, peer, op, MAIL_SKIP))
            return false;
        p2p_end(p, op);
        return true;
    }
    if (peer->local < 0)
        return ask_for_parts(p, peer, op);
    if (op->asking || !tell_once(p, peer, op, MAIL_CTS))
        return false;
    op->asking = true;
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------- */

void p2p_talk(struct p2p *p, struct p2p_peer *peer)
{
    assert_held(&p->lock);
    if (peer->talking)
        return;
    peer->talking = true;
    TAILQ_INSERT_TAIL(&p->talk, peer, talk_link);
}

static bool ack_due(const struct p2p *p, const struct p2p_peer *peer)
{
    return peer->local < 0 &&
           (peer->taken - peer->told >= p->mail->ring / 4 || peer->rx_untold >= MAIL_RX_SLOTS / 2);
}

static bool talk_to(struct p2p *p, struct p2p_peer *peer)
{
    bool moved = false;
    struct mail_rec rec;
    struct p2p_op *op;

    assert(peer->talking);
    while ((op = TAILQ_FIRST(&peer->out)) && p2p_publish(p, peer, op))
        moved = true;
    if (ack_due(p, peer) && has_room(p, peer, MAIL_ACK)) {
        rec_init(&rec, MAIL_ACK);
        emit(p, peer, &rec);
        moved = true;
    }
    if (peer->probe && has_room(p, peer, MAIL_PROBE)) {
        peer->probe = false;
        peer->probed = true;
        rec_init(&rec, MAIL_PROBE);
        emit(p, peer, &rec);
        moved = true;
    }
    if (op || peer->probe || ack_due(p, peer))
        return moved;
    peer->talking = false;
    TAILQ_REMOVE(&p->talk, peer, talk_link);
    return moved;
}

bool p2p_push(struct p2p *p)
{
    struct p2p_peer *peer, *next_peer;
    struct p2p_op *op, *next;
    bool moved = false;

    assert_held(&p->lock);
    for (peer = TAILQ_FIRST(&p->talk); peer; peer = next_peer) {
        next_peer = TAILQ_NEXT(peer, talk_link);
        moved |= talk_to(p, peer);
    }
    for (op = TAILQ_FIRST(&p->pulls); op; op = next) {
        next = TAILQ_NEXT(op, link);
        moved |= pull(p, op);
    }
    for (op = TAILQ_FIRST(&p->streams); op; op = next) {
        next = TAILQ_NEXT(op, link);
        peer = &p->peers[op->peer];
        moved |= peer->local >= 0 ? stream_here(p, peer, op) : stream_there(p, peer, op);
    }
    return moved;
}
