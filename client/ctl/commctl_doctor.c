/* commctl_doctor.c - `commctl doctor`: asks commd, looks at this machine and at the way to the
 * other nodes, and says what is wrong with each its remedy. Where commd does not answer, the
 * machine is looked at all the same. */
#include "config.h"

#include <commd/commd.h>
#include <stdio.h>

#include "client/ctl/cells.h"
#include "client/ctl/commctl.h"
#include "client/ctl/doctor.h"
#include "shm/proto/codec.h"

enum { WATCH_CPUS_MS = 200, CONNECT_MS = 1000 };

/* What commd answers; strings of the facts are in here. */
struct answers {
    struct msg status, nodes, keys, clients, config;
    char unasked[DOCTOR_TEXT], config_unwell[DOCTOR_TEXT];
};

static int64_t number_or_unknown(const char *text)
{
    return *text ? (int64_t)MIN(cells_number(text), (uint64_t)INT64_MAX) : DOCTOR_UNKNOWN;
}

/* The value of a setting. */
static const char *setting(const struct answers *a, const char *key)
{
    const struct msg_tables *config = &a->config.tables;

    for (uint32_t row = 0; config->ntables && row < config->tables->nrows; row++)
        if (!strcmp(cell_of(config, row, "key"), key))
            return cell_of(config, row, "value");
    return "";
}

/* All but @own, whose state is "self", or "draining". */
static void take_nodes(const struct answers *a, const char *own, struct doctor_facts *facts)
{
    const struct msg_tables *nodes = &a->nodes.tables;
    uint32_t nrows = nodes->ntables ? nodes->tables->nrows : 0;

    facts->nodes = calloc(nrows + 1, sizeof(*facts->nodes));
    for (uint32_t row = 0; row < nrows && facts->nodes; row++) {
        if (!strcmp(cell_of(nodes, row, "node"), own))
            continue;
        facts->nodes[facts->nnodes++] = (struct doctor_node){
            .name = cell_of(nodes, row, "node"),
            .address = cell_of(nodes, row, "address"),
            .state = cell_of(nodes, row, "state"),
            .last_error = cell_of(nodes, row, "last_error"),
            .rtt_us = number_or_unknown(cell_of(nodes, row, "min_rtt_us")),
            .sent = number_or_unknown(cell_of(nodes, row, "sent")),
            .retransmits = number_or_unknown(cell_of(nodes, row, "retransmits")),
            .bandwidth = number_or_unknown(cell_of(nodes, row, "bandwidth")),
            .apart_s = number_or_unknown(cell_of(nodes, row, "apart_s")),
            .encryption = link_encryption_read(cell_of(nodes, row, "encryption")),
            .encryption_s = number_or_unknown(cell_of(nodes, row, "encryption_s")),
        };
    }
}

static int64_t unseen_clients(const struct msg_tables *clients)
{
    int64_t n = 0;

    for (uint32_t row = 0; clients->ntables && row < clients->tables->nrows; row++)
        n += !strcmp(cell_of(clients, row, "pid"), "0");
    return n;
}

/* Each verb by itself, so that one that an older commd lacks costs only its facts. */
static void ask_commd(struct options *o, struct answers *a, struct doctor_facts *facts)
{
    char unheard[DOCTOR_TEXT];

    complain_to(a->unasked, sizeof(a->unasked));
    if (ask_tables(&o->ask, "status", &a->status)) {
        a->unasked[0] = '\0';
        facts->version = cell_of(&a->status.tables, 0, "version");
        facts->fabric = cell_of(&a->status.tables, 0, "fabric");
        facts->gpu = cell_of(&a->status.tables, 0, "gpu");
        facts->gpu_text = cell_of(&a->status.tables, 0, "gpu_text");
        facts->unwell = a->status.tables.text;
        complain_to(unheard, sizeof(unheard));
        if (ask_tables(&o->ask, "nodes", &a->nodes))
            take_nodes(a, o->ask.welcome.node, facts);
        if (ask_tables(&o->ask, "keys", &a->keys) && strcmp(facts->unwell, a->keys.tables.text))
            facts->keys_unwell = a->keys.tables.text;
        if (ask_tables(&o->ask, "clients", &a->clients))
            facts->unseen = unseen_clients(&a->clients.tables);
        if (ask_tables(&o->ask, "config", &a->config)) {
            facts->config_unwell = a->config.tables.text;
            facts->max_clients = number_or_unknown(setting(a, "limits.max_clients"));
            facts->max_groups = number_or_unknown(setting(a, "limits.max_groups"));
            facts->latency_us = setting(a, "transport.latency_us");
            facts->bandwidth = setting(a, "transport.bandwidth");
            facts->encryption = setting(a, "transport.encryption");
        }
    } else if (!o->ask.socket && !getenv("COMMD_SOCKET")) { /* it is the service of this machine */
        doctor_check_config(a->config_unwell);
        facts->config_unwell = a->config_unwell;
    }
    complain_to(NULL, 0);
}

