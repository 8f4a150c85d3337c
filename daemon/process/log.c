/* log.c - the log: one line, one write(2), to stderr.
 *
 * Under systemd stderr is the journal, which keeps the time, the pid and the name itself and
 * wants the priority as "<N>" (sd-daemon(3)). JOURNAL_STREAM alone does not prove it, because
 * it is inherited by whatever redirects its own stderr; the device and inode in it must be
 * those of fd 2 (systemd.exec(5)). Everywhere else a line carries time, name and pid.
 *
 * A line is at most LINE_BYTES, below PIPE_BUF, so lines of commd and of commd-engine that
 * share one pipe or file do not mix. Control characters, what is not UTF-8, and characters that
 * turn the direction of writing or cannot be seen become '?': names and texts in a message may come
 * from a client, and a newline would forge a line. A line that cannot be written is counted and
 * lost, because a daemon must not wait for its log. errno survives each call. */
#include "daemon/process/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

enum { LINE_BYTES = 2048, IDENT_MAX = 32 };

static struct {
    char ident[IDENT_MAX];
    int fd;
    bool journal;
    atomic_int level; /* threads read it; no order is needed */
} log_state = {.ident = "commd", .fd = STDERR_FILENO, .level = CONF_LOG_INFO};

/* Threads write it; no order is needed. */
static struct {
    _Atomic uint64_t written[CONF_LOG_DEBUG + 1], lost;
} log_counted;

static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t dev, ino;
    struct stat st;
    char rest;

    return stream && sscanf(stream, "%ju:%ju%c", &dev, &ino, &rest) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_init(const char *ident, enum conf_log_level level)
{
    snprintf(log_state.ident, sizeof(log_state.ident), "%s", ident);
    log_state.journal = stderr_is_journal();
    log_set_level(level);
}

void log_set_fd(int fd)
{
    log_state.fd = fd;
}

void log_set_level(enum conf_log_level level)
{
    atomic_store_explicit(&log_state.level, (int)level, memory_order_relaxed);
}

enum conf_log_level log_level(void)
{
    return (enum conf_log_level)atomic_load_explicit(&log_state.level, memory_order_relaxed);
}

bool log_enabled(enum conf_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_state.level, memory_order_relaxed);
}

static int write_prefix(enum conf_log_level level, char *buf, size_t len)
{
    static const struct {
        const char *name;
        int priority; /* of syslog(3) */
    } levels[] = {
        [CONF_LOG_ERROR] = {"error", 3},
        [CONF_LOG_WARN] = {"warn", 4},
        [CONF_LOG_INFO] = {"info", 6},
        [CONF_LOG_DEBUG] = {"debug", 7},
    };
    struct timespec now;
    struct tm tm;
    char date[32];

    if (log_state.journal)
        return snprintf(buf, len, "<%d>", levels[level].priority);
    clock_gettime(CLOCK_REALTIME, &now);
    if (!localtime_r(&now.tv_sec, &tm) ||
        strftime(date, sizeof(date), "%Y-%m-%d %H:%M:%S", &tm) == 0)
        strcpy(date, "-");
    return snprintf(buf, len, "%s.%03ld %s[%d] %s: ", date, now.tv_nsec / 1000000, log_state.ident,
                    (int)getpid(), levels[level].name);
}

/* The length in bytes of the UTF-8 character at @s, and its code point; 0: it is not UTF-8. */
static unsigned utf8_at(const unsigned char *s, uint32_t *ret_char)
{
    unsigned len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = len == 1 ? s[0] : s[0] & (0x7fu >> len);

    if (len == 0 || s[0] > 0xf4)
        return 0;
    for (unsigned i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the end of the text too */
            return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if ((len == 3 && c < 0x800) || (len == 4 && c < 0x10000) || c > 0x10ffff ||
        (c >= 0xd800 && c < 0xe000))
        return 0;
    *ret_char = c;
    return len;
}

static bool is_hidden(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c || c == 0x180e ||
           (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffb) ||
           (c >= 0xe0000 && c <= 0xe0fff);
}

void log_clean(char *text)
{
    unsigned len;
    uint32_t c = 0;

    for (unsigned char *s = (unsigned char *)text; *s; s += MAX(len, 1u)) {
        len = utf8_at(s, &c);
        if (len == 0 || is_hidden(c))
            memset(s, '?', MAX(len, 1u));
    }
}

static void count_one(_Atomic uint64_t *count)
{
    atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
}

void log_counts(struct log_counts *ret_counts)
{
    for (unsigned i = 0; i < ARRAY_LEN(ret_counts->written); i++)
        ret_counts->written[i] =
            atomic_load_explicit(&log_counted.written[i], memory_order_relaxed);
    ret_counts->lost = atomic_load_explicit(&log_counted.lost, memory_order_relaxed);
}

void log_write(enum conf_log_level level, const char *fmt, ...)
{
    int saved = errno;
    char line[LINE_BYTES];
    size_t at, len;
    va_list args;
    ssize_t n;
    int text;

    if (!log_enabled(level))
        return;
    at = (size_t)write_prefix(level, line, sizeof(line));
    len = sizeof(line) - at;
    errno = saved; /* for %m */
    va_start(args, fmt);
    text = vsnprintf(line + at, len, fmt, args);
    va_end(args);
    if (text < 0)
        text = 0;
    if ((size_t)text >= len) /* cut: say so, in the place of the last characters */
        memcpy(line + sizeof(line) - 4, "...", 3);
    log_clean(line + at);
    if ((size_t)text >= len) {
        at = sizeof(line) - 1;
    } else {
        at += (size_t)text;
    }
    line[at] = '\n'; /* over the NUL */
    do {
        n = write(log_state.fd, line, at + 1);
    } while (n < 0 && errno == EINTR);
    count_one(n < 0 ? &log_counted.lost : &log_counted.written[level]);
    errno = saved;
}
