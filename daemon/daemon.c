/* daemon.c - starts commd, from the configuration to the running edges, and ends it.
 *
 * Everything that can be wrong with the configuration is found by daemon_prepare(), before
 * anything is opened; daemon_start() opens the socket of the clients, then the port for the
 * other nodes, then lets the core begin. Whatever fails says so in one line that names the
 * cause and what to do, and ends with one of the documented exit codes. */
#include "config.h"

#include "daemon/daemon.h"
#include "daemon/http/http.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include "daemon/link/engine_spawn.h"
#include "daemon/process/clock.h"
#include "daemon/process/files.h"
#include "daemon/process/log.h"
#include "daemon/process/keeper.h"
#include "daemon/process/notify.h"
#include "daemon/link/tls.h"
#include "shm/util/topology.h"

enum {
    MAX_MEMBERS = 262144,
    MEMBER_BLOCKS = 64
}; /* ranks of a user take whole blocks: core_pool.c */

/* ---- before anything is opened --------------------------------------------------------------- */

/* Prints and frees @text, which an edge has made; NULL: memory ran out. */
static int complain(char *text, int exit_code)
{
    fprintf(stderr, "commd: %s\n", text ? text : "out of memory");
    free(text);
    return text ? exit_code : EXIT_INTERNAL;
}

static int resolve_nodes(struct daemon *d)
{
    const struct conf *conf = d->conf;

    d->addrs = calloc(conf->nnodes, sizeof(*d->addrs));
    if (!d->addrs)
        return complain(NULL, EXIT_INTERNAL);
    for (unsigned i = 0; i < conf->nnodes && conf->nnodes > 1; i++) {
        const struct conf_node *node = &conf->nodes[i];
        const char *why;
        int r = sock_resolve(node->address, node->port, &d->addrs[i], &why);

        if (!r)
            continue;
        fprintf(stderr, "%s: cluster.nodes: node \"%s\": cannot resolve \"%s\": %s\n", conf->file,
                node->name, node->address, why);
        return r == -EINVAL ? EXIT_CONFIG : EXIT_INTERNAL;
    }
    return 0;
}

static int check_insecure(const struct daemon *d)
{
    for (unsigned i = 0; i < d->conf->nnodes; i++) {
        if (sock_is_loopback(&d->addrs[i]))
            continue;
        fprintf(stderr,
                "%s: --insecure is for trials on loopback, but node \"%s\" is at %s: make a key "
                "(openssl rand -hex 32 > %s), give it to all nodes, and start without --insecure\n",
                d->conf->file, d->conf->nodes[i].name, d->conf->nodes[i].address,
                d->conf->key_file);
        return EXIT_CONFIG;
    }
    return 0;
}

/* 0 where it is not known. */
static unsigned first_free_port(void)
{
    unsigned port = 0;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "re");

    if (!file)
        return 0;
    if (fscanf(file, "%u", &port) != 1)
        port = 0;
    fclose(file);
    return port;
}

/* The unit gives commd no privilege, so it cannot open a port that the kernel keeps for root. */
static int check_port(const struct conf *conf, const char *key, unsigned port)
{
    unsigned first = port ? first_free_port() : 0;
    struct conf_row row;

    if (port >= first)
        return 0;
    conf_row_of(conf, key, &row);
    fprintf(
        stderr,
        "%s: %s: port %u is for privileged programs, which commd is not; take one from %u on, or "
        "lower net.ipv4.ip_unprivileged_port_start\n",
        row.source, key, port, first);
    return EXIT_CONFIG;
}

static int check_ports_are_open_to_us(const struct conf *conf)
{
    char address[CONF_ADDR_MAX];
    uint16_t http = 0;
    int r;

    if (!conf_http(conf, address, &http))
        http = 0;
    r = check_port(conf, "listen.http", http);
    return r || conf->nnodes == 1 ? r
                                  : check_port(conf, "cluster.nodes", conf->nodes[conf->self].port);
}

static int load_identity(const struct conf *conf, struct tls_identity **ret_identity,
                         char **ret_error)
{
    struct conf_pems pems = {0};
    int r = conf_load_pems(conf, &pems, ret_error);

    if (!r)
        r = tls_identity_new(&pems, conf->node, ret_identity, ret_error);
    conf_pems_fini(&pems);
    return r;
}

