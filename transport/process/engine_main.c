/* engine_main.c - the commd-engine process: commd's socket, the doorbells, the fabric, and the
 * turn that serves them. Started and watched by commd; holds no secrets but the tokens of this
 * incarnation.
 *
 * The turn: look at the active boards, progress the fabric. While something moved in the last
 * SPIN_NS, the engine goes on so, and offers the core to others in between (sched_yield). Then, or
 * at once if a process that computes takes the core (shm/util/wait.c), it arms boards and fabric
 * and sleeps in epoll. While it is awake it looks at commd's socket and the doorbells every
 * LOOK_EVERY turns: one busy group must not make it deaf to the others.
 *
 * commd may die: the data go on, and the next commd is told what there is (control.c, resume()). It
 * names the boards that it knows; those that it does not know are finished.
 *
 * The end: there will be no commd any more. Members are told through their boards, and the process
 * exits. A SIGKILL at any moment is commd's way to abort and harms nobody else. */
#include "config.h"

#include <getopt.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "shm/launch/launch.h"
#include "shm/proto/codec.h"
#include "shm/util/topology.h"
#include "shm/util/wait.h"
#include "transport/process/confine.h"
#include "transport/process/control.h"
#include "transport/engine/engine.h"
#include "transport/process/launcher.h"

enum {
    SPIN_NS = 300000,     /* covers the gap between two operations of a tight loop */
    LOOK_EVERY = 256,     /* turns */
    WORK_NS = 60000,      /* a yield that takes longer: members copy, or compute */
    CLOCK_EVERY = 16,     /* idle turns between looks at the clock */
    RESCUE_MS = 100,      /* sleep at most so long while operations are under way */
    REST_MS = 1000,       /* while only idle boards exist */
    CONTROL_AT_ONCE = 32, /* frames of commd in one look */
    TRAFFIC_AT_ONCE = 16, /* peers whose traffic is told in one turn */
    USERS_AT_ONCE = 64,   /* in one report */
    HEAP_ONE = 1 << 20,   /* more than any body in memory of ours, or a record, has */
    HEAP_KEPT = 16 << 20,
};

struct shell {
    struct engine *engine;
    struct fabric *fabric;
    struct closer *closer;
    struct control control;
    int epoll;
    int *bells; /* by client slot; -1: none */
    unsigned nbells;
    struct shell_peer {
        uint64_t incarnation; /* of the peer in the fabric; 0: none */
        uint64_t intro;       /* how commd calls the tokens that it has brought */
        char *lost;           /* owned: why it was lost; NULL: it was not */
        enum link_end end;    /* who has ended the link to it */
        bool planned;         /* and it was to be replaced */
    } peers[FABRIC_MAX_PEERS];
    unsigned traffic_at, traffic_left; /* whose traffic is told next; how many may follow */
    const char *node;
    struct fabric_wants wants; /* of the fabric */
    char runs_on[300];         /* for people */
    uint64_t settings;         /* launch_settings() of what it was started with */
    uint64_t rescued_ms;       /* when all boards were looked at last */
    bool running;
};

enum { EV_CONTROL = UINT32_MAX, EV_FABRIC = UINT32_MAX - 1 };

/* ---- reports ------------------------------------------------------------------------------ */

static void on_board_error(void *arg, uint64_t group, unsigned cause, int peer, const char *text)
{
    struct msg m = {.type = MSG_BOARD_ERROR};

    m.board.group = group;
    m.board.cause = cause;
    m.board.peer = peer;
    snprintf(m.board.text, sizeof m.board.text, "%s", text);
    control_send(&((struct shell *)arg)->control, &m, -1);
}

static void on_paused(void *arg, const struct msg_pause *paused)
{
    struct msg m = {.type = MSG_BOARD_PAUSE, .pause = *paused};

    control_send(&((struct shell *)arg)->control, &m, -1);
}

static void on_held(void *arg, const struct msg_board_held *held)
{
    struct msg m = {.type = MSG_BOARD_HELD, .board_held = *held};

    control_send(&((struct shell *)arg)->control, &m, -1);
}

