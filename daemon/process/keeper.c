/* keeper.c - the keeper: one thread that waits, no configuration, no socket that others could
 * reach.
 *
 * commd is its child, and becomes the program anew at each start: after an upgrade that is the new
 * one. The two talk over a pair of sockets of this one life of commd, by the protocol of systemd
 * (store.c). No stranger has an end of it, so whose message it is need not be asked. What a commd
 * has sent before it died is read before its end is acted on.
 *
 * The child has a session of its own: else Ctrl-C on a terminal would reach commd twice, once by
 * the keeper, and a second signal ends commd without any farewell.
 *
 * As the first process of a container the keeper also takes the exit codes of processes that nobody
 * waits for. What its own service manager is to know, such as READY=1, it passes on. */
#include "daemon/process/keeper.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/process/clock.h"
#include "daemon/process/keeper_life.h"
#include "daemon/process/kept.h"
#include "daemon/process/log.h"
#include "daemon/process/notify.h"
#include "shm/util/fds.h"

enum { MESSAGE_MAX = 4096, EXIT_NOT_STARTED = 1 };

struct keeper {
    const struct keeper_config *config;
    struct keeper_life life;
    struct kept kept;
    char program[4096];
    sigset_t before; /* the signal mask that commd gets */
    int signals;     /* owned */
    int message;     /* owned: from commd; -1: it has closed it, or does not run */
    pid_t pid;       /* 0: commd does not run */
    bool told;       /* config->serves() was called */
};

/* ---- starting commd -------------------------------------------------------------------------- */

/* commd says it to people. */
static int tell_deaths(const struct restarts *restarts)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", restarts->soon);
    if (!restarts_wait(restarts))
        return unsetenv(KEEPER_DEATHS) ? -errno : 0;
    return setenv(KEEPER_DEATHS, text, 1) ? -errno : 0;
}

static void __attribute__((noreturn)) become_commd(struct keeper *k, int message, pid_t keeper)
{
    int r;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != keeper)
        _exit(EXIT_NOT_STARTED); /* it has died in between */
    setsid();
    log_set_fd(STDERR_FILENO); /* the number of the log may be another's soon */
    r = kept_hand_over(&k->kept, message);
    if (!r)
        r = tell_deaths(&k->life.restarts);
    sigprocmask(SIG_SETMASK, &k->before, NULL);
    if (!r) {
        execv(k->program, k->config->argv);
        execv("/proc/self/exe", k->config->argv); /* in the middle of an upgrade */
        r = -errno;
    }
    log_error("cannot start %s: %s", k->program, strerror(-r));
    _exit(EXIT_NOT_STARTED);
}

static void start_commd(struct keeper *k)
{
    pid_t keeper = getpid();
    int ends[2];

    keeper_starts(&k->life, clock_ms());
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        log_error("cannot start commd: %m");
        keeper_ended(&k->life, W_EXITCODE(EXIT_NOT_STARTED, 0), clock_ms());
        return;
    }
    k->pid = fork();
    if (k->pid == 0)
        become_commd(k, ends[1], keeper);
    close(ends[1]);
    k->message = ends[0];
    if (k->pid > 0)
        return;
    log_error("cannot start commd: %m");
    close_fdp(&k->message);
    k->pid = 0;
    keeper_ended(&k->life, W_EXITCODE(EXIT_NOT_STARTED, 0), clock_ms());
}

/* ---- what commd says ------------------------------------------------------------------------- */

static void send_signal(const struct keeper *k, int signo)
{
    if (signo && k->pid)
        kill(k->pid, signo);
}

static void take_message(struct keeper *k, const char *text, const int *fds, unsigned nfds)
{
    if (kept_message(&k->kept, text, fds, nfds))
        return;
    notify_send("%s", text);
    if (strncmp(text, "READY=1", strlen("READY=1")) != 0)
        return;
    send_signal(k, keeper_ready(&k->life));
    if (k->told)
        return;
    k->told = true;
    if (k->config->serves)
        k->config->serves(k->config->arg, k->pid);
}

/* False: there is none now. */
static bool read_message(struct keeper *k)
{
    char text[MESSAGE_MAX + 1];
    int fds[KEPT_FDS_MAX];
    unsigned nfds;
    bool cut;
    ssize_t n =
        fds_recv(k->message, text, MESSAGE_MAX, fds, KEPT_FDS_MAX, &nfds, MSG_DONTWAIT, &cut);

    if (n == -EAGAIN || n == -EINTR)
        return false;
    if (n <= 0) {
        close_fdp(&k->message); /* its end */
        return false;
    }
    text[n] = '\0';
    if (cut || strlen(text) != (size_t)n)
        text[0] = '\0'; /* not a message of ours: only the descriptors are closed */
    take_message(k, text, fds, nfds);
    return true;
}

