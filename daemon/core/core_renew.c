/* core_renew.c - a process of this node that is of another version than commd, or has settings that
 * a reload has changed, makes room for the next one.
 *
 * commd-engine and commd-gpu go on when commd is upgraded: what they carry is only theirs. Each
 * says in its hello what it is. Once a second we look whether it can go. commd-gpu can when it has
 * no session. commd-engine can when it serves no group over several nodes, no other node is being
 * restarted, and none has such a group with us: there a rank may still wait for the last that our
 * engine sends. Each node says with its heartbeat that it is `free` of such groups. A heartbeat
 * that came before the last group with that node opened here says nothing: group_try_open() forgets
 * it. Else its groups are asked to come to rest for a moment (core_pause.c), and go on over the
 * next engine (core_bond.c). But not for settings in which the engines of all nodes have to agree:
 * the others would refuse the next one.
 *
 * Then the process is OFF at once, so that nothing is given to it any more, and killed. Other nodes
 * see an engine that ended with nothing on the wire. A group that they commit meanwhile waits until
 * both engines are there: it is not lost with an engine that had not agreed to it
 * (lose_node()).
 *
 * Who wakes me: engine_tick() and gpu_tick(), with their pings; the end of the old process, for the
 * start of the new one.
 * What if the peer (the process) dies now: that is what we wait for.
 * What if I am stopped now: nothing is lost, only later.
 * What if commd is replaced now: before the kill, the next commd decides anew; after it, it finds
 * no process and starts one. */
#include "daemon/core/core_internal.h"
#include "shm/proto/cause_text.h"

static bool differs(const struct core *core, const struct life *life)
{
    uint64_t wanted =
        life == &core->gpu.life ? core->config.gpu_settings : core->config.engine_settings;

    /* one that does not say what it is has not outlived a commd */
    return (life->build[0] && strcmp(life->build, core->version)) ||
           (life->settings && wanted && life->settings != wanted);
}

/* Do engines of other nodes accept the next one as they accept this one? */
static bool next_is_alike(const struct core *core)
{
    uint64_t settings = core->engine.life.settings, wanted = core->config.engine_settings;

    return !settings || !wanted || !((settings ^ wanted) & CORE_SETTINGS_SHARED);
}

void renew_hello(struct core *core, struct life *life, const char *build, uint64_t settings)
{
    assert(life->state == CORE_ENGINE_UP && !life->renews);
    text_copy(life->build, sizeof(life->build), build);
    life->settings = settings;
    if (!differs(core, life))
        life->renewed = false;
    else if (life->renewed) /* who starts it has no other */
        act_log(core, CORE_LOG_WARN,
                "%s that was started is of version %s, commd is %s -> it stays: restart what "
                "starts it, or correct its path",
                life == &core->gpu.life ? "the commd-gpu" : "the engine", life->build,
                core->version);
}

/* No rank here or on another node waits for anything of our engine's. */
static bool engine_is_free(const struct core *core)
{
    const struct group *group;

    list_each(group, &core->all_groups, all)
        if (group->nnodes > 1 && group->state != GROUP_BROKEN)
            return false;
    for (unsigned i = 0; i < core->config.nnodes; i++)
        if (core->peers[i].state == CORE_PEER_AWAY ||
            (peer_linked(core, i) && !core->peers[i].free))
            return false;
    return true;
}

bool renew_waits(const struct core *core, const struct life *life)
{
    return life->state == CORE_ENGINE_UP && !life->killed && !life->renewed && !core->stopping &&
           differs(core, life);
}

/* It is OFF, and renew_ended() says when the next one may start. */
static void retire(struct core *core, struct life *life, enum core_action_type kill,
                   const char *free)
{
    act_note(core, life == &core->engine.life ? CORE_NOTE_ENGINE_REPLACED : CORE_NOTE_NONE,
             CORE_BY_NOBODY, 0, CORE_LOG_INFO, "%s pid %u of version %s has %s -> the next one %s",
             life == &core->gpu.life ? "commd-gpu" : "engine", life->pid, life->build, free,
             strcmp(life->build, core->version) ? "is of commd's version" : "has the new settings");
    act_push(core, (struct core_action){.type = kill});
    life_set_state(core, life, CORE_ENGINE_OFF);
    life->pid = 0;
    life->start_ms = CORE_NEVER;
    life->renews = life->renewed = true;
    text_copy(life->text, sizeof(life->text), "it is replaced by the next one");
}

static void retire_engine(struct core *core, const char *free)
{
    retire(core, &core->engine.life, CORE_DO_ENGINE_KILL, free);
    core->engine.incarnation = 0;
    core->engine.addr_len = 0;
    peer_engine_down(core);
}

void renew_engine(struct core *core)
{
    if (core->engine.resuming || !renew_waits(core, &core->engine.life))
        return;
    if (engine_is_free(core))
        retire_engine(core, "nothing to do");
    else if (next_is_alike(core))
        pause_begin(core);
}

void renew_rests(struct core *core)
{
    char text[MSG_TEXT_MAX];

    assert(renew_waits(core, &core->engine.life));
    retire_engine(core, "groups that wait for the next one");
    text_format(text, sizeof(text), TEXT_ENGINE_LOST ": %s", core_self_name(core),
                core->engine.life.text);
    group_engine_lost(core, core->config.self, text);
}

bool renew_gpu(struct core *core)
{
    if (!renew_waits(core, &core->gpu.life) || core->gpu.sessions)
        return false;
    assert(!core->gpu.waiting);
    retire(core, &core->gpu.life, CORE_DO_GPU_KILL, "nothing to do");
    return true;
}

bool renew_ended(struct core *core, struct life *life)
{
    if (life->state != CORE_ENGINE_OFF || !life->renews)
        return false;
    life->renews = false;
    life->start_ms = core->now;
    return true;
}

void renew_settings_changed(struct core *core)
{
    core->engine.life.renewed = core->gpu.life.renewed = false;
    pause_fresh(core);
}

void renew_mark_shared(struct core *core)
{
    const struct group *group;

    for (unsigned i = 0; i < core->config.nnodes; i++)
        core->peers[i].shares = false;
    list_each(group, &core->all_groups, all)
        for (unsigned i = 0; i < group->nnodes && group->state != GROUP_BROKEN; i++)
            core->peers[group->nodes[i]].shares = true;
}
