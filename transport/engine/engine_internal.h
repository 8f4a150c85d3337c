/* engine_internal.h - what the files of the engine share: engine.c (turns), engine_board.c (the
 * life of a board), engine_bells.c (what wakes it), engine_op.c with engine_check.c, engine_data.c
 * engine_flow.c and engine_cells.c (operations), engine_p2p.c (mail), engine_msg.c (what comes from
 * the network), engine_inbox.c (messages that came before their move), engine_pending.c (messages
 * that came before their group), engine_send.c (in which order messages go out), engine_pool.c
 * (memory that goes around). */
#ifndef COMMD_ENGINE_INTERNAL_H
#define COMMD_ENGINE_INTERNAL_H

#include <sys/queue.h>

#include "shm/board/board.h"
#include "transport/engine/engine.h"
#include "transport/schedule/fair.h"
#include "transport/schedule/flow.h"
#include "transport/schedule/schedule.h"

/* Header of every message between engines. Hosts of one cluster share byte order and layout:
 * the control link refuses other versions. */
#define WIRE_CHECK  UINT32_MAX
#define WIRE_MAIL   (UINT32_MAX - 1)
#define WIRE_TAKEN  (UINT32_MAX - 2)
#define WIRE_PASSED (UINT32_MAX - 3)
enum {
    WIRE_BAD = 1,
    WIRE_COUNTED = 2, /* the sender is told when it was taken: engine_send.c */
    WIRE_LAST = 4,    /* mail: behind all that has come, and without a number */
};

struct wire_hdr {
    uint64_t group;
    uint64_t fingerprint; /* of the operation's description */
    uint32_t op;          /* number of the operation on the boards of this group */
    uint32_t step;        /* in the operation; WIRE_CHECK: the consistency check; WIRE_MAIL: below;
                           * WIRE_TAKEN: op is how many bytes, and there is no group;
                           * WIRE_PASSED: engine_flow.c */
    uint32_t len;         /* body bytes */
    uint16_t move;        /* sender's move index; WIRE_PASSED: sender's node in the group */
    uint16_t flags;
    uint32_t uid;    /* whose group it is, as the sender's commd says */
    uint32_t passed; /* WIRE_PASSED: steps that the sender is through with */
};
_Static_assert(sizeof(struct wire_hdr) == 40, "wire layout");

/* The consistency check carries descriptions too. */
struct wire_check {
    struct wire_hdr h;
    uint32_t rank_a, rank_b;
    struct op_desc a, b;       /* WIRE_BAD: two that differ; else a is the sender's */
    struct op_balance balance; /* of the ranks whose contributions the sender holds */
};
_Static_assert(sizeof(struct wire_check) == 136, "wire layout");

/* A record of one rank for another, see shm/board/mail.h; op is its number among those that go into
 * the same ring, fingerprint and move are 0. */
struct wire_mail {
    struct wire_hdr h;
    uint8_t rec[sizeof(struct mail_rec)];
};
_Static_assert(sizeof(struct wire_mail) == 168, "wire layout");
_Static_assert(MAIL_KINDS == 12, "all engines know the same kinds: MSG_VERSION");

/* A message that nobody waits for yet. */
struct inmsg {
    struct inmsg *next;
    unsigned peer;
    union {
        struct wire_hdr h;
        struct wire_check b;
        struct wire_mail m;
    };
    const uint8_t *body; /* eager; owned copy once queued */
    void *claim;         /* rendezvous */
    uint64_t came_ms;
    bool on_stack;
};

struct inbox {
    struct inmsg *head, **tail;
    size_t bytes; /* of memory that they take */
    unsigned n;
};

/* Scratch is of sizes up to PLAN_CHUNK_NET, each twice the one before. */
enum { SCRATCH_SIZES = 3, SCRATCH_LEAST = PLAN_CHUNK_NET >> (SCRATCH_SIZES - 1) };

enum { ENGINE_HASH = 1024, ENGINE_CLOSED = 256, ENGINE_PEER_WORDS = FABRIC_MAX_PEERS / 64 };

