/* seats.c - reads the table "ranks" into seats, numbers their groups, and finds where each process
 * sleeps. */
#include "client/ctl/seats.h"

#include "client/ctl/cells.h"

#include "shm/util/ranks.h"

static void read_row(const struct msg_table *t, uint32_t row, struct seat *s, const char **missing)
{
    const char *rank = cells_by_key(t, row, "rank", missing),
               *peer = cells_by_key(t, row, "message_peer", missing);
    const char *asleep = cells_by_key(t, row, "asleep_ms", missing);
    const char *tag = cells_by_key(t, row, "message_tag", missing);
    const char *unasked = cells_by_key(t, row, "unasked_from", missing);
    const char *watched = cells_by_key(t, row, "watched_ms", missing);
    const char *cause = cells_by_key(t, row, "cause_rank", missing);
    const char *gone = cells_by_key(t, row, "gone_rank", missing);
    const char *joining = cells_by_key(t, row, "joining_ms", missing);
    const char *unready = cells_by_key(t, row, "unready_ms", missing);

    *s = (struct seat){
        .group = cells_by_key(t, row, "group", missing),
        .name = cells_by_key(t, row, "name", missing),
        .state = cells_by_key(t, row, "state", missing),
        .cause = cells_by_key(t, row, "cause", missing),
        .cause_text = cells_by_key(t, row, "cause_text", missing),
        .missing = cells_by_key(t, row, "missing", missing),
        .gone = cells_by_key(t, row, "gone", missing),
        .gone_node = cells_by_key(t, row, "gone_node", missing),
        .gone_pid = cells_number(cells_by_key(t, row, "gone_pid", missing)),
        .gone_ops = (uint32_t)cells_number(cells_by_key(t, row, "gone_ops", missing)),
        .gone_rank = *gone ? (int64_t)cells_number(gone) : -1,
        .node = cells_by_key(t, row, "node", missing),
        .process = cells_by_key(t, row, "process", missing),
        .kernel = cells_by_key(t, row, "kernel", missing),
        .operation = cells_by_key(t, row, "operation", missing),
        .last = cells_by_key(t, row, "last", missing),
        .message = cells_by_key(t, row, "message", missing),
        .command = cells_by_key(t, row, "command", missing),
        .exit = cells_by_key(t, row, "exit", missing),
        .job = cells_by_key(t, row, "job", missing),
        .engine = cells_by_key(t, row, "engine", missing),
        .throttled_pct = cells_number(cells_by_key(t, row, "throttled_pct", missing)),
        .engine_throttled_pct = cells_number(cells_by_key(t, row, "engine_throttled_pct", missing)),
        .uid = cells_number(cells_by_key(t, row, "uid", missing)),
        .size = cells_number(cells_by_key(t, row, "size", missing)),
        .nodes = cells_number(cells_by_key(t, row, "nodes", missing)),
        .ended_s = cells_number(cells_by_key(t, row, "ended_s", missing)),
        .pid = cells_number(cells_by_key(t, row, "pid", missing)),
        .asleep_ms = cells_number(asleep),
        .message_ms = cells_number(cells_by_key(t, row, "message_ms", missing)),
        .messages_done = cells_number(cells_by_key(t, row, "messages_done", missing)),
        .done = cells_number(cells_by_key(t, row, "done", missing)),
        .lately = cells_number(cells_by_key(t, row, "lately", missing)),
        .lately_ms = cells_number(cells_by_key(t, row, "lately_ms", missing)),
        .lately_in_ms = cells_number(cells_by_key(t, row, "lately_in_ms", missing)),
        .starved_pct = cells_number(cells_by_key(t, row, "starved_pct", missing)),
        .joining = *joining != 0,
        .joining_ms = cells_number(joining),
        .moved = cells_number(cells_by_key(t, row, "moved", missing)),
        .usual_ms = cells_number(cells_by_key(t, row, "usual_ms", missing)),
        .busy_pct = cells_number(cells_by_key(t, row, "busy_pct", missing)),
        .ops = (uint32_t)cells_number(cells_by_key(t, row, "ops", missing)),
        .started = (uint32_t)cells_number(cells_by_key(t, row, "started", missing)),
        .rank = *rank ? (int64_t)cells_number(rank) : -1,
        .cause_rank = *cause ? (int64_t)cells_number(cause) : -1,
        .message_peer = *peer ? (int64_t)cells_number(peer) : -1,
        .message_tag = *tag ? (int64_t)cells_number(tag) : -1,
        .unasked_from = *unasked ? (int64_t)cells_number(unasked) : -1,
        .unasked_tag = cells_number(cells_by_key(t, row, "unasked_tag", missing)),
        .gpu_operation = cells_by_key(t, row, "gpu_operation", missing),
        .gpu_last = cells_by_key(t, row, "gpu_last", missing),
        .gpu_error = cells_by_key(t, row, "gpu_error", missing),
        .gpu_begun = (uint32_t)cells_number(cells_by_key(t, row, "gpu_begun", missing)),
        .gpu_ended = (uint32_t)cells_number(cells_by_key(t, row, "gpu_ended", missing)),
        .gpu_done = cells_number(cells_by_key(t, row, "gpu_done", missing)),
        .gpu_ms = cells_number(cells_by_key(t, row, "gpu_ms", missing)),
        .gpu_silent_ms = cells_number(cells_by_key(t, row, "gpu_silent_ms", missing)),
        .gpu_ready = is(cells_by_key(t, row, "gpu_ready", missing), "true"),
        .unready_ms = cells_number(unready),
        .unready = *unready != 0,
        .ended = is(cells_by_key(t, row, "state", missing), "ended"),
        .asleep = *asleep != 0,
        .watched = *watched != 0,
    };
}

