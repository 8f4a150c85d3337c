/* fabric_ucx_msg.c - messages over UCX, out and in.
 *
 * A message is one active message: its header is struct wire_data plus the caller's header. Bodies
 * up to eager_max go with it in one fragment; larger ones are announced (RTS), and fetched when the
 * receiver has memory for them: so an announcement that is not answered holds the sender up. Both
 * take the same lane, so order is kept; the sequence number proves it, and a gap takes the link
 * down rather than handing out messages in a wrong order.
 *
 * Requests come from slabs of our own (UCX is given the space in front of the request pointer), so
 * UCX allocates nothing for a message but the descriptors of announced bodies, each of which
 * belongs to a claim.
 *
 * UCX's traps, and what keeps out of them:
 *   - the header of a send must live until completion (1.13)   -> it lies in the request
 *   - ucp_am_send_nbx() == NULL: done, no callback             -> send() returns 1
 *   - receiving from a kept *eager* descriptor leaks (1.13)    -> eager bodies are not kept
 *   - a descriptor may not be released inside its AM callback  -> claim.in_callback
 *   - UCX may run a callback inside a ucp_* call               -> u->calling: put on finished
 *   - closing endpoints from callbacks                         -> queued, ucx_peers_reap()
 *   - work left by a ucp_* call that no fd announces           -> u->touched: arm() says 1 */
#include <errno.h>
#include <string.h>

#include "transport/fabric/ucx/fabric_ucx_priv.h"

enum { SLAB_REQS = 64 };

/* Each piece: the space that UCX uses, then our part. UCX is given the pointer in between. */
static bool grow(struct ucx *u)
{
    size_t space = ALIGN_UP(u->req_space, CACHELINE);
    size_t stride = space + ALIGN_UP(sizeof(struct fabric_req), CACHELINE);
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

bool ucx_run_finished(struct ucx *u)
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

    assert(peer->state == PEER_UP && peer->ep);
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

int ucx_send(struct fabric *f, unsigned index, const void *hdr, size_t hdr_len, const void *body,
             size_t body_len, fabric_done_fn done, void *arg)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_peer *peer = index < FABRIC_MAX_PEERS ? u->slot[index] : NULL;
    struct fabric_req *req;
    int r;

    if (!peer)
        return -ENOTCONN;
    if (hdr_len > FABRIC_HDR_MAX)
        return -EINVAL;
    assert(peer->state != PEER_GONE);
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

/* Without the descriptor, which UCX has or is about to get. */
static void ucx_claim_free(struct ucx_claim *c)
{
    LIST_REMOVE(c, link);
    ucx_peer_unref(c->peer);
    free(c);
}

void ucx_drop(struct fabric *f, void *claim)
{
    struct ucx *u = container_of(f, struct ucx, base);
    struct ucx_claim *c = claim;

    assert(!c->dropped && c->desc);
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

int ucx_recv(struct fabric *f, void *claim, void *buf, size_t len, fabric_done_fn done, void *arg)
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
        ucx_drop(f, c);
        return r ? r : -ENOMEM;
    }
    req->done = done;
    req->arg = arg;
    r = start_recv(u, c, req, buf);
    if (r != 0)
        ucx_req_free(req);
    if (r < 0)
        ucx_drop(f, c); /* UCX has not taken the descriptor */
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
