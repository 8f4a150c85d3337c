/* commctl_options.c - the command line of commctl up to its verb, as struct options. */
#include "config.h"

#include <getopt.h>
#include <stdio.h>

#include "client/ctl/commctl.h"

enum {
    MAX_TIMEOUT_S = 86400,
    MAX_WATCH_MS = 10000,
    REPEAT_MS = 2000, /* of --watch without a number */
    REPEAT_MIN_MS = 200,
};

static bool parse_timeout(const char *text, int64_t *ret_ms)
{
    char *end;
    double s = strtod(text, &end), ms = s * 1000;

    if (end == text || *end || !(s > 0) || s > MAX_TIMEOUT_S)
        return false;
    *ret_ms = (int64_t)ms + ((double)(int64_t)ms < ms); /* rounded up: never 0 */
    return true;
}

/* Seconds, or with a unit. */
static bool parse_age(const char *text, int64_t *ret_ms)
{
    static const struct {
        char unit;
        double s;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    double s = strtod(text, &end);

    for (size_t i = 0; i < ARRAY_LEN(units) && end != text; i++)
        if (*end == units[i].unit) {
            s *= units[i].s;
            end++;
            break;
        }
    if (end == text || *end || !(s >= 0) || s > 1e9)
        return false;
    *ret_ms = (int64_t)(s * 1000);
    return true;
}

enum kind { FLAG, TEXT, SOCKET, SECONDS, WATCHED, AGE, REPEAT, VERSION_ASKED };

/* clang-format off */
static const struct {
    const char *name;
    int arg;
    enum kind kind;
    size_t at;    /* in struct options */
    bool special; /* not all verbs take it: see verbs[] in commctl.c */
    const char *help;
} known[] = {
    {"socket", required_argument, SOCKET, offsetof(struct options, ask.socket), false,
     "--socket PATH  the daemon's socket; else $COMMD_SOCKET, else /run/commd/commd.sock,\n"
     "                 else the user's own, $XDG_RUNTIME_DIR/commd/commd.sock or\n"
     "                 /run/user/UID/commd/commd.sock or /tmp/commd-UID/commd.sock"},
    {"json", no_argument, FLAG, offsetof(struct options, show.json), false,
     "--json         print JSON; the keys are documented in commctl(8)"},
    {"timeout", required_argument, SECONDS, offsetof(struct options, ask.timeout_ms), false,
     "--timeout S    how long to wait for the answer, in seconds (default 5); wait: for\n"
     "                 what it waits for (default: without end)"},
    {"watch", optional_argument, REPEAT, offsetof(struct options, repeat_ms), true,
     "--watch [S]    again every S seconds (default 2, from 0.2), until interrupted"},
    {"for", required_argument, TEXT, offsetof(struct options, waited), true,
     "--for WHAT     of wait: ready (default), nodes=N, nodes=all, idle, group=NAME"},
    {"seconds", required_argument, WATCHED, offsetof(struct options, watch_ms), true,
     "--seconds S    how long top and trace watch (default 1, at most 10)"},
    {"follow", no_argument, FLAG, offsetof(struct options, follow), true,
     "--follow       of events: go on until interrupted"},
    {"since", required_argument, AGE, offsetof(struct options, since_ms), true,
     "--since AGE    of events: no older ones, e.g. 10m; s, m, h or d"},
    {"kind", required_argument, TEXT, offsetof(struct options, kinds), true,
     "--kind KIND    of events: of these kinds alone, e.g. rank_lost,group_failed"},
    {"job", required_argument, TEXT, offsetof(struct options, job), true,
     "--job JOB      of events: about groups of that job alone, whose names begin with JOB/"},
    {"undo", no_argument, FLAG, offsetof(struct options, undo), true,
     "--undo         of drain: take new groups and clients again"},
    {"wait", required_argument, SECONDS, offsetof(struct options, wait_ms), true,
     "--wait S       of drain: wait until no group is left, S seconds at most"},
    {"reason", required_argument, TEXT, offsetof(struct options, reason), true,
     "--reason TEXT  of kick: for the errors that the ranks get"},
    {"version", no_argument, VERSION_ASKED, 0, false,
     "--version      print commctl's version"},
    {"help", no_argument, FLAG, offsetof(struct options, help), false,
     "--help         print this text, or behind a verb what is about it"},
};
/* clang-format on */

void print_option_helps(bool (*takes)(const void *verb, const char *option), const void *verb)
{
    putchar('\n');
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!takes || !known[i].special || takes(verb, known[i].name))
            printf("  %s\n", known[i].help);
    puts(
        "\nExit codes: 0 fine, 1 asked and the answer is bad, 2 could not ask, 3 waited too long.");
}

static void add_special(struct options *o, const char *name)
{
    for (unsigned i = 0; i < o->nspecial; i++)
        if (!strcmp(o->special[i], name))
            return;
    assert(o->nspecial < ARRAY_LEN(o->special));
    o->special[o->nspecial++] = name;
}

/* Takes optarg for the option @i. -1 to go on, else the exit code. */
static int take_option(unsigned i, int argc, char **argv, struct options *o)
{
    void *field = (char *)o + known[i].at;
    int64_t ms = REPEAT_MS;

    if (known[i].special)
        add_special(o, known[i].name);
    switch (known[i].kind) {
    case FLAG:
        *(bool *)field = true;
        break;
    case SOCKET:
        if (!*optarg)
            return refuse("--socket: the path is empty");
        *(const char **)field = optarg;
        break;
    case TEXT:
        *(const char **)field = optarg;
        break;
    case SECONDS:
        if (!parse_timeout(optarg, field))
            return refuse("--%s %s: not a number of seconds above 0, up to %d", known[i].name,
                          optarg, MAX_TIMEOUT_S);
        o->timed = o->timed || !known[i].special;
        break;
    case WATCHED:
        if (!parse_timeout(optarg, &ms) || ms > MAX_WATCH_MS)
            return refuse("--seconds %s: not a number of seconds from 0.001 to %d", optarg,
                          MAX_WATCH_MS / 1000);
        *(uint32_t *)field = (uint32_t)ms;
        break;
    case AGE:
        if (!parse_age(optarg, field))
            return refuse("--since %s: not an age such as 30s, 10m, 2h or 1d", optarg);
        break;
    case REPEAT:
        if (!optarg && optind < argc && strchr("0123456789.", argv[optind][0]) && argv[optind][0])
            optarg = argv[optind++];
        if (optarg && (!parse_timeout(optarg, &ms) || ms < REPEAT_MIN_MS))
            return refuse("--watch %s: not a number of seconds from %g", optarg,
                          REPEAT_MIN_MS / 1000.0);
        *(int64_t *)field = ms;
        break;
    case VERSION_ASKED:
        puts("commctl " COMMD_BUILD_VERSION);
        return EXIT_FINE;
    }
    return -1;
}

int parse_options(int argc, char **argv, struct options *o)
{
    struct option longs[ARRAY_LEN(known) + 1] = {0};
    int c, at, r = -1;

    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        longs[i] = (struct option){known[i].name, known[i].arg, NULL, 0};
    while (r < 0 && (c = getopt_long(argc, argv, "h", longs, &at)) >= 0) {
        if (c == 0)
            r = take_option((unsigned)at, argc, argv, o);
        else if (c == 'h')
            o->help = true;
        else { /* getopt has said what is wrong */
            fputs("Try: commctl --help\n", stderr);
            r = EXIT_NOT_ASKED;
        }
    }
    return r;
}
