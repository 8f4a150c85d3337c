/* hostile.h - one process of the hostile tenant: what it holds, and what it can do. See
 * hostile.c. */
#ifndef COMMD_TEST_HOSTILE_H
#define COMMD_TEST_HOSTILE_H

#include "shm/board/board.h"
#include "shm/proto/codec.h"
#include "tests/hostile/dice.h"

enum {
    NODES_MAX = 2,
    CONNS = 16,
    STRAYS = 96,
    FAR_ENDS = 1024,
    GROUPS = 8,
    RANKS = 4,
    FDS_MOST = 253,
    CHILDREN = 6
};

/* A session with a commd that has welcomed us. */
struct conn {
    int fd;       /* owned; -1: none */
    int doorbell; /* owned; -1: none */
    unsigned node;
    bool spoiled; /* something was sent on it that commd may not forgive */
    uint32_t req;
};

/* A rank of ours: the board of its node, and the doorbell of its session. All owned. */
struct rank {
    int board_fd, doorbell; /* -1: none */
    int conn;               /* index of the session, which may be gone */
    struct board board;     /* hdr NULL: not mapped */
    struct mail_tx mail;    /* to the engine; cells NULL: one node only */
};

/* A group whose ranks are ours, all or one. */
struct team {
    uint64_t id; /* 0: unused */
    unsigned size;
    uint32_t step; /* that we announce next */
    uint64_t seq;
    struct rank ranks[RANKS];
};

struct hostile {
    struct dice dice;
    const char *sockets[NODES_MAX];
    unsigned nsockets;
    char prefix[32]; /* of the names of our groups */
    unsigned names;
    struct conn conns[CONNS];
    int strays[STRAYS];     /* owned: descriptors that only have to stay open; -1 */
    int far_ends[FAR_ENDS]; /* owned: of lingering connections, the oldest next to go; -1 */
    unsigned nfar_ends;
    struct team groups[GROUPS];
    uint64_t ids[64]; /* of groups that we were in */
    unsigned nids, nchildren;
};

struct action {
    const char *name;
    unsigned weight;
    void (*act)(struct hostile *h);
};
extern const struct action socket_actions[], fd_actions[], board_actions[],
    client_actions[]; /* end: NULL */

/* ---- sessions (wire.c) ---------------------------------------------------------------- */
/* Nothing here waits longer than a moment. -1 where nothing comes of it. */
int wire_connect(struct hostile *h, unsigned node);
struct conn *conn_any(struct hostile *h); /* to say anything to; NULL: commd does not want us now */
struct conn *conn_on(struct hostile *h, unsigned node); /* of which an answer can be hoped for */
void conn_close(struct conn *conn);
void stray_keep(struct hostile *h, int fd);
int stray_any(struct hostile *h); /* borrowed; -1 */
/* Sends what fits. */
bool wire_send(int fd, const void *data, size_t len, const int *fds, unsigned nfds);
bool wire_msg(int fd, const struct msg *msg, const int *fds, unsigned nfds);
/* A whole frame with any body, for what the codec would not encode. */
void wire_raw(struct hostile *h, int fd, unsigned type, const void *body, size_t len,
              const int *fds, unsigned nfds);
/* Waits for the next answer to a join, with its fds or -1; false: none came, and the session is
 * closed. */
bool wire_answer(struct conn *conn, struct msg *ret_msg, int fds[2]);
void wire_hello(int fd, bool admin);
void wire_question(int fd, const char *verb);
void fill_name(struct hostile *h, char name[MSG_GROUP_MAX]);
/* A message that a client may send, with any numbers in it. */
void wire_any_msg(struct hostile *h, struct msg *ret_msg);
uint64_t id_any(struct hostile *h); /* of a group: ours, a former one, none at all */

/* ---- groups (teams.c) ----------------------------------------------------------------- */
/* The next name, all @size ranks ours; or only the last, @rank. NULL: it did not come about. */
struct team *team_make(struct hostile *h, unsigned size, bool both_nodes);
struct team *team_join(struct hostile *h, unsigned size, unsigned rank);
struct team *team_any(struct hostile *h);
void team_forget(struct team *g);                                  /* nobody is told */
struct rank *rank_any(struct hostile *h, struct team **ret_group); /* with a mapped board */
/* Whatever kind of file a doorbell is: eight bytes suit all. Does not wait, whatever flags we
 * gave it. -1: nothing. */
void bell_put(int bell, uint64_t value);

/* ---- descriptors (act_fds.c) ---------------------------------------------------------- */
int fd_of_any_kind(struct hostile *h);
void fds_give(struct hostile *h, int fd, const void *data,
              size_t len); /* with up to FDS_MOST of them */
int fd_memory(struct hostile *h, size_t size, bool sealed);

#endif
