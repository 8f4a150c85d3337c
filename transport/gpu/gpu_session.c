/* gpu_session.c - the socket of a client: what comes seldom.
 *
 * States: NEW until it has said hello; OPENING while a job opens its GPU and registers its region;
 * OPEN; CLOSED, until no operation on a stream and no job refers to it any more. While a job
 * answers a question (`asking`) the next question is not even read. So a client has one job in line
 * for each of its sessions, and those of what it frees.
 *
 * Doorbell and asleep flag are like those of boards (transport/engine/engine_bells.c): before the
 * loop sleeps it sets the flag of all active sessions, and after a full fence looks at their slots
 * once more. The doorbell is never read, for its counter is the client's affair.
 *
 * A session that breaks the rules is closed with one line in the log. Its pending operations end
 * for the other ranks as if its process had died. */
#include "transport/gpu/gpu_op.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/util/memfd.h"
#include "shm/util/fds.h"

enum {
    READS = 4, /* messages of a session in one look: the rest is reported again */
};

/* ---- answers --------------------------------------------------------------------------------- */

void session_send(struct gsession *s, const struct session_msg *m, const int *fds, unsigned nfds)
{
    ssize_t n;

    assert_loop(s->g);
    assert(nfds <= 2); /* a client takes no more */
    if (s->state == SESSION_CLOSED)
        return;
    n = fds_send(s->sock, m, sizeof *m, fds, nfds, MSG_DONTWAIT);
    if (n == (ssize_t)sizeof *m)
        return;
    if (n == -EAGAIN)
        session_break(s, "it does not read its answers");
    else
        session_close(s, "it has closed its socket");
}

void session_answer(struct gsession *s, uint32_t id, int code, int rank, const char *text)
{
    struct session_msg m = {.type = SESSION_ANSWER, .id = id};

    m.answer.code = code;
    m.answer.rank = rank;
    snprintf(m.answer.text, sizeof m.answer.text, "%s", text);
    session_send(s, &m, NULL, 0);
    session_listen(s);
}

/* Does the socket say that there is a question? Not while another one is being answered. */
void session_listen(struct gsession *s)
{
    struct epoll_event ev = {.events = s->asking ? 0 : EPOLLIN, .data.ptr = &s->sock_watch};

    if (s->sock >= 0)
        epoll_ctl(s->g->epoll, EPOLL_CTL_MOD, s->sock, &ev);
}

/* ---- hello ----------------------------------------------------------------------------------- */

static int region_register(struct gsession *s)
{
    const struct cuda *cu = &s->g->cu;
    struct session_flags *flags = &s->region->flags;
    char text[128];
    cu_result r = cu->ctx_set(s->dev->ctx);

    r = r ? r : cu->host_register(flags, sizeof *flags, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    if (r == CU_SUCCESS) {
        s->registered = true;
        r = cu->host_pointer(&s->flags, flags, 0);
    }
    if (r == CU_SUCCESS)
        return 0;
    cuda_text(cu, r, text, sizeof text);
    snprintf(s->why, sizeof s->why, "registering the session's page: %.120s", text);
    return COMMD_E_GPU_LOST;
}

/* A device that could not be opened is tried anew: memory may have been short. */
static void hello_work(struct gjob *job)
{
    struct gsession *s = container_of(job, struct gsession, job);
    struct gdevice *d = s->dev;

    if (!d->open) {
        s->code = device_open(d, s->kernels);
        snprintf(s->why, sizeof s->why, "%s", s->kernels);
        if (s->code)
            return;
        d->open = true;
    }
    s->code = region_register(s);
}

static void hello_opened(struct gsession *s)
{
    struct gdevice *d = s->dev;

    if (!s->kernels[0]) /* it was open */
        return;
    snprintf(d->kernels, sizeof d->kernels, "%s", s->kernels);
    if (!s->code)
        gpu_log(s->g, LOG_INFO, "GPU %u (%s) has kernels: %s", d->number, d->name, d->kernels);
}

static void hello_done(struct gjob *job)
{
    struct gsession *s = container_of(job, struct gsession, job);
    struct session_msg m = {.type = SESSION_WELCOME};

    assert_loop(s->g);
    assert(s->state == SESSION_OPENING || s->state == SESSION_CLOSED);
    assert(s->asking && s->jobs);
    s->jobs--;
    s->asking = false;
    hello_opened(s);
    if (s->state == SESSION_CLOSED)
        return;
    if (s->code) {
        gpu_log_user(s->g, s->user->uid, LOG_WARN, "no session for pid %u: %s", s->pid, s->why);
        session_answer(s, 0, s->code, -1, s->why);
        session_close(s, s->why);
        return;
    }
    s->state = SESSION_OPEN;
    m.welcome.nccl = (uint32_t)s->g->nccl.version;
    m.welcome.pid = (uint32_t)getpid();
    session_send(s, &m, (int[]){s->region_fd, s->bell}, 2);
    session_listen(s);
    session_wake(s);
}

/* What the client gets: the region, and the doorbell. */
static int region_new(struct gsession *s)
{
    void *map = NULL;
    int r = memfd_new("commd-gpu", sizeof *s->region, &s->region_fd);

    r = r ? r : memfd_map_at(s->region_fd, sizeof *s->region, SESSION_PAGE, &map);
    if (r)
        return r;
    s->region = map;
    s->region->magic = SESSION_MAGIC;
    s->region->version = SESSION_VERSION;
    s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->bell < 0)
        return -errno;
    return gpu_watch(s->g, s->bell, EPOLLIN | EPOLLET, &s->bell_watch);
}

