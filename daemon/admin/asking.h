/* asking.h - how many questions about ranks may be under way: of a client here, and of another
 * node, in whose name it asks. A question is under way until its work has ended, on all nodes,
 * whether its asker waits for it or not. */
#ifndef COMMD_ASKING_H
#define COMMD_ASKING_H

#include "daemon/core/share.h"

enum { ASKING_MAX = 16, ASKING_MAX_USER = 4, ASKING_MAX_ROOT = 256 };

/* What is under way already. */
struct asking {
    unsigned own;       /* of this user; of another node: from all nodes */
    unsigned own_there; /* of them those from this node */
    unsigned users;     /* of all users but root; of another node: from there */
    unsigned root;      /* of root, from this node */
};

/* Of users here: root and our own user are always heard. */
static inline bool asking_here(const struct asking *asking)
{
    return asking->own < share_of(ASKING_MAX, ASKING_MAX_USER, asking->users - asking->own);
}

/* Of another node, which says in whose name; what users ask keeps root from nothing. */
static inline bool asking_from(const struct asking *asking, bool root)
{
    if (root)
        return asking->root < ASKING_MAX_ROOT;
    return asking->own < 2 * ASKING_MAX_USER && asking->own_there < ASKING_MAX_USER &&
           asking->users < ASKING_MAX;
}

#endif
