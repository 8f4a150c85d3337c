/* control.c - the connection to commd. It carries joins and leaves; no collective needs it. What
 * happens when it has ended is in back.c.
 *
 * Several threads may wait for answers at once. There is no thread for the socket: one of the
 * threads that wait reads for all (`reading`), and hands each answer to the thread that asked
 * (struct awaited). When the reader's own answer has come, another thread reads. A join that was
 * interrupted may still be answered: then this process is a member of a group that nobody wants,
 * and leaves it at once. */
#include "client/lib/context/group.h"

#include <poll.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

#include "shm/util/socket_path.h"

enum { READ_SLICE_MS = 100, FRAME_MS = 5000, READ_BUDGET = 64, LOOK_MS = 10 };
enum { GPU_ASK_MS = 120000 };
enum { GONE_MOST = 16384 };                    /* ranks, so that a frame holds them */
enum { LEAVING_MS = 20, LEAVING_TRIES = 100 }; /* a daemon takes a moment to end */

static int not_commd(const struct commd_context *ctx, const char *what)
{
    return error_set(error_mine(), COMMD_E_PROTOCOL, "connect",
                     "%s: what listens there is not commd, or not of this version: %s",
                     ctx->socket_path, what);
}

/* Waits for the answer. Is there none, and will there be none? */
static bool ends_unsaid(int sock, int64_t deadline_ms)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int64_t left = deadline_ms < 0 ? -1 : MAX(deadline_ms - (int64_t)now_ms(), (int64_t)0);
    char byte;

    if (poll(&p, 1, (int)MIN(left, (int64_t)INT32_MAX)) <= 0)
        return false;
    return recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

/* Takes *@sock when commd welcomes us. *ret_leaving: closed without a word. */
static int control_hello(struct commd_context *ctx, int *sock, int64_t deadline_ms,
                         bool *ret_leaving)
{
    struct msg m = {.type = MSG_CLIENT_HELLO}, reply = {0};
    const char *why = NULL;
    unsigned nfds;
    int r;

    control_say_hello(ctx, &m.client_hello);
    r = back_claim(ctx, &m.client_hello);
    if (r == 0)
        r = msg_send_fd(*sock, &m, NULL, 0, deadline_ms);
    msg_fini(&m);
    if (r == 0 || r == -ECONNRESET) /* who refuses us may be gone before our hello is out */
        *ret_leaving = ends_unsaid(*sock, deadline_ms);
    if (r == 0 || r == -ECONNRESET)
        r = msg_recv_fd(*sock, &reply, NULL, 0, &nfds, deadline_ms, &why);
    if (r == -ETIMEDOUT)
        return error_set(error_mine(), COMMD_E_TIMEOUT, "connect",
                         "%s: no answer from commd within the limit", ctx->socket_path);
    if (r)
        return not_commd(ctx, why ? why : strerror(-r));
    if (reply.type == MSG_REFUSED) {
        r = error_set(error_mine(), -(int)reply.refused.cause, "connect", "commd refused: %s",
                      reply.refused.text);
    } else if (reply.type != MSG_WELCOME) {
        r = not_commd(ctx, "unexpected answer");
    } else if (!msg_version_fits(reply.welcome.version)) {
        r = error_set(error_mine(), COMMD_E_PROTOCOL, "connect",
                      "commd on node %s speaks protocol version %u, libcommd understands %u to %u: "
                      "upgrade commd",
                      reply.welcome.node, reply.welcome.version, (unsigned)MSG_VERSION_OLDEST,
                      (unsigned)MSG_VERSION);
    } else {
        back_welcome(ctx, sock, &reply.welcome);
    }
    msg_fini(&reply);
    return r;
}

static int connect_named(const char *path, int64_t deadline_ms, int *ret_sock)
{
    int64_t left = deadline_ms < 0 ? 0 : MAX(deadline_ms - (int64_t)now_ms(), (int64_t)1);
    int r = place_connect(path, left, ret_sock);

    return r ? error_no_daemon(path, -r) : 0;
}

/* A commd may leave because it is idle, or be killed, with us in its queue: then we try again. */
int control_open(struct commd_context *ctx, int64_t deadline_ms)
{
    bool leaving = false;
    int r;

    for (unsigned i = 0;; i++) {
        _cleanup_(close_fdp) int sock = -1;

        r = ctx->search ? autostart_search(ctx->socket_path, sizeof ctx->socket_path, deadline_ms,
                                           &sock, &leaving)
                        : connect_named(ctx->socket_path, deadline_ms, &sock);
        if (r == 0)
            r = control_hello(ctx, &sock, deadline_ms, &leaving);
        if (r == 0) {
            /* a system's daemon that goes away comes back: it is waited for, not replaced */
            ctx->search = ctx->search && strcmp(ctx->socket_path, PLACE_SYSTEM_SOCKET);
            return 0;
        }
        if (!leaving || i == LEAVING_TRIES)
            return r;
        leaving = false;
        poll(NULL, 0, LEAVING_MS);
    }
}

