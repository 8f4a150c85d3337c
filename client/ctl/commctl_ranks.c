/* commctl_ranks.c - what all nodes say of ranks, for people and for programs: `commctl why`, `ops`
 * and `ranks`. The verdicts themselves: diagnose.c. */
#include <stdio.h>

#include "client/ctl/cells.h"
#include "client/ctl/commctl.h"
#include "client/ctl/diagnose.h"
#include "client/ctl/stack.h"

enum { LOOKS_MOST = 4 }; /* processes: each may take two seconds */
enum { RECENT_S = 600 }; /* without a name, groups that ended longer ago are not spoken of */

bool cannot_read(int r, const char *key)
{
    if (r == -EPROTO)
        complain("commd's answer lacks \"%s\"; use the commctl that came with it", key);
    else
        complain("%s", strerror(-r));
    return false;
}

bool has_group(const struct msg_tables *ranks, const char *group)
{
    for (uint32_t row = 0; ranks->ntables && row < ranks->tables->nrows; row++)
        if (!strcmp(cell_of(ranks, row, "name"), group) ||
            !strcmp(cell_of(ranks, row, "group"), group))
            return true;
    return false;
}

/* ---- why -------------------------------------------------------------------------------- */

/* The lines of @text, the first behind @title. */
static void print_lines(const char *title, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        printf("  %-9s %.*s\n", title, (int)n, text);
        text += n + (text[n] == '\n');
        title = "";
    }
}

/* How long ago the wait began, also of a group that has ended since. */
static uint64_t since_ms(const struct finding *f)
{
    return f->waiting_ms + 1000 * f->ended_s;
}

/* Have both findings one cause? One rank, node or circle may keep many groups of a job waiting. */
static bool same_cause(const struct finding *a, const struct finding *b)
{
    return a->verdict == b->verdict && a->ended == b->ended && a->pid > 0 && a->pid == b->pid &&
           !strcmp(a->node, b->node) && !verdict_is_well(a->verdict);
}

/* Index of the first finding with the cause of findings[i]; it may be @i itself. */
static unsigned cause_of(const struct finding **findings, unsigned i)
{
    unsigned k = 0;

    while (!same_cause(findings[k], findings[i]) && k < i)
        k++;
    return k;
}

/* Names groups behind findings[i] with the same cause, eight at most. */
static void print_others(const struct finding **findings, unsigned i, unsigned n)
{
    unsigned others = 0, said = 0;

    for (unsigned k = i + 1; k < n; k++)
        others += same_cause(findings[i], findings[k]);
    if (!others)
        return;
    printf("  also      the cause for %u more group%s: ", others, others == 1 ? "" : "s");
    for (unsigned k = i + 1; k < n && said < 8; k++)
        if (same_cause(findings[i], findings[k]))
            printf("%s\"%s\"", said++ ? ", " : "", findings[k]->name);
    puts(said < others ? ", ..." : "");
}

static const char *finding_node(const struct finding *f)
{
    return *f->node ? f->node : f->lost_node;
}

static void print_culprit(const struct finding *f)
{
    printf("  culprit   rank %lld", (long long)f->world_rank);
    if (f->world_rank != f->rank || strcmp(f->rank_group, f->name))
        printf(" (%lld of group \"%s\")", (long long)f->rank, f->rank_group);
    if (f->pid > 0)
        printf(", pid %lld", (long long)f->pid);
    printf(" on node %s%s%s\n", f->node, *f->command ? ": " : "", f->command);
}

static bool is_shown(const struct finding *f, const char *group)
{
    if (group)
        return !strcmp(group, f->name) || !strcmp(group, f->group);
    return !f->ended || f->ended_s <= RECENT_S;
}

/* What was seen of culprits on this node, beside what commd knows. */
struct looks {
    const struct finding *of[LOOKS_MOST];
    struct process_look at[LOOKS_MOST];
    unsigned n;
};

static const struct process_look *look_of(const struct looks *looks, const struct finding *f)
{
    for (unsigned i = 0; i < looks->n; i++)
        if (f->pid > 0 && looks->of[i]->pid == f->pid && !strcmp(looks->of[i]->node, f->node))
            return &looks->at[i];
    return NULL;
}

