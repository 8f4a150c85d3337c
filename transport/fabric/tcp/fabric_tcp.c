/* fabric_tcp.c - the fabric over TCP, for networks without RDMA.
 *
 * Why not UCX, which has a tcp transport: there a body is copied to a segment before it is sent,
 * and lands in a segment before it is copied to where it belongs; each turn of the engine costs an
 * epoll_wait(); and a stranger that reaches its port can crash the process. Here bodies go from the
 * caller's memory to the socket and from the socket to the caller's memory, and strangers get as
 * far as the lobby. Measured in tests/bench/README.md.
 *
 * Model. One thread. One listener (fabric_tcp_listen.c); one connection per pair of peers (and
 * channel), made by one of the two (fabric_tcp_conn.c); both prove that they know the tokens of
 * this pair (fabric_tcp_greet.c). A connection carries frames both ways (fabric_tcp_out.c,
 * fabric_tcp_in.c). Bodies up to FABRIC_EAGER_MAX follow their header at once; larger ones are
 * asked for, and sent in parts when the receiver has memory for them.
 *
 * Express messages have a connection of their own, so that they need not wait behind other messages
 * in the queue, in the kernel's memory on both sides, or in the network.
 *
 * A turn (progress): read all connections, write what is queued, then report and close what broke.
 * send() tries to write at once when nothing is queued before it, so most messages cost one system
 * call. What is written is kept until the other side has it, so that a stream can go on over
 * another socket (fabric_tcp_mend.c).
 *
 * Where the two want it, all behind the greeting is encrypted and authenticated
 * (fabric_tcp_seal.c). Else who reads the traffic can read and forge data:
 * transport.trusted_network. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    FREE_REQS_KEEP = 256,
    DIRECT_MAX = 2,    /* so few connections, express ones not counted, are read without epoll */
    LOOK_EVERY = 64,   /* and epoll is asked every so many turns */
    CROWD_EVERY = 16,  /* the same, while connections wait to be accepted */
    EXPRESS_EVERY = 8, /* turns, when they are short and no express message came for long */
};

/* --- requests ---------------------------------------------------------------------------- */

struct fabric_req *tcp_req_new(struct tcp_peer *peer)
{
    struct tcp *t = peer->t;
    struct fabric_req *req = TAILQ_FIRST(&t->free_reqs);

    if (req) {
        TAILQ_REMOVE(&t->free_reqs, req, link);
        t->nfree--;
    } else {
        req = malloc(sizeof(*req));
        if (!req)
            return NULL;
    }
    req->peer = peer;
    req->done = NULL;
    req->body = req->part = NULL;
    req->copy = NULL;
    req->whole = NULL;
    req->lent = 1;
    req->body_len = req->part_len = req->next = req->sent = 0;
    req->held = req->sealing = req->asked = req->answer = req->express = req->behind = false;
    peer->refs++;
    return req;
}

void tcp_req_free(struct fabric_req *req)
{
    struct tcp_peer *peer = req->peer;
    struct tcp *t = peer->t;

    assert(peer->answers >= req->answer);
    peer->answers -= req->answer;
    free(steal_ptr(req->copy));
    if (t->nfree < FREE_REQS_KEEP) {
        TAILQ_INSERT_HEAD(&t->free_reqs, req, link);
        t->nfree++;
    } else {
        free(req);
    }
    peer_unref(peer);
}

void tcp_tell(struct fabric_req *req, int st)
{
    fabric_done_fn done = steal_ptr(req->done);

    if (done)
        done(req->arg, st);
}

void tcp_finish(struct fabric_req *req, int st)
{
    tcp_tell(req, st);
    tcp_req_free(req);
}

/* --- operations ------------------------------------------------------------------------------ */

