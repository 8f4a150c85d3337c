/* lent.c - memory of commd-gpu's own that stands in for buffers which cannot be given to another
 * process (cudaMallocAsync, MIG, containers) or lie on another GPU than the session's:
 *
 *   stream   ... input | copy it there | ready      wait for done | copy the result back | landed
 *   commd-gpu                          kernel, done
 *
 * All copies are on the GPU. They are on the caller's stream if that waits for the result anyway,
 * else on two of libcommd's (staged.c). The operation is over when the word `landed`, in a page of
 * this process, says so; of an operation without lent memory `done` says it. Until then the memory
 * is the operation's.
 *
 * Memory that is not in use is kept for the next operation. commd-gpu lends at most
 * COMMD_DEVICE_ARENA bytes for each GPU, or less. An operation that needs more while older ones
 * have it waits until one of these is over, but not longer than its limit. The call holds no lock
 * but its group's meanwhile, and operations of other groups that need less go first.
 *
 * Who wakes me: no bell, see session_ends.c. What if commd-gpu dies now: the mapping holds the
 * memory, so copies go on. */
#include "client/lib/device/session.h"

#include <stdio.h>
#include <sys/mman.h>

enum { LENT_GRAIN = 4096, LENT_MOST_GRAIN = 512 << 20 }; /* of cuMemGetAllocationGranularity() */
enum { LENT_LEAST = 2 << 20, GIVE_NAP_US = 50, MOST_GPUS = 64, LENT_ALIGN = 256 };

/* ---- pieces of memory ------------------------------------------------------------------------ */

static void lent_unmap(struct lent *l)
{
    const struct cuda *cu = driver(NULL);

    assert(l->bytes > 0);
    cu->vmm_unmap(l->at, l->bytes);
    cu->vmm_unreserve(l->at, l->bytes);
    free(l);
}

/* Takes @fd. */
static int lent_map(struct session *s, const char *op, int fd, struct lent *l)
{
    const struct cuda *cu = driver(NULL);
    struct cu_access access = {{CU_LOCATION_DEVICE, s->gpu}, CU_ACCESS_READWRITE};
    const char *call = "cuMemImportFromShareableHandle";
    cu_mem mem;
    cu_result r = cu->vmm_import(&mem, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD);

    assert(fd >= 0);
    assert(l->bytes > 0);
    assert(s->gpu >= 0);
    assert(s->gpu < MOST_GPUS);
    close(fd);
    if (r)
        return driver_error(op, call, r);
    call = "cuMemAddressReserve";
    r = cu->vmm_reserve(&l->at, l->bytes, 0, 0, 0);
    if (!r) {
        call = "cuMemMap";
        r = cu->vmm_map(l->at, l->bytes, 0, mem, 0);
        if (!r) {
            call = "cuMemSetAccess";
            r = cu->vmm_access(l->at, l->bytes, &access, 1);
            if (r)
                cu->vmm_unmap(l->at, l->bytes);
        }
        if (r)
            cu->vmm_unreserve(l->at, l->bytes);
    }
    cu->vmm_release(mem); /* the mapping holds it */
    l->gpus = 1ull << s->gpu;
    return driver_error(op, call, r);
}

static void give_back(struct session *s, uint32_t id)
{
    struct session_msg m = {.type = SESSION_FORGET, .id = id};

    assert(id > 0);
    if (!atomic_load(&s->lost))
        session_tell(s, &m);
}

/* What is asked for, in whole pages of the GPU. */
static bool lent_fits(size_t asked, uint64_t bytes)
{
    assert(asked > 0);
    return bytes >= asked && bytes % LENT_GRAIN == 0 &&
           bytes <= ALIGN_UP(asked, (size_t)LENT_MOST_GRAIN);
}

