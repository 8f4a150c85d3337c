/* core.h - what commd decides: sessions, peers, the engine, groups. No I/O, no clock, no
 * allocation after core_new(): the caller feeds events with the time, and executes the
 * actions that come out, in order. commd, the unit tests and the simulator link the same
 * library. */
#ifndef COMMD_CORE_H
#define COMMD_CORE_H

#include "shm/model/plan.h"
#include "shm/proto/events.h"
#include "shm/proto/msg.h"
#include "shm/util/encryption.h"
#include "shm/util/payers.h"

struct core;

/* Two engines that have lost each other are connected anew: the back-off. */
enum { CORE_RECONNECT_MIN_MS = 100, CORE_RECONNECT_MAX_MS = 5000 };

/* The user that commd-gpu counts as, on all nodes; no process has it. Group names that begin so are
 * for this user alone. */
#define CORE_GPU_UID   0xfffffff0u
#define CORE_GPU_NAMES "commd-gpu/"
/* Likewise, processes of uid 0 that are not root of this machine. */
#define CORE_CONTAINED_UID   0xfffffff1u

#define CORE_SETTINGS_SHARED UINT64_C(0xffff) /* LAUNCH_SHARED */

struct core_config {
    uint64_t seed;        /* only source of randomness */
    uint64_t incarnation; /* of this commd, random, not 0 */
    const char *cluster;
    const char *version; /* for status */
    /* nodes, sorted by name; names copied */
    const char (*nodes)[MSG_NAME_MAX];
    unsigned nnodes, self;
    uint32_t own_uid;    /* that commd runs as: it and root may change what is everybody's */
    struct plan_net net; /* given to groups that have their home here */
    const struct payers *payers; /* who is charged for a uid; NULL: each itself. Borrowed */
    bool gpu;            /* this node has a GPU service, or starts it for a client that asks */
    const char *gpu_why; /* why this node has none; may be NULL */
    /* launch_settings() of the programs that would be started now; 0: any will do. The bits of
     * CORE_SETTINGS_SHARED are of what the engines of all nodes have to have alike. */
    uint64_t engine_settings, gpu_settings;
    /* timeouts, ms */
    uint64_t heartbeat_ms, node_timeout_ms, join_timeout_ms, engine_timeout_ms, gpu_timeout_ms;
    uint64_t restart_timeout_ms; /* so long groups wait for a node whose commd is gone */
    /* limits */
    unsigned max_clients, max_clients_per_user, max_groups, max_groups_per_user;
    unsigned max_size;    /* ranks that a group can have; 0: a sixteenth of max_members */
    unsigned max_members; /* pool of group members over all groups, e.g. 64 * max_size */
};

/* All memory is taken here. NULL when it is not to be had. */
struct core *core_new(const struct core_config *config);
struct core *core_free(struct core *core);
/* Reload: timeouts, limits, payers and settings of programs only. */
void core_reconfigure(struct core *core, const struct core_config *config);

/* ---- events -------------------------------------------------------------------------- */

enum core_event_type {
    CORE_TICK,           /* a deadline passed (or any time) */
    CORE_CLIENT_OPEN,    /* @client: caller's slot index < max_clients + 64, unused so far */
    CORE_CLIENT_MSG,     /* @client, @msg; before and after its hello. ADMIN of a welcome client:
                           only the verbs that change something, see core_change.c. LEAVE also of
                           one that is away, because its board says so */
    CORE_CLIENT_BACK,    /* @client, who is away and may return: core_client_may_return(); @msg its
                           CLIENT_HELLO, @groups, @joins; it is connected again */
    CORE_CLIENT_CLOSED,  /* @client: its socket closed or its process died; @text why */
    CORE_PEER_UP,        /* @node, @msg PEER_HELLO already checked for cluster and name: the TLS
                           link is up (one per node: the edge resolves double connections) */
    CORE_PEER_MSG,       /* @node, @msg */
    CORE_PEER_DOWN,      /* @node, @text, @refused */
    CORE_PEER_VACANT,    /* @node: nothing listens at its address, so no commd will come there by
                            itself. May come at any time */
    CORE_ENGINE_STARTED, /* process was spawned, pid in @pid */
    CORE_ENGINE_MSG,     /* @msg; the first is ENGINE_HELLO */
    CORE_ENGINE_DOWN,    /* exited or its socket closed; @text "killed by signal 9" */
    CORE_GPU_STARTED,    /* as of the engine, of commd-gpu */
    CORE_GPU_MSG,        /* @msg; the first is GPU_HELLO */
    CORE_GPU_DOWN,       /* @text */
    CORE_BOARD_POSITION, /* answers CORE_DO_GROUP_POSITION: @group, @quiet, @position */
    CORE_BOARD_FAILED,   /* the edge could not make the board of @group: @cause, @text */
    CORE_TAKEN_OVER,     /* all that is kept was restored: what cannot go on ends now */
    CORE_SHUTDOWN,       /* refuse new joins, tell everyone we are going; @text why, or NULL */
};

