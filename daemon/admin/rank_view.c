/* rank_view.c - a look at the ranks of this node, in parts that each fit into a turn: find the
 * groups, look at their boards as often as is wanted, then write the table (rank_table.c).
 *
 * A group may close in between. Then its board is not found any more, and the table shows what was
 * seen before. The state of a process is read from /proc when the table is written. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/admin/rank_view.h"

#include "daemon/admin/process_view.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

enum { JOINERS_SHOWN = 256 }; /* ranks of this node, for one group */

const char *rank_recovery_word(unsigned recovery)
{
    static const char *const words[MSG_RECOVERY_COUNT] = {
        [MSG_RECOVERY_NONE] = "",
        [MSG_RECOVERY_SHRINK] = "shrink",
        [MSG_RECOVERY_WAIT] = "wait",
        [MSG_RECOVERY_REJOIN] = "rejoin",
    };

    assert(recovery < MSG_RECOVERY_COUNT);
    return words[recovery];
}

void ranks_init(struct ranks *ranks, const struct ranks_wish *wish)
{
    *ranks = (struct ranks){.wish = *wish, .begun_ms = clock_ms()};
}

void ranks_fini(struct ranks *ranks)
{
    for (unsigned row = 0; row < ranks->nrows; row++)
        records_free(&ranks->rows[row].records);
    free(ranks->groups);
    free(ranks->rows);
    *ranks = (struct ranks){0};
}

bool ranks_wished(const struct ranks_wish *wish, uint32_t uid, uint64_t id, const char *name)
{
    char hex[17];

    if (wish->links || (!wish->all && wish->uid != uid))
        return false;
    snprintf(hex, sizeof(hex), "%016" PRIx64, id);
    return !wish->group[0] || strcmp(wish->group, name) == 0 ||
           (id && strcmp(wish->group, hex) == 0);
}

/* Makes room in @array for @n items of @size bytes. */
static bool grow_to(void *array, unsigned *room, unsigned n, size_t size)
{
    unsigned more = MAX(MAX(n, 8u), 2 * *room);
    void *grown;

    if (n <= *room)
        return true;
    grown = realloc(*(void **)array, more * size);
    if (!grown)
        return false;
    *(void **)array = grown;
    *room = more;
    return true;
}

/* Room for one more group and @nrows more rows. */
static bool ranks_room(struct ranks *ranks, unsigned nrows)
{
    if (ranks->nrows + nrows > RANKS_MAX_ROWS || ranks->ngroups == RANKS_MAX_ROWS) {
        ranks->cut = true;
        return false;
    }
    if (grow_to(&ranks->groups, &ranks->groups_room, ranks->ngroups + 1, sizeof(*ranks->groups)) &&
        grow_to(&ranks->rows, &ranks->rows_room, ranks->nrows + nrows, sizeof(*ranks->rows)))
        return true;
    ranks->error = -ENOMEM;
    return false;
}

static void take_command(const struct daemon *d, unsigned slot, struct rank_row *row)
{
    if (slot >= d->nslots || d->commands[slot].pid != row->pid)
        return;
    snprintf(row->command, sizeof(row->command), "%s", d->commands[slot].text);
    snprintf(row->run, sizeof(row->run), "%s", d->commands[slot].job);
}

/* How the program of this member was called, also if it has ended. */
static void find_command(const struct daemon *d, const struct board_entry *entry,
                         struct rank_row *row)
{
    unsigned slot;

    if (entry && boards_member_slot(entry, row->local, &slot))
        take_command(d, slot, row);
}

static enum rank_fate fate_of(const struct board_entry *entry, unsigned rank)
{
    unsigned cause = entry ? board_rank_gone(entry->ctl, rank) : CAUSE_NONE;

    return !cause ? RANK_HERE : cause == CAUSE_LEFT ? RANK_LEFT : RANK_DIED;
}

static void take_rows(struct ranks *ranks, const struct daemon *d,
                      const struct core_group_view *view)
{
    const struct board_entry *entry = view->id ? boards_find(&d->boards, view->id) : NULL;
    unsigned local = 0;

    for (unsigned rank = 0; rank < view->size && view->members; rank++) {
        struct rank_row *row = &ranks->rows[ranks->nrows];

        if (view->members[rank].node != view->me)
            continue;
        *row = (struct rank_row){.rank = rank, .pid = view->members[rank].pid, .local = local++};
        row->fate = fate_of(entry, rank);
        find_command(d, entry, row);
        ranks->nrows++;
    }
}

/* Adds the ranks that wait on this node for a joining group. */
static void take_joiners(struct ranks *ranks, const struct daemon *d,
                         const struct core_joiner *joiners, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct rank_row *row = &ranks->rows[ranks->nrows++];
        *row = (struct rank_row){.rank = joiners[i].rank,
                                 .pid = joiners[i].pid,
                                 .joining_ms = MAX(joiners[i].since_ms, (uint64_t)1)};

        take_command(d, joiners[i].client, row);
    }
}

