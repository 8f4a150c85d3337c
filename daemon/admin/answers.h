/* answers.h - an answer to commctl while it is made: see answers.c. */
#ifndef COMMD_ANSWERS_H
#define COMMD_ANSWERS_H

#include "daemon/admin/table.h"
#include "daemon/core/core.h"

struct daemon;

struct answer {
    struct daemon *d;
    uint32_t uid;      /* who asks */
    uint64_t until_us; /* when the turn ends */
    struct core_scan scan;
    unsigned slot; /* of clients, where a scan of them is */
    struct table table;
    char unwell[MSG_TEXT_MAX]; /* "" when all is well */
};

/* Returns true when @a is done, or failed; else it wants to be called again. */
typedef bool answer_fill_fn(struct answer *a);

/* The function that answers @verb, NULL: there is none. */
answer_fill_fn *answer_fill(const char *verb);
/* The answer where there is none. */
void answer_unknown(struct answer *a, const char *verb);
/* Adds to what is not well. */
void answer_unwell(struct answer *a, const char *fmt, ...) _printf_(2, 3);

#endif
