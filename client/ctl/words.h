/* words.h - the words of commd's tables by which commctl decides. Each is read once, into an enum.
 * A word that commctl does not know, because commd is newer, is read as 0 and decides nothing. */
#ifndef COMMCTL_WORDS_H
#define COMMCTL_WORDS_H

#include "shm/proto/msg.h"

/* The words of an enum stand below it, in its order from 1 on. */
enum group_state { GROUP_OTHER, GROUP_STARTING, GROUP_JOINING, GROUP_OPEN, GROUP_ENDED };
#define GROUP_WORDS "starting,joining,open,ended"

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
#define PROCESS_WORDS "running,stopped,traced,frozen,died,left"

/* How the last operation by commd-gpu ended. */
enum gpu_end { GPU_END_OTHER, GPU_END_LOST, GPU_END_MISMATCH };
#define GPU_END_WORDS "gpu lost,mismatch"

/* A node as another one sees it; LINKING: the commds or the engines have no connection. */
enum node_state { NODE_OTHER, NODE_UP, NODE_SELF, NODE_DRAINING, NODE_LINKING };
#define NODE_WORDS "up,self,draining,linking"

/* How many ranks of a peer the answer has, in the table "links": PARTIAL: some; SILENT: the peer
 * did not answer; DOWN: the peer could not be asked; RESTARTING: likewise, for its commd is being
 * restarted. */
enum link_state { LINK_OTHER, LINK_APART, LINK_PARTIAL, LINK_SILENT, LINK_DOWN, LINK_RESTARTING };
#define LINK_WORDS "linking,partial,silent,down,restarting"

/* The place of @word among @words, from 1 on; 0: it has none. */
unsigned read_word(const char *words, const char *word);

/* How a process ended: with exit code 0, with another one, by SIGKILL, by a signal that people and
 * launchers send to end a job, or by another signal. */
enum process_end { END_UNKNOWN, END_CLEAN, END_ERROR, END_KILLED, END_TOLD, END_CRASHED };
enum process_end read_process_end(const char *text);

/* What the text of a cause says besides the cause. */
enum cause_told {
    TOLD_NOTHING,
    TOLD_KICK,
    TOLD_COMMD_ENDED,
    TOLD_LINK_FAILED,
    TOLD_NODE_LOST,
    TOLD_ENGINE_LOST,
    TOLD_ENGINES_APART,
    TOLD_CERTIFICATE,
    TOLD_REFUSES, /* the first node, the certificate of the second */
    TOLD_FORGED,
};
enum cause read_cause(const char *word);
/* *names: the nodes that the text tells of, "" where it tells none. */
enum cause_told read_cause_text(enum cause cause, const char *text, char names[2][MSG_NAME_MAX]);

#endif
