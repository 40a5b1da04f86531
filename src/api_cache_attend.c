/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of new queries to a cache. */
#include <math.h>

#include "api_cache.h"
#include "core/status.h"
#include "core/tensor.h"
#include "cpu/features.h"
#include "cpu/kv_attend_cpu.h"

/* Of an attend with n queries, 0 if the bytes do not fit. */
static size_t work_bytes(const mxa_cache *c, int64_t heads, int64_t n, int64_t length)
{
    if (c->ops)
        return c->ops->work_bytes(c->device, heads, n, length);
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
    if (a->max_length < 0 || a->max_length > MXA_POSITION_MAX)
        return mxa_fail(MXA_ERR_ARG, "max_length: %lld is outside 0..2^58", (long long)a->max_length);
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

/* Of the call, and of those that a graph repeats. */
static int64_t longest_length(const mxa_cache *c, const mxa_cache_attend_args *a)
{
    int64_t longest = a->max_length;
    for (int64_t b = 0; b < c->opts.batch; b++)
        longest = mxa_max(longest, c->sequences[b].length);
    return longest;
}

static mxa_status check_work(const mxa_cache *c, const mxa_cache_attend_args *a)
{
    const size_t needed = work_bytes(c, a->q->shape[1], a->q->shape[2], longest_length(c, a));
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
    mxa_status status = mxa_cache_check_counts(a->counts, c->opts.batch, a->q->shape[2]);
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
    mxa_status status = c->ops ? MXA_OK : mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = mxa_cache_check_like("q", a->q, c->opts.batch, -1, -1, c->opts.head_dim);
    if (status == MXA_OK && (a->q->shape[1] < 1 || a->q->shape[1] % c->opts.heads_kv != 0))
        status = mxa_fail(MXA_ERR_SHAPE, "q: heads %lld are not a positive multiple of heads_kv %lld",
                          (long long)a->q->shape[1], (long long)c->opts.heads_kv);
    if (status == MXA_OK)
        status = mxa_cache_check_like("out", a->out, c->opts.batch, a->q->shape[1], a->q->shape[2],
                                      c->opts.head_dim_v);
    if (status == MXA_OK)
        status = mxa_check_output("out", a->out);
    if (status == MXA_OK)
        status = check_numbers(a);
    if (status == MXA_OK)
        status = check_work(c, a);
    return status == MXA_OK ? check_queries(c, a) : status;
}

static mxa_status attend_on_device(const mxa_cache *c, const mxa_cache_attend_args *args)
{
    const mxa_kv_device_call call = {
        .q = args->q,
        .out = args->out,
        .counts = args->counts,
        .lse = args->lse,
        .sinks = args->sinks,
        .softmax_scale = args->softmax_scale,
        .softcap = args->softcap,
        .window_left = window(args),
        .max_length = longest_length(c, args),
        .work = args->work,
    };
    return mxa_cache_result(c, c->ops->attend(c->device, &call));
}

mxa_status mxa_cache_attend(const mxa_cache *cache, const mxa_cache_attend_args *args)
{
    const mxa_status status = check_attend(cache, args);
    if (status != MXA_OK)
        return status;
    if (cache->ops)
        return attend_on_device(cache, args);
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
