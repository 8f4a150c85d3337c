/* doctor.c - see doctor.h. Each check says what it found, also if all is well, so that a person
 * need not look at it again. What an error tells of keeps jobs from running; what a warning tells
 * of makes jobs slow, or will become an error. */
#include "client/ctl/doctor.h"
#include "client/ctl/words.h"
#include "shm/proto/cause_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    FILES_PER_CLIENT = 4,  /* its socket, doorbell, and what is on its way */
    FILES_PER_GROUP = 2,   /* the board, and its lease */
    TCP_LEAST = 1 << 20,   /* a connection with less cannot fill a network of today */
    STOLEN_PCT = 5,        /* the host takes so much: operations wait for it */
    CPUS_LEAST = 2,        /* ranks and the engine take turns on a single one */
    RESENT_PER_MILLE = 10, /* a network that is well loses less */
    SENT_LEAST = 1 << 20,  /* less says nothing of losses, or of the rate */
    SENT_MUCH = 1 << 30,   /* less may never have filled the link */
    MTU_USUAL = 1500,
    LATE_BY = 10, /* times: latency is more than configured */
    SLOW_BY = 4,  /* likewise of the bandwidth */
    MEMORY_PCT = 5,
};

static struct doctor_finding *add_finding(struct doctor_findings *all, enum doctor_level level,
                                          const char *check)
{
    struct doctor_finding *more = realloc(all->at, (all->n + 1) * sizeof(*all->at));

    if (!more) {
        all->error = -ENOMEM;
        return NULL;
    }
    all->at = more;
    more[all->n] = (struct doctor_finding){.level = level};
    snprintf(more[all->n].check, sizeof(more[all->n].check), "%s", check);
    return &more[all->n++];
}

static _printf_(5, 6) void tell_finding(struct doctor_findings *all, enum doctor_level level,
                                        const char *check, const char *remedy, const char *fmt, ...)
{
    struct doctor_finding *f = add_finding(all, level, check);
    va_list ap;

    if (!f)
        return;
    va_start(ap, fmt);
    vsnprintf(f->finding, sizeof(f->finding), fmt, ap);
    va_end(ap);
    snprintf(f->remedy, sizeof(f->remedy), "%s", remedy);
}

/* ---- commd ------------------------------------------------------------------------------- */

static const char *config_remedy(const char *unwell)
{
    if (strstr(unwell, TEXT_FILE_WRONG) || strstr(unwell, TEXT_PROOFS_WRONG))
        return "mend that, then systemctl reload commd; until then a restart fails";
    if (strstr(unwell, TEXT_PROOFS_NEWER))
        return "systemctl reload commd";
    if (strstr(unwell, TEXT_LIST_OLD))
        return "make a new list, and systemctl reload commd: doc/operations.md, \"Certificates\"";
    if (strstr(unwell, "expire"))
        return "make a new certificate, and systemctl reload commd: doc/operations.md, "
               "\"Certificates\"";
    return "systemctl reload commd; restart for what commctl show config does not call reloadable";
}

