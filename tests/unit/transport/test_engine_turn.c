/* test_engine_turn.c - the turn of the engine's process, on a fabric that never rests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

int engine_process(int argc, char **argv);
#define main engine_process
#include "transport/process/engine_main.c"
#undef main

#include "transport/engine/engine_internal.h"
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
                           .epoll = epoll_create1(0),
                           .rescued_ms = now_ms(),
                           .running = true};
    assert_int_equal(control_begin(&shell.control, control[0]), 0);
    watch(&shell, control_fd(&shell.control), EPOLLIN, EV_CONTROL);
    return control[1];
}

static void shell_end(int control)
{
    for (unsigned i = 0; i < shell.nbells; i++)
        bell_del(&shell, i);
    free(shell.bells);
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        free(shell.peers[i].lost);
    close(shell.epoll);
    control_fini(&shell.control);
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
    if (atomic_exchange(&g->now->board.hdr->engine_asleep, 0))
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
    atomic_store(&c->group[0]->now->board.hdr->engine_asleep, 1); /* it was not heard */
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
        atomic_store(&many[i]->member[0]->now->board.hdr->engine_asleep, 0);
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

static int has_more(struct fabric *f)
{
    return 1;
}

static int commd_end;
static unsigned told, told_before, last_seq;
static bool heard[FABRIC_MAX_PEERS];

static bool quiet_for(struct fabric *f, unsigned peer, struct fabric_traffic *ret_traffic)
{
    *ret_traffic = (struct fabric_traffic){.quiet_ms = peer + 1};
    return true;
}

/* Takes what the turn before has told. */
static bool hears_all(struct fabric *f)
{
    static struct msg_reader in;
    const char *why;
    struct msg msg;
    unsigned nfds;

    for (; !msg_read_fd(commd_end, &in, &msg, NULL, 0, &nfds, &why); msg_fini(&msg)) {
        if (msg.type == MSG_PING)
            last_seq = msg.ping.seq;
        if (msg.type != MSG_ENGINE_TRAFFIC)
            continue;
        assert_int_equal(msg.engine_traffic.quiet_ms, msg.engine_traffic.peer + 1);
        assert_false(heard[msg.engine_traffic.peer]);
        heard[msg.engine_traffic.peer] = true;
        told++;
    }
    assert_in_range(told - told_before, 0, TRAFFIC_AT_ONCE);
    told_before = told;
    shell.running = ++turns < TURNS && told < 1000;
    return false;
}

/* In a cluster of a thousand nodes commd learns of each after each PING: by that it tells a commd
 * that is stopped from a node that is gone. No turn is long by that. */
static void all_peers_are_told_of(void **state)
{
    static const uint16_t placement[] = {0, 1};
    static const struct fabric_ops ops = {
        .progress = hears_all, .arm = has_more, .traffic = quiet_for};
    struct cluster *c = cluster_new(2, 2, placement, 1);
    struct fabric fabric = {.ops = &ops};
    struct msg ping = {.type = MSG_PING};

    commd_end = shell_begin(c, &fabric);
    fcntl(commd_end, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 1000; i++)
        shell.peers[i + 24].incarnation = i + 1;
    for (unsigned round = 1; round < 3; round++) {
        told = told_before = turns = 0;
        memset(heard, 0, sizeof(heard));
        ping.ping.seq = round;
        control_msg(&shell, &ping, &(int){-1});
        shell.running = true;
        shell_serve(&shell);
        assert_int_equal(told, 1000);
        assert_int_equal(last_seq, round);
    }
    shell_end(commd_end);
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
    shell = (struct shell){.running = true};
    assert_int_equal(control_begin(&shell.control, control[0]), 0);
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
    control_fini(&shell.control);
    close(control[1]);
}

/* ---- another commd -------------------------------------------------------------------------- */

/* The other end of the line. */
static int give_line(void)
{
    int line[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    shell.control.line = line[0];
    assert_int_equal(epoll_ctl(shell.control.epoll, EPOLL_CTL_ADD, line[0],
                               &(struct epoll_event){.events = EPOLLIN}),
                     0);
    return line[1];
}

/* What commd does: another control socket. Our end of it. */
static int next_commd(int line)
{
    char space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {"c", 1};
    struct msghdr mh = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *CMSG_FIRSTHDR(&mh) = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), &pair[1], sizeof(int));
    assert_int_equal(sendmsg(line, &mh, 0), 1);
    close(pair[1]);
    return pair[0];
}

static void hears(int sock, enum msg_type type, struct msg *ret_msg)
{
    const char *why;
    unsigned n = 0;

    assert_int_equal(msg_recv_fd(sock, ret_msg, NULL, 0, &n, (int64_t)now_ms() + 300000, &why), 0);
    assert_string_equal(msg_type_name(ret_msg->type), msg_type_name(type));
}

