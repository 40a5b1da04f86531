/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A packed call gives each sequence the bits that it has alone, with factors of every level: computed ones
 * count inside a sequence, but for level tensor, which covers the call; given ones lie as the packed tensors
 * do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/plan.h"

enum { SEQUENCES = 4, HEADS = 4, HEADS_KV = 2, DIM = 40, Q_ROWS = 300, K_ROWS = 420 };

static const int32_t cu_q[SEQUENCES + 1] = { 0, 7, 7, 150, 290 };
static const int32_t cu_k[SEQUENCES + 1] = { 0, 40, 45, 190, 419 };

static float q[HEADS][Q_ROWS][DIM], k[HEADS_KV][K_ROWS][DIM], v[HEADS_KV][K_ROWS][DIM];
static float packed[HEADS][Q_ROWS][DIM], alone[HEADS][Q_ROWS][DIM];
static float g_q[HEADS][Q_ROWS], g_k[HEADS_KV][K_ROWS];

static int fill(void **state)
{
    (void)state;
    uint64_t random = 1;
    float *const parts[3] = { &q[0][0][0], &k[0][0][0], &v[0][0][0] };
    const int64_t sizes[3] = { HEADS * Q_ROWS * DIM, HEADS_KV * K_ROWS * DIM, HEADS_KV * K_ROWS * DIM };
    for (int part = 0; part < 3; part++)
        for (int64_t i = 0; i < sizes[part]; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            parts[part][i] = (float)((int64_t)(random >> 40) - (1 << 23)) * 0x1p-22f;
        }
    for (int64_t i = 0; i < HEADS * Q_ROWS; i++)
        (&g_q[0][0])[i] = 0.01f + 0.001f * (float)(i % 13);
    for (int64_t i = 0; i < HEADS_KV * K_ROWS; i++)
        (&g_k[0][0])[i] = 0.01f + 0.001f * (float)(i % 11);
    return 0;
}

static void attend(const mxa_problem *p, const mxa_recipe *recipe, const mxa_tensor tensors[4],
                   const float *g_of_q, const float *g_of_k)
{
    mxa_plan *plan;
    if (mxa_plan_create(p, recipe, &plan) != MXA_OK)
        fail_msg("%s", mxa_error_text());
    void *const work = aligned_alloc(64, mxa_plan_work_bytes(plan));
    const mxa_attention_args args = { .size = sizeof args,
                                      .q = &tensors[0],
                                      .k = &tensors[1],
                                      .v = &tensors[2],
                                      .out = &tensors[3],
                                      .g_q = g_of_q,
                                      .g_k = g_of_k,
                                      .work = work,
                                      .work_bytes = mxa_plan_work_bytes(plan) };
    if (mxa_attention(plan, &args) != MXA_OK)
        fail_msg("%s", mxa_error_text());
    free(work);
    mxa_plan_free(plan);
}

static mxa_tensor view(void *data, int64_t heads, int64_t rows, int64_t first, int64_t len)
{
    mxa_tensor t = mxa_tensor_contiguous((float *)data + first * DIM, MXA_DTYPE_F32, 1, heads, len, DIM);
    t.stride[1] = rows * DIM;
    return t;
}

static mxa_problem problem(int64_t batch, int64_t q_len, int64_t kv_len)
{
    mxa_problem p;
    mxa_problem_default(&p, batch, HEADS, HEADS_KV, q_len, kv_len, DIM);
    p.causal = true;
    p.threads = 2;
    return p;
}

static void run_packed(const mxa_recipe *recipe, const float *g_of_q, const float *g_of_k)
{
    mxa_problem p = problem(SEQUENCES, Q_ROWS, K_ROWS);
    p.cu_seqlens_q = cu_q;
    p.cu_seqlens_k = cu_k;
    memset(packed, 0xFF, sizeof packed);
    attend(&p, recipe,
           (mxa_tensor[4]){ view(q, HEADS, Q_ROWS, 0, Q_ROWS), view(k, HEADS_KV, K_ROWS, 0, K_ROWS),
                            view(v, HEADS_KV, K_ROWS, 0, K_ROWS), view(packed, HEADS, Q_ROWS, 0, Q_ROWS) },
           g_of_q, g_of_k);
}

