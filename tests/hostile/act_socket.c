/* act_socket.c - what can be said on commd's socket, or left unsaid. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/hostile/hostile.h"

static void hold(struct hostile *h)
{
    stray_keep(h, wire_connect(h, dice_below(&h->dice, 2)));
}

static void half_hello(struct hostile *h)
{
    static const uint8_t hello[] = {'c', 'd', CODEC_FORMAT, 0, 16, 0, 0, 0, 10, 14, 8};
    int fd = wire_connect(h, dice_below(&h->dice, 2));

    if (fd >= 0)
        wire_send(fd, hello, 1 + dice_below(&h->dice, sizeof(hello)), NULL, 0);
    stray_keep(h, fd);
}

static void connect_storm(struct hostile *h)
{
    for (int i = 0; i < 64; i++) {
        int fd = wire_connect(h, i);

        if (fd < 0)
            return;
        if (i % 3 == 0)
            wire_hello(fd, i % 2);
        close(fd);
    }
}

static void admin_sessions(struct hostile *h)
{
    for (int i = 0; i < 16; i++) {
        int fd = wire_connect(h, i);

        if (fd < 0)
            return;
        wire_hello(fd, true);
        wire_question(fd, "groups");
        stray_keep(h, fd);
    }
}

/* Answers are not read. */
static void admin_flood(struct hostile *h)
{
    static const char *const verbs[] = {"groups", "clients", "config", "status", "nodes"};
    int fd = wire_connect(h, dice_below(&h->dice, 2));

    if (fd < 0)
        return;
    wire_hello(fd, dice_below(&h->dice, 2));
    for (int i = 0; i < 200; i++)
        wire_question(fd, verbs[dice_below(&h->dice, ARRAY_LEN(verbs))]);
    stray_keep(h, fd);
}

/* Groups and processes of others, whose names and pids are no secret, and the node itself. */
static void kick_others(struct hostile *h)
{
    static const char *const verbs[] = {"kick",    "kick_pid",      "kick_rank", "drain",
                                        "undrain", "set_log_level", "tenants",   "events"};
    static const char *const names[] = {"good-1", "alone-0-1", "hostile-1", "", "\xc3\xa9", "%n%s"};
    struct dice *d = &h->dice;
    int fd = wire_connect(h, dice_below(d, 2));

    if (fd < 0)
        return;
    wire_hello(fd, true);
    for (int i = 0; i < 20; i++) {
        struct msg msg = {.type = MSG_ADMIN};

        strcpy(msg.admin.verb, verbs[dice_below(d, ARRAY_LEN(verbs))]);
        if (dice_one_in(d, 2))
            snprintf(msg.admin.group, sizeof(msg.admin.group), "%016llx",
                     (unsigned long long)id_any(h));
        else
            strcpy(msg.admin.group, names[dice_below(d, ARRAY_LEN(names))]);
        msg.admin.pid = dice_one_in(d, 4) ? (uint32_t)dice_odd(d)
                                          : (uint32_t)getpid() - 64 + dice_below(d, 128);
        msg.admin.rank = dice_below(d, 4);
        msg.admin.since = dice_odd(d);
        memset(msg.admin.text, '"', dice_below(d, MSG_TEXT_MAX - 1));
        wire_msg(fd, &msg, NULL, 0);
    }
    stray_keep(h, fd);
}

static void garbage(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    uint8_t bytes[512];

    dice_bytes(&h->dice, bytes, sizeof(bytes));
    if (conn)
        wire_send(conn->fd, bytes, 1 + dice_below(&h->dice, sizeof(bytes)), NULL, 0);
}

/* A frame that says that it is longer than what comes. */
static void truncated(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    uint8_t frame[64] = {'c', 'd', CODEC_FORMAT, 0};
    uint32_t len = dice_one_in(&h->dice, 2) ? CODEC_MAX_CLIENT_FRAME - dice_below(&h->dice, 2)
                                            : (uint32_t)dice_odd(&h->dice);

    memcpy(frame + 4, &len, 4);
    if (conn)
        wire_send(conn->fd, frame, 8 + dice_below(&h->dice, 56), NULL, 0);
}

