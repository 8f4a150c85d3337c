/* chain_end.c - what the end of a chain (chain.c) means. Either the rank that is waited for there
 * is dead, stopped or busy with something else; or all ranks have come to the operation, and it
 * does not get on. */
#include "client/ctl/chain.h"

#include "shm/util/wait.h"

static void find_absent(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        const struct seat *s)
{
    bool gpu = waits_on_gpu(waiter), operation = waits_in_operation(waiter) || gpu;
    const char *did = operation ? "begun it" : waiter->sends ? "received" : "sent";
    char name[SEAT_NAME], process[SEAT_NAME], list[RANKS_NAME], only[RANK_NAME], pid[PID_NAME];
    unsigned n = operation ? name_ranks(seats, waiter, gpu ? gpu_late : is_late, list) : 1;

    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, s);
    if (n > 1)
        tell(f->evidence, "ranks %s have not begun it", list);
    if (n > 1 && n + 1 == waiter->size)
        tell(f->evidence, "only %s has begun it: did it call one more?",
             rank_name(seats, waiter, waiter->rank, only));
    if (f->killed)
        tell(f->evidence, "%s had not %s", seat_name(s, name), did);
    else
        tell(f->evidence, "%s has not %s; %s", seat_name(s, name), did, process_name(s, process));
    if (!operation)
        say_unasked(f, seats, waiter);
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
                    "is ended, at what it does: py-spy dump --nonblocking");
    if (f->waiting_ms < WAIT_LONG_MS)
        tell(f->remedy,
             "does it load, evaluate or save something? Then wait: others have waited for only "
             "%.1f s",
             (double)f->waiting_ms / 1000);
    tell(f->remedy,
         "see what it does instead: py-spy dump --nonblocking --pid %s (or gdb -p %s) on node %s",
         pid_name(s, pid), pid, s->node);
}

/* The nodes look at their ranks at slightly different moments. Has a rank begun the operation of
 * @waiter just now, or ended it while it was watched? Then the operation is not stuck. */
static bool moves_on(const struct seats *seats, const struct seat *waiter)
{
    group_each(s, seats, waiter) {
        if (s->rank < 0 || s->rank == waiter->rank || is_late(s, waiter))
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

/* Are some ranks in no node's answer? Then it is not known whether all ranks have begun it. */
static bool find_unseen(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    uint64_t seen = 0;

    group_each(s, seats, waiter)
        seen += s->rank >= 0;
    if (seen >= waiter->size)
        return false;
    f->verdict = VERDICT_LINK_STALL;
    f->unseen = true;
    tell(f->evidence, "%llu of its %llu ranks were not seen, and none that was keeps it waiting",
         (unsigned long long)(waiter->size - seen), (unsigned long long)waiter->size);
    tell(f->remedy, "look at the nodes of the others: commctl nodes");
    return true;
}

/* Does the engine of one of its nodes stand still? */
static bool find_engine_stopped(struct finding *f, const struct seats *seats,
                                const struct seat *waiter)
{
    group_each(s, seats, waiter) {
        if (!*s->engine)
            continue;
        f->verdict = VERDICT_ENGINE_STOPPED;
        f->node = s->node;
        tell(f->evidence, "all ranks have begun it, and the engine on node %s is %s", s->node,
             s->engine);
        tell(f->remedy,
             "on node %s: who has stopped it? kill -CONT its process, whose number commctl status "
             "has there; its commd ends it after timeouts.engine",
             s->node);
        return true;
    }
    return false;
}

/* All ranks have begun the operation. */
static void find_stall(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    if (find_unseen(f, seats, waiter))
        return;
    if (waiter->nodes > 1 && find_engine_stopped(f, seats, waiter))
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

/* Did the process of @s complete messages while it was watched, in any of its groups? */
static bool exchanges_messages(const struct seats *seats, const struct seat *s)
{
    for (unsigned i = 0; i < seats->n; i++)
        if (same_process(&seats->at[i], s) && is_open(&seats->at[i]) && seats->at[i].messages_done)
            return true;
    return false;
}

/* Sender and receiver both wait for the message of @waiter. */
static void find_under_way(struct finding *f, const struct seats *seats, const struct seat *waiter,
                           const struct step *step)
{
    bool nodes = strcmp(waiter->node, step->in->node) != 0;

    say_waiting(f, seats, step->in, false);
    if (f->waiting_ms < WAIT_LONG_MS) {
        f->verdict = VERDICT_HEALTHY;
        return tell(f->evidence, "the message is on its way between them");
    }
    f->verdict = nodes ? VERDICT_LINK_STALL : VERDICT_BROKEN;
    tell(f->evidence, "both ends of the message are there, and it does not come through");
    if (nodes)
        tell(f->remedy, "look at the network between nodes %s and %s: commctl links; ip -s link",
             waiter->node, step->in->node);
    else
        tell(f->remedy, "this should not be: please report it, with commctl --json ranks");
}

/* Does nothing in commd keep @s from sending to @waiter? */
static bool may_send(const struct seat *s, const struct seat *waiter)
{
    return s->rank != waiter->rank && is_open(s) && !blocked_in(s) && !*s->message;
}

/* @waiter takes a message of any rank. The only rank that could still send one, because all others
 * wait; NULL: there are several, or none. */
static const struct seat *only_sender(const struct seats *seats, const struct seat *waiter)
{
    const struct seat *only = NULL;

    if (waiter->message_peer >= 0)
        return NULL;
    group_each(s, seats, waiter) {
        if (!may_send(s, waiter))
            continue;
        if (only)
            return NULL;
        only = s;
    }
    return only;
}

/* No rank is seen that @waiter waits for. */
static void find_nobody(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        struct chain_end *ret_end)
{
    const struct seat *s;

    if (waits_in_operation(waiter) && moves_on(seats, waiter)) {
        f->verdict = VERDICT_HEALTHY;
        return tell(f->evidence,
                    "all ranks have begun it now, the last of them while it was looked at");
    }
    if (waits_in_operation(waiter))
        return find_stall(f, seats, waiter);
    if (waits_on_gpu(waiter))
        return find_gpu_stall(f, seats, waiter);
    if (find_unseen(f, seats, waiter))
        return;
    s = only_sender(seats, waiter);
    if (s && is_stopped(s))
        return find_stopped(f, s);
    ret_end->moves = briefly_in_message(waiter) || (s && exchanges_messages(seats, s));
    ret_end->absent = s;
    if (s)
        return find_absent(f, seats, waiter, s);
    f->verdict = VERDICT_NOT_ARRIVED;
    tell(f->evidence, "nobody has sent it");
    say_unasked(f, seats, waiter);
    tell(f->remedy, "look for the rank that should send it, and its tag");
}

void find_end(struct finding *f, const struct seats *seats, const struct seat *waiter,
              const struct step *step, struct chain_end *ret_end)
{
    switch (step->kind) {
    case STEP_ON: /* it is no end */
        assert(false);
        break;
    case STEP_NOBODY:
        return find_nobody(f, seats, waiter, ret_end);
    case STEP_DEAD:
        return find_dead(f, step->s);
    case STEP_STOPPED:
        return find_stopped(f, step->s);
    case STEP_BEHIND:
        return find_behind(f, waiter, step->s);
    case STEP_UNDER_WAY:
        return find_under_way(f, seats, waiter, step);
    case STEP_ABSENT:
        ret_end->moves =
            step->in || briefly_in_message(waiter) || exchanges_messages(seats, step->s);
        if (!waits_on_gpu(waiter))
            ret_end->absent = step->s;
        return find_absent(f, seats, waiter, step->s);
    }
}
