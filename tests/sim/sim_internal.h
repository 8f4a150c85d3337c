/* sim_internal.h - shared by sim.c (time, clients, faults), sim_net.c (links), sim_edge.c
 * (actions of the cores) and sim_check.c (invariants). */
#ifndef COMMD_SIM_INTERNAL_H
#define COMMD_SIM_INTERNAL_H

#include "daemon/state/state.h"
#include "tests/sim/sim.h"

enum ev_type {
    EV_TICK,
    EV_DELIVER,   /* a: from, b: to; gen: link */
    EV_CONNECT,   /* a < b */
    EV_LINK_UP,   /* a: node, b: peer; gen: link */
    EV_LINK_DOWN, /* likewise */
    EV_LATE,      /* a: from, b: to, which was stopped when it was delivered */
    EV_VACANT,    /* a: node, b: peer, at whose address nothing listens */
    EV_ENGINE_STARTED,
    EV_ENGINE_HELLO,  /* a: node; gen: engine */
    EV_ENGINE_ADDED,  /* a: node, b: peer; gen: engine; arg: peer's incarnation */
    EV_ENGINE_LOST,   /* a: node, b: peer; gen: engine; arg: how it was told of it */
    EV_ENGINE_APART,  /* likewise: it has no connection, and may mend it */
    EV_ENGINE_EXIT,   /* a: node; gen: engine */
    EV_ENGINE_PONG,   /* a: node; gen: engine; arg: seq */
    EV_ENGINE_RESUME, /* a: node; gen: engine */
    EV_ENGINE_DIES,   /* a: node; gen: engine; while commd is gone */
    EV_BOARD_HELD,    /* a: node; gen: engine; arg: group */
    EV_BOARD_READ,    /* likewise, without an engine */
    EV_BOARD_MISSING, /* likewise: the engine does not have it */
    EV_BOARD_PAUSED,  /* likewise; b: of the attempt */
    EV_TAKE_OVER,     /* a: node */
    EV_CLIENT_BACK,   /* a: client */
    EV_LEAVE_OLD,     /* a: client; arg: group */
};

struct ev {
    uint64_t at, seq;
    enum ev_type type;
    unsigned a, b;
    uint64_t gen, arg;
};

struct packet {
    struct packet *next;
    struct msg msg; /* owned: members and nodes of a COMMIT */
};

enum {
    KEPT = 64,
    READY_MS = 2500, /* until all engines accept each other: see engine_delay */
};
struct kept {
    unsigned from, to;
    struct packet *packet; /* owned */
};

/* One direction: messages in order, and when the last of them arrives. */
struct pipe {
    struct packet *head, **tail;
    uint64_t last;
    uint64_t slow;                    /* extra delay */
    struct packet *late, **late_tail; /* delivered, and not read yet: it is stopped */
};

struct join {
    uint32_t req;
    char name[32];
    unsigned rank, size;
    uint64_t at, limit; /* @at: asked last */
    uint64_t first_at;  /* asked first: later it comes back to another commd */
    unsigned answers;
    enum cause cause; /* when it was refused */
    struct sim_recovery how;
    uint64_t follows;   /* the group that it recovers */
    uint64_t group;     /* when it was answered with one */
    bool left, unknown; /* commd was started anew since, and does not know the group */
    uint32_t ops;
};

struct handle {
    unsigned node, slot;
    uint64_t life; /* of the node it lives on */
    uint32_t pid;
    bool alive;
    bool kept;    /* it is written down that it is welcome */
    bool welcome; /* it knows so */
    bool away;    /* commd was killed, and it has not come back yet */
    bool kicked;  /* commd has said that its ranks are gone */
    unsigned njoins;
    struct join joins[64];
};

struct board_pause {
    bool on, final;
    bool late, told; /* a message has yet to come; what was told is not all */
    unsigned asker;
    uint32_t attempt, ops;
    uint64_t until;
};

struct board {
    uint64_t group;
    unsigned size;
    bool broken;
    bool gone[SIM_RANKS], lost[SIM_RANKS]; /* lost: with their node */
    bool spans;                            /* several nodes */
    uint64_t engine_gen;                   /* that has it */
    bool held;                             /* since an engine was lost, at held_at */
    uint64_t held_at;
    uint32_t round; /* how often it has gone on */
    struct board_pause pause;
};

/* Two engines meet if each expects what the other shows, in the same session of their commds. */
struct intro {
    uint64_t number; /* of them all; 0: none */
    uint64_t token, expect, session;
    uint64_t told; /* its number, as commd says */
};

struct place { /* where a node is in a round */
    bool quiet;
    uint32_t ops, sent, came;
};

