/* commctl.c - asks the local commd how it is. commctl.8 is the contract.
 *
 * commctl knows none of commd's tables: commd sends keys, headings and types with the cells
 * (msg_tables). So a column that is added there shows up here, and an old commctl works with a new
 * commd. The one key that it looks for is "version", in the status. It is a client like any other;
 * who may ask is decided by the socket's permissions and by commd. */
#include <commd/commd.h>
#include <getopt.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/ctl/commctl.h"
#include "shm/proto/codec.h"

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define VERSION                                                                                    \
    STRING(COMMD_VERSION_MAJOR) "." STRING(COMMD_VERSION_MINOR) "." STRING(COMMD_VERSION_PATCH)

enum { DEFAULT_TIMEOUT_MS = 5000, MAX_TIMEOUT_S = 86400 };

struct options {
    struct ask ask;
    struct show show;
    const char *group; /* NULL: all */
};

struct verb {
    const char *words; /* as typed */
    const char *ask;   /* MSG_ADMIN's verb: daemon/admin/verbs.h */
    bool vertical;
    const char *help; /* NULL: another spelling, not shown */
    /* What to show of the answer; NULL: the answer, with its verdict. */
    bool (*show)(const struct options *o, const struct msg_tables *answer);
    /* Of all nodes, and perhaps of one GROUP: then commd is asked for it alone, but for `why`,
     * where those who are waited for may wait in another one. */
    bool (*show_group)(const struct show *show, const char *group, const struct msg_tables *ranks,
                       bool *ret_well);
    uint32_t watch_ms;
};

/* The cell under @key in the first row of the first table, or "". */
static const char *first_cell(const struct msg_tables *tables, const char *key)
{
    const struct msg_table *table = tables->tables;

    if (tables->ntables < 1 || table->nrows < 1)
        return "";
    for (uint32_t i = 0; i < table->ncolumns; i++)
        if (!strcmp(table->columns[i].key, key))
            return table->cells[i];
    return "";
}

/* The running daemon's version stands in its status; commctl's own is known here. */
static bool show_version(const struct options *o, const struct msg_tables *status)
{
    char protocol[16], commctl[] = VERSION;
    char *cells[4] = {commctl, (char *)first_cell(status, "version"), protocol,
                      (char *)o->ask.welcome.node};
    struct msg_column columns[] = {{"commctl", "commctl", MSG_CELL_STRING},
                                   {"commd", "commd", MSG_CELL_STRING},
                                   {"protocol", "protocol", MSG_CELL_NUMBER},
                                   {"node", "node", MSG_CELL_STRING}};
    struct msg_table table = {"version", ARRAY_LEN(columns), 1, columns, cells};
    struct msg_tables tables = {.ntables = 1, .tables = &table};

    snprintf(protocol, sizeof(protocol), "%u", o->ask.welcome.version);
    return show_tables(&o->show, &tables);
}

static const struct verb verbs[] = {
    {"status", "status", true, "this node at a glance; exit code 1 if it is not well", NULL, NULL,
     0},
    {"nodes", "nodes", false, "every node of the cluster, as this one sees it", NULL, NULL, 0},
    {"groups", "groups", false, "the groups that have ranks on this node", NULL, NULL, 0},
    {"clients", "clients", false, "the programs connected to this node", NULL, NULL, 0},
    {"why", "ranks", false, "[GROUP]: why it does not get on, and who is the culprit", NULL,
     show_why, 1000},
    {"ops", "ranks", false, "[GROUP]: operations that wait for somebody, and for whom", NULL,
     show_ops, 0},
    {"ranks", "ranks", false, "[GROUP]: what each rank is doing, on all nodes", NULL, show_ranks,
     200},
    {"show config", "config", false, "every setting, its value and where it comes from", NULL, NULL,
     0},
    {"tuning", "tuning", false, "what decides how operations are carried out, and why", NULL, NULL,
     0},
    {"show tuning", "tuning", false, NULL, NULL, NULL, 0},
    {"version", "status", true, "the versions of commctl and of the running commd", show_version,
     NULL, 0},
};

/* The verbs for people, joined by commas. */
static const char *verb_names(void)
{
    static char names[128];
    size_t at = 0;

    for (size_t i = 0; i < ARRAY_LEN(verbs) && at < sizeof(names); i++)
        if (verbs[i].help)
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "",
                                   verbs[i].words);
    return names;
}

