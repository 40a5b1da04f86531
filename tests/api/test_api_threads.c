/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that share a plan, sentences that belong to a thread, and bits that do not depend on a thread
 * count.
 */
#include "api_support.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, REPEATS = 5 };

static void test_thread_counts(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call one = api_call_new(2, 4, 2, 150, 300, 64);
        one.recipe = api_recipes[r];
        one.problem.causal = true;
        one.problem.threads = 1;
        api_random_inputs(&one, 101);
        api_attend(&one);
        for (int threads = 0; threads <= THREADS; threads++) {
            api_call other = one;
            other.problem.threads = threads;
            other.out = api_tensor(MXA_DTYPE_F32, 2, 4, 150, 64);
            other.lse = api_floats(2 * 4 * 150);
            api_attend(&other);
            api_same_bits(&one.out, &other.out);
            assert_memory_equal(one.lse, other.lse, 2 * 4 * 150 * sizeof(float));
        }
        api_teardown(state);
    }
}

/* One thread's calls: inputs, outputs and workspace of its own. */
typedef struct worker {
    const mxa_plan *plan;
    mxa_attention_args args;
    mxa_status status;
} worker;

static void *attend_repeatedly(void *arg)
{
    worker *const w = arg;
    for (int i = 0; i < REPEATS && w->status == MXA_OK; i++)
        w->status = mxa_attention(w->plan, &w->args);
    return NULL;
}

static void test_shared_plan(void **state)
{
    (void)state;
    api_call calls[THREADS], alone[THREADS];
    mxa_plan *plan = NULL;
    worker workers[THREADS] = { 0 };
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++) {
        calls[t] = api_call_new(1, 4, 2, 150, 300, 64);
        calls[t].recipe = "dma4";
        calls[t].problem.causal = true;
        api_random_inputs(&calls[t], 102 + 10 * (uint64_t)t);
        alone[t] = calls[t];
        alone[t].out = api_tensor(MXA_DTYPE_F32, 1, 4, 150, 64);
        api_attend(&alone[t]);
    }
    mxa_recipe recipe;
    api_ok(mxa_recipe_parse("dma4", &recipe));
    api_ok(mxa_plan_create(&calls[0].problem, &recipe, &plan));
    for (int t = 0; t < THREADS; t++) {
        const api_call *const c = &calls[t];
        workers[t].plan = plan;
        workers[t].args =
            (mxa_attention_args){ .size = sizeof workers[t].args, .q = &c->q, .k = &c->k, .v = &c->v };
        workers[t].args.out = &c->out;
        workers[t].args.work_bytes = mxa_plan_work_bytes(plan);
        workers[t].args.work = api_bytes(workers[t].args.work_bytes);
        assert_int_equal(pthread_create(&threads[t], NULL, attend_repeatedly, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(workers[t].status, MXA_OK);
        api_same_bits(&calls[t].out, &alone[t].out);
    }
    mxa_plan_free(plan);
}

/* A workspace holds nothing from one call to the next, and what lay in it before does not matter. */
static void test_workspace_reused(void **state)
{
    (void)state;
    api_call call = api_call_new(1, 2, 1, 40, 300, 64);
    api_random_inputs(&call, 103);
    mxa_plan *plan;
    api_ok(mxa_plan_create(&call.problem, NULL, &plan));
    mxa_attention_args args = {
        .size = sizeof args, .q = &call.q, .k = &call.k, .v = &call.v, .out = &call.out
    };
    args.work_bytes = mxa_plan_work_bytes(plan);
    args.work = memset(api_bytes(args.work_bytes), 0, args.work_bytes);
    api_ok(mxa_attention(plan, &args));
    const mxa_tensor other = api_tensor(MXA_DTYPE_F32, 1, 2, 40, 64);
    args.out = &other;
    memset(args.work, 0x7F, args.work_bytes);
    api_ok(mxa_attention(plan, &args));
    api_same_bits(&call.out, &other);
    mxa_plan_free(plan);
}

typedef struct sentences {
    char before[8], after[256];
} sentences;

static void *fail_elsewhere(void *arg)
{
    sentences *const s = arg;
    mxa_device device;
    strncpy(s->before, mxa_error_text(), sizeof s->before - 1);
    mxa_device_parse("nowhere", &device);
    strncpy(s->after, mxa_error_text(), sizeof s->after - 1);
    return NULL;
}

static void test_error_text_is_of_the_thread(void **state)
{
    (void)state;
    mxa_device device;
    sentences s = { .before = "unset" };
    api_refused(mxa_device_parse("gpu7", &device), MXA_ERR_ARG, "gpu7", NULL);
    const char *const text = mxa_error_text();
    char copy[256] = { 0 };
    strncpy(copy, text, sizeof copy - 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &s), 0);
    pthread_join(thread, NULL);
    assert_string_equal(s.before, "");
    assert_non_null(strstr(s.after, "nowhere"));
    assert_string_equal(text, copy);
    assert_string_equal(mxa_error_text(), copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_thread_counts),
        API_TEST(test_shared_plan),
        API_TEST(test_workspace_reused),
        API_TEST(test_error_text_is_of_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
