/* SPDX-License-Identifier: Apache-2.0 */
/* One block of query rows against one key tile: logits, softmax, P V. */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/avx2/attention_tile_avx2.h"

/* Some rows, and the keys of the tile that they see between them, in whole groups. */
typedef struct block {
    int64_t first; /* row of the item */
    int rows;
    int64_t begin, end;
    mxa_span seen[MXA_AVX2_BLOCK];
    float alpha[MXA_AVX2_BLOCK]; /* what O so far is multiplied with */
} block;

/*
 * x, or NaN where it is Inf: a sum or a product with one factor that overflowed says nothing about the
 * logit, and -Inf would count as masked. The row goes to the reference.
 */
static inline __m256 nan_if_inf(__m256 x)
{
    return _mm256_fmadd_ps(x, _mm256_setzero_ps(), x);
}

/*
 * Dot products of rows [row, row + rows) of the item with MXA_AVX2_COLS keys, whose K and block scales k and
 * k_scale point to; logits are the first row's. Here in fp32.
 */
MXA_AVX2_INLINE void multiply_f32(int rows, const mxa_avx2_copy *c, int64_t row, const float *k,
                                  float *logits)
{
    __m256 sums[MXA_AVX2_ROWS][2];
    mxa_avx2_block_f32(rows, c->dim, (const float *)c->q + row * c->dim, c->dim, k, sums);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(logits + r * MXA_TILE, sums[r][0]);
        _mm256_storeu_ps(logits + r * MXA_TILE + MXA_AVX2_LANES, sums[r][1]);
    }
}

/* INT8 by INT8: the whole sum in integers. */
MXA_AVX2_INLINE void multiply_integers(int rows, const mxa_avx2_copy *c, int64_t row, const int16_t *k,
                                       float *logits)
{
    mxa_avx2_ints sums[MXA_AVX2_ROWS][2];
    mxa_avx2_block_i16(rows, c->dim / 2, (const int16_t *)c->q + row * c->dim, c->dim, k, sums);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(logits + r * MXA_TILE, _mm256_cvtepi32_ps((__m256i)sums[r][0]));
        _mm256_storeu_ps(logits + r * MXA_TILE + MXA_AVX2_LANES, _mm256_cvtepi32_ps((__m256i)sums[r][1]));
    }
}

/* before + sums * the scales of eight keys, and of the row where it has one. */
static inline __m256 add_scaled(__m256 before, mxa_avx2_ints sums, const float *q_scale, const float *k_scale)
{
    __m256 sum = _mm256_cvtepi32_ps((__m256i)sums);
    if (q_scale)
        sum = _mm256_mul_ps(sum, _mm256_broadcast_ss(q_scale));
    return _mm256_fmadd_ps(sum, _mm256_loadu_ps(k_scale), before);
}

/* Integers with a scale per 32: each block's sum is exact. */
MXA_AVX2_INLINE void multiply_blocks(int rows, const mxa_avx2_copy *c, int64_t row, const int16_t *k,
                                     const float *k_scale, float *logits)
{
    const int64_t blocks = c->dim / MXA_MX_BLOCK;
    for (int64_t n = 0; n < blocks; n++) {
        mxa_avx2_ints sums[MXA_AVX2_ROWS][2];
        mxa_avx2_block_i16(rows, MXA_MX_BLOCK / 2, (const int16_t *)c->q + row * c->dim + n * MXA_MX_BLOCK,
                           c->dim, k + n * MXA_MX_BLOCK * MXA_AVX2_COLS, sums);
        const float *const scale = k_scale + n * MXA_TILE;
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float *const to = logits + r * MXA_TILE;
            const float *const q_scale = c->q_scale ? c->q_scale + (row + r) * blocks + n : NULL;
            const __m256 zero = _mm256_setzero_ps();
            const __m256 low = add_scaled(n ? _mm256_loadu_ps(to) : zero, sums[r][0], q_scale, scale);
            const __m256 high = add_scaled(n ? _mm256_loadu_ps(to + MXA_AVX2_LANES) : zero, sums[r][1],
                                           q_scale, scale + MXA_AVX2_LANES);
            _mm256_storeu_ps(to, low);
            _mm256_storeu_ps(to + MXA_AVX2_LANES, high);
        }
    }
}

MXA_AVX2_INLINE void multiply_qk(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, int64_t row,
                                 int64_t j, float *logits)
{
    if (!c->integers)
        multiply_f32(rows, c, row, (const float *)w->k + j * c->dim, logits);
    else if (c->block != MXA_MX_BLOCK)
        multiply_integers(rows, c, row, (const int16_t *)w->k + j * c->dim, logits);
    else
        multiply_blocks(rows, c, row, (const int16_t *)w->k + j * c->dim, w->k_scale + j, logits);
}

