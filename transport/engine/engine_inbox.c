/* engine_inbox.c - matching messages to moves.
 *
 * A message may come before its time: the sender's ranks were faster, or commd has not told us
 * of the group yet. It waits in the board's inbox or in pending (engine_pending.c): eager bodies
 * are copied, rendezvous bodies stay with the sender, which is the flow control. What a
 * well-behaved peer can have outstanding is bounded by the window depth. What exceeds the bounds
 * below fails its group, no other: what goes to and fro in a group is its members' doing, and the
 * link belongs to all users. Only what no member can bring about, a malformed header, is blamed on
 * the peer's engine. */
#include "transport/engine/engine_internal.h"

#include "shm/util/wait.h"

enum {
    /* In a ring the node before us can be ahead by all moves of all steps that are under way. */
    INBOX_MAX = PLAN_DEPTH_NET * SCHED_MAX_MOVES,
    INBOX_MAX_BYTES = 64 << 20,
    BODY_SMALL = 64 << 10,
};

void inbox_init(struct inbox *in)
{
    memset(in, 0, sizeof *in);
    in->tail = &in->head;
}

/* Large bodies lie in scratch: malloc() would get each from the kernel and give it back at once. */
static uint8_t *body_new(struct engine *e, size_t len)
{
    return len > BODY_SMALL ? scratch_get(e) : malloc(len);
}

static void body_free(struct engine *e, uint8_t *body, size_t len)
{
    if (len > BODY_SMALL)
        scratch_put(e, body);
    else
        free(body);
}

void inmsg_done(struct engine *e, struct inmsg *m)
{
    if (m->on_stack)
        return;
    body_free(e, (uint8_t *)m->body, m->h.len);
    free(m);
}

void inmsg_free(struct engine *e, struct inmsg *m)
{
    if (m->claim && e->f)
        e->f->ops->drop(e->f, m->claim);
    inmsg_done(e, m);
}

void inbox_unlink(struct inbox *in, struct inmsg **p)
{
    struct inmsg *m = *p;

    *p = m->next;
    if (!*p)
        in->tail = p;
    in->n--;
    in->bytes -= inmsg_cost(m);
    m->next = NULL;
}

/* Of a body that still lies with the fabric as much as that may have copied. */
size_t inmsg_cost(const struct inmsg *m)
{
    return sizeof *m + (m->body && m->h.len > BODY_SMALL ? (size_t)PLAN_CHUNK_NET : m->h.len);
}

bool inbox_push(struct inbox *in, struct inmsg *m)
{
    if (in->n >= INBOX_MAX || in->bytes + inmsg_cost(m) > INBOX_MAX_BYTES)
        return false;
    *in->tail = m;
    in->tail = &m->next;
    in->n++;
    in->bytes += inmsg_cost(m);
    return true;
}

static bool matches(const struct inmsg *m, const struct eboard *eb, uint32_t step, unsigned move,
                    unsigned peer)
{
    return m->peer == peer && m->h.op == eb->op && m->h.step == step && m->h.move == move;
}

struct inmsg *inbox_take(struct eboard *eb, uint32_t step, unsigned move, unsigned peer)
{
    struct inmsg *m = eb->fresh;

    if (m && matches(m, eb, step, move, peer)) {
        eb->fresh = NULL;
        return m;
    }
    for (struct inmsg **p = &eb->inbox.head; *p; p = &(*p)->next) {
        m = *p;
        if (matches(m, eb, step, move, peer)) {
            inbox_unlink(&eb->inbox, p);
            return m;
        }
    }
    return NULL;
}

/* Only those that came before @older_than_ms; @peer >= 0: only those of that peer. */
void inbox_drop(struct engine *e, struct inbox *in, int64_t older_than_ms, int peer)
{
    for (struct inmsg **p = &in->head; *p;) {
        struct inmsg *m = *p;

        if ((int64_t)m->came_ms >= older_than_ms || (peer >= 0 && m->peer != (unsigned)peer)) {
            p = &m->next;
            continue;
        }
        inbox_unlink(in, p);
        inmsg_free(e, m);
    }
}

void inbox_drop_op(struct eboard *eb)
{
    for (struct inmsg **p = &eb->inbox.head; *p;) {
        struct inmsg *m = *p;

        if (m->h.op != eb->op) {
            p = &m->next;
            continue;
        }
        inbox_unlink(&eb->inbox, p);
        inmsg_free(eb->e, m);
    }
}

