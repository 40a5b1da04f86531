/* SPDX-License-Identifier: Apache-2.0 */
/* What the quantising calls refuse: the status, the sentence, and that no buffer was touched. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BATCH = 2, HEADS = 2, SEQ = 160, DIM = 64 };

/* A call that succeeds, made anew for each case that spoils it. */
static mxa_tensor x;
static mxa_format format;
static mxa_quant_opts opts;
static api_packed out;
static int64_t n_bad;

static void fresh(mxa_format of)
{
    x = api_tensor(MXA_DTYPE_F32, BATCH, HEADS, SEQ, DIM);
    api_set_normal(&x, 51);
    format = of;
    mxa_quant_default(&opts);
    out = api_packed_new(format, &opts, x.shape);
    n_bad = -1;
}

static void refuse(mxa_status want, const char *argument, const char *value)
{
    const api_packed buffers = out;
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), want, argument, value);
    api_packed_untouched(&buffers);
    assert_int_equal(n_bad, -1);
}

/* Also refused when only sizes are asked for, and on the way back. */
static void refuse_all(mxa_status want, const char *argument, const char *value)
{
    refuse(want, argument, value);
    mxa_packed_size *const size = api_bytes(sizeof *size);
    api_refused(mxa_packed_sizes(format, &opts, x.shape, size), want, argument, value);
    api_untouched(size);
    const mxa_tensor y = api_tensor(MXA_DTYPE_F32, BATCH, HEADS, SEQ, DIM);
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), want, argument, value);
    api_untouched(y.data);
}

static void test_null(void **state)
{
    (void)state;
    fresh(MXA_FORMAT_NVFP4);
    const api_packed buffers = out;
    api_refused(mxa_quantize(NULL, format, &opts, &out.data, &n_bad), MXA_ERR_ARG, "x", "NULL");
    api_refused(mxa_quantize(&x, format, &opts, NULL, &n_bad), MXA_ERR_ARG, "out", "NULL");
    out.data.codes = NULL;
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), MXA_ERR_ARG, "codes", "NULL");
    out = buffers;
    out.data.scales = NULL;
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), MXA_ERR_ARG, "scales", "NULL");
    out = buffers;
    out.data.g = NULL;
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), MXA_ERR_ARG, "g", "NULL");
    out = buffers;
    void *const data = x.data;
    x.data = NULL;
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), MXA_ERR_ARG, "x", "NULL");
    x.data = data;
    api_packed_untouched(&buffers);
    out.data.nonfinite_tiles = NULL;
    api_ok(mxa_quantize(&x, format, NULL, &out.data, NULL));
    api_refused(mxa_packed_sizes(format, NULL, NULL, &out.size), MXA_ERR_ARG, "shape", "NULL");
    api_refused(mxa_packed_sizes(format, NULL, x.shape, NULL), MXA_ERR_ARG, "out", "NULL");
}

static void test_formats(void **state)
{
    (void)state;
    fresh(MXA_FORMAT_MXFP4);
    format = MXA_FORMAT_NONE;
    refuse_all(MXA_ERR_FORMAT, "format", "0");
    format = (mxa_format)13;
    refuse_all(MXA_ERR_FORMAT, "format", "13");
    format = (mxa_format)-1;
    refuse_all(MXA_ERR_FORMAT, "format", "-1");
}

static void test_option_numbers(void **state)
{
    (void)state;
    fresh(MXA_FORMAT_MXFP4);
    opts.size = 0;
    refuse_all(MXA_ERR_ARG, "size", "0");
    fresh(MXA_FORMAT_MXFP4);
    opts.size--;
    refuse_all(MXA_ERR_ARG, "size", NULL);
    fresh(MXA_FORMAT_MXFP4);
    opts.rule = (mxa_rule)4;
    refuse_all(MXA_ERR_RULE, "rule", "4");
    fresh(MXA_FORMAT_MXFP4);
    opts.level = (mxa_level)6;
    refuse_all(MXA_ERR_ARG, "level", "6");
    fresh(MXA_FORMAT_MXFP4);
    opts.axis = (mxa_axis)2;
    refuse_all(MXA_ERR_ARG, "axis", "2");
    fresh(MXA_FORMAT_MXFP4);
    opts.nonfinite = (mxa_nonfinite)3;
    refuse_all(MXA_ERR_ARG, "nonfinite", "3");
    fresh(MXA_FORMAT_MXFP4);
    opts.layout = (mxa_layout)3;
    refuse_all(MXA_ERR_LAYOUT, "layout", "3");
    fresh(MXA_FORMAT_NVFP4);
    opts.nvfp4 = 16;
    refuse_all(MXA_ERR_ARG, "nvfp4", "0x10");
    fresh(MXA_FORMAT_MXFP4);
    opts.threads = -2;
    refuse_all(MXA_ERR_ARG, "threads", "-2");
}

