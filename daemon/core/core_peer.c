/* core_peer.c - links to the other commds, heartbeats, and whose engine accepts whose.
 *
 *   UNLINKED --PEER_UP--> LINKING <--engines accept each other--> READY
 *       ^                 ^     '---- PEER_DOWN, not READY anew ---. | PEER_DOWN, silence
 *       |                 '------------- PEER_UP --------------- AWAY
 *       '---- silence, restart_timeout, its engine is gone or apart ----'
 *
 * A link carries control messages as soon as it is up. A node is READY, so that groups over it
 * may open and homes may be on it, when its engine and ours accept each other:
 *   ENGINE_STATE (theirs) -> PEER_ADD to our engine -> PEER_READY from it -> ENGINE_READY to
 *   them, and the same in the other direction. All of it names engine incarnations, so that an
 *   answer about an engine that is gone is recognised and dropped. Our engine losing theirs
 *   (PEER_DOWN) breaks the groups with that node and is tried again with a back-off.
 *
 * The tokens by which two engines know each other are of one link between their commds, so both
 * have to be given them over the same one. What over one link each gives to its engine is an
 * introduction. It has a number, which ENGINE_READY names; if the two do not name the same, because
 * a commd or the link has died in between, or one engine has lost the other meanwhile, who has an
 * earlier one gives its engine that of the present link.
 *
 * Who wakes me: link events, messages, and peer_deadline(): heartbeats, silence, retries.
 * A commd that dies takes its link along, and neither its engine nor the data. So a READY node
 * whose link closes is AWAY ("restarting"), as long as our engine has its engine: it is no home,
 * joins that waited at it ask elsewhere, and groups with it stay. When it is linked again and its
 * engine is the same it is READY again, and tells anew what it knows of their groups, as we do
 * (group_resync()). It is lost when it is not READY by @lost_ms, or when our engine has lost its.
 * A node whose link closes while groups with it wait for an engine is AWAY, too: bond_waits(). So
 * is a READY node that says nothing for node_timeout, if our engine has heard of its kernel since:
 * its commd is stopped, or gets no time. We close its link then. As long as a node is AWAY what our
 * engine hears is asked for at each heartbeat: when the host is silent, too, the node is lost.
 *
 * That a node is AWAY because its link closed is said CORE_AWAY_TOLD_MS later, or when another
 * commd of it is linked: where its engine has ended with it our engine knows in a moment, and it is
 * lost. Likewise that it is not READY any more, though linked. What is over by then is no news: its
 * link was made anew by another key, or an engine was replaced.
 *
 * After a taking-over all nodes that we have groups with are AWAY. Which engines ours has it tells
 * before ENGINE_RESUMED; groups with others then wait for an engine (core_bond.c), and for the link
 * to those nodes for as long as a node may be silent.
 *
 * A node whose link ends because its certificate does not hold any more is lost at once.
 *
 * A node of which link and engine end at once is lost: its groups have lost what was on the wire.
 * But its host lives, else it were silent: commd and engine may have been killed, and be back at
 * once, and the ranks never noticed. So they do not count as gone yet: hope_ms, follow_tick().
 * Not if nobody keeps its port: peer_vacant().
 *
 * What if the peer dies now: PEER_DOWN, or node_timeout of silence: AWAY, or lost. Then groups with
 * it break. What if I am stopped now: I am AWAY to the others after node_timeout; if shorter,
 * peer_forgive(). If they have given me up meanwhile, our engine says so: peer_lost_away(). */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* clang-format off */
static const bool peer_may[5][5] = { /* rows: from; columns: SELF UNLINKED AWAY LINKING READY */
    [CORE_PEER_SELF]     = {0, 0, 0, 0, 0},
    [CORE_PEER_UNLINKED] = {0, 0, 1, 1, 0}, /* AWAY: restored */
    [CORE_PEER_AWAY]     = {0, 1, 0, 1, 0},
    [CORE_PEER_LINKING]  = {0, 1, 1, 0, 1},
    [CORE_PEER_READY]    = {0, 1, 1, 1, 0},
};
/* clang-format on */

/* clang-format off */
static const bool theirs_may[3][3] = { /* rows: from; columns: UNKNOWN ADDED ACCEPTED */
    [PEER_ENGINE_UNKNOWN]  = {1, 1, 1}, /* ACCEPTED: as our engine says, which goes on */
    [PEER_ENGINE_ADDED]    = {1, 0, 1},
    [PEER_ENGINE_ACCEPTED] = {1, 0, 0},
};
/* clang-format on */

