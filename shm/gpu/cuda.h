/* cuda.h - the part of the CUDA driver API that commd uses, declared here so that it builds where
 * no CUDA Toolkit is, and loaded at run time (cuda.c), so that one build serves nodes with and
 * without GPUs. Numbers and layouts are those of the driver's stable binary interface, CUDA 11.7
 * and newer; tests/unit/shm/test_cuda_abi.c compares them with the Toolkit's <cuda.h> where there
 * is one. What each function does: "CUDA Driver API", docs.nvidia.com. */
#ifndef COMMD_CUDA_H
#define COMMD_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* CUresult */
enum {
    CU_SUCCESS = 0,
    CU_E_INVALID_VALUE = 1,
    CU_E_OUT_OF_MEMORY = 2,
    CU_E_NOT_INITIALIZED = 3,
    CU_E_DEINITIALIZED = 4,
    CU_E_STUB_LIBRARY = 34,
    CU_E_NO_DEVICE = 100,
    CU_E_INVALID_DEVICE = 101,
    CU_E_INVALID_IMAGE = 200,
    CU_E_INVALID_CONTEXT = 201,
    CU_E_MAP_FAILED = 205,
    CU_E_ALREADY_MAPPED = 208,
    CU_E_NO_BINARY_FOR_GPU = 209,
    CU_E_UNSUPPORTED_PTX = 222,
    CU_E_INVALID_HANDLE = 400,
    CU_E_NOT_FOUND = 500,
    CU_E_NOT_READY = 600,
    CU_E_ILLEGAL_ADDRESS = 700,
    CU_E_NOT_PERMITTED = 800,
    CU_E_NOT_SUPPORTED = 801,
    CU_E_UNKNOWN = 999,
};

typedef int cu_device;
typedef uint64_t cu_ptr; /* CUdeviceptr */
typedef uint64_t cu_mem; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream; /* NULL: the legacy default stream */
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef void (*cu_host_fn)(void *arg);

struct cu_uuid {
    char bytes[16];
};
struct cu_ipc_mem {
    char reserved[64];
};

enum { /* CUdevice_attribute */
       CU_ATTR_MAX_SHARED_MEMORY = 8,
       CU_ATTR_MULTIPROCESSORS = 16,
       CU_ATTR_UNIFIED_ADDRESSING = 41,
       CU_ATTR_CC_MAJOR = 75,
       CU_ATTR_CC_MINOR = 76,
       CU_ATTR_VMM = 102,
       CU_ATTR_POSIX_FD = 103,
};
enum { /* CUpointer_attribute */
       CU_POINTER_MEMORY_TYPE = 2,
       CU_POINTER_BUFFER_ID = 7,
       CU_POINTER_IS_MANAGED = 8,
       CU_POINTER_DEVICE_ORDINAL = 9,
       CU_POINTER_IS_LEGACY_IPC = 10,
       CU_POINTER_RANGE_START = 11,
       CU_POINTER_RANGE_SIZE = 12,
       CU_POINTER_ALLOWED_HANDLES = 14, /* a mask of CU_HANDLE_... */
       CU_POINTER_MAPPING_SIZE = 18,
       CU_POINTER_MAPPING_BASE = 19,
       CU_POINTER_BLOCK_ID = 20,
};
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_DEVICEMAP = 2 }; /* of MemHostAlloc and MemHostRegister */
enum { CU_IPC_LAZY_PEER_ACCESS = 1 };
enum { CU_WAIT_GEQ = 0, CU_WAIT_EQ = 1 }; /* GEQ: (int32_t)(*addr - value) >= 0 */
enum { CU_WRITE_DEFAULT = 0 };            /* with a barrier before the write */
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1 };
enum { CU_HANDLE_POSIX_FD = 1 };
enum { CU_ALLOCATION_PINNED = 1, CU_LOCATION_DEVICE = 1, CU_ACCESS_READWRITE = 3 };
enum { CU_GRANULARITY_MINIMUM = 0 };