/* What is known of a peer: our side of the connection is there, or it is lost. */
static void tell_peer(struct shell *s, unsigned peer)
{
    const struct shell_peer *p = &s->peers[peer];
    struct msg m = {.type = p->lost ? MSG_ENGINE_PEER_DOWN : MSG_ENGINE_PEER_READY};

    m.engine_peer.peer = peer;
    m.engine_peer.engine = p->incarnation;
    m.engine_peer.end = p->lost ? p->end : 0;
    m.engine_peer.planned = p->lost && p->planned;
    m.engine_peer.intro = p->intro;
    snprintf(m.engine_peer.text, sizeof m.engine_peer.text, "%s", p->lost ? p->lost : "");
    control_send(&s->control, &m, -1);
}

static void on_peer_down(void *arg, unsigned peer, enum link_end end, const char *text)
{
    struct shell *s = arg;
    char *lost = strdup(*text ? text : "lost"), *none = "lost, and the engine has no memory";

    if (peer >= FABRIC_MAX_PEERS || !s->peers[peer].incarnation)
        return free(lost); /* commd has dropped it */
    free(s->peers[peer].lost);
    s->peers[peer].lost = lost ? lost : strdup(none);
    s->peers[peer].end = end;
    s->peers[peer].planned = s->engine && engine_rests_for(s->engine, peer);
    tell_peer(s, peer);
}

/* What it sent to a peer, and whether the two have a connection. */
static void tell_traffic_of(struct shell *s, unsigned peer)
{
    struct msg m = {.type = MSG_ENGINE_TRAFFIC};
    struct fabric_traffic traffic = {0};
    bool apart = !s->fabric->ops->traffic(s->fabric, peer, &traffic);

    m.engine_traffic = (struct msg_engine_traffic){
        .peer = peer,
        .engine = s->peers[peer].incarnation,
        .sent = traffic.sent,
        .received = traffic.received,
        .segments = traffic.segments,
        .retransmits = traffic.retransmits,
        .stalled_us = traffic.stalled_us,
        .rtt_us = traffic.rtt_us,
        .min_rtt_us = traffic.min_rtt_us,
        .rate = traffic.rate,
        .mends = traffic.mends,
        .apart = apart,
        .encryption = traffic.encryption,
        .key_ms = traffic.key_ms,
        .generation = traffic.generation,
        .quiet_ms = traffic.quiet_ms,
    };
    control_send(&s->control, &m, -1);
}

static void on_apart(void *arg, unsigned peer)
{
    struct shell *s = arg;

    if (s->peers[peer].incarnation)
        tell_traffic_of(s, peer);
}

/* ---- orders from commd ---------------------------------------------------------------------- */

static void watch(struct shell *s, int fd, uint32_t events, uint32_t what)
{
    struct epoll_event ev = {.events = events, .data.u32 = what};

    epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev);
}

/* A doorbell is an eventfd that its client has too, and may do anything to, so we neither read nor
 * write it: each write of the client is an edge, whatever the counter holds. */
static void bell_del(struct shell *s, unsigned client)
{
    if (client >= s->nbells || s->bells[client] < 0)
        return;
    /* close() alone would leave it in epoll, as the client has the file open */
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->bells[client], NULL);
    close_fdp(&s->bells[client]);
}

static void bell_add(struct shell *s, unsigned client, int *fd)
{
    if (client >= ENGINE_MAX_CLIENTS)
        return;
    if (client >= s->nbells) {
        unsigned n = client + 64;
        int *more = realloc(s->bells, n * sizeof *more);

        if (!more)
            return;
        for (unsigned i = s->nbells; i < n; i++)
            more[i] = -1;
        s->bells = more;
        s->nbells = n;
    }
    bell_del(s, client);
    s->bells[client] = steal_fd(fd);
    watch(s, s->bells[client], EPOLLIN | EPOLLET, client);
}

static void peer_del(struct shell *s, unsigned peer)
{
    if (peer >= FABRIC_MAX_PEERS || !s->peers[peer].incarnation)
        return;
    free(s->peers[peer].lost);
    s->peers[peer] = (struct shell_peer){0};
    engine_peer_gone(s->engine, peer);
    s->fabric->ops->peer_del(s->fabric, peer);
}

/* Why peer_add() has refused @add with @r. */
static void explain_refusal(const struct shell *s, int r, const struct msg_engine_peer_add *add,
                            char *why, size_t size)
{
    if (r == -EPROTONOSUPPORT)
        snprintf(why, size,
                 "it uses another fabric: transport.fabric and transport.ucx_tls must be the same "
                 "on all nodes");
    else if (r == -EACCES)
        fabric_tcp_disagree(&s->wants, s->node, add->addr, add->node, why, size);
    else if (r == -EPERM)
        snprintf(why, size,
                 "node %s runs a commd that cannot encrypt: upgrade it, or let data to it go in "
                 "the clear until then: transport.trusted_network: true, transport.encryption: "
                 "auto",
                 add->node);
    else
        snprintf(why, size, "%s", strerror(-r));
}

