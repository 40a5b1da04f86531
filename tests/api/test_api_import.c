/* SPDX-License-Identifier: Apache-2.0 */
/* Importers of other software's bytes, against the layouts of docs/formats.md. */
#include "api_support.h"

#include <math.h>
#include <string.h>

static void test_import_rows(void **state)
{
    (void)state;
    uint8_t ggml[2 * 17], nvfp4[36], gpt_oss[4 * 17];
    mxa_packed out = { .codes = api_bytes(64), .scales = api_bytes(4) };
    for (int b = 0; b < 2; b++) {
        ggml[b * 17] = b == 0 ? 0x80 : 0xFF;
        for (int j = 0; j < 16; j++)
            ggml[b * 17 + 1 + j] = (uint8_t)(j * 0x11);
    }
    static const uint8_t block_b[] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE };
    api_ok(mxa_import_rows(MXA_FOREIGN_GGML_MXFP4, ggml, sizeof ggml, 2, 32, &out));
    for (int i = 0; i < 4; i++)
        assert_memory_equal(out.codes + 8 * i, block_b, 8);
    assert_memory_equal(out.scales, ((uint8_t[]){ 0x80, 0xFF }), 2);

    memcpy(nvfp4, ((uint8_t[]){ 0x38, 0x7F, 0x00, 0x01 }), 4);
    for (int j = 0; j < 32; j++)
        nvfp4[4 + j] = (uint8_t)(0x80 + j % 8 * 0x11);
    api_ok(mxa_import_rows(MXA_FOREIGN_GGML_NVFP4, nvfp4, sizeof nvfp4, 1, 64, &out));
    for (int i = 0; i < 4; i++)
        assert_memory_equal(out.codes + 8 * i, block_b, 8);
    assert_memory_equal(out.scales, ((uint8_t[]){ 0x38, 0x00, 0x00, 0x01 }), 4);

    for (int i = 0; i < 4 * 17; i++)
        gpt_oss[i] = (uint8_t)(i * 3);
    api_ok(mxa_import_rows(MXA_FOREIGN_GPT_OSS, gpt_oss, sizeof gpt_oss, 2, 64, &out));
    assert_memory_equal(out.codes, gpt_oss, 64);
    assert_memory_equal(out.scales, gpt_oss + 64, 4);
}

static void test_import_rows_errors(void **state)
{
    (void)state;
    uint8_t src[72] = { 0 };
    const mxa_packed out = { .codes = api_bytes(64), .scales = api_bytes(4) };
    const mxa_packed no_codes = { .scales = out.scales }, no_scales = { .codes = out.codes };
    const mxa_foreign ggml = MXA_FOREIGN_GGML_MXFP4, nvfp4 = MXA_FOREIGN_GGML_NVFP4;
    api_refused(mxa_import_rows(ggml, NULL, 34, 2, 32, &out), MXA_ERR_ARG, "src", "NULL");
    api_refused(mxa_import_rows(ggml, src, 34, 2, 32, NULL), MXA_ERR_ARG, "out", "NULL");
    api_refused(mxa_import_rows(ggml, src, 34, 2, 32, &no_codes), MXA_ERR_ARG, "codes", "NULL");
    api_refused(mxa_import_rows(ggml, src, 34, 2, 32, &no_scales), MXA_ERR_ARG, "scales", "NULL");
    api_refused(mxa_import_rows((mxa_foreign)4, src, 34, 2, 32, &out), MXA_ERR_LAYOUT, "from", "4");
    api_refused(mxa_import_rows(MXA_FOREIGN_GGML_Q8_0, src, 68, 2, 32, &out), MXA_ERR_FORMAT, "from", "q8_0");
    api_refused(mxa_import_rows(ggml, src, 34, 2, 33, &out), MXA_ERR_LAYOUT, "cols", "33");
    api_refused(mxa_import_rows(nvfp4, src, 36, 1, 32, &out), MXA_ERR_LAYOUT, "cols", "32");
    api_refused(mxa_import_rows(MXA_FOREIGN_GPT_OSS, src, 34, 2, 31, &out), MXA_ERR_LAYOUT, "cols", "31");
    api_refused(mxa_import_rows(ggml, src, 33, 2, 32, &out), MXA_ERR_SHAPE, "src_bytes", "33");
    api_refused(mxa_import_rows(ggml, src, 35, 2, 32, &out), MXA_ERR_SHAPE, "src_bytes", "35");
    api_refused(mxa_import_rows(ggml, src, -34, 2, 32, &out), MXA_ERR_SHAPE, "src_bytes", "-34");
    api_refused(mxa_import_rows(ggml, src, 34, -2, 32, &out), MXA_ERR_SHAPE, "rows", "-2");
    api_refused(mxa_import_rows(ggml, src, 34, 2, -32, &out), MXA_ERR_SHAPE, "cols", "-32");
    api_refused(mxa_import_rows(ggml, src, 34, INT64_MAX, 32, &out), MXA_ERR_SHAPE, "rows", NULL);
    api_untouched(out.codes);
    api_untouched(out.scales);
}