void control_end(struct commd_context *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    back_soon(ctx);
    pthread_mutex_unlock(&ctx->lock);
}

void control_close(struct commd_context *ctx)
{
    close_fdp(&ctx->sock);
    back_fini(ctx);
    close_fdp(&ctx->doorbell);
}

static int send_with(struct commd_context *ctx, const struct msg *msg, int fd)
{
    int r = -ENOTCONN;

    assert_held(&ctx->lock);
    if (!atomic_load(&ctx->lost))
        r = msg_send_fd(ctx->sock, msg, &fd, fd >= 0, deadline_in(FRAME_MS));
    if (r)
        atomic_store(&ctx->lost, true);
    return r;
}

int control_send_locked(struct commd_context *ctx, const struct msg *msg)
{
    return send_with(ctx, msg, -1);
}

void control_leave_unwanted(struct commd_context *ctx, uint64_t group)
{
    struct msg leave = {.type = MSG_CLIENT_LEAVE, .client_leave.group = group};

    back_left(ctx, group);
    control_send_locked(ctx, &leave);
}

int control_send_of(struct commd_context *ctx, uint64_t group, const struct msg *msg)
{
    int r = -ENOTCONN;

    pthread_mutex_lock(&ctx->lock);
    if (back_knows(ctx, group))
        r = control_send_locked(ctx, msg);
    pthread_mutex_unlock(&ctx->lock);
    return r;
}

void control_leave(struct commd_context *ctx, uint64_t group, uint32_t ops)
{
    struct msg m = {.type = MSG_CLIENT_LEAVE, .client_leave = {.group = group, .ops = ops}};

    pthread_mutex_lock(&ctx->lock);
    back_soon(ctx);
    if (back_knows(ctx, group))
        control_send_locked(ctx, &m);
    back_left(ctx, group);
    pthread_mutex_unlock(&ctx->lock);
}

int control_abort_locked(struct commd_context *ctx, const struct msg *msg)
{
    assert_held(&ctx->lock);
    assert(msg->type == MSG_CLIENT_ABORT);
    if (!back_knows(ctx, msg->client_abort.group))
        return -ENOTCONN;
    back_aborted(ctx, msg->client_abort.group, msg->client_abort.text);
    control_send_locked(ctx, msg); /* else it is said by the way: say_again() in back.c */
    return 0;
}

int control_abort(struct commd_context *ctx, const struct msg *msg)
{
    int r;

    pthread_mutex_lock(&ctx->lock);
    r = control_abort_locked(ctx, msg);
    pthread_mutex_unlock(&ctx->lock);
    return r;
}

/* A new doorbell takes the number of the old one, so groups that were made earlier ring it too: a
 * commd that was restarted gives another one, and the engine, which went on, hears that one alone.
 */
static void take_doorbell(struct commd_context *ctx, int fd)
{
    assert_held(&ctx->lock);
    assert(fd >= 0);
    if (ctx->doorbell < 0) {
        ctx->doorbell = fd;
        return;
    }
    (void)dup3(fd, ctx->doorbell, O_CLOEXEC); /* it cannot fail: both are there */
    close(fd);
}

/* An answer of another kind than the question asks for has nobody who waits for it. */
static struct awaited *find_wait(struct commd_context *ctx, enum msg_type answer, uint32_t req)
{
    for (struct awaited *w = ctx->awaited; w; w = w->next)
        if (w->answer == answer && w->req == req && !w->done)
            return w;
    return NULL;
}

