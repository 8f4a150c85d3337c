/* core_home.c - the home's side of joining: who of a group has come, and the commit.
 *
 * A forming is keyed by (uid, name): another user's group of that name is another group. The
 * first join fixes the size. A join that contradicts what is there is refused on the spot and
 * leaves the others alone. When all ranks are there the home sends COMMIT to every
 * participating node and forgets: from then on the participants agree among themselves
 * (core_commit.c). A rank whose request is cancelled, or whose node is lost, frees its place. A
 * forming without ranks is dropped.
 *
 * Group ids: the low word counts the groups of this home, the high word is a tag of this commd's
 * incarnation, one more for each 2^32 groups. COMMITs to one node travel in that order, so a
 * participant can tell an id that is past from one that is still on its way, and
 * ids never repeat, neither after a restart nor after 2^32 groups.
 *
 * The verdict on a join that timed out names the ranks that never came. Ranks that came and
 * whose own time ran out a moment earlier are not on the list: so all that joined with one
 * limit read the same.
 *
 * Who wakes me: JOIN and JOIN_CANCEL; no timer, because origins keep the limits.
 * What if the peer (an origin) dies now: home_node_lost(). What if a participant dies while
 * COMMITs are on their way: the others find out by their links.
 * What if I am stopped or die now: origins ask the next home; a COMMIT that reached only some
 * is not confirmed by the others and comes to nothing. */
#include "daemon/core/core_internal.h"

enum {
    HOME_LOOKS = 4096, /* ranks, to say who is missing, or who is there */
    HOME_TURNS = 1024, /* times 2^32 groups of one life: 40 years */
};

static uint32_t tag(uint64_t incarnation, uint64_t turn)
{
    return (uint32_t)((core_mix(incarnation) >> 32) + turn);
}

uint64_t home_group_id(uint64_t incarnation, uint64_t n)
{
    assert(n >> 32 < HOME_TURNS);
    return (uint64_t)tag(incarnation, n >> 32) << 32 | (uint32_t)n;
}

uint64_t home_group_number(uint64_t incarnation, uint64_t id)
{
    uint32_t turn = (uint32_t)(id >> 32) - tag(incarnation, 0);

    return turn < HOME_TURNS ? (uint64_t)turn << 32 | (uint32_t)id : 0;
}

/* ---- (node, join) -> member ------------------------------------------------------------------ */

static uint32_t *join_bucket(const struct core *core, unsigned node, uint64_t join)
{
    return &core->joins[core_mix(join ^ (uint64_t)node << 52) % HASH_JOINS];
}

static void remember(struct core *core, struct forming *forming, struct msg_member *member)
{
    uint32_t *bucket = join_bucket(core, member->node, member->join);
    struct fate *fate = runs_fate(&core->runs, member);

    assert(member->join && !(member->join & CORE_CANCEL_QUIET));
    fate->owner = pool_index(&core->formings, forming);
    fate->next = *bucket;
    *bucket = (uint32_t)(member - core->runs.members) + 1;
}

void home_forget(struct core *core, struct msg_member *member)
{
    uint32_t *at = join_bucket(core, member->node, member->join);
    uint32_t i = (uint32_t)(member - core->runs.members) + 1;

    while (*at && *at != i)
        at = &core->runs.fates[*at - 1].next;
    assert(*at); /* it was remembered */
    *at = core->runs.fates[i - 1].next;
}

struct msg_member *home_recall(const struct core *core, unsigned node, uint64_t join)
{
    uint32_t i = *join_bucket(core, node, join);

    for (; i; i = core->runs.fates[i - 1].next) {
        struct msg_member *member = &core->runs.members[i - 1];

        if (member->node == node && member->join == join)
            return member;
    }
    return NULL;
}

/* ---- formings -------------------------------------------------------------------------------- */

struct list *home_bucket(struct core *core, uint32_t uid, const char *name)
{
    return &core->forming_by_name[text_hash(uid, name) % HASH_GROUPS];
}

