/* gpu_attach.c - how groups come about, and go.
 *
 * A group is what a user, a group's number and its epoch name: its members are the ranks on this
 * node. Each member attaches by its own session and says what the group is. The first member's
 * words are checked by themselves, the words of the others against them: all must have said the
 * same. A lie that all members agree on harms nobody else, for all are processes of one user.
 *
 * A member that leaves or dies breaks the group for what has not been launched: the pending and
 * later operations of the other members end, and name it. The group is freed with its last member,
 * when its last operation has left the streams. */
#include "transport/gpu/gpu_op.h"

#include <stdio.h>

/* ---- members --------------------------------------------------------------------------------- */

struct gmember *member_find(struct gsession *s, uint32_t id)
{
    struct gmember *m;

    LIST_FOREACH(m, &s->members[session_bucket(s->g, id)], link)
        if (m->id == id)
            return m;
    return NULL;
}

static unsigned group_bucket(const struct gpu *g, uint32_t uid, uint64_t id, uint64_t epoch)
{
    uint64_t h = (id ^ epoch << 32 ^ uid) * (0x9e3779b97f4a7c15u ^ (uint64_t)g->key << 8);

    return (unsigned)((h ^ h >> 29) % GROUP_BUCKETS);
}

static void ggroup_free(struct ggroup *gr)
{
    if (!gr)
        return;
    free(gr->units);
    free(gr->unit_of_rank);
    free(gr->local_rank);
    free(gr->member);
    free(gr->here);
    free(gr);
}

/* Its last member has gone. */
static void group_close(struct ggroup *gr)
{
    group_rest(gr);
    wire_close(gr);
    LIST_REMOVE(gr, link);
    LIST_INSERT_HEAD(&gr->g->dead, gr, link);
}

void group_detach(struct gmember *m, const char *how)
{
    struct ggroup *gr = m->group;
    struct gsession *s = m->session;
    char text[SESSION_TEXT];

    snprintf(text, sizeof text, "rank %u (pid %u) %s", m->rank, s->pid, how);
    group_break(gr, COMMD_E_RANK_LOST, (int)m->rank, s->pid, text);
    assert(STAILQ_EMPTY(&m->announced)); /* breaking it has ended them */
    assert(gr->member[m->at] == m && s->nmembers && gr->nmembers);
    gr->member[m->at] = NULL;
    LIST_REMOVE(m, link);
    s->nmembers--;
    free(m);
    if (--gr->nmembers == 0)
        group_close(gr);
}

void group_leave_all(struct gsession *s, const char *how)
{
    for (unsigned i = 0; i < SESSION_BUCKETS && s->nmembers; i++)
        while (!LIST_EMPTY(&s->members[i]))
            group_detach(LIST_FIRST(&s->members[i]), how);
}

void groups_sweep(struct gpu *g)
{
    struct ggroup *gr, *next;

    for (gr = LIST_FIRST(&g->dead); gr; gr = next) {
        next = LIST_NEXT(gr, link);
        assert(!gr->nmembers && !gr->active);
        if (gr->flying || gr->op)
            continue;
        LIST_REMOVE(gr, link);
        gr->user->ngroups--;
        g->ngroups--;
        guser_put(g, gr->user);
        wire_free(gr);
        ggroup_free(gr);
    }
}

/* ---- what a member says of its group --------------------------------------------------------- */

/* An attach message, taken apart. */
struct attach_claim {
    const struct session_msg *m;
    const struct session_unit *units;
    const uint16_t *unit_of_rank;
    uint32_t nlocal, nhere;
};

