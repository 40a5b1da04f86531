/* SPDX-License-Identifier: Apache-2.0 */
/* What mxa_plan_create and mxa_attention refuse: the status, the sentence, and that nothing was written. */
#include "api_support.h"

#include <math.h>

#include <stdio.h>
#include <string.h>

static mxa_problem small_problem(void)
{
    mxa_problem p;
    mxa_problem_default(&p, 2, 4, 2, 5, 7, 32);
    return p;
}

static void refuse_plan(const mxa_problem *problem, const mxa_recipe *recipe, mxa_status want,
                        const char *argument, const char *value)
{
    mxa_plan *const before = api_bytes(1);
    mxa_plan *plan = before;
    api_refused(mxa_plan_create(problem, recipe, &plan), want, argument, value);
    assert_ptr_equal(plan, before);
}

static void test_problem_default(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    assert_int_equal(p.size, sizeof p);
    assert_int_equal(p.head_dim_v, 32);
    assert_int_equal(p.q_dtype | p.k_dtype | p.v_dtype | p.out_dtype, MXA_DTYPE_F32);
    assert_true(p.softmax_scale == (float)(1 / sqrt(32)));
    assert_true(p.softcap == 0 && !p.causal && p.threads == 0);
    assert_int_equal(p.window_left, MXA_UNLIMITED);
    assert_int_equal(p.window_right, MXA_UNLIMITED);
    assert_true(p.q_offset == MXA_OFFSET_AUTO);
    assert_null(p.cu_seqlens_q);
    assert_null(p.cu_seqlens_k);
    assert_true(p.device == MXA_DEVICE_AUTO || p.device == MXA_DEVICE_CPU);
}

static void test_null(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    refuse_plan(NULL, NULL, MXA_ERR_ARG, "problem", "NULL");
    api_refused(mxa_plan_create(&p, NULL, NULL), MXA_ERR_ARG, "plan", "NULL");
    mxa_plan_free(NULL);
}

#define SIZE_FIELD(name) offsetof(mxa_problem, name), #name

static void test_problem_sizes(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        const char *name;
        int64_t value;
        mxa_status status;
    } cases[] = {
        { SIZE_FIELD(batch), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(heads), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(heads_kv), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(heads_kv), 0, MXA_ERR_SHAPE },
        { SIZE_FIELD(heads_kv), 3, MXA_ERR_SHAPE },
        { SIZE_FIELD(heads_kv), 8, MXA_ERR_SHAPE },
        { SIZE_FIELD(q_len), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(kv_len), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(kv_len), INT64_MIN, MXA_ERR_SHAPE },
        { SIZE_FIELD(head_dim), 0, MXA_ERR_SHAPE },
        { SIZE_FIELD(head_dim), -1, MXA_ERR_SHAPE },
        { SIZE_FIELD(head_dim), 257, MXA_ERR_UNSUPPORTED },
        { SIZE_FIELD(head_dim), INT64_MAX, MXA_ERR_UNSUPPORTED },
        { SIZE_FIELD(head_dim_v), 0, MXA_ERR_SHAPE },
        { SIZE_FIELD(head_dim_v), 257, MXA_ERR_UNSUPPORTED },

        { SIZE_FIELD(window_left), -2, MXA_ERR_ARG },
        { SIZE_FIELD(window_right), -2, MXA_ERR_ARG },
        { SIZE_FIELD(window_left), INT64_MIN, MXA_ERR_ARG },
        { SIZE_FIELD(q_offset), INT64_MAX, MXA_ERR_ARG },
        { SIZE_FIELD(q_offset), INT64_MIN + 1, MXA_ERR_ARG },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mxa_problem p = small_problem();
        memcpy((char *)&p + cases[i].offset, &cases[i].value, sizeof(int64_t));
        char value[32];
        snprintf(value, sizeof value, "%lld", (long long)cases[i].value);
        refuse_plan(&p, NULL, cases[i].status, cases[i].name, value);
    }
}

static void test_heads_that_do_not_divide(void **state)
{
    (void)state;
    static const int64_t pairs[][2] = { { 3, 2 }, { 33, 2 }, { 2, 4 }, { 4, 0 }, { INT64_MAX, 2 } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        mxa_problem p = small_problem();
        p.heads = pairs[i][0];
        p.heads_kv = pairs[i][1];
        refuse_plan(&p, NULL, MXA_ERR_SHAPE, "heads_kv", NULL);
    }
}

/* Sizes that are legal alone, but whose tensor does not fit the address space. */
static void test_overflow(void **state)
{
    (void)state;
    mxa_problem p = small_problem();
    p.batch = p.q_len = p.kv_len = INT64_C(1) << 31;
    refuse_plan(&p, NULL, MXA_ERR_SHAPE, "q", "2147483648");
    p = small_problem();
    p.heads = p.heads_kv = INT64_MAX / 8;
    refuse_plan(&p, NULL, MXA_ERR_SHAPE, "q", NULL);
    p = small_problem();
    p.batch = INT64_MAX;
    refuse_plan(&p, NULL, MXA_ERR_SHAPE, "batch", "9223372036854775807");
    p = small_problem();
    p.kv_len = INT64_MAX;
    refuse_plan(&p, NULL, MXA_ERR_SHAPE, "kv_len", "9223372036854775807");
    p = small_problem();
    p.head_dim_v = 256;
    p.kv_len = INT64_C(1) << 52; /* K fits, V does not */
    refuse_plan(&p, NULL, MXA_ERR_SHAPE, "v", NULL);
}

