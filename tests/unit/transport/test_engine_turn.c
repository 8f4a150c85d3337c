/* test_engine_turn.c - the turn of the engine's process, on a fabric that never rests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/eventfd.h>

int engine_process(int argc, char **argv);
#define main engine_process
#include "transport/process/engine_main.c"
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

static int shell_begin(struct cluster *c, struct fabric *busy)
{
    static int control[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    turns = 0;
    shell = (struct shell){.engine = c->node[0].engine,
                           .fabric = busy,
                           .control = control[0],
                           .epoll = epoll_create1(0),
                           .rescued_ms = now_ms(),
                           .running = true};
    watch(&shell, shell.control, EPOLLIN, EV_CONTROL);
    return control[1];
}

static void shell_end(int control)
{
    for (unsigned i = 0; i < shell.nbells; i++)
        bell_del(&shell, i);
    free(shell.bells);
    close(shell.epoll);
    close(shell.control);
    close(control);
}

/* The doorbell of @client; the client's end of it. */
static int bell_new(unsigned client)
{
    int fd = eventfd(0, EFD_NONBLOCK), theirs = dup(fd);

    bell_add(&shell, client, &fd);
    assert_int_equal(fd, -1);
    return theirs;
}

/* What client/lib/coll/run.c does. */
static void ring(struct commd_group *g, int bell)
{
    if (atomic_exchange(&g->board.hdr->engine_asleep, 0))
        assert_int_equal(write(bell, &(uint64_t){1}, sizeof(uint64_t)), sizeof(uint64_t));
}

static void sleep_now(void)
{
    while (engine_arm(shell.engine))
        ;
    assert_true(engine_idle(shell.engine));
}

/* The ring of an idle group is heard also while another group keeps the engine moving. */
static void busy_engine_hears_doorbells(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static const struct fabric_ops ops = {.progress = always_busy};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    struct fabric busy = {.ops = &ops};
    int control = shell_begin(c, &busy), bell = bell_new(0);

    sleep_now();
    ring(c->group[0], bell);
    shell_serve(&shell);
    assert_int_equal(turns, TURNS);
    assert_false(engine_idle(shell.engine));
    close(bell);
    shell_end(control);
    cluster_free(c);
}

/* Whatever a client does to its doorbell, the engine does not wait; and each ring is heard, though
 * nobody takes the former ones away. */
static void a_doorbell_is_not_read(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    int control = shell_begin(c, NULL), bell = bell_new(0);
    uint64_t value = UINT64_MAX - 1 - 10;
    struct epoll_event ev;

    fcntl(bell, F_SETFL, fcntl(bell, F_GETFL) & ~O_NONBLOCK);
    for (unsigned i = 0; i < 5; i++) {
        sleep_now();
        ring(c->group[0], bell);
        look(&shell, 0);
        assert_false(engine_idle(shell.engine));
    }
    assert_int_equal(write(bell, &value, sizeof value), sizeof value);
    look(&shell, 0);
    assert_int_equal(epoll_wait(shell.epoll, &ev, 1, 0),
                     0); /* full, and heard once: it may sleep */
    sleep_now();
    assert_int_equal(read(bell, &value, sizeof value), sizeof value); /* and takes the rings away */
    assert_true(value > 5);                                           /* nobody has read them */
    sleep_now();
    look(&shell, 0);
    assert_true(engine_idle(shell.engine)); /* no edge: not looked at for ever */
    close(bell);
    shell_end(control);
    cluster_free(c);
}

/* The client keeps the file open: closing our end of it is not enough to hear no more of it. */
static void a_doorbell_that_was_taken_away_is_silent(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    int control = shell_begin(c, NULL), old = bell_new(0), bell;
    struct epoll_event ev;

    bell = bell_new(0); /* takes its place */
    sleep_now();
    ring(c->group[0], old);
    assert_int_equal(epoll_wait(shell.epoll, &ev, 1, 0), 0);
    atomic_store(&c->group[0]->board.hdr->engine_asleep, 1); /* it was not heard */
    ring(c->group[0], bell);
    look(&shell, 0);
    assert_false(engine_idle(shell.engine));
    bell_del(&shell, 0);
    bell_del(&shell, 0);
    bell_del(&shell, 9999);
    sleep_now();
    ring(c->group[0], bell);
    assert_int_equal(epoll_wait(shell.epoll, &ev, 1, 0), 0);
    close(old);
    close(bell);
    shell_end(control);
    cluster_free(c);
}

