/* gpu_plan.c - checks an operation, chooses its way, and the ways of those whose data are one
 * vector. Pure. See gpu_plan.h.
 *
 * Between units a vector is first reduced over the ranks of a unit, so that each unit takes part in
 * NCCL once, however many ranks it has. NCCL works in the buffers of ranks where it can: in the
 * first rank's recv, or directly from send where a unit has one rank and nothing is scaled. Neither
 * send nor the recv of a rank that gets nothing is written, so a reduce needs scratch.
 *
 * NCCL is asked for sums where commd says avg or premul_sum: see shm/gpu/able.c.
 *
 * What units must find alike - the way, the number of rounds, the order of calls - depends on the
 * description, on the counts that all ranks give, and on who is where; never on addresses, which
 * only this unit knows. How large the largest cell is units tell each other: gpu_plan_cell(). */
#include "transport/gpu/gpu_plan_priv.h"

#include "shm/gpu/able.h"

/* Bytes of a buffer: far above any, and 4096 times that is a number still. */
#define PLAN_BYTES_MOST ((uint64_t)1 << 48)

/* --- is it an operation ------------------------------------------------------------------ */

const struct gpu_rank *plan_rank(const struct gpu_plan *p, uint32_t rank)
{
    for (unsigned k = 0; k < p->nranks; k++) {
        if (p->ranks[k].rank == rank)
            return &p->ranks[k];
    }
    return NULL;
}

static bool ranks_valid(const struct gpu_plan *p)
{
    uint32_t k = 0;

    if (!p->world || !p->nranks || p->nranks > BATCH_SOURCES || p->unit >= p->nunits)
        return false;
    for (uint32_t r = 0; r < p->world; r++) {
        if (p->unit_of_rank[r] >= p->nunits)
            return false;
        if (plan_here(p, r) && (k == p->nranks || p->ranks[k++].rank != r))
            return false;
    }
    return k == p->nranks;
}

/* Elements of a buffer as counts say; false: too many. */
static bool plan_counts_valid(const uint64_t *counts, uint32_t n, size_t esize)
{
    uint64_t most = PLAN_BYTES_MOST / esize;

    for (uint32_t r = 0; counts && r < n; r++) {
        if (counts[r] > most)
            return false;
        most -= counts[r];
    }
    return counts != NULL;
}

static bool address_valid(cu_ptr at, uint64_t count, size_t esize)
{
    return !count || (at && at % esize == 0);
}

/* One side of a rank: counts where the operation has them, and an address for all that is moved. */
static bool side_valid(const struct gpu_plan *p, unsigned extent, bool root, cu_ptr base,
                       const cu_ptr *list, const uint64_t *counts)
{
    const struct coll_info *info = &coll_table[p->desc.coll];
    bool blocks = coll_blocks(extent), cells = info->window == WINDOW_CELLS;
    size_t esize = plan_esize(p);

    if (!coll_at(extent, root))
        return true;
    if (info->counted && (blocks || cells) &&
        !plan_counts_valid(counts, blocks ? p->world : 1, esize))
        return false;
    if (!blocks)
        return info->counted ? base % esize == 0 : address_valid(base, p->desc.count, esize);
    for (uint32_t r = 0; list && r < p->world; r++) {
        if (!address_valid(list[r], info->counted ? counts[r] : p->desc.count, esize))
            return false;
    }
    return list || info->counted ? base % esize == 0 : address_valid(base, p->desc.count, esize);
}

/* What ranks of this unit say about the same thing must be the same: all_gather_v,
 * reduce_scatter_v: the counts; of cells: what one sends and the other expects. */
static bool counts_agree(const struct gpu_plan *p)
{
    const struct coll_info *info = &coll_table[p->desc.coll];

    if (!info->counted)
        return true;
    for (unsigned k = 0; k < p->nranks; k++) {
        const struct gpu_rank *a = &p->ranks[0], *b = &p->ranks[k];
        bool sends = coll_blocks(info->send);

        if (info->window == WINDOW_BLOCKS &&
            memcmp(sends ? a->send_counts : a->recv_counts, sends ? b->send_counts : b->recv_counts,
                   p->world * sizeof(uint64_t)) != 0)
            return false;
        for (unsigned j = 0; info->window == WINDOW_CELLS && j < p->nranks; j++) {
            if (cell_sent(p, k, p->ranks[j].rank) != cell_got(p, j, b->rank))
                return false;
        }
    }
    return true;
}

