/* collect.h - fills a struct metrics, a part in each turn of the loop. See collect.c. */
#ifndef COMMD_COLLECT_H
#define COMMD_COLLECT_H

#include <dirent.h>

#include "daemon/http/metrics.h"

struct daemon;

struct collect {
    struct daemon *d; /* borrowed */
    struct metrics m; /* owned */
    unsigned phase;   /* index in phases[] of collect.c */
    struct core_scan scan;
    size_t bucket;
    uint32_t user;
    struct core_user_most most;
    DIR *fds; /* owned: /proc/self/fd, if our descriptors have to be counted there */
};

/* @groups: also fills metrics->groups. */
void collect_begin(struct collect *c, struct daemon *d, bool groups);
/* Works until @until_us at most; true: all is collected. */
bool collect_step(struct collect *c, uint64_t until_us);
void collect_end(struct collect *c);

#endif
