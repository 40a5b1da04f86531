/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache when memory runs out: each allocation of a call fails in turn, and the cache is as it was.
 * Attention to it allocates nothing. And page memory whose offsets do not fit 32 bits.
 */
#define _GNU_SOURCE
#include "cache_call.h"
#include "failing_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_ALLOCATIONS = 1000 };

typedef mxa_status change(mxa_cache *cache);

static mxa_tensor new_k, new_v;

static mxa_status append_many(mxa_cache *cache)
{
    return mxa_cache_append(cache, &new_k, &new_v, NULL);
}

static mxa_status fork_first(mxa_cache *cache)
{
    return mxa_cache_fork(cache, 0, 1);
}

static mxa_status swap(mxa_cache *cache)
{
    static const int64_t from[CACHE_BATCH] = { 1, 0 };
    return mxa_cache_reorder(cache, from);
}

static mxa_foreign_rows new_rows;

static mxa_status import_rows(mxa_cache *cache)
{
    return mxa_cache_import_rows(cache, 1, 150, &new_rows, &new_rows);
}

static mxa_status export_rows(mxa_cache *cache)
{
    return mxa_cache_export_rows(cache, 1, 3, 150, &new_rows, &new_rows);
}

/* The change fails for the n-th allocation, for every n, without a trace; then it succeeds. Returns n. */
static int check_change(mxa_cache *cache, change *fn)
{
    size_t before_bytes, after_bytes;
    char *const before = cache_saved(cache, &before_bytes);
    mxa_status status = MXA_ERR_MEMORY;
    int failures = 0;
    for (; status != MXA_OK && failures < MOST_ALLOCATIONS; failures++) {
        api_allocations_left = failures;
        status = fn(cache);
        api_allocations_left = -1;
        if (status == MXA_OK)
            break;
        assert_int_equal(status, MXA_ERR_MEMORY);
        assert_true(strlen(mxa_error_text()) > 0);
        char *const after = cache_saved(cache, &after_bytes);
        assert_int_equal(after_bytes, before_bytes);
        assert_memory_equal(after, before, before_bytes);
        free(after);
    }
    assert_int_equal(status, MXA_OK);
    free(before);
    return failures;
}

static void test_changes(void **state)
{
    (void)state;
    static change *const changes[] = { append_many, swap, fork_first, append_many, import_rows, export_rows };
    mxa_cache *const cache = cache_new("dma4,v=int8");
    new_k = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 150, CACHE_DIM);
    new_v = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 150, CACHE_DIM);
    api_set_normal(&new_k, 1);
    api_set_normal(&new_v, 2);
    new_rows.layout = MXA_FOREIGN_GGML_Q8_0;
    new_rows.bytes = (int64_t)150 * CACHE_HEADS_KV * CACHE_DIM / 32 * 34;
    new_rows.data = api_bytes((size_t)new_rows.bytes);
    memset(new_rows.data, 1, (size_t)new_rows.bytes);
    cache_fill(cache, 3, 3);
    api_ok(mxa_cache_truncate(cache, 1, 0));
    int failures = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        failures += check_change(cache, changes[i]);
    assert_true(failures > 10); /* pages and tables are allocations */
    mxa_cache_free(cache);
}

static mxa_status set_table(mxa_cache *cache)
{
    mxa_cache_table table;
    api_ok(mxa_cache_get_table(cache, 0, &table));
    return mxa_cache_set_table(cache, 1, &table);
}

static void test_table(void **state)
{
    (void)state;
    mxa_cache_opts opts = cache_opts("dma4,v=int8");
    opts.pages[MXA_PAGE_LOW] = opts.pages[MXA_PAGE_HIGH] = 40;
    mxa_cache *cache = NULL;
    api_ok(mxa_cache_create(&opts, &cache));
    cache_fill(cache, 300, 1);
    assert_true(check_change(cache, set_table) > 0);
    mxa_cache_free(cache);
}

