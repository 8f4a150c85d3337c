/* plan_world.c - see plan_world.h.
 *
 * All of a rank's memory is one allocation, so that what must not be touched is compared too. Moves
 * of a phase run in any order. A group of NCCL calls: each unit must have given the same
 * collectives in the same order, and for each send of one unit to another a receive of as many
 * bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shm/reduce/reduce.h"
#include "tests/unit/gpu/plan_world.h"
#include "transport/gpu/nccl.h"

static uint64_t state = 12345;

uint64_t world_random(uint64_t below)
{
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % below;
}

static size_t esize_of(const struct world *w)
{
    return w->desc.coll == COLL_BARRIER ? 1 : dtype_size(w->desc.dtype);
}

static size_t world_bytes(const struct world *w)
{
    return ((size_t)w->world * (COUNT_MOST + 2) * 2 + 64) * 8;
}

/* Small integers: sums, products of two, and halves are exact in every type. */
static void put(unsigned dtype, uint8_t *p, unsigned v)
{
    float f = (float)v;
    double d = v;
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &f, sizeof bits);
    half = (uint16_t)(bits >> 16);
    memset(p, 0, dtype_size(dtype));
    if (dtype == DTYPE_F32)
        memcpy(p, &f, sizeof f);
    else if (dtype == DTYPE_F64)
        memcpy(p, &d, sizeof d);
    else if (dtype == DTYPE_BF16)
        memcpy(p, &half, sizeof half);
    else
        p[0] = (uint8_t)v;
}

/* --- buffers ------------------------------------------------------------------------------- */

static bool root_of(const struct world *w, uint32_t r)
{
    return coll_table[w->desc.coll].rooted && r == w->desc.root;
}

static uint64_t sent(const struct world *w, uint32_t from, uint32_t to)
{
    const struct coll_info *info = &coll_table[w->desc.coll];

    if (info->window == WINDOW_BLOCKS)
        return w->counts[coll_blocks(info->send) ? to : from];
    return info->window == WINDOW_CELLS ? w->cells[from][to] : w->desc.count;
}

static uint64_t place(const struct world *w, bool sends, uint32_t r, uint64_t at, bool list)
{
    const struct coll_info *info = &coll_table[w->desc.coll];
    uint64_t *to = sends ? (uint64_t *)w->ranks[r].send : (uint64_t *)w->ranks[r].recv;
    unsigned extent = sends ? info->send : info->recv;
    uint32_t first = (uint32_t)world_random(w->world);

    if (!coll_blocks(extent)) {
        to[0] = at;
        return at + COUNT_MOST;
    }
    for (uint32_t i = 0; i < w->world; i++) {
        uint32_t k = list ? (first + i) % w->world : i;

        to[k] = at;
        at += (sends ? sent(w, r, k) : sent(w, k, r)) + list;
    }
    return at;
}

static void place_rank(struct world *w, uint32_t r)
{
    const struct coll_info *info = &coll_table[w->desc.coll];
    bool list = w->form == FORM_LISTS, sends_many = coll_blocks(info->send);
    bool recvs_many = coll_blocks(info->recv);
    struct world_rank *k = &w->ranks[r];
    uint64_t at = place(w, true, r, world_random(3), list);

    at = place(w, false, r, at + world_random(3), list);
    if (w->form != FORM_IN_PLACE || info->send == EXTENT_NONE)
        return;
    if (sends_many == recvs_many && !info->counted)
        memcpy(k->recv, k->send, sizeof k->recv);
    else if (sends_many && !recvs_many && coll_at(info->send, root_of(w, r)))
        k->recv[0] = k->send[r];
    else if (!sends_many && recvs_many && coll_at(info->recv, root_of(w, r)))
        k->send[0] = k->recv[r];
}

static void fill_rank(struct world *w, uint32_t r)
{
    struct world_rank *k = &w->ranks[r];
    size_t esize = esize_of(w), n = world_bytes(w) / esize;

    k->memory = malloc(world_bytes(w));
    k->want = malloc(world_bytes(w));
    assert_true(k->memory && k->want);
    memset(k->memory, 0, world_bytes(w));
    for (size_t i = 0; i < n && w->desc.coll != COLL_BARRIER; i++)
        put(w->desc.dtype, k->memory + i * esize,
            w->desc.redop == REDOP_PROD ? 1 + (world_random(8) == 0) : (unsigned)world_random(5));
    memcpy(k->want, k->memory, world_bytes(w));
    k->scale = (double)(1 << world_random(3)) / 2;
    for (uint32_t j = 0; j < w->world; j++) {
        k->send_counts[j] = sent(w, r, j);
        k->recv_counts[j] = sent(w, j, r);
        k->send_list[j] = (cu_ptr)(k->memory + k->send[j] * esize);
        k->recv_list[j] = (cu_ptr)(k->memory + k->recv[j] * esize);
    }
    /* who has one block gives one count */
    if (coll_table[w->desc.coll].send == EXTENT_ONE)
        k->send_counts[0] = sent(w, r, w->desc.root);
    if (coll_table[w->desc.coll].recv == EXTENT_ONE)
        k->recv_counts[0] = sent(w, w->desc.root, r);
}