static int gate[2];

static void wait_at_gate(void *arg)
{
    (void)!read(gate[0], &(char){0}, 1);
}

/* Unmapping a board is not the engine's to wait for. */
static void boards_are_unmapped_elsewhere(void **state)
{
    static const uint16_t placement[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    struct engine *e = c->node[0].engine;
    struct closer *closer;

    assert_int_equal(closer_new(&closer), 0);
    assert_int_equal(pipe(gate), 0);
    engine_set_closer(e, closer);
    closer_call(closer, 0, wait_at_gate, NULL); /* the uid of all groups here */
    engine_board_del(e, 0x77, true);
    engine_poll(e);
    assert_false(engine_has_boards(e));
    assert_int_equal(closer_pending(closer, 0), 2);
    close(gate[1]);
    while (closer_pending(closer, 0))
        usleep(1000);
    close(gate[0]);
    cluster_free(c);
    closer_free(closer);
}

enum { GROUPS = 200 };

/* A ring finds the one board that it is for, among many, in parts; others are heard meanwhile; and
 * boards may go at any time. */
static void a_client_in_many_groups(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static const uint16_t ranks[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    struct commd_context *ctx[2] = {&c->ctx, &c->ctx};
    struct cluster_group *many[GROUPS];
    int control = shell_begin(c, NULL), bell = bell_new(0);
    struct engine *e = shell.engine;

    for (unsigned i = 0; i < GROUPS; i++)
        many[i] = cluster_group_new(c, 0x1000 + i, ranks, 2, ctx, -1);
    for (unsigned i = 0; i < GROUPS; i += 7) {
        sleep_now();
        ring(many[i]->member[0], bell);
        look(&shell, 0);
        for (unsigned turn = 0; turn < GROUPS / 64 && engine_idle(e); turn++)
            engine_poll(e);
        assert_false(engine_idle(e));
    }
    sleep_now();
    for (unsigned i = 0; i < GROUPS; i++) /* all at once: in parts, to the end */
        atomic_store(&many[i]->member[0]->board.hdr->engine_asleep, 0);
    ring(c->group[0], bell);
    look(&shell, 0);
    assert_false(engine_idle(e));
    assert_true(engine_arm(e)); /* it may not sleep before the round is over */
    sleep_now();
    ring(many[GROUPS - 1]->member[0], bell);
    look(&shell, 0); /* a round is under way */
    for (unsigned i = 0; i < GROUPS; i++) {
        engine_board_del(e, 0x1000 + i, true);
        engine_poll(e);
    }
    look(&shell, 0);
    sleep_now();
    bell_del(&shell, 0);
    for (unsigned i = 0; i < GROUPS; i++)
        cluster_group_free(c, many[i]);
    close(bell);
    shell_end(control);
    cluster_free(c);
}

/* Orders of commd without end leave the boards their turns. */
static void orders_come_in_parts(void **state)
{
    struct msg ping = {.type = MSG_PING};
    char buf[4096];
    ssize_t n, all = 0;
    void *frame;
    size_t len;
    int control[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    shell = (struct shell){.control = control[0], .running = true};
    assert_int_equal(codec_encode(&ping, &frame, &len), 0);
    for (unsigned i = 0; i < 2 * CONTROL_AT_ONCE + 1; i++)
        assert_int_equal(write(control[1], frame, len), (ssize_t)len);
    for (unsigned part = 1; part <= 3; part++) {
        control_read(&shell);
        while ((n = recv(control[1], buf, sizeof buf, MSG_DONTWAIT)) > 0)
            all += n;
        /* each is answered by a frame, which says one thing more */
        assert_in_range(all, MIN(part * CONTROL_AT_ONCE, 2u * CONTROL_AT_ONCE + 1) * len,
                        MIN(part * CONTROL_AT_ONCE, 2u * CONTROL_AT_ONCE + 1) * (len + 4));
    }
    assert_true(shell.running);
    free(frame);
    close(control[0]);
    close(control[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_come_in_parts),
        cmocka_unit_test(busy_engine_hears_doorbells),
        cmocka_unit_test(a_doorbell_is_not_read),
        cmocka_unit_test(a_doorbell_that_was_taken_away_is_silent),
        cmocka_unit_test(a_client_in_many_groups),
        cmocka_unit_test(boards_are_unmapped_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