static int lent_new(struct session *s, const char *op, size_t bytes, struct lent **ret)
{
    struct session_msg m = {.type = SESSION_LEND, .id = ++s->next_id}, answer;
    struct lent *l = calloc(1, sizeof *l);
    int fd = -1, r;

    assert_held(&s->calls);
    assert(bytes > 0);
    assert(bytes <= s->lent_limit);
    if (!l)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory", op);
    m.memory.bytes = bytes;
    r = session_ask_fd(s, &m, sizeof m, NULL, 0, &answer, &fd);
    if (!r && !lent_fits(bytes, answer.memory.bytes)) {
        close_fdp(&fd);
        r = error_set(error_mine(), COMMD_E_PROTOCOL, op,
                      "%s: commd-gpu lends %llu bytes where %zu were asked for", op,
                      (unsigned long long)answer.memory.bytes, bytes);
        session_lose(s, "commd-gpu does not answer as it should");
    }
    if (!r) {
        l->id = m.id;
        l->bytes = answer.memory.bytes;
        r = lent_map(s, op, fd, l);
        if (r)
            give_back(s, l->id);
    }
    if (r) {
        free(l);
        return r;
    }
    *ret = l;
    return 0;
}

/* ---- who has it ------------------------------------------------------------------------------ */

static void lent_sweep(struct session *s)
{
    assert_held(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS; i++)
        if (s->slots[i])
            session_ended(s->slots[i]);
}

static struct lent *lent_find(struct session *s, size_t bytes)
{
    struct lent **best = NULL, *l = NULL;

    assert(bytes > 0);
    pthread_mutex_lock(&s->pend);
    lent_sweep(s);
    for (struct lent **p = &s->lent; *p; p = &(*p)->next)
        if ((*p)->bytes >= bytes && (*p)->bytes / 2 <= size_class(bytes, LENT_LEAST) &&
            (!best || (*p)->bytes < (*best)->bytes))
            best = p;
    if (best) {
        l = *best;
        *best = l->next;
        assert(s->lent_kept >= l->bytes);
        s->lent_kept -= l->bytes;
        s->lent_used += l->bytes;
    }
    pthread_mutex_unlock(&s->pend);
    return l;
}

/* *ret_returns (or NULL): how often some was given back until now. */
static size_t in_use(struct session *s, uint64_t *ret_returns)
{
    size_t used;

    pthread_mutex_lock(&s->pend);
    lent_sweep(s);
    used = s->lent_used;
    if (ret_returns)
        *ret_returns = s->lent_returns;
    pthread_mutex_unlock(&s->pend);
    return used;
}

/* Gives the one back that was used longest ago; false: all are in use. */
static bool lent_evict(struct session *s)
{
    struct lent **p = &s->lent, *l;

    pthread_mutex_lock(&s->pend);
    while (*p && (*p)->next)
        p = &(*p)->next;
    l = *p;
    if (l) {
        *p = NULL;
        assert(s->lent_kept >= l->bytes);
        s->lent_kept -= l->bytes;
    }
    pthread_mutex_unlock(&s->pend);
    if (!l)
        return false;
    give_back(s, l->id);
    lent_unmap(l);
    return true;
}

void lent_drop(struct session *s)
{
    in_use(s, NULL);
    while (lent_evict(s))
        ;
}

bool lent_wait(struct session *s, uint64_t returns, int64_t until)
{
    uint64_t now;

    for (in_use(s, &now); now == returns && !atomic_load(&s->lost); in_use(s, &now)) {
        if (until >= 0 && (int64_t)now_ms() >= until)
            return false;
        usleep(GIVE_NAP_US);
    }
    return until < 0 || (int64_t)now_ms() < until;
}

static int lent_refused(const char *op, size_t bytes, int code, const char *why)
{
    char text[68]; /* so all fits into struct session_declined: other ranks are told, too */

    assert(code < 0);
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, why);
    return error_set(error_mine(), code, op,
                     "%s: %zu bytes of its buffers cannot be given to another process, and "
                     "commd-gpu lends none: %s; COMMD_DEVICE_PATH=host goes through host memory",
                     op, bytes, text);
}

static int lent_full(struct session *s, const char *op, size_t bytes)
{
    char text[100];

    snprintf(text, sizeof text, "COMMD_DEVICE_ARENA allows %zu (%zu are in use)", s->lent_limit,
             in_use(s, NULL));
    return lent_refused(op, bytes, COMMD_E_NOMEM, text);
}

