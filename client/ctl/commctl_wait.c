/* commctl_wait.c - waits until something is so: asks commd every LOOK_MS.
 *
 * Each look tells in one line what is missing. The line is said at the end of the time, or whenever
 * it changes, for a caller that wants to see progress. A commd that is not there (yet, or any more)
 * is missing, too. The last answer may come after the end of the time, so that what is missing can
 * be said. An error that time does not mend, such as a socket that this user may not open, ends the
 * waiting. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "client/ctl/commctl.h"
#include "client/ctl/words.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"

enum { LOOK_MS = 200, ASK_MS = 5000, ASK_LEAST_MS = 2000, MISSING_MAX = 1024 };

static volatile sig_atomic_t interrupted;

static void on_wait_signal(int signo)
{
    interrupted = signo;
}

/* ---- one look ---------------------------------------------------------------------------- */

static _printf_(2, 3) void add(char missing[MISSING_MAX], const char *format, ...)
{
    size_t used = strlen(missing);
    va_list ap;

    if (used && used + 2 < MISSING_MAX)
        used += (size_t)snprintf(missing + used, MISSING_MAX - used, "; ");
    va_start(ap, format);
    vsnprintf(missing + used, MISSING_MAX - used, format, ap);
    va_end(ap);
}

static bool cell_is(const struct msg_tables *t, uint32_t row, const char *key, const char *value)
{
    return !strcmp(cell_of(t, row, key), value);
}

static bool is_up(const struct msg_tables *nodes, uint32_t row)
{
    enum node_state state = read_word(NODE_WORDS, cell_of(nodes, row, "state"));

    return state == NODE_UP || state == NODE_SELF;
}

static uint32_t rows(const struct msg_tables *t)
{
    return t->ntables ? t->tables->nrows : 0;
}

static void look_ready(const struct msg_tables *status, const struct wait *wait,
                       char missing[MISSING_MAX])
{
    if (!status->healthy)
        add(missing, "%s", status->text);
}

static void look_nodes(const struct msg_tables *nodes, const struct wait *wait,
                       char missing[MISSING_MAX])
{
    unsigned up = 0, all = rows(nodes), wanted = wait->nodes ? wait->nodes : all;

    for (uint32_t i = 0; i < all; i++)
        up += is_up(nodes, i);
    if (up >= wanted)
        return;
    add(missing, "%u of %u nodes are up", up, wanted);
    if (wanted > all)
        add(missing, "the configuration has only %u", all);
    for (uint32_t i = 0; i < all; i++) {
        const char *why = cell_of(nodes, i, "last_error");

        if (!is_up(nodes, i))
            add(missing, "node %s is %s%s%s", cell_of(nodes, i, "node"), cell_of(nodes, i, "state"),
                *why ? ": " : "", why);
    }
}

static void look_idle(const struct msg_tables *status, const struct wait *wait,
                      char missing[MISSING_MAX])
{
    if (rows(status) && !cell_is(status, 0, "groups", "0"))
        add(missing, "groups that still run on node %s: %s", cell_of(status, 0, "node"),
            cell_of(status, 0, "groups"));
}

static void look_group(const struct msg_tables *groups, const struct wait *wait,
                       char missing[MISSING_MAX])
{
    const char *name = wait->group;
    char text[MISSING_MAX] = "";

    for (uint32_t i = 0; i < rows(groups); i++) {
        const char *ranks = cell_of(groups, i, "missing");

        if (!cell_is(groups, i, "name", name) && !cell_is(groups, i, "group", name))
            continue;
        if (read_word(GROUP_WORDS, cell_of(groups, i, "state")) == GROUP_OPEN)
            return;
        snprintf(text, sizeof(text), "group \"%s\" is %s%s%s", name, cell_of(groups, i, "state"),
                 *ranks ? ", missing ranks " : "", ranks);
    }
    if (text[0])
        add(missing, "%s", text);
    else
        add(missing, "there is no group \"%s\" with ranks on this node", name);
}

/* -1: it is so, and @missing is "", or it is not so yet. Else an exit code. */
static int wait_look(struct options *o, const struct wait *wait, char missing[MISSING_MAX])
{
    static const struct {
        const char *verb;
        void (*look)(const struct msg_tables *answer, const struct wait *wait,
                     char missing[MISSING_MAX]);
    } kinds[] = {
        [WAIT_READY] = {"status", look_ready},
        [WAIT_NODES] = {"nodes", look_nodes},
        [WAIT_IDLE] = {"status", look_idle},
        [WAIT_GROUP] = {"groups", look_group},
    };
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    bool asked;

    assert(wait->kind != WAIT_GROUP || wait->group);
    missing[0] = 0;
    complain_to(missing, MISSING_MAX);
    asked = ask_tables(&o->ask, kinds[wait->kind].verb, &answer);
    complain_to(NULL, 0);
    if (asked)
        kinds[wait->kind].look(&answer.tables, wait, missing);
    return asked || o->ask.gone ? -1 : EXIT_NOT_ASKED;
}

