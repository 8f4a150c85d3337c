/* test_msg_io.c - messages and descriptors over a socket pair: whole, cut, wrong and late. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "tests/lib/frames.h"
#include "tests/lib/heap_has.h"
#include "tests/unit/shm/codec_samples.h"

struct pair {
    int a, b;
};

static int setup(void **state)
{
    struct pair *p = malloc(sizeof(*p));
    int s[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    p->a = s[0];
    p->b = s[1];
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct pair *p = *state;

    close_fdp(&p->a);
    close_fdp(&p->b);
    free(p);
    return 0;
}

static unsigned open_fds(void)
{
    unsigned n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int recv_one(int sock, struct msg *msg, int *fds, unsigned max, unsigned *nfds,
                    int64_t deadline, const char **why)
{
    *why = "not set";
    *nfds = 99;
    return msg_recv_fd(sock, msg, fds, max, nfds, deadline, why);
}

static void several_in_a_row(void **state)
{
    struct pair *p = *state;
    struct msg out, in;
    const char *why;
    unsigned nfds;

    for (int i = 0; i < SAMPLE_TYPES; i++) {
        sample_make(sample_types[i], SAMPLE_LARGE, &out);
        assert_int_equal(msg_send_fd(p->a, &out, NULL, 0, -1), 0);
        msg_fini(&out);
    }
    for (int i = 0; i < SAMPLE_TYPES; i++) {
        sample_make(sample_types[i], SAMPLE_LARGE, &out);
        assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), 0);
        assert_int_equal(nfds, 0);
        assert_true(sample_equal(&in, &out));
        msg_fini(&out);
        msg_fini(&in);
    }
}

static void descriptors_ride_along(void **state)
{
    struct pair *p = *state;
    struct msg out, in;
    struct stat was, is;
    const char *why;
    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDWR);
    int fds[2] = {null, zero}, got[2] = {-1, -1};
    unsigned nfds, before = open_fds();

    sample_make(MSG_JOINED, SAMPLE_LARGE, &out);
    assert_int_equal(msg_send_fd(p->a, &out, fds, 2, -1), 0);
    assert_int_equal(recv_one(p->b, &in, got, 2, &nfds, -1, &why), 0);
    assert_int_equal(nfds, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fstat(fds[i], &was) | fstat(got[i], &is), 0);
        assert_int_equal(was.st_rdev, is.st_rdev);
        assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
        close(got[i]);
    }
    msg_fini(&in);
    /* Surplus ones are closed. */
    assert_int_equal(msg_send_fd(p->a, &out, fds, 2, -1), 0);
    assert_int_equal(recv_one(p->b, &in, got, 1, &nfds, -1, &why), 0);
    assert_int_equal(nfds, 1);
    close(got[0]);
    msg_fini(&in);
    /* All of them, when none is wanted. */
    assert_int_equal(msg_send_fd(p->a, &out, fds, 2, -1), 0);
    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), 0);
    assert_int_equal(nfds, 0);
    msg_fini(&in);
    assert_int_equal(open_fds(), before);
    assert_int_equal(msg_send_fd(p->a, &out, fds, 100, -1), -EINVAL);
    msg_fini(&out);
    close(null);
    close(zero);
}

/* A malformed frame with two descriptors: refused, and none is kept. */
static void refused_descriptors_are_closed(void **state)
{
    struct pair *p = *state;
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(2 * sizeof(int))];
    } space = {.buf = {0}};
    struct iovec iov = {frame_bytes("cd\0\0\2\0\0\0??", 10), 10};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = space.buf,
                        .msg_controllen = sizeof(space.buf)};
    unsigned before = open_fds(), nfds;
    int fds[2] = {0, 0}, got[2];
    const char *why;
    struct msg in;

    CMSG_FIRSTHDR(&mh)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&mh)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&mh)->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), fds, sizeof(fds));
    assert_int_equal(sendmsg(p->a, &mh, 0), 10);
    free(iov.iov_base);
    assert_int_equal(recv_one(p->b, &in, got, 2, &nfds, -1, &why), -EPROTO);
    assert_string_equal(why, "malformed message");
    assert_int_equal(open_fds(), before);
}

static void write_bytes(int fd, const char *bytes, size_t len)
{
    uint8_t *frame = frame_bytes(bytes, len);

    assert_int_equal(write(fd, frame, len), (ssize_t)len);
    free(frame);
}

static void wrong_bytes(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        int r;
        const char *why;
    } cases[] = {
        {"G", 1, -EPROTO, "not a commd frame"},
        {"cd\1", 3, -EPROTONOSUPPORT, "another version of commd's protocol"},
        {"cd\0\0\1\0\x80\0", 8, -EPROTO, "frame too large"},
        {"cd\0\0\0\0\0\0", 8, -EPROTO, "malformed message"},
    };
    const char *why;
    unsigned nfds;
    struct msg in;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pair *p = *state;

        /* Nothing follows: it must not wait for a whole header. */
        write_bytes(p->a, cases[i].bytes, cases[i].len);
        assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), cases[i].r);
        assert_string_equal(why, cases[i].why);
        teardown(state);
        setup(state);
    }
}

