/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when memory runs out: each allocation of a call fails in turn. */
#include "api_support.h"
#include "failing_memory.h"

#include <string.h>

/* Calls that may allocate. Each fails cleanly for every allocation, until it needs no more and succeeds. */
enum { MOST_ALLOCATIONS = 100 };

static void test_plan_create(void **state)
{
    (void)state;
    static const int32_t cu_seqlens[] = { 0, 3, 9 };
    mxa_problem p;
    mxa_problem_default(&p, 2, 4, 2, 9, 9, 64);
    p.cu_seqlens_q = p.cu_seqlens_k = cu_seqlens;
    mxa_status status = MXA_ERR_MEMORY;
    int failures = 0;
    for (; status != MXA_OK && failures < MOST_ALLOCATIONS; failures++) {
        mxa_plan *const before = api_bytes(1);
        mxa_plan *plan = before;
        api_allocations_left = failures;
        status = mxa_plan_create(&p, NULL, &plan);
        api_allocations_left = -1;
        if (status == MXA_OK) {
            mxa_plan_free(plan);
        } else {
            assert_int_equal(status, MXA_ERR_MEMORY);
            assert_ptr_equal(plan, before);
            assert_true(strlen(mxa_error_text()) > 0);
        }
    }
    assert_int_equal(status, MXA_OK);
    assert_true(failures > 1); /* a plan is an allocation */
}

static void check_quantize(const mxa_tensor *x, mxa_format format, const mxa_quant_opts *opts)
{
    const api_packed packed = api_packed_new(format, opts, x->shape);
    mxa_status status = MXA_ERR_MEMORY;
    for (int failures = 0; status != MXA_OK && failures < MOST_ALLOCATIONS; failures++) {
        api_allocations_left = failures;
        status = mxa_quantize(x, format, opts, &packed.data, NULL);
        api_allocations_left = -1;
        if (status != MXA_OK) {
            assert_int_equal(status, MXA_ERR_MEMORY);
            api_packed_untouched(&packed);
        }
    }
    assert_int_equal(status, MXA_OK);
    const mxa_tensor y = api_tensor(MXA_DTYPE_F32, x->shape[0], x->shape[1], x->shape[2], x->shape[3]);
    status = MXA_ERR_MEMORY;
    for (int failures = 0; status != MXA_OK && failures < MOST_ALLOCATIONS; failures++) {
        api_allocations_left = failures;
        status = mxa_dequantize(&packed.data, format, opts, &y);
        api_allocations_left = -1;
        if (status != MXA_OK) {
            assert_int_equal(status, MXA_ERR_MEMORY);
            api_untouched(y.data);
        }
    }
    assert_int_equal(status, MXA_OK);
}

static void test_quantize(void **state)
{
    for (int f = 0; f < 12 * 4; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 1, 2, 33, 80);
        api_set_normal(&x, 111);
        mxa_quant_opts opts = api_opts();
        opts.fill_tail = true;
        opts.threads = 1;
        opts.rotate = f % 2;
        if (f % 4 >= 2 && f / 4 > 2) {
            opts.axis = MXA_AXIS_TOKEN;
            opts.level = MXA_LEVEL_HEAD;
        }
        check_quantize(&x, api_formats[f / 4], &opts);
        api_teardown(state);
    }
}

static void test_pair_and_steps(void **state)
{
    (void)state;
    const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 1, 2, 33, 96),
                     out = api_tensor(MXA_DTYPE_F32, 1, 2, 33, 96);
    api_set_normal(&x, 112);
    float *const mean = api_floats(2 * 96);
    const api_packed low = api_packed_new(MXA_FORMAT_INT8, NULL, x.shape);
    const api_packed high = api_packed_new(MXA_FORMAT_MXFP8_E4M3, NULL, x.shape);
    mxa_status status[4] = { MXA_ERR_MEMORY, MXA_ERR_MEMORY, MXA_ERR_MEMORY, MXA_ERR_MEMORY };
    for (int failures = 0; failures < MOST_ALLOCATIONS; failures++) {
        api_allocations_left = failures;
        status[0] = mxa_channel_mean(&x, -1, mean);
        api_allocations_left = failures;
        status[1] = mxa_subtract_mean(&x, mean, &out);
        api_allocations_left = failures;
        status[2] = mxa_rotate(&x, &out);
        api_allocations_left = failures;
        status[3] = mxa_quantize_pair(&x, MXA_FORMAT_INT8, NULL, &low.data, MXA_FORMAT_MXFP8_E4M3, NULL,
                                      &high.data, NULL);
        api_allocations_left = -1;
        for (int i = 0; i < 4; i++)
            assert_true(status[i] == MXA_OK || status[i] == MXA_ERR_MEMORY);
        if (status[3] != MXA_OK)
            api_packed_untouched(&low);
        if (status[3] != MXA_OK)
            api_packed_untouched(&high);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(status[i], MXA_OK);
}

/* Attention and merging allocate nothing. */
static void test_no_allocation(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = api_call_new(1, 4, 2, 40, 300, 64);
        api_random_inputs(&call, 113);
        mxa_recipe recipe;
        api_ok(mxa_recipe_parse(api_recipes[r], &recipe));
        mxa_plan *plan;
        api_ok(mxa_plan_create(&call.problem, &recipe, &plan));
        mxa_attention_args args = {
            .size = sizeof args, .q = &call.q, .k = &call.k, .v = &call.v, .out = &call.out
        };
        args.lse = call.lse;
        args.work_bytes = mxa_plan_work_bytes(plan);
        args.work = api_bytes(args.work_bytes);
        const float *const lse[] = { call.lse };
        api_allocations_left = 0;
        const mxa_status attended = mxa_attention(plan, &args);
        const mxa_status merged = mxa_merge(1, &call.out, lse, NULL, &call.out, call.lse);
        const long left = api_allocations_left;
        api_allocations_left = -1;
        assert_int_equal(attended, MXA_OK);
        assert_int_equal(merged, MXA_OK);
        assert_int_equal(left, 0);
        mxa_plan_free(plan);
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_plan_create),
        API_TEST(test_quantize),
        API_TEST(test_pair_and_steps),
        API_TEST(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
