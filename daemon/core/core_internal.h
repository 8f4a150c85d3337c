/* core_internal.h - the objects of the core and what its files offer each other.
 *
 *   client ---- member ---- group        member: one local rank, from its join request to its end
 *                 |                    group: a committed group this node takes part in
 *               (home) forming         forming: the home's view of a group that lacks ranks
 *   peer, engine                       who can be reached, and how
 *
 * Objects live in pools. One that ends stays readable and is reused at the next core_input()
 * only, so an action that names it stays good until it has been executed. */
#ifndef COMMD_CORE_INTERNAL_H
#define COMMD_CORE_INTERNAL_H

#include "daemon/core/core.h"
#include "daemon/core/core_act.h"
#include "daemon/core/core_joins.h"
#include "daemon/core/core_pool.h"
#include "daemon/core/core_text.h"
#include "daemon/core/share.h"
#include "shm/util/restarts.h"

enum {
    CORE_ADMIN_CLIENTS = 64,    /* slots beyond max_clients, so that commctl still gets in */
    CORE_CLIENT_JOINS = 1024,   /* pending joins per client */
    CORE_MAX_MEMBERS = 65536,   /* local ranks over all groups */
    CORE_MEMBERS_PER_MS = 1024, /* that are looked at for an expired time limit */
    CORE_RATION = 2048,         /* joins of all users that are asked in a window: core_ration.c */
    CORE_PART_BATCH = 64,       /* ranks of a client that is gone which end at a time */
    CORE_VERDICT_MS = 1000,     /* the home's time to say who is missing */
    CORE_ENGINE_PING_MS = 1000,
    CORE_HELD_VERSION = 11,     /* of MSG_VERSION: commds and engines know HELD, BOARD_HOLD */
    CORE_SENT_MS = 1500,        /* so long a report of what users sent outlives its time */
    CORE_SENT_MOST_MS = 60000,  /* the longest time that such a report is of */
    CORE_ENGINE_DOUBT_MS = 30,  /* a lost engine of another node breaks groups after this */
    CORE_ENGINE_TOLD_MS = 1000, /* likewise, if that side has ended the link and does not say why */
    CORE_PASSED = 256,          /* epochs that have ended, to tell who was left behind */
    CORE_AWAY_TOLD_MS = 100,    /* that a node is not READY any more is said after this */
    CORE_ENGINE_QUIET_MS = 2500,     /* nothing comes for so long: not while a node lives */
    CORE_RECONNECT_RESET_MS = 10000, /* engines that accept each other so long reset the back-off */
    CORE_GPU_ASKS = 8,               /* of a client for GPUs, within a second */
    CORE_GPU_SPARE = 16,             /* this part of all groups: gpu_spare() */
    CORE_LOG_ERROR = 0,
    CORE_LOG_WARN,
    CORE_LOG_INFO,
    CORE_LOG_DEBUG
};
#define CORE_NEVER UINT64_MAX
/* In JOIN_CANCEL: the origin wants no answer (its client is gone, or it asks elsewhere). Join
 * ids have this bit clear. */
#define CORE_CANCEL_QUIET (UINT64_C(1) << 63)
/* In SYNC.again: tell all your ranks that are gone, whatever became of the group. */
#define CORE_SYNC_FATES (UINT64_C(1) << 63)

/* ---- objects -------------------------------------------------------------------------------- */

/* Counts per payer against the quotas; lives while any of them is not 0. What a user may have of a
 * limit: user_share(). */
struct user {
    struct pooled pooled;
    struct list hash;
    uint32_t uid;
    unsigned clients, groups, forming, members;
    struct run_owner runs;
    unsigned node;        /* whose joins brought the user here, if it has runs */
    uint32_t asked_ranks; /* that were looked at for its questions since @asked_ms */
    uint64_t asked_ms;
    uint64_t sent_until_ms, sent_rate; /* bytes a second, as the engine told, valid until then */
    unsigned joins;                    /* asked in this window of core->ration */
    struct list asking, holding;       /* of core->ration */
    struct list held;                  /* members: their joins wait for the next window */
};

/* AWAY: restored, its process has not connected again yet. */
enum client_state { CLIENT_FREE, CLIENT_NEW, CLIENT_READY, CLIENT_AWAY };
struct client {
    enum client_state state;
    uint32_t uid, pid;
    uint32_t payer; /* here and below: who is charged, as it was when this came */
    bool admin;
    bool returned;    /* it was away: what it leaves it may have left already, as its board says */
    unsigned repeats; /* likewise: of the joins that it said it would ask for again, to come yet */
    unsigned waiting; /* pending joins */
    unsigned groups;  /* ranks in open groups */
    unsigned asked;   /* questions since @asked_ms */
    uint64_t asked_ms;
    bool gpu_waits;   /* for an answer to its GPU_ASK @gpu_req */
    bool gpu_session; /* it has a session at commd-gpu */
    uint32_t gpu_req;
    unsigned gpu_asks; /* since @gpu_asked_ms */
    uint64_t gpu_asked_ms;
    uint64_t since_ms;
    struct list members; /* its ranks; the members are owned by the core's pool */
    char program[MSG_NAME_MAX];
};