static bool has_culprit(const struct finding *f)
{
    return f->rank >= 0 && f->pid > 0 && !f->ended && !f->killed && !verdict_is_well(f->verdict) &&
           f->verdict != VERDICT_RANK_DEAD;
}

static void look_at_culprits(struct looks *looks, const struct show *show,
                             const struct finding **findings, unsigned n)
{
    bool same = show->from && stack_same_pids(show->from->pid);

    looks->n = 0;
    for (unsigned i = 0; i < n && same && looks->n < LOOKS_MOST; i++) {
        const struct finding *f = findings[i];

        if (!has_culprit(f) || strcmp(f->node, show->from->node) || look_of(looks, f))
            continue;
        looks->of[looks->n] = f;
        stack_look((uint32_t)f->pid, &looks->at[looks->n++]);
    }
}

static void print_look(const struct show *show, const struct finding *f,
                       const struct process_look *look)
{
    if (!look) {
        if (has_culprit(f) && show->from && strcmp(f->node, show->from->node))
            printf("  stack     commctl why on node %s shows it\n", f->node);
        return;
    }
    print_lines("stack", *look->stack ? look->stack : look->no_stack);
    if (*look->output)
        print_lines("output", look->output);
    if (*look->tracer)
        printf("  traced by %s\n", look->tracer);
}

static void print_finding(const struct show *show, const struct looks *looks,
                          const struct finding *f)
{
    const char *verdict = verdict_name(f->verdict);
    const char *colour = show->colours ? colour_of("verdict", verdict) : NULL;
    char date[32];

    if (colour)
        printf("\033[%dm", *colour == 'g' ? 32 : *colour == 'y' ? 33 : 31);
    printf("%s%s  group \"%s\" (", verdict, colour ? "\033[0m" : "", f->name);
    if (f->size)
        printf("%llu rank%s", (unsigned long long)f->size, f->size == 1 ? "" : "s");
    else
        printf("new processes");
    if (f->nodes > 1)
        printf(" on %llu nodes", (unsigned long long)f->nodes);
    if (f->epoch > 1)
        printf(", epoch %llu", (unsigned long long)f->epoch);
    if (*f->job)
        printf(", %s", f->job);
    if (f->ended)
        printf(", ended %llu s ago, at %s", (unsigned long long)f->ended_s,
               time_ago(1000 * f->ended_s, date));
    puts(")");
    if (f->rank >= 0)
        print_culprit(f);
    else if (*finding_node(f))
        printf("  culprit   node %s\n", finding_node(f));
    if (f->waiting_ms && !verdict_is_well(f->verdict))
        printf("  waiting   %.1f s, since %s\n", (double)f->waiting_ms / 1000,
               time_ago(since_ms(f), date));
    print_look(show, f, look_of(looks, f));
    print_lines("evidence", f->evidence);
    print_lines("remedy", f->remedy);
}

/* Of 0 nothing is shown. */
static double number_or_none(uint64_t number)
{
    return number ? (double)number : -1;
}