/* Linked, or it was and may be again. */
static bool has_state(const struct core *core, unsigned node)
{
    return peer_linked(core, node) || core->peers[node].state == CORE_PEER_AWAY;
}

/* Our engine is up, and has told what it has. */
bool engine_speaks(const struct core *core)
{
    return core->engine.life.state == CORE_ENGINE_UP && !core->engine.resuming;
}

static void set_theirs(struct core *core, unsigned node, enum peer_engine theirs)
{
    struct peer *peer = &core->peers[node];

    assert(theirs_may[peer->theirs][theirs]);
    assert(theirs == PEER_ENGINE_UNKNOWN || (peer->engine && has_state(core, node)));
    peer->theirs = theirs;
    peer->retry_ms = CORE_NEVER;
}

static void peer_set_state(struct core *core, unsigned node, enum core_peer_state state)
{
    struct peer *peer = &core->peers[node];

    assert(peer_may[peer->state][state]);
    assert(node != core->config.self);
    assert(state != CORE_PEER_UNLINKED || !peer->engine);
    if (peer->state == CORE_PEER_READY || state == CORE_PEER_READY)
        core->peers_changed = true;
    peer->state = state;
    peer->since_ms = core->now;
    peer->given_up = false;
}

bool peer_linked(const struct core *core, unsigned node)
{
    return core->peers[node].state == CORE_PEER_LINKING ||
           core->peers[node].state == CORE_PEER_READY;
}

bool peer_is_missed(const struct core *core, unsigned node)
{
    return core->peers[node].lost_ms != CORE_NEVER;
}

uint64_t peer_broke_ms(const struct core *core, unsigned node)
{
    const struct peer *peer = &core->peers[node];

    return peer->met && peer->apart_ms ? MAX(peer->apart_ms, peer->pauses_ms) : CORE_NEVER;
}

bool peer_usable(const struct core *core, unsigned node)
{
    return core->peers[node].state == CORE_PEER_SELF || core->peers[node].state == CORE_PEER_READY;
}

/* Over the present link: of what both commds have said. 0: theirs does not number them. */
static uint64_t introduction_now(const struct peer *peer)
{
    return peer->said && peer->their_half ? peer->our_half ^ peer->their_half : 0;
}

/* Do both engines have each other, by whichever introduction? */
static bool both_accept(const struct core *core, const struct peer *peer)
{
    return engine_speaks(core) && peer->engine && peer->said &&
           peer->theirs == PEER_ENGINE_ACCEPTED && peer->accepts_mine == core->engine.incarnation &&
           peer->accepts_from == peer->engine;
}

static bool same_introduction(const struct peer *peer)
{
    return !peer->intro || !peer->accepts_intro || peer->intro == peer->accepts_intro;
}

/* If ours has that of the present link it is the other side that has to make theirs anew. */
static bool has_earlier_introduction(const struct core *core, const struct peer *peer)
{
    return both_accept(core, peer) && !same_introduction(peer) &&
           peer->intro != introduction_now(peer);
}

/* READY or not follows from what the two engines said; nothing else decides it. */
static void review(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];
    bool back = peer_is_missed(core, node);
    bool ready = both_accept(core, peer) && same_introduction(peer);

    if (!peer_linked(core, node) || ready == (peer->state == CORE_PEER_READY))
        return;
    peer_set_state(core, node, ready ? CORE_PEER_READY : CORE_PEER_LINKING);
    if (!ready && (core->now < peer->pauses_ms || core->engine.life.renews)) {
        peer->renews = true; /* until it is READY or lost */
        return;
    }
    if (ready) {
        if (peer->doubt_ms == CORE_NEVER) /* else groups are still to break for it */
            peer->error[0] = 0;
        peer->lost_ms = peer->hope_ms = CORE_NEVER;
        peer->pauses_ms = 0;
    } else {
        peer->losses[CORE_LOSS_ENGINE] +=
            core->engine.life.state == CORE_ENGINE_UP; /* else it is ours that was lost */
        peer->tell_away_ms = core->now + CORE_AWAY_TOLD_MS;
        core->silent_ms = MIN(core->silent_ms, peer->tell_away_ms);
        return;
    }
    if (peer->renews || peer->tell_away_ms != CORE_NEVER)
        act_log(core, CORE_LOG_DEBUG, "node %s is ready, over the next engine or link",
                core_node_name(core, node));
    else
        act_note(core, CORE_NOTE_NODE_UP, CORE_BY_NOBODY, 0, CORE_LOG_INFO, "node %s is %s",
                 core_node_name(core, node), back ? "back" : "ready");
    peer->renews = false;
    peer->tell_away_ms = CORE_NEVER;
    group_resync(core, node, back);
    group_ask_broken(core, node);
    stray_ask(core, node);
}

