/* gpu_plan_blocks.c - plans of operations whose data are blocks, one for each rank. Pure. See
 * gpu_plan.h.
 *
 * What is for all or from all ranks goes between units once, not once for each rank: a block of an
 * all_gather is broadcast to the first rank's recv, and spread from there; a block of a
 * reduce_scatter is reduced over the ranks of each unit first. Broadcasts and reduces are grouped,
 * so NCCL runs them together, and by its rings and trees a block passes each link between nodes
 * once. Where each unit has one rank and their order is that of the units NCCL has one call for it;
 * if blocks lie at addresses of their own, which only this unit knows, it works in scratch.
 *
 * Cells are what one rank has for one other. Pairs on one unit are moves. Between two units NCCL
 * matches sends with receives by their order, so both sides go by receiver, then by sender. Cells
 * without elements are left out on both sides.
 *
 * In rounds each has a part of every block or cell. Then all_gather and reduce_scatter are never
 * one call, which would put the parts of the blocks one behind the other. An all_to_all in place
 * has its cells copied part by part, for others use the scratch in between: each part goes where
 * one of the same size comes from. (With counts of its own it is not done in place: libcommd
 * refuses that. A client that asks for it all the same gets wrong data, all of them its own.) */
#include "transport/gpu/gpu_plan_priv.h"

/* --- cells ---------------------------------------------------------------------------------- */

uint64_t cell_sent(const struct gpu_plan *p, unsigned k, uint32_t to)
{
    const struct coll_info *info = &coll_table[p->desc.coll];
    const struct gpu_rank *r = &p->ranks[k];
    bool many = coll_blocks(info->send);

    if (info->rooted && (many ? r->rank : to) != p->desc.root)
        return 0;
    if (!info->counted)
        return p->desc.count;
    return r->send_counts[many ? to : 0];
}

uint64_t cell_got(const struct gpu_plan *p, unsigned k, uint32_t from)
{
    const struct coll_info *info = &coll_table[p->desc.coll];
    const struct gpu_rank *r = &p->ranks[k];
    bool many = coll_blocks(info->recv);

    if (info->rooted && (many ? r->rank : from) != p->desc.root)
        return 0;
    if (!info->counted)
        return p->desc.count;
    return r->recv_counts[many ? from : 0];
}

/* A cell of @n elements in the round that begins at @lo. */
static uint64_t cell_part(const struct gpu_plan *p, uint64_t n, uint64_t lo)
{
    uint64_t left = n > lo ? n - lo : 0;

    return p->rounds > 1 ? MIN(left, p->chunk) : left;
}

/* An all_to_all whose send and recv are one buffer, which is copied to scratch first. */
static bool cells_in_place(const struct gpu_plan *p, unsigned k)
{
    const struct coll_info *info = &coll_table[p->desc.coll];
    const struct gpu_rank *r = &p->ranks[k];

    return coll_blocks(info->send) && coll_blocks(info->recv) && !r->send_blocks &&
           !r->recv_blocks && r->send == r->recv;
}

static uint64_t sent_bytes(const struct gpu_plan *p, unsigned k)
{
    uint64_t n = 0;

    for (uint32_t to = 0; to < p->world; to++)
        n += cell_sent(p, k, to);
    return n * plan_esize(p);
}

/* Of scratch, before what rank @k needs. */
static uint64_t packed_before(const struct gpu_plan *p, unsigned k)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < k; i++) {
        if (cells_in_place(p, i))
            n += ALIGN_UP(sent_bytes(p, i), 256);
    }
    return n;
}

uint64_t gpu_plan_cell(const struct gpu_plan *p)
{
    const struct coll_info *info = &coll_table[p->desc.coll];
    uint64_t most = 0;

    if (!info->counted || info->window != WINDOW_CELLS)
        return 0;
    for (unsigned k = 0; k < p->nranks; k++)
        for (uint32_t r = 0; r < p->world; r++)
            most = MAX(most, MAX(cell_sent(p, k, r), cell_got(p, k, r)));
    return most;
}

