/* diagnose.c - the verdict on a group, as a pure function of what its ranks were seen doing. The
 * group has not come about (joining.c); or it has ended, or is broken; or a rank waits, and the
 * chain (chain.c) leads to the rank to blame; or the group gets on, and the verdict is how fast
 * (pace.c). */
#include "client/ctl/diagnose.h"

#include "client/ctl/finding.h"
#include "client/ctl/seats.h"

enum { DEATHS_TOLD = 4 };

/* A rank that gave up waiting in an operation is not to blame; ranks that had not begun it are. */
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

    assert(of->cause_code);
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

/* Who died in it, and when; a few. */
static void tell_died(struct finding *f, const struct seats *seats, const struct seat *of)
{
    char name[SEAT_NAME];
    unsigned n = 0;

    group_each(s, seats, of) {
        if (s->rank < 0 || !is_dead(s) || n++ >= DEATHS_TOLD)
            continue;
        if (n == 1)
            blame(f, s);
        tell(f->evidence, "%s died%s%s", seat_name(s, name), *s->exit ? ": " : "", s->exit);
    }
    if (n > DEATHS_TOLD)
        tell(f->evidence, "%u more of its ranks died", n - DEATHS_TOLD);
}

/* A rank of @of's group that lives and does not go on; NULL: there is none. */
static const struct seat *find_left_behind(const struct seats *seats, const struct seat *of)
{
    group_each(s, seats, of)
        if (!s->next_epoch && !s->ended && s->rank >= 0 && s->pid && !is_dead(s) && !seat_left(s) &&
            !goes_on(seats, s))
            return s;
    return NULL;
}

/* Ranks of it have gone on as its next epoch: whatever ended it is over. Not each node tells. */
static bool find_gone_on(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *behind;
    char name[SEAT_NAME];

    group_each(s, seats, of)
        f->next_epoch = MAX(f->next_epoch, s->next_epoch);
    if (!f->next_epoch)
        return false;
    f->verdict = VERDICT_RECOVERED;
    tell(f->evidence, "epoch %llu, gone on as epoch %llu", (unsigned long long)of->epoch,
         (unsigned long long)f->next_epoch);
    if (of->cause_code)
        tell(f->evidence, "it had ended by: %s: %s", of->cause, of->cause_text);
    tell_died(f, seats, of);
    behind = find_left_behind(seats, of);
    if (behind) {
        tell(f->evidence, "%s was left behind in it", seat_name(behind, name));
        tell_rejoin(f);
    }
    return true;
}

static void find_verdict(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = NULL;

    if (of->group_state == GROUP_JOINING || of->group_state == GROUP_STARTING || !*of->group)
        return find_joining(f, seats, of);
    if (find_gone_on(f, seats, of))
        return;
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

/* Several nodes tell of one group. A row of a node that knows the cause speaks for the group. */
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
#define NAME(name_) [VERDICT_##name_] = #name_,
    static const char *const names[] = {VERDICTS(NAME)};
#undef NAME

    assert(verdict < ARRAY_LEN(names) && names[verdict]);
    return names[verdict];
}

bool verdict_is_well(enum verdict verdict)
{
    return verdict == VERDICT_COMPUTE_BOUND || verdict == VERDICT_COMM_BOUND ||
           verdict == VERDICT_RECOVERED || verdict == VERDICT_HEALTHY;
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
            .epoch = of->epoch,
            .recovery = of->recovery,
            .free_seats = "",
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
