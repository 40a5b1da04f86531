/* SPDX-License-Identifier: Apache-2.0 */
/* What calls on caches refuse, with which status and sentence; a refused call leaves the cache as it was. */
#include "cache_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void refuse_opts(const mxa_cache_opts *opts, mxa_status status, const char *argument,
                        const char *value)
{
    mxa_cache *const before = api_bytes(1), *cache = before;
    mxa_cache_size size;
    int64_t tokens;
    api_refused(mxa_cache_create(opts, &cache), status, argument, value);
    assert_ptr_equal(cache, before);
    api_refused(mxa_cache_bytes(opts, &size), status, argument, value);
    api_refused(mxa_cache_plan(opts, 1000, &tokens), status, argument, value);
}

static void test_opts(void **state)
{
    (void)state;
    refuse_opts(NULL, MXA_ERR_ARG, "opts", "NULL");
    mxa_cache_opts o = cache_opts("dma4");
    o.size--;
    refuse_opts(&o, MXA_ERR_ARG, "opts", NULL);
    int64_t *const sizes[] = { &o.batch, &o.heads_kv, &o.head_dim, &o.head_dim_v };
    static const char *const names[] = { "batch", "heads_kv", "head_dim", "head_dim_v" };
    for (int i = 0; i < 4; i++) {
        o = cache_opts("dma4");
        *sizes[i] = 0;
        refuse_opts(&o, MXA_ERR_SHAPE, names[i], "0");
    }
    static const int64_t bad_pages[] = { 0, 15, 24, 272, -16 };
    for (int i = 0; i < 5; i++) {
        o = cache_opts("dma4");
        o.page_tokens = bad_pages[i];
        refuse_opts(&o, MXA_ERR_ARG, "page_tokens", NULL);
    }
    o = cache_opts("dma4");
    o.head_dim_v = 257;
    refuse_opts(&o, MXA_ERR_UNSUPPORTED, "head_dim_v", "257");
    o = cache_opts("dma4");
    o.heads_kv = INT64_MAX / 2;
    refuse_opts(&o, MXA_ERR_SHAPE, "heads_kv", NULL);
    o = cache_opts("dma4");
    o.rewind = -1;
    refuse_opts(&o, MXA_ERR_ARG, "rewind", "-1");
    o = cache_opts("dma4");
    o.threads = -2;
    refuse_opts(&o, MXA_ERR_ARG, "threads", "-2");
    o = cache_opts("dma4");
    o.device = (mxa_device)-3;
    refuse_opts(&o, MXA_ERR_ARG, "device", "-3");
    o = cache_opts("dma4");
    o.pages[MXA_PAGE_HIGH] = -1;
    refuse_opts(&o, MXA_ERR_ARG, "pages", "-1");
    o = cache_opts("dma4");
    o.memory[0] = &o;
    refuse_opts(&o, MXA_ERR_ARG, "memory", NULL);
    o.pages[0] = 3;
    o.memory[0] = (char *)api_bytes(64) + 1;
    refuse_opts(&o, MXA_ERR_ALIGN, "memory", NULL);
}

static void test_recipes(void **state)
{
    (void)state;
    static const struct {
        const char *recipe, *value;
        mxa_status status;
    } cases[] = {
        { "exact", "exact", MXA_ERR_UNSUPPORTED },
        { "dma4,smooth-k=full", "smooth-k=full", MXA_ERR_UNSUPPORTED },
        { "int8,level_k=head", "head", MXA_ERR_UNSUPPORTED },
        { "dma8,level_q=token_block", "token_block", MXA_ERR_UNSUPPORTED },
        { "dma4,rotate-v", "rotate-v", MXA_ERR_ARG },
        { "dma4,v=bf16,rotate-v", "rotate-v", MXA_ERR_ARG },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mxa_cache_opts o = cache_opts(cases[i].recipe);
        refuse_opts(&o, cases[i].status, "recipe", cases[i].value);
    }
    static const float mean[CACHE_HEADS_KV * CACHE_DIM];
    mxa_cache_opts o = cache_opts("dma4");
    o.mean = mean;
    refuse_opts(&o, MXA_ERR_ARG, "mean", NULL);
    mxa_recipe given = *o.recipe;
    given.smooth_k = MXA_SMOOTH_GIVEN;
    o.recipe = &given;
    o.mean = NULL;
    refuse_opts(&o, MXA_ERR_ARG, "mean", "NULL");
    o = cache_opts("dma4");
    given.size = 1;
    o.recipe = &given;
    refuse_opts(&o, MXA_ERR_ARG, "recipe", NULL);
}

