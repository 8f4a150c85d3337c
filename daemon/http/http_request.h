/* http_request.h - the head of an HTTP request, parsed. */
#ifndef COMMD_HTTP_REQUEST_H
#define COMMD_HTTP_REQUEST_H

#include "shm/util/base.h"

enum { HTTP_HEAD_MAX = 8192, HTTP_TARGET_MAX = 256, HTTP_PATH_MAX = 64, HTTP_HOST_MAX = 256 };
enum { HTTP_E_MORE = 1 };

struct http_request {
    bool head;                /* HEAD: an answer without its body */
    char path[HTTP_PATH_MAX]; /* without the query; "": it is longer, so it does not exist */
    char host[HTTP_HOST_MAX]; /* as sent; "": none */
};

/* 0: *ret_request is filled. HTTP_E_MORE: the end of the head has not come yet. Else the status to
 * answer with. */
int http_request_parse(const char *text, size_t len, struct http_request *ret_request);
/* Is a Host header "localhost", an address, or empty? Any other name may be one that a stranger's
 * name server maps to this machine. */
bool http_host_is_plain(const char *host);

#endif
