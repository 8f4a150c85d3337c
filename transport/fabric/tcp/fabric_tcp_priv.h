/* fabric_tcp_priv.h - what the files of the fabric over TCP share; for the model see fabric_tcp.c.
 */
#ifndef COMMD_FABRIC_TCP_PRIV_H
#define COMMD_FABRIC_TCP_PRIV_H

#include <netinet/in.h>
#include <sys/queue.h>

#include "transport/fabric/fabric.h"
#include "transport/fabric/fabric_net.h"
#include "transport/fabric/tcp/seal.h"
#include "transport/fabric/tcp/seal_threads.h"
#include "shm/util/rivals.h"

enum {
    INLINE_MAX = FABRIC_EXPRESS_MAX, /* bodies up to this are handed out from the read buffer */
    PART_MAX = 256 << 10,            /* of an asked body in one frame: other frames go in between */
    READ_MAX = 64 << 10,             /* more than a frame with an inline body */
    JOB_RECORDS =
        4, /* at most: what is read at once, and is in a core's cache when it is written */
    JOB_RECORDS_MIN = 2,   /* one costs little more than to hand it over */
    JOB_BODY = 64 << 10,   /* bodies from this on are sealed in jobs, */
    JOB_SEALS = 128 << 10, /* of so much: each is written by a system call of its own */
    JOBS_PER_THREAD = 4,
    READ_SEALED = JOB_RECORDS * (SEAL_DATA + SEAL_MORE),
    READ_AFTER_BODY = 4 << 10,
    BIG_MEMORY = 8,
    FAULT_MAX = 128,
    TICK_MS = 100,
    EXPRESS_TURNS = 64,  /* after an express message express connections are looked at in each */
    ANSWERS_MAX = 65536, /* to one peer, not yet written because the peer does not read */
    LOBBY_MAX = 128,
    LISTEN_QUEUE = 1024, /* a crowd that comes at once: a peer behind it is not turned away */
    ID_LEN = 16,
    MAC_LEN = 16,
    NONCE_LEN = 16,
    PROBE_LEN = SEAL_DATA - 24, /* with its frame: a whole record */
    PROBE_TICKS = 10,           /* of quiet, and what was sealed is followed by a probe */
    /* For the other side to have a fresh secret, too: more than the longest time for which a commd
     * may be away without its node being lost (timeouts.node, timeouts.restart). */
    KEY_TICKS = 20 * 60 * 1000 / TICK_MS,
};

/* --- on the wire --------------------------------------------------------------------------
 * Both ends run the same build on the same byte order: the control plane compares versions before
 * it hands out tokens. */

/* @version is the oldest that this side lets in, @newest the one that it speaks best. A side of
 * HELLO_OLD has 0 for @wants and @newest, and looks at neither. */
struct tcp_addr {
    char magic[8];
    uint16_t version, family; /* 4 or 6 */
    uint16_t port;
    uint8_t wants, newest; /* enum fabric_encryption, and WANTS_TRUSTED for a trusted network */
    uint8_t ip[16];        /* in network order */
};
_Static_assert(sizeof(struct tcp_addr) == 32, "of all versions");
enum { WANTS_TRUSTED = 0x80 };

enum { HELLO_MAGIC = 0x636d6448, HELLO_VERSION = 5, HELLO_OLD = 4, ACCEPT_MAGIC = 0x636d6441 };
enum hello_of { HELLO_BEGINS, HELLO_MENDS, HELLO_UNKNOWN };

/* First on every connection, both ways. The side that accepted answers when it knows the id; the
 * side that connected then says ACCEPT: the answer was right. What follows is the stream. An
 * express connection (@express is 0 or 1) has the number @channels. Tokens never go over the
 * network: fabric_tcp_greet.c. */
