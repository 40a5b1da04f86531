/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every case of tests/vectors/attention.json, with every entry of the list and every pair of formats that
 * holds the inputs without loss. Expected values were computed with 60 digits; the bound is that of
 * docs/numerics.md, section 12.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bits.h"
#include "cpu/attention_cpu.h"
#include "cpu/features.h"
#include "golden_attention.h"

enum { MAX_CASES = 64 };

static json_t *file;
static golden_case cases[MAX_CASES];
static size_t n_cases;

static int load_file(void **state)
{
    (void)state;
    json_error_t error;
    file = json_load_file("tests/vectors/attention.json", 0, &error);
    n_cases = json_array_size(file);
    for (size_t i = 0; i < n_cases && i < MAX_CASES; i++)
        cases[i] = golden_load(json_array_get(file, i));
    return file && n_cases > 0 && n_cases <= MAX_CASES ? 0 : -1;
}

static int free_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_cases; i++)
        golden_free(&cases[i]);
    json_decref(file);
    return 0;
}

typedef struct result {
    float *o, *lse; /* [heads][q_len][head_dim], [heads][q_len] */
} result;

static void free_result(result *r)
{
    free(r->o);
    free(r->lse);
}

static mxa_problem problem_of(const golden_case *c)
{
    mxa_problem p;
    mxa_problem_default(&p, 1, c->heads, c->heads_kv, c->q_len, c->kv_len, c->head_dim);
    p.softmax_scale = (float)golden_field(c->json, "sm_scale");
    p.softcap = (float)golden_field(c->json, "softcap");
    p.window_left = (int64_t)golden_field(c->json, "window_left");
    p.window_right = (int64_t)golden_field(c->json, "window_right");
    p.threads = 2;
    return p;
}

/* Some entries leave formats to the next. */
static bool runs(const golden_case *c, const mxa_recipe *recipe, const mxa_attention_impl *impl)
{
    const mxa_problem p = problem_of(c);
    mxa_plan *plan;
    assert_int_equal(mxa_plan_create(&p, recipe, &plan), MXA_OK);
    const mxa_status status = mxa_cpu_plan(plan, impl);
    mxa_plan_free(plan);
    return status != MXA_ERR_UNSUPPORTED;
}

/* Run one case; g1: all second-level factors are given and 1. */
static result run(const golden_case *c, const mxa_recipe *recipe, const mxa_attention_impl *impl, bool g1)
{
    const mxa_problem p = problem_of(c);
    mxa_plan *plan;
    assert_int_equal(mxa_plan_create(&p, recipe, &plan), MXA_OK);
    assert_int_equal(mxa_cpu_plan(plan, impl), MXA_OK);
    void *const work = aligned_alloc(64, mxa_plan_work_bytes(plan) + 64);
    const mxa_tensor q = mxa_tensor_contiguous(c->q, MXA_DTYPE_F32, 1, c->heads, c->q_len, c->head_dim);
    mxa_tensor k = mxa_tensor_contiguous(c->k, MXA_DTYPE_F32, 1, c->heads_kv, c->kv_rows, c->head_dim);
    mxa_tensor v = mxa_tensor_contiguous(c->v, MXA_DTYPE_F32, 1, c->heads_kv, c->kv_rows, c->head_dim);
    k.shape[2] = v.shape[2] = c->kv_len;
    result r = { malloc((size_t)(c->heads * c->q_len * c->head_dim) * sizeof(float)),
                 malloc((size_t)(c->heads * c->q_len) * sizeof(float)) };
    memset(r.o, 0xFF, (size_t)(c->heads * c->q_len * c->head_dim) * sizeof(float));
    memset(r.lse, 0xFF, (size_t)(c->heads * c->q_len) * sizeof(float));
    const mxa_tensor out = mxa_tensor_contiguous(r.o, MXA_DTYPE_F32, 1, c->heads, c->q_len, c->head_dim);
    const float one = 1.0f;
    mxa_attention_args args = { .size = sizeof args,
                                .q = &q,
                                .k = &k,
                                .v = &v,
                                .out = &out,
                                .lse = r.lse,
                                .sinks = c->sinks,
                                .g_q = g1 ? &one : NULL,
                                .g_k = g1 ? &one : NULL,
                                .work = work,
                                .work_bytes = mxa_plan_work_bytes(plan) };
    assert_int_equal(mxa_attention(plan, &args), MXA_OK);
    free(work);
    mxa_plan_free(plan);
    return r;
}

