/* session.c - a process's session at commd-gpu: how it comes about, how questions are answered, and
 * how it is lost. How operations end is in session_ends.c.
 *
 * A context has one session for each GPU that its groups work on. commd makes the first session.
 * The others are asked for through the first one (SESSION_MORE), and end with it.
 *
 * commd gives one end of the first session's socket to each side. If it dies before both have it,
 * the side that has it finds that it has ended, and the next commd is asked. Later commd has no
 * part in a session.
 *
 * Locks: device_group.lock, then device.sessions_lock, then session.calls, then session.pend. The
 * progress thread takes pend alone. Sessions are kept for good: streams may wait for words in their
 * pages. */
#include "client/lib/device/session.h"

#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shm/util/memfd.h"
#include "shm/util/fds.h"

enum { ANSWER_MS = 60000, SLICE_MS = 100, ASK_TRIES = 3 };

/* ---- questions ------------------------------------------------------------------------------- */

static int session_gone(const char *why)
{
    return error_set(error_mine(), COMMD_E_GPU_LOST, "run", "commd-gpu is gone: %s", why);
}

static int send_message(int sock, const void *m, size_t len, const int *fds, unsigned nfds)
{
    ssize_t n = fds_send(sock, m, len, fds, nfds, 0);

    return n == (ssize_t)len ? 0 : n < 0 ? (int)n : -EMSGSIZE;
}

/* One message within the limit; its descriptors, at most 2. */
static int receive_message(int sock, struct session_msg *m, int fds[2], unsigned *ret_nfds)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int64_t until = deadline_in(ANSWER_MS);
    ssize_t n;
    bool cut;

    *ret_nfds = 0;
    while (poll(&p, 1, SLICE_MS) <= 0)
        if ((int64_t)now_ms() > until)
            return session_gone("it does not answer");
    memset(m, 0, sizeof *m);
    n = fds_recv(sock, m, sizeof *m, fds, 2, ret_nfds, 0, &cut);
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

bool session_use(struct session *s)
{
    atomic_fetch_add(&s->users, 1); /* before the look at lost: session_shut() has them reversed */
    if (!atomic_load(&s->lost))
        return true;
    atomic_fetch_sub(&s->users, 1);
    return false;
}

void session_unuse(struct session *s)
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
    return driver_error("run", "cuMemHostRegister of a session's flags", r);
}

/* *ret_heard: there was an answer. */
static int hello(struct session *s, bool *ret_heard)
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
    *ret_heard = !r;
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
    assert(!s->memory);
    assert(!s->leaving);
    assert(!s->lent);
    assert(!s->next);
    close_fdp(&s->sock);
    close_fdp(&s->bell);
    if (s->region)
        munmap(s->region, sizeof *s->region);
    pthread_mutex_destroy(&s->calls);
    pthread_mutex_destroy(&s->pend);
    free(s);
}

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

static bool has_ended(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};

    return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

static int session_begin(struct session *s, struct session *first)
{
    bool heard = false;
    int r;

    if (first) {
        r = ask_for_more(first, &s->sock);
        return r ? r : hello(s, &heard);
    }
    for (unsigned tries = 1;; tries++) {
        r = control_gpu_ask(s->ctx, &s->sock);
        if (r)
            return r;
        r = hello(s, &heard);
        if (!r || heard || tries == ASK_TRIES || !has_ended(s->sock))
            return r;
        close_fdp(&s->sock);
    }
}

/* @first: the context's first session, NULL if this becomes it. */
static int session_new(struct device *dev, int gpu, struct session *first,
                       struct session **ret_session)
{
    struct session *s = calloc(1, sizeof *s);
    cu_device d;
    int r;

    assert(gpu >= 0);
    assert((!first || first->first));
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
        r = session_begin(s, first);
    if (r) {
        session_free(s);
        return r;
    }
    *ret_session = s;
    return 0;
}

/* The session for GPU @gpu, or for -1 the first; NULL: there is none that works. It may have ended
 * while nobody looked. */
static struct session *session_find(const struct device *dev, int gpu)
{
    struct session *s;

    assert(gpu >= -1);
    for (s = atomic_load(&dev->session); s; s = s->next) {
        bool ended;

        if ((gpu < 0 ? !s->first : s->gpu != gpu) || !session_use(s))
            continue;
        ended = has_ended(s->sock);
        session_unuse(s);
        if (!ended)
            return s;
        session_lose(s, "commd-gpu is gone");
    }
    return NULL;
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

/* ---- the end --------------------------------------------------------------------------------- */

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