/* Whose groups there are. Kept for a while after the last one, for the sake of `closed`. */
struct euser {
    TAILQ_ENTRY(euser) link;
    TAILQ_ENTRY(euser) busy_link; /* while there are active ones */
    TAILQ_HEAD(, eboard) active;
    uint32_t uid;
    uint32_t weight;  /* of what it sends, beside others */
    unsigned nboards; /* that name it, also dead ones */
    unsigned nactive;
    size_t sending;      /* bytes of mail on their way, of all its boards */
    uint64_t sent, told; /* bytes to other nodes; of these engine_sent() has told */
    uint64_t told_ms;
    uint64_t closed[ENGINE_CLOSED]; /* recent groups: their late messages are dropped */
    unsigned nclosed;
};

/* What came for groups that commd has not told us about, see engine_pending.c. */
struct lgroup;
struct luser;
enum { PENDING_HASH = 1024, PENDING_FLOODED = 1024 };

struct pending {
    TAILQ_HEAD(, lgroup) groups;
    struct lgroup *hash[PENDING_HASH];
    struct luser *users;
    size_t peer_cost[FABRIC_MAX_PEERS], cost;
    unsigned n; /* messages */
    struct {
        uint64_t group;
        unsigned peer;
        bool used;
    } flooded[PENDING_FLOODED]; /* groups of which a message was dropped */
    unsigned nflooded;
    uint64_t swept_ms;
};

/* A step that the network works on. */
struct estep {
    struct eboard *eb;
    uint32_t g; /* absolute number */
    uint32_t c; /* in its operation */
    bool active, done, posted, receiving;
    uint16_t move, moves; /* the move whose receive is awaited */
    uint16_t sent;        /* moves whose sends are out */
    unsigned sends;       /* in flight, reading the result window */
    uint8_t *scratch;     /* rendezvous body on its way into a reduction, or into cells */
    struct sched_move mv; /* the move being received */
};

enum eboard_state { EB_IDLE, EB_CHECK, EB_DATA };

struct eboard {
    struct eboard *next; /* hash chain */
    TAILQ_ENTRY(eboard) active_link;
    TAILQ_ENTRY(eboard) end_link; /* closing, or in the graveyard */
    struct engine *e;
    struct euser *user; /* borrowed: outlives its boards */
    struct board b;
    struct plan_geom geom;
    uint32_t *node_start; /* owned */
    uint32_t *peers;      /* owned; fabric peer of each participant */
    uint32_t *local_rank; /* owned; rank of each local member */
    uint32_t *rank_node;  /* owned; node of each rank */
    uint32_t *rank_at;    /* owned; rank at each position */
    uint32_t *clients;    /* owned; whose doorbells are for this board */
    unsigned nclients;
    uint64_t among[ENGINE_PEER_WORDS]; /* fabric peers that take part */
    uint32_t uid;
    bool active, closing, dead;
    uint64_t closing_ms;
    bool polling;      /* inside eboard_poll(): a callback must not enter it again */
    unsigned inflight; /* requests whose callbacks name this board */

    enum eboard_state state;
    uint32_t op;   /* counts operations; the same on all nodes */
    uint32_t base; /* next or current operation's first step */
    unsigned seen; /* members known to have announced */
    uint32_t seen_step;
    struct op_desc desc;
    uint64_t fingerprint;
    struct plan plan;
    uint64_t *rows; /* owned; [local member][2][world]: copies of board_counts() */

    /* the consistency check, with a small payload */
    enum sched_kind check_schedule;
    unsigned cmove, cmoves;
    bool learned, cposted, creceiving;
    struct sched_move cmv;
    uint8_t *acc; /* `room` bytes each, private: nobody changes them under the network */
    uint8_t *tmp;
    size_t room;
    bool in_place; /* the last move has put the result where members find it */
    size_t tmp_len;
    struct op_balance balance;
    bool bad;
    uint32_t rank_a, rank_b;
    struct op_desc bad_a, bad_b;

    /* data */
    bool one_way;             /* nodes may get ahead of each other: engine_flow.c */
    uint32_t *passed;         /* owned; by node: steps that it has said it is through with */
    uint32_t next_start;      /* step in the operation to start next */
    uint32_t published, sent; /* absolute, private copies */
    struct estep steps[PLAN_DEPTH_NET];

    struct email *mail;        /* owned; NULL: nobody has sent a message */
    struct send_group **sends; /* owned; by node; NULL: nothing has had to take its turn */

    struct inmsg *fresh; /* the message being delivered right now */
    struct inbox inbox;
};

