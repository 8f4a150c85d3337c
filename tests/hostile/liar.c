/* liar.c - a node of the cluster, with its key, that lies. Run by
 * tests/integration/test_hostile.py.
 *
 *   liar --port N --key FILE --seconds N [--seed N] [--group HEX]... [--uid N] [--dial]
 * [--trace]
 *
 * It is "node2" of node0, node1, node2: the greatest name, so the others connect to it. It
 * speaks the protocol between nodes (TLS, hello, heartbeats) by the daemon's own tls.c and
 * codec, and says whatever it likes about groups that it is not in: those of --group, those
 * that it hears of, guesses near them, any others. What it may break is what has a rank on it.
 * It lies neither about its name (the key is one for all nodes, so who has it can be any node)
 * nor with joins under names that the good tenant is just about to use: a node may have a rank
 * of any user, so it may take a pos.
 *
 * With --dial it connects to the port, again and again, instead of listening there: with
 * another key than the cluster's, a stranger that knows what to say. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/link/tls.h"
#include "shm/proto/codec.h"
#include "shm/util/wait.h"
#include "tests/hostile/dice.h"

enum { IDS = 32, HEARTBEAT_MS = 100, BURST = 32, BUFFER = 1 << 20 };

struct liar {
    struct dice dice;
    uint64_t ids[IDS];
    unsigned nids, uid;
    uint64_t incarnation;
    struct msg_engine_state engine; /* of somebody else, as it was told to us */
    uint32_t commits;
    bool trace;
};

struct link {
    SSL *ssl;    /* owned */
    uint8_t *in; /* owned: BUFFER bytes */
    size_t len;
};

/* ---- the link ------------------------------------------------------------------------- */

/* Blocks; the other side reads, or the alarm ends us. */
static bool send_msg(struct link *link, const struct msg *msg)
{
    void *frame;
    size_t len;
    int sent;

    if (codec_encode(msg, &frame, &len))
        return true; /* more than the schema allows: not sent */
    while ((sent = SSL_write(link->ssl, frame, (int)len)) <= 0 &&
           SSL_get_error(link->ssl, sent) == SSL_ERROR_WANT_WRITE)
        poll(&(struct pollfd){.fd = SSL_get_fd(link->ssl), .events = POLLOUT}, 1, 100);
    free(frame);
    return sent > 0;
}

static void learn(struct liar *l, uint64_t id)
{
    l->ids[l->nids++ % IDS] = id;
}

static void hear(struct liar *l, const struct msg *msg)
{
    if (msg->type == MSG_ENGINE_STATE)
        l->engine = msg->engine_state;
    else if (msg->type == MSG_SYNC)
        learn(l, msg->sync.group);
    else if (msg->type == MSG_JOIN)
        learn(l, msg->join.join); /* a number of theirs, of whatever kind */
}

/* False: the link has ended. */
static bool receive(struct liar *l, struct link *link)
{
    int got = SSL_read(link->ssl, link->in + link->len, (int)(BUFFER - link->len)), why;
    size_t need;

    if (got <= 0) {
        why = SSL_get_error(link->ssl, got);
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
    }
    link->len += (size_t)got;
    while (codec_frame_check(link->in, link->len, BUFFER - CODEC_HEADER, &need) == CODEC_OK) {
        struct msg msg;

        if (codec_decode(link->in, need, &msg) == CODEC_OK) {
            hear(l, &msg);
            msg_fini(&msg);
        }
        memmove(link->in, link->in + need, link->len -= need);
    }
    return link->len < BUFFER;
}

/* ---- lies ----------------------------------------------------------------------------- */

static uint64_t id_any(struct liar *l)
{
    uint64_t known = l->nids ? l->ids[dice_below(&l->dice, MIN(l->nids, (unsigned)IDS))] : 7;

    if (dice_one_in(&l->dice, 5))
        return dice_odd(&l->dice);
    return dice_one_in(&l->dice, 3) ? known + dice_below(&l->dice, 7) - 3 : known;
}

/* As core_home.c has it: which incarnation of which node gave a group its number. */
static uint32_t home_tag(uint64_t incarnation)
{
    struct dice d = {incarnation}; /* core_mix() is one roll */

    return (uint32_t)(dice_roll(&d) >> 32);
}

/* Well-formed half of the time: our own group's number, its nodes in order, ourselves the home.
 */
