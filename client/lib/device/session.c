/* session.c - a process's session at commd-gpu: how it comes about, how questions are answered, and
 * how operations end.
 *
 * An operation that was announced ends when done[slot] has reached its mark. A stream of commd-gpu
 * stores the mark, or commd-gpu's host, or, once commd-gpu is gone, this process (session_lose()).
 * Then the result is copied (session_ended()), before the slot is used again. Two threads look at
 * done[]: the progress thread (works_land()), and a thread that needs the slot.
 *
 * Who wakes me: no bell; the words are polled. What if commd-gpu dies now: the socket ends, which
 * session_watch() sees; all pending operations fail with COMMD_E_GPU_LOST, streams go on, and the
 * next operation of a group agrees anew (path.c). What if a rank dies now: commd-gpu sees the end
 * of that rank's session; of a rank on another node the board says so, and this process asks
 * commd-gpu to give up.
 *
 * A context has one session for each GPU that its groups work on. commd makes the first session.
 * The others are asked for through the first one (SESSION_MORE), and end with it.
 *
 * Locks: device_group.lock, then device.sessions_lock, then session.calls, then session.pend. The
 * progress thread takes pend alone. Sessions are kept for good: streams may wait for words in their
 * pages. */
#include "client/lib/context/group.h"
#include "client/lib/device/note.h"
#include "client/lib/device/session.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/util/memfd.h"

enum { ANSWER_MS = 60000, SLICE_MS = 100 };

void announced_unref(struct announced *a)
{
    assert(!a || atomic_load(&a->refs) > 0);
    if (a && atomic_fetch_sub(&a->refs, 1) == 1)
        free(a);
}

/* ---- questions ------------------------------------------------------------------------------- */

static int session_gone(const char *why)
{
    return error_set(error_mine(), COMMD_E_GPU_LOST, "run", "commd-gpu is gone: %s", why);
}

static int send_message(int sock, const void *m, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr h;
        char buf[CMSG_SPACE(SESSION_MAX_CHUNKS * sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)m, len};
    struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};

    assert(nfds <= SESSION_MAX_CHUNKS);
    if (nfds) {
        hdr.msg_control = &control;
        hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        control.h.cmsg_level = SOL_SOCKET;
        control.h.cmsg_type = SCM_RIGHTS;
        control.h.cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(&control.h), fds, nfds * sizeof(int));
    }
    return sendmsg(sock, &hdr, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -errno;
}

/* One message within the limit; its descriptors, at most 2. */
static int receive_message(int sock, struct session_msg *m, int fds[2], unsigned *ret_nfds)
{
    union {
        struct cmsghdr h;
        char buf[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec iov = {m, sizeof *m};
    struct msghdr hdr = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int64_t until = deadline_in(ANSWER_MS);
    ssize_t n;

    *ret_nfds = 0;
    while (poll(&p, 1, SLICE_MS) <= 0)
        if ((int64_t)now_ms() > until)
            return session_gone("it does not answer");
    memset(m, 0, sizeof *m);
    n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); n > 0 && c; c = CMSG_NXTHDR(&hdr, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        *ret_nfds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), *ret_nfds * sizeof(int));
    }
    if (n < (ssize_t)offsetof(struct session_msg, hello))
        return session_gone("it has closed the session");
    m->answer.text[sizeof m->answer.text - 1] = 0;
    return 0;
}

int session_ask_fd(struct session *s, const struct session_msg *m, size_t len, const int *fds,
                   unsigned nfds, struct session_msg *ret, int *ret_fd)
{
    bool heard = false;
    int got[2] = {-1, -1}, r;
    unsigned n = 0;

    assert_held(&s->calls);
    assert(m->id);
    r = send_message(s->sock, m, len, fds, nfds);
    r = r ? session_gone(strerror(-r)) : receive_message(s->sock, ret, got, &n);
    if (!r && ret->id == m->id && ret->type == SESSION_ANSWER && ret->answer.code) {
        heard = true;
        r = error_set(error_mine(), ret->answer.code < 0 ? ret->answer.code : COMMD_E_INTERNAL,
                      "run", "%s", ret->answer.text);
    } else if (!r) {
        heard = ret->id == m->id && ret->type == (ret_fd ? m->type : SESSION_ANSWER) &&
                n == (ret_fd != NULL);
        r = heard ? 0
                  : error_set(error_mine(), COMMD_E_PROTOCOL, "run",
                              "commd-gpu answers what nobody has asked");
    }
    if (!heard) /* a late answer would be taken for the next question's */
        session_lose(s, r == COMMD_E_PROTOCOL ? "commd-gpu does not answer as it should"
                                              : "commd-gpu is gone");
    if (!r && ret_fd)
        *ret_fd = steal_fd(&got[0]);
    close_fdp(&got[0]);
    close_fdp(&got[1]);
    return r;
}

