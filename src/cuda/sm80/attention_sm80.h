/* SPDX-License-Identifier: Apache-2.0 */
/* The entry "sm80": tensor cores of any GPU from sm_80 on. */
#ifndef MXA_CUDA_ATTENTION_SM80_H
#define MXA_CUDA_ATTENTION_SM80_H

#include "cuda/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *mxa_attention_sm80_refuses(const mxa_plan *plan);
mxa_cuda_forms mxa_attention_sm80_forms(const mxa_plan *plan);
int64_t mxa_attention_sm80_work_bytes(const mxa_plan *plan, const mxa_cuda_device *device);
mxa_status mxa_attention_sm80_prepare(const mxa_plan *plan, const mxa_cuda_device *device);
mxa_status mxa_attention_sm80(const mxa_cuda_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
