/* check_memory.c - memory of another process: by handles of legacy IPC and by descriptors; when its
 * owner is killed, has freed it, or lives among other process numbers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/gpu_check.h"
#include "tests/gpu/gpu_exporter.h"

enum { FIRST = 0x1234567, COPIES = 200 };

/* ---- the owner --------------------------------------------------------------------------- */

static struct cu_mem_prop prop_of(cu_device dev)
{
    return (struct cu_mem_prop){.type = CU_ALLOCATION_PINNED,
                                .handle_types = CU_HANDLE_POSIX_FD,
                                .location = {CU_LOCATION_DEVICE, dev}};
}

static size_t granularity(const struct cu_mem_prop *prop)
{
    size_t bytes = 0;

    MUST(cu.vmm_granularity(&bytes, prop, CU_GRANULARITY_MINIMUM));
    return bytes;
}

static cu_result map_at(cu_ptr p, size_t bytes, cu_mem mem, cu_device dev)
{
    struct cu_access access = {{CU_LOCATION_DEVICE, dev}, CU_ACCESS_READWRITE};
    cu_result r = cu.vmm_map(p, bytes, 0, mem, 0);

    return r ? r : cu.vmm_access(p, bytes, &access, 1);
}

/* @bytes is rounded up. */
static cu_ptr pieces_new(size_t *io_bytes, cu_mem *ret_mem, int *ret_fd)
{
    struct cu_mem_prop prop;
    cu_device dev;
    cu_ptr p;

    MUST(cu.ctx_device(&dev));
    prop = prop_of(dev);
    *io_bytes += granularity(&prop) - 1;
    *io_bytes -= *io_bytes % granularity(&prop);
    MUST(cu.vmm_create(ret_mem, *io_bytes, &prop, 0));
    if (ret_fd)
        MUST(cu.vmm_export(ret_fd, *ret_mem, CU_HANDLE_POSIX_FD, 0));
    MUST(cu.vmm_reserve(&p, *io_bytes, 0, 0, 0));
    MUST(map_at(p, *io_bytes, *ret_mem, dev));
    return p;
}

cu_ptr mapped_new(size_t bytes)
{
    cu_mem mem;

    return pieces_new(&bytes, &mem, NULL);
}

static void mark(cu_ptr p, size_t bytes)
{
    MUST(cu.stream_write32(NULL, p, FIRST, CU_WRITE_DEFAULT));
    MUST(cu.stream_write32(NULL, p + bytes - 4, FIRST + 1, CU_WRITE_DEFAULT));
    MUST(cu.ctx_synchronize());
}

bool is_marked(cu_ptr p, size_t bytes)
{
    uint32_t a = 0, b = 0;

    return !cu.copy((cu_ptr)(uintptr_t)&a, p, 4, NULL) &&
           !cu.copy((cu_ptr)(uintptr_t)&b, p + bytes - 4, 4, NULL) && !cu.ctx_synchronize() &&
           a == FIRST && b == FIRST + 1;
}

int child_exporter(int socket)
{
    struct export_order order;
    struct exported shown = {0};
    int fd = -1;
    cu_mem mem = 0;
    cu_ptr p;
    char c;

    if (!peer_receive(socket, &order, sizeof order, NULL))
        return CHECK_FAIL;
    shown.bytes = order.bytes;
    if (order.by_descriptor)
        p = pieces_new(&shown.bytes, &mem, &fd);
    else
        p = device_new(shown.bytes);
    mark(p, shown.bytes);
    if (!order.by_descriptor)
        shown.result = cu.ipc_get(&shown.handle, p);
    peer_send(socket, &shown, sizeof shown, fd);
    while (peer_receive(socket, &c, 1, NULL) && c == 'f') {
        shown.result = order.by_descriptor ? cu.vmm_unmap(p, shown.bytes) : cu.mem_free(p);
        if (order.by_descriptor)
            cu.vmm_release(mem);
        peer_send(socket, &shown, sizeof shown, -1);
    }
    return CHECK_PASS;
}

/* ---- who opens it ------------------------------------------------------------------------ */

bool export_begin(bool by_descriptor, size_t bytes, bool apart, struct peer *ret_peer,
                  struct exported *ret, int *ret_fd)
{
    struct export_order order = {.bytes = bytes, .by_descriptor = by_descriptor};

    if (!peer_new("exporter", NULL, apart, ret_peer))
        return false;
    peer_send(ret_peer->socket, &order, sizeof order, -1);
    *ret_fd = -1;
    if (!peer_receive(ret_peer->socket, ret, sizeof *ret, ret_fd))
        must(CU_E_UNKNOWN, "the process that owns the memory has ended");
    return true;
}

