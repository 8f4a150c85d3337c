/* sim.h - whole clusters in one process: real cores, virtual time, a seeded network, and fake
 * clients, boards and engines. See sim.c for the model. */
#ifndef COMMD_SIM_H
#define COMMD_SIM_H

#include "daemon/core/core_internal.h"

enum {
    SIM_NODES = 5,
    SIM_CLIENTS = 24,  /* per node, over a whole run: slots are reused, handles are not */
    SIM_HANDLES = 512, /* clients over a whole run */
    SIM_BOARDS = 64,   /* per node, at a time */
    SIM_RANKS = 16,
};

struct sim_options {
    unsigned nodes;
    uint64_t seed;
    uint64_t delay_min, delay_max; /* ms, per message and direction */
    bool trace;                    /* keep text for sim_trace() */
    uint64_t engine_delay;         /* most, ms; 0: always 1 */
    uint64_t join_timeout_ms;      /* 0: 60 s */
    unsigned part;                 /* ranks of a client that end at a time; likewise */
    bool kills_renewed;            /* a commd dies when an engine is replaced */
    bool calm;                     /* the next one is there soon, and its engine lives */
    uint64_t back_ms;              /* most, until a client comes back to it; 0: 60 */
    unsigned ration;               /* joins of all users in a window; 0: as many as usual */
    unsigned old;                  /* 1 + a node whose hello has the version before; 0: none */
};

/* What the swarm knows about faults, so that blame can be checked. Sticky for a run. */
struct sim_oracle {
    bool node_fault[SIM_NODES];   /* crashed, stopped, or a link of it was reset or cut */
    bool engine_fault[SIM_NODES]; /* its engine crashed, or lost a peer */
    bool reset;                   /* a link was reset */
    bool renewed[SIM_NODES];      /* its engine was replaced on purpose */
};

struct sim;
struct sim *sim_new(const struct sim_options *options);
struct sim *sim_free(struct sim *sim);

/* Time. sim_step() runs the next event, false when none is due before @until. Invariants are
 * checked after every step; a violation prints the end of the trace and aborts. */
bool sim_step(struct sim *sim, uint64_t until);
void sim_run(struct sim *sim, uint64_t ms);
uint64_t sim_now(const struct sim *sim);
/* Until all nodes that are alive are READY for each other; fails after a minute. */
void sim_settle(struct sim *sim);

/* Clients: @client is a handle that is never reused. */
unsigned sim_client(struct sim *sim, unsigned node);
void sim_join(struct sim *sim, unsigned client, const char *name, unsigned rank, unsigned size,
              uint64_t limit_ms);
/* How a client goes on when ranks of its group are lost, or more shall be in it. */
struct sim_recovery {
    enum sim_policy { SIM_JOIN, SIM_SHRINK, SIM_WAIT, SIM_REJOIN } policy; /* enum msg_recovery */
    unsigned size; /* WAIT: seats, REJOIN: likewise if it says so; 0: as many as before */
    unsigned rank; /* REJOIN: the seat, SIM_ANY */
    unsigned least;
    uint64_t wait_ms, limit_ms;
};
#define SIM_ANY UINT32_MAX
/* Asks for the next epoch of its newest group of that name, or, REJOIN, for a seat in one. It
 * leaves the old one soon after it is told of the new one. @meet: the name of the new one. */
void sim_recover(struct sim *sim, unsigned client, const char *name, const char *meet,
                 const struct sim_recovery *how);
void sim_leave(struct sim *sim, unsigned client, const char *name); /* the newest of that name */
/* It takes back what it asked for last, if that has no answer yet. */
void sim_withdraw(struct sim *sim, unsigned client);
void sim_abort(struct sim *sim, unsigned client, const char *name, const char *text);
/* Asks who has not begun operation @seq; sim_ops() counts what they have begun. */
void sim_ask_absent(struct sim *sim, unsigned client, const char *name, uint64_t seq);
void sim_ops(struct sim *sim, unsigned client, const char *name, unsigned ops);
void sim_die(struct sim *sim, unsigned client, const char *why);
void sim_say(struct sim *sim, unsigned client, const struct msg *msg); /* anything */
/* Root's commctl on @node asks for a change and goes; @number: a pid or a rank. */
void sim_admin(struct sim *sim, unsigned node, const char *verb, const char *group,
               uint32_t number);
