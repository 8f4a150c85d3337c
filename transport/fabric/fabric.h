/* fabric.h - what the engine knows of a network: messages with a small header and an optional body
 * to numbered peers. Implementations: fabric_tcp.c (plain TCP) and fabric_ucx.c (UCX active
 * messages); for tests tests/lib/fabric_loop.c (in one process) and fabric_fault.c (wraps any).
 * Single-threaded: every call and every callback happens on the engine's thread. */
#ifndef COMMD_FABRIC_H
#define COMMD_FABRIC_H

#undef NDEBUG /* what is asserted here is cheap: it holds in every build */
#include <assert.h>

#include "shm/model/eager.h"
#include "shm/util/base.h"
#include "shm/util/encryption.h"

struct fabric;
struct fabric_req; /* one send or receive in flight; owned by the fabric */

enum {
    FABRIC_HDR_MAX = 256,
    FABRIC_ADDR_MAX = 1024,
    FABRIC_MAX_PEERS = 1024,
    FABRIC_CHANNELS_MAX = 16,
    FABRIC_EXPRESS_MAX = 32 << 10,
};

/* st: 0, or negative errno (-ECANCELED when the peer was dropped, -EIO on a broken link) */
typedef void (*fabric_done_fn)(void *arg, int st);

/* An arrived message. Messages of one peer arrive in the order in which they were sent, except
 * those sent as `express`. @body is NULL when the body still lies with the sender ("rendezvous"),
 * or is still on its way: then @claim is not NULL, and the handler keeps it until it calls
 * fabric->ops->recv or fabric->ops->drop, which it may do at once. A @body is valid during the call
 * and has no particular alignment; @hdr is aligned to 16 bytes and valid during the call. */
struct fabric_msg {
    unsigned peer;
    const void *hdr;
    size_t hdr_len;
    const void *body;
    size_t body_len;
    void *claim;
};

struct fabric_events {
    void (*on_msg)(void *arg, const struct fabric_msg *msg);
    /* The link to @peer broke. Every send and recv of that peer completes with an error
     * before or after this call; none is lost. The peer stays "down" until peer_del. @err is
     * -ETIMEDOUT if the network did not let the link be mended in time, -EBADMSG if somebody has
     * changed what was sent: then the other side may live. -ECONNRESET: the other side has ended
     * the link, and may know why. */
    void (*on_peer_down)(void *arg, unsigned peer, int err, const char *why);
    void *arg;
    /* The peer has no connection any more, and the fabric tries to mend that; or it has one. What
     * traffic() returns has changed. May be NULL. */
    void (*on_apart)(void *arg, unsigned peer);
};

/* Of one peer, since it was added. What a fabric does not know is 0. */
struct fabric_traffic {
    uint64_t sent, received; /* bytes */
    uint64_t segments, retransmits;
    uint64_t stalled_us;         /* in which the other side took nothing */
    uint32_t rtt_us, min_rtt_us; /* smoothed, of connections that sent lately; the least */
    uint64_t rate;               /* bytes in a second, at which data arrived last */
    uint64_t mends;              /* connections that broke and were made again, nothing lost */
    enum link_encryption encryption;
    uint64_t key_ms;     /* age of the oldest key in use; in the clear: of the link */
    uint32_t generation; /* of that key: how many there were before it */
    uint32_t quiet_ms;   /* so long nothing has come, not even an acknowledgement; 0: not known */
};

