/* commd_perf_launch.c - runs all ranks as children and brings all of them to an end.
 *
 * When a rank fails, the others are killed: without it they would only wait, or fail as well. Only
 * our own children are ever signalled. A rank that outlived this process would hold its group open,
 * so each rank asks the kernel to be killed with this process.
 *
 * Ctrl-C reaches all ranks through the terminal; one sent to this process alone is passed on. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "client/perf/commd_perf.h"

/* Read by the signal handler, too. Entries are written before the handler is installed. Later only
 * 0 is written: the child was reaped, and another process may have its number by now. */
static volatile pid_t children[PERF_MAX_RANKS];
static volatile sig_atomic_t nchildren, got_interrupt;

/* One complaint of all ranks, in memory that they share. NULL: not launched here. */
enum complaint { NOT_MADE, BEING_MADE, MADE };
static int *complaint;

enum { LOOK_AGAIN_US = 200 };

static void share_complaint(void)
{
    void *p = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p != MAP_FAILED)
        complaint = p;
}

/* When a rank ends, the launcher kills the others. So a rank that stays silent waits here until the
 * reason is written. If the rank that complains dies meanwhile, the launcher kills the one that
 * waits. */
bool perf_begin_complaint(const volatile sig_atomic_t *interrupted)
{
    int was = NOT_MADE;

    if (!complaint || __atomic_compare_exchange_n(complaint, &was, BEING_MADE, false,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return true;
    while (__atomic_load_n(complaint, __ATOMIC_ACQUIRE) == BEING_MADE && !*interrupted)
        usleep(LOOK_AGAIN_US);
    return false;
}

/* The signal handler calls it, too. */
void perf_end_complaint(void)
{
    if (complaint)
        __atomic_store_n(complaint, MADE, __ATOMIC_RELEASE);
}

static void signal_all(int sig)
{
    for (int i = 0; i < nchildren; i++)
        if (children[i] > 0)
            kill(children[i], sig);
}

static void pass_on(int sig)
{
    got_interrupt = 1;
    perf_end_complaint(); /* who is told first leaves the others with an error */
    signal_all(SIGINT);
}

static pid_t start_rank(const struct perf *perf, int rank, pid_t parent, const sigset_t *mask)
{
    pid_t pid = fork();

    if (pid)
        return pid;
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(PERF_FAILED); /* it died before we asked */
    exit(perf_rank(perf, rank, perf->size,
                   perf->sockets[perf->cyclic ? rank % perf->nnodes : rank / perf->per_node]));
}

static int rank_of(pid_t pid)
{
    for (int i = 0; i < nchildren; i++)
        if (children[i] == pid)
            return i;
    return -1;
}

/* The exit code that one ended rank stands for. */
static int judge(int rank, int status, bool killed_by_us)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WTERMSIG(status) == SIGINT) /* it may have come to the rank before it comes to us */
        pass_on(SIGINT);
    if (!killed_by_us && !got_interrupt)
        fprintf(stderr, "commd-perf: rank %d (pid %d) was killed by signal %d (%s)\n", rank,
                (int)children[rank], WTERMSIG(status), strsignal(WTERMSIG(status)));
    return PERF_FAILED;
}

static int reap_all(void)
{
    int left = nchildren, result = PERF_OK;

    while (left > 0) {
        siginfo_t info = {0};
        int status, rank, r;

        /* Look first, reap after the slot is empty: the handler never meets a stale pid. */
        if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) < 0) {
            if (errno == EINTR)
                continue;
            perror("commd-perf: waitid");
            return PERF_FAILED;
        }
        rank = rank_of(info.si_pid);
        if (rank < 0) { /* a child that was ours before we became commd-perf */
            waitpid(info.si_pid, &status, 0);
            continue;
        }
        if (info.si_code == CLD_EXITED)
            status = W_EXITCODE(info.si_status, 0);
        else
            status = W_EXITCODE(0, info.si_status);
        r = judge(rank, status, result != PERF_OK);
        children[rank] = 0;
        waitpid(info.si_pid, &status, 0);
        left--;
        if (r && result == PERF_OK) {
            result = r;
            if (!got_interrupt) /* then they are ending, and rank 0 says what it has */
                signal_all(SIGKILL);
        }
    }
    return got_interrupt ? PERF_INTERRUPTED : result;
}

int perf_launch(const struct perf *perf)
{
    struct sigaction sa = {.sa_handler = pass_on};
    pid_t parent = getpid();
    sigset_t block, old;

    assert(perf->per_node > 0 && perf->nnodes > 0);
    share_complaint();
    fflush(NULL); /* or each rank would write what is buffered */
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigprocmask(SIG_BLOCK, &block, &old);
    for (int rank = 0; rank < perf->size; rank++) {
        pid_t pid = start_rank(perf, rank, parent, &old);

        if (pid < 0) {
            fprintf(stderr, "commd-perf: cannot start rank %d (%s)\n", rank, strerror(errno));
            signal_all(SIGKILL);
            reap_all();
            return PERF_FAILED;
        }
        children[rank] = pid;
        nchildren = rank + 1;
    }
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return reap_all();
}
