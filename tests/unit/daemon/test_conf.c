/* The configuration: what a file means, where it may come from, and that the documentation is
 * complete. The texts of its errors: test_conf_errors.c. */
#include "shm/model/plan.h"
#include "tests/unit/daemon/conf_helper.h"

static void check_row(const struct conf *conf, const char *key, const char *value,
                      const char *source)
{
    struct conf_row row;

    for (unsigned i = 0; conf_row(conf, i, &row); i++)
        if (!strcmp(row.key, key)) {
            assert_string_equal(row.value, value);
            assert_string_equal(row.source, source);
            return;
        }
    fail_msg("no row %s", key);
}

/* --- what is valid --- */

static void empty_file_is_one_node_with_defaults(void **state)
{
    static const char *const empty[] = {
        "", "\n", "# nothing\n", "---\n", "--- ~\n", "log:\n", "cluster: ~\nlimits: null\n", "{}"};

    for (unsigned i = 0; i < ARRAY_LEN(empty); i++) {
        struct conf *conf = load_ok(empty[i]);

        assert_string_equal(conf->file, F);
        assert_string_equal(conf->cluster, "commd");
        assert_string_equal(conf->node, host());
        assert_string_equal(conf->key_file, COMMD_SYSCONFDIR "/commd/cluster.key");
        assert_string_equal(conf->authentication, "key");
        assert_true(conf_proves_by_key(conf) && !conf_proves_by_certificate(conf));
        assert_string_equal(conf->certificate, COMMD_SYSCONFDIR "/commd/node.crt");
        assert_string_equal(conf->certificate_key, COMMD_SYSCONFDIR "/commd/node.key");
        assert_string_equal(conf->ca, COMMD_SYSCONFDIR "/commd/ca.crt");
        assert_string_equal(conf->crl, "");
        assert_int_equal(conf->nnodes, 1);
        assert_int_equal(conf->self, 0);
        assert_string_equal(conf->nodes[0].name, host());
        assert_string_equal(conf->nodes[0].address, "127.0.0.1");
        assert_int_equal(conf->nodes[0].port, CONF_DEFAULT_PORT);
        assert_string_equal(conf->socket, "/run/commd/commd.sock");
        assert_int_equal(conf->socket_mode, 0666);
        assert_string_equal(conf->pid_file, "");
        assert_string_equal(conf->http, "");
        assert_string_equal(conf->device, "");
        assert_string_equal(conf->fabric, "auto");
        assert_string_equal(conf_fabric(conf), "tcp");
        assert_string_equal(conf->ucx_tls, "tcp");
        assert_string_equal(conf->port_range, "18500-18599");
        assert_int_equal(conf->channels, 1);
        assert_int_equal(conf->latency_us, 30);
        assert_int_equal(conf->bandwidth, 1 << 30);
        assert_string_equal(conf->congestion, "auto");
        assert_string_equal(conf->encryption, "auto");
        assert_string_equal(conf->encryption_threads, "auto");
        assert_false(conf->trusted_network);
        assert_string_equal(conf->engine, COMMD_LIBEXECDIR "/commd-engine");
        assert_string_equal(conf->engine_pid_file, "");
        assert_string_equal(conf->gpu_enabled, "auto");
        assert_string_equal(conf->cuda_library, "");
        assert_string_equal(conf->nccl_library, "");
        assert_string_equal(conf->nccl_env, "");
        assert_false(conf->nodes_share_gpus);
        assert_int_equal(conf->gpu_part, 1 << 30);
        assert_int_equal(conf->gpu_timeout_ms, 30000);
        assert_true(conf->gpu_landlock);
        assert_string_equal(conf->gpu_program, COMMD_LIBEXECDIR "/commd-gpu");
        assert_string_equal(conf->gpu_pid_file, "");
        assert_int_equal(conf->heartbeat_ms, 500);
        assert_int_equal(conf->node_timeout_ms, 3000);
        assert_int_equal(conf->restart_timeout_ms, 10000);
        assert_int_equal(conf->progress_timeout_ms, 5000);
        assert_int_equal(conf->join_timeout_ms, 1800000);
        assert_int_equal(conf->max_clients, 1024);
        assert_int_equal(conf->max_clients_per_user, 512);
        assert_int_equal(conf->max_groups, 4096);
        assert_int_equal(conf->max_groups_per_user, 2048);
        assert_true(conf->max_board_bytes == UINT64_C(128) << 30);
        assert_true(conf->max_board_bytes_per_user == UINT64_C(64) << 30);
        assert_string_equal(conf->weights, "");
        assert_string_equal(conf->subuid_file, "/etc/subuid");
        assert_int_equal(conf_weight(conf, 0), 0);
        assert_int_equal(conf->log_level, CONF_LOG_INFO);
        conf_free(conf);
    }
}

