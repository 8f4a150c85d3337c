/* chain.c - who keeps the others waiting.
 *
 * The model is a chain. A rank that sleeps in an operation waits for one that has not begun it; a
 * rank that sleeps for a message waits for the other side. Each step asks what the one who is
 * waited for does instead: it is dead, or stopped: that is the culprit. It sleeps somewhere else,
 * perhaps in another group: follow it there. It comes back to who was met before: nobody can go on,
 * the order is inverted. It sleeps nowhere: it has not arrived, and its process is what to look at.
 *
 * Who began to wait for a message less than STUCK_MS ago is followed as well, to who is dead or
 * stopped. If the end of the chain has moved just now, nobody is accused for WAIT_LONG_MS: a
 * pipeline is such a chain at each moment, with one stage that computes at its end. It moves if it
 * has begun to wait just now, or if it was through with messages while it was watched.
 *
 * Who has not come and runs on a core may compute: nobody is accused of that for COMPUTES_MS. Who
 * sleeps is named at once, since that looks the same as to hang.
 *
 * A process that runs is not blocked, though an operation that it began without waiting may sleep:
 * what it does instead is asked, and not where that sleeps. Steps between GPUs: gpu_chain.c. */
#include "client/ctl/finding.h"

#include "shm/util/wait.h"

#include <stdio.h>

enum {
    SAID_MOST = 8,    /* links of a chain that are told */
    STEPS_MOST = 256, /* a longer one goes round in a circle that does not come back to its begin */
    COMPUTES_MS = 5000, /* for which a first step or an evaluation computes and nobody is accused */
};

static const char *plural(unsigned n)
{
    return n == 1 ? "" : "s";
}

static bool gpu_waits_like(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ready && s->gpu_ended == than->gpu_ended;
}

/* Who waits in what, since when. */
static void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    char list[200], name[128], peer[32] = "any rank";
    unsigned n;

    if (waits_in_operation(waiter)) {
        n = list_ranks(seats, waiter, waits_like, list, sizeof(list));
        tell(f->evidence, "rank%s %s of group \"%s\" wait%s in operation %u (%s) for %.1f s",
             plural(n), list, waiter->name, n == 1 ? "s" : "", waiter->started,
             or_unknown(waiter->operation), (double)waiter->asleep_ms / 1000);
        return;
    }
    if (waits_on_gpu(waiter)) {
        n = list_ranks(seats, waiter, gpu_waits_like, list, sizeof(list));
        tell(f->evidence,
             "GPUs of rank%s %s of group \"%s\" wait in operation %u on GPUs (%s) for %.1f s",
             plural(n), list, waiter->name, waiter->gpu_ended + 1,
             or_unknown(waiter->gpu_operation), (double)waiter->gpu_ms / 1000);
        return;
    }
    if (waiter->message_peer >= 0)
        snprintf(peer, sizeof(peer), "rank %lld", (long long)waiter->message_peer);
    tell(f->evidence, "%s of group \"%s\" waits in %s %s %s, tag %lld, for %.1f s",
         seat_name(waiter, name), waiter->name, waiter->message,
         is(waiter->message, "send") ? "to" : "from", peer, (long long)waiter->message_tag,
         (double)waiter->message_ms / 1000);
}

/* For whom @waiter waits; NULL: for nobody that can be seen. Who has begun the operation holds it up
 * only if all have: somebody may have stopped that one to look at it. */
static const struct seat *waited_for(const struct seats *seats, const struct seat *waiter)
{
    bool message = !waits_in_operation(waiter);
    const struct seat *best = NULL, *come = NULL;

    if (waits_on_gpu(waiter))
        return gpu_waited_for(seats, waiter);

    for (unsigned i = waiter->group_at; i < seats->n && same_group(seats->by_rank[i], waiter);
         i++) {
        const struct seat *s = seats->by_rank[i];

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
    char list[64];

    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (held_in_operation(s) && (!held || s->asleep_ms > held->asleep_ms))
            held = s;
    }
    return held && list_ranks(seats, held, is_late, list, sizeof(list)) ? held : NULL;
}

