/* SPDX-License-Identifier: Apache-2.0 */
/* The table of formats, and the sizes of quantised tensors. */
#include "api_support.h"

#include <string.h>

/* docs/numerics.md, "Element formats" */
static const struct {
    mxa_format format;
    const char *name;
    int bits, block;
    mxa_scale_type scale;
    double largest;
    mxa_rule rule;
    mxa_level level;
} table[] = {
    { MXA_FORMAT_F32, "f32", 32, 0, MXA_SCALE_NONE, 0x1.fffffep127, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_F16, "f16", 16, 0, MXA_SCALE_NONE, 65504, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_BF16, "bf16", 16, 0, MXA_SCALE_NONE, 0x1.fep127, MXA_RULE_DEFAULT, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E4M3, "mxfp8", 8, 32, MXA_SCALE_E8M0, 448, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP8_E5M2, "mxfp8-e5m2", 8, 32, MXA_SCALE_E8M0, 57344, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E3M2, "mxfp6", 6, 32, MXA_SCALE_E8M0, 28, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP6_E2M3, "mxfp6-e2m3", 6, 32, MXA_SCALE_E8M0, 7.5, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXFP4, "mxfp4", 4, 32, MXA_SCALE_E8M0, 6, MXA_RULE_EVEN, MXA_LEVEL_NONE },
    { MXA_FORMAT_MXINT8, "mxint8", 8, 32, MXA_SCALE_E8M0, 127.0 / 64, MXA_RULE_RCEIL, MXA_LEVEL_NONE },
    { MXA_FORMAT_NVFP4, "nvfp4", 4, 16, MXA_SCALE_UE4M3, 6, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_FP8, "fp8", 8, 0, MXA_SCALE_NONE, 448, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
    { MXA_FORMAT_INT8, "int8", 8, 0, MXA_SCALE_NONE, 127, MXA_RULE_DEFAULT, MXA_LEVEL_TOKEN },
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_format_table),
        API_TEST(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
