/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of NVFP4, codes one a byte: docs/numerics.md, section 4. Elements are divided by the scale as
 * stored times g. No reciprocal and no other association: each changes codes on bf16 input.
 */
#ifndef MXA_FORMAT_NVFP4_H
#define MXA_FORMAT_NVFP4_H

#include "format/mx.h"

#define MXA_NVFP4_BLOCK 16

/* The scale byte for u = amax / (largest element * g); amax > 0. */
MXA_HD static inline uint8_t mxa_nvfp4_scale(float u, unsigned options)
{
    uint8_t scale = mxa_element_encode(mxa_element_e4m3(), u);
    if (options & MXA_NVFP4_SCALE_UP && scale < MXA_UE4M3_MAX && mxa_ue4m3_decode(scale) < u)
        scale++;
    return scale == 0 && !(options & MXA_NVFP4_FLUSH_TINY) ? 1 : scale;
}

/* element * scale * g, saturated. */
MXA_HD static inline float mxa_nvfp4_value(uint32_t code, uint32_t scale, float g)
{
    if ((scale & 0x7Fu) == MXA_UE4M3_NAN)
        return mxa_f32_from_bits(MXA_F32_NAN);
    return mxa_saturate(mxa_ue4m3_decode(scale) * g * mxa_element_decode(mxa_element_e2m1(), code));
}

MXA_HD static inline void mxa_nvfp4_encode(const float *x, int n, uint8_t scale, float g, uint8_t *codes)
{
    const float d = mxa_ue4m3_decode(scale) * g;
    for (int i = 0; i < n; i++)
        codes[i] = mxa_element_encode(mxa_element_e2m1(), scale ? x[i] / d : x[i] * 0.0f);
}

/* Sum of squared errors in double, in element order. */
MXA_HD static inline double mxa_nvfp4_error(const float *x, int n, const uint8_t *codes, uint8_t scale,
                                            float g)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double error = (double)x[i] - (double)mxa_nvfp4_value(codes[i], scale, g);
        sum += error * error;
    }
    return sum;
}

/* FOUR_OVER_SIX: replace codes and scale if the block maximum at 4 instead of 6 has the smaller error. */
MXA_HD static inline void mxa_nvfp4_try_four(unsigned options, const float *x, int n, float amax, float g,
                                             uint8_t *codes, uint8_t *scale)
{
    const float u4 = amax / (4.0f * g);
    if (!(u4 <= 448.0f))
        return;
    uint8_t codes4[MXA_NVFP4_BLOCK];
    const uint8_t scale4 = mxa_nvfp4_scale(u4, options);
    mxa_nvfp4_encode(x, n, scale4, g, codes4);
    if (mxa_nvfp4_error(x, n, codes4, scale4, g) < mxa_nvfp4_error(x, n, codes, *scale, g)) {
        memcpy(codes, codes4, (size_t)n);
        *scale = scale4;
    }
}

/* Quantise n <= 16 elements; returns whether they hold NaN or Inf. */
MXA_HD static inline bool mxa_nvfp4_quantize_block(unsigned options, const float *x, int n, float g,
                                                   uint8_t *codes, uint8_t *scale)
{
    const uint32_t amax_bits = mxa_amax_bits(x, n);
    if (amax_bits >= MXA_F32_INF) {
        memset(codes, 0, (size_t)n);
        *scale = MXA_UE4M3_NAN;
        return true;
    }
    const float amax = mxa_f32_from_bits(amax_bits);
    *scale = amax_bits == 0 ? 0 : mxa_nvfp4_scale(amax / (6.0f * g), options);
    mxa_nvfp4_encode(x, n, *scale, g, codes);
    if (options & MXA_NVFP4_FOUR_OVER_SIX && amax_bits != 0)
        mxa_nvfp4_try_four(options, x, n, amax, g, codes, scale);
    return false;
}

#endif