int daemon_load_proofs(const struct conf *conf, struct conf_keys *ret_keys,
                       struct tls_identity **ret_identity, char **ret_error)
{
    int r = 0;

    *ret_error = NULL;
    if (conf_proves_by_key(conf))
        r = conf_load_keys(conf, ret_keys, ret_error);
    if (!r && conf_proves_by_certificate(conf))
        r = load_identity(conf, ret_identity, ret_error);
    if (r)
        explicit_bzero(ret_keys, sizeof(*ret_keys));
    return r;
}

int daemon_prepare(struct daemon *d)
{
    const struct conf *conf = d->conf;
    struct conf_row row;
    char *error = NULL;
    int r;

    r = resolve_nodes(d);
    if (!r)
        r = check_ports_are_open_to_us(conf);
    if (r)
        return r;
    if (conf->nnodes > 1 || conf->device[0]) {
        r = sock_device(conf, &d->addrs[conf->self], d->device, &error);
        if (r) {
            conf_row_of(conf, conf->device[0] ? "transport.device" : "cluster.nodes", &row);
            fprintf(stderr, "%s: %s\n", row.source, error ? error : strerror(-r));
            free(error);
            return r == -EINVAL ? EXIT_CONFIG : EXIT_INTERNAL;
        }
    }
    if (conf->nnodes == 1)
        return 0;
    if (d->insecure) {
        tls_insecure_keys(&d->keys);
        return check_insecure(d);
    }
    r = daemon_load_proofs(conf, &d->keys, &d->identity, &error);
    if (!r) {
        /* Other processes of our user, such as the engine, must not read the key in our memory. */
        if (!HAS_LEAK_CHECK)
            prctl(PR_SET_DUMPABLE, 0);
        return 0;
    }
    fprintf(stderr, "%s\n", error ? error : "out of memory");
    free(error);
    return EXIT_PERMISSION;
}

/* ---- opening --------------------------------------------------------------------------------- */

void daemon_core_config(const struct daemon *d, struct core_config *ret_config)
{
    const struct conf *conf = d->conf;
    unsigned size = MIN(conf->nnodes * BOARD_MAX_LOCAL, (unsigned)MSG_MAX_RANKS);
    /* With PrivateDevices= of the unit the first file is not visible. */
    bool driver =
        access("/dev/nvidiactl", F_OK) == 0 || access("/proc/driver/nvidia/version", F_OK) == 0;
    const char *why = NULL;
    struct program program;

    *ret_config = (struct core_config){
        .cluster = conf->cluster,
        .version = COMMD_BUILD_VERSION,
        .nnodes = conf->nnodes,
        .self = conf->self,
        .own_uid = geteuid(),
        .payers = d->payers,
        .net = conf_net(conf),
        .gpu = conf_gpu(conf, driver, &why),
        .heartbeat_ms = conf->heartbeat_ms,
        .node_timeout_ms = conf->node_timeout_ms,
        .restart_timeout_ms = conf->restart_timeout_ms,
        .join_timeout_ms = conf->join_timeout_ms,
        .engine_timeout_ms = conf->progress_timeout_ms,
        .gpu_timeout_ms = conf->gpu_timeout_ms,
        .max_clients = conf->max_clients,
        .max_clients_per_user = conf->max_clients_per_user,
        .max_groups = conf->max_groups,
        .max_groups_per_user = conf->max_groups_per_user,
        .max_size = size,
        .max_members = MAX((unsigned)MAX_MEMBERS, MEMBER_BLOCKS * size),
    };
    ret_config->gpu_why = why;
    if (conf->nnodes > 1) {
        program_engine(conf, d->device, &program);
        ret_config->engine_settings = program_settings(&program);
    }
    program_gpu(conf, &program);
    ret_config->gpu_settings = program_settings(&program);
}

