/* fabric_tcp_peer.c - peers: hello, failure, closing.
 *
 * Two peers know each other's address and a 32-byte token per direction from the TLS control plane.
 * The one with the smaller token connects, so that there is one connection (for each channel, and
 * for express messages) and not two:
 *
 *     connects                          accepts
 *     hello{its id} ------------------> whose is it? nobody's yet: stays in the lobby
 *                                       once that peer is added:
 *     is it that peer's? <------------- hello{its id}
 *     ACCEPT, and messages -----------> now it may send, too
 *
 * So it does not matter which side adds the other first, and no messages go to a side that has not
 * shown that it knows the tokens (fabric_tcp_greet.c). A connection that ends before it is open, or
 * before the others are and anything has come, is made again, with growing pauses. If it ends
 * afterwards, its stream goes on over a new socket
 * (fabric_tcp_mend.c); where that fails the link is down, and the control plane decides what that
 * means. A side that drops a peer on purpose says BYE, if the socket takes it at once. Tokens are
 * fresh for each pair and incarnation: what is left of an earlier one is a stranger.
 *
 * A link may break inside any call, and the caller may drop a peer in any callback; both only queue
 * the peer. peers_reap() does the work between two turns. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "shm/util/reset.h"
#include "shm/util/wait.h"
#include "transport/fabric/agree.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum { RETRY_MS = 50, RETRY_DOUBLINGS = 5, MEND_DOUBLINGS = 2 };

void peer_unref(struct tcp_peer *peer)
{
    assert(peer->refs > 0);
    if (--peer->refs > 0)
        return;
    assert(peer->state == PEER_GONE && LIST_EMPTY(&peer->bodies) && peer->answers == 0);
    LIST_REMOVE(peer, all_link);
    explicit_bzero(peer, sizeof(*peer));
    free(peer);
}

void peer_fail(struct tcp_peer *peer, int err, const char *fault)
{
    assert(err < 0);
    if (!peer_lives(peer))
        return;
    peer->failed = true;
    peer->err = err;
    snprintf(peer->fault, sizeof(peer->fault), "%s", fault);
    peer->refs++; /* the list's */
    peer->t->touched = true;
    STAILQ_INSERT_TAIL(&peer->t->to_fail, peer, fail_link);
}

/* --- hello ----------------------------------------------------------------------------------- */

void retry_later(struct tcp_peer *peer)
{
    unsigned most = peer->state == PEER_UP ? MEND_DOUBLINGS : RETRY_DOUBLINGS;

    if (!peer->connects && peer->state != PEER_UP)
        return;
    peer->retry_ms = now_ms() + (RETRY_MS << MIN(peer->retries, most));
    peer->retries++;
    timer_need(peer->t);
}

/* Why an open connection ended. */
static const char *end_text(int err)
{
    return err ? strerror(err) : "the other side has closed the link";
}

void peer_not_mended(struct conn *c)
{
    char fault[FAULT_MAX];

    snprintf(fault, sizeof(fault), "%s; no new connection in %u ms",
             c->peer->refused_ms ? TEXT_FORGED : end_text(c->err), c->t->mend_ms);
    peer_fail(c->peer, c->peer->refused_ms ? -EBADMSG : -ETIMEDOUT, fault);
}

static void close_into(struct conn *c, struct req_list *ret_doomed)
{
    conn_end_jobs(c, ret_doomed);
    TAILQ_CONCAT(ret_doomed, &c->kept, link);
    TAILQ_CONCAT(ret_doomed, &c->out, link);
    TAILQ_CONCAT(ret_doomed, &c->plain, link);
    conn_close(c);
}

static void finish_all(struct req_list *doomed, int st)
{
    struct fabric_req *req;

    while ((req = TAILQ_FIRST(doomed))) {
        TAILQ_REMOVE(doomed, req, link);
        tcp_finish(req, st);
    }
}

void conn_lost(struct conn *c, int err)
{
    struct req_list doomed = TAILQ_HEAD_INITIALIZER(doomed); /* of ours: the peer is not up */
    struct tcp_peer *peer = c->peer;

    if (c->cut_ms) {
        conn_cut(c);
        retry_later(peer);
        return;
    }
    if (c->state == CONN_BROKEN || (c->state == CONN_OPEN && conn_break(c, err)))
        return;
    /* A crowd may have pushed it out before it was let in. */
    if ((c->state == CONN_CONNECTING && err != ECONNRESET) ||
        (c->state == CONN_OPEN && (peer->state == PEER_UP || c->got))) {
        peer_fail(peer, err ? -err : -ECONNRESET, end_text(err));
        return;
    }
    close_into(c, &doomed);
    finish_all(&doomed, -EIO);
    if (peer)
        retry_later(peer);
}

