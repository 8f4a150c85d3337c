/* peer_hello.c - the rules for who may be on the other end of a link.
 *
 * The key, or a certificate, is proven by now. Whoever has a certificate may lie about its name,
 * which is compared with the certificate. The rest is about mistakes rather than attacks: a
 * forgotten upgrade, a key used for two clusters, an address written twice, a name given twice, a
 * machine that was cloned. Each mistake has a text that names the key to correct. Both sides log
 * the text, so it must make sense to a reader on either side. */
#include "daemon/link/peer_hello.h"

#include <stdio.h>

const char *peer_hello_version(const char *self, unsigned version, char *buf, size_t len)
{
    snprintf(
        buf, len,
        "it speaks protocol version %u, node \"%s\" understands %u to %u: upgrade the older one",
        version, self, MSG_VERSION_OLDEST, MSG_VERSION);
    return buf;
}

const char *peer_hello_named(const char *certified, const char *node, char *buf, size_t len)
{
    snprintf(buf, len,
             "its certificate names %s%s, not node \"%s\": correct cluster.nodes, or give it a "
             "certificate with subjectAltName DNS:%s",
             *certified ? "node " : "no node", certified, node, node);
    return buf;
}

const char *peer_hello_check(const struct peer_hello_view *view, const struct msg_peer_hello *hello,
                             char *buf, size_t len)
{
    if (!msg_version_fits(hello->version))
        peer_hello_version(view->self, hello->version, buf, len);
    else if (strcmp(hello->cluster, view->cluster) != 0)
        snprintf(buf, len,
                 "it belongs to cluster \"%s\", node \"%s\" to cluster \"%s\": correct "
                 "cluster.name, or the address in cluster.nodes",
                 hello->cluster, view->self, view->cluster);
    else if (view->certified && !view->named)
        peer_hello_named(view->certified, hello->node, buf, len);
    else if (strcmp(hello->node, view->self) == 0)
        snprintf(buf, len,
                 "it calls itself node \"%s\", which is this node: two nodes with one name",
                 hello->node);
    else if (!view->known)
        snprintf(buf, len,
                 "it calls itself node \"%s\", which is not in cluster.nodes of node \"%s\"",
                 hello->node, view->self);
    else if (view->dialed && strcmp(view->dialed, hello->node) != 0)
        snprintf(buf, len,
                 "node \"%s\" answers at the address of node \"%s\": correct cluster.nodes",
                 hello->node, view->dialed);
    else if (view->wanted && strcmp(view->wanted, view->self) != 0)
        snprintf(buf, len,
                 "node \"%s\" expects node \"%s\" at the address of node \"%s\": correct "
                 "cluster.nodes",
                 hello->node, view->wanted, view->self);
    else if (!view->dialed && view->we_connect)
        snprintf(buf, len,
                 "node \"%s\" connects to node \"%s\", but the smaller name has to connect: "
                 "cluster.nodes differs between them",
                 hello->node, view->self);
    else if (view->linked && view->linked != hello->incarnation)
        snprintf(buf, len,
                 "node \"%s\" is linked already, by another process: two nodes with one name, "
                 "or the old one has not ended yet",
                 hello->node);
    else
        return NULL;
    return buf;
}
