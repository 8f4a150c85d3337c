/* sim_net.c - the links of the simulator, one per pair of nodes, like TCP under TLS.
 *
 * Each direction delivers in order, after a random delay, as long as the link lives. A link
 * that ends takes along what was on its way, in both directions. A cut lets nothing pass and
 * tells nobody; what was sent waits, and arrives after the heal if neither side has given up.
 * Two nodes that have no link try again after a while. Each side hears of the link's begin and
 * end for itself, at its own time. */
#include "tests/sim/sim_internal.h"

uint64_t net_delay(struct sim *sim)
{
    uint64_t span = sim->options.delay_max - sim->options.delay_min;

    return sim->options.delay_min + sim_random(sim, STREAM_NET, span + 1);
}

static void packet_free(struct packet *packet)
{
    if (packet->msg.type == MSG_COMMIT) {
        free(packet->msg.commit.members);
        free(packet->msg.commit.nodes);
    } else if (packet->msg.type == MSG_JOIN_NEWS) {
        free(packet->msg.join_news.gone);
    }
    free(packet);
}

static void *copy(const void *p, size_t len)
{
    void *q = malloc(len ? len : 1);

    if (!q)
        abort();
    return len ? memcpy(q, p, len) : q;
}

static void empty(struct pipe *pipe)
{
    while (pipe->head) {
        struct packet *packet = pipe->head;

        pipe->head = packet->next;
        packet_free(packet);
    }
    pipe->tail = &pipe->head;
    pipe->last = 0;
}

void net_free(struct sim *sim)
{
    for (unsigned a = 0; a < sim->options.nodes; a++)
        for (unsigned b = 0; b < sim->options.nodes; b++)
            empty(&sim->pipes[a][b]);
    for (unsigned i = 0; i < KEPT; i++)
        if (sim->kept[i].packet)
            packet_free(sim->kept[i].packet);
}

static struct packet *pack(const struct msg *msg)
{
    struct packet *packet = calloc(1, sizeof(*packet));

    if (!packet)
        abort();
    packet->msg = *msg;
    if (msg->type == MSG_COMMIT) {
        packet->msg.commit.members =
            copy(msg->commit.members, msg->commit.size * sizeof(*msg->commit.members));
        packet->msg.commit.nodes =
            copy(msg->commit.nodes, msg->commit.nnodes * sizeof(*msg->commit.nodes));
    } else if (msg->type == MSG_JOIN_NEWS) {
        packet->msg.join_news.gone =
            copy(msg->join_news.gone, msg->join_news.ngone * sizeof(*msg->join_news.gone));
    }
    return packet;
}

static void keep(struct sim *sim, unsigned from, unsigned to, const struct msg *msg)
{
    struct kept *kept = &sim->kept[sim->nkept++ % KEPT];

    if (kept->packet)
        packet_free(kept->packet);
    *kept = (struct kept){from, to, pack(msg)};
}

void sim_replay(struct sim *sim, uint64_t which)
{
    struct kept kept = sim->kept[which % KEPT];

    if (!kept.packet || !sim->up[kept.to][kept.from])
        return;
    kept.packet = pack(&kept.packet->msg); /* what it brings about may take its place */
    sim_note(sim, "%s -> %s comes again: message %d", sim_node_name(sim, kept.from),
             sim_node_name(sim, kept.to), kept.packet->msg.type);
    sim_peer_says(sim, kept.from, kept.to, &kept.packet->msg);
    packet_free(kept.packet);
}

void net_send(struct sim *sim, unsigned from, unsigned to, const struct msg *msg)
{
    struct pipe *pipe = &sim->pipes[from][to];
    struct packet *packet;

    if (!sim->up[from][to] || !sim->live[from][to])
        return;
    packet = pack(msg);
    if (msg->type == MSG_COMMIT || msg->type == MSG_SYNC || msg->type == MSG_GONE ||
        msg->type == MSG_BROKEN || msg->type == MSG_JOIN_REFUSED)
        keep(sim, from, to, msg);
    if (!pipe->tail)
        pipe->tail = &pipe->head;
    *pipe->tail = packet;
    pipe->tail = &packet->next;
    pipe->last = MAX(pipe->last, sim->now + net_delay(sim) + pipe->slow);
    sim_at(sim, pipe->last - sim->now,
           (struct ev){.type = EV_DELIVER, .a = from, .b = to, .gen = sim->link_gen[from][to]});
}

/* It lies in the socket of a process that is stopped, whatever becomes of the link. */
static void deliver_late(struct sim *sim, const struct ev *ev, struct packet *packet)
{
    struct pipe *pipe = &sim->pipes[ev->a][ev->b];

    packet->next = NULL;
    if (!pipe->late)
        pipe->late_tail = &pipe->late;
    *pipe->late_tail = packet;
    pipe->late_tail = &packet->next;
    sim_at(sim, sim->nodes[ev->b].stopped + 1 - sim->now,
           (struct ev){.type = EV_LATE, .a = ev->a, .b = ev->b});
}