static void the_end(void **state)
{
    struct pair *p = *state;
    struct msg in, out;
    const char *why;
    unsigned nfds;

    write_bytes(p->a, "cd\0\0\7\0\0\0abc", 11); /* and no more */
    close_fdp(&p->a);
    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), -ECONNRESET);
    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), -ECONNRESET);
    sample_make(MSG_PING, SAMPLE_SMALL, &out);
    assert_int_equal(msg_send_fd(p->b, &out, NULL, 0, -1), -ECONNRESET); /* and no SIGPIPE */
    out.ping.pong = 2;
    assert_int_equal(msg_send_fd(p->b, &out, NULL, 0, -1), -EINVAL);
    assert_int_equal(msg_recv_fd(-1, &in, NULL, 0, &nfds, -1, &why), -EBADF);
}

static void deadlines(void **state)
{
    struct pair *p = *state;
    struct msg out, in;
    const char *why;
    unsigned nfds;
    int r;

    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, 0, &why), -ETIMEDOUT);
    /* What is there already is delivered, late or not. */
    sample_make(MSG_PING, SAMPLE_SMALL, &out);
    assert_int_equal(msg_send_fd(p->a, &out, NULL, 0, 0), 0);
    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, 0, &why), 0);
    msg_fini(&in);
    do /* until the socket is full */
        r = msg_send_fd(p->a, &out, NULL, 0, 0);
    while (r == 0);
    assert_int_equal(r, -ETIMEDOUT);
}

static void *send_huge(void *arg)
{
    struct pair *p = arg;
    struct msg out;
    int r;

    sample_make(MSG_COMMIT, SAMPLE_HUGE, &out);
    r = msg_send_fd(p->a, &out, (int[]){p->a}, 1, -1);
    msg_fini(&out);
    return (void *)(intptr_t)r;
}

/* Larger than any socket buffer, so both sides have to continue; the descriptor comes once. */
static void larger_than_the_buffer(void **state)
{
    struct pair *p = *state;
    struct msg in, want;
    const char *why;
    int fds[4], small = 4096;
    unsigned nfds;
    pthread_t t;
    void *r;

    setsockopt(p->a, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    assert_int_equal(pthread_create(&t, NULL, send_huge, p), 0);
    assert_int_equal(recv_one(p->b, &in, fds, 4, &nfds, -1, &why), 0);
    pthread_join(t, &r);
    assert_null(r);
    assert_int_equal(nfds, 1);
    close(fds[0]);
    sample_make(MSG_COMMIT, SAMPLE_HUGE, &want);
    assert_true(sample_equal(&in, &want));
    msg_fini(&want);
    msg_fini(&in);
}

static void send_and_recv(struct pair *p, struct msg *out, const uint8_t secret[32])
{
    const char *why;
    unsigned nfds;
    struct msg in;

    assert_int_equal(msg_send_fd(p->a, out, NULL, 0, -1), 0);
    assert_int_equal(heap_has(secret), 0);
    assert_int_equal(recv_one(p->b, &in, NULL, 0, &nfds, -1, &why), 0);
    assert_int_equal(in.type, out->type);
    msg_fini(&in);
    msg_fini(out);
    assert_int_equal(heap_has(secret), 0);
}

/* Of a message that was sent and taken, and of one that was decoded in memory from malloc(). */
static void no_secrets_stay_in_freed_memory(void **state)
{
    enum { MANY = 2000 };
    struct msg key = {.type = MSG_ENGINE_PEER_KEY}, hello;
    uint8_t secret[32], *kept;

    if (!heap_is_seen())
        skip();
    memset(secret, 0xc3, sizeof(secret));
    memset(key.engine_peer_key.secret, 0xc3, 32);
    key.engine_peer_key.engine = 1;
    hide(secret, sizeof(secret));
    send_and_recv(*state, &key, secret);
    sample_make(MSG_CLIENT_HELLO, SAMPLE_SMALL, &hello);
    free(hello.client_hello.kept);
    hello.client_hello.nkept = MANY;
    kept = malloc(MANY * sizeof(*hello.client_hello.kept));
    memset(kept, 1, MANY * sizeof(*hello.client_hello.kept));
    hello.client_hello.kept = (void *)kept;
    memset(hello.client_hello.resume, 0xc3, sizeof(hello.client_hello.resume));
    send_and_recv(*state, &hello, secret);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(several_in_a_row),
        T(descriptors_ride_along),
        T(refused_descriptors_are_closed),
        T(wrong_bytes),
        T(the_end),
        T(deadlines),
        T(larger_than_the_buffer),
        T(no_secrets_stay_in_freed_memory),
    };

    return cmocka_run_group_tests_name("msg_io", tests, NULL, NULL);
}
