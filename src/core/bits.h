/* SPDX-License-Identifier: Apache-2.0 */
/* Bit patterns of binary32, binary16 and bfloat16, and exact conversions between them. */
#ifndef MXA_CORE_BITS_H
#define MXA_CORE_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MXA_HD __host__ __device__
#else
#define MXA_HD
#endif

#define MXA_F32_INF 0x7F800000u
#define MXA_F32_NAN 0x7FC00000u
#define MXA_F32_MAX 0x7F7FFFFFu

MXA_HD static inline uint32_t mxa_f32_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

MXA_HD static inline float mxa_f32_from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

/* Not isfinite(): this must stay right under any compiler flag. */
MXA_HD static inline bool mxa_f32_is_finite(float x)
{
    return (mxa_f32_bits(x) & MXA_F32_INF) != MXA_F32_INF;
}

/*
 * The bits of x; any NaN is the quiet one, since machines differ in the sign and payload of those they make.
 */
MXA_HD static inline uint32_t mxa_f32_canonical(float x)
{
    const uint32_t b = mxa_f32_bits(x);
    return (b & 0x7FFFFFFFu) > MXA_F32_INF ? MXA_F32_NAN : b;
}

MXA_HD static inline float mxa_f32_from_bf16(uint16_t h)
{
    return mxa_f32_from_bits((uint32_t)h << 16);
}

/* Exact. NaN payloads move to the top mantissa bits. */
MXA_HD static inline float mxa_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7FFFu;
    if (mag >= 0x7C00u)
        return mxa_f32_from_bits(sign | MXA_F32_INF | (mag & 0x3FFu) << 13);
    if (mag >= 0x0400u)
        return mxa_f32_from_bits(sign | ((mag << 13) + ((127u - 15u) << 23)));
    const float subnormal = (float)mag * 0x1p-24f;
    return mxa_f32_from_bits(sign | mxa_f32_bits(subnormal));
}

/*
 * Round to nearest even; finite overflow saturates to the largest finite value; NaN becomes 0x7FC0; Inf
 * stays.
 */
MXA_HD static inline uint16_t mxa_bf16_from_f32(float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu, sign = b >> 16 & 0x8000u;
    if (mag > MXA_F32_INF)
        return 0x7FC0;
    if (mag == MXA_F32_INF)
        return (uint16_t)(sign | 0x7F80u);
    const uint32_t r = (mag + 0x7FFFu + (mag >> 16 & 1u)) >> 16;
    return (uint16_t)(sign | (r > 0x7F7Fu ? 0x7F7Fu : r));
}

/* The same for binary16: saturates at 65504, NaN becomes 0x7E00. */
MXA_HD static inline uint16_t mxa_f16_from_f32(float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu, sign = b >> 16 & 0x8000u;
    if (mag > MXA_F32_INF)
        return 0x7E00;
    if (mag == MXA_F32_INF)
        return (uint16_t)(sign | 0x7C00u);
    if (mag < 0x38800000u) { /* below 2^-14: one unit is 2^-24, which is the ulp of 0.5 */
        const float sum = mxa_f32_from_bits(mag) + 0.5f;
        return (uint16_t)(sign | (mxa_f32_bits(sum) - 0x3F000000u));
    }
    const uint32_t r = (mag - ((127u - 15u) << 23) + 0xFFFu + (mag >> 13 & 1u)) >> 13;
    return (uint16_t)(sign | (r > 0x7BFFu ? 0x7BFFu : r));
}

#endif
