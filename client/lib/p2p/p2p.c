/* p2p.c - messages between ranks, as a state machine over the mail of the board (shm/board/mail.c)
 * that never blocks. A group that has ever sent or received has one struct p2p, under one lock. The
 * thread that holds the lock does what can be done for all pending operations of the group: a
 * caller that waits in commd_recv() also moves what other threads have started.
 *
 *   receive: POSTED -> [PULLING ->] DONE     send: QUEUED -> [OFFERED -> STREAMING ->] DONE
 *
 * A short message goes with its announcement, so its send is done as soon as there is room. A long
 * message is OFFERED. The receive that it is matched with asks for it, and is PULLING until the
 * last part has come. A send is done when its last part is in a slot of the board: from there the
 * message reaches its receiver even if this process leaves or ends.
 *
 * Who wakes me: the bell of my box, which is rung by every writer of a record for me, by the reader
 * that frees one of my slots unless I have said that I need none (box.content), and by the reader
 * that makes room in a full ring; the bell of the board for what commd has to say. What if the peer
 * dies now: commd marks the peer; p2p_hopeless() takes what the peer sent before, and gives up.
 * What if I am stopped now: the ranks that need my messages wait, and their limits name me. Other
 * ranks are not disturbed: only my own slots are shared by more than a pair of ranks.
 *
 * Messages of this process to itself do not touch the board.
 *
 * A rank that cannot do its part of a message (op.declined: mostly because it has no host memory
 * for a message on a GPU) goes through the same states without the data. So the peer learns which
 * rank failed. Only the sender of a short message does not: its send has ended before. */
#include "client/lib/p2p/p2p.h"

#include <stdarg.h>
#include <stdio.h>

enum { FILL_SPINS = 64 };

/* ---- life ------------------------------------------------------------------------------------ */

static void lists_init(struct p2p *p)
{
    TAILQ_INIT(&p->match.any);
    TAILQ_INIT(&p->match.unexpected);
    TAILQ_INIT(&p->talk);
    TAILQ_INIT(&p->pulls);
    TAILQ_INIT(&p->offers);
    TAILQ_INIT(&p->streams);
    TAILQ_INIT(&p->ops);
    TAILQ_INIT(&p->finished);
}

static void peer_init(struct p2p *p, unsigned rank, int local)
{
    const struct membership *g = p->group;
    struct p2p_peer *peer = &p->peers[rank];

    assert(rank < g->board.world && local < (int)g->board.nlocal);
    peer->rank = rank;
    peer->local = local;
    TAILQ_INIT(&peer->posted);
    TAILQ_INIT(&peer->unexpected);
    TAILQ_INIT(&peer->out);
    mail_rx_init(p->mail, g->local, rank, &peer->rx);
    if (local >= 0)
        mail_tx_init(p->mail, (unsigned)local, g->rank, &peer->tx);
}

static struct p2p *p2p_new(struct membership *g)
{
    struct p2p *p = calloc(1, sizeof *p);
    int local = 0;

