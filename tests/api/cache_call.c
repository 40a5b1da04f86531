/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static mxa_recipe parsed;

mxa_cache_opts cache_opts(const char *recipe)
{
    mxa_cache_opts opts;
    mxa_cache_default(&opts, CACHE_BATCH, CACHE_HEADS_KV, CACHE_DIM);
    api_ok(mxa_recipe_parse(recipe, &parsed));
    opts.recipe = &parsed;
    opts.page_tokens = CACHE_PAGE;
    opts.threads = 1;
    return opts;
}

mxa_cache *cache_new(const char *recipe)
{
    const mxa_cache_opts opts = cache_opts(recipe);
    mxa_cache *cache = NULL;
    api_ok(mxa_cache_create(&opts, &cache));
    return cache;
}

void cache_fill(mxa_cache *cache, int64_t n, uint64_t seed)
{
    const mxa_tensor k = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS_KV, n, CACHE_DIM);
    const mxa_tensor v = api_tensor(MXA_DTYPE_F16, CACHE_BATCH, CACHE_HEADS_KV, n, CACHE_DIM);
    api_set_normal(&k, seed);
    api_set_normal(&v, seed + 1);
    api_ok(mxa_cache_append(cache, &k, &v, NULL));
}

void cache_call_init(cache_call *call, const mxa_cache *cache, int64_t n, uint64_t seed)
{
    int64_t lengths[CACHE_BATCH];
    api_ok(mxa_cache_lengths(cache, lengths));
    call->q = api_tensor(MXA_DTYPE_BF16, CACHE_BATCH, CACHE_HEADS, n, CACHE_DIM);
    call->out = api_tensor(MXA_DTYPE_F32, CACHE_BATCH, CACHE_HEADS, n, CACHE_DIM);
    call->lse = api_floats((size_t)(CACHE_BATCH * CACHE_HEADS * n));
    api_set_normal(&call->q, seed);
    const int64_t longest = lengths[0] > lengths[1] ? lengths[0] : lengths[1];
    const size_t bytes = mxa_cache_work_bytes(cache, CACHE_HEADS, n, longest);
    call->args = (mxa_cache_attend_args){
        .size = sizeof call->args,
        .q = &call->q,
        .out = &call->out,
        .lse = call->lse,
        .softmax_scale = 1 / sqrtf(CACHE_DIM),
        .window_left = MXA_UNLIMITED,
        .work = api_bytes(bytes),
        .work_bytes = bytes,
    };
}

char *cache_saved(const mxa_cache *cache, size_t *bytes)
{
    char path[] = "/tmp/mxattn_cache_test_XX"
                  "XXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    api_ok(mxa_cache_save(cache, path));
    FILE *const file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *const data = malloc(*bytes);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    unlink(path);
    return data;
}
