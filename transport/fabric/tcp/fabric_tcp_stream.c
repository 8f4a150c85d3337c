/* fabric_tcp_stream.c - frames: from requests to bytes of a connection, and back to messages.
 *
 * Out: a connection has a queue of requests; one sendmsg() takes as many as its vector holds, with
 * bodies straight from the caller's memory. A request with an asked body comes once for each part
 * and goes to the end of the queue in between, so that a large body does not hold up small ones.
 *
 * In: bytes are read into one buffer of the fabric, whatever the connection. Messages with inline
 * bodies are handed out from it. The body of any other frame is read straight to where it belongs
 * (the "sink"), and what follows it into the buffer, by the same readv(). An incomplete frame at
 * the end of the buffer is kept with its connection, so idle connections have no memory.
 *
 * A body that is on its way (frame MSG) is offered as a claim, before it is here. If the handler
 * takes it at once, it lands where it should; if not, it is read into memory of ours ("spill") and
 * waits there. Either way the stream goes on.
 *
 * Channels: messages are numbered over all connections of a peer; one that comes before its turn,
 * or before all connections are open, parks its connection until those before it have been handed
 * out.
 *
 * Express messages have a connection and numbers of their own, and are never asked for. A message
 * that goes behind them says which was the last, and waits for it as for another channel.
 *
 * Whatever a peer can write is checked: frame_ok(), and the state that a frame needs. What is wrong
 * takes the link down. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    READ_ROUNDS = 4, /* reads per connection and turn */
    WRITE_ROUNDS = 4,
    IOV_REQS = 16,
    READ_CROWDED = 64 << 10, /* in a turn, of what is not express */
    READ_LONG = 16 << 10,
    DRAIN_ROUNDS = 1024, /* of READ_MAX: more than a socket holds */
};

/* --- out ----------------------------------------------------------------------------------- */

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
    c->writing = false;
    TAILQ_REMOVE(&c->t->writers, c, write_link);
}

