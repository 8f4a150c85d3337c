/* collect.h - filling a struct metrics, a moment at a time. See collect.c. */
#ifndef COMMD_COLLECT_H
#define COMMD_COLLECT_H

#include <dirent.h>

#include "daemon/http/metrics.h"

struct daemon;

enum collect_phase {
    COLLECT_NUMBERS,
    COLLECT_GROUPS,
    COLLECT_OPERATIONS,
    COLLECT_USERS,
    COLLECT_FDS,
    COLLECT_DONE
};

struct collect {
    struct daemon *d; /* borrowed */
    struct metrics m; /* owned */
    enum collect_phase phase;
    struct core_scan scan;
    size_t bucket;
    uint32_t user;
    struct core_user_most most;
    DIR *fds; /* owned: of our own descriptors, where they have to be counted */
};

/* @groups: with a row for each of some groups. */
void collect_begin(struct collect *c, struct daemon *d, bool groups);
/* Works until @until_us at most; true when all is there. */
bool collect_step(struct collect *c, uint64_t until_us);
void collect_end(struct collect *c);

#endif
