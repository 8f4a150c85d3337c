/* back.c - the connection to commd ended: this process comes back to the commd that follows.
 *
 *   there --the connection ends--> lost --connected, hello sent--> asked --WELCOME--> there
 *                                    ^                               |
 *                                    '----- it ended again, refused -'
 *
 * Nothing is done until somebody needs commd, or a waiter looks whether commd is gone. A waiter
 * never waits here: it takes the next step if that can be taken at once (back_try() with 0).
 * Whoever needs commd waits (back_need(), back_wait()), and says so after BACK_WARN_MS. One thread
 * at a time takes steps: the one that has the right to read (ctx->reading).
 *
 * commd knows the client by the key that WELCOME gave it. It is told in which groups this process
 * is and which joins wait; from its answer we learn which of the groups it knows. Those that it
 * does not know have no commd any more, as if it had not come back: control_lost() is true for
 * them. A group over several nodes needs the next commd: control_lost() is true when it is not to
 * be expected any more (back_is_over()).
 *
 * Then every request that has no answer is sent again, with its number; groups that were left while
 * the hello was on its way are left again; aborts are repeated, since commd may not have read them;
 * arenas are announced, for commd keeps none.
 *
 * Who leaves a group waits for a moment, so that commd learns of it soon. If commd does not, it
 * finds the group left when the process ends: the board says so (takeover_farewell() in
 * daemon/takeover.c).
 *
 * What if commd dies now? All begins again. What if it never comes? As long as somebody listens, it
 * is waited for until the caller's limit; if nobody listens, for BACK_REFUSED_MS. */
#include "client/lib/context/group.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#include "shm/util/socket_path.h"

enum {
    BACK_SLICE_MS = 100,
    BACK_RETRY_MS = 20,
    BACK_DENIED_MS = 1000, /* until the next try after commd has refused us */
    BACK_CONNECT_MS = 1,   /* a full queue is tried again later */
    BACK_FRAME_MS = 5000,
    BACK_SOON_MS = 300, /* a restart by systemd takes 100 and a bit */
    BACK_REFUSED_MS = 5000,
    BACK_WARN_MS = 5000,
    BACK_OVER_MS = 60000, /* by then the other nodes have given us up (timeouts.restart) */
};

/* A group that this process is in, as far as commd is concerned. */
struct in_group {
    uint64_t id;
    bool over_nodes; /* over several */
    char *abort;     /* owned: that it has aborted the group, and why; NULL: it has not */
};

/* ---- what this process is in ----------------------------------------------------------------- */

static struct in_group *in_find(struct commd_context *ctx, uint64_t group)
{
    for (unsigned i = 0; i < ctx->back.nkept; i++)
        if (ctx->back.kept[i].id == group)
            return &ctx->back.kept[i];
    return NULL;
}

void back_joined(struct commd_context *ctx, uint64_t group, bool over_nodes)
{
    struct in_group *more;

    assert_held(&ctx->lock);
    if (in_find(ctx, group))
        return; /* as another rank */
    more = realloc(ctx->back.kept, (ctx->back.nkept + 1) * sizeof *more);
    if (!more)
        return; /* a later commd will not know that we are in it */
    ctx->back.kept = more;
    more[ctx->back.nkept++] = (struct in_group){.id = group, .over_nodes = over_nodes};
}

void back_left(struct commd_context *ctx, uint64_t group)
{
    struct in_group *k;

    assert_held(&ctx->lock);
    k = in_find(ctx, group);
    if (!k)
        return;
    free(k->abort);
    *k = ctx->back.kept[--ctx->back.nkept];
}

bool back_knows(struct commd_context *ctx, uint64_t group)
{
    assert_held(&ctx->lock);
    return in_find(ctx, group);
}

void back_aborted(struct commd_context *ctx, uint64_t group, const char *text)
{
    struct in_group *k;

    assert_held(&ctx->lock);
    k = in_find(ctx, group);
    if (k && !k->abort)
        k->abort = strdup(text); /* NULL: it is said once */
}