cu_result import_descriptor(int fd, size_t bytes, cu_ptr *ret_p)
{
    cu_device dev;
    cu_mem mem;
    cu_result r;

    MUST(cu.ctx_device(&dev));
    r = cu.vmm_import(&mem, (void *)(uintptr_t)fd, CU_HANDLE_POSIX_FD);
    if (r)
        return r;
    MUST(cu.vmm_reserve(ret_p, bytes, 0, 0, 0));
    MUST(map_at(*ret_p, bytes, mem, dev));
    return cu.vmm_release(mem); /* the mapping keeps it */
}

static void import_end(cu_ptr p, size_t bytes)
{
    MUST(cu.vmm_unmap(p, bytes));
    MUST(cu.vmm_unreserve(p, bytes));
}

/* Memory of another process, open here by its handle. 0, or the verdict. */
static int open_legacy(size_t bytes, struct peer *peer, struct exported *shown, cu_ptr *ret_p)
{
    int fd;

    export_begin(false, bytes, false, peer, shown, &fd);
    if (shown->result)
        return skip("no legacy IPC: %s", text_of(shown->result));
    MUST(cu.ipc_open(ret_p, shown->handle, CU_IPC_LAZY_PEER_ACCESS));
    return 0;
}

int check_ipc_killed(void)
{
    struct exported shown;
    struct peer peer;
    cu_ptr p;
    bool kept;
    int r = open_legacy(4 * MIB, &peer, &shown, &p);

    if (r)
        return r;
    if (!is_marked(p, shown.bytes))
        return fail("what the owner wrote is not there");
    peer_kill(&peer);
    kept = is_marked(p, shown.bytes);
    if (!context_works())
        return fail("the context is broken after the owner was killed and its memory read");
    MUST(cu.ipc_close(p));
    return pass("memory of a killed process: %s; the context works",
                kept ? "as it was" : "not readable, or other content");
}

/* Its owner is killed while copies to and from it are under way. */
int check_ipc_killed_busy(void)
{
    struct exported shown;
    struct peer peer;
    size_t bytes = check_fake ? MIB : 256 * (size_t)MIB;
    cu_ptr p, mine = device_new(bytes);
    cu_stream s = stream_new();
    int verdict = open_legacy(bytes, &peer, &shown, &p);
    cu_result r;

    if (verdict)
        return verdict;
    for (unsigned i = 0; i < COPIES; i++)
        MUST(cu.copy(i % 2 ? p : mine, i % 2 ? mine : p, bytes, s));
    peer_kill(&peer);
    r = cu.stream_synchronize(s);
    if (r || !context_works())
        return fail("broken: %s", text_of(r));
    MUST(cu.ipc_close(p));
    return pass("%d copies went on, the context works", (int)COPIES);
}

/* What is open here after its owner has freed it: is it of use to nobody until it is closed? */
int check_ipc_freed(void)
{
    size_t bytes = check_fake ? MIB : 1024 * (size_t)MIB, open_yet, freed, closed, total;
    struct exported shown;
    struct peer peer;
    cu_ptr p;
    bool kept;
    int r = open_legacy(bytes, &peer, &shown, &p);

    if (r)
        return r;
    MUST(cu.mem_info(&open_yet, &total));
    peer_send(peer.socket, "f", 1, -1);
    if (!peer_receive(peer.socket, &shown, sizeof shown, NULL) || shown.result)
        return fail("the owner could not free it");
    MUST(cu.mem_info(&freed, &total));
    kept = is_marked(p, shown.bytes);
    if (!context_works())
        return fail("the context is broken after the owner freed the memory and it was read");
    MUST(cu.ipc_close(p));
    MUST(cu.mem_info(&closed, &total));
    if (peer_end(&peer))
        return fail("the owner has failed");
    return pass("memory that its owner freed: %s; the context works; of size_mb=%zu are free again "
                "freed_by_owner_mb=%lld freed_by_closing_mb=%lld",
                kept ? "as it was" : "not readable, or other content", bytes / MIB,
                ((long long)freed - (long long)open_yet) / MIB,
                ((long long)closed - (long long)freed) / MIB);
}

