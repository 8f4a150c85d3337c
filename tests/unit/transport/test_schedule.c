/* test_schedule.c - runs every schedule on all its nodes at once, with symbolic data.
 *
 * A value is the set of nodes whose contributions it contains plus a hash of the tree in
 * which they were combined: two values are the same bits only when both agree. Messages wait
 * in one bag and are delivered in random order, so a schedule that needs luck deadlocks. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include "transport/schedule/schedule.h"

enum { MAX_N = 100, WORDS = 2 };

struct set {
    uint64_t w[WORDS];
};

struct value {
    struct set from;
    uint64_t tree; /* 0: nothing here */
};

struct message {
    unsigned src, dst, tag, n;
    struct set knows;
    struct value val[MAX_N];
};

struct node {
    unsigned pc, len;
    bool sent; /* the send half of move pc is out */
    unsigned sent_segments;
    struct set knows; /* heard from, directly or not */
    struct value seg[MAX_N];
};

struct world {
    enum sched_kind kind;
    unsigned nodes, root, segs;
    uint64_t rng;
    struct node node[MAX_N];
    struct message *bag[4 * MAX_N];
    unsigned in_bag;
};

static const unsigned node_counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                       12, 13, 14, 15, 16, 17, 32, 33, 64, 100};

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static void set_add(struct set *s, unsigned i)
{
    s->w[i / 64] |= 1ull << i % 64;
}

static void set_join(struct set *s, const struct set *o)
{
    for (unsigned i = 0; i < WORDS; i++)
        s->w[i] |= o->w[i];
}

static bool set_meets(const struct set *a, const struct set *b)
{
    return (a->w[0] & b->w[0]) || (a->w[1] & b->w[1]);
}

static bool set_is_full(const struct set *s, unsigned nodes)
{
    struct set all = {{0}};

    for (unsigned i = 0; i < nodes; i++)
        set_add(&all, i);
    return memcmp(s, &all, sizeof(all)) == 0;
}

static struct value leaf(unsigned node)
{
    struct value v = {.tree = (node + 1) * 0x9e3779b97f4a7c15u};

    set_add(&v.from, node);
    return v;
}

static struct value combine(struct value left, struct value right)
{
    struct value v = left;

    assert_true(left.tree && right.tree);
    assert_false(set_meets(&left.from, &right.from)); /* else counted twice */
    set_join(&v.from, &right.from);
    v.tree = (left.tree * 31 + right.tree) * 0xbf58476d1ce4e5b9u;
    v.tree ^= v.tree >> 29;
    return v;
}

static bool is_rd(enum sched_kind k)
{
    return k == SCHED_RD_ALL_REDUCE || k == SCHED_RD_ALL_GATHER || k == SCHED_RD_BROADCAST ||
           k == SCHED_RD_REDUCE || k == SCHED_HALVING_ALL_REDUCE;
}

static bool is_scatter(enum sched_kind k)
{
    return k == SCHED_RING_REDUCE_SCATTER || k == SCHED_HALVING_REDUCE_SCATTER;
}

static bool is_reduction(enum sched_kind k)
{
    return k == SCHED_RD_ALL_REDUCE || k == SCHED_HALVING_ALL_REDUCE ||
           k == SCHED_RING_ALL_REDUCE || is_scatter(k) || k == SCHED_RD_REDUCE ||
           k == SCHED_CHAIN_REDUCE;
}

static bool is_reduce(enum sched_kind k)
{
    return k == SCHED_RD_REDUCE || k == SCHED_CHAIN_REDUCE;
}

static bool is_broadcast(enum sched_kind k)
{
    return k == SCHED_RD_BROADCAST || k == SCHED_CHAIN_BROADCAST;
}

static void world_init(struct world *w, enum sched_kind kind, unsigned nodes, unsigned root)
{
    memset(w, 0, sizeof(*w));
    w->kind = kind;
    w->nodes = nodes;
    w->root = root;
    w->segs = kind == SCHED_RD_ALL_REDUCE || is_broadcast(kind) || is_reduce(kind) ? 1 : nodes;
    w->rng = 88172645463325252ull + kind * 1000003 + nodes * 1009 + root;
    for (unsigned i = 0; i < nodes; i++) {
        w->node[i].len = sched_len(kind, nodes, i, root);
        assert_true(w->node[i].len <= SCHED_MAX_MOVES);
        set_add(&w->node[i].knows, i);
        for (unsigned s = 0; s < w->segs; s++) {
            if (is_reduction(kind) || (is_broadcast(kind) ? i == root : i == s))
                w->node[i].seg[s] = leaf(i);
        }
    }
}

