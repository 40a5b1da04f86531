/* SPDX-License-Identifier: Apache-2.0 */
#include "time_shape.h"

#include "attend.h"
#include "cli.h"
#include "progress.h"

#include <stdlib.h>

#define LEAST_RUNS  10
#define MIN_SECONDS 0.5

static const char *const recipes[ATTENTION_VARIANTS] = { "dma8", "dma4", "paper-mxfp4", "bf16", "low=f32" };

static bool run_call(void *call)
{
    return attend_run(call);
}

/* Two multiplications with an addition each for every visible pair and dimension: q k and p v. */
static double operations(const shape *s)
{
    double pairs = 0;
    for (int64_t i = 0; i < s->q_len; i++) {
        const int64_t last = i + s->kv_len - s->q_len;
        const int64_t visible = !s->causal ? s->kv_len : last < 0 ? 0 : last + 1;
        pairs += (double)visible;
    }
    return 2 * pairs * (double)(s->batch * s->heads) * (double)(s->dim + s->dim_v);
}

static bool make_input(const shape *s, attention_input *input)
{
    *input = INPUT_NONE;
    input->file.path = s->name;
    input->rank = 4;
    const int64_t q_elements = s->batch * s->heads * s->q_len * s->dim;
    const int64_t k_rows = s->batch * s->heads_kv * s->kv_len;
    void *q = random_tensor(s->type, q_elements, 1), *k = random_tensor(s->type, k_rows * s->dim, 2);
    void *v = random_tensor(s->type, k_rows * s->dim_v, 3);
    input->q = mxa_tensor_contiguous(q, s->type, s->batch, s->heads, s->q_len, s->dim);
    input->k = mxa_tensor_contiguous(k, s->type, s->batch, s->heads_kv, s->kv_len, s->dim);
    input->v = mxa_tensor_contiguous(v, s->type, s->batch, s->heads_kv, s->kv_len, s->dim_v);
    mxa_problem *p = &input->problem;
    mxa_problem_default(p, s->batch, s->heads, s->heads_kv, s->q_len, s->kv_len, s->dim);
    p->head_dim_v = s->dim_v;
    p->q_dtype = p->k_dtype = p->v_dtype = s->type;
    p->causal = s->causal;
    return q != NULL && k != NULL && v != NULL;
}

static bool time_recipe(const attention_input *input, const char *name, void *out, shape_time *result)
{
    mxa_recipe recipe;
    attend_call call;
    if (mxa_recipe_parse(name, &recipe) != MXA_OK) {
        cli_fail("%s: %s", name, mxa_error_text());
        return false;
    }
    result->variant = name;
    const bool ok = attend_open(&call, input, &recipe, input->q.dtype, out, NULL) &&
                    timing_measure(run_call, &call, LEAST_RUNS, MIN_SECONDS, &result->time);
    attend_close(&call);
    progress_step();
    return ok;
}

bool time_attention(const shape *s, shape_time times[ATTENTION_VARIANTS])
{
    attention_input input;
    const uint64_t out_bytes =
        (uint64_t)(s->batch * s->heads * s->q_len * s->dim_v * input_dtype_bytes(s->type));
    bool ok = make_input(s, &input);
    void *out = ok ? cli_alloc(out_bytes, "the output") : NULL;
    ok = out != NULL;
    for (int i = 0; i < ATTENTION_VARIANTS && ok; i++) {
        times[i].work = operations(s);
        ok = time_recipe(&input, recipes[i], out, &times[i]);
    }
    free(out);
    input_close(&input);
    return ok;
}