static uint64_t counts_sum(const uint64_t *counts, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < n; r++)
        sum += counts[r];
    return sum;
}

/* That a buffer is there which counts say something about. */
static bool counted_valid(const struct gpu_plan *p, const struct gpu_rank *r, unsigned extent,
                          cu_ptr base, const cu_ptr *list, const uint64_t *counts)
{
    bool cells = coll_table[p->desc.coll].window == WINDOW_CELLS;

    if (!coll_at(extent, r->rank == p->desc.root))
        return true;
    if (!coll_blocks(extent))
        return base || !(cells ? counts[0] : plan_count(p, r->rank));
    return base || list || !counts_sum(counts, p->world);
}

static bool buffers_valid(const struct gpu_plan *p)
{
    const struct coll_info *info = &coll_table[p->desc.coll];

    for (unsigned k = 0; info->counted && k < p->nranks; k++) {
        const struct gpu_rank *r = &p->ranks[k];

        if (!counted_valid(p, r, info->send, r->send, r->send_blocks, r->send_counts) ||
            !counted_valid(p, r, info->recv, r->recv, r->recv_blocks, r->recv_counts))
            return false;
    }
    return true;
}

static bool plan_valid(const struct gpu_plan *p)
{
    const struct op_desc *d = &p->desc;
    const struct coll_info *info;

    if (!ranks_valid(p) || !gpu_able(d, p->nunits))
        return false;
    info = &coll_table[d->coll];
    if (info->window == WINDOW_NONE)
        return true;
    if ((info->rooted && d->root >= p->world) ||
        d->count > PLAN_BYTES_MOST / plan_esize(p) / p->world)
        return false;
    for (unsigned k = 0; k < p->nranks; k++) {
        const struct gpu_rank *r = &p->ranks[k];
        bool root = info->rooted && r->rank == d->root;

        if (!side_valid(p, info->send, root, r->send, r->send_blocks, r->send_counts) ||
            !side_valid(p, info->recv, root, r->recv, r->recv_blocks, r->recv_counts))
            return false;
    }
    return buffers_valid(p) && counts_agree(p);
}

/* --- the way ------------------------------------------------------------------------------ */

uint64_t plan_count(const struct gpu_plan *p, uint32_t rank)
{
    const struct coll_info *info = &coll_table[p->desc.coll];

    if (!info->counted)
        return p->desc.count;
    return (coll_blocks(info->send) ? p->ranks->send_counts : p->ranks->recv_counts)[rank];
}

static bool in_order(const struct gpu_plan *p)
{
    for (uint32_t r = 0; r < p->world; r++) {
        if (p->unit_of_rank[r] != r)
            return false;
    }
    return p->world == p->nunits;
}

static enum plan_way way_of(const struct gpu_plan *p)
{
    bool scaled = p->desc.redop == REDOP_PREMUL_SUM;

    if (p->nunits == 1)
        return WAY_ALONE;
    switch ((enum coll)p->desc.coll) {
    case COLL_BARRIER:
        return WAY_BARRIER;
    case COLL_ALL_REDUCE:
        return WAY_ALL_REDUCE;
    case COLL_REDUCE:
        return WAY_REDUCE;
    case COLL_BROADCAST:
        return WAY_BROADCAST;
    case COLL_ALL_GATHER:
        return in_order(p) ? WAY_GATHER_NATIVE : WAY_GATHER;
    case COLL_ALL_GATHER_V:
        return WAY_GATHER;
    case COLL_REDUCE_SCATTER:
        return in_order(p) && !scaled ? WAY_SCATTER_NATIVE : WAY_SCATTER;
    case COLL_REDUCE_SCATTER_V:
        return WAY_SCATTER;
    case COLL_GATHER:
    case COLL_SCATTER:
    case COLL_ALL_TO_ALL:
    case COLL_GATHER_V:
    case COLL_SCATTER_V:
    case COLL_ALL_TO_ALL_V:
    case COLL_COUNT:
        break;
    }
    return WAY_CELLS;
}

/* plan_partial() on some unit. */
static bool any_partial(const struct gpu_plan *p)
{
    return p->world > p->nunits || p->desc.redop == REDOP_PREMUL_SUM;
}

