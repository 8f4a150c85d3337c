/* commctl.c - asks the local commd how it is. commctl.8 is the contract.
 *
 * commctl prints tables that it does not know: commd sends keys, headings and types with the cells
 * (msg_tables). So a column that commd adds shows up here, and an old commctl prints what a new
 * commd tells. Verbs that judge (why, ops, top, trace, doctor, wait) find the columns that they
 * need by key. commctl is a client like any other; the socket's permissions and commd decide who
 * may ask. */
#include "config.h"

#include <commd/commd.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/ctl/cells.h"
#include "client/ctl/commctl.h"
#include "client/ctl/diagnose.h"
#include "client/ctl/words.h"
#include "shm/proto/codec.h"

enum { DEFAULT_TIMEOUT_MS = 5000 };

struct verb {
    const char *words; /* as typed */
    const char *ask;   /* MSG_ADMIN's verb: daemon/admin/verbs.h */
    bool vertical;
    const char *args; /* the words behind it, for people; NULL: none */
    const char *help; /* NULL: another spelling, not shown */
    /* What to show of the answer; NULL: the answer, with its verdict. */
    bool (*show)(const struct options *o, const struct msg_tables *answer);
    /* Shows what all nodes say of ranks, perhaps of one GROUP. commd is asked for that group alone;
     * `why` asks for all groups, because ranks may wait for ranks of another group. */
    bool (*show_group)(const struct show *show, const char *group, const struct msg_tables *ranks,
                       bool *ret_well);
    uint32_t watch_ms;
    /* Carries the verb out by itself, with the words behind it; @ask is not used. */
    int (*run)(struct options *o, char **args, int n);
    const char *takes; /* options that are for few verbs: "undo wait" */
    bool records;      /* with the operations of each rank; --seconds says for how long */
    bool links;        /* no ranks, and the table of links alone */
};

const char *cell_of(const struct msg_tables *tables, uint32_t row, const char *key)
{
    const struct msg_table *table = tables->tables;

    if (tables->ntables < 1 || table->nrows <= row)
        return "";
    return cells_at(table, row, cells_column(table, key));
}

/* clang-format off */
#define VERSION_COLUMNS(C)                                                                         \
    C(commctl, "commctl", text, COMMD_BUILD_VERSION)                                               \
    C(commd, "commd", text, cell_of(status, 0, "version"))                                         \
    C(engine, "engine", text, cell_of(status, 0, "engine_version"))                                \
    C(commd_gpu, "commd_gpu", text, cell_of(status, 0, "gpu_version"))                             \
    C(protocol, "protocol", number, o->ask.welcome.version, "%.0f")                                \
    C(node, "node", text, o->ask.welcome.node)
#define OWN_VERSION_COLUMNS(C)                                                                     \
    C(commctl, "commctl", text, COMMD_BUILD_VERSION)
/* clang-format on */

/* The versions of commd, engine and commd-gpu, as they run, stand in the status; commctl's own is
 * known here. */
static bool show_version(const struct options *o, const struct msg_tables *status)
{
    struct made made;

    made_begin(&made, "version", VERSION_COLUMNS, 1);
    MADE_ADD(VERSION_COLUMNS)
    return made_show(&o->show, &made);
}

/* Without a commd that answers, commctl's own version is shown, and then why commd does not. */
static bool ask_version(struct options *o, struct msg *ret_status)
{
    struct made made;
    char why[1024];
    bool asked;

    complain_to(why, sizeof(why));
    asked = ask_tables(&o->ask, "status", ret_status);
    complain_to(NULL, 0);
    if (asked)
        return true;
    made_begin(&made, "version", OWN_VERSION_COLUMNS, 1);
    MADE_ADD(OWN_VERSION_COLUMNS)
    if (made_show(&o->show, &made))
        complain("%s", why);
    return false;
}

/* Keeps what stands there if there is no memory, or no such column. */
static void set_cell(const struct msg_table *table, uint32_t row, uint32_t column, const char *text)
{
    char *copy = column < table->ncolumns ? strdup(text) : NULL;

    if (!copy)
        return;
    free(table->cells[(size_t)row * table->ncolumns + column]);
    table->cells[(size_t)row * table->ncolumns + column] = copy;
}

