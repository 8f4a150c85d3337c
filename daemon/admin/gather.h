/* gather.h - questions about ranks and links, answered by all nodes together: MSG_ADMIN "ranks" of
 * a client, and of the page; and MSG_ASK_RANKS of another node, which is answered for this one
 * alone. */
#ifndef COMMD_GATHER_H
#define COMMD_GATHER_H

#include <sys/queue.h>

#include "daemon/admin/past.h"

struct gather_question;
struct listener_client;
struct table;
TAILQ_HEAD(gather_list, gather_question);
struct gather {
    struct gather_list questions; /* owned */
    uint64_t last;                /* number of the last one that we asked others */
    uint64_t spent_us[2];         /* in this turn: on users' questions, on root's */
    struct past past;
};

int gather_init(struct daemon *d);
void gather_fini(struct daemon *d);
/* A client asks. It is not read from until it has the answer. */
void gather_ask(struct daemon *d, unsigned slot, const struct listener_client *client,
                const struct msg_admin *question);
/* The links of all nodes, for the page. @take is called once, in a later turn, and has to empty
 * @links; NULL: there was no memory for them. @arg has to be there until then, or until the loop
 * ends. False: no memory. */
typedef void gather_links_fn(void *arg, struct table *links);
bool gather_links(struct daemon *d, gather_links_fn *take, void *arg);
/* The client in @slot is gone: its question ends, here and on the other nodes. */
void gather_drop(struct daemon *d, unsigned slot);
void gather_node_lost(struct daemon *d, unsigned node);
void gather_turn(struct daemon *d); /* a turn of the loop has ended */
/* From another node: MSG_ASK_RANKS, MSG_RANKS_HERE. */
void gather_msg(struct daemon *d, unsigned node, const struct msg *msg);

#endif
