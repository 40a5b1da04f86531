/* SPDX-License-Identifier: Apache-2.0 */
/* What opts mean: the copies of K and V, and where they lie in a page. */
#include "cache/cache.h"

#include "core/status.h"
#include "core/tensor.h"
#include "format/format.h"
#include "format/second_level.h"

enum { PAGE_STEP = 16, PAGE_MAX = 256, DEFAULT_PAGE = 64, DEFAULT_REWIND = 16, MAX_THREADS = 1024 };

static const char *const default_recipe = "dma4";

void mxa_cache_default(mxa_cache_opts *opts, int64_t batch, int64_t heads_kv, int64_t head_dim)
{
    *opts = (mxa_cache_opts){
        .size = sizeof *opts,
        .batch = batch,
        .heads_kv = heads_kv,
        .head_dim = head_dim,
        .head_dim_v = head_dim,
        .page_tokens = DEFAULT_PAGE,
        .rewind = DEFAULT_REWIND,
        .device = MXA_DEVICE_CPU,
    };
}

static mxa_status check_numbers(const mxa_cache_opts *o)
{
    const int64_t sizes[4] = { o->batch, o->heads_kv, o->head_dim, o->head_dim_v };
    static const char *const names[4] = { "batch", "heads_kv", "head_dim", "head_dim_v" };
    for (int i = 0; i < 4; i++)
        if (sizes[i] < 1 || sizes[i] > INT32_MAX)
            return mxa_fail(MXA_ERR_SHAPE, "%s: %lld is outside 1..2^31 - 1", names[i], (long long)sizes[i]);
    if (o->page_tokens < PAGE_STEP || o->page_tokens > PAGE_MAX || o->page_tokens % PAGE_STEP != 0)
        return mxa_fail(MXA_ERR_ARG, "page_tokens: %lld is not a multiple of %d from %d to %d",
                        (long long)o->page_tokens, PAGE_STEP, PAGE_STEP, PAGE_MAX);
    if (o->rewind < 0 || o->rewind > MXA_POSITION_MAX)
        return mxa_fail(MXA_ERR_ARG, "rewind: %lld is outside 0..2^58", (long long)o->rewind);
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return mxa_fail(MXA_ERR_ARG, "threads: %d is outside 0..%d", o->threads, MAX_THREADS);
    if (o->device < MXA_DEVICE_AUTO)
        return mxa_fail(MXA_ERR_ARG, "device: %d is none", (int)o->device);
    for (int kind = 0; kind < MXA_PAGE_KINDS; kind++) {
        if (o->pages[kind] < 0 || o->pages[kind] > INT32_MAX)
            return mxa_fail(MXA_ERR_ARG, "pages[%d]: %lld is outside 0..2^31 - 1", kind,
                            (long long)o->pages[kind]);
        if (o->memory[kind] && o->pages[kind] == 0)
            return mxa_fail(MXA_ERR_ARG, "memory[%d]: given, but pages[%d] is 0", kind, kind);
        if ((uintptr_t)o->memory[kind] % MXA_CACHE_ALIGNMENT != 0)
            return mxa_fail(MXA_ERR_ALIGN, "memory[%d]: %p is not aligned to %d bytes", kind, o->memory[kind],
                            MXA_CACHE_ALIGNMENT);
    }
    return MXA_OK;
}

/* What holds for caches beyond mxa_recipe_check. */
static mxa_status check_recipe(const mxa_recipe *r, const float *mean, bool has_g_v)
{
    if (r->exact)
        return mxa_fail(MXA_ERR_UNSUPPORTED,
                        "recipe: exact is none of caches (bf16,high=f32 keeps all bits)");
    if (r->smooth_k == MXA_SMOOTH_FULL)
        return mxa_fail(MXA_ERR_UNSUPPORTED,
                        "recipe: smooth-k=full needs all keys at once, a cache takes prefix or given");
    if ((r->smooth_k == MXA_SMOOTH_GIVEN) != (mean != NULL))
        return mxa_fail(MXA_ERR_ARG, "mean: %s",
                        mean ? "given, but the recipe does not say smooth-k=given"
                             : "is NULL, but the recipe says smooth-k=given");
    const mxa_level levels[2] = { r->level_q, r->level_k };
    for (int i = 0; i < 2; i++)
        if (levels[i] > MXA_LEVEL_NONE && levels[i] < MXA_LEVEL_TOKEN)
            return mxa_fail(MXA_ERR_UNSUPPORTED,
                            "recipe: level_%c %s shares a factor over tokens of a call, a cache has token",
                            "qk"[i], mxa_level_words[levels[i]]);
    const mxa_format_info *const v = mxa_format_get(r->v);
    if (r->rotate_v && !(v && v->quantized))
        return mxa_fail(MXA_ERR_ARG, "recipe: rotate-v, but v is not quantised");
    if (has_g_v && r->v != MXA_FORMAT_INT8 && r->v != MXA_FORMAT_FP8)
        return mxa_fail(MXA_ERR_ARG, "g_v: given, but the recipe's v is not int8 or fp8");
    return MXA_OK;
}

