/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/attention_rows.h"

#include <assert.h>
#include <math.h>

#include "attn/softmax.h"
#include "cpu/ref/attention_ref.h"
#include "format/mx.h"

mxa_item_rows mxa_item_rows_of(const mxa_attention_job *job, const mxa_attention_item *item)
{
    mxa_item_rows w = { .job = job, .s = item->s, .h = item->h, .tile = item->tile };
    w.h_kv = mxa_job_kv_head(job, item->h);
    w.rows = mxa_tile_rows(item->s, item->tile);
    w.head_rows = w.rows.end - w.rows.first;
    w.n = w.head_rows * item->n_heads;
    assert(w.n <= MXA_ITEM_ROWS);
    w.dim_v = job->plan->problem.head_dim_v;
    return w;
}

/*
 * The part that owns a sink logit starts with it: m = sink, l = 1. If it is no number in base 2, the row goes
 * to the reference.
 */
void mxa_item_begin(const mxa_item_rows *w)
{
    const size_t o_bytes = (size_t)(w->n * w->channels) * sizeof *w->o;
    for (int64_t row = 0; row < w->n; row++) {
        const float sink = w->job->sinks ? w->job->sinks[w->h + row / w->head_rows] : -INFINITY;
        const float max = (float)((double)sink * MXA_LOG2_E);
        const bool none = sink == -INFINITY, finite = mxa_f32_is_finite(max);
        w->max[row] = finite ? max : -INFINITY;
        w->sum[row] = none ? 0.0f : finite ? 1.0f : NAN;
    }
    if (w->o)
        memset(w->o, 0, o_bytes);
    if (w->careful)
        memset(w->nonfinite, 0, o_bytes);
}

mxa_span mxa_item_keys(const mxa_item_rows *w)
{
    const mxa_tile_map *const map = &w->s->map;
    return mxa_visible_keys(map, w->rows.first + map->q_offset, w->rows.end - 1 + map->q_offset);
}

mxa_key_tile mxa_item_key_tile(const mxa_item_rows *w, mxa_span keys, int64_t k_tile)
{
    return (mxa_key_tile){
        .first = k_tile * MXA_TILE,
        .begin = mxa_max(keys.first - k_tile * MXA_TILE, 0),
        .end = mxa_min(keys.end - k_tile * MXA_TILE, MXA_TILE),
        .copy = mxa_tile_precision(&w->s->map, w->tile, k_tile) == MXA_TILE_HIGH ? MXA_HIGH : MXA_LOW,
    };
}

/* Of all tiles, counted from key 0. */
static mxa_span seen_keys(const mxa_item_rows *w, int64_t row)
{
    const int64_t position = w->rows.first + row % w->head_rows + w->s->map.q_offset;
    return mxa_visible_keys(&w->s->map, position, position);
}

mxa_span mxa_item_seen(const mxa_item_rows *w, const mxa_key_tile *t, int64_t row)
{
    const mxa_span keys = seen_keys(w, row);
    return (mxa_span){ mxa_max(keys.first - t->first, t->begin), mxa_min(keys.end - t->first, t->end) };
}

void mxa_item_collect(const mxa_item_rows *w, const mxa_key_tile *t, int64_t row, const float *logits)
{
    float *const sums = w->nonfinite + row * w->channels;
    const mxa_span seen = mxa_item_seen(w, t, row);
    for (int64_t j = seen.first; j < seen.end; j++) {
        if (!w->v_nonfinite[j])
            continue;
        if (logits[j] == -INFINITY)
            w->sum[row] = NAN;
        mxa_row_load(w->job->v, w->s->batch, w->h_kv, w->s->k_first + t->first + j, w->row);
        for (int64_t d = 0; d < w->dim_v; d++)
            if (!mxa_f32_is_finite(w->row[d]))
                sums[d] += w->row[d];
    }
}

static bool divide_row(const mxa_item_rows *w, int64_t row)
{
    const float *const o = w->o + row * w->channels;
    const float sum = w->sum[row] == 0 ? 1.0f : w->sum[row];
    for (int64_t d = 0; d < w->dim_v; d++)
        w->row[d] = o[d] / sum;
    return mxa_amax_bits(w->row, w->dim_v) < MXA_F32_INF;
}

/* The row's output into w->row; false if it holds Inf or NaN other than V's own. */
static bool finish_row(const mxa_item_rows *w, int64_t row)
{
    const bool finite = w->divide ? w->divide(w, row) : divide_row(w, row);
    const float *const nonfinite = w->nonfinite + row * w->channels;
    for (int64_t d = 0; d < w->dim_v && w->careful; d++)
        if (nonfinite[d] != 0)
            w->row[d] = nonfinite[d];
    return finite;
}

/* A sum of 0 is that of an empty row, or of logits that are all -Inf. */
static bool has_sum(const mxa_item_rows *w, int64_t row)
{
    const mxa_span seen = seen_keys(w, row);
    return !isnan(w->sum[row]) && (w->sum[row] != 0 || seen.first >= seen.end);
}

/* As mxa_row_store, which is slow at 16-bit types where a quantiser uses more of the machine. */
static void store_row(const mxa_item_rows *w, mxa_quantize_rows_fn *to_half, int64_t h, int64_t i)
{
    const mxa_tensor *const out = w->job->out;
    if (out->dtype == MXA_DTYPE_F32) {
        mxa_row_store(out, w->s->batch, h, i, w->row);
        return;
    }
    const mxa_format format = out->dtype == MXA_DTYPE_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16;
    const mxa_code_spec spec = { .info = mxa_format_get(format) };
    const mxa_prepared row = { w->row, NULL, 1, w->dim_v };
    const float none = 1.0f;
    to_half(&spec, &row, &none, 0, mxa_row(out, w->s->batch, h, i), NULL);
}

bool mxa_item_end(const mxa_item_rows *w, bool *stored)
{
    const bool f16 = w->job->out->dtype == MXA_DTYPE_F16;
    mxa_quantize_rows_fn *const to_half = mxa_quantize_pick(f16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16)->fn;
    for (int64_t row = 0; row < w->n; row++) {
        const int64_t h = w->h + row / w->head_rows, i = w->rows.first + row % w->head_rows;
        stored[row] = has_sum(w, row);
        if (!stored[row])
            continue;
        stored[row] = finish_row(w, row);
        if (!stored[row] && !w->careful)
            return false;
        store_row(w, to_half, h, w->s->q_first + i);
        float *const lse = mxa_job_lse(w->job, w->s, h, i);
        if (lse)
            *lse = mxa_lse(w->max[row], w->sum[row]);
    }
    return true;
}

/* In runs of rows of a head. */
void mxa_item_leave_to_reference(const mxa_item_rows *w, const bool *stored, void *scratch)
{
    for (int64_t row = 0; row < w->n;) {
        const int64_t first = row, n = row / w->head_rows, head_end = (n + 1) * w->head_rows;
        while (row < head_end && !stored[row])
            row++;
        const int64_t i = w->rows.first + first % w->head_rows;
        if (row > first)
            mxa_attention_ref_rows(w->job, w->s, w->h + n, w->tile, (mxa_span){ i, i + row - first },
                                   scratch);
        else
            row++;
    }
}
