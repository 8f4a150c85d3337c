/* core_follow.c - a local rank that wants the next epoch of a group: the origin's side.
 *
 * Such a join goes the way of any other (core_join.c), and says besides which group it follows, or
 * that it is a new process (REJOIN). The client is believed in nothing: it has to be in the group
 * that it follows, and its rank, size and epoch come from this node's tables. Of a group that this
 * node does not know: core_stray.c.
 *
 * The home waits for the ranks of the last epoch that live. So it is told, after the JOIN and
 * whenever more is known, which ranks are gone (JOIN_NEWS). A rank is gone when its own node has
 * said so (it left, or was lost: core_rank.c), or when its node was lost (group.lost). A node that
 * is back is asked what it has of the groups that broke: if it has the group, its ranks are not
 * gone but for those of which it says so. One whose commd and engine have ended at once, and whose
 * host lives, has until node_timeout to be linked again, and restart_timeout to be READY; then it
 * counts as lost (follow_tick()). Else both sides would go on alone when they could go on together.
 *
 * Who comes too late is told so: GONE and BROKEN say that ranks have gone on as a next epoch, and a
 * node that has no part in it lets no rank follow that group any more (group.passed). Ranks that
 * went on have left the group, and without that they would look like ranks that are gone. It is
 * told also when that epoch has ended since: the last ones are remembered (core->passed).
 *
 * The group itself stays as it is, broken or not, until its clients leave it: it is by the group
 * that this node goes on hearing who dies.
 *
 * WAIT has a limit of its own for new processes. This node keeps it, and tells the home when it has
 * passed.
 *
 * A client can go on from a group once: as long as it asks for that, or is in the group that
 * followed, it cannot ask again under another name. So no process is in two groups that follow one.
 *
 * Who wakes me: GONE, BROKEN, clients that end, nodes that are lost, join_tick(). What if the home
 * dies now: the join and all that is known are told to the next one. What if I am stopped now: as
 * core_join.c.
 */
#include "daemon/core/core_internal.h"

enum {
    FOLLOW_VERSION = 11, /* of MSG_VERSION, from which on a home can do this */
    FOLLOW_LOOKS = 4096, /* ranks of a group, to say who does not go on */
    FOLLOW_NAMES = 16,   /* of these that are named */
};

static struct member *rank_in(const struct client *client, uint64_t id)
{
    struct member *member;

    list_each(member, &client->members, by_client)
        if (member->state == MEMBER_JOINED && member->group->id == id)
            return member;
    return NULL;
}

/* The member by which @client goes on from group @id already, or asks to. */
static const struct member *successor(const struct client *client, uint64_t id)
{
    const struct member *member;

    list_each(member, &client->members, by_client)
        if (member->group ? member->group->follows == id : member->wish.follows == id)
            return member;
    return NULL;
}

bool follow_ok(const struct core *core, const struct client *client,
               const struct msg_client_join *msg, struct refusal *ret_refusal)
{
    const struct member *old = rank_in(client, msg->follows);
    const struct member *other = successor(client, msg->follows);
    uint64_t epoch = old ? old->group->epoch : msg->was_epoch;
    uint32_t rank = old ? old->rank : msg->was_rank;
    uint32_t size = old ? old->group->size : msg->was_size, seats;

    if (msg->size > core->config.max_size)
        return REFUSE(CAUSE_INVALID, "group \"%s\": %u seats, allowed are 1 to %u ranks", msg->name,
                      msg->size, core->config.max_size);
    if (msg->recovery == MSG_RECOVERY_REJOIN && !msg->follows &&
        (msg->rank == MSG_ANY_SEAT || !msg->size || msg->rank < msg->size))
        return true;
    if ((msg->recovery != MSG_RECOVERY_SHRINK && msg->recovery != MSG_RECOVERY_WAIT) ||
        !msg->follows)
        return REFUSE(CAUSE_INVALID, "group \"%s\": this is no way to go on from a group",
                      msg->name);
    if (!old && !stray_ok(core, client, msg, ret_refusal))
        return false;
    if (other)
        return REFUSE(CAUSE_INVALID,
                      "group \"%s\": this client %s from its epoch %llu already, as group \"%s\"",
                      msg->name, other->state == MEMBER_JOINED ? "has gone on" : "asks to go on",
                      (unsigned long long)epoch, other->name);
    seats = msg->recovery == MSG_RECOVERY_WAIT && msg->size ? msg->size : size;
    if (msg->least > seats)
        return REFUSE(CAUSE_INVALID, "group \"%s\": at least %u ranks are wanted, and it has %u",
                      msg->name, msg->least, seats);
    if (rank >= seats)
        return REFUSE(CAUSE_INVALID,
                      "group \"%s\": rank %u of epoch %llu has no seat among %u: leave it out, "
                      "or shrink",
                      msg->name, rank, (unsigned long long)epoch, seats);
    return true;
}

