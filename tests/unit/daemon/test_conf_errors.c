/* The exact text for each way in which a configuration can be wrong. */
#include "tests/unit/daemon/conf_helper.h"

static void check_error_len(const char *text, size_t len, const char *expected)
{
    struct conf *conf = NULL;
    char *error = NULL;

    assert_int_equal(conf_load(F, text, len, &conf, &error), -EINVAL);
    assert_null(conf);
    assert_non_null(error);
    assert_string_equal(error, expected);
    free(error);
}

static void check_error(const char *text, const char *expected)
{
    check_error_len(text, strlen(text), expected);
}

/* --- keys --- */

static void unknown_keys(void **state)
{
    check_error("timeouts:\n  hearbeat: 1s\n",
                F ":2:3: unknown key \"hearbeat\" in timeouts (did you mean \"heartbeat\"?); "
                  "allowed: heartbeat, node, restart, progress, join");
    check_error("transprot: {}\n",
                F ":1:1: unknown key \"transprot\" at the top (did you mean \"transport\"?); "
                  "allowed: cluster, listen, transport, gpu, timeouts, limits, log");
    check_error("limits: {colour: red}\n",
                F ":1:10: unknown key \"colour\" in limits; allowed: max_clients, "
                  "max_clients_per_user, max_groups, max_groups_per_user, max_board_bytes, "
                  "max_board_bytes_per_user, weights, subuid_file");
    check_error("max_clients: 4\n",
                F ":1:1: unknown key \"max_clients\" at the top (it belongs under "
                  "\"limits:\"); allowed: cluster, listen, transport, gpu, timeouts, limits, log");
    check_error("log.level: warn\n",
                F ":1:1: unknown key \"log.level\" at the top (write \"log:\" and, indented on a "
                  "line below it, \"level:\"); allowed: cluster, listen, transport, gpu, timeouts, "
                  "limits, log");
    check_error("cluster:\n  node: a\n  nodes:\n  - {name: a, address: '::1', prot: 4}\n",
                F ":4:31: unknown key \"prot\" in cluster.nodes (did you mean \"port\"?); "
                  "allowed: name, address, port");
    /* merge keys are keys like any other */
    check_error("log: {<<: 1}\n", F ":1:7: unknown key \"<<\" in log; allowed: level");
    check_error("log: {\"le\\0vel\\e[31m\": info}\n",
                F ":1:7: unknown key \"le\\x00vel\\x1b[31m\" in log; allowed: level");
    check_error("log: {\"level\\0\": info}\n",
                F ":1:7: unknown key \"level\\x00\" in log (did you mean \"level\"?); allowed: "
                  "level");
}

static void duplicate_keys(void **state)
{
    check_error("timeouts:\n  node: 3s\n  join: 1s\n  node: 4s\n",
                F ":4:3: duplicate key timeouts.node, first on line 2; allowed: each key once");
    check_error("log: {level: info}\nlimits:\nlog: {level: warn}\n",
                F ":3:1: duplicate key log, first on line 1; allowed: each key once");
    check_error("cluster:\n  node: a\n  nodes:\n  - {name: a, address: '::1', name: b}\n",
                F ":4:31: duplicate key cluster.nodes.name, first on line 4; allowed: each key "
                  "once");
}

static void keys_that_are_no_text(void **state)
{
    check_error("? [a, b]\n: 1\n",
                F ":1:3: a list where a key of the file should be; allowed: plain text");
    check_error("log:\n  ? {a: b}\n  : 1\n",
                F ":2:5: a map where a key of log should be; allowed: plain text");
}

/* --- types --- */

static void wrong_types(void **state)
{
    check_error("- a\n", F ":1:1: the file is a list, which is the wrong type; allowed: a map of "
                           "cluster, listen, transport, gpu, timeouts, limits, log");
    check_error("hello\n", F ":1:1: the file is text, which is the wrong type; allowed: a map of "
                             "cluster, listen, transport, gpu, timeouts, limits, log");
    check_error("timeouts: 5s\n", F ":1:11: timeouts is text, which is the wrong type; allowed: "
                                    "a map of heartbeat, node, restart, progress, join");
    check_error("log: [level]\n",
                F ":1:6: log is a list, which is the wrong type; allowed: a map of level");
    check_error("log: {level: {a: b}}\n", F ":1:14: log.level is a map, which is the wrong "
                                            "type; allowed: error, warn, info, debug");
    check_error("limits:\n  max_clients: [3]\n",
                F ":2:16: limits.max_clients is a list, which is the wrong type; allowed: 1 to "
                  "65536");
    check_error("limits: {max_clients: many}\n",
                F ":1:23: limits.max_clients is \"many\", not a whole number; allowed: 1 to "
                  "65536");
    check_error("limits: {max_clients: 1.5}\n",
                F ":1:23: limits.max_clients is \"1.5\", not a whole number; allowed: 1 to "
                  "65536");
    check_error("transport: {trusted_network: yes}\n",
                F ":1:30: transport.trusted_network is \"yes\"; allowed: true, false");
    check_error("cluster: {nodes: a}\n",
                F ":1:18: cluster.nodes is text, which is the wrong type; allowed: a list of 1 "
                  "to 1024 maps {name, address, port}");
    check_error("cluster: {nodes: {a: b}}\n",
                F ":1:18: cluster.nodes is a map, which is the wrong type; allowed: a list of 1 "
                  "to 1024 maps {name, address, port}");
    check_error("cluster: {nodes: [a]}\n",
                F ":1:19: an entry of cluster.nodes is text, which is the wrong type; allowed: a "
                  "list of 1 to 1024 maps {name, address, port}");
    check_error("listen: {pid_file: }\n",
                F ":1:20: listen.pid_file has no value; allowed: an absolute path of at most 255 "
                  "bytes, or \"\" for none; leave the line out for the default");
}

