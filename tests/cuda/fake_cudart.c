/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cudart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

static struct {
    char *memory;
    size_t bytes;
    int device;
} pieces[MOST];

fake_cuda fake;

CUcontext fake_context(int device)
{
    return (CUcontext)(intptr_t)(device + 1);
}

static int current_device(void)
{
    return fake.context ? (int)(intptr_t)fake.context - 1 : 0;
}

void fake_reset(void)
{
    for (int i = 0; i < MOST; i++) {
        free(pieces[i].memory);
        pieces[i].memory = NULL;
    }
    fake = (fake_cuda){ .driver = CUDART_VERSION, .devices = 2, .arch = 90 };
}

void *fake_memory(int device, size_t bytes)
{
    int i = 0;
    while (pieces[i].memory)
        i++;
    pieces[i].memory = aligned_alloc(256, (bytes + 256) & ~(size_t)255);
    pieces[i].bytes = bytes;
    pieces[i].device = device;
    fake.live++;
    return memset(pieces[i].memory, 0xFF, bytes);
}

static cudaError_t fail(cudaError_t error)
{
    return fake.last = error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t last = fake.last;
    fake.last = cudaSuccess;
    return last;
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
    *version = fake.driver;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake.devices;
    return fake.count_error == cudaSuccess ? cudaSuccess : fail(fake.count_error);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = fake.arch / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = fake.arch % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    default: *value = 1 << 20; break;
    }
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device >= fake.devices)
        return fail(cudaErrorInvalidDevice);
    fake.context = fake_context(device);
    return cudaSuccess;
}

static CUresult get_current(CUcontext *context)
{
    *context = fake.context;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    fake.context = context;
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

/* As in CUDA, it makes a context where there is none. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *memory)
{
    fake.context = fake_context(current_device());
    fake.used |= 1u << current_device();
    *attributes = (struct cudaPointerAttributes){ .type = cudaMemoryTypeUnregistered };
    for (int i = 0; i < MOST; i++)
        if (pieces[i].memory && (const char *)memory >= pieces[i].memory &&
            (const char *)memory < pieces[i].memory + pieces[i].bytes) {
            attributes->type = cudaMemoryTypeDevice;
            attributes->device = pieces[i].device;
        }
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const cudaError_t error = fake.alloc_error;
    fake.alloc_calls++;
    fake.alloc_error = cudaSuccess;
    if (error != cudaSuccess)
        return fail(error);
    *memory = fake_memory(current_device(), bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    fake.alloc_calls++;
    for (int i = 0; memory && i < MOST; i++)
        if (pieces[i].memory == memory) {
            free(memory);
            pieces[i].memory = NULL;
            fake.live--;
            return cudaSuccess;
        }
    return memory ? fail(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    fake.waits++;
    fake.copies_under_way += kind == cudaMemcpyHostToDevice;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake.waits++;
    fake.copies_under_way = stream ? fake.copies_under_way : 0;
    return cudaSuccess;
}
