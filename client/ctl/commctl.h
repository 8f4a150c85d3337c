/* commctl.h - the parts of commctl: asking (commctl_ask.c) and showing (commctl_print.c).
 * Both say what went wrong on stderr, in one line, where it is known; callers only exit. */
#ifndef COMMCTL_H
#define COMMCTL_H

#include "shm/proto/msg.h"

/* Exit codes, documented in commctl.8. */
enum { EXIT_FINE = 0, EXIT_BAD_ANSWER = 1, EXIT_NOT_ASKED = 2, EXIT_TIMED_OUT = 3 };

struct ask {
    const char *socket; /* --socket or NULL; borrowed */
    int64_t timeout_ms;
    const char *group;          /* name or id; NULL: none, or all. Borrowed */
    uint32_t watch_ms;          /* of "ranks": for how long to watch them */
    uint64_t since;             /* of "events" */
    uint32_t pid, rank;         /* of "kick_pid" and "kick_rank" */
    bool records;               /* of "ranks": with the operations of each */
    bool links;                 /* likewise: the links of all nodes instead */
    const char *text;           /* of "kick...": the reason, or NULL. Borrowed */
    bool gone;                  /* asking failed: nobody listens there, or does not answer now */
    struct msg_welcome welcome; /* who answered */
    char path[108];             /* and where: sizeof(sockaddr_un.sun_path) */
};

/* Asks the daemon for the tables of @verb; the answer is released with msg_fini(). false: it
 * could not be asked, and why was said. */
bool ask_tables(struct ask *ask, const char *verb, struct msg *ret_tables);

struct show {
    bool json;
    bool vertical;                  /* one row per table: a list of its columns */
    bool colours;                   /* for a person at a terminal that shows them */
    const struct msg_welcome *from; /* who answered; borrowed */
};

/* "red", "green" or "yellow" for a word in the column @key, or NULL. */
const char *colour_of(const char *key, const char *word);
/* Prints to stdout. false: it could not be printed, and why was said. */
bool show_tables(const struct show *show, const struct msg_tables *tables);
/* Where the terminal is too narrow for @table: leaves out columns of @spare, in this order; first
 * those in which nothing stands. */
void fit_columns(const struct show *show, struct msg_table *table, const char *const *spare,
                 unsigned nspare);
/* Prints @before, and @text as a string of JSON. */
void print_json(const char *before, const char *text);
/* false: what was printed could not be written, and that was said. */
bool flush_stdout(void);

/* Orders the rows of @table by these columns; node10 comes after node9. Answers of several nodes
 * lie in the order in which they came. */
void sort_rows(struct msg_table *table, const char *const *keys, unsigned nkeys);

/* commctl_made.c: a table that is made here. It is written as a list with a row for each column,
 * COLUMNS(C) for example:
 *
 *   C(pid, "PID", number, (double)f->pid, "%.0f")
 *
 * is key, heading, kind of the cells, and value. made_begin(&made, "name", COLUMNS, nrows) makes
 * the columns, for @nrows rows at most, and MADE_ADD(COLUMNS) adds a row, whose values are taken
 * from the variables around it, to the table made. The kinds are the functions made_KIND(). Cells
 * are borrowed, or short copies. */
struct made {
    struct msg_table table;
    char **cells;        /* owned; NULL: no memory */
    char (*numbers)[24]; /* owned: the copies */
    unsigned at;
};
#define made_begin(made_, name_, LIST_, nrows_)                                                    \
    struct msg_column made_columns_[] = {LIST_(MADE_COLUMN)};                                      \
    made_init(made_, name_, made_columns_, ARRAY_LEN(made_columns_), nrows_)
#define MADE_ADD(LIST_)                       LIST_(MADE_CELL)
#define MADE_COLUMN(key_, title_, kind_, ...) {#key_, title_, MADE_TYPE_##kind_},
#define MADE_CELL(key_, title_, kind_, ...)   made_##kind_(&made, __VA_ARGS__);
#define MADE_TYPE_text                        MSG_CELL_STRING
#define MADE_TYPE_copy                        MSG_CELL_STRING
#define MADE_TYPE_number                      MSG_CELL_NUMBER
#define MADE_TYPE_flag                        MSG_CELL_BOOL
void made_init(struct made *made, const char *name, struct msg_column *columns, uint32_t ncolumns,
               uint32_t nrows);
void made_text(struct made *made, const char *text);
void made_copy(struct made *made, const char *text);
/* Negative: not known. */
void made_number(struct made *made, double number, const char *format);
void made_flag(struct made *made, bool flag);
/* All rows were added: fit_columns(). */
void made_fit(const struct show *show, struct made *made, const char *const *spare,
              unsigned nspare);
