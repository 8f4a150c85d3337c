/* gpu_stub.c - see gpu_stub.h. */
#include "tests/fuzz/gpu_stub.h"

#include <fcntl.h>
#include <stdio.h>

enum kind { OWN, OPENED, RESERVED, HOST };

struct block {
    LIST_ENTRY(block) link;
    enum kind kind;
    int device;
    size_t bytes;
    char *at;
};

struct cu_stream_st;
struct task {
    STAILQ_ENTRY(task) next;
    void (*twin)(void **params); /* a launch; else a write, or a call of NCCL */
    struct gpu_batch batch;
    const char *from;
    char *to;
    size_t nfrom, nto;
    uint32_t value;
    bool write;
};
STAILQ_HEAD(tasks, task);

enum { STREAMS_MOST = STUB_DEVICES * STREAMS };

static struct {
    LIST_HEAD(, block) blocks;
    struct tasks streams[STREAMS_MOST];
    unsigned nstreams;
    int current; /* device */
    bool nccl_fails, memory_fails;
} stub;

struct rank {
    int n, rank;
};

static void stub_must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "gpu_stub: %s\n", what);
    abort();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static cu_result block_new(cu_ptr *p, size_t bytes, enum kind kind, int device)
{
    struct block *b;

    if (!bytes || bytes > 64 << 20)
        return CU_E_OUT_OF_MEMORY;
    b = calloc(1, sizeof *b);
    stub_must(b && !posix_memalign((void **)&b->at, 256, bytes), "memory");
    b->kind = kind;
    b->device = device;
    b->bytes = bytes;
    LIST_INSERT_HEAD(&stub.blocks, b, link);
    *p = (cu_ptr)(uintptr_t)b->at;
    return CU_SUCCESS;
}

static struct block *block_find(cu_ptr p)
{
    struct block *b;

    LIST_FOREACH(b, &stub.blocks, link)
        if (p >= (cu_ptr)(uintptr_t)b->at && p - (cu_ptr)(uintptr_t)b->at < b->bytes)
            return b;
    return NULL;
}

static cu_result block_free(cu_ptr p, enum kind kind)
{
    struct block *b = block_find(p);

    stub_must(b && b->kind == kind && (cu_ptr)(uintptr_t)b->at == p, "it frees what is not there");
    LIST_REMOVE(b, link);
    free(b->at);
    free(b);
    return CU_SUCCESS;
}

static cu_result mem_alloc(cu_ptr *p, size_t bytes)
{
    return block_new(p, bytes, OWN, stub.current);
}

static cu_result mem_free(cu_ptr p)
{
    return block_free(p, OWN);
}

static cu_result mem_range(cu_ptr *base, size_t *bytes, cu_ptr p)
{
    struct block *b = block_find(p);

    if (!b)
        return CU_E_INVALID_VALUE;
    *base = (cu_ptr)(uintptr_t)b->at;
    *bytes = b->bytes;
    return CU_SUCCESS;
}

static cu_result host_alloc(void **p, size_t bytes, unsigned flags)
{
    cu_ptr at;
    cu_result r = block_new(&at, bytes, HOST, -1);

    (void)flags;
    if (!r)
        *p = (void *)(uintptr_t)at;
    return r;
}

static cu_result host_register(void *p, size_t bytes, unsigned flags)
{
    (void)p, (void)bytes, (void)flags;
    return CU_SUCCESS;
}

static cu_result host_unregister(void *p)
{
    (void)p;
    return CU_SUCCESS;
}

static cu_result host_pointer(cu_ptr *dev, void *p, unsigned flags)
{
    (void)flags;
    *dev = (cu_ptr)(uintptr_t)p;
    return CU_SUCCESS;
}

static cu_result pointer_attributes(unsigned n, int *attributes, void **data, cu_ptr p)
{
    const struct block *b = block_find(p);

    if (!b)
        return CU_E_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        *(int *)data[i] = attributes[i] == CU_POINTER_MEMORY_TYPE      ? CU_MEMORYTYPE_DEVICE
                          : attributes[i] == CU_POINTER_DEVICE_ORDINAL ? b->device
                                                                       : 0;
    return CU_SUCCESS;
}

static bool memory_fails(void)
{
    bool fails = stub.memory_fails;

    stub.memory_fails = false;
    return fails;
}

static cu_result ipc_open(cu_ptr *p, struct cu_ipc_mem handle, unsigned flags)
{
    unsigned which = (unsigned char)handle.reserved[0];

    (void)flags;
    if (which >= STUB_SHARED || memory_fails())
        return CU_E_INVALID_VALUE;
    return block_new(p, STUB_SHARED_BYTES, OPENED, (int)which % STUB_DEVICES);
}

static cu_result ipc_close(cu_ptr p)
{
    return block_free(p, OPENED);
}