static void test_factors(void **state)
{
    (void)state;
    float g_v[CACHE_HEADS_KV * CACHE_DIM + 1];
    for (int i = 0; i <= CACHE_HEADS_KV * CACHE_DIM; i++)
        g_v[i] = 0.5f;
    static const char *const others[] = { "dma4", "dma4,v=bf16", "dma4,v=mxfp4", "dma8,v=mxint8" };
    for (int i = 0; i < 4; i++) {
        mxa_cache_opts o = cache_opts(others[i]);
        o.g_v = g_v;
        refuse_opts(&o, MXA_ERR_ARG, "g_v", NULL);
    }
    mxa_cache_opts o = cache_opts("dma4,v=fp8");
    o.g_v = (const float *)(const void *)((const char *)g_v + 1);
    refuse_opts(&o, MXA_ERR_ALIGN, "g_v", NULL);
    o.g_v = g_v;
    static const float bad[] = { 0, -1, NAN, INFINITY, 0x1p118f };
    for (int i = 0; i < 5; i++) {
        g_v[CACHE_HEADS_KV * CACHE_DIM - 1] = bad[i];
        refuse_opts(&o, MXA_ERR_SCALE, "g_v", "127");
    }
    g_v[CACHE_HEADS_KV * CACHE_DIM - 1] = 0x1p117f;
    mxa_cache *c;
    api_ok(mxa_cache_create(&o, &c));
    mxa_cache_free(c);
}

static void test_append(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4,v=int8");
    cache_fill(c, 70, 1);
    size_t bytes, bytes_after;
    char *const before = cache_saved(c, &bytes);
    const mxa_tensor good = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 5, CACHE_DIM);
    api_set_normal(&good, 2);
    mxa_tensor bad = good;
    api_refused(mxa_cache_append(NULL, &good, &good, NULL), MXA_ERR_ARG, "cache", "NULL");
    api_refused(mxa_cache_append(c, NULL, &good, NULL), MXA_ERR_ARG, "k", "NULL");
    bad.shape[1] = 3;
    api_refused(mxa_cache_append(c, &bad, &good, NULL), MXA_ERR_SHAPE, "k", "3");
    bad = good;
    bad.shape[2] = 4;
    api_refused(mxa_cache_append(c, &good, &bad, NULL), MXA_ERR_SHAPE, "v", "4");
    bad = good;
    bad.shape[3] = 32;
    api_refused(mxa_cache_append(c, &good, &bad, NULL), MXA_ERR_SHAPE, "v", "32");
    bad = good;
    bad.data = (char *)good.data + 1;
    api_refused(mxa_cache_append(c, &bad, &good, NULL), MXA_ERR_ALIGN, "k", NULL);
    static const int64_t counts[2][CACHE_BATCH] = { { 0, 6 }, { -1, 2 } };
    api_refused(mxa_cache_append(c, &good, &good, counts[0]), MXA_ERR_ARG, "counts", "6");
    api_refused(mxa_cache_append(c, &good, &good, counts[1]), MXA_ERR_ARG, "counts", "-1");
    char *const after = cache_saved(c, &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    mxa_cache_free(c);
}

