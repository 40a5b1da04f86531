/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in float64: docs/numerics.md, section 8, on the decoded operands. V is rounded to the P V type, P
 * is not; recipe "exact" rounds nothing. One row at a time, over tiles of 128 keys, since a tile decides the
 * precision.
 */
#include "cpu/ref/attention_ref.h"

#include <assert.h>

#include "attn/softmax.h"

typedef struct scratch {
    float q[MXA_COPIES][MXA_TILE][MXA_DIM_MAX]; /* the query tile's rows */
    float k[MXA_TILE][MXA_DIM_MAX], v[MXA_TILE][MXA_DIM_MAX];
    bool v_finite[MXA_TILE];
    double max[MXA_TILE], sum[MXA_TILE];    /* of each row's exp(s), relative to its max */
    double o[MXA_TILE][MXA_DIM_MAX];        /* sum of exp(s - max) v over finite v */
    float nonfinite[MXA_TILE][MXA_DIM_MAX]; /* sum of visible Inf and NaN in v: itself, or NaN */
} scratch;

int64_t mxa_attention_ref_scratch(const mxa_plan *plan)
{
    (void)plan;
    return sizeof(scratch);
}

static void load_v(const mxa_attention_job *job, const mxa_sequence *s, int64_t h_kv, mxa_span keys,
                   scratch *w)
{
    const mxa_dtype pv = job->plan->pv == MXA_PV_F16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    const mxa_dtype type = job->plan->recipe.exact ? MXA_DTYPE_F32 : pv;
    for (int64_t j = keys.first; j < keys.end; j++) {
        float *const v = w->v[j % MXA_TILE];
        mxa_row_load_as(job->v, s->batch, h_kv, s->k_first + j, type, v);
        bool finite = true;
        for (int64_t d = 0; d < job->v->shape[3]; d++)
            finite = finite && mxa_f32_is_finite(v[d]);
        w->v_finite[j % MXA_TILE] = finite;
    }
}

/* s_ij from <q_i, k_j>. */
static double logit(const mxa_problem *p, double dot_qk, double g_q, double g_k, double bias)
{
    const double t = (double)p->softmax_scale * g_q * g_k * dot_qk + bias;
    return p->softcap > 0 ? (double)p->softcap * tanh(t / (double)p->softcap) : t;
}

/* Take in key j with logit s: -Inf counts as masked, NaN and +Inf make the row NaN. */
static void add_key(scratch *w, int64_t r, double s, int64_t j, int64_t dim)
{
    const float *const v = w->v[j % MXA_TILE];
    const bool finite = w->v_finite[j % MXA_TILE];
    if (s == -INFINITY)
        return;
    if (isnan(s) || s == INFINITY) {
        w->max[r] = NAN;
        return;
    }
    if (s > w->max[r]) {
        const double alpha = exp(w->max[r] - s);
        w->max[r] = s;
        w->sum[r] *= alpha;
        for (int64_t d = 0; d < dim; d++)
            w->o[r][d] *= alpha;
    }
    const double p = exp(s - w->max[r]);
    w->sum[r] += p;
    for (int64_t d = 0; d < dim && finite; d++)
        w->o[r][d] += p * (double)v[d];
    for (int64_t d = 0; d < dim && !finite; d++) {
        if (mxa_f32_is_finite(v[d]))
            w->o[r][d] += p * (double)v[d];
        else
            w->nonfinite[r][d] += v[d];
    }
}