void follow_asked(struct core *core, const struct member *member)
{
    assert(member->state == MEMBER_COMMITTED);
    act_push(core, (struct core_action){.type = CORE_DO_RANK_ASKED,
                                        .rank_asked = {.group = member->group->id,
                                                       .rank = member->rank,
                                                       .req = member->req}});
}

bool follow_replaces(struct core *core, struct client *client, const struct msg_client_join *msg)
{
    struct member *member;

    list_each(member, &client->members, by_client) {
        if (member->state == MEMBER_JOINED || !member->wish.recovery || !msg->recovery ||
            member->wish.follows != msg->follows || strcmp(member->name, msg->name))
            continue;
        if (member->state == MEMBER_COMMITTED) {
            member->req = msg->req;
            member->claim = CLAIM_IN;
            follow_asked(core, member);
            join_begin(core, member, msg);
            return true;
        }
        join_cancel(core, member);
        member_end(core, member);
        return false;
    }
    return false;
}

void follow_begin(struct core *core, struct member *member, const struct msg_client_join *msg)
{
    const struct client *client = &core->clients[member->client];
    const struct member *old = rank_in(client, msg->follows);
    struct wish *wish = &member->wish;

    assert(!wish->stray);
    *wish = (struct wish){.recovery = (enum msg_recovery)msg->recovery,
                          .rank = msg->rank,
                          .size = msg->size,
                          .least = msg->least,
                          .follows = msg->follows,
                          .enough_ms = CORE_NEVER};
    if (msg->recovery == MSG_RECOVERY_NONE || msg->recovery == MSG_RECOVERY_REJOIN)
        return;
    wish->stray = old ? NULL : stray_take(core, client, msg);
    wish->rank = old ? old->rank : msg->was_rank;
    wish->size = old ? old->group->size : msg->was_size;
    wish->was_epoch = old ? old->group->epoch : wish->stray ? wish->stray->epoch : 0;
    wish->seats = 1;
    if (msg->recovery != MSG_RECOVERY_WAIT)
        return;
    wish->seats = msg->size ? msg->size : wish->size;
    if (msg->wait_ms && msg->wait_ms < CORE_NEVER - core->now)
        wish->enough_ms = core->now + msg->wait_ms;
    core->expire_ms = MIN(core->expire_ms, wish->enough_ms);
}

static const struct group *followed_by(const struct core *core, uint64_t follows)
{
    const struct group *group;

    list_each(group, &core->all_groups, all)
        if (group->follows == follows &&
            (group->state == GROUP_OPEN || group->state == GROUP_BROKEN))
            return group;
    return NULL;
}

const struct group *follow_gone_on(const struct core *core, uint32_t uid, uint64_t follows)
{
    const struct group *group = followed_by(core, follows);

    return group && group->uid == uid ? group : NULL;
}

uint64_t follow_gone_as(const struct core *core, const uint32_t *uid, uint64_t follows)
{
    const struct group *group = followed_by(core, follows);

    if (group)
        return !uid || group->uid == *uid ? group->epoch : 0;
    for (unsigned i = 0; i < CORE_PASSED; i++)
        if (core->passed[i].follows == follows && core->passed[i].epoch &&
            (!uid || core->passed[i].uid == *uid))
            return core->passed[i].epoch;
    return 0;
}

/* What is forgotten for one more of @payer: the oldest of who has the most. So nobody makes this
 * node forget the epochs of others by many of one's own. */
