/* msg.h - every control message as a plain C struct: what the core decides on and what the
 * codec (codec.h) turns into protobuf frames and back. The written schema is commd.proto.
 * No behaviour here. Strings are bounded and NUL-terminated; decode refuses longer ones. */
#ifndef COMMD_MSG_H
#define COMMD_MSG_H

#include "shm/util/base.h"

enum {
    /* In each hello: what its sender speaks, and the oldest that it understands, which is the
     * version before. When they rise: "When MSG_VERSION rises" in doc/protocol.md. */
    MSG_VERSION = 11,
    MSG_VERSION_OLDEST = 10,
    MSG_NAME_MAX = 64,   /* node and cluster names, with NUL */
    MSG_GROUP_MAX = 256, /* group names, with NUL */
    MSG_TEXT_MAX = 512,
    MSG_COMMAND_MAX = 160, /* of a command line, with NUL */
    MSG_ADDR_MAX = 1024,   /* fabric address */
    MSG_MAX_RANKS = 65536,
    MSG_MAX_NODES = 1024,
    MSG_MAX_CELLS = 262144,
    MSG_MAX_GPUS = 64,   /* of a node */
    MSG_KEY = 16,        /* bytes of what a client shows when it comes back */
    MSG_MAX_KEPT = 6144, /* groups that it can say it is still in */
    MSG_MAX_ASKS = 1024, /* its joins that wait */
};

/* Values are the field numbers of the envelope's oneof in commd.proto. */
enum msg_type {
    MSG_NONE = 0,
    /* client -> commd */
    MSG_CLIENT_HELLO = 1,
    MSG_CLIENT_JOIN = 2,
    MSG_CLIENT_LEAVE = 3,
    MSG_CLIENT_ABORT = 4,
    MSG_ADMIN = 5,
    MSG_CLIENT_ASK_ABSENT = 6, /* answered by MSG_ABSENT, at most once per node of the group */
    MSG_ARENA_ADD = 7,         /* + arena fd; answered by MSG_ARENA_ANSWER */
    MSG_ARENA_DEL = 8,
    MSG_ARENA_ASK = 9, /* for the arena of another member; answered by MSG_ARENA_ANSWER */
    /* commd -> client */
    MSG_WELCOME = 10,
    MSG_JOINED = 11, /* + board fd, + doorbell fd if new_doorbell */
    MSG_JOIN_FAILED = 12,
    MSG_REFUSED = 13, /* the session ends after this */
    MSG_TABLES = 14,
    MSG_ABSENT = 15,
    MSG_ARENA_ANSWER = 16, /* to an ASK that succeeds: + arena fd */
    /* client -> commd */
    MSG_CLIENT_WITHDRAW = 17, /* since version 11 */
    /* commd <-> commd */
    MSG_PEER_HELLO = 20,
    MSG_HEARTBEAT = 21,
    MSG_ENGINE_STATE = 22, /* my engine: fabric address and the token for you */
    MSG_ENGINE_READY = 23, /* my engine accepts yours (of this incarnation); 0: not any more */
    MSG_JOIN = 24,         /* origin -> home */
    MSG_JOIN_CANCEL = 25,  /* origin -> home */
    MSG_JOIN_REFUSED = 26, /* home -> origin */
    MSG_COMMIT = 27,       /* home -> every participant */
    MSG_GONE = 28,         /* participant -> participants: a rank left or died */
    MSG_BROKEN = 29,       /* participant -> participants: the group is broken */
    MSG_SYNC = 30,         /* participant -> participants: its ranks stand by the COMMIT. A node
                              without the group answers BROKEN (daemon/core/core_commit.c) */
    MSG_ASK_ABSENT = 31,   /* participant -> participant, answered by ABSENT_HERE */
    MSG_ABSENT_HERE = 32,
    MSG_ASK_RANKS = 33,  /* node -> node, answered by RANKS_HERE; the core sees neither */
    MSG_RANKS_HERE = 34, /* struct msg_tables */
    MSG_PEER_KEYS = 35,  /* after PEER_HELLO, and when they change */
    MSG_JOIN_NEWS = 36,  /* origin -> home, after a JOIN that follows a group */
    MSG_HELD = 37,       /* participant -> participants: nothing of it is on the wire here */
    MSG_PAUSE = 38,      /* participant -> participants: its engine is to be replaced */
    MSG_PAUSED = 39,     /* answers PAUSE */
    /* commd <-> commd-engine */
    MSG_ENGINE_HELLO = 40,      /* engine -> commd, once */
    MSG_ENGINE_PEER_ADD = 41,   /* commd -> engine; answered by ENGINE_PEER_READY */
    MSG_ENGINE_PEER_DEL = 42,   /* commd -> engine */
    MSG_ENGINE_PEER_READY = 43, /* engine -> commd */
    MSG_ENGINE_PEER_DOWN = 44,  /* engine -> commd */
    MSG_BOARD_ADD = 45,         /* commd -> engine, + board fd */
    MSG_BOARD_DEL = 46,         /* commd -> engine */
    MSG_BOARD_ERROR = 47,       /* engine -> commd: this group cannot go on */
    MSG_DOORBELL_ADD = 48,      /* commd -> engine, + eventfd */
    MSG_DOORBELL_DEL = 49,      /* commd -> engine */
    MSG_PING = 50,              /* both ways; answered with the same seq, pong set */
    MSG_ENGINE_TRAFFIC = 51,    /* engine -> commd, after a PONG and when `apart` changes */
    MSG_ENGINE_SENT = 52,       /* engine -> commd, before it answers a PING */
    MSG_ENGINE_RESUMED = 53, /* engine -> commd: a hello with `resumed`, and all it has, is told */
    MSG_ENGINE_KEEP = 54,    /* commd -> engine: drop the boards not sent since that hello */
    MSG_BOARD_HELD = 55,     /* engine -> commd: answers BOARD_HOLD; and unasked to another commd */
    MSG_BOARD_HOLD = 56,     /* commd -> engine: begin nothing more on this board */
    MSG_BOARD_GO = 57,       /* commd -> engine: go on */
    MSG_ENGINE_PEER_KEY = 58, /* commd -> engine: the commds of the two have a new TLS session */
    MSG_BOARD_PAUSE = 59,     /* commd -> engine: PAUSE, from node `asker`; and PAUSED, back */
    /* client -> commd, and back */
    MSG_GPU_ASK = 60,
    MSG_GPU_ANSWER = 61, /* + session socket if cause is CAUSE_NONE */
    /* commd <-> commd-gpu; and PING */
    MSG_GPU_HELLO = 62,       /* commd-gpu -> commd, once */
    MSG_GPU_SESSION = 63,     /* commd -> commd-gpu, + session socket */
    MSG_GPU_SESSION_DEL = 64, /* commd -> commd-gpu */
    MSG_GPU_DEVICE = 65,      /* commd-gpu -> commd, after GPU_HELLO and before it answers a PING */
};