static struct sched_move move_of(const struct world *w, unsigned node, unsigned i)
{
    return sched_move(w->kind, w->nodes, node, w->root, i);
}

static void do_send(struct world *w, unsigned me, const struct sched_move *mv)
{
    struct node *nd = &w->node[me];
    struct message *m;

    nd->sent = true;
    if (mv->to < 0)
        return;
    assert_true(w->in_bag < 4 * MAX_N);
    m = calloc(1, sizeof(*m));
    assert_non_null(m);
    m->src = me;
    m->dst = (unsigned)mv->to;
    m->tag = nd->pc;
    m->n = mv->send_n;
    m->knows = nd->knows;
    for (unsigned i = 0; i < mv->send_n; i++) {
        m->val[i] = nd->seg[mv->send_lo + i];
        assert_true(m->val[i].tree != 0); /* nobody sends what he does not have */
    }
    nd->sent_segments += mv->send_n;
    w->bag[w->in_bag++] = m;
}

static void apply(struct world *w, struct node *nd, const struct sched_move *mv,
                  const struct message *m)
{
    assert_int_equal(m->n, mv->recv_n);
    set_join(&nd->knows, &m->knows);
    for (unsigned i = 0; i < mv->recv_n; i++) {
        struct value *mine = &nd->seg[mv->recv_lo + i];

        if (mv->act == SCHED_STORE) {
            *mine = m->val[i];
            assert_false(mv->last_reduce);
            continue;
        }
        *mine = mv->recv_first ? combine(m->val[i], *mine) : combine(*mine, m->val[i]);
        assert_int_equal(mv->last_reduce, set_is_full(&mine->from, w->nodes));
    }
}

/* Lets @me do what it can; true when it did something. */
static bool node_step(struct world *w, unsigned me)
{
    struct node *nd = &w->node[me];
    struct sched_move mv;

    if (nd->pc == nd->len)
        return false;
    mv = move_of(w, me, nd->pc);
    if (!nd->sent) {
        do_send(w, me, &mv);
        if (mv.from >= 0)
            return true;
    }
    if (mv.from < 0) {
        nd->pc++;
        nd->sent = false;
        return true;
    }
    for (unsigned i = 0; i < w->in_bag; i++) {
        struct message *m = w->bag[i];

        if (m->dst != me || m->src != (unsigned)mv.from || m->tag != mv.recv_tag)
            continue;
        apply(w, nd, &mv, m);
        free(m);
        w->bag[i] = w->bag[--w->in_bag];
        nd->pc++;
        nd->sent = false;
        return true;
    }
    return false;
}

static void world_run(struct world *w)
{
    unsigned left = w->nodes;

    while (left > 0) {
        unsigned start = (unsigned)(rnd(&w->rng) % w->nodes), i;

        for (i = 0; i < w->nodes; i++) {
            if (node_step(w, (start + i) % w->nodes))
                break;
        }
        if (i < w->nodes)
            continue;
        for (i = left = 0; i < w->nodes; i++)
            left += w->node[i].pc < w->node[i].len;
        if (left)
            fail_msg("deadlock: kind %d, %u nodes, root %u", w->kind, w->nodes, w->root);
    }
    assert_int_equal(w->in_bag, 0);
}

/* As many bytes as in a ring, and once more all of them from and to whom it stands in for. */
static void check_halving(const struct world *w, unsigned me)
{
    unsigned participants = 1, rounds = 0, most;

    while (2 * participants <= w->nodes) {
        participants *= 2;
        rounds++;
    }
    /* shares are of whole segments, rounded in each round */
    most = 2 * w->nodes + rounds + w->nodes * (participants < w->nodes);
    assert_true(w->node[me].sent_segments <= most);
    assert_true(w->node[me].len <= 2 * rounds + 2 * (participants < w->nodes));
    if (participants == w->nodes)
        assert_int_equal(w->node[me].sent_segments, 2 * (w->nodes - 1));
}