/* Rules are of MX, NVFP4's options of NVFP4; FP8 and INT8 need a factor, TOKEN has no place along tokens. */
static void test_contradictions(void **state)
{
    (void)state;
    static const mxa_format without_rules[] = { MXA_FORMAT_NVFP4, MXA_FORMAT_FP8, MXA_FORMAT_INT8,
                                                MXA_FORMAT_BF16 };
    for (int f = 0; f < 4; f++) {
        fresh(without_rules[f]);
        opts.rule = MXA_RULE_FLOOR;
        refuse_all(MXA_ERR_RULE, "rule", NULL);
    }
    for (int f = 0; f < 2; f++) {
        fresh(f == 0 ? MXA_FORMAT_FP8 : MXA_FORMAT_INT8);
        opts.level = MXA_LEVEL_NONE;
        refuse_all(MXA_ERR_ARG, "level", NULL);
    }
    fresh(MXA_FORMAT_MXFP4);
    opts.nvfp4 = MXA_NVFP4_SCALE_UP;
    refuse_all(MXA_ERR_ARG, "nvfp4", NULL);
    fresh(MXA_FORMAT_INT8);
    opts.level = MXA_LEVEL_TOKEN;
    opts.axis = MXA_AXIS_TOKEN;
    refuse_all(MXA_ERR_ARG, "level", NULL);
    fresh(MXA_FORMAT_BF16);
    opts.level = MXA_LEVEL_TENSOR;
    refuse_all(MXA_ERR_ARG, "level", NULL);
    fresh(MXA_FORMAT_MXFP4);
    const float g = 1;
    opts.g = &g;
    refuse_all(MXA_ERR_ARG, "g", NULL);
}

static void test_shapes(void **state)
{
    (void)state;
    for (int axis = 0; axis < 4; axis++) {
        fresh(MXA_FORMAT_MXFP4);
        x.shape[axis] = -1;
        refuse(MXA_ERR_SHAPE, "x", "-1");
        mxa_packed_size *const size = api_bytes(sizeof *size);
        api_refused(mxa_packed_sizes(format, &opts, x.shape, size), MXA_ERR_SHAPE, "shape", "-1");
        x.shape[axis] = INT64_MAX;
        refuse(MXA_ERR_SHAPE, "x", NULL);
        api_refused(mxa_packed_sizes(format, &opts, x.shape, size), MXA_ERR_SHAPE, "shape", NULL);
        api_untouched(size);
    }
    fresh(MXA_FORMAT_MXFP4);
    for (int axis = 0; axis < 4; axis++)
        x.shape[axis] = INT64_C(1) << 20;
    refuse(MXA_ERR_SHAPE, "x", NULL);
}

static void test_short_blocks(void **state)
{
    (void)state;
    for (int f = MXA_FORMAT_MXFP8_E4M3; f <= MXA_FORMAT_NVFP4; f++) {
        fresh((mxa_format)f);
        x.shape[3] = 33;
        refuse(MXA_ERR_SHAPE, "x", "33");
        opts.fill_tail = true;
        api_ok(mxa_packed_sizes(format, &opts, x.shape, &out.size));
        fresh((mxa_format)f);
        opts.axis = MXA_AXIS_TOKEN;
        opts.level = MXA_LEVEL_HEAD;
        x.shape[2] = 130;
        refuse(MXA_ERR_SHAPE, "x", "130");
    }
    fresh(MXA_FORMAT_INT8);
    x.shape[3] = 33;
    api_ok(mxa_packed_sizes(format, NULL, x.shape, &out.size));
}

