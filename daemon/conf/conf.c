/* conf.c - loading the configuration: defaults, then the file, then the rules.
 *
 *   conf_keys.c   the table: one row per key
 *   conf_value.c  text <-> field, by type
 *   conf_read.c   walks the YAML, fills the fields, notes where each value stood
 *   conf_check.c  rules between keys
 *   conf_hint.c   what to say about a key that does not exist
 *   conf_error.c  the list of errors
 *   conf_secret.c the cluster's key, from its own file
 *
 * Either a struct conf comes out that is complete, valid and never changed again (a reload
 * loads another one), or a text that names everything wrong. Nothing is applied here. */
#include "daemon/conf/conf_keys.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "shm/model/plan.h"

static int node_cmp(const void *a, const void *b)
{
    return strcmp(((const struct conf_node *)a)->name, ((const struct conf_node *)b)->name);
}

/* Fills in what is computed and not read: sorts the nodes, and finds this node. */
static int complete_nodes(struct conf *conf)
{
    if (conf->nnodes == 0) {
        conf->nodes = calloc(1, sizeof(*conf->nodes));
        if (!conf->nodes)
            return -ENOMEM;
        memcpy(conf->nodes[0].name, conf->node, sizeof(conf->node));
        strcpy(conf->nodes[0].address, "127.0.0.1");
        conf->nodes[0].port = CONF_DEFAULT_PORT;
        conf->nnodes = 1;
    }
    qsort(conf->nodes, conf->nnodes, sizeof(conf->nodes[0]), node_cmp);
    for (conf->self = 0; conf->self < conf->nnodes; conf->self++)
        if (!strcmp(conf->nodes[conf->self].name, conf->node))
            return 0;
    assert(false); /* conf_check() refuses it */
    return -ENOTRECOVERABLE;
}

static struct conf *conf_new(const char *file)
{
    struct conf *conf = calloc(1, sizeof(*conf));
    char why[CONF_QUOTE_MAX + 64];

    if (!conf)
        return NULL;
    snprintf(conf->file, sizeof(conf->file), "%s", file);
    conf_host_name(conf->node);
    for (unsigned i = 0; i < conf_nkeys; i++) {
        const char *text = conf_keys[i].fallback;
        int r = 0;

        if (text)
            r = conf_value_parse(&conf_keys[i], text, strlen(text), conf, why, sizeof(why));
        assert(r == 0);
        (void)r;
    }
    return conf;
}

static void conf_freep(struct conf **conf)
{
    conf_free(*conf);
}

const char *conf_fabric(const struct conf *conf)
{
    if (strcmp(conf->fabric, "auto"))
        return conf->fabric;
    return strcmp(conf->ucx_tls, "tcp") ? "ucx" : "tcp";
}

bool conf_gpu(const struct conf *conf, bool driver, const char **ret_why)
{
    if (!strcmp(conf->gpu_enabled, "no"))
        *ret_why = "gpu.enabled is no";
    else if (!strcmp(conf->gpu_enabled, "yes") || driver || conf->cuda_library[0])
        return true;
    else
        *ret_why = "no NVIDIA driver is loaded, and gpu.cuda_library is not set";
    return false;
}

uint64_t conf_board_bytes_per_user(const struct conf *conf)
{
    bool given = conf_is_given(conf, "limits.max_board_bytes_per_user");

    return given ? conf->max_board_bytes_per_user
                 : MIN(conf->max_board_bytes_per_user, conf->max_board_bytes / 2);
}

bool conf_ports(const struct conf *conf, unsigned *ret_low, unsigned *ret_high)
{
    return conf_port_range(conf->port_range, ret_low, ret_high);
}

uint32_t conf_weight(const struct conf *conf, uint32_t uid)
{
    struct conf_weight w;

    for (const char *at = conf->weights; *at && conf_next_weight(&at, &w) == NULL;)
        if (w.uid == uid)
            return w.weight;
    return 0;
}

