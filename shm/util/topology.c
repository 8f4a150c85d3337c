/* topology.c - see topology.h. A group of CPUs (the threads of a core, the CPUs of a cache) is
 * counted where its first member that we may run on is met. */
#include "shm/util/topology.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>

enum { PATH_MOST = 512, LIST_MOST = 4096, CACHE_INDEXES = 8 };

/* The first line of a file; false: it is not there. */
static bool read_line(const char *path, char *buf, int len)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(buf, len, f);

    if (f)
        fclose(f);
    return ok;
}

static bool read_number(const char *path, unsigned long *ret)
{
    char text[64], *end;

    if (!read_line(path, text, sizeof text))
        return false;
    *ret = strtoul(text, &end, 10);
    return end != text;
}

/* Those of @set in a list like "0-3,8". */
static void listed_of(const char *list, const cpu_set_t *set, cpu_set_t *ret)
{
    CPU_ZERO(ret);
    while (*list) {
        char *end;
        unsigned long lo = strtoul(list, &end, 10), hi = lo;

        if (end == list)
            return;
        if (*end == '-')
            hi = strtoul(end + 1, &end, 10);
        for (unsigned long k = lo; k <= hi && k < CPU_SETSIZE; k++)
            if (CPU_ISSET(k, set))
                CPU_SET(k, ret);
        list = *end == ',' ? end + 1 : "";
    }
}

/* The first CPU of @set in such a list; -1: none. */
static int first_of(const char *list, const cpu_set_t *set)
{
    cpu_set_t in;
    int cpu = 0;

    listed_of(list, set, &in);
    while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &in))
        cpu++;
    return cpu < CPU_SETSIZE ? cpu : -1;
}

/* Is @cpu the first of those of @set in the list that this file has? It is if there is no file. */
static bool is_first(const char *path, int cpu, const cpu_set_t *set)
{
    char list[LIST_MOST];
    int first = read_line(path, list, sizeof list) ? first_of(list, set) : -1;

    return first < 0 || first == cpu;
}

/* The folders of the last-level cache of @cpu and of the one before it, "" if there is none. */
static bool find_caches(const char *sys, int cpu, char ret_last[PATH_MOST],
                        char ret_before[PATH_MOST])
{
    unsigned long last = 0, before = 0;

    ret_last[0] = ret_before[0] = '\0';
    for (unsigned i = 0; i < CACHE_INDEXES; i++) {
        char path[PATH_MOST + 16], folder[PATH_MOST], type[32];
        unsigned long level;

        snprintf(folder, sizeof folder, "%s/cpu/cpu%d/cache/index%u", sys, cpu, i);
        snprintf(path, sizeof path, "%s/level", folder);
        if (!read_number(path, &level))
            break;
        snprintf(path, sizeof path, "%s/type", folder);
        if (read_line(path, type, sizeof type) && !strncmp(type, "Instr", 5))
            continue;
        if (level > last) {
            before = last;
            memcpy(ret_before, ret_last, PATH_MOST);
            last = level;
            memcpy(ret_last, folder, PATH_MOST);
        } else if (level > before && level < last) {
            before = level;
            memcpy(ret_before, folder, PATH_MOST);
        }
    }
    return last > 0;
}

/* The smaller one of *bytes, 0 if not known yet, and what this cache has. */
static void take_size(const char *folder, uint64_t *bytes)
{
    char path[PATH_MOST + 8];
    unsigned long kib;

    snprintf(path, sizeof path, "%s/size", folder);
    if (*folder && read_number(path, &kib) && (!*bytes || kib << 10 < *bytes))
        *bytes = kib << 10;
}

/* Counts the last-level cache of @cpu, unless it was counted with another one. */
static void count_caches(const char *sys, int cpu, const cpu_set_t *set, struct topology *t)
{
    char last[PATH_MOST], before[PATH_MOST], path[PATH_MOST + 32];

    if (!find_caches(sys, cpu, last, before))
        return;
    take_size(before, &t->core_bytes);
    snprintf(path, sizeof path, "%s/shared_cpu_list", last);
    if (!is_first(path, cpu, set))
        return;
    t->caches++;
    take_size(last, &t->cache_bytes);
}

void topology_keep_near(const char *sys, int cpu, cpu_set_t *set)
{
    char last[PATH_MOST], before[PATH_MOST], path[PATH_MOST + 32], list[LIST_MOST];
    cpu_set_t near;

    if (!find_caches(sys, cpu, last, before))
        return;
    snprintf(path, sizeof path, "%s/shared_cpu_list", last);
    if (!read_line(path, list, sizeof list))
        return;
    listed_of(list, set, &near);
    if (CPU_COUNT(&near))
        *set = near;
}

/* How many nodes of memory have a CPU of @set; *ret_one is one of them. */
static unsigned count_nodes(const char *sys, const cpu_set_t *set, unsigned *ret_one)
{
    char path[PATH_MOST], list[LIST_MOST];
    struct dirent *entry;
    unsigned n = 0, node;
    DIR *dir;

    snprintf(path, sizeof path, "%s/node", sys);
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        if (sscanf(entry->d_name, "node%u", &node) != 1)
            continue;
        snprintf(path, sizeof path, "%s/node/node%u/cpulist", sys, node);
        if (!read_line(path, list, sizeof list) || first_of(list, set) < 0)
            continue;
        *ret_one = node;
        n++;
    }
    if (dir)
        closedir(dir);
    return n;
}

int topology_node_of(const char *sys, const cpu_set_t *set)
{
    unsigned node;

    return count_nodes(sys, set, &node) == 1 ? (int)node : -1;
}

void topology_read(const char *sys, const cpu_set_t *set, struct topology *ret_topology)
{
    struct topology t = {0};
    unsigned one;

    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[PATH_MOST];

        if (!CPU_ISSET(cpu, set))
            continue;
        t.cpus++;
        snprintf(path, sizeof path, "%s/cpu/cpu%d/topology/thread_siblings_list", sys, cpu);
        t.cores += is_first(path, cpu, set);
        snprintf(path, sizeof path, "%s/cpu/cpu%d/topology/core_siblings_list", sys, cpu);
        t.sockets += access(path, R_OK) == 0 && is_first(path, cpu, set);
        count_caches(sys, cpu, set, &t);
    }
    t.cpus = MAX(t.cpus, 1u);
    t.cores = MAX(t.cores, 1u);
    t.caches = MAX(t.caches, 1u);
    t.sockets = MAX(t.sockets, 1u);
    t.nodes = MAX(count_nodes(sys, set, &one), 1u);
    *ret_topology = t;
}

static struct topology here;

static void read_here(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) < 0)
        CPU_ZERO(&set);
    topology_read("/sys/devices/system", &set, &here);
}

const struct topology *topology_here(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_here);
    return &here;
}
