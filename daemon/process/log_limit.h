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
    LOG_LIMIT_ALL = 100, /* lines per second of all together */
    LOG_LIMIT_REPEAT_MS = 5 * 60 * 1000,
};

struct log_limit {
    struct log_limit_entry {
        char who[LOG_LIMIT_WHO]; /* "": free */
        struct {
            uint64_t hash, at_ms; /* hash 0: free */
        } kinds[LOG_LIMIT_KINDS]; /* the kinds of lines that were written lately */
        uint64_t spent_ms;        /* how much of the bucket was spent, at seen_ms */
        uint64_t seen_ms;
        uint64_t left_out, since_ms;      /* lines left out since since_ms */
        uint64_t due_ms;                  /* when the summary of these is due; 0: there is none */
        uint64_t wait_ms;                 /* until the next summary */
        enum conf_log_level level;        /* of the most serious line that was left out */
    } entries[LOG_LIMIT_ENTRIES], others; /* others: shared by all that found no entry */
    uint64_t all_ms, all_spent;
    uint64_t due_ms;     /* when the timer is set to fire; 0: it is not set */
    struct event *timer; /* owned; NULL without log_limit_init() */
};

/* @limit is zeroed. An owner that does not call this has no timer, and calls log_limit_tell(). */
int log_limit_init(struct log_limit *limit, struct event_base *base);
/* Writes the last summaries. */
void log_limit_fini(struct log_limit *limit);

/* May a line about @who be written now? @kind: what the line says; a kind is written once in
 * LOG_LIMIT_REPEAT_MS. NULL: the line has no kind. */
bool log_limit_pass(struct log_limit *limit, enum conf_log_level level, const char *who,
                    const char *kind, uint64_t now_ms);
/* Writes the summaries that are due, and returns when the next one is due; 0: there is none. */
uint64_t log_limit_tell(struct log_limit *limit, uint64_t now_ms);
/* Lines that were left out since the start of the process, by all limits. */
uint64_t log_limit_left_out(void);
/* Writes a line that @who caused, if log_limit_pass() allows. */
void log_limit_write(struct log_limit *limit, enum conf_log_level level, const char *who,
                     const char *kind, const char *fmt, ...) _printf_(5, 6);

#endif