/* It has said hello, and is no admin tool: also while it is away. */
static inline bool client_counts(const struct client *client)
{
    return client->state == CLIENT_AWAY || (client->state == CLIENT_READY && !client->admin);
}

/* IN: the client knows of it, or is told when there is something to tell. WITHDRAWN: likewise, but
 * it does not ask again when its commit comes to nothing. Of a restored rank what the client that
 * came back said: nothing yet; that it waits for the answer to this join, and asks again.
 */
enum member_claim { CLAIM_IN, CLAIM_WITHDRAWN, CLAIM_NONE, CLAIM_ASKS };
struct member {
    struct pooled pooled;
    enum member_state state;
    struct list by_client;
    struct list by_group; /* COMMITTED, JOINED */
    struct list by_name;  /* ASKING, EXPIRING */
    struct list waiting;  /* all but JOINED: the members with a deadline */
    struct list todo;     /* to be asked (again) before this core_input() returns, or held */
    struct list news;     /* its home is to be told what is new, likewise */
    unsigned client;
    uint32_t req, rank, size, uid, payer, pid;
    uint64_t join;        /* number of the request that its home has now: new each time */
    uint64_t key;         /* hash of (uid, name) */
    uint64_t begun_ms;    /* when it asked to join */
    uint64_t deadline_ms; /* CORE_NEVER: none */
    uint64_t limit_ms;    /* its time to join, for texts */
    int home;             /* node asked, -1: none yet */
    enum member_claim claim;
    struct group *group; /* COMMITTED, JOINED; borrowed: groups outlive their members */
    struct wish wish;    /* until it is JOINED; @rank and @size are what it has got, or its */
    char name[MSG_GROUP_MAX];
};

/* Does its client wait for an answer? */
static inline bool member_hears(const struct member *member)
{
    return member->claim == CLAIM_IN || member->claim == CLAIM_WITHDRAWN;
}

/* LEFT: none of its ranks is here any more, and others have to hear that yet: core_resync.c. DEAD:
 * closed or never came about; only actions that are still queued may look at it. */
enum group_state { GROUP_FREE, GROUP_COMMITTED, GROUP_OPEN, GROUP_BROKEN, GROUP_LEFT, GROUP_DEAD };
/* Has our engine the board, and works on it? core_bond.c. */
enum group_bond { BOND_BOUND, BOND_ASKED, BOND_HELD, BOND_READ, BOND_LOOSE };
/* It comes to rest, because our engine is to be replaced: core_pause.c. */
struct group_pause {
    uint32_t attempt; /* not core->pausing.attempt: no part of that */
    uint32_t n;       /* participants, with us, that have answered in this step */
    uint32_t ops;     /* the most that any of them has begun */
    bool rests;
};

struct group {
    struct pooled pooled;
    enum group_state state;
    struct list hash, all;
    uint64_t id, epoch, committed_ms;
    uint64_t follows;    /* the group of which it is the next epoch; 0: none */
    uint64_t next_epoch; /* of the group that followed it here; 0: none */
    uint64_t passed;     /* of one that others have gone on as, as they say; 0: they do not */
    uint64_t heard;      /* grows with what is known of ranks that are gone: core_follow.c */
    bool misses;         /* nodes are lost, or back, and the board has yet to say so */
    uint32_t uid, payer, size, nnodes, me;
    struct plan_net net; /* as the home has it configured */
    bool gpu;            /* all its nodes have a GPU service */
    uint32_t nlocal;     /* live local members = members */
    uint32_t nconfirmed; /* other participants that confirmed the commit; LEFT: that have heard */
    uint64_t asked;      /* LEFT: an answer to this question, or a later one, counts */
    unsigned home;
    bool boarded;           /* the edge was told to make a board, and has it */
    bool unclean;           /* a rank died, or the group broke */
    bool revoked;           /* a rank aborted it when another one had been lost */
    enum cause doubt;       /* COMMITTED: a participant has given it up (LEFT), or @bond_node was
                               lost: it opens by SYNC{all} alone */
    enum group_bond bond;   /* OPEN, over several nodes */
    uint64_t bond_until_ms; /* not BOUND: then it breaks */
    uint64_t
        bond_key; /* what we said last, or went on with, since an engine was lost; 0: nothing */
    unsigned bond_node; /* whose engine was lost; @doubt: or which node */
    bool bond_planned;  /* it is being replaced: core_pause.c */
    bool bond_past;     /* BOUND: it went on from @position, and another commd had the key */
    struct core_position position; /* HELD, LOOSE; afterwards: as it was then */
    uint32_t nheld;                /* other participants that have said the same */
    uint32_t sum_sent, sum_came;   /* of these and us */
    bool *held; /* owned by the core's table: per participant, of nheld, or of pause.n */
    struct group_pause pause;
    uint16_t *nodes;            /* owned by the core's table: node indices, ascending */
    bool *confirmed;            /* likewise: per participant */
    bool *lost;                 /* likewise: its node was lost, and its ranks with it */
    struct msg_member *members; /* owned run */
    struct list local;
    enum cause cause; /* BROKEN, DEAD */
    int32_t cause_rank;
    uint32_t cause_pid;
    unsigned cause_node;
    char cause_text[MSG_TEXT_MAX];
    char bond_text[MSG_TEXT_MAX]; /* not BOUND, or @doubt: why */
    char name[MSG_GROUP_MAX];
};

