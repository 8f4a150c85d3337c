/* ended.h - how the last processes of clients ended, for people who ask why a rank is gone. We are
 * not the parent of these processes, so the kernel does not always tell. */
#ifndef COMMD_ENDED_H
#define COMMD_ENDED_H

#include "shm/util/base.h"

enum { ENDED_MOST = 64, ENDED_MAX_USER = 16, ENDED_TEXT = 64 };

struct ended {
    struct ended_process {
        uint32_t pid, uid;
        uint64_t at_ms; /* now_ms() when we learned of the end; 0: this entry is free */
        int pidfd;      /* owned; -1: there is none, or it has nothing more to tell */
        int status;     /* as of wait(2); -1: not known yet */
    } at[ENDED_MOST];
};

void ended_init(struct ended *ended);
void ended_fini(struct ended *ended);
/* The process is gone, or about to be; @pidfd is borrowed, -1: none. */
void ended_note(struct ended *ended, uint32_t uid, uint32_t pid, int pidfd);
/* How process @pid ended, which was gone at @at_ms: "exit code 1", "signal 9 (KILL)"; "": not
 * known. @age: then also how long ago, "signal 9 (KILL), 34 s ago": whoever reads it looks at the
 * beginning, and takes what begins otherwise for an end of another kind.
 */
void ended_text(struct ended *ended, uint32_t pid, uint64_t at_ms, bool age, char buf[ENDED_TEXT]);

#endif
