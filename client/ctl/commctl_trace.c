/* commctl_trace.c - `commctl trace`: the last operations of all ranks in the JSON format that
 * Perfetto and chrome://tracing read ("Trace Event Format", complete events); and `commctl top`:
 * a line for each rank. Both are made of a timeline. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "client/ctl/commctl.h"
#include "client/ctl/timeline.h"

static bool make_timeline(const struct msg_tables *answer, struct timeline *tl)
{
    const char *key;
    int r = timeline_make(answer, tl, &key);

    return r == 0 || cannot_read(r, key);
}

/* ---- trace ------------------------------------------------------------------------------ */

/* A number for each node: Perfetto shows nodes as processes, and ranks as threads. */
static unsigned node_number(const struct timeline *tl, unsigned rank)
{
    unsigned i = 0;

    assert(rank < tl->nranks);
    while (strcmp(tl->ranks[i].node, tl->ranks[rank].node))
        i++;
    return i + 1;
}

static void print_names(const struct timeline *tl, unsigned i, const char *comma)
{
    const struct timeline_rank *rank = &tl->ranks[i];
    char name[MSG_GROUP_MAX + 64], pid[32] = "";

    if (node_number(tl, i) == i + 1) {
        printf("%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":", comma,
               i + 1);
        print_json("", rank->node);
        printf("}}");
        comma = ",";
    }
    printf("%s\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":",
           comma, node_number(tl, i), i + 1);
    if (rank->pid)
        snprintf(pid, sizeof(pid), " (pid %" PRId64 ")", rank->pid);
    snprintf(name, sizeof(name), "%s: rank %" PRId64 "%s", rank->name, rank->rank, pid);
    print_json("", name);
    printf("}}");
}