/* All rows of the query tile against the keys of one key tile. */
static void add_tile(const mxa_attention_job *job, const mxa_sequence *s, int64_t h, mxa_span rows,
                     mxa_span keys, int copy, scratch *w)
{
    const mxa_problem *const p = &job->plan->problem;
    const int64_t h_kv = mxa_job_kv_head(job, h);
    const mxa_rows q = mxa_job_q(job, copy, s, h), k = mxa_job_k(job, copy, s, h_kv);
    mxa_rows_load(&k, keys.first, keys.end - keys.first, w->k[keys.first % MXA_TILE], MXA_DIM_MAX);
    load_v(job, s, h_kv, keys, w);
    for (int64_t i = rows.first; i < rows.end; i++) {
        const int64_t position = i + s->map.q_offset, r = i - rows.first;
        const mxa_span seen = mxa_visible_keys(&s->map, position, position);
        const double g_q = (double)mxa_rows_factor(&q, i), bias = (double)mxa_job_bias(job, copy, s, h, i);
        for (int64_t j = mxa_max(seen.first, keys.first);
             j < mxa_min(seen.end, keys.end) && !isnan(w->max[r]); j++) {
            const double dot_qk = mxa_dot(w->q[copy][r], w->k[j % MXA_TILE], p->head_dim);
            add_key(w, r, logit(p, dot_qk, g_q, (double)mxa_rows_factor(&k, j), bias), j, p->head_dim_v);
        }
    }
}

/* m = sink and l = 1 where a sink logit is given, else the empty sum. */
static void begin_rows(const mxa_attention_job *job, int64_t h, int64_t n, scratch *w)
{
    const double sink = job->sinks ? (double)job->sinks[h] : -INFINITY;
    for (int64_t r = 0; r < n; r++) {
        w->max[r] = sink == INFINITY ? NAN : sink;
        w->sum[r] = sink == -INFINITY ? 0 : 1;
        memset(w->o[r], 0, sizeof w->o[r]);
        memset(w->nonfinite[r], 0, sizeof w->nonfinite[r]);
    }
}

static void end_rows(const mxa_attention_job *job, const mxa_sequence *s, int64_t h, mxa_span rows,
                     scratch *w)
{
    const int64_t dim = job->plan->problem.head_dim_v;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const int64_t r = i - rows.first;
        const bool is_nan = isnan(w->max[r]);
        float o[MXA_DIM_MAX];
        for (int64_t d = 0; d < dim; d++) {
            const float sum = w->sum[r] == 0 ? 0.0f : (float)(w->o[r][d] / w->sum[r]);
            o[d] = is_nan ? NAN : w->nonfinite[r][d] != 0 ? w->nonfinite[r][d] : sum;
        }
        mxa_row_store(job->out, s->batch, h, s->q_first + i, o);
        float *const lse = mxa_job_lse(job, s, h, i);
        if (lse)
            *lse = is_nan ? NAN : w->sum[r] == 0 ? -INFINITY : (float)(w->max[r] + log(w->sum[r]));
    }
}

void mxa_attention_ref_rows(const mxa_attention_job *job, const mxa_sequence *s, int64_t h, int64_t tile,
                            mxa_span rows, void *memory)
{
    scratch *const w = memory;
    const int64_t n = rows.end - rows.first;
    const mxa_span keys =
        mxa_visible_keys(&s->map, rows.first + s->map.q_offset, rows.end - 1 + s->map.q_offset);
    assert(n > 0 && job->plan->problem.head_dim <= MXA_DIM_MAX &&
           job->plan->problem.head_dim_v <= MXA_DIM_MAX);
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        if (!job->q[copy].plan)
            continue;
        const mxa_rows q = mxa_job_q(job, copy, s, h);
        mxa_rows_load(&q, rows.first, n, w->q[copy][0], MXA_DIM_MAX);
    }
    begin_rows(job, h, n, w);
    for (int64_t first = keys.first; first < keys.end;) {
        const int64_t k_tile = first / MXA_TILE, end = mxa_min((k_tile + 1) * MXA_TILE, keys.end);
        const mxa_precision precision = mxa_tile_precision(&s->map, tile, k_tile);
        add_tile(job, s, h, rows, (mxa_span){ first, end }, precision == MXA_TILE_HIGH ? MXA_HIGH : MXA_LOW,
                 w);
        first = end;
    }
    end_rows(job, s, h, rows, w);
}

void mxa_attention_ref(const mxa_attention_job *job, const mxa_attention_item *item, void *memory)
{
    for (int64_t h = item->h; h < item->h + item->n_heads; h++)
        mxa_attention_ref_rows(job, item->s, h, item->tile, mxa_tile_rows(item->s, item->tile), memory);
}
