/* cuda_abi.h - what shm/gpu/cuda.h declares, beside the names that the Toolkit's <cuda.h> has for
 * it. The two headers cannot be in one file: test_cuda_abi.c takes the first column, and
 * cuda_abi_toolkit.c the second. */
#ifndef COMMD_CUDA_ABI_H
#define COMMD_CUDA_ABI_H

struct cuda_abi {
    const char *name; /* the Toolkit's */
    long long value;
};
struct cuda_abi_symbol {
    const char *name, *symbol; /* "cuMemAlloc", "cuMemAlloc_v2" */
};
extern const struct cuda_abi cuda_abi_toolkit[];        /* empty: there is no <cuda.h> */
extern const struct cuda_abi_symbol cuda_abi_symbols[]; /* both end with no name */

#define CUDA_ABI(V, S, M)                                                                          \
    V(CU_SUCCESS, CUDA_SUCCESS)                                                                    \
    V(CU_E_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE)                                                \
    V(CU_E_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)                                                \
    V(CU_E_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED)                                            \
    V(CU_E_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED)                                                \
    V(CU_E_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY)                                                  \
    V(CU_E_NO_DEVICE, CUDA_ERROR_NO_DEVICE)                                                        \
    V(CU_E_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE)                                              \
    V(CU_E_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE)                                                \
    V(CU_E_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT)                                            \
    V(CU_E_MAP_FAILED, CUDA_ERROR_MAP_FAILED)                                                      \
    V(CU_E_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED)                                              \
    V(CU_E_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU)                                        \
    V(CU_E_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)                                    \
    V(CU_E_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE)                                              \
    V(CU_E_NOT_FOUND, CUDA_ERROR_NOT_FOUND)                                                        \
    V(CU_E_NOT_READY, CUDA_ERROR_NOT_READY)                                                        \
    V(CU_E_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS)                                            \
    V(CU_E_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED)                                                \
    V(CU_E_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED)                                                \
    V(CU_E_UNKNOWN, CUDA_ERROR_UNKNOWN)                                                            \
    V(CU_ATTR_MAX_SHARED_MEMORY, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)                  \
    V(CU_ATTR_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                           \
    V(CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                          \
    V(CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                              \
    V(CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                              \
    V(CU_ATTR_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                        \
    V(CU_ATTR_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)           \
    V(CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                    \
    V(CU_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID)                                        \
    V(CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED)                                      \
    V(CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                              \
    V(CU_POINTER_IS_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)                   \
    V(CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                               \
    V(CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                      \
    V(CU_POINTER_ALLOWED_HANDLES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)                       \
    V(CU_POINTER_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE)                                  \
    V(CU_POINTER_MAPPING_BASE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)                             \
    V(CU_POINTER_BLOCK_ID, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)                                   \
    V(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST)                                                      \
    V(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE)                                                  \
    V(CU_STREAM_DEFAULT, CU_STREAM_DEFAULT)                                                        \
    V(CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)                                              \
    V(CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)                                            \
    V(CU_EVENT_INTERPROCESS, CU_EVENT_INTERPROCESS)                                                \
    V(CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE)                                                  \
    V(CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE)                                               \
    V(CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP)                                                \
    V(CU_HOST_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP)                                             \
    V(CU_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                                 \
    V(CU_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ)                                                       \
    V(CU_WAIT_EQ, CU_STREAM_WAIT_VALUE_EQ)                                                         \
    V(CU_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT)                                             \
    V(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE)                                              \
    V(CU_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE)                                          \
    V(CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                                \
    V(CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)                                         \
    V(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)                                             \
    V(CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                     \
    V(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                    \
    V(CU_BATCH_WAIT32, CU_STREAM_MEM_OP_WAIT_VALUE_32)                                             \
    V(CU_BATCH_WRITE32, CU_STREAM_MEM_OP_WRITE_VALUE_32)                                           \
    S(cu_result, CUresult)                                                                         \
    S(cu_device, CUdevice)                                                                         \
    S(cu_ptr, CUdeviceptr)                                                                         \
    S(cu_mem, CUmemGenericAllocationHandle)                                                        \
    S(cu_host_fn, CUhostFn)                                                                        \
    S(struct cu_uuid, CUuuid)                                                                      \
    S(struct cu_ipc_mem, CUipcMemHandle)                                                           \
    S(union cu_batch_op, CUstreamBatchMemOpParams)                                                 \
    S(struct cu_location, CUmemLocation)                                                           \
    S(struct cu_mem_prop, CUmemAllocationProp)                                                     \
    S(struct cu_access, CUmemAccessDesc)                                                           \
    M(union cu_batch_op, value.operation, CUstreamBatchMemOpParams, waitValue.operation)           \
    M(union cu_batch_op, value.address, CUstreamBatchMemOpParams, waitValue.address)               \
    M(union cu_batch_op, value.value, CUstreamBatchMemOpParams, waitValue.value)                   \
    M(union cu_batch_op, value.value64, CUstreamBatchMemOpParams, waitValue.value64)               \
    M(union cu_batch_op, value.flags, CUstreamBatchMemOpParams, waitValue.flags)                   \
    M(union cu_batch_op, value.alias, CUstreamBatchMemOpParams, waitValue.alias)                   \
    M(union cu_batch_op, value.address, CUstreamBatchMemOpParams, writeValue.address)              \
    M(union cu_batch_op, value.value, CUstreamBatchMemOpParams, writeValue.value)                  \
    M(union cu_batch_op, value.flags, CUstreamBatchMemOpParams, writeValue.flags)                  \
    M(struct cu_location, type, CUmemLocation, type)                                               \
    M(struct cu_location, id, CUmemLocation, id)                                                   \
    M(struct cu_mem_prop, type, CUmemAllocationProp, type)                                         \
    M(struct cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes)                 \
    M(struct cu_mem_prop, location, CUmemAllocationProp, location)                                 \
    M(struct cu_mem_prop, win32, CUmemAllocationProp, win32HandleMetaData)                         \
    M(struct cu_mem_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType)      \
    M(struct cu_mem_prop, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)        \
    M(struct cu_mem_prop, flags.usage, CUmemAllocationProp, allocFlags.usage)                      \
    M(struct cu_access, location, CUmemAccessDesc, location)                                       \
    M(struct cu_access, flags, CUmemAccessDesc, flags)

#endif
