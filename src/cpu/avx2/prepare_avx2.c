/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows widened, less the mean and rotated by eight lanes: the same additions in the same order inside each
 * element's chain as in format/hadamard.h, so the same bits. The first six stages stay in registers.
 */
#include "cpu/avx2/block_scales_avx2.h"
#include "cpu/avx2/codes_avx2.h"
#include "cpu/portable/codes_portable.h"
#include "cpu/ref/codes_ref.h"
#include "format/hadamard.h"

enum { CHUNK_VECTORS = 8, CHUNK = CHUNK_VECTORS * MXA_AVX2_LANES };
enum { TOGETHER = 8 }; /* rows that stay in the L1 cache until their maxima are known */

/* Eight elements of a row from column d on. */
MXA_AVX2_INLINE __m256 widen(mxa_dtype type, const void *row, int64_t d)
{
    if (type == MXA_DTYPE_F32)
        return _mm256_loadu_ps((const float *)row + d);
    const __m128i half = _mm_loadu_si128((const void *)((const uint16_t *)row + d));
    return type == MXA_DTYPE_F16 ? _mm256_cvtph_ps(half)
                                 : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/*
 * Stages s = 1, 2 and 4, inside vectors: each element times 1 or -1, plus the one s away. The product is
 * exact, so the sum is rounded as that of two numbers. Vectors take a stage one after the other: they don't
 * depend on each other, while the stages of one do.
 */
MXA_AVX2_INLINE void rotate_within(int n, __m256 v[CHUNK_VECTORS])
{
    const __m256 one = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
    const __m256 two = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
    const __m256 four = _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1);
    for (int i = 0; i < n; i++)
        v[i] = _mm256_fmadd_ps(v[i], one, _mm256_permute_ps(v[i], _MM_SHUFFLE(2, 3, 0, 1)));
    for (int i = 0; i < n; i++)
        v[i] = _mm256_fmadd_ps(v[i], two, _mm256_permute_ps(v[i], _MM_SHUFFLE(1, 0, 3, 2)));
    for (int i = 0; i < n; i++)
        v[i] = _mm256_fmadd_ps(v[i], four, _mm256_permute2f128_ps(v[i], v[i], 0x01));
}

/* Stages between n vectors. */
MXA_AVX2_INLINE void rotate_across(int n, __m256 v[])
{
    for (int s = 1; s < n; s *= 2)
        for (int i = 0; i < n; i++) {
            if (i & s)
                continue;
            const __m256 a = v[i], b = v[i + s];
            v[i] = _mm256_add_ps(a, b);
            v[i + s] = _mm256_sub_ps(a, b);
        }
}

/* Instead of a mean: subtracting it changes nothing. */
static const float zeros[CHUNK];

/* n vectors of a row from column d on, less the mean, after all stages that stay among them. */
MXA_AVX2_INLINE void rotate_chunk(mxa_dtype type, int n, const void *row, int64_t d, const float *mean,
                                  __m256 v[CHUNK_VECTORS])
{
    const float *const m = mean ? mean + d : zeros;
    for (int i = 0; i < n; i++)
        v[i] = widen(type, row, d + i * MXA_AVX2_LANES);
    for (int i = 0; i < n; i++)
        v[i] = _mm256_sub_ps(v[i], _mm256_loadu_ps(m + i * MXA_AVX2_LANES));
    rotate_within(n, v);
    rotate_across(n, v);
}

/* A row whose groups are n vectors. */
MXA_AVX2_INLINE void rotate_row(mxa_dtype type, int n, const void *row, int64_t cols, const float *mean,
                                __m256 norm, float *out)
{
    for (int64_t d = 0; d < cols; d += n * MXA_AVX2_LANES) {
        __m256 v[CHUNK_VECTORS];
        rotate_chunk(type, n, row, d, mean, v);
        for (int i = 0; i < n; i++)
            _mm256_storeu_ps(out + d + i * MXA_AVX2_LANES, _mm256_mul_ps(v[i], norm));
    }
}

/* Stage s of one group, s a multiple of 8. */
static inline void rotate_stage(float *x, int64_t group, int64_t s)
{
    for (int64_t i = 0; i < group; i += 2 * s)
        for (float *p = x + i; p < x + i + s; p += MXA_AVX2_LANES) {
            const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + s);
            _mm256_storeu_ps(p, _mm256_add_ps(a, b));
            _mm256_storeu_ps(p + s, _mm256_sub_ps(a, b));
        }
}

