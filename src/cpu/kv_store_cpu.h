/* SPDX-License-Identifier: Apache-2.0 */
/* New tokens into the pages of a KV cache. Arguments are checked already, the pages are there. */
#ifndef MXA_CPU_KV_STORE_CPU_H
#define MXA_CPU_KV_STORE_CPU_H

#include "attn/kv_view.h"

/*
 * The rows of one copy for tokens [length, length + counts[b]) of each sequence b, from the first rows of k
 * and v [batch][heads_kv][n][...]. Rows whose page is absent are left out. K is smoothed by each sequence's
 * mean.
 */
void mxa_kv_store(const mxa_kv_view *view, int copy, const mxa_tensor *k, const mxa_tensor *v,
                  const int64_t *counts, int threads);

#endif
