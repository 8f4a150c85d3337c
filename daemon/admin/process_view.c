/* process_view.c - see process_view.h. It reads only files for which the kernel does not read
 * memory of the process. Such memory may be served by another process (userfaultfd), and that may
 * never answer. */
#include "daemon/admin/process_view.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

enum { LEVELS = 8 }; /* of control groups: the process's own and those above it */

/* The beginning of file @path; its length, or -1. */
static ssize_t read_begin(const char *path, char *buf, size_t size)
{
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

    buf[MAX(n, (ssize_t)0)] = 0;
    return n;
}

ssize_t process_file(uint32_t pid, const char *name, char *buf, size_t size)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%u/%s", pid, name);
    return read_begin(path, buf, size);
}

/* Does the file of a control group, in one of the places where its hierarchy may be, have @word? */
static bool group_file_has(const char *const places[2], const char *group, const char *file,
                           const char *word)
{
    char path[PATH_MAX], buf[128];

    for (unsigned i = 0; i < 2 && places[i]; i++)
        if ((size_t)snprintf(path, sizeof(path), "%s%s/%s", places[i], group, file) <
                sizeof(path) &&
            read_begin(path, buf, sizeof(buf)) > 0)
            return strstr(buf, word) != NULL;
    return false;
}

/* Is the group frozen? In /proc/PID/stat its processes seem to sleep (cgroups version 2), or to
 * wait for a device (version 1). */
static bool is_frozen(const char *controllers, const char *group)
{
    static const char *const unified[2] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
                             *const freezer[2] = {"/sys/fs/cgroup/freezer"};

    if (!*controllers)
        return group_file_has(unified, group, "cgroup.events", "frozen 1");
    return !strcmp(controllers, "freezer") &&
           group_file_has(freezer, group, "freezer.state", "FROZEN");
}

const char *process_word(uint32_t pid, struct process_groups *groups)
{
    char buf[512], *end;

    if (process_file(pid, "stat", buf, sizeof(buf)) <= 0)
        return "";
    end = strrchr(buf, ')');
    switch (end && end[1] ? end[2] : 0) {
    case 'R':
        return "running";
    case 'S':
    case 'I':
        process_groups(pid, groups);
        return groups->frozen ? "frozen" : "sleeping";
    case 'D':
        process_groups(pid, groups);
        return groups->frozen ? "frozen" : "blocked";
    case 'T':
        return "stopped";
    case 't':
        return "traced";
    case 'Z':
    case 'X':
        return "zombie";
    }
    return "";
}

uint64_t process_cpu_waited(uint32_t pid)
{
    char buf[128], *end;

    if (process_file(pid, "schedstat", buf, sizeof(buf)) <= 0 || !(end = strchr(buf, ' ')))
        return 0;
    return strtoull(end, NULL, 10);
}

void process_kernel(uint32_t pid, char *buf, size_t size)
{
    if (process_file(pid, "wchan", buf, size) <= 0 || !strcmp(buf, "0"))
        buf[0] = 0;
    for (char *c = buf; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.')
            *c = '_';
}

/* ---- control groups -------------------------------------------------------------------------- */

static uint64_t number_behind(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* Adds what cpu.stat says of @group and of the groups above it: each may have a quota. */
static void add_quota(const char *place, const char *group, struct process_quota *quota)
{
    char path[PATH_MAX], buf[1024];
    size_t len = strlen(group);

    for (unsigned level = 0; level < LEVELS && len; level++) {
        if ((size_t)snprintf(path, sizeof(path), "%s%.*s/cpu.stat", place, (int)len, group) <
                sizeof(path) &&
            read_begin(path, buf, sizeof(buf)) > 0) {
            quota->periods = MAX(quota->periods, number_behind(buf, "nr_periods "));
            quota->throttled += number_behind(buf, "nr_throttled ");
        }
        while (len && group[--len] != '/')
            ;
    }
}

/* Is @word one of the words in a list like "cpu,cpuacct"? */
static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (!strncmp(list, word, len) && (!list[len] || list[len] == ','))
            return true;
    return false;
}

unsigned process_throttled_pct(const struct process_quota *before, const struct process_quota *now)
{
    if (now->periods <= before->periods || now->throttled <= before->throttled)
        return 0;
    return (unsigned)MIN((now->throttled - before->throttled) * 100 /
                             (now->periods - before->periods),
                         (uint64_t)100);
}

/* Takes the word behind @mark in @path as the id of a job, if it has @least characters or more. */
static bool take_job(const char *path, const char *mark, size_t least, const char *kind, char *buf,
                     size_t size)
{
    for (const char *at = strstr(path, mark); at; at = strstr(at + 1, mark)) {
        const char *begin = at + strlen(mark);
        size_t len = 0;

        while (isxdigit((unsigned char)begin[len]) || begin[len] == '-' || begin[len] == '_')
            len++;
        if (len < least)
            continue;
        snprintf(buf, size, "%s %.*s", kind, (int)MIN(len, (size_t)64), begin);
        return true;
    }
    return false;
}

/* cgroups(7): lines "number:controllers:group". A group outside of our namespace, which begins with
 * "/..", is no place under ours. */
static void look_at_groups(struct process_groups *groups)
{
    char buf[sizeof(groups->text)], *save = NULL;

    memcpy(buf, groups->text, sizeof(buf));
    for (char *line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *name = strchr(line, ':'), *group = name ? strchr(++name, ':') : NULL;

        if (!group || !strncmp(group + 1, "/..", 3))
            continue;
        *group++ = 0;
        groups->frozen = groups->frozen || is_frozen(name, group);
        if (!*name) {
            add_quota("/sys/fs/cgroup", group, &groups->quota);
            add_quota("/sys/fs/cgroup/unified", group, &groups->quota);
        } else if (has_word(name, "cpu")) {
            add_quota("/sys/fs/cgroup/cpu", group, &groups->quota);
        }
    }
    if (!take_job(groups->text, "/job_", 1, "Slurm job", groups->job, sizeof(groups->job)))
        (void)take_job(groups->text, "pod", 32, "pod", groups->job, sizeof(groups->job));
}

void process_groups(uint32_t pid, struct process_groups *groups)
{
    struct process_groups now;

    if (pid && groups->pid == pid)
        return;
    now = (struct process_groups){.pid = pid};
    if (process_file(pid, "cgroup", now.text, sizeof(now.text)) <= 0)
        *groups = now;
    else if (strcmp(groups->text, now.text)) {
        look_at_groups(&now);
        *groups = now;
    }
    groups->pid = pid;
}
