/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention where numbers leave fp32 or nothing is left to sum: every entry gives what exact arithmetic
 * gives. Keys have one channel, so that logits can be written down.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "cpu/attention_cpu.h"
#include "cpu/features.h"

enum { KEYS = 3 };

typedef struct edge {
    const char *name;
    float q, k[KEYS], v[KEYS];
    float sink; /* -Inf: none */
    float o, lse;
} edge;

static const edge edges[] = {
    { "logits far above fp32", 1e30f, { 1e30f, 2e30f, -1e30f }, { 1, 2, 4 }, -INFINITY, 2, INFINITY },
    { "logits far below fp32", -1e30f, { 1e30f, 2e30f, 3e30f }, { 1, 2, 4 }, -INFINITY, 1, -INFINITY },
    { "a logit far below fp32, a sink", -1e30f, { 1e30f, 1e30f, 1e30f }, { 1, 2, 4 }, 0.5f, 0, 0.5f },
    { "sums of V above fp32", 0, { 1, 1, 1 }, { 3e38f, 3e38f, 3e38f }, -INFINITY, 3e38f, 1.0986123f },
    { "a visible infinite key", 1, { 0, INFINITY, 0 }, { 1, 2, 4 }, -INFINITY, NAN, NAN },
    { "a key at minus infinity is masked",
      1,
      { 0, -INFINITY, 0 },
      { 1, INFINITY, 4 },
      -INFINITY,
      2.5f,
      0.6931472f },
    { "all keys at minus infinity",
      1,
      { -INFINITY, -INFINITY, -INFINITY },
      { 1, NAN, 4 },
      -INFINITY,
      0,
      -INFINITY },
    { "nothing but NaN", NAN, { 1, 1, 1 }, { 1, 2, 4 }, -INFINITY, NAN, NAN },
    { "infinite V whose weight underflows",
      1,
      { 0, -1e4f, 0 },
      { 1, INFINITY, 4 },
      -INFINITY,
      INFINITY,
      0.6931472f },
    { "both infinities in V", 1, { 0, 0, 0 }, { -INFINITY, INFINITY, 4 }, -INFINITY, NAN, 1.0986123f },
    { "NaN in V", 1, { 0, 0, 0 }, { 1, NAN, 4 }, -INFINITY, NAN, 1.0986123f },
    { "an infinite sink", 1, { 0, 0, 0 }, { 1, 2, 4 }, INFINITY, NAN, NAN },
    { "a sink that is NaN", 1, { 0, 0, 0 }, { 1, 2, 4 }, NAN, NAN, NAN },
};

/* One query and KEYS keys of dim channels, V of one. */
static mxa_problem problem(float scale, int dim)
{
    mxa_problem p;
    mxa_problem_default(&p, 1, 1, 1, 1, KEYS, dim);
    p.head_dim_v = 1;
    p.softmax_scale = scale;
    return p;
}

/* False if the entry leaves the recipe to the next. */
static bool run(const mxa_attention_impl *impl, const char *recipe_text, mxa_problem p, float *q_row,
                float *k_rows, float *v_rows, const float *sink, float *o, float *lse)
{
    const int64_t dim = p.head_dim;
    mxa_recipe recipe;
    assert_int_equal(mxa_recipe_parse(recipe_text, &recipe), MXA_OK);
    mxa_plan *plan;
    assert_int_equal(mxa_plan_create(&p, &recipe, &plan), MXA_OK);
    const mxa_status fits = mxa_cpu_plan(plan, impl);
    if (fits == MXA_ERR_UNSUPPORTED) {
        mxa_plan_free(plan);
        return false;
    }
    assert_int_equal(fits, MXA_OK);
    const mxa_tensor q = mxa_tensor_contiguous(q_row, MXA_DTYPE_F32, 1, 1, 1, dim);
    const mxa_tensor k = mxa_tensor_contiguous(k_rows, MXA_DTYPE_F32, 1, 1, p.kv_len, dim);
    const mxa_tensor v = mxa_tensor_contiguous(v_rows, MXA_DTYPE_F32, 1, 1, p.kv_len, 1);
    const mxa_tensor out = mxa_tensor_contiguous(o, MXA_DTYPE_F32, 1, 1, 1, 1);
    void *const work = aligned_alloc(64, mxa_plan_work_bytes(plan));
    const mxa_attention_args args = { .size = sizeof args,
                                      .q = &q,
                                      .k = &k,
                                      .v = &v,
                                      .out = &out,
                                      .lse = lse,
                                      .sinks = sink,
                                      .work = work,
                                      .work_bytes = mxa_plan_work_bytes(plan) };
    assert_int_equal(mxa_attention(plan, &args), MXA_OK);
    free(work);
    mxa_plan_free(plan);
    return true;
}

