/* diagnose.c - the verdict on a group, as a pure function of what its ranks were seen doing.
 *
 * The model is a chain. A rank that sleeps in an operation waits for one that has not begun it; a
 * rank that sleeps for a message waits for the other side. Each step asks what the one who is
 * waited for does instead: it is dead, or stopped: that is the culprit. It sleeps somewhere else,
 * perhaps in another group: follow it there. It comes back to who was met before: nobody can go on,
 * the order is inverted. It sleeps nowhere: it has not arrived, and its process is what to look at.
 *
 * A process that runs is not blocked, though an operation that it began without waiting may sleep:
 * what it does instead is asked, and not where that sleeps.
 *
 * An operation on GPUs by commd-gpu waits in its rank's stream, while the host goes on. It has been
 * announced, and its input is there, or not yet. So for one that waits so the chain asks: who has
 * not announced it? What keeps that host: a wait of the host, or, if it sleeps, of its GPU. Who
 * has, but whose stream has not come to it? What keeps that stream: another such operation, or what
 * the rank computes. Have all come, only commd-gpu can be at fault: but what it does may take
 * STALL_MS.
 *
 * Nobody who is only late is accused: who waits for less than STUCK_MS, or whose group completed
 * operations while it was watched, is not stuck. Counters of operations wrap: late() compares. */
#include "client/ctl/diagnose.h"

#include "client/ctl/cells.h"

#include <stdarg.h>
#include <stdio.h>

#include "shm/util/ranks.h"

enum {
    STUCK_MS = 500,
    STALL_MS = 5000,  /* a large operation between GPUs may well take a second */
    SILENT_MS = 1500, /* commd-gpu is asked once a second */
    SLOW_PCT = 30,    /* of the time: how much more the others have to wait than a slow rank */
    COMPUTE_PCT = 20, /* of the time in operations, at most: the job computes */
    SAID_MOST = 8,    /* links of a chain that are told */
    STEPS_MOST = 256, /* a longer one goes round in a circle that does not come back to its begin */
};

/* A row of the table; strings are the table's. */
struct seat {
    const char *group, *name, *state, *cause, *cause_text, *missing, *node, *process, *kernel,
        *operation, *last, *message, *command, *gpu_operation, *gpu_last, *gpu_error;
    uint64_t uid, size, nodes, ended_s, pid, asleep_ms, message_ms, done, busy_pct, unready_ms,
        gpu_done, gpu_ms, gpu_silent_ms;
    uint32_t ops, started, gpu_begun, gpu_ended;
    int64_t rank, cause_rank, message_peer, message_tag; /* -1: none, any */
    bool asleep, watched;
    bool unready;      /* the operation after `started` was called; its stream has not come to it */
    bool gpu_ready;    /* of the oldest by commd-gpu that is pending: its stream has come to it */
    unsigned number;   /* of its group: that of the group's first row */
    unsigned group_at; /* where its group begins in by_rank */
    const struct seat *sleeps_in; /* where its process sleeps longest; NULL: nowhere for long */
    const struct seat *gpu_in;    /* likewise, where its GPU waits */
};

struct seats {
    struct seat *at;       /* owned */
    struct seat **by_rank; /* owned: group by group, each in the order of its ranks */
    unsigned n;
};

/* ---- what a row says -------------------------------------------------------------------- */

static bool same_group(const struct seat *a, const struct seat *b)
{
    return a->number == b->number;
}

static bool is(const char *text, const char *word)
{
    return !strcmp(text, word);
}

static bool is_stopped(const struct seat *s)
{
    return is(s->process, "stopped") || is(s->process, "traced");
}

/* Not a "zombie": that may be a main thread that has ended before the others. */
static bool is_dead(const struct seat *s)
{
    return is(s->process, "died");
}

/* Where it is blocked; NULL: nowhere that can be seen. A host that sleeps most likely waits for its
 * GPU, if that waits. */
static const struct seat *blocked_in(const struct seat *s)
{
    if (is(s->process, "running"))
        return NULL;
    return s->sleeps_in ? s->sleeps_in : s->gpu_in;
}

static bool is_live(const struct seat *s)
{
    return is(s->state, "open") && s->rank >= 0;
}

/* Has @s not begun the operation that @waiter is in? */
static bool is_late(const struct seat *s, const struct seat *waiter)
{
    return (int32_t)(s->started - waiter->started) < 0;
}

static bool in_operation(const struct seat *s)
{
    return s->started != s->ops;
}

/* Who is stopped does not wait: what it slept in may have come long ago. */
static bool stuck_in_operation(const struct seat *s)
{
    return is_live(s) && !is_stopped(s) && in_operation(s) && s->asleep &&
           s->asleep_ms >= STUCK_MS && !s->done;
}

static bool stuck_in_message(const struct seat *s)
{
    return is_live(s) && !is_stopped(s) && *s->message && s->message_ms >= STUCK_MS;
}

static bool on_gpu(const struct seat *s)
{
    return (int32_t)(s->gpu_begun - s->gpu_ended) > 0;
}

