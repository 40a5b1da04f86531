/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small inputs that made published attention libraries give a wrong answer, with the answer in closed form.
 * Each runs through every recipe that it fits. Other tests hold the rest: formats (test_cases_formats.c),
 * merging of empty parts (test_api_merge.c), heads that do not divide (test_api_plan.c), strided views and
 * rows past the last sequence (test_api_promises.c).
 */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { DIM = 64 };

static const int64_t q_lens[] = { 1, 7, 64, 128, 129 };
enum { Q_LENS = sizeof q_lens / sizeof *q_lens };

/* One head; V is F16, which holds the integers to 2048. */
static api_call call_of(const char *recipe, int64_t q_len, int64_t kv_len)
{
    api_call call = api_call_new(1, 1, 1, q_len, kv_len, DIM);
    call.recipe = recipe;
    call.problem.v_dtype = MXA_DTYPE_F16;
    api_tensors_of(&call);
    return call;
}

/* Queries of 0 see all keys alike; V counts the keys. */
static api_call counting_call(const char *recipe, int64_t q_len, int64_t kv_len)
{
    const api_call call = call_of(recipe, q_len, kv_len);
    api_set_all(&call.q, 0);
    api_set_normal(&call.k, 1);
    for (int64_t j = 0; j < kv_len; j++)
        api_set_row(&call.v, 0, 0, j, (double)j);
    return call;
}

static void expect_row(const api_call *call, int64_t i, double o, double lse)
{
    const double lse_bound = 1e-3 * fmax(1, fabs(lse) / 256);
    for (int64_t d = 0; d < call->out.shape[3]; d++)
        if (!(fabs(api_get(&call->out, 0, 0, i, d) - o) <= 1e-3))
            fail_msg("%s: O of row %lld is %g instead of %g", call->recipe, (long long)i,
                     api_get(&call->out, 0, 0, i, d), o);
    if (!(call->lse[i] == lse || fabs(call->lse[i] - lse) <= lse_bound))
        fail_msg("%s: LSE of row %lld is %g instead of %g", call->recipe, (long long)i, call->lse[i], lse);
}

/* Row i averages the keys first to last of a counting call; none if last < first. */
static void expect_mean(const api_call *call, int64_t i, int64_t first, int64_t last)
{
    if (last < first)
        expect_row(call, i, 0, -INFINITY);
    else
        expect_row(call, i, (double)(first + last) / 2, log((double)(last - first + 1)));
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* S01: the causal diagonal ends in the last corner. */
static void test_s01_causal_corner(void **state)
{
    static const int64_t sizes[][2] = { { 1, 16 }, { 2, 5 }, { 5, 2 }, { 129, 1000 }, { 1000, 129 } };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int s = 0; s < 5; s++) {
            api_call call = counting_call(api_recipes[r], sizes[s][0], sizes[s][1]);
            call.problem.causal = true;
            api_attend(&call);
            for (int64_t i = 0; i < sizes[s][0]; i++)
                expect_mean(&call, i, 0, i + sizes[s][1] - sizes[s][0]);
            api_teardown(state);
        }
}

/*
 * S02: logits of -131072 are ordinary; a masked key with logit 0 beats none of them. Factors g of q and of
 * k, each rounded to fp32, may move a logit by 2^-23 of itself.
 */
static void test_s02_very_negative_logits(void **state)
{
    enum { KEYS = 64 };
    const double factor_error = 131072 * 0x1p-23;
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int l = 0; l < Q_LENS; l++)
            for (int masked = 0; masked < 2; masked++) {
                api_call call = call_of(api_recipes[r], q_lens[l], KEYS + masked);
                call.problem.softmax_scale = 1;
                api_set_all(&call.q, 0);
                api_set_all(&call.k, 0);
                api_set_all(&call.v, 1);
                for (int64_t i = 0; i < q_lens[l]; i++)
                    api_set(&call.q, 0, 0, i, 0, 4);
                for (int64_t j = 0; j < KEYS; j++)
                    api_set(&call.k, 0, 0, j, 0, -32768);
                call.problem.causal = masked;
                call.problem.q_offset = KEYS - q_lens[l];
                api_attend(&call);
                for (int64_t i = 0; i < q_lens[l]; i++) {
                    const int64_t n = masked ? KEYS - q_lens[l] + i + 1 : KEYS;
                    expect_row(&call, i, n > 0, n > 0 ? -131072 + log((double)n) : -INFINITY);
                    const double error = n > 0 ? fabs(call.lse[i] - (-131072 + log((double)n))) : 0;
                    if (!(error < 0.02 + factor_error))
                        fail_msg("%s: LSE is off by %g", call.recipe, error);
                }
                api_teardown(state);
            }
}