static void out_of_range(void **state)
{
    check_error("limits: {max_clients: 0}\n",
                F ":1:23: limits.max_clients is \"0\", out of range; allowed: 1 to 65536");
    check_error("limits: {max_clients: 65537}\n",
                F ":1:23: limits.max_clients is \"65537\", out of range; allowed: 1 to 65536");
    check_error("limits: {max_clients: -1}\n",
                F ":1:23: limits.max_clients is \"-1\", out of range; allowed: 1 to 65536");
    check_error("limits: {max_clients: 99999999999999999999999}\n",
                F ":1:23: limits.max_clients is \"99999999999999999999999\", out of range; "
                  "allowed: 1 to 65536");
    check_error("limits: {max_board_bytes: 1K}\n",
                F ":1:27: limits.max_board_bytes is \"1K\", out of range; allowed: 1M to 1024T, a "
                  "whole number and its unit (K, M, G, T)");
    /* 2^64 bytes and one page */
    check_error("limits: {max_board_bytes: 18014398509481985K}\n",
                F ":1:27: limits.max_board_bytes is \"18014398509481985K\", out of range; "
                  "allowed: 1M to 1024T, a whole number and its unit (K, M, G, T)");
    check_error("listen: {socket_mode: 0066}\n",
                F ":1:23: listen.socket_mode is \"0066\", out of range; allowed: 0600 to 0777, "
                  "octal, with read and write for the owner");
    check_error("listen: {socket_mode: 1666}\n",
                F ":1:23: listen.socket_mode is \"1666\", out of range; allowed: 0600 to 0777, "
                  "octal, with read and write for the owner");
    check_error("listen: {socket_mode: 0688}\n",
                F ":1:23: listen.socket_mode is \"0688\", not an octal mode; allowed: 0600 to "
                  "0777, octal, with read and write for the owner");
}

static void bad_durations(void **state)
{
#define ALLOWED "; allowed: 10ms to 1m, a whole number and its unit (ms, s, m, h)"
    check_error("timeouts: {heartbeat: 500}\n",
                F ":1:23: timeouts.heartbeat is \"500\", a number without a unit" ALLOWED);
    check_error("timeouts: {heartbeat: soon}\n",
                F ":1:23: timeouts.heartbeat is \"soon\", not a duration" ALLOWED);
    check_error("timeouts: {heartbeat: 5 s}\n",
                F ":1:23: timeouts.heartbeat is \"5 s\", not a duration" ALLOWED);
    check_error("timeouts: {heartbeat: 0.5s}\n",
                F ":1:23: timeouts.heartbeat is \"0.5s\", not a duration" ALLOWED);
    check_error("timeouts: {heartbeat: -1s}\n",
                F ":1:23: timeouts.heartbeat is \"-1s\", not a duration" ALLOWED);
    check_error("timeouts: {heartbeat: 9ms}\n",
                F ":1:23: timeouts.heartbeat is \"9ms\", out of range" ALLOWED);
    check_error("timeouts: {heartbeat: 61s}\n",
                F ":1:23: timeouts.heartbeat is \"61s\", out of range" ALLOWED);
    check_error("timeouts: {heartbeat: 18446744073709552h}\n",
                F ":1:23: timeouts.heartbeat is \"18446744073709552h\", out of range" ALLOWED);
    check_error("timeouts: {heartbeat: 1d}\n",
                F ":1:23: timeouts.heartbeat is \"1d\", not a duration" ALLOWED);
#undef ALLOWED
}

