/* cuda_abi_toolkit.c - the Toolkit's column of cuda_abi.h, if its header is there. */
#include "tests/unit/shm/cuda_abi.h"

#include <stddef.h>

#if __has_include(<cuda.h>)
#include <cuda.h>

#define VALUE(ours, theirs)                 {#theirs, theirs},
#define SIZE(ours, theirs)                  {#theirs, sizeof(theirs)},
#define MEMBER(ours, member, theirs, field) {#theirs "." #field, offsetof(theirs, field)},
const struct cuda_abi cuda_abi_toolkit[] = {CUDA_ABI(VALUE, SIZE, MEMBER){NULL, 0}};

/* <cuda.h> has macros for the versions of functions: cuMemAlloc is cuMemAlloc_v2. */
#define TEXT(x) #x
#define N(name) {#name, TEXT(name)},
const struct cuda_abi_symbol cuda_abi_symbols[] = {
    N(cuInit) N(cuDriverGetVersion) N(cuGetErrorName) N(cuGetErrorString) N(cuDeviceGetCount) N(
        cuDeviceGet) N(cuDeviceGetName) N(cuDeviceGetUuid_v2) N(cuDeviceGetPCIBusId)
        N(cuDeviceGetAttribute) N(cuDeviceTotalMem) N(cuDevicePrimaryCtxRetain) N(
            cuDevicePrimaryCtxRelease) N(cuCtxGetCurrent) N(cuCtxSetCurrent) N(cuCtxPushCurrent)
            N(cuCtxPopCurrent) N(cuCtxGetDevice) N(cuCtxSynchronize) N(cuDeviceCanAccessPeer) N(
                cuMemGetInfo) N(cuMemAlloc) N(cuMemFree) N(cuMemGetAddressRange) N(cuMemHostAlloc)
                N(cuMemFreeHost) N(cuMemHostRegister) N(cuMemHostUnregister) N(
                    cuMemHostGetDevicePointer) N(cuPointerGetAttributes) N(cuMemcpyAsync)
                    N(cuMemsetD8Async) N(cuIpcGetMemHandle) N(cuIpcOpenMemHandle) N(
                        cuIpcCloseMemHandle) N(cuMemGetAllocationGranularity) N(cuMemCreate)
                        N(cuMemRelease) N(cuMemAddressReserve) N(cuMemAddressFree) N(cuMemMap) N(
                            cuMemUnmap) N(cuMemSetAccess) N(cuMemExportToShareableHandle)
                            N(cuMemImportFromShareableHandle) N(cuMemRetainAllocationHandle)
                                N(cuStreamCreate) N(cuStreamDestroy) N(cuStreamQuery)
                                    N(cuStreamSynchronize) N(cuStreamGetCtx) N(cuStreamIsCapturing)
                                        N(cuStreamWriteValue32) N(cuStreamWaitValue32)
                                            N(cuStreamBatchMemOp) N(cuStreamWaitEvent)
                                                N(cuEventCreate) N(cuEventDestroy) N(cuEventRecord)
                                                    N(cuEventQuery)
                                                        N(cuEventSynchronize) N(cuLaunchHostFunc)
                                                            N(cuModuleLoadData)
                                                                N(cuModuleGetFunction)
                                                                    N(cuLaunchKernel){NULL, NULL}};
#else
const struct cuda_abi cuda_abi_toolkit[] = {{NULL, 0}};
const struct cuda_abi_symbol cuda_abi_symbols[] = {{NULL, NULL}};
#endif
