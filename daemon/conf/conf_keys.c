/* conf_keys.c - the table of keys.
 *
 * One row says everything about a key: where it stands in the file, what its value may be,
 * which field it fills, its default and whether a running daemon can take a new one. The
 * defaults are text and go through the same parser as the file (conf_value.c), so a default
 * outside its own range cannot be built. A new key needs a row here, a field in struct conf, and a
 * paragraph in etc/commd.yaml and etc/commd.yaml.5; test_conf compares all of them.
 *
 * A reload may change limits, timeouts and the log level: they are read whenever they are needed.
 * Arguments of the engine and of commd-gpu are for the next one (CONF_IDLE). A socket or a link
 * keeps all other settings from the start on. */
#include "daemon/conf/conf_keys.h"

#include <stdio.h>

#include "shm/util/encryption.h"

#define FIELD(member) offsetof(struct conf, member), sizeof(((struct conf *)0)->member)
#define NODE_FIELD(member)                                                                         \
    offsetof(struct conf_node, member), sizeof(((struct conf_node *)0)->member)
#define LONGEST(member) sizeof(((struct conf *)0)->member) - 1

enum { UNIX_PATH_MAX = 107, NODE_NAME_LONGEST = CONF_NAME_MAX - 1 }; /* sun_path and its NUL */

#define SECOND UINT64_C(1000)
#define MINUTE (60 * SECOND)
#define HOUR   (60 * MINUTE)
#define MIB    (UINT64_C(1) << 20)
#define TIB    (UINT64_C(1) << 40)

