/* engine_internal.h - what the files of the engine share; doc/architecture.md says which does what.
 */
#ifndef COMMD_ENGINE_INTERNAL_H
#define COMMD_ENGINE_INTERNAL_H

#undef NDEBUG /* what is asserted here is cheap: it holds in every build */
#include <assert.h>
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
    WIRE_COUNTED = 2, /* the sender is told when the message was taken: engine_send.c */
    WIRE_LAST = 4,    /* mail: has no number, and goes behind all that has come */
};

struct wire_hdr {
    uint64_t group;
    uint64_t fingerprint; /* of the operation's description */
    uint32_t op;          /* number of the operation on the boards of this group */
    uint32_t step; /* of the operation; or WIRE_CHECK: the consistency check; WIRE_MAIL: below;
                    * WIRE_TAKEN: @op bytes were taken, of whatever group; WIRE_PASSED:
                    * engine_flow.c */
    uint32_t len;  /* body bytes */
    uint16_t move; /* sender's move index; WIRE_PASSED: sender's node in the group */
    uint16_t flags;
    uint32_t uid;    /* of the group's user, as the sender's commd says */
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

/* A record of one rank for another, see shm/board/mail.h; @op is its number among the records for
 * the same ring, @fingerprint and @move are 0. */
struct wire_mail {
    struct wire_hdr h;
    uint8_t rec[sizeof(struct mail_rec)];
};
_Static_assert(sizeof(struct wire_mail) == 168, "wire layout");
_Static_assert(MAIL_KINDS == 12, "all engines know the same kinds: MSG_VERSION");

/* A message that nobody waits for yet. */
struct inmsg {
    TAILQ_ENTRY(inmsg) link;
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
    TAILQ_HEAD(, inmsg) all;
    size_t bytes; /* of memory that they take */
    unsigned n;
};

/* Scratch is of sizes up to PLAN_CHUNK_NET, each twice the one before. */
enum { SCRATCH_SIZES = 3, SCRATCH_LEAST = PLAN_CHUNK_NET >> (SCRATCH_SIZES - 1) };

enum { ENGINE_HASH = 1 << 10, ENGINE_CLOSED = 256, ENGINE_PEER_WORDS = FABRIC_MAX_PEERS / 64 };

static inline unsigned hash_bucket(uint64_t group)
{
    return (unsigned)((group * 0x9e3779b97f4a7c15ull) >> 54);
}

/* A user with groups. It is kept for a while after its last group, for the sake of `closed`. */
struct euser {
    TAILQ_ENTRY(euser) link;
    TAILQ_ENTRY(euser) busy_link; /* while it has active boards */
    TAILQ_HEAD(, eboard) active;
    uint32_t uid;
    uint32_t weight;  /* of what it sends, beside others */
    unsigned nboards; /* that refer to it, dead ones included */
    unsigned nactive;
    size_t sending;      /* bytes of mail on their way, of all its boards */
    uint64_t sent, told; /* bytes to other nodes; of these engine_sent() has told */
    uint64_t told_ms;
    uint64_t closed[ENGINE_CLOSED]; /* recent groups: their late messages are dropped */
    unsigned nclosed;
};

/* What came for groups that commd has not told us about, see engine_pending.c. */
enum { PENDING_FLOODED = 1024 };

struct pending {
    TAILQ_HEAD(, lgroup) groups;
    LIST_HEAD(, lgroup) hash[ENGINE_HASH];
    LIST_HEAD(, luser) users;
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

/* Of a schedule that is gone through move by move: a step, or the consistency check. */
enum step_state {
    STEP_FREE,      /* not begun, or published */
    STEP_NEXT,      /* the next move has yet to be begun */
    STEP_AWAITED,   /* the message of the current move is awaited */
    STEP_RECEIVING, /* the body of that message is on its way */
    STEP_DONE,      /* all moves are through */
    STEP_NSTATES,
};
void step_set_state(enum step_state *state, enum step_state to); /* engine_op.c */

/* A step that the network works on. */
struct estep {
    struct eboard *eb;
    uint32_t g; /* absolute number */
    uint32_t c; /* in its operation */
    enum step_state state;
    uint16_t move, moves; /* the move whose receive is awaited; how many there are */
    uint16_t sent;        /* moves whose sends are out */
    unsigned sends;       /* in flight, reading the result window */
    uint8_t *scratch;     /* rendezvous body on its way into a reduction, or into cells */
    struct sched_move mv; /* the current move */
};

enum eboard_state { EB_IDLE, EB_LEARNED, EB_CHECK, EB_DATA, EB_NSTATES }; /* engine_op.c */
/* PAUSES: no operation is begun beyond some number: engine_pause.c. HELD: nothing more is begun,
 * and what comes waits: engine_hold.c. */
enum eboard_hold { EB_RUNS, EB_PAUSES, EB_HELD, EB_NHOLDS };

/* PAUSES: who asked for it, and until when. */
struct epause {
    uint32_t asker, attempt;
    uint32_t ops; /* operations that may be done */
    bool final;   /* all nodes stop there, and no message of members is taken any more */
    bool told;    /* that it is quiet, when @sent messages had gone and @came had come */
    uint32_t sent, came;
    uint64_t since_ms, until_ms; /* then it goes on by itself */
};

struct eboard {
    LIST_ENTRY(eboard) hash_link;
    TAILQ_ENTRY(eboard) active_link;
    TAILQ_ENTRY(eboard) end_link; /* closing, or in the graveyard */
    struct engine *e;
    struct euser *user; /* borrowed: outlives its boards */
    struct board b;
    struct plan_geom geom;
    uint32_t *node_start; /* owned; the memory of the next four and of passed, too */
    uint32_t *peers;      /* fabric peer of each participant */
    uint32_t *local_rank; /* rank of each local member */
    uint32_t *rank_node;  /* node of each rank */
    uint32_t *rank_at;    /* rank at each position */
    uint32_t *clients;    /* owned; clients whose doorbells are for this board */
    unsigned nclients;
    uint64_t among[ENGINE_PEER_WORDS]; /* fabric peers that take part */
    uint32_t uid;
    bool active, closing, dead, removed; /* see engine_board.c; removed: not to be found any more */
    enum eboard_hold hold;
    struct epause pause;
    uint64_t pauses_from_ms;       /* not before: the last time was in vain */
    struct msg_board_held went_on; /* from where it went on over another engine; group 0: never */
    uint64_t closing_ms;
    unsigned round;  /* the engine's, when commd named it last */
    char *failure;   /* owned: what commd was told when it failed; NULL: it has not, or no memory */
    unsigned cause;  /* likewise */
    int failed_peer; /* likewise */
    bool polling;    /* inside eboard_poll(): a callback must not enter it again */
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
    enum step_state check;
    unsigned cmove, cmoves;
    struct sched_move cmv;
    struct payload *acc; /* referenced; as tmp it has `room` bytes */
    uint8_t *tmp;        /* owned */
    size_t room;
    bool in_place; /* the last move has put the result where members find it */
    size_t tmp_len;
    struct op_balance balance;
    bool bad;
    uint32_t rank_a, rank_b;
    struct op_desc bad_a, bad_b;

