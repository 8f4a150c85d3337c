/* conf_check.c - the rules about several keys together.
 *
 * They are checked after the whole file is read. A rule says nothing if one of its values was
 * reported already, so that one mistake is one line. Each error has the position at which a person
 * would repair it. Reads @conf and @src only. */
#include "daemon/conf/conf_keys.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>

struct check {
    const struct conf *conf;
    const struct conf_src *src;
    struct conf_errors *errors;
    bool self_known;
    unsigned self; /* index of this node, in file order */
};

/* Position of the value, or of @otherwise when the key was not given. */
static struct conf_pos pos_or(const struct check *c, unsigned key, struct conf_pos otherwise)
{
    return c->src->value[key].line ? c->src->value[key] : otherwise;
}

/* Was the value of @key reported already? */
static bool is_bad(const struct check *c, const char *key)
{
    return c->src->bad[conf_key_index(key)];
}

/* A host name counts as not loopback, whatever it resolves to today. */
bool conf_is_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (!strcmp(address, "localhost") || !strcmp(address, "ip6-localhost"))
        return true;
    if (inet_pton(AF_INET, address, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address, &v6) != 1)
        return false;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

static void check_duplicate_node(struct check *c, unsigned i)
{
    const struct conf_node *node = &c->conf->nodes[i];
    const struct conf_node_src *src = &c->src->nodes[i];

    assert(i < c->conf->nnodes && i < c->src->nodes_len);
    for (unsigned k = 0; k < i; k++) {
        const struct conf_node *earlier = &c->conf->nodes[k];
        const struct conf_node_src *earlier_src = &c->src->nodes[k];

        if (!strcmp(earlier->name, node->name)) {
            conf_errors_add(c->errors, src->value[CONF_NODE_NAME],
                            "two nodes have the name \"%s\", the first on line %u; allowed: "
                            "each name once",
                            node->name, earlier_src->line[CONF_NODE_NAME]);
            return;
        }
        if (!strcmp(earlier->address, node->address) && earlier->port == node->port) {
            conf_errors_add(c->errors, src->value[CONF_NODE_ADDRESS],
                            "nodes \"%s\" and \"%s\" both have address %s and port %u, the "
                            "first on line %u; allowed: each pair of address and port once",
                            earlier->name, node->name, node->address, node->port,
                            earlier_src->line[CONF_NODE_ADDRESS]);
            return;
        }
    }
}

static void check_self(struct check *c)
{
    const struct conf *conf = c->conf;
    unsigned key = conf_key_index("cluster.node");
    struct conf_pos nodes_pos = c->src->value[conf_key_index("cluster.nodes")];
    char names[256] = "";
    size_t at = 0;

    for (c->self = 0; c->self < conf->nnodes; c->self++)
        if (!strcmp(conf->nodes[c->self].name, conf->node)) {
            c->self_known = true;
            return;
        }
    if (c->src->bad[key])
        return;
    for (unsigned i = 0; i < conf->nnodes && at < sizeof(names) - CONF_NAME_MAX - 8; i++)
        at += (size_t)sprintf(names + at, "%s%s", i ? ", " : "", conf->nodes[i].name);
    if (at >= sizeof(names) - CONF_NAME_MAX - 8)
        strcpy(names + at, ", ...");
    conf_errors_add(
        c->errors, pos_or(c, key, nodes_pos),
        "this node is \"%s\" (%s), which is not among cluster.nodes; allowed: %s", conf->node,
        c->src->value[key].line ? "cluster.node" : "its host name, as cluster.node is not given",
        names);
}

static void check_timeouts(struct check *c)
{
    unsigned heartbeat = conf_key_index("timeouts.heartbeat");
    unsigned node = conf_key_index("timeouts.node");
    char node_text[32], heartbeat_text[32];

    if (c->src->bad[heartbeat] || c->src->bad[node] ||
        c->conf->node_timeout_ms >= 2 * c->conf->heartbeat_ms)
        return;
    conf_value_format(&conf_keys[node], c->conf, node_text, sizeof(node_text));
    conf_value_format(&conf_keys[heartbeat], c->conf, heartbeat_text, sizeof(heartbeat_text));
    conf_errors_add(c->errors, pos_or(c, node, c->src->value[heartbeat]),
                    "timeouts.node is %s with timeouts.heartbeat %s, so that one late heartbeat "
                    "would lose the node; allowed: at least twice timeouts.heartbeat",
                    node_text, heartbeat_text);
}

/* The engine would take any port of the range, also @port of @whose, which commd listens on. */
static void check_outside(struct check *c, unsigned port, const char *whose, struct conf_pos pos)
{
    unsigned low, high;

    if (conf_port_range(c->conf->port_range, &low, &high) && port >= low && port <= high)
        conf_errors_add(c->errors, pos,
                        "port %u of %s lies within transport.port_range (%s), which belongs to the "
                        "engine; allowed: a port outside of it",
                        port, whose, c->conf->port_range);
}

/* One node alone listens for neither nodes nor engines. */
static void check_ports(struct check *c)
{
    unsigned http = conf_key_index("listen.http");
    const struct conf_node_src *src = &c->src->nodes[c->self];
    char address[CONF_ADDR_MAX];
    uint16_t port;

    if (c->conf->nnodes < 2 || is_bad(c, "transport.port_range"))
        return;
    if (c->self_known)
        check_outside(
            c, c->conf->nodes[c->self].port, "this node",
            src->value[src->value[CONF_NODE_PORT].line ? CONF_NODE_PORT : CONF_NODE_NAME]);
    if (!c->src->bad[http] && conf_http(c->conf, address, &port))
        check_outside(c, port, "listen.http", c->src->value[http]);
}

