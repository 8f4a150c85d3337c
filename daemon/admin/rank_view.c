/* rank_view.c - a look at the ranks of this node, in parts that each fit into a turn: find the
 * groups, look at their boards as often as is wanted, then write the table.
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
#include "shm/proto/ranks_table.h"
#include "shm/util/wait.h"

enum { JOINERS_SHOWN = 256 }; /* ranks of this node, for one group */

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

/* Room for one more group and @nrows more rows. */
static bool ranks_room(struct ranks *ranks, unsigned nrows)
{
    if (ranks->nrows + nrows > RANKS_MAX_ROWS || ranks->ngroups == RANKS_MAX_ROWS) {
        ranks->cut = true;
        return false;
    }
    if (ranks->ngroups == ranks->groups_room) {
        unsigned room = MAX(8u, 2 * ranks->groups_room);
        struct rank_group *groups = realloc(ranks->groups, room * sizeof(*groups));

        if (!groups) {
            ranks->error = -ENOMEM;
            return false;
        }
        ranks->groups = groups;
        ranks->groups_room = room;
    }
    if (ranks->nrows + nrows > ranks->rows_room) {
        unsigned room = MAX(ranks->nrows + nrows, 2 * ranks->rows_room);
        struct rank_row *rows = realloc(ranks->rows, room * sizeof(*rows));

        if (!rows) {
            ranks->error = -ENOMEM;
            return false;
        }
        ranks->rows = rows;
        ranks->rows_room = room;
    }
    return true;
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

    for (unsigned rank = 0; rank < view->size && view->members; rank++)
        nrows += view->members[rank].node == view->me;
    if (view->state == CORE_GROUP_JOINING)
        nrows = core_joiners(d->core, view->uid, view->name, joiners, JOINERS_SHOWN);
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
        .first_row = ranks->nrows,
        .nrows = nrows,
    };
    snprintf(group->name, sizeof(group->name), "%s", view->name);
    snprintf(group->text, sizeof(group->text), "%s",
             view->state == CORE_GROUP_BROKEN ? view->cause_text : view->missing);
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

            seat->ops = board_rank_ops(entry->ctl, row->local);
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

