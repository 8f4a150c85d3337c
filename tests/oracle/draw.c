/* draw.c - a program from a seed.
 *
 * A program is a cluster (one to eight ranks, any of them on any of one to eight nodes), groups
 * (all ranks, and random subsets in random order), and operations of these groups in phases. In
 * an ordered phase every rank calls in the program's order, blocking or not as it likes; in a
 * shuffled one all calls are asynchronous and each rank takes the groups in an order of its
 * own, since operations of different groups never wait for each other. At the end of a phase a
 * rank waits for what it has started. Messages between two ranks keep the
 * order of the program for each tag only.
 *
 * Sizes are spread over orders of magnitude, but for what can be done in registered memory. One
 * operation in thirty goes up to the largest, the others end at 2^16 elements: they take most of
 * the time otherwise and find least. */
#include "tests/oracle/oracle.h"

#include <stdio.h>

#include "shm/reduce/reduce.h"

enum { PHASE_BYTES = 160 << 20 /* of buffers under way on all ranks together */ };

uint64_t draw_bits(uint64_t *rng)
{
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return *rng * 2685821657736338717ull;
}

uint32_t draw(uint64_t *rng, uint32_t below)
{
    return (uint32_t)(draw_bits(rng) >> 33) % below;
}

int group_rank_of(const struct group_spec *g, unsigned rank)
{
    for (unsigned k = 0; k < g->world; k++)
        if (g->rank[k] == rank)
            return (int)k;
    return -1;
}

bool takes_part(const struct op_spec *op, unsigned rank)
{
    return !is_message(op->coll) || rank == (unsigned)op->root || rank == op->to;
}

static void shuffle(uint64_t *rng, uint16_t *v, unsigned n)
{
    for (unsigned i = n; i > 1; i--) {
        unsigned j = draw(rng, i);
        uint16_t t = v[i - 1];

        v[i - 1] = v[j];
        v[j] = t;
    }
}

static void draw_cluster(struct program *p, uint64_t *rng)
{
    p->world = 1 + draw(rng, MAX_WORLD);
    p->nnodes = draw(rng, 3) ? 1 + draw(rng, MIN(p->world, 3u))
                             : p->world; /* many now and then: each has an engine */
    for (unsigned k = 0; k < p->world; k++)
        p->rank_node[k] = (uint16_t)(k < p->nnodes ? k : draw(rng, p->nnodes));
    shuffle(rng, p->rank_node, p->world);
}

static void draw_group(struct program *p, struct group_spec *g, bool all, uint64_t *rng)
{
    bool used[MAX_NODES] = {false};

    for (unsigned k = 0; k < p->world; k++)
        g->rank[k] = (uint16_t)k;
    if (!all || draw(rng, 2))
        shuffle(rng, g->rank, p->world);
    g->world = all ? p->world : 1 + draw(rng, p->world);
    for (unsigned k = 0; k < g->world; k++)
        used[p->rank_node[g->rank[k]]] = true;
    for (unsigned n = 0; n < p->nnodes; n++)
        g->nnodes += used[n];
    for (unsigned k = 0; k < g->world; k++) {
        g->only_source[k] = -1;
        if (g->world > 1 && draw(rng, 2))
            g->only_source[k] = (int8_t)((k + 1 + draw(rng, g->world - 1)) % g->world);
        g->any_tag[k] = g->only_source[k] >= 0 && draw(rng, 2);
    }
}

static size_t draw_count(const struct knobs *knobs, uint64_t *rng)
{
    size_t top = draw(rng, 30) ? MIN(knobs->most, (size_t)1 << 16) : knobs->most;
    unsigned bits = 0;

    if (draw(rng, 16) == 0)
        return 0;
    while ((size_t)1 << (bits + 1) <= top)
        bits++;
    bits = draw(rng, bits + 1);
    return MIN(((size_t)1 << bits) + draw(rng, 1u << bits), top);
}