/* Elements of the longest block. */
static uint64_t longest(const struct gpu_plan *p)
{
    uint64_t most = 0;

    for (uint32_t r = 0; r < p->world; r++)
        most = MAX(most, plan_count(p, r));
    return most;
}

static bool set_chunk(struct gpu_plan *p, uint64_t blocks)
{
    uint64_t room = p->most_scratch ? p->most_scratch : GPU_PLAN_SCRATCH;
    uint64_t most = longest(p), chunk = room / (blocks * plan_esize(p));

    chunk = MAX(chunk & ~(uint64_t)15, (uint64_t)1);
    p->chunk = any_partial(p) ? MIN(chunk, most) : most;
    if (most && (most - 1) / p->chunk >= UINT32_MAX)
        return false;
    p->rounds = most ? (uint32_t)((most - 1) / p->chunk) + 1 : 1;
    if (plan_partial(p))
        p->scratch = p->chunk * blocks * plan_esize(p);
    return true;
}

bool gpu_plan_make(struct gpu_plan *p)
{
    uint64_t all;

    if (!plan_valid(p))
        return false;
    p->way = way_of(p);
    p->rounds = 1;
    p->scratch = p->at = 0;
    p->chunk = p->desc.count;
    all = p->desc.coll == COLL_BARRIER ? 0 : p->desc.count * plan_esize(p) * p->world;
    if (p->way == WAY_BARRIER)
        p->scratch = 4;
    else if (p->way == WAY_GATHER_NATIVE)
        p->scratch = p->ranks->recv_blocks ? all : 0;
    else if (p->way == WAY_SCATTER_NATIVE)
        p->scratch = p->ranks->send_blocks ? all : 0;
    else
        p->scratch = cells_scratch(p);
    if (p->way == WAY_GATHER)
        p->chunk = longest(p);
    if (p->way == WAY_REDUCE || p->way == WAY_SCATTER)
        return set_chunk(p, p->way == WAY_REDUCE ? 1 : p->world);
    return true;
}

uint32_t gpu_plan_part(const struct gpu_plan *p, bool beside)
{
    bool order_shows = coll_table[p->desc.coll].reduces && dtype_is_float(p->desc.dtype) &&
                       p->desc.redop != REDOP_MIN && p->desc.redop != REDOP_MAX && p->nunits > 2;

    return beside && !order_shows ? GPU_PART_BESIDE : GPU_PART;
}

/* How many blocks or cells of a GPU a round has a part of, about; 0: it cannot be cut. */
static uint64_t parts_of_round(const struct gpu_plan *p)
{
    bool rooted = coll_table[p->desc.coll].rooted;

    switch ((enum plan_way)p->way) {
    case WAY_ALL_REDUCE:
    case WAY_REDUCE:
    case WAY_BROADCAST:
        return 1;
    case WAY_GATHER_NATIVE:
    case WAY_GATHER:
    case WAY_SCATTER_NATIVE:
    case WAY_SCATTER:
        return p->world;
    case WAY_CELLS:
        return (uint64_t)p->world * (rooted ? 1 : (p->world + p->nunits - 1) / p->nunits);
    case WAY_ALONE:
    case WAY_BARRIER:
        break;
    }
    return 0;
}

void gpu_plan_slice(struct gpu_plan *p, uint64_t bytes, uint64_t cell)
{
    bool counted_cells = p->way == WAY_CELLS && coll_table[p->desc.coll].counted;
    uint64_t parts = parts_of_round(p), most, now, chunk;

    if (!parts)
        return;
    most = counted_cells ? cell : longest(p);
    now = counted_cells ? cell : p->chunk;
    chunk = bytes / (plan_esize(p) * parts);
    chunk = MAX(chunk & ~(uint64_t)15, (uint64_t)16);
    if (chunk >= now || (most - 1) / chunk >= UINT32_MAX)
        return;
    /* NCCL's own calls would have the parts of the blocks one behind the other */
    if (p->way == WAY_GATHER_NATIVE)
        p->way = WAY_GATHER;
    else if (p->way == WAY_SCATTER_NATIVE)
        p->way = WAY_SCATTER;
    p->chunk = chunk;
    p->rounds = (uint32_t)((most - 1) / chunk) + 1;
}

