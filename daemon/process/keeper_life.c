/* keeper_life.c - the states of a keeper.
 *
 *   STARTS  commd was started, and does not serve yet. It has no handlers for signals yet: what
 *           comes now waits until commd is ready. If it does not get ready, SIGTERM is passed on
 *           all the same, after READY_MS.
 *   RUNS    commd serves. Signals are passed on at once.
 *   PAUSES  commd has died, and will be started at due_ms. Whoever asks the keeper to end now has
 *           commd started at once, and then ended: only a commd can tell its clients, and remove
 *           its files.
 *   ENDS    commd was asked to end. It is not started again, however it ends.
 *   OVER    the keeper ends, with commd's exit code.
 *
 * What wakes the keeper: in each state but PAUSES the end of commd or its message; in PAUSES, and
 * in STARTS while a signal waits, the time. If the keeper dies, the kernel sends SIGTERM to commd.
 *
 * A commd that has never served was not missed by anybody: if the first one fails, the keeper ends,
 * so that whoever started it sees why. After that commd is started again if a signal has killed it,
 * or if it ended by an internal error: at once, unless it dies again and again
 * (shm/util/restarts.h). SIGUSR1 asks for just this, and is no such death. Other codes say that
 * trying again would not help, and so do UNREADY_MAX starts in a row after which commd did not
 * serve: they take a minute. */
#include "daemon/process/keeper_life.h"

#include <signal.h>
#include <sys/wait.h>

enum { READY_MS = 1000, UNREADY_MAX = 25, EXIT_FAILED = 1 };

static const bool keeper_may[5][5] = {
    /* columns: STARTS RUNS PAUSES ENDS OVER */
    [KEEPER_STARTS] = {0, 1, 1, 1, 1}, [KEEPER_RUNS] = {0, 0, 1, 1, 1},
    [KEEPER_PAUSES] = {1, 0, 0, 0, 0}, [KEEPER_ENDS] = {0, 0, 0, 0, 1},
    [KEEPER_OVER] = {0, 0, 0, 0, 0},
};

static void set_state(struct keeper_life *life, enum keeper_state state)
{
    assert(keeper_may[life->state][state]);
    life->state = state;
    life->due_ms = UINT64_MAX;
}

void keeper_starts(struct keeper_life *life, uint64_t now_ms)
{
    if (life->since_ms) /* not the first one */
        set_state(life, KEEPER_STARTS);
    life->since_ms = now_ms;
    life->due_ms = life->asked ? now_ms + READY_MS : UINT64_MAX;
}

/* A signal that commd ends by. */
static int pass_end(struct keeper_life *life, int signo)
{
    if (life->state != KEEPER_ENDS)
        set_state(life, KEEPER_ENDS);
    life->asked = 0;
    return signo;
}

int keeper_ready(struct keeper_life *life)
{
    bool reload = life->reload;

    if (life->state != KEEPER_STARTS)
        return 0; /* after a reload it is said again */
    life->served = true;
    life->unready = 0;
    life->reload = false;
    if (life->asked)
        return pass_end(life, life->asked);
    set_state(life, KEEPER_RUNS);
    return reload ? SIGHUP : 0;
}

static bool starts_again(const struct keeper_life *life)
{
    return life->state == KEEPER_PAUSES || (life->state == KEEPER_STARTS && life->served);
}

int keeper_asked(struct keeper_life *life, int signo, uint64_t now_ms)
{
    if (signo == SIGHUP || signo == SIGUSR1) {
        life->reload |= signo == SIGHUP && life->state == KEEPER_STARTS;
        return life->state == KEEPER_RUNS ? signo : 0;
    }
    if (!starts_again(life) || life->asked)
        return life->state == KEEPER_PAUSES || life->state == KEEPER_OVER ? 0
                                                                          : pass_end(life, signo);
    life->asked = signo;
    life->due_ms = life->state == KEEPER_PAUSES ? now_ms : now_ms + READY_MS;
    return 0;
}

bool keeper_restart_wanted(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1;
}

void keeper_ended(struct keeper_life *life, int status, uint64_t now_ms)
{
    bool failed = WIFSIGNALED(status) || WEXITSTATUS(status) == EXIT_FAILED;
    uint64_t served_ms = life->state == KEEPER_RUNS ? now_ms - life->since_ms : 0;
    uint64_t wait_ms = keeper_restart_wanted(status) ? 0 : restart_wait(&life->restarts, served_ms);

    life->unready++; /* keeper_ready() takes it back */
    life->exit_code =
        WIFSIGNALED(status) ? KEEPER_EXIT_KILLED + WTERMSIG(status) : WEXITSTATUS(status);
    if (life->state == KEEPER_ENDS || life->asked || !life->served || !failed ||
        life->unready > UNREADY_MAX) {
        set_state(life, KEEPER_OVER);
        return;
    }
    set_state(life, KEEPER_PAUSES);
    life->reload = false; /* the next one reads the configuration anyway */
    life->due_ms = now_ms + wait_ms;
}

bool keeper_due(struct keeper_life *life, uint64_t now_ms, int *ret_signal)
{
    *ret_signal = 0;
    if (now_ms < life->due_ms)
        return false;
    if (life->state == KEEPER_PAUSES)
        return true;
    *ret_signal = pass_end(life, life->asked);
    return false;
}
