/* fabric_tcp_out.c - from requests to the bytes of a connection.
 *
 * A connection has a queue of requests; one sendmsg() takes as many as its vector holds, with
 * bodies straight from the caller's memory. A request with an asked body comes once for each part,
 * and goes to the end of the queue in between, so that a large body does not hold up small ones.
 *
 * Messages are numbered over all channels of a peer, express messages by themselves. A message that
 * goes behind express messages says the number of the last of these. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    WRITE_ROUNDS = 4,
    IOV_REQS = 16,
    POST_AHEAD = 256 << 10, /* sealed and not written: then what is sent waits in the clear */
};

static size_t req_left(const struct fabric_req *req)
{
    return req_len(req) - req->sent;
}

void conn_want_write(struct conn *c)
{
    if (c->writing || c->state != CONN_OPEN)
        return;
    c->writing = true;
    TAILQ_INSERT_TAIL(&c->t->writers, c, write_link);
}

void conn_stop_writing(struct conn *c)
{
    if (!c->writing)
        return;
    assert(!TAILQ_EMPTY(&c->t->writers));
    c->writing = false;
    TAILQ_REMOVE(&c->t->writers, c, write_link);
}

void conn_put(struct conn *c, struct fabric_req *req)
{
    TAILQ_INSERT_TAIL(conn_queue(c), req, link);
    c->t->touched = true;
    conn_want_write(c);
}

static void req_set_frame(struct fabric_req *req, const struct frame *f)
{
    memcpy(req->head, f, sizeof(*f));
    req->head_len = (uint16_t)(sizeof(*f) + f->hdr_len);
}

int conn_put_frame(struct conn *c, enum frame_type type, uint32_t id)
{
    struct tcp_peer *peer = c->peer;
    struct fabric_req *req = tcp_req_new(peer);
    struct frame f = {.type = (uint8_t)type, .id = id};

    if (!req)
        return -ENOMEM;
    req->answer = true;
    if (++peer->answers > ANSWERS_MAX)
        peer_fail(peer, -ENOBUFS, "the other side asks and does not read the answers");
    req_set_frame(req, &f);
    conn_put(c, req);
    return 0;
}

void conn_put_probe(struct conn *c)
{
    static const uint8_t nothing[PROBE_LEN];
    struct fabric_req *req = tcp_req_new(c->peer);
    struct frame f = {.type = FRAME_PROBE, .len = PROBE_LEN};

    if (!req)
        return;
    req_set_frame(req, &f);
    req->part = nothing;
    req->part_len = sizeof(nothing);
    c->probes++;
    conn_put(c, req);
}

/* Small messages share a connection, large ones take all connections in turns. */
static struct conn *channel_for(struct tcp_peer *peer, size_t len)
{
    if (len <= INLINE_MAX || peer->channels == 1)
        return peer->conn[0];
    return peer->conn[peer->turn++ % peer->channels];
}

static unsigned gather(struct iovec *iov, const struct fabric_req *req)
{
    size_t skip = req->sent;
    unsigned n = 0;

    assert(req->sent < req_len(req));
    if (skip < req->head_len)
        iov[n++] = (struct iovec){(void *)(uintptr_t)(req->head + skip), req->head_len - skip};
    skip = skip > req->head_len ? skip - req->head_len : 0;
    if (skip < req->part_len)
        iov[n++] = (struct iovec){(void *)(uintptr_t)(req->part + skip), req->part_len - skip};
    return n;
}

