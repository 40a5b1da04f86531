/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime without a GPU, whose work is done at once. Device memory is the host's, whoever allocated
 * it. The words in MXA_FAKE: "capture", streams record graphs; "host", memory is none of the device's;
 * "full", nothing is free.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, ARCH = 90, PROCESSORS = 132, SOME_BYTES = 1 << 20 };

static bool is_word(const char *word)
{
    const char *const words = getenv("MXA_FAKE");
    return words && strcmp(words, word) == 0;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "some error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorSome";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = ARCH / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = ARCH % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; break;
    default: *value = SOME_BYTES; break;
    }
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

static CUresult get_current(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version, (void)flags;
    CUresult (*const get)(CUcontext *) = get_current;
    CUresult (*const set)(CUcontext) = set_current;
    *result = cudaDriverEntryPointSuccess;
    if (strcmp(name, "cuCtxGetCurrent") == 0)
        memcpy(function, &get, sizeof get);
    else if (strcmp(name, "cuCtxSetCurrent") == 0)
        memcpy(function, &set, sizeof set);
    else
        *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    (void)memory;
    *attributes = (struct cudaPointerAttributes){ .type = is_word("host") ? cudaMemoryTypeUnregistered
                                                                          : cudaMemoryTypeDevice };
    return cudaSuccess;
}

/* 0xFF, as memory that nobody has written may be. */
cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    if (is_word("full"))
        return cudaErrorMemoryAllocation;
    *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (!*memory)
        return cudaErrorMemoryAllocation;
    memset(*memory, 0xFF, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind, (void)stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind, (void)stream;
    for (size_t i = 0; i < height; i++)
        memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = is_word("capture") ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