/* How far a group over several nodes is on one of them; struct board_position. */
struct core_position {
    uint32_t ops, sent, came;
};

struct core_event {
    enum core_event_type type;
    uint64_t now_ms; /* monotonic */
    unsigned client;
    unsigned node;
    uint32_t uid; /* CLIENT_OPEN: CORE_GPU_UID for our own commd-gpu */
    uint32_t pid;
    uint64_t group;
    const struct msg *msg;
    const char *text;
    enum cause cause; /* BOARD_FAILED */
    bool refused;     /* PEER_DOWN: it may not be who it says, so nothing waits for it */
    bool quiet;       /* BOARD_POSITION: nothing of it is on the wire, as its board says */
    struct core_position position;
    /* CLIENT_BACK: ids of the groups that it is in, as it says; numbers of its requests to join
     * that have no answer yet. */
    const uint64_t *groups;
    const uint32_t *joins;
    unsigned ngroups, njoins;
};

/* ---- actions ------------------------------------------------------------------------- */

/* What the edge shall do. What it needs for that stands in the member of struct core_action that
 * has the same name. */
enum core_action_type {
    CORE_DO_CLIENT_SEND,
    CORE_DO_PEER_SEND,
    CORE_DO_ENGINE_SEND,
    CORE_DO_GPU_SEND,
    CORE_DO_CLIENT_CLOSE,
    CORE_DO_PEER_DROP,
    CORE_DO_PEER_LOOK,
    CORE_DO_ENGINE_START,
    CORE_DO_ENGINE_KILL,
    CORE_DO_ENGINE_KEPT,
    CORE_DO_ENGINE_RESUMED,
    CORE_DO_GPU_START,
    CORE_DO_GPU_KILL,
    CORE_DO_GPU_SESSION,
    CORE_DO_GROUP_COMMITTED,
    CORE_DO_RANK_ASKED,
    CORE_DO_GROUP_OPEN,
    CORE_DO_GROUP_POSITION,
    CORE_DO_GROUP_BIND,
    CORE_DO_JOINED_AGAIN,
    CORE_DO_RANK_GONE,
    CORE_DO_RANK_ENDED,
    CORE_DO_NODES_MISSED,
    CORE_DO_GROUP_BROKEN,
    CORE_DO_GROUP_CLOSE,
    CORE_DO_GROUP_FORGET,
    CORE_DO_GROUP_ABSENT,
    CORE_DO_CHANGED,
    CORE_DO_LOG_LEVEL,
    CORE_DO_RELOAD,
    CORE_DO_LOG,
};

#define CORE_OPS_FROM_BOARD UINT32_MAX

enum core_by { CORE_BY_NOBODY, CORE_BY_USER, CORE_BY_NODE };

/* What happened, for commctl events: of a user if @by says so, else everybody's to know. */
#define CORE_NOTE(note_, word_) CORE_NOTE_##note_,
enum core_note { CORE_NOTE_NONE, CORE_EVENTS(CORE_NOTE) CORE_NOTE_COUNT };

/* A message to a client, to the commd of another node, to our engine, to our commd-gpu. The edge
 * fills WELCOME.pid, ENGINE_STATE.token, and token and expect of ENGINE_PEER_ADD. */
struct core_send {
    unsigned to; /* client, or node; 0 for the engine and commd-gpu */
    const struct msg *msg;
};
/* Make a socket pair: one end to commd-gpu with GPU_SESSION, the other to @client with GPU_ANSWER
 * to its request @req. */
