/* diagnose.c - the verdict on a group, as a pure function of what its ranks were seen doing: it has
 * ended, or is broken; somebody waits, and the chain (chain.c) leads to who is to blame; else it
 * gets on, and how fast. */
#include "client/ctl/diagnose.h"

#include "client/ctl/finding.h"
#include "client/ctl/seats.h"
#include "shm/util/ranks.h"
#include "shm/util/wait.h"

#include <stdio.h>

enum {
    SLOW_PCT = 30,   /* of the time: how much more the others have to wait than a slow rank */
    OFTEN_PCT = 50,  /* of the time that those remember who wait for one again and again */
    MANY_MOVES = 20, /* in a second: what a rank does then it does always */
    WATCHED_MS = 1000,
    LATELY_OPS = 8,   /* that somebody remembers: likewise */
    COMPUTE_PCT = 20, /* of the time in operations, at most: the job computes */
    COMM_PCT = 60,    /* and at least: it communicates */
};

/* Who gave up waiting in an operation is not to blame: those are who had not begun it. */
static bool find_awaited(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    const struct seat *late = NULL;
    char name[SEAT_NAME], list[RANKS_NAME], pid[PID_NAME];

    group_each(s, seats, waiter)
        if (s->rank >= 0 && is_late(s, waiter) && heavier(s, late))
            late = s;
    if (!late)
        return false;
    if (is_stopped(late)) {
        find_stopped(f, late);
        return true;
    }
    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, late);
    if (name_ranks(seats, waiter, is_late, list) > 1)
        tell(f->evidence, "ranks %s had not begun it", list);
    tell(f->evidence, "%s had not begun operation %u (%s)", seat_name(late, name), waiter->started,
         or_unknown(waiter->operation));
    if (*late->last)
        tell(f->evidence, "the last that it completed is operation %u (%s)", late->ops, late->last);
    tell(f->remedy,
         "look at that rank's own output, and what its process does: py-spy dump --nonblocking "
         "--pid %s on node %s",
         pid_name(late, pid), late->node);
    return true;
}

/* The group is broken, or was. */
static void find_cause(struct finding *f, const struct seats *seats, const struct seat *of)
{
    char names[2][MSG_NAME_MAX];
    enum cause_told told = read_cause_text(of->cause_code, of->cause_text, names);
    const struct seat *one = NULL;

    tell(f->evidence, "%s: %s", of->cause, of->cause_text);
    if (told == TOLD_KICK) {
        f->verdict = VERDICT_ABORTED; /* whatever its ranks did then */
        return tell(f->remedy, "it was ended on purpose: ask who did it; commctl events on that "
                               "node says when");
    }
    if (find_gpu_failed(f, seats, of) || find_unlike(f, seats, of, false) ||
        find_killed(f, seats, of) || find_gone(f, seats, of))
        return;
    group_each(s, seats, of) {
        if (s->rank < 0)
            continue;
        if (is_dead(s))
            return find_dead(f, s);
        if (s->rank == of->cause_rank)
            one = s;
    }
    if ((of->cause_code == CAUSE_ABORTED || of->cause_code == CAUSE_TIMEOUT) && one &&
        in_operation(one) && find_awaited(f, seats, one))
        return;
    if (one)
        blame(f, one);
    find_lost(f, of->cause_code, told, names);
}

static bool waits_in_join(const struct seat *s, const struct seat *of)
{
    (void)of;
    return s->joining;
}

/* To each of two users the other's group is not there, so both wait. Who sees both is told. */
static void tell_other_user(struct finding *f, const struct seats *seats, const struct seat *of)
{
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (s->uid == of->uid || s->group_state != GROUP_JOINING || !is(s->name, of->name))
            continue;
        tell(f->evidence,
             "user %llu waits for ranks of a group of this name, too, and this one is user %llu's: "
             "ranks of two users do not meet",
             (unsigned long long)s->uid, (unsigned long long)of->uid);
        return;
    }
}

/* The ranks of @of's group of which there is no row. */
static unsigned list_unseen(const struct seats *seats, const struct seat *of, char list[RANKS_NAME])
{
    struct rank_list ranks;
    uint64_t next = 0;

    rank_list_init(&ranks, list, RANKS_NAME);
    for (unsigned i = of->group_at; i <= seats->n; i++) {
        bool here = i < seats->n && same_group(seats->by_rank[i], of);
        uint64_t rank = !here ? of->size : (uint64_t)MAX(seats->by_rank[i]->rank, (int64_t)0);

        for (; next < MIN(rank, (uint64_t)MSG_MAX_RANKS); next++)
            rank_list_add(&ranks, (unsigned)next);
        if (!here)
            break;
        if (seats->by_rank[i]->rank >= 0)
            next = rank + 1;
    }
    rank_list_end(&ranks);
    return ranks.n;
}

