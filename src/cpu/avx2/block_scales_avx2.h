/* SPDX-License-Identifier: Apache-2.0 */
/* The largest magnitudes of blocks, and the scales that follow from them. */
#ifndef MXA_CPU_AVX2_BLOCK_SCALES_AVX2_H
#define MXA_CPU_AVX2_BLOCK_SCALES_AVX2_H

#include "cpu/avx2/encode_avx2.h"
#include "cpu/kernels.h"
#include "format/mx.h"

/* Of two vectors' lanes, the larger of each lane and its neighbour, or the one two further. */
static inline __m256i mxa_avx2_fold_pairs(__m256i a, __m256i b)
{
    return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

static inline __m256i mxa_avx2_fold_fours(__m256i a, __m256i b)
{
    return _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* The largest magnitudes in 32 elements. */
static inline __m256i mxa_avx2_block_maximum(const float *x)
{
    __m256i m = mxa_avx2_magnitude(_mm256_loadu_ps(x));
    for (int i = MXA_AVX2_LANES; i < MXA_AMAX_BLOCK; i += MXA_AVX2_LANES)
        m = _mm256_max_epi32(m, mxa_avx2_magnitude(_mm256_loadu_ps(x + i)));
    return m;
}

/* amax of mxa_prepared of one row; returns where that of the next row lies. */
static inline uint32_t *mxa_avx2_row_maxima(const float *x, int64_t cols, uint32_t *amax)
{
    enum { BLOCKS = 4 };
    int64_t d = 0;
    for (; d + BLOCKS * MXA_AMAX_BLOCK <= cols; d += BLOCKS * MXA_AMAX_BLOCK, amax += BLOCKS) {
        __m256i m[BLOCKS];
        for (int b = 0; b < BLOCKS; b++)
            m[b] = mxa_avx2_block_maximum(x + d + b * MXA_AMAX_BLOCK);
        const __m256i all =
            mxa_avx2_fold_fours(mxa_avx2_fold_pairs(m[0], m[1]), mxa_avx2_fold_pairs(m[2], m[3]));
        _mm_storeu_si128((void *)amax,
                         _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
    for (; d + MXA_AMAX_BLOCK <= cols; d += MXA_AMAX_BLOCK)
        *amax++ = mxa_avx2_largest_u31(mxa_avx2_block_maximum(x + d));
    if (d < cols)
        *amax++ = mxa_amax_bits(x + d, cols - d);
    return amax;
}

/* Of several rows; those of whole blocks are one long row. */
static inline uint32_t *mxa_avx2_rows_maxima(const float *x, int64_t rows, int64_t cols, uint32_t *amax)
{
    if (cols % MXA_AMAX_BLOCK == 0)
        return mxa_avx2_row_maxima(x, rows * cols, amax);
    for (int64_t r = 0; r < rows; r++)
        amax = mxa_avx2_row_maxima(x + r * cols, cols, amax);
    return amax;
}

enum { MXA_AVX2_SCALE_BLOCKS = 64 }; /* MX blocks whose scales are computed together, at most */

/*
 * n MX blocks: mxa_mx_scale of each, 0xFF of those with NaN or Inf, and 1 / scale. threshold is from
 * mxa_mx_threshold. Returns how many have NaN or Inf.
 */
MXA_AVX2_INLINE int64_t mxa_avx2_mx_scales(mxa_element f, uint32_t threshold, const uint32_t *amax, int64_t n,
                                           uint8_t *scales, float inverse[MXA_AVX2_SCALE_BLOCKS])
{
    uint32_t maxima[MXA_AVX2_SCALE_BLOCKS] = { 0 };
    uint8_t bytes[MXA_AVX2_SCALE_BLOCKS];
    int64_t n_bad = 0;
    memcpy(maxima, amax, (size_t)n * sizeof *amax);
    for (int64_t b = 0; b < n; b += MXA_AVX2_LANES) {
        const __m256i m = _mm256_loadu_si256((const void *)(maxima + b)), zero = _mm256_setzero_si256();
        const __m256i exponent = _mm256_srli_epi32(m, 23);
        const __m256i mantissa = _mm256_and_si256(m, _mm256_set1_epi32(0x7FFFFF));
        const __m256i up = _mm256_cmpgt_epi32(mantissa, _mm256_set1_epi32((int)threshold - 1));
        const __m256i e = _mm256_sub_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(f.emax)), up);
        const __m256i low =
            _mm256_max_epi32(_mm256_andnot_si256(_mm256_cmpeq_epi32(exponent, zero), e), zero);
        const __m256i scale = _mm256_min_epi32(low, _mm256_set1_epi32(254));

        /* 2^(127 - scale), of which the lowest is subnormal. */
        const __m256i power = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), scale), 23);
        _mm256_storeu_si256((void *)(inverse + b), _mm256_max_epi32(power, _mm256_set1_epi32(0x00400000)));

        const __m256i bad = _mm256_cmpgt_epi32(m, _mm256_set1_epi32((int)MXA_F32_INF - 1));
        const __m256i stored =
            _mm256_or_si256(scale, _mm256_and_si256(bad, _mm256_set1_epi32((int)MXA_E8M0_NAN)));
        const __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(stored), _mm256_extracti128_si256(stored, 1));
        _mm_storel_epi64((void *)(bytes + b), _mm_packus_epi16(words, words));
        n_bad += __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(bad)));
    }
    memcpy(scales, bytes, (size_t)n);
    return n_bad;
}

#endif
