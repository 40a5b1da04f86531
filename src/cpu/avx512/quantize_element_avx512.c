/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 and INT8: one factor a row, a code an element. */
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "cpu/portable/codes_portable.h"

/*
 * 64 elements, or the first of them that the mask has. What needs care shows in *care: of FP8 the largest
 * magnitude of a quotient, of INT8 the smallest code, -128 where a number is NaN or too large for an integer.
 */
MXA_AVX512_INLINE void element_block(mxa_format format, __mmask64 mask, const float *x, mxa_avx512_divisor d,
                                     __m512i *care, uint8_t *codes)
{
    __m512 v[4], q[4];
    for (int i = 0; i < 4; i++) {
        const __mmask16 lanes = (__mmask16)(mask >> i * MXA_AVX512_LANES);
        v[i] = _mm512_maskz_loadu_ps(lanes, x + i * MXA_AVX512_LANES);
        q[i] = mxa_avx512_quotient(v[i], d);
    }
    if (format == MXA_FORMAT_INT8) {
        for (int i = 0; i < 4; i++) /* keeps NaN */
            q[i] = _mm512_max_ps(_mm512_set1_ps(-127.0f), q[i]);
        const __m512i c = mxa_avx512_codes_i8(q);
        *care = _mm512_min_epi8(*care, c);
        _mm512_mask_storeu_epi8(codes, mask, c);
        return;
    }
    for (int i = 0; i < 4; i++) {
        const __m512i mag = mxa_avx512_magnitude(q[i]);
        *care = _mm512_max_epi32(*care, mag);
        q[i] = _mm512_min_ps(_mm512_castsi512_ps(mag), _mm512_set1_ps(448.0f));
    }
    _mm512_mask_storeu_epi8(codes, mask, mxa_avx512_codes(mxa_element_e4m3(), q, v));
}

/* False if the row has to be done with care. */
MXA_AVX512_INLINE bool element_row(mxa_format format, const float *x, int64_t cols, float g, uint8_t *codes)
{
    if (!mxa_avx2_divides(g))
        return false;
    const mxa_avx512_divisor d = mxa_avx512_divisor_of(g);
    const int64_t whole = cols & -(int64_t)MXA_AVX512_CODES;
    __m512i care = _mm512_setzero_si512();
    for (int64_t i = 0; i < whole; i += MXA_AVX512_CODES)
        element_block(format, UINT64_MAX, x + i, d, &care, codes + i);
    if (whole < cols)
        element_block(format, UINT64_MAX >> (MXA_AVX512_CODES - (cols - whole)), x + whole, d, &care,
                      codes + whole);
    if (format == MXA_FORMAT_INT8)
        return _mm512_cmpeq_epi8_mask(care, _mm512_set1_epi8(INT8_MIN)) == 0;
    return mxa_avx512_largest_u31(care) < MXA_F32_INF;
}

int64_t mxa_quantize_element_avx512(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
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
