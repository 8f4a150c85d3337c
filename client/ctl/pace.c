/* pace.c - a group that gets on: how fast, does one rank make the others wait again and again, and
 * is a wait usual in it? */
#include "client/ctl/finding.h"
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

/* How much of the time each rank is in operations. If operations come one after the other, the
 * second in which the ranks were watched tells enough. If they are few, or come in bursts, the last
 * ones that the ranks have recorded tell it. */
struct pace {
    unsigned n;                      /* ranks that were watched */
    unsigned computing;              /* of these: the GPU has something else to do */
    uint64_t done, gpu_done;         /* in the last second, by all of them */
    uint64_t busy_pct;               /* of the busiest, in the last second */
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

/* Does the rank that waits most do so again and again? A first step, a checkpoint or an evaluation
 * is one long wait, and says nothing of the pace. If what the rank has recorded does not reach back
 * over the second, operations come so fast that almost each look finds another one, but in a long
 * wait. */
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
        p.gpu_done += s->gpu_done;
        p.busy_pct = MAX(p.busy_pct, s->busy_pct);
        p.computing += on_gpu(s) && !s->gpu_ready && s->gpu_ms >= STUCK_MS && !s->gpu_done;
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

void find_pace(struct finding *f, const struct seats *seats, const struct seat *of)
{
    struct pace p = pace_of(seats, of);

    f->verdict = VERDICT_HEALTHY;
    if (p.gpu_done)
        tell(f->evidence, "%llu operations on GPUs of its ranks in the last second",
             (unsigned long long)p.gpu_done);
    if (p.n && p.computing == p.n) {
        f->verdict = VERDICT_COMPUTE_BOUND;
        return tell(f->evidence, "all ranks have called an operation on GPUs, and none of their "
                                 "streams has come to it: the GPUs compute");
    }
    if (p.gpu_done && !p.done)
        return;
    if (!p.n || (!p.done && !p.busy_pct)) {
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

/* Says for which rank, as far as that is known. */
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

/* Long waits are usual here. Are they always for the same rank? Then the others wait for most of
 * the time, and that rank does not. */
static void find_often_late(struct finding *f, const struct seats *seats,
                            const struct finding *stuck, const struct seat *waiter)
{
    uint64_t waits = waiter->lately_ms ? waiter->lately_in_ms * 100 / waiter->lately_ms : 0, in;
    char name[SEAT_NAME];

    assert(waiter->asleep);
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
bool find_usual(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    struct finding stuck = *f;

    assert(stuck_ms(waiter));
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
