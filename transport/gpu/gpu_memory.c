/* gpu_memory.c - allocations of clients, mapped here once and used by all their operations.
 *
 * Numbers of allocations are those of one session: no client can name another client's allocation.
 * What a client says is checked by what the driver says: that the allocation is as long as told,
 * and lies on the GPU of the session. Chunks come as descriptors, and who has a descriptor may use
 * it. A legacy handle is 64 bytes that may be copied or guessed: a handle that one user has told of
 * is refused from another user.
 *
 * States: MAPPING (a job; the session asks nothing else meanwhile), MAPPED, UNMAPPING (a job). An
 * allocation that the client has freed cannot be named any more. It is unmapped once all operations
 * have ended that the client announced before. When the client is gone all its allocations go so.
 * An import holds the memory: a client that dies while a kernel works in it does not pull it away.
 */
#include "transport/gpu/gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "shm/util/hash.h"

/* ---- mapping, on the jobs' thread ------------------------------------------------------------ */

bool memory_tried(struct gmemory *mem, const char *what, cu_result r)
{
    if (r == CU_SUCCESS)
        return true;
    mem->failed = what;
    mem->error = r;
    return false;
}

static void unmap_memory(struct gmemory *mem)
{
    const struct cuda *cu = &mem->session->g->cu;
    uint64_t done = 0;

    if (mem->kind == SESSION_IPC) {
        if (mem->at)
            memory_tried(mem, "cuIpcCloseMemHandle", cu->ipc_close(mem->at));
        mem->at = 0;
        return;
    }
    for (unsigned i = 0; i < mem->mapped; i++) {
        memory_tried(mem, "cuMemUnmap", cu->vmm_unmap(mem->at + done, mem->chunk[i].bytes));
        done += mem->chunk[i].bytes;
    }
    for (unsigned i = 0; i < mem->chunks; i++)
        if (mem->chunk[i].mem)
            memory_tried(mem, "cuMemRelease", cu->vmm_release(mem->chunk[i].mem));
    if (mem->at)
        memory_tried(mem, "cuMemAddressFree", cu->vmm_unreserve(mem->at, mem->bytes));
    mem->mapped = 0;
    mem->at = 0;
}

void memory_undo(struct gmemory *mem)
{
    const char *failed = mem->failed;
    cu_result error = mem->error;

    unmap_memory(mem);
    mem->failed = failed;
    mem->error = error;
}

static bool map_chunks(struct gmemory *mem)
{
    const struct cuda *cu = &mem->session->g->cu;
    struct cu_access access = {.location = {CU_LOCATION_DEVICE, mem->session->dev->ordinal},
                               .flags = CU_ACCESS_READWRITE};
    uint64_t done = 0;

    if (!memory_tried(mem, "cuMemAddressReserve", cu->vmm_reserve(&mem->at, mem->bytes, 0, 0, 0)))
        return false;
    for (; mem->mapped < mem->chunks; mem->mapped++) {
        struct gchunk *c = &mem->chunk[mem->mapped];

        if (!memory_tried(mem, "cuMemImportFromShareableHandle",
                          cu->vmm_import(&c->mem, (void *)(intptr_t)c->fd, CU_HANDLE_POSIX_FD)) ||
            !memory_tried(mem, "cuMemMap", cu->vmm_map(mem->at + done, c->bytes, 0, c->mem, 0)))
            return false;
        done += c->bytes;
    }
    return memory_tried(mem, "cuMemSetAccess", cu->vmm_access(mem->at, mem->bytes, &access, 1));
}

/* Is it memory of this GPU, and as long from @at on as the client says? */
static bool memory_in_range(struct gmemory *mem, cu_ptr at, uint64_t bytes, bool whole)
{
    const struct cuda *cu = &mem->session->g->cu;
    cu_ptr base = 0;
    size_t size = 0, end;
    int type = 0, ordinal = -1, what[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_DEVICE_ORDINAL};
    void *to[] = {&type, &ordinal};

    if (!memory_tried(mem, "cuPointerGetAttributes", cu->pointer_attributes(2, what, to, at)))
        return false;
    if (type != CU_MEMORYTYPE_DEVICE || ordinal != mem->session->dev->ordinal)
        return memory_tried(mem, "it lies on another GPU", CU_E_INVALID_VALUE);
    if (!whole)
        return true;
    if (!memory_tried(mem, "cuMemGetAddressRange", cu->mem_range(&base, &size, at)))
        return false;
    if (at < base || add_overflows(at - base, bytes, &end) || end > size)
        return memory_tried(mem, "it is shorter than the client says", CU_E_INVALID_VALUE);
    return true;
}