/* clang-format off */
#define WHY_COLUMNS(C)                                                                             \
    C(group, "GROUP", text, f->group)                                                              \
    C(name, "NAME", text, f->name)                                                                 \
    C(state, "STATE", text, f->state)                                                              \
    C(verdict, "VERDICT", text, verdict_name(f->verdict))                                          \
    C(well, "WELL", flag, finding_is_well(f))                                                      \
    C(rank, "RANK", number, (double)f->rank, "%.0f")                                               \
    C(node, "NODE", text, finding_node(f))                                                         \
    C(pid, "PID", number, (double)f->pid, "%.0f")                                                  \
    C(command, "COMMAND", text, f->command)                                                        \
    C(waiting_s, "WAITING [s]", number, f->waiting_ms ? (double)f->waiting_ms / 1000 : -1, "%.3f") \
    C(evidence, "EVIDENCE", text, f->evidence)                                                     \
    C(remedy, "REMEDY", text, f->remedy)                                                           \
    C(world_rank, "JOB'S RANK", number, (double)f->world_rank, "%.0f")                             \
    C(rank_group, "RANK OF", text, f->rank_group)                                                  \
    C(since, "SINCE", copy, f->waiting_ms ? time_ago(since_ms(f), date) : "")                      \
    C(ended_at, "ENDED AT", copy, f->ended ? time_ago(1000 * f->ended_s, date) : "")               \
    C(cause, "CAUSE", number, cause_of(findings, i) + 1, "%.0f")                                   \
    C(job, "JOB", text, f->job)                                                                    \
    C(stack, "STACK", text, look ? look->stack : "")                                               \
    C(output, "OUTPUT", text, look ? look->output : "")                                            \
    C(tracer, "TRACER", text, look ? look->tracer : "")                                            \
    C(epoch, "EPOCH", number, number_or_none(f->epoch), "%.0f")                                    \
    C(next_epoch, "NEXT EPOCH", number, number_or_none(f->next_epoch), "%.0f")                     \
    C(recovery, "RECOVERY", text, f->recovery)                                                     \
    C(free_seats, "FREE SEATS", text, f->free_seats)                                               \
    C(new_processes, "NEW", number, number_or_none(f->new_processes), "%.0f")
/* clang-format on */

static bool why_json(const struct show *show, const struct looks *looks,
                     const struct finding **findings, unsigned n)
{
    struct made made;
    char date[32];

    made_begin(&made, "why", WHY_COLUMNS, n);
    for (unsigned i = 0; i < n; i++) {
        const struct finding *f = findings[i];
        const struct process_look *look = look_of(looks, f);

        MADE_ADD(WHY_COLUMNS)
    }
    return made_show(show, &made);
}

/* First groups that are not well, then groups that were not well when they ended, then the rest;
 * epochs that others have followed come last. */
static int finding_place(const struct finding *f)
{
    return f->next_epoch ? 3 : finding_is_well(f) ? 2 : f->ended;
}

static int by_place(const void *a, const void *b)
{
    const struct finding *const *x = a, *const *y = b;
    int order = finding_place(*x) - finding_place(*y);

    return order ? order : (*x > *y) - (*x < *y);
}

/* Ended, or gone on: ranks may be in an epoch yet that others have followed. */
static bool is_over(const struct finding *f)
{
    return f->ended || f->next_epoch;
}

/* Of groups with one name: first the group that is there, then the one that has ended last. */
static int by_end(const void *a, const void *b)
{
    const struct finding *const *x = a, *const *y = b;

    if (is_over(*x) != is_over(*y))
        return is_over(*x) ? 1 : -1;
    if ((*x)->ended != (*y)->ended)
        return (*x)->ended ? 1 : -1;
    if ((*x)->ended && (*x)->ended_s != (*y)->ended_s)
        return (*x)->ended_s < (*y)->ended_s ? -1 : 1;
    if ((*x)->next_epoch && (*y)->next_epoch && (*x)->epoch != (*y)->epoch)
        return (*x)->epoch > (*y)->epoch ? -1 : 1;
    return by_place(a, b);
}

void restart_text(const struct msg_welcome *from, char *text, size_t len)
{
    text[0] = 0;
    if (from && from->took_over_ms && from->took_over_ms / 1000 < RECENT_S)
        snprintf(
            text, len,
            "commd on node %s was restarted %llu s ago: what ended or failed before that is not "
            "here, but in its log (journalctl -u commd)",
            from->node, (unsigned long long)from->took_over_ms / 1000);
}

static void print_findings(const struct show *show, const struct looks *looks, const char *group,
                           const struct finding **findings, unsigned n)
{
    bool first = true;
    char before[256];

    for (unsigned i = 0; i < n; i++) {
        if (!group && cause_of(findings, i) < i)
            continue;
        if (!first)
            putchar('\n');
        first = false;
        print_finding(show, looks, findings[i]);
        if (!group)
            print_others(findings, i, n);
    }
    if (first)
        puts("no groups");
    restart_text(show->from, before, sizeof(before));
    if (*before)
        printf("\n%s\n", before);
}

