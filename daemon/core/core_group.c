/* core_group.c - the life of a group at each participating node, from its board to its end.
 *
 *   COMMIT --local ranks stand by it--> COMMITTED --all agreed, all READY--> OPEN --> BROKEN
 *                                           |                                |        |
 *                            DEAD <-- LEFT <'------------ last local rank gone '------'
 *                                  ^ the other participants have heard, at once for one node
 *
 * How the participants come to agree is in core_commit.c; how the ranks of a group end:
 * core_rank.c; how others hear of it whose link, or commd, was not there: core_resync.c.
 *
 * A rank that is gone (it left, or was lost) does not break its group: the boards mark it, and who
 * waits for it finds out there. What breaks a group is the loss of a node or of an engine, an
 * abort, a board that cannot go on. The first cause wins. What one node alone knows it tells all
 * others. What many may find at a time, such as the loss of a node, each tells the first
 * participant that is linked with it and has ranks left; and that one tells all.
 *
 * If all ranks of a node are lost before all have agreed, the group comes to nothing: others may
 * have no COMMIT yet and could not be told who is gone.
 *
 * Who wakes me: GONE, BROKEN, clients, peers and engines that go, core_commit.c.
 * What if the peer (another participant) dies now: group_node_lost(): joins of a COMMITTED
 * group fail, an OPEN one is BROKEN.
 * What if I am stopped now: the others lose the link and break; so do I when I find it gone. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* clang-format off */
/* rows: from; columns: FREE COMMITTED OPEN BROKEN LEFT DEAD */
static const bool group_may[6][6] = {
    [GROUP_FREE]      = {0, 1, 0, 0, 0, 0},
    [GROUP_COMMITTED] = {0, 0, 1, 0, 1, 1},
    [GROUP_OPEN]      = {0, 0, 0, 1, 1, 1},
    [GROUP_BROKEN]    = {0, 0, 0, 0, 1, 1},
    [GROUP_LEFT]      = {0, 0, 0, 0, 0, 1},
    [GROUP_DEAD]      = {0, 0, 0, 0, 0, 0},
};
/* clang-format on */

static void group_set_state(struct core *core, struct group *group, enum group_state state)
{
    assert(group_may[group->state][state]);
    assert(state != GROUP_OPEN || group->nconfirmed + 1 == group->nnodes);
    assert(state != GROUP_BROKEN || (group->cause && group->boarded));
    assert(!group->cause || group->unclean);
    group->state = state;
    if (state == GROUP_COMMITTED) {
        assert(list_empty(&group->local) && !group->nlocal && !group->cause);
        assert(group->me < group->nnodes && group->nodes[group->me] == core->config.self);
        list_add(&core->all_groups, &group->all);
        list_add(&core->by_id[core_mix(group->id) % HASH_GROUPS], &group->hash);
    } else if (state == GROUP_LEFT) {
        assert(list_empty(&group->local) && !group->nlocal && group->nnodes > 1);
    } else if (state == GROUP_DEAD) {
        struct user *user = user_get(core, group->payer, false);

        assert(list_empty(&group->local) && !group->nlocal);
        assert(user && user->groups);
        list_del(&group->all); /* .hash stays until group_reap() */
        user->groups--;
        user_put(core, user);
        pool_leave(&core->groups, group);
    }
}

void group_reap(struct core *core)
{
    for (uint32_t i = core->groups.ended; i;) {
        struct group *group = pool_at(&core->groups, i - 1);

        assert(group->state == GROUP_DEAD && list_is_off(&group->all));
        assert(!group->nlocal && list_empty(&group->local));
        list_del(&group->hash);
        user_leave_run(core, group->payer, group->members);
        i = group->pooled.next;
    }
    pool_reap(&core->groups);
}

struct group *group_find(const struct core *core, uint64_t id)
{
    const struct list *bucket = &core->by_id[core_mix(id) % HASH_GROUPS];
    struct group *group;

    list_each(group, bucket, hash)
        if (group->id == id && group->state != GROUP_DEAD)
            return group;
    return NULL;
}

