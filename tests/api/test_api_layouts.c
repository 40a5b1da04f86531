/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of codes and layouts of scale bytes, against the formulas of docs/formats.md. */
#include "api_support.h"

#include <string.h>

/* ------------------------------------------------------------------ codes */

static void test_pack_examples(void **state)
{
    (void)state;
    uint8_t packed[32], codes[32];
    for (int i = 0; i < 32; i++)
        codes[i] = (uint8_t)(i % 16);
    static const uint8_t nibbles[] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE };
    api_ok(mxa_pack_codes(MXA_FORMAT_MXFP4, codes, 1, 32, packed));
    assert_memory_equal(packed, nibbles, 8);
    assert_memory_equal(packed + 8, nibbles, 8);
    static const uint8_t odd[] = { 7, 2, 5 }, six_bits[] = { 1, 2, 3, 4 };
    api_ok(mxa_pack_codes(MXA_FORMAT_NVFP4, odd, 1, 3, packed));
    assert_memory_equal(packed, ((uint8_t[]){ 0x27, 0x05 }), 2);
    api_ok(mxa_pack_codes(MXA_FORMAT_MXFP6_E3M2, six_bits, 1, 4, packed));
    assert_memory_equal(packed, ((uint8_t[]){ 0x81, 0x30, 0x10 }), 3);
    memset(packed, 0xFF, sizeof packed);
    api_ok(mxa_pack_codes(MXA_FORMAT_MXFP6_E2M3, six_bits, 1, 2, packed));
    assert_memory_equal(packed, ((uint8_t[24]){ 0x81 }), 24); /* the tail is filled to a block of 32 */
}

/* Any number of rows and columns; a row has whole blocks, and what no code fills is 0. */
static void test_pack_and_back(void **state)
{
    uint64_t seed = 71;
    for (int f = API_PLAIN; f < API_FORMATS; f++)
        for (int i = 0; i < 30; i++) {
            const int bits = mxa_format_get(api_formats[f])->element_bits;
            const int64_t rows = api_pick(&seed, 0, 5), cols = api_pick(&seed, 0, 70);
            const int block = mxa_format_get(api_formats[f])->block, unit = block == 0 ? 1 : block;
            const int64_t row_bytes = (cols + unit - 1) / unit * unit * bits / 8;
            uint8_t *const codes = api_bytes((size_t)(rows * cols)), *const back =
                                                                         api_bytes((size_t)(rows * cols));
            uint8_t *const packed = api_bytes((size_t)(rows * row_bytes));
            for (int64_t c = 0; c < rows * cols; c++)
                codes[c] = (uint8_t)api_pick(&seed, 0, (1 << bits) - 1);
            api_ok(mxa_pack_codes(api_formats[f], codes, rows, cols, packed));
            for (int64_t c = 0; c < rows * cols; c++) {
                int code = 0;
                for (int b = 0; b < bits; b++) {
                    const int64_t at = c % cols * bits + b;
                    code |= (packed[c / cols * row_bytes + at / 8] >> at % 8 & 1) << b;
                }
                assert_int_equal(code, codes[c]);
            }
            for (int64_t r = 0; r < rows; r++)
                for (int64_t at = cols * bits; at < row_bytes * 8; at++)
                    assert_int_equal(packed[r * row_bytes + at / 8] >> at % 8 & 1, 0);
            api_ok(mxa_unpack_codes(api_formats[f], packed, rows, cols, back));
            assert_memory_equal(codes, back, (size_t)(rows * cols));
            api_teardown(state);
        }
}

