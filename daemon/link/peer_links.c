/* peer_links.c - all nodes: which we connect to, which may connect to us, and the shutdown. The
 * model of a link is in peer_link.c. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/link/peer_link_priv.h"
#include "daemon/process/store.h"

static struct link_peer *peer_at(const struct peer_links *links, unsigned node)
{
    assert(node < links->npeers);
    return &links->peers[node];
}

/* ---- connecting ------------------------------------------------------------------------------ */

static _printf_(3, 4) void peer_log(struct link_peer *peer, enum conf_log_level level,
                                    const char *fmt, ...)
{
    char who[LOG_LIMIT_WHO], text[MSG_TEXT_MAX + 2 * MSG_NAME_MAX];
    va_list ap;

    snprintf(who, sizeof(who), "node \"%.60s\"", peer->name);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_limit_write(&peer->links->limit, level, who, NULL, "%s", text);
}

void peer_links_log(struct peer_links *links, unsigned node, enum conf_log_level level,
                    const char *text)
{
    peer_log(peer_at(links, node), level, "%s", text);
}

void peer_set_error(struct link_peer *peer, bool serious, const char *fmt, ...)
{
    char text[MSG_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (strcmp(text, peer->error) == 0)
        return; /* the same as the last time: said already */
    snprintf(peer->error, sizeof(peer->error), "%s", text);
    peer_log(peer, serious ? CONF_LOG_WARN : CONF_LOG_INFO, "node \"%s\": %s -> trying again",
             peer->name, text);
}

void peer_blame_by_address(const struct link *link, const char *text)
{
    struct peer_links *links = link->links;
    struct link_peer *blamed = NULL;

    for (unsigned i = 0; i < links->npeers; i++) {
        struct link_peer *peer = &links->peers[i];

        if (i == links->self || peer->retry || peer->link ||
            !sock_same_host(&peer->addr, &link->from))
            continue;
        if (blamed)
            return;
        blamed = peer;
    }
    if (blamed)
        snprintf(blamed->error, sizeof(blamed->error), "%s", text);
}

static void dial_connected(evutil_socket_t fd, short what, void *arg)
{
    struct link *link = arg;
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &len))
        error = errno;
    if (!error)
        return link_start_tls(link);
    if (error == ECONNREFUSED)
        peer_set_error(link->peer, false, "no commd answers at its address (connection refused)");
    else
        peer_set_error(link->peer, false, "cannot connect: %s", strerror(error));
    link_bury(link);
}

/* A socket that is connecting to @peer; -errno. */
static int dial_socket(const struct link_peer *peer)
{
    _cleanup_(close_fdp) int fd =
        socket(peer->addr.sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&peer->addr.sa, peer->addr.len) &&
        errno != EINPROGRESS)
        return -errno;
    return steal_fd(&fd);
}

static void peer_dial(evutil_socket_t unused, short what, void *arg)
{
    struct link_peer *peer = arg;
    struct peer_links *links = peer->links;
    struct link *link;
    int fd;

    if (links->draining || peer->link || peer->dial)
        return;
    fd = dial_socket(peer);
    if (fd < 0) {
        peer_set_error(peer, false, "cannot connect: %s", strerror(-fd));
        return peer_retry(peer);
    }
    link = link_new(links, peer, fd);
    if (!link)
        return peer_retry(peer);
    link->from = peer->addr;
    /* Writable once connected, or failed; TLS starts on a socket that is known to be good. */
    link->connected = event_new(links->base, fd, EV_WRITE, dial_connected, link);
    if (!link->connected || event_add(link->connected, NULL))
        link_bury(link);
}

/* Sets the timer for the next attempt, and doubles the back-off. A quarter of the back-off is
 * random, so that nodes behind one failed switch do not come back in step. */
void peer_retry(struct link_peer *peer)
{
    struct peer_links *links = peer->links;
    struct timeval tv;

    if (links->draining)
        return;
    links->jitter = links->jitter * 1664525u + 1013904223u;
    tv = clock_timeval(peer->backoff_ms - peer->backoff_ms / 4 * (links->jitter >> 24) / 256);
    peer->backoff_ms = MIN(peer->backoff_ms * 2, (uint64_t)LINK_BACKOFF_MAX_MS);
    event_add(peer->retry, &tv);
}

