/* core_recover.c - the home's side of a recovery: who of a group is left, and which new processes
 * take the seats of the others.
 *
 * It is a join (core_home.c) whose ranks are not fixed beforehand. A forming of survivors is keyed
 * by (uid, name, the group that they follow). Its places are the ranks of the last epoch (SHRINK)
 * or the seats of the next one (WAIT). A rank of the last epoch is awaited until it is here, or
 * until any origin says that it is gone (JOIN_NEWS). One that is said to be gone and comes all the
 * same is let in: it lives, and its link was cut for a moment.
 *
 *   SHRINK  is complete when nobody is awaited. Ranks without gaps, in the order of the old ones.
 *   WAIT    is complete when nobody is awaited and all seats are taken: who is left keeps its
 *           number. Or, when a rank has said `enough`, with the new processes that are there:
 *           then without gaps, in the order of the seats.
 *
 * New processes (REJOIN) wait in formings of their own, the lobbies, keyed by (uid, name), of
 * LOBBY places each. They are taken when a forming of that name with WAIT becomes complete by them:
 * first those who want a certain seat, then the others for the lowest seats. Who is not needed
 * stays, until its time runs out.
 *
 * The first join fixes what is wanted (kind, seats, least); one that contradicts is refused.
 * Fewer than `least` that are left of a SHRINK: all are refused at once. Who comes when the others
 * have gone on already is refused, if this node is in the group that followed.
 *
 * What a lying node can do here it can do to any join of the users for whom it may ask: take a
 * place, or contradict first. A rank that it says to be gone is not waited for, and that is all. It
 * has to have a join in the forming to say so.
 *
 * Who wakes me: JOIN, JOIN_NEWS, JOIN_CANCEL; no timer, because origins keep the limits. What if an
 * origin dies now: home_node_lost(); the other origins say that its ranks are gone. What if I die
 * now: origins ask the next home, and tell it the same. */
#include "daemon/core/core_internal.h"

enum { LOBBY = 64 };

static bool is_lobby(const struct forming *forming)
{
    return forming->recovery.kind == MSG_RECOVERY_REJOIN;
}

static struct fate *fate_at(const struct core *core, const struct forming *forming, uint32_t i)
{
    assert(i < forming->size);
    return runs_fate(&core->runs, &forming->members[i]);
}

/* The first forming of that kind at or after @from in its bucket, NULL: none. @follows 0: of any
 * group. */
static struct forming *next_of(struct core *core, const struct list *from, uint32_t uid,
                               const char *name, enum msg_recovery kind, uint64_t follows)
{
    const struct list *bucket = home_bucket(core, uid, name);

    for (const struct list *at = from; at != bucket; at = at->next) {
        struct forming *forming = container_of(at, struct forming, hash);

        if (forming->uid != uid || strcmp(forming->name, name) ||
            (follows && forming->recovery.follows != follows) ||
            (!follows && forming->recovery.kind != kind))
            continue;
        return forming;
    }
    return NULL;
}

static struct forming *first_forming(struct core *core, uint32_t uid, const char *name,
                                     enum msg_recovery kind, uint64_t follows)
{
    return next_of(core, home_bucket(core, uid, name)->next, uid, name, kind, follows);
}

static struct forming *first_lobby(struct core *core, uint32_t uid, const char *name)
{
    return first_forming(core, uid, name, MSG_RECOVERY_REJOIN, 0);
}

static struct forming *next_lobby(struct core *core, const struct forming *lobby)
{
    if (!lobby)
        return NULL;
    return next_of(core, lobby->hash.next, lobby->uid, lobby->name, MSG_RECOVERY_REJOIN, 0);
}

/* All lobbies of that name, while the body frees none but @lobby. */
#define each_lobby(lobby, core, uid, name)                                                         \
    for (struct forming *next = next_lobby(core, lobby = first_lobby(core, uid, name)); lobby;     \
         lobby = next, next = next_lobby(core, lobby))

/* ---- texts ----------------------------------------------------------------------------------- */