static void every_key_reaches_its_field(void **state)
{
    struct conf *conf = load_ok(
        "cluster:\n"
        "  name: lab-1\n"
        "  node: b\n"
        "  key_file: $CREDENTIALS_DIRECTORY/cluster.key\n"
        "  authentication: both\n"
        "  certificate: /a/crt\n"
        "  certificate_key: $CREDENTIALS_DIRECTORY/node.key\n"
        "  ca: /a/ca\n"
        "  crl: /a/crl\n"
        "  nodes:\n"
        "    - {name: c, address: \"::1\"}\n"
        "    - {name: b, address: 127.0.0.2, port: 7000}\n"
        "    - name: a\n"
        "      address: localhost\n"
        "      port: \"7001\"\n"
        "listen: {socket: /a/s, socket_mode: 660, pid_file: /a/p, "
        "http: '[::1]:80'}\n"
        "transport: {device: 'mlx5_0:1', fabric: ucx, ucx_tls: 'rc,ud', "
        "port_range: 20000-20009, channels: 1, latency_us: 7, bandwidth: "
        "12G, congestion_control: a-15_byte_name9, encryption: off, encryption_threads: 16,\n"
        "  trusted_network: true,\n"
        "  engine: /a/e, engine_pid_file: /a/ep}\n"
        "gpu: {enabled: yes, cuda_library: /a/c, nccl_library: /a/n, "
        "nccl_env: 'NCCL_SOCKET_IFNAME==lo NCCL_NET=Socket', "
        "nodes_share_gpus: true, part: 65536, timeout: 2m, landlock: false, "
        "program: /a/g, pid_file: /a/gp}\n"
        "timeouts: {heartbeat: 100ms, node: 2s, progress: 1m, join: 2h}\n"
        "limits: {max_clients: 1, max_clients_per_user: 2, max_groups: 3,"
        " max_groups_per_user: 4, max_board_bytes: 5M,"
        " weights: '1001=30,0=1,4294967294=1000'}\n"
        "log: {level: debug}\n");
    char address[CONF_ADDR_MAX];
    uint16_t port;

    assert_string_equal(conf->cluster, "lab-1");
    assert_string_equal(conf->node, "b");
    assert_string_equal(conf->key_file, "$CREDENTIALS_DIRECTORY/cluster.key");
    assert_string_equal(conf->authentication, "both");
    assert_true(conf_proves_by_key(conf) && conf_proves_by_certificate(conf));
    assert_string_equal(conf->certificate, "/a/crt");
    assert_string_equal(conf->certificate_key, "$CREDENTIALS_DIRECTORY/node.key");
    assert_string_equal(conf->ca, "/a/ca");
    assert_string_equal(conf->crl, "/a/crl");
    assert_int_equal(conf->nnodes, 3);
    assert_string_equal(conf->nodes[0].name, "a"); /* sorted */
    assert_string_equal(conf->nodes[0].address, "localhost");
    assert_int_equal(conf->nodes[0].port, 7001);
    assert_string_equal(conf->nodes[1].name, "b");
    assert_string_equal(conf->nodes[1].address, "127.0.0.2");
    assert_int_equal(conf->nodes[1].port, 7000);
    assert_string_equal(conf->nodes[2].address, "::1");
    assert_int_equal(conf->nodes[2].port, CONF_DEFAULT_PORT);
    assert_int_equal(conf->self, 1);
    assert_string_equal(conf->socket, "/a/s");
    assert_int_equal(conf->socket_mode, 0660);
    assert_string_equal(conf->pid_file, "/a/p");
    assert_string_equal(conf->http, "[::1]:80");
    assert_true(conf_http(conf, address, &port));
    assert_string_equal(address, "::1");
    assert_int_equal(port, 80);
    assert_string_equal(conf->device, "mlx5_0:1");
    assert_string_equal(conf->fabric, "ucx");
    assert_string_equal(conf->ucx_tls, "rc,ud");
    assert_string_equal(conf->port_range, "20000-20009");
    assert_int_equal(conf->latency_us, 7);
    assert_true(conf->bandwidth == UINT64_C(12) << 30);
    assert_int_equal(conf_net(conf).latency_us, 7);
    assert_int_equal(conf_net(conf).mbytes_s, 12 << 10);
    assert_string_equal(conf->congestion, "a-15_byte_name9");
    assert_string_equal(conf->encryption, "off");
    assert_string_equal(conf->encryption_threads, "16");
    assert_true(conf->trusted_network);
    assert_string_equal(conf->engine, "/a/e");
    assert_string_equal(conf->engine_pid_file, "/a/ep");
    assert_string_equal(conf->gpu_enabled, "yes");
    assert_string_equal(conf->cuda_library, "/a/c");
    assert_string_equal(conf->nccl_library, "/a/n");
    assert_string_equal(conf->nccl_env, "NCCL_SOCKET_IFNAME==lo NCCL_NET=Socket");
    assert_true(conf->nodes_share_gpus);
    assert_int_equal(conf->gpu_part, 64 << 10);
    assert_int_equal(conf->gpu_timeout_ms, 120000);
    assert_false(conf->gpu_landlock);
    assert_string_equal(conf->gpu_program, "/a/g");
    assert_string_equal(conf->gpu_pid_file, "/a/gp");
    assert_int_equal(conf->heartbeat_ms, 100);
    assert_int_equal(conf->node_timeout_ms, 2000);
    assert_int_equal(conf->progress_timeout_ms, 60000);
    assert_int_equal(conf->join_timeout_ms, 7200000);
    assert_int_equal(conf->max_clients, 1);
    assert_int_equal(conf->max_clients_per_user, 2);
    assert_int_equal(conf->max_groups, 3);
    assert_int_equal(conf->max_groups_per_user, 4);
    assert_true(conf->max_board_bytes == UINT64_C(5) << 20);
    assert_int_equal(conf_weight(conf, 1001), 30);
    assert_int_equal(conf_weight(conf, 0), 1);
    assert_int_equal(conf_weight(conf, UINT32_MAX - 1), 1000);
    assert_int_equal(conf_weight(conf, 1002), 0);
    assert_int_equal(conf->log_level, CONF_LOG_DEBUG);
    conf_free(conf);
}