int check_ipc_open(void)
{
    static const size_t sizes[] = {2, 64, 1024};
    double us[ARRAY_LEN(sizes)] = {0}, again = 0;

    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        struct exported shown;
        struct peer peer;
        cu_ptr p, q;
        double begin;
        int fd;

        export_begin(false, check_fake ? MIB : sizes[i] * MIB, false, &peer, &shown, &fd);
        if (shown.result)
            return skip("no legacy IPC: %s", text_of(shown.result));
        begin = now_us();
        MUST(cu.ipc_open(&p, shown.handle, CU_IPC_LAZY_PEER_ACCESS));
        us[i] = now_us() - begin;
        begin = now_us();
        MUST(cu.ipc_open(&q, shown.handle, CU_IPC_LAZY_PEER_ACCESS));
        again = now_us() - begin;
        if (p != q)
            return fail("opened twice, it is at two addresses");
        MUST(cu.ipc_close(q));
        if (!is_marked(p, shown.bytes))
            return fail("opened twice and closed once, it is not there any more");
        MUST(cu.ipc_close(p));
        peer_end(&peer);
    }
    return pass("open_2mb_us=%.0f open_64mb_us=%.0f open_1gb_us=%.0f open_again_us=%.1f", us[0],
                us[1], us[2], again);
}

/* ---- small allocations, and addresses that come again ---------------------------------------- */

enum { SMALL = 3, LARGE_BYTES = 4 * MIB };
static const size_t small_bytes[SMALL] = {146064, MIB, 226656};

struct shown_at {
    cu_result result;
    uint64_t at, bytes;
    struct cu_ipc_mem handle;
};

static void number(cu_ptr p, size_t bytes, uint32_t n)
{
    MUST(cu.stream_write32(NULL, p, n, CU_WRITE_DEFAULT));
    MUST(cu.stream_write32(NULL, p + bytes - 4, n, CU_WRITE_DEFAULT));
    MUST(cu.ctx_synchronize());
}

static bool numbered(cu_ptr p, size_t bytes, uint32_t n)
{
    uint32_t a = 0, b = 0;

    return !cu.copy((cu_ptr)(uintptr_t)&a, p, 4, NULL) &&
           !cu.copy((cu_ptr)(uintptr_t)&b, p + bytes - 4, 4, NULL) && !cu.ctx_synchronize() &&
           a == n && b == n;
}

static struct shown_at show(cu_ptr p, size_t bytes, uint32_t n)
{
    struct shown_at shown = {.at = p, .bytes = bytes};

    number(p, bytes, n);
    shown.result = cu.ipc_get(&shown.handle, p);
    return shown;
}

/* Shows some that the driver may have put into one block; then, for each word, frees one and shows
 * another. */
int child_small(int socket)
{
    struct shown_at shown[SMALL], again;
    uint32_t n = SMALL;
    cu_ptr p = 0;
    char c;

    for (unsigned i = 0; i < SMALL; i++)
        shown[i] = show(device_new(small_bytes[i]), small_bytes[i], i);
    peer_send(socket, shown, sizeof shown, -1);
    while (peer_receive(socket, &c, 1, NULL)) {
        if (p)
            MUST(cu.mem_free(p));
        p = device_new(LARGE_BYTES);
        again = show(p, LARGE_BYTES, n++);
        peer_send(socket, &again, sizeof again, -1);
    }
    return CHECK_PASS;
}

/* 0, or the verdict. */
static int small_begin(struct peer *ret_peer, struct shown_at shown[SMALL])
{
    peer_new("small", NULL, false, ret_peer);
    if (!peer_receive(ret_peer->socket, shown, SMALL * sizeof *shown, NULL))
        return fail("the process that owns the memory has ended");
    return shown[0].result ? skip("no legacy IPC: %s", text_of(shown[0].result)) : 0;
}

/* The driver puts small allocations into one block, and shares all of it: each handle has to open
 * its own allocation all the same. libcommd goes by what the driver says of the range. */
int check_ipc_small(void)
{
    struct shown_at shown[SMALL];
    cu_ptr p[SMALL], base;
    struct peer peer;
    size_t size;
    int r = small_begin(&peer, shown);

    if (r)
        return r;
    for (unsigned i = 0; i < SMALL; i++)
        MUST(cu.ipc_open(&p[i], shown[i].handle, CU_IPC_LAZY_PEER_ACCESS));
    for (unsigned i = 0; i < SMALL; i++) {
        if (!numbered(p[i], shown[i].bytes, i))
            return fail("the handle of allocation %u opens other memory", i);
        MUST(cu.mem_range(&base, &size, p[i]));
        if (base > p[i] || base + size < p[i] + shown[i].bytes)
            return fail("allocation %u has %zu bytes here, %lld of them before it", i, size,
                        (long long)(p[i] - base));
    }
    MUST(cu.ipc_close(p[0]));
    if (!numbered(p[1], shown[1].bytes, 1) || !context_works())
        return fail("when one was closed another one was not there any more");
    MUST(cu.ipc_close(p[1]));
    MUST(cu.ipc_close(p[2]));
    if (peer_end(&peer))
        return fail("the owner has failed");
    return pass("each of %d small allocations is opened by its handle; offset=%lld", (int)SMALL,
                (long long)(shown[1].at - shown[0].at));
}

