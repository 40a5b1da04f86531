/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry against the float64 reference within the tolerance of docs/numerics.md, section 12; and what
 * holds to the bit: threads, the other rows of a call, and the memory of masked keys do not change a row.
 */
#include "check_lists.h"

#include "attention_masked.h"
#include "attention_problem.h"
#include "attention_tolerance.h"
#include "core/bits.h"

#include <float.h>
#include <math.h>
#include <string.h>

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

static attention_result run_alone(const attention_problem *a, const mxa_attention_impl *impl)
{
    return attention_run(a, impl, 1);
}

/* Does an entry run a problem? Some leave formats to the next. */
static bool runs(const attention_problem *a, const mxa_attention_impl *impl)
{
    mxa_plan *plan = NULL;
    const bool fits =
        mxa_plan_create(&a->p, &a->recipe, &plan) == MXA_OK && !(impl->refuses && impl->refuses(plan));
    mxa_plan_free(plan);
    return fits;
}

static void check_entry_once(const mxa_attention_impl *impl)
{
    attention_problem a;
    do
        attention_problem_pick(&a);
    while (!runs(&a, impl));
    const attention_result got = attention_run(&a, impl, 1), threaded = attention_run(&a, impl, 3);
    check_same("out by 3 threads", got.out, threaded.out);
    check_same("lse by 3 threads", got.lse, threaded.lse);
    check_tolerance(&a, impl, &got);
    check_chunk(&a, impl, &got);
    check_masked(&a, run_alone, impl);
}

/* Every length up to two tiles and more: each tail of a tile, of a block of keys and of a vector. */
static void check_lengths(const mxa_attention_impl *impl)
{
    enum { LONGEST = 300, HEADS = 2, HEADS_KV = 1, DIM = 32 };
    static const char *const recipes[] = { "dma8", "dma4", "bf16" };
    for (int length; check_each(&length, LONGEST);)
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
            attention_problem a;
            attention_problem_prefill(&a, recipes[i], HEADS, HEADS_KV, length, DIM);
            const attention_result got = attention_run(&a, impl, 1);
            check_tolerance(&a, impl, &got);
        }
}

static void multiply(const mxa_tensor *x, float factor)
{
    for (int64_t h = 0; h < x->shape[1]; h++)
        for (int64_t i = 0; i < x->shape[2]; i++)
            for (int64_t d = 0; d < x->shape[3]; d++)
                tensor_set(x, 0, h, i, d, factor * tensor_get(x, 0, h, i, d));
}

/* Logits whose last bit is more than 2^x holds, and products next to the smallest and the largest numbers. */
static void check_extremes(const mxa_attention_impl *impl)
{
    enum { LENGTH = 300, HEADS = 4, HEADS_KV = 1, DIM = 64, RECIPES = 4, SIZES = 4 };
    static const char *const recipes[RECIPES] = { "dma8", "dma4", "bf16", "mxfp8" };
    static const float sizes[SIZES] = { 0x1p10f, 0x1p-60f, 0x1p-20f, 0x1p58f };
    static const float scales[SIZES] = { 0x1p40f, 0x1p120f, 0x1p42f, 0x1p-116f };
    for (int n; check_each(&n, RECIPES * SIZES);) {
        attention_problem a;
        attention_problem_prefill(&a, recipes[n % RECIPES], HEADS, HEADS_KV, LENGTH, DIM);
        multiply(&a.q, sizes[(n - 1) / RECIPES]);
        multiply(&a.k, sizes[(n - 1) / RECIPES]);
        a.p.softmax_scale = scales[(n - 1) / RECIPES];
        const attention_result got = attention_run(&a, impl, 1);
        check_tolerance(&a, impl, &got);
    }
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
    /* All but the reference, which is what they are compared with. */
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl[1].name; impl++)
        if (check_entry("lengths", impl->name, "any", impl->needs))
            check_lengths(impl);
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl[1].name; impl++)
        if (check_entry("extremes", impl->name, "any", impl->needs))
            check_extremes(impl);
}