/* Its stream waits there, whatever the host does. */
static bool stuck_on_gpu(const struct seat *s)
{
    return is_live(s) && !is_stopped(s) && on_gpu(s) && s->gpu_ready && s->gpu_ms >= STUCK_MS &&
           !s->gpu_done;
}

/* How long its host waits. */
static uint64_t host_ms(const struct seat *s)
{
    uint64_t ms = stuck_in_operation(s) ? s->asleep_ms : 0;

    return stuck_in_message(s) ? MAX(ms, s->message_ms) : ms;
}

static uint64_t stuck_ms(const struct seat *s)
{
    return stuck_on_gpu(s) ? MAX(host_ms(s), s->gpu_ms) : host_ms(s);
}

/* What @s waits in is an operation by commd-gpu: what the host waits in comes first. */
static bool waits_on_gpu(const struct seat *s)
{
    return !host_ms(s) && stuck_on_gpu(s);
}

/* Has @s not announced what @waiter's GPU waits in? */
static bool gpu_late(const struct seat *s, const struct seat *waiter)
{
    return (int32_t)(s->gpu_begun - (waiter->gpu_ended + 1)) < 0;
}

/* It has, but its stream has not come to it. */
static bool gpu_unready(const struct seat *s, const struct seat *waiter)
{
    return !gpu_late(s, waiter) && (int32_t)(s->gpu_ended - (waiter->gpu_ended + 1)) < 0 &&
           (s->gpu_ended != waiter->gpu_ended || !s->gpu_ready);
}

/* ---- reading the table ------------------------------------------------------------------ */

static void read_row(const struct msg_table *t, uint32_t row, struct seat *s, const char **missing)
{
    const char *rank = cells_by_key(t, row, "rank", missing),
               *peer = cells_by_key(t, row, "message_peer", missing);
    const char *asleep = cells_by_key(t, row, "asleep_ms", missing);
    const char *tag = cells_by_key(t, row, "message_tag", missing);
    const char *watched = cells_by_key(t, row, "watched_ms", missing);
    const char *cause = cells_by_key(t, row, "cause_rank", missing);
    const char *unready = cells_by_key(t, row, "unready_ms", missing);

    *s = (struct seat){
        .group = cells_by_key(t, row, "group", missing),
        .name = cells_by_key(t, row, "name", missing),
        .state = cells_by_key(t, row, "state", missing),
        .cause = cells_by_key(t, row, "cause", missing),
        .cause_text = cells_by_key(t, row, "cause_text", missing),
        .missing = cells_by_key(t, row, "missing", missing),
        .node = cells_by_key(t, row, "node", missing),
        .process = cells_by_key(t, row, "process", missing),
        .kernel = cells_by_key(t, row, "kernel", missing),
        .operation = cells_by_key(t, row, "operation", missing),
        .last = cells_by_key(t, row, "last", missing),
        .message = cells_by_key(t, row, "message", missing),
        .command = cells_by_key(t, row, "command", missing),
        .uid = cells_number(cells_by_key(t, row, "uid", missing)),
        .size = cells_number(cells_by_key(t, row, "size", missing)),
        .nodes = cells_number(cells_by_key(t, row, "nodes", missing)),
        .ended_s = cells_number(cells_by_key(t, row, "ended_s", missing)),
        .pid = cells_number(cells_by_key(t, row, "pid", missing)),
        .asleep_ms = cells_number(asleep),
        .message_ms = cells_number(cells_by_key(t, row, "message_ms", missing)),
        .done = cells_number(cells_by_key(t, row, "done", missing)),
        .busy_pct = cells_number(cells_by_key(t, row, "busy_pct", missing)),
        .ops = (uint32_t)cells_number(cells_by_key(t, row, "ops", missing)),
        .started = (uint32_t)cells_number(cells_by_key(t, row, "started", missing)),
        .rank = *rank ? (int64_t)cells_number(rank) : -1,
        .cause_rank = *cause ? (int64_t)cells_number(cause) : -1,
        .message_peer = *peer ? (int64_t)cells_number(peer) : -1,
        .message_tag = *tag ? (int64_t)cells_number(tag) : -1,
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
        .asleep = *asleep != 0,
        .watched = *watched != 0,
    };
}

static bool same_process(const struct seat *a, const struct seat *b)
{
    return a->pid == b->pid && !strcmp(a->node, b->node);
}

/* A group that is joining has no id yet: its name is its user's. */
static int compare_groups(const struct seat *x, const struct seat *y)
{
    int order = strcmp(x->group, y->group);

    if (!order)
        order = strcmp(x->name, y->name);
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
        const struct seat *longest = NULL, *gpu = NULL;

        for (end = i; end < seats->n && same_process(order[i], order[end]); end++) {
            if (host_ms(order[end]) && (!longest || host_ms(order[end]) > host_ms(longest)))
                longest = order[end];
            if (stuck_on_gpu(order[end]) && (!gpu || order[end]->gpu_ms > gpu->gpu_ms))
                gpu = order[end];
        }
        for (unsigned k = i; k < end; k++) {
            order[k]->sleeps_in = longest;
            order[k]->gpu_in = gpu;
        }
    }
    qsort(order, seats->n, sizeof(*order), by_rank);
    for (unsigned i = 0; i < seats->n; i++)
        order[i]->group_at = i && same_group(order[i], order[i - 1]) ? order[i - 1]->group_at : i;
}

