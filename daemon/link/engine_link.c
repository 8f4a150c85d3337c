/* engine_link.c - watches commd-engine or commd-gpu. "The engine" is either of them.
 *
 *   DOWN      no process                          wakes: engine_link_start()
 *   RUNNING   process and socket                  wakes: socket, pidfd
 *   ENDING    the socket was closed, or sent nonsense. The pidfd will tell why the process ended;
 *             after ENGINE_LINGER_MS the process is killed
 *
 * If commd is replaced while the process runs, the next commd takes it over: engine_adopt.c.
 *
 * The socket and the pidfd are both watched. A process that hangs in its exit keeps the pidfd
 * silent; a leaked descriptor keeps the socket open. What the engine wrote before it died is
 * delivered first: its last message may say why.
 *
 * An engine under another user is not our child, and we may not signal it. Then the connection to
 * its launcher, the keeper, takes the place of the pidfd: the launcher tells there how the engine
 * ended, and a packet that we send there kills the engine.
 *
 * Each life of an engine has 32 random bytes of its own. The tokens that other nodes' engines show
 * to this engine are made from them. Tokens go to the nodes over TLS only.
 *
 * Starting, adopting and sending never call the owner: the timer reports the outcome in the next
 * turn. */
#include "daemon/link/engine_link_priv.h"

#include <assert.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "daemon/process/clock.h"
#include "daemon/link/sock.h"
#include "daemon/process/files.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
#include "daemon/link/tls.h"
#include "shm/launch/launch.h"

enum {
    ENGINE_BUDGET = 64,
    ENGINE_LAST_BUDGET = 1024,
    ENGINE_LINGER_MS = 50,
    ENGINE_MAX_UNSENT = 64 << 20, /* more than the announcements of all possible boards */
    ENGINE_RETRY_MS = 20,         /* after STREAM_LATER */
};

/* clang-format off */
static const bool engine_may[3][3] = { /* rows: from; columns: DOWN RUNNING ENDING */
    [ENGINE_DOWN]    = {1, 1, 0}, /* DOWN again: it could not be started */
    [ENGINE_RUNNING] = {1, 0, 1},
    [ENGINE_ENDING]  = {1, 0, 0},
};
/* clang-format on */

static void engine_set_state(struct engine_link *link, enum engine_state state)
{
    assert(engine_may[link->state][state]);
    link->state = state;
}

static void event_freep(struct event **event)
{
    if (*event)
        event_free(*event);
    *event = NULL;
}

/* Forgets the process. It has been reaped, or was never started. */
void link_clear(struct engine_link *link)
{
    event_freep(&link->read);
    event_freep(&link->write);
    event_freep(&link->died);
    event_del(link->retry);
    stream_fini(&link->stream);
    link_forget(link);
    close_fdp(&link->line);
    close_fdp(&link->pidfd);
    close_fdp(&link->keeper);
    if (link->state != ENGINE_DOWN)
        file_remove_pid(link->pid_file);
    engine_set_state(link, ENGINE_DOWN);
    link->pid = 0;
    link->adopted = false;
    link->report_started = false;
    link->doom[0] = '\0';
    explicit_bzero(link->secret, sizeof(link->secret));
}

static void link_report(struct engine_link *link)
{
    event_active(link->timer, EV_TIMEOUT, 0);
}

