/* well.c - is this node well? And the words for it, of the tables and of HTTP. A node is not well
 * while another node is down, or while its engine should be up and is not. */
#include "daemon/admin/answers.h"

#include <stdarg.h>
#include <stdio.h>

#include "daemon/daemon.h"
#include "daemon/process/clock.h"
#include "shm/proto/cause_text.h"
#include "shm/util/restarts.h"

enum { APART_MS = 3000 }; /* engines that have just been told of each other meet within two */

void answer_unwell(struct answer *a, const char *fmt, ...)
{
    size_t used = strlen(a->unwell);
    va_list ap;

    if (used && used + 2 < sizeof(a->unwell))
        used += (size_t)snprintf(a->unwell + used, sizeof(a->unwell) - used, "; ");
    va_start(ap, fmt);
    vsnprintf(a->unwell + used, sizeof(a->unwell) - used, fmt, ap);
    va_end(ap);
}

uint64_t answer_apart_ms(const struct core_peer_view *peer)
{
    uint64_t ms = peer->apart_ms ? clock_ms() - peer->apart_ms : 0;

    return peer->state == CORE_PEER_READY && ms >= APART_MS ? ms : 0;
}

const char *answer_node_error(const struct daemon *d, unsigned node,
                              const struct core_peer_view *view)
{
    const char *link = d->peers ? peer_links_error(d->peers, node) : "";

    if (view->state == CORE_PEER_UNLINKED && link[0])
        return link;
    if (view->state == CORE_PEER_AWAY && starts_with(view->last_error, TEXT_SILENT))
        return "its commd is silent, its engine answers; groups wait timeouts.restart for it: is "
               "commd stopped there, or its node overloaded?";
    if (view->state == CORE_PEER_AWAY && !view->last_error[0])
        return "no link with its commd since this one was started; groups wait timeouts.restart "
               "for it: see the log of commd there";
    if (view->state == CORE_PEER_AWAY)
        return "its commd ended, its engine has the data; groups wait timeouts.restart for it: if "
               "it does not come back, see the log of commd there";
    if (answer_apart_ms(view))
        return "its engine and ours have no connection: what drops the ports of the engines "
               "(transport.port_range)?";
    return view->last_error ? view->last_error : "";
}

bool answer_dies_again(const struct daemon *d, char *buf, size_t len)
{
    bool fresh = clock_ms() - d->started_ms < RESTART_SOON_MS;
    struct core_status status;

    core_status(d->core, &status);
    if (status.engine_deaths || status.gpu_deaths)
        snprintf(buf, len,
                 "%s of node %s dies again and again, %u times in a row by now, so each start "
                 "waits: look at the log of commd there",
                 status.engine_deaths ? "the engine" : "commd-gpu", d->conf->node,
                 status.engine_deaths ? status.engine_deaths : status.gpu_deaths);
    else if (d->deaths && fresh)
        snprintf(buf, len,
                 "commd of node %s dies again and again, %llu times in a row by now, so each start "
                 "waits: look at its log",
                 d->conf->node, (unsigned long long)d->deaths);
    else
        return false;
    return true;
}

void answer_check_well(struct answer *a)
{
    struct daemon *d = a->d;
    struct core_status status;
    struct core_peer_view peer;
    char again[MSG_TEXT_MAX];

    core_status(d->core, &status);
    if (status.stopping)
        answer_unwell(a, "commd is stopping");
    if (status.draining)
        answer_unwell(a, "node %s is draining: it takes no new groups until commctl drain --undo",
                      d->conf->node);
    if (answer_dies_again(d, again, sizeof(again)))
        answer_unwell(a, "%s", again);
    if (d->engine && status.engine != CORE_ENGINE_UP)
        answer_unwell(a, "engine %s: %s", answer_engine_word(d, &status), status.engine_text);
    for (unsigned i = 0; core_peer_at(d->core, i, &peer); i++) {
        const char *why = answer_node_error(d, i, &peer);

        if (peer.state == CORE_PEER_UNLINKED)
            answer_unwell(a, "node %s is down%s%s", peer.name, why[0] ? ": " : "", why);
        else if (peer.state == CORE_PEER_AWAY)
            answer_unwell(a, "node %s is restarting: %s", peer.name, why);
        else if (peer.state == CORE_PEER_LINKING)
            answer_unwell(a, "node %s is linking%s%s", peer.name, why[0] ? ": " : "", why);
        else if (answer_apart_ms(&peer))
            answer_unwell(a, "node %s is linked, and for %llu s no data have come through: %s",
                          peer.name, (unsigned long long)answer_apart_ms(&peer) / 1000, why);
    }
}

static const char *program_word(enum core_engine_state state)
{
    switch (state) {
    case CORE_ENGINE_OFF:
        return "down";
    case CORE_ENGINE_STARTING:
        return "starting";
    case CORE_ENGINE_UP:
        return "up";
    }
    return "";
}

const char *answer_engine_word(const struct daemon *d, const struct core_status *status)
{
    return !d->engine ? "none" : status->engine_resumes ? "resuming" : program_word(status->engine);
}

const char *answer_gpu_word(const struct core_gpu_view *gpu)
{
    return gpu->wanted ? program_word(gpu->state) : "none";
}

const char *answer_state_word(const struct core_status *status, bool unwell)
{
    return status->stopping   ? "stopping"
           : status->draining ? "draining"
           : unwell           ? "degraded"
                              : "ready";
}

const char *answer_peer_word(const struct core_peer_view *peer)
{
    if (peer->draining && (peer->state == CORE_PEER_SELF || peer->state == CORE_PEER_READY))
        return "draining";
    switch (peer->state) {
    case CORE_PEER_SELF:
        return "self";
    case CORE_PEER_UNLINKED:
        return "down";
    case CORE_PEER_AWAY:
        return "restarting";
    case CORE_PEER_LINKING:
        return "linking";
    case CORE_PEER_READY:
        return answer_apart_ms(peer) ? "linking" : "up";
    }
    return "";
}
