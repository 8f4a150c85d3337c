/* core_peer_time.c - nodes by the clock: heartbeats, silence, who is away for too long, and what is
 * tried again. Who is in which state: core_peer.c.
 *
 * Who wakes me: peer_deadline(). What if I am stopped now: peer_forgive(). */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

/* Since when the two count as apart. Of one that is READY: no longer than leaves it @grace. */
static uint64_t forgive_apart(const struct core *core, const struct peer *peer, uint64_t grace)
{
    uint64_t since = core->now;

    if (peer->apart_ms && peer->state == CORE_PEER_READY)
        since -= MIN(since, 2 * core->config.node_timeout_ms - grace);
    return peer->apart_ms ? MAX(peer->apart_ms, since) : 0;
}

void peer_forgive(struct core *core, uint64_t grace)
{
    uint64_t floor = core->now + grace;

    floor -= MIN(floor, core->config.node_timeout_ms);
    for (unsigned i = 0; i < core->config.nnodes; i++) {
        struct peer *peer = &core->peers[i];

        peer->heard_ms = MAX(peer->heard_ms, floor);
        peer->lost_ms = MAX(peer->lost_ms, core->now + grace);
        peer->hope_ms = MAX(peer->hope_ms, core->now + grace);
        peer->apart_ms = forgive_apart(core, peer, grace);
        peer->doubt_ms = MAX(peer->doubt_ms, core->now + grace);
    }
}

/* @end: what becomes of it. Its link, if it has one, is ours to close. */
static void drop_peer(struct core *core, unsigned node, const char *why, uint64_t ms,
                      void (*end)(struct core *core, unsigned node, const char *why))
{
    char buf[MSG_TEXT_MAX];
    struct text text = {buf, sizeof(buf), 0};

    text_add(&text, "%s", why);
    if (ms)
        text_add_ms(&text, ms);
    if (peer_linked(core, node))
        act_push(core,
                 (struct core_action){.type = CORE_DO_PEER_DROP,
                                      .peer_drop = {.node = node, .why = act_text(core, buf)}});
    end(core, node, buf);
}

/* When a node that is AWAY is taken for gone, because its data connection broke, too. */
static uint64_t gone_at(const struct core *core, unsigned node)
{
    uint64_t broke_ms =
        core->peers[node].state == CORE_PEER_AWAY ? peer_broke_ms(core, node) : CORE_NEVER;

    return broke_ms == CORE_NEVER ? CORE_NEVER : broke_ms + CORE_ENGINE_DOUBT_MS;
}

/* What does not come back in time, or cannot come back. */
static bool check_missed(struct core *core, unsigned node)
{
    if (core->now >= core->peers[node].lost_ms)
        drop_peer(core, node, "its commd is not back within ", core->config.restart_timeout_ms,
                  peer_lost_away);
    else if (core->now >= gone_at(core, node))
        drop_peer(core, node, "the data connection broke", 0, peer_struck);
    else
        return false;
    return true;
}

/* Until when an engine without a connection makes or mends one, or says that it cannot. Who takes
 * connections and passes nothing on, as a firewall may, is not seen by it. */
static uint64_t apart_until(const struct core *core, unsigned node)
{
    const struct peer *peer = &core->peers[node];

    return peer->state == CORE_PEER_READY && peer->apart_ms && !core->stopping
               ? peer->apart_ms + 2 * core->config.node_timeout_ms
               : CORE_NEVER;
}

static void give_up_apart(struct core *core, unsigned node)
{
    struct msg_engine_peer lost = {
        .peer = node, .engine = core->peers[node].engine, .end = LINK_END_NETWORK};
    struct text text = {lost.text, sizeof(lost.text), 0};

    text_add(&text, "no connection for ");
    text_add_ms(&text, core->now - core->peers[node].apart_ms);
    peer_engine_lost(core, &lost);
}

/* When it has to be looked at next. */
static uint64_t check_at(const struct core *core, unsigned node)
{
    const struct peer *peer = &core->peers[node];

    if (peer->state == CORE_PEER_AWAY)
        return MIN(MIN(peer->lost_ms, peer->tell_away_ms), gone_at(core, node));
    return MIN(MIN(MIN(MIN(peer->lost_ms, peer->tell_away_ms), apart_until(core, node)),
                   peer->heard_ms + core->config.node_timeout_ms),
               peer->doubt_ms != CORE_NEVER ? peer->doubt_ms : peer->retry_ms);
}

/* Each peer: has it been silent or away for too long, and what else is due? */
static void check_peers(struct core *core)
{
    uint64_t next = CORE_NEVER;

    for (unsigned i = 0; i < core->config.nnodes; i++) {
        struct peer *peer = &core->peers[i];

        if ((!peer_linked(core, i) && peer->state != CORE_PEER_AWAY) || check_missed(core, i))
            continue;
        if (peer_linked(core, i) && core->now >= peer->heard_ms + core->config.node_timeout_ms) {
            drop_peer(core, i, TEXT_SILENT, core->config.node_timeout_ms, peer_silent);
            if (peer->state == CORE_PEER_AWAY)
                next = MIN(next, check_at(core, i));
            continue;
        }
        if (core->now >= peer->tell_away_ms)
            peer_tell_away(core, i);
        if (core->now >= apart_until(core, i))
            give_up_apart(core, i);
        if (core->now >= peer->doubt_ms)
            peer_settle(core, i);
        if (core->now >= peer->retry_ms && peer->doubt_ms == CORE_NEVER) {
            peer->retry_ms = CORE_NEVER;
            peer_add_engine(core, i);
        }
        next = MIN(next, check_at(core, i));
    }
    core->silent_ms = next;
}

/* What our engine hears of it says whether a node whose commd is silent, or away, is there. */
static void ask_engine(struct core *core)
{
    for (unsigned i = 0; i < core->config.nnodes; i++)
        if (core->peers[i].state == CORE_PEER_AWAY ||
            (core->peers[i].state == CORE_PEER_READY &&
             core->now >= core->peers[i].heard_ms + core->config.node_timeout_ms / 2)) {
            engine_ask(core);
            return;
        }
}

void peer_tick(struct core *core)
{
    if (core->now >= core->heartbeat_ms) {
        core->heartbeat_ms = core->now + core->config.heartbeat_ms;
        assert(core->heartbeat_ms > core->now);
        core->heartbeat_seq++;
        renew_mark_shared(core);
        for (unsigned i = 0; i < core->config.nnodes; i++)
            if (peer_linked(core, i))
                act_to_peer(core, i,
                            (struct act_msg){.type = MSG_HEARTBEAT,
                                             .heartbeat = {.seq = core->heartbeat_seq,
                                                           .draining = core->draining,
                                                           .free = !core->peers[i].shares}});
        group_tick(core);
        follow_tick(core);
        stray_tick(core);
        ask_engine(core);
    }
    if (core->now >= core->silent_ms)
        check_peers(core);
}

uint64_t peer_deadline(const struct core *core)
{
    return MIN(core->heartbeat_ms, core->silent_ms);
}
