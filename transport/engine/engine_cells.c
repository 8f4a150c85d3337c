/* engine_cells.c - what one rank has for one other rank, between nodes: gather, scatter,
 * all_to_all.
 *
 * The members of a node put what they have for others into their own windows. In each step one
 * message goes to each other node: all cells from ranks here to ranks there, packed by sending
 * pos, then by receiving pos. Where they lie without a gap they are sent and received in place;
 * otherwise they are packed into, and taken from, private memory.
 *
 * In operations with counts, the engine copies the members' counts once, at the beginning. All
 * bounds come from these copies and from the plan, so a cell never exceeds plan.unit and always
 * lies in its window, whatever members write later. The consistency check compares the counts of
 * nodes (op_balance), and the length of every message is compared with the counts of this node. */
#include "transport/engine/engine_internal.h"

/* Elements that local member @m sends to rank @k, or receives from it. */
static uint64_t cell_count(const struct eboard *eb, unsigned m, unsigned k, bool send)
{
    if (!coll_table[eb->plan.coll].counted)
        return eb->plan.count;
    assert(eb->rows);
    assert(m < eb->b.nlocal);
    assert(k < eb->b.world);
    return eb->rows[((size_t)m * 2 + (send ? 0 : 1)) * eb->b.world + k];
}

/* Does local member @m have a cell for (from) @pos of the other node? */
static bool cell_there(const struct eboard *eb, unsigned m, unsigned pos, bool send)
{
    const struct coll_info *info = &coll_table[eb->plan.coll];
    unsigned from = send ? eb->local_rank[m] : eb->rank_at[pos];
    unsigned to = send ? eb->rank_at[pos] : eb->local_rank[m];

    assert(from != to);
    assert(from < eb->b.world);
    assert(to < eb->b.world);
    if (!info->rooted)
        return true;
    return info->send == EXTENT_ONE ? to == eb->plan.root : from == eb->plan.root;
}

struct cell {
    uint8_t *at;
    size_t len;
};

/* The @i-th cell of the message between this node and @node. */
static struct cell cell_of(const struct eboard *eb, uint32_t c, uint32_t g, unsigned node,
                           bool send, unsigned i)
{
    const struct plan *p = &eb->plan;
    unsigned theirs = eb->node_start[node + 1] - eb->node_start[node];
    unsigned m = send ? i / theirs : i % eb->b.nlocal;
    unsigned pos = eb->node_start[node] + (send ? i % theirs : i / eb->b.nlocal);
    struct cell cell = {0};

    assert(m < eb->b.nlocal);
    assert(pos < eb->node_start[node + 1]);
    if (!cell_there(eb, m, pos, send))
        return cell;
    cell.len = plan_part(p, cell_count(eb, m, eb->rank_at[pos], send), c) * p->esize;
    if (send)
        cell.at = (uint8_t *)board_payload(&eb->b, m, g, plan_payload(p, &eb->geom, c)) +
                  plan_cell_out(p, c, pos);
    else
        cell.at = board_result(&eb->b, g, plan_result(p, &eb->geom, c)) +
                  plan_cell_in(p, &eb->geom, c, pos, m);
    return cell;
}

static unsigned cells_between(const struct eboard *eb, unsigned node)
{
    assert(node < eb->geom.nnodes);
    assert(node != eb->geom.me);
    assert(coll_table[eb->plan.coll].window == WINDOW_CELLS);
    return (eb->node_start[node + 1] - eb->node_start[node]) * eb->b.nlocal;
}

size_t cells_len(const struct eboard *eb, uint32_t c, unsigned node, bool send)
{
    size_t len = 0;

    for (unsigned i = 0; i < cells_between(eb, node); i++)
        len += cell_of(eb, c, 0, node, send, i).len;
    return len;
}

uint8_t *cells_in_one(const struct eboard *eb, const struct estep *s, unsigned node, bool send)
{
    uint8_t *first = NULL, *end = NULL;

    for (unsigned i = 0; i < cells_between(eb, node); i++) {
        struct cell cell = cell_of(eb, s->c, s->g, node, send, i);

        if (!cell.len)
            continue;
        if (!first)
            first = cell.at;
        else if (cell.at != end)
            return NULL;
        end = cell.at + cell.len;
    }
    /* an empty message needs no memory, but a place */
    return first ? first : board_result(&eb->b, s->g, 0);
}

void cells_copy(const struct eboard *eb, const struct estep *s, unsigned node, bool send,
                uint8_t *buf)
{
    for (unsigned i = 0; i < cells_between(eb, node); i++) {
        struct cell cell = cell_of(eb, s->c, s->g, node, send, i);

        if (cell.len)
            memcpy(send ? buf : cell.at, send ? cell.at : buf, cell.len);
        buf += cell.len;
    }
}

bool cells_learn(struct eboard *eb)
{
    const struct coll_info *info = &coll_table[eb->desc.coll];
    size_t row = eb->b.world;

    if (!info->counted)
        return true;
    if (!eb->rows)
        eb->rows = malloc(eb->b.nlocal * 2 * row * sizeof *eb->rows);
    if (!eb->rows) {
        eboard_fail(eb, CAUSE_NOMEM, -1, "the engine has no memory for the counts of %u ranks",
                    eb->b.world);
        return false;
    }
    for (unsigned m = 0; m < eb->b.nlocal; m++)
        memcpy(eb->rows + m * 2 * row, board_counts(&eb->b, m, eb->base, 0),
               2 * row * sizeof *eb->rows);
    return true;
}
