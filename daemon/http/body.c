/* body.c - a growing text, with the two ways of quoting that its readers need. An error sticks, so
 * that the code that writes reads like what is written. */
#include "daemon/http/body.h"

#include <stdarg.h>
#include <stdio.h>

struct body *body_new(void)
{
    struct body *body = calloc(1, sizeof(*body));

    if (body)
        body->refs = 1;
    return body;
}

struct body *body_ref(struct body *body)
{
    assert(body->refs);
    body->refs++;
    return body;
}

struct body *body_unref(struct body *body)
{
    assert(!body || body->refs);
    if (body && --body->refs == 0) {
        free(body->data);
        free(body);
    }
    return NULL;
}

static bool body_reserve(struct body *body, size_t more)
{
    size_t room = body->room ? body->room : 4096;
    char *data;

    if (body->error)
        return false;
    if (more > BODY_MAX - body->len) {
        body->error = -E2BIG;
        return false;
    }
    while (room < body->len + more)
        room *= 2;
    if (room == body->room)
        return true;
    data = realloc(body->data, room);
    if (!data) {
        body->error = -ENOMEM;
        return false;
    }
    body->data = data;
    body->room = room;
    return true;
}

static void body_bytes(struct body *body, const char *bytes, size_t len)
{
    if (!body_reserve(body, len))
        return;
    memcpy(body->data + body->len, bytes, len);
    body->len += len;
}

void body_add(struct body *body, const char *fmt, ...)
{
    char line[2048]; /* longer ones are a mistake of ours */
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof(line)) {
        body->error = body->error ? body->error : -E2BIG;
        return;
    }
    body_bytes(body, line, (size_t)n);
}

void body_add_label(struct body *body, const char *text)
{
    while (*text) {
        size_t plain = strcspn(text, "\\\"\n");

        body_bytes(body, text, plain);
        text += plain;
        if (*text)
            body_add(body, "\\%c", *text == '\n' ? 'n' : *text);
        text += *text != '\0';
    }
}

static bool json_escapes(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f || strchr("\"\\<", c);
}

/* "<" too: nothing in it can end a script, wherever somebody pastes it. */
void body_add_json(struct body *body, const char *text)
{
    size_t plain;

    body_bytes(body, "\"", 1);
    while (*text) {
        for (plain = 0; text[plain] && !json_escapes(text[plain]); plain++)
            ;
        body_bytes(body, text, plain);
        text += plain;
        if (*text)
            body_add(body, "\\u%04x", (unsigned char)*text++);
    }
    body_bytes(body, "\"", 1);
}
