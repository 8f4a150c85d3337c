/* core_rendezvous.c - which node is the home of a group: rendezvous hashing ("highest random
 * weight", Thaler and Ravishankar 1998).
 *
 * Each node has a weight for each key, and the heaviest of those that are up is the home. All nodes
 * find the same one without asking each other, in whatever order they know each other. A node that
 * is lost moves only the groups that had it for a home, and those spread over all others. All
 * versions of commd in a cluster must agree: a change of the formula is a change of the protocol.
 */
#include "daemon/core/core_internal.h"

int rendezvous(uint64_t key, const uint64_t *ids, const bool *up, unsigned nodes)
{
    uint64_t best_weight = 0;
    int best = -1;

    for (unsigned i = 0; i < nodes; i++) {
        uint64_t weight = core_mix((core_mix(key) ^ ids[i]) - CORE_MIX_STEP);

        if (!up[i])
            continue;
        /* core_mix() is a bijection: two different ids never tie, whatever their order here */
        if (best < 0 || weight > best_weight) {
            best = (int)i;
            best_weight = weight;
        }
    }
    return best;
}
