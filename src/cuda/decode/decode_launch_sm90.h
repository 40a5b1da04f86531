/* SPDX-License-Identifier: Apache-2.0 */
/* The instances of the decode kernel of sm_90a, each file's by number; and functions of the entry "sm90". */
#ifndef MXA_CUDA_DECODE_LAUNCH_SM90_H
#define MXA_CUDA_DECODE_LAUNCH_SM90_H

#include "cuda/decode/decode_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *mxa_decode_sm90_refuses(const mxa_decode_job *job);
int64_t mxa_decode_sm90_work_bytes(const mxa_decode_job *job);
mxa_status mxa_decode_sm90(const mxa_decode_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
