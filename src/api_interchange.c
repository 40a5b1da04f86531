/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens between a cache and the layouts of other engines. */
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "exchange.h"
#include "format/export.h"
#include "format/import.h"
#include "format/q8_0.h"
#include "format/second_level.h"

/* Units of a vLLM page: tokens whose V scales are interleaved, and what its head_dim is a multiple of. */
enum { VLLM_TOKENS = 4, VLLM_DIM = 64 };

static int64_t part_dim(const mxa_cache *c, int operand)
{
    return operand == MXA_KV_K ? c->opts.head_dim : c->opts.head_dim_v;
}

static mxa_status check_tokens(const mxa_cache *c, int64_t b, int64_t first, int64_t n)
{
    if (!c)
        return mxa_fail(MXA_ERR_ARG, "cache: is NULL");
    if (c->ops)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "cache: is a device's, other layouts go through the CPU's");
    if (b < 0 || b >= c->opts.batch)
        return mxa_fail(MXA_ERR_ARG, "b: %lld is not a sequence of the %lld", (long long)b,
                        (long long)c->opts.batch);
    const int64_t length = c->sequences[b].length;
    if (n < 0 || n > MXA_POSITION_MAX)
        return mxa_fail(MXA_ERR_SHAPE, "n: %lld is outside 0..2^58", (long long)n);
    if (first < 0 || first > length)
        return mxa_fail(MXA_ERR_ARG, "first: %lld is not within the sequence's %lld tokens", (long long)first,
                        (long long)length);
    return MXA_OK;
}

static mxa_status check_exported(const mxa_cache *c, int64_t b, int64_t first, int64_t n)
{
    const mxa_status status = check_tokens(c, b, first, n);
    if (status == MXA_OK && n > c->sequences[b].length - first)
        return mxa_fail(MXA_ERR_ARG, "n: %lld tokens from %lld on are more than the sequence's %lld",
                        (long long)n, (long long)first, (long long)c->sequences[b].length);
    return status;
}

static mxa_status check_rows(const mxa_cache *c, int64_t n, int operand, const mxa_foreign_rows *rows)
{
    const char *const name = operand == MXA_KV_K ? "k" : "v";
    const int64_t dim = part_dim(c, operand);
    mxa_foreign_info info;
    if (!rows)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", name);
    if (!mxa_foreign_find(rows->layout, &info) || rows->layout == MXA_FOREIGN_GPT_OSS)
        return mxa_fail(MXA_ERR_LAYOUT, "%s: layout %d is none of ggml's", name, (int)rows->layout);
    if (dim % info.block != 0)
        return mxa_fail(MXA_ERR_LAYOUT, "%s: head_dim%s %lld is not a multiple of the layout's block of %d",
                        name, operand == MXA_KV_V ? "_v" : "", (long long)dim, info.block);
    int64_t want;
    if (!mxa_mul(n, c->opts.heads_kv * (dim / info.block), &want) ||
        !mxa_mul(want, info.block_bytes, &want) || want != rows->bytes)
        return mxa_fail(MXA_ERR_SHAPE, "%s: %lld bytes are not what %lld tokens of %lld heads take", name,
                        (long long)rows->bytes, (long long)n, (long long)c->opts.heads_kv);
    return rows->data || want == 0 ? MXA_OK : mxa_fail(MXA_ERR_ARG, "%s: data is NULL", name);
}

static mxa_status check_page(const mxa_cache *c, int64_t n, const mxa_vllm_page *page)
{
    if (!page || !page->data)
        return mxa_fail(MXA_ERR_ARG, "page: %s NULL", page ? "its data are" : "is");
    const int64_t dim = c->opts.head_dim, row = dim / 2 + dim / 16;
    if (page->tokens < 0 || page->tokens % VLLM_TOKENS != 0 || dim % VLLM_DIM != 0 ||
        dim != c->opts.head_dim_v)
        return mxa_fail(MXA_ERR_LAYOUT,
                        "page: tokens %lld, head_dim %lld, head_dim_v %lld: it has tokens %% 4 = 0 and one "
                        "head_dim, a multiple of 64",
                        (long long)page->tokens, (long long)dim, (long long)c->opts.head_dim_v);
    int64_t bytes;
    if (!mxa_mul(page->tokens, 2 * c->opts.heads_kv * row, &bytes) || bytes != page->bytes)
        return mxa_fail(MXA_ERR_SHAPE, "page: %lld bytes are not what %lld tokens of %lld heads take",
                        (long long)page->bytes, (long long)page->tokens, (long long)c->opts.heads_kv);
    if (n > page->tokens)
        return mxa_fail(MXA_ERR_ARG, "n: %lld tokens are more than the page's %lld", (long long)n,
                        (long long)page->tokens);
    if (!mxa_g_is_legal(page->g_k) || !mxa_g_is_legal(page->g_v))
        return mxa_fail(MXA_ERR_SCALE, "page: g_k %g or g_v %g is outside 2^-117..2^117", (double)page->g_k,
                        (double)page->g_v);
    return MXA_OK;
}

/* Rows token by token, each of all heads. */
static mxa_status stage_rows(mxa_exchange *e, int operand, mxa_foreign layout)
{
    static const mxa_format formats[] = {
        [MXA_FOREIGN_GGML_MXFP4] = MXA_FORMAT_MXFP4,
        [MXA_FOREIGN_GGML_NVFP4] = MXA_FORMAT_NVFP4,
        [MXA_FOREIGN_GGML_Q8_0] = MXA_FORMAT_NONE,
    };
    const int64_t heads = e->cache->opts.heads_kv;
    const mxa_staged rows = {
        .dim = part_dim(e->cache, operand), .rows = e->n * heads, .token_step = heads, .head_step = 1
    };
    return mxa_exchange_stage(e, operand, rows, formats[layout], 1.0f);
}

