/* fabric_tcp_in.c - from the bytes of a connection to messages.
 *
 * Bytes are read into one buffer of the fabric, whatever the connection. Messages with inline
 * bodies are handed out from it. The body of any other frame is read straight to where it belongs
 * (the "sink"), and what follows it into the buffer, by the same readv(). An incomplete frame at
 * the end of the buffer is kept with its connection, so idle connections have no memory.
 *
 * A body that is on its way (frame MSG) is offered as a claim, before it is here. If the handler
 * takes it at once, it is read to where the handler wants it; if not, into memory of ours, where it
 * waits. Either way the stream goes on.
 *
 * Messages are numbered over all channels of a peer. One that comes before its turn, or before all
 * connections are open, parks its connection until those before it have been handed out. Express
 * messages have a connection and numbers of their own, and are never asked for. A message that goes
 * behind them says which was the last, and waits for it as for another channel.
 *
 * Whatever a peer can write is checked: frame_ok(), and the state that a frame needs. What is wrong
 * takes the link down. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    READ_ROUNDS = 4,         /* reads per connection and turn */
    READ_CROWDED = 64 << 10, /* in a turn, of what is not express */
    READ_LONG = 16 << 10,
    DRAIN_ROUNDS = 1024, /* of READ_MAX: more than a socket holds */
};

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
    assert(!b->calling);
    jobs_of_body(b);
    LIST_REMOVE(b, link);
    if (!b->taken)
        free(b->buf);
    peer_unref(b->peer);
    free(b);
}

void body_end(struct inbound *b, int st)
{
    fabric_done_fn done = b->done;
    void *arg = b->arg;

    assert(b->taken);
    body_free(b);
    if (done)
        done(arg, st);
}

struct inbound *body_taken(struct tcp_peer *peer, const uint32_t *id)
{
    struct inbound *b;

    LIST_FOREACH(b, &peer->bodies, link)
        if (b->taken && (!id || (b->asked && b->id == *id)))
            break;
    return b;
}

void body_got(struct inbound *b, size_t n)
{
    b->got += n;
    assert(b->got <= b->len);
    if (b->got == b->len && b->taken)
        body_end(b, 0);
}

void sink_pass(struct conn *c, size_t n)
{
    assert(n <= c->sink_left);
    c->sink_left -= n;
    c->sink_at += n;
    if (c->sink_left == 0)
        c->sink = NULL;
}

void sink_got(struct conn *c, size_t n)
{
    struct inbound *b = c->sink;

    sink_pass(c, n);
    if (b)
        body_got(b, n);
}

/* May what has come be handed out? There need not be a socket now. */
static bool reading(const struct conn *c)
{
    return (conn_is_open(c) || c->cut_ms) && !c->parked && peer_lives(c->peer);
}

struct inbound *conn_sink(const struct conn *c, size_t n)
{
    return n <= c->sink_left && !c->rest_len && reading(c) ? c->sink : NULL;
}