/* ncclDataType_t of those that gpu_able() lets through. */
static uint8_t call_type(unsigned dtype)
{
    static const uint8_t types[DTYPE_COUNT] = {
        [DTYPE_I8] = NCCL_I8,   [DTYPE_U8] = NCCL_U8,     [DTYPE_I32] = NCCL_I32,
        [DTYPE_U32] = NCCL_U32, [DTYPE_I64] = NCCL_I64,   [DTYPE_U64] = NCCL_U64,
        [DTYPE_F16] = NCCL_F16, [DTYPE_BF16] = NCCL_BF16, [DTYPE_F32] = NCCL_F32,
        [DTYPE_F64] = NCCL_F64,
    };

    return types[dtype];
}

/* ncclRedOp_t: avg and premul_sum are sums here. */
static uint8_t call_op(unsigned redop)
{
    return redop == REDOP_PROD  ? NCCL_PROD
           : redop == REDOP_MIN ? NCCL_MIN
           : redop == REDOP_MAX ? NCCL_MAX
                                : NCCL_SUM;
}

void plan_call(const struct gpu_plan *p, const struct gpu_sink *sink, enum gpu_call_kind kind,
               uint32_t unit, uint64_t count, cu_ptr send, cu_ptr recv)
{
    bool reduces = coll_table[p->desc.coll].reduces;
    struct gpu_call c = {.kind = kind,
                         .type = reduces ? call_type(p->desc.dtype) : NCCL_U8,
                         .op = reduces ? call_op(p->desc.redop) : NCCL_SUM,
                         .unit = unit,
                         .count = reduces ? count : count * plan_esize(p),
                         .send = send,
                         .recv = recv};

    assert(unit < p->nunits);
    if (count)
        sink->call(sink->arg, &c);
}

/* --- vectors ------------------------------------------------------------------------------- */

struct gpu_move plan_move(const struct gpu_plan *p, uint64_t count, bool sums)
{
    struct gpu_move m = {.count = count, .dtype = p->desc.dtype, .redop = REDOP_SUM};

    if (sums) {
        /* between units the division comes last */
        if (p->way == WAY_ALONE || p->desc.redop != REDOP_AVG)
            m.redop = p->desc.redop;
        m.divide = m.redop == REDOP_AVG ? p->world : 0;
        for (unsigned k = 0; k < p->nranks && m.redop == REDOP_PREMUL_SUM; k++)
            m.scale[k] = p->ranks[k].scale;
    }
    return m;
}

void plan_copy(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t count, cu_ptr from,
               cu_ptr to)
{
    struct gpu_move m = plan_move(p, count, false);

    m.nsrc = m.ndst = 1;
    m.src[0] = from;
    m.dst[0] = to;
    if (count)
        sink->move(sink->arg, &m);
}

void plan_divide(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t count, cu_ptr at)
{
    struct gpu_move m = plan_move(p, count, false);

    m.redop = REDOP_AVG;
    m.divide = p->world;
    m.nsrc = m.ndst = 1;
    m.src[0] = m.dst[0] = at;
    if (p->desc.redop == REDOP_AVG)
        sink->move(sink->arg, &m);
}

/* All sends to @dst, or if that is 0 to all recvs. */
static void reduce_here(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t lo,
                        uint64_t count, cu_ptr dst)
{
    struct gpu_move m = plan_move(p, count, true);

    for (unsigned k = 0; k < p->nranks; k++) {
        m.src[m.nsrc++] = p->ranks[k].send + lo * plan_esize(p);
        if (!dst)
            m.dst[m.ndst++] = p->ranks[k].recv;
    }
    if (dst)
        m.dst[m.ndst++] = dst;
    sink->move(sink->arg, &m);
}

static void spread_here(const struct gpu_plan *p, const struct gpu_sink *sink, uint64_t lo,
                        uint64_t count, cu_ptr from)
{
    struct gpu_move m = plan_move(p, count, false);

    m.src[m.nsrc++] = from;
    for (unsigned k = 0; k < p->nranks; k++)
        m.dst[m.ndst++] = p->ranks[k].recv + lo * plan_esize(p);
    if (coll_table[p->desc.coll].reduces && p->desc.redop == REDOP_AVG) {
        m.redop = REDOP_AVG;
        m.divide = p->world;
    } else if (p->nranks == 1) {
        return;
    }
    sink->move(sink->arg, &m);
}

