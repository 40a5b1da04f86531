/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first. A plan takes the first entry that runs it; mxa_check runs and times every one. */
#include "cpu/amx/attention_amx.h"
#include "cpu/attention_cpu.h"
#include "cpu/avx2/attention_avx2.h"
#include "cpu/avx512/attention_avx512.h"
#include "cpu/features.h"
#include "cpu/portable/attention_portable.h"
#include "cpu/ref/attention_ref.h"

/* Rounding of one operation in float64, and a bound on glibc's exp. */
#define REF_EPS 0x1p-53

/* Rounding of one fp32 operation; the bound of mxa_vec_exp2 in cpu/portable/vector_portable.h. */
#define F32_EPS  0x1p-24
#define EXP2_EPS 0x1p-22

/* The bound of mxa_avx2_exp2 in cpu/avx2/vector_avx2.h, of mxa_avx512_exp2 and of mxa_amx_exp2. */
#define EXP2_AVX2_EPS 0x1p-18

#define AVX512_NEEDS      (MXA_CPU_AVX512 | MXA_CPU_AVX512_VNNI)
#define AVX512_BF16_NEEDS (AVX512_NEEDS | MXA_CPU_AVX512_BF16 | MXA_CPU_FAST_BF16)

const mxa_attention_impl mxa_attention_impls[] = {
#if defined(__x86_64__)
    { "amx", MXA_CPU_AMX, mxa_attention_amx_refuses, mxa_attention_amx_scratch, mxa_attention_amx, F32_EPS,
      EXP2_AVX2_EPS, true, mxa_attention_amx_shared, mxa_attention_amx_share },
    { "avx512_bf16", AVX512_BF16_NEEDS, mxa_attention_avx512_refuses, mxa_attention_avx512_bf16_scratch,
      mxa_attention_avx512_bf16, F32_EPS, EXP2_AVX2_EPS, true, NULL, NULL },
    { "avx512", AVX512_NEEDS, mxa_attention_avx512_refuses, mxa_attention_avx512_scratch,
      mxa_attention_avx512, F32_EPS, EXP2_AVX2_EPS, false, NULL, NULL },
    { "avx2", MXA_CPU_AVX2, mxa_attention_avx2_refuses, mxa_attention_avx2_scratch, mxa_attention_avx2,
      F32_EPS, EXP2_AVX2_EPS, true, NULL, NULL },
#endif
    { "portable", MXA_CPU_PORTABLE, mxa_attention_portable_refuses, mxa_attention_portable_scratch,
      mxa_attention_portable, F32_EPS, EXP2_EPS, true, NULL, NULL },
    { "ref", 0, NULL, mxa_attention_ref_scratch, mxa_attention_ref, REF_EPS, REF_EPS, false, NULL, NULL },
    { NULL, 0, NULL, NULL, NULL, 0, 0, false, NULL, NULL },
};
