/* joining.c - a group that has not come about, or not gone on: which of its ranks wait, where, and
 * which are missing. Ranks wait in the join, or before it, in torch's store. Of a join each node
 * tells its own ranks, and the group's home tells which ranks are missing. Which ranks are missing
 * in torch's store is known only by the rows that there are not.
 *
 * Of a recovery ranks of the epoch before wait, and new processes (REJOIN) in a group of rows of
 * their own. Its home tells which ranks of that epoch have not asked to go on and are not known to
 * be gone, and which seats are free. */
#include "client/ctl/finding.h"
#include "shm/util/ranks.h"
#include "shm/util/wait.h"

#include <stdio.h>

static bool waits_in_join(const struct seat *s, const struct seat *of)
{
    (void)of;
    return s->joining;
}

/* Two users may wait for groups of one name, which never meet. A reader that sees both is told so.
 */
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

/* ---- recoveries ------------------------------------------------------------------------------ */

static bool rejoins(const struct seat *s)
{
    return is(s->recovery, "rejoin");
}

static const char *many(uint64_t n, const char *one, const char *more)
{
    return n == 1 ? one : more;
}

static bool is_many(const char *list)
{
    return list[strspn(list, "0123456789")] != 0;
}

/* The ranks of the epoch before that are missing, as the group's home tells. */
static const char *missing_before(const struct seats *seats, const struct seat *of)
{
    const char *missing = "";

    group_each(s, seats, of)
        if (*s->missing)
            missing = s->missing;
    return missing;
}

/* What else the home tells. */
static void take_facts(struct finding *f, const struct seats *seats, const struct seat *of)
{
    group_each(s, seats, of)
        if (*s->free_seats)
            f->free_seats = s->free_seats;
    for (unsigned i = 0; i < seats->n; i++)
        f->new_processes += seats->at[i].joining && rejoins(&seats->at[i]) &&
                            seats->at[i].ended == f->ended && seats->at[i].uid == of->uid &&
                            is(seats->at[i].name, of->name);
}

static const struct seat *longest_joining(const struct seats *seats, const struct seat *of,
                                          unsigned *ret_n)
{
    const struct seat *first = NULL;

    *ret_n = 0;
    group_each(s, seats, of) {
        if (!s->joining)
            continue;
        ++*ret_n;
        if (!first || s->joining_ms > first->joining_ms)
            first = s;
    }
    return first;
}

/* The first of the @missing ranks, as it is in the epoch before; NULL: no node tells of it. */
static const struct seat *find_before(const struct seats *seats, const struct seat *of,
                                      const char *missing)
{
    int64_t rank = (int64_t)strtoull(missing, NULL, 10);

    for (unsigned i = 0; *missing && i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (*s->group && s->uid == of->uid && is(s->name, of->name) && s->epoch + 1 == of->epoch &&
            s->rank == rank && !s->ended)
            return s;
    }
    return NULL;
}

static void tell_missing_before(struct finding *f, const struct seats *seats, const struct seat *of,
                                const char *missing)
{
    const struct seat *s = find_before(seats, of, missing);
    char name[SEAT_NAME];

    if (!*missing)
        return;
    tell(f->evidence, "rank%s %s of epoch %llu %s not asked to go on, and %s not known to be gone",
         is_many(missing) ? "s" : "", missing, (unsigned long long)of->epoch - 1,
         is_many(missing) ? "have" : "has", is_many(missing) ? "are" : "is");
    if (s) {
        blame(f, s);
        tell(f->evidence, "%s is still in epoch %llu", seat_name(s, name),
             (unsigned long long)s->epoch);
        if (is_stopped(s))
            return find_stopped(f, s);
    }
    tell(f->remedy, "let all ranks that are left call commd_group_recover() (torch: "
                    "commd.torch.recover()): what do these do?");
}

static bool is_in_it(const struct seat *s, const struct seat *of)
{
    (void)of;
    return is_open(s);
}

/* A rank of the epoch for which @of waits, or of a later one, which is there; NULL: none is. */
static const struct seat *find_ahead(const struct seats *seats, const struct seat *of)
{
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (is_open(s) && s->uid == of->uid && is(s->name, of->name) && s->epoch >= of->epoch &&
            !*s->recovery && !s->ended)
            return s;
    }
    return NULL;
}

