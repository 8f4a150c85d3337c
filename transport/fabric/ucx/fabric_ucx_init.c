/* fabric_ucx_init.c - opens UCX for the fabric: configuration, and errors that people
 * understand.
 *
 * UCX answers a wrong device and a wrong transport alike, with UCS_ERR_NO_DEVICE and lines on
 * stderr about neither. So both are checked before: the device with the kernel, the
 * transports with UCT, which lists what is there. What UCX complains about during the rest of
 * the opening is caught and becomes the end of why[]. Later on, what it says on this thread is
 * dropped: each such line (with advice about somaxconn, for one) accompanies a failure that
 * on_peer_down reports, and that may be as ordinary as a peer's exit. UCX's own thread, which
 * accepts connections, still writes to stderr, and so does all with UCX_LOG_LEVEL set. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <ucs/debug/log_def.h>
#include <uct/api/uct.h>

#include "transport/fabric/ucx/fabric_ucx_priv.h"

enum { TL_MAX = 64 };

/* A transport as UCT knows it, on the wanted device or on none of the network's. */
struct tl {
    char name[UCT_TL_NAME_MAX];
    bool here; /* on the configured device */
};

struct ucx_transports {
    struct tl tl[TL_MAX];
    unsigned n;
};

int ucx_errno(ucs_status_t st)
{
    static const struct {
        ucs_status_t st;
        int err;
    } rows[] = {
        {UCS_OK, 0},
        {UCS_ERR_NO_MEMORY, -ENOMEM},
        {UCS_ERR_INVALID_PARAM, -EINVAL},
        {UCS_ERR_INVALID_ADDR, -EINVAL},
        {UCS_ERR_NO_DEVICE, -ENODEV},
        {UCS_ERR_UNREACHABLE, -EHOSTUNREACH},
        {UCS_ERR_CANCELED, -ECANCELED},
        {UCS_ERR_CONNECTION_RESET, -ECONNRESET},
        {UCS_ERR_NOT_CONNECTED, -ENOTCONN},
        {UCS_ERR_TIMED_OUT, -ETIMEDOUT},
        {UCS_ERR_ENDPOINT_TIMEOUT, -ETIMEDOUT},
        {UCS_ERR_REJECTED, -ECONNREFUSED},
        {UCS_ERR_UNSUPPORTED, -EOPNOTSUPP},
        {UCS_ERR_BUSY, -EADDRINUSE},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].st == st)
            return rows[i].err;
    return -EIO;
}

/* --- what UCX has to say ---------------------------------------------------------- */

static _Thread_local bool ours;   /* this thread has opened the fabric */
static _Thread_local char *heard; /* NULL: not listening */
static bool verbose;              /* UCX_LOG_LEVEL is set: show all that UCX says */