int session_ask(struct session *s, const struct session_msg *m, size_t len, const int *fds,
                unsigned nfds)
{
    struct session_msg answer;

    return session_ask_fd(s, m, len, fds, nfds, &answer, NULL);
}

/* The socket stays open until session_unuse(). False: the session is lost. */
static bool session_use(struct session *s)
{
    atomic_fetch_add(&s->users, 1); /* before the look at lost: session_shut() has them reversed */
    if (!atomic_load(&s->lost))
        return true;
    atomic_fetch_sub(&s->users, 1);
    return false;
}

static void session_unuse(struct session *s)
{
    assert(atomic_load(&s->users) > 0);
    atomic_fetch_sub(&s->users, 1);
}

void session_shut(struct session *s)
{
    assert_held(&s->calls);
    if (!atomic_load(&s->lost) || atomic_load(&s->users))
        return;
    close_fdp(&s->sock);
    close_fdp(&s->bell);
}

int session_tell(struct session *s, const struct session_msg *m)
{
    int r;

    assert(m->type == SESSION_FORGET || m->type == SESSION_DETACH || m->type == SESSION_ABORT);
    if (!session_use(s))
        return -EPIPE;
    r = send_message(s->sock, m, sizeof *m, NULL, 0);
    session_unuse(s);
    return r;
}

/* ---- the beginning --------------------------------------------------------------------------- */