static void test_create_and_load(void **state)
{
    (void)state;
    char path[] = "/tmp/mxattn_cache_load_XX"
                  "XXXX";
    close(mkstemp(path));
    mxa_cache *const cache = cache_new("dma4,v=int8");
    cache_fill(cache, 300, 1);
    mxa_status saved = MXA_ERR_MEMORY, created = MXA_ERR_MEMORY, loaded = MXA_ERR_MEMORY;
    const mxa_cache_opts opts = cache_opts("dma4,v=int8");
    for (int failures = 0; failures < MOST_ALLOCATIONS; failures++) {
        mxa_cache *made = NULL, *read = NULL;
        api_allocations_left = failures;
        created = mxa_cache_create(&opts, &made);
        api_allocations_left = failures;
        saved = saved == MXA_OK ? saved : mxa_cache_save(cache, path);
        if (saved == MXA_OK) {
            api_allocations_left = failures;
            loaded = mxa_cache_load(path, NULL, &read);
        }
        api_allocations_left = -1;
        assert_true((created == MXA_OK) == (made != NULL) && (loaded == MXA_OK) == (read != NULL));
        assert_true(saved == MXA_OK || saved == MXA_ERR_MEMORY || saved == MXA_ERR_FILE);
        assert_true(loaded == MXA_OK || loaded == MXA_ERR_MEMORY || loaded == MXA_ERR_FILE);
        mxa_cache_free(made);
        mxa_cache_free(read);
        if (created == MXA_OK && loaded == MXA_OK)
            break;
    }
    assert_int_equal(created, MXA_OK);
    assert_int_equal(loaded, MXA_OK);
    unlink(path);
    mxa_cache_free(cache);
}

static void test_attend_allocates_nothing(void **state)
{
    (void)state;
    mxa_cache *const cache = cache_new("dma4,v=mxfp4,rotate-v");
    cache_fill(cache, 300, 1);
    cache_call call;
    cache_call_init(&call, cache, 2, 2);
    api_allocations_left = 0;
    const mxa_status status = mxa_cache_attend(cache, &call.args);
    const long left = api_allocations_left;
    api_allocations_left = -1;
    api_ok(status);
    assert_int_equal(left, 0);
    mxa_cache_free(cache);
}

/* The same rows with 2^31 elements between heads and 2^32 between sequences, in memory of the caller's. */
static mxa_tensor far_copy(const mxa_tensor *x, char *memory)
{
    mxa_tensor far_rows = *x;
    const size_t row_bytes = (size_t)x->shape[3] * sizeof(uint16_t);
    far_rows.data = memory;
    far_rows.stride[0] = INT64_C(1) << 32;
    far_rows.stride[1] = INT64_C(1) << 31;
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++) {
                const int64_t to = b * far_rows.stride[0] + h * far_rows.stride[1] + i * far_rows.stride[2];
                const int64_t from = b * x->stride[0] + h * x->stride[1] + i * x->stride[2];
                memcpy(memory + to * (int64_t)sizeof(uint16_t),
                       (const char *)x->data + from * (int64_t)sizeof(uint16_t), row_bytes);
            }
    return far_rows;
}

