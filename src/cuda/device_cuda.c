/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/device_cuda.h"

#include <pthread.h>
#include <stdio.h>

mxa_status mxa_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return MXA_OK;
    (void)cudaGetLastError(); /* what is reported here is not met again by the caller's own calls */
    return mxa_fail(error == cudaErrorMemoryAllocation ? MXA_ERR_MEMORY : MXA_ERR_DEVICE, "%s: %s (%s)", what,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

mxa_status mxa_cuda_launched(const char *kernel)
{
    return mxa_cuda_check(cudaGetLastError(), kernel);
}

/* The driver's functions that the runtime has no name for. */
typedef CUresult get_context_fn(CUcontext *context);
typedef CUresult set_context_fn(CUcontext context);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static mxa_tensor_map_fn *tensor_map;
static get_context_fn *get_context;
static set_context_fn *set_context;

static void *driver_function(const char *name, unsigned version)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
#else
    (void)version;
    const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    (void)cudaGetLastError();
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : NULL;
}

/* The versions are those in which the functions came. */
static void find_functions(void)
{
    enum { CUDA_4 = 4000, CUDA_12 = 12000 };
    int count;
    (void)cudaGetDeviceCount(&count); /* starts the driver */
    (void)cudaGetLastError();
    *(void **)&tensor_map = driver_function("cuTensorMapEncodeTiled", CUDA_12);
    *(void **)&get_context = driver_function("cuCtxGetCurrent", CUDA_4);
    *(void **)&set_context = driver_function("cuCtxSetCurrent", CUDA_4);
}

mxa_tensor_map_fn *mxa_cuda_tensor_map(void)
{
    pthread_once(&once, find_functions);
    return tensor_map;
}

/* 12040 is CUDA 12.4. */
static int major_of(int version)
{
    return version / 1000;
}

static int minor_of(int version)
{
    return version % 1000 / 10;
}

/* index: of the device that a sentence names, or ANY_DEVICE. */
enum { ANY_DEVICE = -1, NAME_BYTES = 32 };

static mxa_status count_devices(int index, int *count)
{
    int driver = 0, n = 0;
    char name[NAME_BYTES] = "device";
    if (index != ANY_DEVICE)
        snprintf(name, sizeof name, "device: cuda:%d", index);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return mxa_fail(MXA_ERR_DEVICE, "%s: no NVIDIA driver is installed, one for CUDA %d is needed", name,
                        major_of(CUDART_VERSION));
    const cudaError_t error = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return mxa_fail(
            MXA_ERR_DEVICE, "%s: the NVIDIA driver is one for CUDA %d.%d, one for CUDA %d.%d is needed", name,
            major_of(driver), minor_of(driver), major_of(CUDART_VERSION), minor_of(CUDART_VERSION));
    if (error == cudaErrorNoDevice || (error == cudaSuccess && n == 0))
        return mxa_fail(MXA_ERR_DEVICE, "%s: the NVIDIA driver for CUDA %d.%d is there, but it shows no GPU",
                        name, major_of(driver), minor_of(driver));
    *count = n;
    return mxa_cuda_check(error, "device: cudaGetDeviceCount");
}

mxa_status mxa_cuda_count(int *count)
{
    return count_devices(ANY_DEVICE, count);
}

static mxa_status read_attribute(int index, enum cudaDeviceAttr attribute, int *value)
{
    return mxa_cuda_check(cudaDeviceGetAttribute(value, attribute, index), "device: cudaDeviceGetAttribute");
}

mxa_status mxa_cuda_device_read(int index, mxa_cuda_device *device)
{
    int count, values[5];
    mxa_status status = count_devices(index, &count);
    if (status == MXA_OK && index >= count)
        return mxa_fail(MXA_ERR_DEVICE, "device: cuda:%d is not there, CUDA shows %d", index, count);
    static const enum cudaDeviceAttr attributes[5] = { cudaDevAttrComputeCapabilityMajor,
                                                       cudaDevAttrComputeCapabilityMinor,
                                                       cudaDevAttrMultiProcessorCount, cudaDevAttrL2CacheSize,
                                                       cudaDevAttrMaxSharedMemoryPerBlockOptin };
    for (int i = 0; i < 5 && status == MXA_OK; i++)
        status = read_attribute(index, attributes[i], &values[i]);
    if (status == MXA_OK)
        *device = (mxa_cuda_device){ index, 10 * values[0] + values[1], values[2], values[3], values[4] };
    return status;
}

mxa_status mxa_cuda_enter(int index, mxa_cuda_scope *scope)
{
    pthread_once(&once, find_functions);
    *scope = (mxa_cuda_scope){ false, NULL };
    scope->known = get_context && set_context && get_context(&scope->before) == CUDA_SUCCESS;
    if (!scope->known) {
        int count;
        const mxa_status status = count_devices(index, &count);
        return status != MXA_OK
                   ? status
                   : mxa_fail(MXA_ERR_DEVICE, "device: cuda:%d: the driver does not tell its context", index);
    }
    return mxa_cuda_check(cudaSetDevice(index), "device: cudaSetDevice");
}

void mxa_cuda_leave(const mxa_cuda_scope *scope)
{
    if (scope->known)
        set_context(scope->before);
}

mxa_status mxa_cuda_check_memory(const char *name, const void *memory, int index)
{
    struct cudaPointerAttributes a;
    if (!memory)
        return MXA_OK;
    const mxa_status status = mxa_cuda_check(cudaPointerGetAttributes(&a, memory), name);
    if (status != MXA_OK)
        return status;
    if (a.type == cudaMemoryTypeManaged || (a.type == cudaMemoryTypeDevice && a.device == index))
        return MXA_OK;
    if (a.type == cudaMemoryTypeDevice)
        return mxa_fail(MXA_ERR_ARG, "%s: %p is memory of cuda:%d, memory of cuda:%d is needed", name, memory,
                        a.device, index);
    return mxa_fail(MXA_ERR_ARG, "%s: %p is host memory, memory of cuda:%d is needed", name, memory, index);
}