static struct forming *forming_find(struct core *core, uint32_t uid, const char *name)
{
    struct forming *forming;

    list_each(forming, home_bucket(core, uid, name), hash)
        if (forming->uid == uid && !forming->recovery.kind && !strcmp(forming->name, name))
            return forming;
    return NULL;
}

static struct forming *create(struct core *core, unsigned node, const struct msg_join *msg,
                              uint32_t size)
{
    uint32_t payer = payer_of(core->config.payers, msg->uid);
    bool room = node == core->config.self ||
                node_room(core->config.max_groups, core->formings.live, core->peers[node].formings);
    struct user *user = room ? user_get(core, payer, true) : NULL;
    struct msg_member *run;
    struct forming *forming = NULL;

    if (!user)
        return NULL;
    run = user->forming < user_may(core, user, CORE_SHARE_FORMING)
              ? user_take_run(core, user, size, node)
              : NULL;
    if (run && !(forming = pool_take(&core->formings)))
        user_drop_run(core, user, run);
    if (!forming) {
        user_put(core, user);
        return NULL;
    }
    assert(node < core->config.nnodes && forming->size == 0);
    assert(!forming->id && !forming->count);
    user->forming++;
    core->peers[node].formings++;
    forming->node = node;
    forming->uid = msg->uid;
    forming->payer = payer;
    forming->size = size;
    forming->members = run;
    forming->nodes =
        core->forming_nodes + (size_t)pool_index(&core->formings, forming) * core->config.nnodes;
    text_copy(forming->name, sizeof(forming->name), msg->name);
    list_add(home_bucket(core, msg->uid, msg->name), &forming->hash);
    list_add(&core->all_formings, &forming->all);
    list_init(&forming->freed);
    return forming;
}

/* It lacks ranks; of new processes there may be as many as have room. */
static bool still_forms(const struct forming *forming)
{
    return forming->count < forming->size || forming->recovery.kind == MSG_RECOVERY_REJOIN;
}

/* Its memory stays readable until the queue is empty: COMMITs in it are made from it. */
static void drop(struct core *core, struct forming *forming)
{
    struct user *user = user_get(core, forming->payer, false);

    assert(user && user->forming);
    assert(forming->id ? forming->count == forming->size : !forming->count);
    assert(core->peers[forming->node].formings);
    user->forming--;
    core->peers[forming->node].formings--;
    user_put(core, user);
    list_del(&forming->hash);
    list_del(&forming->all);
    list_del(&forming->freed);
    pool_leave(&core->formings, forming);
}

void home_reap(struct core *core)
{
    for (uint32_t i = core->formings.ended; i;) {
        struct forming *forming = pool_at(&core->formings, i - 1);

        assert(list_is_off(&forming->hash) && list_is_off(&forming->all));
        user_leave_run(core, forming->payer, forming->members);
        i = forming->pooled.next;
    }
    pool_reap(&core->formings);
}

void home_free_place(struct core *core, struct forming *forming, struct msg_member *member)
{
    uint32_t i = (uint32_t)(member - forming->members);

    assert(forming->count && member->join && i < forming->size);
    assert(!forming->id);
    home_forget(core, member);
    member->join = 0;
    if (forming->recovery.follows && i < forming->recovery.was_size &&
        !runs_fate(&core->runs, member)->gone)
        forming->recovery.awaited++;
    if (--forming->count == 0)
        drop(core, forming);
}

