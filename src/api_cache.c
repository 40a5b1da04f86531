/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on KV caches that a backend has a part in. Arguments are checked here and in cache/. */
#include <math.h>
#include <stdlib.h>

#include "cache/cache.h"
#include "core/status.h"
#include "core/tensor.h"
#include "cpu/features.h"
#include "cpu/kv_attend_cpu.h"
#include "cpu/kv_store_cpu.h"

mxa_status mxa_cache_lengths(const mxa_cache *cache, int64_t *lengths)
{
    if (!cache || !lengths)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", cache ? "lengths" : "cache");
    for (int64_t b = 0; b < cache->opts.batch; b++)
        lengths[b] = cache->sequences[b].length;
    return MXA_OK;
}

int64_t mxa_cache_used_bytes(const mxa_cache *cache)
{
    int64_t bytes = 0;
    for (int kind = 0; kind < MXA_PAGE_KINDS && cache; kind++)
        bytes += (cache->pool[kind].count - cache->pool[kind].n_free) * cache->pool[kind].page_bytes;
    return bytes;
}

void *mxa_cache_page(const mxa_cache *cache, int kind, int32_t page)
{
    const bool valid =
        cache && kind >= 0 && kind < MXA_PAGE_KINDS && page >= 0 && page < cache->pool[kind].count;
    return valid ? cache->pool[kind].pages[page] : NULL;
}

/* A tensor [batch][heads][n][dim]; n -1: any. */
static mxa_status check_like(const char *name, const mxa_tensor *x, int64_t batch, int64_t heads, int64_t n,
                             int64_t dim)
{
    const mxa_status status = mxa_check_tensor(name, x);
    if (status != MXA_OK)
        return status;
    const int64_t want[4] = { batch, heads, n, dim };
    for (int axis = 0; axis < 4; axis++)
        if (want[axis] >= 0 && x->shape[axis] != want[axis])
            return mxa_fail(MXA_ERR_SHAPE, "%s: size %lld of axis %d is not %lld", name,
                            (long long)x->shape[axis], axis, (long long)want[axis]);
    return MXA_OK;
}

static mxa_status check_counts(const int64_t *counts, int64_t batch, int64_t n)
{
    for (int64_t b = 0; b < batch && counts; b++)
        if (counts[b] < 0 || counts[b] > n)
            return mxa_fail(MXA_ERR_ARG, "counts[%lld]: %lld is outside 0..%lld, the rows of the tensors",
                            (long long)b, (long long)counts[b], (long long)n);
    return MXA_OK;
}

static mxa_status check_append(const mxa_cache *c, const mxa_tensor *k, const mxa_tensor *v,
                               const int64_t *counts)
{
    if (!c)
        return mxa_fail(MXA_ERR_ARG, "cache: is NULL");
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = check_like("k", k, c->opts.batch, c->opts.heads_kv, -1, c->opts.head_dim);
    if (status == MXA_OK)
        status = check_like("v", v, c->opts.batch, c->opts.heads_kv, k->shape[2], c->opts.head_dim_v);
    if (status == MXA_OK)
        status = check_counts(counts, c->opts.batch, k->shape[2]);
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++)
        if (k->shape[2] > MXA_POSITION_MAX - c->sequences[b].length)
            status = mxa_fail(MXA_ERR_SHAPE, "k: %lld tokens more make sequence %lld longer than 2^58",
                              (long long)k->shape[2], (long long)b);
    return status;
}

/*
 * High rows first: the mean of the first tile is made of them, and no low row is stored before it is known.
 */
static void store(mxa_cache *c, const mxa_tensor *k, const mxa_tensor *v, const int64_t *counts)
{
    const mxa_kv_view view = mxa_cache_view(c);
    mxa_kv_store(&view, MXA_HIGH, k, v, counts, c->opts.threads);
    for (int64_t b = 0; b < c->opts.batch; b++)
        if (c->sequences[b].length < MXA_TILE && c->sequences[b].length + counts[b] >= MXA_TILE)
            mxa_cache_set_mean(c, b);
    mxa_kv_store(&view, MXA_LOW, k, v, counts, c->opts.threads);
}

mxa_status mxa_cache_append(mxa_cache *cache, const mxa_tensor *k, const mxa_tensor *v, const int64_t *counts)
{
    mxa_status status = check_append(cache, k, v, counts);
    if (status != MXA_OK)
        return status;
    for (int64_t b = 0; b < cache->opts.batch; b++)
        cache->counts[b] = counts ? counts[b] : k->shape[2];
    status = mxa_cache_make_room(cache, cache->counts);
    if (status != MXA_OK)
        return status;
    store(cache, k, v, cache->counts);
    mxa_cache_commit(cache, cache->counts);
    return MXA_OK;
}

mxa_status mxa_cache_set_table(mxa_cache *cache, int64_t b, const mxa_cache_table *table)
{
    const mxa_status status = mxa_cache_adopt_table(cache, b, table);
    if (status == MXA_OK && table->length >= MXA_TILE)
        mxa_cache_set_mean(cache, b);
    return status;
}

/* Of an attend with n queries, 0 if the bytes do not fit. */
static size_t work_bytes(const mxa_cache *c, int64_t heads, int64_t n, int64_t length)
{
    const mxa_kv_view view = mxa_cache_view(c);
    return mxa_kv_work_bytes(&view, c->q, c->opts.batch, heads, n, length, c->opts.threads, mxa_kv_pick());
}