static void judge_commd(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (*f->unasked) {
        tell_finding(all, DOCTOR_ERROR, "commd", "systemctl status commd; journalctl -u commd",
                     "%s", f->unasked);
        if (*f->config_unwell)
            tell_finding(all, DOCTOR_ERROR, "configuration",
                         "mend that, then systemctl restart commd", "%s", f->config_unwell);
        return;
    }
    if (strcmp(f->version, f->own_version))
        tell_finding(
            all, DOCTOR_WARNING, "version",
            "systemctl restart commd, jobs go on: it is older than what is installed, or another "
            "commctl comes first in PATH",
            "commd is %s, commctl %s", f->version, f->own_version);
    else
        tell_finding(all, DOCTOR_OK, "version", "", "%s", f->version);
    if (*f->unwell)
        tell_finding(all, DOCTOR_ERROR, "commd", "see the nodes below, and journalctl -u commd",
                     "%s", f->unwell);
    else
        tell_finding(all, DOCTOR_OK, "commd", "", "it answers, and is well");
    if (*f->config_unwell)
        tell_finding(all, DOCTOR_WARNING, "configuration", config_remedy(f->config_unwell), "%s",
                     f->config_unwell);
    if (strstr(f->keys_unwell, "expire"))
        tell_finding(all, DOCTOR_WARNING, "certificate",
                     "make a new one, and commctl reload: doc/operations.md, \"Certificates\"",
                     "%s", f->keys_unwell);
    else if (*f->keys_unwell)
        tell_finding(all, DOCTOR_WARNING, "keys",
                     "end the change of the key: doc/operations.md, \"A new key\"", "%s",
                     f->keys_unwell);
    else if (f->nnodes)
        tell_finding(all, DOCTOR_OK, "keys", "", "all nodes that are up have the same");
}

static void judge_pids(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (f->unseen > 0)
        tell_finding(all, DOCTOR_WARNING, "pid namespace",
                     "give commd's container the host's pid namespace: podman --pid=host, hostPID: "
                     "true",
                     "commd cannot see the processes of %" PRId64
                     " clients, whose pids are told as "
                     "0: commctl why cannot say what they do",
                     f->unseen);
}

/* A node may do without it: a client that asks for it in vain goes through host memory. */
static void judge_gpu(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (!*f->gpu || !strcmp(f->gpu, "none"))
        return;
    if (strcmp(f->gpu, "down") || !strcmp(f->gpu_text, TEXT_GPU_UNASKED))
        tell_finding(all, DOCTOR_OK, "GPU service", "", "%s: %s", f->gpu, f->gpu_text);
    else
        tell_finding(all, DOCTOR_WARNING, "GPU service",
                     "install the package commd-gpu; journalctl -u commd -u commd-gpu; "
                     "gpu.enabled: no, if this node shall do without",
                     "down: %s", f->gpu_text);
}

static void judge_files(const struct doctor_facts *f, struct doctor_findings *all)
{
    int64_t need;

    if (f->open_files < 0 || f->max_clients < 0 || f->max_groups < 0)
        return;
    need = FILES_PER_CLIENT * f->max_clients + FILES_PER_GROUP * f->max_groups;
    if (f->open_files < need)
        tell_finding(all, DOCTOR_WARNING, "descriptors",
                     "raise LimitNOFILE= of commd.service, or lower limits.max_clients and "
                     "limits.max_groups",
                     "commd may open %" PRId64 " files; %" PRId64 " clients and %" PRId64
                     " groups may need %" PRId64,
                     f->open_files, f->max_clients, f->max_groups, need);
    else
        tell_finding(all, DOCTOR_OK, "descriptors", "", "commd may open %" PRId64 " files",
                     f->open_files);
}

static void judge_memory(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (f->memory <= 0 || f->available < 0)
        return;
    if (f->available < f->memory / 100 * MEMORY_PCT)
        tell_finding(all, DOCTOR_WARNING, "memory",
                     "see who uses it: boards and registered memory of groups are shared memory "
                     "(commctl groups, Shmem in /proc/meminfo)",
                     "%" PRId64 " MiB of %" PRId64 " MiB are left", f->available >> 10,
                     f->memory >> 10);
    else
        tell_finding(all, DOCTOR_OK, "memory", "", "%" PRId64 " MiB of %" PRId64 " MiB are left",
                     f->available >> 10, f->memory >> 10);
}

/* ---- the machine -------------------------------------------------------------------------- */

