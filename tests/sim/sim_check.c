/* sim_check.c - what must hold whatever happens.
 *
 * - answers: each join is answered exactly once, not later than its limit and the time it takes to
 *   find out that a node is gone
 * - agreement: all nodes that open a group open the same one: ranks, nodes, processes
 * - members: a process gets the rank it asked for; its node's engine is connected to the others
 * - blame: what is reported as lost was hit by a fault; who is reported gone, is
 * - marks: after healing, every rank that is gone is marked gone, or its node lost, on every
 * node that still has the group
 * - idle: after all clients are gone: no group, no join, no board
 * - engines: those of nodes that are ready for each other have met, when all is at rest
 * - time: deadlines lie in the future */
#include <stdio.h>

#include "tests/sim/sim_internal.h"

struct fact *check_fact(struct sim *sim, uint64_t id)
{
    for (size_t i = sim->nfacts; i-- > 0;)
        if (sim->facts[i].id == id)
            return &sim->facts[i];
    return NULL;
}

void check_step(struct sim *sim, unsigned node)
{
    uint64_t deadline = core_deadline(sim->nodes[node].core);

    if (deadline <= sim->now)
        sim_fail(sim, "node %s wants to be woken in the past", sim_node_name(sim, node));
}

static void remember(struct sim *sim, const struct core_group_view *view)
{
    struct fact *fact;

    if (view->size > SIM_RANKS)
        sim_fail(sim, "a group has more ranks than the simulator knows");
    if (sim->nfacts == sim->facts_cap) {
        sim->facts_cap = sim->facts_cap ? 2 * sim->facts_cap : 64;
        sim->facts = realloc(sim->facts, sim->facts_cap * sizeof(*sim->facts));
        if (!sim->facts)
            abort();
    }
    fact = &sim->facts[sim->nfacts++];
    memset(fact, 0, sizeof(*fact));
    fact->id = view->id;
    fact->epoch = view->epoch;
    fact->follows = view->follows;
    for (unsigned i = 0; i < view->size; i++)
        fact->was[i] = recover_was(view, i);
    fact->size = view->size;
    fact->nnodes = view->nnodes;
    memcpy(fact->nodes, view->nodes, view->nnodes * sizeof(*fact->nodes));
    memcpy(fact->members, view->members, view->size * sizeof(*fact->members));
    for (unsigned i = 0; i < view->nnodes; i++)
        fact->lives[i] = sim->nodes[view->nodes[i]].life;
}

/* Of one that was taken over the numbers of the requests are not known. */
static bool same_members(const struct fact *fact, const struct core_group_view *view)
{
    for (unsigned i = 0; i < fact->size; i++)
        if (fact->members[i].node != view->members[i].node ||
            fact->members[i].pid != view->members[i].pid)
            return false;
    return true;
}

void check_opened(struct sim *sim, unsigned node, const struct core_group_view *view)
{
    const struct node *n = &sim->nodes[node];
    struct fact *fact = check_fact(sim, view->id);
    bool gpu = true;

    for (unsigned i = 0; i < view->nnodes; i++)
        gpu &= view->nodes[i] != 1;
    if (view->gpu != gpu)
        sim_fail(sim, "node %s is wrong about the GPUs of a group", sim_node_name(sim, node));
    if (!view->id || (!view->follows && view->epoch != 1) || view->nodes[view->me] != node)
        sim_fail(sim, "node %s opens a group with a wrong place", sim_node_name(sim, node));
    for (unsigned i = 0; i < view->nnodes; i++)
        if (i != view->me && view->state != CORE_GROUP_BROKEN && !n->engine_ok[view->nodes[i]])
            sim_fail(sim,
                     "node %s opens a group over node %s, which its engine is not "
                     "connected to",
                     sim_node_name(sim, node), sim_node_name(sim, view->nodes[i]));
    if (!fact) {
        remember(sim, view);
        recover_opened(sim, node, view, check_fact(sim, view->id), true);
        return;
    }
    recover_opened(sim, node, view, fact, false);
    if (fact->size != view->size || fact->nnodes != view->nnodes ||
        memcmp(fact->nodes, view->nodes, view->nnodes * sizeof(*fact->nodes)) ||
        !same_members(fact, view))
        sim_fail(sim, "node %s has another idea of group \"%s\" than the first",
                 sim_node_name(sim, node), view->name);
}

/* The live or dead client that asked for @rank of a group that was opened. */
struct handle *check_member(struct sim *sim, uint64_t id, unsigned rank, struct join **ret_join)
{
    const struct fact *fact = check_fact(sim, id);

    if (!fact || rank >= fact->size)
        sim_fail(sim, "a rank of a group that was never opened");
    for (unsigned i = sim->nhandles; i-- > 0;) {
        struct handle *handle = &sim->handles[i];

        if (handle->pid != fact->members[rank].pid)
            continue;
        *ret_join = NULL;
        for (unsigned j = 0; j < handle->njoins; j++)
            if (handle->joins[j].group == id)
                *ret_join = &handle->joins[j];
        return handle;
    }
    sim_fail(sim, "pid %u was never there", fact->members[rank].pid);
}

