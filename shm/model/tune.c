/* tune.c - the model of what the caches hold, by which chunk, depth and stores past the caches are
 * chosen for a group on one node.
 *
 * A window. Its writer goes around over all of it, so that a line has left the reader's own cache
 * before it is written again: writing to it there takes three times as long (shm/util/copy.c). So a
 * window is twice that cache, the last one before the shared one. But all windows of a node have to
 * stay in its shared caches, beside what callers' buffers pass through them: they get half. A
 * rank's part, where a node has L shared caches of S bytes, and each core O of its own, is
 *
 *     S L / ranks + O        caches of today do not hold the same line twice
 *
 * A chunk is what a rank reads and writes in one step without losing it from its own cache, and
 * PLAN_CHUNK where a window has room for some of those; what remains is the depth, the power of two
 * that is nearest: the number of a step wraps, and so must its place in the window.
 *
 * Results. What is not in place is read into the caches only to be overwritten. That is up to a
 * third of the traffic, once all ranks together read and write more than the caches hold; and to
 * write past them takes longer before. doc/benchmarks.md has what both were measured at. */
#include "shm/model/tune.h"

#include "shm/model/plan.h"

enum {
    WINDOW_MIN = TUNE_CHUNK_MIN * TUNE_DEPTH_MIN,
    WINDOW_MAX = PLAN_CHUNK * TUNE_DEPTH_MAX,
};

static const struct tune unknown = {.chunk = PLAN_CHUNK, .depth = PLAN_DEPTH_ONE};

static size_t power_below(uint64_t n)
{
    size_t p = 1;

    while (p <= n / 2)
        p *= 2;
    return p;
}

void tune_one_node(const struct topology *machine, unsigned nlocal, struct tune *ret_tune)
{
    uint64_t shared, window;
    struct tune t = unknown;

    if (machine && machine->cache_bytes && machine->core_bytes && nlocal) {
        shared = machine->cache_bytes * machine->caches;
        window = MIN(2 * machine->core_bytes, (shared / nlocal + machine->core_bytes) / 2);
        window = MAX((uint64_t)WINDOW_MIN, MIN(window, (uint64_t)WINDOW_MAX));
        t.chunk = (uint32_t)MIN(power_below(window / TUNE_DEPTH_MIN), (size_t)PLAN_CHUNK);
        t.depth = (uint32_t)power_below(window / t.chunk * 3 / 2);
        t.around = shared / nlocal;
    }
    *ret_tune = t;
}

bool tune_valid(uint32_t chunk, uint32_t depth)
{
    return chunk >= TUNE_CHUNK_MIN && chunk <= PLAN_CHUNK && !(chunk & (chunk - 1)) &&
           !(depth & (depth - 1)) && depth >= TUNE_DEPTH_MIN && depth <= TUNE_DEPTH_MAX;
}
