/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 and INT8: one factor a row, a code an element. */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/encode_avx2.h"
#include "cpu/portable/codes_portable.h"

/*
 * 32 elements. What needs care shows in *care: of FP8 the largest magnitude of a quotient, of INT8 the
 * smallest code, -128 where a number is NaN or too large for an integer.
 */
MXA_AVX2_INLINE void element_block(mxa_format format, const float *x, mxa_avx2_divisor d, __m256i *care,
                                   uint8_t *codes)
{
    const __m256 largest = _mm256_set1_ps(448.0f);
    __m256 v[4], q[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + i * MXA_AVX2_LANES);
        q[i] = mxa_avx2_quotient(v[i], d);
    }
    if (format == MXA_FORMAT_INT8) {
        for (int i = 0; i < 4; i++) /* keeps NaN */
            q[i] = _mm256_max_ps(_mm256_set1_ps(-127.0f), q[i]);
        const __m256i c = mxa_avx2_codes_i8(q);
        *care = _mm256_min_epi8(*care, c);
        _mm256_storeu_si256((void *)codes, c);
        return;
    }
    for (int i = 0; i < 4; i++) {
        const __m256i mag = mxa_avx2_magnitude(q[i]);
        *care = _mm256_max_epi32(*care, mag);
        q[i] = _mm256_min_ps(_mm256_castsi256_ps(mag), largest);
    }
    _mm256_storeu_si256((void *)codes, mxa_avx2_codes(mxa_element_e4m3(), q, v));
}

/* False if the row has to be done with care. */
MXA_AVX2_INLINE bool element_row(mxa_format format, const float *x, int64_t cols, float g, uint8_t *codes)
{
    if (!mxa_avx2_divides(g))
        return false;
    const mxa_avx2_divisor d = mxa_avx2_divisor_of(g);
    const int64_t whole = cols & -(int64_t)MXA_AVX2_CODES;
    __m256i care = _mm256_setzero_si256();
    for (int64_t i = 0; i < whole; i += MXA_AVX2_CODES)
        element_block(format, x + i, d, &care, codes + i);
    if (whole < cols) {
        float filled[MXA_AVX2_CODES] = { 0 };
        uint8_t block[MXA_AVX2_CODES];
        memcpy(filled, x + whole, (size_t)(cols - whole) * sizeof *x);
        element_block(format, filled, d, &care, block);
        memcpy(codes + whole, block, (size_t)(cols - whole));
    }
    if (format == MXA_FORMAT_INT8)
        return _mm256_movemask_epi8(_mm256_cmpeq_epi8(care, _mm256_set1_epi8(INT8_MIN))) == 0;
    return mxa_avx2_largest_u31(care) < MXA_F32_INF;
}

int64_t mxa_quantize_element_avx2(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                  int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const bool fp8 = spec->info->format == MXA_FORMAT_FP8;
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++, codes += x->cols, g += g_step) {
        const mxa_prepared row = mxa_prepared_row(x, r);
        if (!(fp8 ? element_row(MXA_FORMAT_FP8, row.x, row.cols, *g, codes)
                  : element_row(MXA_FORMAT_INT8, row.x, row.cols, *g, codes)))
            n_bad += mxa_quantize_portable(spec, &row, g, 0, codes, scales);
    }
    return n_bad;
}