static bool map_memory(struct gmemory *mem)
{
    const struct cuda *cu = &mem->session->g->cu;
    uint64_t done = 0;

    if (mem->kind == SESSION_IPC)
        return memory_tried(mem, "cuIpcOpenMemHandle",
                            cu->ipc_open(&mem->at, mem->ipc, CU_IPC_LAZY_PEER_ACCESS)) &&
               memory_in_range(mem, mem->at, mem->bytes, true);
    if (!map_chunks(mem))
        return false;
    for (unsigned i = 0; i < mem->chunks; i++) { /* the driver would not map more than there is */
        if (!memory_in_range(mem, mem->at + done, 0, false))
            return false;
        done += mem->chunk[i].bytes;
    }
    return true;
}

static void map_work(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);

    if (!memory_tried(mem, "cuCtxSetCurrent", mem->session->g->cu.ctx_set(mem->session->dev->ctx)))
        return;
    if (!map_memory(mem))
        memory_undo(mem);
}

static void unmap_work(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);

    mem->failed = NULL;
    if (memory_tried(mem, "cuCtxSetCurrent", mem->session->g->cu.ctx_set(mem->session->dev->ctx)))
        unmap_memory(mem);
}

/* ---- the life of an allocation --------------------------------------------------------------- */

static unsigned handle_bucket(const struct cu_ipc_mem *ipc)
{
    uint64_t h = hash_bytes(HASH_BEGIN, ipc->reserved, sizeof ipc->reserved);

    return (unsigned)((h ^ h >> 32) % HANDLE_BUCKETS);
}

void memory_free(struct gmemory *mem)
{
    struct gsession *s = mem->session;

    assert(s->nmemories && s->user->nmemories);
    assert(s->user->mapped >= mem->bytes && s->dev->mapped >= mem->bytes);
    assert(mem->state != MEMORY_MAPPED); /* operations may name it */
    for (unsigned i = 0; mem->chunk && i < mem->chunks; i++)
        if (mem->chunk[i].fd >= 0)
            closer_fd(s->g->closer, s->user->uid, mem->chunk[i].fd);
    if (mem->kind == SESSION_IPC)
        LIST_REMOVE(mem, same);
    if (mem->kind == SESSION_LENT)
        s->lent -= mem->bytes;
    s->nmemories--;
    s->user->nmemories--;
    s->user->mapped -= mem->bytes;
    s->dev->mapped -= mem->bytes;
    free(mem->chunk);
    free(mem);
}

static void unmap_done(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);
    struct gsession *s = mem->session;
    char text[128];

    assert_loop(s->g);
    assert(mem->state == MEMORY_UNMAPPING && s->jobs);
    if (mem->failed) {
        cuda_text(&s->g->cu, mem->error, text, sizeof text);
        gpu_log_user(s->g, s->user->uid, LOG_WARN, "memory of pid %u could not be unmapped: %s: %s",
                     s->pid, mem->failed, text);
    }
    memory_free(mem);
    s->jobs--;
}

static void memory_job(struct gmemory *mem, enum gmemory_state state, void (*work)(struct gjob *),
                       void (*done)(struct gjob *))
{
    struct gsession *s = mem->session;

    mem->state = state;
    mem->job = (struct gjob){.work = work, .done = done};
    s->jobs++;
    jobs_add(s->g->jobs, &s->user->lane, &mem->job);
}

void memory_map(struct gmemory *mem, void (*work)(struct gjob *), void (*done)(struct gjob *))
{
    assert(!mem->session->asking && mem->session->state == SESSION_OPEN);
    mem->session->asking = true;
    memory_job(mem, MEMORY_MAPPING, work, done);
}