/* Fills in which ranks of a group are missing, and which seats are free. The home of the group
 * knows that, and may be another node: all nodes are asked about a group of which this node does
 * not know. */
static void add_missing(const struct options *o, const struct msg_tables *groups)
{
    const struct msg_table *table = groups->tables;
    _cleanup_(msg_fini) struct msg ranks = {.type = MSG_NONE};
    uint32_t missing = groups->ntables ? cells_column(table, "missing") : 0;
    uint32_t free_seats = groups->ntables ? cells_column(table, "free_seats") : 0;
    struct ask ask = o->ask;
    const char *seats = "";
    char list[256], unheard[256];

    for (uint32_t row = 0; groups->ntables && missing < table->ncolumns && row < table->nrows;
         row++) {
        const char *word = cell_of(groups, row, "state");
        enum group_state state = read_word(GROUP_WORDS, word);

        if (*cells_at(table, row, missing) || *cells_at(table, row, free_seats) ||
            (state != GROUP_JOINING && state != GROUP_STARTING))
            continue;
        if (ranks.type == MSG_NONE) {
            complain_to(unheard, sizeof(unheard));
            (void)ask_tables(&ask, "ranks", &ranks);
            complain_to(NULL, 0);
        }
        if (ranks.type != MSG_TABLES || !ranks.tables.healthy || !ranks.tables.ntables)
            return;
        list[0] = 0;
        if (!diagnose_missing(ranks.tables.tables, cell_of(groups, row, "name"),
                              cell_of(groups, row, "uid"), word, cell_of(groups, row, "recovery"),
                              list, sizeof(list), &seats))
            continue;
        set_cell(table, row, missing, list);
        set_cell(table, row, free_seats, seats);
    }
}

/* Is the group of row @x, which ranks are still in, followed by that of @y? */
static bool is_followed(const struct msg_table *t, uint32_t x, uint32_t y)
{
    static const char *const same[] = {"name", "uid"};
    uint32_t epoch = cells_column(t, "epoch"), group = cells_column(t, "group");

    for (unsigned i = 0; i < ARRAY_LEN(same); i++)
        if (strcmp(cells_at(t, x, cells_column(t, same[i])),
                   cells_at(t, y, cells_column(t, same[i]))))
            return false;
    return *cells_at(t, x, group) && *cells_at(t, y, group) && /* "": it is only waited for */
           cells_number(cells_at(t, x, epoch)) < cells_number(cells_at(t, y, epoch));
}

/* Rows of epochs that others have followed come behind all others; else they are in the order of
 * their names. */
static void present_first(struct msg_table *table)
{
    static const char *const keys[] = {"name", "uid", "epoch"};
    size_t width = table->ncolumns * sizeof(*table->cells);
    _cleanup_(freep) char **cells = malloc(table->nrows * width + 1);
    uint32_t n = 0;

    if (!cells)
        return;
    sort_rows(table, keys, ARRAY_LEN(keys));
    for (int followed = 0; followed < 2; followed++)
        for (uint32_t row = 0; row < table->nrows; row++)
            if ((row + 1 < table->nrows && is_followed(table, row, row + 1)) == followed)
                memcpy(cells + (size_t)n++ * table->ncolumns,
                       table->cells + (size_t)row * table->ncolumns, width);
    memcpy(table->cells, cells, table->nrows * width);
}