static void bad_text(void **state)
{
    char text[512], expected[1024];

    check_error("log: {level: verbose}\n",
                F ":1:14: log.level is \"verbose\"; allowed: error, warn, info, debug");
    check_error("log: {level: \"in\\0fo\"}\n",
                F ":1:14: log.level is \"in\\x00fo\", with a NUL byte in it; allowed: error, "
                  "warn, info, debug");
    check_error("cluster: {name: a b}\n",
                F ":1:17: cluster.name is \"a b\", not a name; allowed: 1 to 63 letters, digits, "
                  "'.', '_' or '-', first a letter or digit");
    check_error("cluster: {name: -a}\n",
                F ":1:17: cluster.name is \"-a\", not a name; allowed: 1 to 63 letters, digits, "
                  "'.', '_' or '-', first a letter or digit");
    check_error("cluster: {name: \"\"}\n",
                F ":1:17: cluster.name is \"\"; allowed: 1 to 63 letters, digits, '.', '_' or "
                  "'-', first a letter or digit");
    check_error("listen: {socket: commd.sock}\n",
                F ":1:18: listen.socket is \"commd.sock\", not an absolute path; allowed: an "
                  "absolute path of at most 107 bytes");
    check_error("listen: {socket: $CREDENTIALS_DIRECTORY/s}\n",
                F ":1:18: listen.socket is \"$CREDENTIALS_DIRECTORY/s\", not an absolute path; "
                  "allowed: an absolute path of at most 107 bytes");
    check_error("listen: {socket: \"/a\\nb\"}\n",
                F ":1:18: listen.socket is \"/a\\x0ab\", with a control character in it; "
                  "allowed: an absolute path of at most 107 bytes");
    sprintf(text, "listen: {socket: /%0107d}\n", 0); /* 108 bytes: one too many */
    sprintf(expected,
            F ":1:18: listen.socket is \"/%059d\"..., too long; allowed: an absolute path of at "
              "most 107 bytes",
            0);
    check_error(text, expected);
    sprintf(text, "listen: {socket: /%0106d}\n", 0);
    conf_free(load_ok(text));
    check_error("transport: {device: eth0 eth1}\n",
                F ":1:21: transport.device is \"eth0 eth1\", not the name of a device; allowed: "
                  "one network device such as eth0 or mlx5_0:1, or \"\" for the one that holds "
                  "this node's address");
    for (unsigned i = 0; i < 5; i++) {
        static const char *const tls[] = {"^rc", "tcp,", ",tcp", "tcp rc", "TCP"};

        sprintf(text, "transport: {ucx_tls: '%s'}\n", tls[i]);
        sprintf(expected,
                F ":1:22: transport.ucx_tls is \"%s\", not a list of transports; allowed: names of "
                  "UCX transports joined by commas, such as tcp or rc,ud",
                tls[i]);
        check_error(text, expected);
    }
    check_error("transport: {port_range: 18500}\n",
                F ":1:25: transport.port_range is \"18500\", not a range of ports; allowed: "
                  "LOW-HIGH within 1-65535");
    check_error("transport: {port_range: 0-10}\n",
                F ":1:25: transport.port_range is \"0-10\", out of range; allowed: LOW-HIGH "
                  "within 1-65535");
    check_error("transport: {port_range: 1-65536}\n",
                F ":1:25: transport.port_range is \"1-65536\", out of range; allowed: LOW-HIGH "
                  "within 1-65535");
    check_error("transport: {port_range: 20-10}\n",
                F ":1:25: transport.port_range is \"20-10\", backwards; allowed: LOW-HIGH within "
                  "1-65535");
    for (unsigned i = 0; i < 4; i++) {
        static const char *const names[][2] = {{"cubic reno", ", not a word"},
                                               {"bbr.1", ", not a word"},
                                               {"", ""},
                                               {"a-16-byte-name-1", ", too long"}};

        sprintf(text, "transport: {congestion_control: '%s'}\n", names[i][0]);
        sprintf(expected,
                F ":1:33: transport.congestion_control is \"%s\"%s; allowed: auto, system, or a "
                  "name that the kernel has such as cubic: 1 to 15 letters, digits, '_' or '-'",
                names[i][0], names[i][1]);
        check_error(text, expected);
    }
    check_error("transport: {encryption_threads: 17}\n", F
                ":1:33: transport.encryption_threads is \"17\", out of range; allowed: auto, or 0 "
                "to 16");
    check_error("transport: {encryption_threads: many}\n",
                F ":1:33: transport.encryption_threads is \"many\", not a whole number; allowed: "
                  "auto, or 0 to 16");
    check_error("transport: {encryption_threads: 00000003}\n", F
                ":1:33: transport.encryption_threads is \"00000003\", too long; allowed: auto, or "
                "0 to 16");
    for (unsigned i = 0; i < 12; i++) {
        static const char *const lists[][2] = {{"alice=3", "not a list of weights"},
                                               {"1001", "not a list of weights"},
                                               {"1001=", "not a list of weights"},
                                               {"1001=3,", "not a list of weights"},
                                               {",1001=3", "not a list of weights"},
                                               {"1001=3 1002=4", "not a list of weights"},
                                               {"1001=3=4", "not a list of weights"},
                                               {"1001=0", "out of range"},
                                               {"1001=1001", "out of range"},
                                               {"4294967295=3", "out of range"},
                                               {"1=1,2=2,1=3", "with a user in it twice"},
                                               {"7=1,7=1", "with a user in it twice"}};

        sprintf(text, "limits: {weights: '%s'}\n", lists[i][0]);
        sprintf(expected,
                F ":1:19: limits.weights is \"%s\", %s; allowed: UID=WEIGHT joined by commas, "
                  "weights 1 to 1000, such as 1001=30,1002=5, or \"\" for none",
                lists[i][0], lists[i][1]);
        check_error(text, expected);
    }
}

