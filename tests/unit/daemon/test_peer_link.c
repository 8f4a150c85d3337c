/* test_peer_link.c - links between nodes over real loopback sockets, all ends in one process
 * and one event loop. The log is captured: what an operator reads is part of the contract. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>

#include "daemon/process/clock.h"
#include "daemon/process/log.h"
#include "daemon/link/peer_hello.h"
#include "daemon/link/peer_link.h"
#include "daemon/link/peer_link_priv.h"
#include "daemon/process/store.h"
#include "daemon/process/log_limit.h"
#include "daemon/link/tls.h"
#include "shm/proto/codec.h"
#include "tests/lib/heap_has.h"
#include "tests/unit/daemon/certificates.h"

enum { LIMIT_S = 300, MAX_NODES = 4 };

/* ---- the captured log ------------------------------------------------------------------- */

static char log_text[64 << 10];

void log_write(enum conf_log_level level, const char *fmt, ...)
{
    size_t used = strlen(log_text);
    va_list ap;

    if (level == CONF_LOG_DEBUG)
        return;
    va_start(ap, fmt);
    vsnprintf(log_text + used, sizeof(log_text) - used, fmt, ap);
    va_end(ap);
    used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "\n");
}

bool log_enabled(enum conf_log_level level)
{
    return level != CONF_LOG_DEBUG;
}

static unsigned log_count(const char *what)
{
    unsigned n = 0;

    for (const char *at = log_text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

/* ---- nodes ------------------------------------------------------------------------------ */

struct node {
    struct conf conf;
    struct conf_node nodes[MAX_NODES];
    struct sock_addr addrs[MAX_NODES];
    uint64_t incarnation;
    struct conf_keys keys;
    struct tls_identity *identity; /* for the next start, which takes it */
    struct peer_links *links;
    char *error;
    unsigned ups, downs, msgs, vacant;
    unsigned last_node;
    struct msg_peer_hello hello;
    uint64_t seq;
    uint32_t commit_size;
    char down_text[MSG_TEXT_MAX];
    bool refused;
};

struct world {
    struct event_base *base;
    struct event *limit;
    struct node node[MAX_NODES];
    uint16_t port[MAX_NODES];
    int reserved[MAX_NODES]; /* bound to it, not listening: nobody else is given it */
};

static void on_up(void *arg, unsigned node, const struct msg *hello)
{
    struct node *n = arg;

    n->ups++;
    n->last_node = node;
    n->hello = hello->peer_hello;
}

static void on_msg(void *arg, unsigned node, const struct msg *msg)
{
    struct node *n = arg;

    n->msgs++;
    n->last_node = node;
    if (msg->type == MSG_HEARTBEAT)
        n->seq = msg->heartbeat.seq;
    if (msg->type == MSG_COMMIT)
        n->commit_size = msg->commit.size;
}

static void on_down(void *arg, unsigned node, bool refused, const char *text)
{
    struct node *n = arg;

    n->refused = refused;

    n->downs++;
    n->last_node = node;
    snprintf(n->down_text, sizeof(n->down_text), "%s", text);
}

static void on_vacant(void *arg, unsigned node)
{
    struct node *n = arg;

    n->vacant++;
    n->last_node = node;
}

static const struct peer_links_ops ops = {
    .up = on_up, .msg = on_msg, .down = on_down, .vacant = on_vacant};

static void too_late(evutil_socket_t fd, short what, void *arg)
{
    fail_msg("nothing more happened within %d s; the log says:\n%s", LIMIT_S, log_text);
}

#define run_until(w, condition)                                                                    \
    do {                                                                                           \
        while (!(condition))                                                                       \
            world_turn(w);                                                                         \
    } while (0)

static void world_turn(struct world *w)
{
    event_base_loop(w->base, EVLOOP_ONCE);
    for (unsigned i = 0; i < MAX_NODES; i++)
        if (w->node[i].links)
            peer_links_turn(w->node[i].links);
}

/* Who listens there later may: both say SO_REUSEADDR. Without it a stranger's own end, which gets
 * any port that is free, would once in some hundred runs be the port of a node to come. */
static void reserve_port(struct world *w, unsigned i)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    socklen_t len = sizeof(sin);

    assert_return_code(bind(fd, (struct sockaddr *)&sin, len), errno);
    assert_return_code(getsockname(fd, (struct sockaddr *)&sin, &len), errno);
    assert_return_code(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), errno);
    w->port[i] = ntohs(sin.sin_port);
    w->reserved[i] = fd;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct timeval tv = {.tv_sec = LIMIT_S};

    signal(SIGPIPE, SIG_IGN);
    log_text[0] = '\0';
    w->base = event_base_new();
    w->limit = evtimer_new(w->base, too_late, w);
    evtimer_add(w->limit, &tv);
    for (unsigned i = 0; i < MAX_NODES; i++)
        reserve_port(w, i);
    *state = w;
    return 0;
}

static void node_stop(struct node *n)
{
    n->links = peer_links_free(n->links);
    free(n->error);
    n->error = NULL;
}

static int teardown(void **state)
{
    struct world *w = *state;

    for (unsigned i = 0; i < MAX_NODES; i++) {
        node_stop(&w->node[i]);
        close(w->reserved[i]);
    }
    event_free(w->limit);
    event_base_free(w->base);
    free(w);
    return 0;
}

/* @names: one letter per node, sorted; @self: which of them this is. Node x listens on
 * port[i] where i is its place in @names. */
static struct node *node_make(struct world *w, unsigned i, const char *names, char self)
{
    struct node *n = &w->node[i];
    const char *why;

    snprintf(n->conf.cluster, sizeof(n->conf.cluster), "test");
    snprintf(n->conf.file, sizeof(n->conf.file), "commd.yaml");
    n->conf.node_timeout_ms = 3000;
    n->conf.nodes = n->nodes;
    n->conf.nnodes = (unsigned)strlen(names);
    n->incarnation = 1000 + i;
    n->keys.n = 1;
    memset(n->keys.key[0], 7, CONF_KEY_BYTES);
    for (unsigned k = 0; names[k]; k++) {
        snprintf(n->nodes[k].name, sizeof(n->nodes[k].name), "%c", names[k]);
        snprintf(n->nodes[k].address, sizeof(n->nodes[k].address), "127.0.0.1");
        n->nodes[k].port = w->port[k];
        if (names[k] == self) {
            n->conf.self = k;
            snprintf(n->conf.node, sizeof(n->conf.node), "%c", self);
        }
    }
    for (unsigned k = 0; names[k]; k++)
        assert_int_equal(sock_resolve("127.0.0.1", n->nodes[k].port, &n->addrs[k], &why), 0);
    return n;
}

static int node_start(struct world *w, struct node *n)
{
    struct peer_links_config config = {
        .base = w->base,
        .conf = &n->conf,
        .addrs = n->addrs,
        .incarnation = n->incarnation,
        .keys = &n->keys,
        .identity = steal_ptr(n->identity),
        .ops = &ops,
        .arg = n,
    };

    for (unsigned k = 0; k < n->conf.nnodes; k++)
        ((struct sockaddr_in *)&n->addrs[k].sa)->sin_port = htons(n->nodes[k].port);
    return peer_links_new(&config, &n->links, &n->error);
}

/* A test may get no core for longer than nodes and strangers have for a handshake. */
static void node_is_patient(struct node *n)
{
    n->links->deadline_ms = LIMIT_S * 1000;
}

static struct node *node_up(struct world *w, unsigned i, const char *names, char self)
{
    struct node *n = node_make(w, i, names, self);

