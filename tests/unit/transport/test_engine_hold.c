/* test_engine_hold.c - a group goes on when an engine of it is replaced: held where nothing is on
 * the wire, not held where something is, and given to an engine that has not had it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/lib/cluster.h"
#include "transport/engine/engine_internal.h"

static const uint16_t places[] = {0, 1, 2, 0, 1};

enum { COUNT = 70000 }; /* more than a chunk */

/* An all_reduce of @count elements, whose result is looked at. */
static void works(struct cluster *c, size_t count)
{
    static float x[5][COUNT];
    struct commd_op op[5];
    enum run_state st[5];
    float sum = 0;

    for (unsigned k = 0; k < c->world; k++) {
        for (size_t i = 0; i < count; i++)
            x[k][i] = (float)(k + 1);
        sum += (float)(k + 1);
        op[k] = (struct commd_op){.size = sizeof op[k],
                                  .coll = COMMD_ALL_REDUCE,
                                  .dtype = COMMD_F32,
                                  .send = x[k],
                                  .recv = x[k],
                                  .count = count};
    }
    assert_true(cluster_run(c, op, st, NULL));
    for (unsigned k = 0; k < c->world; k++)
        for (size_t i = 0; i < count; i++)
            if (x[k][i] != sum)
                fail_msg("element %zu of rank %u is %g", i, k, (double)x[k][i]);
}

static void some_work(struct cluster *c)
{
    works(c, 1);
    works(c, 3000);
    works(c, COUNT);
}

static struct msg_board_held hold(struct cluster *c, unsigned node)
{
    struct msg_board_held held;

    engine_board_hold(c->node[node].engine, c->main->id, &held);
    assert_true(held.group == c->main->id);
    return held;
}

static void go(struct cluster *c, unsigned node)
{
    engine_board_go(c->node[node].engine, c->main->id);
}

/* What is sent has arrived, and is known to. */
static void rest(struct cluster *c)
{
    for (unsigned i = 0; i < 1000; i++)
        cluster_turn(c);
}

static void connect_to(struct cluster *c, unsigned from, unsigned to)
{
    uint8_t token[32] = {(uint8_t)from, (uint8_t)to}, expect[32] = {(uint8_t)to, (uint8_t)from};
    struct fabric *f = c->node[from].fabric, *other = c->node[to].fabric;
    uint8_t addr[FABRIC_ADDR_MAX];
    size_t len = sizeof addr;

    other->ops->address(other, addr, &len);
    assert_int_equal(f->ops->peer_add(f, to, addr, len, token, expect), 0);
}

static void no_error(void *arg, uint64_t group, unsigned cause, int peer, const char *text)
{
    fail_msg("the board failed: %s", text);
}

static void no_loss(void *arg, unsigned peer, enum link_end end, const char *text)
{
}

static void new_engine(struct cluster *c, unsigned node)
{
    struct engine_events ev = {no_error, no_loss, c, NULL, NULL, NULL};

    for (unsigned k = 0; k < c->nnodes; k++) {
        if (k == node)
            continue;
        engine_peer_gone(c->node[k].engine, node);
        c->node[k].fabric->ops->peer_del(c->node[k].fabric, node);
    }
    fabric_free(c->node[node].fabric);
    engine_free(c->node[node].engine);
    c->node[node].engine = engine_new("next", &ev);
    fabric_loop_new(c->hub, engine_fabric_events(c->node[node].engine), &c->node[node].fabric);
    engine_set_fabric(c->node[node].engine, c->node[node].fabric);
    for (unsigned k = 0; k < c->nnodes; k++)
        if (k != node) {
            connect_to(c, k, node);
            connect_to(c, node, k);
        }
}

static int give_board(struct cluster *c, unsigned node, uint32_t goes_on)
{
    uint32_t peers[] = {0, 1, 2}, rank_node[] = {0, 1, 2, 0, 1};
    struct msg_board_add m = {.group = c->main->id,
                              .nnodes = 3,
                              .me = node,
                              .world = 5,
                              .peers = peers,
                              .rank_node = rank_node,
                              .goes_on = goes_on};

    return engine_board_add(c->node[node].engine, &m, c->main->fd[node]);
}

static void goes_on_over_the_next_engine(void **state)
{
    struct cluster *c = cluster_new(5, 3, places, 7);
    struct board_position position;

    some_work(c);
    for (unsigned round = 1; round < 4; round++) {
        unsigned lost = round % 3;

        rest(c);
        assert_true(board_quiet(c->node[lost].ctl, &position));
        assert_int_equal(position.ops, 3 * round);
        new_engine(c, lost);
        for (unsigned n = 0; n < 3; n++)
            if (n != lost) {
                struct msg_board_held held = hold(c, n);

                assert_int_equal(held.quiet, 1);
                assert_int_equal(held.ops, 3 * round);
                assert_int_equal(held.sent + held.came, 0);
            }
        assert_int_equal(give_board(c, lost, 0), -ESTALE);
        go(c, (lost + 1) % 3); /* it sends to those that are not there yet */
        rest(c);
        assert_int_equal(give_board(c, lost, position.ops + 1), 0);
        rest(c);
        go(c, (lost + 2) % 3);
        some_work(c);
    }
    assert_int_equal(c->board_errors, 0);
    cluster_free(c);
}

