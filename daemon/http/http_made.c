/* http_made.c - answers that are made in parts, one in each turn (collect.c). An answer that is at
 * most HTTP_FRESH_MS old is sent to all clients that ask: so commd makes at most four answers of a
 * kind in a second, for any number of clients.
 *
 * The page also shows the links of all nodes. A request for the status asks the nodes for them,
 * once in LINKS_MS at most, and a later status shows them: so no client waits for a node that does
 * not answer. */
#include "daemon/http/http_made.h"

#include "daemon/admin/gather.h"
#include "daemon/admin/links.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"

enum { HTTP_FRESH_MS = 250, LINKS_MS = 1500 };

void http_maker_fini(struct http_maker *maker)
{
    for (unsigned i = 0; i < HTTP_MADE; i++) {
        collect_end(&maker->making[i].collect);
        body_unref(maker->making[i].next);
        body_unref(maker->making[i].fresh);
    }
    table_fini(&maker->links);
}

struct body *http_maker_fresh(const struct http_maker *maker, enum http_made made)
{
    const struct http_making *making = &maker->making[made];

    return making->fresh && clock_ms() - making->fresh_ms <= HTTP_FRESH_MS ? making->fresh : NULL;
}

bool http_maker_is_busy(const struct http_maker *maker, enum http_made made)
{
    return maker->making[made].next != NULL;
}

static void take_links(void *arg, struct table *links)
{
    struct http_maker *maker = arg;

    maker->asks_links = false;
    table_fini(&maker->links);
    maker->has_links = links;
    if (!links)
        return;
    maker->links = *links;
    *links = (struct table){0};
}

void http_maker_want_links(struct http_maker *maker)
{
    uint64_t now = clock_ms();
    unsigned nnodes = maker->d->conf->nnodes;

    if (nnodes == 1 || nnodes > LINKS_ALL_NODES || maker->asks_links ||
        (maker->links_ms && now - maker->links_ms < LINKS_MS))
        return;
    maker->links_ms = now;
    maker->asks_links = gather_links(maker->d, take_links, maker);
}

/* Does a part of the work; true: all is done. */
static bool make_step(struct http_maker *maker, enum http_made made, uint64_t until_us)
{
    struct http_making *making = &maker->making[made];
    struct metrics *m = &making->collect.m;

    if (!collect_step(&making->collect, until_us))
        return false;
    if (made == HTTP_STATUS) {
        m->matrix = maker->has_links ? &maker->links.t : NULL;
        status_json(m, making->next);
        return true;
    }
    while (clock_us() < until_us)
        if (!metrics_text(m, making->row++, making->next))
            return true;
    return false;
}

struct body *http_maker_step(struct http_maker *maker, enum http_made made, uint64_t until_us)
{
    struct http_making *making = &maker->making[made];

    assert(made < HTTP_MADE);
    if (!making->next) {
        making->next = body_new();
        if (!making->next)
            return NULL; /* no memory: tries again in the next turn, until the deadline */
        making->row = 0;
        collect_begin(&making->collect, maker->d, made == HTTP_STATUS);
    }
    if (!make_step(maker, made, until_us))
        return NULL;
    if (making->collect.m.error && !making->next->error)
        making->next->error = -ENOMEM;
    collect_end(&making->collect);
    body_unref(making->fresh);
    making->fresh = steal_ptr(making->next);
    making->fresh_ms = clock_ms();
    return making->fresh;
}