/* --- what must come ------------------------------------------------------------------------- */

static const uint8_t *input(const struct world *w, uint32_t r, uint32_t block)
{
    bool many = coll_blocks(coll_table[w->desc.coll].send);
    bool none = coll_table[w->desc.coll].send == EXTENT_NONE;
    const struct world_rank *k = &w->ranks[r];

    return k->memory + (none ? k->recv[0] : k->send[many ? block : 0]) * esize_of(w);
}

static uint8_t *output(struct world *w, uint32_t r, uint32_t block)
{
    bool many = coll_blocks(coll_table[w->desc.coll].recv);

    return w->ranks[r].want + w->ranks[r].recv[many ? block : 0] * esize_of(w);
}

static void want_reduced(struct world *w, uint32_t r, uint32_t block, uint64_t count)
{
    static uint8_t scaled[WORLD_MOST][COUNT_MOST * 8];
    const void *src[WORLD_MOST];
    const struct op_desc *d = &w->desc;

    for (uint32_t i = 0; i < w->world; i++) {
        src[i] = input(w, i, block);
        if (d->redop == REDOP_PREMUL_SUM) {
            reduce_scale(d->dtype, scaled[i], src[i], w->ranks[i].scale, count);
            src[i] = scaled[i];
        }
    }
    reduce_n(d->dtype, d->redop, output(w, r, 0), src, w->world, count);
    reduce_finish(d->dtype, d->redop, output(w, r, 0), count, w->world);
}

static void want_rank(struct world *w, uint32_t r)
{
    const struct coll_info *info = &coll_table[w->desc.coll];
    uint32_t root = w->desc.root;

    if (!coll_at(info->recv, root_of(w, r)))
        return;
    if (info->reduces) {
        want_reduced(w, r, r, info->window == WINDOW_BLOCKS ? w->counts[r] : w->desc.count);
    } else if (info->send == EXTENT_NONE) {
        memcpy(output(w, r, 0), input(w, root, 0), w->desc.count * esize_of(w));
    } else {
        bool from_root = info->send == EXTENT_BLOCKS_AT_ROOT;

        for (uint32_t i = from_root ? root : 0; i < (from_root ? root + 1 : w->world); i++)
            memcpy(output(w, r, i), input(w, i, r), sent(w, i, r) * esize_of(w));
    }
}

void world_build(struct world *w)
{
    for (uint32_t r = 0; r < w->world; r++)
        place_rank(w, r);
    for (uint32_t r = 0; r < w->world; r++)
        fill_rank(w, r);
    for (uint32_t r = 0; r < w->world && w->desc.coll != COLL_BARRIER; r++)
        want_rank(w, r);
}

void world_check(struct world *w)
{
    for (uint32_t r = 0; r < w->world; r++) {
        for (size_t i = 0; i < world_bytes(w); i++) {
            if (w->ranks[r].memory[i] != w->ranks[r].want[i])
                fail_msg("%s of %s %s, form %d, root %u, count %llu: rank %u of %u on %u units, "
                         "byte %zu, send at %llu, recv at %llu",
                         coll_name(w->desc.coll), dtype_name(w->desc.dtype),
                         redop_name(w->desc.redop), w->form, w->desc.root,
                         (unsigned long long)w->desc.count, r, w->world, w->nunits, i,
                         (unsigned long long)w->ranks[r].send[0],
                         (unsigned long long)w->ranks[r].recv[0]);
        }
    }
}

void world_free(struct world *w)
{
    for (uint32_t r = 0; r < w->world; r++) {
        free(w->ranks[r].memory);
        free(w->ranks[r].want);
    }
}

/* --- the interpreter ------------------------------------------------------------------------ */

struct unit {
    struct gpu_plan plan;
    struct gpu_rank ranks[BATCH_SOURCES];
    struct gpu_move *moves;
    struct gpu_call *calls;
    unsigned nmoves, ncalls;
    uint8_t *scratch;
};

static void on_move(void *arg, const struct gpu_move *m)
{
    struct unit *u = arg;

    assert_true(u->nmoves < CALLS_MOST && m->nsrc && m->ndst);
    u->moves[u->nmoves++] = *m;
}

