/* sim_hold.c - what engines and boards say of a group when an engine is lost, in the simulator, and
 * when the group may go on: on all its nodes from the same place, with nothing on the wire.
 *
 * Each time that a group goes on, a round of it ends. Where the group stands in a round is drawn
 * when the first node asks: mostly all its nodes are at the same place; else one has something on
 * the wire, or is an operation ahead, or a message is under way. A node that goes on has all others
 * at the same place in the same round, or just behind it: it has looked at them, and not only
 * trusted what they said. */
#include "tests/sim/sim_internal.h"

/* Of what a node says about its part in this round. */
struct place hold_place(const struct sim *sim, unsigned node, const struct board *board)
{
    uint64_t draw = core_mix(board->group + 977 * board->round);
    struct place place = {.quiet = true, .ops = board->round, .sent = 3, .came = 3};
    bool odd = draw / 16 % sim->options.nodes == node;

    if (draw % 8 == 0 && odd)
        place.quiet = false;
    else if (draw % 8 == 1 && odd)
        place.ops++;
    else if (draw % 8 == 2 && odd)
        place.sent++;
    return place;
}

static bool engine_has(const struct sim *sim, unsigned node, const struct board *board)
{
    return sim->nodes[node].engine_alive && board->engine_gen == sim->nodes[node].engine_gen;
}

static void missing(struct sim *sim, unsigned node, struct board *board)
{
    board->held_at = sim->now;
    sim_at(sim, 1 + sim_random(sim, STREAM_ENGINE, 1 + sim->options.engine_delay),
           (struct ev){.type = EV_BOARD_MISSING,
                       .a = node,
                       .gen = sim->nodes[node].engine_gen,
                       .arg = board->group});
}

/* The engine is asked to hold, or (@read) the board is looked at because it has ended. */
void hold_asked(struct sim *sim, unsigned node, uint64_t group, bool read)
{
    struct board *board = edge_board(sim, node, group);

    if (board && !read && !engine_has(sim, node, board) && sim->taken_over) {
        missing(sim, node, board);
        return;
    }
    if (!board || engine_has(sim, node, board) == read)
        sim_fail(sim, "node %s asks %s about a group that it does not have",
                 sim_node_name(sim, node), read ? "the board" : "its engine");
    board->held = true;
    board->held_at = sim->now;
    sim_at(sim, read ? 0 : 1 + sim_random(sim, STREAM_ENGINE, 1 + sim->options.engine_delay),
           (struct ev){.type = read ? EV_BOARD_READ : EV_BOARD_HELD,
                       .a = node,
                       .gen = sim->nodes[node].engine_gen,
                       .arg = group});
}

static void say_place(struct sim *sim, unsigned node, const struct board *board, bool past)
{
    struct board then = {.group = board->group, .round = board->round - past};
    struct place place = hold_place(sim, node, &then);
    struct msg msg = {.type = MSG_BOARD_HELD,
                      .board_held = {.group = board->group,
                                     .went_on = past,
                                     .quiet = place.quiet,
                                     .ops = place.ops,
                                     .sent = place.sent,
                                     .came = place.came}};

    sim_engine_says(sim, node, &msg);
}

void hold_event(struct sim *sim, const struct ev *ev)
{
    struct node *n = &sim->nodes[ev->a];
    const struct board *board = edge_board(sim, ev->a, ev->arg);
    struct msg msg = {.type = MSG_BOARD_HELD};
    struct place place;

    if (!n->alive || !board)
        return;
    if (ev->type == EV_BOARD_READ) {
        place = hold_place(sim, ev->a, board);
        sim_input(sim, ev->a,
                  (struct core_event){.type = CORE_BOARD_POSITION,
                                      .group = ev->arg,
                                      .quiet = place.quiet,
                                      .position = {place.ops, place.sent, place.came}});
        return;
    }
    if (!n->engine_alive || ev->gen != n->engine_gen)
        return;
    if (ev->type == EV_BOARD_MISSING) {
        msg.board_held = (struct msg_board_held){.group = ev->arg, .missing = 1};
        if (!engine_has(sim, ev->a, board))
            sim_engine_says(sim, ev->a, &msg);
        return;
    }
    say_place(sim, ev->a, board, false);
}

