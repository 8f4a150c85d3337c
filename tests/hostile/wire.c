/* wire.c - sessions with a commd, by hand. A hostile client must not be stopped by its victim,
 * so nothing blocks: what does not fit into a socket is lost, and an answer is waited for only
 * a moment. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/hostile/hostile.h"

enum { PATIENCE_MS = 150 };

int wire_connect(struct hostile *h, unsigned node)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", h->sockets[node % h->nsockets]);
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
        close(fd);
        return -1;
    }
    return fd;
}

bool wire_send(int fd, const void *data, size_t len, const int *fds, unsigned nfds)
{
    char control[CMSG_SPACE(FDS_MOST * sizeof(int))] __attribute__((aligned(8)));
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds) {
        struct cmsghdr *cmsg;

        memset(control, 0, sizeof(control));
        mh.msg_control = control;
        mh.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        cmsg = CMSG_FIRSTHDR(&mh);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
    }
    return sendmsg(fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

bool wire_msg(int fd, const struct msg *msg, const int *fds, unsigned nfds)
{
    void *frame;
    size_t len;
    bool sent;

    if (codec_encode(msg, &frame, &len))
        return false;
    sent = wire_send(fd, frame, len, fds, nfds);
    free(frame);
    return sent;
}

void wire_raw(struct hostile *h, int fd, unsigned type, const void *body, size_t len,
              const int *fds, unsigned nfds)
{
    uint8_t frame[8 + 6 + 2048] = {'c', 'd', CODEC_FORMAT, 0};
    size_t at = CODEC_HEADER;
    uint32_t tag = type << 3 | 2, n;

    len = MIN(len, (size_t)2048);
    for (; tag > 127; tag >>= 7)
        frame[at++] = (uint8_t)(tag | 128);
    frame[at++] = (uint8_t)tag;
    for (n = (uint32_t)len; n > 127; n >>= 7)
        frame[at++] = (uint8_t)(n | 128);
    frame[at++] = (uint8_t)n;
    memcpy(frame + at, body, len);
    at += len;
    n = (uint32_t)(at - CODEC_HEADER);
    memcpy(frame + 4, &n, 4);
    wire_send(fd, frame, at, fds, nfds);
}

void wire_hello(int fd, bool admin)
{
    struct msg msg = {.type = MSG_CLIENT_HELLO, .client_hello = {MSG_VERSION, admin, "hostile"}};

    wire_msg(fd, &msg, NULL, 0);
}

void wire_question(int fd, const char *verb)
{
    struct msg msg = {.type = MSG_ADMIN};

    snprintf(msg.admin.verb, sizeof(msg.admin.verb), "%s", verb);
    wire_msg(fd, &msg, NULL, 0);
}

/* ---- sessions ------------------------------------------------------------------------- */

void conn_close(struct conn *conn)
{
    close_fdp(&conn->fd);
    close_fdp(&conn->doorbell);
}

static bool answer_next(struct conn *conn, struct msg *ret_msg, int fds[2])
{
    const char *why;
    unsigned nfds = 0;

    fds[0] = fds[1] = -1;
    if (msg_recv_fd(conn->fd, ret_msg, fds, 2, &nfds, (int64_t)now_ms() + PATIENCE_MS, &why) == 0)
        return true;
    conn_close(conn);
    return false;
}

static bool conn_open(struct hostile *h, struct conn *conn, unsigned node)
{
    struct msg msg;
    int fds[2];
    bool welcome;

    conn->node = node % h->nsockets;
    conn->spoiled = false;
    conn->fd = wire_connect(h, conn->node);
    if (conn->fd < 0)
        return false;
    wire_hello(conn->fd, false);
    if (!answer_next(conn, &msg, fds))
        return false;
    welcome = msg.type == MSG_WELCOME;
    msg_fini(&msg);
    if (!welcome)
        conn_close(conn);
    return welcome;
}

/* Slots belong to nodes in turn, so that taking one for a node does not end a session with
 * another. */
static struct conn *slot_of(struct hostile *h, unsigned node)
{
    return &h->conns[dice_below(&h->dice, CONNS / h->nsockets) * h->nsockets + node % h->nsockets];
}

/* commd may have ended it in the meantime. */
static bool conn_is_up(const struct conn *conn)
{
    struct pollfd end = {.fd = conn->fd};

    return conn->fd >= 0 && poll(&end, 1, 0) == 0;
}

struct conn *conn_on(struct hostile *h, unsigned node)
{
    struct conn *conn = slot_of(h, node);

    if (conn_is_up(conn) && !conn->spoiled)
        return conn;
    conn_close(conn);
    return conn_open(h, conn, node) ? conn : NULL;
}

struct conn *conn_any(struct hostile *h)
{
    unsigned node = dice_below(&h->dice, h->nsockets);
    struct conn *conn = slot_of(h, node);