static void judge_cpus(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (f->cpu_limit_pct >= 0 && f->cpu_limit_pct < 100)
        tell_finding(
            all, DOCTOR_WARNING, "CPU limit",
            "take CPUQuota= from commd.service: commd stops in the middle of its work when it is "
            "used up",
            "commd's cgroup gets %" PRId64 " %% of one CPU", f->cpu_limit_pct);
    if (f->cpus >= 0 && f->cpus < CPUS_LEAST)
        tell_finding(
            all, DOCTOR_WARNING, "CPUs",
            "take CPUAffinity= or AllowedCPUs= away; one CPU is shared by ranks and engine in "
            "turns",
            "commd may run on %" PRId64 " CPU", f->cpus);
    else if (f->cpus >= 0)
        tell_finding(all, DOCTOR_OK, "CPUs", "", "commd may run on %" PRId64, f->cpus);
    if (f->stolen_pct >= STOLEN_PCT)
        tell_finding(
            all, DOCTOR_WARNING, "stolen time",
            "this is a virtual machine whose host is busy: every operation waits for the slowest "
            "rank; move it, or take fewer ranks",
            "the host took %" PRId64 " %% of the CPUs' time", f->stolen_pct);
    else if (f->stolen_pct >= 0)
        tell_finding(all, DOCTOR_OK, "stolen time", "", "%" PRId64 " %%", f->stolen_pct);
}

static void judge_kernel(const struct doctor_facts *f, struct doctor_findings *all)
{
    if (f->clock_synced == 0)
        tell_finding(
            all, DOCTOR_WARNING, "clock",
            "timedatectl set-ntp true, or start chrony: logs of nodes cannot be put together "
            "otherwise",
            "the clock is not synchronised");
    else if (f->clock_synced > 0)
        tell_finding(all, DOCTOR_OK, "clock", "", "it is synchronised");
    if ((f->tcp_rmem >= 0 && f->tcp_rmem < TCP_LEAST) ||
        (f->tcp_wmem >= 0 && f->tcp_wmem < TCP_LEAST))
        tell_finding(all, DOCTOR_WARNING, "TCP buffers",
                     "sysctl net.ipv4.tcp_rmem=\"4096 131072 6291456\" "
                     "net.ipv4.tcp_wmem=\"4096 16384 4194304\"",
                     "the kernel gives a connection %" PRId64 " KiB to receive and %" PRId64
                     " KiB to send",
                     f->tcp_rmem >> 10, f->tcp_wmem >> 10);
    else if (f->tcp_rmem >= 0 && f->tcp_wmem >= 0)
        tell_finding(all, DOCTOR_OK, "TCP buffers", "", "up to %" PRId64 " and %" PRId64 " KiB",
                     f->tcp_rmem >> 10, f->tcp_wmem >> 10);
    if (f->leases == 0)
        tell_finding(
            all, DOCTOR_WARNING, "leases", "sysctl fs.leases-enable=1",
            "fs.leases-enable is 0: boards of groups that have ended are charged to their users "
            "until these disconnect");
}

/* ---- other nodes --------------------------------------------------------------------------- */

static void judge_connection(const struct doctor_node *n, const char *check,
                             struct doctor_findings *all)
{
    const char *said = *n->last_error ? n->last_error : "nothing is known";

    switch (n->connect_error) {
    case 0:
    case DOCTOR_UNKNOWN:
        return tell_finding(all, DOCTOR_ERROR, check,
                            strstr(said, "transport.") ? "do what it says, and ask again"
                            : *n->last_error
                                ? "its port answers: look at its log, journalctl -u commd there"
                                : "its port answers, so one of the two refuses the other: "
                                  "journalctl -u commd, here and there",
                            "it is %s: %s", n->state, said);
    case ECONNREFUSED:
        return tell_finding(all, DOCTOR_ERROR, check, "on that node: systemctl start commd",
                            "nobody listens at %s", n->address);
    case ETIMEDOUT:
    case EINPROGRESS:
        return tell_finding(
            all, DOCTOR_ERROR, check,
            "is it running? if so, a firewall drops what goes to this port: admit all nodes "
            "to it, and to transport.port_range",
            "%s does not answer", n->address);
    default:
        return tell_finding(all, DOCTOR_ERROR, check,
                            "repair the route or the firewall between the two nodes", "%s: %s",
                            n->address, strerror(n->connect_error));
    }
}

