/* sim_pause.c - engines that are replaced while groups run, in the simulator: what an engine says
 * of a group that comes to rest, and whether an engine is ended only when its groups do.
 *
 * Where the group stands when an engine is ended follows from its round (sim_hold.c). If a node has
 * something on the wire in that round, or is ahead, it never says that it is quiet. If a message is
 * under way, a node says that it has sent more than have come; half of these come a little later,
 * and are told then, and the others never. So such a group must not come to rest. */
#include "tests/sim/sim_internal.h"

enum { PAUSE_MS = 5000 }; /* engine_pause.c */

void sim_renew(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct core_config config;

    n->settings++;
    if (!n->alive)
        return;
    sim_note(sim, "%s has other settings for its engine", sim_node_name(sim, node));
    config = n->core->config;
    config.engine_settings = (n->settings + 1) << 16;
    core_reconfigure(n->core, &config);
}

static bool pauses(const struct sim *sim, const struct board *board)
{
    return board->pause.on && sim->now < board->pause.until;
}

bool pause_rests_for(const struct sim *sim, unsigned node, unsigned peer)
{
    for (unsigned i = 0; i < SIM_BOARDS; i++) {
        const struct board *board = &sim->nodes[node].boards[i];

        if (board->group && !board->broken && pauses(sim, board) && board->pause.final &&
            board->pause.asker == peer)
            return true;
    }
    return false;
}

static void say(struct sim *sim, unsigned node, const struct board *board, enum msg_pause_step step,
                struct place place)
{
    struct msg msg = {.type = MSG_BOARD_PAUSE};

    msg.pause = (struct msg_pause){.group = board->group,
                                   .attempt = board->pause.attempt,
                                   .step = step,
                                   .ops = place.ops,
                                   .sent = place.sent,
                                   .came = place.came,
                                   .asker = board->pause.asker};
    sim_engine_says(sim, node, &msg);
}

/* The board answers a step, or says one more time how many messages have come. */
void pause_event(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a];
    struct board *board = edge_board(sim, ev->a, ev->arg);
    struct place place;

    if (!board || !n->engine_alive || ev->gen != n->engine_gen || !pauses(sim, board) ||
        ev->b != board->pause.attempt % 1000)
        return;
    place = hold_place(sim, ev->a, board);
    if (!board->pause.final) {
        say(sim, ev->a, board, PAUSE_POSTED, (struct place){.ops = board->pause.ops});
        return;
    }
    if (!place.quiet || place.ops != board->round || board->held)
        return;
    place.ops = board->pause.ops;
    if (board->pause.late)
        place.came--;
    if (board->pause.told)
        place.sent = 0, place.came = 1;
    say(sim, ev->a, board, PAUSE_QUIET, place);
    if (board->pause.late)
        sim_at(sim, 3, *ev);
    board->pause.told = board->pause.late;
    board->pause.late = false;
}

void pause_asked(struct sim *sim, unsigned node, const struct msg_pause *ask)
{
    struct board *board = edge_board(sim, node, ask->group);
    struct board_pause *p = board ? &board->pause : NULL;

    if (ask->step == PAUSE_ASK && (!board || board->broken || board->held || pauses(sim, board))) {
        struct board none = {.group = ask->group,
                             .pause = {.asker = ask->asker, .attempt = ask->attempt}};

        say(sim, node, &none, PAUSE_BUSY, (struct place){0});
        return;
    }
    if (ask->step != PAUSE_ASK && (!board || !pauses(sim, board) || p->asker != ask->asker ||
                                   (ask->attempt && p->attempt != ask->attempt)))
        return;
    if (ask->step == PAUSE_END) {
        p->on = false;
        return;
    }
    if (ask->step == PAUSE_ASK)
        *p = (struct board_pause){.on = true,
                                  .asker = ask->asker,
                                  .attempt = ask->attempt,
                                  .ops = (uint32_t)sim_random(sim, STREAM_ENGINE, 3),
                                  .until = sim->now + PAUSE_MS};
    else if (ask->ops < p->ops)
        sim_fail(sim, "node %s is to stop before what it has begun", sim_node_name(sim, node));
    else
        p->final = true, p->ops = ask->ops, p->late = sim_random(sim, STREAM_ENGINE, 4) == 0;
    sim_at(sim, 1 + sim_random(sim, STREAM_ENGINE, 1 + sim->options.engine_delay),
           (struct ev){.type = EV_BOARD_PAUSED,
                       .a = node,
                       .b = p->attempt % 1000,
                       .gen = sim->nodes[node].engine_gen,
                       .arg = ask->group});
}

/* Other nodes have a group with @node, which it may have left: there nothing runs either. */
static void check_others(struct sim *sim, unsigned node)
{
    struct core_group_view view;
    char name[64];

    for (unsigned k = 0; k < sim->options.nodes; k++) {
        if (!sim->nodes[k].alive || !peer_linked(sim->nodes[node].core, k))
            continue;
        for (unsigned i = 0; i < SIM_BOARDS; i++) {
            const struct board *board = &sim->nodes[k].boards[i];
            bool with = false;

            if (!board->group || !board->spans || board->broken || board->held ||
                !check_fact(sim, board->group) ||
                !core_group(sim->nodes[k].core, board->group, &view))
                continue;
            for (unsigned n = 0; n < view.nnodes; n++)
                with |= view.nodes[n] == node;
            if (with && (!pauses(sim, board) || board->pause.asker != node))
                sim_fail(sim, "the engine of node %s is ended, and %s runs at node %s",
                         sim_node_name(sim, node), sim_group_name(sim, board->group, name),
                         sim_node_name(sim, k));
        }
    }
}

/* The engine of @node is ended on purpose: nothing of its groups is anywhere on the wire. */
void pause_ended(struct sim *sim, unsigned node)
{
    struct core_group_view view;
    char name[64];

    sim->oracle.renewed[node] = true;
    sim->nodes[node].engine_renews = true;
    sim->renewed++;
    if (sim->options.kills_renewed && sim_random(sim, STREAM_NODE, 2))
        sim->kills_introduced = true;
    else if (sim->options.kills_renewed)
        sim_kill_after(
            sim, (unsigned)sim_random(sim, STREAM_NODE, sim->options.nodes),
            1 + (unsigned)sim_random(sim, STREAM_NODE, sim_random(sim, STREAM_NODE, 2) ? 8 : 60));
    check_others(sim, node);
    for (unsigned i = 0; i < SIM_BOARDS; i++) {
        const struct board *own = &sim->nodes[node].boards[i];
        uint32_t sent = 0, came = 0;

        if (!own->group || !own->spans || own->broken ||
            !core_group(sim->nodes[node].core, own->group, &view))
            continue;
        for (unsigned k = 0; k < view.nnodes; k++) {
            const struct board *board = edge_board(sim, view.nodes[k], own->group);
            struct place place;

            if (!board || board->broken)
                continue;
            place = hold_place(sim, view.nodes[k], board);
            if (!pauses(sim, board) || !board->pause.final || board->pause.asker != node ||
                board->pause.ops != own->pause.ops || !place.quiet || place.ops != board->round)
                sim_fail(sim, "the engine of node %s is ended while %s runs at node %s",
                         sim_node_name(sim, node), sim_group_name(sim, own->group, name),
                         sim_node_name(sim, view.nodes[k]));
            sent += place.sent;
            came += place.came;
        }
        if (sent != came)
            sim_fail(sim, "the engine of node %s is ended with a message of %s",
                     sim_node_name(sim, node), sim_group_name(sim, own->group, name));
    }
}

uint64_t sim_renewed(const struct sim *sim)
{
    return sim->renewed;
}
