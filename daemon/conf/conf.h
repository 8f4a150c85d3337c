/* conf.h - the configuration: one row per key in conf_keys.c, read by libyaml, errors as
 * "file:line:col: what is wrong, what is allowed". A struct conf is immutable once loaded;
 * reload builds a whole new one and swaps it, or keeps the old one and says why (reload.c). */
#ifndef COMMD_CONF_H
#define COMMD_CONF_H

#include "shm/util/base.h"

enum { CONF_MAX_NODES = 1024, CONF_NAME_MAX = 64, CONF_PATH_MAX = 256, CONF_ADDR_MAX = 64 };
enum { CONF_DEFAULT_PORT = 18400, CONF_MAX_KEYS = 64, CONF_MAX_BYTES = 1 << 20 };

struct plan_net;

enum conf_log_level { CONF_LOG_ERROR, CONF_LOG_WARN, CONF_LOG_INFO, CONF_LOG_DEBUG };

struct conf_node {
    char name[CONF_NAME_MAX];
    char address[CONF_ADDR_MAX]; /* numeric IPv4 or IPv6, or a host name resolved at start */
    uint16_t port;
};

/* Defaults and ranges stand in conf_keys.c, what a setting means for people in commd.yaml(5). */
struct conf {
    char file[CONF_PATH_MAX]; /* where it came from, as errors name it */

    /* cluster: */
    char cluster[CONF_NAME_MAX];
    char node[CONF_NAME_MAX];
    char key_file[CONF_PATH_MAX];    /* may begin with $CREDENTIALS_DIRECTORY/ */
    char authentication[16];         /* "key", "both" or "certificate": see conf_proves_by_*() */
    char certificate[CONF_PATH_MAX]; /* these may begin so, too */
    char certificate_key[CONF_PATH_MAX];
    char ca[CONF_PATH_MAX];
    char crl[CONF_PATH_MAX]; /* "": none */
    struct conf_node *nodes; /* owned; sorted by name; contains this node */
    unsigned nnodes;         /* at least 1 */
    unsigned self;           /* index of this node in nodes[] */

    /* listen: */
    char socket[CONF_PATH_MAX];
    unsigned socket_mode;
    char pid_file[CONF_PATH_MAX]; /* "": none */
    char http[CONF_ADDR_MAX + 8]; /* "ADDRESS:PORT", see conf_http(); "": none */

    /* transport: */
    char device[CONF_NAME_MAX]; /* "": the one that holds this node's address */
    char fabric[8];             /* "tcp", "ucx" or "auto": see conf_fabric() */
    char ucx_tls[CONF_NAME_MAX];
    char port_range[32];
    unsigned channels;
    unsigned latency_us;        /* see conf_net() */
    uint64_t bandwidth;         /* bytes per second */
    char congestion[16];        /* TCP_CA_NAME_MAX */
    char encryption[8];         /* "auto", "on" or "off", of data over TCP */
    char encryption_threads[8]; /* "auto", or a number */
    bool trusted_network;
    char engine[CONF_PATH_MAX];
    char engine_pid_file[CONF_PATH_MAX]; /* "": none */

    /* gpu: */
    char gpu_enabled[8];              /* "auto", "yes", "no": see conf_gpu() */
    char cuda_library[CONF_PATH_MAX]; /* "": libcuda.so.1 */
    char nccl_library[CONF_PATH_MAX]; /* "": libnccl.so.2 */
    char nccl_env[512];               /* "NCCL_NAME=VALUE ..." */
    bool nodes_share_gpus;            /* NCCL takes nodes for different hosts */
    unsigned gpu_part;                /* bytes */
    uint64_t gpu_timeout_ms;
    bool gpu_landlock;
    char gpu_program[CONF_PATH_MAX];
    char gpu_pid_file[CONF_PATH_MAX]; /* "": none */

    /* timeouts: */
    uint64_t heartbeat_ms;
    uint64_t node_timeout_ms;
    uint64_t restart_timeout_ms; /* groups wait so long for a node whose commd is gone */
    uint64_t progress_timeout_ms;
    uint64_t join_timeout_ms; /* at most granted to a join */

    /* limits: of this node */
    unsigned max_clients;
    unsigned max_clients_per_user;
    unsigned max_groups;
    unsigned max_groups_per_user;
    uint64_t max_board_bytes; /* sum of the sizes of boards, used or not */
    uint64_t max_board_bytes_per_user;
    char weights[256];               /* "UID=WEIGHT,..."; see conf_weight() */
    char subuid_file[CONF_PATH_MAX]; /* as /etc/subuid; "": none */

    /* log: */
    enum conf_log_level log_level;

    unsigned line[CONF_MAX_KEYS]; /* per row: the line that set it, 0 for the default */
    bool old_name[CONF_MAX_KEYS]; /* per row: that line has the key's former name */
};

/* Loads @file. @text/@len: its content when the caller has it already (fuzzing, tests), else
 * NULL. On failure returns a negative errno and *ret_error is a malloc'ed text of one or more
 * lines "FILE:LINE:COL: ..." without a newline at the end (all errors that could be found, not
 * only the first); NULL only with -ENOMEM. -EINVAL: the content is wrong; else it could not be
 * read. An empty file is valid: one node, all defaults. */