static bool commit(struct liar *l, struct msg_commit *m)
{
    struct dice *d = &l->dice;
    bool formed = dice_one_in(d, 2);

    m->group = formed ? (uint64_t)home_tag(l->incarnation) << 32 | ++l->commits : id_any(l);
    m->epoch = dice_odd(d);
    m->uid = l->uid;
    m->size = 1 + dice_below(d, 4);
    m->nnodes = 1 + dice_below(d, 3);
    snprintf(m->name, sizeof(m->name), dice_one_in(d, 2) ? "good" : "liar-%u", dice_below(d, 50));
    snprintf(m->home, sizeof(m->home), "node%u", formed ? 2 : dice_below(d, 4));
    m->members = calloc(m->size, sizeof(*m->members));
    m->nodes = calloc(m->nnodes, sizeof(*m->nodes));
    if (!m->members || !m->nodes)
        return false;
    for (unsigned i = 0; i < m->nnodes; i++)
        snprintf(m->nodes[i], MSG_NAME_MAX, "node%u",
                 m->nnodes == 3 || formed ? i : dice_below(d, 4));
    for (unsigned i = 0; i < m->size; i++)
        m->members[i] = (struct msg_member){dice_below(d, m->nnodes), dice_below(d, 40000),
                                            1 + dice_below(d, 400), dice_below(d, 4)};
    return true;
}

static void engine_state(struct liar *l, struct msg_engine_state *m)
{
    *m = l->engine; /* the address of another node's engine for ours */
    m->engine = dice_below(&l->dice, 4);
    if (dice_one_in(&l->dice, 2)) {
        m->addr_len = 1 + dice_below(&l->dice, MSG_ADDR_MAX - 1);
        dice_bytes(&l->dice, m->addr, m->addr_len);
        dice_bytes(&l->dice, m->token, sizeof(m->token));
    }
}

/* Any message between nodes. False: no memory. */
static bool lie(struct liar *l, struct msg *ret_msg)
{
    struct dice *d = &l->dice;
    struct msg msg = {.type =
                          MSG_ENGINE_STATE + dice_below(d, MSG_ABSENT_HERE - MSG_ENGINE_STATE + 1)};
    int32_t rank = (int32_t)dice_below(d, 5) - 1;
    bool fine = true;

    switch ((unsigned)msg.type) {
    case MSG_ENGINE_STATE:
        if (dice_one_in(d, 20)) /* each makes the others' engines begin anew with ours */
            engine_state(l, &msg.engine_state);
        else
            msg.type = MSG_HEARTBEAT;
        break;
    case MSG_ENGINE_READY:
        msg.engine_ready = (struct msg_engine_ready){
            dice_one_in(d, 2) ? l->engine.engine : dice_odd(d), dice_below(d, 4)};
        break;
    case MSG_JOIN:
        msg.join.join = dice_odd(d);
        msg.join.uid = dice_one_in(d, 2) ? l->uid : 0;
        msg.join.size = 1 + dice_below(d, 6);
        msg.join.rank = dice_below(d, msg.join.size);
        snprintf(msg.join.name, sizeof(msg.join.name), dice_one_in(d, 4) ? "good" : "liar-%u",
                 dice_below(d, 50));
        break;
    case MSG_JOIN_CANCEL:
        msg.join_cancel.join = dice_one_in(d, 2) ? dice_below(d, 400) : dice_odd(d);
        break;
    case MSG_JOIN_REFUSED:
        msg.join_refused.join = dice_below(d, 400);
        msg.join_refused.cause = 1 + dice_below(d, CAUSE_COUNT - 1);
        msg.join_refused.rank = rank;
        strcpy(msg.join_refused.node, "node0");
        strcpy(msg.join_refused.text, "a lie");
        break;
    case MSG_COMMIT:
        fine = commit(l, &msg.commit);
        break;
    case MSG_GONE:
        msg.gone = (struct msg_gone){id_any(l),
                                     dice_below(d, 4),
                                     (uint32_t)dice_odd(d),
                                     dice_below(d, 40000),
                                     dice_one_in(d, 2) ? CAUSE_LEFT : CAUSE_RANK_LOST,
                                     "a lie"};
        break;
    case MSG_BROKEN:
        msg.broken = (struct msg_broken){
            id_any(l), 1 + dice_below(d, CAUSE_COUNT - 1), rank, 1, "node0", "a lie"};
        break;
    case MSG_SYNC:
        msg.sync.group = id_any(l);
        break;
    case MSG_ASK_ABSENT:
        msg.ask_absent = (struct msg_ask_absent){id_any(l), dice_odd(d), dice_odd(d)};
        break;
    case MSG_ABSENT_HERE:
        msg.absent_here = (struct msg_absent_here){id_any(l), dice_odd(d), 1, 0, "0-3"};
        break;
    }
    *ret_msg = msg;
    return fine;
}

