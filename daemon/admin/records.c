/* records.c - see records.h. The recorder of a rank (shm/board/recorder.h) is a ring that the rank
 * overwrites. So commd looks at the ring again and again while somebody watches. If a rank does
 * more operations between two looks than the ring holds, the older ones are missed.
 *
 * Timing every operation makes the shortest ones a third slower. A rank that does many more
 * operations between two looks than the ring holds would time operations that nobody sees. So
 * such ranks time bursts: one burst fills the ring between two looks. commd asks for bursts in the
 * last looks only, for as many as fill the room. Before that, the ring has the ordinary samples.
 *
 * The groups are those that were there when watching began. If a group closes in between, what was
 * seen before is shown. The ranks write all of this, so it is shown and used for nothing else. */
#include "daemon/admin/records.h"

#include <stdio.h>
#include <time.h>

#include "daemon/admin/rank_view.h"
#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/util/wait.h"

enum {
    ALL_MAX = 16384, /* entries in one answer of all nodes */
    RANK_MIN = 4,    /* entries of a rank, at least and at most */
    RANK_MAX = 512,
    LOOK_RANKS = 256, /* at once: about a microsecond each */
    FIRST_MS = 2,     /* until rates are known; before that, ranks time all operations */
    /* Of so many in a time between two looks a whole burst was one. To time all of fewer, which are
     * less than 70,400 in a second, costs less than 1 %. */
    MANY_OPS = (RECORDER_BURST_GAP + 1) * RECORDER_RING,
};

