/* gpu_lines.h - how many lines of commd-gpu's log one user may cause; see gpu_lines.c. */
#ifndef COMMD_GPU_LINES_H
#define COMMD_GPU_LINES_H

#include "shm/util/base.h"

enum {
    GPU_LINES_USERS = 64,
    GPU_LINES_BURST = 10,
    GPU_LINES_EVERY_MS = 10 * 1000,
    GPU_LINES_ALL = 100, /* at once, and then per second */
};

struct gpu_bucket {
    uint64_t spent_ms, seen_ms;
};

struct gpu_lines {
    struct gpu_lines_user {
        bool known;
        uint32_t uid;
        struct gpu_bucket bucket;
    } users[GPU_LINES_USERS];
    struct gpu_bucket others, all;
    uint64_t left_out; /* and not told yet, of all users */
};

/* May a line that @uid caused be written at @now_ms? *ret_left_out: lines that were left out before
 * it, whoever caused them. */
bool gpu_lines_pass(struct gpu_lines *lines, uint32_t uid, uint64_t now_ms, uint64_t *ret_left_out);

#endif
