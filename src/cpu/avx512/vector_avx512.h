/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen fp32 lanes: what the softmax needs of them, and 16-bit numbers in and out. */
#ifndef MXA_CPU_AVX512_VECTOR_AVX512_H
#define MXA_CPU_AVX512_VECTOR_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { MXA_AVX512_LANES = 16 };

#define MXA_AVX512_INLINE static inline __attribute__((always_inline))

/* The lanes of a vector that starts at element `at` which lie in [first, end). */
static inline __mmask16 mxa_avx512_span_mask(int64_t at, int64_t first, int64_t end)
{
    const int64_t low = first > at ? first - at : 0, high = end - at;
    if (low >= MXA_AVX512_LANES || high <= low)
        return 0;
    const uint32_t below_high = high < MXA_AVX512_LANES ? (1u << high) - 1 : 0xFFFF;
    return (__mmask16)(below_high & ~((1u << low) - 1));
}

/*
 * x, or NaN where it is Inf: a sum or a product with one factor that overflowed says nothing about the
 * logit, and -Inf would count as masked. The row goes to the reference.
 */
static inline __m512 mxa_avx512_nan_if_inf(__m512 x)
{
    return _mm512_fmadd_ps(x, _mm512_setzero_ps(), x);
}

/*
 * 2^(n + lift), n the nearest integer to x < 128 - lift, and x - n. 0 below -126.5 - lift, -Inf included; of
 * NaN, x - n is NaN.
 */
static inline __m512 mxa_avx512_split(__m512 x, float lift, __m512 *difference)
{
    /*
     * In 1.5 * 2^23 the last bit of a float is 1, so that adding it rounds to an integer; 127 is the
     * exponent's bias. From -127 - lift on, the power's bits are those of zero. max keeps its second operand
     * if that is NaN.
     */
    const float bias = 127.0f + lift;
    const __m512 round = _mm512_set1_ps(0x1.8p23f + bias), lowest = _mm512_set1_ps(-bias);
    x = _mm512_max_ps(lowest, x);
    const __m512 t = _mm512_add_ps(x, round);
    *difference = _mm512_sub_ps(x, _mm512_sub_ps(t, round));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
}

/* Vectors whose functions are taken together: a step of all of them hides the latency of one. */
enum { MXA_AVX512_TOGETHER = 4 };

/*
 * 2^(x + lift) in place, n vectors, to 2.9e-6 of its value for x < 127 - lift; 0 below -126.5 - lift, -Inf
 * included. NaN gives NaN. 2^x = 2^w 2^f, w whole; 2^f is the polynomial 1 + f q(f) of degree 4 with the
 * least relative error on [-1/2, 1/2].
 */
MXA_AVX512_INLINE void mxa_avx512_exp2(int n, float lift, __m512 *x)
{
    static const float q[] = { 0x1.c9fc46p-5f, 0x1.ec0378p-3f, 0x1.62e12cp-1f, 1.0f };
    __m512 f[MXA_AVX512_TOGETHER], p[MXA_AVX512_TOGETHER];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        x[i] = mxa_avx512_split(x[i], lift, &f[i]);
        p[i] = _mm512_set1_ps(0x1.3a02ccp-7f);
    }
#pragma GCC unroll 4
    for (size_t step = 0; step < sizeof q / sizeof *q; step++)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            p[i] = _mm512_fmadd_ps(p[i], f[i], _mm512_set1_ps(q[step]));
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        x[i] = _mm512_mul_ps(p[i], x[i]);
}

/* One vector to 2^-22, of degree 5 as mxa_vec_exp2: for what is not P. Exact for integers. */
static inline __m512 mxa_avx512_exp2_fine(__m512 x)
{
    __m512 f;
    const __m512 power = mxa_avx512_split(x, 0.0f, &f);
    __m512 p = _mm512_set1_ps(0x1.5bba14p-10f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3cea88p-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6b752p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebf9bcp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e42ap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_mul_ps(p, power);
}

/* tanh(x) to a few units of 2^-24 of its value: as mxa_vec_tanh of cpu/portable/vector_portable.h. */
static inline __m512 mxa_avx512_tanh(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 size = _mm512_abs_ps(x), square = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps((float)(62.0 / 2835.0));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps((float)(-17.0 / 315.0)));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps((float)(2.0 / 15.0)));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps((float)(-1.0 / 3.0)));
    const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(x, square), p, x);
    const __m512 e =
        mxa_avx512_exp2_fine(_mm512_mul_ps(size, _mm512_set1_ps((float)(-2.0 * 1.4426950408889634))));
    const __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    const __m512 signed_far = _mm512_or_ps(far, _mm512_and_ps(x, _mm512_set1_ps(-0.0f)));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.25f), _CMP_LT_OQ), signed_far,
                                near);
}

/* Thirty-two numbers as bf16, to nearest even, in order. Subnormal ones count as 0. NaN stays. */
static inline __m512i mxa_avx512_pack_bf16(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

static inline __m512 mxa_avx512_widen_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

#endif