/* Who has ended the link of two engines, for all that one of them knows. Values stable. */
enum link_end {
    LINK_END_ENGINE,  /* one of the engines, or something on its node */
    LINK_END_NETWORK, /* the network, or somebody on it: both engines may live */
    LINK_END_CLOSED,  /* the other side, which may know more */
};

/* Why something ended: also enum commd_result of the public API, negated there. Values
 * stable, shared by wire, boards and API. */
enum cause {
    CAUSE_NONE = 0,
    CAUSE_INVALID = 1,
    CAUSE_MISMATCH = 2,
    CAUSE_QUOTA = 3,
    CAUSE_TIMEOUT = 4,
    CAUSE_RANK_LOST = 5,
    CAUSE_NODE_LOST = 6,
    CAUSE_ENGINE_LOST = 7,
    CAUSE_ABORTED = 8,
    CAUSE_NO_DAEMON = 9,
    CAUSE_PROTOCOL = 10,
    CAUSE_DENIED = 11,
    CAUSE_NOMEM = 12,
    CAUSE_INTERNAL = 14,
    CAUSE_LEFT = 16, /* a rank left cleanly (the API reports it as RANK_LOST) */
    CAUSE_COUNT = 17
};

struct msg_client_hello {
    uint32_t version;
    uint32_t admin; /* 1: an admin tool, does not count as a training client */
    char program[MSG_NAME_MAX];
    char command[MSG_COMMAND_MAX]; /* the beginning of its command line: for people */
    char job[MSG_NAME_MAX];        /* torchrun's run id; likewise */
    /* The name under which the process waits elsewhere for other ranks, before it joins; likewise.
     * waits_size 0: it does not wait. */
    char waits_for[MSG_GROUP_MAX];
    uint32_t waits_rank, waits_size;
    /* It was welcome before, and comes back: the key that WELCOME gave it; all 0: it is new. */
    uint8_t resume[MSG_KEY];
    uint32_t nkept, nasks;
    uint64_t *kept; /* the groups that it is in; owned by whoever owns the msg */
    uint32_t *asks; /* the numbers of its joins that have no answer yet; likewise */
    uint32_t plans; /* enum plan_known; of a client before: 0 */
};

