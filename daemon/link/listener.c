/* listener.c - the clients of this node: their users, their slots, their beginning and end.
 *
 *   listener_socket.c  the socket itself
 *   listener_admit.c   which clients are let in
 *   listener_away.c    clients of the commd before this one
 *   listener_turns.c   the order in which messages are taken
 *   listener_fds.c     the descriptors that are sent
 *   client_link.c      one client */
#include <assert.h>
#include <stdio.h>

#include "daemon/core/core.h"
#include "daemon/link/client_link.h"
#include "daemon/process/log.h"

void listener_log_refused(struct listener *listener, uint32_t uid, uint32_t pid, const char *text)
{
    char who[LOG_LIMIT_WHO];

    snprintf(who, sizeof(who), "user %u", payer_of(listener->payers, uid));
    log_limit_write(&listener->limit, CONF_LOG_WARN, who, text,
                    "client pid %u uid %u: %s -> refused", pid, uid, text);
}

/* ---- users ----------------------------------------------------------------------------------- */

struct tenant *tenant_find(const struct listener *listener, uint32_t uid)
{
    struct tenant *tenant;

    TAILQ_FOREACH(tenant, &listener->tenants, entry)
        if (tenant->uid == uid)
            return tenant;
    return NULL;
}

struct tenant *tenant_get(struct listener *listener, uint32_t uid)
{
    struct tenant *tenant = tenant_find(listener, uid);

    if (tenant || !(tenant = calloc(1, sizeof(*tenant))))
        return tenant;
    tenant->uid = uid;
    tenant->held.up = &listener->held;
    TAILQ_INIT(&tenant->work);
    TAILQ_INIT(&tenant->unread);
    TAILQ_INSERT_TAIL(&listener->tenants, tenant, entry);
    return tenant;
}

static void tenants_reap(struct listener *listener)
{
    struct tenant *tenant, *next;

    for (tenant = TAILQ_FIRST(&listener->tenants); tenant; tenant = next) {
        next = TAILQ_NEXT(tenant, entry);
        if (tenant->nclients || tenant->naway || tenant->nunread || tenant->held.n)
            continue;
        assert(TAILQ_EMPTY(&tenant->work) && !tenant->flying && !tenant->nadmins);
        if (tenant->queued)
            TAILQ_REMOVE(&listener->turns, tenant, turn);
        TAILQ_REMOVE(&listener->tenants, tenant, entry);
        free(tenant);
    }
}

/* ---- the listener ---------------------------------------------------------------------------- */

static void listener_freep(struct listener **listener)
{
    *listener = listener_free(*listener);
}

static void listener_more(evutil_socket_t fd, short what, void *arg)
{
    /* listener_turn() does the work */
}

int listener_new(const struct listener_config *config, struct listener **ret_listener,
                 char **ret_error)
{
    _cleanup_(listener_freep) struct listener *listener = calloc(1, sizeof(*listener));
    int r;

    *ret_error = NULL;
    if (!listener)
        return -ENOMEM;
    TAILQ_INIT(&listener->clients);
    TAILQ_INIT(&listener->dead);
    TAILQ_INIT(&listener->tenants);
    TAILQ_INIT(&listener->turns);
    listener->socket.fd = -1;
    sock_reserve_init(&listener->reserve);
    listener_share_fds(listener);
    listener->base = config->base;
    listener->closer = config->closer;
    listener->ops = config->ops;
    listener->arg = config->arg;
    listener->nslots = config->max_clients + LISTENER_EXTRA;
    listener_set_limits(listener, config->max_clients, config->max_clients_per_user);
    if (listener->max_conns < config->max_clients)
        log_warn("only %u files may be open (LimitNOFILE=), which is enough for %u connections: "
                 "raise it to %u for limits.max_clients: %u",
                 4 * listener->max_conns, listener->max_conns, 4 * config->max_clients,
                 config->max_clients);
    listener->slots = calloc(listener->nslots, sizeof(*listener->slots));
    listener->away = calloc(listener->nslots, sizeof(*listener->away));
    if (!listener->slots || !listener->away || log_limit_init(&listener->limit, config->base))
        return -ENOMEM;
    r = listener_bind(&listener->socket, config->path, config->mode, ret_error);
    if (r)
        return r;
    listener->accept = event_new(listener->base, listener->socket.fd, EV_READ | EV_PERSIST,
                                 listener_accept, listener);
    listener->more = evtimer_new(listener->base, listener_more, listener);
    listener->unread = evtimer_new(listener->base, listener_unread, listener);
    if (!listener->accept || !listener->more || !listener->unread ||
        event_add(listener->accept, NULL))
        return -ENOMEM;
    *ret_listener = steal_ptr(listener);
    return 0;
}

