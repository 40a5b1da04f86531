/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVFP4 without options of the block scale, up to eight blocks at a time: first their scales, then their
 * codes.
 */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "cpu/portable/codes_portable.h"
#include "format/nvfp4.h"

enum { BLOCKS = MXA_AVX2_NVFP4_BLOCKS, BLOCK_BYTES = MXA_NVFP4_BLOCK / 2, CALL_BLOCKS = 4 };

static inline __m512i fold_pairs(__m512i a, __m512i b)
{
    return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

static inline __m512i fold_fours(__m512i a, __m512i b)
{
    return _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* The first n elements, n <= 64, of four vectors. */
static inline __mmask16 lanes_of(int64_t n, int i)
{
    const int64_t left = n - i * MXA_AVX512_LANES;
    return left >= MXA_AVX512_LANES ? UINT16_MAX : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

/* Bits of each block's largest magnitude, of n elements. */
static inline __m256i block_maxima(const float *x, int64_t n)
{
    __m512i m[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
        m[b] = mxa_avx512_magnitude(_mm512_maskz_loadu_ps(lanes_of(n, b), x + b * MXA_NVFP4_BLOCK));
    const __m512i low = fold_fours(fold_pairs(m[0], m[1]), fold_pairs(m[2], m[3]));
    const __m512i high = fold_fours(fold_pairs(m[4], m[5]), fold_pairs(m[6], m[7]));
    const __m256i low_twos = _mm256_max_epi32(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1));
    const __m256i high_twos =
        _mm256_max_epi32(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1));
    return _mm256_max_epi32(_mm256_permute2x128_si256(low_twos, high_twos, 0x20),
                            _mm256_permute2x128_si256(low_twos, high_twos, 0x31));
}

/* Four blocks from b on as 32 bytes. A quotient that overflows is NaN, which min takes for the largest. */
static inline __m256i four_blocks(const float *x, int64_t n, const mxa_avx2_block_steps *steps, int b)
{
    __m512 v[CALL_BLOCKS], mag[CALL_BLOCKS];
    for (int i = 0; i < CALL_BLOCKS; i++) {
        const mxa_avx512_divisor divisor = { _mm512_set1_ps(steps->g[b + i]),
                                             _mm512_set1_ps(steps->high[b + i]),
                                             _mm512_set1_ps(steps->low[b + i]) };
        v[i] = _mm512_maskz_loadu_ps(lanes_of(n, b + i), x + (b + i) * MXA_NVFP4_BLOCK);
        const __m512i quotient = mxa_avx512_magnitude(mxa_avx512_quotient(v[i], divisor));
        mag[i] = _mm512_min_ps(_mm512_castsi512_ps(quotient), _mm512_set1_ps(6.0f));
    }
    return mxa_avx512_nibbles(mxa_avx512_codes(mxa_element_e2m1(), mag, v));
}

/* n <= 128 elements; false if they hold NaN or Inf. */
MXA_AVX512_INLINE bool blocks(int64_t n, const float *x, float g, uint8_t *codes, uint8_t *scales)
{
    const int n_blocks = (int)((n + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK);
    const __m256i amax = block_maxima(x, n);
    if (mxa_avx2_largest_u31(amax) >= MXA_F32_INF)
        return false;
    mxa_avx2_block_steps steps;
    mxa_avx2_nvfp4_scales(amax, g, n_blocks, scales, &steps);
    for (int b = 0; b < n_blocks; b += CALL_BLOCKS) {
        const int64_t bytes = (int64_t)(n_blocks - b) * BLOCK_BYTES;
        const __mmask32 stored = bytes >= (int64_t)sizeof(__m256i) ? UINT32_MAX : (1u << bytes) - 1;
        _mm256_mask_storeu_epi8(codes + b * BLOCK_BYTES, stored, four_blocks(x, n, &steps, b));
    }
    return true;
}

/* False if the row has to be done with care. */
static bool nvfp4_row(const float *x, int64_t cols, float g, uint8_t *codes, uint8_t *scales)
{
    enum { GROUP = BLOCKS * MXA_NVFP4_BLOCK };
    bool ok = mxa_avx2_divides(g);
    int64_t d = 0;
    for (; cols - d >= GROUP && ok; d += GROUP)
        ok = blocks(GROUP, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK);
    if (ok && d < cols)
        ok = cols - d == GROUP / 2 ? blocks(GROUP / 2, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK)
                                   : blocks(cols - d, x + d, g, codes + d / 2, scales + d / MXA_NVFP4_BLOCK);
    return ok;
}

int64_t mxa_quantize_nvfp4_avx512(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
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
