/* fabric_tcp_mend.c - a stream that outlives its socket, so that a connection which breaks costs
 * time and nothing else, as long as both engines live.
 *
 * Model. Both sides count the bytes of a stream. What has been written is kept until the other
 * side's kernel has acknowledged it (SIOCOUTQ): from then on it can be read there whatever happens
 * to the socket, for a reset drops what is to be sent, not what has come. A side whose socket
 * breaks reads all that is left in it ("broken"), closes it ("cut"), and makes a new one. The side
 * that connects does so at once; the other a little later, in case the first has not noticed. Where
 * both try, the side that connects takes no socket of the other. In the greeting each side says how
 * many bytes it has, and the other goes on from there. So each byte comes once and in order, and
 * the code that reads frames notices nothing.
 *
 *     open --error, end--> broken --read to its end--> cut --greeted again--> open
 *                                                       |
 *                     no new socket within mend_ms, or the other side has given up: the link ends
 *
 * A kept request is on c->kept, in the order of the stream. Its body stays in the caller's memory
 * ("held") until it is acknowledged. Bodies of up to COPY_NOW are copied at once instead, so that
 * such a send is over when send() returns. The last COPY_TAIL bytes may be acknowledged late, by 40
 * ms if nothing goes back: they are copied after PATIENCE turns. Before the engine sleeps all
 * bodies are copied. A frame of an asked body that is not its last is kept as a request of its own.
 *
 * What is dropped on the way breaks no socket for about a quarter of an hour. So a socket to which
 * something was written is looked at now and then: if nothing that the kernel has sent since is
 * acknowledged for mend_ms, it has broken. A side that does not read for long has a closed window;
 * it acknowledges all the same, but is asked less and less often: so what counts is not how long
 * ago it did, but whether it was asked after that.
 *
 * If the other engine dies, commd says so sooner than mend_ms. If a box on the way acknowledges in
 * the other side's name, the other side has less than was released here, and the link ends. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "shm/util/wait.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    COPY_NOW = 4 << 10,
    COPY_TAIL = 64 << 10,
    LOOK_BYTES = 64 << 10, /* written between two looks */
    LOOK_REQS = 64,        /* and kept */
    PATIENCE = 16,         /* looks in vain, before the tail is copied */
    ACK_TICKS = 10,        /* between two looks who acknowledges */
    LASTED_MS = 200,       /* after a socket that was open for less, and brought nothing, we wait */
};

size_t req_len(const struct fabric_req *req)
{
    return req->head_len + req->part_len;
}

static void set_keeping(struct conn *c)
{
    if (c->keeping)
        return;
    c->keeping = true;
    TAILQ_INSERT_TAIL(&c->t->keepers, c, keep_link);
}

static void body_hold(struct conn *c, struct fabric_req *req)
{
    assert(!req->held && req->part_len && !req->copy);
    req->held = true;
    c->held++;
    c->t->held++;
}

static void body_unhold(struct conn *c, struct fabric_req *req)
{
    assert(req->held && c->held && c->t->held);
    req->held = false;
    c->held--;
    c->t->held--;
}

static bool body_copy(struct fabric_req *req)
{
    assert(!req->copy && req->part_len);
    req->copy = malloc(req->part_len);
    if (!req->copy)
        return false;
    memcpy(req->copy, req->part, req->part_len);
    req->part = req->copy;
    return true;
}

/* The bytes of @req are no longer needed where they lie. */
static void body_back(struct conn *c, struct fabric_req *req)
{
    struct fabric_req *whole = req->whole ? req->whole : req;

    body_unhold(c, req);
    assert(whole->lent);
    if (--whole->lent == 0)
        tcp_tell(whole, 0);
}

