/* test_fakecuda_processes.c - memory and flags of several real processes, one of which is killed
 * while its memory is in use elsewhere. */
#include "tests/lib/env.h"
#include "tests/fakecuda/fake_test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 10000, OFFSET = 4096, GRAIN = 2 << 20 };

struct shown { /* what a process tells of its memory */
    struct cu_ipc_mem handle;
    uint64_t offset;
    struct cu_uuid uuid;
    cu_ptr address;
};

static struct shown show(cu_ptr p)
{
    struct shown shown = {.address = p};
    cu_ptr base;

    OK(cu.mem_range(&base, NULL, p));
    OK(cu.ipc_get(&shown.handle, base));
    OK(cu.device_uuid(&shown.uuid, 0));
    shown.offset = p - base;
    return shown;
}

static void tell(int socket, const struct shown *shown)
{
    fake_test_send(socket, shown, sizeof *shown, -1);
}

static struct shown hear(int socket)
{
    struct shown shown;

    assert_int_equal(fake_test_receive(socket, &shown, sizeof shown), -1);
    return shown;
}

static cu_result open_shown(const struct shown *shown, cu_ptr *base)
{
    return cu.ipc_open(base, shown->handle, CU_IPC_LAZY_PEER_ACCESS);
}

/* ---- children -------------------------------------------------------------------------------- */

static int exporter(int socket) /* shows a vector, then waits to be killed */
{
    float *host = malloc(N * sizeof *host);
    struct shown shown;
    cu_ptr p;

    OK(cu.mem_alloc(&p, 1 << 20));
    for (unsigned i = 0; i < N; i++)
        host[i] = (float)(100 + i);
    OK(cu.copy(p + OFFSET, (cu_ptr)host, N * sizeof *host, NULL));
    OK(cu.ctx_synchronize());
    shown = show(p + OFFSET);
    tell(socket, &shown);
    pause();
    return 0;
}

static int changer(int socket) /* shows memory, frees it, and shows other memory at its address */
{
    struct shown shown;
    char go;
    cu_ptr p;

    for (unsigned i = 0; i < 2; i++) {
        OK(cu.mem_alloc(&p, 1));
        shown = show(p);
        tell(socket, &shown);
        fake_test_receive(socket, &go, 1);
        OK(cu.mem_free(p));
    }
    return 0;
}

static int piecewise(int socket) /* two pieces in a row of addresses, as descriptors */
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    struct cu_access access = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
    cu_mem mem;
    cu_ptr p;

    OK(cu.vmm_reserve(&p, 2 * GRAIN, 0, 0, 0));
    for (unsigned i = 0; i < 2; i++) {
        OK(cu.vmm_create(&mem, GRAIN, &prop, 0));
        OK(cu.vmm_map(p + i * GRAIN, GRAIN, 0, mem, 0));
        OK(cu.vmm_release(mem));
    }
    OK(cu.vmm_access(p, 2 * GRAIN, &access, 1));
    memset((void *)p, 1, GRAIN);
    memset((void *)(p + GRAIN), 2, GRAIN);
    for (unsigned i = 0; i < 2; i++) {
        int fd;

        OK(cu.vmm_retain(&mem, (void *)(p + i * GRAIN)));
        OK(cu.vmm_export(&fd, mem, CU_HANDLE_POSIX_FD, 0));
        OK(cu.vmm_release(mem));
        fake_test_send(socket, "", 1, fd);
        close(fd);
    }
    pause();
    return 0;
}

