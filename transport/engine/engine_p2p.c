/* engine_p2p.c - mail between nodes (the model is in shm/board/mail.c). The engine takes records
 * out of the rings that members write for it, checks them, and sends each as the header of one
 * message, with the payload, if there is one, straight from the sender's out slot. Records that
 * come from other engines it writes into the rings of the receivers, and their payloads into the
 * places that the records name.
 *
 * The engine keeps nothing: there is room for every record and every body before it is sent,
 * because sender and receiver count. Where one of them does not, the ring is full when a record
 * comes: then the group breaks, and no other. A body that still lies with the other engine is
 * fetched into its place while the record holds its cell in the ring, so that records stay in
 * order; there are no more such bodies than cells. Records may come in another order than they were
 * sent in (engine_send.c); so each has a number, which is its place in the ring.
 *
 * Who wakes this: members (their bit, then the doorbell), messages, finished sends. What if a peer
 * dies now: sends fail, and commd breaks the group. What if a member dies now: what it has written
 * is sent, also when all members are dead and commd takes the board away (mail_flush()). PROBE asks
 * whether that has happened: the engine of a rank that is gone answers it behind all that this rank
 * has written. */
#include "transport/engine/engine_internal.h"

#include "shm/util/copy.h"
#include "shm/util/wait.h"

enum {
    SENDING_MAX = 256, /* messages of one board on their way; then its rings wait */
    RECORD_COST = 256, /* of a message, beside its body */
    /* On its way of all boards of a user: other users may find so much before them in a queue. */
    USER_SENDING = 1 << 20,
    USER_SENDING_ALONE = 16 << 20, /* where there is no other user */
    LOOK_BYTES = 2 << 20,          /* of a board in one look: members write as fast as we read */
};

struct out_slot { /* what a finished send needs to know */
    struct eboard *eb;
    unsigned member, slot;
    uint32_t id; /* of the record whose body the slot holds */
    uint32_t cost;
    bool busy; /* on its way: a member that writes another record for it does not count */
};

struct email {
    struct mail_rx *rx;     /* owned; by local member: its ring to the engine */
    uint32_t *put;          /* owned; [nlocal][world]: records written into each ring here */
    uint32_t *first;        /* owned, likewise: where record number 0 is; NULL: at the beginning */
    bool *known;            /* owned, likewise: are these two known? NULL with @first */
    uint32_t *posted;       /* owned; [nlocal][world]: records sent for each ring elsewhere */
    struct out_slot *slots; /* owned; [nlocal][MAIL_OUT_SLOTS] */
    uint16_t *local_of;     /* owned; world: member index, BOARD_NO_MEMBER elsewhere */
    uint64_t *again;        /* owned; a bit for each member whose ring was not emptied */
    struct copy_way *ways;  /* owned; by local member, which reads what is copied for it */
    unsigned sending;
    unsigned from; /* the member with which the next look begins */
    size_t looked; /* bytes sent in this look */
};

/* A body on its way into its place; its record follows. */
struct arriving {
    struct eboard *eb;
    unsigned local, src;
    uint32_t n; /* position in the ring */
    struct mail_rec rec;
};

static unsigned words_of(const struct eboard *eb)
{
    return (eb->b.nlocal + 63) / 64;
}

void mail_free(struct eboard *eb)
{
    struct email *em = eb->mail;

    if (!em)
        return;
    free(em->rx);
    free(em->put);
    free(em->first);
    free(em->known);
    free(em->posted);
    free(em->slots);
    free(em->local_of);
    free(em->again);
    free(em->ways);
    free(em);
    eb->mail = NULL;
}

