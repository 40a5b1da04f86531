/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, quantising, the fused pair and the way back, through the public interface. */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ------------------------------------------------------------------ formats and sizes */

/* docs/numerics.md, "Element formats" */
static const struct {
    mxa_format format;
    const char *name;
    int bits, block;
    mxa_scale_type scale;
    double largest,
        step; /* step: half the widest gap between codes, relative to the block's largest magnitude */
    mxa_rule rule;
    mxa_level level;
} table[] = {
    { MXA_FORMAT_F32, "f32", 32, 0, MXA_SCALE_NONE, 0x1.fffffep127, 0, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_F16, "f16", 16, 0, MXA_SCALE_NONE, 65504, 0x1p-11, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_BF16, "bf16", 16, 0, MXA_SCALE_NONE, 0x1.fep127, 0x1p-8, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E4M3, "mxfp8", 8, 32, MXA_SCALE_E8M0, 448, 0x1p-4, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E5M2, "mxfp8-e5m2", 8, 32, MXA_SCALE_E8M0, 57344, 0x1p-3, MXA_RULE_RCEIL,
      MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E3M2, "mxfp6", 6, 32, MXA_SCALE_E8M0, 28, 0x1p-3, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E2M3, "mxfp6-e2m3", 6, 32, MXA_SCALE_E8M0, 7.5, 0x1p-4, MXA_RULE_RCEIL,
      MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP4, "mxfp4", 4, 32, MXA_SCALE_E8M0, 6, 0.25, MXA_RULE_EVEN, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXINT8, "mxint8", 8, 32, MXA_SCALE_E8M0, 127.0 / 64, 0x1p-6, MXA_RULE_RCEIL,
      MXA_LEVEL_NONE },
    { MXA_FORMAT_NVFP4, "nvfp4", 4, 16, MXA_SCALE_UE4M3, 6, 0.25, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_FP8, "fp8", 8, 0, MXA_SCALE_NONE, 448, 0x1p-4, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_INT8, "int8", 8, 0, MXA_SCALE_NONE, 127, 0x1p-6, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
};
enum { FORMATS = sizeof table / sizeof *table };

static void test_format_table(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        const mxa_format_info *const info = mxa_format_get(table[f].format);
        assert_non_null(info);
        assert_int_equal(info->format, table[f].format);
        assert_string_equal(info->name, table[f].name);
        assert_int_equal(info->element_bits, table[f].bits);
        assert_int_equal(info->block, table[f].block);
        assert_int_equal(info->scale, table[f].scale);
        assert_true(info->largest == table[f].largest);
        assert_int_equal(info->quantized, f > 2);
        assert_int_equal(info->default_rule, table[f].rule);
        assert_int_equal(info->default_level, table[f].level);
        assert_ptr_equal(mxa_format_find(table[f].name), info);
    }
    assert_null(mxa_format_get(MXA_FORMAT_NONE));
    assert_null(mxa_format_get((mxa_format)13));
    assert_null(mxa_format_get((mxa_format)-1));
    assert_null(mxa_format_find("MXFP4"));
    assert_null(mxa_format_find(""));
    assert_null(mxa_format_find("mxfp"));
    assert_null(mxa_format_find(NULL));
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* What docs/formats.md says that a tensor takes. */
static mxa_packed_size expected_size(int f, const mxa_quant_opts *o, const int64_t n[4])
{
    mxa_packed_size s = { .matrices = n[0] * n[1], .rows = n[2], .cols = n[3] };
    if (o->axis == MXA_AXIS_TOKEN) {
        s.rows = n[3];
        s.cols = n[2];
    }
    const int64_t block = table[f].block == 0 ? 1 : table[f].block;
    s.row_bytes = ceil_div(ceil_div(s.cols, block) * block * table[f].bits, 8);
    s.code_bytes = s.matrices * s.rows * s.row_bytes;
    if (table[f].scale != MXA_SCALE_NONE) {
        s.scale_cols = ceil_div(s.cols, block);
        s.matrix_scale_bytes = s.rows * s.scale_cols;
        if (o->layout == MXA_LAYOUT_TILE_128X4)
            s.matrix_scale_bytes = ceil_div(s.rows, 128) * 128 * ceil_div(s.scale_cols, 4) * 4;
        if (o->layout == MXA_LAYOUT_AMD)
            s.matrix_scale_bytes = ceil_div(s.rows, 256) * 256 * ceil_div(s.scale_cols, 8) * 8;
        s.scale_bytes = s.matrices * s.matrix_scale_bytes;
    }
    s.tile_count = s.matrices * ceil_div(n[2], 128);
    const mxa_level level = o->level == MXA_LEVEL_DEFAULT ? table[f].level : o->level;
    const int64_t g_counts[] = { 0, 0, 1, s.matrices, s.tile_count, s.matrices * n[2] };
    s.g_count = g_counts[level];
    return s;
}

static void check_size(int f, const mxa_quant_opts *opts, const int64_t shape[4])
{
    mxa_packed_size got;
    memset(&got, 0xFF, sizeof got);
    api_ok(mxa_packed_sizes(table[f].format, opts, shape, &got));
    const mxa_packed_size want = expected_size(f, opts, shape);
    assert_memory_equal(&got, &want, sizeof got);
}

static void test_sizes(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = { { 1, 1, 1, 1 },      { 2, 3, 130, 64 }, { 1, 2, 300, 80 },
                                         { 3, 1, 257, 1000 }, { 0, 3, 130, 64 }, { 2, 3, 0, 64 },
                                         { 1, 1, 33, 17 } };
    for (int f = 0; f < FORMATS; f++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int layout = 0; layout < (table[f].scale == MXA_SCALE_NONE ? 1 : 3); layout++) {
                mxa_quant_opts opts = api_opts();
                opts.fill_tail = true;
                opts.layout = (mxa_layout)layout;
                check_size(f, &opts, shapes[i]);
                if (table[f].level == MXA_LEVEL_TOKEN)
                    opts.level = MXA_LEVEL_HEAD;
                if (f > 2)
                    opts.axis = MXA_AXIS_TOKEN;
                check_size(f, &opts, shapes[i]);
            }
    for (int f = 3; f < FORMATS; f++)
        for (int level = MXA_LEVEL_TENSOR; level <= MXA_LEVEL_TOKEN; level++) {
            mxa_quant_opts opts = api_opts();
            opts.level = (mxa_level)level;
            check_size(f, &opts, shapes[1]);
        }
    mxa_packed_size size;
    api_ok(mxa_packed_sizes(MXA_FORMAT_MXFP4, NULL, shapes[1], &size));
    assert_int_equal(size.code_bytes, 2 * 3 * 130 * 32);
}

/* ------------------------------------------------------------------ values */

static double largest_of_block(const mxa_tensor *x, int64_t h, int64_t s, int64_t d, int64_t block)
{
    double largest = 0;
    for (int64_t i = d / block * block; i < d / block * block + block && i < x->shape[3]; i++)
        largest = fmax(largest, fabs(api_get(x, 0, h, s, i)));
    return largest;
}

static mxa_tensor dequantize(const api_packed *p, mxa_format format, const mxa_quant_opts *opts,
                             mxa_dtype dtype, const int64_t n[4])
{
    const mxa_tensor y = api_tensor(dtype, n[0], n[1], n[2], n[3]);
    api_ok(mxa_dequantize(&p->data, format, opts, &y));
    return y;
}

/* There and back moves an element by at most half the widest gap of its block, from every input type. */
static void test_round_trip(void **state)
{
    for (int f = 0; f < FORMATS; f++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 3, 5, 96);
            api_set_normal(&x, 31);
            const api_packed p = api_quantize(&x, table[f].format, NULL);
            const mxa_tensor y = dequantize(&p, table[f].format, NULL, MXA_DTYPE_F32, x.shape);
            for (int64_t i = 0; i < 3 * 5 * 96; i++) {
                const int64_t h = i / (5 * 96), s = i / 96 % 5, d = i % 96;
                const int64_t block = table[f].block > 0 ? table[f].block : 96;
                const double error = fabs(api_get(&y, 0, h, s, d) - api_get(&x, 0, h, s, d));
                if (!(error <= table[f].step * largest_of_block(&x, h, s, d, block)))
                    fail_msg("%s: %g became %g", table[f].name, api_get(&x, 0, h, s, d),
                             api_get(&y, 0, h, s, d));
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
    const mxa_tensor y = dequantize(&p, MXA_FORMAT_MXFP4, &opts, MXA_DTYPE_F32, x.shape);
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
    for (int f = 3; f < FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_BF16, 1, 2, 64, 40),
                         t = api_tensor(MXA_DTYPE_BF16, 1, 2, 40, 64);
        api_set_normal(&x, 33);
        for (int64_t i = 0; i < 2 * 64 * 40; i++)
            api_set(&t, 0, i / 2560, i % 40, i / 40 % 64, api_get(&x, 0, i / 2560, i / 40 % 64, i % 40));
        mxa_quant_opts along_dim = api_opts();
        if (table[f].level == MXA_LEVEL_TOKEN)
            along_dim.level = MXA_LEVEL_HEAD;
        mxa_quant_opts along_tokens = along_dim;
        along_tokens.axis = MXA_AXIS_TOKEN;
        const api_packed a = api_quantize(&x, table[f].format, &along_tokens);
        const api_packed b = api_quantize(&t, table[f].format, &along_dim);
        api_packed_same(&a, &b);
        const mxa_tensor y = dequantize(&a, table[f].format, &along_tokens, MXA_DTYPE_F32, x.shape);
        const mxa_tensor z = dequantize(&b, table[f].format, &along_dim, MXA_DTYPE_F32, t.shape);
        for (int64_t i = 0; i < 2 * 64 * 40; i++)
            assert_true(api_get(&y, 0, i / 2560, i / 40 % 64, i % 40) ==
                        api_get(&z, 0, i / 2560, i % 40, i / 40 % 64));
        api_teardown(state);
    }
}

/* A short last block is the block filled with zeros, and comes back without them. */
static void test_tail(void **state)
{
    for (int f = 3; f < FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 1, 3, 45),
                         filled = api_tensor(MXA_DTYPE_F32, 1, 1, 3, 64);
        api_set_normal(&x, 34);
        api_set_all(&filled, 0);
        for (int64_t i = 0; i < 3 * 45; i++)
            api_set(&filled, 0, 0, i / 45, i % 45, api_get(&x, 0, 0, i / 45, i % 45));
        mxa_quant_opts opts = api_opts();
        opts.fill_tail = true;
        const api_packed a = api_quantize(&x, table[f].format, &opts);
        const api_packed b = api_quantize(&filled, table[f].format, &opts);
        for (int64_t s = 0; s < 3; s++)
            assert_memory_equal(a.data.codes + s * a.size.row_bytes, b.data.codes + s * b.size.row_bytes,
                                (size_t)a.size.row_bytes);
        const mxa_tensor y = dequantize(&a, table[f].format, &opts, MXA_DTYPE_F32, x.shape);
        const mxa_tensor z = dequantize(&b, table[f].format, &opts, MXA_DTYPE_F32, filled.shape);
        for (int64_t i = 0; i < 3 * 45; i++)
            assert_true(api_get(&y, 0, 0, i / 45, i % 45) == api_get(&z, 0, 0, i / 45, i % 45));
        api_teardown(state);
    }
}