static void check_result(const struct world *w)
{
    for (unsigned me = 0; me < w->nodes; me++) {
        const struct node *nd = &w->node[me];

        if (is_rd(w->kind))
            assert_true(set_is_full(&nd->knows, w->nodes));
        for (unsigned s = 0; s < w->segs; s++) {
            struct value want = leaf(is_broadcast(w->kind) ? w->root : s);

            if ((is_scatter(w->kind) && s != me) || (is_reduce(w->kind) && me != w->root))
                continue;
            if (is_reduction(w->kind)) {
                assert_true(set_is_full(&nd->seg[s].from, w->nodes));
                want = is_scatter(w->kind) || is_reduce(w->kind) ? nd->seg[s] : w->node[0].seg[s];
            }
            assert_memory_equal(&nd->seg[s], &want, sizeof(want));
        }
        if (w->kind == SCHED_RING_ALL_REDUCE) /* of N segments: 2(N-1)/N of the data */
            assert_int_equal(nd->sent_segments, 2 * (w->nodes - 1));
        if (w->kind == SCHED_HALVING_ALL_REDUCE)
            check_halving(w, me);
        if (w->kind == SCHED_HALVING_REDUCE_SCATTER) /* a folded pair: everything once more, one
                                                        segment back */
            assert_true(nd->sent_segments <=
                        (w->nodes & (w->nodes - 1) ? w->nodes + 1 : w->nodes - 1));
        if (w->kind == SCHED_RING_REDUCE_SCATTER || w->kind == SCHED_RING_ALL_GATHER)
            assert_int_equal(nd->sent_segments, w->nodes - 1);
        if (w->kind == SCHED_CHAIN_REDUCE) /* the data once */
            assert_int_equal(nd->sent_segments, me != w->root);
        if (w->kind == SCHED_RD_REDUCE) /* and once more by a root that was folded */
            assert_true(nd->sent_segments <= 2);
    }
}

/* Every send has exactly one receive that names it, with the same run, and no more. */
static void check_pairs(const struct world *w)
{
    unsigned sends = 0, recvs = 0;

    for (unsigned a = 0; a < w->nodes; a++) {
        for (unsigned i = 0; i < w->node[a].len; i++) {
            struct sched_move s = move_of(w, a, i);
            unsigned found = 0;

            recvs += s.from >= 0;
            if (s.to < 0)
                continue;
            sends++;
            assert_true((unsigned)s.to < w->nodes && (unsigned)s.to != a);
            assert_true(s.send_lo + s.send_n <= w->segs);
            for (unsigned j = 0; j < w->node[s.to].len; j++) {
                struct sched_move r = move_of(w, (unsigned)s.to, j);

                if (r.from != (int)a || r.recv_tag != i)
                    continue;
                found++;
                assert_int_equal(r.recv_n, s.send_n);
                if (s.send_n)
                    assert_int_equal(r.recv_lo, s.send_lo);
            }
            assert_int_equal(found, 1);
        }
    }
    assert_int_equal(sends, recvs);
}

static void run_kind(enum sched_kind kind)
{
    struct world *w = malloc(sizeof(*w));

    assert_non_null(w);
    for (unsigned c = 0; c < ARRAY_LEN(node_counts); c++) {
        unsigned nodes = node_counts[c];
        unsigned step = !is_broadcast(kind) && !is_reduce(kind) ? nodes
                        : nodes > 20                            ? nodes / 4 + 1
                                                                : 1;

        for (unsigned root = 0; root < nodes; root += step) {
            for (unsigned again = 0; again < (nodes < 20 ? 5 : 1); again++) {
                world_init(w, kind, nodes, root);
                w->rng += again;
                if (again == 0)
                    check_pairs(w);
                world_run(w);
                check_result(w);
            }
        }
    }
    free(w);
}

static void rd_all_reduce(void **state)
{
    run_kind(SCHED_RD_ALL_REDUCE);
}

static void halving_all_reduce(void **state)
{
    run_kind(SCHED_HALVING_ALL_REDUCE);
}

