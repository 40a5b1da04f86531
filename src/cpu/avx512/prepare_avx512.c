/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows widened, less the mean and rotated by sixteen lanes: the same additions in the same order inside each
 * element's chain as in format/hadamard.h, so the same bits. Groups of up to 256 elements stay in registers;
 * what is longer, or no whole number of vectors, is done by eight lanes.
 */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx2/codes_avx2.h"
#include "cpu/avx512/codes_avx512.h"
#include "cpu/avx512/encode_avx512.h"
#include "format/hadamard.h"

enum { MOST_VECTORS = 16 };
enum { TOGETHER = 8 }; /* rows that stay in the L1 cache until their maxima are known */

/* Sixteen elements of a row from column d on. */
MXA_AVX512_INLINE __m512 widen(mxa_dtype type, const void *row, int64_t d)
{
    if (type == MXA_DTYPE_F32)
        return _mm512_loadu_ps((const float *)row + d);
    const __m256i half = _mm256_loadu_si256((const void *)((const uint16_t *)row + d));
    return type == MXA_DTYPE_F16 ? _mm512_cvtph_ps(half)
                                 : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/*
 * Stages s = 1, 2, 4 and 8, inside vectors: each element times 1 or -1, plus the one s away. The product is
 * exact, so the sum is rounded as that of two numbers. Vectors take a stage one after the other: they don't
 * depend on each other, while the stages of one do.
 */
MXA_AVX512_INLINE void rotate_within(int n, __m512 v[MOST_VECTORS])
{
    const __m512 one = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const __m512 two = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const __m512 four = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 eight = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int i = 0; i < n; i++)
        v[i] = _mm512_fmadd_ps(v[i], one, _mm512_permute_ps(v[i], _MM_SHUFFLE(2, 3, 0, 1)));
    for (int i = 0; i < n; i++)
        v[i] = _mm512_fmadd_ps(v[i], two, _mm512_permute_ps(v[i], _MM_SHUFFLE(1, 0, 3, 2)));
    for (int i = 0; i < n; i++)
        v[i] = _mm512_fmadd_ps(v[i], four, _mm512_shuffle_f32x4(v[i], v[i], _MM_SHUFFLE(2, 3, 0, 1)));
    for (int i = 0; i < n; i++)
        v[i] = _mm512_fmadd_ps(v[i], eight, _mm512_shuffle_f32x4(v[i], v[i], _MM_SHUFFLE(1, 0, 3, 2)));
}

/* Instead of a mean: subtracting it changes nothing. */
static const float zeros[MOST_VECTORS * MXA_AVX512_LANES];

/* A row whose groups are n vectors. */
MXA_AVX512_INLINE void rotate_row(mxa_dtype type, int n, const void *row, int64_t cols, const float *mean,
                                  __m512 norm, float *out)
{
    for (int64_t d = 0; d < cols; d += n * MXA_AVX512_LANES) {
        const float *const m = mean ? mean + d : zeros;
        __m512 v[MOST_VECTORS];
        for (int i = 0; i < n; i++)
            v[i] = widen(type, row, d + i * MXA_AVX512_LANES);
        for (int i = 0; i < n; i++)
            v[i] = _mm512_sub_ps(v[i], _mm512_loadu_ps(m + i * MXA_AVX512_LANES));
        rotate_within(n, v);
        for (int s = 1; s < n; s *= 2)
            for (int i = 0; i < n; i++) {
                if (i & s)
                    continue;
                const __m512 a = v[i], b = v[i + s];
                v[i] = _mm512_add_ps(a, b);
                v[i + s] = _mm512_sub_ps(a, b);
            }
        for (int i = 0; i < n; i++)
            _mm512_storeu_ps(out + d + i * MXA_AVX512_LANES, _mm512_mul_ps(v[i], norm));
    }
}

MXA_AVX512_INLINE void plain_row(mxa_dtype type, const void *row, int64_t cols, const float *mean, float *out)
{
    for (int64_t d = 0; d < cols; d += MXA_AVX512_LANES) {
        const __m512 wide = widen(type, row, d);
        _mm512_storeu_ps(out + d, mean ? _mm512_sub_ps(wide, _mm512_loadu_ps(mean + d)) : wide);
    }
}

