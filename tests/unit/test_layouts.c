/* SPDX-License-Identifier: Apache-2.0 */
/* Packing, scale layouts and importers against layouts.json. */
#include "golden.h"

#include <string.h>

#include "format/format.h"

static void test_fp6(void **state)
{
    (void)state;
    json_t *root = golden_json("layouts.json"), *item;
    size_t i;
    json_array_foreach(json_object_get(root, "fp6"), i, item)
    {
        const char *const hex = golden_text(item, "codes"), *const packed_hex = golden_text(item, "bytes");
        uint8_t codes[32], packed[24], got[33], back[32];
        const size_t n = strlen(hex) / 2, bytes = strlen(packed_hex) / 2;
        golden_bytes(hex, codes, n);
        golden_bytes(packed_hex, packed, bytes);
        assert_int_equal(mxa_packed_bytes(6, (int64_t)n), bytes);
        got[bytes] = 0xA5;
        mxa_pack(6, codes, (int64_t)n, got);
        golden_same_bytes("fp6", packed, got, bytes);
        assert_int_equal(got[bytes], 0xA5);
        mxa_unpack(6, packed, (int64_t)n, back);
        golden_same_bytes("fp6 codes", codes, back, n);
    }
    json_decref(root);
}

static void check_even_low(const json_t *block, const float *x, const uint8_t *codes, uint8_t scale)
{
    uint8_t packed[16], want[16], got_scale;
    const mxa_tensor tensor = mxa_tensor_contiguous((float *)x, MXA_DTYPE_F32, 1, 1, 1, 32);
    const mxa_packed out = { packed, &got_scale, NULL, NULL };
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.rule = MXA_RULE_FLOOR;
    assert_int_equal(mxa_quantize(&tensor, MXA_FORMAT_MXFP4, &opts, &out, NULL), MXA_OK);
    golden_bytes(golden_text(block, "even_low"), want, 16);
    golden_same_bytes("even_low", want, packed, 16);
    assert_int_equal(got_scale, scale);
    uint8_t unpacked[32];
    assert_int_equal(mxa_unpack_codes(MXA_FORMAT_MXFP4, packed, 1, 32, unpacked), MXA_OK);
    golden_same_bytes("codes", codes, unpacked, 32);
    assert_int_equal(mxa_pack_codes(MXA_FORMAT_MXFP4, codes, 1, 32, packed), MXA_OK);
    golden_same_bytes("packed again", want, packed, 16);
}

static void check_import(mxa_foreign from, const uint8_t *src, size_t bytes, int64_t cols,
                         const uint8_t *codes, const uint8_t *scales, size_t n_scales)
{
    uint8_t packed[32], got_scales[4], unpacked[64];
    const mxa_packed out = { packed, got_scales, NULL, NULL };
    assert_int_equal(mxa_import_rows(from, src, (int64_t)bytes, 1, cols, &out), MXA_OK);
    mxa_unpack(4, packed, cols, unpacked);
    golden_same_bytes("imported codes", codes, unpacked, (size_t)cols);
    golden_same_bytes("imported scales", scales, got_scales, n_scales);
}

static void test_block_b(void **state)
{
    (void)state;
    json_t *root = golden_json("layouts.json"), *block = json_object_get(root, "block_B");
    float x[32];
    uint8_t codes[32], scale, foreign[17];
    golden_floats(golden_text(block, "in"), x, 32);
    golden_bytes(golden_text(block, "codes"), codes, 32);
    golden_bytes(golden_text(block, "scale"), &scale, 1);
    check_even_low(block, x, codes, scale);

    golden_bytes(golden_text(block, "ggml_mxfp4"), foreign, 17);
    check_import(MXA_FOREIGN_GGML_MXFP4, foreign, 17, 32, codes, &scale, 1);
    const json_t *oss = json_object_get(block, "gpt_oss");
    golden_bytes(golden_text(oss, "blocks"), foreign, 16);
    golden_bytes(golden_text(oss, "scales"), foreign + 16, 1);
    check_import(MXA_FOREIGN_GPT_OSS, foreign, 17, 32, codes, &scale, 1);
    json_decref(root);
}

/* Four sub-blocks with codes 0..15; the scale bytes are the first four. 0x7F is zero there and NaN here. */
static void test_ggml_nvfp4(void **state)
{
    (void)state;
    json_t *root = golden_json("layouts.json");
    uint8_t foreign[36], codes[64];
    golden_bytes(golden_text(json_object_get(root, "ggml_nvfp4"), "bytes"), foreign, 36);
    for (int i = 0; i < 64; i++)
        codes[i] = (uint8_t)(i % 16);
    check_import(MXA_FOREIGN_GGML_NVFP4, foreign, 36, 64, codes, foreign, 4);
    foreign[2] = 0x7F;
    const uint8_t scales[4] = { foreign[0], foreign[1], 0, foreign[3] };
    check_import(MXA_FOREIGN_GGML_NVFP4, foreign, 36, 64, codes, scales, 4);
    json_decref(root);
}