static void session_hello(struct gsession *s, const struct session_msg *m)
{
    char text[SESSION_TEXT], uuid[48];

    assert(s->state == SESSION_NEW && !s->region);
    if (m->id != SESSION_VERSION) {
        snprintf(text, sizeof text, "commd-gpu speaks version %d of sessions, the client %u",
                 SESSION_VERSION, m->id);
        session_answer(s, 0, COMMD_E_PROTOCOL, -1, text);
        session_close(s, text);
        return;
    }
    s->dev = device_find(s->g, &m->hello.uuid);
    if (!s->dev || region_new(s)) {
        device_text(&m->hello.uuid, uuid);
        snprintf(text, sizeof text,
                 s->dev ? "commd-gpu has no memory or descriptors for a session"
                        : "commd-gpu sees no %s: is it the same GPU under another partition?",
                 uuid);
        session_answer(s, 0, s->dev ? COMMD_E_NOMEM : COMMD_E_INVALID, -1, text);
        s->dev = NULL;
        session_close(s, text);
        return;
    }
    s->dev->nsessions++;
    s->state = SESSION_OPENING;
    s->asking = true;
    s->job = (struct gjob){.work = hello_work, .done = hello_done};
    s->jobs++;
    session_listen(s);
    /* not in the user's lane: a device is opened by one job at a time */
    jobs_add(s->g->jobs, &s->g->lane, &s->job);
}

/* ---- what a client sends --------------------------------------------------------------------- */

int client_code(int code)
{
    return code >= 0 || code < GPU_LAST_CODE ? COMMD_E_ABORTED : code;
}

void client_text(const char *given, size_t len, char *text)
{
    snprintf(text, len, "%.*s", (int)len - 1, given);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
}

static void session_abort(struct gsession *s, const struct session_msg *m)
{
    struct gmember *member = member_find(s, m->id);
    char text[SESSION_TEXT];
    int rank = m->answer.rank;

    if (!member) {
        session_break(s, "it gives up group %u, which it is not in", m->id);
        return;
    }
    client_text(m->answer.text, sizeof text, text);
    if (rank < 0 || (uint32_t)rank >= member->group->world)
        rank = -1;
    group_break(member->group, client_code(m->answer.code), rank, 0, text);
}

static void session_more(struct gsession *s, uint32_t id);

static void session_detach(struct gsession *s, uint32_t id)
{
    struct gmember *member = member_find(s, id);

    if (member)
        group_detach(member, "has left");
    else
        session_break(s, "it leaves group %u, which it is not in", id);
}

static void session_take(struct gsession *s, const struct session_msg *m, size_t len, int *fds,
                         unsigned nfds)
{
    if (m->type != SESSION_ATTACH && len > sizeof *m) {
        session_break(s, "a message is too long");
    } else if (m->type != SESSION_MEMORY && nfds) {
        session_break(s, "descriptors belong to no message");
    } else if (s->state == SESSION_NEW) {
        if (m->type == SESSION_HELLO)
            session_hello(s, m);
        else
            session_break(s, "it begins with message %u", m->type);
    } else if (m->type == SESSION_MEMORY) {
        memory_add(s, m, fds, nfds);
    } else if (m->type == SESSION_FORGET) {
        memory_forget(s, m->id);
    } else if (m->type == SESSION_ATTACH) {
        group_attach(s, m, len);
    } else if (m->type == SESSION_DETACH) {
        session_detach(s, m->id);
    } else if (m->type == SESSION_ABORT) {
        session_abort(s, m);
    } else if (m->type == SESSION_MORE) {
        session_more(s, m->id);
    } else if (m->type == SESSION_LEND) {
        lend_memory(s, m);
    } else {
        session_break(s, "message %u is unknown", m->type);
    }
}

