/* test_fabric.c - the contract of fabric.h, over each implementation: the in-process one, the
 * same behind the fault wrapper (delays), plain TCP with one and three channels, and UCX over TCP
 * on lo. */
#ifdef HAVE_CONFIG_H
#include "shm/launch/engine_exec.h"
#include "config.h"
#endif
#include "tests/unit/transport/fabric_sides.h"

enum { STREAM = 600, TRIES = 70 };

/* ---- the contract ---------------------------------------------------------------------------- */

/* Who adds whom first does not matter, and what was sent before is not lost. */
static void sends_wait_for_the_other_side(void **state)
{
    struct world *w = world_new(*state, 2);
    struct sending s[3];

    add(w, 0, 1, 1);
    put(&w->side[0], 1, 0, 8, 0, &s[0]);
    put(&w->side[0], 1, 1, 108, 100, &s[1]);
    put(&w->side[0], 1, 2, 9, MB, &s[2]);
    pump_until_quiet(w);
    assert_int_equal(count_done(s, 3), 0);
    add(w, 1, 0, 1);
    pump_until(w, w->side[1].msgs == 3 && w->side[1].taken == 1 && count_done(s, 3) == 3);
    assert_int_equal(w->side[1].bad_order + w->side[1].bad_bytes, 0);
    free_sendings(s, 3);
    world_free(w);
}

static size_t stream_size(uint64_t *rng)
{
    uint64_t kind = rnd(rng) % 20;

    if (kind == 0)
        return rnd(rng) % (MB + 1);
    if (kind < 4)
        return rnd(rng) % (100 << 10);
    if (kind < 10)
        return rnd(rng) % 9000;
    return rnd(rng) % 64;
}

/* Both ways at once, sizes 0 B..1 MB, bodies taken at once, later, and never. */
/* What a fabric says of a peer, if it says anything, is at least what went there. */
static void check_traffic(const char *kind, struct side *side, unsigned peer, uint64_t least)
{
    struct fabric_traffic traffic;

    if (!side->f->ops->traffic)
        return;
    assert_true(side->f->ops->traffic(side->f, peer, &traffic));
    assert_true(traffic.sent >= least && traffic.received >= least);
    if (strstr(kind, "sealed"))
        assert_true(link_is_encrypted(traffic.encryption));
    else
        assert_int_equal(traffic.encryption, LINK_CLEAR_LOOPBACK);
    assert_false(side->f->ops->traffic(side->f, FABRIC_MAX_PEERS - 1, &traffic));
    assert_false(side->f->ops->traffic(side->f, FABRIC_MAX_PEERS, &traffic));
}

static void random_stream(void **state)
{
    struct world *w = linked(*state);
    struct sending *s = calloc(2 * STREAM, sizeof(*s));
    unsigned next = 0;
    uint64_t rng = 20240607;

    assert_non_null(s);
    w->side[0].take = w->side[1].take = TAKE_IN_TURNS;
    for (unsigned i = 0; i < STREAM; i++) {
        for (unsigned k = 0; k < 2; k++)
            put(&w->side[k], 1 - k, i, 8 + rnd(&rng) % 101, stream_size(&rng), &s[2 * i + k]);
        if (rnd(&rng) % 4 == 0)
            turn(w);
    }
    pump_until(w, w->side[0].msgs == STREAM && w->side[1].msgs == STREAM);
    for (unsigned k = 0; k < 2; k++) {
        for (next = w->side[k].bodies; next-- > 0;) { /* later, and in another order */
            if (w->side[k].body[next]->claim)
                take_body(w->side[k].body[next]);
        }
    }
    pump_until(w, count_done(s, 2 * STREAM) == 2 * STREAM);
    for (unsigned k = 0; k < 2; k++) {
        unsigned dropped = (w->side[k].bodies + 3 - 1 - TAKE_DROP) / 3;

        pump_until(w, w->side[k].taken == w->side[k].bodies - dropped);
        assert_int_equal(w->side[k].bad_order, 0);
        assert_int_equal(w->side[k].bad_bytes, 0);
        assert_int_equal(w->side[k].down, 0);
        assert_true(w->side[k].bodies > 6);
        for (unsigned i = 0; i < w->side[k].bodies; i++)
            assert_true(w->side[k].body[i]->done <= 1 && w->side[k].body[i]->st == 0);
        check_traffic(w->kind, &w->side[k], 1 - k, STREAM * 8);
    }
    for (unsigned i = 0; i < 2 * STREAM; i++)
        assert_int_equal(s[i].st, 0);
    free_sendings(s, 2 * STREAM);
    free(s);
    world_free(w);
}

