/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 and F16 copies. */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/encode_avx2.h"
#include "cpu/portable/codes_portable.h"

enum { HALVES = 2 * MXA_AVX2_LANES, BYTES = sizeof(uint16_t) };

/* Rounded to nearest even; the upper half of a number that does not overflow. */
static inline __m256i round_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(sum, 16);
}

/* Sixteen elements; care takes their magnitudes in. */
MXA_AVX2_INLINE void half_block(bool bf16, const float *x, __m256i *care, uint8_t *codes)
{
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + MXA_AVX2_LANES);
    *care = _mm256_max_epi32(*care, _mm256_max_epi32(mxa_avx2_magnitude(a), mxa_avx2_magnitude(b)));
    if (bf16) {
        const __m256i halves = _mm256_packus_epi32(round_bf16(a), round_bf16(b));
        _mm256_storeu_si256((void *)codes, _mm256_permute4x64_epi64(halves, _MM_SHUFFLE(3, 1, 2, 0)));
    } else {
        _mm_storeu_si128((void *)codes, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128((void *)(codes + HALVES / 2 * BYTES), _mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
    }
}

/* False if there is NaN, Inf or what would become Inf: that has to be done with care. */
MXA_AVX2_INLINE bool half_row(bool bf16, const float *x, int64_t n, uint8_t *codes)
{
    const uint32_t too_large = mxa_f32_bits(bf16 ? 0x1.FFp127f : 65520.0f);
    const int64_t whole = n & -(int64_t)HALVES;
    __m256i care = _mm256_setzero_si256();
    for (int64_t i = 0; i < whole; i += HALVES)
        half_block(bf16, x + i, &care, codes + i * BYTES);
    if (whole < n) {
        float filled[HALVES] = { 0 };
        uint8_t block[HALVES * BYTES];
        memcpy(filled, x + whole, (size_t)(n - whole) * sizeof *x);
        half_block(bf16, filled, &care, block);
        memcpy(codes + whole * BYTES, block, (size_t)(n - whole) * BYTES);
    }
    return mxa_avx2_largest_u31(care) < too_large;
}

/* Rows lie without gaps: they are one long row. */
int64_t mxa_quantize_half_avx2(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                               int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    const bool bf16 = spec->info->format == MXA_FORMAT_BF16;
    const int64_t n = x->rows * x->cols;
    if (!(bf16 ? half_row(true, x->x, n, codes) : half_row(false, x->x, n, codes)))
        mxa_quantize_portable(spec, x, g, g_step, codes, scales);
    return 0;
}