uint64_t cells_scratch(const struct gpu_plan *p)
{
    return coll_table[p->desc.coll].window == WINDOW_CELLS ? packed_before(p, p->nranks) : 0;
}

static cu_ptr sent_base(const struct gpu_plan *p, unsigned k)
{
    return cells_in_place(p, k) ? p->at + packed_before(p, k) : p->ranks[k].send;
}

/* Blocks of a buffer, one after the other: asked for in the order of ranks. */
struct gpu_blocks {
    const cu_ptr *list;
    const uint64_t *counts;
    uint64_t count, esize;
    cu_ptr next;
};

static cu_ptr blocks_next(struct gpu_blocks *b, uint32_t rank)
{
    cu_ptr at = b->next;

    b->next += (b->counts ? b->counts[rank] : b->count) * b->esize;
    return b->list ? b->list[rank] : at;
}

/* Buffers of one block are asked for that block. */
static struct gpu_blocks blocks_of(const struct gpu_plan *p, bool many, const cu_ptr *list,
                                   cu_ptr base, const uint64_t *counts)
{
    return (struct gpu_blocks){
        .list = many ? list : NULL,
        .counts = many && coll_table[p->desc.coll].counted ? counts : NULL,
        .count = p->desc.count,
        .esize = many ? plan_esize(p) : 0,
        .next = base,
    };
}

static struct gpu_blocks blocks_sent(const struct gpu_plan *p, unsigned k)
{
    const struct gpu_rank *r = &p->ranks[k];
    bool cells = coll_table[p->desc.coll].window == WINDOW_CELLS;

    return blocks_of(p, coll_blocks(coll_table[p->desc.coll].send), r->send_blocks,
                     cells ? sent_base(p, k) : r->send, r->send_counts);
}

static struct gpu_blocks blocks_got(const struct gpu_plan *p, unsigned k)
{
    const struct gpu_rank *r = &p->ranks[k];

    return blocks_of(p, coll_blocks(coll_table[p->desc.coll].recv), r->recv_blocks, r->recv,
                     r->recv_counts);
}

/* Of all that rank @k sends. */
static void pack_part(const struct gpu_plan *p, const struct gpu_sink *sink, unsigned k,
                      uint64_t from, uint64_t bytes)
{
    struct gpu_move m = {.count = bytes,
                         .dtype = DTYPE_U8,
                         .nsrc = 1,
                         .ndst = 1,
                         .src = {p->ranks[k].send + from},
                         .dst = {sent_base(p, k) + from}};

    if (bytes)
        sink->move(sink->arg, &m);
}

static void cells_pack(const struct gpu_plan *p, uint64_t lo, const struct gpu_sink *sink)
{
    size_t esize = plan_esize(p);

    for (unsigned k = 0; k < p->nranks; k++) {
        uint64_t from = 0;

        if (!cells_in_place(p, k))
            continue;
        if (p->rounds == 1)
            pack_part(p, sink, k, 0, sent_bytes(p, k));
        for (uint32_t r = 0; p->rounds > 1 && r < p->world; r++) {
            uint64_t n = cell_sent(p, k, r);

            pack_part(p, sink, k, (from + lo) * esize, cell_part(p, n, lo) * esize);
            from += n;
        }
    }
}

/* For each rank of this unit where the blocks from the ranks of this unit go. */
static void cells_local(const struct gpu_plan *p, uint64_t lo, const struct gpu_sink *sink)
{
    cu_ptr to_at[BATCH_SOURCES][BATCH_SOURCES]; /* receiver, sender */
    uint64_t off = lo * plan_esize(p);

    for (unsigned j = 0; j < p->nranks; j++) {
        struct gpu_blocks b = blocks_got(p, j);
        unsigned i = 0;

        for (uint32_t r = 0; r < p->world; r++) {
            cu_ptr at = blocks_next(&b, r) + off;

            if (plan_here(p, r))
                to_at[j][i++] = at;
        }
    }
    for (unsigned i = 0; i < p->nranks; i++) {
        struct gpu_blocks b = blocks_sent(p, i);
        unsigned j = 0;

        for (uint32_t r = 0; r < p->world; r++) {
            cu_ptr at = blocks_next(&b, r) + off;

            if (plan_here(p, r))
                plan_copy(p, sink, cell_part(p, cell_sent(p, i, r), lo), at, to_at[j++][i]);
        }
    }
}