static void on_call(void *arg, const struct gpu_call *c)
{
    struct unit *u = arg;

    assert_true(u->ncalls < CALLS_MOST && c->count && c->unit < u->plan.nunits);
    u->calls[u->ncalls++] = *c;
}

struct gpu_plan world_plan(struct world *w, uint32_t unit, struct gpu_rank *ranks)
{
    struct gpu_plan p = {.desc = w->desc,
                         .world = w->world,
                         .nunits = w->nunits,
                         .unit = unit,
                         .unit_of_rank = w->unit_of_rank,
                         .ranks = ranks,
                         .most_scratch = w->most_scratch};
    bool list = w->form == FORM_LISTS, counted = coll_table[w->desc.coll].counted;

    for (uint32_t r = 0; r < w->world; r++) {
        struct world_rank *k = &w->ranks[r];

        if (w->unit_of_rank[r] == unit)
            ranks[p.nranks++] = (struct gpu_rank){.rank = r,
                                                  .scale = k->scale,
                                                  .send = k->send_list[0],
                                                  .recv = k->recv_list[0],
                                                  .send_blocks = list ? k->send_list : NULL,
                                                  .recv_blocks = list ? k->recv_list : NULL,
                                                  .send_counts = counted ? k->send_counts : NULL,
                                                  .recv_counts = counted ? k->recv_counts : NULL};
    }
    return p;
}

static void do_moves(struct world *w, struct unit *u)
{
    while (u->nmoves) {
        unsigned i = (unsigned)world_random(u->nmoves);
        struct gpu_launch l;
        void *params[] = {&l.batch};

        gpu_launch_init(&l);
        assert_true(gpu_launch_add(&l, &u->moves[i]));
        u->moves[i] = u->moves[--u->nmoves];
        if (gpu_launch_close(&l, 1))
            gpu_twins[l.kernel].fn(params);
        w->nmoves++;
    }
}

static size_t nccl_size(unsigned type)
{
    static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

    return sizes[type];
}

static unsigned redop_of(unsigned op)
{
    static const uint8_t ops[] = {REDOP_SUM, REDOP_PROD, REDOP_MAX, REDOP_MIN};

    assert_true(op < ARRAY_LEN(ops));
    return ops[op];
}

static unsigned dtype_of(unsigned type)
{
    static const uint8_t types[] = {DTYPE_I8,  DTYPE_U8,  DTYPE_I32, DTYPE_U32, DTYPE_I64,
                                    DTYPE_U64, DTYPE_F16, DTYPE_F32, DTYPE_F64, DTYPE_BF16};

    return types[type];
}

/* A write that is to come. */
struct later {
    void *to, *data;
    size_t n;
};
static struct later laters[CALLS_MOST * 2];
static unsigned nlaters;

static void write_back(void)
{
    for (unsigned i = 0; i < nlaters; i++) {
        memcpy(laters[i].to, laters[i].data, laters[i].n);
        free(laters[i].data);
    }
    nlaters = 0;
}

static void write_to(const struct world *w, cu_ptr to, const void *data, size_t n)
{
    void *copy = malloc(n);

    assert_true(to && copy && nlaters < ARRAY_LEN(laters));
    memcpy(copy, data, n);
    laters[nlaters++] = (struct later){(void *)to, copy, n};
    if (!w->later)
        write_back();
}

/* One collective, which all units have as their next. */
static void do_collective(struct world *w, struct unit *u, struct gpu_call *const *c)
{
    const struct gpu_call *f = c[0];
    size_t n = f->count * nccl_size(f->type), wide = f->kind == GPU_REDUCE_SCATTER ? w->nunits : 1;
    uint8_t *out = malloc(n * w->nunits);
    const void *src[UNITS_MOST];

    assert_non_null(out);
    for (uint32_t i = 0; i < w->nunits; i++) {
        assert_true(c[i]->kind == f->kind && c[i]->type == f->type && c[i]->op == f->op &&
                    c[i]->count == f->count && c[i]->unit == f->unit);
        src[i] = (const void *)c[i]->send;
        if (f->kind == GPU_ALL_GATHER)
            memcpy(out + i * n, src[i], n);
    }
    if (f->kind == GPU_BROADCAST)
        memcpy(out, src[f->unit], n);
    else if (f->kind != GPU_ALL_GATHER)
        reduce_n(dtype_of(f->type), redop_of(f->op), out, src, w->nunits, f->count * wide);
    for (uint32_t i = 0; i < w->nunits; i++) {
        if (f->kind == GPU_ALL_GATHER)
            write_to(w, c[i]->recv, out, n * w->nunits);
        else if (f->kind == GPU_REDUCE_SCATTER)
            write_to(w, c[i]->recv, out + i * n, n);
        else if (f->kind != GPU_REDUCE || i == f->unit)
            write_to(w, c[i]->recv, out, n);
    }
    free(out);
}