/* Has this rank ended for its group? A join that failed on a node that gave up counts. */
bool check_ended(struct sim *sim, uint64_t id, unsigned rank)
{
    struct join *join;
    struct handle *handle = check_member(sim, id, rank, &join);

    return !handle->alive || (join ? join->left : false);
}

static bool gave_up(struct sim *sim, uint64_t id, unsigned rank)
{
    struct join *join;

    check_member(sim, id, rank, &join);
    return !join; /* never JOINED there: its time ran out while the group was committed */
}

/* It did not hear that the group stands, and has asked anew: so it has left what it is not told. */
static bool asked_anew(const struct handle *handle, uint64_t follows)
{
    unsigned n = 0;

    for (unsigned i = 0; follows && i < handle->njoins; i++)
        n += handle->joins[i].follows == follows;
    return n > 1;
}

void check_gone(struct sim *sim, unsigned node, const struct core_rank_gone *gone)
{
    unsigned rank = gone->rank;
    struct handle *handle;
    struct join *join;

    handle = check_member(sim, gone->group, rank, &join);
    if (gone->cause == CAUSE_LEFT &&
        !(join ? join->left : asked_anew(handle, check_fact(sim, gone->group)->follows)))
        sim_fail(sim, "node %s says that rank %u left, but pid %u did not",
                 sim_node_name(sim, node), rank, handle->pid);
    handle->kicked |= strstr(gone->text, "it was kicked") != NULL; /* its connection ends next */
    if (!handle->kicked && !check_ended(sim, gone->group, rank) && !gave_up(sim, gone->group, rank))
        sim_fail(sim, "node %s says that rank %u is gone, but it is not", sim_node_name(sim, node),
                 rank);
}

static int node_named(const struct sim *sim, const char *name)
{
    for (unsigned i = 0; i < sim->options.nodes; i++)
        if (!strcmp(sim_node_name(sim, i), name))
            return (int)i;
    return -1;
}

/* A group that is withdrawn after it opened somewhere: a rank or a node of it has failed. */
static bool somebody_failed(struct sim *sim, uint64_t id)
{
    const struct fact *fact = check_fact(sim, id);

    for (unsigned i = 0; i < fact->nnodes; i++)
        if (sim->oracle.node_fault[fact->nodes[i]])
            return true;
    for (unsigned rank = 0; rank < fact->size; rank++)
        if (check_ended(sim, id, rank) || gave_up(sim, id, rank))
            return true;
    return false;
}

/* An engine was replaced, and something else than that and restarts of commd has happened since
 * the beginning. */
static bool renewed_in_trouble(struct sim *sim, unsigned node, uint64_t id)
{
    bool trouble = !id || somebody_failed(sim, id);

    for (unsigned i = 0; i < sim->options.nodes; i++)
        trouble |= sim->oracle.node_fault[i] || sim->oracle.engine_fault[i];
    return (sim->oracle.renewed[node] || sim->nodes[node].kills) && trouble;
}

void check_withdraws(struct sim *sim, unsigned node, uint64_t id)
{
    struct node *n = &sim->nodes[node];

    n->withdrew[n->nwithdrew++ % ARRAY_LEN(n->withdrew)] = id;
}

/* All ranks of @node gave up, at the moment when the group opened elsewhere, and of its commd,
 * which knew why, another one has taken over since. */
static bool withdrew_and_forgot(struct sim *sim, unsigned node, uint64_t id)
{
    const struct node *n = &sim->nodes[node];
    const struct fact *fact = check_fact(sim, id);
    unsigned i = n->forgot;

    for (unsigned rank = 0; rank < fact->size; rank++)
        if (fact->nodes[fact->members[rank].node] == node && !gave_up(sim, id, rank))
            return false;
    while (i && n->forgot - i < ARRAY_LEN(n->withdrew))
        if (n->withdrew[--i % ARRAY_LEN(n->withdrew)] == id)
            return true;
    return false;
}

void check_broken(struct sim *sim, unsigned node, uint64_t id, enum cause cause, const char *name,
                  const char *text)
{
    int who = node_named(sim, name);

    if (id && cause == CAUSE_RANK_LOST && !somebody_failed(sim, id))
        sim_fail(sim, "node %s broke a group that nobody failed: %s", sim_node_name(sim, node),
                 text);
    /* Who came back when others had given it up hears that from its engine: the text names both. */
    if (sim->oracle.node_fault[node] && strstr(text, "lost each other"))
        return;
    /* One that is away is lost when the engines lose each other. Who was given up is not known any
     * more where it was. */
    if (cause == CAUSE_NODE_LOST && strstr(text, "does not know") &&
        (sim->oracle.node_fault[node] || sim->oracle.engine_fault[node] || sim_went_on(sim, id)))
        return; /* its ranks have gone on, and this node did not hear so */
    if (cause == CAUSE_NODE_LOST && strstr(text, "does not know") && who >= 0 &&
        withdrew_and_forgot(sim, (unsigned)who, id))
        return;
    if (cause == CAUSE_NODE_LOST &&
        (who < 0 || (!sim->oracle.node_fault[who] && !sim->oracle.engine_fault[who])))
        sim_fail(sim, "node %s blames node '%s' without a fault: %s", sim_node_name(sim, node),
                 name, text);
    if (cause == CAUSE_ENGINE_LOST &&
        (who < 0 || (!sim->oracle.engine_fault[who] && !sim->oracle.node_fault[who] &&
                     !renewed_in_trouble(sim, (unsigned)who, id))))
        sim_fail(sim, "node %s blames the engine of '%s' without a fault: %s",
                 sim_node_name(sim, node), name, text);
}

