/* core.c - the frame around the decisions: one event in, all consequences, then silence.
 *
 * core_input() dispatches the event to the file that owns the object, runs what is due, and
 * settles: when the set of reachable nodes changed, pending joins are re-homed and committed
 * groups looked at again; then every join that has to be asked (again) is asked. Nothing is
 * left half done when it returns; the queue (core_act.c) holds what the caller has to do.
 *
 * Who wakes us: the edges with events, and CORE_TICK at core_deadline().
 * What if a peer, the engine or a client dies now: an event of its own, see core_peer.c,
 * core_engine.c, core_client.c.
 * What if we are stopped now (SIGSTOP, a swapped-out VM): the clock has run past the deadline
 * we asked for when we come back, and what the others sent meanwhile still waits in sockets. So
 * a late call first gives everybody whose answer we wait for two heartbeats more, forgive_all();
 * who is really gone is found after that. One that is late in each call does so FORGIVE_MOST times:
 * it reads between two of them, and who said nothing by then is gone.
 *
 * Randomness comes from config.seed alone, time from the events: the same events give the same
 * actions. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

enum { FORGIVE_MOST = 8 };

uint64_t core_random(struct core *core)
{
    uint64_t value;

    do
        value = core_mix(core->random++);
    while (!value);
    return value;
}

/* A limit that a table cuts to @limit does not come to mean that one user may have all of it. */
static unsigned kept_share(unsigned limit, unsigned wished, unsigned per_user)
{
    return per_user < wished && per_user >= limit ? MAX(limit / 2, 1u) : per_user;
}

static void copy_config(struct core *core, const struct core_config *config)
{
    struct core_config *own = &core->config;

    own->net = config->net;
    own->gpu_timeout_ms = MAX(config->gpu_timeout_ms, (uint64_t)1);
    own->own_uid = config->own_uid;
    own->payers = config->payers;
    own->engine_settings = config->engine_settings;
    own->gpu_settings = config->gpu_settings;
    own->heartbeat_ms = MAX(config->heartbeat_ms, (uint64_t)1);
    own->node_timeout_ms = MAX(config->node_timeout_ms, own->heartbeat_ms);
    own->restart_timeout_ms = MAX(config->restart_timeout_ms, (uint64_t)1);
    own->join_timeout_ms = config->join_timeout_ms;
    own->engine_timeout_ms = MAX(config->engine_timeout_ms, (uint64_t)1);
    /* Tables were sized by core_new(): a reload may lower limits and raise them again. */
    own->max_clients = MIN(config->max_clients, core->client_slots - CORE_ADMIN_CLIENTS);
    own->max_clients_per_user =
        kept_share(own->max_clients, config->max_clients, config->max_clients_per_user);
    own->max_groups = MIN(config->max_groups, core->max_groups);
    own->max_groups_per_user =
        kept_share(own->max_groups, config->max_groups, config->max_groups_per_user);
}

void core_setup(struct core *core, const struct core_config *config)
{
    struct list *const heads[] = {&core->all_groups,   &core->all_formings,  &core->waiting,
                                  &core->todo,         &core->ration.asking, &core->ration.holding,
                                  &core->all_partings, &core->news,          &core->freed};

    assert(config->incarnation && config->self < config->nnodes);
    assert(core->phase == PHASE_FRESH && config->nnodes <= MSG_MAX_NODES);
    assert(core->client_slots >= CORE_ADMIN_CLIENTS && core->max_groups && core->max_members);
    copy_config(core, config);
    core->config.nodes = NULL;
    core->config.gpu_why = NULL; /* it becomes the status text */
    text_copy(core->cluster, sizeof(core->cluster), config->cluster);
    text_copy(core->version, sizeof(core->version), config->version);
    core->config.cluster = core->cluster;
    core->config.version = core->version;
    core->random = config->seed;
    core->ration.limit = CORE_RATION;
    core->part_batch = CORE_PART_BATCH;
    for (unsigned i = 0; i < ARRAY_LEN(heads); i++)
        list_init(heads[i]);
    for (unsigned i = 0; i < HASH_GROUPS; i++) {
        list_init(&core->by_id[i]);
        list_init(&core->by_name[i]);
        list_init(&core->forming_by_name[i]);
        list_init(&core->strays_by_id[i]);
    }
    for (unsigned i = 0; i < HASH_USERS; i++)
        list_init(&core->user_by_uid[i]);
    list_init(&core->clients[core->client_slots].members);
    for (unsigned i = 0; i < config->nnodes; i++) {
        struct peer *peer = &core->peers[i];

        assert(!i || strcmp(config->nodes[i - 1], config->nodes[i]) < 0); /* core_node_find() */
        text_copy(core->node_names[i], MSG_NAME_MAX, config->nodes[i]);
        peer->id = core->ids[i] = text_hash(0, core->node_names[i]);
        peer->state = i == config->self ? CORE_PEER_SELF : CORE_PEER_UNLINKED;
        peer->retry_ms = peer->doubt_ms = peer->lost_ms = peer->hope_ms = CORE_NEVER;
        peer->tell_away_ms = CORE_NEVER;
    }
    core->peers[config->self].incarnation = config->incarnation;
    core->engine.life.start_ms = config->nnodes > 1 ? 0 : CORE_NEVER;
    text_copy(core->engine.life.text, sizeof(core->engine.life.text),
              config->nnodes > 1 ? "not started yet" : "not needed: one node");
    core->gpu.life.ping_ms = CORE_NEVER;
    text_copy(core->gpu.life.text, sizeof(core->gpu.life.text),
              config->gpu ? TEXT_GPU_UNASKED : config->gpu_why);
    core->heartbeat_ms = config->nnodes > 1 ? 0 : CORE_NEVER;
    core->silent_ms = core->expire_ms = core->promised_ms = core->bond_ms = CORE_NEVER;
    act_reset(core);
}