static bool introduce(struct liar *l, struct link *link)
{
    struct msg msg = {.type = MSG_PEER_HELLO,
                      .peer_hello = {MSG_VERSION, l->incarnation, "test", "node2"}};

    return send_msg(link, &msg);
}

/* Never returns. */
static void talk(struct liar *l, struct tls *tls, int fd, bool server)
{
    struct link link = {.ssl = tls_session(tls, server, 0), .in = malloc(BUFFER)};
    uint64_t beat_ms = 0;

    if (!link.ssl || !link.in || !SSL_set_fd(link.ssl, fd) ||
        (server ? SSL_accept(link.ssl) : SSL_connect(link.ssl)) != 1 || !introduce(l, &link))
        _exit(1);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    SSL_set_mode(link.ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_clear_mode(link.ssl, SSL_MODE_ENABLE_PARTIAL_WRITE);
    for (bool up = true; up; up = receive(l, &link)) {
        for (int i = 0; i < BURST && up; i++) {
            struct msg msg = {.type = MSG_HEARTBEAT};

            if (now_ms() >= beat_ms + HEARTBEAT_MS)
                beat_ms = now_ms();
            else if (!lie(l, &msg))
                break;
            if (l->trace)
                fprintf(stderr, "%d %s\n", (int)getpid(), msg_type_name(msg.type));
            up = send_msg(&link, &msg);
            msg_fini(&msg);
        }
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 10);
    }
    _exit(0);
}

/* ---- the program ---------------------------------------------------------------------- */

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int dial(unsigned port)
{
    struct sockaddr_in addr = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)))
        close_fdp(&fd);
    return fd;
}

static int listen_on(unsigned port)
{
    struct sockaddr_in addr = loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || listen(fd, 8)) {
        perror("liar: bind");
        exit(1);
    }
    return fd;
}

static void read_key(const char *path, uint8_t key[CONF_KEY_BYTES])
{
    FILE *file = fopen(path, "r");
    unsigned byte;

    for (unsigned i = 0; i < CONF_KEY_BYTES; i++) {
        if (!file || fscanf(file, "%2x", &byte) != 1) {
            fprintf(stderr, "liar: no key in %s\n", path);
            exit(1);
        }
        key[i] = (uint8_t)byte;
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"port", 1, NULL, 'p'}, {"key", 1, NULL, 'k'},   {"seconds", 1, NULL, 't'},
        {"seed", 1, NULL, 's'}, {"group", 1, NULL, 'g'}, {"uid", 1, NULL, 'u'},
        {"dial", 0, NULL, 'd'}, {"trace", 0, NULL, 'T'}, {NULL, 0, NULL, 0}};
    struct liar l = {.dice.state = now_ms()};
    struct conf_keys keys = {.n = 1};
    unsigned port = 0, nlinks = 0;
    uint64_t limit_ms, ms = 10000;
    struct tls *tls;
    bool dials = false;
    int c, fd;

    while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0)
        switch (c) {
        case 'p':
            port = (unsigned)atoi(optarg);
            break;
        case 'k':
            read_key(optarg, keys.key[0]);
            break;
        case 't':
            ms = (uint64_t)(1000 * atof(optarg));
            break;
        case 's':
            l.dice.state = strtoull(optarg, NULL, 10);
            break;
        case 'g':
            learn(&l, strtoull(optarg, NULL, 16));
            break;
        case 'u':
            l.uid = (unsigned)atoi(optarg);
            break;
        case 'd':
            dials = true;
            break;
        case 'T':
            l.trace = true;
            break;
        default:
            return 64;
        }
    if (tls_new(&keys, NULL, &tls))
        return 1;
    signal(SIGPIPE, SIG_IGN);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    l.incarnation = dice_roll(&l.dice);
    fd = dials ? -1 : listen_on(port);
    limit_ms = now_ms() + ms;
    while (now_ms() < limit_ms) {
        int conn = -1;

        if (dials)
            conn = dial(port);
        else if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 50) > 0)
            conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        l.dice.state = dice_roll(&l.dice);
        if (conn >= 0 && fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm((unsigned)(ms / 1000 + 2));
            talk(&l, tls, conn, !dials);
        }
        nlinks += conn >= 0;
        close_fdp(&conn);
        while (waitpid(-1, NULL, dials ? 0 : WNOHANG) > 0) /* who dials does so one at a time */
            ;
    }
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM); /* the links: they are in our process group */
    while (wait(NULL) > 0)
        ;
    printf("{\"links\": %u}\n", nlinks);
    tls_free(tls);
    return 0;
}
