/* listener_turns.c - whose messages are taken when.
 *
 * What clients send is taken in listener_turn(), TURN_US at most, in slices that go round among the
 * users who have sent something: five hundred connections of one user together get the time that
 * one connection of another gets. Whatever else wakes the loop (links to nodes, the engine, timers)
 * is done before, in every turn. */
#include "daemon/link/client_link.h"

#include <assert.h>
#include "daemon/process/clock.h"

enum { LISTENER_TURN_US = 4000, LISTENER_SLICE_US = 500 };

void listener_work(struct client_link *client)
{
    struct tenant *tenant = client->tenant;

    if (client->queued)
        return;
    assert(client->state != CONN_DEAD); /* it would outlive its place in the line */
    client->queued = true;
    TAILQ_INSERT_TAIL(&tenant->work, client, work);
    if (tenant->queued)
        return;
    tenant->queued = true;
    TAILQ_INSERT_TAIL(&client->listener->turns, tenant, turn);
}

void listener_unwork(struct client_link *client)
{
    if (client->queued)
        TAILQ_REMOVE(&client->tenant->work, client, work);
    client->queued = false;
}

static void tenant_step(struct tenant *tenant, uint64_t until_us)
{
    struct client_link *client;

    while ((client = TAILQ_FIRST(&tenant->work))) {
        listener_unwork(client);
        client_step(client, until_us);
        if (clock_us() >= until_us)
            return;
    }
}

void listener_serve(struct listener *listener)
{
    static const struct timeval at_once;
    uint64_t begin = clock_us(), now = begin;
    struct tenant *tenant;

    while ((tenant = TAILQ_FIRST(&listener->turns)) && now < begin + LISTENER_TURN_US) {
        tenant_step(tenant, now + LISTENER_SLICE_US);
        TAILQ_REMOVE(&listener->turns, tenant, turn);
        tenant->queued = !TAILQ_EMPTY(&tenant->work);
        if (tenant->queued)
            TAILQ_INSERT_TAIL(&listener->turns, tenant, turn);
        now = clock_us();
    }
    if (tenant)
        event_add(listener->more, &at_once);
}
