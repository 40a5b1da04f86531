/* SPDX-License-Identifier: Apache-2.0 */
/* The fused quantiser: what it refuses, and that it gives the bytes of two calls. */
#include "api_support.h"

#include <math.h>
#include <string.h>

enum { BATCH = 2, HEADS = 2, SEQ = 160, DIM = 64 };

static mxa_tensor normal_tensor(void)
{
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, BATCH, HEADS, SEQ, DIM);
    api_set_normal(&x, 51);
    return x;
}

/* An INT8 and an MXFP8 copy of x, neither of which is written. */
static void refuse(const mxa_tensor *x, const mxa_quant_opts *low, const mxa_quant_opts *high,
                   mxa_status want, const char *argument)
{
    const api_packed a = api_packed_new(MXA_FORMAT_INT8, NULL, x->shape);
    const api_packed b = api_packed_new(MXA_FORMAT_MXFP8_E4M3, NULL, x->shape);
    int64_t bad[2] = { -1, -1 };
    const mxa_status got =
        mxa_quantize_pair(x, MXA_FORMAT_INT8, low, &a.data, MXA_FORMAT_MXFP8_E4M3, high, &b.data, bad);
    api_refused(got, want, argument, NULL);
    api_packed_untouched(&a);
    api_packed_untouched(&b);
    assert_true(bad[0] == -1 && bad[1] == -1);
}

static void test_options(void **state)
{
    (void)state;
    const mxa_tensor x = normal_tensor();
    const mxa_quant_opts plain = api_opts();
    mxa_quant_opts other = plain;
    other.axis = MXA_AXIS_TOKEN;
    refuse(&x, &plain, &other, MXA_ERR_ARG, "axis");
    other.level = MXA_LEVEL_HEAD;
    refuse(&x, &other, &plain, MXA_ERR_ARG, "axis");
    other = plain;
    other.nonfinite = MXA_NONFINITE_SANITIZE;
    refuse(&x, &other, &plain, MXA_ERR_ARG, "nonfinite");
    other = plain;
    other.mean = memset(api_floats(BATCH * HEADS * DIM), 0, BATCH * HEADS * DIM * sizeof(float));
    refuse(&x, &plain, &other, MXA_ERR_ARG, "mean");
    other = plain;
    other.rule = MXA_RULE_EVEN;
    refuse(&x, &other, &plain, MXA_ERR_RULE, "rule");
    other.rule = (mxa_rule)9;
    refuse(&x, &plain, &other, MXA_ERR_RULE, "rule");
    other = plain;
    other.layout = (mxa_layout)9;
    refuse(&x, &plain, &other, MXA_ERR_LAYOUT, "layout");
    other = plain;
    other.g = memset(api_floats(BATCH * HEADS * SEQ), 0, BATCH * HEADS * SEQ * sizeof(float));
    refuse(&x, &other, &plain, MXA_ERR_SCALE, "g");
}

static void test_error_policy(void **state)
{
    (void)state;
    const mxa_tensor x = normal_tensor();
    mxa_quant_opts opts = api_opts();
    opts.nonfinite = MXA_NONFINITE_ERROR;
    api_set(&x, BATCH - 1, HEADS - 1, SEQ - 1, DIM - 1, NAN);
    refuse(&x, &opts, &opts, MXA_ERR_NONFINITE, "x");
}

static void test_arguments(void **state)
{
    (void)state;
    mxa_tensor x = normal_tensor();
    const mxa_format low = MXA_FORMAT_INT8, high = MXA_FORMAT_BF16, unknown = (mxa_format)77;
    const api_packed low_out = api_packed_new(low, NULL, x.shape),
                     high_out = api_packed_new(high, NULL, x.shape);
    const mxa_packed *const a = &low_out.data, *const b = &high_out.data;
    api_refused(mxa_quantize_pair(NULL, low, NULL, a, high, NULL, b, NULL), MXA_ERR_ARG, "x", "NULL");
    api_refused(mxa_quantize_pair(&x, low, NULL, NULL, high, NULL, b, NULL), MXA_ERR_ARG, "low_out", "NULL");
    api_refused(mxa_quantize_pair(&x, low, NULL, a, high, NULL, NULL, NULL), MXA_ERR_ARG, "high_out", "NULL");
    api_refused(mxa_quantize_pair(&x, unknown, NULL, a, high, NULL, b, NULL), MXA_ERR_FORMAT, "low", "77");
    api_refused(mxa_quantize_pair(&x, low, NULL, a, MXA_FORMAT_NONE, NULL, b, NULL), MXA_ERR_FORMAT, "high",
                "0");
    x.shape[1] = -1;
    api_refused(mxa_quantize_pair(&x, low, NULL, a, high, NULL, b, NULL), MXA_ERR_SHAPE, "x", "-1");
    x.shape[1] = HEADS;
    x.data = (char *)x.data + 1;
    api_refused(mxa_quantize_pair(&x, low, NULL, a, high, NULL, b, NULL), MXA_ERR_ALIGN, "x", NULL);
    api_packed_untouched(&low_out);
    api_packed_untouched(&high_out);
}