/* The counts of a _v form, some of them zero. */
static void draw_counts(struct op_spec *op, unsigned world, uint64_t *rng)
{
    bool one_per_rank = op->coll != COMMD_ALL_TO_ALL_V;
    bool by_sender = op->coll == COMMD_ALL_GATHER_V || op->coll == COMMD_GATHER_V;

    for (unsigned i = 0; i < world; i++)
        for (unsigned j = 0; j < world; j++)
            op->counts[i][j] = draw(rng, 4) ? draw(rng, (uint32_t)op->count + 1) : 0;
    for (unsigned i = 0; i < world && one_per_rank; i++)
        for (unsigned j = 0; j < world; j++)
            op->counts[i][j] = by_sender ? op->counts[i][0] : op->counts[0][j];
}

static void draw_message(struct op_spec *op, const struct group_spec *g, uint64_t *rng)
{
    op->coll = COMMD_SEND;
    op->to = draw(rng, g->world);
    op->root = g->only_source[op->to];
    if (op->root < 0)
        op->root = (int)((op->to + 1 + draw(rng, g->world - 1)) % g->world);
    op->tag = g->any_tag[op->to] ? 1 : (int)draw(rng, 3);
    op->spare = draw(rng, 2) ? 0 : draw(rng, 1000);
}

/* Too little room for a message: only its receiver hears of that. */
static void draw_odd_message(struct op_spec *op, uint64_t *rng)
{
    if (op->count == 0 || draw(rng, 25))
        return;
    op->odd = ODD_COUNT;
    op->odd_rank = op->to;
    op->spare = 0;
}

static void draw_odd(const struct program *p, struct op_spec *op, const struct group_spec *g,
                     uint64_t *rng)
{
    unsigned world = g->world;
    static const enum odd kinds[] = {ODD_COUNT, ODD_REDOP, ODD_DTYPE, ODD_ROOT, ODD_COLL};

    if (world < 2 || draw(rng, 25))
        return;
    /* there not all are told, and later: tests/unit/client/test_posts.c */
    if (g->nnodes == 1 && is_rooted(op->coll) && (p->plans || !coll_to_root((unsigned)op->coll)))
        return;
    if (g->nnodes > 1 && (op->coll == COMMD_BROADCAST || op->coll == COMMD_REDUCE))
        return;
    op->odd_rank = draw(rng, world);
    do {
        op->odd = kinds[draw(rng, ARRAY_LEN(kinds))];
    } while (op->odd != ODD_COLL &&
             (op->coll == COMMD_BARRIER || (op->odd == ODD_REDOP && !is_reducing(op->coll)) ||
              (op->odd == ODD_ROOT && !is_rooted(op->coll))));
}

static size_t op_bytes(const struct op_spec *op, unsigned world)
{
    size_t n = 0;

    for (unsigned k = 0; k < world; k++)
        n += all_elements(op, world, true, k) + all_elements(op, world, false, k);
    return n * dtype_size((unsigned)op->dtype);
}

/* What can be done in registered memory: often with as much as that is for. */
static void draw_registered(struct op_spec *op, const struct group_spec *g,
                            const struct knobs *knobs, uint64_t *rng)
{
    bool reads = op->coll != COMMD_ALL_REDUCE;
    size_t least =
        (reads ? PLAN_REGISTERED_READ : PLAN_REGISTERED_TURNS) / dtype_size((unsigned)op->dtype);

    if (op->coll == COMMD_ALL_GATHER || op->coll == COMMD_REDUCE_SCATTER)
        least = (least + g->world - 1) / g->world;
    if (may_be_registered(op->coll) && g->nnodes == 1 && g->world > 1 && least < knobs->most &&
        (reads ? draw(rng, 5) == 0 : draw(rng, 4) > 0))
        op->count = MIN(knobs->most, MAX(op->count, least + draw(rng, (uint32_t)least)));
}

