/* fabric_ucx.c - the fabric over UCX active messages. Clean for UCX 1.13 and newer.
 *
 * Model. One context, one worker, thread mode SINGLE: all calls and callbacks on the engine's
 * thread. Peers are reached by worker address and greeted with a token (fabric_ucx_peer.c).
 * A message is one active message: its header is struct wire_data plus the caller's header.
 * Bodies up to eager_max go with it in one fragment; larger ones are announced (RTS) and pulled
 * when the receiver has memory for them: holding the announcement is the flow control. Both
 * take the same lane, so order is kept; the sequence number proves it, and a gap takes the
 * link down rather than handing out messages in a wrong order.
 *
 * Environment. libucs reads some options before main(); the launcher must set those of
 * ucx_env[] (ucx_env.c) before exec, and remove other UCX_* variables. All the
 * rest is set by fabric_ucx_init.c. UCX's sockets are not close-on-exec: no fork/exec after
 * fabric_ucx_new().
 *
 * Memory. Requests come from slabs of our own (UCX is given the space in front of the request
 * pointer), so UCX allocates nothing per message that we do not see, except descriptors of
 * announced bodies, of which each belongs to a claim.
 *
 * UCX's traps, and what keeps out of them:
 *   - the header of a send must live until completion (1.13)    -> it lies in the request
 *   - ucp_am_send_nbx() == NULL: done, no callback              -> send() returns 1
 *   - receiving from a kept *eager* descriptor leaks (1.13)     -> eager bodies never outlive
 *                                                                  on_msg
 *   - a descriptor may not be released inside its AM callback   -> claim.in_callback
 *   - UCX may run a callback inside a ucp_* call                -> u->calling: put on finished
 *   - closing endpoints from callbacks                          -> queued, ucx_peers_reap()
 *   - work left by a ucp_* call that no fd announces            -> u->touched: arm() says 1
 *   - while a peer does not answer the wire-up, the worker's fd
 *     stays readable although nothing can be done (measured:
 *     1 M wake-ups in 2 s)                                      -> spin guard, arm() says 2 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "transport/fabric/ucx/fabric_ucx.h"

#ifdef HAVE_UCX

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "transport/fabric/ucx/fabric_ucx_priv.h"

enum {
    PROGRESS_BUDGET = 32, /* ucp_worker_progress() calls per progress() */
    SPIN_LIMIT = 16,      /* vain wake-ups in a row before arm() distrusts the fd */
    SLAB_REQS = 64,
    FREE_ROUNDS = 1 << 20, /* progress rounds free() waits for UCX to let go */
    WIRE_ROUNDS = 1 << 12, /* of these: for endpoints that are not wired up */
};

/* By bench_fabric (its table): below 128 KiB the copies of an eager body cost less than the
 * three more messages of an announced one, 25 us against 46 us one way at 128 KiB. More would
 * still gain on lo, but bodies that come before their receiver is ready are copied once more
 * there, without any limit but the sender's patience. A segment must hold body and headers. */
static const struct fabric_ucx_tuning measured = {.eager_max = FABRIC_UCX_EAGER_MAX,
                                                  .seg_size = "136K"};

/* --- requests ---------------------------------------------------------------------------- */

static size_t req_stride(const struct ucx *u)
{
    return ALIGN_UP(u->req_space, CACHELINE) + ALIGN_UP(sizeof(struct fabric_req), CACHELINE);
}

/* Each slot: the space that UCX uses, then our part. UCX takes the pointer in between. */
static bool grow(struct ucx *u)
{
    size_t space = ALIGN_UP(u->req_space, CACHELINE), stride = req_stride(u);
    struct slab *slab = aligned_alloc(CACHELINE, CACHELINE + SLAB_REQS * stride);

    if (!slab)
        return false;
    slab->next = u->slabs;
    u->slabs = slab;
    for (unsigned i = 0; i < SLAB_REQS; i++) {
        char *p = (char *)slab + CACHELINE + i * stride + space;
        struct fabric_req *req = (struct fabric_req *)p;

        STAILQ_INSERT_HEAD(&u->free_reqs, req, link);
    }
    return true;
}

struct fabric_req *ucx_req_new(struct ucx_peer *peer)
{
    struct ucx *u = peer->u;
    struct fabric_req *req;