/* Copies a message that has to wait. NULL: no memory. */
static struct inmsg *keep(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *k = malloc(sizeof *k);
    uint8_t *body = NULL;

    if (!k)
        return NULL;
    *k = *m;
    k->next = NULL;
    k->on_stack = false;
    if (fm->body && fm->body_len) {
        body = body_new(e, fm->body_len);
        if (!body) {
            free(k);
            return NULL;
        }
        memcpy(body, fm->body, fm->body_len);
    }
    k->body = body;
    k->came_ms = now_ms();
    return k;
}

static bool header_ok(const struct fabric_msg *fm, struct inmsg *m)
{
    if (fm->hdr_len < sizeof m->h || fm->hdr_len > MAX(sizeof m->b, sizeof m->m))
        return false;
    memcpy(&m->h, fm->hdr, fm->hdr_len);
    if (m->h.len != fm->body_len || m->h.len > PLAN_CHUNK_NET)
        return false;
    if (m->h.step == WIRE_MAIL)
        return fm->hdr_len == sizeof m->m;
    return m->h.step == WIRE_CHECK ? fm->hdr_len == sizeof m->b : fm->hdr_len == sizeof m->h;
}

/* Each user has its own memory of them: who opens and closes many groups pushes out its own. */
static bool recently_closed(const struct engine *e, const struct wire_hdr *h)
{
    const struct euser *u;

    TAILQ_FOREACH(u, &e->users, link)
    if (u->uid == h->uid)
        break;
    for (unsigned i = 0; u && i < ENGINE_CLOSED; i++)
        if (u->closed[i] == h->group)
            return true;
    return false;
}

static void drop_claim(struct engine *e, void *claim)
{
    if (claim)
        e->f->ops->drop(e->f, claim);
}

/* Of a group that is closed, or broken, or of an operation that was refused. */
static bool unwanted(struct engine *e, const struct eboard *eb, const struct inmsg *m)
{
    if (eb ? !eb->dead && (int32_t)(m->h.op - eb->op) >= 0 : !recently_closed(e, &m->h))
        return false;
    if (m->h.step == WIRE_MAIL)
        mail_answer_closed(e, m);
    drop_claim(e, m->claim);
    return true;
}

/* For a group that we know, from a node that has no part in it. */
static bool stranger(const struct eboard *eb, unsigned peer)
{
    return peer >= FABRIC_MAX_PEERS || !(eb->among[peer / 64] & 1ull << peer % 64);
}

static void keep_for_board(struct eboard *eb, const struct inmsg *m, const struct fabric_msg *fm)
{
    struct engine *e = eb->e;
    struct inmsg *kept = keep(e, m, fm);

    if (!kept) {
        drop_claim(e, m->claim);
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for a message that has to wait");
    } else if (!inbox_push(&eb->inbox, kept)) {
        inmsg_free(e, kept);
        eboard_fail(eb, CAUSE_PROTOCOL, (int)m->peer,
                    "another node's engine sent more than was asked for");
    }
}

static void keep_pending(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *kept = NULL;

    pending_sweep(e);
    if (!pending_flooded(e, m->h.group, m->peer)) {
        kept = keep(e, m, fm);
        if (!kept)
            pending_mark_flooded(e, m->h.group, m->peer);
    }
    if (kept)
        pending_keep(e, kept);
    else
        drop_claim(e, m->claim);
}

void engine_on_msg(void *arg, const struct fabric_msg *fm)
{
    struct engine *e = arg;
    struct inmsg m = {.peer = fm->peer, .on_stack = true};
    struct eboard *eb;

    if (!header_ok(fm, &m)) {
        drop_claim(e, fm->claim);
        e->ev.on_peer_down(e->ev.arg, fm->peer, "its engine sent a malformed message");
        return;
    }
    m.body = fm->body;
    m.claim = fm->claim;
    eb = eboard_find(e, m.h.group);
    if (eb && stranger(eb, m.peer)) {
        drop_claim(e, m.claim);
        return;
    }
    if (eb && m.h.step == WIRE_MAIL) {
        mail_arrived(eb, &m);
        return;
    }
    if (unwanted(e, eb, &m))
        return;
    if (!eb) {
        keep_pending(e, &m, fm);
        return;
    }
    eboard_activate(eb);
    eb->fresh = &m;
    eboard_poll(eb);
    if (!eb->fresh)
        return;
    eb->fresh = NULL;
    if (!unwanted(e, eb, &m)) /* by now */
        keep_for_board(eb, &m, fm);
}