static int take_region(struct session *s, int fds[2], unsigned nfds)
{
    const struct cuda *cu = driver(NULL);
    struct session_flags *flags;
    void *map = NULL;
    size_t size;
    cu_result r;

    assert(!s->region);
    if (nfds != 2 || memfd_check(fds[0], sizeof *s->region, &size) || size != sizeof *s->region ||
        memfd_map_at(fds[0], size, SESSION_PAGE, &map))
        return error_set(error_mine(), COMMD_E_PROTOCOL, "run",
                         "commd-gpu does not give what a session needs");
    s->region = map;
    s->bell = steal_fd(&fds[1]);
    if (s->region->magic != SESSION_MAGIC || s->region->version != SESSION_VERSION)
        return error_set(error_mine(), COMMD_E_PROTOCOL, "run",
                         "commd-gpu is of another version than libcommd %s", commd_version());
    flags = &s->region->flags;
    r = cu->host_register(flags, sizeof *flags, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    if (!r)
        r = cu->host_pointer(&s->flags, flags, 0);
    return r ? driver_error("run", "cuMemHostRegister of a session's flags", r) : 0;
}

static int hello(struct session *s)
{
    struct session_msg m = {.type = SESSION_HELLO, .id = SESSION_VERSION};
    int fds[2] = {-1, -1}, r;
    unsigned nfds;

    assert(s->sock >= 0);
    m.hello.uuid = s->uuid;
    r = send_message(s->sock, &m, sizeof m, NULL, 0);
    if (r)
        return session_gone(strerror(-r));
    r = receive_message(s->sock, &m, fds, &nfds);
    if (!r && m.type == SESSION_ANSWER)
        r = error_set(error_mine(), m.answer.code < 0 ? m.answer.code : COMMD_E_INTERNAL, "run",
                      "%s", m.answer.text);
    else if (!r && m.type != SESSION_WELCOME)
        r = error_set(error_mine(), COMMD_E_PROTOCOL, "run", "commd-gpu does not welcome");
    if (!r) {
        s->nccl = m.welcome.nccl;
        r = take_region(s, fds, nfds);
    }
    close_fdp(&fds[0]);
    close_fdp(&fds[1]);
    return r;
}

static void session_free(struct session *s)
{
    assert(!s->memory && !s->leaving && !s->lent && !s->next);
    close_fdp(&s->sock);
    close_fdp(&s->bell);
    if (s->region)
        munmap(s->region, sizeof *s->region);
    pthread_mutex_destroy(&s->calls);
    pthread_mutex_destroy(&s->pend);
    free(s);
}

/* Asks for the socket of another session. */
static int ask_for_more(struct session *first, int *ret_sock)
{
    struct session_msg m = {.type = SESSION_MORE}, answer;
    int r;

    assert(first->first);
    pthread_mutex_lock(&first->calls);
    m.id = ++first->next_id;
    r = session_ask_fd(first, &m, sizeof m, NULL, 0, &answer, ret_sock);
    pthread_mutex_unlock(&first->calls);
    return r;
}

/* @first: the context's first session, NULL if this becomes it. */
static int session_new(struct device *dev, int gpu, struct session *first,
                       struct session **ret_session)
{
    struct session *s = calloc(1, sizeof *s);
    cu_device d;
    int r;

    assert(gpu >= 0 && (!first || first->first));
    if (!s)
        return error_set(error_mine(), COMMD_E_NOMEM, "run", "no memory for a session");
    s->ctx = dev->ctx;
    s->first = !first;
    s->lent_limit = MIN(dev->lent_limit, (size_t)SESSION_LENT_MOST);
    s->gpu = gpu;
    s->sock = s->bell = -1;
    pthread_mutex_init(&s->calls, NULL);
    pthread_mutex_init(&s->pend, NULL);
    r = driver(NULL)->device_get(&d, gpu) || driver(NULL)->device_uuid(&s->uuid, d)
            ? error_set(error_mine(), COMMD_E_INVALID, "run", "GPU %d has no uuid", gpu)
            : 0;
    if (!r)
        r = first ? ask_for_more(first, &s->sock) : control_gpu_ask(dev->ctx, &s->sock);
    if (!r)
        r = hello(s);
    if (r) {
        session_free(s);
        return r;
    }
    *ret_session = s;
    return 0;
}

/* The session for GPU @gpu, or for -1 the first; NULL: there is none that works. */
static struct session *session_find(const struct device *dev, int gpu)
{
    struct session *s = atomic_load(&dev->session);

    assert(gpu >= -1);
    while (s && (atomic_load(&s->lost) || (gpu < 0 ? !s->first : s->gpu != gpu)))
        s = s->next;
    return s;
}

int session_get(struct device *dev, int gpu, struct session **ret_session)
{
    struct session *s;
    int r = 0;

    assert(gpu >= 0);
    pthread_mutex_lock(&dev->sessions_lock);
    s = session_find(dev, gpu);
    if (!s) {
        r = session_new(dev, gpu, session_find(dev, -1), &s);
        if (!r) {
            s->next = atomic_load(&dev->session);
            atomic_store(&dev->session, s);
        }
    }
    pthread_mutex_unlock(&dev->sessions_lock);
    *ret_session = s;
    return r;
}

/* ---- the end of operations ------------------------------------------------------------------- */

static const bool announced_may[6][6] = {
    /* to:                CALLED READY WARNED GIVEN_UP PAST ENDED */
    [ANNOUNCED_CALLED] = {0, 1, 1, 1, 1, 1}, /* WARNED: of one that was declined */
    [ANNOUNCED_READY] = {0, 0, 1, 1, 1, 1},
    [ANNOUNCED_WARNED] = {0, 0, 0, 1, 1, 1},
    [ANNOUNCED_GIVEN_UP] = {0, 0, 0, 0, 1, 1},
    [ANNOUNCED_PAST] = {0, 0, 0, 0, 1, 1}, /* PAST: agreed anew, and left then */
    [ANNOUNCED_ENDED] = {0, 0, 0, 0, 0, 0},
};

static void announced_set(struct announced *a, enum announced_state to)
{
    assert(to <= ANNOUNCED_ENDED && announced_may[a->state][to]);
    a->state = to;
}

void announced_begin(struct announced *a, enum announced_state to, int64_t now)
{
    assert(to == ANNOUNCED_READY || to == ANNOUNCED_WARNED);
    announced_set(a, to);
    a->since_ms = now;
    a->deadline_ms = a->limit_ms < 0 ? -1 : now + a->limit_ms;
}

/* Copies the result out of the slot, before the slot is used again. */
static void announced_collect(struct announced *a)
{
    const struct device_group *dg = a->group;
    struct session_result r = a->session->region->results[a->n % SESSION_SLOTS];

    assert_held(&a->session->pend);
    assert(a->state != ANNOUNCED_ENDED);
    r.text[sizeof r.text - 1] = 0;
    if (!dg) {
        error_set(&a->error, COMMD_E_ABORTED, coll_name((unsigned)a->coll),
                  "the group was left while operations were pending");
        return;
    }
    if (!r.code)
        return;
    error_set(&a->error, r.code < 0 ? r.code : COMMD_E_INTERNAL, coll_name((unsigned)a->coll),
              "operation %llu on GPUs (%s) of group \"%s\": %.240s", (unsigned long long)a->seq,
              coll_name((unsigned)a->coll), dg->group->name, r.text);
    a->error.rank = r.rank;
    a->error.pid = (int)r.pid;
    a->error.epoch = dg->group->board.epoch;
    a->error.seq = a->seq;
}

static void announced_end(struct announced *a)
{
    struct device_group *dg = a->group;
    bool past = a->state == ANNOUNCED_PAST;

    assert_held(&a->session->pend);
    assert(!dg || atomic_load(&dg->pending) > 0);
    announced_collect(a);
    announced_set(a, ANNOUNCED_ENDED);
    if (a->lent)
        lent_give(a->session, steal_ptr(a->lent));
    if (!dg)
        return;
    if (commd_error_breaks_group(a->error.code))
        group_fail(dg->group, &a->error);
    if (a->tells != TELLS_CALL)
        note_ended(dg->group, (uint32_t)a->seq, a->error.code);
    if (a->error.code && a->tells == TELLS_NEXT_CALL)
        failure_note(dg, &a->error, past ? FAILURE_OWN : FAILURE_SHARED);
    /* behind the failure's note: a thread that agrees anew, or finds nothing pending, finds the
     * note. Of an operation of the past the other ranks may know nothing: no reason to agree anew
     */
    if (a->error.code == COMMD_E_GPU_LOST && !past)
        path_lost(dg);
    atomic_fetch_sub(&dg->pending, 1);
}

/* commd-gpu's part of the operation is over. */
static bool announced_done(const struct announced *a)
{
    return seq_reached(atomic_load_explicit(a->gate.done, memory_order_acquire),
                       session_mark(a->n));
}

bool session_ended(struct announced *a)
{
    assert_held(&a->session->pend);
    if (a->state != ANNOUNCED_ENDED && gate_landed(&a->gate))
        announced_end(a);
    return a->state == ANNOUNCED_ENDED;
}

void session_past(struct session *s, struct device_group *dg, bool leave)
{
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        struct announced *a = s->slots[i];

        if (!a || a->group != dg)
            continue;
        if (!session_ended(a))
            announced_set(a, ANNOUNCED_PAST);
        if (leave)
            a->group = NULL;
    }
    pthread_mutex_unlock(&s->pend);
}