    /* data */
    bool one_way;             /* nodes may get ahead of each other: engine_flow.c */
    uint32_t *passed;         /* by node: how many steps it said that it has passed */
    uint32_t next_start;      /* step in the operation to start next */
    uint32_t published, sent; /* absolute, private copies */
    struct estep steps[PLAN_DEPTH_NET];

    struct email *mail;                        /* owned; NULL: nobody has sent a message */
    uint32_t mail_begun, mail_sent, mail_came; /* private copies of those in the board */
    bool mail_anew;            /* its records are numbered anew, from what is in the rings */
    struct send_group **sends; /* owned; by node; NULL: no message has had to wait for its turn */

    struct inmsg *fresh; /* the message being delivered right now */
    struct inbox inbox;
};

/* What is in it nobody changes while somebody else needs it, too. */
struct payload {
    unsigned refs;
    _Alignas(16) uint8_t data[];
};

/* A copy of what is on its way: the original may change meanwhile. */
struct sbuf {
    struct sbuf *next;
    struct eboard *eb;
    struct payload *lent; /* referenced: an `acc` that is on its way */
    bool pooled;          /* data has PLAN_SMALL bytes */
    uint8_t data[];
};

struct chunk {
    struct chunk *next;
};

/* The way to one node, see engine_send.c. */
struct send_link {
    struct fair users;
    LIST_HEAD(, send_user) all;
    size_t under_way;               /* bytes sent, of which that node has not said it took them */
    size_t taken;                   /* bytes taken here, of which that node has not been told */
    TAILQ_ENTRY(send_link) waiting; /* while users are listed */
    bool listed;
};

struct engine {
    struct fabric *f;      /* borrowed */
    struct closer *closer; /* borrowed; NULL: boards are unmapped at once */
    struct fabric_events fev;
    struct engine_events ev;
    char node[MSG_NAME_MAX];
    LIST_HEAD(, eboard) hash[ENGINE_HASH];
    TAILQ_HEAD(, euser) busy; /* users with active boards */
    TAILQ_HEAD(, eboard) closing;
    TAILQ_HEAD(, eboard) graveyard; /* dead, requests still in flight */
    struct ebell **bells;           /* owned; by client */
    struct ebell *ringing;          /* doorbells whose boards were not all looked at yet */
    unsigned nbells;
    unsigned nboards;
    unsigned nactive;
    unsigned nowners;                     /* users with boards */
    unsigned round;                       /* how many times there was another commd */
    unsigned rescue_at;                   /* hash chain with which engine_poll_all() goes on */
    bool published;                       /* engine_published() */
    struct sbuf *sbufs;                   /* free */
    struct chunk *scratch[SCRATCH_SIZES]; /* free */
    size_t scratch_kept;                  /* bytes */
    struct pending pending;
    TAILQ_HEAD(euser_list, euser) users;
    unsigned nusers;
    struct send_link links[FABRIC_MAX_PEERS];
    TAILQ_HEAD(, send_link) links_waiting;
    size_t turn_left;          /* bytes that may be handed over before the next turn */
    const struct eboard *sole; /* the board that has sent last */
    size_t sole_bytes;         /* that it has sent in a row */
};

/* engine_board.c */
struct eboard *eboard_find(struct engine *e, uint64_t group); /* NULL: not known */
static inline bool eboard_among(const struct eboard *eb,
                                unsigned peer) /* has @peer a part in it? */
{
    assert(peer < FABRIC_MAX_PEERS);
    return eb->among[peer / 64] >> peer % 64 & 1;
}
void eboard_activate(struct eboard *eb);
void eboard_deactivate(struct eboard *eb);
/* Gives the group up: members and commd are told why. Does nothing if the board is dead. */
void eboard_fail(struct eboard *eb, unsigned cause, int peer, const char *fmt, ...) _printf_(4, 5);
/* Frees boards that wait for nothing any more; only some in each call, because they may be many.
 * Between turns, never from a callback. */
void boards_sweep(struct engine *e);
void boards_free(struct engine *e); /* and the users */

/* engine_pool.c */
struct sbuf *sbuf_get(struct eboard *eb, size_t len); /* NULL: no memory */
/* As eboard_send(), and gives @s back when nothing of it is needed any more. */
int sbuf_send(struct sbuf *s, unsigned node, struct wire_hdr *h, size_t hdr_len, const void *body);
struct payload *payload_new(size_t len); /* with one reference; NULL: no memory */
void payload_put(struct payload *p);     /* @p: NULL is ok */
/* At least @len bytes, at most PLAN_CHUNK_NET; NULL: no memory. Given back with the same @len. */
uint8_t *scratch_get(struct engine *e, size_t len);
void scratch_put(struct engine *e, uint8_t *p, size_t len); /* @p: NULL is ok */
size_t scratch_size(size_t len);                            /* bytes that @len bytes take */
void pools_free(struct engine *e);

/* engine_bells.c */
int bells_board_add(struct eboard *eb, const struct msg_board_add *m);
void bells_board_del(struct eboard *eb);
/* Goes on with the doorbells that rang. True if not all of their boards were looked at yet. */
bool bells_turn(struct engine *e);
void bells_free(struct engine *e);

/* engine_cells.c: windows of cells. Bytes of the cells that this node sends to (or receives from)
 * @node in step @c. */
size_t cells_len(const struct eboard *eb, uint32_t c, unsigned node, bool send);
/* Where these cells lie, or NULL if there are gaps between them. */
uint8_t *cells_in_one(const struct eboard *eb, const struct estep *s, unsigned node, bool send);
/* Copies these cells from the windows into @buf, or from @buf into the result window. */
void cells_copy(const struct eboard *eb, const struct estep *s, unsigned node, bool send,
                uint8_t *buf);
/* Copies what members said of their counts. False: the board was failed. */
bool cells_learn(struct eboard *eb);

/* engine_flow.c */
/* Is there anything to send to (or receive from) @node in step @c? */
bool has_part(const struct eboard *eb, uint32_t c, unsigned node, bool send);
bool step_may_go(const struct eboard *eb, uint32_t c); /* do all receivers have credit for it? */
/* Tells the senders how many steps are published, of which @before were so earlier. */
void steps_tell(struct eboard *eb, uint32_t before);
void steps_were_passed(struct eboard *eb, const struct inmsg *m); /* WIRE_PASSED */
/* Could a node that keeps the rule have sent @m by now? */
bool message_may_come(const struct eboard *eb, const struct inmsg *m);

/* engine_send.c */
void sends_init(struct engine *e);
void sends_fini(struct engine *e);    /* ends what waits */
void sent_nothing(void *arg, int st); /* a fabric_done_fn where no one waits for the end */
/* As fabric's send(): the body has h->len bytes. */
int eboard_send(struct eboard *eb, unsigned node, struct wire_hdr *h, size_t hdr_len,
                const void *body, fabric_done_fn done, void *arg);
bool sends_turn(struct engine *e);   /* sends what may go now; true if something went */
void sends_flush(struct eboard *eb); /* sends all of this board, though it is not its turn */
void sends_drop_peer(struct engine *e, unsigned peer);
void sends_board_free(struct eboard *eb);
void sends_weigh(struct engine *e, const struct euser *user); /* the weight has changed */
/* A counted message of @len bytes came from @peer. */
void sends_count_taken(struct engine *e, unsigned peer, size_t len);
/* @peer has taken @bytes of our messages. */
void sends_were_taken(struct engine *e, unsigned peer, uint32_t bytes);

/* engine_op.c: one look at a board; true if something moved */
bool eboard_poll(struct eboard *eb);
void op_account(struct eboard *eb); /* writes into the board that no operation is under way */

/* A send or receive failed. What that means commd decides: it knows whether the engine, the commd
 * or the whole node is gone. The board just stops. */
void eboard_link_failed(struct eboard *eb, unsigned node, int err);

/* engine_hold.c */
/* On this board the engine goes on where another one has ended, at @ops operations. */
bool hold_take_over(struct eboard *eb, uint32_t ops); /* false: the board was failed */
/* Is nothing of the group on the wire, as far as this engine knows? Then the board is held, because
 * the engine of peer @lost was lost. */
bool hold_board(struct eboard *eb);
void hold_place(const struct eboard *eb, struct msg_board_held *ret_held); /* it is held */
bool hold_keep(struct eboard *eb, struct inmsg *m,
               const struct fabric_msg *fm); /* mail, if it is held */

void set_hold(struct eboard *eb, enum eboard_hold hold);
bool hold_quiet(const struct eboard *eb); /* nothing of it is on the wire here */

/* engine_pause.c */
bool pause_bars(const struct eboard *eb);      /* no further operation may be begun */
bool pause_bars_mail(const struct eboard *eb); /* no message of the members may be taken */
void pause_look(struct eboard *eb);            /* it may have come to rest, or be over */
void pause_stir(struct eboard *eb);            /* something has ended: pause_look() is due */

/* engine_p2p.c */
/* Nothing is on its way: all rings are looked at, and records are numbered anew. False: the board
 * was failed. */
bool mail_renumber(struct eboard *eb);
bool mail_poll(struct eboard *eb); /* true if something moved */
/* The members are gone: sends all that they have written, at once. Until the bodies are sent they
 * lie in the board, which stays mapped. */
void mail_flush(struct eboard *eb);
bool mail_waits(const struct eboard *eb);   /* does what members wrote wait for the network? */
bool mail_settled(const struct eboard *eb); /* is all that members wrote sent? */
void mail_arrived(struct eboard *eb, struct inmsg *m);            /* uses up the claim of @m */
void mail_answer_closed(struct engine *e, const struct inmsg *m); /* for a group closed here */
void mail_free(struct eboard *eb);

/* engine_msg.c */
void engine_on_msg(void *arg, const struct fabric_msg *msg);

/* engine_inbox.c */
void inbox_init(struct inbox *in);
/* A copy of @m, which has to wait, with the body of @fm. NULL: no memory. */
struct inmsg *inmsg_keep(struct engine *e, const struct inmsg *m, const struct fabric_msg *fm);
/* The message of the current operation with this step and move from fabric peer @peer, or NULL.
 * Release with inmsg_done(). */
struct inmsg *inbox_take(struct eboard *eb, uint32_t step, unsigned move, unsigned peer);
void inmsg_done(struct engine *e, struct inmsg *m);
void inmsg_free(struct engine *e, struct inmsg *m); /* with its claim */
/* Receives the claimed body of @m from @node into @to; @done is called in any case. */
void inmsg_fetch(struct eboard *eb, struct inmsg *m, unsigned node, void *to, fabric_done_fn done,
                 void *arg);
void inmsg_drop_claim(struct engine *e, struct inmsg *m); /* if it has one */
void inbox_drop(struct eboard *eb, bool all);             /* all, or of the current operation */
size_t inmsg_cost(const struct inmsg *m);
/* True: @m is in the inbox now. False: there was no room, or (inbox_keep()) @m may not come yet. */
bool inbox_push(struct inbox *in, struct inmsg *m);
bool inbox_keep(struct eboard *eb, struct inmsg *m);
void inbox_unlink(struct inbox *in, struct inmsg *m);

/* engine_pending.c */
/* Takes @m, which came for a group that is not known. */
void pending_keep(struct engine *e, struct inmsg *m);
/* Has a message of this group from @peer been dropped? Then no further one is kept. */
bool pending_flooded(const struct engine *e, uint64_t group, unsigned peer);
void pending_mark_flooded(struct engine *e, uint64_t group, unsigned peer);
/* Gives the board what waited for it, or fails it if something is missing. */
void pending_adopt(struct eboard *eb);
void pending_sweep(struct engine *e); /* now and then drops what has waited for a minute */
void pending_expire(struct engine *e, int64_t older_than_ms); /* drops what came before then */
void pending_drop_peer(struct engine *e, unsigned peer);
void pending_fini(struct engine *e);
const struct inmsg *pending_oldest(const struct engine *e);

#endif