static void settings_of_nccl(void **state)
{
    static const char *const lists[][2] = {
        {"NCCL_NET", "not a list of settings"},
        {"NCCL_NET=", "not a list of settings"},
        {"NCCL_=1", "not a list of settings"},
        {"LD_PRELOAD=/x", "not a list of settings"},
        {"NCCL_NET=a PATH=/x", "not a list of settings"},
        {"NCCL_NET=a  NCCL_DEBUG=b", "not a list of settings"},
        {"NCCL_NET=a ", "not a list of settings"},
        {" NCCL_NET=a", "not a list of settings"},
        {"NCCL_net=a", "not a list of settings"},
        {"NCCL_NET=a,NCCL_NET=b NCCL_NET=c", "with a name in it twice"}};
    char text[200], expected[400];

    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        sprintf(text, "gpu: {nccl_env: '%s'}\n", lists[i][0]);
        sprintf(expected,
                F ":1:17: gpu.nccl_env is \"%s\", %s; allowed: NCCL_NAME=VALUE, one or more with a "
                  "space between them, of at most 511 bytes, such as NCCL_DEBUG=WARN, or \"\" for "
                  "none",
                lists[i][0], lists[i][1]);
        check_error(text, expected);
    }
}

/* --- nodes --- */

static void bad_addresses(void **state)
{
    static const struct {
        const char *address, *wrong;
    } bad[] = {
        {"[::1]", "with brackets around it"},
        {"10.0.0.256", "not an IPv4 address"},
        {"10.0.1", "not an IPv4 address"},
        {"0.0.0.0", "not the address of one node"},
        {"::", "not the address of one node"},
        {"fe80::g", "not an IPv6 address"},
        {"10.0.0.1:80", "not an IPv6 address"},
        {"fe80::1%", "not an IPv6 address"},
        {"fe80::1%a b", "not an IPv6 address"},
        {"node 1", "not an address"},
        {"-x", "not an address"},
    };
    char text[256], expected[512];

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        sprintf(text, "cluster: {node: a, nodes: [{name: a, address: \"%s\"}]}\n", bad[i].address);
        sprintf(expected,
                F ":1:47: cluster.nodes.address is \"%s\", %s; allowed: an IPv4 address, an IPv6 "
                  "address without brackets, or a host name, of at most 63 bytes",
                bad[i].address, bad[i].wrong);
        check_error(text, expected);
    }
    for (unsigned i = 0; i < 5; i++) {
        static const char *const good[] = {"fe80::1%eth0", "2001:db8::1", "node1.example.org",
                                           "::ffff:10.0.0.1", "10.0.0.1"};

        sprintf(text, "cluster: {node: a, nodes: [{name: a, address: \"%s\"}]}\n", good[i]);
        conf_free(load_ok(text));
    }
}

static void bad_ports(void **state)
{
    check_error("cluster: {node: a, nodes: [{name: a, address: '::1', port: 0}]}\n",
                F ":1:60: cluster.nodes.port is \"0\", out of range; allowed: 1 to 65535");
    check_error("cluster: {node: a, nodes: [{name: a, address: '::1', port: 70000}]}\n",
                F ":1:60: cluster.nodes.port is \"70000\", out of range; allowed: 1 to 65535");
    check_error("cluster: {node: a, nodes: [{name: a, address: '::1', port: http}]}\n",
                F ":1:60: cluster.nodes.port is \"http\", not a whole number; allowed: 1 to "
                  "65535");
    check_error("cluster: {node: a, nodes: [{name: a, address: '::1', port: 18500}, {name: b, "
                "address: '::1', port: 18501}]}\n",
                F ":1:60: port 18500 of this node lies within transport.port_range "
                  "(18500-18599), which belongs to the engine; allowed: a port outside of it");
    check_error("transport: {port_range: 18400-18499}\n"
                "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: b, address: "
                "127.0.0.1}]}\n",
                F ":2:35: port 18400 of this node lies within transport.port_range "
                  "(18400-18499), which belongs to the engine; allowed: a port outside of it");
    /* one node listens on no port */
    conf_free(load_ok("cluster: {node: a, nodes: [{name: a, address: '::1', port: 18500}]}\n"));
}

static void bad_http(void **state)
{
    static const char *const bad[] = {
        "18480",           ":18480",       "localhost:18480", "127.0.0.1",     "127.0.0.1:0",
        "127.0.0.1:65536", "127.0.0.1:1x", "::1:18480",       "[::1]",         "[]:1",
        "[127.0.0.1]:1",   "127.0.0.1:",   "127.0.0.1 :18",   "http://[::1]:1"};
    char text[256], expected[512];

    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        sprintf(text, "listen: {http: \"%s\"}\n", bad[i]);
        sprintf(expected,
                F ":1:16: listen.http is \"%s\", not an address and a port; allowed: ADDRESS:PORT "
                  "such as 127.0.0.1:18480, IPv6 in brackets such as [::1]:18480, or \"\" for none",
                bad[i]);
        check_error(text, expected);
    }
    conf_free(load_ok("listen: {http: '0.0.0.0:65535'}\n"));
    conf_free(load_ok("listen: {http: '[2001:db8::1]:1'}\n"));
    check_error("listen: {http: '[::]:18599'}\n"
                "cluster: {node: a, nodes: [{name: a, address: '::1'}, {name: b, address: "
                "127.0.0.1}]}\n",
                F ":1:16: port 18599 of listen.http lies within transport.port_range "
                  "(18500-18599), which belongs to the engine; allowed: a port outside of it");
    conf_free(load_ok("listen: {http: '[::]:18599'}\n")); /* one node has no engine */
}

