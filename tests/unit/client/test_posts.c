/* test_posts.c - operations in which senders wait for nobody (client/lib/coll/posts.c; over several
 * nodes client/lib/coll/early.c): random programs of such operations and others, in which now and
 * then one rank calls another operation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"

/* ROOM: of each rank's block, for programs of small and of large operations. */
enum { LENGTH = 80, RANKS = 5, ROOM = 140 << 10, MUCH = 3 << 20, IDLE_ROUNDS = 200000 };

struct call {
    int coll, root, dtype;
    size_t count;
};

struct program {
    struct call call[LENGTH], odd[LENGTH];
    int odd_rank[LENGTH];  /* -1: nobody */
    bool declines[LENGTH]; /* the odd rank cannot take part */
};

struct caller {
    struct run run;
    bool begun;
    unsigned at;
    uint8_t send[RANKS * ROOM + CACHELINE], recv[RANKS * ROOM + CACHELINE];
    int code[LENGTH];
    struct commd_error err[LENGTH];
    bool wrong[LENGTH];
};

static bool is_posted(const struct cluster *c, const struct call *call)
{
    struct op_desc d = {.seq = 1,
                        .count = call->coll == COMMD_BARRIER ? 0 : call->count,
                        .root = (uint32_t)call->root,
                        .coll = (uint8_t)call->coll,
                        .redop = COMMD_MAX};
    struct plan p;

    assert_true(plan_make(&d, &c->group[0]->now->geom, NULL, &p));
    return p.path == PATH_POST;
}

/* Does each rank learn in it whether all mean the same? */
static bool meets(const struct cluster *c, const struct call *call)
{
    return c->nnodes > 1 ? !coll_table[call->coll].rooted : !is_posted(c, call);
}

/* @large: some are so large that windows hold a few of them, or a part of one. */
static struct call draw_call(struct cluster *c, bool large)
{
    static const int colls[] = {COMMD_BROADCAST, COMMD_BROADCAST,  COMMD_BROADCAST,  COMMD_SCATTER,
                                COMMD_SCATTER,   COMMD_ALL_REDUCE, COMMD_BARRIER,    COMMD_GATHER,
                                COMMD_GATHER,    COMMD_REDUCE,     COMMD_ALL_GATHER, COMMD_REDUCE};
    static const size_t counts[] = {0, 1, 8, 48, 49, 700, PLAN_POST + 1, 33000, ROOM - 1};
    struct call call = {.coll = colls[cluster_rand(c, ARRAY_LEN(colls))],
                        .root = (int)cluster_rand(c, c->world),
                        .dtype = COMMD_U8,
                        .count = counts[cluster_rand(c, large ? ARRAY_LEN(counts) : 6)]};

    if (call.coll == COMMD_BROADCAST && large && cluster_rand(c, 8) == 0)
        call.count = RANKS * ROOM - 1;
    return call;
}

static bool differ(const struct call *a, const struct call *b)
{
    const struct coll_info *info = &coll_table[a->coll];

    if (a->coll != b->coll)
        return true;
    if (info->window == WINDOW_NONE)
        return false;
    return a->count != b->count || a->dtype != b->dtype || (info->rooted && a->root != b->root);
}

/* @one_in: how often a rank calls something else; 0: never. */
static void draw_program(struct cluster *c, struct program *p, unsigned one_in, bool large)
{
    for (unsigned i = 0; i < LENGTH; i++) {
        p->call[i] = draw_call(c, large);
        if (i == LENGTH - 1)
            p->call[i].coll = COMMD_BARRIER;
        p->odd[i] = p->call[i];
        p->odd_rank[i] = -1;
        p->declines[i] = false;
        if (!one_in || i + 1 >= LENGTH || cluster_rand(c, one_in))
            continue;
        p->odd_rank[i] = (int)cluster_rand(c, c->world);
        switch (cluster_rand(c, 5)) {
        case 0:
            p->odd[i].count++;
            break;
        case 1:
            p->odd[i].root = (int)cluster_rand(c, c->world);
            break;
        case 2:
            p->odd[i].dtype = COMMD_I8;
            break;
        case 3:
            p->declines[i] = true;
            if (!is_posted(c, &p->odd[i]))
                p->odd[i].coll = COMMD_BARRIER;
            break;
        default:
            p->odd[i] = draw_call(c, large);
        }
        if (!p->declines[i] && !differ(&p->odd[i], &p->call[i]))
            p->odd_rank[i] = -1;
    }
}

static uint8_t byte_of(unsigned i, unsigned rank, size_t at)
{
    return (uint8_t)(i * 7 + rank * 31 + at);
}

static const struct call *call_of(const struct program *p, unsigned i, unsigned rank)
{
    return p->odd_rank[i] == (int)rank ? &p->odd[i] : &p->call[i];
}

static void begin(struct cluster *c, struct caller *m, const struct program *p, unsigned rank)
{
    const struct call *call = call_of(p, m->at, rank);
    size_t most = call->count * (coll_table[call->coll].window == WINDOW_CELLS ||
                                         coll_table[call->coll].window == WINDOW_BLOCKS
                                     ? c->world
                                     : 1);
    struct commd_op op = {.size = sizeof op,
                          .coll = call->coll,
                          .dtype = call->dtype,
                          .redop = COMMD_MAX,
                          .root = call->root,
                          .count = call->count,
                          .send = m->send,
                          .recv = m->recv};

    for (size_t i = 0; i < most; i++)
        m->send[i] = byte_of(m->at, rank, i);
    memset(m->recv, 0xee, most + 1);
    if (call->coll == COMMD_BROADCAST && call->root == (int)rank)
        memcpy(m->recv, m->send, most);
    memset(&m->run, 0, sizeof m->run);
    m->code[m->at] = run_begin(&m->run, c->group[rank]->now, &op);
    m->begun = m->code[m->at] == 0;
    if (m->begun && p->declines[m->at] && p->odd_rank[m->at] == (int)rank)
        run_decline(&m->run, COMMD_E_NOMEM);
    if (!m->begun) {
        m->err[m->at] = m->run.err;
        m->at++;
    }
}

/* What the root has got, at byte @i of its buffer. */
static uint8_t at_root(const struct cluster *c, const struct call *call, unsigned at, size_t i)
{
    uint8_t most = 0;

    if (call->coll == COMMD_GATHER)
        return byte_of(at, (unsigned)(i / call->count), i % call->count);
    for (unsigned k = 0; k < c->world; k++)
        most = MAX(most, byte_of(at, k, i));
    return most;
}