bool peer_connected(const struct tcp_peer *peer)
{
    return peer->state == PEER_UP && peer->nopen;
}

void peer_tell_apart(struct tcp_peer *peer)
{
    struct tcp *t = peer->t;

    if (peer->told_connected == peer_connected(peer))
        return;
    peer->told_connected = !peer->told_connected;
    if (t->ev.on_apart && !t->stopping)
        t->ev.on_apart(t->ev.arg, peer->index);
}

static void peer_up(struct tcp_peer *peer)
{
    peer_set_state(&peer->state, PEER_UP);
    peer->up_ms = now_ms();
    peer_forget(peer);
}

/* Somebody has changed what was said over a new socket of a stream: another attempt follows. */
static void mending_refused(struct conn *c)
{
    if (!c->peer->refused_ms)
        c->peer->refused_ms = now_ms();
    conn_lost(c, EBADMSG);
}

/* Somebody has changed it, or repeats a hello that is not its own. The peer itself comes again, so
 * this attempt alone has failed, unless there are only such ones for long. */
void peer_refused(struct conn *c)
{
    struct tcp_peer *peer = c->peer;
    uint64_t now = now_ms();

    if (!peer->refused_ms)
        peer->refused_ms = now;
    if (now - peer->refused_ms > c->t->mend_ms)
        peer_fail(peer, -EBADMSG, TEXT_FORGED ": our answer to a hello is not accepted");
    if (c->cut_ms && c->opens)
        conn_drain(c); /* our kernel has acknowledged it, and it proves itself */
    conn_lost(c, EBADMSG);
}

void peer_opened(struct conn *c)
{
    struct tcp_peer *peer = c->peer;
    struct fabric_req *req;

    if (!peer_lives(peer))
        return; /* deleted since: peers_reap() closes */
    conn_set_state(c, CONN_OPEN);
    c->got_at = c->got;
    c->opened = c->attempt;
    peer->retries = 0;
    peer->refused_ms = 0;
    conn_expect_ack(c);
    if (c->cut_ms)
        conn_mended(c);
    else
        conn_tell_key(c);
    if (peer->nopen == peer->channels + peer->express && peer->state == PEER_GREETING)
        peer_up(peer);
    peer_tell_apart(peer);
    if (peer->nopen < peer->channels + peer->express)
        return;
    /* done() may drop the peer: the rest is then cancelled by peers_reap() */
    while (peer->state == PEER_UP && !peer->failed && (req = TAILQ_FIRST(&peer->waiting))) {
        fabric_done_fn done = req->done;
        void *arg = req->arg;
        int r;

        TAILQ_REMOVE(&peer->waiting, req, link);
        r = peer_post(req, req->head_len - sizeof(struct frame));
        if (r < 0)
            tcp_finish(req, r);
        else if (r > 0 && done)
            done(arg, 0);
    }
}

static void stranger(struct conn *c)
{
    c->t->base.stats.strangers++;
    if (!c->peer)
        reset_on_close(c->fd);
    conn_lost(c, 0);
}

/* Does what @h says of the peer's connections make sense, also beside its other connections? */
static bool hello_fits(const struct hello *h, const struct tcp_peer *peer)
{
    return h->channels > 0 && h->channels <= FABRIC_CHANNELS_MAX && h->express <= 1 &&
           h->channel < h->channels + h->express &&
           (!peer->conn[h->channel] == (h->of == HELLO_BEGINS)) &&
           (!peer->channels || (peer->channels == h->channels && peer->express == h->express));
}

/* A connection from the lobby, whose token is the peer's. */
static void adopt(struct conn *c, struct tcp_peer *peer)
{
    struct hello hello = c->hello; /* the same channel */

    if (!hello_fits(&hello, peer)) {
        stranger(c);
        return;
    }
    hello.ciphers = peer->encrypted ? (uint16_t)seal_choose(seal_ciphers(), hello.ciphers) : 0;
    if (hello_say(c, peer, &hello, true) || conn_agree(c, peer, false) ||
        !hello_send(c->fd, &hello)) {
        conn_close(c);
        return;
    }
    conn_set_state(c, CONN_ACCEPTED);
    c->hello_got = 0;
    c->peer = peer;
    c->channel = hello.channel;
    peer->channels = hello.channels;
    peer->express = hello.express;
    peer->conn[hello.channel] = c;
    conn_settle(c);
}

/* Both sides count attempts together, as by a Lamport clock. So the number tells of a hello,
 * whichever side sent it, whether it was sent before the stream was opened last. */
