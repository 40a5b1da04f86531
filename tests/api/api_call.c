/* SPDX-License-Identifier: Apache-2.0 */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

const char *const api_recipes[] = { "exact",       "bf16",        "dma8",  "dma4", "dma8-fp8", "dma4-fp8",
                                    "paper-mxfp4", "paper-nvfp4", "int8",  "fp8",  "mxint8",   "mxfp8",
                                    "mxfp6",       "mxfp4",       "nvfp4", NULL };

void api_tensors_of(api_call *call)
{
    const mxa_problem *p = &call->problem;
    const int64_t batch = p->cu_seqlens_q == NULL ? p->batch : 1;
    call->q = api_tensor(p->q_dtype, batch, p->heads, p->q_len, p->head_dim);
    call->k = api_tensor(p->k_dtype, batch, p->heads_kv, p->kv_len, p->head_dim);
    call->v = api_tensor(p->v_dtype, batch, p->heads_kv, p->kv_len, p->head_dim_v);
    call->out = api_tensor(p->out_dtype, batch, p->heads, p->q_len, p->head_dim_v);
    call->lse = api_floats((size_t)(batch * p->heads * p->q_len));
}

api_call api_call_new(int64_t batch, int64_t heads, int64_t heads_kv, int64_t q_len, int64_t kv_len,
                      int64_t head_dim)
{
    api_call call = { .recipe = "exact" };
    mxa_problem_default(&call.problem, batch, heads, heads_kv, q_len, kv_len, head_dim);
    api_tensors_of(&call);
    return call;
}

void api_random_inputs(api_call *call, uint64_t seed)
{
    api_set_normal(&call->q, seed + 1);
    api_set_normal(&call->k, seed + 2);
    api_set_normal(&call->v, seed + 3);
}

static void set_lossless_rows(const mxa_tensor *t, double bias, int64_t first, uint64_t *seed)
{
    for (int64_t i = 0; i < t->shape[0] * t->shape[1] * t->shape[2]; i++) {
        const int64_t b = i / (t->shape[1] * t->shape[2]), h = i / t->shape[2] % t->shape[1],
                      s = i % t->shape[2];
        for (int64_t d = 0; d < t->shape[3]; d++)
            api_set(t, b, h, s, d, d % 3 == 0 ? bias : 0);
        if (s >= first) {
            const int64_t d = api_pick(seed, 0, t->shape[3] - 1);
            const double sign = api_pick(seed, 0, 1) ? 1 : -1;
            api_set(t, b, h, s, d, (d % 3 == 0 ? bias : 0) + sign * ldexp(1, (int)api_pick(seed, -1, 2)));
        }
    }
}

/* V: multiples of 1/8 below 4, exact in 16 bits. */
static void set_lossless_values(const mxa_tensor *t, uint64_t *seed)
{
    for (int64_t i = 0; i < t->shape[0] * t->shape[1] * t->shape[2]; i++)
        for (int64_t d = 0; d < t->shape[3]; d++)
            api_set(t, i / (t->shape[1] * t->shape[2]), i / t->shape[2] % t->shape[1], i % t->shape[2], d,
                    (double)api_pick(seed, -31, 31) / 8);
}

void api_lossless_inputs(api_call *call, double bias, uint64_t seed)
{
    const int64_t prefix =
        call->problem.kv_len > MXA_TILE ? MXA_TILE : 0; /* the keys that smooth-K averages */
    set_lossless_rows(&call->q, 0, 0, &seed);
    set_lossless_rows(&call->k, bias, prefix, &seed);
    set_lossless_values(&call->v, &seed);
}

mxa_status api_try(const api_call *call)
{
    mxa_recipe recipe;
    api_ok(mxa_recipe_parse(call->recipe, &recipe));
    if (call->mean != NULL)
        recipe.smooth_k = MXA_SMOOTH_GIVEN;
    mxa_plan *plan = NULL;
    mxa_status status = mxa_plan_create(&call->problem, &recipe, &plan);
    if (status != MXA_OK)
        return status;
    const size_t work_bytes = mxa_plan_work_bytes(plan);
    mxa_attention_args args = { .size = sizeof args,
                                .q = &call->q,
                                .k = &call->k,
                                .v = &call->v,
                                .out = &call->out,
                                .lse = call->lse,
                                .sinks = call->sinks,
                                .mean = call->mean,
                                .g_q = call->g_q,
                                .g_k = call->g_k,
                                .work = api_bytes(work_bytes),
                                .work_bytes = work_bytes };
    status = mxa_attention(plan, &args);
    mxa_plan_free(plan);
    return status;
}

void api_attend(const api_call *call)
{
    api_ok(api_try(call));
}