/* A size as the configuration has it; 0: it is none. */
static double bytes_of(const char *text)
{
    static const char units[] = "KMGT";
    double bytes;
    char *end;

    bytes = strtod(text, &end);
    for (const char *unit = units; *end && *unit; unit++) {
        bytes *= 1024;
        if (*unit == *end)
            return bytes;
    }
    return *end ? 0 : bytes;
}

/* What the two numbers are for: the choice between algorithms of few steps and of few bytes. */
static void judge_model(const struct doctor_facts *f, const struct doctor_node *n,
                        const char *check, struct doctor_findings *all)
{
    double latency_us = strtod(f->latency_us, NULL), bandwidth = bytes_of(f->bandwidth);

    if (latency_us > 0 && n->rtt_us > 0 && (double)n->rtt_us / 2 > LATE_BY * latency_us)
        tell_finding(all, DOCTOR_WARNING, check,
                     "when the network is idle, measure with commd-perf pingpong, and set "
                     "transport.latency_us to what it says",
                     "one way takes %" PRId64 " us, and transport.latency_us is %s", n->rtt_us / 2,
                     f->latency_us);
    if (bandwidth > 0 && n->bandwidth > 0 && n->sent >= SENT_MUCH &&
        (double)n->bandwidth * SLOW_BY < bandwidth)
        tell_finding(all, DOCTOR_WARNING, check,
                     "is the link as fast as it should be (ethtool on both nodes)? If so, set "
                     "transport.bandwidth to what commd-perf sendrecv reaches",
                     "data arrived at %.3g GB/s at most, and transport.bandwidth is %s",
                     (double)n->bandwidth / 1e9, f->bandwidth);
}

static void judge_clear(const struct doctor_facts *f, const struct doctor_node *n,
                        const char *check, struct doctor_findings *all)
{
    char remedy[DOCTOR_TEXT];

    if (!link_is_open(n->encryption))
        return;
    if (n->encryption == LINK_CLEAR_OLD)
        snprintf(remedy, sizeof(remedy), "upgrade commd on node %s", n->name);
    else if (n->encryption == LINK_CLEAR_UCX)
        snprintf(
            remedy, sizeof(remedy),
            "if others are on that network: transport.fabric: tcp on all nodes, which encrypts; "
            "else a firewall that admits only the nodes, see commd.nft");
    else
        snprintf(remedy, sizeof(remedy),
                 "transport.encryption: auto in the configuration of %s%s, then systemctl reload "
                 "commd there",
                 strcmp(f->encryption, "off") ? "node " : "this node",
                 strcmp(f->encryption, "off") ? n->name : "");
    tell_finding(all, DOCTOR_WARNING, check, remedy,
                 "data go in the clear, for %" PRId64
                 " s: who is on the network can read and forge "
                 "them (%s)",
                 MAX(n->encryption_s, (int64_t)0), link_encryption_word(n->encryption));
}

static void judge_link(const struct doctor_facts *f, const struct doctor_node *n, const char *check,
                       struct doctor_findings *all)
{
    char rtt[64] = "", rate[64] = "", mtu[48] = "", data[96] = "";

