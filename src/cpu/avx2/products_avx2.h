/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of a tile: blocks of up to MXA_AVX2_ROWS query rows by MXA_AVX2_COLS columns (keys, or
 * channels of V) that stay in registers: 12 sums, 2 columns, a row's value in all lanes and a product are the
 * 16 registers. A row's sums are taken in index order whatever the number of rows beside it, so its bits do
 * not depend on it.
 */
#ifndef MXA_CPU_AVX2_PRODUCTS_AVX2_H
#define MXA_CPU_AVX2_PRODUCTS_AVX2_H

#include <string.h>

#include "cpu/avx2/vector_avx2.h"

enum { MXA_AVX2_ROWS = 6, MXA_AVX2_COLS = 2 * MXA_AVX2_LANES };

#define MXA_AVX2_INLINE static inline __attribute__((always_inline))

/* sums[r] = sum over i < n of a[r * stride + i] * b[i], b [n][MXA_AVX2_COLS]; 12 FMA for 2 + 6 loads. */
MXA_AVX2_INLINE void mxa_avx2_block_f32(int rows, int64_t n, const float *a, int64_t stride, const float *b,
                                        __m256 (*sums)[2])
{
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i++) {
        const __m256 b0 = _mm256_loadu_ps(b + i * MXA_AVX2_COLS);
        const __m256 b1 = _mm256_loadu_ps(b + i * MXA_AVX2_COLS + MXA_AVX2_LANES);
        for (int r = 0; r < rows; r++) {
            const __m256 x = _mm256_broadcast_ss(a + r * stride + i);
            sums[r][0] = _mm256_fmadd_ps(x, b0, sums[r][0]);
            sums[r][1] = _mm256_fmadd_ps(x, b1, sums[r][1]);
        }
    }
}

/*
 * The same for n pairs of 16-bit integers: a [2 n] in each row, b [n][MXA_AVX2_COLS][2]. Exact: 256 products
 * of 8-bit numbers take 23 bits.
 */
MXA_AVX2_INLINE void mxa_avx2_block_i16(int rows, int64_t n, const int16_t *a, int64_t stride,
                                        const int16_t *b, __m256i (*sums)[2])
{
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i++) {
        const __m256i b0 = _mm256_loadu_si256((const void *)(b + i * 2 * MXA_AVX2_COLS));
        const __m256i b1 = _mm256_loadu_si256((const void *)(b + i * 2 * MXA_AVX2_COLS + MXA_AVX2_COLS));
        for (int r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, a + r * stride + 2 * i, sizeof pair);
            const __m256i x = _mm256_set1_epi32(pair);
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(x, b0));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(x, b1));
        }
    }
}

#endif
