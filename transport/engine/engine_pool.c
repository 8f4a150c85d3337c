/* engine_pool.c - memory that goes around in the engine: copies of what is on its way (sbuf), and
 * chunks into which long bodies are received (scratch). Both are taken and given back for each
 * message; a few are kept. A board with an sbuf on its way is not freed: `inflight` counts it. */
#include "transport/engine/engine_internal.h"

enum { SCRATCH_KEEP = 16 * PLAN_CHUNK_NET };

struct sbuf *sbuf_get(struct eboard *eb, size_t len)
{
    struct sbuf *s = eb->e->sbufs;
    bool pooled = len <= PLAN_SMALL;

    if (pooled && s)
        eb->e->sbufs = s->next;
    else
        s = malloc(sizeof *s + (pooled ? (size_t)PLAN_SMALL : len));
    if (!s)
        return NULL;
    s->eb = eb;
    s->lent = NULL;
    s->pooled = pooled;
    eb->inflight++;
    return s;
}

/* A fabric_done_fn. The fabric reports a broken link; commd decides what it means. */
static void sbuf_put(void *arg, int st)
{
    struct sbuf *s = arg;
    struct engine *e = s->eb->e;

    assert(s->eb->inflight > 0);
    s->eb->inflight--;
    pause_stir(s->eb);
    payload_put(steal_ptr(s->lent));
    if (!s->pooled) {
        free(s);
        return;
    }
    s->next = e->sbufs;
    e->sbufs = s;
}

int sbuf_send(struct sbuf *s, unsigned node, struct wire_hdr *h, size_t hdr_len, const void *body)
{
    int r = eboard_send(s->eb, node, h, hdr_len, body, sbuf_put, s);

    if (r != 0)
        sbuf_put(s, r);
    return r;
}

struct payload *payload_new(size_t len)
{
    struct payload *p = malloc(sizeof *p + len);

    if (p)
        p->refs = 1;
    return p;
}

void payload_put(struct payload *p)
{
    assert(!p || p->refs > 0);
    if (p && --p->refs == 0)
        free(p);
}

static unsigned scratch_class(size_t len)
{
    unsigned i = 0;

    assert(len <= PLAN_CHUNK_NET);
    while (len > (size_t)SCRATCH_LEAST << i)
        i++;
    return i;
}

size_t scratch_size(size_t len)
{
    return (size_t)SCRATCH_LEAST << scratch_class(len);
}

uint8_t *scratch_get(struct engine *e, size_t len)
{
    struct chunk **list = &e->scratch[scratch_class(len)], *c = *list;

    if (!c)
        return malloc(scratch_size(len));
    *list = c->next;
    assert(e->scratch_kept >= scratch_size(len));
    e->scratch_kept -= scratch_size(len);
    return (uint8_t *)c;
}

void scratch_put(struct engine *e, uint8_t *p, size_t len)
{
    struct chunk **list = &e->scratch[scratch_class(len)], *c = (struct chunk *)p;

    if (!p)
        return;
    if (e->scratch_kept + scratch_size(len) > SCRATCH_KEEP) {
        free(p);
        return;
    }
    c->next = *list;
    *list = c;
    e->scratch_kept += scratch_size(len);
}

void pools_free(struct engine *e)
{
    struct sbuf *s;
    struct chunk *c;

    while ((s = e->sbufs)) {
        e->sbufs = s->next;
        free(s);
    }
    for (unsigned i = 0; i < SCRATCH_SIZES; i++)
        while ((c = e->scratch[i])) {
            e->scratch[i] = c->next;
            free(c);
        }
}
