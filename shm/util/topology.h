/* topology.h - what the CPUs that a process may run on share: cores, last-level caches, sockets,
 * nodes of memory. As the kernel tells in sysfs; in a virtual machine that is what the host says,
 * which may move virtual CPUs while we look. */
#ifndef COMMD_TOPOLOGY_H
#define COMMD_TOPOLOGY_H

#include <sched.h>

#include "shm/util/base.h"

struct topology {
    unsigned cpus;        /* logical ones; at least 1 */
    unsigned cores;       /* threads of one core count once */
    unsigned caches;      /* last-level caches */
    unsigned sockets;     /* packages */
    unsigned nodes;       /* of memory */
    uint64_t cache_bytes; /* of the smallest of the caches; 0: not known */
    uint64_t core_bytes;  /* of the smallest of those before it, which a core has for itself */
};

/* Of the CPUs in @set. @sys: "/sys/devices/system". What is not to be read there counts as one
 * core for each CPU, and one of everything else. */
void topology_read(const char *sys, const cpu_set_t *set, struct topology *ret_topology);
/* The node of memory that all CPUs of @set belong to; -1: several, or not known. */
int topology_node_of(const char *sys, const cpu_set_t *set);
/* Leaves in @set those that share the last-level cache of @cpu, if there are any. */
void topology_keep_near(const char *sys, int cpu, cpu_set_t *set);
/* Of this process; read once. Thread-safe. */
const struct topology *topology_here(void);

#endif
