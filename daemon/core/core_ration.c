/* core_ration.c - how many joins of one user go out to other nodes.
 *
 * A join makes links carry messages: to its home, back, to the nodes of its group, and all that
 * follows from its end. All users share these links, and the nodes at their other ends. So in each
 * window of RATION_MS a user may have half of what the others leave of CORE_RATION asked, and
 * a few in any case. What is beyond that is held here, in the order in which it came, and
 * goes out in the next windows: the user's joins take longer, and nobody else notices.
 *
 * A user's account is kept until the window ends, also if all its clients are gone by then.
 *
 * Who wakes me: join_run(), for each join that is to be asked, and the end of the window while
 * joins are held. The time limit of a join goes on while it is held. */
#include "daemon/core/core_internal.h"

enum { RATION_MS = 250, RATION_LEAST = 128 /* part of all, in any case */ };

bool ration_take(struct core *core, struct member *member)
{
    struct ration *ration = &core->ration;
    struct user *user = user_get(core, member->payer, false);
    unsigned others = ration->joins - user->joins, least = MAX(ration->limit / RATION_LEAST, 1u);
    uint64_t may = share_of(ration->limit, ration->limit / 2, others);

    assert(member->state == MEMBER_ASKING && list_is_off(&member->todo));
    if (core->config.nnodes == 1 || member->uid == CORE_GPU_UID)
        return true;
    if (!ration->joins)
        ration->end_ms = core->now + RATION_MS;
    if (user->joins >= MAX(may, (uint64_t)least)) {
        if (list_empty(&user->holding))
            list_add(&ration->holding, &user->holding);
        list_add(&user->held, &member->todo);
        return false;
    }
    if (!user->joins++)
        list_add(&ration->asking, &user->asking);
    ration->joins++;
    assert(user->joins <= ration->joins);
    return true;
}

/* The last user comes first in the next window: with many of them the first ones get most. */
static void turn_round(struct list *users)
{
    struct list *last = users->prev;

    if (list_empty(users))
        return;
    list_del(last);
    last->prev = users;
    last->next = users->next;
    users->next->prev = last;
    users->next = last;
}

void ration_tick(struct core *core)
{
    struct ration *ration = &core->ration;
    struct list *waits;
    struct user *user;

    if (!ration->joins || core->now < ration->end_ms)
        return;
    ration->joins = 0;
    while ((user = list_first(&ration->asking, struct user, asking))) {
        assert(user->joins);
        list_del(&user->asking);
        user->joins = 0;
        user_put(core, user);
    }
    assert(list_empty(&ration->asking));
    turn_round(&ration->holding);
    while ((user = list_first(&ration->holding, struct user, holding))) {
        list_del(&user->holding);
        while (!list_empty(&user->held)) {
            waits = user->held.next;
            list_del(waits);
            list_add(&core->todo, waits);
        }
    }
}

uint64_t ration_deadline(const struct core *core)
{
    return list_empty(&core->ration.holding) ? CORE_NEVER : core->ration.end_ms;
}