void memory_turn(struct gsession *s)
{
    struct gmemory *mem;

    while ((mem = STAILQ_FIRST(&s->leaving)) && mem->leaves_at <= s->low) {
        assert(mem->state == MEMORY_MAPPED);
        STAILQ_REMOVE_HEAD(&s->leaving, leaves);
        memory_job(mem, MEMORY_UNMAPPING, unmap_work, unmap_done);
    }
}

static void memory_leave(struct gmemory *mem)
{
    struct gsession *s = mem->session;

    assert(mem->state == MEMORY_MAPPED);
    LIST_REMOVE(mem, link);
    mem->leaves_at = s->next;
    STAILQ_INSERT_TAIL(&s->leaving, mem, leaves);
    memory_turn(s);
}

void memory_mapped(struct gmemory *mem)
{
    struct gsession *s = mem->session;

    assert(mem->state == MEMORY_MAPPING && !mem->failed);
    mem->state = MEMORY_MAPPED;
    LIST_INSERT_HEAD(&s->memories[session_bucket(s->g, mem->id)], mem, link);
    if (s->state == SESSION_CLOSED)
        memory_leave(mem);
}

static void map_done(struct gjob *job)
{
    struct gmemory *mem = container_of(job, struct gmemory, job);
    struct gsession *s = mem->session;
    uint32_t id = mem->id;
    char text[128], why[SESSION_TEXT] = "";
    int code = 0;

    assert_loop(s->g);
    assert(s->asking && s->jobs);
    s->jobs--;
    s->asking = false;
    for (unsigned i = 0; i < mem->chunks && mem->kind == SESSION_VMM; i++)
        closer_fd(s->g->closer, s->user->uid, steal_fd(&mem->chunk[i].fd));
    if (mem->failed) {
        cuda_text(&s->g->cu, mem->error, text, sizeof text);
        snprintf(why, sizeof why, "the memory cannot be mapped: %s: %.120s", mem->failed, text);
        code = mem->error == CU_E_ALREADY_MAPPED ? COMMD_E_TIMEOUT : COMMD_E_INVALID;
        if (!s->told && code == COMMD_E_INVALID) {
            gpu_log_user(s->g, s->user->uid, LOG_INFO,
                         "of pid %u %s; it is copied in each operation", s->pid, why);
            s->told = true;
        }
        memory_free(mem);
    } else {
        memory_mapped(mem);
    }
    session_answer(s, id, code, -1, why);
}

struct gmemory *memory_get(struct gsession *s, uint32_t id)
{
    struct gmemory *mem;

    LIST_FOREACH(mem, &s->memories[session_bucket(s->g, id)], link)
        if (mem->id == id)
            return mem;
    return NULL;
}

void memory_forget(struct gsession *s, uint32_t id)
{
    struct gmemory *mem = memory_get(s, id);

    if (mem)
        memory_leave(mem);
    else
        session_break(s, "it frees memory %u, which it has not told of", id);
}

void memory_leave_all(struct gsession *s)
{
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        while (!LIST_EMPTY(&s->memories[i]))
            memory_leave(LIST_FIRST(&s->memories[i]));
}

/* ---- what a client says ---------------------------------------------------------------------- */

/* Is the descriptor of a kind that a driver gives out? With others a call could wait: with a file
 * of FUSE for its daemon. The two questions here ask no daemon. */
static bool may_be_chunk(int fd)
{
    struct statx st;

    if (fcntl(fd, F_GET_SEALS) >= 0)
        return true;
    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) == 0 &&
           S_ISCHR(st.stx_mode);
}

/* NULL, or why a client may not tell of such an allocation. */
static const char *memory_wrong(struct gsession *s, const struct session_msg *m, unsigned nfds)
{
    uint64_t sum = 0;

    if (!m->id || memory_get(s, m->id))
        return "its number is in use";
    if (!m->memory.bytes || m->memory.bytes > s->g->total_bytes)
        return "no GPU has so much";
    if (m->memory.kind == SESSION_IPC)
        return nfds ? "a handle comes without descriptors" : NULL;
    if (m->memory.kind != SESSION_VMM)
        return "its kind is unknown";
    if (!m->memory.chunks || m->memory.chunks > SESSION_MAX_CHUNKS || m->memory.chunks != nfds)
        return "it needs one descriptor for each chunk";
    for (unsigned i = 0; i < nfds; i++)
        if (!m->memory.chunk_bytes[i] || add_overflows(sum, m->memory.chunk_bytes[i], &sum))
            return "its chunks are too long";
    if (sum != m->memory.bytes)
        return "its chunks have another sum";
    return NULL;
}