int conf_load(const char *file, const char *text, size_t len, struct conf **ret_conf,
              char **ret_error);
struct conf *conf_free(struct conf *conf);
/* May a commd that runs go from one to the other, also while other nodes have not yet? @from NULL:
 * it is not known what its engine has. If not, -EINVAL, and *ret_error as of conf_load(). */
int conf_check_change(const struct conf *from, const struct conf *to, char **ret_error);
/* Returns @r, and writes a text about it to *ret_error, malloc'ed. Without memory for the text:
 * -ENOMEM and NULL. */
int fail_with(int r, char **ret_error, const char *fmt, ...) _printf_(3, 4);
/* The ports of transport.port_range. */
bool conf_ports(const struct conf *conf, unsigned *ret_low, unsigned *ret_high);
/* "tcp" or "ucx": what "auto" means, too. */
const char *conf_fabric(const struct conf *conf);
/* The network's numbers for groups whose home is this node. */
struct plan_net conf_net(const struct conf *conf);

/* May commd-gpu be started when a client asks for it? @driver: the NVIDIA driver is loaded. False:
 * *ret_why says why, for people. */
bool conf_gpu(const struct conf *conf, bool driver, const char **ret_why);

/* limits.max_board_bytes_per_user. If the file does not set it: the default, and at most half of
 * limits.max_board_bytes. */
uint64_t conf_board_bytes_per_user(const struct conf *conf);
/* The weight of a user. 0: the file gives none, so the default holds. */
uint32_t conf_weight(const struct conf *conf, uint32_t uid);
/* Where HTTP is served; false: nowhere. An IPv6 address comes without its brackets. */
bool conf_http(const struct conf *conf, char ret_address[CONF_ADDR_MAX], uint16_t *ret_port);

/* The keys of the cluster. All are accepted; the first is offered. There are two while the operator
 * replaces one key by another. */
enum { CONF_KEY_BYTES = 32, CONF_KEYS_MAX = 2 };
struct conf_keys {
    uint8_t key[CONF_KEYS_MAX][CONF_KEY_BYTES];
    unsigned n;
};
/* Reads cluster.key_file. Refuses a file that group or world can read. The file holds one or two
 * lines of 64 hex digits, or 32 bytes, and nothing else. The caller clears *ret_keys. */
int conf_load_keys(const struct conf *conf, struct conf_keys *ret_keys, char **ret_error);

/* Do nodes prove who they are by the shared key, by certificates? One of the two, or both. */
bool conf_proves_by_key(const struct conf *conf);
bool conf_proves_by_certificate(const struct conf *conf);

/* The files of certificates as they stand, PEM. */
enum conf_pem { CONF_PEM_CERTIFICATE, CONF_PEM_KEY, CONF_PEM_CA, CONF_PEM_CRL, CONF_PEMS };
struct conf_pems {
    struct conf_pem_file {
        char *path; /* owned; as it was opened. NULL: there is no such file */
        char *text; /* owned */
        size_t len;
    } file[CONF_PEMS];
};
/* Reads them. Refuses a private key that group or world can read. The caller calls
 * conf_pems_fini(), also after a failure. */
int conf_load_pems(const struct conf *conf, struct conf_pems *ret_pems, char **ret_error);
/* Leaves no private key in memory. */
void conf_pems_fini(struct conf_pems *pems);

/* One row per key, for `commctl show config`. Returns false past the last row. */
struct conf_row {
    char key[96]; /* "transport.device" */
    char value[256];
    char fallback[CONF_PATH_MAX]; /* the default, as text */
    /* "default", or "FILE:LINE", with the key's old name where the file has that */
    char source[CONF_PATH_MAX + 80];
    bool reloadable;
    const char *help; /* one line, static */
};
bool conf_row(const struct conf *conf, unsigned i, struct conf_row *ret_row);
/* What the engine, or commd-gpu (*ret_gpu), has in the place of row @i of @conf if it was started
 * with @served. False: the same, or what is in force at once. */
bool conf_waits(const struct conf *served, const struct conf *conf, unsigned i, bool *ret_gpu,
                char *buf, size_t len);
/* The row of @key, "transport.device", which exists. */
void conf_row_of(const struct conf *conf, const char *key, struct conf_row *ret_row);

/* Whether the file sets @key, "transport.device", which exists. */
bool conf_is_given(const struct conf *conf, const char *key);

/* Writes into @buf the names of keys that differ between @a and @b and need a restart, with commas.
 * "": none does. */
void conf_not_reloadable(const struct conf *a, const struct conf *b, char *buf, size_t len);
/* Gives those keys the values of @old. -ENOMEM: only conf_free() may be called with @conf. */
int conf_keep(struct conf *conf, const struct conf *old);
/* As conf_not_reloadable(), of keys that differ and are taken by the next engine or commd-gpu. */
void conf_idle_changes(const struct conf *a, const struct conf *b, char *buf, size_t len);
/* The same for all keys that differ. */
void conf_changes(const struct conf *a, const struct conf *b, char *buf, size_t len);

#endif
