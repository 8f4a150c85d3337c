/* listener_turns.c - the order in which clients' messages are taken.
 *
 * listener_turn() takes messages for TURN_US at most. Users that have sent something get time
 * slices in turn: five hundred connections of one user together get as much time as one connection
 * of another user. In every turn all other work of the loop (links to nodes, the engine, timers) is
 * done before that. */
#include "daemon/link/client_link.h"

#include <assert.h>
#include "daemon/process/clock.h"

enum { LISTENER_TURN_US = 4000, LISTENER_SLICE_US = 500 };

void listener_work(struct client_link *client)
{
    struct tenant *tenant = client->tenant;

    if (client->queued)
        return;
    assert(client->state != CONN_DEAD); /* it is freed at the end of the turn */
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