    if (STAILQ_EMPTY(&u->free_reqs) && !grow(u))
        return NULL;
    req = STAILQ_FIRST(&u->free_reqs);
    STAILQ_REMOVE_HEAD(&u->free_reqs, link);
    req->peer = peer;
    req->done = NULL;
    req->body = NULL;
    req->body_len = 0;
    peer->refs++;
    return req;
}

void ucx_req_free(struct fabric_req *req)
{
    struct ucx_peer *peer = req->peer;

    STAILQ_INSERT_HEAD(&peer->u->free_reqs, req, link);
    ucx_peer_unref(peer);
}

/* Only in progress() and free(): calls the caller. */
void ucx_finish(struct fabric_req *req, int st)
{
    fabric_done_fn done = req->done;
    void *arg = req->arg;

    ucx_req_free(req);
    if (done)
        done(arg, st);
}

static void complete(struct fabric_req *req, ucs_status_t status)
{
    struct ucx *u = req->peer->u;
    int st = 0;

    if (status != UCS_OK)
        st = req->peer->state == PEER_GONE || u->stopping ? -ECANCELED : -EIO;
    if (u->calling) {
        req->st = st;
        STAILQ_INSERT_TAIL(&u->finished, req, link);
    } else {
        ucx_finish(req, st);
    }
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    complete(arg, status);
}

static void on_received(void *request, ucs_status_t status, size_t len, void *arg)
{
    complete(arg, status);
}

static bool ucx_run_finished(struct ucx *u)
{
    struct fabric_req *req;
    bool any = false;

    while ((req = STAILQ_FIRST(&u->finished))) {
        STAILQ_REMOVE_HEAD(&u->finished, link);
        any = true;
        ucx_finish(req, req->st);
    }
    return any;
}

/* --- sending ----------------------------------------------------------------------------- */

int ucx_post(struct fabric_req *req, unsigned am_id, const void *hdr, size_t hdr_len)
{
    struct ucx *u = req->peer->u;
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = req->body_len > u->eager_max ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .request = req, /* UCX uses the bytes in front of it */
        .cb.send = on_sent,
        .user_data = req,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    bool nested = u->calling;
    ucs_status_ptr_t r;

    u->calling = true;
    r = ucp_am_send_nbx(req->peer->ep, am_id, hdr, hdr_len, req->body, req->body_len, &params);
    u->calling = nested;
    u->touched = true;
    if (r == NULL)
        return 1;
    return UCS_PTR_IS_ERR(r) ? -EIO : 0;
}

int ucx_post_data(struct fabric_req *req)
{
    struct ucx_peer *peer = req->peer;
    int r;

    req->h.data = (struct wire_data){
        .cookie = peer->cookie_out,
        .seq = peer->seq_out,
        .slot = peer->remote_slot,
    };
    r = ucx_post(req, AM_DATA, &req->h, sizeof(req->h.data) + req->hdr_len);
    if (r >= 0)
        peer->seq_out++;
    return r;
}

static int ucx_send(struct fabric *f, unsigned index, const void *hdr, size_t hdr_len,
                    const void *body, size_t body_len, fabric_done_fn done, void *arg)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_peer *peer = index < FABRIC_MAX_PEERS ? u->slot[index] : NULL;
    struct fabric_req *req;
    int r;

    if (!peer)
        return -ENOTCONN;
    if (hdr_len > FABRIC_HDR_MAX)
        return -EINVAL;
    if (peer->state == PEER_DOWN || peer->failed)
        return -EIO;
    req = ucx_req_new(peer);
    if (!req)
        return -ENOMEM;
    req->done = done;
    req->arg = arg;
    req->body = body;
    req->body_len = body_len;
    req->hdr_len = (uint16_t)hdr_len;
    if (hdr_len)
        memcpy(req->h.user, hdr, hdr_len);
    peer->sent += hdr_len + body_len;
    if (peer->state == PEER_GREETING || !STAILQ_EMPTY(&peer->waiting)) {
        STAILQ_INSERT_TAIL(&peer->waiting, req, link);
        return 0;
    }
    r = ucx_post_data(req);
    if (r != 0)
        ucx_req_free(req);
    return r;
}

/* --- receiving --------------------------------------------------------------------------- */

static struct ucx_claim *claim_new(struct ucx_peer *peer, void *desc, size_t len)
{
    struct ucx_claim *c = malloc(sizeof(*c));