static unsigned rested;
static uint32_t ops_before;

/* Rank 4 has not come: what the others have begun is on the wire. */
static void look_at_busy(struct cluster *c)
{
    struct board_position position;

    if (rested++)
        return;
    assert_int_equal(hold(c, 0).quiet, 0);
    assert_false(board_quiet(c->node[0].ctl, &position));
    /* its own node waits for it; but node 0 has sent it something */
    assert_int_equal(hold(c, 1).quiet, 0);
}

static void what_is_on_the_wire_is_not_held(void **state)
{
    struct cluster *c = cluster_new(5, 3, places, 11);

    works(c, 10);
    rested = 0;
    c->stopped = 1 << 4;
    c->at_rest = look_at_busy;
    works(c, 3000);
    assert_true(rested);
    assert_int_equal(c->board_errors, 0);
    cluster_free(c);
}

/* All have begun but rank 4, and nothing moves. Then one node after the other goes on. */
static void let_go(struct cluster *c)
{
    struct board_position position;
    struct eboard *other = eboard_find(c->node[1].engine, c->main->id);

    if (rested++)
        return;
    assert_true(board_quiet(c->node[0].ctl, &position));
    assert_int_equal(position.ops, ops_before);
    assert_int_equal(hold(c, 0).quiet, 1);
    go(c, 0);
    go(c, 2);
    rest(c);
    assert_false(board_quiet(c->node[0].ctl, &position));
    assert_true(board_quiet(c->node[1].ctl, &position));
    assert_true(other->inbox.n > 0); /* it waits there */
    /* Another engine is lost now: of one that has gone on something is on the wire. */
    assert_int_equal(hold(c, 1).quiet, 0);
    go(c, 1);
}

static void nothing_begins_while_it_is_held(void **state)
{
    struct cluster *c = cluster_new(5, 3, places, 5);
    struct board_position position;

    some_work(c);
    rest(c);
    assert_true(board_quiet(c->node[0].ctl, &position));
    ops_before = position.ops;
    for (unsigned n = 0; n < 3; n++)
        assert_int_equal(hold(c, n).quiet, 1);
    rested = 0;
    c->stopped = 1 << 4;
    c->at_rest = let_go;
    some_work(c);
    assert_true(rested);
    assert_int_equal(c->board_errors, 0);
    cluster_free(c);
}

static struct msg_board_held said;
static unsigned nsaid;

static void on_held(void *arg, const struct msg_board_held *held)
{
    said = *held;
    nsaid++;
}

static void another_commd_hears_what_is_held(void **state)
{
    struct cluster *c = cluster_new(5, 3, places, 3);
    struct msg_board_held held;

    nsaid = 0;
    works(c, 10);
    rest(c);
    for (unsigned n = 0; n < 3; n++)
        c->node[n].engine->ev.on_held = on_held;
    assert_int_equal(hold(c, 1).quiet, 1);
    engine_resume(c->node[0].engine);
    assert_int_equal(nsaid, 0);
    for (unsigned times = 1; times < 3; times++) {
        engine_resume(c->node[1].engine);
        assert_int_equal(nsaid, times);
        assert_true(said.group == c->main->id);
        assert_int_equal(said.quiet, 1);
        assert_int_equal(said.ops, 1);
    }
    go(c, 1);
    for (unsigned times = 3; times < 5; times++) {
        engine_resume(c->node[1].engine);
        assert_int_equal(nsaid, times);
        assert_int_equal(said.went_on, 1);
        assert_int_equal(said.ops, 1);
        works(c, 10);
    }
    engine_board_hold(c->node[1].engine, c->main->id + 1, &held);
    assert_int_equal(held.missing, 1);
    assert_int_equal(held.quiet, 0);
    assert_int_equal(c->board_errors, 0);
    some_work(c);
    cluster_free(c);
}

/* ---- an engine is to be replaced ------------------------------------------------------------- */

enum { ASKER = 2, ATTEMPT = 9 };

static struct msg_pause told[3]; /* by node: what it said last */
static unsigned ntold[3];

static void on_paused(void *arg, const struct msg_pause *paused)
{
    unsigned node = (unsigned)(uintptr_t)arg;

    told[node] = *paused;
    ntold[node]++;
}

static struct cluster *cluster_that_pauses(uint64_t seed)
{
    struct cluster *c = cluster_new(5, 3, places, seed);

