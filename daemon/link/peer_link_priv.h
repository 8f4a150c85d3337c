/* peer_link_priv.h - private to peer_link.c (one link) and peer_links.c (all nodes, and which of
 * two nodes connects to the other). */
#ifndef COMMD_PEER_LINK_PRIV_H
#define COMMD_PEER_LINK_PRIV_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <sys/queue.h>

#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/link/door.h"
#include "daemon/link/peer_link.h"
#include "daemon/process/log_limit.h"
#include "daemon/link/tls.h"
#include "shm/proto/codec.h"
#include "shm/util/rivals.h"

enum {
    LINK_HALF_OPEN = 64,
    LINK_DEADLINE_MS = 2000,
    LINK_BACKOFF_MIN_MS = 50,
    LINK_BACKOFF_MAX_MS = 2000,
    LINK_ASK_MS = 1000,
    LINK_STABLE_MS = 500,    /* after a link that lived so long, the back-off begins anew */
    LINK_ACCEPT_BUDGET = 16, /* then none for LINK_ACCEPT_MS: see door.h */
    LINK_ACCEPT_MS = 1,
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
    uint64_t ask_ms; /* not before that is a node that connects to us asked for its certificate */
    unsigned offer;  /* index of the proof to offer; the next one after a refusal */
    struct msg_peer_keys keys; /* what the node says of its keys; "": nothing yet */
    char error[MSG_TEXT_MAX];  /* why there is no link */
};

struct link {
    TAILQ_ENTRY(link) entry;
    struct peer_links *links; /* borrowed */
    struct link_peer *peer;   /* borrowed; NULL: not known yet */
    enum link_state state;
    bool inbound;
    int fd;                  /* owned while CONNECTING */
    struct event *connected; /* owned: connected, or, inbound, the first byte is here */
    struct event *timer;     /* owned: for the deadline and for doom */
    struct bufferevent *bev; /* owned, with its SSL and socket */
    struct sock_addr from;
    bool stranger;          /* @from is not in cluster.nodes */
    bool looks;             /* ours, and ends when it is connected: peer_links_look() */
    struct rival rival;     /* of @from, while it is half-open */
    char key[TLS_KEY_NAME]; /* name of the key by which the link was made, after the handshake */
    uint64_t incarnation;   /* of the other commd, once UP */
    uint64_t since_ms;
    bool refused;            /* it is doomed for what it cannot prove any more */
    char doom[MSG_TEXT_MAX]; /* not "": the link ends, for this reason, in the next turn */
};

TAILQ_HEAD(link_list, link);

/* Only to see whether keys and certificates hold: of a node that connects to us, to which we do
 * not.
 */
static inline bool link_asks(const struct link *link)
{
    return !link->inbound && !link->peer->retry;
}

struct peer_links {
    struct event_base *base; /* borrowed */
    const struct peer_links_ops *ops;
    void *arg;
    struct tls *tls; /* owned */
    char cluster[MSG_NAME_MAX];
    uint64_t incarnation, node_timeout_ms;
    unsigned deadline_ms;    /* until a link is UP */
    struct link_peer *peers; /* owned */
    unsigned npeers, self;
    struct door door;
    struct event *expiry;  /* owned: when to look at the date of our certificate */
    struct link_list half; /* owned: inbound, not UP; oldest first */
    struct link_list live; /* owned: the others */
    struct link_list dead; /* owned: freed at the end of the turn */
    unsigned nhalf;
    struct log_limit limit; /* of lines that nodes and addresses cause */
    struct peer_links_counts counts;
    uint32_t jitter;
    bool draining;
    uint64_t turn_until_us; /* end of the nodes' time in this turn; 0: nothing has come yet */
    bool took;              /* nodes have sent something in this pass of the loop */
};

/* ---- peer_link.c ----------------------------------------------------------------------------- */

/* Takes @fd, also when it returns NULL. @peer NULL: the other side has connected to us. */
struct link *link_new(struct peer_links *links, struct link_peer *peer, int fd);
struct link *link_free(struct link *link);
/* Makes the link DEAD, and takes it out of all lists but links->dead. */
void link_bury(struct link *link);
/* The same, of somebody who has connected to us and is owed no orderly end. */
void link_give_up(struct link *link);
void link_start_tls(struct link *link);
int link_send(struct link *link, const struct msg *msg);
/* Tells the other side which keys we have. */
void link_send_keys(struct link *link);
/* Ends a link whose key is none of ours any more, if the node there has one in common with us.
 * @shrink: its key was left out, so it ends whatever the node says. */
void link_review_key(struct link *link, bool shrink);
/* Closes the link in the next turn; @text is the reason. */
void link_doom(struct link *link, const char *text);
/* Does the link stand on what counts now? If not it ends: at once, or, if it is up, in the next
 * turn. @differs: as of tls_differs(), so what is not up yet begins anew. */
void link_prove(struct link *link, bool differs);
/* All messages are out: tells the other side so, which closes then. */
void link_finish(struct link *link);
/* Logs that a connection to us was refused: one line for each address and kind. */
void link_log_refused(struct link *link, const char *kind, const char *fmt, ...) _printf_(3, 4);

/* ---- peer_links.c ---------------------------------------------------------------------------- */

/* Notes why there is no link to @peer, and logs it if the reason is new. */
void peer_set_error(struct link_peer *peer, bool serious, const char *fmt, ...) _printf_(3, 4);
/* Who has proven that it is one of us, but not which, as a node of another version. But the address
 * of @link may be that of one node that we wait for, and of no other. Then that node's error is
 * @text. The log has a line about the address already. */
void peer_blame_by_address(const struct link *link, const char *text);
/* Who has proven nothing, as a node with another key or a certificate that has expired. Any program
 * on that node's host may have come so: it changes nothing of what is known of the node, and we
 * look ourselves, by a connection to the node (link_asks()). */
void peer_ask_by_address(const struct link *link);
/* A handshake that we have begun with @peer ended so. Tells the owner, if @text, which may be NULL,
 * says that the certificate of @peer does not hold there, or ours with it. */
void peer_tell_refused(struct link_peer *peer, const char *text);
/* When the time slice of a link that begins now will end. */
uint64_t peer_links_slice(struct peer_links *links);
/* Sets the timer for the next attempt, after the back-off. */
void peer_retry(struct link_peer *peer);

#endif