/* False: none is. */
static bool tell_not_joined(struct finding *f, const struct seats *seats, const struct seat *of,
                            const char *missing)
{
    char list[RANKS_NAME] = "";

    if (*missing)
        tell(f->evidence, "rank %s of %llu has not joined the group", missing,
             (unsigned long long)of->size);
    else if (list_unseen(seats, of, list))
        tell(f->evidence, "no node tells of rank %s of %llu", list, (unsigned long long)of->size);
    else
        tell(f->evidence, "all of its %llu ranks are there", (unsigned long long)of->size);
    return *missing || *list;
}

/* Each rank that waits has a row of its own; which are missing the group's home says. Of those that
 * wait elsewhere nobody knows but the rows. */
static void find_joining(struct finding *f, const struct seats *seats, const struct seat *of)
{
    bool elsewhere = of->group_state == GROUP_STARTING;
    const struct seat *first = NULL;
    const char *missing = "";
    char name[SEAT_NAME], list[RANKS_NAME];
    unsigned n;

    group_each(s, seats, of) {
        if (*s->missing)
            missing = s->missing;
        if (s->joining && (!first || s->joining_ms > first->joining_ms))
            first = s;
    }
    f->verdict = VERDICT_NOT_JOINED;
    if (first) {
        f->waiting_ms = first->joining_ms;
        n = name_ranks(seats, of, waits_in_join, list);
        tell(f->evidence, "of %llu ranks %s wait%s %s, %s for %.1f s", (unsigned long long)of->size,
             list,
             f->ended ? "ed"
             : n == 1 ? "s"
                      : "",
             f->ended    ? "for the others"
             : elsewhere ? "before the join (in torch's store, until all can agree on a group)"
                         : "in the join",
             seat_name(first, name), (double)first->joining_ms / 1000);
    }
    f->early = elsewhere && f->waiting_ms < WAIT_LONG_MS;
    if (f->ended) {
        tell(f->evidence, "%s: %s", of->cause, of->cause_text);
    } else if (!tell_not_joined(f, seats, of, missing) && f->early) {
        f->verdict = VERDICT_HEALTHY; /* they are about to join */
        return;
    }
    tell_other_user(f, seats, of);
    if (elsewhere)
        tell(f->remedy, "have all ranks one MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and can they "
                        "reach that address? A rank is seen here when it has called "
                        "init_process_group() or new_group()");
    tell(f->remedy, "look at the output of the ranks that are missing: were they started, does "
                    "their node's commd run?");
}

/* How much of the time each rank is in operations. Where they come one after the other a second
 * tells enough; of few, or of a burst, the last ones that the ranks remember do. */
struct pace {
    unsigned n;                      /* ranks that were watched */
    uint64_t done;                   /* in the last second, by all of them */
    uint64_t lately_ms;              /* 0: the second is taken */
    uint64_t least, most;            /* per cent */
    const struct seat *of, *longest; /* who has the least, and the most */
    bool tells;                      /* enough to accuse one */
};

static uint64_t pace_pct(const struct pace *p, const struct seat *s)
{
    uint64_t in = MIN(s->lately_in_ms, p->lately_ms);

    return p->lately_ms ? in * 100 / p->lately_ms : s->busy_pct;
}

/* Does who waits most do it again and again? A first step, a checkpoint or an evaluation is one
 * long wait, and nobody's pace. Where what it remembers does not reach back over the second,
 * operations come so fast that almost each look finds another one, but in a long wait. */
static bool waits_often(const struct pace *p)
{
    const struct seat *s = p->longest;
    uint64_t stood = 100 - MIN(2 * s->moved, (uint64_t)100), often;

    if (p->lately_ms || s->lately_ms >= WATCHED_MS)
        return s->lately >= LATELY_OPS;
    often = s->busy_pct - MIN(stood, s->busy_pct);
    return s->moved >= MANY_MOVES && often >= p->least + SLOW_PCT;
}

static struct pace pace_of(const struct seats *seats, const struct seat *of)
{
    struct pace p = {.least = UINT64_MAX};
    uint64_t lately = 0, lately_ms = 0, moved = 0;