/* One read gives the bytes of two calls. */
static void check_pair(const mxa_tensor *x, mxa_format low, const mxa_quant_opts *low_opts, mxa_format high,
                       const mxa_quant_opts *high_opts)
{
    const api_packed a = api_packed_new(low, low_opts, x->shape),
                     b = api_packed_new(high, high_opts, x->shape);
    const api_packed c = api_packed_new(low, low_opts, x->shape),
                     d = api_packed_new(high, high_opts, x->shape);
    int64_t two[2], one[2];
    api_ok(mxa_quantize(x, low, low_opts, &a.data, &one[0]));
    api_ok(mxa_quantize(x, high, high_opts, &b.data, &one[1]));
    api_ok(mxa_quantize_pair(x, low, low_opts, &c.data, high, high_opts, &d.data, two));
    api_packed_same(&a, &c);
    api_packed_same(&b, &d);
    assert_memory_equal(one, two, sizeof one);
}

/* All pairs of formats, rotated or not, smoothed or not; plain copies keep the input as it is. */
static void test_all_formats(void **state)
{
    for (int f = 0; f < API_FORMATS * API_FORMATS * 4; f++) {
        const int low = f / 4 / API_FORMATS, high = f / 4 % API_FORMATS;
        const mxa_tensor x = api_tensor((mxa_dtype)(f % 3), 1, 2, 9, 96);
        api_set_normal(&x, 52);
        api_set(&x, 0, 1, 8, 7, NAN);
        mxa_quant_opts low_opts = api_opts(), high_opts = api_opts();
        low_opts.rotate = high_opts.rotate = f % 2 == 1;
        if (f % 4 >= 2) {
            float *const mean = api_floats(2 * 96);
            api_ok(mxa_channel_mean(&x, -1, mean));
            low_opts.mean = low < API_PLAIN ? NULL : mean;
            high_opts.mean = high < API_PLAIN ? NULL : mean;
        }
        check_pair(&x, api_formats[low], &low_opts, api_formats[high], &high_opts);
        api_teardown(state);
    }
}

/* Each copy has its own rule, level, layout and tail. */
static void test_own_options(void **state)
{
    (void)state;
    const mxa_tensor packed = api_tensor(MXA_DTYPE_BF16, 2, 300, 3, 80); /* [batch][seq][heads][dim] */
    api_set_normal(&packed, 53);
    mxa_tensor x = packed;
    x.shape[1] = 3;
    x.shape[2] = 300;
    x.stride[1] = 80;
    x.stride[2] = 3 * 80;
    mxa_quant_opts low = api_opts(), high = api_opts();
    low.level = MXA_LEVEL_TOKEN_BLOCK;
    low.nvfp4 = MXA_NVFP4_FOUR_OVER_SIX | MXA_NVFP4_POW2_G;
    low.layout = MXA_LAYOUT_TILE_128X4;
    high.rule = MXA_RULE_FLOOR;
    high.layout = MXA_LAYOUT_AMD;
    high.fill_tail = true;
    check_pair(&x, MXA_FORMAT_NVFP4, &low, MXA_FORMAT_MXFP6_E2M3, &high);
    low.level = MXA_LEVEL_TENSOR;
    high.level = MXA_LEVEL_HEAD;
    high.rotate = true;
    check_pair(&x, MXA_FORMAT_NVFP4, &low, MXA_FORMAT_MXFP8_E5M2, &high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_options),     API_TEST(test_error_policy), API_TEST(test_arguments),
        API_TEST(test_all_formats), API_TEST(test_own_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