    if (!c)
        return NULL;
    *c = (struct ucx_claim){.peer = peer, .desc = desc, .len = len, .in_callback = true};
    peer->refs++;
    LIST_INSERT_HEAD(&peer->u->claims, c, link);
    return c;
}

/* Without the descriptor, which UCX has back or is about to get. */
static void ucx_claim_free(struct ucx_claim *c)
{
    LIST_REMOVE(c, link);
    ucx_peer_unref(c->peer);
    free(c);
}

static void claim_release(struct ucx_claim *c)
{
    struct ucx *u = c->peer->u;

    if (c->in_callback) {
        c->dropped = true; /* on_data() returns UCS_OK: UCX tells the sender and frees */
        return;
    }
    u->calling = true;
    ucp_am_data_release(u->worker, c->desc);
    u->calling = false;
    u->touched = true;
    ucx_claim_free(c);
}

static void ucx_drop(struct fabric *f, void *claim)
{
    claim_release(claim);
}

static int start_recv(struct ucx *u, struct ucx_claim *c, struct fabric_req *req, void *buf)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .request = req,
        .cb.recv_am = on_received,
        .user_data = req,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t r;

    u->calling = true;
    r = ucp_am_recv_data_nbx(u->worker, c->desc, buf, c->len, &params);
    u->calling = false;
    u->touched = true;
    if (r == NULL)
        return 1;
    return UCS_PTR_IS_ERR(r) ? -EIO : 0;
}

static int ucx_recv(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done,
                    void *arg)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_claim *c = claim;
    struct fabric_req *req;
    int r = 0;

    if (c->peer->state == PEER_GONE)
        r = -ECANCELED;
    else if (c->peer->state == PEER_DOWN || c->peer->failed)
        r = -EIO;
    else if (len < c->len)
        r = -EMSGSIZE;
    req = r ? NULL : ucx_req_new(c->peer);
    if (!req) {
        claim_release(c);
        return r ? r : -ENOMEM;
    }
    req->done = done;
    req->arg = arg;
    r = start_recv(u, c, req, buf);
    if (r != 0)
        ucx_req_free(req);
    if (r < 0)
        claim_release(c); /* UCX has not taken the descriptor */
    else if (c->in_callback)
        c->desc = NULL; /* on_data() frees the claim */
    else
        ucx_claim_free(c);
    return r;
}

/* Whose message is this? NULL: nobody's. */
static struct ucx_peer *sender_of(const struct ucx *u, const struct wire_data *wire)
{
    struct ucx_peer *peer = wire->slot < FABRIC_MAX_PEERS ? u->slot[wire->slot] : NULL;

    if (!peer || !peer->greeted || peer->cookie_in != wire->cookie)
        return NULL;
    return peer;
}

/* An announced body: UCS_INPROGRESS leaves the descriptor with us. */
static ucs_status_t deliver_announced(struct ucx *u, struct ucx_peer *peer, struct fabric_msg *msg,
                                      void *desc)
{
    struct ucx_claim *c = claim_new(peer, desc, msg->body_len);
    ucs_status_t st = UCS_INPROGRESS;

    if (!c)
        return UCS_ERR_NO_MEMORY; /* the sender's request fails, the link with it */
    msg->claim = c;
    u->ev.on_msg(u->ev.arg, msg);
    c->in_callback = false;
    if (c->dropped)
        st = UCS_OK;
    if (c->dropped || !c->desc)
        ucx_claim_free(c);
    return st;
}

