/* stack.h - what can be seen of a process of this node beside what commd knows: by its own user or
 * root. */
#ifndef COMMCTL_STACK_H
#define COMMCTL_STACK_H

#include "shm/util/base.h"

enum { STACK_TEXT = 2048 };

struct process_look {
    char output[512];       /* where its stdout and stderr go; "": not known */
    char tracer[128];       /* who traces it: "gdb (pid 12)"; "": nobody */
    char stack[STACK_TEXT]; /* of its main thread in Python, lines, the innermost first; "": none */
    char no_stack[160];     /* why there is none */
};

/* The beginning of a file, such as one of /proc, as a string. False: it is empty, or cannot be
 * read. */
bool read_text(const char *path, char *buf, size_t size);
/* Does commd, whose pid is @commd_pid here, mean by a pid what we do? Not from another pid
 * namespace. */
bool stack_same_pids(uint32_t commd_pid);
/* Takes two seconds at most, and does not touch the process. */
void stack_look(uint32_t pid, struct process_look *ret_look);

#endif