struct node {
    struct core *core;
    bool alive;
    bool gap;            /* commd was killed, and none has taken over yet: its port is kept */
    bool forgets;        /* likewise, and the next one cannot read what was written down */
    bool dying;          /* killed: it does nothing any more */
    uint64_t stopped;    /* until then; 0: it is not */
    unsigned kill_after; /* places; 0: it is not killed */
    void *memory;        /* owned: what it wrote down */
    struct state *state;
    struct core_counts counted;                  /* as written down */
    uint64_t life;                               /* counts starts, not takings-over */
    int slots[SIM_CLIENTS + CORE_ADMIN_CLIENTS]; /* handle, -1 */
    struct board boards[SIM_BOARDS];
    bool engine_alive, engine_hello;
    uint64_t engine_gen;                  /* of its engine process; also its address */
    uint64_t engine_has[SIM_NODES];       /* address of the peer it was told of, 0 */
    uint64_t engine_for[SIM_NODES];       /* the incarnation that came with it */
    bool engine_ok[SIM_NODES];            /* it has said that it has it */
    bool engine_lost[SIM_NODES];          /* it could not tell so: commd was gone */
    struct intro engine_intro[SIM_NODES]; /* how it was told of it */
    uint64_t engine_met[SIM_NODES];       /* they are connected: .number of the peer; 0: not */
    uint64_t said_token[SIM_NODES], their_token[SIM_NODES]; /* of commd */
    uint64_t engine_kept;       /* its incarnation, as written down; 0: not */
    bool engine_renews;         /* it was ended on purpose, and the next one is not kept yet */
    uint64_t killed_at;         /* when commd was killed last */
    uint64_t withdrew[64];      /* the last groups that came to nothing here, of all its commds */
    unsigned nwithdrew, forgot; /* there were; of these when commd was killed last */
    unsigned kills;             /* that followed each other soon */
    uint64_t settings, engine_settings; /* as they are now; those of its engine */
};

struct fact { /* what the first node that opened a group said of it */
    uint64_t id, epoch, follows;
    unsigned size, nnodes;
    uint32_t was[SIM_RANKS]; /* its rank in @follows, + 1; 0: a new process */
    uint16_t nodes[SIM_NODES];
    struct msg_member members[SIM_RANKS];
    uint64_t lives[SIM_NODES];
};

struct sim {
    struct sim_options options;
    uint64_t now, seq, random[3]; /* streams: network, engines, incarnations */
    struct ev *heap;
    size_t nheap, heap_cap;
    struct node nodes[SIM_NODES];
    struct pipe pipes[SIM_NODES][SIM_NODES];
    bool up[SIM_NODES][SIM_NODES];   /* [a][b]: a's side of the link is up */
    bool live[SIM_NODES][SIM_NODES]; /* symmetric: what is sent arrives */
    bool cut[SIM_NODES][SIM_NODES];
    uint64_t cut_ms[SIM_NODES][SIM_NODES];   /* since when */
    uint64_t link_gen[SIM_NODES][SIM_NODES]; /* symmetric */
    struct kept kept[KEPT];                  /* the last messages about groups, for sim_replay() */
    unsigned nkept;
    struct handle handles[SIM_HANDLES];
    unsigned nhandles;
    struct fact *facts;
    size_t nfacts, facts_cap;
    struct sim_oracle oracle;
    unsigned crash_from, crash_after;
    enum msg_type crash_type;
    bool crash_now;
    char *trace;
    size_t trace_len, trace_cap;
    uint64_t trace_from;
    uint64_t tokens, intros; /* how many there were */
    bool kills_introduced;   /* a commd dies when two engines are introduced next */
    uint64_t hash, actions, ok, failed, recovered, taken_over, went_on, renewed;
    char (*names)[MSG_NAME_MAX];
};

enum { STREAM_NET, STREAM_ENGINE, STREAM_NODE };
uint64_t sim_random(struct sim *sim, unsigned stream, uint64_t below);
void sim_at(struct sim *sim, uint64_t delay, struct ev ev);
void sim_input(struct sim *sim, unsigned node, struct core_event event);
void sim_note(struct sim *sim, const char *format, ...) _printf_(2, 3);
void sim_fail(struct sim *sim, const char *format, ...) _printf_(2, 3) __attribute__((noreturn));
const char *sim_node_name(const struct sim *sim, unsigned node);
/* "g#1": name and a number in order of appearance, so that traces do not show random ids */
const char *sim_group_name(struct sim *sim, uint64_t id, char buf[64]);

