/* peer_hello.h - is the node that introduces itself one that we want? Pure. */
#ifndef COMMD_PEER_HELLO_H
#define COMMD_PEER_HELLO_H

#include "shm/proto/msg.h"

/* What the link knows when the hello comes. */
struct peer_hello_view {
    const char *self, *cluster;
    const char *dialed;    /* the node that we have connected to; NULL: the other side connected */
    const char *wanted;    /* the node that the other side expects here; NULL: it did not say */
    const char *certified; /* names in the certificate that it has shown, for people; NULL: none */
    bool named;            /* hello->node is one of these names */
    bool known;            /* hello->node is in cluster.nodes */
    bool we_connect;       /* hello->node is known, and its name is greater than ours */
    uint64_t linked;       /* incarnation of hello->node on the link that is up; 0: no link is up */
};

/* Writes into @buf that a node which speaks @version is not wanted. Each frame has its version, so
 * no hello need be read before. Returns @buf. */
const char *peer_hello_version(const char *self, unsigned version, char *buf, size_t len);
/* Writes into @buf that a certificate for @certified does not do for @node. Returns @buf. */
const char *peer_hello_named(const char *certified, const char *node, char *buf, size_t len);
/* NULL: welcome. Else why not, in @buf, in words that fit both sides' logs. */
const char *peer_hello_check(const struct peer_hello_view *view, const struct msg_peer_hello *hello,
                             char *buf, size_t len);

#endif