static void seats_free(struct seats *seats)
{
    free(seats->at);
    free(seats->by_rank);
}

static int read_seats(const struct msg_table *t, struct seats *ret_seats, const char **ret_key)
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
    *ret_seats = seats;
    return 0;
}

/* ---- lines of text ---------------------------------------------------------------------- */

static void tell(char *text, const char *fmt, ...) _printf_(2, 3);
static void tell(char *text, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;

    if (used + 2 >= FINDING_TEXT)
        return;
    if (used)
        text[used++] = '\n';
    va_start(ap, fmt);
    vsnprintf(text + used, FINDING_TEXT - used, fmt, ap);
    va_end(ap);
}

/* The ranks of @of's group for which @match holds, "0-2,5". What it costs matters: a user may have
 * thousands of ranks, each in another operation, and each has such a list. */
typedef bool seat_match_fn(const struct seat *s, const struct seat *than);
static unsigned list_ranks(const struct seats *seats, const struct seat *of, seat_match_fn *match,
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

static bool waits_like(const struct seat *s, const struct seat *than)
{
    return in_operation(s) && s->started == than->started;
}

static bool gpu_waits_like(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ready && s->gpu_ended == than->gpu_ended;
}

static const char *plural(unsigned n)
{
    return n == 1 ? "" : "s";
}

/* "rank 3 (pid 12 on node b)" */
static const char *seat_name(const struct seat *s, char buf[128])
{
    snprintf(buf, 128, "rank %lld (pid %llu on node %s)", (long long)s->rank,
             (unsigned long long)s->pid, s->node);
    return buf;
}

static const char *or_unknown(const char *operation)
{
    return *operation ? operation : "an operation";
}

/* Who waits in what, since when. */
static void say_waiting(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    char list[200], name[128], peer[32] = "any rank";
    unsigned n;

    if (stuck_in_operation(waiter)) {
        n = list_ranks(seats, waiter, waits_like, list, sizeof(list));
        tell(f->evidence, "rank%s %s of group \"%s\" wait%s in operation %u (%s) for %.1f s",
             plural(n), list, waiter->name, n == 1 ? "s" : "", waiter->started,
             or_unknown(waiter->operation), (double)waiter->asleep_ms / 1000);
        return;
    }
    if (waits_on_gpu(waiter)) {
        n = list_ranks(seats, waiter, gpu_waits_like, list, sizeof(list));
        tell(f->evidence,
             "GPUs of rank%s %s of group \"%s\" wait in operation %u on GPUs (%s) for %.1f s",
             plural(n), list, waiter->name, waiter->gpu_ended + 1,
             or_unknown(waiter->gpu_operation), (double)waiter->gpu_ms / 1000);
        return;
    }
    if (waiter->message_peer >= 0)
        snprintf(peer, sizeof(peer), "rank %lld", (long long)waiter->message_peer);
    tell(f->evidence, "%s of group \"%s\" waits in %s %s %s, tag %lld, for %.1f s",
         seat_name(waiter, name), waiter->name, waiter->message,
         is(waiter->message, "send") ? "to" : "from", peer, (long long)waiter->message_tag,
         (double)waiter->message_ms / 1000);
}

static void blame(struct finding *f, const struct seat *s)
{
    f->rank = s->rank;
    f->pid = (int64_t)s->pid;
    f->node = s->node;
    f->command = s->command;
}

/* ---- the chain -------------------------------------------------------------------------- */

/* How good an explanation @s is for others having to wait. */
static unsigned weight(const struct seat *s)
{
    if (is_dead(s))
        return 4;
    if (is_stopped(s))
        return 3;
    return blocked_in(s) ? 2 : 1;
}

static bool heavier(const struct seat *s, const struct seat *best)
{
    return !best || weight(s) > weight(best) || (weight(s) == weight(best) && s->rank < best->rank);
}

/* The same of its GPU: who has not announced it, whatever else; or whose stream is behind. Who is
 * stopped, but has come, holds up nobody. */
static const struct seat *gpu_waited_for(const struct seats *seats, const struct seat *waiter)
{
    const struct seat *late = NULL, *unready = NULL;

    for (unsigned i = waiter->group_at; i < seats->n && same_group(seats->by_rank[i], waiter);
         i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank < 0 || s->rank == waiter->rank || is(s->process, "left"))
            continue;
        if (is_dead(s))
            return s;
        if (gpu_late(s, waiter) && heavier(s, late))
            late = s;
        if (gpu_unready(s, waiter) && !unready)
            unready = s;
    }
    return late ? late : unready;
}

/* For whom @waiter waits; NULL: for nobody that can be seen. */
static const struct seat *waited_for(const struct seats *seats, const struct seat *waiter)
{
    bool message = !stuck_in_operation(waiter);
    const struct seat *best = NULL;

    if (waits_on_gpu(waiter))
        return gpu_waited_for(seats, waiter);

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, waiter) || s->rank < 0 || s->rank == waiter->rank)
            continue;
        if (message ? s->rank != waiter->message_peer
                    : !is_late(s, waiter) && !is_stopped(s) && !is_dead(s))
            continue;
        if (heavier(s, best))
            best = s;
    }
    return best;
}

