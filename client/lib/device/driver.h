/* driver.h - the CUDA driver of this process, if it has loaded one: on which GPU a buffer lies, and
 * in which context calls are made. libcommd never loads the driver: a program with buffers on a GPU
 * has loaded it. */
#ifndef COMMD_CLIENT_DRIVER_H
#define COMMD_CLIENT_DRIVER_H

#include "client/lib/context/error.h"
#include "shm/gpu/cuda.h"

/* Has the process loaded a driver? Set once by driver_look(). */
extern bool driver_seen;

/* Looks for the driver, unless it has been found. */
void driver_look(void);
/* The driver's functions. NULL: there is no driver; *ret_why (may be NULL) says why, in a line. */
const struct cuda *driver(const char **ret_why);
/* 0 of CU_SUCCESS; else COMMD_E_INVALID, NOMEM or GPU_LOST, with "all_reduce: cuMemcpyAsync: ..."
 */
int driver_error(const char *op, const char *call, cu_result r);

/* Is @p memory of a GPU (managed memory counts as such)? *ret_gpu: which GPU. */
bool driver_owns(const void *p, int *ret_gpu);

/* While a scope is open the context in which an operation's calls are made is current. That is the
 * stream's context. For a default stream it is the current context, if that is on GPU @gpu (-1: on
 * any GPU), else the primary context of the GPU. */
struct scope {
    cu_context ctx;
    bool pushed;
};
/* Also refuses a stream that is being captured. 0 or COMMD_E_*. */
int scope_enter(const char *op, void *stream, int gpu, struct scope *ret_scope);
/* Of a context that is known: of @ctx; of @stream, or, if that is the default stream, of @ctx. */
int scope_enter_context(const char *op, cu_context ctx, struct scope *ret_scope);
int scope_enter_known(const char *op, void *stream, cu_context ctx, struct scope *ret_scope);
void scope_leave(struct scope *s);

#endif
