/* session.h - what libcommd and commd-gpu agree on, byte for byte. See doc/gpu.md for the model.
 *
 * A session is one process at commd-gpu, with one GPU; a process that works on several asks the
 * session that it has from commd, its first, for others. A session has a socket (SOCK_SEQPACKET;
 * commd makes the pair and tells commd-gpu whose it is) for what happens seldom: memory and groups
 * come and go. And it has a region, a sealed memfd that commd-gpu makes, for what happens often:
 * operations.
 *
 * An operation takes slot n % SESSION_SLOTS, n = 0, 1, ... in the order of the process's calls:
 *   the client  waits until the slot's last operation is done, fills the slot, stores seq;
 *               enqueues on the caller's stream: ready[slot] = mark when the input is there, and,
 *               where the result is needed, wait until done[slot] has reached mark
 *   commd-gpu   copies the slot and checks it; when all members of this node have announced the
 *               operation and all their ready words are there, it launches; its stream, or on
 *               failure its host, stores done[slot] = mark
 * So neither host waits for the other, nor for a peer. A wait on a stream always ends: whoever
 * finds that a peer is dead writes the result's code, then done.
 *
 * Who writes what: slots, aux and ready the client and its streams; done and results commd-gpu and
 * its streams, and the client itself once commd-gpu is gone. Each side believes nothing that it
 * reads there. */
#ifndef COMMD_SESSION_H
#define COMMD_SESSION_H

#include <stdatomic.h>

#include "shm/gpu/cuda.h"
#include "shm/model/plan.h"
#include "shm/util/base.h"

enum {
    SESSION_VERSION = 4,
    SESSION_SLOTS = 256, /* operations of a process that are not done */
    SESSION_AUX = 1 << 20,
    SESSION_TEXT = 240,
    SESSION_PAGE = 64 << 10,  /* flags are registered with the driver: whole pages, of any size */
    SESSION_MAX_RANKS = 16,   /* of one group on one GPU: as many as a kernel takes pointers */
    SESSION_MAX_WORLD = 4096, /* of a group; larger ones go through host memory */
    SESSION_MAX_CHUNKS = 128, /* pieces of an allocation that is mapped piecewise */
    SESSION_LENT_MOST = 1 << 30, /* bytes that commd-gpu lends to a session */
};
#define SESSION_MAGIC 0x31757067646d6f63ull /* "comdgpu1" */

/* Bytes of an allocation that the client has told of; memory 0: none. */
struct session_place {
    uint32_t memory, pad;
    uint64_t offset;
};

/* What an operation needs beyond a slot, at aux + aux_offset, all in 8-byte words: first the
 * counts that commd_op has (send_counts, then recv_counts; world each), then the places of blocks
 * that do not lie evenly (send_blocks, then recv_blocks; world each). Or, alone, a struct
 * session_declined. */
enum {
    SESSION_SEND_COUNTS = 1,
    SESSION_RECV_COUNTS = 2,
    SESSION_SEND_BLOCKS = 4,
    SESSION_RECV_BLOCKS = 8,
    SESSION_DECLINED = 16
};

struct session_slot {
    _Atomic uint32_t seq; /* session_mark(n), release; pairs with acquire in commd-gpu */
    uint32_t group;       /* the client's number for it, of SESSION_ATTACH */
    struct op_desc desc;  /* desc.seq: the operation's number in the group, of those on GPUs */
    struct session_place send, recv;
    double scale;      /* COMMD_PREMUL_SUM */
    uint32_t aux_bits; /* SESSION_SEND_COUNTS | ... */
    uint32_t aux_offset, aux_len;
    uint8_t pad[28];
} __attribute__((aligned(CACHELINE)));
_Static_assert(sizeof(struct session_slot) == 128, "two cache lines");

struct session_result {
    int32_t code, rank; /* enum commd_result; whom it is about, -1: nobody in particular */
    uint32_t pid, pad;
    char text[SESSION_TEXT];
};
_Static_assert(sizeof(struct session_result) == 256, "part of the layout");

/* This rank cannot take part in the operation, and has told its caller: when all have announced it,
 * it fails with this for all of them, and the group goes on with the next one. Nobody waits for
 * this rank's ready word. */
