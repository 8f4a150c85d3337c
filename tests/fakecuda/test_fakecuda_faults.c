/* test_fakecuda_faults.c - what breaks a device, and what a test can make fail. Each test is a
 * process of its own: a broken device stays broken. */
#include "tests/lib/env.h"
#include "tests/fakecuda/fake_test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4096 };

static void *registered(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    OK(cu.host_register(p, bytes, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    return p;
}

static void store(void **params) /* 7 at an address */
{
    *(uint32_t *)*(cu_ptr *)params[0] = 7;
}

static const struct fakecuda_kernel kernels[] = {
    {.name = "store", .fn = store, .nparams = 1, .sizes = {sizeof(cu_ptr)}}, {.name = NULL}};

static cu_result launch(cu_ptr p)
{
    void (*tell)(const struct fakecuda_kernel *) = fake_test_symbol("fakecuda_register_kernels");
    static cu_function f;
    cu_module module;
    void *params[] = {&p};

    if (!f) {
        tell(kernels);
        OK(cu.module_load(&module, "image"));
        OK(cu.module_function(&f, module, "store"));
    }
    return cu.launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
}

static int done(void *arg)
{
    return cu.stream_query(arg) != CU_E_NOT_READY;
}

static void broken(void) /* all that comes later fails */
{
    size_t bytes, total;
    cu_event e;
    cu_ptr p;

    assert_int_equal(cu.ctx_synchronize(), CU_E_ILLEGAL_ADDRESS);
    assert_int_equal(cu.stream_query(NULL), CU_E_ILLEGAL_ADDRESS);
    assert_int_equal(cu.mem_alloc(&p, 1), CU_E_ILLEGAL_ADDRESS);
    assert_int_equal(cu.event_new(&e, 0), CU_E_ILLEGAL_ADDRESS);
    assert_int_equal(cu.mem_info(&bytes, &total), CU_E_ILLEGAL_ADDRESS);
}

/* ---- children -------------------------------------------------------------------------------- */

static void freed_memory_breaks_a_copy(void)
{
    _Atomic uint32_t *flag = registered(BYTES);
    static _Atomic int ran;
    cu_ptr p;

    OK(cu.mem_alloc(&p, BYTES));
    env_set("FAKECUDA_SYNC_FREE", "0");
    OK(cu.stream_wait32(NULL, (cu_ptr)flag, 1, CU_WAIT_GEQ));
    OK(cu.copy(p, p + 1024, 1024, NULL));
    OK(cu.host_func(NULL, (cu_host_fn)abort, (void *)&ran)); /* does not run any more */
    OK(cu.mem_free(p));
    assert_int_equal(cu.copy(p, p + 1024, 1024, NULL), CU_E_INVALID_VALUE);
    atomic_store(flag, 1);
    broken();
}

static void unregistered_memory_breaks_a_wait(void)
{
    _Atomic uint32_t *flag = registered(BYTES);

    OK(cu.stream_wait32(NULL, (cu_ptr)flag, 1, CU_WAIT_GEQ));
    OK(cu.host_unregister((void *)flag));
    broken();
}

static void a_kernel_that_touches_nothing_breaks(void)
{
    OK(launch(4096));
    broken();
}

static void pieces_without_access_break_a_copy(void)
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, 0}};
    cu_mem mem;
    cu_ptr p;

    OK(cu.vmm_reserve(&p, 2 << 20, 0, 0, 0));
    OK(cu.vmm_create(&mem, 2 << 20, &prop, 0));
    OK(cu.vmm_map(p, 2 << 20, 0, mem, 0));
    OK(cu.copy(p, p + BYTES, 4, NULL));
    broken();
}

/* Device 0 touches memory of device 1. @pool: it is not of cuMemAlloc(). */
static void another_devices_memory(bool copy, bool pool, bool peers, bool may)
{
    cu_result (*enable)(cu_context, unsigned) = fake_test_symbol("cuCtxEnablePeerAccess");
    cu_result (*from_pool)(cu_ptr *, size_t) = fake_test_symbol("fakecuda_alloc_unshareable");
    cu_context second;
    uint32_t *host = registered(BYTES);
    cu_ptr p;

    OK(cu.primary_retain(&second, 1));
    OK(cu.ctx_push(second));
    OK(pool ? from_pool(&p, BYTES) : cu.mem_alloc(&p, BYTES));
    OK(cu.ctx_pop(NULL));
    if (peers)
        OK(enable(second, 0));
    OK(copy ? cu.copy(p, (cu_ptr)host, 4, NULL) : launch(p));
    if (may)
        OK(cu.ctx_synchronize());
    else
        broken();
    OK(cu.ctx_push(second)); /* this device goes on */
    OK(cu.ctx_synchronize());
    OK(cu.ctx_pop(NULL));
}

