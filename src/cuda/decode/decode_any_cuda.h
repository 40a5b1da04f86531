/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the entry "any" in the list of decode kernels. */
#ifndef MXA_CUDA_DECODE_ANY_CUDA_H
#define MXA_CUDA_DECODE_ANY_CUDA_H

#include "cuda/decode/decode_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

int64_t mxa_decode_any_work_bytes(const mxa_decode_job *job);
mxa_status mxa_decode_any(const mxa_decode_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
