/* http_made.h - the answers that take more than one turn: the metrics, and the status of the page.
 * See http_made.c. */
#ifndef COMMD_HTTP_MADE_H
#define COMMD_HTTP_MADE_H

#include "daemon/admin/table.h"
#include "daemon/http/collect.h"

enum http_made { HTTP_METRICS, HTTP_STATUS, HTTP_MADE };

struct http_maker {
    struct daemon *d; /* borrowed */
    struct http_making {
        struct body *fresh; /* owned; NULL: none was made yet */
        uint64_t fresh_ms;
        struct body *next; /* owned: in the making; NULL: nothing is */
        struct collect collect;
        unsigned row; /* the next row of metrics to write */
    } making[HTTP_MADE];
    struct table links; /* owned */
    bool has_links, asks_links;
    uint64_t links_ms; /* when the nodes were asked for links last; 0: never */
};

void http_maker_fini(struct http_maker *maker);
/* The last answer, if it is new enough to be sent; or NULL. */
struct body *http_maker_fresh(const struct http_maker *maker, enum http_made made);
/* Has an answer been begun, and not ended? */
bool http_maker_is_busy(const struct http_maker *maker, enum http_made made);
/* Begins an answer, or goes on with it, until @until_us. Returns it when it is done; it is valid
 * until the next one is done. */
struct body *http_maker_step(struct http_maker *maker, enum http_made made, uint64_t until_us);
/* Asks all nodes for their links, which a later status shows. */
void http_maker_want_links(struct http_maker *maker);

#endif
