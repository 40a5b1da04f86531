/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_problem.h"

#include "core/bits.h"

#include <math.h>
#include <string.h>

/* Every format as low and high, every level, rule, kind of smoothing and P V type. */
static const char *const recipes[] = {
    "dma8",
    "dma4",
    "dma8-fp8,level_k=token_block",
    "dma4-fp8,pv=f16",
    "paper-mxfp4",
    "paper-nvfp4,level_q=head,level_k=tensor",
    "int8,level_k=head",
    "mxint8,rotate",
    "low=mxfp6,high=mxfp6-e2m3,diag=1,sink=0",
    "low=mxfp8,high=f16,diag=129,sink=40,smooth-k=full,rotate",
    "low=mxfp4,high=f32,diag=1,sink=128,rule_k=floor,rule_q=rceil,smooth-k",
    "low_q=int8,low_k=bf16,high=nvfp4,diag=200,sink=0,rotate",
    "low=mxfp8-e5m2,high=int8,level_q=tensor,level_k=token_block,smooth-k=given",
    "bf16",
    "low=f32,pv=f16",
    "low=f16",
};
enum { N_RECIPES = sizeof recipes / sizeof recipes[0] };

static size_t element_bytes(mxa_dtype dtype)
{
    return dtype == MXA_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

static void *element(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d)
{
    const int64_t offset = b * x->stride[0] + h * x->stride[1] + i * x->stride[2] + d;
    return (char *)x->data + offset * (int64_t)element_bytes(x->dtype);
}

float tensor_get(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d)
{
    const void *const at = element(x, b, h, i, d);
    if (x->dtype == MXA_DTYPE_F32)
        return *(const float *)at;
    const uint16_t half = *(const uint16_t *)at;
    return x->dtype == MXA_DTYPE_F16 ? mxa_f32_from_f16(half) : mxa_f32_from_bf16(half);
}

void tensor_set(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d, float value)
{
    void *const at = element(x, b, h, i, d);
    if (x->dtype == MXA_DTYPE_F32)
        *(float *)at = value;
    else
        *(uint16_t *)at = x->dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(value) : mxa_bf16_from_f32(value);
}

/* Heads or tokens outside, rows padded. */
static mxa_tensor pick_tensor(mxa_dtype dtype, int64_t batch, int64_t heads, int64_t len, int64_t dim)
{
    const int64_t row = dim + check_pick(0, 3) * check_pick(0, 5);
    const bool tokens_first = check_pick(0, 1);
    const check_buf memory = check_bytes((size_t)(batch * heads * len * row) * element_bytes(dtype));
    return (mxa_tensor){ .data = memory.data,
                         .dtype = dtype,
                         .shape = { batch, heads, len, dim },
                         .stride = { heads * len * row, tokens_first ? row : len * row,
                                     tokens_first ? heads * row : row, 1 } };
}

mxa_tensor tensor_copy(const mxa_tensor *x)
{
    mxa_tensor copy = pick_tensor(x->dtype, x->shape[0], x->shape[1], x->shape[2], x->shape[3]);
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++)
                memcpy(element(&copy, b, h, i, 0), element(x, b, h, i, 0),
                       (size_t)x->shape[3] * element_bytes(x->dtype));
    return copy;
}

/*
 * Normal numbers about an offset per channel; some rows are larger, some zero. Nonfinite: a few elements are
 * Inf or NaN, and some rows so large that products overflow fp32.
 */
static void fill(const mxa_tensor *x, float offset, bool nonfinite)
{
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++) {
                const int64_t kind = check_pick(0, 19);
                const float size = kind == 0                ? 0.0f
                                   : kind == 1              ? 20.0f
                                   : kind == 2 && nonfinite ? 1e30f
                                                            : 1.0f;
                for (int64_t d = 0; d < x->shape[3]; d++)
                    tensor_set(x, b, h, i, d, size * check_normal() + (d % 7 == 0 ? offset : 0.0f));
                static const float specials[3] = { NAN, INFINITY, -INFINITY };
                if (nonfinite && check_pick(0, 9) == 0)
                    tensor_set(x, b, h, i, check_pick(0, x->shape[3] - 1), specials[check_pick(0, 2)]);
            }
}

static int64_t pick_length(void)
{
    switch (check_pick(0, 5)) {
    case 0: return check_pick(0, 3);
    case 1: return 128 * check_pick(1, 2) + check_pick(-1, 1);
    case 2: return check_pick(200, 300);
    default: return check_pick(1, 90);
    }
}

static int64_t pick_dim(void)
{
    switch (check_pick(0, 3)) {
    case 0: return check_pick(1, 256);
    case 1: return 32 * check_pick(1, 4);
    default: return check_pick(1, 70);
    }
}

static void pick_mask(mxa_problem *p)
{
    p->causal = check_pick(0, 1);
    if (check_pick(0, 2) == 0)
        p->window_left = check_pick(0, 200);
    if (check_pick(0, 2) == 0)
        p->window_right = check_pick(0, 200);
    if (check_pick(0, 3) == 0)
        p->q_offset = check_pick(-200, 300);
    if (check_pick(0, 3) == 0)
        p->softcap = (float)check_pick(1, 50);
    if (check_pick(0, 3) == 0)
        p->softmax_scale *= (float)check_pick(-2, 2);
}

/* Ascending offsets, some sequences empty, the last ending at or before rows. */
static void pick_offsets(int32_t *cu, int64_t rows)
{
    cu[0] = 0;
    for (int b = 0; b < PROBLEM_SEQUENCES; b++)
        cu[b + 1] = (int32_t)(check_pick(0, 3) ? check_pick(cu[b], rows) : cu[b]);
}