static bool place_is_gone(const struct core *core, const struct forming *forming, uint32_t i)
{
    return i < forming->recovery.was_size && !forming->members[i].join &&
           fate_at(core, forming, i)->gone;
}

static bool seat_is_free(const struct core *core, const struct forming *forming, uint32_t i)
{
    return forming->recovery.kind == MSG_RECOVERY_WAIT && !forming->members[i].join &&
           (i >= forming->recovery.was_size || fate_at(core, forming, i)->gone);
}

static unsigned comers(struct core *core, const struct forming *forming)
{
    struct forming *lobby;
    unsigned n = 0;

    each_lobby(lobby, core, forming->uid, forming->name) n += lobby->count;
    return n;
}

bool recover_shown(struct core *core, const struct forming *forming)
{
    return !is_lobby(forming) || forming == first_lobby(core, forming->uid, forming->name);
}

void recover_seats(struct core *core, const struct forming *forming, char *buf, size_t cap,
                   unsigned *ret_count, unsigned *ret_comers)
{
    buf[0] = 0;
    *ret_count = *ret_comers = 0;
    if (forming->recovery.kind == MSG_RECOVERY_WAIT)
        home_list(core, forming, seat_is_free, buf, cap, ret_count);
    if (is_lobby(forming) || forming->recovery.kind == MSG_RECOVERY_WAIT)
        *ret_comers = comers(core, forming);
}

/* Of a new process that asked for @seat, or for any. */
static void lobby_verdict(struct core *core, const struct forming *lobby, uint32_t seat,
                          struct text *text)
{
    const struct forming *group =
        first_forming(core, lobby->uid, lobby->name, MSG_RECOVERY_WAIT, 0);
    char list[MSG_TEXT_MAX / 2];
    unsigned n;

    if (!group) {
        text_add(text, "no rank of a group of that name waits for new processes");
        return;
    }
    if (seat < group->size && group->members[seat].join) {
        text_add(text,
                 "seat %u is taken: pid %u on node %s lives, and goes on with it; ask for another "
                 "seat, or for any",
                 seat, group->members[seat].pid, core_node_name(core, group->members[seat].node));
        return;
    }
    home_missing(core, group, list, sizeof(list), &n);
    if (n)
        text_add(text, "the group still waits for rank%s %s of its epoch %llu", n == 1 ? "" : "s",
                 list, (unsigned long long)group->recovery.epoch);
    else
        text_add(text, "the group had no seat for it, or waits for more new processes");
}

/* ", the first of them pid 7 on node b", if this node was in the group; or that it is not linked.
 */
static void say_first_missing(const struct core *core, const struct forming *forming, bool several,
                              struct text *text)
{
    const struct group *group = group_find(core, forming->recovery.follows);
    const char *first = several ? "the first of them " : "";
    uint32_t rank = 0;

    while (rank < forming->size && !home_is_missing(core, forming, rank))
        rank++;
    if (!group || rank >= MIN(group->size, forming->size))
        return;
    text_add(text, " (%spid %u on node %s%s)", first, group->members[rank].pid,
             core_node_name(core, group->nodes[group->members[rank].node]),
             peer_usable(core, group->nodes[group->members[rank].node]) ? "" : ", which is not up");
}

void recover_verdict(struct core *core, const struct forming *forming,
                     const struct msg_member *late, char *buf, size_t cap)
{
    const struct recovering *recovery = &forming->recovery;
    struct text text = {buf, cap, 0};
    char list[MSG_TEXT_MAX / 3];
    unsigned n, here;

    buf[0] = 0;
    if (is_lobby(forming)) {
        lobby_verdict(core, forming, runs_fate(&core->runs, late)->ops, &text);
        return;
    }
    home_missing(core, forming, list, sizeof(list), &n);
    if (n) {
        text_add(&text, "rank%s %s of epoch %llu", n == 1 ? "" : "s", list,
                 (unsigned long long)forming->recovery.epoch);
        say_first_missing(core, forming, n > 1, &text);
        text_add(&text, " %s not asked to go on", n == 1 ? "has" : "have");
    }
    if (n && recovery->refused && recovery->refused <= forming->size &&
        home_is_missing(core, forming, recovery->refused - 1))
        text_add(&text, ", but rank %u was refused, because it asked for %s", recovery->refused - 1,
                 recovery->refused_wish);
    recover_seats(core, forming, list, sizeof(list), &n, &here);
    if (n)
        text_add(&text, "%sseat%s %s %s free", text.len ? "; " : "", n == 1 ? "" : "s", list,
                 n == 1 ? "is" : "are");
    if (here)
        text_add(&text, "; %u new process%s", here, here == 1 ? " waits" : "es wait");
    if (!text.len)
        text_add(&text, "others that had asked gave up before");
}

