/* links.h - the links of this node as a table. commctl why reads it; commctl links and the page
 * show it as one row of their matrix. */
#ifndef COMMD_ADMIN_LINKS_H
#define COMMD_ADMIN_LINKS_H

#include "shm/util/base.h"

struct core_traffic;
struct daemon;
struct table;

/* In a cluster with more nodes a table cannot tell all links. */
enum { LINKS_ALL_NODES = 64 };

/* Columns of `commctl nodes` and `commctl links`: what the engine tells of its @of_ with a
 * node, if it has told so lately (@fresh_). */
/* clang-format off */
#define TRAFFIC_TIMES(C, of_, fresh_)                                                              \
    C(rtt_us, "RTT [us]", number_if, (fresh_) && (of_)->rtt_us, (of_)->rtt_us)                     \
    C(min_rtt_us, "LEAST [us]", number_if, (fresh_) && (of_)->min_rtt_us, (of_)->min_rtt_us)
#define TRAFFIC_ENCRYPTION(C, of_)                                                                 \
    C(encryption, "ENCRYPTION", text, link_encryption_word((of_)->encryption))                     \
    C(encryption_s, "KEY OR LINK AGE [s]", number_if, (of_)->encryption,                           \
      links_key_ms(of_) / 1000)                                                                    \
    C(key_number, "KEY NUMBER", number_if, link_is_encrypted((of_)->encryption),                   \
      (of_)->generation + UINT64_C(1))
#define TRAFFIC_MOST(C, of_)                                                                       \
    C(bandwidth, "MOST [bytes/s]", number_if, (of_)->bandwidth, (of_)->bandwidth)
/* clang-format on */

/* For how long data go so: the age of the oldest key, or of a link in the clear. */
uint64_t links_key_ms(const struct core_traffic *traffic);
/* One line: how many links are protected how, and by keys of which age. "": there are none. */
void links_encryption(struct daemon *d, char *text, size_t size);
void links_table(struct table *table);
/* Fills the table. A bad link loses data or is very slow.
 * @all: every link. With more than LINKS_ALL_NODES nodes: the links that are down or bad, the worst
 * first, at most 64, or as many as the answer has room for.
 * Not @all: the bad links between commds that are linked, the worst first, at most 16.
 * Returns how many such links were left out. */
unsigned links_fill(struct daemon *d, bool all, struct table *table);
/* Adds a row about the node @peer, which has not told all of its ranks. @state is "silent": the
 * node did not answer; "partial": its answer was cut, or of another version; "down": it could not
 * be asked. */
void links_unheard(struct daemon *d, const char *peer, const char *state, struct table *table);

#endif