/* sim_hold.c */
void hold_asked(struct sim *sim, unsigned node, uint64_t group, bool read);
void hold_event(struct sim *sim, const struct ev *ev);
void hold_ends(struct sim *sim, unsigned node, uint64_t group, bool bind);
void hold_resumed(struct sim *sim, unsigned node); /* before ENGINE_RESUMED */
void hold_given(struct sim *sim, unsigned node);   /* the boards that there are */
void hold_check(struct sim *sim, unsigned node);
struct place hold_place(const struct sim *sim, unsigned node, const struct board *board);

/* sim_pause.c */
void pause_asked(struct sim *sim, unsigned node, const struct msg_pause *ask);
void pause_event(struct sim *sim, const struct ev *ev);
void pause_ended(struct sim *sim, unsigned node);
/* Do boards at @node rest for the engine of @peer? */
bool pause_rests_for(const struct sim *sim, unsigned node, unsigned peer);

/* sim_net.c */
void net_send(struct sim *sim, unsigned from, unsigned to, const struct msg *msg);
void net_event(struct sim *sim, const struct ev *ev);
void net_drop(struct sim *sim, unsigned node, unsigned peer); /* @node closes its side */
void net_look(struct sim *sim, unsigned node, unsigned peer);
void net_node_gone(struct sim *sim, unsigned node, bool flush);
void net_node_started(struct sim *sim, unsigned node);
void net_free(struct sim *sim);
uint64_t net_delay(struct sim *sim);

/* sim.c */
void sim_open(struct sim *sim, unsigned node); /* a core of a new incarnation */
void sim_send_join(struct sim *sim, unsigned client, const struct join *join);

/* sim_state.c */
void state_start(struct sim *sim, unsigned node); /* nothing is kept */
void state_stop(struct sim *sim, unsigned node);
/* A place where commd can be killed. True: it is, and the caller returns. */
bool state_cut(struct sim *sim, unsigned node);
void state_count(struct sim *sim, unsigned node); /* its counts, if they are others now */
void state_kill(struct sim *sim, unsigned node, bool at_rest);
void state_event(struct sim *sim, const struct ev *ev);
void state_hello(struct sim *sim, struct handle *handle);
void state_welcome(struct sim *sim, unsigned node, struct handle *handle);

/* sim_recover.c */
void recover_event(struct sim *sim, const struct ev *ev);
void recover_opened(struct sim *sim, unsigned node, const struct core_group_view *view,
                    const struct fact *fact, bool first);
/* @join of @handle is answered with @rank of @view. */
void recover_told(struct sim *sim, struct handle *handle, struct join *join,
                  const struct core_group_view *view, unsigned rank);
void recover_refused(struct sim *sim, const struct handle *handle, const struct join *join,
                     const char *text);
/* What libcommd says of a group that commd does not know; *ret_gone: SIM_RANKS. */
void recover_stray(struct sim *sim, const struct handle *handle, uint64_t follows,
                   struct msg_client_join *ret, uint32_t *ret_gone);
/* Others of its node that wait to go on from a group with it say so. */
void recover_died(struct sim *sim, const struct handle *dead);
uint32_t recover_was(const struct core_group_view *view, unsigned rank);

/* sim_edge.c */
void edge_action(struct sim *sim, unsigned node, const struct core_action *action);
struct board *edge_board(struct sim *sim, unsigned node, uint64_t group);
void edge_forget(struct sim *sim, unsigned node);

/* sim_engine.c */
void engine_event(struct sim *sim, const struct ev *ev);
void engine_start_process(struct sim *sim, unsigned node);
void engine_receive(struct sim *sim, unsigned node, const struct msg *msg);
void engine_kill_process(struct sim *sim, unsigned node, bool report);
void engine_restore(struct sim *sim, unsigned node);
void engine_adopted(struct sim *sim, unsigned node);             /* after CORE_TAKEN_OVER */
bool engine_fits(const struct sim *sim, unsigned a, unsigned b); /* the two meet, or have met */

/* sim_check.c */
void check_step(struct sim *sim, unsigned node);
void check_opened(struct sim *sim, unsigned node, const struct core_group_view *view);
void check_gone(struct sim *sim, unsigned node, const struct core_rank_gone *gone);
/* @id 0: a join that failed */
/* It does not keep the group any more. */
void check_withdraws(struct sim *sim, unsigned node, uint64_t id);
void check_broken(struct sim *sim, unsigned node, uint64_t id, enum cause cause, const char *name,
                  const char *text);
void check_overdue(struct sim *sim);
struct fact *check_fact(struct sim *sim, uint64_t id); /* NULL: never opened */
/* Has this rank ended for its group? */
bool check_ended(struct sim *sim, uint64_t id, unsigned rank);
/* The client that is @rank of the group with @id, NULL: none ever was. */
struct handle *check_member(struct sim *sim, uint64_t id, unsigned rank, struct join **ret_join);

#endif
