/* fabric_ucx.c - the fabric over UCX active messages: its operations, and the loop's side. Clean
 * for UCX 1.13 and newer.
 *
 * Model. One context, one worker, thread mode SINGLE: all calls and callbacks on the engine's
 * thread. Peers are reached by worker address and greeted with a token (fabric_ucx_peer.c), and
 * then exchange messages (fabric_ucx_msg.c).
 *
 * Environment. libucs reads some options before main(): shm/launch/ucx_env.c sets those before
 * exec, and removes other UCX_* variables. fabric_ucx_init.c sets all the rest. UCX's sockets are
 * not close-on-exec: no fork/exec after fabric_ucx_new().
 *
 * While a peer does not answer the wire-up, the worker's fd stays readable although nothing can be
 * done (1 M wake-ups in 2 s): watch_spin() notices, and arm() says 2. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "shm/util/wait.h"
#include "transport/fabric/ucx/fabric_ucx_priv.h"

enum {
    PROGRESS_BUDGET = 32,  /* ucp_worker_progress() calls per progress() */
    SPIN_LIMIT = 16,       /* vain wake-ups in a row before arm() distrusts the fd */
    FREE_ROUNDS = 1 << 20, /* progress rounds in which free() waits for UCX to let go */
    WIRE_ROUNDS = 1 << 12, /* of these: for endpoints that are not wired up */
};

/* Up to 128 KiB the copies of an eager body cost less (25 us one way) than the three more messages
 * of an announced one (46 us). Larger eager bodies that come before their receiver is ready would
 * be copied once more there, without a limit. A segment must hold body and headers. */
static const struct fabric_ucx_tuning measured = {.eager_max = FABRIC_UCX_EAGER_MAX,
                                                  .seg_size = "136K"};

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

/* UCX has endpoints of its own, for requests of the other side that found none. If the worker is
 * destroyed before their answers have left, an assertion ends the process (1.13). */
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

/* Until each peer has let go of its endpoint and requests. Claims go first: they refer to peers,
 * and releasing one sends a message. */
static void ucx_drain(struct ucx *u)
{
    struct ucx_claim *c;

    u->stopping = true;
    while ((c = LIST_FIRST(&u->claims)))
        ucx_drop(&u->base, c);
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
    while ((peer = LIST_FIRST(&u->peers))) { /* UCX has not let go of it, and is gone itself now */
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

/* Known is what UCX was given and what it gave, not what it does with it. */
static bool ucx_traffic(struct fabric *f, unsigned index, struct fabric_traffic *ret_traffic)
{
    const struct ucx *u = container_of(f, struct ucx, base);
    const struct ucx_peer *peer = index < FABRIC_MAX_PEERS ? u->slot[index] : NULL;

    if (!peer || peer->state != PEER_UP)
        return false;
    *ret_traffic =
        (struct fabric_traffic){.sent = peer->sent,
                                .received = peer->received,
                                .encryption = u->loopback ? LINK_CLEAR_LOOPBACK : LINK_CLEAR_UCX,
                                .key_ms = now_ms() - peer->up_ms};
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
    u->loopback = conf->device && !strcmp(conf->device, "lo");
    snprintf(u->congestion, sizeof(u->congestion), "%s",
             conf->congestion ? conf->congestion : "auto");
    u->efd = -1;
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