/* clang-format off */
const struct conf_key conf_keys[] = {
    { "cluster", "name", CONF_NAME, 0, FIELD(cluster), 1, LONGEST(cluster), "commd",
      "name of the cluster; nodes of another cluster are refused" },
    { "cluster", "node", CONF_NAME, 0, FIELD(node), 1, LONGEST(node), NULL,
      "name of this node, one of cluster.nodes" },
    { "cluster", "key_file", CONF_PATH, CONF_CREDENTIAL, FIELD(key_file), 1, LONGEST(key_file),
      COMMD_SYSCONFDIR "/commd/cluster.key",
      "the key shared by all nodes; not needed for one node" },
    { "cluster", "authentication", CONF_AUTHENTICATION, CONF_RELOAD, FIELD(authentication), 1,
      LONGEST(authentication), "key",
      "how nodes prove who they are: by key, certificate, or both" },
    { "cluster", "certificate", CONF_PATH, CONF_CREDENTIAL | CONF_RELOAD, FIELD(certificate), 1,
      LONGEST(certificate), COMMD_SYSCONFDIR "/commd/node.crt", "of this node, with its name" },
    { "cluster", "certificate_key", CONF_PATH, CONF_CREDENTIAL | CONF_RELOAD,
      FIELD(certificate_key), 1, LONGEST(certificate_key), COMMD_SYSCONFDIR "/commd/node.key",
      "the private key of that certificate" },
    { "cluster", "ca", CONF_PATH, CONF_CREDENTIAL | CONF_RELOAD, FIELD(ca), 1, LONGEST(ca),
      COMMD_SYSCONFDIR "/commd/ca.crt", "who may sign certificates of nodes" },
    { "cluster", "crl", CONF_PATH, CONF_CREDENTIAL | CONF_RELOAD | CONF_MAY_BE_EMPTY, FIELD(crl), 1,
      LONGEST(crl), "", "certificates that hold no more" },
    { "cluster", "nodes", CONF_NODES, 0, FIELD(nodes), 1, CONF_MAX_NODES, NULL,
      "all nodes of the cluster, this one included" },

    { "listen", "socket", CONF_PATH, 0, FIELD(socket), 1, UNIX_PATH_MAX,
      "/run/commd/commd.sock", "where clients and commctl connect" },
    { "listen", "socket_mode", CONF_MODE, 0, FIELD(socket_mode), 0600, 0777, "0666",
      "permissions of that socket: who may connect" },
    { "listen", "pid_file", CONF_PATH, CONF_MAY_BE_EMPTY, FIELD(pid_file), 1,
      LONGEST(pid_file), "", "file that receives the daemon's pid" },
    { "listen", "http", CONF_LISTEN, CONF_MAY_BE_EMPTY, FIELD(http), 1, LONGEST(http), "",
      "address and port of the metrics and the page" },

    { "transport", "device", CONF_DEVICE, CONF_MAY_BE_EMPTY, FIELD(device), 1, LONGEST(device),
      "", "network device that carries the data" },
    { "transport", "fabric", CONF_FABRIC, CONF_IDLE, FIELD(fabric), 1, LONGEST(fabric), "auto",
      "what carries the data: tcp, ucx, or auto" },
    { "transport", "ucx_tls", CONF_TRANSPORTS, CONF_IDLE, FIELD(ucx_tls), 1, LONGEST(ucx_tls),
      "tcp", "UCX transports that the engine may use" },
    { "transport", "port_range", CONF_PORT_RANGE, CONF_IDLE, FIELD(port_range), 1, 65535,
      "18500-18599", "TCP ports of the engine" },
    { "transport", "channels", CONF_COUNT, CONF_IDLE, FIELD(channels), 1, 16, "1",
      "TCP connections between two nodes" },
    { "transport", "latency_us", CONF_COUNT, CONF_RELOAD, FIELD(latency_us), 1, 1000000, "30",
      "microseconds that a short message takes from an engine to another" },
    { "transport", "bandwidth", CONF_SIZE, CONF_RELOAD, FIELD(bandwidth), 1 << 20,
      UINT64_C(1) << 40, "1G", "bytes per second from an engine to another" },
    { "transport", "congestion_control", CONF_WORD, CONF_IDLE, FIELD(congestion), 1,
      LONGEST(congestion), "auto", "TCP's congestion control between the engines" },
    { "transport", "encryption", CONF_ENCRYPTION, CONF_IDLE, FIELD(encryption), 1,
      LONGEST(encryption), "auto", "of data between engines over TCP" },
    { "transport", "encryption_threads", CONF_THREADS, CONF_IDLE, FIELD(encryption_threads), 0,
      ENCRYPTION_THREADS_MAX, "auto", "threads that encrypt large messages, beside the engine's" },
    { "transport", "trusted_network", CONF_BOOL, CONF_IDLE, FIELD(trusted_network), 0, 1, "false",
      "nobody but the nodes reaches the TCP ports of the engine" },
    { "transport", "engine", CONF_PATH, 0, FIELD(engine), 1, LONGEST(engine),
      COMMD_LIBEXECDIR "/commd-engine", "program that moves the data" },
    { "transport", "engine_pid_file", CONF_PATH, CONF_MAY_BE_EMPTY, FIELD(engine_pid_file), 1,
      LONGEST(engine_pid_file), "", "file that receives the engine's pid" },

    { "gpu", "enabled", CONF_SWITCH, 0, FIELD(gpu_enabled), 1, LONGEST(gpu_enabled), "auto",
      "whether this node has a GPU service" },
    { "gpu", "cuda_library", CONF_PATH, CONF_IDLE | CONF_MAY_BE_EMPTY, FIELD(cuda_library), 1,
      LONGEST(cuda_library), "", "the CUDA driver's library" },
    { "gpu", "nccl_library", CONF_PATH, CONF_IDLE | CONF_MAY_BE_EMPTY, FIELD(nccl_library), 1,
      LONGEST(nccl_library), "", "the library of NCCL" },
    { "gpu", "nccl_env", CONF_NCCL_ENV, CONF_IDLE | CONF_MAY_BE_EMPTY, FIELD(nccl_env), 0,
      LONGEST(nccl_env), "", "settings of NCCL, which it reads from its environment" },
    { "gpu", "nodes_share_gpus", CONF_BOOL, 0, FIELD(nodes_share_gpus), 0, 1, "false",
      "several nodes of the cluster run on one machine, with the same GPUs" },
    { "gpu", "part", CONF_COUNT, CONF_IDLE, FIELD(gpu_part), 16, 1 << 30, "1073741824",
      "bytes of an operation between GPUs that are launched at once, at most" },
    { "gpu", "timeout", CONF_DURATION, CONF_IDLE, FIELD(gpu_timeout_ms), 100, HOUR, "30s",
      "silence after which the GPU service, or NCCL in it, counts as hung" },
    { "gpu", "landlock", CONF_BOOL, CONF_IDLE, FIELD(gpu_landlock), 0, 1, "true",
      "the GPU service can open no files but what a driver needs" },
    { "gpu", "program", CONF_PATH, 0, FIELD(gpu_program), 1, LONGEST(gpu_program),
      COMMD_LIBEXECDIR "/commd-gpu", "program that moves tensors on GPUs" },
    { "gpu", "pid_file", CONF_PATH, CONF_MAY_BE_EMPTY, FIELD(gpu_pid_file), 1,
      LONGEST(gpu_pid_file), "", "file that receives its pid" },

    { "timeouts", "heartbeat", CONF_DURATION, CONF_RELOAD, FIELD(heartbeat_ms), 10, MINUTE,
      "500ms", "time between two heartbeats of a node" },
    { "timeouts", "node", CONF_DURATION, CONF_RELOAD, FIELD(node_timeout_ms), 20, 10 * MINUTE,
      "3s", "silence after which a node counts as lost" },
    { "timeouts", "restart", CONF_DURATION, CONF_RELOAD, FIELD(restart_timeout_ms), 20, 10 * MINUTE,
      "10s", "time that groups wait for a node whose commd is being restarted" },
    { "timeouts", "progress", CONF_DURATION, CONF_RELOAD, FIELD(progress_timeout_ms), 20, HOUR,
      "5s", "time a transfer may stand still on the wire" },
    { "timeouts", "join", CONF_DURATION, CONF_RELOAD, FIELD(join_timeout_ms), 1, 24 * HOUR,
      "30m", "longest wait for the members of a group that a client may ask for" },

    { "limits", "max_clients", CONF_COUNT, CONF_RELOAD, FIELD(max_clients), 1, 65536, "1024",
      "clients connected to this node" },
    { "limits", "max_clients_per_user", CONF_COUNT, CONF_RELOAD, FIELD(max_clients_per_user), 1,
      65536, "512", "of these, clients of one user" },
    { "limits", "max_groups", CONF_COUNT, CONF_RELOAD, FIELD(max_groups), 1, 65536, "4096",
      "groups with a member on this node" },
    { "limits", "max_groups_per_user", CONF_COUNT, CONF_RELOAD, FIELD(max_groups_per_user), 1,
      65536, "2048", "of these, groups of one user" },
    { "limits", "max_board_bytes", CONF_SIZE, CONF_RELOAD, FIELD(max_board_bytes), MIB,
      1024 * TIB, "128G", "shared memory of all groups on this node together" },
    { "limits", "max_board_bytes_per_user", CONF_SIZE, CONF_RELOAD, FIELD(max_board_bytes_per_user),
      MIB, 1024 * TIB, "64G", "of this, shared memory of one user's groups" },
    { "limits", "weights", CONF_WEIGHTS, CONF_RELOAD | CONF_MAY_BE_EMPTY, FIELD(weights), 0,
      LONGEST(weights), "", "of users, where several want more than the network or a GPU does" },
    { "limits", "subuid_file", CONF_PATH, CONF_RELOAD | CONF_MAY_BE_EMPTY, FIELD(subuid_file), 1,
      LONGEST(subuid_file), "/etc/subuid", "which uids people have beside their own" },

    { "log", "level", CONF_LEVEL, CONF_RELOAD, FIELD(log_level), 0, CONF_LOG_DEBUG, "info",
      "what is logged" },
};