    assert_int_equal(node_start(w, n), 0);
    node_is_patient(n);
    return n;
}

/* ---- strangers -------------------------------------------------------------------------- */

/* A plain TCP connection from @source. */
static int stranger(const char *source, uint16_t port)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    inet_pton(AF_INET, source, &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(port);
    assert_return_code(bind(fd, (struct sockaddr *)&from, sizeof(from)), errno);
    assert_return_code(connect(fd, (struct sockaddr *)&to, sizeof(to)), errno);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static bool is_closed(int fd)
{
    char buf[256];
    ssize_t n;

    do
        n = recv(fd, buf, sizeof(buf), 0); /* an alert may come first */
    while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

/* ---- tests ------------------------------------------------------------------------------ */

static void two_nodes_link_and_talk(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg beat = {.type = MSG_HEARTBEAT}, commit = {.type = MSG_COMMIT};
    char nodes[1][MSG_NAME_MAX] = {"a"};

    run_until(w, a->ups && b->ups);
    assert_int_equal(a->last_node, 1);
    assert_string_equal(a->hello.node, "b");
    assert_string_equal(a->hello.cluster, "test");
    assert_int_equal(a->hello.incarnation, 1001);
    assert_int_equal(b->last_node, 0);
    assert_int_equal(b->hello.incarnation, 1000);

    beat.heartbeat.seq = 41;
    peer_links_send(a->links, 1, &beat);
    beat.heartbeat.seq = 42;
    peer_links_send(b->links, 0, &beat);
    run_until(w, a->msgs && b->msgs);
    assert_int_equal(b->seq, 41);
    assert_int_equal(a->seq, 42);

    /* larger than what may come before the hello, and than a TLS record */
    commit.commit = (struct msg_commit){.group = 1, .epoch = 1, .size = 40000, .nnodes = 1};
    snprintf(commit.commit.name, sizeof(commit.commit.name), "g");
    snprintf(commit.commit.home, sizeof(commit.commit.home), "a");
    commit.commit.nodes = nodes;
    commit.commit.members = calloc(40000, sizeof(*commit.commit.members));
    for (unsigned i = 0; i < 40000; i++)
        commit.commit.members[i] = (struct msg_member){.pid = 1 + i, .join = 1 + i};
    peer_links_send(a->links, 1, &commit);
    free(commit.commit.members);
    run_until(w, b->msgs == 2);
    assert_int_equal(b->commit_size, 40000);

    assert_string_equal(peer_links_error(a->links, 1), "");
    assert_string_equal(log_text, "");
}

/* Neither where they are said nor where they are heard; among others, so that they lie anywhere. */
/* Who connects to it finds that by itself, and who waits for it when it looks. */
static void nothing_listens_at_a_node(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b;

    run_until(w, a->vacant);
    assert_int_equal(a->last_node, 1);
    node_stop(a);
    b = node_up(w, 1, "ab", 'b');
    assert_int_equal(b->vacant, 0);
    peer_links_look(b->links, 0);
    run_until(w, b->vacant);
    assert_int_equal(b->last_node, 0);
    assert_int_equal(b->downs, 0);
}

/* peer_links_look() of another node: no line in the log, and nothing is counted. */
static void who_looks_is_not_refused(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b');
    int fd = stranger("127.0.0.1", w->port[1]);

    close(fd);
    fd = stranger("127.0.0.1", w->port[1]);
    assert_int_equal(write(fd, "GET /metrics\r\n", 14), 14);
    run_until(w, is_closed(fd));
    close(fd);
    assert_int_equal(peer_links_counts(b->links)->refused, 1);
    assert_null(strstr(log_text, "closed"));
}

static void tokens_do_not_stay(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg said = {.type = MSG_ENGINE_STATE}, beat = {.type = MSG_HEARTBEAT};
    uint8_t token[32];

    if (!heap_is_seen())
        skip();
    memset(token, 0xc5, sizeof(token));
    memset(said.engine_state.token, 0xc5, 32);
    hide(token, sizeof(token));
    said.engine_state.engine = 1;
    run_until(w, a->ups && b->ups);
    for (unsigned i = 0; i < 1000; i++) {
        peer_links_send(a->links, 1, i % 3 ? &beat : &said);
        if (i % 20 == 0)
            run_until(w, b->msgs == i + 1);
    }
    for (unsigned i = 0; i < 100; i++) /* in pieces that nothing else overwrites wholly */
        peer_links_send(a->links, 1, &said);
    run_until(w, b->msgs == 1100);
    assert_int_equal(heap_has(token), 0);
}

/* A pass of the loop brings one record: small messages that are sent together share it. */
static void small_messages_share_records(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg beat = {.type = MSG_HEARTBEAT};
    unsigned passes = 0;

    run_until(w, a->ups && b->ups);
    for (unsigned i = 0; i < 4000; i++) {
        beat.heartbeat.seq = i + 1;
        peer_links_send(a->links, 1, &beat);
    }
    for (; b->msgs < 4000; passes++)
        world_turn(w);
    assert_int_equal(b->seq, 4000);
    assert_true(passes < 1000);
}

/* What nodes have sent is taken in several passes of a turn: large messages come in many records.
 */
static void a_turn_takes_more_than_one_record(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg beat = {.type = MSG_HEARTBEAT};

    run_until(w, a->ups && b->ups);
    assert_false(peer_links_more(b->links) && peer_links_more(b->links));
    peer_links_send(a->links, 1, &beat);
    while (!b->msgs)
        event_base_loop(w->base, EVLOOP_ONCE);
    assert_true(peer_links_more(b->links));
    assert_false(peer_links_more(b->links));
}

/* What waits for a node is bounded, small messages and large ones. */
static void who_does_not_read_is_given_up(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg broken = {.type = MSG_BROKEN};

    run_until(w, a->ups && b->ups);
    broken.broken = (struct msg_broken){.group = 1, .cause = CAUSE_NODE_LOST, .rank = -1};
    memset(broken.broken.text, 'x', sizeof(broken.broken.text) - 1);
    for (unsigned i = 0; i < (40u << 20) / sizeof(broken.broken.text); i++)
        peer_links_send(a->links, 1, &broken); /* no turn comes in between */
    run_until(w, a->downs);
    assert_string_equal(a->down_text, "it does not read what we send");
}

/* The socket that a commd before us, or a socket unit, has left with the service manager. */
static void the_port_may_be_open_already(void **state)
{
    struct world *w = *state;
    struct sockaddr_in sin = {.sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port = htons(w->port[1])};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct node *a, *b;
    char pid[16];

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    assert_return_code(bind(fd, (struct sockaddr *)&sin, sizeof(sin)), errno);
    assert_return_code(listen(fd, 8), errno);
    snprintf(pid, sizeof(pid), "%d", getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "60", 1); /* those that are not it, or nothing at all, are left alone */
    store_begin();
    b = node_up(w, 1, "ab", 'b');
    a = node_up(w, 0, "ab", 'a');
    run_until(w, a->ups && b->ups);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void a_stopping_node_sends_what_it_has(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg broken = {.type = MSG_BROKEN};

    run_until(w, a->ups && b->ups);
    broken.broken = (struct msg_broken){.group = 1, .cause = CAUSE_NODE_LOST, .rank = -1};
    for (unsigned i = 0; i < 100; i++)
        peer_links_send(a->links, 1, &broken);
    peer_links_drain(a->links);
    run_until(w, peer_links_idle(a->links));
    run_until(w, b->downs);
    assert_int_equal(b->msgs, 100);
    assert_string_equal(b->down_text, "its commd ended the link");
    assert_string_equal(peer_links_error(b->links, 0), "its commd ended the link");

    node_stop(a); /* and comes back */
    assert_int_equal(node_start(w, a), 0);
    run_until(w, b->ups == 2);
    assert_string_equal(peer_links_error(b->links, 0), "");
}

/* A reload finds a link that is closing already. */
static void new_keys_while_a_node_stops(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    const struct conf_keys none_in_common = {.n = 1, .key[0] = "n"};
    struct peer_links_keys names;

    run_until(w, a->ups && b->ups);
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.key));
    run_until(w, (peer_links_keys(b->links, 0, &names), *names.key));
    peer_links_drain(a->links); /* nothing is unsent: it is closing now */
    assert_int_equal(peer_links_set_keys(a->links, &none_in_common, NULL), 0);
    run_until(w, peer_links_idle(a->links) && b->downs);
    assert_string_equal(b->down_text, "its commd ended the link");
    assert_int_equal(a->ups + b->ups, 2);
}

/* Other links may live on for a while, and the clock: what is said then goes nowhere. */
static void a_node_that_stops_says_no_more(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    struct msg beat = {.type = MSG_HEARTBEAT};

    run_until(w, a->ups && b->ups && !peer_links_unsent(a->links, 1));
    peer_links_drain(a->links);
    peer_links_send(a->links, 1, &beat);
    run_until(w, peer_links_idle(a->links));
    run_until(w, b->downs);
    assert_int_equal(b->msgs, 0);
    assert_string_equal(b->down_text, "its commd ended the link");
}

static void a_dropped_link_comes_again(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');

    run_until(w, a->ups && b->ups);
    peer_links_drop(a->links, 1, "silent for 3 s");
    assert_string_equal(peer_links_error(a->links, 1), "silent for 3 s");
    run_until(w, a->ups == 2 && b->ups == 2);
    assert_int_equal(a->downs, 0);
    assert_int_equal(b->downs, 1);
    peer_links_drop(b->links, 0, "silent for 3 s");
    peer_links_turn(b->links); /* the daemon drops within a turn, and this ends it */
    run_until(w, a->ups == 3 && b->ups == 3);
    assert_int_equal(a->downs, 1);
    assert_int_equal(b->downs, 1);
}

/* Two nodes have the address that the wrong key came from: which it is, is not known. */
static void wrong_key_from_an_address_of_two(void **state)
{
    struct world *w = *state;
    struct node *a = node_make(w, 0, "abc", 'a'), *c = node_up(w, 2, "abc", 'c');

    a->keys.key[0][31] ^= 1;
    assert_int_equal(node_start(w, a), 0);
    run_until(w, log_count("node \"c\": another cluster key"));
    assert_string_equal(peer_links_error(c->links, 0), "");
    assert_string_equal(peer_links_error(c->links, 1), "");
}

static void wrong_key_is_refused_and_logged_once(void **state)
{
    struct world *w = *state;
    struct node *a = node_make(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');
    const struct peer_links_counts *counts;
    unsigned tries = 0;

    a->keys.key[0][31] ^= 1;
    b->links->peers[0].ask_ms = UINT64_MAX; /* later */
    assert_int_equal(node_start(w, a), 0);
    run_until(w, log_count("node \"b\": another cluster key"));
    /* a's next attempts change nothing: begin it anew a few times rather than wait for them */
    while (tries++ < 5) {
        node_stop(a);
        log_text[0] = tries == 1 ? log_text[0] : '\0';
        assert_int_equal(node_start(w, a), 0);
        run_until(w, peer_links_error(a->links, 1)[0]);
        if (tries == 1)
            assert_int_equal(log_count("connection from 127.0.0.1: wrong cluster key -> refused\n"),
                             1);
    }
    assert_string_equal(log_text, "node \"b\": another cluster key: all nodes need the same "
                                  "cluster.key_file; give it to the one that is wrong, and "
                                  "commctl reload there -> trying again\n");
    assert_string_equal(peer_links_error(b->links, 0), ""); /* who it was is not known yet */
    b->links->peers[0].ask_ms = 0;
    run_until(w, peer_links_error(b->links, 0)[0]);
    assert_int_equal(log_count("node \"a\": another cluster key"), 1);
    assert_int_equal(a->ups + b->ups, 0);
    assert_string_equal(peer_links_error(b->links, 0),
                        "another cluster key: all nodes need the same cluster.key_file; give it to "
                        "the one that is wrong, and commctl reload there");
    counts = peer_links_counts(b->links);
    assert_true(counts->handshakes_failed[PEER_HANDSHAKE_WRONG_KEY] >= 5);
    assert_true(counts->handshakes_failed[PEER_HANDSHAKE_REFUSED_US]);
    assert_int_equal(counts->refused, counts->handshakes_failed[PEER_HANDSHAKE_WRONG_KEY] +
                                          counts->handshakes_failed[PEER_HANDSHAKE_CLOSED]);
    counts = peer_links_counts(a->links);
    assert_true(counts->handshakes_failed[PEER_HANDSHAKE_REFUSED_US]);
    assert_true(counts->refused);
}

/* Any process on the host of a node may come from its address with whatever key. What is known of
 * the node stays, unless the node itself, at its address, has another key. */
static void a_stranger_says_nothing_of_a_node(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b'), *other;
    const uint64_t *failed = peer_links_counts(b->links)->handshakes_failed;

    run_until(w, a->ups && b->ups);
    peer_links_drain(a->links);
    run_until(w, b->downs);
    node_stop(a);
    other = node_make(w, 2, "ab", 'a'); /* not at the address of a */
    other->nodes[0].port = w->port[2];
    other->keys.key[0][31] ^= 1;
    assert_int_equal(node_start(w, other), 0);
    run_until(w, failed[PEER_HANDSHAKE_WRONG_KEY] >= 2);
    assert_string_equal(peer_links_error(b->links, 0), "its commd ended the link");
    node_stop(other);
    a->keys.key[0][31] ^= 1;
    assert_int_equal(node_start(w, a), 0);
    run_until(w, strstr(peer_links_error(b->links, 0), "another cluster key"));
    assert_int_equal(b->ups, 1);
    assert_int_equal(b->downs, 1);
}

static void what_is_no_commd_is_refused_and_logged_once(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b');

    for (unsigned i = 0; i < 3; i++) {
        int fd = stranger("127.0.0.9", w->port[1]);

        assert_int_equal(write(fd, "GET / HTTP/1.0\r\n\r\n", 18), 18);
        run_until(w, is_closed(fd));
        close(fd);
    }
    close(stranger("127.0.0.9", w->port[1])); /* a port scanner */
    run_until(w, log_count("closed before"));
    assert_string_equal(log_text,
                        "connection from 127.0.0.9: no TLS handshake of a commd -> refused\n"
                        "connection from 127.0.0.9: closed before the TLS handshake -> refused\n");
    assert_int_equal(peer_links_counts(b->links)->handshakes_failed[PEER_HANDSHAKE_STRANGER], 4);
    assert_int_equal(peer_links_counts(b->links)->handshakes_failed[PEER_HANDSHAKE_NOT_TLS], 0);
    assert_int_equal(b->ups, 0);
}

/* Who has one IPv6 address has all of its /64, and not one line of the log for each. Nodes that are
 * neighbours there have lines of their own. */
static void strangers_of_a_net_share_their_lines(void **state)
{
    struct world *w = *state;
    struct link guest = {.links = node_up(w, 1, "ab", 'b')->links, .stranger = true};
    char address[] = "fd00:0:0:1::00";
    const char *why;

    for (unsigned i = 0; i < 100; i++) {
        snprintf(address, sizeof(address), "fd00:0:0:1::%u", i);
        assert_int_equal(sock_resolve(address, 1, &guest.from, &why), 0);
        link_log_refused(&guest, "kind", "no");
    }
    assert_string_equal(log_text, "connection from fd00:0:0:1::: no -> refused\n");
    for (unsigned i = 0; i < 2; i++) {
        guest.stranger = false;
        link_log_refused(&guest, "kind", "no");
    }
    assert_int_equal(log_count("connection from fd00:0:0:1::99: no -> refused\n"), 1);
    guest.stranger = true;
    assert_int_equal(sock_resolve("fd00:0:0:2::99", 1, &guest.from, &why), 0);
    link_log_refused(&guest, "kind", "no");
    assert_int_equal(log_count("-> refused\n"), 3);
}

static void two_nodes_with_one_name(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b'), *clone;

    run_until(w, a->ups && b->ups);
    clone = node_make(w, 2, "ab", 'a'); /* another machine that was given the name a */
    clone->nodes[0].port = w->port[2];
    assert_int_equal(node_start(w, clone), 0);
    run_until(w, peer_links_error(clone->links, 1)[0]);
    assert_string_equal(log_text,
                        "connection from 127.0.0.1: node \"a\" is linked already, by another "
                        "process: two nodes with one name, or the old one has not ended yet -> "
                        "refused\n"
                        "node \"b\": it refuses us: node \"a\" is linked already, by another "
                        "process: two nodes with one name, or the old one has not ended yet -> "
                        "trying again\n");
    assert_int_equal(a->downs + b->downs + clone->ups, 0);
}

static void the_same_process_connects_again(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b'), *again;

    run_until(w, a->ups && b->ups);
    again = node_make(w, 2, "ab", 'a');
    again->nodes[0].port = w->port[2];
    again->incarnation = a->incarnation;
    assert_int_equal(node_start(w, again), 0);
    run_until(w, again->ups);
    assert_int_equal(b->ups, 2);
    assert_int_equal(b->downs, 1);
    assert_string_equal(b->down_text, "it connected again");
    assert_string_equal(log_text, "");
}

static void another_cluster_with_the_same_key(void **state)
{
    struct world *w = *state;
    struct node *a = node_make(w, 0, "ab", 'a'), *b = node_up(w, 1, "ab", 'b');

    snprintf(a->conf.cluster, sizeof(a->conf.cluster), "other");
    assert_int_equal(node_start(w, a), 0);
    run_until(w, peer_links_error(a->links, 1)[0]);
    assert_string_equal(
        log_text,
        "connection from 127.0.0.1: it belongs to cluster \"other\", node \"b\" to cluster "
        "\"test\": correct cluster.name, or the address in cluster.nodes -> refused\n"
        "node \"b\": it refuses us: it belongs to cluster \"other\", node \"b\" to cluster "
        "\"test\": correct cluster.name, or the address in cluster.nodes -> trying again\n");
    assert_int_equal(a->ups + b->ups, 0);
}

static void an_address_written_to_the_wrong_node(void **state)
{
    struct world *w = *state;
    struct node *a = node_make(w, 0, "abc", 'a'), *c = node_up(w, 2, "abc", 'c');

    a->nodes[1].port = w->port[2]; /* b's address is c's */
    assert_int_equal(node_start(w, a), 0);
    run_until(w, peer_links_error(a->links, 1)[0] && c->ups);
    assert_int_equal(log_count("node \"b\": it refuses us: node \"a\" expects node \"b\" at the "
                               "address of node \"c\": correct cluster.nodes -> trying again\n"),
                     1);
    assert_int_equal(a->ups, 1);
    assert_int_equal(c->ups, 1);
    assert_int_equal(c->downs, 0); /* the good link is not disturbed */
}

static void a_node_that_is_not_ours(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b'), *stray = node_make(w, 0, "Xb", 'X'), *twin;

    assert_int_equal(node_start(w, stray), 0);
    run_until(w, peer_links_error(stray->links, 1)[0]);
    assert_string_equal(peer_links_error(stray->links, 1),
                        "it refuses us: it calls itself node \"X\", which is not in cluster.nodes "
                        "of node \"b\"");
    twin = node_make(w, 2, "bc", 'b'); /* c's address is b's: it meets itself */
    twin->nodes[0].port = w->port[2];
    twin->nodes[1].port = w->port[1];
    assert_int_equal(node_start(w, twin), 0);
    run_until(w, peer_links_error(twin->links, 1)[0]);
    assert_string_equal(peer_links_error(twin->links, 1),
                        "it refuses us: it calls itself node \"b\", which is this node: two nodes "
                        "with one name");
    assert_int_equal(b->ups, 0);
}

static void a_flood_of_half_open_connections(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b'), *a;
    unsigned open = 0;
    int fd[80];

    for (unsigned i = 0; i < 80; i++)
        fd[i] = stranger("127.0.0.9", w->port[1]);
    run_until(w, log_count("64 connections wait already"));
    run_until(w, is_closed(fd[15])); /* the oldest had to go */
    assert_int_equal(recv(fd[14], &(char){0}, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET); /* the kernel keeps nothing of them, either */
    for (unsigned i = 0; i < 80; i++)
        open += !is_closed(fd[i]);
    assert_int_equal(open, 64);
    a = node_up(w, 0, "ab", 'a'); /* a node's address is let in, too */
    run_until(w, a->ups && b->ups);
    assert_true(is_closed(fd[16])); /* the oldest stranger had to go */
    assert_false(is_closed(fd[17]));
    assert_string_equal(log_text,
                        "connection from 127.0.0.9: 64 connections wait already -> refused\n");
    for (unsigned i = 0; i < 80; i++)
        close(fd[i]);
}

/* A node behind a crowd that waits to be accepted need not ask for its connection again. */
static void a_crowd_may_queue(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b'), *a;
    int fd[500];

    for (unsigned i = 0; i < ARRAY_LEN(fd);
         i++) /* nobody accepts: this thread is the node's, too */
        fd[i] = stranger("127.0.0.9", w->port[1]);
    a = node_up(w, 0, "ab", 'a');
    run_until(w, a->ups && b->ups);
    assert_string_equal(peer_links_error(a->links, 1), "");
    for (unsigned i = 0; i < ARRAY_LEN(fd); i++)
        close(fd[i]);
}

/* A node that has several addresses may come from one that is not in cluster.nodes. */
static void a_flood_beside_another_address(void **state)
{
    struct world *w = *state;
    int fd[200], other;

    node_up(w, 1, "ab", 'b');
    for (unsigned i = 0; i < 80; i++)
        fd[i] = stranger("127.0.0.9", w->port[1]);
    run_until(w, is_closed(fd[15]));
    other = stranger("127.0.1.1", w->port[1]);
    run_until(w, is_closed(fd[16])); /* made room */
    for (unsigned i = 80; i < 200; i++)
        fd[i] = stranger("127.0.0.9", w->port[1]);
    run_until(w, is_closed(fd[16 + 120]));
    assert_false(is_closed(other)); /* though it is the oldest now: its address has but this */
    close(other);
    for (unsigned i = 0; i < 200; i++)
        close(fd[i]);
}

/* What a node says first; it can be repeated by who has heard it. */
static int first_hello(struct node *node, uint8_t *buf, size_t len)
{
    struct tls *tls;
    SSL *ssl;
    int n;

    assert_int_equal(tls_new(&node->keys, NULL, &tls), 0);
    ssl = tls_session(tls, false, 0);
    SSL_set_connect_state(ssl);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    assert_int_equal(SSL_do_handshake(ssl), -1);
    n = BIO_read(SSL_get_wbio(ssl), buf, (int)len);
    assert_true(n > 0);
    SSL_free(ssl);
    tls_free(tls);
    return n;
}

/* Whoever repeats what a node has said gets an answer, and keeps no node out by that. */
static void a_flood_of_repeated_hellos(void **state)
{
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b'), *a;
    uint8_t hello[2048];
    int fd[64], len = first_hello(b, hello, sizeof(hello));

    for (unsigned i = 0; i < 64; i++) {
        fd[i] = stranger("127.0.0.9", w->port[1]);
        assert_int_equal(write(fd[i], hello, (size_t)len), len);
        run_until(w, recv(fd[i], &(char){0}, 1, MSG_PEEK) == 1);
    }
    a = node_up(w, 0, "ab", 'a');
    run_until(w, a->ups && b->ups);
    for (unsigned i = 0; i < 64; i++)
        close(fd[i]);
}

/* Users of a node's machine come from its address: they do not keep the node itself out. */
static void a_flood_from_a_nodes_address(void **state)
{
    static const uint8_t part[] = {0x16, 3, 1, 2, 0, 1, 0};
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b'), *a;
    int fd[80];

    for (unsigned i = 0; i < 80; i++) {
        fd[i] = stranger("127.0.0.1", w->port[1]);
        if (i < 40) /* the first 40 begin a handshake */
            assert_int_equal(write(fd[i], part, sizeof(part)), sizeof(part));
    }
    run_until(w, is_closed(fd[40 + 15])); /* the oldest silent ones had to go */
    for (unsigned i = 0; i < 40; i++)
        assert_false(is_closed(fd[i]));
    a = node_up(w, 0, "ab", 'a');
    run_until(w, a->ups && b->ups);
    assert_false(is_closed(fd[0]));
    assert_string_equal(log_text,
                        "connection from 127.0.0.1: 64 connections wait already -> refused\n");
    for (unsigned i = 0; i < 80; i++)
        close(fd[i]);
}

static void silent_connections_are_closed(void **state)
{
    struct world *w = *state;
    int fd;

    assert_int_equal(node_start(w, node_make(w, 1, "ab", 'b')), 0);
    fd = stranger("127.0.0.9", w->port[1]);
    run_until(w, is_closed(fd));
    assert_string_equal(log_text,
                        "connection from 127.0.0.9: no TLS handshake within 2 s -> refused\n");
    close(fd);
}

/* Keys that begin with each of @bytes, a key for each. */
static struct conf_keys keys_of(const char *bytes)
{
    struct conf_keys keys = {.n = (unsigned)strlen(bytes)};

    for (unsigned i = 0; i < keys.n; i++)
        memset(keys.key[i], bytes[i], CONF_KEY_BYTES);
    return keys;
}

/* While the operator goes from key o to key n: who has one in common links, whoever offers what
 * first, and each knows what the other has. */
static void two_keys(void **state)
{
    static const char *const sets[] = {"o", "n", "on", "no"};
    struct world *w = *state;

    for (unsigned i = 0; i < 16; i++) {
        const char *mine = sets[i / 4], *theirs = sets[i % 4];
        struct node *a = node_make(w, 0, "ab", 'a'), *b = node_make(w, 1, "ab", 'b');
        struct peer_links_keys a_of_b, b_of_b, b_of_a;

        a->ups = b->ups = 0;
        a->keys = keys_of(mine);
        b->keys = keys_of(theirs);
        assert_int_equal(node_start(w, b), 0);
        assert_int_equal(node_start(w, a), 0);
        if (strpbrk(mine, theirs)) {
            run_until(w, a->ups && b->ups);
            run_until(w, (peer_links_keys(a->links, 1, &a_of_b), *a_of_b.key) &&
                             (peer_links_keys(b->links, 0, &b_of_a), *b_of_a.key));
            peer_links_keys(b->links, 1, &b_of_b);
            assert_string_equal(a_of_b.key, b_of_b.key);
            assert_string_equal(a_of_b.other, b_of_b.other);
            assert_string_equal(a_of_b.link, b_of_a.link);
            assert_int_equal(strlen(a_of_b.link), 8);
            if (mine[0] == theirs[0] || !theirs[1]) /* a connects */
                assert_string_equal(a_of_b.link, b_of_b.key);
        } else {
            run_until(w, peer_links_error(a->links, 1)[0]);
            assert_int_equal(a->ups + b->ups, 0);
            peer_links_keys(a->links, 1, &a_of_b);
            assert_string_equal(a_of_b.key, "");
        }
        node_stop(a);
        node_stop(b);
    }
}

/* A link that is up stays when the keys change, while its key is one of them; then it is made anew,
 * unless there would be none. */
static void keys_that_change(void **state)
{
    struct world *w = *state;
    struct node *a = node_make(w, 0, "ab", 'a'), *b = node_make(w, 1, "ab", 'b');
    struct conf_keys both = keys_of("no"), new = keys_of("n"), third = keys_of("t");
    struct peer_links_keys names;
    uint8_t secret[2][32];
    char old[16];

    a->keys = b->keys = keys_of("o");
    assert_int_equal(node_start(w, b), 0);
    assert_int_equal(node_start(w, a), 0);
    run_until(w, a->ups && b->ups);
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.key));
    snprintf(old, sizeof(old), "%s", names.link);
    assert_int_equal(peer_links_set_keys(b->links, &both, NULL), 0);
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.other));
    assert_string_equal(names.other, old);
    assert_string_equal(names.link, old);
    assert_int_equal(peer_links_set_keys(a->links, &both, NULL), 0);
    run_until(w, (peer_links_keys(b->links, 0, &names), *names.other));
    assert_int_equal(a->downs + b->downs, 0);
    assert_int_equal(peer_links_export(a->links, 1, secret[0]), 0);
    assert_int_equal(peer_links_export(b->links, 0, secret[1]), 0);
    assert_memory_equal(secret[0], secret[1], 32);
    assert_int_equal(peer_links_set_keys(b->links, &new, NULL), 0);
    run_until(w, a->ups == 2 && b->ups == 2);
    assert_int_equal(peer_links_export(a->links, 1, secret[1]), 0);
    assert_memory_not_equal(secret[0], secret[1], 32); /* of this session */
    assert_int_equal(peer_links_mix(a->links, 1, secret[0]), 0);
    assert_memory_not_equal(secret[0], secret[1], 32);
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.key));
    assert_string_equal(names.link, names.key);
    assert_string_not_equal(names.link, old);
    assert_int_equal(peer_links_set_keys(a->links, &new, NULL), 0);
    run_until(w, (peer_links_keys(b->links, 0, &names), *names.key && !*names.other));
    assert_int_equal(peer_links_set_keys(a->links, &third, NULL), 0); /* none in common */
    run_until(w, (peer_links_keys(b->links, 0, &names), strcmp(names.key, names.link)));
    assert_int_equal(a->ups + b->ups, 4);
    assert_int_equal(peer_links_set_keys(b->links, &third, NULL), 0);
    run_until(w, a->ups == 3 && b->ups == 3);
}