static void plan_all_reduce(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                            const struct gpu_sink *sink)
{
    uint64_t lo = round * p->chunk, n = MIN(p->chunk, p->desc.count - lo);
    uint64_t off = lo * plan_esize(p);
    cu_ptr recv = p->ranks->recv + off;

    if (phase == GPU_BEFORE && plan_partial(p))
        reduce_here(p, sink, lo, n, recv);
    else if (phase == GPU_CALLS)
        plan_call(p, sink, GPU_ALL_REDUCE, 0, n, plan_partial(p) ? recv : p->ranks->send + off,
                  recv);
    else if (phase == GPU_AFTER)
        spread_here(p, sink, lo, n, recv);
}

static void plan_reduce(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                        const struct gpu_sink *sink)
{
    uint64_t lo = round * p->chunk, n = MIN(p->chunk, p->desc.count - lo);
    uint64_t off = lo * plan_esize(p);
    const struct gpu_rank *root = plan_rank(p, p->desc.root);
    cu_ptr to = root ? root->recv + off : p->at;

    if (phase == GPU_BEFORE && plan_partial(p))
        reduce_here(p, sink, lo, n, to);
    else if (phase == GPU_CALLS)
        plan_call(p, sink, GPU_REDUCE, p->unit_of_rank[p->desc.root], n,
                  plan_partial(p) ? to : p->ranks->send + off, root ? to : 0);
    else if (phase == GPU_AFTER && root)
        plan_divide(p, sink, n, to);
}

static void plan_broadcast(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                           const struct gpu_sink *sink)
{
    uint64_t lo = round * p->chunk, n = MIN(p->chunk, p->desc.count - lo);
    const struct gpu_rank *root = plan_rank(p, p->desc.root);
    cu_ptr at = (root ? root->recv : p->ranks->recv) + lo * plan_esize(p);

    if (phase == GPU_CALLS && p->nunits > 1)
        plan_call(p, sink, GPU_BROADCAST, p->unit_of_rank[p->desc.root], n, at, at);
    else if (phase == (root ? GPU_BEFORE : GPU_AFTER))
        spread_here(p, sink, lo, n, at);
}

static void plan_barrier(const struct gpu_plan *p, enum gpu_phase phase,
                         const struct gpu_sink *sink)
{
    const struct gpu_call c = {.kind = GPU_ALL_REDUCE,
                               .type = NCCL_I32,
                               .op = NCCL_SUM,
                               .count = 1,
                               .send = p->at,
                               .recv = p->at};

    if (phase == GPU_CALLS)
        sink->call(sink->arg, &c);
}

static void plan_alone(const struct gpu_plan *p, enum gpu_phase phase, const struct gpu_sink *sink)
{
    const struct coll_info *info = &coll_table[p->desc.coll];

    if (info->window == WINDOW_NONE)
        return;
    if (info->window == WINDOW_CELLS)
        plan_cells(p, 0, phase, sink);
    else if (info->window == WINDOW_BLOCKS && info->reduces)
        plan_scatter(p, 0, phase, sink);
    else if (info->window == WINDOW_BLOCKS)
        plan_gather(p, 0, phase, sink);
    else if (!info->reduces)
        plan_broadcast(p, 0, phase, sink);
    else if (phase == GPU_BEFORE)
        reduce_here(p, sink, 0, p->desc.count, info->rooted ? plan_rank(p, p->desc.root)->recv : 0);
}

void gpu_plan_phase(const struct gpu_plan *p, uint32_t round, enum gpu_phase phase,
                    const struct gpu_sink *sink)
{
    const struct coll_info *info = &coll_table[p->desc.coll];

    if (!info->counted && info->window != WINDOW_NONE && !p->desc.count)
        return;
    switch ((enum plan_way)p->way) {
    case WAY_ALONE:
        plan_alone(p, phase, sink);
        break;
    case WAY_BARRIER:
        plan_barrier(p, phase, sink);
        break;
    case WAY_ALL_REDUCE:
        plan_all_reduce(p, round, phase, sink);
        break;
    case WAY_REDUCE:
        plan_reduce(p, round, phase, sink);
        break;
    case WAY_BROADCAST:
        plan_broadcast(p, round, phase, sink);
        break;
    case WAY_GATHER_NATIVE:
    case WAY_GATHER:
        plan_gather(p, round, phase, sink);
        break;
    case WAY_SCATTER_NATIVE:
    case WAY_SCATTER:
        plan_scatter(p, round, phase, sink);
        break;
    case WAY_CELLS:
        plan_cells(p, round, phase, sink);
        break;
    }
}