/*
 * Bounds of docs/numerics.md, section 12, for row i of head h from the unquantised inputs, which the copies
 * hold exactly.
 */
typedef struct bound {
    double logit, weights, lse;
    double v_max;
    int64_t n;
} bound;

static bound bound_of(const golden_case *c, const mxa_attention_impl *impl, int64_t h, int64_t i, double lse)
{
    const int64_t h_kv = h / (c->heads / c->heads_kv), dim = c->head_dim;
    bound b = { 0 };
    double largest = 0;
    for (int64_t j = 0; j < c->kv_len; j++) {
        double sum = 0;
        for (int64_t d = 0; d < dim; d++) {
            const double k = (double)c->k[(h_kv * c->kv_rows + j) * dim + d],
                         v = (double)c->v[(h_kv * c->kv_rows + j) * dim + d];
            sum += fabs((double)c->q[(h * c->q_len + i) * dim + d] * k);
            b.v_max = isfinite(v) ? fmax(b.v_max, fabs(v)) : b.v_max;
        }
        largest = isfinite(sum) ? fmax(largest, sum) : largest;
    }
    /* head_dim additions, and five roundings of the logit (factors, bias, base 2). */
    const double eps = fmax(impl->sum_eps, 0x1p-53);
    b.logit = fabs(golden_field(c->json, "sm_scale")) * largest * (double)(dim + 5) * eps;
    const double sums = (double)(c->kv_len + 2) * eps;
    b.lse = b.logit + impl->exp2_eps + sums + (isfinite(lse) ? fabs(lse) * 0x1p-22 : 0);
    b.weights = expm1(2 * b.logit) + (impl->rounds_p ? 0x1p-8 : 0) + 2 * impl->exp2_eps + 2 * sums;
    return b;
}

/* Inf and NaN must agree before values are compared. */
static void assert_near(const golden_case *c, const char *what, const char *recipe, int64_t index,
                        double want, double got, double limit)
{
    const bool same = isnan(want) ? isnan(got) : isinf(want) ? want == got : fabs(want - got) <= limit;
    if (!same)
        fail_msg("case %s, %s: %s[%lld] is %.9g, not %.9g within %.3g", c->name, recipe, what,
                 (long long)index, got, want, limit);
}

static void compare(const golden_case *c, const char *recipe, const mxa_attention_impl *impl, const result *r)
{
    const int64_t dim = c->head_dim;
    for (int64_t h = 0; h < c->heads; h++) {
        for (int64_t i = 0; i < c->q_len; i++) {
            const double want = c->lse[h * c->q_len + i];
            assert_near(c, "lse", recipe, h * c->q_len + i, want, (double)r->lse[h * c->q_len + i],
                        bound_of(c, impl, h, i, want).lse);
        }
        for (int64_t n = 0; n < c->n_rows; n++) {
            const int64_t i = c->rows[n];
            const bound b = bound_of(c, impl, h, i, 0);
            for (int64_t d = 0; d < dim; d++) {
                const double want = c->o[(h * c->n_rows + n) * dim + d];
                assert_near(c, "o", recipe, (h * c->q_len + i) * dim + d, want,
                            (double)r->o[(h * c->q_len + i) * dim + d],
                            b.weights * b.v_max + 0x1p-23 * fabs(want));
            }
        }
    }
}

/* Names of formats in the file and in recipes. */
static const char *const format_names[][2] = {
    { "MX-E4M3", "mxfp8" }, { "MX-E5M2", "mxfp8-e5m2" }, { "MX-E3M2", "mxfp6" }, { "MX-E2M3", "mxfp6-e2m3" },
    { "MX-E2M1", "mxfp4" }, { "MX-INT8", "mxint8" },     { "NVFP4", "nvfp4" },   { "FP8", "fp8" },
};

static bool holds(const golden_case *c, const char *operand, const char *format)
{
    const json_t *list = json_object_get(json_object_get(c->json, "exact_in"), operand);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), format) == 0)
            return true;
    return false;
}

static const golden_case *case_named(const char *name)
{
    for (size_t i = 0; i < n_cases; i++)
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    return NULL;
}