struct core_gpu_session {
    unsigned client;
    uint32_t uid, pid, req;
};
/* @rank of @group is gone. Mark it in the board with the number of operations that it completed:
 * @ops, or read from the board when @ops == CORE_OPS_FROM_BOARD, and in that case (a local rank)
 * send GONE with that number to the other participants of the group. @missed: the group was broken
 * before, and operations fail by that; the board says only that nobody has to wait for the rank. */
struct core_rank_gone {
    uint64_t group;
    uint32_t rank, ops, pid;
    enum cause cause; /* LEFT, RANK_LOST */
    const char *text;
    uint64_t next; /* of GONE: as which epoch the group has gone on here; 0: it has not */
    bool missed;
    bool again; /* a commd before this one may have marked it already: then nothing is to be done */
};
/* Set the board's abort word, if there is a board: a group that all ranks here have left has none.
 * The edge tells nobody else: the core sends BROKEN itself where needed. */
struct core_group_broken {
    uint64_t group;
    enum cause cause;
    int32_t rank; /* whom it is about, or who did it; -1: nobody in particular */
    uint32_t pid;
    const char *node, *text;
    uint64_t next; /* likewise, of BROKEN */
    bool stray;    /* BROKEN: this node does not know it, and ranks of @uid here are in it */
    uint32_t uid;
    bool again;
};
/* No rank is left here. If there is a board: unmap it; BOARD_DEL to the engine if the engine has
 * it.
 */
struct core_group_close {
    uint64_t group;
    bool abort; /* of BOARD_DEL */
    bool left; /* others have to hear of it yet: the next commd has to know it until GROUP_FORGET */
};
/* List the ranks of this node in @group whose board says that they have not begun operation @seq,
 * and say so, with @ask: ABSENT to our client, or ABSENT_HERE to another node. */
struct core_group_absent {
    uint64_t group, seq, ask;
    enum core_asker { CORE_ASKER_CLIENT, CORE_ASKER_NODE } asker;
    unsigned to; /* client, or node */
};
/* Answer ADMIN of @client: @text says what was done, to how many groups, or why nothing was. */
struct core_changed {
    unsigned client, groups;
    bool done;
    const char *text;
};
/* Answer ADMIN of @client: from now on the log is at @level, as user @uid wants. */
struct core_log_level {
    unsigned client, level;
    uint32_t uid;
};
/* A line of the log. @level: enum conf_log_level values, 0 error .. 3 debug. @by and @by_id say who
 * caused it, and so whose limit it counts against. With a @note it is an event, too, whatever the
 * level. */
struct core_log {
    unsigned level;
    enum core_by by;
    uint32_t by_id; /* uid, or node */
    enum core_note note;
    const char *text;
};

/* An engine that is up, for the commd that follows: core_restore_engine(). */
struct core_kept_engine {
    uint32_t pid;
    uint64_t incarnation;
    const uint8_t *addr;
    uint32_t addr_len;
    const char *text;
};

