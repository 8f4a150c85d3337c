/* limits.c - resource limits and priorities that a process inherits from its parent. A shell's
 * `ulimit` sets the limit and its upper bound, which only a privileged process can lift. The same
 * holds for a nice value above 0 and for SCHED_IDLE. */
#include "shm/util/limits.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

static const struct {
    int resource;
    rlim_t enough; /* so much is no reason to say something */
    rlim_t unit;
    const char *text;
} limits[] = {
    {RLIMIT_FSIZE, RLIM_INFINITY, 1024, "KiB of a file (ulimit -f)"},
    {RLIMIT_CPU, RLIM_INFINITY, 1, "s of CPU time (ulimit -t)"},
    {RLIMIT_AS, RLIM_INFINITY, 1024, "KiB of address space (ulimit -v)"},
    {RLIMIT_DATA, RLIM_INFINITY, 1024, "KiB of data (ulimit -d)"},
    /* 8 MiB is what the kernel gives everybody */
    {RLIMIT_MEMLOCK, 8 << 20, 1024, "KiB of locked memory (ulimit -l)"},
};

static void lift(int resource)
{
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY}, limit;

    if (setrlimit(resource, &none) == 0 || getrlimit(resource, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
}

void limits_lift(void)
{
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++)
        lift(limits[i].resource);
}

static void __attribute__((format(printf, 3, 4))) add(char *text, size_t size, const char *format,
                                                      ...)
{
    size_t used = strlen(text);
    va_list args;

    if (used)
        used += (size_t)snprintf(text + used, size - used, ", ");
    if (used >= size)
        return;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

static const char *policy_name(int policy)
{
    switch (policy) {
    case SCHED_BATCH:
        return "SCHED_BATCH";
    case SCHED_IDLE:
        return "SCHED_IDLE";
    case SCHED_FIFO:
        return "SCHED_FIFO";
    case SCHED_RR:
        return "SCHED_RR";
    default:
        return "that is not SCHED_OTHER";
    }
}

void limits_left(pid_t pid, char *text, size_t size)
{
    int policy = sched_getscheduler(pid), nice;

    text[0] = 0;
    for (unsigned i = 0; i < ARRAY_LEN(limits); i++) {
        struct rlimit limit;

        if (prlimit(pid, limits[i].resource, NULL, &limit) == 0 &&
            limit.rlim_max < limits[i].enough)
            add(text, size, "%llu %s", (unsigned long long)(limit.rlim_max / limits[i].unit),
                limits[i].text);
    }
    nice = getpriority(PRIO_PROCESS, (id_t)pid); /* -1 is an error or a nice value: no hindrance */
    if (nice > 0)
        add(text, size, "nice %d", nice);
    policy = policy < 0 ? SCHED_OTHER : policy & ~SCHED_RESET_ON_FORK;
    if (policy != SCHED_OTHER)
        add(text, size, "scheduling policy %s (chrt)", policy_name(policy));
}