void complain(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("commctl: ", stderr);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static void print_help(void)
{
    puts("Usage: commctl [--socket PATH] [--json] VERB\n"
         "Asks the commd of this node how it is.\n");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (verbs[i].help)
            printf("  %-14s %s\n", verbs[i].words, verbs[i].help);
    puts("  help           this text\n\n"
         "  --socket PATH  the daemon's socket; else $COMMD_SOCKET, else /run/commd/commd.sock,\n"
         "                 else the user's own, $XDG_RUNTIME_DIR/commd/commd.sock or\n"
         "                 /tmp/commd-UID/commd.sock\n"
         "  --json         print JSON; the keys are documented in commctl(8)\n"
         "  --timeout S    how long to wait for the answer, in seconds (default 5)\n"
         "  --version      print commctl's version\n"
         "  --help         print this text\n\n"
         "Exit codes: 0 fine, 1 asked and the answer is bad, 2 could not ask.");
}

/* The verdict is over what was found; what could not be found is said besides. */
static int show_group(const struct verb *verb, const struct options *o,
                      const struct msg_tables *answer)
{
    bool well = true;

    if (answer->ntables && !verb->show_group(&o->show, o->group, answer, &well))
        return EXIT_NOT_ASKED;
    if (answer->text[0])
        complain("%s", answer->text);
    return well && answer->healthy ? EXIT_FINE : EXIT_BAD_ANSWER;
}

static int run_verb(const struct verb *verb, struct options *o)
{
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};

    o->show.vertical = verb->vertical;
    o->ask.watch_ms = verb->watch_ms;
    o->ask.group = verb->show_group == show_why ? NULL : o->group;
    if (!ask_tables(&o->ask, verb->ask, &answer))
        return EXIT_NOT_ASKED;
    if (verb->show_group && o->group && !o->ask.group && !answer.tables.healthy &&
        !has_group(&answer.tables, o->group)) { /* there are more ranks than fit */
        msg_fini(&answer);
        o->ask.group = o->group;
        if (!ask_tables(&o->ask, verb->ask, &answer))
            return EXIT_NOT_ASKED;
    }
    if (verb->show_group)
        return show_group(verb, o, &answer.tables);
    if (verb->show)
        return verb->show(o, &answer.tables) ? EXIT_FINE : EXIT_NOT_ASKED;
    if (!show_tables(&o->show, &answer.tables))
        return EXIT_NOT_ASKED;
    if (answer.tables.text[0])
        complain("%s", answer.tables.text);
    return answer.tables.healthy ? EXIT_FINE : EXIT_BAD_ANSWER;
}

/* The verb that @words spell, or NULL. One that is about groups takes the name of one. */
static const struct verb *find_verb(char *const *words, int n, const char **ret_group)
{
    char typed[64];
    int len = n == 1 ? snprintf(typed, sizeof(typed), "%s", words[0])
                     : snprintf(typed, sizeof(typed), "%s %s", words[0], words[1]);

    *ret_group = NULL;
    for (size_t i = 0; i < ARRAY_LEN(verbs) && n == 2; i++)
        if (verbs[i].show_group && !strcmp(verbs[i].words, words[0])) {
            *ret_group = words[1];
            return &verbs[i];
        }
    if (n > 2 || len < 0 || (size_t)len >= sizeof(typed))
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (!strcmp(verbs[i].words, typed))
            return &verbs[i];
    return NULL;
}

static bool parse_timeout(const char *text, int64_t *ret_ms)
{
    char *end;
    double s = strtod(text, &end), ms = s * 1000;

    if (end == text || *end || !(s > 0) || s > MAX_TIMEOUT_S)
        return false;
    *ret_ms = (int64_t)ms + ((double)(int64_t)ms < ms); /* rounded up: never 0 */
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int parse_options(int argc, char **argv, struct options *o)
{
    enum { O_SOCKET = 256, O_JSON, O_TIMEOUT, O_VERSION };
    static const struct option longs[] = {{"socket", required_argument, NULL, O_SOCKET},
                                          {"json", no_argument, NULL, O_JSON},
                                          {"timeout", required_argument, NULL, O_TIMEOUT},
                                          {"version", no_argument, NULL, O_VERSION},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "h", longs, NULL)) >= 0) {
        switch (c) {
        case O_SOCKET:
            if (!*optarg) {
                complain("--socket: the path is empty");
                return EXIT_NOT_ASKED;
            }
            o->ask.socket = optarg;
            break;
        case O_JSON:
            o->show.json = true;
            break;
        case O_TIMEOUT:
            if (!parse_timeout(optarg, &o->ask.timeout_ms)) {
                complain("--timeout %s: not a number of seconds above 0", optarg);
                return EXIT_NOT_ASKED;
            }
            break;
        case O_VERSION:
            puts("commctl " VERSION);
            return EXIT_FINE;
        case 'h':
            print_help();
            return EXIT_FINE;
        default: /* getopt has said what is wrong */
            fputs("Try: commctl --help\n", stderr);
            return EXIT_NOT_ASKED;
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    struct options o = {.ask.timeout_ms = DEFAULT_TIMEOUT_MS};
    const struct verb *verb;
    int r;

    setlocale(LC_CTYPE, ""); /* smartcols measures and prints UTF-8 accordingly */
    r = parse_options(argc, argv, &o);
    if (r >= 0)
        return r;
    argv += optind;
    argc -= optind;
    if (argc == 0) {
        complain("which verb? %s", verb_names());
        fputs("Try: commctl --help\n", stderr);
        return EXIT_NOT_ASKED;
    }
    if (argc == 1 && !strcmp(argv[0], "help")) {
        print_help();
        return EXIT_FINE;
    }
    verb = find_verb(argv, argc, &o.group);
    if (!verb) {
        complain("%s%s%s: no such verb (%s)", argv[0], argc > 1 ? " " : "", argc > 1 ? argv[1] : "",
                 verb_names());
        return EXIT_NOT_ASKED;
    }
    if (o.group && (!*o.group || strlen(o.group) >= MSG_GROUP_MAX)) {
        complain("%s: the name of the group is %s", argv[0],
                 *o.group ? "longer than a group's can be" : "empty");
        return EXIT_NOT_ASKED;
    }
    return run_verb(verb, &o);
}