/* A key that is left out shuts out at once who has it, whatever that node says of its keys. */
static void a_key_that_is_left_out(void **state)
{
    const struct conf_keys both = keys_of("no"), new = keys_of("n"), third = keys_of("t");
    struct world *w = *state;
    struct node *a = node_make(w, 0, "ab", 'a'), *b = node_make(w, 1, "ab", 'b');
    struct peer_links_keys names;

    a->keys = both;
    b->keys = keys_of("o");
    assert_int_equal(node_start(w, b), 0);
    assert_int_equal(node_start(w, a), 0);
    run_until(w, a->ups && b->ups);
    assert_int_equal(peer_links_set_keys(b->links, &third, NULL), 0); /* none in common */
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.key));
    run_until(w, (peer_links_keys(a->links, 1, &names), strcmp(names.key, names.link)));
    assert_int_equal(a->downs + b->downs, 0);
    assert_int_equal(peer_links_set_keys(a->links, &new, NULL), 0);
    run_until(w, a->downs && b->downs);
    assert_string_equal(a->down_text, "made by a cluster key that counts no more");
    assert_false(a->refused); /* it may be waited for */
    run_until(w, strstr(peer_links_error(a->links, 1), "another cluster key"));
    assert_int_equal(a->ups + b->ups, 2);
}

