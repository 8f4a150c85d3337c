/* note.h - what this rank does on GPUs by commd-gpu, written down on the board for people: commctl
 * why, ops, ranks and trace, also after the rank has died. Nobody decides by it. */
#ifndef COMMD_CLIENT_NOTE_H
#define COMMD_CLIENT_NOTE_H

#include "client/lib/context/group.h"

/* Operation @desc.seq is announced; this rank gives @bytes. */
void note_announced(struct commd_group *g, const struct op_desc *desc, uint64_t bytes);
/* It has ended, with @code; older ones may not have: what is lent lands on the stream (lent.c). */
void note_ended(struct commd_group *g, uint32_t seq, int code);
/* Operation @seq has not ended, and its input is there. */
void note_ready(struct commd_group *g, uint32_t seq, uint64_t now);

/* For whom operation @seq waits, as far as this node knows: "rank 2 did not come". */
void note_missing(const struct commd_group *g, uint32_t seq, char *buf, size_t len);
/* One rank of a node speaks for those that wait there: the first. */
bool note_speaks(const struct commd_group *g, uint32_t seq);

#endif