/* A tile's query-key pairs are counted, and are more than 63 bits here. */
static void test_longest_keys(void **state)
{
    (void)state;
    mxa_problem p;
    mxa_problem_default(&p, 1, 1, 1, MXA_TILE, INT64_C(1) << 57, 1);
    mxa_recipe recipe;
    mxa_plan *plan = NULL;
    api_ok(mxa_recipe_parse("low=f32", &recipe));
    api_ok(mxa_plan_create(&p, &recipe, &plan));
    mxa_plan_free(plan);
}

static void test_problem_numbers(void **state)
{
    (void)state;
    static const float not_finite[] = { NAN, INFINITY, -INFINITY };
    static const char *const names[] = { "nan", "inf", "-inf" };
    for (int i = 0; i < 3; i++) {
        mxa_problem p = small_problem();
        p.softmax_scale = not_finite[i];
        refuse_plan(&p, NULL, MXA_ERR_ARG, "softmax_scale", names[i]);
        p = small_problem();
        p.softcap = not_finite[i];
        refuse_plan(&p, NULL, MXA_ERR_ARG, "softcap", names[i]);
    }
    mxa_problem p = small_problem();
    p.softcap = -0.5f;
    refuse_plan(&p, NULL, MXA_ERR_ARG, "softcap", "-0.5");
    p = small_problem();
    p.threads = -3;
    refuse_plan(&p, NULL, MXA_ERR_ARG, "threads", "-3");
    p.threads = INT32_MAX;
    refuse_plan(&p, NULL, MXA_ERR_ARG, "threads", "2147483647");
    p = small_problem();
    p.device = (mxa_device)-7;
    refuse_plan(&p, NULL, MXA_ERR_ARG, "device", "-7");
    p = small_problem();
    p.device = (mxa_device)1000;
    refuse_plan(&p, NULL, MXA_ERR_DEVICE, "device", NULL);
}

static void test_problem_enums_and_size(void **state)
{
    (void)state;
    static const size_t dtypes[] = { offsetof(mxa_problem, q_dtype), offsetof(mxa_problem, k_dtype),
                                     offsetof(mxa_problem, v_dtype), offsetof(mxa_problem, out_dtype) };
    static const char *const names[] = { "q_dtype", "k_dtype", "v_dtype", "out_dtype" };
    for (int i = 0; i < 4; i++) {
        mxa_problem p = small_problem();
        const mxa_dtype none = (mxa_dtype)9;
        memcpy((char *)&p + dtypes[i], &none, sizeof none);
        refuse_plan(&p, NULL, MXA_ERR_ARG, names[i], "9");
    }
    static const size_t sizes[] = { 0, 1, sizeof(mxa_problem) - 1 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        mxa_problem p = small_problem();
        p.size = sizes[i];
        refuse_plan(&p, NULL, MXA_ERR_ARG, "size", NULL);
    }
}

static void test_cu_seqlens(void **state)
{
    (void)state;
    static const int32_t good_q[] = { 0, 2, 5 }, good_k[] = { 0, 7, 7 };
    static const int32_t not_from_0[] = { 1, 2, 5 }, descending[] = { 0, 3, 2 }, past_q[] = { 0, 2, 6 },
                         past_k[] = { 0, 2, 8 }, negative[] = { 0, -1, 5 };
    static const struct {
        const int32_t *q, *k;
        mxa_status status;
        const char *name;
    } cases[] = {
        { good_q, NULL, MXA_ERR_ARG, "cu_seqlens_k" },
        { NULL, good_k, MXA_ERR_ARG, "cu_seqlens_q" },
        { not_from_0, good_k, MXA_ERR_ARG, "cu_seqlens_q" },
        { good_q, not_from_0, MXA_ERR_ARG, "cu_seqlens_k" },
        { descending, good_k, MXA_ERR_ARG, "cu_seqlens_q" },
        { good_q, descending, MXA_ERR_ARG, "cu_seqlens_k" },
        { negative, good_k, MXA_ERR_ARG, "cu_seqlens_q" },
        { past_q, good_k, MXA_ERR_SHAPE, "cu_seqlens_q" },
        { good_q, past_k, MXA_ERR_SHAPE, "cu_seqlens_k" },
    };
    mxa_problem p = small_problem();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.cu_seqlens_q = cases[i].q;
        p.cu_seqlens_k = cases[i].k;
        refuse_plan(&p, NULL, cases[i].status, cases[i].name, NULL);
    }
    p.cu_seqlens_q = good_q;
    p.cu_seqlens_k = good_k;
    mxa_plan *plan;
    api_ok(mxa_plan_create(&p, NULL, &plan));
    mxa_plan_free(plan);
}