/* ---- pieces: a handle is how large one is ------------------------------------------------------
 */

static cu_result vmm_granularity(size_t *bytes, const struct cu_mem_prop *prop, int option)
{
    (void)prop, (void)option;
    *bytes = 4096;
    return CU_SUCCESS;
}

static cu_result vmm_create(cu_mem *mem, size_t bytes, const struct cu_mem_prop *prop,
                            unsigned long long flags)
{
    (void)prop, (void)flags;
    *mem = (cu_mem)bytes;
    return CU_SUCCESS;
}

static cu_result vmm_import(cu_mem *mem, void *handle, int type)
{
    (void)type;
    stub_must(fcntl((int)(intptr_t)handle, F_GETFD) >= 0, "a descriptor that is not open");
    *mem = STUB_SHARED_BYTES;
    return CU_SUCCESS;
}

static cu_result vmm_release(cu_mem mem)
{
    stub_must(mem != 0, "a handle that is none");
    return CU_SUCCESS;
}

static cu_result vmm_reserve(cu_ptr *p, size_t bytes, size_t align, cu_ptr hint,
                             unsigned long long flags)
{
    (void)align, (void)hint, (void)flags;
    return block_new(p, bytes, RESERVED, stub.current);
}

static cu_result vmm_unreserve(cu_ptr p, size_t bytes)
{
    (void)bytes;
    return block_free(p, RESERVED);
}

static cu_result vmm_map(cu_ptr p, size_t bytes, size_t offset, cu_mem mem,
                         unsigned long long flags)
{
    const struct block *b = block_find(p);

    (void)flags;
    stub_must(b && b->kind == RESERVED, "it maps where nothing is reserved");
    return memory_fails() || offset || bytes > mem ||
                   bytes > b->bytes - (p - (cu_ptr)(uintptr_t)b->at)
               ? CU_E_INVALID_VALUE
               : CU_SUCCESS;
}

static cu_result vmm_unmap(cu_ptr p, size_t bytes)
{
    (void)bytes;
    stub_must(block_find(p) != NULL, "it unmaps what is not there");
    return CU_SUCCESS;
}

static cu_result vmm_access(cu_ptr p, size_t bytes, const struct cu_access *access, size_t n)
{
    (void)p, (void)bytes, (void)access, (void)n;
    return CU_SUCCESS;
}