static void hears_all_again(int sock, uint64_t failed)
{
    struct msg m;

    hears(sock, MSG_ENGINE_HELLO, &m);
    assert_true(m.engine_hello.resumed);
    hears(sock, MSG_ENGINE_PEER_READY, &m);
    assert_int_equal(m.engine_peer.peer, 1);
    assert_int_equal(m.engine_peer.engine, 77);
    assert_int_equal(m.engine_peer.intro, 5);
    hears(sock, MSG_ENGINE_PEER_DOWN, &m);
    assert_int_equal(m.engine_peer.peer, 3);
    assert_string_equal(m.engine_peer.text, "its cable is cut");
    hears(sock, MSG_BOARD_ERROR, &m);
    assert_int_equal(m.board.group, failed);
    assert_int_equal(m.board.cause, CAUSE_MISMATCH);
    assert_int_equal(m.board.peer, 1);
    assert_string_equal(m.board.text, "ranks disagree");
    hears(sock, MSG_ENGINE_RESUMED, &m);
}

static int no_address(struct fabric *f, void *buf, size_t *inout_len)
{
    *inout_len = 0;
    return 0;
}

static const struct fabric_ops no_ops = {.name = "none", .address = no_address};

/* Of group 0x20, of two nodes with a rank each. */
static struct msg board_of_two_nodes(void)
{
    static uint32_t peers[] = {0, 1}, rank_node[] = {0, 1};

    return (struct msg){
        .type = MSG_BOARD_ADD,
        .board_add = {
            .group = 0x20, .nnodes = 2, .world = 2, .peers = peers, .rank_node = rank_node}};
}

/* Boards that it does not name go, those that it names stay as they are. */
static void another_commd_is_told_what_there_is(void **state)
{
    static const uint16_t nodes[] = {0, 1}, ranks[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, nodes, 1);
    struct commd_context *ctx[] = {&c->ctx, &c->ctx};
    struct cluster_group *named = cluster_group_new(c, 0x20, ranks, 2, ctx, -1);
    struct cluster_group *other = cluster_group_new(c, 0x21, ranks, 2, ctx, -1);
    struct fabric none = {.ops = &no_ops};
    struct msg add = board_of_two_nodes();
    int first = shell_begin(c, &none), line = give_line(), second, fd = -1;
    struct msg ping = {.type = MSG_PING};
    struct engine *e = shell.engine;
    const struct eboard *before = eboard_find(e, 0x20);

    e->ev = (struct engine_events){.on_board_error = on_board_error, .arg = &shell};
    shell.peers[1].incarnation = 77;
    shell.peers[1].intro = 5;
    shell.peers[3].incarnation = 78;
    on_peer_down(&shell, 3, LINK_END_ENGINE, "its cable is cut");
    eboard_fail(eboard_find(e, 0x21), CAUSE_MISMATCH, 1, "ranks disagree");
    assert_int_equal(write(first, "cd", 2), 2); /* it dies in the middle of a frame */
    control_read(&shell);
    shutdown(first, SHUT_RDWR);
    control_read(&shell);
    assert_true(shell.running);
    assert_int_equal(shell.control.sock, -1);
    on_peer_down(&shell, 3, LINK_END_ENGINE, "its cable is cut"); /* nobody hears that */
    close(next_commd(line));                                      /* one that has died already */
    second = next_commd(line);
    control_read(&shell);
    hears_all_again(second, 0x21);
    assert_int_equal(msg_send_fd(second, &ping, NULL, 0, -1), 0);
    control_read(&shell);
    hears(second, MSG_PING, &ping);
    control_msg(&shell, &add, &named->fd[0]);
    control_msg(&shell, &(struct msg){.type = MSG_ENGINE_KEEP}, &fd);
    assert_ptr_equal(eboard_find(e, 0x20), before);
    assert_null(eboard_find(e, 0x21));
    assert_int_equal(recv(second, &(char){0}, 1, MSG_DONTWAIT), -1); /* no error is told */
    close(line);
    control_read(&shell);
    assert_false(shell.running);
    engine_board_del(e, 0x20, true);
    cluster_group_free(c, named);
    cluster_group_free(c, other);
    shell_end(first);
    close(second);
    cluster_free(c);
}

/* No number below it is free. */
static void no_descriptor_is_left(struct rlimit *ret_before)
{
    int least = dup(0);

    assert_int_equal(getrlimit(RLIMIT_NOFILE, ret_before), 0);
    close(least);
    assert_int_equal(
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)least, ret_before->rlim_max}), 0);
    assert_int_equal(dup(0), -1);
}