/* One message from commd. Takes @m and @fds. */
static void control_dispatch(struct commd_context *ctx, struct msg *m, int *fds, unsigned nfds)
{
    struct awaited *w = NULL;

    assert_held(&ctx->lock);
    if (m->type == MSG_JOINED) {
        w = find_wait(ctx, MSG_JOINED, m->joined.req);
        if (nfds == 2 && m->joined.new_doorbell)
            take_doorbell(ctx, steal_fd(&fds[1]));
        if (!w)
            control_leave_unwanted(ctx, m->joined.group);
        else
            back_joined(ctx, m->joined.group, m->joined.nnodes > 1);
        if (w && nfds >= 1)
            w->fd = steal_fd(&fds[0]);
    } else if (m->type == MSG_JOIN_FAILED) {
        w = find_wait(ctx, MSG_JOINED, m->join_failed.req);
    } else if (m->type == MSG_ARENA_ANSWER || m->type == MSG_GPU_ANSWER) {
        w = find_wait(ctx, m->type,
                      m->type == MSG_GPU_ANSWER ? m->gpu_answer.req : m->arena_answer.req);
        if (w && nfds >= 1)
            w->fd = steal_fd(&fds[0]);
    } else if (m->type == MSG_ABSENT) {
        if (ctx->hooks)
            ctx->hooks->absent(ctx, &m->absent);
    }
    if (w) {
        w->reply = *m;
        w->doorbell = ctx->doorbell;
        w->done = true;
        memset(m, 0, sizeof *m);
        pthread_cond_broadcast(&ctx->cond);
    }
    for (unsigned i = 0; i < nfds; i++)
        close_fdp(&fds[i]);
    msg_fini(m);
}

/* Reads at most one message. The lock is held, and dropped while waiting. */
static void read_once(struct commd_context *ctx, int wait_ms)
{
    struct pollfd p = {.fd = ctx->sock, .events = POLLIN};
    struct msg m = {0};
    const char *why = NULL;
    int fds[2] = {-1, -1};
    unsigned nfds = 0;
    int r = 0, n;

    assert_held(&ctx->lock);
    assert(!ctx->reading);
    ctx->reading = true;
    pthread_mutex_unlock(&ctx->lock);
    n = poll(&p, 1, wait_ms);
    if (n > 0)
        r = msg_recv_fd(p.fd, &m, fds, 2, &nfds, deadline_in(FRAME_MS), &why);
    pthread_mutex_lock(&ctx->lock);
    ctx->reading = false;
    if (n > 0 && r == 0)
        control_dispatch(ctx, &m, fds, nfds);
    else if (n > 0)
        atomic_store(&ctx->lost, true);
    pthread_cond_broadcast(&ctx->cond);
}

/* Unread messages hide the end of the stream, so they are read first. */
static bool lost_locked(struct commd_context *ctx)
{
    char byte;
    ssize_t n = 1;

    assert_held(&ctx->lock);
    for (unsigned i = 0; n > 0 && i < READ_BUDGET && !atomic_load(&ctx->lost); i++) {
        n = recv(ctx->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0 && ctx->reading)
            break;
        if (n > 0)
            read_once(ctx, READ_SLICE_MS);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            atomic_store(&ctx->lost, true);
    }
    return atomic_load(&ctx->lost);
}

bool control_is_lost(struct commd_context *ctx)
{
    return lost_locked(ctx);
}

/* Who waits asks before each sleep, and sleeps for WAIT_SLICE_MS at most. Between small operations
 * a sleep lasts some microseconds, and a look at the socket would take half of one. */
bool control_lost(const struct membership *g)
{
    struct commd_context *ctx = g->ctx;
    uint64_t now = now_ms();
    bool lost;

    pthread_mutex_lock(&ctx->lock);
    lost = atomic_load(&ctx->lost);
    if (!lost && now - ctx->looked_ms >= LOOK_MS) {
        ctx->looked_ms = now;
        lost = lost_locked(ctx);
    }
    lost = lost && !back_try(ctx, 0);
    if (g->board.nnodes > 1) /* its engine goes on, and the next commd tells what is to be told */
        lost = lost && back_is_over(ctx);
    lost |= !back_knows(ctx, g->board.group);
    pthread_mutex_unlock(&ctx->lock);
    return lost;
}

void control_wait_slice(struct commd_context *ctx)
{
    assert_held(&ctx->lock);
    if (ctx->reading)
        back_wait_others(ctx, READ_SLICE_MS);
    else
        read_once(ctx, READ_SLICE_MS);
}

void control_wait_begin(struct commd_context *ctx, enum msg_type answer, struct awaited *w)
{
    assert_held(&ctx->lock);
    assert(!w->done && w->fd < 0);
    w->answer = answer;
    w->req = ++ctx->next_req;
    w->next = ctx->awaited;
    ctx->awaited = w;
}

void control_wait_end(struct commd_context *ctx, struct awaited *w)
{
    assert_held(&ctx->lock);
    list_remove(ctx->awaited, w, next);
}

static uint64_t ms_until(int64_t at_ms)
{
    return (uint64_t)MAX(at_ms - (int64_t)now_ms(), (int64_t)1);
}