void peer_add_engine(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];

    if (!engine_speaks(core) || !peer->engine || peer->theirs || !peer->said ||
        !peer_linked(core, node))
        return; /* before it says so its address is not known */
    assert(peer->addr_len <= MSG_ADDR_MAX);
    set_theirs(core, node, PEER_ENGINE_ADDED);
    peer->intro = introduction_now(peer);
    act_to_engine(core, (struct act_msg){.type = MSG_ENGINE_PEER_ADD,
                                         .engine_peer = {node, peer->engine, peer->intro}});
}

static void tell_engine_state(struct core *core, unsigned node)
{
    assert(!core->engine.resuming);
    assert((core->engine.life.state == CORE_ENGINE_UP) == !!core->engine.incarnation);
    core->peers[node].our_half = core_random(core);
    act_to_peer(
        core, node,
        (struct act_msg){.type = MSG_ENGINE_STATE,
                         .engine_state = {.engine = core->stopping ? 0 : core->engine.incarnation,
                                          .commits = core->commits + 1}});
}

static void tell_accepted(struct core *core, unsigned node)
{
    const struct peer *peer = &core->peers[node];

    assert(peer->theirs == PEER_ENGINE_ACCEPTED && core->engine.incarnation);
    act_to_peer(core, node,
                (struct act_msg){.type = MSG_ENGINE_READY,
                                 .engine_ready = {.engine = peer->engine,
                                                  .mine = core->engine.incarnation,
                                                  .intro = peer->intro}});
}

/* All that it has to know of our engine, over a link that is new, or of an engine that is. */
static void tell_engine(struct core *core, unsigned node)
{
    tell_engine_state(core, node);
    if (core->peers[node].theirs == PEER_ENGINE_ACCEPTED)
        tell_accepted(core, node);
}

/* Our engine forgets theirs. */
static void forget_theirs(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];

    if (peer->theirs && core->engine.life.state == CORE_ENGINE_UP)
        act_to_engine(core,
                      (struct act_msg){.type = MSG_ENGINE_PEER_DEL,
                                       .engine_peer = {.peer = node, .engine = peer->engine}});
    set_theirs(core, node, PEER_ENGINE_UNKNOWN);
    assert(!peer->theirs);
    peer->apart_ms = peer->alive_ms = peer->intro = 0;
    peer->met = false;
    peer->traffic.encryption = LINK_UNTOLD;
    peer->doubt_ms = CORE_NEVER;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* @node has no link, and is not missed. */
static void unlink_peer(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];

    forget_theirs(core, node);
    peer->engine = peer->accepts_mine = peer->accepts_from = 0;
    peer->traffic.rtt_us = peer->traffic.min_rtt_us = 0; /* of a way that is gone */
    peer->lost_ms = peer->tell_away_ms = CORE_NEVER;
    peer->renews = false;
    peer_set_state(core, node, CORE_PEER_UNLINKED);
    assert(!peer_linked(core, node) && !peer->theirs);
    group_forgo(core, node);
}

static void leave_homes(struct core *core, unsigned node)
{
    core->peers_changed = true; /* a home may be on a node that was never READY for us */
    home_node_lost(core, node);
    join_home_lost(core, node);
}

/* @back: it may be. */
static void lose(struct core *core, unsigned node, const char *why, bool back)
{
    struct peer *peer = &core->peers[node];
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), TEXT_NODE_LOST "%s", core_node_name(core, node), why);
    act_note(core, CORE_NOTE_NODE_LOST, CORE_BY_NOBODY, 0, CORE_LOG_WARN, "%s", text);
    text_copy(peer->error, sizeof(peer->error), why);
    unlink_peer(core, node);
    leave_homes(core, node);
    group_node_lost(core, node, text, true);
    if (back) {
        peer->hope_ms = MIN(peer->hope_ms, core->now + core->config.restart_timeout_ms);
        follow_look(core, node);
    } else {
        follow_node_lost(core, node);
    }
    group_home_lost(core, node);
}

void peer_lost(struct core *core, unsigned node, const char *why)
{
    lose(core, node, why, false);
}

/* Why its link closed comes first: by that commctl tells a commd that ended from a network that
 * failed. */
static void lose_away(struct core *core, unsigned node, const char *why, bool back)
{
    const char *closed = core->peers[node].error;
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), "%s%s%s", closed, closed[0] ? ", and " : "", why);
    lose(core, node, text, back);
}

void peer_lost_away(struct core *core, unsigned node, const char *why)
{
    lose_away(core, node, why, false);
}