static unsigned forgotten_for(const struct core *core, uint32_t payer)
{
    unsigned most = 0, which = 0;

    for (unsigned i = 0; i < CORE_PASSED; i++) {
        unsigned n = core->passed[i].payer == payer;

        if (!core->passed[i].epoch)
            return i;
        for (unsigned k = i; k < CORE_PASSED; k++)
            n += core->passed[k].payer == core->passed[i].payer;
        if (n > most)
            which = i;
        most = MAX(n, most);
    }
    return which;
}

void follow_remember(struct core *core, const struct group *group)
{
    unsigned i = forgotten_for(core, group->payer);

    memmove(&core->passed[i], &core->passed[i + 1],
            (CORE_PASSED - 1 - i) * sizeof(core->passed[0]));
    core->passed[CORE_PASSED - 1] =
        (struct passed){group->follows, group->epoch, group->uid, group->payer};
}

void follow_left_behind(const char *name, uint64_t epoch, uint32_t rank, char *buf, size_t cap)
{
    text_format(buf, cap,
                "group \"%s\": the others have gone on as epoch %llu without rank %u of the epoch "
                "before: rejoin as a new process",
                name, (unsigned long long)epoch, rank);
}

/* As which epoch others have gone on without @member; 0: not as far as is known. */
static uint64_t passed_by(const struct core *core, const struct member *member)
{
    uint64_t follows = member->wish.follows;
    uint64_t next = follows ? follow_gone_as(core, &member->uid, follows) : 0;
    const struct group *before = follows && !next ? group_find(core, follows) : NULL;

    if (next)
        return next;
    return before ? before->passed : member->wish.stray ? member->wish.stray->passed : 0;
}

/* Nobody that it could go on with will come. */
static bool is_forsaken(const struct core *core, const struct member *member)
{
    return passed_by(core, member) || (member->wish.stray && member->wish.stray->alone);
}

static void tell_forsaken(struct core *core, struct member *member)
{
    uint64_t next = passed_by(core, member);
    char text[MSG_TEXT_MAX];

    if (next)
        follow_left_behind(member->name, next, member->wish.rank, text, sizeof(text));
    else
        text_format(text, sizeof(text),
                    "group \"%s\": no other node knows epoch %llu of it any more: its ranks there "
                    "have ended, or have gone on without rank %u: leave the group and rejoin, or "
                    "make a subgroup of the ranks that live",
                    member->name, (unsigned long long)member->wish.was_epoch, member->wish.rank);
    join_cancel(core, member);
    join_fail(core, member, CAUSE_RANK_LOST, (int32_t)member->wish.rank, -1, text);
}

bool follow_home_ok(struct core *core, struct member *member, unsigned home)
{
    const struct wish *wish = &member->wish;
    char text[MSG_TEXT_MAX];

    if (wish->recovery == MSG_RECOVERY_NONE)
        return true;
    if (is_forsaken(core, member)) {
        member->home = -1; /* it has not been asked */
        tell_forsaken(core, member);
        return false;
    }
    if (wish->follows && !wish->was_epoch) {
        if (wish->size)
            text_format(text, sizeof(text),
                        "group \"%s\": node %s has no room for %u ranks that go on: leave some "
                        "groups",
                        member->name, core_self_name(core), wish->size);
        else
            text_format(text, sizeof(text),
                        "group \"%s\": this client is not in the group any more that it wants to "
                        "go on from",
                        member->name);
        join_fail(core, member, wish->size ? CAUSE_QUOTA : CAUSE_INVALID, -1, -1, text);
        return false;
    }
    if (home == core->config.self || core->peers[home].version >= FOLLOW_VERSION)
        return true;
    text_format(text, sizeof(text),
                "group \"%s\": its home node %s runs a commd that speaks protocol version %u and "
                "cannot let a group go on: upgrade commd there",
                member->name, core_node_name(core, home), core->peers[home].version);
    join_fail(core, member, CAUSE_PROTOCOL, -1, (int)home, text);
    return false;
}

bool follow_fits(const struct member *member, const struct msg_commit *msg, uint32_t rank)
{
    const struct wish *wish = &member->wish;
    uint32_t was = msg->members[rank].was;

    switch (wish->recovery) {
    case MSG_RECOVERY_NONE:
        return !msg->follows && !was && member->rank == rank && member->size == msg->size;
    case MSG_RECOVERY_REJOIN:
        return msg->follows && !was;
    case MSG_RECOVERY_SHRINK:
    case MSG_RECOVERY_WAIT:
        return msg->follows == wish->follows && was == wish->rank + 1 &&
               msg->epoch > wish->was_epoch && msg->size >= wish->least;
    case MSG_RECOVERY_COUNT:
        break;
    }
    abort();
}