size_t lent_bytes(const struct side_places *p, bool send, bool recv, size_t *ret_recv_at)
{
    bool one = send && recv && !p->send.blocks && !p->recv.blocks && p->send.base == p->recv.base &&
               p->send.bytes == p->recv.bytes;

    assert(send || recv);
    *ret_recv_at = send && recv && !one ? ALIGN_UP(p->send.bytes, (size_t)LENT_ALIGN) : 0;
    return *ret_recv_at + (recv ? p->recv.bytes : p->send.bytes);
}

int lent_take(struct session *s, const char *op, size_t bytes, uint64_t *ret_returns,
              struct lent **ret)
{
    size_t size = MIN(size_class(bytes, LENT_LEAST), s->lent_limit);
    uint64_t before, now;
    void *page;
    int r = 0;

    assert_held(&s->calls);
    assert(bytes > 0);
    if (!s->landed)
        r = flags_page(op, SESSION_PAGE, &page, &s->landed_at);
    if (!r && !s->landed)
        s->landed = page;
    if (r)
        return r;
    in_use(s, &before);
    if (atomic_load(&s->lost))
        return error_set(error_mine(), COMMD_E_GPU_LOST, op, "%s: commd-gpu is gone", op);
    if (bytes > s->lent_limit)
        return lent_full(s, op, bytes);
    for (;;) {
        bool full;

        *ret = lent_find(s, bytes);
        if (*ret)
            return 0;
        assert(!*ret);
        full = in_use(s, NULL) + s->lent_kept + size > s->lent_limit;
        r = full ? COMMD_E_QUOTA : lent_new(s, op, size, ret);
        if (!r) {
            pthread_mutex_lock(&s->pend);
            s->lent_used += (*ret)->bytes;
            pthread_mutex_unlock(&s->pend);
            return 0;
        }
        if (r == COMMD_E_GPU_LOST || r == COMMD_E_PROTOCOL)
            return r;
        if (r != COMMD_E_INVALID && lent_evict(s))
            continue;
        if (r != COMMD_E_INVALID && ret_returns && (in_use(s, &now) || now != before)) {
            *ret_returns = before;
            return LENT_BUSY;
        }
        return full ? lent_full(s, op, bytes)
                    : lent_refused(op, bytes, r == COMMD_E_INVALID ? r : COMMD_E_NOMEM,
                                   commd_last_error()->message);
    }
}

void lent_return(struct session *s, struct lent *l)
{
    pthread_mutex_lock(&s->pend);
    lent_give(s, l);
    pthread_mutex_unlock(&s->pend);
}

/* ---- use ------------------------------------------------------------------------------------- */

int lent_reach(struct session *s, const char *op, struct lent *l, int buffer)
{
    const struct cuda *cu = driver(NULL);
    struct cu_access access = {{CU_LOCATION_DEVICE, -1}, CU_ACCESS_READWRITE};
    int gpu = -1, can = 0;

    assert(l->bytes > 0);
    if (cu->ctx_device(&gpu) || gpu < 0 || gpu >= MOST_GPUS)
        return error_set(error_mine(), COMMD_E_INVALID, op, "%s: the stream is on no GPU", op);
    if (buffer == gpu && l->gpus >> gpu & 1)
        return 0;
    access.location.id = gpu;
    if (buffer == gpu && cu->peer_can(&can, gpu, s->gpu) == 0 && can &&
        cu->vmm_access(l->at, l->bytes, &access, 1) == 0) {
        l->gpus |= 1ull << gpu;
        return 0;
    }
    return error_set(
        error_mine(), COMMD_E_INVALID, op,
        "%s: the group began with this rank on GPU %d; now its buffers are on GPU %d and "
        "its stream on GPU %d, which does not reach the first: use a group of its own "
        "for each GPU, or set COMMD_DEVICE_PATH=host",
        op, s->gpu, buffer, gpu);
}