    memset(ntold, 0, sizeof(ntold));
    for (unsigned n = 0; n < 3; n++)
        c->node[n].engine->ev =
            (struct engine_events){no_error, no_loss, (void *)(uintptr_t)n, NULL, on_paused, NULL};
    return c;
}

static struct msg_pause ask(struct cluster *c, unsigned node, unsigned step, uint32_t ops)
{
    struct msg_pause m = {.group = c->main->id,
                          .attempt = ATTEMPT,
                          .step = step,
                          .ops = ops,
                          .asker = ASKER},
                     answer;

    if (!engine_board_pause(c->node[node].engine, &m, &answer))
        return (struct msg_pause){.step = UINT32_MAX};
    assert_true(answer.group == m.group && answer.attempt == ATTEMPT && answer.asker == ASKER);
    return answer;
}

static void ask_all(struct cluster *c, unsigned step, uint32_t ops)
{
    for (unsigned n = 0; n < 3; n++)
        assert_int_equal(ask(c, n, step, ops).step, UINT32_MAX);
}

static void expect_told(unsigned times, uint32_t ops)
{
    for (unsigned n = 0; n < 3; n++) {
        assert_int_equal(ntold[n], times);
        assert_int_equal(told[n].step, PAUSE_QUIET);
        assert_int_equal(told[n].ops, ops);
        assert_int_equal(told[n].asker, ASKER);
        assert_int_equal(told[n].sent + told[n].came, 0);
    }
}

/* At first rank 4 has not begun what the others have. Later all wait. */
static void stop_behind_it(struct cluster *c)
{
    static const uint32_t begun[] = {1, 0, 1};

    if (rested++ == 0) {
        for (unsigned n = 0; n < 3; n++) {
            struct msg_pause answer = ask(c, n, PAUSE_ASK, 0);

            assert_int_equal(answer.step, PAUSE_POSTED);
            assert_int_equal(answer.ops, ops_before + begun[n]);
            assert_int_equal(ask(c, n, PAUSE_ASK, 0).step, PAUSE_BUSY); /* by another one, too */
        }
        ask_all(c, PAUSE_UNTIL, ops_before + 1);
        assert_int_equal(ntold[0] + ntold[1] + ntold[2], 0);
    } else if (rested == 2) {
        struct msg_pause other = {
            .group = c->main->id, .attempt = ATTEMPT + 1, .step = PAUSE_END, .asker = ASKER};
        struct msg_pause answer;
        struct board_position position;

        expect_told(1, ops_before + 1);
        for (unsigned n = 0; n < 3; n++) {
            assert_false(engine_board_pause(c->node[n].engine, &other, &answer));
            assert_int_equal(eboard_find(c->node[n].engine, c->main->id)->hold, EB_PAUSES);
            assert_true(board_quiet(c->node[n].ctl, &position));
            assert_int_equal(position.ops, ops_before + 1);
        }
        ask_all(c, PAUSE_END, 0);
    }
}

static void all_stop_behind_what_one_has_begun(void **state)
{
    struct cluster *c = cluster_that_pauses(13);

    works(c, 10);
    ops_before = 1;
    rested = 0;
    c->stopped = 1 << 4;
    c->at_rest = stop_behind_it;
    works(c, 3000);
    works(c, 1);
    assert_true(rested >= 2);
    expect_told(1, ops_before + 1);
    c->stopped = 0;
    some_work(c);
    cluster_free(c);
}

static void its_engine_is_replaced(void **state)
{
    struct cluster *c = cluster_that_pauses(17);

    for (unsigned round = 1; round < 4; round++) {
        unsigned lost = round % 3;

        some_work(c);
        for (unsigned n = 0; n < 3; n++)
            assert_int_equal(ask(c, n, PAUSE_ASK, 0).ops, 3 * round);
        ask_all(c, PAUSE_UNTIL, 3 * round);
        rest(c);
        expect_told(1, 3 * round);
        memset(ntold, 0, sizeof(ntold));
        new_engine(c, lost);
        c->node[lost].engine->ev.on_paused = on_paused;
        c->node[lost].engine->ev.arg = (void *)(uintptr_t)lost;
        for (unsigned n = 0; n < 3; n++)
            if (n != lost)
                assert_int_equal(hold(c, n).quiet, 1);
        ask_all(c, PAUSE_END, 0); /* too late: it is held */
        go(c, (lost + 1) % 3);
        assert_int_equal(give_board(c, lost, 3 * round + 1), 0);
        go(c, (lost + 2) % 3);
    }
    some_work(c);
    cluster_free(c);
}