/* S03: a row without keys is 0 with LSE -inf. */
static void test_s03_empty_rows(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int64_t kv_len = 0; kv_len <= 17; kv_len += 17) {
            api_call call = counting_call(api_recipes[r], 65, kv_len);
            call.problem.causal = true;
            api_attend(&call);
            for (int64_t i = 0; i < 65; i++)
                expect_mean(&call, i, 0, i + kv_len - 65);
            api_teardown(state);
        }
}

/* S05: sequences without queries, without keys, without both. */
static void test_s05_zero_length_sequences(void **state)
{
    static const int32_t cu[][2][5] = { { { 0, 0, 1, 1, 2 }, { 0, 0, 3, 3, 8 } },
                                        { { 0, 5, 5, 5, 5 }, { 0, 0, 0, 0, 0 } },
                                        { { 0, 0, 0, 0, 0 }, { 0, 5, 5, 5, 5 } },
                                        { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } },
                                        { { 0, 0, 0, 2, 3 }, { 0, 1, 2, 2, 9 } } };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int c = 0; c < 5; c++) {
            api_call call = api_call_new(4, 9, 3, cu[c][0][4], cu[c][1][4], DIM);
            call.recipe = api_recipes[r];
            call.problem.cu_seqlens_q = cu[c][0];
            call.problem.cu_seqlens_k = cu[c][1];
            api_tensors_of(&call);
            api_lossless_inputs(&call, 0, 5);
            api_attend_and_check(&call);
            api_teardown(state);
        }
}

/* S06: whole tiles of keys lie before the window. */
static void test_s06_tiles_before_the_window(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = counting_call(api_recipes[r], 600, 600);
        call.problem.causal = true;
        call.problem.window_left = 9;
        api_attend(&call);
        for (int64_t i = 0; i < 600; i++)
            expect_mean(&call, i, most(0, i - 9), i);
        api_teardown(state);
    }
}

/*
 * S07: a window of (3, 0) is 4 keys; windows as long as the sequence are no windows; it follows the
 * diagonal.
 */
static void test_s07_window_meaning(void **state)
{
    enum { LEN = 300 };
    static const int64_t lefts[] = { MXA_UNLIMITED, LEN, LEN - 1 };
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call causal = counting_call(api_recipes[r], LEN, LEN);
        api_set_normal(&causal.q, 2);
        causal.problem.causal = true;
        api_attend(&causal);
        for (int w = 0; w < 3; w++) {
            api_call windowed = causal;
            windowed.problem.causal = false;
            windowed.problem.window_left = lefts[w];
            windowed.problem.window_right = 0;
            windowed.out = api_tensor(MXA_DTYPE_F32, 1, 1, LEN, DIM);
            api_attend(&windowed);
            api_same_bits(&causal.out, &windowed.out);
        }
        for (int64_t q_len = 40; q_len <= LEN; q_len += LEN - 40) {
            api_call four = counting_call(api_recipes[r], q_len, LEN);
            four.problem.window_left = 3;
            four.problem.window_right = 0;
            api_attend(&four);
            for (int64_t i = 0; i < q_len; i++)
                expect_mean(&four, i, most(0, i + LEN - q_len - 3), i + LEN - q_len);
        }
        api_teardown(state);
    }
}

/* S08: the cap comes before the mask, so a masked key stays at weight 0. */
static void test_s08_softcap_before_mask(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = counting_call(api_recipes[r], 4, 4);
        call.problem.causal = true;
        call.problem.softcap = 1;
        api_attend(&call);
        for (int64_t i = 0; i < 4; i++)
            expect_mean(&call, i, 0, i);
        assert_true(api_get(&call.out, 0, 0, 0, 0) == 0);
        api_teardown(state);
    }
}