/* ---- accepting ------------------------------------------------------------------------------- */

static bool is_node_address(const struct peer_links *links, const struct sock_addr *from)
{
    for (unsigned i = 0; i < links->npeers; i++)
        if (sock_same_host(&links->peers[i].addr, from))
            return true;
    return false;
}

/* Which half-open link goes when there is no room: the one with the greatest of these ranks. */
enum { KEEP, SPOKE, SILENT, STRANGER };

/* KEEP: the ClientHello was accepted, so its binder was right, and the node knows the key. */
static unsigned half_open_rank(const struct peer_links *links, const struct link *link)
{
    SSL *ssl = link->bev ? bufferevent_openssl_get_ssl(link->bev) : NULL;
    OSSL_HANDSHAKE_STATE state = ssl ? SSL_get_state(ssl) : TLS_ST_BEFORE;

    if (!is_node_address(links, &link->from))
        return STRANGER;
    if (state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO)
        return KEEP;
    return ssl && BIO_number_read(SSL_get_rbio(ssl)) ? SPOKE : SILENT;
}

static unsigned half_open_of(const struct peer_links *links, const struct sock_addr *from)
{
    const struct link *link;
    unsigned n = 0;

    TAILQ_FOREACH(link, &links->half, entry)
        n += sock_same_host(&link->from, from);
    return n;
}

/* The link that has to go, to make room for a node. The first that exists of:
 *  - the oldest link of a stranger;
 *  - of the links that have sent nothing, the oldest one of the address with most links;
 *  - the same of the links that have sent a part of a ClientHello.
 * NULL: all are in the middle of a handshake. A node sends its ClientHello at once. Its link
 * becomes the oldest after LINK_HALF_OPEN / LINK_ACCEPT_BUDGET turns, and the hello is read before
 * that. */
static struct link *half_open_victim(struct peer_links *links)
{
    struct link *link, *victim = NULL;
    unsigned worst = 0, most = 0;

    TAILQ_FOREACH(link, &links->half, entry) {
        unsigned rank = half_open_rank(links, link), held;

        if (rank == KEEP || rank < worst)
            continue;
        if (rank == STRANGER)
            return link;
        held = half_open_of(links, &link->from);
        if (rank > worst || held > most) {
            victim = link;
            worst = rank;
            most = held;
        }
    }
    return victim;
}

/* Is there a place among the half-open links? If @from is a node's address, another link may have
 * to go. A node's users connect from the same address, so links that have only the address may go,
 * too.
 */
static bool half_open_place(struct peer_links *links, const struct sock_addr *from)
{
    struct link *link;

    if (links->nhalf < LINK_HALF_OPEN)
        return true;
    link = is_node_address(links, from) ? half_open_victim(links) : NULL;
    if (!link)
        return false;
    link_log_refused(link, "crowd", "%d connections wait already", LINK_HALF_OPEN);
    link_bury(link);
    return true;
}

static void links_accept(evutil_socket_t fd, short what, void *arg)
{
    struct peer_links *links = arg;

    for (unsigned i = 0; i < LINK_ACCEPT_BUDGET; i++) {
        struct link stranger = {.links = links};
        struct link *link;
        int sock = -1, r;

        r = sock_accept(links->listen_fd, &links->reserve, &stranger.from, &sock);
        if (r == SOCK_E_AGAIN)
            return;
        if (r) {
            link_log_refused(&stranger, "descriptors", "no descriptor is left");
            if (r < 0)
                return;
            close_fdp(&sock);
            sock_reserve_init(&links->reserve);
            continue;
        }
        if (!half_open_place(links, &stranger.from)) {
            link_log_refused(&stranger, "crowd", "%d connections wait already", LINK_HALF_OPEN);
            close(sock);
            continue;
        }
        link = link_new(links, NULL, sock);
        if (!link)
            return;
        link->from = stranger.from;
        link_start_tls(link);
    }
}

