/* SPDX-License-Identifier: Apache-2.0 */
/* MX formats at level NONE, four blocks at a time: first their scales, then their codes. */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "cpu/portable/codes_portable.h"
#include "format/format.h"

enum { BLOCKS = MXA_AVX2_MX_BLOCKS, GROUP = BLOCKS * MXA_MX_BLOCK };

static inline __m512i fold_pairs(__m512i a, __m512i b)
{
    return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

/* Bits of each block's largest magnitude. */
static inline __m128i block_maxima(const float *x)
{
    __m512i m[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
        const __m512 low = _mm512_loadu_ps(x + b * MXA_MX_BLOCK);
        const __m512 high = _mm512_loadu_ps(x + b * MXA_MX_BLOCK + MXA_AVX512_LANES);
        m[b] = _mm512_max_epi32(mxa_avx512_magnitude(low), mxa_avx512_magnitude(high));
    }
    const __m512i a = fold_pairs(m[0], m[1]), b = fold_pairs(m[2], m[3]);
    const __m512i fours = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i twos = _mm256_max_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
    return _mm_max_epi32(_mm256_castsi256_si128(twos), _mm256_extracti128_si256(twos, 1));
}

/* Bytes of two blocks' codes. */
MXA_AVX512_INLINE int pair_bytes(mxa_format format)
{
    const bool six = format == MXA_FORMAT_MXFP6_E3M2 || format == MXA_FORMAT_MXFP6_E2M3;
    return 2 * MXA_MX_BLOCK / 8 * (format == MXA_FORMAT_MXFP4 ? 4 : six ? 6 : 8);
}

MXA_AVX512_INLINE void store_codes(mxa_format format, __m512i codes, uint8_t *out)
{
    if (pair_bytes(format) == 2 * MXA_MX_BLOCK)
        _mm512_storeu_si512((void *)out, codes);
    else if (pair_bytes(format) == MXA_MX_BLOCK)
        _mm256_storeu_si256((void *)out, mxa_avx512_nibbles(codes));
    else
        mxa_avx512_store_six(codes, out);
}

/* Two blocks times 1 / scale. */
MXA_AVX512_INLINE __m512i pair_codes(mxa_format format, const float *x, const float inverse[2])
{
    __m512 y[4], mag[4];
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_mul_ps(_mm512_loadu_ps(x + i * MXA_AVX512_LANES), _mm512_set1_ps(inverse[i / 2]));
        mag[i] = _mm512_castsi512_ps(mxa_avx512_magnitude(y[i]));
    }
    if (format != MXA_FORMAT_MXINT8)
        return mxa_avx512_codes(mxa_element_of(format), mag, y);
    for (int i = 0; i < 4; i++)
        y[i] = _mm512_mul_ps(y[i], _mm512_set1_ps(64.0f));
    return _mm512_max_epi8(mxa_avx512_codes_i8(y), _mm512_set1_epi8(-127));
}

MXA_AVX512_INLINE int64_t mx_group(mxa_format format, uint32_t threshold, const float *x, uint8_t *codes,
                                   uint8_t *scales)
{
    float inverse[BLOCKS];
    const unsigned bad_blocks =
        mxa_avx2_mx_scales(mxa_element_of(format), threshold, block_maxima(x), scales, inverse);
    for (int b = 0; b < BLOCKS; b += 2)
        store_codes(format, pair_codes(format, x + b * MXA_MX_BLOCK, inverse + b),
                    codes + b / 2 * pair_bytes(format));
    const size_t block_bytes = (size_t)pair_bytes(format) / 2;
    for (int b = 0; b < BLOCKS && bad_blocks; b++)
        if (bad_blocks >> b & 1)
            memset(codes + (size_t)b * block_bytes, 0, block_bytes);
    return __builtin_popcount(bad_blocks);
}

/* What is less than four blocks is filled with zeros, which change neither scale nor codes of the others. */
MXA_AVX512_INLINE int64_t mx_row(mxa_format format, uint32_t threshold, const float *x, int64_t cols,
                                 uint8_t *codes, uint8_t *scales)
{
    int64_t n_bad = 0;
    for (; cols > 0; cols -= GROUP, x += GROUP, codes += BLOCKS / 2 * pair_bytes(format), scales += BLOCKS) {
        float filled[GROUP];
        uint8_t rest_codes[GROUP], rest_scales[BLOCKS];
        const bool whole = cols >= GROUP;
        if (!whole) {
            memset(filled, 0, sizeof filled);
            memcpy(filled, x, (size_t)cols * sizeof *x);
        }
        n_bad += mx_group(format, threshold, whole ? x : filled, whole ? codes : rest_codes,
                          whole ? scales : rest_scales);
        if (!whole) {
            const size_t blocks = (size_t)(cols + MXA_MX_BLOCK - 1) / MXA_MX_BLOCK;
            memcpy(codes, rest_codes, blocks * (size_t)pair_bytes(format) / 2);
            memcpy(scales, rest_scales, blocks);
        }
    }
    return n_bad;
}

/* Rows of whole blocks lie without gaps: they are one long row. */
MXA_AVX512_INLINE int64_t mx_rows(mxa_format format, mxa_rule rule, const float *x, int64_t rows,
                                  int64_t cols, uint8_t *codes, uint8_t *scales)
{
    const uint32_t threshold = mxa_mx_threshold(mxa_element_of(format), rule);
    const bool gaps = cols % MXA_MX_BLOCK != 0;
    const int64_t n = gaps ? rows : 1, length = gaps ? cols : rows * cols;
    const int64_t blocks = (length + MXA_MX_BLOCK - 1) / MXA_MX_BLOCK;
    int64_t n_bad = 0;
    for (int64_t r = 0; r < n; r++)
        n_bad += mx_row(format, threshold, x + r * length, length,
                        codes + r * blocks * pair_bytes(format) / 2, scales + r * blocks);
    return n_bad;
}

int64_t mxa_quantize_mx_avx512(const mxa_code_spec *spec, const float *x, int64_t rows, int64_t cols,
                               const float *g, int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const mxa_rule rule = spec->rule;
    if (g_step != 0 || *g != 1.0f) /* rare: a second level on an MX format */
        return mxa_quantize_portable(spec, x, rows, cols, g, g_step, codes, scales);
    switch (spec->info->format) {
    case MXA_FORMAT_MXFP8_E4M3: return mx_rows(MXA_FORMAT_MXFP8_E4M3, rule, x, rows, cols, codes, scales);
    case MXA_FORMAT_MXFP8_E5M2: return mx_rows(MXA_FORMAT_MXFP8_E5M2, rule, x, rows, cols, codes, scales);
    case MXA_FORMAT_MXFP6_E3M2: return mx_rows(MXA_FORMAT_MXFP6_E3M2, rule, x, rows, cols, codes, scales);
    case MXA_FORMAT_MXFP6_E2M3: return mx_rows(MXA_FORMAT_MXFP6_E2M3, rule, x, rows, cols, codes, scales);
    case MXA_FORMAT_MXINT8: return mx_rows(MXA_FORMAT_MXINT8, rule, x, rows, cols, codes, scales);
    default: return mx_rows(MXA_FORMAT_MXFP4, rule, x, rows, cols, codes, scales);
    }
}
