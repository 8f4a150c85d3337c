/* http.h - HTTP for Prometheus and for people, read-only. See http.c for the model. */
#ifndef COMMD_HTTP_H
#define COMMD_HTTP_H

#include "shm/util/base.h"

struct daemon;
struct http;
struct metrics;

/* Listens where listen.http says; *ret_http is NULL where that is nowhere. On failure a negative
 * errno, and *ret_error says what to do (malloc'ed; NULL with -ENOMEM): -EINVAL for the
 * configuration. */
int http_new(struct daemon *d, struct http **ret_http, char **ret_error);
struct http *http_free(struct http *http);
/* Works on answers for a moment, at the end of a turn, and frees what was closed in it; what
 * remains makes the next turn come at once. NULL ok. */
void http_turn(struct http *http);
/* Fills in what HTTP knows about itself. */
void http_counts(const struct http *http, struct metrics *m);

#endif
