/* sim_engine.c - a fake commd-engine per node: it starts after a while, has an address,
 * connects to peers whose address is alive and that were told of it with the same tokens, and
 * notices when one is not there any more. It outlives its commd: then it says nothing, and tells
 * the next one what it has. */
#include "tests/sim/sim_internal.h"

static uint64_t wait_some(struct sim *sim)
{
    return 1 + sim_random(sim, STREAM_ENGINE, 1 + sim->options.engine_delay);
}

static void at(struct sim *sim, uint64_t delay, enum ev_type type, unsigned node, unsigned peer,
               uint64_t arg)
{
    sim_at(sim, delay,
           (struct ev){
               .type = type, .a = node, .b = peer, .gen = sim->nodes[node].engine_gen, .arg = arg});
}

void engine_start_process(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (n->engine_alive)
        sim_fail(sim, "node %s started a second engine", sim_node_name(sim, node));
    n->engine_alive = true;
    n->engine_hello = false;
    n->engine_gen++;
    memset(n->engine_has, 0, sizeof(n->engine_has));
    memset(n->engine_ok, 0, sizeof(n->engine_ok));
    memset(n->engine_lost, 0, sizeof(n->engine_lost));
    memset(n->engine_intro, 0, sizeof(n->engine_intro));
    memset(n->engine_met, 0, sizeof(n->engine_met));
    n->engine_kept = 0;
    n->engine_settings = (n->settings + 1) << 16;
    at(sim, 0, EV_ENGINE_STARTED, node, 0, 0);
    at(sim, wait_some(sim), EV_ENGINE_HELLO, node, 0, 0);
}

/* It notices by its transport that the other end is gone: it has no connection, and finds none. */
static void loses(struct sim *sim, unsigned node, unsigned peer)
{
    uint64_t number = sim->nodes[node].engine_intro[peer].number;

    at(sim, 1, EV_ENGINE_APART, node, peer, number);
    at(sim, wait_some(sim), EV_ENGINE_LOST, node, peer, number);
}

/* Those connected to it notice. */
void engine_kill_process(struct sim *sim, unsigned node, bool report)
{
    struct node *n = &sim->nodes[node];

    if (!n->engine_alive)
        return;
    n->engine_alive = false;
    if (report)
        at(sim, 1, EV_ENGINE_EXIT, node, 0, 0);
    for (unsigned i = 0; i < sim->options.nodes; i++)
        if (i != node && sim->nodes[i].engine_alive && sim->nodes[i].engine_has[node])
            loses(sim, i, node);
}

static void say(struct sim *sim, unsigned node, const struct msg *msg)
{
    sim_input(sim, node, (struct core_event){.type = CORE_ENGINE_MSG, .msg = msg});
}

void sim_engine_says(struct sim *sim, unsigned node, const struct msg *msg)
{
    if (sim->nodes[node].alive && sim->nodes[node].engine_hello)
        say(sim, node, msg);
}

static void say_peer(struct sim *sim, unsigned node, enum msg_type type, unsigned peer,
                     uint64_t incarnation, const char *text)
{
    struct msg msg = {.type = type};

    msg.engine_peer.peer = peer;
    msg.engine_peer.engine = incarnation;
    msg.engine_peer.end = type == MSG_ENGINE_PEER_DOWN ? sim->now % 3 : 0;
    msg.engine_peer.planned = type == MSG_ENGINE_PEER_DOWN && pause_rests_for(sim, node, peer);
    msg.engine_peer.intro = sim->nodes[node].engine_intro[peer].told;
    text_copy(msg.engine_peer.text, sizeof(msg.engine_peer.text), text);
    say(sim, node, &msg);
}

bool engine_fits(const struct sim *sim, unsigned a, unsigned b)
{
    const struct node *n = &sim->nodes[a], *peer = &sim->nodes[b];
    const struct intro *ours = &n->engine_intro[b], *theirs = &peer->engine_intro[a];

    return n->engine_alive && peer->engine_alive && n->engine_has[b] == peer->engine_gen &&
           peer->engine_has[a] == n->engine_gen && ours->token == theirs->expect &&
           ours->expect == theirs->token && ours->session == theirs->session &&
           (!n->engine_met[b] || n->engine_met[b] == theirs->number) &&
           (!peer->engine_met[a] || peer->engine_met[a] == ours->number);
}

static void say_traffic(struct sim *sim, unsigned node, unsigned peer)
{
    struct node *n = &sim->nodes[node];
    struct msg msg = {.type = MSG_ENGINE_TRAFFIC};

    if (!n->alive || n->stopped || !n->engine_hello || !n->engine_has[peer])
        return;
    msg.engine_traffic.peer = peer;
    msg.engine_traffic.engine = n->engine_for[peer];
    msg.engine_traffic.apart = !n->engine_met[peer];
    msg.engine_traffic.quiet_ms =
        sim->cut[node][peer] ? (uint32_t)(sim->now - sim->cut_ms[node][peer]) + 1 : 1;
    say(sim, node, &msg);
}

