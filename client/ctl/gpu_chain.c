/* gpu_chain.c - the steps of a chain that lie on GPUs.
 *
 * An operation by commd-gpu waits in the stream of its rank while the host goes on. The host has
 * announced the operation; the stream comes to it when its input is ready. So the chain asks:
 *   Which rank has not announced it? The chain goes on with what its host, or else its GPU, waits
 * in. Which rank has, but its stream has not come to it? The chain goes on with what keeps the
 * stream: another such operation, or what the rank computes. If the streams of all ranks have come
 * to it, only commd-gpu can be at fault, after STALL_MS. */
#include "client/ctl/finding.h"

#include <stdio.h>

enum {
    STALL_MS = 5000,  /* a large operation between GPUs may well take a second */
    SILENT_MS = 1500, /* commd-gpu is asked once a second */
};

/* Prefers a rank that has not announced the operation to one whose stream is behind. A rank that is
 * stopped, but has announced it, holds up nobody. */
const struct seat *gpu_waited_for(const struct seats *seats, const struct seat *waiter)
{
    const struct seat *late = NULL, *unready = NULL;

    group_each(s, seats, waiter) {
        if (s->rank < 0 || s->rank == waiter->rank || seat_left(s))
            continue;
        if (is_dead(s))
            return s;
        if (gpu_late(s, waiter) && heavier(s, late))
            late = s;
        if (gpu_unready(s, waiter) && !unready)
            unready = s;
    }
    return late ? late : unready;
}

void find_behind(struct finding *f, const struct seat *waiter, const struct seat *s)
{
    bool gpu = waits_on_gpu(waiter);
    char name[SEAT_NAME], pid[PID_NAME];

    assert(!is_dead(s) && s->rank != waiter->rank);
    f->verdict = VERDICT_GPU_BEHIND;
    blame(f, s);
    tell(f->evidence,
         "%s has called it; its stream has not come to it for %.1f s: the GPU still does what was "
         "enqueued before",
         seat_name(s, name),
         (double)(gpu ? s->gpu_ended == waiter->gpu_ended ? s->gpu_ms : 0 : s->unready_ms) / 1000);
    tell(f->remedy,
         "see what that GPU does: nvidia-smi on node %s; py-spy dump --nonblocking --pid %s; a "
         "kernel that does not end, or a stream that waits for an event or a word that nobody "
         "writes",
         s->node, pid_name(s, pid));
}

/* A rank of the group whose node's commd-gpu does not answer; NULL: all answer. */
static const struct seat *silent_node(const struct seats *seats, const struct seat *of)
{
    group_each(s, seats, of)
        if (s->gpu_silent_ms >= SILENT_MS)
            return s;
    return NULL;
}

void find_gpu_stall(struct finding *f, const struct seats *seats, const struct seat *waiter)
{
    const struct seat *silent = silent_node(seats, waiter);

    if (silent) {
        f->verdict = VERDICT_GPU_SERVICE_DEAD;
        f->node = silent->node;
        tell(f->evidence,
             "all ranks have come to it, and commd-gpu on node %s has not answered its "
             "commd for %.1f s",
             silent->node, (double)silent->gpu_silent_ms / 1000);
        tell(f->remedy, "commd ends it after gpu.timeout, and ranks get an error; is it stopped? "
                        "journalctl -u commd on that node");
        return;
    }
    if (waiter->gpu_ms < STALL_MS) {
        f->verdict = VERDICT_HEALTHY;
        tell(f->evidence, "all ranks have come to it: GPUs work on it");
        return;
    }
    f->verdict = VERDICT_GPU_STALL;
    tell(f->evidence,
         "all ranks have come to it, and commd-gpu has not ended it: a kernel or NCCL "
         "hangs%s",
         waiter->nodes > 1 ? ", or the network between the nodes" : "");
    tell(f->remedy, "commd-gpu gives up after gpu.timeout, and ranks get an error: commctl gpus; "
                    "journalctl -u commd, with NCCL_DEBUG=WARN in its environment");
}

bool find_gpu_failed(struct finding *f, const struct seats *seats, const struct seat *of)
{
    char name[SEAT_NAME];

    group_each(s, seats, of) {
        if (s->rank < 0 || on_gpu(s))
            continue;
        if (s->gpu_end == GPU_END_LOST) {
            f->verdict = VERDICT_GPU_SERVICE_DEAD;
            f->node = s->node;
            tell(f->evidence, "operation %u on GPUs (%s) of %s ended because commd-gpu was lost",
                 s->gpu_ended, or_unknown(s->gpu_last), seat_name(s, name));
            tell(f->remedy,
                 "look why it ended: journalctl -u commd on node %s, commctl events; the "
                 "next operation on a GPU starts it again",
                 s->node);
            return true;
        }
    }
    return find_unlike(f, seats, of, true);
}