/* What pointers point to lies in the core, and is valid until the next core_next(). */
struct core_action {
    enum core_action_type type;
    union {
        struct core_send send; /* of all four */
        /* After what was sent has been flushed. The core has forgotten it; no CORE_CLIENT_CLOSED
         * follows. It may be one that is away. */
        struct {
            unsigned client;
        } client_close;
        /* Close the link; no CORE_PEER_DOWN follows. */
        struct {
            unsigned node;
            const char *why;
        } peer_drop;
        /* CORE_PEER_VACANT follows, if so. */
        struct {
            unsigned node;
        } peer_look;
        /* ENGINE_START, GPU_START: spawn the process. ENGINE_KILL, GPU_KILL: SIGKILL;
         * CORE_ENGINE_DOWN or CORE_GPU_DOWN follows. */
        struct core_gpu_session gpu_session;
        /* ENGINE_KEPT: it is up, and new. ENGINE_RESUMED, without a member: it has told what it
         * has; send it the boards that there are, and ENGINE_KEEP. */
        struct core_kept_engine engine_kept;
        /* This node has agreed to @group, over several nodes: write it down before what follows is
         * sent. GROUP_OPEN or GROUP_FORGET follows. */
        struct {
            uint64_t group;
        } group_committed;
        /* A rank of a group that was COMMITTED, and has not opened, waits for the answer to another
         * request now: write that down. */
        struct {
            uint64_t group;
            uint32_t rank, req;
        } rank_asked;
        /* Make the board of @group (core_group()), send JOINED + fds to each local member's client
         * (req in core_group_waiter()), and BOARD_ADD + fd to the engine if nnodes > 1. RANK_GONE
         * follows for each rank that is gone already. */
        struct {
            uint64_t group;
        } group_open;
        /* Our engine was lost. How far is @group, as its board says? CORE_BOARD_POSITION follows.
         */
        struct {
            uint64_t group;
        } group_position;
        /* BOARD_ADD of @group to the engine that there is now, which goes on after @ops operations;
         * and the doorbells of its members. */
        struct {
            uint64_t group;
            uint32_t ops;
        } group_bind;
        /* Of a group over several nodes: the next commd need not know it any more. */
        struct {
            uint64_t group;
        } group_forget;
        /* Send JOINED + fds to @client, which asked again with @req: the answer of a commd before
         * this one did not reach it. */
        struct {
            uint64_t group;
            unsigned client;
            uint32_t rank, req;
        } joined_again;
        /* Also of RANK_ENDED: the same in a group that has not opened. There is nothing to mark and
         * nobody to tell: it is for who keeps what there is. */
        struct core_rank_gone rank_gone;
        /* Nodes of @group are lost, or are back and have the group: its board says of each rank
         * that is not gone whether its node is lost (.lost of core_group()). */
        struct {
            uint64_t group;
        } nodes_missed;
        struct core_group_broken group_broken;
        struct core_group_close group_close;
        struct core_group_absent group_absent;
        struct core_changed changed;
        struct core_log_level log_level;
        /* Answer ADMIN of @client: read the configuration again. */
        struct {
            unsigned client;
        } reload;
        struct core_log log;
    };
};

/* Feeds one event; afterwards call core_next() until it returns false. */
void core_input(struct core *core, const struct core_event *event);
/* Fills *ret_action with the next action. */
bool core_next(struct core *core, struct core_action *ret_action);
/* While RANK_GONE is carried out: @ops was read from the board. */
void core_rank_counted(struct core *core, uint64_t group, uint32_t rank, uint32_t ops);
/* When the core wants a CORE_TICK next (monotonic ms); UINT64_MAX: never. */
uint64_t core_deadline(const struct core *core);

/* ---- taking over ----------------------------------------------------------------------------- */

/* What a commd knew that is no more, given to the one that follows it: between core_new() and the
 * first event, which is CORE_TAKEN_OVER. A client comes before its groups, a group before what
 * became of it. False: this cannot be, and nothing is changed. What is kept is copied. */

#define CORE_NOBODY UINT32_MAX /* as slot: the client has ended */

enum core_group_state {
    CORE_GROUP_JOINING,
    CORE_GROUP_COMMITTED,
    CORE_GROUP_OPEN,
    CORE_GROUP_BROKEN,
    CORE_GROUP_LEFT
};
/* JOINING: known here as home or as origin, ranks missing. COMMITTED: all ranks are known,
 * waiting until the engines of all its nodes accept each other. OPEN, BROKEN: has a board. LEFT:
 * none of its ranks is here any more, and others have to hear that yet; in no list. */

struct core_kept_client { /* one that was welcome, no admin tool */
    unsigned slot;
    uint32_t uid, payer, pid;
    uint64_t since_ms;
    const char *program;
};
struct core_kept_rank { /* a rank of this node */
    uint32_t rank, req;
    unsigned slot;
};
struct core_kept_group { /* one that was committed, open, or broken since, or LEFT: without ranks */
    uint64_t id, epoch;
    uint64_t follows;            /* the group of which it is the next epoch; 0: none */
    enum core_group_state state; /* of these; broken: OPEN */
    const char *name;
    uint32_t uid, payer;
    struct plan_net net;
    bool gpu;
    uint32_t size, nnodes, nranks;
    const char (*nodes)[MSG_NAME_MAX];  /* nnodes names, in the order of the configuration */
    const struct msg_member *members;   /* size entries by rank; .node indexes nodes[] */
    const struct core_kept_rank *ranks; /* nranks entries by rank: those that were there when the
                                           group opened */
};
void core_restore_begin(struct core *core, uint64_t now_ms);
/* The process of commd-gpu goes on, and is told of this commd; before clients, of whom it may be
 * one. False: this commd wants none. */
