/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_tolerance.h"

#include "core/bits.h"

#include <math.h>

static const mxa_attention_impl *reference(void)
{
    const mxa_attention_impl *impl = mxa_attention_impls;
    while (impl[1].name)
        impl++;
    return impl;
}

/* The Euclidean norm of a row's finite part. */
static double norm(const mxa_tensor *x, int64_t b, int64_t h, int64_t i)
{
    double sum = 0;
    for (int64_t d = 0; d < x->shape[3]; d++) {
        const double v = (double)tensor_get(x, b, h, i, d);
        sum += isfinite(v) ? v * v : 0;
    }
    return sqrt(sum);
}

/* Row 0 of a sequence in the tensors. */
typedef struct tensor_row {
    int64_t b, h, i;
} tensor_row;

typedef struct row_bound {
    double logit; /* error of a logit */
    int64_t keys;
} row_bound;

/*
 * The norms of q and k bound the sum of |q k|, rotated or not; a code is at most 1.5 times its number, and
 * subtracting a mean of other keys adds that mean's norm to k. head_dim sums and 8 roundings of factors,
 * bias and softcap.
 */
static row_bound bound_row(const attention_problem *a, const mxa_attention_impl *impl, const tensor_row *q,
                           const mxa_tile_map *map, int64_t i, const double *k_norms)
{
    const int64_t position = i + map->q_offset;
    const mxa_span seen = mxa_visible_keys(map, position, position);
    double largest = 0, mean = 0;
    for (int64_t j = seen.first; j < seen.end; j++)
        largest = fmax(largest, k_norms[j]);
    const int64_t averaged =
        a->recipe.smooth_k == MXA_SMOOTH_FULL ? map->kv_len : mxa_min(map->kv_len, MXA_TILE);
    for (int64_t j = 0; j < averaged && a->recipe.smooth_k != MXA_SMOOTH_NONE; j++)
        mean += k_norms[j] / (double)averaged;
    if (a->mean)
        mean = 5 * sqrt((double)a->p.head_dim);
    const double codes = 1.5 * 1.5,
                 size = fabs((double)a->p.softmax_scale) * norm(&a->q, q->b, q->h, q->i + i);
    const double steps = ((double)a->p.head_dim + 8) * impl->sum_eps;
    return (row_bound){ size * codes * (largest + 2 * mean) * steps +
                            (double)a->p.softcap * 8 * impl->sum_eps,
                        mxa_max(seen.end - seen.first, 0) };
}

/* Norms of the keys that head h of a sequence reads. */
static const double *key_norms(const attention_problem *a, int64_t sequence, int64_t h, int64_t kv_len)
{
    double *const norms = (double *)(void *)check_bytes((size_t)kv_len * sizeof(double)).data;
    const bool packed = a->p.cu_seqlens_k;
    for (int64_t j = 0; j < kv_len; j++)
        norms[j] = norm(&a->k, packed ? 0 : sequence, h / (a->p.heads / a->p.heads_kv),
                        (packed ? a->cu_k[sequence] : 0) + j);
    return norms;
}

/* The reference with |v|: sum of P |V| for each output. Inf and NaN count as 0. */
static attention_result absolute_result(const attention_problem *a)
{
    attention_problem b = *a;
    b.v = tensor_copy(&a->v);
    for (int64_t n = 0; n < b.v.shape[0] * b.v.shape[1] * b.v.shape[2]; n++) {
        const int64_t i = n % b.v.shape[2], h = n / b.v.shape[2] % b.v.shape[1];
        for (int64_t d = 0; d < b.v.shape[3]; d++) {
            const float v = tensor_get(&b.v, n / b.v.shape[2] / b.v.shape[1], h, i, d);
            tensor_set(&b.v, n / b.v.shape[2] / b.v.shape[1], h, i, d,
                       mxa_f32_is_finite(v) ? fabsf(v) : 0.0f);
        }
    }
    return attention_run(&b, reference(), 1);
}

static double largest_finite(const mxa_tensor *x)
{
    double largest = 0;
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++)
                for (int64_t d = 0; d < x->shape[3]; d++) {
                    const float v = fabsf(tensor_get(x, b, h, i, d));
                    largest = mxa_f32_is_finite(v) ? fmax(largest, (double)v) : largest;
                }
    return largest;
}

