/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on KV caches that a backend has a part in. Arguments are checked here and in cache/. */
#include "api_cache.h"

#include "core/status.h"
#include "core/tensor.h"
#include "cpu/features.h"
#include "cpu/kv_store_cpu.h"
#include "cuda/loader.h"

/* The ops of the device that opts name; NULL: the CPU. */
static mxa_status find_device(const mxa_cache_opts *opts, const mxa_kv_device_ops **ops)
{
    const mxa_cuda_backend *cuda;
    if (!opts || opts->size != sizeof *opts || opts->device < MXA_DEVICE_CUDA_0)
        return MXA_OK;
    const mxa_status status = mxa_cuda_table(opts->device, &cuda);
    if (status == MXA_OK)
        *ops = cuda->kv;
    return status;
}

mxa_status mxa_cache_create(const mxa_cache_opts *opts, mxa_cache **cache)
{
    const mxa_kv_device_ops *ops = NULL;
    if (!cache)
        return mxa_fail(MXA_ERR_ARG, "cache: is NULL");
    mxa_cache described;
    mxa_status status = mxa_cache_describe_opts(opts, &described);
    if (status == MXA_OK)
        status = find_device(opts, &ops);
    return status == MXA_OK ? mxa_cache_make(opts, ops, cache) : status;
}

mxa_status mxa_cache_load(const char *path, const mxa_cache_opts *opts, mxa_cache **cache)
{
    const mxa_kv_device_ops *ops = NULL;
    if (!path || !cache)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", path ? "cache" : "path");
    const mxa_status status = find_device(opts, &ops);
    return status == MXA_OK ? mxa_cache_read(path, opts, ops, cache) : status;
}

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

mxa_status mxa_cache_check_like(const char *name, const mxa_tensor *x, int64_t batch, int64_t heads,
                                int64_t n, int64_t dim)
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

mxa_status mxa_cache_check_counts(const int64_t *counts, int64_t batch, int64_t n)
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
    mxa_status status = c->ops ? MXA_OK : mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = mxa_cache_check_like("k", k, c->opts.batch, c->opts.heads_kv, -1, c->opts.head_dim);
    if (status == MXA_OK)
        status =
            mxa_cache_check_like("v", v, c->opts.batch, c->opts.heads_kv, k->shape[2], c->opts.head_dim_v);
    if (status == MXA_OK)
        status = mxa_cache_check_counts(counts, c->opts.batch, k->shape[2]);
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

/* Pages for the tokens, and what the device has to know of them. */
static mxa_status book(mxa_cache *c, const int64_t *counts)
{
    const mxa_status status = mxa_cache_make_room(c, counts);
    if (status != MXA_OK)
        return status;
    mxa_cache_commit(c, counts);
    return mxa_cache_send(c);
}

/* A captured append stores what mxa_cache_advance books. */
static mxa_status append_on_device(mxa_cache *c, const mxa_tensor *k, const mxa_tensor *v)
{
    bool capturing = false;
    mxa_status status = mxa_cache_result(c, c->ops->check_rows(c->device, k, v));
    if (status == MXA_OK)
        status = mxa_cache_result(c, c->ops->is_capturing(c->device, &capturing));
    if (status == MXA_OK && !capturing)
        status = book(c, c->counts);
    return status == MXA_OK ? mxa_cache_result(c, c->ops->append(c->device, k, v, c->counts)) : status;
}

mxa_status mxa_cache_append(mxa_cache *cache, const mxa_tensor *k, const mxa_tensor *v, const int64_t *counts)
{
    mxa_status status = check_append(cache, k, v, counts);
    if (status != MXA_OK)
        return status;
    for (int64_t b = 0; b < cache->opts.batch; b++)
        cache->counts[b] = counts ? counts[b] : k->shape[2];
    if (cache->ops)
        return append_on_device(cache, k, v);
    status = mxa_cache_make_room(cache, cache->counts);
    if (status != MXA_OK)
        return status;
    store(cache, k, v, cache->counts);
    mxa_cache_commit(cache, cache->counts);
    return MXA_OK;
}

static mxa_status check_device_cache(const mxa_cache *c)
{
    return c && c->ops ? MXA_OK : mxa_fail(MXA_ERR_ARG, "cache: %s", c ? "is the CPU's" : "is NULL");
}

mxa_status mxa_cache_set_stream(mxa_cache *cache, void *stream)
{
    const mxa_status status = check_device_cache(cache);
    return status == MXA_OK ? mxa_cache_result(cache, cache->ops->set_stream(cache->device, stream)) : status;
}

static mxa_status check_growth(const mxa_cache *c, const int64_t *counts)
{
    for (int64_t b = 0; b < c->opts.batch; b++)
        if (counts[b] < 0 || counts[b] > MXA_POSITION_MAX - c->sequences[b].length)
            return mxa_fail(MXA_ERR_ARG, "counts[%lld]: %lld is negative, or makes it longer than 2^58",
                            (long long)b, (long long)counts[b]);
    return MXA_OK;
}

mxa_status mxa_cache_advance(mxa_cache *cache, const int64_t *counts)
{
    mxa_status status = check_device_cache(cache);
    if (status == MXA_OK && !counts)
        return mxa_fail(MXA_ERR_ARG, "counts: is NULL");
    if (status == MXA_OK)
        status = check_growth(cache, counts);
    if (status == MXA_OK)
        status = mxa_cache_check_change(cache);
    return status == MXA_OK ? book(cache, counts) : status;
}

mxa_status mxa_cache_set_table(mxa_cache *cache, int64_t b, const mxa_cache_table *table)
{
    const mxa_status status = mxa_cache_adopt_table(cache, b, table);
    if (status == MXA_OK && table->length >= MXA_TILE && !cache->ops)
        mxa_cache_set_mean(cache, b);
    return status;
}
