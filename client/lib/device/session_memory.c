/* session_memory.c - memory that commd-gpu has mapped: told of once, found again by what the driver
 * says of an address. An address that was freed and given out again has another BUFFER_ID: then
 * commd-gpu is told to forget the old one. */
#include "client/lib/device/session.h"

/* What lies at [base, base + bytes), one allocation or several that were mapped side by side. */
struct exported {
    struct exported *next;
    uint32_t id;
    cu_ptr base;
    size_t bytes;
    uint64_t buffer; /* CU_POINTER_BUFFER_ID at base, and where it ends */
    uint64_t last;
};

struct range {
    cu_ptr base;
    size_t bytes;
    uint64_t buffer, handles;
    bool ipc;
};

static int ask_range(const char *op, cu_ptr p, struct range *ret)
{
    int ask[] = {CU_POINTER_RANGE_START, CU_POINTER_RANGE_SIZE, CU_POINTER_BUFFER_ID,
                 CU_POINTER_IS_LEGACY_IPC, CU_POINTER_ALLOWED_HANDLES};
    int ipc = 0;
    void *answers[] = {&ret->base, &ret->bytes, &ret->buffer, &ipc, &ret->handles};
    cu_result r;

    *ret = (struct range){0};
    r = driver(NULL)->pointer_attributes(ARRAY_LEN(ask), ask, answers, p);
    ret->ipc = ipc;
    if (r)
        return driver_error(op, "cuPointerGetAttributes", r);
    if (!ret->bytes)
        return error_set(error_mine(), COMMD_E_INVALID, op, "%s: %#llx is no memory of a GPU", op,
                         (unsigned long long)p);
    return 0;
}

static void forget(struct session *s, struct exported **p)
{
    struct exported *m = *p;
    struct session_msg msg = {.type = SESSION_FORGET, .id = m->id};

    *p = m->next;
    session_tell(s, &msg);
    free(m);
}

static void close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

/* The descriptors of what is mapped side by side from @first on until @end. */
static int export_chunks(const char *op, const struct range *first, cu_ptr end,
                         struct session_msg *m, int *fds)
{
    const struct cuda *cu = driver(NULL);
    struct range at = *first;

    for (;;) {
        cu_mem mem;
        cu_result r = cu->vmm_retain(&mem, (void *)(uintptr_t)at.base);

        if (!r) {
            r = cu->vmm_export(&fds[m->memory.chunks], mem, CU_HANDLE_POSIX_FD, 0);
            cu->vmm_release(mem);
        }
        if (r)
            return driver_error(op, "cuMemExportToShareableHandle", r);
        m->memory.chunk_bytes[m->memory.chunks++] = at.bytes;
        m->memory.bytes += at.bytes;
        if (at.base + at.bytes >= end)
            return 0;
        if (m->memory.chunks == SESSION_MAX_CHUNKS)
            return error_set(error_mine(), COMMD_E_INVALID, op,
                             "%s: a buffer is made of more than %d pieces", op, SESSION_MAX_CHUNKS);
        if (ask_range(op, at.base + at.bytes, &at))
            return COMMD_E_INVALID;
    }
}

/* Its cause is in the error; -errno never. */
static int tell_of(struct session *s, const char *op, const struct range *first, cu_ptr end,
                   struct exported *m)
{
    struct session_msg msg = {.type = SESSION_MEMORY, .id = m->id};
    int fds[SESSION_MAX_CHUNKS], r = 0;
    unsigned nfds = 0;
    cu_result e;

    msg.memory.uuid = s->uuid;
    if (first->ipc) {
        msg.memory.kind = SESSION_IPC;
        msg.memory.bytes = first->bytes;
        e = driver(NULL)->ipc_get(&msg.memory.ipc, first->base);
        r = e ? driver_error(op, "cuIpcGetMemHandle", e) : 0;
    } else if (first->handles & CU_HANDLE_POSIX_FD) {
        msg.memory.kind = SESSION_VMM;
        r = export_chunks(op, first, end, &msg, fds);
        nfds = msg.memory.chunks;
    } else {
        r = error_set(error_mine(), COMMD_E_INVALID, op,
                      "%s: this memory cannot be given to another process", op);
    }
    if (!r)
        r = session_ask(s, &msg, sizeof msg, fds, nfds);
    close_all(fds, nfds);
    m->bytes = msg.memory.bytes;
    return r;
}

static int memory_export(struct session *s, const char *op, const struct range *first, cu_ptr end,
                         struct exported **ret)
{
    struct exported *m = calloc(1, sizeof *m);
    struct range last = *first;
    int r;

    if (!m)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory", op);
    m->id = ++s->next_id;
    m->base = first->base;
    m->buffer = first->buffer;
    r = tell_of(s, op, first, end, m);
    if (!r && m->base + m->bytes < end)
        r = error_set(error_mine(), COMMD_E_INVALID, op, "%s: a buffer goes beyond its allocation",
                      op);
    if (!r)
        r = ask_range(op, m->base + m->bytes - 1, &last);
    if (r) {
        free(m);
        return r;
    }
    m->last = last.buffer;
    m->next = s->memory;
    s->memory = m;
    *ret = m;
    return 0;
}

int memory_place(struct session *s, const char *op, cu_ptr p, size_t bytes,
                 struct session_place *ret_place)
{
    struct exported **at = &s->memory, *m;
    struct range range, last;
    int r;

    *ret_place = (struct session_place){0};
    if (!bytes)
        return 0;
    r = ask_range(op, p, &range);
    last = range;
    if (!r && p + bytes > range.base + range.bytes)
        r = ask_range(op, p + bytes - 1, &last);
    if (r)
        return r;
    while ((m = *at)) {
        bool inside = p >= m->base && p + bytes <= m->base + m->bytes;

        if (inside && m->buffer == range.buffer && m->base == range.base &&
            (last.buffer == range.buffer || m->last == last.buffer))
            break;
        if (range.base < m->base + m->bytes && m->base < last.base + last.bytes)
            forget(s, at); /* what was there is not any more */
        else
            at = &m->next;
    }
    if (!m)
        r = memory_export(s, op, &range, p + bytes, &m);
    if (r)
        return r;
    ret_place->memory = m->id;
    ret_place->offset = p - m->base;
    return 0;
}

int memory_share(struct session *s, const char *op, const struct side_place *p)
{
    struct session_place unused;
    int r = 0;

    if (!p->blocks)
        return memory_place(s, op, (cu_ptr)(uintptr_t)p->base, p->bytes, &unused);
    for (unsigned k = 0; !r && k < p->n; k++)
        r = memory_place(s, op, (cu_ptr)(uintptr_t)p->blocks[k], side_block_bytes(p, k), &unused);
    return r;
}

void memory_forget_all(struct session *s)
{
    while (s->memory) {
        struct exported *m = s->memory;

        s->memory = m->next;
        free(m);
    }
}