/* What has begun by keys that are replaced begins anew, before and after the handshake has ended; a
 * reload that changes nothing lets it go on. */
static void handshakes_while_the_keys_change(void **state)
{
    const struct conf_keys old = keys_of("o"), new = keys_of("no");
    struct world *w = *state;

    for (unsigned i = 0; i < 2; i++) {
        struct node *b = node_make(w, 1, "ab", 'b');
        struct tls *tls;
        SSL *ssl;
        int fd;

        b->keys = old;
        assert_int_equal(node_start(w, b), 0);
        fd = stranger("127.0.0.1", w->port[1]);
        assert_int_equal(tls_new(&old, NULL, &tls), 0);
        ssl = tls_session(tls, false, 0);
        SSL_set_connect_state(ssl);
        SSL_set_fd(ssl, fd);
        assert_int_equal(SSL_do_handshake(ssl), -1);
        if (i == 0) {
            char first;

            run_until(w, recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0);
        } else {
            run_until(w, SSL_do_handshake(ssl) == 1);
            world_turn(w);
        }
        assert_int_equal(peer_links_set_keys(b->links, &old, NULL), 0);
        peer_links_turn(b->links);
        event_base_loop(w->base, EVLOOP_NONBLOCK);
        assert_false(is_closed(fd));
        assert_int_equal(peer_links_set_keys(b->links, &new, NULL), 0);
        peer_links_turn(b->links);
        event_base_loop(w->base, EVLOOP_NONBLOCK);
        assert_true(is_closed(fd));
        SSL_free(ssl);
        close(fd);
        tls_free(tls);
        node_stop(b);
    }
}