static void test_strides_and_alignment(void **state)
{
    (void)state;
    fresh(MXA_FORMAT_MXFP4);
    x.stride[3] = 2;
    refuse(MXA_ERR_ALIGN, "x", "2");
    fresh(MXA_FORMAT_MXFP4);
    x.data = (char *)x.data + 2;
    refuse(MXA_ERR_ALIGN, "x", NULL);
    fresh(MXA_FORMAT_MXFP4);
    x.dtype = (mxa_dtype)3;
    refuse(MXA_ERR_ARG, "x", "3");
    fresh(MXA_FORMAT_MXFP4);
    x.stride[0] = INT64_MAX / 2;
    refuse(MXA_ERR_SHAPE, "x", NULL);
    fresh(MXA_FORMAT_INT8);
    const api_packed buffers = out;
    out.data.g = (float *)((char *)out.data.g + 1);
    api_refused(mxa_quantize(&x, format, &opts, &out.data, &n_bad), MXA_ERR_ALIGN, "g", NULL);
    out = buffers;
    int64_t *const odd = (int64_t *)((char *)&n_bad + 1);
    api_refused(mxa_quantize(&x, format, &opts, &out.data, odd), MXA_ERR_ALIGN, "n_bad", NULL);
    api_packed_untouched(&buffers);
}

static void test_given_factors(void **state)
{
    (void)state;
    static const float refused[] = { 0, -1, NAN, INFINITY, 0x1.8p117f, 0x1.8p-118f };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        fresh(MXA_FORMAT_NVFP4);
        float *const g = api_floats(BATCH * HEADS * SEQ);
        for (int j = 0; j < BATCH * HEADS * SEQ; j++)
            g[j] = j % 2 ? 0x1p117f : 0x1p-117f;
        opts.g = g;
        api_ok(mxa_quantize(&x, format, &opts, &out.data, &n_bad));
        fresh(MXA_FORMAT_NVFP4);
        opts.g = g;
        g[BATCH * HEADS * SEQ - 1] = refused[i];
        refuse(MXA_ERR_SCALE, "g", NULL);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    fresh(MXA_FORMAT_NVFP4);
    api_ok(mxa_quantize(&x, format, &opts, &out.data, NULL));
    mxa_tensor y = api_tensor(MXA_DTYPE_F32, BATCH, HEADS, SEQ, DIM);
    const mxa_tensor good = y;
    api_refused(mxa_dequantize(NULL, format, &opts, &y), MXA_ERR_ARG, "in", "NULL");
    api_refused(mxa_dequantize(&out.data, format, &opts, NULL), MXA_ERR_ARG, "out", "NULL");
    mxa_packed in = out.data;
    in.codes = NULL;
    api_refused(mxa_dequantize(&in, format, &opts, &y), MXA_ERR_ARG, "codes", "NULL");
    in = out.data;
    in.scales = NULL;
    api_refused(mxa_dequantize(&in, format, &opts, &y), MXA_ERR_ARG, "scales", "NULL");
    in = out.data;
    in.g = NULL;
    api_refused(mxa_dequantize(&in, format, &opts, &y), MXA_ERR_ARG, "g", "NULL");
    y.shape[3] = 33;
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), MXA_ERR_SHAPE, "out", "33");
    y = good;
    y.shape[0] = -4;
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), MXA_ERR_SHAPE, "out", "-4");
    y = good;
    y.stride[3] = 3;
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), MXA_ERR_ALIGN, "out", "3");
    y = good;
    y.stride[2] = DIM - 1;
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), MXA_ERR_ARG, "out", NULL);
    y = good;
    y.data = (char *)y.data + 1;
    api_refused(mxa_dequantize(&out.data, format, &opts, &y), MXA_ERR_ALIGN, "out", NULL);
    out.data.g[SEQ] = NAN;
    api_refused(mxa_dequantize(&out.data, format, &opts, &good), MXA_ERR_SCALE, "g", NULL);
    api_untouched(good.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_null),
        API_TEST(test_formats),
        API_TEST(test_option_numbers),
        API_TEST(test_contradictions),
        API_TEST(test_shapes),
        API_TEST(test_short_blocks),
        API_TEST(test_strides_and_alignment),
        API_TEST(test_given_factors),
        API_TEST(test_dequantize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
