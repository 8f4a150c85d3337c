/* http_request.h - the head of an HTTP request, parsed. */
#ifndef COMMD_HTTP_REQUEST_H
#define COMMD_HTTP_REQUEST_H

#include "shm/util/base.h"

enum { HTTP_HEAD_MAX = 8192, HTTP_TARGET_MAX = 256, HTTP_PATH_MAX = 64, HTTP_HOST_MAX = 256 };
enum { HTTP_E_MORE = 1 };

struct http_request {
    bool head;                /* HEAD: an answer without its body */
    char path[HTTP_PATH_MAX]; /* without the query; "" for a longer one, which is nowhere */
    char host[HTTP_HOST_MAX]; /* as sent; "": none */
};

/* 0: *ret_request is filled; HTTP_E_MORE: it has not come to its end; else the status to answer. */
int http_request_parse(const char *text, size_t len, struct http_request *ret_request);
/* Whether a Host header names this machine without a name that somebody else could give it:
 * "localhost", an address, or nothing. */
bool http_host_is_plain(const char *host);

#endif