static void rows_say_value_and_source(void **state)
{
    struct conf *conf = load_ok("timeouts:\n"
                                "  node: 4000ms\n"
                                "limits: {max_board_bytes: 2048M}\n"
                                "cluster:\n"
                                "  node: a\n"
                                "  nodes: [{name: b, address: '::1'}, {name: a, address: "
                                "127.0.0.1}]\n");
    struct conf_row row;
    unsigned n = 0;

    check_row(conf, "timeouts.node", "4s", F ":2");
    check_row(conf, "timeouts.heartbeat", "500ms", "default");
    check_row(conf, "limits.max_board_bytes", "2G", F ":3");
    check_row(conf, "cluster.nodes", "a 127.0.0.1:18400, b [::1]:18400", F ":6");
    check_row(conf, "listen.socket_mode", "0666", "default");
    check_row(conf, "transport.trusted_network", "false", "default");
    check_row(conf, "log.level", "info", "default");
    for (; conf_row(conf, n, &row); n++) {
        assert_true(row.help && row.help[0]);
        if (!strcmp(row.source, "default"))
            assert_string_equal(row.value, row.fallback);
    }
    assert_int_equal(n, 50);
    assert_false(conf_row(conf, UINT32_MAX, &row));
    conf_free(conf);
}

static void gpu_service_is_for_nodes_with_gpus(void **state)
{
    static const struct {
        const char *text;
        bool driver, wanted;
    } cases[] = {
        {"", false, false},
        {"", true, true},
        {"gpu: {enabled: auto}\n", true, true},
        {"gpu: {enabled: yes}\n", false, true},
        {"gpu: {enabled: no}\n", true, false},
        {"gpu: {cuda_library: /c}\n", false, true},
        {"gpu: {enabled: no, cuda_library: /c}\n", true, false},
    };

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct conf *conf = load_ok(cases[i].text);
        const char *why = NULL;

        assert_int_equal(conf_gpu(conf, cases[i].driver, &why), cases[i].wanted);
        assert_int_equal(why == NULL, cases[i].wanted);
        conf_free(conf);
    }
}