static const struct verb verbs[] = {
    {"status", "status", .vertical = true,
     .help = "this node at a glance; exit code 1 if it is not well"},
    {"nodes", "nodes", .help = "every node of the cluster, as this one sees it"},
    {"links", "ranks", .help = "the way from each node to each other, as all nodes see it",
     .links = true},
    {"groups", "groups", .help = "the groups that have ranks on this node"},
    {"clients", "clients", .help = "the programs connected to this node"},
    {"gpus", "gpus", .help = "the GPUs of this node, as its service for them sees them"},
    {"tenants", "tenants", .help = "what each user has of what they share, and may have"},
    {"why", "ranks", .args = "[GROUP]", .help = "why it does not get on, and who is the culprit",
     .show_group = show_why, .watch_ms = 1000},
    {"ops", "ranks", .args = "[GROUP]", .help = "operations that wait for somebody, and for whom",
     .show_group = show_ops},
    {"ranks", "ranks", .args = "[GROUP]", .help = "what each rank is doing, on all nodes",
     .show_group = show_ranks, .watch_ms = 200},
    {"top", "ranks", .args = "[GROUP]", .help = "what each rank does in a second, and who is late",
     .show_group = show_top, .watch_ms = 1000, .records = true, .takes = "seconds"},
    {"trace", "ranks", .args = "[GROUP]", .help = "its last operations, for ui.perfetto.dev",
     .show_group = show_trace, .watch_ms = 1000, .records = true, .takes = "seconds"},
    {"events", .args = "[GROUP]", .help = "what happened on this node; --follow: and what happens",
     .run = verb_events, .takes = "follow since kind job"},
    {"show config", "config", .help = "every setting, its value and where it comes from"},
    {"tuning", "tuning", .help = "what decides how operations are carried out, and why"},
    {"show tuning", "tuning", .help = NULL},
    {"keys", "keys", .help = "which key of the cluster each node has, by name"},
    {"doctor", .help = "what is wrong with this node and the way to the others; remedies",
     .run = verb_doctor},
    {"drain", .help = "no new groups and clients here; what runs goes on", .run = verb_drain,
     .takes = "undo wait"},
    {"kick", .args = "GROUP | pid PID | rank GROUP RANK",
     .help = "end a group, or a client's part in all", .run = verb_kick, .takes = "reason"},
    {"log-level", .args = "[LEVEL]", .help = "how much commd logs: error, warn, info, debug",
     .run = verb_log_level},
    {"reload", .help = "read the configuration and the cluster's keys again", .run = verb_reload},
    {"wait", .help = "until this node is ready, or what --for names is so", .run = verb_wait,
     .takes = "for"},
    {"version", "status", .vertical = true,
     .help = "the versions of commctl and of the running commd", .show = show_version},
};

/* The verbs for people, joined by commas. */
static const char *verb_names(void)
{
    static char names[256];
    size_t at = 0;

    for (size_t i = 0; i < ARRAY_LEN(verbs) && at < sizeof(names); i++)
        if (verbs[i].help)
            at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "",
                                   verbs[i].words);
    return names;
}

static struct {
    char *buf;
    size_t size;
} complaints;

void complain_to(char *buf, size_t size)
{
    assert(!buf || size);
    complaints.buf = buf;
    complaints.size = size;
    if (buf)
        buf[0] = 0;
}

void complain(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    if (complaints.buf) {
        vsnprintf(complaints.buf, complaints.size, format, ap);
    } else {
        fputs("commctl: ", stderr);
        vfprintf(stderr, format, ap);
        fputc('\n', stderr);
    }
    va_end(ap);
}

int judge_answer(const struct msg_tables *answer)
{
    if (answer->text[0])
        complain("%s", answer->text);
    return answer->healthy ? EXIT_FINE : EXIT_BAD_ANSWER;
}

/* Is @option a word of @verb->takes? */
static bool takes(const void *arg, const char *option)
{
    const struct verb *verb = arg;
    size_t len = strlen(option);

    if (!strcmp(option, "watch"))
        return !verb->run && verb->show_group != show_trace;
    for (const char *s = verb->takes; s; s = strchr(s, ' ') ? strchr(s, ' ') + 1 : NULL)
        if (strcspn(s, " ") == len && !strncmp(s, option, len))
            return true;
    return false;
}

static void print_help(void)
{
    puts("Usage: commctl [OPTIONS] VERB\n"
         "Asks the commd of this node how it is. commctl VERB --help: more of one verb.\n");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (verbs[i].help)
            printf("  %-14s %s%s%s\n", verbs[i].words, verbs[i].args ? verbs[i].args : "",
                   verbs[i].args ? ": " : "", verbs[i].help);
    puts("  help           this text");
    print_option_helps(NULL, NULL);
}