void session_collect(struct device_group *dg)
{
    struct session *s = dg->session;

    assert(!s || dg->dev->ctx == s->ctx);
    if (!s || !atomic_load(&dg->pending))
        return;
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i] && s->slots[i]->group == dg)
            session_ended(s->slots[i]);
    pthread_mutex_unlock(&s->pend);
}

int session_tell_failure(struct device_group *dg)
{
    session_collect(dg);
    return failure_take(dg, error_mine()) ? error_mine()->code : 0;
}

void session_lose(struct session *s, const char *why)
{
    bool before;

    atomic_fetch_add(&s->users, 1);
    pthread_mutex_lock(&s->pend);
    before = atomic_load(&s->lost);
    if (!before) { /* `why` before `lost`: a thread that sees the one sees the other */
        snprintf(s->why, sizeof s->why, "%.200s; the next one starts commd-gpu again", why);
        atomic_store(&s->lost, true);
    }
    pthread_mutex_unlock(&s->pend);
    if (!before)
        shutdown(s->sock, SHUT_RDWR);
    session_unuse(s);
    if (!before)
        session_release(s);
}

void session_release(struct session *s)
{
    struct session_result lost = {.code = COMMD_E_GPU_LOST, .rank = -1};

    assert(atomic_load(&s->lost));
    snprintf(lost.text, sizeof lost.text, "%s", s->why);
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++) {
        struct announced *a = s->slots[i];

        if (!a || session_ended(a) || announced_done(a))
            continue;
        s->region->results[i] = lost;
        gate_tell(&a->gate, 1);
        session_ended(a);
    }
    pthread_mutex_unlock(&s->pend);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void ask_to_end(struct announced *a, const struct commd_error *why)
{
    struct session_msg m = {.type = SESSION_ABORT, .id = a->group->attached};

    assert_held(&a->session->pend);
    assert(a->group && a->group->attached && why->code);
    announced_set(a, ANNOUNCED_GIVEN_UP);
    m.answer.code = why->code;
    m.answer.rank = why->rank;
    snprintf(m.answer.text, sizeof m.answer.text, "%.*s", (int)sizeof m.answer.text - 1,
             why->message);
    if (!session_use(a->session))
        return;
    (void)!send(a->session->sock, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL);
    session_unuse(a->session);
}