/* An older commd would take a recovery for the join of a new group. */
static bool is_beyond(const struct commd_context *ctx, struct awaited *w)
{
    struct msg_join_failed f = {.req = w->req, .cause = CAUSE_PROTOCOL, .rank = -1};

    if (!w->ask.client_join.recovery || ctx->version >= RECOVERY_VERSION)
        return false;
    snprintf(f.node, sizeof f.node, "%s", ctx->node);
    snprintf(f.text, sizeof f.text,
             "commd on node %s speaks protocol version %u, and groups are recovered from %u on: "
             "upgrade commd",
             ctx->node, ctx->version, RECOVERY_VERSION);
    w->reply = (struct msg){.type = MSG_JOIN_FAILED, .join_failed = f};
    w->done = true;
    return true;
}

bool control_tells_gone(struct awaited *w)
{
    const struct membership *g = w->follows;
    struct msg_client_join *join = &w->ask.client_join;
    bool knows = !g || back_knows(g->ctx, g->board.group);
    uint32_t most, before = join->ngone;

    join->was_size = join->was_nodes = join->ngone = 0;
    if (knows)
        return before;
    most = MIN(g->board.world, (unsigned)GONE_MOST);
    if (!w->gone)
        w->gone = calloc(most, sizeof *w->gone);
    join->was_rank = g->rank;
    join->was_size = g->board.world;
    join->was_epoch = g->board.epoch;
    join->was_nodes = g->board.nnodes;
    join->gone = w->gone;
    join->ngone = w->gone ? alive_gone(g, w->gone, most) : 0;
    return join->ngone != before;
}

/* A commd took this rank for lost, the next one does not know the group, and the others may have
 * gone on: what this rank sees of them is that they left, so by its own word it would go on alone.
 */
static bool is_left_behind(const struct commd_context *ctx, struct awaited *w)
{
    const struct membership *g = w->follows;
    struct msg_join_failed f = {.req = w->req, .cause = CAUSE_RANK_LOST};

    if (!g || back_knows(g->ctx, g->board.group) || !board_is_gone(&g->board, g->rank))
        return false;
    f.rank = (int32_t)g->rank;
    snprintf(f.node, sizeof f.node, "%s", ctx->node);
    snprintf(f.text, sizeof f.text,
             "group \"%s\": rank %u of epoch %llu was taken for lost, and the others go on without "
             "it: leave the group and rejoin",
             w->ask.client_join.name, g->rank, (unsigned long long)g->board.epoch);
    w->reply = (struct msg){.type = MSG_JOIN_FAILED, .join_failed = f};
    w->done = true;
    return true;
}

/* The join of @w is about to be sent. False: this commd must not get it, and @w has its answer. */
static bool join_again(const struct commd_context *ctx, struct awaited *w)
{
    assert(w->ask.type == MSG_CLIENT_JOIN);
    if (is_beyond(ctx, w) || is_left_behind(ctx, w))
        return false;
    if (w->deadline_ms >= 0)
        w->ask.client_join.timeout_ms = ms_until(w->deadline_ms);
    if (w->patient_ms)
        w->ask.client_join.wait_ms = ms_until(w->patient_ms);
    control_tells_gone(w);
    return true;
}

void control_ask_again(struct commd_context *ctx, struct awaited *w)
{
    if (w->ask.type != MSG_CLIENT_JOIN || join_again(ctx, w))
        send_with(ctx, &w->ask, w->ask_fd);
}

/* Sends the question @w->ask, in which *req becomes its number, with @w->ask_fd (-1: none), and
 * waits for the @answer. The limit is for a commd that is there. The lock is held, and dropped
 * while waiting. */
static int ask_and_wait(struct commd_context *ctx, struct awaited *w, uint32_t *req,
                        enum msg_type answer, const char *op, int64_t limit_ms)
{
    int64_t patience = deadline_in(ctx->timeout_ms), deadline = deadline_in(limit_ms);
    int r = 0;