static void old_name_is_taken_and_said(void **state)
{
    struct conf *conf = load_ok("transport:\n  tls: 'rc,ud'\n");
    struct conf *same = load_ok("transport: {ucx_tls: 'rc,ud'}\n");
    char buf[64];

    assert_string_equal(conf->ucx_tls, "rc,ud");
    check_row(conf, "transport.ucx_tls", "rc,ud", F ":2, by its old name transport.tls");
    check_row(same, "transport.ucx_tls", "rc,ud", F ":1");
    conf_not_reloadable(conf, same, buf, sizeof(buf));
    assert_string_equal(buf, "");
    conf_free(conf);
    conf_free(same);
}

static void long_node_list_is_cut_with_its_count(void **state)
{
    char text[65536] = "cluster:\n  node: n0001\n  nodes:\n", expected[256] = "";
    size_t at = strlen(text), e = 0;
    struct conf_row row;
    struct conf *conf;

    for (unsigned i = 1; i <= CONF_MAX_NODES; i++)
        at += (size_t)sprintf(text + at, "  - {name: n%04u, address: 127.0.0.1, port: %u}\n", i, i);
    conf = load_ok(text);
    assert_int_equal(conf->nnodes, CONF_MAX_NODES);
    assert_true(conf_row(conf, 8, &row));
    assert_string_equal(row.key, "cluster.nodes");
    for (unsigned i = 1; e + 40 < sizeof(row.value); i++)
        e += (size_t)sprintf(expected + e, "%sn%04u 127.0.0.1:%u", i > 1 ? ", " : "", i, i);
    assert_memory_equal(row.value, expected, e);
    assert_non_null(strstr(row.value, ", ... (1024 nodes)"));
    conf_free(conf);
}

/* Nodes take a change one after the other, so each step has to fit what is beside it. */
static void encryption_changes_by_way_of_auto(void **state)
{
    static const char nodes[] = "cluster: {node: a, nodes: [{name: a, address: 127.0.0.1}, "
                                "{name: b, address: 127.0.0.2}]}\n";
    static const char *const words[] = {"off", "auto", "on"};
    char *error, text[2][256];

    for (unsigned from = 0; from < 3; from++)
        for (unsigned to = 0; to < 3; to++) {
            bool jumps = from + to == 2 && from != to;
            struct conf *conf[2];

            for (unsigned i = 0; i < 2; i++) {
                sprintf(text[i], "%stransport: {encryption: %s}\n", nodes, words[i ? to : from]);
                conf[i] = load_ok(text[i]);
            }
            error = NULL;
            assert_int_equal(conf_check_change(conf[0], conf[1], &error), jumps ? -EINVAL : 0);
            assert_int_equal(error != NULL, jumps);
            if (from == to) { /* and where nobody knows what the engine has */
                assert_int_equal(conf_check_change(NULL, conf[1], &error), to == 1 ? 0 : -EINVAL);
                assert_true(to == 1 || strstr(error, "which may be \"o"));
                free(error);
                error = NULL;
            }
            if (jumps && from == 2)
                assert_string_equal(
                    error, F ":2: transport.encryption goes from \"on\" to \"off\" at once, and "
                             "nodes that are still at \"on\" would refuse this one; first auto on "
                             "all nodes, and when their engines have taken it, off: "
                             "doc/operations.md, \"Encryption on or off\"");
            free(error);
            conf_free(conf[0]);
            conf_free(conf[1]);
        }
}

