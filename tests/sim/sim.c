/* sim.c - the discrete-event simulator: time, clients and faults.
 *
 * The cores are the real ones. Everything around them is a model: events on a heap, ordered by
 * (virtual ms, order of making); links (sim_net.c), engines (sim_engine.c) and what commd's
 * edges do with actions (sim_edge.c). A core's CORE_TICK comes exactly at its core_deadline().
 * Randomness comes from one seed in separate streams, so that a change in one concern does not
 * shift the others. After each event the invariants of sim_check.c are looked at; a violation
 * prints the trace and aborts, so that the seed is all one needs to see it again. */
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "tests/sim/sim_internal.h"

uint64_t sim_random(struct sim *sim, unsigned stream, uint64_t below)
{
    uint64_t value = core_mix(sim->random[stream]++);

    return below ? value % below : value;
}

const char *sim_node_name(const struct sim *sim, unsigned node)
{
    return sim->names[node];
}

uint64_t sim_now(const struct sim *sim)
{
    return sim->now;
}

struct core *sim_core(struct sim *sim, unsigned node)
{
    return sim->nodes[node].core;
}

bool sim_alive(const struct sim *sim, unsigned node)
{
    return sim->nodes[node].alive;
}

struct sim_oracle *sim_oracle(struct sim *sim)
{
    return &sim->oracle;
}

uint64_t sim_hash(const struct sim *sim)
{
    return sim->hash;
}

uint64_t sim_actions(const struct sim *sim)
{
    return sim->actions;
}

uint64_t sim_answers(const struct sim *sim, bool ok)
{
    return ok ? sim->ok : sim->failed;
}

uint64_t sim_recovered(const struct sim *sim)
{
    return sim->recovered;
}

/* ---- trace ----------------------------------------------------------------------------------- */

static void add_line(struct sim *sim, const char *line, size_t len)
{
    if (sim->trace_len + len + 1 > sim->trace_cap) {
        sim->trace_cap = 2 * (sim->trace_cap + len + 1);
        sim->trace = realloc(sim->trace, sim->trace_cap);
        if (!sim->trace)
            abort();
    }
    memcpy(sim->trace + sim->trace_len, line, len + 1);
    sim->trace_len += len;
}

void sim_note(struct sim *sim, const char *format, ...)
{
    char line[1024];
    va_list args;
    int n;

    if (!sim->options.trace)
        return;
    n = snprintf(line, sizeof(line), "[%4llu] ", (unsigned long long)(sim->now - sim->trace_from));
    va_start(args, format);
    n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    va_end(args);
    n = MIN(n, (int)sizeof(line) - 2);
    line[n] = '\n';
    line[n + 1] = 0;
    add_line(sim, line, (size_t)n + 1);
}

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list args;

    if (sim->trace)
        fputs(sim->trace, stderr);
    fprintf(stderr, "VIOLATION at %llu ms, seed %llu: ", (unsigned long long)sim->now,
            (unsigned long long)sim->options.seed);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("\n", stderr);
    abort();
}

const char *sim_trace(struct sim *sim)
{
    return sim->trace ? sim->trace : "";
}

void sim_trace_clear(struct sim *sim)
{
    sim->trace_len = 0;
    sim->trace_from = sim->now;
    if (sim->trace)
        sim->trace[0] = 0;
}

