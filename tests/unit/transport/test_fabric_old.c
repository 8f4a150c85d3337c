/* test_fabric_old.c - peers of the version before, which say their token and cannot encrypt: the
 * test plays one by hand, with bytes that it puts together itself. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "tests/unit/transport/fabric_raw.h"

#include <arpa/inet.h>

/* As commits before encryption have them. */
struct hello_4 {
    uint32_t magic;
    uint16_t version, channel, channels, express, of, attempt;
    uint8_t token[32];
    uint64_t got;
};

static const uint32_t accept_4 = 0x636d6441;

/* That of the test to the side; @ours: what the side has to show. */
static void tokens(unsigned incarnation, bool listens, uint8_t its[32], uint8_t ours[32])
{
    token(listens ? ours : its, HOSTILE, 0, incarnation);
    token(listens ? its : ours, 0, HOSTILE, incarnation);
}

static struct hello_4 hello_4(unsigned incarnation, bool listens)
{
    struct hello_4 h = {.magic = HELLO_MAGIC, .version = 4, .channels = 1};
    uint8_t ours[32];

    tokens(incarnation, listens, ours, h.token);
    return h;
}

/* What such a node says over TLS. */
static struct tcp_addr address_4(const struct side *s)
{
    struct tcp_addr a;

    memcpy(&a, s->addr, sizeof(a));
    a.version = 4;
    a.wants = a.newest = 0;
    return a;
}

static int add_4(struct side *s, const struct tcp_addr *a, unsigned incarnation, bool listens)
{
    uint8_t its[32], ours[32];

    tokens(incarnation, listens, its, ours);
    s->f->ops->peer_del(s->f, HOSTILE);
    return s->f->ops->peer_add(s->f, HOSTILE, a, sizeof(*a), its, ours);
}

static void check_answer(int fd, unsigned incarnation, bool listens, struct hello_4 *ret)
{
    uint8_t its[32], ours[32];

    tokens(incarnation, listens, its, ours);
    assert_int_equal(recv(fd, ret, sizeof(*ret), MSG_WAITALL), sizeof(*ret));
    assert_int_equal(ret->magic, HELLO_MAGIC);
    assert_int_equal(ret->version, 4);
    assert_memory_equal(ret->token, its, 32);
}

/* A message from the side arrives in the clear, and one of the test there. */
static void speak(struct world *w, int fd, uint32_t seq)
{
    struct side *s = &w->side[0];
    struct frame f = {0};
    struct head h = {0};
    struct sending out;
    unsigned msgs = s->msgs;

    put(s, HOSTILE, seq, 8, 0, &out);
    pump_until(w, out.done == 1 && readable(fd));
    assert_int_equal(recv(fd, &f, sizeof(f), MSG_WAITALL), sizeof(f));
    assert_int_equal(f.type, FRAME_MSG);
    assert_int_equal(recv(fd, &h, 8, MSG_WAITALL), 8);
    assert_int_equal(h.seq, seq);
    raw_head(fd, FRAME_MSG, seq, 0);
    pump_until(w, s->msgs == msgs + 1);
    assert_int_equal(s->down + s->bad_order, 0);
    free_sendings(&out, 1);
}