bool core_restore_gpu(struct core *core, uint32_t pid);
/* It was up, and has ended while no commd was there. */
void core_restore_gpu_lost(struct core *core, uint32_t pid);
/* It is away until CORE_CLIENT_BACK, and counts as if it were not; nothing is sent to it. */
bool core_restore_client(struct core *core, const struct core_kept_client *kept);
/* A rank whose client was not restored ends as lost at CORE_TAKEN_OVER. */
bool core_restore_group(struct core *core, const struct core_kept_group *kept);
bool core_restore_rank_gone(struct core *core, const struct core_rank_gone *gone);
bool core_restore_broken(struct core *core, const struct core_group_broken *broken);
/* Our engine, which goes on: its ENGINE_HELLO, `resumed`, comes next, or CORE_ENGINE_DOWN. If this
 * is not called it has ended. */
bool core_restore_engine(struct core *core, const struct core_kept_engine *kept);
struct core_counts;
void core_restore_counts(struct core *core, const struct core_counts *counts);
/* May a process of @uid with @pid have the place of the client in @slot back? It has shown the
 * client's token to the caller. */
bool core_client_may_return(const struct core *core, unsigned slot, uint32_t uid, uint32_t pid);

/* ---- read-only views for the edge (boards, admin tables, tests) ----------------------- */

struct core_group_view {
    uint64_t id; /* 0 while joining */
    const char *name;
    uint32_t uid, payer; /* @payer is charged for it: shm/util/payers.h */
    enum core_group_state state;
    uint64_t epoch;
    struct plan_net net;
    bool gpu;                  /* all its nodes have a GPU service */
    unsigned size, nnodes, me; /* me: index of this node among the participants */
    const uint16_t *nodes;     /* nnodes entries: node index in the configuration, ascending */
    const struct msg_member *members; /* size entries by rank; .node indexes nodes[]; NULL while
                                         joining */
    const bool *lost;                 /* by participant: its node is lost; NULL while joining */
    unsigned nlocal;  /* live local members, those of core_group_local(); the board's local
                        ranks are those of members[] with .node == me */
    enum cause cause; /* BROKEN */
    bool revoked;     /* by a rank, when another one had been lost */
    int cause_rank;   /* whom it is about, or who did it; -1: nobody in particular */
    const char *cause_text;
    const char *missing; /* JOINING at its home: ranks that have not come, "3,5-7" */
    unsigned nmissing;   /* how many they are */
    uint64_t follows; /* the group of which it is the next epoch; 0: none. members[].was: the ranks
                         there */
    uint64_t next_epoch; /* of the group as which ranks of this node have gone on; 0: none */
    /* JOINING: enum msg_recovery; then @epoch is the one that is to come, @missing names ranks of
     * the one before. REJOIN: @comers are new processes without a group that wants them yet. */
    uint32_t recovery;
    const char *seats; /* WAIT, at its home: seats without a process, "3,5-7" */
    unsigned nseats;   /* how many they are */
    unsigned comers;   /* WAIT, REJOIN, at its home: new processes that wait for a seat */
};
/* The size of a JOINING one is the number of seats of WAIT, of ranks before of SHRINK, and 0 of
 * REJOIN. */
/* A rank of this node that waits in a join. */
struct core_joiner {
    uint32_t rank, pid; /* @rank: of one that follows a group, its rank there; MSG_ANY_SEAT */
    uint32_t recovery;  /* enum msg_recovery */
    uint64_t follows;
    unsigned client;
    uint64_t since_ms;
};
/* Fills @ret_joiners with the ranks of this node that wait for what @view, JOINING, shows, at most
 * @most of them; returns how many. Of a view that is made elsewhere uid, name, follows and recovery
 * count. */
unsigned core_joiners(const struct core *core, const struct core_group_view *view,
                      struct core_joiner *ret_joiners, unsigned most);
/* By id (OPEN, BROKEN, COMMITTED, and closed ones as long as actions about them are queued);
 * false if unknown. */