static void stranger_with(void **state, unsigned wrong_side)
{
    struct world *w = world_new(*state, 2);
    struct sending s[2];

    for (unsigned i = 0; i < 2; i++) {
        uint8_t mine[32], theirs[32];
        struct side *me = &w->side[i], *other = &w->side[1 - i];

        token(mine, i, 1 - i, 1);
        token(theirs, 1 - i, i, 1);
        mine[31] ^= i == wrong_side; /* one bit */
        assert_int_equal(
            me->f->ops->peer_add(me->f, 1 - i, other->addr, other->addr_len, mine, theirs), 0);
        put(me, 1 - i, 0, 8, i ? MB : 10, &s[i]);
    }
    pump_until(w, w->side[0].f->stats.strangers + w->side[1].f->stats.strangers > 0);
    pump_until_quiet(w);
    assert_int_equal(w->side[0].msgs + w->side[1].msgs, 0);
    assert_int_equal(w->side[0].bodies + w->side[1].bodies, 0);
    for (unsigned i = 0; i < 2; i++)
        w->side[i].f->ops->peer_del(w->side[i].f, 1 - i);
    pump_until(w, count_done(s, 2) == 2);
    assert_true(s[0].st == -ECANCELED && s[1].st == -ECANCELED);
    free_sendings(s, 2);
    world_free(w);
}

static void wrong_token_of_first(void **state)
{
    stranger_with(state, 0);
}

static void wrong_token_of_second(void **state)
{
    stranger_with(state, 1);
}