static void shell_peer_add(struct shell *s, const struct msg_engine_peer_add *a)
{
    char why[MSG_TEXT_MAX];
    int r;

    if (a->peer >= FABRIC_MAX_PEERS || !a->engine)
        return;
    peer_del(s, a->peer);
    r = s->fabric->ops->peer_add(s->fabric, a->peer, a->addr, a->addr_len, a->token, a->expect);
    s->peers[a->peer].incarnation = a->engine;
    s->peers[a->peer].intro = a->intro;
    if (!r)
        return tell_peer(s, a->peer);
    explain_refusal(s, r, a, why, sizeof(why));
    on_peer_down(s, a->peer, LINK_END_ENGINE, why);
}

static void shell_peer_key(struct shell *s, const struct msg_engine_peer_key *k)
{
    if (k->peer < FABRIC_MAX_PEERS && k->engine && s->peers[k->peer].incarnation == k->engine &&
        s->fabric->ops->peer_key)
        s->fabric->ops->peer_key(s->fabric, k->peer, k->secret);
}

static void board_add(struct shell *s, const struct msg_board_add *b, int fd)
{
    int r = engine_board_add(s->engine, b, fd);

    if (r == -ESTALE)
        on_held(s, &(struct msg_board_held){.group = b->group, .missing = 1});
    else if (r)
        on_board_error(s, b->group, CAUSE_INTERNAL, -1,
                       r == -ENOMEM ? "the engine has no memory for a board"
                                    : "the engine cannot use the board");
}

/* Each turn of a few peers, until all are told: asking the kernel takes a microsecond for each
 * connection, and operations are not to wait for a thousand. */
static void tell_traffic(struct shell *s)
{
    for (unsigned told = 0; s->traffic_left && told < TRAFFIC_AT_ONCE; s->traffic_left--) {
        unsigned peer = s->traffic_at++ % FABRIC_MAX_PEERS;

        if (!s->peers[peer].incarnation)
            continue;
        tell_traffic_of(s, peer);
        told++;
    }
}

static void tell_users(struct shell *s)
{
    struct engine_sent told[USERS_AT_ONCE];
    unsigned n = s->engine ? engine_sent(s->engine, told, ARRAY_LEN(told)) : 0;

    for (unsigned i = 0; i < n; i++) {
        struct msg m = {.type = MSG_ENGINE_SENT};

        m.engine_sent.uid = told[i].uid;
        m.engine_sent.ms = (uint32_t)MIN(told[i].ms, (uint64_t)UINT32_MAX);
        m.engine_sent.bytes = told[i].bytes;
        control_send(&s->control, &m, -1);
    }
}

static void say_hello(struct shell *s, const char *text, bool resumed)
{
    struct msg m = {.type = MSG_ENGINE_HELLO};
    size_t len = sizeof m.engine_hello.addr;

    m.engine_hello.version = MSG_VERSION;
    m.engine_hello.pid = (uint32_t)getpid();
    m.engine_hello.resumed = resumed;
    snprintf(m.engine_hello.build, sizeof m.engine_hello.build, "%s", COMMD_BUILD_VERSION);
    m.engine_hello.settings = s->settings;
    m.engine_hello.takes_keys = 1;
    snprintf(m.engine_hello.text, sizeof m.engine_hello.text, "%s", text);
    if (s->fabric && !s->fabric->ops->address(s->fabric, m.engine_hello.addr, &len))
        m.engine_hello.addr_len = (uint32_t)len;
    /* commd keeps our socket that listens open when we are gone */
    control_send(&s->control, &m, s->fabric && s->fabric->port > 0 ? s->fabric->port : -1);
}

/* Tells another commd all that the one before it was told and that is so still. */
static void resume(struct shell *s)
{
    struct msg m = {.type = MSG_ENGINE_RESUMED};

    say_hello(s, s->runs_on, true);
    for (unsigned peer = 0; peer < FABRIC_MAX_PEERS; peer++) {
        if (!s->peers[peer].incarnation)
            continue;
        tell_peer(s, peer);
        if (!s->peers[peer].lost && s->fabric->ops->traffic)
            tell_traffic_of(s, peer);
    }
    engine_resume(s->engine);
    control_send(&s->control, &m, -1);
}

