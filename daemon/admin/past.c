/* past.c - see past.h. What is kept is bounded by PAST_*: some 1,000 bytes a rank, and 1,500 if it
 * had operations on GPUs. */
#include "daemon/admin/past.h"

#include <stdio.h>

#include "daemon/daemon.h"
#include "daemon/process/clock.h"

struct past_group {
    TAILQ_ENTRY(past_group) entry;
    struct rank_group group;
    struct rank_row rows[];
};

void past_init(struct past *past)
{
    TAILQ_INIT(&past->groups);
    past->ngroups = 0;
}

static void past_drop(struct past *past, struct past_group *old)
{
    TAILQ_REMOVE(&past->groups, old, entry);
    assert(past->ngroups);
    past->ngroups--;
    for (unsigned i = 0; i < old->group.nrows; i++)
        records_free(&old->rows[i].records);
    free(old);
}

void past_fini(struct past *past)
{
    while (!TAILQ_EMPTY(&past->groups))
        past_drop(past, TAILQ_FIRST(&past->groups));
}

/* @waits: makes room among the waits, which have no group id, else among the groups. */
static void past_make_room(struct past *past, uint32_t payer, bool waits)
{
    struct past_group *old, *first = NULL;
    unsigned own = 0;

    TAILQ_FOREACH(old, &past->groups, entry) {
        if (old->group.payer != payer || (old->group.id == 0) != waits)
            continue;
        own++;
        if (!first)
            first = old;
    }
    if (own >= (waits ? PAST_WAITS_PER_USER : PAST_MAX_PER_USER))
        past_drop(past, first);
    else if (past->ngroups >= PAST_MAX)
        past_drop(past, TAILQ_FIRST(&past->groups));
}

static bool same_operation(const struct op_desc *a, const struct op_desc *b)
{
    return a->seq != b->seq || !a->seq || op_fingerprint(a) == op_fingerprint(b);
}

/* Did the group end badly? If the last operations of its ranks differ, they failed, and the ranks
 * left after that. */
static bool worth_keeping(const struct ranks *ranks, const struct board_ctl *ctl)
{
    if (ranks->groups[0].cause != CAUSE_NONE || ranks->groups[0].gone.fate != RANK_HERE)
        return true;
    for (unsigned i = 0; i < ranks->nrows; i++)
        if (ranks->rows[i].fate == RANK_DIED || board_refused(ctl, ranks->rows[i].seat.ops) ||
            !same_operation(&ranks->rows[i].seat.last, &ranks->rows[0].seat.last) ||
            ranks->rows[i].seat.gpu.code)
            return true;
    return false;
}

/* @ctl still has the recorders of the ranks. */
static void past_keep(struct past *past, const struct ranks *ranks, const struct board_ctl *ctl)
{
    unsigned nrows = MIN(ranks->nrows, (unsigned)PAST_MAX_ROWS), n = 0;
    struct past_group *new = malloc(sizeof(*new) + nrows * sizeof(new->rows[0]));

    if (!new)
        return; /* history is a courtesy */
    past_make_room(past, ranks->groups[0].payer, false);
    new->group = ranks->groups[0];
    new->group.first_row = 0;
    new->group.nrows = nrows;
    new->group.ended_ms = clock_ms();
    /* ranks that are gone come first: people ask for them, and there may be too many ranks */
    for (int gone = 1; gone >= 0; gone--)
        for (unsigned i = 0; i < ranks->nrows && n < nrows; i++)
            if ((ranks->rows[i].fate != RANK_HERE) == gone) {
                new->rows[n] = ranks->rows[i];
                records_take(&new->rows[n].records, ctl, new->rows[n].local, PAST_OPS);
                n++;
            }
    TAILQ_INSERT_TAIL(&past->groups, new, entry);
    past->ngroups++;
}

void past_closing(struct past *past, struct daemon *d, const struct board_entry *closing)
{
    static const struct ranks_wish any = {.all = true};
    struct core_group_view view;
    struct ranks ranks;

    if (!core_group(d->core, closing->group, &view))
        return;
    ranks_init(&ranks, &any);
    if (ranks_add(&ranks, d, &view)) {
        for (unsigned i = 0; i < ranks.nrows; i++)
            ranks_look_closely(&ranks.groups[0], &ranks.rows[i], d);
        ranks_look_gone(&ranks.groups[0], ranks.rows, d);
        if (worth_keeping(&ranks, closing->ctl))
            past_keep(past, &ranks, closing->ctl);
    }
    ranks_fini(&ranks);
}

/* A kept wait for the same group that other ranks have given up lately; NULL: there is none. */
static struct past_group *same_wait(const struct past *past, const struct client_command *client)
{
    struct past_group *old;

    TAILQ_FOREACH_REVERSE(old, &past->groups, past_list, entry)
    if (!old->group.id && old->group.uid == client->uid && old->group.size == client->wait.size &&
        old->group.recovery == client->wait.recovery && old->group.epoch == client->wait.epoch &&
        !strcmp(old->group.name, client->wait.name) &&
        clock_ms() - old->group.ended_ms <= PAST_WAIT_MS)
        return old;
    return NULL;
}

/* The row of that rank, or a new one at the end; NULL: there are too many rows. */
static struct rank_row *row_for(struct past_group *group, uint32_t rank, uint32_t pid)
{
    for (unsigned i = 0; i < group->group.nrows; i++)
        if (group->rows[i].rank == rank && (rank != MSG_ANY_SEAT || group->rows[i].pid == pid))
            return &group->rows[i];
    return group->group.nrows < PAST_MAX_ROWS ? &group->rows[group->group.nrows++] : NULL;
}

void past_wait_failed(struct past *past, const struct client_command *client, enum cause cause,
                      const char *text)
{
    struct past_group *old = same_wait(past, client), *new;
    unsigned nrows = old ? old->group.nrows : 0;
    struct rank_row *row;

    if (old) {
        TAILQ_REMOVE(&past->groups, old, entry);
        past->ngroups--;
    } else {
        past_make_room(past, client->payer, true);
    }
    new = realloc(old, sizeof(*new) + (nrows + 1) * sizeof(new->rows[0]));
    if (!new)
        return free(old); /* history is a courtesy */
    if (!old)
        new->group = (struct rank_group){.uid = client->uid,
                                         .payer = client->payer,
                                         .size = client->wait.size,
                                         .state = CORE_GROUP_JOINING,
                                         .epoch = client->wait.epoch,
                                         .recovery = client->wait.recovery,
                                         .cause_rank = -1};
    new->group.cause = cause;
    new->group.ended_ms = clock_ms();
    snprintf(new->group.name, sizeof(new->group.name), "%s", client->wait.name);
    snprintf(new->group.text, sizeof(new->group.text), "%s", text);
    row = row_for(new, client->wait.rank, client->pid);
    if (row) {
        *row = (struct rank_row){.rank = client->wait.rank,
                                 .pid = client->pid,
                                 .joining_ms = client->wait.since_ms,
                                 .joined_ms = clock_ms()};
        snprintf(row->command, sizeof(row->command), "%s", client->text);
    }
    TAILQ_INSERT_TAIL(&past->groups, new, entry);
    past->ngroups++;
}

void past_add(const struct past *past, struct ranks *ranks)
{
    const struct past_group *old;

    TAILQ_FOREACH(old, &past->groups, entry)
        if (ranks_wished(&ranks->wish, old->group.uid, old->group.id, old->group.name) &&
            !ranks_add_past(ranks, &old->group, old->rows))
            return;
}