const char *sim_group_name(struct sim *sim, uint64_t id, char buf[64])
{
    for (unsigned i = 0; i < sim->options.nodes; i++)
        if (sim->nodes[i].core && home_group_number(sim->nodes[i].core->config.incarnation, id)) {
            snprintf(buf, 64, "#%s%u", sim_node_name(sim, i), (unsigned)id);
            return buf;
        }
    snprintf(buf, 64, "#?%u", (unsigned)id);
    return buf;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool before(const struct ev *a, const struct ev *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

void sim_at(struct sim *sim, uint64_t delay, struct ev ev)
{
    size_t i = sim->nheap++;

    if (sim->nheap > sim->heap_cap) {
        sim->heap_cap = sim->heap_cap ? 2 * sim->heap_cap : 256;
        sim->heap = realloc(sim->heap, sim->heap_cap * sizeof(*sim->heap));
        if (!sim->heap)
            abort();
    }
    ev.at = sim->now + delay;
    ev.seq = sim->seq++;
    for (; i && before(&ev, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = ev;
}

static struct ev pop(struct sim *sim)
{
    struct ev top = sim->heap[0], last = sim->heap[--sim->nheap];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < sim->nheap; i = child) {
        if (child + 1 < sim->nheap && before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!before(&sim->heap[child], &last))
            break;
        sim->heap[i] = sim->heap[child];
    }
    sim->heap[i] = last;
    return top;
}

static void crash(struct sim *sim, unsigned node, bool flush);

void sim_input(struct sim *sim, unsigned node, struct core_event event)
{
    struct core *core = sim->nodes[node].core;
    struct core_action action;

    if (!sim->nodes[node].alive || sim->nodes[node].stopped)
        sim_fail(sim, "an event for node %s, which is down", sim_node_name(sim, node));
    event.now_ms = sim->now;
    if (state_cut(sim, node)) {
        state_kill(sim, node, event.type != CORE_CLIENT_CLOSED); /* which is written down already */
        return;
    }
    core_input(core, &event);
    while (!sim->nodes[node].dying && core_next(core, &action))
        edge_action(sim, node, &action);
    if (sim->nodes[node].dying) {
        state_kill(sim, node, false);
        return;
    }
    state_count(sim, node);
    check_step(sim, node);
    if (sim->crash_now) {
        sim->crash_now = false;
        crash(sim, node, true);
    }
}

/* The node whose core wants to be woken first. */
static uint64_t next_tick(const struct sim *sim, unsigned *ret_node)
{
    uint64_t first = UINT64_MAX;

    for (unsigned i = 0; i < sim->options.nodes; i++) {
        uint64_t at;

        if (!sim->nodes[i].alive || sim->nodes[i].stopped)
            continue;
        at = core_deadline(sim->nodes[i].core);
        if (at < first) {
            first = at;
            *ret_node = i;
        }
    }
    return first;
}

/* Until when it has to wait, because the process that it is for is stopped; 0: not so. What is
 * delivered lies in a socket meanwhile: sim_net.c. */
static uint64_t stopped_until(const struct sim *sim, const struct ev *ev)
{
    if (ev->type == EV_TICK || ev->type == EV_DELIVER)
        return 0;
    if (ev->type == EV_LATE)
        return sim->nodes[ev->b].stopped; /* again */
    if (ev->type == EV_CONNECT)
        return MAX(sim->nodes[ev->a].stopped, sim->nodes[ev->b].stopped);
    return sim->nodes[ev->type >= EV_CLIENT_BACK ? sim->handles[ev->a].node : ev->a].stopped;
}

bool sim_step(struct sim *sim, uint64_t until)
{
    unsigned node = 0;
    uint64_t tick = next_tick(sim, &node);
    struct ev ev;

    if (sim->nheap && sim->heap[0].at <= tick) {
        if (sim->heap[0].at > until)
            return false;
        ev = pop(sim);
        sim->now = ev.at;
        if (stopped_until(sim, &ev))
            sim_at(sim, stopped_until(sim, &ev) + 1 - sim->now, ev);
        else if (ev.type >= EV_LEAVE_OLD)
            recover_event(sim, &ev);
        else if (ev.type >= EV_BOARD_HELD && ev.type <= EV_BOARD_MISSING)
            hold_event(sim, &ev);
        else if (ev.type == EV_BOARD_PAUSED)
            pause_event(sim, &ev);
        else if (ev.type >= EV_TAKE_OVER)
            state_event(sim, &ev);
        else if (ev.type >= EV_ENGINE_STARTED)
            engine_event(sim, &ev);
        else
            net_event(sim, &ev);
    } else {
        if (tick > until)
            return false;
        sim->now = MAX(sim->now, tick);
        sim_input(sim, node, (struct core_event){.type = CORE_TICK});
    }
    if (sim->seq % 64 == 0)
        check_overdue(sim);
    return true;
}

void sim_run(struct sim *sim, uint64_t ms)
{
    uint64_t until = sim->now + ms;

    while (sim_step(sim, until))
        ;
    sim->now = until;
    check_overdue(sim);
}

static bool settled(const struct sim *sim)
{
    for (unsigned a = 0; a < sim->options.nodes; a++)
        for (unsigned b = 0; b < sim->options.nodes; b++)
            if (sim->nodes[a].alive && sim->nodes[b].alive && !peer_usable(sim->nodes[a].core, b))
                return false;
    return true;
}

void sim_settle(struct sim *sim)
{
    uint64_t until = sim->now + 60000;

    while (!settled(sim))
        if (!sim_step(sim, until))
            sim_fail(sim, "the nodes did not become ready for each other");
}

/* ---- nodes ----------------------------------------------------------------------------------- */

void sim_open(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct core_config config = {
        .seed = sim_random(sim, STREAM_NODE, 0),
        .incarnation = sim_random(sim, STREAM_NODE, 0) | 1,
        .cluster = "test",
        .version = "0",
        .nodes = sim->names,
        .nnodes = sim->options.nodes,
        .self = node,
        .heartbeat_ms = 100,
        .node_timeout_ms = 600,
        .restart_timeout_ms = 4000,
        .join_timeout_ms = sim->options.join_timeout_ms ? sim->options.join_timeout_ms : 60000,
        .engine_timeout_ms = 500,
        .engine_settings = (n->settings + 1) << 16,
        .gpu = node != 1, /* see check_opened() */
        .max_clients = SIM_CLIENTS,
        .max_clients_per_user = SIM_CLIENTS,
        .max_groups = SIM_BOARDS - 1,
        .max_groups_per_user = SIM_BOARDS - 1,
        .max_members = 1024,
    };

    core_free(n->core);
    n->core = core_new(&config);
    if (!n->core)
        abort();
    if (sim->options.part)
        n->core->part_batch = sim->options.part;
    if (sim->options.ration)
        n->core->ration.limit = sim->options.ration;
}

void sim_start(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];

    if (n->alive || n->gap)
        return;
    sim_open(sim, node);
    state_start(sim, node);
    n->alive = true;
    n->life++;
    sim_note(sim, "%s starts", sim_node_name(sim, node));
    sim_input(sim, node, (struct core_event){.type = CORE_TICK});
    if (n->alive)
        net_node_started(sim, node);
}

static void crash(struct sim *sim, unsigned node, bool flush)
{
    struct node *n = &sim->nodes[node];

    if (!n->alive)
        return;
    sim_note(sim, "%s crashes", sim_node_name(sim, node));
    sim->oracle.node_fault[node] = sim->oracle.engine_fault[node] = true;
    n->alive = false;
    engine_kill_process(sim, node, false);
    n->engine_gen++;
    n->engine_kept = 0;
    edge_forget(sim, node);
    state_stop(sim, node);
    net_node_gone(sim, node, flush);
}

void sim_crash(struct sim *sim, unsigned node)
{
    crash(sim, node, sim_random(sim, STREAM_NODE, 2));
}

void sim_crash_after(struct sim *sim, unsigned from, enum msg_type type, unsigned n)
{
    sim->crash_from = from;
    sim->crash_type = type;
    sim->crash_after = n;
}

/* Has another engine not met that of @node, or is, if @linked, @node not READY for another one? */
static bool is_apart(const struct sim *sim, unsigned node, bool linked)
{
    for (unsigned i = 0; i < sim->options.nodes; i++) {
        const struct node *n = &sim->nodes[i];

        if (i != node && n->alive &&
            (!n->engine_met[node] || (linked && !peer_usable(n->core, node))))
            return true;
    }
    return false;
}

void sim_stop(struct sim *sim, unsigned node, uint64_t ms)
{
    struct node *n = &sim->nodes[node];
    const struct core_config *config = n->alive ? &n->core->config : NULL;
    bool noticed = config && ms > config->node_timeout_ms / 2;

    if (!n->alive)
        return;
    sim_note(sim, "commd of %s is stopped for %llu ms", sim_node_name(sim, node),
             (unsigned long long)ms);
    /* Nobody loses anything if all can tell that its engine goes on, and it is back in time. */
    if (noticed && (ms + READY_MS > config->node_timeout_ms + config->restart_timeout_ms ||
                    is_apart(sim, node, true)))
        sim->oracle.node_fault[node] = true;
    for (unsigned i = 0; i < sim->nhandles; i++)
        for (unsigned j = 0; j < sim->handles[i].njoins; j++)
            sim->handles[i].joins[j].at += sim->handles[i].node == node ? ms : 0;
    n->stopped = sim->now + ms;
    sim_run(sim, ms);
    n->stopped = 0;
    if (noticed && is_apart(sim, node, false)) /* they had not met yet when it was stopped */
        sim->oracle.node_fault[node] = true;
    for (unsigned i = 0; i < SIM_BOARDS; i++) /* its core has not had that time */
        n->boards[i].held_at = MIN(n->boards[i].held_at + ms, sim->now);
    sim_note(sim, "commd of %s goes on", sim_node_name(sim, node));
}

void sim_shutdown(struct sim *sim, unsigned node)
{
    if (!sim->nodes[node].alive)
        return;
    sim_note(sim, "%s is asked to stop", sim_node_name(sim, node));
    sim->oracle.node_fault[node] = true;
    sim_input(sim, node, (struct core_event){.type = CORE_SHUTDOWN});
}

void sim_peer_says(struct sim *sim, unsigned from, unsigned to, const struct msg *msg)
{
    if (sim->nodes[to].alive)
        sim_input(sim, to, (struct core_event){.type = CORE_PEER_MSG, .node = from, .msg = msg});
}

struct sim *sim_new(const struct sim_options *options)
{
    struct sim *sim = calloc(1, sizeof(*sim));

    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* tables of cores come from the kernel, as zeros */
    if (!sim)
        abort();
    sim->names = calloc(SIM_NODES, sizeof(*sim->names));
    if (!sim->names)
        abort();
    sim->options = *options;
    sim->now = 1000;
    sim->trace_from = sim->now;
    for (unsigned i = 0; i < ARRAY_LEN(sim->random); i++)
        sim->random[i] = core_mix(options->seed * 3 + i);
    for (unsigned i = 0; i < options->nodes; i++) {
        sim->names[i][0] = (char)('a' + i);
        for (unsigned slot = 0; slot < ARRAY_LEN(sim->nodes[i].slots); slot++)
            sim->nodes[i].slots[slot] = -1;
    }
    for (unsigned i = 0; i < options->nodes; i++)
        sim_start(sim, i);
    return sim;
}

struct sim *sim_free(struct sim *sim)
{
    if (!sim)
        return NULL;
    net_free(sim);
    for (unsigned i = 0; i < sim->options.nodes; i++) {
        state_stop(sim, i);
        core_free(sim->nodes[i].core);
    }
    free(sim->heap);
    free(sim->facts);
    free(sim->trace);
    free(sim->names);
    free(sim);
    return NULL;
}

const char *sim_name_at(struct sim *sim, unsigned node)
{
    static char name[16];
    bool up[SIM_NODES] = {true, true, true, true, true};
    uint64_t ids[SIM_NODES];

    for (unsigned i = 0; i < sim->options.nodes; i++)
        ids[i] = text_hash(0, sim->names[i]);
    for (unsigned i = 0;; i++) {
        snprintf(name, sizeof(name), "g%u", i);
        if (rendezvous(text_hash(1000, name), ids, up, sim->options.nodes) == (int)node)
            return name;
    }
}

/* ---- clients --------------------------------------------------------------------------------- */

unsigned sim_client(struct sim *sim, unsigned node)
{
    struct node *n = &sim->nodes[node];
    struct handle *handle = &sim->handles[sim->nhandles];
    unsigned slot = 0;

    while (slot < SIM_CLIENTS && n->slots[slot] >= 0)
        slot++;
    if (!n->alive || slot == SIM_CLIENTS || sim->nhandles == SIM_HANDLES)
        sim_fail(sim, "no room for another client");
    *handle = (struct handle){.node = node,
                              .slot = slot,
                              .life = n->life,
                              .alive = true,
                              .pid = 100 * (node + 1) + sim->nhandles % 100 +
                                     10000 * (sim->nhandles / 100)};
    n->slots[slot] = (int)sim->nhandles;
    state_hello(sim, handle);
    return sim->nhandles++;
}

/* Of a group that commd does not know libcommd says nothing. */
static bool is_unsaid(const struct handle *handle, const struct msg *msg)
{
    uint64_t group = msg->type == MSG_CLIENT_LEAVE        ? msg->client_leave.group
                     : msg->type == MSG_CLIENT_ABORT      ? msg->client_abort.group
                     : msg->type == MSG_CLIENT_ASK_ABSENT ? msg->client_ask_absent.group
                                                          : 0;

    for (unsigned i = 0; group && i < handle->njoins; i++)
        if (handle->joins[i].group == group && handle->joins[i].unknown)
            return true;
    return false;
}

void sim_say(struct sim *sim, unsigned client, const struct msg *msg)
{
    const struct handle *handle = &sim->handles[client];

    if (handle->alive && !handle->away && !is_unsaid(handle, msg))
        sim_input(sim, handle->node,
                  (struct core_event){.type = CORE_CLIENT_MSG, .client = handle->slot, .msg = msg});
}

void sim_admin(struct sim *sim, unsigned node, const char *verb, const char *group, uint32_t number)
{
    struct core_event event = {.type = CORE_CLIENT_OPEN, .client = SIM_CLIENTS};
    struct msg hello = {.type = MSG_CLIENT_HELLO}, ask = {.type = MSG_ADMIN};

    if (!sim->nodes[node].alive)
        return; /* commctl finds none */
    sim_note(sim, "%s: commctl %s %s", sim_node_name(sim, node), verb, group);
    sim_input(sim, node, event);
    if (!sim->nodes[node].alive)
        return;
    hello.client_hello = (struct msg_client_hello){.version = MSG_VERSION, .admin = 1};
    text_copy(ask.admin.verb, sizeof(ask.admin.verb), verb);
    text_copy(ask.admin.group, sizeof(ask.admin.group), group);
    ask.admin.pid = ask.admin.rank = number;
    event.type = CORE_CLIENT_MSG;
    event.msg = &hello;
    sim_input(sim, node, event);
    if (!sim->nodes[node].alive)
        return;
    event.msg = &ask;
    sim_input(sim, node, event);
    event.type = CORE_CLIENT_CLOSED;
    if (sim->nodes[node].alive) /* what it sent may have been its last: sim_crash_after() */
        sim_input(sim, node, event);
}

uint32_t sim_client_pid(const struct sim *sim, unsigned client)
{
    return sim->handles[client].pid;
}

unsigned sim_client_node(const struct sim *sim, unsigned client)
{
    return sim->handles[client].node;
}

void sim_send_join(struct sim *sim, unsigned client, const struct join *join)
{
    struct msg msg = {.type = MSG_CLIENT_JOIN};
    uint32_t gone[SIM_RANKS];

    msg.client_join.req = join->req;
    msg.client_join.rank = join->rank;
    msg.client_join.size = join->size;
    msg.client_join.timeout_ms = join->limit;
    msg.client_join.recovery = (uint32_t)join->how.policy;
    msg.client_join.follows = join->follows;
    msg.client_join.least = join->how.least;
    msg.client_join.wait_ms = join->how.wait_ms;
    text_copy(msg.client_join.name, sizeof(msg.client_join.name), join->name);
    if (join->follows)
        recover_stray(sim, &sim->handles[client], join->follows, &msg.client_join, gone);
    sim_say(sim, client, &msg);
}

void sim_join(struct sim *sim, unsigned client, const char *name, unsigned rank, unsigned size,
              uint64_t limit_ms)
{
    struct handle *handle = &sim->handles[client];
    struct join *join = &handle->joins[handle->njoins];

    if (!handle->alive || handle->njoins == ARRAY_LEN(handle->joins))
        return;
    handle->njoins++;
    *join = (struct join){
        .req = handle->njoins, .rank = rank, .size = size, .at = sim->now, .limit = limit_ms};
    text_copy(join->name, sizeof(join->name), name);
    sim_note(sim, "%s: pid %u joins %s as rank %u of %u", sim_node_name(sim, handle->node),
             handle->pid, name, rank, size);
    sim_send_join(sim, client, join);
}

static struct join *in_group(struct sim *sim, unsigned client, const char *name)
{
    struct handle *handle = &sim->handles[client];

    for (unsigned i = handle->njoins; handle->alive && i-- > 0;)
        if (handle->joins[i].group && !handle->joins[i].left &&
            !strcmp(handle->joins[i].name, name))
            return &handle->joins[i];
    return NULL;
}

void sim_leave(struct sim *sim, unsigned client, const char *name)
{
    struct join *join = in_group(sim, client, name);
    struct msg msg = {.type = MSG_CLIENT_LEAVE};

    if (!join)
        return;
    sim_note(sim, "%s: pid %u leaves %s", sim_node_name(sim, sim->handles[client].node),
             sim->handles[client].pid, name);
    join->left = true;
    msg.client_leave.group = join->group;
    msg.client_leave.ops = join->ops;
    sim_say(sim, client, &msg);
}

void sim_withdraw(struct sim *sim, unsigned client)
{
    struct handle *handle = &sim->handles[client];
    struct join *join = handle->njoins ? &handle->joins[handle->njoins - 1] : NULL;
    struct msg msg = {.type = MSG_CLIENT_WITHDRAW};

    if (!handle->alive || !join || join->answers)
        return;
    sim_note(sim, "%s: pid %u withdraws %s", sim_node_name(sim, handle->node), handle->pid,
             join->name);
    msg.client_withdraw.req = join->req;
    sim_say(sim, client, &msg);
}

void sim_abort(struct sim *sim, unsigned client, const char *name, const char *text)
{
    struct join *join = in_group(sim, client, name);
    struct msg msg = {.type = MSG_CLIENT_ABORT};

    if (!join)
        return;
    sim_note(sim, "%s: pid %u aborts %s", sim_node_name(sim, sim->handles[client].node),
             sim->handles[client].pid, name);
    msg.client_abort.group = join->group;
    text_copy(msg.client_abort.text, sizeof(msg.client_abort.text), text);
    sim_say(sim, client, &msg);
}

void sim_ask_absent(struct sim *sim, unsigned client, const char *name, uint64_t seq)
{
    struct join *join = in_group(sim, client, name);
    struct msg msg = {.type = MSG_CLIENT_ASK_ABSENT};

    if (!join)
        return;
    sim_note(sim, "%s: pid %u asks who has not begun %s %llu",
             sim_node_name(sim, sim->handles[client].node), sim->handles[client].pid, name,
             (unsigned long long)seq);
    msg.client_ask_absent.group = join->group;
    msg.client_ask_absent.req = join->rank;
    msg.client_ask_absent.seq = seq;
    sim_say(sim, client, &msg);
}

void sim_ops(struct sim *sim, unsigned client, const char *name, unsigned ops)
{
    struct join *join = in_group(sim, client, name);

    if (join)
        join->ops += ops;
}

void sim_die(struct sim *sim, unsigned client, const char *why)
{
    struct handle *handle = &sim->handles[client];
    struct node *n = &sim->nodes[handle->node];

    if (!handle->alive)
        return;
    sim_note(sim, "%s: pid %u dies", sim_node_name(sim, handle->node), handle->pid);
    handle->alive = false;
    for (unsigned slot = 0; slot < SIM_CLIENTS && n->alive; slot++) {
        if (n->slots[slot] != (int)client)
            continue;
        n->slots[slot] = -1;
        state_client_gone(n->state, slot);
        sim_input(sim, handle->node,
                  (struct core_event){.type = CORE_CLIENT_CLOSED, .client = slot, .text = why});
    }
    recover_died(sim, handle);
}

bool sim_client_alive(const struct sim *sim, unsigned client)
{
    return sim->handles[client].alive;
}

unsigned sim_client_open(const struct sim *sim, unsigned client)
{
    const struct handle *handle = &sim->handles[client];
    unsigned n = 0;

    for (unsigned i = 0; i < handle->njoins; i++)
        n += handle->joins[i].group && !handle->joins[i].left;
    return n;
}

unsigned sim_client_pending(const struct sim *sim, unsigned client)
{
    const struct handle *handle = &sim->handles[client];
    unsigned n = 0;

    for (unsigned i = 0; i < handle->njoins; i++)
        n += !handle->joins[i].answers;
    return n;
}

const char *sim_client_group(const struct sim *sim, unsigned client, unsigned i)
{
    const struct handle *handle = &sim->handles[client];

    for (unsigned j = 0; j < handle->njoins; j++)
        if (handle->joins[j].group && !handle->joins[j].left && i-- == 0)
            return handle->joins[j].name;
    return NULL;
}
