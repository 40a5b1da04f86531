/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of a tile: blocks of up to MXA_AVX2_ROWS query rows by MXA_AVX2_COLS columns (keys, or
 * channels of V) that stay in registers: 12 sums, 2 columns, a row's value in all lanes and a product are the
 * 16 registers. A row's sums are taken in index order whatever the number of rows beside it, so its bits do
 * not depend on it.
 */
#ifndef MXA_CPU_AVX2_PRODUCTS_AVX2_H
#define MXA_CPU_AVX2_PRODUCTS_AVX2_H

#include "cpu/avx2/vector_avx2.h"

enum { MXA_AVX2_ROWS = 6, MXA_AVX2_COLS = 2 * MXA_AVX2_LANES };

/* Rows that share what the L1 cache holds: their logits of a tile are 12 KB. */
enum { MXA_AVX2_BLOCK = 4 * MXA_AVX2_ROWS };

#define MXA_AVX2_INLINE static inline __attribute__((always_inline))

/* Integers of 32 bits; GCC keeps sums of this type in registers, those of __m256i not always. */
typedef int32_t mxa_avx2_ints __attribute__((vector_size(32)));

/* sums[r] = sum over i < n of a[r * stride + i] * b[i], b [n][MXA_AVX2_COLS]; 12 FMA for 2 + 6 loads. */
MXA_AVX2_INLINE void mxa_avx2_block_f32(int rows, int64_t n, const float *a, int64_t stride, const float *b,
                                        __m256 (*sums)[2])
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i++) {
        const __m256 b0 = _mm256_loadu_ps(b + i * MXA_AVX2_COLS);
        const __m256 b1 = _mm256_loadu_ps(b + i * MXA_AVX2_COLS + MXA_AVX2_LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m256 x = _mm256_broadcast_ss(a + r * stride + i);
            sums[r][0] = _mm256_fmadd_ps(x, b0, sums[r][0]);
            sums[r][1] = _mm256_fmadd_ps(x, b1, sums[r][1]);
        }
    }
}

/* Sums of pairs of products of 16-bit integers. */
static inline mxa_avx2_ints mxa_avx2_pairs(__m256i a, __m256i b)
{
    return (mxa_avx2_ints)_mm256_madd_epi16(a, b);
}

/*
 * The same for n pairs of 16-bit integers: a [2 n] in each row, b [n][MXA_AVX2_COLS][2]. Exact: 256 products
 * of 8-bit numbers take 23 bits.
 */
MXA_AVX2_INLINE void mxa_avx2_block_i16(int rows, int64_t n, const int16_t *a, int64_t stride,
                                        const int16_t *b, mxa_avx2_ints (*sums)[2])
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = (mxa_avx2_ints){ 0 };
    for (int64_t i = 0; i < n; i++) {
        const __m256i b0 = _mm256_loadu_si256((const void *)(b + i * 2 * MXA_AVX2_COLS));
        const __m256i b1 = _mm256_loadu_si256((const void *)(b + i * 2 * MXA_AVX2_COLS + MXA_AVX2_COLS));
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const void *const pair = a + r * stride + 2 * i;
            const __m256i x = _mm256_castps_si256(_mm256_broadcast_ss(pair));
            sums[r][0] += mxa_avx2_pairs(x, b0);
            sums[r][1] += mxa_avx2_pairs(x, b1);
        }
    }
}

#endif
