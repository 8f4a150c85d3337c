/* takeover_away.c - clients of the commd before this one that have not been heard yet: who of them
 * has left groups and could tell nobody but the board.
 *
 * Who wakes us: a timer, as long as there are such clients; and the end of one of them. */
#include "daemon/takeover.h"

struct unheard_leave {
    unsigned slot;
    uint64_t group;
    uint32_t ops;
};

/* Who has left groups of which the core believes that it is in them? Of clients that are unheard.
 */
struct parting_look {
    struct daemon *d;
    unsigned only;                  /* a slot; CORE_NOBODY: all */
    uint8_t *in;                    /* owned: by slot; is the client in a group? */
    bool failed;                    /* no memory: not all was looked at */
    struct unheard_leave *partings; /* owned */
    unsigned n;
};

static void look_fini(struct parting_look *look)
{
    free(look->in);
    free(look->partings);
}

static bool looks_at(const struct parting_look *look, unsigned slot)
{
    if (slot >= look->d->nslots)
        return false;
    return look->d->kept[slot].unheard && (look->only == CORE_NOBODY || look->only == slot);
}

static bool look_at_group(void *arg, const struct core_group_view *view)
{
    struct parting_look *look = arg;
    const struct board_entry *entry = view->id ? boards_find(&look->d->boards, view->id) : NULL;
    unsigned rank, slot, local = 0, from = 0;
    struct unheard_leave *more;
    uint32_t req;

    for (unsigned i = 0;
         view->id && core_group_local(look->d->core, view->id, i, &rank, &slot, &req);
         i++) { /* one that has not opened has no board */
        if (rank < from)
            local = from = 0; /* they need not be in order */
        for (; from < rank; from++)
            local += view->members[from].node == view->me;
        if (!looks_at(look, slot))
            continue;
        if (!entry || !board_rank_left(entry->ctl, local)) {
            look->in[slot] = 1;
            continue;
        }
        more = realloc(look->partings, (look->n + 1) * sizeof(*more));
        if (!more) {
            look->failed = true;
            return false;
        }
        look->partings = more;
        more[look->n++] = (struct unheard_leave){slot, view->id, board_rank_ops(entry->ctl, local)};
    }
    return true;
}

/* False: no memory. */
static bool end_what_was_left(struct parting_look *look, struct daemon *d, unsigned only)
{
    *look = (struct parting_look){.d = d, .only = only, .in = calloc(d->nslots, 1)};
    if (!look->in)
        return false;
    core_group_each(d->core, look_at_group, look);
    for (unsigned i = 0; i < look->n; i++) {
        const struct unheard_leave *parting = &look->partings[i];
        struct msg leave = {.type = MSG_CLIENT_LEAVE,
                            .client_leave = {.group = parting->group, .ops = parting->ops}};
        struct core_event event = {.type = CORE_CLIENT_MSG, .client = parting->slot, .msg = &leave};

        daemon_dispatch(d, &event);
    }
    return !look->failed;
}

void takeover_farewell(struct daemon *d, unsigned slot)
{
    _cleanup_(look_fini) struct parting_look look = {0};

    if (d->kept[slot].unheard)
        end_what_was_left(&look, d, slot);
}

void takeover_heard(struct daemon *d, unsigned slot)
{
    d->kept[slot].unheard = false;
}

static bool any_unheard(const struct daemon *d)
{
    bool any = false;

    for (unsigned slot = 0; slot < d->nslots && !any; slot++)
        any = d->kept[slot].unheard;
    return any;
}

/* It would lose that. commd-gpu may not have said yet which clients have one. */
static bool may_have_session(const struct daemon *d, unsigned slot)
{
    struct core_client_view client;
    struct core_gpu_view gpu;
    unsigned at = slot;

    core_gpu(d->core, &gpu);
    return gpu.state == CORE_ENGINE_STARTING ||
           (core_client_scan(d->core, &at, &client) && client.client == slot && client.gpu);
}

/* A process may leave its groups and close its connection when the old commd is about to die: then
 * it never comes back. Who is away, in no group and without a session at commd-gpu ends: if it
 * comes back it is a new client. */
void takeover_look_away(evutil_socket_t fd, short what, void *arg)
{
    _cleanup_(look_fini) struct parting_look look = {0};
    struct daemon *d = arg;

    if (!any_unheard(d)) {
        event_del(d->away_timer);
        return;
    }
    if (!end_what_was_left(&look, d, CORE_NOBODY))
        return; /* the next look */
    for (unsigned slot = 0; slot < d->nslots; slot++) {
        struct core_event gone = {.type = CORE_CLIENT_CLOSED,
                                  .client = slot,
                                  .text = "it is in no group since commd was restarted"};

        if (look.in[slot] || !listener_is_away(d->listener, slot) || may_have_session(d, slot))
            continue;
        listener_close(d->listener, slot);
        apply_client_gone(d, slot);
        daemon_dispatch(d, &gone);
    }
}