/* The owner frees memory that is open here, and gets other memory at its address. */
int check_ipc_again(void)
{
    struct shown_at small[SMALL], first, second;
    struct peer peer;
    cu_result early;
    cu_ptr p, q;
    int r = small_begin(&peer, small);

    if (r)
        return r;
    peer_send(peer.socket, "a", 1, -1);
    peer_receive(peer.socket, &first, sizeof first, NULL);
    MUST(cu.ipc_open(&p, first.handle, CU_IPC_LAZY_PEER_ACCESS));
    peer_send(peer.socket, "a", 1, -1);
    if (!peer_receive(peer.socket, &second, sizeof second, NULL) || second.result)
        return fail("the owner could not free it and get another one");
    if (second.at != first.at)
        return skip("the driver gives other addresses");
    early = cu.ipc_open(&q, second.handle, CU_IPC_LAZY_PEER_ACCESS);
    if (!early && !numbered(q, second.bytes, SMALL + 1))
        return fail("opened beside the old one, it is other memory");
    if (!early)
        MUST(cu.ipc_close(q));
    MUST(cu.ipc_close(p));
    MUST(cu.ipc_open(&q, second.handle, CU_IPC_LAZY_PEER_ACCESS));
    if (!numbered(q, second.bytes, SMALL + 1) || !context_works())
        return fail("after the old one was closed it is other memory");
    MUST(cu.ipc_close(q));
    if (peer_end(&peer))
        return fail("the owner has failed");
    return pass("beside the old one it opens with: %s; behind it, well", text_of(early));
}

/* As from a container: what legacy IPC does there is told, not judged. */
int check_ipc_apart(void)
{
    struct exported shown;
    struct peer peer;
    cu_result r;
    cu_ptr p;
    int fd;

    if (!export_begin(false, 4 * MIB, true, &peer, &shown, &fd))
        return skip("no namespace of process numbers can be made here");
    if (shown.result)
        return skip("no legacy IPC: %s", text_of(shown.result));
    r = cu.ipc_open(&p, shown.handle, CU_IPC_LAZY_PEER_ACCESS);
    if (!r && !is_marked(p, shown.bytes))
        return fail("it opens, and is other memory");
    if (!context_works())
        return fail("the context is broken: %s", text_of(r));
    peer_end(&peer);
    return pass("from another namespace of process numbers: %s", r ? text_of(r) : "opens");
}

static int descriptor(bool apart)
{
    struct exported shown;
    struct peer peer;
    size_t before, after, total;
    double begin, us;
    cu_ptr p;
    int fd;

    if (!export_begin(true, 4 * MIB, apart, &peer, &shown, &fd))
        return skip("no namespace of process numbers can be made here");
    if (fd < 0)
        return fail("no descriptor came");
    begin = now_us();
    MUST(import_descriptor(fd, shown.bytes, &p));
    us = now_us() - begin;
    close(fd);
    if (!is_marked(p, shown.bytes))
        return fail("what the owner wrote is not there");
    peer_kill(&peer);
    if (!is_marked(p, shown.bytes) || !context_works())
        return fail("after the owner was killed the memory is not as it was");
    MUST(cu.mem_info(&before, &total));
    import_end(p, shown.bytes);
    MUST(cu.mem_info(&after, &total));
    return pass("import_us=%.0f, stays when its owner is killed, freed_mb=%zu by unmapping it", us,
                (after - before) / MIB);
}

int check_descriptor(void)
{
    return descriptor(false);
}

int check_descriptor_apart(void)
{
    return descriptor(true);
}

/* Pieces side by side, as PyTorch's expandable segments: what the driver says of an address in one
 * of them is how libcommd finds the pieces. */
/* What the driver says of an address. */
struct told {
    cu_ptr range, mapping;
    size_t range_bytes, mapping_bytes;
    uint64_t buffer, block, handles;
    int ipc; /* the driver may write one byte */
};