static void describe_wish(const struct recovering *recovery, uint32_t seats, char *buf, size_t cap)
{
    struct text text = {buf, cap, 0};

    /* as the arguments are called, and with those that were left out */
    if (recovery->kind == MSG_RECOVERY_SHRINK)
        text_add(&text, "policy shrink");
    else
        text_add(&text, "policy wait, size %u", seats);
    text_add(&text, ", min_size %u", recovery->least);
}

/* ---- the end of a recovery ------------------------------------------------------------------- */

/* Too few are left: all are told. */
static void refuse_all(struct core *core, struct forming *forming)
{
    uint32_t left = forming->count;
    char text[MSG_TEXT_MAX], list[MSG_TEXT_MAX / 3];
    int32_t first = -1;
    unsigned n;

    home_list(core, forming, place_is_gone, list, sizeof(list), &n);
    for (uint32_t i = 0; i < forming->size && first < 0; i++)
        if (place_is_gone(core, forming, i))
            first = (int32_t)i;
    text_format(text, sizeof(text),
                "group \"%s\": %u of its %u ranks are left, and at least %u are wanted: gone %s "
                "rank%s %s of epoch %llu",
                forming->name, left + forming->recovery.awaited, forming->size,
                forming->recovery.least, n == 1 ? "is" : "are", n == 1 ? "" : "s", list,
                (unsigned long long)forming->recovery.epoch);
    for (uint32_t i = 0; left; i++) {
        struct msg_member member = forming->members[i];

        if (!member.join)
            continue;
        left--;
        home_free_place(core, forming, &forming->members[i]);
        /* Who is not told for want of room asks at the end of its time. */
        if (member.node == core->config.self || act_room(core))
            home_refuse(core, member.node, member.join, CAUSE_RANK_LOST, first,
                        -1 /* its origin knows */, text);
    }
}

/* Those that are here get the ranks from 0 on. */
static void commit(struct core *core, struct forming *forming)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < forming->size; i++) {
        if (!forming->members[i].join)
            continue;
        forming->members[n] = forming->members[i];
        if (n++ != i)
            forming->members[i].join = 0;
    }
    assert(n == forming->count && n);
    forming->size = n;
    forming->late = 0;
    home_commit(core, forming);
}

/* Those that were here before stand by their old rank. */
static void forget_survivors(struct core *core, struct forming *forming)
{
    for (uint32_t i = 0; i < forming->size; i++) {
        if (!forming->members[i].join)
            continue;
        home_forget(core, &forming->members[i]);
        forming->members[i].was = i + 1;
    }
}

static void take_seat(struct core *core, struct forming *forming, uint32_t seat,
                      struct forming *lobby, struct msg_member *comer)
{
    assert(!forming->members[seat].join && comer->join);
    forming->members[seat] = (struct msg_member){comer->node, comer->pid, comer->join, 0};
    forming->count++;
    home_free_place(core, lobby, comer);
}

/* The lowest free seats from *@lowest on, or those that they ask for, for the new processes of
 * @lobby. */
static void seat_lobby(struct core *core, struct forming *forming, struct forming *lobby, bool any,
                       uint32_t *lowest)
{
    uint32_t left = lobby->count;

    for (uint32_t i = 0; left; i++) {
        struct msg_member *comer = &lobby->members[i];
        uint32_t seat = fate_at(core, lobby, i)->ops;

        if (!comer->join)
            continue;
        left--;
        if (any != (seat == MSG_ANY_SEAT))
            continue;
        while (any && *lowest < forming->size && forming->members[*lowest].join)
            ++*lowest;
        if (any)
            seat = *lowest;
        if (seat < forming->size && !forming->members[seat].join)
            take_seat(core, forming, seat, lobby, comer);
    }
}