/* S13: zeros, of either sign, give zeros and even weights. */
static void test_s13_zero_blocks(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int l = 0; l < Q_LENS; l++) {
            api_call call = call_of(api_recipes[r], q_lens[l], 200);
            api_set_all(&call.q, l % 2 == 0 ? 0 : -0.0);
            api_set_all(&call.k, l % 2 == 0 ? -0.0 : 0);
            api_set_all(&call.v, 0);
            api_attend(&call);
            for (int64_t i = 0; i < q_lens[l]; i++)
                expect_row(&call, i, 0, log(200));
            api_set_all(&call.q, 2);
            for (int64_t j = 0; j < 200; j++)
                api_set(&call.k, 0, 0, j, 40, 4); /* the other block of 32 stays zero */
            api_set_all(&call.v, 1);
            api_attend(&call);
            for (int64_t i = 0; i < q_lens[l]; i++)
                expect_row(&call, i, 1, 1 + log(200));
            api_teardown(state);
        }
}

/* S14: NaN or Inf in one key makes the rows that see it NaN, and no other. */
static void test_s14_nan_and_inf_in_a_key(void **state)
{
    static const double bad[] = { NAN, INFINITY };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int b = 0; b < 2; b++) {
            api_call call = counting_call(api_recipes[r], 200, 200);
            call.problem.causal = true;
            api_set_all(&call.k, 0);
            api_set_all(&call.q, 1);
            api_set(&call.k, 0, 0, 150, 33, bad[b]);
            api_attend(&call);
            for (int64_t i = 0; i < 150; i++)
                expect_mean(&call, i, 0, i);
            for (int64_t i = 150; i < 200; i++)
                assert_true(isnan(call.lse[i]) && isnan(api_get(&call.out, 0, 0, i, 0)));
            api_teardown(state);
        }
}

/* S15: LSE is a natural logarithm, and split keys merge in that base. */
static void test_s15_lse_base(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int l = 0; l < Q_LENS; l++) {
            api_call whole = counting_call(api_recipes[r], q_lens[l], 128);
            api_attend(&whole);
            api_call part = counting_call(api_recipes[r], q_lens[l], 48);
            api_call rest = counting_call(api_recipes[r], q_lens[l], 80);
            for (int64_t j = 0; j < 80; j++)
                api_set_row(&rest.v, 0, 0, j, (double)(48 + j));
            api_attend(&part);
            api_attend(&rest);
            const mxa_tensor parts[] = { part.out, rest.out };
            const float *const lse[] = { part.lse, rest.lse };
            for (int merged = 0; merged < 2; merged++) {
                for (int64_t i = 0; i < q_lens[l]; i++)
                    expect_row(&whole, i, 63.5, 4.852030);
                api_ok(mxa_merge(2, parts, lse, NULL, &whole.out, whole.lse));
            }
            api_teardown(state);
        }
}

/* S19: every element of the output and of LSE is written, whatever lay there. */
static void test_s19_output_written(void **state)
{
    static const mxa_dtype dtypes[] = { MXA_DTYPE_F32, MXA_DTYPE_F16, MXA_DTYPE_BF16 };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int l = 0; l < Q_LENS; l++) {
            api_call call = api_call_new(1, 2, 1, q_lens[l], 200, DIM);
            call.recipe = api_recipes[r];
            call.problem.out_dtype = dtypes[l % 3];
            api_tensors_of(&call);
            api_random_inputs(&call, 19);
            api_set_all(&call.v, 1);
            api_attend(&call);
            for (int64_t i = 0; i < 2 * q_lens[l]; i++) {
                assert_true(isfinite(call.lse[i]));
                for (int64_t d = 0; d < DIM; d++)
                    assert_true(fabs(api_get(&call.out, 0, i / q_lens[l], i % q_lens[l], d) - 1) <= 0x1p-8);
            }
            api_teardown(state);
        }
}

/* S20: what no kernel does is refused by name, and the plan says what runs instead of nothing. */
static void test_s20_no_silent_fallback(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = counting_call(api_recipes[r], 7, 7);
        call.problem.head_dim = 257;
        api_refused(api_try(&call), MXA_ERR_UNSUPPORTED, "head_dim", "257");
        call.problem.head_dim = DIM;
        call.problem.device = MXA_DEVICE_CUDA_0;
        if (api_try(&call) != MXA_OK)
            api_refused(api_try(&call), MXA_ERR_DEVICE, "device", NULL);
        api_teardown(state);
    }
}