void peer_struck(struct core *core, unsigned node, const char *why)
{
    lose_away(core, node, why, true);
}

/* Groups with @node, whose link ends, wait for it. */
static bool may_be_away(const struct core *core, unsigned node)
{
    return !core->stopping && core->now < peer_broke_ms(core, node) &&
           (core->peers[node].state == CORE_PEER_READY || peer_is_missed(core, node) ||
            bond_waits(core, node));
}

static void note_away(struct core *core, unsigned node, const char *what)
{
    act_note(core, CORE_NOTE_NODE_AWAY, CORE_BY_NOBODY, 0, CORE_LOG_INFO,
             "node %s is restarting: %s, data go on", core_node_name(core, node), what);
}

void peer_tell_away(struct core *core, unsigned node)
{
    if (core->peers[node].tell_away_ms == CORE_NEVER)
        return;
    core->peers[node].tell_away_ms = CORE_NEVER;
    if (peer_is_missed(core, node)) /* it may be linked again */
        note_away(core, node, "its link closed");
    else
        act_note(core, CORE_NOTE_NODE_LOST, CORE_BY_NOBODY, 0, CORE_LOG_INFO,
                 "node %s is linked, but its engine and ours do not accept each other",
                 core_node_name(core, node));
}

static void peer_away(struct core *core, unsigned node, const char *why, bool silent)
{
    struct peer *peer = &core->peers[node];

    if (peer->doubt_ms != CORE_NEVER)
        peer_settle(core, node); /* over this link nobody says more */
    if (!peer_is_missed(core, node)) {
        peer->lost_ms = core->now + core->config.restart_timeout_ms;
        if (silent)
            note_away(core, node, "its commd is silent");
        else
            peer->tell_away_ms = core->now + CORE_AWAY_TOLD_MS;
    }
    pause_end(core);
    text_copy(peer->error, sizeof(peer->error), why);
    peer_set_state(core, node, CORE_PEER_AWAY);
    core->silent_ms = MIN(core->silent_ms, MIN(peer->lost_ms, peer->tell_away_ms));
    leave_homes(core, node);
}

void peer_miss(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];

    if (peer->state != CORE_PEER_UNLINKED)
        return;
    peer->lost_ms = core->now + core->config.restart_timeout_ms;
    core->silent_ms = MIN(core->silent_ms, peer->lost_ms);
    peer_set_state(core, node, CORE_PEER_AWAY);
}

void peer_down(struct core *core, unsigned node, enum core_loss loss, const char *why)
{
    struct peer *peer;

    if (node >= core->config.nnodes || !peer_linked(core, node))
        return;
    peer = &core->peers[node];
    why = why ? why : "the link closed";
    assert(loss < CORE_LOSS_KINDS && loss != CORE_LOSS_SILENCE);
    peer->losses[loss]++;
    if (may_be_away(core, node)) {
        peer_away(core, node, why, false);
        return;
    }
    if (peer->doubt_ms != CORE_NEVER && peer->doubt_end == LINK_END_NETWORK)
        peer_settle(core, node);              /* the engines were faster, and ours knows why */
    lose(core, node, why, peer->engine != 0); /* 0: it stops, or its engine ended before */
}

void peer_silent(struct core *core, unsigned node, const char *why)
{
    struct peer *peer = &core->peers[node];

    assert(peer_linked(core, node));
    peer->losses[CORE_LOSS_SILENCE]++;
    if (may_be_away(core, node) && peer->alive_ms > peer->heard_ms + core->config.heartbeat_ms)
        peer_away(core, node, why, true);
    else
        peer_lost_away(core, node, why);
}

/* A node that is AWAY may get another certificate in time. If it does not, that is why. */
void peer_refused(struct core *core, unsigned node, const char *why)
{
    struct peer *peer = node < core->config.nnodes ? &core->peers[node] : NULL;

    if (peer && peer->state == CORE_PEER_AWAY && why)
        text_copy(peer->error, sizeof(peer->error), why);
    if (!peer || !peer_linked(core, node))
        return;
    peer->losses[CORE_LOSS_LINK]++;
    peer_lost(core, node, why ? why : "it is refused");
}

void peer_vacant(struct core *core, unsigned node)
{
    struct peer *peer = node < core->config.nnodes ? &core->peers[node] : NULL;

    if (!peer || peer->state != CORE_PEER_UNLINKED || peer->hope_ms == CORE_NEVER)
        return; /* somebody has started it since */
    peer->hope_ms = core->now;
    follow_tick(core);
}