bool goes_on(const struct seats *seats, const struct seat *s)
{
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *other = &seats->at[i];

        if (other->epoch >= s->epoch + !s->joining && !other->ended && same_process(other, s) &&
            is(other->name, s->name) && !same_group(other, s))
            return true;
    }
    return false;
}

void tell_rejoin(struct finding *f)
{
    tell(f->remedy, "nobody will come: let who was left behind leave the group and rejoin as a new "
                    "process (commd_group_rejoin(), torch: commd.torch.rejoin()), while the others "
                    "wait for it (COMMD_RECOVER_WAIT), or make a new group");
}

/* The ranks that wait, @first of @n, were left behind: others are in @ahead. */
static void tell_left_behind(struct finding *f, const struct seats *seats, const struct seat *first,
                             unsigned n, const struct seat *ahead)
{
    char list[RANKS_NAME];
    unsigned there = list_ranks(seats, ahead, is_in_it, list, sizeof(list));

    blame(f, first);
    tell(f->evidence, "the others have gone on as epoch %llu, rank%s %s of %llu, without %s",
         (unsigned long long)ahead->epoch, there == 1 ? "" : "s", list,
         (unsigned long long)ahead->size, n == 1 ? "it" : "them");
    tell_rejoin(f);
}

/* Ranks of a group wait for its next epoch. */
static void find_recovery(struct finding *f, const struct seats *seats, const struct seat *of)
{
    bool shrinks = is(of->recovery, "shrink");
    const char *missing = missing_before(seats, of);
    char name[SEAT_NAME], list[RANKS_NAME];
    unsigned n;
    const struct seat *first = longest_joining(seats, of, &n), *ahead = find_ahead(seats, of);

    take_facts(f, seats, of);
    f->verdict = VERDICT_NOT_JOINED;
    if (first) {
        f->waiting_ms = first->joining_ms;
        n = name_ranks(seats, of, waits_in_join, list);
        tell(f->evidence, "rank%s %s of epoch %llu wait%s to go on%s, %s for %.1f s",
             n == 1 ? "" : "s", list, (unsigned long long)of->epoch - 1,
             f->ended ? "ed"
             : n == 1 ? "s"
                      : "",
             shrinks ? " without those who are gone" : " with new processes in the free seats",
             seat_name(first, name), (double)first->joining_ms / 1000);
    }
    if (f->ended) {
        tell(f->evidence, "%s: %s", of->cause, of->cause_text);
        if (first && ahead && first->pid && !goes_on(seats, first))
            tell_rejoin(f);
        return;
    }
    if (first && ahead)
        return tell_left_behind(f, seats, first, n, ahead);
    tell_missing_before(f, seats, of, missing);
    if (shrinks)
        return;
    if (*f->free_seats) {
        tell(f->evidence, "seat%s %s %s free", is_many(f->free_seats) ? "s" : "", f->free_seats,
             is_many(f->free_seats) ? "are" : "is");
        tell(f->remedy, "start a new process for each free seat: it calls commd_group_rejoin() "
                        "(torch: commd.torch.rejoin())");
    }
    tell(f->evidence, f->new_processes ? "%llu new process%s for a seat" : "no new process waits",
         (unsigned long long)f->new_processes, many(f->new_processes, " waits", "es wait"));
}

/* A group for which the new processes @of may have come: best one that waits for new processes,
 * then one that shrinks, then one that is there; NULL: none. */
static const struct seat *find_awaiting(const struct seats *seats, const struct seat *of)
{
    const struct seat *best = NULL;

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (s->uid != of->uid || !is(s->name, of->name) || s->ended || s->next_epoch ||
            rejoins(s) || (!*s->recovery && !is_open(s)))
            continue;
        if (!best || is(s->recovery, "wait") || (*s->recovery && !*best->recovery))
            best = s;
    }
    return best;
}

