/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry against the float64 reference within the tolerance of docs/numerics.md, section 12; and what
 * holds to the bit: threads, the other rows of a call, and the memory of masked keys do not change a row.
 */
#include "check_lists.h"

#include "attention_problem.h"
#include "core/bits.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const mxa_attention_impl *reference(void)
{
    const mxa_attention_impl *impl = mxa_attention_impls;
    while (impl[1].name)
        impl++;
    return impl;
}

static const float *floats(check_buf buf)
{
    return (const float *)(const void *)buf.data;
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

static bool check_row(const tolerance *t, const row_bound *bound, int64_t row)
{
    const double lse = (double)floats(t->want.lse)[row], sums = ((double)bound->keys + 3) * t->impl->sum_eps;
    /* One key alone has P = 1. */
    const bool alone = bound->keys == 1 && !t->a->sinks;
    const double round_p = alone ? 0 : t->round_p, logit = alone ? 0 : bound->logit,
                 exp2_eps = alone ? 0 : t->impl->exp2_eps;
    const double relative = expm1(2 * logit) + round_p + 2 * exp2_eps + 2 * sums;
    bool good =
        check_close("lse", row, lse, (double)floats(t->got->lse)[row],
                    bound->logit + t->impl->exp2_eps + sums + 0x1p-22 * (isfinite(lse) ? fabs(lse) : 0));
    const int64_t dim = t->a->p.head_dim_v;
    for (int64_t i = row * dim; i < (row + 1) * dim && good; i++) {
        const double o = (double)floats(t->want.out)[i];
        const double limit = relative * (double)floats(t->weights.out)[i] +
                             (double)bound->keys * t->smallest + 0x1p-22 * (isfinite(o) ? fabs(o) : 0);
        good = check_close("o", i, o, (double)floats(t->got->out)[i], isnan(limit) ? 0 : limit);
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

static void check_tolerance(const attention_problem *a, const mxa_attention_impl *impl,
                            const attention_result *got)
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

static void same_row(const char *what, const attention_result *want, int64_t want_row,
                     const attention_result *got, int64_t got_row, int64_t dim)
{
    const bool same = memcmp(floats(want->out) + want_row * dim, floats(got->out) + got_row * dim,
                             (size_t)dim * sizeof(float)) == 0 &&
                      memcmp(floats(want->lse) + want_row, floats(got->lse) + got_row, sizeof(float)) == 0;
    if (!same)
        check_fail("%s: row %lld has other bits than row %lld", what, (long long)got_row,
                   (long long)want_row);
}

/* Do rows of Q have second-level factors of their own, so that a call's other rows do not touch them? */
static bool rows_stand_alone(mxa_format low, mxa_format high, mxa_level level)
{
    const bool factor = low == MXA_FORMAT_INT8 || low == MXA_FORMAT_FP8 || low == MXA_FORMAT_NVFP4 ||
                        high == MXA_FORMAT_INT8 || high == MXA_FORMAT_NVFP4;
    return !factor || level == MXA_LEVEL_DEFAULT || level == MXA_LEVEL_TOKEN;
}

/* A chunk of the queries, alone, gives the rows of the whole call. */
static void check_chunk(const attention_problem *a, const mxa_attention_impl *impl,
                        const attention_result *whole)
{
    const mxa_problem *const p = &a->p;
    if (p->cu_seqlens_q || p->q_len < 2 ||
        !rows_stand_alone(a->recipe.low_q, a->recipe.high_q, a->recipe.level_q))
        return;
    const int64_t first = check_pick(0, p->q_len - 1), n = check_pick(1, mxa_min(p->q_len - first, 30));
    attention_problem chunk = *a;
    chunk.p.q_offset = (p->q_offset == MXA_OFFSET_AUTO ? p->kv_len - p->q_len : p->q_offset) + first;
    chunk.p.q_len = chunk.q.shape[2] = n;
    chunk.q.data = mxa_row(&a->q, 0, 0, first);
    const attention_result part = attention_run(&chunk, impl, 1);
    for (int64_t matrix = 0; matrix < p->batch * p->heads; matrix++)
        for (int64_t i = 0; i < n; i++)
            same_row("chunk", whole, matrix * p->q_len + first + i, &part, matrix * n + i, p->head_dim_v);
}

/* One key holds zeros, or Inf and NaN: rows that don't see it have the same bits. */
static void check_poison(const attention_problem *a, const mxa_attention_impl *impl)
{
    const mxa_problem *const p = &a->p;
    if (p->cu_seqlens_q || p->kv_len == 0 || p->q_len == 0 || a->recipe.smooth_k == MXA_SMOOTH_PREFIX ||
        a->recipe.smooth_k == MXA_SMOOTH_FULL)
        return;
    static const float poisons[3] = { NAN, INFINITY, -INFINITY };
    attention_problem with[2] = { *a, *a };
    const int64_t j = check_pick(0, p->kv_len - 1);
    attention_result results[2];
    for (int n = 0; n < 2; n++) {
        with[n].k = tensor_copy(&a->k);
        with[n].v = tensor_copy(&a->v);
        for (int64_t m = 0; m < p->batch * p->heads_kv; m++) {
            for (int64_t d = 0; d < p->head_dim; d++)
                tensor_set(&with[n].k, m / p->heads_kv, m % p->heads_kv, j, d, n ? poisons[d % 3] : 0.0f);
            for (int64_t d = 0; d < p->head_dim_v; d++)
                tensor_set(&with[n].v, m / p->heads_kv, m % p->heads_kv, j, d, n ? poisons[d % 3] : 0.0f);
        }
        results[n] = attention_run(&with[n], impl, 1);
    }
    const mxa_tile_map map = mxa_problem_map(p, &a->recipe, 0);
    for (int64_t row = 0; row < p->batch * p->heads * p->q_len; row++) {
        const int64_t position = row % p->q_len + map.q_offset;
        const mxa_span seen = mxa_visible_keys(&map, position, position);
        if (j < seen.first || j >= seen.end)
            same_row("masked key", &results[0], row, &results[1], row, p->head_dim_v);
    }
}

static void check_entry_once(const mxa_attention_impl *impl)
{
    attention_problem a;
    attention_problem_pick(&a);
    const attention_result got = attention_run(&a, impl, 1), threaded = attention_run(&a, impl, 3);
    check_same("out by 3 threads", got.out, threaded.out);
    check_same("lse by 3 threads", got.lse, threaded.lse);
    check_tolerance(&a, impl, &got);
    check_chunk(&a, impl, &got);
    check_poison(&a, impl);
}

/* Causal prefill, 9 query and 3 key/value heads of dim 64. */
static void bench_entry(const mxa_attention_impl *impl)
{
    enum { LENGTH = 512, HEADS = 9, HEADS_KV = 3, DIM = 64 };
    attention_problem a = { .recipe_text = "dma8" };
    mxa_recipe_default(&a.recipe);
    mxa_problem_default(&a.p, 1, HEADS, HEADS_KV, LENGTH, LENGTH, DIM);
    a.p.causal = true;
    float *const x = (float *)(void *)check_bytes(sizeof(float) * HEADS * LENGTH * DIM).data;
    for (int64_t i = 0; i < HEADS * LENGTH * DIM; i++)
        x[i] = check_normal();
    a.q = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, HEADS, LENGTH, DIM);
    a.k = a.v = mxa_tensor_contiguous(x, MXA_DTYPE_F32, 1, HEADS_KV, LENGTH, DIM);
    const attention_result r = attention_run(&a, impl, 1);
    mxa_plan *plan;
    if (mxa_plan_create(&a.p, &a.recipe, &plan) != MXA_OK || mxa_cpu_plan(plan, impl) != MXA_OK)
        return;
    const check_buf work = check_bytes(mxa_plan_work_bytes(plan));
    const mxa_attention_args args = { .size = sizeof args,
                                      .q = &a.q,
                                      .k = &a.k,
                                      .v = &a.v,
                                      .out = &r.tensor,
                                      .work = work.data,
                                      .work_bytes = work.bytes };
    for (check_timer t = { .flops = 2.0 * HEADS * LENGTH * LENGTH * DIM }; check_time(&t);)
        mxa_attention(plan, &args);
    mxa_plan_free(plan);
}

void check_attention(void)
{
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++) {
        if (!check_entry("attention", impl->name, "any", impl->needs))
            continue;
        while (check_round())
            check_entry_once(impl);
        if (check_benching())
            bench_entry(impl);
    }
}