static void it_comes_and_comes_again(void **state)
{
    struct world *w = world_new("tcp mend auto", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a = address_4(s);
    struct hello_4 h = hello_4(1, false), answer;
    int fd = raw_connect(s);

    send(fd, &h, 20, MSG_NOSIGNAL);
    turn(w);
    send(fd, (uint8_t *)&h + 20, sizeof(h) - 20, MSG_NOSIGNAL);
    turn(w); /* nobody's yet */
    assert_false(readable(fd));
    assert_int_equal(add_4(s, &a, 1, false), 0);
    pump_until(w, readable(fd));
    check_answer(fd, 1, false, &answer);
    raw_send(fd, &accept_4, sizeof(accept_4));
    speak(w, fd, 0);
    raw_reset(fd);
    fd = raw_connect(s);
    h.of = HELLO_MENDS;
    h.attempt = 1;
    h.got = sizeof(struct frame) + 8;
    send(fd, &h, sizeof(h), MSG_NOSIGNAL);
    pump_until(w, readable(fd));
    check_answer(fd, 1, false, &answer);
    assert_int_equal(answer.of, HELLO_MENDS);
    assert_int_equal(answer.got, sizeof(struct frame) + 8);
    raw_send(fd, &accept_4, sizeof(accept_4));
    speak(w, fd, 1);
    close(fd);
    world_free(w);
}

static void it_is_connected_to(void **state)
{
    struct world *w = world_new("tcp auto", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello_4 h = hello_4(1, true), asked;
    uint32_t accept_word = 0;

    a.version = 4;
    a.wants = a.newest = 0;
    assert_int_equal(add_4(s, &a, 1, true), 0);
    pump_until(w, readable(listener));
    fd = accept(listener, NULL, NULL);
    pump_until(w, readable(fd));
    check_answer(fd, 1, true, &asked);
    assert_int_equal(asked.of, HELLO_BEGINS);
    send(fd, &h, sizeof(h), MSG_NOSIGNAL);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &accept_word, sizeof(accept_word), MSG_WAITALL), 4);
    assert_int_equal(accept_word, accept_4);
    speak(w, fd, 0);
    close(fd);
    close(listener);
    world_free(w);
}