/* Ranks of a client that is gone, which have not ended yet: core_part.c. */
struct parting {
    struct pooled pooled;
    struct list all, members;
    char why[MSG_TEXT_MAX];
    char kick[MSG_TEXT_MAX]; /* the cause for their groups; "": the client was not kicked */
};

/* What our engine has of a peer's: nothing; its address; a link that both ends agree on. */
enum peer_engine { PEER_ENGINE_UNKNOWN, PEER_ENGINE_ADDED, PEER_ENGINE_ACCEPTED };
struct peer {
    enum core_peer_state state;
    enum peer_engine theirs;
    uint64_t incarnation; /* of its commd; 0: never seen */
    uint32_t version;     /* MSG_VERSION of that commd */
    uint64_t id;          /* hash of its name */
    uint64_t since_ms, heard_ms;
    uint32_t blocks;                     /* of users who came by its joins */
    uint32_t formings;                   /* that its joins began */
    uint64_t committed;                  /* number of its last COMMIT in this incarnation that came,
                                            or will not come any more */
    uint64_t engine;                     /* incarnation of its engine, as it says; 0: it has none */
    uint64_t accepts_mine, accepts_from; /* its last ENGINE_READY: it accepts this engine
                                            of ours, for this one of its own */
    uint64_t accepts_intro;              /* likewise: by this introduction; 0: it does not say */
    uint64_t intro;                      /* by which our engine has theirs; 0: not known */
    uint64_t our_half, their_half;       /* said over this link: introduction_now() */
    uint64_t doubt_ms; /* when groups break because our engine lost theirs; CORE_NEVER: not so */
    enum link_end doubt_end; /* as far as is known; @error: as people read it */
    uint64_t pauses_ms;      /* until then it may end its engine: core_pause.c */
    bool renews;             /* an engine is replaced, its own or ours: it is not lost */
    uint64_t lost_ms;        /* it is missed: when it is lost; CORE_NEVER: it is not missed */
    uint64_t tell_away_ms;   /* not READY any more, and not said yet: when it is; CORE_NEVER */
    bool said;               /* over this link: ENGINE_STATE */
    bool counts;             /* likewise: how many COMMITs there were before */
    uint64_t retry_ms;       /* when our engine is told of theirs again; CORE_NEVER: no need */
    uint64_t apart_ms; /* since when the two have no connection, as ours tells; 0: they have */
    uint64_t alive_ms; /* when their node was heard of over it last; 0: not known */
    bool met;          /* they have had one since ours was told of theirs */
    uint64_t backoff_ms;
    bool given_up;    /* for so long without a link, or not READY, that its ranks count as gone */
    uint64_t hope_ms; /* it was lost, and may be back: not after that; CORE_NEVER: it was not */
    bool strays;      /* it knows what a stray is */
    uint64_t recheck_ms; /* READY: when it is asked again of groups that it does not know; 0 */
    bool draining;       /* as its last heartbeat says */
    bool free;           /* likewise, since the last group with it opened here: core_renew.c */
    bool shares;         /* a group here has it in it; follows from the groups, for a heartbeat */
    bool gpu;            /* as its last JOIN says */
    uint64_t links, losses[CORE_LOSS_KINDS];
    struct core_traffic traffic;
    struct msg_engine_traffic reported; /* by the engine, last */
    uint64_t had; /* that engine ours had before this commd: its first report is no gain */
    uint32_t addr_len;
    uint8_t addr[MSG_ADDR_MAX];
    char error[MSG_TEXT_MAX];
};

/* An epoch that was followed, and as which one that was, which has ended: core_follow.c. */
struct passed {
    uint64_t follows, epoch; /* epoch 0: this place is empty */
    uint32_t uid, payer;
};

