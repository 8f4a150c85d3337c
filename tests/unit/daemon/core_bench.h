/* core_bench.h - one core on a bench: events in, what it did as text. For test_core.c and
 * test_core_any.c. */
#ifndef COMMD_CORE_BENCH_H
#define COMMD_CORE_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "daemon/core/core_internal.h"

struct bench {
    struct core *core;
    uint64_t now;
    char got[64 << 10]; /* what the core did, one line per action that is not a log */
    char error[512];    /* the last line of the log that is an error */
    unsigned noted[CORE_NOTE_COUNT];
    uint64_t hash;
};

static const char nodes[3][MSG_NAME_MAX] = {"a", "b", "c"};

static inline struct core_config config_of(unsigned nnodes)
{
    return (struct core_config){.seed = 7,
                                .incarnation = 42,
                                .cluster = "test",
                                .version = "0.1.0",
                                .nodes = nodes,
                                .nnodes = nnodes,
                                .heartbeat_ms = 500,
                                .node_timeout_ms = 3000,
                                .join_timeout_ms = 60000,
                                .engine_timeout_ms = 3000,
                                .max_clients = 8,
                                .max_clients_per_user = 4,
                                .max_groups = 16,
                                .max_groups_per_user = 4,
                                .max_size = 4096,
                                .max_members = 65536};
}

static inline struct bench *bench_new(const struct core_config *config)
{
    struct bench *bench = calloc(1, sizeof(*bench));

    assert_non_null(bench);
    bench->now = 1000;
    bench->core = core_new(config);
    assert_non_null(bench->core);
    return bench;
}

static inline void bench_free(struct bench *bench)
{
    core_free(bench->core);
    free(bench);
}

static inline _printf_(2, 3) void note(struct bench *bench, const char *format, ...)
{
    size_t len = strlen(bench->got);
    va_list args;

    va_start(args, format);
    vsnprintf(bench->got + len, sizeof(bench->got) - len, format, args);
    va_end(args);
}

static inline void note_client(struct bench *bench, unsigned client, const struct msg *msg)
{
    if (msg->type == MSG_WELCOME)
        note(bench, "%u WELCOME to %s of %s\n", client, msg->welcome.node, msg->welcome.cluster);
    else if (msg->type == MSG_REFUSED)
        note(bench, "%u REFUSED %u %s\n", client, msg->refused.cause, msg->refused.text);
    else if (msg->type == MSG_JOIN_FAILED)
        note(bench, "%u JOIN_FAILED req %u cause %u rank %d node %s: %s\n", client,
             msg->join_failed.req, msg->join_failed.cause, msg->join_failed.rank,
             msg->join_failed.node, msg->join_failed.text);
    else if (msg->type == MSG_GPU_ANSWER)
        note(bench, "%u GPU_ANSWER req %u cause %u: %s\n", client, msg->gpu_answer.req,
             msg->gpu_answer.cause, msg->gpu_answer.text);
    else
        note(bench, "%u message %u\n", client, msg->type);
}

static inline void note_commit(struct bench *bench, const struct msg_commit *commit)
{
    note(bench, " COMMIT epoch %llu of %llu:", (unsigned long long)commit->epoch,
         (unsigned long long)commit->follows);
    for (uint32_t i = 0; i < commit->size; i++) {
        note(bench, i ? ", %u " : " %u ", i);
        if (commit->members[i].was)
            note(bench, "was %u", commit->members[i].was - 1);
        else
            note(bench, "new");
    }
    note(bench, "\n");
}

static inline void note_peer(struct bench *bench, unsigned node, const struct msg *msg)
{
    if (msg->type == MSG_HEARTBEAT)
        return;
    note(bench, "to %u", node);
    if (msg->type == MSG_COMMIT && msg->commit.follows)
        note_commit(bench, &msg->commit);
    else if (msg->type == MSG_JOIN_REFUSED)
        note(bench, " JOIN_REFUSED %llu cause %u rank %d: %s\n",
             (unsigned long long)msg->join_refused.join, msg->join_refused.cause,
             msg->join_refused.rank, msg->join_refused.text);
    else
        note(bench, " message %u\n", msg->type);
}