static void del_cancels_pending(void **state)
{
    struct world *w = linked(*state);
    struct sending s[4];

    w->side[1].take = TAKE_LATER;
    for (unsigned i = 0; i < 4; i++)
        put(&w->side[0], 1, i, 8, MB, &s[i]);
    pump_until(w, w->side[1].bodies == 4);
    assert_int_equal(count_done(s, 4), 0);
    w->side[0].calling = true;
    w->side[0].f->ops->peer_del(w->side[0].f, 1);
    w->side[0].calling = false;
    pump_until(w, count_done(s, 4) == 4 && w->side[1].down == 1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(s[i].st, -ECANCELED);
    assert_int_equal(w->side[1].down_peer, 0);
    assert_int_equal(w->side[0].down, 0);

    /* What the other side still holds can be taken, with an error, or dropped. */
    take_body(w->side[1].body[0]);
    w->side[1].f->ops->drop(w->side[1].f, w->side[1].body[1]->claim);
    pump_until(w, w->side[1].taken == 1);
    assert_int_equal(w->side[1].body[0]->st, -EIO);
    w->side[1].f->ops->peer_del(w->side[1].f, 0);
    take_body(w->side[1].body[2]);
    pump_until(w, w->side[1].taken == 2);
    assert_int_equal(w->side[1].body[2]->st, -ECANCELED);
    pump_until_quiet(w);
    assert_int_equal(w->side[1].down, 1);
    free_sendings(s, 4); /* and body[3] is left to free() */
    world_free(w);
}

static void down_peer_stays_down(void **state)
{
    struct world *w = linked(*state);
    struct sending s;
    uint8_t t[32] = {9};

    put(&w->side[0], 1, 0, 8, 8, &s);
    pump_until(w, w->side[1].msgs == 1);
    side_close(&w->side[1]);
    pump_until(w, w->side[0].down == 1);
    assert_int_equal(w->side[0].down_peer, 1);
    assert_int_equal(w->side[0].f->ops->send(w->side[0].f, 1, "x", 1, NULL, 0, NULL, NULL), -EIO);
    assert_int_equal(
        w->side[0].f->ops->peer_add(w->side[0].f, 1, w->side[0].addr, w->side[0].addr_len, t, t),
        -EEXIST);
    pump_until_quiet(w);
    assert_int_equal(w->side[0].down, 1);
    free_sendings(&s, 1);
    world_free(w);
}

/* The same fabrics again, with new tokens: nothing of the old link gets into the new one. */
static void next_incarnation(void **state)
{
    struct world *w = linked(*state);

    for (unsigned inc = 2; inc < 6; inc++) {
        struct sending s[3];
        unsigned before;

        w->side[1].take = TAKE_LATER;
        put(&w->side[0], 1, 0, 8, 10, &s[0]);
        pump_until(w, w->side[1].next_seq[0] == 1);
        put(&w->side[0], 1, 1, 8, 20, &s[1]); /* may or may not arrive */
        put(&w->side[0], 1, 2, 8, MB, &s[2]);
        w->side[0].f->ops->peer_del(w->side[0].f, 1);
        add(w, 0, 1, inc);
        if (inc % 2)
            pump_until(w, w->side[1].down == inc / 2);
        else
            pump_until_quiet(w), w->side[1].down = inc / 2;
        w->side[1].f->ops->peer_del(w->side[1].f, 0);
        before = w->side[1].msgs;
        add(w, 1, 0, inc);
        pump_until(w, count_done(s, 3) == 3);
        pump_until_quiet(w);
        assert_int_equal(w->side[1].msgs, before);
        assert_int_equal(w->side[1].bad_order + w->side[1].bad_bytes, 0);
        free_sendings(s, 3);
    }
    world_free(w);
}

/* One side has tried before and given up, as often as it liked, until the other joins in. */
static void tries_need_not_match(void **state)
{
    struct world *w = world_new(*state, 2);
    struct sending s[4];

    for (unsigned inc = 0; inc < TRIES; inc++) {
        add(w, 0, 1, inc);
        for (unsigned k = 0; k < 5; k++)
            turn(w);
        w->side[0].f->ops->peer_del(w->side[0].f, 1);
    }
    add(w, 0, 1, TRIES);
    pump_until_quiet(w); /* what this one says is lost, too */
    add(w, 1, 0, TRIES);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 2; k++)
            put(&w->side[i], 1 - i, k, 8, k ? 10 : MB, &s[2 * i + k]);
    pump_until(w, w->side[0].taken == 1 && w->side[1].taken == 1 && count_done(s, 4) == 4);
    pump_until(w, w->side[0].msgs == 2 && w->side[1].msgs == 2);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(w->side[i].bad_order + w->side[i].bad_bytes + w->side[i].down, 0);
    free_sendings(s, 4);
    world_free(w);
}

static void callbacks_may_send_and_del(void **state)
{
    struct world *w = linked(*state);
    struct sending s[3];

    w->side[1].echo_on_msg = 1;
    put(&w->side[0], 1, 0, 8, 10, &s[0]);
    pump_until(w, w->side[0].msgs == 1);
    w->side[1].take = TAKE_LATER;
    w->side[1].del_on_msg = 1;
    put(&w->side[0], 1, 1, 8, MB, &s[1]);
    pump_until(w, w->side[1].msgs == 2 && w->side[0].down == 1);
    pump_until(w, count_done(s, 2) == 2);
    assert_int_equal(s[1].st, -EIO);
    assert_int_equal(w->side[1].down, 0);
    take_body(w->side[1].body[0]);
    pump_until(w, w->side[1].taken == 1);
    assert_int_equal(w->side[1].body[0]->st, -ECANCELED);
    free_sendings(s, 2);
    world_free(w);
}

