/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as the products of products_avx512.h want them: bytes, bf16 numbers, and keys side by side. */
#ifndef MXA_CPU_AVX512_LAYOUT_AVX512_H
#define MXA_CPU_AVX512_LAYOUT_AVX512_H

#include <mxattn/mxattn.h>

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

/* n numbers of bf16 as floats, then zeros up to whole vectors of halves. */
static inline void mxa_avx512_widen_row(const uint16_t *x, int64_t n, float *out)
{
    for (int64_t d = 0; d < n; d += MXA_AVX512_HALVES) {
        const __m512i halves = _mm512_maskz_loadu_epi16(mxa_avx512_first_halves(n - d), x + d);
        _mm512_storeu_ps(out + d, mxa_avx512_widen_bf16(_mm512_castsi512_si256(halves)));
        _mm512_storeu_ps(out + d + MXA_AVX512_LANES,
                         mxa_avx512_widen_bf16(_mm512_extracti64x4_epi64(halves, 1)));
    }
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

/* 32 elements as floats, zeros where whole has no bit. */
static inline void mxa_avx512_load_floats(const void *x, mxa_dtype type, __mmask32 whole, __m512 c[2])
{
    if (type == MXA_DTYPE_F32) {
        const float *const at = x;
        c[0] = _mm512_maskz_loadu_ps((__mmask16)whole, at);
        c[1] = _mm512_maskz_loadu_ps((__mmask16)(whole >> MXA_AVX512_LANES), at + MXA_AVX512_LANES);
        return;
    }
    const __m512i halves = _mm512_maskz_loadu_epi16(whole, x);
    const __m256i low = _mm512_castsi512_si256(halves), high = _mm512_extracti64x4_epi64(halves, 1);
    c[0] = type == MXA_DTYPE_F16 ? _mm512_cvtph_ps(low) : mxa_avx512_widen_bf16(low);
    c[1] = type == MXA_DTYPE_F16 ? _mm512_cvtph_ps(high) : mxa_avx512_widen_bf16(high);
}

static inline __mmask16 mxa_avx512_finite(__m512 x)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1.fffffep127f), _CMP_LE_OQ);
}

/* As mxa_bf16_from_f32 for numbers. */
static inline __m512 mxa_avx512_round_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), mag = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(mag, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(mag, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i upper = _mm512_and_si512(sum, _mm512_set1_epi32((int32_t)0xFFFF0000));
    const __m512i capped = _mm512_min_epu32(upper, _mm512_set1_epi32(0x7F7F0000)); /* the largest number */
    return _mm512_castsi512_ps(_mm512_or_si512(capped, _mm512_xor_si512(bits, mag)));
}

/* As mxa_f16_from_f32 for numbers. */
static inline __m512 mxa_avx512_round_f16(__m512 x)
{
    const __m512 largest = _mm512_set1_ps(65504.0f), lowest = _mm512_set1_ps(-65504.0f);
    const __m512 capped = _mm512_max_ps(_mm512_min_ps(x, largest), lowest);
    return _mm512_cvtph_ps(_mm512_cvtps_ph(capped, _MM_FROUND_TO_NEAREST_INT));
}

/* Rounded to bf16 or f16; Inf and NaN stay. */
static inline void mxa_avx512_round_to(mxa_dtype type, __m512 c[2])
{
    for (int i = 0; i < 2; i++) {
        const __m512 number =
            type == MXA_DTYPE_F16 ? mxa_avx512_round_f16(c[i]) : mxa_avx512_round_bf16(c[i]);
        c[i] = _mm512_mask_mov_ps(c[i], mxa_avx512_finite(c[i]), number);
    }
}

/* The subnormal numbers, and the finite ones from limit on. */
static inline __mmask16 mxa_avx512_extreme(__m512 x, float limit)
{
    const __m512 mag = _mm512_abs_ps(x);
    const __mmask16 large = _mm512_cmp_ps_mask(mag, _mm512_set1_ps(limit), _CMP_GE_OQ);
    const __mmask16 small = _mm512_cmp_ps_mask(mag, _mm512_set1_ps(0x1p-126f), _CMP_LT_OQ);
    const __mmask16 none = _mm512_cmp_ps_mask(mag, _mm512_setzero_ps(), _CMP_LE_OQ);
    return (__mmask16)(large & mxa_avx512_finite(x)) | (__mmask16)(small & ~none);
}

/* Zeros in place of Inf and NaN. Returns whether there were any. */
static inline bool mxa_avx512_drop_nonfinite(__m512 c[2])
{
    const __mmask16 low = mxa_avx512_finite(c[0]), high = mxa_avx512_finite(c[1]);
    c[0] = _mm512_maskz_mov_ps(low, c[0]);
    c[1] = _mm512_maskz_mov_ps(high, c[1]);
    return (low & high) != UINT16_MAX;
}

/* 32 channels of two keys, one key after the other. */
static inline void mxa_avx512_store_channels(const __m512 even[2], const __m512 odd[2], float *out)
{
    for (int i = 0; i < 2; i++) {
        _mm512_storeu_ps(out + i * MXA_AVX512_LANES, even[i]);
        _mm512_storeu_ps(out + MXA_AVX512_COLS + i * MXA_AVX512_LANES, odd[i]);
    }
}

/* As pairs of bf16, which the floats hold: [32][2]. */
static inline void mxa_avx512_pair_channels(const __m512 even[2], const __m512 odd[2], uint16_t *out)
{
    const __m512i upper = _mm512_set1_epi32((int32_t)0xFFFF0000);
    for (int i = 0; i < 2; i++) {
        const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even[i]), 16);
        const __m512i high = _mm512_and_si512(_mm512_castps_si512(odd[i]), upper);
        _mm512_storeu_si512(out + i * MXA_AVX512_HALVES, _mm512_or_si512(low, high));
    }
}

#endif
