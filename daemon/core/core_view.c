/* core_view.c - read-only views for the edges: boards, admin tables, tests. Nothing here
 * changes state; pointers in a view are valid until the next core_input(). */
#include "daemon/core/core_internal.h"

enum {
    SCAN_PLACES = 256, /* looked at in one call that finds nothing */
    SHOWN_MAX = 1024,
};

/* A dead group can still be asked for: CLOSE and GONE that are queued are about it. */
static struct group *any_group(const struct core *core, uint64_t id)
{
    const struct list *bucket = &core->by_id[core_mix(id) % HASH_GROUPS];
    struct group *group;

    list_each(group, bucket, hash)
        if (group->id == id)
            return group;
    return NULL;
}

static enum core_group_state view_state(const struct group *group)
{
    if (group->state == GROUP_COMMITTED)
        return CORE_GROUP_COMMITTED;
    if (group->state == GROUP_LEFT)
        return CORE_GROUP_LEFT;
    return group->state == GROUP_OPEN ? CORE_GROUP_OPEN : CORE_GROUP_BROKEN;
}

static void view_group(const struct group *group, struct core_group_view *ret)
{
    assert(group->state != GROUP_FREE && group->members);
    *ret = (struct core_group_view){
        .id = group->id,
        .name = group->name,
        .uid = group->uid,
        .payer = group->payer,
        .state = view_state(group),
        .epoch = group->epoch,
        .net = group->net,
        .gpu = group->gpu,
        .size = group->size,
        .nnodes = group->nnodes,
        .me = group->me,
        .nodes = group->nodes,
        .members = group->members,
        .lost = group->lost,
        .nlocal = group->nlocal,
        .cause = group->cause,
        .revoked = group->revoked,
        .cause_rank = group->cause_rank,
        .cause_text = group->cause_text,
        .missing = "",
        .follows = group->follows,
        .next_epoch = group->next_epoch,
        .seats = "",
    };
}

bool core_group(const struct core *core, uint64_t id, struct core_group_view *ret_view)
{
    const struct group *group = any_group(core, id);

    if (!group)
        return false;
    view_group(group, ret_view);
    return true;
}

enum cause core_rank_fate(const struct core *core, uint64_t id, unsigned rank)
{
    const struct group *group = any_group(core, id);

    if (!group || rank >= group->size)
        return CAUSE_NONE;
    return (enum cause)runs_fate(&core->runs, &group->members[rank])->cause;
}

/* Does @member wait for what @view shows? Survivors of a group, new processes and ranks of a plain
 * join may wait under one name. */
static bool is_waiter_of(const struct member *member, const struct core_group_view *view)
{
    return member->uid == view->uid && member->wish.follows == view->follows &&
           (member->wish.recovery == MSG_RECOVERY_REJOIN) ==
               (view->recovery == MSG_RECOVERY_REJOIN) &&
           !strcmp(member->name, view->name);
}

static unsigned find_joiners(const struct core *core, const struct core_group_view *view,
                             struct core_joiner *ret_joiners, unsigned most)
{
    const struct list *bucket = &core->by_name[text_hash(view->uid, view->name) % HASH_GROUPS];
    const struct member *member;
    unsigned looked = 0, n = 0;

    list_each(member, bucket, by_name) {
        if (looked++ == SHOWN_MAX)
            break;
        if (!is_waiter_of(member, view))
            continue;
        if (n < most)
            ret_joiners[n] = (struct core_joiner){.recovery = member->wish.recovery,
                                                  .follows = member->wish.follows,
                                                  .rank = member->rank,
                                                  .pid = member->pid,
                                                  .client = member->client,
                                                  .since_ms = member->begun_ms};
        n++;
    }
    return n;
}

unsigned core_joiners(const struct core *core, const struct core_group_view *view,
                      struct core_joiner *ret_joiners, unsigned most)
{
    return MIN(find_joiners(core, view, ret_joiners, most), most);
}

static void view_forming(const struct core *core, const struct forming *forming,
                         struct core_group_view *ret)
{
    *ret = (struct core_group_view){
        .name = forming->name,
        .uid = forming->uid,
        .payer = forming->payer,
        .state = CORE_GROUP_JOINING,
        .size = forming->recovery.kind == MSG_RECOVERY_REJOIN ? 0 : forming->size,
        .cause_rank = -1,
        .cause_text = "",
        .missing = core->missing,
        .follows = forming->recovery.follows,
        .recovery = forming->recovery.kind,
        .epoch = forming->recovery.follows ? forming->recovery.epoch + 1 : 0,
        .seats = core->seats,
    };
    if (forming->recovery.kind == MSG_RECOVERY_REJOIN) {
        ret->nlocal = find_joiners(core, ret, NULL, 0);
        ret->missing = "";
    } else {
        for (uint32_t i = 0; i < forming->size; i++)
            ret->nlocal +=
                forming->members[i].join && forming->members[i].node == core->config.self;
        assert(ret->nlocal <= forming->count);
        home_missing(core, forming, core->missing, MSG_TEXT_MAX, &ret->nmissing);
    }
    recover_seats((struct core *)core, forming, core->seats, MSG_TEXT_MAX, &ret->nseats,
                  &ret->comers); /* changes nothing */
}

