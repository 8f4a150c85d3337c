/* chain.c - who keeps the others waiting.
 *
 * The model is a chain. A rank that sleeps in an operation waits for one that has not begun it; a
 * rank that sleeps for a message waits for the other side. Each step asks what the one who is
 * waited for does instead: it is dead, or stopped: that is the culprit. It sleeps somewhere else,
 * perhaps in another group: follow it there. It comes back to who was met before: nobody can go on,
 * a message matches nothing (unmatched.c), or the order is inverted. That circle need not hold who
 * was first, and from wherever it is entered the same one of it is named. It sleeps nowhere: it has
 * not arrived, and its process is what to look at.
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
    SAID_MOST = 8,      /* links of a chain that are told */
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

static const char *message_way(const struct seat *s)
{
    return s->sends ? "to" : "from";
}

/* Who waits in what, since when. @named: its group, too. */
static void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        bool named)
{
    char list[RANKS_NAME], name[SEAT_NAME], peer[RANK_NAME] = "any rank", tag[32] = "any tag";
    char group[GROUP_NAME], of[GROUP_NAME + 16] = "";
    const char *had = f->killed ? "had waited" : NULL;
    unsigned n;

    if (named)
        snprintf(of, sizeof(of), " of group \"%s\"", group_name(waiter, group));
    if (waits_in_operation(waiter)) {
        n = name_ranks(seats, waiter, waits_like, list);
        tell(f->evidence, "rank%s %s%s %s in operation %u (%s) for %.1f s", plural(n), list, of,
             had      ? had
             : n == 1 ? "waits"
                      : "wait",
             waiter->started, or_unknown(waiter->operation), (double)waiter->asleep_ms / 1000);
        return;
    }
    if (waits_on_gpu(waiter)) {
        n = name_ranks(seats, waiter, gpu_waits_like, list);
        tell(f->evidence, "GPUs of rank%s %s%s %s in operation %u on GPUs (%s) for %.1f s",
             plural(n), list, of, had ? had : "wait", waiter->gpu_ended + 1,
             or_unknown(waiter->gpu_operation), (double)waiter->gpu_ms / 1000);
        return;
    }
    if (waiter->message_peer >= 0)
        rank_name(seats, waiter, waiter->message_peer, peer);
    if (waiter->message_tag >= 0)
        snprintf(tag, sizeof(tag), "tag %lld", (long long)waiter->message_tag);
    tell(f->evidence, "%s%s %s in %s %s %s, %s, for %.1f s", seat_name(waiter, name),
         waiter->world ? "" : of, had ? had : "waits", waiter->message, message_way(waiter), peer,
         tag, (double)waiter->message_ms / 1000);
}

/* For whom @waiter waits; NULL: for nobody that can be seen. Who has begun the operation holds it
 * up only if all have: somebody may have stopped that one to look at it. */
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

/* Nodes are not looked at in the same moment: has somebody begun the operation of @waiter only just
 * now, or ended it while it was watched? Then it is not stuck. */
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

/* Everybody has begun it. */
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

/* Where @s, whose process sleeps, has begun to wait only just now; NULL: nowhere. */
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

/* Is @s through with messages again and again, in whichever of its groups? */
static bool exchanges_messages(const struct seats *seats, const struct seat *s)
{
    for (unsigned i = 0; i < seats->n; i++)
        if (same_process(&seats->at[i], s) && is_open(&seats->at[i]) && seats->at[i].messages_done)
            return true;
    return false;
}

/* One step of a chain. */
enum step_kind {
    STEP_ON,        /* to where the one that is waited for waits itself: in */
    STEP_NOBODY,    /* nobody is waited for, as far as can be seen */
    STEP_DEAD,      /* the others: it does not wait, but */
    STEP_STOPPED,   /* is so */
    STEP_BEHIND,    /* has called it, and its GPU has not come to it */
    STEP_ABSENT,    /* does something else. in: it has begun to wait just now, NULL: it does not */
    STEP_UNDER_WAY, /* it waits, in the other end of the message: in */
};

struct step {
    enum step_kind kind;
    const struct seat *s; /* who is waited for */
    const struct seat *in;
};

/* Who is stopped in an operation that others have not begun waits all the same; NULL: it does not.
 */
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

/* What a chain that has ended says besides. */
struct chain_end {
    /* Its host has not come, and has nothing that it waits in. NULL also where GPUs wait: a host
     * that runs may only spin for its own. */
    const struct seat *absent;
    bool moves; /* the last of them has moved just now: nobody is stuck at the end */
};

/* Of a circle the one that stands for it: wherever it is entered, and whoever asks. */
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

/* Does one of the @n in the circle with @first? */
static bool find_unmatched_in(struct finding *f, const struct seats *seats,
                              const struct seat *first, unsigned n)
{
    for (const struct seat *s = first; n; n--, s = step_from(seats, s).in)
        if (find_unmatched_at(f, seats, s))
            return true;
    return false;
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
    if (find_unmatched_in(f, seats, first, n))
        return;
    if (!in_circle)
        say_waiting(f, seats, begin, named);
    s = first;
    for (unsigned i = 0; i < MIN(n, (unsigned)SAID_MOST); i++) {
        say_waiting(f, seats, s, named);
        s = step_from(seats, s).in;
    }
    if (n > SAID_MOST)
        tell(f->evidence, "and %u more", n - SAID_MOST);
    f->verdict = VERDICT_ORDER_INVERSION;
    blame(f, first);
    tell(f->evidence, "and so back to %s: each waits for another of them, and none can go on",
         seat_name(first, name));
    tell(f->remedy, "let all ranks call these operations in the same order, or send and receive "
                    "without waiting (isend, irecv)");
}

/* Both ends are there. */
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

/* @waiter takes a message of any rank: who should have sent it, if all others wait; else NULL. */
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

/* Nobody is waited for, as far as can be seen. */
static void find_nobody(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        struct chain_end *ret_end)
{
    const struct seat *s;

    if (waits_in_operation(waiter) && moves_on(seats, waiter))
        return find_moving(f);
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

static void find_end(struct finding *f, const struct seats *seats, const struct seat *waiter,
                     const struct step *step, struct chain_end *ret_end)
{
    switch (step->kind) {
    case STEP_ON:
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

/* Circles are found as by Brent: what is met is compared with what was met at the last power of two
 * of steps. */
static void follow_chain(struct finding *f, const struct seats *seats, const struct seat *begin,
                         struct chain_end *ret_end)
{
    const struct seat *path[SAID_MOST], *waiter = begin, *met = begin;
    struct step step = step_from(seats, begin);
    bool named = !is(begin->group, f->group) || !is(begin->name, f->name);
    unsigned n = 1;

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

/* Nobody is to blame for it. */
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

/* Who sleeps may hang, or load or save something, and who runs may compute: named at once, and a
 * case for somebody only from then on. */
static uint64_t early_ms(const struct seat *absent)
{
    if (!absent || is_stopped(absent))
        return 0;
    return is_running(absent) ? WAIT_LONG_MS : COMPUTES_MS;
}

/* From @waiter, who has waited for long, to who keeps everybody waiting. */
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
