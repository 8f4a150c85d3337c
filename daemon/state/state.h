/* state.h - what commd writes down for the commd that follows it, in memory that outlives it. See
 * state.c for the model. A record is written when something has become true, before anybody is told
 * of it:
 *
 *   WELCOME is sent to a client, no admin tool             state_client()
 *   a client closed, or is closed (CLIENT_CLOSE)           state_client_gone()
 *   CORE_DO_GROUP_COMMITTED; CORE_DO_GROUP_OPEN of one node, before JOINED is sent
 *                                                          state_group()
 *   CORE_DO_RANK_ASKED                                     state_rank_asked()
 *   CORE_DO_GROUP_OPEN of several; CORE_DO_GROUP_CLOSE, if others have to hear of it
 *                                                          state_group_step()
 *   CORE_DO_RANK_GONE, before the board is marked, with the operations that were read from it;
 *   CORE_DO_RANK_ENDED                                     state_rank_gone()
 *   CORE_DO_GROUP_BROKEN, before the board is marked       state_broken()
 *   CORE_DO_GROUP_CLOSE, before the board is closed; CORE_DO_GROUP_FORGET
 *                                                          state_group_gone()
 *   CORE_DO_ENGINE_KEPT, GPU_HELLO came; it ended          state_program()
 *   an arena was taken, before its answer; it ended        state_arena(), state_arena_gone()
 *   an entry of the diary, and which one it pushed out     state_entry(), state_entry_gone()
 *
 * Writing costs some copying, and no system call but for the memory that it touches. */
#ifndef COMMD_STATE_H
#define COMMD_STATE_H

#include "daemon/core/core.h"

struct state;

enum { STATE_TOKEN = 16, STATE_SECRET = 32, STATE_TRIES = 2 };
enum state_step { STATE_OPEN = 1, STATE_LEFT = 2, STATE_ASKED = 3 };

struct state_client {
    struct core_kept_client is;
    uint8_t token[STATE_TOKEN]; /* by which its process shows that it is the same */
    const char *command, *job;  /* as in its hello */
};
enum state_program { STATE_ENGINE, STATE_GPU };
struct state_engine {
    uint32_t pid, uid;
    uint64_t nodes, incarnation; /* .nodes: a number for the names of all nodes */
    uint8_t secret[STATE_SECRET];
    uint8_t addr[MSG_ADDR_MAX];
    uint32_t addr_len;
    char text[MSG_TEXT_MAX];
};
struct state_arena {
    unsigned slot; /* of its client */
    uint64_t id, size;
};

/* An entry of the diary: daemon/admin/diary.h. */
enum { STATE_EVENTS = 512, STATE_WHAT = 24, STATE_TEXT = 320 };
struct state_entry {
    uint64_t life, number, wall_ms, total;
    int64_t whose, payer; /* a uid; -1: everybody */
    const char *what, *text;
};

/* Memory for so many, as limits allow them: @members are ranks over all groups. And for the diary.
 */
size_t state_size(unsigned clients, unsigned groups, unsigned members, unsigned arenas);
/* A new and empty one, in a sealed file of its own. The descriptor is the caller's. Negative errno.
 */
int state_new(size_t size, struct state **ret_state, int *ret_fd);
/* The one that another commd wrote into @fd, which stays the caller's. -EINVAL: it is none. What in
 * it does not fit is left out, and counted: state_dropped(). */
int state_open(int fd, struct state **ret_state);
/* Likewise, in memory of the caller's; for tests. @fresh: it is empty. */
int state_on(void *memory, size_t size, bool fresh, struct state **ret_state);
struct state *state_free(struct state *state); /* NULL ok; what is written stays */

/* ---- writing --------------------------------------------------------------------------------- */

void state_counts(struct state *state, const struct core_counts *counts);
void state_client(struct state *state, const struct state_client *client);
void state_client_gone(struct state *state, unsigned slot); /* and its arenas */
void state_group(struct state *state, const struct core *core, uint64_t id, bool committed);
/* Of one that was written as committed. */
void state_group_step(struct state *state, uint64_t id, enum state_step step);
void state_rank_asked(struct state *state, uint64_t id, uint32_t rank, uint32_t req);
void state_rank_gone(struct state *state, const struct core_rank_gone *gone);
void state_broken(struct state *state, const struct core_group_broken *broken);
void state_group_gone(struct state *state, uint64_t id);
/* @engine NULL: it has ended. */
void state_program(struct state *state, enum state_program which,
                   const struct state_engine *engine);
void state_arena(struct state *state, const struct state_arena *arena);
void state_arena_gone(struct state *state, unsigned slot, uint64_t id);
/* It is kept as long as there is room. If there is none, no event is kept any more. */
void state_entry(struct state *state, const struct state_entry *event);
void state_entry_gone(struct state *state, uint64_t number);
/* Nothing is kept any more: the next commd starts clean. */
void state_clear(struct state *state);
/* False: there was no room for a record. Nothing is kept any more, and the next commd starts clean.
 */
bool state_is_whole(const struct state *state);

/* ---- taking over ----------------------------------------------------------------------------- */

/* Each is called for what is there still: counts, then clients and groups in the order in which
 * they came, each before what belongs to it. NULL: not wanted. False: it cannot be used, and the
 * state forgets it. What pointers point to is valid until the function returns. */
struct state_ops {
    void (*counts)(void *arg, const struct core_counts *counts);
    bool (*client)(void *arg, const struct state_client *client);
    bool (*arena)(void *arg, const struct state_arena *arena);
    /* The slot of a rank is CORE_NOBODY if its client has ended. */
    bool (*group)(void *arg, const struct core_kept_group *group);
    bool (*rank_gone)(void *arg, const struct core_rank_gone *gone);
    bool (*broken)(void *arg, const struct core_group_broken *broken);
};
/* The process that was there last; false: it ended. */
bool state_read_program(const struct state *state, enum state_program which,
                        struct state_engine *ret_engine);
void state_read(struct state *state, const struct state_ops *ops, void *arg);
/* The entries of the diary, in their order. @event may call state_entry_gone() for others before
 * it. False: as in state_ops. */
void state_read_events(struct state *state,
                       bool (*event)(void *arg, const struct state_entry *event), void *arg);
/* Records that did not fit so far; *ret_why: of the last one, for the log. */
unsigned state_dropped(const struct state *state, const char **ret_why);
/* A try to take over begins: how many before it began and did not come to state_taken_over(). From
 * STATE_TRIES on the caller calls state_clear(). */
unsigned state_try(struct state *state);
void state_taken_over(struct state *state);

#endif
