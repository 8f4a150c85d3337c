/* gpu_lend.c - memory of our own that a client asks for, because a buffer of the client cannot be
 * given to another process: the client copies the buffer to lent memory and back, on the GPU, on
 * its own stream.
 *
 * To operations lent memory is an allocation as any other of the session (gpu_memory.c), with the
 * same life: nobody else can name it, and it goes with the session. It is filled with zeros before
 * the client gets it, for the driver may hand out memory with another client's data in it.
 *
 * All lent memory together is at most a part of a GPU's, of which one user gets half of what the
 * others leave. A client may still have memory mapped that it has given back: that memory is freed
 * when the client ends, like an allocation of its own. */
#include "transport/gpu/gpu.h"

#include <stdio.h>

static struct cu_mem_prop lent_prop(const struct gsession *s)
{
    return (struct cu_mem_prop){.type = CU_ALLOCATION_PINNED,
                                .handle_types = CU_HANDLE_POSIX_FD,
                                .location = {CU_LOCATION_DEVICE, s->dev->ordinal}};
}

/* On the jobs' thread. */
static bool lent_make(struct gmemory *mem)
{
    const struct cuda *cu = &mem->session->g->cu;
    struct cu_mem_prop prop = lent_prop(mem->session);
    struct cu_access access = {prop.location, CU_ACCESS_READWRITE};
    struct gchunk *c = mem->chunk;

    if (!memory_tried(mem, "cuCtxSetCurrent", cu->ctx_set(mem->session->dev->ctx)) ||
        !memory_tried(mem, "cuMemCreate", cu->vmm_create(&c->mem, c->bytes, &prop, 0)) ||
        !memory_tried(mem, "cuMemAddressReserve", cu->vmm_reserve(&mem->at, c->bytes, 0, 0, 0)) ||
        !memory_tried(mem, "cuMemMap", cu->vmm_map(mem->at, c->bytes, 0, c->mem, 0)))
        return false;
    mem->mapped = 1;
    return memory_tried(mem, "cuMemSetAccess", cu->vmm_access(mem->at, c->bytes, &access, 1)) &&
           memory_tried(mem, "cuMemsetD8Async", cu->fill(mem->at, 0, c->bytes, NULL)) &&
           memory_tried(mem, "cuStreamSynchronize", cu->stream_synchronize(NULL)) &&
           memory_tried(mem, "cuMemExportToShareableHandle",
                        cu->vmm_export(&c->fd, c->mem, CU_HANDLE_POSIX_FD, 0));
}

static void lend_work(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);

    if (!lent_make(mem))
        memory_undo(mem);
}

static void lend_refuse(struct gsession *s, uint32_t id, const char *call, cu_result r)
{
    char text[128], why[SESSION_TEXT];

    cuda_text(&s->g->cu, r, text, sizeof text);
    snprintf(why, sizeof why, "GPU %u has no memory to lend: %s: %.120s", s->dev->number, call,
             text);
    session_answer(s, id, r == CU_E_OUT_OF_MEMORY ? COMMD_E_NOMEM : COMMD_E_INVALID, -1, why);
}

static void lend_done(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);
    struct gsession *s = mem->session;
    struct session_msg m = {.type = SESSION_LEND, .id = mem->id};
    int fd = steal_fd(&mem->chunk->fd);

    assert(mem->kind == SESSION_LENT && mem->chunks == 1);
    assert(s->asking && s->jobs);
    s->jobs--;
    s->asking = false;
    m.memory.bytes = mem->bytes;
    if (mem->failed) {
        const char *failed = mem->failed;
        cu_result error = mem->error;

        memory_free(mem);
        lend_refuse(s, m.id, failed, error);
        return;
    }
    memory_mapped(mem);
    if (!s->told) /* the client knows why */
        gpu_log_user(
            s->g, s->user->uid, LOG_INFO,
            "buffers of pid %u are copied in each operation: the driver gives none of them to "
            "other processes, or not yet, or they lie on another GPU",
            s->pid);
    s->told = true;
    session_send(s, &m, &fd, 1);
    session_listen(s);
    close_fdp(&fd);
}

/* Bytes of the GPU that are lent: to the session's user, and to the others. */
static uint64_t lent_of(struct gsession *s, uint64_t *ret_others)
{
    struct gpu *g = s->g;
    struct gsession *o;
    uint64_t own = 0;

    *ret_others = 0;
    LIST_FOREACH(o, &g->sessions, link)
        if (o->dev == s->dev)
            *(o->user == s->user ? &own : ret_others) += o->lent;
    LIST_FOREACH(o, &g->closed, link)
        if (o->dev == s->dev)
            *(o->user == s->user ? &own : ret_others) += o->lent;
    return own;
}

/* NULL, or why the session gets no more: short, as its client adds to the text. */
static const char *lend_full(struct gsession *s, uint64_t bytes, char text[SESSION_TEXT])
{
    const char *full = memory_full(s, bytes);
    uint64_t others, own = lent_of(s, &others), all = s->dev->bytes / GPU_LENT_PART;
    uint64_t most = (all - MIN(others, all)) / 2;

    if (full)
        return full;
    if (s->lent + bytes > SESSION_LENT_MOST)
        snprintf(text, SESSION_TEXT, "it lends a process %d at most", SESSION_LENT_MOST);
    else if (own + bytes > most)
        snprintf(text, SESSION_TEXT, "it lends this user %llu at most, of a quarter of GPU %u",
                 (unsigned long long)most, s->dev->number);
    else
        return NULL;
    return text;
}

void lend_memory(struct gsession *s, const struct session_msg *m)
{
    struct cu_mem_prop prop = lent_prop(s);
    uint64_t bytes = m->memory.bytes;
    char text[SESSION_TEXT];
    struct gmemory *mem;
    const char *full;
    size_t grain = 1;
    cu_result r;

    if (!m->id || memory_get(s, m->id) || !bytes || bytes > SESSION_LENT_MOST) {
        session_break(s, "it asks for memory %u of %llu bytes", m->id, (unsigned long long)bytes);
        return;
    }
    r = s->g->cu.vmm_granularity(&grain, &prop, CU_GRANULARITY_MINIMUM);
    if (r) {
        lend_refuse(s, m->id, "cuMemGetAllocationGranularity", r);
        return;
    }
    bytes = ALIGN_UP(bytes, (uint64_t)grain);
    full = lend_full(s, bytes, text);
    mem = full ? NULL : memory_new(s, m->id, SESSION_LENT, bytes, 1);
    if (mem)
        memory_map(mem, lend_work, lend_done);
    else
        session_answer(s, m->id, full ? COMMD_E_QUOTA : COMMD_E_NOMEM, -1,
                       full ? full : "commd-gpu has no memory");
}