void peer_up(struct core *core, const struct core_event *event)
{
    const struct msg_peer_hello *hello = &event->msg->peer_hello;
    struct peer *peer;

    if (event->node >= core->config.nnodes || event->node == core->config.self ||
        event->msg->type != MSG_PEER_HELLO)
        return;
    peer = &core->peers[event->node];
    peer_down(core, event->node, CORE_LOSS_RECONNECT, "it connected again");
    peer->version = hello->version;
    peer->strays = hello->strays;
    assert(peer->state == CORE_PEER_UNLINKED || peer->state == CORE_PEER_AWAY);
    if (peer->incarnation != hello->incarnation) {
        peer_tell_away(core, event->node);
        peer->incarnation = hello->incarnation;
        peer->committed = 0;
    }
    peer->draining = peer->said = peer->free = false; /* until it says so */
    peer->accepts_mine = 0;                           /* likewise */
    peer->counts = false;
    peer->heard_ms = core->now;
    peer->backoff_ms = CORE_RECONNECT_MIN_MS;
    core->silent_ms = MIN(core->silent_ms, core->now + core->config.node_timeout_ms);
    assert(peer->state == CORE_PEER_AWAY || (!peer->engine && !peer->theirs));
    peer_set_state(core, event->node, CORE_PEER_LINKING);
    peer->links++;
    act_log(core, CORE_LOG_INFO, "node %s is linked", core_node_name(core, event->node));
    if (!core->engine.resuming)
        tell_engine(core, event->node);
}

static void peer_engine_state(struct core *core, unsigned node, const struct msg_engine_state *msg)
{
    struct peer *peer = &core->peers[node];
    char text[MSG_TEXT_MAX];
    bool lost = peer->engine && peer->engine != msg->engine, first = !peer->said;

    if (msg->addr_len > MSG_ADDR_MAX)
        return;
    peer->said = true;
    peer->counts = msg->commits;
    if (msg->commits && msg->commits - 1 > peer->committed) /* the others went by earlier links */
        peer->committed = msg->commits - 1;
    peer->their_half = msg->intro;
    peer->addr_len = msg->addr_len;
    memcpy(peer->addr, msg->addr, msg->addr_len);
    if (peer->engine == msg->engine) {
        if (first && peer->theirs == PEER_ENGINE_ADDED)
            forget_theirs(core, node); /* the session may have ended before it could be told */
        if (first)
            peer_add_engine(core, node);
        review(core, node);
        return;
    }
    forget_theirs(core, node);
    peer->engine = msg->engine;
    assert(!peer->theirs); /* ours has forgotten the one before */
    peer->backoff_ms = CORE_RECONNECT_MIN_MS;
    review(core, node);
    if (lost) {
        text_format(text, sizeof(text), TEXT_ENGINE_LOST, core_node_name(core, node));
        text_copy(peer->error, sizeof(peer->error), text);
        group_engine_lost(core, node, text);
    }
    peer_add_engine(core, node);
}

/* Of groups with @node those end that need what our engine does not have any more. */
static void unconnected(struct core *core, unsigned node)
{
    char text[MSG_TEXT_MAX];

    text_format(text, sizeof(text), TEXT_ENGINES_APART, core_self_name(core),
                core_node_name(core, node));
    text_copy(core->peers[node].error, sizeof(core->peers[node].error), text);
    group_unconnected(core, node, text);
}

static void set_apart_text(struct core *core, unsigned node, const char *why)
{
    struct peer *peer = &core->peers[node];

    text_format(peer->error, sizeof(peer->error), TEXT_ENGINES_APART ": %s", core_self_name(core),
                core_node_name(core, node), why);
}

/* The two are connected anew. Their side of it may think for a while yet that the link mends, so
 * what it accepted before says nothing any more. */
static void give_up_link(struct core *core, unsigned node, unsigned end, const char *why)
{
    struct peer *peer = &core->peers[node];

    set_apart_text(core, node, why);
    peer->accepts_mine = 0;
    forget_theirs(core, node);
    review(core, node);
    peer->doubt_end = end;
    peer->doubt_ms =
        core->now + (end == LINK_END_CLOSED ? CORE_ENGINE_TOLD_MS : CORE_ENGINE_DOUBT_MS);
    peer->retry_ms = core->now + peer->backoff_ms;
    peer->backoff_ms = MIN(2 * peer->backoff_ms, (uint64_t)CORE_RECONNECT_MAX_MS);
    core->silent_ms = MIN(core->silent_ms, peer->doubt_ms);
}

