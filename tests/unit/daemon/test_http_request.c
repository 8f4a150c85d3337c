/* Heads of requests: which are taken, with which answer the others are refused, and that one which
 * comes byte by byte is understood as one that comes at once. */
#include "daemon/http/http_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static int parse(const char *text, struct http_request *request)
{
    return http_request_parse(text, strlen(text), request);
}

static void what_is_asked_for(void **state)
{
    struct http_request request;

    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &request), 0);
    assert_false(request.head);
    assert_string_equal(request.path, "/");
    assert_string_equal(request.host, "");
    assert_int_equal(parse("HEAD /metrics?a=b HTTP/1.1\r\nX: y\r\nhOST: \t a:1 \r\n\r\n", &request),
                     0);
    assert_true(request.head);
    assert_string_equal(request.path, "/metrics");
    assert_string_equal(request.host, "a:1");
    assert_int_equal(parse("GET /x HTTP/1.1\nHost: h\nContent-Length: 0\n\nmore", &request), 0);
    assert_string_equal(request.path, "/x");
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 400}, /* no host */
        {"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nHost:\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\n folded\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nspace : 1\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\n: 1\r\n\r\n", 400},
        {"\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.0\r\n\r\n", 400},
        {"GET / HTTP/1.0 \r\n\r\n", 400},
        {"GET x HTTP/1.0\r\n\r\n", 400},
        {"GET http://a/ HTTP/1.0\r\n\r\n", 400},
        {"G(T / HTTP/1.0\r\n\r\n", 400},
        {"GET / http/1.0\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n\r\n", 505},
        {"GET / HTTP/1.9\r\n\r\n", 505},
        {"get / HTTP/1.0\r\n\r\n", 405},
        {"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", 405},
        {"OPTIONS * HTTP/1.0\r\n\r\n", 405},
        {"GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\n", 413},
        {"GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", 413},
        {"\x16\x03\x01\x02", 400}, /* TLS */
        {"GET / HTTP/1.0\r\nX: \x7f\r\n\r\n", 400},
    };
    struct http_request request;

    for (unsigned i = 0; i < ARRAY_LEN(cases); i++)
        if (parse(cases[i].text, &request) != cases[i].status)
            fail_msg("%s: %d", cases[i].text, parse(cases[i].text, &request));
    assert_int_equal(http_request_parse("GET / HTTP/1.0\r\nX: \0\r\n\r\n", 23, &request), 400);
}

static void lengths(void **state)
{
    static char text[2 * HTTP_HEAD_MAX];
    struct http_request request;

    snprintf(text, sizeof(text), "GET /%0*d HTTP/1.0\r\n\r\n", HTTP_TARGET_MAX - 1, 0);
    assert_int_equal(parse(text, &request), 414);
    snprintf(text, sizeof(text), "GET /%0*d HTTP/1.0\r\n\r\n", HTTP_TARGET_MAX - 2, 0);
    assert_int_equal(parse(text, &request), 0);
    assert_string_equal(request.path, ""); /* nowhere */
    snprintf(text, sizeof(text), "GET / HTTP/1.0\r\nHost: %0*d\r\n\r\n", HTTP_HOST_MAX, 0);
    assert_int_equal(parse(text, &request), 400);
    memset(text, 'a', sizeof(text));
    assert_int_equal(http_request_parse(text, HTTP_HEAD_MAX - 1, &request), HTTP_E_MORE);
    assert_int_equal(http_request_parse(text, HTTP_HEAD_MAX, &request), 431);
    memcpy(text, "GET / HTTP/1.0\r\nX:", 18);
    assert_int_equal(http_request_parse(text, HTTP_HEAD_MAX - 1, &request), HTTP_E_MORE);
    assert_int_equal(http_request_parse(text, sizeof(text), &request), 431);
}

static void byte_by_byte(void **state)
{
    static const char text[] = "GET /readyz HTTP/1.1\r\nHost: [::1]:80\r\nAccept: */*\r\n\r\n";
    struct http_request request;

    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        char *copy = malloc(len + 1); /* so that a sanitizer sees a look behind the end */

        memcpy(copy, text, len);
        assert_int_equal(http_request_parse(copy, len, &request), HTTP_E_MORE);
        free(copy);
    }
    assert_int_equal(parse(text, &request), 0);
    assert_string_equal(request.path, "/readyz");
    assert_string_equal(request.host, "[::1]:80");
}

static void plain_hosts(void **state)
{
    static const char *const plain[] = {"",          "localhost",     "LocalHost:1", "127.0.0.1",
                                        "10.0.0.1:", "127.0.0.1:999", "[::1]",       "[fd00::1]:1"};
    static const char *const named[] = {"a",
                                        "localhost.example.org",
                                        "127.0.0.1.example.org",
                                        "[",
                                        "[::1",
                                        "[]",
                                        "[::1x]",
                                        "1.2.3",
                                        ":80",
                                        "evil:80",
                                        "localhost@evil"};

    for (unsigned i = 0; i < ARRAY_LEN(plain); i++)
        if (!http_host_is_plain(plain[i]))
            fail_msg("%s is not plain", plain[i]);
    for (unsigned i = 0; i < ARRAY_LEN(named); i++)
        if (http_host_is_plain(named[i]))
            fail_msg("%s is plain", named[i]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_asked_for), cmocka_unit_test(what_is_refused),
        cmocka_unit_test(lengths),           cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(plain_hosts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
