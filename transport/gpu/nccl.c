/* nccl.c - finds NCCL at run time. See nccl.h. */
#include "transport/gpu/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *symbol;
    size_t member;
    bool optional;
} functions[] = {
#define NCCL_ROW(member, symbol, result, args) {#symbol, offsetof(struct nccl, member), false},
#define NCCL_MAY(member, symbol, result, args) {#symbol, offsetof(struct nccl, member), true},
    NCCL_FUNCTIONS(NCCL_ROW) NCCL_OPTIONAL(NCCL_MAY)
#undef NCCL_ROW
#undef NCCL_MAY
};

static int find_functions(const char *path, struct nccl *nc, char *why, size_t len)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *f = dlsym(nc->library, functions[i].symbol);

        if (!f && !functions[i].optional) {
            snprintf(why, len, "%s lacks %s: NCCL 2.18 or newer is needed", path,
                     functions[i].symbol);
            return -ENOSYS;
        }
        memcpy((char *)nc + functions[i].member, &f, sizeof f);
    }
    return 0;
}

int nccl_load(const char *path, struct nccl *ret_nccl, char *why, size_t len)
{
    struct nccl nc = {NULL};
    int r;

    path = path && path[0] ? path : "libnccl.so.2";
    nc.library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!nc.library) {
        const char *error = dlerror();

        snprintf(why, len, "%s", error ? error : path);
        return -ENOENT;
    }
    r = find_functions(path, &nc, why, len);
    if (r)
        return r;
    if (nc.get_version(&nc.version) || nc.version < NCCL_OLDEST) {
        snprintf(why, len, "%s is NCCL %d.%d: 2.18 or newer is needed", path, nc.version / 10000,
                 nc.version / 100 % 100);
        return -ENOSYS;
    }
    *ret_nccl = nc;
    return 0;
}

struct nccl_config nccl_config(int version)
{
    return (struct nccl_config){
        .size = sizeof(struct nccl_config),
        .magic = (unsigned)NCCL_CONFIG_MAGIC,
        /* it refuses a version that it does not know: that is the layout here at the latest */
        .version = (unsigned)(version < 22809 ? version : 22809),
        .blocking = NCCL_UNDEF,
        .cga_cluster_size = NCCL_UNDEF,
        .min_ctas = NCCL_UNDEF,
        .max_ctas = NCCL_UNDEF,
        .split_share = NCCL_UNDEF,
        .traffic_class = NCCL_UNDEF,
        .collnet = NCCL_UNDEF,
        .cta_policy = NCCL_UNDEF,
        .shrink_share = NCCL_UNDEF,
        .nvls_ctas = NCCL_UNDEF,
        .channels_per_net_peer = NCCL_UNDEF,
        .nvlink_sched = NCCL_UNDEF,
    };
}

void nccl_text(const struct nccl *nc, nccl_comm comm, nccl_result r, char *text, size_t len)
{
    const char *string = nc->error_string(r);
    const char *more = comm && nc->last_error ? nc->last_error(comm) : NULL;

    snprintf(text, len, "%s (NCCL %d)%s%s", string ? string : "NCCL error", r,
             more && more[0] ? ": " : "", more && more[0] ? more : "");
    text[strcspn(text, "\n")] = 0;
}
