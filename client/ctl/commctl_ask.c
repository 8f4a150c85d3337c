/* commctl_ask.c - one question to the local daemon.
 *
 * Which daemon: --socket, else $COMMD_SOCKET, else the system's, else the user's own. A socket
 * that was named is the only one tried. Without a name the user's own is tried when nobody
 * listens at the system's. Any other failure there is reported: the operator has to know of a
 * daemon that does not answer.
 *
 * The conversation: CLIENT_HELLO (admin) -> WELCOME, ADMIN -> TABLES; at any point REFUSED.
 * One deadline covers all of it. Every way to fail ends in one line: where, what, what to do. */
#include <stdio.h>
#include <sys/socket.h>

#include "client/ctl/commctl.h"
#include "client/ctl/stack.h"
#include "shm/util/socket_path.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

#define IS_IT_RUNNING "is the service running? systemctl status commd"

/* Is another try worth while? */
static bool is_gone(int r)
{
    return place_is_empty(r) || r == -ETIMEDOUT || r == -ECONNRESET || r == -EPIPE;
}

static void say_timeout(const char *path, int64_t timeout_ms)
{
    complain("%s: no answer within %g s; commd is busy or stopped: journalctl -u commd", path,
             (double)timeout_ms / 1000);
}

static void say_no_connection(const char *path, int error, int64_t timeout_ms)
{
    if (place_is_empty(-error))
        complain("%s: no commd is listening there (%s); " IS_IT_RUNNING, path, strerror(error));
    else if (error == EACCES || error == EPERM)
        complain("%s: this user may not connect (%s); run as root or as a user whom the "
                 "socket's permissions admit",
                 path, strerror(error));
    else if (error == ENAMETOOLONG)
        complain("%s: too long for a socket's path (107 bytes); use a shorter one", path);
    else if (error == ETIMEDOUT)
        say_timeout(path, timeout_ms);
    else
        complain("%s: cannot connect (%s)", path, strerror(error));
}

static int ask_connect(struct ask *ask, int *ret_sock)
{
    const char *named = ask->socket ? ask->socket : getenv("COMMD_SOCKET");
    char dir[PLACE_MAX], own[PLACE_SOCKET_MAX];
    int r, r_own;

    if (named && !*named)
        named = NULL;
    snprintf(ask->path, sizeof(ask->path), "%s", named ? named : PLACE_SYSTEM_SOCKET);
    r = place_connect(named ? named : PLACE_SYSTEM_SOCKET, ask->timeout_ms, ret_sock);
    if (r == 0)
        return 0;
    ask->gone = is_gone(r);
    place_own_socket(dir, own);
    if (named || !place_is_empty(r)) {
        say_no_connection(named ? named : PLACE_SYSTEM_SOCKET, -r, ask->timeout_ms);
        return r;
    }
    r_own = place_connect_own(own, ask->timeout_ms, ret_sock);
    snprintf(ask->path, sizeof(ask->path), "%s", own);
    if (r_own == 0)
        return 0;
    ask->gone = is_gone(r_own);
    if (place_is_empty(r_own))
        complain("%s: no commd is listening there (%s), nor at %s; " IS_IT_RUNNING,
                 PLACE_SYSTEM_SOCKET, strerror(-r), own);
    else
        say_no_connection(own, -r_own, ask->timeout_ms);
    return r_own;
}

/* Who listens there; 0: it cannot be seen from here. */
static uint32_t pid_behind(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.pid < 0
               ? 0
               : (uint32_t)peer.pid;
}

/* Says it if the commd that listens there has been stopped: it will not answer. A commd that a
 * debugger holds may go on at once, and is asked. */
static bool say_halted(struct ask *ask, int sock)
{
    uint32_t pid = pid_behind(sock);
    char path[64], buf[512], *end;

    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    if (!pid || !read_text(path, buf, sizeof(buf)))
        return false;
    end = strrchr(buf, ')');
    if (!end || strncmp(end, ") T", 3))
        return false;
    ask->gone = true;
    complain("%s: commd (pid %u) is stopped, by SIGSTOP or job control: kill -CONT %u", ask->path,
             pid, pid);
    return true;
}

