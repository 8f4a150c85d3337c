/* session_memory.c - memory that commd-gpu has mapped. This process tells of it once, and finds it
 * again by what the driver says of an address.
 *
 * The driver knows memory by pieces: an allocation of cudaMalloc() is one; a segment of PyTorch's
 * expandable segments is many, mapped side by side in one range of addresses, and any of them may
 * be unmapped and another one mapped in its place. Then CU_POINTER_BLOCK_ID of these addresses
 * changes, so all pieces of a buffer are looked at in each operation. An entry that overlaps a
 * changed piece is forgotten.
 *
 * Two buffers may share a piece, and a segment grows. Then one entry is made for all of their
 * pieces together, and the entries that are parts of it are forgotten: so each buffer needs one
 * entry.
 *
 * commd-gpu must not be told to forget what a pending operation names: until that has ended, the
 * entry is kept among those that leave.
 *
 * The driver opens no handle of memory at addresses where commd-gpu still has other memory of this
 * process open (CUDA_ERROR_ALREADY_MAPPED). So memory that was freed there is forgotten first. If
 * an operation still names it, or commd-gpu has not seen the end of that operation yet, the new
 * buffer counts as one that cannot be exported, in this operation.
 *
 * Memory that was freed, and whose addresses no operation names any more, stays allocated as long
 * as commd-gpu has it open: as much as the caller's allocator gives back. libcommd is not told of
 * that, so now and then it looks at an entry.
 *
 * Memory that could not be mapped is tried again, less and less often: the memory that was in the
 * way may be gone. It may also be memory of another session of this process, which never ends. */
#include "client/lib/device/session.h"

enum { CLOSE_NAPS = 20, CLOSE_NAP_US = 500 };
enum { LOOK_EVERY = 16 }; /* buffers, between looks for memory that was freed: an entry each */
/* Operations until memory that could not be mapped is tried again: first, and at most. */
enum { AGAIN_SOON = 2, AGAIN_LATE = 64, AGAIN_MOST = 1 << 20 };

/* As the driver says. No holes: it is compared by memcmp(). */
struct piece {
    cu_ptr base;
    size_t bytes;
    uint64_t id; /* of this memory, among all that were ever at these addresses */
};

/* Pieces that lie side by side, as commd-gpu was told of them. */
struct exported {
    struct exported *next;
    uint32_t id;    /* 0: commd-gpu could not map it */
    unsigned rests; /* with id 0: operations from the last attempt to the next */
    uint64_t again; /* the operation that tries again */
    cu_ptr base;
    size_t bytes;
    uint64_t used; /* operations before this one may name it */
    unsigned n;
    struct piece piece[];
};

/* What the driver says of a buffer. */
struct walk {
    bool alone; /* no other process can have it */
    bool ipc;
    int gpu;
    unsigned n;
    struct piece piece[SESSION_MAX_CHUNKS];
};

struct range {
    struct piece piece;
    uint64_t handles;
    int ipc, gpu;
};

/* ---- what the driver says -------------------------------------------------------------------- */

static int ask_range(const char *op, cu_ptr p, struct range *ret)
{
    int ask[] = {CU_POINTER_RANGE_START,   CU_POINTER_RANGE_SIZE,      CU_POINTER_BUFFER_ID,
                 CU_POINTER_MAPPING_BASE,  CU_POINTER_MAPPING_SIZE,    CU_POINTER_BLOCK_ID,
                 CU_POINTER_IS_LEGACY_IPC, CU_POINTER_ALLOWED_HANDLES, CU_POINTER_DEVICE_ORDINAL};
    struct piece mapping = {0};
    void *answers[] = {&ret->piece.base, &ret->piece.bytes, &ret->piece.id,
                       &mapping.base,    &mapping.bytes,    &mapping.id,
                       &ret->ipc,        &ret->handles,     &ret->gpu};
    cu_result r;

    *ret = (struct range){.gpu = -1};
    assert(p);
    r = driver(NULL)->pointer_attributes(ARRAY_LEN(ask), ask, answers, p);
    if (r)
        return driver_error(op, "cuPointerGetAttributes", r);
    if (!ret->piece.bytes)
        return error_set(error_mine(), COMMD_E_INVALID, op, "%s: %#llx is no memory of a GPU", op,
                         (unsigned long long)p);
    if (!ret->ipc && mapping.bytes) /* the range is all that was reserved */
        ret->piece = mapping;
    return 0;
}