static struct told told_of(cu_ptr p)
{
    int ask[] = {CU_POINTER_RANGE_START,   CU_POINTER_RANGE_SIZE,     CU_POINTER_BUFFER_ID,
                 CU_POINTER_MAPPING_BASE,  CU_POINTER_MAPPING_SIZE,   CU_POINTER_BLOCK_ID,
                 CU_POINTER_IS_LEGACY_IPC, CU_POINTER_ALLOWED_HANDLES};
    struct told t = {0};
    void *answers[] = {&t.range,         &t.range_bytes, &t.buffer, &t.mapping,
                       &t.mapping_bytes, &t.block,       &t.ipc,    &t.handles};

    MUST(cu.pointer_attributes(ARRAY_LEN(ask), ask, answers, p));
    return t;
}

static void say(const char *what, cu_ptr at, struct told t)
{
    printf("%s: range %+lld, %zu; mapping %+lld, %zu; buffer %llu, block %llu; ipc %d, handles "
           "%#llx\n",
           what, (long long)(t.range - at), t.range_bytes, (long long)(t.mapping - at),
           t.mapping_bytes, (unsigned long long)t.buffer, (unsigned long long)t.block, t.ipc,
           (unsigned long long)t.handles);
}

static bool is_piece(struct told t, cu_ptr at, size_t bytes)
{
    return t.mapping == at && t.mapping_bytes == bytes && !t.ipc &&
           (t.handles & CU_HANDLE_POSIX_FD);
}

static bool can_export(cu_ptr p)
{
    cu_mem mem;
    int fd = -1;
    bool ok = !cu.vmm_retain(&mem, (void *)(uintptr_t)p);

    ok = ok && !cu.vmm_export(&fd, mem, CU_HANDLE_POSIX_FD, 0);
    if (fd >= 0)
        close(fd);
    return ok && !cu.vmm_release(mem);
}

static void map_new(cu_ptr at, size_t bytes, const struct cu_mem_prop *prop, cu_device dev)
{
    cu_mem mem;

    MUST(cu.vmm_create(&mem, bytes, prop, 0));
    MUST(map_at(at, bytes, mem, dev));
    MUST(cu.vmm_release(mem));
}

/* Memory that is mapped piece by piece, side by side: is a piece known by its mapping, and other
 * memory in its place by another block? */
int check_range(void)
{
    enum { PIECES = 3 };
    struct told t[PIECES], other, plain, small;
    struct cu_mem_prop prop;
    cu_ptr base, p, q;
    cu_device dev;
    size_t bytes;

    MUST(cu.ctx_device(&dev));
    prop = prop_of(dev);
    bytes = granularity(&prop);
    MUST(cu.vmm_reserve(&base, 2 * PIECES * bytes, 0, 0, 0));
    for (unsigned i = 0; i < PIECES; i++)
        map_new(base + i * bytes, bytes, &prop, dev);
    for (unsigned i = 0; i < PIECES; i++) {
        cu_ptr here = base + i * bytes;

        t[i] = told_of(here + 100);
        say("piece", here, t[i]);
        if (!is_piece(t[i], here, bytes))
            return fail("piece %u: its mapping begins %lld bytes off, is %zu of %zu long, legacy "
                        "IPC %d, handles %#llx",
                        i, (long long)(t[i].mapping - here), t[i].mapping_bytes, bytes, t[i].ipc,
                        (unsigned long long)t[i].handles);
        if (!can_export(here))
            return fail("piece %u cannot be exported", i);
    }
    MUST(cu.vmm_unmap(base + bytes, bytes));
    map_new(base + bytes, bytes, &prop, dev);
    other = told_of(base + bytes + 100);
    say("another in the place of the second", base + bytes, other);
    MUST(cu.mem_alloc(&p, 4 * MIB));
    plain = told_of(p + 100);
    say("cuMemAlloc", p, plain);
    MUST(cu.mem_alloc(&q, 1000));
    small = told_of(q + 100);
    say("cuMemAlloc of 1000", q, small);
    if (t[0].block == t[1].block || t[1].block == t[2].block)
        return fail("pieces share a block's id");
    if (other.block == t[1].block)
        return fail("other memory in the same place has the same block's id");
    if (plain.range != p || plain.range_bytes != 4 * MIB || !plain.ipc || !plain.buffer)
        return fail("memory of cuMemAlloc is no range of its own");
    return pass(
        "a piece is known by its mapping, which its range %s; other memory in its place has "
        "another block's id, and %s BUFFER_ID",
        t[1].range_bytes == bytes ? "is, too" : "is longer than",
        other.buffer == t[1].buffer ? "the same" : "another");
}