/* S21: scale 0 is a scale, and a negative one turns the order of the logits round. */
static void test_s21_scale_zero_and_negative(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int l = 0; l < Q_LENS; l++) {
            api_call call = counting_call(api_recipes[r], q_lens[l], 200);
            api_set_normal(&call.q, 21);
            call.problem.softmax_scale = 0;
            api_attend(&call);
            for (int64_t i = 0; i < q_lens[l]; i++)
                expect_mean(&call, i, 0, 199);
            call.problem.softmax_scale = -1;
            api_set_all(&call.q, 0);
            api_set_all(&call.k, 0);
            for (int64_t i = 0; i < q_lens[l]; i++)
                api_set(&call.q, 0, 0, i, 9, 8);
            for (int64_t j = 0; j < 200; j++)
                api_set(&call.k, 0, 0, j, 9, j == 70 ? -12.5 : 12.5); /* logits -100, one of 100 */
            api_attend(&call);
            if (strcmp(call.recipe, "exact") == 0 || strcmp(call.recipe, "bf16") == 0)
                for (int64_t i = 0; i < q_lens[l]; i++)
                    expect_row(&call, i, 70, 100);
            for (int64_t i = 0; i < q_lens[l]; i++)
                assert_true(fabs(api_get(&call.out, 0, 0, i, 0) - 70) <= 1e-3 && fabs(call.lse[i] - 100) < 5);
            api_teardown(state);
        }
}

/*
 * Relative L2 error of a recipe over keys with a constant of `bias` in 4 channels of 2 blocks, bf16 inputs.
 */
static double error_with_bias(const char *recipe, double bias)
{
    enum { Q_ROWS = 64, KEYS = 512 };
    api_call call = api_call_new(1, 1, 1, Q_ROWS, KEYS, DIM);
    call.recipe = recipe;
    call.problem.q_dtype = call.problem.k_dtype = call.problem.v_dtype = MXA_DTYPE_BF16;
    call.problem.causal = true;
    api_tensors_of(&call);
    api_random_inputs(&call, 24);
    for (int64_t j = 0; j < KEYS; j++)
        for (int64_t d = 5; d < DIM; d += 16)
            api_set(&call.k, 0, 0, j, d, api_get(&call.k, 0, 0, j, d) + bias);
    const api_expected want = api_oracle(&call);
    api_attend(&call);
    double error = 0, norm = 0;
    for (int64_t at = 0; at < Q_ROWS * DIM; at++) {
        error += pow(api_get(&call.out, 0, 0, at / DIM, at % DIM) - want.o[at], 2);
        norm += pow(want.o[at], 2);
    }
    return sqrt(error / norm);
}

/* S24: with smoothing a large constant in K costs nothing; without it the result is lost. */
static void test_s24_constant_bias_of_keys(void **state)
{
    static const char *const recipes[] = { "dma8", "dma4", "dma8-fp8", "dma4-fp8" };
    static const char *const without[] = { "low=int8,rotate", "low=mxfp4" };
    for (int r = 0; r < 4; r++) {
        const double plain = error_with_bias(recipes[r], 0), biased = error_with_bias(recipes[r], 600);
        if (!(biased < 1.5 * plain))
            fail_msg("%s: relative error %g with a bias of K, %g without", recipes[r], biased, plain);
    }
    for (int r = 0; r < 2; r++)
        assert_true(error_with_bias(without[r], 600) > 5 * error_with_bias("dma8", 600));
    api_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_s01_causal_corner),
        API_TEST(test_s02_very_negative_logits),
        API_TEST(test_s03_empty_rows),
        API_TEST(test_s05_zero_length_sequences),
        API_TEST(test_s06_tiles_before_the_window),
        API_TEST(test_s07_window_meaning),
        API_TEST(test_s08_softcap_before_mask),
        API_TEST(test_s13_zero_blocks),
        API_TEST(test_s14_nan_and_inf_in_a_key),
        API_TEST(test_s15_lse_base),
        API_TEST(test_s19_output_written),
        API_TEST(test_s20_no_silent_fallback),
        API_TEST(test_s21_scale_zero_and_negative),
        API_TEST(test_s24_constant_bias_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