static void meet(struct sim *sim, unsigned a, unsigned b)
{
    struct node *n = &sim->nodes[a], *peer = &sim->nodes[b];

    if (n->engine_met[b] || !n->engine_ok[b] || !peer->engine_ok[a] || !engine_fits(sim, a, b))
        return;
    n->engine_met[b] = peer->engine_intro[a].number;
    peer->engine_met[a] = n->engine_intro[b].number;
    say_traffic(sim, a, b);
    say_traffic(sim, b, a);
}

/* @node closes the connection. The other side sees that, soon or when nobody answers. */
static void part(struct sim *sim, unsigned node, unsigned peer)
{
    struct node *n = &sim->nodes[node];
    const struct node *other = &sim->nodes[peer];

    if (n->engine_met[peer] && other->engine_alive &&
        other->engine_intro[node].number == n->engine_met[peer])
        at(sim, sim_random(sim, STREAM_ENGINE, 2) ? wait_some(sim) : 1200, EV_ENGINE_LOST, peer,
           node, n->engine_met[peer]);
    n->engine_met[peer] = 0;
}

static void forget(struct sim *sim, unsigned node, unsigned peer)
{
    struct node *n = &sim->nodes[node];

    part(sim, node, peer);
    n->engine_has[peer] = 0;
    n->engine_ok[peer] = n->engine_lost[peer] = false;
    n->engine_intro[peer] = (struct intro){0};
}

static void add(struct sim *sim, unsigned node, const struct msg_engine_peer_add *msg)
{
    struct node *n = &sim->nodes[node];
    unsigned peer = msg->peer;
    uint64_t address;

    memcpy(&address, msg->addr, sizeof(address));
    if (msg->addr_len != sizeof(address))
        sim_fail(sim, "node %s adds a peer without an address", sim_node_name(sim, node));
    if (n->engine_has[peer] && !sim->taken_over)
        sim_fail(sim, "node %s adds a peer twice", sim_node_name(sim, node));
    forget(sim, node, peer);
    n->engine_has[peer] = address;
    n->engine_for[peer] = msg->engine;
    n->engine_intro[peer] = (struct intro){.number = ++sim->intros,
                                           .token = n->their_token[peer],
                                           .expect = n->said_token[peer],
                                           .session = sim->link_gen[node][peer],
                                           .told = msg->intro};
    at(sim, wait_some(sim), EV_ENGINE_ADDED, node, peer, msg->engine);
    if (sim->kills_introduced)
        sim_kill_after(sim, sim_random(sim, STREAM_NODE, 2) ? node : peer,
                       1 + (unsigned)sim_random(sim, STREAM_NODE, 12));
    sim->kills_introduced = false;
}

void engine_receive(struct sim *sim, unsigned node, const struct msg *msg)
{
    struct node *n = &sim->nodes[node];

    if (!n->engine_alive)
        return;
    if (msg->type == MSG_BOARD_HOLD) {
        hold_asked(sim, node, msg->board_held.group, false);
    } else if (msg->type == MSG_BOARD_GO) {
        hold_ends(sim, node, msg->board_held.group, false);
    } else if (msg->type == MSG_BOARD_PAUSE) {
        pause_asked(sim, node, &msg->pause);
    } else if (msg->type == MSG_PING) {
        at(sim, 1, EV_ENGINE_PONG, node, 0, msg->ping.seq);
    } else if (msg->type == MSG_ENGINE_PEER_ADD) {
        if (sim->live[node][msg->engine_peer_add.peer]) /* else there is no session any more */
            add(sim, node, &msg->engine_peer_add);
    } else if (msg->type == MSG_ENGINE_PEER_DEL) {
        forget(sim, node, msg->engine_peer.peer);
    }
}

static void hello(struct sim *sim, unsigned node, bool resumed)
{
    struct msg msg = {.type = MSG_ENGINE_HELLO};

    sim->nodes[node].engine_hello = true;
    msg.engine_hello.version = MSG_VERSION;
    msg.engine_hello.resumed = resumed;
    msg.engine_hello.settings = sim->nodes[node].engine_settings;
    msg.engine_hello.pid = 9000 + node;
    msg.engine_hello.addr_len = sizeof(uint64_t);
    memcpy(msg.engine_hello.addr, &sim->nodes[node].engine_gen, sizeof(uint64_t));
    text_copy(msg.engine_hello.text, sizeof(msg.engine_hello.text), "fake");
    say(sim, node, &msg);
}

void engine_restore(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct core_kept_engine kept = {.pid = 9000 + node,
                                    .incarnation = n->engine_kept,
                                    .addr = (const uint8_t *)&n->engine_gen,
                                    .addr_len = sizeof(n->engine_gen),
                                    .text = "fake"};

    if (n->engine_kept && !core_restore_engine(n->core, &kept))
        sim_fail(sim, "node %s refuses its engine", sim_node_name(sim, node));
}

void engine_adopted(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (!n->engine_kept)
        return;
    n->engine_hello = false;
    at(sim, wait_some(sim), n->engine_alive ? EV_ENGINE_RESUME : EV_ENGINE_EXIT, node, 0, 0);
}

