/* core_alloc.c - all memory of the core: taken in core_new(), given back in core_free().
 *
 * Tables are sized for the worst case that the limits allow and come from calloc, so the
 * kernel backs a page when it is first used: with the default limits and nothing to do a core
 * holds well below 1 MB. Alone among the core's files this one may allocate; tests/check_rooms.py
 * holds the others to that. */
#include "daemon/core/core_internal.h"

struct core *core_free(struct core *core)
{
    if (!core)
        return NULL;
    free(core->peers);
    free(core->clients);
    free(core->members.items);
    free(core->groups.items);
    free(core->formings.items);
    free(core->users.items);
    free(core->partings.items);
    free(core->strays.items);
    free(core->runs.members);
    free(core->runs.fates);
    free(core->runs.order);
    free(core->joins);
    free(core->queue.acts);
    free(core->queue.text);
    free(core->ids);
    free(core->up);
    free(core->place);
    free(core->group_nodes);
    free(core->forming_nodes);
    free(core->group_confirmed);
    free(core->group_lost);
    free(core->group_held);
    free(core->names);
    free(core->missing);
    free(core->seats);
    free(core->gone);
    free(core->node_names);
    free(core);
    return NULL;
}

static void core_freep(struct core **core)
{
    core_free(*core);
}

static bool table(void *ret_table, size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    memcpy(ret_table, &p, sizeof(p));
    return p;
}

static bool pool(struct pool *pool, uint32_t n, size_t size)
{
    pool->size = size;
    pool->cap = n;
    return table(&pool->items, n, size);
}

static bool tables(struct core *core)
{
    size_t nnodes = core->config.nnodes, groups = core->max_groups;
    struct runs *runs = &core->runs;

    size_t members;

    runs_init(runs, core->config.max_size, core->config.max_members);
    members = (size_t)runs->nblocks << runs->block;
    /* Each line: what one object can add to the queue in one core_input(). */
    core->queue.cap =
        (uint32_t)(9 * core->max_members + /* ask, tell, cancel, fail, gone, logs */
                   24 * groups + /* open, broken, missed, close, sync, held, pause, logs */
                   8 * groups +  /* formings: commit, refusals */
                   16 * nnodes + 6 * core->client_slots + 256);
    core->queue.text_cap = 1 << 20;
    return table(&core->peers, nnodes, sizeof(*core->peers)) &&
           table(&core->clients, core->client_slots + 1, sizeof(*core->clients)) &&
           pool(&core->members, core->max_members, sizeof(struct member)) &&
           pool(&core->groups, core->max_groups, sizeof(struct group)) &&
           pool(&core->formings, core->max_groups, sizeof(struct forming)) &&
           pool(&core->users, core->max_users, sizeof(struct user)) &&
           pool(&core->partings, core->client_slots, sizeof(struct parting)) &&
           pool(&core->strays, core->max_members, sizeof(struct stray)) && /* of each one */
           table(&runs->members, members, sizeof(*runs->members)) &&
           table(&runs->fates, members, sizeof(*runs->fates)) &&
           table(&runs->order, members, sizeof(*runs->order)) &&
           table(&core->joins, HASH_JOINS, sizeof(*core->joins)) &&
           table(&core->queue.acts, core->queue.cap, sizeof(*core->queue.acts)) &&
           table(&core->queue.text, core->queue.text_cap, 1) &&
           table(&core->ids, nnodes, sizeof(*core->ids)) &&
           table(&core->up, nnodes, sizeof(*core->up)) &&
           table(&core->place, nnodes, sizeof(*core->place)) &&
           table(&core->group_nodes, groups * nnodes, sizeof(*core->group_nodes)) &&
           table(&core->forming_nodes, groups * nnodes, sizeof(*core->forming_nodes)) &&
           table(&core->group_confirmed, groups * nnodes, sizeof(*core->group_confirmed)) &&
           table(&core->group_lost, groups * nnodes, sizeof(*core->group_lost)) &&
           table(&core->group_held, groups * nnodes, sizeof(*core->group_held)) &&
           table(&core->names, nnodes, sizeof(*core->names)) &&
           table(&core->missing, MSG_TEXT_MAX, 1) && table(&core->seats, MSG_TEXT_MAX, 1) &&
           table(&core->gone, core->config.max_size, sizeof(*core->gone)) &&
           table(&core->node_names, nnodes, sizeof(*core->node_names));
}

struct core *core_new(const struct core_config *config)
{
    _cleanup_(core_freep) struct core *core = calloc(1, sizeof(*core));

    if (!core || !config->nnodes || config->nnodes > MSG_MAX_NODES ||
        config->self >= config->nnodes)
        return NULL;
    core->config = *config;
    core->client_slots = config->max_clients + CORE_ADMIN_CLIENTS;
    core->max_groups = MAX(config->max_groups, 1u);
    core->config.max_size =
        MIN(config->max_size ? config->max_size : MAX(config->max_members / 16, 1u),
            (unsigned)MSG_MAX_RANKS);
    core->max_members = MAX(MIN(config->max_members, (unsigned)CORE_MAX_MEMBERS), 16u);
    core->max_users = core->client_slots + 2 * core->max_groups + 1; /* commd-gpu */
    if (!tables(core))
        return NULL;
    core_setup(core, config);
    return steal_ptr(core);
}