static bool session_receive(struct gsession *s)
{
    static union {
        struct session_msg m;
        char bytes[SESSION_MSG_MAX + 1];
    } in;
    int fds[FDS_MOST];
    unsigned nfds;
    ssize_t n;
    bool cut;

    if (!closer_room(s->g->closer, s->user->uid)) /* what does not fit would be closed here */
        return false;
    n = fds_recv(s->sock, &in, sizeof in, fds, FDS_MOST, &nfds, MSG_DONTWAIT, &cut);
    if (n < 0) {
        if (n != -EAGAIN && n != -EINTR)
            session_close(s, "its socket has failed");
        return false;
    }
    if (cut) {
        session_break(s, "a message is too long");
    } else if (n == 0) {
        session_close(s, "it has closed its socket");
    } else if ((size_t)n < offsetof(struct session_msg, hello)) {
        session_break(s, "a message is too short");
    } else {
        if ((size_t)n < sizeof in.m) /* the rest is zero, and not the last message's */
            memset(in.bytes + n, 0, sizeof in.m - (size_t)n);
        session_take(s, &in.m, (size_t)n, fds, nfds);
    }
    for (unsigned i = 0; i < nfds; i++)
        if (fds[i] >= 0)
            closer_fd(s->g->closer, s->user->uid, fds[i]);
    return s->state != SESSION_CLOSED;
}

void session_read(struct gsession *s)
{
    for (unsigned i = 0; i < READS && s->state != SESSION_CLOSED && !s->asking; i++)
        if (!session_receive(s))
            return;
}

/* ---- awake and asleep ------------------------------------------------------------------------ */

void session_wake(struct gsession *s)
{
    if (s->active || s->state != SESSION_OPEN)
        return;
    assert(s->region);
    s->active = true;
    s->unheard_ms = 0;
    atomic_store_explicit(&s->region->asleep, 0, memory_order_relaxed);
    TAILQ_INSERT_TAIL(&s->user->active, s, active_link);
    s->user->nactive++;
    guser_touch(s->g, s->user);
}

void session_deactivate(struct gsession *s)
{
    if (!s->active)
        return;
    assert(s->user->nactive);
    s->active = false;
    TAILQ_REMOVE(&s->user->active, s, active_link);
    s->user->nactive--;
    guser_touch(s->g, s->user);
}

/* ---- begin and end --------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct gsession *gsession_new(struct gpu *g, struct gsession *first,
                                     const struct msg_gpu_session *m, int *fd)
{
    struct gsession *s = calloc(1, sizeof *s);

    if (s)
        s->user = guser_get(g, m->payer);
    if (!s || !s->user) {
        free(s);
        return NULL;
    }
    s->g = g;
    s->first = first;
    s->client = m->client;
    s->uid = m->uid;
    s->pid = m->pid;
    s->sock = steal_fd(fd);
    s->bell = s->region_fd = -1;
    s->sock_watch = (struct gwatch){WATCH_SESSION, s};
    s->bell_watch = (struct gwatch){WATCH_BELL, s};
    STAILQ_INIT(&s->leaving);
    LIST_INSERT_HEAD(&g->sessions, s, link);
    s->user->nsessions++;
    g->nsessions++;
    if (gpu_watch(g, s->sock, EPOLLIN, &s->sock_watch)) {
        session_close(s, "no memory to watch its socket");
    } else if (s->user->nsessions > GPU_USER_SESSIONS) {
        session_answer(s, 0, COMMD_E_QUOTA, -1, "this user has as many sessions as it may have");
        session_close(s, "its user has too many sessions");
    }
    return s;
}

/* The user's weight is that of the latest session: commd's setting may have changed. */
void session_new(struct gpu *g, const struct msg_gpu_session *m, int *fd)
{
    struct gsession *s = gsession_new(g, NULL, m, fd);

    if (s)
        guser_weigh(s->user, m->weight);
}

/* One of the sessions that @s was asked for, and how many there are; NULL: none. */
static struct gsession *session_of(const struct gsession *s, unsigned *ret_n)
{
    struct gsession *other, *one = NULL;