/* The factors of V's channels. */
static mxa_status check_factors(const mxa_cache *c, const float *g_v)
{
    if (g_v && c->opts.device >= MXA_DEVICE_CUDA_0)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "g_v: given, but a device's cache has factors of V per token");
    if ((uintptr_t)g_v % _Alignof(float) != 0)
        return mxa_fail(MXA_ERR_ALIGN, "g_v: %p is not aligned to float", (const void *)g_v);
    for (int64_t i = 0; g_v && i < c->opts.heads_kv * c->opts.head_dim_v; i++)
        if (!mxa_g_is_legal(g_v[i]))
            return mxa_fail(MXA_ERR_SCALE, "g_v: %g at %lld is outside 2^-117..2^117", (double)g_v[i],
                            (long long)i);
    return MXA_OK;
}

static mxa_format pv_format(mxa_pv pv)
{
    return pv == MXA_PV_F16 ? MXA_FORMAT_F16 : MXA_FORMAT_BF16;
}

/* level DEFAULT: that of the format. */
static mxa_copy_plan plan_v(mxa_format format, mxa_level level, bool rotate)
{
    const mxa_format_info *const info = mxa_format_get(format);
    return (mxa_copy_plan){
        .info = info,
        .rule = info->default_rule,
        .level = mxa_copy_level(info, level),
        .rotate = rotate,
        .stored = true,
    };
}

/* V has 16-bit rows beside its own only where some tiles are high and others low. */
static void plan_parts(mxa_cache *c, const mxa_plan *plan)
{
    const mxa_recipe *const r = &c->recipe;
    mxa_kv_part(*const part)[MXA_KV_OPERANDS] = c->layout.part;
    c->layout.pv = r->pv != MXA_PV_AUTO ? r->pv : r->v == MXA_FORMAT_F16 ? MXA_PV_F16 : MXA_PV_BF16;
    const mxa_format v = r->v != MXA_FORMAT_NONE ? r->v : pv_format(c->layout.pv);
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        c->q[copy] = plan->q[copy];
        part[copy][MXA_KV_K].copy = plan->k[copy];
    }
    part[MXA_LOW][MXA_KV_V].copy = plan_v(v, c->has_g_v ? MXA_LEVEL_NONE : MXA_LEVEL_DEFAULT, r->rotate_v);
    if (plan->k[MXA_LOW].info && plan->k[MXA_HIGH].info && mxa_format_get(v)->quantized)
        part[MXA_HIGH][MXA_KV_V].copy = plan_v(pv_format(c->layout.pv), MXA_LEVEL_DEFAULT, r->rotate_v);
}

static int64_t place(int64_t *used, int64_t bytes)
{
    const int64_t at = *used;
    *used += mxa_round_up(bytes, MXA_CACHE_ALIGNMENT);
    return at;
}

static void place_part(mxa_kv_part *p, int64_t dim, int64_t tokens, int64_t *used)
{
    if (!p->copy.info)
        return;
    p->dim = dim;
    p->row_bytes = mxa_row_bytes(p->copy.info, dim);
    p->scale_cols = mxa_scale_cols(p->copy.info, dim);
    p->codes = place(used, tokens * p->row_bytes);
    p->scales = place(used, tokens * p->scale_cols);
    p->g = place(used, p->copy.level == MXA_LEVEL_TOKEN ? tokens * (int64_t)sizeof(float) : 0);
}

static mxa_status place_parts(mxa_cache *c)
{
    mxa_kv_layout *const l = &c->layout;
    l->heads_kv = c->opts.heads_kv;
    l->page_tokens = c->opts.page_tokens;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        int64_t *const bytes = &l->head_bytes[copy];
        place_part(&l->part[copy][MXA_KV_K], c->opts.head_dim, l->page_tokens, bytes);
        place_part(&l->part[copy][MXA_KV_V], c->opts.head_dim_v, l->page_tokens, bytes);
        if (!mxa_mul(*bytes, l->heads_kv, &l->page_bytes[copy]))
            return mxa_fail(MXA_ERR_SHAPE, "heads_kv: %lld make pages that do not fit 63 bits of bytes",
                            (long long)l->heads_kv);
    }
    return MXA_OK;
}

