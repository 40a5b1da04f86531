/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVFP4 without options of the block scale. A block's scale is a long chain of dependent operations, so those
 * of several rows come first, where they overlap, and the codes after them.
 */
#ifndef MXA_CPU_AVX2_NVFP4_AVX2_H
#define MXA_CPU_AVX2_NVFP4_AVX2_H

#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/portable/codes_portable.h"
#include "format/nvfp4.h"

enum {
    MXA_AVX2_NVFP4_BLOCKS = MXA_AVX2_LANES, /* whose scales are computed together */
    MXA_AVX2_NVFP4_GROUP = MXA_AVX2_NVFP4_BLOCKS * MXA_NVFP4_BLOCK,
    MXA_AVX2_NVFP4_STEPS = 16, /* groups whose scales are computed before their codes */
};

/* What the elements of NVFP4 blocks are divided by. */
typedef struct mxa_avx2_block_steps {
    float g[MXA_AVX2_NVFP4_BLOCKS], high[MXA_AVX2_NVFP4_BLOCKS], low[MXA_AVX2_NVFP4_BLOCKS];
} mxa_avx2_block_steps;

/* The values of E4M3 codes without a sign. */
static inline __m256 mxa_avx2_ue4m3_values(__m256i code)
{
    const mxa_element f = mxa_element_e4m3();
    const __m256i bias = _mm256_set1_epi32((127 - f.bias) << 23), largest_subnormal = _mm256_set1_epi32(7);
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(code, 23 - f.man_bits), bias);
    const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(0x1p-9f));
    return _mm256_blendv_ps(subnormal, _mm256_castsi256_ps(normal),
                            _mm256_castsi256_ps(_mm256_cmpgt_epi32(code, largest_subnormal)));
}

/*
 * n <= 8 NVFP4 blocks of finite numbers without options: mxa_nvfp4_scale of each, and scale times g; 1 where
 * all is zero. mxa_avx2_divides(g).
 */
static inline void mxa_avx2_nvfp4_scales(__m256i amax, float g, int n, uint8_t *scales,
                                         mxa_avx2_block_steps *steps)
{
    const mxa_element f = mxa_element_e4m3();
    const __m256i is_zero = _mm256_cmpeq_epi32(amax, _mm256_setzero_si256());
    const __m256 u = _mm256_div_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(6.0f * g));
    const __m256i raw = mxa_avx2_raw_codes(f, _mm256_min_ps(u, _mm256_set1_ps(448.0f)));
    const __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(raw, mxa_avx2_code_shift(f)),
                                          _mm256_set1_epi32(mxa_avx2_code_offset(f)));
    const __m256i scale = _mm256_andnot_si256(is_zero, _mm256_max_epi32(code, _mm256_set1_epi32(1)));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(scale), _mm256_extracti128_si256(scale, 1));
    const __m128i bytes = _mm_packus_epi16(words, words);
    memcpy(scales, &bytes, (size_t)n);

    const __m256 product = _mm256_mul_ps(mxa_avx2_ue4m3_values(scale), _mm256_set1_ps(g));
    const __m256 step = _mm256_blendv_ps(product, _mm256_set1_ps(1.0f), _mm256_castsi256_ps(is_zero));
    const mxa_avx2_divisor divisor = mxa_avx2_divisors_of(step);
    _mm256_storeu_ps(steps->g, divisor.g);
    _mm256_storeu_ps(steps->high, divisor.high);
    _mm256_storeu_ps(steps->low, divisor.low);
}