static int start_core(struct daemon *d)
{
    _cleanup_(freep) char(*names)[MSG_NAME_MAX] = calloc(d->conf->nnodes, sizeof(*names));
    struct core_config config;
    uint64_t random[2];

    if (!names || getrandom(random, sizeof(random), 0) != sizeof(random))
        return -ENOMEM;
    for (unsigned i = 0; i < d->conf->nnodes; i++)
        snprintf(names[i], sizeof(names[i]), "%s", d->conf->nodes[i].name);
    d->diary->life = d->incarnation = random[1] ? random[1] : 1;
    daemon_core_config(d, &config);
    config.seed = random[0];
    config.incarnation = d->incarnation;
    config.nodes = (const char(*)[MSG_NAME_MAX])names;
    d->core = core_new(&config);
    d->nslots = d->conf->max_clients + LISTENER_EXTRA;
    d->doorbells = calloc(d->nslots, sizeof(*d->doorbells));
    d->bells = malloc(d->nslots * sizeof(*d->bells));
    for (unsigned i = 0; d->bells && i < d->nslots; i++)
        d->bells[i] = -1;
    d->commands = calloc(d->nslots, sizeof(*d->commands));
    d->peer_tokens = calloc(d->conf->nnodes, sizeof(*d->peer_tokens));
    d->token_turns = calloc(d->conf->nnodes, sizeof(*d->token_turns));
    d->peer_secrets = calloc(d->conf->nnodes, sizeof(*d->peer_secrets));
    if (!d->core || !d->doorbells || !d->bells || !d->commands || !d->peer_tokens ||
        !d->token_turns || !d->peer_secrets)
        return -ENOMEM;
    if (arenas_init(&d->arenas, d->nslots) || closer_new(&d->closer))
        return -ENOMEM;
    d->arenas.closer = d->boards.closer = d->closer;
    if (!d->config_file[0]) /* there is one user */
        d->arenas.max_per_user = d->arenas.max;
    if (boards_init(&d->boards, d->conf->max_groups))
        return -ENOMEM;
    return takeover_begin(d);
}

static int exit_code_of(int r)
{
    return r == -EINVAL                  ? EXIT_CONFIG
           : r == -EACCES || r == -EPERM ? EXIT_PERMISSION
                                         : EXIT_INTERNAL;
}

static int start_listener(struct daemon *d)
{
    struct listener_config config = {
        .base = d->base,
        .path = d->conf->socket,
        .mode = d->conf->socket_mode,
        .max_clients = d->conf->max_clients,
        .max_clients_per_user = d->conf->max_clients_per_user,
        .closer = d->closer,
        .ops = &listener_ops,
        .arg = d,
    };
    char *error = NULL;
    int r = listener_new(&config, &d->listener, &error);

    if (!r)
        listener_set_payers(d->listener, d->payers);
    return r ? complain(error, exit_code_of(r)) : 0;
}

/* The engine, or commd-gpu. */
static int watch_program(struct daemon *d, struct engine_link_config config,
                         struct engine_link **ret_link)
{
    config.base = d->base;
    config.closer = d->closer;
    config.ops = &program_ops;
    return engine_link_new(&config, ret_link) ? complain(NULL, EXIT_INTERNAL) : 0;
}

static int start_cluster(struct daemon *d)
{
    struct program program;
    struct engine_link_config engine = {
        .program = &program,
        .name = "engine",
        .pid_file = d->conf->engine_pid_file,
        .launcher = d->launcher,
        .keeps_port = true,
        .port = -1,
        .arg = &d->engine_edge,
    };
    struct peer_links_config peers = {
        .base = d->base,
        .conf = d->conf,
        .addrs = d->addrs,
        .incarnation = d->incarnation,
        .keys = &d->keys,
        .identity = d->identity,
        .ops = &peer_ops,
        .arg = d,
    };
    char *error = NULL;
    unsigned low, high;
    int r;

    if (d->conf->nnodes == 1)
        return 0; /* no other node, so no port that could be attacked */
    program_engine(d->conf, d->device, &program);
    if (conf_ports(d->conf, &low, &high))
        engine.port = sock_inherited(NULL, low, high);
    d->engine_edge =
        (struct program_edge){d, CORE_ENGINE_STARTED, CORE_ENGINE_MSG, CORE_ENGINE_DOWN};
    r = watch_program(d, engine, &d->engine);
    if (r)
        return r;
    d->identity = NULL;
    r = peer_links_new(&peers, &d->peers, &error);
    explicit_bzero(&d->keys, sizeof(d->keys));
    return r ? complain(error, exit_code_of(r)) : 0;
}

