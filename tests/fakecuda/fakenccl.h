/* fakenccl.h - what the files of the fake NCCL share. README.md tells the model. */
#ifndef COMMD_FAKENCCL_H
#define COMMD_FAKENCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "tests/fakecuda/fakecuda.h"
#include "transport/gpu/nccl.h"

#define FAKE_PROTOTYPE(member, symbol, result, args) FAKE_API result symbol args;
NCCL_FUNCTIONS(FAKE_PROTOTYPE)
NCCL_OPTIONAL(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE
FAKE_API cu_result cuCtxGetDevice(cu_device *dev);
FAKE_API cu_result cuDeviceGetPCIBusId(char *id, int len, cu_device dev);
FAKE_API nccl_result ncclCommInitRank(nccl_comm *comm, int n, struct nccl_id id, int rank);

enum {
    FAKE_RANKS = 32,
    FAKE_CHUNK = 1 << 20, /* of each rank, in flight */
    FAKE_MAIL = 64 << 10, /* between two ranks, in flight */
};

/* ---- what the ranks of a communicator share -------------------------------------------------- */

struct fake_seat {
    _Atomic int pid; /* 0: free */
    cu_device dev;   /* as its process counts them */
    uint64_t host;   /* hash of NCCL_HOSTID, or of the box's name */
    char bus_id[16];
    uint64_t what;         /* hash of the running operation's description */
    _Atomic uint64_t step; /* barriers that it has come to */
} __attribute__((aligned(64)));

struct fake_mail {                  /* from one rank to another */
    _Atomic uint64_t written, read; /* bytes */
    unsigned char bytes[FAKE_MAIL - 16];
};

struct fake_table {
    _Atomic int world; /* 0: nobody has come */
    struct fake_seat seats[FAKE_RANKS];
    unsigned char chunks[FAKE_RANKS][FAKE_CHUNK];
    struct fake_mail mail[FAKE_RANKS][FAKE_RANKS];
};

/* A new table, at which those find it who know @id. */
nccl_result fake_table_offer(struct nccl_id *id);
/* 0; 1: not there (yet). */
int fake_table_find(const struct nccl_id *id, struct fake_table **ret_table);
void fake_table_unmap(struct fake_table *table);

/* ---- communicators (fakenccl_comm.c) --------------------------------------------------------- */

struct ncclComm {
    struct nccl_id id;
    struct fake_table *table; /* NULL until the ranks have met */
    int world, rank;
    cu_device dev;
    bool blocking;
    char bus_id[16];
    int watches[FAKE_RANKS]; /* pidfds of the others, -1 */
    uint64_t step;           /* barriers; only the running operation uses it */
    unsigned ops;            /* issued */
    atomic_uint launching;   /* operations that no stream has yet */
    atomic_bool aborted, finalized;
    _Atomic nccl_result state; /* NCCL_IN_PROGRESS: the ranks have not met */
    atomic_int polls;          /* FAKENCCL_PROGRESS: answers "in progress" that are left */
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int pending; /* operations, and the thread that meets the others; under lock */
    int refs;
};
void fake_comm_ref(nccl_comm comm);
void fake_comm_unref(nccl_comm comm);
nccl_result fake_comm_ready(nccl_comm comm); /* may take operations */
nccl_result fake_fail(nccl_result r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void fake_comm_set(nccl_comm comm, nccl_result r); /* the first error stays */
bool fake_comm_stop(nccl_comm comm);               /* abort, or a broken device */
/* Looks for ranks that died. */
void fake_comm_watch(nccl_comm comm);
/* Waits until all ranks have come here as often; false: stop. */
bool fake_comm_barrier(nccl_comm comm);
bool fake_comm_begin(nccl_comm comm); /* meets the others, in a thread */
nccl_result fake_comm_wait(nccl_comm comm);
uint64_t fake_hash(const void *data, size_t bytes, uint64_t h);
long fake_knob_number(const char *name, long otherwise);
/* Whether @name is RANK:OPERATION[:CODE] of this one. */
bool fake_knob_hits(const char *name, int rank, unsigned op, int *code);
void fake_nap(unsigned long *us);
bool fake_device_busy(cu_device dev); /* an operation is there that has not ended */

/* ---- operations (fakenccl_ops.c) ------------------------------------------------------------- */

enum fake_what { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, EXCHANGE };
struct fake_transfer { /* part of an EXCHANGE */
    bool out;
    int peer;
    cu_ptr p;
    size_t bytes;
    size_t done;
};
struct fake_ncclop {
    nccl_comm comm; /* counted */
    cu_stream stream;
    enum fake_what what;
    cu_ptr send, recv;
    size_t n;
    int type, op, root;
    struct fake_transfer *transfers; /* owned */
    unsigned ntransfers;
    bool hang, fail;
    int code;
    uint64_t ticket; /* NCCL's operations on a device run in the order of the calls */
};
bool fake_op_run(struct fake_ncclop *op); /* false: it was stopped */
bool fake_type_size(int type, size_t *bytes);
nccl_result fake_op_check(const struct fake_ncclop *op);

#endif