/* free() in the middle of everything: each request once, nothing leaks. */
static void free_completes_all(void **state)
{
    struct world *w = linked(*state);
    struct sending s[4];

    w->side[1].take = TAKE_LATER;
    for (unsigned i = 0; i < 4; i++)
        put(&w->side[0], 1, i, 8, 8 * MB, &s[i]);
    pump_until(w, w->side[1].bodies == 4);
    take_body(w->side[1].body[0]);
    take_body(w->side[1].body[1]);
    w->side[1].f = fabric_free(w->side[1].f);
    assert_int_equal(w->side[1].taken, 2);
    assert_int_equal(w->side[1].body[0]->done, 1);
    assert_int_equal(w->side[1].body[1]->done, 1);
    assert_int_equal(w->side[1].body[0]->st, -ECANCELED);
    w->side[0].f = fabric_free(w->side[0].f);
    assert_int_equal(count_done(s, 4), 4);
    assert_int_equal(w->side[0].down + w->side[1].down, 0);
    free_sendings(s, 4);
    world_free(w);
}

static void bad_arguments(void **state)
{
    struct world *w = world_new(*state, 3);
    struct fabric *f = w->side[0].f;
    uint8_t mine[32], theirs[32], other[32] = {7}, hdr[FABRIC_HDR_MAX + 1] = {0};
    size_t len = 3;

    token(mine, 0, 1, 1);
    token(theirs, 1, 0, 1);
    assert_int_equal(f->ops->send(f, 1, hdr, 1, NULL, 0, NULL, NULL), -ENOTCONN);
    assert_int_equal(f->ops->send(f, FABRIC_MAX_PEERS, hdr, 1, NULL, 0, NULL, NULL), -ENOTCONN);
    assert_int_equal(f->ops->address(f, hdr, &len), -ENOSPC);
    assert_int_equal(
        f->ops->peer_add(f, FABRIC_MAX_PEERS, w->side[1].addr, w->side[1].addr_len, mine, theirs),
        -EINVAL);
    assert_int_equal(f->ops->peer_add(f, 1, w->side[1].addr, 0, mine, theirs), -EINVAL);
    add(w, 0, 1, 1);
    assert_int_equal(f->ops->send(f, 1, hdr, sizeof(hdr), NULL, 0, NULL, NULL), -EINVAL);
    assert_int_equal(f->ops->peer_add(f, 1, w->side[2].addr, w->side[2].addr_len, other, other),
                     -EEXIST);
    /* A token names one peer. */
    assert_int_equal(f->ops->peer_add(f, 2, w->side[2].addr, w->side[2].addr_len, other, theirs),
                     -EADDRINUSE);
    assert_int_equal(f->ops->peer_add(f, 2, w->side[2].addr, w->side[2].addr_len, mine, other),
                     -EADDRINUSE);
    f->ops->peer_del(f, 2);
    f->ops->peer_del(f, FABRIC_MAX_PEERS);
    world_free(w);
}

static void recv_into_too_little(void **state)
{
    struct world *w = linked(*state);
    struct sending s;
    struct body *b;
    uint8_t small[16];

    w->side[1].take = TAKE_LATER;
    put(&w->side[0], 1, 0, 8, MB, &s);
    pump_until(w, w->side[1].bodies == 1);
    b = w->side[1].body[0];
    assert_int_equal(
        w->side[1].f->ops->recv(w->side[1].f, b->claim, small, sizeof(small), on_body, b),
        -EMSGSIZE);
    pump_until(w, s.done == 1); /* the claim was used up */
    assert_int_equal(b->done, 0);
    free_sendings(&s, 1);
    world_free(w);
}

