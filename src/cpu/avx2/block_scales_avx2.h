/* SPDX-License-Identifier: Apache-2.0 */
/* Scales of several blocks from the bits of their largest magnitudes. */
#ifndef MXA_CPU_AVX2_BLOCK_SCALES_AVX2_H
#define MXA_CPU_AVX2_BLOCK_SCALES_AVX2_H

#include "cpu/avx2/encode_avx2.h"
#include "format/mx.h"

enum { MXA_AVX2_MX_BLOCKS = 4, MXA_AVX2_NVFP4_BLOCKS = MXA_AVX2_LANES }; /* that are done together */

/*
 * Four MX blocks: mxa_mx_scale of each, 0xFF of those with NaN or Inf, and 1 / scale. threshold is from
 * mxa_mx_threshold. Returns one bit for each block with NaN or Inf.
 */
MXA_AVX2_INLINE unsigned mxa_avx2_mx_scales(mxa_element f, uint32_t threshold, __m128i amax, uint8_t *scales,
                                            float inverse[MXA_AVX2_MX_BLOCKS])
{
    const __m128i exponent = _mm_srli_epi32(amax, 23);
    const __m128i mantissa = _mm_and_si128(amax, _mm_set1_epi32(0x7FFFFF));
    const __m128i up = _mm_cmpgt_epi32(mantissa, _mm_set1_epi32((int)threshold - 1));
    const __m128i e = _mm_sub_epi32(_mm_sub_epi32(exponent, _mm_set1_epi32(f.emax)), up);
    const __m128i tiny = _mm_cmpeq_epi32(exponent, _mm_setzero_si128());
    const __m128i low = _mm_max_epi32(_mm_andnot_si128(tiny, e), _mm_setzero_si128());
    const __m128i scale = _mm_min_epi32(low, _mm_set1_epi32(254));

    /* 2^(127 - scale), of which the lowest is subnormal. */
    const __m128i power = _mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(254), scale), 23);
    _mm_storeu_ps(inverse, _mm_castsi128_ps(_mm_max_epi32(power, _mm_set1_epi32(0x00400000))));

    const __m128i bad = _mm_cmpgt_epi32(amax, _mm_set1_epi32((int)MXA_F32_INF - 1));
    const __m128i stored = _mm_or_si128(scale, _mm_and_si128(bad, _mm_set1_epi32((int)MXA_E8M0_NAN)));
    const __m128i words = _mm_packus_epi32(stored, stored);
    const uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    memcpy(scales, &bytes, sizeof bytes);
    return (unsigned)_mm_movemask_ps(_mm_castsi128_ps(bad));
}

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
    const mxa_avx2_divisor divisor = mxa_avx2_divisor_of(step);
    _mm256_storeu_ps(steps->g, divisor.g);
    _mm256_storeu_ps(steps->high, divisor.high);
    _mm256_storeu_ps(steps->low, divisor.low);
}

#endif