bool conf_http(const struct conf *conf, char ret_address[CONF_ADDR_MAX], uint16_t *ret_port)
{
    return conf->http[0] && conf_listen(conf->http, ret_address, ret_port);
}

struct plan_net conf_net(const struct conf *conf)
{
    return (struct plan_net){
        .latency_us = conf->latency_us,
        .mbytes_s = (uint32_t)(conf->bandwidth >> 20),
    };
}

struct conf *conf_free(struct conf *conf)
{
    if (conf)
        free(conf->nodes);
    free(conf);
    return NULL;
}

/* The whole file, or the reason in @errors. Only regular files: anything else might block
 * or never end. */
static int read_file(const char *file, struct conf_errors *errors, char **ret_text, size_t *ret_len)
{
    static const struct conf_pos whole = {0, 0};
    _cleanup_(close_fdp) int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    _cleanup_(freep) char *text = NULL;
    struct stat st;
    size_t len = 0;
    ssize_t n;
    int r;

    if (fd < 0 || fstat(fd, &st) < 0) {
        r = -errno;
        conf_errors_add(errors, whole, "cannot open: %s (%s)", strerror(-r),
                        r == -EACCES ? "it must be readable for the user that runs commd"
                                     : "give the path with --config FILE; an empty file is "
                                       "valid and means one node with all defaults");
        return r;
    }
    if (!S_ISREG(st.st_mode)) {
        conf_errors_add(errors, whole, "not a regular file; allowed: a regular file");
        return -EINVAL;
    }
    text = malloc(CONF_MAX_BYTES + 1);
    if (!text)
        return -ENOMEM;
    do { /* not st_size: the file may grow meanwhile */
        n = read(fd, text + len, CONF_MAX_BYTES + 1 - len);
        if (n < 0 && errno != EINTR) {
            r = -errno;
            conf_errors_add(errors, whole, "cannot read: %s", strerror(-r));
            return r;
        }
        len += n > 0 ? (size_t)n : 0;
    } while (n != 0 && len <= CONF_MAX_BYTES);
    *ret_text = steal_ptr(text);
    *ret_len = len;
    return 0;
}

static int conf_load_into(struct conf *conf, struct conf_src *src, struct conf_errors *errors,
                          const char *file, const char *text, size_t len)
{
    static const struct conf_pos whole = {0, 0};
    _cleanup_(freep) char *content = NULL;
    int r;

    if (strlen(file) >= sizeof(conf->file)) {
        conf_errors_add(errors, whole, "path too long; allowed: at most %zu bytes",
                        sizeof(conf->file) - 1);
        return -ENAMETOOLONG;
    }
    if (!text) {
        r = read_file(file, errors, &content, &len);
        if (r < 0)
            return r;
        text = content;
    }
    if (len > CONF_MAX_BYTES) {
        conf_errors_add(errors, whole, "too large; allowed: at most %d bytes", CONF_MAX_BYTES);
        return -EINVAL;
    }
    conf_read(conf, src, errors, text, len);
    if (errors->oom)
        return -ENOMEM;
    return errors->n ? -EINVAL : complete_nodes(conf);
}

int conf_load(const char *file, const char *text, size_t len, struct conf **ret_conf,
              char **ret_error)
{
    _cleanup_(conf_freep) struct conf *conf = conf_new(file);
    _cleanup_(conf_errors_fini) struct conf_errors errors = {0};
    struct conf_src src = {.nodes = NULL};
    int r;

    *ret_error = NULL;
    if (!conf)
        return -ENOMEM;
    r = conf_load_into(conf, &src, &errors, file, text, len);
    free(src.nodes);
    if (r == 0) {
        *ret_conf = steal_ptr(conf);
        return 0;
    }
    if (r != -ENOMEM) {
        *ret_error = conf_errors_text(&errors, file);
        if (!*ret_error)
            r = -ENOMEM;
    }
    return r;
}
