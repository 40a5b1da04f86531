/* SPDX-License-Identifier: Apache-2.0 */
/* CPU features as one flags word, found once at run time and masked by the environment variable MXA_CPU. */
#ifndef MXA_CPU_FEATURES_H
#define MXA_CPU_FEATURES_H

#include <mxattn/mxattn.h>

enum {
    MXA_CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    MXA_CPU_AVX512 = 1 << 1, /* F, BW, DQ, VL, CD */
    MXA_CPU_AVX512_BF16 = 1 << 2,
    MXA_CPU_AVX512_VNNI = 1 << 3,
    MXA_CPU_AMX = 1 << 4, /* TILE, INT8, BF16, and the kernel's permission */
    MXA_CPU_PORTABLE =
        1 << 5, /* no instruction: every entry but the reference needs it, so that a mask can end there */
    MXA_CPU_FAST_BF16 = 1 << 6, /* no instruction: vdpbf16ps multiplies faster than vfmadd231ps */
};

/*
 * MXA_CPU names the highest level allowed: ref, portable, avx2, avx512 or amx; unset or empty: all. Under
 * another word only the reference runs, and mxa_cpu_mask_status says why.
 */
uint32_t mxa_cpu_flags(void);

/* MXA_ERR_ARG with a sentence that lists the known words if MXA_CPU holds another one. */
mxa_status mxa_cpu_mask_status(void);

static inline bool mxa_cpu_has(uint32_t needs)
{
    return (needs & ~mxa_cpu_flags()) == 0;
}

#define MXA_CPU_FLAGS_TEXT 96 /* bytes that hold the text of all flags */

/* "avx2 fma f16c avx512" in the caller's buffer, which is returned; "" for none. */
const char *mxa_cpu_flags_text(uint32_t flags, char *text, int capacity);

#endif