/* A stream that is given up here: such a peer understands that, too. */
static void it_is_told_that_a_stream_is_gone(void **state)
{
    struct world *w = world_new("tcp mend auto", 1);
    struct hello_4 h = hello_4(1, false), answer;
    int fd = raw_connect(&w->side[0]);

    h.of = HELLO_MENDS;
    send(fd, &h, sizeof(h), MSG_NOSIGNAL);
    pump_until(w, readable(fd));
    assert_int_equal(recv(fd, &answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_int_equal(answer.version, 4);
    assert_int_equal(answer.of, HELLO_UNKNOWN);
    close(fd);
    world_free(w);
}

/* The hello @h of @len bytes gets no answer, and the connection ends. */
static void not_answered(struct world *w, const void *h, size_t len)
{
    int fd = raw_connect(&w->side[0]);
    uint8_t byte;

    send(fd, h, len, MSG_NOSIGNAL);
    pump_until(w, readable(fd));
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

/* What a peer speaks is what its address says: nobody on the way makes it say less, or more. */
static void nobody_else_says_what_a_peer_speaks(void **state)
{
    struct world *w = world_new("tcp auto", 1);
    struct side *s = &w->side[0];
    struct hello_4 old = hello_4(1, false);
    struct hello young = hello_of(2);
    struct tcp_addr a = address_4(s);
    unsigned strangers = (unsigned)inside(s)->base.stats.strangers;
    int fd;

    expect_raw(s, 1); /* of today */
    fd = raw_connect(s);
    send(fd, &old, sizeof(old), MSG_NOSIGNAL);
    pump_until(w, inside(s)->base.stats.strangers == strangers + 1);
    assert_false(readable(fd));
    close(fd);
    assert_int_equal(add_4(s, &a, 2, false), 0);
    fd = raw_connect(s);
    raw_send(fd, &young, sizeof(young));
    pump_until(w, inside(s)->base.stats.strangers == strangers + 2);
    assert_false(readable(fd));
    close(fd);
    assert_int_equal(inside(s)->nopen, 0);
    world_free(w);
}

/* One that we connect to answers with less than its address says. */
static void an_answer_of_less_is_a_strangers(void **state)
{
    struct world *w = world_new("tcp auto", 1);
    struct side *s = &w->side[0];
    struct tcp_addr a;
    int listener = raw_listen(s, &a), fd;
    struct hello asked;
    struct {
        struct hello_4 h;
        uint8_t more[sizeof(struct hello) - sizeof(struct hello_4)];
    } less = {.h = hello_4(1, true)};
    uint8_t byte;

    expect_listener(s, &a, 1);
    fd = raw_come(w, listener, &asked);
    assert_int_equal(asked.version, HELLO_VERSION);
    send(fd, &less, sizeof(less), MSG_NOSIGNAL);
    pump_until(w, readable(fd));
    assert_true(recv(fd, &byte, 1, 0) <= 0); /* and no ACCEPT */
    assert_int_equal(inside(s)->nopen, 0);
    close(fd);
    close(listener);
    world_free(w);
}

/* @kind: of the side, which is on loopback. @ip: of the peer. */
static void refused_unless(const char *kind, const char *ip, int want)
{
    struct world *w = world_new(kind, 1);
    struct side *s = &w->side[0];
    struct tcp_addr a = address_4(s);

    memset(a.ip, 0, sizeof(a.ip));
    assert_int_equal(inet_pton(AF_INET, ip, a.ip), 1);
    assert_int_equal(add_4(s, &a, 1, false), want);
    world_free(w);
}

static void it_comes_where_data_may_go_in_the_clear(void **state)
{
    refused_unless("tcp auto", "127.0.0.9", 0);
    refused_unless("tcp auto", "10.0.0.2", -EPERM);
    refused_unless("tcp auto trusted", "10.0.0.2", 0);
    refused_unless("tcp", "127.0.0.9", 0); /* off */
    refused_unless("tcp sealed", "127.0.0.9", -EPERM);
    refused_unless("tcp sealed trusted", "127.0.0.9", -EPERM);
}

/* Such a peer looks at @version alone, and takes no other. */
static void addresses_say_who_may_come(void **state)
{
    static const struct {
        const char *kind;
        unsigned version;
    } cases[] = {{"tcp auto", 4}, {"tcp", 4}, {"tcp sealed", 5}, {"tcp sealed trusted", 5}};

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct world *w = world_new(cases[i].kind, 1);
        struct tcp_addr a;

        memcpy(&a, w->side[0].addr, sizeof(a));
        assert_int_equal(a.version, cases[i].version);
        assert_int_equal(a.newest, 5);
        world_free(w);
    }
}

/* A side that lets no such peer in does not wait for one either. */
static void it_does_not_wait_where_it_may_not_come(void **state)
{
    struct world *w = world_new("tcp sealed", 1);
    struct hello_4 h = hello_4(1, false);

    not_answered(w, &h, sizeof(h));
    world_free(w);
}

/* Those that come after us say what they understand, as we do. */
static void versions_to_come(void **state)
{
    static const struct {
        unsigned version, newest;
        int want, speaks;
    } cases[] = {{5, 6, 0, 5},
                 {4, 6, 0, 5},
                 {3, 4, 0, 4},
                 {6, 6, -EPROTONOSUPPORT, 0},
                 {6, 0, -EPROTONOSUPPORT, 0},
                 {3, 3, -EPROTONOSUPPORT, 0},
                 {3, 0, -EPROTONOSUPPORT, 0},
                 {5, 4, -EPROTONOSUPPORT, 0}};
    struct world *w = world_new("tcp auto", 1);
    struct side *s = &w->side[0];

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct tcp_addr a = address_4(s);

        a.version = (uint16_t)cases[i].version;
        a.newest = (uint8_t)cases[i].newest;
        assert_int_equal(add_4(s, &a, i, false), cases[i].want);
        if (!cases[i].want)
            assert_int_equal(inside(s)->slot[HOSTILE]->version, cases[i].speaks);
    }
    world_free(w);
}

int run_old_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_and_comes_again),
        cmocka_unit_test(it_is_connected_to),
        cmocka_unit_test(it_is_told_that_a_stream_is_gone),
        cmocka_unit_test(nobody_else_says_what_a_peer_speaks),
        cmocka_unit_test(an_answer_of_less_is_a_strangers),
        cmocka_unit_test(it_comes_where_data_may_go_in_the_clear),
        cmocka_unit_test(addresses_say_who_may_come),
        cmocka_unit_test(it_does_not_wait_where_it_may_not_come),
        cmocka_unit_test(versions_to_come),
    };

    return cmocka_run_group_tests_name("fabric tcp, peers of the version before", tests, NULL,
                                       NULL);
}