/* Secrets do not stay in @m. */
static void control_msg(struct shell *s, struct msg *m, int *fd)
{
    struct msg pong = {.type = MSG_PING};

    if (m->type == MSG_ENGINE_PEER_ADD) {
        shell_peer_add(s, &m->engine_peer_add);
        explicit_bzero(&m->engine_peer_add, sizeof m->engine_peer_add);
    } else if (m->type == MSG_ENGINE_PEER_KEY) {
        shell_peer_key(s, &m->engine_peer_key);
        explicit_bzero(&m->engine_peer_key, sizeof m->engine_peer_key);
    } else if (m->type == MSG_ENGINE_PEER_DEL) {
        peer_del(s, m->engine_peer.peer);
    } else if (m->type == MSG_BOARD_ADD) {
        board_add(s, &m->board_add, *fd);
    } else if (m->type == MSG_BOARD_HOLD) {
        struct msg held = {.type = MSG_BOARD_HELD};

        engine_board_hold(s->engine, m->board_held.group, &held.board_held);
        control_send(&s->control, &held, -1);
    } else if (m->type == MSG_BOARD_PAUSE) {
        struct msg paused = {.type = MSG_BOARD_PAUSE};

        if (engine_board_pause(s->engine, &m->pause, &paused.pause))
            control_send(&s->control, &paused, -1);
    } else if (m->type == MSG_BOARD_GO) {
        engine_board_go(s->engine, m->board_held.group);
    } else if (m->type == MSG_BOARD_DEL) {
        engine_board_del(s->engine, m->board.group, m->board.abort);
    } else if (m->type == MSG_DOORBELL_ADD && *fd >= 0) {
        bell_add(s, m->doorbell.client, fd);
    } else if (m->type == MSG_ENGINE_KEEP) {
        engine_resumed(s->engine);
    } else if (m->type == MSG_DOORBELL_DEL) {
        bell_del(s, m->doorbell.client);
    } else if (m->type == MSG_PING && !m->ping.pong) {
        s->traffic_left = s->fabric && s->fabric->ops->traffic ? FABRIC_MAX_PEERS : 0;
        tell_users(s);
        pong.ping.seq = m->ping.seq;
        pong.ping.pong = 1;
        control_send(&s->control, &pong, -1);
    }
}

/* Reads the frames that are there, but not all at once: a user that opens and closes groups without
 * end must not hold up the data of others. epoll reports again what is left. */
