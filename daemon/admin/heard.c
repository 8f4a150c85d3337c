/* heard.c - which rows of another node's table are believed: those about that node.
 *
 * This node knows the members of the groups that it is in. A row about such a group has to be about
 * a rank of the node that tells it, else the row is dropped. In such a row the node may accuse its
 * own ranks of breaking the group, and nobody else: where it accuses another rank, our own cause
 * stands in the answer, or the text begins with the node's name ("node b says: ..."). That the
 * group has gone on this node knows itself. The node may tell which rank was gone first: that the
 * rank is gone, its own node has told.
 *
 * Of other groups this node knows only what the nodes tell. Each rank has one row, from its own
 * node. If two nodes tell of one rank, neither row is believed, because this node cannot know which
 * is right. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/admin/heard.h"
#include "shm/proto/codec.h"

enum { DISPUTES_ROWS = 32768 }; /* compared in some milliseconds */

/* The columns that matter. */
enum {
    GROUP,
    RANK,
    NODE,
    CAUSE,
    CAUSE_RANK,
    CAUSE_TEXT,
    GONE,
    GONE_RANK,
    GONE_NODE,
    GONE_PID,
    GONE_OPS,
    NEXT_EPOCH,
    FIELDS
};
static const char *const keys[FIELDS] = {"group",      "rank",       "node",     "cause",
                                         "cause_rank", "cause_text", "gone",     "gone_rank",
                                         "gone_node",  "gone_pid",   "gone_ops", "next_epoch"};

struct heard {
    const struct core *core;
    unsigned node;
    const char *name;
    int at[FIELDS]; /* column; -1: the table has none */
    bool known;     /* this node is in the group; @view shows it */
    struct core_group_view view;
};

static const char *cell(const struct heard *heard, char *const *row, unsigned field)
{
    const char *text = heard->at[field] < 0 ? NULL : row[heard->at[field]];

    return text ? text : ""; /* in a table of our own empty cells are NULL */
}

/* Is rank @text of the known group a rank of the node that tells? */
static bool is_its_own(const struct heard *heard, const char *text)
{
    const struct core_group_view *view = &heard->view;
    char *end;
    unsigned long rank = strtoul(text, &end, 10);

    return *text && !*end && rank < view->size &&
           view->nodes[view->members[rank].node] == heard->node;
}

/* Is the rank that the row calls gone a rank of that node, or gone here in the same way? */
static bool is_gone_for_us(const struct heard *heard, char *const *row)
{
    const char *rank = cell(heard, row, GONE_RANK);
    const struct core_group_view *view = &heard->view;
    unsigned long number = strtoul(rank, NULL, 10);
    enum cause fate;

    if (is_its_own(heard, rank))
        return true;
    if (!*rank || number >= view->size)
        return false;
    fate = core_rank_fate(heard->core, view->id, (unsigned)number);
    return fate != CAUSE_NONE && (fate == CAUSE_LEFT) == !strcmp(cell(heard, row, GONE), "left");
}

static bool may_tell(const struct heard *heard, char *const *row)
{
    const char *rank = cell(heard, row, RANK), *node = cell(heard, row, NODE);

    if (*node || *rank ? strcmp(node, heard->name) : heard->at[RANK] < 0)
        return false;
    return !heard->known || !*rank || is_its_own(heard, rank);
}

static void add_cause(const struct heard *heard, char *const *row, unsigned field,
                      struct table *table)
{
    const struct core_group_view *view = &heard->view;

    if (view->cause == CAUSE_NONE && field == CAUSE_TEXT && row[heard->at[field]][0])
        table_format(table, "node %s says: %s", heard->name, row[heard->at[field]]);
    else if (view->cause == CAUSE_NONE && field == CAUSE)
        table_text(table, row[heard->at[field]]);
    else if (view->cause == CAUSE_NONE || (field == CAUSE_RANK && view->cause_rank < 0))
        table_text(table, "");
    else if (field == CAUSE_RANK)
        table_number(table, (uint64_t)view->cause_rank);
    else
        table_text(table, field == CAUSE ? cause_name(view->cause) : view->cause_text);
}

static void hear_row(const struct heard *heard, char *const *row, unsigned ncolumns,
                     struct table *table)
{
    bool cause = !heard->known || !*cell(heard, row, CAUSE) ||
                 is_its_own(heard, cell(heard, row, CAUSE_RANK));
    bool gone = !heard->known || is_gone_for_us(heard, row);