static inline void feed(struct bench *bench, struct core_event event)
{
    struct core_action action;

    event.now_ms = bench->now;
    core_input(bench->core, &event);
    while (core_next(bench->core, &action)) {
        const struct msg *msg = action.send.msg;

        bench->hash = core_mix(bench->hash ^ action.type);
        switch (action.type) {
        case CORE_DO_CLIENT_SEND:
            bench->hash ^= action.send.to ^ (uint64_t)msg->type << 32;
            note_client(bench, action.send.to, msg);
            break;
        case CORE_DO_PEER_SEND:
            bench->hash ^= action.send.to ^ (uint64_t)msg->type << 32;
            note_peer(bench, action.send.to, msg);
            break;
        case CORE_DO_ENGINE_SEND:
            note(bench, "to engine message %u\n", msg->type);
            break;
        case CORE_DO_GPU_SEND:
            note(bench, "to gpu message %u of %u\n", msg->type,
                 msg->type == MSG_GPU_SESSION_DEL ? msg->gpu_session.client
                                                  : (unsigned)msg->ping.seq);
            break;
        case CORE_DO_CLIENT_CLOSE:
            note(bench, "%u close\n", action.client_close.client);
            break;
        case CORE_DO_PEER_LOOK:
            note(bench, "look %u\n", action.peer_look.node);
            break;
        case CORE_DO_PEER_DROP:
            note(bench, "drop %u: %s\n", action.peer_drop.node, action.peer_drop.why);
            break;
        case CORE_DO_ENGINE_START:
            note(bench, "engine start\n");
            break;
        case CORE_DO_ENGINE_KILL:
            note(bench, "engine kill\n");
            break;
        case CORE_DO_GPU_START:
            note(bench, "gpu start\n");
            break;
        case CORE_DO_GPU_KILL:
            note(bench, "gpu kill\n");
            break;
        case CORE_DO_GPU_SESSION:
            note(bench, "%u gpu session req %u, user %u pid %u\n", action.gpu_session.client,
                 action.gpu_session.req, action.gpu_session.uid, action.gpu_session.pid);
            break;
        case CORE_DO_ENGINE_KEPT:
            note(bench, "engine kept\n");
            break;
        case CORE_DO_ENGINE_RESUMED:
            note(bench, "engine resumed\n");
            break;
        case CORE_DO_GROUP_COMMITTED:
            note(bench, "group committed\n");
            break;
        case CORE_DO_RANK_ASKED:
            note(bench, "rank %u asked, req %u\n", action.rank_asked.rank, action.rank_asked.req);
            break;
        case CORE_DO_GROUP_FORGET:
            note(bench, "group forget\n");
            break;
        case CORE_DO_GROUP_OPEN:
            bench->hash ^= action.group_open.group;
            note(bench, "group open\n");
            break;
        case CORE_DO_GROUP_POSITION:
            note(bench, "group position?\n");
            break;
        case CORE_DO_GROUP_BIND:
            note(bench, "group bind, %u ops\n", action.group_bind.ops);
            break;
        case CORE_DO_RANK_GONE:
            bench->hash ^= action.rank_gone.group ^ text_hash(0, action.rank_gone.text);
            note(bench, "rank %u %s: %s\n", action.rank_gone.rank,
                 action.rank_gone.missed ? "missed" : "gone", action.rank_gone.text);
            break;
        case CORE_DO_JOINED_AGAIN:
            note(bench, "%u joined again, rank %u req %u\n", action.joined_again.client,
                 action.joined_again.rank, action.joined_again.req);
            break;
        case CORE_DO_NODES_MISSED:
            note(bench, "nodes missed\n");
            break;
        case CORE_DO_RANK_ENDED:
            note(bench, "rank %u ended: %s\n", action.rank_gone.rank, action.rank_gone.text);
            break;
        case CORE_DO_GROUP_BROKEN:
            bench->hash ^= action.group_broken.group ^ text_hash(0, action.group_broken.text);
            note(bench, "group broken %u: %s\n", action.group_broken.cause,
                 action.group_broken.text);
            break;
        case CORE_DO_GROUP_CLOSE:
            bench->hash ^= action.group_close.group;
            note(bench, "group close\n");
            break;
        case CORE_DO_GROUP_ABSENT:
            note(bench, "who has not begun %llu? for %s %u, ask %llx\n",
                 (unsigned long long)action.group_absent.seq,
                 action.group_absent.asker == CORE_ASKER_NODE ? "node" : "client",
                 action.group_absent.to, (unsigned long long)action.group_absent.ask);
            break;
        case CORE_DO_LOG_LEVEL:
            note(bench, "%u log level %u for %u\n", action.log_level.client, action.log_level.level,
                 action.log_level.uid);
            break;
        case CORE_DO_RELOAD:
            note(bench, "%u reload\n", action.reload.client);
            break;
        case CORE_DO_CHANGED:
            note(bench, "%u %s %u: %s\n", action.changed.client,
                 action.changed.done ? "changed" : "unchanged", action.changed.groups,
                 action.changed.text);
            break;
        case CORE_DO_LOG:
            bench->hash ^= text_hash(0, action.log.text);
            bench->noted[action.log.note]++;
            if (action.log.level == CORE_LOG_ERROR)
                text_copy(bench->error, sizeof(bench->error), action.log.text);
            break;
        }
    }
    if (core_deadline(bench->core) <= bench->now)
        fail_msg("a deadline in the past");
}

static inline void expect(struct bench *bench, const char *expected)
{
    assert_string_equal(bench->got, expected);
    bench->got[0] = 0;
}

static inline void say(struct bench *bench, unsigned client, const struct msg *msg)
{
    feed(bench, (struct core_event){.type = CORE_CLIENT_MSG, .client = client, .msg = msg});
}

static inline void open_client(struct bench *bench, unsigned client, uint32_t uid)
{
    feed(bench, (struct core_event){
                    .type = CORE_CLIENT_OPEN, .client = client, .uid = uid, .pid = 100 + client});
}

static inline void hello(struct bench *bench, unsigned client, uint32_t uid, bool admin)
{
    struct msg msg = {.type = MSG_CLIENT_HELLO};

    open_client(bench, client, uid);
    msg.client_hello.version = MSG_VERSION;
    msg.client_hello.admin = admin;
    say(bench, client, &msg);
}

static inline void join(struct bench *bench, unsigned client, uint32_t req, const char *name,
                        unsigned rank, unsigned size)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN};

    msg.client_join.req = req;
    msg.client_join.rank = rank;
    msg.client_join.size = size;
    text_copy(msg.client_join.name, sizeof(msg.client_join.name), name);
    say(bench, client, &msg);
}

#endif
