/* test_topology.c - what is read of machines like those that exist, and of none; and which teams
 * follow from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/model/team.h"
#include "shm/util/topology.h"

static char root[] = "/tmp/commd-topology-XXXXXX";

static void put_file(const char *path, const char *text)
{
    char full[256];
    FILE *file;

    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put(int cpu, const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "cpu/cpu%d/%s", cpu, name);
    put_file(path, text);
}

static void put_in(int cpu, const char *folder, const char *name, const char *text)
{
    char path[64];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    put(cpu, path, text);
}

/* @cpus CPUs; the second half are the second threads of the cores of the first half, if @threads is
 * 2. @per_cache and @per_socket cores. @core_kib: of a cache that each core has, 0: it has none but
 * the first. */
static void machine(int cpus, int threads, int per_cache, int per_socket, unsigned core_kib)
{
    int cores = cpus / threads;
    char text[64], size[32];
    const char *last;

    for (int cpu = 0; cpu < cpus; cpu++) {
        int core = cpu % cores, cache = core / per_cache * per_cache;
        int socket = core / per_socket * per_socket;

        if (threads == 2)
            snprintf(text, sizeof text, "%d,%d\n", core, core + cores);
        else
            snprintf(text, sizeof text, "%d\n", core);
        put(cpu, "topology/thread_siblings_list", text);
        put(cpu, "cache/index0/level", "1\n");
        put(cpu, "cache/index0/shared_cpu_list", text);
        put(cpu, "cache/index0/type", "Data\n");
        put(cpu, "cache/index0/size", "32K\n");
        put(cpu, "cache/index1/level", "1\n"); /* for instructions alone, and larger */
        put(cpu, "cache/index1/type", "Instruction\n");
        put(cpu, "cache/index1/shared_cpu_list", text);
        put(cpu, "cache/index1/size", "64K\n");
        if (core_kib) {
            put(cpu, "cache/index2/level", "2\n");
            put(cpu, "cache/index2/type", "Unified\n");
            put(cpu, "cache/index2/shared_cpu_list", text);
            snprintf(size, sizeof size, "%uK\n", core_kib);
            put(cpu, "cache/index2/size", size);
        }
        last = core_kib ? "cache/index3" : "cache/index2";
        if (threads == 2)
            snprintf(text, sizeof text, "%d-%d,%d-%d\n", cache, cache + per_cache - 1,
                     cache + cores, cache + cores + per_cache - 1);
        else
            snprintf(text, sizeof text, "%d-%d\n", cache, cache + per_cache - 1);
        put_in(cpu, last, "level", "3\n");
        put_in(cpu, last, "type", "Unified\n");
        put_in(cpu, last, "shared_cpu_list", text);
        put_in(cpu, last, "size", cache ? "32768K\n" : "16384K\n");
        snprintf(text, sizeof text, "%d-%d,%d-%d\n", socket, socket + per_socket - 1,
                 socket + cores, socket + cores + per_socket - 1);
        put(cpu, "topology/core_siblings_list", text);
    }
    for (int socket = 0; socket < cores / per_socket; socket++) {
        char path[64];

        snprintf(path, sizeof path, "node/node%d/cpulist", socket);
        snprintf(text, sizeof text, "%d-%d,%d-%d\n", socket * per_socket,
                 (socket + 1) * per_socket - 1, socket * per_socket + cores,
                 (socket + 1) * per_socket - 1 + cores);
        put_file(path, text);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int fresh(void **state)
{
    strcpy(root + strlen(root) - 6, "XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int gone(void **state)
{
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static cpu_set_t cpus(int first, int last)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int cpu = first; cpu <= last; cpu++)
        CPU_SET(cpu, &set);
    return set;
}

static struct topology of(int first, int last)
{
    cpu_set_t set = cpus(first, last);
    struct topology t;

    topology_read(root, &set, &t);
    return t;
}

static int node_of(int first, int last)
{
    cpu_set_t set = cpus(first, last);

    return topology_node_of(root, &set);
}

static void check_topology(struct topology t, unsigned cpus, unsigned cores, unsigned caches,
                           unsigned sockets, unsigned nodes, uint64_t cache_bytes,
                           uint64_t core_bytes)
{
    assert_int_equal(t.cpus, cpus);
    assert_int_equal(t.cores, cores);
    assert_int_equal(t.caches, caches);
    assert_int_equal(t.sockets, sockets);
    assert_int_equal(t.nodes, nodes);
    assert_int_equal(t.cache_bytes, cache_bytes);
    assert_int_equal(t.core_bytes, core_bytes);
}

static void two_sockets_of_many_caches(void **state)
{
    machine(256, 2, 8, 64, 1024);
    check_topology(of(0, 255), 256, 128, 16, 2, 2, 16 << 20, 1 << 20);
    check_topology(of(64, 127), 64, 64, 8, 1, 1, 32 << 20,
                   1 << 20); /* the second socket, one thread each */
    check_topology(of(120, 135), 16, 16, 2, 2, 2, 16 << 20, 1 << 20); /* an odd cpuset */
    check_topology(of(3, 3), 1, 1, 1, 1, 1, 16 << 20, 1 << 20);
    assert_int_equal(node_of(3, 9), 0);
    assert_int_equal(node_of(64, 127), 1);
    assert_int_equal(node_of(60, 70), -1); /* both */
}

/* Of @set, what is near @cpu. */
static void check_near(int cpu, cpu_set_t set, cpu_set_t want)
{
    topology_keep_near(root, cpu, &set);
    assert_true(CPU_EQUAL(&set, &want));
}

static void who_shares_a_cache_is_near(void **state)
{
    machine(32, 1, 8, 16, 1024);
    check_near(9, cpus(0, 31), cpus(8, 15));
    check_near(9, cpus(12, 31), cpus(12, 15));
    check_near(9, cpus(16, 31), cpus(16, 31)); /* none */
    check_near(77, cpus(0, 31), cpus(0, 31));
}

static void one_cache_for_each_socket(void **state)
{
    machine(64, 1, 32, 32, 0);
    check_topology(of(0, 63), 64, 64, 2, 2, 2, 16 << 20, 32 << 10);
}

static void a_container_without_sysfs(void **state)
{
    check_topology(of(0, 5), 6, 6, 1, 1, 1, 0, 0);
    assert_int_equal(node_of(0, 5), -1);
    check_topology(of(1, 0), 1, 1, 1, 1, 1, 0, 0); /* no CPU at all */
}

static void files_that_say_nothing(void **state)
{
    for (int cpu = 0; cpu < 4; cpu++) {
        put(cpu, "topology/thread_siblings_list", cpu ? "\n" : "x,-3\n");
        put(cpu, "topology/core_siblings_list", "99999999999999999999-3\n");
        put(cpu, "cache/index2/level", "many\n");
    }
    put_file("node/nodes", "0\n");
    put_file("node/node7/cpulist", "");
    check_topology(of(0, 3), 4, 4, 1, 4, 1, 0, 0);
}

static void this_machine_has_a_topology(void **state)
{
    const struct topology *t = topology_here();

    assert_true(t->cpus >= t->cores && t->cores >= t->caches && t->caches >= 1);
    assert_ptr_equal(t, topology_here());
}

/* The choice for machines of today, as doc/benchmarks.md has it. */
static void teams_follow_caches(void **state)
{
    static const struct {
        unsigned nlocal, cpus, caches, team;
    } rows[] = {
        {15, 64, 8, 0}, /* few ranks */
        {16, 15, 2, 0}, /* more ranks than CPUs: a synchronisation costs a turn of each */
        {16, 16, 1, 0}, /* all near: one hop instead of three */
        {16, 16, 2, 8},  {24, 24, 1, 4},  {32, 32, 1, 4},  {32, 32, 4, 8},
        {48, 48, 2, 12}, {64, 64, 2, 16}, {64, 128, 8, 8}, {128, 256, 16, 8},
    };

    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        const struct team_machine m = {rows[i].cpus, rows[i].caches};
        unsigned team = team_size(rows[i].nlocal, &m);

        if (team != rows[i].team)
            fail_msg("%u ranks, %u caches: teams of %u", rows[i].nlocal, rows[i].caches, team);
    }
}

/* Whatever a machine says, the answer is one that a board may have; and never slower in the model.
 */
static void no_machine_gives_nonsense(void **state)
{
    for (unsigned nlocal = 1; nlocal <= 1024; nlocal += nlocal < 40 ? 1 : 37)
        for (unsigned caches = 0; caches <= 40; caches++) {
            const struct team_machine m = {4096, caches};
            unsigned team = team_size(nlocal, &m);

            assert_true(team != 1 && team < nlocal);
            assert_true(team_ns(nlocal, &m, team) <= team_ns(nlocal, &m, 0));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_sockets_of_many_caches, fresh, gone),
        cmocka_unit_test_setup_teardown(who_shares_a_cache_is_near, fresh, gone),
        cmocka_unit_test_setup_teardown(one_cache_for_each_socket, fresh, gone),
        cmocka_unit_test_setup_teardown(a_container_without_sysfs, fresh, gone),
        cmocka_unit_test_setup_teardown(files_that_say_nothing, fresh, gone),
        cmocka_unit_test(this_machine_has_a_topology),
        cmocka_unit_test(teams_follow_caches),
        cmocka_unit_test(no_machine_gives_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
