/* seats.c - reads the table "ranks" into seats, numbers their groups, and finds where each process
 * sleeps. */
#include "client/ctl/seats.h"

#include "client/ctl/cells.h"

#include "shm/util/ranks.h"

#define READ_TEXT(cell_)   (cell_)
#define READ_NUMBER(cell_) cells_number(cell_)
#define READ_COUNT(cell_)  (uint32_t) cells_number(cell_)
#define READ_INDEX(cell_)  (*(cell_) ? (int64_t)cells_number(cell_) : -1)
#define READ_FLAG(cell_)   is(cell_, "true")

/* Where each column stands in @t; the key of one that it has not, else NULL. */
static const char *find_columns(const struct msg_table *t, uint32_t at[RANKS_NCOLUMNS])
{
#define KEY(key_, kind_, title_) #key_,
    static const char *const keys[] = {RANKS_COLUMNS(KEY)};
#undef KEY

    for (unsigned i = 0; i < RANKS_NCOLUMNS; i++)
        if ((at[i] = cells_column(t, keys[i])) == t->ncolumns)
            return keys[i];
    return NULL;
}

static void read_row(const struct msg_table *t, const uint32_t at[RANKS_NCOLUMNS], uint32_t row,
                     struct seat *s)
{
#define READ(key_, kind_, title_) .key_ = READ_##kind_(cells_at(t, row, at[RANKS_##key_])),
    *s = (struct seat){RANKS_COLUMNS(READ)};
#undef READ
    s->joining = *cells_at(t, row, at[RANKS_joining_ms]) != 0;
    s->asleep = *cells_at(t, row, at[RANKS_asleep_ms]) != 0;
    s->watched = *cells_at(t, row, at[RANKS_watched_ms]) != 0;
    s->unready = *cells_at(t, row, at[RANKS_unready_ms]) != 0;
    s->group_state = read_word(GROUP_WORDS, s->state);
    s->ended = s->group_state == GROUP_ENDED;
    s->process_state = read_word(PROCESS_WORDS, s->process);
    s->end = read_process_end(s->exit);
    s->cause_code = read_cause(s->cause);
    s->gpu_end = read_word(GPU_END_WORDS, s->gpu_error);
    s->sends = is(s->message, "send");
    s->gone_left = is(s->gone, "left");
}

/* A group that is joining has no id yet: its name is its user's. One of that name may have failed
 * before, and new processes may wait for it. */
static int compare_groups(const struct seat *x, const struct seat *y)
{
    int order = strcmp(x->group, y->group);

    if (!order)
        order = strcmp(x->name, y->name);
    if (!order && !*x->group)
        order = strcmp(x->state, y->state);
    if (!order && !*x->group)
        order = strcmp(x->recovery, y->recovery);
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
    if ((*x)->rank != (*y)->rank)
        return (*x)->rank < (*y)->rank ? -1 : 1;
    return (*x > *y) - (*x < *y);
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

/* Room for @n seats, zeroed; -ENOMEM. seats_free() is due in either case. */
static int seats_init(struct seats *seats, unsigned n)
{
    *seats = (struct seats){.at = calloc(n + 1, sizeof(*seats->at)),
                            .by_rank = calloc(n + 1, sizeof(*seats->by_rank)),
                            .n = n};
    return seats->at && seats->by_rank ? 0 : -ENOMEM;
}

/* Who died in a wait has left its words: they say what all of them did until then. */
static void revive(struct seat *s)
{
    if (*s->group && s->group_state != GROUP_JOINING)
        s->group_state = GROUP_OPEN;
    if (is_dead(s) || seat_left(s)) {
        s->process_state = PROCESS_OTHER;
        s->process = "";
    }
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
    if (seats_init(before, seats->n))
        return -ENOMEM;
    memcpy(before->at, seats->at, seats->n * sizeof(*before->at));
    for (unsigned i = 0; i < seats->n; i++)
        revive(&before->at[i]);
    connect_seats(before);
    return 0;
}

int seats_read(const struct msg_table *t, struct seats *ret_seats, const char **ret_key)
{
    uint32_t at[RANKS_NCOLUMNS];
    const char *missing = find_columns(t, at);
    struct seats seats;
    int r = seats_init(&seats, t->nrows);

    if (!r && missing) {
        *ret_key = missing;
        r = -EPROTO;
    }
    for (uint32_t i = 0; i < t->nrows && !r; i++)
        read_row(t, at, i, &seats.at[i]);
    if (!r) {
        connect_seats(&seats);
        r = look_before(&seats);
    }
    if (r)
        seats_free(&seats);
    else
        *ret_seats = seats;
    return r;
}

unsigned list_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
                    char *buf, size_t len)
{
    struct rank_list list;
    int64_t last = -1;

    assert(same_group(seats->by_rank[of->group_at], of));
    rank_list_init(&list, buf, len);
    group_each(s, seats, of) {
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

    assert(same_group(seats->by_rank[of->group_at], of));
    group_each(s, seats, of) {
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