static ucs_log_func_rc_t on_log(const char *file, unsigned line, const char *function,
                                ucs_log_level_t level, const ucs_log_component_config_t *comp_conf,
                                const char *message, va_list ap)
{
    va_list copy;

    if (!ours || level > UCS_LOG_LEVEL_WARN || level == UCS_LOG_LEVEL_FATAL)
        return UCS_LOG_FUNC_RC_CONTINUE;
    if (heard && !*heard) { /* the first complaint is the cause, the rest follow from it */
        va_copy(copy, ap);
        vsnprintf(heard, NET_WHY_MAX, message, copy);
        va_end(copy);
    }
    return verbose ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

static void listen_start(char *buf)
{
    static bool pushed;

    if (!pushed)
        ucs_log_push_handler(on_log);
    pushed = true;
    verbose = getenv("UCX_LOG_LEVEL") != NULL;
    ours = true;
    buf[0] = '\0';
    heard = buf;
}

static void listen_stop(char **buf)
{
    heard = NULL;
}

/* "X: what UCX calls it: what UCX printed" */
static int explain_ucx(char *why, const char *what, ucs_status_t st)
{
    bool more = heard && *heard;

    net_explain(why, "%s: %s%s%s", what, ucs_status_string(st), more ? ": " : "",
                more ? heard : "");
    return ucx_errno(st);
}

/* --- the transports ---------------------------------------------------------------------- */

static void tls_add(struct ucx_transports *tls, const uct_tl_resource_desc_t *desc, const char *dev)
{
    bool here = !strcmp(desc->dev_name, dev);

    if (desc->dev_type == UCT_DEVICE_TYPE_NET && !here)
        return;
    for (unsigned i = 0; i < tls->n; i++) {
        if (!strcmp(tls->tl[i].name, desc->tl_name))
            return;
    }
    if (tls->n == TL_MAX)
        return;
    strcpy(tls->tl[tls->n].name, desc->tl_name);
    tls->tl[tls->n++].here = here;
}

static void tls_of_md(struct ucx_transports *tls, uct_component_h comp, const char *md_name,
                      const char *dev)
{
    uct_tl_resource_desc_t *descs;
    uct_md_config_t *config;
    ucs_status_t st;
    uct_md_h md;
    unsigned n;

    if (uct_md_config_read(comp, NULL, NULL, &config) != UCS_OK)
        return;
    st = uct_md_open(comp, md_name, config, &md);
    uct_config_release(config);
    if (st != UCS_OK)
        return;
    if (uct_md_query_tl_resources(md, &descs, &n) == UCS_OK) {
        for (unsigned i = 0; i < n; i++)
            tls_add(tls, &descs[i], dev);
        uct_release_tl_resource_list(descs);
    }
    uct_md_close(md);
}

static void tls_of_component(struct ucx_transports *tls, uct_component_h comp, const char *dev)
{
    uct_component_attr_t attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT};

    if (uct_component_query(comp, &attr) != UCS_OK || attr.md_resource_count == 0)
        return;
    attr.md_resources = calloc(attr.md_resource_count, sizeof(*attr.md_resources));
    if (!attr.md_resources)
        return;
    attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    if (uct_component_query(comp, &attr) == UCS_OK) {
        for (unsigned i = 0; i < attr.md_resource_count; i++)
            tls_of_md(tls, comp, attr.md_resources[i].md_name, dev);
    }
    free(attr.md_resources);
}

static void tls_find(struct ucx_transports *tls, const char *dev)
{
    uct_component_h *comps;
    unsigned n;

    tls->n = 0;
    if (uct_query_components(&comps, &n) != UCS_OK)
        return;
    for (unsigned i = 0; i < n; i++)
        tls_of_component(tls, comps[i], dev);
    uct_release_component_list(comps);
}

/* UCX_TLS also takes names for families. */
static bool tl_matches(const char *word, const char *tl)
{
    static const struct {
        const char *family, *prefix;
    } families[] = {
        {"all", ""},      {"rc", "rc_"},     {"ud", "ud_"},     {"dc", "dc_"},
        {"ib", "rc_"},    {"ib", "ud_"},     {"ib", "dc_"},     {"rc_x", "rc_mlx5"},
        {"rc_v", "rc_v"}, {"ud_x", "ud_ml"}, {"ud_v", "ud_v"},  {"dc_x", "dc_mlx5"},
        {"sm", "posix"},  {"sm", "sysv"},    {"shm", "posix"},  {"shm", "sysv"},
        {"mm", "posix"},  {"mm", "sysv"},    {"cuda", "cuda_"}, {"rocm", "rocm_"},
    };

    if (!strcmp(word, tl))
        return true;
    for (unsigned i = 0; i < ARRAY_LEN(families); i++) {
        if (!strcmp(word, families[i].family) &&
            !strncmp(tl, families[i].prefix, strlen(families[i].prefix)))
            return true;
    }
    return false;
}

static void explain_tl(char *why, const struct ucx_transports *tls, const char *word,
                       const char *dev)
{
    char names[160] = "";

    for (int here = 1; here >= 0; here--) {
        for (unsigned i = 0; i < tls->n; i++) {
            if (tls->tl[i].here == here)
                net_append(names, sizeof(names), "%s%s", *names ? ", " : "", tls->tl[i].name);
        }
    }
    net_explain(
        why, "transport.ucx_tls: UCX has no transport \"%.20s\" on device %.20s (allowed here: %s)",
        word, dev, *names ? names : "none");
}

