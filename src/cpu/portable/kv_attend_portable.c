/* SPDX-License-Identifier: Apache-2.0 */
/* A segment of a KV cache in fp32: each key tile is decoded once for all rows of the unit. */
#include "cpu/portable/kv_attend_portable.h"

#include <math.h>

#include "attn/softmax.h"
#include "cpu/portable/vector_portable.h"

typedef struct work {
    float q[MXA_COPIES][MXA_KV_ROWS][MXA_DIM_MAX];
    float k[MXA_TILE][MXA_DIM_MAX], v[MXA_TILE][MXA_DIM_MAX];
    float g_k[MXA_TILE], g_v[MXA_TILE];
    float logits[MXA_TILE];
    float factor[MXA_COPIES][MXA_KV_ROWS],
        bias[MXA_COPIES][MXA_KV_ROWS]; /* of logits; base 2 without softcap */
} work;

int64_t mxa_kv_scratch_portable(const mxa_kv_job *job)
{
    (void)job;
    return sizeof(work);
}

/* Elements past dim are zero, so that whole vectors may be read. */
static void clear_tail(float *row, int64_t dim)
{
    memset(row + dim, 0, (size_t)(mxa_min(dim + MXA_KV_CHANNELS, MXA_DIM_MAX) - dim) * sizeof *row);
}

static void load_q(const mxa_kv_job *job, const mxa_kv_unit *u, int copy, work *w)
{
    const mxa_kv_query *const q = &job->q[copy];
    const mxa_kv_part *const k = &job->view->layout->part[copy][MXA_KV_K];
    const double unit = job->softcap > 0 ? 1.0 : MXA_LOG2_E;
    for (int64_t r = 0; r < u->n_heads * u->n_queries; r++) {
        const int64_t at = mxa_kv_row(job, u, r);
        mxa_decode_pick(q->copy->info->format)
            ->fn(q->copy->info, q->codes + at * q->row_bytes,
                 q->scale_cols ? q->scales + at * q->scale_cols : NULL, 1, k->dim, w->q[copy][r], k->dim);
        clear_tail(w->q[copy][r], k->dim);
        w->factor[copy][r] = (float)((double)job->softmax_scale * unit) * (q->g ? q->g[at] : 1.0f);
        w->bias[copy][r] = k->copy.smooth ? (float)((double)job->bias[at] * unit) : 0.0f;
    }
}

/* Rows of K or V of the keys, one tile's, with their factors. */
static void load_rows(const mxa_kv_job *job, const mxa_kv_unit *u, int copy, int operand, mxa_span keys,
                      float (*out)[MXA_DIM_MAX], float *g)
{
    const mxa_kv_sequence *const s = &job->view->sequences[u->b];
    for (int64_t first = keys.first; first < keys.end;) {
        const mxa_kv_rows rows = mxa_kv_rows_at(job->view, copy, operand, s, u->h_kv, first, keys.end);
        const mxa_format_info *const info = rows.part->copy.info;
        const int64_t at = first - keys.first;
        mxa_decode_pick(info->format)
            ->fn(info, rows.codes, rows.scales, rows.n, rows.part->dim, out[at], MXA_DIM_MAX);
        for (int64_t r = 0; r < rows.n; r++) {
            clear_tail(out[at + r], rows.part->dim);
            g[at + r] = rows.g ? rows.g[r] : 1.0f;
        }
        first += rows.n;
    }
}

/* The factors of V's channels. */
static void multiply_channels(float (*rows)[MXA_DIM_MAX], int64_t n, int64_t dim, const float *g)
{
    for (int64_t r = 0; r < n && g; r++)
        for (int64_t d = 0; d < dim; d++)
            rows[r][d] *= g[d];
}