void peer_settle(struct core *core, unsigned node)
{
    struct peer *peer = &core->peers[node];

    assert(peer->doubt_ms != CORE_NEVER && peer->error[0]);
    peer->doubt_ms = CORE_NEVER;
    group_apart(core, node,
                peer->doubt_end == LINK_END_NETWORK ? CAUSE_NODE_LOST : CAUSE_ENGINE_LOST,
                peer->error);
    if (peer->state == CORE_PEER_READY)
        peer->error[0] = 0;
}

/* Our engine or theirs says why it has ended the link that is in doubt. Who only saw that the other
 * side closes knows less than who closes. */
static void hear_why(struct core *core, unsigned node, unsigned end, const char *why)
{
    struct peer *peer = &core->peers[node];
    bool knew = peer->doubt_end != LINK_END_CLOSED;

    assert(peer->doubt_ms != CORE_NEVER);
    if (knew && end != LINK_END_NETWORK)
        return;
    if (end != LINK_END_CLOSED) {
        peer->doubt_end = end;
        set_apart_text(core, node, why);
    }
    if (!knew)
        peer_settle(core, node);
}

/* Our engine has theirs by an introduction that the other side has not got, or not any more. */
static void introduce_anew(struct core *core, unsigned node)
{
    forget_theirs(core, node);
    review(core, node);
    unconnected(core, node);
    peer_add_engine(core, node);
}

static void tell_given_up(struct core *core, unsigned node, const struct msg_engine_peer *lost)
{
    act_to_peer(core, node,
                (struct act_msg){.type = MSG_ENGINE_READY,
                                 .engine_ready = {.mine = core->peers[node].engine,
                                                  .end = lost->end,
                                                  .text = act_text(core, lost->text)}});
}

/* Their engine has given up the link: that may have been told to ours, or not. */
static void peer_engine_ready(struct core *core, unsigned node, const struct msg_engine_ready *msg)
{
    struct peer *peer = &core->peers[node];

    if (!msg->engine && msg->mine != core->engine.incarnation)
        return; /* of an engine of ours that is gone */
    peer->accepts_mine = msg->engine;
    peer->accepts_from = msg->mine;
    peer->accepts_intro = msg->intro;
    if (!msg->engine && peer->theirs == PEER_ENGINE_ACCEPTED)
        give_up_link(core, node, msg->end, msg->text);
    else if (!msg->engine && peer->doubt_ms != CORE_NEVER)
        hear_why(core, node, msg->end, msg->text);
    else if (has_earlier_introduction(core, peer))
        introduce_anew(core, node);
    else
        review(core, node);
}

void peer_msg(struct core *core, unsigned node, const struct msg *msg)
{
    struct peer *peer;

    if (node >= core->config.nnodes || !peer_linked(core, node))
        return;
    peer = &core->peers[node];
    peer->heard_ms = core->now;
    switch ((int)msg->type) { /* int: of all types a peer may send these only */
    case MSG_HEARTBEAT:
        if (peer->draining != !!msg->heartbeat.draining)
            act_note(core, CORE_NOTE_NODE_DRAINS, CORE_BY_NODE, node, CORE_LOG_INFO, "node %s %s",
                     core_node_name(core, node),
                     msg->heartbeat.draining ? "is draining" : "takes new groups again");
        peer->draining = msg->heartbeat.draining;
        peer->free = msg->heartbeat.free;
        break;
    case MSG_ENGINE_STATE:
        peer_engine_state(core, node, &msg->engine_state);
        break;
    case MSG_ENGINE_READY:
        peer_engine_ready(core, node, &msg->engine_ready);
        break;
    case MSG_JOIN:
        home_join(core, node, &msg->join);
        break;
    case MSG_JOIN_NEWS:
        recover_news(core, node, &msg->join_news);
        break;
    case MSG_JOIN_CANCEL:
        home_cancel(core, node, msg->join_cancel.join);
        break;
    case MSG_JOIN_REFUSED:
        join_refused(core, node, &msg->join_refused);
        break;
    case MSG_COMMIT:
        group_commit(core, node, &msg->commit);
        break;
    case MSG_GONE:
        group_gone_msg(core, node, &msg->gone);
        break;
    case MSG_BROKEN:
        group_broken_msg(core, node, &msg->broken);
        break;
    case MSG_HELD:
        bond_held_msg(core, node, &msg->held);
        break;
    case MSG_PAUSE:
        pause_msg(core, node, &msg->pause);
        break;
    case MSG_PAUSED:
        pause_heard(core, node, &msg->pause);
        break;
    case MSG_SYNC:
        group_sync(core, node, &msg->sync);
        break;
    case MSG_ASK_ABSENT:
        absent_ask_peer(core, node, &msg->ask_absent);
        break;
    case MSG_ABSENT_HERE:
        absent_collect(core, node, &msg->absent_here);
        break;
    default:
        act_log_node(core, node, CORE_LOG_WARN,
                     "node %s sent message type %u, which is not for peers -> "
                     "ignoring it",
                     core_node_name(core, node), (unsigned)msg->type);
        break;
    }
}