void back_fini(struct commd_context *ctx)
{
    close_fdp(&ctx->back.sock);
    for (unsigned i = 0; i < ctx->back.nkept; i++)
        free(ctx->back.kept[i].abort);
    free(ctx->back.kept);
    ctx->back.kept = NULL;
    ctx->back.nkept = 0;
}

/* ---- the hello, and its answer --------------------------------------------------------------- */

int back_claim(struct commd_context *ctx, struct msg_client_hello *hello)
{
    const struct back *b = &ctx->back;
    uint32_t n = MIN(b->nkept, (unsigned)MSG_MAX_KEPT);

    memcpy(hello->resume, b->key, sizeof hello->resume);
    hello->kept = malloc(MAX(n, 1u) * sizeof *hello->kept);
    hello->asks = malloc(MSG_MAX_ASKS * sizeof *hello->asks);
    if (!hello->kept || !hello->asks)
        return -ENOMEM;
    while (hello->nkept < n) {
        hello->kept[hello->nkept] = b->kept[hello->nkept].id;
        hello->nkept++;
    }
    for (const struct awaited *w = ctx->awaited; w && hello->nasks < MSG_MAX_ASKS; w = w->next)
        if (w->answer == MSG_JOINED && !w->done)
            hello->asks[hello->nasks++] = w->req;
    return 0;
}

