/* ranks.h - a list of ranks as people read it: "1,4-6". */
#ifndef COMMD_RANKS_H
#define COMMD_RANKS_H

#include "shm/util/base.h"

struct rank_list {
    char *buf;
    size_t len;           /* of buf, at least 8 */
    unsigned n;           /* ranks so far, also those that do not fit */
    unsigned first, last; /* the range that is not written yet */
    int lowest;           /* the first rank, -1: none */
    bool full;
};

void rank_list_init(struct rank_list *list, char *buf, size_t len);
/* In ascending order. */
void rank_list_add(struct rank_list *list, unsigned rank);
/* Completes the text; "..." stands for what did not fit. */
void rank_list_end(struct rank_list *list);

#endif