static void clients_free(struct client_list *list)
{
    struct client_link *client;

    while ((client = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, client, entry);
        client_free(client);
    }
}

static void tenants_free(struct listener *listener)
{
    struct tenant *tenant;

    while ((tenant = TAILQ_FIRST(&listener->tenants))) {
        listener_drop_unread(listener, tenant);
        TAILQ_REMOVE(&listener->tenants, tenant, entry);
        free(tenant);
    }
}

struct listener *listener_free(struct listener *listener)
{
    if (!listener)
        return NULL;
    clients_free(&listener->clients);
    clients_free(&listener->dead);
    listener_away_free(listener);
    tenants_free(listener);
    if (listener->accept)
        event_free(listener->accept);
    if (listener->more)
        event_free(listener->more);
    if (listener->unread)
        event_free(listener->unread);
    listener_unlink(&listener->socket);
    listener_end(listener);
    sock_reserve_fini(&listener->reserve);
    log_limit_fini(&listener->limit);
    free(listener->slots);
    free(listener);
    return NULL;
}

void listener_turn(struct listener *listener)
{
    listener_serve(listener);
    clients_free(&listener->dead);
    tenants_reap(listener);
}

int listener_take_fd(struct listener *listener, unsigned slot)
{
    return listener->slots[slot] ? stream_take_fd(&listener->slots[slot]->stream) : -1;
}

bool listener_client(const struct listener *listener, unsigned slot,
                     struct listener_client *ret_client)
{
    const struct client_link *client = listener->slots[slot];

    if (!client)
        return false;
    *ret_client = (struct listener_client){
        .uid = client->uid,
        .payer = client->tenant->uid,
        .pid = client->pid,
        .welcome = client->session == SESSION_WELCOME,
    };
    return true;
}

void listener_log_user(struct listener *listener, uint32_t uid, enum conf_log_level level,
                       const char *text)
{
    char who[LOG_LIMIT_WHO];

    snprintf(who, sizeof(who), "user %u", payer_of(listener->payers, uid));
    log_limit_write(&listener->limit, level, who, NULL, "%s", text);
}

const uint64_t *listener_refused(const struct listener *listener)
{
    return listener->refused;
}

void listener_set_limits(struct listener *listener, unsigned max_clients,
                         unsigned max_clients_per_user)
{
    listener->max_clients = MIN(max_clients, listener->nslots - LISTENER_EXTRA);
    listener->max_clients_per_user = max_clients_per_user;
}

void listener_set_payers(struct listener *listener, const struct payers *payers)
{
    listener->payers = payers;
}

void listener_drain(struct listener *listener)
{
    struct client_link *client, *next;

    event_del(listener->accept);
    listener_end(listener);
    listener_unlink(&listener->socket);
    for (client = TAILQ_FIRST(&listener->clients); client; client = next) {
        next = TAILQ_NEXT(client, entry);
        listener_close(listener, client->slot);
    }
}

bool listener_idle(const struct listener *listener)
{
    return TAILQ_EMPTY(&listener->clients);
}

bool listener_unused(const struct listener *listener)
{
    const struct client_link *client;

    TAILQ_FOREACH(client, &listener->clients, entry)
        if (client->uid != CORE_GPU_UID)
            return false;
    return !listener->naway;
}
