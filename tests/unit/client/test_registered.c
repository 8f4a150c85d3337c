/* test_registered.c - registered memory: what commd_alloc() gives, and all_reduce in it, with all
 * members in one process and a thread in the place of commd. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <sys/wait.h>

#include "client/lib/arena/arena.h"
#include "shm/reduce/reduce.h"
#include "tests/lib/arena_commd.h"
#include "tests/lib/cluster.h"
#include "tests/lib/descriptors.h"

enum { MARGIN = 64, MANY = 2 << 20 }; /* elements */

static struct cluster *cluster;
static struct arena_commd *commd;

static void begin(unsigned world, uint64_t seed)
{
    static const uint16_t one_node[CLUSTER_MAX_RANKS];
    struct commd_context *ctx;

    cluster = cluster_new(world, 1, one_node, seed);
    ctx = &cluster->ctx;
    commd = arena_commd_new(&ctx, 1);
}

static void end(void)
{
    close(cluster->ctx.sock);
    commd = arena_commd_free(commd);
    cluster = cluster_free(cluster);
}

static void *alloc(size_t bytes)
{
    void *p;

    if (commd_alloc(&cluster->ctx, bytes, &p))
        fail_msg("%s", commd_last_error()->message);
    return p;
}

/* All has been freed. (To allocate waits for an answer, before which commd has heard of the rest.)
 */
static void nothing_is_held(void)
{
    void *p = alloc(1);

    assert_int_equal(arena_commd_held(commd), 1);
    assert_int_equal(commd_free(p), 0);
}

static bool is_registered(const void *p, size_t len)
{
    uint64_t arena, offset;

    return arena_find(&cluster->ctx, p, len, &arena, &offset);
}

static struct board_member *member(unsigned rank)
{
    return &cluster->group[rank]->now->board.members[rank];
}

/* ---- one all_reduce ------------------------------------------------------------------------- */

struct buffers {
    unsigned dtype, redop;
    size_t count, bytes, offset; /* of the data in the allocations */
    bool in_place;
    uint8_t *send[CLUSTER_MAX_RANKS], *recv[CLUSTER_MAX_RANKS]; /* allocations */
    uint8_t *input[CLUSTER_MAX_RANKS];                          /* copies */
    uint8_t *want;
    bool plain[CLUSTER_MAX_RANKS];
    struct commd_op ops[CLUSTER_MAX_RANKS];
};

/* Small integers in f32, anything else in bytes: bits are compared, the order is by rank. */
static void fill(struct buffers *b, uint8_t *to)
{
    uint32_t *words = (uint32_t *)to;

    for (size_t i = 0; i < b->bytes / 4; i++)
        words[i] = cluster_rand(cluster, 1u << 31);
    for (size_t i = 0; b->dtype == DTYPE_F32 && i < b->count; i++)
        ((float *)to)[i] = (float)cluster_rand(cluster, 1000);
    for (size_t i = 0; b->dtype == DTYPE_BOOL && i < b->bytes; i++)
        to[i] &= 1;
}

static uint8_t *buffer_new(struct buffers *b, unsigned k)
{
    size_t room = b->offset + b->bytes + MARGIN;
    uint8_t *p = b->plain[k] ? malloc(room) : alloc(room);

    return memset(p, 0xa5, room);
}

static void buffers_new(struct buffers *b)
{
    const void *src[CLUSTER_MAX_RANKS];

    b->bytes = b->count * dtype_size(b->dtype);
    b->want = malloc(b->bytes);
    for (unsigned k = 0; k < cluster->world; k++) {
        b->input[k] = calloc(1, b->bytes + 4);
        fill(b, b->input[k]);
        b->send[k] = buffer_new(b, k);
        b->recv[k] = b->in_place ? b->send[k] : buffer_new(b, k);
        memcpy(b->send[k] + b->offset, b->input[k], b->bytes);
        src[k] = b->input[k];
        b->ops[k] = (struct commd_op){.size = sizeof b->ops[k],
                                      .coll = COMMD_ALL_REDUCE,
                                      .dtype = (int)b->dtype,
                                      .redop = (int)b->redop,
                                      .send = b->send[k] + b->offset,
                                      .recv = b->recv[k] + b->offset,
                                      .count = b->count};
    }
    reduce_n(b->dtype, b->redop, b->want, src, cluster->world, b->count);
    reduce_finish(b->dtype, b->redop, b->want, b->count, cluster->world);
}