bool core_group(const struct core *core, uint64_t id, struct core_group_view *ret_view);
/* What became of @rank of group @id, as its own node has told: CAUSE_NONE: the rank is there, or
 * the group is not known; CAUSE_LEFT; CAUSE_RANK_LOST. */
enum cause core_rank_fate(const struct core *core, uint64_t id, unsigned rank);
/* A look at all groups, a part of them in each turn of the loop. A group that is there all the
 * while is found exactly once; one that comes or goes meanwhile is found or not. */
struct core_scan {
    unsigned kind; /* groups, then formings, then members: a group goes the other way, so none is
                       missed */
    uint32_t at;   /* index in that pool */
};
enum { CORE_SCAN_END, CORE_SCAN_FOUND, CORE_SCAN_MORE };
/* FOUND: the next group, of any state. MORE: none among the next few places, ask again. @uid, if
 * not NULL: only this user's. */
int core_group_scan(const struct core *core, struct core_scan *scan, const uint32_t *uid,
                    struct core_group_view *ret_view);
const char *core_group_word(enum core_group_state state); /* for people: "open" */
/* Calls @fn for each group of any state, for tables, until it returns false. */
typedef bool (*core_group_fn)(void *arg, const struct core_group_view *view);
void core_group_each(const struct core *core, core_group_fn fn, void *arg);
/* The i-th group; false past the end. Looks at all groups before it. */
bool core_group_at(const struct core *core, unsigned i, struct core_group_view *ret_view);
/* i-th local member of group @id: its rank, client slot and join request number. */
bool core_group_local(const struct core *core, uint64_t id, unsigned i, unsigned *ret_rank,
                      unsigned *ret_client, uint32_t *ret_req);

/* Likewise, of those that are to be told now when it opens; others ask again. */
bool core_group_waiter(const struct core *core, uint64_t id, unsigned i, unsigned *ret_rank,
                       unsigned *ret_client, uint32_t *ret_req);

enum core_peer_state {
    CORE_PEER_SELF,
    CORE_PEER_UNLINKED,
    CORE_PEER_AWAY,
    CORE_PEER_LINKING,
    CORE_PEER_READY
};
/* AWAY: its link closed, but the engines have each other: its commd is being restarted. LINKING:
 * TLS is up, the engines do not accept each other yet. */

/* How a node that was READY or linked was lost. */
enum core_loss {
    CORE_LOSS_LINK,      /* its link ended */
    CORE_LOSS_SILENCE,   /* nothing came for node_timeout_ms */
    CORE_LOSS_RECONNECT, /* it connected anew before we saw the old link end */
    CORE_LOSS_ENGINE,    /* its engine and ours lost each other; the link stayed */
    CORE_LOSS_KINDS
};
/* What our engine sent to another one and got from it, and how the network was: the last report of
 * the engine. Counters go on when an engine is started anew. */
struct core_traffic {
    uint64_t told_ms; /* of the last report, 0: there was none */
    uint64_t sent, received, segments, retransmits, stalled_us;
    uint64_t mends;              /* connections that broke and were made again, nothing lost */
    uint32_t rtt_us, min_rtt_us; /* 0: not known */
    uint64_t bandwidth; /* bytes per second: the highest rate that was seen; 0: not known */
    enum link_encryption encryption;
    uint64_t key_since_ms; /* the oldest key in use; in the clear: the link */
    uint32_t generation;   /* of that key */
    /* between the last two reports */
    uint64_t recent_ms, recent_segments, recent_retransmits, recent_sent;
};
struct core_peer_view {
    const char *name;
    enum core_peer_state state;
    uint64_t since_ms; /* monotonic time of the last change */
    uint64_t
        apart_ms; /* since when our engine has no connection to its; 0: it has, or is not added */
    uint64_t engine; /* incarnation of its engine, 0: none */
    const char *last_error;
    bool draining;          /* takes no new groups, as it says */
    uint64_t links;         /* how often its link came up */
    const uint64_t *losses; /* CORE_LOSS_KINDS of them */
    const struct core_traffic *traffic;
};
bool core_peer_at(const struct core *core, unsigned node, struct core_peer_view *ret_view);

