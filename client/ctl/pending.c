/* pending.c - the rows of `commctl ops`: what has begun and not ended, who waits in it, and who has
 * not come to it. */
#include "client/ctl/diagnose.h"

#include "client/ctl/seats.h"

#include <stdio.h>

static bool is_pending(const struct seat *s, bool gpu)
{
    return is_open(s) && (gpu ? on_gpu(s) : in_operation(s));
}

/* Are both in one operation, by their hosts or by commd-gpu? */
static bool in_same(const struct seat *a, const struct seat *b, bool gpu)
{
    return same_group(a, b) && is_pending(a, gpu) &&
           (gpu ? a->gpu_ended == b->gpu_ended : a->started == b->started);
}

static bool late_than(const struct seat *s, const struct seat *waiter)
{
    return is_late(s, waiter) && !seat_left(s);
}

static bool gpu_in_same(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ended == than->gpu_ended;
}

static bool gpu_missing(const struct seat *s, const struct seat *than)
{
    return !seat_left(s) && (gpu_late(s, than) || gpu_unready(s, than));
}

/* Of the rows that are in the same operation the first one stands for it. */
static bool first_pending(const struct seats *seats, unsigned i, bool gpu)
{
    if (!is_pending(&seats->at[i], gpu))
        return false;
    for (unsigned k = 0; k < i; k++)
        if (in_same(&seats->at[k], &seats->at[i], gpu))
            return false;
    return true;
}

static void fill_operation(const struct seats *seats, const struct seat *of, bool gpu,
                           struct wait_row *p)
{
    *p = (struct wait_row){.group = of->group,
                           .name = of->name,
                           .operation = gpu ? of->gpu_operation : of->operation,
                           .number = gpu ? of->gpu_ended + 1 : of->started,
                           .gpu = gpu};
    group_each(s, seats, of) {
        if (!in_same(s, of, gpu))
            continue;
        if (gpu ? s->gpu_ready : s->asleep)
            p->waiting_ms = MAX(p->waiting_ms, gpu ? s->gpu_ms : s->asleep_ms);
        if (!gpu && !*p->operation)
            p->operation = s->operation;
    }
    list_ranks(seats, of, gpu ? gpu_in_same : waits_like, p->waiting, sizeof(p->waiting));
    list_ranks(seats, of, gpu ? gpu_missing : late_than, p->missing, sizeof(p->missing));
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
        for (int gpu = 0; gpu < 2; gpu++)
            if (first_pending(&seats, i, gpu))
                fill_operation(&seats, &seats.at[i], gpu, &pending[n++]);
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
