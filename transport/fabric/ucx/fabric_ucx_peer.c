/* fabric_ucx_peer.c - endpoints: hello, failure, closing.
 *
 * Two peers know each other's worker address and a 32-byte token per direction from the TLS
 * control plane. Each opens an endpoint and sends HELLO{token}. A side that gets a right hello
 * answers once with HELLO{token, ack}; a side that gets an ack may send data. So nothing is sent to
 * a side that would drop it, and it does not matter which side adds the other first:
 *
 *     A adds B:  hello ------> B does not know A yet: dropped, counted
 *     B adds A:  <------ hello
 *                hello+ack --> B may send
 *                <-- hello+ack A may send
 *
 * Which peer a message is from. UCX does not say: two endpoints between the same workers share one
 * connection, and a reply_ep need not be the endpoint we made. So every message carries a cookie, a
 * hash of its sender's token, and the receiver's slot number for that sender, learned from the
 * hello. The slot is only a hint: the message counts when that slot has been greeted with the whole
 * token and expects this cookie. Tokens are fresh for each pair and incarnation, so messages of an
 * earlier one that are still in some socket match nothing.
 *
 * Which endpoint meets which. UCX pairs the n-th endpoint that worker A opens to worker B with
 * the n-th that B opens to A, for whatever peers, and announcements (RTS) carry the
 * number of the endpoint that they are for; eager messages do not. Now let A have added,
 * deleted and added B before B adds A once: the first wire-up of A has left an endpoint waiting
 * at B, B's ucp_ep_create() takes it, and it is tied to the endpoint that A has closed.
 * From there on each announced body of B is dropped inside A's UCX without a word to either
 * side, while the small messages around it arrive; and a second later UCP's keepalive resets
 * the link. So both sides count the endpoints that they open to each other's worker, and each hello
 * says the number of its endpoint. A hello is accepted only when both ends have the same number.
 * The side that is behind opens endpoints until it has caught up, and says hello again; the side
 * that is ahead says hello again, in case the first hello was dropped. Only hellos have been sent
 * by then, so nothing is lost with an endpoint.
 *
 * Closing. UCX does not tell the other side: the socket stays open for the other direction,
 * and UCP's keepalive finds out seconds later. So the last message is HELLO{token, bye}; if it
 * cannot leave at once it is lost, and the keepalive tells.
 * An endpoint that UCX has not wired up yet is flushed before it is closed, though nobody needs
 * it any more. Else a request of the other side that is still on its way finds no endpoint, UCX
 * makes one and answers for it, and on the other side, which has had a request of the closed one,
 * an assertion ends the process: "remote_id == ucp_ep_ext_control(ep)->remote_ep_id" (1.13).
 * UCX may report an error while it delivers a message, and the caller may drop a peer inside any
 * callback. An endpoint must not be closed inside a call of UCX, so both only queue the peer;
 * ucx_peers_reap() does the work between two ucp_worker_progress(). */
#include <errno.h>
#include <string.h>

#include "shm/util/wait.h"
#include "transport/fabric/ucx/fabric_ucx_priv.h"

enum { CATCH_UP_MAX = 64 }; /* endpoints opened anew for one hello: more take more hellos */

static uint64_t cookie_of(const uint8_t token[32])
{
    uint64_t h = 0x9e3779b97f4a7c15u, word;

    for (unsigned i = 0; i < 32; i += sizeof(word)) {
        memcpy(&word, token + i, sizeof(word));
        h = (h ^ word) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    return h;
}

void ucx_peer_unref(struct ucx_peer *peer)
{
    assert(peer->refs > 0);
    if (--peer->refs > 0)
        return;
    LIST_REMOVE(peer, all_link);
    free(peer);
}

void ucx_peer_fail(struct ucx_peer *peer, int err, const char *fault)
{
    if (peer->failed || peer->state == PEER_DOWN || peer->state == PEER_GONE)
        return;
    peer->failed = true;
    peer->err = err;
    peer->fault = fault;
    peer->refs++; /* the list's */
    STAILQ_INSERT_TAIL(&peer->u->to_fail, peer, fail_link);
}

/* UCX: the endpoint is broken. Its requests complete with errors of their own. */
static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t st)
{
    struct ucx_peer *peer = arg;

    if (ep != peer->ep)
        return; /* that endpoint was given up meanwhile */
    peer->settled = true;
    ucx_peer_fail(peer, ucx_errno(st), ucs_status_string(st));
}

