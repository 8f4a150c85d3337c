/* peer_link.c - one TLS link per pair of nodes.
 *
 * Of two nodes the one with the smaller name connects, again and again, with a back-off of 50 ms
 * that doubles up to 2 s. The other node accepts. A link goes through these states:
 *
 *   CONNECTING  TCP; an accepted link waits for a first byte  wakes: the socket, deadline 2 s
 *   HANDSHAKE   TLS (tls.c)                 wakes: bufferevent, deadline 2 s
 *   HELLO       proven by key or certificate, waiting for PEER_HELLO     (same deadline)
 *   UP          peer->link points to it     wakes: bufferevent; silence is the core's business
 *   CLOSING     a last message is going out; deadline 2 s, or at shutdown the end of commd
 *   DEAD        on links->dead until the turn ends
 *
 * The connecting side speaks first; the accepting side answers with its own PEER_HELLO or
 * with REFUSED and a text, so that an unwanted node is never up for a moment. The core knows only
 * links that are UP. At most LINK_HALF_OPEN accepted links are not UP yet. If there are more, some
 * have to go (half_open_victim()): those of strangers first, whose addresses are not in
 * cluster.nodes. Until something comes over it, an accepted link costs no more than its socket.
 *
 * A link ends at the key or the certificate of the one side or of the other before it is known
 * whose it was. So a node that waits for another one to connect, and sees such an end, connects by
 * itself, in order to look: such a link says no hello (link_asks()). What it finds is that node's
 * error, and of a certificate groups are told.
 *
 * The name of a node belongs to the link that is UP. A second process with the same name has
 * another incarnation; it is refused, and both sides log that. If the same process connects again,
 * it has seen the old link die before we have. Then the new link replaces the old one.
 *
 * Turns. A wake-up of the bufferevent brings one TLS record. So messages of nodes are taken in
 * several passes of the loop (peer_links_more()), for LINK_TURN_US, as long as clients get. Each
 * link has slices of LINK_SLICE_US. Small messages are copied, so that several go out in one TLS
 * record.
 *
 * Callbacks to the owner come from libevent's callbacks only. peer_links_send() and _drop() are
 * called while the owner applies decisions, so they never call back: a failure there is noted
 * in link->doom and carried out by the link's timer in the next turn. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>

#include "daemon/link/peer_hello.h"
#include "daemon/link/peer_link_priv.h"
#include "shm/proto/cause_text.h"
#include "shm/util/reset.h"

/* ---- the life of a link ---------------------------------------------------------------------- */

/* clang-format off */
static const bool link_may[LINK_NSTATES][LINK_NSTATES] = { /* rows: from; columns: to */
                        /* CONN HAND HELL  UP CLOS DEAD */
    [LINK_CONNECTING] = {0,   1,   0,   0,   0,   1},
    [LINK_HANDSHAKE]  = {0,   0,   1,   0,   0,   1},
    [LINK_HELLO]      = {0,   0,   0,   1,   1,   1},
    [LINK_UP]         = {0,   0,   0,   0,   1,   1},
    [LINK_CLOSING]    = {0,   0,   0,   0,   0,   1},
    [LINK_DEAD]       = {0},
};
/* clang-format on */

static void link_set_state(struct link *link, enum link_state state)
{
    assert(link_may[link->state][state]);
    link->state = state;
}

struct link *link_free(struct link *link)
{
    if (!link)
        return NULL;
    if (link->bev)
        bufferevent_free(link->bev);
    if (link->connected)
        event_free(link->connected);
    if (link->timer)
        event_free(link->timer);
    close_fdp(&link->fd);
    free(link);
    return NULL;
}

static struct link_list *link_home(const struct link *link)
{
    if (link->state == LINK_DEAD)
        return &link->links->dead;
    return link->inbound && !link->peer ? &link->links->half : &link->links->live;
}

static void link_arm(struct link *link, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(link->timer, &tv);
}

