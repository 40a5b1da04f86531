/* SPDX-License-Identifier: Apache-2.0 */
/* The steps apart: channel mean, subtraction, rotation. */
#include "api_support.h"

#include <math.h>
#include <string.h>

/* docs/numerics.md, "smooth-K": fp64 sum of the finite values in token order, one division. */
static float expected_mean(const mxa_tensor *x, int64_t h, int64_t d, int64_t n_tokens)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t s = 0; s < n_tokens; s++)
        if (isfinite(api_get(x, 0, h, s, d))) {
            sum += api_get(x, 0, h, s, d);
            count++;
        }
    return count == 0 ? 0 : (float)(sum / (double)count);
}

static void test_mean(void **state)
{
    static const int64_t counts[] = { -1, 0, 1, 128, 200, 201, INT64_MAX };
    for (int dtype = 0; dtype < 3; dtype++)
        for (int i = 0; i < 7; i++) {
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 2, 200, 33);
            api_set_normal(&x, 61);
            api_set(&x, 0, 0, 0, 3, NAN);
            api_set(&x, 0, 1, 17, 4, INFINITY);
            for (int64_t s = 0; s < 200; s++)
                api_set(&x, 0, 1, s, 5, NAN);
            float *const mean = api_floats(2 * 33);
            api_ok(mxa_channel_mean(&x, counts[i], mean));
            for (int64_t c = 0; c < 2 * 33; c++) {
                const int64_t n = counts[i] < 0 || counts[i] > 200 ? 200 : counts[i];
                const float want = expected_mean(&x, c / 33, c % 33, n);
                assert_true(fabsf(mean[c] - want) <= 0x1p-23f * fabsf(want));
            }
            api_teardown(state);
        }
}

static void test_mean_without_data(void **state)
{
    (void)state;
    const mxa_tensor x = mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, 1, 2, 0, 128);
    float *const mean = api_floats(2 * 128);
    api_ok(mxa_channel_mean(&x, -1, mean));
    for (int c = 0; c < 2 * 128; c++)
        assert_true(mean[c] == 0);
}

static void test_mean_errors(void **state)
{
    (void)state;
    mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 20, 32);
    api_set_normal(&x, 62);
    float *const mean = api_floats(2 * 32);
    api_refused(mxa_channel_mean(NULL, -1, mean), MXA_ERR_ARG, "x", "NULL");
    api_refused(mxa_channel_mean(&x, -1, NULL), MXA_ERR_ARG, "mean", "NULL");
    api_refused(mxa_channel_mean(&x, -2, mean), MXA_ERR_ARG, "n_tokens", "-2");

    api_refused(mxa_channel_mean(&x, -1, (float *)((char *)mean + 1)), MXA_ERR_ALIGN, "mean", NULL);
    x.shape[2] = -1;
    api_refused(mxa_channel_mean(&x, -1, mean), MXA_ERR_SHAPE, "x", "-1");
    x.shape[2] = 20;
    x.stride[3] = 5;
    api_refused(mxa_channel_mean(&x, -1, mean), MXA_ERR_ALIGN, "x", "5");
    api_untouched(mean);
}

static void test_subtract(void **state)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        const mxa_tensor x = api_tensor((mxa_dtype)dtype, 2, 2, 5, 33);
        const mxa_tensor out = api_tensor(MXA_DTYPE_F32, 2, 2, 5, 33),
                         want = api_tensor(MXA_DTYPE_F32, 2, 2, 5, 33);
        api_set_normal(&x, 63);
        float *const mean = api_floats(2 * 2 * 33);
        for (int i = 0; i < 2 * 2 * 33; i++)
            mean[i] = (float)i / 7;
        for (int64_t i = 0; i < 2 * 2 * 5 * 33; i++) {
            const int64_t b = i / 330, h = i / 165 % 2, s = i / 33 % 5, d = i % 33;
            api_set(&want, b, h, s, d, (float)api_get(&x, b, h, s, d) - mean[(b * 2 + h) * 33 + d]);
        }
        api_ok(mxa_subtract_mean(&x, mean, &out));
        api_same_bits(&want, &out);
        if (dtype == MXA_DTYPE_F32) {
            api_ok(mxa_subtract_mean(&x, mean, &x));
            api_same_bits(&want, &x);
        }
        api_teardown(state);
    }
}