/* A process of this node: core_life.c. */
struct life {
    enum core_engine_state state;
    bool killed;
    uint32_t pid;
    uint64_t since_ms;
    uint64_t start_ms;                    /* OFF: not started before */
    struct restarts restarts;             /* deaths in a row: restart_wait() */
    uint64_t ping_ms, seq, unanswered_ms; /* next ping; time of the oldest unanswered one, 0 */
    char text[MSG_TEXT_MAX];              /* what it runs on, or why it does not */
    char build[MSG_NAME_MAX];             /* UP: its version; "": it does not say */
    uint64_t settings;                    /* likewise, of its arguments */
    bool renews;                          /* OFF: the process makes room, and has not ended yet */
    bool renewed;                         /* that was done: one that is no better stays */
};

struct own_engine {
    struct life life; /* .start_ms: it is started then; CORE_NEVER: not wanted */
    bool resuming;    /* restored: it has not told yet all that it has */
    uint32_t version; /* its MSG_VERSION */
    uint64_t incarnation;
    uint32_t addr_len;
    uint8_t addr[MSG_ADDR_MAX];
};

/* Our engine is to be replaced, and its groups come to rest for that: core_pause.c. */
enum pause_state { PAUSING_NOT, PAUSING_ASKED, PAUSING_UNTIL };
struct pausing {
    enum pause_state state;
    uint32_t attempt;
    unsigned left; /* groups that have not all answers of this step */
    uint64_t until_ms;
    uint64_t next_ms, wait_ms; /* when it may be tried again; how long that was put off */
};

struct own_gpu {
    struct life life;
    bool resuming;              /* restored: STARTING, and tells which sessions it has */
    uint32_t lost_pid;          /* of one that has ended while no commd was there */
    unsigned waiting, sessions; /* clients that wait for it, that have a session */
    uint32_t nccl, ndevices;
    struct msg_gpu_device devices[MSG_MAX_GPUS];
};

/* What users have made other nodes do in this window: core_ration.c. */
struct ration {
    uint64_t end_ms;
    unsigned limit, joins;
    struct list asking;  /* users with joins in it */
    struct list holding; /* users with joins that wait for the next one */
};

/* FRESH: nothing has happened yet. RESTORING: it gets what a commd before it knew. */
enum core_phase { PHASE_FRESH, PHASE_RESTORING, PHASE_RUNNING };

enum { HASH_GROUPS = 1024, HASH_USERS = 256, HASH_JOINS = 16384 };
struct core {
    /* ---- settings ---- */
    struct core_config config; /* .nodes and the strings are copies */
    char cluster[MSG_NAME_MAX], version[MSG_NAME_MAX];
    char (*node_names)[MSG_NAME_MAX];
    uint64_t *ids; /* hashes of these */
    unsigned client_slots, max_members, max_groups, max_users;
    unsigned part_batch;

    /* ---- state: from this and the settings all else follows ---- */
    enum core_phase phase;
    uint64_t now, random;
    uint64_t join_count; /* numbers of requests */
    uint64_t commits;    /* groups committed by this home */
    uint64_t asked;      /* numbers of SYNC{again} */
    bool stopping;
    bool draining; /* takes no new groups; see core_change.c */
    struct peer *peers;
    struct own_engine engine;
    struct pausing pausing;
    struct own_gpu gpu;
    struct client *clients; /* and one that stands for nobody: core_part.c */
    struct pool members, groups, formings, users, partings, strays;
    struct runs runs;
    uint16_t *group_nodes, *forming_nodes;           /* a row for each item of these pools */
    bool *group_confirmed, *group_lost, *group_held; /* likewise */
    struct ration ration;
    struct core_counts counts;
    uint64_t heartbeat_ms, heartbeat_seq; /* the next one, the last one */
    uint64_t part_ms;                     /* when the next ranks of all_partings end */

    /* ---- what follows: lists and tables of the objects, and the earliest deadlines ---- */
    struct list all_groups, all_formings, all_partings, waiting, todo, news, freed;
    struct list by_id[HASH_GROUPS], by_name[HASH_GROUPS], forming_by_name[HASH_GROUPS];
    struct list strays_by_id[HASH_GROUPS];
    struct passed passed[CORE_PASSED]; /* the oldest first */
    struct list user_by_uid[HASH_USERS];
    uint32_t *joins; /* HASH_JOINS chains through fates: (node, join) -> member of a forming */
    unsigned nclients;
    unsigned naway;       /* of these */
    uint64_t silent_ms;   /* no peer is silent for too long before this */
    uint64_t bond_ms;     /* no group waits for too long for an engine before this */
    uint64_t expire_ms;   /* no member expires before this */
    uint64_t expired_ms;  /* when members were last looked at for that */
    uint64_t promised_ms; /* the deadline that the caller was told */
    uint64_t forgiven_ms; /* the last late call: look_late() */
    unsigned forgiven;    /* late calls in a row */