/* Microseconds with their fraction. */
static void print_us(int64_t ns)
{
    printf("%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static void print_args(const struct timeline *tl, const struct timeline_op *op)
{
    const struct timeline_rank *rank = &tl->ranks[op->rank];

    print_json("\"args\":{\"group\":", rank->name);
    printf(",\"number\":%u,\"bytes\":%" PRIu64 ",\"dtype\":", op->number, op->bytes);
    print_json("", op->dtype);
    if (op->late >= 0) {
        printf(",\"late_us\":");
        print_us(op->late);
        printf(",\"waited_us\":");
        print_us(op->wait);
    }
    printf("}}");
}

/* Operations by commd-gpu are under way several at a time: as asynchronous events, which may
 * overlap, on a line of their own. */
static void print_gpu_event(const struct timeline *tl, const struct timeline_op *op, int64_t at,
                            char phase)
{
    printf(",\n{\"ph\":\"%c\",\"cat\":\"commd-gpu\",\"id\":\"%u.%u\",\"name\":", phase,
           op->rank + 1, op->number);
    print_json("", op->collective);
    printf(",\"pid\":%u,\"tid\":%u,\"ts\":", node_number(tl, op->rank), op->rank + 1);
    print_us(at);
    putchar(',');
    print_args(tl, op);
}

/* Times count from @zero: a double, which readers take, does not hold the nanoseconds of a day's
 * time. What has not ended is shown as begun. */
static void print_op(const struct timeline *tl, const struct timeline_op *op, int64_t zero)
{
    if (op->gpu) {
        print_gpu_event(tl, op, op->begun - zero, 'b');
        if (op->ended)
            print_gpu_event(tl, op, MAX(op->ended, op->begun) - zero, 'e');
        return;
    }
    printf(",\n{\"ph\":\"%s\",\"cat\":\"commd\",\"name\":", op->ended ? "X" : "B");
    print_json("", op->collective);
    printf(",\"pid\":%u,\"tid\":%u,\"ts\":", node_number(tl, op->rank), op->rank + 1);
    print_us(op->begun - zero);
    if (op->ended) {
        printf(",\"dur\":");
        print_us(MAX(op->ended - op->begun, (int64_t)0));
    }
    putchar(',');
    print_args(tl, op);
}

static int64_t first_begun(const struct timeline *tl)
{
    int64_t first = tl->nops ? tl->ops[0].begun : 0;

    for (unsigned i = 0; i < tl->nops; i++)
        first = MIN(first, tl->ops[i].begun);
    return first;
}

/* How well the clocks of the nodes are put together. */
static void print_clocks(const struct timeline *tl)
{
    const char *comma = "";

    printf("\"clocks\":[");
    for (unsigned i = 0; i < tl->nranks; i++) {
        const struct timeline_rank *rank = &tl->ranks[i];

        if (!rank->to_wall || (i > rank->in_group && !strcmp(rank->node, tl->ranks[i - 1].node)))
            continue;
        printf("%s{\"group\":", comma);
        print_json("", rank->name);
        print_json(",\"node\":", rank->node);
        if (rank->uncertainty < 0) {
            printf(",\"by\":\"time of day\"}");
        } else {
            printf(",\"by\":\"operations\",\"uncertainty_us\":");
            print_us(rank->uncertainty);
            putchar('}');
        }
        comma = ",";
    }
    printf("]");
}

static void print_trace(const struct timeline *tl)
{
    int64_t zero = first_begun(tl);
    char date[32];

    printf("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"begin\":\"%s.%09dZ\",",
           utc_text(zero / 1000000000, date), (int)(zero % 1000000000));
    print_clocks(tl);
    printf("},\"traceEvents\":[");
    for (unsigned i = 0; i < tl->nranks; i++)
        print_names(tl, i, i ? "," : "");
    for (unsigned i = 0; i < tl->nops; i++)
        print_op(tl, &tl->ops[i], zero);
    printf("\n]}\n");
}

bool show_trace(const struct show *show, const char *group, const struct msg_tables *answer,
                bool *ret_well)
{
    struct timeline tl;

    if (!make_timeline(answer, &tl))
        return false;
    *ret_well = true;
    print_trace(&tl);
    timeline_free(&tl);
    return flush_stdout();
}

/* ---- top -------------------------------------------------------------------------------- */

/* clang-format off */
#define TOP_COLUMNS(C)                                                                             \
    C(name, "NAME", text, rank->name)                                                              \
    C(rank, "RANK", number, (double)rank->rank, "%.0f")                                            \
    C(node, "NODE", text, rank->node)                                                              \
    C(pid, "PID", number, rank->pid ? (double)rank->pid : -1, "%.0f")                              \
    C(ops_per_s, "OPS [/s]", number, (double)rank->done * per_s, "%.1f")                           \
    C(bytes_per_s, "GIVES [bytes/s]", number, (double)rank->gave * per_s, "%.0f")                  \
    C(busy_pct, "IN OPS [%]", number, (double)rank->busy_pct, "%.0f")                              \
    C(waiting_pct, "WAITING [%]", number, timeline_waiting_pct(rank), "%.0f")                      \
    C(took_us, "TOOK [us]", number, rank->compared ? (double)rank->took_ns / 1000 : -1, "%.1f")    \
    C(late_us, "LATE [us]", number, rank->compared ? (double)rank->late_ns / 1000 : -1, "%.1f")    \
    C(command, "COMMAND", text, rank->command)
/* clang-format on */

bool show_top(const struct show *show, const char *group, const struct msg_tables *answer,
              bool *ret_well)
{
    struct timeline tl;
    struct made made;
    bool shown;

    if (!make_timeline(answer, &tl))
        return false;
    *ret_well = true;
    made_begin(&made, "top", TOP_COLUMNS, tl.nranks);
    for (const struct timeline_rank *rank = tl.ranks; rank < tl.ranks + tl.nranks; rank++) {
        double per_s = rank->watched_ms ? 1000 / (double)rank->watched_ms : 0;

        if (!rank->ended) {
            MADE_ADD(TOP_COLUMNS)
        }
    }
    shown = made_show(show, &made);
    timeline_free(&tl);
    return shown;
}
