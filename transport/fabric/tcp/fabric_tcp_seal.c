/* fabric_tcp_seal.c - streams that are encrypted.
 *
 * Records (seal.h) are made above the stream that outlives its socket (fabric_tcp_mend.c): what is
 * kept, written again and counted are the bytes of records. So a request goes two ways:
 *
 *     message --> c->plain --sealed--> c->out --written--> c->kept --acknowledged--> gone
 *
 * Its body is encrypted from the caller's memory into memory of ours, which takes the place of the
 * copy that the mending needs, and is the caller's again at once. What comes is decrypted to where
 * its body belongs, if that is known; so memory that is to be written may have been, when the tag
 * of the record turns out to be wrong and the link ends.
 *
 * A record that is dropped on the way is missed when the next one comes; one whose length was
 * changed to a larger one, when so much more has come. Sides that wait for each other would wait
 * for good. So what was sealed is followed by a probe, once nothing more is for a while: a record
 * of the largest length, which nobody needs. Who holds back all that follows, and acknowledges it
 * in the other side's name, is not noticed by that: so the other side answers a probe. If it does
 * not for twice mend_ms, in which nothing else comes of it and its kernel takes nothing, the link
 * ends. So it does if the other engine is stopped for so long. All this is looked at by the timer,
 * which counts the ticks that it sees: those that we have slept through count as one.
 *
 * When the two commds have a new TLS session, each gives its engine a fresh secret of it. An engine
 * that has it says so in each stream (FRAME_KEY), and seals with it once the other side has said
 * the same. So it does not matter which side has it first. Where one side has not got it in
 * KEY_TICKS the link ends: somebody may hold it back, who has the keys of before. What a side has
 * said that it has it keeps until it is used, or until SEAL_FRESH newer ones have come.
 *
 * SEAL_AHEAD bytes are sealed ahead of the socket: more would only wait in memory. Other threads
 * make and open records of large bodies, where there are some: fabric_tcp_jobs.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/util/wait.h"
#include "transport/fabric/tcp/fabric_tcp_priv.h"

enum {
    SEAL_AHEAD = 256 << 10,
    SEALED_AFTER_BODY = 4 << 10,
    PIECES = 2, /* of a request: head, and part */
};

struct req_list *conn_queue(struct conn *c)
{
    return c->seals ? &c->plain : &c->out;
}

/* The pieces of @req from @at on, at most @len bytes. */
static unsigned pieces(const struct fabric_req *req, size_t at, size_t len,
                       struct iovec iov[PIECES])
{
    unsigned n = 0;

    if (at < req->head_len) {
        size_t part = MIN(len, req->head_len - at);

        iov[n++] = (struct iovec){(void *)(uintptr_t)(req->head + at), part};
        at += part;
        len -= part;
    }
    if (len)
        iov[n++] = (struct iovec){(void *)(uintptr_t)(req->part + (at - req->head_len)), len};
    return n;
}

static void probe_later(struct conn *c, const struct fabric_req *req)
{
    if (req->head[offsetof(struct frame, type)] >= FRAME_PROBE)
        return;
    c->probe_ticks = PROBE_TICKS;
    timer_need(c->t);
}

/* How far what concerns @c is, both ways: messages of all channels wait for each other. */
static uint64_t moved_so_far(const struct conn *c)
{
    const struct tcp_peer *peer = c->peer;
    uint64_t sum = 0;

    for (unsigned i = 0; i < peer->channels + peer->express; i++) {
        const struct conn *one = peer->conn[i];

        if (one && one->opens && one->express == c->express)
            sum += seal_number(one->opens) + conn_acked(one);
    }
    return sum;
}

static bool await_answer(struct conn *c)
{
    uint64_t moved;
    char fault[FAULT_MAX];

    if (!c->probes || !c->t->mend_ms)
        return false;
    moved = moved_so_far(c);
    if (moved > c->moved || c->parked || !c->answer_ticks) {
        c->moved = moved;
        c->answer_ticks = 2 * c->t->mend_ms / TICK_MS + 1;
    } else if (--c->answer_ticks == 0) {
        snprintf(
            fault, sizeof(fault),
            "no answer for %u ms, though what was sent is acknowledged: its engine is stopped, "
            "or somebody holds it back",
            2 * c->t->mend_ms);
        peer_fail(c->peer, -ETIMEDOUT, fault);
    }
    return true;
}

void conn_answered(struct conn *c)
{
    if (!c->probes)
        peer_fail(c->peer, -EPROTO, "the other side answered a probe that was not sent");
    else if (--c->probes == 0)
        c->answer_ticks = 0;
}

bool conn_seal_tick(struct conn *c, uint64_t now)
{
    if (!c->seals)
        return false;
    seal_tick(c->seals, now);
    if (c->probe_ticks && --c->probe_ticks == 0)
        conn_put_probe(c);
    if (c->key_ticks && --c->key_ticks == 0)
        peer_fail(
            c->peer, -EBADMSG,
            "authentication failed: the other engine has not taken a fresh key in 20 minutes");
    return await_answer(c) || c->probe_ticks || c->key_ticks;
}

