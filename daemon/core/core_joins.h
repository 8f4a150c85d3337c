/* core_joins.h - joins: of a local rank at its origin (core_join.c, core_follow.c), of all ranks of
 * a group at its home (core_home.c, core_recover.c). */
#ifndef COMMD_CORE_JOINS_H
#define COMMD_CORE_JOINS_H

#include "daemon/core/core_pool.h"

struct core;
struct client;
struct member;
struct group;
struct text;

/* ASKING: its home knows of it and waits for others. EXPIRING: its time ran out, the home has
 * been asked who is missing. COMMITTED, JOINED: member of a group in that state. */
enum member_state { MEMBER_FREE, MEMBER_ASKING, MEMBER_EXPIRING, MEMBER_COMMITTED, MEMBER_JOINED };

/* What a member asks for, and asks again for when a COMMIT comes to nothing. */
struct wish {
    enum msg_recovery recovery;
    /* The seat; of who follows a group its rank in that, and the size of that. REJOIN: MSG_ANY_SEAT
     * and 0 are there, too. */
    uint32_t rank, size;
    uint32_t seats;      /* WAIT: that the next epoch has; SHRINK: 1, as the message says it */
    uint32_t least;      /* fewer ranks: an error */
    uint64_t follows;    /* SHRINK, WAIT: id of the group; 0: none */
    uint64_t was_epoch;  /* of that group; 0: it was not there any more when its client came back */
    uint64_t enough_ms;  /* when it has waited long enough for new processes; CORE_NEVER */
    bool enough;         /* that time has come */
    uint64_t told;       /* how much was known of the group when its home was told last */
    struct stray *stray; /* that group, if this node does not know it; until it is JOINED */
};

/* A group that this node does not know: core_stray.c. */
struct stray {
    struct pooled pooled;
    struct list hash;
    uint64_t id, epoch;
    uint64_t heard;  /* grows with what is known of ranks that are gone */
    uint64_t passed; /* as of a group */
    uint32_t uid, payer, size;
    uint32_t refs;   /* members whose wish it is of */
    bool over_nodes; /* it has ranks on other nodes, as its clients say */
    bool alone;      /* no other node knows it, nor will */
    uint64_t begun_ms;
    uint64_t unknown[MSG_MAX_NODES / 64]; /* nodes that have said that they do not know it */
    struct msg_member *ranks;             /* owned run, for the fates */
};

enum { WISH_TEXT_MAX = 64 };
/* Of a forming that is a recovery. */
struct recovering {
    enum msg_recovery kind; /* REJOIN: new processes, in the order in which they came */
    uint32_t least, was_size;
    uint32_t awaited; /* ranks of the last epoch that are neither here nor gone, and have a seat */
    bool enough;      /* a rank has said so */
    uint64_t follows, epoch; /* the group before, and its epoch */
    uint32_t refused;        /* 1 + the rank that was last, since it asked for this; 0: none */
    char refused_wish[WISH_TEXT_MAX];
};

/* At the home: a group that lacks ranks, or whose COMMITs are still queued (@id not 0). */
struct forming {
    struct pooled pooled;
    struct list hash, all;
    struct list freed; /* a place of it was freed: recover_run() */
    uint64_t id;
    uint32_t uid, payer, size, count, nnodes;
    unsigned node;   /* whose join began it */
    uint32_t late;   /* ranks whose time ran out after they came: neither there nor missing */
    uint16_t *nodes; /* owned by the core's table; filled at the commit */
    struct msg_member *members; /* owned run; .join 0: not there; .node: configuration index
                                   while forming, participant index once committed */
    struct recovering recovery; /* members[]: by the old rank (SHRINK), by seat (WAIT) */
    char name[MSG_GROUP_MAX];
};

struct refusal {
    enum cause cause;
    char text[MSG_TEXT_MAX];
};

/* False, with @why and a text in *ret_refusal. */
#define REFUSE(why, ...)                                                                           \
    ({                                                                                             \
        ret_refusal->cause = (why);                                                                \
        text_format(ret_refusal->text, sizeof(ret_refusal->text), __VA_ARGS__);                    \
        false;                                                                                     \
    })

/* ---- core_join.c: origin --------------------------------------------------------------------- */