static int tcp_send(struct fabric *f, unsigned index, const void *hdr, size_t hdr_len,
                    const void *body, size_t body_len, fabric_done_fn done, void *arg)
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct tcp_peer *peer = index < FABRIC_MAX_PEERS ? t->slot[index] : NULL;
    struct fabric_req *req;
    int r;

    if (!peer)
        return -ENOTCONN;
    if (hdr_len > FABRIC_HDR_MAX)
        return -EINVAL;
    assert(peer->state != PEER_GONE);
    if (!peer_lives(peer))
        return -EIO;
    req = tcp_req_new(peer);
    if (!req)
        return -ENOMEM;
    req->done = done;
    req->arg = arg;
    req->body = body;
    req->body_len = body_len;
    req->express = f->express;
    req->behind = f->behind;
    if (hdr_len)
        memcpy(req->head + sizeof(struct frame), hdr, hdr_len);
    if (peer->state == PEER_GREETING || !TAILQ_EMPTY(&peer->waiting)) {
        req->head_len = (uint16_t)(sizeof(struct frame) + hdr_len);
        TAILQ_INSERT_TAIL(&peer->waiting, req, link);
        return 0;
    }
    r = peer_post(req, hdr_len);
    if (r < 0)
        tcp_req_free(req);
    return r;
}

static void tcp_drop(struct fabric *f, void *claim)
{
    struct inbound *b = claim;

    assert(!b->taken && !b->dropped);
    if (b->asked && peer_lives(b->peer) && conn_put_frame(b->peer->conn[0], FRAME_DROP, b->id))
        peer_fail(b->peer, -ENOMEM, "no memory to drop a body");
    if (b->calling)
        b->dropped = true; /* tcp_offer() frees it */
    else
        body_free(b);
}

static int tcp_recv(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done,
                    void *arg)
{
    struct inbound *b = claim;
    int r = 0;

    assert(!b->taken && !b->dropped);
    jobs_of_body(b); /* what has come so far is to be copied */
    if (b->peer->state == PEER_GONE)
        r = -ECANCELED;
    else if (!peer_lives(b->peer))
        r = -EIO;
    else if (len < b->len)
        r = -EMSGSIZE;
    else if (b->asked && conn_put_frame(b->peer->conn[0], FRAME_GRANT, b->id))
        r = -ENOMEM;
    if (r) {
        tcp_drop(f, b);
        return r;
    }
    if (b->got)
        memcpy(buf, b->buf, b->got);
    free(b->buf);
    b->taken = true;
    b->buf = buf;
    b->done = done;
    b->arg = arg;
    if (b->got < b->len)
        return 0;
    body_free(b);
    return 1;
}

static int tcp_address(struct fabric *f, void *buf, size_t *inout_len)
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct tcp_addr a = {
        .magic = FABRIC_TCP_MAGIC,
        .version = old_is_let_in(t, NULL) ? HELLO_OLD : HELLO_VERSION,
        .family = t->addr.ss_family == AF_INET ? 4 : 6,
        .port = ntohs(*addr_port(&t->addr)),
        .wants = (uint8_t)(t->wants.encryption | (t->wants.trusted ? WANTS_TRUSTED : 0)),
        .newest = HELLO_VERSION};

    if (*inout_len < sizeof(a))
        return -ENOSPC;
    memcpy(a.ip, addr_ip(&t->addr), a.family == 4 ? 4 : 16);
    memcpy(buf, &a, sizeof(a));
    *inout_len = sizeof(a);
    return 0;
}

/* --- the loop's side ----------------------------------------------------------------------- */

/* An empty look costs as much as a short turn: when turns are short it is taken now and then. */
static bool look_for_express(struct tcp *t)
{
    bool look =
        t->base.crowded || t->long_read || t->express_turns || t->turns % EXPRESS_EVERY == 0;

    t->express_turns -= t->express_turns > 0;
    t->long_read = false;
    return look;
}

static bool read_all(struct tcp *t)
{
    bool direct = !t->armed && t->nconns == t->nopen && t->nopen - t->nexpress <= DIRECT_MAX &&
                  ++t->turns % (t->rest_ns ? CROWD_EVERY : LOOK_EVERY);
    struct conn *c;
    bool any = false;

    t->armed = false;
    if (!direct)
        return tcp_look(t);
    assert(t->nexpress <= t->nopen);
    /* none is closed before peers_reap() */
    if (t->nexpress && look_for_express(t))
        TAILQ_FOREACH(c, &t->conns, link)
            if (c->express)
                any |= conn_read(c);
    TAILQ_FOREACH(c, &t->conns, link)
        if (!c->express)
            any |= conn_read(c);
    return any;
}

