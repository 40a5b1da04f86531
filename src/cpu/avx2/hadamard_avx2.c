/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotation of format/hadamard.h by eight lanes: the same additions in the same order inside each
 * element's chain, so the same bits. The first six stages stay in registers.
 */
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx2/vector_avx2.h"
#include "format/hadamard.h"

enum { CHUNK_VECTORS = 8, CHUNK = CHUNK_VECTORS * MXA_AVX2_LANES };

static inline __m256 add_signed(__m256 a, __m256 b, __m256i signs)
{
    return _mm256_add_ps(a, _mm256_xor_ps(b, _mm256_castsi256_ps(signs)));
}

/* Stages s = 1, 2 and 4 of one vector; a - b is a + (-b). */
static inline __m256 within(__m256 v)
{
    const int m = INT32_MIN;
    v = add_signed(_mm256_moveldup_ps(v), _mm256_movehdup_ps(v), _mm256_setr_epi32(0, m, 0, m, 0, m, 0, m));
    v = add_signed(_mm256_permute_ps(v, 0x44), _mm256_permute_ps(v, 0xEE),
                   _mm256_setr_epi32(0, 0, m, m, 0, 0, m, m));
    return add_signed(_mm256_permute2f128_ps(v, v, 0x00), _mm256_permute2f128_ps(v, v, 0x11),
                      _mm256_setr_epi32(0, 0, 0, 0, m, m, m, m));
}

/* All stages of n vectors; their products with factor are stored. */
static inline __attribute__((always_inline)) void rotate_chunk(int n, float *x, __m256 factor)
{
    __m256 v[CHUNK_VECTORS];
    for (int i = 0; i < n; i++)
        v[i] = within(_mm256_loadu_ps(x + i * MXA_AVX2_LANES));
    for (int s = 1; s < n; s *= 2)
        for (int i = 0; i < n; i++) {
            if (i & s)
                continue;
            const __m256 a = v[i], b = v[i + s];
            v[i] = _mm256_add_ps(a, b);
            v[i + s] = _mm256_sub_ps(a, b);
        }
    for (int i = 0; i < n; i++)
        _mm256_storeu_ps(x + i * MXA_AVX2_LANES, _mm256_mul_ps(v[i], factor));
}

/* Stage s of one group, s a multiple of 8. */
static inline void rotate_stage(float *x, int64_t group, int64_t s, __m256 factor)
{
    for (int64_t i = 0; i < group; i += 2 * s)
        for (float *p = x + i; p < x + i + s; p += MXA_AVX2_LANES) {
            const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + s);
            _mm256_storeu_ps(p, _mm256_mul_ps(_mm256_add_ps(a, b), factor));
            _mm256_storeu_ps(p + s, _mm256_mul_ps(_mm256_sub_ps(a, b), factor));
        }
}

void mxa_hadamard_avx2(float *x, int64_t cols)
{
    const int64_t group = mxa_hadamard_group(cols);
    if (group < MXA_AVX2_LANES) {
        mxa_hadamard(x, cols);
        return;
    }
    const __m256 norm = _mm256_set1_ps(mxa_hadamard_norm(group)), one = _mm256_set1_ps(1.0f);
    const int64_t chunk = group < CHUNK ? group : CHUNK;
    const __m256 factor = group > CHUNK ? one : norm;
    for (int64_t i = 0; i < cols; i += chunk)
        switch (chunk / MXA_AVX2_LANES) {
        case 1: rotate_chunk(1, x + i, factor); break;
        case 2: rotate_chunk(2, x + i, factor); break;
        case 4: rotate_chunk(4, x + i, factor); break;
        default: rotate_chunk(CHUNK_VECTORS, x + i, factor); break;
        }
    for (float *p = x; p < x + cols && group > CHUNK; p += group)
        for (int64_t s = CHUNK; s < group; s *= 2)
            rotate_stage(p, group, s, 2 * s < group ? one : norm);
}