/* When the first record comes: most groups never have one. */
static bool mail_init(struct eboard *eb)
{
    struct email *em = eb->mail = calloc(1, sizeof *em);
    unsigned nlocal = eb->b.nlocal;

    assert(nlocal > 0);
    assert(nlocal < BOARD_NO_MEMBER);
    if (!em)
        return false;
    em->rx = calloc(nlocal, sizeof *em->rx);
    em->put = calloc((size_t)nlocal * eb->b.world, sizeof *em->put);
    em->posted = calloc((size_t)nlocal * eb->b.world, sizeof *em->posted);
    em->slots = calloc((size_t)nlocal * MAIL_OUT_SLOTS, sizeof *em->slots);
    em->local_of = malloc(eb->b.world * sizeof *em->local_of);
    em->again = calloc(words_of(eb), sizeof *em->again);
    em->ways = calloc(nlocal, sizeof *em->ways);
    if (eb->mail_anew) {
        em->first = calloc((size_t)nlocal * eb->b.world, sizeof *em->first);
        em->known = calloc((size_t)nlocal * eb->b.world, sizeof *em->known);
    }
    if ((eb->mail_anew && (!em->first || !em->known)) || !em->rx || !em->put || !em->posted ||
        !em->slots || !em->local_of || !em->again || !em->ways) {
        mail_free(eb);
        return false;
    }
    memset(em->local_of, 0xff, eb->b.world * sizeof *em->local_of);
    for (unsigned m = 0; m < nlocal; m++) {
        em->local_of[eb->local_rank[m]] = (uint16_t)m;
        mail_engine_rx_init(&eb->b.mail, m, &em->rx[m]);
        if (eb->mail_anew)
            em->rx[m].got = atomic_load(em->rx[m].head);
        for (unsigned s = 0; s < MAIL_OUT_SLOTS; s++)
            em->slots[m * MAIL_OUT_SLOTS + s] = (struct out_slot){.eb = eb, .member = m, .slot = s};
    }
    return true;
}

static bool mail_usable(struct eboard *eb)
{
    if (eb->mail || mail_init(eb))
        return true;
    eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for messages");
    return false;
}

static void ring_member(struct eboard *eb, unsigned member)
{
    struct mail_box *box = mail_box(&eb->b.mail, member);

    assert(member < eb->b.nlocal);
    eb->e->published = true;
    bell_ring(&box->bell, &box->sleepers);
}

/* ---- out ------------------------------------------------------------------------------------- */

static void count(uint32_t *mine, _Atomic uint32_t *board)
{
    atomic_store_explicit(board, ++*mine, memory_order_release);
}

/* Before the record is taken out of its ring: it is not to be lost unnoticed if we die. */
static void count_begun(struct eboard *eb)
{
    count(&eb->mail_begun, &eb->b.hdr->mail_begun);
}

static void sent(struct eboard *eb, size_t cost, int st)
{
    if (st >= 0) /* else the group is not quiet any more */
        count(&eb->mail_sent, &eb->b.hdr->mail_sent);
    assert(eb->inflight > 0);
    assert(eb->mail->sending > 0);
    assert(eb->user->sending >= cost);
    eb->inflight--;
    eb->user->sending -= cost;
    eb->mail->sending--;
    if (!eb->dead)
        eboard_activate(eb);
}

static void record_sent(void *arg, int st)
{
    sent(arg, RECORD_COST, st);
}

static void body_sent(void *arg, int st)
{
    struct out_slot *s = arg;
    struct eboard *eb = s->eb;

    assert(s->busy);
    if (mail_slot_read(mail_box(&eb->b.mail, s->member), s->slot, s->id))
        eb->e->published = true;
    s->busy = false;
    sent(eb, s->cost, st);
}

static void wire_fill(struct wire_mail *w, uint64_t group, uint32_t uid, const struct mail_rec *rec,
                      size_t len)
{
    memset(&w->h, 0, sizeof w->h);
    w->h.group = group;
    w->h.uid = uid;
    w->h.step = WIRE_MAIL;
    w->h.len = (uint32_t)len;
    memcpy(w->rec, rec, sizeof w->rec);
}

/* @slot: of the body; NULL: there is none. */
static void post(struct eboard *eb, unsigned node, const struct mail_rec *rec,
                 struct out_slot *slot)
{
    fabric_done_fn done = slot ? body_sent : record_sent;
    const uint8_t *body = slot ? mail_out(&eb->b.mail, slot->member, slot->slot) : NULL;
    struct wire_mail w;
    size_t cost = RECORD_COST + (slot ? rec->len : 0);
    int r;

