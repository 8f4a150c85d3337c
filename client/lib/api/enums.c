/* enums.c - the numbers of commd.h are those of shm/. commd.h includes nothing of
 * commd's, because programs include it. Boards and the wire carry the numbers of shm/model and
 * shm/proto. libcommd passes the ones as the others without a table. tests/check_lists.py checks
 * that the lists below are complete. */
#include <commd/commd.h>

#include "shm/model/coll.h"
#include "shm/model/dtype.h"
#include "shm/proto/msg.h"

#define SAME(name, ours) _Static_assert((int)COMMD_##name == (int)ours##_##name, #name)
#define DTYPE(name)      SAME(name, DTYPE)
#define REDOP(name)      SAME(name, REDOP)
#define COLL(name)       SAME(name, COLL)
/* commd.h's errors are the causes, negated. */
#define CAUSE(name) _Static_assert((int)COMMD_E_##name == -(int)CAUSE_##name, #name)

DTYPE(I8);
DTYPE(U8);
DTYPE(I16);
DTYPE(U16);
DTYPE(I32);
DTYPE(U32);
DTYPE(I64);
DTYPE(U64);
DTYPE(F16);
DTYPE(BF16);
DTYPE(F32);
DTYPE(F64);
DTYPE(BOOL);
_Static_assert(DTYPE_COUNT == COMMD_BOOL + 1, "commd.h has every dtype");

REDOP(SUM);
REDOP(AVG);
REDOP(PROD);
REDOP(MIN);
REDOP(MAX);
REDOP(BAND);
REDOP(BOR);
REDOP(BXOR);
REDOP(PREMUL_SUM);
_Static_assert(REDOP_COUNT == COMMD_PREMUL_SUM + 1, "commd.h has every operator");

COLL(BARRIER);
COLL(ALL_REDUCE);
COLL(BROADCAST);
COLL(ALL_GATHER);
COLL(REDUCE_SCATTER);
COLL(REDUCE);
COLL(GATHER);
COLL(SCATTER);
COLL(ALL_TO_ALL);
COLL(ALL_GATHER_V);
COLL(REDUCE_SCATTER_V);
COLL(GATHER_V);
COLL(SCATTER_V);
COLL(ALL_TO_ALL_V);
_Static_assert(COLL_COUNT == COMMD_ALL_TO_ALL_V + 1, "commd.h has every collective");
_Static_assert((int)COLL_COUNT <= (int)COMMD_SEND, "messages begin behind the collectives");

CAUSE(INVALID);
CAUSE(MISMATCH);
CAUSE(QUOTA);
CAUSE(TIMEOUT);
CAUSE(RANK_LOST);
CAUSE(NODE_LOST);
CAUSE(ENGINE_LOST);
CAUSE(ABORTED);
CAUSE(NO_DAEMON);
CAUSE(PROTOCOL);
CAUSE(DENIED);
CAUSE(NOMEM);
CAUSE(INTERNAL);
/* Only libcommd knows FORKED, INTERRUPTED and GPU_LOST; LEFT is a cause and no error. */
