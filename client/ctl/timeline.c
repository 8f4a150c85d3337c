/* timeline.c - the operations of all ranks on one clock.
 *
 * Each node has written its own CLOCK_MONOTONIC. Clocks of nodes differ by milliseconds even where
 * something keeps them together, and an operation takes microseconds. But operations tell by
 * themselves how the clocks lie: nobody leaves a barrier, an all_reduce, an all_gather, a
 * reduce_scatter or an all_to_all before everybody has begun it. So of each of them, on nodes a and
 * b, whose times differ by `offset`:
 *
 *   begun_b + offset <= ended_a     and     begun_a <= ended_b + offset
 *
 * So each operation gives a bound below and a bound above. If one side is always late, the bounds
 * lie as far apart as it is late. The estimate lies between them: all ranks leave such an operation
 * at about the same time, when the last rank has come and the data have arrived. So the estimate is
 * the median of ended_a - ended_b. Its uncertainty is half of the spread of the middle half of the
 * operations, and the shortest time that an operation took, which was spent on the wire; it is
 * never more than the bounds allow. If there is no such operation, or if the bounds contradict each
 * other because a rank wrote nonsense, the nodes' times of day are believed.
 *
 * An operation is compared between ranks if all of the group have recorded it. */
#include "client/ctl/timeline.h"

#include "client/ctl/cells.h"
#include "client/ctl/words.h"

#include <stdio.h>

#define TIME_MAX (INT64_MAX / 4) /* what is larger is nonsense, and sums must not wrap */

/* ---- reading ------------------------------------------------------------------------------ */

static int64_t time_of(const char *text)
{
    return (int64_t)MIN(cells_number(text), (uint64_t)TIME_MAX);
}

static uint64_t asleep_ms(const struct msg_table *t, uint32_t row)
{
    const char *operation = cells_at(t, row, cells_column(t, "asleep_ms")),
               *message = cells_at(t, row, cells_column(t, "message_ms"));

    return (uint64_t)MAX(time_of(operation), time_of(message));
}

static void read_rank(const struct msg_table *t, uint32_t row, struct timeline_rank *rank,
                      const char **missing)
{
    const char *number_text = cells_by_key(t, row, "rank", missing);

    *rank = (struct timeline_rank){
        .group = cells_by_key(t, row, "group", missing),
        .name = cells_by_key(t, row, "name", missing),
        .node = cells_by_key(t, row, "node", missing),
        .command = cells_by_key(t, row, "command", missing),
        .size = (uint64_t)time_of(cells_by_key(t, row, "size", missing)),
        .done = (uint64_t)time_of(cells_by_key(t, row, "done", missing)),
        .busy_pct = (uint64_t)time_of(cells_by_key(t, row, "busy_pct", missing)),
        .watched_ms = (uint64_t)time_of(cells_by_key(t, row, "watched_ms", missing)),
        .gave = (uint64_t)time_of(cells_by_key(t, row, "gave", missing)),
        .asleep_ms = asleep_ms(t, row),
        .rank = *number_text ? time_of(number_text) : -1,
        .pid = time_of(cells_by_key(t, row, "pid", missing)),
        .ended = read_word(GROUP_WORDS, cells_by_key(t, row, "state", missing)) == GROUP_ENDED,
        .uncertainty = -1,
    };
}

static int by_group_and_rank(const void *a, const void *b)
{
    const struct timeline_rank *x = a, *y = b;
    int group = strcmp(x->group, y->group);

    return group ? group : (x->rank > y->rank) - (x->rank < y->rank);
}

static int read_ranks(const struct msg_table *t, struct timeline *tl, const char **missing)
{
    tl->ranks = calloc(t->nrows + 1, sizeof(*tl->ranks));
    if (!tl->ranks)
        return -ENOMEM;
    for (uint32_t row = 0; row < t->nrows && !*missing; row++) {
        read_rank(t, row, &tl->ranks[tl->nranks], missing);
        tl->nranks += tl->ranks[tl->nranks].rank >= 0 && *tl->ranks[tl->nranks].group;
    }
    if (*missing)
        return -EPROTO;
    qsort(tl->ranks, tl->nranks, sizeof(tl->ranks[0]), by_group_and_rank);
    for (unsigned i = 0; i < tl->nranks; i++)
        tl->ranks[i].in_group = i && !strcmp(tl->ranks[i].group, tl->ranks[i - 1].group)
                                    ? tl->ranks[i - 1].in_group
                                    : i;
    return 0;
}

