/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as the products of products_avx512.h want them: bytes, bf16 numbers, and keys side by side. */
#ifndef MXA_CPU_AVX512_LAYOUT_AVX512_H
#define MXA_CPU_AVX512_LAYOUT_AVX512_H

#include <stdbool.h>

#include "cpu/avx512/products_avx512.h"

/* Elements that a vector holds. */
enum { MXA_AVX512_BYTES = 64, MXA_AVX512_HALVES = 32 };

/* The first n elements of a vector, or all of them. */
static inline __mmask64 mxa_avx512_first_bytes(int64_t n)
{
    return n >= MXA_AVX512_BYTES ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

static inline __mmask32 mxa_avx512_first_halves(int64_t n)
{
    return n >= MXA_AVX512_HALVES ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1;
}

/* n bytes, then zeros up to whole vectors. Returns whether one of them is the byte `nan`. */
static inline bool mxa_avx512_copy_bytes(const uint8_t *x, int64_t n, uint8_t nan, int8_t *out)
{
    __mmask64 found = 0;
    for (int64_t d = 0; d < n; d += MXA_AVX512_BYTES) {
        const __m512i v = _mm512_maskz_loadu_epi8(mxa_avx512_first_bytes(n - d), x + d);
        found |= _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8((char)nan));
        _mm512_storeu_si512(out + d, v);
    }
    return found != 0;
}

/* n codes of E2M1, two in a byte, as twice their values, then zeros up to whole vectors; n is even. */
static inline void mxa_avx512_doubled_e2m1(const uint8_t *codes, int64_t n, int8_t *out)
{
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    for (int64_t d = 0; d < n; d += MXA_AVX512_BYTES) {
        const __mmask32 whole = mxa_avx512_first_halves((n - d) / 2);
        const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(whole, codes + d / 2));
        const __m512i nibbles =
            _mm512_and_si512(_mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4)), _mm512_set1_epi16(0x0F0F));
        _mm512_storeu_si512(out + d, _mm512_shuffle_epi8(table, nibbles));
    }
}

/* n numbers of bf16, then zeros up to whole vectors. Returns false if one is subnormal. */
static inline bool mxa_avx512_copy_bf16(const uint16_t *x, int64_t n, uint16_t *out)
{
    const __m512i exponent = _mm512_set1_epi16(0x7F80), mantissa = _mm512_set1_epi16(0x007F);
    __mmask32 subnormal = 0;
    for (int64_t d = 0; d < n; d += MXA_AVX512_HALVES) {
        const __m512i v = _mm512_maskz_loadu_epi16(mxa_avx512_first_halves(n - d), x + d);
        subnormal |= ~_mm512_test_epi16_mask(v, exponent) & _mm512_test_epi16_mask(v, mantissa);
        _mm512_storeu_si512(out + d, v);
    }
    return subnormal == 0;
}

/* The upper halves of 32 words. */
static inline __m512i mxa_avx512_upper_halves(__m512i first, __m512i second)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    /* Word `lane` names halves 2 (2 lane) + 1 and 2 (2 lane + 1) + 1 of the two vectors in a row. */
    const __m512i odd = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x00040004)),
                                         _mm512_set1_epi32(0x00030001));
    return _mm512_permutex2var_epi16(first, odd, second);
}

/* Words that are no float of bf16's 16 bits, or a subnormal one. */
static inline __mmask16 mxa_avx512_not_bf16(__m512i bits)
{
    const __mmask16 normal = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
    const __mmask16 mantissa = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x007F0000));
    return (__mmask16)(mantissa & ~normal) | _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0xFFFF));
}

/* n floats as bf16, n a multiple of 32. Returns false if a number is not one of its normal ones, or 0. */
static inline bool mxa_avx512_cut_to_bf16(const float *x, int64_t n, uint16_t *out)
{
    __mmask16 bad = 0;
    for (int64_t d = 0; d < n; d += MXA_AVX512_HALVES) {
        const __m512i a = _mm512_loadu_si512(x + d), b = _mm512_loadu_si512(x + d + MXA_AVX512_LANES);
        bad |= mxa_avx512_not_bf16(a) | mxa_avx512_not_bf16(b);
        _mm512_storeu_si512(out + d, mxa_avx512_upper_halves(a, b));
    }
    return bad == 0;
}

/* As mxa_bf16_from_f32, in the upper half; NaN stays one. */
static inline __m512i mxa_avx512_round_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), mag = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(mag, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 is_finite = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(0x7F800000), mag);
    const __m512i capped = _mm512_min_epu32(sum, _mm512_set1_epi32(0x7F7FFFFF)); /* the largest number */
    return _mm512_or_si512(_mm512_mask_mov_epi32(mag, is_finite, capped), _mm512_xor_si512(bits, mag));
}

/*
 * Sixteen rows of sixteen words, transposed: stage s swaps the words whose row and column differ in bit s
 * alone.
 */
static inline void mxa_avx512_transpose(__m512i r[MXA_AVX512_LANES])
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
    for (int s = 1; s < MXA_AVX512_LANES; s *= 2) {
        const __m512i other = _mm512_xor_si512(lanes, _mm512_set1_epi32(s));
        const __mmask16 odd = _mm512_test_epi32_mask(lanes, _mm512_set1_epi32(s));
#pragma GCC unroll 16
        for (int i = 0; i < MXA_AVX512_LANES; i++)
            if (!(i & s)) {
                const __m512i a = r[i], b = r[i | s];
                r[i] = _mm512_mask_permutexvar_epi32(a, odd, other, b);
                r[i | s] = _mm512_mask_permutexvar_epi32(b, (__mmask16)~odd, other, a);
            }
    }
}

/*
 * Keys side by side: rows x of words, stride bytes apart and readable in whole vectors, into
 * [words][MXA_AVX512_COLS], each with the bits of flip changed.
 */
static inline void mxa_avx512_pair_keys(const char *x, int64_t stride, int64_t words, uint32_t flip,
                                        uint32_t *out)
{
    const __m512i changed = _mm512_set1_epi32((int32_t)flip);
    for (int half = 0; half < MXA_AVX512_COLS; half += MXA_AVX512_LANES)
        for (int64_t w = 0; w < words; w += MXA_AVX512_LANES) {
            __m512i r[MXA_AVX512_LANES];
            for (int i = 0; i < MXA_AVX512_LANES; i++)
                r[i] = _mm512_loadu_si512(x + (half + i) * stride + w * (int64_t)sizeof *out);
            mxa_avx512_transpose(r);
            for (int i = 0; i < MXA_AVX512_LANES && w + i < words; i++)
                _mm512_storeu_si512(out + (w + i) * MXA_AVX512_COLS + half, _mm512_xor_si512(r[i], changed));
        }
}

/* 32 channels of two keys as pairs: [32][2]. */
static inline void mxa_avx512_pair_channels(__m512i even, __m512i odd, uint16_t *out)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    /* Words (lane, lane + 32): element `lane` of even, then of odd. */
    const __m512i low = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x10001)),
                                         _mm512_set1_epi32(MXA_AVX512_HALVES << 16));
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(MXA_AVX512_LANES * 0x10001));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(out + MXA_AVX512_HALVES, _mm512_permutex2var_epi16(even, high, odd));
}

#endif