static bool is_right(const struct cluster *c, const struct caller *m, const struct program *p,
                     unsigned rank)
{
    const struct call *call = call_of(p, m->at, rank);
    bool to_root = call->coll == COMMD_GATHER || call->coll == COMMD_REDUCE;
    unsigned from = (unsigned)call->root;
    size_t skip = call->coll == COMMD_SCATTER ? rank * call->count : 0;
    size_t n = call->count * (call->coll == COMMD_GATHER ? c->world : 1);

    if (meets(c, call))
        return true;
    assert_true(from < c->world);
    if (to_root && from != rank)
        return m->recv[0] == 0xee;
    for (size_t i = 0; i < n; i++)
        if (m->recv[i] != (to_root ? at_root(c, call, m->at, i) : byte_of(m->at, from, skip + i)))
            return false;
    return m->recv[n] == 0xee || (call->root == (int)rank && !to_root);
}

/* Ranks take turns as the seed says; @lazy hardly gets any. */
static void run_program(struct cluster *c, struct caller *m, const struct program *p, unsigned lazy,
                        uint64_t seed)
{
    unsigned left = c->world, idle = 0;

    for (unsigned k = 0; k < c->world; k++)
        m[k].at = 0, m[k].begun = false;
    while (left && idle < IDLE_ROUNDS) {
        unsigned k = cluster_rand(c, c->world);
        enum run_state st;

        idle++;
        if (c->nnodes > 1 && cluster_turn(c))
            idle = 0;
        if (m[k].at == LENGTH || (k == lazy && cluster_rand(c, 50)))
            continue;
        if (!m[k].begun) {
            begin(c, &m[k], p, k);
            idle = 0;
        } else {
            st = run_poll(&m[k].run);
            if (st != RUN_WAIT)
                idle = 0;
            if (st < RUN_DONE)
                continue;
            if (st == RUN_FAILED) {
                m[k].err[m[k].at] = m[k].run.err;
                m[k].code[m[k].at] = m[k].run.err.code;
            } else {
                m[k].wrong[m[k].at] = !is_right(c, &m[k], p, k);
            }
            run_end(&m[k].run, st);
            m[k].begun = false;
            m[k].at++;
        }
        left -= m[k].at == LENGTH;
    }
    for (unsigned k = 0; left && k < c->world; k++)
        printf("rank %u in %u: %s, odd %d\n", k, m[k].at,
               m[k].at < LENGTH ? coll_name((unsigned)call_of(p, m[k].at, k)->coll) : "over",
               m[k].at < LENGTH ? p->odd_rank[m[k].at] : -1);
    if (left)
        fail_msg("seed %llu hangs", (unsigned long long)seed);
}

static void check_same(const struct cluster *c, const struct caller *m, unsigned i, uint64_t seed)
{
    for (unsigned k = 0; k < c->world; k++)
        if (m[k].code[i] || m[k].wrong[i])
            fail_msg("seed %llu rank %u op %u: %s", (unsigned long long)seed, k, i,
                     m[k].code[i] ? m[k].err[i].message : "wrong data");
}

/* An operation is not blamed for what was called after it. */
static void check_blame(const struct commd_error *err, uint64_t seed)
{
    for (const char *at = err->message; (at = strstr(at, " in operation ")); at++)
        if (strtoull(at + strlen(" in operation "), NULL, 10) > err->seq)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err->message);
}

/* Nothing fails before ranks differ. Then some do, up to the first operation in which all meet, and
 * after that nothing fails. */
static void check_program(struct cluster *c, struct caller *m, const struct program *p,
                          uint64_t seed)
{
    bool clean = true;
    unsigned told = 0;

    for (unsigned i = 0; i < LENGTH; i++) {
        bool odd = p->odd_rank[i] >= 0;

        if (clean && !odd) {
            check_same(c, m, i, seed);
            continue;
        }
        if (clean)
            told = 0;
        clean = false;
        for (unsigned k = 0; k < c->world; k++) {
            if (m[k].code[i] && m[k].code[i] != COMMD_E_MISMATCH && m[k].code[i] != COMMD_E_NOMEM)
                fail_msg("seed %llu rank %u op %u: %s", (unsigned long long)seed, k, i,
                         m[k].err[i].message);
            told += m[k].code[i] != 0;
            if (m[k].code[i])
                check_blame(&m[k].err[i], seed);
            /* what is taken as well was meant so by its root */
            if (!m[k].code[i] && m[k].wrong[i])
                fail_msg("seed %llu rank %u op %u: wrong data", (unsigned long long)seed, k, i);
        }
        if (!odd && meets(c, &p->call[i])) {
            for (unsigned k = 1; k < c->world; k++)
                if (!m[k].code[i] != !m[0].code[i])
                    fail_msg("seed %llu op %u: rank %u %d, rank 0 %d", (unsigned long long)seed, i,
                             k, m[k].code[i], m[0].code[i]);
            if (!told)
                fail_msg("seed %llu op %u: nobody was told", (unsigned long long)seed, i);
            clean = true;
        }
    }
    for (unsigned k = 0; k < c->world; k++)
        assert_int_equal(commd_group_seq(c->group[k]), commd_group_seq(c->group[0]));
}

static void random_programs(unsigned nodes, unsigned one_in, unsigned seeds, bool large)
{
    static const uint32_t plans[] = {0, PLAN_KNOWN, PLAN_KNOWN, PLAN_SENDERS_GO_ON, PLAN_KNOWN};
    static struct caller m[RANKS];
    static struct program p;
    uint16_t placement[RANKS];

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        unsigned world = MAX(2 + (unsigned)(seed % (RANKS - 1)), nodes);
        struct cluster *c;

        for (unsigned k = 0; k < world; k++)
            placement[k] = (uint16_t)((k + seed / RANKS) % nodes);
        cluster_plans(plans[seed % ARRAY_LEN(plans)]);
        c = cluster_new(world, nodes, placement, seed);
        for (unsigned i = 0; i < 3; i++) {
            memset(m, 0, sizeof m);
            draw_program(c, &p, one_in, large);
            run_program(c, m, &p, cluster_rand(c, 2 * world), seed);
            check_program(c, m, &p, seed);
        }
        cluster_free(c);
    }
    cluster_plans(PLAN_KNOWN);
}

static void all_ranks_agree(void **state)
{
    random_programs(1, 0, 100, false);
    random_programs(1, 0, 20, true);
    for (unsigned nodes = 2; nodes <= 3; nodes++)
        random_programs(nodes, 0, 20, true);
}

static void one_rank_differs(void **state)
{
    random_programs(1, 20, 600, false);
    random_programs(1, 20, 60, true);
    for (unsigned nodes = 2; nodes <= 3; nodes++)
        random_programs(nodes, 20, 150, false);
}