/* Several local ranks wait for one group: it is shown once, for the first in its bucket. Who fills
 * a bucket with names is looked at no further than SHOWN_MAX. */
static bool shown(const struct core *core, const struct member *member,
                  const struct core_group_view *view, unsigned *ret_count)
{
    const struct list *bucket = &core->by_name[member->key % HASH_GROUPS];
    struct member *other;
    unsigned looked = 0;
    bool first = true;

    *ret_count = 0;
    list_each(other, bucket, by_name) {
        if (looked++ == SHOWN_MAX)
            break;
        if (!is_waiter_of(other, view))
            continue;
        if (first && other != member)
            return false;
        first = false;
        ++*ret_count;
    }
    return !first;
}

/* Linked, and not just unlinked: that is, alive. */
static bool is_listed(const struct list *item)
{
    return item->next && item->next != item;
}

static bool scan_member(const struct core *core, const struct member *member,
                        struct core_group_view *ret_view)
{
    const struct wish *wish = &member->wish;
    unsigned count;

    if ((member->state != MEMBER_ASKING && member->state != MEMBER_EXPIRING) ||
        member->home == (int)core->config.self)
        return false;
    *ret_view = (struct core_group_view){
        .name = member->name,
        .uid = member->uid,
        .payer = member->payer,
        .state = CORE_GROUP_JOINING,
        .size = wish->recovery == MSG_RECOVERY_REJOIN ? 0
                : wish->recovery == MSG_RECOVERY_WAIT ? wish->seats
                                                      : member->size,
        .cause_rank = -1,
        .cause_text = "",
        .missing = "",
        .follows = wish->follows,
        .recovery = wish->recovery,
        .epoch = wish->follows ? wish->was_epoch + 1 : 0,
        .seats = "",
    };
    if (!shown(core, member, ret_view, &count))
        return false;
    assert(count); /* at least itself */
    ret_view->nlocal = count;
    return true;
}

static bool scan_at(const struct core *core, const struct core_scan *scan, const uint32_t *uid,
                    struct core_group_view *ret_view)
{
    const struct forming *forming;
    const struct group *group;
    const struct member *member;

    switch (scan->kind) {
    case 0:
        group = pool_at(&core->groups, scan->at);
        if ((uid && group->uid != *uid) || group->state == GROUP_FREE ||
            group->state == GROUP_LEFT || group->state == GROUP_DEAD)
            return false;
        view_group(group, ret_view);
        return true;
    case 1:
        forming = pool_at(&core->formings, scan->at);
        if ((uid && forming->uid != *uid) || !is_listed(&forming->all) ||
            !recover_shown((struct core *)core, forming)) /* changes nothing */
            return false;
        view_forming(core, forming, ret_view);
        return true;
    default:
        member = pool_at(&core->members, scan->at);
        return (!uid || member->uid == *uid) && scan_member(core, member, ret_view);
    }
}

int core_group_scan(const struct core *core, struct core_scan *scan, const uint32_t *uid,
                    struct core_group_view *ret_view)
{
    const struct pool *const pools[] = {&core->groups, &core->formings, &core->members};
    unsigned looked = 0;

    for (; scan->kind < ARRAY_LEN(pools); scan->kind++, scan->at = 0) {
        while (scan->at < pools[scan->kind]->used) {
            bool found;

            if (looked++ == SCAN_PLACES)
                return CORE_SCAN_MORE;
            found = scan_at(core, scan, uid, ret_view);
            scan->at++;
            if (found)
                return CORE_SCAN_FOUND;
        }
    }
    return CORE_SCAN_END;
}

void core_group_each(const struct core *core, core_group_fn fn, void *arg)
{
    struct core_scan scan = {0};
    struct core_group_view view;
    int r;

    while ((r = core_group_scan(core, &scan, NULL, &view)) != CORE_SCAN_END)
        if (r == CORE_SCAN_FOUND && !fn(arg, &view))
            return;
}

struct pick {
    unsigned left;
    bool found;
    struct core_group_view *view;
};