static int links_listen(struct peer_links *links, const struct conf *conf, char **ret_error)
{
    const struct conf_node *node = &conf->nodes[links->self];
    const struct sock_addr *addr = &links->peers[links->self].addr;
    int r;

    links->listen_fd = sock_inherited(addr, 0, 0);
    if (links->listen_fd >= 0)
        return 0;
    r = sock_listen(addr, 128, &links->listen_fd);
    if (!r) {
        store_put("nodes", links->listen_fd); /* if it fails, another program may take the port
                                                    while commd restarts */
        return 0;
    }
    switch (r) {
    case -EADDRINUSE:
        return fail_with(r, ret_error,
                         "%s port %u is in use: another commd of this node, or another program; "
                         "stop it (ss -ltnp, as root, shows it), or give node \"%s\" another port "
                         "in cluster.nodes",
                         node->address, node->port, node->name);
    case -EADDRNOTAVAIL:
        return fail_with(-EINVAL, ret_error,
                         "%s: cluster.nodes: the address %s of node \"%s\" is none of this "
                         "machine's; correct it, or cluster.node",
                         conf->file, node->address, node->name);
    default:
        return fail_with(r, ret_error, "cannot listen on %s port %u: %s", node->address, node->port,
                         strerror(-r));
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

void peer_links_set_keys(struct peer_links *links, const struct conf_keys *keys)
{
    tls_set_keys(links->tls, keys);
    for (unsigned i = 0; i < links->npeers; i++) {
        links->peers[i].offer = 0;
        if (links->peers[i].link)
            link_send_keys(links->peers[i].link);
    }
}

void peer_links_keys(const struct peer_links *links, unsigned node,
                     struct peer_links_keys *ret_keys)
{
    const struct link_peer *peer = peer_at(links, node);

    if (node == links->self)
        *ret_keys =
            (struct peer_links_keys){tls_key_name(links->tls, 0), tls_key_name(links->tls, 1), ""};
    else if (peer->link)
        *ret_keys = (struct peer_links_keys){peer->keys.key, peer->keys.other, peer->link->key};
    else
        *ret_keys = (struct peer_links_keys){"", "", ""};
}

/* ---- all links ------------------------------------------------------------------------------- */

static int links_init_peers(struct peer_links *links, const struct peer_links_config *config)
{
    const struct conf *conf = config->conf;

    links->peers = calloc(conf->nnodes, sizeof(*links->peers));
    if (!links->peers)
        return -ENOMEM;
    links->npeers = conf->nnodes;
    links->self = conf->self;
    for (unsigned i = 0; i < conf->nnodes; i++) {
        struct link_peer *peer = &links->peers[i];

        peer->links = links;
        snprintf(peer->name, sizeof(peer->name), "%s", conf->nodes[i].name);
        peer->addr = config->addrs[i];
        peer->backoff_ms = LINK_BACKOFF_MIN_MS;
        if (i <= conf->self) /* sorted by name: we connect to the greater ones */
            continue;
        peer->retry = evtimer_new(links->base, peer_dial, peer);
        if (!peer->retry)
            return -ENOMEM;
    }
    return 0;
}

static void peer_links_freep(struct peer_links **links)
{
    *links = peer_links_free(*links);
}

int peer_links_new(const struct peer_links_config *config, struct peer_links **ret_links,
                   char **ret_error)
{
    _cleanup_(peer_links_freep) struct peer_links *links = calloc(1, sizeof(*links));
    int r;

    *ret_error = NULL;
    if (!links)
        return -ENOMEM;
    TAILQ_INIT(&links->half);
    TAILQ_INIT(&links->live);
    TAILQ_INIT(&links->dead);
    links->listen_fd = -1;
    sock_reserve_init(&links->reserve);
    links->base = config->base;
    links->ops = config->ops;
    links->arg = config->arg;
    links->incarnation = config->incarnation;
    links->jitter = (uint32_t)config->incarnation;
    links->node_timeout_ms = config->conf->node_timeout_ms;
    snprintf(links->cluster, sizeof(links->cluster), "%s", config->conf->cluster);
    r = tls_new(config->keys, &links->tls);
    if (r)
        return r;
    r = log_limit_init(&links->limit, config->base);
    if (r)
        return r;
    r = links_init_peers(links, config);
    if (r)
        return r;
    r = links_listen(links, config->conf, ret_error);
    if (r)
        return r;
    links->accept =
        event_new(links->base, links->listen_fd, EV_READ | EV_PERSIST, links_accept, links);
    if (!links->accept || event_add(links->accept, NULL))
        return -ENOMEM;
    for (unsigned i = 0; i < links->npeers; i++)
        if (links->peers[i].retry)
            event_active(links->peers[i].retry, EV_TIMEOUT, 0);
    *ret_links = steal_ptr(links);
    return 0;
}

static void link_list_free(struct link_list *list)
{
    struct link *link;

    while ((link = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, link, entry);
        link_free(link);
    }
}

struct peer_links *peer_links_free(struct peer_links *links)
{
    if (!links)
        return NULL;
    link_list_free(&links->half);
    link_list_free(&links->live);
    link_list_free(&links->dead);
    for (unsigned i = 0; i < links->npeers; i++)
        if (links->peers[i].retry)
            event_free(links->peers[i].retry);
    free(links->peers);
    if (links->accept)
        event_free(links->accept);
    close_fdp(&links->listen_fd);
    sock_reserve_fini(&links->reserve);
    log_limit_fini(&links->limit);
    tls_free(links->tls);
    free(links);
    return NULL;
}

void peer_links_turn(struct peer_links *links)
{
    link_list_free(&links->dead);
    links->turn_until_us = 0;
}

uint64_t peer_links_slice(struct peer_links *links)
{
    uint64_t now = clock_us();

    if (!links->turn_until_us)
        links->turn_until_us = now + LINK_TURN_US;
    return MIN(now + LINK_SLICE_US, links->turn_until_us);
}

bool peer_links_more(struct peer_links *links)
{
    bool took = links->took;

    links->took = false;
    return took && clock_us() < links->turn_until_us;
}

void peer_links_send(struct peer_links *links, unsigned node, const struct msg *msg)
{
    struct link *link = peer_at(links, node)->link;

    if (!link || link->state != LINK_UP || link->doom[0])
        return;
    if (link_send(link, msg))
        link_doom(link, "it does not read what we send");
}

size_t peer_links_unsent(const struct peer_links *links, unsigned node)
{
    const struct link *link = peer_at(links, node)->link;

    return link ? evbuffer_get_length(bufferevent_get_output(link->bev)) : 0;
}

void peer_links_drop(struct peer_links *links, unsigned node, const char *text)
{
    struct link_peer *peer = peer_at(links, node);

    if (!peer->link)
        return;
    snprintf(peer->error, sizeof(peer->error), "%s", text);
    link_bury(peer->link);
}

const char *peer_links_error(const struct peer_links *links, unsigned node)
{
    return peer_at(links, node)->error;
}

const struct peer_links_counts *peer_links_counts(const struct peer_links *links)
{
    return &links->counts;
}

void peer_links_set_timeout(struct peer_links *links, uint64_t node_timeout_ms)
{
    links->node_timeout_ms = node_timeout_ms;
}

/* ---- the end --------------------------------------------------------------------------------- */

void peer_links_drain(struct peer_links *links)
{
    struct link *link, *next;

    links->draining = true;
    event_del(links->accept);
    for (unsigned i = 0; i < links->npeers; i++)
        if (links->peers[i].retry)
            event_del(links->peers[i].retry);
    while ((link = TAILQ_FIRST(&links->half)))
        link_bury(link);
    for (link = TAILQ_FIRST(&links->live); link; link = next) {
        next = TAILQ_NEXT(link, entry);
        if (link->state != LINK_UP)
            link_bury(link);
        else if (evbuffer_get_length(bufferevent_get_output(link->bev)) == 0)
            link_finish(link);
    }
}

bool peer_links_idle(const struct peer_links *links)
{
    return TAILQ_EMPTY(&links->live) && TAILQ_EMPTY(&links->half);
}
