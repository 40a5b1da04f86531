/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention to a KV cache: every entry against the float64 reference, within a bound computed from the
 * decoded rows; and what holds to the bit: threads, other queries, and what lies in the unused rows of
 * pages.
 */
#include "check_lists.h"

#include "cache/cache.h"
#include "check.h"
#include "cpu/kv_attend_cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, QUERIES_MAX = 70 };

static const char *const recipes[] = {
    "dma4,v=int8",
    "dma4,v=mxfp4,rotate-v",
    "dma8,v=f16",
    "dma8,diag=300,v=int8,pv=f16",
    "dma4-fp8,sink=200,v=fp8",
    "paper-nvfp4,v=nvfp4",
    "paper-mxfp4,diag=0,v=mxfp8",
    "low_q=int8,low_k=mxfp4,v=mxfp4",
    "int8,v=int8",
    "mxint8,v=mxint8",
    "bf16",
    "bf16,high=f32,v=f32",
};

/* A cache with tokens, and queries to it. */
typedef struct problem {
    mxa_cache *cache;
    mxa_recipe recipe;
    int64_t heads, n, counts[BATCH];
    mxa_tensor q;
    float softmax_scale, softcap;
    int64_t window_left;
    float *sinks;
    const float *g_v;
} problem;

typedef struct result {
    check_buf out, lse, work;
    mxa_kv_job job; /* its queries lie in work */
    mxa_tensor tensor;
    mxa_kv_view view;
} result;

static float *f32(check_buf buf)
{
    return (float *)(void *)buf.data;
}

static mxa_tensor random_tensor(int64_t heads, int64_t n, int64_t dim, bool nonfinite)
{
    float *const x = check_floats(BATCH * heads * n * dim, nonfinite);
    return mxa_tensor_contiguous(x, MXA_DTYPE_F32, BATCH, heads, n, dim);
}

/* Of channels, so unlike that a mistaken one shows. */
static const float *pick_factors(int64_t n)
{
    float *const g = f32(check_bytes((size_t)n * sizeof *g));
    for (int64_t i = 0; i < n; i++)
        g[i] = ldexpf(0.02f + 0.001f * (float)check_pick(0, 9), (int)check_pick(0, 6));
    return g;
}

/* Most caches are short; some have several segments of keys. */
static bool fill_cache(problem *p, int64_t heads_kv, int64_t dim, int64_t dim_v, bool nonfinite)
{
    mxa_cache_opts opts;
    mxa_cache_default(&opts, BATCH, heads_kv, dim);
    opts.head_dim_v = dim_v;
    opts.page_tokens = 16 * check_pick(1, 16);
    opts.recipe = &p->recipe;
    opts.rewind = QUERIES_MAX;
    opts.threads = 1;
    const bool by_token = p->recipe.v != MXA_FORMAT_INT8 && p->recipe.v != MXA_FORMAT_FP8;
    opts.g_v = p->g_v = by_token || check_pick(0, 1) ? NULL : pick_factors(heads_kv * dim_v);
    const bool segments = p->heads * p->n <= 16 && check_pick(0, 3) == 0;
    const int64_t longest = segments ? check_pick(2048, 4200) : check_pick(QUERIES_MAX, 500);
    const int64_t counts[BATCH] = { longest, check_pick(QUERIES_MAX, longest) };
    const mxa_tensor k = random_tensor(heads_kv, longest, dim, nonfinite),
                     v = random_tensor(heads_kv, longest, dim_v, nonfinite);
    return mxa_cache_create(&opts, &p->cache) == MXA_OK &&
           mxa_cache_append(p->cache, &k, &v, counts) == MXA_OK;
}

