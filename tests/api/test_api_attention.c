/* SPDX-License-Identifier: Apache-2.0 */
/* Attention through the public interface against the float64 oracle: shapes, types, masks, recipes. */
#include "api_support.h"

#include <math.h>
#include <string.h>

enum { CASES = 60 };

static const int64_t any_dims[] = { 1, 2, 3, 16, 17, 63, 64, 80, 96, 128, 255, 256 };
static const int64_t power_of_4_dims[] = { 4, 16, 64, 256 };

static int64_t pick_dim(uint64_t *seed, const int64_t *dims, size_t bytes)
{
    return dims[api_pick(seed, 0, (int64_t)(bytes / sizeof *dims) - 1)];
}

/* Windows, offset, softcap, scale: each set in a part of the cases. */
static void random_mask(mxa_problem *p, uint64_t *seed)
{
    p->causal = api_pick(seed, 0, 1);
    if (api_pick(seed, 0, 2) == 0)
        p->window_left = api_pick(seed, 0, p->kv_len + 3);
    if (api_pick(seed, 0, 2) == 0)
        p->window_right = api_pick(seed, 0, p->kv_len + 3);
    if (api_pick(seed, 0, 2) == 0)
        p->q_offset = api_pick(seed, -p->q_len - 2, p->kv_len + 200);
    if (api_pick(seed, 0, 3) == 0)
        p->softcap = (float)(1 + 4 * api_uniform(seed));
    if (api_pick(seed, 0, 3) == 0)
        p->softmax_scale = (float)(api_uniform(seed) - 0.5);
}

static api_call random_call(uint64_t *seed, const int64_t *dims, size_t dims_bytes)
{
    const int64_t heads_kv = api_pick(seed, 1, 3), heads = heads_kv * api_pick(seed, 1, 3);
    api_call call = { .recipe = "exact" };
    mxa_problem_default(&call.problem, api_pick(seed, 0, 2), heads, heads_kv, api_pick(seed, 0, 20),
                        api_pick(seed, 0, 20) * api_pick(seed, 1, 16), pick_dim(seed, dims, dims_bytes));
    call.problem.head_dim_v = pick_dim(seed, any_dims, sizeof any_dims);
    random_mask(&call.problem, seed);
    return call;
}

static const float *random_sinks(uint64_t *seed, int64_t heads)
{
    if (api_pick(seed, 0, 1) == 0)
        return NULL;
    float *const sinks = api_floats((size_t)heads);
    for (int64_t h = 0; h < heads; h++)
        sinks[h] = api_pick(seed, 0, 3) == 0 ? -INFINITY : (float)(4 * api_normal(seed));
    return sinks;
}

static void test_exact(void **state)
{
    uint64_t seed = 11;
    for (int i = 0; i < CASES; i++) {
        api_call call = random_call(&seed, any_dims, sizeof any_dims);
        mxa_problem *const p = &call.problem;
        p->q_dtype = (mxa_dtype)api_pick(&seed, 0, 2);
        p->k_dtype = (mxa_dtype)api_pick(&seed, 0, 2);
        p->v_dtype = (mxa_dtype)api_pick(&seed, 0, 2);
        p->out_dtype = (mxa_dtype)api_pick(&seed, 0, 2);
        call.sinks = random_sinks(&seed, p->heads);
        api_tensors_of(&call);
        api_random_inputs(&call, seed);
        api_attend_and_check(&call);
        api_teardown(state);
    }
}

/* 16-bit operands are the inputs themselves, so the bound is that of fp32 sums and 16-bit P. */
static void test_plain_recipes(void **state)
{
    static const char *const recipes[] = { "bf16", "low=bf16", "low=f16", "low=f32,pv=bf16" };
    static const mxa_dtype dtypes[] = { MXA_DTYPE_BF16, MXA_DTYPE_BF16, MXA_DTYPE_F16, MXA_DTYPE_F32 };
    uint64_t seed = 12;
    for (int i = 0; i < CASES; i++) {
        api_call call = random_call(&seed, any_dims, sizeof any_dims);
        call.recipe = recipes[i % 4];
        call.problem.q_dtype = call.problem.k_dtype = dtypes[i % 4];
        call.problem.v_dtype = i % 4 == 2 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
        call.sinks = random_sinks(&seed, call.problem.heads);
        api_tensors_of(&call);
        api_random_inputs(&call, seed);
        api_attend_and_check(&call);
        api_teardown(state);
    }
}

