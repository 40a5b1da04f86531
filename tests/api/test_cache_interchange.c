/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of ggml and vLLM caches: what is refused, with which status and sentence, that then nothing changes,
 * and that an import and an export are each other's way back. tests/python compares the bytes.
 */
#include "cache_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 8, BLOCK_BYTES = 17, ROW_BYTES = CACHE_HEADS_KV * CACHE_DIM / 32 * BLOCK_BYTES };
enum { PAGE_BYTES = 2 * CACHE_HEADS_KV * N * (CACHE_DIM / 2 + CACHE_DIM / 16) };

/* Codes of all kinds under scales near 1. */
static void fill_rows(uint8_t *rows, int64_t bytes, int seed)
{
    for (int64_t i = 0; i < bytes; i++)
        rows[i] = (uint8_t)(i % BLOCK_BYTES == 0 ? 120 + i / BLOCK_BYTES % 9 : i * 37 + seed);
}

static mxa_foreign_rows rows_of(mxa_foreign layout, int64_t bytes)
{
    return (mxa_foreign_rows){ layout, api_bytes((size_t)bytes), bytes };
}

static void test_refused_rows(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4,v=int8");
    cache_fill(c, 100, 1);
    size_t bytes, bytes_after;
    char *const before = cache_saved(c, &bytes);
    const mxa_foreign_rows good = rows_of(MXA_FOREIGN_GGML_MXFP4, N * ROW_BYTES);
    api_refused(mxa_cache_import_rows(NULL, 0, N, &good, &good), MXA_ERR_ARG, "cache", "NULL");
    api_refused(mxa_cache_import_rows(c, 2, N, &good, &good), MXA_ERR_ARG, "b", "2");
    api_refused(mxa_cache_import_rows(c, 0, -1, &good, &good), MXA_ERR_SHAPE, "n", "-1");
    api_refused(mxa_cache_import_rows(c, 0, INT64_MAX, &good, &good), MXA_ERR_SHAPE, "n", NULL);
    api_refused(mxa_cache_import_rows(c, 0, N, NULL, &good), MXA_ERR_ARG, "k", "NULL");
    api_refused(mxa_cache_export_rows(c, 0, 0, N, &good, NULL), MXA_ERR_ARG, "v", "NULL");
    api_refused(mxa_cache_export_rows(NULL, 0, 0, N, &good, &good), MXA_ERR_ARG, "cache", "NULL");
    api_refused(mxa_cache_export_rows(c, -1, 0, N, &good, &good), MXA_ERR_ARG, "b", "-1");
    api_refused(mxa_cache_export_rows(c, 0, 101, 0, &good, &good), MXA_ERR_ARG, "first", "101");
    api_refused(mxa_cache_export_rows(c, 0, -1, N, &good, &good), MXA_ERR_ARG, "first", "-1");
    api_refused(mxa_cache_export_rows(c, 0, 93, N, &good, &good), MXA_ERR_ARG, "n", "93");
    mxa_foreign_rows bad = good;
    bad.bytes--;
    api_refused(mxa_cache_import_rows(c, 0, N, &good, &bad), MXA_ERR_SHAPE, "v", NULL);
    api_refused(mxa_cache_export_rows(c, 0, 0, N, &bad, &good), MXA_ERR_SHAPE, "k", NULL);
    bad = good;
    bad.data = NULL;
    api_refused(mxa_cache_import_rows(c, 0, N, &bad, &good), MXA_ERR_ARG, "k", "NULL");
    bad = good;
    bad.layout = MXA_FOREIGN_GPT_OSS;
    api_refused(mxa_cache_import_rows(c, 0, N, &good, &bad), MXA_ERR_LAYOUT, "v", "2");
    bad.layout = (mxa_foreign)9;
    api_refused(mxa_cache_export_rows(c, 0, 0, N, &bad, &good), MXA_ERR_LAYOUT, "k", "9");
    api_untouched(good.data);
    char *const after = cache_saved(c, &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    mxa_cache_free(c);
}

/* A head_dim that has no whole blocks; a page that was removed. */
static void test_refused_caches(void **state)
{
    (void)state;
    mxa_cache_opts o = cache_opts("dma4");
    o.head_dim_v = 48;
    mxa_cache *c;
    api_ok(mxa_cache_create(&o, &c));
    const mxa_foreign_rows k = rows_of(MXA_FOREIGN_GGML_MXFP4, N * ROW_BYTES);
    api_refused(mxa_cache_import_rows(c, 0, N, &k, &k), MXA_ERR_LAYOUT, "v", "48");
    uint8_t *const data = api_bytes(PAGE_BYTES);
    mxa_vllm_page page = { data, PAGE_BYTES, N, 1, 1 };
    api_refused(mxa_cache_import_vllm(c, 0, N, &page), MXA_ERR_LAYOUT, "page", "48");
    mxa_cache_free(c);

    c = cache_new("dma4");
    cache_fill(c, 600, 1);
    api_ok(mxa_cache_remove(c, 0, 6, 2));
    api_refused(mxa_cache_export_rows(c, 0, 188, N, &k, &k), MXA_ERR_ARG, "first", "192");
    api_untouched(k.data);
    page = (mxa_vllm_page){ data, PAGE_BYTES, N, 1, 1 };
    api_refused(mxa_cache_export_vllm(c, 0, 250, N, &page), MXA_ERR_ARG, "first", "250");
    api_untouched(data);
    api_ok(mxa_cache_export_rows(c, 0, 256, N, &k, &k));
    mxa_cache_free(c);
}

static void test_refused_pages(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("low_q=fp8,low_k=nvfp4,v=nvfp4");
    const mxa_vllm_page good = { api_bytes(PAGE_BYTES), PAGE_BYTES, N, 0.5f, 2.0f };
    api_refused(mxa_cache_import_vllm(c, 0, N, NULL), MXA_ERR_ARG, "page", "NULL");
    mxa_vllm_page bad = good;
    bad.data = NULL;
    api_refused(mxa_cache_import_vllm(c, 0, N, &bad), MXA_ERR_ARG, "page", "NULL");
    bad = good;
    bad.tokens = N - 2;
    api_refused(mxa_cache_import_vllm(c, 0, 1, &bad), MXA_ERR_LAYOUT, "page", "6");
    bad = good;
    bad.bytes++;
    api_refused(mxa_cache_import_vllm(c, 0, N, &bad), MXA_ERR_SHAPE, "page", NULL);
    api_refused(mxa_cache_import_vllm(c, 0, N + 1, &good), MXA_ERR_ARG, "n", "9");
    static const float factors[] = { 0, NAN, INFINITY, -1, 0x1p118f };
    for (int i = 0; i < 5; i++) {
        bad = good;
        *(i % 2 ? &bad.g_k : &bad.g_v) = factors[i];
        api_refused(mxa_cache_import_vllm(c, 0, N, &bad), MXA_ERR_SCALE, "page", NULL);
    }
    int64_t lengths[CACHE_BATCH];
    api_ok(mxa_cache_lengths(c, lengths));
    assert_int_equal(lengths[0], 0);
    api_untouched(good.data);
    mxa_cache_free(c);
}

/* Both ways, between sequences of different caches; none of anything is fine. */
static void test_there_and_back(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("low_q=int8,low_k=mxfp4,v=mxfp4");
    mxa_foreign_rows k = rows_of(MXA_FOREIGN_GGML_MXFP4, N * ROW_BYTES);
    mxa_foreign_rows v = rows_of(MXA_FOREIGN_GGML_MXFP4, N * ROW_BYTES);
    fill_rows(k.data, k.bytes, 1);
    fill_rows(v.data, v.bytes, 2);
    for (int i = 0; i < 20; i++)
        api_ok(mxa_cache_import_rows(c, 1, N, &k, &v));
    mxa_foreign_rows back[2] = { rows_of(k.layout, k.bytes), rows_of(v.layout, v.bytes) };
    api_ok(mxa_cache_export_rows(c, 1, 17 * N, N, &back[0], &back[1]));
    assert_memory_equal(back[0].data, k.data, (size_t)k.bytes);
    assert_memory_equal(back[1].data, v.data, (size_t)v.bytes);
    k.bytes = v.bytes = 0;
    k.data = NULL;
    api_ok(mxa_cache_import_rows(c, 0, 0, &k, &v));
    api_ok(mxa_cache_export_rows(c, 0, 0, 0, &k, &v));
    cache_call call;
    cache_fill(c, 1, 3);
    cache_call_init(&call, c, 1, 4);
    api_ok(mxa_cache_attend(c, &call.args));
    mxa_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_refused_rows),
        API_TEST(test_refused_caches),
        API_TEST(test_refused_pages),
        API_TEST(test_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