/* Three sides, each its own stream to both others: nobody gets what is another's. */
static void peers_are_not_mixed_up(void **state)
{
    enum { EACH = 60 };
    struct world *w = world_new(*state, 3);
    struct sending *s = calloc(6 * EACH, sizeof(*s));
    unsigned n = 0;

    assert_non_null(s);
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned j = 0; j < 3; j++) {
            if (i != j)
                add(w, i, j, 1);
        }
    }
    for (unsigned k = 0; k < EACH; k++) {
        for (unsigned i = 0; i < 3; i++) {
            for (unsigned j = 0; j < 3; j++) {
                if (i != j)
                    put(&w->side[i], j, k, 8, k % 5 == 0 ? 200000 + i : i * 10 + j, &s[n++]);
            }
        }
        turn(w);
    }
    pump_until(w, count_done(s, n) == n);
    for (unsigned i = 0; i < 3; i++) {
        pump_until(w, w->side[i].msgs == 2 * EACH && w->side[i].taken == w->side[i].bodies);
        assert_int_equal(w->side[i].bad_order + w->side[i].bad_bytes, 0);
        for (unsigned j = 0; j < 3; j++)
            assert_int_equal(w->side[i].next_seq[j], i == j ? 0 : EACH);
    }
    free_sendings(s, n);
    free(s);
    world_free(w);
}

/* ---- loop and fault only --------------------------------------------------------------------- */

static void loop_break_is_seen_by_both(void **state)
{
    struct world *w = linked(*state);
    struct sending s;

    w->side[1].take = TAKE_LATER;
    put(&w->side[0], 1, 0, 8, MB, &s);
    pump_until(w, w->side[1].bodies == 1);
    fabric_loop_break(w->side[0].f, 1);
    pump_until(w, s.done && w->side[0].down == 1 && w->side[1].down == 1);
    assert_int_equal(s.st, -EIO);
    free_sendings(&s, 1);
    world_free(w);
}

static void loop_rndv_limit(void **state)
{
    struct world *w = linked(*state);
    struct sending s[2];

    fabric_loop_set_rndv(w->side[0].f, 100);
    put(&w->side[0], 1, 0, 8, 99, &s[0]);
    put(&w->side[0], 1, 1, 8, 100, &s[1]);
    pump_until(w, w->side[1].msgs == 2 && count_done(s, 2) == 2);
    assert_int_equal(w->side[1].bodies, 1);
    free_sendings(s, 2);
    world_free(w);
}

static void fault_breaks_after_n(void **state)
{
    enum { N = 5 };
    static const struct fabric_fault_conf conf = {.seed = 3, .max_delay = 2, .break_after = N};
    struct world *w = world_new("loop", 2);
    struct side *s = &w->side[0];
    struct fabric_events ev = {on_msg, on_peer_down, s, NULL}, inner_ev;
    struct sending out[N];
    struct fabric *inner;
    unsigned failed = 0;

    s->f = fabric_free(s->f);
    assert_int_equal(fabric_fault_new(&conf, &ev, &inner_ev, &s->f), 0);
    assert_int_equal(fabric_loop_new(w->hub, &inner_ev, &inner), 0);
    fabric_fault_attach(s->f, inner);
    assert_int_equal(s->f->ops->address(s->f, s->addr, &s->addr_len), 0);
    add(w, 0, 1, 1);
    add(w, 1, 0, 1);
    w->side[1].take = TAKE_LATER;
    for (unsigned i = 0; i < N; i++)
        put(s, 1, i, 8, 100000, &out[i]);
    pump_until(w, w->side[1].bodies == N);
    assert_int_equal(s->f->ops->send(s->f, 1, "x", 1, NULL, 0, NULL, NULL), -EIO);
    pump_until(w, s->down == 1 && w->side[1].down == 1 && count_done(out, N) == N);
    for (unsigned i = 0; i < N; i++)
        failed += out[i].st == -EIO;
    assert_int_equal(failed, N);
    s->f->ops->peer_del(s->f, 1);
    pump_until_quiet(w);
    assert_int_equal(s->down, 1);
    free_sendings(out, N);
    world_free(w);
}

