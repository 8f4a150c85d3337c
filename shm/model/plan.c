/* plan.c - cutting operations into steps. Pure. See plan.h.
 *
 * Blocks of different sizes (_v) are cut by one unit, so a short block just ends sooner. Where all
 * ranks know all counts the blocks of a step lie one after the other, and the unit is as large as
 * they fit in. Cells lie at fixed distances: there nobody but sender and receiver knows a count. */
#include "shm/model/plan.h"

/* How nodes carry out each collective: a small one together with the consistency check, for which
 * any schedule by recursive doubling will do; larger data step by step, up to plan_halving_net() in
 * few messages. 0: not in few messages. */
static const struct {
    uint8_t small, data, few_messages;
} schedules[COLL_COUNT] = {
    [COLL_BARRIER] = {SCHED_RD_ALL_REDUCE, SCHED_RING_ALL_REDUCE},
    [COLL_ALL_REDUCE] = {SCHED_RD_ALL_REDUCE, SCHED_RING_ALL_REDUCE, SCHED_HALVING_ALL_REDUCE},
    [COLL_BROADCAST] = {SCHED_RD_BROADCAST, SCHED_CHAIN_BROADCAST},
    [COLL_ALL_GATHER] = {SCHED_RD_ALL_GATHER, SCHED_RING_ALL_GATHER, SCHED_RD_ALL_GATHER},
    [COLL_REDUCE_SCATTER] = {SCHED_RD_ALL_REDUCE, SCHED_RING_REDUCE_SCATTER,
                             SCHED_HALVING_REDUCE_SCATTER},
    [COLL_REDUCE] = {SCHED_RD_REDUCE, SCHED_CHAIN_REDUCE},
    [COLL_GATHER] = {SCHED_RD_ALL_REDUCE, SCHED_TO_ROOT},
    [COLL_SCATTER] = {SCHED_RD_ALL_REDUCE, SCHED_FROM_ROOT},
    [COLL_ALL_TO_ALL] = {SCHED_RD_ALL_REDUCE, SCHED_EXCHANGE},
    [COLL_ALL_GATHER_V] = {SCHED_RD_ALL_GATHER, SCHED_RING_ALL_GATHER, SCHED_RD_ALL_GATHER},
    [COLL_REDUCE_SCATTER_V] = {SCHED_RD_ALL_REDUCE, SCHED_RING_REDUCE_SCATTER,
                               SCHED_HALVING_REDUCE_SCATTER},
    [COLL_GATHER_V] = {SCHED_RD_ALL_REDUCE, SCHED_TO_ROOT},
    [COLL_SCATTER_V] = {SCHED_RD_ALL_REDUCE, SCHED_FROM_ROOT},
    [COLL_ALL_TO_ALL_V] = {SCHED_RD_ALL_REDUCE, SCHED_EXCHANGE},
};

static bool desc_valid(const struct op_desc *d, const struct plan_geom *g)
{
    const struct coll_info *info;
    size_t bytes;

    if (d->coll >= COLL_COUNT)
        return false;
    info = &coll_table[d->coll];
    if (info->window == WINDOW_NONE)
        return d->count == 0;
    if (d->dtype >= DTYPE_COUNT || (info->rooted && d->root >= g->world) ||
        (info->reduces && (d->redop >= REDOP_COUNT || !redop_defined(d->dtype, d->redop))))
        return false;
    /* the whole vector, all blocks together, must be addressable */
    return !mul_overflows(d->count, dtype_size(d->dtype) * g->world, &bytes) &&
           bytes <= SIZE_MAX / 4;
}

static unsigned most_local(const struct plan_geom *g)
{
    unsigned most = g->nlocal;

    for (unsigned n = 0; n < g->nnodes; n++)
        most = MAX(most, g->node_start[n + 1] - g->node_start[n]);
    return most;
}

/* How many cells a window, or the result window of a node, must hold. */
static uint64_t cells_needed(const struct plan *p, const struct plan_geom *g)
{
    uint64_t world = g->world;

    if (coll_table[p->coll].recv == EXTENT_BLOCKS && g->nnodes > 1)
        return world * most_local(g);
    if (coll_table[p->coll].send == EXTENT_ONE && g->nnodes == 1)
        return 1;
    return world;
}

