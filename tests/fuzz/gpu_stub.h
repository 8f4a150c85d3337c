/* gpu_stub.h - as much of a CUDA driver and of NCCL as commd-gpu calls, on one thread: device
 * memory is malloc()'s, so that sanitizers see each access, and what is on a stream is done when
 * the caller says so. tests/fakecuda is what behaves as a driver does; this is what a fuzzer can
 * repeat. */
#ifndef COMMD_FUZZ_GPU_STUB_H
#define COMMD_FUZZ_GPU_STUB_H

#include "transport/gpu/gpu_op.h"

enum {
    STUB_DEVICES = 2,
    STUB_BYTES = 16 << 20, /* of a device */
    STUB_SHARED = 4,       /* allocations of other processes that can be opened, by a handle's */
    STUB_SHARED_BYTES = 64 << 10, /* first byte; of a device each, in turns */
};

/* Fills in @cu and @nccl; what there was before must be gone. */
void stub_begin(struct cuda *cu, struct nccl *nccl);
/* Does the next @n things of the @which-th stream, counted modulo their number. */
void stub_run(unsigned which, unsigned n);
/* Everything of all streams; true: there was something. */
bool stub_run_all(void);
/* The next look at a communicator finds that it has failed; the next memory cannot be mapped. */
void stub_fail_nccl(void);
void stub_fail_memory(void);
/* Frees what is the device's, and returns how many allocations clients have left behind. */
unsigned stub_end(void);

#endif