/* Shows the rows that were added, and frees the table. False: it could not be shown, or there was
 * no memory for it, and that was said. */
bool made_show(const struct show *show, struct made *made);

/* Says why an answer could not be read: @r is -ENOMEM, or -EPROTO if it lacks the column @key.
 * False.
 */
bool cannot_read(int r, const char *key);
bool has_group(const struct msg_tables *ranks, const char *group);
/* commctl_ranks.c: "" unless commd was restarted lately; then that it does not know what was
 * before.
 */
void restart_text(const struct msg_welcome *from, char *text, size_t len);
/* commctl_ranks.c: the answer to "ranks" as a person wants it. False: it could not be printed, and
 * why was said. *ret_well: is all that was asked for well? */
bool show_why(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well);
bool show_ops(const struct show *show, const char *group, const struct msg_tables *ranks,
              bool *ret_well);
bool show_ranks(const struct show *show, const char *group, const struct msg_tables *ranks,
                bool *ret_well);

/* commctl_trace.c: likewise, with records. */
bool show_trace(const struct show *show, const char *group, const struct msg_tables *answer,
                bool *ret_well);
bool show_top(const struct show *show, const char *group, const struct msg_tables *answer,
              bool *ret_well);

struct options {
    struct ask ask;
    struct show show;
    const char *group;      /* of why, ops, ranks, events; NULL: all */
    uint32_t watch_ms;      /* --seconds; 0: as the verb wants */
    const char *reason;     /* of kick */
    const char *waited;     /* --for */
    const char *special[8]; /* options that were given and that not all verbs take */
    unsigned nspecial;
    int64_t repeat_ms; /* --watch; 0: once */
    bool help;
    bool undo;               /* of drain */
    bool follow;             /* of events */
    int64_t since_ms;        /* of events: so long ago at most; -1: all */
    const char *kinds, *job; /* of events, and its group; NULL: any */
    bool timed;              /* --timeout was given */
    int64_t wait_ms;         /* of drain; -1: none */
};

/* commctl_options.c: -1 to go on, else the exit code. */
int parse_options(int argc, char **argv, struct options *o);
/* Prints the options for which there is @takes, or which all verbs take. @takes NULL: all. */
void print_option_helps(bool (*takes)(const void *verb, const char *option), const void *verb);

/* commctl_watch.c: @once again and again, with a copy of @o. Returns an exit code when it cannot go
 * on; @words: what is watched. */
typedef int watch_fn(const void *arg, struct options *o);
int watch(const struct options *o, watch_fn *once, const void *arg, const char *words);

/* commctl_wait.c */
enum wait_kind { WAIT_READY, WAIT_NODES, WAIT_IDLE, WAIT_GROUP };
struct wait {
    enum wait_kind kind;
    unsigned nodes;    /* 0: all */
    const char *group; /* name or id; borrowed */
};
/* Asks until it is so, for @limit_ms at most, if that is not negative. An exit code; what is
 * missing at the end has been said. @tell: it is also said whenever it changes. */
int wait_until(struct options *o, const struct wait *wait, int64_t limit_ms, bool tell);
int verb_wait(struct options *o, char **args, int n);

/* commctl_change.c */
/* For a verb that is about this node: false, and said, if there are words behind it. */
bool no_words(const char *verb, char **args, int n);
/* Can a group have this name? False, and said, if not. */
bool group_fits(const char *verb, const char *name);
int verb_drain(struct options *o, char **args, int n);
int verb_log_level(struct options *o, char **args, int n);
int verb_reload(struct options *o, char **args, int n);
int verb_kick(struct options *o, char **args, int n);

/* commctl_doctor.c */
int verb_doctor(struct options *o, char **args, int n);

/* commctl_events.c */
int verb_events(struct options *o, char **args, int n);

/* The cell under @key in row @row of the first table, or "". */
const char *cell_of(const struct msg_tables *tables, uint32_t row, const char *key);

/* complain() writes to @buf from now on, each text over the one before; NULL: to stderr again. */
void complain_to(char *buf, size_t size);
/* "commctl: ..." on stderr. */
void complain(const char *format, ...) _printf_(1, 2);
/* Likewise, as an expression: EXIT_NOT_ASKED. */
#define refuse(...) (complain(__VA_ARGS__), EXIT_NOT_ASKED)
/* The exit code that @answer makes; what is not well is complained of. */
int judge_answer(const struct msg_tables *answer);
/* "2026-11-26T13:01:07"; "": there is no such date. */
const char *utc_text(int64_t seconds, char buf[32]);
/* "2026-11-26T13:01:07Z", @ms ago; a rank's log has the same. */
const char *time_ago(uint64_t ms, char buf[32]);

#endif
