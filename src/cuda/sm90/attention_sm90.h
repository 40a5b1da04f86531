/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the entry "sm90" in the list of attention kernels. */
#ifndef MXA_CUDA_ATTENTION_SM90_H
#define MXA_CUDA_ATTENTION_SM90_H

#include "cuda/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *mxa_attention_sm90_refuses(const mxa_plan *plan);
mxa_cuda_forms mxa_attention_sm90_forms(const mxa_plan *plan);
const char *mxa_attention_sm90_unsuited(const mxa_cuda_job *job);
int64_t mxa_attention_sm90_work_bytes(const mxa_plan *plan, const mxa_cuda_device *device);
mxa_status mxa_attention_sm90_prepare(const mxa_plan *plan, const mxa_cuda_device *device);
mxa_status mxa_attention_sm90(const mxa_cuda_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
