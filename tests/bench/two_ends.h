/* two_ends.h - two TCP fabrics of one process, for benches: who sends bodies to whom. */
#ifndef COMMD_TESTS_TWO_ENDS_H
#define COMMD_TESTS_TWO_ENDS_H

#include "shm/util/base.h"
#include "transport/fabric/fabric.h"

enum { END_BODY = 128 << 10, END_BUFS = 6 };

struct end {
    struct fabric *f;
    uint8_t *in[END_BUFS]; /* of END_BODY bytes; the first @nbufs in turns */
    unsigned nbufs, got, inflight;
};

_Noreturn void die(const char *what);
void end_open(struct end *e, enum fabric_encryption encryption, unsigned threads, unsigned nbufs);
void end_close(struct end *e);
/* Each knows the other; they have yet to connect. */
void ends_meet(struct end e[2]);
void ends_turn(struct end e[2]);
/* A body to the other side, which has it when its @got has risen. */
void end_send(struct end *e, const uint8_t *body, size_t len);

#endif
