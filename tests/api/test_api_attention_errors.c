/* SPDX-License-Identifier: Apache-2.0 */
/* What mxa_attention refuses: the status, the sentence, and that neither output nor LSE was touched. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, Q_LEN = 5, KV_LEN = 7, DIM = 32 };

/* A call that succeeds, made anew for each case that spoils it. */
static api_call call;
static mxa_plan *plan;
static mxa_attention_args args;
static void *out_data;

static void fresh_with(const mxa_recipe *recipe)
{
    call = api_call_new(BATCH, HEADS, HEADS_KV, Q_LEN, KV_LEN, DIM);
    out_data = call.out.data;
    api_random_inputs(&call, 1);
    mxa_plan_free(plan);
    api_ok(mxa_plan_create(&call.problem, recipe, &plan));
    args = (mxa_attention_args){
        .size = sizeof args, .q = &call.q, .k = &call.k, .v = &call.v, .out = &call.out
    };
    args.lse = call.lse;
    args.work_bytes = mxa_plan_work_bytes(plan);
    args.work = api_bytes(args.work_bytes);
}

static void fresh(void)
{
    fresh_with(NULL);
}

static int teardown(void **state)
{
    mxa_plan_free(plan);
    plan = NULL;
    return api_teardown(state);
}

static void refuse(mxa_status want, const char *argument, const char *value)
{
    api_refused(mxa_attention(plan, &args), want, argument, value);
    api_untouched(out_data);
    api_untouched(call.lse);
}

static void test_valid(void **state)
{
    (void)state;
    fresh();
    api_ok(mxa_attention(plan, &args));
    args.lse = NULL;
    api_ok(mxa_attention(plan, &args));
}

static void test_null(void **state)
{
    (void)state;
    fresh();
    api_refused(mxa_attention(NULL, &args), MXA_ERR_ARG, "plan", "NULL");
    api_refused(mxa_attention(plan, NULL), MXA_ERR_ARG, "args", "NULL");
    static const char *const names[] = { "q", "k", "v", "out" };
    for (int i = 0; i < 4; i++) {
        fresh();
        *(const mxa_tensor **[]){ &args.q, &args.k, &args.v, &args.out }[i] = NULL;
        refuse(MXA_ERR_ARG, names[i], "NULL");
        fresh();
        mxa_tensor *const t = (mxa_tensor *[]){ &call.q, &call.k, &call.v, &call.out }[i];
        t->data = NULL;
        refuse(MXA_ERR_ARG, names[i], "NULL");
    }
    fresh();
    args.work = NULL;
    refuse(MXA_ERR_ARG, "work", "NULL");
}

static void test_size(void **state)
{
    (void)state;
    fresh();
    args.size = 0;
    refuse(MXA_ERR_ARG, "size", "0");
    args.size = sizeof args - 1;
    refuse(MXA_ERR_ARG, "size", NULL);
}

static void test_other_types(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "out" };
    for (int i = 0; i < 4; i++) {
        fresh();
        mxa_tensor *const t = (mxa_tensor *[]){ &call.q, &call.k, &call.v, &call.out }[i];
        t->dtype = MXA_DTYPE_BF16;
        refuse(MXA_ERR_ARG, names[i], "2");
        t->dtype = (mxa_dtype)5;
        refuse(MXA_ERR_ARG, names[i], "5");
    }
}

static void test_other_shapes(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "out" };
    for (int i = 0; i < 16; i++) {
        fresh();
        mxa_tensor *const t = (mxa_tensor *[]){ &call.q, &call.k, &call.v, &call.out }[i / 4];
        t->shape[i % 4]--;
        refuse(MXA_ERR_SHAPE, names[i / 4], NULL);
        t->shape[i % 4] = -1;
        refuse(MXA_ERR_SHAPE, names[i / 4], "-1");
    }
}

static void test_strides(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "out" };
    for (int i = 0; i < 4; i++) {
        fresh();
        mxa_tensor *const t = (mxa_tensor *[]){ &call.q, &call.k, &call.v, &call.out }[i];
        t->stride[3] = 2;
        refuse(MXA_ERR_ALIGN, names[i], "2");
        t->stride[3] = 0;
        refuse(MXA_ERR_ALIGN, names[i], "0");
        t->stride[3] = 1;
        t->stride[2] = INT64_MAX / 2;
        refuse(MXA_ERR_SHAPE, names[i], NULL);
    }
}