static void test_capacity(void **state)
{
    (void)state;
    mxa_cache_opts o = cache_opts("dma4");
    o.pages[MXA_PAGE_LOW] = 6;
    o.pages[MXA_PAGE_HIGH] = 20;
    mxa_cache *c;
    api_ok(mxa_cache_create(&o, &c));
    cache_fill(c, 3 * CACHE_PAGE, 1);
    const mxa_tensor one = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 1, CACHE_DIM);
    api_set_normal(&one, 2);
    int64_t lengths[CACHE_BATCH];
    for (int kind = 0; kind < 2; kind++) {
        api_refused(mxa_cache_append(c, &one, &one, NULL), MXA_ERR_MEMORY, "pages", "0");
        api_ok(mxa_cache_lengths(c, lengths));
        assert_int_equal(lengths[0], 3 * CACHE_PAGE);
    }
    api_ok(mxa_cache_truncate(c, 0, CACHE_PAGE));
    api_ok(mxa_cache_append(c, &one, &one, NULL)); /* one page each of the two that came free */
    mxa_cache_free(c);
}

/* The last of those that go on in a shared page takes it over: pages that do for each alone do for forks. */
static void test_forks_fill_the_pages(void **state)
{
    (void)state;
    mxa_cache_opts o = cache_opts("dma4");
    o.pages[MXA_PAGE_LOW] = o.pages[MXA_PAGE_HIGH] = CACHE_BATCH;
    mxa_cache *c;
    api_ok(mxa_cache_create(&o, &c));
    cache_fill(c, CACHE_PAGE / 2, 1);
    api_ok(mxa_cache_fork(c, 0, 1));
    cache_fill(c, CACHE_PAGE / 2, 2);
    mxa_cache_table first, second;
    api_ok(mxa_cache_get_table(c, 0, &first));
    api_ok(mxa_cache_get_table(c, 1, &second));
    for (int kind = 0; kind < MXA_PAGE_KINDS; kind++)
        assert_int_not_equal(first.pages[kind][0], second.pages[kind][0]);
    mxa_cache_free(c);
}

static void test_attend(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4");
    cache_fill(c, 600, 1);
    cache_fill(c, 3, 2);
    cache_call call;
    cache_call_init(&call, c, 19, 3);
    mxa_cache_attend_args *const a = &call.args;
    const mxa_cache_attend_args good = *a;
    api_refused(mxa_cache_attend(NULL, a), MXA_ERR_ARG, "cache", "NULL");
    api_refused(mxa_cache_attend(c, NULL), MXA_ERR_ARG, "args", "NULL");
    a->size = 1;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "args", "1");
    *a = good;
    a->softmax_scale = NAN;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "softmax_scale", NULL);
    *a = good;
    a->softcap = -1;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "softcap", "-1");
    *a = good;
    a->window_left = -2;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "window_left", "-2");
    *a = good;
    a->lse = (float *)(void *)((char *)call.lse + 1);
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ALIGN, "lse", NULL);
    *a = good;
    a->work = NULL;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "work", "NULL");
    *a = good;
    a->work_bytes--;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_WORKSPACE, "work_bytes", NULL);
    *a = good;
    call.q.shape[1] = 3;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_SHAPE, "q", "3");
    call.q.shape[1] = CACHE_HEADS;
    call.out.stride[1] = 0;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "out", NULL);
    call.out.stride[1] = 19 * CACHE_DIM;
    static const int64_t counts[CACHE_BATCH] = { 20, 1 };
    a->counts = counts;
    api_refused(mxa_cache_attend(c, a), MXA_ERR_ARG, "counts", "20");
    api_untouched(call.out.data);
    *a = good;
    api_ok(mxa_cache_attend(c, a)); /* 3 of the last append, and 16 that may be taken back */
    mxa_cache_free(c);
}