/* Bits of the largest magnitude of each of n <= 8 blocks; 0 from block n on. */
MXA_AVX2_INLINE __m256i mxa_avx2_nvfp4_maxima(const float *x, int n)
{
    __m256i m[MXA_AVX2_NVFP4_BLOCKS];
    for (int b = 0; b < MXA_AVX2_NVFP4_BLOCKS; b++)
        m[b] = _mm256_setzero_si256();
    for (int b = 0; b < n; b++) {
        const float *const block = x + b * MXA_NVFP4_BLOCK;
        m[b] = _mm256_max_epi32(mxa_avx2_magnitude(_mm256_loadu_ps(block)),
                                mxa_avx2_magnitude(_mm256_loadu_ps(block + MXA_AVX2_LANES)));
    }
    const __m256i low = mxa_avx2_fold_fours(mxa_avx2_fold_pairs(m[0], m[1]), mxa_avx2_fold_pairs(m[2], m[3]));
    const __m256i high =
        mxa_avx2_fold_fours(mxa_avx2_fold_pairs(m[4], m[5]), mxa_avx2_fold_pairs(m[6], m[7]));
    return _mm256_max_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

/* One step for each group of eight blocks. False if the row has to be done with care. */
static inline bool mxa_avx2_nvfp4_row_scales(const float *x, int64_t cols, float g, uint8_t *scales,
                                             mxa_avx2_block_steps *steps)
{
    enum { GROUP = MXA_AVX2_NVFP4_GROUP, BLOCKS = MXA_AVX2_NVFP4_BLOCKS };
    __m256i largest = _mm256_setzero_si256();
    if (!mxa_avx2_divides(g))
        return false;
    for (; cols > 0; cols -= GROUP, x += GROUP, scales += BLOCKS, steps++) {
        __m256i amax;
        if (cols >= GROUP) {
            amax = mxa_avx2_nvfp4_maxima(x, BLOCKS);
            mxa_avx2_nvfp4_scales(amax, g, BLOCKS, scales, steps);
        } else if (cols == GROUP / 2) {
            amax = mxa_avx2_nvfp4_maxima(x, BLOCKS / 2);
            mxa_avx2_nvfp4_scales(amax, g, BLOCKS / 2, scales, steps);
        } else {
            float filled[GROUP] = { 0 };
            memcpy(filled, x, (size_t)cols * sizeof *x);
            amax = mxa_avx2_nvfp4_maxima(filled, BLOCKS);
            mxa_avx2_nvfp4_scales(amax, g, (int)((cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK), scales,
                                  steps);
        }
        largest = _mm256_max_epi32(largest, amax);
    }
    return mxa_avx2_largest_u31(largest) < MXA_F32_INF;
}

/* Codes of a row whose steps are known. */
typedef void mxa_avx2_nvfp4_codes_fn(const float *x, int64_t cols, const mxa_avx2_block_steps *steps,
                                     uint8_t *codes);

/* Rows of at most 2048 columns, as many as there are steps for. */
MXA_AVX2_INLINE int64_t mxa_avx2_nvfp4_batch(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                             int64_t g_step, uint8_t *codes, uint8_t *scales,
                                             mxa_avx2_nvfp4_codes_fn *encode)
{
    const int64_t groups = (x->cols + MXA_AVX2_NVFP4_GROUP - 1) / MXA_AVX2_NVFP4_GROUP;
    const int64_t blocks = (x->cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
    mxa_avx2_block_steps steps[MXA_AVX2_NVFP4_STEPS];
    bool ok[MXA_AVX2_NVFP4_STEPS];
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++)
        ok[r] = mxa_avx2_nvfp4_row_scales(x->x + r * x->cols, x->cols, g[r * g_step], scales + r * blocks,
                                          steps + r * groups);
    for (int64_t r = 0; r < x->rows; r++) {
        uint8_t *const row_codes = codes + r * blocks * (MXA_NVFP4_BLOCK / 2);
        const mxa_prepared row = mxa_prepared_row(x, r);
        if (ok[r])
            encode(row.x, row.cols, steps + r * groups, row_codes);
        else
            n_bad += mxa_quantize_portable(spec, &row, g + r * g_step, 0, row_codes, scales + r * blocks);
    }
    return n_bad;
}

/* mxa_quantize_rows_fn by way of a function for the codes; longer rows go to the portable code. */
MXA_AVX2_INLINE int64_t mxa_avx2_nvfp4_rows(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                            int64_t g_step, uint8_t *codes, uint8_t *scales,
                                            mxa_avx2_nvfp4_codes_fn *encode)
{
    const int64_t groups = (x->cols + MXA_AVX2_NVFP4_GROUP - 1) / MXA_AVX2_NVFP4_GROUP;
    const bool options = spec->nvfp4 & ~(unsigned)MXA_NVFP4_POW2_G; /* of the block scale */
    if (options || groups > MXA_AVX2_NVFP4_STEPS)
        return mxa_quantize_portable(spec, x, g, g_step, codes, scales);
    const int64_t most = MXA_AVX2_NVFP4_STEPS / groups;
    const int64_t blocks = (x->cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r += most) {
        mxa_prepared rows = mxa_prepared_row(x, r);
        rows.rows = x->rows - r < most ? x->rows - r : most;
        n_bad +=
            mxa_avx2_nvfp4_batch(spec, &rows, g + r * g_step, g_step,
                                 codes + r * blocks * (MXA_NVFP4_BLOCK / 2), scales + r * blocks, encode);
    }
    return n_bad;
}

#endif
