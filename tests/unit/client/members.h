/* members.h - a group whose members are threads of this process over ONE mapping of the board, so
 * that a thread sanitizer sees both sides of every access. */
#ifndef COMMD_TESTS_MEMBERS_H
#define COMMD_TESTS_MEMBERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/lib/handle.h"

enum { MEMBERS = 3 };

struct member {
    struct commd_context *ctx; /* of its own: with a progress thread of its own */
    struct commd_group *group;
    unsigned me;
};

/* No daemon takes part. */
struct commd_context *member_context_new(void);
/* A group of @n members, at most MEMBERS; that of rank k is in @ctx[k]. */
struct board_ctl *members_group(struct commd_context *const *ctx, unsigned n, uint64_t id,
                                bool one_mapping, struct commd_group **ret_group);
/* Leaves and frees a group that has one mapping for all, but for that. */
void member_leave(struct commd_group *g);

/* The same with a context for each. @m: MEMBERS of them. */
struct board_ctl *members_new(struct member *m);
/* Leaves, stops the progress threads, frees. */
void members_free(struct member *m, struct board_ctl *ctl);

#endif
