/* test_fakenccl.c - the fake NCCL: ranks in several processes and several in one, sums, errors, and
 * what stands still as on hardware. Waits that shall not end are bounded. */
#include "tests/lib/env.h"
#include "tests/fakecuda/fake_test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "transport/gpu/nccl.h"

enum { N = 600000, DEVICES = 3 }; /* more than a chunk */

static struct nccl nc;
static cu_context contexts[DEVICES];

static void settle(nccl_comm comm, nccl_result expected)
{
    struct timespec t = {0, 1000000};
    nccl_result state = NCCL_IN_PROGRESS;

    while (state == NCCL_IN_PROGRESS) {
        OK(nc.async_error(comm, &state));
        nanosleep(&t, NULL);
    }
    assert_int_equal(state, expected);
}

static int settled(void *comm)
{
    nccl_result state;

    return !nc.async_error(comm, &state) && state != NCCL_IN_PROGRESS;
}

static int failed(void *comm)
{
    nccl_result state;

    return !nc.async_error(comm, &state) && state != NCCL_IN_PROGRESS && state != NCCL_SUCCESS;
}

static int quiet(void *stream)
{
    return cu.stream_query(stream) != CU_E_NOT_READY;
}

static nccl_comm begin(int world, const struct nccl_id *id, int rank)
{
    struct nccl_config config = nccl_config(nc.version);
    nccl_comm comm;

    config.blocking = 0;
    assert_int_equal(nc.init(&comm, world, *id, rank, &config), NCCL_IN_PROGRESS);
    return comm;
}

static cu_stream stream_new(void)
{
    cu_stream s;

    OK(cu.stream_new(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static float *vector(size_t n, float first) /* device memory, which the host may fill */
{
    cu_ptr p;

    OK(cu.mem_alloc(&p, n * sizeof(float)));
    for (size_t i = 0; i < n; i++)
        ((float *)p)[i] = first + (float)(i % 1000);
    return (float *)p;
}

static void meet(nccl_comm *comms, cu_stream *streams) /* all ranks here, a device each */
{
    struct nccl_config config = nccl_config(nc.version);
    struct nccl_id id;

    OK(nc.get_id(&id));
    config.blocking = 1;
    OK(nc.group_start());
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.ctx_set(contexts[i]));
        OK(nc.init(&comms[i], DEVICES, id, i, &config));
        streams[i] = stream_new();
    }
    OK(nc.group_end());
}

/* ---- children -------------------------------------------------------------------------------- */

struct task {
    struct nccl_id id[2];
    int world, rank;
};

static struct task hear(int socket)
{
    struct task t;

    fake_test_receive(socket, &t, sizeof t);
    return t;
}

static int summer(int socket) /* a rank of an all-reduce and of others */
{
    struct task t = hear(socket);
    nccl_comm comm = begin(t.world, &t.id[0], t.rank);
    cu_stream s = stream_new();
    float *a = vector(N, (float)t.rank), *b = vector((size_t)N * (size_t)t.world, 0);

    settle(comm, NCCL_SUCCESS);
    OK(nc.all_reduce(a, b, N, NCCL_F32, NCCL_SUM, comm, s));
    OK(cu.stream_synchronize(s));
    for (size_t i = 0; i < N; i++)
        assert_true(b[i] ==
                    (float)(t.world * (t.world - 1) / 2) + (float)t.world * (float)(i % 1000));
    OK(nc.all_gather(a, b, N, NCCL_F32, comm, s));
    OK(cu.stream_synchronize(s));
    for (size_t i = 0; i < (size_t)N * (size_t)t.world; i += 7)
        assert_true(b[i] == (float)(i / N) + (float)(i % N % 1000));
    OK(nc.reduce_scatter(b, a, N, NCCL_F32, NCCL_AVG, comm, s));
    OK(nc.broadcast(a, b, N, NCCL_F32, 1, comm, s));
    OK(cu.stream_synchronize(s));
    for (size_t i = 0; i < N; i++)
        assert_true(b[i] == 1 + (float)(i % 1000));
    assert_int_equal(nc.finalize(comm), NCCL_IN_PROGRESS);
    settle(comm, NCCL_SUCCESS);
    OK(nc.destroy(comm));
    return 0;
}

static int deserter(int socket) /* meets, and is killed */
{
    struct task t = hear(socket);

    settle(begin(t.world, &t.id[0], t.rank), NCCL_SUCCESS);
    fake_test_send(socket, "", 1, -1);
    pause();
    return 0;
}

static int waiter(int socket) /* meets, and calls what the other rank does not */
{
    struct task t = hear(socket);
    nccl_comm comm = begin(t.world, &t.id[0], t.rank);
    cu_stream s = stream_new();
    float *a = vector(16, 0);

    settle(comm, NCCL_SUCCESS);
    OK(nc.all_reduce(a, a, 16, NCCL_F32, NCCL_SUM, comm, s));
    fake_test_send(socket, "", 1, -1);
    fake_test_receive(socket, &(char){0}, 1);
    OK(nc.abort(comm));
    OK(cu.stream_synchronize(s));
    return 0;
}

static int crosser(int socket) /* two communicators, the second first if it is rank 1 */
{
    struct task t = hear(socket);
    nccl_comm comm[2] = {begin(t.world, &t.id[0], t.rank), begin(t.world, &t.id[1], t.rank)};
    cu_stream s[2] = {stream_new(), stream_new()};
    float *a = vector(16, 1);
    bool ended;

    settle(comm[0], NCCL_SUCCESS);
    settle(comm[1], NCCL_SUCCESS);
    for (int i = 0; i < 2; i++) {
        int k = i ^ t.rank;

        OK(nc.all_reduce(a + 4 * k, a + 4 * k, 4, NCCL_F32, NCCL_SUM, comm[k], s[k]));
    }
    ended = fake_test_within(300, quiet, s[0]) || fake_test_within(1, quiet, s[1]);
    fake_test_send(socket, &ended, sizeof ended, -1);
    fake_test_receive(socket, &(char){0}, 1);
    OK(nc.abort(comm[0]));
    OK(nc.abort(comm[1]));
    OK(cu.ctx_synchronize()); /* an abort lets the streams go */
    return 0;
}

/* Memory that only the device of its rank has access to. */
static cu_ptr mapped(cu_device dev, size_t bytes)
{
    struct cu_mem_prop prop = {.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, dev}};
    struct cu_access access = {prop.location, CU_ACCESS_READWRITE};
    cu_mem mem;
    cu_ptr p;

    OK(cu.vmm_create(&mem, bytes, &prop, 0));
    OK(cu.vmm_reserve(&p, bytes, 0, 0, 0));
    OK(cu.vmm_map(p, bytes, 0, mem, 0));
    OK(cu.vmm_access(p, bytes, &access, 1));
    return p;
}

