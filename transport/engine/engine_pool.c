/* engine_pool.c - memory that goes around in the engine: what is on its way (sbuf), and chunks that
 * a long body is received into (scratch). Both are taken and given back for each message; a few are
 * kept. A board with an sbuf out is not freed: `inflight` counts it. */
#include "transport/engine/engine_internal.h"

enum { SCRATCH_KEEP = 16 };

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

void sbuf_put(struct sbuf *s)
{
    struct engine *e = s->eb->e;

    s->eb->inflight--;
    free(steal_ptr(s->lent));
    if (!s->pooled) {
        free(s);
        return;
    }
    s->next = e->sbufs;
    e->sbufs = s;
}

uint8_t *scratch_get(struct engine *e)
{
    struct chunk *c = e->scratch;

    if (c) {
        e->scratch = c->next;
        e->nscratch--;
        return (uint8_t *)c;
    }
    return malloc(PLAN_CHUNK_NET);
}

void scratch_put(struct engine *e, uint8_t *p)
{
    struct chunk *c = (struct chunk *)p;

    if (!p)
        return;
    if (e->nscratch == SCRATCH_KEEP) {
        free(p);
        return;
    }
    c->next = e->scratch;
    e->scratch = c;
    e->nscratch++;
}

void pools_free(struct engine *e)
{
    for (struct sbuf *s = e->sbufs, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    for (struct chunk *c = e->scratch, *next; c; c = next) {
        next = c->next;
        free(c);
    }
}