static void margins_check(const struct buffers *b, const uint8_t *p)
{
    for (size_t i = 0; i < b->offset; i++)
        assert_int_equal(p[i], 0xa5);
    for (size_t i = 0; i < MARGIN; i++)
        assert_int_equal(p[b->offset + b->bytes + i], 0xa5);
}

static void buffer_free(const struct buffers *b, unsigned k, uint8_t *p)
{
    if (b->plain[k])
        free(p);
    else
        assert_int_equal(commd_free(p), 0);
}

static void buffers_check(struct buffers *b)
{
    for (unsigned k = 0; k < cluster->world; k++) {
        assert_memory_equal(b->recv[k] + b->offset, b->want, b->bytes);
        margins_check(b, b->recv[k]);
        if (!b->in_place) {
            assert_memory_equal(b->send[k] + b->offset, b->input[k], b->bytes);
            margins_check(b, b->send[k]);
        }
    }
}

static void buffers_free(struct buffers *b)
{
    for (unsigned k = 0; k < cluster->world; k++) {
        if (!b->in_place)
            buffer_free(b, k, b->send[k]);
        buffer_free(b, k, b->recv[k]);
        free(b->input[k]);
    }
    free(b->want);
}

/* Were the last operation's results made without copies? */
static bool was_direct(void)
{
    bool direct = atomic_load(&member(0)->finished) == atomic_load(&cluster->group[0]->now->seq);

    for (unsigned k = 1; k < cluster->world; k++)
        assert_int_equal(
            atomic_load(&member(k)->finished) == atomic_load(&cluster->group[k]->now->seq), direct);
    return direct;
}

static bool run_right(struct buffers *b)
{
    enum run_state st[CLUSTER_MAX_RANKS];
    struct commd_error err[CLUSTER_MAX_RANKS];

    assert_true(cluster_run(cluster, b->ops, st, err));
    for (unsigned k = 0; k < cluster->world; k++)
        if (st[k] != RUN_DONE)
            fail_msg("rank %u: %s", k, err[k].message);
    buffers_check(b);
    return was_direct();
}

static size_t least_of(unsigned coll)
{
    return plan_registered(&cluster->group[0]->now->geom, coll);
}

static size_t random_count(unsigned dtype)
{
    size_t least = least_of(COLL_ALL_REDUCE) / dtype_size(dtype);

    switch (cluster_rand(cluster, 4)) {
    case 0:
        return least + cluster_rand(cluster, 3);
    case 1:
        return least + cluster_rand(cluster, 20000);
    case 2:
        return least * 4 + cluster_rand(cluster, 400000);
    default:
        return least + PLAN_CHUNK / dtype_size(dtype) - 3 + cluster_rand(cluster, 7);
    }
}

static void random_buffers(struct buffers *b)
{
    *b = (struct buffers){.dtype = DTYPE_F32, .redop = REDOP_SUM};
    while (cluster_rand(cluster, 4)) {
        b->dtype = cluster_rand(cluster, DTYPE_COUNT);
        b->redop = cluster_rand(cluster, REDOP_COUNT);
        if (redop_defined(b->dtype, b->redop) && b->redop != REDOP_PREMUL_SUM)
            break;
        b->dtype = DTYPE_F32;
        b->redop = REDOP_SUM;
    }
    b->count = random_count(b->dtype);
    b->in_place = cluster_rand(cluster, 2);
    b->offset = cluster_rand(cluster, 3) ? cluster_rand(cluster, 9000) : 0;
    /* an address that the type allows, or one that it does not: both are fine */
    if (cluster_rand(cluster, 2))
        b->offset -= b->offset % 8;
}

/* ---- results --------------------------------------------------------------------------------- */