static uint64_t sum_of_parts(const uint64_t *counts, unsigned n, uint64_t unit)
{
    uint64_t sum = 0;

    for (unsigned k = 0; k < n; k++)
        sum += MIN(counts[k], unit);
    return sum;
}

/* The largest unit whose parts of all blocks fit into @room elements. */
static uint64_t unit_of(const uint64_t *counts, unsigned n, uint64_t room)
{
    uint64_t lo = MAX(room / n, (uint64_t)1), hi = room;

    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;

        if (sum_of_parts(counts, n, mid) <= room)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static bool counts_valid(const struct op_desc *d, const uint64_t *counts, unsigned n)
{
    uint64_t most = 0;

    for (unsigned k = 0; k < n; k++)
        most = MAX(most, counts[k]);
    return most == d->count;
}

static bool is_pair(const struct plan_geom *g)
{
    return g->nlocal == 2 && g->cores >= 2;
}

/* On one node: does the root add up all, and the others only give what they have? */
static bool root_reduces(const struct plan_geom *g, unsigned coll)
{
    bool turns = g->nlocal > g->cores && g->nlocal <= PLAN_ROOT_ALONE;

    return coll == COLL_REDUCE && g->nnodes == 1 && (is_pair(g) || turns);
}

/* One synchronisation pays while every member (or the engine) can read all contributions faster
 * than two more hand-overs take: measured up to PLAN_SMALL for a few members. Nodes must cut alike
 * though they may have different numbers of members. */
static uint64_t small_alone(const struct plan_geom *g, const struct plan *p)
{
    uint64_t most;

    if (is_pair(g) && p->coll == COLL_ALL_REDUCE)
        return MIN((size_t)(dtype_is_half(p->dtype) ? PLAN_SMALL_PAIR_HALF : PLAN_SMALL_PAIR),
                   plan_chunk(g));
    if (g->nlocal <= g->cores)
        return g->nlocal <= 4 ? PLAN_SMALL : PLAN_SMALL / 4;
    most = (uint64_t)PLAN_SMALL_CORE * MAX(g->cores, 1u) / ((uint64_t)g->nlocal * g->nlocal);
    return MAX((uint64_t)PLAN_SMALL / 4, MIN(most, (uint64_t)PLAN_SMALL_TURNS));
}

uint64_t plan_registered(const struct plan_geom *g, unsigned coll)
{
    if (g->nnodes > 1 || g->nlocal < 2)
        return UINT64_MAX;
    if (coll == COLL_ALL_REDUCE)
        return g->nlocal > g->cores ? PLAN_REGISTERED_TURNS : PLAN_REGISTERED;
    return coll == COLL_BROADCAST || coll == COLL_ALL_GATHER || coll == COLL_REDUCE_SCATTER
               ? PLAN_REGISTERED_READ
               : UINT64_MAX;
}

/* What an operation of S bytes takes over more nodes than two (Thakur, Rabenseifner, Gropp 2005;
 * the consistency check, after which or with which it comes, is ours). An all_reduce, with i = 2:
 *
 *     doubling                        (R+2F) (S/B + S/E)
 *     halving     (iR+2F) (a + o S/C)  +  i ((P-1)/P + F) S/B  +  (2N-1)/N S/E
 *     a ring       i(N-1) (a + o S/C') +       i (N-1)/N  S/B  +   (N-1)/N S/E
 *
 *     a  latency         N  nodes    P  the largest power of two not above N, R = log2 P
 *     B  bandwidth       F  1 if P != N: others stand in for N - P nodes, and get all of theirs
 *     E  how fast an engine adds up  o  what a message costs it    C, C'  bytes of a step
 *
 * reduce_scatter and all_gather are the first or second half of it, i = 1; what the latter does not
 * add up it does not in either way. The messages of a ring are all alike, and short enough to stay
 * in cache. Those of halving are up to half a step, and are read from memory once more: so much is
 * the difference that was measured (8 nodes, 16 MB: all_reduce 71 ms by a ring, 80 by halving,
 * all_gather 41 and 49; all_reduce of 1 MB 6.8 and 5.6, over 32 nodes 85 and 41). In integers: all
 * nodes must find the same number. */
struct net_cost {
    uint64_t once, mib; /* ns, and ns per MiB */
};

struct net_model {
    uint64_t a, wire, add, n, p, r, f; /* ns, ns per MiB */
};

static struct net_model net_model(const struct plan_net *net, uint32_t n)
{
    struct net_model m = {
        .a = (net->latency_us ? net->latency_us : PLAN_LATENCY_US) * UINT64_C(1000),
        .wire = UINT64_C(1000000000) / (net->mbytes_s ? net->mbytes_s : PLAN_MBYTES_S),
        .add = UINT64_C(1000000000) / PLAN_ENGINE_MBS,
        .n = n,
        .p = 1,
    };

    while (2 * m.p <= n) {
        m.p *= 2;
        m.r++;
    }
    m.f = m.p != n;
    return m;
}

static struct net_cost cost_doubling(const struct net_model *m)
{
    return (struct net_cost){0, (m->r + 2 * m->f) * (m->wire + m->add)};
}

static struct net_cost cost_halving(const struct net_model *m, unsigned i)
{
    uint64_t moves = i * m->r + 2 * m->f;

    return (struct net_cost){moves * m->a,
                             moves * PLAN_MESSAGE_NS * ((1 << 20) / PLAN_CHUNK_HALVING) +
                                 i * (m->p - 1 + m->f * m->p) * m->wire / m->p +
                                 (2 * m->n - 1) * m->add / m->n};
}

static struct net_cost cost_ring(const struct net_model *m, unsigned i)
{
    uint64_t moves = i * (m->n - 1);

    return (struct net_cost){moves * m->a, moves * PLAN_MESSAGE_NS * ((1 << 20) / PLAN_CHUNK_NET) +
                                               moves * m->wire / m->n + (m->n - 1) * m->add / m->n};
}

/* Bytes up to which @x costs less than @y. */
static uint64_t cheaper_up_to(struct net_cost x, struct net_cost y)
{
    if (y.once <= x.once)
        return 0;
    return x.mib <= y.mib ? UINT64_MAX : ((y.once - x.once) << 20) / (x.mib - y.mib);
}

uint64_t plan_small_net(const struct plan_net *net, uint32_t nnodes)
{
    struct net_model m = net_model(net, nnodes);
    uint64_t most;

    if (nnodes <= 2)
        return PLAN_SMALL_NET;
    most = MIN(cheaper_up_to(cost_doubling(&m), cost_halving(&m, 2)),
               cheaper_up_to(cost_doubling(&m), cost_ring(&m, 2)));
    return MAX((uint64_t)PLAN_SMALL, MIN(most, (uint64_t)PLAN_SMALL_MOST)) & ~UINT64_C(4095);
}

uint64_t plan_halving_net(const struct plan_net *net, uint32_t nnodes, unsigned coll)
{
    struct net_model m = net_model(net, nnodes);
    unsigned i = coll == COLL_ALL_REDUCE ? 2 : 1;

    return nnodes <= 2 ? 0 : cheaper_up_to(cost_halving(&m, i), cost_ring(&m, i));
}

static void choose_path(struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    const struct coll_info *info = &coll_table[p->coll];
    bool net = g->nnodes > 1;
    uint64_t small = !net                         ? small_alone(g, p)
                     : p->coll == COLL_ALL_REDUCE ? plan_small_net(&g->net, g->nnodes)
                                                  : PLAN_SMALL_NET;

    switch ((enum coll_window)info->window) {
    case WINDOW_NONE:
        p->path = PATH_SMALL;
        break;
    case WINDOW_VECTOR:
        p->path = bytes <= small && (net || info->reduces) ? PATH_SMALL : PATH_STEPS;
        p->reduces = info->reduces && !root_reduces(g, p->coll) &&
                     (p->path == PATH_STEPS ||
                      (net && most_local(g) > 1 && bytes * most_local(g) > PLAN_SMALL_ALONE));
        break;
    case WINDOW_BLOCKS:
        p->path = net && !info->reduces && bytes <= small ? PATH_SMALL : PATH_STEPS;
        p->reduces = net && info->reduces;
        break;
    case WINDOW_CELLS:
        p->path = info->counted ? PATH_OPEN : PATH_STEPS;
        break;
    }
}

static void choose_schedule(struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    if (p->path == PATH_SMALL)
        p->schedule = schedules[p->coll].small;
    else if (g->nnodes == 2 && p->coll == COLL_ALL_REDUCE)
        p->schedule = SCHED_EXCHANGE;
    else if (schedules[p->coll].few_messages && bytes &&
             bytes <= plan_halving_net(&g->net, g->nnodes, p->coll))
        p->schedule = schedules[p->coll].few_messages;
    else
        p->schedule = schedules[p->coll].data;
}

static bool by_registered(const struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    return bytes >= plan_registered(g, p->coll) &&
           !(coll_table[p->coll].reduces && p->redop == REDOP_PREMUL_SUM);
}

/* Do results go past the caches? Where all ranks get all blocks, so that memory is what they wait
 * for: a rank alone is faster through the caches (broadcast of 64 MB: 5.3 ms beside 5.9). @bytes:
 * of all blocks together. */
static void choose_around(struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    const struct coll_info *info = &coll_table[p->coll];
    uint64_t given = coll_blocks(info->send) ? bytes : bytes / g->world;

    p->measured =
        g->nnodes == 1 && info->recv == EXTENT_BLOCKS && bytes + given >= PLAN_AROUND_LEAST;
    p->around = p->measured && g->around && bytes + given >= g->around;
}

/* Do those who only send wait for nobody? Where the root reduces it has no post for what it has
 * scaled itself. */
static bool senders_go_on(const struct plan *p, const struct plan_geom *g, bool pieces)
{
    const struct coll_info *info = &coll_table[p->coll];

    if (g->nnodes > 1 || !info->rooted || info->counted || p->reduces)
        return false;
    if (coll_to_root(p->coll) && !(g->plans & PLAN_SENDERS_GO_ON))
        return false;
    if (pieces && !(g->plans & PLAN_POSTS_IN_WINDOW))
        return false;
    return !(info->reduces && p->redop == REDOP_PREMUL_SUM);
}

/* Is what a member posts more than its post holds? @bytes: of all blocks together. */
static bool in_pieces(const struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    return p->steps > 1 ||
           (coll_blocks(coll_table[p->coll].recv) ? bytes / g->world : bytes) > PLAN_POST;
}

static bool set_steps(struct plan *p, uint64_t count)
{
    /* not (count + unit - 1) / unit: @count is what a member wrote, and may be any number */
    uint64_t steps = count ? count / p->unit + (count % p->unit != 0) : 1;

    /* step counters are compared across a wrap of 2^31 */
    if (steps > INT32_MAX / 2)
        return false;
    p->steps = (uint32_t)steps;
    return true;
}

/* Elements of a cell. With very many ranks the step may be as large as its window. */
static uint64_t cells_unit(const struct plan *p, const struct plan_geom *g, uint64_t room)
{
    uint64_t cells = cells_needed(p, g), most = plan_chunk(g) / p->esize;

    return room >= cells ? room / cells : MIN(most / cells, (uint64_t)1);
}

static size_t chunk_alone(const struct plan_geom *g, uint64_t bytes)
{
    size_t fine = ALIGN_UP(bytes / PLAN_STEPS_FINE, (uint64_t)4096);

    if (g->nlocal > g->cores)
        return plan_chunk(g);
    return MAX((size_t)PLAN_CHUNK_FINE, MIN(fine, plan_chunk(g)));
}

static uint64_t choose_unit(const struct plan *p, const struct plan_geom *g, uint64_t bytes)
{
    const struct coll_info *info = &coll_table[p->coll];
    size_t chunk = plan_chunk(g);
    /* all of a step is one message */
    bool whole = plan_swaps(p) || (info->rooted && info->window == WINDOW_VECTOR);
    bool few = p->path != PATH_SMALL && p->schedule == schedules[p->coll].few_messages;
    uint64_t room, unit;

    if (g->nnodes == 1 && p->path != PATH_OPEN)
        chunk = chunk_alone(g, bytes);
    if (g->nnodes > 1)
        chunk = MIN(chunk, few ? (size_t)PLAN_CHUNK_HALVING
                               : (size_t)PLAN_MESSAGE * (whole ? 1 : g->nnodes));
    if (g->nnodes == 2 && whole && bytes <= PLAN_ONE_STEP)
        chunk = PLAN_ONE_STEP;
    else if (g->nnodes > 1 && p->path != PATH_OPEN)
        chunk = MAX((size_t)PLAN_CHUNK_MIN, MIN(chunk, bytes / PLAN_DEPTH_NET));
    room = chunk / p->esize;
    _Static_assert(PLAN_SMALL_MOST <= PLAN_CHUNK_NET && PLAN_SMALL_NET <= PLAN_CHUNK_MIN,
                   "what is small is one step");
    if (p->path == PATH_SMALL && info->window == WINDOW_VECTOR)
        return MAX(bytes / p->esize, (uint64_t)1);
    if (p->counts)
        unit = unit_of(p->counts, g->world, room);
    else if (info->window == WINDOW_CELLS)
        unit = cells_unit(p, g, room);
    else if (info->window == WINDOW_BLOCKS)
        unit = room / g->world;
    else
        unit = room;
    /* whole cache lines per block where there is room for that */
    if (unit * p->esize >= 4 * CACHELINE)
        unit -= unit % (CACHELINE / p->esize);
    return unit;
}

/* Half floats are rounded once on each node: what a team has together would be rounded again. */
static bool by_teams(const struct plan *p, const struct plan_geom *g)
{
    return g->team && g->nnodes == 1 &&
           (p->coll == COLL_BARRIER || (p->coll == COLL_ALL_REDUCE && !dtype_is_half(p->dtype)));
}

/* Is it over within a microsecond or so once all are there? */
static bool is_brief(const struct plan *p, const struct plan_geom *g)
{
    return g->nnodes == 1 && (p->steps == 1 || p->path == PATH_TEAM) && !p->reduces &&
           p->path != PATH_OPEN && p->path != PATH_REGISTERED &&
           p->unit * p->esize <= PLAN_BRIEF / g->world;
}

bool plan_make(const struct op_desc *d, const struct plan_geom *g, const uint64_t *counts,
               struct plan *ret_plan)
{
    const struct coll_info *info;
    struct plan p;
    uint64_t bytes;

    if (!desc_valid(d, g))
        return false;
    info = &coll_table[d->coll];
    p = (struct plan){
        .coll = d->coll, .dtype = d->dtype, .redop = d->redop, .root = d->root, .count = d->count};
    p.esize = info->window == WINDOW_NONE ? 1 : dtype_size(d->dtype);
    if (info->counted && info->window == WINDOW_BLOCKS) {
        if (!counts_valid(d, counts, g->world))
            return false;
        p.counts = counts;
    }
    bytes = d->count * p.esize * (info->window == WINDOW_VECTOR ? 1 : g->world);
    if (p.counts)
        bytes = sum_of_parts(counts, g->world, d->count) * p.esize;
    choose_path(&p, g, bytes);
    if (g->nnodes > 1)
        choose_schedule(&p, g, bytes);
    p.unit = choose_unit(&p, g, bytes);
    if (p.unit == 0) /* so many ranks that a window has no room for an element of each */
        return false;
    if (p.path != PATH_OPEN)
        p.unit = MIN(p.unit, MAX(d->count, (uint64_t)1));
    if (!set_steps(&p, p.path == PATH_OPEN ? 0 : d->count))
        return false;
    choose_around(&p, g, bytes);
    if (by_registered(&p, g, bytes)) {
        p.path = PATH_REGISTERED;
    } else if (senders_go_on(&p, g, in_pieces(&p, g, bytes))) {
        p.path = PATH_POST;
        p.pieces = in_pieces(&p, g, bytes);
        p.to_root = coll_to_root(p.coll);
    } else if (p.path == PATH_SMALL && by_teams(&p, g)) {
        p.path = PATH_TEAM;
        p.team = (uint16_t)g->team;
        p.steps = PLAN_TEAM_STEPS;
    }
    p.brief = is_brief(&p, g);
    assert(p.steps && p.unit && (p.path != PATH_SMALL || p.steps == 1));
    assert(g->nnodes == 1 || (p.path != PATH_TEAM && p.path != PATH_REGISTERED));
    *ret_plan = p;
    return true;
}

bool plan_close(struct plan *p, uint64_t most)
{
    assert(p->path == PATH_OPEN);
    p->path = PATH_STEPS;
    return set_steps(p, most);
}

size_t plan_block_at(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned pos)
{
    uint64_t sum = 0;

    invariant(pos <= g->world);
    if (!p->counts)
        return pos * plan_step_count(p, c) * p->esize;
    for (unsigned s = 0; s < pos; s++)
        sum += plan_block_count(p, g->rank_at[s], c);
    return sum * p->esize;
}

size_t plan_cell(const struct plan *p, uint32_t c)
{
    bool counted = coll_table[p->coll].counted;

    return (counted ? p->unit : plan_step_count(p, c)) * p->esize;
}

size_t plan_cell_out(const struct plan *p, uint32_t c, unsigned pos)
{
    return coll_blocks(coll_table[p->coll].send) ? pos * plan_cell(p, c) : 0;
}

size_t plan_cell_in(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned pos,
                    unsigned m)
{
    const struct coll_info *info = &coll_table[p->coll];
    size_t at = coll_blocks(info->recv) ? pos : 0;

    if (info->recv != EXTENT_BLOCKS_AT_ROOT) /* of which there is one */
        at = at * g->nlocal + m;
    return at * plan_cell(p, c);
}

size_t plan_payload_blocks(const struct plan *p, const struct plan_geom *g, uint32_t c)
{
    const struct coll_info *info = &coll_table[p->coll];

    switch ((enum coll_window)info->window) {
    case WINDOW_NONE:
    case WINDOW_VECTOR:
        break;
    case WINDOW_BLOCKS:
        if (coll_blocks(info->send))
            return plan_block_at(p, g, c, g->world);
        return plan_step_count(p, c) * p->esize;
    case WINDOW_CELLS:
        /* the same for all readers, whoever it is from: a window if counts differ */
        if (info->counted)
            return plan_chunk(g);
        return plan_cell(p, c) * (coll_blocks(info->send) ? g->world : 1);
    }
    return 0;
}

size_t plan_result(const struct plan *p, const struct plan_geom *g, uint32_t c)
{
    switch ((enum coll_window)coll_table[p->coll].window) {
    case WINDOW_NONE:
        break;
    case WINDOW_VECTOR:
        return plan_step_count(p, c) * p->esize;
    case WINDOW_BLOCKS:
        return plan_block_at(p, g, c, g->world);
    case WINDOW_CELLS:
        return plan_chunk(g);
    }
    return 0;
}

void plan_slice(uint64_t n, unsigned parts, unsigned i, size_t esize, uint64_t *ret_lo,
                uint64_t *ret_hi)
{
    uint64_t line = CACHELINE / esize;
    uint64_t per = ALIGN_UP((n + parts - 1) / parts, line);

    assert(i < parts && esize > 0);
    *ret_lo = MIN(per * i, n);
    *ret_hi = MIN(per * (i + 1), n);
}

void plan_segment(const struct plan *p, const struct plan_geom *g, uint32_t c, unsigned seg,
                  unsigned nseg, size_t *ret_lo, size_t *ret_hi)
{
    uint64_t n = plan_step_count(p, c), lo, hi, unused;

    assert(seg + nseg <= g->nnodes);
    *ret_lo = *ret_hi = 0;
    switch ((enum coll_window)coll_table[p->coll].window) {
    case WINDOW_BLOCKS:
        *ret_lo = plan_block_at(p, g, c, g->node_start[seg]);
        *ret_hi = plan_block_at(p, g, c, g->node_start[seg + nseg]);
        return;
    case WINDOW_VECTOR:
        if (nseg == 0)
            return;
        if (p->path == PATH_SMALL || plan_swaps(p) ||
            coll_table[p->coll].rooted) { /* whole vectors are moved */
            *ret_hi = n * p->esize;
            return;
        }
        plan_slice(n, g->nnodes, seg, p->esize, &lo, &unused);
        plan_slice(n, g->nnodes, seg + nseg - 1, p->esize, &unused, &hi);
        *ret_lo = lo * p->esize;
        *ret_hi = hi * p->esize;
        return;
    case WINDOW_CELLS:
    case WINDOW_NONE:
        return;
    }
}
