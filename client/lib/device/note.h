/* note.h - what this rank does on GPUs by commd-gpu, written down on the board for people: commctl
 * why, ops, ranks and trace show it, also after the rank has died. It decides nothing. */
#ifndef COMMD_CLIENT_NOTE_H
#define COMMD_CLIENT_NOTE_H

#include "client/lib/context/group.h"

/* Operation @desc.seq is announced; this rank gives @bytes. */
void note_announced(struct membership *g, const struct op_desc *desc, uint64_t bytes);
/* Operation @seq has ended with @code. Older ones may not have: with lent memory an operation ends
 * when it has landed (lent.c). */
void note_ended(struct membership *g, uint32_t seq, int code);
/* Operation @seq has not ended, and its input is there. */
void note_ready(struct membership *g, uint32_t seq, uint64_t now);

/* Which ranks operation @seq waits for, as far as this node knows: "rank 2 did not come". */
void note_missing(const struct membership *g, uint32_t seq, char *buf, size_t len);
/* Does this rank speak for all ranks of its node that wait? The first of them does. */
bool note_speaks(const struct membership *g, uint32_t seq);

#endif