static void results_are_right_and_nobody_copies(void **state)
{
    (void)state;
    for (unsigned world = 2; world <= 6; world++) {
        begin(world, world);
        for (unsigned i = 0; i < 25; i++) {
            struct buffers b;

            random_buffers(&b);
            buffers_new(&b);
            assert_true(run_right(&b));
            buffers_free(&b);
        }
        nothing_is_held();
        end();
    }
}

/* Broadcast, all_gather and reduce_scatter of bytes that differ by rank and place. */
static uint8_t byte_of(unsigned rank, size_t i)
{
    return (uint8_t)(i % 251 + 7 * rank);
}

static void check_other(int coll, size_t count, bool in_place)
{
    unsigned world = cluster->world, root = cluster_rand(cluster, world);
    struct commd_op ops[CLUSTER_MAX_RANKS];
    enum run_state st[CLUSTER_MAX_RANKS];
    size_t send_n = coll == COMMD_REDUCE_SCATTER ? count * world : count;
    size_t recv_n = coll == COMMD_ALL_GATHER ? count * world : count;
    uint8_t *mem[CLUSTER_MAX_RANKS], *send, *recv;

    for (unsigned k = 0; k < world; k++) {
        mem[k] = alloc(2 * (send_n + recv_n));
        send = mem[k] + 100;
        recv = in_place ? send : send + send_n + 3;
        if (in_place && coll == COMMD_ALL_GATHER)
            send += k * count;
        if (in_place && coll == COMMD_REDUCE_SCATTER)
            recv += k * count;
        if (coll == COMMD_BROADCAST)
            send = recv;
        for (size_t i = 0; i < send_n && (coll != COMMD_BROADCAST || k == root); i++)
            send[i] = byte_of(k, i);
        ops[k] = (struct commd_op){.size = sizeof ops[k],
                                   .coll = coll,
                                   .dtype = COMMD_U8,
                                   .redop = COMMD_SUM,
                                   .root = (int)root,
                                   .count = count,
                                   .send = coll == COMMD_BROADCAST ? NULL : send,
                                   .recv = recv};
    }
    assert_true(cluster_run(cluster, ops, st, NULL));
    for (unsigned k = 0; k < world; k++) {
        const uint8_t *got = ops[k].recv;

        assert_int_equal(st[k], RUN_DONE);
        for (size_t i = 0; i < recv_n; i++) {
            uint8_t want = 0;

            if (coll == COMMD_BROADCAST)
                want = byte_of(root, i);
            else if (coll == COMMD_ALL_GATHER)
                want = byte_of((unsigned)(i / count), i % count);
            for (unsigned m = 0; m < world && coll == COMMD_REDUCE_SCATTER; m++)
                want = (uint8_t)(want + byte_of(m, k * count + i));
            if (got[i] != want)
                fail_msg("%s of %zu: byte %zu of rank %u of %u is wrong", coll_name((unsigned)coll),
                         count, i, k, world);
        }
        assert_int_equal(got[recv_n], in_place && recv_n < send_n && k + 1 < world
                                          ? byte_of(k, (k + 1) * count) /* its next block */
                                          : 0);
    }
    assert_int_equal(was_direct(),
                     (coll == COMMD_BROADCAST ? count : count * world) >= PLAN_REGISTERED_READ);
    for (unsigned k = 0; k < world; k++)
        assert_int_equal(commd_free(mem[k]), 0);
}

static void other_collectives(void **state)
{
    static const int colls[] = {COMMD_BROADCAST, COMMD_ALL_GATHER, COMMD_REDUCE_SCATTER};

    (void)state;
    for (unsigned world = 2; world <= 4; world++) {
        begin(world, 90 + world);
        for (unsigned i = 0; i < 18; i++)
            check_other(colls[i % 3],
                        i < 12 ? PLAN_REGISTERED_READ / (i % 3 ? world : 1) +
                                     cluster_rand(cluster, 5000)
                               : 1 + cluster_rand(cluster, 600000),
                        i / 3 % 2);
        end();
    }
}

/* Some members have registered their buffers, others not, and it changes from one operation to the
 * next, as do their sizes. */
