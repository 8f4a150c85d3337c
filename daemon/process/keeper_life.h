/* keeper_life.h - what a keeper decides, without I/O: when commd is started, which signals it gets
 * when, and with which exit code the keeper ends. See keeper_life.c for the model. */
#ifndef COMMD_KEEPER_LIFE_H
#define COMMD_KEEPER_LIFE_H

#include "daemon/process/keeper.h"
#include "shm/util/restarts.h"

enum keeper_state { KEEPER_STARTS, KEEPER_RUNS, KEEPER_PAUSES, KEEPER_ENDS, KEEPER_OVER };

struct keeper_life {
    enum keeper_state state;
    int asked;                /* a signal that waits until commd can take it; 0: none */
    bool reload;              /* a SIGHUP waits, too */
    bool served;              /* a commd was ready once: others may depend on it */
    struct restarts restarts; /* deaths in a row: restart_wait() */
    unsigned unready;         /* starts in a row after which commd did not serve */
    uint64_t since_ms;        /* when commd was started */
    uint64_t due_ms;          /* when keeper_due() is to be called; UINT64_MAX: never */
    int exit_code;            /* in KEEPER_OVER */
};

/* commd is started now, for the first time, or because keeper_due() said so. */
void keeper_starts(struct keeper_life *life, uint64_t now_ms);
/* commd says that it serves. The signal that it gets now; 0: none. */
int keeper_ready(struct keeper_life *life);
/* The keeper got SIGTERM, SIGINT, SIGHUP or SIGUSR1. The signal that commd gets now; 0: none. */
int keeper_asked(struct keeper_life *life, int signo, uint64_t now_ms);
/* commd has ended; @status as of waitpid(2). */
void keeper_ended(struct keeper_life *life, int status, uint64_t now_ms);
/* Somebody has asked for another commd: by SIGUSR1, for which commd has no handler. */
bool keeper_restart_wanted(int status);
/* The time has come. True: start commd. Else *ret_signal is the signal that it gets now; 0: none.
 */
bool keeper_due(struct keeper_life *life, uint64_t now_ms, int *ret_signal);

#endif
