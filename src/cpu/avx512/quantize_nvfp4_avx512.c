/* SPDX-License-Identifier: Apache-2.0 */
/* The scales of NVFP4 are those of eight lanes; codes are made by sixteen. */
#include "cpu/avx2/nvfp4_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"

enum { FOUR = 4 * MXA_NVFP4_BLOCK }; /* elements of four blocks, whose codes are 32 bytes */

/* Four blocks from b on. A quotient that overflows is NaN, which min takes for the largest. */
static inline __m256i four_blocks(const float *x, const mxa_avx2_block_steps *steps, int b)
{
    __m512 v[4], mag[4];
    for (int i = 0; i < 4; i++) {
        const mxa_avx512_divisor divisor = { _mm512_set1_ps(steps->g[b + i]),
                                             _mm512_set1_ps(steps->high[b + i]),
                                             _mm512_set1_ps(steps->low[b + i]) };
        v[i] = _mm512_loadu_ps(x + i * MXA_NVFP4_BLOCK);
        const __m512i quotient = mxa_avx512_magnitude(mxa_avx512_quotient(v[i], divisor));
        mag[i] = _mm512_min_ps(_mm512_castsi512_ps(quotient), _mm512_set1_ps(6.0f));
    }
    return mxa_avx512_nibbles(mxa_avx512_codes(mxa_element_e2m1(), mag, v));
}

static inline void encode(const float *x, int64_t cols, const mxa_avx2_block_steps *steps, uint8_t *codes)
{
    int64_t d = 0;
    for (; d + FOUR <= cols; d += FOUR)
        _mm256_storeu_si256((void *)(codes + d / 2),
                            four_blocks(x + d, steps + d / MXA_AVX2_NVFP4_GROUP,
                                        (int)(d % MXA_AVX2_NVFP4_GROUP / MXA_NVFP4_BLOCK)));
    if (d < cols) {
        float filled[FOUR] = { 0 };
        const int64_t blocks = (cols - d + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
        memcpy(filled, x + d, (size_t)(cols - d) * sizeof *x);
        const __m256i four = four_blocks(filled, steps + d / MXA_AVX2_NVFP4_GROUP,
                                         (int)(d % MXA_AVX2_NVFP4_GROUP / MXA_NVFP4_BLOCK));
        memcpy(codes + d / 2, &four, (size_t)blocks * MXA_NVFP4_BLOCK / 2);
    }
}

int64_t mxa_quantize_nvfp4_avx512(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                  int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    return mxa_avx2_nvfp4_rows(spec, x, g, g_step, codes, scales, encode);
}
