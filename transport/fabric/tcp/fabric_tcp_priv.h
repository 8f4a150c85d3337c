/* fabric_tcp_priv.h - what the files of the fabric over TCP share; for the model see fabric_tcp.c.
 */
#ifndef COMMD_FABRIC_TCP_PRIV_H
#define COMMD_FABRIC_TCP_PRIV_H

#include <netinet/in.h>
#include <sys/queue.h>

#include "transport/fabric/fabric.h"
#include "transport/fabric/fabric_net.h"

enum {
    INLINE_MAX = FABRIC_EXPRESS_MAX, /* bodies up to this are handed out from the read buffer */
    PART_MAX = 256 << 10,            /* of an asked body in one frame: other frames go in between */
    READ_MAX = 64 << 10,             /* more than a frame with an inline body */
    READ_AFTER_BODY = 4 << 10,
    BIG_MEMORY = 8,
    FAULT_MAX = 64,
    EXPRESS_TURNS = 64,  /* after an express message express connections are looked at in each */
    ANSWERS_MAX = 65536, /* to one peer, not yet written because the peer does not read */
    LOBBY_MAX = 128,
};

/* --- on the wire --------------------------------------------------------------------------
 * Both ends run the same build on the same byte order: the control plane compares versions before
 * it hands out tokens. */

struct tcp_addr {
    char magic[8];
    uint16_t version, family; /* 4 or 6 */
    uint16_t port, reserved;
    uint8_t ip[16]; /* in network order */
};

enum { HELLO_MAGIC = 0x636d6448, HELLO_VERSION = 4, ACCEPT_MAGIC = 0x636d6441 };
enum hello_of { HELLO_BEGINS, HELLO_MENDS, HELLO_UNKNOWN };

/* First on every connection, both ways. The side that accepted answers when it knows the token;
 * the side that connected then says ACCEPT_MAGIC: the answer was right. What follows is the stream.
 * An express connection (@express is 0 or 1) has the number @channels. */
struct hello {
    uint32_t magic;
    uint16_t version, channel, channels, express;
    /* enum hello_of: the stream begins; it goes on, behind the @got bytes that the sender has; or,
     * as an answer without a token: there is no such stream to go on with. */
    uint16_t of;
    uint16_t
        attempt; /* number of the attempt to go on; an earlier one that comes late cuts nothing */
    uint8_t token[32];
    uint64_t got;
};
_Static_assert(sizeof(struct hello) == 56, "wire layout");

enum frame_type {
    FRAME_MSG = 1, /* header, and body of @len bytes */
    FRAME_ASK,     /* header of a message whose body, of @size bytes, waits under @id */
    FRAME_GRANT,   /* send the body @id */
    FRAME_DROP,    /* the body @id is not wanted */
    FRAME_PART,    /* @len bytes of the granted body @id, from @size on */
    FRAME_BYE,     /* the other side has dropped this peer on purpose */
    FRAME_LAST = FRAME_BYE
};

struct frame {
    uint32_t len;
    uint16_t hdr_len;
    uint8_t type;
    uint8_t behind; /* MSG: not before the express message with number @id is handed out */
    uint32_t seq;   /* MSG and ASK: counts these, over all channels; express ones by themselves */
    uint32_t id;
    uint64_t size;
};
_Static_assert(sizeof(struct frame) == 24, "wire layout");

/* Something to be written: a message, or a frame of ours without a body. */
struct fabric_req {
    struct tcp_peer *peer; /* referenced */
    fabric_done_fn done;   /* NULL for frames of our own */
    void *arg;
    const uint8_t *body;
    size_t body_len;
    size_t next;           /* asked: the body's bytes before this are in frames already */
    const uint8_t *part;   /* of the body, in the current frame */
    size_t part_len, sent; /* @sent counts head and part */
    uint8_t *copy;         /* owned; where @part lies once the body is the caller's again */
    struct fabric_req
        *whole;    /* of a part that is kept: the request it is a part of; ends after it */
    unsigned lent; /* parts of the body that are still needed, itself included */
    bool held;     /* kept, and @part lies in the caller's memory */
    uint32_t id;
    bool asked;
    bool answer; /* GRANT, DROP */
    bool express, behind;
    uint16_t head_len;
    _Alignas(8) uint8_t head[sizeof(struct frame) + FABRIC_HDR_MAX];
    TAILQ_ENTRY(fabric_req) link; /* free, waiting, asked, or a connection's out or kept */
};