/* A copy of what is on its way, so that it may change here meanwhile. */
struct sbuf {
    struct sbuf *next;
    struct eboard *eb;
    uint8_t *lent; /* owned: an acc that is on its way */
    bool pooled;   /* data has PLAN_SMALL bytes */
    uint8_t data[];
};

struct chunk {
    struct chunk *next;
};

/* The way to one node, see engine_send.c. */
struct send_link {
    struct fair users;
    LIST_HEAD(, send_user) all;
    size_t under_way;               /* counted, and not yet taken there */
    size_t taken;                   /* here, and not yet told */
    TAILQ_ENTRY(send_link) waiting; /* while users are listed */
    bool listed;
};

struct engine {
    struct fabric *f;      /* borrowed */
    struct closer *closer; /* borrowed; NULL: boards are unmapped at once */
    struct fabric_events fev;
    struct engine_events ev;
    char node[MSG_NAME_MAX];
    struct eboard *hash[ENGINE_HASH];
    TAILQ_HEAD(, euser) busy; /* users with active boards */
    TAILQ_HEAD(, eboard) closing;
    TAILQ_HEAD(, eboard) graveyard; /* dead, requests still in flight */
    struct ebell **bells;           /* owned; by client */
    struct ebell *ringing;          /* those whose boards were not all looked at yet */
    unsigned nbells;
    unsigned nboards;
    unsigned nactive;
    unsigned nowners;                     /* users with boards */
    unsigned rescue_at;                   /* hash chain with which engine_poll_all() goes on */
    bool published;                       /* engine_published() */
    struct sbuf *sbufs;                   /* free ones */
    struct chunk *scratch[SCRATCH_SIZES]; /* free ones */
    size_t scratch_kept;                  /* bytes */
    struct pending pending;               /* for groups that commd has not told us about yet */
    TAILQ_HEAD(euser_list, euser) users;
    unsigned nusers;
    struct send_link links[FABRIC_MAX_PEERS];
    TAILQ_HEAD(, send_link) links_waiting;
    size_t turn_left;          /* bytes that may be handed over before the next turn */
    const struct eboard *sole; /* which has sent last */
    size_t sole_bytes;         /* in a row */
};

/* engine_board.c */
struct eboard *eboard_find(struct engine *e, uint64_t group); /* NULL: not known */
void eboard_activate(struct eboard *eb);
void eboard_deactivate(struct eboard *eb);
/* Gives the group up: members and commd are told why. Nothing, if the board is dead already. */
void eboard_fail(struct eboard *eb, unsigned cause, int peer, const char *fmt, ...) _printf_(4, 5);
/* Frees boards that wait for nothing any more. Between turns, never from a callback; some each
 * time, in turns: they may be many, and wait for long. */
void boards_sweep(struct engine *e);
void boards_free(struct engine *e); /* and the users */

/* engine_pool.c */
struct sbuf *sbuf_get(struct eboard *eb, size_t len); /* NULL: no memory */
void sbuf_put(struct sbuf *s);
/* At least @len bytes, at most PLAN_CHUNK_NET; NULL: no memory. Given back with the same @len. */
uint8_t *scratch_get(struct engine *e, size_t len);
void scratch_put(struct engine *e, uint8_t *p, size_t len);
size_t scratch_size(size_t len); /* which it takes */
void pools_free(struct engine *e);

/* engine_bells.c */
int bells_board_add(struct eboard *eb, const struct msg_board_add *m);
void bells_board_del(struct eboard *eb);
/* Goes on with the doorbells that rang. True: not all of their boards were looked at yet. */
bool bells_turn(struct engine *e);
void bells_free(struct engine *e);

/* engine_cells.c: windows of cells. Bytes that this node sends to (or receives from) @node in step
 * @c, packed in the order in which both sides have them: by sending pos, then by receiving. */
size_t cells_len(const struct eboard *eb, uint32_t c, unsigned node, bool send);
/* Where they lie without a gap, or NULL. */
uint8_t *cells_in_one(const struct eboard *eb, const struct estep *s, unsigned node, bool send);
/* All of them from the windows into @buf, or from @buf into the result window. */
void cells_copy(const struct eboard *eb, const struct estep *s, unsigned node, bool send,
                uint8_t *buf);
/* Copies what members said of their counts. False: the board was failed. */
bool cells_learn(struct eboard *eb);