enum core_engine_state { CORE_ENGINE_OFF, CORE_ENGINE_STARTING, CORE_ENGINE_UP };
struct core_status {
    enum core_engine_state engine;
    uint32_t engine_pid;
    bool engine_resumes;                /* STARTING: it goes on since before commd was restarted */
    const char *engine_text;            /* "UCX 1.13.1, tcp on lo", or why it is down */
    const char *engine_build;           /* its version; "": it is not up, or does not say */
    bool engine_waits, gpu_waits;       /* it goes on as it is until the next one can take over */
    unsigned engine_deaths, gpu_deaths; /* in a row, if it dies again and again; else 0 */
    unsigned clients, groups, nodes_up;
    bool stopping, draining;
};
void core_status(const struct core *core, struct core_status *ret_status);
struct core_gpu_view {
    bool wanted; /* as core_config.gpu */
    enum core_engine_state state;
    uint32_t pid;
    uint64_t since_ms;
    const char *text;  /* what it runs on, or why it does not */
    const char *build; /* as of the engine */
    uint32_t nccl;     /* version; 0: none */
    unsigned sessions, ndevices;
    uint64_t unanswered_ms;               /* since when a ping is not answered; 0: none */
    const struct msg_gpu_device *devices; /* ndevices entries; "" as uuid: has not told yet */
};
void core_gpu(const struct core *core, struct core_gpu_view *ret_view);
struct core_client_view {
    unsigned client;
    uint32_t uid, pid;
    const char *program;
    bool admin;
    bool away; /* restored, and not back yet */
    bool gpu;  /* has a session at commd-gpu */
    unsigned groups;
    uint64_t since_ms;
};
bool core_client_at(const struct core *core, unsigned i, struct core_client_view *ret_view);
/* The first client at or after slot *@slot, which becomes the slot behind it; false past the end.
 */
bool core_client_scan(const struct core *core, unsigned *slot, struct core_client_view *ret_view);

/* How a group has gone on: with all its ranks, without some, with new processes. */
enum core_recovered {
    CORE_RECOVERED_ALL,
    CORE_RECOVERED_FEWER,
    CORE_RECOVERED_NEW,
    CORE_RECOVERED_KINDS
};
/* What has happened since core_new(). All of it only grows. */
struct core_counts {
    uint64_t clients; /* that were welcomed, commctl's apart */
    uint64_t clients_refused[CAUSE_COUNT];
    uint64_t joins_failed[CAUSE_COUNT];
    uint64_t groups_opened, groups_broken[CAUSE_COUNT];
    uint64_t groups_revoked; /* not of groups_broken: after the loss of a rank */
    uint64_t groups_recovered[CORE_RECOVERED_KINDS]; /* of groups_opened: with ranks here */
    uint64_t ranks_lost;                             /* of this node, in groups */
    uint64_t engine_starts, engine_losses;
    uint64_t gpu_starts, gpu_losses, gpu_sessions;
};
const struct core_counts *core_counts(const struct core *core);
/* What one user, a payer, holds of a limit; the most that it may, while the others hold what they
 * do; what all hold; the limit. */
struct core_share {
    uint64_t used, may, all, limit;
};
enum core_share_of {
    CORE_SHARE_CLIENTS,
    CORE_SHARE_GROUPS,
    CORE_SHARE_FORMING, /* groups that form here, as their home */
    CORE_SHARE_RANKS,   /* of this node, in groups or joining */
    CORE_SHARE_MEMBERS, /* room for members of groups, of all nodes */
    CORE_SHARES
};
void core_user_shares(const struct core *core, uint32_t uid,
                      struct core_share ret_shares[CORE_SHARES]);
/* Bytes a second that the groups of @uid sent to other nodes, when the engine told last; NULL: of
 * all users. */
uint64_t core_sent_rate(const struct core *core, const uint32_t *uid);
/* "root", "user 1000": what texts call a user. Returns @buf. */
const char *core_user_name(uint32_t uid, char buf[32]);
/* The users that hold anything: fills at most @room of @uids, and returns how many there are. */
size_t core_users(const struct core *core, uint32_t *uids, size_t room);
/* How many users there are; the most clients, and the most groups, that any of them has. */
struct core_user_most {
    unsigned users, clients, groups;
};
/* Looks at the users from place *@at on, some at a time; false when all have been looked at. @most
 * is zeroed before the first call. */
bool core_user_most(const struct core *core, uint32_t *at, struct core_user_most *most);

#endif