/* O = O alpha + P V for 16 channels; p and alpha of the first row. */
MXA_AVX2_INLINE void multiply_pv(int rows, int64_t n, const float *p, const float *v, const float *alpha,
                                 float *o, int64_t channels)
{
    __m256 sums[MXA_AVX2_ROWS][2];
    mxa_avx2_block_f32(rows, n, p, MXA_TILE, v, sums);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *const low = o + r * channels, *const high = low + MXA_AVX2_LANES;
        const __m256 shrink = _mm256_broadcast_ss(alpha + r);
        _mm256_storeu_ps(low, _mm256_fmadd_ps(_mm256_loadu_ps(low), shrink, sums[r][0]));
        _mm256_storeu_ps(high, _mm256_fmadd_ps(_mm256_loadu_ps(high), shrink, sums[r][1]));
    }
}

/* A compiler keeps the sums in registers only if it knows the number of rows. */
static void multiply_qk_rows(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, int64_t row, int64_t j,
                             float *logits)
{
    switch (rows) {
    case 1: multiply_qk(1, w, c, row, j, logits); break;
    case 2: multiply_qk(2, w, c, row, j, logits); break;
    case 3: multiply_qk(3, w, c, row, j, logits); break;
    case 4: multiply_qk(4, w, c, row, j, logits); break;
    case 5: multiply_qk(5, w, c, row, j, logits); break;
    default: multiply_qk(MXA_AVX2_ROWS, w, c, row, j, logits); break;
    }
}

static void multiply_pv_rows(int rows, int64_t n, const float *p, const float *v, const float *alpha,
                             float *o, int64_t channels)
{
    switch (rows) {
    case 1: multiply_pv(1, n, p, v, alpha, o, channels); break;
    case 2: multiply_pv(2, n, p, v, alpha, o, channels); break;
    case 3: multiply_pv(3, n, p, v, alpha, o, channels); break;
    case 4: multiply_pv(4, n, p, v, alpha, o, channels); break;
    case 5: multiply_pv(5, n, p, v, alpha, o, channels); break;
    default: multiply_pv(MXA_AVX2_ROWS, n, p, v, alpha, o, channels); break;
    }
}

/* Dot products to logits in base 2. Returns the largest, or what max was. */
static float finish_logits(const mxa_avx2_work *w, const mxa_avx2_copy *c, const block *b, int r, float max)
{
    float *const s = w->logits + r * MXA_TILE;
    const __m256 factor = _mm256_broadcast_ss(c->factor + b->first + r);
    const __m256 bias = _mm256_broadcast_ss(c->bias + b->first + r);
    __m256 largest[2] = { _mm256_set1_ps(max), _mm256_set1_ps(max) };
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS)
        for (int half = 0; half < 2; half++) {
            const int64_t at = j + half * MXA_AVX2_LANES;
            const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(s + at), _mm256_loadu_ps(w->g_k + at));
            const __m256 logit = nan_if_inf(_mm256_fmadd_ps(scaled, factor, bias));
            largest[half] = _mm256_max_ps(logit, largest[half]);
            _mm256_storeu_ps(s + at, logit);
        }
    return mxa_avx2_largest(_mm256_max_ps(largest[0], largest[1]));
}

/* The largest of the logits and max. */
static float largest_logit(const float *s, const block *b, float max)
{
    __m256 largest = _mm256_set1_ps(max);
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_LANES)
        largest = _mm256_max_ps(_mm256_loadu_ps(s + j), largest);
    return mxa_avx2_largest(largest);
}

/* A cap near the largest number is infinite in base 2. */
static void cap_logits(float *s, const block *b, float softcap)
{
    const __m256 cap = _mm256_set1_ps(softcap), cap2 = _mm256_set1_ps((float)((double)softcap * MXA_LOG2_E));
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_LANES) {
        const __m256 ratio = mxa_avx2_tanh(_mm256_div_ps(_mm256_loadu_ps(s + j), cap));
        _mm256_storeu_ps(s + j, nan_if_inf(_mm256_mul_ps(cap2, ratio)));
    }
}

/* -Inf for keys of the block that the row does not see. */
static void mask_logits(float *s, const block *b, mxa_span seen)
{
    for (int64_t j = b->begin; j < mxa_min(seen.first, b->end); j++)
        s[j] = -INFINITY;
    for (int64_t j = mxa_max(seen.end, b->begin); j < b->end; j++)
        s[j] = -INFINITY;
}

