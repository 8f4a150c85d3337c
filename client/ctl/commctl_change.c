/* commctl_change.c - the verbs that change something: drain, kick, log-level and reload. commd
 * decides, and says in one line what it did; --json shows the same as a table. */
#include <stdio.h>

#include "client/ctl/commctl.h"
#include "shm/proto/codec.h"

static int change(struct options *o, const char *verb)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    const struct msg_tables *tables = &answer.tables;

    if (!ask_tables(&o->ask, verb, &answer))
        return EXIT_NOT_ASKED;
    if (o->show.json) {
        if (!show_tables(&o->show, tables))
            return EXIT_NOT_ASKED;
    } else if (*cell_of(tables, 0, "done")) {
        puts(cell_of(tables, 0, "done"));
        fflush(stdout); /* before it is waited */
    }
    return judge_answer(tables);
}

bool no_words(const char *verb, char **args, int n)
{
    if (n)
        complain("%s: %s: it is about this node and takes no words; see commctl --help", verb,
                 args[0]);
    return n == 0;
}

int verb_drain(struct options *o, char **args, int n)
{
    static const struct wait idle = {.kind = WAIT_IDLE};
    int r;

    if (!no_words("drain", args, n))
        return EXIT_NOT_ASKED;
    if (o->undo && o->wait_ms >= 0)
        return refuse("drain: --undo and --wait do not go together");
    r = change(o, o->undo ? "undrain" : "drain");
    if (r || o->wait_ms < 0)
        return r;
    return wait_until(o, &idle, o->wait_ms, true);
}

int verb_reload(struct options *o, char **args, int n)
{
    return no_words("reload", args, n) ? change(o, "reload") : EXIT_NOT_ASKED;
}

int verb_log_level(struct options *o, char **args, int n)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    const struct msg_tables *tables = &answer.tables;

    if (n > 1 || (n && strlen(args[0]) >= MSG_TEXT_MAX))
        return refuse("log-level: one level, error, warn, info or debug; or none");
    if (n) {
        o->ask.text = args[0];
        return change(o, "set_log_level");
    }
    o->show.vertical = true;
    if (!ask_tables(&o->ask, "log_level", &answer) || !show_tables(&o->show, tables))
        return EXIT_NOT_ASKED;
    return judge_answer(tables);
}

static bool parse_u32(const char *what, const char *text, uint32_t *ret)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value > INT32_MAX) {
        complain("kick: %s: not a %s", text, what);
        return false;
    }
    *ret = (uint32_t)value;
    return true;
}

bool group_fits(const char *verb, const char *name)
{
    if (*name && strlen(name) < MSG_GROUP_MAX)
        return true;
    complain("%s: the name of the group is %s", verb,
             *name ? "longer than a group's can be" : "empty");
    return false;
}

int verb_kick(struct options *o, char **args, int n)
{
    const char *verb = "kick";

    if (o->reason && strlen(o->reason) >= MSG_TEXT_MAX)
        return refuse("kick: the reason is longer than %d bytes", MSG_TEXT_MAX - 1);
    o->ask.text = o->reason;
    if (n == 1 && (!strcmp(args[0], "pid") || !strcmp(args[0], "rank")))
        return refuse("kick: which %s? commctl kick %s (a group of that name: kick it by its id)",
                      args[0], args[0][0] == 'p' ? "pid PID" : "rank GROUP RANK");
    if (n == 1) {
        o->ask.group = args[0];
    } else if (n == 2 && !strcmp(args[0], "pid")) {
        verb = "kick_pid";
        if (!parse_u32("pid", args[1], &o->ask.pid))
            return EXIT_NOT_ASKED;
    } else if (n == 3 && !strcmp(args[0], "rank")) {
        verb = "kick_rank";
        o->ask.group = args[1];
        if (!parse_u32("rank", args[2], &o->ask.rank))
            return EXIT_NOT_ASKED;
    } else {
        return refuse("kick: whom? commctl kick GROUP, kick pid PID, or kick rank GROUP RANK");
    }
    if (o->ask.group && !group_fits("kick", o->ask.group))
        return EXIT_NOT_ASKED;
    return change(o, verb);
}