/* ---- what the home is told ------------------------------------------------------------------- */

static bool asks(const struct member *member)
{
    return member->wish.follows && member->home >= 0 &&
           (member->state == MEMBER_ASKING || member->state == MEMBER_EXPIRING);
}

static bool rank_is_gone(const struct core *core, const struct group *group, uint32_t rank)
{
    const struct msg_member *member = &group->members[rank];

    return runs_fate(&core->runs, member)->cause || group->lost[member->node];
}

const struct msg_member *follow_went_on(const struct group *next, uint32_t rank, uint32_t *at)
{
    while (*at < next->size && next->members[*at].was < rank + 1)
        ++*at;
    return *at < next->size && next->members[*at].was == rank + 1 ? &next->members[*at] : NULL;
}

/* Is nobody left who stays in @group? */
static bool all_go_on(const struct core *core, const struct group *group, const struct group *next)
{
    uint32_t at = 0;

    for (uint32_t rank = 0; rank < group->size; rank++) {
        const struct msg_member *member = follow_went_on(next, rank, &at);

        if ((!member || runs_fate(&core->runs, member)->cause) && !rank_is_gone(core, group, rank))
            return false;
    }
    return true;
}

const struct group *follow_successor(const struct core *core, const struct member *member)
{
    const struct client *client = &core->clients[member->client];
    const struct member *other = successor(client, member->group->id);

    return other && other->state == MEMBER_JOINED && all_go_on(core, member->group, other->group)
               ? other->group
               : NULL;
}

void follow_fill(struct core *core, const struct member *member, uint64_t join,
                 struct msg_join_news *ret_msg)
{
    const struct group *group = group_find(core, member->wish.follows);
    const struct stray *stray = member->wish.stray;
    uint32_t size = stray ? stray->size : group ? group->size : 0;

    *ret_msg =
        (struct msg_join_news){.join = join, .enough = member->wish.enough, .gone = core->gone};
    for (uint32_t i = 0; i < size; i++)
        if (stray ? stray_gone(core, stray, i) : rank_is_gone(core, group, i))
            core->gone[ret_msg->ngone++] = i;
}

void follow_learned(struct core *core, struct group *group)
{
    group->heard++;
    core->learned = true;
}

void follow_place_lost(struct core *core, struct group *group, unsigned place, bool lost)
{
    if (group->lost[place] == lost || place == group->me)
        return;
    group->lost[place] = lost;
    follow_learned(core, group);
    group->misses = core->misses = true;
}

void follow_node_lost(struct core *core, unsigned node)
{
    struct group *group;

    core->peers[node].given_up = true;
    list_each(group, &core->all_groups, all) {
        int place = group_place(group, node);

        if (place >= 0)
            follow_place_lost(core, group, (unsigned)place, true);
    }
}

void follow_place_unknown(struct core *core, struct group *group, unsigned place)
{
    struct peer *peer = &core->peers[group->nodes[place]];
    uint64_t until = peer->since_ms + core->config.node_timeout_ms;

    if (peer->state == CORE_PEER_READY && peer->strays && core->now < until)
        peer->recheck_ms = until;
    else
        follow_place_lost(core, group, place, true);
}

void follow_passed(struct core *core, struct group *group, uint64_t next)
{
    if (next <= group->epoch || group->passed)
        return;
    group->passed = next;
    follow_learned(core, group);
}

bool follow_is_passed(const struct core *core, const struct group *group)
{
    const struct group *next;

    list_each(next, &core->all_groups, all)
        if (next->follows == group->id)
            return false;
    return group->passed;
}

/* One that was never linked in our life, or may come back after it was lost. */
void follow_tick(struct core *core)
{
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        struct peer *peer = &core->peers[i];
        uint64_t until = peer->hope_ms;

        if (peer->recheck_ms && peer->state == CORE_PEER_READY && core->now >= peer->recheck_ms) {
            peer->recheck_ms = 0;
            group_ask_broken(core, i);
        }
        if (peer->given_up ||
            (peer->state != CORE_PEER_UNLINKED && peer->state != CORE_PEER_LINKING))
            continue;
        if (peer->state == CORE_PEER_UNLINKED)
            until = MIN(until, peer->since_ms + core->config.node_timeout_ms);
        if (core->now >= until)
            follow_node_lost(core, i);
        else
            follow_look(core, i);
    }
}

