/* reduce_cpu.h - the instruction sets that the reduction is built for, and which of them this CPU
 * runs. Apart from the kernels, so that commd can say it without holding them. */
#ifndef COMMD_REDUCE_CPU_H
#define COMMD_REDUCE_CPU_H

#include "shm/util/base.h"

/* Best first. */
enum {
#if defined(__x86_64__)
    REDUCE_AVX512,
    REDUCE_AVX2,
#endif
    REDUCE_BASELINE,
    REDUCE_ISAS,
};

const char *reduce_isa_name(unsigned isa);
bool reduce_isa_runs(unsigned isa);
const char *reduce_best_isa(void); /* the name of the first that runs */

#endif