TAILQ_HEAD(req_list, fabric_req);

/* A body larger than INLINE_MAX on its way in; also the claim that the handler has. */
struct inbound {
    struct tcp_peer *peer;     /* referenced */
    uint8_t *buf;              /* the caller's once @taken, else ours or NULL */
    size_t len, got, promised; /* bytes in all, that are here, in frames that have begun */
    uint32_t id;
    bool asked;   /* it lies with the sender until granted; else it is coming already */
    bool taken;   /* recv() was called */
    bool calling; /* inside on_msg() */
    bool dropped; /* inside on_msg() drop() was called */
    fabric_done_fn done;
    void *arg;
    LIST_ENTRY(inbound) link;
};

enum conn_state {
    CONN_NEW, /* has no socket yet */
    CONN_CONNECTING,
    CONN_GREETING, /* connected by us: hello sent, answer awaited */
    CONN_LOBBY,    /* accepted: hello awaited, or its token is nobody's yet */
    CONN_ACCEPTED, /* hello answered; ACCEPT_MAGIC awaited */
    CONN_OPEN,
    CONN_BROKEN, /* was open; what its socket still has is read in this turn or the next */
    CONN_CUT,    /* has no socket, until a new one goes on with the stream */
    CONN_CLOSED, /* freed between two turns */
    CONN_NSTATES,
};

struct conn {
    struct tcp *t;
    struct tcp_peer *peer; /* borrowed: closed before it; NULL in the lobby */
    int fd;
    enum conn_state state;
    unsigned channel;
    uint64_t since_ms; /* when this state began; of a broken or cut one: when it was opened */
    /* Attempts to go on with the stream: our last, the last of the peer, the one that opened it. */
    uint16_t attempt, attempt_seen, opened;
    struct hello hello; /* the other side's */
    size_t hello_got;
    /* The stream, counted in bytes behind the greeting: read, written, and of these @kept from
     * @kept_at on; @socket_at, @got_at: where the present socket began. See fabric_tcp_mend.c. */
    uint64_t got, sent, kept_at, socket_at, got_at;
    uint64_t sent_most; /* the other side may have so much: @sent before it was set back */
    struct req_list kept;
    unsigned nkept, held;       /* @held: kept requests whose bodies lie in the caller's memory */
    unsigned patience;          /* looks since the other side acknowledged something */
    unsigned unlooked;          /* bytes since the kernel was asked how far the other side is */
    uint64_t cut_ms;            /* when it ceased to be open; 0: it is open, or never was */
    int err;                    /* that broke it */
    struct fabric_traffic past; /* of the sockets before */
    uint8_t *rest;              /* owned; read, but not a whole frame, or one that has to wait */
    size_t rest_len;
    bool parked; /* its next message has to wait for another channel */
    bool express;
    struct inbound *sink; /* of the frame being read; NULL: its bytes are thrown away */
    size_t sink_at, sink_left;
    unsigned big; /* counts down the small messages since a large one */
    struct req_list out;
    bool writing, polled_out; /* in t->writers; epoll is asked for EPOLLOUT */
    bool keeping;             /* in t->keepers */
    TAILQ_ENTRY(conn) link;   /* t->conns or t->closed */
    TAILQ_ENTRY(conn) write_link, keep_link;
};

TAILQ_HEAD(conn_list, conn);

/* Counted as open: its stream has a socket, which may have broken. */
static inline bool conn_is_open(const struct conn *c)
{
    return c->state == CONN_OPEN || c->state == CONN_BROKEN;
}

