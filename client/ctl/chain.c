/* chain.c - who keeps the others waiting: a walk from rank to rank. What its end means is in
 * chain_end.c, and the steps between GPUs are in gpu_chain.c.
 *
 * A rank that sleeps in an operation waits for a rank that has not begun it; a rank that sleeps for
 * a message waits for the other side. Each step asks what the rank that is waited for does instead:
 *   dead, or stopped       that rank is the culprit
 *   sleeps somewhere else  perhaps in another group: the chain goes on there
 *   was met before         a circle, in which no rank can go on: a message matches nothing
 *                          (unmatched.c), or the order is inverted
 *   sleeps nowhere         the rank has not arrived, and its process is what to look at
 *
 * The rank that the chain began at may stand outside of the circle. One rank stands for the circle,
 * and it is the same rank wherever the chain enters.
 *
 * The chain also follows a rank that began to wait for a message less than STUCK_MS ago, as far as
 * a rank that is dead or stopped. If the end of the chain has moved just now, nobody is accused for
 * WAIT_LONG_MS: at each moment a pipeline is such a chain, and the stage at its end computes. A
 * rank moves if it has begun to wait just now, or if it completed messages while it was watched.
 *
 * A rank that has not come and runs on a core may compute: it is not accused for COMPUTES_MS. A
 * rank that sleeps is named at once, since a rank that hangs sleeps, too.
 *
 * A process that runs is not blocked, even if an operation that it started asynchronously waits. */
#include "client/ctl/chain.h"

#include "shm/util/wait.h"

#include <stdio.h>

enum {
    SAID_MOST = 8,      /* links of a chain that are told */
    COMPUTES_MS = 5000, /* for which a first step or an evaluation computes and nobody is accused */
};

/* The rank that @waiter waits for; NULL: none that can be seen. A stopped rank that has begun the
 * operation counts only if all ranks have begun it: somebody may have stopped it to look at it. */
static const struct seat *waited_for(const struct seats *seats, const struct seat *waiter)
{
    bool message = !waits_in_operation(waiter);
    const struct seat *best = NULL, *come = NULL;

    if (waits_on_gpu(waiter))
        return gpu_waited_for(seats, waiter);

    group_each(s, seats, waiter) {
        if (s->rank < 0 || s->rank == waiter->rank || (message && s->rank != waiter->message_peer))
            continue;
        if ((message || is_late(s, waiter) || is_dead(s)) && heavier(s, best))
            best = s;
        if (!message && is_stopped(s) && !is_late(s, waiter) && heavier(s, come))
            come = s;
    }
    return best ? best : come;
}

const struct seat *held_waiter(const struct seats *seats, const struct seat *of)
{
    const struct seat *held = NULL;
    char list[RANKS_NAME];

    group_each(s, seats, of) {
        if (held_in_operation(s) && (!held || s->asleep_ms > held->asleep_ms))
            held = s;
    }
    return held && name_ranks(seats, held, is_late, list) ? held : NULL;
}

/* Has the host of @s called what @waiter is in, and only its stream has not come to it? */
static bool is_behind(const struct seat *s, const struct seat *waiter)
{
    if (waits_on_gpu(waiter))
        return !gpu_late(s, waiter);
    return waits_in_operation(waiter) && !is_stopped(s) && s->unready &&
           s->started + 1 == waiter->started;
}

/* Where the process of @s, which sleeps, has begun to wait less than STUCK_MS ago; NULL: nowhere.
 */
static const struct seat *briefly_in(const struct seats *seats, const struct seat *s)
{
    const struct seat *found = NULL;

    if (is_running(s))
        return NULL;
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *in = &seats->at[i];

        if (!same_process(in, s))
            continue;
        if (briefly_in_message(in))
            return in;
        if (briefly_in_operation(in))
            found = in;
    }
    return found;
}

/* Where the stopped process of @s waits all the same: in an operation that other ranks have not
 * begun. NULL: nowhere. */
static const struct seat *held_in(const struct seats *seats, const struct seat *s)
{
    char list[RANKS_NAME];

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *in = &seats->at[i];

        if (same_process(in, s) && held_in_operation(in) &&
            list_ranks(seats, in, is_late, list, sizeof(list)))
            return in;
    }
    return NULL;
}

static struct step step_stopped(const struct seats *seats, const struct seat *s)
{
    const struct seat *in = held_in(seats, s);

    return (struct step){in ? STEP_ON : STEP_STOPPED, s, in};
}

static struct step step_from(const struct seats *seats, const struct seat *waiter)
{
    const struct seat *s = waited_for(seats, waiter), *in;

    if (!s)
        return (struct step){STEP_NOBODY, NULL, NULL};
    if (is_dead(s))
        return (struct step){STEP_DEAD, s, NULL};
    if (is_behind(s, waiter)) {
        bool own = !s->gpu_in || same_group(s->gpu_in, waiter);

        return (struct step){own ? STEP_BEHIND : STEP_ON, s, own ? NULL : s->gpu_in};
    }
    if (is_stopped(s))
        return step_stopped(seats, s);
    in = blocked_in(s);
    if (!in || in == waiter) {
        in = briefly_in(seats, s);
        if (!in || in == waiter || !briefly_in_message(in))
            return (struct step){STEP_ABSENT, s, in};
    }
    return (struct step){is_under_way(waiter, in) ? STEP_UNDER_WAY : STEP_ON, s, in};
}

