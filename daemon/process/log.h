/* log.h - one line per decision to stderr (journal prefixes when stderr is the journal).
 * "fact -> decision", lower case. Only the daemon and the engine's edges log. */
#ifndef COMMD_LOG_H
#define COMMD_LOG_H

#include "daemon/conf/conf.h"

void log_init(const char *ident, enum conf_log_level level);
/* Lines go to @fd (borrowed) instead of stderr from now on. */
void log_set_fd(int fd);
void log_set_level(enum conf_log_level level);
enum conf_log_level log_level(void);
bool log_enabled(enum conf_log_level level);
void log_write(enum conf_log_level level, const char *fmt, ...) _printf_(2, 3);

/* The lines of this process, since its start. */
struct log_counts {
    uint64_t written[CONF_LOG_DEBUG + 1]; /* by level */
    uint64_t lost;                        /* lines that could not be written */
};
void log_counts(struct log_counts *ret_counts);

/* Control characters and such become '?': see log.c. */
void log_clean(char *text);

#define log_error(...) log_write(CONF_LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(CONF_LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(CONF_LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
    do {                                                                                           \
        if (log_enabled(CONF_LOG_DEBUG))                                                           \
            log_write(CONF_LOG_DEBUG, __VA_ARGS__);                                                \
    } while (0)

#endif
