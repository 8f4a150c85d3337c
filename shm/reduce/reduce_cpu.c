/* reduce_cpu.c - which instruction sets this CPU and its system offer; see reduce_cpu.h. */
#include "shm/reduce/reduce_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
static bool have_f16c(void)
{
    unsigned a, b, c, d;

    /* clang 14 does not know "f16c" in __builtin_cpu_supports(). That the kernel saves the
     * registers has been asked with avx2. */
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && have_f16c();
}

static bool have_avx512(void)
{
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static bool have_baseline(void)
{
    return true;
}

static const struct {
    const char *name;
    bool (*have)(void);
} isas[REDUCE_ISAS] = {
#if defined(__x86_64__)
    [REDUCE_AVX512] = {"avx512", have_avx512},
    [REDUCE_AVX2] = {"avx2", have_avx2},
#endif
    [REDUCE_BASELINE] = {"baseline", have_baseline},
};

const char *reduce_isa_name(unsigned isa)
{
    return isas[isa].name;
}

bool reduce_isa_runs(unsigned isa)
{
    return isas[isa].have();
}

const char *reduce_best_isa(void)
{
    unsigned isa = 0;

    while (!isas[isa].have())
        isa++;
    return isas[isa].name;
}