/* More queries than a sequence has tokens, of one of them or of both. */
static void test_queries_beyond(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4");
    cache_fill(c, 3, 1);
    cache_call call;
    cache_call_init(&call, c, 4, 2);
    api_refused(mxa_cache_attend(c, &call.args), MXA_ERR_ARG, "counts", "4");
    api_ok(mxa_cache_truncate(c, 1, 1));
    static const int64_t counts[2][CACHE_BATCH] = { { 3, 2 }, { 3, 1 } };
    call.args.counts = counts[0];
    api_refused(mxa_cache_attend(c, &call.args), MXA_ERR_ARG, "counts", "2");
    api_untouched(call.out.data);
    call.args.counts = counts[1];
    api_ok(mxa_cache_attend(c, &call.args));
    mxa_cache_free(c);
}

/* A workspace for many queries does for any fewer, though their keys' segments have sums of their own. */
static void test_workspace(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4");
    cache_fill(c, 2100, 1);
    cache_call call;
    const size_t bytes = mxa_cache_work_bytes(c, CACHE_HEADS, 17, 2100);
    for (int64_t n = 17; n >= 15; n--) {
        cache_call_init(&call, c, n, 3);
        assert_true(call.args.work_bytes <= bytes);
        call.args.work = api_bytes(bytes);
        call.args.work_bytes = bytes;
        api_ok(mxa_cache_attend(c, &call.args));
    }
    mxa_cache_free(c);
}

/* Rows that no sequence takes cost nothing, however many there are. */
static void test_rows_not_taken(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4");
    mxa_tensor rows = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 1, CACHE_DIM);
    api_set_normal(&rows, 1);
    rows.shape[2] = (int64_t)1 << 48;
    rows.stride[0] = rows.stride[1] = rows.stride[2] = 0;
    static const int64_t counts[CACHE_BATCH] = { 0, 3 };
    api_ok(mxa_cache_append(c, &rows, &rows, counts));
    int64_t lengths[CACHE_BATCH];
    api_ok(mxa_cache_lengths(c, lengths));
    assert_int_equal(lengths[0], 0);
    assert_int_equal(lengths[1], 3);
    mxa_cache_free(c);
}

static void test_gone(void **state)
{
    (void)state;
    mxa_cache *const c = cache_new("dma4");
    cache_fill(c, 600, 1);
    cache_fill(c, 1, 2);
    cache_call call;
    cache_call_init(&call, c, 300, 3);
    api_refused(mxa_cache_attend(c, &call.args), MXA_ERR_ARG, "counts", "high");
    api_refused(mxa_cache_truncate(c, 0, 400), MXA_ERR_ARG, "length", "400");
    api_refused(mxa_cache_truncate(c, 0, 602), MXA_ERR_ARG, "length", "602");
    api_refused(mxa_cache_truncate(c, 2, 1), MXA_ERR_ARG, "b", "2");
    api_ok(mxa_cache_truncate(c, 0, 601 - 17));
    api_ok(mxa_cache_truncate(c, 0, 128)); /* all of it is in the sink window */
    api_refused(mxa_cache_remove(c, 1, 18, 2), MXA_ERR_ARG, "first", "18");
    api_refused(mxa_cache_remove(c, 1, 3, 2), MXA_ERR_ARG, "first", "3");
    api_ok(mxa_cache_remove(c, 1, 6, 2));
    cache_call_init(&call, c, 1, 4);
    api_refused(mxa_cache_attend(c, &call.args), MXA_ERR_ARG, "counts", "removed");
    call.args.window_left = 300;
    api_ok(mxa_cache_attend(c, &call.args));
    api_ok(mxa_cache_remove(c, 1, 16, 2)); /* of the near window */
    api_refused(mxa_cache_attend(c, &call.args), MXA_ERR_ARG, "counts", "removed");
    api_refused(mxa_cache_fork(c, 0, 5), MXA_ERR_ARG, "to", "5");
    api_refused(mxa_cache_fork(c, -1, 0), MXA_ERR_ARG, "from", "-1");
    static const int64_t from[CACHE_BATCH] = { 0, 2 };
    api_refused(mxa_cache_reorder(c, from), MXA_ERR_ARG, "from", "2");
    api_refused(mxa_cache_reorder(c, NULL), MXA_ERR_ARG, "from", "NULL");
    mxa_cache_free(c);
}

