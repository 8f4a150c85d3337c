/* heard.h - which rows about ranks and links this node takes from another node's RANKS_HERE. */
#ifndef COMMD_HEARD_H
#define COMMD_HEARD_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

/* Has @told the columns of @ours? Another version may have others. */
bool heard_columns(const struct msg_table *told, const struct msg_table *ours);
/* Adds to @table those rows of @told that @node, called @name, may tell; see heard.c. Both tables
 * have the same columns. Returns how many rows were left out. */
unsigned heard_rows(const struct core *core, unsigned node, const char *name,
                    const struct msg_table *told, struct table *table);

/* For the end, when all nodes have told. A dispute is a rank with two rows, in a group that this
 * node, called @self, is not in. Drops both rows from @table, but no row of this node's own.
 * Returns the number of disputes, and in @ret_first a text about the first one. -1: nothing was
 * dropped, because there are too many rows or no memory. */
int heard_disputes(const struct core *core, const char *self, struct table *table, char *ret_first,
                   size_t len);

#endif