/* ---- waiting ----------------------------------------------------------------------------- */

/* @ret_missing: what was missing at the end. */
static int wait_told(struct options *o, const struct wait *wait, int64_t limit_ms, bool tell,
                     char ret_missing[MISSING_MAX])
{
    int64_t end = limit_ms < 0 ? INT64_MAX : (int64_t)now_ms() + limit_ms;
    struct sigaction action = {.sa_handler = on_wait_signal};
    char said[MISSING_MAX] = "", *missing = ret_missing;

    *missing = 0;
    sigaction(SIGINT, &action, NULL); /* without SA_RESTART: it ends a sleep */
    sigaction(SIGTERM, &action, NULL);
    for (;;) {
        int64_t left = end - (int64_t)now_ms();
        int r;

        o->ask.timeout_ms = MAX(MIN(left, (int64_t)ASK_MS), (int64_t)ASK_LEAST_MS);
        r = wait_look(o, wait, missing);
        left = end - (int64_t)now_ms();
        if (interrupted) {
            complain("interrupted: %s", missing[0] ? missing : "it is not known how it is");
            return 128 + interrupted;
        }
        if (r >= 0) {
            complain("%s", missing);
            return r;
        }
        if (!missing[0])
            return EXIT_FINE;
        if (left <= 0) {
            complain("not within %g s: %s", (double)limit_ms / 1000, missing);
            return EXIT_TIMED_OUT;
        }
        if (tell && strcmp(missing, said))
            complain("%s", missing);
        strcpy(said, missing);
        left = MIN(left, (int64_t)LOOK_MS);
        nanosleep(&(struct timespec){.tv_nsec = left * 1000000}, NULL);
    }
}

int wait_until(struct options *o, const struct wait *wait, int64_t limit_ms, bool tell)
{
    char missing[MISSING_MAX];

    return wait_told(o, wait, limit_ms, tell, missing);
}

static bool parse_wait(const char *text, struct wait *ret)
{
    char *end;

    *ret = (struct wait){.kind = WAIT_READY};
    if (!strcmp(text, "ready"))
        return true;
    ret->kind = WAIT_IDLE;
    if (!strcmp(text, "idle"))
        return true;
    ret->kind = WAIT_NODES;
    if (!strcmp(text, "nodes=all"))
        return true;
    if (!strncmp(text, "nodes=", 6)) {
        unsigned long n = strtoul(text + 6, &end, 10);

        ret->nodes = (unsigned)n;
        return text[6] >= '0' && text[6] <= '9' && !*end && n >= 1 && n <= MSG_MAX_NODES;
    }
    ret->kind = WAIT_GROUP;
    ret->group = text + 6;
    return !strncmp(text, "group=", 6) && text[6] && strlen(text + 6) < MSG_GROUP_MAX;
}

/* clang-format off */
#define WAIT_COLUMNS(C)                                                                            \
    C(for, "for", text, what)                                                                      \
    C(reached, "reached", flag, code == EXIT_FINE)                                                 \
    C(missing, "missing", text, missing)
/* clang-format on */

static int show_wait(const struct options *o, const char *what, int code, const char *missing)
{
    struct made made;

    made_begin(&made, "wait", WAIT_COLUMNS, 1);
    MADE_ADD(WAIT_COLUMNS)
    return made_show(&o->show, &made) ? code : EXIT_NOT_ASKED;
}

int verb_wait(struct options *o, char **args, int n)
{
    const char *what = o->waited ? o->waited : "ready";
    int64_t limit_ms = o->timed ? o->ask.timeout_ms : -1;
    char missing[MISSING_MAX];
    struct wait wait;
    int r;

    if (n)
        return refuse("wait: %s: what to wait for is said by --for", args[0]);
    if (!parse_wait(what, &wait))
        return refuse("wait: --for %s: ready, nodes=N (1 to %d), nodes=all, idle or group=NAME",
                      o->waited, MSG_MAX_NODES);
    r = wait_told(o, &wait, limit_ms, !o->show.json && isatty(STDERR_FILENO), missing);
    return o->show.json ? show_wait(o, what, r, missing) : r;
}