static int check_tls(const char *list, const char *dev, char *why)
{
    char copy[128], *save, *word;
    struct ucx_transports tls;

    if (!*list || strlen(list) >= sizeof(copy)) {
        net_explain(why, "transport.ucx_tls: %s", *list ? "too long" : "empty");
        return -EINVAL;
    }
    tls_find(&tls, dev);
    strcpy(copy, list);
    for (word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        unsigned i = 0;

        while (i < tls.n && !tl_matches(word, tls.tl[i].name))
            i++;
        if (i == tls.n) {
            explain_tl(why, &tls, word, dev);
            return -ENODEV;
        }
    }
    return 0;
}

/* --- context and worker ------------------------------------------------------------------ */

static bool list_has(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (; *list; list += strcspn(list, ","), list += *list == ',') {
        if (strcspn(list, ",") == len && !strncmp(list, word, len))
            return true;
    }
    return false;
}

static int set(ucp_config_t *config, const char *key, const char *value, char *why)
{
    ucs_status_t st = value ? ucp_config_modify(config, key, value) : UCS_OK;

    if (st == UCS_OK)
        return 0;
    net_explain(why, "UCX does not take %s=%.60s: %s", key, value, ucs_status_string(st));
    return ucx_errno(st);
}

/* The keys of UCT's tcp. Before 1.17 they go by the name without TCP_, and the full one is
 * ignored; since then it is the other way round. */
static int configure_tcp(ucp_config_t *config, const struct fabric_conf *conf,
                         const struct fabric_ucx_tuning *tuning, char *why)
{
    const struct {
        const char *key, *value;
    } rows[] = {
        {"TCP_TX_SEG_SIZE", tuning->seg_size},
        {"TCP_RX_SEG_SIZE", tuning->seg_size},
        {"TCP_KEEPIDLE", "5s"},
        {"TCP_KEEPINTVL", "1s"},
        {"TCP_KEEPCNT", "3"},
        {"TCP_PORT_RANGE", conf->port_range},
    };
    unsigned major, minor, release, skip;
    int r = 0;

    ucp_get_version(&major, &minor, &release);
    skip = major == 1 && minor < 17 ? strlen("TCP_") : 0;
    for (unsigned i = 0; i < ARRAY_LEN(rows) && r == 0; i++)
        r = set(config, rows[i].key + skip, rows[i].value, why);
    return r;
}

static int configure(ucp_config_t *config, const struct fabric_conf *conf,
                     const struct fabric_ucx_tuning *tuning, char *why)
{
    const struct {
        const char *key, *value;
    } rows[] = {
        {"TLS", conf->tls},
        {"NET_DEVICES", conf->device},
        {"SOCKADDR_TLS_PRIORITY", "tcp"}, /* the default tries rdmacm first */
        {"MAX_EAGER_RAILS", "1"},         /* one lane keeps the order */
        {"MAX_RNDV_RAILS", "1"},
        /* No active message without a copy: when the peer dies while one is half written,
         * uct_tcp_ep_sendv() completes it twice and UCX aborts the process (1.13.1: with
         * kill -9 nearly each time; master still has the lines). */
        {"ZCOPY_THRESH", "inf"},
        {"KEEPALIVE_INTERVAL", "1s"}, /* finds endpoints that the peer has closed */
    };
    int r = 0;

    for (unsigned i = 0; i < ARRAY_LEN(rows) && r == 0; i++)
        r = set(config, rows[i].key, rows[i].value, why);
    if (r == 0 && (list_has(conf->tls, "tcp") || list_has(conf->tls, "all")))
        r = configure_tcp(config, conf, tuning, why);
    return r;
}

