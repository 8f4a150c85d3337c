/* peer_links.c - all nodes: which we connect to, which may connect to us, and the shutdown. The
 * model of a link is in peer_link.c. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "daemon/link/peer_link_priv.h"
#include "daemon/process/store.h"
#include "shm/proto/cause_text.h"
#include "shm/util/reset.h"

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

static void dial_connected(evutil_socket_t fd, short what, void *arg)
{
    struct link *link = arg;
    struct link_peer *peer = link->peer;
    struct peer_links *links = link->links;
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &len))
        error = errno;
    if (!error)
        return link->looks ? link_bury(link) : link_start_tls(link);
    if (!link_asks(link) && error == ECONNREFUSED)
        peer_set_error(peer, false, "no commd answers at its address (connection refused)");
    else if (!link_asks(link))
        peer_set_error(peer, false, "cannot connect: %s", strerror(error));
    link_bury(link);
    if (error == ECONNREFUSED)
        links->ops->vacant(links->arg, (unsigned)(peer - links->peers));
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

/* 0; or -errno: there is no attempt. */
static int dial(struct link_peer *peer)
{
    struct peer_links *links = peer->links;
    struct link *link;
    int fd = dial_socket(peer);

    if (fd < 0)
        return fd;
    link = link_new(links, peer, fd);
    if (!link)
        return -ENOMEM;
    link->from = peer->addr;
    /* Writable once connected, or failed; TLS starts on a socket that is known to be good. */
    link->connected = event_new(links->base, fd, EV_WRITE, dial_connected, link);
    if (!link->connected || event_add(link->connected, NULL))
        link_bury(link);
    return 0;
}

static void peer_dial(evutil_socket_t unused, short what, void *arg)
{
    struct link_peer *peer = arg;
    int r;

    if (peer->links->draining || peer->link || peer->dial)
        return;
    r = dial(peer);
    if (r) {
        peer_set_error(peer, false, "cannot connect: %s", strerror(-r));
        peer_retry(peer);
    }
}

/* Whether it takes what we show, and what it shows, is known from a connection to its address. */
static void peer_ask(struct link_peer *peer)
{
    uint64_t now = clock_ms();

    assert(!peer->retry && !peer->link);
    if (peer->links->draining || peer->dial || now < peer->ask_ms)
        return;
    peer->ask_ms = now + LINK_ASK_MS;
    dial(peer);
}

void peer_links_look(struct peer_links *links, unsigned node)
{
    struct link_peer *peer = peer_at(links, node);

    if (peer->retry || peer->link || peer->dial)
        return;
    peer_ask(peer);
    if (peer->dial)
        peer->dial->looks = true;
}

static bool is_about_certificate(const char *text)
{
    return starts_with(text, TEXT_CERTIFICATE) || starts_with(text, TEXT_OURS_REFUSED);
}

/* The node that we wait for whose address @link came from. NULL: there is none, or more than one.
 */
static struct link_peer *peer_by_address(const struct link *link)
{
    struct peer_links *links = link->links;
    struct link_peer *found = NULL;

    for (unsigned i = 0; i < links->npeers; i++) {
        struct link_peer *peer = &links->peers[i];

        if (i == links->self || peer->retry || peer->link ||
            !sock_same_host(&peer->addr, &link->from))
            continue;
        if (found)
            return NULL;
        found = peer;
    }
    return found;
}

void peer_blame_by_address(const struct link *link, const char *text)
{
    struct link_peer *peer = peer_by_address(link);

    if (peer)
        snprintf(peer->error, sizeof(peer->error), "%s", text);
}

void peer_ask_by_address(const struct link *link)
{
    struct link_peer *peer = peer_by_address(link);

    if (peer)
        peer_ask(peer);
}

