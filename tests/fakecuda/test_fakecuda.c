/* test_fakecuda.c - the fake driver does what the driver does, within a process. */
#include "tests/lib/env.h"
#include "tests/fakecuda/fake_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/gpu/move.h"

enum { N = 100000, MIB = 1 << 20 };

static void *registered(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    OK(cu.host_register(p, bytes, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP));
    return p;
}

static void unregister(void *p, size_t bytes)
{
    OK(cu.host_unregister(p));
    munmap(p, bytes);
}

static int quiet(void *stream)
{
    return cu.stream_query(stream) != CU_E_NOT_READY;
}

/* ---- kernels --------------------------------------------------------------------------------- */

struct vectors {
    cu_ptr source[4], destination;
};

static void add(void **params)
{
    struct vectors v = *(struct vectors *)params[0];
    uint32_t k = *(uint32_t *)params[1], n = *(uint32_t *)params[2];

    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;

        for (uint32_t j = 0; j < k; j++)
            sum += ((const float *)v.source[j])[i];
        ((float *)v.destination)[i] = sum;
    }
}

const struct fakecuda_kernel commd_kernel_table[] = {
    {.name = "add",
     .fn = add,
     .nparams = 3,
     .sizes = {sizeof(struct vectors), sizeof(uint32_t), sizeof(uint32_t)}},
    {.name = NULL},
};

static cu_function kernel(const char *name)
{
    void (*tell)(const struct fakecuda_kernel *) = fake_test_symbol("fakecuda_register_kernels");
    cu_module module;
    cu_function f;

    tell(commd_kernel_table);
    OK(cu.module_load(&module, "image"));
    OK(cu.module_function(&f, module, name));
    return f;
}

