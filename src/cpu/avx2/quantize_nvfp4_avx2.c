/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVFP4 without options of the block scale, up to eight blocks at a time: first their scales, then their
 * codes.
 */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx2/codes_avx2.h"
#include "cpu/portable/codes_portable.h"
#include "format/nvfp4.h"

enum { BLOCKS = MXA_AVX2_NVFP4_BLOCKS, BLOCK_BYTES = MXA_NVFP4_BLOCK / 2 };

/* Bits of each block's largest magnitude; 0 from block n on. */
MXA_AVX2_INLINE __m256i block_maxima(const float *x, int n)
{
    __m256i m[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
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

/* Blocks b and b + 1 as 16 bytes. A quotient that overflows is NaN, which min takes for the largest. */
static inline __m128i two_blocks(const float *x, const mxa_avx2_block_steps *steps, int b)
{
    __m256 v[4], mag[4];
    for (int i = 0; i < 4; i++) {
        const int block = b + i / 2;
        const mxa_avx2_divisor divisor = { _mm256_broadcast_ss(steps->g + block),
                                           _mm256_broadcast_ss(steps->high + block),
                                           _mm256_broadcast_ss(steps->low + block) };
        v[i] = _mm256_loadu_ps(x + b * MXA_NVFP4_BLOCK + i * MXA_AVX2_LANES);
        const __m256i quotient = mxa_avx2_magnitude(mxa_avx2_quotient(v[i], divisor));
        mag[i] = _mm256_min_ps(_mm256_castsi256_ps(quotient), _mm256_set1_ps(6.0f));
    }
    return mxa_avx2_nibbles(mxa_avx2_codes(mxa_element_e2m1(), mag, v));
}

/* n blocks, an even number; false if they hold NaN or Inf. */
MXA_AVX2_INLINE bool blocks(int n, const float *x, float g, uint8_t *codes, uint8_t *scales)
{
    const __m256i amax = block_maxima(x, n);
    if (mxa_avx2_largest_u31(amax) >= MXA_F32_INF)
        return false;
    mxa_avx2_block_steps steps;
    mxa_avx2_nvfp4_scales(amax, g, n, scales, &steps);
    for (int b = 0; b < n; b += 2)
        _mm_storeu_si128((void *)(codes + b * BLOCK_BYTES), two_blocks(x, &steps, b));
    return true;
}

/* What is less than two blocks is filled with zeros. */
static bool rest(const float *x, int64_t cols, float g, uint8_t *codes, uint8_t *scales)
{
    float filled[2 * MXA_NVFP4_BLOCK] = { 0 };
    uint8_t filled_codes[2 * BLOCK_BYTES], filled_scales[2];
    const size_t n = (size_t)(cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
    memcpy(filled, x, (size_t)cols * sizeof *x);
    if (!blocks(2, filled, g, filled_codes, filled_scales))
        return false;
    memcpy(codes, filled_codes, n * BLOCK_BYTES);
    memcpy(scales, filled_scales, n);
    return true;
}

/* False if the row has to be done with care. */
static bool nvfp4_row(const float *x, int64_t cols, float g, uint8_t *codes, uint8_t *scales)
{
    if (!mxa_avx2_divides(g))
        return false;
    int64_t d = 0;
    bool ok = true;
    for (; cols - d >= BLOCKS * MXA_NVFP4_BLOCK && ok; d += BLOCKS * MXA_NVFP4_BLOCK)
        ok = blocks(BLOCKS, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK);
    if (cols - d >= 4 * MXA_NVFP4_BLOCK && ok) {
        ok = blocks(4, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK);
        d += 4 * MXA_NVFP4_BLOCK;
    }
    for (; cols - d >= 2 * MXA_NVFP4_BLOCK && ok; d += 2 * MXA_NVFP4_BLOCK)
        ok = blocks(2, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK);
    return ok && (d == cols || rest(x + d, cols - d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK));
}

int64_t mxa_quantize_nvfp4_avx2(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    if (spec->nvfp4 & ~(unsigned)MXA_NVFP4_POW2_G) /* options of the block scale */
        return mxa_quantize_portable(spec, x, g, g_step, codes, scales);
    const int64_t n_blocks = (x->cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++, g += g_step, codes += n_blocks * BLOCK_BYTES, scales += n_blocks) {
        const mxa_prepared row = mxa_prepared_row(x, r);
        if (!nvfp4_row(row.x, row.cols, *g, codes, scales))
            n_bad += mxa_quantize_portable(spec, &row, g, 0, codes, scales);
    }
    return n_bad;
}
