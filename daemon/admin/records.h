/* records.h - the operations that ranks of this node have in their recorders, collected for as long
 * as somebody watches (`commctl trace`, `commctl top`), or when their group ends. See records.c. */
#ifndef COMMD_RECORDS_H
#define COMMD_RECORDS_H

#include "shm/board/recorder.h"

struct board_ctl;
struct daemon;
struct ranks;
struct table;

/* Of one rank: the last ones that were seen. */
struct rank_records {
    struct recorder_op *ops; /* owned: a ring of `room`, the oldest at n % room when it is full */
    unsigned room, n;        /* how many were taken */
    uint32_t newest;         /* number of the newest */
    uint32_t newest_gpu;     /* the same of those by commd-gpu; 0: none yet */
    bool looked;
    uint64_t first_bytes, bytes; /* given to operations: at the first look, at the last */
};

/* From now on operations of the groups in @ranks are timed, as far as they can be seen, and their
 * ranks have room for what is. @nnodes will answer: what each keeps fits into one answer together.
 * 0 or -ENOMEM; in either case records_end() is due. */
int records_begin(struct ranks *ranks, struct daemon *d, unsigned nnodes);
/* They need not be timed any more. */
void records_end(struct ranks *ranks, struct daemon *d);
/* Takes what is new, after ranks_look(). @left_ms: until the last look; 0: this is it, of all ranks
 * at once, and also what has not ended. How soon the next look is due: after RECORDS_LOOK_MS, or
 * sooner. */
enum { RECORDS_LOOK_MS = 20 };
uint64_t records_look(struct ranks *ranks, struct daemon *d, uint64_t left_ms);
/* The last @room operations of one rank, as they stand; the same of those by commd-gpu. -ENOMEM:
 * none. */
int records_take(struct rank_records *records, const struct board_ctl *ctl, unsigned local,
                 unsigned room);
/* A copy of what @from has; without memory of nothing. */
void records_copy(struct rank_records *records, const struct rank_records *from);
void records_free(struct rank_records *records);
/* Bytes that the rank has given to operations since the first look. */
uint64_t records_bytes(const struct rank_records *records);
/* Writes the table, until @until_us; true: done. */
void records_table(struct table *table);
bool records_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us);

#endif
