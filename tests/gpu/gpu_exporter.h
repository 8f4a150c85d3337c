/* gpu_exporter.h - a process that owns device memory which others open: child_exporter(). */
#ifndef COMMD_GPU_EXPORTER_H
#define COMMD_GPU_EXPORTER_H

#include "tests/gpu/gpu_check.h"

struct export_order {
    size_t bytes;
    int by_descriptor;
};
struct exported {
    cu_result result; /* of the export */
    size_t bytes;     /* rounded up */
    struct cu_ipc_mem handle;
};

/* Starts it and lets it export; a descriptor's number is *ret_fd, else -1. false: not @apart here.
 */
bool export_begin(bool by_descriptor, size_t bytes, bool apart, struct peer *ret_peer,
                  struct exported *ret, int *ret_fd);
bool is_marked(cu_ptr p, size_t bytes); /* as its owner has done */
cu_result import_descriptor(int fd, size_t bytes, cu_ptr *ret_p);
/* Memory that only the current context's device has access to. */
cu_ptr mapped_new(size_t bytes);

#endif