    control_wait_begin(ctx, answer, w);
    *req = w->req;
    send_with(ctx, &w->ask, w->ask_fd);
    while (!w->done && !r) {
        if (atomic_load(&ctx->lost)) {
            r = back_wait(ctx, op, patience);
            deadline = deadline_in(limit_ms);
        } else if ((int64_t)now_ms() > deadline) {
            r = error_set(error_mine(), COMMD_E_TIMEOUT, op, "commd on node %s does not answer",
                          ctx->node);
        } else {
            control_wait_slice(ctx);
        }
    }
    control_wait_end(ctx, w);
    return r;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

int control_arena_add(struct commd_context *ctx, uint64_t arena, size_t size, int fd)
{
    struct awaited w = {
        .fd = -1,
        .doorbell = -1,
        .ask = {.type = MSG_ARENA_ADD, .arena_add = {.arena = arena, .size = size}},
        .ask_fd = fd,
    };
    int r;

    pthread_mutex_lock(&ctx->lock);
    r = back_need(ctx, "alloc");
    if (!r)
        r = ask_and_wait(ctx, &w, &w.ask.arena_add.req, MSG_ARENA_ANSWER, "alloc", FRAME_MS);
    pthread_mutex_unlock(&ctx->lock);
    if (!r && w.reply.arena_answer.cause)
        r = error_set(error_mine(), -(int)w.reply.arena_answer.cause, "alloc", "%s",
                      w.reply.arena_answer.text);
    close_fdp(&w.fd);
    msg_fini(&w.reply);
    return r;
}

/* If this fails the connection is lost, and commd forgets all arenas of this process. */
void control_arena_again(struct commd_context *ctx, uint64_t arena, size_t size, int fd)
{
    struct msg m = {.type = MSG_ARENA_ADD, .arena_add = {.arena = arena, .size = size}};

    pthread_mutex_lock(&ctx->lock);
    send_with(ctx, &m, fd);
    pthread_mutex_unlock(&ctx->lock);
}

void control_arena_del(struct commd_context *ctx, uint64_t arena)
{
    struct msg m = {.type = MSG_ARENA_DEL, .arena_del.arena = arena};

    pthread_mutex_lock(&ctx->lock);
    control_send_locked(ctx, &m);
    pthread_mutex_unlock(&ctx->lock);
}

bool control_arena_ask(const struct membership *g, unsigned rank, uint64_t arena, struct awaited *w)
{
    struct commd_context *ctx = g->ctx;
    bool sent = false;

    *w = (struct awaited){
        .fd = -1,
        .doorbell = -1,
        .ask = {.type = MSG_ARENA_ASK,
                .arena_ask = {.rank = rank, .group = g->board.group, .arena = arena}},
        .ask_fd = -1,
    };
    pthread_mutex_lock(&ctx->lock);
    if (!atomic_load(&ctx->lost) && back_knows(ctx, g->board.group)) {
        control_wait_begin(ctx, MSG_ARENA_ANSWER, w);
        w->ask.arena_ask.req = w->req;
        sent = control_send_locked(ctx, &w->ask) == 0;
        if (!sent)
            control_wait_end(ctx, w);
    }
    pthread_mutex_unlock(&ctx->lock);
    return sent;
}

bool control_arena_asked(const struct membership *g, struct awaited *w)
{
    struct commd_context *ctx = g->ctx;
    bool over;

    pthread_mutex_lock(&ctx->lock);
    if (!w->done && !ctx->reading && !atomic_load(&ctx->lost))
        read_once(ctx, 0);
    over = w->done || atomic_load(&ctx->lost);
    if (over)
        control_wait_end(ctx, w);
    pthread_mutex_unlock(&ctx->lock);
    if (over)
        msg_fini(&w->reply);
    return over;
}

void control_arena_cancel(const struct membership *g, struct awaited *w)
{
    pthread_mutex_lock(&g->ctx->lock);
    control_wait_end(g->ctx, w);
    pthread_mutex_unlock(&g->ctx->lock);
    msg_fini(&w->reply);
    close_fdp(&w->fd);
}

/* ---- the GPU service ------------------------------------------------------------------------- */

int control_gpu_ask(struct commd_context *ctx, int *ret_sock)
{
    struct awaited w = {.fd = -1, .doorbell = -1, .ask.type = MSG_GPU_ASK, .ask_fd = -1};
    int r;

    pthread_mutex_lock(&ctx->lock);
    r = back_need(ctx, "run");
    if (!r)
        r = ask_and_wait(ctx, &w, &w.ask.gpu_ask.req, MSG_GPU_ANSWER, "run", GPU_ASK_MS);
    pthread_mutex_unlock(&ctx->lock);
    if (!r && (w.reply.gpu_answer.cause || w.fd < 0))
        r = error_set(error_mine(), -(int)w.reply.gpu_answer.cause, "run", "%s",
                      w.reply.gpu_answer.text);
    if (!r)
        *ret_sock = steal_fd(&w.fd);
    close_fdp(&w.fd);
    msg_fini(&w.reply);
    return r;
}