static void conn_put(struct conn *c, struct fabric_req *req)
{
    TAILQ_INSERT_TAIL(&c->out, req, link);
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

static struct conn *express_of(const struct tcp_peer *peer)
{
    return peer->express ? peer->conn[peer->channels] : NULL;
}

/* Small messages share a connection, large ones take all in turns. */
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

/* The next frame of an asked body. */
static void req_next_part(struct fabric_req *req)
{
    size_t len = MIN(req->body_len - req->next, (size_t)PART_MAX);
    struct frame f = {.type = FRAME_PART, .id = req->id, .len = (uint32_t)len, .size = req->next};

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
    while ((req = TAILQ_FIRST(&c->out)) && n >= req_left(req)) {
        n -= req_left(req);
        TAILQ_REMOVE(&c->out, req, link);
        if (req->asked && req->next < req->body_len)
            part_wrote(c, req);
        else
            conn_keep(c, req, true);
    }
    if (req)
        req->sent += n;
}

bool conn_write(struct conn *c)
{
    struct iovec iov[2 * IOV_REQS];
    struct fabric_req *req;
    bool any = false;

    for (unsigned round = 0; round < WRITE_ROUNDS && !TAILQ_EMPTY(&c->out); round++) {
        size_t total = 0;
        unsigned n = 0;
        ssize_t sent;

        TAILQ_FOREACH(req, &c->out, link) {
            if (n + 2 > ARRAY_LEN(iov))
                break;
            n += gather(iov + n, req);
            total += req_left(req);
        }
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
    }
    if (TAILQ_EMPTY(&c->out)) {
        conn_stop_writing(c);
        if (c->polled_out)
            conn_watch(c);
    }
    return any;
}

/* Without a detour through the queue, which is empty: 1 when the body is not needed any more, 0
 * when it is, or when the rest is queued. */
static int conn_post(struct conn *c, struct fabric_req *req)
{
    struct iovec iov[2];
    ssize_t sent = conn_sendmsg(c, iov, gather(iov, req));

    if (sent < 0 && sent != -EAGAIN) {
        conn_lost(c, (int)-sent);
        if (c->peer->failed)
            return -EIO;
    }
    req->sent += sent > 0 ? (size_t)sent : 0;
    c->sent += sent > 0 ? (size_t)sent : 0;
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
    struct conn *c = req->express && !req->behind && req->body_len <= FABRIC_EXPRESS_MAX
                         ? express_of(peer)
                         : NULL;

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
    /* on other channels what follows would overtake it, and wait there */
    if (TAILQ_EMPTY(&c->out) && c->state == CONN_OPEN &&
        (c->express || !(peer->t->base.more && peer->channels == 1)))
        return conn_post(c, req);
    conn_put(c, req);
    return 0;
}

/* --- bodies --------------------------------------------------------------------------------- */

static struct inbound *body_new(struct tcp_peer *peer, size_t len)
{
    struct inbound *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->peer = peer;
    b->len = len;
    peer->refs++;
    LIST_INSERT_HEAD(&peer->bodies, b, link);
    return b;
}

void body_free(struct inbound *b)
{
    for (unsigned i = 0; i < b->peer->channels; i++) { /* an express message has no sink */
        struct conn *c = b->peer->conn[i];

        if (c && c->sink == b)
            c->sink = NULL; /* what is still to come is thrown away */
    }
    LIST_REMOVE(b, link);
    if (!b->taken)
        free(b->buf);
    peer_unref(b->peer);
    free(b);
}

static struct inbound *find_body(struct tcp_peer *peer, uint32_t id)
{
    struct inbound *b;

    LIST_FOREACH(b, &peer->bodies, link)
        if (b->asked && b->taken && b->id == id)
            return b;
    return NULL;
}

/* @n bytes have reached the sink, or were thrown away. */
static void sink_got(struct conn *c, size_t n)
{
    struct inbound *b = c->sink;
    fabric_done_fn done;
    void *arg;

    c->sink_left -= n;
    c->sink_at += n;
    if (c->sink_left == 0)
        c->sink = NULL;
    if (!b)
        return;
    b->got += n;
    if (b->got < b->len || !b->taken)
        return;
    done = b->done;
    arg = b->arg;
    body_free(b);
    if (done)
        done(arg, 0);
}

/* --- in ------------------------------------------------------------------------------------- */

/* What has come may be handed out, whether or not there is a socket now. */
static bool reading(const struct conn *c)
{
    return (conn_is_open(c) || c->cut_ms) && !c->parked && !c->peer->failed &&
           (c->peer->state == PEER_UP || c->peer->state == PEER_GREETING);
}

static bool frame_ok(const struct conn *c, const struct frame *f)
{
    if (c->express)
        return f->type == FRAME_MSG && !f->behind && f->hdr_len <= FABRIC_HDR_MAX &&
               f->len <= FABRIC_EXPRESS_MAX;
    if (f->type == FRAME_MSG)
        return f->hdr_len <= FABRIC_HDR_MAX && f->len <= FABRIC_EAGER_MAX &&
               f->behind <= c->peer->express;
    if (f->type == FRAME_ASK)
        return f->hdr_len <= FABRIC_HDR_MAX && f->len == 0 && f->size > FABRIC_EAGER_MAX &&
               f->size <= PTRDIFF_MAX && !f->behind;
    if (f->type == FRAME_PART)
        return f->hdr_len == 0 && f->len > 0 && f->len <= PART_MAX;
    return f->type > FRAME_MSG && f->type <= FRAME_LAST && f->hdr_len == 0 && f->len == 0;
}

/* The handler has the claim: now or later, or not at all. */
static void tcp_offer(struct conn *c, struct fabric_msg *msg, const struct frame *f)
{
    struct tcp_peer *peer = c->peer;
    bool asked = f->type == FRAME_ASK;
    struct inbound *b = body_new(peer, msg->body_len);

    if (!b) {
        peer_fail(peer, -ENOMEM, "no memory for an announced body");
        return;
    }
    b->asked = asked;
    b->id = f->id;
    b->calling = true;
    msg->claim = b;
    if (!asked)
        c->sink_left = msg->body_len;
    c->t->ev.on_msg(c->t->ev.arg, msg);
    b->calling = false;
    if (b->dropped) {
        body_free(b);
        return;
    }
    if (asked)
        return;
    if (!b->taken && !(b->buf = malloc(b->len))) {
        peer_fail(peer, -ENOMEM, "no memory for a body that nobody takes yet");
        return;
    }
    c->sink = b;
    c->sink_at = 0;
}

/* @p: header and, if it is inline, body. */
static void tcp_deliver(struct conn *c, const struct frame *f, const uint8_t *p)
{
    _Alignas(16) uint8_t user[FABRIC_HDR_MAX];
    struct tcp_peer *peer = c->peer;
    bool in_line = f->type == FRAME_MSG && f->len <= INLINE_MAX;
    struct fabric_msg msg = {
        .peer = peer->index,
        .hdr = user,
        .hdr_len = f->hdr_len,
        .body = in_line ? p + f->hdr_len : NULL,
        .body_len = f->type == FRAME_ASK ? (size_t)f->size : f->len,
    };

    memcpy(user, p, f->hdr_len);
    if (c->express) {
        peer->express_in++;
        c->t->express_turns = EXPRESS_TURNS;
    } else {
        peer->seq_in++;
    }
    if (in_line) {
        c->big -= c->big > 0;
        c->t->ev.on_msg(c->t->ev.arg, &msg);
    } else {
        c->big = BIG_MEMORY;
        tcp_offer(c, &msg, f);
    }
}

static uint32_t next_in(const struct conn *c)
{
    return c->express ? c->peer->express_in : c->peer->seq_in;
}

/* The next one, and its receiver can answer on all channels. */
static bool due(const struct conn *c, const struct frame *f)
{
    const struct tcp_peer *peer = c->peer;

    return f->seq == next_in(c) && peer->state == PEER_UP &&
           (!f->behind || seq_reached(peer->express_in, f->id + 1));
}

/* Is it the turn of this message? False: wait, those before it are still to come. */
static bool in_turn(struct conn *c, const struct frame *f)
{
    struct tcp_peer *peer = c->peer;
    bool alone = c->express || peer->channels == 1;

    if (due(c, f))
        return true;
    if (f->seq != next_in(c) && (alone || seq_reached(next_in(c), f->seq))) {
        peer_fail(peer, -EPROTO, "messages arrived out of order");
        return false;
    }
    c->parked = true;
    c->t->nparked++;
    conn_watch(c);
    return false;
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

static void on_answer(struct conn *c, const struct frame *f)
{
    struct fabric_req *req = take_asked(c->peer, f->id);

    if (!req) {
        peer_fail(c->peer, -EPROTO, "the other side answered what it was not asked");
    } else if (f->type == FRAME_DROP) {
        tcp_finish(req, 0);
    } else {
        req_next_part(req);
        conn_put(channel_for(c->peer, req->body_len), req);
    }
}

static void on_part(struct conn *c, const struct frame *f)
{
    struct inbound *b = find_body(c->peer, f->id);

    if (!b || f->size != b->promised || f->len > b->len - b->promised) {
        peer_fail(c->peer, -EPROTO, "the other side sent a body that it was not asked for");
        return;
    }
    b->promised += f->len;
    c->sink = b;
    c->sink_at = (size_t)f->size;
    c->sink_left = f->len;
    c->big = BIG_MEMORY;
}

static void on_control(struct conn *c, const struct frame *f)
{
    if (f->type == FRAME_PART)
        on_part(c, f);
    else if (f->type == FRAME_BYE)
        peer_fail(c->peer, -ECONNRESET, "the other side has closed the link");
    else
        on_answer(c, f);
}

/* Bytes of the frame at @p that are done with; 0: it is not complete, or it has to wait. */
static size_t frame_take(struct conn *c, const uint8_t *p, size_t len)
{
    struct tcp_peer *peer = c->peer;
    struct frame f;
    size_t need;

    if (len < sizeof(f))
        return 0;
    memcpy(&f, p, sizeof(f));
    if (!frame_ok(c, &f)) {
        peer_fail(peer, -EPROTO, "the other side sent a malformed frame");
        return 0;
    }
    need = sizeof(f) + f.hdr_len;
    if (f.type == FRAME_MSG && f.len <= INLINE_MAX)
        need += f.len;
    if (len < need)
        return 0;
    if (f.type != FRAME_MSG && f.type != FRAME_ASK)
        on_control(c, &f);
    else if (in_turn(c, &f))
        tcp_deliver(c, &f, p + sizeof(f));
    else
        return 0;
    return need;
}

static void keep_rest(struct conn *c, const uint8_t *p, size_t len)
{
    c->rest = malloc(len);
    if (!c->rest) {
        peer_fail(c->peer, -ENOMEM, "no memory for half a frame");
        return;
    }
    memcpy(c->rest, p, len);
    c->rest_len = len;
}

static void conn_parse(struct conn *c, const uint8_t *p, size_t len)
{
    struct tcp_peer *peer = c->peer;

    peer->refs++; /* a handler may drop it */
    while (len && reading(c)) {
        size_t n = MIN(len, c->sink_left);

        if (n) {
            if (c->sink)
                memcpy(c->sink->buf + c->sink_at, p, n);
            sink_got(c, n);
        } else {
            n = frame_take(c, p, len);
            if (!n)
                break;
        }
        p += n;
        len -= n;
    }
    if (len && (reading(c) || c->parked))
        keep_rest(c, p, len);
    peer_unref(peer);
}

static void drop_rest(struct conn *c)
{
    free(steal_ptr(c->rest));
    c->rest_len = 0;
}

bool conn_read(struct conn *c)
{
    struct tcp *t = c->t;
    bool any = false, crowded = t->base.crowded && !c->express;
    size_t sum = 0;

    for (unsigned round = 0; round < READ_ROUNDS && c->state == CONN_OPEN && reading(c); round++) {
        size_t direct = c->sink ? c->sink_left : 0, kept = c->rest_len, want = READ_MAX - kept,
               took;
        struct iovec iov[2];
        ssize_t got;

        if (crowded && direct > READ_CROWDED)
            direct = READ_CROWDED;
        if (direct)
            iov[0] = (struct iovec){c->sink->buf + c->sink_at, direct};
        if (kept)
            memcpy(t->buf, c->rest, kept);
        if (c->big && want > READ_AFTER_BODY)
            want = READ_AFTER_BODY; /* rather a read more than a copy of the next body */
        if (direct && direct < c->sink_left)
            want = 0; /* the rest of the body comes first */
        iov[direct > 0] = (struct iovec){t->buf + kept, want};
        got = direct ? readv(c->fd, iov, 2) : recv(c->fd, iov->iov_base, want, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return any;
        if (got <= 0) {
            conn_lost(c, got ? errno : 0);
            return true;
        }
        any = true;
        c->got += (size_t)got;
        drop_rest(c);
        took = MIN((size_t)got, direct);
        if (took)
            sink_got(c, took);
        conn_parse(c, t->buf, kept + (size_t)got - took);
        sum += (size_t)got;
        if ((size_t)got < direct + want || (crowded && sum >= READ_CROWDED))
            break;
    }
    t->long_read |= sum >= READ_LONG;
    return any;
}

static void parse_rest(struct conn *c)
{
    uint8_t *rest = steal_ptr(c->rest);
    size_t len = c->rest_len;

    c->rest_len = 0;
    conn_parse(c, rest, len);
    free(rest);
}

/* Behind what is here already. */
static bool feed(struct conn *c, const uint8_t *p, size_t n)
{
    uint8_t *rest;

    if (!c->parked && !c->rest_len) {
        conn_parse(c, p, n);
        return true;
    }
    rest = realloc(c->rest, c->rest_len + n);
    if (!rest)
        return false;
    memcpy(rest + c->rest_len, p, n);
    c->rest = rest;
    c->rest_len += n;
    if (!c->parked)
        parse_rest(c);
    return true;
}

void conn_drain(struct conn *c)
{
    for (unsigned round = 0; round < DRAIN_ROUNDS; round++) {
        ssize_t got = recv(c->fd, c->t->buf, READ_MAX, MSG_DONTWAIT);

        if (got <= 0 && !(got < 0 && errno == EINTR))
            return;
        if (got < 0)
            continue;
        c->got += (size_t)got;
        if (!feed(c, c->t->buf, (size_t)got))
            peer_fail(c->peer, -ENOMEM, "no memory for what a broken connection had");
    }
}

static bool its_turn(const struct conn *c)
{
    struct frame f;

    memcpy(&f, c->rest, sizeof(f)); /* parked with at least a frame's head */
    return due(c, &f);
}

bool conns_resume(struct tcp *t)
{
    bool any = false, moved;
    struct conn *c;

    do {
        moved = false;
        TAILQ_FOREACH(c, &t->conns, link) {
            if (!c->parked || c->peer->failed || !its_turn(c))
                continue;
            c->parked = false;
            t->nparked--;
            conn_watch(c);
            parse_rest(c);
            moved = any = true;
            break; /* a handler may have changed the list */
        }
    } while (moved);
    return any;
}
