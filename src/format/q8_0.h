/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ggml's q8_0: blocks of 32 elements, an fp16 step d and 32 signed bytes; a value is d times its byte
 * (struct block_q8_0 of ggml-common.h). Encoded as quantize_row_q8_0_ref of ggml-quants.c does it; a block
 * with NaN or Inf is NaN throughout, and a step above fp16's largest saturates.
 */
#ifndef MXA_FORMAT_Q8_0_H
#define MXA_FORMAT_Q8_0_H

#include <math.h>
#include <string.h>

#include "core/bits.h"

enum { MXA_Q8_0_BLOCK = 32, MXA_Q8_0_BYTES = 2 + MXA_Q8_0_BLOCK, MXA_Q8_0_LARGEST = 127 };

static inline void mxa_q8_0_decode(const uint8_t *src, float *x)
{
    uint16_t step;
    memcpy(&step, src, sizeof step);
    for (int i = 0; i < MXA_Q8_0_BLOCK; i++) /* 11 and 8 significant bits: exact */
        x[i] = mxa_f32_from_f16(step) * (float)(int8_t)src[sizeof step + (size_t)i];
}

static inline void mxa_q8_0_encode(const float *x, uint8_t *dst)
{
    const float largest_step = 65504.0f, smallest_normal = 0x1p-126f, largest = MXA_Q8_0_LARGEST;
    float amax = 0;
    bool finite = true;
    for (int i = 0; i < MXA_Q8_0_BLOCK; i++) {
        finite = finite && mxa_f32_is_finite(x[i]);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    const float d =
        fminf(amax / largest, largest_step); /* a subnormal one has no inverse, and is 0 in fp16 */
    const float inverse = finite && d >= smallest_normal ? 1.0f / d : 0.0f;
    const uint16_t step = mxa_f16_from_f32(finite ? d : mxa_f32_from_bits(MXA_F32_NAN));
    memcpy(dst, &step, sizeof step);
    for (int i = 0; i < MXA_Q8_0_BLOCK; i++) {
        const float n = finite ? roundf(x[i] * inverse) : 0.0f; /* ties away from zero */
        dst[sizeof step + (size_t)i] = (uint8_t)(int8_t)fminf(fmaxf(n, -largest), largest);
    }
}

#endif