/* engine_flow.c */
bool step_may_go(const struct eboard *eb, uint32_t c); /* do all who get it have room? */
/* Steps were published, of which @before had been already. */
void steps_tell(struct eboard *eb, uint32_t before);
void steps_were_passed(struct eboard *eb, const struct inmsg *m); /* WIRE_PASSED */
/* May it have been sent already? */
bool message_may_come(const struct eboard *eb, const struct inmsg *m);

/* engine_send.c */
void sends_init(struct engine *e);
void sends_fini(struct engine *e); /* ends what waits */
/* As fabric's send(): the body has h->len bytes. */
int eboard_send(struct eboard *eb, unsigned node, struct wire_hdr *h, size_t hdr_len,
                const void *body, fabric_done_fn done, void *arg);
bool sends_turn(struct engine *e);   /* what may go now; true if something went */
void sends_flush(struct eboard *eb); /* all of this board, though it is not its turn */
void sends_drop_peer(struct engine *e, unsigned peer);
void sends_board_free(struct eboard *eb);
void sends_weigh(struct engine *e, const struct euser *user); /* its weight is another now */
/* A counted message of @len bytes came from @peer; so many of ours were taken by it. */
void sends_count_taken(struct engine *e, unsigned peer, size_t len);
void sends_were_taken(struct engine *e, unsigned peer, uint32_t bytes);

/* engine_op.c: one look at a board; true if something moved */
bool eboard_poll(struct eboard *eb);

/* What a failed send or receive means is not ours to say: commd knows whether the engine, the
 * commd or the whole node behind it is gone. The board just stops. */
void eboard_link_failed(struct eboard *eb, unsigned node, int err);

/* engine_p2p.c */
bool mail_poll(struct eboard *eb); /* true if something moved */
/* The board goes, its members are gone: sends all that they have written, at once. The bodies stay
 * where they are until they are sent: in the board, which does not go before. */
void mail_flush(struct eboard *eb);
/* What members have written waits for room on the network. */
bool mail_waits(const struct eboard *eb);
/* All that members have written is sent. */
bool mail_settled(const struct eboard *eb);
/* A message of mail; its claim is used up. */
void mail_arrived(struct eboard *eb, struct inmsg *m);
/* The same for a group that is closed here. */
void mail_answer_closed(struct engine *e, const struct inmsg *m);
void mail_free(struct eboard *eb);

/* engine_msg.c */
void engine_on_msg(void *arg, const struct fabric_msg *msg);

/* engine_inbox.c */
void inbox_init(struct inbox *in);
/* A copy of @m, which has to wait, with the body of @fm. NULL: no memory. */
struct inmsg *inmsg_keep(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm);
/* The message @op, @step, @move from fabric peer @peer, or NULL. Release with inmsg_done(). */
struct inmsg *inbox_take(struct eboard *eb, uint32_t step, unsigned move, unsigned peer);
void inmsg_done(struct engine *e, struct inmsg *m);
#define INBOX_ANY_AGE INT64_MAX
void inbox_drop(struct engine *e, struct inbox *in, int64_t older_than_ms, int peer);
void inbox_drop_op(struct eboard *eb);              /* what belongs to the current operation */
void inmsg_free(struct engine *e, struct inmsg *m); /* with its claim */
size_t inmsg_cost(const struct inmsg *m);
/* Take @m on true: there was room, and it may have been sent already. */
bool inbox_push(struct inbox *in, struct inmsg *m);
bool inbox_keep(struct eboard *eb, struct inmsg *m);
void inbox_unlink(struct inbox *in, struct inmsg **at);

/* engine_pending.c */
void pending_init(struct engine *e);
/* Takes @m, which came for a group that is not known. */
void pending_keep(struct engine *e, struct inmsg *m);
/* Has a message of this group been dropped? Then no further one is kept. */
bool pending_flooded(const struct engine *e, uint64_t group, unsigned peer);
void pending_mark_flooded(struct engine *e, uint64_t group, unsigned peer);
/* Gives the board what waited for it, or fails it if something is missing. */
void pending_adopt(struct eboard *eb);
/* What nobody has told us about for a minute. */
void pending_sweep(struct engine *e);
void pending_expire(struct engine *e, int64_t older_than_ms); /* those that came before */
void pending_drop_peer(struct engine *e, unsigned peer);
void pending_fini(struct engine *e);
const struct inmsg *pending_oldest(const struct engine *e);

#endif