static void read_messages(struct keeper *k)
{
    while (k->message >= 0 && read_message(k))
        ;
}

/* ---- the end of commd ------------------------------------------------------------------------ */

static void log_end(const struct keeper *k, int status, uint64_t now_ms)
{
    bool again = k->life.state == KEEPER_PAUSES;
    char text[64];

    if (WIFSIGNALED(status))
        snprintf(text, sizeof(text), "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(text, sizeof(text), "ended with %d", WEXITSTATUS(status));
    if (again && keeper_restart_wanted(status))
        log_info("commd pid %d has made room -> starting the next one", (int)k->pid);
    else if (again && k->life.due_ms <= now_ms)
        log_warn("commd pid %d %s -> starting it again", (int)k->pid, text);
    else if (again)
        log_warn("commd pid %d %s -> starting it again in %.1f s: it dies again and again",
                 (int)k->pid, text, (double)(k->life.due_ms - now_ms) / 1000);
    else if (status)
        log_warn("commd pid %d %s -> ending", (int)k->pid, text);
}

static void reap(struct keeper *k)
{
    uint64_t now = clock_ms();
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != k->pid)
            continue; /* of a container, nobody else's */
        read_messages(k);
        close_fdp(&k->message);
        keeper_ended(&k->life, status, now);
        log_end(k, status, now);
        k->pid = 0;
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void read_signals(struct keeper *k)
{
    struct signalfd_siginfo info;

    while (read(k->signals, &info, sizeof(info)) == sizeof(info)) {
        reap(k); /* first: the kernel sorts signals by number, and not by time */
        if (info.ssi_signo != SIGCHLD)
            send_signal(k, keeper_asked(&k->life, (int)info.ssi_signo, clock_ms()));
    }
}

static int time_left(const struct keeper *k)
{
    uint64_t now = clock_ms();

    if (k->life.due_ms == UINT64_MAX)
        return -1;
    return k->life.due_ms > now ? (int)MIN(k->life.due_ms - now, (uint64_t)60000) : 0;
}

static void keep_turn(struct keeper *k)
{
    struct pollfd polled[] = {{.fd = k->signals, .events = POLLIN},
                              {.fd = k->message, .events = POLLIN}};
    int signo;

    if (poll(polled, ARRAY_LEN(polled), time_left(k)) < 0 && errno != EINTR)
        log_error("poll: %m");
    read_messages(k);
    read_signals(k);
    if (keeper_due(&k->life, clock_ms(), &signo))
        start_commd(k);
    else
        send_signal(k, signo);
}

static int hold_signals(struct keeper *k)
{
    static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    sigset_t set;

    sigemptyset(&set);
    for (unsigned i = 0; i < ARRAY_LEN(signals); i++)
        sigaddset(&set, signals[i]);
    signal(SIGCHLD, SIG_DFL); /* else there were no exit codes */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, &k->before);
    k->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return k->signals < 0 ? -errno : 0;
}

/* The program as it is named on disk, where an upgrade puts another one. */
static int find_self(struct keeper *k)
{
    ssize_t n = readlink("/proc/self/exe", k->program, sizeof(k->program) - 1);

    if (n < 0)
        return -errno;
    k->program[n] = '\0';
    return 0;
}

int keeper_run(const struct keeper_config *config)
{
    struct keeper k = {.config = config, .signals = -1, .message = -1};
    int r;

    prctl(PR_SET_NAME, "commd-keeper");
    /* Other processes of our user, such as the engine, must not take what is kept. */
    if (!HAS_LEAK_CHECK)
        prctl(PR_SET_DUMPABLE, 0);
    log_init("commd-keeper", CONF_LOG_INFO);
    r = find_self(&k);
    if (!r)
        r = kept_init(&k.kept);
    if (!r)
        r = hold_signals(&k);
    if (r) {
        fprintf(stderr, "commd: cannot keep a commd: %s\n", strerror(-r));
        kept_fini(&k.kept);
        return EXIT_NOT_STARTED;
    }
    if (config->lock >= 0)
        kept_put(&k.kept, KEEPER_LOCK, dup(config->lock));
    if (config->log >= 0)
        kept_put(&k.kept, KEEPER_LOG, dup(config->log));
    start_commd(&k);
    while (k.life.state != KEEPER_OVER)
        keep_turn(&k);
    kept_fini(&k.kept);
    close_fdp(&k.message);
    close_fdp(&k.signals);
    return k.life.exit_code;
}
