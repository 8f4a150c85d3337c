/* arena_link.c - clients' messages about arenas, and which client is given which arena.
 *
 * A client is given an arena only if a group on this node has the client and the arena's owner as
 * live members, and both are charged to one user. The question names the group and the owner's
 * rank. In every other case the answer is that there is no such arena. To ask in vain is no breach
 * of the protocol: the owner may have left, or freed the arena, in the meantime. */
#include <stdio.h>

#include "daemon/daemon.h"

/* Finds the client that is @rank of the group. False: it is not, or @slot is no live member, too.
 */
static bool fellow(struct daemon *d, uint64_t group, unsigned slot, unsigned rank,
                   unsigned *ret_slot)
{
    unsigned member_rank, member_slot;
    bool asker = false, owner = false;
    uint32_t req;

    for (unsigned i = 0; core_group_local(d->core, group, i, &member_rank, &member_slot, &req);
         i++) {
        asker |= member_slot == slot;
        if (member_rank == rank) {
            owner = true;
            *ret_slot = member_slot;
        }
    }
    return asker && owner;
}

static void answer(struct daemon *d, unsigned slot, uint32_t req, enum cause cause,
                   const char *text, int fd)
{
    struct msg msg = {.type = MSG_ARENA_ANSWER};

    msg.arena_answer.req = req;
    msg.arena_answer.cause = cause;
    snprintf(msg.arena_answer.text, sizeof(msg.arena_answer.text), "%s", text);
    listener_send(d->listener, slot, &msg, &fd, fd >= 0 ? 1 : 0);
}

static void arena_taken(struct daemon *d, unsigned slot, uint32_t payer,
                        const struct msg_arena_add *msg)
{
    int fd = listener_take_fd(d->listener, slot);
    char why[MSG_TEXT_MAX] = "";
    enum cause cause = arenas_add(&d->arenas, slot, payer, msg, &fd, why, sizeof(why));

    closer_fd(d->closer, payer, fd);
    if (msg->req)
        answer(d, slot, msg->req, cause, why, -1);
}

static void arena_hand_over(struct daemon *d, unsigned slot, uint32_t payer,
                            const struct msg_arena_ask *msg)
{
    unsigned owner = 0;
    int fd = -1;

    if (fellow(d, msg->group, slot, msg->rank, &owner))
        fd = arenas_fd(&d->arenas, owner, payer, msg->arena);
    answer(d, slot, msg->req, fd < 0 ? CAUSE_INVALID : CAUSE_NONE,
           fd < 0 ? "that member has no such arena" : "", fd);
}

void arena_msg(struct daemon *d, unsigned slot, uint32_t payer, const struct msg *msg)
{
    if (msg->type == MSG_ARENA_ADD)
        arena_taken(d, slot, payer, &msg->arena_add);
    else if (msg->type == MSG_ARENA_DEL)
        arenas_del(&d->arenas, slot, msg->arena_del.arena);
    else
        arena_hand_over(d, slot, payer, &msg->arena_ask);
}
