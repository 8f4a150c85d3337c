/* gpu_share.h - what users have of one GPU, and whose operation may go there. Pure. See gpu_share.c
 * for the model. */
#ifndef COMMD_GPU_SHARE_H
#define COMMD_GPU_SHARE_H

#include "transport/schedule/fair.h"

enum {
    SHARE_DEPTH = 32,       /* operations of a user that have their turn, and have not ended */
    SHARE_DEPTH_BESIDE = 8, /* ... beside other users */
    SHARE_LEAST = 1 << 20,  /* what the smallest operation counts, in bytes */
    SHARE_BESIDE_MS = 1000, /* for so long others are remembered */
};
#define SHARE_BYTES        (256ull << 20) /* and of these, unless it is one alone */
#define SHARE_BYTES_BESIDE (64ull << 20)

/* A GPU. */
struct gpu_shared {
    struct fair queue; /* of those who are full */
    uint64_t turn;     /* the caller counts it up when all have been looked at */
    unsigned ops;      /* of all users */
    uint32_t last_uid;
    uint64_t changed_ms; /* another user than before had its turn; 0: never */
};

/* A user there. */
struct gpu_share {
    struct fair_node node;
    uint32_t uid;
    unsigned ops; /* that have their turn, and have not ended */
    uint64_t bytes;
    unsigned waits;  /* operations that only wait for others to end */
    uint64_t waited; /* the turn in which it did so last */
};

void gpu_shared_init(struct gpu_shared *g);
void gpu_share_init(struct gpu_share *s, uint32_t uid, uint32_t weight);
void gpu_share_fini(struct gpu_shared *g, struct gpu_share *s);

/* Has the user so much there that this operation must wait until some has ended? The caller says so
 * with gpu_share_wait(), and takes it back with gpu_share_unwait() when it waits no more. */
bool gpu_share_full(const struct gpu_shared *g, const struct gpu_share *s, uint64_t bytes);
void gpu_share_wait(struct gpu_shared *g, struct gpu_share *s);
void gpu_share_unwait(struct gpu_shared *g, struct gpu_share *s);
/* It is not full: may it go on, or does another one who is full come before it? */
bool gpu_share_may(struct gpu_shared *g, const struct gpu_share *s);
/* An operation of it has its turn. */
void gpu_share_charge(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes, uint64_t now_ms);
/* It is, or is no longer, among those that have not ended. */
void gpu_share_take(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes);
void gpu_share_give(struct gpu_shared *g, struct gpu_share *s, uint64_t bytes);
/* Were others there lately? */
bool gpu_share_beside(const struct gpu_shared *g, const struct gpu_share *s, uint64_t now_ms);

#endif