static bool among(const uint64_t *ids, unsigned n, uint64_t id)
{
    for (unsigned i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* @here of them are on this node alone. */
static void tell_unknown(const struct commd_context *ctx, unsigned here, unsigned over_nodes)
{
    char text[120] = "";

    if (here)
        snprintf(text, sizeof text, "%u on this node alone, which %s on%s", here,
                 here == 1 ? "goes" : "go", over_nodes ? ", and " : "");
    if (over_nodes)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "%u over several nodes, which %s with COMMD_E_NODE_LOST", over_nodes,
                 over_nodes == 1 ? "ends" : "end");
    fprintf(stderr,
            "commd: commd on node %s was started anew and does not know %u of the groups that pid "
            "%d is in: %s. commd_group_recover() (torch: commd.torch.recover()) makes them known "
            "to it, and brings together the ranks that call it\n",
            ctx->node, here + over_nodes, (int)getpid(), text);
}

/* commd does not know the groups that it has not named. */
static void part_from_unknown(struct commd_context *ctx, const struct msg_welcome *welcome)
{
    struct back *b = &ctx->back;
    unsigned before = b->nkept, over = 0;

    for (unsigned i = 0; i < b->nkept;)
        if (welcome->resumed && among(welcome->kept, welcome->nkept, b->kept[i].id)) {
            i++;
        } else {
            over += b->kept[i].over_nodes;
            back_left(ctx, b->kept[i].id);
        }
    if (b->nkept < before && ctx->warn_ms)
        tell_unknown(ctx, before - b->nkept - over, over);
}

static void say_again(struct commd_context *ctx, const struct msg_welcome *welcome)
{
    struct back *b = &ctx->back;

    for (unsigned i = 0; i < welcome->nkept; i++)
        if (!in_find(ctx, welcome->kept[i]))
            control_send_locked(ctx, &(struct msg){.type = MSG_CLIENT_LEAVE,
                                                   .client_leave.group = welcome->kept[i]});
    for (unsigned i = 0; i < b->nkept; i++) {
        struct msg m = {.type = MSG_CLIENT_ABORT, .client_abort.group = b->kept[i].id};

        if (!b->kept[i].abort)
            continue;
        snprintf(m.client_abort.text, sizeof m.client_abort.text, "%s", b->kept[i].abort);
        control_send_locked(ctx, &m);
    }
    for (struct awaited *w = ctx->awaited; w; w = w->next)
        if (!w->done)
            control_ask_again(ctx, w);
}

/* The kernel shows a pid of a namespace that is not ours or below ours as 0. */
static bool sees_peer(int sock)
{
    struct ucred cred;
    socklen_t len = sizeof cred;

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.pid > 0;
}

void back_welcome(struct commd_context *ctx, int *sock, const struct msg_welcome *welcome)
{
    struct back *b = &ctx->back;

    if (strcmp(ctx->node, welcome->node))
        snprintf(ctx->node, sizeof ctx->node, "%s", welcome->node);
    ctx->incarnation = welcome->incarnation;
    ctx->version = welcome->version;
    memcpy(b->key, welcome->key, sizeof b->key);
    ctx->commd_seen = sees_peer(*sock);
    close_fdp(&ctx->sock);
    ctx->sock = steal_fd(sock);
    b->since_ms = b->refused_ms = b->next_ms = 0;
    b->denied = 0;
    b->warned = false;
    atomic_store(&ctx->lost, false);
    part_from_unknown(ctx, welcome);
    say_again(ctx, welcome);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void step_failed(struct commd_context *ctx, unsigned again_ms)
{
    close_fdp(&ctx->back.sock);
    ctx->back.next_ms = (int64_t)now_ms() + again_ms;
}

/* The lock is held, and dropped for a moment. */
static void step_connect(struct commd_context *ctx)
{
    struct msg m = {.type = MSG_CLIENT_HELLO};
    struct back *b = &ctx->back;
    int sock = -1, r;

    control_say_hello(ctx, &m.client_hello);
    r = back_claim(ctx, &m.client_hello);
    pthread_mutex_unlock(&ctx->lock);
    if (r == 0)
        r = (ctx->search ? place_connect_own : place_connect)(ctx->socket_path, BACK_CONNECT_MS,
                                                              &sock);
    if (r == 0)
        r = msg_send_fd(sock, &m, NULL, 0, deadline_in(BACK_FRAME_MS));
    pthread_mutex_lock(&ctx->lock);
    msg_fini(&m);
    b->sock = sock;
    if (r) {
        b->error = -r;
        if (place_is_empty(r) && !b->refused_ms)
            b->refused_ms = (int64_t)now_ms();
        step_failed(ctx, BACK_RETRY_MS);
    } else {
        b->refused_ms = 0;
    }
}

/* The same. */
static void step_answer(struct commd_context *ctx, int wait_ms)
{
    struct pollfd p = {.fd = ctx->back.sock, .events = POLLIN};
    struct msg m = {0};
    const char *why = NULL;
    unsigned nfds;
    int r = -EAGAIN;

    pthread_mutex_unlock(&ctx->lock);
    if (poll(&p, 1, wait_ms) > 0)
        r = msg_recv_fd(p.fd, &m, NULL, 0, &nfds, deadline_in(BACK_FRAME_MS), &why);
    pthread_mutex_lock(&ctx->lock);
    if (r == -EAGAIN)
        return;
    if (r == 0 && m.type == MSG_WELCOME && msg_version_fits(m.welcome.version))
        back_welcome(ctx, &ctx->back.sock, &m.welcome);
    else
        step_failed(ctx, r == -ECONNRESET ? BACK_RETRY_MS : BACK_DENIED_MS);
    if (r == 0 && m.type == MSG_REFUSED) {
        ctx->back.denied = -(int)m.refused.cause;
        snprintf(ctx->back.why, sizeof ctx->back.why, "%s", m.refused.text);
    } else if (r != -ECONNRESET) {
        ctx->back.denied = 0;
    }
    msg_fini(&m);
}

void back_wait_others(struct commd_context *ctx, int wait_ms)
{
    struct timespec ts;

    assert_held(&ctx->lock);
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_nsec += wait_ms * 1000000L;
    ts.tv_sec += ts.tv_nsec / 1000000000L;
    ts.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&ctx->cond, &ctx->lock, &ts);
}

/* The lock is held, and dropped meanwhile. */
static void tell_reconnected(struct commd_context *ctx)
{
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->hooks)
        ctx->hooks->reconnected(ctx);
    pthread_mutex_lock(&ctx->lock);
}

