/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AVX512_ATTENTION_AVX512_H
#define MXA_CPU_AVX512_ATTENTION_AVX512_H

#include "cpu/attention_cpu.h"

mxa_attention_refuses_fn mxa_attention_avx512_refuses;

/* Integers by VNNI, all else by fp32 FMA; P is not rounded. */
mxa_attention_scratch_fn mxa_attention_avx512_scratch;
mxa_attention_run_fn mxa_attention_avx512;

/* The same with 16-bit products by vdpbf16ps, for processors where that is faster. */
mxa_attention_scratch_fn mxa_attention_avx512_bf16_scratch;
mxa_attention_run_fn mxa_attention_avx512_bf16;

#endif