    group_each(s, seats, of) {
        if (!s->watched)
            continue;
        p.n++;
        p.done += s->done;
        moved = MAX(moved, s->moved);
        lately = MAX(lately, s->lately);
        lately_ms = MAX(lately_ms, MIN(s->lately_ms, (uint64_t)UINT32_MAX));
    }
    if (moved < MANY_MOVES && lately >= LATELY_OPS)
        p.lately_ms = lately_ms;
    group_each(s, seats, of) {
        if (!s->watched)
            continue;
        if (pace_pct(&p, s) < p.least) {
            p.least = pace_pct(&p, s);
            p.of = s;
        }
        if (!p.longest || pace_pct(&p, s) > p.most) {
            p.most = pace_pct(&p, s);
            p.longest = s;
        }
    }
    p.tells = p.n && waits_often(&p);
    return p;
}

/* Ranks that wait less than the others make the others wait. */
static bool find_slow(struct finding *f, const struct seats *seats, const struct pace *p)
{
    char name[SEAT_NAME], pid[PID_NAME], when[64] = "";
    unsigned slow = 0;

    if (!p->tells || p->most - p->least < SLOW_PCT)
        return false;
    group_each(s, seats, p->of)
        slow += s->watched && pace_pct(p, s) < (p->least + p->most) / 2;
    if (2 * slow > p->n)
        return false;
    if (p->lately_ms)
        snprintf(when, sizeof(when), " of the last %.1f s", (double)p->lately_ms / 1000);
    f->verdict = is_throttled(p->of) ? VERDICT_THROTTLED : VERDICT_SLOW_RANK;
    blame(f, p->of);
    tell(f->evidence,
         "%s is in operations %llu %% of the time%s, others up to %llu %%: they wait "
         "for it",
         seat_name(p->of, name), (unsigned long long)p->least, when, (unsigned long long)p->most);
    if (slow > 1)
        tell(f->evidence, "%u of %u ranks are like it", slow, p->n);
    tell(f->remedy,
         "see what it does between operations (py-spy dump --nonblocking --pid %s on node %s): its "
         "share of the data, its cores, what else runs there",
         pid_name(p->of, pid), p->of->node);
    tell_starved(f, p->of);
    return true;
}

/* Have the GPUs of all ranks something else to do? */
static bool all_compute(const struct seats *seats, const struct seat *of, unsigned n)
{
    unsigned computes = 0;

    group_each(s, seats, of)
        computes +=
            s->watched && on_gpu(s) && !s->gpu_ready && s->gpu_ms >= STUCK_MS && !s->gpu_done;
    return n && computes == n;
}

static void find_pace(struct finding *f, const struct seats *seats, const struct seat *of)
{
    struct pace p = pace_of(seats, of);
    uint64_t gpu_done = 0, in = 0;

    group_each(s, seats, of)
        if (s->watched) {
            gpu_done += s->gpu_done;
            in = MAX(in, s->busy_pct);
        }
    f->verdict = VERDICT_HEALTHY;
    if (gpu_done)
        tell(f->evidence, "%llu operations on GPUs of its ranks in the last second",
             (unsigned long long)gpu_done);
    if (all_compute(seats, of, p.n)) {
        f->verdict = VERDICT_COMPUTE_BOUND;
        return tell(f->evidence, "all ranks have called an operation on GPUs, and none of their "
                                 "streams has come to it: the GPUs compute");
    }
    if (gpu_done && !p.done)
        return;
    if (!p.n || (!p.done && !in)) {
        tell(f->evidence, "no operation is under way");
        return;
    }
    if (p.most >= SLOW_PCT && find_engine_throttled(f, seats, of))
        return;
    if (find_slow(f, seats, &p))
        return;
    if (p.most >= SLOW_PCT && (find_throttled(f, seats, of) || find_starved(f, seats, of)))
        return;
    tell(f->evidence,
         "%llu operations of its ranks in the last second; in operations %llu to "
         "%llu %% of the time",
         (unsigned long long)p.done, (unsigned long long)p.least, (unsigned long long)p.most);
    if (p.done && p.most <= COMPUTE_PCT) {
        f->verdict = VERDICT_COMPUTE_BOUND;
        tell(f->evidence, "the rest of the time it computes: communication does not hold it up");
    } else if (p.done && p.least >= COMM_PCT) {
        f->verdict = VERDICT_COMM_BOUND;
        tell(f->evidence, "no rank is late: communication takes most of the time of all of them");
    }
}

/* For whom, as far as that is known. */
static void tell_usual(struct finding *f, const struct finding *stuck, const struct seat *waiter)
{
    char whom[160] = "", pid[PID_NAME + 8] = "";

    if (stuck->pid > 0)
        snprintf(pid, sizeof(pid), "pid %lld ", (long long)stuck->pid);
    if (stuck->rank >= 0)
        snprintf(whom, sizeof(whom), ", for rank %lld (%son node %s)", (long long)stuck->world_rank,
                 pid, stuck->node);
    else if (stuck->unseen)
        snprintf(whom, sizeof(whom), ", of whose ranks not all were seen");
    else if (stuck->verdict == VERDICT_LINK_STALL)
        snprintf(whom, sizeof(whom), ", which all ranks have begun");
    tell(
        f->evidence,
        "it is waited for %.1f s in operation %u%s; three operations took %.1f s and longer lately",
        (double)waiter->asleep_ms / 1000, waiter->started, whom, (double)waiter->usual_ms / 1000);
}

