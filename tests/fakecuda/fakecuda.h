/* fakecuda.h - what the fake driver offers to tests beyond the functions of the driver. Programs
 * find these with dlsym() in the library; README.md says how to use them. */
#ifndef COMMD_FAKECUDA_H
#define COMMD_FAKECUDA_H

#include "shm/gpu/cuda.h"

#define FAKE_API __attribute__((visibility("default")))

/* A kernel's twin for the host. @fn gets what cuLaunchKernel() gets: for each parameter a pointer
 * to its value; the values are copies of @sizes[i] bytes, made at the launch. */
enum { FAKECUDA_PARAMS = 16 };
struct fakecuda_kernel {
    const char *name; /* NULL: end of the table */
    void (*fn)(void **params);
    unsigned nparams;
    size_t sizes[FAKECUDA_PARAMS];
    size_t (*used)(const void *param); /* so much of the first is in use; NULL: all of it */
};

/* @table stays where it is for good. Also found without a call: see README.md. */
FAKE_API void fakecuda_register_kernels(const struct fakecuda_kernel *table);
/* Device memory that no other process can get, as that of cudaMallocAsync()'s default pool. */
FAKE_API cu_result fakecuda_alloc_unshareable(cu_ptr *p, size_t bytes);
/* The stream is being captured into a graph, or not any more. */
FAKE_API cu_result fakecuda_capture(cu_stream s, int on);
/* A function of the driver that commd does not call: kernels in this context reach @peer's. */
FAKE_API cu_result cuCtxEnablePeerAccess(cu_context peer, unsigned flags);
/* How often @function ("cuLaunchKernel") was called in this process. */
FAKE_API uint64_t fakecuda_calls(const char *function);
/* From now on everything on this device fails with @code, as after a fault in a kernel. */
FAKE_API void fakecuda_break(cu_device dev, cu_result code);

/* For the fake NCCL. @fn runs in the stream's order on a worker and returns 0, or the error that
 * breaks the device; not if it is broken. @drop comes at the end, also when this fails. */
typedef cu_result (*fakecuda_fn)(void *arg);
FAKE_API cu_result fakecuda_enqueue(cu_stream s, fakecuda_fn fn, void (*drop)(void *arg),
                                    void *arg);
/* A knob's value; 0: it is not set. */
FAKE_API int fakecuda_knob(const char *name, char *text, size_t len);
/* In @fn: the device is broken, so stop waiting. */
FAKE_API int fakecuda_broken(cu_device dev);
/* As cuCtxEnablePeerAccess() from @dev, if there is a way. */
FAKE_API void fakecuda_tie(cu_device dev, cu_device peer);
/* As what frees memory of @dev: waits for it, and for all that it is tied to. */
FAKE_API void fakecuda_settle(cu_device dev);
/* Device of a stream; NULL: of the current context's default stream. */
FAKE_API cu_result fakecuda_stream_device(cu_stream s, cu_device *dev);
/* In @fn: where a worker can read and write @bytes at @p, memory that @dev can reach; NULL if it
 * cannot. Valid until fakecuda_view_end(), which must come soon: cuMemFree() waits for it. */
FAKE_API void *fakecuda_view(cu_ptr p, size_t bytes, cu_device dev);
/* Would a kernel on @dev reach it, if peer access is enabled between all devices? That opens what
 * cuMemAlloc() gives, and not what was imported or mapped for another device. */
FAKE_API int fakecuda_peer_reaches(cu_ptr p, size_t bytes, cu_device dev);
FAKE_API void fakecuda_view_end(void);

#endif
