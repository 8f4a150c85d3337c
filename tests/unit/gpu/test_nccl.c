/* test_nccl.c - our declarations of NCCL against <nccl.h>, where there is one (CPPFLAGS=-I...; it
 * needs the CUDA Toolkit's headers too), and how it is loaded, or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "transport/gpu/nccl.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours)
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_E_CUDA, ncclUnhandledCudaError);
SAME(NCCL_E_SYSTEM, ncclSystemError);
SAME(NCCL_E_INTERNAL, ncclInternalError);
SAME(NCCL_E_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_E_USAGE, ncclInvalidUsage);
SAME(NCCL_E_REMOTE, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_I8, ncclInt8);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_I32, ncclInt32);
SAME(NCCL_U32, ncclUint32);
SAME(NCCL_I64, ncclInt64);
SAME(NCCL_U64, ncclUint64);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_PROD, ncclProd);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_AVG, ncclAvg);
#define SAME_PLACE(ours, theirs)                                                                   \
    SAME(offsetof(struct nccl_config, ours), offsetof(ncclConfig_t, theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22800
SAME_PLACE(traffic_class, trafficClass);
SAME_PLACE(comm_name, commName);
SAME_PLACE(collnet, collnetEnable);
SAME_PLACE(cta_policy, CTAPolicy);
SAME_PLACE(shrink_share, shrinkShare);
SAME_PLACE(nvls_ctas, nvlsCTAs);
SAME_PLACE(channels_per_net_peer, nChannelsPerNetPeer);
SAME_PLACE(nvlink_sched, nvlinkCentricSched);
#endif

static void nothing_chosen_is_the_same(void **state)
{
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    struct nccl_config ours = nccl_config(NCCL_VERSION_CODE);

    if (NCCL_VERSION_CODE / 100 != 228)
        skip();
    assert_int_equal(sizeof ours, sizeof theirs);
    assert_memory_equal(&ours, &theirs, sizeof ours);
}
#else
static void nothing_chosen_is_the_same(void **state)
{
    skip(); /* no <nccl.h> here */
}
#endif

static void a_version_that_is_known(void **state)
{
    assert_int_equal(nccl_config(21805).version, 21805);
    assert_int_equal(nccl_config(23202).version, 22809); /* the layout here is older */
    assert_int_equal(nccl_config(22809).blocking, INT_MIN);
    assert_null(nccl_config(22809).net_name);
}

static void loading_says_what_is_wrong(void **state)
{
    struct nccl nc = {.version = 7};
    char why[200] = "";

    assert_int_equal(nccl_load("/nonexistent/libnccl.so.2", &nc, why, sizeof why), -ENOENT);
    assert_non_null(strstr(why, "/nonexistent/libnccl.so.2"));
    assert_int_equal(nccl_load("libc.so.6", &nc, why, sizeof why), -ENOSYS);
    assert_string_equal(why, "libc.so.6 lacks ncclGetVersion: NCCL 2.18 or newer is needed");
    assert_int_equal(nc.version, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_chosen_is_the_same),
        cmocka_unit_test(a_version_that_is_known),
        cmocka_unit_test(loading_says_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
