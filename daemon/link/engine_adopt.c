/* engine_adopt.c - an engine goes on when its commd dies, and the next commd takes it over. "The
 * engine" is commd-engine or commd-gpu.
 *
 * Kept by whoever starts commd again (daemon/process/store.h), as long as the engine runs:
 *   NAME.line     our end of the line: transport/process/control.c
 *   NAME.pid      its pidfd; or, if a launcher has started it,
 *   NAME.launch   the connection to the launcher
 * What else has to be known of it is a record of the state (daemon/takeover_engine.c).
 *
 * The engine ends when nobody has the line any more: so it need not be told who keeps what, and
 * none is left when commd and its keeper have gone. shutdown() of the line ends it in any case.
 *
 * Taking over: a new control socket goes over the line. If that fails the engine has ended while no
 * commd was there. If this commd dies before the engine has taken the socket, the next one sends
 * another. An engine that cannot be taken over is ended: its members are told through their boards.
 * It is not our child, so how it ends is not known. */
#include "daemon/link/engine_link_priv.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/process/clock.h"
#include "daemon/process/files.h"
#include "daemon/process/log.h"
#include "daemon/process/store.h"
#include "shm/launch/launch.h"

enum { ENGINE_STOP_MS = 300 }; /* so long the engine has to close its fabric */

/* ---- for the next commd ---------------------------------------------------------------------- */

static const char *const parts[] = {"line", "pid", "launch"};
enum { PARTS = ARRAY_LEN(parts) };

static void part_name(const struct engine_link *link, unsigned part, char ret_name[STORE_NAME_MAX])
{
    snprintf(ret_name, STORE_NAME_MAX, "%s.%s", link->name, parts[part]);
}

void link_forget(struct engine_link *link)
{
    char name[STORE_NAME_MAX];

    for (unsigned i = 0; i < PARTS; i++) {
        part_name(link, i, name);
        store_drop(name);
    }
}

void link_keep(struct engine_link *link)
{
    const int fds[PARTS] = {link->line, link->pidfd, link->keeper};
    char name[STORE_NAME_MAX];
    int r = 0;

    for (unsigned i = 0; i < PARTS && r == 0; i++) {
        part_name(link, i, name);
        if (fds[i] >= 0)
            r = store_put(name, fds[i]);
    }
    if (r == 0)
        return;
    log_warn("%s cannot be kept for the next commd: %s -> it ends with this one",
             link->program.words, strerror(-r));
    link_forget(link);
}

void engine_link_kept(const struct engine_link *link, struct engine_kept *ret_kept)
{
    *ret_kept = (struct engine_kept){.pid = (uint32_t)link->pid, .uid = link->uid};
    memcpy(ret_kept->secret, link->secret, sizeof(ret_kept->secret));
}

/* ---- of the commd before --------------------------------------------------------------------- */

int engine_link_adopt(struct engine_link *link, const struct engine_kept *kept)
{
    int *const fds[PARTS] = {&link->line, &link->pidfd, &link->keeper};
    char name[STORE_NAME_MAX];
    int sock = -1, r = -ENOENT;

    for (unsigned i = 0; i < PARTS; i++) {
        part_name(link, i, name);
        *fds[i] = store_take(name);
    }
    link->adopted = true;
    if (kept && link->line >= 0 && (link->pidfd >= 0 || link->keeper >= 0))
        r = engine_resume(link->line, &sock);
    if (r) {
        engine_link_end(link);
        return r;
    }
    link->pid = (pid_t)kept->pid;
    link->uid = kept->uid;
    memcpy(link->secret, kept->secret, sizeof(link->secret));
    file_write_pid(link->pid_file, link->pid);
    return link_run(link, sock);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Until the launcher tells the end. */
static bool await_keeper(int keeper)
{
    struct pollfd p = {.fd = keeper, .events = POLLIN};
    struct launch_answer a = {0};
    uint64_t until = clock_ms() + ENGINE_STOP_MS, now;

    do {
        now = clock_ms();
        if (now >= until || poll(&p, 1, (int)(until - now)) <= 0)
            return false;
    } while (recv(keeper, &a, sizeof(a), MSG_DONTWAIT) == sizeof(a) && a.kind == LAUNCH_STARTED);
    return true;
}

/* The process is asked to end, or killed. */
static bool await_end(const struct engine_link *link)
{
    struct pollfd p = {.fd = link->pidfd, .events = POLLIN};

    if (link->keeper >= 0)
        return await_keeper(link->keeper);
    return link->pidfd < 0 || poll(&p, 1, ENGINE_STOP_MS) > 0;
}

void engine_link_end(struct engine_link *link)
{
    close_fdp(&link->stream.fd);
    if (link->line >= 0)
        shutdown(link->line, SHUT_RDWR);
    if (!await_end(link)) {
        link_kill(link);
        await_end(link);
    }
    if (link->pidfd >= 0 && !link->adopted)
        waitid(P_PIDFD, (id_t)link->pidfd, &(siginfo_t){0}, WEXITED);
    link_clear(link);
}