static void cells_calls(const struct gpu_plan *p, uint64_t lo, const struct gpu_sink *sink)
{
    struct gpu_blocks b[BATCH_SOURCES];
    uint64_t off = lo * plan_esize(p);

    for (unsigned i = 0; i < p->nranks; i++)
        b[i] = blocks_sent(p, i);
    for (uint32_t to = 0; to < p->world; to++) {
        for (unsigned i = 0; i < p->nranks; i++) {
            cu_ptr at = blocks_next(&b[i], to) + off;

            if (!plan_here(p, to))
                plan_call(p, sink, GPU_SEND, p->unit_of_rank[to],
                          cell_part(p, cell_sent(p, i, to), lo), at, 0);
        }
    }
    for (unsigned j = 0; j < p->nranks; j++) {
        b[j] = blocks_got(p, j);
        for (uint32_t from = 0; from < p->world; from++) {
            cu_ptr at = blocks_next(&b[j], from) + off;

            if (!plan_here(p, from))
                plan_call(p, sink, GPU_RECV, p->unit_of_rank[from],
                          cell_part(p, cell_got(p, j, from), lo), 0, at);
        }
    }
}

void plan_cells(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                const struct gpu_sink *sink)
{
    uint64_t lo = round * p->chunk;

    if (phase == GPU_PACK)
        cells_pack(p, lo, sink);
    else if (phase == GPU_BEFORE)
        cells_local(p, lo, sink);
    else if (phase == GPU_CALLS && p->nunits > 1)
        cells_calls(p, lo, sink);
}

/* --- all_gather ------------------------------------------------------------------------------ */

static void gather_native(const struct gpu_plan *p, enum gpu_phase phase,
                          const struct gpu_sink *sink)
{
    uint64_t bytes = p->desc.count * plan_esize(p);
    const cu_ptr *list = p->ranks->recv_blocks;

    if (phase == GPU_CALLS)
        plan_call(p, sink, GPU_ALL_GATHER, 0, p->desc.count, p->ranks->send,
                  list ? p->at : p->ranks->recv);
    for (uint32_t r = 0; list && phase == GPU_AFTER && r < p->world; r++)
        plan_copy(p, sink, p->desc.count, p->at + r * bytes, list[r]);
}

/* Elements of rank @r's block in a round that begins at @lo; where there are rounds. */
static uint64_t round_part(const struct gpu_plan *p, uint32_t r, uint64_t lo)
{
    uint64_t n = plan_count(p, r), left = n > lo ? n - lo : 0;

    return p->way == WAY_GATHER || p->way == WAY_SCATTER ? MIN(left, p->chunk) : left;
}

/* @before: of those here, from send; else of those elsewhere, from the first rank's recv. */
static void gather_spread(const struct gpu_plan *p, uint64_t lo, bool before,
                          const struct gpu_sink *sink)
{
    uint64_t off = lo * plan_esize(p);
    struct gpu_blocks b[BATCH_SOURCES];

    for (unsigned k = 0; k < p->nranks; k++)
        b[k] = blocks_got(p, k);
    for (uint32_t r = 0; r < p->world; r++) {
        struct gpu_move m = plan_move(p, round_part(p, r, lo), false);

        m.nsrc = 1;
        for (unsigned k = 0; k < p->nranks; k++)
            m.dst[m.ndst++] = blocks_next(&b[k], r) + off;
        m.src[0] = before && plan_here(p, r) ? plan_rank(p, r)->send + off : m.dst[0];
        if (before == plan_here(p, r) && m.count && (before || p->nranks > 1))
            sink->move(sink->arg, &m);
    }
}

