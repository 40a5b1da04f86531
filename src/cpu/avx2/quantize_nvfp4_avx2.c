/* SPDX-License-Identifier: Apache-2.0 */
/* NVFP4 without options of the block scale, up to eight blocks at a time: first their scales, then their codes. */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/encode_avx2.h"
#include "cpu/portable/codes_portable.h"
#include "format/nvfp4.h"

enum { BLOCKS = MXA_AVX2_LANES, BLOCK_BYTES = MXA_NVFP4_BLOCK / 2 };

/* Lane by lane, the larger of two vectors' neighbours. */
static inline __m256i fold_pairs(__m256i a, __m256i b)
{
    return _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

static inline __m256i fold_fours(__m256i a, __m256i b)
{
    return _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

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
    const __m256i low = fold_fours(fold_pairs(m[0], m[1]), fold_pairs(m[2], m[3]));
    const __m256i high = fold_fours(fold_pairs(m[4], m[5]), fold_pairs(m[6], m[7]));
    return _mm256_max_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

/* mxa_nvfp4_scale of u >= 0, 0 where the maximum is. */
static inline __m256i block_scales(__m256 u, __m256i is_zero)
{
    const mxa_element f = mxa_element_e4m3();
    const __m256i raw = mxa_avx2_raw_codes(f, _mm256_min_ps(u, _mm256_set1_ps(448.0f)));
    const __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(raw, mxa_avx2_code_shift(f)),
                                          _mm256_set1_epi32(mxa_avx2_code_offset(f)));
    return _mm256_andnot_si256(is_zero, _mm256_max_epi32(code, _mm256_set1_epi32(1)));
}

/* The values of E4M3 codes without a sign. */
static inline __m256 scale_values(__m256i code)
{
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(code, 20), _mm256_set1_epi32((127 - 7) << 23));
    const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(0x1p-9f));
    const __m256i is_normal = _mm256_cmpgt_epi32(code, _mm256_set1_epi32(7));
    return _mm256_blendv_ps(subnormal, _mm256_castsi256_ps(normal), _mm256_castsi256_ps(is_normal));
}

/* Two blocks, b and b + 1, as 16 bytes. A quotient that overflows is NaN, which min takes for the largest. */
static inline __m128i two_blocks(const float *x, const float *d, const float *high, const float *low)
{
    __m256 v[4], mag[4];
    for (int i = 0; i < 4; i++) {
        const mxa_avx2_divisor divisor = { _mm256_broadcast_ss(d + i / 2), _mm256_broadcast_ss(high + i / 2),
                                           _mm256_broadcast_ss(low + i / 2) };
        v[i] = _mm256_loadu_ps(x + i * MXA_AVX2_LANES);
        const __m256i quotient = mxa_avx2_magnitude(mxa_avx2_quotient(v[i], divisor));
        mag[i] = _mm256_min_ps(_mm256_castsi256_ps(quotient), _mm256_set1_ps(6.0f));
    }
    return mxa_avx2_nibbles(mxa_avx2_codes(mxa_element_e2m1(), mag, v));
}

/* n blocks, an even number; false if they hold NaN or Inf. */
MXA_AVX2_INLINE bool blocks(int n, const float *x, float g, uint8_t *codes, uint8_t *scales)
{
    const __m256i amax = block_maxima(x, n), is_zero = _mm256_cmpeq_epi32(amax, _mm256_setzero_si256());
    if (mxa_avx2_largest_u31(amax) >= MXA_F32_INF)
        return false;
    const __m256 u = _mm256_div_ps(_mm256_castsi256_ps(amax), _mm256_set1_ps(6.0f * g));
    const __m256i scale = block_scales(u, is_zero);
    const __m256 step = _mm256_mul_ps(scale_values(scale), _mm256_set1_ps(g));
    const __m256 nonzero = _mm256_blendv_ps(step, _mm256_set1_ps(1.0f), _mm256_castsi256_ps(is_zero));
    const mxa_avx2_divisor divisor = mxa_avx2_divisor_of(nonzero);
    float d[BLOCKS], high[BLOCKS], low[BLOCKS];
    _mm256_storeu_ps(d, divisor.g);
    _mm256_storeu_ps(high, divisor.high);
    _mm256_storeu_ps(low, divisor.low);

    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(scale), _mm256_extracti128_si256(scale, 1));
    const __m128i bytes = _mm_packus_epi16(words, words);
    memcpy(scales, &bytes, (size_t)n);
    for (int b = 0; b < n; b += 2)
        _mm_storeu_si128((void *)(codes + b * BLOCK_BYTES),
                         two_blocks(x + b * MXA_NVFP4_BLOCK, d + b, high + b, low + b));
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

int64_t mxa_quantize_nvfp4_avx2(const mxa_code_spec *spec, const float *x, int64_t rows, int64_t cols,
                                const float *g, int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    if (spec->nvfp4 & ~(unsigned)MXA_NVFP4_POW2_G) /* options of the block scale */
        return mxa_quantize_portable(spec, x, rows, cols, g, g_step, codes, scales);
    const int64_t n_blocks = (cols + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
    int64_t n_bad = 0;
    for (int64_t r = 0; r < rows; r++, x += cols, codes += n_blocks * BLOCK_BYTES, scales += n_blocks)
        if (!nvfp4_row(x, cols, g[r * g_step], codes, scales))
            n_bad += mxa_quantize_portable(spec, x, 1, cols, g + r * g_step, 0, codes, scales);
    return n_bad;
}