/* The last stage of one group, and the factor. */
static inline void rotate_last(float *x, int64_t group, __m256 norm)
{
    for (float *p = x; p < x + group / 2; p += MXA_AVX2_LANES) {
        const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + group / 2);
        _mm256_storeu_ps(p, _mm256_mul_ps(_mm256_add_ps(a, b), norm));
        _mm256_storeu_ps(p + group / 2, _mm256_mul_ps(_mm256_sub_ps(a, b), norm));
    }
}

/* A row whose groups are longer than a chunk. */
MXA_AVX2_INLINE void rotate_long_row(mxa_dtype type, const void *row, int64_t cols, const float *mean,
                                     __m256 norm, float *out)
{
    const int64_t group = mxa_hadamard_group(cols);
    for (int64_t d = 0; d < cols; d += CHUNK) {
        __m256 v[CHUNK_VECTORS];
        rotate_chunk(type, CHUNK_VECTORS, row, d, mean, v);
        for (int i = 0; i < CHUNK_VECTORS; i++)
            _mm256_storeu_ps(out + d + i * MXA_AVX2_LANES, v[i]);
    }
    for (float *x = out; x < out + cols; x += group) {
        for (int64_t s = CHUNK; 2 * s < group; s *= 2)
            rotate_stage(x, group, s);
        rotate_last(x, group, norm);
    }
}

/* Eight prepared elements on their way out, and their magnitudes into the maxima of their block. */
static inline void put(float *out, __m256 x, __m256i *maxima)
{
    _mm256_storeu_ps(out, x);
    *maxima = _mm256_max_epi32(*maxima, mxa_avx2_magnitude(x));
}

