/* asking.h - how many questions about ranks may be under way. A client of this node asks for
 * itself; another node asks for one of its clients. A question is under way until its work has
 * ended on all nodes, also when the asker is gone. */
#ifndef COMMD_ASKING_H
#define COMMD_ASKING_H

#include "daemon/core/share.h"

enum { ASKING_MAX = 16, ASKING_MAX_USER = 4, ASKING_MAX_ROOT = 256 };

/* How many questions are under way already. The asking node is the other node that asks now. */
struct asking {
    unsigned own;       /* of the asking user: of its clients here, or from all other nodes */
    unsigned own_there; /* of the asking user, from the asking node */
    unsigned users;     /* of all users but root: of clients here, or from the asking node */
    unsigned root;      /* of root, from the asking node */
};

/* May a client of this node ask? Root and our own user may always, and do not come here. */
static inline bool asking_here(const struct asking *asking)
{
    return asking->own < share_of(ASKING_MAX, ASKING_MAX_USER, asking->users - asking->own);
}

/* May another node ask? The node says for which user. Users' questions take no room of root's. */
static inline bool asking_from(const struct asking *asking, bool root)
{
    if (root)
        return asking->root < ASKING_MAX_ROOT;
    return asking->own < 2 * ASKING_MAX_USER && asking->own_there < ASKING_MAX_USER &&
           asking->users < ASKING_MAX;
}

#endif