static void refuse_comer(struct core *core, struct forming *lobby, uint32_t i, const char *text)
{
    struct msg_member comer = lobby->members[i];

    home_free_place(core, lobby, &lobby->members[i]);
    home_refuse(core, comer.node, comer.join, CAUSE_INVALID, -1, (int)comer.node, text);
}

static void describe_comer(const struct fate *fate, char *buf, size_t cap)
{
    struct text text = {buf, cap, 0};

    if (fate->ops == MSG_ANY_SEAT)
        text_add(&text, "any seat");
    else
        text_add(&text, "seat %u", fate->ops);
    if (fate->prev)
        text_add(&text, " of %u", fate->prev);
}

/* New processes that mean another number of seats, or one beyond it. */
static void refuse_misfits(struct core *core, const struct forming *forming)
{
    struct forming *lobby;
    char text[MSG_TEXT_MAX], wish[64];

    each_lobby(lobby, core, forming->uid, forming->name)
    {
        uint32_t left = lobby->count;

        for (uint32_t i = 0; left && act_room(core); i++) {
            const struct fate *fate = fate_at(core, lobby, i);

            if (!lobby->members[i].join)
                continue;
            left--;
            if ((!fate->prev || fate->prev == forming->size) &&
                (fate->ops == MSG_ANY_SEAT || fate->ops < forming->size))
                continue;
            describe_comer(fate, wish, sizeof(wish));
            text_format(text, sizeof(text),
                        "group \"%s\": a new process asks for %s, but it has %u seats",
                        forming->name, wish, forming->size);
            refuse_comer(core, lobby, i, text);
        }
    }
}

/* How many free seats the new processes that are here would take. */
static uint32_t takers(struct core *core, const struct forming *forming)
{
    uint32_t empty = forming->size - forming->count, certain = 0, any = 0;
    struct forming *lobby;

    each_lobby(lobby, core, forming->uid, forming->name) for (uint32_t i = 0; i < lobby->size; i++)
    {
        uint32_t seat = fate_at(core, lobby, i)->ops;

        if (!lobby->members[i].join)
            continue;
        any += seat == MSG_ANY_SEAT;
        certain += seat < forming->size && !forming->members[seat].join;
    }
    assert(certain <= empty); /* nobody else asks for the same seat */
    return certain + MIN(any, empty - certain);
}

static void commit_if_complete(struct core *core, struct forming *forming)
{
    const struct recovering *recovery = &forming->recovery;
    uint32_t came, lowest = 0;
    struct forming *lobby;

    assert(forming->count && !forming->id && !is_lobby(forming));
    if (recovery->kind == MSG_RECOVERY_SHRINK &&
        forming->count + recovery->awaited < recovery->least) {
        refuse_all(core, forming);
        return;
    }
    if (recovery->awaited)
        return;
    if (recovery->kind == MSG_RECOVERY_WAIT) {
        refuse_misfits(core, forming);
        came = takers(core, forming);
        if (forming->count + came < forming->size &&
            (!recovery->enough || forming->count + came < recovery->least))
            return;
    }
    forget_survivors(core, forming);
    if (recovery->kind == MSG_RECOVERY_WAIT) {
        each_lobby(lobby, core, forming->uid, forming->name)
            seat_lobby(core, forming, lobby, false, &lowest);
        each_lobby(lobby, core, forming->uid, forming->name)
            seat_lobby(core, forming, lobby, true, &lowest);
    }
    commit(core, forming);
}

/* ---- requests -------------------------------------------------------------------------------- */