static void who_hears_no_more_goes_on(void **state)
{
    struct cluster *c = cluster_that_pauses(19);
    struct eboard *eb = eboard_find(c->node[1].engine, c->main->id);

    works(c, 10);
    for (unsigned n = 0; n < 3; n++)
        assert_int_equal(ask(c, n, PAUSE_ASK, 0).step, PAUSE_POSTED);
    assert_false(engine_rests_for(c->node[1].engine, ASKER));
    ask_all(c, PAUSE_UNTIL, 1);
    rest(c);
    assert_int_equal(eb->hold, EB_PAUSES);
    engine_resume(c->node[1].engine); /* another commd does not know of it */
    assert_int_equal(eb->hold, EB_PAUSES);
    assert_true(engine_rests_for(c->node[1].engine, ASKER));
    assert_false(engine_rests_for(c->node[1].engine, !ASKER));
    for (unsigned n = 0; n < 3; n++)
        eboard_find(c->node[n].engine, c->main->id)->pause.until_ms = 1;
    for (unsigned n = 0; n < 3; n++)
        engine_poll_all(c->node[n].engine);
    assert_int_equal(eb->hold, EB_RUNS);
    assert_false(engine_rests_for(c->node[1].engine, ASKER));
    some_work(c);
    cluster_free(c);
}

/* What is answered to it is told, too: else the asker takes the group for quiet before the answer
 * has come. */
static void a_probe_comes_while_it_pauses(void **state)
{
    struct cluster *c = cluster_that_pauses(29);
    struct mail_rec probe = {.kind = MAIL_PROBE, .src = 0, .dst = 1};
    struct wire_mail w
        __attribute__((aligned(16))) = {.h = {.group = c->main->id, .step = WIRE_MAIL}};
    struct fabric_msg fm = {.peer = 0, .hdr = &w, .hdr_len = sizeof w};

    works(c, 10);
    for (unsigned n = 0; n < 3; n++)
        assert_int_equal(ask(c, n, PAUSE_ASK, 0).step, PAUSE_POSTED);
    ask_all(c, PAUSE_UNTIL, 1);
    rest(c);
    expect_told(1, 1);
    memcpy(w.rec, &probe, sizeof w.rec);
    c->node[1].engine->fev.on_msg(c->node[1].engine, &fm);
    rest(c);
    assert_int_equal(ntold[1], 2);
    assert_int_equal(told[1].sent, 1);
    assert_int_equal(told[1].came, 1);
    assert_int_equal(ntold[0], 2); /* PONG */
    assert_int_equal(told[0].sent, 0);
    assert_int_equal(told[0].came, 1);
    ask_all(c, PAUSE_END, 0);
    some_work(c);
    cluster_free(c);
}

/* Its commd is another one, which does not know of the attempt. */
static void another_commd_ends_a_pause(void **state)
{
    struct cluster *c = cluster_that_pauses(31);
    struct msg_pause end = {.group = c->main->id, .step = PAUSE_END, .asker = ASKER}, none;
    struct eboard *eb = eboard_find(c->node[1].engine, c->main->id);

    works(c, 10);
    assert_int_equal(ask(c, 1, PAUSE_ASK, 0).step, PAUSE_POSTED);
    end.asker++;
    assert_false(engine_board_pause(c->node[1].engine, &end, &none));
    assert_int_equal(eb->hold, EB_PAUSES);
    end.asker--;
    assert_false(engine_board_pause(c->node[1].engine, &end, &none));
    assert_int_equal(eb->hold, EB_RUNS);
    some_work(c);
    cluster_free(c);
}

static void groups_that_end_are_waited_for(void **state)
{
    struct cluster *c = cluster_that_pauses(23);
    struct engine *e = c->node[0].engine;
    struct eboard ending = {.dead = true};

    works(c, 10);
    rest(c);
    TAILQ_INSERT_TAIL(&e->closing, &ending, end_link);
    assert_int_equal(ask(c, 0, PAUSE_ASK, 0).step, PAUSE_BUSY);
    TAILQ_REMOVE(&e->closing, &ending, end_link);
    assert_int_equal(ask(c, 0, PAUSE_ASK, 0).step, PAUSE_POSTED);
    assert_int_equal(ask(c, 0, PAUSE_UNTIL, 0).step, UINT32_MAX); /* before what is done */
    assert_false(eboard_find(e, c->main->id)->pause.final);
    ask(c, 0, PAUSE_END, 0);
    some_work(c);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on_over_the_next_engine),
        cmocka_unit_test(what_is_on_the_wire_is_not_held),
        cmocka_unit_test(nothing_begins_while_it_is_held),
        cmocka_unit_test(another_commd_hears_what_is_held),
        cmocka_unit_test(all_stop_behind_what_one_has_begun),
        cmocka_unit_test(its_engine_is_replaced),
        cmocka_unit_test(who_hears_no_more_goes_on),
        cmocka_unit_test(groups_that_end_are_waited_for),
        cmocka_unit_test(a_probe_comes_while_it_pauses),
        cmocka_unit_test(another_commd_ends_a_pause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