void join_request(struct core *core, unsigned slot, const struct msg_client_join *msg);
/* Its time to join, from now on; 0: as long as may be. */
void join_begin(struct core *core, struct member *member, const struct msg_client_join *msg);
void join_refused(struct core *core, unsigned node, const struct msg_join_refused *msg);
void join_rehome(struct core *core);
void join_home_lost(struct core *core, unsigned node);
void join_run(struct core *core); /* asks for all members on the todo list */
/* The client in @slot takes its request @req back. */
void join_withdraw(struct core *core, unsigned slot, uint32_t req);
void join_again(struct core *core, struct member *member); /* its commit came to nothing */
void join_tick(struct core *core);
void join_forgive(struct core *core, uint64_t grace); /* see forgive_all() in core.c */
uint64_t join_deadline(const struct core *core);
void join_stop(struct core *core);
void join_drain(struct core *core);                         /* core->draining has been set */
void join_cancel(struct core *core, struct member *member); /* tells the home, quietly */
struct member *join_find(struct core *core, uint64_t join);
/* The request number @join of @member, for its home. */
void join_fill(const struct core *core, const struct member *member, uint64_t join,
               struct msg_join *ret_msg);
/* Answers the client and ends the member. @node: which one it is about, -1: none. */
void join_fail(struct core *core, struct member *member, enum cause cause, int32_t rank, int node,
               const char *text);
void member_set_state(struct core *core, struct member *member, enum member_state state);
void member_end(struct core *core, struct member *member); /* no answer; any state */

/* ---- core_follow.c: origin, of a recovery ---------------------------------------------------- */

/* May @client ask for this? */
bool follow_ok(const struct core *core, const struct client *client,
               const struct msg_client_join *msg, struct refusal *ret_refusal);
/* An older request of @client for the same, which its program has given up, ends without an answer.
 * True: it is past that, and @msg takes its place. */
bool follow_replaces(struct core *core, struct client *client, const struct msg_client_join *msg);
/* It waits for the answer to another request than before: to be written down. */
void follow_asked(struct core *core, const struct member *member);
/* What @member wishes, as its client says in a request that is allowed, or was before. */
void follow_begin(struct core *core, struct member *member, const struct msg_client_join *msg);
/* Can @home do that? Else @member ends. */
bool follow_home_ok(struct core *core, struct member *member, unsigned home);
void follow_enough(struct core *core, struct member *member); /* it has waited so long */
/* More is known of who is gone from @group. */
void follow_learned(struct core *core, struct group *group);
void follow_tell(struct core *core, struct member *member); /* all that is known, to its home */
void follow_run(struct core *core);                         /* tells the homes what is new */
/* The ranks of the group that @member follows which are gone. */
void follow_fill(struct core *core, const struct member *member, uint64_t join,
                 struct msg_join_news *ret_msg);
/* Is @rank of @msg what @member asked for? */
bool follow_fits(const struct member *member, const struct msg_commit *msg, uint32_t rank);
/* The group as which @member's client has gone on from its group; NULL: it has not. */
const struct group *follow_successor(const struct core *core, const struct member *member);
/* Are all ranks of that participant gone from @group, whatever they have said? */
void follow_place_lost(struct core *core, struct group *group, unsigned place, bool lost);
void follow_node_lost(struct core *core, unsigned node); /* likewise, from all groups */
/* That participant is there, and does not know the group: for now its ranks may yet say that they
 * are in it. */
void follow_place_unknown(struct core *core, struct group *group, unsigned place);
/* A participant says that @group has gone on there as epoch @next; 0: it does not say that. */
void follow_passed(struct core *core, struct group *group, uint64_t next);
/* Has one done so, and this node has no part in that epoch? */
bool follow_is_passed(const struct core *core, const struct group *group);
void follow_tick(struct core *core); /* at each heartbeat */
/* One that may come back: does anybody keep its port? */
void follow_look(struct core *core, unsigned node);
/* The member of @next that was @rank in the group before; NULL: that has not gone on. Asked for
 * ascending ranks, in whose order they stand there; *at is 0 first. */
const struct msg_member *follow_went_on(const struct group *next, uint32_t rank, uint32_t *at);
/* The group as which others have gone on from that one, as this node knows; NULL: it does not. */
const struct group *follow_gone_on(const struct core *core, uint32_t uid, uint64_t follows);
/* As which epoch others have gone on from that one, also where that has ended since; 0: it is not
 * known. @uid: of that user; NULL: whoever's it is. */
uint64_t follow_gone_as(const struct core *core, const uint32_t *uid, uint64_t follows);
/* @group, which is closed, was such an epoch. */
void follow_remember(struct core *core, const struct group *group);
void follow_left_behind(const char *name, uint64_t epoch, uint32_t rank, char *buf, size_t cap);
/* @old: the epoch before, NULL: this node had no rank in it; @came: new processes in @group. */
void follow_note_open(struct core *core, const struct group *old, const struct group *group,
                      uint32_t came);

/* ---- core_stray.c: origin, of a recovery ----------------------------------------------------- */