    /* ---- used within one core_input(), and by the actions that it leaves ---- */
    bool peers_changed; /* the set of READY nodes: re-home and open before returning */
    bool learned;       /* of ranks that are gone: follow_run() */
    bool misses;        /* likewise, some group: of nodes that are lost, or back */
    struct queue queue;
    bool *up;
    uint16_t *place; /* node -> participant + 1 */
    char (*names)[MSG_NAME_MAX];
    char *missing, *seats; /* MSG_TEXT_MAX */
    uint32_t *gone;        /* ranks of one JOIN_NEWS */
};

/* A cause may come from another node. */
static inline void count_cause(uint64_t counts[CAUSE_COUNT], enum cause cause)
{
    counts[(unsigned)cause < CAUSE_COUNT ? cause : CAUSE_INTERNAL]++;
}
static inline const char *core_node_name(const struct core *core, unsigned node)
{
    assert(node < core->config.nnodes);
    return core->node_names[node];
}
/* The index of the node of that name, -1: it is not in the configuration. */
static inline int core_node_find(const struct core *core, const char *name)
{
    unsigned lo = 0, hi = core->config.nnodes;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        int order = strcmp(core_node_name(core, mid), name);

        if (!order)
            return (int)mid;
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}
static inline const char *core_self_name(const struct core *core)
{
    return core->node_names[core->config.self];
}

/* ---- core_rendezvous.c, core_text.c -----------------------------------------------------------
 */

/* The home of the group with @key (core_rendezvous.c): one of the @nodes whose bit in @up is set,
 * -1 when there is none. @ids are stable hashes of the nodes' names. */
int rendezvous(uint64_t key, const uint64_t *ids, const bool *up, unsigned nodes);
#define CORE_MIX_STEP 0x9e3779b97f4a7c15u
uint64_t core_mix(uint64_t x);

/* ---- core.c ---------------------------------------------------------------------------------- */

/* core_new() after the tables are there. */
void core_setup(struct core *core, const struct core_config *config);
uint64_t core_random(struct core *core); /* never 0 */

/* ---- core_client.c --------------------------------------------------------------------------- */

void client_open(struct core *core, const struct core_event *event);
void client_msg(struct core *core, const struct core_event *event);
void client_closed(struct core *core, unsigned slot, const char *why);
void client_set_state(struct core *core, unsigned slot, enum client_state state);
void core_client_refuse(struct core *core, unsigned slot, enum cause cause, const char *format, ...)
    _printf_(4, 5);

/* ---- core_restore.c -------------------------------------------------------------------------- */

void core_set_phase(struct core *core, enum core_phase phase);
void restore_end(struct core *core); /* CORE_TAKEN_OVER */
void restore_back(struct core *core, const struct core_event *event);
/* One that is away, in no group, and of the process that says hello in @slot: it ends. */
void restore_forget_twin(struct core *core, unsigned slot);
/* Answers a join that a commd before this one granted, if @msg is one of these. */
bool restore_answered(struct core *core, unsigned slot, const struct msg_client_join *msg);
/* A join of @slot has been dealt with. After the last one that it had said it would repeat: what it
 * did not ask for it has left. */
void restore_asked(struct core *core, unsigned slot);

/* ---- core_user.c ----------------------------------------------------------------------------- */

/* @uid: of a payer. NULL: unknown, or full. */
struct user *user_get(struct core *core, uint32_t uid, bool make);
/* What @user has of a limit, and may have; of MEMBERS: blocks. */
struct core_share user_share(const struct core *core, const struct user *user,
                             enum core_share_of of);
uint64_t user_may(const struct core *core, const struct user *user, enum core_share_of of);
/* What the joins of another node may add to @own, which they hold of @limit, of which @all is held.
 */
uint32_t node_room(uint32_t limit, uint32_t all, uint32_t own);
/* A run for @n members in a group of @user, who came by a join of @node; NULL: no room in the
 * user's share, or in the node's. */
struct msg_member *user_take_run(struct core *core, struct user *user, uint32_t n, unsigned node);
/* The same for a group that was there already, whatever its user may have now. */
struct msg_member *user_restore_run(struct core *core, struct user *user, uint32_t n);
void user_drop_run(struct core *core, struct user *user, struct msg_member *run); /* keeps @user */
void user_leave_run(struct core *core, uint32_t uid, struct msg_member *run);
void user_put(struct core *core, struct user *user); /* drops it when all counts are 0 */
void user_sent(struct core *core, const struct msg_engine_sent *msg);

/* ---- core_peer.c ----------------------------------------------------------------------------- */