/* ------------------------------------------------------------------ NaN and Inf */

static void test_propagate(void **state)
{
    for (int f = 0; f < FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 130, 64);
        api_set_normal(&x, 35);
        api_set(&x, 0, 1, 129, 3, NAN);
        api_set(&x, 0, 1, 129, 4, -INFINITY);
        api_set(&x, 0, 0, 5, 60, INFINITY);
        const api_packed p = api_packed_new(table[f].format, NULL, x.shape);
        int64_t n_bad = -1;
        api_ok(mxa_quantize(&x, table[f].format, NULL, &p.data, &n_bad));
        assert_int_equal(n_bad, f < 3 ? 0 : table[f].block > 0 ? 2 : 3);
        if (f > 2) {
            static const uint8_t tiles[] = { 1, 0, 0, 1 };
            assert_memory_equal(p.data.nonfinite_tiles, tiles, sizeof tiles);
        }
        const mxa_tensor y = dequantize(&p, table[f].format, NULL, MXA_DTYPE_F32, x.shape);
        const int64_t block = table[f].block > 0 ? table[f].block : 1;
        for (int64_t i = 0; i < 2 * 130 * 64; i++) {
            const int64_t h = i / (130 * 64), s = i / 64 % 130, d = i % 64;
            const bool bad = (h == 1 && s == 129 && (d / block == 3 / block || d / block == 4 / block)) ||
                             (h == 0 && s == 5 && d / block == 60 / block);
            const double value = api_get(&y, 0, h, s, d);
            if (f > 2)
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
    for (int f = 0; f < FORMATS; f++)
        for (int i = 0; i < 3; i++) {
            const mxa_tensor x = api_tensor(MXA_DTYPE_F16, 2, 1, 9, 32);
            api_set_normal(&x, 36);
            mxa_quant_opts opts = api_opts();
            opts.nonfinite = MXA_NONFINITE_ERROR;
            api_quantize(&x, table[f].format, &opts);
            api_set(&x, 1, 0, 8, 31, bad[i]);
            const api_packed p = api_packed_new(table[f].format, &opts, x.shape);
            int64_t n_bad = 77;
            api_refused(mxa_quantize(&x, table[f].format, &opts, &p.data, &n_bad), MXA_ERR_NONFINITE, "x",
                        NULL);
            api_packed_untouched(&p);
            assert_int_equal(n_bad, 77);
            api_teardown(state);
        }
}

static void test_sanitize(void **state)
{
    static const double largest[] = { 0x1.fffffep127, 65504, 0x1.fep127 };
    for (int f = 0; f < FORMATS; f++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const mxa_tensor x = api_tensor((mxa_dtype)dtype, 1, 1, 2, 32);
            api_set_normal(&x, 37);
            mxa_quant_opts opts = api_opts();
            opts.nonfinite = MXA_NONFINITE_SANITIZE;
            api_set(&x, 0, 0, 0, 3, 0);
            api_set(&x, 0, 0, 0, 4, -largest[dtype]);
            api_set(&x, 0, 0, 1, 5, largest[dtype]);
            const api_packed want = api_quantize(&x, table[f].format, &opts);
            api_set(&x, 0, 0, 0, 3, NAN);
            api_set(&x, 0, 0, 0, 4, -INFINITY);
            api_set(&x, 0, 0, 1, 5, INFINITY);
            const api_packed got = api_quantize(&x, table[f].format, &opts);
            api_packed_same(&want, &got);
            api_teardown(state);
        }
}

/* ------------------------------------------------------------------ views, repeats, threads */

static void test_strides_and_threads(void **state)
{
    for (int f = 0; f < FORMATS; f++) {
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
        const api_packed one = api_quantize(&x, table[f].format, &opts);
        opts.threads = 3;
        const api_packed three = api_quantize(&view, table[f].format, &opts);
        api_packed_same(&one, &three);
        api_teardown(state);
    }
}

/* Padding of the tile layouts, filled tails and flags are written, whatever lay in the buffers before. */
static void test_all_written(void **state)
{
    for (int f = 3; f < FORMATS; f++)
        for (int layout = 0; layout < (table[f].scale == MXA_SCALE_NONE ? 1 : 3); layout++) {
            const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 37, 45);
            api_set_normal(&x, 39);
            mxa_quant_opts opts = api_opts();
            opts.fill_tail = true;
            opts.layout = (mxa_layout)layout;
            const api_packed a = api_quantize(&x, table[f].format, &opts);
            const api_packed b = api_packed_new(table[f].format, &opts, x.shape);
            memset(b.data.codes, 0x5A, (size_t)b.size.code_bytes);
            if (b.data.scales != NULL)
                memset(b.data.scales, 0x5A, (size_t)b.size.scale_bytes);
            memset(b.data.nonfinite_tiles, 0x5A, (size_t)b.size.tile_count);
            api_ok(mxa_quantize(&x, table[f].format, &opts, &b.data, NULL));
            api_packed_same(&a, &b);
            api_teardown(state);
        }
}

