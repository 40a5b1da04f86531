/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention with AVX-512, VNNI and, where it is fast, BF16. For each key tile, K and V are decoded and
 * laid out once for the whole item; then blocks of query rows go through logits, softmax and P V while their
 * data is in the L1 cache (docs/kernels_cpu.md).
 */
#include "cpu/avx512/attention_avx512.h"

#include "cpu/avx512/attention_tile_avx512.h"
#include "cpu/ref/attention_ref.h"

enum { ALIGNMENT = 64 };

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

static void place_copy(mxa_avx512_copy *c, int64_t rows, bool q_scaled, char *base, int64_t *used)
{
    const int64_t word = sizeof(float), blocks = rows * (c->dim / c->block);
    c->q = carve(base, used, rows * MXA_AVX512_STRIDE * c->element);
    c->q_start = c->element == sizeof(int8_t) ? carve(base, used, blocks * word) : NULL;
    c->q_scale = q_scaled ? carve(base, used, blocks * word) : NULL;
    c->factor = carve(base, used, rows * word);
    c->bias = carve(base, used, rows * word);
}

static bool divide_row(const mxa_item_rows *w, int64_t row)
{
    const float *const o = w->o + row * w->channels;
    const __m512 factor = _mm512_set1_ps(w->sum[row] == 0 ? 1.0f : 1.0f / w->sum[row]);
    __m512 zero = _mm512_setzero_ps(); /* or NaN, once there is NaN or Inf */
    for (int64_t d = 0; d < w->channels; d += MXA_AVX512_LANES) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(o + d), factor);
        zero = _mm512_fmadd_ps(x, _mm512_setzero_ps(), zero);
        _mm512_storeu_ps(w->row + d, x);
    }
    return _mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q) == 0;
}

