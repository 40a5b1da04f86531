/* SPDX-License-Identifier: Apache-2.0 */
/* MX formats at level NONE: first the scales of many blocks, then their codes. */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "cpu/portable/codes_portable.h"
#include "format/format.h"

enum { MOST = MXA_AVX2_SCALE_BLOCKS * MXA_MX_BLOCK };

MXA_AVX512_INLINE int code_bytes(mxa_format format)
{
    const bool six = format == MXA_FORMAT_MXFP6_E3M2 || format == MXA_FORMAT_MXFP6_E2M3;
    return MXA_MX_BLOCK / 8 * (format == MXA_FORMAT_MXFP4 ? 4 : six ? 6 : 8);
}

MXA_AVX512_INLINE void store_codes(mxa_format format, __m512i codes, uint8_t *out)
{
    if (code_bytes(format) == MXA_MX_BLOCK)
        _mm512_storeu_si512((void *)out, codes);
    else if (code_bytes(format) == MXA_MX_BLOCK / 2)
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

/* What is no pair of blocks is filled with zeros, which change no other code. */
MXA_AVX512_INLINE void rest_codes(mxa_format format, const float *x, int64_t cols, const float inverse[2],
                                  uint8_t *codes)
{
    float filled[2 * MXA_MX_BLOCK] = { 0 };
    uint8_t pair[2 * MXA_MX_BLOCK];
    memcpy(filled, x, (size_t)cols * sizeof *x);
    store_codes(format, pair_codes(format, filled, inverse), pair);
    memcpy(codes, pair, (size_t)(mxa_amax_count(cols) * code_bytes(format)));
}

/* Up to 64 blocks. */
MXA_AVX512_INLINE int64_t mx_blocks(mxa_format format, uint32_t threshold, const float *x,
                                    const uint32_t *amax, int64_t cols, uint8_t *codes, uint8_t *scales)
{
    const int64_t n = mxa_amax_count(cols), pairs = cols / (2 * MXA_MX_BLOCK);
    float inverse[MXA_AVX2_SCALE_BLOCKS];
    const int64_t n_bad = mxa_avx2_mx_scales(mxa_element_of(format), threshold, amax, n, scales, inverse);
    for (int64_t b = 0; b < 2 * pairs; b += 2)
        store_codes(format, pair_codes(format, x + b * MXA_MX_BLOCK, inverse + b),
                    codes + b * code_bytes(format));
    if (2 * pairs < n)
        rest_codes(format, x + 2 * pairs * MXA_MX_BLOCK, cols % (2 * MXA_MX_BLOCK), inverse + 2 * pairs,
                   codes + 2 * pairs * code_bytes(format));
    for (int64_t b = 0; b < n && n_bad > 0; b++)
        if (amax[b] >= MXA_F32_INF)
            memset(codes + b * code_bytes(format), 0, (size_t)code_bytes(format));
    return n_bad;
}

/* Rows of whole blocks lie without gaps: they are one long row. */
MXA_AVX512_INLINE int64_t mx_rows(mxa_format format, mxa_rule rule, const mxa_prepared *p, uint8_t *codes,
                                  uint8_t *scales)
{
    const uint32_t threshold = mxa_mx_threshold(mxa_element_of(format), rule);
    const bool gaps = p->cols % MXA_MX_BLOCK != 0;
    const int64_t rows = gaps ? p->rows : 1, cols = gaps ? p->cols : p->rows * p->cols;
    const int64_t blocks = mxa_amax_count(cols);
    int64_t n_bad = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b += MXA_AVX2_SCALE_BLOCKS) {
            const int64_t first = b * MXA_MX_BLOCK, at = r * blocks + b;
            const int64_t n = cols - first < MOST ? cols - first : MOST;
            n_bad += mx_blocks(format, threshold, p->x + r * cols + first, p->amax + at, n,
                               codes + at * code_bytes(format), scales + at);
        }
    return n_bad;
}

int64_t mxa_quantize_mx_avx512(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                               int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const mxa_rule rule = spec->rule;
    if (g_step != 0 || *g != 1.0f) /* rare: a second level on an MX format */
        return mxa_quantize_portable(spec, x, g, g_step, codes, scales);
    switch (spec->info->format) {
    case MXA_FORMAT_MXFP8_E4M3: return mx_rows(MXA_FORMAT_MXFP8_E4M3, rule, x, codes, scales);
    case MXA_FORMAT_MXFP8_E5M2: return mx_rows(MXA_FORMAT_MXFP8_E5M2, rule, x, codes, scales);
    case MXA_FORMAT_MXFP6_E3M2: return mx_rows(MXA_FORMAT_MXFP6_E3M2, rule, x, codes, scales);
    case MXA_FORMAT_MXFP6_E2M3: return mx_rows(MXA_FORMAT_MXFP6_E2M3, rule, x, codes, scales);
    case MXA_FORMAT_MXINT8: return mx_rows(MXA_FORMAT_MXINT8, rule, x, codes, scales);
    default: return mx_rows(MXA_FORMAT_MXFP4, rule, x, codes, scales);
    }
}
