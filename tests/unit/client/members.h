/* members.h - a group whose members are threads of this process over ONE mapping of the board, so
 * that a thread sanitizer sees both sides of every access. */
#ifndef COMMD_TESTS_MEMBERS_H
#define COMMD_TESTS_MEMBERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "client/lib/async/async.h"

enum { MEMBERS = 3 };

struct member {
    struct commd_context *ctx; /* of its own: with a progress thread of its own */
    struct commd_group *group;
    unsigned me;
};

/* @m: MEMBERS of them. No daemon takes part. */
struct board_ctl *members_new(struct member *m);
/* Leaves, stops the progress threads, frees. */
void members_free(struct member *m, struct board_ctl *ctl);

#endif
