/* commctl_trace.c - `commctl trace`: the last operations of all ranks in the JSON format that
 * Perfetto and chrome://tracing read ("Trace Event Format", complete events); and `commctl top`:
 * a line for each rank. Both are made of a timeline. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

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
        print_json(rank->node);
        printf("}}");
        comma = ",";
    }
    printf("%s\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":",
           comma, node_number(tl, i), i + 1);
    if (rank->pid)
        snprintf(pid, sizeof(pid), " (pid %" PRId64 ")", rank->pid);
    snprintf(name, sizeof(name), "%s: rank %" PRId64 "%s", rank->name, rank->rank, pid);
    print_json(name);
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

    printf("\"args\":{\"group\":");
    print_json(rank->name);
    printf(",\"number\":%u,\"bytes\":%" PRIu64 ",\"dtype\":", op->number, op->bytes);
    print_json(op->dtype);
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
    print_json(op->collective);
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
    print_json(op->collective);
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
        print_json(rank->name);
        printf(",\"node\":");
        print_json(rank->node);
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
    time_t seconds = (time_t)(zero / 1000000000);
    char date[32] = "";
    struct tm tm;

    if (gmtime_r(&seconds, &tm))
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    printf("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"begin\":\"%s.%09dZ\",", date,
           (int)(zero % 1000000000));
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

static void top_row(struct made *made, const struct timeline_rank *rank)
{
    double per_s = rank->watched_ms ? (double)rank->done * 1000 / (double)rank->watched_ms : 0;
    double bytes = rank->watched_ms ? (double)rank->gave * 1000 / (double)rank->watched_ms : 0;

    made_text(made, rank->name);
    made_number(made, (double)rank->rank, "%.0f");
    made_text(made, rank->node);
    made_number(made, rank->pid ? (double)rank->pid : -1, "%.0f");
    made_number(made, per_s, "%.1f");
    made_number(made, bytes, "%.0f");
    made_number(made, (double)rank->busy_pct, "%.0f");
    made_number(made, timeline_waiting_pct(rank), "%.0f");
    made_number(made, rank->compared ? (double)rank->took_ns / 1000 : -1, "%.1f");
    made_number(made, rank->compared ? (double)rank->late_ns / 1000 : -1, "%.1f");
    made_text(made, rank->command);
}

bool show_top(const struct show *show, const char *group, const struct msg_tables *answer,
              bool *ret_well)
{
    struct msg_column columns[] = {
        {"name", "NAME", MSG_CELL_STRING},
        {"rank", "RANK", MSG_CELL_NUMBER},
        {"node", "NODE", MSG_CELL_STRING},
        {"pid", "PID", MSG_CELL_NUMBER},
        {"ops_per_s", "OPS [/s]", MSG_CELL_NUMBER},
        {"bytes_per_s", "GIVES [bytes/s]", MSG_CELL_NUMBER},
        {"busy_pct", "IN OPS [%]", MSG_CELL_NUMBER},
        {"waiting_pct", "WAITING [%]", MSG_CELL_NUMBER},
        {"took_us", "TOOK [us]", MSG_CELL_NUMBER},
        {"late_us", "LATE [us]", MSG_CELL_NUMBER},
        {"command", "COMMAND", MSG_CELL_STRING},
    };
    struct timeline tl;
    struct made made;
    bool ok;

    if (!make_timeline(answer, &tl))
        return false;
    *ret_well = true;
    ok = made_begin(&made, "top", columns, ARRAY_LEN(columns), tl.nranks);
    made.table.nrows = 0;
    for (unsigned i = 0; i < tl.nranks && ok; i++) {
        if (tl.ranks[i].ended)
            continue;
        made.table.nrows++;
        top_row(&made, &tl.ranks[i]);
    }
    if (!ok)
        cannot_read(-ENOMEM, NULL);
    ok = ok && made_show(show, &made);
    made_free(&made);
    timeline_free(&tl);
    return ok;
}
