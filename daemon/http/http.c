/* http.c - HTTP: who may ask, and how much work an answer may cost.
 *
 * A request does not tell its user. So everything that is shown is for everybody that reaches the
 * port: numbers, and names of nodes. Nothing can be changed here. doc/security.md has the limits.
 *
 *   READING    a connection, its request not complete     wakes: the socket, deadline 5 s
 *   WAITING    its answer is being made                   wakes: http_turn()
 *   WRITING    the answer is going out                    wakes: the socket, deadline 10 s
 *   LINGERING  all is sent: reads on for a second, so that a late byte of the client does not make
 *              the kernel reset the connection under the answer
 *   DEAD       on http->dead until the turn ends
 *
 * A connection is for one request. A deadline does not move when a byte comes. There are at most
 * HTTP_CONNECTIONS connections. A new one then takes the place of an old one: of the address with
 * most connections, first one that has not asked yet, and of these the oldest. So a crowd from one
 * address does not shut out another.
 *
 * Metrics and the page's status take more than a turn: http_made.c makes them.
 *
 * libevent's own HTTP server is not used: in 2.1.12 there is no limit to connections, and its time
 * limits begin anew with each byte.
 *
 * On loopback the Host header has to be plain (http_host_is_plain()). Else a web page of a stranger
 * could map its own name to our address, and read commd's pages in a browser on this machine.
 *
 * If a client dies now, its socket says so, or its deadline comes. If commd is stopped now, clients
 * lose an answer and nothing else. */
#include "daemon/http/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdio.h>
#include <sys/queue.h>

#include "daemon/admin/answers.h"
#include "daemon/daemon.h"
#include "daemon/http/http_made.h"
#include "daemon/http/http_request.h"
#include "daemon/http/page.h"
#include "daemon/link/door.h"
#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/process/log_limit.h"
#include "shm/util/reset.h"
#include "shm/util/rivals.h"

enum {
    HTTP_CONNECTIONS = 32,
    HTTP_ACCEPT_BUDGET = 8, /* then none for HTTP_ACCEPT_MS: see door.h */
    HTTP_ACCEPT_MS = 5,
    HTTP_READ_MS = 5000,
    HTTP_WRITE_MS = 10000,
    HTTP_LINGER_MS = 1000,
    HTTP_LINGER_BYTES = 64 << 10,
    HTTP_STEP_US = 1000,
};

enum http_state {
    HTTP_READING,
    HTTP_WAITING,
    HTTP_WRITING,
    HTTP_LINGERING,
    HTTP_DEAD,
    HTTP_NSTATES
};
TAILQ_HEAD(http_conn_list, http_conn);

struct http_conn {
    TAILQ_ENTRY(http_conn) entry; /* of http->conns, or ->dead */
    struct http *http;            /* borrowed */
    struct bufferevent *bev;      /* owned, with its socket */
    struct event *timer;          /* owned: the deadline */
    struct rival from;            /* which address */
    enum http_state state;
    bool head;           /* the client wants no body */
    bool refused;        /* its request was */
    enum http_made made; /* WAITING: the answer that the client waits for */
    size_t discarded;
};

struct http {
    struct daemon *d; /* borrowed */
    struct door door;
    bool loopback;
    uint64_t start_us;                 /* of commd, by the calendar */
    struct event *more;                /* owned */
    struct http_conn_list conns, dead; /* owned; conns: oldest first */
    unsigned nconns;
    struct http_maker maker;
    struct log_limit limit;
    uint64_t dropped, codes[METRICS_CODES];
};

/* ---- the life of a connection ---------------------------------------------------------------- */

/* clang-format off */
static const bool http_may[HTTP_NSTATES][HTTP_NSTATES] = { /* rows: from; columns: to */
                       /* READ WAIT WRIT LING DEAD */
    [HTTP_READING]   = {0,   1,   1,   0,   1},
    [HTTP_WAITING]   = {0,   0,   1,   0,   1},
    [HTTP_WRITING]   = {0,   0,   0,   1,   1},
    [HTTP_LINGERING] = {0,   0,   0,   0,   1},
    [HTTP_DEAD]      = {0},
};
/* clang-format on */

static void http_set_state(struct http_conn *conn, enum http_state state)
{
    assert(http_may[conn->state][state]);
    conn->state = state;
}

static void http_conn_free(struct http_conn *conn)
{
    if (conn->bev)
        bufferevent_free(conn->bev);
    if (conn->timer)
        event_free(conn->timer);
    free(conn);
}

static void http_conn_bury(struct http_conn *conn)
{
    struct http *http = conn->http;

    if (conn->state == HTTP_DEAD)
        return;
    assert(http->nconns);
    http_set_state(conn, HTTP_DEAD);
    TAILQ_REMOVE(&http->conns, conn, entry);
    TAILQ_INSERT_TAIL(&http->dead, conn, entry);
    http->nconns--;
    bufferevent_setcb(conn->bev, NULL, NULL, NULL, NULL);
    bufferevent_disable(conn->bev, EV_READ | EV_WRITE);
    event_del(conn->timer);
}