    assert(node < eb->geom.nnodes);
    assert(node != eb->geom.me);
    if (slot) {
        assert(!slot->busy);
        slot->id = rec->id;
        slot->cost = (uint32_t)cost;
        slot->busy = true;
    }
    wire_fill(&w, eb->b.group, eb->user->uid, rec, slot ? rec->len : 0);
    if (rec->kind != MAIL_PROBE) /* it goes into no ring */
        w.h.op = eb->mail->posted[(size_t)eb->mail->local_of[rec->src] * eb->b.world + rec->dst]++;
    eb->inflight++;
    eb->mail->sending++;
    eb->mail->looked += cost;
    eb->user->sending += cost;
    r = eboard_send(eb, node, &w.h, sizeof w, body, done, slot ? (void *)slot : eb);
    if (r != 0)
        done(slot ? (void *)slot : eb, r);
    if (r < 0)
        eboard_link_failed(eb, node, r);
}

/* May a member of one node send this record to a member of another node? */
static bool record_valid(const struct eboard *eb, const struct mail_rec *rec)
{
    const struct mail *m = &eb->b.mail;

    switch ((enum mail_kind)rec->kind) {
    case MAIL_INLINE:
        return rec->len <= MAIL_INLINE_MAX;
    case MAIL_EAGER:
        return mail_eager_slot(m, rec->slot) && rec->rx < MAIL_RX_SLOTS &&
               rec->len <= mail_eager_remote(m);
    case MAIL_DATA:
        return mail_data_slot(m, rec->slot) && rec->rx < MAIL_IN_SLOTS && rec->len <= m->chunk;
    case MAIL_GET:
    case MAIL_RTS:
    case MAIL_SKIP:
    case MAIL_ACK:
    case MAIL_PROBE:
    case MAIL_DECLINED:
        return true; /* the receiver checks what it uses */
    case MAIL_NONE:
    case MAIL_CTS:
    case MAIL_PONG: /* engines only */
    case MAIL_KINDS:
        break;
    }
    return false;
}

static void forward(struct eboard *eb, unsigned member, const struct mail_rec *rec)
{
    unsigned rank = eb->local_rank[member];
    struct out_slot *slot = NULL;

    if (rec->src != rank || rec->dst >= eb->b.world || eb->rank_node[rec->dst] == eb->geom.me ||
        !record_valid(eb, rec)) {
        eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u wrote a message that cannot be", rank);
        return;
    }
    if (mail_has_body(rec->kind))
        slot = &eb->mail->slots[member * MAIL_OUT_SLOTS + rec->slot];
    if (slot && slot->busy) {
        eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u used a slot again before it was sent", rank);
        return;
    }
    post(eb, eb->rank_node[rec->dst], rec, slot);
}

/* Sends what @member has written, as far as there is room; @ahead: whatever is on its way already.
 * At most a ring full: members write as fast as we read. */
static bool drain_member(struct eboard *eb, unsigned member, bool ahead)
{
    size_t user_max = eb->e->nowners > 1 ? USER_SENDING : USER_SENDING_ALONE;
    struct email *em = eb->mail;
    bool moved = false;

    assert(member < eb->b.nlocal);
    for (unsigned n = 0; !eb->dead; n++) {
        struct mail_rec rec = {0}; /* all of it goes over the wire */

        if (n == MAIL_ENGINE_RING ||
            (!ahead && (em->sending >= SENDING_MAX || em->looked >= LOOK_BYTES ||
                        eb->user->sending >= user_max))) {
            em->again[member / 64] |= 1ull << member % 64;
            break;
        }
        if (!mail_ready(&em->rx[member]))
            break;
        count_begun(eb);
        mail_take(&em->rx[member], &rec);
        moved = true;
        if (mail_relieved(&em->rx[member]))
            ring_member(eb, member);
        forward(eb, member, &rec);
    }
    return moved;
}

/* Sets in again[] the members whose rings are to be looked at; true if there are any. */
static bool collect(struct eboard *eb)
{
    _Atomic uint64_t *bits = mail_engine_bits(&eb->b.mail);
    bool any = false;

    for (unsigned w = 0; w < words_of(eb); w++) {
        uint64_t set = mail_collect(&bits[w], 0);

        if (w == eb->b.nlocal / 64)
            set &= (1ull << eb->b.nlocal % 64) - 1; /* members may set other bits */
        if (set && !mail_usable(eb))
            return false;
        if (set)
            eb->mail->again[w] |= set;
        any |= eb->mail && eb->mail->again[w];
    }
    return any;
}