static void test_import_vllm(void **state)
{
    (void)state;
    enum { HEADS = 8, TOKENS = 16, DIM = 128, BLOCKS = DIM / 16, CODES = HEADS * TOKENS * DIM / 2 };
    enum { SCALES = HEADS * TOKENS * BLOCKS, PAGE = 2 * (CODES + SCALES) };
    assert_int_equal(PAGE, 18432);
    uint8_t *const page = api_bytes(PAGE);
    for (int i = 0; i < PAGE; i++)
        page[i] = (uint8_t)(i * 7 + i / 251);
    const mxa_packed k = { .codes = api_bytes(CODES), .scales = api_bytes(SCALES) };
    const mxa_packed v = { .codes = api_bytes(CODES), .scales = api_bytes(SCALES) };
    api_ok(mxa_import_vllm_page(page, PAGE, HEADS, TOKENS, DIM, &k, &v));
    assert_memory_equal(k.codes, page, CODES);
    assert_memory_equal(k.scales, page + CODES, SCALES);
    assert_memory_equal(v.codes, page + CODES + SCALES, CODES);
    const uint8_t *const v_scales = page + 2 * CODES + SCALES;
    for (int i = 0; i < SCALES; i++) {
        const int h = i / (TOKENS * BLOCKS), t = i / BLOCKS % TOKENS, s = i % BLOCKS;
        assert_int_equal(v.scales[i], v_scales[h * TOKENS * BLOCKS + t / 4 * 4 * BLOCKS + s * 4 + t % 4]);
    }
}

static void test_import_vllm_errors(void **state)
{
    (void)state;
    enum { CODES = 4 * 32, SCALES = 4 * 4, PAGE = 2 * (CODES + SCALES) };
    uint8_t page[PAGE] = { 0 };
    const mxa_packed k = { .codes = api_bytes(CODES), .scales = api_bytes(SCALES) }, none = { 0 };
    const mxa_packed v = { .codes = api_bytes(CODES), .scales = api_bytes(SCALES) };
    api_refused(mxa_import_vllm_page(NULL, PAGE, 1, 4, 64, &k, &v), MXA_ERR_ARG, "page", "NULL");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, 64, NULL, &v), MXA_ERR_ARG, "k", "NULL");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, 64, &k, NULL), MXA_ERR_ARG, "v", "NULL");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, 64, &none, &v), MXA_ERR_ARG, "k", "NULL");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, 64, &k, &none), MXA_ERR_ARG, "v", "NULL");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 6, 64, &k, &v), MXA_ERR_LAYOUT, "tokens", "6");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, 96, &k, &v), MXA_ERR_LAYOUT, "head_dim", "96");
    api_refused(mxa_import_vllm_page(page, PAGE - 1, 1, 4, 64, &k, &v), MXA_ERR_SHAPE, "page_bytes", NULL);
    api_refused(mxa_import_vllm_page(page, PAGE, -1, 4, 64, &k, &v), MXA_ERR_SHAPE, "heads_kv", "-1");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, -4, 64, &k, &v), MXA_ERR_SHAPE, "tokens", "-4");
    api_refused(mxa_import_vllm_page(page, PAGE, 1, 4, -64, &k, &v), MXA_ERR_SHAPE, "head_dim", "-64");
    api_refused(mxa_import_vllm_page(page, PAGE, INT64_MAX, 4, 64, &k, &v), MXA_ERR_SHAPE, "page_bytes",
                NULL);
    api_untouched(k.codes);
    api_untouched(k.scales);
    api_untouched(v.codes);
    api_untouched(v.scales);
}

static void test_import_multipliers(void **state)
{
    (void)state;
    static const float multipliers[] = { 1, 3, 448, 0x1p117f, 0x1p-117f, 1e-20f };
    static const float refused[] = { 0, -1, NAN, INFINITY, 0x1.8p117f, 0x1.8p-118f };
    float *const g = api_floats(6);
    for (int i = 0; i < 6; i++) {
        float mixed[6];
        memcpy(mixed, multipliers, sizeof mixed);
        mixed[5] = refused[i];
        api_refused(mxa_import_multipliers(mixed, 6, g), MXA_ERR_SCALE, "multipliers", NULL);
    }
    api_refused(mxa_import_multipliers(NULL, 6, g), MXA_ERR_ARG, "multipliers", "NULL");
    api_refused(mxa_import_multipliers(multipliers, 6, NULL), MXA_ERR_ARG, "g", "NULL");
    api_refused(mxa_import_multipliers(multipliers, -6, g), MXA_ERR_SHAPE, "n", "-6");
    api_untouched(g);
    api_ok(mxa_import_multipliers(multipliers, 0, g));
    api_untouched(g);
    api_ok(mxa_import_multipliers(multipliers, 6, g));
    for (int i = 0; i < 6; i++)
        assert_true(g[i] == 1 / multipliers[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_import_rows),        API_TEST(test_import_rows_errors), API_TEST(test_import_vllm),
        API_TEST(test_import_vllm_errors), API_TEST(test_import_multipliers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
