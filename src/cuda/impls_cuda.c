/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first. A plan takes the first entry that runs it. */
#include "cuda/attention_cuda.h"
#include "cuda/ref/attention_ref_cuda.h"
#include "cuda/sm80/attention_sm80.h"
#include "cuda/sm90/attention_sm90.h"

/* Rounding of one operation in float64, and a bound on CUDA's exp. */
#define REF_EPS 0x1p-53

/* FP8 products of 128 or fewer sum to within 4e-4 of the sum of magnitudes (docs/kernels_sm90.md). */
#define SM90_EPS      0x1p-18
#define SM90_EXP2_EPS 0x1p-22

/* mma.sync cuts what it aligns to the largest product, in place of rounding; exp2f, as in the CUDA manual. */
#define SM80_EPS      0x1p-22
#define SM80_EXP2_EPS 0x1p-22

const mxa_cuda_attention_impl mxa_cuda_attention_impls[] = {
    { .name = "sm90",
      .arch = 90,
      .arch_exact = true,
      .refuses = mxa_attention_sm90_refuses,
      .forms = mxa_attention_sm90_forms,
      .unsuited = mxa_attention_sm90_unsuited,
      .work_bytes = mxa_attention_sm90_work_bytes,
      .prepare = mxa_attention_sm90_prepare,
      .run = mxa_attention_sm90,
      .sum_eps = SM90_EPS,
      .exp2_eps = SM90_EXP2_EPS,
      .rounds_p = true },
    { .name = "sm80",
      .arch = 80,
      .refuses = mxa_attention_sm80_refuses,
      .forms = mxa_attention_sm80_forms,
      .work_bytes = mxa_attention_sm80_work_bytes,
      .prepare = mxa_attention_sm80_prepare,
      .run = mxa_attention_sm80,
      .sum_eps = SM80_EPS,
      .exp2_eps = SM80_EXP2_EPS,
      .rounds_p = true },
    { .name = "ref",
      .arch = 80,
      .forms = mxa_attention_ref_forms_cuda,
      .run = mxa_attention_ref_cuda,
      .sum_eps = REF_EPS,
      .exp2_eps = REF_EPS },
    { .name = NULL },
};
