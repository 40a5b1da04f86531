/* SPDX-License-Identifier: Apache-2.0 */
/* Merging partial results over disjoint keys. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MOST = 8 };

/* n parts of one row and one channel each. */
typedef struct states {
    int n;
    mxa_tensor o[MOST], out;
    float *lse[MOST], *out_lse;
} states;

static states states_of(int n, const float *o, const float *lse)
{
    states s = { .n = n, .out = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 1), .out_lse = api_floats(1) };
    for (int i = 0; i < n; i++) {
        s.o[i] = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 1);
        api_set(&s.o[i], 0, 0, 0, 0, o[i]);
        s.lse[i] = api_floats(1);
        *s.lse[i] = lse[i];
    }
    return s;
}

static void check_states(states *s, const float *sinks, double o, double lse)
{
    api_ok(mxa_merge(s->n, s->o, (const float *const *)s->lse, sinks, &s->out, s->out_lse));
    const double got = api_get(&s->out, 0, 0, 0, 0);
    assert_true(fabs(got - o) <= 1e-6 * fabs(o));
    assert_true(*s->out_lse == lse || fabs(*s->out_lse - lse) <= 1e-6 * fmax(1, fabs(lse)));
}

static void test_empty_parts(void **state)
{
    (void)state;
    const float none = -INFINITY;
    states s = states_of(2, (float[]){ 0, 0 }, (float[]){ none, none });
    check_states(&s, NULL, 0, none);
    s.n = 0;
    check_states(&s, NULL, 0, none);
    s = states_of(1, (float[]){ 0 }, (float[]){ none });
    check_states(&s, NULL, 0, none);
    s = states_of(2, (float[]){ 0.7f, 0 }, (float[]){ 3, none });
    check_states(&s, NULL, 0.7f, 3);
    assert_true(api_get(&s.out, 0, 0, 0, 0) == 0.7f && *s.out_lse == 3);
    s = states_of(2, (float[]){ 0, -0.7f }, (float[]){ none, -900 });
    check_states(&s, NULL, -0.7f, -900);
    s = states_of(8, (float[MOST]){ [5] = 2.5f }, (float[]){ none, none, none, none, none, 1, none, none });
    check_states(&s, NULL, 2.5, 1);
}

static void test_large_lse(void **state)
{
    (void)state;
    states s = states_of(2, (float[]){ 1, 2 }, (float[]){ 1000, -1000 });
    check_states(&s, NULL, 1, 1000);
    s = states_of(2, (float[]){ 1, 2 }, (float[]){ -1000, -1000 });
    check_states(&s, NULL, 1.5, -1000 + log(2));
    s = states_of(2, (float[]){ 1, 2 }, (float[]){ 0, 0x1.921fb6p+0f });
    check_states(&s, NULL, (1 + 2 * exp(0x1.921fb6p+0)) / (1 + exp(0x1.921fb6p+0)),
                 log1p(exp(0x1.921fb6p+0)));
    s = states_of(3, (float[]){ 1e38f, -1e38f, 1 }, (float[]){ 3e38f, 1, -3e38f });
    check_states(&s, NULL, 1e38f, 3e38f);
}

/* A sink takes weight once and has no value; -inf is none; alone it leaves O = 0 and its own LSE. */
static void test_sinks(void **state)
{
    (void)state;
    states s = states_of(2, (float[]){ 1, 3 }, (float[]){ 0, 0 });
    const float sink = logf(2), none = -INFINITY, large = 500;
    check_states(&s, &sink, 1, log(4));
    check_states(&s, &none, 2, log(2));
    check_states(&s, &large, 0, 500);
    s = states_of(1, (float[]){ 0 }, (float[]){ -INFINITY });
    check_states(&s, &sink, 0, sink);
}