static bool pick_problem(problem *p)
{
    *p = (problem){ 0 };
    const int64_t heads_kv = check_pick(1, 2),
                  group = check_pick(0, 15) ? check_pick(1, 7) : check_pick(60, 70);
    const int64_t dim = check_pick(0, 1) ? 32 * check_pick(1, 4) : check_pick(1, 200);
    const int64_t dim_v = check_pick(0, 1) ? 16 * check_pick(1, 8) : check_pick(1, 200);
    const bool nonfinite = check_pick(0, 7) == 0;
    const int64_t n = check_pick(0, 3) ? check_pick(1, 4) : check_pick(1, QUERIES_MAX);
    p->heads = heads_kv * group;
    p->n = n;
    p->counts[0] = n;
    p->counts[1] = check_pick(0, n);
    p->softmax_scale = (float)(check_pick(0, 9) ? 1.0 / sqrt((double)dim) : -0.7);
    p->softcap = check_pick(0, 3) ? 0.0f : 3.0f;
    p->window_left = check_pick(0, 2) ? MXA_FAR : check_pick(0, 400);
    p->q = random_tensor(p->heads, n, dim, false);
    p->sinks = check_pick(0, 2) ? NULL : check_floats(p->heads, false);
    const int64_t recipe = check_pick(0, sizeof recipes / sizeof *recipes - 1);
    return mxa_recipe_parse(recipes[recipe], &p->recipe) == MXA_OK &&
           fill_cache(p, heads_kv, dim, dim_v, nonfinite);
}

static void run(const problem *p, const mxa_kv_impl *impl, const int64_t *counts, int threads, result *r)
{
    const int64_t rows = BATCH * p->heads * p->n, dim_v = p->cache->opts.head_dim_v;
    r->view = mxa_cache_view(p->cache);
    r->out = check_bytes((size_t)(rows * dim_v) * sizeof(float));
    r->lse = check_bytes((size_t)rows * sizeof(float));
    r->tensor = mxa_tensor_contiguous(r->out.data, MXA_DTYPE_F32, BATCH, p->heads, p->n, dim_v);
    int64_t longest = 0;
    for (int64_t b = 0; b < BATCH; b++)
        longest = mxa_max(longest, p->cache->sequences[b].length);
    const size_t bytes =
        mxa_kv_work_bytes(&r->view, p->cache->q, BATCH, p->heads, p->n, longest, threads, impl);
    r->work = check_bytes(bytes);
    r->job = (mxa_kv_job){
        .view = &r->view,
        .recipe = &p->cache->recipe,
        .out = &r->tensor,
        .counts = counts,
        .lse = f32(r->lse),
        .sinks = p->sinks,
        .softmax_scale = p->softmax_scale,
        .softcap = p->softcap,
        .heads = p->heads,
        .n = p->n,
        .window_left = p->window_left,
    };
    mxa_kv_attend(&r->job, p->cache->q, &p->q, threads, impl, r->work.data);
    check_guards("work", r->work);
    check_guards("out", r->out);
    check_guards("lse", r->lse);
}

/* What the bound of one row is made of. */
typedef struct magnitudes {
    double dot;   /* largest sum of |q k| times the factors */
    double logit; /* largest |logit| before a softcap, parts that cancel included */
    double lse;
    double keys;
} magnitudes;

static double decode(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, const float *g,
                     int64_t dim, float *out)
{
    mxa_decode_pick(info->format)->fn(info, codes, scales, 1, dim, out, dim);
    return g ? (double)*g : 1.0;
}

/* V of a key as it takes part: |V| with its factor. */
static void load_v(const result *r, const mxa_kv_sequence *s, int copy, int64_t h_kv, int64_t j, double *v)
{
    float row[MXA_DIM_MAX];
    const int v_copy = mxa_kv_v_copy(r->view.layout, copy);
    const mxa_kv_rows rows = mxa_kv_rows_at(&r->view, v_copy, MXA_KV_V, s, h_kv, j, j + 1);
    const double g = decode(rows.part->copy.info, rows.codes, rows.scales, rows.g, rows.part->dim, row);
    const float *const channels_g = mxa_kv_channels_g(&r->view, v_copy, h_kv);
    for (int64_t d = 0; d < rows.part->dim; d++)
        v[d] = fabs(g * (channels_g ? (double)channels_g[d] : 1.0) * (double)row[d]);
}