void check_overdue(struct sim *sim)
{
    for (unsigned i = 0; i < sim->options.nodes; i++)
        hold_check(sim, i);
    for (unsigned i = 0; i < sim->nhandles; i++) {
        const struct handle *handle = &sim->handles[i];
        const struct core_config *config;

        if (!handle->alive || handle->away)
            continue;
        config = &sim->nodes[handle->node].core->config;
        for (unsigned j = 0; j < handle->njoins; j++) {
            const struct join *join = &handle->joins[j];

            if (!join->answers && join->limit &&
                sim->now >
                    join->at + join->limit + 2 * CORE_VERDICT_MS + 2 * config->node_timeout_ms)
                sim_fail(sim, "pid %u waits for an answer to its join of \"%s\" since %llu",
                         handle->pid, join->name, (unsigned long long)join->at);
        }
    }
}

/* Does the @place-th node of the group have it as it opened there? */
static bool has_opened(struct sim *sim, const struct fact *fact, unsigned place)
{
    const struct node *n = &sim->nodes[fact->nodes[place]];

    return n->alive && n->life == fact->lives[place] &&
           edge_board(sim, fact->nodes[place], fact->id);
}

static void check_group_marks(struct sim *sim, const struct fact *fact)
{
    for (unsigned i = 0; i < fact->nnodes; i++) {
        const struct board *board = edge_board(sim, fact->nodes[i], fact->id);
        char name[64];

        if (!has_opened(sim, fact, i))
            continue;
        for (unsigned rank = 0; rank < fact->size; rank++) {
            const char *wrong = NULL;

            if (check_ended(sim, fact->id, rank) && !board->gone[rank] && !board->lost[rank])
                wrong = "never heard that it is gone";
            else if (!check_ended(sim, fact->id, rank) && board->lost[rank] &&
                     has_opened(sim, fact, fact->members[rank].node))
                wrong = "still says that its node is lost";
            if (wrong)
                sim_fail(sim, "rank %u of %s, pid %u: node %s %s", rank,
                         sim_group_name(sim, fact->id, name), fact->members[rank].pid,
                         sim_node_name(sim, fact->nodes[i]), wrong);
        }
    }
}

void sim_check_marks(struct sim *sim)
{
    for (size_t i = 0; i < sim->nfacts; i++)
        check_group_marks(sim, &sim->facts[i]);
}

static void check_met(struct sim *sim)
{
    for (unsigned a = 0; a < sim->options.nodes; a++)
        for (unsigned b = 0; b < a; b++)
            if (sim->nodes[a].alive && sim->nodes[b].alive && peer_usable(sim->nodes[a].core, b) &&
                peer_usable(sim->nodes[b].core, a) && !sim->nodes[a].engine_met[b])
                sim_fail(sim, "nodes %s and %s are ready, and their engines do not meet",
                         sim_node_name(sim, a), sim_node_name(sim, b));
}

void sim_check_idle(struct sim *sim)
{
    check_met(sim);
    for (unsigned i = 0; i < sim->options.nodes; i++) {
        const struct node *n = &sim->nodes[i];
        struct core_group_view view;
        struct core_status status;

        if (!n->alive)
            continue;
        core_status(n->core, &status);
        if (core_group_at(n->core, 0, &view))
            sim_fail(sim, "node %s still has group \"%s\"", sim_node_name(sim, i), view.name);
        if (status.clients || status.groups || n->core->members.live || n->core->formings.live ||
            n->core->users.live || !list_empty(&n->core->todo))
            sim_fail(sim,
                     "node %s has leaked: %u clients, %u groups, %u members, %u formings, "
                     "%u users",
                     sim_node_name(sim, i), status.clients, status.groups, n->core->members.live,
                     n->core->formings.live, n->core->users.live);
        for (unsigned b = 0; b < SIM_BOARDS; b++)
            if (n->boards[b].group)
                sim_fail(sim, "node %s still has a board", sim_node_name(sim, i));
        for (unsigned j = 0; j < HASH_JOINS; j++)
            if (n->core->joins[j])
                sim_fail(sim, "node %s still remembers a join", sim_node_name(sim, i));
    }
}
