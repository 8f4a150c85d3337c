/* rank_view.c - a look at the ranks of this node, in parts that each fit into a turn: find the
 * groups, look at their boards as often as is wanted, then write the table.
 *
 * A group may close in between: then its board is not found any more, and what was seen before
 * stands. Process states come from /proc, once, when the table is written. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/admin/rank_view.h"

#include "daemon/admin/process_view.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

enum { JOINERS_SHOWN = 256 }; /* of a node, for one group */

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

/* How the program was called that has, or had, this place. */
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

/* Of a group that nobody is in yet: its ranks that wait here. */
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

/* Until @until_us; true: done. */
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

/* Likewise. */
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

/* Of many operations those that took much longer than the others tell of as many steps of the job,
 * and no more: the square of the sum by the sum of squares. */
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
    row->gone_ms = board_gone_ms(entry->ctl, row->rank); /* who is gone sleeps no more */
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

/* ---- the table -------------------------------------------------------------------------- */

void ranks_table(struct table *table)
{
    static const struct table_column columns[] = {
        {"group", "GROUP", MSG_CELL_STRING},
        {"name", "NAME", MSG_CELL_STRING},
        {"uid", "UID", MSG_CELL_NUMBER},
        {"size", "SIZE", MSG_CELL_NUMBER},
        {"nodes", "NODES", MSG_CELL_NUMBER},
        {"state", "STATE", MSG_CELL_STRING},
        {"cause", "CAUSE", MSG_CELL_STRING},
        {"cause_rank", "CAUSE RANK", MSG_CELL_NUMBER},
        {"cause_text", "CAUSE TEXT", MSG_CELL_STRING},
        {"missing", "MISSING", MSG_CELL_STRING},
        {"ended_s", "ENDED [s]", MSG_CELL_NUMBER},
        {"gone", "GONE", MSG_CELL_STRING},
        {"gone_rank", "GONE RANK", MSG_CELL_NUMBER},
        {"gone_node", "GONE FROM", MSG_CELL_STRING},
        {"gone_pid", "GONE PID", MSG_CELL_NUMBER},
        {"gone_ops", "GONE AFTER", MSG_CELL_NUMBER},
        {"rank", "RANK", MSG_CELL_NUMBER},
        {"node", "NODE", MSG_CELL_STRING},
        {"pid", "PID", MSG_CELL_NUMBER},
        {"process", "PROCESS", MSG_CELL_STRING},
        {"kernel", "IN KERNEL", MSG_CELL_STRING},
        {"ops", "OPS", MSG_CELL_NUMBER},
        {"started", "STARTED", MSG_CELL_NUMBER},
        {"operation", "OPERATION", MSG_CELL_STRING},
        {"asleep_ms", "ASLEEP [ms]", MSG_CELL_NUMBER},
        {"last", "LAST OPERATION", MSG_CELL_STRING},
        {"message", "MESSAGE", MSG_CELL_STRING},
        {"message_peer", "PEER", MSG_CELL_NUMBER},
        {"message_tag", "TAG", MSG_CELL_NUMBER},
        {"message_ms", "FOR [ms]", MSG_CELL_NUMBER},
        {"unasked_from", "UNASKED FROM", MSG_CELL_NUMBER},
        {"unasked_tag", "UNASKED TAG", MSG_CELL_NUMBER},
        {"messages_done", "MESSAGES DONE", MSG_CELL_NUMBER},
        {"done", "DONE", MSG_CELL_NUMBER},
        {"moved", "MOVED", MSG_CELL_NUMBER},
        {"busy_pct", "IN OPERATIONS [%]", MSG_CELL_NUMBER},
        {"watched_ms", "WATCHED [ms]", MSG_CELL_NUMBER},
        {"starved_pct", "STARVED [%]", MSG_CELL_NUMBER},
        {"joining_ms", "JOINS FOR [ms]", MSG_CELL_NUMBER},
        {"lately", "LATELY", MSG_CELL_NUMBER},
        {"lately_ms", "LATELY [ms]", MSG_CELL_NUMBER},
        {"lately_in_ms", "LATELY IN [ms]", MSG_CELL_NUMBER},
        {"usual_ms", "USUAL [ms]", MSG_CELL_NUMBER},
        {"unready_ms", "UNREADY [ms]", MSG_CELL_NUMBER},
        {"gpu_begun", "GPU BEGUN", MSG_CELL_NUMBER},
        {"gpu_ended", "GPU ENDED", MSG_CELL_NUMBER},
        {"gpu_done", "GPU DONE", MSG_CELL_NUMBER},
        {"gpu_operation", "ON GPU", MSG_CELL_STRING},
        {"gpu_ready", "GPU READY", MSG_CELL_BOOL},
        {"gpu_ms", "GPU FOR [ms]", MSG_CELL_NUMBER},
        {"gpu_last", "LAST ON GPU", MSG_CELL_STRING},
        {"gpu_error", "GPU ERROR", MSG_CELL_STRING},
        {"gpu_silent_ms", "GPU SILENT [ms]", MSG_CELL_NUMBER},
        {"gave", "GAVE [bytes]", MSG_CELL_NUMBER},
        {"command", "COMMAND", MSG_CELL_STRING},
        {"exit", "EXIT", MSG_CELL_STRING},
        {"throttled_pct", "THROTTLED [%]", MSG_CELL_NUMBER},
        {"job", "JOB", MSG_CELL_STRING},
        {"engine", "ENGINE", MSG_CELL_STRING},
        {"engine_throttled_pct", "ENGINE THROTTLED [%]", MSG_CELL_NUMBER},
    };

    table_init(table, "ranks", columns, ARRAY_LEN(columns));
}

