/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "format/format.h"

static mxa_status no_memory(const mxa_exchange *e)
{
    return mxa_fail(MXA_ERR_MEMORY, "n: no memory for %lld tokens in fp32", (long long)e->n);
}

mxa_status mxa_exchange_stage(mxa_exchange *e, int operand, mxa_staged rows, mxa_format format, float g)
{
    mxa_staged *const s = &e->parts[operand];
    *s = rows;
    s->info = mxa_format_get(format);
    s->g = g;
    s->row_bytes = s->info ? mxa_row_bytes(s->info, s->dim) : 0;
    s->scale_cols = s->info ? mxa_scale_cols(s->info, s->dim) : 0;
    const int64_t each = s->dim * (int64_t)sizeof *s->values + s->row_bytes + s->scale_cols;
    s->values = calloc((size_t)mxa_max(s->rows, 1), (size_t)each);
    if (!s->values)
        return no_memory(e);
    s->codes = (uint8_t *)(s->values + s->rows * s->dim);
    s->scales = s->codes + s->rows * s->row_bytes;
    return MXA_OK;
}

void mxa_exchange_free(mxa_exchange *e)
{
    for (int i = 0; i < MXA_KV_OPERANDS; i++)
        free(e->parts[i].values);
}

/* Options with which the staged codes are made and read. */
static mxa_quant_opts staged_opts(const mxa_staged *s, int threads)
{
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.level = s->info->format == MXA_FORMAT_NVFP4 ? MXA_LEVEL_TENSOR : MXA_LEVEL_NONE;
    opts.g = opts.level == MXA_LEVEL_TENSOR ? &s->g : NULL;
    opts.threads = threads;
    return opts;
}

static mxa_tensor staged_rows(const mxa_staged *s)
{
    return mxa_tensor_contiguous(s->values, MXA_DTYPE_F32, 1, 1, s->rows, s->dim);
}

static mxa_status decode(mxa_staged *s, int threads)
{
    mxa_quant_opts opts = staged_opts(s, threads);
    opts.g = NULL; /* it comes with the codes */
    const mxa_packed codes = mxa_staged_codes(s);
    const mxa_tensor rows = staged_rows(s);
    return mxa_dequantize(&codes, s->info->format, &opts, &rows);
}

static mxa_status encode(mxa_staged *s, int threads)
{
    const mxa_quant_opts opts = staged_opts(s, threads);
    const mxa_packed codes = mxa_staged_codes(s);
    const mxa_tensor rows = staged_rows(s);
    return mxa_quantize(&rows, s->info->format, &opts, &codes, NULL);
}

/* The low rows of an operand are codes of the staged format, made of the values as they are. */
static bool is_same_format(const mxa_exchange *e, int operand)
{
    const mxa_copy_plan *const copy = &e->cache->layout.part[MXA_LOW][operand].copy;
    return copy->info && copy->info == e->parts[operand].info && !copy->smooth && !copy->rotate;
}

/* Codes, scales and factors between the staged rows and those of low pages. */
static void move_codes(const mxa_exchange *e, int operand, bool into_cache)
{
    const mxa_kv_view view = mxa_cache_view(e->cache);
    const mxa_kv_sequence *const sequence = &view.sequences[e->b];
    const mxa_staged *const s = &e->parts[operand];
    for (int64_t h = 0; h < e->cache->opts.heads_kv; h++)
        for (int64_t t = 0; t < e->n; t++) {
            const int64_t token = e->first + t, row = t * s->token_step + h * s->head_step;
            if (sequence->table[MXA_LOW][token / view.layout->page_tokens] < 0 ||
                mxa_kv_is_unread(view.layout, MXA_LOW, operand, token))
                continue;
            const mxa_kv_rows at = mxa_kv_rows_at(&view, MXA_LOW, operand, sequence, h, token, token + 1);
            uint8_t *const codes = s->codes + row * s->row_bytes;
            uint8_t *const scales = s->scales + row * s->scale_cols;
            if (into_cache && at.g)
                *at.g = s->g;
            if ((at.g ? *at.g : 1.0f) != s->g)
                continue;
            memcpy(into_cache ? at.codes : codes, into_cache ? codes : at.codes, (size_t)s->row_bytes);
            memcpy(into_cache ? at.scales : scales, into_cache ? scales : at.scales, (size_t)s->scale_cols);
        }
}

/* [batch][heads_kv][n][dim], of which the sequence alone takes rows. */
static mxa_tensor staged_tokens(const mxa_exchange *e, int operand)
{
    const mxa_staged *const s = &e->parts[operand];
    const mxa_cache_opts *const o = &e->cache->opts;
    mxa_tensor x = mxa_tensor_contiguous(s->values, MXA_DTYPE_F32, o->batch, o->heads_kv, e->n, s->dim);
    x.stride[0] = 0;
    x.stride[1] = s->head_step * s->dim;
    x.stride[2] = s->token_step * s->dim;
    return x;
}

