/* p2p.h - what the files of point-to-point share: p2p_match.c (which message goes to which
 * receive), p2p.c (messages as a state machine over the mail of the board), p2p_wait.c (waiting
 * and giving up), p2p_api.c (the calls). See p2p.c for the model. */
#ifndef COMMD_CLIENT_P2P_H
#define COMMD_CLIENT_P2P_H

#include <sys/queue.h>

#include "client/lib/p2p/p2p_api.h"
#include "shm/util/held.h"

enum p2p_state {
    P2P_POSTED,    /* receive: no message yet */
    P2P_PULLING,   /* receive: its long message is coming */
    P2P_QUEUED,    /* send: the receiver does not know of it */
    P2P_OFFERED,   /* send: announced; the receiver has not asked for it */
    P2P_STREAMING, /* send: the receiver takes parts */
    P2P_DONE
};

struct p2p_slot { /* an out slot of this rank (shm/board/mail.h), as this rank knows it */
    uint32_t id;  /* of the last record whose payload it held */
    uint16_t dst; /* the rank that this record is for */
    bool busy, eager;
    uint32_t uses;
};

struct p2p_part { /* of a long message: its receiver on another node asks for it */
    uint64_t off;
    uint32_t len;
    uint8_t rx; /* in slot of the receiver */
};

TAILQ_HEAD(p2p_list, p2p_op);

struct p2p_op {
    TAILQ_ENTRY(p2p_op) link; /* in the list of its state */
    TAILQ_ENTRY(p2p_op) all;  /* in p2p.ops */
    struct p2p_list *list;    /* the list that `link` is in; NULL: none */
    enum p2p_state state;
    bool send;
    bool skip;    /* PULLING: the message is not taken, and its sender has to be told */
    bool asking;  /* PULLING on one node: the stream is open */
    bool filling; /* PULLING on one node: a short message, which its sender is writing */
    uint8_t slot; /* where the payload of a short message lies, and at which byte of it */
    uint32_t offset;
    uint8_t *buf;
    size_t size; /* of buf; of a send: of the message */
    int peer, tag;
    int declined;         /* COMMD_E_*: this rank cannot do its part, and tells the peer; else 0 */
    uint64_t order;       /* of a receive: its place in the order of posting */
    uint32_t id, peer_id; /* of this operation; of the peer's; filling: of the record */
    size_t len;           /* PULLING: of the message */
    size_t moved;         /* bytes that came or went */
    size_t asked;         /* PULLING between nodes: bytes that were asked for */
    struct p2p_part part[MAIL_IN_SLOTS]; /* STREAMING between nodes */
    unsigned nparts;
    int64_t limit_ms, deadline_ms;
    struct commd_status status;
    struct commd_work *work; /* borrowed; NULL: a caller waits */
    uint64_t waited_ms; /* since when threads sleep for it, also in slices; 0: none has slept */
    uint64_t left_ms;   /* when a thread last ended such a sleep */
    unsigned sleepers;  /* threads that sleep for it now */
    bool warned;
    struct commd_error err; /* of DONE; it is long: where err.code is 0 the rest is not set */
};

/* A message that no receive has been posted for. */
struct p2p_msg {
    TAILQ_ENTRY(p2p_msg) by_source, by_time;
    int src, tag;
    uint8_t kind, slot, rx, declined;
    uint32_t offset; /* EAGER on this node: where in the slot */
    uint32_t id;
    size_t len;
    struct p2p_op
        *self;      /* of a long message of this rank to itself: the send, which waits; else NULL */
    uint8_t body[]; /* payload of INLINE, and of a short message of this rank to itself */
};
TAILQ_HEAD(p2p_msgs, p2p_msg);

struct p2p_peer {
    struct p2p_list posted;     /* receives that name this rank */
    struct p2p_msgs unexpected; /* its messages for which no receive is posted */
    struct p2p_list out;        /* sends to it that are QUEUED */
    TAILQ_ENTRY(p2p_peer) talk_link;
    bool talking; /* in p2p.talk: something is to be told */
    unsigned rank;
    int local; /* member index, -1: on another node */
    struct mail_rx rx;
    /* on this node: the ring to it, and what copies to it have shown */
    struct mail_tx tx;
    struct copy_way way;
    /* on another node: credit and rx slots, see shm/board/mail.c */
    uint32_t sent, acked, taken, told;
    uint8_t rx_used[MAIL_RX_SLOTS], rx_done[MAIL_RX_SLOTS]; /* its rx slots for this rank */
    uint8_t rx_freed[MAIL_RX_SLOTS];                        /* this rank's rx slots for it */
    unsigned rx_untold;         /* of these, freed since it was told last */
    bool probe, probed, silent; /* gone: its engine is to be asked, was asked, has sent all */
};
TAILQ_HEAD(p2p_peers, p2p_peer);

struct p2p_match {
    struct p2p_list any;        /* receives from any source */
    struct p2p_msgs unexpected; /* all messages for which no receive is posted, as they came */
    uint64_t order;
};

