/* SPDX-License-Identifier: Apache-2.0 */
/* Fastest first; a call takes the first entry that this machine runs. */
#include "cpu/avx2/kv_attend_avx2.h"
#include "cpu/avx512/kv_attend_avx512.h"
#include "cpu/features.h"
#include "cpu/kv_attend_cpu.h"
#include "cpu/portable/kv_attend_portable.h"

const mxa_kv_impl mxa_kv_impls[] = {
#if defined(__x86_64__)
    { "avx512", MXA_CPU_AVX2 | MXA_CPU_AVX512 | MXA_CPU_AVX512_VNNI, mxa_kv_scratch_avx2,
      mxa_kv_segment_avx512 },
    { "avx2", MXA_CPU_AVX2, mxa_kv_scratch_avx2, mxa_kv_segment_avx2 },
#endif
    { "portable", MXA_CPU_PORTABLE, mxa_kv_scratch_portable, mxa_kv_segment_portable },
    { "ref", 0, NULL, NULL },
    { NULL, 0, NULL, NULL },
};