static bool drain_all(struct eboard *eb, bool ahead)
{
    struct email *em;
    bool moved = false;
    unsigned from;

    if (!collect(eb))
        return false;
    em = eb->mail;
    em->looked = 0;
    from = em->from;
    for (unsigned k = 0; k < eb->b.nlocal && !eb->dead; k++) {
        unsigned m = (from + k) % eb->b.nlocal;
        uint64_t bit = 1ull << m % 64;

        if (!(em->again[m / 64] & bit))
            continue;
        if (!ahead && em->looked >= LOOK_BYTES)
            break;
        em->again[m / 64] &= ~bit;
        moved |= drain_member(eb, m, ahead);
        em->from = m + 1;
    }
    return moved;
}

bool mail_poll(struct eboard *eb)
{
    return drain_all(eb, false);
}

void mail_flush(struct eboard *eb)
{
    if (!eb->dead)
        drain_all(eb, true);
    if (!eb->dead)
        sends_flush(eb); /* what mail_answer_closed() sends must come behind it */
}

bool mail_renumber(struct eboard *eb)
{
    assert(eb->inflight == 0);
    mail_free(eb);
    eb->mail_anew = true;
    if (!mail_usable(eb))
        return false;
    /* bits that were collected, and rings and bells that nobody has answered */
    for (unsigned m = 0; m < eb->b.nlocal; m++) {
        eb->mail->again[m / 64] |= 1ull << m % 64;
        ring_member(eb, m);
    }
    return true;
}

bool mail_waits(const struct eboard *eb)
{
    for (unsigned w = 0; eb->mail && w < words_of(eb); w++)
        if (eb->mail->again[w])
            return true;
    return false;
}

bool mail_settled(const struct eboard *eb)
{
    _Atomic uint64_t *bits = mail_engine_bits(&eb->b.mail);

    for (unsigned w = 0; w < words_of(eb); w++)
        if (atomic_load(&bits[w]) || (eb->mail && eb->mail->again[w]))
            return false;
    return true;
}

/* ---- in -------------------------------------------------------------------------------------- */

static struct mail_rec pong_for(const struct mail_rec *probe)
{
    return (struct mail_rec){.kind = MAIL_PONG, .src = probe->dst, .dst = probe->src};
}

/* Rank rec->dst, of this node, is gone, and rec->src asks whether all that it wrote has been sent.
 * That was a ring full at most. */
static void answer_probe(struct eboard *eb, const struct mail_rec *rec)
{
    unsigned member = eb->mail->local_of[rec->dst];
    struct mail_rec pong = pong_for(rec);

    assert(member < eb->b.nlocal);
    if (eb->mail->sending >= SENDING_MAX + eb->b.nlocal * MAIL_ENGINE_RING) {
        eboard_fail(eb, CAUSE_PROTOCOL, -1, "rank %u asks more than it hears answers", rec->src);
        return;
    }
    drain_member(eb, member, true);
    if (eb->dead)
        return;
    count_begun(eb);
    post(eb, eb->rank_node[rec->src], &pong, NULL);
    count(&eb->mail_came, &eb->b.hdr->mail_came);
}

void mail_answer_closed(struct engine *e, const struct inmsg *m)
{
    struct mail_rec rec, pong;
    struct wire_mail w;

    memcpy(&rec, m->m.rec, sizeof rec);
    if (rec.kind != MAIL_PROBE)
        return;
    pong = pong_for(&rec);
    wire_fill(&w, m->h.group, m->h.uid, &pong, 0);
    w.h.flags = WIRE_LAST; /* the numbers went with the board */
    e->f->behind = true;
    e->f->ops->send(e->f, m->peer, &w, sizeof w, NULL, 0, sent_nothing, NULL);
    e->f->behind = false;
}