void link_kill(struct engine_link *link)
{
    if (link->keeper >= 0)
        (void)!send(link->keeper, "k", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        syscall(SYS_pidfd_send_signal, link->pidfd, SIGKILL, NULL, 0);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Keeps the listening socket that came with the engine's hello. While it is open, no other program
 * can take the port. The next engine gets it, and so does the next commd. */
static void keep_port(struct engine_link *link)
{
    _cleanup_(close_fdp) int fd = stream_take_fd(&link->stream);
    struct stat old, new;
    struct sock_addr addr;

    if (fd < 0 || !sock_listens(fd, &addr) || fstat(fd, &new) ||
        (link->port >= 0 && !fstat(link->port, &old) && old.st_ino == new.st_ino))
        return;
    close_fdp(&link->port);
    link->port = steal_fd(&fd);
    store_put("engine", link->port); /* if it fails, another program may take the port */
}

/* STREAM_OK: there may be more. */
static enum stream_result link_take(struct engine_link *link, unsigned budget)
{
    const char *why;
    struct msg msg;

    while (budget--) {
        enum stream_result r = stream_next(&link->stream, &msg, &why);

        if (r == STREAM_GARBAGE)
            log_error("%s pid %d: protocol error: %s -> killing it", link->program.words,
                      (int)link->pid, why);
        if (r != STREAM_OK)
            return r;
        if (msg.type == MSG_ENGINE_HELLO)
            keep_port(link);
        link->ops->msg(link->arg, &msg);
        msg_fini(&msg);
        assert(link->state ==
               ENGINE_RUNNING); /* the owner can kill the process; its end comes later */
    }
    return STREAM_OK;
}

/* The engine has closed its socket, or sent nonsense: it has to end. */
static void link_ending(struct engine_link *link, bool kill)
{
    struct timeval tv = clock_timeval(ENGINE_LINGER_MS);

    assert(link->state == ENGINE_RUNNING);
    engine_set_state(link, ENGINE_ENDING);
    event_del(link->read);
    event_del(link->write);
    if (kill)
        link_kill(link);
    event_add(link->timer, &tv);
}

static void engine_read(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *link = arg;
    enum stream_result r;

    if (link->state != ENGINE_RUNNING)
        return;
    if (link->keeper >= 0 && !link->pid) { /* keeper_read() learns the pid first */
        event_del(link->read);
        return;
    }
    r = link_take(link, ENGINE_BUDGET);
    if (r == STREAM_OK)
        event_active(link->read, EV_READ, 0);
    else if (r != STREAM_AGAIN)
        link_ending(link, r != STREAM_EOF);
}

/* Ignores STREAM_FAILED: the reading side finds the end of file and handles it. */
static void link_flush(struct engine_link *link)
{
    struct timeval tv = clock_timeval(ENGINE_RETRY_MS);
    enum stream_result r = stream_flush(&link->stream);

    if (r == STREAM_AGAIN)
        event_add(link->write, NULL);
    else
        event_del(link->write);
    if (r == STREAM_LATER)
        event_add(link->retry, &tv);
}

static void engine_write(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *link = arg;

    if (link->state == ENGINE_RUNNING)
        link_flush(link);
}

/* ---- the end of a life ----------------------------------------------------------------------- */

static void exit_text(int code, int status, char *buf, size_t len)
{
    if (code == CLD_EXITED && status == 127)
        snprintf(buf, len, "it could not be executed");
    else if (code == CLD_EXITED)
        snprintf(buf, len, "exited with status %d", status);
    else
        snprintf(buf, len, "killed by signal %d", status);
}

/* The process is gone. */
static void link_ended(struct engine_link *link, const char *why)
{
    char text[MSG_TEXT_MAX];

    if (link->state == ENGINE_RUNNING)
        link_take(link, ENGINE_LAST_BUDGET);
    snprintf(text, sizeof(text), "%s", link->doom[0] ? link->doom : why);
    link_clear(link);
    link->ops->down(link->arg, text);
}

static void keeper_read(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *link = arg;
    struct launch_answer a = {0};
    char text[MSG_TEXT_MAX];
    ssize_t n = recv(link->keeper, &a, sizeof(a), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == sizeof(a) && a.kind == LAUNCH_STARTED) {
        if (link->pid)
            return; /* it has said so before */
        link->pid = a.value;
        link->uid = (uint32_t)a.code;
        file_write_pid(link->pid_file, link->pid);
        link->ops->started(link->arg, (uint32_t)link->pid);
        event_add(link->read, NULL);
        return;
    }
    if (n == sizeof(a) && a.kind == LAUNCH_EXITED)
        exit_text(a.code, a.value, text, sizeof(text));
    else if (n == sizeof(a) && a.kind == LAUNCH_FAILED)
        snprintf(text, sizeof(text), "its launcher could not start it: %s", strerror(a.value));
    else
        snprintf(text, sizeof(text), "its launcher %s ended", link->launcher);
    link_ended(link, text);
}

static void engine_died(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *link = arg;
    char text[MSG_TEXT_MAX];
    siginfo_t si = {0};

    if (link->adopted)
        snprintf(text, sizeof(text),
                 "it has ended; how is not known, because the commd before this "
                 "one had started it");
    else if (waitid(P_PIDFD, (id_t)link->pidfd, &si, WEXITED | WNOHANG) || si.si_pid == 0)
        return;
    else
        exit_text(si.si_code, si.si_status, text, sizeof(text));
    link_ended(link, text);
}

static void engine_timer(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *link = arg;

    if (link->state == ENGINE_DOWN && link->doom[0]) {
        char text[MSG_TEXT_MAX];

        snprintf(text, sizeof(text), "%s", link->doom);
        link_clear(link);
        link->ops->down(link->arg, text);
    } else if (link->state == ENGINE_ENDING || link->doom[0]) {
        link_kill(link);
    } else if (link->report_started) {
        link->report_started = false;
        link->ops->started(link->arg, (uint32_t)link->pid);
    }
}

/* ---- what the owner may ask ------------------------------------------------------------------ */

int link_run(struct engine_link *link, int sock)
{
    engine_set_state(link, ENGINE_RUNNING);
    link->life++;
    stream_init(&link->stream, sock, CODEC_MAX_CLIENT_FRAME);
    link->stream.closer = link->closer;
    link->stream.keeps_fds = link->keeps_port;
    link->read = event_new(link->base, sock, EV_READ | EV_PERSIST, engine_read, link);
    link->write = event_new(link->base, sock, EV_WRITE | EV_PERSIST, engine_write, link);
    if (link->keeper >= 0)
        link->died = event_new(link->base, link->keeper, EV_READ | EV_PERSIST, keeper_read, link);
    else
        link->died = event_new(link->base, link->pidfd, EV_READ | EV_PERSIST, engine_died, link);
    if (!link->read || !link->write || !link->died || event_add(link->read, NULL) ||
        event_add(link->died, NULL)) {
        engine_link_end(link);
        return -ENOMEM;
    }
    return 0;
}

static int link_spawn(struct engine_link *link)
{
    struct engine_fds fds;
    int r;

    if (getrandom(link->secret, sizeof(link->secret), 0) != sizeof(link->secret))
        return -EIO;
    link->uid = geteuid();
    r = link->launcher[0]
            ? engine_launch(&link->program, link->port, link->launcher, &fds)
            : engine_spawn(&link->program, link->port, store_is_kept(), &link->pid, &fds);
    if (r)
        return r;
    link->line = fds.line;
    link->pidfd = fds.pidfd;
    link->keeper = fds.keeper;
    r = link_run(link, fds.sock);
    if (r == 0)
        link_keep(link);
    return r;
}

void engine_link_start(struct engine_link *link)
{
    int r;

    if (link->state != ENGINE_DOWN)
        return;
    r = link_spawn(link);
    if (r) {
        snprintf(link->doom, sizeof(link->doom), "cannot start %s%s: %s",
                 link->launcher[0] ? "it by its launcher " : "",
                 link->launcher[0] ? link->launcher : link->program.path, strerror(-r));
        return link_report(link);
    }
    if (link->keeper >= 0)
        return; /* keeper_read() calls started() */
    file_write_pid(link->pid_file, link->pid);
    link->report_started = true;
    link_report(link);
}

void engine_link_set_program(struct engine_link *link, const struct program *program)
{
    link->program = *program;
}

void engine_link_kill(struct engine_link *link)
{
    if (link->state != ENGINE_DOWN)
        link_kill(link);
}

void engine_link_send(struct engine_link *link, const struct msg *msg, const int *fds,
                      unsigned nfds)
{
    int r;

    if (link->state != ENGINE_RUNNING || link->doom[0])
        return;
    r = link->stream.out_bytes > ENGINE_MAX_UNSENT ? -ENOBUFS
                                                   : stream_send(&link->stream, msg, fds, nfds);
    if (r) {
        /* This engine would lack a part of the state for ever, so another one is started. */
        snprintf(link->doom, sizeof(link->doom), "killed: %s could not be sent to it: %s",
                 msg_type_name(msg->type), strerror(-r));
        return link_report(link);
    }
    link_flush(link);
}

unsigned engine_link_life(const struct engine_link *link)
{
    return link->state == ENGINE_RUNNING ? link->life : 0;
}

bool engine_link_is(const struct engine_link *link, uint32_t pid, uint32_t uid)
{
    struct pollfd p = {.events = POLLRDHUP};

    if (!link || link->state != ENGINE_RUNNING || !link->pid || (uint32_t)link->pid != pid ||
        link->uid != uid)
        return false;
    p.fd = link->stream.fd;
    return poll(&p, 1, 0) == 0;
}

int engine_link_token(const struct engine_link *link, const char *node, uint8_t ret_token[32])
{
    return tls_token(link->secret, node, ret_token);
}

int engine_link_new(const struct engine_link_config *config, struct engine_link **ret_link)
{
    struct engine_link *link = calloc(1, sizeof(*link));

    if (!link)
        return -ENOMEM;
    link->base = config->base;
    link->ops = config->ops;
    link->arg = config->arg;
    link->closer = config->closer;
    link->pidfd = link->keeper = link->line = -1;
    link->name = config->name;
    link->keeps_port = config->keeps_port;
    link->port = config->keeps_port ? config->port : -1;
    snprintf(link->launcher, sizeof(link->launcher), "%s",
             config->launcher ? config->launcher : "");
    stream_init(&link->stream, -1, 0);
    link->program = *config->program;
    snprintf(link->pid_file, sizeof(link->pid_file), "%s", config->pid_file);
    link->timer = evtimer_new(link->base, engine_timer, link);
    link->retry = evtimer_new(link->base, engine_write, link);
    if (!link->timer || !link->retry) {
        event_freep(&link->timer);
        event_freep(&link->retry);
        free(link);
        return -ENOMEM;
    }
    *ret_link = link;
    return 0;
}

struct engine_link *engine_link_free(struct engine_link *link)
{
    if (!link)
        return NULL;
    engine_link_end(link);
    close_fdp(&link->port);
    event_freep(&link->timer);
    event_freep(&link->retry);
    free(link);
    return NULL;
}