static void test_empty(void **state)
{
    static const int64_t shapes[][4] = { { 0, 2, 3, 64 }, { 2, 2, 0, 64 } };
    for (int f = 0; f < FORMATS; f++)
        for (int i = 0; i < 2; i++) {
            const mxa_tensor x =
                mxa_tensor_contiguous(NULL, MXA_DTYPE_F32, shapes[i][0], 2, shapes[i][2], 64);
            const api_packed p = api_packed_new(table[f].format, NULL, x.shape);
            int64_t n_bad = 5;
            api_ok(mxa_quantize(&x, table[f].format, NULL, &p.data, &n_bad));
            assert_int_equal(n_bad, 0);
            const mxa_packed none = { 0 };
            api_ok(mxa_quantize(&x, table[f].format, NULL, &none, NULL));
            api_ok(mxa_dequantize(&none, table[f].format, NULL, &x));
            api_teardown(state);
        }
}

/* ------------------------------------------------------------------ dequantising */

static void test_dequantize_types(void **state)
{
    for (int f = 0; f < FORMATS; f++) {
        const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 2, 7, 32);
        api_set_normal(&x, 40);
        api_set(&x, 0, 0, 0, 0, 1e30);
        api_set(&x, 0, 1, 6, 31, -1e30);
        const api_packed p = api_quantize(&x, table[f].format, NULL);
        const mxa_tensor wide = dequantize(&p, table[f].format, NULL, MXA_DTYPE_F32, x.shape);
        for (int dtype = 1; dtype < 3; dtype++) {
            const mxa_tensor narrow = dequantize(&p, table[f].format, NULL, (mxa_dtype)dtype, x.shape);
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
    for (int f = 3; f < FORMATS; f++) {
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
        const api_packed p = api_quantize(&x, table[f].format, &opts);
        const mxa_tensor y = dequantize(&p, table[f].format, &opts, MXA_DTYPE_F32, x.shape);
        double error = 0;
        for (int64_t i = 0; i < 2 * 9 * 96; i++)
            error += pow(
                api_get(&y, 0, i / 864, i / 96 % 9, i % 96) - api_get(&x, 0, i / 864, i / 96 % 9, i % 96), 2);
        assert_true(sqrt(error / (2 * 9 * 96)) < table[f].step);
        api_teardown(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_format_table),    API_TEST(test_sizes),    API_TEST(test_round_trip),
        API_TEST(test_block_b),         API_TEST(test_levels),   API_TEST(test_given_factor),
        API_TEST(test_axis_token),      API_TEST(test_tail),     API_TEST(test_propagate),
        API_TEST(test_error_policy),    API_TEST(test_sanitize), API_TEST(test_strides_and_threads),
        API_TEST(test_all_written),     API_TEST(test_empty),    API_TEST(test_dequantize_types),
        API_TEST(test_rotate_and_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
