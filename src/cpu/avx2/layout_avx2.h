/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as the products of products_avx2.h want them: widened, and keys side by side. */
#ifndef MXA_CPU_AVX2_LAYOUT_AVX2_H
#define MXA_CPU_AVX2_LAYOUT_AVX2_H

#include <mxattn/mxattn.h>
#include <string.h>

#include "cpu/avx2/products_avx2.h"

/* n codes of E2M1, two in a byte, as twice their values; n is a multiple of 32. */
static inline void mxa_avx2_doubled_e2m1(const uint8_t *codes, int64_t n, int8_t *out)
{
    enum { CODES = 2 * sizeof(__m128i) };
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(0x0F);
    for (int64_t d = 0; d < n; d += CODES) {
        const __m128i pairs = _mm_loadu_si128((const void *)(codes + d / 2));
        const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(pairs, nibble));
        const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble));
        _mm_storeu_si128((void *)(out + d), _mm_unpacklo_epi8(even, odd));
        _mm_storeu_si128((void *)(out + d + CODES / 2), _mm_unpackhi_epi8(even, odd));
    }
}

/* n is a multiple of 16. */
static inline void mxa_avx2_widen(const int8_t *x, int64_t n, int16_t *out)
{
    for (int64_t d = 0; d < n; d += MXA_AVX2_COLS)
        _mm256_storeu_si256((void *)(out + d), _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(x + d))));
}

/* n is a multiple of 8; the type is bf16 or f16. */
static inline void mxa_avx2_widen_row(const uint16_t *x, mxa_dtype type, int64_t n, float *out)
{
    for (int64_t d = 0; d < n; d += MXA_AVX2_LANES) {
        const __m128i half = _mm_loadu_si128((const void *)(x + d));
        const __m256 bf16 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        _mm256_storeu_ps(out + d, type == MXA_DTYPE_F16 ? _mm256_cvtph_ps(half) : bf16);
    }
}

/* Eight rows of eight 16-bit words, transposed. */
static inline void mxa_avx2_transpose_words(__m128i r[8])
{
    __m128i a[8], b[8];
    for (int i = 0; i < 4; i++) { /* words of rows 2 i and 2 i + 1 side by side, low columns then high ones */
        a[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 2) { /* of four rows; two columns in a register */
        b[i] = _mm_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 2; i++) { /* of eight rows */
        r[4 * i] = _mm_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        r[4 * i + 1] = _mm_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        r[4 * i + 2] = _mm_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        r[4 * i + 3] = _mm_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
}

/* Sixteen keys' integers, [16][dim], into [dim / 2][16][2]: a pair is a word. dim is a multiple of 16. */
static inline void mxa_avx2_pair_keys(const int8_t *x, int64_t dim, int16_t *out)
{
    for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES)
        for (int64_t d = 0; d < dim; d += MXA_AVX2_COLS) {
            __m128i r[8];
            for (int i = 0; i < 8; i++)
                r[i] = _mm_loadu_si128((const void *)(x + (half + i) * dim + d));
            mxa_avx2_transpose_words(r);
            for (int i = 0; i < 8; i++)
                _mm256_storeu_si256((void *)(out + ((d / 2 + i) * MXA_AVX2_COLS + half) * 2),
                                    _mm256_cvtepi8_epi16(r[i]));
        }
}

/* Eight rows of eight numbers, transposed. */
static inline void mxa_avx2_transpose_floats(__m256 r[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) { /* columns 0, 1 (4, 5) then 2, 3 (6, 7) of rows i and i + 1 */
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* one column (and the one four further) of four rows */
        for (int n = 0; n < 2; n++) {
            b[i + 2 * n] = _mm256_shuffle_ps(a[i + n], a[i + n + 2], _MM_SHUFFLE(1, 0, 1, 0));
            b[i + 2 * n + 1] = _mm256_shuffle_ps(a[i + n], a[i + n + 2], _MM_SHUFFLE(3, 2, 3, 2));
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* Sixteen keys' numbers, [16][dim], into [dim][16]. */
static inline void mxa_avx2_transpose_keys(const float *x, int64_t dim, float *out)
{
    const int64_t whole = dim & -(int64_t)MXA_AVX2_LANES;
    for (int half = 0; half < MXA_AVX2_COLS; half += MXA_AVX2_LANES) {
        for (int64_t d = 0; d < whole; d += MXA_AVX2_LANES) {
            __m256 r[8];
            for (int i = 0; i < 8; i++)
                r[i] = _mm256_loadu_ps(x + (half + i) * dim + d);
            mxa_avx2_transpose_floats(r);
            for (int i = 0; i < 8; i++)
                _mm256_storeu_ps(out + (d + i) * MXA_AVX2_COLS + half, r[i]);
        }
        for (int64_t d = whole; d < dim; d++)
            for (int i = 0; i < MXA_AVX2_LANES; i++)
                out[d * MXA_AVX2_COLS + half + i] = x[(half + i) * dim + d];
    }
}

#endif
