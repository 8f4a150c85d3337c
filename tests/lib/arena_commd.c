/* arena_commd.c - see arena_commd.h. */
#include "tests/lib/arena_commd.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "tests/lib/cluster.h"

enum { MAX_ARENAS = 1024, MAX_SOCKETS = CLUSTER_MAX_RANKS };

struct arena_commd {
    pthread_t thread;
    unsigned n;
    int sock[MAX_SOCKETS]; /* owned */
    int stop;              /* eventfd */
    pthread_mutex_t lock;  /* what follows */
    enum arena_commd_behaviour behaviour;
    int gpu;         /* borrowed */
    unsigned halves; /* sessions to come of which only the client gets an end */
    arena_commd_give *service;
    void *service_arg;
    unsigned held, given;
    uint64_t arena[MAX_ARENAS];
    int fd[MAX_ARENAS];
};

static void forget(struct arena_commd *c, unsigned i)
{
    close_fdp(&c->fd[i]);
    c->held--;
    c->arena[i] = c->arena[c->held];
    c->fd[i] = c->fd[c->held];
}

static int fd_of(const struct arena_commd *c, uint64_t arena)
{
    for (unsigned i = 0; i < c->held; i++)
        if (c->arena[i] == arena)
            return c->fd[i];
    return -1;
}

static void answer(int sock, uint32_t req, int fd, bool fine)
{
    struct msg m = {.type = MSG_ARENA_ANSWER};

    m.arena_answer.req = req;
    m.arena_answer.cause = fine ? CAUSE_NONE : CAUSE_INVALID;
    if (msg_send_fd(sock, &m, &fd, fd >= 0, -1))
        abort();
}

static void give_session(struct arena_commd *c, int sock, uint32_t req)
{
    struct msg m = {.type = MSG_GPU_ANSWER};
    union {
        struct cmsghdr h;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {"", 1};
    struct msghdr hdr = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    int pair[2] = {-1, -1};

    if ((c->gpu >= 0 || c->service) && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        abort();
    for (unsigned i = 0; i < c->n && c->service; i++)
        if (c->sock[i] == sock)
            c->service(c->service_arg, i, steal_fd(&pair[1]));
    control.h.cmsg_level = SOL_SOCKET;
    control.h.cmsg_type = SCM_RIGHTS;
    control.h.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.h), &pair[1], sizeof(int));
    if (c->halves)
        c->halves--;
    else if (c->gpu >= 0 && sendmsg(c->gpu, &hdr, MSG_NOSIGNAL) < 0)
        close_fdp(&pair[0]);
    m.gpu_answer.req = req;
    m.gpu_answer.cause = pair[0] < 0 ? CAUSE_NO_DAEMON : CAUSE_NONE;
    if (msg_send_fd(sock, &m, &pair[0], pair[0] >= 0, -1))
        abort();
    close_fdp(&pair[0]);
    close_fdp(&pair[1]);
}

static void serve(struct arena_commd *c, int sock, const struct msg *m, int *fd)
{
    if (m->type == MSG_ARENA_ADD && *fd >= 0 && c->held < MAX_ARENAS) {
        c->arena[c->held] = m->arena_add.arena;
        c->fd[c->held++] = steal_fd(fd);
        answer(sock, m->arena_add.req, -1, true);
    } else if (m->type == MSG_GPU_ASK) {
        give_session(c, sock, m->gpu_ask.req);
    } else if (m->type == MSG_ARENA_DEL) {
        for (unsigned i = 0; i < c->held; i++)
            if (c->arena[i] == m->arena_del.arena)
                forget(c, i);
    } else if (m->type == MSG_ARENA_ASK && c->behaviour != ARENA_COMMD_SILENT) {
        int give = c->behaviour == ARENA_COMMD_GIVES ? fd_of(c, m->arena_ask.arena) : -1;

        c->given += give >= 0;
        answer(sock, m->arena_ask.req, give, give >= 0);
    }
}

/* False at the end of the stream. */
static bool one_message(struct arena_commd *c, int sock)
{
    _cleanup_(close_fdp) int fd = -1;
    struct msg m;
    const char *why;
    unsigned nfds;

    if (msg_recv_fd(sock, &m, &fd, 1, &nfds, -1, &why))
        return false;
    pthread_mutex_lock(&c->lock);
    serve(c, sock, &m, &fd);
    pthread_mutex_unlock(&c->lock);
    msg_fini(&m);
    return true;
}

static void *serve_all(void *arg)
{
    struct arena_commd *c = arg;
    struct pollfd p[MAX_SOCKETS + 1];

    for (unsigned i = 0; i < c->n; i++)
        p[i] = (struct pollfd){.fd = c->sock[i], .events = POLLIN};
    p[c->n] = (struct pollfd){.fd = c->stop, .events = POLLIN};
    while (poll(p, c->n + 1, -1) >= 0 && !p[c->n].revents)
        for (unsigned i = 0; i < c->n; i++)
            if (p[i].revents && !one_message(c, p[i].fd))
                p[i].fd = -1;
    return NULL;
}

struct arena_commd *arena_commd_new(struct commd_context *const *ctx, unsigned n)
{
    struct arena_commd *c = calloc(1, sizeof *c);

    c->n = n;
    c->gpu = -1;
    c->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&c->lock, NULL);
    for (unsigned i = 0; i < n; i++) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
            abort();
        ctx[i]->sock = pair[0];
        c->sock[i] = pair[1];
    }
    if (c->stop < 0 || pthread_create(&c->thread, NULL, serve_all, c))
        abort();
    return c;
}

struct arena_commd *arena_commd_free(struct arena_commd *c)
{
    uint64_t one = 1;

    if (write(c->stop, &one, sizeof one) != sizeof one)
        abort();
    pthread_join(c->thread, NULL);
    for (unsigned i = 0; i < c->n; i++)
        close(c->sock[i]);
    while (c->held)
        forget(c, 0);
    close(c->stop);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return NULL;
}

void arena_commd_set(struct arena_commd *c, enum arena_commd_behaviour behaviour)
{
    pthread_mutex_lock(&c->lock);
    c->behaviour = behaviour;
    pthread_mutex_unlock(&c->lock);
}

static unsigned locked(struct arena_commd *c, const unsigned *what)
{
    unsigned n;

    pthread_mutex_lock(&c->lock);
    n = *what;
    pthread_mutex_unlock(&c->lock);
    return n;
}

unsigned arena_commd_held(struct arena_commd *c)
{
    return locked(c, &c->held);
}

unsigned arena_commd_given(struct arena_commd *c)
{
    return locked(c, &c->given);
}

void arena_commd_service(struct arena_commd *c, arena_commd_give *give, void *arg)
{
    pthread_mutex_lock(&c->lock);
    c->service = give;
    c->service_arg = arg;
    pthread_mutex_unlock(&c->lock);
}

void arena_commd_gpu(struct arena_commd *c, int control)
{
    pthread_mutex_lock(&c->lock);
    c->gpu = control;
    pthread_mutex_unlock(&c->lock);
}

void arena_commd_halves(struct arena_commd *c, unsigned n)
{
    pthread_mutex_lock(&c->lock);
    c->halves = n;
    pthread_mutex_unlock(&c->lock);
}