/* Lay out the parts; returns their size. */
static int64_t place(mxa_avx512_work *w, const mxa_plan *plan, bool bf16, char *base)
{
    const int64_t f32 = sizeof(float), half = sizeof(uint16_t), rows = plan->item_rows;
    int64_t used = 0, dim = 0;
    for (int i = 0; i < MXA_COPIES; i++) {
        if (!plan->q[i].info)
            continue;
        bool q_scaled;
        w->copy[i] = mxa_avx512_copy_of(plan, i, bf16, &q_scaled);
        place_copy(&w->copy[i], rows, q_scaled, base, &used);
        dim = mxa_max(dim, w->copy[i].dim);
    }
    w->bf16 = bf16 && plan->pv == MXA_PV_BF16;
    w->item.channels = mxa_avx512_groups(plan->problem.head_dim_v);
    w->raw = carve(base, &used, MXA_TILE * MXA_AVX512_STRIDE * f32);
    w->k = carve(base, &used, MXA_TILE * dim * f32);
    w->k_scale = carve(base, &used, MXA_TILE * (dim / MXA_MX_BLOCK) * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->v = carve(base, &used, MXA_TILE * w->item.channels * (w->bf16 ? half : f32));
    w->logits = carve(base, &used, MXA_AVX512_BLOCK * MXA_TILE * f32);
    w->p = carve(base, &used, MXA_AVX512_BLOCK * MXA_TILE * half);
    w->sums = carve(base, &used, rows * MXA_AVX512_LANES * f32);
    w->item.o = carve(base, &used, rows * w->item.channels * f32);
    w->item.nonfinite = carve(base, &used, rows * w->item.channels * f32);
    w->item.max = carve(base, &used, rows * f32);
    w->item.sum = carve(base, &used, rows * f32);
    w->item.row = carve(base, &used, w->item.channels * f32);
    w->item.divide = divide_row;
    w->item.v_nonfinite = carve(base, &used, MXA_TILE);
    return used;
}

const char *mxa_attention_avx512_refuses(const mxa_plan *plan)
{
    return plan->recipe.exact ? "computes in fp32, recipe exact wants float64" : NULL;
}

/* Rows from first on, whose keys in whole groups are what they see between them. */
static void add_block(mxa_avx512_work *w, const mxa_key_tile *t, bool all_seen, int64_t first)
{
    mxa_avx512_block b;
    b.first = first;
    b.rows = (int)mxa_min(w->item.n - first, MXA_AVX512_BLOCK);
    b.begin = MXA_TILE;
    b.end = 0;
    for (int r = 0; r < b.rows; r++) {
        b.seen[r] = all_seen ? (mxa_span){ t->begin, t->end } : mxa_item_seen(&w->item, t, first + r);
        if (b.seen[r].first < b.seen[r].end) {
            b.begin = mxa_min(b.begin, b.seen[r].first / MXA_AVX512_COLS * MXA_AVX512_COLS);
            b.end = mxa_max(b.end, mxa_avx512_groups(b.seen[r].end));
        }
    }
    if (b.begin >= b.end)
        return;
    mxa_avx512_multiply_qk(w, &w->copy[t->copy], &b);
    mxa_avx512_softmax(w, t, &b);
    mxa_avx512_multiply_pv(w, &b);
}

/* Windows move with the row: what the first and the last row see, all do. */
static bool all_rows_see(const mxa_item_rows *item, const mxa_key_tile *t)
{
    const mxa_span first = mxa_item_seen(item, t, 0), last = mxa_item_seen(item, t, item->head_rows - 1);
    return mxa_max(first.first, last.first) == t->begin && mxa_min(first.end, last.end) == t->end;
}

static void add_tiles(mxa_avx512_work *w)
{
    const mxa_span keys = mxa_item_keys(&w->item);
    if (keys.first >= keys.end)
        return;
    for (int64_t k_tile = keys.first / MXA_TILE; k_tile * MXA_TILE < keys.end; k_tile++) {
        const mxa_key_tile t = mxa_item_key_tile(&w->item, keys, k_tile);
        if (!w->copy[t.copy].loaded)
            mxa_avx512_load_q(w, t.copy);
        mxa_avx512_load_k(w, &t);
        mxa_avx512_load_v(w, &t);
        const bool all_seen = all_rows_see(&w->item, &t);
        for (int64_t first = 0; first < w->item.n; first += MXA_AVX512_BLOCK)
            add_block(w, &t, all_seen, first);
    }
}

static bool run(mxa_avx512_work *w, bool *stored)
{
    mxa_item_begin(&w->item);
    memset(w->sums, 0, (size_t)(w->item.n * MXA_AVX512_LANES) * sizeof *w->sums);
    add_tiles(w);
    for (int64_t row = 0; row < w->item.n; row++) {
        const float sum = _mm512_reduce_add_ps(_mm512_loadu_ps(w->sums + row * MXA_AVX512_LANES));
        const bool lifted = w->bf16 && sum != 0; /* which a row without keys is not */
        w->item.sum[row] = w->item.sum[row] * (lifted ? MXA_AVX512_P_SCALE : 1.0f) + sum;
        w->item.max[row] -= lifted ? MXA_AVX512_P_LOG2 : 0.0f;
    }
    return mxa_item_end(&w->item, stored);
}

static int64_t scratch_bytes(const mxa_plan *plan, bool bf16)
{
    mxa_avx512_work w;
    return mxa_max(place(&w, plan, bf16, NULL), mxa_attention_ref_scratch(plan));
}

static void attend(const mxa_attention_job *job, const mxa_attention_item *item, bool bf16, void *scratch)
{
    mxa_avx512_work w = { .item = mxa_item_rows_of(job, item) };
    place(&w, job->plan, bf16, scratch);
    bool stored[MXA_ITEM_ROWS];
    if (!run(&w, stored)) {
        w.item.careful = true;
        run(&w, stored);
    }
    mxa_item_leave_to_reference(&w.item, stored, scratch);
}

int64_t mxa_attention_avx512_scratch(const mxa_plan *plan)
{
    return scratch_bytes(plan, false);
}

void mxa_attention_avx512(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    attend(job, item, false, scratch);
}

int64_t mxa_attention_avx512_bf16_scratch(const mxa_plan *plan)
{
    return scratch_bytes(plan, true);
}

void mxa_attention_avx512_bf16(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    attend(job, item, true, scratch);
}