MXA_AVX512_INLINE void prepare_row(mxa_dtype type, const void *row, int64_t cols, const float *mean,
                                   bool rotate, __m512 norm, float *out)
{
    if (!rotate) {
        plain_row(type, row, cols, mean, out);
        return;
    }
    switch (mxa_hadamard_group(cols) / MXA_AVX512_LANES) {
    case 1: rotate_row(type, 1, row, cols, mean, norm, out); break;
    case 2: rotate_row(type, 2, row, cols, mean, norm, out); break;
    case 4: rotate_row(type, 4, row, cols, mean, norm, out); break;
    case 8: rotate_row(type, 8, row, cols, mean, norm, out); break;
    default: rotate_row(type, MOST_VECTORS, row, cols, mean, norm, out); break;
    }
}

static inline __m512i fold_pairs(__m512i a, __m512i b)
{
    return _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

/* Bits of the largest magnitude of each of four blocks. */
static inline __m128i four_maxima(const float *x)
{
    enum { BLOCKS = 4 };
    __m512i m[BLOCKS];
    for (int b = 0; b < BLOCKS; b++) {
        const __m512 low = _mm512_loadu_ps(x + b * MXA_AMAX_BLOCK);
        const __m512 high = _mm512_loadu_ps(x + b * MXA_AMAX_BLOCK + MXA_AVX512_LANES);
        m[b] = _mm512_max_epi32(mxa_avx512_magnitude(low), mxa_avx512_magnitude(high));
    }
    const __m512i a = fold_pairs(m[0], m[1]), b = fold_pairs(m[2], m[3]);
    const __m512i fours = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i twos = _mm256_max_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
    return _mm_max_epi32(_mm256_castsi256_si128(twos), _mm256_extracti128_si256(twos, 1));
}

/* Of several rows; those of whole blocks are one long row. */
static inline uint32_t *rows_maxima(const float *x, int64_t rows, int64_t cols, uint32_t *amax)
{
    enum { BLOCKS = 4, FOUR = BLOCKS * MXA_AMAX_BLOCK };
    if (cols % MXA_AMAX_BLOCK)
        return mxa_avx2_rows_maxima(x, rows, cols, amax);
    const int64_t n = rows * cols, whole = n / FOUR * FOUR;
    for (int64_t d = 0; d < whole; d += FOUR, amax += BLOCKS)
        _mm_storeu_si128((void *)amax, four_maxima(x + d));
    return mxa_avx2_row_maxima(x + whole, n - whole, amax);
}

MXA_AVX512_INLINE void prepare_rows(mxa_dtype type, const mxa_source *x, const float *mean, bool rotate,
                                    float *out, uint32_t *amax)
{
    const __m512 norm = _mm512_set1_ps(mxa_hadamard_norm(mxa_hadamard_group(x->cols)));
    for (int64_t first = 0; first < x->rows; first += TOGETHER) {
        const int64_t end = first + TOGETHER < x->rows ? first + TOGETHER : x->rows;
        for (int64_t r = first; r < end; r++)
            prepare_row(type, mxa_source_row(x, r), x->cols, mean, rotate, norm, out + r * x->cols);
        if (amax)
            amax = rows_maxima(out + first * x->cols, end - first, x->cols, amax);
    }
}

void mxa_prepare_avx512(const mxa_source *x, const float *mean, bool rotate, float *out, uint32_t *amax)
{
    const bool long_group = rotate && mxa_hadamard_group(x->cols) > MOST_VECTORS * MXA_AVX512_LANES;
    if (x->cols % MXA_AVX512_LANES || long_group) {
        mxa_prepare_avx2(x, mean, rotate, out, amax);
        return;
    }
    switch (x->dtype) {
    case MXA_DTYPE_F32: prepare_rows(MXA_DTYPE_F32, x, mean, rotate, out, amax); break;
    case MXA_DTYPE_F16: prepare_rows(MXA_DTYPE_F16, x, mean, rotate, out, amax); break;
    default: prepare_rows(MXA_DTYPE_BF16, x, mean, rotate, out, amax); break;
    }
}