static int flagger(int socket) /* its stream says that the input is there, and waits for the end */
{
    _Atomic uint32_t *flags;
    struct shown shown;
    cu_stream s;
    cu_ptr p;
    char c;
    int fd = fake_test_receive(socket, &c, 1);

    flags = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    OK(cu.host_register((void *)flags, 4096, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    OK(cu.mem_alloc(&p, 1));
    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    shown = show(p);
    tell(socket, &shown);
    for (uint32_t i = 1; i <= 50; i++) {
        OK(cu.stream_write32(s, p, i * 3, 0));
        OK(cu.stream_write32(s, (cu_ptr)&flags[0], i, CU_WRITE_DEFAULT));
        OK(cu.stream_wait32(s, (cu_ptr)&flags[16], i, CU_WAIT_GEQ));
    }
    OK(cu.stream_synchronize(s));
    OK(cu.mem_free(p));
    return 0;
}

static int stranger(int socket) /* may not look into the exporter */
{
    struct shown shown;
    cu_ptr p;

    assert_int_equal(setresuid(65534, 65534, 65534), 0);
    shown = hear(socket);
    return open_shown(&shown, &p) == CU_E_MAP_FAILED ? 0 : 1;
}

static const struct {
    const char *name;
    int (*run)(int socket);
} children[] = {{"exporter", exporter},
                {"changer", changer},
                {"piecewise", piecewise},
                {"flagger", flagger},
                {"stranger", stranger}};

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_dead_processes_memory_stays_for_who_has_it(void **state)
{
    struct shown shown;
    cu_ptr base, again, own;
    float *host = malloc(N * sizeof *host);
    int socket, closed;
    pid_t pid = fake_test_spawn("exporter", &socket);

    shown = hear(socket);
    OK(open_shown(&shown, &base));
    OK(open_shown(&shown, &again));
    assert_int_equal(base, again);
    OK(cu.mem_alloc(&own, N * sizeof *host));
    kill(pid, SIGKILL);
    fake_test_end(pid, -SIGKILL);
    OK(open_shown(&shown, &again)); /* it is open already */
    OK(cu.copy(own, base + shown.offset, N * sizeof *host, NULL));
    OK(cu.copy((cu_ptr)host, own, N * sizeof *host, NULL));
    for (unsigned i = 0; i < N; i++)
        assert_true(host[i] == (float)(100 + i));
    for (closed = 0; !cu.ipc_close(base);)
        closed++;
    assert_int_equal(closed, 3);
    assert_int_equal(open_shown(&shown, &base), CU_E_INVALID_VALUE);
    OK(cu.mem_free(own));
    free(host);
    close(socket);
}

static void stale_and_forged_handles_open_nothing(void **state)
{
    struct shown first, second;
    cu_ptr p, q;
    int socket;
    pid_t pid = fake_test_spawn("changer", &socket);

    first = hear(socket);
    OK(open_shown(&first, &p));
    fake_test_send(socket, "", 1, -1);
    second = hear(socket);
    assert_int_equal(first.address, second.address);
    assert_memory_not_equal(&first.handle, &second.handle, sizeof first.handle);
    assert_int_equal(open_shown(&second, &q), CU_E_ALREADY_MAPPED);
    OK(cu.ipc_close(p));
    assert_int_equal(open_shown(&first, &p), CU_E_INVALID_VALUE);
    OK(open_shown(&second, &q));
    for (unsigned i = 0; i < sizeof second.handle; i += 5) {
        struct shown forged = second;

        forged.handle.reserved[i] ^= 1;
        assert_int_equal(open_shown(&forged, &p), CU_E_INVALID_VALUE);
    }
    assert_int_equal(cu.ipc_open(&p, second.handle, 0), CU_E_INVALID_VALUE);
    fake_test_send(socket, "", 1, -1);
    fake_test_end(pid, 0);
    OK(cu.ipc_close(q));
    close(socket);
}

static void own_memory_is_not_opened(void **state)
{
    struct shown shown;
    cu_ptr p, q;

    OK(cu.mem_alloc(&p, 1));
    shown = show(p);
    assert_int_equal(open_shown(&shown, &q), CU_E_INVALID_CONTEXT);
    env_set("FAKECUDA_NO_IPC", "1");
    assert_int_equal(cu.ipc_get(&shown.handle, p), CU_E_NOT_SUPPORTED);
    env_set("FAKECUDA_NO_IPC", NULL);
    OK(cu.mem_free(p));
}

static void strangers_open_nothing(void **state)
{
    struct shown shown;
    pid_t exporter_pid, stranger_pid;
    int exporter_socket, stranger_socket;

    if (geteuid())
        skip();
    exporter_pid = fake_test_spawn("exporter", &exporter_socket);
    stranger_pid = fake_test_spawn("stranger", &stranger_socket);
    shown = hear(exporter_socket);
    tell(stranger_socket, &shown);
    fake_test_end(stranger_pid, 0);
    kill(exporter_pid, SIGKILL);
    fake_test_end(exporter_pid, -SIGKILL);
    close(exporter_socket);
    close(stranger_socket);
}

static void two_boxes_share_no_memory(void **state)
{
    struct shown shown;
    struct cu_uuid uuid;
    cu_ptr p;
    pid_t pid;
    int socket;

    env_set("FAKECUDA_HOST", "another");
    pid = fake_test_spawn("exporter", &socket);
    env_set("FAKECUDA_HOST", NULL);
    shown = hear(socket);
    OK(cu.device_uuid(&uuid, 0));
    assert_memory_not_equal(&uuid, &shown.uuid, sizeof uuid);
    assert_int_equal(open_shown(&shown, &p), CU_E_INVALID_VALUE);
    kill(pid, SIGKILL);
    fake_test_end(pid, -SIGKILL);
    close(socket);
}

static void pieces_go_to_other_processes(void **state)
{
    struct cu_access access = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
    int socket, fd, file = memfd_create("file", MFD_CLOEXEC);
    pid_t pid = fake_test_spawn("piecewise", &socket);
    unsigned char *bytes;
    cu_mem mem;
    cu_ptr p;

    OK(cu.vmm_reserve(&p, 2 * GRAIN, 0, 0, 0));
    for (unsigned i = 0; i < 2; i++) {
        fd = fake_test_receive(socket, &(char){0}, 1);
        OK(cu.vmm_import(&mem, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD));
        close(fd);
        OK(cu.vmm_map(p + i * GRAIN, GRAIN, 0, mem, 0));
        OK(cu.vmm_release(mem));
    }
    kill(pid, SIGKILL);
    fake_test_end(pid, -SIGKILL);
    OK(cu.vmm_access(p, 2 * GRAIN, &access, 1));
    bytes = malloc(2 * GRAIN);
    OK(cu.ctx_synchronize());
    OK(cu.copy((cu_ptr)bytes, p, 2 * GRAIN, NULL));
    assert_int_equal(bytes[GRAIN - 1], 1);
    assert_int_equal(bytes[GRAIN], 2);
    assert_int_equal(ftruncate(file, GRAIN), 0);
    assert_int_equal(cu.vmm_import(&mem, (void *)(intptr_t)file, CU_HANDLE_POSIX_FD),
                     CU_E_INVALID_VALUE);
    assert_int_equal(cu.vmm_import(&mem, (void *)(intptr_t)-1, CU_HANDLE_POSIX_FD),
                     CU_E_INVALID_VALUE);
    OK(cu.vmm_unmap(p, 2 * GRAIN));
    OK(cu.vmm_unreserve(p, 2 * GRAIN));
    free(bytes);
    close(file);
    close(socket);
}

/* As client and commd-gpu do it: neither host waits. */
static void streams_of_two_processes_wait_for_each_other(void **state)
{
    int fd = memfd_create("flags", MFD_CLOEXEC), socket;
    _Atomic uint32_t *flags;
    struct shown shown;
    cu_ptr p, sums;
    cu_stream s;
    pid_t pid;

    assert_int_equal(ftruncate(fd, 4096), 0);
    flags = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    OK(cu.host_register((void *)flags, 4096, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    env_set("FAKECUDA_DELAY_US", "300");
    pid = fake_test_spawn("flagger", &socket);
    fake_test_send(socket, "", 1, fd);
    shown = hear(socket);
    OK(open_shown(&shown, &p));
    OK(cu.mem_alloc(&sums, 50 * sizeof(uint32_t)));
    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    for (uint32_t i = 1; i <= 50; i++) {
        OK(cu.stream_wait32(s, (cu_ptr)&flags[0], i, CU_WAIT_GEQ));
        OK(cu.copy(sums + (i - 1) * sizeof(uint32_t), p, sizeof(uint32_t), s));
        OK(cu.stream_write32(s, (cu_ptr)&flags[16], i, CU_WRITE_DEFAULT));
    }
    OK(cu.stream_synchronize(s));
    env_set("FAKECUDA_DELAY_US", NULL);
    for (uint32_t i = 1; i <= 50; i++)
        assert_int_equal(((uint32_t *)sums)[i - 1], 3 * i);
    fake_test_end(pid, 0);
    OK(cu.ipc_close(p));
    OK(cu.mem_free(sums));
    OK(cu.stream_free(s));
    OK(cu.host_unregister((void *)flags));
    munmap((void *)flags, 4096);
    close(fd);
    close(socket);
}

static void a_forked_child_has_no_driver(void **state)
{
    pid_t pid = fork();
    int n;

    if (!pid)
        _exit(cu.device_count(&n));
    fake_test_end(pid, CU_E_NOT_INITIALIZED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_processes_memory_stays_for_who_has_it),
        cmocka_unit_test(stale_and_forged_handles_open_nothing),
        cmocka_unit_test(own_memory_is_not_opened),
        cmocka_unit_test(strangers_open_nothing),
        cmocka_unit_test(two_boxes_share_no_memory),
        cmocka_unit_test(pieces_go_to_other_processes),
        cmocka_unit_test(streams_of_two_processes_wait_for_each_other),
        cmocka_unit_test(a_forked_child_has_no_driver),
    };

    fake_test_load();
    fake_test_begin(0);
    for (unsigned i = 0; argc == 4 && i < sizeof children / sizeof children[0]; i++)
        if (!strcmp(argv[2], children[i].name))
            return children[i].run(atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
