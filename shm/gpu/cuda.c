/* cuda.c - finds the CUDA driver at run time. See cuda.h. */
#include "shm/gpu/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *symbol;
    size_t member;
    int later; /* it may be missing */
} functions[] = {
#define CUDA_ROW(member, symbol, args) {#symbol, offsetof(struct cuda, member), 0},
    CUDA_FUNCTIONS(CUDA_ROW)
#undef CUDA_ROW
#define CUDA_ROW(member, symbol, args) {#symbol, offsetof(struct cuda, member), 1},
        CUDA_LATER_FUNCTIONS(CUDA_ROW)
#undef CUDA_ROW
};

int cuda_load(const char *path, int only_loaded, struct cuda *ret_cuda, char *why, size_t len)
{
    struct cuda cu = {NULL};

    path = path && path[0] ? path : "libcuda.so.1";
    cu.library =
        dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (only_loaded ? RTLD_NOLOAD : 0));
    if (!cu.library) {
        const char *error = dlerror();

        snprintf(why, len, "%s", only_loaded ? "" : error ? error : path);
        return -ENOENT;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *f = dlsym(cu.library, functions[i].symbol);

        if (!f && !functions[i].later) {
            snprintf(why, len, "%s lacks %s: the driver is older than CUDA 11.7", path,
                     functions[i].symbol);
            return -ENOSYS;
        }
        memcpy((char *)&cu + functions[i].member, &f, sizeof f);
    }
    *ret_cuda = cu;
    return 0;
}

void cuda_text(const struct cuda *cu, cu_result r, char *text, size_t len)
{
    const char *name = NULL, *string = NULL;

    if (cu->error_name(r, &name) || !name)
        name = "unknown";
    if (cu->error_string(r, &string) || !string)
        string = "CUDA error";
    snprintf(text, len, "%s (%s, %d)", string, name, r);
}
