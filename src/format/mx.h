/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One block of an MX format (MXFP8, MXFP6, MXFP4, MXINT8), codes one a byte: docs/numerics.md, sections 3 and
 * 4.
 */
#ifndef MXA_FORMAT_MX_H
#define MXA_FORMAT_MX_H

#include "format/mx_scale.h"

#define MXA_MX_BLOCK 32

/* The bits of max |x|: as unsigned numbers, magnitudes are in order and those of Inf and NaN the largest. */
MXA_HD static inline uint32_t mxa_amax_bits(const float *x, int64_t n)
{
    int32_t amax = 0; /* signed compares are what vector units have */
    for (int64_t i = 0; i < n; i++) {
        const int32_t mag = (int32_t)(mxa_f32_bits(x[i]) & 0x7FFFFFFFu);
        amax = mag > amax ? mag : amax;
    }
    return (uint32_t)amax;
}

MXA_HD static inline uint8_t mxa_mx_encode(mxa_format format, float x)
{
    return format == MXA_FORMAT_MXINT8 ? mxa_mxint8_encode(x) : mxa_element_encode(mxa_element_of(format), x);
}

MXA_HD static inline float mxa_mx_decode(mxa_format format, uint32_t code)
{
    return format == MXA_FORMAT_MXINT8 ? mxa_mxint8_decode(code)
                                       : mxa_element_decode(mxa_element_of(format), code);
}

/*
 * Quantise n <= 32 elements; returns whether they hold NaN or Inf. g is 1 at level NONE: dividing by it
 * changes nothing.
 */
MXA_HD static inline bool mxa_mx_quantize_block(mxa_format format, mxa_rule rule, const float *x, int n,
                                                float g, uint8_t *codes, uint8_t *scale)
{
    if (mxa_amax_bits(x, n) >= MXA_F32_INF) {
        memset(codes, 0, (size_t)n);
        *scale = MXA_E8M0_NAN;
        return true;
    }
    float t[MXA_MX_BLOCK];
    for (int i = 0; i < n; i++)
        t[i] = mxa_saturate(x[i] / g);

    const mxa_element element = mxa_element_of(format);
    *scale = mxa_mx_scale(element, mxa_mx_threshold(element, rule), mxa_amax_bits(t, n));
    const float inverse = mxa_pow2(127 - *scale);
    for (int i = 0; i < n; i++)
        codes[i] = mxa_mx_encode(format, t[i] * inverse);
    return false;
}

/* element * 2^(scale - 127), saturated. */
MXA_HD static inline float mxa_mx_value(mxa_format format, uint32_t code, uint32_t scale)
{
    const float element = mxa_mx_decode(format, code);
    if (scale == MXA_E8M0_NAN)
        return mxa_f32_from_bits(MXA_F32_NAN);
    const float y = element * mxa_e8m0_decode(scale);
    return mxa_f32_is_finite(element) ? mxa_saturate(y) : element;
}

#endif