static int start_gpu(struct daemon *d)
{
    struct program program;
    struct core_gpu_view view;

    core_gpu(d->core, &view);
    if (!view.wanted)
        return 0;
    program_gpu(d->conf, &program);
    d->gpu_edge = (struct program_edge){d, CORE_GPU_STARTED, CORE_GPU_MSG, CORE_GPU_DOWN};
    return watch_program(d,
                         (struct engine_link_config){.program = &program,
                                                     .name = "gpu",
                                                     .pid_file = d->conf->gpu_pid_file,
                                                     .launcher = d->gpu_launcher,
                                                     .port = -1,
                                                     .arg = &d->gpu_edge},
                         &d->gpu);
}

static int start_http(struct daemon *d)
{
    char *error = NULL;
    int r = http_new(d, &d->http, &error);

    return r ? complain(error, exit_code_of(r)) : 0;
}

int daemon_start(struct daemon *d)
{
    struct core_event tick = {.type = CORE_TICK};
    int r;

    d->started_ms = clock_ms();
    notify_variable(KEEPER_DEATHS, &d->deaths);
    d->diary = malloc(sizeof(*d->diary));
    if (!d->diary)
        return complain(NULL, EXIT_INTERNAL);
    diary_init(d->diary);
    d->ended = malloc(sizeof(*d->ended));
    if (!d->ended)
        return complain(NULL, EXIT_INTERNAL);
    ended_init(d->ended);
    topology_here(); /* reads thousands of files on a large machine: now, and not during a join */
    if (loop_init(d) || admin_init(d) || gather_init(d))
        return complain(NULL, EXIT_INTERNAL);
    payers_start(d);
    if (start_core(d))
        return complain(NULL, EXIT_INTERNAL);
    r = start_listener(d);
    if (r)
        return r;
    r = start_cluster(d);
    if (r)
        return r;
    r = start_gpu(d);
    if (r)
        return r;
    takeover_diary(d);
    daemon_note(d, EVENT_START, "commd %s, pid %d", COMMD_BUILD_VERSION, (int)getpid());
    takeover_restore(d);
    r = start_http(d);
    if (r)
        return r;
    if (d->insecure && d->conf->nnodes > 1)
        log_warn("--insecure: the links between the nodes use a key that everybody knows -> "
                 "anybody on this machine can join cluster \"%s\"",
                 d->conf->cluster);
    takeover_end(d);
    daemon_dispatch(d, &tick);
    file_write_pid(d->conf->pid_file, getpid());
    admin_status_line(d, d->status, sizeof(d->status));
    log_info("commd %s: %s, socket %s", COMMD_BUILD_VERSION, d->status, d->conf->socket);
    notify_send("READY=1\nSTATUS=%s", d->status);
    return 0;
}

void daemon_fini(struct daemon *d)
{
    char text[MSG_TEXT_MAX];
    struct core_event news;

    if (d->started_ms && d->status[0])
        file_remove_pid(d->conf->pid_file);
    d->http = http_free(d->http);
    d->listener = listener_free(d->listener);
    d->peers = peer_links_free(d->peers);
    d->engine = engine_link_free(d->engine);
    d->gpu = engine_link_free(d->gpu);
    while (apply_next_news(d, &news, text))
        ;
    takeover_fini(d);
    boards_fini(&d->boards);
    arenas_fini(&d->arenas);
    d->closer = closer_free(d->closer);
    d->core = core_free(d->core);
    admin_fini(d);
    gather_fini(d);
    payers_fini(d);
    loop_fini(d);
    free(d->diary);
    if (d->ended)
        ended_fini(d->ended);
    free(d->ended);
    free(d->doorbells);
    for (unsigned i = 0; d->bells && i < d->nslots; i++)
        close_fdp(&d->bells[i]);
    free(d->bells);
    free(d->commands);
    if (d->peer_tokens)
        free_wiped(d->peer_tokens, d->conf->nnodes * sizeof(*d->peer_tokens));
    free(d->token_turns);
    free(d->peer_secrets);
    free(d->addrs);
    explicit_bzero(&d->keys, sizeof(d->keys));
    tls_identity_free(d->identity);
    d->served = conf_free(d->served);
    d->conf = conf_free(d->conf);
}

void daemon_event(struct daemon *d, const char *what, int64_t whose, int64_t payer,
                  const char *text)
{
    takeover_event(d, diary_add(d->diary, what, whose, payer, clock_wall_ms(), text));
}

void daemon_note(struct daemon *d, const char *what, const char *fmt, ...)
{
    char text[DIARY_TEXT];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    daemon_event(d, what, DIARY_EVERYBODY, DIARY_EVERYBODY, text);
}
