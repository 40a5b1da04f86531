/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the public calls on caches share. */
#ifndef MXA_API_CACHE_H
#define MXA_API_CACHE_H

#include "cache/cache.h"

/* A tensor [batch][heads][n][dim]; heads, n -1: any. */
mxa_status mxa_cache_check_like(const char *name, const mxa_tensor *x, int64_t batch, int64_t heads,
                                int64_t n, int64_t dim);

/* Each in 0..n; counts NULL is right. */
mxa_status mxa_cache_check_counts(const int64_t *counts, int64_t batch, int64_t n);

#endif
