/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MXA_CPU_AVX512_KV_ATTEND_AVX512_H
#define MXA_CPU_AVX512_KV_ATTEND_AVX512_H

#include "cpu/kv_attend_cpu.h"

mxa_kv_segment_fn mxa_kv_segment_avx512;

#endif