static int walk_pieces(const char *op, cu_ptr p, size_t bytes, struct walk *w)
{
    cu_ptr end = p + bytes;
    struct range at;
    int r;

    assert(bytes > 0);
    assert(end > p);
    w->alone = false;
    for (w->n = 0; p < end; p = at.piece.base + at.piece.bytes) {
        r = ask_range(op, p, &at);
        if (r)
            return r;
        if (!w->n) {
            w->ipc = at.ipc;
            w->gpu = at.gpu;
        } else if (w->ipc) {
            return error_set(error_mine(), COMMD_E_INVALID, op,
                             "%s: a buffer goes beyond its allocation", op);
        }
        w->alone = w->n == SESSION_MAX_CHUNKS || at.gpu != w->gpu ||
                   (!w->ipc && !(at.handles & CU_HANDLE_POSIX_FD));
        if (w->alone)
            return 0;
        w->piece[w->n++] = at.piece;
    }
    return 0;
}

static cu_ptr walk_end(const struct walk *w)
{
    assert(w->n > 0);
    assert(w->n <= SESSION_MAX_CHUNKS);
    return w->piece[w->n - 1].base + w->piece[w->n - 1].bytes;
}

static bool overlaps(const struct exported *m, const struct walk *w)
{
    assert(m->bytes > 0);
    assert(w->n > 0);
    return m->base < walk_end(w) && w->piece[0].base < m->base + m->bytes;
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static bool pending_before(struct session *s, uint64_t n)
{
    bool pending = false;

    pthread_mutex_lock(&s->pend);
    for (unsigned i = 0; i < SESSION_SLOTS && !pending; i++)
        pending = s->slots[i] && s->slots[i]->n < n && !session_ended(s->slots[i]);
    pthread_mutex_unlock(&s->pend);
    return pending;
}

/* Is an operation pending, or being made, that may name it? */
static bool is_named(struct session *s, const struct exported *m)
{
    assert_held(&s->calls);
    return m->used > s->count || pending_before(s, m->used);
}

static void forget_unnamed(struct session *s)
{
    assert_held(&s->calls);
    for (struct exported **p = &s->leaving, *m; (m = *p);) {
        struct session_msg msg = {.type = SESSION_FORGET, .id = m->id};

        if (is_named(s, m)) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        if (m->id)
            session_tell(s, &msg);
        free(m);
    }
}

static void forget(struct session *s, struct exported **p)
{
    struct exported *m = *p;

    assert(m);
    *p = m->next;
    m->next = s->leaving;
    s->leaving = m;
}

void memory_forget_all(struct session *s)
{
    assert(atomic_load(&s->lost));
    while (s->memory)
        forget(s, &s->memory);
    while (s->leaving) {
        struct exported *m = s->leaving;

        s->leaving = m->next;
        free(m);
    }
}

/* ---- telling --------------------------------------------------------------------------------- */

/* Whatever code the driver gives: containers and sandboxes refuse an export in ways of their own. A
 * GPU that has failed is found by the copies that are made in place of the export. */
static int cannot_export(const char *op, const char *call, cu_result r)
{
    assert(r != CU_SUCCESS);
    driver_error(op, call, r);
    return error_mine()->code = COMMD_E_INVALID;
}

static int export_pieces(const char *op, const struct walk *w, struct session_msg *m, int *fds)
{
    const struct cuda *cu = driver(NULL);

    assert(w->n <= SESSION_MAX_CHUNKS);
    assert(m->memory.chunks == 0);
    for (; m->memory.chunks < w->n; m->memory.chunks++) {
        const struct piece *piece = &w->piece[m->memory.chunks];
        cu_mem mem;
        cu_result r = cu->vmm_retain(&mem, (void *)(uintptr_t)piece->base);

        if (!r) {
            r = cu->vmm_export(&fds[m->memory.chunks], mem, CU_HANDLE_POSIX_FD, 0);
            cu->vmm_release(mem);
        }
        if (r)
            return cannot_export(op, "cuMemExportToShareableHandle", r);
        m->memory.chunk_bytes[m->memory.chunks] = piece->bytes;
    }
    return 0;
}

static int tell_of(struct session *s, const char *op, const struct walk *w, uint32_t id)
{
    struct session_msg m = {.type = SESSION_MEMORY, .id = id};
    int fds[SESSION_MAX_CHUNKS], r;
    cu_result e;

    assert_held(&s->calls);
    assert(id);
    assert(!w->alone);
    m.memory.uuid = s->uuid;
    m.memory.bytes = walk_end(w) - w->piece[0].base;
    m.memory.kind = w->ipc ? SESSION_IPC : SESSION_VMM;
    if (w->ipc) {
        e = driver(NULL)->ipc_get(&m.memory.ipc, w->piece[0].base);
        r = e ? cannot_export(op, "cuIpcGetMemHandle", e) : 0;
    } else {
        r = export_pieces(op, w, &m, fds);
    }
    if (!r)
        r = session_ask(s, &m, sizeof m, fds, m.memory.chunks);
    for (unsigned i = 0; i < m.memory.chunks; i++)
        close(fds[i]);
    return r;
}

/* Is memory at the same addresses open at commd-gpu that must not be forgotten yet? */
static bool is_covered(const struct session *s, const struct walk *w)
{
    assert(w->n > 0);
    for (const struct exported *m = s->leaving; m; m = m->next)
        if (m->id && overlaps(m, w))
            return true;
    return false;
}

/* *ret->id 0: commd-gpu cannot map the buffer. @rested: operations since the last attempt, 0: this
 * is the first. Where commd-gpu has not closed older memory yet (COMMD_E_TIMEOUT) it does so at
 * once, unless an operation is pending: so the attempt is repeated. */
static int memory_export(struct session *s, const char *op, const struct walk *w, unsigned rested,
                         struct exported **ret)
{
    struct exported *m = calloc(1, sizeof *m + w->n * sizeof *w->piece);
    int r;

    assert_held(&s->calls);
    assert(w->n > 0 && !w->alone);
    if (!m)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory", op);
    m->base = w->piece[0].base;
    m->bytes = walk_end(w) - m->base;
    m->n = w->n;
    memcpy(m->piece, w->piece, w->n * sizeof *w->piece);
    m->id = ++s->next_id;
    r = tell_of(s, op, w, m->id);
    for (unsigned naps = 0;
         r == COMMD_E_TIMEOUT && !rested && naps < CLOSE_NAPS && !pending_before(s, UINT64_MAX);
         naps++) {
        usleep(CLOSE_NAP_US);
        r = tell_of(s, op, w, m->id);
    }
    if (r == COMMD_E_INVALID || r == COMMD_E_TIMEOUT) {
        m->id = 0;
        m->rests = rested                 ? MIN(2 * rested, (unsigned)AGAIN_MOST)
                   : r == COMMD_E_TIMEOUT ? AGAIN_SOON
                                          : AGAIN_LATE;
        m->again = s->count + m->rests;
    } else if (r) {
        free(m);
        return r == COMMD_E_QUOTA ? MEMORY_ALONE : r;
    }
    m->next = s->memory;
    s->memory = m;
    *ret = m;
    return 0;
}

/* ---- finding --------------------------------------------------------------------------------- */

static bool holds(const struct exported *m, const struct walk *w)
{
    unsigned i = 0;

    assert(m->n > 0 && w->n > 0);
    while (i < m->n && m->piece[i].base != w->piece[0].base)
        i++;
    return i + w->n <= m->n && !memcmp(&m->piece[i], w->piece, w->n * sizeof *w->piece);
}

/* Does the driver still have the same pieces there? */
static bool is_there(const char *op, const struct exported *m)
{
    struct walk now;

    assert(m->n > 0 && m->n <= SESSION_MAX_CHUNKS);
    return walk_pieces(op, m->base, m->bytes, &now) == 0 && !now.alone && now.n == m->n &&
           !memcmp(now.piece, m->piece, m->n * sizeof *m->piece);
}

static void look_for_freed(struct session *s, const char *op)
{
    struct exported **at = &s->memory;

    assert_held(&s->calls);
    if (++s->looks % LOOK_EVERY)
        return;
    for (unsigned i = 0; *at && i < s->looked; i++)
        at = &(*at)->next;
    if (!*at)
        s->looked = 0;
    else if (is_there(op, *at))
        s->looked++;
    else
        forget(s, at);
}

/* NULL: commd-gpu has not been told of the buffer. Entries that share a piece with it and have
 * changed are forgotten then. */
static struct exported *exported_find(struct session *s, const char *op, const struct walk *w)
{
    assert_held(&s->calls);
    for (struct exported *m = s->memory; m; m = m->next)
        if (holds(m, w))
            return m;
    for (struct exported **at = &s->memory, *m; (m = *at);) {
        if (!overlaps(m, w) || is_there(op, m)) {
            at = &m->next;
            continue;
        }
        if (m->n == 1) /* nothing of it is left that the operation being made could name */
            m->used = MIN(m->used, s->count);
        forget(s, at);
    }
    return NULL;
}

/* Makes @w the buffer together with the entries that share a piece with it, if they fit. */
static void widen(struct session *s, const char *op, struct walk *w)
{
    cu_ptr from = w->piece[0].base, to = walk_end(w);
    struct walk more;

    assert(to > from);
    for (struct exported *m = s->memory; m; m = m->next)
        if (m->id && overlaps(m, w)) {
            from = MIN(from, m->base);
            to = MAX(to, m->base + m->bytes);
        }
    if ((from < w->piece[0].base || to > walk_end(w)) &&
        walk_pieces(op, from, to - from, &more) == 0 && !more.alone)
        *w = more;
}

static int memory_add(struct session *s, const char *op, struct walk *w, unsigned rested,
                      struct exported **ret)
{
    int r;

    assert_held(&s->calls);
    widen(s, op, w);
    forget_unnamed(s);
    if (w->ipc && is_covered(s, w))
        return MEMORY_ALONE;
    r = memory_export(s, op, w, rested, ret);
    if (r)
        return r;
    for (struct exported **at = &(*ret)->next, *m; (m = *at);) /* what is a part of it now */
        if (m->base >= (*ret)->base && m->base + m->bytes <= (*ret)->base + (*ret)->bytes)
            forget(s, at);
        else
            at = &m->next;
    return 0;
}

int memory_place(struct session *s, const char *op, cu_ptr p, size_t bytes,
                 struct session_place *ret_place)
{
    struct exported *m;
    struct walk w;
    int r;

    assert_held(&s->calls);
    *ret_place = (struct session_place){0};
    if (!bytes)
        return 0;
    look_for_freed(s, op);
    forget_unnamed(s);
    r = walk_pieces(op, p, bytes, &w);
    if (r || w.alone || w.gpu != s->gpu)
        return r ? r : w.gpu == s->gpu ? MEMORY_ALONE : MEMORY_ELSEWHERE;
    m = exported_find(s, op, &w);
    if (!m || (!m->id && m->again <= s->count)) {
        r = memory_add(s, op, &w, m ? m->rests : 0, &m);
        if (r)
            return r;
    }
    if (!m->id)
        return MEMORY_ALONE;
    assert(p >= m->base && p + bytes <= m->base + m->bytes);
    m->used = s->count + 1;
    ret_place->memory = m->id;
    ret_place->offset = p - m->base;
    return 0;
}

int memory_share(struct session *s, const char *op, const struct side_place *p)
{
    struct session_place unused;
    int r = 0;

    assert(p->esize > 0 || !p->n);
    if (!p->blocks)
        return memory_place(s, op, (cu_ptr)(uintptr_t)p->base, p->bytes, &unused);
    for (unsigned k = 0; !r && k < p->n; k++)
        r = memory_place(s, op, (cu_ptr)(uintptr_t)p->blocks[k], side_block_bytes(p, k), &unused);
    return r;
}
