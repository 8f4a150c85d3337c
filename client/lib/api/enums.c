/* enums.c - the numbers of commd.h are those of shm/. commd.h includes nothing of
 * commd's, because programs include it. Boards and the wire carry the numbers of shm/model and
 * shm/proto. libcommd passes the ones as the others without a table. tests/check_lists.py checks
 * that the lists below are complete. */
#include <commd/commd.h>

#include "shm/model/coll.h"
#include "shm/model/dtype.h"
#include "shm/proto/msg.h"

#define SAME(name, ours) _Static_assert((int)COMMD_##name == (int)ours##_##name, #name);
#define DTYPE(name)      SAME(name, DTYPE)
#define REDOP(name)      SAME(name, REDOP)
#define COLL(name)       SAME(name, COLL)
/* commd.h's errors are the causes, negated. */
#define CAUSE(name) _Static_assert((int)COMMD_E_##name == -(int)CAUSE_##name, #name);

#define DTYPES(X)                                                                                  \
    X(I8) X(U8) X(I16) X(U16) X(I32) X(U32) X(I64) X(U64) X(F16) X(BF16) X(F32) X(F64) X(BOOL)
DTYPES(DTYPE)
_Static_assert(DTYPE_COUNT == COMMD_BOOL + 1, "commd.h has every dtype");

#define REDOPS(X) X(SUM) X(AVG) X(PROD) X(MIN) X(MAX) X(BAND) X(BOR) X(BXOR) X(PREMUL_SUM)
REDOPS(REDOP)
_Static_assert(REDOP_COUNT == COMMD_PREMUL_SUM + 1, "commd.h has every operator");

/* clang-format off */
#define COLLS(X)                                                                                   \
    X(BARRIER) X(ALL_REDUCE) X(BROADCAST) X(ALL_GATHER) X(REDUCE_SCATTER) X(REDUCE) X(GATHER)      \
    X(SCATTER) X(ALL_TO_ALL) X(ALL_GATHER_V) X(REDUCE_SCATTER_V) X(GATHER_V) X(SCATTER_V)          \
    X(ALL_TO_ALL_V)
COLLS(COLL)
_Static_assert(COLL_COUNT == COMMD_ALL_TO_ALL_V + 1, "commd.h has every collective");
_Static_assert((int)COLL_COUNT <= (int)COMMD_SEND, "messages begin behind the collectives");

/* Only libcommd knows FORKED, INTERRUPTED and GPU_LOST; LEFT is a cause and no error. */
#define CAUSES(X)                                                                                  \
    X(INVALID) X(MISMATCH) X(QUOTA) X(TIMEOUT) X(RANK_LOST) X(NODE_LOST) X(ENGINE_LOST)            \
    X(ABORTED) X(NO_DAEMON) X(PROTOCOL) X(DENIED) X(NOMEM) X(INTERNAL)
CAUSES(CAUSE)
/* clang-format on */