/* The butterflies of docs/numerics.md, "Rotation", in fp32 and in their order. */
static void rotate_row(float *x, int64_t dim)
{
    const int64_t p = dim & -dim;
    for (int64_t first = 0; first < dim && p > 1; first += p) {
        for (int64_t s = 1; s < p; s *= 2)
            for (int64_t i = first; i < first + p; i++)
                if ((i & s) == 0) {
                    const float a = x[i], b = x[i + s];
                    x[i] = a + b;
                    x[i + s] = a - b;
                }
        for (int64_t i = first; i < first + p; i++)
            x[i] *= (float)(1 / sqrt((double)p));
    }
}

static void test_rotate(void **state)
{
    static const int64_t dims[] = { 1, 2, 3, 33, 64, 80, 96, 128, 192, 256 };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const int64_t dim = dims[i];
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 2, 5, dim),
                             out = api_tensor(MXA_DTYPE_F32, 1, 2, 5, dim);
            const mxa_tensor want = api_tensor(MXA_DTYPE_F32, 1, 2, 5, dim);
            api_set_normal(&x, 64);
            for (int64_t j = 0; j < 2 * 5 * dim; j++)
                ((float *)want.data)[j] = (float)api_get(&x, 0, j / (5 * dim), j / dim % 5, j % dim);
            for (int64_t row = 0; row < 2 * 5; row++)
                rotate_row((float *)want.data + row * dim, dim);
            api_ok(mxa_rotate(&x, &out));
            api_same_bits(&want, &out);
            if (dtype == MXA_DTYPE_F32) {
                const mxa_tensor back = api_tensor(MXA_DTYPE_F32, 1, 2, 5, dim);
                api_ok(mxa_rotate(&out, &back));
                for (int64_t j = 0; j < 2 * 5 * dim; j++)
                    assert_true(fabsf(((float *)back.data)[j] - ((float *)x.data)[j]) < 1e-5f);
            }
            api_teardown(state);
        }
}

/* Both calls take an F32 output of x's shape. */
static void test_output_errors(void **state)
{
    (void)state;
    const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 1, 2, 5, 32),
                     good = api_tensor(MXA_DTYPE_F32, 1, 2, 5, 32);
    api_set_normal(&x, 65);
    float *const mean = memset(api_floats(2 * 32), 0, 2 * 32 * sizeof(float));
    api_refused(mxa_rotate(NULL, &good), MXA_ERR_ARG, "x", "NULL");
    api_refused(mxa_rotate(&x, NULL), MXA_ERR_ARG, "out", "NULL");
    api_refused(mxa_subtract_mean(NULL, mean, &good), MXA_ERR_ARG, "x", "NULL");
    api_refused(mxa_subtract_mean(&x, NULL, &good), MXA_ERR_ARG, "mean", "NULL");
    api_refused(mxa_subtract_mean(&x, mean, NULL), MXA_ERR_ARG, "out", "NULL");
    mxa_tensor out = good;
    out.dtype = MXA_DTYPE_BF16;
    api_refused(mxa_rotate(&x, &out), MXA_ERR_ARG, "out", NULL);
    api_refused(mxa_subtract_mean(&x, mean, &out), MXA_ERR_ARG, "out", NULL);
    out = good;
    out.shape[3] = 31;
    api_refused(mxa_rotate(&x, &out), MXA_ERR_SHAPE, "out", "31");
    api_refused(mxa_subtract_mean(&x, mean, &out), MXA_ERR_SHAPE, "out", "31");
    out = good;
    out.stride[2] = 0;
    api_refused(mxa_rotate(&x, &out), MXA_ERR_ARG, "out", NULL);
    api_refused(mxa_subtract_mean(&x, mean, &out), MXA_ERR_ARG, "out", NULL);
    out = good;
    out.data = (char *)out.data + 2;
    api_refused(mxa_rotate(&x, &out), MXA_ERR_ALIGN, "out", NULL);
    api_refused(mxa_subtract_mean(&x, mean, &out), MXA_ERR_ALIGN, "out", NULL);
    api_untouched(good.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_mean),        API_TEST(test_mean_without_data),
        API_TEST(test_mean_errors), API_TEST(test_subtract),
        API_TEST(test_rotate),      API_TEST(test_output_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
