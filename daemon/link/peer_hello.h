/* peer_hello.h - is the node that introduces itself one that we want? Pure. */
#ifndef COMMD_PEER_HELLO_H
#define COMMD_PEER_HELLO_H

#include "shm/proto/msg.h"

/* What the link knows when the hello comes. */
struct peer_hello_view {
    const char *self, *cluster;
    const char *dialed; /* we connected: to whom; NULL: it connected */
    const char *wanted; /* it connected: whom it expects here; NULL: it did not say */
    bool known;         /* hello->node is in cluster.nodes */
    bool we_connect;    /* known, and its name is greater than ours */
    uint64_t linked;    /* known, and linked with this incarnation; 0: not linked */
};

/* Why not, in @buf, of who speaks @version: its frames say so, before a hello is read. Returns
 * @buf. */
const char *peer_hello_version(const char *self, unsigned version, char *buf, size_t len);
/* NULL: welcome. Else why not, in @buf, in words that fit both sides' logs. */
const char *peer_hello_check(const struct peer_hello_view *view, const struct msg_peer_hello *hello,
                             char *buf, size_t len);

#endif
