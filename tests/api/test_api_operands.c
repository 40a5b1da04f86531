/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe makes of Q and K: every pair of formats, levels, given factors and means, 16-bit copies. */
#include "api_support.h"

#include <math.h>
#include <stdio.h>

/* Causal, far keys low and near ones high, over inputs that every format holds without loss. */
static void check_recipe(const char *recipe)
{
    api_call call = api_call_new(1, 2, 1, 5, 300, 64);
    call.recipe = recipe;
    call.problem.causal = true;
    api_lossless_inputs(&call, 0, 41);
    api_attend_and_check(&call);
}

static void test_every_pair(void **state)
{
    for (int f = 0; f < API_FORMATS * API_FORMATS; f++) {
        const char *const q = mxa_format_get(api_formats[f / API_FORMATS])->name;
        const char *const k = mxa_format_get(api_formats[f % API_FORMATS])->name;
        char recipe[128];
        snprintf(recipe, sizeof recipe, "low_q=%s,low_k=%s", q, k);
        check_recipe(recipe);
        snprintf(recipe, sizeof recipe, "low_q=%s,low_k=%s,high_q=%s,high_k=%s,diag=40,sink=0,rotate", q, k,
                 k, q);
        check_recipe(recipe);
        api_teardown(state);
    }
}

static void test_every_rule(void **state)
{
    (void)state;
    check_recipe("low=mxfp4,rule_q=floor,rule_k=rceil");
    check_recipe("low=mxfp4,rule_q=even,rule_k=floor,pv=f16");
    check_recipe("low=mxfp8,rule_q=even,rule_k=floor,high=mxfp6,rotate");
    check_recipe("low=mxint8,rule_q=floor,rule_k=even");
}

/* K = bias + one element; the mean that the caller gives takes the bias off again. */
static void test_given_mean(void **state)
{
    (void)state;
    api_call call = api_call_new(1, 4, 2, 33, 300, 64);
    call.recipe = "low=mxfp4";
    api_lossless_inputs(&call, 2, 14);
    float *const mean = api_floats(2 * 64);
    for (int i = 0; i < 2 * 64; i++)
        mean[i] = i % 64 % 3 == 0 ? 2 : 0;
    call.mean = mean;
    api_attend_and_check(&call);
}

/* FULL averages all keys, which are bias +- pairs here. */
static void test_full_mean(void **state)
{
    (void)state;
    api_call call = api_call_new(1, 2, 1, 9, 200, 16);
    call.recipe = "low=int8,rotate,smooth-k=full";
    api_lossless_inputs(&call, 0, 15);
    for (int64_t j = 0; j < 200; j++) {
        api_set_row(&call.k, 0, 0, j, 3);
        api_set(&call.k, 0, 0, j, j / 2 % 16, j % 2 == 0 ? 7 : -1);
    }
    api_attend_and_check(&call);
}

/*
 * With given factors INT8 and FP8 hold powers of two, one factor for each unit of the level; NVFP4 does with
 * 1/6 of one, where its block scale is exact.
 */
static void test_given_factors(void **state)
{
    static const struct {
        const char *recipe;
        int64_t q_units, k_units;
        float unit;
    } cases[] = {
        { "low=int8", 2 * 4 * 9, 2 * 2 * 200, 1 },
        { "low=fp8", 2 * 4 * 9, 2 * 2 * 200, 1 },
        { "low=nvfp4", 2 * 4 * 9, 2 * 2 * 200, 1.0f / 6 },
        { "low=int8,level_q=head,level_k=tensor", 2 * 4, 1, 1 },
        { "low=fp8,level_q=tensor,level_k=head", 1, 2 * 2, 1 },
        { "low=int8,level_q=token_block,level_k=token_block", 2 * 4 * 1, 2 * 2 * 2, 1 },
    };
    for (size_t r = 0; r < sizeof cases / sizeof *cases; r++) {
        api_call call = api_call_new(2, 4, 2, 9, 200, 64);
        call.recipe = cases[r].recipe;
        api_lossless_inputs(&call, 0, 16);
        float *const g_q = api_floats((size_t)cases[r].q_units), *const g_k =
                                                                     api_floats((size_t)cases[r].k_units);
        for (int i = 0; i < cases[r].q_units; i++)
            g_q[i] = ldexpf(cases[r].unit, -(i % 3) - 1);
        for (int i = 0; i < cases[r].k_units; i++)
            g_k[i] = ldexpf(cases[r].unit, -(i % 2) - 1);
        call.g_q = g_q;
        call.g_k = g_k;
        api_attend_and_check(&call);
        api_teardown(state);
    }
}

/*
 * 16-bit copies of F32 inputs are these inputs rounded, so exact attention over the rounded inputs is near.
 */
static void test_rounded_copies(void **state)
{
    static const char *const recipes[] = { "bf16", "low=bf16,pv=bf16", "low=f16,pv=f16" };
    for (int r = 0; r < 3; r++) {
        const mxa_dtype dtype = r == 2 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
        api_call wide = api_call_new(1, 4, 2, 20, 200, 64), narrow = wide;
        wide.recipe = narrow.recipe = recipes[r];
        api_random_inputs(&wide, 20);
        narrow.problem.q_dtype = narrow.problem.k_dtype = narrow.problem.v_dtype = dtype;
        api_tensors_of(&narrow);
        api_random_inputs(&narrow, 20);
        api_attend(&wide);
        const api_expected want = api_oracle(&narrow);
        api_check(&wide, &want, api_tolerance_of(&narrow));
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_every_pair), API_TEST(test_every_rule),    API_TEST(test_given_mean),
        API_TEST(test_full_mean),  API_TEST(test_given_factors), API_TEST(test_rounded_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