bool recover_sound(const struct msg_join *msg)
{
    switch ((enum msg_recovery)msg->recovery) {
    case MSG_RECOVERY_REJOIN:
        return !msg->follows && msg->size <= MSG_MAX_RANKS &&
               (msg->rank == MSG_ANY_SEAT ||
                msg->rank < (msg->size ? msg->size : (uint32_t)MSG_MAX_RANKS));
    case MSG_RECOVERY_SHRINK:
    case MSG_RECOVERY_WAIT:
        return msg->follows && msg->was_size && msg->was_size <= MSG_MAX_RANKS &&
               msg->was_rank < msg->was_size && msg->was_epoch && msg->was_epoch < UINT64_MAX &&
               msg->size <= MSG_MAX_RANKS;
    case MSG_RECOVERY_NONE:
    case MSG_RECOVERY_COUNT:
        break;
    }
    return false;
}

static bool contradicts(struct core *core, unsigned node, struct forming *forming,
                        const struct msg_join *msg, const struct recovering *wanted,
                        uint32_t places)
{
    const struct recovering *recovery = &forming->recovery;
    const struct msg_member *member = &forming->members[MIN(msg->was_rank, forming->size - 1)];
    char text[MSG_TEXT_MAX], theirs[80], its[WISH_TEXT_MAX];
    unsigned about = node;

    if (recovery->kind != wanted->kind || recovery->least != wanted->least ||
        recovery->was_size != wanted->was_size || recovery->epoch != wanted->epoch ||
        forming->size != places) {
        describe_wish(wanted, places, its, sizeof(its));
        describe_wish(recovery, forming->size, theirs, sizeof(theirs));
        text_format(text, sizeof(text),
                    "group \"%s\": rank %u of epoch %llu asks for %s, but others of it asked for "
                    "%s: give the same policy, size and min_size on all ranks",
                    msg->name, msg->was_rank, (unsigned long long)msg->was_epoch, its, theirs);
        forming->recovery.refused = msg->was_rank + 1;
        text_copy(forming->recovery.refused_wish, sizeof(forming->recovery.refused_wish), its);
    } else if (member->join) {
        about = member->node;
        text_format(text, sizeof(text),
                    "group \"%s\": for rank %u of epoch %llu pid %u on node %s has asked already",
                    msg->name, msg->was_rank, (unsigned long long)msg->was_epoch, member->pid,
                    core_node_name(core, member->node));
    } else {
        return false;
    }
    home_refuse(core, node, msg->join, CAUSE_INVALID, (int32_t)msg->was_rank, (int)about, text);
    return true;
}

static void survivor(struct core *core, unsigned node, const struct msg_join *msg)
{
    bool shrinks = msg->recovery == MSG_RECOVERY_SHRINK;
    uint32_t places = shrinks || !msg->size ? msg->was_size : msg->size;
    struct forming *forming =
        first_forming(core, msg->uid, msg->name, MSG_RECOVERY_NONE, msg->follows);
    uint64_t next = forming ? 0 : follow_gone_as(core, &msg->uid, msg->follows);
    struct recovering wanted = {.kind = (enum msg_recovery)msg->recovery,
                                .least = msg->least,
                                .was_size = msg->was_size,
                                .awaited = MIN(places, msg->was_size),
                                .follows = msg->follows,
                                .epoch = msg->was_epoch};
    char text[MSG_TEXT_MAX];

    if (msg->was_rank >= places || msg->least > places) {
        text_format(text, sizeof(text),
                    "group \"%s\": rank %u of epoch %llu cannot go on with at least %u of %u ranks",
                    msg->name, msg->was_rank, (unsigned long long)msg->was_epoch, msg->least,
                    places);
        home_refuse(core, node, msg->join, CAUSE_INVALID, (int32_t)msg->was_rank, (int)node, text);
        return;
    }
    if (next) {
        follow_left_behind(msg->name, next, msg->was_rank, text, sizeof(text));
        home_refuse(core, node, msg->join, CAUSE_RANK_LOST, (int32_t)msg->was_rank, (int)node,
                    text);
        return;
    }
    if (forming && contradicts(core, node, forming, msg, &wanted, places))
        return;
    if (!forming) {
        forming = home_make(core, node, msg, places);
        if (!forming)
            return;
        forming->recovery = wanted;
    }
    if (!fate_at(core, forming, msg->was_rank)->gone) {
        assert(forming->recovery.awaited);
        forming->recovery.awaited--;
    }
    home_place(core, forming, &forming->members[msg->was_rank], node, msg);
    commit_if_complete(core, forming);
}

