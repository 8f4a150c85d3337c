/* waits.c - see waits.h. */
#include "daemon/admin/waits.h"

#include <stdio.h>

#include "daemon/daemon.h"
#include "daemon/process/clock.h"

static void client_waits_for(struct client_wait *wait, enum client_waits kind, uint32_t rank,
                             uint32_t size, const char *name)
{
    *wait = (struct client_wait){.kind = kind, .rank = rank, .size = size, .since_ms = clock_ms()};
    snprintf(wait->name, sizeof(wait->name), "%s", name);
}

void waits_msg(struct daemon *d, unsigned slot, const struct msg *msg)
{
    struct client_command *client = &d->commands[slot];

    assert(slot < d->nslots);
    if (msg->type == MSG_CLIENT_HELLO) {
        const struct msg_client_hello *hello = &msg->client_hello;

        snprintf(client->text, sizeof(client->text), "%s", hello->command);
        snprintf(client->job, sizeof(client->job), "%s", hello->job);
        if (hello->waits_rank < hello->waits_size && hello->waits_size <= MSG_MAX_RANKS)
            client_waits_for(&client->wait, WAITS_ELSEWHERE, hello->waits_rank, hello->waits_size,
                             hello->waits_for);
    } else if (msg->type == MSG_CLIENT_JOIN) {
        const struct msg_client_join *join = &msg->client_join;

        client_waits_for(&client->wait, WAITS_JOIN, join->rank, join->size, join->name);
        client->wait.req = join->req;
    }
}

static bool is_answered(const struct client_wait *wait, uint32_t req)
{
    return wait->kind == WAITS_JOIN && wait->req == req;
}

void waits_joined(struct daemon *d, unsigned slot, uint32_t req)
{
    assert(slot < d->nslots);
    if (is_answered(&d->commands[slot].wait, req))
        d->commands[slot].wait.kind = WAITS_NOT;
}

/* Notes a wait that failed in the diary. The core itself notes a wait that ran out of time. */
static void wait_failed(struct daemon *d, const struct client_command *client, enum cause cause,
                        const char *why)
{
    char text[DIARY_TEXT];

    past_wait_failed(&d->gather->past, client, cause, why);
    if (cause == CAUSE_TIMEOUT)
        return;
    snprintf(text, sizeof(text), "rank %u of %u, pid %u, waited for \"%s\": %s", client->wait.rank,
             client->wait.size, client->pid, client->wait.name, why);
    diary_add(d->diary, "group_failed", client->uid, client->payer, clock_wall_ms(), text);
}

void waits_failed(struct daemon *d, unsigned slot, const struct msg_join_failed *msg)
{
    struct client_command *client = &d->commands[slot];

    assert(slot < d->nslots);
    if (!is_answered(&client->wait, msg->req))
        return;
    wait_failed(d, client, (enum cause)msg->cause, msg->text);
    client->wait.kind = WAITS_NOT;
}

/* Has the process asked for a group over another connection? Then its wait outside commd ended
 * well. */
static bool has_another(const struct daemon *d, unsigned slot)
{
    const struct client_command *own = &d->commands[slot];

    for (unsigned i = 0; i < d->nslots; i++)
        if (i != slot && d->commands[i].here && d->commands[i].pid == own->pid &&
            d->commands[i].uid == own->uid)
            return true;
    return false;
}

void waits_gone(struct daemon *d, unsigned slot)
{
    struct client_command *client = &d->commands[slot];
    enum client_waits kind = client->wait.kind;

    assert(slot < d->nslots);
    if (kind == WAITS_JOIN || (kind == WAITS_ELSEWHERE && client->pid && !has_another(d, slot)))
        wait_failed(d, client, CAUSE_RANK_LOST, "it ended, or gave up, before all others had come");
    client->wait.kind = WAITS_NOT;
    client->here = false;
}

unsigned waits_next(const struct daemon *d, unsigned slot)
{
    while (slot < d->nslots && d->commands[slot].wait.kind != WAITS_ELSEWHERE)
        slot++;
    return slot;
}