uint32_t sim_client_pid(const struct sim *sim, unsigned client);
unsigned sim_client_node(const struct sim *sim, unsigned client);
bool sim_client_alive(const struct sim *sim, unsigned client);
unsigned sim_client_open(const struct sim *sim, unsigned client);    /* groups it is in */
unsigned sim_client_pending(const struct sim *sim, unsigned client); /* joins without answer */
/* Its newest group of that name that it has not left; 0: none. *ret_rank, *ret_size: its place. */
uint64_t sim_client_in(const struct sim *sim, unsigned client, const char *name, unsigned *ret_rank,
                       unsigned *ret_size);
/* commd was started anew since, and does not know that group. */
bool sim_client_stray(const struct sim *sim, unsigned client, const char *name);
/* Its last request: was it granted, or why not; CAUSE_NONE while it waits, or when it was. */
enum sim_answer { SIM_WAITS, SIM_GRANTED, SIM_REFUSED };
enum sim_answer sim_client_answer(const struct sim *sim, unsigned client, enum cause *ret_cause);
bool sim_went_on(const struct sim *sim, uint64_t group); /* one that follows it opened somewhere */
const char *sim_client_group(const struct sim *sim, unsigned client, unsigned i);

/* Faults. */
void sim_crash(struct sim *sim, unsigned node); /* commd; its engine and clients die too */
void sim_start(struct sim *sim, unsigned node); /* with a new incarnation */
/* Only commd, and its engine, at the @n-th place from now on where it can be: before an input,
 * before something is written down, before it is told. Its clients live, another commd takes over
 * after a while, and they come back to it. 0: none is killed any more. */
void sim_kill_after(struct sim *sim, unsigned node, unsigned n);
/* At once, and its engine with it; another commd takes over after @gap ms. */
void sim_kill_both(struct sim *sim, unsigned node, uint64_t gap);
/* Likewise, and the next commd knows nothing: its keeper was killed, too. */
void sim_forget(struct sim *sim, unsigned node, uint64_t gap);
uint64_t sim_taken_over(const struct sim *sim); /* how often */
uint64_t sim_kept_on(const struct sim *sim);    /* likewise, a node with a group: sim_hold.c */
/* Its process is stopped, and goes on after @ms, which pass here. Its engine and its clients are
 * not stopped: these do nothing meanwhile. */
void sim_stop(struct sim *sim, unsigned node, uint64_t ms);
void sim_shutdown(struct sim *sim, unsigned node);
void sim_crash_engine(struct sim *sim, unsigned node);
/* A reload of @node: its engine has other settings than those that it shall have. */
void sim_renew(struct sim *sim, unsigned node);
uint64_t sim_renewed(const struct sim *sim); /* engines that were replaced */
void sim_engine_lost(struct sim *sim, unsigned node, unsigned peer); /* one endpoint fails */
void sim_reset(struct sim *sim, unsigned a, unsigned b); /* what is on its way is lost */
void sim_cut(struct sim *sim, unsigned a, unsigned b);   /* nothing passes until sim_heal() */
void sim_heal(struct sim *sim);
/* What is sent from @from to @to from now on takes @ms longer. */
void sim_slow(struct sim *sim, unsigned from, unsigned to, uint64_t ms);
/* One of the last messages about groups comes again, from the node and to the node as before. */
void sim_replay(struct sim *sim, uint64_t which);
void sim_peer_says(struct sim *sim, unsigned from, unsigned to, const struct msg *msg);
void sim_engine_says(struct sim *sim, unsigned node, const struct msg *msg);
bool sim_alive(const struct sim *sim, unsigned node);
struct core *sim_core(struct sim *sim, unsigned node);
/* Node @from crashes at its @n-th message of @type from now on: that one still arrives, what
 * comes after it does not. */
void sim_crash_after(struct sim *sim, unsigned from, enum msg_type type, unsigned n);
struct sim_oracle *sim_oracle(struct sim *sim);

/* A group name whose home is @node when all nodes are READY: "g0", "g1", ... */
const char *sim_name_at(struct sim *sim, unsigned node);

/* Ends. */
void sim_check_marks(struct sim *sim); /* every rank that is gone is marked on every board */
void sim_check_idle(struct sim *sim);  /* no group, join or board is left on any node */
const char *sim_trace(struct sim *sim);
void sim_trace_clear(struct sim *sim);
uint64_t sim_hash(const struct sim *sim); /* over all actions of all cores, in order */
uint64_t sim_actions(const struct sim *sim);
uint64_t sim_answers(const struct sim *sim, bool ok);
uint64_t sim_recovered(const struct sim *sim); /* ranks told of a group that follows one */

#endif