static void find_absent(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        const struct seat *s)
{
    bool gpu = waits_on_gpu(waiter), operation = waits_in_operation(waiter) || gpu;
    char name[128], list[200];
    unsigned n =
        operation ? list_ranks(seats, waiter, gpu ? gpu_late : is_late, list, sizeof(list)) : 1;

    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, s);
    if (n > 1)
        tell(f->evidence, "ranks %s have not begun it", list);
    if (n > 1 && n + 1 == waiter->size)
        tell(f->evidence, "only rank %lld has begun it: did it call one more?",
             (long long)waiter->rank);
    if (f->killed)
        tell(f->evidence, "%s %s", seat_name(s, name),
             operation                     ? "had not begun it"
             : is(waiter->message, "send") ? "had not received"
                                           : "had not sent");
    else
        tell(f->evidence, "%s %s; its process is %s%s%s%s", seat_name(s, name),
             operation                     ? "has not begun it"
             : is(waiter->message, "send") ? "has not received"
                                           : "has not sent",
             *s->process ? s->process : "in a state that the system does not tell",
             *s->kernel ? " (in the kernel: " : "", s->kernel, *s->kernel ? ")" : "");
    if (gpu && on_gpu(s))
        tell(f->evidence, "its GPU is in operation %u (%s)", s->gpu_ended + 1,
             or_unknown(s->gpu_operation));
    else if (gpu && *s->gpu_last)
        tell(f->evidence, "the last on GPUs that it completed is operation %u (%s)", s->gpu_ended,
             s->gpu_last);
    else if (*s->last)
        tell(f->evidence, "the last that it completed is operation %u (%s)", s->ops, s->last);
    else
        tell(f->evidence, "it has completed %u operations", s->ops);
    tell_starved(f, s);
    if (s->gpu_in && s->gpu_in != waiter)
        tell(f->evidence,
             "the GPU of its process waits in operation %u on GPUs (%s) of group \"%s\" for %.1f s",
             s->gpu_in->gpu_ended + 1, or_unknown(s->gpu_in->gpu_operation), s->gpu_in->name,
             (double)s->gpu_in->gpu_ms / 1000);
    if (f->killed)
        return tell(f->remedy,
                    "look at the end of that rank's own output; and when it hangs again, before it "
                    "is ended, at what it does: py-spy dump");
    if (f->waiting_ms < WAIT_LONG_MS)
        tell(f->remedy,
             "does it load, evaluate or save something? Then wait: others wait since %.1f s only",
             (double)f->waiting_ms / 1000);
    tell(f->remedy, "see what it does instead: py-spy dump --pid %llu (or gdb -p %llu) on node %s",
         (unsigned long long)s->pid, (unsigned long long)s->pid, s->node);
}

static void find_inversion(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_ORDER_INVERSION;
    blame(f, s);
    tell(f->evidence, "and so back to %s: each waits for another of them, and none can go on",
         seat_name(s, name));
    tell(f->remedy, "let all ranks call these operations in the same order, or send and receive "
                    "without waiting (isend, irecv)");
}

/* Nodes are not looked at in the same moment: has somebody begun the operation of @waiter only just
 * now, or ended it while it was watched? Then it is not stuck. */
static bool moves_on(const struct seats *seats, const struct seat *waiter)
{
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, waiter) || s->rank < 0 || s->rank == waiter->rank || is_late(s, waiter))
            continue;
        if (in_operation(s) && s->started == waiter->started) {
            if (!s->asleep || s->asleep_ms < STUCK_MS)
                return true;
        } else if (s->done) {
            return true;
        }
    }
    return false;
}

static void find_moving(struct finding *f)
{
    f->verdict = VERDICT_HEALTHY;
    tell(f->evidence, "all ranks have begun it now, the last of them while it was looked at");
}

/* Its host has called what @waiter is in: only its stream is behind. */
static bool is_behind(const struct seat *s, const struct seat *waiter)
{
    if (waits_on_gpu(waiter))
        return !gpu_late(s, waiter);
    return waits_in_operation(waiter) && !is_stopped(s) && s->unready &&
           s->started + 1 == waiter->started;
}

/* Not all of its ranks are in the answers of the nodes: nobody says that all have begun it. */
static bool find_unseen(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    uint64_t seen = 0;

    for (unsigned i = 0; i < seats->n; i++)
        seen += same_group(&seats->at[i], waiter) && seats->at[i].rank >= 0;
    if (seen >= waiter->size)
        return false;
    f->verdict = VERDICT_LINK_STALL;
    f->unseen = true;
    tell(f->evidence, "%llu of its %llu ranks were not seen, and none that was keeps it waiting",
         (unsigned long long)(waiter->size - seen), (unsigned long long)waiter->size);
    tell(f->remedy, "look at the nodes of the others: commctl nodes");
    return true;
}

/* Everybody has begun it. */
static void find_stall(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    if (find_unseen(f, seats, waiter))
        return;
    if (waiter->nodes > 1) {
        f->verdict = VERDICT_LINK_STALL;
        tell(f->evidence,
             "all ranks have begun it: what is missing has to come from another of "
             "the %llu nodes",
             (unsigned long long)waiter->nodes);
        tell(f->remedy, "look at the network between them: commctl nodes; ip -s link; ss -ti");
        return;
    }
    f->verdict = VERDICT_BROKEN;
    tell(f->evidence, "all ranks have begun it, and none gets on");
    tell(f->remedy, "this should not be: please report it, with commctl --json ranks");
}

