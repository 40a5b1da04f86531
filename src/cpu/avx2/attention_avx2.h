/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AVX2_ATTENTION_AVX2_H
#define MXA_CPU_AVX2_ATTENTION_AVX2_H

#include "cpu/attention_cpu.h"

mxa_attention_refuses_fn mxa_attention_avx2_refuses;
mxa_attention_scratch_fn mxa_attention_avx2_scratch;
mxa_attention_run_fn mxa_attention_avx2;

#endif
