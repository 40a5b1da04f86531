/* SPDX-License-Identifier: Apache-2.0 */
/* One block of query rows against one key tile: logits, softmax, P V. */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/avx2/attention_tile_avx2.h"

/* Up to MXA_AVX2_ROWS rows, and the keys of the tile that they see between them, in whole groups. */
typedef struct block {
    int64_t first; /* row of the item */
    int rows;
    int64_t begin, end;
    mxa_span seen[MXA_AVX2_ROWS];
    float alpha[MXA_AVX2_ROWS]; /* what O so far is multiplied with */
} block;

/*
 * x, or NaN where it is Inf: a partial sum that overflowed says nothing about the sum's sign, and a logit of
 * -Inf would count as masked. The row goes to the reference.
 */
static inline __m256 nan_if_inf(__m256 x)
{
    return _mm256_fmadd_ps(x, _mm256_setzero_ps(), x);
}

/* Dot products in fp32. */
MXA_AVX2_INLINE void multiply_f32(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, const block *b)
{
    const float *const q = (const float *)c->q + b->first * c->dim;
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS) {
        __m256 sums[MXA_AVX2_ROWS][2];
        mxa_avx2_block_f32(rows, c->dim, q, c->dim, (const float *)w->k + j * c->dim, sums);
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                _mm256_storeu_ps(w->logits + r * MXA_TILE + j + half * MXA_AVX2_LANES,
                                 nan_if_inf(sums[r][half]));
    }
}

/* INT8 by INT8: the whole sum in integers. */
MXA_AVX2_INLINE void multiply_integers(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c,
                                       const block *b)
{
    const int16_t *const q = (const int16_t *)c->q + b->first * c->dim;
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS) {
        __m256i sums[MXA_AVX2_ROWS][2];
        mxa_avx2_block_i16(rows, c->dim / 2, q, c->dim, (const int16_t *)w->k + j * c->dim, sums);
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                _mm256_storeu_ps(w->logits + r * MXA_TILE + j + half * MXA_AVX2_LANES,
                                 _mm256_cvtepi32_ps(sums[r][half]));
    }
}

/* Add integer sums of block number n of head_dim, times the block's scales, to the logits. */
MXA_AVX2_INLINE void add_scaled(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, const block *b,
                                int64_t n, int64_t j, __m256i (*sums)[2])
{
    for (int half = 0; half < 2; half++) {
        const int64_t at = j + half * MXA_AVX2_LANES, blocks = c->dim / c->block;
        const __m256 k_scale = _mm256_loadu_ps(w->k_scale + n * MXA_TILE + at);
        for (int r = 0; r < rows; r++) {
            float *const to = w->logits + r * MXA_TILE + at;
            const __m256 before = n ? _mm256_loadu_ps(to) : _mm256_setzero_ps();
            __m256 sum = _mm256_cvtepi32_ps(sums[r][half]);
            if (c->q_scale)
                sum = _mm256_mul_ps(sum, _mm256_broadcast_ss(c->q_scale + (b->first + r) * blocks + n));
            const __m256 after = _mm256_fmadd_ps(sum, k_scale, before);
            _mm256_storeu_ps(to, n + 1 < blocks ? after : nan_if_inf(after));
        }
    }
}

/* Integers with a scale per 32: each block's sum is exact. */
MXA_AVX2_INLINE void multiply_blocks(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, const block *b)
{
    const int16_t *const q = (const int16_t *)c->q + b->first * c->dim;
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_COLS)
        for (int64_t n = 0; n < c->dim / MXA_MX_BLOCK; n++) {
            __m256i sums[MXA_AVX2_ROWS][2];
            mxa_avx2_block_i16(rows, MXA_MX_BLOCK / 2, q + n * MXA_MX_BLOCK, c->dim,
                               (const int16_t *)w->k + j * c->dim + n * MXA_MX_BLOCK * MXA_AVX2_COLS, sums);
            add_scaled(rows, w, c, b, n, j, sums);
        }
}

