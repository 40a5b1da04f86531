/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention with AVX2, FMA and F16C. For each key tile, K is decoded and laid out and V widened once
 * for the whole item; then blocks of query rows go through logits, softmax and P V while their data is in the
 * L1 cache (docs/kernels_cpu.md).
 */
#include "cpu/avx2/attention_avx2.h"

#include "cpu/avx2/attention_tile_avx2.h"
#include "cpu/ref/attention_ref.h"

enum { ALIGNMENT = 64 };

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

static bool divide_row(const mxa_item_rows *w, int64_t row)
{
    const float *const o = w->o + row * w->channels;
    const __m256 factor = _mm256_set1_ps(w->sum[row] == 0 ? 1.0f : 1.0f / w->sum[row]);
    __m256 zero = _mm256_setzero_ps(); /* or NaN, once there is NaN or Inf */
    for (int64_t d = 0; d < w->channels; d += MXA_AVX2_LANES) {
        const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(o + d), factor);
        zero = _mm256_fmadd_ps(x, _mm256_setzero_ps(), zero);
        _mm256_storeu_ps(w->row + d, x);
    }
    return _mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q)) == 0;
}

/* Lay out the parts; returns their size. */
static int64_t place(mxa_avx2_work *w, const mxa_plan *plan, char *base)
{
    const int64_t f32 = sizeof(float), rows = plan->item_rows;
    int64_t used = 0, dim = 0;
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!plan->q[i].info)
            continue;
        bool q_scaled;
        w->copy[i] = mxa_avx2_copy_of(plan, i, &q_scaled);
        mxa_avx2_copy *const c = &w->copy[i];
        c->q = carve(base, &used, rows * c->dim * (c->integers ? (int64_t)sizeof(int16_t) : f32));
        c->q_scale = q_scaled ? carve(base, &used, rows * (c->dim / c->block) * f32) : NULL;
        c->factor = carve(base, &used, rows * f32);
        c->bias = carve(base, &used, rows * f32);
        dim = mxa_max(dim, c->dim);
    }
    w->item.channels = mxa_avx2_groups(plan->problem.head_dim_v);
    w->raw = carve(base, &used, MXA_TILE * dim * f32);
    w->k = carve(base, &used, MXA_TILE * dim * f32);
    w->k_scale = carve(base, &used, MXA_TILE * (dim / MXA_MX_BLOCK) * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->v = carve(base, &used, MXA_TILE * w->item.channels * f32);
    w->logits = carve(base, &used, MXA_AVX2_BLOCK * MXA_TILE * f32);
    w->item.o = carve(base, &used, rows * w->item.channels * f32);
    w->item.nonfinite = carve(base, &used, rows * w->item.channels * f32);
    w->item.max = carve(base, &used, rows * f32);
    w->item.sum = carve(base, &used, rows * f32);
    w->item.row = carve(base, &used, w->item.channels * f32);
    w->item.divide = divide_row;
    w->item.v_nonfinite = carve(base, &used, MXA_TILE);
    return used;
}

int64_t mxa_attention_avx2_scratch(const mxa_plan *plan)
{
    mxa_avx2_work w;
    return mxa_max(place(&w, plan, NULL), mxa_attention_ref_scratch(plan));
}

const char *mxa_attention_avx2_refuses(const mxa_plan *plan)
{
    return plan->recipe.exact ? "computes in fp32, recipe exact wants float64" : NULL;
}

static void add_tiles(mxa_avx2_work *w)
{
    const mxa_span keys = mxa_item_keys(&w->item);
    if (keys.first >= keys.end)
        return;
    for (int64_t k_tile = keys.first / MXA_TILE; k_tile * MXA_TILE < keys.end; k_tile++) {
        const mxa_key_tile t = mxa_item_key_tile(&w->item, keys, k_tile);
        if (!w->copy[t.copy].loaded)
            mxa_avx2_load_q(w, t.copy);
        mxa_avx2_load_k(w, &t);
        mxa_avx2_load_v(w, &t);
        for (int64_t first = 0; first < w->item.n; first += MXA_AVX2_BLOCK)
            mxa_avx2_add_block(w, &t, first);
    }
}

void mxa_attention_avx2(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    mxa_avx2_work w = { .item = mxa_item_rows_of(job, item) };
    place(&w, job->plan, scratch);
    bool stored[MXA_ITEM_ROWS];
    mxa_item_begin(&w.item);
    add_tiles(&w);
    if (!mxa_item_end(&w.item, stored)) {
        w.item.careful = true;
        mxa_item_begin(&w.item);
        add_tiles(&w);
        mxa_item_end(&w.item, stored);
    }
    mxa_item_leave_to_reference(&w.item, stored, scratch);
}