bool show_why(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well)
{
    const struct finding **order;
    struct finding *findings;
    struct looks looks;
    const char *key;
    unsigned n, shown = 0;
    bool ok = true;
    int r = diagnose(ranks->tables, &findings, &n, &key);

    if (r)
        return cannot_read(r, key);
    judge_links(ranks, findings, n);
    order = calloc((size_t)n + 1, sizeof(*order));
    if (!order) {
        free(findings);
        return cannot_read(-ENOMEM, NULL);
    }
    *ret_well = true;
    for (unsigned i = 0; i < n; i++) {
        if (!is_shown(&findings[i], group))
            continue; /* nor does it hide another group of the same cause */
        order[shown++] = &findings[i];
        *ret_well = *ret_well && finding_is_well(&findings[i]);
    }
    qsort(order, shown, sizeof(*order), group ? by_end : by_place);
    look_at_culprits(&looks, show, order, shown);
    if (show->json)
        ok = why_json(show, &looks, order, shown);
    else
        print_findings(show, &looks, group, order, shown);
    free(order);
    free(findings);
    return ok;
}

/* ---- ops -------------------------------------------------------------------------------- */

/* clang-format off */
#define OPS_COLUMNS(C)                                                                             \
    C(group, "GROUP", text, p->group)                                                              \
    C(name, "NAME", text, p->name)                                                                 \
    C(number, "NUMBER", number, p->number ? (double)p->number : -1, "%.0f")                        \
    C(gpu, "GPU", flag, p->gpu)                                                                    \
    C(operation, "OPERATION", text, p->operation)                                                  \
    C(waiting_s, "WAITING [s]", number, (double)p->waiting_ms / 1000, "%.3f")                      \
    C(ranks, "RANKS", text, p->waiting)                                                            \
    C(missing, "WAIT FOR", text, p->missing)
/* clang-format on */

bool show_ops(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well)
{
    _cleanup_(freep) struct wait_row *pending = NULL;
    struct made made;
    const char *key;
    unsigned n;
    int r = pending_operations(ranks->tables, &pending, &n, &key);

    *ret_well = true;
    if (r)
        return cannot_read(r, key);
    made_begin(&made, "ops", OPS_COLUMNS, n);
    for (const struct wait_row *p = pending; p < pending + n; p++) {
        MADE_ADD(OPS_COLUMNS)
    }
    return made_show(show, &made);
}

/* ---- ranks ------------------------------------------------------------------------------ */

/* What fits on a line, for people: on a wide one all of it. */
bool show_ranks(const struct show *show, const char *group, const struct msg_tables *ranks,
                bool *ret_well)
{
    static const char *const keys[] = {
        "name",      "rank",    "node",          "pid",       "process", "ops",    "operation",
        "asleep_ms", "message", "gpu_operation", "gpu_ready", "last",    "command"};
    static const char *const spare[] = {"gpu_ready", "gpu_operation", "message",  "last",
                                        "command",   "process",       "asleep_ms"};
    struct msg_column columns[ARRAY_LEN(keys)];
    uint32_t from[ARRAY_LEN(keys)];
    const struct msg_table *t = ranks->tables;
    struct made made;

    *ret_well = true;
    if (show->json)
        return show_tables(show, ranks);
    for (unsigned k = 0; k < ARRAY_LEN(keys); k++) {
        from[k] = cells_column(t, keys[k]);
        if (from[k] == t->ncolumns)
            return cannot_read(-EPROTO, keys[k]);
        columns[k] = t->columns[from[k]];
    }
    made_init(&made, "ranks", columns, ARRAY_LEN(keys), t->nrows);
    for (uint32_t row = 0; row < t->nrows; row++)
        for (unsigned k = 0; k < ARRAY_LEN(keys); k++)
            made_text(&made, cells_at(t, row, from[k]));
    made_fit(show, &made, spare, ARRAY_LEN(spare));
    return made_show(show, &made);
}