static void test_nan(void **state)
{
    (void)state;
    states s = states_of(2, (float[]){ 1, NAN }, (float[]){ 0, NAN });
    api_ok(mxa_merge(s.n, s.o, (const float *const *)s.lse, NULL, &s.out, s.out_lse));
    assert_true(isnan(api_get(&s.out, 0, 0, 0, 0)) && isnan(*s.out_lse));
    s = states_of(2, (float[]){ 1, NAN }, (float[]){ 0, -5 });
    api_ok(mxa_merge(s.n, s.o, (const float *const *)s.lse, NULL, &s.out, s.out_lse));
    assert_true(isnan(api_get(&s.out, 0, 0, 0, 0)) && isfinite(*s.out_lse));
    s = states_of(2, (float[]){ INFINITY, -INFINITY }, (float[]){ 0, 0 });
    api_ok(mxa_merge(s.n, s.o, (const float *const *)s.lse, NULL, &s.out, s.out_lse));
    uint32_t bits; /* that of every machine, not what its subtraction makes */
    memcpy(&bits, s.out.data, sizeof bits);
    assert_int_equal(bits, 0x7FC00000);
}

/* Keys [first, first + count) of a call, at their positions. */
static api_call part_of(const api_call *whole, int64_t first, int64_t count)
{
    const mxa_problem *w = &whole->problem;
    api_call part = api_call_new(w->batch, w->heads, w->heads_kv, w->q_len, count, w->head_dim);
    part.recipe = whole->recipe;
    part.q = whole->q;
    part.k = api_rows(&whole->k, first, count);
    part.v = api_rows(&whole->v, first, count);
    part.problem.causal = w->causal;
    part.problem.window_left = w->window_left;
    part.problem.softcap = w->softcap;
    part.problem.q_offset = w->kv_len - w->q_len - first;
    return part;
}

/* However the keys are split, the merged parts are the one call; the sink is counted in the end. */
static void test_split_keys(void **state)
{
    static const char *const recipes[] = { "exact", "bf16", "int8", "mxfp4", "paper-nvfp4" };
    static const int64_t splits[][MOST + 1] = { { 0, 300 },
                                                { 0, 128, 300 },
                                                { 0, 1, 299, 300 },
                                                { 0, 0, 77, 77, 300 },
                                                { 0, 37, 75, 112, 150, 187, 225, 262, 300 } };
    for (int r = 0; r < 5 * 5; r++) {
        api_call whole = api_call_new(1, 4, 2, 30, 300, 64);
        whole.recipe = recipes[r / 5];
        whole.problem.causal = r % 2;
        whole.problem.window_left = r % 3 == 0 ? 60 : MXA_UNLIMITED;
        whole.problem.softcap = r % 5 == 1 ? 3 : 0;
        whole.sinks = r % 4 < 2 ? NULL : (float[]){ 1, -INFINITY, 3, -2 };
        api_lossless_inputs(&whole, 0, 91);
        const api_expected want = api_oracle(&whole);
        mxa_tensor o[MOST];
        const float *lse[MOST];
        int n = 0;
        for (; n < MOST && (n == 0 || splits[r % 5][n] < 300); n++) {
            const api_call part = part_of(&whole, splits[r % 5][n], splits[r % 5][n + 1] - splits[r % 5][n]);
            api_attend(&part);
            o[n] = part.out;
            lse[n] = part.lse;
        }
        api_ok(mxa_merge(n, o, lse, whole.sinks, &whole.out, whole.lse));
        api_tolerance tolerance = api_tolerance_of(&whole);
        tolerance.logit += 0x1p-22; /* each part's LSE is fp32 */
        tolerance.p += 0x1p-21;
        api_check(&whole, &want, tolerance);
        api_teardown(state);
    }
}