/* Does @a, and not @b, stand for a circle with both? The answer does not depend on the entry. */
static bool stands_before(const struct seat *a, const struct seat *b)
{
    int64_t x = a->world ? a->world->rank : a->rank, y = b->world ? b->world->rank : b->rank;
    int order = strcmp(a->node, b->node);

    if (x != y)
        return x < y;
    if (order || a->pid != b->pid)
        return order ? order < 0 : a->pid < b->pid;
    return strcmp(a->group, b->group) < 0;
}

/* Does @s wait for a message that nothing matches? */
static bool find_unmatched_at(struct finding *f, const struct seats *seats, const struct seat *s)
{
    return !waits_in_operation(s) && !waits_on_gpu(s) && *s->message && find_unmatched(f, seats, s);
}

/* The chain from @begin goes round, by way of @in: each waits for another of them. */
static void find_circle(struct finding *f, const struct seats *seats, const struct seat *begin,
                        const struct seat *in, struct chain_end *ret_end)
{
    const struct seat *first = in, *s = in;
    bool in_circle = false, named = !same_group(begin, in);
    char name[SEAT_NAME];
    unsigned n = 0;

    do {
        in_circle = in_circle || s == begin;
        ret_end->moves = ret_end->moves || briefly_in_message(s);
        named = named || !same_group(s, in);
        if (stands_before(s, first))
            first = s;
        n++;
        s = step_from(seats, s).in;
    } while (s != in);
    s = first;
    for (unsigned i = 0; i < n; i++, s = step_from(seats, s).in)
        if (find_unmatched_at(f, seats, s))
            return;
    if (!in_circle)
        say_waiting(f, seats, begin, named);
    for (unsigned i = 0; i < MIN(n, (unsigned)SAID_MOST); i++, s = step_from(seats, s).in)
        say_waiting(f, seats, s, named);
    if (n > SAID_MOST)
        tell(f->evidence, "and %u more", n - SAID_MOST);
    f->verdict = VERDICT_ORDER_INVERSION;
    blame(f, first);
    tell(f->evidence, "and so back to %s: each waits for another of them, and none can go on",
         seat_name(first, name));
    tell(f->remedy, "let all ranks call these operations in the same order, or send and receive "
                    "without waiting (isend, irecv)");
}

/* Finds circles by the algorithm of Brent: each rank is compared with the rank that was met at the
 * last step whose number is a power of two. */
static void follow_chain(struct finding *f, const struct seats *seats, const struct seat *begin,
                         struct chain_end *ret_end)
{
    const struct seat *path[SAID_MOST], *waiter = begin, *met = begin;
    struct step step = step_from(seats, begin);
    bool named = !is(begin->group, f->group) || !is(begin->name, f->name);
    unsigned n = 1;

    assert(stuck_ms(begin) || held_in_operation(begin));
    path[0] = begin;
    f->waiting_ms = held_in_operation(begin) ? begin->asleep_ms : stuck_ms(begin);
    *ret_end = (struct chain_end){0};
    while (step.kind == STEP_ON) {
        waiter = step.in;
        if (waiter == met)
            return find_circle(f, seats, begin, waiter, ret_end);
        named = named || !same_group(waiter, begin);
        if (n < SAID_MOST)
            path[n] = waiter;
        if (!(n & (n - 1)))
            met = waiter;
        n++;
        step = step_from(seats, waiter);
    }
    if (step.kind == STEP_NOBODY && find_unmatched_at(f, seats, waiter))
        return;
    for (unsigned i = 0; i < MIN(n, (unsigned)SAID_MOST); i++)
        say_waiting(f, seats, path[i], named);
    find_end(f, seats, waiter, &step, ret_end);
}

/* Takes the blame back. */
static void find_excused(struct finding *f)
{
    f->verdict = VERDICT_HEALTHY;
    f->rank = f->world_rank = f->pid = -1;
    f->rank_group = f->node = f->command = "";
    *f->remedy = 0;
}

void follow_strictly(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct chain_end end;

    follow_chain(f, seats, waiter, &end);
}

/* For how long a wait for @absent asks for nobody, though @absent is named at once: a rank that
 * runs may compute; a rank that sleeps may hang, or load or save something. */
static uint64_t early_ms(const struct seat *absent)
{
    if (!absent || is_stopped(absent))
        return 0;
    return is_running(absent) ? WAIT_LONG_MS : COMPUTES_MS;
}

void follow(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct chain_end end;

    follow_chain(f, seats, waiter, &end);
    if (f->verdict != VERDICT_NOT_ARRIVED && f->verdict != VERDICT_ORDER_INVERSION &&
        f->verdict != VERDICT_UNMATCHED)
        return;
    if (end.moves && f->waiting_ms < WAIT_LONG_MS) {
        find_excused(f);
        tell(f->evidence, "that one moves: it waited or exchanged messages within the last second");
    } else if (f->waiting_ms < COMPUTES_MS && end.absent && is_running(end.absent)) {
        find_excused(f);
        tell(
            f->evidence,
            "it computes, and is waited for no longer than a first step or an evaluation may take");
    } else if (f->verdict == VERDICT_NOT_ARRIVED) {
        f->early = f->waiting_ms < early_ms(end.absent);
    }
}