static void test_pack_errors(void **state)
{
    (void)state;
    uint8_t *const to = api_bytes(64), *const from = memset(api_bytes(64), 0, 64);
    mxa_status (*const calls[])(mxa_format, const uint8_t *, int64_t, int64_t,
                                uint8_t *) = { mxa_pack_codes, mxa_unpack_codes };
    static const char *const in[] = { "codes", "packed" };
    for (int i = 0; i < 2; i++) {
        api_refused(calls[i](MXA_FORMAT_MXFP4, NULL, 2, 32, to), MXA_ERR_ARG, in[i], "NULL");
        api_refused(calls[i](MXA_FORMAT_MXFP4, from, 2, 32, NULL), MXA_ERR_ARG, in[1 - i], "NULL");
        api_refused(calls[i](MXA_FORMAT_MXFP4, from, -1, 32, to), MXA_ERR_SHAPE, "rows", "-1");
        api_refused(calls[i](MXA_FORMAT_MXFP4, from, 2, -3, to), MXA_ERR_SHAPE, "cols", "-3");
        api_refused(calls[i](MXA_FORMAT_MXFP4, from, INT64_MAX, INT64_MAX, to), MXA_ERR_SHAPE, "rows", NULL);
        api_refused(calls[i](MXA_FORMAT_NONE, from, 2, 32, to), MXA_ERR_FORMAT, "format", "0");
        api_refused(calls[i]((mxa_format)13, from, 2, 32, to), MXA_ERR_FORMAT, "format", "13");
        api_refused(calls[i](MXA_FORMAT_BF16, from, 2, 16, to), MXA_ERR_FORMAT, "format", NULL);
    }
    uint8_t *const wide = memset(api_bytes(64), 0, 64);
    wide[63] = 0x10;
    api_refused(mxa_pack_codes(MXA_FORMAT_MXFP4, wide, 2, 32, to), MXA_ERR_ARG, "codes", NULL);
    api_untouched(to);
}

/* Rows without elements take no time, however many there are. */
static void test_empty_rows(void **state)
{
    (void)state;
    const int64_t rows = INT64_C(1) << 50;
    api_ok(mxa_pack_codes(MXA_FORMAT_MXFP4, NULL, rows, 0, NULL));
    api_ok(mxa_unpack_codes(MXA_FORMAT_MXFP6_E3M2, NULL, rows, 0, NULL));
    api_ok(mxa_relayout_scales(rows, 0, MXA_LAYOUT_ROW, NULL, MXA_LAYOUT_TILE_128X4, NULL));
    api_ok(mxa_relayout_scales(0, rows, MXA_LAYOUT_AMD, NULL, MXA_LAYOUT_ROW, NULL));
}

/* ------------------------------------------------------------------ scales */