/* ---- certificates ------------------------------------------------------------------------ */

/* The CA of a test, and a certificate for each of the letters a, b and c. */
struct certified {
    struct signed_key ca, of[3];
};

static void certified_init(struct certified *all)
{
    all->ca = make_certificate(NULL, "the CA", (struct wish){.ca = true, .until = 99 * DAY});
    for (unsigned i = 0; i < 3; i++) {
        const char *const names[] = {"DNS:a", "DNS:b", "DNS:c"};

        all->of[i] = make_certificate(&all->ca, names[i] + 4,
                                      (struct wish){.names = names[i], .until = 99 * DAY});
    }
}

static void certified_fini(struct certified *all)
{
    signed_key_free(&all->ca);
    for (unsigned i = 0; i < 3; i++)
        signed_key_free(&all->of[i]);
}

/* The identity of @letter; with @revoked, another letter, on its list. */
static struct tls_identity *identity(const struct certified *all, char letter, char revoked)
{
    const char node[] = {letter, '\0'};
    X509_CRL *list = NULL;

    if (revoked)
        list = make_list(&all->ca, all->of[revoked - 'a'].certificate, DAY);
    return identity_of(&all->of[letter - 'a'], &all->ca, list, node);
}

/* Node @self of a and b, which has the certificate of @letter, and no key. */
static struct node *certified_up(struct world *w, const struct certified *all, char self,
                                 char letter)
{
    struct node *n = node_make(w, (unsigned)(self - 'a'), "ab", self);

    n->keys.n = 0;
    n->identity = identity(all, letter, '\0');
    assert_int_equal(node_start(w, n), 0);
    return n;
}

