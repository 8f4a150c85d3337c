/* engine_inbox.c - a queue of messages that nobody waits for yet: of one board, or of one group
 * that is not known (engine_pending.c).
 *
 * Eager bodies are copied, rendezvous bodies stay with the sender. How far another node may be
 * ahead is bounded (engine_flow.c), and of each step of each operation this node has one message
 * from each move. So much fits in below; who sends more is refused, and with it its group:
 * inbox_keep(). */
#include "transport/engine/engine_internal.h"

#include "shm/util/wait.h"

enum {
    /* A message of each other node in each step that may come, and the consistency checks; around a
     * ring the neighbour's come, one for each node in each of half as many steps. */
    INBOX_MAX = (FLOW_CREDIT + FLOW_AHEAD + 1) * SCHED_MAX_NODES,
    INBOX_MAX_BYTES = 64 << 20,
    BODY_SMALL = 64 << 10,
};
/* What comes in a step goes into a window of PLAN_CHUNK_NET; scratch takes up to twice a body. */
_Static_assert((FLOW_CREDIT + FLOW_AHEAD) * 2 * (size_t)PLAN_CHUNK_NET +
                       INBOX_MAX * sizeof(struct inmsg) <=
                   INBOX_MAX_BYTES,
               "the inbox has room for whatever may come");

void inbox_init(struct inbox *in)
{
    memset(in, 0, sizeof *in);
    in->tail = &in->head;
}

/* ---- a message ------------------------------------------------------------------------------- */

/* Large bodies lie in scratch: malloc() would get each from the kernel and give it back at once. */
static uint8_t *inmsg_body_new(struct engine *e, size_t len)
{
    return len > BODY_SMALL ? scratch_get(e, len) : malloc(len);
}

static void inmsg_body_free(struct engine *e, uint8_t *body, size_t len)
{
    if (len > BODY_SMALL)
        scratch_put(e, body, len);
    else
        free(body);
}

struct inmsg *inmsg_keep(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *k = malloc(sizeof *k);
    uint8_t *body = NULL;

    if (!k)
        return NULL;
    *k = *m;
    k->next = NULL;
    k->on_stack = false;
    if (fm->body && fm->body_len) {
        body = inmsg_body_new(e, fm->body_len);
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

void inmsg_done(struct engine *e, struct inmsg *m)
{
    if (m->on_stack)
        return;
    inmsg_body_free(e, (uint8_t *)m->body, m->h.len);
    free(m);
}

void inmsg_free(struct engine *e, struct inmsg *m)
{
    if (m->claim && e->f)
        e->f->ops->drop(e->f, m->claim);
    inmsg_done(e, m);
}

/* Of a body that still lies with the fabric as much as that may have copied. */
size_t inmsg_cost(const struct inmsg *m)
{
    return sizeof *m + (m->body && m->h.len > BODY_SMALL ? scratch_size(m->h.len) : m->h.len);
}

/* ---- the queue ------------------------------------------------------------------------------- */

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

bool inbox_keep(struct eboard *eb, struct inmsg *m)
{
    return message_may_come(eb, m) && inbox_push(&eb->inbox, m);
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
