/* test_fabric_links.c - how a link of plain TCP comes up and breaks, at each step of it: the other
 * side is played by hand. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

/* --- connecting ----------------------------------------------------------------------------- */

/* Who is turned away before the link is up comes again; who finds nobody says so. */
static void connects_again(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd = -1;
    struct accept accept;
    struct hello h;
    struct hello mine = {0};

    sign(&mine, 1, false, NULL); /* the same token as the side's */
    expect_listener(s, &a, 1);
    for (unsigned i = 0; i < 3; i++) {
        fd = raw_come(w, listener, &h);
        assert_memory_equal(h.id, mine.id, ID_LEN);
        if (i == 1) {
            raw_send(fd, &h, sizeof(h)); /* its own token: wrong */
            pump_until(w, s->f->stats.strangers == 1);
        }
        if (i < 2)
            close(fd);
    }
    raw_answer(fd, &h, 1);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &accept, sizeof(accept), MSG_WAITALL), sizeof(accept));
    assert_int_equal(accept.magic, ACCEPT_MAGIC);
    assert_int_equal(s->down, 0);
    close(fd);
    pump_until(w, s->down == 1); /* now it was a link */
    s->f->ops->peer_del(s->f, HOSTILE);
    close(listener);
    expect_listener(s, &a, 2);
    pump_until(w, s->down == 2);
    assert_int_equal(s->down_err, -ECONNREFUSED);
    world_free(w);
}

/* One channel of several is turned away (the lobby was full, say), when another is open already. */
static void each_channel_connects_again(void **state)
{
    struct world *w = world_new("tcp x 3", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd[4];
    struct sending out;
    struct hello h[4];
    struct accept accept;

    expect_listener(s, &a, 1);
    put(s, HOSTILE, 0, 8, 8, &out);
    for (unsigned i = 0; i < 3; i++)
        fd[i] = raw_come(w, listener, &h[i]);
    for (unsigned i = 0; i < 2; i++) {
        raw_answer(fd[i], &h[i], 1);
        pump_until(w, readable(fd[i]));
        assert_int_equal(recv(fd[i], &accept, sizeof(accept), MSG_WAITALL), sizeof(accept));
        assert_int_equal(accept.magic, ACCEPT_MAGIC);
    }
    close(fd[2]);
    fd[3] = raw_come(w, listener, &h[3]);
    assert_int_equal(h[3].channel, h[2].channel);
    assert_int_equal(s->down + out.done, 0);
    raw_answer(fd[3], &h[3], 1);
    pump_until(w, out.done == 1);
    assert_int_equal(s->down + out.st, 0);
    for (unsigned i = 0; i < 4; i++)
        if (i != 2)
            close(fd[i]);
    pump_until(w, s->down == 1);
    close(listener);
    free_sendings(&out, 1);
    world_free(w);
}

/* The right answer comes for a peer that was deleted a moment ago. */
static void deleted_while_greeting(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct pollfd p = {.fd = s->f->ops->fd(s->f), .events = POLLIN};
    struct sending out;
    struct hello h;

    expect_listener(s, &a, 1);
    put(s, HOSTILE, 0, 8, 8, &out);
    fd = raw_come(w, listener, &h);
    pump_until(w, !inside(s)->timer_on);
    raw_answer(fd, &h, 1);
    assert_int_equal(poll(&p, 1, 300000), 1);
    s->f->ops->peer_del(s->f, HOSTILE);
    pump_until(w, out.done == 1);
    assert_int_equal(out.st, -ECANCELED);
    assert_true(ended(w, fd)); /* and nothing was sent */
    assert_int_equal(s->down, 0);
    close(fd);
    close(listener);
    free_sendings(&out, 1);
    world_free(w);
}

/* A link breaks inside send(), and the peer is deleted before that was reported. */
static void deleted_while_failing(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct sending out;
    int fd = raw_linked(w, s, 1), r = 0;

    put(s, HOSTILE, 0, 8, MB, &out); /* asks */
    pump_until(w, readable(fd));
    raw_reset(fd);
    for (unsigned i = 0; i < 1000 && r >= 0; i++)
        r = s->f->ops->send(s->f, HOSTILE, "x", 1, NULL, 0, NULL, NULL);
    assert_int_equal(r, -EIO);
    assert_int_equal(out.done + s->down, 0);
    assert_int_equal(s->f->ops->arm(s->f), 1); /* nobody else would wake us to report it */
    s->f->ops->peer_del(s->f, HOSTILE);
    pump_until(w, out.done == 1);
    assert_int_equal(out.st, -ECANCELED);
    assert_int_equal(s->down, 0);
    free_sendings(&out, 1);
    world_free(w);
}

static void drip(struct world *w, int fd, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        raw_send(fd, (const uint8_t *)data + i, 1);
        turn(w);
    }
}