static void another_devices_pool_breaks_a_copy(void)
{
    another_devices_memory(true, true, false, false);
}

static void another_device_breaks_a_kernel(void)
{
    another_devices_memory(false, false, false, false);
}

static void copies_go_between_devices(void)
{
    another_devices_memory(true, false, false, true);
}

static void peers_reach_each_other(void)
{
    another_devices_memory(false, false, true, true);
    assert_int_equal(cu.ctx_pop(NULL), CU_SUCCESS);
}

static void launches_break_after_two(void)
{
    cu_ptr p;

    OK(cu.mem_alloc(&p, BYTES));
    env_set("FAKECUDA_STICKY_AFTER", "2");
    OK(launch(p));
    OK(launch(p));
    OK(cu.ctx_synchronize());
    OK(launch(p));
    broken();
}

static void a_launch_hangs_after_one(void)
{
    void (*stop)(cu_device, cu_result) = fake_test_symbol("fakecuda_break");
    cu_ptr p;

    OK(cu.mem_alloc(&p, BYTES));
    env_set("FAKECUDA_HANG_AFTER", "1");
    OK(launch(p));
    OK(cu.ctx_synchronize());
    OK(launch(p));
    assert_false(fake_test_within(100, done, NULL));
    stop(0, CU_E_ILLEGAL_ADDRESS);
    broken();
}

static void an_event_is_never_reached(void)
{
    cu_event e;

    OK(cu.event_new(&e, CU_EVENT_DISABLE_TIMING));
    env_set("FAKECUDA_EVENT_NEVER", "1");
    OK(cu.event_record(e, NULL));
    assert_false(fake_test_within(100, done, NULL));
    assert_int_equal(cu.event_query(e), CU_E_NOT_READY);
}

static void calls_fail_when_asked_for(void)
{
    uint64_t (*calls)(const char *) = fake_test_symbol("fakecuda_calls");
    uint64_t before = calls("cuMemAlloc");
    cu_ptr p, q;

    env_set("FAKECUDA_FAIL", "cuMemAlloc:2:2,cuMemFree:0:801");
    OK(cu.mem_alloc(&p, BYTES));
    assert_int_equal(cu.mem_alloc(&q, BYTES), CU_E_OUT_OF_MEMORY);
    OK(cu.mem_alloc(&q, BYTES));
    assert_int_equal(calls("cuMemAlloc") - before, 3);
    assert_int_equal(cu.mem_free(p), CU_E_NOT_SUPPORTED);
    assert_int_equal(cu.mem_free(p), CU_E_NOT_SUPPORTED);
    env_set("FAKECUDA_FAIL", NULL);
    OK(cu.mem_free(p));
    env_set("FAKECUDA_OOM_AT", "1000000");
    assert_int_equal(cu.mem_alloc(&p, 1000000), CU_E_OUT_OF_MEMORY);
    OK(cu.mem_alloc(&p, 999999));
    env_set("FAKECUDA_OOM_AT", NULL);
    env_set("FAKECUDA_MEMORY", "8388608");
    assert_int_equal(cu.mem_alloc(&p, 6 << 20), CU_E_OUT_OF_MEMORY);
    OK(cu.mem_alloc(&p, 4 << 20));
}

