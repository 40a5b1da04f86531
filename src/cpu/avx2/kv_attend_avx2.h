/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AVX2_KV_ATTEND_AVX2_H
#define MXA_CPU_AVX2_KV_ATTEND_AVX2_H

#include "cpu/kv_attend_cpu.h"

mxa_kv_scratch_fn mxa_kv_scratch_avx2;
mxa_kv_segment_fn mxa_kv_segment_avx2;

#endif