static void read_packet(struct sim *sim, const struct ev *ev, struct packet *packet)
{
    if (!sim->up[ev->b][ev->a]) {
        packet_free(packet);
        return;
    }
    if (packet->msg.type == MSG_ENGINE_STATE)
        memcpy(&sim->nodes[ev->b].their_token[ev->a], packet->msg.engine_state.token,
               sizeof(uint64_t));
    sim_input(sim, ev->b,
              (struct core_event){.type = CORE_PEER_MSG, .node = ev->a, .msg = &packet->msg});
    packet_free(packet);
}

static void deliver(struct sim *sim, const struct ev *ev)
{
    struct pipe *pipe = &sim->pipes[ev->a][ev->b];
    struct packet *packet = pipe->head;

    if (sim->cut[ev->a][ev->b] || !packet ||
        (!sim->up[ev->b][ev->a] && !sim->nodes[ev->b].stopped)) /* which takes the link later */
        return;
    pipe->head = packet->next;
    if (!pipe->head)
        pipe->tail = &pipe->head;
    if (sim->nodes[ev->b].stopped)
        deliver_late(sim, ev, packet);
    else
        read_packet(sim, ev, packet);
}

static void late(struct sim *sim, const struct ev *ev)
{
    struct pipe *pipe = &sim->pipes[ev->a][ev->b];
    struct packet *packet = pipe->late;

    pipe->late = packet->next;
    read_packet(sim, ev, packet);
}

static void reconnect(struct sim *sim, unsigned a, unsigned b)
{
    sim_at(sim, 20 + sim_random(sim, STREAM_NET, 100),
           (struct ev){.type = EV_CONNECT, .a = MIN(a, b), .b = MAX(a, b)});
}

/* Ends the link for what is on its way; sides that are up learn it @later. */
static void end_link(struct sim *sim, unsigned a, unsigned b)
{
    sim->link_gen[a][b]++;
    sim->link_gen[b][a] = sim->link_gen[a][b];
    sim->live[a][b] = sim->live[b][a] = false;
    empty(&sim->pipes[a][b]);
    empty(&sim->pipes[b][a]);
    for (unsigned i = 0; i < 2; i++) {
        unsigned node = i ? b : a, peer = i ? a : b;

        if (sim->up[node][peer] && !sim->cut[a][b])
            sim_at(sim, net_delay(sim),
                   (struct ev){
                       .type = EV_LINK_DOWN, .a = node, .b = peer, .gen = sim->link_gen[a][b]});
    }
}

void net_drop(struct sim *sim, unsigned node, unsigned peer)
{
    if (!sim->up[node][peer])
        return;
    sim->up[node][peer] = false;
    end_link(sim, node, peer);
    reconnect(sim, node, peer);
}

void net_look(struct sim *sim, unsigned node, unsigned peer)
{
    sim_at(sim, net_delay(sim), (struct ev){.type = EV_VACANT, .a = node, .b = peer});
}

static void look(struct sim *sim, const struct ev *ev)
{
    if (sim->nodes[ev->a].alive && !sim->nodes[ev->b].alive && !sim->nodes[ev->b].gap &&
        !sim->cut[ev->a][ev->b])
        sim_input(sim, ev->a, (struct core_event){.type = CORE_PEER_VACANT, .node = ev->b});
}

static void connect_pair(struct sim *sim, const struct ev *ev)
{
    unsigned a = ev->a, b = ev->b;

    if (!sim->nodes[a].alive || !sim->nodes[b].alive || sim->live[a][b])
        return;
    if (sim->up[a][b] || sim->up[b][a] || sim->cut[a][b]) {
        reconnect(sim, a, b); /* one side has not noticed the end yet */
        return;
    }
    sim->link_gen[a][b]++;
    sim->link_gen[b][a] = sim->link_gen[a][b];
    sim->live[a][b] = sim->live[b][a] = true;
    for (unsigned i = 0; i < 2; i++) {
        unsigned node = i ? b : a, peer = i ? a : b;
        uint64_t delay = net_delay(sim);

        sim->pipes[peer][node].last = sim->now + delay; /* nothing arrives before the link */
        sim_at(sim, delay,
               (struct ev){.type = EV_LINK_UP, .a = node, .b = peer, .gen = sim->link_gen[a][b]});
    }
}