ucs_status_t ucx_on_data(void *arg, const void *hdr, size_t hdr_len, void *data, size_t len,
                         const ucp_am_recv_param_t *param)
{
    bool rndv = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    _Alignas(16) uint8_t user[FABRIC_HDR_MAX];
    struct ucx *u = arg;
    struct wire_data wire;
    struct ucx_peer *peer = NULL;
    ucs_status_t st = UCS_OK;

    if (hdr_len >= sizeof(wire) && hdr_len <= sizeof(wire) + sizeof(user)) {
        memcpy(&wire, hdr, sizeof(wire));
        memcpy(user, (const char *)hdr + sizeof(wire), hdr_len - sizeof(wire));
        peer = sender_of(u, &wire);
    }
    if (!peer || u->stopping) {
        u->base.stats.strangers++;
        return rndv ? UCS_ERR_REJECTED : UCS_OK;
    }
    if (peer->state == PEER_DOWN || peer->failed)
        return rndv ? UCS_ERR_CANCELED : UCS_OK;
    if (wire.seq != peer->seq_in++) {
        ucx_peer_fail(peer, -EPROTO, "messages arrived out of order");
        return rndv ? UCS_ERR_CANCELED : UCS_OK;
    }
    peer->received += hdr_len - sizeof(wire) + len;
    struct fabric_msg msg = {
        .peer = peer->index,
        .hdr = user,
        .hdr_len = hdr_len - sizeof(wire),
        .body = rndv  ? NULL
                : len ? data
                      : "",
        .body_len = len,
    };
    peer->refs++; /* the handler may drop the peer */
    if (rndv)
        st = deliver_announced(u, peer, &msg, data);
    else
        u->ev.on_msg(u->ev.arg, &msg);
    if (st == UCS_ERR_NO_MEMORY)
        ucx_peer_fail(peer, -ENOMEM, "no memory for an announced body");
    ucx_peer_unref(peer);
    return st;
}

/* --- the loop's side --------------------------------------------------------------------- */

static bool fd_readable(const struct ucx *u)
{
    struct pollfd pfd = {.fd = u->efd, .events = POLLIN};

    return poll(&pfd, 1, 0) > 0;
}

/* After a sleep: a readable fd without anything to do is the stuck wire-up. */
static void watch_spin(struct ucx *u, bool any)
{
    bool slept = u->armed;

    u->armed = false;
    if (any) {
        u->spins = 0;
        u->polling = false;
    } else if (slept) {
        u->spins = fd_readable(u) ? u->spins + 1 : 0;
        u->polling = u->polling || u->spins >= SPIN_LIMIT;
    }
}

static bool ucx_progress(struct fabric *f)
{
    struct ucx *u = container_of(f, struct ucx, base);
    unsigned n = 0;
    bool any;

    while (n < PROGRESS_BUDGET && ucp_worker_progress(u->worker))
        n++;
    if (n < PROGRESS_BUDGET)
        u->touched = false; /* UCX had nothing left to do */
    any = n > 0;
    any |= ucx_run_finished(u);
    any |= ucx_peers_reap(u);
    watch_spin(u, any);
    return any;
}

static int ucx_fd(struct fabric *f)
{
    return container_of(f, struct ucx, base)->efd;
}

static int ucx_arm(struct fabric *f)
{
    struct ucx *u = container_of(f, struct ucx, base);
    ucs_status_t st;

    if (u->touched || !STAILQ_EMPTY(&u->finished) || !STAILQ_EMPTY(&u->to_fail) ||
        !STAILQ_EMPTY(&u->to_close) || !STAILQ_EMPTY(&u->to_reopen))
        return 1;
    if (u->polling) {
        if (fd_readable(u))
            return 2;
        u->polling = false;
        u->spins = 0;
    }
    st = ucp_worker_arm(u->worker);
    if (st == UCS_ERR_BUSY)
        return 1;
    if (st != UCS_OK)
        return 2;
    u->armed = true;
    return 0;
}

static int ucx_address(struct fabric *f, void *buf, size_t *inout_len)
{
    struct ucx *u = container_of(f, struct ucx, base);
    ucp_address_t *addr;
    ucs_status_t st;
    size_t len;

    st = ucp_worker_get_address(u->worker, &addr, &len);
    if (st != UCS_OK)
        return ucx_errno(st);
    if (len <= *inout_len)
        memcpy(buf, addr, len);
    ucp_worker_release_address(u->worker, addr);
    if (len > *inout_len)
        return -ENOSPC;
    *inout_len = len;
    return 0;
}

static void on_worker_flushed(void *request, ucs_status_t st, void *arg)
{
    struct ucx *u = arg;

    ucp_request_free(request);
    u->flushing = false;
}

/* UCX has endpoints of its own, for requests of the other side that found none. Destroying the
 * worker before their answers have left ends the process by an assertion (1.13). */
static void flush_worker(struct ucx *u)
{
    ucp_request_param_t params = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_worker_flushed,
        .user_data = u,
    };

    u->flushing = UCS_PTR_IS_PTR(ucp_worker_flush_nbx(u->worker, &params));
    for (unsigned i = 0; i < FREE_ROUNDS && u->flushing; i++)
        ucp_worker_progress(u->worker);
}