/* Somebody else in a lobby asks for that seat. */
static bool is_asked_for(struct core *core, unsigned node, const struct msg_join *msg)
{
    struct forming *lobby;
    char text[MSG_TEXT_MAX];

    if (msg->rank == MSG_ANY_SEAT)
        return false;
    each_lobby(lobby, core, msg->uid, msg->name) for (uint32_t i = 0; i < lobby->size; i++)
    {
        const struct msg_member *other = &lobby->members[i];

        if (!other->join || fate_at(core, lobby, i)->ops != msg->rank)
            continue;
        text_format(text, sizeof(text),
                    "group \"%s\": for seat %u pid %u on node %s has asked already", msg->name,
                    msg->rank, other->pid, core_node_name(core, other->node));
        home_refuse(core, node, msg->join, CAUSE_INVALID, (int32_t)msg->rank, (int)other->node,
                    text);
        return true;
    }
    return false;
}

static void comer(struct core *core, unsigned node, const struct msg_join *msg)
{
    struct forming *lobby = first_lobby(core, msg->uid, msg->name), *forming;
    uint32_t place = 0;

    if (is_asked_for(core, node, msg))
        return;
    while (lobby && lobby->count == lobby->size)
        lobby = next_lobby(core, lobby);
    if (!lobby) {
        lobby = home_make(core, node, msg, MIN((uint32_t)LOBBY, core->config.max_size));
        if (!lobby)
            return;
        lobby->recovery.kind = MSG_RECOVERY_REJOIN;
    }
    while (lobby->members[place].join)
        place++;
    home_place(core, lobby, &lobby->members[place], node, msg);
    fate_at(core, lobby, place)->ops = msg->rank;
    fate_at(core, lobby, place)->prev = msg->size;
    forming = first_forming(core, msg->uid, msg->name, MSG_RECOVERY_WAIT, 0);
    if (forming)
        commit_if_complete(core, forming);
}

void recover_join(struct core *core, unsigned node, const struct msg_join *msg)
{
    if (msg->recovery == MSG_RECOVERY_REJOIN)
        comer(core, node, msg);
    else
        survivor(core, node, msg);
}

void recover_news(struct core *core, unsigned node, const struct msg_join_news *msg)
{
    struct msg_member *member = home_recall(core, node, msg->join);
    struct forming *forming;

    if (!member)
        return; /* its COMMIT or refusal is on the way */
    forming = pool_at(&core->formings, runs_fate(&core->runs, member)->owner);
    if (!forming->recovery.follows ||
        (msg->ngone && msg->gone[msg->ngone - 1] >= forming->recovery.was_size)) {
        act_log_node(core, node, CORE_LOG_WARN,
                     "node %s sent news of a join that make no sense -> ignoring them",
                     core_node_name(core, node));
        return;
    }
    forming->recovery.enough |= msg->enough && forming->recovery.kind == MSG_RECOVERY_WAIT;
    for (uint32_t i = 0; i < msg->ngone && msg->gone[i] < forming->size; i++) {
        struct fate *fate = fate_at(core, forming, msg->gone[i]);

        if (!fate->gone && !forming->members[msg->gone[i]].join) {
            assert(forming->recovery.awaited);
            forming->recovery.awaited--;
        }
        fate->gone = true;
    }
    commit_if_complete(core, forming);
}

void recover_freed(struct core *core, struct forming *forming)
{
    if (forming->recovery.kind == MSG_RECOVERY_SHRINK && list_is_off(&forming->freed))
        list_add(&core->freed, &forming->freed);
}

void recover_run(struct core *core)
{
    struct forming *forming;

    while ((forming = list_first(&core->freed, struct forming, freed))) {
        list_del(&forming->freed);
        if (forming->count + forming->recovery.awaited < forming->recovery.least)
            refuse_all(core, forming);
    }
}