/* What a join wants of a group that was there before: nothing; to go on as who is left of it, ranks
 * without gaps; or with new processes in the seats of those that are gone; to be such a process. */
enum msg_recovery {
    MSG_RECOVERY_NONE,
    MSG_RECOVERY_SHRINK,
    MSG_RECOVERY_WAIT,
    MSG_RECOVERY_REJOIN,
    MSG_RECOVERY_COUNT
};
#define MSG_ANY_SEAT UINT32_MAX /* as rank of REJOIN */

struct msg_client_join {
    uint32_t req; /* chosen by the client, unique among its pending joins */
    /* SHRINK: 0, 1; WAIT: 0, the number of seats, or 0: as in the group that it follows; REJOIN:
     * the seat or MSG_ANY_SEAT, the number of seats or 0: as many as there are */
    uint32_t rank, size;
    uint64_t timeout_ms; /* 0: none */
    uint64_t limit_ms;   /* what that was when it was asked first; 0: not told */
    char name[MSG_GROUP_MAX];
    uint32_t recovery; /* enum msg_recovery */
    uint32_t least;    /* fewer ranks are an error */
    uint64_t follows;  /* SHRINK, WAIT: the group, in which this client is */
    uint64_t wait_ms;  /* WAIT: so long for new processes, then without; 0: no such limit */
    /* Of that group, if this commd does not know it: core_claim.c. was_size 0: it does. */
    uint32_t was_rank, was_size;
    uint64_t was_epoch;
    uint32_t was_nodes; /* on which it was; 0: its libcommd does not say */
    uint32_t ngone;
    uint32_t *gone; /* its ranks that are gone, ascending; owned by whoever owns the msg */
};

struct msg_client_withdraw {
    uint32_t req; /* of the join, which is answered all the same */
};

struct msg_client_leave {
    uint64_t group;
    uint32_t ops; /* collectives this rank has completed */
};

struct msg_client_abort {
    uint64_t group;
    char text[MSG_TEXT_MAX];
};

struct msg_client_ask_absent {
    uint64_t group;
    uint32_t req;
    uint64_t seq; /* of the operation */
};

struct msg_arena_add {
    uint32_t req;
    uint64_t arena; /* random, chosen by the client */
    uint64_t size;  /* bytes of the file */
};

struct msg_arena_del {
    uint64_t arena;
};

struct msg_arena_ask {
    uint32_t req;
    uint32_t rank;  /* of the group, on this node: whose arena */
    uint64_t group; /* of which the asking client is a member too */
    uint64_t arena;
};

struct msg_arena_answer {
    uint32_t req;
    uint32_t cause; /* CAUSE_NONE: it succeeded */
    char text[MSG_TEXT_MAX];
};

struct msg_admin {
    char verb[MSG_NAME_MAX]; /* daemon/admin/verbs.h has them all, and which fields each looks at */
    char group[MSG_GROUP_MAX]; /* name or id; "ranks": "" for all */
    uint32_t watch_ms;         /* "ranks": for how long to watch them */
    uint32_t records;          /* "ranks": 1: with their operations, all timed meanwhile */
    uint32_t pid;              /* "kick_pid" */
    uint32_t rank;             /* "kick_rank" */
    uint64_t since;            /* "events": those after this number */
    char text[MSG_TEXT_MAX];   /* "kick...": the reason; "set_log_level": the level */
    uint32_t links;            /* "ranks": 1: no ranks, and the links of all nodes instead */
};