enum { CU_BATCH_WAIT32 = 1, CU_BATCH_WRITE32 = 2 };
union cu_batch_op { /* CUstreamBatchMemOpParams */
    struct {
        int operation; /* CU_BATCH_... */
        cu_ptr address;
        union {
            uint32_t value;
            uint64_t value64;
        };
        unsigned flags; /* CU_WAIT_..., CU_WRITE_... */
        cu_ptr alias;
    } value;
    uint64_t pad[6];
};
struct cu_location { /* CUmemLocation */
    int type, id;
};
struct cu_mem_prop { /* CUmemAllocationProp */
    int type, handle_types;
    struct cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct cu_access { /* CUmemAccessDesc */
    struct cu_location location;
    int flags;
};

/* F(member of struct cuda, symbol in libcuda.so.1, arguments) */
#define CUDA_FUNCTIONS(F)                                                                          \
    F(init, cuInit, (unsigned flags))                                                              \
    F(driver_version, cuDriverGetVersion, (int *version))                                          \
    F(error_name, cuGetErrorName, (cu_result r, const char **name))                                \
    F(error_string, cuGetErrorString, (cu_result r, const char **text))                            \
    F(device_count, cuDeviceGetCount, (int *n))                                                    \
    F(device_get, cuDeviceGet, (cu_device * dev, int ordinal))                                     \
    F(device_name, cuDeviceGetName, (char *name, int len, cu_device dev))                          \
    F(device_uuid, cuDeviceGetUuid_v2, (struct cu_uuid * uuid, cu_device dev))                     \
    F(device_bus_id, cuDeviceGetPCIBusId, (char *id, int len, cu_device dev))                      \
    F(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, cu_device dev))          \
    F(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, cu_device dev))                         \
    F(primary_retain, cuDevicePrimaryCtxRetain, (cu_context * ctx, cu_device dev))                 \
    F(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device dev))                              \
    F(ctx_get, cuCtxGetCurrent, (cu_context * ctx))                                                \
    F(ctx_set, cuCtxSetCurrent, (cu_context ctx))                                                  \
    F(ctx_push, cuCtxPushCurrent_v2, (cu_context ctx))                                             \
    F(ctx_pop, cuCtxPopCurrent_v2, (cu_context * ctx))                                             \
    F(ctx_device, cuCtxGetDevice, (cu_device * dev))                                               \
    F(ctx_synchronize, cuCtxSynchronize, (void))                                                   \
    F(peer_can, cuDeviceCanAccessPeer, (int *can, cu_device dev, cu_device peer))                  \
    F(mem_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total))                            \
    F(mem_alloc, cuMemAlloc_v2, (cu_ptr * p, size_t bytes))                                        \
    F(mem_free, cuMemFree_v2, (cu_ptr p))                                                          \
    F(mem_range, cuMemGetAddressRange_v2, (cu_ptr * base, size_t * bytes, cu_ptr p))               \
    F(host_alloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))                        \
    F(host_free, cuMemFreeHost, (void *p))                                                         \
    F(host_register, cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))                \
    F(host_unregister, cuMemHostUnregister, (void *p))                                             \
    F(host_pointer, cuMemHostGetDevicePointer_v2, (cu_ptr * dev, void *p, unsigned flags))         \
    F(pointer_attributes, cuPointerGetAttributes,                                                  \
      (unsigned n, int *attributes, void **data, cu_ptr p))                                        \
    F(copy, cuMemcpyAsync, (cu_ptr dst, cu_ptr src, size_t bytes, cu_stream s))                    \
    F(fill, cuMemsetD8Async, (cu_ptr p, unsigned char value, size_t bytes, cu_stream s))           \
    F(ipc_get, cuIpcGetMemHandle, (struct cu_ipc_mem * handle, cu_ptr p))                          \
    F(ipc_open, cuIpcOpenMemHandle_v2, (cu_ptr * p, struct cu_ipc_mem handle, unsigned flags))     \
    F(ipc_close, cuIpcCloseMemHandle, (cu_ptr p))                                                  \
    F(vmm_granularity, cuMemGetAllocationGranularity,                                              \
      (size_t * bytes, const struct cu_mem_prop *prop, int option))                                \
    F(vmm_create, cuMemCreate,                                                                     \
      (cu_mem * mem, size_t bytes, const struct cu_mem_prop *prop, unsigned long long flags))      \
    F(vmm_release, cuMemRelease, (cu_mem mem))                                                     \
    F(vmm_reserve, cuMemAddressReserve,                                                            \
      (cu_ptr * p, size_t bytes, size_t align, cu_ptr hint, unsigned long long flags))             \
    F(vmm_unreserve, cuMemAddressFree, (cu_ptr p, size_t bytes))                                   \
    F(vmm_map, cuMemMap,                                                                           \
      (cu_ptr p, size_t bytes, size_t offset, cu_mem mem, unsigned long long flags))               \
    F(vmm_unmap, cuMemUnmap, (cu_ptr p, size_t bytes))                                             \
    F(vmm_access, cuMemSetAccess,                                                                  \
      (cu_ptr p, size_t bytes, const struct cu_access *access, size_t n))                          \
    F(vmm_export, cuMemExportToShareableHandle,                                                    \
      (void *handle, cu_mem mem, int type, unsigned long long flags))                              \
    F(vmm_import, cuMemImportFromShareableHandle, (cu_mem * mem, void *handle, int type))          \
    F(vmm_retain, cuMemRetainAllocationHandle, (cu_mem * mem, void *p))                            \
    F(stream_new, cuStreamCreate, (cu_stream * s, unsigned flags))                                 \
    F(stream_free, cuStreamDestroy_v2, (cu_stream s))                                              \
    F(stream_query, cuStreamQuery, (cu_stream s))                                                  \
    F(stream_synchronize, cuStreamSynchronize, (cu_stream s))                                      \
    F(stream_context, cuStreamGetCtx, (cu_stream s, cu_context * ctx))                             \
    F(stream_capturing, cuStreamIsCapturing, (cu_stream s, int *status))                           \
    F(stream_write32, cuStreamWriteValue32_v2,                                                     \
      (cu_stream s, cu_ptr p, uint32_t value, unsigned flags))                                     \
    F(stream_wait32, cuStreamWaitValue32_v2,                                                       \
      (cu_stream s, cu_ptr p, uint32_t value, unsigned flags))                                     \
    F(stream_batch, cuStreamBatchMemOp_v2,                                                         \
      (cu_stream s, unsigned n, union cu_batch_op *ops, unsigned flags))                           \
    F(stream_wait_event, cuStreamWaitEvent, (cu_stream s, cu_event e, unsigned flags))             \
    F(event_new, cuEventCreate, (cu_event * e, unsigned flags))                                    \
    F(event_free, cuEventDestroy_v2, (cu_event e))                                                 \
    F(event_record, cuEventRecord, (cu_event e, cu_stream s))                                      \
    F(event_query, cuEventQuery, (cu_event e))                                                     \
    F(event_synchronize, cuEventSynchronize, (cu_event e))                                         \
    F(host_func, cuLaunchHostFunc, (cu_stream s, cu_host_fn fn, void *arg))                        \
    F(module_load, cuModuleLoadData, (cu_module * module, const void *image))                      \
    F(module_function, cuModuleGetFunction, (cu_function * f, cu_module module, const char *name)) \
    F(launch, cuLaunchKernel,                                                                      \
      (cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
       unsigned bz, unsigned shared, cu_stream s, void **params, void **extra))

/* NULL in older drivers: CUDA 12.4. */
#define CUDA_LATER_FUNCTIONS(F) F(function_load, cuFuncLoad, (cu_function f))

struct cuda {
    void *library;
#define CUDA_MEMBER(member, symbol, args) cu_result(*member) args;
    CUDA_FUNCTIONS(CUDA_MEMBER)
    CUDA_LATER_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Loads the driver: @path, NULL: libcuda.so.1. @only_loaded: only if this process has it already,
 * else -ENOENT without a line in @why. Does not call cuInit(). It is never unloaded: the driver
 * has threads. 0; -ENOENT: there is none; -ENOSYS: it lacks a function. @why: one line. */
int cuda_load(const char *path, int only_loaded, struct cuda *ret_cuda, char *why, size_t len);
/* "out of memory (CUDA_ERROR_OUT_OF_MEMORY)" */
void cuda_text(const struct cuda *cu, cu_result r, char *text, size_t len);

#endif