static int open_context(struct ucx *u, const struct fabric_conf *conf,
                        const struct fabric_ucx_tuning *tuning, char *why)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        /* RMA: else announced bodies go as active messages and not by PUT, see ZCOPY_THRESH */
        .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 0,
        .estimated_num_eps = 8,
    };
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    ucp_config_t *config;
    ucs_status_t st;
    int r;

    st = ucp_config_read(NULL, NULL, &config);
    if (st != UCS_OK)
        return explain_ucx(why, "UCX cannot read its configuration", st);
    r = configure(config, conf, tuning, why);
    if (r == 0) {
        st = ucp_init(&params, config, &u->ctx);
        if (st != UCS_OK)
            r = explain_ucx(why, "UCX cannot be opened", st);
    }
    ucp_config_release(config);
    if (r)
        return r;
    st = ucp_context_query(u->ctx, &attr);
    if (st != UCS_OK)
        return explain_ucx(why, "UCX context", st);
    u->req_space = attr.request_size;
    return 0;
}

static int set_handler(struct ucx *u, unsigned id, ucp_am_recv_callback_t cb, char *why)
{
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .cb = cb,
        .arg = u,
    };
    ucs_status_t st = ucp_worker_set_am_recv_handler(u->worker, &params);

    return st == UCS_OK ? 0 : explain_ucx(why, "UCX active message handler", st);
}

static int open_worker(struct ucx *u, const struct fabric_conf *conf, char *why)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
        .events = UCP_WAKEUP_RX | UCP_WAKEUP_TX | UCP_WAKEUP_AMO | UCP_WAKEUP_RMA,
    };
    ucs_status_t st;
    int r;

    st = ucp_worker_create(u->ctx, &params, &u->worker);
    if (st != UCS_OK) {
        u->worker = NULL;
        if (conf->port_range && (st == UCS_ERR_BUSY || st == UCS_ERR_IO_ERROR)) {
            net_explain(why, "transport.port_range: no free TCP port in %.40s on device %.20s",
                        conf->port_range, conf->device);
            return -EADDRINUSE;
        }
        return explain_ucx(why, "UCX worker", st);
    }
    r = set_handler(u, AM_HELLO, ucx_on_hello, why);
    if (r == 0)
        r = set_handler(u, AM_DATA, ucx_on_data, why);
    if (r)
        return r;
    st = ucp_worker_get_efd(u->worker, &u->efd);
    return st == UCS_OK ? 0 : explain_ucx(why, "UCX wake-up descriptor", st);
}

/* UCX has no option for congestion control, and does not show its sockets; but the engine's process
 * has no other TCP sockets. One that listens hands the setting on to those that it accepts. */
static bool is_tcp(int fd)
{
    int protocol = 0;
    socklen_t len = sizeof(protocol);

    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == IPPROTO_TCP;
}

void ucx_sockets_tune(const char *wish)
{
    struct dirent *entry;
    DIR *dir;

    if (!strcmp(wish, "system"))
        return;
    dir = opendir("/proc/self/fd");
    if (!dir)
        return;
    while ((entry = readdir(dir))) {
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] != '.' && is_tcp(fd))
            net_congestion_take(fd, wish);
    }
    closedir(dir);
}

int ucx_open(struct ucx *u, const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
             char why[256])
{
    char said[NET_WHY_MAX];
    _cleanup_(listen_stop) char *listening _unused_ = said;
    int r;

    r = net_check_device(conf->device, why);
    if (r)
        return r;
    listen_start(said);
    r = check_tls(conf->tls, conf->device, why);
    if (r == 0) {
        said[0] = '\0'; /* devices that could not be asked are no news */
        r = open_context(u, conf, tuning, why);
    }
    if (r == 0)
        r = open_worker(u, conf, why);
    if (r == 0)
        r = net_congestion_settle(u->congestion, -1, why);
    if (r == 0)
        ucx_sockets_tune(u->congestion);
    if (r)
        return r;
    if (*said)
        net_explain(why, "%s", said);
    /* UCX goes on without what it cannot parse: not pinning the ports is no detail. */
    return strncasecmp(said, "invalid ", 8) ? 0 : -EINVAL;
}

void ucx_close(struct ucx *u)
{
    if (u->worker)
        ucp_worker_destroy(u->worker);
    if (u->ctx)
        ucp_cleanup(u->ctx);
}