static void empty_cells(struct table *t, unsigned n)
{
    while (n--)
        table_text(t, "");
}

static const char *group_state(const struct rank_group *group)
{
    if (group->ended_ms)
        return "ended";
    if (group->elsewhere)
        return "starting";
    switch (group->state) {
    case CORE_GROUP_JOINING:
    case CORE_GROUP_COMMITTED:
        return "joining";
    case CORE_GROUP_OPEN:
        return "open";
    case CORE_GROUP_BROKEN:
        return "broken";
    }
    return "";
}

enum { GROUP_CELLS = 16 }; /* of the columns, those that group_cells() fills */

static void group_cells(struct table *t, const struct rank_group *group)
{
    bool broken = group->cause != CAUSE_NONE;
    uint64_t now = clock_ms();

    if (group->id)
        table_format(t, "%016" PRIx64, group->id);
    else
        table_text(t, "");
    table_text(t, group->name);
    table_number(t, group->uid);
    table_number(t, group->size);
    table_number(t, group->nnodes);
    table_text(t, group_state(group));
    table_text(t, broken ? cause_name(group->cause) : "");
    table_number_if(t, broken && group->cause_rank >= 0, (uint64_t)group->cause_rank);
    table_text(t, broken ? group->text : "");
    table_text(t, broken ? "" : group->text);
    if (group->ended_ms)
        table_number(t, (now - group->ended_ms) / 1000);
    else
        table_text(t, "");
    if (group->gone.fate == RANK_HERE)
        return empty_cells(t, 5);
    table_text(t, group->gone.fate == RANK_LEFT ? "left" : "died");
    table_number(t, group->gone.rank);
    table_text(t, group->gone.node);
    table_number(t, group->gone.pid);
    table_number(t, group->gone.ops);
}

static void operation_cell(struct table *t, const struct op_desc *desc)
{
    char text[160] = "";

    if (desc->seq)
        op_text(desc, text, sizeof(text));
    table_text(t, text);
}

/* @ended: its pid may be another's by now. */
static void process_cells(struct table *t, struct ranks *ranks, const struct rank_row *row,
                          bool ended)
{
    char kernel[64] = "";

    switch (row->fate) {
    case RANK_HERE:
        if (ended)
            return empty_cells(t, 2);
        process_kernel(row->pid, kernel, sizeof(kernel));
        table_text(t, process_word(row->pid, &ranks->groups_of));
        break;
    case RANK_LEFT:
        table_text(t, "left");
        break;
    case RANK_DIED:
        table_text(t, "died");
        break;
    }
    table_text(t, kernel);
}

static void message_cells(struct table *t, const struct board_seat *seat)
{
    if (!seat->message)
        return empty_cells(t, 6);
    table_text(t, seat->message_send ? "send" : "recv");
    table_number_if(t, seat->message_peer >= 0, (uint64_t)seat->message_peer);
    table_number_if(t, seat->message_tag >= 0, (uint64_t)seat->message_tag);
    table_number(t, seat->message_ms);
    table_number_if(t, seat->unasked_from >= 0, (uint64_t)seat->unasked_from);
    table_number_if(t, seat->unasked_from >= 0 && seat->unasked_tag >= 0,
                    (uint64_t)seat->unasked_tag);
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
        return empty_cells(t, 9);
    core_gpu(d->core, &view);
    table_number(t, gpu->begun);
    table_number(t, gpu->ended);
    table_number_if(t, !ended, gpu->ended - row->first_gpu);
    operation_cell(t, &gpu->now);
    if (gpu->pending)
        table_bool(t, gpu->ready);
    else
        table_text(t, "");
    table_number_if(t, gpu->pending, gpu->ms);
    operation_cell(t, &gpu->last);
    table_text(t, gpu_error(gpu->code));
    table_number_if(t, !ended && view.unanswered_ms, clock_ms() - view.unanswered_ms);
}