static void print_verb_help(const struct verb *verb)
{
    printf("Usage: commctl [OPTIONS] %s%s%s\n%s\n", verb->words, verb->args ? " " : "",
           verb->args ? verb->args : "", verb->help ? verb->help : "");
    print_option_helps(takes, verb);
    puts("\nMore: man commctl");
}

/* With --json there is an empty table, and that is valid JSON. */
static int no_group(const struct verb *verb, const struct options *o,
                    const struct msg_tables *answer)
{
    char before[256] = "";
    bool well;

    if (o->show.json && verb->show_group != show_trace &&
        !verb->show_group(&o->show, o->group, answer, &well))
        return EXIT_NOT_ASKED;
    if (verb->show_group == show_why)
        restart_text(o->show.from, before, sizeof(before));
    complain(
        "%s: no group \"%s\" that this user may see on any node: commctl ranks lists them%s%s%s%s",
        verb->words, o->group, *before ? "; " : "", before, *answer->text ? "; " : "",
        answer->text);
    return EXIT_BAD_ANSWER;
}

/* The verdict is over what was found; what could not be found is said besides. */
static int show_group(const struct verb *verb, const struct options *o,
                      const struct msg_tables *answer)
{
    bool well = true;

    assert(verb->show_group);
    if (o->group && answer->ntables && !has_group(answer, o->group))
        return no_group(verb, o, answer);
    if (answer->ntables && !verb->show_group(&o->show, o->group, answer, &well))
        return EXIT_NOT_ASKED;
    if (answer->text[0])
        complain("%s", answer->text);
    return well && answer->healthy ? EXIT_FINE : EXIT_BAD_ANSWER;
}

/* The rows of all nodes, in the same order each time; of links the worst come first. */
static void sort_answer(struct msg_tables *answer)
{
    /* of a group that nobody is in yet each node has a row without a rank */
    static const char *const ranks[] = {"name", "group", "rank", "node"};
    static const char *const links[] = {"node", "peer"};

    struct msg_table *rows = table_named(answer, "ranks");

    if (rows)
        sort_rows(rows, ranks, ARRAY_LEN(ranks));
    rows = table_named(answer, "groups");
    if (rows)
        present_first(rows);
    rows = table_named(answer, "links");
    if (rows) {
        sort_rows(rows, links, ARRAY_LEN(links));
        links_worst_first(rows);
    }
}

/* The table "links" of @answer alone. */
static bool show_links(const struct show *show, const struct msg_tables *answer)
{
    struct msg_tables links = {.ntables = 1, .tables = table_named(answer, "links")};

    return !links.tables || show_tables(show, &links); /* without an answer its text says why */
}

static int run_verb(const void *arg, struct options *o)
{
    const struct verb *verb = arg;
    _cleanup_(msg_fini) struct msg answer = {.type = MSG_NONE};
    bool shown;

    o->show.vertical = verb->vertical;
    o->ask.watch_ms = verb->records && o->watch_ms ? o->watch_ms : verb->watch_ms;
    o->ask.records = verb->records;
    o->ask.links = verb->links;
    o->ask.timeout_ms += o->ask.watch_ms;
    o->ask.group = verb->show_group == show_why ? NULL : o->group;
    if (verb->show == show_version && !o->repeat_ms ? !ask_version(o, &answer)
                                                    : !ask_tables(&o->ask, verb->ask, &answer))
        return EXIT_NOT_ASKED;
    if (verb->show_group && o->group && !o->ask.group && !answer.tables.healthy &&
        !has_group(&answer.tables, o->group)) { /* there are more ranks than fit */
        msg_fini(&answer);
        o->ask.group = o->group;
        if (!ask_tables(&o->ask, verb->ask, &answer))
            return EXIT_NOT_ASKED;
    }
    if (!strcmp(verb->ask, "groups"))
        add_missing(o, &answer.tables);
    sort_answer(&answer.tables);
    o->show.from = &o->ask.welcome;
    if (verb->show_group)
        return show_group(verb, o, &answer.tables);
    if (verb->show)
        return verb->show(o, &answer.tables) ? EXIT_FINE : EXIT_NOT_ASKED;
    shown =
        verb->links ? show_links(&o->show, &answer.tables) : show_tables(&o->show, &answer.tables);
    if (!shown)
        return EXIT_NOT_ASKED;
    return judge_answer(&answer.tables);
}