/* 16-bit parts and outputs, strided views, the output being one of the parts. */
static void test_types_and_views(void **state)
{
    for (int types = 0; types < 9; types++) {
        mxa_tensor o[2];
        float *lse[2] = { api_floats(2 * 3 * 5), api_floats(2 * 3 * 5) };
        uint64_t seed = 92;
        for (int i = 0; i < 2; i++) {
            o[i] = api_tensor((mxa_dtype)(types % 3), 2, 5, 3, 7); /* [batch][seq][heads][dim] */
            api_set_normal(&o[i], seed + (uint64_t)i);
            o[i].shape[1] = 3;
            o[i].shape[2] = 5;
            o[i].stride[1] = 7;
            o[i].stride[2] = 3 * 7;
            for (int row = 0; row < 2 * 3 * 5; row++)
                lse[i][row] = (float)api_normal(&seed);
        }
        const mxa_tensor out = api_tensor((mxa_dtype)(types / 3), 2, 3, 5, 7);
        api_ok(mxa_merge(2, o, (const float *const *)lse, NULL, &out, NULL));
        for (int64_t i = 0; i < 2 * 3 * 5 * 7; i++) {
            const int64_t b = i / 105, h = i / 35 % 3, s = i / 7 % 5, d = i % 7, row = i / 7;
            const double w = 1 / (1 + exp((double)lse[1][row] - lse[0][row]));
            const double a = api_get(&o[0], b, h, s, d), c = api_get(&o[1], b, h, s, d);
            const double bound = out.dtype == MXA_DTYPE_F32   ? 1e-6
                                 : out.dtype == MXA_DTYPE_F16 ? 0x1p-10
                                                              : 0x1p-7;
            assert_true(fabs(api_get(&out, b, h, s, d) - (w * a + (1 - w) * c)) <=
                        bound * (fabs(a) + fabs(c)));
        }
        if (out.dtype == o[0].dtype) {
            api_ok(mxa_merge(2, o, (const float *const *)lse, NULL, &o[1], NULL));
            api_same_bits(&out, &o[1]);
        }
        api_teardown(state);
    }
}

static void test_errors(void **state)
{
    (void)state;
    mxa_tensor o[2] = { api_tensor(MXA_DTYPE_F32, 1, 2, 3, 8), api_tensor(MXA_DTYPE_F32, 1, 2, 3, 8) };
    const mxa_tensor good_o = o[1], good_out = api_tensor(MXA_DTYPE_F32, 1, 2, 3, 8);
    mxa_tensor out = good_out;
    float *const out_lse = api_floats(6);
    const float *lse[2] = { memset(api_floats(6), 0, 24), memset(api_floats(6), 0, 24) };
    const float *const good_lse = lse[1];

    api_refused(mxa_merge(-1, o, lse, NULL, &out, out_lse), MXA_ERR_ARG, "n", "-1");
    api_refused(mxa_merge(2, NULL, lse, NULL, &out, out_lse), MXA_ERR_ARG, "o", "NULL");
    api_refused(mxa_merge(2, o, NULL, NULL, &out, out_lse), MXA_ERR_ARG, "lse", "NULL");
    api_refused(mxa_merge(2, o, lse, NULL, NULL, out_lse), MXA_ERR_ARG, "out", "NULL");
    lse[1] = NULL;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ARG, "lse", "NULL");
    lse[1] = (const float *)((const char *)good_lse + 2);
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ALIGN, "lse", NULL);
    lse[1] = good_lse;
    o[1].shape[2] = 2;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_SHAPE, "o", "2");
    o[1] = good_o;
    o[1].data = NULL;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ARG, "o", "NULL");
    o[1] = good_o;
    o[1].stride[3] = 4;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ALIGN, "o", "4");
    o[1] = good_o;
    o[1].dtype = (mxa_dtype)8;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ARG, "o", "8");
    o[1] = good_o;
    out.shape[1] = -1;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_SHAPE, "out", "-1");
    out = good_out;
    out.stride[2] = 0;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ARG, "out", NULL);
    out = good_out;
    out.data = (char *)out.data + 1;
    api_refused(mxa_merge(2, o, lse, NULL, &out, out_lse), MXA_ERR_ALIGN, "out", NULL);
    api_untouched(good_out.data);
    api_untouched(out_lse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_empty_parts), API_TEST(test_large_lse),       API_TEST(test_sinks),  API_TEST(test_nan),
        API_TEST(test_split_keys),  API_TEST(test_types_and_views), API_TEST(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