void home_list(const struct core *core, const struct forming *forming, home_is_fn is, char *buf,
               size_t cap, unsigned *ret_count)
{
    struct text text = {buf, cap - 4, 0}; /* room for "..." */
    uint32_t i, last, end = MIN(forming->size, (uint32_t)HOME_LOOKS);

    buf[0] = 0;
    *ret_count = 0;
    for (i = 0; i < end && text.len + 1 < text.cap; i = last + 1) {
        last = i;
        if (!is(core, forming, i))
            continue;
        while (last + 1 < end && is(core, forming, last + 1))
            last++;
        *ret_count += last + 1 - i;
        text_add(&text,
                 last == i       ? "%s%u"
                 : last == i + 1 ? "%s%u,%u"
                                 : "%s%u-%u",
                 text.len ? "," : "", i, last);
    }
    if (text.len + 1 == text.cap || i < forming->size)
        memcpy(buf + text.len, "...", 4);
}

bool home_is_missing(const struct core *core, const struct forming *forming, uint32_t rank)
{
    const struct fate *fate = runs_fate(&core->runs, &forming->members[rank]);

    return !forming->members[rank].join && !fate->cause &&
           (!forming->recovery.kind || (!fate->gone && rank < forming->recovery.was_size));
}

void home_missing(const struct core *core, const struct forming *forming, char *buf, size_t cap,
                  unsigned *ret_count)
{
    home_list(core, forming, home_is_missing, buf, cap, ret_count);
    if (forming->recovery.kind)
        return;
    assert(forming->count + forming->late <= forming->size);
    *ret_count = forming->size - forming->count - forming->late;
}

/* ---- the commit ------------------------------------------------------------------------------ */

/* Fills forming->nodes, and turns members[].node into participant indices. */
static void number_nodes(struct core *core, struct forming *forming)
{
    assert(!forming->nnodes && forming->size);
    for (uint32_t i = 0; i < forming->size; i++) {
        assert(forming->members[i].node < core->config.nnodes);
        core->place[forming->members[i].node] = 1;
    }
    for (unsigned node = 0; node < core->config.nnodes; node++) {
        if (!core->place[node])
            continue;
        forming->nodes[forming->nnodes++] = (uint16_t)node;
        core->place[node] = (uint16_t)forming->nnodes;
    }
    assert(forming->nnodes && forming->nnodes <= forming->size);
    for (uint32_t i = 0; i < forming->size; i++)
        forming->members[i].node = core->place[forming->members[i].node] - 1u;
    for (unsigned i = 0; i < forming->nnodes; i++)
        core->place[forming->nodes[i]] = 0;
}

/* Do all its nodes have a GPU service? */
static bool all_gpu(const struct core *core, const struct forming *forming)
{
    for (unsigned i = 0; i < forming->nnodes; i++) {
        unsigned node = forming->nodes[i];

        if (!(node == core->config.self ? core->config.gpu : core->peers[node].gpu))
            return false;
    }
    return true;
}

void home_fill_commit(struct core *core, const struct forming *forming, struct msg_commit *ret_msg)
{
    assert(forming->id && forming->count == forming->size);
    *ret_msg = (struct msg_commit){.group = forming->id,
                                   .epoch = forming->recovery.epoch + 1,
                                   .follows = forming->recovery.follows,
                                   .uid = forming->uid,
                                   .latency_us = core->config.net.latency_us,
                                   .mbytes_s = core->config.net.mbytes_s,
                                   .gpu = all_gpu(core, forming),
                                   .size = forming->size,
                                   .nnodes = forming->nnodes,
                                   .members = forming->members,
                                   .nodes = core->names};
    for (unsigned i = 0; i < forming->nnodes; i++)
        text_copy(core->names[i], MSG_NAME_MAX, core_node_name(core, forming->nodes[i]));
    text_copy(ret_msg->name, sizeof(ret_msg->name), forming->name);
    text_copy(ret_msg->home, sizeof(ret_msg->home), core_self_name(core));
}

void home_commit(struct core *core, struct forming *forming)
{
    struct msg_commit msg;
    bool here = false;

    assert(!forming->id && forming->count == forming->size && !forming->late);
    number_nodes(core, forming);
    for (unsigned i = 0; i < forming->nnodes; i++)
        here |= forming->nodes[i] == core->config.self;
    do /* a group that was restored has an id of another incarnation, which may be as this one */
        forming->id = home_group_id(core->config.incarnation, ++core->commits);
    while (group_find(core, forming->id));
    act_commit(core, forming); /* before what this node itself says to the participants */
    drop(core, forming);
    if (!here)
        return;
    home_fill_commit(core, forming, &msg);
    group_commit(core, core->config.self, &msg);
}

