/* gather.h - questions about ranks and links. All nodes together answer a client (MSG_ADMIN
 * "ranks") and the page of HTTP. This node alone answers another node (MSG_ASK_RANKS). */
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
    uint64_t last;                /* number of the last question that we sent to other nodes */
    uint64_t spent_us[2];         /* time taken in this turn: for users, for root */
    struct past past;
};

int gather_init(struct daemon *d);
void gather_fini(struct daemon *d);
/* A client asks. Nothing more is read from the client until the answer is out. */
void gather_ask(struct daemon *d, unsigned slot, const struct listener_client *client,
                const struct msg_admin *question);
/* Asks for the links of all nodes, for the page. @take is called once, in a later turn. It takes
 * the content of @links and leaves it empty; @links is NULL when memory was short. @arg must live
 * until that call, or until the loop ends. False: no memory. */
typedef void gather_links_fn(void *arg, struct table *links);
bool gather_links(struct daemon *d, gather_links_fn *take, void *arg);
/* The client in @slot is gone: its question ends, here and on the other nodes. */
void gather_drop(struct daemon *d, unsigned slot);
void gather_node_lost(struct daemon *d, unsigned node);
/* A turn of the loop has ended. */
void gather_turn(struct daemon *d);
/* Another node sent MSG_ASK_RANKS or MSG_RANKS_HERE. */
void gather_msg(struct daemon *d, unsigned node, const struct msg *msg);

#endif
