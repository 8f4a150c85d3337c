/* tuning.h - the answer to "tuning". */
#ifndef COMMD_TUNING_H
#define COMMD_TUNING_H

#include "daemon/admin/table.h"
#include "daemon/conf/conf.h"

/* Begins @table and fills it. @engine: with what it was started; @links: of links_encryption(). */
void tuning_fill(struct table *table, const struct conf *conf, const struct conf *engine,
                 const char *links);

#endif