static void check_offsets(const json_t *layout, mxa_layout id, const char *key, const int *rows,
                          size_t n_rows)
{
    const int64_t cols = json_integer_value(json_object_get(layout, "cols"));
    const json_t *table = json_object_get(layout, key);
    assert_int_equal(json_array_size(table), n_rows);
    for (size_t i = 0; i < n_rows; i++)
        for (int64_t c = 0; c < cols; c++)
            assert_int_equal(mxa_scale_offset(id, cols, rows[i], c),
                             json_integer_value(json_array_get(json_array_get(table, i), (size_t)c)));
    assert_int_equal(mxa_scale_bytes(id, json_integer_value(json_object_get(layout, "rows")), cols),
                     json_integer_value(json_object_get(layout, "bytes")));
    json_t *hand;
    size_t i;
    json_array_foreach(json_object_get(layout, "hand"), i, hand)
    {
        json_int_t v[4];
        for (size_t k = 0; k < 4; k++)
            v[k] = json_integer_value(json_array_get(hand, k));
        assert_int_equal(mxa_scale_offset(id, v[2], v[0], v[1]), v[3]);
    }
}

static void test_scale_layouts(void **state)
{
    (void)state;
    json_t *root = golden_json("layouts.json");
    static const int tile_rows[] = { 0, 1, 31, 32, 127, 128, 159 }, amd_rows[] = { 0, 1, 15, 16, 31, 32, 37 };
    check_offsets(json_object_get(root, "scale_128x4"), MXA_LAYOUT_TILE_128X4,
                  "offsets_of_rows_0_1_31_32_127_128_159", tile_rows, 7);
    check_offsets(json_object_get(root, "scale_amd"), MXA_LAYOUT_AMD, "offsets_of_rows_0_1_15_16_31_32_37",
                  amd_rows, 7);
    json_decref(root);
}

/* Every offset of the padded matrix is used once, and moving there and back changes nothing. */
static void test_relayout(void **state)
{
    (void)state;
    enum { ROWS = 300, COLS = 9, MOST = 512 * 16 };
    static uint8_t row[ROWS * COLS], moved[MOST], back[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        row[i] = (uint8_t)(1 + i % 255);
    for (int to = MXA_LAYOUT_TILE_128X4; to <= MXA_LAYOUT_AMD; to++) {
        const int64_t bytes = mxa_scale_bytes((mxa_layout)to, ROWS, COLS);
        assert_in_range(bytes, ROWS * COLS, MOST);
        memset(moved, 0xEE, sizeof moved);
        assert_int_equal(mxa_relayout_scales(ROWS, COLS, MXA_LAYOUT_ROW, row, (mxa_layout)to, moved), MXA_OK);
        int64_t filled = 0;
        for (int64_t i = 0; i < bytes; i++)
            filled += moved[i] != 0;
        assert_int_equal(filled, ROWS * COLS);
        assert_int_equal(mxa_relayout_scales(ROWS, COLS, (mxa_layout)to, moved, MXA_LAYOUT_ROW, back),
                         MXA_OK);
        golden_same_bytes("there and back", row, back, sizeof row);
    }
}

static void test_vllm_page(void **state)
{
    (void)state;
    json_t *root = golden_json("layouts.json");
    const json_t *page_info = json_object_get(root, "vllm_page"),
                 *v_scale = json_object_get(root, "vllm_v_scale");
    enum { HEADS = 8, TOKENS = 16, DIM = 128, SCALES = DIM / 16, BYTES = 18432 };
    assert_int_equal(json_integer_value(json_object_get(page_info, "bytes")), BYTES);
    static uint8_t page[BYTES], k_codes[HEADS * TOKENS * DIM / 2], k_scales[HEADS * TOKENS * SCALES],
        v_codes[sizeof k_codes], v_scales[sizeof k_scales];
    for (int i = 0; i < BYTES; i++)
        page[i] = (uint8_t)(i * 7 + i / 251);
    const mxa_packed k = { k_codes, k_scales, NULL, NULL }, v = { v_codes, v_scales, NULL, NULL };
    assert_int_equal(mxa_import_vllm_page(page, BYTES, HEADS, TOKENS, DIM, &k, &v), MXA_OK);
    golden_same_bytes("k codes", page + json_integer_value(json_object_get(page_info, "k_data")), k_codes,
                      sizeof k_codes);
    golden_same_bytes("k scales", page + json_integer_value(json_object_get(page_info, "k_scales")), k_scales,
                      sizeof k_scales);
    golden_same_bytes("v codes", page + json_integer_value(json_object_get(page_info, "v_data")), v_codes,
                      sizeof v_codes);
    const uint8_t *from = page + json_integer_value(json_object_get(page_info, "v_scales"));
    const json_t *offsets = json_object_get(v_scale, "offsets");
    assert_int_equal(json_array_size(offsets), TOKENS);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t s = 0; s < SCALES; s++) {
                const json_int_t offset = json_integer_value(json_array_get(json_array_get(offsets, t), s));
                assert_int_equal(v_scales[(h * TOKENS + t) * SCALES + s],
                                 from[h * TOKENS * SCALES + (size_t)offset]);
            }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp6),        cmocka_unit_test(test_block_b),
        cmocka_unit_test(test_ggml_nvfp4), cmocka_unit_test(test_scale_layouts),
        cmocka_unit_test(test_relayout),   cmocka_unit_test(test_vllm_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
