/* state_priv.h - shared by state.c (the file, and what in it still counts), state_write.c and
 * state_read.c (what records say). */
#ifndef COMMD_STATE_PRIV_H
#define COMMD_STATE_PRIV_H

#include <sys/queue.h>

#include "daemon/state/state.h"

/* Kinds of records: never renumbered, see state.proto. */
enum kind {
    KIND_COUNTS = 1,
    KIND_CLIENT = 2,
    KIND_CLIENT_GONE = 3,
    KIND_GROUP = 4,
    KIND_RANK_GONE = 5,
    KIND_BROKEN = 6,
    KIND_GROUP_GONE = 7,
    KIND_ARENA = 8,
    KIND_ARENA_GONE = 9,
    KIND_GROUP_STEP = 10,
    KIND_ENGINE = 11,
    KIND_GPU = 12,
    KIND_EVENT = 13,
};

enum { STATE_BUCKETS = 1024, STATE_SLOTS_MAX = 1 << 20 };

/* A record that counts still. */
struct live {
    TAILQ_ENTRY(live) all;
    LIST_ENTRY(live) hash;
    enum kind kind;
    uint64_t key;  /* id of the group, or of the client */
    uint64_t key2; /* slot of the client; rank; id of the arena; step_key() */
    size_t at;     /* offset of its head in the half */
    uint32_t len;
};
TAILQ_HEAD(live_list, live);
LIST_HEAD(live_bucket, live);

struct state {
    struct head *head; /* the memory; mapped by us if @mapped */
    size_t size, room; /* of all; of the records in a half */
    bool mapped, whole;
    bool no_events;             /* what else there is needs their room */
    uint64_t word;              /* as in the head */
    size_t used;                /* of the present half */
    size_t live_bytes;          /* of the records that count */
    struct live_list all;       /* owned; in the order in which they were written */
    struct live_bucket *hashed; /* by key */
    uint64_t *ids;              /* slot -> id of the client that has it, 0 */
    unsigned nids;
    uint64_t last_id; /* of a client */
    unsigned dropped;
    const char *why;
};

/* ---- state.c --------------------------------------------------------------------------------- */

/* Room for a record of @len bytes at the end; NULL: the state is not whole any more. What is
 * written there counts from file_commit() on. Events give way to it. */
uint8_t *file_room(struct state *state, size_t len);
/* Is there room for another event? If not, none is kept any more. */
bool file_event_room(struct state *state, size_t len);
size_t file_commit(struct state *state, enum kind kind, size_t len); /* returns where it lies */
const uint8_t *file_record(const struct state *state, const struct live *live);
void file_drop(struct state *state, const char *why); /* a record that does not fit */

struct live *live_find(const struct state *state, enum kind kind, uint64_t key, uint64_t key2,
                       bool any_key2);
/* False: no memory; the state is not whole any more. */
bool live_add(struct state *state, enum kind kind, uint64_t key, uint64_t key2, size_t at,
              size_t len);
void live_forget(struct state *state, struct live *live);
void live_forget_client(struct state *state, uint64_t id); /* and its arenas */
void live_forget_group(struct state *state, uint64_t id);  /* and what became of it */
/* The client that has @slot now; 0: none. */
uint64_t live_client(const struct state *state, unsigned slot);
bool live_set_client(struct state *state, unsigned slot, uint64_t id);

/* Of a step of a group, by which it is found: @rank is 0 but for STATE_ASKED. */
static inline uint64_t step_key(uint32_t step, uint32_t rank)
{
    return (uint64_t)rank << 32 | step;
}

/* ---- state_read.c ---------------------------------------------------------------------------- */

/* A record that was found at @at: what counts changes by it. Unknown kinds are skipped. */
void record_found(struct state *state, uint32_t kind, const uint8_t *bytes, size_t len, size_t at);

#endif