    if (n->rtt_us >= 0)
        snprintf(rtt, sizeof(rtt), ", there and back %" PRId64 " us at best", n->rtt_us);
    if (n->bandwidth > 0 && n->sent >= SENT_LEAST)
        snprintf(rate, sizeof(rate), ", at most %.3g GB/s so far", (double)n->bandwidth / 1e9);
    if (n->mtu > 0)
        snprintf(mtu, sizeof(mtu), ", packets up to %" PRId64 " bytes", n->mtu);
    if (n->encryption)
        snprintf(data, sizeof(data), ", data: %s, %s %" PRId64 " s",
                 link_encryption_word(n->encryption),
                 link_is_encrypted(n->encryption) ? "by a key of" : "for",
                 MAX(n->encryption_s, (int64_t)0));
    tell_finding(all, DOCTOR_OK, check, "", "it is up%s%s%s%s", rtt, rate, mtu, data);
    judge_clear(f, n, check, all);
    if (n->sent >= SENT_LEAST && n->retransmits > 0 &&
        n->retransmits > n->sent / MTU_USUAL / 1000 * RESENT_PER_MILLE)
        tell_finding(all, DOCTOR_WARNING, check,
                     "ip -s link on both nodes, counters of the switch ports, cables, the MTU",
                     "%" PRId64 " segments had to be sent again, for %" PRId64
                     " MiB: the network loses data",
                     n->retransmits, n->sent >> 20);
    if (n->mtu > 0 && n->mtu < MTU_USUAL)
        tell_finding(all, DOCTOR_WARNING, check,
                     "raise the MTU on the way, or take tunnels out of it",
                     "packets on the way may have %" PRId64 " bytes at most", n->mtu);
    judge_model(f, n, check, all);
}

static void judge_node(const struct doctor_facts *f, const struct doctor_node *n,
                       struct doctor_findings *all)
{
    enum node_state state = read_word(NODE_WORDS, n->state);
    char check[64];

    snprintf(check, sizeof(check), "node %s", n->name);
    if (state == NODE_DRAINING)
        tell_finding(all, DOCTOR_ERROR, check, "when it shall: commctl drain --undo there",
                     "it is draining: it takes no new clients and groups");
    else if (n->apart_s > 0)
        tell_finding(all, DOCTOR_ERROR, check,
                     "does a firewall, here or there, drop the ports of the engines? Let "
                     "transport.port_range through in both directions: nft list ruleset, "
                     "iptables -S, security groups",
                     "its commd is linked, but its engine and ours have had no connection for "
                     "%" PRId64 " s: no data come through",
                     n->apart_s);
    else if (state != NODE_UP)
        judge_connection(n, check, all);
    else
        judge_link(f, n, check, all);
}

/* Nodes of one cluster have one MTU, or large packets are lost on the way to one of them. */
static void judge_mtus(const struct doctor_facts *f, struct doctor_findings *all)
{
    const struct doctor_node *least = NULL, *most = NULL;

    for (unsigned i = 0; i < f->nnodes; i++) {
        const struct doctor_node *n = &f->nodes[i];

        if (n->mtu <= 0)
            continue;
        if (!least || n->mtu < least->mtu)
            least = n;
        if (!most || n->mtu > most->mtu)
            most = n;
    }
    if (least && least->mtu != most->mtu)
        tell_finding(all, DOCTOR_WARNING, "MTU",
                     "set one MTU on all interfaces and switches of the cluster",
                     "%" PRId64 " bytes to node %s, %" PRId64 " to node %s", least->mtu,
                     least->name, most->mtu, most->name);
}

/* -------------------------------------------------------------------------------------------- */

const char *doctor_level_name(enum doctor_level level)
{
    static const char *const names[] = {"ok", "warning", "error"};

    assert(level < ARRAY_LEN(names));
    return names[level];
}

void doctor_judge(const struct doctor_facts *f, struct doctor_findings *ret_findings)
{
    *ret_findings = (struct doctor_findings){0};
    judge_commd(f, ret_findings);
    judge_pids(f, ret_findings);
    judge_gpu(f, ret_findings);
    judge_files(f, ret_findings);
    judge_memory(f, ret_findings);
    judge_cpus(f, ret_findings);
    judge_kernel(f, ret_findings);
    for (unsigned i = 0; i < f->nnodes; i++)
        judge_node(f, &f->nodes[i], ret_findings);
    judge_mtus(f, ret_findings);
}

void doctor_findings_free(struct doctor_findings *findings)
{
    free(findings->at);
    *findings = (struct doctor_findings){0};
}