void peer_up(struct core *core, const struct core_event *event);
void peer_msg(struct core *core, unsigned node, const struct msg *msg);
/* Its link has ended because it does not prove any more who it is: it is lost, with its engine. */
void peer_refused(struct core *core, unsigned node, const char *why);
void peer_vacant(struct core *core, unsigned node);
void peer_down(struct core *core, unsigned node, enum core_loss loss, const char *why);
/* And not to be back, as far as can be seen. */
void peer_lost(struct core *core, unsigned node, const char *why);
void peer_lost_away(struct core *core, unsigned node, const char *why); /* its link had closed */
/* Likewise, and its engine has ended, too: both may be back. */
void peer_struck(struct core *core, unsigned node, const char *why);
/* Nothing has come for so long over its link, which is closed. */
void peer_silent(struct core *core, unsigned node, const char *why);
void peer_tell_away(struct core *core, unsigned node);  /* if that is not said yet */
void peer_add_engine(struct core *core, unsigned node); /* to ours, if it can be now */
void peer_settle(struct core *core, unsigned node); /* groups end by the link that is in doubt */
bool peer_linked(const struct core *core, unsigned node);
bool peer_usable(const struct core *core, unsigned node); /* self or READY */
/* Since when the two engines, which had a connection, have none, and not on purpose. */
uint64_t peer_broke_ms(const struct core *core, unsigned node);
bool peer_is_missed(const struct core *core,
                    unsigned node);               /* AWAY, or linked and not READY since */
void peer_miss(struct core *core, unsigned node); /* after a taking-over, if it is UNLINKED */
void peer_stop(struct core *core);                /* core->stopping: our engine goes */
void peer_engine_up(struct core *core);
void peer_engine_resumed(struct core *core);
void peer_engine_down(struct core *core);
void peer_engine_accepts(struct core *core, const struct msg_engine_peer *msg);
void peer_engine_traffic(struct core *core, const struct msg_engine_traffic *msg);
void peer_engine_lost(struct core *core, const struct msg_engine_peer *msg);

/* ---- core_peer_time.c ------------------------------------------------------------------------ */

void peer_tick(struct core *core);
uint64_t peer_deadline(const struct core *core);
void peer_forgive(struct core *core, uint64_t grace); /* see forgive_all() in core.c */

/* ---- core_life.c ----------------------------------------------------------------------------- */

void life_set_state(struct core *core, struct life *life, enum core_engine_state state);
/* @why stays as its status text until the next hello. */
void life_kill(struct core *core, struct life *life, const char *why);
/* It ended: @why, if we did not kill it. Was it up? */
bool life_end(struct core *core, struct life *life, const char *why);
/* For the log, after "starts it again": "", or that it has to wait, and why. Returns @buf. */
const char *life_wait_text(const struct core *core, const struct life *life, char buf[80]);
/* It dies again and again, so often in a row; 0: it does not. */
unsigned life_deaths(const struct core *core, const struct life *life);
/* Kills it if it is overdue. True: it has to be asked, PING @life->seq. */
bool life_tick(struct core *core, struct life *life, uint64_t start_limit, uint64_t answer_limit);
uint64_t life_deadline(const struct life *life, uint64_t start_limit, uint64_t answer_limit);
/* core_renew.c: a process that is of another version, or has settings of before. Its hello came: */
void renew_hello(struct core *core, struct life *life, const char *build, uint64_t settings);
/* Ends it if nobody needs it now, or all can go on over the next one. */
void renew_engine(struct core *core);
bool renew_waits(const struct core *core, const struct life *life); /* it goes on until it can */
void renew_rests(struct core *core); /* nothing of any group is on the wire */
bool renew_gpu(struct core *core);
/* Its process has ended. False: it did not make room. */
bool renew_ended(struct core *core, struct life *life);
void renew_settings_changed(struct core *core);
void renew_mark_shared(struct core *core); /* sets peer.shares */

void life_pong(struct life *life, const struct msg_ping *msg);
void life_forgive(struct core *core, struct life *life); /* see forgive_all() in core.c */

/* ---- core_engine.c --------------------------------------------------------------------------- */

void engine_started(struct core *core, uint32_t pid);
void engine_msg(struct core *core, const struct msg *msg);
void engine_down(struct core *core, const char *why);
void engine_tick(struct core *core);
void engine_ask(struct core *core); /* now what it hears of its peers, and not when it is due */
bool engine_speaks(const struct core *core); /* UP, and all that it has is known */
uint64_t engine_deadline(const struct core *core);

/* ---- core_gpu.c ------------------------------------------------------------------------------ */

void gpu_ask(struct core *core, unsigned slot, const struct msg_gpu_ask *msg);
void gpu_client_closed(struct core *core, unsigned slot);
void gpu_started(struct core *core, uint32_t pid);
void gpu_msg(struct core *core, const struct msg *msg);
void gpu_down(struct core *core, const char *why);
void gpu_taken_over(struct core *core);
void gpu_tick(struct core *core);
uint64_t gpu_deadline(const struct core *core);
/* Groups that are kept free for commd-gpu: to others they are taken. */
uint32_t gpu_spare(const struct core *core);

