/* SPDX-License-Identifier: Apache-2.0 */
/* CPU features as one flags word, found once at run time and masked by the environment variable MXA_CPU. */
#ifndef MXA_CPU_FEATURES_H
#define MXA_CPU_FEATURES_H

#include <stdint.h>

enum {
    MXA_CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    MXA_CPU_AVX512 = 1 << 1, /* F, BW, DQ, VL, CD */
    MXA_CPU_AVX512_BF16 = 1 << 2,
    MXA_CPU_AVX512_VNNI = 1 << 3,
    MXA_CPU_AMX = 1 << 4, /* TILE, INT8, BF16, and the kernel's permission */
};

uint32_t mxa_cpu_flags(void);

/* "avx2 avx512" in a static buffer of the caller's choosing; "" for none. */
const char *mxa_cpu_flags_text(uint32_t flags, char *text, int capacity);

#endif