    if (!conn_is_up(conn)) {
        conn_close(conn);
        if (!conn_open(h, conn, node))
            return NULL;
    }
    conn->spoiled = true;
    return conn;
}

bool wire_answer(struct conn *conn, struct msg *ret_msg, int fds[2])
{
    while (conn->fd >= 0 && answer_next(conn, ret_msg, fds)) {
        if (ret_msg->type == MSG_JOINED || ret_msg->type == MSG_JOIN_FAILED)
            return true;
        if (ret_msg->type == MSG_REFUSED)
            conn_close(conn);
        msg_fini(ret_msg);
        close_fdp(&fds[0]);
        close_fdp(&fds[1]);
    }
    return false;
}

void stray_keep(struct hostile *h, int fd)
{
    int *place = &h->strays[dice_below(&h->dice, STRAYS)];

    close_fdp(place);
    *place = fd;
}

int stray_any(struct hostile *h)
{
    return h->strays[dice_below(&h->dice, STRAYS)];
}

/* ---- messages ------------------------------------------------------------------------- */

/* Own ones, short so that processes meet under them, and sometimes as long as may be. */
void fill_name(struct hostile *h, char name[MSG_GROUP_MAX])
{
    if (dice_one_in(&h->dice, 2))
        snprintf(name, MSG_GROUP_MAX, "hostile-%u", dice_below(&h->dice, 20));
    else if (dice_one_in(&h->dice, 8))
        snprintf(name, MSG_GROUP_MAX, "hostile-%0240u", h->names++ % 1000);
    else
        snprintf(name, MSG_GROUP_MAX, "%s-%u", h->prefix, h->names++);
}

uint64_t id_any(struct hostile *h)
{
    struct team *g = &h->groups[dice_below(&h->dice, GROUPS)];

    switch (dice_below(&h->dice, 6)) {
    case 0:
        return dice_odd(&h->dice);
    case 1: /* near ours: the cluster's numbers are no secret */
        return h->nids
                   ? h->ids[dice_below(&h->dice, MIN(h->nids, 64u))] + dice_below(&h->dice, 5) - 2
                   : 7;
    case 2:
        return h->nids ? h->ids[dice_below(&h->dice, MIN(h->nids, 64u))] : 7;
    default:
        return g->id;
    }
}

void wire_any_msg(struct hostile *h, struct msg *ret_msg)
{
    struct dice *d = &h->dice;
    struct msg msg = {.type = 1 + dice_below(d, 11)};

    if (msg.type == MSG_WELCOME) /* none of a client's; the tenth is, and the eleventh */
        msg.type = MSG_GPU_ASK;
    if (msg.type == MSG_JOINED)
        msg.type = MSG_CLIENT_WITHDRAW;
    switch ((unsigned)msg.type) {
    case MSG_CLIENT_HELLO:
        msg.client_hello = (struct msg_client_hello){
            .version = MSG_VERSION, .admin = dice_below(d, 2), .program = "hostile"};
        break;
    case MSG_CLIENT_JOIN:
        msg.client_join = (struct msg_client_join){
            .req = dice_below(d, 64),
            .size = 1 + dice_below(d, dice_one_in(d, 4) ? MSG_MAX_RANKS : 6),
            .timeout_ms = dice_odd(d)};
        msg.client_join.rank = dice_below(d, msg.client_join.size);
        fill_name(h, msg.client_join.name);
        break;
    case MSG_CLIENT_WITHDRAW:
        msg.client_withdraw.req = dice_below(d, 64);
        break;
    case MSG_CLIENT_LEAVE:
        msg.client_leave = (struct msg_client_leave){id_any(h), (uint32_t)dice_odd(d)};
        break;
    case MSG_CLIENT_ABORT:
        msg.client_abort.group = id_any(h);
        memset(msg.client_abort.text, '%', dice_below(d, MSG_TEXT_MAX - 1));
        break;
    case MSG_ADMIN:
        strcpy(msg.admin.verb, dice_one_in(d, 2) ? "groups" : "no such");
        break;
    case MSG_CLIENT_ASK_ABSENT:
        msg.client_ask_absent =
            (struct msg_client_ask_absent){id_any(h), (uint32_t)dice_odd(d), dice_odd(d)};
        break;
    case MSG_GPU_ASK:
        msg.gpu_ask.req = (uint32_t)dice_odd(d);
        break;
    case MSG_ARENA_ADD:
        msg.arena_add = (struct msg_arena_add){(uint32_t)dice_odd(d), dice_odd(d), dice_odd(d)};
        break;
    case MSG_ARENA_DEL:
        msg.arena_del.arena = dice_odd(d);
        break;
    case MSG_ARENA_ASK:
        msg.arena_ask =
            (struct msg_arena_ask){(uint32_t)dice_odd(d), dice_below(d, 6), id_any(h), dice_odd(d)};
        break;
    }
    *ret_msg = msg;
}
