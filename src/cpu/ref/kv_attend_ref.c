/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One query of a KV cache in float64: docs/numerics.md, section 8, on the decoded rows of the cache. V takes
 * part as it is stored, P is not rounded.
 */
#include <math.h>

#include "core/tensor.h"
#include "cpu/attention_cpu.h"
#include "cpu/kv_attend_cpu.h"
#include "cpu/steps_cpu.h"

typedef struct row {
    float q[MXA_COPIES][MXA_DIM_MAX];
    float k[MXA_DIM_MAX], v[MXA_DIM_MAX];
    double max, sum, o[MXA_DIM_MAX];
    float nonfinite[MXA_DIM_MAX]; /* sum of visible Inf and NaN in V: itself, or NaN */
} row;

static double load(const mxa_kv_rows *rows, float *out)
{
    const mxa_format_info *const info = rows->part->copy.info;
    mxa_decode_pick(info->format)
        ->fn(info, rows->codes, rows->scales, 1, rows->part->dim, out, rows->part->dim);
    return rows->g ? (double)*rows->g : 1.0;
}

static void load_q(const mxa_kv_job *job, int64_t r, int64_t dim, row *w)
{
    for (int c = 0; c < MXA_COPIES; c++) {
        const mxa_kv_query *const q = &job->q[c];
        if (q->copy->info)
            mxa_decode_pick(q->copy->info->format)
                ->fn(q->copy->info, q->codes + r * q->row_bytes,
                     q->scale_cols ? q->scales + r * q->scale_cols : NULL, 1, dim, w->q[c], dim);
    }
}

static double logit(const mxa_kv_job *job, int copy, int64_t r, double g_k, double dot)
{
    const double g_q = job->q[copy].g ? (double)job->q[copy].g[r] : 1.0;
    const bool smooth = job->view->layout->part[copy][MXA_KV_K].copy.smooth;
    const double t = (double)job->softmax_scale * g_q * g_k * dot + (smooth ? (double)job->bias[r] : 0.0);
    return job->softcap > 0 ? (double)job->softcap * tanh(t / (double)job->softcap) : t;
}

/* -Inf counts as masked, NaN and +Inf make the row NaN. */
static void add_key(row *w, double s, double g_v, const float *channels_g, int64_t dim)
{
    if (s == -INFINITY)
        return;
    if (isnan(s) || s == INFINITY) {
        w->max = NAN;
        return;
    }
    if (s > w->max) {
        const double alpha = exp(w->max - s);
        w->max = s;
        w->sum *= alpha;
        for (int64_t d = 0; d < dim; d++)
            w->o[d] *= alpha;
    }
    const double p = exp(s - w->max);
    w->sum += p;
    for (int64_t d = 0; d < dim; d++) {
        if (mxa_f32_is_finite(w->v[d]))
            w->o[d] += p * g_v * (channels_g ? (double)channels_g[d] : 1.0) * (double)w->v[d];
        else
            w->nonfinite[d] += w->v[d];
    }
}

static void add_keys(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t r, mxa_span keys, row *w)
{
    const mxa_kv_view *const view = job->view;
    const mxa_kv_sequence *const s = &view->sequences[u->b];
    const int copy = mxa_tile_is_high(&u->map, u->tile, keys.first / MXA_TILE) ? MXA_HIGH : MXA_LOW;
    const int64_t dim_v = job->out->shape[3];
    const int v_copy = mxa_kv_v_copy(view->layout, copy);
    const float *const channels_g = mxa_kv_channels_g(view, v_copy, u->h_kv);
    for (int64_t j = keys.first; j < keys.end && !isnan(w->max); j++) {
        const mxa_kv_rows k = mxa_kv_rows_at(view, copy, MXA_KV_K, s, u->h_kv, j, j + 1);
        const mxa_kv_rows v = mxa_kv_rows_at(view, v_copy, MXA_KV_V, s, u->h_kv, j, j + 1);
        const double g_k = load(&k, w->k), g_v = load(&v, w->v);
        const double dot = mxa_dot(w->q[copy], w->k, k.part->dim);
        add_key(w, logit(job, copy, mxa_kv_row(job, u, r), g_k, dot), g_v, channels_g, dim_v);
    }
}

static void store(const mxa_kv_job *job, int64_t b, int64_t h, int64_t i, const row *w)
{
    const int64_t dim = job->out->shape[3];
    const bool is_nan = isnan(w->max);
    float o[MXA_DIM_MAX];
    for (int64_t d = 0; d < dim; d++) {
        const float sum = w->sum == 0 ? 0.0f : (float)(w->o[d] / w->sum);
        o[d] = is_nan ? NAN : w->nonfinite[d] != 0 ? w->nonfinite[d] : sum;
    }
    if (job->view->layout->part[MXA_LOW][MXA_KV_V].copy.rotate)
        mxa_rotate_rows(o, 1, dim);
    mxa_row_store(job->out, b, h, i, o);
    if (job->lse)
        job->lse[(b * job->heads + h) * job->n + i] = is_nan        ? NAN
                                                      : w->sum == 0 ? -INFINITY
                                                                    : (float)(w->max + log(w->sum));
}

void mxa_kv_attend_ref(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t r)
{
    const int64_t h = u->h + r / u->n_queries, i = u->i + r % u->n_queries;
    const double sink = job->sinks ? (double)job->sinks[h] : -INFINITY;
    const mxa_kv_layout *const l = job->view->layout;
    const int copy = l->part[MXA_LOW][MXA_KV_K].copy.info ? MXA_LOW : MXA_HIGH;
    row w = { .max = sink == INFINITY ? NAN : sink, .sum = sink == -INFINITY ? 0 : 1 };
    load_q(job, mxa_kv_row(job, u, r), l->part[copy][MXA_KV_K].dim, &w);
    for (int64_t k_tile = 0; k_tile <= u->tile; k_tile++) {
        const mxa_span keys = mxa_kv_tile_keys(u, k_tile, r % u->n_queries, 1);
        if (keys.first < keys.end)
            add_keys(job, u, r, keys, &w);
    }
    store(job, u->b, h, i, &w);
}
