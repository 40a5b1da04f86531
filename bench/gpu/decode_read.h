/* SPDX-License-Identifier: Apache-2.0 */
/* A pure read of device memory, to compare with. */
#ifndef DECODE_READ_H
#define DECODE_READ_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* bytes is a multiple of 16; sink is memory that is hardly ever written. */
void decode_read(const void *from, int64_t bytes, float *sink, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