static struct timeline_rank *find_rank(const struct timeline *tl, const char *group, int64_t rank)
{
    struct timeline_rank key = {.group = group, .rank = rank};

    return bsearch(&key, tl->ranks, tl->nranks, sizeof(tl->ranks[0]), by_group_and_rank);
}

static int read_ops(const struct msg_table *t, struct timeline *tl, const char **missing)
{
    tl->ops = calloc(t->nrows + 1, sizeof(*tl->ops));
    if (!tl->ops)
        return -ENOMEM;
    for (uint32_t row = 0; row < t->nrows && !*missing; row++) {
        struct timeline_op *op = &tl->ops[tl->nops];
        struct timeline_rank *rank = find_rank(tl, cells_by_key(t, row, "group", missing),
                                               time_of(cells_by_key(t, row, "rank", missing)));
        uint32_t *from;

        *op = (struct timeline_op){
            .number = (uint32_t)time_of(cells_by_key(t, row, "number", missing)),
            .gpu = !strcmp(cells_by_key(t, row, "gpu", missing), "true"),
            .collective = cells_by_key(t, row, "collective", missing),
            .dtype = cells_by_key(t, row, "dtype", missing),
            .bytes = (uint64_t)time_of(cells_by_key(t, row, "bytes", missing)),
            .begun = time_of(cells_by_key(t, row, "begun_ns", missing)),
            .ended = time_of(cells_by_key(t, row, "ended_ns", missing)),
            .late = -1,
            .wait = -1,
        };
        if (!rank)
            continue;
        op->rank = (unsigned)(rank - tl->ranks);
        from = &tl->ranks[rank->in_group].sorts_from[op->gpu];
        if (!*from)
            *from = op->number;
        if (!rank->to_wall)
            rank->to_wall = time_of(cells_by_key(t, row, "clock_ns", missing));
        tl->nops++;
    }
    return *missing ? -EPROTO : 0;
}

/* ---- one clock ------------------------------------------------------------------------------ */

static unsigned group_of(const struct timeline *tl, const struct timeline_op *op)
{
    assert(op->rank < tl->nranks);
    return tl->ranks[op->rank].in_group;
}

static const struct timeline *sorting;

/* Numbers wrap, and a rank may have written any: recorder_sort(). */
static int by_number(const void *a, const void *b)
{
    const struct timeline_op *x = a, *y = b;
    unsigned gx = group_of(sorting, x), gy = group_of(sorting, y);
    uint32_t from = sorting->ranks[gx].sorts_from[x->gpu];

    if (gx != gy)
        return gx < gy ? -1 : 1;
    if (x->gpu != y->gpu)
        return x->gpu ? 1 : -1;
    if (x->number != y->number)
        return (int32_t)(x->number - from) < (int32_t)(y->number - from) ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The end of the operations that are one with that at @begin, on other ranks. */
static unsigned same_end(const struct timeline *tl, unsigned begin)
{
    unsigned end = begin + 1;

    assert(begin < tl->nops);
    while (end < tl->nops && tl->ops[end].number == tl->ops[begin].number &&
           tl->ops[end].gpu == tl->ops[begin].gpu &&
           group_of(tl, &tl->ops[end]) == group_of(tl, &tl->ops[begin]))
        end++;
    return end;
}

/* Does nobody leave it before everybody has begun it? With counts some give and take nothing. */
static bool ties_clocks(const struct timeline_op *op)
{
    static const char *const names[] = {"barrier", "all_reduce", "all_gather", "reduce_scatter",
                                        "all_to_all"};

    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(op->collective, names[i]))
            return i == 0 || op->bytes > 0;
    return false;
}

/* What is known of an offset. */
struct offset {
    int64_t low, high;
    int64_t *ends; /* owned: ended_a - ended_b of each operation */
    unsigned n;
    int64_t shortest; /* that an operation took on one of the ranks */
};