static void halving_reduce_scatter(void **state)
{
    run_kind(SCHED_HALVING_REDUCE_SCATTER);
}

static void rd_all_gather(void **state)
{
    run_kind(SCHED_RD_ALL_GATHER);
}

static void rd_broadcast(void **state)
{
    run_kind(SCHED_RD_BROADCAST);
}

static void ring_all_reduce(void **state)
{
    run_kind(SCHED_RING_ALL_REDUCE);
}

static void ring_reduce_scatter(void **state)
{
    run_kind(SCHED_RING_REDUCE_SCATTER);
}

static void ring_all_gather(void **state)
{
    run_kind(SCHED_RING_ALL_GATHER);
}

static void chain_broadcast(void **state)
{
    run_kind(SCHED_CHAIN_BROADCAST);
}

static void rd_reduce(void **state)
{
    run_kind(SCHED_RD_REDUCE);
}

static void chain_reduce(void **state)
{
    run_kind(SCHED_CHAIN_REDUCE);
}

/* Each pair that has data for each other exchanges one message, which both know by the same tag. */
static void check_direct(enum sched_kind kind, unsigned nodes, unsigned root)
{
    for (unsigned a = 0; a < nodes; a++) {
        unsigned len = sched_len(kind, nodes, a, root), sends = 0, recvs = 0;

        for (unsigned i = 0; i < len; i++) {
            struct sched_move mv = sched_move(kind, nodes, a, root, i);
            unsigned found = 0;

            recvs += mv.from >= 0;
            if (mv.to < 0)
                continue;
            sends++;
            assert_int_equal(mv.send_n, 1);
            assert_int_equal(mv.send_lo, mv.to);
            for (unsigned j = 0; j < sched_len(kind, nodes, (unsigned)mv.to, root); j++) {
                struct sched_move r = sched_move(kind, nodes, (unsigned)mv.to, root, j);

                if (r.from != (int)a || r.recv_tag != i)
                    continue;
                assert_int_equal(r.recv_lo, a);
                assert_int_equal(r.recv_n, 1);
                found++;
            }
            assert_int_equal(found, 1);
        }
        assert_int_equal(sends, kind == SCHED_TO_ROOT && a != root ? 1
                                : kind == SCHED_EXCHANGE || (kind == SCHED_FROM_ROOT && a == root)
                                    ? nodes - 1
                                    : 0);
        assert_int_equal(recvs, kind == SCHED_FROM_ROOT && a != root ? 1
                                : kind == SCHED_EXCHANGE || (kind == SCHED_TO_ROOT && a == root)
                                    ? nodes - 1
                                    : 0);
    }
}

static void direct_pairs_meet_once(void **state)
{
    for (unsigned nodes = 1; nodes <= 17; nodes++)
        for (unsigned root = 0; root < nodes; root++) {
            check_direct(SCHED_EXCHANGE, nodes, root);
            check_direct(SCHED_TO_ROOT, nodes, root);
            check_direct(SCHED_FROM_ROOT, nodes, root);
        }
}

/* No node is aimed at by two others in the same move. */
static void exchange_spreads(void **state)
{
    for (unsigned nodes = 2; nodes <= 17; nodes++)
        for (unsigned i = 0; i + 1 < nodes; i++) {
            unsigned hit[MAX_N] = {0};

            for (unsigned a = 0; a < nodes; a++)
                hit[sched_move(SCHED_EXCHANGE, nodes, a, 0, i).to]++;
            for (unsigned a = 0; a < nodes; a++)
                assert_int_equal(hit[a], 1);
        }
}

static void check_node_order(enum sched_kind kind)
{
    for (unsigned nodes = 2; nodes <= 33; nodes++) {
        for (unsigned me = 0; me < nodes; me++) {
            for (unsigned i = 0; i < sched_len(kind, nodes, me, 0); i++) {
                struct sched_move mv = sched_move(kind, nodes, me, 0, i);

                if (mv.from >= 0 && mv.act == SCHED_REDUCE)
                    assert_int_equal(mv.recv_first, mv.from < (int)me);
            }
        }
    }
}

/* The lower one on the left: what all nodes agree on. (In an all-reduce the two are neighbouring
 * runs.) */
