/* place.h - on which node of memory the pages of a board lie that one member alone reads. Only on
 * machines with several nodes; see place.c. */
#ifndef COMMD_PLACE_H
#define COMMD_PLACE_H

#include "shm/board/board.h"

/* Has the pages of [@at, @at + @len), whole ones, lie on @node once they are used. false: the
 * system refuses. */
typedef bool (*place_fn)(void *at, size_t len, unsigned node);
bool place_bind(void *at, size_t len, unsigned node);

/* What member @local alone reads: to @node, with @bind. Nothing fails: at worst pages lie where
 * they would have lain. */
void place_member(const struct board *b, unsigned local, unsigned node, place_fn bind);
/* The same for a member that joins, if it is bound to the CPUs of one node of several. */
void place_joined(const struct board *b, unsigned local);

/* "bind", or "touch" where the system refuses that to this process; "no": there is one node. */
const char *place_way(void);

#endif