/* Both have recorded one operation; @a is on the reference's node. */
static void narrow(struct offset *o, const struct timeline_op *a, const struct timeline_op *b)
{
    if (a->ended)
        o->high = MIN(o->high, a->ended - b->begun);
    if (b->ended)
        o->low = MAX(o->low, a->begun - b->ended);
    if (!a->ended || !b->ended)
        return;
    o->ends[o->n++] = a->ended - b->ended;
    o->shortest = MIN(o->shortest, MIN(a->ended - a->begun, b->ended - b->begun));
}

/* Of those in [@begin, @end) the first on @node, or NULL. */
static const struct timeline_op *on_node(const struct timeline *tl, unsigned begin, unsigned end,
                                         const char *node)
{
    for (unsigned i = begin; i < end; i++)
        if (!strcmp(tl->ranks[tl->ops[i].rank].node, node))
            return &tl->ops[i];
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* How the clock of the node of rank @other lies to that of @ref's; false: nothing tells. */
static bool find_offset(const struct timeline *tl, unsigned ref, unsigned other,
                        int64_t *ret_offset, int64_t *ret_uncertainty)
{
    struct offset o = {-TIME_MAX, TIME_MAX, calloc(tl->nops + 1, sizeof(int64_t)), 0, TIME_MAX};
    int64_t middle, room;

    for (unsigned begin = 0, end; begin < tl->nops && o.ends; begin = end) {
        const struct timeline_op *a, *b;

        end = same_end(tl, begin);
        if (group_of(tl, &tl->ops[begin]) != tl->ranks[ref].in_group ||
            !ties_clocks(&tl->ops[begin]))
            continue;
        a = on_node(tl, begin, end, tl->ranks[ref].node);
        b = on_node(tl, begin, end, tl->ranks[other].node);
        if (a && b)
            narrow(&o, a, b);
    }
    if (!o.n || o.low > o.high) {
        free(o.ends);
        return false;
    }
    qsort(o.ends, o.n, sizeof(o.ends[0]), by_size);
    middle = MIN(MAX(o.ends[o.n / 2], o.low), o.high);
    room = MAX(o.high - middle, middle - o.low);
    *ret_offset = middle;
    *ret_uncertainty =
        MIN(room, (o.ends[o.n * 3 / 4] - o.ends[o.n / 4]) / 2 + MAX(o.shortest, (int64_t)0));
    free(o.ends);
    return true;
}

/* Rank @i of the group whose ranks begin at @begin; times are to be those of rank @ref. */
static void align_rank(struct timeline *tl, unsigned begin, unsigned ref, unsigned i)
{
    struct timeline_rank *rank = &tl->ranks[i];
    unsigned twin = begin;
    int64_t offset, uncertainty;

    assert(rank->to_wall && tl->ranks[ref].to_wall);
    while (!tl->ranks[twin].to_wall || strcmp(tl->ranks[twin].node, rank->node))
        twin++; /* to itself at last */
    if (twin != i) {
        rank->to_wall = tl->ranks[twin].to_wall;
        rank->uncertainty = tl->ranks[twin].uncertainty;
        return;
    }
    if (i == ref) {
        rank->uncertainty = 0;
        return;
    }
    if (!find_offset(tl, ref, i, &offset, &uncertainty))
        return; /* to_wall is its node's time of day */
    rank->to_wall = tl->ranks[ref].to_wall + offset;
    rank->uncertainty = uncertainty;
}

/* Only ranks with operations have a clock; nothing else of a rank needs one. */
static void align_group(struct timeline *tl, unsigned begin, unsigned end)
{
    unsigned ref = begin;

    while (ref < end && !tl->ranks[ref].to_wall)
        ref++;
    for (unsigned i = ref; i < end; i++)
        if (tl->ranks[i].to_wall)
            align_rank(tl, begin, ref, i);
}

static void align(struct timeline *tl)
{
    for (unsigned begin = 0, end; begin < tl->nranks; begin = end) {
        end = begin + 1;
        while (end < tl->nranks && tl->ranks[end].in_group == begin)
            end++;
        align_group(tl, begin, end);
    }
    for (unsigned i = 0; i < tl->nops; i++) {
        struct timeline_op *op = &tl->ops[i];

        op->begun += tl->ranks[op->rank].to_wall;
        if (op->ended)
            op->ended += tl->ranks[op->rank].to_wall;
    }
}

/* ---- who is late ---------------------------------------------------------------------------- */

static void compare_one(struct timeline *tl, unsigned begin, unsigned end)
{
    int64_t first = TIME_MAX * 2, last = 0;

    assert(begin < end && end <= tl->nops);
    if (end - begin != tl->ranks[tl->ops[begin].rank].size)
        return;
    for (unsigned i = begin; i < end; i++) {
        if (i > begin && tl->ops[i].rank == tl->ops[i - 1].rank)
            return; /* two with one number: nonsense */
        first = MIN(first, tl->ops[i].begun);
        last = MAX(last, tl->ops[i].begun);
    }
    for (unsigned i = begin; i < end; i++) {
        struct timeline_op *op = &tl->ops[i];
        struct timeline_rank *rank = &tl->ranks[op->rank];

        op->late = op->begun - first;
        op->wait = op->ended ? MIN(last - op->begun, MAX(op->ended - op->begun, (int64_t)0))
                             : last - op->begun;
        if (!op->ended)
            continue;
        rank->wait_ns += (op->wait - rank->wait_ns) / (int64_t)(rank->compared + 1);
        rank->compared++;
    }
}

/* The medians of how long compared operations of each rank took, or with @late of how late the rank
 * was. @room has a place for each operation. */
static void find_medians(struct timeline *tl, int64_t *room, bool late)
{
    unsigned at = 0;

    for (unsigned i = 0; i < tl->nranks; i++) {
        tl->ranks[i].times = room + at;
        at += tl->ranks[i].compared;
        tl->ranks[i].compared = 0;
    }
    for (unsigned i = 0; i < tl->nops; i++) {
        const struct timeline_op *op = &tl->ops[i];
        struct timeline_rank *rank = &tl->ranks[op->rank];

        if (op->ended && op->late >= 0)
            rank->times[rank->compared++] = late ? op->late : op->ended - op->begun;
    }
    for (struct timeline_rank *rank = tl->ranks; rank < tl->ranks + tl->nranks; rank++) {
        qsort(rank->times, rank->compared, sizeof(*room), by_size);
        if (rank->compared)
            *(late ? &rank->late_ns : &rank->took_ns) = rank->times[rank->compared / 2];
    }
}

/* Medians, because one operation in a hundred that waits for the scheduler makes the mean three
 * times as large as what nearly all take. The mean then contradicts how many there are in a second.
 */
static int take_medians(struct timeline *tl)
{
    _cleanup_(freep) int64_t *room = calloc(tl->nops + 1, sizeof(*room));

    if (!room)
        return -ENOMEM;
    find_medians(tl, room, false);
    find_medians(tl, room, true);
    return 0;
}

int timeline_make(const struct msg_tables *answer, struct timeline *ret_timeline,
                  const char **ret_key)
{
    const struct msg_table *ranks = table_named(answer, "ranks"),
                           *records = table_named(answer, "records");
    struct timeline tl = {0};
    int r;

    *ret_key = !ranks ? "ranks" : !records ? "records" : NULL;
    if (*ret_key)
        return -EPROTO;
    r = read_ranks(ranks, &tl, ret_key);
    if (!r)
        r = read_ops(records, &tl, ret_key);
    if (!r) {
        sorting = &tl;
        qsort(tl.ops, tl.nops, sizeof(tl.ops[0]), by_number);
        align(&tl);
        for (unsigned begin = 0, end; begin < tl.nops; begin = end) {
            end = same_end(&tl, begin);
            compare_one(&tl, begin, end);
        }
        r = take_medians(&tl);
    }
    if (r)
        timeline_free(&tl);
    else
        *ret_timeline = tl;
    return r;
}

void timeline_free(struct timeline *timeline)
{
    free(timeline->ranks);
    free(timeline->ops);
    *timeline = (struct timeline){0};
}

double timeline_waiting_pct(const struct timeline_rank *rank)
{
    double per_s = rank->watched_ms ? (double)rank->done * 1000 / (double)rank->watched_ms : 0;

    if (!rank->done && rank->asleep_ms && rank->watched_ms)
        return MIN((double)rank->asleep_ms * 100 / (double)rank->watched_ms, 100.0);
    return rank->compared ? MIN((double)rank->wait_ns * per_s / 1e7, 100.0) : -1;
}