/* New processes @of ask for seats of @group whose ranks live. */
static void tell_taken(struct finding *f, const struct seats *seats, const struct seat *of,
                       const struct seat *group)
{
    char name[SEAT_NAME];

    group_each(s, seats, group)
        group_each(comer, seats, of) {
            if (s->rank < 0 || comer->rank != s->rank || is_dead(s) || seat_left(s))
                continue;
            tell(f->evidence, "seat %lld is taken, and is not given to it: %s lives",
                 (long long)s->rank, seat_name(s, name));
            return tell(f->remedy,
                        "rejoin without a number, for any free seat; or end that rank, if "
                        "the new process is to replace it");
        }
}

/* Why new processes wait, and who waits for them. */
static void tell_awaiting(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *group = find_awaiting(seats, of);

    if (group)
        tell_taken(f, seats, of, group);
    if (group && is(group->recovery, "wait")) {
        const char *missing = missing_before(seats, group);

        tell(f->evidence, "epoch %llu of the group waits for %s%s",
             (unsigned long long)group->epoch - 1,
             *missing ? "its own ranks first: " : "more new processes, or has no such seat",
             missing);
        return;
    }
    tell(f->evidence, "no rank of a group of this name waits for new processes%s",
         !group             ? ", and there is no such group"
         : *group->recovery ? ": its ranks go on without"
                            : ": it goes on as it is");
    tell(f->remedy, "have the ranks of the group call commd_group_recover() with "
                    "COMMD_RECOVER_WAIT (torch: recover(policy=\"wait\")); do both use one name?");
}

/* New processes wait for seats. */
static void find_rejoining(struct finding *f, const struct seats *seats, const struct seat *of)
{
    char list[RANKS_NAME] = "", seat[RANKS_NAME + 32] = "a seat";
    unsigned n;
    const struct seat *first = longest_joining(seats, of, &n);

    take_facts(f, seats, of);
    f->verdict = VERDICT_NOT_JOINED;
    if (list_ranks(seats, of, waits_in_join, list, sizeof(list)))
        snprintf(seat, sizeof(seat), n == 1 ? "seat %s" : "a seat (of these for %s)", list);
    if (first) {
        f->waiting_ms = first->joining_ms;
        tell(f->evidence, "%llu new process%s for %s, pid %llu on node %s for %.1f s",
             (unsigned long long)f->new_processes,
             f->ended ? many(f->new_processes, " waited", "es waited")
                      : many(f->new_processes, " waits", "es wait"),
             seat, (unsigned long long)first->pid, first->node, (double)first->joining_ms / 1000);
    }
    if (f->ended)
        return tell(f->evidence, "%s: %s", of->cause, of->cause_text);
    tell_awaiting(f, seats, of);
}

/* ---- joins ----------------------------------------------------------------------------------- */

void find_joining(struct finding *f, const struct seats *seats, const struct seat *of)
{
    bool elsewhere = of->group_state == GROUP_STARTING;
    const struct seat *first = NULL;
    const char *missing = "";
    char name[SEAT_NAME], list[RANKS_NAME];
    unsigned n;

    if (rejoins(of))
        return find_rejoining(f, seats, of);
    if (*of->recovery)
        return find_recovery(f, seats, of);
    assert(elsewhere || of->group_state == GROUP_JOINING || !*of->group);
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

bool diagnose_missing(const struct msg_table *ranks, const char *name, const char *uid,
                      const char *state, const char *recovery, char *buf, size_t len,
                      const char **ret_seats)
{
    const struct seat *of = NULL;
    char list[RANKS_NAME] = "";
    struct seats seats;
    const char *key;

    if (seats_read(ranks, &seats, &key))
        return false;
    for (unsigned i = 0; i < seats.n; i++) {
        const struct seat *s = &seats.at[i];

        if (!is(s->name, name) || s->group_state != read_word(GROUP_WORDS, state) ||
            !is(s->recovery, recovery) || s->uid != strtoull(uid, NULL, 10))
            continue;
        if (!of || *s->missing || *s->free_seats)
            of = s;
    }
    if (of)
        *ret_seats = of->free_seats; /* the table's */
    if (of && *of->missing)
        snprintf(buf, len, "%s", of->missing);
    else if (of && !*recovery && list_unseen(&seats, of, list))
        snprintf(buf, len, "%s", list);
    seats_free(&seats);
    return of != NULL;
}
