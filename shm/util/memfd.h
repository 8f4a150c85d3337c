/* memfd.h - memory shared between processes: created, sized and sealed by us; imported only
 * when the seals hold, so that no other process can make it shrink under a mapping. */
#ifndef COMMD_MEMFD_H
#define COMMD_MEMFD_H

#include "shm/util/base.h"

enum { MEMFD_E_SEALS = 1, MEMFD_E_SIZE = 2 }; /* import refused */

/* New sealed (SHRINK|GROW|SEAL), sparse memfd of @size bytes, close-on-exec. */
int memfd_new(const char *name, size_t size, int *ret_fd);
/* What a negative result of it means, for people. */
const char *memfd_strerror(int r);
/* Another open description of the same file; needs /proc. */
int memfd_reopen(int fd, int *ret_fd);
/* Checks type, seals and size (> 0, <= max) of a received fd. */
int memfd_check(int fd, size_t max, size_t *ret_size);
/* Maps [0, len) read-write shared. */
int memfd_map(int fd, size_t len, void **ret_map);
/* The same at a multiple of @align, a power of two and whole pages; @len is whole pages too. */
int memfd_map_at(int fd, size_t len, size_t align, void **ret_map);

#endif