static struct board_entry *watched_board(const struct rank_group *group, struct daemon *d)
{
    return group->id && !group->ended_ms ? boards_find(&d->boards, group->id) : NULL;
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Keeps the newest @most of the operations that were found. */
static void keep_found(struct rank_records *records, struct recorder_op *found, unsigned n,
                       unsigned most, uint32_t *newest)
{
    if (!n)
        return;
    recorder_sort(found, n);
    for (unsigned i = n - MIN(n, most); i < n; i++)
        records->ops[records->n++ % records->room] = found[i];
    *newest = found[n - 1].seq;
}

/* Takes operations by commd-gpu, into at most half of the room: the others need room, too. */
static void look_at_gpu(struct rank_records *records, const struct board_recorder *recorder,
                        bool last)
{
    struct recorder_op found[RECORDER_GPU_RING], op;
    unsigned n = 0;
    struct op_desc desc;
    int code;

    for (unsigned i = 0; i < RECORDER_GPU_RING; i++) {
        if (!recorder_gpu_read(recorder, i, &op, &desc, &code) || (!op.ended_ns && !last))
            continue;
        if (!records->newest_gpu || (int32_t)(op.seq - records->newest_gpu) > 0)
            found[n++] = op;
    }
    keep_found(records, found, n, MAX(records->room / 2, 1u), &records->newest_gpu);
}

/* A rank without an operation has no pages of a recorder yet, and a look would allocate them. */
static void look_at_recorder(struct rank_records *records, const struct board_ctl *ctl,
                             unsigned local, bool last)
{
    const struct board_recorder *recorder = board_recorder(ctl, local);
    struct recorder_op found[RECORDER_RING], op;
    struct recorder_totals totals = {0};
    bool any = records->newest != 0;
    unsigned n = 0;

    if (!board_rank_started(ctl, local) && !board_rank_gpu_begun(ctl, local))
        return;
    recorder_add(recorder, &totals);
    records->bytes = board_rank_gpu_bytes(ctl, local);
    for (unsigned c = 0; c < COLL_COUNT; c++)
        records->bytes += totals.of[c].bytes;
    if (!records->looked)
        records->first_bytes = records->bytes;
    records->looked = true;
    for (unsigned i = 0; i < RECORDER_RING; i++) {
        if (!recorder_read(recorder, i, &op) || (!op.ended_ns && !last))
            continue;
        if (!any || (int32_t)(op.seq - records->newest) > 0)
            found[n++] = op;
    }
    keep_found(records, found, n, n, &records->newest);
    if (board_rank_gpu_begun(ctl, local))
        look_at_gpu(records, recorder, last);
}

int records_take(struct rank_records *records, const struct board_ctl *ctl, unsigned local,
                 unsigned room)
{
    if (!board_recorder(ctl, local))
        return 0;
    if (board_rank_gpu_begun(ctl, local))
        room *= 2;
    *records = (struct rank_records){.ops = calloc(room, sizeof(*records->ops)), .room = room};
    if (!records->ops)
        return -ENOMEM;
    look_at_recorder(records, ctl, local, true);
    return 0;
}

void records_copy(struct rank_records *records, const struct rank_records *from)
{
    *records = *from;
    if (!from->ops)
        return;
    records->ops = malloc(from->room * sizeof(*from->ops));
    if (records->ops)
        memcpy(records->ops, from->ops, from->room * sizeof(*from->ops));
    else
        *records = (struct rank_records){0};
}

void records_free(struct rank_records *records)
{
    free(records->ops);
    *records = (struct rank_records){0};
}

uint64_t records_bytes(const struct rank_records *records)
{
    return records->bytes > records->first_bytes ? records->bytes - records->first_bytes : 0;
}

/* ---- while somebody watches ------------------------------------------------------------------ */

static void time_group(struct rank_group *group, struct board_entry *entry,
                       enum recorder_timing timing)
{
    if (group->timing == timing)
        return;
    if (group->timing != RECORDER_NONE && entry->watchers[group->timing])
        entry->watchers[group->timing]--;
    if (timing != RECORDER_NONE)
        entry->watchers[timing]++;
    group->timing = timing;
    board_record(entry->ctl, entry->watchers[RECORDER_ALL]      ? RECORDER_ALL
                             : entry->watchers[RECORDER_BURSTS] ? RECORDER_BURSTS
                                                                : RECORDER_NONE);
}

/* True while operations of a rank that does many are not taken: see the top. */
static bool is_too_early(const struct ranks *ranks, const struct rank_group *group,
                         uint64_t left_ms)
{
    unsigned looks = ranks->rows[group->first_row].records.room / RECORDER_RING + 1;
    unsigned turns = ranks->nrows / LOOK_RANKS + 1;

    return left_ms > (uint64_t)looks * turns * RECORDS_LOOK_MS;
}

/* Which timing a group needs, by what its first rank did in the last @us: its other ranks do the
 * same. The first such time is short, and the rank may be busy in it alone. */
static enum recorder_timing choose_timing(const struct ranks *ranks, struct rank_group *group,
                                          uint64_t us, uint64_t left_ms)
{
    uint32_t ops = ranks->rows[group->first_row].seat.ops, did = ops - group->looked_ops;

    group->looked_ops = ops;
    if ((uint64_t)did * RECORDS_LOOK_MS * 1000 <= MANY_OPS * us)
        return RECORDER_ALL;
    if (us < RECORDS_LOOK_MS * 1000 || !is_too_early(ranks, group, left_ms))
        return RECORDER_BURSTS;
    return RECORDER_NONE;
}

int records_begin(struct ranks *ranks, struct daemon *d, unsigned nnodes)
{
    unsigned room = ALL_MAX / MAX(nnodes, 1u) / MAX(ranks->nrows, 1u);

    for (unsigned i = 0; i < ranks->ngroups; i++) {
        struct rank_group *group = &ranks->groups[i];
        struct board_entry *entry = group->nrows ? watched_board(group, d) : NULL;

        if (!entry)
            continue;
        group->looked_ops = board_rank_ended(entry->ctl, ranks->rows[group->first_row].local);
        time_group(group, entry, RECORDER_ALL);
    }
    ranks->watched = ranks->ngroups;
    ranks->looked_us = clock_us();
    room = MAX(MIN(room, (unsigned)RANK_MAX), (unsigned)RANK_MIN);
    for (unsigned row = 0; row < ranks->nrows; row++) {
        struct rank_records *records = &ranks->rows[row].records;

        records->ops = calloc(room, sizeof(*records->ops));
        records->room = room;
        if (!records->ops)
            return -ENOMEM;
    }
    return 0;
}

void records_end(struct ranks *ranks, struct daemon *d)
{
    for (unsigned i = 0; i < ranks->watched; i++) {
        struct board_entry *entry = watched_board(&ranks->groups[i], d);

        if (entry)
            time_group(&ranks->groups[i], entry, RECORDER_NONE);
    }
    ranks->watched = 0;
}

uint64_t records_look(struct ranks *ranks, struct daemon *d, uint64_t left_ms)
{
    uint64_t now_us = clock_us(), us = now_us - ranks->looked_us;
    bool last = !left_ms, rates = us >= FIRST_MS * 1000 / 2;
    unsigned begin = last ? 0 : ranks->look_at, end = last ? UINT32_MAX : begin + LOOK_RANKS;

    ranks->look_at = end < ranks->nrows ? end : 0;
    for (unsigned i = 0; i < ranks->watched; i++) {
        struct rank_group *group = &ranks->groups[i];
        struct board_entry *entry = watched_board(group, d);

        if (entry && group->nrows && rates)
            time_group(group, entry, choose_timing(ranks, group, us, left_ms));
        for (unsigned row = group->first_row; entry && row < group->first_row + group->nrows;
             row++) {
            struct rank_row *rank = &ranks->rows[row];

            if (row >= begin && row < end && rank->records.ops &&
                board_recorder(entry->ctl, rank->local))
                look_at_recorder(&rank->records, entry->ctl, rank->local, last);
        }
    }
    if (rates)
        ranks->looked_us = now_us;
    return rates ? RECORDS_LOOK_MS : FIRST_MS;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* What is to be added to CLOCK_MONOTONIC for the time of day. */
static uint64_t clock_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec - now_ns();
}

/* clang-format off */
#define RECORDS_COLUMNS(C)                                                                         \
    C(group, "GROUP", id, group->id)                                                               \
    C(rank, "RANK", number, row->rank)                                                             \
    C(node, "NODE", text, d->conf->node)                                                           \
    C(number, "NUMBER", number, op->seq)                                                           \
    C(gpu, "GPU", bool, op->gpu)                                                                   \
    C(collective, "COLLECTIVE", text, coll_name(op->coll))                                         \
    C(dtype, "DTYPE", text, op->dtype < DTYPE_COUNT ? dtype_name(op->dtype) : "")                  \
    C(bytes, "BYTES", number, op->bytes)                                                           \
    C(begun_ns, "BEGUN [ns]", number, op->begun_ns)                                                \
    C(ended_ns, "ENDED [ns]", number_if, op->ended_ns, op->ended_ns)                               \
    C(clock_ns, "CLOCK [ns]", number, clock_ns())
/* clang-format on */

void records_table(struct table *table)
{
    table_begin(table, "records", RECORDS_COLUMNS);
}

static void row_ops(struct table *t, const struct daemon *d, const struct rank_group *group,
                    const struct rank_row *row)
{
    const struct rank_records *records = &row->records;
    unsigned n = MIN(records->n, records->room);

    for (unsigned i = 0; i < n; i++) {
        const struct recorder_op *op = &records->ops[(records->n - n + i) % records->room];

        TABLE_ADD(RECORDS_COLUMNS)
    }
}

bool records_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us)
{
    for (; ranks->group_at < ranks->ngroups; ranks->group_at++, ranks->row_at = 0) {
        const struct rank_group *group = &ranks->groups[ranks->group_at];

        for (; ranks->row_at < group->nrows; ranks->row_at++) {
            if (clock_us() >= until_us)
                return false;
            row_ops(table, d, group, &ranks->rows[group->first_row + ranks->row_at]);
        }
    }
    return true;
}
