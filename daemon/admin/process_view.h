/* process_view.h - what the kernel tells of a process that is not ours, by proc(5) and by control
 * groups. Of a process that is gone, or whose files we may not read, nothing is known. */
#ifndef COMMD_PROCESS_VIEW_H
#define COMMD_PROCESS_VIEW_H

#include "shm/util/base.h"

/* The CPU quota of the process's control group, or of a group above it. */
struct process_quota {
    uint64_t periods;   /* so far */
    uint64_t throttled; /* periods in which the quota was used up: the processes stood still */
};
unsigned process_throttled_pct(const struct process_quota *before, const struct process_quota *now);

/* What control groups say of the process that was looked at last. The next process is often in the
 * same groups; then their files are not read again. Begins zeroed: no process yet. */
struct process_groups {
    uint32_t pid;
    char text[4096]; /* /proc/PID/cgroup */
    bool frozen;
    struct process_quota quota;
    char job[80]; /* "Slurm job 17" or "pod 0c6e...", from the groups' names; or "" */
};
void process_groups(uint32_t pid, struct process_groups *groups);

/* The beginning of /proc/@pid/@name, as a string; its length, or -1. See process_view.c for the
 * files that may be read. */
ssize_t process_file(uint32_t pid, const char *name, char *buf, size_t size);
/* "running", "sleeping", "blocked", "stopped", "traced", "frozen", "zombie" or "". */
const char *process_word(uint32_t pid, struct process_groups *groups);
/* The function of the kernel in which the process sleeps, or "". */
void process_kernel(uint32_t pid, char *buf, size_t size);
/* Nanoseconds for which its main thread was ready to run and had no core: the second word of
 * schedstat (Documentation/scheduler/sched-stats). 0 where the kernel does not count. */
uint64_t process_cpu_waited(uint32_t pid);

#endif