static void ranks_differ_all_the_time(void **state)
{
    random_programs(1, 3, 600, false);
    random_programs(1, 3, 60, true);
    for (unsigned nodes = 2; nodes <= 3; nodes++) {
        random_programs(nodes, 3, 150, false);
        random_programs(nodes, 3, 20, true);
    }
}

/* Runs @op of rank @k to its end, without the others. @declined: run_decline(); 0: it takes part.
 */
static int alone_or_declined(struct cluster *c, unsigned k, struct commd_op op, int declined,
                             struct commd_error *err)
{
    enum run_state st = RUN_WAIT;
    struct run r = {0};

    op.size = sizeof op;
    if (run_begin(&r, c->group[k]->now, &op)) {
        *err = r.err;
        return r.err.code;
    }
    if (declined)
        run_decline(&r, declined);
    for (unsigned i = 0; i < 1000 && st < RUN_DONE; i++) {
        st = run_poll(&r);
        if (st < RUN_DONE && run_hopeless(&r))
            st = run_last_look(&r);
    }
    if (st < RUN_DONE) {
        run_abandon(&r);
        return 1;
    }
    run_end(&r, st);
    *err = r.err;
    return st == RUN_DONE ? 0 : r.err.code;
}

static int alone(struct cluster *c, unsigned k, struct commd_op op, struct commd_error *err)
{
    return alone_or_declined(c, k, op, 0, err);
}

static struct commd_op a_broadcast(int root, void *buf, size_t count)
{
    return (struct commd_op){
        .coll = COMMD_BROADCAST, .dtype = COMMD_U8, .root = root, .recv = buf, .count = count};
}

static struct cluster *pair_new(void)
{
    static const uint16_t placement[3];

    return cluster_new(3, 1, placement, 7);
}

/* As far as there are posts; and no further. */
static void root_waits_for_nobody(void **state)
{
    struct cluster *c = pair_new();
    struct commd_error err;
    uint8_t sent[BOARD_SLOTS], got;
    char text[200], node[MSG_NAME_MAX];
    int rank;

    for (unsigned i = 0; i < BOARD_SLOTS; i++) {
        sent[i] = (uint8_t)(i + 1);
        assert_int_equal(alone(c, 0, a_broadcast(0, &sent[i], 1), &err), 0);
    }
    for (unsigned k = 1; k < 3; k++)
        for (unsigned i = 0; i < BOARD_SLOTS; i++) {
            assert_int_equal(alone(c, k, a_broadcast(0, &got, 1), &err), 0);
            assert_int_equal(got, i + 1);
        }
    for (unsigned i = 0; i < BOARD_SLOTS; i++)
        assert_int_equal(alone(c, 0, a_broadcast(0, &sent[i], 1), &err), 0);
    assert_int_equal(alone(c, 0, a_broadcast(0, &sent[0], 1), &err), 1);
    assert_int_equal(alone(c, 1, a_broadcast(0, &got, 1), &err), 0);
    assert_true(absent_text(NULL, c->group[0]->now, 2 * BOARD_SLOTS + 1, NULL, text, sizeof text,
                            &rank, node));
    assert_int_equal(rank, 2); /* and not rank 1, which is behind as well */
    cluster_free(c);
}

static struct commd_op a_gather(int coll, uint8_t *send, uint8_t *recv, size_t count)
{
    return (struct commd_op){.coll = coll,
                             .dtype = COMMD_U8,
                             .redop = COMMD_SUM,
                             .send = send,
                             .recv = recv,
                             .count = count};
}

/* Neither for the root nor for each other; as far as there are posts. */
static void senders_wait_for_nobody(void **state)
{
    static const int colls[] = {COMMD_GATHER, COMMD_REDUCE};
    static const size_t counts[] = {1, BOARD_INLINE + 1, PLAN_POST};
    static uint8_t send[PLAN_POST], recv[3 * PLAN_POST];

    for (unsigned i = 0; i < ARRAY_LEN(colls) * ARRAY_LEN(counts); i++) {
        int coll = colls[i % ARRAY_LEN(colls)];
        size_t n = counts[i / ARRAY_LEN(colls)];
        struct cluster *c = pair_new();
        struct commd_error err;

        for (unsigned k = 1; k < 3; k++) {
            for (unsigned op = 0; op < BOARD_SLOTS; op++) {
                memset(send, (int)(16 * k + op), sizeof send);
                assert_int_equal(alone(c, k, a_gather(coll, send, recv, n), &err), 0);
            }
            assert_int_equal(alone(c, k, a_gather(coll, send, recv, n), &err), 1);
        }
        for (unsigned op = 0; op < BOARD_SLOTS; op++) {
            memset(send, 5, sizeof send);
            assert_int_equal(alone(c, 0, a_gather(coll, send, recv, n), &err), 0);
            for (size_t at = 0; at < n; at++) {
                assert_int_equal(recv[at], coll == COMMD_REDUCE ? 5 + 48 + 2 * op : 5);
                if (coll == COMMD_GATHER) {
                    assert_int_equal(recv[n + at], 16 + op);
                    assert_int_equal(recv[2 * n + at], 32 + op);
                }
            }
        }
        cluster_free(c);
    }
}

/* A member that does not know that would wait for them. A root waits for nobody all the same. */
static void senders_meet_who_does_not_know(void **state)
{
    uint8_t send[1] = {1}, recv[3];
    struct commd_error err;
    struct cluster *c;

    cluster_plans(0);
    c = pair_new();
    cluster_plans(PLAN_KNOWN);
    assert_int_equal(alone(c, 0, a_broadcast(0, recv, 1), &err), 0);
    assert_int_equal(alone(c, 1, a_broadcast(0, recv, 1), &err), 0);
    assert_int_equal(alone(c, 1, a_gather(COMMD_GATHER, send, recv, 1), &err), 1);
    cluster_free(c);
    c = pair_new();
    assert_int_equal(alone(c, 1, a_gather(COMMD_REDUCE, send, recv, 1), &err), 0);
    cluster_free(c);
}

/* How many operations a window holds the pieces of. */
static unsigned ops_in_window(const struct cluster *c, struct commd_op op)
{
    struct op_desc d = {.seq = 1,
                        .count = op.count,
                        .coll = (uint8_t)op.coll,
                        .dtype = (uint8_t)op.dtype,
                        .redop = (uint8_t)op.redop};
    struct plan p;

    assert_true(plan_make(&d, &c->group[0]->now->geom, NULL, &p));
    assert_true(p.path == PATH_POST && p.pieces);
    return c->group[0]->now->board.depth / p.steps;
}