static float dot(const float *a, const float *b, int64_t dim)
{
    mxa_vec sum[4] = { mxa_vec_all(0), mxa_vec_all(0), mxa_vec_all(0), mxa_vec_all(0) };
    for (int64_t d = 0; d < dim; d += MXA_KV_CHANNELS)
        for (int i = 0; i < 4; i++)
            sum[i] += mxa_vec_load(a + d + 4 * i) * mxa_vec_load(b + d + 4 * i);
    return mxa_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Logits in base 2 of row r and the keys that it sees; returns the largest, NaN if one is NaN. */
static float row_logits(const mxa_kv_job *job, int copy, int64_t r, mxa_span seen, int64_t dim, work *w)
{
    float max = -INFINITY;
    for (int64_t j = seen.first; j < seen.end; j++) {
        float t = dot(w->q[copy][r], w->k[j], dim) * w->g_k[j] * w->factor[copy][r] + w->bias[copy][r];
        if (job->softcap > 0)
            t = (float)(MXA_LOG2_E * (double)job->softcap * tanh((double)t / (double)job->softcap));
        t = t + 0.0f * t; /* NaN for Inf: whether it is one beyond fp32 too, the reference decides */
        w->logits[j] = t;
        max = t > max || isnan(t) ? t : max; /* once NaN, it stays: t > NaN is false */
    }
    return max;
}

/* One step of the online softmax: keys first.. of the tile, which row r sees. */
static void add_row(const mxa_kv_job *job, int64_t r, mxa_span seen, float max, work *w,
                    const mxa_kv_sums *sums)
{
    float *const o = sums->o + r * job->channels;
    const float old = sums->max[r], m = max > old || isnan(max) ? max : old;
    const float alpha = old == -INFINITY ? 0.0f : exp2f(old - m);
    sums->max[r] = m;
    sums->sum[r] *= alpha;
    for (int64_t d = 0; d < job->channels; d++)
        o[d] *= alpha;
    for (int64_t j = seen.first; j < seen.end; j++) {
        const float p = mxa_vec_exp2(mxa_vec_all(w->logits[j] - m))[0];
        sums->sum[r] += p;
        const mxa_vec weight = mxa_vec_all(p * w->g_v[j]);
        for (int64_t d = 0; d < job->channels; d += MXA_LANES)
            mxa_vec_store(o + d, mxa_vec_load(o + d) + weight * mxa_vec_load(w->v[j] + d));
    }
}

static void add_tile(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t k_tile, work *w,
                     const mxa_kv_sums *sums)
{
    const mxa_span keys = mxa_kv_tile_keys(u, k_tile, 0, u->n_queries);
    const int copy = mxa_tile_is_high(&u->map, u->tile, k_tile) ? MXA_HIGH : MXA_LOW;
    const int v_copy = mxa_kv_v_copy(job->view->layout, copy);
    const int64_t dim = job->view->layout->part[copy][MXA_KV_K].dim;
    load_rows(job, u, copy, MXA_KV_K, keys, w->k, w->g_k);
    load_rows(job, u, v_copy, MXA_KV_V, keys, w->v, w->g_v);
    multiply_channels(w->v, keys.end - keys.first, job->out->shape[3],
                      mxa_kv_channels_g(job->view, v_copy, u->h_kv));
    for (int64_t r = 0; r < u->n_heads * u->n_queries; r++) {
        const mxa_span seen = mxa_kv_tile_keys(u, k_tile, r % u->n_queries, 1);
        const mxa_span own = { seen.first - keys.first, mxa_max(seen.end, seen.first) - keys.first };
        if (own.first >= own.end)
            continue;
        add_row(job, r, own, row_logits(job, copy, r, own, dim, w), w, sums);
    }
}

void mxa_kv_segment_portable(const mxa_kv_job *job, const mxa_kv_unit *u, mxa_span tiles, void *scratch,
                             const mxa_kv_sums *sums)
{
    work *const w = scratch;
    const int64_t rows = u->n_heads * u->n_queries;
    for (int copy = 0; copy < MXA_COPIES; copy++)
        if (job->q[copy].copy->info)
            load_q(job, u, copy, w);
    memset(sums->o, 0, (size_t)(rows * job->channels) * sizeof *sums->o);
    for (int64_t r = 0; r < rows; r++) {
        sums->max[r] = -INFINITY;
        sums->sum[r] = 0;
    }
    for (int64_t k_tile = tiles.first; k_tile < tiles.end; k_tile++)
        add_tile(job, u, k_tile, w, sums);
}
