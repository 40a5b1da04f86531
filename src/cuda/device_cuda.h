/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and CUDA errors as statuses. */
#ifndef MXA_CUDA_DEVICE_CUDA_H
#define MXA_CUDA_DEVICE_CUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/status.h"

/* What kernels ask of a device. */
typedef struct mxa_cuda_device {
    int index;
    int arch; /* 10 * major + minor: 90 */
    int multiprocessors;
    int64_t l2_bytes;
    int64_t smem_bytes; /* that a block may have */
} mxa_cuda_device;

/* MXA_OK, or MXA_ERR_DEVICE (MXA_ERR_MEMORY) with "what: what CUDA says". Leaves no error behind in CUDA. */
mxa_status mxa_cuda_check(cudaError_t error, const char *what);

/* After a launch: mxa_cuda_check of its error. */
mxa_status mxa_cuda_launched(const char *kernel);

/* cuTensorMapEncodeTiled of the driver; NULL where the driver has none. */
typedef CUresult mxa_tensor_map_fn(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                                   const cuuint64_t *sizes, const cuuint64_t *stride_bytes,
                                   const cuuint32_t *box, const cuuint32_t *steps,
                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
mxa_tensor_map_fn *mxa_cuda_tensor_map(void);

/* At least one, or MXA_ERR_DEVICE with what is missing: the driver, a newer one, a GPU. */
mxa_status mxa_cuda_count(int *count);

/* MXA_ERR_DEVICE: there is no such device. */
mxa_status mxa_cuda_device_read(int index, mxa_cuda_device *device);

/*
 * Make a device current, and afterwards what was current before, also if that was none. mxa_cuda_leave
 * follows in any case.
 */
typedef struct mxa_cuda_scope {
    bool known;
    CUcontext before;
} mxa_cuda_scope;

mxa_status mxa_cuda_enter(int index, mxa_cuda_scope *scope);
void mxa_cuda_leave(const mxa_cuda_scope *scope);

/*
 * MXA_ERR_ARG unless memory is the device's. NULL is for others to judge. The device is current: the question
 * makes a context where there is none, on whatever device that is.
 */
mxa_status mxa_cuda_check_memory(const char *name, const void *memory, int index);

#ifdef __cplusplus
}
#endif

#endif
