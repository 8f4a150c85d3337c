/* takeover_engine.c - commd-engine and commd-gpu go on when commd is replaced: what is written down
 * of them, and how they are taken over. How they are found: daemon/link/engine_adopt.c.
 *
 * A record is written when the process has said hello, and taken back when it has ended, before
 * another one is started: so a record is never of another life than what is kept besides. A process
 * without a record is ended, and so is an engine to which numbers mean other nodes than to us. One
 * of another version, or with other settings, goes on as long as it is needed: core_renew.c.
 *
 * The engine tells what it has (ENGINE_HELLO with `resumed`, up to ENGINE_RESUMED). Then it is sent
 * the boards that there are, and ENGINE_KEEP: it drops the others. Doorbells that clients have are
 * the engine's still. */
#include "daemon/takeover.h"

#include "daemon/link/engine_spawn.h"
#include "daemon/process/log.h"
#include "daemon/state/state.h"

/* A number for the names of all nodes, in their order. */
static uint64_t number_of_nodes(const struct daemon *d)
{
    uint64_t hash = LAUNCH_NO_SETTINGS;

    for (unsigned i = 0; i < d->conf->nnodes; i++)
        hash = launch_hash(hash, d->conf->nodes[i].name);
    return hash;
}

/* ---- writing --------------------------------------------------------------------------------- */

void takeover_program(struct daemon *d, const struct engine_link *link,
                      const struct core_kept_engine *engine)
{
    enum state_program which = link == d->gpu ? STATE_GPU : STATE_ENGINE;
    struct state_engine is = {.nodes = number_of_nodes(d)};
    struct engine_kept kept;

    if (!d->state || d->stopping)
        return;
    engine_link_kept(link, &kept);
    is.pid = kept.pid;
    is.uid = kept.uid;
    memcpy(is.secret, kept.secret, sizeof(is.secret));
    if (engine) {
        is.incarnation = engine->incarnation;
        is.addr_len = engine->addr_len;
        memcpy(is.addr, engine->addr, engine->addr_len);
        snprintf(is.text, sizeof(is.text), "%s", engine->text);
    }
    state_program(d->state, which, &is);
    explicit_bzero(&is, sizeof(is));
    explicit_bzero(&kept, sizeof(kept));
}

void takeover_program_gone(struct daemon *d, const struct engine_link *link)
{
    if (d->state && !d->stopping)
        state_program(d->state, link == d->gpu ? STATE_GPU : STATE_ENGINE, NULL);
}

/* ---- taking over ----------------------------------------------------------------------------- */

/* The core takes what the record says. */
static bool give_to_core(struct daemon *d, enum state_program which, const struct state_engine *is)
{
    struct core_kept_engine kept = {.pid = is->pid,
                                    .incarnation = is->incarnation,
                                    .addr = is->addr,
                                    .addr_len = is->addr_len,
                                    .text = is->text};

    return which == STATE_GPU ? core_restore_gpu(d->core, is->pid)
                              : core_restore_engine(d->core, &kept);
}

static void take_program(struct daemon *d, struct engine_link *link, enum state_program which)
{
    const char *name = which == STATE_GPU ? "commd-gpu" : "engine";
    struct state_engine is;
    struct engine_kept kept;
    bool known;

    if (!link)
        return;
    known = d->restoring && state_read_program(d->state, which, &is);
    if (!known || (which == STATE_ENGINE && is.nodes && is.nodes != number_of_nodes(d))) {
        if (known)
            log_warn("%s pid %u was started for other nodes -> ending it", name, is.pid);
        engine_link_adopt(link, NULL);
    } else {
        kept = (struct engine_kept){.pid = is.pid, .uid = is.uid};
        memcpy(kept.secret, is.secret, sizeof(kept.secret));
        if (!engine_link_adopt(link, &kept)) {
            if (give_to_core(d, which, &is))
                return;
            engine_link_end(link);
        } else if (which == STATE_GPU) {
            core_restore_gpu_lost(d->core, is.pid);
        } else {
            log_warn("%s pid %u has ended while no commd was there", name, is.pid);
        }
    }
    takeover_program_gone(d, link);
}

void takeover_programs(struct daemon *d)
{
    take_program(d, d->engine, STATE_ENGINE);
    take_program(d, d->gpu, STATE_GPU);
}