struct msg_welcome {
    uint32_t version;
    uint32_t pid;
    uint64_t incarnation;
    char node[MSG_NAME_MAX];
    char cluster[MSG_NAME_MAX];
    uint8_t key[MSG_KEY]; /* for CLIENT_HELLO.resume; all 0: there is no coming back */
    uint32_t resumed; /* 1: commd knows the client from before, and that it is in these groups */
    uint32_t nkept;
    uint64_t *kept;        /* owned by whoever owns the msg */
    uint64_t took_over_ms; /* so long ago commd took over from the one before it; 0: it did not */
};

/* One rank of a group. @node indexes the message's node list. */
struct msg_member {
    uint32_t node;
    uint32_t pid;
    uint64_t join; /* COMMIT: the origin node's join id */
    uint32_t was;  /* 1 + its rank in the epoch before; 0: it is a new process */
};

struct msg_joined {
    uint32_t req;
    uint32_t new_doorbell; /* 1: a second fd follows: the eventfd that wakes the engine */
    uint32_t size;         /* members[] has this many entries, by rank */
    uint32_t nnodes;
    uint32_t rank; /* of who is told; 0 if commd does not say so (it is of version 10) */
    uint64_t group, epoch;
    struct msg_member *members;  /* owned by whoever owns the msg */
    char (*nodes)[MSG_NAME_MAX]; /* likewise; participants only, in node order */
};

struct msg_join_failed {
    uint32_t req;
    uint32_t cause;
    int32_t rank;
    char node[MSG_NAME_MAX];
    char text[MSG_TEXT_MAX];
};

struct msg_absent {
    uint32_t req, count;
    int32_t rank; /* the first of them, -1: none */
    char node[MSG_NAME_MAX];
    char text[MSG_TEXT_MAX]; /* "3,5-7" */
};

struct msg_refused {
    uint32_t cause;
    char text[MSG_TEXT_MAX];
};

/* Admin answers: tables of typed cells, rendered by commctl. */
enum msg_cell_type { MSG_CELL_STRING, MSG_CELL_NUMBER, MSG_CELL_BOOL };
struct msg_column {
    char key[MSG_NAME_MAX];   /* JSON key, documented, never renamed */
    char title[MSG_NAME_MAX]; /* heading for people */
    uint32_t type;            /* enum msg_cell_type */
};
struct msg_table {
    char name[MSG_NAME_MAX];
    uint32_t ncolumns, nrows;
    struct msg_column *columns;
    char **cells; /* nrows * ncolumns, row by row; owned */
};
struct msg_tables {
    uint32_t healthy; /* commctl's exit code: 1 -> 0, 0 -> 1 */
    uint32_t ntables;
    struct msg_table *tables;
    char text[MSG_TEXT_MAX]; /* a line for people when something is wrong, or "" */
    uint64_t ask;  /* RANKS_HERE: that of ASK_RANKS; "events": how many this user could have seen */
    uint64_t life; /* "events": within which their numbers count on; 0: in that of this commd */
};

struct msg_peer_hello {
    uint32_t version;
    uint64_t incarnation;
    char cluster[MSG_NAME_MAX];
    char node[MSG_NAME_MAX];
    uint32_t strays; /* 1: it understands msg_broken.stray */
};

struct msg_heartbeat {
    uint64_t seq;
    uint32_t draining; /* 1: takes no new groups */
    uint32_t free;     /* 1: no group here has the receiver's node in it, so its engine may end */
};

struct msg_engine_state {
    uint64_t engine; /* incarnation of the engine, 0: no engine now */
    uint32_t addr_len;
    uint8_t token[32]; /* what your engine has to present to mine */
    uint8_t addr[MSG_ADDR_MAX];
    uint32_t exports; /* 1: the token is mixed with a secret of this TLS session */
    uint64_t intro;   /* our half of the number of their introduction; 0: there is none */
    uint64_t commits; /* 1 + COMMITs that the sender has made as a home; 0: not said */
};

struct msg_engine_ready {
    uint64_t engine;         /* the receiver's engine incarnation that was accepted */
    uint64_t mine;           /* the sender's engine incarnation; engine 0: the receiver's */
    uint32_t end;            /* engine 0: as of struct msg_engine_peer */
    char text[MSG_TEXT_MAX]; /* likewise: why */
    uint64_t intro;          /* by which introduction; 0: not known */
};