static void a_mixture_goes_the_ordinary_way(void **state)
{
    (void)state;
    begin(4, 44);
    for (unsigned i = 0; i < 60; i++) {
        unsigned plain = 0;
        struct buffers b;

        random_buffers(&b);
        if (i % 4 == 0)
            b.count = 1 + cluster_rand(cluster, 3000);
        for (unsigned k = 0; k < 4; k++)
            plain += b.plain[k] = cluster_rand(cluster, 4) == 0;
        buffers_new(&b);
        assert_int_equal(run_right(&b), plain == 0 && b.bytes >= least_of(COLL_ALL_REDUCE));
        buffers_free(&b);
    }
    end();
}

/* What lies in no single allocation, or is not of the whole group, is not registered. */
static void only_whole_allocations_count(void **state)
{
    uint8_t *p, *q;

    (void)state;
    begin(2, 3);
    p = alloc(100000);
    q = alloc(100000);
    assert_true(is_registered(p, 100000));
    assert_true(is_registered(p + 4096, 1));
    assert_false(is_registered(p, (size_t)(q > p ? q - p : p - q) + 100000));
    assert_int_equal(commd_free(q), 0);
    assert_false(is_registered(q, 1));
    assert_true(is_registered(p, 100000));
    arena_forget(&cluster->ctx);
    assert_false(is_registered(p, 100000));
    memset(p, 1, 100000); /* still there */
    assert_int_equal(commd_free(p), 0);
    end();
}

/* ---- who cannot map -------------------------------------------------------------------------- */

static void who_cannot_map_leads_all_to_the_ordinary_way(void **state)
{
    (void)state;
    for (unsigned behaviour = ARENA_COMMD_REFUSES; behaviour <= ARENA_COMMD_SILENT; behaviour++) {
        struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = 300000};

        begin(3, behaviour);
        arena_commd_set(commd, behaviour);
        buffers_new(&b);
        assert_false(run_right(&b));
        buffers_free(&b);
        /* later ones with other memory may */
        arena_commd_set(commd, ARENA_COMMD_GIVES);
        buffers_new(&b);
        assert_true(run_right(&b));
        buffers_free(&b);
        end();
    }
}

static void without_commd_what_is_mapped_stays(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_MAX, .count = 300000, .in_place = true};
    struct buffers other = b;

    (void)state;
    begin(3, 8);
    buffers_new(&b);
    buffers_new(&other);
    for (unsigned k = 0; k < 3; k++)
        memcpy(b.send[k], b.input[k], b.bytes);
    assert_true(run_right(&b));
    atomic_store(&cluster->ctx.lost, true);
    for (unsigned k = 0; k < 3; k++)
        memcpy(b.send[k], b.input[k], b.bytes);
    assert_true(run_right(&b));
    buffers_free(&b);
    buffers_free(&other);
    end();
}

static void an_operation_that_differs_is_refused_on_all(void **state)
{
    (void)state;
    begin(3, 12);
    for (unsigned i = 0; i < 12; i++) {
        struct buffers b = {
            .dtype = DTYPE_F32, .redop = REDOP_SUM, .count = 300000, .in_place = true};
        enum run_state st[3];
        struct commd_error err[3];

        b.plain[1] = i % 3 == 1;
        buffers_new(&b);
        b.ops[i % 3].count -= i % 2 ? 1 : 299999; /* large or small */
        assert_true(cluster_run(cluster, b.ops, st, err));
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(st[k], RUN_FAILED);
            assert_int_equal(err[k].code, COMMD_E_MISMATCH);
            assert_memory_equal(b.send[k], b.input[k], b.bytes);
        }
        b.ops[i % 3].count = b.count;
        assert_int_equal(run_right(&b), !b.plain[1]);
        buffers_free(&b);
    }
    end();
}

/* ---- one step at a time ---------------------------------------------------------------------- */

static struct run *runs_new(struct buffers *b)
{
    struct run *runs = calloc(cluster->world, sizeof *runs);

    buffers_new(b);
    for (unsigned k = 0; k < cluster->world; k++)
        assert_int_equal(run_begin(&runs[k], cluster->group[k]->now, &b->ops[k]), 0);
    return runs;
}