static void byte_by_byte(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct hello h = hello_of(1);
    struct frame f = {.type = FRAME_MSG, .hdr_len = 8};
    struct head head = {.seq = 0};
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd = raw_connect(s);

    expect_raw(s, 1);
    drip(w, fd, &h, sizeof(h));
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &h, sizeof(h), MSG_WAITALL), sizeof(h));
    drip(w, fd, &TAILQ_FIRST(&inside(s)->conns)->accept, sizeof(struct accept));
    drip(w, fd, &f, sizeof(f));
    drip(w, fd, &head, 8);
    pump_until(w, s->msgs == 1);
    s->f->ops->peer_del(s->f, HOSTILE);
    close(fd);

    expect_listener(s, &a, 2);
    s->next_seq[HOSTILE] = 0;
    fd = raw_come(w, listener, &h);
    sign_answer(fd, &h, 2);
    drip(w, fd, &h, sizeof(h));
    drip(w, fd, &f, sizeof(f));
    drip(w, fd, &head, 8);
    pump_until(w, s->msgs == 2);
    assert_int_equal(s->down + s->bad_order, 0);
    close(fd);
    close(listener);
    world_free(w);
}

static void half_a_frame_and_gone(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct frame f = {.type = FRAME_MSG, .hdr_len = 8, .len = 1000};

    for (unsigned cut = 1; cut < 60; cut += 7) {
        uint8_t bytes[100] = {0};
        unsigned down = s->down;
        int fd = raw_linked(w, s, cut);

        memcpy(bytes, &f, sizeof(f));
        raw_send(fd, bytes, cut);
        turn(w);
        close(fd);
        pump_until(w, s->down == down + 1);
        assert_int_equal(s->down_err, -ECONNRESET);
        s->f->ops->peer_del(s->f, HOSTILE);
    }
    assert_int_equal(s->msgs, 0);
    world_free(w);
}

/* --- several channels ------------------------------------------------------------------------- */

/* Who connects may send as soon as he is answered on all channels; we may read that before we have
 * read all his ACCEPTs, and could not answer then. */