/* Bytes that the socket took, or negative errno; -EAGAIN when it is full. */
static ssize_t conn_sendmsg(struct conn *c, struct iovec *iov, unsigned n)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent;

    do {
        sent = n == 1 ? send(c->fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
                      : sendmsg(c->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

void req_next_part(struct fabric_req *req)
{
    size_t len = MIN(req->body_len - req->next, (size_t)PART_MAX);
    struct frame f = {.type = FRAME_PART, .id = req->id, .len = (uint32_t)len, .size = req->next};

    assert(req->asked && len > 0);
    req_set_frame(req, &f);
    req->part = req->body + req->next;
    req->part_len = len;
    req->sent = 0;
    req->next += len;
}

/* A frame of @whole, which is not its last, is out: the next one goes to the end of the queue. */
static void part_wrote(struct conn *c, struct fabric_req *whole)
{
    struct fabric_req *part = c->t->mend_ms ? tcp_req_new(c->peer) : NULL;

    if (part) {
        memcpy(part->head, whole->head, whole->head_len);
        part->head_len = whole->head_len;
        part->part = whole->part;
        part->part_len = whole->part_len;
        part->whole = whole;
        whole->lent++;
        conn_keep(c, part, true);
    } else if (c->t->mend_ms) {
        peer_fail(c->peer, -ENOMEM, "no memory to remember what was sent");
    }
    req_next_part(whole);
    TAILQ_INSERT_TAIL(&c->out, whole, link);
}

void conn_wrote(struct conn *c, size_t n)
{
    struct fabric_req *req;

    c->sent += n;
    c->ahead -= c->seals ? n : 0;
    conn_expect_ack(c);
    while ((req = TAILQ_FIRST(&c->out)) && n >= req_left(req)) {
        n -= req_left(req);
        TAILQ_REMOVE(&c->out, req, link);
        if (req->asked && req->next < req->body_len)
            part_wrote(c, req);
        else
            conn_keep(c, req, true);
    }
    assert(req || n == 0);
    if (req)
        req->sent += n;
}

/* Writes c->out; true if bytes went out. */
static bool write_out(struct conn *c)
{
    struct iovec iov[2 * IOV_REQS];
    struct fabric_req *req;
    bool any = false;

    for (unsigned round = 0; round < WRITE_ROUNDS && !TAILQ_EMPTY(&c->out); round++) {
        size_t total = 0;
        unsigned n = 0;
        ssize_t sent;

        TAILQ_FOREACH(req, &c->out, link) {
            if (n + 2 > ARRAY_LEN(iov) || req->sealing)
                break;
            n += gather(iov + n, req);
            total += req_left(req);
        }
        if (!n)
            break;
        sent = conn_sendmsg(c, iov, n);
        if (sent == -EAGAIN)
            break;
        any = true;
        if (sent < 0) {
            conn_lost(c, (int)-sent);
            return true; /* no longer a writer, or its peer has failed */
        }
        conn_wrote(c, (size_t)sent);
        if ((size_t)sent < total)
            break;
        if (c->seals)
            conn_seal_more(c);
    }
    return any;
}

bool conn_write(struct conn *c)
{
    bool any;

    assert(c->writing && c->state == CONN_OPEN);
    any = c->seals && conn_seal_more(c);
    any |= write_out(c);
    if (c->state == CONN_OPEN && conn_has_written(c)) {
        conn_stop_writing(c);
        if (c->polled_out)
            conn_watch(c);
    }
    return any;
}

/* As conn_post(), of a stream that is encrypted. */
static int post_sealed(struct conn *c, struct fabric_req *req)
{
    bool first = TAILQ_EMPTY(&c->out);
    int r = conn_seal(c, req);

    assert(TAILQ_EMPTY(&c->plain));
    if (r) { /* its place in the order is taken, so nothing may follow */
        jobs_of_req(req);
        peer_fail(c->peer, r, "cannot encrypt what is to be sent");
        return r;
    }
    r = req_sealed(req, false);
    if (c->writing || !first)
        conn_want_write(c); /* behind what the socket did not take */
    else if (write_out(c) && c->peer->failed)
        return r; /* the link's end is told otherwise */
    else if (!conn_has_written(c))
        conn_want_write(c);
    c->t->touched |= !conn_has_written(c);
    return r;
}

/* The queue is empty, so writes at once. 1: the body is not needed any more; 0: it is, or what
 * could not be written is queued. */
static int conn_post(struct conn *c, struct fabric_req *req)
{
    struct iovec iov[2];
    ssize_t sent = conn_sendmsg(c, iov, gather(iov, req));

    assert(TAILQ_EMPTY(&c->out));
    if (sent < 0 && sent != -EAGAIN) {
        conn_lost(c, (int)-sent);
        if (c->peer->failed)
            return -EIO;
    }
    req->sent += sent > 0 ? (size_t)sent : 0;
    c->sent += sent > 0 ? (size_t)sent : 0;
    conn_expect_ack(c);
    if (req_left(req) == 0)
        return conn_keep(c, req, false);
    conn_put(c, req);
    return 0;
}

/* The header asks, the body waits. */
static int post_asked(struct fabric_req *req, size_t hdr_len)
{
    struct tcp_peer *peer = req->peer;
    struct fabric_req *question = tcp_req_new(peer);
    struct frame f = {.type = FRAME_ASK,
                      .hdr_len = (uint16_t)hdr_len,
                      .seq = peer->seq_out,
                      .id = peer->next_id,
                      .size = req->body_len};

    if (!question)
        return -ENOMEM;
    peer->seq_out++;
    peer->next_id++;
    memcpy(question->head + sizeof(f), req->head + sizeof(f), hdr_len);
    req_set_frame(question, &f);
    req->id = f.id;
    req->asked = true;
    TAILQ_INSERT_TAIL(&peer->asked, req, link);
    conn_put(peer->conn[0], question);
    return 0;
}

int peer_post(struct fabric_req *req, size_t hdr_len)
{
    struct tcp_peer *peer = req->peer;
    struct frame f = {.type = FRAME_MSG,
                      .hdr_len = (uint16_t)hdr_len,
                      .seq = peer->seq_out,
                      .len = (uint32_t)req->body_len};
    bool express = req->express && !req->behind && req->body_len <= FABRIC_EXPRESS_MAX;
    struct conn *c = express && peer->express ? peer->conn[peer->channels] : NULL;

    assert(peer->state == PEER_UP && hdr_len <= FABRIC_HDR_MAX);
    if (c) {
        f.seq = peer->express_out++;
    } else if (req->body_len > FABRIC_EAGER_MAX) {
        return post_asked(req, hdr_len);
    } else {
        c = channel_for(peer, req->body_len);
        peer->seq_out++;
        f.behind = req->behind && peer->express;
        f.id = f.behind ? peer->express_out - 1 : 0;
    }
    req_set_frame(req, &f);
    if (req->head_len + req->body_len <= sizeof(req->head)) {
        if (req->body_len) /* one piece costs the kernel less than two */
            memcpy(req->head + req->head_len, req->body, req->body_len);
        req->head_len += (uint16_t)req->body_len;
    } else {
        req->part = req->body;
        req->part_len = req->body_len;
    }
    /* `more` waits in the queue, if there is one channel: on others what follows would overtake it
     */
    if (TAILQ_EMPTY(conn_queue(c)) && c->state == CONN_OPEN && c->ahead < POST_AHEAD &&
        (c->express || !(peer->t->base.more && peer->channels == 1)))
        return c->seals ? post_sealed(c, req) : conn_post(c, req);
    conn_put(c, req);
    return 0;
}

static struct fabric_req *take_asked(struct tcp_peer *peer, uint32_t id)
{
    struct fabric_req *req;

    TAILQ_FOREACH(req, &peer->asked, link)
        if (req->id == id)
            break;
    if (req)
        TAILQ_REMOVE(&peer->asked, req, link);
    return req;
}

void peer_answered(struct tcp_peer *peer, const struct frame *f)
{
    struct fabric_req *req = take_asked(peer, f->id);

    assert(f->type == FRAME_GRANT || f->type == FRAME_DROP);
    if (!req) {
        peer_fail(peer, -EPROTO, "the other side answered what it was not asked");
    } else if (f->type == FRAME_DROP) {
        tcp_finish(req, 0);
    } else {
        req_next_part(req);
        conn_put(channel_for(peer, req->body_len), req);
    }
}