static void any_message(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg;

    for (int i = 0; conn && i < 8; i++) {
        wire_any_msg(h, &msg);
        wire_msg(conn->fd, &msg, NULL, 0);
    }
}

static void flipped_message(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg;
    void *frame;
    size_t len;

    wire_any_msg(h, &msg);
    if (!conn || codec_encode(&msg, &frame, &len))
        return;
    for (unsigned i = 1 + dice_below(&h->dice, 3); i; i--)
        ((uint8_t *)frame)[dice_below(&h->dice, (uint32_t)len)] ^=
            (uint8_t)(1u << dice_below(&h->dice, 8));
    wire_send(conn->fd, frame, len, NULL, 0);
    free(frame);
}

/* Kinds that are for others: nodes, engines, none. */
static void alien_message(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    uint8_t body[64];

    dice_bytes(&h->dice, body, sizeof(body));
    if (conn)
        wire_raw(h, conn->fd, dice_below(&h->dice, 64), body, dice_below(&h->dice, sizeof(body)),
                 NULL, 0);
}

static void join_flood(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    for (unsigned i = 0; conn && i < 100; i++) {
        msg.client_join.req = 1u << 20 | i;
        msg.client_join.size = (uint32_t)MSG_MAX_RANKS >> dice_below(&h->dice, 17);
        msg.client_join.rank = dice_below(&h->dice, msg.client_join.size);
        msg.client_join.timeout_ms = dice_one_in(&h->dice, 2) ? 0 : dice_odd(&h->dice);
        fill_name(h, msg.client_join.name);
        if (!wire_msg(conn->fd, &msg, NULL, 0))
            return;
    }
}

/* Groups that never fill, of the sizes that cost most: those that are left of each other's
 * halves. */
static void join_largest(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    for (unsigned i = 0; conn && i < 34; i++) {
        msg.client_join.req = 2u << 20 | i;
        msg.client_join.size = MSG_MAX_RANKS >> (i > 16 ? 0 : i);
        snprintf(msg.client_join.name, MSG_GROUP_MAX, "%s-%u", h->prefix, h->names++);
        wire_msg(conn->fd, &msg, NULL, 0);
    }
}

/* Answers with boards that nobody reads. */
static void join_unread(struct hostile *h)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN, .client_join = {.size = 1}};
    int fd = wire_connect(h, dice_below(&h->dice, 2));

    if (fd < 0)
        return;
    wire_hello(fd, false);
    for (unsigned i = 0; i < 200; i++) {
        msg.client_join.req = i;
        snprintf(msg.client_join.name, MSG_GROUP_MAX, "%s-%u", h->prefix, h->names++);
        if (!wire_msg(fd, &msg, NULL, 0))
            break;
    }
    stray_keep(h, fd);
}

static void abort_text(struct hostile *h)
{
    struct team *g = team_any(h);
    struct conn *conn = g ? &h->conns[g->ranks[0].conn] : NULL;
    uint8_t body[9 + 3 + 500];

    if (!conn || conn->fd < 0)
        return;
    body[0] = 1 << 3 | 1; /* fixed64 group */
    memcpy(body + 1, &g->id, 8);
    memcpy(body + 9, "\x12\xf4\x03", 3); /* 500 bytes of text */
    memset(body + 12, 'X', 500);
    if (dice_one_in(&h->dice, 3))
        memcpy(body + 12, "\n<3>commd: [1] error: forged", 28);
    else if (dice_one_in(&h->dice, 3))
        dice_bytes(&h->dice, body + 12, 500);
    wire_raw(h, conn->fd, MSG_CLIENT_ABORT, body, sizeof(body), NULL, 0);
}

