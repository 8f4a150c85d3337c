/* ptx.h - runs kernels as PTX, the text that nvcc makes of them, where there is no GPU: a small
 * interpreter for tests. It knows the instructions that our kernels have; another one is an error
 * that names it. See ptx.c for what is an error while it runs. */
#ifndef COMMD_TEST_PTX_H
#define COMMD_TEST_PTX_H

#include <stddef.h>
#include <stdint.h>

enum { PTX_READ = 1, PTX_WRITE = 2 };

/* Global memory: addresses are the process's own. All arrays have an item for each byte. */
struct ptx_memory {
    uint8_t *at;
    size_t size;
    uint8_t *may;               /* PTX_READ, PTX_WRITE: what kernels may do to it */
    uint32_t *read_by, *put_by; /* the thread that did so last; zeros at first */
    uint32_t threads;           /* that have run so far, of all launches */
};

/* As cuLaunchKernel() takes it, and the kernel's one parameter. */
struct ptx_launch {
    const char *kernel;
    unsigned gx, gy, threads;
    const void *params;
    size_t params_size;
};

enum { PTX_ERROR_MAX = 500 };

/* One module, which begins with .version. NULL: @ret_error says why. */
struct ptx *ptx_new(const char *text, char *ret_error);
struct ptx *ptx_free(struct ptx *p);
/* 0, or -1: @ret_error says what was wrong, and where. */
int ptx_run(struct ptx *p, const struct ptx_launch *l, struct ptx_memory *m, char *ret_error);
/* How many instructions no launch has come to, and the text of the first. */
unsigned ptx_never_run(const struct ptx *p, unsigned *ret_all, char *ret_first);

#endif
