/* nccl.h - the part of NCCL that commd-gpu uses, declared here so that it builds where no NCCL is,
 * and loaded at run time (nccl.c): the library is large, and most installations have it from
 * PyTorch. Numbers and layouts are those of its stable binary interface, 2.18 to 2.28;
 * tests/unit/gpu/test_nccl.c compares them with <nccl.h> where there is one. What each
 * function does: "NCCL API", docs.nvidia.com. */
#ifndef COMMD_NCCL_H
#define COMMD_NCCL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/gpu/cuda.h"

typedef int nccl_result; /* ncclResult_t */
enum {
    NCCL_SUCCESS = 0,
    NCCL_E_CUDA = 1,
    NCCL_E_SYSTEM = 2,
    NCCL_E_INTERNAL = 3,
    NCCL_E_ARGUMENT = 4,
    NCCL_E_USAGE = 5,
    NCCL_E_REMOTE = 6,
    NCCL_IN_PROGRESS = 7,
};

/* Neither done nor under way. */
static inline bool nccl_failed(nccl_result r)
{
    return r != NCCL_SUCCESS && r != NCCL_IN_PROGRESS;
}

enum { /* ncclDataType_t */
       NCCL_I8 = 0,
       NCCL_U8 = 1,
       NCCL_I32 = 2,
       NCCL_U32 = 3,
       NCCL_I64 = 4,
       NCCL_U64 = 5,
       NCCL_F16 = 6,
       NCCL_F32 = 7,
       NCCL_F64 = 8,
       NCCL_BF16 = 9,
};
enum { /* ncclRedOp_t */
       NCCL_SUM = 0,
       NCCL_PROD = 1,
       NCCL_MAX = 2,
       NCCL_MIN = 3,
       NCCL_AVG = 4,
};

typedef struct ncclComm *nccl_comm; /* ncclComm_t */

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

/* ncclConfig_t as 2.28 has it. An older library reads `size` and ignores what it does not know;
 * from 2.29 on there is more at the end, which `size` says is not here. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_sched;
};
enum { NCCL_CONFIG_MAGIC = (int)0xcafebeef, NCCL_UNDEF = INT_MIN };
enum { NCCL_OLDEST = 21800, NCCL_ABORTS_AT_ONCE = 21901 };

/* F(member of struct nccl, symbol in libnccl.so.2, result, arguments). Of the optional ones some
 * are not in every version: NULL then. */
#define NCCL_FUNCTIONS(F)                                                                          \
    F(get_version, ncclGetVersion, nccl_result, (int *version))                                    \
    F(get_id, ncclGetUniqueId, nccl_result, (struct nccl_id * id))                                 \
    F(init, ncclCommInitRankConfig, nccl_result,                                                   \
      (nccl_comm * comm, int n, struct nccl_id id, int rank, struct nccl_config *config))          \
    F(finalize, ncclCommFinalize, nccl_result, (nccl_comm comm))                                   \
    F(destroy, ncclCommDestroy, nccl_result, (nccl_comm comm))                                     \
    F(abort, ncclCommAbort, nccl_result, (nccl_comm comm))                                         \
    F(async_error, ncclCommGetAsyncError, nccl_result, (nccl_comm comm, nccl_result * state))      \
    F(error_string, ncclGetErrorString, const char *, (nccl_result r))                             \
    F(group_start, ncclGroupStart, nccl_result, (void))                                            \
    F(group_end, ncclGroupEnd, nccl_result, (void))                                                \
    F(all_reduce, ncclAllReduce, nccl_result,                                                      \
      (const void *send, void *recv, size_t n, int type, int op, nccl_comm comm, cu_stream s))     \
    F(reduce, ncclReduce, nccl_result,                                                             \
      (const void *send, void *recv, size_t n, int type, int op, int root, nccl_comm comm,         \
       cu_stream s))                                                                               \
    F(broadcast, ncclBroadcast, nccl_result,                                                       \
      (const void *send, void *recv, size_t n, int type, int root, nccl_comm comm, cu_stream s))   \
    F(all_gather, ncclAllGather, nccl_result,                                                      \
      (const void *send, void *recv, size_t send_n, int type, nccl_comm comm, cu_stream s))        \
    F(reduce_scatter, ncclReduceScatter, nccl_result,                                              \
      (const void *send, void *recv, size_t recv_n, int type, int op, nccl_comm comm,              \
       cu_stream s))                                                                               \
    F(send, ncclSend, nccl_result,                                                                 \
      (const void *send, size_t n, int type, int peer, nccl_comm comm, cu_stream s))               \
    F(recv, ncclRecv, nccl_result,                                                                 \
      (void *recv, size_t n, int type, int peer, nccl_comm comm, cu_stream s))
#define NCCL_OPTIONAL(F) F(last_error, ncclGetLastError, const char *, (nccl_comm comm))

struct nccl {
    void *library;
    int version; /* 22809 */
#define NCCL_MEMBER(member, symbol, result, args) result(*member) args;
    NCCL_FUNCTIONS(NCCL_MEMBER)
    NCCL_OPTIONAL(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* Loads NCCL: @path, NULL: libnccl.so.2. It is never unloaded: it has threads. 0; -ENOENT: there is
 * none; -ENOSYS: it lacks a function or is older than 2.18. @why: one line. */
int nccl_load(const char *path, struct nccl *ret_nccl, char *why, size_t len);
/* As ncclCommInitRankConfig() wants it, with nothing chosen: for a library of version @version. */
struct nccl_config nccl_config(int version);
/* "remote process exited or there was a network error (6)"; @comm may be NULL. */
void nccl_text(const struct nccl *nc, nccl_comm comm, nccl_result r, char *text, size_t len);

#endif