static void control_read(struct shell *s)
{
    for (unsigned n = 0; n < CONTROL_AT_ONCE; n++) {
        struct msg m;
        int fd;

        switch (control_next(&s->control, &m, &fd)) {
        case CONTROL_NONE:
            return;
        case CONTROL_END:
            s->running = false;
            return;
        case CONTROL_NEW:
            resume(s);
            break;
        case CONTROL_MSG:
            control_msg(s, &m, &fd);
            close_fdp(&fd);
            msg_fini(&m);
            break;
        }
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Looks at sockets and doorbells; when nothing came, and now and then also in a busy engine, at all
 * boards, in case a doorbell was lost. */
static void look(struct shell *s, int timeout)
{
    struct epoll_event ev[64];
    int n = epoll_wait(s->epoll, ev, ARRAY_LEN(ev), timeout);

    for (int i = 0; i < n; i++)
        if (ev[i].data.u32 == EV_CONTROL)
            control_read(s);
        else if (ev[i].data.u32 != EV_FABRIC)
            engine_wake_client(s->engine, ev[i].data.u32);
    if ((n == 0 && timeout) || now_ms() - s->rescued_ms > REST_MS) {
        engine_poll_all(s->engine);
        s->rescued_ms = now_ms();
    }
}

static void rest(struct shell *s)
{
    int timeout = -1, armed;

    if (s->traffic_left || engine_arm(s->engine))
        return;
    armed = s->fabric->ops->arm(s->fabric);
    if (armed == 1)
        return;
    if (!engine_idle(s->engine))
        timeout = RESCUE_MS;
    else if (engine_has_boards(s->engine))
        timeout = REST_MS;
    if (armed == 2)
        timeout = 1;
    look(s, timeout);
}

static void shell_serve(struct shell *s)
{
    unsigned turns = 0, idle = 0;
    struct crowd crowd = {0}, after = {0};
    uint64_t last = now_ns();

    while (s->running) {
        /* the boards first: after a yield it is a member that has just run */
        bool moved = engine_poll(s->engine), came = s->fabric->ops->progress(s->fabric);

        tell_traffic(s);
        if (++turns % LOOK_EVERY == 0)
            look(s, 0);
        if (engine_published(s->engine)) {
            crowd_next(&after);
            if (!crowd_here(&after) && !crowd_here(&crowd) && yield_core(WORK_NS, &after))
                look(s, 0); /* that took long: others may have waited for us meanwhile */
            came = true;    /* a member that has run has perhaps more */
        }
        if (came || moved)
            idle = 0;
        if (came)
            continue;
        /* What moved on a board has been sent, and the network was looked at after that: now
         * members, or other engines, have to go on. */
        if (idle++ == 0) {
            last = now_ns();
            crowd_next(&crowd);
        }
        if (engine_idle(s->engine) || crowd_here(&crowd) ||
            (idle % CLOCK_EVERY == 0 && now_ns() - last > SPIN_NS)) {
            rest(s);
            idle = 0;
        } else {
            yield_core(WORK_NS, &crowd);
        }
    }
}

/* ---- start ----------------------------------------------------------------------------------- */

/* The socket that listens, if our parent gave one; another file there is not taken. */
static int kept_port(void)
{
    int listens = 0;
    socklen_t len = sizeof listens;

    return !getsockopt(ENGINE_PORT_FD, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) && listens
               ? ENGINE_PORT_FD
               : 0;
}

static const char usage[] =
    "Usage: commd-engine --fd N --node NAME [--fabric auto|tcp|ucx] [--device DEV] [--tls LIST]\n"
    "                    [--ports LO-HI] [--channels N] [--congestion NAME]\n"
    "                    [--encryption auto|on|off] [--encryption-threads auto|N]\n"
    "                    [--trusted yes|no] [--mend-ms MS]\n"
    "       commd-engine --launcher FD\n"
    "Moves the data of commd between nodes. Started by commd, not by hand; or, where it has a user "
    "of\n"
    "its own, by a process of that user, which takes commd's orders on a socket that listens.\n";

struct engine_options {
    struct fabric_conf fabric;
    const char *node;
    int fd, launcher;
};

static bool encryption_of(const char *word, enum fabric_encryption *ret)
{
    static const char *const words[] = {
        [FABRIC_ENCRYPT_OFF] = "off", [FABRIC_ENCRYPT_AUTO] = "auto", [FABRIC_ENCRYPT_ON] = "on"};

    for (unsigned i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(word, words[i]))
            continue;
        *ret = (enum fabric_encryption)i;
        return true;
    }
    return false;
}

static int parse_engine_words(int argc, char **argv, struct engine_options *o)
{
    enum { HELP = 256, WHICH };
    const char *log; /* commd gives it to all that it starts; nothing is logged here */
    const char *encryption = "auto", *trusted = "no", *threads = "auto";
    const char **texts[] = {&o->node,
                            &o->fabric.device,
                            &o->fabric.tls,
                            &o->fabric.kind,
                            &o->fabric.congestion,
                            &o->fabric.port_range,
                            &log,
                            &encryption,
                            &trusted,
                            &threads};
    int *numbers[] = {&o->fd, &o->launcher, (int *)&o->fabric.channels, (int *)&o->fabric.mend_ms};
    enum { NUMBERS = ARRAY_LEN(texts) }; /* the last column: an index in texts, or in numbers */
    static const struct option longs[] = {{"node", 1, NULL, 0},
                                          {"device", 1, NULL, 1},
                                          {"tls", 1, NULL, 2},
                                          {"fabric", 1, NULL, 3},
                                          {"congestion", 1, NULL, 4},
                                          {"ports", 1, NULL, 5},
                                          {"log", 1, NULL, 6},
                                          {"encryption", 1, NULL, 7},
                                          {"trusted", 1, NULL, 8},
                                          {"encryption-threads", 1, NULL, 9},
                                          {"fd", 1, NULL, NUMBERS},
                                          {"launcher", 1, NULL, NUMBERS + 1},
                                          {"channels", 1, NULL, NUMBERS + 2},
                                          {"mend-ms", 1, NULL, NUMBERS + 3},
                                          {"help", 0, NULL, HELP},
                                          {"version", 0, NULL, WHICH},
                                          {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == HELP || c == WHICH) {
            fputs(c == HELP ? usage : "commd-engine " COMMD_BUILD_VERSION "\n", stdout);
            exit(0);
        }
        if (c < NUMBERS)
            *texts[c] = optarg;
        else if (c < NUMBERS + (int)ARRAY_LEN(numbers))
            *numbers[c - NUMBERS] = (int)strtol(optarg, NULL, 10);
        else
            break;
    }
    if (o->fabric.port_range && !*o->fabric.port_range)
        o->fabric.port_range = NULL;
    o->fabric.wants.trusted = !strcmp(trusted, "yes");
    o->fabric.encryption_threads = encryption_threads(threads, topology_here()->cores);
    if (c != -1 || !encryption_of(encryption, &o->fabric.wants.encryption) ||
        (o->launcher < 0 && (o->fd < 0 || !o->node))) {
        fputs(usage, stderr);
        return -EINVAL;
    }
    return 0;
}

static int shell_start(struct shell *s, const struct engine_options *o, char why[256])
{
    struct engine_events ev = {.on_board_error = on_board_error,
                               .on_peer_down = on_peer_down,
                               .on_apart = on_apart,
                               .on_paused = on_paused,
                               .on_held = on_held,
                               .arg = s};
    int r, fd;

    s->engine = engine_new(o->node, &ev);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!s->engine || s->epoll < 0) {
        snprintf(why, 256, "no memory to start");
        return -ENOMEM;
    }
    r = fabric_new(&o->fabric, engine_fabric_events(s->engine), &s->fabric, why);
    if (r)
        return r;
    engine_set_fabric(s->engine, s->fabric);
    watch(s, control_fd(&s->control), EPOLLIN, EV_CONTROL);
    fd = s->fabric->ops->fd(s->fabric);
    if (fd >= 0)
        watch(s, fd, EPOLLIN, EV_FABRIC);
    return 0;
}