bool ranks_add(struct ranks *ranks, struct daemon *d, const struct core_group_view *view)
{
    struct core_joiner joiners[JOINERS_SHOWN];
    struct rank_group *group;
    unsigned nrows = 0;

    assert(!view->members || view->me < view->nnodes);
    for (unsigned rank = 0; rank < view->size && view->members; rank++)
        nrows += view->members[rank].node == view->me;
    if (view->state == CORE_GROUP_JOINING)
        nrows = core_joiners(d->core, view, joiners, JOINERS_SHOWN);
    if (!ranks_room(ranks, nrows))
        return false;
    group = &ranks->groups[ranks->ngroups++];
    *group = (struct rank_group){
        .id = view->id,
        .uid = view->uid,
        .payer = view->payer,
        .size = view->size,
        .nnodes = view->nnodes,
        .state = view->state,
        .cause = view->cause,
        .cause_rank = view->cause_rank,
        .epoch = view->epoch,
        .next_epoch = view->next_epoch,
        .recovery = view->recovery,
        .first_row = ranks->nrows,
        .nrows = nrows,
    };
    snprintf(group->name, sizeof(group->name), "%s", view->name);
    snprintf(group->text, sizeof(group->text), "%s",
             view->cause != CAUSE_NONE ? view->cause_text : view->missing);
    snprintf(group->seats, sizeof(group->seats), "%s", view->seats);
    take_rows(ranks, d, view);
    if (view->state == CORE_GROUP_JOINING)
        take_joiners(ranks, d, joiners, nrows);
    return true;
}

/* The rank that the client in @slot waits to be. */
static bool add_waiting(struct ranks *ranks, const struct daemon *d, unsigned slot)
{
    const struct client_command *client = &d->commands[slot];
    struct rank_group *group;
    struct rank_row *row;

    if (!ranks_room(ranks, 1))
        return false;
    group = &ranks->groups[ranks->ngroups++];
    *group = (struct rank_group){.uid = client->uid,
                                 .size = client->wait.size,
                                 .state = CORE_GROUP_JOINING,
                                 .elsewhere = true,
                                 .cause_rank = -1,
                                 .first_row = ranks->nrows,
                                 .nrows = 1};
    snprintf(group->name, sizeof(group->name), "%s", client->wait.name);
    row = &ranks->rows[ranks->nrows++];
    *row = (struct rank_row){
        .rank = client->wait.rank, .pid = client->pid, .joining_ms = client->wait.since_ms};
    take_command(d, slot, row);
    return true;
}

bool ranks_add_past(struct ranks *ranks, const struct rank_group *group,
                    const struct rank_row *rows)
{
    if (!ranks_room(ranks, group->nrows))
        return false;
    ranks->groups[ranks->ngroups] = *group;
    ranks->groups[ranks->ngroups++].first_row = ranks->nrows;
    for (unsigned i = 0; i < group->nrows; i++) {
        struct rank_row *row = &ranks->rows[ranks->nrows++];

        *row = rows[i];
        if (ranks->wish.records)
            records_copy(&row->records, &rows[i].records);
        else
            row->records = (struct rank_records){0};
    }
    return true;
}

bool ranks_look_at_cpus(struct ranks *ranks, uint64_t until_us)
{
    while (ranks->cpu_at < ranks->nrows) {
        struct rank_row *row = &ranks->rows[ranks->cpu_at++];

        row->cpu_since_ns = now_ns();
        row->cpu_waited_ns = process_cpu_waited(row->pid);
        process_groups(row->pid, &ranks->groups_of);
        row->quota = ranks->groups_of.quota;
        if (clock_us() >= until_us)
            return ranks->cpu_at == ranks->nrows;
    }
    return true;
}

/* Adds the ranks that wait outside commd. Works until @until_us; true: done. */
static bool find_waiting(struct ranks *ranks, const struct daemon *d, uint64_t until_us)
{
    while ((ranks->slot = waits_next(d, ranks->slot)) < d->nslots) {
        const struct client_command *client = &d->commands[ranks->slot];

        if (ranks_wished(&ranks->wish, client->uid, 0, client->wait.name) &&
            !add_waiting(ranks, d, ranks->slot))
            return true;
        ranks->slot++;
        if (clock_us() >= until_us)
            return false;
    }
    return true;
}

/* Adds the groups of the wish. Works until @until_us; true: done. */
static bool find_groups(struct ranks *ranks, struct daemon *d, uint64_t until_us)
{
    const uint32_t *uid = ranks->wish.all ? NULL : &ranks->wish.uid;
    struct core_group_view view;
    int r;

    do {
        r = core_group_scan(d->core, &ranks->scan, uid, &view);
        if (r == CORE_SCAN_END)
            return find_waiting(ranks, d, until_us);
        if (r != CORE_SCAN_FOUND || !ranks_wished(&ranks->wish, view.uid, view.id, view.name))
            continue;
        if (!ranks_add(ranks, d, &view))
            return true;
    } while (clock_us() < until_us);
    return false;
}