void follow_look(struct core *core, unsigned node)
{
    if (core->peers[node].state == CORE_PEER_UNLINKED && core->peers[node].hope_ms != CORE_NEVER)
        act_push(core,
                 (struct core_action){.type = CORE_DO_PEER_LOOK, .peer_look = {.node = node}});
}

void follow_tell(struct core *core, struct member *member)
{
    if (asks(member) && list_is_off(&member->news))
        list_add(&core->news, &member->news);
}

void follow_enough(struct core *core, struct member *member)
{
    assert(member->wish.recovery == MSG_RECOVERY_WAIT && core->now >= member->wish.enough_ms);
    member->wish.enough = true;
    member->wish.enough_ms = CORE_NEVER;
    follow_tell(core, member);
}

/* How much is known of the group that @member follows: more than this is news. */
static uint64_t known(const struct core *core, const struct member *member)
{
    const struct group *group = group_find(core, member->wish.follows);

    if (member->wish.stray)
        return 1 + member->wish.stray->heard;
    return group ? 1 + group->heard : 0;
}

static void tell_news(struct core *core, struct member *member)
{
    struct msg_join_news msg;

    if (!asks(member))
        return; /* it has its answer, or is asked elsewhere */
    member->wish.told = known(core, member);
    follow_fill(core, member, member->join, &msg);
    if (!msg.ngone && !msg.enough)
        return;
    if (member->home == (int)core->config.self)
        recover_news(core, core->config.self, &msg);
    else
        act_to_peer(core, (unsigned)member->home,
                    (struct act_msg){.type = MSG_JOIN_NEWS,
                                     .join = {.join = member->join, .member = member}});
}

void follow_run(struct core *core)
{
    struct member *member;
    struct group *group;

    if (core->misses)
        list_each(group, &core->all_groups, all) {
            if (!group->misses || !group->boarded) /* or not yet: open_group() */
                continue;
            /* once, for all nodes that were lost together */
            act_push(core, (struct core_action){.type = CORE_DO_NODES_MISSED,
                                                .nodes_missed = {group->id}});
            group->misses = false;
        }
    core->misses = false;
    if (core->learned)
        list_each(member, &core->waiting, waiting)
            if (asks(member) && known(core, member) != member->wish.told) {
                if (is_forsaken(core, member))
                    tell_forsaken(core, member);
                else
                    follow_tell(core, member);
            }
    core->learned = false;
    while ((member = list_first(&core->news, struct member, news))) {
        list_del(&member->news);
        tell_news(core, member);
    }
}

/* ---- the event ------------------------------------------------------------------------------- */

/* ", without rank 3,5": of @old. */
static void without(const struct group *old, const struct group *group, struct text *text)
{
    uint32_t end = MIN(old->size, (uint32_t)FOLLOW_LOOKS), at = 0, found = 0;

    for (uint32_t rank = 0; rank < end; rank++)
        if (!follow_went_on(group, rank, &at) && found++ < FOLLOW_NAMES)
            text_add(text, found == 1 ? ", without rank %u" : ",%u", rank);
    if (found > FOLLOW_NAMES)
        text_add(text, ",...");
}

void follow_note_open(struct core *core, const struct group *old, const struct group *group,
                      uint32_t came)
{
    char name[TEXT_QUOTED], buf[MSG_TEXT_MAX / 2] = "";
    struct text text = {buf, sizeof(buf), 0};

    assert(group->follows);
    if (old)
        without(old, group, &text);
    if (came)
        text_add(&text, ", with %u new process%s", came, came == 1 ? "" : "es");
    act_note(core, CORE_NOTE_GROUP_RECOVERED, CORE_BY_USER, group->uid, CORE_LOG_INFO,
             "group %s: goes on as epoch %llu, %u ranks on %u nodes%s",
             text_quote(name, group->name), (unsigned long long)group->epoch, group->size,
             group->nnodes, buf);
}