/* All nodes of the group are where @node is, or have gone on from there. */
static void check_place(struct sim *sim, unsigned node, const struct core_group_view *view,
                        const struct board *board)
{
    uint32_t sent = 0, came = 0;
    struct place place;

    for (unsigned i = 0; i < view->nnodes; i++) {
        const struct node *n = &sim->nodes[view->nodes[i]];
        const struct board *other = edge_board(sim, view->nodes[i], view->id);

        if (i != view->me && !sim->nodes[node].engine_ok[view->nodes[i]])
            sim_fail(sim, "node %s goes on over node %s, which its engine is not connected to",
                     sim_node_name(sim, node), sim_node_name(sim, view->nodes[i]));
        if (!other) /* its last rank has ended since it said so */
            return;
        if (!other->broken && n->alive &&
            (other->round < board->round || (other->round == board->round && !other->held)))
            sim_fail(sim, "node %s goes on with a group that runs at node %s",
                     sim_node_name(sim, node), sim_node_name(sim, view->nodes[i]));
        place = hold_place(sim, view->nodes[i], board); /* in that round */
        if (!place.quiet || place.ops != hold_place(sim, node, board).ops)
            sim_fail(sim, "node %s goes on, and node %s is elsewhere", sim_node_name(sim, node),
                     sim_node_name(sim, view->nodes[i]));
        sent += place.sent;
        came += place.came;
    }
    if (sent != came)
        sim_fail(sim, "node %s goes on, and a message is lost", sim_node_name(sim, node));
}

/* BOARD_GO, or (@bind) the board is given to an engine that has not had it. That one may have died
 * just now: its commd is told a moment later. */
void hold_ends(struct sim *sim, unsigned node, uint64_t group, bool bind)
{
    const struct core *core = sim->nodes[node].core;
    struct board *board = edge_board(sim, node, group);
    struct core_group_view view;
    char name[64];

    if (!board || !board->held || board->broken || engine_has(sim, node, board) == bind ||
        core->engine.life.state != CORE_ENGINE_UP || !core_group(core, group, &view))
        sim_fail(sim, "node %s goes on with a group that cannot", sim_node_name(sim, node));
    check_place(sim, node, &view, board);
    sim_note(sim, "%s: %s goes on over the next engine", sim_node_name(sim, node),
             sim_group_name(sim, group, name));
    sim->went_on++;
    board->engine_gen = sim->nodes[node].engine_gen;
    board->held = false;
    board->pause.on = false;
    board->round++;
}

void hold_resumed(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    uint64_t life = sim->taken_over;

    for (unsigned i = 0; i < SIM_BOARDS && n->alive && life == sim->taken_over; i++) {
        struct board *board = &n->boards[i];

        if (!board->group || !board->spans || board->broken || !engine_has(sim, node, board))
            continue;
        board->held_at = sim->now;
        board->held &= hold_place(sim, node, board).quiet; /* else it never was */
        if (board->held || board->round)
            say_place(sim, node, board, !board->held);
    }
}

/* It has never had those of an engine before it. */
void hold_given(struct sim *sim, unsigned node)
{
    struct core_group_view view;

    for (unsigned i = 0; i < SIM_BOARDS; i++) {
        struct board *board = &sim->nodes[node].boards[i];

        if (board->group && board->spans && !engine_has(sim, node, board) &&
            core_group(sim->nodes[node].core, board->group, &view) && view.state == CORE_GROUP_OPEN)
            missing(sim, node, board);
    }
}

/* Nobody waits for an engine longer than promised; a commd that has just taken over has yet to
 * hear. */
void hold_check(struct sim *sim, unsigned node)
{
    const struct node *n = &sim->nodes[node];
    uint64_t limit = n->core->config.restart_timeout_ms + n->core->config.engine_timeout_ms;

    if (!n->alive || n->stopped || n->core->engine.resuming)
        return;
    for (unsigned i = 0; i < SIM_BOARDS; i++)
        if (n->boards[i].group && n->boards[i].held && !n->boards[i].broken &&
            sim->now > n->boards[i].held_at + limit)
            sim_fail(sim, "a group at node %s waits for an engine since %llu",
                     sim_node_name(sim, node), (unsigned long long)n->boards[i].held_at);
}

uint64_t sim_kept_on(const struct sim *sim)
{
    return sim->went_on;
}