static bool near(float want, float got)
{
    /* P and V in bf16: 2^-8 each. */
    return isnan(want) ? isnan(got) : isinf(want) ? want == got : fabsf(want - got) <= fabsf(want) * 0x1p-7f;
}

static void every_entry(void **state)
{
    (void)state;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (size_t i = 0; mxa_cpu_has(impl->needs) && i < sizeof edges / sizeof edges[0]; i++) {
            float o = 123, lse = 123;
            edge e = edges[i];
            const bool ran = run(impl, "low=f32", problem(1, 1), &e.q, e.k, e.v,
                                 e.sink == -INFINITY ? NULL : &e.sink, &o, &lse);
            if (!ran)
                break;
            if (!near(edges[i].o, o) || !near(edges[i].lse, lse))
                fail_msg("%s, %s: o %g, lse %g, not %g, %g", impl->name, edges[i].name, (double)o,
                         (double)lse, (double)edges[i].o, (double)edges[i].lse);
        }
}

/* In any order of these terms, some sums are -Inf in fp32 on the way to 0: the key counts all the same. */
static void sums_that_pass_infinity(void **state)
{
    (void)state;
    enum { DIM = 4 };
    float q[DIM] = { 1e20f, 1e20f, 1e20f, 1e20f }, v[KEYS] = { 1, 2, 6 };
    float k[KEYS * DIM] = { -4e18f, 2e18f, 1e18f, 1e18f, 0, 0, 0, 0, 1e18f, 1e18f, -4e18f, 2e18f };
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++) {
        float o = 123, lse = 123;
        if (!mxa_cpu_has(impl->needs) || !run(impl, "low=f32", problem(1, DIM), q, k, v, NULL, &o, &lse))
            continue;
        if (!near(3.0f, o) || !near(1.0986123f, lse))
            fail_msg("%s: o %g, lse %g", impl->name, (double)o, (double)lse);
    }
}

/* The sum of key 0 times its factor alone is -Inf in fp32; with the query's small factor its logit is -4. */
static void factors_that_pass_infinity(void **state)
{
    (void)state;
    enum { DIM = 4 };
    static const char *const recipes[] = { "int8", "fp8" };
    float q[DIM] = { 1e-32f, 1e-32f, 1e-32f, 1e-32f }, v[KEYS] = { 100, 2, 6 };
    float k[KEYS * DIM] = { -1e36f, -1e36f, -1e36f, -1e36f };
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (int i = 0; i < 2 && mxa_cpu_has(impl->needs); i++) {
            float o = 123, lse = 123;
            assert_true(run(impl, recipes[i], problem(1e-4f, DIM), q, k, v, NULL, &o, &lse));
            if (!near(4.8712f, o) || !near(0.70226f, lse))
                fail_msg("%s, %s: o %g, lse %g", impl->name, recipes[i], (double)o, (double)lse);
        }
}

/* LSE of a row that sees no key is the sink, also where fp32 does not hold it in base 2. */
static void sinks_of_empty_rows(void **state)
{
    (void)state;
    const float sinks[] = { -3e38f, -2, 3e38f };
    mxa_problem p = problem(1, 1);
    p.causal = true;
    p.q_offset = -1;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (int i = 0; i < 3 && mxa_cpu_has(impl->needs); i++) {
            float q = 1, k[KEYS] = { 1, 1, 1 }, v[KEYS] = { 1, 2, 4 }, o = 123, lse = 123;
            if (!run(impl, "low=f32", p, &q, k, v, &sinks[i], &o, &lse))
                break;
            if (o != 0 || !near(sinks[i], lse))
                fail_msg("%s, sink %g: o %g, lse %g", impl->name, (double)sinks[i], (double)o, (double)lse);
        }
}