/* The row's largest logit so far. NaN wins where all others are -Inf; elsewhere it reaches the sum. */
static float new_max(const mxa_avx2_work *w, const mxa_key_tile *t, const block *b, int r)
{
    float *const s = w->logits + r * MXA_TILE;
    const float old = w->item.max[b->first + r], softcap = w->item.job->plan->problem.softcap;
    const mxa_span seen = b->seen[r];
    const bool edge = seen.first > b->begin || seen.end < b->end;
    float max = finish_logits(w, &w->copy[t->copy], b, r, old);
    if (softcap > 0)
        cap_logits(s, b, softcap);
    if (edge)
        mask_logits(s, b, seen);
    if (softcap > 0 || edge)
        max = largest_logit(s, b, old);
    for (int64_t j = b->begin; j < b->end && max == -INFINITY; j++)
        if (isnan(s[j]))
            return NAN;
    return max;
}

/* p = 2^(s - max), in the logits' place; its sum before it is rounded. */
static float weigh(float *s, const block *b, float max, bool f16)
{
    const __m256 m = _mm256_set1_ps(max);
    __m256 sum[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS)
        for (int half = 0; half < 2; half++) {
            float *const at = s + j + half * MXA_AVX2_LANES;
            const __m256 p = mxa_avx2_exp2(_mm256_sub_ps(_mm256_loadu_ps(at), m));
            sum[half] = _mm256_add_ps(sum[half], p);
            _mm256_storeu_ps(at, f16 ? mxa_avx2_round_p_f16(p) : mxa_avx2_round_p_bf16(p));
        }
    return mxa_avx2_sum(_mm256_add_ps(sum[0], sum[1]));
}

/* One step of the online softmax for a row: what it had so far shrinks by alpha = 2^(old max - new max). */
static void softmax_row(mxa_avx2_work *w, const mxa_key_tile *t, block *b, int r)
{
    const int64_t row = b->first + r;
    float *const s = w->logits + r * MXA_TILE;
    const float old = w->item.max[row], max = new_max(w, t, b, r);
    if (w->item.careful)
        mxa_item_collect(&w->item, t, row, s);
    b->alpha[r] = 1.0f;
    if (max == -INFINITY) {
        memset(s + b->begin, 0, (size_t)(b->end - b->begin) * sizeof *s);
        return;
    }
    /* Its error adds up over tiles. */
    b->alpha[r] = old == -INFINITY ? 0.0f : _mm256_cvtss_f32(mxa_avx2_exp2_fine(_mm256_set1_ps(old - max)));
    const bool f16 = w->item.job->plan->pv == MXA_PV_F16;
    const float sum = f16 ? weigh(s, b, max, true) : weigh(s, b, max, false);
    w->item.sum[row] = w->item.sum[row] * b->alpha[r] + sum;
    w->item.max[row] = max;
}

/* A group of keys, or of channels, stays in the L1 cache for all rows of the block. */
static void multiply_block(mxa_avx2_work *w, const mxa_key_tile *t, block *b)
{
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS)
        for (int r = 0; r < b->rows; r += MXA_AVX2_ROWS)
            multiply_qk_rows(b->rows - r, w, &w->copy[t->copy], b->first + r, j,
                             w->logits + r * MXA_TILE + j);
    for (int r = 0; r < b->rows; r++)
        softmax_row(w, t, b, r);
    const int64_t channels = w->item.channels, n = b->end - b->begin;
    for (int64_t c = 0; c < channels; c += MXA_AVX2_COLS)
        for (int r = 0; r < b->rows; r += MXA_AVX2_ROWS)
            multiply_pv_rows(b->rows - r, n, w->logits + r * MXA_TILE + b->begin,
                             w->v + c * MXA_TILE + b->begin * MXA_AVX2_COLS, b->alpha + r,
                             w->item.o + (b->first + r) * channels + c, channels);
}

void mxa_avx2_add_block(mxa_avx2_work *w, const mxa_key_tile *t, int64_t first)
{
    block b = { .first = first, .rows = (int)mxa_min(w->item.n - first, MXA_AVX2_BLOCK), .begin = MXA_TILE };
    for (int r = 0; r < b.rows; r++) {
        b.seen[r] = mxa_item_seen(&w->item, t, first + r);
        if (b.seen[r].first < b.seen[r].end) {
            b.begin = mxa_min(b.begin, b.seen[r].first / MXA_AVX2_COLS * MXA_AVX2_COLS);
            b.end = mxa_max(b.end, mxa_avx2_groups(b.seen[r].end));
        }
    }
    if (b.begin < b.end)
        multiply_block(w, t, &b);
}
