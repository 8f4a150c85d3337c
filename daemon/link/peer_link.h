/* peer_link.h - the links to the other nodes: TCP, TLS, hello, frames. See peer_link.c for
 * the model. */
#ifndef COMMD_PEER_LINK_H
#define COMMD_PEER_LINK_H

#include "daemon/link/sock.h"
#include "shm/proto/msg.h"

struct event_base;
struct peer_links;
struct tls_identity;

/* Why a TLS handshake failed: as enum tls_failure, or it took too long; or, whatever the reason,
 * who had come is at no address of a node. */
enum peer_handshake_failure {
    PEER_HANDSHAKE_CLOSED,
    PEER_HANDSHAKE_WRONG_KEY,
    PEER_HANDSHAKE_REFUSED_US,
    PEER_HANDSHAKE_NOT_TLS,
    PEER_HANDSHAKE_CERTIFICATE,
    PEER_HANDSHAKE_SLOW,
    PEER_HANDSHAKE_STRANGER,
    PEER_HANDSHAKE_FAILURES
};

/* Since the start. */
struct peer_links_counts {
    uint64_t handshakes_failed[PEER_HANDSHAKE_FAILURES]; /* in either direction */
    uint64_t refused;                                    /* connections to our port */
};

/* Called from the loop, never from within a peer_links_*() call. */
struct peer_links_ops {
    void (*up)(void *arg, unsigned node, const struct msg *hello);
    void (*msg)(void *arg, unsigned node, const struct msg *msg);
    /* @refused: it did not end, but does not prove any more who it is; it is not to be waited for.
     * Without a link: it has come, or answered, with a certificate that does not hold. */
    void (*down)(void *arg, unsigned node, bool refused, const char *text);
    /* Nothing listens at its address. Whoever starts a commd again keeps its port meanwhile, so
     * nobody will. */
    void (*vacant)(void *arg, unsigned node);
};

struct peer_links_config {
    struct event_base *base;       /* borrowed */
    const struct conf *conf;       /* read during peer_links_new() only */
    const struct sock_addr *addrs; /* of conf->nodes; copied */
    uint64_t incarnation;
    /* By what nodes prove themselves, as of tls_new(). */
    const struct conf_keys *keys;  /* copied; none: the shared key counts for nothing */
    struct tls_identity *identity; /* taken, also after a failure; NULL: no certificates */
    const struct peer_links_ops *ops;
    void *arg;
};

/* Listens on this node's address and begins to connect. On failure a negative errno, and
 * *ret_error says what to do (malloc'ed; NULL with -ENOMEM): -EINVAL for the configuration. */
int peer_links_new(const struct peer_links_config *config, struct peer_links **ret_links,
                   char **ret_error);
struct peer_links *peer_links_free(struct peer_links *links);
/* True: nodes have sent something in this pass of the loop, and this turn has time for another
 * pass.
 */
bool peer_links_more(struct peer_links *links);
/* Ends the turn of the loop: frees what was closed in it. */
void peer_links_turn(struct peer_links *links);

/* Sends when the link is up, does nothing otherwise. */
void peer_links_send(struct peer_links *links, unsigned node, const struct msg *msg);
/* Bytes that wait to be sent on the link to @node. 0 without a link. */
size_t peer_links_unsent(const struct peer_links *links, unsigned node);
/* tls_export() of the link that is up; -ENOTCONN without one. */
int peer_links_export(const struct peer_links *links, unsigned node, uint8_t ret_secret[32]);
/* The same on the other side with the same token makes the same one of it. */
int peer_links_mix(const struct peer_links *links, unsigned node, uint8_t token[32]);
/* Closes the link and begins anew; down() is not called. */
void peer_links_drop(struct peer_links *links, unsigned node, const char *text);
/* Looks whether something listens at its address. Of a node to which we connect that is known
 * without it. */
void peer_links_look(struct peer_links *links, unsigned node);
/* Writes a line that @node caused into the log, within the limit of that node. */
void peer_links_log(struct peer_links *links, unsigned node, enum conf_log_level level,
                    const char *text);
/* Why there is no link to @node, or "". */
const char *peer_links_error(const struct peer_links *links, unsigned node);
const struct peer_links_counts *peer_links_counts(const struct peer_links *links);
/* New links use @keys and @identity, as of tls_set(). Handshakes under way begin anew if
 * these are others. Links that are up stay, and the nodes there are told what we have now. But in
 * the next turn a link ends whose certificate does not hold any more, or that was made by a shared
 * key if that counts no more; and one that was made by a key which is none of ours, as soon as
 * another one can be made, or at once if @keys only leave out some of those of before. */
int peer_links_set_keys(struct peer_links *links, const struct conf_keys *keys,
                        struct tls_identity *identity);
/* When this node's certificate expires, or one that it stands on: seconds since 1970. 0: it has
 * none.
 */
int64_t peer_links_certified_until(const struct peer_links *links);
/* Is that soon? Then *buf says so. */
bool peer_links_expiry(const struct peer_links *links, char *buf, size_t len);
/* Names of a node's keys, or "certificate"; "" where nothing is known. */
struct peer_links_keys {
    const char *key;   /* the key that the node offers */
    const char *other; /* the key that the node accepts as well */
    const char *link;  /* the key by which our link to the node was made */
};
void peer_links_keys(const struct peer_links *links, unsigned node,
                     struct peer_links_keys *ret_keys);
void peer_links_set_timeout(struct peer_links *links, uint64_t node_timeout_ms);

/* Shutdown: makes no new links. A link ends when its messages are out. */
void peer_links_drain(struct peer_links *links);
/* True when no link is left. */
bool peer_links_idle(const struct peer_links *links);

#endif
