/* http.h - HTTP for Prometheus and for people, read-only. See http.c for the model. */
#ifndef COMMD_HTTP_H
#define COMMD_HTTP_H

#include "shm/util/base.h"

struct daemon;
struct http;
struct metrics;

/* Listens at listen.http. *ret_http is NULL if that is not set. On failure a negative errno, and
 * *ret_error says what to do (malloc'ed; NULL with -ENOMEM). -EINVAL: the configuration is wrong.
 */
int http_new(struct daemon *d, struct http **ret_http, char **ret_error);
struct http *http_free(struct http *http);
/* Called at the end of a turn: works on answers for a moment, and frees the connections that were
 * closed in the turn. If work remains, the next turn comes at once. NULL ok. */
void http_turn(struct http *http);
/* Fills in the numbers about HTTP itself. */
void http_counts(const struct http *http, struct metrics *m);

#endif
