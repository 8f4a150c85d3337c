/* metrics.h - what HTTP shows, as plain numbers. collect.c fills them in; metrics.c writes them as
 * Prometheus' text, and status_json.c as JSON for the page. */
#ifndef COMMD_METRICS_H
#define COMMD_METRICS_H

#include "daemon/conf/conf.h"
#include "daemon/core/core.h"
#include "daemon/http/body.h"
#include "daemon/link/peer_link.h"
#include "shm/board/recorder.h"

enum {
    METRICS_GROUPS_SHOWN = 200, /* rows of groups on the page */
    METRICS_EVENTS_SHOWN = 30,  /* the last events */
    METRICS_ERROR = 160,
    METRICS_CODES = 10, /* kinds of HTTP answers */
};

/* The HTTP statuses that commd answers with, each with a line for people. */
struct metrics_code {
    unsigned status;
    const char *text;
};
extern const struct metrics_code metrics_codes[METRICS_CODES];

struct metrics_node {
    char name[MSG_NAME_MAX];
    bool self, linked, up;
    bool clear;        /* who is on the network can read and forge data */
    const char *state; /* static: "up" */
    uint64_t age_ms;   /* in that state */
    uint64_t key_ms;   /* age of the oldest key; 0: not encrypted */
    uint64_t links, losses[CORE_LOSS_KINDS];
    struct core_traffic traffic;
    char error[METRICS_ERROR];
};

/* A group, without a name or a user. */
struct metrics_group {
    uint32_t number; /* its index in the core's table, the same while it is open; 0: not open yet */
    const char *state, *cause; /* static */
    uint64_t epoch;            /* 0: not known */
    unsigned size, nodes, local, missing;
    bool has_ops;
    uint32_t ops;    /* completed by the slowest rank of this node */
    uint32_t behind; /* operations that the first rank has begun and the last rank has not */
};

/* An event of this node, without the user that it is about. */
struct metrics_event {
    uint64_t wall_ms;
    const char *what;         /* static: a word of commctl events */
    char text[METRICS_ERROR]; /* of nodes and engines; "" where it would name a user */
};

/* What a process has used. A number that /proc does not tell is not known. */
struct metrics_process {
    bool known, fds_known;
    uint64_t cpu_us, resident_bytes, fds;
};

struct metrics {
    char node[CONF_NAME_MAX], cluster[CONF_NAME_MAX];
    const char *version, *state, *engine_state; /* static */
    char fabric[METRICS_ERROR];
    char unready[MSG_TEXT_MAX]; /* "" when all is well */
    bool error;                 /* there was no memory for a part */

    uint64_t ready, start_us, uptime_ms, nodes_up;
    uint64_t certified_until; /* seconds since 1970; 0: there is no certificate */
    uint64_t engine_up;
    uint64_t gpu_up, gpu_clients, ngpus;
    struct metrics_gpu {
        uint64_t operations, moved;
    } gpus[MSG_MAX_GPUS];
    uint64_t groups_joining, groups_open, groups_broken;
    uint64_t groups_to_recover, free_seats, new_processes;
    uint64_t clients, max_clients, max_clients_user, most_clients;
    uint64_t max_groups, max_groups_user, most_groups, users;
    uint64_t collectives, boards, board_bytes, max_board_bytes, max_board_bytes_user;
    uint64_t most_board_bytes, arenas, max_arenas;
    uint64_t turns, turns_us, longest_turn_us, max_fds;
    uint64_t log_written[CONF_LOG_DEBUG + 1], log_lost, log_left_out;
    uint64_t http_connections, http_dropped, http_codes[METRICS_CODES];
    uint64_t clients_refused[CAUSE_COUNT];
    struct recorder_totals operations; /* of the ranks of this node */
    struct core_counts counts;
    struct peer_links_counts links;
    struct metrics_process commd, engine;

    uint64_t nnodes;
    struct metrics_node *nodes; /* owned */
    unsigned ngroups;
    struct metrics_group *groups; /* owned; METRICS_GROUPS_SHOWN of them, NULL: not wanted */
    unsigned nevents;
    struct metrics_event *events; /* owned; METRICS_EVENTS_SHOWN, newest first; NULL: not wanted */
    const struct msg_table *matrix; /* borrowed: links of all nodes, see daemon/admin/links.h; NULL:
                                     * not known */
};

void metrics_fini(struct metrics *m);

/* Name, type and help of the i-th metric; false past the last one. */
bool metrics_row(unsigned i, const char **ret_name, const char **ret_type, const char **ret_help);
/* Adds the i-th metric, with its samples; false: that was the last. */
bool metrics_text(const struct metrics *m, unsigned i, struct body *body);

/* status_json.c. */
void status_json(const struct metrics *m, struct body *body);
/* {"name": number}: all metrics that have one number. */
void metrics_json(const struct metrics *m, struct body *body);

#endif
