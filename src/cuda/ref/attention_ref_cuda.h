/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in float64 on any GPU, a block for each row: the last entry of the list, and what faster entries
 * leave rows to that they cannot do.
 */
#ifndef MXA_CUDA_ATTENTION_REF_CUDA_H
#define MXA_CUDA_ATTENTION_REF_CUDA_H

#include "cuda/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One row of the output. */
typedef struct mxa_cuda_row {
    int32_t sequence, head;
    int64_t row; /* of the sequence */
} mxa_cuda_row;

mxa_cuda_forms mxa_attention_ref_forms_cuda(const mxa_plan *plan);
mxa_status mxa_attention_ref_cuda(const mxa_cuda_job *job, cudaStream_t stream);

/*
 * Only the first *count rows of a list of at most capacity, both in device memory. The job's operands may
 * have any form but CODES of formats with block scales. keep_finite: where a row's output is finite, and
 * what is computed is too, it stays as it is: the entry has done it again without the masked keys' NaN and
 * Inf.
 */
mxa_status mxa_attention_ref_rows_cuda(const mxa_cuda_job *job, const mxa_cuda_row *rows, const int *count,
                                       int64_t capacity, bool keep_finite, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