static cu_result launch(cu_function f, cu_stream s, struct vectors v, uint32_t k, uint32_t n)
{
    void *params[] = {&v, &k, &n};

    return cu.launch(f, 4, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

static void a_launch_takes_copies_of_its_parameters(void **state)
{
    cu_function f;
    cu_stream s;
    struct vectors v = {.destination = 0};
    float *host = registered(N * sizeof *host);

    fake_test_begin(0);
    f = kernel("add");
    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned j = 0; j < 2; j++)
        OK(cu.mem_alloc(&v.source[j], N * sizeof(float)));
    OK(cu.mem_alloc(&v.destination, N * sizeof(float)));
    for (unsigned i = 0; i < N; i++)
        host[i] = (float)i;
    OK(cu.copy(v.source[0], (cu_ptr)host, N * sizeof(float), s));
    OK(cu.copy(v.source[1], (cu_ptr)host, N * sizeof(float), s));
    OK(launch(f, s, v, 2, N)); /* v and the numbers are gone when it runs */
    OK(cu.copy((cu_ptr)host, v.destination, N * sizeof(float), s));
    OK(cu.stream_synchronize(s));
    for (unsigned i = 0; i < N; i++)
        assert_true(host[i] == 2 * (float)i);
    for (unsigned j = 0; j < 2; j++)
        OK(cu.mem_free(v.source[j]));
    OK(cu.mem_free(v.destination));
    OK(cu.stream_free(s));
    unregister(host, N * sizeof *host);
}

static void wrong_launches_are_refused(void **state)
{
    cu_function f = kernel("add");
    struct vectors v = {.destination = 0};
    uint32_t n = 0;
    void *params[] = {&v, &n, &n};
    cu_module module;

    OK(cu.module_load(&module, "image"));
    assert_int_equal(cu.module_function(&f, module, "nothing"), CU_E_NOT_FOUND);
    assert_int_equal(cu.module_function(&f, (cu_module)&n, "add"), CU_E_INVALID_HANDLE);
    assert_int_equal(cu.launch(f, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CU_E_INVALID_VALUE);
    assert_int_equal(cu.launch(f, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL), CU_E_INVALID_VALUE);
    assert_int_equal(cu.launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CU_E_INVALID_VALUE);
    assert_int_equal(cu.launch((cu_function)&n, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
                     CU_E_INVALID_HANDLE);
}

static void commds_own_kernels_are_there(void **state)
{
    struct gpu_move move = {
        .count = 1000, .dtype = DTYPE_I32, .redop = REDOP_SUM, .nsrc = 3, .ndst = 2};
    struct gpu_launch l;
    cu_module module;
    cu_function f;
    cu_ptr p;
    void *params[] = {&l.batch};

    OK(cu.mem_alloc(&p, 5 * 4000));
    for (uint32_t i = 0; i < 3000; i++)
        ((uint32_t *)p)[i] = i;
    for (unsigned i = 0; i < 5; i++)
        *(i < 3 ? &move.src[i] : &move.dst[i - 3]) = p + 4000 * i;
    gpu_launch_init(&l);
    assert_true(gpu_launch_add(&l, &move));
    assert_true(gpu_launch_close(&l, 4));
    OK(cu.module_load(&module, "image"));
    OK(cu.module_function(&f, module, gpu_kernel_name(l.kernel)));
    OK(cu.launch(f, l.gx, l.gy, 1, l.threads, 1, 1, 0, NULL, params, NULL));
    OK(cu.ctx_synchronize());
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(((uint32_t *)p)[3000 + i], 3000 + 3 * i);
        assert_int_equal(((uint32_t *)p)[4000 + i], 3000 + 3 * i);
    }
    OK(cu.mem_free(p));
}

/* ---- contexts and devices -------------------------------------------------------------------- */

static void *without_context(void *arg)
{
    cu_ptr p;

    *(cu_result *)arg = cu.mem_alloc(&p, 1);
    return NULL;
}

static void a_thread_begins_without_a_context(void **state)
{
    cu_result r = CU_SUCCESS;
    cu_context first = fake_test_begin(0), second, now;
    cu_device dev;
    pthread_t t;

    pthread_create(&t, NULL, without_context, &r);
    pthread_join(t, NULL);
    assert_int_equal(r, CU_E_INVALID_CONTEXT);
    OK(cu.primary_retain(&second, 1));
    OK(cu.ctx_push(second));
    OK(cu.ctx_device(&dev));
    assert_int_equal(dev, 1);
    OK(cu.ctx_pop(&now));
    assert_ptr_equal(now, second);
    OK(cu.ctx_get(&now));
    assert_ptr_equal(now, first);
    assert_int_equal(cu.ctx_set((cu_context)&dev), CU_E_INVALID_CONTEXT);
}

static void devices_have_names_of_their_own(void **state)
{
    struct cu_uuid a, b;
    char one[32], two[32];
    int n, value;

    OK(cu.device_count(&n));
    assert_int_equal(n, 2);
    OK(cu.device_uuid(&a, 0));
    OK(cu.device_uuid(&b, 1));
    assert_memory_not_equal(&a, &b, sizeof a);
    OK(cu.device_bus_id(one, sizeof one, 0));
    OK(cu.device_bus_id(two, sizeof two, 1));
    assert_string_not_equal(one, two);
    assert_int_equal(cu.device_uuid(&a, 2), CU_E_INVALID_DEVICE);
    OK(cu.device_attribute(&value, CU_ATTR_UNIFIED_ADDRESSING, 0));
    assert_int_equal(value, 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t buffer_id(cu_ptr p)
{
    uint64_t id;
    int what = CU_POINTER_BUFFER_ID;
    void *data = &id;

    OK(cu.pointer_attributes(1, &what, &data, p));
    return id;
}

static void freed_addresses_come_back_as_other_memory(void **state)
{
    cu_ptr p, q, base;
    size_t bytes, before, after, total;
    uint64_t id;

    OK(cu.mem_info(&before, &total));
    OK(cu.mem_alloc(&p, MIB));
    OK(cu.mem_info(&after, &total));
    assert_int_equal(before - after, 2 * MIB);
    OK(cu.mem_range(&base, &bytes, p + 4096));
    assert_int_equal(base, p);
    assert_int_equal(bytes, 2 * MIB);
    memset((void *)p, 1, bytes); /* the host may look */
    id = buffer_id(p);
    assert_int_equal(buffer_id(p + 77), id);
    assert_int_equal(cu.mem_free(p + 1), CU_E_INVALID_VALUE);
    OK(cu.mem_free(p));
    assert_int_equal(cu.mem_free(p), CU_E_INVALID_VALUE);
    assert_int_equal(cu.mem_range(&base, &bytes, p), CU_E_NOT_FOUND);
    OK(cu.mem_alloc(&q, MIB));
    assert_int_equal(q, p);
    assert_int_not_equal(buffer_id(q), id);
    assert_int_equal(*(char *)q, 0);
    OK(cu.mem_free(q));
}

static void what_is_too_long_is_refused(void **state)
{
    char *host = registered(8192);
    cu_ptr p, q;

    OK(cu.mem_alloc(&p, 1));
    OK(cu.mem_alloc(&q, 1));
    assert_int_equal(q, p + 4 * MIB); /* nothing lies between */
    assert_int_equal(cu.copy(p + 1, q, 2 * MIB, NULL), CU_E_INVALID_VALUE);
    assert_int_equal(cu.copy(q, p + 1, 2 * MIB, NULL), CU_E_INVALID_VALUE);
    assert_int_equal(cu.copy((cu_ptr)host + 1, p, 8192, NULL), CU_E_INVALID_VALUE);
    OK(cu.copy((cu_ptr)host, p, 8192, NULL));
    OK(cu.ctx_synchronize());
    OK(cu.mem_free(p));
    OK(cu.mem_free(q));
    unregister(host, 8192);
}

static void a_pointer_says_what_it_is(void **state)
{
    uint32_t type, managed, legacy;
    int device, attributes[] = {CU_POINTER_MEMORY_TYPE,    CU_POINTER_IS_MANAGED,
                                CU_POINTER_DEVICE_ORDINAL, CU_POINTER_IS_LEGACY_IPC,
                                CU_POINTER_RANGE_START,    CU_POINTER_RANGE_SIZE,
                                CU_POINTER_ALLOWED_HANDLES};
    uint64_t start, size, handles;
    void *data[] = {&type, &managed, &device, &legacy, &start, &size, &handles};
    cu_result (*unshareable)(cu_ptr *, size_t) = fake_test_symbol("fakecuda_alloc_unshareable");
    struct cu_ipc_mem handle;
    char *host = registered(4096);
    cu_ptr p;

    OK(cu.mem_alloc(&p, 1));
    OK(cu.pointer_attributes(7, attributes, data, p + 5));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(legacy, 1);
    assert_int_equal(device, 0);
    assert_int_equal(start, p);
    OK(cu.mem_free(p));
    OK(unshareable(&p, 1));
    OK(cu.pointer_attributes(7, attributes, data, p));
    assert_int_equal(legacy, 0);
    assert_int_equal(handles, 0);
    assert_int_equal(cu.ipc_get(&handle, p), CU_E_INVALID_VALUE);
    OK(cu.mem_free(p));
    OK(cu.pointer_attributes(7, attributes, data, (cu_ptr)host));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    OK(cu.pointer_attributes(7, attributes, data, (cu_ptr)&type));
    assert_int_equal(type, 0);
    attributes[0] = 31;
    assert_int_equal(cu.pointer_attributes(7, attributes, data, p), CU_E_INVALID_VALUE);
    unregister(host, 4096);
}

static void host_memory_is_registered_once(void **state)
{
    char *p = registered(8192);
    cu_ptr dev;
    void *q;

    assert_int_equal(cu.host_register(p + 4096, 4096, 0), 712);
    OK(cu.host_pointer(&dev, p + 8, 0));
    assert_int_equal(dev, (cu_ptr)(p + 8));
    OK(cu.host_unregister(p));
    assert_int_equal(cu.host_unregister(p), 713);
    assert_int_equal(cu.host_pointer(&dev, p, 0), CU_E_INVALID_VALUE);
    munmap(p, 8192);
    assert_int_equal(cu.host_register(p, 8192, 0), CU_E_INVALID_VALUE);
    OK(cu.host_alloc(&q, 100, 0));
    memset(q, 1, 100);
    OK(cu.host_free(q));
    assert_int_equal(cu.host_free(q), CU_E_INVALID_VALUE);
}

static void pieces_lie_side_by_side(void **state)
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED,
                               .handle_types = CU_HANDLE_POSIX_FD,
                               .location = {CU_LOCATION_DEVICE, 0}};
    struct cu_access access = {{CU_LOCATION_DEVICE, 0}, CU_ACCESS_READWRITE};
    size_t grain, bytes;
    cu_mem mem[2], again;
    cu_ptr p, base;
    char *host = registered(3 * MIB);
    uint64_t handles;
    int what = CU_POINTER_ALLOWED_HANDLES;
    void *data = &handles;

    OK(cu.vmm_granularity(&grain, &prop, CU_GRANULARITY_MINIMUM));
    OK(cu.vmm_reserve(&p, 4 * grain, 0, 0, 0));
    for (unsigned i = 0; i < 2; i++) {
        OK(cu.vmm_create(&mem[i], grain, &prop, 0));
        OK(cu.vmm_map(p + i * grain, grain, 0, mem[i], 0));
    }
    assert_int_equal(cu.vmm_map(p, grain, 0, mem[0], 0), CU_E_INVALID_VALUE);
    memset(host, 7, 3 * MIB);
    OK(cu.vmm_access(p, 2 * grain, &access, 1));
    OK(cu.copy(p, (cu_ptr)host, 3 * MIB, NULL));
    OK(cu.ctx_synchronize());
    assert_int_equal(*(char *)(p + grain), 7);
    OK(cu.mem_range(&base, &bytes, p + grain + 1));
    assert_int_equal(base, p + grain);
    assert_int_equal(bytes, grain);
    OK(cu.pointer_attributes(1, &what, &data, p));
    assert_int_equal(handles, CU_HANDLE_POSIX_FD);
    OK(cu.vmm_retain(&again, (void *)(p + grain)));
    assert_int_equal(again, mem[1]);
    OK(cu.vmm_release(again));
    assert_int_equal(cu.vmm_unreserve(p, 4 * grain), CU_E_INVALID_VALUE);
    OK(cu.vmm_release(mem[0]));
    OK(cu.vmm_unmap(p, 2 * grain));
    assert_int_equal(cu.vmm_unmap(p, 2 * grain), CU_E_INVALID_VALUE);
    OK(cu.vmm_unreserve(p, 4 * grain));
    OK(cu.vmm_release(mem[1]));
    assert_int_equal(cu.vmm_release(mem[1]), CU_E_INVALID_VALUE);
    unregister(host, 3 * MIB);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void values_hold_streams_up_and_let_them_go(void **state)
{
    _Atomic uint32_t *flag = registered(4096);
    union cu_batch_op ops[3] = {{.pad = {0}}};
    cu_stream a, b;
    cu_ptr p;

    OK(cu.stream_new(&a, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_new(&b, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_wait32(a, (cu_ptr)&flag[0], 3, CU_WAIT_GEQ));
    OK(cu.stream_write32(a, (cu_ptr)&flag[1], 9, CU_WRITE_DEFAULT));
    assert_int_equal(cu.stream_query(a), CU_E_NOT_READY);
    assert_int_equal(atomic_load(&flag[1]), 0);
    atomic_store(&flag[0], 2);
    assert_int_equal(cu.stream_query(a), CU_E_NOT_READY);
    OK(cu.stream_write32(b, (cu_ptr)&flag[0], 4, CU_WRITE_DEFAULT)); /* one stream frees another */
    OK(cu.stream_synchronize(a));
    assert_int_equal(atomic_load(&flag[1]), 9);
    atomic_store(&flag[0], UINT32_MAX - 1); /* it wraps */
    OK(cu.stream_wait32(a, (cu_ptr)&flag[0], 1, CU_WAIT_GEQ));
    assert_int_equal(cu.stream_query(a), CU_E_NOT_READY);
    atomic_store(&flag[0], 1);
    OK(cu.stream_synchronize(a));
    for (unsigned i = 0; i < 3; i++) {
        ops[i].value.operation = CU_BATCH_WRITE32;
        ops[i].value.address = (cu_ptr)&flag[8 + i];
        ops[i].value.value = i + 1;
    }
    OK(cu.stream_batch(a, 3, ops, 0));
    OK(cu.stream_synchronize(a));
    assert_int_equal(atomic_load(&flag[10]), 3);
    OK(cu.mem_alloc(&p, 4)); /* and in device memory */
    OK(cu.stream_write32(a, p, 5, CU_WRITE_DEFAULT));
    OK(cu.stream_wait32(b, p, 5, CU_WAIT_EQ));
    OK(cu.stream_synchronize(b));
    OK(cu.mem_free(p));
    assert_int_equal(cu.stream_write32(a, p, 5, 0), CU_E_INVALID_VALUE);
    assert_int_equal(cu.stream_write32(a, (cu_ptr)ops, 5, 0), CU_E_INVALID_VALUE);
    assert_int_equal(cu.stream_write32(a, (cu_ptr)flag + 2, 5, 0), CU_E_INVALID_VALUE);
    OK(cu.stream_free(a));
    OK(cu.stream_free(b));
    unregister((void *)flag, 4096);
}

static void a_waiting_stream_costs_no_core(void **state)
{
    _Atomic uint32_t *flag = registered(4096);
    struct timespec t = {0, 300000000};
    struct rusage before, after;
    cu_stream s[8];
    long us;

    for (unsigned i = 0; i < 8; i++) {
        OK(cu.stream_new(&s[i], CU_STREAM_NON_BLOCKING));
        OK(cu.stream_wait32(s[i], (cu_ptr)flag, 1, CU_WAIT_GEQ));
    }
    getrusage(RUSAGE_SELF, &before);
    nanosleep(&t, NULL);
    getrusage(RUSAGE_SELF, &after);
    us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + after.ru_utime.tv_usec -
         before.ru_utime.tv_usec;
    assert_true(us < 200000); /* of 8 * 300000 */
    atomic_store(flag, 1);
    for (unsigned i = 0; i < 8; i++) {
        OK(cu.stream_synchronize(s[i]));
        OK(cu.stream_free(s[i]));
    }
    unregister((void *)flag, 4096);
}

static void the_default_stream_waits_and_is_waited_for(void **state)
{
    _Atomic uint32_t *flag = registered(4096);
    cu_stream blocking, other;

    OK(cu.stream_new(&blocking, CU_STREAM_DEFAULT));
    OK(cu.stream_new(&other, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_wait32(blocking, (cu_ptr)&flag[0], 1, CU_WAIT_GEQ));
    OK(cu.stream_write32(NULL, (cu_ptr)&flag[1], 1, 0)); /* behind it */
    OK(cu.stream_write32(other, (cu_ptr)&flag[2], 1, 0));
    OK(cu.stream_synchronize(other));
    assert_int_equal(atomic_load(&flag[2]), 1);
    assert_int_equal(atomic_load(&flag[1]), 0);
    assert_int_equal(cu.stream_query(NULL), CU_E_NOT_READY);
    atomic_store(&flag[0], 1);
    OK(cu.stream_synchronize(NULL));
    assert_int_equal(atomic_load(&flag[1]), 1);
    OK(cu.stream_wait32(NULL, (cu_ptr)&flag[3], 1, CU_WAIT_GEQ));
    OK(cu.stream_write32(blocking, (cu_ptr)&flag[4], 1, 0)); /* behind the default stream's */
    assert_false(fake_test_within(30, quiet, blocking));
    atomic_store(&flag[3], 1);
    OK(cu.stream_synchronize(blocking));
    OK(cu.stream_free(blocking));
    OK(cu.stream_free(other));
    unregister((void *)flag, 4096);
}

/* @n streams wait, and one more stands behind one of them. */
static void stands_behind(unsigned n)
{
    _Atomic uint32_t *flag = registered(4096);
    cu_stream waiting[8], next;

    assert_true(n <= 8);
    for (unsigned i = 0; i < n; i++) {
        OK(cu.stream_new(&waiting[i], CU_STREAM_NON_BLOCKING));
        OK(cu.stream_wait32(waiting[i], (cu_ptr)flag, 1, CU_WAIT_GEQ));
        OK(cu.stream_new(&next, CU_STREAM_NON_BLOCKING));
        OK(cu.stream_write32(next, (cu_ptr)&flag[1], i, 0));
        assert_int_equal(fake_test_within(i + 1 < n ? 5000 : 50, quiet, next), i + 1 < n);
        OK(cu.stream_free(next));
    }
    atomic_store(flag, 1);
    for (unsigned i = 0; i < n; i++) {
        OK(cu.stream_synchronize(waiting[i]));
        OK(cu.stream_free(waiting[i]));
    }
    OK(cu.ctx_synchronize());
    unregister((void *)flag, 4096);
}

/* As an H100 answers the checks "queues" and "queues_one". */
static void streams_of_one_queue_hold_each_other_up(void **state)
{
    stands_behind(8);
    env_set("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    stands_behind(1);
    env_set("CUDA_DEVICE_MAX_CONNECTIONS", NULL);
}

static void an_event_waits_for_its_last_record(void **state)
{
    _Atomic uint32_t *flag = registered(4096);
    cu_stream a, b;
    cu_event e;

    OK(cu.stream_new(&a, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_new(&b, CU_STREAM_NON_BLOCKING));
    OK(cu.event_new(&e, CU_EVENT_DISABLE_TIMING));
    OK(cu.event_query(e)); /* nothing to wait for */
    OK(cu.stream_wait32(a, (cu_ptr)&flag[0], 1, CU_WAIT_GEQ));
    OK(cu.event_record(e, a));
    OK(cu.stream_wait_event(b, e, 0));
    OK(cu.stream_wait32(a, (cu_ptr)&flag[1], 1, CU_WAIT_GEQ));
    OK(cu.event_record(e, a)); /* b waits for the first record */
    assert_int_equal(cu.event_query(e), CU_E_NOT_READY);
    assert_false(fake_test_within(20, quiet, b));
    atomic_store(&flag[0], 1);
    OK(cu.stream_synchronize(b));
    assert_int_equal(cu.event_query(e), CU_E_NOT_READY);
    atomic_store(&flag[1], 1);
    OK(cu.event_synchronize(e));
    OK(cu.event_query(e));
    OK(cu.event_free(e));
    assert_int_equal(cu.event_query(e), CU_E_INVALID_HANDLE);
    assert_int_equal(cu.event_record((cu_event)flag, a), CU_E_INVALID_HANDLE);
    OK(cu.stream_free(a));
    OK(cu.stream_free(b));
    assert_int_equal(cu.stream_query(a), CU_E_INVALID_HANDLE);
    unregister((void *)flag, 4096);
}

static cu_result in_host_fn;

static void host_fn(void *arg)
{
    cu_ptr p;

    in_host_fn = cu.mem_alloc(&p, 1);
    ++*(int *)arg;
}

static void a_host_function_must_not_call_the_driver(void **state)
{
    int ran = 0;

    OK(cu.host_func(NULL, host_fn, &ran));
    OK(cu.stream_synchronize(NULL));
    assert_int_equal(ran, 1);
    assert_int_equal(in_host_fn, CU_E_NOT_PERMITTED);
}

static void a_copy_reads_when_it_runs(void **state)
{
    _Atomic uint32_t *flag = registered(8192);
    uint32_t *data = (uint32_t *)flag + 1024, plain = 1, result = 0;
    cu_ptr p;

    OK(cu.mem_alloc(&p, 8));
    data[0] = 1;
    OK(cu.stream_wait32(NULL, (cu_ptr)flag, 1, CU_WAIT_GEQ));
    OK(cu.copy(p, (cu_ptr)data, 4, NULL));
    OK(cu.copy(p + 4, (cu_ptr)&plain, 4, NULL)); /* the driver takes a copy of this */
    data[0] = 2;
    plain = 2;
    atomic_store(flag, 1);
    OK(cu.copy((cu_ptr)&result, p, 4, NULL)); /* waits: the driver does not know this memory */
    assert_int_equal(result, 2);
    OK(cu.copy((cu_ptr)&result, p + 4, 4, NULL));
    assert_int_equal(result, 1);
    OK(cu.mem_free(p));
    unregister((void *)flag, 8192);
}

static void *free_memory(void *arg)
{
    cu_ptr *p = arg;

    fake_test_begin(0);
    OK(cu.mem_free(*p));
    atomic_store((_Atomic cu_ptr *)p, 0);
    return NULL;
}

static int freed(void *p)
{
    return atomic_load((_Atomic cu_ptr *)p) == 0;
}

/* So who holds a stream up must not free memory. */
static void freeing_waits_for_the_device(void **state)
{
    _Atomic uint32_t *flag = registered(4096);
    pthread_t t;
    cu_stream s;
    cu_ptr p;

    OK(cu.mem_alloc(&p, 1));
    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_wait32(s, (cu_ptr)flag, 1, CU_WAIT_GEQ));
    pthread_create(&t, NULL, free_memory, &p);
    assert_false(fake_test_within(50, freed, &p));
    atomic_store(flag, 1);
    pthread_join(t, NULL);
    assert_true(freed(&p));
    OK(cu.stream_free(s));
    unregister((void *)flag, 4096);
}

static void a_capturing_stream_takes_nothing(void **state)
{
    cu_result (*capture)(cu_stream, int) = fake_test_symbol("fakecuda_capture");
    int status, ran = 0;
    cu_stream s;

    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    OK(cu.stream_capturing(s, &status));
    assert_int_equal(status, CU_CAPTURE_NONE);
    OK(capture(s, 1));
    OK(cu.stream_capturing(s, &status));
    assert_int_equal(status, CU_CAPTURE_ACTIVE);
    assert_int_equal(cu.host_func(s, host_fn, &ran), 900);
    assert_int_equal(cu.stream_synchronize(s), 900);
    OK(capture(s, 0));
    OK(cu.host_func(s, host_fn, &ran));
    OK(cu.stream_synchronize(s));
    assert_int_equal(ran, 1);
    OK(cu.stream_free(s));
}

/* A missing wait shows when operations are late. */
static void delays_show_a_missing_wait(void **state)
{
    uint32_t *host = registered(4096);
    unsigned seen = 0;
    cu_stream s;

    env_set("FAKECUDA_DELAY_US", "3000");
    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    for (uint32_t i = 1; i <= 20; i++) {
        OK(cu.stream_write32(s, (cu_ptr)host, i, 0));
        seen += atomic_load((_Atomic uint32_t *)host) == i; /* without waiting */
        OK(cu.stream_synchronize(s));
        assert_int_equal(atomic_load((_Atomic uint32_t *)host), i);
    }
    assert_true(seen < 10);
    env_set("FAKECUDA_DELAY_US", NULL);
    OK(cu.stream_free(s));
    unregister(host, 4096);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launch_takes_copies_of_its_parameters),
        cmocka_unit_test(wrong_launches_are_refused),
        cmocka_unit_test(commds_own_kernels_are_there),
        cmocka_unit_test(a_thread_begins_without_a_context),
        cmocka_unit_test(devices_have_names_of_their_own),
        cmocka_unit_test(freed_addresses_come_back_as_other_memory),
        cmocka_unit_test(what_is_too_long_is_refused),
        cmocka_unit_test(a_pointer_says_what_it_is),
        cmocka_unit_test(host_memory_is_registered_once),
        cmocka_unit_test(pieces_lie_side_by_side),
        cmocka_unit_test(values_hold_streams_up_and_let_them_go),
        cmocka_unit_test(a_waiting_stream_costs_no_core),
        cmocka_unit_test(the_default_stream_waits_and_is_waited_for),
        cmocka_unit_test(streams_of_one_queue_hold_each_other_up),
        cmocka_unit_test(an_event_waits_for_its_last_record),
        cmocka_unit_test(a_host_function_must_not_call_the_driver),
        cmocka_unit_test(a_copy_reads_when_it_runs),
        cmocka_unit_test(freeing_waits_for_the_device),
        cmocka_unit_test(a_capturing_stream_takes_nothing),
        cmocka_unit_test(delays_show_a_missing_wait),
    };

    env_set("FAKECUDA_DEVICES", "2");
    fake_test_load();
    fake_test_begin(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
