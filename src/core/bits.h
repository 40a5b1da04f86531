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

/* Exact. NaN payloads move to the top mantissa bits. Without branches, so that loops become vectors. */
MXA_HD static inline float mxa_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const int32_t mag = h & 0x7FFF;
    const uint32_t subnormal = mxa_f32_bits((float)mag * 0x1p-24f);
    const uint32_t normal = ((uint32_t)mag << 13) + ((127u - 15u) << 23);
    const uint32_t special = MXA_F32_INF | (uint32_t)(mag & 0x3FF) << 13;
    const uint32_t finite = mag < 0x0400 ? subnormal : normal;
    return mxa_f32_from_bits(sign | (mag < 0x7C00 ? finite : special));
}

/*
 * Round to nearest even; finite overflow saturates to the largest finite value; NaN becomes 0x7FC0; Inf
 * stays.
 */
MXA_HD static inline uint16_t mxa_bf16_from_f32(float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu, sign = b >> 16 & 0x8000u;
    const int32_t magnitude = (int32_t)mag, inf = (int32_t)MXA_F32_INF;
    const int32_t rounded = (int32_t)((mag + 0x7FFFu + (mag >> 16 & 1u)) >> 16);
    const int32_t finite = rounded < 0x7F7F ? rounded : 0x7F7F;
    const uint32_t number = sign | (uint32_t)(magnitude < inf ? finite : 0x7F80);
    return (uint16_t)(magnitude > inf ? 0x7FC0u : number);
}

/* The same for binary16: saturates at 65504, NaN becomes 0x7E00. */
MXA_HD static inline uint16_t mxa_f16_from_f32(float x)
{
    const uint32_t b = mxa_f32_bits(x), mag = b & 0x7FFFFFFFu, sign = b >> 16 & 0x8000u;
    const int32_t magnitude = (int32_t)mag, inf = (int32_t)MXA_F32_INF, smallest_normal = 0x38800000;
    /* Below 2^-14 one unit is 2^-24, which is the ulp of 0.5. */
    const int32_t subnormal = (int32_t)(mxa_f32_bits(mxa_f32_from_bits(mag) + 0.5f) - 0x3F000000u);
    const int32_t rounded = (int32_t)((mag - ((127u - 15u) << 23) + 0xFFFu + (mag >> 13 & 1u)) >> 13);
    const int32_t normal = rounded < 0x7BFF ? rounded : 0x7BFF;
    const int32_t finite = magnitude < smallest_normal ? subnormal : normal;
    const uint32_t number = sign | (uint32_t)(magnitude < inf ? finite : 0x7C00);
    return (uint16_t)(magnitude > inf ? 0x7E00u : number);
}

#endif
