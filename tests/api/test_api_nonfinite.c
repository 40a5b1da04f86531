/* SPDX-License-Identifier: Apache-2.0 */
/* The three policies for NaN and Inf. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>

static void test_propagate(void **state)
{
    for (int f = 0; f < API_FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 130, 64);
        api_set_normal(&x, 35);
        api_set(&x, 0, 1, 129, 3, NAN);
        api_set(&x, 0, 1, 129, 4, -INFINITY);
        api_set(&x, 0, 0, 5, 60, INFINITY);
        const api_packed p = api_packed_new(api_formats[f], NULL, x.shape);
        int64_t n_bad = -1;
        api_ok(mxa_quantize(&x, api_formats[f], NULL, &p.data, &n_bad));
        assert_int_equal(n_bad, f < API_PLAIN ? 0 : mxa_format_get(api_formats[f])->block > 0 ? 2 : 3);
        if (f >= API_PLAIN) {
            static const uint8_t tiles[] = { 1, 0, 0, 1 };
            assert_memory_equal(p.data.nonfinite_tiles, tiles, sizeof tiles);
        }
        const mxa_tensor y = api_dequantize(&p, api_formats[f], NULL, MXA_DTYPE_F32, x.shape);
        const int64_t block =
            mxa_format_get(api_formats[f])->block > 0 ? mxa_format_get(api_formats[f])->block : 1;
        for (int64_t i = 0; i < 2 * 130 * 64; i++) {
            const int64_t h = i / (130 * 64), s = i / 64 % 130, d = i % 64;
            const bool bad = (h == 1 && s == 129 && (d / block == 3 / block || d / block == 4 / block)) ||
                             (h == 0 && s == 5 && d / block == 60 / block);
            const double value = api_get(&y, 0, h, s, d);
            if (f >= API_PLAIN)
                assert_int_equal(isnan(value), bad);
            else
                assert_int_equal(isfinite(value), !bad);
        }
        api_teardown(state);
    }
}

static void test_error_policy(void **state)
{
    static const double bad[] = { NAN, INFINITY, -INFINITY };
    for (int f = 0; f < API_FORMATS; f++)
        for (int i = 0; i < 3; i++) {
            const mxa_tensor x = api_tensor(MXA_DTYPE_F16, 2, 1, 9, 32);
            api_set_normal(&x, 36);
            mxa_quant_opts opts = api_opts();
            opts.nonfinite = MXA_NONFINITE_ERROR;
            api_quantize(&x, api_formats[f], &opts);
            api_set(&x, 1, 0, 8, 31, bad[i]);
            const api_packed p = api_packed_new(api_formats[f], &opts, x.shape);
            int64_t n_bad = 77;
            api_refused(mxa_quantize(&x, api_formats[f], &opts, &p.data, &n_bad), MXA_ERR_NONFINITE, "x",
                        NULL);
            api_packed_untouched(&p);
            assert_int_equal(n_bad, 77);
            api_teardown(state);
        }
}

static void test_sanitize(void **state)
{
    static const double largest[] = { 0x1.fffffep127, 65504, 0x1.fep127 };
    for (int f = 0; f < API_FORMATS; f++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 1, 2, 32);
            api_set_normal(&x, 37);
            mxa_quant_opts opts = api_opts();
            opts.nonfinite = MXA_NONFINITE_SANITIZE;
            api_set(&x, 0, 0, 0, 3, 0);
            api_set(&x, 0, 0, 0, 4, -largest[dtype]);
            api_set(&x, 0, 0, 1, 5, largest[dtype]);
            const api_packed want = api_quantize(&x, api_formats[f], &opts);
            api_set(&x, 0, 0, 0, 3, NAN);
            api_set(&x, 0, 0, 0, 4, -INFINITY);
            api_set(&x, 0, 0, 1, 5, INFINITY);
            const api_packed got = api_quantize(&x, api_formats[f], &opts);
            api_packed_same(&want, &got);
            api_teardown(state);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_propagate),
        API_TEST(test_error_policy),
        API_TEST(test_sanitize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