void core_reconfigure(struct core *core, const struct core_config *config)
{
    copy_config(core, config);
    renew_settings_changed(core);
    /* What was due by the old limits may be due earlier by the new ones. */
    if (core->heartbeat_ms != CORE_NEVER)
        core->heartbeat_ms = MIN(core->heartbeat_ms, core->now + core->config.heartbeat_ms);
    if (core->silent_ms != CORE_NEVER)
        core->silent_ms = core->now;
}

static void shutdown(struct core *core, const char *why)
{
    if (core->stopping)
        return;
    core->stopping = true;
    act_log(core, CORE_LOG_INFO, "asked to stop -> no new groups, groups over several nodes end");
    join_stop(core);
    group_stop(core, why);
    peer_stop(core);
}

static void core_dispatch(struct core *core, const struct core_event *event)
{
    switch (event->type) {
    case CORE_TICK:
        break;
    case CORE_CLIENT_OPEN:
        client_open(core, event);
        break;
    case CORE_CLIENT_MSG:
        client_msg(core, event);
        break;
    case CORE_CLIENT_BACK:
        restore_back(core, event);
        break;
    case CORE_CLIENT_CLOSED:
        client_closed(core, event->client, event->text);
        break;
    case CORE_PEER_UP:
        peer_up(core, event);
        break;
    case CORE_PEER_MSG:
        peer_msg(core, event->node, event->msg);
        break;
    case CORE_PEER_DOWN:
        if (event->refused)
            peer_refused(core, event->node, event->text);
        else
            peer_down(core, event->node, CORE_LOSS_LINK, event->text);
        break;
    case CORE_PEER_VACANT:
        peer_vacant(core, event->node);
        break;
    case CORE_ENGINE_STARTED:
        engine_started(core, event->pid);
        break;
    case CORE_ENGINE_MSG:
        engine_msg(core, event->msg);
        break;
    case CORE_ENGINE_DOWN:
        engine_down(core, event->text);
        break;
    case CORE_GPU_STARTED:
        gpu_started(core, event->pid);
        break;
    case CORE_GPU_MSG:
        gpu_msg(core, event->msg);
        break;
    case CORE_GPU_DOWN:
        gpu_down(core, event->text);
        break;
    case CORE_BOARD_POSITION:
        bond_read(core, event->group, event->quiet, &event->position);
        break;
    case CORE_BOARD_FAILED:
        group_board_failed(core, event->group, event->cause, event->text);
        break;
    case CORE_TAKEN_OVER:
        restore_end(core);
        break;
    case CORE_SHUTDOWN:
        shutdown(core, event->text);
        break;
    }
}

static void settle(struct core *core)
{
    do {
        if (core->peers_changed) {
            core->peers_changed = false;
            join_rehome(core);
            group_open_ready(core);
            bond_look(core);
        }
        join_run(core);
        follow_run(core);
        recover_run(core);
    } while (core->peers_changed || !list_empty(&core->todo));
    assert(list_empty(&core->todo)); /* each has been asked for, or is held */
}

static uint64_t grace_ms(const struct core *core)
{
    return MIN(2 * core->config.heartbeat_ms, core->config.node_timeout_ms);
}

/* We were stopped: nobody's time runs out before what was sent meanwhile can be read. */
static void forgive_all(struct core *core)
{
    uint64_t grace = grace_ms(core);

    assert(grace);
    peer_forgive(core, grace);
    life_forgive(core, &core->engine.life);
    life_forgive(core, &core->gpu.life);
    bond_forgive(core, grace);
    join_forgive(core, grace);
}

/* Who is late again before the others had their time gives it again, but not for ever. */
static void look_late(struct core *core)
{
    if (core->promised_ms == CORE_NEVER)
        return;
    if (core->now <= core->promised_ms + core->config.heartbeat_ms) {
        if (core->now >= core->forgiven_ms + grace_ms(core))
            core->forgiven = 0;
    } else if (core->forgiven < FORGIVE_MOST) {
        core->forgiven++;
        core->forgiven_ms = core->now;
        forgive_all(core);
    }
}

void core_input(struct core *core, const struct core_event *event)
{
    assert((unsigned)event->type <= CORE_SHUTDOWN);
    assert(core->phase != PHASE_RESTORING || event->type == CORE_TAKEN_OVER);
    if (core->queue.head == core->queue.tail) {
        group_reap(core);
        home_reap(core);
        stray_reap(core);
        pool_reap(&core->members);
        act_reset(core);
    }
    core->now = MAX(core->now, event->now_ms);
    assert(core->queue.head <= core->queue.tail);
    look_late(core);
    core_dispatch(core, event);
    core_set_phase(core, PHASE_RUNNING);
    engine_tick(core);
    gpu_tick(core);
    peer_tick(core);
    bond_tick(core);
    pause_tick(core);
    part_tick(core);
    ration_tick(core);
    join_tick(core);
    settle(core);
    assert(core->naway <= core->nclients);
    core->promised_ms = core_deadline(core);
}

uint64_t core_deadline(const struct core *core)
{
    uint64_t processes = MIN(engine_deadline(core), gpu_deadline(core));

    processes = MIN(processes, pause_deadline(core));
    return MIN(MIN(processes, MIN(peer_deadline(core), bond_deadline(core))),
               MIN(join_deadline(core), MIN(ration_deadline(core), part_deadline(core))));
}