const char *memory_full(struct gsession *s, uint64_t bytes)
{
    if (s->nmemories >= GPU_SESSION_MEMORIES)
        return "this process has told of as many allocations as commd-gpu keeps for one";
    if (s->user->nmemories >= GPU_USER_MEMORIES)
        return "this user has told of as many allocations as commd-gpu keeps for one";
    if (s->user->mapped + bytes > GPU_USER_DEVICES_MAPPED * s->g->total_bytes)
        return "this user's mapped allocations are as large as they may be";
    return NULL;
}

/* NULL, or why the allocation is not mapped: the client is told, and the session goes on. */
static const char *memory_refused(struct gsession *s, const struct session_msg *m, const int *fds,
                                  int *ret_code)
{
    struct gmemory *other;
    const char *full = memory_full(s, m->memory.bytes);

    *ret_code = COMMD_E_QUOTA;
    if (full)
        return full;
    *ret_code = COMMD_E_INVALID;
    if (memcmp(&m->memory.uuid, &s->dev->uuid, sizeof m->memory.uuid))
        return "the memory is not on the GPU that the session is for";
    for (unsigned i = 0; m->memory.kind == SESSION_VMM && i < m->memory.chunks; i++)
        if (!may_be_chunk(fds[i]))
            return "a descriptor is not one of a driver";
    if (m->memory.kind != SESSION_IPC)
        return NULL;
    LIST_FOREACH(other, &s->g->handles[handle_bucket(&m->memory.ipc)], same)
        if (other->session->uid != s->uid &&
            !memcmp(&other->ipc, &m->memory.ipc, sizeof other->ipc))
            return "the memory belongs to another user";
    return NULL;
}

struct gmemory *memory_new(struct gsession *s, uint32_t id, uint32_t kind, uint64_t bytes,
                           uint32_t chunks)
{
    struct gmemory *mem = calloc(1, sizeof *mem);

    if (mem && chunks)
        mem->chunk = calloc(chunks, sizeof *mem->chunk);
    if (!mem || (chunks && !mem->chunk)) {
        free(mem);
        return NULL;
    }
    mem->session = s;
    mem->id = id;
    mem->kind = kind;
    mem->bytes = bytes;
    mem->chunks = chunks;
    for (unsigned i = 0; i < chunks; i++)
        mem->chunk[i] = (struct gchunk){.bytes = bytes, .fd = -1};
    s->nmemories++;
    s->user->nmemories++;
    s->user->mapped += bytes;
    s->dev->mapped += bytes;
    if (kind == SESSION_LENT)
        s->lent += bytes;
    return mem;
}

void memory_add(struct gsession *s, const struct session_msg *m, int *fds, unsigned nfds)
{
    const char *why = memory_wrong(s, m, nfds);
    struct gmemory *mem;
    int code;

    if (why) {
        session_break(s, "memory %u: %s", m->id, why);
        return;
    }
    why = memory_refused(s, m, fds, &code);
    mem = why ? NULL
              : memory_new(s, m->id, m->memory.kind, m->memory.bytes,
                           m->memory.kind == SESSION_VMM ? m->memory.chunks : 0);
    if (!mem) {
        session_answer(s, m->id, why ? code : COMMD_E_NOMEM, -1, why ? why : "no memory");
        return;
    }
    mem->ipc = m->memory.ipc;
    for (unsigned i = 0; i < mem->chunks; i++)
        mem->chunk[i] = (struct gchunk){m->memory.chunk_bytes[i], 0, steal_fd(&fds[i])};
    if (mem->kind == SESSION_IPC)
        LIST_INSERT_HEAD(&s->g->handles[handle_bucket(&mem->ipc)], mem, same);
    memory_map(mem, map_work, map_done);
}