static void test_tables(void **state)
{
    (void)state;
    mxa_cache *const grows = cache_new("dma4");
    mxa_cache_table t;
    api_ok(mxa_cache_get_table(grows, 0, &t));
    static const int32_t none[1] = { -1 };
    t.pages[0] = t.pages[1] = none;
    api_refused(mxa_cache_set_table(grows, 0, &t), MXA_ERR_ARG, "table", NULL);
    mxa_cache_free(grows);

    mxa_cache_opts o = cache_opts("dma4");
    o.pages[0] = o.pages[1] = 30;
    mxa_cache *c;
    api_ok(mxa_cache_create(&o, &c));
    cache_fill(c, 200, 1);
    api_ok(mxa_cache_get_table(c, 0, &t));
    const mxa_cache_table good = t;
    assert_int_equal(t.n_pages, 7);
    api_refused(mxa_cache_set_table(c, 1, NULL), MXA_ERR_ARG, "table", "NULL");
    t.length = 225;
    api_refused(mxa_cache_set_table(c, 1, &t), MXA_ERR_SHAPE, "table", "225");
    t = good;
    t.high_first = 160;
    api_refused(mxa_cache_set_table(c, 1, &t), MXA_ERR_ARG, "table", "160");
    t = good;
    int32_t pages[7];
    memcpy(pages, good.pages[MXA_PAGE_HIGH], sizeof pages);
    t.pages[MXA_PAGE_HIGH] = pages;
    pages[2] = 30;
    api_refused(mxa_cache_set_table(c, 1, &t), MXA_ERR_ARG, "table", "30");
    pages[2] = -1;
    api_refused(mxa_cache_set_table(c, 1, &t), MXA_ERR_ARG, "table", "windows");
    pages[2] = good.pages[MXA_PAGE_HIGH][2];
    api_ok(mxa_cache_set_table(c, 1, &t)); /* as a fork does */
    assert_null(mxa_cache_page(c, 2, 0));
    assert_null(mxa_cache_page(c, 0, 30));
    assert_non_null(mxa_cache_page(c, 1, 29));
    mxa_cache_free(c);
}

/* A device that is not there, and calls that only a device's cache has. */
static void test_devices(void **state)
{
    (void)state;
    mxa_cache *made = NULL, *const c = cache_new("dma4");
    static const int64_t counts[CACHE_BATCH] = { 1, 1 };
    api_refused(mxa_cache_set_stream(NULL, NULL), MXA_ERR_ARG, "cache", "NULL");
    api_refused(mxa_cache_set_stream(c, NULL), MXA_ERR_ARG, "cache", "the CPU's");
    api_refused(mxa_cache_advance(c, counts), MXA_ERR_ARG, "cache", "the CPU's");
    setenv("MXA_CUDA_LIBRARY", "/nonexistent/libmxattn_cuda.so", 1);
    mxa_cache_opts o = cache_opts("dma4");
    o.device = MXA_DEVICE_CUDA_0;
    api_refused(mxa_cache_create(&o, &made), MXA_ERR_DEVICE, "device", "cuda:0");
    api_refused(mxa_cache_load("/nonexistent", &o, &made), MXA_ERR_DEVICE, "device", "cuda:0");
    assert_null(made);
    mxa_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_opts),
        API_TEST(test_recipes),
        API_TEST(test_factors),
        API_TEST(test_queries_beyond),
        API_TEST(test_append),
        API_TEST(test_capacity),
        API_TEST(test_attend),
        API_TEST(test_workspace),
        API_TEST(test_rows_not_taken),
        API_TEST(test_gone),
        API_TEST(test_forks_fill_the_pages),
        API_TEST(test_tables),
        API_TEST(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
