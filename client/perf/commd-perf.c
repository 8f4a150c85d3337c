/* commd-perf.c - how fast are the collectives, and are they right?
 *
 * A run is a group of ranks, each a process of its own with one connection to its node's commd.
 * commd-perf forks them itself, before anything connects (a context does not survive a fork),
 * R on each socket; or torchrun, srun or mpirun started it as one rank of many, and it takes
 * rank and size from the environment. From there on both are the same (commd_perf_run.c).
 *
 * Per size and iteration (commd_perf_loop.c): fill the input, barrier, start the clock, one
 * operation, stop the clock, check the result. Rank 0's own times are reported, which is what
 * MPI benchmarks do: after a barrier all ranks start within the barrier's skew, and an
 * operation that needs everybody ends for everybody at about the same time. Data are chosen so
 * that each result is known to the last bit whatever the order of the reduction
 * (commd_perf_data.c, commd_perf_coll.c); what differs is counted over all ranks and all
 * iterations.
 *
 * commd-perf uses the public API only: it is also the example of how to. */
#include "client/perf/commd_perf.h"

int main(int argc, char **argv)
{
    struct perf perf;
    int r = perf_parse(argc, argv, &perf);

    if (r >= 0)
        return r;
    if (perf.launched)
        return perf_rank(&perf, perf.rank, perf.size, perf.sockets[0]);
    return perf_launch(&perf);
}
