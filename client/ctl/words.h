/* words.h - the words of commd's tables by which commctl decides: each is read once, into an enum.
 * A word that commctl does not know, of a newer commd, decides nothing: it is 0. */
#ifndef COMMCTL_WORDS_H
#define COMMCTL_WORDS_H

#include "shm/proto/msg.h"

enum group_state { GROUP_UNKNOWN, GROUP_STARTING, GROUP_JOINING, GROUP_OPEN, GROUP_ENDED };

/* PROCESS_OTHER sleeps, or is a zombie, which may be a main thread that ended before the others. */
enum process_state {
    PROCESS_OTHER,
    PROCESS_RUNNING,
    PROCESS_STOPPED,
    PROCESS_TRACED,
    PROCESS_FROZEN,
    PROCESS_DIED,
    PROCESS_LEFT,
};

/* How a process ended. */
enum process_end {
    END_UNKNOWN,
    END_CLEAN,   /* exit code 0 */
    END_ERROR,   /* another exit code */
    END_KILLED,  /* SIGKILL */
    END_TOLD,    /* a signal that people and launchers send to end a job */
    END_CRASHED, /* another signal */
};

/* How the last operation by commd-gpu ended. */
enum gpu_end { GPU_END_OTHER, GPU_END_LOST, GPU_END_MISMATCH };

/* What the text of a cause says besides the cause. */
enum cause_told {
    TOLD_NOTHING,
    TOLD_KICK,
    TOLD_COMMD_ENDED, /* the others: of node, or between node and other */
    TOLD_LINK_FAILED,
    TOLD_NODE_LOST,
    TOLD_ENGINE_LOST,
    TOLD_ENGINES_APART,
};

/* The state of a link in the table "links". */
enum link_state {
    LINK_OTHER,
    LINK_APART,   /* the engines have no connection */
    LINK_PARTIAL, /* the peer has told some of its ranks alone */
    LINK_SILENT,  /* the peer did not answer the question */
    LINK_DOWN,    /* the peer could not be asked */
};

enum group_state read_group_state(const char *word);
enum process_state read_process_state(const char *word);
enum process_end read_process_end(const char *text);
enum gpu_end read_gpu_end(const char *word);
enum link_state read_link_state(const char *word);
enum cause read_cause(const char *word);
/* *names: the nodes that the text tells of, "" where it tells none. */
enum cause_told read_cause_text(enum cause cause, const char *text, char names[2][MSG_NAME_MAX]);

#endif
