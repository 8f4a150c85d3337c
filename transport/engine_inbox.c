/* engine_inbox.c - matching messages to moves.
 *
 * A message may come before its time: the sender's ranks were faster, or commd has not told us
 * of the group yet. It waits in the board's inbox or in limbo: eager bodies are copied,
 * rendezvous bodies stay with the sender, which is the flow control. What a well-behaved peer
 * can have outstanding is bounded by the window depth; a peer that exceeds the bounds below is
 * broken and its link is reported down rather than our memory given to it. */
#include "transport/engine_internal.h"

#include "shm/wait.h"

enum {
    /* In a ring the node before us can be ahead by all moves of all steps that are under way. */
    INBOX_MAX = PLAN_DEPTH_NET * SCHED_MAX_MOVES,
    INBOX_MAX_BYTES = 64 << 20,
    LIMBO_MS = 60000,
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

static void inmsg_free(struct engine *e, struct inmsg *m)
{
    if (m->claim && e->f)
        e->f->ops->drop(e->f, m->claim);
    inmsg_done(e, m);
}

static void unlink_at(struct inbox *in, struct inmsg **p)
{
    struct inmsg *m = *p;

    *p = m->next;
    if (!*p)
        in->tail = p;
    in->n--;
    in->bytes -= m->h.len;
    m->next = NULL;
}

static bool push(struct inbox *in, struct inmsg *m)
{
    if (in->n >= INBOX_MAX || in->bytes + m->h.len > INBOX_MAX_BYTES)
        return false;
    *in->tail = m;
    in->tail = &m->next;
    in->n++;
    in->bytes += m->h.len;
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
            unlink_at(&eb->inbox, p);
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

        if ((int64_t)m->came_ms >= older_than_ms ||
            (peer >= 0 && m->peer != (unsigned)peer)) {
            p = &m->next;
            continue;
        }
        unlink_at(in, p);
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
        unlink_at(&eb->inbox, p);
        inmsg_free(eb->e, m);
    }
}

/* Who asks after a group that was closed so long ago that we have forgotten it is answered. */
void limbo_expire(struct engine *e, int64_t older_than_ms)
{
    for (const struct inmsg *m = e->limbo.head; m && (int64_t)m->came_ms < older_than_ms; m = m->next)
        if (m->h.step == WIRE_MAIL)
            mail_answer_closed(e, m);
    inbox_drop(e, &e->limbo, older_than_ms, -1);
}

void limbo_sweep(struct engine *e)
{
    limbo_expire(e, (int64_t)now_ms() - LIMBO_MS);
}

void inbox_adopt(struct eboard *eb)
{
    for (struct inmsg **p = &eb->e->limbo.head; *p;) {
        struct inmsg *m = *p;

        if (m->h.group != eb->b.group) {
            p = &m->next;
            continue;
        }
        unlink_at(&eb->e->limbo, p);
        if (m->h.step == WIRE_MAIL) {
            mail_arrived(eb, m);
            inmsg_done(eb->e, m);
        } else if (!push(&eb->inbox, m))
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
    return m->h.step == WIRE_BEGIN ? fm->hdr_len == sizeof m->b : fm->hdr_len == sizeof m->h;
}

static bool recently_closed(const struct engine *e, uint64_t group)
{
    for (unsigned i = 0; i < ENGINE_CLOSED; i++)
        if (e->closed[i] == group)
            return true;
    return false;
}

static void peer_misbehaves(struct engine *e, unsigned peer, void *claim, const char *what)
{
    if (claim)
        e->f->ops->drop(e->f, claim);
    e->ev.on_peer_down(e->ev.arg, peer, what);
}

/* Of a group that is closed, or of an operation that was refused. */
static bool unwanted(struct engine *e, const struct eboard *eb, const struct inmsg *m)
{
    if (eb ? (int32_t)(m->h.op - eb->op) >= 0 : !recently_closed(e, m->h.group))
        return false;
    if (m->h.step == WIRE_MAIL)
        mail_answer_closed(e, m);
    if (m->claim)
        e->f->ops->drop(e->f, m->claim);
    return true;
}

void engine_on_msg(void *arg, const struct fabric_msg *fm)
{
    struct engine *e = arg;
    struct inmsg m = {.peer = fm->peer, .on_stack = true}, *kept;
    struct eboard *eb;
    struct inbox *in;

    if (!header_ok(fm, &m)) {
        peer_misbehaves(e, fm->peer, fm->claim, "its engine sent a malformed message");
        return;
    }
    m.body = fm->body;
    m.claim = fm->claim;
    eb = eboard_find(e, m.h.group);
    if (eb && m.h.step == WIRE_MAIL) {
        mail_arrived(eb, &m);
        return;
    }
    if (unwanted(e, eb, &m))
        return;
    if (eb && !eb->dead) {
        eboard_activate(eb);
        eb->fresh = &m;
        eboard_poll(eb);
        if (!eb->fresh)
            return;
        eb->fresh = NULL;
        if (unwanted(e, eb, &m)) /* by now */
            return;
    }
    in = eb ? &eb->inbox : &e->limbo;
    if (!eb)
        limbo_sweep(e);
    kept = keep(e, &m, fm);
    if (!kept || !push(in, kept)) {
        if (kept)
            inmsg_done(e, kept);
        peer_misbehaves(e, fm->peer, fm->claim, "its engine sent more than was asked for");
    }
}
