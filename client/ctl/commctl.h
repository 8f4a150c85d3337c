/* commctl.h - the parts of commctl: asking (commctl_ask.c) and showing (commctl_print.c).
 * Both say what went wrong on stderr, in one line, where it is known; callers only exit. */
#ifndef COMMCTL_H
#define COMMCTL_H

#include "shm/proto/msg.h"

/* Exit codes, documented in commctl.8. */
enum { EXIT_FINE = 0, EXIT_BAD_ANSWER = 1, EXIT_NOT_ASKED = 2 };

struct ask {
    const char *socket; /* --socket or NULL; borrowed */
    int64_t timeout_ms;
    const char *group;          /* of "ranks": name or id; NULL: all. Borrowed */
    uint32_t watch_ms;          /* for how long to watch them */
    struct msg_welcome welcome; /* who answered */
    char path[108];             /* and where: sizeof(sockaddr_un.sun_path) */
};

/* Asks the daemon for the tables of @verb; the answer is released with msg_fini(). false: it
 * could not be asked, and why was said. */
bool ask_tables(struct ask *ask, const char *verb, struct msg *ret_tables);

struct show {
    bool json;
    bool vertical; /* one row per table: a list of its columns */
};

/* Prints to stdout. false: it could not be printed, and why was said. */
bool show_tables(const struct show *show, const struct msg_tables *tables);

/* commctl_ranks.c: the answer to "ranks" as a person wants it. false: it could not be printed, and
 * why was said. *ret_well: is all that was asked for well? */
bool has_group(const struct msg_tables *ranks, const char *group);
bool show_why(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well);
bool show_ops(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well);
bool show_ranks(const struct show *show, const char *group, const struct msg_tables *ranks,
                bool *ret_well);

/* "commctl: ..." on stderr. */
void complain(const char *format, ...) _printf_(1, 2);

#endif
