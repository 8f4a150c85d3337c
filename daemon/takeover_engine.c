/* takeover_engine.c - commd-engine and commd-gpu go on when commd is replaced: what is written down
 * of them, and how they are taken over. How they are found: daemon/link/engine_adopt.c.
 *
 * A record is written when the process has said hello, and taken back when it has ended, before
 * another one is started: so a record is never of another life than what is kept besides. A process
 * without a record, or one that was started with other settings, is ended. Settings are its command
 * line without the level of the log, and for the engine the names of all nodes: it knows nodes by
 * their numbers.
 *
 * The engine tells what it has (ENGINE_HELLO with `resumed`, up to ENGINE_RESUMED). Then it is sent
 * the boards that there are, and ENGINE_KEEP: it drops the others. Doorbells that clients have are
 * the engine's still. */
#include "daemon/takeover.h"

#include "daemon/link/engine_spawn.h"
#include "daemon/process/log.h"
#include "daemon/state/state.h"

static void settings_add(uint64_t *hash, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        *hash = (*hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211); /* FNV-1a */
}

static uint64_t settings_of(const struct daemon *d, enum state_program which)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    struct program program;
    const char *word;

    if (which == STATE_GPU)
        program_gpu(d->conf, &program);
    else
        program_engine(d->conf, d->device, &program);
    word = program.words;
    for (unsigned i = 0; i + 2 < program.nwords; i++, word += strlen(word) + 1)
        settings_add(&hash, word, strlen(word) + 1);
    for (unsigned i = 0; which == STATE_ENGINE && i < d->conf->nnodes; i++)
        settings_add(&hash, d->conf->nodes[i].name, strlen(d->conf->nodes[i].name) + 1);
    return hash;
}

/* ---- writing --------------------------------------------------------------------------------- */

void takeover_program(struct daemon *d, const struct engine_link *link,
                      const struct core_kept_engine *engine)
{
    enum state_program which = link == d->gpu ? STATE_GPU : STATE_ENGINE;
    struct state_engine is = {.settings = settings_of(d, which)};
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
    if (!known || is.settings != settings_of(d, which)) {
        if (known)
            log_warn("%s pid %u was started with other settings -> ending it", name, is.pid);
        engine_link_adopt(link, NULL);
    } else {
        kept = (struct engine_kept){.pid = is.pid, .uid = is.uid};
        memcpy(kept.secret, is.secret, sizeof(kept.secret));
        if (engine_link_adopt(link, &kept))
            log_warn("%s pid %u has ended while no commd was there", name, is.pid);
        else if (give_to_core(d, which, &is))
            return;
        else
            engine_link_end(link);
    }
    takeover_program_gone(d, link);
}

void takeover_programs(struct daemon *d)
{
    take_program(d, d->engine, STATE_ENGINE);
    take_program(d, d->gpu, STATE_GPU);
}
