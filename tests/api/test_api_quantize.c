/* SPDX-License-Identifier: Apache-2.0 */
/* Quantising and the way back, through the public interface. */
#include "api_support.h"

#include <math.h>
#include <string.h>

/*
 * Half the widest gap between codes, relative to the largest magnitude of a block, as a bound that all scale
 * rules keep; in the order of api_formats.
 */
static const double steps[API_FORMATS] = { 0,      0x1p-11, 0x1p-8, 0x1p-4, 0x1p-3, 0x1p-3,
                                           0x1p-4, 0.25,    0x1p-6, 0.25,   0x1p-4, 0x1p-6 };

static double largest_of_block(const mxa_tensor *x, int64_t h, int64_t s, int64_t d, int64_t block)
{
    double largest = 0;
    for (int64_t i = d / block * block; i < d / block * block + block && i < x->shape[3]; i++)
        largest = fmax(largest, fabs(api_get(x, 0, h, s, i)));
    return largest;
}

/* There and back moves an element by at most half the widest gap of its block, from every input type. */
static void test_round_trip(void **state)
{
    for (int f = 0; f < API_FORMATS; f++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 3, 5, 96);
            api_set_normal(&x, 31);
            const api_packed p = api_quantize(&x, api_formats[f], NULL);
            const mxa_tensor y = api_dequantize(&p, api_formats[f], NULL, MXA_DTYPE_F32, x.shape);
            for (int64_t i = 0; i < 3 * 5 * 96; i++) {
                const int64_t h = i / (5 * 96), s = i / 96 % 5, d = i % 96;
                const int64_t block =
                    mxa_format_get(api_formats[f])->block > 0 ? mxa_format_get(api_formats[f])->block : 96;
                const double error = fabs(api_get(&y, 0, h, s, d) - api_get(&x, 0, h, s, d));
                if (!(error <= steps[f] * largest_of_block(&x, h, s, d, block)))
                    fail_msg("%s: %g became %g", mxa_format_get(api_formats[f])->name,
                             api_get(&x, 0, h, s, d), api_get(&y, 0, h, s, d));
            }
            api_teardown(state);
        }
}

/* Block B of docs/formats.md: 2 * E2M1 values in code order, FLOOR. */
static void test_block_b(void **state)
{
    (void)state;
    static const float e2m1[] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };
    static const uint8_t codes[] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE };
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 32);
    for (int i = 0; i < 32; i++)
        api_set(&x, 0, 0, 0, i, 2 * e2m1[i % 16]);
    mxa_quant_opts opts = api_opts();
    opts.rule = MXA_RULE_FLOOR;
    const api_packed p = api_quantize(&x, MXA_FORMAT_MXFP4, &opts);
    assert_int_equal(p.data.scales[0], 0x80);
    assert_memory_equal(p.data.codes, codes, 8);
    assert_memory_equal(p.data.codes + 8, codes, 8);
    const mxa_tensor y = api_dequantize(&p, MXA_FORMAT_MXFP4, &opts, MXA_DTYPE_F32, x.shape);
    api_same_bits(&x, &y);
}

/* g of each level is the largest magnitude of its region over 2688, 448 or 127; 1 where that is 0. */
static void test_levels(void **state)
{
    static const mxa_format formats[] = { MXA_FORMAT_NVFP4, MXA_FORMAT_FP8, MXA_FORMAT_INT8,
                                          MXA_FORMAT_MXFP4 };
    static const float divisors[] = { 2688, 448, 127, 6 };
    for (int f = 0; f < 4; f++)
        for (int level = MXA_LEVEL_TENSOR; level <= MXA_LEVEL_TOKEN; level++) {
            const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 2, 2, 200, 32);
            api_set_normal(&x, 32);
            for (int64_t s = 128; s < 200; s++)
                api_set_row(&x, 1, 1, s, 0);
            mxa_quant_opts opts = api_opts();
            opts.level = (mxa_level)level;
            const api_packed p = api_quantize(&x, formats[f], &opts);
            float *const largest = memset(api_floats((size_t)p.size.g_count), 0, (size_t)p.size.g_count * 4);
            for (int64_t i = 0; i < 2 * 2 * 200 * 32; i++) {
                const int64_t m = i / (200 * 32), s = i / 32 % 200;
                const int64_t unit[] = { 0, 0, 0, m, 2 * m + s / 128, 200 * m + s };
                largest[unit[level]] = fmaxf(largest[unit[level]], fabsf(((float *)x.data)[i]));
            }
            for (int64_t u = 0; u < p.size.g_count; u++)
                assert_true(p.data.g[u] == (largest[u] == 0 ? 1 : largest[u] / divisors[f]));
            api_teardown(state);
        }
}