static void incomplete_nodes(void **state)
{
    check_error("cluster:\n  node: a\n  nodes:\n  - {name: a}\n  - {address: '::1'}\n  - {}\n",
                F ":4:5: an entry of cluster.nodes without address; allowed: address: an IPv4 "
                  "address, an IPv6 address without brackets, or a host name, of at most 63 "
                  "bytes\n" F ":5:5: an entry of cluster.nodes without name; allowed: name: 1 to "
                  "63 letters, digits, '.', '_' or '-', first a letter or digit\n" F
                  ":6:5: an entry of cluster.nodes without name; allowed: name: 1 to 63 letters, "
                  "digits, '.', '_' or '-', first a letter or digit\n" F
                  ":6:5: an entry of cluster.nodes without address; allowed: address: an IPv4 "
                  "address, an IPv6 address without brackets, or a host name, of at most 63 "
                  "bytes");
    check_error("cluster: {nodes: []}\n",
                F ":1:18: cluster.nodes is empty; allowed: a list of 1 to 1024 maps {name, "
                  "address, port}; leave the line out for one node");
}

static void too_many_nodes(void **state)
{
    size_t size = 80 * (CONF_MAX_NODES + 9), at = 0;
    _cleanup_(freep) char *text = malloc(size);

    assert_non_null(text);
    at += (size_t)sprintf(text, "cluster:\n  node: n1\n  nodes:\n");
    for (unsigned i = 1; i <= CONF_MAX_NODES + 2; i++)
        at += (size_t)sprintf(text + at, "  - {name: n%u, address: 127.0.0.1, port: %u}\n", i, i);
    check_error(text, F ":1028:5: more nodes than commd can keep; allowed: a list of 1 to 1024 "
                        "maps {name, address, port}");
}

static void old_names(void **state)
{
    check_error("transport: {tls: '^rc'}\n",
                F ":1:18: transport.ucx_tls is \"^rc\", not a list of transports; allowed: names "
                  "of UCX transports joined by commas, such as tcp or rc,ud");
    check_error("transport:\n  ucx_tls: rc\n  tls: rc\n",
                F ":3:3: transport.ucx_tls was once called transport.tls, and both are given, the "
                  "first on line 2; allowed: ucx_tls alone");
    check_error("transport:\n  tls: tcp\n  device: lo\n  ucx_tls: tcp\n",
                F ":4:3: transport.ucx_tls was once called transport.tls, and both are given, the "
                  "first on line 2; allowed: ucx_tls alone");
    check_error("transport:\n  tls: tcp\n  tls: rc\n",
                F ":3:3: duplicate key transport.tls, first on line 2; allowed: each key once");
    check_error("tls: rc\n", F
                ":1:1: unknown key \"tls\" at the top (it belongs under \"transport:\"); allowed: "
                "cluster, listen, transport, gpu, timeouts, limits, log");
    check_error("listen: {transport.tls: rc}\n",
                F ":1:10: unknown key \"transport.tls\" in listen (write \"transport:\" and, "
                  "indented on a line below it, \"ucx_tls:\"); allowed: socket, socket_mode, "
                  "pid_file, http");
}

static void duplicate_nodes(void **state)
{
    check_error("cluster:\n  node: a\n  nodes:\n"
                "  - {name: a, address: 127.0.0.1}\n"
                "  - {name: b, address: 127.0.0.2}\n"
                "  - {name: a, address: 127.0.0.3}\n",
                F ":6:12: two nodes have the name \"a\", the first on line 4; allowed: each name "
                  "once");
    check_error("cluster:\n  node: a\n  nodes:\n"
                "  - {name: a, address: 127.0.0.1, port: 5}\n"
                "  - {name: b, address: 127.0.0.1, port: 6}\n"
                "  - {name: c, address: 127.0.0.1, port: 5}\n",
                F ":6:24: nodes \"a\" and \"c\" both have address 127.0.0.1 and port 5, the "
                  "first on line 4; allowed: each pair of address and port once");
}

static void own_node_missing(void **state)
{
    char expected[512];

    check_error("cluster:\n  node: x\n  nodes: [{name: b, address: '::1'}, {name: a, address: "
                "127.0.0.1}]\n",
                F ":2:9: this node is \"x\" (cluster.node), which is not among cluster.nodes; "
                  "allowed: b, a");
    snprintf(expected, sizeof(expected),
             F ":1:18: this node is \"%s\" (its host name, as cluster.node is not given), which "
               "is not among cluster.nodes; allowed: not-%s",
             host(), "me");
    check_error("cluster: {nodes: [{name: not-me, address: '::1'}]}\n", expected);
}

