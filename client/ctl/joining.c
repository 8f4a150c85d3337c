/* joining.c - a group that has not come about: which of its ranks wait, where, and which are
 * missing. Ranks wait in the join, or before it, in torch's store. Of a join each node tells its
 * own ranks, and the group's home tells which ranks are missing. Which ranks are missing in torch's
 * store is known only by the rows that there are not. */
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

void find_joining(struct finding *f, const struct seats *seats, const struct seat *of)
{
    bool elsewhere = of->group_state == GROUP_STARTING;
    const struct seat *first = NULL;
    const char *missing = "";
    char name[SEAT_NAME], list[RANKS_NAME];
    unsigned n;

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

        if (!is(s->name, name) || s->group_state != read_word(GROUP_WORDS, state) ||
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