static void test_given_factor(void **state)
{
    (void)state;
    static const float g[] = { 0x1p-117f, 0x1p117f, 0.5f, 1 };
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 2, 16);
    api_set_all(&x, 3);
    mxa_quant_opts opts = api_opts();
    opts.g = g;
    const api_packed p = api_quantize(&x, MXA_FORMAT_INT8, &opts);
    assert_memory_equal(p.data.g, g, sizeof g);
    assert_int_equal((int8_t)p.data.codes[0], 127);
    assert_int_equal(p.data.codes[16], 0);
    assert_int_equal(p.data.codes[2 * 16], 6);
    assert_int_equal(p.data.codes[3 * 16], 3);
}

/* The transpose quantised along dim is the tensor quantised along tokens. */
static void test_axis_token(void **state)
{
    for (int f = API_PLAIN; f < API_FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 1, 2, 64, 40),
                         t = api_tensor(MXA_DTYPE_BF16, 1, 2, 40, 64);
        api_set_normal(&x, 33);
        for (int64_t i = 0; i < 2 * 64 * 40; i++)
            api_set(&t, 0, i / 2560, i % 40, i / 40 % 64, api_get(&x, 0, i / 2560, i / 40 % 64, i % 40));
        mxa_quant_opts along_dim = api_opts();
        if (mxa_format_get(api_formats[f])->default_level == MXA_LEVEL_TOKEN)
            along_dim.level = MXA_LEVEL_HEAD;
        mxa_quant_opts along_tokens = along_dim;
        along_tokens.axis = MXA_AXIS_TOKEN;
        const api_packed a = api_quantize(&x, api_formats[f], &along_tokens);
        const api_packed b = api_quantize(&t, api_formats[f], &along_dim);
        api_packed_same(&a, &b);
        const mxa_tensor y = api_dequantize(&a, api_formats[f], &along_tokens, MXA_DTYPE_F32, x.shape);
        const mxa_tensor z = api_dequantize(&b, api_formats[f], &along_dim, MXA_DTYPE_F32, t.shape);
        for (int64_t i = 0; i < 2 * 64 * 40; i++)
            assert_true(api_get(&y, 0, i / 2560, i / 40 % 64, i % 40) ==
                        api_get(&z, 0, i / 2560, i % 40, i / 40 % 64));
        api_teardown(state);
    }
}

/* A short last block is the block filled with zeros, and comes back without them. */
static void test_tail(void **state)
{
    for (int f = API_PLAIN; f < API_FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 1, 3, 45),
                         filled = api_tensor(MXA_DTYPE_F32, 1, 1, 3, 64);
        api_set_normal(&x, 34);
        api_set_all(&filled, 0);
        for (int64_t i = 0; i < 3 * 45; i++)
            api_set(&filled, 0, 0, i / 45, i % 45, api_get(&x, 0, 0, i / 45, i % 45));
        mxa_quant_opts opts = api_opts();
        opts.fill_tail = true;
        const api_packed a = api_quantize(&x, api_formats[f], &opts);
        const api_packed b = api_quantize(&filled, api_formats[f], &opts);
        for (int64_t s = 0; s < 3; s++)
            assert_memory_equal(a.data.codes + s * a.size.row_bytes, b.data.codes + s * b.size.row_bytes,
                                (size_t)a.size.row_bytes);
        const mxa_tensor y = api_dequantize(&a, api_formats[f], &opts, MXA_DTYPE_F32, x.shape);
        const mxa_tensor z = api_dequantize(&b, api_formats[f], &opts, MXA_DTYPE_F32, filled.shape);
        for (int64_t i = 0; i < 3 * 45; i++)
            assert_true(api_get(&y, 0, 0, i / 45, i % 45) == api_get(&z, 0, 0, i / 45, i % 45));
        api_teardown(state);
    }
}

static void test_strides_and_threads(void **state)
{
    for (int f = 0; f < API_FORMATS; f++) {
        const mxa_tensor packed = api_tensor(MXA_DTYPE_BF16, 2, 300, 5, 64); /* [batch][seq][heads][dim] */
        api_set_normal(&packed, 38);
        mxa_tensor view = packed;
        view.shape[1] = 3;
        view.shape[2] = 300;
        view.stride[1] = packed.stride[2];
        view.stride[2] = packed.stride[1];
        const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 2, 3, 300, 64);
        for (int64_t i = 0; i < 2 * 3 * 300 * 64; i++)
            api_set(&x, i / 57600, i / 19200 % 3, i / 64 % 300, i % 64,
                    api_get(&view, i / 57600, i / 19200 % 3, i / 64 % 300, i % 64));
        mxa_quant_opts opts = api_opts();
        opts.threads = 1;
        const api_packed one = api_quantize(&x, api_formats[f], &opts);
        opts.threads = 3;
        const api_packed three = api_quantize(&view, api_formats[f], &opts);
        api_packed_same(&one, &three);
        api_teardown(state);
    }
}