void peer_tell_refused(struct link_peer *peer, const char *text)
{
    struct peer_links *links = peer->links;
    char that[MSG_TEXT_MAX];

    if (!text || !is_about_certificate(text))
        return;
    if (starts_with(text, TEXT_OURS_REFUSED)) { /* other nodes read it, too */
        snprintf(that, sizeof(that), TEXT_REFUSES_THAT "%s", links->peers[links->self].name,
                 text + strlen(TEXT_OURS_REFUSED));
        text = that;
    }
    links->ops->down(links->arg, (unsigned)(peer - links->peers), true, text);
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

/* Which half-open link goes when there is no room: the one with the greatest of these ranks. KEPT:
 * its ClientHello was accepted, so the binder was right, and it knows the key, or repeats what a
 * node has said; or its certificate was. SPOKE: a part of a ClientHello has come. A node sends its
 * ClientHello at once; a node that has several addresses may come as a stranger. */
enum { KEPT = 1, STRANGER_KEPT, SPOKE, SILENT, STRANGER_SPOKE, STRANGER_SILENT };

static unsigned half_open_rank(const struct link *link)
{
    SSL *ssl = link->bev ? bufferevent_openssl_get_ssl(link->bev) : NULL;
    OSSL_HANDSHAKE_STATE state = ssl ? SSL_get_state(ssl) : TLS_ST_BEFORE;

    if (state != TLS_ST_BEFORE && state != TLS_ST_SR_CLNT_HELLO &&
        (SSL_session_reused(ssl) || link->state != LINK_HANDSHAKE))
        return link->stranger ? STRANGER_KEPT : KEPT;
    if (ssl && BIO_number_read(SSL_get_rbio(ssl)))
        return link->stranger ? STRANGER_SPOKE : SPOKE;
    return link->stranger ? STRANGER_SILENT : SILENT;
}

/* The link that has to go, of those with the rank @least or more; NULL: there is none. A node's
 * link becomes the oldest after LINK_HALF_OPEN / LINK_ACCEPT_BUDGET turns, and its ClientHello is
 * read before that. */
static struct link *half_open_victim(struct peer_links *links, unsigned least)
{
    struct rivals rivals = {.victim = NULL};
    struct link *link;

    _Static_assert((int)LINK_HALF_OPEN <= (int)RIVALS_MAX, "all are counted");
    TAILQ_FOREACH(link, &links->half, entry)
        rivals_count(&rivals, &link->rival);
    TAILQ_FOREACH(link, &links->half, entry) {
        unsigned rank = half_open_rank(link);

        if (rank >= least)
            rivals_look(&rivals, link, &link->rival, rank, false);
    }
    return rivals.victim;
}

/* Is there a place among the half-open links? Another one may have to go: for a stranger only one
 * of a stranger that has not shown the key. A node's users connect from the node's address, so for
 * a node those may go, too, that have only the address. */
static bool half_open_place(struct peer_links *links, bool stranger)
{
    struct link *link;

    if (links->nhalf < LINK_HALF_OPEN)
        return true;
    link = half_open_victim(links, stranger ? STRANGER_SPOKE : STRANGER_KEPT);
    if (!link)
        return false;
    link_log_refused(link, "crowd", "%d connections wait already", LINK_HALF_OPEN);
    link_give_up(link);
    return true;
}

static void link_spoke(evutil_socket_t fd, short what, void *arg)
{
    struct link *link = arg;
    char first;

    if (!link->stranger && recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        return link_bury(link); /* a node has looked whether we are here */
    link_start_tls(link);
}

/* Takes @sock. @like: who is there. */
static void links_take(struct peer_links *links, int sock, const struct link *like)
{
    struct link *link = link_new(links, NULL, sock);
    char first;

    if (!link)
        return;
    link->from = like->from;
    link->stranger = like->stranger;
    link->rival = rival_at(&link->from.sa, !link->stranger);
    if (recv(sock, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        return link_start_tls(link);
    link->connected = event_new(links->base, sock, EV_READ, link_spoke, link);
    if (!link->connected || event_add(link->connected, NULL))
        link_bury(link);
}

static void links_came(void *arg, int sock, const struct sock_addr *from)
{
    struct peer_links *links = arg;
    struct link guest = {.links = links, .from = *from};

    guest.stranger = !is_node_address(links, from);
    if (half_open_place(links, guest.stranger))
        return links_take(links, sock, &guest);
    link_log_refused(&guest, "crowd", "%d connections wait already", LINK_HALF_OPEN);
    reset_on_close(sock);
    close(sock);
}

static void links_full(void *arg)
{
    link_log_refused(&(struct link){.links = arg}, "descriptors", "no descriptor is left");
}

static const struct door_ops links_door = {LINK_ACCEPT_BUDGET, LINK_ACCEPT_MS, links_came,
                                           links_full};

/* A listening socket, or a negative errno. */
static int links_listen(struct peer_links *links, const struct conf *conf, char **ret_error)
{
    const struct conf_node *node = &conf->nodes[links->self];
    const struct sock_addr *addr = &links->peers[links->self].addr;
    int fd = sock_inherited(addr, 0, 0), r;

    if (fd >= 0)
        return fd;
    r = sock_listen(addr, SOCK_QUEUE, &fd);
    if (!r) {
        store_put("nodes", fd); /* or another program may take the port while commd restarts */
        return fd;
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

enum { DAY_S = 24 * 3600 };

bool peer_links_expiry(const struct peer_links *links, char *buf, size_t len)
{
    const struct tls_identity *identity = tls_identity(links->tls);
    int64_t now = (int64_t)time(NULL);

    if (!identity || !tls_identity_is_due(identity, now))
        return false;
    tls_identity_say_end(identity, now, buf, len);
    return true;
}

/* Says in the log that our certificate has to be renewed, once a day, and looks again when there is
 * something new to say. A certificate of a few hours is looked at more often. */
static void look_at_expiry(evutil_socket_t fd, short what, void *arg)
{
    struct peer_links *links = arg;
    const struct tls_identity *identity = tls_identity(links->tls);
    struct timeval again = {.tv_sec = DAY_S};
    char text[MSG_TEXT_MAX];
    int64_t left;

    event_del(links->expiry);
    if (!identity)
        return;
    if (peer_links_expiry(links, text, sizeof(text)))
        log_warn("%s -> renew it, then commctl reload", text);
    left = tls_identity_ends(identity) - (int64_t)time(NULL);
    if (left >= 0)
        again.tv_sec = MIN(MAX(left / 4, (int64_t)60), (int64_t)DAY_S);
    event_add(links->expiry, &again);
}

static void prove_all(struct link_list *list, bool differs)
{
    struct link *link, *next;

    for (link = TAILQ_FIRST(list); link; link = next) {
        next = TAILQ_NEXT(link, entry);
        link_prove(link, differs);
    }
}

/* While commd stops, peer->link may be CLOSING. */
static bool carries(const struct link_peer *peer)
{
    return peer->link && peer->link->state == LINK_UP;
}

int peer_links_set_keys(struct peer_links *links, const struct conf_keys *keys,
                        struct tls_identity *identity)
{
    bool shrink = tls_keys_shrink(links->tls, keys);
    bool differs = tls_differs(links->tls, keys, identity);
    int r = tls_set(links->tls, keys, identity);

    if (r)
        return r;
    for (unsigned i = 0; i < links->npeers; i++) {
        links->peers[i].offer = 0;
        if (carries(&links->peers[i]))
            link_send_keys(links->peers[i].link);
    }
    prove_all(&links->half, differs);
    prove_all(&links->live, differs);
    for (unsigned i = 0; i < links->npeers; i++)
        if (carries(&links->peers[i]))
            link_review_key(links->peers[i].link, shrink);
    if (!links->draining)
        look_at_expiry(-1, 0, links);
    return 0;
}

int64_t peer_links_certified_until(const struct peer_links *links)
{
    const struct tls_identity *identity = tls_identity(links->tls);

    return identity ? tls_identity_ends(identity) : 0;
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
    if (!links) {
        tls_identity_free(config->identity);
        return -ENOMEM;
    }
    TAILQ_INIT(&links->half);
    TAILQ_INIT(&links->live);
    TAILQ_INIT(&links->dead);
    links->deadline_ms = LINK_DEADLINE_MS;
    links->base = config->base;
    links->ops = config->ops;
    links->arg = config->arg;
    links->incarnation = config->incarnation;
    links->jitter = (uint32_t)config->incarnation;
    links->node_timeout_ms = config->conf->node_timeout_ms;
    snprintf(links->cluster, sizeof(links->cluster), "%s", config->conf->cluster);
    r = tls_new(config->keys, config->identity, &links->tls);
    if (r)
        return r;
    links->expiry = evtimer_new(links->base, look_at_expiry, links);
    if (!links->expiry)
        return -ENOMEM;
    r = log_limit_init(&links->limit, config->base);
    if (r)
        return r;
    r = links_init_peers(links, config);
    if (r)
        return r;
    r = links_listen(links, config->conf, ret_error);
    if (r >= 0)
        r = door_open(&links->door, links->base, r, &links_door, links);
    if (r)
        return r;
    for (unsigned i = 0; i < links->npeers; i++)
        if (links->peers[i].retry)
            event_active(links->peers[i].retry, EV_TIMEOUT, 0);
    look_at_expiry(-1, 0, links);
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
    if (links->expiry)
        event_free(links->expiry);
    door_fini(&links->door);
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

int peer_links_export(const struct peer_links *links, unsigned node, uint8_t ret_secret[32])
{
    const struct link *link = peer_at(links, node)->link;

    return link ? tls_export(bufferevent_openssl_get_ssl(link->bev), ret_secret) : -ENOTCONN;
}

int peer_links_mix(const struct peer_links *links, unsigned node, uint8_t token[32])
{
    uint8_t secret[32];
    int r = peer_links_export(links, node, secret);

    if (!r)
        r = tls_mix(secret, token);
    OPENSSL_cleanse(secret, sizeof(secret));
    return r;
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
    door_shut(&links->door);
    event_del(links->expiry);
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
