/* peer_link_priv.h - private to peer_link.c (one link) and peer_links.c (the nodes, and who
 * connects to whom). */
#ifndef COMMD_PEER_LINK_PRIV_H
#define COMMD_PEER_LINK_PRIV_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <sys/queue.h>

#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/link/peer_link.h"
#include "daemon/process/log_limit.h"
#include "daemon/link/tls.h"
#include "shm/proto/codec.h"

enum {
    LINK_HALF_OPEN = 64,
    LINK_DEADLINE_MS = 2000,
    LINK_BACKOFF_MIN_MS = 50,
    LINK_BACKOFF_MAX_MS = 2000,
    LINK_STABLE_MS = 5000, /* a link that lived so long starts the back-off afresh */
    LINK_ACCEPT_BUDGET = 16,
    LINK_TURN_US = 4000,
    LINK_SLICE_US = 500,
    LINK_MSG_BUDGET = 256, /* in a slice */
    LINK_MSG_LEAST = 8,    /* the heartbeat is among them */
    LINK_SMALL = 2048,     /* copied, so that several go into one record */
    LINK_MAX_UNSENT = 32 << 20,
};

/* See peer_link.c. */
enum link_state {
    LINK_CONNECTING,
    LINK_HANDSHAKE,
    LINK_HELLO,
    LINK_UP,
    LINK_CLOSING,
    LINK_DEAD,
    LINK_NSTATES
};

struct link_peer {
    struct peer_links *links; /* borrowed */
    char name[MSG_NAME_MAX];
    struct sock_addr addr;
    struct link *link;   /* borrowed: UP, NULL else */
    struct link *dial;   /* borrowed: our attempt, NULL else */
    struct event *retry; /* owned; NULL for nodes that connect to us */
    uint64_t backoff_ms;
    unsigned offer;            /* which key: the next one, if this one was refused */
    struct msg_peer_keys keys; /* that it says it has; "": it has not said */
    char error[MSG_TEXT_MAX];  /* why there is no link */
};

struct link {
    TAILQ_ENTRY(link) entry;
    struct peer_links *links; /* borrowed */
    struct link_peer *peer;   /* borrowed; NULL: not known yet */
    enum link_state state;
    bool inbound;
    int fd;                  /* owned while CONNECTING */
    struct event *connected; /* owned */
    struct event *timer;     /* owned: deadline, and doom */
    struct bufferevent *bev; /* owned, with its SSL and socket */
    struct sock_addr from;
    char key[TLS_KEY_NAME]; /* by which it stands, after the handshake */
    uint64_t incarnation;   /* of the other commd, once UP */
    uint64_t since_ms;
    char doom[MSG_TEXT_MAX]; /* close with this text as soon as we are back in the loop */
};

TAILQ_HEAD(link_list, link);

struct peer_links {
    struct event_base *base; /* borrowed */
    const struct peer_links_ops *ops;
    void *arg;
    struct tls *tls; /* owned */
    char cluster[MSG_NAME_MAX];
    uint64_t incarnation, node_timeout_ms;
    struct link_peer *peers; /* owned */
    unsigned npeers, self;
    int listen_fd;        /* owned */
    struct event *accept; /* owned */
    struct sock_reserve reserve;
    struct link_list half; /* owned: inbound, not UP; oldest first */
    struct link_list live; /* owned: the others */
    struct link_list dead; /* owned: freed at the end of the turn */
    unsigned nhalf;
    struct log_limit limit; /* of what nodes and addresses cause */
    struct peer_links_counts counts;
    uint32_t jitter;
    bool draining;
    uint64_t turn_until_us; /* what nodes have sent is taken until then; 0: nothing came yet */
    bool took;              /* in this pass of the loop */
};

/* ---- peer_link.c ----------------------------------------------------------------------------- */

/* @fd belongs to the link afterwards, also when NULL is returned. @peer NULL: it came to us. */
struct link *link_new(struct peer_links *links, struct link_peer *peer, int fd);
struct link *link_free(struct link *link);
/* Takes the link out of everything; the memory stays until the end of the turn. */
void link_bury(struct link *link);
void link_start_tls(struct link *link);
int link_send(struct link *link, const struct msg *msg);
/* Tells the other side which keys we have. */
void link_send_keys(struct link *link);
/* Closes with @text as soon as we are back in the loop. */
void link_doom(struct link *link, const char *text);
/* All is sent: says so, and lets the other side close. */
void link_finish(struct link *link);
/* Somebody at the door is turned away: one line per address and kind. */
void link_log_refused(struct link *link, const char *kind, const char *fmt, ...) _printf_(3, 4);

/* ---- peer_links.c ---------------------------------------------------------------------------- */

/* Why there is no link to @peer; logged when it is news. */
void peer_set_error(struct link_peer *peer, bool serious, const char *fmt, ...) _printf_(3, 4);
/* The end of a link's slice that begins now. */
uint64_t peer_links_slice(struct peer_links *links);
/* Next attempt after the back-off. */
void peer_retry(struct link_peer *peer);

#endif