/* ---- requests -------------------------------------------------------------------------------- */

void home_refuse(struct core *core, unsigned node, uint64_t join, enum cause cause, int32_t rank,
                 int about, const char *text)
{
    struct msg_join_refused msg = {.join = join, .cause = cause, .rank = rank};

    assert(join && !(join & CORE_CANCEL_QUIET) && cause);
    if (node != core->config.self) {
        act_to_peer(core, node,
                    (struct act_msg){.type = MSG_JOIN_REFUSED,
                                     .join_refused = {.join = join,
                                                      .cause = cause,
                                                      .rank = rank,
                                                      .about = about,
                                                      .text = act_text(core, text)}});
        return;
    }
    if (about >= 0)
        text_copy(msg.node, sizeof(msg.node), core_node_name(core, (unsigned)about));
    text_copy(msg.text, sizeof(msg.text), text);
    join_refused(core, node, &msg);
}

/* The first rank that is there, for texts; -1: none of the first HOME_LOOKS. */
static int32_t first_rank(const struct forming *forming)
{
    for (uint32_t rank = 0; rank < MIN(forming->size, (uint32_t)HOME_LOOKS); rank++)
        if (forming->members[rank].join)
            return (int32_t)rank;
    return -1;
}

static bool join_fits(struct core *core, unsigned node, const struct forming *forming,
                      const struct msg_join *msg)
{
    const struct msg_member *member;
    char text[MSG_TEXT_MAX];

    assert(msg->rank < msg->size && !forming->id);
    if (msg->size != forming->size) {
        int32_t first = first_rank(forming);

        if (first >= 0)
            text_format(text, sizeof(text),
                        "group \"%s\": rank %u joins with size %u, but rank %d of "
                        "node %s joined with size %u",
                        msg->name, msg->rank, msg->size, first,
                        core_node_name(core, forming->members[first].node), forming->size);
        else
            text_format(text, sizeof(text),
                        "group \"%s\": rank %u joins with size %u, but others joined with size %u",
                        msg->name, msg->rank, msg->size, forming->size);
        home_refuse(core, node, msg->join, CAUSE_INVALID, first,
                    first < 0 ? -1 : (int)forming->members[first].node, text);
        return false;
    }
    member = &forming->members[msg->rank];
    if (member->join) {
        text_format(text, sizeof(text),
                    "group \"%s\": rank %u is already taken by pid %u on node "
                    "%s",
                    msg->name, msg->rank, member->pid, core_node_name(core, member->node));
        home_refuse(core, node, msg->join, CAUSE_INVALID, (int32_t)msg->rank, (int)member->node,
                    text);
        return false;
    }
    return true;
}

struct forming *home_make(struct core *core, unsigned node, const struct msg_join *msg,
                          uint32_t size)
{
    struct forming *forming = create(core, node, msg, size);
    char text[MSG_TEXT_MAX];

    if (forming)
        return forming;
    text_format(text, sizeof(text),
                "group \"%s\": node %s has no room for one more group of user %u that forms: "
                "wait for others, or raise limits.max_groups or limits.max_groups_per_user",
                msg->name, core_self_name(core), msg->uid);
    home_refuse(core, node, msg->join, CAUSE_QUOTA, -1, (int)core->config.self, text);
    return NULL;
}