static void messages_wait_for_all_channels(void **state)
{
    static const enum take takes[] = {TAKE_DROP, TAKE_AT_ONCE};

    for (unsigned i = 0; i < 4; i++) {
        struct world *w = world_new("tcp", 1);
        struct side *s = &w->side[0];
        unsigned first = i / 2; /* that greets to the end; the other one may not even have come */
        struct frame answer;
        int fd[2];

        s->take = takes[i % 2];
        expect_raw(s, 1);
        fd[first] = raw_greeted(w, s, 1, first, 2);
        raw_accept(fd[first]);
        raw_head(fd[first], FRAME_ASK, 0, MB);
        pump_until_quiet(w);
        assert_int_equal(s->msgs, 0);
        fd[!first] = raw_greeted(w, s, 1, !first, 2);
        raw_accept(fd[!first]);
        pump_until(w, readable(fd[0]));
        assert_int_equal(recv(fd[0], &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
        assert_int_equal(answer.type, s->take == TAKE_DROP ? FRAME_DROP : FRAME_GRANT);
        assert_int_equal(s->msgs, 1);
        close(fd[0]);
        close(fd[1]);
        pump_until(w, s->down == 1);
        world_free(w);
    }
}

/* A channel whose next message is not due is not read, but must be seen to break. */
static void parked_channel_breaks(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[2];

    expect_raw(s, 1);
    for (unsigned i = 0; i < 2; i++)
        fd[i] = raw_greeted(w, s, 1, i, 2);
    for (unsigned i = 0; i < 2; i++)
        raw_accept(fd[i]);
    raw_head(fd[1], FRAME_MSG, 1, 0);
    pump_until(w, inside(s)->nparked == 1);
    raw_reset(fd[1]);
    pump_until(w, s->down == 1);
    assert_int_equal(s->msgs, 0);
    close(fd[0]);
    world_free(w);
}

/* A parked channel goes on where it was, with all that it had read. */
static void parked_channel_resumes(void **state)
{
    enum { N = 50 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[2];

    expect_raw(s, 1);
    for (unsigned i = 0; i < 2; i++)
        fd[i] = raw_greeted(w, s, 1, i, 2);
    for (unsigned i = 0; i < 2; i++)
        raw_accept(fd[i]);
    for (uint32_t seq = 1; seq < N; seq += 2)
        raw_head(fd[1], FRAME_MSG, seq, 0);
    pump_until(w, inside(s)->nparked == 1);
    pump_until_quiet(w);
    assert_int_equal(s->msgs, 0);
    for (uint32_t seq = 0; seq < N; seq += 2) {
        raw_head(fd[0], FRAME_MSG, seq, 0);
        pump_until(w, s->msgs == seq + 2);
    }
    assert_int_equal(s->bad_order + s->down, 0);
    raw_head(fd[1], FRAME_MSG, N - 1, 0); /* again */
    pump_until(w, s->down == 1);
    assert_int_equal(s->down_err, -EPROTO);
    close(fd[0]);
    close(fd[1]);
    world_free(w);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void drop_all(void *arg, const struct fabric_msg *m)
{
    struct side *s = arg;

    s->msgs++;
    if (m->claim)
        s->f->ops->drop(s->f, m->claim);
}

/* Our answers to a peer that does not read them must not pile up without end. */
static void asks_and_never_reads(void **state)
{
    enum { AT_MOST = 2000000, BATCH = 256 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct fabric_events ev = {drop_all, on_peer_down, s, NULL};
    struct frame ask[BATCH];
    int fd = raw_linked(w, s, 1);

    inside(s)->ev = ev;
    for (uint32_t i = 0; i < AT_MOST && !s->down; turn(w)) {
        for (unsigned k = 0; k < BATCH; k++, i++)
            ask[k] = (struct frame){.type = FRAME_ASK, .seq = i, .id = i, .size = MB};
        raw_send(fd, ask, sizeof(ask));
    }
    assert_int_equal(s->down, 1);
    assert_int_equal(s->down_err, -ENOBUFS);
    close(fd);
    world_free(w);
}

/* As if @c had come so much earlier. */
static void age(struct side *s, unsigned ms)
{
    struct conn *c;

    TAILQ_FOREACH(c, &inside(s)->lobby, link)
        c->since_ms -= ms;
    TAILQ_FOREACH(c, &inside(s)->conns, link)
        c->since_ms -= ms;
}

/* Who says nothing has to go soon; who said hello may wait for longer, but not for ever. */
static void nobody_waits_for_ever(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct hello h = hello_of(77);
    int silent = raw_connect(s), early = raw_connect(s), half;

    raw_send(early, &h, sizeof(h));
    pump_until(w, inside(s)->nlobby == 2 && s->f->stats.strangers == 1);
    age(s, 6000);
    assert_true(ended(w, silent));
    assert_int_equal(inside(s)->nlobby, 1);
    age(s, 25000);
    assert_true(ended(w, early));
    expect_raw(s, 1);
    half = raw_greeted(w, s, 1, 0, 1); /* and no ACCEPT */
    age(s, 11000);
    assert_true(ended(w, half));
    assert_int_equal(s->down, 0);
    close(raw_greeted(w, s, 1, 0, 1)); /* may come again */
    close(silent);
    close(early);
    close(half);
    world_free(w);
}

/* Who has to make room may have an event later in the same batch (for a sanitizer to see). */
static void evicted_with_an_event(void **state)
{
    enum { LOBBY = 128 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[LOBBY + 1];

    for (unsigned i = 0; i < LOBBY; i++) {
        fd[i] = raw_connect(s);
        pump_until(w, inside(s)->nlobby == i + 1);
    }
    fd[LOBBY] = raw_connect(s);
    raw_send(fd[0], "x", 1);
    pump_until(w, readable(fd[0]));
    assert_int_equal(inside(s)->nlobby, LOBBY);
    for (unsigned i = 0; i <= LOBBY; i++)
        close(fd[i]);
    world_free(w);
}

/* Strangers of one address that all say a hello make room, and not who waits beside them. */
static void a_full_lobby_keeps_other_addresses(void **state)
{
    enum { LOBBY = 128, MANY = 2 * LOBBY };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct hello mine = hello_of(1), theirs = hello_of(77);
    int early = raw_connect(s), fd[MANY];

    raw_send(early, &mine, sizeof(mine));
    pump_until(w, s->f->stats.strangers == 1);
    for (unsigned i = 0; i < MANY; i++) {
        fd[i] = raw_connect_from(s, "127.0.0.9");
        raw_send(fd[i], &theirs, sizeof(theirs));
        pump_until(w, s->f->stats.strangers == i + 2);
    }
    assert_int_equal(inside(s)->nlobby, LOBBY);
    assert_true(ended(w, fd[0]));
    expect_raw(s, 1);
    pump_until(w, readable(early));
    assert_int_equal(inside(s)->nlobby, LOBBY - 1); /* it was greeted */
    close(early);
    for (unsigned i = 0; i < MANY; i++)
        close(fd[i]);
    world_free(w);
}

/* A crowd that waits to be accepted does not turn away who comes behind it. */
static void a_crowd_may_queue(void **state)
{
    enum { CROWD = 500 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct sockaddr_in in = address_of(s);
    int fd[CROWD];

    for (unsigned i = 0; i < CROWD; i++) { /* nobody accepts: this thread is the engine's, too */
        fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(fd[i], (struct sockaddr *)&in, sizeof(in));
        assert_int_equal(poll(&(struct pollfd){.fd = fd[i], .events = POLLOUT}, 1, 900), 1);
    }
    raw_linked(w, s, 1);
    assert_int_equal(s->down, 0);
    for (unsigned i = 0; i < CROWD; i++)
        close(fd[i]);
    world_free(w);
}

/* A crowd that comes at once is let in one by one, and who waits for it does other things
 * meanwhile: the listener wakes nobody. */
static void a_crowd_is_let_in_at_a_pace(void **state)
{
    enum { CROWD = 40, ACCEPTED = 20 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    double begin = now();
    int fd[CROWD];

    for (unsigned i = 0; i < CROWD; i++)
        fd[i] = raw_connect(s);
    pump_until(w, inside(s)->nlobby >= ACCEPTED);
    assert_true(inside(s)->rest_ns >= 100000);
    assert_true(now() - begin >= (inside(s)->nlobby - 1) * 1e-9 * (double)inside(s)->rest_ns);
    pump_until(w, inside(s)->nlobby == CROWD);
    pump_until(w, !inside(s)->rest_ns);
    for (unsigned i = 0; i < CROWD; i++)
        close(fd[i]);
    world_free(w);
}

/* Who came before the message was. */
static void count_guests(void *arg, const struct fabric_msg *m)
{
    struct side *s = arg;

    s->taken = inside(s)->nlobby;
    drop_all(s, m);
}

static void messages_go_before_strangers(void **state)
{
    struct world *w = linked("tcp");
    struct side *s = &w->side[0];
    struct fabric_events ev = {count_guests, on_peer_down, s, NULL};
    struct pollfd p = {.fd = s->f->ops->fd(s->f), .events = POLLIN};
    struct sending out[2];
    int fd;

    put(&w->side[1], 0, 0, sizeof(struct head), 0, &out[0]);
    pump_until(w, s->msgs == 1);
    pump_until_quiet(w);
    inside(s)->ev = ev;
    assert_int_equal(s->f->ops->arm(s->f), 0); /* so all are looked at */
    fd = raw_connect(s);
    assert_int_equal(poll(&p, 1, 300000), 1);
    put(&w->side[1], 0, 1, sizeof(struct head), 0, &out[1]);
    for (unsigned i = 0; i < 1000 && s->msgs < 2; i++) {
        w->side[1].f->ops->progress(w->side[1].f);
        poll(NULL, 0, 1);
        s->f->ops->progress(s->f);
    }
    assert_int_equal(s->msgs, 2);
    assert_int_equal(s->taken, 0);
    pump_until(w, inside(s)->nlobby == 1);
    close(fd);
    world_free(w);
    free_sendings(out, 2);
}

/* Who has to make room, or was silent for too long, is forgotten by the kernel, too. */
static void who_is_given_up_leaves_nothing(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd = raw_connect(s);
    char byte;

    pump_until(w, inside(s)->nlobby == 1);
    age(s, 6000);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &byte, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    close(fd);
    world_free(w);
}

static void limit_files(rlim_t n, struct rlimit *ret_before)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, ret_before), 0);
    limit = *ret_before;
    limit.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Without descriptors nobody can be accepted, which must not keep us awake; later he can. Nor can
 * we connect, which is said at once. */
static void out_of_descriptors(void **state)
{
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    struct pollfd p = {.fd = s->f->ops->fd(s->f), .events = POLLIN};
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd = raw_connect(s), next = dup(fd), asleep = 0;
    struct rlimit before;

    close(next);
    limit_files((rlim_t)next, &before);
    pump_until(w, inside(s)->rest_ns);
    for (unsigned i = 0; i < 100 && !asleep; i++) { /* a tick may come in between */
        turn(w);
        asleep = inside(s)->rest_ns && s->f->ops->arm(s->f) == 0 && poll(&p, 1, 0) == 0;
    }
    expect_listener(s, &a, 1);
    pump_until(w, s->down == 1);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_true(asleep);
    assert_int_equal(s->down_err, -EMFILE);
    pump_until(w, inside(s)->nlobby == 1 && !inside(s)->rest_ns);
    close(fd);
    close(listener);
    world_free(w);
}

/* Strangers do not use up the descriptors that a peer needs. */
static void strangers_leave_descriptors(void **state)
{
    enum { STRANGERS = 20 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd[STRANGERS], peer, most;
    struct rlimit before;

    for (unsigned i = 0; i < STRANGERS; i++)
        fd[i] = raw_connect(s);
    pump_until(w, inside(s)->nlobby == STRANGERS);
    peer = raw_connect(s);
    most = dup(peer);
    close(most);
    limit_files((rlim_t)most, &before);
    pump_until(w, readable(fd[0])); /* the oldest had to go */
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(inside(s)->nlobby, STRANGERS);
    for (unsigned i = 0; i < STRANGERS; i++)
        close(fd[i]);
    close(peer);
    world_free(w);
}

/* A turn reads only so much of one peer, however much there is: others have their turn. */
static void one_peer_does_not_hold_up_a_turn(void **state)
{
    enum { A_TURN = 256 << 10 };
    struct world *w = world_new("tcp", 1);
    struct side *s = &w->side[0];
    int fd = raw_linked(w, s, 1), room = 4 * MB;
    struct fabric_events ev = {drop_all, on_peer_down, s, NULL};
    struct frame f = {.type = FRAME_MSG};
    ssize_t sent = sizeof(f);
    int queued = 0;

    inside(s)->ev = ev;
    pump_until(w, inside(s)->nopen == 1);
    setsockopt(TAILQ_FIRST(&inside(s)->conns)->fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    for (; f.seq < 4 * MB / sizeof(f) && sent == sizeof(f); f.seq++)
        sent = send(fd, &f, sizeof(f), MSG_DONTWAIT | MSG_NOSIGNAL);
    ioctl(TAILQ_FIRST(&inside(s)->conns)->fd, FIONREAD, &queued);
    if (queued < 2 * A_TURN)
        skip(); /* not ours to say how much a socket holds */
    s->f->ops->progress(s->f);
    assert_true(s->msgs > 0 && s->msgs <= A_TURN / sizeof(f));
    close(fd);
    world_free(w);
}

/* Numbers of messages and of asked bodies wrap around. */
static void numbers_wrap(void **state)
{
    enum { N = 40 };
    static const char *const kinds[] = {"tcp", "tcp x 3"};

    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        struct world *w = linked(kinds[k]);
        struct sending out[N];

        put(&w->side[0], 1, 0, 8, 0, &out[0]);
        pump_until(w, w->side[1].msgs == 1);
        for (unsigned i = 0; i < 2; i++) {
            struct tcp_peer *peer = inside(&w->side[i])->slot[1 - i];

            assert_int_equal(peer->state, PEER_UP);
            peer->seq_out = peer->seq_in = peer->next_id = UINT32_MAX - N / 2;
        }
        for (unsigned i = 1; i < N; i++)
            put(&w->side[0], 1, i, 8, i % 3 ? MB / 4 : 50000, &out[i]);
        pump_until(w, count_done(out, N) == N && w->side[1].taken == N - 1);
        assert_int_equal(w->side[1].bad_order + w->side[1].bad_bytes + w->side[1].down, 0);
        assert_true(inside(&w->side[1])->slot[0]->seq_in < N);
        free_sendings(out, N);
        world_free(w);
    }
}

int run_link_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connects_again),
        cmocka_unit_test(each_channel_connects_again),
        cmocka_unit_test(deleted_while_greeting),
        cmocka_unit_test(deleted_while_failing),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(half_a_frame_and_gone),
        cmocka_unit_test(messages_wait_for_all_channels),
        cmocka_unit_test(parked_channel_breaks),
        cmocka_unit_test(parked_channel_resumes),
        cmocka_unit_test(asks_and_never_reads),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(evicted_with_an_event),
        cmocka_unit_test(a_full_lobby_keeps_other_addresses),
        cmocka_unit_test(a_crowd_may_queue),
        cmocka_unit_test(a_crowd_is_let_in_at_a_pace),
        cmocka_unit_test(messages_go_before_strangers),
        cmocka_unit_test(who_is_given_up_leaves_nothing),
        cmocka_unit_test(strangers_leave_descriptors),
        cmocka_unit_test(out_of_descriptors),
        cmocka_unit_test(one_peer_does_not_hold_up_a_turn),
        cmocka_unit_test(numbers_wrap),
    };

    return cmocka_run_group_tests_name("fabric tcp links", tests, NULL, NULL);
}