static void reload_names_what_needs_a_restart(void **state)
{
    struct conf *a = load_ok("log: {level: info}");
    struct conf *b = load_ok("log: {level: debug}\nlimits: {max_clients: 9, max_groups: 9}\n"
                             "timeouts: {heartbeat: 100ms, join: 1h}");
    struct conf *c = load_ok("listen: {socket: /x}\nlog: {level: warn}\n"
                             "transport: {trusted_network: true}\n"
                             "cluster: {node: a, nodes: [{name: a, address: '::1'}]}");
    char buf[256] = "x", tiny[10];

    conf_not_reloadable(a, a, buf, sizeof(buf));
    assert_string_equal(buf, "");
    conf_not_reloadable(a, b, buf, sizeof(buf));
    assert_string_equal(buf, "");
    conf_not_reloadable(a, c, buf, sizeof(buf));
    assert_string_equal(buf,
                        "cluster.node, cluster.nodes, listen.socket, transport.trusted_network");
    conf_not_reloadable(a, c, tiny, sizeof(tiny));
    assert_string_equal(tiny, "cluster.n");
    assert_int_equal(conf_keep(c, a), 0);
    conf_changes(a, c, buf, sizeof(buf));
    assert_string_equal(buf, "log.level");
    assert_int_equal(c->nnodes, 1);
    assert_string_equal(c->nodes[c->self].name, a->node);
    check_row(c, "listen.socket", a->socket, "default");
    conf_changes(a, a, buf, sizeof(buf));
    assert_string_equal(buf, "");
    conf_changes(a, b, buf, sizeof(buf));
    assert_string_equal(buf, "timeouts.heartbeat, timeouts.join, limits.max_clients, "
                             "limits.max_clients_per_user, limits.max_groups, "
                             "limits.max_groups_per_user, log.level");
    conf_free(a);
    conf_free(b);
    conf_free(c);
}

static void reload_sees_a_changed_node(void **state)
{
    static const char *const texts[] = {
        "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: b, address: 127.0.0.1}]}",
        "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: c, address: 127.0.0.1}]}",
        "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: b, address: 127.0.0.2}]}",
        "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: b, address: 127.0.0.1, "
        "port: 9}]}",
        "cluster: {node: a, nodes: [{name: a, address: '::1'}]}",
    };
    struct conf *first = load_ok(texts[0]);
    char buf[64];

    for (unsigned i = 0; i < ARRAY_LEN(texts); i++) {
        struct conf *other = load_ok(texts[i]);

        conf_not_reloadable(first, other, buf, sizeof(buf));
        assert_string_equal(buf, i ? "cluster.nodes" : "");
        conf_free(other);
    }
    conf_free(first);
}

/* --- the file --- */

static void check_file_error(const char *path, int expected_r, const char *fmt, ...) _printf_(3, 4);