/* Until each peer has let go of its endpoint and requests. Claims go first: they hold
 * references, too, and releasing one sends a message. */
static void ucx_drain(struct ucx *u)
{
    struct ucx_claim *c;

    u->stopping = true;
    while ((c = LIST_FIRST(&u->claims)))
        claim_release(c);
    for (unsigned i = 0; i < FABRIC_MAX_PEERS; i++)
        ucx_peer_del(&u->base, i);
    for (unsigned i = 0; i < FREE_ROUNDS && !LIST_EMPTY(&u->peers); i++) {
        u->forcing = i >= WIRE_ROUNDS;
        ucp_worker_progress(u->worker);
        ucx_run_finished(u);
        ucx_peers_reap(u);
    }
    flush_worker(u);
}

static void ucx_free(struct fabric *f)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_route *route;
    struct ucx_spent *spent;
    struct ucx_peer *peer;
    struct slab *slab;

    if (u->worker)
        ucx_drain(u);
    ucx_close(u);
    while ((peer = LIST_FIRST(&u->peers))) { /* UCX never let go: it is gone itself now */
        LIST_REMOVE(peer, all_link);
        free(peer);
    }
    while ((spent = LIST_FIRST(&u->spent))) {
        LIST_REMOVE(spent, link);
        free(spent);
    }
    while ((route = LIST_FIRST(&u->routes))) {
        LIST_REMOVE(route, link);
        free(route);
    }
    while ((slab = u->slabs)) {
        u->slabs = slab->next;
        free(slab);
    }
    free(u);
}

/* What UCX does with them is not known: only what it was given, and what it gave. */
static bool ucx_traffic(struct fabric *f, unsigned index, struct fabric_traffic *ret_traffic)
{
    const struct ucx *u = container_of(f, struct ucx, base);
    const struct ucx_peer *peer = index < FABRIC_MAX_PEERS ? u->slot[index] : NULL;

    if (!peer || peer->state != PEER_UP)
        return false;
    *ret_traffic = (struct fabric_traffic){.sent = peer->sent, .received = peer->received};
    return true;
}

static const struct fabric_ops ucx_ops = {
    .name = "ucx",
    .address = ucx_address,
    .peer_add = ucx_peer_add,
    .peer_del = ucx_peer_del,
    .send = ucx_send,
    .recv = ucx_recv,
    .drop = ucx_drop,
    .progress = ucx_progress,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .traffic = ucx_traffic,
    .free = ucx_free,
};

int fabric_ucx_new_tuned(const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
                         const struct fabric_events *ev, struct fabric **ret_fabric, char why[256])
{
    struct ucx *u = calloc(1, sizeof(*u));
    int r;

    why[0] = '\0';
    if (!u) {
        strcpy(why, "out of memory");
        return -ENOMEM;
    }
    u->base.ops = &ucx_ops;
    u->ev = *ev;
    u->eager_max = tuning->eager_max;
    snprintf(u->congestion, sizeof(u->congestion), "%s",
             conf->congestion ? conf->congestion : "auto");
    u->efd = -1;
    LIST_INIT(&u->peers);
    LIST_INIT(&u->routes);
    LIST_INIT(&u->spent);
    LIST_INIT(&u->claims);
    STAILQ_INIT(&u->to_fail);
    STAILQ_INIT(&u->to_close);
    STAILQ_INIT(&u->to_reopen);
    STAILQ_INIT(&u->free_reqs);
    STAILQ_INIT(&u->finished);
    r = ucx_open(u, conf, tuning, why);
    if (r) {
        ucx_free(&u->base);
        return r;
    }
    *ret_fabric = &u->base;
    return 0;
}

int fabric_ucx_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256])
{
    return fabric_ucx_new_tuned(conf, &measured, ev, ret_fabric, why);
}

#else /* !HAVE_UCX */

int fabric_ucx_new_tuned(const struct fabric_conf *conf, const struct fabric_ucx_tuning *tuning,
                         const struct fabric_events *ev, struct fabric **ret_fabric, char why[256])
{
    return fabric_ucx_new(conf, ev, ret_fabric, why);
}

int fabric_ucx_new(const struct fabric_conf *conf, const struct fabric_events *ev,
                   struct fabric **ret_fabric, char why[256])
{
    strcpy(why, "built without UCX (configure --without-ucx): transport.fabric can only be tcp");
    return -ENOTSUP;
}

#endif