/* It is killed, commd, where it takes in what its engine has. */
static void resume(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    uint64_t life = sim->taken_over;

    hello(sim, node, true);
    for (unsigned i = 0; i < sim->options.nodes && n->alive && life == sim->taken_over; i++) {
        bool lost = n->engine_lost[i];

        if (!lost && !n->engine_ok[i])
            continue;
        n->engine_lost[i] = false;
        say_peer(sim, node, lost ? MSG_ENGINE_PEER_DOWN : MSG_ENGINE_PEER_READY, i,
                 n->engine_for[i], lost ? "connection reset" : "");
        if (!lost && life == sim->taken_over)
            say_traffic(sim, node, i);
    }
    if (n->alive && life == sim->taken_over)
        hold_resumed(sim, node);
    if (n->alive && life == sim->taken_over)
        say(sim, node, &(struct msg){.type = MSG_ENGINE_RESUMED});
}

static void connected(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a], *peer = &sim->nodes[ev->b];
    uint64_t address = n->engine_has[ev->b];
    bool lost;

    if (!address)
        return; /* deleted meanwhile */
    /* It answers late, even about an address that was deleted and added anew: the core has to
     * look at the incarnation. */
    lost = !peer->engine_alive || peer->engine_gen != address || sim->cut[ev->a][ev->b];
    if (!lost)
        n->engine_ok[ev->b] |= n->engine_for[ev->b] == ev->arg;
    if (lost)
        part(sim, ev->a, ev->b);
    if (!n->engine_hello)
        n->engine_lost[ev->b] |= lost && n->engine_for[ev->b] == ev->arg;
    else if (lost)
        say_peer(sim, ev->a, MSG_ENGINE_PEER_DOWN, ev->b, ev->arg, "no route");
    else
        say_peer(sim, ev->a, MSG_ENGINE_PEER_READY, ev->b, ev->arg, "");
    if (!lost)
        meet(sim, ev->a, ev->b);
}

static void lost_peer(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a];

    if (n->engine_intro[ev->b].number != ev->arg || !ev->arg)
        return;
    part(sim, ev->a, ev->b);
    n->engine_ok[ev->b] = false;
    n->engine_lost[ev->b] = !n->engine_hello;
    if (n->engine_hello)
        say_peer(sim, ev->a, MSG_ENGINE_PEER_DOWN, ev->b, n->engine_for[ev->b], "connection reset");
}

static void apart(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a];

    if (n->engine_intro[ev->b].number != ev->arg || !n->engine_met[ev->b])
        return;
    n->engine_met[ev->b] = 0;
    say_traffic(sim, ev->a, ev->b);
}

void engine_event(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a];
    struct msg msg = {.type = MSG_PING};

    if ((!n->alive && !n->gap) || ev->gen != n->engine_gen)
        return;
    if (ev->type == EV_ENGINE_EXIT) {
        if (n->alive)
            sim_input(sim, ev->a,
                      (struct core_event){.type = CORE_ENGINE_DOWN, .text = "killed by signal 9"});
        return;
    }
    if (!n->engine_alive)
        return;
    if (ev->type == EV_ENGINE_ADDED)
        connected(sim, ev);
    else if (ev->type == EV_ENGINE_LOST)
        lost_peer(sim, ev);
    else if (ev->type == EV_ENGINE_APART)
        apart(sim, ev);
    else if (ev->type == EV_ENGINE_DIES)
        sim_crash_engine(sim, ev->a);
    else if (!n->alive)
        return; /* nobody hears it */
    else if (ev->type == EV_ENGINE_STARTED)
        sim_input(sim, ev->a,
                  (struct core_event){.type = CORE_ENGINE_STARTED, .pid = 9000 + ev->a});
    else if (ev->type == EV_ENGINE_HELLO)
        hello(sim, ev->a, false);
    else if (ev->type == EV_ENGINE_RESUME && !n->engine_hello)
        resume(sim, ev->a);
    else if (ev->type == EV_ENGINE_PONG && n->engine_hello) {
        for (unsigned i = 0; i < sim->options.nodes; i++)
            say_traffic(sim, ev->a, i);
        if (!n->alive)
            return;
        msg.ping.seq = ev->arg;
        msg.ping.pong = 1;
        say(sim, ev->a, &msg);
    }
}

void sim_crash_engine(struct sim *sim, unsigned node)
{
    if (!sim->nodes[node].engine_alive)
        return;
    sim->oracle.engine_fault[node] = true;
    sim_note(sim, "engine of %s is killed", sim_node_name(sim, node));
    engine_kill_process(sim, node, true);
}

void sim_engine_lost(struct sim *sim, unsigned node, unsigned peer)
{
    struct node *n = &sim->nodes[node];

    if (!n->engine_alive || !n->engine_has[peer])
        return;
    sim->oracle.engine_fault[node] = sim->oracle.engine_fault[peer] = true;
    at(sim, 1, EV_ENGINE_LOST, node, peer, n->engine_intro[peer].number);
}
