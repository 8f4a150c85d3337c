/* engine.h - drives the boards of a node and the schedules between nodes over a fabric. The engine
 * knows nothing of processes, sockets or commd: the shell around it (engine_main.c) brings boards
 * and peers and carries reports away; tests do the same. */
#ifndef COMMD_ENGINE_H
#define COMMD_ENGINE_H

#include "shm/util/closer.h"
#include "shm/proto/msg.h"
#include "transport/fabric/fabric.h"

struct engine;

enum { ENGINE_MAX_CLIENTS = 1 << 17 }; /* numbers of commd's slots are below it */

struct engine_events {
    /* The group cannot go on; its board was marked broken already. */
    void (*on_board_error)(void *arg, uint64_t group, unsigned cause, int peer, const char *text);
    void (*on_peer_down)(void *arg, unsigned peer, enum link_end end, const char *text);
    void *arg;
    void (*on_apart)(void *arg, unsigned peer); /* as of struct fabric_events; may be NULL */
    /* A board that was told until when to go on has come to rest; may be NULL */
    void (*on_paused)(void *arg, const struct msg_pause *paused);
    /* To another commd: a board that is held. Of engine_resume() alone. */
    void (*on_held)(void *arg, const struct msg_board_held *held);
};

/* @node: this node's name, for texts. The fabric is attached afterwards, because it needs
 * engine_fabric_events(). */
struct engine *engine_new(const char *node, const struct engine_events *ev);
struct engine *engine_free(struct engine *e);
const struct fabric_events *engine_fabric_events(struct engine *e);
void engine_set_fabric(struct engine *e, struct fabric *f); /* borrowed */
/* Borrowed: its threads unmap boards, which takes long if these are large. */
void engine_set_closer(struct engine *e, struct closer *closer);

/* Maps the board (@fd stays the caller's). -EPROTO: board and message contradict. -ESTALE: another
 * engine had it, and what of it is on the wire is not known. One that is here since before
 * engine_resume() is not looked at again. */
int engine_board_add(struct engine *e, const struct msg_board_add *m, int fd);
/* @abort: at once, because the group's operations never end; else what other nodes still need of
 * this node is finished first. Messages that members have written are sent in any case. */
void engine_board_del(struct engine *e, uint64_t group, bool abort);
/* The engine of another node is lost, or is to be lost: from now on nothing more is begun on this
 * board, if nothing of its group is on the wire here. Fills @ret_held, but for the group. */
void engine_board_hold(struct engine *e, uint64_t group, struct msg_board_held *ret_held);
/* All nodes of the group have said that they are as far as this one: it goes on. */
void engine_board_go(struct engine *e, uint64_t group);
/* The engine of node @ask->asker is to be replaced: engine_pause.c. True: @ret has the answer. */
bool engine_board_pause(struct engine *e, const struct msg_pause *ask, struct msg_pause *ret);
/* Do boards rest because the engine of node @peer is to be replaced? Also if it has ended since. */
bool engine_rests_for(const struct engine *e, unsigned peer);
/* Another commd is there: tells it of the boards that have failed, and of those that are held.
 * Those that it does not add before engine_resumed() have no group any more. */
void engine_resume(struct engine *e);
void engine_resumed(struct engine *e);
/* The peer is being removed from the fabric: groups with it make no more progress. */
void engine_peer_gone(struct engine *e, unsigned peer);
/* The doorbell of @client rang: a member of one of its groups asks us to look. */
void engine_wake_client(struct engine *e, unsigned client);

/* Tells of users that have sent to other nodes since they were told of last: how long ago that was,
 * and how much they sent. Returns how many users; others follow in the next call. */
struct engine_sent {
    uint32_t uid;
    uint64_t ms, bytes;
};
unsigned engine_sent(struct engine *e, struct engine_sent *told, unsigned room);

/* One round over the active boards; true if something moved. */
bool engine_poll(struct engine *e);
/* Has a member got something to go on with since the last call? */
bool engine_published(struct engine *e);
/* Before sleeping: from now on members ring when they need us. True if something moved in the last
 * look: do not sleep then. */
bool engine_arm(struct engine *e);
/* Looks at every board, also idle ones: the safety net under lost doorbells. */
bool engine_poll_all(struct engine *e);
bool engine_has_boards(const struct engine *e);
bool engine_idle(const struct engine *e); /* no board is active: no need to spin */
/* commd is gone: tells all members. */
void engine_break_all(struct engine *e, unsigned cause, const char *text);

#endif