static void http_conn_drop(struct http_conn *conn)
{
    conn->http->dropped++;
    reset_on_close(bufferevent_getfd(conn->bev));
    http_conn_bury(conn);
}

static void http_conn_arm(struct http_conn *conn, uint64_t ms)
{
    struct timeval tv = clock_timeval(ms);

    event_add(conn->timer, &tv);
}

static void http_conn_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *conn = arg;

    if (conn->state != HTTP_LINGERING)
        return http_conn_drop(conn);
    if (conn->refused) /* it has had its short answer, and does not end the connection itself */
        reset_on_close(bufferevent_getfd(conn->bev));
    http_conn_bury(conn);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void release_body(const void *data, size_t len, void *arg)
{
    body_unref(arg);
}

/* Sends @text. @body: the owner of @text, which is not copied then; NULL: @text is copied. */
static void http_conn_answer(struct http_conn *conn, unsigned status, const char *type,
                             const char *text, size_t len, struct body *body)
{
    struct evbuffer *out = bufferevent_get_output(conn->bev);
    const char *reason = status == 200 ? "OK" : "Refused";
    int r;

    for (unsigned i = 0; i < METRICS_CODES; i++)
        conn->http->codes[i] += metrics_codes[i].status == status;
    http_set_state(conn, HTTP_WRITING);
    bufferevent_disable(conn->bev, EV_READ);
    r = evbuffer_add_printf(out,
                            "HTTP/1.1 %u %s\r\n"
                            "Content-Type: %s\r\n"
                            "Content-Length: %zu\r\n"
                            "%s"
                            "Connection: close\r\n"
                            "Cache-Control: no-store\r\n"
                            "X-Content-Type-Options: nosniff\r\n"
                            "Cross-Origin-Resource-Policy: same-origin\r\n"
                            "Referrer-Policy: no-referrer\r\n"
                            "Content-Security-Policy: default-src 'none'; connect-src 'self'; "
                            "script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                            "\r\n",
                            status, reason, type, len, status == 405 ? "Allow: GET, HEAD\r\n" : "");
    if (r >= 0 && !conn->head && body) {
        r = evbuffer_add_reference(out, text, len, release_body, body_ref(body));
        if (r)
            body_unref(body);
    } else if (r >= 0 && !conn->head) {
        r = evbuffer_add(out, text, len);
    }
    if (r < 0)
        return http_conn_drop(conn); /* no memory */
    http_conn_arm(conn, HTTP_WRITE_MS);
}

static void answer_text(struct http_conn *conn, unsigned status, const char *text)
{
    http_conn_answer(conn, status, "text/plain; charset=utf-8", text, strlen(text), NULL);
}

static void answer_refused(struct http_conn *conn, unsigned status)
{
    char text[128];
    unsigned i = 0;

    while (metrics_codes[i].status != status) {
        i++;
        assert(i < METRICS_CODES);
    }
    snprintf(text, sizeof(text), "%u: %s\n", status, metrics_codes[i].text);
    conn->refused = true;
    answer_text(conn, status, text);
}

static void answer_made(struct http_conn *conn, enum http_made made, struct body *body)
{
    static const char *const types[HTTP_MADE] = {
        [HTTP_METRICS] = "text/plain; version=0.0.4; charset=utf-8",
        [HTTP_STATUS] = "application/json",
    };

    if (body->error)
        answer_text(conn, 503, "503: out of memory\n");
    else
        http_conn_answer(conn, 200, types[made], body->data, body->len, body);
}

static void ask_for(struct http_conn *conn, enum http_made made)
{
    static const struct timeval at_once;
    struct body *fresh = http_maker_fresh(&conn->http->maker, made);

    if (fresh)
        return answer_made(conn, made, fresh);
    http_set_state(conn, HTTP_WAITING);
    conn->made = made;
    bufferevent_disable(conn->bev, EV_READ);
    http_conn_arm(conn, HTTP_WRITE_MS);
    event_add(conn->http->more, &at_once);
}

static void get_metrics(struct http_conn *conn)
{
    ask_for(conn, HTTP_METRICS);
}

static void get_status(struct http_conn *conn)
{
    http_maker_want_links(&conn->http->maker);
    ask_for(conn, HTTP_STATUS);
}

static void get_health(struct http_conn *conn)
{
    answer_text(conn, 200, "ok\n"); /* the loop runs, or there would be no answer */
}

