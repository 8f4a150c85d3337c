/* test_closer.c - closer.c: one user's slow descriptors hold up nobody else. */
#include "shm/util/closer.h"
#include "shm/util/held.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

/* A job that lasts until it is let go; what was done, in order. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
    unsigned inside; /* jobs that wait */
    unsigned done[256], ndone;
};

struct step {
    struct gate *gate;
    unsigned number;
};

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, {0}, 0}

static void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

/* Until @inside jobs wait and @done are done. */
static void gate_wait(struct gate *g, unsigned inside, unsigned done)
{
    pthread_mutex_lock(&g->lock);
    while (g->inside < inside || g->ndone < done)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void blocks(void *arg)
{
    struct gate *g = arg;

    pthread_mutex_lock(&g->lock);
    g->inside++;
    pthread_cond_broadcast(&g->cond);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->lock);
    g->inside--;
    pthread_mutex_unlock(&g->lock);
}

static void notes(void *arg)
{
    struct step *step = arg;
    struct gate *g = step->gate;

    pthread_mutex_lock(&g->lock);
    g->done[g->ndone++] = step->number;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static void until_idle(struct closer *c, uint32_t uid)
{
    while (closer_pending(c, uid))
        poll(NULL, 0, 1);
}

static void jobs_of_a_user_are_done_in_order(void **state)
{
    struct closer *c = NULL;
    struct gate g = GATE;
    struct step steps[200];

    assert_int_equal(closer_new(&c), 0);
    assert_int_equal(closer_call(c, 1, blocks, &g), 0);
    gate_wait(&g, 1, 0);
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++) {
        steps[i] = (struct step){&g, i};
        assert_int_equal(closer_call(c, 1, notes, &steps[i]), 0);
    }
    assert_int_equal(closer_pending(c, 1), 201);
    assert_int_equal(closer_pending(c, 2), 0);
    assert_int_equal(g.ndone, 0);
    gate_open(&g);
    gate_wait(&g, 0, 200);
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++)
        assert_int_equal(g.done[i], i);
    until_idle(c, 1);
    closer_free(c);
}

/* Also when the uids fall into one bucket, and when more users come than threads are there. */
static void a_user_who_blocks_holds_up_nobody(void **state)
{
    struct closer *c = NULL;
    struct gate stuck = GATE, g = GATE;
    struct step steps[40];

    assert_int_equal(closer_new(&c), 0);
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(closer_call(c, i * 256, blocks, &stuck), 0);
    gate_wait(&stuck, 30, 0); /* all at once: each has a thread */
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++) {
        steps[i] = (struct step){&g, i};
        assert_int_equal(closer_call(c, 1000000 + i % 4, notes, &steps[i]), 0);
    }
    gate_wait(&g, 0, 40);
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(closer_pending(c, i * 256), 1);
    gate_open(&stuck);
    for (unsigned i = 0; i < 30; i++)
        until_idle(c, i * 256);
    closer_free(c);
}

/* One user has one thread, however many jobs. */
static void a_user_takes_one_thread(void **state)
{
    struct closer *c = NULL;
    struct gate stuck = GATE, g = GATE;
    struct step step = {&g, 7};

    assert_int_equal(closer_new(&c), 0);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(closer_call(c, 1, blocks, &stuck), 0);
    gate_wait(&stuck, 1, 0);
    assert_int_equal(closer_call(c, 2, notes, &step), 0);
    gate_wait(&g, 0, 1);
    assert_int_equal(stuck.inside, 1);
    gate_open(&stuck);
    until_idle(c, 1);
    closer_free(c);
}

/* With all 64 threads stuck the next user waits, and is served as soon as one is free. */
static void more_stuck_users_than_threads(void **state)
{
    struct closer *c = NULL;
    struct gate stuck = GATE, one = GATE, g = GATE;
    struct step step = {&g, 7};

    assert_int_equal(closer_new(&c), 0);
    for (unsigned i = 1; i < 64; i++)
        assert_int_equal(closer_call(c, i, blocks, &stuck), 0);
    assert_int_equal(closer_call(c, 64, blocks, &one), 0);
    gate_wait(&stuck, 63, 0);
    gate_wait(&one, 1, 0);
    assert_int_equal(closer_call(c, 65, notes, &step), 0);
    assert_int_equal(closer_pending(c, 65), 1);
    gate_open(&one);
    gate_wait(&g, 0, 1);
    gate_open(&stuck);
    for (unsigned i = 1; i < 66; i++)
        until_idle(c, i);
    closer_free(c);
}