struct msg_join {
    uint64_t join; /* unique on the origin node */
    uint32_t uid;
    uint32_t pid;
    uint32_t rank, size;
    uint32_t gpu; /* 1: the origin has a GPU service */
    char name[MSG_GROUP_MAX];
    uint32_t recovery, least; /* as in msg_client_join */
    uint64_t follows;
    uint32_t was_rank, was_size; /* of the group that it follows */
    uint64_t was_epoch;
};

/* Of the rank of @join, which follows a group. */
struct msg_join_news {
    uint64_t join;
    uint32_t enough; /* 1: it has waited for new processes as long as it wanted */
    uint32_t ngone;
    uint32_t
        *gone; /* ranks of that group that are gone, ascending; owned by whoever owns the msg */
};

struct msg_join_cancel {
    uint64_t join;
};

struct msg_join_refused {
    uint64_t join;
    uint32_t cause;
    int32_t rank;
    char node[MSG_NAME_MAX];
    char text[MSG_TEXT_MAX];
};

struct msg_commit {
    uint64_t group; /* unique in the cluster: home's incarnation mixed with a counter */
    uint64_t epoch;
    uint32_t uid;
    uint32_t size, nnodes;
    char name[MSG_GROUP_MAX];
    struct msg_member *members;
    char (*nodes)[MSG_NAME_MAX]; /* nodes[0..nnodes): participants, sorted by name */
    char home[MSG_NAME_MAX];
    uint32_t latency_us, mbytes_s; /* see struct plan_net */
    uint32_t gpu;                  /* 1: all participants have a GPU service */
    uint64_t follows;              /* the group before; 0: none */
};

struct msg_gone {
    uint64_t group;
    uint32_t rank;
    uint32_t ops; /* collectives the rank had completed */
    uint32_t pid;
    uint32_t cause; /* CAUSE_LEFT, CAUSE_RANK_LOST */
    char text[MSG_TEXT_MAX];
    uint64_t next; /* as in msg_broken */
};

struct msg_broken {
    uint64_t group;
    uint32_t cause;
    int32_t rank;
    uint32_t pid;
    char node[MSG_NAME_MAX];
    char text[MSG_TEXT_MAX];
    uint64_t next; /* ranks of the sender's node have gone on as this epoch of it; 0: none has */
    /* 1: the sender does not have it, but ranks of @uid there are in it, and want to go on;
     * CAUSE_LEFT: not any more. */
    uint32_t stray, uid;
};

struct msg_sync {
    uint64_t group;
    uint64_t again; /* a number: say that you have heard all until here; 0: not asked */
    uint64_t told;  /* the answer to that `again` */
    uint32_t all;   /* 1: all participants stand by it, as the sender knows */
};

/* One engine of the group's nodes was lost, and the sender's part waits for the next one: */
struct msg_held {
    uint64_t group;
    uint64_t key;        /* of the engines that it would go on with: daemon/core/core_bond.c */
    uint32_t ops;        /* operations that its engine has done */
    uint32_t sent, came; /* messages between ranks, to other nodes and from them */
    uint32_t answer;     /* 1: to HELD, and not answered */
};

/* A group comes to rest, so that an engine can be replaced: transport/engine/engine_pause.c. */
enum msg_pause_step {
    PAUSE_ASK,    /* begin nothing that nobody has begun; answered by POSTED or BUSY */
    PAUSE_UNTIL,  /* and go on until `ops` are done; answered by QUIET, perhaps again */
    PAUSE_END,    /* go on: it is over */
    PAUSE_POSTED, /* `ops` operations are done or begun here */
    PAUSE_QUIET,  /* `ops` are done, and nothing is on the wire here */
    PAUSE_BUSY,   /* not now */
};
struct msg_pause { /* PAUSE, PAUSED, BOARD_PAUSE */
    uint64_t group;
    uint32_t attempt; /* of the asker, who has only one at a time */
    uint32_t step;    /* enum msg_pause_step */
    uint32_t ops;
    uint32_t sent, came; /* QUIET: as in msg_held; in a later one, since the one before it */
    uint32_t asker;      /* BOARD_: node index in this commd's configuration */
};

struct msg_ask_absent {
    uint64_t group;
    uint64_t ask; /* comes back in the answer */
    uint64_t seq;
};

struct msg_absent_here { /* as msg_absent */
    uint64_t group, ask;
    uint32_t count;
    int32_t rank;
    char text[MSG_TEXT_MAX];
};