/* Groups of 64 elements, and the maxima of both blocks of each. */
MXA_AVX2_INLINE uint32_t *rotate_64(mxa_dtype type, const void *row, int64_t cols, const float *mean,
                                    __m256 norm, float *out, uint32_t *amax)
{
    enum { BLOCKS = CHUNK / MXA_AMAX_BLOCK };
    for (int64_t d = 0; d < cols; d += CHUNK, amax += BLOCKS) {
        __m256 v[CHUNK_VECTORS];
        __m256i m[BLOCKS] = { _mm256_setzero_si256(), _mm256_setzero_si256() };
        rotate_chunk(type, CHUNK_VECTORS, row, d, mean, v);
        for (int i = 0; i < CHUNK_VECTORS; i++)
            put(out + d + i * MXA_AVX2_LANES, _mm256_mul_ps(v[i], norm), &m[i * BLOCKS / CHUNK_VECTORS]);
        const __m256i pairs = mxa_avx2_fold_pairs(m[0], m[1]), both = mxa_avx2_fold_fours(pairs, pairs);
        _mm_storel_epi64((void *)amax,
                         _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
    }
    return amax;
}

/* Groups of 128: one half waits in the L1 cache, as 16 registers do not hold both. */
MXA_AVX2_INLINE uint32_t *rotate_128(mxa_dtype type, const void *row, int64_t cols, const float *mean,
                                     __m256 norm, float *out, uint32_t *amax)
{
    enum { BLOCKS = 2 * CHUNK / MXA_AMAX_BLOCK };
    for (int64_t d = 0; d < cols; d += 2 * CHUNK, amax += BLOCKS) {
        __m256 v[CHUNK_VECTORS];
        __m256i m[BLOCKS];
        float half[CHUNK];
        rotate_chunk(type, CHUNK_VECTORS, row, d, mean, v);
        for (int i = 0; i < CHUNK_VECTORS; i++)
            _mm256_storeu_ps(half + i * MXA_AVX2_LANES, v[i]);
        rotate_chunk(type, CHUNK_VECTORS, row, d + CHUNK, mean, v);
        for (int b = 0; b < BLOCKS; b++)
            m[b] = _mm256_setzero_si256();
        for (int i = 0; i < CHUNK_VECTORS; i++) {
            const __m256 a = _mm256_loadu_ps(half + i * MXA_AVX2_LANES);
            const int block = i * BLOCKS / 2 / CHUNK_VECTORS;
            float *const to = out + d + i * MXA_AVX2_LANES;
            put(to, _mm256_mul_ps(_mm256_add_ps(a, v[i]), norm), &m[block]);
            put(to + CHUNK, _mm256_mul_ps(_mm256_sub_ps(a, v[i]), norm), &m[block + BLOCKS / 2]);
        }
        const __m256i all =
            mxa_avx2_fold_fours(mxa_avx2_fold_pairs(m[0], m[1]), mxa_avx2_fold_pairs(m[2], m[3]));
        _mm_storeu_si128((void *)amax,
                         _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
    return amax;
}

MXA_AVX2_INLINE void plain_row(mxa_dtype type, const void *row, int64_t cols, const float *mean, float *out)
{
    for (int64_t d = 0; d < cols; d += MXA_AVX2_LANES) {
        const __m256 wide = widen(type, row, d);
        _mm256_storeu_ps(out + d, mean ? _mm256_sub_ps(wide, _mm256_loadu_ps(mean + d)) : wide);
    }
}

MXA_AVX2_INLINE void prepare_row(mxa_dtype type, const void *row, int64_t cols, const float *mean,
                                 bool rotate, __m256 norm, float *out)
{
    if (!rotate) {
        plain_row(type, row, cols, mean, out);
        return;
    }
    switch (mxa_hadamard_group(cols) / MXA_AVX2_LANES) {
    case 1: rotate_row(type, 1, row, cols, mean, norm, out); break;
    case 2: rotate_row(type, 2, row, cols, mean, norm, out); break;
    case 4: rotate_row(type, 4, row, cols, mean, norm, out); break;
    case CHUNK_VECTORS: rotate_row(type, CHUNK_VECTORS, row, cols, mean, norm, out); break;
    default: rotate_long_row(type, row, cols, mean, norm, out); break;
    }
}

MXA_AVX2_INLINE void prepare_rows(mxa_dtype type, const mxa_source *x, const float *mean, bool rotate,
                                  float *out, uint32_t *amax)
{
    const int64_t group = mxa_hadamard_group(x->cols);
    const __m256 norm = _mm256_set1_ps(mxa_hadamard_norm(group));
    if (rotate && amax && (group == CHUNK || group == 2 * CHUNK)) {
        for (int64_t r = 0; r < x->rows; r++) {
            const void *const row = mxa_source_row(x, r);
            float *const to = out + r * x->cols;
            amax = group == CHUNK ? rotate_64(type, row, x->cols, mean, norm, to, amax)
                                  : rotate_128(type, row, x->cols, mean, norm, to, amax);
        }
        return;
    }
    for (int64_t first = 0; first < x->rows; first += TOGETHER) {
        const int64_t end = first + TOGETHER < x->rows ? first + TOGETHER : x->rows;
        for (int64_t r = first; r < end; r++)
            prepare_row(type, mxa_source_row(x, r), x->cols, mean, rotate, norm, out + r * x->cols);
        if (amax)
            amax = mxa_avx2_rows_maxima(out + first * x->cols, end - first, x->cols, amax);
    }
}

/* Two sums of four, since one is a chain of dependent additions. */
MXA_AVX2_INLINE double dot_row(mxa_dtype type, const void *row, const float *y, int64_t cols)
{
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    for (int64_t d = 0; d < cols; d += MXA_AVX2_LANES) {
        const __m256 a = widen(type, row, d), b = _mm256_loadu_ps(y + d);
        low = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                              _mm256_cvtps_pd(_mm256_castps256_ps128(b)), low);
        high = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)),
                               _mm256_cvtps_pd(_mm256_extractf128_ps(b, 1)), high);
    }
    const __m256d sum = _mm256_add_pd(low, high);
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return _mm_cvtsd_f64(_mm_add_pd(pair, _mm_unpackhi_pd(pair, pair)));
}

void mxa_dot_avx2(const mxa_source *x, const float *y, double *out)
{
    if (x->cols % MXA_AVX2_LANES) {
        mxa_dot_ref(x, y, out);
        return;
    }
    for (int64_t r = 0; r < x->rows; r++) {
        const void *const row = mxa_source_row(x, r);
        out[r] = x->dtype == MXA_DTYPE_F32   ? dot_row(MXA_DTYPE_F32, row, y, x->cols)
                 : x->dtype == MXA_DTYPE_F16 ? dot_row(MXA_DTYPE_F16, row, y, x->cols)
                                             : dot_row(MXA_DTYPE_BF16, row, y, x->cols);
    }
}

void mxa_prepare_avx2(const mxa_source *x, const float *mean, bool rotate, float *out, uint32_t *amax)
{
    if (x->cols % MXA_AVX2_LANES) {
        mxa_prepare_portable(x, mean, rotate, out, amax);
        return;
    }
    switch (x->dtype) {
    case MXA_DTYPE_F32: prepare_rows(MXA_DTYPE_F32, x, mean, rotate, out, amax); break;
    case MXA_DTYPE_F16: prepare_rows(MXA_DTYPE_F16, x, mean, rotate, out, amax); break;
    default: prepare_rows(MXA_DTYPE_BF16, x, mean, rotate, out, amax); break;
    }
}
