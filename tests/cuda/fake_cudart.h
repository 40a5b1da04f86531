/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without a GPU: device memory is the host's, and every call is counted. */
#ifndef FAKE_CUDART_H
#define FAKE_CUDART_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct fake_cuda {
    int driver;              /* version, 0: none */
    cudaError_t count_error; /* of cudaGetDeviceCount */
    int devices, arch;
    cudaError_t alloc_error; /* of the next cudaMalloc */
    CUcontext context;       /* the current one: device + 1, NULL for none */
    int live;                /* pieces of device memory */
    int alloc_calls, waits;  /* calls that allocate or free, and that wait for the device */
    int copies_under_way;    /* from pageable memory, until the default stream is waited for */
    unsigned used;           /* devices that got a context by a question, a bit each */
    cudaError_t last;        /* what the next cudaGetLastError returns */
} fake_cuda;

extern fake_cuda fake;

/* Driver of this CUDA version, two devices of sm_90, no context. */
void fake_reset(void);

/* Memory of a device for a test; freed by fake_reset. */
void *fake_memory(int device, size_t bytes);

CUcontext fake_context(int device);

#endif