/* As far as the window of who sends reaches, around and around; and no further. */
static void as_far_as_the_window_reaches(void **state)
{
    static const int colls[] = {COMMD_BROADCAST, COMMD_GATHER, COMMD_REDUCE};
    static uint8_t send[PLAN_POST + 1], recv[3 * sizeof send];

    for (unsigned i = 0; i < ARRAY_LEN(colls); i++) {
        struct cluster *c = pair_new();
        struct commd_op op = a_gather(colls[i], send, recv, sizeof send);
        unsigned most = ops_in_window(c, op), last = colls[i] == COMMD_BROADCAST ? 0 : 2;
        struct commd_error err;

        for (unsigned lap = 0; lap < 3; lap++) {
            for (unsigned k = last ? 1 : 0; k <= last; k++)
                for (unsigned at = 0; at < most; at++) {
                    memset(send, (int)(16 * lap + at), sizeof send);
                    op.recv = last ? recv : send;
                    assert_int_equal(alone(c, k, op, &err), 0);
                }
            op.recv = recv;
            memset(send, 0, sizeof send);
            for (unsigned k = last ? 0 : 1; k < (last ? 1 : 3); k++)
                for (unsigned at = 0; at < most; at++) {
                    assert_int_equal(alone(c, k, op, &err), 0);
                    for (size_t j = 0; j < sizeof send; j++)
                        assert_int_equal(recv[j + (colls[i] == COMMD_GATHER) * sizeof send],
                                         (16 * lap + at) << (colls[i] == COMMD_REDUCE));
                }
        }
        for (unsigned at = 0; at < most; at++)
            assert_int_equal(alone(c, last, op, &err), 0);
        assert_int_equal(alone(c, last, op, &err), 1);
        cluster_free(c);
    }
}

/* What rank 1 has not read of the step before stays, however much rank 0 sends. */
static void a_late_reader_of_a_step(void **state)
{
    enum { LEN = 4096, WHOLE = 4 * PLAN_CHUNK }; /* slots, however that is cut */
    static uint8_t buf[3][LEN], much[WHOLE];
    struct cluster *c = pair_new();
    struct commd_op op = a_gather(COMMD_ALL_REDUCE, NULL, NULL, LEN);
    struct run r[3] = {0};
    struct commd_error err;

    op.size = sizeof op;
    op.redop = COMMD_MAX;
    memset(much, 200, sizeof much);
    for (unsigned k = 0; k < 3; k++) {
        memset(buf[k], (int)k, LEN);
        op.send = op.recv = buf[k];
        assert_int_equal(run_begin(&r[k], c->group[k]->now, &op), 0);
        assert_true(run_poll(&r[k]) < RUN_DONE || k == 2);
    }
    assert_int_equal(run_poll(&r[0]), RUN_DONE);
    run_end(&r[0], RUN_DONE);
    for (unsigned i = 0; i <= c->group[0]->now->board.depth; i++)
        if (alone(c, 0, a_broadcast(0, much, WHOLE), &err))
            break;
    assert_int_equal(run_poll(&r[1]), RUN_DONE);
    for (unsigned i = 0; i < LEN; i++)
        assert_int_equal(buf[1][i], 2);
    cluster_free(c);
}

/* Ranks that know nothing of that meet as before. */
static void large_ones_meet_who_does_not_know(void **state)
{
    static uint8_t buf[PLAN_POST + 1];
    struct commd_error err;
    struct cluster *c;

    cluster_plans(PLAN_SENDERS_GO_ON);
    c = pair_new();
    cluster_plans(PLAN_KNOWN);
    assert_int_equal(alone(c, 0, a_broadcast(0, buf, PLAN_POST), &err), 0);
    assert_int_equal(alone(c, 0, a_broadcast(0, buf, PLAN_POST + 1), &err), 1);
    cluster_free(c);
}

/* Each of them needs its window several times, and others do not take it. They wait for nobody who
 * waits for them, and hear of it next, where all meet. */
static void much_that_others_do_not_take(void **state)
{
    static const struct {
        int coll, root;
    } calls[][3] = {
        {{COMMD_BROADCAST, 0}, {COMMD_BROADCAST, 1}, {COMMD_BROADCAST, 2}},
        {{COMMD_BROADCAST, 0}, {COMMD_BROADCAST, 2}, {COMMD_BROADCAST, 0}},
        {{COMMD_BROADCAST, 0}, {COMMD_BARRIER, 0}, {COMMD_BROADCAST, 0}},
        {{COMMD_BROADCAST, 0}, {COMMD_BROADCAST, 1}, {COMMD_BROADCAST, 1}},
        {{COMMD_BROADCAST, 0}, {COMMD_BROADCAST, 0}, {COMMD_REDUCE, 0}},
        {{COMMD_REDUCE, 0}, {COMMD_REDUCE, 0}, {COMMD_REDUCE, 1}},
        {{COMMD_ALL_REDUCE, 0}, {COMMD_GATHER, 0}, {COMMD_GATHER, 0}},
    };
    enum { OPS = 4 };
    const size_t count = MUCH;
    uint8_t *send = calloc(3, count), *recv = calloc(3, 3 * count);

    for (unsigned way = 0; way < ARRAY_LEN(calls); way++) {
        struct cluster *c = pair_new();
        struct run r[3] = {0};
        unsigned at[3] = {0}, told = 0;
        bool begun[3] = {0};

        for (unsigned i = 0; i < 100000 && at[0] + at[1] + at[2] < 3 * OPS; i++) {
            unsigned k = cluster_rand(c, 3);
            struct commd_op op = a_gather(at[k] ? COMMD_BARRIER : calls[way][k].coll,
                                          send + k * count, recv + 3 * k * count, count);
            enum run_state st;

            op.size = sizeof op;
            op.root = calls[way][k].root;
            if (at[k] == OPS)
                continue;
            if (!begun[k] && run_begin(&r[k], c->group[k]->now, &op)) {
                at[k]++;
                continue;
            }
            begun[k] = true;
            st = run_poll(&r[k]);
            if (st < RUN_DONE)
                continue;
            if (st == RUN_FAILED)
                assert_int_equal(r[k].err.code, COMMD_E_MISMATCH);
            told += st == RUN_FAILED;
            if (st == RUN_FAILED && at[k] > 1)
                fail_msg("case %u: %s", way, r[k].err.message);
            run_end(&r[k], st);
            begun[k] = false;
            at[k]++;
        }
        if (at[0] + at[1] + at[2] < 3 * OPS)
            fail_msg("case %u hangs in %u, %u, %u", way, at[0], at[1], at[2]);
        assert_true(told > 0);
        cluster_free(c);
    }
    free(send);
    free(recv);
}