static int director(int socket) /* all ranks in this process, on such memory */
{
    nccl_comm comms[DEVICES];
    cu_stream streams[DEVICES];
    float *p[DEVICES];

    meet(comms, streams);
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.ctx_set(contexts[i]));
        p[i] = i == 1 ? (float *)mapped(i, 2 << 20) : vector(16, 0);
    }
    for (int turn = 0; turn < 2; turn++) {
        env_set("NCCL_P2P_DIRECT_DISABLE", turn ? "0" : "1");
        OK(nc.group_start());
        for (int i = 0; i < DEVICES; i++)
            OK(nc.all_reduce(p[i], p[i], 16, NCCL_F32, NCCL_SUM, comms[i], streams[i]));
        OK(nc.group_end());
        if (turn == 0)
            for (int i = 0; i < DEVICES; i++)
                OK(cu.stream_synchronize(streams[i]));
    }
    assert_int_equal(cu.stream_synchronize(streams[0]), CU_E_ILLEGAL_ADDRESS);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(int socket);
} children[] = {{"summer", summer},
                {"deserter", deserter},
                {"waiter", waiter},
                {"crosser", crosser},
                {"director", director}};

/* Each rank on a box of its own, so that the GPU is not the same twice. */
static pid_t rank_new(const char *name, const struct task *task, int *ret_socket)
{
    char host[16];
    pid_t pid;

    snprintf(host, sizeof host, "node%d", task->rank);
    env_set("NCCL_HOSTID", host);
    pid = fake_test_spawn(name, ret_socket);
    env_set("NCCL_HOSTID", NULL);
    fake_test_send(*ret_socket, task, sizeof *task, -1);
    return pid;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void processes_make_the_same_sums(void **state)
{
    struct task t = {.world = 3};
    pid_t pids[3];
    int sockets[3];

    OK(nc.get_id(&t.id[0]));
    env_set("FAKECUDA_DELAY_US", "500");
    for (t.rank = 0; t.rank < 3; t.rank++)
        pids[t.rank] = rank_new("summer", &t, &sockets[t.rank]);
    env_set("FAKECUDA_DELAY_US", NULL);
    for (unsigned i = 0; i < 3; i++) {
        fake_test_end(pids[i], 0);
        close(sockets[i]);
    }
}

static void ranks_of_one_process_send_to_each_other(void **state)
{
    nccl_comm comms[DEVICES];
    cu_stream streams[DEVICES];
    float *in[DEVICES], *out[DEVICES];
    enum { PIECE = 9000, EACH = 20 * PIECE };

    meet(comms, streams);
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.ctx_set(contexts[i]));
        in[i] = vector(EACH * DEVICES, 0);
        out[i] = vector(EACH * DEVICES, 0);
        for (size_t k = 0; k < EACH * DEVICES; k++)
            in[i][k] = (float)(10 * i) + (float)(k / EACH) + (float)(k % EACH * 100);
    }
    OK(nc.group_start());
    for (int i = 0; i < DEVICES; i++) {
        for (int j = 0; j < DEVICES; j++) {
            for (size_t k = 0; k < EACH; k += PIECE) { /* many between each two, in order */
                size_t at = EACH * (size_t)j + k;

                OK(nc.send(in[i] + at, PIECE, NCCL_F32, j, comms[i], streams[i]));
                OK(nc.recv(out[i] + at, PIECE, NCCL_F32, j, comms[i], streams[i]));
            }
        }
    }
    OK(nc.group_end());
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.stream_synchronize(streams[i]));
        for (size_t k = 0; k < EACH * DEVICES; k++)
            assert_true(out[i][k] == (float)(10 * (k / EACH)) + (float)i + (float)(k % EACH * 100));
    }
    OK(nc.group_start());
    for (int i = 0; i < DEVICES; i++)
        OK(nc.reduce(in[i], in[i], EACH, NCCL_F32, NCCL_MAX, 2, comms[i], streams[i]));
    OK(nc.group_end());
    for (int i = 0; i < DEVICES; i++)
        OK(cu.stream_synchronize(streams[i]));
    assert_true(in[2][0] == 20 && in[1][0] == 10);
    for (int i = 0; i < DEVICES; i++) {
        OK(cu.ctx_set(contexts[i]));
        OK(nc.destroy(comms[i]));
        OK(cu.stream_free(streams[i]));
        OK(cu.mem_free((cu_ptr)in[i]));
        OK(cu.mem_free((cu_ptr)out[i]));
    }
    OK(cu.ctx_set(contexts[0]));
}