bool back_try(struct commd_context *ctx, int wait_ms)
{
    struct back *b = &ctx->back;
    int64_t now = (int64_t)now_ms();

    assert_held(&ctx->lock);
    if (!atomic_load(&ctx->lost))
        return true;
    if (!b->since_ms)
        b->since_ms = now;
    if (ctx->reading || (b->sock < 0 && now < b->next_ms)) {
        if (wait_ms)
            back_wait_others(ctx, ctx->reading ? wait_ms : (int)(b->next_ms - now));
        return !atomic_load(&ctx->lost);
    }
    ctx->reading = true;
    if (b->sock < 0)
        step_connect(ctx);
    if (b->sock >= 0)
        step_answer(ctx, wait_ms);
    ctx->reading = false;
    pthread_cond_broadcast(&ctx->cond);
    if (atomic_load(&ctx->lost))
        return false;
    tell_reconnected(ctx);
    return !atomic_load(&ctx->lost);
}

bool back_is_over(const struct commd_context *ctx)
{
    const struct back *b = &ctx->back;
    int64_t now = (int64_t)now_ms();

    assert_held(&ctx->lock);
    return b->denied || (b->refused_ms && now - b->refused_ms >= BACK_REFUSED_MS) ||
           (b->since_ms && now - b->since_ms >= BACK_OVER_MS);
}

/* ---- whoever needs commd --------------------------------------------------------------------- */

static void warn_once(struct commd_context *ctx, const char *op)
{
    int64_t waited = (int64_t)now_ms() - ctx->back.since_ms;

    /* since_ms 0: it came back, and is gone again; the next step notes since when */
    if (!ctx->back.since_ms || ctx->back.warned || !ctx->warn_ms || waited < BACK_WARN_MS)
        return;
    ctx->back.warned = true;
    fprintf(stderr,
            "commd: pid %d on node %s has waited for %.1f s for commd to come back (%s; %s)\n",
            (int)getpid(), ctx->node, (double)waited / 1000, op, ctx->socket_path);
}

/* Nobody listens. A commd that this user started may be started again. */
static int nobody_there(struct commd_context *ctx)
{
    int err = ctx->back.error;

    if (ctx->search) {
        int r = control_open(ctx, deadline_in(BACK_FRAME_MS));

        if (!r)
            tell_reconnected(ctx);
        return r;
    }
    return error_no_daemon(ctx->socket_path, err);
}

int back_wait(struct commd_context *ctx, const char *op, int64_t deadline_ms)
{
    const struct back *b = &ctx->back;
    int64_t now;

    assert_held(&ctx->lock);
    if (back_try(ctx, BACK_SLICE_MS))
        return 0;
    now = (int64_t)now_ms();
    warn_once(ctx, op);
    if (b->denied && !b->refused_ms)
        return error_set(error_mine(), b->denied, op, "commd refused: %s", b->why);
    if (b->refused_ms && !ctx->reading && now - b->refused_ms >= BACK_REFUSED_MS)
        return nobody_there(ctx);
    if (deadline_ms >= 0 && now >= deadline_ms)
        return error_set(error_mine(), COMMD_E_NODE_LOST, op,
                         "commd on node %s went away and has not come back within the limit",
                         ctx->node);
    return 0;
}

void back_soon(struct commd_context *ctx)
{
    int64_t until = (int64_t)now_ms() + BACK_SOON_MS;

    assert_held(&ctx->lock);
    while (control_is_lost(ctx) && !back_try(ctx, BACK_RETRY_MS) && !ctx->back.refused_ms &&
           !ctx->back.denied && (int64_t)now_ms() < until)
        ;
}

int back_need(struct commd_context *ctx, const char *op)
{
    int64_t deadline = deadline_in(ctx->timeout_ms);

    assert_held(&ctx->lock);
    while (control_is_lost(ctx)) {
        int r = back_wait(ctx, op, deadline);

        if (r)
            return r;
        if (atomic_load(&ctx->lost) && context_interrupted_unlocked(ctx))
            return error_set(error_mine(), COMMD_E_INTERRUPTED, op, "interrupted");
    }
    return 0;
}