static void find_stopped(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_RANK_STOPPED;
    blame(f, s);
    if (is(s->process, "traced"))
        tell(f->evidence, "%s is stopped by a debugger or tracer", seat_name(s, name));
    else
        tell(f->evidence, "%s is stopped (SIGSTOP, SIGTSTP or job control)", seat_name(s, name));
    tell(f->remedy, "on node %s: kill -CONT %llu; or end it, and the others get an error", s->node,
         (unsigned long long)s->pid);
}

static void find_dead(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_RANK_DEAD;
    blame(f, s);
    tell(f->evidence, "%s has died; it had completed %u operations%s%s", seat_name(s, name), s->ops,
         *s->last ? ", the last one " : "", s->last);
    if (on_gpu(s))
        tell(f->evidence, "on GPUs it was in operation %u (%s)", s->gpu_ended + 1,
             or_unknown(s->gpu_operation));
    else if (s->gpu_begun)
        tell(f->evidence, "on GPUs it had completed %u, the last one %s", s->gpu_ended,
             or_unknown(s->gpu_last));
    tell(f->remedy, "look at its own output, and on node %s for the OOM killer: journalctl -k",
         s->node);
}

static void find_absent(struct finding *f, const struct seats *seats, const struct seat *waiter,
                        const struct seat *s)
{
    bool gpu = waits_on_gpu(waiter), operation = stuck_in_operation(waiter) || gpu;
    char name[128], list[200];
    unsigned n =
        operation ? list_ranks(seats, waiter, gpu ? gpu_late : is_late, list, sizeof(list)) : 1;

    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, s);
    if (n > 1)
        tell(f->evidence, "ranks %s have not begun it", list);
    tell(f->evidence, "%s %s; its process is %s%s%s%s", seat_name(s, name),
         operation                     ? "has not begun it"
         : is(waiter->message, "send") ? "has not received"
                                       : "has not sent",
         *s->process ? s->process : "in a state that the system does not tell",
         *s->kernel ? " (in the kernel: " : "", s->kernel, *s->kernel ? ")" : "");
    if (gpu && on_gpu(s))
        tell(f->evidence, "its GPU is in operation %u (%s)", s->gpu_ended + 1,
             or_unknown(s->gpu_operation));
    else if (gpu && *s->gpu_last)
        tell(f->evidence, "the last on GPUs that it completed is operation %u (%s)", s->gpu_ended,
             s->gpu_last);
    else if (*s->last)
        tell(f->evidence, "the last that it completed is operation %u (%s)", s->ops, s->last);
    else
        tell(f->evidence, "it has completed %u operations", s->ops);
    if (s->gpu_in && s->gpu_in != waiter)
        tell(f->evidence,
             "the GPU of its process waits in operation %u on GPUs (%s) of group \"%s\" for %.1f s",
             s->gpu_in->gpu_ended + 1, or_unknown(s->gpu_in->gpu_operation), s->gpu_in->name,
             (double)s->gpu_in->gpu_ms / 1000);
    tell(f->remedy, "see what it does instead: py-spy dump --pid %llu (or gdb -p %llu) on node %s",
         (unsigned long long)s->pid, (unsigned long long)s->pid, s->node);
}

/* @s has called it; its GPU has not come to it. */
static void find_behind(struct finding *f, const struct seat *waiter, const struct seat *s)
{
    bool gpu = waits_on_gpu(waiter);
    char name[128];

    f->verdict = VERDICT_GPU_BEHIND;
    blame(f, s);
    tell(f->evidence,
         "%s has called it; its stream has not come to it for %.1f s: the GPU still does what was "
         "enqueued before",
         seat_name(s, name),
         (double)(gpu ? s->gpu_ended == waiter->gpu_ended ? s->gpu_ms : 0 : s->unready_ms) / 1000);
    tell(
        f->remedy,
        "see what that GPU does: nvidia-smi on node %s; py-spy dump --pid %llu; a kernel that does "
        "not end, or a stream that waits for an event or a word that nobody writes",
        s->node, (unsigned long long)s->pid);
}

static void find_inversion(struct finding *f, const struct seat *s)
{
    char name[128];

    f->verdict = VERDICT_ORDER_INVERSION;
    blame(f, s);
    tell(f->evidence, "and so back to %s: each waits for another of them, and none can go on",
         seat_name(s, name));
    tell(f->remedy, "let all ranks call these operations in the same order, or send and receive "
                    "without waiting (isend, irecv)");
}

/* Nodes are not looked at in the same moment: has somebody begun the operation of @waiter only just
 * now, or ended it while it was watched? Then it is not stuck. */
