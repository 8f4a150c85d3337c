/* body.h - a growing text, the body of an answer to HTTP. Several clients may be sent one body. */
#ifndef COMMD_BODY_H
#define COMMD_BODY_H

#include "shm/util/base.h"

enum { BODY_MAX = 8 << 20 }; /* 1024 nodes take 0.4 MiB */

struct body {
    char *data; /* owned; not terminated */
    size_t len, room;
    unsigned refs;
    int error; /* the first failure sticks: -ENOMEM, -E2BIG */
};

/* NULL: no memory. */
struct body *body_new(void);
struct body *body_ref(struct body *body);
struct body *body_unref(struct body *body); /* NULL ok; always returns NULL */
void body_add(struct body *body, const char *fmt, ...) _printf_(2, 3);
/* Adds @text as the value of a label in Prometheus' text format, without the quotes around it. */
void body_add_label(struct body *body, const char *text);
/* Adds @text as a string of JSON, with its quotes. */
void body_add_json(struct body *body, const char *text);

#endif