static int end(struct shell *s, int status)
{
    fabric_free(s->fabric);
    engine_free(s->engine);
    closer_free(s->closer);
    free(s->bells);
    for (unsigned peer = 0; peer < FABRIC_MAX_PEERS; peer++)
        free(s->peers[peer].lost);
    control_fini(&s->control);
    return status;
}

/* Bodies that are encrypted, or kept for a new socket, lie in memory of ours for some 100 us. By
 * default each of 256 KB goes back to the kernel once it is free, and the next one costs 64 page
 * faults: more than its encryption. */
static void keep_heap(void)
{
    mallopt(M_MMAP_THRESHOLD, HEAP_ONE);
    mallopt(M_TRIM_THRESHOLD, HEAP_KEPT);
}

int main(int argc, char **argv)
{
    struct engine_options o = {
        .fd = -1, .launcher = -1, .fabric = {.device = "lo", .tls = "tcp", .express = true}};
    static struct shell s = {.epoll = -1, .running = true};
    char why[256] = "", gone[160];

    if (parse_engine_words(argc, argv, &o))
        return 64;
    if (o.launcher >= 0)
        return launcher_run(o.launcher, engine_env);
    keep_heap();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* Ctrl-C at a terminal is commd's to handle */
    if (control_begin(&s.control, o.fd))
        return 1;
    o.fabric.port = kept_port();
    s.node = o.node;
    s.wants = o.fabric.wants;
    s.settings = launch_settings_of(argc, argv);
    if (!HAS_LEAK_CHECK)
        confine(CONFINE_LOADING); /* where the kernel can: without it we serve all the same */
    if (shell_start(&s, &o, why)) {
        say_hello(&s, why, false);
        return end(&s, 1);
    }
    if (!HAS_LEAK_CHECK && !strncmp(s.fabric->ops->name, "tcp", 3))
        confine(CONFINE_SERVING);
    /* its threads are as confined as we are now; without them boards are unmapped on the loop */
    if (closer_new(&s.closer) == 0)
        engine_set_closer(s.engine, s.closer);
    snprintf(s.runs_on, sizeof s.runs_on, "%s%s%s", s.fabric->ops->name, *why ? "; " : "", why);
    say_hello(&s, s.runs_on, false);
    shell_serve(&s);
    snprintf(gone, sizeof gone, "commd on node %s is gone", s.node);
    engine_break_all(s.engine, CAUSE_NODE_LOST, gone);
    return end(&s, 0);
}