/* It hears the next commd and keeps its boards, and does not end, however often commd dies. */
static void another_commd_comes_when_no_descriptor_is_left(void **state)
{
    static const uint16_t nodes[] = {0, 1}, ranks[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, nodes, 1);
    struct commd_context *ctx[] = {&c->ctx, &c->ctx};
    struct cluster_group *named = cluster_group_new(c, 0x20, ranks, 2, ctx, -1);
    struct fabric none = {.ops = &no_ops};
    struct msg add = board_of_two_nodes();
    int first = shell_begin(c, &none), line = give_line(), fd = -1;
    const struct eboard *before = eboard_find(shell.engine, 0x20);
    struct rlimit limit;
    struct msg m;

    for (unsigned times = 0; times < 3; times++) {
        int next = next_commd(line);

        no_descriptor_is_left(&limit);
        control_read(&shell);
        control_msg(&shell, &add, &fd); /* for whose descriptor there was no room */
        control_msg(&shell, &(struct msg){.type = MSG_ENGINE_KEEP}, &fd);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_true(shell.running && shell.control.sock >= 0);
        hears(next, MSG_ENGINE_HELLO, &m);
        hears(next, MSG_ENGINE_RESUMED, &m);
        assert_int_equal(recv(next, &(char){0}, 1, MSG_DONTWAIT), -1); /* no error is told */
        assert_ptr_equal(eboard_find(shell.engine, 0x20), before);
        close(next);
    }
    fd = next_commd(line);
    close(shell.control.spare); /* somebody has taken the reserve, too */
    shell.control.spare = dup(0);
    no_descriptor_is_left(&limit);
    shell.control.spare = -1;
    control_read(&shell);
    assert_true(shell.running);
    assert_int_equal(shell.control.sock, -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(recv(fd, &(char){0}, 1, MSG_DONTWAIT), 0); /* this commd hears it */
    close(fd);
    fd = next_commd(line);
    control_read(&shell);
    hears(fd, MSG_ENGINE_HELLO, &m);
    close(fd);
    close(line);
    engine_board_del(shell.engine, 0x20, true);
    cluster_group_free(c, named);
    shell_end(first);
    cluster_free(c);
}

/* A commd that does not read. */
static void reports_do_not_wait(void **state)
{
    static const uint16_t nodes[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, nodes, 1);
    struct fabric none = {.ops = &no_ops};
    int hangs = shell_begin(c, &none), line = give_line(), wakes;
    struct msg m = {.type = MSG_PING};
    unsigned sent = 0, heard = 0;

    for (; sent < 50000; sent++) /* more than a socket holds; who waited would wait for good */
        control_send(&shell.control, &m, -1);
    assert_true(shell.control.out_len > 0 && shell.control.sock >= 0);
    while (heard < sent) {
        hears(hangs, MSG_PING, &m);
        if (++heard % 100 == 0)
            control_read(&shell);
    }
    assert_int_equal(shell.control.out_len, 0);
    for (unsigned i = 0; i < 2000000 && shell.control.sock >= 0; i++)
        control_send(&shell.control, &m, -1);
    assert_int_equal(shell.control.sock, -1);
    control_read(&shell);
    assert_true(shell.running);
    wakes = next_commd(line);
    control_read(&shell);
    hears(wakes, MSG_ENGINE_HELLO, &m);
    close(line);
    close(wakes);
    shell_end(hangs);
    cluster_free(c);
}

/* Who has given no line is the only commd that there will be. */
static void without_a_line_it_ends_with_commd(void **state)
{
    static const uint16_t nodes[] = {0, 1};
    struct cluster *c = cluster_new(2, 2, nodes, 1);
    struct fabric none = {.ops = &no_ops};
    int control = shell_begin(c, &none);

    shutdown(control, SHUT_RDWR);
    control_read(&shell);
    assert_false(shell.running);
    shell_end(control);
    cluster_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_peers_are_told_of),
        cmocka_unit_test(orders_come_in_parts),
        cmocka_unit_test(busy_engine_hears_doorbells),
        cmocka_unit_test(a_doorbell_is_not_read),
        cmocka_unit_test(a_doorbell_that_was_taken_away_is_silent),
        cmocka_unit_test(a_client_in_many_groups),
        cmocka_unit_test(boards_are_unmapped_elsewhere),
        cmocka_unit_test(another_commd_is_told_what_there_is),
        cmocka_unit_test(another_commd_comes_when_no_descriptor_is_left),
        cmocka_unit_test(reports_do_not_wait),
        cmocka_unit_test(without_a_line_it_ends_with_commd),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
