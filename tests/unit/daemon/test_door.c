/* test_door.c - a port at which a crowd knocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "daemon/link/door.h"

enum { BUDGET = 4, CROWD = 10 };

struct house {
    struct event_base *base;
    struct door door;
    struct sock_addr addr;
    unsigned came, full;
    int fd[CROWD], guest[CROWD];
};

static void came(void *arg, int fd, const struct sock_addr *from)
{
    struct house *h = arg;

    assert_true(sock_is_loopback(from));
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    h->guest[h->came++] = fd;
}

static void full(void *arg)
{
    struct house *h = arg;

    h->full++;
}

static const struct door_ops ops = {BUDGET, 1, came, full};

static void house_init(struct house *h)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd;

    *h = (struct house){.base = event_base_new(), .addr.len = sizeof(in)};
    memcpy(&h->addr.sa, &in, sizeof(in));
    assert_int_equal(sock_listen(&h->addr, SOCK_QUEUE, &fd), 0);
    assert_true(sock_listens(fd, &h->addr));
    assert_int_equal(door_open(&h->door, h->base, fd, &ops, h), 0);
}

static void house_knock(struct house *h, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        h->fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_return_code(connect(h->fd[i], (const struct sockaddr *)&h->addr.sa, h->addr.len),
                           errno);
    }
}

static void house_fini(struct house *h, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(h->fd[i]);
    for (unsigned i = 0; i < h->came; i++)
        close(h->guest[i]);
    door_fini(&h->door);
    door_fini(&h->door); /* once more does nothing */
    event_base_free(h->base);
}

/* Some come in, then nobody until the timer has expired, whatever the loop does meanwhile. */
static void a_crowd_comes_in_at_a_pace(void **state)
{
    struct house h;

    house_init(&h);
    house_knock(&h, CROWD);
    for (unsigned come = BUDGET; come <= CROWD; come += BUDGET) {
        while (h.came < come) {
            assert_true(h.came == come - BUDGET);
            event_base_loop(h.base, EVLOOP_ONCE);
        }
        assert_int_equal(h.came, come);
        assert_false(event_pending(h.door.knock, EV_READ, NULL));
        assert_true(event_pending(h.door.rested, EV_TIMEOUT, NULL));
    }
    while (h.came < CROWD)
        event_base_loop(h.base, EVLOOP_ONCE);
    assert_true(event_pending(h.door.knock, EV_READ, NULL)); /* all are in */
    assert_int_equal(h.full, 0);
    house_fini(&h, CROWD);
}

static void nobody_comes_in_when_it_is_shut(void **state)
{
    struct house h;

    house_init(&h);
    house_knock(&h, CROWD);
    event_base_loop(h.base, EVLOOP_ONCE);
    assert_int_equal(h.came, BUDGET);
    door_shut(&h.door);                                            /* while it rests */
    assert_int_equal(event_base_loop(h.base, EVLOOP_NONBLOCK), 1); /* nothing is waited for */
    assert_int_equal(h.came, BUDGET);
    house_fini(&h, CROWD);
}

/* Whoever knocks is shown out, at the same pace. */
static void no_descriptor_is_left(void **state)
{
    struct rlimit old, none;
    struct house h;
    char byte;

    house_init(&h);
    house_knock(&h, BUDGET);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){(rlim_t)h.fd[BUDGET - 1] + 1, old.rlim_max};
    assert_return_code(setrlimit(RLIMIT_NOFILE, &none), errno);
    while (h.full < BUDGET)
        event_base_loop(h.base, EVLOOP_ONCE);
    assert_return_code(setrlimit(RLIMIT_NOFILE, &old), errno);
    assert_int_equal(h.came, 0);
    assert_int_equal(h.full, BUDGET);
    assert_false(event_pending(h.door.knock, EV_READ, NULL));
    for (unsigned i = 0; i < BUDGET; i++)
        assert_int_equal(recv(h.fd[i], &byte, 1, 0), 0);
    house_fini(&h, BUDGET);
}

/* What does not go away by itself, such as a kernel without memory, does not make the loop spin. */
static void a_socket_that_fails(void **state)
{
    struct house h;

    house_init(&h);
    shutdown(h.door.fd, SHUT_RDWR); /* it is readable, and accept() fails */
    event_base_loop(h.base, EVLOOP_ONCE);
    assert_int_equal(h.full, 1);
    assert_false(event_pending(h.door.knock, EV_READ, NULL));
    while (h.full < 2) /* it is tried again */
        event_base_loop(h.base, EVLOOP_ONCE);
    house_fini(&h, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_comes_in_at_a_pace),
        cmocka_unit_test(nobody_comes_in_when_it_is_shut),
        cmocka_unit_test(no_descriptor_is_left),
        cmocka_unit_test(a_socket_that_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