/* The verb that @words spell, or NULL. One that is about groups takes the name of one. */
static const struct verb *find_verb(char *const *words, int n, const char **ret_group)
{
    char typed[64];
    int len = n == 1 ? snprintf(typed, sizeof(typed), "%s", words[0])
                     : snprintf(typed, sizeof(typed), "%s %s", words[0], words[1]);

    *ret_group = NULL;
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (verbs[i].run && !strcmp(verbs[i].words, words[0]))
            return &verbs[i];
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

/* Says what is wrong with @words, which are no verb; the first of them may be one. */
static void complain_of_words(char *const *words, int n)
{
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        size_t len = strlen(words[0]), extra = 1;

        if (strncmp(verbs[i].words, words[0], len))
            continue;
        if (verbs[i].words[len] == ' ' && n > 1 && !strcmp(verbs[i].words + len + 1, words[1]))
            extra = 2;
        else if (verbs[i].words[len])
            continue;
        if (verbs[i].show_group)
            complain("%s: %s: it takes one GROUP at most; a name with spaces needs quotes",
                     verbs[i].words, words[2]);
        else
            complain("%s: %s: it takes no words; see commctl --help", verbs[i].words, words[extra]);
        return;
    }
    complain("%s%s%s: no such verb (%s)", words[0], n > 1 ? " " : "", n > 1 ? words[1] : "",
             verb_names());
}

/* https://no-color.org */
static bool has_colours(void)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");

    return !(none && *none) && term && *term && strcmp(term, "dumb");
}

static int run(int argc, char **argv)
{
    struct options o = {.ask.timeout_ms = DEFAULT_TIMEOUT_MS, .wait_ms = -1, .since_ms = -1};
    const struct verb *verb;
    int r;

    setlocale(LC_CTYPE, ""); /* smartcols measures and prints UTF-8 accordingly */
    r = parse_options(argc, argv, &o);
    if (r >= 0)
        return r;
    o.show.colours = !o.show.json && isatty(STDOUT_FILENO) && has_colours();
    argv += optind;
    argc -= optind;
    if (o.help || (argc && !strcmp(argv[0], "help"))) {
        int skip = argc && !strcmp(argv[0], "help");

        verb = argc > skip ? find_verb(argv + skip, argc - skip, &o.group) : NULL;
        if (argc > skip && !verb) {
            complain_of_words(argv + skip, argc - skip);
            return EXIT_NOT_ASKED;
        }
        if (verb)
            print_verb_help(verb);
        else
            print_help();
        return EXIT_FINE;
    }
    if (argc == 0) {
        complain("which verb? %s", verb_names());
        fputs("Try: commctl --help\n", stderr);
        return EXIT_NOT_ASKED;
    }
    verb = find_verb(argv, argc, &o.group);
    if (!verb) {
        complain_of_words(argv, argc);
        return EXIT_NOT_ASKED;
    }
    for (unsigned i = 0; i < o.nspecial; i++)
        if (!takes(verb, o.special[i]))
            return refuse("%s: --%s is not for it", verb->words, o.special[i]);
    if (verb->run)
        return verb->run(&o, argv + 1, argc - 1);
    if (o.group && !group_fits(verb->words, o.group))
        return EXIT_NOT_ASKED;
    return o.repeat_ms ? watch(&o, run_verb, verb, verb->words) : run_verb(verb, &o);
}

int main(int argc, char **argv)
{
    int r = run(argc, argv);

    return r == EXIT_NOT_ASKED || flush_stdout() ? r : EXIT_NOT_ASKED;
}
