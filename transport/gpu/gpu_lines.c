/* gpu_lines.c - how many lines of the log one user may cause: GPU_LINES_BURST, then one each
 * GPU_LINES_EVERY_MS; and how many all together, whoever it is, in a second. What was left out is
 * counted, and told with the next line that may be written. No I/O and no clock. */
#include "transport/gpu/gpu_lines.h"

static bool bucket_pass(struct gpu_bucket *bucket, uint64_t now_ms, unsigned burst,
                        uint64_t every_ms)
{
    uint64_t gone = now_ms - bucket->seen_ms;

    bucket->spent_ms -= MIN(bucket->spent_ms, gone);
    bucket->seen_ms = now_ms;
    return bucket->spent_ms + every_ms <= burst * every_ms;
}

/* A user without a place gets that of the user who has been silent longest, if that user has its
 * whole share again; else all users without a place share one. */
static struct gpu_bucket *user_bucket(struct gpu_lines *lines, uint32_t uid, uint64_t now_ms)
{
    struct gpu_lines_user *oldest = &lines->users[0];

    for (unsigned i = 0; i < GPU_LINES_USERS; i++) {
        struct gpu_lines_user *user = &lines->users[i];

        if (user->known && user->uid == uid)
            return &user->bucket;
        if (user->bucket.seen_ms < oldest->bucket.seen_ms)
            oldest = user;
    }
    if (oldest->bucket.spent_ms > now_ms - oldest->bucket.seen_ms)
        return &lines->others;
    *oldest = (struct gpu_lines_user){.known = true, .uid = uid};
    return &oldest->bucket;
}

bool gpu_lines_pass(struct gpu_lines *lines, uint32_t uid, uint64_t now_ms, uint64_t *ret_left_out)
{
    struct gpu_bucket *bucket = user_bucket(lines, uid, now_ms);
    bool own = bucket_pass(bucket, now_ms, GPU_LINES_BURST, GPU_LINES_EVERY_MS);
    bool all = bucket_pass(&lines->all, now_ms, GPU_LINES_ALL, 1000 / GPU_LINES_ALL);

    *ret_left_out = lines->left_out;
    if (!own || !all) {
        lines->left_out++;
        return false;
    }
    bucket->spent_ms += GPU_LINES_EVERY_MS;
    lines->all.spent_ms += 1000 / GPU_LINES_ALL;
    lines->left_out = 0;
    return true;
}