static void own_node_missing_among_many(void **state)
{
    char text[8192] = "cluster:\n  node: x\n  nodes:\n", allowed[256] = "";
    char expected[512];
    size_t at = strlen(text);

    for (unsigned i = 0; i < 64; i++)
        at += (size_t)sprintf(text + at,
                              "  - {name: node-number-%02u, address: 127.0.0.1, port: "
                              "%u}\n",
                              i, 100 + i);
    for (unsigned i = 0; i < 12; i++)
        sprintf(allowed + strlen(allowed), "node-number-%02u, ", i);
    snprintf(expected, sizeof(expected),
             F ":2:9: this node is \"x\" (cluster.node), which is not among cluster.nodes; "
               "allowed: %s...",
             allowed);
    check_error(text, expected);
}

static void heartbeat_must_fit_twice(void **state)
{
    check_error("timeouts: {node: 900ms}\n",
                F ":1:18: timeouts.node is 900ms with timeouts.heartbeat 500ms, so that one late "
                  "heartbeat would lose the node; allowed: at least twice timeouts.heartbeat");
    check_error("timeouts: {heartbeat: 2s}\n",
                F ":1:23: timeouts.node is 3s with timeouts.heartbeat 2s, so that one late "
                  "heartbeat would lose the node; allowed: at least twice timeouts.heartbeat");
    conf_free(load_ok("timeouts: {node: 1s}\n"));
}

#define REMEDY                                                                                     \
    ", which encrypts, trusted_network: true once nobody but the nodes can reach that network "    \
    "(see "                                                                                        \
    "commd.nft), or loopback addresses"
#define UNTRUSTED(where)                                                                           \
    "transport.trusted_network is false, and " where ", which is not loopback: "
#define WHY(tls)                                                                                   \
    "over UCX (ucx_tls \"" tls "\"), RDMA or not, data go in the clear, and whoever is on the "    \
    "network can read and forge them; over tcp whoever reaches ports 18500-18599 can crash the "   \
    "engine; allowed: fabric: tcp with ucx_tls: tcp" REMEDY
#define WHY_TCP                                                                                    \
    "with encryption off data go in the clear, and whoever is on the network can read and forge "  \
    "them; allowed: encryption: auto" REMEDY

static void fabrics_and_what_they_need(void **state)
{
    check_error("transport: {fabric: rdma}\n",
                F ":1:21: transport.fabric is \"rdma\", not a fabric; allowed: auto, tcp, ucx");
    check_error("transport: {fabric: tcp, ucx_tls: 'rc,tcp'}\n", F
                ":1:21: transport.fabric is \"tcp\", but transport.ucx_tls is \"rc,tcp\"; allowed: "
                "fabric: ucx, or ucx_tls: tcp");
    check_error("transport: {channels: 17}\n",
                F ":1:23: transport.channels is \"17\", out of range; allowed: 1 to 16");
    check_error("transport: {channels: 2, ucx_tls: rc}\n",
                F ":1:23: transport.channels is 2, but transport.fabric is ucx, which has rails of "
                  "its own; allowed: 1, or fabric: tcp");
    check_error("transport: {fabric: ucx, encryption: on}\n",
                F ":1:38: transport.encryption is \"on\", but transport.fabric is ucx, which never "
                  "encrypts data; allowed: fabric: tcp, or encryption: auto");
    check_error("transport: {encryption: on, ucx_tls: rc}\n",
                F ":1:25: transport.encryption is \"on\", but transport.fabric is ucx, which never "
                  "encrypts data; allowed: fabric: tcp, or encryption: auto");
    conf_free(load_ok("transport: {fabric: ucx, encryption: auto}\n"));
    conf_free(load_ok("transport: {fabric: tcp, encryption: on}\n"));
    conf_free(load_ok("transport: {channels: 16}\n"));
    conf_free(load_ok("transport: {fabric: ucx, ucx_tls: tcp}\n"));
}

static void what_goes_in_the_clear_needs_a_trusted_network(void **state)
{
    static const char nodes[] = "cluster:\n  node: a\n  nodes:\n"
                                "  - {name: a, address: 127.0.0.1}\n"
                                "  - {name: b, address: 10.0.0.2}\n";
    static const char *const fine[] = {"", "transport: {encryption: on}\n",
                                       "transport: {encryption: off, trusted_network: true}\n",
                                       "transport: {ucx_tls: 'rc,ud', trusted_network: true}\n",
                                       "transport: {fabric: ucx, trusted_network: true}\n"};
    char text[512];

    sprintf(text, "%stransport: {encryption: off}\n", nodes);
    check_error(text, F ":5:24: " UNTRUSTED("node \"b\" has the address 10.0.0.2") WHY_TCP);
    check_error("transport: {encryption: yes}\n",
                F ":1:25: transport.encryption is \"yes\", unknown; allowed: auto, on, off");
    sprintf(text, "%stransport: {fabric: ucx}\n", nodes);
    check_error(text, F ":5:24: " UNTRUSTED("node \"b\" has the address 10.0.0.2") WHY("tcp"));
    sprintf(text, "%stransport:\n  ucx_tls: rc,tcp\n  trusted_network: false\n", nodes);
    check_error(text, F ":8:20: " UNTRUSTED("node \"b\" has the address 10.0.0.2") WHY("rc,tcp"));
    sprintf(text, "%stransport: {ucx_tls: all}\n", nodes);
    check_error(text, F ":5:24: " UNTRUSTED("node \"b\" has the address 10.0.0.2") WHY("all"));
    sprintf(text, "%stransport: {fabric: auto, ucx_tls: 'rc,ud'}\n", nodes);
    check_error(text, F ":5:24: " UNTRUSTED("node \"b\" has the address 10.0.0.2") WHY("rc,ud"));
    for (unsigned i = 0; i < ARRAY_LEN(fine); i++) {
        sprintf(text, "%s%s", nodes, fine[i]);
        conf_free(load_ok(text));
    }
    /* the engine listens on the device, whatever addresses the nodes have */
    check_error("cluster: {node: a, nodes: [{name: a, address: 127.0.0.1}, {name: b, address: "
                "127.0.0.2}]}\ntransport: {device: eth0, encryption: off}\n",
                F ":2:21: " UNTRUSTED("transport.device is \"eth0\"") WHY_TCP);
    conf_free(
        load_ok("cluster: {node: a, nodes: [{name: a, address: 127.0.0.1}, {name: b, address: "
                "127.0.0.2}]}\ntransport: {device: lo}\n"));
    /* one node needs no network */
    conf_free(load_ok("cluster: {node: a, nodes: [{name: a, address: 10.0.0.2}]}\n"));
}

