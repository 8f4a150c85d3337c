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

/* Which rank of the group that it follows the client is: the core knows, or not even that. */
static void find_rank_before(const struct daemon *d, unsigned slot,
                             const struct msg_client_join *join, struct client_wait *wait)
{
    uint64_t follows = join->follows;
    struct core_group_view view;
    unsigned rank, client;
    uint32_t req;

    wait->size = 0;
    if (!core_group(d->core, follows, &view)) {
        if (join->was_rank < join->was_size && join->was_size <= MSG_MAX_RANKS) {
            wait->rank = join->was_rank;
            wait->size = join->was_size;
            wait->epoch = join->was_epoch + 1;
        }
        return;
    }
    for (unsigned i = 0; core_group_local(d->core, follows, i, &rank, &client, &req); i++)
        if (client == slot) {
            wait->rank = rank;
            wait->size = view.size;
            wait->epoch = view.epoch + 1;
            return;
        }
}

void waits_msg(struct daemon *d, unsigned slot, const struct msg *msg)
{
    struct client_command *client = &d->commands[slot];

    assert(slot < d->nslots);
    if (msg->type == MSG_CLIENT_HELLO) {
        const struct msg_client_hello *hello = &msg->client_hello;

        snprintf(client->text, sizeof(client->text), "%s", hello->command);
        snprintf(client->job, sizeof(client->job), "%s", hello->job);
        client->plans = hello->plans;
        if (hello->waits_rank < hello->waits_size && hello->waits_size <= MSG_MAX_RANKS)
            client_waits_for(&client->wait, WAITS_ELSEWHERE, hello->waits_rank, hello->waits_size,
                             hello->waits_for);
    } else if (msg->type == MSG_CLIENT_JOIN) {
        const struct msg_client_join *join = &msg->client_join;

        client_waits_for(&client->wait, WAITS_JOIN, join->rank, join->size, join->name);
        client->wait.req = join->req;
        client->wait.recovery = join->recovery < MSG_RECOVERY_COUNT ? join->recovery : 0;
        if (client->wait.recovery)
            find_rank_before(d, slot, join, &client->wait);
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

/* "rank 3 of 4, pid 7, waited for", with the name behind it. */
static void describe_wait(const struct client_command *client, char *buf, size_t len)
{
    const struct client_wait *wait = &client->wait;

    if (wait->recovery == MSG_RECOVERY_REJOIN && wait->rank == MSG_ANY_SEAT)
        snprintf(buf, len, "a new process, pid %u, waited for a seat in", client->pid);
    else if (wait->recovery == MSG_RECOVERY_REJOIN)
        snprintf(buf, len, "a new process, pid %u, waited for seat %u in", client->pid, wait->rank);
    else if (wait->recovery)
        snprintf(buf, len, "rank %u of epoch %llu, pid %u, waited to go on in", wait->rank,
                 (unsigned long long)MAX(wait->epoch, (uint64_t)1) - 1, client->pid);
    else
        snprintf(buf, len, "rank %u of %u, pid %u, waited for", wait->rank, wait->size,
                 client->pid);
}

/* Notes a wait that failed in the diary. The core itself notes a wait that ran out of time. */
static void wait_failed(struct daemon *d, const struct client_command *client, enum cause cause,
                        const char *why)
{
    char text[DIARY_TEXT];
    size_t used;

    past_wait_failed(&d->gather->past, client, cause, why);
    if (cause == CAUSE_TIMEOUT)
        return;
    describe_wait(client, text, sizeof(text));
    used = strlen(text);
    snprintf(text + used, sizeof(text) - used, " \"%s\": %s", client->wait.name, why);
    daemon_event(d, "group_failed", client->uid, client->payer, text);
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
