/* engine_inbox.c - messages that nobody waits for yet, in queues: of one board, or of one group
 * that is not known (engine_pending.c).
 *
 * Eager bodies are copied, rendezvous bodies stay with the sender. How far another node may be
 * ahead is bounded (engine_flow.c), and each move of a step has one message for this node.
 * INBOX_MAX has room for all of these; a node that sends more is refused, and its group fails:
 * inbox_keep().
 */
#include "transport/engine/engine_internal.h"

#include "shm/util/wait.h"

enum {
    /* One message of each other node in each step that may come, and in the consistency checks. (In
     * a ring all come from one neighbour: one for each node, in each of half as many steps.) */
    INBOX_MAX = (FLOW_CREDIT + FLOW_AHEAD + 1) * SCHED_MAX_NODES,
    INBOX_MAX_BYTES = 64 << 20,
    BODY_SMALL = 64 << 10,
};
/* All bodies of a step fit in a window of PLAN_CHUNK_NET; scratch takes up to twice a body. */
_Static_assert((FLOW_CREDIT + FLOW_AHEAD) * 2 * (size_t)PLAN_CHUNK_NET +
                       INBOX_MAX * sizeof(struct inmsg) <=
                   INBOX_MAX_BYTES,
               "the inbox has room for whatever may come");

void inbox_init(struct inbox *in)
{
    *in = (struct inbox){0};
    TAILQ_INIT(&in->all);
}

struct inmsg *inmsg_keep(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm)
{
    struct inmsg *k = malloc(sizeof *k);
    uint8_t *body = NULL;

    if (!k)
        return NULL;
    assert(m->on_stack);
    assert(fm->body_len == m->h.len);
    *k = *m;
    k->on_stack = false;
    if (fm->body && fm->body_len) {
        /* malloc() would get large ones from the kernel, and give them back at once */
        body = m->h.len > BODY_SMALL ? scratch_get(e, m->h.len) : malloc(m->h.len);
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
    if (m->h.len > BODY_SMALL)
        scratch_put(e, (uint8_t *)m->body, m->h.len);
    else
        free((uint8_t *)m->body);
    free(m);
}

void inmsg_drop_claim(struct engine *e, struct inmsg *m)
{
    if (m->claim && e->f)
        e->f->ops->drop(e->f, steal_ptr(m->claim));
}

void inmsg_free(struct engine *e, struct inmsg *m)
{
    assert(!m->on_stack);
    inmsg_drop_claim(e, m);
    inmsg_done(e, m);
}

void inmsg_fetch(struct eboard *eb, struct inmsg *m, unsigned node, void *to, fabric_done_fn done,
                 void *arg)
{
    struct fabric *f = eb->e->f;
    int r;

    assert(m->claim);
    assert(node < eb->geom.nnodes);
    assert(eb->peers[node] == m->peer);
    eb->inflight++;
    r = f->ops->recv(f, steal_ptr(m->claim), to, m->h.len, done, arg);
    if (r < 0)
        eboard_link_failed(eb, node, r);
    if (r != 0)
        done(arg, MIN(r, 0));
}

/* A body that still lies with the fabric counts in full: the fabric may have copied it. */
size_t inmsg_cost(const struct inmsg *m)
{
    return sizeof *m + (m->body && m->h.len > BODY_SMALL ? scratch_size(m->h.len) : m->h.len);
}

void inbox_unlink(struct inbox *in, struct inmsg *m)
{
    assert(in->n > 0);
    assert(in->bytes >= inmsg_cost(m));
    TAILQ_REMOVE(&in->all, m, link);
    in->n--;
    in->bytes -= inmsg_cost(m);
}

bool inbox_push(struct inbox *in, struct inmsg *m)
{
    if (in->n >= INBOX_MAX || in->bytes + inmsg_cost(m) > INBOX_MAX_BYTES)
        return false;
    assert(!m->on_stack);
    TAILQ_INSERT_TAIL(&in->all, m, link);
    in->n++;
    in->bytes += inmsg_cost(m);
    return true;
}

bool inbox_keep(struct eboard *eb, struct inmsg *m)
{
    return message_may_come(eb, m) && inbox_push(&eb->inbox, m);
}

struct inmsg *inbox_take(struct eboard *eb, uint32_t step, unsigned move, unsigned peer)
{
    struct inmsg *m = eb->fresh ? eb->fresh : TAILQ_FIRST(&eb->inbox.all);

    while (m && (m->peer != peer || m->h.op != eb->op || m->h.step != step || m->h.move != move))
        m = m == eb->fresh ? TAILQ_FIRST(&eb->inbox.all) : TAILQ_NEXT(m, link);
    if (m && m == eb->fresh)
        eb->fresh = NULL;
    else if (m)
        inbox_unlink(&eb->inbox, m);
    return m;
}

void inbox_drop(struct eboard *eb, bool all)
{
    for (struct inmsg *m = TAILQ_FIRST(&eb->inbox.all), *next; m; m = next) {
        next = TAILQ_NEXT(m, link);
        if (!all && m->h.op != eb->op)
            continue;
        inbox_unlink(&eb->inbox, m);
        inmsg_free(eb->e, m);
    }
    assert(!all || (eb->inbox.n == 0 && eb->inbox.bytes == 0));
}