/* Padding of the tile layouts, filled tails and flags are written, whatever lay in the buffers before. */
static void test_all_written(void **state)
{
    for (int f = API_PLAIN; f < API_FORMATS; f++)
        for (int layout = 0; layout < (mxa_format_get(api_formats[f])->scale == MXA_SCALE_NONE ? 1 : 3);
             layout++) {
            const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 37, 45);
            api_set_normal(&x, 39);
            mxa_quant_opts opts = api_opts();
            opts.fill_tail = true;
            opts.layout = (mxa_layout)layout;
            const api_packed a = api_quantize(&x, api_formats[f], &opts);
            const api_packed b = api_packed_new(api_formats[f], &opts, x.shape);
            memset(b.data.codes, 0x5A, (size_t)b.size.code_bytes);
            if (b.data.scales != NULL)
                memset(b.data.scales, 0x5A, (size_t)b.size.scale_bytes);
            memset(b.data.nonfinite_tiles, 0x5A, (size_t)b.size.tile_count);
            api_ok(mxa_quantize(&x, api_formats[f], &opts, &b.data, NULL));
            api_packed_same(&a, &b);
            api_teardown(state);
        }
}

static void test_empty(void **state)
{
    static const int64_t shapes[][4] = { { 0, 2, 3, 64 }, { 2, 2, 0, 64 } };
    for (int f = 0; f < API_FORMATS; f++)
        for (int i = 0; i < 2; i++) {
            const mxa_tensor x =
                mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, shapes[i][0], 2, shapes[i][2], 64);
            const api_packed p = api_packed_new(api_formats[f], NULL, x.shape);
            int64_t n_bad = 5;
            api_ok(mxa_quantize(&x, api_formats[f], NULL, &p.data, &n_bad));
            assert_int_equal(n_bad, 0);
            const mxa_packed none = { 0 };
            api_ok(mxa_quantize(&x, api_formats[f], NULL, &none, NULL));
            api_ok(mxa_dequantize(&none, api_formats[f], NULL, &x));
            api_teardown(state);
        }
}

static void test_dequantize_types(void **state)
{
    for (int f = 0; f < API_FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 7, 32);
        api_set_normal(&x, 40);
        api_set(&x, 0, 0, 0, 0, 1e30);
        api_set(&x, 0, 1, 6, 31, -1e30);
        const api_packed p = api_quantize(&x, api_formats[f], NULL);
        const mxa_tensor wide = api_dequantize(&p, api_formats[f], NULL, MXA_DTYPE_F32, x.shape);
        for (int dtype = 1; dtype < 3; dtype++) {
            const mxa_tensor narrow = api_dequantize(&p, api_formats[f], NULL, (mxa_dtype)dtype, x.shape);
            const mxa_tensor want = api_tensor((mxa_dtype)dtype, 1, 2, 7, 32);
            const double largest = dtype == MXA_DTYPE_F16 ? 65504 : 0x1.fep127;
            for (int64_t i = 0; i < 2 * 7 * 32; i++) {
                const double value = api_get(&wide, 0, i / 224, i / 32 % 7, i % 32);
                api_set(&want, 0, i / 224, i / 32 % 7, i % 32, fmin(fmax(value, -largest), largest));
            }
            api_same_bits(&want, &narrow);
        }
        api_teardown(state);
    }
}

/* Rotation and mean are taken off again. */
static void test_rotate_and_mean(void **state)
{
    for (int f = API_PLAIN; f < API_FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 9, 96);
        api_set_normal(&x, 41);
        float *const mean = api_floats(2 * 96);
        for (int i = 0; i < 2 * 96; i++)
            mean[i] = (float)(i % 5) * 100;
        for (int64_t i = 0; i < 2 * 9 * 96; i++)
            api_set(&x, 0, i / 864, i / 96 % 9, i % 96,
                    api_get(&x, 0, i / 864, i / 96 % 9, i % 96) + mean[i / 864 * 96 + i % 96]);
        mxa_quant_opts opts = api_opts();
        opts.rotate = true;
        opts.mean = mean;
        const api_packed p = api_quantize(&x, api_formats[f], &opts);
        const mxa_tensor y = api_dequantize(&p, api_formats[f], &opts, MXA_DTYPE_F32, x.shape);
        double error = 0;
        for (int64_t i = 0; i < 2 * 9 * 96; i++)
            error += pow(
                api_get(&y, 0, i / 864, i / 96 % 9, i % 96) - api_get(&x, 0, i / 864, i / 96 % 9, i % 96), 2);
        assert_true(sqrt(error / (2 * 9 * 96)) < steps[f]);
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_round_trip),          API_TEST(test_block_b),         API_TEST(test_levels),
        API_TEST(test_given_factor),        API_TEST(test_axis_token),      API_TEST(test_tail),
        API_TEST(test_strides_and_threads), API_TEST(test_all_written),     API_TEST(test_empty),
        API_TEST(test_dequantize_types),    API_TEST(test_rotate_and_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
