/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element codes and block-scale bytes, one at a time: docs/numerics.md, section 2.
 *
 * A code is sign, exponent, mantissa: (1 + m / 2^M) * 2^(e - bias), and (m / 2^M) * 2^(1 - bias) where e is
 * 0. Rounding is to nearest, ties to even; what exceeds the largest code becomes it.
 */
#ifndef MXA_FORMAT_ELEMENT_H
#define MXA_FORMAT_ELEMENT_H

#include <mxattn/mxattn.h>

#include "core/bits.h"

#define MXA_E8M0_NAN  0xFFu
#define MXA_UE4M3_NAN 0x7Fu
#define MXA_UE4M3_MAX 0x7Eu /* 448 */
#define MXA_FP8_NAN   0x7Fu
#define MXA_INT8_NAN  0x80u

typedef struct mxa_element {
    int man_bits;     /* M; MXINT8: fraction bits */
    int bias;         /* not used by MXINT8 */
    int emax;         /* exponent of the largest value */
    uint32_t largest; /* code of the largest value */
    uint32_t sign;    /* the sign bit */
    uint32_t inf;     /* code of +Inf; 0: none. Other codes above the largest are NaN. */
} mxa_element;

MXA_HD static inline mxa_element mxa_element_e4m3(void)
{
    const mxa_element e = { 3, 7, 8, 0x7E, 0x80, 0 };
    return e;
}

MXA_HD static inline mxa_element mxa_element_e5m2(void)
{
    const mxa_element e = { 2, 15, 15, 0x7B, 0x80, 0x7C };
    return e;
}

MXA_HD static inline mxa_element mxa_element_e3m2(void)
{
    const mxa_element e = { 2, 3, 4, 0x1F, 0x20, 0 };
    return e;
}

MXA_HD static inline mxa_element mxa_element_e2m3(void)
{
    const mxa_element e = { 3, 1, 2, 0x1F, 0x20, 0 };
    return e;
}

MXA_HD static inline mxa_element mxa_element_e2m1(void)
{
    const mxa_element e = { 1, 1, 2, 0x7, 0x8, 0 };
    return e;
}

/* The element of MXINT8: two's complement n, value n / 64. Only the scale rule reads this description. */
MXA_HD static inline mxa_element mxa_element_mxint8(void)
{
    const mxa_element e = { 6, 0, 0, 0x7F, 0x80, 0 };
    return e;
}

/* The element of a format that has minifloat codes or is MXINT8. */
MXA_HD static inline mxa_element mxa_element_of(mxa_format format)
{
    switch (format) {
    case MXA_FORMAT_MXFP8_E5M2: return mxa_element_e5m2();
    case MXA_FORMAT_MXFP6_E3M2: return mxa_element_e3m2();
    case MXA_FORMAT_MXFP6_E2M3: return mxa_element_e2m3();
    case MXA_FORMAT_MXFP4:
    case MXA_FORMAT_NVFP4: return mxa_element_e2m1();
    case MXA_FORMAT_MXINT8: return mxa_element_mxint8();
    default: return mxa_element_e4m3();
    }
}

/* 2^e for e in -127..127; the lowest is subnormal. */
MXA_HD static inline float mxa_pow2(int e)
{
    return mxa_f32_from_bits(e > -127 ? (uint32_t)(e + 127) << 23 : 0x00400000u);
}

/* y, or the largest finite number of y's sign where a product of finite numbers overflowed. */
MXA_HD static inline float mxa_saturate(float y)
{
    const uint32_t b = mxa_f32_bits(y);
    return (b & 0x7FFFFFFFu) == MXA_F32_INF ? mxa_f32_from_bits(b - 1) : y;
}

/* x is not NaN. Infinity, from an overflow inside the quantiser, becomes the largest code. */
MXA_HD static inline uint8_t mxa_element_encode(mxa_element f, float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu, sign = b >> 31 ? f.sign : 0;
    if (mag < 0x00800000u) /* zero or subnormal */
        return (uint8_t)sign;
    if (mag >= MXA_F32_INF)
        return (uint8_t)(sign | f.largest);

    /* |x| = m * 2^(u - 23); one unit of the code's mantissa is 2^ulp. */
    const uint32_t m = (mag & 0x007FFFFFu) | 0x00800000u;
    const int u = (int)(mag >> 23) - 127, lowest = 1 - f.bias;
    const int ulp = (u > lowest ? u : lowest) - f.man_bits;
    const int wanted = ulp - (u - 23), vanished = 25; /* shifted so far, any m rounds to 0 */
    const int shift = wanted < vanished ? wanted : vanished;

    const uint32_t half = 1u << (shift - 1), q = (m + half - 1 + (m >> shift & 1u)) >> shift;
    const uint32_t code = q + ((uint32_t)(ulp + f.man_bits - lowest) << f.man_bits);
    return (uint8_t)(sign | (code < f.largest ? code : f.largest));
}

MXA_HD static inline float mxa_element_decode(mxa_element f, uint32_t code)
{
    const uint32_t sign = code & f.sign ? 0x80000000u : 0, mag = code & (f.sign - 1);
    if (mag > f.largest)
        return mxa_f32_from_bits(mag == f.inf ? sign | MXA_F32_INF : MXA_F32_NAN);
    if (mag >> f.man_bits == 0) {
        const float subnormal = (float)mag * mxa_pow2(1 - f.bias - f.man_bits);
        return mxa_f32_from_bits(sign | mxa_f32_bits(subnormal));
    }
    return mxa_f32_from_bits(sign | ((mag << (23 - f.man_bits)) + ((uint32_t)(127 - f.bias) << 23)));
}

/*
 * Nearest integer, ties to even, clamped to -127..127: adding 1.5 * 2^23 rounds to whole numbers. x is not
 * NaN.
 */
MXA_HD static inline int mxa_round_i8(float x)
{
    const float clamped = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    return (int)(mxa_f32_bits(clamped + 0x1.8p23f) - mxa_f32_bits(0x1.8p23f));
}

MXA_HD static inline uint8_t mxa_mxint8_encode(float x)
{
    return (uint8_t)mxa_round_i8(x * 64.0f);
}

MXA_HD static inline float mxa_mxint8_decode(uint32_t code)
{
    return (float)(int8_t)code * 0x1p-6f;
}

/* The byte of an INT8 element (0x80 is NaN, -1..-127 and 0..127 are numbers). */
MXA_HD static inline float mxa_int8_decode(uint32_t code)
{
    return code == MXA_INT8_NAN ? mxa_f32_from_bits(MXA_F32_NAN) : (float)(int8_t)code;
}

MXA_HD static inline float mxa_e8m0_decode(uint32_t b)
{
    return b == MXA_E8M0_NAN ? mxa_f32_from_bits(MXA_F32_NAN) : mxa_pow2((int)b - 127);
}

/* The sign bit is ignored. */
MXA_HD static inline float mxa_ue4m3_decode(uint32_t b)
{
    return mxa_element_decode(mxa_element_e4m3(), b & 0x7Fu);
}

#endif