/* 1.44 times this cap is infinite in fp32; negative logits are no masked ones. */
static void cap_near_the_largest_number(void **state)
{
    (void)state;
    mxa_problem p = problem(1, 1);
    p.softcap = 3e38f;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++) {
        float q = 1, k[KEYS] = { -1, -1, -1 }, v[KEYS] = { 1, 2, 6 }, sink = 0, o = 123, lse = 123;
        if (!mxa_cpu_has(impl->needs) || !run(impl, "low=f32", p, &q, k, v, &sink, &o, &lse))
            continue;
        if (!near(1.5738f, o) || !near(0.74367f, lse))
            fail_msg("%s: o %g, lse %g", impl->name, (double)o, (double)lse);
    }
}

/* One key's LSE is its logit, which 2^x of P's precision would miss. */
static void capped_logits(void **state)
{
    (void)state;
    mxa_problem p = problem(1, 1);
    p.kv_len = 1;
    p.softcap = 50;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (float k = 1; k < 200 && mxa_cpu_has(impl->needs); k *= 1.05f) {
            float q = 1, v = 1, o = 123, lse = 123;
            if (!run(impl, "low=f32", p, &q, &k, &v, NULL, &o, &lse))
                break;
            const double want = 50 * tanh((double)k / 50), bound = 50 * 8 * impl->sum_eps + 0x1p-22 * want;
            if (fabs((double)lse - want) > bound)
                fail_msg("%s, %g: lse %.9g, not %.9g", impl->name, (double)k, (double)lse, want);
        }
}

/* The maximum rises a little in each key tile: what rescaling gets wrong must not add up. */
static void rising_logits(void **state)
{
    (void)state;
    enum { N_TILES = 60, N = N_TILES * MXA_TILE };
    static float k[N], v[N];
    const double rise = 0.04;
    double sum = 0;
    for (int j = 0; j < N; j++) {
        k[j] = (float)(rise * (j / MXA_TILE));
        sum += exp((double)k[j]);
    }
    mxa_problem p = problem(1, 1);
    p.kv_len = N;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++) {
        float q = 1, o = 123, lse = 123;
        if (!mxa_cpu_has(impl->needs) || !run(impl, "low=f32", p, &q, k, v, NULL, &o, &lse))
            continue;
        if (fabs((double)lse - log(sum)) > impl->exp2_eps + 0x1p-22 * log(sum))
            fail_msg("%s: lse %.9g, not %.9g", impl->name, (double)lse, log(sum));
    }
}

/* Of V only its size changes, to where 16-bit products flush or overflow. */
static void sizes_of_v(void **state)
{
    (void)state;
    static const char *const recipes[] = { "bf16", "low=f32" };
    const double weight = exp(-6.0), want = weight * (2 + 6) / (1 + 2 * weight);
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (int log2 = -130; log2 <= 124 && mxa_cpu_has(impl->needs); log2++)
            for (int i = 0; i < 2; i++) {
                float q = 1, k[KEYS] = { 0, -6, -6 }, o = 123, lse = 123;
                float v[KEYS] = { 0, ldexpf(2, log2), ldexpf(6, log2) };
                if (!run(impl, recipes[i], problem(1, 1), &q, k, v, NULL, &o, &lse))
                    continue;
                const double unit = ldexp(1, log2), bound = 0x1p-7 * want * unit + 0x1p-149;
                if (fabs((double)o - want * unit) > bound || fabs((double)lse - log1p(2 * weight)) > 0x1p-17)
                    fail_msg("%s, %s, V times 2^%d: o %g, lse %g", impl->name, recipes[i], log2, (double)o,
                             (double)lse);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_entry),
                                        cmocka_unit_test(sums_that_pass_infinity),
                                        cmocka_unit_test(factors_that_pass_infinity),
                                        cmocka_unit_test(sinks_of_empty_rows),
                                        cmocka_unit_test(cap_near_the_largest_number),
                                        cmocka_unit_test(capped_logits),
                                        cmocka_unit_test(rising_logits),
                                        cmocka_unit_test(sizes_of_v) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
