/* log_limit.c - nobody fills the log.
 *
 * Each line that a client, a node or an address can cause passes here, whatever it says. Each of
 * these has a bucket of LOG_LIMIT_BURST lines, which gains one line each LOG_LIMIT_EVERY_MS. All
 * together have LOG_LIMIT_ALL lines per second. A refusal is logged once in LOG_LIMIT_REPEAT_MS for
 * each kind, because a node with the wrong key tries for days.
 *
 * Lines that are left out are counted. A summary says how many there were, and about whom. The
 * first summary comes after ten seconds; while the flood goes on, the time doubles up to five
 * minutes.
 *
 * The table does not grow. An entry is given to another user, node or address only when its bucket
 * is full again, no summary is due, and its kinds are forgotten. All that find no entry share the
 * entry "others". So a scan from many addresses costs as much as one address. */
#include "daemon/process/log_limit.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/process/clock.h"
#include "shm/util/hash.h"

enum { LINE_MAX_ = 1536 };

static uint64_t limit_left_out; /* by all limits, which one thread uses */

uint64_t log_limit_left_out(void)
{
    return limit_left_out;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = hash_text(HASH_BEGIN, text);

    return hash ? hash : 1;
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint64_t spent_at(const struct log_limit_entry *entry, uint64_t now_ms)
{
    uint64_t gone = now_ms - entry->seen_ms;

    return gone < entry->spent_ms ? entry->spent_ms - gone : 0;
}

static bool is_idle(const struct log_limit_entry *entry, uint64_t now_ms)
{
    if (!entry->who[0])
        return true;
    if (entry->left_out || spent_at(entry, now_ms))
        return false;
    for (unsigned i = 0; i < LOG_LIMIT_KINDS; i++)
        if (entry->kinds[i].hash && now_ms - entry->kinds[i].at_ms < LOG_LIMIT_REPEAT_MS)
            return false;
    return true;
}

static struct log_limit_entry *entry_of(struct log_limit *limit, const char *who, uint64_t now_ms)
{
    struct log_limit_entry *room = NULL;

    for (unsigned i = 0; i < LOG_LIMIT_ENTRIES; i++) {
        struct log_limit_entry *entry = &limit->entries[i];

        if (strncmp(entry->who, who, LOG_LIMIT_WHO - 1) == 0)
            return entry;
        if (!room && is_idle(entry, now_ms))
            room = entry;
    }
    if (!room) {
        strcpy(limit->others.who, "others");
        return &limit->others;
    }
    *room = (struct log_limit_entry){.seen_ms = now_ms};
    snprintf(room->who, sizeof(room->who), "%s", who);
    return room;
}

/* Was this kind logged lately? If not, notes it in place of the oldest one. */
static bool said(struct log_limit_entry *entry, uint64_t hash, uint64_t now_ms, bool remember)
{
    unsigned oldest = 0;

    for (unsigned i = 0; i < LOG_LIMIT_KINDS; i++) {
        if (entry->kinds[i].hash == hash && now_ms - entry->kinds[i].at_ms < LOG_LIMIT_REPEAT_MS)
            return true;
        if (entry->kinds[i].hash == hash || !entry->kinds[i].hash ||
            (entry->kinds[oldest].hash && entry->kinds[i].at_ms < entry->kinds[oldest].at_ms))
            oldest = i;
    }
    if (remember) {
        entry->kinds[oldest].hash = hash;
        entry->kinds[oldest].at_ms = now_ms;
    }
    return false;
}

/* ---- left out -------------------------------------------------------------------------------- */

static void set_timer(struct log_limit *limit, uint64_t due_ms, uint64_t now_ms)
{
    struct timeval tv = clock_timeval(due_ms > now_ms ? due_ms - now_ms : 0);

    if (!limit->timer || (limit->due_ms && limit->due_ms <= due_ms))
        return;
    limit->due_ms = due_ms;
    event_add(limit->timer, &tv);
}

static void leave_out(struct log_limit *limit, struct log_limit_entry *entry,
                      enum conf_log_level level, uint64_t wait_ms, uint64_t now_ms)
{
    limit_left_out++;
    if (!entry->left_out++) {
        entry->since_ms = now_ms;
        entry->level = level;
        entry->due_ms = 0;
    }
    entry->level = MIN(entry->level, level);
    if (!entry->due_ms || entry->due_ms > now_ms + wait_ms)
        entry->due_ms = now_ms + wait_ms;
    set_timer(limit, entry->due_ms, now_ms);
}

static void log_suppressed(struct log_limit_entry *entry, uint64_t now_ms)
{
    uint64_t seconds = (now_ms - entry->since_ms + 999) / 1000;

    log_write(entry->level, "%s: %" PRIu64 " more lines left out in %" PRIu64 " s", entry->who,
              entry->left_out, MAX(seconds, (uint64_t)1));
    entry->left_out = entry->due_ms = 0;
    entry->wait_ms =
        MIN(MAX(entry->wait_ms, (uint64_t)LOG_LIMIT_EVERY_MS) * 2, (uint64_t)LOG_LIMIT_REPEAT_MS);
}

/* @all: also what is not due yet. */
static uint64_t tell_left_out(struct log_limit *limit, uint64_t now_ms, bool all)
{
    uint64_t next = 0;

    for (unsigned i = 0; i <= LOG_LIMIT_ENTRIES; i++) {
        struct log_limit_entry *entry = i < LOG_LIMIT_ENTRIES ? &limit->entries[i] : &limit->others;

        if (entry->left_out && (all || entry->due_ms <= now_ms))
            log_suppressed(entry, now_ms);
        if (entry->left_out && (!next || entry->due_ms < next))
            next = entry->due_ms;
    }
    return next;
}

uint64_t log_limit_tell(struct log_limit *limit, uint64_t now_ms)
{
    return tell_left_out(limit, now_ms, false);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct log_limit *limit = arg;
    uint64_t now_ms = clock_ms(), next = log_limit_tell(limit, now_ms);

    limit->due_ms = 0;
    if (next)
        set_timer(limit, next, now_ms);
}

/* ---- in -------------------------------------------------------------------------------------- */

/* One second's worth of lines for all; a line costs 1000 / LOG_LIMIT_ALL ms of it. */
static bool all_pass(struct log_limit *limit, uint64_t now_ms)
{
    uint64_t gone = now_ms - limit->all_ms, cost = 1000 / LOG_LIMIT_ALL;

    limit->all_spent = gone < limit->all_spent ? limit->all_spent - gone : 0;
    limit->all_ms = now_ms;
    if (limit->all_spent + cost > 1000)
        return false;
    limit->all_spent += cost;
    return true;
}

bool log_limit_pass(struct log_limit *limit, enum conf_log_level level, const char *who,
                    const char *kind, uint64_t now_ms)
{
    struct log_limit_entry *entry = entry_of(limit, who, now_ms);
    uint64_t full = (uint64_t)LOG_LIMIT_BURST * LOG_LIMIT_EVERY_MS;

    entry->spent_ms = spent_at(entry, now_ms);
    entry->seen_ms = now_ms;
    if (!entry->spent_ms && !entry->left_out)
        entry->wait_ms = LOG_LIMIT_EVERY_MS;
    if (kind && said(entry, hash_of(kind), now_ms, false)) {
        leave_out(limit, entry, level, LOG_LIMIT_REPEAT_MS, now_ms);
        return false;
    }
    if (entry->spent_ms + LOG_LIMIT_EVERY_MS > full || !all_pass(limit, now_ms)) {
        leave_out(limit, entry, level, MAX(entry->wait_ms, (uint64_t)LOG_LIMIT_EVERY_MS), now_ms);
        return false;
    }
    entry->spent_ms += LOG_LIMIT_EVERY_MS;
    if (kind)
        said(entry, hash_of(kind), now_ms, true);
    return true;
}

void log_limit_write(struct log_limit *limit, enum conf_log_level level, const char *who,
                     const char *kind, const char *fmt, ...)
{
    char text[LINE_MAX_];
    va_list args;

    if (!log_enabled(level) || !log_limit_pass(limit, level, who, kind, clock_ms()))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    log_write(level, "%s", text);
}

int log_limit_init(struct log_limit *limit, struct event_base *base)
{
    limit->timer = evtimer_new(base, on_timer, limit);
    return limit->timer ? 0 : -ENOMEM;
}

void log_limit_fini(struct log_limit *limit)
{
    tell_left_out(limit, clock_ms(), true);
    if (limit->timer)
        event_free(limit->timer);
    limit->timer = NULL;
}