struct tcp_peer {
    struct tcp *t; /* borrowed: peers end before their fabric */
    unsigned refs; /* slot, lists, every request and body */
    unsigned index;
    enum peer_state state;
    bool failed; /* progress() will tell the caller */
    bool connects;
    int err;
    char fault[FAULT_MAX];
    uint8_t token[32], expect[32];
    struct sockaddr_storage addr;
    struct conn *conn[FABRIC_CHANNELS_MAX + 1]; /* the express one behind the channels */
    unsigned channels, nopen, turn;             /* @turn: which channel the next large body takes */
    unsigned express;                           /* 1: there is such a connection */
    unsigned answers;                           /* queued, or kept */
    unsigned mends;                             /* times a stream went on over another socket */
    bool told_connected;                        /* on_apart() */
    uint32_t seq_out, seq_in, next_id, express_out, express_in;
    uint64_t retry_ms; /* connect again then; 0: no need */
    unsigned retries;
    struct req_list waiting, asked;
    LIST_HEAD(, inbound) bodies;
    STAILQ_ENTRY(tcp_peer) fail_link, close_link;
    LIST_ENTRY(tcp_peer) all_link;
};

/* Its connections may be greeted and read. */
static inline bool peer_lives(const struct tcp_peer *peer)
{
    return (peer->state == PEER_GREETING || peer->state == PEER_UP) && !peer->failed;
}

struct tcp {
    struct fabric base;
    struct fabric_events ev;
    char congestion[16];
    unsigned channels, express; /* of peers that we connect to */
    unsigned mend_ms;           /* for a new socket; 0: a link ends with any of its sockets */
    int listener, epoll, timer;
    bool timer_on, deaf; /* deaf: out of descriptors, listening again at the next tick */
    struct sockaddr_storage addr;
    struct tcp_peer *slot[FABRIC_MAX_PEERS];
    LIST_HEAD(, tcp_peer) peers;
    STAILQ_HEAD(, tcp_peer) to_fail, to_close;
    struct conn_list conns, closed, writers, keepers;
    unsigned nconns, nopen, nexpress, nlobby; /* @nexpress: open */
    struct req_list free_reqs;
    unsigned nfree, nparked;
    unsigned express_turns; /* in so many more, express connections are looked at in each */
    bool long_read;         /* much was read in the last turn */
    bool touched;           /* something was queued since the last progress() */
    bool settle;            /* the engine wants to sleep: then no kept body may be the caller's */
    unsigned held, nbroken; /* over all connections */
    bool stopping;          /* in free(): completions only, no events */
    bool armed;
    unsigned turns;
    uint8_t *buf; /* READ_MAX bytes */
};

/* fabric_tcp.c */
struct fabric_req *tcp_req_new(struct tcp_peer *peer); /* NULL: no memory */
void tcp_req_free(struct fabric_req *req);
/* Tells the caller, once; only in progress() and free(). */
void tcp_tell(struct fabric_req *req, int st);
void tcp_finish(struct fabric_req *req, int st); /* the same, and frees it */

/* fabric_tcp_listen.c: listens, and has something to wait with */
int tcp_open(struct tcp *t, const struct fabric_conf *conf, char why[256]);
void tcp_close(struct tcp *t);
socklen_t addr_len(const struct sockaddr_storage *addr);
in_port_t *addr_port(struct sockaddr_storage *addr); /* in network order, as the next */
void *addr_ip(struct sockaddr_storage *addr);

/* fabric_tcp_conn.c */
void conn_set_state(struct conn *c, enum conn_state state); /* and counts */
/* On channel @channel, for a stream that begins, or one that is cut. */
int tcp_connect(struct tcp_peer *peer, unsigned channel);
void conn_close(struct conn *c);  /* drops what it had to write; freed by conns_sweep() */
void conn_unplug(struct conn *c); /* closes the socket alone */
/* The stream of @c goes on over the socket of @from, which is closed. */
void conn_plug(struct conn *c, struct conn *from);
/* Reads all that has come over the socket of a stream: the other side does not send again what our
 * kernel has acknowledged. */