struct hello {
    uint32_t magic;
    uint16_t version, channel, channels, express;
    /* enum hello_of: the stream begins; it goes on, behind the @got bytes that the sender has; or,
     * as an answer without an id: there is no such stream to go on with. */
    uint16_t of;
    uint16_t
        attempt; /* number of the attempt to go on; an earlier one that comes late cuts nothing */
    uint16_t ciphers; /* enum seal_cipher: those it has; in an answer: the one; 0: in the clear */
    uint16_t reserved[3];
    uint64_t got;
    union {
        struct {
            uint8_t id[ID_LEN], nonce[NONCE_LEN]; /* whose, and 16 random bytes */
        };
        uint8_t heard[32]; /* HELLO_UNKNOWN: hello_digest(), or nothing but 0: it does not say */
        uint8_t token[32]; /* not on the wire: what a hello of HELLO_OLD says (fabric_tcp_old.c) */
    };
    uint8_t mac[MAC_LEN]; /* of all before it, and of the hello that it answers; the last field */
};
_Static_assert(sizeof(struct hello) == 80, "wire layout");

struct accept {
    uint32_t magic;
    uint8_t mac[MAC_LEN];
};
_Static_assert(sizeof(struct accept) == 20, "wire layout");

enum frame_type {
    FRAME_MSG = 1, /* header, and body of @len bytes */
    FRAME_ASK,     /* header of a message whose body, of @size bytes, waits under @id */
    FRAME_GRANT,   /* send the body @id */
    FRAME_DROP,    /* the body @id is not wanted */
    FRAME_PART,    /* @len bytes of the granted body @id, from @size on */
    FRAME_BYE,     /* the other side has dropped this peer on purpose; @id: enum bye */
    FRAME_KEY,     /* encrypted streams: the sender has the fresh secret with the name @id */
    FRAME_PROBE,   /* encrypted streams: PROBE_LEN bytes for nobody, to be answered */
    FRAME_PROBED,  /* encrypted streams: the answer to one of these */
    FRAME_LAST = FRAME_PROBED
};

enum bye {
    BYE_PLAIN,
    BYE_FORGED, /* what came there was not what was sent here */
    BYE_SILENT  /* what was sent there had no answer */
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
_Static_assert(sizeof(struct frame) + PROBE_LEN == SEAL_DATA, "a probe is one record");

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
    unsigned lent; /* parts of the body that are still needed, itself included; and jobs */
    bool held;     /* kept, and @part lies in the caller's memory */
    bool sealing;  /* a job makes it: not to be written yet */
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
    unsigned jobs; /* that write into it */
    bool asked;    /* it lies with the sender until granted; else it is coming already */
    bool taken;    /* recv() was called */
    bool calling;  /* inside on_msg() */
    bool dropped;  /* inside on_msg() drop() was called */
    fabric_done_fn done;
    void *arg;
    LIST_ENTRY(inbound) link;
};

/* What is read at once. */
struct read_buf {
    unsigned refs; /* of the fabric that reads into it, and of jobs that read it */
    uint8_t data[READ_SEALED];
};