static bool earlier(uint16_t attempt, uint16_t than)
{
    return (int16_t)(attempt - than) < 0;
}

static void attempt_learn(struct conn *c, uint16_t attempt)
{
    if (earlier(c->attempt, attempt))
        c->attempt = attempt;
}

/* A connection from the lobby goes on with a stream, whose own socket may seem to be well here. */
static void adopt_stream(struct conn *from, struct tcp_peer *peer)
{
    struct hello hello = from->hello;
    struct conn *c = hello_fits(&hello, peer) ? peer->conn[hello.channel] : NULL;

    if (!c || (!conn_is_open(c) && !c->cut_ms)) {
        stranger(from);
        return;
    }
    if ((peer->connects && (c->state == CONN_CONNECTING || c->state == CONN_GREETING)) ||
        earlier(hello.attempt, c->attempt_seen) || earlier(hello.attempt, c->opened)) {
        conn_close(from); /* the other side takes our attempt, or has given this one up */
        return;
    }
    c->attempt_seen = hello.attempt;
    attempt_learn(c, hello.attempt);
    hello.attempt = ++c->attempt;
    conn_empty(c);
    conn_cut(c);
    conn_rewind(c, hello.got);
    if (!peer_lives(peer)) { /* or a handler has just dropped it */
        conn_close(from);
        return;
    }
    hello.got = c->got;
    hello.ciphers = 0; /* the stream has its keys */
    if (!hello_say(from, peer, &hello, true) && !conn_agree(from, peer, false) &&
        hello_send(from->fd, &hello)) {
        conn_plug(c, from);
        return;
    }
    conn_close(from);
    retry_later(peer);
}

static struct tcp_peer *find_by_hello(struct tcp *t, const struct hello *hello)
{
    bool mends = hello->of == HELLO_MENDS;
    struct tcp_peer *found = NULL;

    if (hello->of > HELLO_MENDS || (mends && !t->mend_ms))
        return NULL;
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        if (t->slot[i] && peer_lives(t->slot[i]) && (mends || !t->slot[i]->connects) &&
            t->slot[i]->state == (mends ? PEER_UP : PEER_GREETING) &&
            hello_is_of(t->slot[i], hello, NULL))
            found = t->slot[i];
    return found;
}

/* Somebody in the lobby has said who it is. */
static void guest_greeted(struct conn *c)
{
    struct hello unknown = {.magic = HELLO_MAGIC, .version = c->hello.version, .of = HELLO_UNKNOWN};
    struct tcp_peer *peer = find_by_hello(c->t, &c->hello);

    if (peer && c->hello.of == HELLO_MENDS) {
        adopt_stream(c, peer);
    } else if (peer) {
        adopt(c, peer);
    } else {
        c->t->base.stats.strangers++;
        if (c->hello.of == HELLO_BEGINS)
            return;                             /* until the peer is added */
        hello_digest(&c->hello, unknown.heard); /* the stream may be given up here */
        hello_send(c->fd, &unknown);
        conn_close(c);
    }
}

/* What a peer speaks is known from the control plane, so nobody on the way talks us into less. */
static bool version_fits(const struct conn *c)
{
    if (c->hello.magic != HELLO_MAGIC)
        return false;
    if (c->peer)
        return c->hello.version == c->peer->version;
    return c->hello.version == HELLO_VERSION ||
           (c->hello.version == HELLO_OLD && old_is_let_in(c->t, NULL));
}

void peer_greeted(struct conn *c)
{
    struct tcp_peer *peer = c->peer;

    if (!version_fits(c)) {
        stranger(c);
        return;
    }
    if (!peer) {
        guest_greeted(c);
        return;
    }
    if (!peer_lives(peer))
        return; /* deleted since: peers_reap() closes */
    if (c->cut_ms && c->hello.of == HELLO_UNKNOWN && hello_was_heard(c)) {
        peer_fail(peer, -ECONNRESET, end_text(0));
        return;
    }
    if (!hello_is_of(peer, &c->hello, &c->said)) {
        if (c->cut_ms)
            mending_refused(c);
        else
            stranger(c);
        return;
    }
    if (conn_agree(c, peer, true)) {
        peer_fail(peer, -EPROTO, "the other side has no cipher of ours");
        return;
    }
    if (c->cut_ms) {
        attempt_learn(c, c->hello.attempt);
        conn_rewind(c, c->hello.got);
    }
    if (!peer_lives(peer))
        return; /* dropped in a callback of conn_rewind() */
    if (send(c->fd, &c->accept, accept_size(peer), MSG_NOSIGNAL) != (ssize_t)accept_size(peer))
        conn_lost(c, EPIPE);
    else
        peer_opened(c);
}