/* clang-format off */
#define DOCTOR_COLUMNS(C)                                                                          \
    C(level, "LEVEL", text, doctor_level_name(f->level))                                           \
    C(check, "CHECK", text, f->check)                                                              \
    C(finding, "FINDING", text, f->finding)                                                        \
    C(remedy, "REMEDY", text, f->remedy)
/* clang-format on */

static bool show_findings(const struct show *show, const struct doctor_findings *all)
{
    struct made made;

    made_begin(&made, "doctor", DOCTOR_COLUMNS, all->n);
    for (const struct doctor_finding *f = all->at; f < all->at + all->n; f++) {
        MADE_ADD(DOCTOR_COLUMNS)
    }
    return made_show(show, &made);
}

/* For people: a line for each check, and the remedy below what needs one. */
static bool print_checks(const struct doctor_findings *all)
{
    unsigned errors = 0, warnings = 0;

    for (unsigned i = 0; i < all->n; i++) {
        const struct doctor_finding *f = &all->at[i];

        printf("%-8s %s: %s\n", doctor_level_name(f->level), f->check, f->finding);
        if (*f->remedy)
            printf("         -> %s\n", f->remedy);
        errors += f->level == DOCTOR_ERROR;
        warnings += f->level == DOCTOR_WARNING;
    }
    printf("%u checks, %u error%s, %u warning%s\n", all->n, errors, errors == 1 ? "" : "s",
           warnings, warnings == 1 ? "" : "s");
    return flush_stdout();
}

static int judge_and_show(const struct options *o, const struct doctor_facts *facts)
{
    struct doctor_findings all;
    bool shown, errors = false;

    doctor_judge(facts, &all);
    for (unsigned i = 0; i < all.n; i++)
        errors = errors || all.at[i].level == DOCTOR_ERROR;
    if (all.error)
        complain("not all findings are shown: %s", strerror(-all.error));
    shown = o->show.json ? show_findings(&o->show, &all) : print_checks(&all);
    doctor_findings_free(&all);
    if (!shown)
        return EXIT_NOT_ASKED;
    return errors ? EXIT_BAD_ANSWER : EXIT_FINE;
}

int verb_doctor(struct options *o, char **args, int n)
{
    struct answers a = {.status.type = MSG_NONE};
    struct doctor_facts facts = {.unasked = a.unasked,
                                 .unwell = "",
                                 .keys_unwell = "",
                                 .config_unwell = "",
                                 .version = "",
                                 .own_version = COMMD_BUILD_VERSION,
                                 .fabric = "",
                                 .gpu = "",
                                 .gpu_text = "",
                                 .latency_us = "",
                                 .bandwidth = "",
                                 .encryption = "",
                                 .max_clients = DOCTOR_UNKNOWN,
                                 .max_groups = DOCTOR_UNKNOWN};
    int r;

    if (!no_words("doctor", args, n))
        return EXIT_NOT_ASKED;
    ask_commd(o, &a, &facts);
    doctor_look_here((int64_t)cells_number(cell_of(&a.status.tables, 0, "pid")), WATCH_CPUS_MS,
                     &facts);
    doctor_look_at_nodes(&facts, CONNECT_MS);
    r = judge_and_show(o, &facts);
    free(facts.nodes);
    msg_fini(&a.status);
    msg_fini(&a.nodes);
    msg_fini(&a.keys);
    msg_fini(&a.clients);
    msg_fini(&a.config);
    return r;
}