static void get_ready(struct http_conn *conn)
{
    struct answer answer = {.d = conn->http->d};
    char text[sizeof(answer.unwell) + 32];

    answer_check_well(&answer);
    log_clean(answer.unwell);
    if (!answer.unwell[0])
        return answer_text(conn, 200, "ready\n");
    snprintf(text, sizeof(text), "not ready: %s\n", answer.unwell);
    answer_text(conn, 503, text);
}

static void get_page(struct http_conn *conn)
{
    http_conn_answer(conn, 200, "text/html; charset=utf-8", page_html, page_html_len, NULL);
}

static const struct http_route {
    const char *path;
    void (*get)(struct http_conn *conn);
} routes[] = {
    {"/", get_page},          {"/metrics", get_metrics}, {"/status.json", get_status},
    {"/healthz", get_health}, {"/readyz", get_ready},
};

/* ---- reading and writing --------------------------------------------------------------------- */

static void http_conn_route(struct http_conn *conn, const struct http_request *request)
{
    conn->head = request->head;
    if (conn->http->loopback && !http_host_is_plain(request->host))
        return answer_refused(conn, 403);
    for (unsigned i = 0; i < ARRAY_LEN(routes); i++)
        if (strcmp(routes[i].path, request->path) == 0)
            return routes[i].get(conn);
    answer_refused(conn, 404);
}

static void http_conn_request(struct http_conn *conn, struct evbuffer *in)
{
    size_t len = evbuffer_get_length(in);
    const char *text = (const char *)evbuffer_pullup(in, -1);
    struct http_request request;
    int r;

    if (!text)
        return;
    r = http_request_parse(text, len, &request);
    if (r == HTTP_E_MORE)
        return;
    evbuffer_drain(in, len);
    if (r)
        answer_refused(conn, (unsigned)r);
    else
        http_conn_route(conn, &request);
}

static void http_conn_read(struct bufferevent *bev, void *arg)
{
    struct evbuffer *in = bufferevent_get_input(bev);
    struct http_conn *conn = arg;

    if (conn->state == HTTP_READING)
        return http_conn_request(conn, in);
    conn->discarded += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (conn->discarded > HTTP_LINGER_BYTES)
        http_conn_bury(conn);
}

/* All is written. */
static void http_conn_written(struct bufferevent *bev, void *arg)
{
    struct http_conn *conn = arg;

    if (conn->state != HTTP_WRITING)
        return;
    http_set_state(conn, HTTP_LINGERING);
    shutdown(bufferevent_getfd(bev), SHUT_WR);
    http_conn_arm(conn, HTTP_LINGER_MS);
    bufferevent_enable(bev, EV_READ);
}

static void http_conn_event(struct bufferevent *bev, short what, void *arg)
{
    http_conn_bury(arg);
}

/* ---- coming in ------------------------------------------------------------------------------- */

/* The connection that has to go when there is no room: see the top. */
static struct http_conn *http_conn_victim(struct http *http)
{
    struct rivals rivals = {.victim = NULL};
    struct http_conn *conn;

    _Static_assert((int)HTTP_CONNECTIONS <= (int)RIVALS_MAX, "all are counted");
    TAILQ_FOREACH(conn, &http->conns, entry)
        rivals_count(&rivals, &conn->from);
    TAILQ_FOREACH(conn, &http->conns, entry)
        rivals_look(&rivals, conn, &conn->from, 1, conn->state == HTTP_READING);
    assert(rivals.victim);
    return rivals.victim;
}

static void http_came(void *arg, int fd, const struct sock_addr *from)
{
    struct http *http = arg;
    struct http_conn *conn = calloc(1, sizeof(*conn));

    if (!conn) {
        close(fd);
        return;
    }
    conn->http = http;
    conn->from = rival_at(&from->sa, false);
    conn->bev = bufferevent_socket_new(http->d->base, fd, BEV_OPT_CLOSE_ON_FREE);
    conn->timer = evtimer_new(http->d->base, http_conn_timer, conn);
    if (!conn->bev || !conn->timer) {
        if (!conn->bev)
            close(fd);
        return http_conn_free(conn);
    }
    if (http->nconns == HTTP_CONNECTIONS)
        http_conn_drop(http_conn_victim(http));
    TAILQ_INSERT_TAIL(&http->conns, conn, entry);
    http->nconns++;
    bufferevent_setcb(conn->bev, http_conn_read, http_conn_written, http_conn_event, conn);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, HTTP_HEAD_MAX);
    bufferevent_enable(conn->bev, EV_READ | EV_WRITE);
    http_conn_arm(conn, HTTP_READ_MS);
}

static void http_full(void *arg)
{
    struct http *http = arg;

    http->dropped++;
    log_limit_write(&http->limit, CONF_LOG_WARN, "http", NULL,
                    "http: no descriptor is left (LimitNOFILE=) -> refused");
}