static void connect_all(struct tcp_peer *peer)
{
    for (unsigned i = 0; i < peer->channels + peer->express; i++) {
        struct conn *c = peer->conn[i];
        int r = c && c->state != CONN_CUT ? 0 : tcp_connect(peer, i);

        if (r && c)
            retry_later(peer);
        else if (r)
            peer_fail(peer, r, strerror(-r));
    }
}

void peers_tick(struct tcp *t, uint64_t now)
{
    struct tcp_peer *peer;

    LIST_FOREACH(peer, &t->peers, all_link) {
        if (!peer->retry_ms || !peer_lives(peer))
            continue;
        if (peer->retry_ms > now) {
            timer_need(t);
            continue;
        }
        peer->retry_ms = 0;
        connect_all(peer);
    }
}

/* ---- coming ---------------------------------------------------------------------------------- */

static bool wants_of(const struct tcp_addr *a, struct fabric_wants *ret)
{
    uint8_t encryption = a->wants & (uint8_t)~WANTS_TRUSTED;

    *ret = (struct fabric_wants){(enum fabric_encryption)encryption, a->wants & WANTS_TRUSTED};
    return encryption <= FABRIC_ENCRYPT_ON;
}

/* Both sides come to the same. 1: encrypted; 0: in the clear; or what peer_add() returns. */
static int agree_encryption(const struct tcp *t, const struct tcp_addr *a, uint16_t version,
                            const struct sockaddr_storage *addr)
{
    struct fabric_wants theirs;

    if (version == HELLO_OLD)
        return old_is_let_in(t, addr) ? 0 : -EPERM;
    if (!wants_of(a, &theirs))
        return -EINVAL;
    switch (fabric_agree(&t->wants, &theirs, both_on_loopback(t, addr))) {
    case AGREED_CLEAR:
        return 0;
    case AGREED_ENCRYPTED:
        return 1;
    case AGREED_ON_AND_OFF:
    case AGREED_UNTRUSTED:
        return -EACCES;
    }
    return -EINVAL;
}

void fabric_tcp_disagree(const struct fabric_wants *ours, const char *name, const void *addr,
                         const char *other_name, char *why, size_t size)
{
    struct fabric_wants theirs = {.trusted = false};
    struct tcp_addr a;

    memcpy(&a, addr, sizeof(a));
    wants_of(&a, &theirs);
    fabric_disagree(ours, name, &theirs, other_name, why, size);
}

/* The version that both sides speak; 0: there is none. */
static uint16_t agree_version(const struct tcp_addr *a)
{
    uint16_t newest = a->newest ? a->newest : a->version;

    if (a->version > HELLO_VERSION || newest < HELLO_OLD || newest < a->version)
        return 0;
    return MIN(newest, (uint16_t)HELLO_VERSION);
}

static int parse_addr(const struct tcp *t, const void *addr, size_t len, struct tcp_peer *peer)
{
    struct tcp_addr a;
    int r;

    if (len != sizeof(a))
        return -EPROTONOSUPPORT;
    memcpy(&a, addr, sizeof(a));
    peer->version = agree_version(&a);
    if (memcmp(a.magic, FABRIC_TCP_MAGIC, sizeof(a.magic)) || !peer->version)
        return -EPROTONOSUPPORT;
    if (a.port == 0 || (a.family != 4 && a.family != 6))
        return -EINVAL;
    peer->addr.ss_family = a.family == 4 ? AF_INET : AF_INET6;
    *addr_port(&peer->addr) = htons(a.port);
    memcpy(addr_ip(&peer->addr), a.ip, a.family == 4 ? 4 : 16);
    r = agree_encryption(t, &a, peer->version, &peer->addr);
    peer->encrypted = r > 0;
    return r < 0 ? r : 0;
}

static int tcp_check_new(const struct tcp *t, const struct tcp_peer *peer)
{
    if (t->slot[peer->index])
        return -EEXIST;
    if (net_same_token(peer->token, peer->expect))
        return -EINVAL; /* the smaller token says which side connects */
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        if (t->slot[i] && (!memcmp(t->slot[i]->their_id, peer->their_id, ID_LEN) ||
                           !memcmp(t->slot[i]->id, peer->id, ID_LEN)))
            return -EADDRINUSE;
    return 0;
}

/* Connections of @peer that came before it was added. */
static void adopt_waiting(struct tcp_peer *peer)
{
    for (struct conn *c = TAILQ_FIRST(&peer->t->lobby), *next; c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->hello_got == sizeof(c->hello) && c->hello.of == HELLO_BEGINS &&
            hello_is_of(peer, &c->hello, NULL))
            adopt(c, peer);
    }
}