static void test_far_rows(void **state)
{
    (void)state;
    const size_t far = (size_t)20 << 30; /* the last row begins after 3 * 2^31 elements of 2 bytes */
    char *const memory =
        mmap(NULL, far, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        skip();
    const mxa_tensor k = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, 150, CACHE_DIM);
    api_set_normal(&k, 1);
    const mxa_tensor far_k = far_copy(&k, memory);
    mxa_cache *const near_cache = cache_new("dma4,v=int8"), *const far_cache = cache_new("dma4,v=int8");
    api_ok(mxa_cache_append(near_cache, &k, &k, NULL));
    api_ok(mxa_cache_append(far_cache, &far_k, &far_k, NULL));
    size_t near_bytes, far_bytes;
    char *const near_file = cache_saved(near_cache, &near_bytes);
    char *const far_file = cache_saved(far_cache, &far_bytes);
    assert_int_equal(near_bytes, far_bytes);
    assert_memory_equal(near_file, far_file, near_bytes);

    cache_call call;
    cache_call_init(&call, near_cache, 1, 2);
    const mxa_tensor q = call.q;
    call.q.shape[1] = call.out.shape[1] = CACHE_HEADS_KV; /* as many heads as far rows have room for */
    api_ok(mxa_cache_attend(near_cache, &call.args));
    const mxa_tensor near_out = call.out;
    mxa_tensor far_q = q;
    far_q.shape[1] = CACHE_HEADS_KV;
    call.q = far_copy(&far_q, memory);
    call.out.data = api_bytes((size_t)(CACHE_BATCH * CACHE_HEADS * CACHE_DIM) * sizeof(float));
    api_ok(mxa_cache_attend(far_cache, &call.args));
    api_same_bits(&near_out, &call.out);
    free(near_file);
    free(far_file);
    mxa_cache_free(near_cache);
    mxa_cache_free(far_cache);
    munmap(memory, far);
}

/* The same tokens in pages that lie 20 GiB apart. */
static void test_far_memory(void **state)
{
    (void)state;
    mxa_cache_opts opts = cache_opts("dma4,v=int8");
    mxa_cache_size size;
    api_ok(mxa_cache_bytes(&opts, &size));
    const size_t far = (size_t)20 << 30;
    mxa_cache *near_cache = cache_new("dma4,v=int8"), *far_cache = NULL;
    size_t bytes[MXA_PAGE_KINDS];
    for (int kind = 0; kind < MXA_PAGE_KINDS; kind++) {
        opts.pages[kind] = (int64_t)far / size.page_bytes[kind];
        bytes[kind] = (size_t)(opts.pages[kind] * size.page_bytes[kind]);
        opts.memory[kind] = mmap(NULL, bytes[kind], PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (opts.memory[kind] == MAP_FAILED)
            skip();
    }
    api_ok(mxa_cache_create(&opts, &far_cache));
    cache_fill(near_cache, 200, 1);
    cache_fill(far_cache, 200, 1);
    mxa_cache_table t;
    api_ok(mxa_cache_get_table(far_cache, 0, &t));
    int32_t pages[MXA_PAGE_KINDS][16];
    for (int kind = 0; kind < MXA_PAGE_KINDS; kind++)
        for (int64_t p = 0; p < t.n_pages; p++) {
            pages[kind][p] = (int32_t)(opts.pages[kind] - 1 - p); /* from the other end */
            memcpy(mxa_cache_page(far_cache, kind, pages[kind][p]),
                   mxa_cache_page(far_cache, kind, t.pages[kind][p]), (size_t)size.page_bytes[kind]);
        }
    t.pages[0] = pages[0];
    t.pages[1] = pages[1];
    api_ok(mxa_cache_set_table(far_cache, 0, &t));
    cache_fill(near_cache, 5, 2);
    cache_fill(far_cache, 5, 2);
    cache_call want, got;
    cache_call_init(&want, near_cache, 3, 9);
    cache_call_init(&got, far_cache, 3, 9);
    api_ok(mxa_cache_attend(near_cache, &want.args));
    api_ok(mxa_cache_attend(far_cache, &got.args));
    api_same_bits(&want.out, &got.out);
    mxa_cache_free(near_cache);
    mxa_cache_free(far_cache);
    for (int kind = 0; kind < MXA_PAGE_KINDS; kind++)
        munmap(opts.memory[kind], bytes[kind]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_changes),         API_TEST(test_table),
        API_TEST(test_create_and_load), API_TEST(test_attend_allocates_nothing),
        API_TEST(test_far_memory),      API_TEST(test_far_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