static struct gpu_call *next_of(struct unit *u, unsigned *at, bool p2p)
{
    while (*at < u->ncalls && (u->calls[*at].kind >= GPU_SEND) != p2p)
        ++*at;
    return *at < u->ncalls ? &u->calls[(*at)++] : NULL;
}

static void do_collectives(struct world *w, struct unit *u)
{
    unsigned at[UNITS_MOST] = {0};
    struct gpu_call *c[UNITS_MOST];

    for (;;) {
        for (uint32_t i = 0; i < w->nunits; i++) {
            c[i] = next_of(&u[i], &at[i], false);
            if (!c[i] != !c[0])
                fail_msg("%s: unit %u and unit 0 differ in their calls", coll_name(w->desc.coll),
                         i);
        }
        if (!c[0])
            return;
        do_collective(w, u, c);
    }
}

/* The next call of @u that is of @kind with @peer. */
static struct gpu_call *pair_of(struct unit *u, unsigned *at, unsigned kind, uint32_t peer)
{
    while (*at < u->ncalls && (u->calls[*at].kind != kind || u->calls[*at].unit != peer))
        ++*at;
    return *at < u->ncalls ? &u->calls[(*at)++] : NULL;
}

static void do_pairs(struct world *w, struct unit *u)
{
    for (uint32_t a = 0; a < w->nunits; a++) {
        for (uint32_t b = 0; b < w->nunits; b++) {
            unsigned i = 0, j = 0;
            struct gpu_call *s, *r;

            for (;;) {
                s = pair_of(&u[a], &i, GPU_SEND, b);
                r = pair_of(&u[b], &j, GPU_RECV, a);
                assert_true(!s == !r);
                if (!s)
                    break;
                assert_true(a != b && s->count == r->count && s->type == r->type);
                write_to(w, r->recv, (const void *)s->send, s->count * nccl_size(s->type));
            }
        }
    }
}

static void do_phase(struct world *w, struct unit *u, uint32_t round, enum gpu_phase phase)
{
    for (uint32_t i = 0; i < w->nunits; i++) {
        const struct gpu_sink sink = {&u[i], on_move, on_call};

        u[i].ncalls = 0;
        gpu_plan_phase(&u[i].plan, round, phase, &sink);
        assert_true(phase == GPU_CALLS ? !u[i].nmoves : !u[i].ncalls);
        w->ncalls += u[i].ncalls;
        do_moves(w, &u[i]);
    }
    do_collectives(w, u);
    do_pairs(w, u);
    write_back();
}

void world_run(struct world *w)
{
    static struct unit u[UNITS_MOST];
    uint64_t cell = 0;

    for (uint32_t i = 0; i < w->nunits; i++) {
        u[i].moves = malloc(CALLS_MOST * sizeof *u[i].moves);
        u[i].calls = malloc(CALLS_MOST * sizeof *u[i].calls);
        assert_true(u[i].moves && u[i].calls);
        u[i].plan = world_plan(w, i, u[i].ranks);
        assert_true(gpu_plan_make(&u[i].plan));
        cell = MAX(cell, gpu_plan_cell(&u[i].plan));
        w->scratch = MAX(w->scratch, u[i].plan.scratch);
        u[i].scratch = aligned_alloc(256, ALIGN_UP(u[i].plan.scratch + 1, 256));
        memset(u[i].scratch, 1, ALIGN_UP(u[i].plan.scratch + 1, 256));
        u[i].plan.at = (cu_ptr)u[i].scratch;
        assert_non_null(u[i].scratch);
    }
    for (uint32_t i = 0; i < w->nunits; i++) {
        if (w->slice)
            gpu_plan_slice(&u[i].plan, w->slice, cell);
        assert_int_equal(u[i].plan.rounds, u[0].plan.rounds);
    }
    w->rounds = u[0].plan.rounds;
    for (uint32_t round = 0; round < w->rounds; round++) {
        for (uint32_t i = 0; i < w->nunits; i++) /* others have used it in between */
            memset(u[i].scratch, 1 + (int)round % 100, u[i].plan.scratch);
        for (unsigned phase = 0; phase < GPU_PHASES; phase++)
            do_phase(w, u, round, phase);
    }
    for (uint32_t i = 0; i < w->nunits; i++) {
        free(u[i].moves);
        free(u[i].calls);
        free(u[i].scratch);
    }
}