static void draw_op(const struct program *p, struct op_spec *op, const struct knobs *knobs,
                    size_t *room, uint64_t *rng)
{
    static const double scales[] = {1, -1, 0.5, 0.25, 2, -0.5};
    const struct group_spec *g;
    bool crossing; /* where the schedules of many nodes cross */

    op->group = draw(rng, p->ngroups);
    g = &p->group[op->group];
    crossing = g->nnodes > 3 && draw(rng, 3) == 0;
    op->seed = draw_bits(rng) | 1;
    op->coll = crossing && draw(rng, 2) ? COLL_ALL_REDUCE : (int)draw(rng, COLL_COUNT);
    do {
        op->dtype = (int)draw(rng, DTYPE_COUNT);
        op->redop = (int)draw(rng, REDOP_COUNT);
    } while (!redop_defined((unsigned)op->dtype, (unsigned)op->redop));
    op->root = (int)draw(rng, g->world);
    for (unsigned k = 0; k < g->world; k++)
        op->scale[k] = scales[draw(rng, ARRAY_LEN(scales))];
    if (g->world > 1 && draw(rng, 5) == 0)
        draw_message(op, g, rng);
    op->any_bits = g->nnodes == 1 && draw(rng, 2);
    op->in_place = draw(rng, 3) == 0;
    op->lists = draw(rng, 3) == 0;
    op->sync = (uint32_t)draw_bits(rng);
    op->count = draw_count(knobs, rng);
    if (crossing)
        op->count = MIN(((size_t)1 << 12) + draw(rng, 1 << 16), knobs->most);
    draw_registered(op, g, knobs, rng);
    /* the whole of what a rank sends or receives stays within the limit */
    if (shape_of(op, true, (unsigned)op->root) == MANY ||
        shape_of(op, false, (unsigned)op->root) == MANY)
        op->count = MIN(op->count, MAX(knobs->most / g->world, (size_t)1));
    draw_counts(op, g->world, rng);
    while (op_bytes(op, g->world) > *room) {
        op->count /= 2;
        op->spare /= 2;
        for (unsigned i = 0; i < g->world; i++)
            for (unsigned j = 0; j < g->world; j++)
                op->counts[i][j] /= 2;
    }
    *room -= op_bytes(op, g->world);
    if (is_message(op->coll))
        draw_odd_message(op, rng);
    else
        draw_odd(p, op, g, rng);
}

/* All ranks, some, or none. What is wrong is told by a work. What is behind a shorter message is
 * not said. */
static void draw_gpu(struct op_spec *op, uint64_t *rng)
{
    static const uint32_t masks[] = {UINT32_MAX, UINT32_MAX, 0};
    unsigned kind = draw(rng, ARRAY_LEN(masks) + 1);

    op->gpu = kind < ARRAY_LEN(masks) ? masks[kind] : (uint32_t)draw_bits(rng);
    if (op->odd)
        op->sync = 0;
    if (is_message(op->coll) && op->gpu >> op->to & 1)
        op->spare = 0;
}

/* Must every rank take these two in the order of the program? */
static bool same_stream(const struct op_spec *a, const struct op_spec *b)
{
    if (a->group != b->group || is_message(a->coll) != is_message(b->coll))
        return false;
    return !is_message(a->coll) || (a->root == b->root && a->to == b->to && a->tag == b->tag);
}

/* Each rank's own order of the operations [from, to): that of the program, or with the streams
 * woven together in another way. */
static void draw_calls(struct program *p, unsigned from, unsigned to, bool shuffled, uint64_t *rng)
{
    for (unsigned r = 0; r < p->world; r++) {
        bool called[MAX_OPS] = {false};

        for (unsigned left = to - from; left; left--) {
            unsigned pick = shuffled ? from + draw(rng, to - from) : from, i = from;
            int me;

            while (called[pick])
                pick = pick + 1 < to ? pick + 1 : from;
            while (called[i] || !same_stream(&p->op[i], &p->op[pick]))
                i++;
            called[i] = true;
            me = group_rank_of(&p->group[p->op[i].group], r);
            if (me >= 0 && takes_part(&p->op[i], (unsigned)me))
                p->call[r][p->ncalls[r]++] = (uint8_t)i;
        }
    }
}

static const char *draw_kernels(const struct knobs *knobs, uint64_t *rng)
{
    static const char *const names[] = {"avx512", "avx2", "baseline"};
    const char *name = knobs->kernels ? knobs->kernels : names[draw(rng, ARRAY_LEN(names))];

    while (!reduce_force(name)) /* the baseline is always there */
        name = names[draw(rng, ARRAY_LEN(names))];
    reduce_force(NULL);
    return name;
}

