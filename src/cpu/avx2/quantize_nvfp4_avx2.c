/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/nvfp4_avx2.h"

enum { PAIR = 2 * MXA_NVFP4_BLOCK }; /* elements of two blocks, whose codes are 16 bytes */

/* Two blocks from b on. A quotient that overflows is NaN, which min takes for the largest. */
static inline __m128i two_blocks(const float *x, const mxa_avx2_block_steps *steps, int b)
{
    __m256 v[4], mag[4];
    for (int i = 0; i < 4; i++) {
        const int block = b + i / 2;
        const mxa_avx2_divisor divisor = { _mm256_broadcast_ss(steps->g + block),
                                           _mm256_broadcast_ss(steps->high + block),
                                           _mm256_broadcast_ss(steps->low + block) };
        v[i] = _mm256_loadu_ps(x + i * MXA_AVX2_LANES);
        const __m256i quotient = mxa_avx2_magnitude(mxa_avx2_quotient(v[i], divisor));
        mag[i] = _mm256_min_ps(_mm256_castsi256_ps(quotient), _mm256_set1_ps(6.0f));
    }
    return mxa_avx2_nibbles(mxa_avx2_codes(mxa_element_e2m1(), mag, v));
}

static inline void encode(const float *x, int64_t cols, const mxa_avx2_block_steps *steps, uint8_t *codes)
{
    int64_t d = 0;
    for (; d + PAIR <= cols; d += PAIR)
        _mm_storeu_si128((void *)(codes + d / 2),
                         two_blocks(x + d, steps + d / MXA_AVX2_NVFP4_GROUP,
                                    (int)(d % MXA_AVX2_NVFP4_GROUP / MXA_NVFP4_BLOCK)));
    if (d < cols) {
        float filled[PAIR] = { 0 };
        const int64_t blocks = (cols - d + MXA_NVFP4_BLOCK - 1) / MXA_NVFP4_BLOCK;
        memcpy(filled, x + d, (size_t)(cols - d) * sizeof *x);
        const __m128i pair = two_blocks(filled, steps + d / MXA_AVX2_NVFP4_GROUP,
                                        (int)(d % MXA_AVX2_NVFP4_GROUP / MXA_NVFP4_BLOCK));
        memcpy(codes + d / 2, &pair, (size_t)blocks * MXA_NVFP4_BLOCK / 2);
    }
}

int64_t mxa_quantize_nvfp4_avx2(const mxa_code_spec *spec, const mxa_prepared *x, const float *g,
                                int64_t g_step, uint8_t *codes, uint8_t *scales)
{
    return mxa_avx2_nvfp4_rows(spec, x, g, g_step, codes, scales, encode);
}