/* Rows that don't see the poisoned token have the bits of the clean case. */
static void compare_clean(const golden_case *c, const mxa_recipe *recipe, const mxa_attention_impl *impl,
                          bool g1, const result *r)
{
    const char *const clean_name = json_string_value(json_object_get(c->json, "clean_case"));
    if (!clean_name)
        return;
    result clean = run(case_named(clean_name), recipe, impl, g1);
    const json_t *rows = json_object_get(c->json, "rows_as_clean");
    for (size_t n = 0; n < json_array_size(rows); n++) {
        const int64_t i = (int64_t)json_integer_value(json_array_get(rows, n));
        assert_memory_equal(r->o + i * c->head_dim, clean.o + i * c->head_dim,
                            (size_t)c->head_dim * sizeof(float));
        assert_memory_equal(r->lse + i, clean.lse + i, sizeof(float));
    }
    free_result(&clean);
}

static void check_recipe(const golden_case *c, const char *text, const mxa_attention_impl *impl, bool g1)
{
    mxa_recipe recipe;
    assert_int_equal(mxa_recipe_parse(text, &recipe), MXA_OK);
    if (!runs(c, &recipe, impl))
        return;
    result r = run(c, &recipe, impl, g1);
    compare(c, text, impl, &r);
    compare_clean(c, &recipe, impl, g1, &r);
    free_result(&r);
}

/* All tiles low in one format, and a diagonal of the other format: the result is the same. */
static void check_formats(const golden_case *c, const mxa_attention_impl *impl)
{
    enum { N = sizeof format_names / sizeof format_names[0] };
    const bool smooth = json_is_true(json_object_get(c->json, "smooth_k"));
    for (int f = 0; f < N; f++) {
        if (!holds(c, "q", format_names[f][0]) || !holds(c, "k", format_names[f][0]))
            continue;
        const bool has_g = strcmp(format_names[f][1], "nvfp4") == 0 || strcmp(format_names[f][1], "fp8") == 0;
        const char *const level = has_g ? ",level_q=tensor,level_k=tensor" : "", *const mean =
                                                                                     smooth ? ",smooth-k=full"
                                                                                            : "";
        char text[128];
        snprintf(text, sizeof text, "low=%s%s%s", format_names[f][1], level, mean);
        check_recipe(c, text, impl, has_g);
        snprintf(text, sizeof text, "low=f32,high=%s,diag=%d,sink=%d%s%s", format_names[f][1],
                 (int)golden_field(c->json, "diag_window"), (int)golden_field(c->json, "sink_window"), level,
                 mean);
        check_recipe(c, text, impl, has_g);
        check_recipe(c, "low=f32", impl, false);
        check_recipe(c, "low=f32,rotate", impl, false);
    }
}

static const mxa_recipe *exact_recipe(void)
{
    static mxa_recipe recipe;
    assert_int_equal(mxa_recipe_parse("exact", &recipe), MXA_OK);
    return &recipe;
}

static void every_entry_gives_the_stored_result(void **state)
{
    (void)state;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        for (size_t i = 0; mxa_cpu_has(impl->needs) && i < n_cases; i++)
            if (json_object_size(json_object_get(cases[i].json, "exact_in")) > 0)
                check_formats(&cases[i], impl);
}

static void exact_gives_the_stored_result(void **state)
{
    (void)state;
    const mxa_attention_impl *ref = mxa_attention_impls;
    while (ref[1].name)
        ref++;
    for (size_t i = 0; i < n_cases; i++) {
        if (json_object_size(json_object_get(cases[i].json, "exact_in")) == 0)
            continue;
        result r = run(&cases[i], exact_recipe(), ref, false);
        compare(&cases[i], "exact", ref, &r);
        free_result(&r);
    }
}

/* X6: the inputs are quantised for real. */
static void mixed_run_gives_the_stored_result(void **state)
{
    (void)state;
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl->name; impl++)
        if (mxa_cpu_has(impl->needs))
            check_recipe(case_named("X6"), "low=nvfp4,high=mxfp8,diag=1,sink=0", impl, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_gives_the_stored_result),
        cmocka_unit_test(every_entry_gives_the_stored_result),
        cmocka_unit_test(mixed_run_gives_the_stored_result),
    };
    return cmocka_run_group_tests(tests, load_file, free_file);
}