/* What all rows share. */
typedef struct tolerance {
    const attention_problem *a;
    const mxa_attention_impl *impl;
    attention_result want, weights;
    const attention_result *got;
    double round_p, smallest;
} tolerance;

/* A number as the output's type has it, but for its rounding: too large ones saturate. */
static double saturated(double o, mxa_dtype dtype)
{
    const double largest = 65504; /* of f16 */
    return dtype == MXA_DTYPE_F16 && isfinite(o) ? fmax(-largest, fmin(largest, o)) : o;
}

/* Of the output's rounding. */
static double output_bound(double o, mxa_dtype dtype)
{
    const double relative = dtype == MXA_DTYPE_F32 ? 0x1p-22 : dtype == MXA_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    return (isfinite(o) ? relative * fabs(o) : 0) + (dtype == MXA_DTYPE_F16 ? 0x1p-25 : 0);
}

static bool check_row(const tolerance *t, const row_bound *bound, int64_t row)
{
    const double lse = (double)result_floats(t->want.lse)[row],
                 sums = ((double)bound->keys + 3) * t->impl->sum_eps;
    /* One key alone has P = 1. */
    const bool alone = bound->keys == 1 && !t->a->sinks;
    const double round_p = alone ? 0 : t->round_p, logit = alone ? 0 : bound->logit,
                 exp2_eps = alone ? 0 : t->impl->exp2_eps;
    const double relative = expm1(2 * logit) + round_p + 2 * exp2_eps + 2 * sums;
    bool good =
        check_close("lse", row, lse, (double)result_floats(t->got->lse)[row],
                    bound->logit + t->impl->exp2_eps + sums + 0x1p-22 * (isfinite(lse) ? fabs(lse) : 0));
    const int64_t dim = t->a->p.head_dim_v;
    for (int64_t i = row * dim; i < (row + 1) * dim && good; i++) {
        const double o = saturated((double)result_floats(t->want.out)[i], t->a->p.out_dtype);
        const double limit = relative * (double)result_floats(t->weights.out)[i] +
                             (double)bound->keys * t->smallest + output_bound(o, t->a->p.out_dtype);
        good = check_close("o", i, o, (double)result_floats(t->got->out)[i], isnan(limit) ? 0 : limit);
    }
    return good;
}

/* Rows that no sequence has: zeros. */
static void check_tail(const tolerance *t)
{
    const mxa_problem *const p = &t->a->p;
    for (int64_t i = p->cu_seqlens_q ? t->a->cu_q[p->batch] : p->q_len; i < p->q_len; i++)
        for (int64_t h = 0; h < p->heads; h++)
            check_row(t, &(row_bound){ 0, 0 }, h * p->q_len + i);
}

void check_tolerance(const attention_problem *a, const mxa_attention_impl *impl, const attention_result *got)
{
    const bool f16 =
        a->recipe.pv == MXA_PV_F16 || (a->recipe.pv == MXA_PV_AUTO && a->p.v_dtype == MXA_DTYPE_F16);
    /* Half a unit of f16's subnormals; else what lies below fp32's normal numbers, which count as 0. */
    const double smallest = (impl->rounds_p && f16 ? 0x1p-25 : 0x1p-126) * largest_finite(&a->v);
    const double round_p = !impl->rounds_p ? 0 : f16 ? 0x1p-11 : 0x1p-8;
    const tolerance t = { a,       impl,    attention_run(a, reference(), 1), absolute_result(a), got,
                          round_p, smallest };
    for (int64_t b = 0; b < a->p.batch; b++)
        for (int64_t h = 0; h < a->p.heads; h++) {
            const bool packed = a->p.cu_seqlens_q;
            const mxa_tile_map map = mxa_problem_map(&a->p, &a->recipe, b);
            const tensor_row q = { packed ? 0 : b, h, packed ? a->cu_q[b] : 0 };
            const double *const k_norms = key_norms(a, b, h, map.kv_len);
            for (int64_t i = 0; i < map.q_len; i++) {
                const row_bound bound = bound_row(a, impl, &q, &map, i, k_norms);
                if (check_row(&t, &bound, (q.b * a->p.heads + h) * a->p.q_len + q.i + i))
                    continue;
                check_fail("recipe %s, q_len %lld, kv_len %lld, dims %lld and %lld", a->recipe_text,
                           (long long)map.q_len, (long long)map.kv_len, (long long)a->p.head_dim,
                           (long long)a->p.head_dim_v);
                return;
            }
        }
    check_tail(&t);
}
