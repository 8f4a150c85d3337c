/* fabric_ucx_priv.h - shared by fabric_ucx.c (the model, the loop), fabric_ucx_msg.c (messages),
 * fabric_ucx_peer.c (endpoints, hello) and fabric_ucx_init.c (configuration, checks). */
#ifndef COMMD_FABRIC_UCX_PRIV_H
#define COMMD_FABRIC_UCX_PRIV_H

#include <sys/queue.h>
#include <ucp/api/ucp.h>

#include "transport/fabric/fabric_net.h"
#include "transport/fabric/ucx/fabric_ucx.h"

enum { AM_HELLO = 1, AM_DATA = 2 };

enum { WIRE_MAGIC = 0x436d6446, WIRE_VERSION = 3 };

enum hello_says {
    HELLO_ADDED,    /* I have added you */
    HELLO_ACCEPTED, /* and your hello was right */
    HELLO_BYE,      /* I have deleted you */
};

/* First on every endpoint, again as the acknowledgement, and last. Both ends run the same build
 * on the same byte order: the control plane compares versions before it hands out tokens. */
struct wire_hello {
    uint32_t magic;
    uint16_t version;
    uint16_t slot;   /* the number under which the sender knows the receiver */
    uint32_t says;   /* enum hello_says */
    uint32_t serial; /* of the sender's endpoint, see struct ucx_route */
    uint8_t token[32];
};

struct wire_data {
    uint64_t cookie; /* from the sender's token: names pair and incarnation */
    uint32_t seq;    /* counts the messages of this endpoint */
    uint16_t slot;   /* receiver's number for the sender, from its hello */
    uint16_t reserved;
};

struct fabric_req {
    struct ucx_peer *peer; /* referenced */
    fabric_done_fn done;   /* NULL for our own messages */
    void *arg;
    const void *body;
    size_t body_len;
    int st;
    uint16_t hdr_len;
    STAILQ_ENTRY(fabric_req) link; /* free list, peer's waiting, or finished */
    /* UCX keeps a pointer to the header until the send is complete (until 1.14). */
    union {
        struct wire_hello hello;
        struct {
            struct wire_data data;
            uint8_t user[FABRIC_HDR_MAX];
        };
    } h;
};

STAILQ_HEAD(req_list, fabric_req);

/* A rendezvous body that still lies with its sender. */
struct ucx_claim {
    struct ucx_peer *peer; /* referenced */
    void *desc;            /* UCX's, ours until received or released */
    size_t len;
    bool in_callback; /* UCX forbids releasing the descriptor inside on_data() */
    bool dropped;
    LIST_ENTRY(ucx_claim) link;
};

/* A worker to which there is, or was, a peer. UCX pairs the n-th endpoint that one worker opens
 * to another with the n-th in the other direction: a route counts as UCX does. It is kept until
 * free(), as UCX keeps its own count. */
struct ucx_route {
    LIST_ENTRY(ucx_route) link;
    uint32_t opened;
    size_t len;
    _Alignas(8) uint8_t addr[]; /* with zeroes behind it, see route_to() */
};

/* An endpoint that nobody needs but that UCX has not wired up yet. */
struct ucx_spent {
    LIST_ENTRY(ucx_spent) link;
    struct ucx_peer *peer; /* by the endpoint's reference */
    ucp_ep_h ep;           /* NULL: it is closed */
    bool flushing;
};