static bool has_entered(unsigned k)
{
    return atomic_load(&member(k)->entered) == atomic_load(&cluster->group[k]->now->seq);
}

/* Polls all but @but (-1: none), each once a round, until @until says so. */
static void poll_until(struct run *runs, int but, bool (*until)(unsigned), unsigned who)
{
    for (unsigned i = 0; !until(who); i++) {
        if (i == 1000000)
            fail_msg("it does not come to that");
        for (unsigned k = 0; k < cluster->world; k++)
            if ((int)k != but && !until(who))
                run_poll(&runs[k]);
    }
}

static bool has_offered(unsigned k)
{
    const struct commd_group *g = cluster->group[k];

    return board_arrived(&g->now->board, k, g->now->next_step);
}

static bool has_voted(unsigned k)
{
    const struct commd_group *g = cluster->group[k];

    return board_arrived(&g->now->board, k, g->now->next_step + 1);
}

/* The other members must not touch what is not theirs, whatever rank 1 claims. */
static void an_offer_that_does_not_fit_is_an_error(void **state)
{
    static const uint64_t lies[] = {UINT64_MAX, UINT64_MAX - 400000, 3 << 20, 32 << 20, 1ull << 62};

    (void)state;
    for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
        struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY};
        struct board_slot *slot;
        struct run *runs;

        begin(3, i);
        runs = runs_new(&b);
        while (!has_offered(1))
            run_poll(&runs[1]);
        slot = board_slot(&cluster->group[0]->now->board, 1, runs[1].base);
        if (i % 2)
            slot->offer.recv_offset = lies[i];
        else
            slot->offer.send_offset = lies[i];
        for (unsigned tries = 0, failed = 0; failed != 5; tries++) {
            assert_in_range(tries, 0, 1000000);
            for (unsigned k = 0; k < 3; k += 2) {
                if (!(failed & 1u << k) && run_poll(&runs[k]) == RUN_FAILED)
                    failed |= 1u << k;
                assert_false(has_entered(k));
            }
        }
        for (unsigned k = 0; k < 3; k += 2) {
            assert_int_equal(runs[k].err.code, COMMD_E_PROTOCOL);
            assert_int_equal(runs[k].err.rank, 1);
            assert_non_null(strstr(runs[k].err.message, "offers registered memory"));
        }
        for (unsigned k = 0; k < 3; k++) {
            run_end(&runs[k], RUN_FAILED);
            assert_memory_equal(b.send[k], b.input[k], b.bytes);
            assert_true(is_registered(b.recv[k], b.bytes));
        }
        free(runs);
        buffers_free(&b);
        end();
    }
}

/* Before that a member's input may still be read, and its output be written. */
static void nobody_is_done_before_all_have_finished(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true};
    struct run *runs;

    (void)state;
    begin(2, 76);
    runs = runs_new(&b);
    poll_until(runs, -1, has_entered, 0);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(run_poll(&runs[0]) < RUN_DONE);
    assert_true(atomic_load(&member(0)->finished) > atomic_load(&member(1)->finished));
    while (run_poll(&runs[1]) < RUN_DONE)
        assert_false(run_hopeless(&runs[1]));
    assert_int_equal(run_poll(&runs[0]), RUN_DONE);
    buffers_check(&b);
    for (unsigned k = 0; k < 2; k++)
        run_end(&runs[k], RUN_DONE);
    free(runs);
    buffers_free(&b);
    end();
}

/* Rank 1 has the memory of rank 0 before it, and is stopped. Rank 0 gives up: afterwards its buffer
 * is its own, whatever rank 1 still does. */