/* Of records that have @len bytes, all but the last as many as they can. */
static size_t sealed_size(size_t len)
{
    return len + (len + SEAL_DATA - 1) / SEAL_DATA * SEAL_MORE;
}

/* With room for records of @len bytes, one of which may be of less. NULL: no memory. */
static struct fabric_req *sealed_new(struct conn *c, size_t len)
{
    struct fabric_req *sealed = tcp_req_new(c->peer);

    if (!sealed)
        return NULL;
    sealed->head_len = 0;
    sealed->copy = malloc(sealed_size(len) + SEAL_MORE);
    if (sealed->copy)
        return sealed;
    tcp_req_free(sealed);
    return NULL;
}

static void sealed_add(struct conn *c, struct fabric_req *sealed, size_t len)
{
    sealed->part = sealed->copy;
    sealed->part_len = len;
    c->ahead += len;
    TAILQ_INSERT_TAIL(&c->out, sealed, link);
}

/* What @req has from @at up to @end. */
static int seal_here(struct conn *c, const struct fabric_req *req, size_t at, size_t end)
{
    struct fabric_req *sealed = sealed_new(c, end - at);
    struct iovec iov[PIECES];
    uint8_t *to;
    int r = 0;

    if (!sealed)
        return -ENOMEM;
    to = sealed->copy;
    while (!r && at < end) {
        size_t len = MIN(end - at, (size_t)SEAL_DATA);

        if (at == 0 && req->head_len && req->part_len >= SEAL_DATA)
            len =
                req->head_len; /* the body in records of its own is decrypted to where it belongs */
        r = seal_put(c->seals, iov, pieces(req, at, len, iov), to);
        at += len;
        to += len + SEAL_MORE;
    }
    if (r)
        tcp_req_free(sealed);
    else
        sealed_add(c, sealed, (size_t)(to - sealed->copy));
    return r;
}

/* @len bytes of its body by another thread, behind the header if they are the first: @ret_done of
 * both. */
static int seal_there(struct conn *c, struct fabric_req *req, size_t at, size_t len,
                      size_t *ret_done)
{
    size_t head = at ? 0 : req->head_len, room = head ? head + SEAL_MORE : 0, given = 0;
    struct fabric_req *sealed = sealed_new(c, head + len);
    struct iovec iov = {req->head, head};

    if (!sealed)
        return -ENOMEM;
    if (!head || !seal_put(c->seals, &iov, 1, sealed->copy))
        given = job_seal(c, sealed, sealed->copy + room, req,
                         req->part + (at + head - req->head_len), len);
    if (!given) {
        tcp_req_free(sealed);
        return -ENOMEM;
    }
    sealed_add(c, sealed, room + sealed_size(given));
    *ret_done = head + given;
    return 0;
}

static int seal_large(struct conn *c, struct fabric_req *req)
{
    size_t all = req_len(req), done;
    int r = 0;

    for (size_t at = 0; !r && at < all; at += done) {
        size_t head = at ? 0 : req->head_len, len = MIN(all - at - head, (size_t)JOB_SEALS);

        done = head + len;
        if (TAILQ_EMPTY(&c->t->free_jobs) || len <= SEAL_DATA)
            r = seal_here(c, req, at, at + done);
        else
            r = seal_there(c, req, at, len, &done);
    }
    return r;
}

int conn_seal(struct conn *c, struct fabric_req *req)
{
    size_t all = req_len(req);
    int r;

    assert(all > 0 && !req->sent);
    if (!c->probe_ticks) /* the timer may have rested */
        seal_tick(c->seals, now_ms());
    if (c->t->threads && req->part_len >= JOB_BODY)
        r = seal_large(c, req);
    else
        r = seal_here(c, req, 0, all);
    if (!r)
        probe_later(c, req);
    return r;
}

int req_sealed(struct fabric_req *req, bool may_tell)
{
    assert(req->lent);
    if (--req->lent)
        return 0;
    if (may_tell)
        tcp_tell(req, 0);
    tcp_req_free(req);
    return 1;
}

bool conn_has_written(const struct conn *c)
{
    const struct fabric_req *first = TAILQ_FIRST(&c->out);

    return (!first || first->sealing) && (TAILQ_EMPTY(&c->plain) || c->ahead >= SEAL_AHEAD);
}

bool conn_seal_more(struct conn *c)
{
    struct fabric_req *req;
    bool any = false;

    while (c->ahead < SEAL_AHEAD && (req = TAILQ_FIRST(&c->plain))) {
        int r = conn_seal(c, req);

        if (r) {
            peer_fail(c->peer, r, "cannot encrypt what is to be sent");
            return any;
        }
        any = true;
        TAILQ_REMOVE(&c->plain, req, link);
        if (req->asked && req->next < req->body_len) {
            req_next_part(req);
            TAILQ_INSERT_TAIL(&c->plain, req, link);
        } else {
            req_sealed(req, true);
        }
    }
    return any;
}