/* Some records of a large body, with another thread: fabric_tcp_jobs.c. */
struct seal_job {
    _Alignas(CACHELINE) struct seal_task task;
    TAILQ_ENTRY(seal_job) link; /* t->jobs, in the order of the streams, or t->free_jobs */
    struct conn *c;             /* borrowed: a connection that is closed has none */
    struct seal_batch batch;
    unsigned records;
    const uint8_t *in;
    uint8_t *out;
    size_t len; /* of the data */
    bool failed;
    struct fabric_req *sealed, *whole; /* it seals: what it makes, and of which body */
    struct inbound *body;              /* it opens: for this one; NULL: that is gone */
    struct read_buf *chunk;            /* where the records lie; referenced */
};
TAILQ_HEAD(job_list, seal_job);

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
    struct rival rival; /* in the lobby */
    uint64_t since_ms;  /* when this state began; of a broken or cut one: when it was opened */
    /* Attempts to go on with the stream: our last, the last of the peer, the one that opened it. */
    uint16_t attempt, attempt_seen, opened;
    struct hello hello; /* the other side's */
    size_t hello_got;
    struct hello said;          /* ours */
    struct accept accept;       /* ours, or what the other side has to say */
    struct accept heard;        /* what it says */
    uint8_t begun[MAC_LEN];     /* the mac of the ACCEPT with which the stream began */
    struct seal *seals, *opens; /* owned; NULL: in the clear, or there are no keys yet */
    uint32_t key;               /* name of the fresh secret that the other side has; 0: of none */
    uint32_t key_used;          /* of that which our records are of */
    struct req_list plain;      /* to be sealed, and then in @out */
    size_t ahead;               /* bytes of @out that are sealed and not written */
    unsigned jobs;              /* under way */
    unsigned key_ticks;         /* for the other side to have ours; 0: it has */
    unsigned probe_ticks;       /* until a probe is sent; 0: none is due */
    unsigned probes;            /* that are not answered */
    unsigned answer_ticks;      /* of these, in which nothing has moved: until the link ends */
    uint64_t moved;             /* how far all was then */
    uint8_t *sealed;            /* owned; read, but not a whole record */
    size_t sealed_len;
    /* The stream, counted in bytes behind the greeting: read, written, and of these @kept from
     * @kept_at on; @socket_at, @got_at: where the present socket began. See fabric_tcp_mend.c. */
    uint64_t got, sent, kept_at, socket_at, got_at;
    uint64_t sent_most; /* the other side may have so much: @sent before it was set back */
    struct req_list kept;
    unsigned nkept, held;       /* @held: kept requests whose bodies lie in the caller's memory */
    unsigned patience;          /* looks since the other side acknowledged something */
    unsigned unlooked;          /* bytes since the kernel was asked how far the other side is */
    uint64_t cut_ms;            /* when it ceased to be open; 0: it is open, or never was */
    unsigned ack_ticks;         /* until we look who acknowledges; 0: nothing is written */
    uint64_t silent_ms;         /* nobody has acknowledged since; 0: somebody does */
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
    TAILQ_ENTRY(conn) link;   /* t->lobby, t->conns or t->closed */
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
    uint8_t token[32], expect[32]; /* kept for a peer of before alone; else gone once added */
    /* The secrets of both sides, made of the tokens: for macs, and for the keys of streams. The
     * latter is gone once all streams have begun: who reads our memory then cannot read what was
     * sent before the keys of now. */
    uint8_t link[SEAL_SECRET], streams[SEAL_SECRET];
    uint8_t id[ID_LEN], their_id[ID_LEN];
    uint16_t version; /* of the hellos that the two say */
    bool encrypted;
    uint8_t fresh[SEAL_SECRET]; /* from the TLS session of the two commds */
    uint32_t fresh_name;        /* 0: there is none yet */
    struct sockaddr_storage addr;
    struct conn *conn[FABRIC_CHANNELS_MAX + 1]; /* the express one behind the channels */
    unsigned channels, nopen, turn;             /* @turn: which channel the next large body takes */
    unsigned express;                           /* 1: there is such a connection */
    unsigned answers;                           /* queued, or kept */
    unsigned mends;                             /* times a stream went on over another socket */
    bool told_connected;                        /* on_apart() */
    uint64_t up_ms;                             /* when it came to be PEER_UP */
    uint64_t refused_ms; /* since then each ACCEPT that came was wrong; 0: none was */
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
    struct fabric_wants wants;
    int listener, epoll, timer, rest;
    bool timer_on;
    long rest_ns; /* the listener is not looked at, and the timer @rest expires so often; or 0 */
    struct sockaddr_storage addr;
    struct tcp_peer *slot[FABRIC_MAX_PEERS];
    LIST_HEAD(, tcp_peer) peers;
    STAILQ_HEAD(, tcp_peer) to_fail, to_close;
    struct conn_list lobby, conns, closed, writers, keepers; /* lobby: oldest first */
    unsigned nconns, nopen, nexpress, nlobby;                /* @nexpress: open */
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
    struct read_buf *chunk, *spare; /* owned; @spare: in its place once a job has it; or NULL */
    uint8_t *buf;                   /* borrowed: of @chunk; READ_SEALED is more than READ_MAX */
    struct seal_threads *threads;   /* owned; NULL: there are none */
    struct seal_job *job_memory;    /* owned */
    struct job_list jobs, free_jobs;
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
void conn_put_probe(struct conn *c); /* or does without, if there is no memory */
void peer_answered(struct tcp_peer *peer, const struct frame *f); /* GRANT or DROP */
void req_next_part(struct fabric_req *req);                       /* of an asked body */

