/* rank_table.c - what was seen of ranks, as the table "ranks". A row of shm/proto/ranks_table.h
 * makes each column; it is filled by its name, and stays empty where nothing is known. */
#include "daemon/admin/rank_view.h"

#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/proto/codec.h"
#include "shm/proto/ranks_table.h"
#include "shm/util/wait.h"

#include <inttypes.h>

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

static unsigned starved_pct(const struct rank_row *row)
{
    uint64_t waited = process_cpu_waited(row->pid), ns = now_ns() - row->cpu_since_ns;

    if (!row->cpu_since_ns || waited <= row->cpu_waited_ns || !ns)
        return 0;
    return (unsigned)(MIN(waited - row->cpu_waited_ns, ns) * 100 / ns);
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
    if (group->size)
        table_set_number(t, RANKS_size, group->size);
    table_set_number(t, RANKS_nodes, group->nnodes);
    table_set_text(t, RANKS_state, group_state(group));
    table_set_text(t, broken ? RANKS_cause_text : RANKS_missing, group->text);
    if (broken)
        table_set_text(t, RANKS_cause, cause_name(group->cause));
    if (broken && group->cause_rank >= 0)
        table_set_number(t, RANKS_cause_rank, (uint64_t)group->cause_rank);
    if (group->epoch)
        table_set_number(t, RANKS_epoch, group->epoch);
    if (group->next_epoch)
        table_set_number(t, RANKS_next_epoch, group->next_epoch);
    table_set_text(t, RANKS_recovery, rank_recovery_word(group->recovery));
    table_set_text(t, RANKS_free_seats, group->seats);
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

    if (row->rank != MSG_ANY_SEAT)
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
        ended_text(d->ended, row->pid, row->gone_ms, row->fate == RANK_DIED, how);
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