/* Head by head, each of all tokens. */
static mxa_status stage_page(mxa_exchange *e, const mxa_vllm_page *page)
{
    const mxa_cache_opts *const o = &e->cache->opts;
    const mxa_staged rows = {
        .dim = o->head_dim, .rows = o->heads_kv * page->tokens, .token_step = 1, .head_step = page->tokens
    };
    const mxa_status status = mxa_exchange_stage(e, MXA_KV_K, rows, MXA_FORMAT_NVFP4, page->g_k);
    return status == MXA_OK ? mxa_exchange_stage(e, MXA_KV_V, rows, MXA_FORMAT_NVFP4, page->g_v) : status;
}

static void read_rows(mxa_staged *s, const mxa_foreign_rows *rows)
{
    const uint8_t *const src = rows->data;
    if (s->info)
        mxa_import_blocks(rows->layout, src, s->rows, s->dim, s->codes, s->scales);
    for (int64_t i = 0; i < s->rows * s->dim / MXA_Q8_0_BLOCK && !s->info; i++)
        mxa_q8_0_decode(src + i * MXA_Q8_0_BYTES, s->values + i * MXA_Q8_0_BLOCK);
}

mxa_status mxa_cache_import_rows(mxa_cache *cache, int64_t b, int64_t n, const mxa_foreign_rows *k,
                                 const mxa_foreign_rows *v)
{
    const mxa_foreign_rows *const rows[MXA_KV_OPERANDS] = { k, v };
    mxa_status status = check_tokens(cache, b, 0, n);
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        status = check_rows(cache, n, i, rows[i]);
    if (status != MXA_OK || n == 0)
        return status;
    mxa_exchange e = { .cache = cache, .b = b, .first = cache->sequences[b].length, .n = n };
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++) {
        status = stage_rows(&e, i, rows[i]->layout);
        if (status == MXA_OK)
            read_rows(&e.parts[i], rows[i]);
    }
    if (status == MXA_OK)
        status = mxa_exchange_append(cache, &e);
    mxa_exchange_free(&e);
    return status;
}

mxa_status mxa_cache_import_vllm(mxa_cache *cache, int64_t b, int64_t n, const mxa_vllm_page *page)
{
    mxa_status status = check_tokens(cache, b, 0, n);
    if (status == MXA_OK)
        status = check_page(cache, n, page);
    if (status != MXA_OK || n == 0)
        return status;
    mxa_exchange e = { .cache = cache, .b = b, .first = cache->sequences[b].length, .n = n };
    status = stage_page(&e, page);
    if (status == MXA_OK) {
        const mxa_packed k = mxa_staged_codes(&e.parts[MXA_KV_K]), v = mxa_staged_codes(&e.parts[MXA_KV_V]);
        status = mxa_import_vllm_page(page->data, page->bytes, cache->opts.heads_kv, page->tokens,
                                      cache->opts.head_dim, &k, &v);
    }
    if (status == MXA_OK)
        status = mxa_exchange_append(cache, &e);
    mxa_exchange_free(&e);
    return status;
}

static void write_rows(const mxa_staged *s, const mxa_foreign_rows *rows)
{
    uint8_t *const dst = rows->data;
    if (s->info)
        mxa_export_blocks(rows->layout, s->codes, s->scales, s->rows, s->dim, dst);
    for (int64_t i = 0; i < s->rows * s->dim / MXA_Q8_0_BLOCK && !s->info; i++)
        mxa_q8_0_encode(s->values + i * MXA_Q8_0_BLOCK, dst + i * MXA_Q8_0_BYTES);
}

mxa_status mxa_cache_export_rows(const mxa_cache *cache, int64_t b, int64_t first, int64_t n,
                                 const mxa_foreign_rows *k, const mxa_foreign_rows *v)
{
    const mxa_foreign_rows *const rows[MXA_KV_OPERANDS] = { k, v };
    mxa_status status = check_exported(cache, b, first, n);
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        status = check_rows(cache, n, i, rows[i]);
    if (status != MXA_OK || n == 0)
        return status;
    mxa_exchange e = { .cache = cache, .b = b, .first = first, .n = n };
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        status = stage_rows(&e, i, rows[i]->layout);
    if (status == MXA_OK)
        status = mxa_exchange_read(&e);
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        write_rows(&e.parts[i], rows[i]);
    mxa_exchange_free(&e);
    return status;
}

static void write_page(const mxa_exchange *e, const mxa_vllm_page *page)
{
    uint8_t *at = page->data;
    for (int i = 0; i < MXA_KV_OPERANDS; i++) {
        const mxa_staged *const s = &e->parts[i];
        memcpy(at, s->codes, (size_t)(s->rows * s->row_bytes));
        at += s->rows * s->row_bytes;
        if (i == MXA_KV_K)
            memcpy(at, s->scales, (size_t)(s->rows * s->scale_cols));
        else
            mxa_export_vllm_scales(s->scales, e->cache->opts.heads_kv, page->tokens, s->scale_cols, at);
        at += s->rows * s->scale_cols;
    }
}

mxa_status mxa_cache_export_vllm(const mxa_cache *cache, int64_t b, int64_t first, int64_t n,
                                 const mxa_vllm_page *page)
{
    mxa_status status = check_exported(cache, b, first, n);
    if (status == MXA_OK)
        status = check_page(cache, n, page);
    if (status != MXA_OK)
        return status;
    mxa_exchange e = { .cache = cache, .b = b, .first = first, .n = n };
    status = stage_page(&e, page);
    if (status == MXA_OK)
        status = mxa_exchange_read(&e);
    if (status == MXA_OK)
        write_page(&e, page);
    mxa_exchange_free(&e);
    return status;
}
