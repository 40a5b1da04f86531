/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls on devices. All but the parser belong to the CUDA backend, if there is one. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "cuda/loader.h"

mxa_status mxa_device_parse(const char *text, mxa_device *device)
{
    if (!text || !device)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", text ? "device" : "text");
    static const char prefix[] = "cuda:";
    const bool cuda = strncmp(text, prefix, sizeof prefix - 1) == 0;
    const char *const number = cuda ? text + sizeof prefix - 1 : "";
    enum { DIGITS = 3 };
    if (strcmp(text, "auto") == 0) {
        *device = MXA_DEVICE_AUTO;
    } else if (strcmp(text, "cpu") == 0) {
        *device = MXA_DEVICE_CPU;
    } else if (*number && strspn(number, "0123456789") == strlen(number) && strlen(number) <= DIGITS) {
        *device = (mxa_device)(MXA_DEVICE_CUDA_0 + atoi(number));
    } else {
        return mxa_fail(MXA_ERR_ARG, "device: \"%.40s\" is not auto, cpu or cuda:N", text);
    }
    return MXA_OK;
}

int mxa_device_count(void)
{
    const mxa_cuda_backend *cuda;
    int count = 0;
    if (mxa_cuda_table(MXA_DEVICE_AUTO, &cuda) != MXA_OK ||
        mxa_cuda_result(cuda, cuda->device_count(&count)) != MXA_OK)
        return 0;
    return count;
}

/* The backend for a device that must be a CUDA device. */
static mxa_status open_device(mxa_device device, const mxa_cuda_backend **cuda)
{
    if (device < MXA_DEVICE_CUDA_0)
        return mxa_fail(MXA_ERR_ARG, "device: %d is not a CUDA device", (int)device);
    return mxa_cuda_table(device, cuda);
}

mxa_status mxa_device_query(mxa_device device, mxa_device_info *info)
{
    const mxa_cuda_backend *cuda;
    if (!info)
        return mxa_fail(MXA_ERR_ARG, "info: is NULL");
    const mxa_status status = open_device(device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->device_query(device, info)) : status;
}

mxa_status mxa_device_alloc(mxa_device device, size_t bytes, void **memory)
{
    const mxa_cuda_backend *cuda;
    if (!memory)
        return mxa_fail(MXA_ERR_ARG, "memory: is NULL");
    const mxa_status status = open_device(device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->device_alloc(device, bytes, memory)) : status;
}

mxa_status mxa_device_free(mxa_device device, void *memory)
{
    const mxa_cuda_backend *cuda;
    const mxa_status status = open_device(device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->device_free(device, memory)) : status;
}

mxa_status mxa_device_copy(mxa_device device, void *to, const void *from, size_t bytes)
{
    const mxa_cuda_backend *cuda;
    if (bytes > 0 && (!to || !from))
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", to ? "from" : "to");
    const mxa_status status = open_device(device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->device_copy(device, to, from, bytes)) : status;
}

mxa_status mxa_device_synchronize(mxa_device device, void *stream)
{
    const mxa_cuda_backend *cuda;
    const mxa_status status = open_device(device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->device_synchronize(device, stream)) : status;
}
