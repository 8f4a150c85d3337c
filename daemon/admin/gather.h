/* gather.h - questions about ranks, answered by all nodes together: MSG_ADMIN "ranks" of a client,
 * and MSG_ASK_RANKS of another node, which is answered for this one alone. */
#ifndef COMMD_GATHER_H
#define COMMD_GATHER_H

#include <sys/queue.h>

#include "daemon/admin/past.h"

struct gather_question;
TAILQ_HEAD(gather_list, gather_question);
struct gather {
    struct gather_list questions; /* owned */
    uint64_t last;                /* number of the last one that we asked others */
    struct past past;
};

int gather_init(struct daemon *d);
void gather_fini(struct daemon *d);
/* A client asks. It is not read from until it has the answer. */
void gather_ask(struct daemon *d, unsigned slot, uint32_t uid, const struct msg_admin *question);
/* The client in @slot is gone, and so is its question. */
void gather_drop(struct daemon *d, unsigned slot);
/* From another node: MSG_ASK_RANKS, MSG_RANKS_HERE. */
void gather_msg(struct daemon *d, unsigned node, const struct msg *msg);

#endif