/* A group that is joining has no id yet: its name is its user's. One of that name may have failed
 * before. */
static int compare_groups(const struct seat *x, const struct seat *y)
{
    int order = strcmp(x->group, y->group);

    if (!order)
        order = strcmp(x->name, y->name);
    if (!order && !*x->group)
        order = strcmp(x->state, y->state);
    return order ? order : (x->uid > y->uid) - (x->uid < y->uid);
}

static int by_group(const void *a, const void *b)
{
    const struct seat *const *x = a, *const *y = b;
    int order = compare_groups(*x, *y);

    return order ? order : (*x > *y) - (*x < *y);
}

static int by_rank(const void *a, const void *b)
{
    const struct seat *const *x = a, *const *y = b;

    if ((*x)->number != (*y)->number)
        return (*x)->number < (*y)->number ? -1 : 1;
    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

static int by_process(const void *a, const void *b)
{
    const struct seat *const *x = a, *const *y = b;

    if ((*x)->pid != (*y)->pid)
        return (*x)->pid < (*y)->pid ? -1 : 1;
    if (!(*x)->pid && (*x)->number != (*y)->number)
        return (*x)->number < (*y)->number ? -1 : 1;
    if (!(*x)->pid && (*x)->rank != (*y)->rank)
        return (*x)->rank < (*y)->rank ? -1 : 1;
    return strcmp((*x)->node, (*y)->node);
}

/* Numbers the groups, and finds where each process sleeps. */
static void connect_seats(struct seats *seats)
{
    struct seat **order = seats->by_rank;

    for (unsigned i = 0; i < seats->n; i++)
        order[i] = &seats->at[i];
    qsort(order, seats->n, sizeof(*order), by_group);
    for (unsigned i = 0; i < seats->n; i++) {
        bool same = i && !compare_groups(order[i], order[i - 1]);

        order[i]->number = same ? order[i - 1]->number : (unsigned)(order[i] - seats->at);
    }
    qsort(order, seats->n, sizeof(*order), by_process);
    for (unsigned i = 0, end; i < seats->n; i = end) {
        const struct seat *longest = NULL, *gpu = NULL, *world = NULL, *now = NULL;

        for (end = i; end < seats->n && same_process(order[i], order[end]); end++) {
            if (host_ms(order[end]) && (!longest || host_ms(order[end]) > host_ms(longest)))
                longest = order[end];
            if (stuck_on_gpu(order[end]) && (!gpu || order[end]->gpu_ms > gpu->gpu_ms))
                gpu = order[end];
            if (order[end]->rank >= 0 && (!world || order[end]->size > world->size))
                world = order[end];
            if (order[end]->rank >= 0 && !order[end]->ended &&
                (!now || order[end]->size > now->size))
                now = order[end];
        }
        for (unsigned k = i; k < end; k++) {
            order[k]->sleeps_in = longest;
            order[k]->gpu_in = gpu;
            order[k]->world = order[k]->ended ? world : now;
            if (order[k]->world && order[k]->world->size <= order[k]->size)
                order[k]->world = NULL;
        }
    }
    qsort(order, seats->n, sizeof(*order), by_rank);
    for (unsigned i = 0; i < seats->n; i++)
        order[i]->group_at = i && same_group(order[i], order[i - 1]) ? order[i - 1]->group_at : i;
}

void seats_free(struct seats *seats)
{
    if (seats->before)
        seats_free(seats->before);
    free(seats->before);
    free(seats->at);
    free(seats->by_rank);
}

/* Who died in a wait has left its words: they say what all of them did until then. */
static void revive(struct seat *s)
{
    if (*s->group && !is(s->state, "joining"))
        s->state = "open";
    if (is_dead(s) || is(s->process, "left"))
        s->process = "";
    s->done = s->gpu_done = 0;
}

static int look_before(struct seats *seats)
{
    struct seats *before;
    bool wanted = false;

    for (unsigned i = 0; i < seats->n; i++)
        wanted = wanted || died_waiting(&seats->at[i]);
    if (!wanted)
        return 0;
    before = calloc(1, sizeof(*before));
    if (!before)
        return -ENOMEM;
    seats->before = before;
    before->n = seats->n;
    before->at = calloc(seats->n, sizeof(*before->at));
    before->by_rank = calloc(seats->n, sizeof(*before->by_rank));
    if (!before->at || !before->by_rank)
        return -ENOMEM;
    memcpy(before->at, seats->at, seats->n * sizeof(*before->at));
    for (unsigned i = 0; i < seats->n; i++)
        revive(&before->at[i]);
    connect_seats(before);
    return 0;
}

int seats_read(const struct msg_table *t, struct seats *ret_seats, const char **ret_key)
{
    const char *missing = NULL;
    struct seats seats = {.at = calloc(t->nrows + 1, sizeof(*seats.at)),
                          .by_rank = calloc(t->nrows + 1, sizeof(*seats.by_rank)),
                          .n = t->nrows};

    if (!seats.at || !seats.by_rank) {
        seats_free(&seats);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < t->nrows && !missing; i++)
        read_row(t, i, &seats.at[i], &missing);
    if (missing) {
        *ret_key = missing;
        seats_free(&seats);
        return -EPROTO;
    }
    connect_seats(&seats);
    if (look_before(&seats)) {
        seats_free(&seats);
        return -ENOMEM;
    }
    *ret_seats = seats;
    return 0;
}

unsigned list_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char *buf, size_t len)
{
    struct rank_list list;
    int64_t last = -1;

    rank_list_init(&list, buf, len);
    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank <= last || !match(s, of))
            continue;
        rank_list_add(&list, (unsigned)s->rank);
        last = s->rank;
    }
    rank_list_end(&list);
    return list.n;
}

static int by_world_rank(const void *a, const void *b)
{
    const unsigned *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

unsigned list_world(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char *buf, size_t len)
{
    enum { MOST = 256 };
    unsigned numbers[MOST], n = 0;
    struct rank_list list;
    bool same = true;

    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank < 0 || !match(s, of))
            continue;
        if (!s->world || n == MOST)
            return 0;
        same = same && s->world->rank == s->rank;
        numbers[n++] = (unsigned)s->world->rank;
    }
    if (same)
        return 0;
    qsort(numbers, n, sizeof(*numbers), by_world_rank);
    rank_list_init(&list, buf, len);
    for (unsigned i = 0; i < n; i++)
        if (!i || numbers[i] != numbers[i - 1])
            rank_list_add(&list, numbers[i]);
    rank_list_end(&list);
    return n;
}
