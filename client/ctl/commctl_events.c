/* commctl_events.c - what happened on this node: what commd remembers, and with --follow what
 * comes.
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
        if (strcmp(cell_of(t, i, "time"), from) >= 0)
            print_event(o, t, i);
    }
    return flush_stdout() ? -1 : EXIT_NOT_ASKED;
}

static int show_once(struct options *o, const char *from)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    struct msg_tables *t = &answer.tables;
    struct msg_table shown;
    uint32_t first = 0;

    if (!ask_tables(&o->ask, "events", &answer))
        return EXIT_NOT_ASKED;
    if (!o->show.json) {
        for (uint32_t i = 0; t->ntables && i < t->tables->nrows; i++)
            if (strcmp(cell_of(t, i, "time"), from) >= 0)
                print_event(o, t, i);
    } else if (t->ntables) {
        while (first < t->tables->nrows && strcmp(cell_of(t, first, "time"), from) < 0)
            first++; /* they are in order */
        shown = *t->tables;
        shown.cells += (size_t)first * shown.ncolumns;
        shown.nrows -= first;
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

    if (n)
        return refuse("events: %s: it takes no words; see commctl --help", args[0]);
    if (o->since_ms >= 0)
        time_text(o->since_ms, from);
    if (!o->follow)
        return show_once(o, from);
    while ((r = show_more(o, &followed, from)) < 0)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    return r;
}
