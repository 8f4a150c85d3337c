/* limits.c - resource limits that a process has from who started it. A shell's `ulimit` sets the
 * limit and its upper bound, which only a privileged process can lift. */
#include "shm/util/limits.h"

#include <stdio.h>
#include <sys/resource.h>

static const struct {
    int resource;
    rlim_t unit;
    const char *text;
} limits[] = {
    {RLIMIT_FSIZE, 1024, "KiB of a file (ulimit -f)"},
    {RLIMIT_CPU, 1, "s of CPU time (ulimit -t)"},
    {RLIMIT_AS, 1024, "KiB of address space (ulimit -v)"},
    {RLIMIT_DATA, 1024, "KiB of data (ulimit -d)"},
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
    lift(RLIMIT_MEMLOCK);
}

void limits_left(char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    for (unsigned i = 0; i < ARRAY_LEN(limits) && used < size; i++) {
        struct rlimit limit;

        if (getrlimit(limits[i].resource, &limit) || limit.rlim_max == RLIM_INFINITY)
            continue;
        used +=
            (size_t)snprintf(text + used, size - used, "%s%llu %s", used ? ", " : "",
                             (unsigned long long)(limit.rlim_max / limits[i].unit), limits[i].text);
    }
}
