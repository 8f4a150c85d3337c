/* sim_recover.c - clients that ask for the next epoch of their group, in the simulator, and what
 * must hold of it.
 *
 *   line       a group that follows another one is one epoch later, and its members are those of
 *              the one before, each at most once, and new processes
 *   policy     as all its ranks asked: dense ranks in the old order, or seats; not fewer than the
 *              least; fewer than the seats only after the time for that
 *   missing    a rank of the epoch before is left out only if it ended, or a fault hit its node
 *   once       a process is told of one group at most that follows a group
 *
 * That all nodes agree on it, and each request is answered in time: sim_check.c. */
#include "tests/sim/sim_internal.h"

uint32_t recover_was(const struct core_group_view *view, unsigned rank)
{
    return view->members[rank].was;
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct join *newest(const struct handle *handle_, const char *name)
{
    struct handle *handle = (struct handle *)handle_;

    for (unsigned i = handle->njoins; i-- > 0;)
        if (handle->joins[i].group && !handle->joins[i].left &&
            !strcmp(handle->joins[i].name, name))
            return &handle->joins[i];
    return NULL;
}

uint64_t sim_client_in(const struct sim *sim, unsigned client, const char *name, unsigned *ret_rank,
                       unsigned *ret_size)
{
    const struct handle *handle = &sim->handles[client];
    const struct join *join = handle->alive ? newest(handle, name) : NULL;

    *ret_rank = join ? join->rank : 0;
    *ret_size = join ? join->size : 0;
    return join ? join->group : 0;
}

bool sim_client_stray(const struct sim *sim, unsigned client, const char *name)
{
    const struct join *join = newest(&sim->handles[client], name);

    return join && join->unknown;
}

enum sim_answer sim_client_answer(const struct sim *sim, unsigned client, enum cause *ret_cause)
{
    const struct handle *handle = &sim->handles[client];
    const struct join *join = handle->njoins ? &handle->joins[handle->njoins - 1] : NULL;

    *ret_cause = join ? join->cause : CAUSE_NONE;
    if (!join || !join->answers)
        return SIM_WAITS;
    return join->group ? SIM_GRANTED : SIM_REFUSED;
}

/* Its program has given up an older request for the same, and asks again: that one gets no answer.
 */
static void replace(struct handle *handle, const struct join *by)
{
    for (unsigned i = 0; i < handle->njoins; i++) {
        struct join *join = &handle->joins[i];

        if (!join->answers && join->how.policy != SIM_JOIN && join->follows == by->follows &&
            !strcmp(join->name, by->name))
            join->answers = 1;
    }
}

static const char *const words[] = {"joins", "shrinks", "waits in", "rejoins"};

void sim_recover(struct sim *sim, unsigned client, const char *name, const char *meet,
                 const struct sim_recovery *how)
{
    struct handle *handle = &sim->handles[client];
    const struct join *old = newest(handle, name);
    struct join *join = &handle->joins[handle->njoins];

    if (!handle->alive || handle->njoins == ARRAY_LEN(handle->joins) ||
        (how->policy != SIM_REJOIN && !old))
        return;
    *join = (struct join){.req = handle->njoins + 1,
                          .rank = how->policy == SIM_REJOIN ? how->rank : 0,
                          .size = how->policy == SIM_SHRINK ? 1 : how->size,
                          .at = sim->now,
                          .first_at = sim->now,
                          .limit = how->limit_ms,
                          .how = *how,
                          .follows = how->policy == SIM_REJOIN ? 0 : old->group};
    text_copy(join->name, sizeof(join->name), meet ? meet : name);
    replace(handle, join);
    handle->njoins++;
    sim_note(sim, "%s: pid %u %s %s", sim_node_name(sim, handle->node), handle->pid,
             words[how->policy], join->name);
    sim_send_join(sim, client, join);
}

void recover_stray(struct sim *sim, const struct handle *handle, uint64_t follows,
                   struct msg_client_join *ret, uint32_t *ret_gone)
{
    const struct fact *fact = check_fact(sim, follows);
    const struct join *old = NULL;

    for (unsigned i = 0; i < handle->njoins; i++)
        if (handle->joins[i].group == follows && handle->joins[i].unknown)
            old = &handle->joins[i];
    if (!old)
        return;
    ret->was_rank = old->rank;
    ret->was_size = old->size;
    ret->was_epoch = fact->epoch;
    ret->was_nodes = fact->nnodes;
    ret->gone = ret_gone;
    for (unsigned i = 0; i < fact->size; i++)
        if (i != old->rank && fact->nodes[fact->members[i].node] == handle->node &&
            check_ended(sim, follows, i))
            ret_gone[ret->ngone++] = i;
}

void recover_died(struct sim *sim, const struct handle *dead)
{
    for (unsigned i = 0; i < sim->nhandles; i++) {
        const struct handle *handle = &sim->handles[i];

        for (unsigned j = 0; handle->alive && handle->node == dead->node && j < handle->njoins; j++)
            if (handle->joins[j].follows && !handle->joins[j].answers)
                for (unsigned k = 0; k < handle->njoins; k++)
                    if (handle->joins[k].group == handle->joins[j].follows &&
                        handle->joins[k].unknown && sim->nodes[handle->node].alive)
                        sim_send_join(sim, i, &handle->joins[j]);
    }
}

/* libcommd leaves the old group when the new one stands. */
void recover_event(struct sim *sim, const struct ev *ev)
{
    struct handle *handle = &sim->handles[ev->a];
    struct msg msg = {.type = MSG_CLIENT_LEAVE};

    for (unsigned i = 0; handle->alive && i < handle->njoins; i++) {
        struct join *join = &handle->joins[i];

        if (join->group != ev->arg || join->left)
            continue;
        join->left = true;
        msg.client_leave.group = join->group;
        msg.client_leave.ops = join->ops;
        sim_say(sim, ev->a, &msg);
        return;
    }
}

/* ---- what must hold -------------------------------------------------------------------------- */

static struct handle *by_pid(struct sim *sim, uint32_t pid)
{
    for (unsigned i = 0; i < sim->nhandles; i++)
        if (sim->handles[i].pid == pid)
            return &sim->handles[i];
    sim_fail(sim, "pid %u was never there", pid);
}

/* What it asked for when it waits for this group; NULL: it does not wait any more. */
static const struct join *asked(const struct handle *handle, const struct core_group_view *view)
{
    for (unsigned i = handle->njoins; i-- > 0;)
        if (!handle->joins[i].answers && !strcmp(handle->joins[i].name, view->name))
            return &handle->joins[i];
    return NULL;
}

/* What one asked for who was in the group before, and asks still; NULL: all gave up meanwhile. */
static const struct join *first_asked(struct sim *sim, const struct core_group_view *view)
{
    const struct join *join = NULL;

    for (unsigned i = 0; i < view->size && !join; i++)
        if (recover_was(view, i))
            join = asked(by_pid(sim, view->members[i].pid), view);
    return join;
}

/* How many seats were wanted; UINT32_MAX: as many as are left. */
static unsigned seats_of(const struct join *join, const struct fact *old)
{
    if (!join || join->how.policy == SIM_SHRINK)
        return UINT32_MAX;
    return join->how.size ? join->how.size : old->size;
}

/* May others think that this node is lost? Also if its commd, or theirs, or their link, was away
 * when engines lost each other. */
static bool hit(const struct sim *sim, unsigned node)
{
    bool killed = sim->oracle.reset, apart = false;

    for (unsigned i = 0; i < sim->options.nodes; i++) {
        killed |= sim->nodes[i].killed_at != 0;
        apart |= sim->oracle.engine_fault[i];
    }
    return sim->oracle.node_fault[node] || (killed && apart);
}

/* Whoever is not in it has ended, or others may have lost its node, or it has no seat. */
static void check_left_out(struct sim *sim, const struct core_group_view *view,
                           const struct fact *old, const bool *in)
{
    unsigned seats = seats_of(first_asked(sim, view), old);

    for (unsigned rank = 0; rank < MIN(old->size, seats); rank++) {
        unsigned node = old->nodes[old->members[rank].node];
        struct join *join;

        check_member(sim, old->id, rank, &join);
        if (!in[rank] && join && !check_ended(sim, old->id, rank) && !hit(sim, node))
            sim_fail(sim, "group \"%s\" goes on as epoch %llu without rank %u, which is there",
                     view->name, (unsigned long long)view->epoch, rank);
    }
}

static void check_line(struct sim *sim, const struct core_group_view *view, const struct fact *old)
{
    bool in[SIM_RANKS] = {false};
    unsigned kept = 0;

    if (view->epoch != old->epoch + 1)
        sim_fail(sim, "epoch %llu follows epoch %llu", (unsigned long long)view->epoch,
                 (unsigned long long)old->epoch);
    for (unsigned i = 0; i < view->size; i++) {
        uint32_t was = recover_was(view, i), pid = view->members[i].pid;

        for (unsigned j = 0; j < old->size; j++)
            if (old->members[j].pid == pid && was != j + 1)
                sim_fail(sim, "rank %u, pid %u, was rank %u, not %d", i, pid, j, (int)was - 1);
        if (!was)
            continue;
        if (was > old->size || old->members[was - 1].pid != pid || in[was - 1])
            sim_fail(sim, "rank %u, pid %u, was not rank %u of the epoch before, or twice", i, pid,
                     was - 1);
        in[was - 1] = true;
        kept++;
    }
    if (!kept)
        sim_fail(sim, "nobody of the epoch before is in group \"%s\"", view->name);
    check_left_out(sim, view, old, in);
}

static void check_shape(struct sim *sim, const struct core_group_view *view, unsigned seats)
{
    uint32_t last = 0;

    for (unsigned i = 0; i < view->size; i++) {
        uint32_t was = recover_was(view, i);

        if (!was)
            continue;
        if (was <= last)
            sim_fail(sim, "ranks are not in the order of the epoch before");
        if (view->size == seats && was != i + 1)
            sim_fail(sim, "old rank %u does not keep its number, it is %u", was - 1, i);
        last = was;
    }
}

/* Had anybody waited enough, if only one that has died since it said so? */
static bool one_has_waited(const struct sim *sim, uint64_t follows)
{
    for (unsigned i = 0; i < sim->nhandles; i++)
        for (unsigned j = 0; j < sim->handles[i].njoins; j++) {
            const struct join *join = &sim->handles[i].joins[j];

            if (join->follows == follows && join->how.wait_ms &&
                sim->now >= join->first_at + join->how.wait_ms)
                return true;
        }
    return false;
}

static void check_policy(struct sim *sim, const struct core_group_view *view,
                         const struct fact *old)
{
    const struct join *first = first_asked(sim, view);
    unsigned seats = seats_of(first, old);
    bool enough = one_has_waited(sim, view->follows);

    if (!first)
        return;
    for (unsigned i = 0; i < view->size; i++) {
        const struct handle *handle = by_pid(sim, view->members[i].pid);
        const struct join *join = asked(handle, view);
        enum sim_policy policy;

        if (!join) {       /* it gave up meanwhile: the group loses it */
            enough = true; /* it may have been the one that had waited so long */
            continue;
        }
        policy = join->how.policy;
        if (policy == SIM_JOIN || (policy == SIM_REJOIN) != !recover_was(view, i))
            sim_fail(sim, "pid %u is in a group that it did not ask for", handle->pid);
        if (policy == SIM_REJOIN)
            continue;
        if (join->follows != view->follows)
            sim_fail(sim, "pid %u follows another group than it asked for", handle->pid);
        if (first->how.policy != policy || first->how.least != join->how.least)
            sim_fail(sim, "pid %u is in a group with others that asked for another policy",
                     handle->pid);
    }
    if (view->size < first->how.least)
        sim_fail(sim, "%u ranks go on, at least %u were wanted", view->size, first->how.least);
    if (first->how.policy == SIM_SHRINK) {
        for (unsigned i = 0; i < view->size; i++)
            if (!recover_was(view, i))
                sim_fail(sim, "a new process is in a group that shrinks");
    } else if (view->size > seats || (view->size < seats && !enough)) {
        sim_fail(sim, "%u of %u seats are taken, and the group goes on", view->size, seats);
    }
    check_shape(sim, view, seats);
}

void recover_opened(struct sim *sim, unsigned node, const struct core_group_view *view,
                    const struct fact *fact, bool first)
{
    const struct fact *old = view->follows ? check_fact(sim, view->follows) : NULL;

    if (fact->epoch != view->epoch || fact->follows != view->follows)
        sim_fail(sim, "node %s has another epoch of group \"%s\" than the first",
                 sim_node_name(sim, node), view->name);
    for (unsigned i = 0; i < view->size; i++)
        if (fact->was[i] != recover_was(view, i))
            sim_fail(sim, "node %s has other old ranks of group \"%s\" than the first",
                     sim_node_name(sim, node), view->name);
    if (!view->follows)
        return;
    if (!old)
        sim_fail(sim, "node %s opens a group that follows one that never was",
                 sim_node_name(sim, node));
    if (!first)
        return;
    check_line(sim, view, old);
    check_policy(sim, view, old);
}

void recover_told(struct sim *sim, struct handle *handle, struct join *join,
                  const struct core_group_view *view, unsigned rank)
{
    if (join->how.policy == SIM_JOIN && view->follows)
        sim_fail(sim, "pid %u joined, and is in a group that follows another one", handle->pid);
    if (join->how.policy == SIM_JOIN)
        return;
    if (!view->follows || (join->follows && join->follows != view->follows))
        sim_fail(sim, "pid %u is in a group that does not follow its own", handle->pid);
    for (unsigned i = 0; i < handle->njoins; i++)
        if (join->follows && &handle->joins[i] != join && handle->joins[i].group &&
            handle->joins[i].follows == join->follows)
            sim_fail(sim, "pid %u is in two groups that follow the same one", handle->pid);
    join->rank = rank;
    join->size = view->size;
    sim->recovered++;
    sim_note(sim, "%s: pid %u is rank %u of %u of epoch %llu", sim_node_name(sim, handle->node),
             handle->pid, rank, view->size, (unsigned long long)view->epoch);
    if (join->follows)
        sim_at(sim, sim_random(sim, STREAM_NODE, 20),
               (struct ev){.type = EV_LEAVE_OLD,
                           .a = (unsigned)(handle - sim->handles),
                           .arg = join->follows});
}

bool sim_went_on(const struct sim *sim, uint64_t group)
{
    for (size_t i = 0; i < sim->nfacts; i++)
        if (sim->facts[i].follows == group)
            return true;
    return false;
}

/* It gave up when the others had agreed already, or left the group while it asked. */
static bool was_late(const struct handle *handle, uint64_t follows)
{
    for (unsigned i = 0; i < handle->njoins; i++)
        if ((handle->joins[i].follows == follows && handle->joins[i].cause == CAUSE_TIMEOUT) ||
            (handle->joins[i].group == follows && handle->joins[i].left))
            return true;
    return false;
}

/* A group that follows it opened and this process never heard of it: without it, which was judged
 * then, or with it, and it had given up, or its node withdrew. */
static bool left_behind(struct sim *sim, const struct handle *handle, uint64_t follows)
{
    for (size_t i = 0; i < sim->nfacts; i++) {
        bool told = false;

        for (unsigned j = 0; j < handle->njoins; j++)
            told |= handle->joins[j].group == sim->facts[i].id && !handle->joins[j].left;
        if (sim->facts[i].follows == follows && !told)
            return true;
    }
    return false;
}

/* Who is told that it is gone was left behind by the others. */
void recover_refused(struct sim *sim, const struct handle *handle, const struct join *join,
                     const char *text)
{
    if (join->how.policy == SIM_JOIN || join->cause != CAUSE_RANK_LOST)
        return;
    if (strstr(text, "new process") && !was_late(handle, join->follows) &&
        !left_behind(sim, handle, join->follows))
        sim_fail(sim, "pid %u is told that it is gone, and it is not: %s", handle->pid, text);
}
