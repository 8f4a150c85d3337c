/* test_engine_turn.c - the turn of the engine's process, on a fabric that never rests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

int engine_process(int argc, char **argv);
#define main engine_process
#include "transport/engine_main.c"
#undef main

#include "tests/lib/cluster.h"

enum { TURNS = 10 * LOOK_EVERY };

static struct shell shell;
static unsigned turns;

static bool always_busy(struct fabric *f)
{
    shell.running = ++turns < TURNS;
    return true;
}

int fabric_new(const struct fabric_conf *conf, const struct fabric_events *ev,
               struct fabric **ret_fabric, char why[256])
{
    return -ENOTSUP;
}

/* The ring of an idle group is heard also while another group keeps the engine moving. */
static void busy_engine_hears_doorbells(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static const struct fabric_ops ops = {.progress = always_busy};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    struct fabric busy = {.ops = &ops};
    uint64_t group = 0x77;
    int control[2], bell[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, bell), 0);
    shell = (struct shell){.engine = c->node[0].engine, .fabric = &busy, .control = control[0],
                           .epoll = epoll_create1(0), .rescued_ms = now_ms(), .running = true};
    watch(&shell, shell.control, EV_CONTROL);
    bell_add(&shell, 3, &bell[0]);
    engine_arm(shell.engine);
    assert_true(engine_idle(shell.engine));
    assert_int_equal(send(bell[1], &group, sizeof group, 0), sizeof group);
    serve(&shell);
    assert_int_equal(turns, TURNS);
    assert_false(engine_idle(shell.engine));
    bell_del(&shell, 3);
    free(shell.bells);
    close(shell.epoll);
    close(control[0]);
    close(control[1]);
    close(bell[1]);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(busy_engine_hears_doorbells)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