/* |logit| and the dot product's magnitude of query row at and key j. */
static double logit_size(const result *r, const mxa_kv_sequence *s, int copy, int64_t h_kv, int64_t at,
                         int64_t j, double *dot)
{
    float q[MXA_DIM_MAX], k[MXA_DIM_MAX];
    const mxa_kv_query *const from = &r->job.q[copy];
    const mxa_kv_rows rows = mxa_kv_rows_at(&r->view, copy, MXA_KV_K, s, h_kv, j, j + 1);
    const int64_t dim = rows.part->dim;
    const double g_q = decode(from->copy->info, from->codes + at * from->row_bytes,
                              from->scale_cols ? from->scales + at * from->scale_cols : NULL,
                              from->g ? from->g + at : NULL, dim, q);
    const double g_k = decode(rows.part->copy.info, rows.codes, rows.scales, rows.g, dim, k);
    double sum = 0;
    for (int64_t d = 0; d < dim; d++)
        sum += fabs((double)q[d] * (double)k[d]);
    *dot = fabs((double)r->job.softmax_scale * g_q * g_k) * sum;
    return *dot + (rows.part->copy.smooth ? fabs((double)r->job.bias[at]) : 0.0);
}

/*
 * docs/numerics.md, section 12. Largest values over the visible keys stand for the weighted sums, so that
 * this is no tighter than it: tests/python has the tight one.
 */
static void check_row(const result *want, const result *got, int64_t b, int64_t h, int64_t i, int64_t count)
{
    const mxa_kv_job *const job = &want->job;
    const mxa_kv_sequence *const s = &want->view.sequences[b];
    const mxa_tile_map map = mxa_kv_map(job->recipe, s->length, count, job->window_left);
    const int64_t at = (b * job->heads + h) * job->n + i, position = map.q_offset + i;
    const int64_t h_kv = h / (job->heads / want->view.layout->heads_kv), dim_v = want->tensor.shape[3];
    const mxa_span seen = mxa_visible_keys(&map, position, position);
    magnitudes m = { .keys = (double)(seen.end - seen.first) };
    double v_max[MXA_DIM_MAX] = { 0 }, v[MXA_DIM_MAX], row_max = 0;
    for (int64_t j = seen.first; j < seen.end; j++) {
        const bool high = mxa_tile_is_high(&map, mxa_tile_of(position), j / MXA_TILE);
        double dot;
        m.logit = fmax(m.logit, logit_size(want, s, high ? MXA_HIGH : MXA_LOW, h_kv, at, j, &dot));
        m.dot = fmax(m.dot, dot);
        load_v(want, s, high ? MXA_HIGH : MXA_LOW, h_kv, j, v);
        for (int64_t d = 0; d < dim_v; d++)
            v_max[d] = fmax(v_max[d], isfinite(v[d]) ? v[d] : 0);
    }
    const double lse = (double)f32(want->lse)[at], size = isfinite(lse) ? fabs(lse) : 0, unit = 0x1p-24;
    const double dims = MXA_DIM_MAX, roundings = 8;
    const double delta =
        dims * unit * m.dot + roundings * unit * (m.logit + size) + (double)job->softcap * 0x1p-20;
    const double sums = (m.keys + MXA_TILE) * unit, exp2_error = 0x1p-21;
    check_close("lse", at, lse, (double)f32(got->lse)[at], delta + exp2_error + sums + 0x1p-22 * size);
    for (int64_t d = 0; d < dim_v; d++)
        row_max = fmax(row_max, v_max[d]);
    const double relative = expm1(2 * delta) + 2 * exp2_error + 2 * sums + unit;
    const bool turned = want->view.layout->part[MXA_LOW][MXA_KV_V].copy.rotate;
    for (int64_t d = 0; d < dim_v; d++) {
        const double scale = turned ? row_max * (double)dim_v : v_max[d];
        const double bound = scale == 0 ? 0 : (relative + (m.keys + MXA_TILE) * 0x1p-125) * scale;
        const int64_t o = at * dim_v + d;
        check_close("out", o, (double)f32(want->out)[o], (double)f32(got->out)[o], bound);
    }
}

static void same_row(const char *what, const result *a, int64_t row_a, const result *b, int64_t row_b)
{
    const size_t bytes = (size_t)a->tensor.shape[3] * sizeof(float);
    if (memcmp(a->out.data + (size_t)row_a * bytes, b->out.data + (size_t)row_b * bytes, bytes) != 0 ||
        memcmp(f32(a->lse) + row_a, f32(b->lse) + row_b, sizeof(float)) != 0)
        check_fail("%s: row %lld has other bits than row %lld", what, (long long)row_b, (long long)row_a);
}