static bool write_all(struct tcp *t)
{
    struct conn *c, *next;
    bool any = false;

    for (c = TAILQ_FIRST(&t->writers); c; c = next) {
        next = TAILQ_NEXT(c, write_link);
        any |= conn_write(c);
    }
    return any;
}

static bool tcp_progress(struct fabric *f)
{
    struct tcp *t = container_of(f, struct tcp, base);
    bool any;

    t->touched = false;
    any = t->threads && jobs_turn(t);
    any |= read_all(t);
    if (t->nparked)
        any |= conns_resume(t);
    any |= write_all(t);
    if (!TAILQ_EMPTY(&t->keepers))
        any |= conns_settle(t);
    if (t->nbroken)
        any |= conns_mend(t);
    any |= peers_reap(t);
    conns_sweep(t);
    return any || (t->threads && seal_threads_help(t->threads));
}

static int tcp_fd(struct fabric *f)
{
    return container_of(f, struct tcp, base)->epoll;
}

static int tcp_arm(struct fabric *f)
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct conn *c;

    if (t->held)
        t->settle = true;
    if (t->touched || t->settle || (t->threads && !jobs_arm(t)))
        return 1;
    t->armed = true;
    TAILQ_FOREACH(c, &t->writers, write_link)
        if (!c->polled_out)
            conn_watch(c);
    return 0;
}

/* Claims that nobody took go last: they refer to their peers. */
static void drop_claims(struct tcp *t)
{
    struct tcp_peer *peer;
    struct inbound *b;

    while ((peer = LIST_FIRST(&t->peers)) && (b = LIST_FIRST(&peer->bodies)))
        body_free(b);
}

static void tcp_free(struct fabric *f)
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct fabric_req *req;
    struct conn *c;

    t->stopping = true;
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        tcp_peer_del(f, i);
    peers_reap(t);
    drop_claims(t);
    while ((c = TAILQ_FIRST(&t->lobby)) || (c = TAILQ_FIRST(&t->conns)))
        conn_close(c);
    conns_sweep(t);
    while ((req = TAILQ_FIRST(&t->free_reqs))) {
        TAILQ_REMOVE(&t->free_reqs, req, link);
        free(req);
    }
    tcp_close(t);
    free(t);
}

static const struct fabric_ops tcp_ops = {
    .name = "tcp",
    .address = tcp_address,
    .peer_add = tcp_peer_add,
    .peer_del = tcp_peer_del,
    .send = tcp_send,
    .recv = tcp_recv,
    .drop = tcp_drop,
    .progress = tcp_progress,
    .fd = tcp_fd,
    .arm = tcp_arm,
    .traffic = tcp_traffic,
    .peer_key = tcp_peer_key,
    .free = tcp_free,
};

int fabric_tcp_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256])
{
    struct tcp *t = calloc(1, sizeof(*t));
    int r;

    why[0] = '\0';
    if (!t) {
        strcpy(why, "out of memory");
        return -ENOMEM;
    }
    t->base.ops = &tcp_ops;
    t->ev = *ev;
    t->listener = t->epoll = t->timer = t->rest = -1;
    t->channels = conf->channels ? MIN(conf->channels, (unsigned)FABRIC_CHANNELS_MAX) : 1;
    t->express = conf->express;
    t->mend_ms = conf->mend_ms;
    t->wants = conf->wants;
    snprintf(t->congestion, sizeof(t->congestion), "%s",
             conf->congestion ? conf->congestion : "auto");
    STAILQ_INIT(&t->to_fail);
    STAILQ_INIT(&t->to_close);
    TAILQ_INIT(&t->lobby);
    TAILQ_INIT(&t->conns);
    TAILQ_INIT(&t->closed);
    TAILQ_INIT(&t->writers);
    TAILQ_INIT(&t->keepers);
    TAILQ_INIT(&t->free_reqs);
    TAILQ_INIT(&t->jobs);
    TAILQ_INIT(&t->free_jobs);
    r = tcp_open(t, conf, why);
    if (r) {
        tcp_free(&t->base);
        return r;
    }
    *ret_fabric = &t->base;
    return 0;
}
