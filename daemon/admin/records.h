/* records.h - the operations in the recorders of this node's ranks. They are collected while
 * somebody watches (`commctl trace`, `commctl top`), and when a group ends. See records.c. */
#ifndef COMMD_RECORDS_H
#define COMMD_RECORDS_H

#include "shm/board/recorder.h"

struct board_ctl;
struct daemon;
struct ranks;
struct table;

/* The last operations of one rank that were seen. */
struct rank_records {
    struct recorder_op *ops; /* owned: a ring of `room`, the oldest at n % room when it is full */
    unsigned room, n;        /* n: how many were taken so far */
    uint32_t newest;         /* number of the newest operation */
    uint32_t newest_gpu;     /* number of the newest one by commd-gpu; 0: none yet */
    bool looked;             /* at least once */
    uint64_t first_bytes;    /* what the rank had given to operations at the first look */
    uint64_t bytes;          /* and at the last look */
};

/* Has the ranks of the groups in @ranks time their operations, and makes room for these. @nnodes
 * nodes answer the question: the room is a share of one answer. 0 or -ENOMEM; either way the caller
 * calls records_end(). */
int records_begin(struct ranks *ranks, struct daemon *d, unsigned nnodes);
/* Takes back the wish that operations are timed. */
void records_end(struct ranks *ranks, struct daemon *d);
/* Takes the operations that are new; after ranks_look(). @left_ms: time until the last look. 0:
 * this is the last look, which takes in all ranks, and operations that have not ended. Returns in
 * how many ms the next look is due: RECORDS_LOOK_MS or fewer. */
enum { RECORDS_LOOK_MS = 20 };
uint64_t records_look(struct ranks *ranks, struct daemon *d, uint64_t left_ms);
/* Takes the last @room operations of one rank, and as many by commd-gpu. 0, or -ENOMEM and none. */
int records_take(struct rank_records *records, const struct board_ctl *ctl, unsigned local,
                 unsigned room);
/* Copies @from. Without memory the copy is empty. */
void records_copy(struct rank_records *records, const struct rank_records *from);
void records_free(struct rank_records *records);
/* Bytes that the rank has given to operations since the first look. */
uint64_t records_bytes(const struct rank_records *records);
/* Begins the table of operations. */
void records_table(struct table *table);
/* Adds the rows to @table. Works until @until_us; true: done. */
bool records_fill(struct ranks *ranks, struct daemon *d, struct table *table, uint64_t until_us);

#endif