static void free_does_not_wait(void **state)
{
    struct closer *c = NULL;
    static struct gate stuck = GATE, g = GATE; /* threads are in there still when we are done */
    struct step step = {&g, 7};

    assert_int_equal(closer_new(&c), 0);
    assert_int_equal(closer_call(c, 1, blocks, &stuck), 0);
    assert_int_equal(closer_call(c, 1, notes, &step), 0);
    gate_wait(&stuck, 1, 0);
    assert_null(closer_free(c));
    gate_open(&stuck);
    gate_wait(&g, 0, 1); /* what was queued is done still */
    assert_null(closer_free(NULL));
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void sockets_are_ended_at_once_and_closed_later(void **state)
{
    struct closer *c = NULL;
    struct gate stuck = GATE;
    int pair[2];
    char byte;

    assert_int_equal(closer_new(&c), 0);
    assert_int_equal(closer_call(c, 1, blocks, &stuck), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    errno = EXDEV;
    assert_int_equal(closer_sock(c, 1, pair[0]), 0);
    assert_int_equal(errno, EXDEV);
    assert_int_equal(read(pair[1], &byte, 1), 0);
    assert_true(is_open(pair[0]));
    gate_open(&stuck);
    until_idle(c, 1);
    assert_false(is_open(pair[0]));
    close(pair[1]);
    closer_free(c);
}

/* A TCP socket whose close waits for data that nobody reads, 1,000 s if it may. */
static int lingers(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger linger = {.l_onoff = 1, .l_linger = 1000};
    socklen_t len = sizeof(to);
    static char data[1 << 16];
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(bind(l, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&to, &len), 0);
    (void)connect(fd, (struct sockaddr *)&to, sizeof(to));
    assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1), 1);
    while (send(fd, data, sizeof(data), 0) > 0)
        ;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    /* the listening socket is kept: without it the connection is reset, and nothing lingers */
    return fd;
}

static void a_socket_that_lingers_is_interrupted(void **state)
{
    struct closer *c = NULL;

    assert_int_equal(closer_new(&c), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(closer_fd(c, 1, lingers()), 0);
    until_idle(c, 1); /* 3,000 s otherwise */
    closer_free(c);
}

/* There is always room for a message full of descriptors, or it is not received. */
static void room_for_more(void **state)
{
    struct rlimit old, limit;
    struct closer *c = NULL;
    struct gate stuck = GATE;

    getrlimit(RLIMIT_NOFILE, &old);
    limit = old;
    for (rlim_t n = 300; n <= MIN(old.rlim_max, (rlim_t)20000); n += 100) {
        limit.rlim_cur = n;
        setrlimit(RLIMIT_NOFILE, &limit);
        assert_in_range(closer_reserve(), 0, n - 253);
    }
    assert_int_equal(closer_new(&c), 0);
    assert_true(closer_room(c, 1));
    closer_call(c, 1, blocks, &stuck);
    for (unsigned i = 1; closer_room(c, 1); i++)
        closer_call(c, 1, blocks, &stuck);
    assert_true(closer_pending(c, 1) <= 257); /* of one user so many, */
    for (unsigned uid = 2; closer_room(c, uid); uid++)
        for (unsigned i = 0; closer_room(c, uid); i++)
            closer_call(c, uid, blocks, &stuck);
    assert_false(closer_room(c, 1000)); /* of all so many that 253 more have room */
    setrlimit(RLIMIT_NOFILE, &old);
    gate_open(&stuck);
    for (unsigned uid = 1; uid < 10; uid++)
        until_idle(c, uid);
    assert_true(closer_room(c, 1));
    closer_free(c);
}

static void without_a_closer_it_is_done_at_once(void **state)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gate g = GATE;
    struct step step = {&g, 7};

    assert_int_equal(closer_fd(NULL, 1, fd), 0);
    assert_false(is_open(fd));
    assert_int_equal(closer_call(NULL, 1, notes, &step), 0);
    assert_int_equal(g.ndone, 1);
    assert_int_equal(closer_pending(NULL, 1), 0);
}

/* "With the lock held" is an assert in every build. */
static void who_does_not_hold_the_lock_is_stopped(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    for (unsigned held = 0; held < 2; held++) {
        int status;
        pid_t pid = fork();

        if (pid == 0) {
            signal(SIGABRT, SIG_DFL);
            close(STDERR_FILENO);
            if (held)
                pthread_mutex_lock(&lock);
            assert_held(&lock);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(held ? WIFEXITED(status) : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_hold_the_lock_is_stopped),
        cmocka_unit_test(jobs_of_a_user_are_done_in_order),
        cmocka_unit_test(a_user_who_blocks_holds_up_nobody),
        cmocka_unit_test(a_user_takes_one_thread),
        cmocka_unit_test(more_stuck_users_than_threads),
        cmocka_unit_test(free_does_not_wait),
        cmocka_unit_test(sockets_are_ended_at_once_and_closed_later),
        cmocka_unit_test(a_socket_that_lingers_is_interrupted),
        cmocka_unit_test(room_for_more),
        cmocka_unit_test(without_a_closer_it_is_done_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