bool conn_keep(struct conn *c, struct fabric_req *req, bool may_tell)
{
    if (!c->t->mend_ms) {
        if (may_tell)
            tcp_tell(req, 0);
        tcp_req_free(req);
        return true;
    }
    TAILQ_INSERT_TAIL(&c->kept, req, link);
    c->nkept++;
    c->unlooked += req_len(req);
    if (c->unlooked >= LOOK_BYTES || c->nkept >= LOOK_REQS)
        set_keeping(c);
    if (req->copy)
        return true; /* written again: the caller has been told, or waits for other parts */
    if (req->part_len) {
        body_hold(c, req);
        if (req->part_len > COPY_NOW || !body_copy(req)) {
            set_keeping(c);
            return false;
        }
        if (may_tell)
            body_back(c, req);
        else
            body_unhold(c, req);
    } else if (may_tell) {
        tcp_tell(req, 0);
    }
    if (!may_tell)
        req->done = NULL;
    return true;
}

static void trim(struct fabric_req *req, size_t n)
{
    size_t head = MIN(n, (size_t)req->head_len);

    assert(n < req_len(req));
    memmove(req->head, req->head + head, req->head_len - head);
    req->head_len -= (uint16_t)head;
    if (n > head) { /* NULL + 0 is undefined */
        req->part += n - head;
        req->part_len -= n - head;
    }
}

/* The other side has the stream up to @upto for sure. */
static void kept_release(struct conn *c, uint64_t upto)
{
    struct fabric_req *req;

    while ((req = TAILQ_FIRST(&c->kept)) && c->kept_at < upto) {
        size_t n = MIN(req_len(req), upto - c->kept_at);

        assert(c->nkept > 0);
        c->kept_at += n;
        if (n < req_len(req)) {
            trim(req, n);
            return;
        }
        TAILQ_REMOVE(&c->kept, req, link);
        c->nkept--;
        if (req->held)
            body_back(c, req);
        tcp_req_free(req);
    }
}

uint64_t conn_acked(const struct conn *c)
{
    uint64_t written = c->sent - c->socket_at;
    int unacked;

    if (c->state != CONN_OPEN || ioctl(c->fd, SIOCOUTQ, &unacked) || unacked < 0)
        return c->kept_at;
    return c->sent - MIN((uint64_t)unacked, written);
}

static void kept_look(struct conn *c)
{
    c->unlooked = 0;
    kept_release(c, conn_acked(c));
}

/* The last kept request whose body is held and which lies wholly in the last @tail bytes. */
static struct fabric_req *held_in_tail(struct conn *c, size_t tail)
{
    struct fabric_req *req;
    size_t behind = 0;

    TAILQ_FOREACH_REVERSE(req, &c->kept, req_list, link)
    {
        behind += req_len(req);
        if (behind > tail)
            return NULL;
        if (req->held)
            return req;
    }
    return NULL;
}

static bool conn_settle_kept(struct conn *c)
{
    size_t tail = c->t->settle ? SIZE_MAX : COPY_TAIL;
    unsigned before = c->held;
    uint64_t kept_at = c->kept_at;
    struct fabric_req *req;

    kept_look(c);
    c->patience = kept_at == c->kept_at ? c->patience + 1 : 0;
    if (c->patience < PATIENCE && !c->t->settle)
        return c->held < before;
    while (c->held && (req = held_in_tail(c, tail)) && body_copy(req))
        body_back(c, req);
    return c->held < before;
}

bool conns_settle(struct tcp *t)
{
    struct conn *c, *next;
    bool any = false;

    for (c = TAILQ_FIRST(&t->keepers); c; c = next) {
        any |= conn_settle_kept(c);
        next = TAILQ_NEXT(c, keep_link); /* none is closed before peers_reap() */
        if (c->held)
            continue;
        TAILQ_REMOVE(&t->keepers, c, keep_link);
        c->keeping = false;
    }
    t->settle = false;
    return any;
}

bool conn_break(struct conn *c, int err)
{
    struct tcp_peer *peer = c->peer;

    assert(c->state == CONN_OPEN);
    if (!c->t->mend_ms || peer->state != PEER_UP || peer->failed)
        return false;
    conn_set_state(c, CONN_BROKEN);
    c->err = err;
    c->t->touched = true;
    conn_stop_writing(c);
    return true;
}