/* The engine listens at addresses of the device, if one is given, and not at those of the nodes.
 * Loopback is called lo on Linux, in every network namespace. */
static bool leaves_loopback(const struct conf *conf)
{
    return conf->device[0] && strcmp(conf->device, "lo");
}

/* What goes in the clear needs a network where nobody else is: all over UCX, RDMA or not, and over
 * our own fabric with encryption off. */
static void check_trusted_network(struct check *c)
{
    const struct conf *conf = c->conf;
    bool ucx = strcmp(conf_fabric(conf), "tcp");
    char where[CONF_NAME_MAX + CONF_ADDR_MAX + 40], what[CONF_NAME_MAX + 64];
    unsigned i;

    if (is_bad(c, "transport.trusted_network") || is_bad(c, "transport.fabric") ||
        is_bad(c, "transport.ucx_tls") || is_bad(c, "transport.port_range") ||
        is_bad(c, "transport.encryption"))
        return;
    if (conf->trusted_network || conf->nnodes < 2 || (!ucx && strcmp(conf->encryption, "off")))
        return;
    for (i = 0; i < conf->nnodes; i++)
        if (!conf_is_loopback(conf->nodes[i].address))
            break;
    if (i == conf->nnodes && !leaves_loopback(conf))
        return;
    if (i < conf->nnodes)
        snprintf(where, sizeof(where), "node \"%s\" has the address %s", conf->nodes[i].name,
                 conf->nodes[i].address);
    else
        snprintf(where, sizeof(where), "transport.device is \"%s\"", conf->device);
    snprintf(what, sizeof(what),
             ucx ? "over UCX (ucx_tls \"%s\"), RDMA or not," : "with encryption off",
             conf->ucx_tls);
    conf_errors_add(
        c->errors,
        pos_or(c, conf_key_index("transport.trusted_network"),
               i < conf->nnodes ? c->src->nodes[i].value[CONF_NODE_ADDRESS]
                                : c->src->value[conf_key_index("transport.device")]),
        "transport.trusted_network is false, and %s, which is not loopback: %s data go in the "
        "clear, and whoever is on the network can read and forge them%s%s%s; allowed: "
        "%s, which encrypts, trusted_network: true once nobody but the nodes can reach that "
        "network (see commd.nft), or loopback addresses",
        where, what, ucx ? "; over tcp whoever reaches ports " : "", ucx ? conf->port_range : "",
        ucx ? " can crash the engine" : "",
        ucx ? "fabric: tcp with ucx_tls: tcp" : "encryption: auto");
}

/* What only the engine's own fabric can do, or cannot. */
static void check_fabric(struct check *c)
{
    const struct conf *conf = c->conf;
    unsigned fabric = conf_key_index("transport.fabric");
    unsigned ucx_tls = conf_key_index("transport.ucx_tls");
    unsigned channels = conf_key_index("transport.channels");
    unsigned encryption = conf_key_index("transport.encryption");

    if (c->src->bad[fabric] || c->src->bad[ucx_tls] || c->src->bad[channels])
        return;
    if (!strcmp(conf->fabric, "tcp") && strcmp(conf->ucx_tls, "tcp"))
        conf_errors_add(c->errors, pos_or(c, fabric, c->src->value[ucx_tls]),
                        "transport.fabric is \"tcp\", but transport.ucx_tls is \"%s\"; allowed: "
                        "fabric: ucx, or ucx_tls: tcp",
                        conf->ucx_tls);
    else if (conf->channels > 1 && strcmp(conf_fabric(conf), "tcp"))
        conf_errors_add(c->errors, pos_or(c, channels, c->src->value[fabric]),
                        "transport.channels is %u, but transport.fabric is ucx, which has rails of "
                        "its own; allowed: 1, or fabric: tcp",
                        conf->channels);
    if (!c->src->bad[encryption] && !strcmp(conf->encryption, "on") &&
        strcmp(conf_fabric(conf), "tcp"))
        conf_errors_add(c->errors, c->src->value[encryption],
                        "transport.encryption is \"on\", but transport.fabric is ucx, which never "
                        "encrypts data; allowed: fabric: tcp, or encryption: auto");
}

void conf_check(const struct conf *conf, const struct conf_src *src, struct conf_errors *errors)
{
    struct check c = {.conf = conf, .src = src, .errors = errors};

    check_timeouts(&c);
    check_fabric(&c);
    if (conf->nnodes == 0 || is_bad(&c, "cluster.nodes"))
        return;
    for (unsigned i = 1; i < conf->nnodes; i++)
        check_duplicate_node(&c, i);
    check_self(&c);
    check_ports(&c);
    check_trusted_network(&c);
}

int conf_check_change(const struct conf *from, const struct conf *to, char **ret_error)
{
    bool off = !strcmp(to->encryption, "off"), on = !strcmp(to->encryption, "on");
    struct conf_row row;

    if (to->nnodes < 2 || (!off && !on) || (from && strcmp(from->encryption, off ? "on" : "off")))
        return 0;
    conf_row_of(to, "transport.encryption", &row);
    if (!from)
        return fail_with(
            -EINVAL, ret_error,
            "%s: transport.encryption goes to \"%s\" while the engine has what a commd "
            "before this one gave it, which may be \"%s\"; reload again when the log "
            "says that the next engine has the new settings",
            row.source, to->encryption, off ? "on" : "off");
    return fail_with(
        -EINVAL, ret_error,
        "%s: transport.encryption goes from \"%s\" to \"%s\" at once, and nodes that are "
        "still at \"%s\" would refuse this one; first auto on all nodes, and when their engines "
        "have taken it, %s: doc/operations.md, \"Encryption on or off\"",
        row.source, from->encryption, to->encryption, from->encryption, to->encryption);
}