static const struct door_ops http_door = {HTTP_ACCEPT_BUDGET, HTTP_ACCEPT_MS, http_came, http_full};

/* ---- making answers -------------------------------------------------------------------------- */

static bool is_waited_for(const struct http *http, enum http_made made)
{
    const struct http_conn *conn;

    TAILQ_FOREACH(conn, &http->conns, entry)
        if (conn->state == HTTP_WAITING && conn->made == made)
            return true;
    return false;
}

/* True when work remains. */
static bool make(struct http *http, enum http_made made, uint64_t until_us)
{
    struct http_conn *conn, *next;
    struct body *body;

    if (!http_maker_is_busy(&http->maker, made) && !is_waited_for(http, made))
        return false;
    body = http_maker_step(&http->maker, made, until_us);
    for (conn = TAILQ_FIRST(&http->conns); conn && body; conn = next) {
        next = TAILQ_NEXT(conn, entry);
        if (conn->state == HTTP_WAITING && conn->made == made)
            answer_made(conn, made, body);
    }
    return !body;
}

static void http_conns_free(struct http_conn_list *list)
{
    struct http_conn *conn;

    while ((conn = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, conn, entry);
        http_conn_free(conn);
    }
}

void http_turn(struct http *http)
{
    static const struct timeval at_once;
    uint64_t until;
    bool more;

    if (!http)
        return;
    until = clock_us() + HTTP_STEP_US;
    more = make(http, HTTP_METRICS, until);
    more |= make(http, HTTP_STATUS, until);
    if (more)
        event_add(http->more, &at_once);
    http_conns_free(&http->dead);
}

static void on_http_more(evutil_socket_t fd, short what, void *arg)
{
    /* http_turn() does the work */
}

/* ---- the server ------------------------------------------------------------------------------ */

void http_counts(const struct http *http, struct metrics *m)
{
    m->start_us = http->start_us;
    m->http_connections = http->nconns;
    m->http_dropped = http->dropped;
    memcpy(m->http_codes, http->codes, sizeof(m->http_codes));
}

static int listen_error(const struct conf *conf, int r, char **ret_error)
{
    const char *file = conf->file, *where = conf->http;

    switch (r) {
    case -EADDRINUSE:
        return fail_with(r, ret_error,
                         "%s: listen.http: %s is in use by another program (ss -ltnp shows it): "
                         "stop that, or choose another port",
                         file, where);
    case -EADDRNOTAVAIL:
        return fail_with(-EINVAL, ret_error,
                         "%s: listen.http: the address of %s is none of this machine's: correct "
                         "it, or take 127.0.0.1 for this machine alone or 0.0.0.0 for all its "
                         "addresses",
                         file, where);
    case -EACCES:
        return fail_with(r, ret_error,
                         "%s: listen.http: this user may not listen on %s: choose a port from "
                         "1024 on",
                         file, where);
    default:
        return fail_with(r, ret_error, "%s: listen.http: cannot listen on %s: %s", file, where,
                         strerror(-r));
    }
}

static void http_freep(struct http **http)
{
    *http = http_free(*http);
}

int http_new(struct daemon *d, struct http **ret_http, char **ret_error)
{
    _cleanup_(http_freep) struct http *http = NULL;
    char address[CONF_ADDR_MAX], text[SOCK_TEXT_MAX];
    struct sock_addr addr;
    const char *why;
    uint16_t port;
    int fd, r;

    *ret_error = NULL;
    *ret_http = NULL;
    if (!conf_http(d->conf, address, &port))
        return 0;
    http = calloc(1, sizeof(*http));
    if (!http)
        return -ENOMEM;
    TAILQ_INIT(&http->conns);
    TAILQ_INIT(&http->dead);
    http->d = d;
    http->maker.d = d;
    r = sock_resolve(address, port, &addr, &why); /* numeric, so no resolver is asked */
    if (r == 0)
        r = sock_listen(&addr, SOCK_QUEUE, &fd);
    if (r)
        return listen_error(d->conf, r, ret_error);
    http->loopback = sock_is_loopback(&addr);
    http->start_us = 1000 * (clock_wall_ms() - (clock_ms() - d->started_ms));
    http->more = evtimer_new(d->base, on_http_more, http);
    if (door_open(&http->door, d->base, fd, &http_door, http) || !http->more ||
        log_limit_init(&http->limit, d->base))
        return -ENOMEM;
    log_info("http on %s", sock_text(&addr, true, text));
    *ret_http = steal_ptr(http);
    return 0;
}

struct http *http_free(struct http *http)
{
    if (!http)
        return NULL;
    http_conns_free(&http->conns);
    http_conns_free(&http->dead);
    http_maker_fini(&http->maker);
    if (http->more)
        event_free(http->more);
    door_fini(&http->door);
    log_limit_fini(&http->limit);
    free(http);
    return NULL;
}