mxa_status mxa_exchange_append(mxa_cache *cache, mxa_exchange *e)
{
    mxa_status status = MXA_OK;
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        if (e->parts[i].info)
            status = decode(&e->parts[i], cache->opts.threads);
    int64_t *const counts = calloc((size_t)cache->opts.batch, sizeof *counts);
    if (status == MXA_OK && !counts)
        status = no_memory(e);
    if (status == MXA_OK) {
        const mxa_tensor k = staged_tokens(e, MXA_KV_K), v = staged_tokens(e, MXA_KV_V);
        counts[e->b] = e->n;
        status = mxa_cache_append(cache, &k, &v, counts);
    }
    free(counts);
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++)
        if (is_same_format(e, i))
            move_codes(e, i, true);
    return status;
}

/* The copy that a token is best read from. */
static int best_copy(const mxa_cache *c, const mxa_cache_sequence *s, int operand, int64_t token)
{
    const mxa_kv_layout *const l = &c->layout;
    const bool held = token < l->sink_end || token >= s->high_first;
    if (!l->part[MXA_HIGH][operand].copy.info)
        return MXA_LOW;
    return held || !l->part[MXA_LOW][operand].copy.info ? MXA_HIGH : MXA_LOW;
}

/* Those of V whose channels have factors: times these, then turned back. */
static mxa_status finish_channels(const mxa_kv_rows *rows, const float *g, const mxa_tensor *out)
{
    for (int64_t r = 0; r < rows->n; r++) {
        float *const x = mxa_row(out, 0, 0, r);
        for (int64_t d = 0; d < rows->part->dim; d++)
            x[d] *= g[d];
    }
    return rows->part->copy.rotate ? mxa_rotate(out, out) : MXA_OK;
}

/* Stored rows as numbers, turned back, with their mean. */
static mxa_status decode_rows(const mxa_kv_rows *rows, const float *mean, const float *channels_g,
                              const mxa_tensor *out)
{
    float one = 1.0f;
    const mxa_copy_plan *const copy = &rows->part->copy;
    const mxa_packed packed = { .codes = rows->codes,
                                .scales = rows->scales,
                                .g = channels_g ? &one : rows->g };
    mxa_quant_opts opts;
    mxa_quant_default(&opts);
    opts.level = rows->g ? MXA_LEVEL_TOKEN : channels_g ? MXA_LEVEL_TENSOR : MXA_LEVEL_NONE;
    opts.fill_tail = true;
    opts.rotate = copy->rotate && !channels_g;
    opts.mean = copy->smooth ? mean : NULL;
    opts.threads = 1;
    const mxa_status status = mxa_dequantize(&packed, copy->info->format, &opts, out);
    return status == MXA_OK && channels_g ? finish_channels(rows, channels_g, out) : status;
}

/* Values of a head's tokens from the best copies that the cache holds. */
static mxa_status read_head(mxa_exchange *e, int operand, int64_t h)
{
    const mxa_cache *const c = e->cache;
    const mxa_kv_view view = mxa_cache_view(c);
    const mxa_cache_sequence *const s = &c->sequences[e->b];
    const mxa_staged *const to = &e->parts[operand];
    const int64_t end = e->first + e->n;
    mxa_status status = MXA_OK;
    for (int64_t token = e->first; token < end && status == MXA_OK;) {
        const int copy = best_copy(c, s, operand, token);
        const int64_t page = token / c->layout.page_tokens;
        const int64_t stop = mxa_min(end, (page + 1) * c->layout.page_tokens);
        int64_t run = token + 1;
        while (run < stop && best_copy(c, s, operand, run) == copy)
            run++;
        if (s->table[copy][page] < 0)
            return mxa_fail(MXA_ERR_ARG, "first: the page of token %lld was removed", (long long)token);
        const mxa_kv_rows rows = mxa_kv_rows_at(&view, copy, operand, &view.sequences[e->b], h, token, run);
        const int64_t row = (token - e->first) * to->token_step + h * to->head_step;
        mxa_tensor out =
            mxa_tensor_contiguous(to->values + row * to->dim, MXA_DTYPE_F32, 1, 1, rows.n, to->dim);
        out.stride[2] = to->token_step * to->dim;
        status = decode_rows(&rows, operand == MXA_KV_K && s->mean ? s->mean + h * to->dim : NULL,
                             operand == MXA_KV_V ? mxa_kv_channels_g(&view, copy, h) : NULL, &out);
        token += rows.n;
    }
    return status;
}

mxa_status mxa_exchange_read(mxa_exchange *e)
{
    mxa_status status = MXA_OK;
    for (int i = 0; i < MXA_KV_OPERANDS && status == MXA_OK; i++) {
        for (int64_t h = 0; h < e->cache->opts.heads_kv && status == MXA_OK; h++)
            status = read_head(e, i, h);
        if (status == MXA_OK && e->parts[i].info)
            status = encode(&e->parts[i], e->cache->opts.threads);
        if (status == MXA_OK && is_same_format(e, i))
            move_codes(e, i, false);
    }
    return status;
}