/* ---- main ------------------------------------------------------------------------------------ */

/* As commd starts its engine: libucs reads its environment before main(). */
static void exec_with_ucx_env(char **argv)
{
    if (getenv("TEST_FABRIC_ENV"))
        return;
    setenv("TEST_FABRIC_ENV", "1", 1);
    for (const char *const *e = ucx_env; *e; e++)
        putenv((char *)(uintptr_t)*e);
    execv("/proc/self/exe", argv);
    abort();
}

#define contract(fn, kind) cmocka_unit_test_prestate(fn, (void *)(uintptr_t)(kind))
#define contracts(kind)                                                                            \
    contract(sends_wait_for_the_other_side, kind), contract(random_stream, kind),                  \
        contract(wrong_token_of_first, kind), contract(wrong_token_of_second, kind),               \
        contract(del_cancels_pending, kind), contract(down_peer_stays_down, kind),                 \
        contract(next_incarnation, kind), contract(tries_need_not_match, kind),                    \
        contract(callbacks_may_send_and_del, kind), contract(free_completes_all, kind),            \
        contract(bad_arguments, kind), contract(recv_into_too_little, kind),                       \
        contract(peers_are_not_mixed_up, kind)

int main(int argc, char **argv)
{
    const struct CMUnitTest in_process[] = {
        contracts("loop"),
        contract(contract_random_life, "loop"),
        contract(loop_break_is_seen_by_both, "loop"),
        contract(loop_rndv_limit, "loop"),
    };
    const struct CMUnitTest faulty[] = {
        contracts("fault"),
        contract(contract_random_life, "fault"),
        cmocka_unit_test(fault_breaks_after_n),
    };
    const struct CMUnitTest tcp[] = {
        contracts("tcp"),
        contract(contract_random_life, "tcp"),
        contracts("tcp x 3"),
        contract(contract_random_life, "tcp x 3"),
        contracts("tcp express"),
        contract(contract_random_life, "tcp express"),
        contracts("tcp mend"),
        contract(contract_random_life, "tcp mend"),
        contracts("tcp sealed"),
        contract(contract_random_life, "tcp sealed"),
        contracts("tcp x 3 express mend sealed"),
        contract(contract_random_life, "tcp x 3 express mend sealed"),
        contracts("tcp sealed threads"),
        contract(contract_random_life, "tcp sealed threads"),
        contracts("tcp x 3 express mend sealed threads"),
        contract(contract_random_life, "tcp x 3 express mend sealed threads")};
    int failed;

    exec_with_ucx_env(argv);
    if (argc == 4 && !strcmp(argv[1], "--victim"))
        return run_victim(atoi(argv[2]), argv[3]);
    if (argc == 2)
        cmocka_set_test_filter(argv[1]); /* by hand: only these */
#ifdef HAVE_UCX
    const struct CMUnitTest ucx[] = {contracts("ucx"), contract(contract_random_life, "ucx")};

#else
    refused("ucx", "lo", "tcp", NULL, -ENOTSUP, "built without UCX (configure --without-ucx): ");
#endif
    failed = cmocka_run_group_tests_name("fabric loop", in_process, NULL, NULL);
    failed += cmocka_run_group_tests_name("fabric fault", faulty, NULL, NULL);
    failed += cmocka_run_group_tests_name("fabric tcp", tcp, NULL, NULL);
    failed += run_net_tests("tcp");
    failed += run_tcp_tests();
    failed += run_link_tests();
    failed += run_mend_tests();
    failed += run_aead_tests();
    failed += run_sealed_tests();
    failed += run_thread_tests();
    failed += run_greet_tests();
    failed += run_key_tests();
    failed += run_old_tests();
    failed += run_express_tests();
#ifdef HAVE_UCX
    failed += cmocka_run_group_tests_name("fabric ucx", ucx, NULL, NULL);
    failed += run_net_tests("ucx");
    failed += run_ucx_tests();
#endif
    return failed;
}
