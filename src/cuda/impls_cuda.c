/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first. A plan takes the first entry that runs it. */
#include "cuda/attention_cuda.h"
#include "cuda/ref/attention_ref_cuda.h"

/* Rounding of one operation in float64, and a bound on CUDA's exp. */
#define REF_EPS 0x1p-53

const mxa_cuda_attention_impl mxa_cuda_attention_impls[] = {
    { .name = "ref",
      .arch = 80,
      .forms = mxa_attention_ref_forms_cuda,
      .run = mxa_attention_ref_cuda,
      .sum_eps = REF_EPS,
      .exp2_eps = REF_EPS },
    { .name = NULL },
};
