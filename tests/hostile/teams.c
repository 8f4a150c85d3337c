/* teams.c - groups whose ranks are all ours, on one node or on both, with their boards mapped.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>

#include "tests/hostile/hostile.h"

void team_forget(struct team *g)
{
    for (unsigned i = 0; i < RANKS; i++) {
        struct rank *rank = &g->ranks[i];

        if (rank->board.hdr)
            board_unmap(&rank->board);
        close_fdp(&rank->board_fd);
        close_fdp(&rank->doorbell);
    }
    memset(g, 0, sizeof(*g));
    for (unsigned i = 0; i < RANKS; i++)
        g->ranks[i].board_fd = g->ranks[i].doorbell = -1;
}

/* What JOINED brought; @fds: taken. */
static void pos_of(struct hostile *h, struct team *g, unsigned r, struct conn *conn,
                   const struct msg_joined *joined, int fds[2])
{
    struct rank *rank = &g->ranks[r];
    unsigned local = 0;

    if (joined->new_doorbell) {
        close_fdp(&conn->doorbell);
        conn->doorbell = steal_fd(&fds[1]);
    }
    rank->conn = (int)(conn - h->conns);
    rank->board_fd = steal_fd(&fds[0]);
    rank->doorbell = conn->doorbell >= 0 ? fcntl(conn->doorbell, F_DUPFD_CLOEXEC, 0) : -1;
    g->id = joined->group;
    if (board_map(rank->board_fd, &rank->board)) {
        rank->board.hdr = NULL;
        return;
    }
    for (unsigned i = 0; i < r && i < joined->size; i++)
        local += joined->members[i].node == joined->members[r].node;
    if (rank->board.nnodes > 1)
        mail_engine_tx_init(&rank->board.mail, local, &rank->mail);
}

/* Ranks [first, size) of a group of @size, on alternating nodes or on one. */
static struct team *seat_all(struct hostile *h, unsigned first, unsigned size, bool both_nodes)
{
    struct team *g = &h->groups[dice_below(&h->dice, GROUPS)];
    struct msg msg = {.type = MSG_CLIENT_JOIN};
    unsigned node = dice_below(&h->dice, h->nsockets);
    struct conn *conns[RANKS];
    uint32_t reqs[RANKS];

    team_forget(g);
    snprintf(msg.client_join.name, MSG_GROUP_MAX, "%s-%u", h->prefix, h->names++);
    for (unsigned r = first; r < size; r++) {
        conns[r] = conn_on(h, node + (both_nodes ? r : 0));
        if (!conns[r])
            return NULL;
        msg.client_join.req = reqs[r] = 1000 + conns[r]->req++;
        msg.client_join.rank = r;
        msg.client_join.size = size;
        msg.client_join.timeout_ms = 2000;
        if (!wire_msg(conns[r]->fd, &msg, NULL, 0)) {
            conn_close(conns[r]);
            return NULL;
        }
    }
    for (unsigned r = first; r < size; r++) {
        struct msg answer;
        int fds[2];

        while (reqs[r] && wire_answer(conns[r], &answer, fds)) {
            uint32_t req = answer.type == MSG_JOINED ? answer.joined.req : answer.join_failed.req;

            for (unsigned q = first; q < size; q++) {
                if (conns[q] != conns[r] || reqs[q] != req)
                    continue;
                if (answer.type == MSG_JOINED)
                    pos_of(h, g, q, conns[q], &answer.joined, fds);
                reqs[q] = 0;
            }
            msg_fini(&answer);
            close_fdp(&fds[0]);
            close_fdp(&fds[1]);
        }
    }
    if (!g->id)
        return NULL;
    g->size = size;
    g->step = BOARD_FIRST_STEP;
    g->seq = 1;
    h->ids[h->nids++ % ARRAY_LEN(h->ids)] = g->id;
    return g;
}

struct team *team_make(struct hostile *h, unsigned size, bool both_nodes)
{
    return seat_all(h, 0, size, both_nodes);
}

struct team *team_join(struct hostile *h, unsigned size, unsigned rank)
{
    return seat_all(h, rank, size, false);
}

struct team *team_any(struct hostile *h)
{
    struct team *g = &h->groups[dice_below(&h->dice, GROUPS)];

    if (g->id)
        return g;
    return team_make(h, 1 + dice_below(&h->dice, RANKS), !dice_one_in(&h->dice, 4));
}

struct rank *rank_any(struct hostile *h, struct team **ret_group)
{
    struct team *g = team_any(h);

    if (!g)
        return NULL;
    *ret_group = g;
    for (unsigned i = 0, r = dice_below(&h->dice, g->size); i < g->size; i++, r = (r + 1) % g->size)
        if (g->ranks[r].board.hdr)
            return &g->ranks[r];
    return NULL;
}

void bell_put(int bell, uint64_t value)
{
    struct pollfd room = {.fd = bell, .events = POLLOUT};

    if (bell >= 0 && poll(&room, 1, 0) == 1 && room.revents & POLLOUT)
        (void)!write(bell, &value, sizeof(value));
}