static void only_loopback_is_loopback(void **state)
{
    static const struct {
        const char *address;
        bool loopback;
    } cases[] = {
        {"127.0.0.1", true},
        {"127.255.255.254", true},
        {"::1", true},
        {"::ffff:127.0.0.1", true},
        {"localhost", true},
        {"128.0.0.1", false},
        {"::2", false},
        {"node-b", false},
        {"::ffff:10.0.0.1", false},
        {"fe80::1%lo", false},
        {"127.evil.org", false},
        {"localhost.evil", false},
    };
    char text[256];

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct conf *conf = NULL;
        char *error = NULL;
        int r;

        sprintf(text,
                "cluster: {node: a, nodes: [{name: a, address: 127.0.0.9}, {name: b, "
                "address: \"%s\"}]}\ntransport: {encryption: off}\n",
                cases[i].address);
        r = conf_load(F, text, strlen(text), &conf, &error);
        if (r != (cases[i].loopback ? 0 : -EINVAL))
            fail_msg("%s: %d %s", cases[i].address, r, error ? error : "");
        if (error)
            assert_non_null(strstr(error, "trusted_network is false"));
        free(error);
        conf_free(conf);
    }
}

/* --- the file as a whole --- */

static void malformed_yaml(void **state)
{
    check_error("log: {level: info\n",
                F ":2:1: malformed YAML: did not find expected ',' or '}' while parsing a flow "
                  "mapping of line 1; allowed: the YAML of commd.yaml(5)");
    check_error("log:\n\tlevel: info\n",
                F ":2:1: malformed YAML: found character that cannot start any token (a tab) "
                  "while scanning for the next token of line 2; allowed: spaces to indent");
    check_error("cluster: {node: a, nodes: [{name: a, address: ::1}]}\n",
                F ":1:47: malformed YAML: did not find expected node content while parsing a "
                  "flow node of line 1; allowed: quotes around a value that begins with ':', "
                  "such as \"::1\"");
    check_error("cluster: {node: \"\xc3\xa4\", nodes: [{name: a, address: ::1}]}\n",
                F ":1:17: cluster.node is \"\\xc3\\xa4\", not a name; allowed: 1 to 63 letters, "
                  "digits, '.', '_' or '-', first a letter or digit\n" F
                  ":1:49: malformed YAML: did not find expected node content while parsing a "
                  "flow node of line 1; allowed: quotes around a value that begins with ':', "
                  "such as \"::1\"");
    check_error("log: {level: \xff}\n",
                F ":1:14: malformed YAML: invalid leading UTF-8 octet; allowed: the YAML of "
                  "commd.yaml(5)");
    check_error("#\n\n a\x01\n",
                F ":3:3: malformed YAML: control characters are not allowed; allowed: the YAML "
                  "of commd.yaml(5)");
    check_error("log:\n  level: info\n---\nlog:\n",
                F ":3:1: a second document begins here; allowed: one per file");
    /* what was found before is kept; rules between keys are not tried on half a file */
    check_error("limits: {max_clients: 0}\ntimeouts: {node: 600ms}\nlog: [\n",
                F ":1:23: limits.max_clients is \"0\", out of range; allowed: 1 to 65536\n" F
                  ":3:6: log is a list, which is the wrong type; allowed: a map of level\n" F
                  ":4:1: malformed YAML: did not find expected node content while parsing a flow "
                  "node of line 4; allowed: the YAML of commd.yaml(5)");
}