static int send_hello(struct ucx_peer *peer, enum hello_says says)
{
    struct fabric_req *req = ucx_req_new(peer);
    int r;

    if (!req)
        return -ENOMEM;
    req->h.hello = (struct wire_hello){
        .magic = WIRE_MAGIC,
        .version = WIRE_VERSION,
        .slot = (uint16_t)peer->index,
        .says = says,
        .serial = peer->serial,
    };
    memcpy(req->h.hello.token, peer->token, sizeof(peer->token));
    r = ucx_post(req, AM_HELLO, &req->h.hello, sizeof(req->h.hello));
    if (r != 0)
        ucx_req_free(req);
    return r < 0 ? r : 0;
}

static void flush_waiting(struct ucx_peer *peer)
{
    struct fabric_req *req;
    int r;

    /* done() may drop the peer: the rest is then cancelled by ucx_peers_reap() */
    while (peer->state == PEER_UP && (req = STAILQ_FIRST(&peer->waiting))) {
        STAILQ_REMOVE_HEAD(&peer->waiting, link);
        r = ucx_post_data(req);
        if (r != 0)
            ucx_finish(req, r > 0 ? 0 : r);
    }
}

static struct ucx_peer *ucx_find_by_token(struct ucx *u, const uint8_t token[32])
{
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++) {
        if (u->slot[i] && net_same_token(u->slot[i]->expect, token))
            return u->slot[i];
    }
    return NULL;
}

/* The other side's endpoint is another than the one that ours is paired with. */
static void meet(struct ucx_peer *peer, uint32_t serial)
{
    if (peer->state != PEER_GREETING)
        return; /* an old hello, which came over another connection */
    if (serial < peer->serial) {
        if (send_hello(peer, HELLO_ADDED))
            ucx_peer_fail(peer, -EIO, "could not repeat the hello");
        return;
    }
    peer->wanted = serial - peer->serial > CATCH_UP_MAX ? peer->serial + CATCH_UP_MAX : serial;
    if (peer->lagging)
        return;
    peer->lagging = true;
    peer->refs++; /* the list's */
    STAILQ_INSERT_TAIL(&peer->u->to_reopen, peer, lag_link);
}

static void accept_hello(struct ucx_peer *peer, const struct wire_hello *hello)
{
    if (hello->says == HELLO_BYE) {
        ucx_peer_fail(peer, -ECONNRESET, "the other side has closed the link");
        return;
    }
    if (hello->serial != peer->serial) {
        meet(peer, hello->serial);
        return;
    }
    peer->greeted = true;
    peer->remote_slot = hello->slot;
    if (!peer->ack_sent) {
        if (send_hello(peer, HELLO_ACCEPTED)) {
            ucx_peer_fail(peer, -EIO, "could not answer the hello");
            return;
        }
        peer->ack_sent = true;
    }
    if (hello->says == HELLO_ACCEPTED && peer->state == PEER_GREETING) {
        ucx_sockets_tune(peer->u->congestion);
        peer_set_state(&peer->state, PEER_UP);
        peer->up_ms = now_ms();
        peer->settled = true;
        flush_waiting(peer);
    }
}

ucs_status_t ucx_on_hello(void *arg, const void *hdr, size_t hdr_len, void *data, size_t len,
                          const ucp_am_recv_param_t *param)
{
    bool rndv = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    struct ucx *u = arg;
    struct wire_hello hello;
    struct ucx_peer *peer = NULL;

    if (hdr_len == sizeof(hello) && !rndv) {
        memcpy(&hello, hdr, sizeof(hello));
        if (hello.magic == WIRE_MAGIC && hello.version == WIRE_VERSION &&
            hello.slot < FABRIC_MAX_PEERS)
            peer = ucx_find_by_token(u, hello.token);
    }
    if (!peer || u->stopping) {
        u->base.stats.strangers++;
        return rndv ? UCS_ERR_REJECTED : UCS_OK;
    }
    if (!peer->failed && peer->state != PEER_DOWN)
        accept_hello(peer, &hello);
    return UCS_OK;
}

