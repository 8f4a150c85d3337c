/* http_request.c - the head of a request: the part of RFC 9112 that a read-only server needs. Pure.
 * What such a server does not need is refused and not skipped: a body, a header line that goes on
 * in the next line, two hosts. */
#include "daemon/http/http_request.h"

#include <arpa/inet.h>
#include <strings.h>

struct span {
    const char *at;
    size_t len;
};

/* In any case of letters, as names of headers are. */
static bool span_is(const struct span *span, const char *text)
{
    return span->len == strlen(text) && strncasecmp(span->at, text, span->len) == 0;
}

/* Takes the next line, without its end. False: no whole line is there. */
static bool next_line(struct span *rest, struct span *ret_line)
{
    const char *end = memchr(rest->at, '\n', rest->len);

    if (!end)
        return false;
    *ret_line = (struct span){rest->at, (size_t)(end - rest->at)};
    rest->len -= ret_line->len + 1;
    rest->at = end + 1;
    if (ret_line->len && ret_line->at[ret_line->len - 1] == '\r')
        ret_line->len--;
    return true;
}

/* Takes the text up to the next space, and the space. */
static struct span next_word(struct span *rest)
{
    const char *space = memchr(rest->at, ' ', rest->len);
    struct span word = {rest->at, space ? (size_t)(space - rest->at) : rest->len};

    rest->at += word.len + (space != NULL);
    rest->len -= word.len + (space != NULL);
    return word;
}

static bool is_token(const struct span *span)
{
    for (size_t i = 0; i < span->len; i++) {
        char c = span->at[i];

        if (c <= ' ' || c == 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c))
            return false;
    }
    return span->len > 0;
}

/* "HTTP/1.1" and "HTTP/1.0"; 0, or the status. */
static int check_version(const struct span *version, bool *ret_needs_host)
{
    if (version->len != 8 || memcmp(version->at, "HTTP/", 5))
        return 400;
    *ret_needs_host = version->at[7] == '1';
    return memcmp(version->at + 5, "1.", 2) == 0 && strchr("01", version->at[7]) ? 0 : 505;
}

static int parse_first(struct span line, struct http_request *request, bool *ret_needs_host)
{
    struct span method = next_word(&line), target = next_word(&line), version = line;
    const char *query;
    int r;

    if (!is_token(&method) || !target.len)
        return 400;
    if (target.len >= HTTP_TARGET_MAX)
        return 414;
    r = check_version(&version, ret_needs_host);
    if (r)
        return r;
    request->head = method.len == 4 && memcmp(method.at, "HEAD", 4) == 0;
    if (!request->head && (method.len != 3 || memcmp(method.at, "GET", 3)))
        return 405;
    if (target.at[0] != '/')
        return 400;
    query = memchr(target.at, '?', target.len);
    if (query)
        target.len = (size_t)(query - target.at);
    if (target.len < HTTP_PATH_MAX)
        memcpy(request->path, target.at, target.len);
    return 0;
}

static int parse_header(struct span line, struct http_request *request)
{
    const char *colon = memchr(line.at, ':', line.len);
    struct span name = {line.at, colon ? (size_t)(colon - line.at) : 0}, value;

    if (!is_token(&name))
        return 400;
    value = (struct span){colon + 1, line.len - name.len - 1};
    while (value.len && strchr(" \t", value.at[0])) {
        value.at++;
        value.len--;
    }
    while (value.len && strchr(" \t", value.at[value.len - 1]))
        value.len--;
    if (span_is(&name, "Transfer-Encoding") ||
        (span_is(&name, "Content-Length") && !span_is(&value, "0")))
        return 413;
    if (!span_is(&name, "Host"))
        return 0;
    if (request->host[0] || !value.len || value.len >= HTTP_HOST_MAX)
        return 400;
    memcpy(request->host, value.at, value.len);
    return 0;
}

static bool is_text_of_head(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if ((c < ' ' && !strchr("\t\r\n", c)) || c == 0 || c == 0x7f)
            return false;
    }
    return true;
}

int http_request_parse(const char *text, size_t len, struct http_request *ret_request)
{
    struct span rest = {text, MIN(len, (size_t)HTTP_HEAD_MAX)}, line;
    struct http_request request = {0};
    bool needs_host = false;
    int r;

    if (!is_text_of_head(rest.at, rest.len))
        return 400; /* TLS, for one */
    if (!next_line(&rest, &line))
        return len < HTTP_HEAD_MAX ? HTTP_E_MORE : 431;
    r = parse_first(line, &request, &needs_host);
    while (!r) {
        if (!next_line(&rest, &line))
            return len < HTTP_HEAD_MAX ? HTTP_E_MORE : 431;
        if (!line.len)
            break;
        r = parse_header(line, &request);
    }
    if (!r && needs_host && !request.host[0])
        r = 400;
    if (!r)
        *ret_request = request;
    return r;
}

bool http_host_is_plain(const char *host)
{
    char bare[HTTP_HOST_MAX];
    unsigned char bytes[sizeof(struct in6_addr)];
    size_t len = strcspn(host, ":");

    if (!host[0])
        return true;
    if (host[0] == '[') {
        len = strcspn(host + 1, "]");
        memcpy(bare, host + 1, len);
        bare[len] = '\0';
        return host[1 + len] == ']' && inet_pton(AF_INET6, bare, bytes) == 1;
    }
    memcpy(bare, host, len);
    bare[len] = '\0';
    return strcasecmp(bare, "localhost") == 0 || inet_pton(AF_INET, bare, bytes) == 1;
}