struct session_declined {
    int32_t code; /* enum commd_result */
    uint32_t pad;
    char text[SESSION_TEXT - 8];
};
_Static_assert(sizeof(struct session_declined) % 8 == 0, "whole words");

struct session_flags { /* both sides register this page, and their streams write and wait here */
    _Atomic uint32_t ready[SESSION_SLOTS];
    _Atomic uint32_t done[SESSION_SLOTS];
} __attribute__((aligned(SESSION_PAGE)));

struct session_region {
    uint64_t magic;
    uint32_t version, pad;
    /* 1: commd-gpu sleeps. A client that announces exchanges it, after a full fence, for 0, and
     * rings the doorbell. */
    _Atomic uint32_t asleep __attribute__((aligned(CACHELINE)));
    struct session_slot slots[SESSION_SLOTS] __attribute__((aligned(CACHELINE)));
    struct session_result results[SESSION_SLOTS]; /* valid once done says so */
    struct session_flags flags;
    uint8_t aux[SESSION_AUX];
};
_Static_assert(sizeof(struct session_region) % SESSION_PAGE == 0, "whole pages");

/* What seq, ready and done say of operation @n: never 0, so that a fresh page says of none that it
 * is there. Compare with seq_reached(): it wraps. */
static inline uint32_t session_mark(uint64_t n)
{
    return (uint32_t)(n / SESSION_SLOTS + 1);
}

/* ---- the socket ------------------------------------------------------------------------------ */

enum session_type {
    SESSION_HELLO = 1, /* client's first: version in `id`, uuid of its GPU */
    SESSION_WELCOME,   /* the answer: descriptors of the region and of the doorbell, an eventfd */
    SESSION_MEMORY,    /* an allocation, `id` not 0 and unused; answered. COMMD_E_TIMEOUT: not yet,
                          for what was at its addresses before is still in use */
    SESSION_FORGET,    /* it is freed; not answered. No operation that names it is pending */
    SESSION_ATTACH,    /* this process is a rank of a group; answered */
    SESSION_DETACH,    /* and not any more; not answered */
    SESSION_ABORT,     /* give up what is pending in the group, for all members; not answered */
    SESSION_ANSWER,    /* code, text; `id` as in the question */
    SESSION_MORE,      /* to the first session: another one, for another GPU, that ends with it. The
                          answer is of this type, with a socket, or SESSION_ANSWER with a code */
    SESSION_LEND,      /* asks for memory of commd-gpu's own in place of buffers that it cannot map:
                          memory.bytes, `id` as of SESSION_MEMORY. The answer is of this type, with
                          a descriptor and memory.bytes as they are, or SESSION_ANSWER with a code.
                          It is empty, and nobody else's; given back by SESSION_FORGET */
};

enum session_memory {
    SESSION_IPC = 1, /* one handle of cuIpcGetMemHandle() */
    SESSION_VMM,     /* descriptors of cuMemExportToShareableHandle(), in the order of addresses */
    SESSION_LENT,    /* SESSION_LEND */
};

/* A rank's GPU: a unit. */
struct session_unit {
    uint16_t node, pad; /* index into the group's nodes */
    uint32_t ranks;
    struct cu_uuid uuid;
};

struct session_msg {
    uint32_t type, id;
    union {
        struct {
            struct cu_uuid uuid;
        } hello;
        struct {
            uint32_t nccl; /* version, 22809; 0: not there */
            uint32_t pid;
        } welcome;
        struct {
            uint32_t kind, chunks;
            uint64_t bytes;
            struct cu_uuid uuid;
            struct cu_ipc_mem ipc;
            uint64_t chunk_bytes[SESSION_MAX_CHUNKS];
        } memory;
        struct {
            uint64_t group, epoch, first; /* first: number of its next operation on GPUs */
            uint32_t world, nnodes, me, rank, units, pad;
            char name[64]; /* for people */
            /* behind the message: struct session_unit[units], uint16_t unit_of_rank[world] */
        } attach;
        struct {
            int32_t code, rank;
            char text[SESSION_TEXT];
        } answer; /* and SESSION_ABORT */
    };
};
enum {
    SESSION_MSG_MAX = sizeof(struct session_msg) +
                      SESSION_MAX_WORLD * (sizeof(struct session_unit) + sizeof(uint16_t))
};

#endif