/* @r: from msg_send_fd() or msg_recv_fd(). @welcomed: it is commd. */
static void say_broken(const struct ask *ask, int r, const char *why, bool welcomed)
{
    if (r == -ETIMEDOUT)
        say_timeout(ask->path, ask->timeout_ms);
    else if (r == -ECONNRESET && welcomed)
        complain("%s: commd closed the connection before it answered; see its log: "
                 "journalctl -u commd",
                 ask->path);
    else if (r == -ECONNRESET)
        complain("%s: connected, but closed without an answer; it is not commd, or commd is "
                 "shutting down",
                 ask->path);
    else if (r == -EPROTONOSUPPORT)
        complain("%s: answered, but speaks %s; use the commctl that came with it", ask->path, why);
    else if (r == -EPROTO)
        complain("%s: answered, but is not commd (%s)", ask->path, why);
    else
        complain("%s: %s", ask->path, strerror(-r));
}

static bool exchange(struct ask *ask, int sock, const struct msg *question, enum msg_type expected,
                     int64_t deadline, struct msg *ret_answer)
{
    bool welcomed = expected != MSG_WELCOME;
    const char *why = "";
    struct msg answer;
    unsigned nfds;
    int r, sent;

    /* A daemon that refuses may be gone before our question is out; its reason comes first. */
    sent = msg_send_fd(sock, question, NULL, 0, deadline);
    r = msg_recv_fd(sock, &answer, NULL, 0, &nfds, deadline, &why);
    if (r) {
        if (r == -ETIMEDOUT && say_halted(ask, sock))
            return false;
        ask->gone = is_gone(sent && sent != -ECONNRESET ? sent : r);
        say_broken(ask, sent && sent != -ECONNRESET ? sent : r, why, welcomed);
        return false;
    }
    if (answer.type == expected) {
        *ret_answer = answer;
        return true;
    }
    if (answer.type == MSG_REFUSED)
        complain("%s: refused (%s): %s", ask->path, cause_name(answer.refused.cause),
                 answer.refused.text);
    else
        complain("%s: answered, but not what was asked (%s instead of %s)", ask->path,
                 msg_type_name(answer.type), msg_type_name(expected));
    msg_fini(&answer);
    return false;
}

bool ask_tables(struct ask *ask, const char *verb, struct msg *ret_tables)
{
    _cleanup_(close_fdp) int sock = -1;
    int64_t deadline = (int64_t)now_ms() + ask->timeout_ms;
    struct msg msg = {.type = MSG_CLIENT_HELLO}, answer;

    ask->gone = false;
    if (ask_connect(ask, &sock))
        return false;
    if (say_halted(ask, sock))
        return false;
    msg.client_hello =
        (struct msg_client_hello){.version = MSG_VERSION, .admin = 1, .program = "commctl"};
    if (!exchange(ask, sock, &msg, MSG_WELCOME, deadline, &answer))
        return false;
    ask->welcome = answer.welcome;
    ask->welcome.pid = pid_behind(sock); /* as it is called here, if at all */
    msg.type = MSG_ADMIN;
    msg.admin = (struct msg_admin){.watch_ms = ask->watch_ms, .records = ask->records};
    msg.admin.links = ask->links;
    msg.admin.since = ask->since;
    msg.admin.pid = ask->pid;
    msg.admin.rank = ask->rank;
    snprintf(msg.admin.text, sizeof(msg.admin.text), "%s", ask->text ? ask->text : "");
    snprintf(msg.admin.verb, sizeof(msg.admin.verb), "%s", verb);
    snprintf(msg.admin.group, sizeof(msg.admin.group), "%s", ask->group ? ask->group : "");
    return exchange(ask, sock, &msg, MSG_TABLES, deadline, ret_tables);
}
