/* heard.h - what another node may tell of ranks and links in RANKS_HERE. */
#ifndef COMMD_HEARD_H
#define COMMD_HEARD_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

/* Adds to @table the rows of @told, which has the same columns, that @node (called @name) may tell:
 * see heard.c. Returns how many it may not. */
unsigned heard_rows(const struct core *core, unsigned node, const char *name,
                    const struct msg_table *told, struct table *table);

#endif