const struct conf_key conf_node_keys[CONF_NODE_KEYS] = {
    [CONF_NODE_NAME] = { "cluster.nodes", "name", CONF_NAME, 0, NODE_FIELD(name), 1,
                         NODE_NAME_LONGEST, NULL, NULL },
    [CONF_NODE_ADDRESS] = { "cluster.nodes", "address", CONF_ADDRESS, 0, NODE_FIELD(address), 1,
                            CONF_ADDR_MAX - 1, NULL, NULL },
    [CONF_NODE_PORT] = { "cluster.nodes", "port", CONF_PORT, 0, NODE_FIELD(port), 1, 65535,
                         NULL, NULL },
};
/* clang-format on */

/* Keys that were renamed: a file may have the old name or the new one, not both. */
static const struct {
    const char *section, *old, *name;
} old_names[] = {
    {"transport", "tls", "ucx_tls"},
};

const unsigned conf_nkeys = ARRAY_LEN(conf_keys);
_Static_assert(ARRAY_LEN(conf_keys) <= CONF_MAX_KEYS, "struct conf has a line for each key");
_Static_assert(sizeof(COMMD_SYSCONFDIR "/commd/cluster.key") <= CONF_PATH_MAX, "sysconfdir");
_Static_assert(sizeof(COMMD_LIBEXECDIR "/commd-engine") <= CONF_PATH_MAX, "libexecdir");