    if (!p)
        return NULL;
    p->peers = calloc(g->board.world, sizeof *p->peers);
    if (!p->peers) {
        free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
    p->group = g;
    p->mail = &g->board.mail;
    p->box = mail_box(p->mail, g->local);
    lists_init(p);
    for (unsigned k = 0; k < g->board.world; k++)
        peer_init(p, k, g->members[k].node == g->board.me ? local++ : -1);
    assert(local == (int)g->board.nlocal);
    if (g->board.nnodes > 1)
        mail_engine_tx_init(p->mail, g->local, &p->engine);
    return p;
}

int p2p_get(struct membership *g, struct p2p **ret_p)
{
    struct p2p *p = atomic_load_explicit(&g->p2p, memory_order_acquire);

    if (unlikely(!p)) {
        pthread_mutex_lock(&g->qlock);
        p = atomic_load(&g->p2p);
        if (!p) {
            p = p2p_new(g);
            atomic_store(&g->p2p, p);
        }
        pthread_mutex_unlock(&g->qlock);
    }
    *ret_p = p;
    return p ? 0 : -ENOMEM;
}

void p2p_fini(struct p2p *p)
{
    struct p2p_msg *m;

    assert(TAILQ_EMPTY(&p->finished) && !p->users);
    while ((m = TAILQ_FIRST(&p->match.unexpected))) {
        TAILQ_REMOVE(&p->match.unexpected, m, by_time);
        free(m);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
    free(p->peers);
    free(p);
}

/* For people who ask whether the rank gets on. Only this rank writes the number. */
static void note_message(struct p2p *p, const struct p2p_op *op)
{
    struct board_member *me = &p->group->board.members[p->group->local];

    if (!op->err.code)
        atomic_store_explicit(&me->messages,
                              atomic_load_explicit(&me->messages, memory_order_relaxed) + 1,
                              memory_order_relaxed);
}

void p2p_end(struct p2p *p, struct p2p_op *op)
{
    assert_held(&p->lock);
    assert(op->state != P2P_DONE);
    for (unsigned i = 0; op->state == P2P_PULLING && i < MAIL_IN_SLOTS; i++)
        if (p->in_owner[i] == op)
            p->in_owner[i] = NULL;
    if (op->send && op->peer == (int)p->group->rank)
        match_forget(p, op);
    op->state = P2P_DONE;
    p2p_untell(p, op);
    note_message(p, op);
    TAILQ_REMOVE(&p->ops, op, all);
    op_move(op, op->work ? &p->finished : NULL);
    if (p->users > 1) /* another thread may wait for it */
        bell_ring(&p->box->bell, &p->box->sleepers);
}

void p2p_bad(struct p2p *p, int code, const char *fmt, ...)
{
    va_list ap;

    assert_held(&p->lock);
    assert(code < 0);
    if (p->bad)
        return;
    p->bad = code;
    va_start(ap, fmt);
    vsnprintf(p->bad_text, sizeof p->bad_text, fmt, ap);
    va_end(ap);
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* @id: of the record that came with what was there. */
static void p2p_free_place(struct p2p *p, struct p2p_peer *peer, unsigned slot, unsigned rx,
                           uint32_t id)
{
    assert(peer->local < 0 ? rx < MAIL_RX_SLOTS : slot < MAIL_OUT_SLOTS);
    if (peer->local < 0) {
        peer->rx_freed[rx]++;
        peer->rx_untold++;
        p2p_talk(p, peer);
        return;
    }
    mail_slot_read(mail_box(p->mail, (unsigned)peer->local), slot, id);
}

static void too_long(struct p2p *p, struct p2p_op *op, const struct p2p_msg *m)
{
    assert(m->len > op->size && m->src >= 0);
    op_error(p, op, COMMD_E_MISMATCH,
             "rank %d (node %s) sent %zu bytes with tag %d, but the buffer has %zu; the message is "
             "lost, the group can still be used",
             m->src, group_node_of(p->group, (unsigned)m->src), m->len, m->tag, op->size);
    op->err.rank = m->src;
}

void p2p_peer_declined(struct p2p *p, struct p2p_op *op, unsigned rank, uint8_t told)
{
    const char *node = group_node_of(p->group, rank), *why;
    int code = declined_code(told, &why);

    assert_held(&p->lock);
    assert(rank < p->group->board.world);
    op_error(p, op, code,
             "rank %u (node %s) cannot %s it: %s; the message is lost, the group can still be used",
             rank, node, op->send ? "receive" : "send", why);
    op_blame(p, op, rank);
}

/* A piece takes a quarter of a microsecond, unless its writer was stopped. */
static uint32_t wait_a_little(const struct mail_box *box, const struct p2p_op *op)
{
    uint32_t filled = (uint32_t)MIN(op->len, (size_t)MAIL_PIECE); /* came with the record */

    assert(op->filling && op->slot < MAIL_OUT_SLOTS);
    for (unsigned i = 0; filled <= op->moved && i < FILL_SPINS; i++) {
        filled = mail_filled(box, op->slot, op->peer_id);
        if (filled <= op->moved)
            cpu_relax();
    }
    return filled;
}

bool p2p_take_filled(struct p2p *p, struct p2p_op *op)
{
    struct p2p_peer *peer = &p->peers[op->status.source];
    const struct mail_box *box = mail_box(p->mail, (unsigned)peer->local);
    const uint8_t *from = mail_out(p->mail, (unsigned)peer->local, op->slot) + op->offset;
    bool moved = false;

    assert_held(&p->lock);
    assert(op->filling && op->state == P2P_PULLING && op->len <= op->size);
    while (op->moved < op->len) {
        size_t filled = MIN((size_t)wait_a_little(box, op), op->len);

        if (filled <= op->moved)
            return moved;
        copy_out(op->buf + op->moved, from + op->moved, filled - op->moved);
        op->moved = filled;
        moved = true;
    }
    p2p_free_place(p, peer, op->slot, 0, op->peer_id);
    p2p_end(p, op);
    return true;
}

/* Its sender may still be writing it. */
static void deliver_here(struct p2p *p, struct p2p_op *op, const struct p2p_msg *m)
{
    assert(m->len <= op->size && m->kind == MAIL_EAGER && !op->send);
    op->len = m->len;
    op->peer_id = m->id;
    op->slot = m->slot;
    op->offset = m->offset;
    op->filling = true;
    op->state = P2P_PULLING;
    op_move(op, &p->pulls);
    p2p_take_filled(p, op);
}

/* Gives message @m to receive @op. @body: of what is not in a slot. */
static void p2p_deliver(struct p2p *p, struct p2p_op *op, const struct p2p_msg *m, const void *body)
{
    struct p2p_peer *peer = &p->peers[m->src];
    bool sent = m->kind != MAIL_DECLINED, fits = sent && !op->declined && m->len <= op->size;

    assert(!op->send && op->state == P2P_POSTED && !op->list);
    op->status = (struct commd_status){.source = m->src, .tag = m->tag, .bytes = fits ? m->len : 0};
    if (!sent)
        p2p_peer_declined(p, op, (unsigned)m->src, m->declined);
    else if (!fits && !op->declined)
        too_long(p, op, m);
    if (m->kind == MAIL_RTS && !m->self) {
        op->len = m->len;
        op->peer_id = m->id;
        op->skip = !fits;
        op->state = P2P_PULLING;
        op_move(op, &p->pulls);
        return;
    }
    if (m->kind == MAIL_EAGER && peer->local >= 0 && fits) {
        deliver_here(p, op, m);
        return;
    }
    if (m->self)
        body = m->self->buf;
    else if (m->kind == MAIL_EAGER)
        body = mail_rx_slot(p->mail, p->group->local, (unsigned)m->src, m->rx);
    if (fits)
        copy_out(op->buf, body, m->len);
    if (m->self && op->declined)
        p2p_peer_declined(p, m->self, (unsigned)m->src, (uint8_t)-op->declined);
    if (m->self)
        p2p_end(p, m->self);
    else if (m->kind == MAIL_EAGER)
        p2p_free_place(p, peer, m->slot, m->rx, m->id);
    p2p_end(p, op);
}

static void keep(struct p2p *p, const struct p2p_msg *m, const void *body, size_t len)
{
    struct p2p_msg *k = malloc(sizeof *k + len);

    assert(!len || body);
    if (!k) {
        p2p_bad(p, COMMD_E_ABORTED, "no memory for a message of rank %d", m->src);
        return;
    }
    *k = *m;
    if (len)
        memcpy(k->body, body, len);
    match_keep(p, k);
}

static void p2p_message_came(struct p2p *p, const struct p2p_msg *m, const void *body, size_t len)
{
    struct p2p_op *op = match_arrived(p, (unsigned)m->src, m->tag);

    assert(m->src >= 0 && (unsigned)m->src < p->group->board.world);
    if (op)
        p2p_deliver(p, op, m, body);
    else
        keep(p, m, body, len);
}

static bool message_valid(const struct p2p *p, const struct p2p_peer *peer,
                          const struct mail_rec *rec)
{
    bool here = peer->local >= 0;

    assert(peer->rank < p->group->board.world);
    if (rec->tag < 0)
        return false;
    if (rec->kind == MAIL_INLINE)
        return rec->len <= MAIL_INLINE_MAX;
    if (rec->kind == MAIL_RTS)
        return rec->len > 0 && rec->len <= SIZE_MAX / 2;
    if (rec->kind == MAIL_DECLINED)
        return rec->declined;
    if (here)
        return mail_eager_slot(p->mail, rec->slot) && rec->len <= MAIL_EAGER_MAX &&
               rec->off <= MAIL_EAGER_MAX - rec->len;
    return rec->rx < MAIL_RX_SLOTS && rec->len <= mail_eager_remote(p->mail);
}

static void p2p_message(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    struct p2p_msg m = {.src = (int)peer->rank,
                        .tag = rec->tag,
                        .kind = rec->kind,
                        .slot = rec->slot,
                        .rx = rec->rx,
                        .declined = rec->declined,
                        .id = rec->id,
                        .len = rec->len};

    if (rec->kind == MAIL_EAGER && peer->local >= 0)
        m.offset = (uint32_t)rec->off;

    if (message_valid(p, peer, rec))
        p2p_message_came(p, &m, rec->inl, rec->kind == MAIL_INLINE ? rec->len : 0);
    else
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u sent a message that cannot be", peer->rank);
}

static void part_arrived(struct p2p *p, struct p2p_op *op, const uint8_t *from, uint64_t off,
                         size_t len)
{
    assert(op->state == P2P_PULLING && off <= op->len && len <= op->len - off);
    copy_out(op->buf + off, from, len);
    op->moved += len;
    if (op->moved >= op->len)
        p2p_end(p, op);
}

/* Parts for a receive that has ended meanwhile (it was given up) are dropped. */
static void data_here(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    struct p2p_op *op;

    assert(peer->local >= 0);
    if (!mail_data_slot(p->mail, rec->slot) || rec->len > p->mail->chunk) {
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u sent a part that cannot be", peer->rank);
        return;
    }
    TAILQ_FOREACH(op, &p->pulls, link)
        if (op->id == rec->peer_id && !op->filling && !op->skip &&
            op->status.source == (int)peer->rank)
            break;
    if (op && (rec->off > op->len || rec->len > op->len - rec->off))
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u sent a part that cannot be", peer->rank);
    else if (op)
        part_arrived(p, op, mail_out(p->mail, (unsigned)peer->local, rec->slot), rec->off,
                     rec->len);
    p2p_free_place(p, peer, rec->slot, 0, rec->id);
}

static void data_there(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    struct p2p_op *op = rec->rx < MAIL_IN_SLOTS ? p->in_owner[rec->rx] : NULL;
    const struct p2p_part *asked = &p->in[rec->rx % MAIL_IN_SLOTS];

    assert(peer->local < 0);
    if (!op || op->id != rec->peer_id || op->status.source != (int)peer->rank)
        return;
    if (asked->off != rec->off || asked->len != rec->len) {
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u sent a part that was not asked for", peer->rank);
        return;
    }
    p->in_owner[rec->rx] = NULL;
    part_arrived(p, op, mail_in(p->mail, p->group->local, rec->rx), asked->off, asked->len);
}

/* What every record from another node tells. */
static void acknowledged(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    assert(peer->local < 0);
    if (rec->ack - peer->acked > peer->sent - peer->acked) {
        p2p_bad(p, COMMD_E_PROTOCOL, "rank %u took more than was sent", peer->rank);
        return;
    }
    peer->acked = rec->ack;
    memcpy(peer->rx_done, rec->freed, sizeof peer->rx_done);
    if (rec->kind == MAIL_ACK)
        return;
    peer->taken++;
    p2p_talk(p, peer); /* an answer may be due */
}

static void p2p_handle(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec)
{
    if (rec->src != peer->rank || rec->dst != p->group->rank) {
        p2p_bad(p, COMMD_E_PROTOCOL, "a record of rank %u names others", peer->rank);
        return;
    }
    if (peer->local < 0 && rec->kind != MAIL_PONG) /* which is the engine's */
        acknowledged(p, peer, rec);
    if (p->bad)
        return;
    switch ((enum mail_kind)rec->kind) {
    case MAIL_INLINE:
    case MAIL_EAGER:
    case MAIL_RTS:
    case MAIL_DECLINED:
        p2p_message(p, peer, rec);
        return;
    case MAIL_CTS:
    case MAIL_GET:
    case MAIL_SKIP:
        p2p_asked(p, peer, rec);
        return;
    case MAIL_DATA:
        if (peer->local >= 0)
            data_here(p, peer, rec);
        else
            data_there(p, peer, rec);
        return;
    case MAIL_ACK:
        return;
    case MAIL_PONG:
        peer->silent = peer->local < 0;
        return;
    case MAIL_NONE:
    case MAIL_PROBE:
    case MAIL_KINDS:
        break;
    }
    p2p_bad(p, COMMD_E_PROTOCOL, "rank %u wrote a record of unknown kind %u", peer->rank,
            rec->kind);
}

static bool drain(struct p2p *p, struct p2p_peer *peer)
{
    bool moved = false;
    struct mail_rec rec;

    assert_held(&p->lock);
    while (!p->bad && mail_take(&peer->rx, &rec)) {
        moved = true;
        if (mail_relieved(&peer->rx) && peer->local >= 0) {
            struct mail_box *box = mail_box(p->mail, (unsigned)peer->local);

            bell_ring(&box->bell, &box->sleepers);
        }
        p2p_handle(p, peer, &rec);
    }
    return moved;
}

void p2p_drain(struct p2p *p, unsigned src)
{
    struct p2p_op *op, *next;

    assert_held(&p->lock);
    assert(src < p->group->board.world);
    drain(p, &p->peers[src]);
    /* its record may have been taken long ago, and the rest of what it announced lie in the slot */
    for (op = TAILQ_FIRST(&p->pulls); op; op = next) {
        next = TAILQ_NEXT(op, link);
        if (op->filling && op->status.source == (int)src)
            p2p_take_filled(p, op);
    }
}

bool p2p_poll(struct p2p *p, const struct p2p_op *hot)
{
    _Atomic uint64_t *bits = mail_bits(p->mail, p->group->local);
    int first = hot ? hot->peer : -1;
    bool moved = false;

    assert_held(&p->lock);
    assert(first < (int)p->mail->world);
    if (first >= 0) {
        moved = drain(p, &p->peers[first]);
        /* nothing else to do: the line with the bits can stay where it is */
        if (hot->state == P2P_DONE && TAILQ_EMPTY(&p->ops) && TAILQ_EMPTY(&p->talk))
            return true;
    }
    for (unsigned w = 0; w < (p->mail->world + 63) / 64; w++) {
        /* a bit that stays set need not be set again by who writes next */
        uint64_t keep = first >= 0 && (unsigned)first / 64 == w ? 1ull << first % 64 : 0;
        uint64_t set = mail_collect(&bits[w], keep);

        for (; set; set &= set - 1) {
            unsigned src = w * 64 + (unsigned)__builtin_ctzll(set);

            if (src < p->mail->world)
                moved |= drain(p, &p->peers[src]);
        }
    }
    return moved | p2p_push(p);
}

/* ---- what is started ------------------------------------------------------------------------- */

/* To ourselves: a short message is kept, a long one waits for its receive. */
static void begin_self(struct p2p *p, struct p2p_op *op)
{
    struct p2p_msg m = {
        .src = (int)p->group->rank, .tag = op->tag, .kind = MAIL_INLINE, .len = op->size};

    assert(op->send && op->peer == (int)p->group->rank);
    if (op->declined) {
        m.kind = MAIL_DECLINED;
        m.declined = (uint8_t)-op->declined;
        p2p_message_came(p, &m, NULL, 0);
        p2p_end(p, op);
        return;
    }
    if (op->size <= MAIL_EAGER_MAX) {
        p2p_message_came(p, &m, op->buf, op->size);
        p2p_end(p, op);
        return;
    }
    m.kind = MAIL_RTS;
    m.self = op;
    op->state = P2P_OFFERED;
    op_move(op, &p->offers);
    p2p_message_came(p, &m, NULL, 0);
}

void p2p_begin(struct p2p *p, struct p2p_op *op)
{
    struct p2p_msg *m;

    assert_held(&p->lock);
    assert(!op->list && op->peer < (int)p->group->board.world);
    op->id = ++p->next_id;
    crowd_next(&p->crowd);
    TAILQ_INSERT_TAIL(&p->ops, op, all);
    if (op->send) {
        op->state = P2P_QUEUED;
        if (p2p_hopeless(p, op, false))
            return;
        if (op->peer == (int)p->group->rank) {
            begin_self(p, op);
            return;
        }
        op_move(op, &p->peers[op->peer].out);
        p2p_talk(p, &p->peers[op->peer]);
        p2p_push(p);
        return;
    }
    op->state = P2P_POSTED;
    m = match_unexpected(p, op);
    if (m) {
        p2p_deliver(p, op, m, m->body);
        free(m);
        p2p_push(p);
    } else {
        match_post(p, op);
    }
}