/* ---- engines --------------------------------------------------------------------------------- */

void peer_engine_up(struct core *core)
{
    assert(engine_speaks(core));
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        if (!peer_linked(core, i))
            continue;
        tell_engine(core, i);
        peer_add_engine(core, i);
        review(core, i);
    }
}

void peer_engine_down(struct core *core)
{
    assert(core->engine.life.state == CORE_ENGINE_OFF);
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        forget_theirs(core, i);
        review(core, i);
        if (peer_linked(core, i))
            tell_engine_state(core, i);
    }
}

/* What our engine has since before we were there. */
static void engine_has(struct core *core, const struct msg_engine_peer *msg)
{
    unsigned node = msg->peer;
    struct peer *peer = &core->peers[node];

    if (node == core->config.self || !msg->engine || peer->theirs ||
        (peer->said && peer->engine != msg->engine))
        return; /* peer_engine_resumed() */
    peer_miss(core, node);
    peer->engine = peer->had = msg->engine;
    peer->intro = msg->intro;
    set_theirs(core, node, PEER_ENGINE_ACCEPTED);
}

void peer_engine_resumed(struct core *core)
{
    assert(engine_speaks(core));
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        struct peer *peer = &core->peers[i];

        if (!peer_is_missed(core, i) || (peer->theirs == PEER_ENGINE_ACCEPTED && !peer->apart_ms))
            continue;
        if (peer->state == CORE_PEER_AWAY) {
            peer->lost_ms = MIN(peer->lost_ms, core->now + core->config.node_timeout_ms);
            core->silent_ms = MIN(core->silent_ms, peer->lost_ms);
        }
        if (peer->theirs != PEER_ENGINE_ACCEPTED) /* else they have yet to meet, or it is mended */
            unconnected(core, i);
    }
}

void peer_engine_accepts(struct core *core, const struct msg_engine_peer *msg)
{
    struct peer *peer;

    if (msg->peer >= core->config.nnodes)
        return;
    peer = &core->peers[msg->peer];
    if (core->engine.resuming) {
        engine_has(core, msg);
        return;
    }
    if (peer->theirs != PEER_ENGINE_ADDED)
        return;
    if (peer->engine != msg->engine)
        return; /* about an engine that is gone */
    assert(core->engine.incarnation);
    set_theirs(core, msg->peer, PEER_ENGINE_ACCEPTED);
    if (!peer_linked(core, msg->peer))
        return; /* AWAY: tell_engine() */
    tell_accepted(core, msg->peer);
    review(core, msg->peer);
}

/* A connection that was made anew counts from 0. */
static uint64_t traffic_gain(uint64_t now, uint64_t before)
{
    return now >= before ? now - before : now;
}

static void note_mends(struct core *core, unsigned node, uint64_t mends)
{
    if (!mends)
        return;
    core->peers[node].traffic.mends += mends;
    act_note(core, CORE_NOTE_DATA_MENDED, CORE_BY_NODE, node, CORE_LOG_WARN,
             "%llu data connection%s to node %s broke -> made again, nothing is lost",
             (unsigned long long)mends, mends == 1 ? "" : "s", core_node_name(core, node));
}

static void note_encryption(const struct core *core, struct core_traffic *traffic,
                            const struct msg_engine_traffic *msg)
{
    traffic->encryption =
        msg->encryption < LINK_ENCRYPTIONS ? (enum link_encryption)msg->encryption : LINK_UNTOLD;
    traffic->key_since_ms = core->now - MIN(msg->key_ms, core->now);
    traffic->generation = msg->generation;
}

/* The kernel of their node was heard of so long ago. False: the node is lost. */
static bool hear_alive(struct core *core, unsigned node, uint64_t quiet_ms)
{
    struct peer *peer = &core->peers[node];
    uint64_t most = MAX(core->config.node_timeout_ms, (uint64_t)CORE_ENGINE_QUIET_MS);
    char buf[MSG_TEXT_MAX];
    struct text text = {buf, sizeof(buf), 0};

    peer->alive_ms = MAX(peer->alive_ms, core->now - MIN(quiet_ms, core->now));
    if (peer->state != CORE_PEER_AWAY || quiet_ms < most)
        return true;
    text_add(&text, "its engine is silent for ");
    text_add_ms(&text, quiet_ms);
    peer_lost_away(core, node, buf);
    return false;
}