static unsigned starved_pct(const struct rank_row *row)
{
    uint64_t waited = process_cpu_waited(row->pid), ns = now_ns() - row->cpu_since_ns;

    if (!row->cpu_since_ns || waited <= row->cpu_waited_ns || !ns)
        return 0;
    return (unsigned)(MIN(waited - row->cpu_waited_ns, ns) * 100 / ns);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define RANKS_TEXT   MSG_CELL_STRING
#define RANKS_NUMBER MSG_CELL_NUMBER
#define RANKS_COUNT  MSG_CELL_NUMBER
#define RANKS_INDEX  MSG_CELL_NUMBER
#define RANKS_FLAG   MSG_CELL_BOOL

void ranks_table(struct table *table)
{
#define COLUMN(key_, kind_, title_) {#key_, title_, RANKS_##kind_},
    static const struct table_column columns[] = {RANKS_COLUMNS(COLUMN)};
#undef COLUMN

    table_init(table, "ranks", columns, ARRAY_LEN(columns));
}

static const char *group_state(const struct rank_group *group)
{
    if (group->ended_ms)
        return "ended";
    return group->elsewhere ? "starting" : core_group_word(group->state);
}

static void group_cells(struct table *t, const struct rank_group *group)
{
    bool broken = group->cause != CAUSE_NONE;

    if (group->id)
        table_set_format(t, RANKS_group, "%016" PRIx64, group->id);
    table_set_text(t, RANKS_name, group->name);
    table_set_number(t, RANKS_uid, group->uid);
    table_set_number(t, RANKS_size, group->size);
    table_set_number(t, RANKS_nodes, group->nnodes);
    table_set_text(t, RANKS_state, group_state(group));
    table_set_text(t, broken ? RANKS_cause_text : RANKS_missing, group->text);
    if (broken)
        table_set_text(t, RANKS_cause, cause_name(group->cause));
    if (broken && group->cause_rank >= 0)
        table_set_number(t, RANKS_cause_rank, (uint64_t)group->cause_rank);
    if (group->ended_ms)
        table_set_number(t, RANKS_ended_s, (clock_ms() - group->ended_ms) / 1000);
    if (group->gone.fate == RANK_HERE)
        return;
    table_set_text(t, RANKS_gone, group->gone.fate == RANK_LEFT ? "left" : "died");
    table_set_number(t, RANKS_gone_rank, group->gone.rank);
    table_set_text(t, RANKS_gone_node, group->gone.node);
    table_set_number(t, RANKS_gone_pid, group->gone.pid);
    table_set_number(t, RANKS_gone_ops, group->gone.ops);
}

static void operation_cell(struct table *t, enum ranks_column column, const struct op_desc *desc)
{
    char text[160];

    if (!desc->seq)
        return;
    op_text(desc, text, sizeof(text));
    table_set_text(t, column, text);
}

/* @ended: the group has ended, so another process may have the pid by now. */
static void process_cells(struct table *t, struct ranks *ranks, const struct rank_row *row,
                          bool ended)
{
    char kernel[64] = "";

    switch (row->fate) {
    case RANK_HERE:
        if (ended)
            return;
        process_kernel(row->pid, kernel, sizeof(kernel));
        table_set_text(t, RANKS_kernel, kernel);
        return table_set_text(t, RANKS_process, process_word(row->pid, &ranks->groups_of));
    case RANK_LEFT:
        return table_set_text(t, RANKS_process, "left");
    case RANK_DIED:
        return table_set_text(t, RANKS_process, "died");
    }
}

static void message_cells(struct table *t, const struct board_seat *seat)
{
    if (!seat->message)
        return;
    table_set_text(t, RANKS_message, seat->message_send ? "send" : "recv");
    table_set_number(t, RANKS_message_ms, seat->message_ms);
    if (seat->message_peer >= 0)
        table_set_number(t, RANKS_message_peer, (uint64_t)seat->message_peer);
    if (seat->message_tag >= 0)
        table_set_number(t, RANKS_message_tag, (uint64_t)seat->message_tag);
    if (seat->unasked_from < 0)
        return;
    table_set_number(t, RANKS_unasked_from, (uint64_t)seat->unasked_from);
    if (seat->unasked_tag >= 0)
        table_set_number(t, RANKS_unasked_tag, (uint64_t)seat->unasked_tag);
}

/* How its last operation by commd-gpu ended. */
static const char *gpu_error(int code)
{
    if (-code == BOARD_GPU_LOST)
        return "gpu lost";
    return code < 0 && -code < CAUSE_COUNT ? cause_name((unsigned)-code) : "";
}

static void gpu_cells(struct table *t, const struct daemon *d, const struct rank_row *row,
                      bool ended)
{
    const struct board_seat_gpu *gpu = &row->seat.gpu;
    struct core_gpu_view view;

    if (!gpu->begun)
        return;
    core_gpu(d->core, &view);
    table_set_number(t, RANKS_gpu_begun, gpu->begun);
    table_set_number(t, RANKS_gpu_ended, gpu->ended);
    operation_cell(t, RANKS_gpu_operation, &gpu->now);
    operation_cell(t, RANKS_gpu_last, &gpu->last);
    table_set_text(t, RANKS_gpu_error, gpu_error(gpu->code));
    if (gpu->pending) {
        table_set_bool(t, RANKS_gpu_ready, gpu->ready);
        table_set_number(t, RANKS_gpu_ms, gpu->ms);
    }
    if (ended)
        return;
    table_set_number(t, RANKS_gpu_done, gpu->ended - row->first_gpu);
    if (view.unanswered_ms)
        table_set_number(t, RANKS_gpu_silent_ms, clock_ms() - view.unanswered_ms);
}

/* At the end of the look: says in a word if the engine of this node cannot work. */
static void look_at_engine(struct ranks *ranks)
{
    const char *word;

    if (!ranks->engine.pid || ranks->engine.word)
        return;
    word = process_word(ranks->engine.pid, &ranks->groups_of);
    ranks->engine.word =
        !strcmp(word, "stopped") || !strcmp(word, "traced") || !strcmp(word, "frozen") ? word : "";
    process_groups(ranks->engine.pid, &ranks->groups_of);
    ranks->engine.throttled_pct =
        process_throttled_pct(&ranks->engine.quota, &ranks->groups_of.quota);
}

/* Cells with what keeps a rank or this node's engine from its cores, and with the rank's job. */
static void system_cells(struct table *t, struct ranks *ranks, const struct rank_row *row)
{
    const struct process_groups *groups = &ranks->groups_of;

    process_groups(row->pid, &ranks->groups_of);
    table_set_number(t, RANKS_throttled_pct, process_throttled_pct(&row->quota, &groups->quota));
    table_set_format(t, RANKS_job, "%s%s%s%s", groups->job, *groups->job && *row->run ? ", " : "",
                     *row->run ? "torchrun run " : "", row->run);
    table_set_text(t, RANKS_engine, ranks->engine.word ? ranks->engine.word : "");
    if (ranks->engine.pid)
        table_set_number(t, RANKS_engine_throttled_pct, ranks->engine.throttled_pct);
}

/* Cells with what was seen while the rank was watched. Empty for groups that have ended. */
static void watched_cells(struct table *t, struct ranks *ranks, const struct rank_row *row)
{
    const struct board_seat *seat = &row->seat;

    if (row->looks) {
        table_set_number(t, RANKS_messages_done, seat->messages - row->first_messages);
        table_set_number(t, RANKS_busy_pct, 100ull * row->looks_in / row->looks);
    }
    table_set_number(t, RANKS_done, seat->ops - row->first_ops);
    table_set_number(t, RANKS_moved, row->looks_moved);
    table_set_number(t, RANKS_watched_ms, clock_ms() - ranks->begun_ms);
    table_set_number(t, RANKS_lately, row->lately.n);
    table_set_number(t, RANKS_lately_ms, row->lately.since_ms);
    table_set_number(t, RANKS_lately_in_ms, row->lately.in_ms);
    table_set_number(t, RANKS_usual_ms, row->lately.usual_ms);
    if (seat->unready)
        table_set_number(t, RANKS_unready_ms, seat->unready_ms);
    if (row->records.looked)
        table_set_number(t, RANKS_gave, records_bytes(&row->records));
    if (row->fate != RANK_HERE)
        return;
    table_set_number(t, RANKS_starved_pct, starved_pct(row));
    system_cells(t, ranks, row);
}

static void row_cells(struct table *t, const struct daemon *d, struct ranks *ranks,
                      const struct rank_row *row, bool ended)
{
    const struct board_seat *seat = &row->seat;
    char how[ENDED_TEXT] = "";

    table_set_number(t, RANKS_rank, row->rank);
    table_set_text(t, RANKS_node, d->conf->node);
    table_set_number(t, RANKS_pid, row->pid);
    table_set_text(t, RANKS_command, row->command);
    process_cells(t, ranks, row, ended);
    table_set_number(t, RANKS_ops, seat->ops);
    table_set_number(t, RANKS_started, seat->started);
    operation_cell(t, RANKS_operation, &seat->now);
    operation_cell(t, RANKS_last, &seat->last);
    if (seat->asleep)
        table_set_number(t, RANKS_asleep_ms, seat->asleep_ms);
    message_cells(t, seat);
    if (row->joining_ms)
        table_set_number(t, RANKS_joining_ms,
                         (row->joined_ms ? row->joined_ms : clock_ms()) - row->joining_ms);
    gpu_cells(t, d, row, ended);
    if (row->gone_ms) {
        ended_text(d->ended, row->pid, row->gone_ms, how);
        table_set_text(t, RANKS_exit, how);
    }
    if (!ended)
        watched_cells(t, ranks, row);
}

bool ranks_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us)
{
    if (!ranks->group_at && !ranks->row_at)
        ranks->groups_of = (struct process_groups){0}; /* another look begins */
    look_at_engine(ranks);
    for (; ranks->group_at < ranks->ngroups; ranks->group_at++, ranks->row_at = 0) {
        struct rank_group *group = &ranks->groups[ranks->group_at];

        if (!ranks->row_at)
            ranks_look_gone(group, &ranks->rows[group->first_row], d);
        if (!group->nrows) { /* a joining group without ranks here */
            table_row(table);
            group_cells(table, group);
        }
        for (; ranks->row_at < group->nrows; ranks->row_at++) {
            struct rank_row *row = &ranks->rows[group->first_row + ranks->row_at];

            if (clock_us() >= until_us)
                return false;
            ranks_look_closely(group, row, d);
            table_row(table);
            group_cells(table, group);
            row_cells(table, d, ranks, row, group->ended_ms != 0);
        }
        if (clock_us() >= until_us && ranks->group_at + 1 < ranks->ngroups) {
            ranks->group_at++;
            ranks->row_at = 0;
            return false;
        }
    }
    return true;
}