static mxa_recipe recipe_of(const char *text)
{
    mxa_recipe recipe;
    api_ok(mxa_recipe_parse(text, &recipe));
    return recipe;
}

static void test_recipe_formats(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    static const size_t fields[] = { offsetof(mxa_recipe, low_q), offsetof(mxa_recipe, low_k),
                                     offsetof(mxa_recipe, high_q), offsetof(mxa_recipe, high_k) };
    static const char *const names[] = { "low_q", "low_k", "high_q", "high_k" };
    for (int i = 0; i < 4; i++) {
        mxa_recipe r = recipe_of("dma8");
        const mxa_format none = (mxa_format)99;
        memcpy((char *)&r + fields[i], &none, sizeof none);
        refuse_plan(&p, &r, MXA_ERR_FORMAT, names[i], "99");
        r = recipe_of("low=int8,high=bf16");
        memset((char *)&r + fields[i], 0, sizeof none);
        refuse_plan(&p, &r, MXA_ERR_ARG, names[i], NULL);
    }
    mxa_recipe r = recipe_of("mxfp4");
    r.rule_q = (mxa_rule)7;
    refuse_plan(&p, &r, MXA_ERR_RULE, "rule_q", "7");
    r = recipe_of("mxfp4");
    r.rule_k = (mxa_rule)-1;
    refuse_plan(&p, &r, MXA_ERR_RULE, "rule_k", "-1");
}

static void test_recipe_numbers(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    mxa_recipe r = recipe_of("dma8");
    r.size = 0;
    refuse_plan(&p, &r, MXA_ERR_ARG, "size", "0");
    r = recipe_of("dma8");
    r.diag_window = -1;
    refuse_plan(&p, &r, MXA_ERR_ARG, "diag", "-1");
    r = recipe_of("dma8");
    r.sink_window = -5;
    refuse_plan(&p, &r, MXA_ERR_ARG, "sink", "-5");
    r = recipe_of("dma8");
    r.level_q = (mxa_level)17;
    refuse_plan(&p, &r, MXA_ERR_ARG, "level_q", "17");
    r = recipe_of("dma8");
    r.level_k = MXA_LEVEL_NONE;
    refuse_plan(&p, &r, MXA_ERR_ARG, "level_k", NULL);
    r = recipe_of("dma8");
    r.pv = (mxa_pv)4;
    refuse_plan(&p, &r, MXA_ERR_ARG, "pv", "4");
    r = recipe_of("dma8");
    r.smooth_k = (mxa_smooth)6;
    refuse_plan(&p, &r, MXA_ERR_ARG, "smooth_k", "6");
}

/* The prefix mean needs 128 high keys before the first low tile, and high copies that are not quantised. */
static void test_recipe_prefix(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    mxa_recipe r = recipe_of("dma8");
    r.sink_window = 127;
    refuse_plan(&p, &r, MXA_ERR_ARG, "sink", "127");
    r = recipe_of("paper-mxfp4");
    r.smooth_k = MXA_SMOOTH_PREFIX;
    refuse_plan(&p, &r, MXA_ERR_ARG, "smooth-k", NULL);
}

/* An attention call takes V as it comes; how a cache would store it is refused, not ignored. */
static void test_recipe_of_caches(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    mxa_recipe r = recipe_of("dma4,v=mxfp4");
    refuse_plan(&p, &r, MXA_ERR_UNSUPPORTED, "v", NULL);
    r = recipe_of("dma4,rotate-v");
    refuse_plan(&p, &r, MXA_ERR_UNSUPPORTED, "rotate-v", NULL);
}

static void test_describe(void **state)
{
    (void)state;
    const mxa_problem p = small_problem();
    mxa_plan *plan;
    api_ok(mxa_plan_create(&p, NULL, &plan));
    const size_t length = mxa_plan_describe(plan, NULL, 0);
    char *text = api_bytes(length + 1), *half = api_bytes(length / 2);
    assert_int_equal(mxa_plan_describe(plan, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    assert_non_null(strstr(text, "attention"));
    assert_non_null(strstr(text, "int8"));
    assert_int_equal(mxa_plan_describe(plan, half, length / 2), length);
    assert_int_equal(strlen(half), length / 2 - 1);
    assert_memory_equal(half, text, length / 2 - 1);
    mxa_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_problem_default),  API_TEST(test_null),
        API_TEST(test_problem_sizes),    API_TEST(test_heads_that_do_not_divide),
        API_TEST(test_overflow),         API_TEST(test_longest_keys),
        API_TEST(test_problem_numbers),  API_TEST(test_problem_enums_and_size),
        API_TEST(test_cu_seqlens),       API_TEST(test_recipe_formats),
        API_TEST(test_recipe_numbers),   API_TEST(test_recipe_prefix),
        API_TEST(test_recipe_of_caches), API_TEST(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