void conn_empty(struct conn *c);
void conns_sweep(struct tcp *t);
void conn_watch(struct conn *c);  /* asks epoll for what the state needs */
void conn_settle(struct conn *c); /* its peer and channel are known */
/* Looks at sockets and timer; true if something happened. */
bool tcp_look(struct tcp *t);
void timer_need(struct tcp *t);
void set_int(int fd, int level, int option, int value);

/* fabric_tcp_out.c */
bool conn_write(struct conn *c);           /* true if bytes went out */
void conn_wrote(struct conn *c, size_t n); /* the first @n bytes of the queue are out */
void conn_want_write(struct conn *c);      /* there is something to be written */
void conn_stop_writing(struct conn *c);
void conn_put(struct conn *c, struct fabric_req *req); /* at the end of the queue */
/* Sends the message of @req, made by tcp_req_new() with its header behind the room for a frame. 1:
 * its body is no longer needed, and nobody is told; 0: on its way; negative errno: @req is still
 * the caller's. */
int peer_post(struct fabric_req *req, size_t hdr_len);
/* Queues a frame of our own. */
int conn_put_frame(struct conn *c, enum frame_type type, uint32_t id);
void peer_answered(struct tcp_peer *peer, const struct frame *f); /* GRANT or DROP */

/* fabric_tcp_in.c */
bool conn_read(struct conn *c); /* true if bytes came in */
/* Connections that waited for a message on another one go on; true if one did. */
bool conns_resume(struct tcp *t);
void conn_drain(struct conn *c); /* reads all that the socket has; bounded */
struct inbound *body_taken(struct tcp_peer *peer, const uint32_t *id); /* NULL: any; or none */
void body_free(struct inbound *b);
void body_end(struct inbound *b, int st); /* tells the caller, too */

/* fabric_tcp_mend.c */
size_t req_len(const struct fabric_req *req); /* in the stream */
/* @req has been written wholly; @may_tell: this is progress(), so callers may be told. True if the
 * body is not needed any more, and nobody has been told. */
bool conn_keep(struct conn *c, struct fabric_req *req, bool may_tell);
bool conns_settle(struct tcp *t); /* gives bodies back to callers; true if there was one */
/* @c was open and has broken. False: its peer cannot go on without it. */
bool conn_break(struct conn *c, int err);
bool conns_mend(struct tcp *t); /* reads what broken connections have, and cuts these */
void conn_cut(struct conn *c);
/* The other side has @got bytes of the stream: what follows is written again. If these are more or
 * fewer than it can have, the peer fails. */
void conn_rewind(struct conn *c, uint64_t got);
void conn_mended(struct conn *c); /* is open again */

/* fabric_tcp_traffic.c */
void conn_add_traffic(const struct conn *c, struct fabric_traffic *traffic);
/* The round trip to a peer (@rtt_us so far; 0: not known) with one more connection, whose round
 * trip is @us, and which sent @idle_ms ago. */
uint32_t tcp_rtt_add(uint32_t rtt_us, uint32_t us, uint32_t idle_ms);
bool tcp_traffic(struct fabric *f, unsigned index, struct fabric_traffic *ret_traffic);

/* fabric_tcp_peer.c */
int tcp_peer_add(struct fabric *f, unsigned index, const void *addr, size_t addr_len,
                 const uint8_t token[32], const uint8_t expect[32]);
void tcp_peer_del(struct fabric *f, unsigned index);
void peer_unref(struct tcp_peer *peer);
/* progress() reports the failure. */
void peer_fail(struct tcp_peer *peer, int err, const char *fault);
bool peers_reap(struct tcp *t); /* reports failures, closes connections */
/* A hello is complete in @c. */
void peer_greeted(struct conn *c);
/* @c has ended by itself; @err: positive errno, 0 at the end of the stream. */
void conn_lost(struct conn *c, int err);
void retry_later(struct tcp_peer *peer);
void peer_not_mended(struct conn *c); /* mend_ms are over */
bool peer_connected(const struct tcp_peer *peer);
void peer_tell_apart(struct tcp_peer *peer);  /* if that has changed */
void peer_opened(struct conn *c);             /* one side has accepted the other's answer on @c */
void peers_tick(struct tcp *t, uint64_t now); /* connects again */

#endif