#define NAMES_C(node)                                                                              \
    "its certificate names node \"c\", not node \"" node                                           \
    "\": correct cluster.nodes, or give it a "                                                     \
    "certificate with subjectAltName DNS:" node

/* A node with a certificate that holds says that it is another one: who calls. */
static void a_caller_with_the_certificate_of_another(void **state)
{
    struct world *w = *state;
    struct certified all;
    struct node *a, *b;

    certified_init(&all);
    b = certified_up(w, &all, 'b', 'b');
    a = certified_up(w, &all, 'a', 'c');
    run_until(w, peer_links_error(a->links, 1)[0]);
    assert_string_equal(peer_links_error(a->links, 1), "it refuses us: " NAMES_C("a"));
    assert_int_equal(log_count("connection from 127.0.0.1: " NAMES_C("a") " -> refused\n"), 1);
    assert_int_equal(a->ups + b->ups, 0);
    certified_fini(&all);
}

/* And who is called. */
static void an_answer_with_the_certificate_of_another(void **state)
{
    struct world *w = *state;
    struct certified all;
    struct node *a, *b;

    certified_init(&all);
    b = certified_up(w, &all, 'b', 'c');
    a = certified_up(w, &all, 'a', 'a');
    run_until(w, log_count("it refuses us"));
    assert_string_equal(peer_links_error(a->links, 1), NAMES_C("b"));
    assert_string_equal(peer_links_error(b->links, 0), "it refuses us: " NAMES_C("b"));
    assert_int_equal(log_count("node \"b\": " NAMES_C("b") " -> trying again\n"), 1);
    assert_int_equal(a->ups + b->ups, 0);
    certified_fini(&all);
}

/* One of the two reads a list with the other: the link ends for good, and the other stays out. */
static void a_certificate_that_is_revoked(void **state)
{
    const struct conf_keys none = {0};
    struct world *w = *state;
    struct certified all;

    certified_init(&all);
    for (unsigned i = 0; i < 2; i++) {
        struct node *b = certified_up(w, &all, 'b', 'b'), *a = certified_up(w, &all, 'a', 'a');
        struct node *one = i ? b : a, *other = i ? a : b;
        unsigned node = i ? 0 : 1;

        a->ups = b->ups = a->downs = b->downs = 0;
        log_text[0] = '\0';
        run_until(w, a->ups && b->ups);
        assert_int_equal(
            peer_links_set_keys(one->links, &none, identity(&all, i ? 'b' : 'a', i ? 'a' : 'b')),
            0);
        assert_int_equal(one->downs, 0); /* not from within the call */
        run_until(w, one->downs && other->downs);
        assert_true(one->refused);
        assert_string_equal(one->down_text, "its certificate is revoked");
        assert_string_equal(other->down_text,
                            i ? "it refuses the certificate of node a: it is revoked"
                              : "it refuses the certificate of node b: it is revoked");
        assert_false(other->refused); /* it may get a new one */
        run_until(w, log_count("it refuses our certificate: revoked"));
        run_until(w, strstr(peer_links_error(one->links, node), "is revoked"));
        assert_true(log_count(", is revoked -> ") <= 1); /* again and again, and said once */
        assert_int_equal(a->ups + b->ups, 2);
        node_stop(a);
        node_stop(b);
    }
    certified_fini(&all);
}

/* Node a with the certificate of @letter and the list of @revoked, in place @i, which is where the
 * others expect it if that is 0. Its own connections to b come to nothing, unless it @reaches b. */