MXA_AVX2_INLINE void multiply_qk(int rows, const mxa_avx2_work *w, const mxa_avx2_copy *c, const block *b)
{
    if (!c->integers)
        multiply_f32(rows, w, c, b);
    else if (c->block != MXA_MX_BLOCK)
        multiply_integers(rows, w, c, b);
    else
        multiply_blocks(rows, w, c, b);
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
            const __m256 logit = _mm256_fmadd_ps(scaled, factor, bias);
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

static void cap_logits(float *s, const block *b, float softcap)
{
    const __m256 cap = _mm256_set1_ps(softcap), cap2 = _mm256_set1_ps((float)((double)softcap * MXA_LOG2_E));
    for (int64_t j = b->begin; j < b->end; j += MXA_AVX2_LANES)
        _mm256_storeu_ps(s + j,
                         _mm256_mul_ps(cap2, mxa_avx2_tanh(_mm256_div_ps(_mm256_loadu_ps(s + j), cap))));
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
    b->alpha[r] = old == -INFINITY ? 0.0f : _mm256_cvtss_f32(mxa_avx2_exp2(_mm256_set1_ps(old - max)));
    const bool f16 = w->item.job->plan->pv == MXA_PV_F16;
    const float sum = f16 ? weigh(s, b, max, true) : weigh(s, b, max, false);
    w->item.sum[row] = w->item.sum[row] * b->alpha[r] + sum;
    w->item.max[row] = max;
}

/* O = O alpha + P V. */
MXA_AVX2_INLINE void multiply_pv(int rows, mxa_avx2_work *w, const block *b)
{
    for (int64_t c = 0; c < w->item.channels; c += MXA_AVX2_COLS) {
        __m256 sums[MXA_AVX2_ROWS][2];
        mxa_avx2_block_f32(rows, b->end - b->begin, w->logits + b->begin, MXA_TILE,
                           w->v + c * MXA_TILE + b->begin * MXA_AVX2_COLS, sums);
        for (int r = 0; r < rows; r++) {
            float *const o = w->item.o + (b->first + r) * w->item.channels + c;
            const __m256 alpha = _mm256_broadcast_ss(&b->alpha[r]);
            for (int half = 0; half < 2; half++) {
                float *const at = o + half * MXA_AVX2_LANES;
                _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_loadu_ps(at), alpha, sums[r][half]));
            }
        }
    }
}

/* A compiler keeps the sums in registers only if it knows the number of rows. */
MXA_AVX2_INLINE void add_rows(int rows, mxa_avx2_work *w, const mxa_key_tile *t, block *b)
{
    multiply_qk(rows, w, &w->copy[t->copy], b);
    for (int r = 0; r < rows; r++)
        softmax_row(w, t, b, r);
    multiply_pv(rows, w, b);
}

void mxa_avx2_add_block(mxa_avx2_work *w, const mxa_key_tile *t, int64_t first)
{
    block b = { first, (int)mxa_min(w->item.n - first, MXA_AVX2_ROWS), MXA_TILE, 0, { { 0, 0 } }, { 0 } };
    for (int r = 0; r < b.rows; r++) {
        b.seen[r] = mxa_item_seen(&w->item, t, first + r);
        if (b.seen[r].first < b.seen[r].end) {
            b.begin = mxa_min(b.begin, b.seen[r].first / MXA_AVX2_COLS * MXA_AVX2_COLS);
            b.end = mxa_max(b.end, mxa_avx2_groups(b.seen[r].end));
        }
    }
    if (b.begin >= b.end)
        return;
    switch (b.rows) {
    case 1: add_rows(1, w, t, &b); break;
    case 2: add_rows(2, w, t, &b); break;
    case 3: add_rows(3, w, t, &b); break;
    case 4: add_rows(4, w, t, &b); break;
    case 5: add_rows(5, w, t, &b); break;
    default: add_rows(MXA_AVX2_ROWS, w, t, &b); break;
    }
}