/* Each sequence by itself; given factors of level token are gathered for it. */
static void run_alone(const mxa_recipe *recipe, const float *tensor_g, bool token_g)
{
    static float own_q[HEADS * Q_ROWS], own_k[HEADS_KV * K_ROWS];
    memset(alone, 0, sizeof alone);
    for (int b = 0; b < SEQUENCES; b++) {
        const int64_t q_len = cu_q[b + 1] - cu_q[b], kv_len = cu_k[b + 1] - cu_k[b];
        for (int64_t i = 0; i < HEADS * q_len; i++)
            own_q[i] = g_q[i / q_len][cu_q[b] + i % q_len];
        for (int64_t i = 0; i < HEADS_KV * kv_len; i++)
            own_k[i] = g_k[i / kv_len][cu_k[b] + i % kv_len];
        const mxa_problem p = problem(1, q_len, kv_len);
        attend(&p, recipe,
               (mxa_tensor[4]){
                   view(q, HEADS, Q_ROWS, cu_q[b], q_len), view(k, HEADS_KV, K_ROWS, cu_k[b], kv_len),
                   view(v, HEADS_KV, K_ROWS, cu_k[b], kv_len), view(alone, HEADS, Q_ROWS, cu_q[b], q_len) },
               token_g ? own_q : tensor_g,
               token_g    ? own_k
               : tensor_g ? tensor_g + 1
                          : NULL);
    }
}

static mxa_recipe parse(const char *text)
{
    mxa_recipe recipe;
    if (mxa_recipe_parse(text, &recipe) != MXA_OK)
        fail_msg("%s", mxa_error_text());
    return recipe;
}

static void computed_factors(void **state)
{
    (void)state;
    static const char *const texts[] = { "dma8",
                                         "dma4,smooth-k=full",
                                         "low=nvfp4,high=mxfp6,diag=1,sink=0,rotate",
                                         "dma8,level_q=token_block,level_k=head",
                                         "dma8-fp8,level_q=head,level_k=token_block",
                                         "bf16" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const mxa_recipe recipe = parse(texts[i]);
        run_packed(&recipe, NULL, NULL);
        run_alone(&recipe, NULL, false);
        assert_memory_equal(packed, alone, sizeof packed);
    }
}

static float largest(const float *x, int64_t heads, int64_t rows, int64_t used)
{
    float amax = 0;
    for (int64_t i = 0; i < heads * rows * DIM; i++)
        amax = i / DIM % rows < used ? fmaxf(amax, fabsf(x[i])) : amax;
    return amax;
}

/* Rows past the last offset hold the largest numbers; they do not count. */
static void one_factor_for_the_call(void **state)
{
    (void)state;
    const mxa_recipe recipe = parse("low=int8,high=bf16,level_q=tensor,level_k=tensor");
    q[1][Q_ROWS - 1][3] = k[1][K_ROWS - 1][3] = 1000;
    const float g[2] = { largest(&q[0][0][0], HEADS, Q_ROWS, cu_q[SEQUENCES]) / 127,
                         largest(&k[0][0][0], HEADS_KV, K_ROWS, cu_k[SEQUENCES]) / 127 };
    run_alone(&recipe, g, false);
    run_packed(&recipe, NULL, NULL);
    assert_memory_equal(packed, alone, sizeof packed);
    run_packed(&recipe, &g[0], &g[1]);
    assert_memory_equal(packed, alone, sizeof packed);
}

static void given_factors_of_rows(void **state)
{
    (void)state;
    const mxa_recipe recipe = parse("dma8");
    run_packed(&recipe, &g_q[0][0], &g_k[0][0]);
    run_alone(&recipe, NULL, true);
    assert_memory_equal(packed, alone, sizeof packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computed_factors),
        cmocka_unit_test(one_factor_for_the_call),
        cmocka_unit_test(given_factors_of_rows),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
