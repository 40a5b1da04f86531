/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"

static mxa_status copy_factors(mxa_cache *c, const float *g_v)
{
    const size_t bytes = (size_t)(c->opts.heads_kv * c->opts.head_dim_v) * sizeof *g_v;
    c->g_v = g_v ? malloc(bytes) : NULL;
    if (g_v && !c->g_v)
        return mxa_fail(MXA_ERR_MEMORY, "g_v: no memory for %zu bytes", bytes);
    if (g_v)
        memcpy(c->g_v, g_v, bytes);
    return MXA_OK;
}

static mxa_status create_sequences(mxa_cache *c, const float *mean)
{
    const int64_t batch = c->opts.batch;
    const size_t mean_bytes = (size_t)(c->opts.heads_kv * c->opts.head_dim) * sizeof(float);
    c->sequences = calloc((size_t)batch, sizeof *c->sequences);
    c->views = calloc((size_t)batch, sizeof *c->views);
    c->counts = calloc((size_t)batch, sizeof *c->counts);
    bool got = c->sequences && c->views && c->counts;
    for (int64_t b = 0; b < batch && got; b++) {
        mxa_cache_sequence *const s = &c->sequences[b];
        s->high_first = mxa_cache_near_first(c, 0);
        s->unsent_first = MXA_FAR;
        if (c->recipe.smooth_k == MXA_SMOOTH_NONE || (c->ops && !mean))
            continue;
        s->mean = calloc(1, mean_bytes);
        got = s->mean != NULL;
        if (got && mean)
            memcpy(s->mean, mean, mean_bytes);
    }
    return got ? MXA_OK : mxa_fail(MXA_ERR_MEMORY, "batch: no memory for %lld sequences", (long long)batch);
}

static mxa_status create_device(mxa_cache *c, const mxa_cache_opts *opts)
{
    const mxa_kv_device_spec spec = {
        .device = c->opts.device - MXA_DEVICE_CUDA_0,
        .batch = c->opts.batch,
        .layout = &c->layout,
        .recipe = &c->recipe,
        .q = c->q,
        .table_pages = opts->pages[MXA_LOW],
    };
    const int64_t bytes = mxa_max(c->layout.page_bytes[MXA_LOW], c->layout.page_bytes[MXA_HIGH]);
    c->host_page = malloc((size_t)bytes);
    if (!c->host_page)
        return mxa_fail(MXA_ERR_MEMORY, "cache: no memory for a page of %lld bytes", (long long)bytes);
    mxa_status status = mxa_cache_result(c, c->ops->create(&spec, &c->device));
    if (status == MXA_OK && opts->mean)
        status = mxa_cache_result(c, c->ops->set_mean(c->device, opts->mean));
    for (int copy = 0; copy < MXA_COPIES && status == MXA_OK; copy++) {
        c->pool[copy] = (mxa_page_pool){ .ops = c->ops, .device = c->device };
        static const char *const names[MXA_COPIES] = { "memory[0]", "memory[1]" };
        if (opts->memory[copy])
            status = mxa_cache_result(c, c->ops->check_memory(c->device, names[copy], opts->memory[copy]));
    }
    return status;
}

mxa_status mxa_cache_make(const mxa_cache_opts *opts, const mxa_kv_device_ops *ops, mxa_cache **cache)
{
    mxa_cache described;
    mxa_status status = mxa_cache_describe_opts(opts, &described);
    if (status != MXA_OK)
        return status;
    mxa_cache *const made = malloc(sizeof *made);
    if (!made)
        return mxa_fail(MXA_ERR_MEMORY, "cache: no memory for %zu bytes", sizeof *made);
    *made = described;
    made->ops = ops;
    if (ops)
        status = create_device(made, opts);
    for (int copy = 0; copy < MXA_COPIES && status == MXA_OK; copy++) {
        const int64_t bytes = made->layout.page_bytes[copy];
        status = mxa_pool_create(&made->pool[copy], bytes, bytes ? opts->pages[copy] : 0, opts->memory[copy]);
    }
    if (status == MXA_OK)
        status = create_sequences(made, opts->mean);
    if (status == MXA_OK)
        status = copy_factors(made, opts->g_v);
    if (status != MXA_OK)
        mxa_cache_free(made);
    else
        *cache = made;
    return status;
}

void mxa_cache_free(mxa_cache *c)
{
    if (!c)
        return;
    for (int64_t b = 0; b < c->opts.batch && c->sequences; b++) {
        for (int copy = 0; copy < MXA_COPIES; copy++)
            free(c->sequences[b].table[copy]);
        free(c->sequences[b].mean);
    }
    for (int copy = 0; copy < MXA_COPIES; copy++)
        mxa_pool_free(&c->pool[copy]);
    if (c->ops)
        c->ops->destroy(c->device);
    free(c->host_page);
    free(c->sequences);
    free(c->g_v);
    free(c->views);
    free(c->counts);
    free(c);
}