static void aliases_anchors_and_tags_are_refused(void **state)
{
#define ALIAS "anchors and aliases (\"&\", \"*\") are refused; allowed: the value itself"
    check_error("log: {level: &l info}\n", F ":1:14: " ALIAS);
    check_error("log: &a {level: info}\n", F ":1:6: " ALIAS);
    check_error("log: &a\n  level: info\nlimits: *a\n", F ":1:6: " ALIAS "\n" F ":3:9: " ALIAS);
    check_error("log: {level: &l info}\ncluster: {name: *l}\n",
                F ":1:14: " ALIAS "\n" F ":2:17: " ALIAS);
    check_error("cluster: {nodes: [*n]}\n", F ":1:19: " ALIAS);
    check_error("*a : 1\n", F ":1:1: " ALIAS);
    /* the billion laughs: as many errors as lines, nothing grows */
    check_error("a: &a [x, x]\nb: &b [*a, *a]\n",
                F ":1:1: unknown key \"a\" at the top; allowed: cluster, listen, transport, "
                  "gpu, timeouts, limits, log\n" F ":1:4: " ALIAS "\n" F
                  ":2:1: unknown key \"b\" at the top; allowed: cluster, listen, transport, "
                  "gpu, timeouts, limits, log\n" F ":2:4: " ALIAS "\n" F ":2:8: " ALIAS "\n" F
                  ":2:12: " ALIAS);
#undef ALIAS
    check_error("log: {level: !!str info}\n",
                F ":1:14: tags (\"!\") are refused; allowed: the value itself");
    check_error("log: !x {level: info}\n",
                F ":1:6: tags (\"!\") are refused; allowed: the value itself");
}

static void nesting_is_bounded(void **state)
{
    char text[4096] = "log: ";

    memset(text + 5, '[', sizeof(text) - 6);
    check_error(text, F ":1:6: log is a list, which is the wrong type; allowed: a map of "
                        "level\n" F ":1:22: nested too deeply, reading no further; allowed: the "
                        "levels of commd.yaml(5)");
}

static void size_is_bounded(void **state)
{
    _cleanup_(freep) char *text = malloc(CONF_MAX_BYTES + 2);
    struct conf *conf = NULL;
    char *error = NULL;

    assert_non_null(text);
    memset(text, '\n', CONF_MAX_BYTES + 1);
    check_error_len(text, CONF_MAX_BYTES + 1, F ": too large; allowed: at most 1048576 bytes");
    assert_int_equal(conf_load(F, text, CONF_MAX_BYTES, &conf, &error), 0);
    conf_free(conf);
}

static void errors_are_bounded(void **state)
{
    char text[8192], *error = NULL, *at;
    struct conf *conf = NULL;
    unsigned lines = 0;
    size_t len = 0;

    for (unsigned i = 0; i < 500; i++)
        len += (size_t)sprintf(text + len, "k%u: 1\n", i);
    assert_int_equal(conf_load(F, text, len, &conf, &error), -EINVAL);
    for (at = error; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 50);
    assert_string_equal(strrchr(error, '\n') + 1,
                        F ": more errors follow; only the first 50 are shown");
    free(error);
}

static void all_errors_are_reported_in_order(void **state)
{
    check_error("cluster:\n"
                "  nodes:\n"
                "  - {name: a, address: 10.0.0.1}\n"
                "  - {name: a, address: 10.0.0.2}\n"
                "  node: a\n"
                "colour: red\n"
                "timeouts:\n"
                "  node: 0s\n"
                "  node: 1s\n"
                "limits: {max_groups: none}\n"
                "transport: {encryption: off}\n",
                F ":3:24: " UNTRUSTED("node \"a\" has the address 10.0.0.1") WHY_TCP
                "\n" F
                ":4:12: two nodes have the name \"a\", the first on line 3; allowed: each name "
                "once\n" F ":6:1: unknown key \"colour\" at the top; allowed: cluster, listen, "
                "transport, gpu, timeouts, limits, log\n" F
                ":8:9: timeouts.node is \"0s\", out of range; allowed: 20ms to 10m, a whole "
                "number and its unit (ms, s, m, h)\n" F
                ":9:3: duplicate key timeouts.node, first on line 8; allowed: each key once\n" F
                ":10:22: limits.max_groups is \"none\", not a whole number; allowed: 1 to "
                "65536");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_keys),
        cmocka_unit_test(duplicate_keys),
        cmocka_unit_test(keys_that_are_no_text),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(out_of_range),
        cmocka_unit_test(bad_durations),
        cmocka_unit_test(bad_text),
        cmocka_unit_test(settings_of_nccl),
        cmocka_unit_test(bad_addresses),
        cmocka_unit_test(bad_ports),
        cmocka_unit_test(bad_http),
        cmocka_unit_test(incomplete_nodes),
        cmocka_unit_test(too_many_nodes),
        cmocka_unit_test(old_names),
        cmocka_unit_test(duplicate_nodes),
        cmocka_unit_test(own_node_missing),
        cmocka_unit_test(own_node_missing_among_many),
        cmocka_unit_test(heartbeat_must_fit_twice),
        cmocka_unit_test(fabrics_and_what_they_need),
        cmocka_unit_test(what_goes_in_the_clear_needs_a_trusted_network),
        cmocka_unit_test(only_loopback_is_loopback),
        cmocka_unit_test(malformed_yaml),
        cmocka_unit_test(aliases_anchors_and_tags_are_refused),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(size_is_bounded),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(all_errors_are_reported_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