void conn_cut(struct conn *c)
{
    if (c->state == CONN_CUT)
        return;
    if (conn_is_open(c)) {
        c->cut_ms = now_ms();
        conn_add_traffic(c, &c->past);
    }
    assert(c->cut_ms);
    conn_unplug(c);
    conn_set_state(c, CONN_CUT);
    timer_need(c->t);
}

/* ---- silence --------------------------------------------------------------------------------- */

void conn_expect_ack(struct conn *c)
{
    if (c->ack_ticks || !c->t->mend_ms)
        return;
    c->ack_ticks = ACK_TICKS;
    timer_need(c->t);
}

/* Has the kernel sent something after the last acknowledgement that came? The window may be closed,
 * so that it sends nothing but probes, which it does not count among what it has sent. */
static bool asked_since(const struct tcp_info *info)
{
    return info->tcpi_unacked ? info->tcpi_last_data_sent < info->tcpi_last_ack_recv
                              : info->tcpi_probes > 0;
}

bool conn_check_ack(struct conn *c)
{
    uint64_t now = now_ms();
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    int unacked;

    if (!c->ack_ticks || --c->ack_ticks)
        return c->ack_ticks > 0;
    if (ioctl(c->fd, SIOCOUTQ, &unacked) || unacked <= 0 ||
        getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len)) {
        c->silent_ms = 0;
        return false; /* until something is written again */
    }
    c->ack_ticks = ACK_TICKS;
    if (!asked_since(&info))
        c->silent_ms = 0;
    else if (!c->silent_ms || info.tcpi_last_ack_recv < now - c->silent_ms)
        c->silent_ms = now; /* what was sent last may be on its way */
    else if (now - c->silent_ms >= c->t->mend_ms)
        conn_lost(c, ETIMEDOUT);
    return true;
}

/* ---- a new socket ---------------------------------------------------------------------------- */

static void connect_again(struct conn *c)
{
    bool failing = c->got == c->got_at && now_ms() < c->since_ms + LASTED_MS;

    if (!c->peer->connects || failing || tcp_connect(c->peer, c->channel))
        retry_later(c->peer);
}

bool conns_mend(struct tcp *t)
{
    struct conn *c;
    bool any = false;

    TAILQ_FOREACH(c, &t->conns, link) { /* none is closed before peers_reap() */
        if (c->state != CONN_BROKEN)
            continue;
        any = true;
        conn_drain(c);
        conn_cut(c);
        if (c->peer->failed)
            continue;
        peer_tell_apart(c->peer);
        connect_again(c);
    }
    return any;
}

void conn_rewind(struct conn *c, uint64_t got)
{
    struct fabric_req *req;

    assert(c->state != CONN_OPEN && !c->writing);
    c->sent_most = MAX(c->sent_most, c->sent);
    if (got < c->kept_at || got > c->sent_most) {
        peer_fail(c->peer, -EPROTO, "the other side lost what its kernel had acknowledged");
        return;
    }
    if (got > c->sent) /* the rest came there over a socket before the last one */
        conn_wrote(c, got - c->sent);
    kept_release(c, got);
    TAILQ_FOREACH(req, &c->kept, link) {
        req->sent = 0;
        if (req->held)
            body_unhold(c, req); /* until it has been written again */
    }
    req = TAILQ_FIRST(&c->out);
    if (req)
        req->sent = 0;
    TAILQ_CONCAT(&c->kept, &c->out, link);
    TAILQ_CONCAT(&c->out, &c->kept, link);
    c->nkept = 0;
    req = TAILQ_FIRST(&c->out);
    assert(req || got == c->kept_at);
    if (req)
        req->sent = got - c->kept_at;
    c->sent = c->socket_at = got;
    if (c->seals)
        conn_resealed(c);
}

void conn_mended(struct conn *c)
{
    assert(c->state == CONN_OPEN && c->cut_ms);
    c->cut_ms = 0;
    c->peer->mends++;
    conn_watch(c);
    if (!TAILQ_EMPTY(&c->out) || !TAILQ_EMPTY(&c->plain))
        conn_want_write(c);
}
