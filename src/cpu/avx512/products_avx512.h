/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of a tile: blocks of up to MXA_AVX512_ROWS query rows by MXA_AVX512_COLS columns (keys, or
 * channels of V) that stay in registers: 24 sums, 2 columns and a row's word in all lanes are 27 of 32. A
 * row's sums are taken in index order whatever the number of rows beside it, so its bits do not depend on it.
 *
 * A word is 32 bits of a row: 4 bytes, 2 bf16 numbers or a float; b holds [n words][MXA_AVX512_COLS]. Rows
 * lie a fixed stride apart, so that one pointer addresses all of them.
 */
#ifndef MXA_CPU_AVX512_PRODUCTS_AVX512_H
#define MXA_CPU_AVX512_PRODUCTS_AVX512_H

#include <string.h>

#include "cpu/avx512/vector_avx512.h"

enum { MXA_AVX512_ROWS = 12, MXA_AVX512_COLS = 2 * MXA_AVX512_LANES };

/* Rows that share what the L1 cache holds: their logits of a tile are 12 KB. */
enum { MXA_AVX512_BLOCK = 2 * MXA_AVX512_ROWS };

/* Added to signed bytes of K: vpdpbusd wants one side without sign. */
enum { MXA_AVX512_OFFSET = 128 };

/* Integers of 32 bits; GCC keeps sums of this type in registers, those of __m512i it moves about. */
typedef int32_t mxa_avx512_ints __attribute__((vector_size(64)));

/* How many of the rows that are left go together: few cases, since each is code of its own. */
static inline int mxa_avx512_rows_of(int64_t left)
{
    return left >= MXA_AVX512_ROWS ? MXA_AVX512_ROWS : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static inline mxa_avx512_ints mxa_avx512_word(const void *word)
{
    int32_t bits;
    memcpy(&bits, word, sizeof bits);
    return (mxa_avx512_ints)_mm512_set1_epi32(bits);
}

/* sums[r] = sum over i < n of a[r * stride + i] b[i] */
MXA_AVX512_INLINE void mxa_avx512_block_f32(int rows, int64_t n, const float *a, int64_t stride,
                                            const float *b, __m512 (*sums)[2])
{
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i++) {
        const __m512 b0 = _mm512_loadu_ps(b + i * MXA_AVX512_COLS);
        const __m512 b1 = _mm512_loadu_ps(b + i * MXA_AVX512_COLS + MXA_AVX512_LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const __m512 x = _mm512_set1_ps(a[r * stride + i]);
            sums[r][0] = _mm512_fmadd_ps(x, b0, sums[r][0]);
            sums[r][1] = _mm512_fmadd_ps(x, b1, sums[r][1]);
        }
    }
}

/* The same for n pairs of bf16 numbers; subnormal ones count as 0. */
MXA_AVX512_INLINE void mxa_avx512_block_bf16(int rows, int64_t n, const uint16_t *a, int64_t stride,
                                             const uint16_t *b, __m512 (*sums)[2])
{
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i++) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + i * 2 * MXA_AVX512_COLS);
        const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + i * 2 * MXA_AVX512_COLS + MXA_AVX512_COLS);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const __m512bh x = (__m512bh)mxa_avx512_word(a + r * stride + 2 * i);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, b0);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, b1);
        }
    }
}

/* sums[r] = start[r * start_stride] + products of n words of bytes, a signed, b without sign. Exact. */
MXA_AVX512_INLINE void mxa_avx512_block_i8(int rows, int64_t n, const int8_t *a, int64_t stride,
                                           const uint8_t *b, const int32_t *start, int64_t start_stride,
                                           mxa_avx512_ints (*sums)[2])
{
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = mxa_avx512_word(start + r * start_stride);
    for (int64_t i = 0; i < n; i++) {
        const __m512i b0 = _mm512_loadu_si512(b + i * 4 * MXA_AVX512_COLS);
        const __m512i b1 = _mm512_loadu_si512(b + i * 4 * MXA_AVX512_COLS + 4 * MXA_AVX512_LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const __m512i x = (__m512i)mxa_avx512_word(a + r * stride + 4 * i);
            sums[r][0] = (mxa_avx512_ints)_mm512_dpbusd_epi32((__m512i)sums[r][0], b0, x);
            sums[r][1] = (mxa_avx512_ints)_mm512_dpbusd_epi32((__m512i)sums[r][1], b1, x);
        }
    }
}

#endif