/*
 * A tile of which the sink window has a part is low for queries whose own window begins after that part: its
 * tokens have both rows.
 */
static void plan_windows(mxa_cache *c)
{
    const mxa_recipe *const r = &c->recipe;
    const bool has_high = c->layout.part[MXA_HIGH][MXA_KV_K].copy.info != NULL;
    const int64_t diag = mxa_min(r->diag_window, MXA_FAR), sink = mxa_min(r->sink_window, MXA_FAR);
    c->layout.sink_end = has_high ? mxa_round_up(sink, MXA_TILE) : 0;
    c->layout.unread_end = has_high ? sink / MXA_TILE * MXA_TILE : 0;
    c->near_tiles = has_high && diag > 0 ? (diag - 1 + MXA_TILE - 1) / MXA_TILE : -1;
}

/* The copies of Q and K are those of an attention call: a plan without queries and keys has them. */
static mxa_status plan_copies(mxa_cache *c)
{
    const mxa_cache_opts *const o = &c->opts;
    mxa_problem problem;
    mxa_problem_default(&problem, o->batch, o->heads_kv, o->heads_kv, 0, 0, o->head_dim);
    problem.head_dim_v = o->head_dim_v;
    mxa_recipe scores = c->recipe;
    scores.v = MXA_FORMAT_NONE;
    scores.rotate_v = false;
    mxa_plan *plan = NULL;
    const mxa_status status = mxa_plan_build(&problem, &scores, &plan);
    if (status != MXA_OK)
        return status;
    plan_parts(c, plan);
    mxa_plan_free(plan);
    return MXA_OK;
}

mxa_status mxa_cache_describe_sizes(const mxa_cache_opts *opts, mxa_cache *cache)
{
    if (!opts)
        return mxa_fail(MXA_ERR_ARG, "opts: is NULL");
    if (opts->size != sizeof *opts)
        return mxa_fail(MXA_ERR_ARG, "opts: size %zu is not that of this version, %zu", opts->size,
                        sizeof *opts);
    *cache = (mxa_cache){ .opts = *opts };
    cache->opts.recipe = NULL;
    cache->opts.mean = NULL;
    cache->opts.g_v = NULL;
    cache->has_g_v = opts->g_v != NULL;
    mxa_status status = check_numbers(opts);
    if (status == MXA_OK && !opts->recipe)
        status = mxa_recipe_parse(default_recipe, &cache->recipe);
    else if (status == MXA_OK)
        cache->recipe = *opts->recipe;
    if (status == MXA_OK)
        status = mxa_recipe_check(&cache->recipe);
    if (status == MXA_OK)
        status = check_recipe(&cache->recipe, opts->mean, cache->has_g_v);
    if (status == MXA_OK)
        status = plan_copies(cache);
    if (status == MXA_OK)
        status = place_parts(cache);
    if (status == MXA_OK)
        plan_windows(cache);
    return status;
}

mxa_status mxa_cache_describe_opts(const mxa_cache_opts *opts, mxa_cache *cache)
{
    const mxa_status status = mxa_cache_describe_sizes(opts, cache);
    return status == MXA_OK ? check_factors(cache, opts->g_v) : status;
}

int64_t mxa_cache_near_first(const mxa_cache *c, int64_t position)
{
    if (c->near_tiles < 0)
        return MXA_FAR;
    return mxa_max(0, mxa_tile_of(position) - c->near_tiles) * MXA_TILE;
}

/* Of sequences up to length, the one that ends just before its near window moves on by a tile. */
int64_t mxa_cache_high_tokens(const mxa_cache *c, int64_t length)
{
    const int64_t page = c->layout.page_tokens;
    const int64_t sink = mxa_round_up(mxa_min(c->layout.sink_end, length), page);
    if (c->near_tiles < 0 || length <= sink)
        return c->layout.page_bytes[MXA_HIGH] ? sink : 0;
    const int64_t near = mxa_min((c->near_tiles + 1) * MXA_TILE + mxa_min(c->opts.rewind, length), length);
    const int64_t unaligned = MXA_TILE % page ? page - PAGE_STEP : 0; /* tokens before it in its first page */
    return sink + mxa_round_up(mxa_min(near, length - sink) + unaligned, page);
}