/* NULL, or what in the message contradicts itself. Fills in @c. */
static const char *claim_wrong(const struct gsession *s, struct attach_claim *c, size_t len)
{
    const struct session_msg *m = c->m;
    uint32_t ranks[SESSION_MAX_WORLD] = {0};
    const struct session_unit *mine;

    if (m->attach.world < 1 || m->attach.world > SESSION_MAX_WORLD || m->attach.units < 1 ||
        m->attach.units > m->attach.world || m->attach.nnodes < 1 ||
        m->attach.nnodes > m->attach.units || m->attach.me >= m->attach.nnodes ||
        m->attach.rank >= m->attach.world || !m->attach.first)
        return "its numbers do not fit";
    if (len != sizeof *m + m->attach.units * sizeof(struct session_unit) +
                   m->attach.world * sizeof(uint16_t))
        return "its length does not fit";
    c->units = (const void *)(m + 1);
    c->unit_of_rank = (const void *)(c->units + m->attach.units);
    for (uint32_t r = 0; r < m->attach.world; r++) {
        if (c->unit_of_rank[r] >= m->attach.units)
            return "a rank has no GPU";
        ranks[c->unit_of_rank[r]]++;
        c->nlocal += c->units[c->unit_of_rank[r]].node == m->attach.me;
    }
    for (uint32_t u = 0; u < m->attach.units; u++) {
        if (c->units[u].node >= m->attach.nnodes || c->units[u].ranks != ranks[u] || !ranks[u])
            return "a GPU has other ranks than it says";
        if (ranks[u] > SESSION_MAX_RANKS)
            return "too many ranks share a GPU";
        c->nhere += c->units[u].node == m->attach.me;
    }
    if (c->nlocal > GPU_MAX_LOCAL)
        return "too many ranks are on this node";
    mine = &c->units[c->unit_of_rank[m->attach.rank]];
    if (mine->node != m->attach.me || memcmp(&mine->uuid, &s->dev->uuid, sizeof mine->uuid))
        return "its rank is on another GPU than its session";
    return NULL;
}

static const char *claim_differs(const struct ggroup *gr, const struct attach_claim *c)
{
    const struct session_msg *m = c->m;

    if (gr->world != m->attach.world || gr->nnodes != m->attach.nnodes || gr->me != m->attach.me ||
        gr->nunits != m->attach.units)
        return "the ranks of this node do not agree on the size of the group";
    if (gr->first != m->attach.first)
        return "the ranks of this node do not agree on which operation comes next";
    if (memcmp(gr->units, c->units, gr->nunits * sizeof *gr->units) ||
        memcmp(gr->unit_of_rank, c->unit_of_rank, gr->world * sizeof *gr->unit_of_rank))
        return "the ranks of this node do not agree on which rank is on which GPU";
    return NULL;
}

/* ---- a new group ----------------------------------------------------------------------------- */

static int group_fill_units(struct ggroup *gr)
{
    unsigned here = 0;

    for (uint32_t u = 0; u < gr->nunits; u++) {
        struct gunit *unit;

        if (gr->units[u].node != gr->me)
            continue;
        unit = &gr->here[here++];
        unit->number = u;
        unit->dev = device_find(gr->g, &gr->units[u].uuid);
        if (!unit->dev)
            return -ENODEV;
        for (unsigned other = 0; other + 1 < here; other++)
            if (gr->here[other].dev == unit->dev)
                return -EEXIST;
        for (uint32_t at = 0; at < gr->nlocal; at++)
            if (gr->unit_of_rank[gr->local_rank[at]] == u)
                unit->at[unit->nranks++] = (uint16_t)at;
    }
    return 0;
}

static int group_fill(struct ggroup *gr, const struct attach_claim *c)
{
    uint32_t n = 0;

    gr->units = malloc(gr->nunits * sizeof *gr->units);
    gr->unit_of_rank = malloc(gr->world * sizeof *gr->unit_of_rank);
    gr->local_rank = malloc(c->nlocal * sizeof *gr->local_rank);
    gr->member = calloc(c->nlocal, sizeof(struct gmember *));
    gr->here = calloc(c->nhere, sizeof *gr->here);
    if (!gr->units || !gr->unit_of_rank || !gr->local_rank || !gr->member || !gr->here)
        return -ENOMEM;
    memcpy(gr->units, c->units, gr->nunits * sizeof *gr->units);
    memcpy(gr->unit_of_rank, c->unit_of_rank, gr->world * sizeof *gr->unit_of_rank);
    gr->nlocal = c->nlocal;
    gr->nhere = c->nhere;
    for (uint32_t r = 0; r < gr->world; r++)
        if (gr->units[gr->unit_of_rank[r]].node == gr->me)
            gr->local_rank[n++] = r;
    return group_fill_units(gr);
}