static struct node *a_certified(struct world *w, const struct certified *all, unsigned i,
                                char letter, char revoked, bool reaches)
{
    struct node *n = node_make(w, i, "ab", 'a');

    n->keys.n = 0;
    n->identity = identity(all, letter, revoked);
    n->nodes[0].port = w->port[i];
    if (!reaches)
        n->nodes[1].port = w->port[MAX_NODES - 1];
    assert_int_equal(node_start(w, n), 0);
    return n;
}

/* Somebody on the host of a node is refused by its certificate, or refuses ours: what that says of
 * the node counts only if the node itself, at its address, says the same. */
static void what_certificates_say_is_asked_of_the_node(void **state)
{
    static const struct {
        char letter, revoked; /* of the one who is there */
        const char *logged, *told;
    } rows[] = {
        {'c', '\0', "connection from 127.0.0.1: its certificate, of \"c\", is revoked -> refused",
         "its certificate, of \"c\", is revoked"},
        {'a', 'b', "connection from 127.0.0.1: it refuses our certificate: revoked -> refused",
         "it refuses the certificate of node b: revoked"},
    };
    struct world *w = *state;
    struct certified all;

    certified_init(&all);
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct node *b = node_make(w, 1, "ab", 'b'), *a;
        const uint64_t *failed;

        log_text[0] = '\0';
        b->downs = 0;
        b->keys.n = 0;
        b->identity = identity(&all, 'b', 'c');
        assert_int_equal(node_start(w, b), 0);
        failed = &peer_links_counts(b->links)->handshakes_failed[PEER_HANDSHAKE_CERTIFICATE];
        a_certified(w, &all, 2, rows[i].letter, rows[i].revoked, true);
        run_until(w, *failed >= 2); /* nobody is at the address of a */
        assert_int_equal(log_count(rows[i].logged), 1);
        a = a_certified(w, &all, 0, 'a', '\0', false);
        run_until(w, log_count("closed before its hello")); /* all was well there */
        assert_int_equal(b->downs, 0);
        node_stop(a);
        a_certified(w, &all, 0, rows[i].letter, rows[i].revoked, false);
        run_until(w, b->downs);
        assert_true(b->refused);
        assert_string_equal(b->down_text, rows[i].told);
        assert_int_equal(b->ups, 0);
        for (unsigned k = 0; k < 3; k++)
            node_stop(&w->node[k]);
    }
    certified_fini(&all);
}

/* From the key to certificates: links go on, and end where the key does, to be made anew. */
static void from_the_key_to_certificates(void **state)
{
    const struct conf_keys key = keys_of("o"), none = {0};
    struct world *w = *state;
    struct peer_links_keys names;
    struct certified all;
    struct node *a, *b;

    certified_init(&all);
    a = node_make(w, 0, "ab", 'a');
    b = node_make(w, 1, "ab", 'b');
    a->keys = b->keys = key;
    assert_int_equal(node_start(w, b), 0);
    assert_int_equal(node_start(w, a), 0);
    run_until(w, a->ups && b->ups);
    assert_int_equal(peer_links_set_keys(a->links, &key, identity(&all, 'a', '\0')), 0);
    assert_int_equal(peer_links_set_keys(b->links, &key, identity(&all, 'b', '\0')), 0);
    run_until(w, (peer_links_keys(a->links, 1, &names), !strcmp(names.key, "certificate")));
    assert_int_equal(strlen(names.other), 8);
    assert_string_equal(names.link, names.other); /* it stays */
    assert_int_equal(a->downs + b->downs, 0);
    assert_int_equal(peer_links_set_keys(b->links, &none, identity(&all, 'b', '\0')), 0);
    run_until(w, a->ups == 2 && b->ups == 2);
    assert_string_equal(b->down_text,
                        "made by a cluster key, which counts no more: certificates do");
    assert_false(a->refused || b->refused); /* it may be waited for */
    run_until(w, (peer_links_keys(a->links, 1, &names), *names.key));
    assert_string_equal(names.link, "certificate");
    assert_string_equal(names.other, "");
    assert_int_equal(peer_links_set_keys(a->links, &none, identity(&all, 'a', '\0')), 0);
    assert_int_equal(peer_links_set_keys(a->links, &none, identity(&all, 'a', '\0')), 0); /* new */
    assert_in_range(peer_links_certified_until(a->links), time(NULL) + 98 * DAY,
                    time(NULL) + 99 * DAY);
    peer_links_drop(a->links, 1, "silent for 3 s");
    run_until(w, a->ups == 3 && b->ups == 3);
    certified_fini(&all);
}

/* A link by the last of three proofs stays, though one that comes before it is in common, too. */
static void a_link_by_the_last_of_three_proofs(void **state)
{
    struct timeval soon = {.tv_usec = 300000}; /* links are made anew after 50 ms */
    struct world *w = *state;
    struct node *a = node_make(w, 0, "ab", 'a'), *b = node_make(w, 1, "ab", 'b');
    struct peer_links_keys names;
    struct certified all;

    certified_init(&all);
    a->keys = keys_of("on"); /* a connects, by o */
    b->keys = keys_of("no");
    b->identity = identity(&all, 'b', '\0');
    assert_int_equal(node_start(w, b), 0);
    assert_int_equal(node_start(w, a), 0);
    run_until(w, a->ups && b->ups);
    run_until(w, (peer_links_keys(b->links, 0, &names), *names.key));
    assert_string_equal(names.link, names.key);
    event_base_loopexit(w->base, &soon);
    event_base_loop(w->base, 0);
    assert_int_equal(a->ups + b->ups, 2);
    assert_int_equal(a->downs + b->downs, 0);
    certified_fini(&all);
}

/* A TLS client that knows the key and then breaks the protocol. */
static void with_the_key_but_bad_manners(void **state)
{
    static const char noise[] = "commd? commd!";
    static const char *const said[] = {"protocol error: ", "HEARTBEAT instead of a hello"};
    struct world *w = *state;
    struct node *b = node_up(w, 1, "ab", 'b');

    for (unsigned i = 0; i < 2; i++) {
        struct tls *tls;
        struct bufferevent *bev;
        struct msg beat = {.type = MSG_HEARTBEAT}, answer;
        void *frame;
        size_t len;

        assert_int_equal(tls_new(&b->keys, NULL, &tls), 0);
        bev = bufferevent_openssl_socket_new(w->base, stranger("127.0.0.9", w->port[1]),
                                             tls_session(tls, false, 0), BUFFEREVENT_SSL_CONNECTING,
                                             BEV_OPT_CLOSE_ON_FREE);
        bufferevent_enable(bev, EV_READ | EV_WRITE);
        assert_int_equal(codec_encode(&beat, &frame, &len), 0);
        if (i == 0)
            bufferevent_write(bev, noise, strlen(noise));
        else
            bufferevent_write(bev, frame, len);
        free(frame);
        run_until(w, log_count(said[i]));
        run_until(w, evbuffer_get_length(bufferevent_get_input(bev)) > CODEC_HEADER);
        len = evbuffer_get_length(bufferevent_get_input(bev));
        assert_int_equal(
            codec_decode(evbuffer_pullup(bufferevent_get_input(bev), -1), len, &answer), CODEC_OK);
        assert_int_equal(answer.type, MSG_REFUSED);
        assert_int_equal(answer.refused.cause, CAUSE_PROTOCOL);
        assert_non_null(strstr(answer.refused.text, said[i]));
        msg_fini(&answer);
        bufferevent_free(bev);
        event_base_loop(w->base, EVLOOP_NONBLOCK);
        tls_free(tls);
    }
    assert_int_equal(b->ups + b->msgs, 0);
}