static bool moves_on(const struct seats *seats, const struct seat *waiter)
{
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, waiter) || s->rank < 0 || s->rank == waiter->rank || is_late(s, waiter))
            continue;
        if (in_operation(s) && s->started == waiter->started) {
            if (!s->asleep || s->asleep_ms < STUCK_MS)
                return true;
        } else if (s->done) {
            return true;
        }
    }
    return false;
}

static void find_moving(struct finding *f)
{
    f->verdict = VERDICT_HEALTHY;
    tell(f->evidence, "all ranks have begun it now, the last of them while it was looked at");
}

/* Its host has called what @waiter is in: only its stream is behind. */
static bool is_behind(const struct seat *s, const struct seat *waiter)
{
    if (waits_on_gpu(waiter))
        return !gpu_late(s, waiter);
    return stuck_in_operation(waiter) && !is_stopped(s) && s->unready &&
           s->started + 1 == waiter->started;
}

/* Everybody has begun it. */
static void find_stall(struct finding *f, const struct seat *waiter)
{
    if (waiter->nodes > 1) {
        f->verdict = VERDICT_LINK_STALL;
        tell(f->evidence,
             "all ranks have begun it: what is missing has to come from another of "
             "the %llu nodes",
             (unsigned long long)waiter->nodes);
        tell(f->remedy, "look at the network between them: commctl nodes; ip -s link; ss -ti");
        return;
    }
    f->verdict = VERDICT_BROKEN;
    tell(f->evidence, "all ranks have begun it, and none gets on");
    tell(f->remedy, "this should not be: please report it, with commctl --json ranks");
}

/* Of the group, one whose node's commd-gpu does not answer; NULL: they do. */
static const struct seat *silent_node(const struct seats *seats, const struct seat *of)
{
    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && seats->at[i].gpu_silent_ms >= SILENT_MS)
            return &seats->at[i];
    return NULL;
}

/* All have announced it, and their streams have come to it. */
static void find_gpu_stall(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    const struct seat *silent = silent_node(seats, waiter);

    if (silent) {
        f->verdict = VERDICT_GPU_SERVICE_DEAD;
        f->node = silent->node;
        tell(f->evidence,
             "all ranks have come to it, and commd-gpu on node %s has not answered its "
             "commd for %.1f s",
             silent->node, (double)silent->gpu_silent_ms / 1000);
        tell(f->remedy, "commd ends it after gpu.timeout, and ranks get an error; is it stopped? "
                        "journalctl -u commd on that node");
        return;
    }
    if (waiter->gpu_ms < STALL_MS) {
        f->verdict = VERDICT_HEALTHY;
        tell(f->evidence, "all ranks have come to it: GPUs work on it");
        return;
    }
    f->verdict = VERDICT_GPU_STALL;
    tell(f->evidence,
         "all ranks have come to it, and commd-gpu has not ended it: a kernel or NCCL "
         "hangs%s",
         waiter->nodes > 1 ? ", or the network between the nodes" : "");
    tell(f->remedy, "commd-gpu gives up after gpu.timeout, and ranks get an error: commctl gpus; "
                    "journalctl -u commd, with NCCL_DEBUG=WARN in its environment");
}

/* From @waiter, who has waited for long, to who keeps everybody waiting. */
static void follow(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    const struct seat *begin = waiter;

    f->waiting_ms = stuck_ms(waiter);
    for (unsigned steps = 0;; steps++) {
        const struct seat *s = waited_for(seats, waiter);

        if (steps < SAID_MOST)
            say_waiting(f, seats, waiter);
        if (!s) {
            if (stuck_in_operation(waiter) && moves_on(seats, waiter))
                return find_moving(f);
            if (stuck_in_operation(waiter))
                return find_stall(f, waiter);
            if (waits_on_gpu(waiter))
                return find_gpu_stall(f, seats, waiter);
            f->verdict = VERDICT_NOT_ARRIVED;
            tell(f->evidence, "nobody has sent it");
            tell(f->remedy, "look for the rank that should send it, and its tag");
            return;
        }
        if (is_dead(s))
            return find_dead(f, s);
        if (is_behind(s, waiter)) {
            if (!s->gpu_in || same_group(s->gpu_in, waiter))
                return find_behind(f, waiter, s);
            waiter = s->gpu_in;
            if (same_process(waiter, begin) || steps == STEPS_MOST)
                return find_inversion(f, waiter);
            continue;
        }
        if (is_stopped(s))
            return find_stopped(f, s);
        if (!blocked_in(s) || blocked_in(s) == waiter)
            return find_absent(f, seats, waiter, s);
        waiter = blocked_in(s);
        if (same_process(waiter, begin) || steps == STEPS_MOST)
            return find_inversion(f, waiter);
    }
}

/* ---- groups ----------------------------------------------------------------------------- */

static bool find_unlike(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *first = NULL;
    char name[128], other[128];

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, of) || s->rank < 0 || !*s->last)
            continue;
        if (!first)
            first = s;
        if (s->ops != first->ops || is(s->last, first->last))
            continue;
        f->verdict = VERDICT_MISMATCH;
        blame(f, s);
        tell(f->evidence, "operation %u: %s called %s", s->ops, seat_name(first, name),
             first->last);
        tell(f->evidence, "but %s called %s", seat_name(s, other), s->last);
        tell(f->remedy, "both got an error that says the same; correct the program");
        return true;
    }
    return false;
}

