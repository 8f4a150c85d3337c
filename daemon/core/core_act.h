/* core_act.h - the record of a queued action, for core_act.c, which makes them, and
 * core_unfold.c, which turns them into what the edges see. */
#ifndef COMMD_CORE_ACT_H
#define COMMD_CORE_ACT_H

#include "daemon/core/core_internal.h"

enum act_kind {
    ACT_LOG,
    ACT_WELCOME,
    ACT_REFUSED,
    ACT_CLOSE,
    ACT_JOIN_FAILED,
    ACT_PEER_DROP,
    ACT_HEARTBEAT,
    ACT_ENGINE_STATE,
    ACT_ENGINE_READY,
    ACT_JOIN,
    ACT_JOIN_CANCEL,
    ACT_JOIN_REFUSED,
    ACT_COMMIT, /* unfolds over the participants */
    ACT_SYNC,   /* likewise */
    ACT_SYNC_TO,
    ACT_GONE,       /* unfolds over the participants */
    ACT_GONE_AGAIN, /* unfolds over the ranks */
    ACT_BROKEN,     /* unfolds over the participants */
    ACT_BROKEN_TO,  /* flag: as the group says, else a text of its own */
    ACT_ENGINE_START,
    ACT_ENGINE_KILL,
    ACT_GPU_START,
    ACT_GPU_KILL,
    ACT_GPU_PING,
    ACT_GPU_SESSION,
    ACT_GPU_SESSION_DEL,
    ACT_GPU_ANSWER,
    ACT_PING,
    ACT_PONG,
    ACT_PEER_ADD,
    ACT_PEER_DEL,
    ACT_GROUP_OPEN,
    ACT_GROUP_FATES, /* unfolds over the ranks: those that were gone before it opened */
    ACT_MEMBER_GONE,
    ACT_GROUP_BROKEN,
    ACT_GROUP_CLOSE,
    ACT_ABSENT_HERE, /* flag: to a node */
    ACT_ASK_ABSENT,  /* unfolds over the participants */
    ACT_ABSENT,
    ACT_CHANGED,
    ACT_LOG_LEVEL,
    ACT_RELOAD,
};

struct act {
    uint8_t kind, cause, level, flag;
    uint32_t object;               /* pool index of a member, group or forming */
    uint32_t target;               /* client or node */
    uint32_t at;                   /* unfolding: next participant or rank */
    uint32_t ops, pid, req, about; /* about: node a text is about + 1, 0: none */
    int32_t rank;
    uint32_t text;
    uint64_t id, id2, seq;
};

#endif
