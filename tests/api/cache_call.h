/* SPDX-License-Identifier: Apache-2.0 */
/* A small KV cache with random tokens, and calls to it, for the tests of the cache's interface. */
#ifndef CACHE_CALL_H
#define CACHE_CALL_H

#include "api_support.h"

enum { CACHE_BATCH = 2, CACHE_HEADS = 4, CACHE_HEADS_KV = 2, CACHE_DIM = 64, CACHE_PAGE = 32 };

/* Pages of CACHE_PAGE tokens; recipe is a text. */
mxa_cache_opts cache_opts(const char *recipe);
mxa_cache *cache_new(const char *recipe);

/* Append n random tokens to both sequences. */
void cache_fill(mxa_cache *cache, int64_t n, uint64_t seed);

/* n queries of each sequence with their output and workspace. */
typedef struct cache_call {
    mxa_tensor q, out;
    float *lse;
    mxa_cache_attend_args args;
} cache_call;

void cache_call_init(cache_call *call, const mxa_cache *cache, int64_t n, uint64_t seed);

/* The bytes of mxa_cache_save, in memory of malloc. */
char *cache_saved(const mxa_cache *cache, size_t *bytes);

#endif