void home_place(struct core *core, struct forming *forming, struct msg_member *member,
                unsigned node, const struct msg_join *msg)
{
    struct fate *fate = runs_fate(&core->runs, member);

    if (member->join) {
        home_forget(core, member); /* only mutant 2 comes here */
        forming->count--;
    }
    assert(forming->count < forming->size);
    member->node = node;
    member->pid = msg->pid;
    member->join = msg->join;
    assert(!fate->cause || forming->late);
    forming->late -= fate->cause != CAUSE_NONE;
    fate->cause = CAUSE_NONE;
    remember(core, forming, member);
    forming->count++;
}

static bool sound(const struct msg_join *msg)
{
    if (msg->recovery)
        return recover_sound(msg);
    return msg->size && msg->size <= MSG_MAX_RANKS && msg->rank < msg->size;
}

void home_join(struct core *core, unsigned node, const struct msg_join *msg)
{
    struct forming *forming;

    if (!msg->name[0] || !sound(msg) || !msg->join || msg->join & CORE_CANCEL_QUIET ||
        home_recall(core, node, msg->join)) {
        act_log_node(core, node, CORE_LOG_WARN,
                     "node %s sent a join that makes no sense -> ignoring it",
                     core_node_name(core, node));
        return;
    }
    core->peers[node].gpu = msg->gpu;
    if (core->stopping)
        return; /* it asks the next home as soon as we are gone */
    if (msg->recovery) {
        recover_join(core, node, msg);
        return;
    }
    forming = forming_find(core, msg->uid, msg->name);
    if (forming && !join_fits(core, node, forming, msg))
        return;
    if (!forming && !(forming = home_make(core, node, msg, msg->size)))
        return;
    home_place(core, forming, &forming->members[msg->rank], node, msg);
    if (forming->count < forming->size)
        return;
    for (uint32_t i = 0; i < forming->size; i++)
        home_forget(core, &forming->members[i]);
    home_commit(core, forming);
}

/* Its time ran out: it is neither there nor missing. @ret_text: who is. */
static unsigned verdict(struct core *core, struct forming *forming, struct msg_member *member,
                        char *ret_text, size_t cap)
{
    unsigned count = 0;

    if (forming->recovery.kind != MSG_RECOVERY_REJOIN)
        runs_fate(&core->runs, member)->cause = CAUSE_TIMEOUT;
    if (forming->recovery.kind)
        recover_verdict(core, forming, member, ret_text, cap);
    else
        home_missing(core, forming, ret_text, cap, &count);
    forming->late += forming->recovery.kind != MSG_RECOVERY_REJOIN;
    return count;
}

void home_cancel(struct core *core, unsigned node, uint64_t join)
{
    bool quiet = join & CORE_CANCEL_QUIET;
    struct msg_member *member;
    struct forming *forming;
    char missing[MSG_TEXT_MAX];
    unsigned count = 0;

    join &= ~CORE_CANCEL_QUIET;
    member = join ? home_recall(core, node, join) : NULL;
    if (!member)
        return; /* its COMMIT or refusal is on the way */
    forming = pool_at(&core->formings, runs_fate(&core->runs, member)->owner);
    assert(!forming->id && !list_is_off(&forming->all));
    assert(forming->count && still_forms(forming));
    if (!quiet)
        count = verdict(core, forming, member, missing, sizeof(missing));
    home_free_place(core, forming, member);
    if (!quiet)
        home_refuse(core, node, join, CAUSE_TIMEOUT, (int32_t)count, -1, missing);
    if (!list_is_off(&forming->all))
        recover_freed(core, forming);
}

void home_node_lost(struct core *core, unsigned node)
{
    struct forming *forming;

    list_each(forming, &core->all_formings, all) {
        uint32_t left = forming->count;

        assert(left && still_forms(forming) && !forming->id);
        /* The last one frees the forming: stop before looking at it again. */
        for (uint32_t i = 0; left && i < forming->size; i++) {
            if (!forming->members[i].join)
                continue;
            left--;
            if (forming->members[i].node == node)
                home_free_place(core, forming, &forming->members[i]);
        }
        if (!list_is_off(&forming->all))
            recover_freed(core, forming);
    }
}