static void gather_calls(const struct gpu_plan *p, uint64_t lo, const struct gpu_sink *sink)
{
    struct gpu_blocks b = blocks_got(p, 0);
    uint64_t off = lo * plan_esize(p);

    for (uint32_t r = 0; r < p->world; r++) {
        cu_ptr at = blocks_next(&b, r) + off;

        at = plan_here(p, r) ? plan_rank(p, r)->send + off : at;
        plan_call(p, sink, GPU_BROADCAST, p->unit_of_rank[r], round_part(p, r, lo), at, at);
    }
}

void plan_gather(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                 const struct gpu_sink *sink)
{
    uint64_t lo = p->way == WAY_GATHER ? round * p->chunk : 0;

    if (p->way == WAY_GATHER_NATIVE)
        gather_native(p, phase, sink);
    else if (phase == GPU_BEFORE || (phase == GPU_AFTER && p->nunits > 1))
        gather_spread(p, lo, phase == GPU_BEFORE, sink);
    else if (phase == GPU_CALLS && p->nunits > 1)
        gather_calls(p, lo, sink);
}

/* --- reduce_scatter --------------------------------------------------------------------------- */

static void scatter_native(const struct gpu_plan *p, enum gpu_phase phase,
                           const struct gpu_sink *sink)
{
    uint64_t bytes = p->desc.count * plan_esize(p);
    const cu_ptr *list = p->ranks->send_blocks;

    for (uint32_t r = 0; list && phase == GPU_BEFORE && r < p->world; r++)
        plan_copy(p, sink, p->desc.count, list[r], p->at + r * bytes);
    if (phase == GPU_CALLS)
        plan_call(p, sink, GPU_REDUCE_SCATTER, 0, p->desc.count, list ? p->at : p->ranks->send,
                  p->ranks->recv);
    else if (phase == GPU_AFTER)
        plan_divide(p, sink, p->desc.count, p->ranks->recv);
}

/* Where this unit's share of rank @r's block is: in the recv of a rank of this unit, else in
 * scratch. */
static cu_ptr scatter_at(const struct gpu_plan *p, uint32_t r, uint64_t lo)
{
    if (plan_here(p, r))
        return plan_rank(p, r)->recv + lo * plan_esize(p);
    return p->at + r * p->chunk * plan_esize(p);
}

static void scatter_block(const struct gpu_plan *p, enum gpu_phase phase,
                          const struct gpu_sink *sink, uint32_t r, uint64_t lo, struct gpu_move *m)
{
    cu_ptr at = scatter_at(p, r, lo);

    m->dst[m->ndst++] = at;
    if (phase == GPU_BEFORE && (plan_partial(p) || p->nunits == 1))
        sink->move(sink->arg, m);
    else if (phase == GPU_CALLS && p->nunits > 1)
        plan_call(p, sink, GPU_REDUCE, p->unit_of_rank[r], m->count,
                  plan_partial(p) ? at : m->src[0], plan_here(p, r) ? at : 0);
    else if (phase == GPU_AFTER && p->nunits > 1 && plan_here(p, r))
        plan_divide(p, sink, m->count, at);
}

void plan_scatter(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                  const struct gpu_sink *sink)
{
    uint64_t lo = p->way == WAY_SCATTER ? round * p->chunk : 0;
    struct gpu_blocks b[BATCH_SOURCES];

    if (p->way == WAY_SCATTER_NATIVE) {
        scatter_native(p, phase, sink);
        return;
    }
    for (unsigned k = 0; k < p->nranks; k++)
        b[k] = blocks_sent(p, k);
    for (uint32_t r = 0; r < p->world; r++) {
        struct gpu_move m = plan_move(p, round_part(p, r, lo), true);

        for (unsigned k = 0; k < p->nranks; k++)
            m.src[m.nsrc++] = blocks_next(&b[k], r) + lo * plan_esize(p);
        if (m.count)
            scatter_block(p, phase, sink, r, lo, &m);
    }
}