static void who_is_stopped_at_work_is_locked_out(void **state)
{
    struct buffers b = {
        .dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true, .offset = 100};
    const struct peer_arena *seen = NULL;
    uint64_t arena, offset;
    struct run *runs;
    uint8_t *data;

    (void)state;
    begin(2, 77);
    runs = runs_new(&b);
    poll_until(runs, -1, has_entered, 1);
    assert_true(arena_find(&cluster->ctx, b.send[0], 1, &arena, &offset));
    seen = peer_arena_find(cluster->group[1]->now, 0, arena);
    assert_non_null(seen);
    data = b.recv[0] + b.offset;
    runs[0].err = (struct commd_error){.code = COMMD_E_TIMEOUT};
    run_end(&runs[0], RUN_FAILED);
    memset(b.recv[0], 0x11, b.offset + b.bytes + MARGIN); /* it is the caller's again */
    memset(seen->base + offset + b.offset + ARENA_PAGE, 0x5a, b.bytes - 2 * ARENA_PAGE);
    for (size_t i = 0; i < b.bytes; i++)
        if (data[i] != 0x11)
            fail_msg("byte %zu was written to after the operation had failed", i);
    assert_false(is_registered(b.recv[0], 1));
    assert_true(is_registered(b.recv[1], b.bytes));
    run_end(&runs[1], RUN_FAILED);
    free(runs);
    buffers_free(&b);
    nothing_is_held();
    end();
}

/* Rank 0 gives up when it has voted; rank 1 comes later, sees all votes, and must not begin. */
static void who_comes_late_does_not_begin(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true};
    struct run *runs;

    (void)state;
    begin(3, 78);
    runs = runs_new(&b);
    run_poll(&runs[1]); /* it has offered, and goes on when it sees what the others offer */
    for (unsigned k = 0; k < 3; k += 2)
        poll_until(runs, 1, has_voted, k);
    runs[0].err = (struct commd_error){.code = COMMD_E_TIMEOUT};
    run_end(&runs[0], RUN_FAILED);
    assert_true(is_registered(b.recv[0], b.bytes)); /* nobody had to be locked out */
    poll_until(runs, 0, has_entered, 1);
    for (unsigned i = 0; i < 100; i++)
        for (unsigned k = 1; k < 3; k++)
            assert_true(run_poll(&runs[k]) < RUN_DONE);
    for (unsigned k = 0; k < 3; k++)
        assert_memory_equal(b.send[k], b.input[k], b.bytes);
    for (unsigned k = 1; k < 3; k++)
        run_end(&runs[k], RUN_FAILED);
    free(runs);
    buffers_free(&b);
    end();
}

/* Another member writes YES into the slots of all who have said no. Who said no has nothing mapped,
 * and must not work. */
static void who_said_no_does_not_begin(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = 300000};
    bool done[3] = {false};
    struct run *runs;
    uint32_t step;

    (void)state;
    begin(3, 79);
    arena_commd_set(commd, ARENA_COMMD_REFUSES);
    runs = runs_new(&b);
    step = runs[0].base + 1;
    run_poll(&runs[1]);
    for (unsigned k = 0; k < 3; k += 2)
        poll_until(runs, 1, has_voted, k);
    while (!has_voted(1))
        run_poll(&runs[1]);
    for (unsigned k = 0; k < 3; k++)
        board_slot(&cluster->group[0]->now->board, k, step)->kind = BOARD_VOTE_YES;
    for (unsigned i = 0; !done[0] || !done[1] || !done[2]; i++) {
        assert_in_range(i, 0, 1000000);
        if (!done[i % 3] && run_poll(&runs[i % 3]) == RUN_DONE) {
            run_end(&runs[i % 3], RUN_DONE);
            done[i % 3] = true;
        }
        assert_false(has_entered(i % 3));
    }
    buffers_check(&b);
    free(runs);
    buffers_free(&b);
    end();
}

static bool has_finished(unsigned k)
{
    return atomic_load(&member(k)->finished) == atomic_load(&cluster->group[k]->now->seq);
}

/* Rank 1 has voted and is stopped before it looks at the votes of the others. These have finished
 * their parts when rank 0 gives up: rank 1 must not begin then. */
