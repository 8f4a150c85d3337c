/* commctl_events.c - what happened on this node: what commd remembers, and with --follow what
 * comes.
 *
 * Which are shown: those about one GROUP, or about the groups of one job
 * (client/lib/context/job.c), of some kinds, and no older than --since. An event names its group in
 * its text alone.
 *
 * A line per event, or with --json one object per event when they are followed. commd keeps the
 * last ones, bounded, and does not wait for readers. --follow asks every LOOK_MS for the events
 * after the last number that it has, and for how many events there have been at all: so it can tell
 * how many were lost. If commd goes away, --follow waits for it. The next one goes on with the next
 * number, or begins with number 1, which is another life of the diary.
 */
#include <stdio.h>
#include <time.h>

#include "client/ctl/commctl.h"
#include "shm/proto/codec.h"
#include "shm/proto/events.h"

enum { LOOK_MS = 300 };

struct followed {
    uint64_t last, total; /* number of the last one that was shown; how many there had been */
    uint64_t life;        /* of that diary; 0: none was seen */
    bool away;            /* it has been said that nobody answers */
};

/* "2026-11-23T21:50:00.123" of @ago_ms ago: times of events compare as texts. */
static void time_text(int64_t ago_ms, char ret[64])
{
    struct timespec now;
    char date[32];
    int64_t ms;

    clock_gettime(CLOCK_REALTIME, &now);
    ms = MAX((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - ago_ms, (int64_t)0);
    snprintf(ret, 64, "%s.%03d", utc_text(ms / 1000, date), (int)(ms % 1000));
}

/* ---- which events ---------------------------------------------------------------------------- */

/* Where the name behind @text's `group "` begins, and how long it is, as the event quotes it; NULL:
 * the event is about no group. */
static const char *group_in(const char *text, size_t *ret_len)
{
    const char *name = strstr(text, "group \"");
    size_t len = 0;

    if (!name)
        return NULL;
    name += strlen("group \"");
    while (name[len] && name[len] != '"')
        len += name[len] == '\\' && name[len + 1] ? 2 : 1;
    *ret_len = len;
    return name;
}

/* Is @name what stands quoted at @quoted? Of a long one only the beginning does. With @begins it
 * need only begin so. */
static bool is_quoted(const char *quoted, size_t len, const char *name, bool begins)
{
    size_t at = 0;

    for (; *name && at < len; name++, at++) {
        if (quoted[at] == '\\' && at + 1 < len)
            at++;
        if (quoted[at] != *name)
            return false;
    }
    return at >= len ? !*name || !strncmp(quoted + len, "\"...", 4) : begins && !*name;
}

/* Is the first @len bytes of @kind one of @kinds, which commas separate? */
static bool is_of_kind(const char *kinds, const char *kind, size_t len)
{
    for (const char *at = kinds; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        if (strcspn(at, ",") == len && !strncmp(at, kind, len))
            return true;
    return false;
}

static bool kinds_known(const char *kinds)
{
    size_t len = strcspn(kinds, ",");

    if (!is_of_kind(EVENT_NAMES, kinds, len)) {
        complain("events: --kind %.*s: no such kind; the kinds are %s", (int)len, kinds,
                 EVENT_NAMES);
        return false;
    }
    return !kinds[len] || kinds_known(kinds + len + 1);
}

static bool is_shown_event(const struct options *o, const char *from, const struct msg_tables *t,
                           uint32_t row)
{
    char job[256];
    size_t len = 0;
    const char *name = group_in(cell_of(t, row, "text"), &len), *kind = cell_of(t, row, "event");

    if (o->job)
        snprintf(job, sizeof(job), "%s/", o->job);
    return strcmp(cell_of(t, row, "time"), from) >= 0 &&
           (!o->kinds || is_of_kind(o->kinds, kind, strlen(kind))) &&
           (!o->group || (name && is_quoted(name, len, o->group, false))) &&
           (!o->job || (name && is_quoted(name, len, job, true)));
}

/* ---- showing them ---------------------------------------------------------------------------- */

static void print_event(const struct options *o, const struct msg_tables *t, uint32_t row)
{
    const char *uid = cell_of(t, row, "uid"), *text = cell_of(t, row, "text");

    if (!o->show.json) {
        printf("%s  %-14s  %s%s%s%s\n", cell_of(t, row, "time"), cell_of(t, row, "event"),
               *uid ? "user " : "", uid, *uid ? ": " : "", text);
        return;
    }
    printf("{\"number\": %s", cell_of(t, row, "number"));
    print_json(", \"time\": ", cell_of(t, row, "time"));
    print_json(", \"event\": ", cell_of(t, row, "event"));
    printf(", \"uid\": %s", *uid ? uid : "null");
    print_json(", \"text\": ", text);
    puts("}");
}

/* What was lost: all that there have been since then, but those that came. */
static void tell_lost(const struct options *o, struct followed *f, const struct msg_tables *t,
                      uint32_t rows)
{
    uint64_t since = t->ask - f->total;

    if (f->last && t->ask > f->total && since > rows) {
        if (o->show.json)
            printf("{\"lost\": %llu}\n", (unsigned long long)(since - rows));
        else
            printf("-- %llu events lost: there were more than commd keeps --\n",
                   (unsigned long long)(since - rows));
    }
    f->total = t->ask;
}

/* -1: go on. */
static int show_more(struct options *o, struct followed *f, const char *from)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    const struct msg_tables *t = &answer.tables;
    char why[512];
    uint64_t life;
    uint32_t rows;
    bool asked;

    o->ask.since = f->last;
    complain_to(why, sizeof(why));
    asked = ask_tables(&o->ask, "events", &answer);
    complain_to(NULL, 0);
    if (!asked && !(o->ask.gone && f->life))
        return refuse("%s", why);
    if (!asked) {
        if (!f->away)
            complain("%s; waiting for it", why);
        f->away = true;
        return -1;
    }
    f->away = false;
    life = t->life ? t->life : o->ask.welcome.incarnation; /* of a commd that keeps none */
    if (f->life && f->life != life) {
        *f = (struct followed){.life = life};
        return -1; /* ask anew, from its beginning */
    }
    f->life = life;
    if (t->text[0]) {
        complain("%s", t->text);
        return EXIT_BAD_ANSWER;
    }
    rows = t->ntables ? t->tables->nrows : 0;
    tell_lost(o, f, t, rows);
    for (uint32_t i = 0; i < rows; i++) {
        f->last = strtoull(cell_of(t, i, "number"), NULL, 10);
        if (is_shown_event(o, from, t, i))
            print_event(o, t, i);
    }
    return flush_stdout() ? -1 : EXIT_NOT_ASKED;
}

static int show_once(struct options *o, const char *from)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    struct msg_tables *t = &answer.tables;
    _cleanup_(freep) char **cells = NULL;
    struct msg_table shown;

    if (!ask_tables(&o->ask, "events", &answer))
        return EXIT_NOT_ASKED;
    if (!o->show.json) {
        for (uint32_t i = 0; t->ntables && i < t->tables->nrows; i++)
            if (is_shown_event(o, from, t, i))
                print_event(o, t, i);
    } else if (t->ntables) {
        shown = *t->tables;
        cells = calloc((size_t)shown.nrows * shown.ncolumns + 1, sizeof(*cells));
        if (!cells)
            return refuse("%s", strerror(ENOMEM));
        shown.cells = cells;
        shown.nrows = 0;
        for (uint32_t i = 0; i < t->tables->nrows; i++)
            if (is_shown_event(o, from, t, i))
                memcpy(cells + (size_t)shown.nrows++ * shown.ncolumns,
                       t->tables->cells + (size_t)i * shown.ncolumns,
                       shown.ncolumns * sizeof(*cells));
        if (!show_tables(&o->show, &(struct msg_tables){.ntables = 1, .tables = &shown}))
            return EXIT_NOT_ASKED;
    } else if (!show_tables(&o->show, t)) {
        return EXIT_NOT_ASKED;
    }
    return judge_answer(t);
}

int verb_events(struct options *o, char **args, int n)
{
    struct followed followed = {0};
    char from[64] = "";
    int r;

    if (n > 1)
        return refuse("events: %s: it takes one GROUP at most; a name with spaces needs quotes",
                      args[1]);
    o->group = n ? args[0] : NULL;
    if ((o->group && !group_fits("events", o->group)) || (o->kinds && !kinds_known(o->kinds)))
        return EXIT_NOT_ASKED;
    if (o->since_ms >= 0)
        time_text(o->since_ms, from);
    if (!o->follow)
        return show_once(o, from);
    while ((r = show_more(o, &followed, from)) < 0)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    return r;
}
