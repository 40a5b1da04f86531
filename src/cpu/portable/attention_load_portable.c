/* SPDX-License-Identifier: Apache-2.0 */
/* Q, K and V of the portable attention in the order that its products read them. */
#include "attn/softmax.h"
#include "cpu/portable/attention_tile_portable.h"

/*
 * Head h + n of the item: its rows of the copy, and what their dot products are multiplied with and added to.
 */
static void load_q_head(mxa_tile_work *w, int copy, int64_t n)
{
    const mxa_problem *const p = &w->item.job->plan->problem;
    const mxa_rows q = mxa_job_q(w->item.job, copy, w->item.s, w->item.h + n);
    const double unit = p->softcap > 0 ? 1.0 : MXA_LOG2_E;
    const float scale = (float)((double)p->softmax_scale * unit);
    mxa_rows_load(&q, w->item.rows.first, w->item.head_rows, w->raw, w->dim);
    for (int64_t i = 0; i < w->item.head_rows; i++) {
        const int64_t r = n * w->item.head_rows + i;
        mxa_spread_row(w->raw + i * w->dim, w->dim,
                       w->q[copy] + r / MXA_ROWS * MXA_ROWS * w->dim + r % MXA_ROWS);
        w->factor[copy][r] = scale * mxa_rows_factor(&q, w->item.rows.first + i);
        const float bias = mxa_job_bias(w->item.job, copy, w->item.s, w->item.h + n, w->item.rows.first + i);
        w->bias[copy][r] = (float)((double)bias * unit);
    }
}

void mxa_tile_load_q(mxa_tile_work *w, int copy)
{
    for (int64_t n = 0; n < w->n_heads; n++)
        load_q_head(w, copy, n);
    w->loaded[copy] = true;
}

/* Whole groups of keys; those that no row sees are zero. */
void mxa_tile_load_k(mxa_tile_work *w, const mxa_key_tile *t)
{
    const mxa_rows k = mxa_job_k(w->item.job, t->copy, w->item.s, w->item.h_kv);
    const int64_t first = t->begin / MXA_COLS * MXA_COLS, end = mxa_whole_groups(t->end), dim = w->dim;
    mxa_rows_load(&k, t->first + t->begin, t->end - t->begin, w->raw + t->begin * dim, dim);
    memset(w->raw + first * dim, 0, (size_t)((t->begin - first) * dim) * sizeof *w->raw);
    memset(w->raw + t->end * dim, 0, (size_t)((end - t->end) * dim) * sizeof *w->raw);
    for (int64_t j = first; j < end; j += MXA_COLS)
        mxa_transpose_keys(w->raw + j * dim, dim, dim, w->k + j * dim);
    for (int64_t j = first; j < end; j++)
        w->g_k[j] = j >= t->begin && j < t->end ? mxa_rows_factor(&k, t->first + j) : 0.0f;
}

/* V in the P V type as fp32. Inf and NaN stay, or are taken out by the careful path. */
void mxa_tile_load_v(mxa_tile_work *w, const mxa_key_tile *t)
{
    const int64_t first = t->begin / MXA_COLS * MXA_COLS, end = mxa_whole_groups(t->end);
    const mxa_dtype type = w->item.job->plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    float *const row = w->raw;
    for (int64_t j = first; j < end; j++) {
        memset(row, 0, (size_t)w->item.channels * sizeof *row);
        w->item.v_nonfinite[j] = false;
        if (j >= t->begin && j < t->end)
            mxa_row_load_as(w->item.job->v, w->item.s->batch, w->item.h_kv, w->item.s->k_first + t->first + j,
                            type, row);
        for (int64_t d = 0; d < w->item.dim_v && w->item.careful; d++)
            if (!mxa_f32_is_finite(row[d])) {
                row[d] = 0.0f;
                w->item.v_nonfinite[j] = true;
            }
        for (int64_t c = 0; c < w->item.channels / MXA_COLS; c++)
            memcpy(w->v + (c * MXA_TILE + j) * MXA_COLS, row + c * MXA_COLS, MXA_COLS * sizeof *row);
    }
}
