/* heard.h - what another node may tell of ranks and links in RANKS_HERE. */
#ifndef COMMD_HEARD_H
#define COMMD_HEARD_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

/* Has @told the columns of @ours? Another version may have others. */
bool heard_columns(const struct msg_table *told, const struct msg_table *ours);
/* Adds to @table the rows of @told, which has the same columns, that @node (called @name) may tell:
 * see heard.c. Returns how many it may not. */
unsigned heard_rows(const struct core *core, unsigned node, const char *name,
                    const struct msg_table *told, struct table *table);

/* Once all have told: drops from @table what rows say of ranks which another row has, too, of
 * groups that this node, called @self, is not in. Its own rows stay. Returns how many ranks those
 * are, and in @ret_first what is said of the first; -1: not looked at, the rows are too many, or no
 * memory. */
int heard_disputes(const struct core *core, const char *self, struct table *table, char *ret_first,
                   size_t len);

#endif