/* docs/formats.md, "Scale layouts" */
static int64_t offset_of(mxa_layout layout, int64_t cols, int64_t r, int64_t c)
{
    const int64_t cols4 = (cols + 3) / 4, cols8 = (cols + 7) / 8;
    if (layout == MXA_LAYOUT_TILE_128X4)
        return ((r / 128) * cols4 + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
    if (layout == MXA_LAYOUT_AMD)
        return ((((r / 32 * cols8 + c / 8) * 4 + c % 4) * 16 + r % 16) * 2 + c % 8 / 4) * 2 + r % 32 / 16;
    return r * cols + c;
}

static int64_t bytes_of(mxa_layout layout, int64_t rows, int64_t cols)
{
    if (layout == MXA_LAYOUT_TILE_128X4)
        return (rows + 127) / 128 * 128 * ((cols + 3) / 4 * 4);
    if (layout == MXA_LAYOUT_AMD)
        return (rows + 255) / 256 * 256 * ((cols + 7) / 8 * 8);
    return rows * cols;
}

static void test_relayout(void **state)
{
    assert_int_equal(offset_of(MXA_LAYOUT_TILE_128X4, 8, 37, 5), 597);
    assert_int_equal(offset_of(MXA_LAYOUT_AMD, 8, 37, 5), 342);
    static const int64_t sizes[][2] = { { 1, 1 }, { 130, 8 }, { 37, 5 }, { 300, 9 }, { 0, 4 }, { 4, 0 } };
    for (int i = 0; i < 6 * 9; i++) {
        const int64_t rows = sizes[i / 9][0], cols = sizes[i / 9][1];
        const mxa_layout from = (mxa_layout)(i % 3), to = (mxa_layout)(i / 3 % 3);
        assert_int_equal(mxa_scale_bytes(from, rows, cols), bytes_of(from, rows, cols));
        const size_t from_bytes = (size_t)bytes_of(from, rows, cols),
                     to_bytes = (size_t)bytes_of(to, rows, cols);
        uint8_t *const src = memset(api_bytes(from_bytes), 0x5A, from_bytes);
        uint8_t *const dst = api_bytes(to_bytes), *const want = memset(api_bytes(to_bytes), 0, to_bytes);
        for (int64_t at = 0; at < rows * cols; at++) {
            src[offset_of(from, cols, at / cols, at % cols)] = (uint8_t)(at * 37 + 1);
            want[offset_of(to, cols, at / cols, at % cols)] = (uint8_t)(at * 37 + 1);
        }
        api_ok(mxa_relayout_scales(rows, cols, from, src, to, dst));
        assert_memory_equal(want, dst, to_bytes);
        api_teardown(state);
    }
}

static void test_relayout_errors(void **state)
{
    (void)state;
    assert_true(mxa_scale_bytes((mxa_layout)3, 4, 4) == -1);
    assert_true(mxa_scale_bytes(MXA_LAYOUT_ROW, -1, 4) == -1);
    assert_true(mxa_scale_bytes(MXA_LAYOUT_AMD, 4, -1) == -1);
    assert_true(mxa_scale_bytes(MXA_LAYOUT_ROW, INT64_MAX, INT64_MAX) == -1);
    assert_true(mxa_scale_bytes(MXA_LAYOUT_TILE_128X4, INT64_MAX, 1) == -1);
    assert_true(mxa_scale_bytes(MXA_LAYOUT_AMD, 1, INT64_MAX) == -1);
    uint8_t *const dst = api_bytes(2048), *const src = api_bytes(2048);
    const mxa_layout row = MXA_LAYOUT_ROW, amd = MXA_LAYOUT_AMD;
    api_refused(mxa_relayout_scales(4, 4, row, NULL, amd, dst), MXA_ERR_ARG, "src", "NULL");
    api_refused(mxa_relayout_scales(4, 4, row, src, amd, NULL), MXA_ERR_ARG, "dst", "NULL");
    api_refused(mxa_relayout_scales(-4, 4, row, src, amd, dst), MXA_ERR_SHAPE, "rows", "-4");
    api_refused(mxa_relayout_scales(4, -4, row, src, amd, dst), MXA_ERR_SHAPE, "cols", "-4");
    api_refused(mxa_relayout_scales(INT64_MAX, 4, row, src, amd, dst), MXA_ERR_SHAPE, "rows", NULL);
    api_refused(mxa_relayout_scales(4, 4, (mxa_layout)3, src, amd, dst), MXA_ERR_LAYOUT, "from", "3");
    api_refused(mxa_relayout_scales(4, 4, row, src, (mxa_layout)-1, dst), MXA_ERR_LAYOUT, "to", "-1");
    api_untouched(dst);
}

/* A quantised tensor has the same scale bytes in every layout, at the places that the layout gives. */
static void test_quantised_layouts(void **state)
{
    (void)state;
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 2, 3, 37, 160);
    api_set_normal(&x, 72);
    mxa_quant_opts opts = api_opts();
    const api_packed rows = api_quantize(&x, MXA_FORMAT_MXFP4, &opts);
    for (int layout = 1; layout < 3; layout++) {
        opts.layout = (mxa_layout)layout;
        const api_packed tiles = api_quantize(&x, MXA_FORMAT_MXFP4, &opts);
        assert_memory_equal(tiles.data.codes, rows.data.codes, (size_t)rows.size.code_bytes);
        for (int64_t m = 0; m < 6; m++)
            for (int64_t at = 0; at < 37 * 5; at++)
                assert_int_equal(tiles.data.scales[m * tiles.size.matrix_scale_bytes +
                                                   offset_of(opts.layout, 5, at / 5, at % 5)],
                                 rows.data.scales[m * 37 * 5 + at]);
        const mxa_tensor a = api_tensor(MXA_DTYPE_F32, 2, 3, 37, 160),
                         b = api_tensor(MXA_DTYPE_F32, 2, 3, 37, 160);
        api_ok(mxa_dequantize(&tiles.data, MXA_FORMAT_MXFP4, &opts, &a));
        api_ok(mxa_dequantize(&rows.data, MXA_FORMAT_MXFP4, NULL, &b));
        api_same_bits(&a, &b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_pack_examples),     API_TEST(test_pack_and_back), API_TEST(test_pack_errors),
        API_TEST(test_empty_rows),        API_TEST(test_relayout),      API_TEST(test_relayout_errors),
        API_TEST(test_quantised_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