static void check_file_error(const char *path, int expected_r, const char *fmt, ...)
{
    struct conf *conf = NULL;
    char *error = NULL, expected[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(expected, sizeof(expected), fmt, args);
    va_end(args);
    assert_int_equal(conf_load(path, NULL, 0, &conf, &error), expected_r);
    assert_non_null(error);
    assert_string_equal(error, expected);
    free(error);
}

static void file_is_read(void **state)
{
    struct files *files = *state;
    struct conf *conf = NULL;
    char *error = NULL, source[160];

    write_file(files->path, "log:\n  level: warn\n", 19, 0600);
    assert_int_equal(conf_load(files->path, NULL, 0, &conf, &error), 0);
    assert_int_equal(conf->log_level, CONF_LOG_WARN);
    assert_string_equal(conf->file, files->path);
    snprintf(source, sizeof(source), "%s:2", files->path);
    check_row(conf, "log.level", "warn", source);
    conf_free(conf);
    write_file(files->path, "log: 1\n", 7, 0600);
    check_file_error(files->path, -EINVAL,
                     "%s:1:6: log is text, which is the wrong type; allowed: a map of level",
                     files->path);
}

static void file_cannot_be_read(void **state)
{
    struct files *files = *state;
    char *big = calloc(1, CONF_MAX_BYTES + 1), name[CONF_PATH_MAX + 1];

    assert_non_null(big);
    check_file_error(files->path, -ENOENT,
                     "%s: cannot open: No such file or directory (give the path with --config "
                     "FILE; an empty file is valid and means one node with all defaults)",
                     files->path);
    check_file_error(files->dir, -EINVAL, "%s: not a regular file; allowed: a regular file",
                     files->dir);
    assert_int_equal(mkfifo(files->path, 0600), 0); /* must not block */
    check_file_error(files->path, -EINVAL, "%s: not a regular file; allowed: a regular file",
                     files->path);
    write_file(files->path, big, CONF_MAX_BYTES + 1, 0600);
    check_file_error(files->path, -EINVAL, "%s: too large; allowed: at most 1048576 bytes",
                     files->path);
    memset(name, 'a', CONF_PATH_MAX);
    name[CONF_PATH_MAX] = '\0';
    check_file_error(name, -ENAMETOOLONG, "%s: path too long; allowed: at most 255 bytes", name);
    if (geteuid() != 0) { /* root opens everything */
        write_file(files->path, "", 0, 0);
        check_file_error(files->path, -EACCES,
                         "%s: cannot open: Permission denied (it must be readable for the user "
                         "that runs commd)",
                         files->path);
    }
    free(big);
}

/* --- the documentation --- */

static char *read_source(const char *name)
{
    const char *srcdir = getenv("srcdir"); /* set by automake's test driver */
    char path[512], *text = calloc(1, 2 * 65536);
    FILE *f;

    assert_non_null(text);
    snprintf(path, sizeof(path), "%s/%s", srcdir ? srcdir : ".", name);
    f = fopen(path, "re");
    if (!f)
        fail_msg("%s: %s (run from the top, or set srcdir)", path, strerror(errno));
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}

/* In a text of read_source(), which has room. */
static void replace(char *text, const char *from, const char *to)
{
    size_t len = strlen(from);

    for (char *at = text; (at = strstr(at, from)); at += strlen(to)) {
        memmove(at + strlen(to), at + len, strlen(at + len) + 1);
        memcpy(at, to, strlen(to));
    }
}

/* Removes each '#' that opens a line and has no space behind it. */
static void uncomment(char *text)
{
    bool fresh = true;
    char *to = text;

    for (char *at = text; *at; at++) {
        if (fresh && *at == '#' && at[1] != ' ' && at[1] != '\n') {
            fresh = false;
            continue;
        }
        fresh = *at == '\n' || (fresh && *at == ' ');
        *to++ = *at;
    }
    *to = '\0';
}

static void shipped_file_is_valid_as_it_is(void **state)
{
    char *text = read_source("etc/commd.yaml");
    struct conf *conf = load_ok(text);

    for (unsigned i = 0; i < CONF_MAX_KEYS; i++)
        assert_int_equal(conf->line[i], 0); /* all of it is commented out */
    conf_free(conf);
    free(text);
}

/* Uncommented, the file has each key that exists, no other, and the default as its value. */
static void shipped_file_shows_every_key_and_its_default(void **state)
{
    static const char etc[] = COMMD_SYSCONFDIR "/commd/";
    char *text = read_source("etc/commd.yaml");
    struct conf_row row;
    struct conf *conf;

    uncomment(text);
    replace(text, "HOSTNAME", "a");
    replace(text, "10.0.0.", "127.0.0.");
    replace(text, "/usr/libexec/commd/commd-engine", "/e");
    replace(text, "/usr/libexec/commd/commd-gpu", "/g");
    replace(text, "/etc/commd/", "/");
    conf = load_ok(text);
    for (unsigned i = 0; conf_row(conf, i, &row); i++) {
        if (!strcmp(row.source, "default"))
            fail_msg("etc/commd.yaml lacks %s", row.key);
        if (!strcmp(row.key, "transport.engine"))
            assert_string_equal(row.value, "/e");
        else if (!strcmp(row.key, "gpu.program"))
            assert_string_equal(row.value, "/g");
        else if (!strncmp(row.fallback, etc, strlen(etc)))
            assert_string_equal(row.value, row.fallback + strlen(etc) - 1);
        else if (!strcmp(row.key, "cluster.nodes"))
            assert_string_equal(row.value, "a 127.0.0.1:18400, b 127.0.0.2:18400");
        else if (strcmp(row.key, "cluster.node"))
            assert_string_equal(row.value, row.fallback);
    }
    conf_free(conf);
    free(text);
}

/* Does the line end so? */
static bool says_reload(const char *line)
{
    static const char mark[] = "(reload)";
    size_t len = strcspn(line, "\n");

    return len >= strlen(mark) && !strncmp(line + len - strlen(mark), mark, strlen(mark));
}

/* In the manual each key is an entry of its own: ".It Cm key", below ".Ss section:". What a reload
 * takes is marked there, or the whole section is. */
static void manual_has_every_key_and_no_other(void **state)
{
    char *text = read_source("etc/commd.yaml.5"), *at, *section, item[160];
    struct conf *conf = load_ok("");
    unsigned documented = 0, keys = 0;
    struct conf_row row;

    for (at = text; (at = strstr(at, "\n.It Cm ")); at++)
        documented++;
    for (; conf_row(conf, keys, &row); keys++) {
        int len = snprintf(item, sizeof(item), "\n.It Cm %s", row.key);

        for (at = strstr(text, item); at && !strchr("\n ", at[len]); at = strstr(at + 1, item))
            ;
        if (!at)
            fail_msg("etc/commd.yaml.5 lacks %s", row.key);
        for (section = at; strncmp(section, "\n.Ss ", 5) != 0; section--)
            assert_ptr_not_equal(section, text);
        if (row.reloadable != (says_reload(at + 1) || says_reload(section + 1)))
            fail_msg("etc/commd.yaml.5: %s: whether a reload takes it", row.key);
    }
    assert_int_equal(documented, keys);
    conf_free(conf);
    free(text);
}

/* A smaller limit of the node does not come to mean that one user may have all. */
static void shares_follow_their_limits(void **state)
{
    struct conf *conf = load_ok("limits: {max_groups: 16, max_clients: 8}\n");

    assert_int_equal(conf->max_groups_per_user, 8);
    assert_int_equal(conf->max_clients_per_user, 4);
    conf_free(conf);
    conf = load_ok("limits: {max_groups: 16, max_groups_per_user: 16, max_clients: 1}\n");
    assert_int_equal(conf->max_groups_per_user, 16); /* that is what it says */
    assert_int_equal(conf->max_clients_per_user, 1);
    conf_free(conf);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_follow_their_limits),
        cmocka_unit_test(empty_file_is_one_node_with_defaults),
        cmocka_unit_test(every_key_reaches_its_field),
        cmocka_unit_test(rows_say_value_and_source),
        cmocka_unit_test(gpu_service_is_for_nodes_with_gpus),
        cmocka_unit_test(old_name_is_taken_and_said),
        cmocka_unit_test(long_node_list_is_cut_with_its_count),
        cmocka_unit_test(encryption_changes_by_way_of_auto),
        cmocka_unit_test(reload_names_what_needs_a_restart),
        cmocka_unit_test(reload_sees_a_changed_node),
        cmocka_unit_test_setup_teardown(file_is_read, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(file_cannot_be_read, make_dir, remove_dir),
        cmocka_unit_test(shipped_file_is_valid_as_it_is),
        cmocka_unit_test(shipped_file_shows_every_key_and_its_default),
        cmocka_unit_test(manual_has_every_key_and_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