/* Rows of the output that share elements: broadcast, half a row apart, and heads interleaved too tightly. */
static void test_output_overlaps_itself(void **state)
{
    (void)state;
    static const int64_t strides[][3] = { { HEADS * Q_LEN * DIM, Q_LEN * DIM, 0 },
                                          { HEADS * Q_LEN * DIM, Q_LEN * DIM, DIM / 2 },
                                          { HEADS * Q_LEN * DIM, DIM - 1, HEADS * DIM },
                                          { Q_LEN * DIM, Q_LEN * DIM, DIM },
                                          { 0, Q_LEN * DIM, DIM } };
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        fresh();
        memcpy(call.out.stride, strides[i], sizeof strides[i]);
        refuse(MXA_ERR_ARG, "out", NULL);
    }
}

static void test_alignment(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "out" };
    for (int i = 0; i < 4; i++) {
        fresh();
        mxa_tensor *const t = (mxa_tensor *[]){ &call.q, &call.k, &call.v, &call.out }[i];
        t->data = (char *)t->data + 2;
        refuse(MXA_ERR_ALIGN, names[i], NULL);
    }
    fresh();
    args.lse = (float *)((char *)args.lse + 1);
    refuse(MXA_ERR_ALIGN, "lse", NULL);
}

static void test_workspace(void **state)
{
    (void)state;
    fresh();
    assert_true(args.work_bytes > 0);
    args.work_bytes--;
    refuse(MXA_ERR_WORKSPACE, "work_bytes", NULL);
    args.work_bytes = 0;
    refuse(MXA_ERR_WORKSPACE, "work_bytes", "0");
    fresh();
    args.work = (char *)api_bytes(args.work_bytes + 1) + 1;
    refuse(MXA_ERR_ALIGN, "work", NULL);
}

static void test_mean(void **state)
{
    (void)state;
    mxa_recipe recipe;
    mxa_recipe_default(&recipe);
    recipe.smooth_k = MXA_SMOOTH_GIVEN;
    fresh_with(&recipe);
    refuse(MXA_ERR_ARG, "mean", "NULL");
    fresh();
    args.mean = api_floats(BATCH * HEADS_KV * DIM);
    refuse(MXA_ERR_ARG, "mean", NULL);
}

static void test_given_factors(void **state)
{
    (void)state;
    static const float refused[] = { 0, -1, NAN, INFINITY, 0x1p118f, 0x1p-118f, 0x1.000002p117f };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        fresh();
        float *const g_q = api_floats(BATCH * HEADS * Q_LEN), *const g_k =
                                                                  api_floats(BATCH * HEADS_KV * KV_LEN);
        for (int j = 0; j < BATCH * HEADS * Q_LEN; j++)
            g_q[j] = 0x1p117f;
        for (int j = 0; j < BATCH * HEADS_KV * KV_LEN; j++)
            g_k[j] = 0x1p-117f;
        args.g_q = g_q;
        args.g_k = g_k;
        g_q[BATCH * HEADS * Q_LEN - 1] = refused[i];
        refuse(MXA_ERR_SCALE, "g_q", NULL);
        g_q[BATCH * HEADS * Q_LEN - 1] = 1;
        g_k[0] = refused[i];
        refuse(MXA_ERR_SCALE, "g_k", NULL);
        g_k[0] = 1;
        api_ok(mxa_attention(plan, &args));
    }
}

/* Blocks of 128 rows of the packed tensor are not those of its sequences. */
static void test_given_token_blocks_of_packed_sequences(void **state)
{
    (void)state;
    static const int32_t cu_seqlens[] = { 0, 3, 5 };
    mxa_recipe recipe;
    api_ok(mxa_recipe_parse("dma8,level_k=token_block", &recipe));
    fresh_with(&recipe);
    call.problem.cu_seqlens_q = call.problem.cu_seqlens_k = cu_seqlens;
    api_tensors_of(&call);
    api_random_inputs(&call, 2);
    mxa_plan_free(plan);
    api_ok(mxa_plan_create(&call.problem, &recipe, &plan));
    out_data = call.out.data;
    args.lse = call.lse;
    args.work_bytes = mxa_plan_work_bytes(plan);
    args.work = api_bytes(args.work_bytes);
    api_ok(mxa_attention(plan, &args));
    api_fill_again(call.out.data);
    api_fill_again(call.lse);
    float *const g_k = api_floats(HEADS_KV);
    for (int h = 0; h < HEADS_KV; h++)
        g_k[h] = 1;
    args.g_k = g_k;
    refuse(MXA_ERR_ARG, "g_k", NULL);
}

#define TEST(test) cmocka_unit_test_teardown(test, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_valid),
        TEST(test_null),
        TEST(test_size),
        TEST(test_other_types),
        TEST(test_other_shapes),
        TEST(test_strides),
        TEST(test_output_overlaps_itself),
        TEST(test_alignment),
        TEST(test_workspace),
        TEST(test_mean),
        TEST(test_given_factors),
        TEST(test_given_token_blocks_of_packed_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
