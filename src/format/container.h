/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folding block scales into one row scale: docs/numerics.md, section 11. A code value p with block scale
 * 2^s_b is stored as t = p * 2^-d, d = s_row - s_b, in an FP8 container and read back as t * 2^s_row.
 */
#ifndef MXA_FORMAT_CONTAINER_H
#define MXA_FORMAT_CONTAINER_H

#include "format/element.h"

typedef enum mxa_container { MXA_CONTAINER_E5M2, MXA_CONTAINER_E4M3, MXA_CONTAINER_BF16 } mxa_container;

/* The d for which all codes of a source fold exactly; none where lowest > highest. */
typedef struct mxa_fold_range {
    int lowest, highest;
} mxa_fold_range;

MXA_HD static inline mxa_fold_range mxa_fold_make_range(int lowest, int highest)
{
    const mxa_fold_range range = { lowest, highest };
    return range;
}

MXA_HD static inline mxa_fold_range mxa_fold_range_e5m2(mxa_format source)
{
    switch (source) {
    case MXA_FORMAT_MXFP4: return mxa_fold_make_range(-13, 15);
    case MXA_FORMAT_MXFP6_E3M2: return mxa_fold_make_range(-11, 12);
    case MXA_FORMAT_MXFP8_E5M2: return mxa_fold_make_range(0, 0);
    default: return mxa_fold_make_range(1, 0);
    }
}

MXA_HD static inline mxa_fold_range mxa_fold_range_e4m3(mxa_format source)
{
    switch (source) {
    case MXA_FORMAT_MXFP4: return mxa_fold_make_range(-6, 8);
    case MXA_FORMAT_MXFP6_E3M2: return mxa_fold_make_range(-4, 5);
    case MXA_FORMAT_MXFP6_E2M3: return mxa_fold_make_range(-5, 6);
    case MXA_FORMAT_MXFP8_E4M3: return mxa_fold_make_range(0, 0);
    default: return mxa_fold_make_range(1, 0);
    }
}

/* MXINT8's code -128, which the quantiser never writes, starts at -126. */
MXA_HD static inline mxa_fold_range mxa_fold_range_bf16(mxa_format source)
{
    switch (source) {
    case MXA_FORMAT_MXFP4: return mxa_fold_make_range(-125, 132);
    case MXA_FORMAT_MXFP6_E3M2: return mxa_fold_make_range(-123, 129);
    case MXA_FORMAT_MXFP6_E2M3: return mxa_fold_make_range(-125, 130);
    case MXA_FORMAT_MXFP8_E5M2: return mxa_fold_make_range(-112, 117);
    case MXA_FORMAT_MXFP8_E4M3: return mxa_fold_make_range(-119, 124);
    case MXA_FORMAT_MXINT8: return mxa_fold_make_range(-127, 127);
    default: return mxa_fold_make_range(1, 0);
    }
}

MXA_HD static inline mxa_fold_range mxa_fold_exact(mxa_format source, mxa_container container)
{
    return container == MXA_CONTAINER_E5M2   ? mxa_fold_range_e5m2(source)
           : container == MXA_CONTAINER_E4M3 ? mxa_fold_range_e4m3(source)
                                             : mxa_fold_range_bf16(source);
}

/*
 * The row scale with full headroom, for a row whose largest dequantised magnitude is 2^row_exponent or more
 * and less than twice that. It may lie below E8M0 and fp32: -158 at the least.
 */
MXA_HD static inline int mxa_fold_row_scale(mxa_format source, mxa_container container, int row_exponent)
{
    if (container == MXA_CONTAINER_E5M2)
        return row_exponent - mxa_element_e5m2().emax;
    /* E4M3 has 1.75 * 2^8 at the top: 7.5 * 2^n would saturate there, so E2M3 stays one step below. */
    return row_exponent - mxa_element_e4m3().emax + (source == MXA_FORMAT_MXFP6_E2M3 ? 1 : 0);
}

/*
 * The code of p * 2^-d in an FP8 container, rounded to nearest even. Codes of Inf and NaN stay what they are.
 */
MXA_HD static inline uint8_t mxa_fold(mxa_format source, mxa_container container, uint32_t code, int d)
{
    const mxa_element to = container == MXA_CONTAINER_E5M2 ? mxa_element_e5m2() : mxa_element_e4m3();
    const float p = mxa_element_decode(mxa_element_of(source), code);
    if (!mxa_f32_is_finite(p)) /* 0x7F is NaN in both containers */
        return (uint8_t)(source == MXA_FORMAT_MXFP8_E5M2 && to.inf ? code : 0x7F);
    /* Beyond these, every p vanishes or saturates; the products are exact or encode to zero. */
    const int step = d > 127 ? 127 : d < -127 ? -127 : d;
    return mxa_element_encode(to, p * mxa_pow2(-step));
}

#endif