/* Did the last operation by commd-gpu of one of them end badly? Then that is what they tell of,
 * whatever they did then. */
static bool find_gpu_failed(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *first = NULL;
    char name[128], other[128];

    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (s->rank < 0 || on_gpu(s))
            continue;
        if (is(s->gpu_error, "gpu lost")) {
            f->verdict = VERDICT_GPU_SERVICE_DEAD;
            f->node = s->node;
            tell(f->evidence, "operation %u on GPUs (%s) of %s ended because commd-gpu was lost",
                 s->gpu_ended, or_unknown(s->gpu_last), seat_name(s, name));
            tell(f->remedy,
                 "look why it ended: journalctl -u commd on node %s, commctl events; the "
                 "next operation on a GPU starts it again",
                 s->node);
            return true;
        }
        if (!is(s->gpu_error, "mismatch"))
            continue;
        if (!first)
            first = s;
        if (s->gpu_ended != first->gpu_ended || is(s->gpu_last, first->gpu_last))
            continue;
        f->verdict = VERDICT_MISMATCH;
        blame(f, s);
        tell(f->evidence, "operation %u on GPUs: %s called %s", s->gpu_ended,
             seat_name(first, name), first->gpu_last);
        tell(f->evidence, "but %s called %s", seat_name(s, other), s->gpu_last);
        tell(f->remedy, "both got an error that says the same; correct the program");
        return true;
    }
    return false;
}

/* Who gave up waiting in an operation is not to blame: those are who had not begun it. */
static bool find_awaited(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    const struct seat *late = NULL;
    char name[128], list[200];

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (same_group(s, waiter) && s->rank >= 0 && is_late(s, waiter) &&
            (!late || weight(s) > weight(late) ||
             (weight(s) == weight(late) && s->rank < late->rank)))
            late = s;
    }
    if (!late)
        return false;
    if (is_stopped(late)) {
        find_stopped(f, late);
        return true;
    }
    f->verdict = VERDICT_NOT_ARRIVED;
    blame(f, late);
    if (list_ranks(seats, waiter, is_late, list, sizeof(list)) > 1)
        tell(f->evidence, "ranks %s had not begun it", list);
    tell(f->evidence, "%s had not begun operation %u (%s)", seat_name(late, name), waiter->started,
         or_unknown(waiter->operation));
    if (*late->last)
        tell(f->evidence, "the last that it completed is operation %u (%s)", late->ops, late->last);
    tell(f->remedy,
         "look at that rank's own output, and what its process does: py-spy dump --pid "
         "%llu on node %s",
         (unsigned long long)late->pid, late->node);
    return true;
}

/* The group is broken, or was. */
static void find_cause(struct finding *f, const struct seats *seats, const struct seat *of)
{
    static const struct {
        const char *cause;
        enum verdict verdict;
        const char *remedy;
    } causes[] = {
        {"rank lost", VERDICT_RANK_DEAD, "look at that rank's own output"},
        {"node lost", VERDICT_NODE_DEAD, "look at that node: is it up, is its commd, is the link?"},
        {"engine lost", VERDICT_ENGINE_DEAD,
         "look at commd's log on that node: journalctl -u commd"},
        {"aborted", VERDICT_ABORTED, "look at the output of the rank that gave the group up"},
    };
    const struct seat *one = NULL;

    tell(f->evidence, "%s: %s", of->cause, of->cause_text);
    if (is(of->cause, "aborted") && strstr(of->cause_text, "with commctl kick on node")) {
        f->verdict = VERDICT_ABORTED; /* whatever its ranks did then */
        return tell(f->remedy, "it was ended on purpose: ask who did it; commctl events on that "
                               "node says when");
    }
    if (find_gpu_failed(f, seats, of))
        return;
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, of) || s->rank < 0)
            continue;
        if (is_dead(s))
            return find_dead(f, s);
        if (s->rank == of->cause_rank)
            one = s;
    }
    if ((is(of->cause, "aborted") || is(of->cause, "timeout")) && one && in_operation(one) &&
        find_awaited(f, seats, one))
        return;
    if (one)
        blame(f, one);
    f->verdict = VERDICT_BROKEN;
    for (unsigned i = 0; i < ARRAY_LEN(causes); i++)
        if (is(of->cause, causes[i].cause)) {
            f->verdict = causes[i].verdict;
            tell(f->remedy, "%s", causes[i].remedy);
            return;
        }
    tell(f->remedy, "look at the ranks' own output");
}

static void find_joining(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const char *missing = "";

    for (unsigned i = 0; i < seats->n; i++)
        if (same_group(&seats->at[i], of) && *seats->at[i].missing)
            missing = seats->at[i].missing;
    f->verdict = VERDICT_NOT_ARRIVED;
    if (*missing)
        tell(f->evidence, "rank %s of %llu has not joined the group", missing,
             (unsigned long long)of->size);
    else
        tell(f->evidence, "not all of its %llu ranks have joined the group",
             (unsigned long long)of->size);
    tell(f->remedy, "look at the output of the ranks that are missing: were they started, does "
                    "their node's commd run?");
}

