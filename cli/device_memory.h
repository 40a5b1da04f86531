/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the command's arrays in the memory of a CUDA device. Messages on failure. */
#ifndef MXA_DEVICE_MEMORY_H
#define MXA_DEVICE_MEMORY_H

#include <mxattn/mxattn.h>

enum { DEVICE_PIECES = 12 };

typedef struct device_memory {
    mxa_device device;
    void *pieces[DEVICE_PIECES]; /* freed by device_free */
    int count;
} device_memory;

static inline bool device_is_cuda(mxa_device device)
{
    return device >= MXA_DEVICE_CUDA_0;
}

/* Point *memory at bytes of the device, uninitialised. */
bool device_alloc(device_memory *m, uint64_t bytes, void **memory);

/* Replace the host array that *memory points at by a copy on the device; NULL stays NULL. */
bool device_upload(device_memory *m, uint64_t bytes, void **memory);

bool device_download(const device_memory *m, const void *memory, uint64_t bytes, void *host);

void device_free(device_memory *m);

#endif