static void a_gpu_is_refused_twice(void **state)
{
    struct nccl_id id;
    nccl_comm a, b;

    OK(nc.get_id(&id));
    a = begin(2, &id, 0);
    b = begin(2, &id, 1);
    settle(a, NCCL_E_USAGE);
    settle(b, NCCL_E_USAGE);
    assert_non_null(strstr(nc.last_error(a), "Duplicate GPU"));
    OK(nc.abort(a));
    OK(nc.abort(b));
}

static void a_dead_rank_is_noticed_and_abort_frees_the_stream(void **state)
{
    struct task t = {.world = 2, .rank = 1};
    cu_stream s = stream_new();
    float *a = vector(16, 0);
    nccl_comm comm;
    int socket;
    pid_t pid;

    OK(nc.get_id(&t.id[0]));
    pid = rank_new("deserter", &t, &socket);
    comm = begin(2, &t.id[0], 0);
    settle(comm, NCCL_SUCCESS);
    fake_test_receive(socket, &(char){0}, 1);
    OK(nc.all_reduce(a, a, 16, NCCL_F32, NCCL_SUM, comm, s));
    assert_false(fake_test_within(50, quiet, s));
    kill(pid, SIGKILL);
    fake_test_end(pid, -SIGKILL);
    assert_true(fake_test_within(10000, failed, comm));
    settle(comm, NCCL_E_REMOTE);
    assert_false(fake_test_within(20, quiet, s));
    OK(nc.abort(comm));
    OK(cu.stream_synchronize(s));
    OK(cu.stream_free(s));
    OK(cu.mem_free((cu_ptr)a));
    close(socket);
}

static void different_calls_stand_still(void **state)
{
    struct task t = {.world = 2, .rank = 1};
    cu_stream s = stream_new();
    float *a = vector(16, 0);
    nccl_comm comm;
    int socket;
    pid_t pid;

    OK(nc.get_id(&t.id[0]));
    pid = rank_new("waiter", &t, &socket);
    comm = begin(2, &t.id[0], 0);
    settle(comm, NCCL_SUCCESS);
    fake_test_receive(socket, &(char){0}, 1);
    OK(nc.all_reduce(a, a, 15, NCCL_F32, NCCL_SUM, comm, s));
    assert_false(fake_test_within(100, quiet, s));
    OK(nc.abort(comm));
    OK(cu.stream_synchronize(s));
    fake_test_send(socket, "", 1, -1);
    fake_test_end(pid, 0);
    OK(cu.stream_free(s));
    OK(cu.mem_free((cu_ptr)a));
    close(socket);
}

static void crossed_communicators_stand_still(void **state)
{
    struct task t = {.world = 2};
    pid_t pids[2];
    int sockets[2];
    bool ended;

    OK(nc.get_id(&t.id[0]));
    OK(nc.get_id(&t.id[1]));
    for (t.rank = 0; t.rank < 2; t.rank++)
        pids[t.rank] = rank_new("crosser", &t, &sockets[t.rank]);
    for (unsigned i = 0; i < 2; i++) {
        fake_test_receive(sockets[i], &ended, sizeof ended);
        assert_false(ended);
    }
    for (unsigned i = 0; i < 2; i++)
        fake_test_send(sockets[i], "", 1, -1);
    for (unsigned i = 0; i < 2; i++) {
        fake_test_end(pids[i], 0);
        close(sockets[i]);
    }
}