struct ucx_peer {
    struct ucx *u; /* borrowed: peers end before their fabric */
    unsigned refs; /* slot, endpoint, every request and claim */
    unsigned index;
    enum peer_state state;
    uint64_t up_ms;
    struct ucx_route *route; /* borrowed: routes end with their fabric */
    ucp_ep_h ep;
    uint32_t serial; /* number of ep among the endpoints of the route */
    uint32_t wanted; /* number that ep needs, to be paired with the other side's */
    bool lagging;    /* queued to open endpoints until ep has that number */
    bool settled;    /* UCX has wired ep up, or given it up: it may be closed by force */
    bool failed;     /* UCX reported the endpoint; progress() will tell the caller */
    bool greeted;    /* a right hello came in */
    bool ack_sent;
    int err;           /* of the failure */
    const char *fault; /* what went wrong; a literal, or UCX's text for a status */
    uint8_t token[32], expect[32];
    uint64_t cookie_out, cookie_in;
    uint32_t seq_out, seq_in;
    uint16_t remote_slot;
    uint64_t sent, received; /* bytes of messages */
    struct req_list waiting;
    STAILQ_ENTRY(ucx_peer) fail_link, close_link, lag_link;
    LIST_ENTRY(ucx_peer) all_link;
};

struct slab {
    struct slab *next;
};

struct ucx {
    struct fabric base;
    struct fabric_events ev;
    size_t eager_max;
    bool loopback;
    char congestion[16]; /* "system", "auto" or what the kernel has */
    ucp_context_h ctx;
    ucp_worker_h worker;
    int efd;
    size_t req_space; /* bytes UCX wants before a request pointer */
    struct ucx_peer *slot[FABRIC_MAX_PEERS];
    LIST_HEAD(, ucx_peer) peers; /* all that UCX or a slot still knows */
    STAILQ_HEAD(, ucx_peer) to_fail, to_close, to_reopen;
    LIST_HEAD(, ucx_route) routes;
    LIST_HEAD(, ucx_spent) spent;
    LIST_HEAD(, ucx_claim) claims;
    struct req_list free_reqs, finished;
    struct slab *slabs;
    bool calling;  /* inside a ucp_* call that is not progress: callbacks must wait */
    bool touched;  /* a ucp_* call was made since the last progress */
    bool stopping; /* in free(): completions only, no events */
    bool forcing;  /* in free(): endpoints are closed as they are */
    bool flushing; /* in free(): the worker */
    bool armed, polling;
    unsigned spins;
};

/* fabric_ucx_msg.c */
int ucx_send(struct fabric *f, unsigned index, const void *hdr, size_t hdr_len, const void *body,
             size_t body_len, fabric_done_fn done, void *arg);
int ucx_recv(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done, void *arg);
void ucx_drop(struct fabric *f, void *claim);
bool ucx_run_finished(struct ucx *u);
ucs_status_t ucx_on_data(void *arg, const void *hdr, size_t hdr_len, void *data, size_t len,
                         const ucp_am_recv_param_t *param);
struct fabric_req *ucx_req_new(struct ucx_peer *peer);
void ucx_req_free(struct fabric_req *req);
/* 1: complete, 0: in flight, negative errno. The request stays the caller's unless 0. */
int ucx_post(struct fabric_req *req, unsigned am_id, const void *hdr, size_t hdr_len);
int ucx_post_data(struct fabric_req *req);
void ucx_finish(struct fabric_req *req, int st);

/* fabric_ucx_peer.c */
ucs_status_t ucx_on_hello(void *arg, const void *hdr, size_t hdr_len, void *data, size_t len,
                          const ucp_am_recv_param_t *param);
int ucx_peer_add(struct fabric *f, unsigned index, const void *addr, size_t addr_len,
                 const uint8_t token[32], const uint8_t expect[32]);
void ucx_peer_del(struct fabric *f, unsigned index);
void ucx_peer_unref(struct ucx_peer *peer);
/* @fault is kept, not copied. progress() reports it. */
void ucx_peer_fail(struct ucx_peer *peer, int err, const char *fault);
bool ucx_peers_reap(struct ucx *u); /* reopens and closes endpoints, reports failures */

/* fabric_ucx_init.c */
int ucx_open(struct ucx *u, const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
             char why[256]);
void ucx_close(struct ucx *u);
int ucx_errno(ucs_status_t st);
/* Sets the congestion control of all TCP sockets that there are. */
void ucx_sockets_tune(const char *wish);

#endif
