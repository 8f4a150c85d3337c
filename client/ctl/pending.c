/* pending.c - the rows of `commctl ops`: what has begun and not ended, who waits in it, and who has
 * not come to it. */
#include "client/ctl/diagnose.h"

#include "client/ctl/seats.h"

#include <stdio.h>

static bool is_pending(const struct seat *s)
{
    return is_open(s) && in_operation(s);
}

static bool late_than(const struct seat *s, const struct seat *waiter)
{
    return is_late(s, waiter) && !seat_left(s);
}

/* Of the rows that are in the same operation the first one stands for it. */
static bool first_pending(const struct seats *seats, unsigned i)
{
    const struct seat *of = &seats->at[i];

    for (unsigned k = 0; k < i; k++)
        if (is_pending(&seats->at[k]) && same_group(&seats->at[k], of) &&
            seats->at[k].started == of->started)
            return false;
    return true;
}

static void fill_operation(const struct seats *seats, const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){
        .group = of->group, .name = of->name, .operation = of->operation, .number = of->started};
    group_each(s, seats, of) {
        if (!is_pending(s) || s->started != of->started)
            continue;
        p->waiting_ms = MAX(p->waiting_ms, s->asleep ? s->asleep_ms : 0);
        if (!*p->operation)
            p->operation = s->operation;
    }
    list_ranks(seats, of, waits_like, p->waiting, sizeof(p->waiting));
    list_ranks(seats, of, late_than, p->missing, sizeof(p->missing));
}

/* The same of operations by commd-gpu. */
static bool gpu_pending(const struct seat *s)
{
    return is_open(s) && on_gpu(s);
}

static bool first_gpu_pending(const struct seats *seats, unsigned i)
{
    const struct seat *of = &seats->at[i];

    for (unsigned k = 0; k < i; k++)
        if (gpu_pending(&seats->at[k]) && same_group(&seats->at[k], of) &&
            seats->at[k].gpu_ended == of->gpu_ended)
            return false;
    return true;
}

static bool gpu_in_same(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ended == than->gpu_ended;
}

static bool gpu_missing(const struct seat *s, const struct seat *than)
{
    return !seat_left(s) && (gpu_late(s, than) || gpu_unready(s, than));
}

static void fill_gpu(const struct seats *seats, const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){.group = of->group,
                           .name = of->name,
                           .operation = of->gpu_operation,
                           .number = of->gpu_ended + 1,
                           .gpu = true};
    group_each(s, seats, of) {
        if (gpu_pending(s) && s->gpu_ended == of->gpu_ended && s->gpu_ready)
            p->waiting_ms = MAX(p->waiting_ms, s->gpu_ms);
    }
    list_ranks(seats, of, gpu_in_same, p->waiting, sizeof(p->waiting));
    list_ranks(seats, of, gpu_missing, p->missing, sizeof(p->missing));
}

static void fill_message(const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){.group = of->group,
                           .name = of->name,
                           .operation = of->message,
                           .waiting_ms = of->message_ms};
    snprintf(p->waiting, sizeof(p->waiting), "%lld", (long long)of->rank);
    if (of->message_peer >= 0)
        snprintf(p->missing, sizeof(p->missing), "%lld", (long long)of->message_peer);
}

int pending_operations(const struct msg_table *ranks, struct wait_row **ret_pending,
                       unsigned *ret_n, const char **ret_key)
{
    struct wait_row *pending;
    struct seats seats;
    unsigned n = 0;
    int r = seats_read(ranks, &seats, ret_key);

    if (r)
        return r;
    pending = calloc(3 * (size_t)seats.n + 1, sizeof(*pending));
    for (unsigned i = 0; i < seats.n && pending; i++) {
        if (is_pending(&seats.at[i]) && first_pending(&seats, i))
            fill_operation(&seats, &seats.at[i], &pending[n++]);
        if (gpu_pending(&seats.at[i]) && first_gpu_pending(&seats, i))
            fill_gpu(&seats, &seats.at[i], &pending[n++]);
        if (is_open(&seats.at[i]) && *seats.at[i].message)
            fill_message(&seats.at[i], &pending[n++]);
    }
    seats_free(&seats);
    if (!pending)
        return -ENOMEM;
    *ret_pending = pending;
    *ret_n = n;
    return 0;
}