    *ret_n = 0;
    LIST_FOREACH(other, &s->g->sessions, link)
        if (other->first == s) {
            one = other;
            ++*ret_n;
        }
    return one;
}

static void session_more(struct gsession *s, uint32_t id)
{
    struct session_msg m = {.type = SESSION_MORE, .id = id};
    struct msg_gpu_session of = {
        .client = s->client, .uid = s->uid, .pid = s->pid, .payer = s->user->uid};
    int pair[2] = {-1, -1};
    unsigned n;

    session_of(s, &n);
    if (s->first) {
        session_break(s, "another session is asked for at one that was asked for");
    } else if (n >= GPU_MAX_DEVICES) {
        session_answer(s, id, COMMD_E_QUOTA, -1,
                       "this process has as many sessions as it may have");
    } else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) ||
               !gsession_new(s->g, s, &of, &pair[0])) {
        session_answer(s, id, COMMD_E_NOMEM, -1,
                       "commd-gpu has no memory or descriptors for another session");
    } else {
        session_send(s, &m, &pair[1], 1);
    }
    close_fdp(&pair[0]);
    close_fdp(&pair[1]);
}

void session_close(struct gsession *s, const char *why)
{
    struct gsession *other;
    unsigned n;

    if (s->state == SESSION_CLOSED)
        return;
    gpu_log_user(s->g, s->user->uid, LOG_DEBUG, "session of pid %u (uid %u) ends: %s", s->pid,
                 s->uid, why);
    session_deactivate(s);
    s->state = SESSION_CLOSED;
    LIST_REMOVE(s, link);
    LIST_INSERT_HEAD(&s->g->closed, s, link);
    epoll_ctl(s->g->epoll, EPOLL_CTL_DEL, s->sock, NULL);
    closer_sock(s->g->closer, s->user->uid, steal_fd(&s->sock));
    if (s->bell >= 0) { /* close() alone would leave it there, as the client has the file open */
        epoll_ctl(s->g->epoll, EPOLL_CTL_DEL, s->bell, NULL);
        close_fdp(&s->bell);
    }
    group_leave_all(s, "has died or left");
    assert(!s->nmembers && !s->active);
    memory_leave_all(s);
    s->first = NULL;
    while ((other = session_of(s, &n)))
        session_close(other, why);
}

void session_break(struct gsession *s, const char *format, ...)
{
    char why[SESSION_TEXT];
    va_list args;

    if (s->state == SESSION_CLOSED)
        return;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    gpu_log_user(s->g, s->user->uid, LOG_WARN, "session of pid %u (uid %u) is closed: %s", s->pid,
                 s->uid, why);
    session_close(s, why);
}

void session_del(struct gpu *g, uint32_t client)
{
    struct gsession *s;

    LIST_FOREACH(s, &g->sessions, link)
        if (s->client == client && !s->first) {
            session_close(s, "commd says that it is gone");
            return;
        }
}

static void region_work(struct gjob *job)
{
    struct gsession *s = container_of(job, struct gsession, job);
    const struct cuda *cu = &s->g->cu;

    if (s->registered && cu->ctx_set(s->dev->ctx) == CU_SUCCESS)
        cu->host_unregister(&s->region->flags);
    munmap(s->region, sizeof *s->region);
    close_fdp(&s->region_fd);
}

static void region_done(struct gjob *job)
{
    struct gsession *s = container_of(job, struct gsession, job);

    assert(s->state == SESSION_CLOSED && s->jobs);
    s->jobs--;
    s->region = NULL;
}

static void gsession_free(struct gsession *s)
{
    assert(s->state == SESSION_CLOSED && s->sock < 0 && s->bell < 0);
    assert(!s->nmembers && !s->lent && !s->aux_held);
    LIST_REMOVE(s, link);
    s->g->nsessions--;
    if (s->dev)
        s->dev->nsessions--;
    s->user->nsessions--;
    guser_put(s->g, s->user);
    close_fdp(&s->region_fd);
    free(s);
}

void sessions_sweep(struct gpu *g)
{
    struct gsession *s, *next;

    for (s = LIST_FIRST(&g->closed); s; s = next) {
        next = LIST_NEXT(s, link);
        assert(s->state == SESSION_CLOSED && s->low <= s->next);
        if (s->jobs || s->low != s->next || s->nmemories)
            continue;
        if (!s->region) {
            gsession_free(s);
            continue;
        }
        s->job = (struct gjob){.work = region_work, .done = region_done};
        s->jobs++;
        jobs_add(g->jobs, &g->lane, &s->job);
    }
}