int tcp_peer_add(struct fabric *f, unsigned index, const void *addr, size_t addr_len,
                 const uint8_t token[32], const uint8_t expect[32])
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct tcp_peer *peer, parsed = {.t = t, .refs = 1, .index = index};
    int r;

    if (index >= FABRIC_MAX_PEERS || addr_len == 0 || addr_len > FABRIC_ADDR_MAX)
        return -EINVAL;
    r = parse_addr(t, addr, addr_len, &parsed);
    if (r)
        return r;
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return -ENOMEM;
    *peer = parsed;
    TAILQ_INIT(&peer->waiting);
    TAILQ_INIT(&peer->asked);
    memcpy(peer->token, token, sizeof(peer->token));
    memcpy(peer->expect, expect, sizeof(peer->expect));
    r = peer_ids(peer);
    if (!r)
        r = tcp_check_new(t, peer);
    if (r) {
        explicit_bzero(peer, sizeof(*peer));
        free(peer);
        return r;
    }
    if (!peer_is_old(peer)) {
        explicit_bzero(peer->token, sizeof(peer->token));
        explicit_bzero(peer->expect, sizeof(peer->expect));
    }
    LIST_INSERT_HEAD(&t->peers, peer, all_link);
    t->slot[index] = peer;
    t->touched = true;
    peer->connects = memcmp(token, expect, 32) < 0;
    if (peer->connects) {
        peer->channels = t->channels;
        peer->express = t->express;
        connect_all(peer);
    } else {
        adopt_waiting(peer);
    }
    return 0;
}

/* ---- going ----------------------------------------------------------------------------------- */

void tcp_peer_del(struct fabric *f, unsigned index)
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct tcp_peer *peer = index < FABRIC_MAX_PEERS ? t->slot[index] : NULL;

    if (!peer)
        return;
    t->slot[index] = NULL;
    peer_set_state(&peer->state, PEER_GONE);
    t->touched = true;
    STAILQ_INSERT_TAIL(&t->to_close, peer, close_link); /* takes the slot's reference with it */
}

static enum bye bye_of(int err)
{
    if (err == -EBADMSG)
        return BYE_FORGED;
    return err == -ETIMEDOUT ? BYE_SILENT : BYE_PLAIN;
}

static void say_bye(struct tcp_peer *peer)
{
    struct frame bye = {.type = FRAME_BYE, .id = bye_of(peer->err)};
    struct iovec iov = {&bye, sizeof(bye)};
    uint8_t record[sizeof(bye) + SEAL_MORE];
    struct conn *c = peer->conn[0];

    if (!c || c->state != CONN_OPEN)
        return;
    if (c->seals && TAILQ_EMPTY(&c->out) && !seal_put(c->seals, &iov, 1, record))
        send(c->fd, record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL);
    else if (!c->seals && (TAILQ_EMPTY(&c->out) || !TAILQ_FIRST(&c->out)->sent))
        send(c->fd, &bye, sizeof(bye), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Closes all connections and completes with @st what was under way. */
static void cut(struct tcp_peer *peer, int st)
{
    struct req_list doomed = TAILQ_HEAD_INITIALIZER(doomed);
    struct inbound *b;

    say_bye(peer);
    for (unsigned i = 0; i < peer->channels + peer->express; i++)
        if (peer->conn[i])
            close_into(peer->conn[i], &doomed);
    TAILQ_CONCAT(&doomed, &peer->asked, link);
    TAILQ_CONCAT(&doomed, &peer->waiting, link);
    finish_all(&doomed, st);
    while ((b = body_taken(peer, NULL)))
        body_end(b, st);
}

bool peers_reap(struct tcp *t)
{
    struct tcp_peer *peer;
    bool any = false;

    while ((peer = STAILQ_FIRST(&t->to_fail))) {
        STAILQ_REMOVE_HEAD(&t->to_fail, fail_link);
        any = true;
        peer->failed = false;
        if (peer->state != PEER_GONE) {
            peer_set_state(&peer->state, PEER_DOWN);
            cut(peer, -EIO);
        }
        if (!t->stopping && peer->state == PEER_DOWN) /* done() may have dropped it */
            t->ev.on_peer_down(t->ev.arg, peer->index, peer->err, peer->fault);
        peer_unref(peer);
    }
    while ((peer = STAILQ_FIRST(&t->to_close))) {
        STAILQ_REMOVE_HEAD(&t->to_close, close_link);
        any = true;
        cut(peer, -ECANCELED);
        peer_unref(peer); /* the slot's */
    }
    return any;
}