struct p2p {
    pthread_mutex_t lock;     /* everything below; never held while waiting */
    pthread_cond_t cond;      /* users became 0 */
    struct membership *group; /* borrowed: the group outlives us */
    struct mail *mail;        /* of its board */
    struct mail_box *box;     /* of this rank */
    struct p2p_peer *peers;   /* owned; by rank */
    struct mail_tx engine;    /* the ring to it: groups on several nodes */
    struct p2p_match match;
    struct p2p_peers talk;
    struct p2p_list pulls, offers, streams;
    struct p2p_list ops;                    /* all that are not done */
    struct p2p_list finished;               /* done, and their works have not been told */
    struct p2p_op *in_owner[MAIL_IN_SLOTS]; /* receives that asked for a part, by in slot */
    struct p2p_part in[MAIL_IN_SLOTS];
    struct p2p_slot slot[MAIL_OUT_SLOTS];
    unsigned next_slot, eager_busy;
    uint32_t next_id, next_use;
    _Atomic unsigned users; /* threads inside; written with the lock */
    _Atomic unsigned away;  /* of these, those that ask the application whether to stop; likewise */
    struct crowd crowd;
    struct apart apart;
    int64_t looked_ms;   /* when all operations were looked at for reasons to give up */
    struct p2p_op *told; /* the operation that the board shows as slept for; NULL: none */
    bool closed;         /* the group is being left */
    int bad;             /* COMMD_E_PROTOCOL, COMMD_E_ABORTED: no message can go on; else 0 */
    char bad_text[128];
};

/* ---- p2p_match.c: pure ----------------------------------------------------------------------- */
void match_post(struct p2p *p, struct p2p_op *op);
/* The receive that a message from @src with @tag goes to, taken out of its list; or NULL. */
struct p2p_op *match_arrived(struct p2p *p, unsigned src, int tag);
/* The message that a new receive takes, taken out; or NULL. */
struct p2p_msg *match_unexpected(struct p2p *p, const struct p2p_op *op);
void match_keep(struct p2p *p, struct p2p_msg *m);
/* @self, a send to ourselves, ends: its message, if nobody has taken it, goes too. */
void match_forget(struct p2p *p, const struct p2p_op *self);
void op_move(struct p2p_op *op, struct p2p_list *to);

/* ---- p2p.c --------------------------------------------------------------- */
int p2p_get(struct membership *g, struct p2p **ret_p); /* all others hold the lock */
void p2p_begin(struct p2p *p, struct p2p_op *op);
/* Rank @rank, the peer of @op, says that it cannot do its part. */
void p2p_peer_declined(struct p2p *p, struct p2p_op *op, unsigned rank, uint8_t told);
/* Does what can be done without waiting, for @hot (may be NULL) first. */
bool p2p_poll(struct p2p *p, const struct p2p_op *hot);
/* Takes what is there of a short message while its sender writes the rest. */
bool p2p_take_filled(struct p2p *p, struct p2p_op *op);
/* Takes all that rank @src has sent by now. */
void p2p_drain(struct p2p *p, unsigned src);
/* Ends @op as @op->err says. */
void p2p_end(struct p2p *p, struct p2p_op *op);
/* A record is wrong, or there is no memory: all messages of the group fail. */
void p2p_bad(struct p2p *p, int code, const char *fmt, ...) _printf_(3, 4);
void p2p_fini(struct p2p *p);

/* ---- p2p_out.c ----------------------------------------------------------- */
/* @peer has to be told something as soon as there is room. */
void p2p_talk(struct p2p *p, struct p2p_peer *peer);
/* A receiver's answers to what was offered. */
void p2p_asked(struct p2p *p, struct p2p_peer *peer, const struct mail_rec *rec);
/* Who is about to sleep says whether it has to be woken when a slot is free. */
void p2p_say_content(struct p2p *p);
/* Does all sending that can be done. */
bool p2p_push(struct p2p *p);

/* ---- p2p_wait.c ------------------------------------------------------------------------------ */
int op_error(struct p2p *p, struct p2p_op *op, int code, const char *fmt, ...) _printf_(4, 5);
void op_blame(struct p2p *p, struct p2p_op *op, unsigned rank); /* the error is about that rank */
/* Ends @op if there is a reason to give it up: then true. @slow: looks also at what costs system
 * calls. */
bool p2p_hopeless(struct p2p *p, struct p2p_op *op, bool slow);
/* The same for all operations that are pending, except @but. True if one ended. */
bool p2p_look_after(struct p2p *p, const struct p2p_op *but);
/* Unlocks while it waits, until @op is done, or until @until_ms (-1: none), or until the
 * application's hook asks to stop. */
enum p2p_waited p2p_wait(struct p2p *p, struct p2p_op *op, int64_t until_ms);
/* @op has ended: the board does not show it as slept for any more. */
void p2p_untell(struct p2p *p, const struct p2p_op *op);
/* A thread has slept for the batch that @op is a part of. */
void p2p_slept(struct p2p *p, struct p2p_op *op);
/* Which processes have to run before @op moves on. */
enum wait_for p2p_waits_for(const struct p2p *p, const struct p2p_op *op);
/* Ends @op because the application asked to. */
void p2p_interrupt(struct p2p *p, struct p2p_op *op);

/* ---- p2p_tell.c ------------------------------------------------------------------------------ */
/* Tells the works of what has ended. The lock is dropped meanwhile. */
void p2p_tell(struct p2p *p);
struct p2p_op *p2p_take_finished(struct p2p *p); /* NULL: none is left */
void p2p_result(const struct p2p_op *op);        /* into the work of @op */

#endif