/* A rank that has died, on whatever node: the board says so. A rank that has left may have
 * completed what is pending here; if it has not, its commd-gpu tells this node's. */
static bool somebody_died(struct device_group *dg, struct commd_error *e)
{
    const struct board *b = &dg->group->board;

    if (!atomic_load_explicit(&b->hdr->ngone, memory_order_acquire))
        return false;
    for (unsigned k = 0; k < b->world; k++) {
        struct board_rank *br = &b->ranks[k];

        if (!atomic_load_explicit(&br->gone, memory_order_acquire) || br->cause == CAUSE_LEFT)
            continue;
        error_set(e, COMMD_E_RANK_LOST, "run", "rank %u (pid %u on node %s) died", k, br->pid,
                  group_node_of(dg->group, k));
        e->rank = (int)k;
        return true;
    }
    return false;
}

/* Has the group ended for this rank, is it broken, or has a rank died? */
static bool group_broke(struct device_group *dg, struct commd_error *e)
{
    struct board_cause c;
    unsigned cause = board_broken(dg->group->board.hdr, &c);

    if (group_has_failed(dg->group, e))
        return true;
    if (!cause)
        return somebody_died(dg, e);
    error_set(e, -(int)cause, "run", "%s", c.text);
    e->rank = c.rank;
    return true;
}

static void warn(struct announced *a, int64_t now)
{
    const struct commd_group *g = a->group->group;
    char text[240];

    assert_held(&a->session->pend);
    assert(a->group && now >= a->since_ms);
    announced_set(a, ANNOUNCED_WARNED);
    if (!note_speaks(g, (uint32_t)a->seq))
        return;
    note_missing(g, (uint32_t)a->seq, text, sizeof text);
    fprintf(stderr,
            "commd: rank %u of group \"%s\" on node %s has waited for %.1f s in operation %llu on "
            "GPUs (%s): %s; commctl why says more\n",
            g->rank, g->name, g->ctx->node, (double)(now - a->since_ms) / 1000,
            (unsigned long long)a->seq, coll_name((unsigned)a->coll), text);
}

static void watch_one(struct announced *a, int64_t now)
{
    struct commd_error e;

    assert_held(&a->session->pend);
    if (session_ended(a) || announced_done(a) || a->state >= ANNOUNCED_GIVEN_UP)
        return;
    assert(a->group);
    if (group_broke(a->group, &e)) {
        ask_to_end(a, &e);
        return;
    }
    if (a->state == ANNOUNCED_CALLED && !gate_full(&a->gate))
        return;
    if (a->state == ANNOUNCED_CALLED)
        announced_begin(a, ANNOUNCED_READY, now);
    if (a->tells != TELLS_CALL)
        note_ready(a->group->group, (uint32_t)a->seq, (uint64_t)now);
    if (a->state == ANNOUNCED_READY && a->session->ctx->warn_ms &&
        now - a->since_ms >= a->session->ctx->warn_ms)
        warn(a, now);
    if (a->deadline_ms < 0 || now < a->deadline_ms)
        return;
    error_set(&e, COMMD_E_TIMEOUT, coll_name((unsigned)a->coll),
              "rank %u ran into its timeout of "
              "%lld ms",
              a->group->group->rank, (long long)a->limit_ms);
    ask_to_end(a, &e);
}

void sessions_watch(struct device *dev)
{
    for (struct session *s = atomic_load(&dev->session); s; s = s->next)
        if (!atomic_load(&s->lost))
            session_watch(s);
}

void session_watch(struct session *s)
{
    int64_t now = (int64_t)now_ms();
    char byte;
    ssize_t n;

    if (!session_use(s))
        return;
    n = recv(s->sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    session_unuse(s);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        session_lose(s, "commd-gpu is gone");
        return;
    }
    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i])
            watch_one(s->slots[i], now);
    pthread_mutex_unlock(&s->pend);
}