static void link_up(struct sim *sim, const struct ev *ev)
{
    struct msg hello = {.type = MSG_PEER_HELLO};

    if (!sim->nodes[ev->a].alive || sim->up[ev->a][ev->b])
        return;
    if (!sim->nodes[ev->b].alive || !sim->live[ev->a][ev->b]) {
        reconnect(sim, ev->a, ev->b);
        return;
    }
    sim->up[ev->a][ev->b] = true;
    hello.peer_hello.version = MSG_VERSION - (sim->options.old == ev->b + 1);
    hello.peer_hello.incarnation = sim->nodes[ev->b].core->config.incarnation;
    hello.peer_hello.strays = sim->options.old != ev->b + 1;
    sim_input(sim, ev->a, (struct core_event){.type = CORE_PEER_UP, .node = ev->b, .msg = &hello});
}

/* Does @a keep its groups over @b when their link is gone? */
static bool holds(const struct sim *sim, unsigned a, unsigned b)
{
    return sim->nodes[a].alive &&
           (peer_usable(sim->nodes[a].core, b) || peer_is_missed(sim->nodes[a].core, b));
}

static void link_down(struct sim *sim, const struct ev *ev)
{
    if (!sim->nodes[ev->a].alive || !sim->up[ev->a][ev->b])
        return;
    sim->up[ev->a][ev->b] = false;
    if (!holds(sim, ev->a, ev->b))
        sim->oracle.node_fault[ev->a] = sim->oracle.node_fault[ev->b] = true;
    sim_input(
        sim, ev->a,
        (struct core_event){.type = CORE_PEER_DOWN, .node = ev->b, .text = "connection reset"});
    reconnect(sim, ev->a, ev->b);
}

void net_event(struct sim *sim, const struct ev *ev)
{
    bool stale = ev->gen != sim->link_gen[ev->a][ev->b];

    if (ev->type == EV_CONNECT)
        connect_pair(sim, ev);
    else if (ev->type == EV_LATE)
        late(sim, ev);
    else if (ev->type == EV_VACANT)
        look(sim, ev);
    else if (stale && ev->type == EV_LINK_UP)
        reconnect(sim, ev->a, ev->b); /* it ended before this side knew that it began */
    else if (stale)
        return;
    else if (ev->type == EV_DELIVER)
        deliver(sim, ev);
    else if (ev->type == EV_LINK_UP)
        link_up(sim, ev);
    else if (ev->type == EV_LINK_DOWN)
        link_down(sim, ev);
}

void net_node_gone(struct sim *sim, unsigned node, bool flush)
{
    for (unsigned i = 0; i < sim->options.nodes; i++)
        sim->up[node][i] = false;
    for (unsigned i = 0; i < sim->options.nodes; i++) {
        if (i == node)
            continue;
        /* What a process wrote before it died may still arrive. */
        while (flush && sim->live[node][i] && sim->up[i][node] && !sim->cut[node][i] &&
               sim->pipes[node][i].head)
            deliver(sim, &(struct ev){.a = node, .b = i});
        end_link(sim, node, i);
    }
}

void net_node_started(struct sim *sim, unsigned node)
{
    for (unsigned i = 0; i < sim->options.nodes; i++)
        if (i != node)
            reconnect(sim, node, i);
}

void sim_reset(struct sim *sim, unsigned a, unsigned b)
{
    if (!sim->live[a][b])
        return;
    if (!holds(sim, a, b) || !holds(sim, b, a))
        sim->oracle.node_fault[a] = sim->oracle.node_fault[b] = true;
    sim->oracle.reset = true;
    sim_note(sim, "link %s-%s is reset", sim_node_name(sim, a), sim_node_name(sim, b));
    end_link(sim, a, b);
}

void sim_cut(struct sim *sim, unsigned a, unsigned b)
{
    sim->oracle.node_fault[a] = sim->oracle.node_fault[b] = true;
    sim->oracle.engine_fault[a] = sim->oracle.engine_fault[b] = true;
    sim_note(sim, "link %s-%s is cut", sim_node_name(sim, a), sim_node_name(sim, b));
    if (!sim->cut[a][b])
        sim->cut_ms[a][b] = sim->cut_ms[b][a] = sim->now;
    sim->cut[a][b] = sim->cut[b][a] = true;
}

void sim_slow(struct sim *sim, unsigned from, unsigned to, uint64_t ms)
{
    sim->pipes[from][to].slow = ms;
}

void sim_heal(struct sim *sim)
{
    for (unsigned a = 0; a < sim->options.nodes; a++) {
        for (unsigned b = 0; b < sim->options.nodes; b++) {
            if (!sim->cut[a][b])
                continue;
            sim->cut[a][b] = false;
            for (struct packet *p = sim->pipes[a][b].head; p; p = p->next)
                sim_at(sim, net_delay(sim),
                       (struct ev){.type = EV_DELIVER, .a = a, .b = b, .gen = sim->link_gen[a][b]});
            if (sim->up[a][b] && !sim->up[b][a])
                sim_at(
                    sim, net_delay(sim),
                    (struct ev){.type = EV_LINK_DOWN, .a = a, .b = b, .gen = sim->link_gen[a][b]});
            if (a < b)
                reconnect(sim, a, b);
        }
    }
}