void conn_resealed(struct conn *c)
{
    struct fabric_req *req;

    c->ahead = 0;
    TAILQ_FOREACH(req, &c->out, link)
        c->ahead += req_len(req) - req->sent;
}

/* Hands on what the record at @p has. False: it is not the next one of the stream. */
static bool record_take(struct conn *c, uint8_t *p, size_t len)
{
    struct inbound *b = conn_sink(c, len);

    if (b) {
        if (seal_get(c->opens, p, b->buf + c->sink_at))
            return false;
        sink_got(c, len);
        return true;
    }
    if (seal_get(c->opens, p, p + SEAL_HEAD))
        return false;
    if (!conn_feed(c, p + SEAL_HEAD, len))
        peer_fail(c->peer, -ENOMEM, "no memory for what has come");
    return true;
}

static void records_take(struct conn *c, uint8_t *p, size_t len)
{
    struct tcp_peer *peer = c->peer;

    peer->refs++; /* a handler may drop it */
    while (len >= SEAL_HEAD && peer_lives(peer)) {
        size_t n = seal_length(p), given = c->sink ? job_open(c, p, len) : 0;

        if (given) {
            p += given;
            len -= given;
            continue;
        }
        if (n && len < n + SEAL_MORE)
            break;
        if (!n || !record_take(c, p, n)) {
            peer_fail(peer, -EBADMSG, TEXT_NOT_SENT_SO);
            break;
        }
        p += n + SEAL_MORE;
        len -= n + SEAL_MORE;
    }
    if (len && peer_lives(peer)) {
        assert(!c->sealed);
        c->sealed = malloc(len);
        if (c->sealed)
            memcpy(c->sealed, p, len);
        else
            peer_fail(peer, -ENOMEM, "no memory for half a record");
        c->sealed_len = c->sealed ? len : 0;
    }
    peer_unref(peer);
}

size_t conn_sealed_want(const struct conn *c)
{
    const size_t full = SEAL_DATA + SEAL_MORE;
    size_t first = c->sealed_len < SEAL_HEAD ? full : seal_length(c->sealed) + SEAL_MORE;

    if (c->t->threads && c->sink) /* so that jobs get all of a body, */
        return MAX(first, MIN((size_t)READ_SEALED, sealed_size(c->sink_left))) - c->sealed_len;
    if (c->t->threads && c->big) /* and little of the next one has to be copied */
        return MAX(first, (size_t)SEALED_AFTER_BODY) - c->sealed_len;
    return first + (READ_SEALED - first) / full * full - c->sealed_len;
}

ssize_t conn_recv_sealed(struct conn *c)
{
    uint8_t *buf = c->t->buf;
    size_t kept = c->sealed_len;
    ssize_t got = recv(c->fd, buf + kept, conn_sealed_want(c), MSG_DONTWAIT);

    assert(kept < SEAL_DATA + SEAL_MORE);
    if (got <= 0)
        return got;
    c->got += (size_t)got;
    if (kept)
        memcpy(buf, c->sealed, kept);
    free(steal_ptr(c->sealed));
    c->sealed_len = 0;
    records_take(c, buf, kept + (size_t)got);
    chunk_next(c->t);
    return got;
}

/* Both sides have the same fresh secret: our records are of it from the next one on. */
static void use_key(struct conn *c)
{
    struct tcp_peer *peer = c->peer;

    if (c->key != peer->fresh_name)
        return;
    c->key_ticks = 0;
    if (c->key_used == c->key)
        return;
    c->key_used = c->key;
    seal_refresh(c->seals, peer->fresh);
}

void conn_tell_key(struct conn *c)
{
    struct tcp_peer *peer = c->peer;

    if (!c->opens || !peer->fresh_name)
        return;
    seal_refresh(c->opens, peer->fresh);
    if (conn_put_frame(c, FRAME_KEY, peer->fresh_name))
        return; /* no memory: the keys stay as they are */
    if (!c->key_ticks)
        c->key_ticks = KEY_TICKS;
    timer_need(c->t);
    use_key(c);
}

void conn_hear_key(struct conn *c, uint32_t name)
{
    assert(c->seals && name);
    c->key = name;
    use_key(c);
}

void tcp_peer_key(struct fabric *f, unsigned index, const uint8_t secret[32])
{
    struct tcp *t = container_of(f, struct tcp, base);
    struct tcp_peer *peer = index < FABRIC_MAX_PEERS ? t->slot[index] : NULL;
    uint32_t name = seal_name(secret);

    if (!peer || !peer_lives(peer) || !peer->encrypted || !name || name == peer->fresh_name)
        return;
    memcpy(peer->fresh, secret, sizeof(peer->fresh));
    peer->fresh_name = name;
    for (unsigned i = 0; i < peer->channels + peer->express; i++)
        if (peer->conn[i] && (conn_is_open(peer->conn[i]) || peer->conn[i]->cut_ms))
            conn_tell_key(peer->conn[i]);
}

void conn_unseal(struct conn *c)
{
    c->seals = seal_free(c->seals);
    c->opens = seal_free(c->opens);
    free(steal_ptr(c->sealed));
    c->sealed_len = 0;
}