struct msg_ask_ranks {
    uint64_t ask;
    uint32_t uid; /* of the user that asks */
    uint32_t all; /* 1: this user may see the groups of all users */
    uint32_t watch_ms;
    uint32_t records, links; /* as in msg_admin */
    uint32_t end; /* 1: question @ask is wanted no more; answered by no tables, at once */
    char group[MSG_GROUP_MAX]; /* likewise */
};

/* Names of the keys that the sender has: one that it offers, and another that it accepts. */
struct msg_peer_keys {
    char key[MSG_NAME_MAX];
    char other[MSG_NAME_MAX]; /* "": none */
};

struct msg_engine_hello {
    uint32_t version;
    uint32_t pid;
    uint32_t addr_len; /* 0: the engine could not open its fabric, see text */
    uint8_t addr[MSG_ADDR_MAX];
    char text[MSG_TEXT_MAX];  /* what it runs on: "UCX 1.13.1, tcp on lo", or the error */
    uint32_t resumed;         /* 1: it has worked for a commd that is gone */
    char build[MSG_NAME_MAX]; /* what its --version says */
    uint64_t settings;        /* launch_settings() of its arguments */
    uint32_t takes_keys;      /* 1: it understands ENGINE_PEER_KEY */
};

struct msg_engine_peer_add {
    uint32_t peer; /* node index of this commd's configuration */
    uint64_t engine;
    uint8_t token[32], expect[32];
    uint32_t addr_len;
    uint8_t addr[MSG_ADDR_MAX];
    char node[MSG_NAME_MAX];
    uint64_t intro; /* both engines are told the same one if they get each other's tokens */
};

struct msg_engine_peer_key {
    uint32_t peer;
    uint64_t engine;
    uint8_t secret[32];
};

struct msg_engine_peer { /* PEER_DEL, PEER_READY, PEER_DOWN */
    uint32_t peer;
    uint64_t engine;
    uint32_t end; /* DOWN: enum link_end; another value counts as LINK_END_ENGINE */
    char text[MSG_TEXT_MAX];
    uint64_t intro;  /* of its PEER_ADD; 0: an engine of version 10 does not tell */
    uint8_t planned; /* DOWN: groups were at rest because it was to be replaced: PAUSE */
};

/* Of the other engine, since it was added: struct fabric_traffic. */
struct msg_engine_traffic {
    uint32_t peer;
    uint64_t engine;
    uint64_t sent, received, segments, retransmits, stalled_us;
    uint32_t rtt_us, min_rtt_us;
    uint64_t rate, mends;
    uint32_t apart;      /* 1: it has no connection to that engine */
    uint32_t encryption; /* enum link_encryption */
    uint64_t key_ms;
    uint32_t generation;
    uint32_t quiet_ms; /* so long nothing has come from that node; 0: not known */
};

/* What the groups of a user sent to other nodes in the @ms since the last time. */
struct msg_engine_sent {
    uint32_t uid, ms;
    uint64_t bytes;
};

struct msg_board_add {
    uint64_t group;
    uint32_t nnodes, me; /* participants and my index among them */
    uint32_t world;
    uint32_t *peers;     /* nnodes: node index in this commd's configuration; owned */
    uint32_t *rank_node; /* world: participant index of each rank; owned */
    uint32_t uid;        /* who is charged for it */
    uint32_t weight;     /* of that user beside others; 0: as those that nobody has weighed */
    uint32_t goes_on;    /* operations that an engine before it has done + 1; 0: a new board */
    uint32_t nclients;
    uint32_t *clients; /* nclients: numbers of the clients here, as in DOORBELL_ADD; owned */
};

struct msg_board_held { /* also BOARD_HOLD, BOARD_GO: only the group */
    uint64_t group;
    uint32_t quiet;           /* 1: nothing of it is on the wire, as far as this engine knows */
    uint32_t ops, sent, came; /* as in msg_held */
    uint32_t missing;         /* HELD: 1: an engine before this one had it, and this one has not */
    uint32_t went_on;         /* HELD: 1: not held any more: from where it went on last */
};

struct msg_board { /* BOARD_DEL, BOARD_ERROR */
    uint64_t group;
    uint32_t abort; /* DEL: 1 drop operations at once; 0 finish what the group's nodes still need */
    uint32_t cause;
    int32_t peer; /* node index in this commd's configuration, -1: none */
    char text[MSG_TEXT_MAX];
};

