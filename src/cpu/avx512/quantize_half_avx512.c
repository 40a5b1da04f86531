/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 and F16 copies. */
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "cpu/portable/codes_portable.h"

enum { BYTES = sizeof(uint16_t) };

/* Rounded to nearest even; the upper half of a number that does not overflow. */
static inline __m256i round_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

/* Sixteen elements, or the first of them that the mask has; care takes their magnitudes in. */
MXA_AVX512_INLINE void half_block(bool bf16, __mmask16 mask, const float *x, __m512i *care, uint8_t *codes)
{
    const __m512 v = _mm512_maskz_loadu_ps(mask, x);
    *care = _mm512_max_epi32(*care, mxa_avx512_magnitude(v));
    _mm256_mask_storeu_epi16(codes, mask,
                             bf16 ? round_bf16(v) : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

/* False if there is NaN, Inf or what would become Inf: that has to be done with care. */
MXA_AVX512_INLINE bool half_row(bool bf16, const float *x, int64_t n, uint8_t *codes)
{
    const uint32_t too_large = mxa_f32_bits(bf16 ? 0x1.FFp127f : 65520.0f);
    const int64_t whole = n & -(int64_t)MXA_AVX512_LANES;
    __m512i care = _mm512_setzero_si512();
    for (int64_t i = 0; i < whole; i += MXA_AVX512_LANES)
        half_block(bf16, UINT16_MAX, x + i, &care, codes + i * BYTES);
    if (whole < n)
        half_block(bf16, (__mmask16)((1u << (n - whole)) - 1), x + whole, &care, codes + whole * BYTES);
    return mxa_avx512_largest_u31(care) < too_large;
}

/* Rows lie without gaps: they are one long row. */
int64_t mxa_quantize_half_avx512(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                 int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const bool bf16 = spec->info->format == MXA_FORMAT_BF16;
    const int64_t n = x->rows * x->cols;
    if (!(bf16 ? half_row(true, x->x, n, codes) : half_row(false, x->x, n, codes)))
        mxa_quantize_portable(spec, x, g, g_step, codes, scales);
    return 0;
}
