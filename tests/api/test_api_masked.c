/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that masks hide never shows, whatever it holds; what a row sees shows, NaN included. */
#include "api_support.h"

#include <math.h>
#include <string.h>

enum { DIM = 64 };

static api_call causal_call(const char *recipe, int64_t batch, int64_t q_len, int64_t kv_len)
{
    api_call call = api_call_new(batch, 4, 2, q_len, kv_len, DIM);
    call.recipe = recipe;
    call.problem.causal = true;
    api_random_inputs(&call, 21);
    return call;
}

/* Causal, window: what no row sees may hold anything, also inside a tile that others see in part. */
static void test_masked_memory(void **state)
{
    static const float poison[] = { NAN, INFINITY, -INFINITY };
    for (int r = 0; api_recipes[r] != NULL; r++)
        for (int i = 0; i < 3; i++) {
            api_call clean = causal_call(api_recipes[r], 1, 20, 300), dirty = clean;
            const int64_t offset = 200; /* keys 220 to 299 lie in the future of all rows */
            clean.problem.q_offset = dirty.problem.q_offset = offset;
            dirty.k = api_tensor(MXA_DTYPE_F32, 1, 2, 300, DIM);
            dirty.v = api_tensor(MXA_DTYPE_F32, 1, 2, 300, DIM);
            dirty.out = api_tensor(MXA_DTYPE_F32, 1, 4, 20, DIM);
            for (int64_t j = offset + 20; j < 300; j++)
                for (int64_t h = 0; h < 2; h++) {
                    api_set_row(&clean.k, 0, h, j, 0);
                    api_set_row(&clean.v, 0, h, j, 0);
                }
            api_copy(&dirty.k, &clean.k);
            api_copy(&dirty.v, &clean.v);
            for (int64_t j = offset + 20; j < 300; j++)
                for (int64_t h = 0; h < 2; h++) {
                    api_set_row(&dirty.k, 0, h, j, poison[i]);
                    api_set_row(&dirty.v, 0, h, j, poison[i]);
                }
            api_attend(&clean);
            dirty.lse = api_floats(4 * 20);
            api_attend(&dirty);
            api_same_bits(&clean.out, &dirty.out);
            assert_memory_equal(clean.lse, dirty.lse, 4 * 20 * sizeof(float));
            api_teardown(state);
        }
}

/*
 * NaN in a key reaches the rows that see it, whole; NaN in a value its channel of them; the rest stays as it
 * was.
 */
static void test_visible_nan(void **state)
{
    enum { KEY = 290, SEES = 10 }; /* rows 10 to 19 of 20 see key 290 of 300 */
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call clean = causal_call(api_recipes[r], 1, 20, 300), dirty = clean;
        api_set_row(&clean.k, 0, 0, KEY, 0);
        api_set(&clean.v, 0, 1, KEY, 7, 0);
        api_attend(&clean);
        api_set(&dirty.k, 0, 0, KEY, 5, NAN);
        api_set(&dirty.v, 0, 1, KEY, 7, NAN);
        dirty.out = api_tensor(MXA_DTYPE_F32, 1, 4, 20, DIM);
        dirty.lse = api_floats(4 * 20);
        api_attend(&dirty);
        for (int64_t i = 0; i < 4 * 20 * DIM; i++) {
            const int64_t h = i / (20 * DIM), s = i / DIM % 20, d = i % DIM;
            const double got = api_get(&dirty.out, 0, h, s, d), was = api_get(&clean.out, 0, h, s, d);
            if (s >= SEES && (h < 2 || d == 7))
                assert_true(isnan(got));
            else
                assert_true(got == was);
            assert_int_equal(s >= SEES && h < 2, isnan(dirty.lse[h * 20 + s]));
        }
        api_teardown(state);
    }
}

/* An infinite value reaches its channel even where its weight underflows; both signs give NaN. */
static void test_visible_infinity(void **state)
{
    for (int r = 0; api_recipes[r] != NULL; r++) {
        api_call call = causal_call(api_recipes[r], 1, 1, 200);
        api_set_all(&call.q, 8);
        api_set_all(&call.k, 8);
        for (int64_t h = 0; h < 2; h++)
            api_set_row(&call.k, 0, h, 150, -8);
        api_set(&call.v, 0, 0, 150, 3, INFINITY);
        api_set(&call.v, 0, 1, 150, 4, -INFINITY);
        api_set(&call.v, 0, 1, 160, 4, INFINITY);
        api_attend(&call);
        assert_true(api_get(&call.out, 0, 0, 0, 3) == INFINITY);
        assert_true(api_get(&call.out, 0, 1, 0, 3) == INFINITY);
        assert_true(isnan(api_get(&call.out, 0, 2, 0, 4)));
        assert_true(isfinite(api_get(&call.out, 0, 0, 0, 5)));
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_masked_memory),
        API_TEST(test_visible_nan),
        API_TEST(test_visible_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