static cu_result vmm_export(void *handle, cu_mem mem, int type, unsigned long long flags)
{
    (void)mem, (void)type, (void)flags;
    *(int *)handle = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return *(int *)handle < 0 ? CU_E_UNKNOWN : CU_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------- */

static cu_result nothing(unsigned flags)
{
    (void)flags;
    return CU_SUCCESS;
}

static cu_result error_text(cu_result r, const char **text)
{
    (void)r;
    *text = "an error";
    return CU_SUCCESS;
}

static cu_result driver_version(int *version)
{
    *version = 13000;
    return CU_SUCCESS;
}

static cu_result device_count(int *n)
{
    *n = STUB_DEVICES;
    return CU_SUCCESS;
}

static cu_result device_get(cu_device *dev, int ordinal)
{
    *dev = ordinal;
    return CU_SUCCESS;
}

static cu_result device_name(char *name, int len, cu_device dev)
{
    snprintf(name, (size_t)len, "stub %d", (int)dev);
    return CU_SUCCESS;
}

static cu_result device_uuid(struct cu_uuid *uuid, cu_device dev)
{
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[0] = (char)(dev + 1);
    return CU_SUCCESS;
}

static cu_result device_memory(size_t *bytes, cu_device dev)
{
    (void)dev;
    *bytes = STUB_BYTES;
    return CU_SUCCESS;
}

static cu_result device_attribute(int *value, int attribute, cu_device dev)
{
    (void)dev;
    *value = attribute == CU_ATTR_CC_MAJOR ? 9 : 4;
    return CU_SUCCESS;
}

static cu_result primary_retain(cu_context *ctx, cu_device dev)
{
    *ctx = (cu_context)(intptr_t)(dev + 1);
    return CU_SUCCESS;
}

static cu_result ctx_set(cu_context ctx)
{
    stub.current = (int)(intptr_t)ctx - 1;
    return CU_SUCCESS;
}

static cu_result module_load(cu_module *module, const void *image)
{
    (void)image;
    *module = (cu_module)(intptr_t)1;
    return CU_SUCCESS;
}

static cu_result module_function(cu_function *f, cu_module module, const char *name)
{
    (void)module;
    for (unsigned i = 0; gpu_twins[i].name; i++)
        if (!strcmp(gpu_twins[i].name, name)) {
            *f = (cu_function)(uintptr_t)&gpu_twins[i];
            return CU_SUCCESS;
        }
    return CU_E_NOT_FOUND;
}

/* ---- streams --------------------------------------------------------------------------------- */

static struct tasks *tasks_of(cu_stream s)
{
    unsigned i = (unsigned)(uintptr_t)s - 1;

    stub_must(i < stub.nstreams, "a stream that is none");
    return &stub.streams[i];
}

static struct task *task_new(cu_stream s)
{
    struct task *t = calloc(1, sizeof *t);

    stub_must(t != NULL, "memory");
    STAILQ_INSERT_TAIL(tasks_of(s), t, next);
    return t;
}

static cu_result stream_new(cu_stream *s, unsigned flags)
{
    (void)flags;
    stub_must(stub.nstreams < STREAMS_MOST, "more streams than there are");
    STAILQ_INIT(&stub.streams[stub.nstreams]);
    *s = (cu_stream)(uintptr_t)++stub.nstreams;
    return CU_SUCCESS;
}

static cu_result stream_query(cu_stream s)
{
    return STAILQ_EMPTY(tasks_of(s)) ? CU_SUCCESS : CU_E_NOT_READY;
}

static cu_result stream_synchronize(cu_stream s)
{
    stub_must(!s, "it waits for a stream");
    return CU_SUCCESS;
}

static cu_result fill(cu_ptr p, unsigned char value, size_t bytes, cu_stream s)
{
    stub_must(!s, "it fills on a stream");
    memset((void *)(uintptr_t)p, value, bytes);
    return CU_SUCCESS;
}

static cu_result launch(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, cu_stream s, void **params,
                        void **extra)
{
    struct task *t = task_new(s);

    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    t->twin = ((const struct gpu_twin *)(uintptr_t)f)->fn;
    memcpy(&t->batch, params[0], sizeof t->batch);
    return CU_SUCCESS;
}

static cu_result stream_batch(cu_stream s, unsigned n, union cu_batch_op *ops, unsigned flags)
{
    (void)flags;
    for (unsigned i = 0; i < n; i++) {
        struct task *t = task_new(s);

        stub_must(ops[i].value.operation == CU_BATCH_WRITE32, "no write");
        t->write = true;
        t->to = (char *)(uintptr_t)ops[i].value.address;
        t->value = (uint32_t)ops[i].value.value;
    }
    return CU_SUCCESS;
}

/* Of NCCL only which bytes it touches. */
static void task_do(struct task *t)
{
    void *params[] = {&t->batch};
    unsigned char sum = 0;

    if (t->twin) {
        t->twin(params);
    } else if (t->write) {
        atomic_store((_Atomic uint32_t *)(void *)t->to, t->value);
    } else {
        for (size_t i = 0; i < t->nfrom; i += MIN(t->nfrom - i, (size_t)64))
            sum ^= (unsigned char)t->from[i];
        if (t->nfrom)
            sum ^= (unsigned char)t->from[t->nfrom - 1];
        if (t->nto)
            memset(t->to, sum, t->nto);
    }
}

void stub_run(unsigned which, unsigned n)
{
    struct tasks *tasks;
    struct task *t;

    if (!stub.nstreams)
        return;
    tasks = &stub.streams[which % stub.nstreams];
    for (; n && (t = STAILQ_FIRST(tasks)); n--) {
        STAILQ_REMOVE_HEAD(tasks, next);
        task_do(t);
        free(t);
    }
}

bool stub_run_all(void)
{
    bool any = false;

    for (unsigned i = 0; i < stub.nstreams; i++) {
        any |= !STAILQ_EMPTY(&stub.streams[i]);
        stub_run(i, UINT32_MAX);
    }
    return any;
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static nccl_result get_id(struct nccl_id *id)
{
    memset(id, 1, sizeof *id);
    return NCCL_SUCCESS;
}

static nccl_result comm_new(nccl_comm *comm, int n, struct nccl_id id, int rank,
                            struct nccl_config *config)
{
    struct rank *r = calloc(1, sizeof *r);

    (void)id, (void)config;
    stub_must(r != NULL, "memory");
    *r = (struct rank){n, rank};
    *comm = (nccl_comm)r;
    return NCCL_SUCCESS;
}

static nccl_result comm_end(nccl_comm comm)
{
    free(comm);
    return NCCL_SUCCESS;
}

static nccl_result comm_state(nccl_comm comm, nccl_result *state)
{
    (void)comm;
    *state = stub.nccl_fails ? NCCL_E_INTERNAL : NCCL_SUCCESS;
    stub.nccl_fails = false;
    return NCCL_SUCCESS;
}

static nccl_result group(void)
{
    return NCCL_SUCCESS;
}

static const char *no_text(nccl_result r)
{
    (void)r;
    return "?";
}

static size_t type_bytes(int type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

    stub_must((size_t)type < ARRAY_LEN(bytes), "a type that NCCL lacks");
    return bytes[type];
}

static nccl_result touch(cu_stream s, const void *from, size_t nfrom, void *to, size_t nto)
{
    struct task *t = task_new(s);

    t->from = from;
    t->nfrom = nfrom;
    t->to = to;
    t->nto = nto;
    return NCCL_SUCCESS;
}

static nccl_result all_reduce(const void *send, void *recv, size_t n, int type, int op,
                              nccl_comm comm, cu_stream s)
{
    (void)op, (void)comm;
    return touch(s, send, n * type_bytes(type), recv, n * type_bytes(type));
}

static nccl_result reduce(const void *send, void *recv, size_t n, int type, int op, int root,
                          nccl_comm comm, cu_stream s)
{
    (void)op;
    n *= type_bytes(type);
    return touch(s, send, n, recv, ((struct rank *)comm)->rank == root ? n : 0);
}

static nccl_result broadcast(const void *send, void *recv, size_t n, int type, int root,
                             nccl_comm comm, cu_stream s)
{
    n *= type_bytes(type);
    return touch(s, send, ((struct rank *)comm)->rank == root ? n : 0, recv, n);
}

static nccl_result all_gather(const void *send, void *recv, size_t n, int type, nccl_comm comm,
                              cu_stream s)
{
    n *= type_bytes(type);
    return touch(s, send, n, recv, n * (size_t)((struct rank *)comm)->n);
}

static nccl_result reduce_scatter(const void *send, void *recv, size_t n, int type, int op,
                                  nccl_comm comm, cu_stream s)
{
    (void)op;
    n *= type_bytes(type);
    return touch(s, send, n * (size_t)((struct rank *)comm)->n, recv, n);
}

static nccl_result send_to(const void *send, size_t n, int type, int peer, nccl_comm comm,
                           cu_stream s)
{
    stub_must(peer >= 0 && peer < ((struct rank *)comm)->n, "a peer that is none");
    return touch(s, send, n * type_bytes(type), NULL, 0);
}

static nccl_result recv_from(void *recv, size_t n, int type, int peer, nccl_comm comm, cu_stream s)
{
    stub_must(peer >= 0 && peer < ((struct rank *)comm)->n, "a peer that is none");
    return touch(s, NULL, 0, recv, n * type_bytes(type));
}

/* ---- all of it ------------------------------------------------------------------------------- */

void stub_begin(struct cuda *cu, struct nccl *nccl)
{
    memset(&stub, 0, sizeof stub);
    *cu = (struct cuda){
        .init = nothing,
        .error_name = error_text,
        .error_string = error_text,
        .driver_version = driver_version,
        .device_count = device_count,
        .device_get = device_get,
        .device_name = device_name,
        .device_uuid = device_uuid,
        .device_memory = device_memory,
        .device_attribute = device_attribute,
        .primary_retain = primary_retain,
        .ctx_set = ctx_set,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .mem_range = mem_range,
        .host_alloc = host_alloc,
        .host_register = host_register,
        .host_unregister = host_unregister,
        .host_pointer = host_pointer,
        .pointer_attributes = pointer_attributes,
        .fill = fill,
        .ipc_open = ipc_open,
        .ipc_close = ipc_close,
        .vmm_granularity = vmm_granularity,
        .vmm_create = vmm_create,
        .vmm_release = vmm_release,
        .vmm_reserve = vmm_reserve,
        .vmm_unreserve = vmm_unreserve,
        .vmm_map = vmm_map,
        .vmm_unmap = vmm_unmap,
        .vmm_access = vmm_access,
        .vmm_export = vmm_export,
        .vmm_import = vmm_import,
        .stream_new = stream_new,
        .stream_query = stream_query,
        .stream_synchronize = stream_synchronize,
        .stream_batch = stream_batch,
        .module_load = module_load,
        .module_function = module_function,
        .launch = launch,
    };
    *nccl = (struct nccl){
        .version = 22809,
        .get_id = get_id,
        .init = comm_new,
        .abort = comm_end,
        .async_error = comm_state,
        .error_string = no_text,
        .group_start = group,
        .group_end = group,
        .all_reduce = all_reduce,
        .reduce = reduce,
        .broadcast = broadcast,
        .all_gather = all_gather,
        .reduce_scatter = reduce_scatter,
        .send = send_to,
        .recv = recv_from,
    };
}

void stub_fail_nccl(void)
{
    stub.nccl_fails = true;
}

void stub_fail_memory(void)
{
    stub.memory_fails = true;
}

unsigned stub_end(void)
{
    unsigned left = 0;
    struct block *b;

    while ((b = LIST_FIRST(&stub.blocks))) {
        left += b->kind == OPENED || b->kind == RESERVED;
        LIST_REMOVE(b, link);
        free(b->at);
        free(b);
    }
    return left;
}