static void bogus_leave(struct hostile *h)
{
    for (int i = 0; i < 20; i++) {
        struct msg msg = {.type = MSG_CLIENT_LEAVE, .client_leave = {dice_roll(&h->dice), 0}};
        int fd = wire_connect(h, i);

        if (fd < 0)
            return;
        wire_hello(fd, false);
        wire_msg(fd, &msg, NULL, 0);
        close(fd);
    }
}

static void ask_absent_flood(struct hostile *h)
{
    struct team *g = team_any(h);

    for (unsigned i = 0; g && i < 200; i++) {
        struct msg msg = {.type = MSG_CLIENT_ASK_ABSENT,
                          .client_ask_absent = {g->id, i, i % 3 ? g->seq : dice_odd(&h->dice)}};
        struct conn *conn = &h->conns[g->ranks[i % g->size].conn];

        if (conn->fd < 0 || !wire_msg(conn->fd, &msg, NULL, 0))
            return;
    }
}

static void slow_reader(struct hostile *h)
{
    char byte;

    for (int i = 0; i < STRAYS; i++)
        if (h->strays[i] >= 0 && recv(h->strays[i], &byte, 1, MSG_DONTWAIT) < 0)
            continue;
}

static void shut_down(struct hostile *h)
{
    struct conn *conn = conn_any(h);

    if (conn)
        shutdown(conn->fd, (int)dice_below(&h->dice, 3));
    if (dice_one_in(&h->dice, 2) && conn)
        conn_close(conn);
}

static void small_buffers(struct hostile *h)
{
    struct conn *conn = conn_any(h);
    int bytes = 1;

    if (conn)
        setsockopt(conn->fd, SOL_SOCKET, dice_below(&h->dice, 2) ? SO_RCVBUF : SO_SNDBUF, &bytes,
                   sizeof(bytes));
}

static void close_all(struct hostile *h)
{
    for (int i = 0; i < CONNS; i++)
        conn_close(&h->conns[i]);
}

static void drop_strays(struct hostile *h)
{
    for (int i = 0; i < STRAYS; i++)
        close_fdp(&h->strays[i]);
}

/* A child that holds all sockets a little longer than we do. */
static void fork_holder(struct hostile *h)
{
    pid_t pid;

    if (h->nchildren >= CHILDREN)
        return;
    pid = fork();
    if (pid == 0) {
        usleep(1000 * dice_below(&h->dice, 500));
        _exit(0);
    }
    h->nchildren += pid > 0;
    if (dice_one_in(&h->dice, 2))
        close_all(h);
}

static void die(struct hostile *h)
{
    kill(getpid(), dice_below(&h->dice, 2) ? SIGKILL : SIGTERM);
}

static void stop(struct hostile *h)
{
    raise(SIGSTOP); /* hostile.c continues us */
}

const struct action socket_actions[] = {
    {"hold", 4, hold},
    {"half_hello", 4, half_hello},
    {"connect_storm", 2, connect_storm},
    {"admin_sessions", 2, admin_sessions},
    {"admin_flood", 2, admin_flood},
    {"kick_others", 2, kick_others},
    {"garbage", 4, garbage},
    {"truncated", 4, truncated},
    {"any_message", 8, any_message},
    {"flipped_message", 8, flipped_message},
    {"alien_message", 4, alien_message},
    {"join_flood", 2, join_flood},
    {"join_largest", 2, join_largest},
    {"join_unread", 2, join_unread},
    {"abort_text", 4, abort_text},
    {"bogus_leave", 2, bogus_leave},
    {"ask_absent_flood", 3, ask_absent_flood},
    {"slow_reader", 2, slow_reader},
    {"shut_down", 2, shut_down},
    {"small_buffers", 1, small_buffers},
    {"close_all", 1, close_all},
    {"drop_strays", 1, drop_strays},
    {"fork_holder", 2, fork_holder},
    {"die", 1, die},
    {"stop", 1, stop},
    {NULL, 0, NULL},
};