/* In the middle of an operation that its window does not hold. */
static void one_dies_in_the_middle(void **state)
{
    const size_t count = MUCH;
    uint8_t *buf = calloc(3, count);

    for (unsigned dead = 0; dead < 2; dead++) {
        struct cluster *c = pair_new();
        struct run r[3] = {0};

        for (unsigned k = 0; k < 3; k++) {
            struct commd_op op = a_broadcast(0, buf + k * count, count);

            op.size = sizeof op;
            assert_int_equal(run_begin(&r[k], c->group[k]->now, &op), 0);
            assert_true(run_poll(&r[k]) < RUN_DONE);
        }
        assert_true(r[0].got > 0 && r[1].got > 0);
        board_mark_gone(c->node[0].ctl, dead, 0, CAUSE_RANK_LOST, 4711);
        for (unsigned i = 0; i < 10000; i++)
            for (unsigned k = 0; k < 3; k++)
                if (k != dead)
                    assert_true(run_poll(&r[k]) < RUN_DONE);
        for (unsigned k = 0; k < 3; k++) {
            if (k != dead) {
                assert_true(run_hopeless(&r[k]));
                assert_int_equal(r[k].err.code, COMMD_E_RANK_LOST);
                assert_int_equal(r[k].err.rank, dead);
            }
            run_abandon(&r[k]);
        }
        cluster_free(c);
    }
    free(buf);
}

/* The others get what it had posted, and then learn that it is gone. */
static void root_dies_ahead(void **state)
{
    struct cluster *c = pair_new();
    struct commd_error err;
    uint8_t sent = 5, got = 0;

    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(alone(c, 0, a_broadcast(0, &sent, 1), &err), 0);
    assert_int_equal(board_rank_ops(c->node[0].ctl, 0), 2);
    board_mark_gone(c->node[0].ctl, 0, 2, CAUSE_RANK_LOST, 4711);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(run_foretold(c->group[1]->now), 0);
        assert_int_equal(alone(c, 1, a_broadcast(0, &got, 1), &err), 0);
        assert_int_equal(got, 5);
    }
    assert_int_equal(run_foretold(c->group[1]->now), COMMD_E_RANK_LOST);
    assert_int_equal(run_foretold(c->group[2]->now), 0);
    assert_int_equal(alone(c, 1, a_broadcast(0, &got, 1), &err), COMMD_E_RANK_LOST);
    assert_int_equal(err.rank, 0);
    cluster_free(c);
}

/* The root learns it in its next operation, or when it has no room to post. */
static void receiver_dies_behind(void **state)
{
    for (unsigned ahead = 1; ahead <= BOARD_SLOTS; ahead += BOARD_SLOTS - 1) {
        struct cluster *c = pair_new();
        struct commd_error err;
        uint8_t sent = 5;

        for (unsigned i = 0; i < ahead; i++)
            assert_int_equal(alone(c, 0, a_broadcast(0, &sent, 1), &err), 0);
        board_mark_gone(c->node[0].ctl, 1, 0, CAUSE_RANK_LOST, 4711);
        if (ahead < BOARD_SLOTS) /* it may post, and meets the others next */
            assert_int_equal(alone(c, 0, (struct commd_op){.coll = COMMD_BARRIER}, &err),
                             COMMD_E_RANK_LOST);
        else
            assert_int_equal(alone(c, 0, a_broadcast(0, &sent, 1), &err), COMMD_E_RANK_LOST);
        assert_int_equal(err.rank, 1);
        cluster_free(c);
    }
}

/* It has completed an operation of this number, and was not in it. */
static void root_leaves_who_meets(void **state)
{
    for (unsigned cause = CAUSE_RANK_LOST; cause; cause = cause == CAUSE_LEFT ? 0 : CAUSE_LEFT) {
        struct cluster *c = pair_new();
        struct commd_error err;
        uint8_t sent = 5;

        assert_int_equal(alone(c, 0, a_broadcast(0, &sent, 1), &err), 0);
        board_mark_gone(c->node[0].ctl, 0, 1, cause, 4711);
        assert_int_equal(alone(c, 1, (struct commd_op){.coll = COMMD_BARRIER}, &err),
                         COMMD_E_RANK_LOST);
        assert_int_equal(err.rank, 0);
        assert_int_equal(err.left, cause == CAUSE_LEFT);
        cluster_free(c);
    }
}

/* Rank 1 goes as soon as it is done with an operation of many steps. The others still need steps of
 * each other, and all end well. */
static void leave_when_done(int coll, uint64_t seed)
{
    static const uint16_t placement[3];
    struct cluster *c = cluster_new(3, 1, placement, seed);
    size_t count = 2 * BOARD_SLOTS * c->group[0]->now->board.chunk;
    uint8_t *send = calloc(1, count), *recv = calloc(3, count);
    enum run_state st[3] = {RUN_WAIT, RUN_WAIT, RUN_WAIT};
    struct run r[3] = {0};

    for (unsigned k = 0; k < 3; k++) {
        struct commd_op op = {.size = sizeof op,
                              .coll = coll,
                              .dtype = COMMD_U8,
                              .count = count,
                              .send = send,
                              .recv = k ? NULL : recv};

        assert_int_equal(run_begin(&r[k], c->group[k]->now, &op), 0);
        assert_true(r[k].plan.steps > BOARD_SLOTS);
    }
    for (unsigned i = 0; i < 100000 && (st[0] < RUN_DONE || st[1] < RUN_DONE || st[2] < RUN_DONE);
         i++) {
        unsigned k = cluster_rand(c, 3);

        if (st[k] >= RUN_DONE)
            continue;
        st[k] = run_poll(&r[k]);
        if (st[k] < RUN_DONE && run_hopeless(&r[k]))
            st[k] = run_last_look(&r[k]);
        if (st[k] == RUN_FAILED)
            fail_msg("seed %llu %s: %s", (unsigned long long)seed, coll_name((unsigned)coll),
                     r[k].err.message);
        if (st[k] < RUN_DONE)
            continue;
        run_end(&r[k], st[k]);
        if (k == 1)
            board_mark_gone(c->node[0].ctl, 1, 1, CAUSE_LEFT, 4711);
    }
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(st[k], RUN_DONE);
    free(send);
    free(recv);
    cluster_free(c);
}

static void who_is_done_may_leave(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        leave_when_done(COMMD_GATHER, seed);
        leave_when_done(COMMD_REDUCE, seed);
    }
}

/* Who finds it fails at once; the root in its next operation, of whatever kind; both are told both
 * descriptions. Then the group goes on. */