/* ---- core_part.c ----------------------------------------------------------------------------- */

/* All ranks of the client end: @why. @kick: and their groups with them, with this text; or NULL. */
void part_members(struct core *core, unsigned slot, const char *why, const char *kick);
/* The ranks of nobody: those that were restored without their client. */
void part_orphans(struct core *core, const char *why);
void part_tick(struct core *core);
uint64_t part_deadline(const struct core *core);

/* ---- core_ration.c --------------------------------------------------------------------------- */

/* May the join of @member be asked now? Else it is held, and comes onto the todo list later. */
bool ration_take(struct core *core, struct member *member);
void ration_tick(struct core *core);
uint64_t ration_deadline(const struct core *core);

/* ---- core_change.c --------------------------------------------------------------------------- */

void change_ask(struct core *core, unsigned slot, const struct msg_admin *msg);
/* May the process in @slot begin something new while the node drains? If not, why. */
bool change_may_begin(const struct core *core, unsigned slot, char *ret_text, size_t cap);

/* ---- core_absent.c --------------------------------------------------------------------------- */

void absent_ask_client(struct core *core, const struct member *member,
                       const struct msg_client_ask_absent *msg);
void absent_ask_peer(struct core *core, unsigned node, const struct msg_ask_absent *msg);
void absent_collect(struct core *core, unsigned node, const struct msg_absent_here *msg);

/* ---- core_commit.c --------------------------------------------------------------------------- */

/* The participants, by name and in the order of the configuration, as node indices in
 * core->place[]. *ret_me: which of them this node is, -1: none. False: one is unknown, or not in
 * order. */
bool place_nodes(struct core *core, const char (*names)[MSG_NAME_MAX], unsigned n, int *ret_me);
void group_commit(struct core *core, unsigned home, const struct msg_commit *msg);
void group_sync(struct core *core, unsigned node, const struct msg_sync *msg);
bool group_agreed(const struct group *group); /* all have voted for it */
/* Another node collects the votes of @group and tells what has become of it. */
bool group_judged_elsewhere(const struct core *core, const struct group *group);
/* SYNC. */
struct act_msg group_vote(const struct group *group, uint64_t again, uint64_t told);
void group_home_lost(struct core *core, unsigned node);
void group_tick(struct core *core); /* at each heartbeat */

/* ---- core_group.c ---------------------------------------------------------------------------- */

/* A COMMITTED one, without its members; core->place has its nodes. NULL: no room. */
struct group *group_new(struct core *core, unsigned home, const struct msg_commit *msg,
                        unsigned me);
/* One that was open before, without its members; core->place has its nodes. NULL: no room. */
struct group *group_restore(struct core *core, const struct core_kept_group *kept, unsigned me);
void group_restore_broken(struct core *core, struct group *group,
                          const struct core_group_broken *broken, unsigned node);
void group_try_open(struct core *core, struct group *group);
/* @group has opened: notes that at the group that it follows. */
void group_note_next(struct core *core, const struct group *group);
/* Not open yet, and will not be: its joins are asked again. */
void group_withdraw(struct core *core, struct group *group, int32_t rank, uint32_t pid,
                    unsigned node, const char *text);
/* The participant that tells the others what breaks the group, perhaps this node. */
unsigned group_first(const struct core *core, const struct group *group);
/* BROKEN with the cause of the group, to @node. */
void group_tell_broken(struct core *core, const struct group *group, unsigned node);
/* To @node what broke the group, and which of our ranks are gone. */
void group_tell_ends(struct core *core, const struct group *group, unsigned node);
void group_mark_broken(struct core *core, const struct group *group, bool again);
/* A user named the group, and may have written the cause: both are quoted. */
void group_log(struct core *core, enum core_note note, uint32_t uid, unsigned level,
               const char *name, const char *cause, const char *decision);
void group_broken_msg(struct core *core, unsigned node, const struct msg_broken *msg);
void group_board_error(struct core *core, const struct msg_board *msg);
void group_board_failed(struct core *core, uint64_t id, enum cause cause, const char *why);
void group_abort(struct core *core, struct group *group, const struct member *member,
                 const char *text);
/* An OPEN or a COMMITTED one; @member: who was kicked, NULL: the group as a whole. */
void group_kick(struct core *core, struct group *group, const struct member *member,
                const char *text);
void group_open_ready(struct core *core);
/* No rank of this node is left in it. */
void group_close(struct core *core, struct group *group);
void group_forget(struct core *core, struct group *group); /* and nobody has to be told */
/* All groups over several nodes that have @node break. @tell: BROKEN to the others, which may not
 * see it by themselves. */