void link_bury(struct link *link)
{
    struct link_list *home = link_home(link);
    struct link_peer *peer = link->peer;

    if (link->state == LINK_DEAD)
        return;
    TAILQ_REMOVE(home, link, entry);
    assert(home != &link->links->half || link->links->nhalf);
    if (home == &link->links->half)
        link->links->nhalf--;
    if (peer && peer->link == link)
        peer->link = NULL;
    if (peer && peer->dial == link)
        peer->dial = NULL;
    link_set_state(link, LINK_DEAD);
    TAILQ_INSERT_TAIL(&link->links->dead, link, entry);
    if (link->bev) {
        bufferevent_setcb(link->bev, NULL, NULL, NULL, NULL);
        bufferevent_disable(link->bev, EV_READ | EV_WRITE);
    }
    if (link->connected)
        event_del(link->connected);
    event_del(link->timer);
    if (peer && peer->retry && !peer->link && !peer->dial)
        peer_retry(peer);
}

void link_give_up(struct link *link)
{
    if (link->state == LINK_DEAD)
        return;
    reset_on_close(link->bev ? bufferevent_getfd(link->bev) : link->fd);
    link_bury(link);
}

void link_log_refused(struct link *link, const char *kind, const char *fmt, ...)
{
    char address[SOCK_TEXT_MAX], who[LOG_LIMIT_WHO], text[MSG_TEXT_MAX];
    va_list ap;

    link->links->counts.refused++;
    if (link->stranger)
        sock_net_text(&link->from, address);
    else
        sock_text(&link->from, false, address);
    snprintf(who, sizeof(who), "connections from %s", address);
    sock_text(&link->from, false, address);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_limit_write(&link->links->limit, CONF_LOG_WARN, who, kind,
                    "connection from %s: %s -> refused", address, text);
}

static void link_tell_refused(struct link *link, enum cause cause, const char *text);

/* The link has ended, or ends because of its peer: tells the owner if the link was UP. */
static void link_lost(struct link *link, const char *text)
{
    struct peer_links *links = link->links;
    struct link_peer *peer = link->peer;
    bool was_up = link->state == LINK_UP;

    if (was_up) {
        snprintf(peer->error, sizeof(peer->error), "%s", text);
        if (clock_ms() - link->since_ms >= LINK_STABLE_MS)
            peer->backoff_ms = LINK_BACKOFF_MIN_MS;
    }
    if (was_up && link->refused)
        link_tell_refused(link, CAUSE_DENIED, text);
    else
        link_bury(link);
    if (peer && peer->link == link)
        peer->link = NULL; /* what closes carries nothing */
    if (was_up)
        links->ops->down(links->arg, (unsigned)(peer - links->peers), link->refused, text);
}

static void link_timer(evutil_socket_t fd, short what, void *arg)
{
    struct link *link = arg;

    if (link->doom[0])
        return link_lost(link, link->doom);
    assert(link->state != LINK_UP && link->state != LINK_DEAD);
    if (link->state == LINK_CLOSING)
        return link_bury(link);
    if (link->state == LINK_HANDSHAKE || (link->inbound && link->state == LINK_CONNECTING))
        link->links->counts
            .handshakes_failed[link->stranger ? PEER_HANDSHAKE_STRANGER : PEER_HANDSHAKE_SLOW]++;
    if (link->inbound) {
        link_log_refused(link, "slow",
                         link->state == LINK_HELLO ? "no hello within %u s"
                                                   : "no TLS handshake within %u s",
                         link->links->deadline_ms / 1000);
        return link_give_up(link);
    }
    if (!link_asks(link))
        peer_set_error(link->peer, false, "no answer within %u s", link->links->deadline_ms / 1000);
    link_bury(link);
}

struct link *link_new(struct peer_links *links, struct link_peer *peer, int fd)
{
    struct link *link = calloc(1, sizeof(*link));