static void root_hears_of_it_next(void **state)
{
    for (unsigned barrier = 0; barrier < 2; barrier++) {
        struct cluster *c = pair_new();
        struct commd_op ops[3];
        enum run_state st[3];
        struct commd_error err, errs[3];
        uint8_t sent[8] = {5}, got[3][8];

        assert_int_equal(alone(c, 0, a_broadcast(0, sent, 4), &err), 0);
        assert_int_equal(alone(c, 1, a_broadcast(0, got[1], 3), &err), COMMD_E_MISMATCH);
        assert_string_equal(
            err.message, "operation 1 of group \"test\": rank 0 (node node0) called broadcast u8 "
                         "of 4 elements from rank 0, but rank 1 (node node0) called broadcast u8 "
                         "of 3 elements from rank 0; the group can still be used");
        assert_int_equal(alone(c, 2, a_broadcast(0, got[2], 4), &err), 0);
        for (unsigned k = 0; k < 3; k++) {
            ops[k] = a_broadcast(0, k ? got[k] : sent, 4);
            if (barrier)
                ops[k].coll = COMMD_BARRIER;
            ops[k].size = sizeof ops[k];
        }
        assert_true(cluster_run(c, ops, st, errs));
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(st[k], RUN_FAILED);
            assert_int_equal(errs[k].code, COMMD_E_MISMATCH);
            assert_string_equal(
                errs[k].message,
                "operation 2 of group \"test\": rank 0 (node node0) called broadcast u8 of 4 "
                "elements from rank 0 in operation 1, but rank 1 (node node0) called broadcast u8 "
                "of "
                "3 elements from rank 0 in operation 1; the group can still be used");
        }
        assert_true(cluster_run(c, ops, st, errs));
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(st[k], RUN_DONE);
        cluster_free(c);
    }
}

/* Likewise of who sends to the root: all meet in the next, though none of them waits for another.
 */
static void senders_hear_of_it_next(void **state)
{
    for (unsigned declines = 0; declines < 2; declines++) {
        struct cluster *c = pair_new();
        struct commd_op ops[3];
        enum run_state st[3];
        struct commd_error err, errs[3];
        uint8_t send[3] = {1, 2, 3}, recv[9];

        assert_int_equal(alone(c, 1, a_gather(COMMD_GATHER, send, recv, 1), &err), 0);
        assert_int_equal(alone_or_declined(c, 2,
                                           a_gather(COMMD_GATHER, send, recv, declines ? 1 : 2),
                                           declines ? COMMD_E_NOMEM : 0, &err),
                         declines ? COMMD_E_NOMEM : 0);
        assert_int_equal(alone(c, 0, a_gather(COMMD_GATHER, send, recv, 1), &err),
                         declines ? COMMD_E_NOMEM : COMMD_E_MISMATCH);
        assert_non_null(strstr(err.message, declines ? "rank 2 (node node0) cannot take part"
                                                     : "rank 2 (node node0) called gather u8 "
                                                       "of 2 elements to rank 0"));
        for (unsigned k = 0; k < 3; k++) {
            ops[k] = a_gather(COMMD_GATHER, &send[k], k ? NULL : recv, 1);
            ops[k].size = sizeof ops[k];
        }
        for (unsigned again = 0; again < 2; again++) {
            assert_true(cluster_run(c, ops, st, errs));
            for (unsigned k = 0; k < 3; k++) {
                assert_int_equal(st[k], again ? RUN_DONE : RUN_FAILED);
                if (!again)
                    assert_int_equal(errs[k].code, declines ? COMMD_E_NOMEM : COMMD_E_MISMATCH);
                if (!again && !declines)
                    assert_non_null(strstr(errs[k].message, "in operation 1"));
            }
        }
        assert_memory_equal(recv, send, 3);
        cluster_free(c);
    }
}

/* The others had sent more before that: what the root takes next differs by what it called itself,
 * and it is told so, or that it could not take part. */
static void root_hears_what_it_called_before(void **state)
{
    for (unsigned declines = 0; declines < 2; declines++) {
        struct cluster *c = pair_new();
        uint8_t send[2] = {1, 2}, recv[6];
        struct commd_error err;
        const int code = declines ? COMMD_E_NOMEM : COMMD_E_MISMATCH;

        for (unsigned k = 1; k < 3; k++)
            for (unsigned op = 0; op < 3; op++)
                assert_int_equal(alone(c, k, a_gather(COMMD_GATHER, send, recv, 1), &err), 0);
        assert_int_equal(alone_or_declined(c, 0,
                                           a_gather(COMMD_GATHER, send, recv, declines ? 1 : 2),
                                           declines ? code : 0, &err),
                         code);
        for (unsigned op = 2; op < 4; op++) {
            assert_int_equal(alone(c, 0, a_gather(COMMD_GATHER, send, recv, 1), &err), code);
            assert_int_equal(err.rank, 0);
            assert_non_null(strstr(err.message, declines
                                                    ? "rank 0 (node node0) could not take part in "
                                                      "operation 1"
                                                    : "rank 0 (node node0) called gather u8 of 2 "
                                                      "elements to rank 0 in operation 1"));
        }
        cluster_free(c);
    }
}

/* Rank 1 meets the others, as it has heard of a mismatch. Rank 2 had sent before that, and calls
 * nothing more. */