int group_place(const struct group *group, unsigned node)
{
    unsigned lo = 0, hi = group->nnodes;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (group->nodes[mid] == node)
            return (int)mid;
        if (group->nodes[mid] < node)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

/* ---- the end of groups ----------------------------------------------------------------------- */

static void set_cause(struct group *group, enum cause cause, int32_t rank, uint32_t pid,
                      unsigned node, const char *text)
{
    assert(rank >= -1 && (rank < 0 || (uint32_t)rank < group->size));
    assert(!group->cause && cause); /* the first cause wins */
    group->cause = cause;
    group->cause_rank = rank;
    group->cause_pid = pid;
    group->unclean = true;
    group->cause_node = node;
    text_copy(group->cause_text, sizeof(group->cause_text), text);
}

/* Others may have opened it, and want to go on from it: these ranks were never in it. It takes a
 * record for each node, so where the queue is nearly full some are not told: they ask when the link
 * is new. */
static void tell_never_in(struct core *core, const struct group *group)
{
    struct member *member;

    list_each(member, &group->local, by_group)
        runs_fate(&core->runs, &group->members[member->rank])->cause = CAUSE_RANK_LOST;
    for (unsigned i = 0; i < group->nnodes; i++)
        if (i != group->me && peer_linked(core, group->nodes[i]) && act_room(core))
            act_fates_to(core, group, group->nodes[i]);
}

/* The cause is set. Joins of a group that was not open yet fail with it. */
static void end_committed(struct core *core, struct group *group)
{
    struct member *member;

    assert(group->cause);
    tell_never_in(core, group);
    while ((member = list_first(&group->local, struct member, by_group)))
        join_fail(core, member, group->cause, group->cause_rank, (int)group->cause_node,
                  group->cause_text);
    group_close(core, group);
}

void group_log(struct core *core, enum core_note note, uint32_t uid, unsigned level,
               const char *name, const char *cause, const char *decision)
{
    char quoted_name[TEXT_QUOTED], quoted[TEXT_QUOTED];

    act_note(core, note, CORE_BY_USER, uid, level, "group %s: %s -> %s",
             text_quote(quoted_name, name), text_quote(quoted, cause), decision);
}

/* What GROUP_BROKEN and BROKEN say of a group that has a cause. */
static struct core_group_broken broken(const struct core *core, const struct group *group)
{
    assert(group->cause);
    return (struct core_group_broken){.group = group->id,
                                      .cause = group->cause,
                                      .rank = group->cause_rank,
                                      .pid = group->cause_pid,
                                      .node = core_node_name(core, group->cause_node),
                                      .text = group->cause_text,
                                      .next = group->next_epoch};
}

static struct act_msg broken_message(const struct core *core, const struct group *group)
{
    return (struct act_msg){.type = MSG_BROKEN, .broken = broken(core, group)};
}

void group_tell_broken(struct core *core, const struct group *group, unsigned node)
{
    assert(group->cause && node != core->config.self);
    act_to_peer(core, node, broken_message(core, group));
}

/* The first one in which ranks are left and that can hear it; if not all know of that: this node,
 * that is, each tells all. */
unsigned group_first(const struct core *core, const struct group *group)
{
    if (!bond_nodes_know(core, group))
        return group->me;
    for (unsigned i = 0; i < group->me; i++)
        if (peer_linked(core, group->nodes[i]) && !group_all_gone(core, group, i))
            return i;
    return group->me;
}

/* What only this node may know is told to all. What many find out at a time goes to the first
 * participant, which tells all: else each would tell each. */
enum tell { TELL_NOBODY, TELL_FIRST, TELL_ALL };

static void tell_broken(struct core *core, const struct group *group, enum tell tell)
{
    unsigned first = tell == TELL_FIRST ? group_first(core, group) : group->me;

    if (tell == TELL_NOBODY)
        return;
    if (first == group->me)
        act_to_group(core, group, ACT_EACH_NODE, broken_message(core, group));
    else
        group_tell_broken(core, group, group->nodes[first]);
}

void group_mark_broken(struct core *core, const struct group *group, bool again)
{
    struct core_group_broken mark = broken(core, group);

    mark.again = again;
    act_push(core, (struct core_action){.type = CORE_DO_GROUP_BROKEN, .group_broken = mark});
}

/* Ranks that go on after a loss end the group first that they go on from: it is over by the loss.
 */
static bool revokes(const struct core *core, const struct group *group)
{
    if (group->cause != CAUSE_ABORTED || group->state != GROUP_OPEN || group->cause_rank < 0)
        return false;
    for (uint32_t i = 0; i < group->size; i++)
        if (runs_fate(&core->runs, &group->members[i])->cause == CAUSE_RANK_LOST)
            return true;
    return false;
}

static void break_group(struct core *core, struct group *group, enum tell tell)
{
    assert(group->state == GROUP_OPEN || group->state == GROUP_COMMITTED);
    assert(group->nlocal); /* else it were closed */
    group->revoked = revokes(core, group);
    group_log(core, group->revoked ? CORE_NOTE_GROUP_REVOKED : CORE_NOTE_GROUP_FAILED, group->uid,
              CORE_LOG_INFO, group->name, group->cause_text, group->revoked ? "revoked" : "broken");
    if (group->revoked)
        core->counts.groups_revoked++;
    else
        count_cause(core->counts.groups_broken, group->cause);
    tell_broken(core, group, tell);
    if (group->state != GROUP_OPEN) {
        end_committed(core, group);
        return;
    }
    assert(group->boarded);
    group_set_state(core, group, GROUP_BROKEN);
    group_mark_broken(core, group, false);
}

void group_withdraw(struct core *core, struct group *group, int32_t rank, uint32_t pid,
                    unsigned node, const char *text)
{
    struct member *member;

    assert(group->state == GROUP_COMMITTED);
    set_cause(group, CAUSE_LEFT, rank, pid, node, text);
    group_log(core, CORE_NOTE_NONE, group->uid, CORE_LOG_DEBUG, group->name, text,
              "joining it again");
    /* Where it has opened, each has to know that these ranks were never in it. */
    tell_broken(core, group, TELL_ALL);
    while ((member = list_first(&group->local, struct member, by_group)))
        join_again(core, member);
    group_close(core, group);
}

/* All its ranks here were lost before all nodes had agreed. Those that have no COMMIT yet cannot be
 * told that, so it comes to nothing: who goes on from a group asks again without them, others are
 * told whom they wait for in vain. */
static void never_opens(struct core *core, struct group *group)
{
    uint32_t rank = 0, pid;
    char text[MSG_TEXT_MAX];

    while (rank + 1 < group->size && group->members[rank].node != group->me)
        rank++;
    pid = group->members[rank].pid;
    text_format(text, sizeof(text), "rank %u (pid %u on node %s) was lost before the group opened",
                rank, pid, core_self_name(core));
    set_cause(group, group->follows ? CAUSE_LEFT : CAUSE_RANK_LOST, (int32_t)rank, pid,
              core->config.self, text);
    tell_broken(core, group, TELL_ALL);
}

void group_close(struct core *core, struct group *group)
{
    const struct group *before = group->follows ? group_find(core, group->follows) : NULL;
    bool opened = group->state != GROUP_COMMITTED;
    char name[TEXT_QUOTED];

    pause_group_ends(core, group);
    if (!opened && !group->cause && group->nnodes > 1)
        never_opens(core, group);
    if (group->state == GROUP_OPEN && group->next_epoch)
        act_note(core, CORE_NOTE_GROUP_ENDED, CORE_BY_USER, group->uid, CORE_LOG_DEBUG,
                 "group %s: its ranks of this node have gone on as epoch %llu -> closed",
                 text_quote(name, group->name), (unsigned long long)group->next_epoch);
    else if (group->state == GROUP_OPEN)
        act_note(core, CORE_NOTE_GROUP_ENDED, CORE_BY_USER, group->uid, CORE_LOG_DEBUG,
                 "group %s: no rank of this node is left%s -> closed",
                 text_quote(name, group->name), group->unclean ? ", and one was lost" : "");
    assert(!group->nlocal);
    if (group->boarded || (!group->cause && group->nnodes > 1))
        act_push(core, (struct core_action){.type = CORE_DO_GROUP_CLOSE,
                                            .group_close = {.group = group->id,
                                                            .abort = group->unclean,
                                                            .left = group->nnodes > 1}});
    else if (group->nnodes > 1)
        act_push(core,
                 (struct core_action){.type = CORE_DO_GROUP_FORGET, .group_forget = {group->id}});
    group->boarded = false;
    if (opened && group->follows)
        follow_remember(core, group);
    if (before && before->nlocal)
        group_ask_all(core, before); /* who of it has gone on has not told this node: core_rank.c */
    group_set_state(core, group, group->nnodes > 1 ? GROUP_LEFT : GROUP_DEAD);
    if (group->state == GROUP_LEFT)
        group_left(core, group, opened);
}

void group_forget(struct core *core, struct group *group)
{
    assert(group->state == GROUP_LEFT);
    act_push(core, (struct core_action){.type = CORE_DO_GROUP_FORGET, .group_forget = {group->id}});
    group_set_state(core, group, GROUP_DEAD);
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* One of @user, with room for its members in @run, if there is one; core->place has its nodes. */
static struct group *group_make(struct core *core, struct user *user, struct msg_member *run,
                                unsigned nnodes, unsigned me)
{
    struct group *group = run ? pool_take(&core->groups) : NULL;
    size_t row;

    if (!group) {
        if (run)
            user_drop_run(core, user, run);
        user_put(core, user);
        return NULL;
    }
    assert(group->state == GROUP_FREE && me < nnodes);
    user->groups++;
    row = (size_t)pool_index(&core->groups, group) * core->config.nnodes;
    list_init(&group->local);
    group->payer = user->uid;
    group->committed_ms = core->now;
    group->nnodes = nnodes;
    group->me = me;
    group->cause_rank = -1;
    group->members = run;
    group->nodes = core->group_nodes + row;
    group->confirmed = core->group_confirmed + row;
    group->lost = core->group_lost + row;
    group->held = core->group_held + row;
    memcpy(group->nodes, core->place, nnodes * sizeof(*group->nodes));
    memset(group->confirmed, 0, nnodes * sizeof(*group->confirmed));
    memset(group->lost, 0, nnodes * sizeof(*group->lost));
    return group;
}

struct group *group_new(struct core *core, unsigned home, const struct msg_commit *msg, unsigned me)
{
    uint32_t payer = payer_of(core->config.payers, msg->uid);
    struct user *user = user_get(core, payer, true);
    struct msg_member *run = NULL;
    struct group *group;

    /* Joins wait long: what the user had when they came says little. */
    if (user && user->groups < user_may(core, user, CORE_SHARE_GROUPS))
        run = user_take_run(core, user, msg->size, core->config.self);
    group = group_make(core, user, run, msg->nnodes, me);
    if (!group)
        return NULL;
    group->id = msg->group;
    group->epoch = msg->epoch;
    group->follows = msg->follows;
    group->uid = msg->uid;
    group->net = (struct plan_net){msg->latency_us, msg->mbytes_s};
    group->gpu = msg->gpu;
    group->size = msg->size;
    group->home = home;
    memcpy(group->members, msg->members, msg->size * sizeof(*group->members));
    text_copy(group->name, sizeof(group->name), msg->name);
    group_set_state(core, group, GROUP_COMMITTED);
    return group;
}

/* What the limits are by now does not matter: its ranks are there, or others have to hear of it. */
struct group *group_restore(struct core *core, const struct core_kept_group *kept, unsigned me)
{
    struct user *user = user_get(core, kept->payer, true);
    struct group *group;

    assert(core->phase == PHASE_RESTORING && kept->id && kept->size);
    group = group_make(core, user, user ? user_restore_run(core, user, kept->size) : NULL,
                       kept->nnodes, me);
    if (!group)
        return NULL;
    group->id = kept->id;
    group->epoch = kept->epoch;
    group->follows = kept->follows;
    group->uid = kept->uid;
    group->net = kept->net;
    group->gpu = kept->gpu;
    group->size = kept->size;
    group->home = core->config.self;
    memcpy(group->members, kept->members, kept->size * sizeof(*group->members));
    text_copy(group->name, sizeof(group->name), kept->name);
    group_set_state(core, group, GROUP_COMMITTED);
    if (kept->state == CORE_GROUP_COMMITTED)
        return group;
    group->nconfirmed = kept->nnodes - 1;
    for (unsigned i = 0; i < kept->nnodes; i++)
        group->confirmed[i] = i != me;
    group->boarded = kept->state == CORE_GROUP_OPEN;
    group_set_state(core, group, group->boarded ? GROUP_OPEN : GROUP_LEFT);
    return group;
}

void group_restore_broken(struct core *core, struct group *group,
                          const struct core_group_broken *broken, unsigned node)
{
    assert(core->phase == PHASE_RESTORING);
    set_cause(group, broken->cause, broken->rank, broken->pid, node, broken->text);
    group->revoked = revokes(core, group);
    if (group->state == GROUP_OPEN)
        group_set_state(core, group, GROUP_BROKEN);
}

void group_note_next(struct core *core, const struct group *group)
{
    struct group *before = group->follows ? group_find(core, group->follows) : NULL;

    if (before && before->uid == group->uid)
        before->next_epoch = group->epoch;
}

/* A node where all its ranks are new processes has no epoch before. */
static void recovered(struct core *core, const struct group *group)
{
    const struct group *before = group_find(core, group->follows);
    enum core_recovered kind = CORE_RECOVERED_FEWER;
    uint32_t came = 0;

    for (uint32_t i = 0; i < group->size; i++)
        came += !group->members[i].was;
    if (came)
        kind = CORE_RECOVERED_NEW;
    else if (before && before->size == group->size)
        kind = CORE_RECOVERED_ALL;
    core->counts.groups_recovered[kind]++;
    group_note_next(core, group);
    follow_note_open(core, before, group, came);
}

static bool is_agreed(const struct group *group)
{
    return group->state == GROUP_COMMITTED && group_agreed(group);
}

/* A next epoch for which all have voted: ranks of other nodes may be in it already, and will go on
 * from it. So it opens here, too, before it breaks. */
static bool may_be_open(const struct group *group)
{
    return is_agreed(group) && group->follows;
}

static void open_group(struct core *core, struct group *group)
{
    char name[TEXT_QUOTED];
    struct member *member;

    assert(is_agreed(group) && !group->boarded);
    assert(group->nlocal && !group->cause);
    group_set_state(core, group, GROUP_OPEN);
    core->counts.groups_opened++;
    group->boarded = true;
    list_each(member, &group->local, by_group)
        member_set_state(core, member, MEMBER_JOINED);
    for (unsigned i = 0; i < group->nnodes; i++) {
        core->peers[group->nodes[i]].free = false;
        if (peer_usable(core, group->nodes[i])) /* it was lost while all agreed, and is back */
            follow_place_lost(core, group, i, false);
    }
    if (group->follows)
        recovered(core, group);
    else
        act_note(core, CORE_NOTE_GROUP_OPEN, CORE_BY_USER, group->uid, CORE_LOG_DEBUG,
                 "group %s: %u ranks on %u nodes -> open", text_quote(name, group->name),
                 group->size, group->nnodes);
    act_push(core, (struct core_action){.type = CORE_DO_GROUP_OPEN, .group_open = {group->id}});
    act_fates(core, group, false);
    core->misses |= group->misses;
    if (group->doubt) /* what was not heeded, and is no matter of the votes */
        group_ask_all(core, group);
}

void group_try_open(struct core *core, struct group *group)
{
    if (!is_agreed(group))
        return;
    if (group->doubt && group->doubt != CAUSE_LEFT) {
        open_group(core, group);
        set_cause(group, group->doubt, -1, 0, group->bond_node, group->bond_text);
        break_group(core, group, group->bond_node == core->config.self ? TELL_ALL : TELL_FIRST);
        return;
    }
    for (unsigned i = 0; i < group->nnodes; i++)
        if (!peer_usable(core, group->nodes[i]))
            return;
    open_group(core, group);
}

void group_open_ready(struct core *core)
{
    struct group *group;

    list_each(group, &core->all_groups, all)
        group_try_open(core, group);
}

/* ---- what breaks a group --------------------------------------------------------------------- */

bool group_all_gone(const struct core *core, const struct group *group, unsigned place)
{
    for (uint32_t i = 0; i < group->size; i++)
        if (group->members[i].node == place && !runs_fate(&core->runs, &group->members[i])->cause)
            return false;
    return true;
}

void group_broken_msg(struct core *core, unsigned node, const struct msg_broken *msg)
{
    struct group *group = group_find(core, msg->group);
    enum cause cause = msg->cause < CAUSE_COUNT ? msg->cause : CAUSE_INTERNAL;
    int place = group ? group_place(group, node) : -1;
    int who = core_node_find(core, msg->node);
    const char *why = msg->text;
    char text[MSG_TEXT_MAX];
    uint32_t pid = msg->pid;
    bool lost = false;
    enum tell tell = TELL_FIRST;
    int32_t rank;

    if (msg->stray) {
        stray_asked(core, node, msg);
        return;
    }
    if (!group)
        stray_heard(core, msg->group, -1, msg->next);
    if (place < 0)
        return;
    follow_passed(core, group, msg->next);
    if (group->state == GROUP_BROKEN && cause == CAUSE_NONE) {
        follow_place_unknown(core, group, (unsigned)place);
        return;
    }
    if (group->state == GROUP_BROKEN) {
        follow_place_lost(core, group, (unsigned)place, cause == CAUSE_LEFT); /* it never opened */
        return;
    }
    if (who < 0)
        who = (int)node;
    if (group->state == GROUP_LEFT) {
        if (cause && !group->cause && group_first(core, group) == group->me) {
            /* Who says so did not know yet that no rank is left here. */
            set_cause(group, cause, -1, 0, (unsigned)who, msg->text);
            group_mark_broken(core, group, false);
            tell_broken(core, group, TELL_ALL);
        }
        group_told(core, group, (unsigned)place);
        return;
    }
    if (place && group_judged_elsewhere(core, group)) { /* who collects the votes hears it, too */
        group->doubt = group->doubt ? group->doubt : CAUSE_LEFT;
        return;
    }
    if (cause == CAUSE_NONE && group->confirmed[place] &&
        group_all_gone(core, group, (unsigned)place))
        return; /* our SYNC came after its last rank had left: see the top */
    if (may_be_open(group))
        open_group(core, group);
    if (cause == CAUSE_NONE) {
        lost = group->state == GROUP_OPEN;
        cause = lost ? CAUSE_NODE_LOST : CAUSE_LEFT;
        who = (int)node;
        if (lost && follow_is_passed(core, group))
            text_format(text, sizeof(text), TEXT_GROUP_PASSED, core_node_name(core, node),
                        (unsigned long long)group->passed, core_self_name(core));
        else
            text_format(text, sizeof(text), TEXT_GROUP_UNKNOWN, core_node_name(core, node));
        why = lost ? text : why;
    }
    rank = msg->rank >= 0 && (uint32_t)msg->rank < group->size ? msg->rank : -1;
    if (!lost && msg->rank >= 0 && (rank < 0 || group->members[rank].node != (uint32_t)place)) {
        /* Not one of its own: nobody is blamed by hearsay but who says so. */
        text_format(text, sizeof(text), "node %s says: %s", core_node_name(core, node), msg->text);
        rank = -1;
        pid = 0;
        who = (int)node;
        why = text;
    }
    if (cause == CAUSE_LEFT && group->state == GROUP_COMMITTED) {
        group_withdraw(core, group, rank, pid, (unsigned)who, why);
        return;
    }
    if (lost || cause == CAUSE_LEFT)
        follow_place_lost(core, group, (unsigned)place, true);
    /* Withdrawn by one after all had agreed: a rank of it was lost before it opened there. */
    set_cause(group, cause == CAUSE_LEFT ? CAUSE_RANK_LOST : cause, rank, pid, (unsigned)who, why);
    /* Who of the ranks has broken it says so to all, and no other node may say it. */
    if (cause == CAUSE_ABORTED && msg->rank >= 0 && group->state == GROUP_OPEN)
        tell = TELL_NOBODY;
    else if ((unsigned)place == group_first(core, group))
        tell = TELL_NOBODY; /* it does */
    break_group(core, group, tell);
}

void group_abort(struct core *core, struct group *group, const struct member *member,
                 const char *text)
{
    assert(member->group == group);
    if (group->state != GROUP_OPEN)
        return;
    set_cause(group, CAUSE_ABORTED, (int32_t)member->rank, member->pid, core->config.self, text);
    break_group(core, group, TELL_ALL);
}

void group_kick(struct core *core, struct group *group, const struct member *member,
                const char *text)
{
    assert(group->state == GROUP_OPEN || group->state == GROUP_COMMITTED);
    assert(!member || member->group == group);
    if (group->state != GROUP_OPEN)
        member = NULL; /* it is handed on, and only this node may name the rank */
    set_cause(group, CAUSE_ABORTED, member ? (int32_t)member->rank : -1, member ? member->pid : 0,
              core->config.self, text);
    break_group(core, group, TELL_ALL);
}

void group_board_error(struct core *core, const struct msg_board *msg)
{
    struct group *group = group_find(core, msg->group);
    unsigned node = msg->peer >= 0 && (unsigned)msg->peer < core->config.nnodes
                        ? (unsigned)msg->peer
                        : core->config.self;

    if (!group || group->state != GROUP_OPEN)
        return;
    assert(group->boarded && group->nlocal);
    set_cause(group,
              msg->cause > CAUSE_NONE && msg->cause < CAUSE_COUNT ? msg->cause : CAUSE_INTERNAL, -1,
              0, node, msg->text);
    break_group(core, group, TELL_ALL);
}

void group_board_failed(struct core *core, uint64_t id, enum cause cause, const char *why)
{
    struct group *group = group_find(core, id);
    char text[MSG_TEXT_MAX];

    if (!group || (group->state != GROUP_OPEN && group->state != GROUP_BROKEN))
        return;
    text_format(text, sizeof(text), "group \"%s\": node %s could not make its board: %s",
                group->name, core_self_name(core), why ? why : "no reason given");
    assert(group->boarded); /* and GROUP_CLOSE does not follow */
    group->boarded = false;
    if (group->state == GROUP_OPEN) {
        set_cause(group, cause == CAUSE_QUOTA ? CAUSE_QUOTA : CAUSE_NOMEM, -1, 0, core->config.self,
                  text);
        group_log(core, CORE_NOTE_GROUP_FAILED, group->uid,
                  cause == CAUSE_QUOTA ? CORE_LOG_INFO : CORE_LOG_ERROR, group->name, text,
                  "broken");
        count_cause(core->counts.groups_broken, group->cause);
        tell_broken(core, group, TELL_ALL);
    }
    end_committed(core, group);
}

bool group_has_empty_node(const struct core *core, const struct group *group)
{
    for (unsigned i = 0; i < group->nnodes; i++)
        if (i != group->me && group_all_gone(core, group, i))
            return true;
    return false;
}

void group_bond_failed(struct core *core, struct group *group)
{
    set_cause(group, CAUSE_ENGINE_LOST, -1, 0, group->bond_node, group->bond_text);
    break_group(core, group, TELL_FIRST);
}

/* AGREED: and not those to which the node has not agreed yet. BUSY: of the open ones those that
 * cannot wait. OPEN: these, and none that is to be. */
enum lose { LOSE_ALL, LOSE_AGREED, LOSE_BUSY, LOSE_OPEN };
static void lose_node(struct core *core, unsigned node, enum cause cause, const char *text,
                      bool tell, enum lose which)
{
    struct group *group;

    assert(cause == CAUSE_NODE_LOST || cause == CAUSE_ENGINE_LOST);
    assert(node < core->config.nnodes);
    list_each(group, &core->all_groups, all) {
        int place = group_place(group, node);

        if (group->nnodes == 1 || place < 0 ||
            (group->state != GROUP_OPEN && (which == LOSE_OPEN || group->state != GROUP_COMMITTED)))
            continue;
        /* it had not agreed before it lost its engine: it does so with the next one, or not */
        if (which != LOSE_ALL && node != core->config.self && group->state == GROUP_COMMITTED &&
            !group->confirmed[place])
            continue;
        if (group_judged_elsewhere(core, group)) {
            group->doubt = cause;
            group->bond_node = node;
            text_copy(group->bond_text, sizeof(group->bond_text), text);
            continue;
        }
        if (may_be_open(group))
            open_group(core, group);
        else if (which >= LOSE_BUSY && bond_loosen(core, group, node, text))
            continue;
        set_cause(group, cause, -1, 0, node, text);
        break_group(core, group,
                    !tell                       ? TELL_NOBODY
                    : node == core->config.self ? TELL_ALL
                                                : TELL_FIRST);
    }
}

void group_node_lost(struct core *core, unsigned node, const char *text, bool tell)
{
    lose_node(core, node, CAUSE_NODE_LOST, text, tell, LOSE_ALL);
}

void group_apart(struct core *core, unsigned node, enum cause cause, const char *text)
{
    lose_node(core, node, cause, text, true, LOSE_AGREED);
}

/* Others may wait for the next engine, so those that break here are told. */
void group_engine_lost(struct core *core, unsigned node, const char *text)
{
    lose_node(core, node, CAUSE_ENGINE_LOST, text, true, LOSE_BUSY);
}

void group_unconnected(struct core *core, unsigned node, const char *text)
{
    lose_node(core, node, CAUSE_ENGINE_LOST, text, true, LOSE_OPEN);
}

void group_stop(struct core *core, const char *why)
{
    char text[MSG_TEXT_MAX];

    assert(core->stopping);
    text_format(text, sizeof(text), TEXT_COMMD_STOPS "%s%s", core_self_name(core), why ? ": " : "",
                why ? why : "");
    group_node_lost(core, core->config.self, text, true);
}
