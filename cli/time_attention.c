/* SPDX-License-Identifier: Apache-2.0 */
#include "time_shape.h"

#include "attend.h"
#include "cli.h"

#include <stdlib.h>

#define LEAST_RUNS  10
#define MIN_SECONDS 0.5

static const char *const recipes[ATTENTION_VARIANTS] = { "dma8", "dma4", "paper-mxfp4", "bf16", "low=f32" };
static const char *const recipes_cuda[ATTENTION_VARIANTS] = { "dma8", "dma4", "dma8-fp8", "dma4-fp8",
                                                              "bf16" };

static bool run_call(void *call)
{
    return attend_run(call);
}

/* Query i of a causal call sees i + kv_len - q_len + 1 keys, if that is more than none. */
static double visible_pairs(const shape *s)
{
    if (!s->causal)
        return (double)s->q_len * (double)s->kv_len;
    const int64_t rows = s->q_len < s->kv_len ? s->q_len : s->kv_len;
    return (double)rows * ((double)s->kv_len - (double)(rows - 1) / 2);
}

/* Two multiplications with an addition each for every visible pair and dimension: q k and p v. */
static double operations(const shape *s)
{
    return 2 * visible_pairs(s) * (double)(s->batch * s->heads) * (double)(s->dim + s->dim_v);
}

/* A random tensor [batch][heads][rows][dim] of the shape's type. False after a message. */
static bool make_tensor(const shape *s, int64_t heads, int64_t rows, int64_t dim, uint64_t seed,
                        mxa_tensor *x)
{
    void *data = random_tensor(s->type, s->batch * heads * rows * dim, seed);
    *x = mxa_tensor_contiguous(data, s->type, s->batch, heads, rows, dim);
    return data != NULL;
}

static bool make_input(const shape *s, attention_input *input)
{
    *input = INPUT_NONE;
    input->file.path = s->name;
    input->rank = 4;
    mxa_problem *p = &input->problem;
    mxa_problem_default(p, s->batch, s->heads, s->heads_kv, s->q_len, s->kv_len, s->dim);
    p->head_dim_v = s->dim_v;
    p->q_dtype = p->k_dtype = p->v_dtype = s->type;
    p->causal = s->causal;
    return make_tensor(s, s->heads, s->q_len, s->dim, 1, &input->q) &&
           make_tensor(s, s->heads_kv, s->kv_len, s->dim, 2, &input->k) &&
           make_tensor(s, s->heads_kv, s->kv_len, s->dim_v, 3, &input->v);
}

static bool open_recipe(const attention_input *input, const char *name, void *out, attend_call *call)
{
    mxa_recipe recipe;
    if (mxa_recipe_parse(name, &recipe) == MXA_OK)
        return attend_open(call, input, &recipe, input->q.dtype, out, NULL);
    cli_fail("%s: %s", name, mxa_error_text());
    return false;
}

bool time_attention(const shape *s, int threads, mxa_device device, shape_time times[ATTENTION_VARIANTS])
{
    const char *const *const names = device_is_cuda(device) ? recipes_cuda : recipes;
    attention_input input;
    attend_call calls[ATTENTION_VARIANTS] = { 0 };
    timed_call contenders[ATTENTION_VARIANTS];
    timing results[ATTENTION_VARIANTS];
    const uint64_t out_bytes =
        (uint64_t)(s->batch * s->heads * s->q_len * s->dim_v * input_dtype_bytes(s->type));
    bool ok = make_input(s, &input);
    input.problem.threads = threads;
    input.problem.device = device;
    void *out = ok ? cli_alloc(out_bytes, "the output") : NULL;
    ok = out != NULL;
    for (int i = 0; i < ATTENTION_VARIANTS && ok; i++) {
        ok = open_recipe(&input, names[i], out, &calls[i]);
        contenders[i] = (timed_call){ run_call, &calls[i] };
    }
    ok = ok && timing_measure(contenders, ATTENTION_VARIANTS, LEAST_RUNS, MIN_SECONDS, results);
    for (int i = 0; i < ATTENTION_VARIANTS; i++) {
        if (ok)
            times[i] = (shape_time){ names[i], operations(s), results[i] };
        attend_close(&calls[i]);
    }
    free(out);
    input_close(&input);
    return ok;
}