static int ucx_check_new(const struct ucx *u, const struct ucx_peer *peer)
{
    if (u->slot[peer->index])
        return -EEXIST;
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++) {
        /* else a message could be attributed to the wrong one */
        if (u->slot[i] && (u->slot[i]->cookie_in == peer->cookie_in ||
                           u->slot[i]->cookie_out == peer->cookie_out))
            return -EADDRINUSE;
    }
    return 0;
}

/* UCX parses an address without knowing where it ends: what lies behind a truncated one is at
 * least ours and zero. */
static struct ucx_route *route_to(struct ucx *u, const void *addr, size_t len)
{
    struct ucx_route *route;

    LIST_FOREACH(route, &u->routes, link) {
        if (route->len == len && !memcmp(route->addr, addr, len))
            return route;
    }
    route = calloc(1, sizeof(*route) + FABRIC_ADDR_MAX + 256);
    if (!route)
        return NULL;
    route->len = len;
    memcpy(route->addr, addr, len);
    LIST_INSERT_HEAD(&u->routes, route, link);
    return route;
}

static int open_ep(struct ucx_peer *peer)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .address = (const ucp_address_t *)peer->route->addr,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {on_ep_error, peer},
    };
    struct ucx *u = peer->u;
    ucs_status_t st;

    u->calling = true;
    st = ucp_ep_create(u->worker, &params, &peer->ep);
    u->calling = false;
    u->touched = true;
    peer->serial = ++peer->route->opened;
    peer->settled = false;
    if (st != UCS_OK) {
        peer->ep = NULL;
        return ucx_errno(st);
    }
    ucx_sockets_tune(u->congestion);
    peer->refs++; /* until on_closed() */
    return 0;
}

int ucx_peer_add(struct fabric *f, unsigned index, const void *addr, size_t addr_len,
                 const uint8_t token[32], const uint8_t expect[32])
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_peer *peer;
    int r;

    if (index >= FABRIC_MAX_PEERS || addr_len == 0 || addr_len > FABRIC_ADDR_MAX)
        return -EINVAL;
    if (addr_len >= strlen(FABRIC_TCP_MAGIC) &&
        !memcmp(addr, FABRIC_TCP_MAGIC, strlen(FABRIC_TCP_MAGIC)))
        return -EPROTONOSUPPORT;
    peer = calloc(1, sizeof(*peer));
    if (!peer)
        return -ENOMEM;
    *peer = (struct ucx_peer){.u = u, .refs = 1, .index = index};
    STAILQ_INIT(&peer->waiting);
    memcpy(peer->token, token, sizeof(peer->token));
    memcpy(peer->expect, expect, sizeof(peer->expect));
    peer->cookie_out = cookie_of(token);
    peer->cookie_in = cookie_of(expect);
    r = ucx_check_new(u, peer);
    peer->route = r ? NULL : route_to(u, addr, addr_len);
    if (!peer->route) {
        free(peer);
        return r ? r : -ENOMEM;
    }
    LIST_INSERT_HEAD(&u->peers, peer, all_link);
    r = open_ep(peer);
    if (r) {
        ucx_peer_unref(peer);
        return r;
    }
    u->slot[index] = peer;
    r = send_hello(peer, HELLO_ADDED);
    if (r)
        ucx_peer_del(f, index);
    return r;
}

void ucx_peer_del(struct fabric *f, unsigned index)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_peer *peer = index < FABRIC_MAX_PEERS ? u->slot[index] : NULL;

    if (!peer)
        return;
    u->slot[index] = NULL;
    peer_set_state(&peer->state, PEER_GONE);
    STAILQ_INSERT_TAIL(&u->to_close, peer, close_link); /* takes the slot's reference with it */
}

static void on_closed(void *request, ucs_status_t st, void *arg)
{
    ucp_request_free(request);
    ucx_peer_unref(arg);
}

/* Lets UCX complete what is in flight and forget the endpoint. */
static void close_by_force(struct ucx_peer *peer, ucp_ep_h ep)
{
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = peer,
    };
    ucs_status_ptr_t r;

    r = ucp_ep_close_nbx(ep, &params);
    if (r == NULL || UCS_PTR_IS_ERR(r)) /* done at once, or never: no callback either way */
        ucx_peer_unref(peer);
}

