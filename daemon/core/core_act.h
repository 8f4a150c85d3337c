/* core_act.h - the queue of actions: what the decisions put there (core_act.c), and what comes out
 * (core_unfold.c). */
#ifndef COMMD_CORE_ACT_H
#define COMMD_CORE_ACT_H

#include "daemon/core/core.h"

struct group;
struct forming;
struct member;

/* A message as it waits in the queue: small, its texts and names kept elsewhere. The struct of the
 * message is filled from it when its turn comes. */
struct act_msg {
    enum msg_type type;
    union {
        struct {
            uint32_t cause;
            const char *text;
        } refused;
        struct {
            uint32_t req, cause;
            int32_t rank;
            const char *node, *text;
        } join_failed;
        struct {
            uint32_t req, count;
            int32_t rank;
            const char *node, *text;
        } absent;
        struct {
            uint32_t req, cause;
            const char *text;
        } gpu_answer;
        struct msg_heartbeat heartbeat;
        struct {
            uint64_t engine; /* incarnation of ours; 0: none */
            uint64_t commits;
        } engine_state;
        struct {
            uint64_t engine, mine, intro;
            uint32_t end;
            const char *text;
        } engine_ready;
        struct {
            uint64_t join;
            const struct member *member;
        } join; /* and JOIN_NEWS */
        struct msg_join_cancel join_cancel;
        struct {
            uint64_t join;
            uint32_t cause;
            int32_t rank;
            int about; /* which node; -1: none */
            const char *text;
        } join_refused;
        struct msg_sync sync;
        struct msg_held held;
        struct msg_pause pause; /* PAUSE, PAUSED, BOARD_PAUSE */
        uint64_t board_held;    /* BOARD_HOLD, BOARD_GO: group */
        struct core_rank_gone gone;
        struct core_group_broken broken;
        struct msg_ask_absent ask_absent;
        struct {
            uint32_t peer;
            uint64_t engine, intro;
        } engine_peer; /* PEER_ADD, PEER_DEL */
        struct msg_ping ping;
        struct msg_gpu_session gpu_session; /* DEL */
    };
};

/* What one record becomes: itself, or one action for each ... */
enum act_each {
    ACT_ONCE,
    ACT_EACH_NODE,        /* other participant of the group */
    ACT_EACH_UNCONFIRMED, /* likewise, that has not agreed yet; LEFT: that has not heard */
    ACT_EACH_COMMITTED,   /* other participant of the forming */
    ACT_EACH_GONE,        /* rank of the group that is gone; for another node: of our ranks */
};

struct act {
    enum core_action_type type;
    enum act_each each;
    uint32_t at; /* next participant or rank */
    unsigned to; /* of a message: client or node */
    union {
        const struct group *group;
        const struct forming *forming;
    }; /* of @each */
    const struct group *but; /* EACH_NODE: nodes with ranks in this one are left out; or NULL */
    union {
        struct act_msg msg;        /* of the four that send */
        struct core_action action; /* of the others */
    };
};

struct queue {
    struct act *acts;
    uint32_t cap, head, tail;
    char *text; /* texts of queued actions; offset 0 is "" */
    uint32_t text_cap, text_used, text_last;
    struct msg msg; /* of the action that was handed out last */
};

/* For what may be left unsaid: at least a quarter of the queue is free for what may not. */
bool act_room(const struct core *core);
void act_reset(struct core *core); /* only when the queue is empty */
/* Keeps @text, which may be NULL, as long as the queue: what an action points to. */
const char *act_text(struct core *core, const char *text);
void act_push(struct core *core, struct core_action action);
void act_to_client(struct core *core, unsigned client, struct act_msg msg);
void act_to_peer(struct core *core, unsigned node, struct act_msg msg);
void act_to_engine(struct core *core, struct act_msg msg);
void act_to_gpu(struct core *core, struct act_msg msg);
/* To the other participants. */
void act_to_group(struct core *core, const struct group *group, enum act_each each,
                  struct act_msg msg);
/* To those that have no rank in @but any more; NULL: to all. */
void act_to_group_but(struct core *core, const struct group *group, const struct group *but,
                      struct act_msg msg);
void act_commit(struct core *core, const struct forming *forming);
/* RANK_GONE of each rank that is gone already, @again: as a commd before this one may have said;
 * GONE of each of ours, to @node. */
void act_fates(struct core *core, const struct group *group, bool again);
void act_fates_to(struct core *core, const struct group *group, unsigned node);

void act_log(struct core *core, unsigned level, const char *format, ...) _printf_(3, 4);
/* A line that a process of user @uid caused, or that node @node caused by what it sent. */
void act_log_user(struct core *core, uint32_t uid, unsigned level, const char *format, ...)
    _printf_(4, 5);
void act_log_node(struct core *core, unsigned node, unsigned level, const char *format, ...)
    _printf_(4, 5);
/* A line that is an event. */
void act_note(struct core *core, enum core_note note, enum core_by by, uint32_t id, unsigned level,
              const char *format, ...) _printf_(6, 7);

#endif