static float *pick_floats(int64_t n)
{
    float *const x = (float *)(void *)check_bytes((size_t)n * sizeof(float)).data;
    for (int64_t i = 0; i < n; i++)
        x[i] = check_normal();
    return x;
}

static void start(attention_problem *a, const char *recipe)
{
    *a = (attention_problem){ .recipe_text = recipe };
    if (mxa_recipe_parse(recipe, &a->recipe) != MXA_OK)
        check_fail("%s: %s", recipe, mxa_error_text());
}

void attention_problem_prefill(attention_problem *a, const char *recipe, int64_t heads, int64_t heads_kv,
                               int64_t length, int64_t dim)
{
    start(a, recipe);
    mxa_problem *const p = &a->p;
    mxa_problem_default(p, 1, heads, heads_kv, length, length, dim);
    p->causal = true;
    p->q_dtype = p->k_dtype = p->v_dtype = MXA_DTYPE_BF16;
    a->q = pick_tensor(MXA_DTYPE_BF16, 1, heads, length, dim);
    a->k = pick_tensor(MXA_DTYPE_BF16, 1, heads_kv, length, dim);
    a->v = pick_tensor(MXA_DTYPE_BF16, 1, heads_kv, length, dim);
    fill(&a->q, 0.0f, false);
    fill(&a->k, 0.0f, false);
    fill(&a->v, 0.0f, false);
}

void attention_problem_pick(attention_problem *a)
{
    start(a, recipes[check_pick(0, N_RECIPES - 1)]);
    const bool packed = check_pick(0, 3) == 0;
    const int64_t batch = packed ? PROBLEM_SEQUENCES : check_pick(1, 2), heads_kv = check_pick(1, 2);
    mxa_problem *const p = &a->p;
    mxa_problem_default(p, batch, heads_kv * check_pick(1, 3), heads_kv, pick_length(), pick_length(),
                        pick_dim());
    p->head_dim_v = check_pick(0, 1) ? p->head_dim : pick_dim();
    p->q_dtype = (mxa_dtype)check_pick(0, 2);
    p->k_dtype = (mxa_dtype)check_pick(0, 2);
    p->v_dtype = (mxa_dtype)check_pick(0, 2);
    pick_mask(p);
    if (packed) {
        pick_offsets(a->cu_q, p->q_len);
        pick_offsets(a->cu_k, p->kv_len);
    }
    const int64_t outer = packed ? 1 : batch;
    a->q = pick_tensor(p->q_dtype, outer, p->heads, p->q_len, p->head_dim);
    a->k = pick_tensor(p->k_dtype, outer, heads_kv, p->kv_len, p->head_dim);
    a->v = pick_tensor(p->v_dtype, outer, heads_kv, p->kv_len, p->head_dim_v);
    const bool nonfinite = check_pick(0, 4) == 0;
    fill(&a->q, 0.0f, nonfinite);
    fill(&a->k, check_pick(0, 2) ? 0.0f : 6.0f, nonfinite);
    fill(&a->v, 0.0f, nonfinite);
    a->sinks = check_pick(0, 2) ? NULL : pick_floats(p->heads);
    a->mean = a->recipe.smooth_k == MXA_SMOOTH_GIVEN ? pick_floats(batch * heads_kv * p->head_dim) : NULL;
    p->cu_seqlens_q = packed ? a->cu_q : NULL;
    p->cu_seqlens_k = packed ? a->cu_k : NULL;
}

attention_result attention_run(const attention_problem *a, const mxa_attention_impl *impl, int threads)
{
    mxa_problem p = a->p;
    p.threads = threads;
    p.out_dtype = MXA_DTYPE_F32;
    p.cu_seqlens_q = p.cu_seqlens_q ? a->cu_q : NULL;
    p.cu_seqlens_k = p.cu_seqlens_k ? a->cu_k : NULL;
    const int64_t batch = p.cu_seqlens_q ? 1 : p.batch, rows = batch * p.heads * p.q_len;
    attention_result r = { check_bytes((size_t)(rows * p.head_dim_v) * sizeof(float)),
                           check_bytes((size_t)rows * sizeof(float)),
                           { 0 } };
    r.tensor = mxa_tensor_contiguous(r.out.data, MXA_DTYPE_F32, batch, p.heads, p.q_len, p.head_dim_v);
    mxa_plan *plan = NULL;
    mxa_status status = mxa_plan_create(&p, &a->recipe, &plan);
    if (status == MXA_OK)
        status = mxa_cpu_plan(plan, impl);
    if (status == MXA_OK) {
        const check_buf work = check_bytes(mxa_plan_work_bytes(plan));
        const mxa_attention_args args = { .size = sizeof args,
                                          .q = &a->q,
                                          .k = &a->k,
                                          .v = &a->v,
                                          .out = &r.tensor,
                                          .lse = (float *)(void *)r.lse.data,
                                          .sinks = a->sinks,
                                          .mean = a->mean,
                                          .work = work.data,
                                          .work_bytes = work.bytes };
        status = mxa_attention(plan, &args);
        check_guards("workspace", work);
    }
    if (status != MXA_OK)
        check_fail("%s, %s: %s", impl->name, a->recipe_text, mxa_error_text());
    check_guards("out", r.out);
    check_guards("lse", r.lse);
    mxa_plan_free(plan);
    return r;
}
