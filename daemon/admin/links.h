/* links.h - the links of this node that lose data, as a table: part of what commctl why goes by. */
#ifndef COMMD_ADMIN_LINKS_H
#define COMMD_ADMIN_LINKS_H

struct daemon;
struct table;

void links_table(struct table *table);
/* Those that lose, the worst first, 16 at most: a cluster has as many links as pairs of nodes. */
void links_fill(struct daemon *d, struct table *table);

#endif