/*
 * Every recipe is exact where its formats lose nothing: rotation, smoothing, scales and factors all cancel.
 */
static void test_lossless_inputs(void **state)
{
    uint64_t seed = 13;
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int i = 0; i < CASES / 4; i++) {
            api_call call = random_call(&seed, power_of_4_dims, sizeof power_of_4_dims);
            call.recipe = api_recipes[r];
            call.sinks = random_sinks(&seed, call.problem.heads);
            api_tensors_of(&call);
            api_lossless_inputs(&call, strncmp(call.recipe, "dma", 3) == 0 ? 0.5 : 0, seed);
            api_attend_and_check(&call);
            api_teardown(state);
        }
}

/* Quantised operands stay near: INT8 rotated within 1 %, 4-bit K within 20 % of the output's norm. */
static void test_lossy_recipes(void **state)
{
    static const struct {
        const char *recipe;
        double bound;
    } cases[] = { { "dma8", 0.02 },
                  { "dma8,level_k=token_block", 0.02 },
                  { "low=int8,level_q=tensor,level_k=head", 0.04 },
                  { "low=fp8,level_q=head,level_k=token_block", 0.1 },
                  { "low=nvfp4,level_q=head,level_k=tensor", 0.3 },
                  { "dma8-fp8", 0.1 },
                  { "dma4", 0.2 },
                  { "paper-nvfp4", 0.3 },
                  { "mxfp8", 0.1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_call call = api_call_new(1, 3, 1, 40, 700, 64);
        call.recipe = cases[i].recipe;
        call.problem.causal = true;
        api_random_inputs(&call, 17);
        api_attend(&call);
        const api_expected want = api_oracle(&call);
        double error = 0, norm = 0;
        for (int64_t at = 0; at < want.rows * want.dim_v; at++) {
            const int64_t row = at / 64;
            const double got = api_get(&call.out, 0, row / 40, row % 40, at % 64);
            error += (got - want.o[at]) * (got - want.o[at]);
            norm += want.o[at] * want.o[at];
        }
        if (!(sqrt(error / norm) < cases[i].bound))
            fail_msg("%s: relative error %g, bound %g", cases[i].recipe, sqrt(error / norm), cases[i].bound);
        api_teardown(state);
    }
}

static void test_empty_shapes(void **state)
{
    static const int64_t sizes[][3] = { { 0, 3, 5 }, { 2, 0, 5 }, { 2, 3, 0 }, { 2, 0, 0 }, { 0, 0, 0 } };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            api_call call = api_call_new(sizes[i][0], 2, 1, sizes[i][1], sizes[i][2], 64);
            call.recipe = api_recipes[r];
            api_random_inputs(&call, 18);
            api_attend_and_check(&call);
            if (sizes[i][2] == 0)
                call.k.data = call.v.data = NULL;
            if (sizes[i][0] * sizes[i][1] == 0)
                call.q.data = call.out.data = call.lse = NULL;
            api_attend(&call);
            api_teardown(state);
        }
}

/* A row without keys has the sink alone; a sink of -inf is none. */
static void test_sinks_of_empty_rows(void **state)
{
    (void)state;
    static const float sinks[] = { 2.5f, -INFINITY };
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = api_call_new(1, 2, 1, 5, 2, 64);
        call.recipe = api_recipes[r];
        call.problem.causal = true;
        call.sinks = sinks;
        api_lossless_inputs(&call, 0, 19);
        api_attend_and_check(&call);
        assert_true(call.lse[0] == 2.5f);
        assert_true(call.lse[5] == -INFINITY);
        assert_true(api_get(&call.out, 0, 0, 0, 0) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_exact),         API_TEST(test_plain_recipes), API_TEST(test_lossless_inputs),
        API_TEST(test_lossy_recipes), API_TEST(test_empty_shapes),  API_TEST(test_sinks_of_empty_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