void peer_engine_traffic(struct core *core, const struct msg_engine_traffic *msg)
{
    struct core_traffic *traffic;
    struct msg_engine_traffic before;
    struct peer *peer;

    if (msg->peer >= core->config.nnodes)
        return;
    peer = &core->peers[msg->peer];
    if (!peer->theirs || peer->engine != msg->engine)
        return; /* about an engine that is gone */
    assert(has_state(core, msg->peer));
    if (msg->apart) {
        peer->traffic.encryption = LINK_UNTOLD;
        peer->apart_ms = peer->apart_ms ? peer->apart_ms : core->now;
        core->silent_ms = MIN(core->silent_ms, core->now + CORE_ENGINE_DOUBT_MS);
        return;
    }
    peer->apart_ms = 0;
    peer->met = true;
    if (msg->quiet_ms && !hear_alive(core, msg->peer, msg->quiet_ms))
        return;
    before = peer->reported;
    if (before.engine != msg->engine)
        before = peer->had == msg->engine ? *msg : (struct msg_engine_traffic){0};
    peer->reported = *msg;
    traffic = &peer->traffic;
    traffic->recent_ms = traffic->told_ms ? core->now - traffic->told_ms : 0;
    traffic->recent_segments = traffic_gain(msg->segments, before.segments);
    traffic->recent_retransmits = traffic_gain(msg->retransmits, before.retransmits);
    traffic->told_ms = core->now;
    traffic->recent_sent = traffic_gain(msg->sent, before.sent);
    traffic->sent += traffic->recent_sent;
    traffic->received += traffic_gain(msg->received, before.received);
    traffic->segments += traffic->recent_segments;
    traffic->retransmits += traffic->recent_retransmits;
    traffic->stalled_us += traffic_gain(msg->stalled_us, before.stalled_us);
    note_mends(core, msg->peer, traffic_gain(msg->mends, before.mends));
    traffic->rtt_us = msg->rtt_us;
    traffic->min_rtt_us = msg->min_rtt_us;
    traffic->bandwidth = MAX(traffic->bandwidth, msg->rate);
    note_encryption(core, traffic, msg);
}

void peer_engine_lost(struct core *core, const struct msg_engine_peer *msg)
{
    struct peer *peer;
    char text[MSG_TEXT_MAX];

    if (msg->peer >= core->config.nnodes)
        return;
    peer = &core->peers[msg->peer];
    if (peer->engine != msg->engine)
        return;
    if (!peer->theirs && peer->doubt_ms != CORE_NEVER) { /* their commd was faster than ours */
        tell_given_up(core, msg->peer, msg);
        hear_why(core, msg->peer, msg->end, msg->text);
        return;
    }
    if (!peer->theirs || (msg->intro && msg->intro != peer->intro))
        return; /* of an introduction before */
    assert(has_state(core, msg->peer));
    if (core->stopping)
        return; /* ours has gone ahead of us */
    if (msg->planned)
        pause_was_asked(core, msg->peer);
    text_format(text, sizeof(text), TEXT_ENGINES_APART ": %s", core_self_name(core),
                core_node_name(core, msg->peer), msg->text);
    if (peer->state == CORE_PEER_AWAY && core->now >= peer->pauses_ms) {
        peer_struck(core, msg->peer, text);
        return;
    }
    if (core->now < peer->pauses_ms) { /* on purpose, for all that we know; else it has to hear */
        tell_given_up(core, msg->peer, msg);
        peer->accepts_mine = 0;
        forget_theirs(core, msg->peer);
        review(core, msg->peer);
        peer->retry_ms = core->now + peer->backoff_ms;
        core->silent_ms = MIN(core->silent_ms, peer->retry_ms);
        group_engine_lost(core, msg->peer, text);
        return;
    }
    assert(peer->backoff_ms);
    if (peer->state == CORE_PEER_READY && core->now - peer->since_ms >= CORE_RECONNECT_RESET_MS)
        peer->backoff_ms = CORE_RECONNECT_MIN_MS;
    act_note(core, CORE_NOTE_ENGINE_LOST, CORE_BY_NODE, msg->peer, CORE_LOG_WARN,
             "%s -> connecting them again in %llu ms", text, (unsigned long long)peer->backoff_ms);
    give_up_link(core, msg->peer, msg->end, msg->text);
    tell_given_up(core, msg->peer, msg);
}

void peer_stop(struct core *core)
{
    assert(core->stopping);
    for (unsigned i = 0; i < core->config.nnodes; i++)
        if (peer_linked(core, i) && !core->engine.resuming)
            tell_engine_state(core, i);
}
