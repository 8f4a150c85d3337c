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

/* Of @option, from optarg. False: it was complained of. */
static bool take_timeout(const char *option, int64_t *ret_ms)
{
    if (parse_timeout(optarg, ret_ms))
        return true;
    complain("%s %s: not a number of seconds above 0, up to %d", option, optarg, MAX_TIMEOUT_S);
    return false;
}

static void add_special(struct options *o, const char *name)
{
    for (unsigned i = 0; i < o->nspecial; i++)
        if (!strcmp(o->special[i], name))
            return;
    if (o->nspecial < ARRAY_LEN(o->special)) /* there are fewer */
        o->special[o->nspecial++] = name;
}

int parse_options(int argc, char **argv, struct options *o)
{
    enum {
        O_SOCKET = 256,
        O_JSON,
        O_TIMEOUT,
        O_VERSION,
        O_FOR,
        O_WATCH,
        O_SECONDS,
        O_FOLLOW,
        O_SINCE,
        O_UNDO,
        O_WAIT,
        O_REASON
    };
    static const struct option longs[] = {{"socket", required_argument, NULL, O_SOCKET},
                                          {"json", no_argument, NULL, O_JSON},
                                          {"timeout", required_argument, NULL, O_TIMEOUT},
                                          {"seconds", required_argument, NULL, O_SECONDS},
                                          {"version", no_argument, NULL, O_VERSION},
                                          {"watch", optional_argument, NULL, O_WATCH},
                                          {"for", required_argument, NULL, O_FOR},
                                          {"follow", no_argument, NULL, O_FOLLOW},
                                          {"since", required_argument, NULL, O_SINCE},
                                          {"undo", no_argument, NULL, O_UNDO},
                                          {"wait", required_argument, NULL, O_WAIT},
                                          {"reason", required_argument, NULL, O_REASON},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int64_t ms;
    int c, at;

    while ((c = getopt_long(argc, argv, "h", longs, &at)) >= 0) {
        if (c >= O_FOR)
            add_special(o, longs[at].name);
        switch (c) {
        case O_SOCKET:
            if (!*optarg)
                return refuse("--socket: the path is empty");
            o->ask.socket = optarg;
            break;
        case O_JSON:
            o->show.json = true;
            break;
        case O_TIMEOUT:
            if (!take_timeout("--timeout", &o->ask.timeout_ms))
                return EXIT_NOT_ASKED;
            o->timed = true;
            break;
        case O_FOR:
            o->waited = optarg;
            break;
        case O_WATCH:
            if (!optarg && optind < argc && strchr("0123456789.", argv[optind][0]) &&
                argv[optind][0])
                optarg = argv[optind++];
            o->repeat_ms = REPEAT_MS;
            if (optarg && (!parse_timeout(optarg, &o->repeat_ms) || o->repeat_ms < REPEAT_MIN_MS))
                return refuse("--watch %s: not a number of seconds from %g", optarg,
                              REPEAT_MIN_MS / 1000.0);
            break;
        case O_FOLLOW:
            o->follow = true;
            break;
        case O_SINCE:
            if (!parse_age(optarg, &o->since_ms))
                return refuse("--since %s: not an age such as 30s, 10m, 2h or 1d", optarg);
            break;
        case O_UNDO:
            o->undo = true;
            break;
        case O_WAIT:
            if (!take_timeout("--wait", &o->wait_ms))
                return EXIT_NOT_ASKED;
            break;
        case O_REASON:
            o->reason = optarg;
            break;
        case O_SECONDS:
            if (!parse_timeout(optarg, &ms) || ms > MAX_WATCH_MS)
                return refuse("--seconds %s: not a number of seconds from 0.001 to %d", optarg,
                              MAX_WATCH_MS / 1000);
            o->watch_ms = (uint32_t)ms;
            break;
        case O_VERSION:
            puts("commctl " COMMD_BUILD_VERSION);
            return EXIT_FINE;
        case 'h':
            o->help = true;
            break;
        default: /* getopt has said what is wrong */
            fputs("Try: commctl --help\n", stderr);
            return EXIT_NOT_ASKED;
        }
    }
    return -1;
}
