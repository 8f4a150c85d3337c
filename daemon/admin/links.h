/* links.h - the links of this node as a table: part of what commctl why goes by, and a row of the
 * matrix of commctl links and of the page. */
#ifndef COMMD_ADMIN_LINKS_H
#define COMMD_ADMIN_LINKS_H

#include "shm/util/base.h"

struct daemon;
struct table;

/* With more nodes than these there are too many links to tell all. */
enum { LINKS_ALL_NODES = 64 };

void links_table(struct table *table);
/* @all: every link, or, with many nodes, those that are not up, lose or crawl, 64 at most, and
 * fewer where the answer has no room for so many of each node. Else those that lose or crawl, 16 at
 * most. The worst come first. How many such links were left out. */
unsigned links_fill(struct daemon *d, bool all, struct table *table);
/* One row more, of a node that has not told all of its ranks. @state: "silent", it did not answer;
 * "partial", its answer was cut, or in another version; "down", it could not be asked. */
void links_unheard(struct daemon *d, const char *peer, const char *state, struct table *table);

#endif