    if (!link) {
        close(fd);
        return NULL;
    }
    link->links = links;
    link->peer = peer;
    link->inbound = !peer;
    link->fd = fd;
    link->timer = evtimer_new(links->base, link_timer, link);
    if (!link->timer)
        return link_free(link);
    TAILQ_INSERT_TAIL(link_home(link), link, entry);
    if (link->inbound)
        links->nhalf++;
    else
        peer->dial = link;
    link_arm(link, links->deadline_ms);
    return link;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void frame_release(const void *data, size_t len, void *arg)
{
    free_wiped((void *)data, len);
}

int link_send(struct link *link, const struct msg *msg)
{
    struct evbuffer *out = bufferevent_get_output(link->bev);
    bool whole = msg->type == MSG_ENGINE_STATE; /* its token is wiped where it lies */
    void *frame;
    size_t len;
    int r;

    assert(link->state == LINK_HELLO || link->state == LINK_UP);
    r = codec_encode(msg, &frame, &len);
    if (r)
        return r;
    whole |= len > LINK_SMALL;
    if (evbuffer_get_length(out) > LINK_MAX_UNSENT)
        r = -1;
    else if (whole)
        r = evbuffer_add_reference(out, frame, len, frame_release, NULL);
    else
        r = evbuffer_add(out, frame, len);
    if (r || !whole)
        free_wiped(frame, len);
    return r ? -ENOBUFS : 0;
}

void link_doom(struct link *link, const char *text)
{
    if (!link->doom[0])
        snprintf(link->doom, sizeof(link->doom), "%s", text);
    event_active(link->timer, EV_TIMEOUT, 0);
}

void link_prove(struct link *link, bool differs)
{
    char why[TLS_WHY_MAX], text[MSG_TEXT_MAX];
    enum tls_trust trust;

    if (differs && (link->state == LINK_HANDSHAKE || link->state == LINK_HELLO))
        return link_bury(link);
    if (link->state != LINK_HELLO && link->state != LINK_UP)
        return;
    trust =
        tls_still_holds(link->links->tls, bufferevent_openssl_get_ssl(link->bev), link->key, why);
    if (trust == TLS_TRUSTED)
        return;
    if (link->state == LINK_HELLO)
        return link_bury(link);
    link->refused = trust == TLS_REVOKED; /* else the node may have a new one, and come back */
    if (*why)
        snprintf(text, sizeof(text), TEXT_CERTIFICATE " %s", why);
    else
        snprintf(text, sizeof(text),
                 "made by a cluster key, which counts no more: certificates do");
    link_doom(link, text);
}

static int link_send_hello(struct link *link)
{
    struct peer_links *links = link->links;
    struct msg msg = {.type = MSG_PEER_HELLO};

    msg.peer_hello.version = MSG_VERSION;
    msg.peer_hello.incarnation = links->incarnation;
    msg.peer_hello.strays = 1;
    snprintf(msg.peer_hello.cluster, sizeof(msg.peer_hello.cluster), "%s", links->cluster);
    snprintf(msg.peer_hello.node, sizeof(msg.peer_hello.node), "%s",
             links->peers[links->self].name);
    return link_send(link, &msg);
}

void link_send_keys(struct link *link)
{
    const struct tls *tls = link->links->tls;
    struct msg msg = {.type = MSG_PEER_KEYS};

    snprintf(msg.peer_keys.key, sizeof(msg.peer_keys.key), "%s", tls_key_name(tls, 0));
    snprintf(msg.peer_keys.other, sizeof(msg.peer_keys.other), "%s", tls_key_name(tls, 1));
    if (link_send(link, &msg))
        link_doom(link, "no memory for a message");
}

static bool is_ours(const struct tls *tls, const char *key)
{
    const char *name;

    for (unsigned i = 0; *key && *(name = tls_key_name(tls, i)); i++)
        if (!strcmp(key, name))
            return true;
    return false;
}

void link_review_key(struct link *link, bool shrink)
{
    const struct tls *tls = link->links->tls;
    const struct msg_peer_keys *theirs = &link->peer->keys;

    if (is_ours(tls, link->key))
        return;
    if (is_ours(tls, theirs->key) || is_ours(tls, theirs->other))
        link_doom(link, "made anew, by the new cluster key");
    else if (shrink) /* what the node says of its keys is not proven */
        link_doom(link, "made by a cluster key that counts no more");
}

/* Not close(): that could reset the connection and lose messages that are still on their way. */
void link_finish(struct link *link)
{
    SSL_shutdown(bufferevent_openssl_get_ssl(link->bev));
    shutdown(bufferevent_getfd(link->bev), SHUT_WR);
    link_set_state(link, LINK_CLOSING);
}

static void link_flushed(struct bufferevent *bev, void *arg)
{
    struct link *link = arg;

    if (link->links->draining && link->state == LINK_UP)
        link_finish(link);
    else if (link->state == LINK_CLOSING)
        link_bury(link);
}

/* Tells the other side why it is refused, then closes. The other side has proven that it knows the
 * key. */
static void link_tell_refused(struct link *link, enum cause cause, const char *text)
{
    struct msg msg = {.type = MSG_REFUSED};

    msg.refused.cause = cause;
    snprintf(msg.refused.text, sizeof(msg.refused.text), "%s", text);
    if (link_send(link, &msg)) {
        link_bury(link);
        return;
    }
    link_set_state(link, LINK_CLOSING);
    bufferevent_setcb(link->bev, NULL, link_flushed, NULL, link);
    bufferevent_disable(link->bev, EV_READ);
    link_arm(link, LINK_DEADLINE_MS);
}

static void link_refuse(struct link *link, enum cause cause, const char *text)
{
    link_log_refused(link, text, "%s", text);
    link_tell_refused(link, cause, text);
}

/* ---- hello ----------------------------------------------------------------------------------- */

static struct link_peer *peer_by_name(struct peer_links *links, const char *name)
{
    for (unsigned i = 0; i < links->npeers; i++)
        if (strcmp(links->peers[i].name, name) == 0)
            return &links->peers[i];
    return NULL;
}

/* NULL: the node is accepted. Else the reason why not, in @buf. */
static const char *hello_check(struct link *link, const struct msg_peer_hello *hello, char *buf,
                               size_t len)
{
    struct peer_links *links = link->links;
    const struct link_peer *peer = peer_by_name(links, hello->node);
    SSL *ssl = bufferevent_openssl_get_ssl(link->bev);
    bool certified = strcmp(link->key, TLS_CERTIFICATE_NAME) == 0;
    char names[TLS_WHY_MAX];
    struct peer_hello_view view = {
        .certified = certified ? tls_identity_text(ssl, names) : NULL,
        .named = certified && tls_identity_names(ssl, hello->node),
        .self = links->peers[links->self].name,
        .cluster = links->cluster,
        .dialed = link->inbound ? NULL : link->peer->name,
        .known = peer,
        .we_connect = peer && peer->retry,
        .linked = peer && peer->link ? peer->link->incarnation : 0,
    };

    if (link->inbound)
        view.wanted = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
    return peer_hello_check(&view, hello, buf, len);
}

static void link_hello(struct link *link, const struct msg *msg)
{
    struct peer_links *links = link->links;
    const struct msg_peer_hello *hello = &msg->peer_hello;
    char why[MSG_TEXT_MAX];
    struct link_peer *peer;

    if (hello_check(link, hello, why, sizeof(why))) {
        if (!link->inbound)
            peer_set_error(link->peer, true, "%s", why);
        return link_refuse(link, CAUSE_DENIED, why);
    }
    peer = peer_by_name(links, hello->node);
    if (peer->link)
        link_lost(peer->link, "it connected again");
    if (link->inbound && peer->dial)
        link_bury(peer->dial); /* there is nothing to ask any more */
    if (link->inbound) {
        if (link_send_hello(link))
            return link_bury(link);
        TAILQ_REMOVE(&links->half, link, entry);
        links->nhalf--;
        TAILQ_INSERT_TAIL(&links->live, link, entry);
    }
    assert(!peer->link && (!peer->dial || peer->dial == link));
    link->peer = peer;
    link_set_state(link, LINK_UP);
    link->incarnation = hello->incarnation;
    link->since_ms = clock_ms();
    peer->link = link;
    peer->dial = NULL;
    peer->error[0] = '\0';
    peer->offer = 0;
    peer->keys = (struct msg_peer_keys){0};
    event_del(link->timer);
    link_send_keys(link);
    links->ops->up(links->arg, (unsigned)(peer - links->peers), msg);
}

/* The first message is PEER_HELLO, or REFUSED: why the other side does not want us. */
static void link_first_msg(struct link *link, const struct msg *msg)
{
    if (link_asks(link)) {
        link_bury(link); /* we have not said a hello */
    } else if (msg->type == MSG_PEER_HELLO) {
        link_hello(link, msg);
    } else if (msg->type == MSG_REFUSED && !link->inbound) {
        peer_set_error(link->peer, true, "it refuses us: %s", msg->refused.text);
        link_bury(link);
    } else if (msg->type == MSG_REFUSED) {
        char why[MSG_TEXT_MAX + 32];

        snprintf(why, sizeof(why), "it refuses us: %s", msg->refused.text);
        link_log_refused(link, "refuses us", "%s", why);
        peer_blame_by_address(link, why);
        link_bury(link);
    } else {
        char why[MSG_TEXT_MAX];

        snprintf(why, sizeof(why), "%s instead of a hello", msg_type_name(msg->type));
        link_refuse(link, CAUSE_PROTOCOL, why);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Nothing of it stays in memory that libevent frees. */
static void take_wiped(struct evbuffer *in, uint8_t *to, size_t len)
{
    struct evbuffer_iovec piece;

    while (len && evbuffer_peek(in, -1, NULL, &piece, 1) > 0) {
        size_t n = MIN(len, piece.iov_len);

        memcpy(to, piece.iov_base, n);
        explicit_bzero(piece.iov_base, n);
        evbuffer_drain(in, n);
        to += n;
        len -= n;
    }
    assert(!len);
}

static int link_next(struct link *link, struct msg *ret_msg)
{
    struct evbuffer *in = bufferevent_get_input(link->bev);
    size_t len = evbuffer_get_length(in), need = CODEC_HEADER;
    size_t max = link->state == LINK_UP ? CODEC_MAX_FRAME : CODEC_MAX_CLIENT_FRAME;
    uint8_t header[CODEC_HEADER], *frame;
    int r;

    if (evbuffer_copyout(in, header, sizeof(header)) < (ssize_t)sizeof(header))
        return CODEC_E_MORE;
    r = codec_frame_check(header, sizeof(header), max, &need);
    if (r != CODEC_OK && (r != CODEC_E_MORE || len < need))
        return r;
    frame = malloc(need);
    if (!frame)
        return CODEC_E_NOMEM;
    take_wiped(in, frame, need);
    r = codec_decode(frame, need, ret_msg);
    free_wiped(frame, need);
    return r;
}

/* What the certificate of this node is told is named by the node's name: other nodes read it. */
static void refusal_text(const struct link *link, const struct msg_refused *refused,
                         char ret_text[MSG_TEXT_MAX])
{
    const char *self = link->links->peers[link->links->self].name, *why = refused->text;

    if (starts_with(why, TEXT_CERTIFICATE))
        snprintf(ret_text, MSG_TEXT_MAX, TEXT_REFUSES_THAT ": it%.400s", self,
                 why + strlen(TEXT_CERTIFICATE));
    else
        snprintf(ret_text, MSG_TEXT_MAX, "it refuses us: %.400s", why);
}

/* On a link that is up came a message that nodes do not send each other, or why this link ends. */
static void link_bad_msg(struct link *link, const struct msg *msg)
{
    char text[MSG_TEXT_MAX];

    if (msg->type == MSG_REFUSED) {
        refusal_text(link, &msg->refused, text);
    } else {
        snprintf(text, sizeof(text), "it sent %s", msg_type_name(msg->type));
        link_log_refused(link, text, "%s", text);
    }
    link_lost(link, text);
}

static void link_bad_frame(struct link *link, int r)
{
    struct peer_links *links = link->links;
    char text[MSG_TEXT_MAX];
    uint8_t header[CODEC_HEADER];

    snprintf(text, sizeof(text), "protocol error: %s", codec_strerror(r));
    if (link->state == LINK_UP)
        return link_lost(link, text);
    if (r == CODEC_E_VERSION && evbuffer_copyout(bufferevent_get_input(link->bev), header,
                                                 sizeof(header)) == sizeof(header)) {
        peer_hello_version(links->peers[links->self].name, header[2], text, sizeof(text));
        if (link->inbound)
            peer_blame_by_address(link, text);
    }
    if (!link->inbound)
        peer_set_error(link->peer, true, "%s", text);
    link_refuse(link, CAUSE_PROTOCOL, text);
}

/* May the link give one more message, after @n messages in this slice, which ends at @until_us? */
static bool link_may_read(unsigned n, uint64_t until_us)
{
    return n < LINK_MSG_LEAST || (n < LINK_MSG_BUDGET && clock_us() < until_us);
}

static void link_read(struct bufferevent *bev, void *arg)
{
    struct link *link = arg;
    struct peer_links *links = link->links;
    uint64_t until_us = peer_links_slice(links);
    int r = CODEC_OK;

    links->took = true; /* maybe only a part of a message has come */
    for (unsigned n = 0; link->state == LINK_HELLO || link->state == LINK_UP; n++) {
        struct msg msg;

        if (!link_may_read(n, until_us)) {     /* other links first */
            bufferevent_disable(bev, EV_READ); /* until the messages that are here are taken */
            bufferevent_trigger(bev, EV_READ,
                                BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
            return;
        }
        r = link_next(link, &msg);
        if (r)
            break;
        if (link->state == LINK_HELLO)
            link_first_msg(link, &msg);
        else if (msg.type == MSG_PEER_KEYS) {
            link->peer->keys = msg.peer_keys;
            link_review_key(link, false);
        } else if (msg.type >= MSG_HEARTBEAT && msg.type <= MSG_PAUSED)
            links->ops->msg(links->arg, (unsigned)(link->peer - links->peers), &msg);
        else
            link_bad_msg(link, &msg);
        msg_fini(&msg);
    }
    if (r == CODEC_E_MORE)
        bufferevent_enable(bev, EV_READ);
    else if (r)
        link_bad_frame(link, r);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

_Static_assert((int)PEER_HANDSHAKE_SLOW == (int)TLS_FAILURES, "the same, and more");

static const char another_key[] =
    "another cluster key: all nodes need the same cluster.key_file; give "
    "it to the one that is wrong, and commctl reload there";

static void handshake_failed(struct link *link, unsigned long code)
{
    static const char *const inbound[] = {
        [TLS_CLOSED] = "closed before the TLS handshake",
        [TLS_WRONG_KEY] = "wrong cluster key",
        [TLS_REFUSED_US] = "it does not accept our cluster key",
        [TLS_NOT_TLS] = "no TLS handshake of a commd",
        [TLS_CERTIFICATE] = "no certificate that holds",
    };
    static const char *const outbound[] = {
        [TLS_CLOSED] = "closed the connection in the TLS handshake",
        [TLS_WRONG_KEY] = another_key,
        [TLS_REFUSED_US] = another_key,
        [TLS_NOT_TLS] = "what answers at its address is not a commd",
        [TLS_CERTIFICATE] = "no certificate that holds",
    };
    SSL *ssl = bufferevent_openssl_get_ssl(link->bev);
    enum tls_failure why = tls_failure(ssl, code);
    char buf[2 * TLS_WHY_MAX];
    const char *kind = inbound[why];
    const char *text = tls_failure_text(ssl, code, buf, &kind);
    bool key_differs = why == TLS_WRONG_KEY || why == TLS_REFUSED_US;

    if (!link->inbound && key_differs && tls_key_name(link->links->tls, link->peer->offer + 1)[0]) {
        link->peer->offer++; /* the node may not have our new key yet, or no certificate */
        return link_bury(link);
    }
    link->links->counts.handshakes_failed[link->stranger ? PEER_HANDSHAKE_STRANGER : why]++;
    if (!link->inbound) {
        link->peer->offer = 0;
        if (text || key_differs || !link_asks(link))
            peer_set_error(link->peer, why != TLS_CLOSED, "%s", text ? text : outbound[why]);
        peer_tell_refused(link->peer, text);
    } else {
        link_log_refused(link, kind, "%s", text ? text : inbound[why]);
        if (text || key_differs)
            peer_ask_by_address(link);
        if (why == TLS_NOT_TLS) /* nobody who could read our alert */
            return link_give_up(link);
    }
    link_bury(link);
}

/* The handshake has ended well, by what counted when it began. */
static void link_connected(struct link *link)
{
    SSL *ssl = bufferevent_openssl_get_ssl(link->bev);
    char buf[TLS_WHY_MAX], why[MSG_TEXT_MAX];

    if (!tls_is_authenticated(link->links->tls, ssl, buf))
        return handshake_failed(
            link, ERR_PACK(ERR_LIB_SSL, 0,
                           *buf ? SSL_R_CERTIFICATE_VERIFY_FAILED : SSL_R_BINDER_DOES_NOT_VERIFY));
    link_set_state(link, LINK_HELLO);
    snprintf(link->key, sizeof(link->key), "%s", tls_session_key(ssl));
    if (link->inbound)
        return;
    if (strcmp(link->key, TLS_CERTIFICATE_NAME) == 0 &&
        !tls_identity_names(ssl, link->peer->name)) {
        peer_hello_named(tls_identity_text(ssl, buf), link->peer->name, why, sizeof(why));
        peer_set_error(link->peer, true, "%s", why);
        return link_refuse(link, CAUSE_DENIED, why);
    }
    if (link_asks(link)) /* it may still refuse our certificate */
        return link_arm(link, LINK_ASK_MS);
    if (link_send_hello(link))
        link_bury(link);
}

/* The handshake has ended with an error, or, for a client, that of the server has. */
static bool handshake_may_fail(const struct link *link, unsigned long code)
{
    return link->state == LINK_HANDSHAKE ||
           (link->state == LINK_HELLO && !link->inbound && ERR_GET_LIB(code) == ERR_LIB_SSL &&
            ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET);
}

static void link_event(struct bufferevent *bev, short what, void *arg)
{
    struct link *link = arg;
    int error = EVUTIL_SOCKET_ERROR();
    unsigned long code;

    if (what & BEV_EVENT_CONNECTED)
        return link_connected(link);
    if (!(what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)))
        return;
    code = bufferevent_get_openssl_error(bev);
    if (handshake_may_fail(link, code))
        return handshake_failed(link, code);
    if (link->state == LINK_UP) {
        char text[MSG_TEXT_MAX];

        if (what & BEV_EVENT_EOF || error == 0 || error == EAGAIN)
            snprintf(text, sizeof(text), TEXT_COMMD_ENDED);
        else
            snprintf(text, sizeof(text), TEXT_LINK_FAILED ": %s", strerror(error));
        return link_lost(link, text);
    }
    if (link->state == LINK_HELLO && link->inbound)
        link_log_refused(link, "hello", "closed before its hello");
    else if (link->state == LINK_HELLO && !link_asks(link))
        peer_set_error(link->peer, false, "closed the connection before its hello");
    link_bury(link);
}

void link_start_tls(struct link *link)
{
    struct peer_links *links = link->links;
    int one = 1, timeout = (int)MIN(links->node_timeout_ms, (uint64_t)INT32_MAX);
    SSL *ssl = tls_session(links->tls, link->inbound, link->inbound ? 0 : link->peer->offer);

    assert(link->state == LINK_CONNECTING && link->fd >= 0);
    setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(link->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
    /* The name of the node that we expect there: another node refuses us then. */
    if (ssl && !link->inbound)
        SSL_set_tlsext_host_name(ssl, link->peer->name);
    if (ssl) {
        link->bev = bufferevent_openssl_socket_new(links->base, link->fd, ssl,
                                                   link->inbound ? BUFFEREVENT_SSL_ACCEPTING
                                                                 : BUFFEREVENT_SSL_CONNECTING,
                                                   BEV_OPT_CLOSE_ON_FREE);
        if (link->bev)
            steal_fd(&link->fd);
        else
            SSL_free(ssl);
    }
    if (!link->bev) {
        link_bury(link); /* no memory: the other side, or our back-off, tries again */
        return;
    }
    link_set_state(link, LINK_HANDSHAKE);
    bufferevent_openssl_set_allow_dirty_shutdown(link->bev, 1);
    bufferevent_setcb(link->bev, link_read, link_flushed, link_event, link);
    bufferevent_enable(link->bev, EV_READ | EV_WRITE);
    if (!link->inbound)
        link_arm(link, link->links->deadline_ms);
}