unsigned conf_key_index(const char *key)
{
    unsigned i;

    for (i = 0; i < conf_nkeys; i++) {
        size_t n = strlen(conf_keys[i].section);

        if (!strncmp(key, conf_keys[i].section, n) && key[n] == '.' &&
            !strcmp(key + n + 1, conf_keys[i].name))
            break;
    }
    assert(i < conf_nkeys);
    return i;
}

const char *conf_key_old_name(const struct conf_key *key)
{
    for (unsigned i = 0; i < ARRAY_LEN(old_names); i++)
        if (!strcmp(old_names[i].section, key->section) && !strcmp(old_names[i].name, key->name))
            return old_names[i].old;
    return NULL;
}

void conf_host_name(char ret_name[CONF_NAME_MAX])
{
    const struct conf_key *key = &conf_node_keys[CONF_NODE_NAME];
    struct conf_node parsed;
    char host[256] = "", why[CONF_QUOTE_MAX + 64];

    if (gethostname(host, sizeof(host) - 1) == 0)
        host[strcspn(host, ".")] = '\0';
    if (conf_value_parse(key, host, strlen(host), &parsed, why, sizeof(why)) == 0)
        memcpy(ret_name, parsed.name, CONF_NAME_MAX);
    else
        strcpy(ret_name, "localhost");
}

static void format_fallback(const struct conf_key *key, char *buf, size_t len)
{
    char host[CONF_NAME_MAX];

    if (key->fallback) {
        snprintf(buf, len, "%s", key->fallback);
        return;
    }
    conf_host_name(host);
    if (key->type == CONF_NODES)
        snprintf(buf, len, "%s 127.0.0.1:%u", host, CONF_DEFAULT_PORT);
    else
        snprintf(buf, len, "%s", host);
}

static void format_source(const struct conf *conf, unsigned i, char *buf, size_t len)
{
    const struct conf_key *key = &conf_keys[i];

    if (!conf->line[i])
        snprintf(buf, len, "default");
    else if (!conf->old_name[i])
        snprintf(buf, len, "%s:%u", conf->file, conf->line[i]);
    else
        snprintf(buf, len, "%s:%u, by its old name %s.%s", conf->file, conf->line[i], key->section,
                 conf_key_old_name(key));
}

bool conf_row(const struct conf *conf, unsigned i, struct conf_row *ret_row)
{
    const struct conf_key *key;

    if (i >= conf_nkeys)
        return false;
    key = &conf_keys[i];
    *ret_row =
        (struct conf_row){.reloadable = key->flags & (CONF_RELOAD | CONF_IDLE), .help = key->help};
    snprintf(ret_row->key, sizeof(ret_row->key), "%s.%s", key->section, key->name);
    conf_value_format(key, conf, ret_row->value, sizeof(ret_row->value));
    format_fallback(key, ret_row->fallback, sizeof(ret_row->fallback));
    format_source(conf, i, ret_row->source, sizeof(ret_row->source));
    return true;
}

void conf_row_of(const struct conf *conf, const char *key, struct conf_row *ret_row)
{
    conf_row(conf, conf_key_index(key), ret_row);
}

bool conf_is_given(const struct conf *conf, const char *key)
{
    return conf->line[conf_key_index(key)];
}