/* Long waits are usual, and they are always for the same rank: those who wait do so for most of the
 * time, and that one does not. */
static void find_often_late(struct finding *f, const struct seats *seats,
                            const struct finding *stuck, const struct seat *waiter)
{
    uint64_t waits = waiter->lately_ms ? waiter->lately_in_ms * 100 / waiter->lately_ms : 0, in;
    char name[SEAT_NAME];

    if (stuck->rank < 0 || waits < OFTEN_PCT)
        return;
    group_each(s, seats, waiter) {
        if (seat_pid(s) != stuck->pid || !is(s->node, stuck->node) ||
            (!s->pid && s->rank != stuck->rank))
            continue;
        in = s->lately_in_ms * 100 / MAX(waiter->lately_ms, s->lately_ms);
        if (in + SLOW_PCT > waits)
            return;
        f->verdict = VERDICT_SLOW_RANK;
        blame(f, s);
        tell(f->evidence,
             "%s was in operations for %llu %% of the last %.1f s, and others for %llu %%: they "
             "wait "
             "for it",
             seat_name(s, name), (unsigned long long)in, (double)waiter->lately_ms / 1000,
             (unsigned long long)waits);
        tell(f->remedy,
             "is it at a checkpoint, or an evaluation, so often? Let it do less of it, or "
             "beside the others' work");
        return;
    }
}

/* Ranks of a job with uneven batches wait for each other again and again, and it gets on. A long
 * wait is told all the same, be it usual (a checkpoint) or not: nobody can know whether it ends. */
static bool find_usual(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct finding stuck = *f;

    if (!stuck_in_operation(waiter) || waiter->asleep_ms > 2 * waiter->usual_ms)
        return false;
    follow_strictly(&stuck, seats, waiter);
    if (stuck.verdict != VERDICT_NOT_ARRIVED && stuck.verdict != VERDICT_LINK_STALL)
        return false;
    if (waiter->asleep_ms < WAIT_LONG_MS) {
        find_pace(f, seats, waiter);
        if (f->verdict == VERDICT_HEALTHY)
            find_often_late(f, seats, &stuck, waiter);
        f->waiting_ms = stuck.waiting_ms;
        tell_usual(f, &stuck, waiter);
        return true;
    }
    *f = stuck;
    tell(f->evidence, "three operations took %.1f s and longer lately: %s",
         (double)waiter->usual_ms / 1000,
         waiter->asleep_ms <= waiter->usual_ms ? "such a wait is usual, and it may still come"
                                               : "this wait is longer, but not twice as long");
    if (f->verdict == VERDICT_NOT_ARRIVED)
        tell(f->remedy,
             "is it at what took so long before (a checkpoint, an evaluation)? Then wait");
    return true;
}

static void find_verdict(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = NULL;

    if (of->group_state == GROUP_JOINING || of->group_state == GROUP_STARTING || !*of->group)
        return find_joining(f, seats, of);
    if (of->cause_code)
        return find_cause(f, seats, of);
    if (find_gpu_failed(f, seats, of))
        return;
    if (first_gone(seats, of) &&
        (find_unlike(f, seats, of, false) || find_killed(f, seats, of) || find_gone(f, seats, of)))
        return;
    if (find_killed(f, seats, of))
        return;
    group_each(s, seats, of) {
        if (is_dead(s))
            return find_dead(f, s);
        if (stuck_ms(s) && (!waiter || stuck_ms(s) > stuck_ms(waiter)))
            waiter = s;
    }
    if (waiter && find_usual(f, seats, waiter))
        return;
    if (!waiter)
        waiter = held_waiter(seats, of);
    if (waiter) {
        follow(f, seats, waiter);
        if (f->verdict == VERDICT_HEALTHY)
            find_hampered(f, seats, of);
        return;
    }
    if (find_unlike(f, seats, of, false))
        return;
    if (of->group_state == GROUP_ENDED) {
        f->verdict = VERDICT_HEALTHY;
        return tell(f->evidence, "it ended");
    }
    find_pace(f, seats, of);
}

