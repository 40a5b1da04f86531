/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention in fp32 on any machine. For each key tile, K is decoded and transposed and V rounded to
 * the P V type once for the whole item; then blocks of query rows go through logits, softmax and P V while
 * their data is in the L1 cache. Keys that a row does not see get logit -Inf, whatever their memory holds.
 * Where Inf or NaN of V reach a result, the item is computed again by the careful path, which keeps them
 * apart (docs/numerics.md, section 8). A row that NaN, or a number beyond fp32, leaves without a result goes
 * to the reference, which tells the two apart.
 */
#include "cpu/portable/attention_portable.h"

#include <assert.h>
#include <math.h>

#include "attn/softmax.h"
#include "cpu/portable/attention_tile_portable.h"
#include "cpu/ref/attention_ref.h"

enum { ALIGNMENT = 64 };

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

/* Lay out the parts; returns their size. */
static int64_t place(mxa_tile_work *w, const mxa_plan *plan, char *base)
{
    const int64_t dim = plan->problem.head_dim, channels = mxa_whole_groups(plan->problem.head_dim_v);
    const int64_t rows = plan->item_rows, blocks = (rows + MXA_ROWS - 1) / MXA_ROWS;
    const int64_t f32 = sizeof(float), lanes = sizeof(mxa_vec);
    int64_t used = 0;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        if (!plan->q[copy].info)
            continue;
        w->q[copy] = carve(base, &used, blocks * dim * MXA_ROWS * lanes);
        w->factor[copy] = carve(base, &used, rows * f32);
        w->bias[copy] = carve(base, &used, rows * f32);
    }
    w->raw = carve(base, &used, mxa_max(MXA_TILE * dim, channels) * f32);
    w->k = carve(base, &used, MXA_TILE * dim * f32);
    w->v = carve(base, &used, MXA_TILE * channels * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->v_nonfinite = carve(base, &used, MXA_TILE);
    w->logits = carve(base, &used, MXA_ROWS * MXA_TILE * f32);
    w->p = carve(base, &used, MXA_TILE * MXA_ROWS * lanes);
    w->o = carve(base, &used, rows * channels * f32);
    w->max = carve(base, &used, rows * f32);
    w->sum = carve(base, &used, rows * f32);
    w->nonfinite = carve(base, &used, rows * channels * f32);
    return used;
}

int64_t mxa_attention_portable_scratch(const mxa_plan *plan)
{
    mxa_tile_work w;
    return mxa_max(place(&w, plan, NULL), mxa_attention_ref_scratch(plan));
}

const char *mxa_attention_portable_refuses(const mxa_plan *plan)
{
    return plan->recipe.exact ? "computes in fp32, recipe exact wants float64" : NULL;
}

/* The part that owns a sink logit starts with it: m = sink, l = 1. */
static void begin_rows(mxa_tile_work *w)
{
    const size_t o_bytes = (size_t)(w->n * w->channels) * sizeof *w->o;
    for (int64_t row = 0; row < w->n; row++) {
        const float sink = w->job->sinks ? w->job->sinks[w->h + row / w->head_rows] : -INFINITY;
        const bool broken = isnan(sink) || sink == INFINITY;
        w->max[row] = broken ? -INFINITY : (float)((double)sink * MXA_LOG2_E);
        w->sum[row] = broken ? NAN : sink == -INFINITY ? 0.0f : 1.0f;
    }
    memset(w->o, 0, o_bytes);
    if (w->careful)
        memset(w->nonfinite, 0, o_bytes);
}

static void add_tiles(mxa_tile_work *w)
{
    const mxa_tile_map *const map = &w->s->map;
    const mxa_span keys =
        mxa_visible_keys(map, w->rows.first + map->q_offset, w->rows.end - 1 + map->q_offset);
    if (keys.first >= keys.end)
        return;
    for (int64_t k_tile = keys.first / MXA_TILE; k_tile * MXA_TILE < keys.end; k_tile++) {
        const mxa_key_tile t = {
            .first = k_tile * MXA_TILE,
            .begin = mxa_max(keys.first - k_tile * MXA_TILE, 0),
            .end = mxa_min(keys.end - k_tile * MXA_TILE, MXA_TILE),
            .copy = mxa_tile_precision(map, w->tile, k_tile) == MXA_TILE_HIGH ? MXA_HIGH : MXA_LOW,
        };
        if (!w->loaded[t.copy])
            mxa_tile_load_q(w, t.copy);
        mxa_tile_load_k(w, &t);
        mxa_tile_load_v(w, &t);
        for (int64_t first = 0; first < w->n; first += MXA_ROWS)
            mxa_tile_add_block(w, &t, first);
    }
}

/* O / l into raw; false if one of them is Inf or NaN other than V's own. */
static bool divide_row(const mxa_tile_work *w, int64_t row)
{
    bool finite = true;
    for (int64_t d = 0; d < w->dim_v; d++) {
        const int64_t at = row * w->channels + d;
        const float o = w->sum[row] == 0 ? 0.0f : w->o[at] / w->sum[row];
        w->raw[d] = w->careful && w->nonfinite[at] != 0 ? w->nonfinite[at] : o;
        finite = finite && mxa_f32_is_finite(o);
    }
    return finite;
}

/* A sum of 0 is that of an empty row, or of logits that are all -Inf. */
static bool has_sum(const mxa_tile_work *w, int64_t row)
{
    const int64_t position = w->rows.first + row % w->head_rows + w->s->map.q_offset;
    const mxa_span seen = mxa_visible_keys(&w->s->map, position, position);
    return !isnan(w->sum[row]) && (w->sum[row] != 0 || seen.first >= seen.end);
}

/*
 * Store the rows that have a result. False, before all are stored, if the careful path has to do them again.
 */
static bool end_rows(const mxa_tile_work *w, bool *stored)
{
    for (int64_t row = 0; row < w->n; row++) {
        const int64_t h = w->h + row / w->head_rows, i = w->rows.first + row % w->head_rows;
        stored[row] = has_sum(w, row);
        if (!stored[row])
            continue;
        stored[row] = divide_row(w, row);
        if (!stored[row] && !w->careful)
            return false;
        mxa_row_store(w->job->out, w->s->batch, h, w->s->q_first + i, w->raw);
        float *const lse = mxa_job_lse(w->job, w->s, h, i);
        if (lse)
            *lse = mxa_lse(w->max[row], w->sum[row]);
    }
    return true;
}

/* Runs of rows of a head that are not stored. The scratch is free by now. */
static void leave_to_reference(const mxa_tile_work *w, const bool *stored, void *scratch)
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

void mxa_attention_portable(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    mxa_tile_work w = {
        .job = job, .s = item->s, .h = item->h, .n_heads = item->n_heads, .tile = item->tile
    };
    w.h_kv = mxa_job_kv_head(job, item->h);
    w.rows = mxa_tile_rows(item->s, item->tile);
    w.head_rows = w.rows.end - w.rows.first;
    w.n = w.head_rows * item->n_heads;
    assert(w.n <= MXA_ITEM_ROWS);
    w.dim = job->plan->problem.head_dim;
    w.dim_v = job->plan->problem.head_dim_v;
    w.channels = mxa_whole_groups(w.dim_v);
    place(&w, job->plan, scratch);
    bool stored[MXA_ITEM_ROWS];
    begin_rows(&w);
    add_tiles(&w);
    if (!end_rows(&w, stored)) {
        w.careful = true;
        begin_rows(&w);
        add_tiles(&w);
        end_rows(&w, stored);
    }
    leave_to_reference(&w, stored, scratch);
}
