/* SPDX-License-Identifier: Apache-2.0 */
/* Eight fp32 lanes: what the softmax needs of them. */
#ifndef MXA_CPU_AVX2_VECTOR_AVX2_H
#define MXA_CPU_AVX2_VECTOR_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum { MXA_AVX2_LANES = 8 };

static inline float mxa_avx2_largest(__m256 v)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline float mxa_avx2_sum(__m256 v)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/*
 * 2^n, n the nearest integer to x <= 0, and x - n. 0 below -126.5, -Inf included; of NaN, the difference is
 * NaN.
 */
static inline __m256 mxa_avx2_split(__m256 x, __m256 *difference)
{
    /*
     * In 1.5 * 2^23 the last bit of a float is 1, so that adding it rounds to an integer; 127 is the
     * exponent's bias. From -127 on, the power's bits are those of zero. max keeps its second operand if that
     * is NaN.
     */
    const __m256 round = _mm256_set1_ps(0x1.8p23f + 127.0f), lowest = _mm256_set1_ps(-127.0f);
    x = _mm256_max_ps(lowest, x);
    const __m256 t = _mm256_add_ps(x, round);
    *difference = _mm256_sub_ps(x, _mm256_sub_ps(t, round));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}

/*
 * 2^x to 2.9e-6 of its value for x <= 0; 0 below -126.5, -Inf included. NaN gives NaN. 2^x = 2^n 2^f; 2^f is
 * the polynomial 1 + f q(f) of degree 4 with the least relative error on [-1/2, 1/2]. P is rounded to 16 bits
 * next, which costs a thousand times more.
 */
static inline __m256 mxa_avx2_exp2(__m256 x)
{
    __m256 f;
    const __m256 power = mxa_avx2_split(x, &f);
    __m256 p = _mm256_set1_ps(0x1.3a02ccp-7f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c9fc46p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ec0378p-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e12cp-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(p, power);
}

/* The same to 2^-22, of degree 5 as mxa_vec_exp2: for what is not P. */
static inline __m256 mxa_avx2_exp2_fine(__m256 x)
{
    __m256 f;
    const __m256 power = mxa_avx2_split(x, &f);
    __m256 p = _mm256_set1_ps(0x1.5bba14p-10f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3cea88p-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6b752p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebf9bcp-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e42ap-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(p, power);
}

/* tanh(x) to a few units of 2^-24 of its value: as mxa_vec_tanh of cpu/portable/vector_portable.h. */
static inline __m256 mxa_avx2_tanh(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    const __m256 size = _mm256_andnot_ps(sign, x), square = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps((float)(62.0 / 2835.0));
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps((float)(-17.0 / 315.0)));
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps((float)(2.0 / 15.0)));
    p = _mm256_fmadd_ps(p, square, _mm256_set1_ps((float)(-1.0 / 3.0)));
    const __m256 near = _mm256_fmadd_ps(_mm256_mul_ps(x, square), p, x);
    const __m256 e =
        mxa_avx2_exp2_fine(_mm256_mul_ps(size, _mm256_set1_ps((float)(-2.0 * 1.4426950408889634))));
    const __m256 far = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    const __m256 signed_far = _mm256_or_ps(far, _mm256_and_ps(x, sign));
    return _mm256_blendv_ps(signed_far, near, _mm256_cmp_ps(size, _mm256_set1_ps(0.25f), _CMP_LT_OQ));
}

/* Rounded to bf16, to nearest, ties up: for numbers >= 0, and for NaN as exp2 makes it. */
static inline __m256 mxa_avx2_round_p_bf16(__m256 p)
{
    const __m256i half = _mm256_set1_epi32(0x8000), kept = _mm256_set1_epi32((int)0xFFFF0000u);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_add_epi32(_mm256_castps_si256(p), half), kept));
}

static inline __m256 mxa_avx2_round_p_f16(__m256 p)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT));
}

#endif
