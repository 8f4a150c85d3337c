/* log_limit.h - how many lines one user, node or address may cause. See log_limit.c. */
#ifndef COMMD_LOG_LIMIT_H
#define COMMD_LOG_LIMIT_H

#include "daemon/process/log.h"

struct event;
struct event_base;

enum {
    LOG_LIMIT_ENTRIES = 64,
    LOG_LIMIT_WHO = 96,
    LOG_LIMIT_KINDS = 4,
    LOG_LIMIT_BURST = 10, /* lines at once, then one each LOG_LIMIT_EVERY_MS */
    LOG_LIMIT_EVERY_MS = 10 * 1000,
    LOG_LIMIT_ALL = 100, /* lines of all together: at once, and then per second */
    LOG_LIMIT_REPEAT_MS = 5 * 60 * 1000,
};

struct log_limit {
    struct log_limit_entry {
        char who[LOG_LIMIT_WHO]; /* "": free */
        struct {
            uint64_t hash, at_ms; /* hash 0: free */
        } kinds[LOG_LIMIT_KINDS]; /* what was said of it lately */
        uint64_t spent_ms;        /* of the bucket, at seen_ms */
        uint64_t seen_ms;
        uint64_t left_out, since_ms, due_ms; /* due_ms: of the summary; 0: none is due */
        uint64_t wait_ms;                    /* until the next summary */
        enum conf_log_level level;           /* the most serious of those left out */
    } entries[LOG_LIMIT_ENTRIES], others;    /* others: all for whom there was no room */
    uint64_t all_ms, all_spent;
    uint64_t due_ms;     /* for which the timer is set; 0: it is not */
    struct event *timer; /* owned; NULL without log_limit_init() */
};

/* @limit is zeroed. Without a timer the owner calls log_limit_tell(). */
int log_limit_init(struct log_limit *limit, struct event_base *base);
/* Tells what was left out. */
void log_limit_fini(struct log_limit *limit);

/* May a line about @who be written now? @kind: what it says, which is said once in
 * LOG_LIMIT_REPEAT_MS; NULL: whatever it says. */
bool log_limit_pass(struct log_limit *limit, enum conf_log_level level, const char *who,
                    const char *kind, uint64_t now_ms);
/* Writes the summaries that are due; returns when the next one is, 0: none. */
uint64_t log_limit_tell(struct log_limit *limit, uint64_t now_ms);
/* Lines that were left out since the start of the process, by all limits. */
uint64_t log_limit_left_out(void);
/* A line that @who caused, if it may be written. */
void log_limit_write(struct log_limit *limit, enum conf_log_level level, const char *who,
                     const char *kind, const char *fmt, ...) _printf_(5, 6);

#endif