static void who_does_not_meet_is_named(void **state)
{
    struct cluster *c = pair_new();
    uint8_t send[2] = {1, 2}, recv[6];
    struct commd_op op = a_gather(COMMD_GATHER, send, recv, 1);
    struct commd_error err;
    struct run r = {0};

    op.size = sizeof op;
    assert_int_equal(alone(c, 1, a_gather(COMMD_GATHER, send, recv, 2), &err), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(alone(c, 2, op, &err), 0);
    assert_int_equal(alone(c, 0, op, &err), COMMD_E_MISMATCH);
    assert_int_equal(run_begin(&r, c->group[0]->now, &op), 0);
    assert_int_equal(alone(c, 1, op, &err), 1);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(run_poll(&r) < RUN_DONE);
    assert_int_equal(r.put, 1);
    r.deadline_ms = 0; /* long ago */
    assert_true(run_hopeless_slow(&r));
    assert_int_equal(r.err.code, COMMD_E_TIMEOUT);
    assert_int_equal(r.err.rank, 2);
    assert_non_null(strstr(r.err.message, ": rank 2 of node "));
    run_abandon(&r);
    cluster_free(c);
}

/* Ranks 1 and 2 have heard of a mismatch, and meet the others; rank 1 in a later operation, and
 * dies. Rank 0 has been told, and calls nothing more. Whatever rank 2 calls, it does not wait on;
 * nor if it was in the middle of sending much. */
static void who_meets_dies_ahead(void **state)
{
    static const struct {
        int coll;
        size_t count;
    } calls[] = {
        {COMMD_GATHER, 1}, {COMMD_BARRIER, 0}, {COMMD_GATHER, PLAN_POST + 1}, {COMMD_GATHER, MUCH}};
    uint8_t *send = calloc(2, MUCH), *recv = send + MUCH;

    for (unsigned i = 0; i < ARRAY_LEN(calls); i++) {
        struct cluster *c = pair_new();
        struct commd_op first = a_gather(COMMD_GATHER, send, recv, 1),
                        op = a_gather(calls[i].coll, send, recv, calls[i].count);
        struct commd_error err;
        struct run r = {0};

        op.size = sizeof op;
        assert_int_equal(alone(c, 2, first, &err), 0);
        for (unsigned k = 0; k < BOARD_SLOTS; k++)
            assert_int_equal(alone(c, 1, a_gather(COMMD_GATHER, send, recv, 2), &err), 0);
        if (calls[i].count < MUCH)
            assert_int_equal(alone(c, 0, first, &err), COMMD_E_MISMATCH);
        assert_int_equal(run_begin(&r, c->group[2]->now, &op), 0);
        for (unsigned k = 0; k < 1000; k++)
            assert_true(run_poll(&r) < RUN_DONE);
        assert_int_equal(r.got > 0, calls[i].count == MUCH);
        if (r.got)
            assert_int_equal(alone(c, 0, first, &err), COMMD_E_MISMATCH);
        assert_int_equal(alone(c, 1, a_gather(COMMD_GATHER, send, recv, 2), &err), 1);
        assert_false(run_hopeless(&r));
        board_mark_gone(c->node[0].ctl, 1, BOARD_SLOTS, CAUSE_RANK_LOST, 4711);
        assert_true(run_hopeless(&r));
        assert_int_equal(r.err.code, COMMD_E_RANK_LOST);
        assert_int_equal(r.err.rank, 1);
        run_abandon(&r);
        cluster_free(c);
    }
    free(send);
}

/* Nobody takes anything: rank 1 sends to rank 0, which sends to rank 1. */
static void two_senders(void **state)
{
    struct cluster *c = pair_new();
    struct commd_error err;
    uint8_t send[1] = {1}, recv[3];
    int r = 0;

    for (unsigned i = 0; i < 3 * BOARD_SLOTS && r == 0; i++)
        for (unsigned k = 0; k < 3 && r == 0; k++) {
            struct commd_op op = a_gather(COMMD_GATHER, send, recv, 1);

            op.root = (int)(k + 1) % 3;
            r = alone(c, k, op, &err);
        }
    assert_int_equal(r, 1); /* it meets the others, which have not come there yet */
    cluster_free(c);
}

/* Rank 2 does not take the refusal that tells of its first mistake, as it makes another one there,
 * or is not there: it was before the root. All agree again at last. */
static void who_misses_the_refusal(void **state)
{
    static const struct {
        unsigned mistakes;
        bool declines, first;
        unsigned most; /* operations that fail */
    } cases[] = {
        {1, true, false, 2},  {1, true, true, 2},
        {2, true, false, 2},  {2, true, true, 2 * BOARD_SLOTS + 4},
        {2, false, false, 2},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct cluster *c = pair_new();
        unsigned failed = 0;

        for (unsigned op = 1; op <= 4 * BOARD_SLOTS; op++) {
            bool mistaken = op <= cases[i].mistakes, declines = mistaken && cases[i].declines;
            struct commd_error err;
            uint8_t sent = 5, got[8];
            bool fails = false;

            for (unsigned j = 0; j < 3; j++) {
                unsigned k = mistaken && cases[i].first ? (j + 2) % 3 : j;
                struct commd_op call = a_broadcast(0, k ? got : &sent, 1);
                int code;

                if (k == 2 && mistaken && !declines)
                    call = a_broadcast(op == 1 ? 0 : 1, got, op == 1 ? 2 : 1);
                code = alone_or_declined(c, k, call, k == 2 && declines ? COMMD_E_NOMEM : 0, &err);
                fails |= code != 0;
                assert_true(code == 0 || code == COMMD_E_MISMATCH || code == COMMD_E_NOMEM);
            }
            failed += fails;
            if (op > cases[i].most && fails)
                fail_msg("case %u operation %u: %s", i, op, err.message);
        }
        assert_true(failed > 0);
        cluster_free(c);
    }
}

/* Each takes itself for the root, and neither takes anything. */
static void two_roots(void **state)
{
    for (unsigned way = 0; way < 3; way++) {
        struct cluster *c = pair_new();
        struct commd_op ops[3];
        enum run_state st[3];
        struct commd_error err, errs[3];
        uint8_t buf[3][8] = {{1}};
        int r = 0;

        for (unsigned k = 0; k < 2; k++)
            assert_int_equal(alone(c, k, a_broadcast((int)k, buf[k], 1), &err), 0);
        assert_int_equal(alone(c, 2, a_broadcast(0, buf[2], 1), &err), 0);
        if (way == 0) { /* the first that is taken */
            assert_int_equal(alone(c, 0, a_broadcast(0, buf[0], 1), &err), 0);
            r = alone(c, 1, a_broadcast(0, buf[1], 1), &err);
        } else if (way == 1) { /* where all meet */
            for (unsigned k = 0; k < 3; k++)
                ops[k] = (struct commd_op){.size = sizeof *ops, .coll = COMMD_BARRIER};
            assert_true(cluster_run(c, ops, st, errs));
            for (unsigned k = 0; k < 3; k++)
                assert_int_equal(errs[k].code, COMMD_E_MISMATCH);
            err = errs[2];
            r = err.code;
        } else { /* for ever */
            for (unsigned i = 0; i < 3 * BOARD_SLOTS && r == 0; i++) {
                r = alone(c, 0, a_broadcast(0, buf[0], 1), &err);
                if (r == 0)
                    r = alone(c, 1, a_broadcast(1, buf[1], 1), &err);
                if (r == 0)
                    r = alone(c, 2, a_broadcast(2, buf[2], 1), &err);
            }
        }
        assert_int_equal(r, COMMD_E_MISMATCH);
        assert_non_null(strstr(err.message, "from rank 0 in operation"));
        assert_non_null(strstr(err.message, "from rank 1 in operation"));
        cluster_free(c);
    }
}

/* Rank 0 is one operation ahead where all meet. Each is told what was called in the operation in
 * which they differ, as the number of its own; so are the others in the one that they come to. */
static void who_is_ahead_differed_before(void **state)
{
    static const char *const texts[] = {
        "operation 2 of group \"test\": rank 0 (node node0) called broadcast u8 of 4 elements from "
        "rank 0 in operation 1, but rank 1 (node node0) called barrier in operation 1; the group "
        "can still be used",
        "operation 1 of group \"test\": rank 0 (node node0) called broadcast u8 of 4 elements from "
        "rank 0, but rank 1 (node node0) called barrier; the group can still be used"};
    struct cluster *c = pair_new();
    struct commd_op ops[3];
    struct commd_error err, errs[3];
    enum run_state st[3];
    uint8_t sent[4] = {5};

    assert_int_equal(alone(c, 0, a_broadcast(0, sent, 4), &err), 0);
    for (unsigned k = 0; k < 3; k++)
        ops[k] = (struct commd_op){.size = sizeof *ops, .coll = COMMD_BARRIER};
    assert_true(cluster_run(c, ops, st, errs));
    for (unsigned k = 0; k < 3; k++)
        assert_string_equal(errs[k].message, texts[k > 0]);
    for (unsigned k = 1; k < 3; k++) {
        assert_int_equal(alone(c, k, a_broadcast(0, sent, 4), &err), COMMD_E_MISMATCH);
        assert_string_equal(err.message, texts[0]);
        assert_int_equal(err.seq, 2);
    }
    assert_true(cluster_run(c, ops, st, errs));
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(st[k], RUN_DONE);
    cluster_free(c);
}

/* Both wait for the other one. */
static void two_receivers(void **state)
{
    struct cluster *c = pair_new();
    struct commd_op ops[3];
    enum run_state st[3];
    struct commd_error errs[3];
    uint8_t buf[3][8];

    for (unsigned k = 0; k < 3; k++) {
        ops[k] = a_broadcast((int)(k + 1) % 3, buf[k], 1);
        ops[k].size = sizeof ops[k];
    }
    assert_true(cluster_run(c, ops, st, errs));
    for (unsigned k = 0; k < 3; k++)
        assert_int_equal(errs[k].code, COMMD_E_MISMATCH);
    cluster_free(c);
}

/* Rank 3 meets others where they post, and so nobody has room after 16 operations. Then ranks wait
 * for each other. */
static void who_is_behind_holds_up_nobody(void **state)
{
    enum { N = 4 };
    static const uint16_t placement[N];
    static const int roots[] = {1, 2, 1, 0};
    struct cluster *c = cluster_new(N, 1, placement, 7);
    enum run_state st[N] = {RUN_WAIT, RUN_WAIT, RUN_WAIT, RUN_WAIT};
    struct commd_op ops[N];
    struct run r[N] = {0};
    struct commd_error err;
    uint8_t buf[N][8] = {{5}};

    for (unsigned i = 0; i < BOARD_SLOTS; i++)
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(alone(c, k, a_broadcast(0, buf[k], 1), &err), 0);
    for (unsigned k = 0; k < N; k++) {
        ops[k] = a_broadcast(roots[k], buf[k], 1);
        ops[k].size = sizeof ops[k];
        if (k == 3)
            ops[k].coll = COMMD_BARRIER;
        assert_int_equal(run_begin(&r[k], c->group[k]->now, &ops[k]), 0);
    }
    for (unsigned i = 0; i < 10000; i++) {
        unsigned k = cluster_rand(c, N);

        if (st[k] >= RUN_DONE)
            continue;
        st[k] = run_poll(&r[k]);
        if (st[k] >= RUN_DONE)
            run_end(&r[k], st[k]);
    }
    for (unsigned k = 0; k < N; k++) {
        assert_int_equal(st[k], RUN_FAILED);
        assert_int_equal(r[k].err.code, COMMD_E_MISMATCH);
    }
    for (unsigned i = 1; i <= BOARD_SLOTS; i++) /* what the others have called meanwhile */
        assert_int_equal(alone(c, 3, a_broadcast(0, buf[3], 1), &err), COMMD_E_MISMATCH);
    for (unsigned k = 0; k < N; k++)
        ops[k].coll = COMMD_BARRIER;
    assert_true(cluster_run(c, ops, st, NULL));
    for (unsigned k = 0; k < N; k++)
        assert_int_equal(st[k], RUN_DONE);
    cluster_free(c);
}

/* A rank may write any number there, and the others would refuse all operations up to it. */
static void nobody_is_far_ahead(void **state)
{
    for (unsigned far = 0; far < 2; far++) {
        struct cluster *c = pair_new();
        uint32_t base = c->group[0]->now->next_step;
        struct commd_error err;
        struct run r = {0};
        uint8_t buf[8] = {5};

        for (unsigned k = 1; k < 3; k++) {
            struct commd_op op = {.size = sizeof op, .coll = COMMD_BARRIER};

            assert_int_equal(run_begin(&r, c->group[k]->now, &op), 0);
            assert_int_equal(run_poll(&r), RUN_MOVED);
        }
        board_slot(&c->group[0]->now->board, 1, base)->desc.seq = 2 * BOARD_SLOTS + 1 + far;
        assert_int_equal(alone(c, 0,
                               (struct commd_op){.coll = COMMD_ALL_REDUCE,
                                                 .dtype = COMMD_U8,
                                                 .send = buf,
                                                 .recv = buf,
                                                 .count = 1},
                               &err),
                         far ? COMMD_E_INTERNAL : COMMD_E_MISMATCH);
        assert_int_equal(group_has_failed(c->group[0]->now, &err), far);
        run_abandon(&r);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_waits_for_nobody),
        cmocka_unit_test(senders_wait_for_nobody),
        cmocka_unit_test(senders_meet_who_does_not_know),
        cmocka_unit_test(as_far_as_the_window_reaches),
        cmocka_unit_test(a_late_reader_of_a_step),
        cmocka_unit_test(large_ones_meet_who_does_not_know),
        cmocka_unit_test(much_that_others_do_not_take),
        cmocka_unit_test(one_dies_in_the_middle),
        cmocka_unit_test(root_dies_ahead),
        cmocka_unit_test(receiver_dies_behind),
        cmocka_unit_test(root_leaves_who_meets),
        cmocka_unit_test(who_is_done_may_leave),
        cmocka_unit_test(root_hears_of_it_next),
        cmocka_unit_test(senders_hear_of_it_next),
        cmocka_unit_test(root_hears_what_it_called_before),
        cmocka_unit_test(who_does_not_meet_is_named),
        cmocka_unit_test(who_meets_dies_ahead),
        cmocka_unit_test(two_senders),
        cmocka_unit_test(who_misses_the_refusal),
        cmocka_unit_test(two_roots),
        cmocka_unit_test(who_is_ahead_differed_before),
        cmocka_unit_test(two_receivers),
        cmocka_unit_test(nobody_is_far_ahead),
        cmocka_unit_test(who_is_behind_holds_up_nobody),
        cmocka_unit_test(all_ranks_agree),
        cmocka_unit_test(one_rank_differs),
        cmocka_unit_test(ranks_differ_all_the_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