static bool frame_ok(const struct conn *c, const struct frame *f)
{
    if (f->type == FRAME_PROBE)
        return c->seals && f->hdr_len == 0 && f->len == PROBE_LEN;
    if (f->type == FRAME_KEY || f->type == FRAME_PROBED)
        return c->seals && f->hdr_len == 0 && f->len == 0 && (f->id || f->type == FRAME_PROBED);
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

/* Gives the handler a claim of a body, which it may take now, or later, or not at all. */
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

/* @p: the header and, if it is inline, the body. */
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

/* Is the message the next one, and can its receiver answer on all channels? */
static bool due(const struct conn *c, const struct frame *f)
{
    const struct tcp_peer *peer = c->peer;

    return f->seq == next_in(c) && peer->state == PEER_UP &&
           (!f->behind || seq_reached(peer->express_in, f->id + 1));
}

/* As due(); if not, the connection waits for the messages before this one. */
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

static void on_part(struct conn *c, const struct frame *f)
{
    struct inbound *b = body_taken(c->peer, &f->id);

    if (!b || f->size != b->promised || f->len > b->len - b->promised) {
        peer_fail(c->peer, -EPROTO, "the other side sent a body that it was not asked for");
        return;
    }
    b->promised += f->len;
    assert(c->sink_left == 0);
    c->sink = b;
    c->sink_at = (size_t)f->size;
    c->sink_left = f->len;
    c->big = BIG_MEMORY;
}

static void on_bye(struct conn *c, const struct frame *f)
{
    struct tcp_peer *peer = c->peer;

    conn_await_opens(c); /* bodies that came before it are whole */
    if (f->id == BYE_FORGED)
        peer_fail(peer, -EBADMSG, TEXT_FORGED " at the other side");
    else if (f->id == BYE_SILENT)
        peer_fail(peer, -ETIMEDOUT, "no answer for too long at the other side");
    else
        peer_fail(peer, -ECONNRESET, "the other side has closed the link");
}

static void on_probe(struct conn *c, const struct frame *f)
{
    c->sink_left = f->len; /* thrown away */
    if (conn_put_frame(c, FRAME_PROBED, 0))
        peer_fail(c->peer, -ENOMEM, "no memory to answer");
}

/* Takes the frame at @p, and returns its bytes. 0: the frame is not complete, or has to wait. */
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
    if (f.type == FRAME_PART)
        on_part(c, &f);
    else if (f.type == FRAME_BYE)
        on_bye(c, &f);
    else if (f.type == FRAME_PROBE)
        on_probe(c, &f);
    else if (f.type == FRAME_PROBED)
        conn_answered(c);
    else if (f.type == FRAME_GRANT || f.type == FRAME_DROP)
        peer_answered(peer, &f);
    else if (f.type == FRAME_KEY)
        conn_hear_key(c, f.id);
    else if (in_turn(c, &f))
        tcp_deliver(c, &f, p + sizeof(f));
    else
        return 0;
    return need;
}

static void keep_rest(struct conn *c, const uint8_t *p, size_t len)
{
    assert(!c->rest);
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

static bool read_sealed(struct conn *c)
{
    bool crowded = c->t->base.crowded && !c->express, any = false;
    size_t sum = 0;

    for (unsigned round = 0; round < READ_ROUNDS && c->state == CONN_OPEN && reading(c); round++) {
        size_t want = conn_sealed_want(c);
        ssize_t got = conn_recv_sealed(c);
        int err = got < 0 ? errno : 0;

        if (got < 0 && (err == EAGAIN || err == EINTR))
            break;
        any = true;
        if (got <= 0) {
            conn_await_opens(c);
            conn_lost(c, err);
            break;
        }
        sum += (size_t)got;
        if ((size_t)got < want || (crowded && sum >= READ_CROWDED))
            break;
    }
    c->t->long_read |= sum >= READ_LONG;
    return any;
}

bool conn_read(struct conn *c)
{
    struct tcp *t = c->t;
    bool any = false, crowded = t->base.crowded && !c->express;
    size_t sum = 0;

    if (c->opens)
        return read_sealed(c);

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
            want = READ_AFTER_BODY; /* one more read costs less than a copy of the next body */
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
        free(steal_ptr(c->rest));
        c->rest_len = 0;
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

bool conn_feed(struct conn *c, const uint8_t *p, size_t n)
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
        ssize_t got =
            c->opens ? conn_recv_sealed(c) : recv(c->fd, c->t->buf, READ_MAX, MSG_DONTWAIT);

        if (got <= 0 && !(got < 0 && errno == EINTR))
            return;
        if (got < 0 || c->opens)
            continue;
        c->got += (size_t)got;
        if (!conn_feed(c, c->t->buf, (size_t)got))
            peer_fail(c->peer, -ENOMEM, "no memory for what a broken connection had");
    }
}

static bool its_turn(const struct conn *c)
{
    struct frame f;

    assert(c->rest_len >= sizeof(f));
    memcpy(&f, c->rest, sizeof(f));
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