static bool same_nodes(const struct conf *a, const struct conf *b)
{
    if (a->nnodes != b->nnodes)
        return false;
    for (unsigned i = 0; i < a->nnodes; i++)
        if (strcmp(a->nodes[i].name, b->nodes[i].name) ||
            strcmp(a->nodes[i].address, b->nodes[i].address) ||
            a->nodes[i].port != b->nodes[i].port)
            return false;
    return true;
}

static bool same_value(const struct conf_key *key, const struct conf *a, const struct conf *b)
{
    char text_a[CONF_PATH_MAX], text_b[CONF_PATH_MAX]; /* no field but nodes is longer */

    if (key->type == CONF_NODES)
        return same_nodes(a, b);
    conf_value_format(key, a, text_a, sizeof(text_a));
    conf_value_format(key, b, text_b, sizeof(text_b));
    return !strcmp(text_a, text_b);
}

/* Writes the names of keys that differ and have @flags, of those in @mask. */
static void name_changes(const struct conf *a, const struct conf *b, unsigned mask, unsigned flags,
                         char *buf, size_t len)
{
    size_t at = 0;

    if (len == 0)
        return;
    buf[0] = '\0';
    for (unsigned i = 0; i < conf_nkeys && at < len; i++) {
        const struct conf_key *key = &conf_keys[i];

        if ((key->flags & mask) != flags || same_value(key, a, b))
            continue;
        at += (size_t)snprintf(buf + at, len - at, "%s%s.%s", at ? ", " : "", key->section,
                               key->name);
    }
}

/* Flags of keys that a reload takes. Rules tie the engine's settings to some that need a restart,
 * so they are taken only where no such one has changed. */
static unsigned reload_takes(const struct conf *a, const struct conf *b)
{
    char any[2];

    name_changes(a, b, CONF_RELOAD | CONF_IDLE, 0, any, sizeof(any));
    return any[0] ? CONF_RELOAD : CONF_RELOAD | CONF_IDLE;
}

void conf_not_reloadable(const struct conf *a, const struct conf *b, char *buf, size_t len)
{
    name_changes(a, b, reload_takes(a, b), 0, buf, len);
}

void conf_idle_changes(const struct conf *a, const struct conf *b, char *buf, size_t len)
{
    name_changes(a, b, CONF_IDLE, CONF_IDLE, buf, len);
}

bool conf_waits(const struct conf *served, const struct conf *conf, unsigned i, bool *ret_gpu,
                char *buf, size_t len)
{
    const struct conf_key *key = &conf_keys[i];

    *ret_gpu = !strcmp(key->section, "gpu");
    if (!(key->flags & CONF_IDLE) || same_value(key, served, conf))
        return false;
    conf_value_format(key, served, buf, len);
    return true;
}

static int keep_nodes(struct conf *conf, const struct conf *old)
{
    struct conf_node *nodes = malloc(old->nnodes * sizeof(*nodes));

    if (!nodes)
        return -ENOMEM;
    memcpy(nodes, old->nodes, old->nnodes * sizeof(*nodes));
    free(conf->nodes);
    conf->nodes = nodes;
    conf->nnodes = old->nnodes;
    conf->self = old->self;
    return 0;
}

/* The result keeps all rules of conf_check.c, because no rule is about a key that a reload may
 * change together with one that needs a restart: test_conf checks that. */
int conf_keep(struct conf *conf, const struct conf *old)
{
    unsigned takes = reload_takes(old, conf);

    for (unsigned i = 0; i < conf_nkeys; i++) {
        const struct conf_key *key = &conf_keys[i];

        if (key->flags & takes)
            continue;
        if (key->type != CONF_NODES)
            memcpy((char *)conf + key->offset, (const char *)old + key->offset, key->size);
        else if (keep_nodes(conf, old))
            return -ENOMEM;
        conf->line[i] = old->line[i];
        conf->old_name[i] = old->old_name[i];
    }
    return 0;
}

void conf_changes(const struct conf *a, const struct conf *b, char *buf, size_t len)
{
    name_changes(a, b, 0, 0, buf, len);
}