static bool pick(void *arg, const struct core_group_view *view)
{
    struct pick *pick = arg;

    if (pick->left--)
        return true;
    *pick->view = *view;
    pick->found = true;
    return false;
}

bool core_group_at(const struct core *core, unsigned i, struct core_group_view *ret_view)
{
    struct pick one = {.left = i, .view = ret_view};

    core_group_each(core, pick, &one);
    return one.found;
}

static bool local_member(const struct core *core, uint64_t id, unsigned i, bool waiters,
                         unsigned *ret_rank, unsigned *ret_client, uint32_t *ret_req)
{
    const struct group *group = any_group(core, id);
    struct member *member;

    if (!group)
        return false;
    list_each(member, &group->local, by_group) {
        assert(member->group == group && member->rank < group->size);
        if ((!waiters || member_hears(member)) && i-- == 0) {
            *ret_rank = member->rank;
            *ret_client = member->client;
            *ret_req = member->req;
            return true;
        }
    }
    return false;
}

bool core_group_local(const struct core *core, uint64_t id, unsigned i, unsigned *ret_rank,
                      unsigned *ret_client, uint32_t *ret_req)
{
    return local_member(core, id, i, false, ret_rank, ret_client, ret_req);
}

bool core_group_waiter(const struct core *core, uint64_t id, unsigned i, unsigned *ret_rank,
                       unsigned *ret_client, uint32_t *ret_req)
{
    return local_member(core, id, i, true, ret_rank, ret_client, ret_req);
}

bool core_peer_at(const struct core *core, unsigned node, struct core_peer_view *ret_view)
{
    const struct peer *peer;

    if (node >= core->config.nnodes)
        return false;
    peer = &core->peers[node];
    *ret_view = (struct core_peer_view){
        .name = core_node_name(core, node),
        .state = peer->state,
        .since_ms = peer->since_ms,
        .apart_ms = peer->apart_ms,
        .engine = peer->state == CORE_PEER_SELF ? core->engine.incarnation : peer->engine,
        .last_error = peer->error,
        .draining = peer->state == CORE_PEER_SELF ? core->draining : peer->draining,
        .links = peer->links,
        .losses = peer->losses,
        .traffic = &peer->traffic,
    };
    return true;
}

void core_status(const struct core *core, struct core_status *ret_status)
{
    *ret_status = (struct core_status){
        .engine = core->engine.life.state,
        .engine_resumes = core->engine.resuming && core->engine.life.state == CORE_ENGINE_STARTING,
        .engine_pid = core->engine.life.pid,
        .engine_text = core->engine.life.text,
        .engine_build = core->engine.life.build,
        .engine_waits = renew_waits(core, &core->engine.life),
        .gpu_waits = renew_waits(core, &core->gpu.life),
        .engine_deaths = life_deaths(core, &core->engine.life),
        .gpu_deaths = life_deaths(core, &core->gpu.life),
        .clients = core->nclients,
        .groups = core->groups.live,
        .stopping = core->stopping,
        .draining = core->draining,
    };
    for (unsigned i = 0; i < core->config.nnodes; i++)
        ret_status->nodes_up += peer_usable(core, i);
}

bool core_client_scan(const struct core *core, unsigned *slot, struct core_client_view *ret_view)
{
    for (; *slot < core->client_slots; ++*slot) {
        const struct client *client = &core->clients[*slot];

        if (client->state != CLIENT_READY && client->state != CLIENT_AWAY)
            continue;
        *ret_view = (struct core_client_view){
            .client = *slot,
            .uid = client->uid,
            .pid = client->pid,
            .program = client->program,
            .admin = client->admin,
            .away = client->state == CLIENT_AWAY,
            .gpu = client->gpu_session,
            .groups = client->groups,
            .since_ms = client->since_ms,
        };
        ++*slot;
        return true;
    }
    return false;
}

bool core_client_at(const struct core *core, unsigned i, struct core_client_view *ret_view)
{
    unsigned slot = 0;

    while (core_client_scan(core, &slot, ret_view))
        if (i-- == 0)
            return true;
    return false;
}

const struct core_counts *core_counts(const struct core *core)
{
    return &core->counts;
}

const char *core_group_word(enum core_group_state state)
{
    switch (state) {
    case CORE_GROUP_JOINING:
    case CORE_GROUP_COMMITTED: /* waits for the engines of its nodes: the same to its ranks */
        return "joining";
    case CORE_GROUP_OPEN:
        return "open";
    case CORE_GROUP_BROKEN:
        return "broken";
    case CORE_GROUP_LEFT:
        return "left";
    }
    return "";
}