static void rd_reduces_in_node_order(void **state)
{
    check_node_order(SCHED_RD_ALL_REDUCE);
    check_node_order(SCHED_HALVING_ALL_REDUCE);
    check_node_order(SCHED_HALVING_REDUCE_SCATTER);
}

/* Where the one gives way to the other each element is still summed up in the same order: bits do
 * not change. */
static void halving_sums_up_as_doubling_does(void **state)
{
    struct world *a = malloc(sizeof *a), *b = malloc(sizeof *b);

    assert_true(a && b);
    for (unsigned nodes = 2; nodes <= 33; nodes++) {
        world_init(a, SCHED_RD_ALL_REDUCE, nodes, 0);
        world_init(b, SCHED_HALVING_ALL_REDUCE, nodes, 0);
        world_run(a);
        world_run(b);
        for (unsigned s = 0; s < nodes; s++)
            assert_memory_equal(&a->node[0].seg[0], &b->node[0].seg[s], sizeof(struct value));
    }
    free(a);
    free(b);
}

/* All messages of a direct schedule are sent at once: a node hears from whom it receives. */
static bool all_hear_from_all(struct world *w, enum sched_kind kind, unsigned nodes, unsigned root)
{
    bool all = true;

    if (!sched_independent(kind)) {
        world_init(w, kind, nodes, root);
        world_run(w);
        for (unsigned me = 0; me < nodes; me++)
            all &= set_is_full(&w->node[me].knows, nodes);
        return all;
    }
    for (unsigned me = 0; me < nodes; me++) {
        struct set knows = {{0}};

        set_add(&knows, me);
        for (unsigned i = 0; i < sched_len(kind, nodes, me, root); i++) {
            struct sched_move mv = sched_move(kind, nodes, me, root, i);

            if (mv.from >= 0)
                set_add(&knows, (unsigned)mv.from);
        }
        all &= set_is_full(&knows, nodes);
    }
    return all;
}

/* There flow.h bounds how far a node gets ahead; elsewhere the schedule does. */
static void one_way_is_what_does_not_hear_from_all(void **state)
{
    struct world *w = malloc(sizeof *w);

    assert_non_null(w);
    for (enum sched_kind kind = 0; kind < SCHED_COUNT; kind++)
        for (unsigned nodes = 2; nodes <= 17; nodes++)
            assert_int_equal(all_hear_from_all(w, kind, nodes, 0), !sched_one_way(kind));
    free(w);
}

static void largest_fits(void **state)
{
    for (enum sched_kind k = 0; k < SCHED_COUNT; k++) {
        for (unsigned n = SCHED_MAX_NODES - 1; n <= SCHED_MAX_NODES; n++) {
            for (unsigned me = 0; me < n; me += 31) {
                unsigned len = sched_len(k, n, me, 3);

                assert_true(len <= SCHED_MAX_MOVES);
                for (unsigned i = 0; i < len; i++) {
                    struct sched_move mv = sched_move(k, n, me, 3, i);

                    assert_true(mv.to < (int)n && mv.from < (int)n);
                    assert_true(mv.to >= 0 || mv.from >= 0);
                    assert_true(mv.send_lo + mv.send_n <= n && mv.recv_lo + mv.recv_n <= n);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rd_all_reduce),
        cmocka_unit_test(halving_all_reduce),
        cmocka_unit_test(halving_reduce_scatter),
        cmocka_unit_test(rd_all_gather),
        cmocka_unit_test(rd_broadcast),
        cmocka_unit_test(ring_all_reduce),
        cmocka_unit_test(ring_reduce_scatter),
        cmocka_unit_test(ring_all_gather),
        cmocka_unit_test(chain_broadcast),
        cmocka_unit_test(rd_reduce),
        cmocka_unit_test(chain_reduce),
        cmocka_unit_test(direct_pairs_meet_once),
        cmocka_unit_test(exchange_spreads),
        cmocka_unit_test(rd_reduces_in_node_order),
        cmocka_unit_test(halving_sums_up_as_doubling_does),
        cmocka_unit_test(one_way_is_what_does_not_hear_from_all),
        cmocka_unit_test(largest_fits),
    };

    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