mxa_status mxa_cache_bytes(const mxa_cache_opts *opts, mxa_cache_size *size)
{
    if (!size)
        return mxa_fail(MXA_ERR_ARG, "size: is NULL");
    mxa_cache c;
    const mxa_status status = mxa_cache_describe_opts(opts, &c);
    if (status != MXA_OK)
        return status;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        size->page_bytes[copy] = c.layout.page_bytes[copy];
        size->token_bytes[copy] = c.layout.page_bytes[copy] / c.layout.page_tokens;
    }
    size->high_tokens = mxa_cache_high_tokens(&c, MXA_POSITION_MAX);
    return MXA_OK;
}

/* Bytes of a sequence's pages; false if they do not fit. */
static bool sequence_bytes(const mxa_cache *c, int64_t tokens, int64_t *bytes)
{
    int64_t high;
    return mxa_mul(mxa_cache_pages_of(c, tokens), c->layout.page_bytes[MXA_LOW], bytes) &&
           mxa_mul(mxa_cache_high_tokens(c, tokens) / c->layout.page_tokens, c->layout.page_bytes[MXA_HIGH],
                   &high) &&
           mxa_add(*bytes, high, bytes);
}

mxa_status mxa_cache_plan(const mxa_cache_opts *opts, int64_t bytes, int64_t *tokens)
{
    if (!tokens)
        return mxa_fail(MXA_ERR_ARG, "tokens: is NULL");
    mxa_cache c;
    const mxa_status status = mxa_cache_describe_opts(opts, &c);
    if (status != MXA_OK)
        return status;
    if (bytes < 0)
        return mxa_fail(MXA_ERR_ARG, "bytes: %lld is negative", (long long)bytes);
    const int64_t each = bytes / c.opts.batch;
    int64_t fits = 0, too_many = MXA_POSITION_MAX;
    while (too_many - fits > 1) {
        const int64_t middle = fits + (too_many - fits) / 2;
        int64_t needed;
        if (sequence_bytes(&c, middle, &needed) && needed <= each)
            fits = middle;
        else
            too_many = middle;
    }
    *tokens = fits;
    return MXA_OK;
}

mxa_kv_view mxa_cache_view(const mxa_cache *c)
{
    for (int64_t b = 0; b < c->opts.batch; b++) {
        const mxa_cache_sequence *const s = &c->sequences[b];
        c->views[b] = (mxa_kv_sequence){ s->length, { s->table[MXA_LOW], s->table[MXA_HIGH] }, s->mean };
    }
    return (mxa_kv_view){ &c->layout, c->views, { c->pool[MXA_LOW].pages, c->pool[MXA_HIGH].pages }, c->g_v };
}

/*
 * The number of the first token whose row of that copy is gone, among keys first..end; end if all are
 * there.
 */
static int64_t first_missing(const mxa_cache *c, const mxa_cache_sequence *s, int copy, int64_t first,
                             int64_t end)
{
    const int64_t page_tokens = c->layout.page_tokens;
    for (int64_t token = first; token < end; token = (token / page_tokens + 1) * page_tokens)
        if (s->table[copy][token / page_tokens] < 0)
            return token;
    return end;
}

static mxa_status check_tile(const mxa_cache *c, int64_t b, const mxa_tile_map *map, int64_t tile,
                             int64_t k_tile)
{
    const mxa_cache_sequence *const s = &c->sequences[b];
    const mxa_precision precision = mxa_tile_precision(map, tile, k_tile);
    const int copy = precision == MXA_TILE_HIGH ? MXA_HIGH : MXA_LOW;
    if (precision == MXA_TILE_SKIP)
        return MXA_OK;
    const int64_t query = mxa_max(tile * MXA_TILE, map->q_offset);
    const int64_t first = mxa_max(k_tile * MXA_TILE, query - map->window_left);
    const int64_t end = mxa_min((k_tile + 1) * MXA_TILE, s->length);
    int64_t missing = first_missing(c, s, copy, first, end);
    if (missing == end)
        missing = first_missing(c, s, mxa_kv_v_copy(&c->layout, copy), first, end);
    if (missing == end)
        return MXA_OK;
    return mxa_fail(
        MXA_ERR_ARG,
        "counts[%lld]: the query at position %lld reads token %lld in %s precision, whose page was %s",
        (long long)b, (long long)query, (long long)missing, copy == MXA_HIGH ? "high" : "low",
        s->table[MXA_LOW][missing / c->layout.page_tokens] < 0 ? "removed" : "given back by a later append");
}

mxa_status mxa_cache_check_visible(const mxa_cache *c, int64_t b, const mxa_tile_map *map)
{
    const mxa_span tiles = mxa_query_tiles(map);
    mxa_status status = MXA_OK;
    for (int64_t t = tiles.first; t < tiles.end; t++) {
        const int64_t first = mxa_max(t * MXA_TILE, map->q_offset) - map->window_left;
        for (int64_t k = mxa_max(first, 0) / MXA_TILE; k <= t && status == MXA_OK; k++)
            status = check_tile(c, b, map, t, k);
    }
    return status;
}