/* A commd of before, which knows the key. */
static struct bufferevent *older(struct world *w, struct tls *tls, int fd, bool server)
{
    enum bufferevent_ssl_state role =
        server ? BUFFEREVENT_SSL_ACCEPTING : BUFFEREVENT_SSL_CONNECTING;
    struct bufferevent *bev = bufferevent_openssl_socket_new(
        w->base, fd, tls_session(tls, server, 0), role, BEV_OPT_CLOSE_ON_FREE);
    struct msg hello = {.type = MSG_PEER_HELLO,
                        .peer_hello = {MSG_VERSION_OLDEST - 1, 77, "test", ""}};
    uint8_t *frame;
    size_t len;

    hello.peer_hello.node[0] = server ? 'b' : 'a';
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    assert_int_equal(codec_encode(&hello, (void **)&frame, &len), 0);
    frame[2] = CODEC_FORMAT - 1;
    bufferevent_write(bev, frame, len);
    free(frame);
    return bev;
}

/* Whichever of the two connects, the newer one says which node is to be upgraded. */
static void another_version(void **state)
{
    struct world *w = *state;
    struct node *a, *b = node_up(w, 1, "ab", 'b');
    struct bufferevent *bev;
    struct tls *tls;
    char said[200];
    int fd;

    assert_int_equal(tls_new(&b->keys, NULL, &tls), 0);
    bev = older(w, tls, stranger("127.0.0.1", w->port[1]), false);
    run_until(w, log_count("refused\n"));
    snprintf(
        said, sizeof(said),
        "it speaks protocol version %d, node \"b\" understands %d to %d: upgrade the older one",
        MSG_VERSION_OLDEST - 1, MSG_VERSION_OLDEST, MSG_VERSION);
    assert_int_equal(log_count(said), 1);
    assert_string_equal(peer_links_error(b->links, 0), said);
    bufferevent_free(bev);
    node_stop(b);

    log_text[0] = '\0';
    assert_return_code(listen(w->reserved[1], 1), errno);
    fcntl(w->reserved[1], F_SETFL, O_NONBLOCK);
    a = node_up(w, 0, "ab", 'a');
    run_until(w, (fd = accept4(w->reserved[1], NULL, NULL, SOCK_NONBLOCK)) >= 0);
    bev = older(w, tls, fd, true);
    run_until(w, log_count("trying again\n"));
    snprintf(
        said, sizeof(said),
        "node \"b\": it speaks protocol version %d, node \"a\" understands %d to %d: upgrade the "
        "older one -> trying again\n",
        MSG_VERSION_OLDEST - 1, MSG_VERSION_OLDEST, MSG_VERSION);
    assert_int_equal(log_count(said), 1);
    assert_int_equal(a->ups + b->ups, 0);
    bufferevent_free(bev);
    tls_free(tls);
}

static void port_in_use(void **state)
{
    struct world *w = *state;
    struct node *a = node_up(w, 0, "ab", 'a'), *second = node_make(w, 2, "ab", 'a');
    char want[512];

    assert_non_null(a->links);
    assert_int_equal(node_start(w, second), -EADDRINUSE);
    snprintf(want, sizeof(want),
             "127.0.0.1 port %u is in use: another commd of this node, or another program; stop "
             "it (ss -ltnp, as root, shows it), or give node \"a\" another port in cluster.nodes",
             w->port[0]);
    assert_string_equal(second->error, want);
}

/* Each rule by itself: over a link another one may refuse the same node. */
static void each_rule_of_a_hello(void **state)
{
    struct msg_peer_hello hello = {
        .version = MSG_VERSION, .cluster = "c", .node = "b", .incarnation = 5};
    const struct peer_hello_view fine = {.self = "a", .cluster = "c", .known = true};
    struct peer_hello_view view = fine;
    char why[512];

    assert_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view.cluster = "d";
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.self = "b";
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.known = false;
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.dialed = "c";
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view.dialed = "b";
    assert_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.wanted = "c";
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.we_connect = true;
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view = fine;
    view.linked = 4;
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    view.linked = 5;
    assert_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    hello.version++; /* it decides whether it understands us */
    assert_null(peer_hello_check(&view, &hello, why, sizeof(why)));
    hello.version = MSG_VERSION_OLDEST - 1;
    assert_non_null(peer_hello_check(&view, &hello, why, sizeof(why)));
}

static void refused_table_is_bounded(void **state)
{
    struct log_limit *t = calloc(1, sizeof(*t));
    unsigned lines = 0;
    char who[32];

    assert_true(log_limit_pass(t, CONF_LOG_WARN, "10.0.0.1", "key", 1000));
    for (unsigned i = 0; i < 10; i++)
        assert_false(log_limit_pass(t, CONF_LOG_WARN, "10.0.0.1", "key", 1000 + i));
    assert_true(log_limit_pass(t, CONF_LOG_WARN, "10.0.0.1", "key", 1000 + LOG_LIMIT_REPEAT_MS));
    log_text[0] = '\0';
    assert_int_equal(log_limit_tell(t, 1000 + LOG_LIMIT_REPEAT_MS), 0);
    assert_string_equal(log_text, "10.0.0.1: 10 more lines left out in 300 s\n");
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(who, sizeof(who), "10.0.1.%u", i);
        lines += log_limit_pass(t, CONF_LOG_WARN, who, "key", 2000 + LOG_LIMIT_REPEAT_MS);
    }
    assert_int_equal(lines, LOG_LIMIT_ENTRIES); /* 63 entries and the others */
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(two_nodes_link_and_talk),
        T(nothing_listens_at_a_node),
        T(who_looks_is_not_refused),
        T(tokens_do_not_stay),
        T(small_messages_share_records),
        T(a_turn_takes_more_than_one_record),
        T(who_does_not_read_is_given_up),
        T(the_port_may_be_open_already),
        T(a_stopping_node_sends_what_it_has),
        T(new_keys_while_a_node_stops),
        T(a_node_that_stops_says_no_more),
        T(a_dropped_link_comes_again),
        T(wrong_key_is_refused_and_logged_once),
        T(wrong_key_from_an_address_of_two),
        T(a_stranger_says_nothing_of_a_node),
        T(what_is_no_commd_is_refused_and_logged_once),
        T(strangers_of_a_net_share_their_lines),
        T(two_nodes_with_one_name),
        T(the_same_process_connects_again),
        T(another_cluster_with_the_same_key),
        T(an_address_written_to_the_wrong_node),
        T(a_node_that_is_not_ours),
        T(a_flood_of_half_open_connections),
        T(a_crowd_may_queue),
        T(a_flood_beside_another_address),
        T(a_flood_of_repeated_hellos),
        T(a_flood_from_a_nodes_address),
        T(silent_connections_are_closed),
        T(two_keys),
        T(keys_that_change),
        T(a_key_that_is_left_out),
        T(handshakes_while_the_keys_change),
        T(a_caller_with_the_certificate_of_another),
        T(an_answer_with_the_certificate_of_another),
        T(a_certificate_that_is_revoked),
        T(what_certificates_say_is_asked_of_the_node),
        T(from_the_key_to_certificates),
        T(a_link_by_the_last_of_three_proofs),
        T(with_the_key_but_bad_manners),
        T(another_version),
        T(port_in_use),
        cmocka_unit_test(each_rule_of_a_hello),
        cmocka_unit_test(refused_table_is_bounded),
#undef T
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