static void who_comes_when_others_have_finished_does_not_begin(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true};
    struct run *runs;

    (void)state;
    begin(3, 79);
    runs = runs_new(&b);
    run_poll(&runs[0]); /* they have offered, and see no offer of rank 1 yet */
    run_poll(&runs[2]);
    for (unsigned i = 0; !has_voted(1); i++) {
        assert_true(i < 1000000);
        run_poll(&runs[1]);
    }
    for (unsigned k = 0; k < 3; k += 2)
        poll_until(runs, 1, has_finished, k);
    runs[0].err = (struct commd_error){.code = COMMD_E_TIMEOUT};
    run_end(&runs[0], RUN_FAILED);
    memset(b.recv[0], 0x11, b.bytes); /* it is the caller's again */
    poll_until(runs, 0, has_entered, 1);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(run_poll(&runs[1]) < RUN_DONE);
    for (size_t i = 0; i < b.bytes; i++)
        if (b.recv[0][i] != 0x11)
            fail_msg("byte %zu was written to after the operation had failed", i);
    for (unsigned k = 1; k < 3; k++)
        run_end(&runs[k], RUN_FAILED);
    free(runs);
    buffers_free(&b);
    end();
}

/* Rank 1 dies in the middle of its work: the others hear of it and stop, nobody waits for it. */
static void a_member_dies_at_work(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true};
    struct run *runs;

    (void)state;
    begin(3, 79);
    runs = runs_new(&b);
    poll_until(runs, -1, has_entered, 1);
    board_mark_gone(cluster->node[0].ctl, 1, 0, CAUSE_RANK_LOST, 4711);
    for (unsigned k = 0; k < 3; k += 2) {
        enum run_state st;

        for (unsigned i = 0; (st = run_poll(&runs[k])) < RUN_DONE && !run_hopeless(&runs[k]); i++)
            assert_true(i < 1000000);
        assert_int_equal(runs[k].err.code, COMMD_E_RANK_LOST);
        assert_int_equal(runs[k].err.rank, 1);
        run_end(&runs[k], RUN_FAILED);
    }
    run_abandon(&runs[1]);
    free(runs);
    buffers_free(&b);
    end();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static unsigned count_lines(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned n = 0;

    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

/* When all that was given back before is closed: commd takes one request after the other. */
static unsigned count_settled_fds(void)
{
    void *p = alloc(1);
    unsigned n = open_descriptors();

    assert_int_equal(commd_free(p), 0);
    return n;
}

static bool is_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && !memcmp(p, p + 1, n - 1);
}

static void allocations(void **state)
{
    static const size_t sizes[] = {0,       1,      4096, 4097, 70000, 1 << 20, (4 << 20) - 1,
                                   4 << 20, 9 << 20};
    uint8_t *p[64];
    void *none = &p;

    (void)state;
    begin(1, 1);
    for (unsigned lap = 0; lap < 20; lap++) {
        size_t len[64];

        for (unsigned i = 0; i < ARRAY_LEN(p); i++) {
            len[i] = sizes[cluster_rand(cluster, ARRAY_LEN(sizes))];
            p[i] = alloc(len[i]);
            assert_int_equal((uintptr_t)p[i] % ARENA_PAGE, 0);
            len[i] = MAX(len[i], (size_t)1);
            assert_true(is_zero(p[i], len[i]));
            memset(p[i], (int)i + 1, len[i]);
            if (i % 3 == 2) { /* holes to be filled */
                assert_int_equal(commd_free(p[i - 1]), 0);
                p[i - 1] = alloc(1);
                len[i - 1] = 1;
                assert_int_equal(p[i - 1][0], 0);
                p[i - 1][0] = (uint8_t)i;
            }
        }
        for (unsigned i = 0; i < ARRAY_LEN(p); i++) {
            assert_int_equal(p[i][0], i + 1);
            assert_int_equal(p[i][len[i] - 1], p[i][0]);
            assert_int_equal(commd_free(p[i]), 0);
        }
    }
    assert_int_equal(commd_free(NULL), 0);
    assert_int_equal(commd_free(&p), COMMD_E_INVALID);
    p[0] = alloc(8192);
    assert_int_equal(commd_free(p[0] + 4096), COMMD_E_INVALID);
    assert_int_equal(commd_free(p[0]), 0);
    assert_int_equal(commd_free(p[0]), COMMD_E_INVALID);
    assert_int_equal(commd_alloc(&cluster->ctx, SIZE_MAX, &none), COMMD_E_INVALID);
    assert_int_equal(commd_alloc(NULL, 1, &none), COMMD_E_INVALID);
    assert_ptr_equal(none, &p);
    nothing_is_held();
    end();
}