static void write_knobs(const char *path, const char *text)
{
    char other[128];
    FILE *f;

    snprintf(other, sizeof other, "%s.new", path);
    f = fopen(other, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(rename(other, path), 0);
}

static void knobs_change_while_a_process_runs(void)
{
    char path[64];
    cu_ptr p;

    snprintf(path, sizeof path, "/tmp/fakecuda-knobs-%d", getpid());
    env_set("FAKECUDA_KNOBS", path);
    OK(cu.mem_alloc(&p, BYTES)); /* no file: no knobs */
    write_knobs(path, "FAKECUDA_SEED=1\nFAKECUDA_FAIL=cuMemAlloc:1:2\n");
    assert_int_equal(cu.mem_alloc(&p, BYTES), CU_E_OUT_OF_MEMORY);
    OK(cu.mem_alloc(&p, BYTES));
    write_knobs(path, "FAKECUDA_FAIL=cuMemAlloc:1:3\n");
    assert_int_equal(cu.mem_alloc(&p, BYTES), CU_E_NOT_INITIALIZED);
    unlink(path);
    OK(cu.mem_alloc(&p, BYTES));
}

static void seen(int sig)
{
    _exit(42);
}

static void the_host_must_not_look(void) /* FAKECUDA_PROTECT=1; ends by a signal */
{
    uint32_t *host = registered(BYTES);
    cu_ptr p;

    OK(cu.mem_alloc(&p, BYTES));
    OK(launch(p));
    OK(cu.copy((cu_ptr)host, p, 4, NULL));
    OK(cu.stream_write32(NULL, p + 4, 8, 0));
    OK(cu.stream_wait32(NULL, p + 4, 8, CU_WAIT_EQ));
    OK(cu.ctx_synchronize());
    assert_int_equal(host[0], 7);
    signal(SIGSEGV, seen);
    *(volatile uint32_t *)p = 1;
}

static void faults_elsewhere_are_not_hidden(void)
{
    cu_ptr p;

    signal(SIGSEGV, seen);
    OK(cu.mem_alloc(&p, BYTES));
    OK(launch(p));
    OK(cu.ctx_synchronize());
    *(volatile uint32_t *)(p + (2 << 20)) = 1;
}

static void uuid_of(cu_device dev, char *text)
{
    struct cu_uuid uuid;

    OK(cu.device_uuid(&uuid, dev));
    text += sprintf(text, "GPU-");
    for (unsigned i = 0; i < 16; i++)
        text += sprintf(text, "%02x%s", (unsigned char)uuid.bytes[i],
                        i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
}

static void only_the_second_is_visible(void)
{
    char text[64];
    int n;

    OK(cu.device_count(&n));
    assert_int_equal(n, 1);
    uuid_of(0, text);
    assert_string_equal(text, getenv("EXPECTED"));
}

static const struct child {
    const char *name;
    void (*run)(void);
    int status;
} children[] = {
#define CHILD(name, status) {#name, name, status}
    CHILD(freed_memory_breaks_a_copy, 0),
    CHILD(unregistered_memory_breaks_a_wait, 0),
    CHILD(a_kernel_that_touches_nothing_breaks, 0),
    CHILD(pieces_without_access_break_a_copy, 0),
    CHILD(another_devices_pool_breaks_a_copy, 0),
    CHILD(copies_go_between_devices, 0),
    CHILD(another_device_breaks_a_kernel, 0),
    CHILD(peers_reach_each_other, 0),
    CHILD(launches_break_after_two, 0),
    CHILD(a_launch_hangs_after_one, 0),
    CHILD(an_event_is_never_reached, 0),
    CHILD(calls_fail_when_asked_for, 0),
    CHILD(knobs_change_while_a_process_runs, 0),
    CHILD(faults_elsewhere_are_not_hidden, 42),
    CHILD(the_host_must_not_look, 42),
    CHILD(only_the_second_is_visible, 0),
};

/* ---- tests ----------------------------------------------------------------------------------- */

static void run_child(void **state)
{
    const struct child *c = *state;
    char text[64];
    int socket;
    pid_t pid;

    uuid_of(1, text);
    env_set("EXPECTED", text);
    if (c->run == the_host_must_not_look)
        env_set("FAKECUDA_PROTECT", "1");
    if (c->run == only_the_second_is_visible)
        env_set("CUDA_VISIBLE_DEVICES", text);
    pid = fake_test_spawn(c->name, &socket);
    env_set("FAKECUDA_PROTECT", NULL);
    env_set("CUDA_VISIBLE_DEVICES", NULL);
    fake_test_end(pid, c->status);
    close(socket);
}

int main(int argc, char **argv)
{
    enum { NCHILDREN = sizeof children / sizeof children[0] };
    struct CMUnitTest tests[NCHILDREN];

    env_set("FAKECUDA_DEVICES", "2");
    alarm(600);
    fake_test_load();
    fake_test_begin(0);
    for (unsigned i = 0; i < NCHILDREN; i++) {
        tests[i] =
            (struct CMUnitTest){children[i].name, run_child, NULL, NULL, (void *)&children[i]};
        if (argc == 4 && !strcmp(argv[2], children[i].name)) {
            children[i].run();
            _exit(0); /* streams may still hang */
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