static void buffers_of_one_process_have_to_be_open_to_its_other_devices(void **state)
{
    int socket;
    pid_t pid = fake_test_spawn("director", &socket);

    fake_test_end(pid, 0);
    close(socket);
}

static void it_fails_when_asked_for(void **state)
{
    nccl_comm comms[DEVICES];
    cu_stream streams[DEVICES];
    struct nccl_id id;
    float *a;
    nccl_comm comm;

    OK(nc.get_id(&id));
    env_set("FAKENCCL_FAIL_INIT", "0:3");
    comm = begin(1, &id, 0);
    settle(comm, NCCL_E_INTERNAL);
    OK(nc.abort(comm));
    env_set("FAKENCCL_FAIL_INIT", NULL);
    env_set("FAKENCCL_PROGRESS", "20");
    comm = begin(1, &id, 0);
    assert_false(fake_test_within(5, settled, comm));
    settle(comm, NCCL_SUCCESS);
    env_set("FAKENCCL_PROGRESS", NULL);
    a = vector(16, 0);
    assert_int_equal(nc.all_reduce(a, a, 16, 99, NCCL_SUM, comm, NULL), NCCL_E_ARGUMENT);
    assert_int_equal(nc.broadcast(a, a, 16, NCCL_F32, 1, comm, NULL), NCCL_E_ARGUMENT);
    OK(nc.destroy(comm));
    meet(comms, streams);
    OK(cu.ctx_set(contexts[0]));
    env_set("FAKENCCL_HANG_AT", "1:1");
    env_set("FAKENCCL_FAIL_AT", "0:2:2");
    OK(nc.all_reduce(a, a, 0, NCCL_F32, NCCL_SUM, comms[0], streams[0]));
    assert_int_equal(nc.all_reduce(a, a, 1, NCCL_F32, NCCL_SUM, comms[0], streams[1]), NCCL_E_CUDA);
    for (int i = 1; i < DEVICES; i++)
        OK(nc.all_reduce(a, a, 0, NCCL_F32, NCCL_SUM, comms[i], streams[i]));
    env_set("FAKENCCL_HANG_AT", NULL);
    assert_false(fake_test_within(50, quiet, streams[0]));
    assert_false(fake_test_within(50, quiet, streams[1]));
    for (int i = 0; i < DEVICES; i++) {
        OK(nc.abort(comms[i]));
        OK(cu.stream_synchronize(streams[i]));
        OK(cu.stream_free(streams[i]));
    }
    meet(comms, streams);
    OK(nc.broadcast(a, a, 0, NCCL_F32, 0, comms[0], streams[0]));
    OK(nc.broadcast(a, a, 0, NCCL_F32, 0, comms[0], streams[0]));
    env_set("FAKENCCL_FAIL_AT", NULL);
    for (int i = 1; i < DEVICES; i++)
        OK(nc.broadcast(a, a, 0, NCCL_F32, 0, comms[i], streams[i]));
    assert_true(fake_test_within(10000, failed, comms[0]));
    settle(comms[0], NCCL_E_SYSTEM);
    for (int i = 0; i < DEVICES; i++) {
        OK(nc.abort(comms[i]));
        OK(cu.stream_synchronize(streams[i]));
        OK(cu.stream_free(streams[i]));
    }
    OK(cu.ctx_set(contexts[0]));
    OK(cu.mem_free((cu_ptr)a));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_make_the_same_sums),
        cmocka_unit_test(ranks_of_one_process_send_to_each_other),
        cmocka_unit_test(a_gpu_is_refused_twice),
        cmocka_unit_test(a_dead_rank_is_noticed_and_abort_frees_the_stream),
        cmocka_unit_test(different_calls_stand_still),
        cmocka_unit_test(crossed_communicators_stand_still),
        cmocka_unit_test(buffers_of_one_process_have_to_be_open_to_its_other_devices),
        cmocka_unit_test(it_fails_when_asked_for),
    };
    char why[256];

    env_set("FAKECUDA_DEVICES", "3");
    alarm(600);
    fake_test_load();
    if (nccl_load("tests/fakecuda/libnccl.so.2", &nc, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    for (int i = DEVICES - 1; i >= 0; i--)
        contexts[i] = fake_test_begin(i);
    for (unsigned i = 0; argc == 4 && i < sizeof children / sizeof children[0]; i++)
        if (!strcmp(argv[2], children[i].name))
            return children[i].run(atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