struct fabric_ops {
    const char *name;
    /* Own address, to be carried to the peers over the control plane. */
    int (*address)(struct fabric *f, void *buf, size_t *inout_len);
    /* @peer: index chosen by the caller, < FABRIC_MAX_PEERS. @token is sent as the first
     * message and checked by the other side against what it expects from this peer
     * (expect): 32 bytes agreed over TLS. A stranger's messages never reach on_msg.
     * -EPROTONOSUPPORT: the address is another kind of fabric's; -EACCES: the two sides do not
     * agree on encryption, see fabric_tcp_disagree(); -EPERM: its build cannot encrypt, and nothing
     * may go in the clear. */
    int (*peer_add)(struct fabric *f, unsigned peer, const void *addr, size_t addr_len,
                    const uint8_t token[32], const uint8_t expect[32]);
    /* A fresh secret of the two sides, also while messages are under way: the keys of the links to
     * @peer come to depend on it once the other side has it, too. NULL: there are no keys. */
    void (*peer_key)(struct fabric *f, unsigned peer, const uint8_t secret[32]);
    /* Force-closes; pending requests complete with -ECANCELED, in progress() after this
     * call. The number may be given to another peer at once. Allowed in callbacks. */
    void (*peer_del)(struct fabric *f, unsigned peer);
    /* hdr is copied before return; @body must stay valid and unchanged until @done. @done is
     * never called from inside send(): returns 1 when the send finished at once (done will
     * not be called), 0 when it is in flight, negative errno when it failed: -ENOTCONN
     * without such a peer, -EIO when it is down. Sends wait inside the fabric until both
     * sides have added each other. Finished means that @body is the caller's again, not
     * that the other side has read it or has not dropped it. */
    int (*send)(struct fabric *f, unsigned peer, const void *hdr, size_t hdr_len, const void *body,
                size_t body_len, fabric_done_fn done, void *arg);
    /* Claims a rendezvous body into @buf (msg.body_len bytes). Same returns as send(); the
     * claim is used up whatever it returns. The memory must stay mapped until @done,
     * whatever happens to the peer. */
    int (*recv)(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done,
                void *arg);
    /* Gives a body up; also for claims whose peer is down or deleted meanwhile. */
    void (*drop)(struct fabric *f, void *claim);
    /* Moves bytes and runs callbacks; bounded. True when something happened. */
    bool (*progress)(struct fabric *f);
    /* fd to poll for input when idle; -1 when there is none. */
    int (*fd)(struct fabric *f);
    /* Asks for a wake-up on fd. 0: may sleep. 1: there is work, call progress() first.
     * 2: may not rely on the fd for now, sleep at most 1 ms. */
    int (*arm)(struct fabric *f);
    /* False: there is no such peer, or no connection to it. NULL: this fabric counts nothing. */
    bool (*traffic)(struct fabric *f, unsigned peer, struct fabric_traffic *ret_traffic);
    /* Completes what is in flight with -ECANCELED (done is called; on_msg and on_peer_down
     * are not), frees open claims, and everything else. Not from inside a callback. */
    void (*free)(struct fabric *f);
};

struct fabric_stats {
    uint64_t strangers; /* messages dropped because their sender is no peer with our token */
};

/* With what the address of each fabric_tcp.c begins. */
#define FABRIC_TCP_MAGIC "commdTCP"

struct fabric {
    const struct fabric_ops *ops;
    struct fabric_stats stats;
    /* Set by the caller around a send(); the first two are hints:
     * more      another message to this peer follows before progress(), so both may go out together
     * express   may overtake what was sent before, if the body has no more than FABRIC_EXPRESS_MAX
     *           bytes; express messages keep their order among themselves
     * behind    arrives behind all that was sent before, express messages included */
    bool more, express, behind;
    /* Set by the caller while several groups are busy: less is read in a turn, because they wait
     * while a long body is read. A hint. */
    bool crowded;
    int port; /* borrowed: the socket that listens; 0: none that could be given to another engine */
};

/* How a side wants data to go: agree.h. */
enum fabric_encryption { FABRIC_ENCRYPT_OFF, FABRIC_ENCRYPT_AUTO, FABRIC_ENCRYPT_ON };
struct fabric_wants {
    enum fabric_encryption encryption;
    bool trusted; /* nobody else is on the network */
};

struct fabric_conf {
    const char *kind;       /* "tcp", "ucx", or "auto": tcp if that is all of tls; NULL: "auto" */
    const char *device;     /* network device for UCX_NET_DEVICES, e.g. "eth0", "lo" */
    const char *tls;        /* UCX_TLS list, e.g. "tcp" or "rc,ud" */
    const char *port_range; /* "18500-18509"; NULL for ephemeral ports */
    const char *congestion; /* of TCP: "auto", "system" or a name; NULL: "auto" */
    unsigned channels;      /* tcp: connections per peer, that large bodies take in turns; 0: 1 */
    bool express;           /* tcp: one more connection, for what is sent as express */
    unsigned mend_ms; /* tcp: the link is down if a broken connection is not made again by then */
    struct fabric_wants wants;   /* tcp */
    unsigned encryption_threads; /* tcp: that encrypt and decrypt large bodies; 0: none */
    int port; /* tcp: taken; the socket on which the engine before us listened; 0: none */
};

/* On failure they return negative errno and put one line for people into why[]; on success why[] is
 * empty, or says what the fabric does without. fabric_new() makes the fabric of conf->kind. */
int fabric_new(const struct fabric_conf *conf, const struct fabric_events *ev,
               struct fabric **ret_fabric, char why[256]);
int fabric_tcp_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256]);
/* Why peer_add() has refused @addr, which is @other_name's, with -EACCES, for people. */
void fabric_tcp_disagree(const struct fabric_wants *ours, const char *name, const void *addr,
                         const char *other_name, char *why, size_t size);
int fabric_ucx_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256]);

static inline struct fabric *fabric_free(struct fabric *f)
{
    if (f)
        f->ops->free(f);
    return NULL;
}

#endif