/* Ranks that wait less than the others make the others wait. */
static void find_pace(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *least = NULL, *most = NULL;
    unsigned n = 0, slow = 0, computes = 0;
    uint64_t done = 0, gpu_done = 0;
    char name[128];

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, of) || !s->watched)
            continue;
        n++;
        done += s->done;
        gpu_done += s->gpu_done;
        computes += on_gpu(s) && !s->gpu_ready && s->gpu_ms >= STUCK_MS && !s->gpu_done;
        if (!least || s->busy_pct < least->busy_pct)
            least = s;
        if (!most || s->busy_pct > most->busy_pct)
            most = s;
    }
    f->verdict = VERDICT_HEALTHY;
    if (gpu_done)
        tell(f->evidence, "%llu operations on GPUs of its ranks in the last second",
             (unsigned long long)gpu_done);
    if (n && computes == n) {
        f->verdict = VERDICT_COMPUTE_BOUND;
        return tell(f->evidence, "all ranks have called an operation on GPUs, and none of their "
                                 "streams has come to it: the GPUs compute");
    }
    if (gpu_done && !done)
        return;
    if (!n || (!done && !most->busy_pct)) {
        tell(f->evidence, "no operation is under way");
        return;
    }
    for (unsigned i = 0; i < seats->n; i++)
        slow += same_group(&seats->at[i], of) && seats->at[i].watched &&
                seats->at[i].busy_pct < (least->busy_pct + most->busy_pct) / 2;
    if (most->busy_pct - least->busy_pct >= SLOW_PCT && 2 * slow <= n && done) {
        f->verdict = VERDICT_SLOW_RANK;
        blame(f, least);
        tell(f->evidence,
             "%s is in operations %llu %% of the time, others up to %llu %%: they wait for it",
             seat_name(least, name), (unsigned long long)least->busy_pct,
             (unsigned long long)most->busy_pct);
        if (slow > 1)
            tell(f->evidence, "%u of %u ranks are like it", slow, n);
        tell(f->remedy,
             "see what it does between operations: its share of the data, its cores, "
             "what else runs on node %s",
             least->node);
        return;
    }
    tell(f->evidence,
         "%llu operations of its ranks in the last second; in operations %llu to "
         "%llu %% of the time",
         (unsigned long long)done, (unsigned long long)least->busy_pct,
         (unsigned long long)most->busy_pct);
    if (done && most->busy_pct <= COMPUTE_PCT) {
        f->verdict = VERDICT_COMPUTE_BOUND;
        tell(f->evidence, "the rest of the time it computes: communication does not hold it up");
    }
}

static void find_verdict(struct finding *f, const struct seats *seats, const struct seat *of)
{
    const struct seat *waiter = NULL;

    if (is(of->state, "joining"))
        return find_joining(f, seats, of);
    if (*of->cause)
        return find_cause(f, seats, of);
    if (find_gpu_failed(f, seats, of))
        return;
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, of))
            continue;
        if (is_dead(s))
            return find_dead(f, s);
        if (stuck_ms(s) && (!waiter || stuck_ms(s) > stuck_ms(waiter)))
            waiter = s;
    }
    if (waiter)
        return follow(f, seats, waiter);
    if (find_unlike(f, seats, of))
        return;
    if (is(of->state, "ended")) {
        f->verdict = VERDICT_HEALTHY;
        return tell(f->evidence, "it ended");
    }
    find_pace(f, seats, of);
}

/* Of one group several nodes speak: who knows the cause speaks for it. */
static const struct seat *speaker(const struct seats *seats, const struct seat *of)
{
    const struct seat *best = of;

    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (same_group(s, of) && *s->cause && !*best->cause)
            best = s;
    }
    return best;
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        "RANK_DEAD",       "NODE_DEAD", "ENGINE_DEAD", "GPU_SERVICE_DEAD", "RANK_STOPPED",
        "ORDER_INVERSION", "MISMATCH",  "NOT_ARRIVED", "GPU_BEHIND",       "GPU_STALL",
        "LINK_STALL",      "ABORTED",   "BROKEN",      "SLOW_RANK",        "SLOW_LINK",
        "COMPUTE_BOUND",   "HEALTHY",
    };

    return names[verdict];
}

bool verdict_is_well(enum verdict verdict)
{
    return verdict == VERDICT_COMPUTE_BOUND || verdict == VERDICT_HEALTHY;
}

int diagnose(const struct msg_table *ranks, struct finding **ret_findings, unsigned *ret_n,
             const char **ret_key)
{
    struct finding *findings = NULL;
    struct seats seats;
    unsigned n = 0;
    int r = read_seats(ranks, &seats, ret_key);

    if (r)
        return r;
    for (unsigned i = 0; i < seats.n; i++) {
        const struct seat *of;
        struct finding *more;

        if (seats.at[i].number != i)
            continue; /* not the first of its group */
        of = speaker(&seats, &seats.at[i]);
        more = realloc(findings, (n + 1) * sizeof(*findings));
        if (!more) {
            free(findings);
            seats_free(&seats);
            return -ENOMEM;
        }
        findings = more;
        findings[n] = (struct finding){
            .group = of->group,
            .name = of->name,
            .state = of->state,
            .size = of->size,
            .nodes = of->nodes,
            .rank = -1,
            .pid = -1,
            .node = "",
            .command = "",
            .ended = is(of->state, "ended"),
            .ended_s = of->ended_s,
        };
        find_verdict(&findings[n++], &seats, of);
    }
    seats_free(&seats);
    *ret_findings = findings;
    *ret_n = n;
    return 0;
}