/* fabric_tcp_in.c */
bool conn_read(struct conn *c); /* true if bytes came in */
/* Connections that waited for a message on another one go on; true if one did. */
bool conns_resume(struct tcp *t);
void conn_drain(struct conn *c); /* reads all that the socket has; bounded */
struct inbound *body_taken(struct tcp_peer *peer, const uint32_t *id); /* NULL: any; or none */
/* @n bytes have reached the sink, or were thrown away. */
void sink_got(struct conn *c, size_t n);
void sink_pass(struct conn *c, size_t n);   /* they will */
void body_got(struct inbound *b, size_t n); /* they have */
/* Where the next @n bytes of the stream belong; NULL: that is not known of all of them yet. */
struct inbound *conn_sink(const struct conn *c, size_t n);
/* Parses @p, behind what is kept already; false: no memory. */
bool conn_feed(struct conn *c, const uint8_t *p, size_t n);
void body_free(struct inbound *b);
void body_end(struct inbound *b, int st); /* tells the caller, too */

/* fabric_tcp_greet.c: who is who */
int peer_ids(struct tcp_peer *peer);     /* and secrets, from its tokens */
void peer_forget(struct tcp_peer *peer); /* all its streams have begun */
/* Our hello on @c, as the side that connects, or as the answer to c->hello. 0, or negative errno:
 * no memory, or no random numbers. */
int hello_say(struct conn *c, struct tcp_peer *peer, struct hello *hello, bool answers);
/* Of @peer; as an answer, to @asked; and if it goes on with a stream, with that of now. */
bool hello_is_of(const struct tcp_peer *peer, const struct hello *hello, const struct hello *asked);
/* Both hellos are known: what ACCEPT has to be, and the keys of a stream that begins. */
int conn_agree(struct conn *c, struct tcp_peer *peer, bool connects);
bool accept_is_right(const struct conn *c);
/* By which who said @hello knows whether it was heard so. 0, or negative errno: no memory. */
int hello_digest(const struct hello *hello, uint8_t ret_digest[32]);
/* HELLO_UNKNOWN has come: to what @c has said, and not to what somebody has made of it? */
bool hello_was_heard(const struct conn *c);

/* fabric_tcp_old.c: peers of the version before, which cannot encrypt */
/* May such a peer at @addr be greeted? NULL: one anywhere. */
bool old_is_let_in(const struct tcp *t, const struct sockaddr_storage *addr);
/* @addr NULL: are we? */
bool both_on_loopback(const struct tcp *t, const struct sockaddr_storage *addr);
bool peer_is_old(const struct tcp_peer *peer);
size_t hello_size(const struct conn *c);       /* of the other side's, as far as is known */
void hello_read(struct conn *c);               /* such a hello becomes one of today's */
bool hello_send(int fd, const struct hello *); /* in the layout of its version */
bool old_hello_is_of(const struct tcp_peer *peer, const struct hello *hello);
size_t accept_size(const struct tcp_peer *peer);

/* fabric_tcp_seal.c: streams that are encrypted */
struct req_list *conn_queue(struct conn *c); /* of what is to be written */
/* All of it; negative errno: not so, and nothing may follow in the stream. */
int conn_seal(struct conn *c, struct fabric_req *req);
bool conn_seal_more(struct conn *c); /* what is queued, as far as is needed now */
/* Is there nothing that could be written now? What jobs make is not there yet. */
bool conn_has_written(const struct conn *c);
/* The caller's @req has been sealed, but for the jobs that do so: 1 if there are none, and it is
 * freed; 0: it ends with the last one. */