static void on_flushed(void *request, ucs_status_t st, void *arg)
{
    struct ucx_spent *spent = arg;

    ucp_request_free(request);
    spent->flushing = false; /* reap_spent() closes it */
}

/* False: there is nothing to wait for, or it cannot be waited for. */
static bool flush_first(struct ucx_peer *peer, ucp_ep_h ep)
{
    struct ucx *u = peer->u;
    struct ucx_spent *spent = malloc(sizeof(*spent));
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_flushed,
        .user_data = spent,
    };

    if (!spent)
        return false;
    *spent = (struct ucx_spent){.peer = peer, .ep = ep, .flushing = true};
    if (!UCS_PTR_IS_PTR(ucp_ep_flush_nbx(ep, &params))) {
        free(spent);
        return false;
    }
    LIST_INSERT_HEAD(&u->spent, spent, link);
    return true;
}

static void close_ep(struct ucx_peer *peer)
{
    ucp_ep_h ep = peer->ep;

    if (!ep)
        return;
    peer->ep = NULL;
    if (peer->settled || peer->u->forcing || !flush_first(peer, ep))
        close_by_force(peer, ep);
}

static bool reap_spent(struct ucx *u)
{
    struct ucx_spent *spent, *next;
    bool any = false;

    for (spent = LIST_FIRST(&u->spent); spent; spent = next) {
        next = LIST_NEXT(spent, link);
        if (spent->ep && (!spent->flushing || u->forcing)) {
            any = true;
            close_by_force(spent->peer, spent->ep);
            spent->ep = NULL;
        }
        if (!spent->flushing) {
            LIST_REMOVE(spent, link);
            free(spent);
        }
    }
    return any;
}

static void purge_waiting(struct ucx_peer *peer, int st)
{
    struct fabric_req *req;

    while ((req = STAILQ_FIRST(&peer->waiting))) {
        STAILQ_REMOVE_HEAD(&peer->waiting, link);
        ucx_finish(req, st);
    }
}

static void report_down(struct ucx_peer *peer)
{
    struct ucx *u = peer->u;

    peer_set_state(&peer->state, PEER_DOWN);
    purge_waiting(peer, -EIO);
    close_ep(peer);
    if (!u->stopping && peer->state == PEER_DOWN) /* done() may have dropped it */
        u->ev.on_peer_down(u->ev.arg, peer->index, peer->err, peer->fault);
}

static void catch_up(struct ucx_peer *peer)
{
    int r = 0;

    peer->greeted = peer->ack_sent = false;
    while (r == 0 && (int32_t)(peer->wanted - peer->serial) > 0) {
        close_ep(peer);
        r = open_ep(peer);
    }
    if (r == 0)
        r = send_hello(peer, HELLO_ADDED);
    if (r)
        ucx_peer_fail(peer, r, "could not open the endpoint anew");
}

bool ucx_peers_reap(struct ucx *u)
{
    struct ucx_peer *peer;
    bool any = reap_spent(u);

    while ((peer = STAILQ_FIRST(&u->to_reopen))) {
        STAILQ_REMOVE_HEAD(&u->to_reopen, lag_link);
        any = true;
        peer->lagging = false;
        if (peer->state == PEER_GREETING && !peer->failed)
            catch_up(peer);
        ucx_peer_unref(peer);
    }
    while ((peer = STAILQ_FIRST(&u->to_fail))) {
        STAILQ_REMOVE_HEAD(&u->to_fail, fail_link);
        any = true;
        peer->failed = false;
        if (peer->state != PEER_GONE)
            report_down(peer);
        ucx_peer_unref(peer);
    }
    while ((peer = STAILQ_FIRST(&u->to_close))) {
        STAILQ_REMOVE_HEAD(&u->to_close, close_link);
        any = true;
        purge_waiting(peer, -ECANCELED);
        if (peer->ep && (peer->greeted || !peer->settled))
            send_hello(peer, HELLO_BYE);
        close_ep(peer);
        ucx_peer_unref(peer); /* the slot's */
    }
    return any;
}