/* The engine of this node, at the end of the look: a word if it cannot work. */
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

/* What keeps a rank, or its node's engine, from its cores, and whose job it is. */
static void system_cells(struct table *t, struct ranks *ranks, const struct rank_row *row,
                         bool gone)
{
    const struct process_groups *groups = &ranks->groups_of;

    if (gone)
        return empty_cells(t, 4);
    process_groups(row->pid, &ranks->groups_of);
    table_number(t, process_throttled_pct(&row->quota, &groups->quota));
    table_format(t, "%s%s%s%s", groups->job, *groups->job && *row->run ? ", " : "",
                 *row->run ? "torchrun run " : "", row->run);
    table_text(t, ranks->engine.word ? ranks->engine.word : "");
    table_number_if(t, ranks->engine.pid, ranks->engine.throttled_pct);
}

static void row_cells(struct table *t, const struct daemon *d, struct ranks *ranks,
                      const struct rank_row *row, uint64_t watched_ms, bool ended)
{
    const struct board_seat *seat = &row->seat;
    char how[ENDED_TEXT] = "";

    table_number(t, row->rank);
    table_text(t, d->conf->node);
    table_number(t, row->pid);
    process_cells(t, ranks, row, ended);
    table_number(t, seat->ops);
    table_number(t, seat->started);
    operation_cell(t, &seat->now);
    table_number_if(t, seat->asleep, seat->asleep_ms);
    operation_cell(t, &seat->last);
    message_cells(t, seat);
    table_number_if(t, !ended && row->looks, seat->messages - row->first_messages);
    table_number_if(t, !ended, seat->ops - row->first_ops);
    table_number_if(t, !ended, row->looks_moved);
    table_number_if(t, !ended && row->looks, row->looks ? 100ull * row->looks_in / row->looks : 0);
    table_number_if(t, !ended, watched_ms);
    table_number_if(t, !ended && row->fate == RANK_HERE, starved_pct(row));
    table_number_if(t, row->joining_ms != 0,
                    (row->joined_ms ? row->joined_ms : clock_ms()) - row->joining_ms);
    table_number_if(t, !ended, row->lately.n);
    table_number_if(t, !ended, row->lately.since_ms);
    table_number_if(t, !ended, row->lately.in_ms);
    table_number_if(t, !ended, row->lately.usual_ms);
    table_number_if(t, !ended && seat->unready, seat->unready_ms);
    gpu_cells(t, d, row, ended);
    table_number_if(t, !ended && row->records.looked, records_bytes(&row->records));
    table_text(t, row->command);
    if (row->gone_ms)
        ended_text(d->ended, row->pid, row->gone_ms, how);
    table_text(t, how);
    system_cells(t, ranks, row, ended || row->fate != RANK_HERE);
}

bool ranks_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us)
{
    uint64_t watched_ms = clock_ms() - ranks->begun_ms;

    if (!ranks->group_at && !ranks->row_at)
        ranks->groups_of = (struct process_groups){0}; /* another look begins */
    look_at_engine(ranks);
    for (; ranks->group_at < ranks->ngroups; ranks->group_at++, ranks->row_at = 0) {
        struct rank_group *group = &ranks->groups[ranks->group_at];

        if (!ranks->row_at)
            ranks_look_gone(group, &ranks->rows[group->first_row], d);
        if (!group->nrows) { /* nobody is in yet */
            group_cells(table, group);
            empty_cells(table, table->t.ncolumns - GROUP_CELLS);
        }
        for (; ranks->row_at < group->nrows; ranks->row_at++) {
            struct rank_row *row = &ranks->rows[group->first_row + ranks->row_at];

            if (clock_us() >= until_us)
                return false;
            ranks_look_closely(group, row, d);
            group_cells(table, group);
            row_cells(table, d, ranks, row, watched_ms, group->ended_ms != 0);
        }
        if (clock_us() >= until_us && ranks->group_at + 1 < ranks->ngroups) {
            ranks->group_at++;
            ranks->row_at = 0;
            return false;
        }
    }
    return true;
}
