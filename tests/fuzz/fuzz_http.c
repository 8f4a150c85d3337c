/* fuzz_http.c - any bytes as the head of an HTTP request.
 *
 * Either a request comes out whose parts are texts within their bounds, or "more" is wanted, or a
 * status that has its line for a person. A verdict does not change by what comes behind it, so that
 * it does not matter in which pieces a request arrives; and at its longest there is one. */
#include "daemon/http/http_request.h"
#include "daemon/http/metrics.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_http: %s\n", what);
        abort();
    }
}

static bool has_line(int status)
{
    for (unsigned i = 0; i < METRICS_CODES; i++)
        if (status != 200 && (int)metrics_codes[i].status == status)
            return true;
    return false;
}

/* A copy, so that a sanitizer sees a look behind its end. */
static int parse_first(const uint8_t *data, size_t size, struct http_request *ret_request)
{
    char *copy = malloc(size + !size);
    int r;

    must(copy, "memory");
    memcpy(copy, data, size);
    r = http_request_parse(copy, size, ret_request);
    free(copy);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request request = {0}, earlier = {0};
    size_t piece = size / 8 + 1;
    int r;

    if (!size)
        return 0;
    r = parse_first(data, size, &request);
    if (r == 0) {
        must(!request.path[0] || request.path[0] == '/', "a path that is none");
        must(strnlen(request.path, HTTP_PATH_MAX) < HTTP_PATH_MAX, "a path without an end");
        must(strnlen(request.host, HTTP_HOST_MAX) < HTTP_HOST_MAX, "a host without an end");
        http_host_is_plain(request.host);
    } else if (r == HTTP_E_MORE) {
        must(size < HTTP_HEAD_MAX, "more than the longest");
    } else {
        must(has_line(r), "a status without a line");
    }
    for (size_t part = piece; part < size; part += piece) {
        int before = parse_first(data, part, &earlier);

        if (before == HTTP_E_MORE)
            continue;
        /* what is no text may stand behind an end */
        must(before == r || r == 400, "another verdict by what came behind");
        must(before || r || !strcmp(request.path, earlier.path), "another path");
        return 0;
    }
    return 0;
}