/* May @client go on from a group of which this node knows what @msg says? */
bool stray_ok(const struct core *core, const struct client *client,
              const struct msg_client_join *msg, struct refusal *ret_refusal);
/* That group, with what @msg says; until stray_put(). NULL: it may not, or there is no room. */
struct stray *stray_take(struct core *core, const struct client *client,
                         const struct msg_client_join *msg);
void stray_put(struct core *core, struct stray *stray); /* or NULL */
bool stray_gone(const struct core *core, const struct stray *stray, uint32_t rank);
void stray_ask(struct core *core, unsigned node); /* what it knows of all of them */
void stray_tick(struct core *core);               /* at each heartbeat */
/* @node asks for group @id, of which it has heard from us: true, if we have it as a stray. */
bool stray_answer(struct core *core, unsigned node, uint64_t id);
/* BROKEN{stray} of @node: it has ranks of that group, and does not know it. */
void stray_asked(struct core *core, unsigned node, const struct msg_broken *msg);
/* Another node says that @rank of it is gone, -1: of none; and that it went on as @next, 0: not. */
void stray_heard(struct core *core, uint64_t id, int64_t rank, uint64_t next);
void stray_reap(struct core *core);

/* ---- core_home.c ----------------------------------------------------------------------------- */

void home_join(struct core *core, unsigned node, const struct msg_join *msg);
void home_cancel(struct core *core, unsigned node, uint64_t join);
void home_node_lost(struct core *core, unsigned node);
void home_reap(struct core *core);
/* "3,5-7", or "" when all are there; *ret_count: how many. Looks at HOME_LOOKS ranks at most. */
void home_missing(const struct core *core, const struct forming *forming, char *buf, size_t cap,
                  unsigned *ret_count);
/* Neither there, nor gone, nor was its time over. */
bool home_is_missing(const struct core *core, const struct forming *forming, uint32_t rank);
/* The COMMIT of one that is complete; it points into @forming and to core->names. */
void home_fill_commit(struct core *core, const struct forming *forming, struct msg_commit *ret_msg);
/* The id of the @n-th group (from 1) of the home in that incarnation. */
uint64_t home_group_id(uint64_t incarnation, uint64_t n);
/* Which one of that home's groups has this id; 0: none of them. */
uint64_t home_group_number(uint64_t incarnation, uint64_t id);

/* For core_recover.c. */
struct list *home_bucket(struct core *core, uint32_t uid, const char *name);
/* One with room for @size ranks; or NULL, and the join is refused. */
struct forming *home_make(struct core *core, unsigned node, const struct msg_join *msg,
                          uint32_t size);
void home_place(struct core *core, struct forming *forming, struct msg_member *member,
                unsigned node, const struct msg_join *msg);
/* The last one drops the forming. */
void home_free_place(struct core *core, struct forming *forming, struct msg_member *member);
void home_forget(struct core *core, struct msg_member *member); /* its request is answered */
struct msg_member *home_recall(const struct core *core, unsigned node, uint64_t join);
/* All are there, none is remembered: the end of the forming. */
void home_commit(struct core *core, struct forming *forming);
/* @rank, @about: about which rank, and which node, -1: none. */
void home_refuse(struct core *core, unsigned node, uint64_t join, enum cause cause, int32_t rank,
                 int about, const char *text);
/* "3,5-7" of the ranks for which @is holds, "..." for more; *ret_count: how many of HOME_LOOKS. */
typedef bool (*home_is_fn)(const struct core *core, const struct forming *forming, uint32_t rank);
void home_list(const struct core *core, const struct forming *forming, home_is_fn is, char *buf,
               size_t cap, unsigned *ret_count);

/* ---- core_recover.c: home, of a recovery ----------------------------------------------------- */

bool recover_sound(const struct msg_join *msg); /* of a peer */
void recover_join(struct core *core, unsigned node, const struct msg_join *msg);
void recover_news(struct core *core, unsigned node, const struct msg_join_news *msg);
/* A place was freed: the forming may have become one that can never be. recover_run() looks, when
 * nobody goes through members or formings: those that it refuses end. */
void recover_freed(struct core *core, struct forming *forming);
void recover_run(struct core *core);
/* What is missing, for @late, which gives up. */
void recover_verdict(struct core *core, const struct forming *forming,
                     const struct msg_member *late, char *buf, size_t cap);
/* All new processes that wait under one name are one: is @forming the first of their formings? */
bool recover_shown(struct core *core, const struct forming *forming);
/* Seats without a process, as home_missing(); and new processes that wait. */
void recover_seats(struct core *core, const struct forming *forming, char *buf, size_t cap,
                   unsigned *ret_count, unsigned *ret_comers);

#endif
