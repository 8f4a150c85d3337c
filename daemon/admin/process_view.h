/* process_view.h - what the system tells of a process that is not ours: from proc(5) and from the
 * control groups. A process that is gone, or files that are not to be read, tell nothing. */
#ifndef COMMD_PROCESS_VIEW_H
#define COMMD_PROCESS_VIEW_H

#include "shm/util/base.h"

/* Of the CPU quota of its control group, or of one above: periods so far, and in how many of them
 * it was used up, so that its processes stood still. */
struct process_quota {
    uint64_t periods, throttled;
};
unsigned process_throttled_pct(const struct process_quota *before, const struct process_quota *now);

/* What control groups say of the process that was looked at last. Many ranks are in the groups of
 * the one before: then no file of these groups is read again. Zeroed: of none yet. */
struct process_groups {
    uint32_t pid;
    char text[4096]; /* its file of /proc */
    bool frozen;
    struct process_quota quota;
    char job[80]; /* "Slurm job 17" or "pod 0c6e...", by the names of its groups; or "" */
};
void process_groups(uint32_t pid, struct process_groups *groups);

/* "running", "sleeping", "blocked", "stopped", "traced", "frozen", "zombie" or "". */
const char *process_word(uint32_t pid, struct process_groups *groups);
/* Where in the kernel it sleeps, or "". */
void process_kernel(uint32_t pid, char *buf, size_t size);
/* Nanoseconds that its main thread has wanted a core and had none: the second word of schedstat
 * (Documentation/scheduler/sched-stats), 0 where the kernel does not count. */
uint64_t process_cpu_waited(uint32_t pid);

#endif