/* Of one group several nodes speak: who knows the cause speaks for it. */
static const struct seat *speaker(const struct seats *seats, const struct seat *of)
{
    const struct seat *best = of;

    group_each(s, seats, of)
        if (s->cause_code && !best->cause_code)
            best = s;
    return best;
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        [VERDICT_RANK_DEAD] = "RANK_DEAD",
        [VERDICT_NODE_DEAD] = "NODE_DEAD",
        [VERDICT_NODE_SILENT] = "NODE_SILENT",
        [VERDICT_COMMD_DEAD] = "COMMD_DEAD",
        [VERDICT_LINK_DEAD] = "LINK_DEAD",
        [VERDICT_ENGINE_DEAD] = "ENGINE_DEAD",
        [VERDICT_ENGINE_STOPPED] = "ENGINE_STOPPED",
        [VERDICT_GPU_SERVICE_DEAD] = "GPU_SERVICE_DEAD",
        [VERDICT_RANK_STOPPED] = "RANK_STOPPED",
        [VERDICT_ORDER_INVERSION] = "ORDER_INVERSION",
        [VERDICT_MISMATCH] = "MISMATCH",
        [VERDICT_UNMATCHED] = "UNMATCHED",
        [VERDICT_NOT_ARRIVED] = "NOT_ARRIVED",
        [VERDICT_RANK_LEFT] = "RANK_LEFT",
        [VERDICT_NOT_JOINED] = "NOT_JOINED",
        [VERDICT_GPU_BEHIND] = "GPU_BEHIND",
        [VERDICT_GPU_STALL] = "GPU_STALL",
        [VERDICT_LINK_STALL] = "LINK_STALL",
        [VERDICT_ABORTED] = "ABORTED",
        [VERDICT_BROKEN] = "BROKEN",
        [VERDICT_SLOW_RANK] = "SLOW_RANK",
        [VERDICT_SLOW_LINK] = "SLOW_LINK",
        [VERDICT_THROTTLED] = "THROTTLED",
        [VERDICT_COMPUTE_BOUND] = "COMPUTE_BOUND",
        [VERDICT_COMM_BOUND] = "COMM_BOUND",
        [VERDICT_HEALTHY] = "HEALTHY",
    };

    return names[verdict];
}

bool verdict_is_well(enum verdict verdict)
{
    return verdict == VERDICT_COMPUTE_BOUND || verdict == VERDICT_COMM_BOUND ||
           verdict == VERDICT_HEALTHY;
}

bool finding_is_well(const struct finding *f)
{
    return verdict_is_well(f->verdict) || f->early;
}

int diagnose(const struct msg_table *ranks, struct finding **ret_findings, unsigned *ret_n,
             const char **ret_key)
{
    struct finding *findings = NULL;
    struct seats seats;
    unsigned n = 0;
    int r = seats_read(ranks, &seats, ret_key);

    if (r)
        return r;
    for (unsigned i = 0; i < seats.n; i++) {
        const struct seat *of;
        struct finding *more;

        if (seats.at[i].number != i)
            continue; /* not the first of its group */
        of = speaker(&seats, &seats.at[i]);
        more = realloc(findings, (n + 1) * sizeof(*findings));
        if (!more) {
            free(findings);
            seats_free(&seats);
            return -ENOMEM;
        }
        findings = more;
        findings[n] = (struct finding){
            .group = of->group,
            .name = of->name,
            .state = of->state,
            .job = of->job,
            .size = of->size,
            .nodes = of->nodes,
            .rank = -1,
            .world_rank = -1,
            .rank_group = "",
            .pid = -1,
            .node = "",
            .command = "",
            .ended = of->ended,
            .ended_s = of->ended_s,
        };
        find_verdict(&findings[n], &seats, of);
        tell_unseen(&findings[n++]);
    }
    seats_free(&seats);
    *ret_findings = findings;
    *ret_n = n;
    return 0;
}

bool diagnose_missing(const struct msg_table *ranks, const char *name, const char *uid,
                      const char *state, char *buf, size_t len)
{
    const struct seat *of = NULL;
    char list[RANKS_NAME] = "";
    struct seats seats;
    const char *key;

    if (seats_read(ranks, &seats, &key))
        return false;
    for (unsigned i = 0; i < seats.n; i++) {
        const struct seat *s = &seats.at[i];

        if (!is(s->name, name) || s->group_state != read_group_state(state) ||
            s->uid != strtoull(uid, NULL, 10))
            continue;
        if (!of || *s->missing)
            of = s;
    }
    if (of && *of->missing)
        snprintf(buf, len, "%s", of->missing);
    else if (of && list_unseen(&seats, of, list))
        snprintf(buf, len, "%s", list);
    seats_free(&seats);
    return of != NULL;
}