static struct ggroup *ggroup_new(struct gsession *s, const struct attach_claim *c, int *ret_code,
                                 const char **ret_why)
{
    const struct session_msg *m = c->m;
    struct ggroup *gr = calloc(1, sizeof *gr);
    int r;

    *ret_why = "commd-gpu has no memory for a group";
    if (!gr)
        return NULL;
    gr->g = s->g;
    gr->uid = s->uid;
    gr->user = s->user;
    gr->id = m->attach.group;
    gr->epoch = m->attach.epoch;
    gr->first = gr->next = m->attach.first;
    gr->world = m->attach.world;
    gr->nnodes = m->attach.nnodes;
    gr->me = m->attach.me;
    gr->nunits = m->attach.units;
    r = group_fill(gr, c);
    if (r == -ENODEV || r == -EEXIST)
        *ret_why = r == -ENODEV ? "a rank of this node is on a GPU that commd-gpu does not see"
                                : "a GPU of this node is told of twice";
    if (r) {
        ggroup_free(gr);
        return NULL;
    }
    snprintf(gr->name, sizeof gr->name, "%.*s", (int)sizeof m->attach.name - 1, m->attach.name);
    for (char *p = gr->name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    LIST_INSERT_HEAD(&s->g->groups[group_bucket(s->g, s->uid, gr->id, gr->epoch)], gr, link);
    s->user->ngroups++;
    s->g->ngroups++;
    *ret_why = wire_open(gr, ret_code);
    if (*ret_why) {
        group_close(gr);
        return NULL;
    }
    return gr;
}

/* ---- attach ---------------------------------------------------------------------------------- */

static struct ggroup *ggroup_find(struct gsession *s, uint64_t id, uint64_t epoch)
{
    struct ggroup *gr;

    LIST_FOREACH(gr, &s->g->groups[group_bucket(s->g, s->uid, id, epoch)], link)
        if (gr->uid == s->uid && gr->id == id && gr->epoch == epoch)
            return gr;
    return NULL;
}

static int place_of_rank(const struct ggroup *gr, uint32_t rank)
{
    for (uint32_t i = 0; i < gr->nlocal; i++)
        if (gr->local_rank[i] == rank)
            return (int)i;
    return -1;
}

static int member_add(struct gsession *s, struct ggroup *gr, uint32_t id, uint32_t rank)
{
    struct gmember *m = calloc(1, sizeof *m);

    if (!m)
        return -ENOMEM;
    m->session = s;
    m->group = gr;
    m->id = id;
    m->rank = rank;
    m->at = (uint32_t)place_of_rank(gr, rank);
    m->next = gr->first;
    STAILQ_INIT(&m->announced);
    LIST_INSERT_HEAD(&s->members[session_bucket(s->g, id)], m, link);
    s->nmembers++;
    assert(m->at < gr->nlocal && !gr->member[m->at]);
    gr->member[m->at] = m;
    gr->nmembers++;
    return 0;
}

static const char *attach_rank(struct gsession *s, const struct attach_claim *c, int *ret_code)
{
    const struct session_msg *m = c->m;
    struct ggroup *gr = ggroup_find(s, m->attach.group, m->attach.epoch);
    const char *why;

    *ret_code = COMMD_E_QUOTA;
    if (s->nmembers >= GPU_SESSION_GROUPS)
        return "this process is in as many groups as commd-gpu keeps for one";
    if (!gr && s->user->ngroups >= GPU_USER_GROUPS)
        return "this user has as many groups as commd-gpu keeps for one";
    *ret_code = COMMD_E_INVALID;
    if (m->attach.units > 1 && !s->g->nccl.version)
        return "commd-gpu has no NCCL, and its ranks are on several GPUs";
    if (gr && (why = claim_differs(gr, c)))
        return why;
    if (gr && gr->broken) {
        *ret_code = gr->broken;
        return gr->broken_text;
    }
    if (gr && gr->member[place_of_rank(gr, m->attach.rank)])
        return "another process is this rank";
    if (!gr && !(gr = ggroup_new(s, c, ret_code, &why)))
        return why;
    if (member_add(s, gr, m->id, m->attach.rank)) {
        if (!gr->nmembers)
            group_close(gr);
        *ret_code = COMMD_E_NOMEM;
        return "commd-gpu has no memory for a rank";
    }
    return NULL;
}

void group_attach(struct gsession *s, const struct session_msg *m, size_t len)
{
    struct attach_claim c = {.m = m};
    const char *why = claim_wrong(s, &c, len);
    int code = 0;

    if (!why && member_find(s, m->id))
        why = "its number is in use";
    if (why) {
        session_break(s, "group %u: %s", m->id, why);
        return;
    }
    why = attach_rank(s, &c, &code);
    session_answer(s, m->id, why ? code : 0, -1, why ? why : "");
}