struct msg_doorbell {
    uint32_t client;
};

struct msg_ping {
    uint64_t seq;
    uint32_t pong;
};

struct msg_gpu_ask {
    uint32_t req;
};

struct msg_gpu_answer {
    uint32_t req;
    uint32_t cause; /* CAUSE_NONE: the descriptor of the session's socket rides along */
    char text[MSG_TEXT_MAX];
};

struct msg_gpu_hello {
    uint32_t version;
    uint32_t pid;
    uint32_t devices;         /* 0: it cannot work, see text */
    uint32_t nccl;            /* version, 22809; 0: not there */
    char text[MSG_TEXT_MAX];  /* what it runs on, or the error */
    uint32_t resumed;         /* 1: it has worked for a commd that is gone */
    char build[MSG_NAME_MAX]; /* as of the engine */
    uint64_t settings;
};

struct msg_gpu_session { /* SESSION, SESSION_DEL */
    uint32_t client;     /* unique among those that are there */
    uint32_t uid, pid;   /* DEL: 0 */
    uint32_t payer;      /* the user: who is charged for @uid */
    uint32_t weight;     /* of that user beside others; 0: as those that nobody has weighed */
};

struct msg_gpu_device {
    uint32_t device; /* below GPU_HELLO's devices */
    uint32_t clients, groups, communicators;
    uint64_t memory, mapped;    /* bytes that it has; that clients' memory takes that is mapped */
    uint64_t operations, moved; /* that have ended; bytes of it that they read */
    char uuid[MSG_NAME_MAX];    /* "GPU-..." */
    char name[MSG_NAME_MAX];
    char state[MSG_NAME_MAX];   /* "ok", or what is wrong */
    char kernels[MSG_TEXT_MAX]; /* which were loaded, or why none; "": nobody has wanted them yet */
};

struct msg {
    enum msg_type type;
    union {
        struct msg_client_hello client_hello;
        struct msg_client_join client_join;
        struct msg_client_withdraw client_withdraw;
        struct msg_client_leave client_leave;
        struct msg_client_abort client_abort;
        struct msg_admin admin;
        struct msg_client_ask_absent client_ask_absent;
        struct msg_arena_add arena_add;
        struct msg_arena_del arena_del;
        struct msg_arena_ask arena_ask;
        struct msg_arena_answer arena_answer;
        struct msg_absent absent;
        struct msg_ask_absent ask_absent;
        struct msg_absent_here absent_here;
        struct msg_ask_ranks ask_ranks;
        struct msg_welcome welcome;
        struct msg_joined joined;
        struct msg_join_failed join_failed;
        struct msg_refused refused;
        struct msg_tables tables;
        struct msg_peer_hello peer_hello;
        struct msg_peer_keys peer_keys;
        struct msg_heartbeat heartbeat;
        struct msg_engine_state engine_state;
        struct msg_engine_ready engine_ready;
        struct msg_join join;
        struct msg_join_news join_news;
        struct msg_join_cancel join_cancel;
        struct msg_join_refused join_refused;
        struct msg_commit commit;
        struct msg_gone gone;
        struct msg_broken broken;
        struct msg_sync sync;
        struct msg_held held;
        struct msg_pause pause;
        struct msg_engine_hello engine_hello;
        struct msg_engine_peer_add engine_peer_add;
        struct msg_engine_peer_key engine_peer_key;
        struct msg_engine_peer engine_peer;
        struct msg_engine_traffic engine_traffic;
        struct msg_engine_sent engine_sent;
        struct msg_board_add board_add;
        struct msg_board_held board_held;
        struct msg_board board;
        struct msg_doorbell doorbell;
        struct msg_ping ping;
        struct msg_gpu_ask gpu_ask;
        struct msg_gpu_answer gpu_answer;
        struct msg_gpu_hello gpu_hello;
        struct msg_gpu_session gpu_session;
        struct msg_gpu_device gpu_device;
    };
};

/* Can we talk with whose hello says @version? A newer one decides by its own range if it can. */
static inline bool msg_version_fits(uint32_t version)
{
    return version >= MSG_VERSION_OLDEST;
}

#endif
