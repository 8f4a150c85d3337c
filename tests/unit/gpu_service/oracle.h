/* oracle.h - random operations that all ranks of a group draw alike, and what must come of them. */
#ifndef COMMD_TEST_GPU_ORACLE_H
#define COMMD_TEST_GPU_ORACLE_H

#include "service.h"

enum { ORACLE_WORLD = 16, ORACLE_ELEMENTS = 32768, ORACLE_BYTES = 5 << 16 };

struct sample {
    unsigned coll, dtype, redop, root, world;
    uint64_t count;
    uint64_t counts[ORACLE_WORLD][ORACLE_WORLD]; /* elements from i to j; vectors: [i][0] */
    double scale[ORACLE_WORLD];
    bool in_place, send_blocks, recv_blocks;
    uint64_t seed;
    uint64_t seq;
};

/* The next of a sequence; @units: of the group, for what can be done. */
void sample_draw(struct sample *s, uint64_t *seed, unsigned world, unsigned units, uint64_t seq);

/* A rank's part of it: announced, and not looked at yet. */
struct task {
    struct sample s;
    unsigned rank;
    uint64_t n;
    struct buffer to;
    uint64_t at; /* in @to: of what it receives */
    uint64_t aux[6 * ORACLE_WORLD];
    uint64_t place[ORACLE_WORLD]; /* of received blocks, after @at */
    uint64_t guard;               /* bytes from @at on that are its */
};

/* Works in @bytes of @in from @send_at on, and of @out from @recv_at on. */
void task_announce(struct task *t, struct client *c, const struct sample *s, uint32_t group,
                   unsigned rank, const struct buffer *in, uint64_t send_at,
                   const struct buffer *out, uint64_t recv_at);
/* After it has succeeded: all bytes must be right, and those behind not touched. */
void task_check(struct task *t, struct client *c);

#endif
