/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of several elements at once, as kernels make them. The bytes are those of format/element.h; host code
 * compiles these functions too, so that they are compared with it where there is no GPU.
 */
#ifndef MXA_CUDA_CODES_CUDA_CUH
#define MXA_CUDA_CODES_CUDA_CUH

#include <cuda_fp8.h>

#include "cuda/common/ptx_common.cuh"
#include "format/element.h"

namespace mxa
{

/* Adding this to |x| < 2^22 rounds x to a whole number, which is then in the low bits. */
constexpr float round_whole = 0x1.8p23f;

/* Of three; positive floats are in the order of their bits. */
MXA_HD inline int least(int a, int b, int c)
{
#ifdef __CUDA_ARCH__
    return __vimin3_s32(a, b, c);
#else
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
#endif
}

/*
 * The bits of the E2M1 code of t >= 0, NaN aside, plus those of round_whole. The code is the nearest whole
 * number to min(2t, t + 2, t/2 + 4): three lines that meet where the exponent changes. t is at most 6 if
 * capped is false.
 */
template <bool capped>
MXA_HD inline uint32_t e2m1_rounded(float t)
{
    const float below_2 = fmaf(t, 2.0f, round_whole), below_4 = t + (round_whole + 2.0f);
    const float above_4 = fmaf(t, 0.5f, round_whole + 4.0f);
    const int y = least(mxa_f32_bits(below_2), mxa_f32_bits(below_4), mxa_f32_bits(above_4));
    return uint32_t(capped ? least(y, mxa_f32_bits(round_whole + 7.0f), y) : y);
}

/* Bytes 3 of four words, the first lowest. */
MXA_HD inline uint32_t top_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x7300), 0x7610);
#else
    return a >> 24 | b >> 24 << 8 | c >> 24 << 16 | d >> 24 << 24;
#endif
}

/* Bytes 0 of four words, the first lowest. */
MXA_HD inline uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x4000), 0x7610);
#else
    return (a & 0xFF) | (b & 0xFF) << 8 | (c & 0xFF) << 16 | d << 24;
#endif
}

/* Eight E2M1 codes, the first in the low bits: magnitudes t, signs those of x. */
template <bool capped>
MXA_HD inline uint32_t e2m1_word(const float *t, const float *x)
{
    uint32_t rounding = 0, codes = 0;
    for (int i = 0; i < 8; i++) {
        codes += e2m1_rounded<capped>(t[i]) << 4 * i;
        rounding += mxa_f32_bits(round_whole) << 4 * i;
    }
    uint32_t bits[8];
    for (int i = 0; i < 8; i++)
        bits[i] = mxa_f32_bits(x[i]);
    const uint32_t even = top_bytes(bits[0], bits[2], bits[4], bits[6]);
    const uint32_t odd = top_bytes(bits[1], bits[3], bits[5], bits[7]);
    return (codes - rounding) | (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
}

/* Two codes of an 8-bit float, saturated, the first in the low byte. x is not NaN. */
template <__nv_fp8_interpretation_t type>
MXA_HD inline uint32_t fp8_pair(float lo, float hi)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, type);
}

template <__nv_fp8_interpretation_t type>
MXA_HD inline uint32_t fp8_word(float a, float b, float c, float d)
{
    return fp8_pair<type>(a, b) | fp8_pair<type>(c, d) << 16;
}

/*
 * Two numbers that 1 / g lies between, so far apart that x / g rounded to fp32 lies between the exact
 * products of x with them. Where both products give one code, so does the quotient; else it has to be worked
 * out.
 */
struct Bracket {
    float less, more;
};

MXA_HD inline Bracket bracket_reciprocal(float g)
{
    const float r = reciprocal(g);
    return { r * (1.0f - 0x1p-21f), r * (1.0f + 0x1p-21f) };
}

/* g = unit / power, unit in [1, 2) and power one of two, for a legal factor or one times a block scale. */
struct Divisor {
    float unit, power;
    float r; /* 1 / unit, rounded */
};

MXA_HD inline Divisor make_divisor(float g)
{
    const uint32_t bits = mxa_f32_bits(g);
    Divisor d;
    d.unit = mxa_f32_from_bits((bits & 0x007FFFFFu) | 0x3F800000u);
    d.power = mxa_f32_from_bits(0x7F000000u - (bits & MXA_F32_INF));
    const float r = reciprocal(d.unit);
    d.r = fmaf(fmaf(-d.unit, r, 1.0f), r, r);
    return d;
}

/*
 * |x| / g rounded to fp32 where that lies between 2^-100 and 2^20; below it vanishes in every code, above it
 * stays above. Two corrections: after the first the quotient is a neighbour of the exact one, and then the
 * second rounds correctly (Markstein).
 */
MXA_HD inline float quotient(float x, const Divisor &d)
{
    const float magnitude = fminf(fabsf(x) * d.power, 0x1p20f);
    const float first = magnitude * d.r;
    const float second = fmaf(fmaf(-first, d.unit, magnitude), d.r, first);
    return fmaf(fmaf(-second, d.unit, magnitude), d.r, second);
}

} // namespace mxa

#endif
