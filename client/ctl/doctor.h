/* doctor.h - what is wrong with a node, or might be, from facts about it: `commctl doctor`. The
 * verdicts are pure (doctor.c); the facts are found by doctor_facts.c. */
#ifndef COMMCTL_DOCTOR_H
#define COMMCTL_DOCTOR_H

#include "shm/proto/msg.h"
#include "shm/util/encryption.h"

enum { DOCTOR_TEXT = 400, DOCTOR_UNKNOWN = -1 };

/* One of the other nodes. Strings are borrowed. */
struct doctor_node {
    const char *name, *address, *state, *last_error;
    int64_t rtt_us; /* the least that was seen; DOCTOR_UNKNOWN */
    int64_t sent, retransmits;
    int64_t bandwidth; /* bytes per second: the highest rate that was seen */
    int connect_error; /* of a connection to its commd, an errno; DOCTOR_UNKNOWN: not tried */
    int64_t mtu;       /* of the way there; DOCTOR_UNKNOWN */
    int64_t apart_s;   /* for so long its engine and ours have no connection; 0, DOCTOR_UNKNOWN */
    enum link_encryption encryption;
    int64_t encryption_s; /* for so long: the age of the key */
};

/* What is not known is DOCTOR_UNKNOWN, or "". */
struct doctor_facts {
    const char *unasked;                /* why commd could not be asked; "": it could */
    const char *unwell;                 /* what it says is not well */
    const char *keys_unwell;            /* likewise, of the keys of the nodes */
    const char *config_unwell;          /* of its configuration file, or why it cannot start */
    const char *version, *own_version;  /* of commd and of commctl */
    const char *fabric;                 /* what its engine runs on */
    const char *gpu, *gpu_text;         /* state of its GPU service, and more about it */
    const char *latency_us, *bandwidth; /* as configured; a size like "1G" */
    const char *encryption;             /* likewise: "auto" */
    int64_t max_clients, max_groups;
    int64_t unseen;             /* clients whose processes commd cannot see */
    int64_t open_files;         /* limit of commd's descriptors */
    int64_t memory, available;  /* of the machine, KiB */
    int64_t cpus;               /* that commd may run on */
    int64_t cpu_limit_pct;      /* of its cgroup, per cent of one CPU */
    int64_t stolen_pct;         /* of the time of all CPUs, by the host */
    int64_t clock_synced;       /* 1 or 0 */
    int64_t tcp_rmem, tcp_wmem; /* the most that the kernel gives a connection */
    int64_t leases;             /* fs.leases-enable */
    struct doctor_node *nodes;  /* owned by whoever found the facts */
    unsigned nnodes;
};

enum doctor_level { DOCTOR_OK, DOCTOR_WARNING, DOCTOR_ERROR };

struct doctor_finding {
    enum doctor_level level;
    char check[64]; /* what was looked at: "clock", "node b" */
    char finding[DOCTOR_TEXT], remedy[DOCTOR_TEXT];
};

struct doctor_findings {
    struct doctor_finding *at; /* owned */
    unsigned n;
    int error; /* -ENOMEM: some are missing */
};

const char *doctor_level_name(enum doctor_level level);
void doctor_judge(const struct doctor_facts *facts, struct doctor_findings *ret_findings);
void doctor_findings_free(struct doctor_findings *findings);

/* doctor_facts.c: why the service of this machine cannot start with its configuration and its key;
 * "" if it can, or that is not for this user to see. */
void doctor_check_config(char ret_unwell[DOCTOR_TEXT]);
/* Of this machine and of the process @commd_pid; @ms: how long to watch the CPUs.
 * Strings and nodes are the caller's to fill in. */
void doctor_look_here(int64_t commd_pid, unsigned ms, struct doctor_facts *facts);
/* Of all nodes in @facts at the same time: can their commds be reached, and how large may a packet
 * be on the way? */
void doctor_look_at_nodes(struct doctor_facts *facts, unsigned ms);

#endif