/* The newest query alone, with a batch mate that has none, has the bits that it has among others. */
static void check_alone(const problem *p, const mxa_kv_impl *impl, const result *whole)
{
    problem alone = *p;
    const int64_t counts[BATCH] = { 1, 0 };
    alone.n = alone.q.shape[2] = 1;
    alone.q.data = mxa_row(&p->q, 0, 0, p->n - 1);
    result r;
    run(&alone, impl, counts, 1, &r);
    for (int64_t h = 0; h < p->heads; h++)
        same_row("alone", whole, h * p->n + p->n - 1, &r, h);
}

/* Unused rows of the last pages, and free pages, hold 0xFF: no bit changes. */
static void poison(mxa_cache *c)
{
    const mxa_kv_layout *const l = &c->layout;
    const mxa_kv_view view = mxa_cache_view(c);
    for (int64_t b = 0; b < BATCH; b++)
        for (int copy = 0; copy < MXA_COPIES; copy++)
            for (int64_t h = 0; h < l->heads_kv; h++)
                for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
                    const mxa_kv_sequence *const s = &view.sequences[b];
                    const int64_t end = mxa_cache_pages_of(c, s->length) * l->page_tokens;
                    if (!l->part[copy][operand].copy.info || s->length == end ||
                        s->table[copy][s->length / l->page_tokens] < 0)
                        continue;
                    const mxa_kv_rows rows = mxa_kv_rows_at(&view, copy, operand, s, h, s->length, end);
                    memset(rows.codes, 0xFF, (size_t)(rows.n * rows.part->row_bytes));
                    if (rows.scales)
                        memset(rows.scales, 0xFF, (size_t)(rows.n * rows.part->scale_cols));
                    if (rows.g)
                        memset(rows.g, 0xFF, (size_t)rows.n * sizeof *rows.g);
                }
}

static void check_once(const mxa_kv_impl *impl, const mxa_kv_impl *reference)
{
    problem p;
    if (!pick_problem(&p)) {
        check_fail("no cache: %s", mxa_error_text());
        mxa_cache_free(p.cache);
        return;
    }
    result want, got, threaded, poisoned;
    run(&p, reference, p.counts, 1, &want);
    run(&p, impl, p.counts, 1, &got);
    run(&p, impl, p.counts, 3, &threaded);
    check_same("out by 3 threads", got.out, threaded.out);
    check_same("lse by 3 threads", got.lse, threaded.lse);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t i = 0; i < p.counts[b]; i += 1 + p.counts[b] / 4)
                check_row(&want, &got, b, h, i, p.counts[b]);
    check_alone(&p, impl, &got);
    poison(p.cache);
    run(&p, impl, p.counts, 1, &poisoned);
    check_same("out beside poison", got.out, poisoned.out);
    check_same("lse beside poison", got.lse, poisoned.lse);
    mxa_cache_free(p.cache);
}

/* One query of 32 heads to 8 of 4096 keys, MXFP4 and INT8. */
static void bench_entry(const mxa_kv_impl *impl)
{
    enum { HEADS = 32, HEADS_KV = 8, LENGTH = 4096, DIM = 128 };
    problem p = { .heads = HEADS, .n = 1, .counts = { 1, 1 }, .softmax_scale = 0.1f, .window_left = MXA_FAR };
    p.q = random_tensor(HEADS, 1, DIM, false);
    mxa_cache_opts opts;
    mxa_cache_default(&opts, BATCH, HEADS_KV, DIM);
    opts.recipe = &p.recipe;
    const mxa_tensor k = random_tensor(HEADS_KV, LENGTH, DIM, false);
    if (mxa_recipe_parse(recipes[0], &p.recipe) != MXA_OK || mxa_cache_create(&opts, &p.cache) != MXA_OK)
        return;
    result r;
    if (mxa_cache_append(p.cache, &k, &k, NULL) == MXA_OK)
        for (check_timer t = { .bytes = (double)mxa_cache_used_bytes(p.cache) }; check_time(&t);)
            run(&p, impl, p.counts, 1, &r);
    mxa_cache_free(p.cache);
}

void check_cache(void)
{
    const mxa_kv_impl *reference = mxa_kv_impls;
    while (reference[1].name)
        reference++;
    for (const mxa_kv_impl *impl = mxa_kv_impls; impl->name; impl++) {
        if (!check_entry("cache", impl->name, "any", impl->needs))
            continue;
        while (check_round())
            check_once(impl, reference);
        if (check_benching())
            bench_entry(impl);
    }
}