/* Where @s, whose process sleeps, has begun to wait only just now; NULL: nowhere. */
static const struct seat *briefly_in(const struct seats *seats, const struct seat *s)
{
    const struct seat *found = NULL;

    if (is(s->process, "running"))
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

/* Is @s through with messages again and again, in whichever of its groups? */
static bool exchanges_messages(const struct seats *seats, const struct seat *s)
{
    for (unsigned i = 0; i < seats->n; i++)
        if (same_process(&seats->at[i], s) && is_live(&seats->at[i]) && seats->at[i].messages_done)
            return true;
    return false;
}

/* One of them sends what the other one receives: neither keeps the other waiting. */
static bool is_under_way(const struct seat *a, const struct seat *b)
{
    const struct seat *from = is(a->message, "send") ? a : b, *to = from == a ? b : a;

    return same_group(from, to) && is(from->message, "send") && is(to->message, "recv") &&
           from->message_peer == to->rank && to->message_peer == from->rank &&
           (to->message_tag == from->message_tag || to->message_tag == -1);
}

static void find_under_way(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    say_waiting(f, seats, waiter);
    f->verdict = VERDICT_HEALTHY;
    tell(f->evidence, "the message is on its way between them");
}

/* What a chain that has ended says besides. */
struct chain_end {
    /* Its host has not come, and has nothing that it waits in. NULL also where GPUs wait: a host
     * that runs may only spin for its own. */
    const struct seat *absent;
    bool moves; /* the last of them has moved just now: nobody is stuck at the end */
};

static void follow_chain(struct finding *f, const struct seats *seats, const struct seat *waiter,
                         struct chain_end *ret_end)
{
    const struct seat *begin = waiter;
    bool brief = false; /* one of the waits has begun only just now */

    f->waiting_ms = held_in_operation(waiter) ? waiter->asleep_ms : stuck_ms(waiter);
    *ret_end = (struct chain_end){0};
    for (unsigned steps = 0;; steps++) {
        const struct seat *s = waited_for(seats, waiter), *in;

        if (steps < SAID_MOST)
            say_waiting(f, seats, waiter);
        if (!s) {
            if (waits_in_operation(waiter) && moves_on(seats, waiter))
                return find_moving(f);
            if (waits_in_operation(waiter))
                return find_stall(f, seats, waiter);
            if (waits_on_gpu(waiter))
                return find_gpu_stall(f, seats, waiter);
            if (find_unseen(f, seats, waiter))
                return;
            f->verdict = VERDICT_NOT_ARRIVED;
            ret_end->moves = briefly_in_message(waiter);
            tell(f->evidence, "nobody has sent it");
            tell(f->remedy, "look for the rank that should send it, and its tag");
            return;
        }
        if (is_dead(s))
            return find_dead(f, s);
        if (is_behind(s, waiter)) {
            if (!s->gpu_in || same_group(s->gpu_in, waiter))
                return find_behind(f, waiter, s);
            waiter = s->gpu_in;
            if (same_process(waiter, begin) || steps == STEPS_MOST)
                return find_inversion(f, waiter);
            continue;
        }
        if (is_stopped(s))
            return find_stopped(f, s);
        in = blocked_in(s);
        if (!in || in == waiter) {
            in = briefly_in(seats, s);
            brief = brief || in;
            if (!in || in == waiter || !briefly_in_message(in)) {
                ret_end->moves = in || briefly_in_message(waiter) || exchanges_messages(seats, s);
                if (!waits_on_gpu(waiter))
                    ret_end->absent = s;
                return find_absent(f, seats, waiter, s);
            }
        }
        if (is_under_way(waiter, in) && f->waiting_ms < WAIT_LONG_MS)
            return find_under_way(f, seats, in);
        waiter = in;
        if (same_process(waiter, begin) || steps == STEPS_MOST) {
            ret_end->moves = brief;
            return find_inversion(f, waiter);
        }
    }
}

/* Nobody is to blame for it. */
static void find_excused(struct finding *f)
{
    f->verdict = VERDICT_HEALTHY;
    f->rank = f->pid = -1;
    f->node = f->command = "";
    *f->remedy = 0;
}

void follow_strictly(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct chain_end end;

    follow_chain(f, seats, waiter, &end);
}

/* From @waiter, who has waited for long, to who keeps everybody waiting. */
void follow(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct chain_end end;

    follow_chain(f, seats, waiter, &end);
    if (f->verdict != VERDICT_NOT_ARRIVED && f->verdict != VERDICT_ORDER_INVERSION)
        return;
    if (end.moves && f->waiting_ms < WAIT_LONG_MS) {
        find_excused(f);
        tell(f->evidence, "that one moves: it waited or exchanged messages within the last second");
    } else if (f->waiting_ms < COMPUTES_MS && end.absent && is(end.absent->process, "running")) {
        find_excused(f);
        tell(
            f->evidence,
            "it computes, and is waited for no longer than a first step or an evaluation may take");
    }
}