/* ---- what is pending -------------------------------------------------------------------- */

static bool is_pending(const struct seat *s)
{
    return s->rank >= 0 && in_operation(s) && is(s->state, "open");
}

static bool late_than(const struct seat *s, const struct seat *waiter)
{
    return is_late(s, waiter) && !is(s->process, "left");
}

/* Of the rows that are in the same operation the first one stands for it. */
static bool first_pending(const struct seats *seats, unsigned i)
{
    const struct seat *of = &seats->at[i];

    for (unsigned k = 0; k < i; k++)
        if (is_pending(&seats->at[k]) && same_group(&seats->at[k], of) &&
            seats->at[k].started == of->started)
            return false;
    return true;
}

static void fill_operation(const struct seats *seats, const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){
        .group = of->group, .name = of->name, .operation = of->operation, .number = of->started};
    for (unsigned i = 0; i < seats->n; i++) {
        const struct seat *s = &seats->at[i];

        if (!same_group(s, of) || !is_pending(s) || s->started != of->started)
            continue;
        p->waiting_ms = MAX(p->waiting_ms, s->asleep ? s->asleep_ms : 0);
        if (!*p->operation)
            p->operation = s->operation;
    }
    list_ranks(seats, of, waits_like, p->waiting, sizeof(p->waiting));
    list_ranks(seats, of, late_than, p->missing, sizeof(p->missing));
}

/* The same of operations by commd-gpu. */
static bool gpu_pending(const struct seat *s)
{
    return s->rank >= 0 && on_gpu(s) && is(s->state, "open");
}

static bool first_gpu_pending(const struct seats *seats, unsigned i)
{
    const struct seat *of = &seats->at[i];

    for (unsigned k = 0; k < i; k++)
        if (gpu_pending(&seats->at[k]) && same_group(&seats->at[k], of) &&
            seats->at[k].gpu_ended == of->gpu_ended)
            return false;
    return true;
}

static bool gpu_in_same(const struct seat *s, const struct seat *than)
{
    return on_gpu(s) && s->gpu_ended == than->gpu_ended;
}

static bool gpu_missing(const struct seat *s, const struct seat *than)
{
    return !is(s->process, "left") && (gpu_late(s, than) || gpu_unready(s, than));
}

static void fill_gpu(const struct seats *seats, const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){.group = of->group,
                           .name = of->name,
                           .operation = of->gpu_operation,
                           .number = of->gpu_ended + 1,
                           .gpu = true};
    for (unsigned i = of->group_at; i < seats->n && same_group(seats->by_rank[i], of); i++) {
        const struct seat *s = seats->by_rank[i];

        if (gpu_pending(s) && s->gpu_ended == of->gpu_ended && s->gpu_ready)
            p->waiting_ms = MAX(p->waiting_ms, s->gpu_ms);
    }
    list_ranks(seats, of, gpu_in_same, p->waiting, sizeof(p->waiting));
    list_ranks(seats, of, gpu_missing, p->missing, sizeof(p->missing));
}

static void fill_message(const struct seat *of, struct wait_row *p)
{
    *p = (struct wait_row){.group = of->group,
                           .name = of->name,
                           .operation = of->message,
                           .waiting_ms = of->message_ms};
    snprintf(p->waiting, sizeof(p->waiting), "%lld", (long long)of->rank);
    if (of->message_peer >= 0)
        snprintf(p->missing, sizeof(p->missing), "%lld", (long long)of->message_peer);
}

int pending_operations(const struct msg_table *ranks, struct wait_row **ret_pending,
                       unsigned *ret_n, const char **ret_key)
{
    struct wait_row *pending;
    struct seats seats;
    unsigned n = 0;
    int r = read_seats(ranks, &seats, ret_key);

    if (r)
        return r;
    pending = calloc(3 * (size_t)seats.n + 1, sizeof(*pending));
    for (unsigned i = 0; i < seats.n && pending; i++) {
        if (is_pending(&seats.at[i]) && first_pending(&seats, i))
            fill_operation(&seats, &seats.at[i], &pending[n++]);
        if (gpu_pending(&seats.at[i]) && first_gpu_pending(&seats, i))
            fill_gpu(&seats, &seats.at[i], &pending[n++]);
        if (is_live(&seats.at[i]) && *seats.at[i].message)
            fill_message(&seats.at[i], &pending[n++]);
    }
    seats_free(&seats);
    if (!pending)
        return -ENOMEM;
    *ret_pending = pending;
    *ret_n = n;
    return 0;
}