void group_node_lost(struct core *core, unsigned node, const char *text, bool tell);
/* Our engine has lost its engine, and we do not know that that one has ended. */
void group_apart(struct core *core, unsigned node, enum cause cause, const char *text);
/* Its engine, or ours, has ended: groups over it wait for the next one (core_bond.c), or break. */
void group_engine_lost(struct core *core, unsigned node, const char *text);
/* It cannot go on over the next engine. */
void group_bond_failed(struct core *core, struct group *group);
/* Have all ranks of that participant ended? Is there another one of which they have? */
bool group_all_gone(const struct core *core, const struct group *group, unsigned place);
bool group_has_empty_node(const struct core *core, const struct group *group);
/* Our engine, which went on, does not have that of @node: open groups with it break. */
void group_unconnected(struct core *core, unsigned node, const char *text);
void group_stop(struct core *core, const char *why); /* @why: or NULL */
void group_reap(struct core *core);
struct group *group_find(const struct core *core, uint64_t id); /* not DEAD */
int group_place(const struct group *group, unsigned node);      /* participant index, -1 */

/* ---- core_bond.c ----------------------------------------------------------------------------- */

/* The engine of @node, perhaps our own, has ended. False: the group has to break. */
bool bond_loosen(struct core *core, struct group *group, unsigned node, const char *text);
/* Can these be told to hold a board: the other commds of the group; our engine, if there is one? */
bool bond_nodes_know(const struct core *core, const struct group *group);
bool bond_engine_knows(const struct core *core);
/* Does a group wait for an engine, which @node has a part in, and was not lost itself? */
bool bond_waits(const struct core *core, unsigned node);
void bond_held(struct core *core, const struct msg_board_held *msg); /* from our engine */
void bond_read(struct core *core, uint64_t id, bool quiet, const struct core_position *position);
void bond_held_msg(struct core *core, unsigned node, const struct msg_held *msg);
void bond_tell(struct core *core, const struct group *group, unsigned node); /* it is back */
void bond_look(struct core *core); /* other nodes are READY */
void bond_tick(struct core *core);
uint64_t bond_deadline(const struct core *core);
void bond_forgive(struct core *core, uint64_t grace); /* see forgive_all() in core.c */

/* ---- core_pause.c ---------------------------------------------------------------------------- */

/* Asks all groups of our engine to come to rest, and calls renew_rests() if they do. */
void pause_begin(struct core *core);
void pause_fresh(struct core *core); /* it is not put off because it has failed before */
void pause_end(struct core *core);   /* they go on; also if there was none */
/* No rank of this node is left in it. */
void pause_group_ends(struct core *core, const struct group *group);
/* The engine of @asker has not ended: what it asked for is forgotten. */
void pause_is_over(struct core *core, unsigned asker);
void pause_msg(struct core *core, unsigned node, const struct msg_pause *msg); /* PAUSE */
/* Our engine says that the engine of @node has ended when it was to be replaced. */
void pause_was_asked(struct core *core, unsigned node);
void pause_heard(struct core *core, unsigned node, const struct msg_pause *msg); /* PAUSED */
void pause_engine_msg(struct core *core, const struct msg_pause *msg);           /* of our engine */
void pause_tick(struct core *core);
uint64_t pause_deadline(const struct core *core);

/* ---- core_resync.c --------------------------------------------------------------------------- */

/* It is @back; or it has another engine, and so may have another commd: of groups that wait for
 * that. */
void group_resync(struct core *core, unsigned node, bool back);
/* It is READY: has it the groups that broke, and which of its ranks have ended there? */
void group_ask_broken(struct core *core, unsigned node);
/* Likewise all participants of @group. */
void group_ask_all(struct core *core, const struct group *group);
void group_left(struct core *core, struct group *group, bool opened);
void group_ask_left(struct core *core, const struct group *group); /* at each heartbeat */
void group_told(struct core *core, struct group *group, unsigned place);
void group_forgo(struct core *core, unsigned node); /* it is lost: it need not be told */
/* All that the boards have to know, again. Without an engine that goes on, groups over several
 * nodes end: @text. */
void group_taken_over(struct core *core, const char *text);

/* ---- core_rank.c ----------------------------------------------------------------------------- */

/* A rank of this node. */
void group_rank_left(struct core *core, struct member *member, uint32_t ops);
void group_rank_lost(struct core *core, struct member *member, const char *why);
/* A rank that left while no commd was there to hear it. */
void group_rank_left_unheard(struct core *core, struct member *member);
/* GONE of each rank of this node that is gone, to the other participants. */
void group_tell_ended(struct core *core, const struct group *group);
void group_gone_msg(struct core *core, unsigned node, const struct msg_gone *msg);

#endif