/* Far more arenas than a member maps of another are used and freed, one after the other. */
static void nothing_grows(void **state)
{
    unsigned fds = 0, maps = 0;

    (void)state;
    begin(2, 5);
    for (unsigned i = 0; i < 400; i++) {
        struct buffers b = {
            .dtype = DTYPE_U8, .redop = REDOP_BXOR, .count = 5 << 20, .in_place = true};

        b.count = i % 16 ? least_of(COLL_ALL_REDUCE) : 4 << 20; /* an arena of its own */
        buffers_new(&b);
        assert_true(run_right(&b));
        buffers_free(&b);
        if (i == 200) { /* each has mapped all that it ever will */
            fds = count_settled_fds();
            maps = count_lines("/proc/self/maps");
        }
    }
    assert_int_equal(count_settled_fds(), fds);
    assert_in_range(count_lines("/proc/self/maps"), 0, maps + 20); /* those of malloc vary */
    nothing_is_held();
    end();
}

static void memory_is_given_back_although_a_peer_maps_it(void **state)
{
    struct buffers b = {.dtype = DTYPE_F32, .redop = REDOP_SUM, .count = MANY, .in_place = true};
    const struct peer_arena *seen;
    uint64_t arena, offset;

    (void)state;
    begin(2, 6);
    buffers_new(&b);
    assert_true(run_right(&b));
    assert_true(arena_find(&cluster->ctx, b.send[0], 1, &arena, &offset));
    seen = peer_arena_find(cluster->group[1]->now, 0, arena);
    assert_false(is_zero(seen->base + offset, b.bytes));
    buffers_free(&b);
    assert_true(is_zero(seen->base + offset, b.bytes)); /* a hole */
    end();
}

static void a_forked_child_frees_nothing(void **state)
{
    struct commd_context *ctx;
    int status;
    uint8_t *p;
    pid_t pid;

    (void)state;
    /* a real context watches forks */
    assert_int_equal(commd_connect(&(struct commd_options){.size = sizeof(struct commd_options),
                                                           .socket = "/nonexistent/x"},
                                   &ctx),
                     COMMD_E_NO_DAEMON);
    begin(1, 9);
    p = alloc(100);
    p[7] = 1;
    pid = fork();
    if (pid == 0) {
        void *q;

        p[7]++;
        _exit(commd_free(p) == 0 && p[7] == 2 && commd_alloc(&cluster->ctx, 1, &q) == COMMD_E_FORKED
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(p[7], 2); /* one memory */
    assert_true(is_registered(p, 100));
    assert_int_equal(commd_free(p), 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right_and_nobody_copies),
        cmocka_unit_test(other_collectives),
        cmocka_unit_test(a_mixture_goes_the_ordinary_way),
        cmocka_unit_test(only_whole_allocations_count),
        cmocka_unit_test(who_cannot_map_leads_all_to_the_ordinary_way),
        cmocka_unit_test(without_commd_what_is_mapped_stays),
        cmocka_unit_test(an_operation_that_differs_is_refused_on_all),
        cmocka_unit_test(an_offer_that_does_not_fit_is_an_error),
        cmocka_unit_test(nobody_is_done_before_all_have_finished),
        cmocka_unit_test(who_is_stopped_at_work_is_locked_out),
        cmocka_unit_test(who_comes_late_does_not_begin),
        cmocka_unit_test(who_said_no_does_not_begin),
        cmocka_unit_test(who_comes_when_others_have_finished_does_not_begin),
        cmocka_unit_test(a_member_dies_at_work),
        cmocka_unit_test(allocations),
        cmocka_unit_test(nothing_grows),
        cmocka_unit_test(memory_is_given_back_although_a_peer_maps_it),
        cmocka_unit_test(a_forked_child_frees_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
