/* called.h - what members called in operations that took no steps of the board: called.c. */
#ifndef COMMD_CLIENT_CALLED_H
#define COMMD_CLIENT_CALLED_H

#include "client/lib/coll/run.h"

/* Nobody knows any more what was called. */
extern const struct board_mismatch calls_unknown;

/* Notes what @r is in this member's post, for which there is room, and makes that known. */
void call_note(const struct run *r, unsigned kind);
/* What member @m called as operation @seq, if it is among its last and took no steps. */
bool call_read(const struct run *r, unsigned m, uint64_t seq, struct op_desc *ret_desc);
/* Did @a and @b call different operations as @seq, and is that not settled? Then *m says what. */
bool calls_differ(const struct run *r, unsigned a, unsigned b, uint64_t seq,
                  struct board_mismatch *m);
/* Has a member found a mismatch of which not all know? */
bool calls_disputed(const struct run *r);
/* Members @a and @b call the same now and did not before: what was that? */
void calls_mismatch(const struct run *r, unsigned a, unsigned b, struct board_mismatch *ret_m);

#endif