static void mail_publish(struct eboard *eb, unsigned local, unsigned src, uint32_t n,
                         const struct mail_rec *rec)
{
    struct mail_tx tx;

    mail_tx_init(&eb->b.mail, local, src, &tx);
    mail_fill(tx.cells, tx.len, n, rec);
    mail_flag(tx.word, tx.bit);
    ring_member(eb, local);
    count(&eb->mail_came, &eb->b.hdr->mail_came);
}

static void body_arrived(void *arg, int st)
{
    struct arriving *a = arg;

    assert(a->eb->inflight > 0);
    a->eb->inflight--;
    if (st >= 0 && !a->eb->dead)
        mail_publish(a->eb, a->local, a->src, a->n, &a->rec);
    pause_stir(a->eb);
    free(a);
}

static void claim_body(struct eboard *eb, struct inmsg *m, const struct mail_rec *rec,
                       unsigned local, uint32_t n, uint8_t *to)
{
    struct arriving *a = malloc(sizeof *a);

    if (!a) {
        inmsg_drop_claim(eb->e, m);
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory to receive a message");
        return;
    }
    *a = (struct arriving){.eb = eb, .local = local, .src = rec->src, .n = n, .rec = *rec};
    inmsg_fetch(eb, m, eb->rank_node[rec->src], to, body_arrived, a);
}

/* Where the body belongs; the record has been checked. */
static uint8_t *place_of(const struct eboard *eb, const struct mail_rec *rec, unsigned local)
{
    if (rec->kind == MAIL_EAGER)
        return mail_rx_slot(&eb->b.mail, local, rec->src, rec->rx);
    return mail_in(&eb->b.mail, local, rec->rx);
}

static bool arrival_valid(const struct eboard *eb, const struct inmsg *m,
                          const struct mail_rec *rec)
{
    if (rec->src >= eb->b.world || rec->dst >= eb->b.world ||
        eb->rank_node[rec->dst] != eb->geom.me || eb->rank_node[rec->src] == eb->geom.me ||
        eb->peers[eb->rank_node[rec->src]] != m->peer)
        return false;
    if (rec->kind != MAIL_PONG && !record_valid(eb, rec))
        return false;
    return m->h.len == (mail_has_body(rec->kind) ? rec->len : 0);
}

static void mail_came(struct eboard *eb, struct inmsg *m, const struct mail_rec *rec)
{
    unsigned local = eb->mail->local_of[rec->dst];
    struct email *em = eb->mail;
    size_t ring = (size_t)local * eb->b.world + rec->src;
    uint32_t *put = &em->put[ring], n;
    struct mail_tx tx;

    assert(local < eb->b.nlocal);
    assert(m->h.group == eb->b.group);
    if (em->known && !em->known[ring]) {
        em->first[ring] = *put = mail_written(&eb->b.mail, local, rec->src);
        em->known[ring] = true;
    }
    n = m->m.h.op + (em->first ? em->first[ring] : 0);
    if (m->m.h.flags & WIRE_LAST)
        n = *put;
    mail_tx_init(&eb->b.mail, local, rec->src, &tx);
    tx.put = n;
    tx.head_seen = tx.put - tx.len; /* so that mail_room() looks */
    if (!mail_room(&tx)) {
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "rank %u sent more to rank %u than there was room for", rec->src, rec->dst);
        return;
    }
    if (seq_reached(n, *put))
        *put = n + 1;
    if (m->claim) {
        claim_body(eb, m, rec, local, n, place_of(eb, rec, local));
        return;
    }
    if (m->h.len)
        copy_in(&em->ways[local], place_of(eb, rec, local), m->body, m->h.len);
    mail_publish(eb, local, rec->src, n, rec);
}

void mail_arrived(struct eboard *eb, struct inmsg *m)
{
    struct mail_rec rec;

    memcpy(&rec, m->m.rec, sizeof rec);
    if (!eb->dead && mail_usable(eb)) {
        if (!arrival_valid(eb, m, &rec))
            eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                        "another node's engine sent a message that cannot be");
        else if (rec.kind == MAIL_PROBE)
            answer_probe(eb, &rec);
        else
            mail_came(eb, m, &rec);
    }
    inmsg_drop_claim(eb->e, m);
}