    for (unsigned i = 0; i < ncolumns; i++) {
        unsigned field = 0;

        while (field < FIELDS && heard->at[field] != (int)i)
            field++;
        if (!cause && (field == CAUSE || field == CAUSE_RANK || field == CAUSE_TEXT))
            add_cause(heard, row, field, table);
        else if (heard->known && field == NEXT_EPOCH)
            table_number_if(table, heard->view.next_epoch, heard->view.next_epoch);
        else
            table_text(table, !gone && field >= GONE && field <= GONE_OPS ? "" : row[i]);
    }
}

static void heard_begin(struct heard *heard, const struct msg_table *table)
{
    for (unsigned field = 0; field < FIELDS; field++) {
        heard->at[field] = -1;
        for (unsigned i = 0; i < table->ncolumns; i++)
            if (!strcmp(table->columns[i].key, keys[field]))
                heard->at[field] = (int)i;
    }
}

bool heard_columns(const struct msg_table *a, const struct msg_table *b)
{
    if (a->ncolumns != b->ncolumns)
        return false;
    for (uint32_t i = 0; i < a->ncolumns; i++)
        if (strcmp(a->columns[i].key, b->columns[i].key))
            return false;
    return true;
}

unsigned heard_rows(const struct core *core, unsigned node, const char *name,
                    const struct msg_table *told, struct table *table)
{
    struct heard heard = {.core = core, .node = node, .name = name};
    unsigned dropped = 0;

    assert(told->ncolumns == table->t.ncolumns || table->error);
    heard_begin(&heard, told);
    for (uint32_t i = 0; i < told->nrows; i++) {
        char *const *row = told->cells + (size_t)i * told->ncolumns;
        uint64_t id = strtoull(cell(&heard, row, GROUP), NULL, 16);

        heard.known = id && core_group(core, id, &heard.view) && heard.view.members;
        if (may_tell(&heard, row))
            hear_row(&heard, row, told->ncolumns, table);
        else
            dropped++;
    }
    return dropped;
}

struct claim {
    uint64_t group;
    unsigned long rank;
    uint32_t row;
};

static int by_claim(const void *a, const void *b)
{
    const struct claim *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* The rows that tell of ranks of groups which this node does not know. */
static uint32_t find_claims(struct heard *heard, const struct msg_table *table,
                            struct claim *ret_claims)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < table->nrows; i++) {
        char *const *row = table->cells + (size_t)i * table->ncolumns;
        uint64_t id = strtoull(cell(heard, row, GROUP), NULL, 16);

        if (id && *cell(heard, row, RANK) &&
            !(core_group(heard->core, id, &heard->view) && heard->view.members))
            ret_claims[n++] = (struct claim){id, strtoul(cell(heard, row, RANK), NULL, 10), i};
    }
    qsort(ret_claims, n, sizeof(*ret_claims), by_claim);
    return n;
}

int heard_disputes(const struct core *core, const char *self, struct table *table, char *ret_first,
                   size_t len)
{
    _cleanup_(freep) struct claim *claims = NULL;
    _cleanup_(freep) bool *out = NULL;
    struct heard heard = {.core = core};
    const struct msg_table *t = &table->t;
    uint32_t n, end;
    int disputed = 0;

    if (t->nrows > DISPUTES_ROWS || table->error)
        return -1;
    claims = calloc(t->nrows + 1, sizeof(*claims));
    out = calloc(t->nrows + 1, sizeof(*out));
    if (!claims || !out)
        return -1;
    heard_begin(&heard, t);
    n = find_claims(&heard, t, claims);
    for (uint32_t i = 0; i < n; i = end) {
        char *const *row = t->cells + (size_t)claims[i].row * t->ncolumns, *const * other;

        for (end = i + 1;
             end < n && claims[end].group == claims[i].group && claims[end].rank == claims[i].rank;
             end++)
            ;
        for (uint32_t k = i; k < end && end > i + 1; k++) {
            other = t->cells + (size_t)claims[k].row * t->ncolumns;
            out[claims[k].row] = strcmp(cell(&heard, other, NODE), self) != 0;
        }
        if (end == i + 1 || disputed++)
            continue;
        other = t->cells + (size_t)claims[i + 1].row * t->ncolumns;
        snprintf(ret_first, len, "nodes %s and %s both tell of rank %lu of group %016" PRIx64,
                 cell(&heard, row, NODE), cell(&heard, other, NODE), claims[i].rank,
                 claims[i].group);
    }
    table_drop(table, out);
    return disputed;
}
