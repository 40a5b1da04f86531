/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment of a KV cache with AVX2, FMA and F16C: tile by tile, the dot products of all rows of the unit,
 * their softmax, and P V, each from packed bytes that are read once (docs/kernels_cpu.md).
 */
#include "cpu/avx2/kv_attend_avx2.h"

#include <math.h>

#include "attn/softmax.h"
#include "cpu/avx2/kv_tile_avx2.h"
#include "format/mx.h"

enum { ALIGNMENT = 64 };

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

static int64_t padded_dim(mxa_kv_product product, int64_t dim)
{
    const int64_t blocks = (dim + MXA_MX_BLOCK - 1) / MXA_MX_BLOCK;
    return product == MXA_KV_E2M1   ? blocks * MXA_MX_BLOCK
           : product == MXA_KV_INT8 ? mxa_kv_whole_groups(dim)
                                    : dim;
}

/* Lay out the parts for the largest unit; returns their size. */
static int64_t place(mxa_kv_work_avx2 *w, const mxa_kv_job *job, const mxa_kv_product *products, char *base)
{
    const int64_t f32 = sizeof(float), rows = MXA_KV_ROWS, dim = MXA_DIM_MAX;
    int64_t used = 0;
    for (int i = 0; i < MXA_COPIES; i++) {
        const mxa_kv_part *const k = &job->view->layout->part[i][MXA_KV_K];
        if (!k->copy.info)
            continue;
        mxa_kv_queries_avx2 *const q = &w->q[i];
        q->product = products[i];
        q->dim = padded_dim(products[i], k->dim);
        q->q = carve(base, &used, rows * dim * f32);
        q->starts = carve(base, &used, rows * (dim / MXA_MX_BLOCK) * f32);
        q->factor = carve(base, &used, rows * f32);
        q->bias = carve(base, &used, rows * f32);
    }
    w->logits = carve(base, &used, rows * MXA_TILE * f32);
    w->scaled = carve(base, &used, rows * MXA_TILE * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->g_v = carve(base, &used, dim / MXA_MX_BLOCK * MXA_TILE * f32);
    w->alpha = carve(base, &used, rows * f32);
    w->channel = carve(base, &used, MXA_COPIES * dim * f32);
    w->raw = carve(base, &used, MXA_TILE * dim * f32);
    w->k = carve(base, &used, MXA_AVX2_COLS * dim * f32);
    w->k_scale = carve(base, &used, dim / MXA_MX_BLOCK * MXA_AVX2_COLS * f32);
    return used;
}

int64_t mxa_kv_scratch_avx2(const mxa_kv_job *job)
{
    static const mxa_kv_product any[MXA_COPIES] = { MXA_KV_F32, MXA_KV_F32 };
    mxa_kv_work_avx2 w = { 0 };
    return place(&w, job, any, NULL);
}

/* x, or NaN where it is Inf: a sum or factor that overflowed says nothing about the logit. */
static inline __m256 nan_if_inf(__m256 x)
{
    return _mm256_fmadd_ps(x, _mm256_setzero_ps(), x);
}

/* Dot products to logits in base 2. */
static void finish_logits(const mxa_kv_work_avx2 *w, float *s, int64_t r, mxa_span groups)
{
    const mxa_kv_queries_avx2 *const q = &w->q[w->copy];
    const __m256 factor = _mm256_broadcast_ss(q->factor + r), bias = _mm256_broadcast_ss(q->bias + r);
    const float softcap = w->job->softcap;
    const __m256 cap = _mm256_set1_ps(softcap), cap2 = _mm256_set1_ps((float)((double)softcap * MXA_LOG2_E));
    for (int64_t j = groups.first; j < groups.end; j += MXA_AVX2_LANES) {
        const __m256 scaled = _mm256_mul_ps(_mm256_load_ps(s + j), _mm256_load_ps(w->g_k + j));
        __m256 t = nan_if_inf(_mm256_fmadd_ps(scaled, factor, bias));
        if (softcap > 0)
            t = nan_if_inf(_mm256_mul_ps(cap2, mxa_avx2_tanh(_mm256_div_ps(t, cap))));
        _mm256_store_ps(s + j, t);
    }
}

/* -Inf for keys that the row does not see. */
static void mask_logits(float *s, mxa_span groups, mxa_span seen)
{
    for (int64_t j = groups.first; j < mxa_min(seen.first, groups.end); j++)
        s[j] = -INFINITY;
    for (int64_t j = mxa_max(seen.end, groups.first); j < groups.end; j++)
        s[j] = -INFINITY;
}

/*
 * The largest logit and old; NaN where it is among logits that else are -Inf, elsewhere it reaches the sum.
 */
static float new_max(const float *s, mxa_span groups, float old)
{
    __m256 largest = _mm256_set1_ps(old);
    for (int64_t j = groups.first; j < groups.end; j += MXA_AVX2_LANES)
        largest = _mm256_max_ps(_mm256_load_ps(s + j), largest);
    const float max = mxa_avx2_largest(largest);
    for (int64_t j = groups.first; j < groups.end && max == -INFINITY; j++)
        if (isnan(s[j]))
            return NAN;
    return max;
}

/* P = 2^(s - max) in the logits' place; its sum. */
static float weigh(float *s, mxa_span groups, float max)
{
    const __m256 m = _mm256_set1_ps(max);
    __m256 sum[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (int64_t j = groups.first; j < groups.end; j += MXA_AVX2_COLS)
        for (int half = 0; half < 2; half++) {
            float *const at = s + j + half * MXA_AVX2_LANES;
            const __m256 p = mxa_avx2_exp2_fine(_mm256_sub_ps(_mm256_load_ps(at), m));
            sum[half] = _mm256_add_ps(sum[half], p);
            _mm256_store_ps(at, p);
        }
    return mxa_avx2_sum(_mm256_add_ps(sum[0], sum[1]));
}

/* One step of the online softmax for row r: what it had so far shrinks by alpha = 2^(old max - new max). */
static void softmax_row(const mxa_kv_work_avx2 *w, int64_t r, mxa_span groups, const mxa_kv_sums *sums)
{
    float *const s = w->logits + r * MXA_TILE;
    const mxa_span keys = mxa_kv_tile_keys(w->unit, w->first / MXA_TILE, r % w->unit->n_queries, 1);
    const mxa_span seen = { keys.first - w->first, mxa_max(keys.end - w->first, 0) };
    finish_logits(w, s, r, groups);
    mask_logits(s, groups, seen);
    const float old = sums->max[r], max = new_max(s, groups, old);
    w->alpha[r] = 1.0f;
    if (max == -INFINITY) {
        memset(s + groups.first, 0, (size_t)(groups.end - groups.first) * sizeof *s);
        return;
    }
    w->alpha[r] = old == -INFINITY ? 0.0f : _mm256_cvtss_f32(mxa_avx2_exp2_fine(_mm256_set1_ps(old - max)));
    sums->sum[r] = sums->sum[r] * w->alpha[r] + weigh(s, groups, max);
    sums->max[r] = max;
}

static void load_channels(const mxa_kv_work_avx2 *w)
{
    const int64_t channels = w->job->channels;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        const float *const g = mxa_kv_channels_g(w->job->view, copy, w->unit->h_kv);
        for (int64_t d = 0; d < channels; d++)
            w->channel[copy * channels + d] = g && d < w->job->out->shape[3] ? g[d] : 1.0f;
    }
}

static void add_tile(mxa_kv_work_avx2 *w, int64_t k_tile, const mxa_kv_sums *sums,
                     const mxa_kv_phases *phases)
{
    const mxa_kv_unit *const u = w->unit;
    const mxa_span keys = mxa_kv_tile_keys(u, k_tile, 0, u->n_queries);
    w->first = k_tile * MXA_TILE;
    w->begin = keys.first - w->first;
    w->end = keys.end - w->first;
    w->copy = mxa_tile_is_high(&u->map, u->tile, k_tile) ? MXA_HIGH : MXA_LOW;
    w->v_copy = mxa_kv_v_copy(w->job->view->layout, w->copy);
    phases->dots(w);
    const mxa_span groups = { w->begin & -(int64_t)MXA_AVX2_COLS, mxa_kv_whole_groups(w->end) };
    for (int64_t r = 0; r < w->rows; r++)
        softmax_row(w, r, groups, sums);
    mxa_kv_add_values_avx2(w, phases->multiply, sums->o);
}

void mxa_kv_segment_phases_avx2(const mxa_kv_job *job, const mxa_kv_unit *u, mxa_span tiles, void *scratch,
                                const mxa_kv_sums *sums, const mxa_kv_phases *phases)
{
    mxa_kv_work_avx2 w = { .job = job, .unit = u, .rows = u->n_heads * u->n_queries };
    mxa_kv_product products[MXA_COPIES] = { MXA_KV_F32, MXA_KV_F32 };
    for (int copy = 0; copy < MXA_COPIES; copy++)
        if (job->q[copy].copy->info)
            products[copy] = mxa_kv_product_avx2(job, copy);
    place(&w, job, products, scratch);
    for (int copy = 0; copy < MXA_COPIES; copy++)
        if (job->q[copy].copy->info)
            mxa_kv_load_q_avx2(&w, copy);
    load_channels(&w);
    memset(sums->o, 0, (size_t)(w.rows * job->channels) * sizeof *sums->o);
    for (int64_t r = 0; r < w.rows; r++) {
        sums->max[r] = -INFINITY;
        sums->sum[r] = 0;
    }
    for (int64_t k_tile = tiles.first; k_tile < tiles.end; k_tile++)
        add_tile(&w, k_tile, sums, phases);
}

void mxa_kv_segment_avx2(const mxa_kv_job *job, const mxa_kv_unit *u, mxa_span tiles, void *scratch,
                         const mxa_kv_sums *sums)
{
    static const mxa_kv_phases phases = { mxa_kv_dots_avx2, mxa_kv_multiply_avx2 };
    mxa_kv_segment_phases_avx2(job, u, tiles, scratch, sums, &phases);
}