void program_draw(uint64_t seed, const struct knobs *knobs, struct program *p)
{
    uint64_t rng = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    unsigned phase = 0, nops;

    for (unsigned i = 0; i < 8; i++)
        draw_bits(&rng);
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->gpu = knobs->gpu;
    p->plans = seed % 4 ? PLAN_KNOWN : 0;
    draw_cluster(p, &rng);
    p->kernels = draw_kernels(knobs, &rng);
    p->ngroups = 1 + draw(&rng, MAX_GROUPS);
    for (unsigned g = 0; g < p->ngroups; g++)
        draw_group(p, &p->group[g], g == 0, &rng);
    for (nops = 8 + draw(&rng, MAX_OPS - 8 + 1); p->nops < nops; phase++) {
        bool shuffled = draw(&rng, 3) == 0;
        unsigned from = p->nops, to = MIN(from + 1 + draw(&rng, 8), nops);
        size_t room = PHASE_BYTES;

        for (; p->nops < to; p->nops++) {
            struct op_spec *op = &p->op[p->nops];

            draw_op(p, op, knobs, &room, &rng);
            op->phase = phase;
            if (shuffled)
                op->sync = 0;
            if (knobs->gpu)
                draw_gpu(op, &rng);
            patterns_new(op, p->group[op->group].world);
        }
        draw_calls(p, from, to, shuffled, &rng);
    }
}

void program_free(struct program *p)
{
    for (unsigned i = 0; i < p->nops; i++) {
        for (unsigned k = 0; k < MAX_WORLD; k++)
            free(p->op[i].pattern[k]);
        free(p->op[i].reduced);
    }
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_op(const struct program *p, unsigned i)
{
    static const char *const odds[] = {"", "count", "operator", "type", "root", "collective"};
    const struct op_spec *op = &p->op[i];
    const struct group_spec *g = &p->group[op->group];

    fprintf(stderr, "  op %u, phase %u, group %u: %s", i, op->phase, op->group, name_of(op->coll));
    if (is_message(op->coll))
        fprintf(stderr, " from %d to %u, tag %d, room for %zu more,", op->root, op->to, op->tag,
                op->spare);
    if (op->coll != COMMD_BARRIER)
        fprintf(stderr, " %s", dtype_name((unsigned)op->dtype));
    if (is_reducing(op->coll))
        fprintf(stderr, " %s%s", redop_name((unsigned)op->redop),
                op->any_bits ? " (any bits)" : "");
    if (is_rooted(op->coll))
        fprintf(stderr, " root %d", op->root);
    if (!is_counted(op->coll))
        fprintf(stderr, " %zu elements", op->count);
    for (unsigned k = 0; k < g->world && is_counted(op->coll); k++) {
        fprintf(stderr, "%s", k ? " |" : " counts");
        for (unsigned j = 0; j < g->world; j++)
            fprintf(stderr, " %zu", op->counts[k][j]);
    }
    fprintf(stderr, "%s%s%s, blocking on", op->in_place ? ", in place" : "",
            op->lists ? ", lists" : "", is_registered(op, 0) ? ", registered by rank 0" : "");
    for (unsigned k = 0; k < g->world; k++)
        if (op->sync >> k & 1)
            fprintf(stderr, " %u", k);
    if (op->odd)
        fprintf(stderr, "; rank %u has another %s", op->odd_rank, odds[op->odd]);
    fprintf(stderr, "\n");
}

void program_print(const struct program *p)
{
    fprintf(stderr, "program %llu: kernels %s; ranks on nodes", (unsigned long long)p->seed,
            p->kernels);
    for (unsigned k = 0; k < p->world; k++)
        fprintf(stderr, " %u", p->rank_node[k]);
    fprintf(stderr, "\n");
    for (unsigned g = 0; g < p->ngroups; g++) {
        fprintf(stderr, "  group %u: ranks", g);
        for (unsigned k = 0; k < p->group[g].world; k++)
            fprintf(stderr, " %u", p->group[g].rank[k]);
        fprintf(stderr, "\n");
    }
    for (unsigned i = 0; i < p->nops; i++)
        print_op(p, i);
    for (unsigned r = 0; r < p->world; r++) {
        fprintf(stderr, "  rank %u calls", r);
        for (unsigned i = 0; i < p->ncalls[r]; i++)
            fprintf(stderr, " %u", p->call[r][i]);
        fprintf(stderr, "\n");
    }
}