int req_sealed(struct fabric_req *req, bool may_tell);
void conn_resealed(struct conn *c); /* @c->out was put together anew */
/* How much to read at most: if the records that come are full ones, it ends where a record does. */
size_t conn_sealed_want(const struct conn *c);
ssize_t conn_recv_sealed(struct conn *c); /* one recv(), and what follows from it */
/* At each tick of an open connection; true: at the next one, too. */
bool conn_seal_tick(struct conn *c, uint64_t now);
void conn_answered(struct conn *c); /* FRAME_PROBED */
void conn_unseal(struct conn *c);   /* has no keys any more */
void conn_tell_key(struct conn *c); /* the stream has begun, or there is a fresh secret */
void conn_hear_key(struct conn *c, uint32_t name); /* the other side has that one */
void tcp_peer_key(struct fabric *f, unsigned index, const uint8_t secret[32]);

#define TEXT_NOT_SENT_SO TEXT_FORGED ": what came was not sent so"
/* fabric_tcp_jobs.c: with other threads */
int jobs_init(struct tcp *t, unsigned threads); /* 0: without; negative errno: it cannot */
void jobs_fini(struct tcp *t);
struct read_buf *chunk_new(void); /* NULL: no memory */
void chunk_next(struct tcp *t); /* what was read may be with jobs: then another one is read into */
/* Some of the @len bytes at @body, of @whole, are sealed to @to, in @sealed: how many; 0: none. */
size_t job_seal(struct conn *c, struct fabric_req *sealed, uint8_t *to, struct fabric_req *whole,
                const uint8_t *body, size_t len);
/* The next records, at @p in the buffer that was read into, are opened to where they belong: how
 * many bytes of them; 0: not so. */
size_t job_open(struct conn *c, const uint8_t *p, size_t len);
bool jobs_turn(struct tcp *t);        /* what has come of those that are done; true if one was */
bool jobs_arm(struct tcp *t);         /* before a sleep; false: one is done */
void jobs_of_body(struct inbound *b); /* ends them: then nobody writes into it */
void jobs_of_req(struct fabric_req *req); /* ends them: then nobody reads it */
void conn_await_opens(struct conn *c);    /* ends those that open: what has come is there */
/* Ends all of @c. Bodies that were sealed go to @ret_doomed. */
void conn_end_jobs(struct conn *c, struct req_list *ret_doomed);

/* fabric_tcp_mend.c */
size_t req_len(const struct fabric_req *req); /* in the stream */
/* @req has been written wholly; @may_tell: this is progress(), so callers may be told. True if the
 * body is not needed any more, and nobody has been told. */
bool conn_keep(struct conn *c, struct fabric_req *req, bool may_tell);
bool conns_settle(struct tcp *t); /* gives bodies back to callers; true if there was one */
/* @c was open and has broken. False: its peer cannot go on without it. */
bool conn_break(struct conn *c, int err);
uint64_t conn_acked(const struct conn *c); /* bytes of the stream that the other kernel has */
bool conns_mend(struct tcp *t);            /* reads what broken connections have, and cuts these */
void conn_cut(struct conn *c);
/* The other side has @got bytes of the stream: what follows is written again. If these are more or
 * fewer than it can have, the peer fails. */
void conn_rewind(struct conn *c, uint64_t got);
void conn_mended(struct conn *c);     /* is open again */
void conn_expect_ack(struct conn *c); /* something has been written */
/* At each tick of an open connection: breaks it if nobody acknowledges. True: at the next one, too.
 */
bool conn_check_ack(struct conn *c);

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
void peer_refused(struct conn *c);            /* it said another ACCEPT than it has to */
void peer_opened(struct conn *c);             /* one side has accepted the other's answer on @c */
void peers_tick(struct tcp *t, uint64_t now); /* connects again */

#endif
