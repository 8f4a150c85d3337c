/* registered.h - an operation in registered memory. See registered.c for the protocol,
 * registered_work.c for what each collective does. */
#ifndef COMMD_CLIENT_REGISTERED_H
#define COMMD_CLIENT_REGISTERED_H

#include "client/lib/coll/run.h"

/* As registered.c names them. OFFERS and VOTES: this member waits for those of all. STALLED: a
 * member had given up before this one began. */
enum registered_stage {
    REGISTERED_OFFER,
    REGISTERED_OFFERS,
    REGISTERED_MAP,
    REGISTERED_VOTE,
    REGISTERED_VOTES,
    REGISTERED_WORK,
    REGISTERED_FINISH,
    REGISTERED_STALLED
};

struct registered_place {
    uint64_t arena, offset;
};

struct registered {
    enum registered_stage stage;
    struct board_offer mine;
    bool yes;      /* my vote */
    bool began;    /* WORK: the edges are done */
    unsigned at;   /* MAP: the next place */
    bool asking;   /* MAP: for the arena of place @at */
    int64_t until; /* MAP: for the answer, CLOCK_MONOTONIC ms */
    struct awaited ask;
    uint64_t next, end; /* WORK: elements of my part */
    const uint8_t **in; /* by member */
    uint8_t **out;
    struct registered_place places[]; /* send and recv of each member, as it offered them */
};

/* The functions of PATH_REGISTERED. registered_begin() sets r->registered if this member can offer
 * its buffers. If a member cannot, the path of all becomes PATH_STEPS. */
void registered_begin(struct run *r);
enum run_state registered_advance(struct run *r);
/* The operation is over, one way or another: afterwards nobody writes into its buffers. */
void registered_end(struct run *r, bool done);
bool registered_asks(const struct run *r);

/* ---- registered_work.c ----------------------------------------------------------------------- */

/* Bytes of the send or the receive buffer; 0: not used. */
size_t registered_extent(const struct run *r, bool recv);
/* Do others use the send or the receive buffer of local member @m? Do members write to the outputs
 * of others? */
bool registered_shares(const struct run *r, unsigned m, bool recv);
bool registered_writes(const struct run *r);
/* Puts the edges of this member's input into its window. */
void registered_put(struct run *r);
/* All members voted yes: what is this member's part of the work? */
void registered_share_out(struct run *r);
/* Does a chunk of that part. RUN_MOVED: there is more. */
enum run_state registered_work(struct run *r);

#endif