/* Few queries may take more than many, since the segments of their keys have sums of their own. */
size_t mxa_cache_work_bytes(const mxa_cache *cache, int64_t heads, int64_t n, int64_t length)
{
    if (!cache || heads < 1 || heads % cache->opts.heads_kv != 0 || n < 0 || length < 0 ||
        length > MXA_POSITION_MAX)
        return 0;
    const size_t bytes = work_bytes(cache, heads, n, length);
    const size_t few = work_bytes(cache, heads, mxa_min(n, MXA_KV_SPLIT_QUERIES), length);
    return bytes == 0 || few == 0 ? 0 : bytes > few ? bytes : few;
}

static mxa_status check_numbers(const mxa_cache_attend_args *a)
{
    if (!isfinite(a->softmax_scale))
        return mxa_fail(MXA_ERR_ARG, "softmax_scale: %g is not finite", (double)a->softmax_scale);
    if (!isfinite(a->softcap) || a->softcap < 0)
        return mxa_fail(MXA_ERR_ARG, "softcap: %g is negative or not finite", (double)a->softcap);
    if (a->window_left < MXA_UNLIMITED)
        return mxa_fail(MXA_ERR_ARG, "window_left: %lld is below -1, which means no limit",
                        (long long)a->window_left);
    const float *const arrays[2] = { a->lse, a->sinks };
    static const char *const names[2] = { "lse", "sinks" };
    for (int i = 0; i < 2; i++)
        if ((uintptr_t)arrays[i] % sizeof(float) != 0)
            return mxa_fail(MXA_ERR_ALIGN, "%s: %p is not aligned to its 4-byte elements", names[i],
                            (const void *)arrays[i]);
    return MXA_OK;
}

static mxa_status check_work(const mxa_cache *c, const mxa_cache_attend_args *a)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < c->opts.batch; b++)
        longest = mxa_max(longest, c->sequences[b].length);
    const size_t needed = work_bytes(c, a->q->shape[1], a->q->shape[2], longest);
    if (needed == 0 && a->q->shape[2] > 0)
        return mxa_fail(MXA_ERR_SHAPE, "q: the workspace of %lld queries does not fit 63 bits of bytes",
                        (long long)a->q->shape[2]);
    if (needed > 0 && !a->work)
        return mxa_fail(MXA_ERR_ARG, "work: is NULL, %zu bytes are needed", needed);
    if ((uintptr_t)a->work % MXA_CACHE_ALIGNMENT != 0)
        return mxa_fail(MXA_ERR_ALIGN, "work: %p is not aligned to %d bytes", a->work, MXA_CACHE_ALIGNMENT);
    if (a->work_bytes < needed)
        return mxa_fail(MXA_ERR_WORKSPACE, "work_bytes: %zu is below the %zu that are needed", a->work_bytes,
                        needed);
    return MXA_OK;
}

static int64_t window(const mxa_cache_attend_args *a)
{
    return a->window_left == MXA_UNLIMITED ? MXA_FAR : mxa_min(a->window_left, MXA_FAR);
}

static mxa_status check_queries(const mxa_cache *c, const mxa_cache_attend_args *a)
{
    mxa_status status = check_counts(a->counts, c->opts.batch, a->q->shape[2]);
    for (int64_t b = 0; b < c->opts.batch && status == MXA_OK; b++) {
        const int64_t count = a->counts ? a->counts[b] : a->q->shape[2], length = c->sequences[b].length;
        if (count > length)
            return mxa_fail(MXA_ERR_ARG,
                            "counts[%lld]: %lld queries are more than the sequence's %lld tokens",
                            (long long)b, (long long)count, (long long)length);
        const mxa_tile_map map = mxa_kv_map(&c->recipe, length, count, window(a));
        status = mxa_cache_check_visible(c, b, &map);
    }
    return status;
}

static mxa_status check_attend(const mxa_cache *c, const mxa_cache_attend_args *a)
{
    if (!c || !a)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", c ? "args" : "cache");
    if (a->size != sizeof *a)
        return mxa_fail(MXA_ERR_ARG, "args: size %zu is not that of this version, %zu", a->size, sizeof *a);
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = check_like("q", a->q, c->opts.batch, -1, -1, c->opts.head_dim);
    if (status == MXA_OK && (a->q->shape[1] < 1 || a->q->shape[1] % c->opts.heads_kv != 0))
        status = mxa_fail(MXA_ERR_SHAPE, "q: heads %lld are not a positive multiple of heads_kv %lld",
                          (long long)a->q->shape[1], (long long)c->opts.heads_kv);
    if (status == MXA_OK)
        status = check_like("out", a->out, c->opts.batch, a->q->shape[1], a->q->shape[2], c->opts.head_dim_v);
    if (status == MXA_OK)
        status = mxa_check_output("out", a->out);
    if (status == MXA_OK)
        status = check_numbers(a);
    if (status == MXA_OK)
        status = check_work(c, a);
    return status == MXA_OK ? check_queries(c, a) : status;
}

mxa_status mxa_cache_attend(const mxa_cache *cache, const mxa_cache_attend_args *args)
{
    const mxa_status status = check_attend(cache, args);
    if (status != MXA_OK)
        return status;
    const mxa_kv_view view = mxa_cache_view(cache);
    mxa_kv_job job = {
        .view = &view,
        .recipe = &cache->recipe,
        .out = args->out,
        .counts = args->counts,
        .lse = args->lse,
        .sinks = args->sinks,
        .softmax_scale = args->softmax_scale,
        .softcap = args->softcap,
        .heads = args->q->shape[1],
        .n = args->q->shape[2],
        .window_left = window(args),
    };
    mxa_kv_attend(&job, cache->q, args->q, cache->opts.threads, mxa_kv_pick(), args->work);
    return MXA_OK;
}