bool ranks_find(struct ranks *ranks, struct daemon *d, uint64_t until_us)
{
    struct core_status status;

    if (!ranks->engine.pid) {
        core_status(d->core, &status);
        ranks->engine.pid = status.engine_pid;
        process_groups(status.engine_pid, &ranks->groups_of);
        ranks->engine.quota = ranks->groups_of.quota;
    }
    ranks->found = ranks->found || find_groups(ranks, d, until_us);
    return ranks->found && ranks_look_at_cpus(ranks, until_us);
}

void ranks_look(struct ranks *ranks, struct daemon *d)
{
    for (unsigned i = 0; i < ranks->ngroups; i++) {
        const struct rank_group *group = &ranks->groups[i];
        const struct board_entry *entry = group->id ? boards_find(&d->boards, group->id) : NULL;

        for (unsigned k = 0; k < group->nrows && entry && !group->ended_ms; k++) {
            struct rank_row *row = &ranks->rows[group->first_row + k];
            struct board_seat *seat = &row->seat;

            uint32_t ops = seat->ops;

            seat->ops = board_rank_ended(entry->ctl, row->local);
            seat->started = board_rank_started(entry->ctl, row->local);
            seat->gpu.ended = board_rank_gpu_ended(entry->ctl, row->local);
            seat->messages = board_rank_messages(entry->ctl, row->local);
            if (!row->looks++) {
                row->first_ops = seat->ops;
                row->first_gpu = seat->gpu.ended;
                row->first_messages = seat->messages;
            }
            row->looks_moved += row->looks > 1 && seat->ops != ops;
            row->looks_in += seat->started != seat->ops;
        }
    }
}

/* How many operations count: the square of the sum of times by the sum of their squares. If a few
 * operations took much longer than all others, about so many count. */
static void look_back(const struct board_recorder *recorder, struct rank_row *row)
{
    uint64_t now = now_ns(), first = now, in = 0;
    double squares = 0;
    struct recorder_op op;

    for (unsigned i = 0; i < RECORDER_RING; i++) {
        uint64_t end, took;

        if (!recorder_read(recorder, i, &op) || row->seat.started - op.seq >= RECORDER_RING)
            continue;
        if (!op.ended_ns && op.seq != row->seat.started)
            continue; /* it failed */
        end = op.ended_ns ? MIN(op.ended_ns, now) : now;
        took = end > op.begun_ns ? end - op.begun_ns : 0;
        in += took;
        squares += (double)took * (double)took;
        first = MIN(first, op.begun_ns);
    }
    row->lately.n = in ? (unsigned)((double)in * (double)in / squares + 0.5) : 0;
    row->lately.since_ms = (now - first) / 1000000;
    row->lately.in_ms = in / 1000000;
    row->lately.usual_ms = recorder_usual_ns(recorder, now) / 1000000;
}

void ranks_look_closely(const struct rank_group *group, struct rank_row *row, struct daemon *d)
{
    const struct board_entry *entry = group->id ? boards_find(&d->boards, group->id) : NULL;

    if (!entry || group->ended_ms)
        return;
    row->gone_ms = board_gone_ms(entry->ctl, row->rank); /* a rank that is gone sleeps no more */
    board_seat(entry->ctl, row->local, row->gone_ms ? row->gone_ms : now_ms(), &row->seat);
    row->fate = fate_of(entry, row->rank);
    if (row->seat.started && board_recorder(entry->ctl, row->local))
        look_back(board_recorder(entry->ctl, row->local), row);
}

/* Has one of @rows begun an operation after the @ops-th? */
static bool began_more(const struct rank_group *group, const struct rank_row *rows, uint32_t ops)
{
    for (unsigned k = 0; k < group->nrows; k++)
        if ((int32_t)(rows[k].seat.started - ops) > 0)
            return true;
    return false;
}

void ranks_look_gone(struct rank_group *group, const struct rank_row *rows, struct daemon *d)
{
    const struct board_entry *entry = group->id ? boards_find(&d->boards, group->id) : NULL;
    struct core_group_view view;
    uint32_t rank = 0, ops = 0;
    unsigned cause;

    if (!entry || group->ended_ms || !core_group(d->core, group->id, &view) || !view.members)
        return;
    for (unsigned i = 0; (cause = board_gone_at(entry->ctl, i, &rank, &ops)); i++)
        if (cause != CAUSE_LEFT || began_more(group, rows, ops))
            break;
    if (!cause || rank >= view.size || view.members[rank].node >= view.nnodes)
        return;
    group->gone.fate = cause == CAUSE_LEFT ? RANK_LEFT : RANK_DIED;
    group->gone.rank = rank;
    group->gone.pid = view.members[rank].pid;
    group->gone.ops = ops;
    snprintf(group->gone.node, sizeof(group->gone.node), "%s",
             d->conf->nodes[view.nodes[view.members[rank].node]].name);
}
