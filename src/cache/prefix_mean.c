/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mean of smooth-K's PREFIX from the high rows of the first tile of keys, which every sequence keeps: it
 * depends on stored bytes alone, so that cutting and appending again gives it again. Where K comes in the
 * high format, it is that of docs/numerics.md, section 9, to the bit.
 */
#include "cache/cache.h"

#include "core/bits.h"

static float element(const mxa_kv_rows *rows, int64_t row, int64_t d)
{
    const uint8_t *const codes = rows->codes + row * rows->part->row_bytes;
    if (rows->part->copy.info->format == MXA_FORMAT_F32)
        return ((const float *)(const void *)codes)[d];
    const uint16_t half = ((const uint16_t *)(const void *)codes)[d];
    return rows->part->copy.info->format == MXA_FORMAT_F16 ? mxa_f32_from_f16(half) : mxa_f32_from_bf16(half);
}

static void head_mean(const mxa_kv_view *view, const mxa_kv_sequence *s, int64_t head, float *mean)
{
    const int64_t dim = view->layout->part[MXA_HIGH][MXA_KV_K].dim;
    double sum[MXA_DIM_MAX] = { 0 };
    int count[MXA_DIM_MAX] = { 0 };
    for (int64_t first = 0; first < MXA_TILE;) {
        const mxa_kv_rows rows = mxa_kv_rows_at(view, MXA_HIGH, MXA_KV_K, s, head, first, MXA_TILE);
        for (int64_t r = 0; r < rows.n; r++)
            for (int64_t d = 0; d < dim; d++) {
                const float x = element(&rows, r, d);
                if (mxa_f32_is_finite(x)) {
                    sum[d] += (double)x;
                    count[d]++;
                }
            }
        first += rows.n;
    }
    for (int64_t d = 0; d < dim; d++)
        mean[d] = count[d] ? (float)(sum[d] / count[d]) : 0.0f;
}

void mxa_cache_set_mean(mxa_cache *c, int64_t b)
{
    if (c->recipe.smooth_k != MXA_SMOOTH_PREFIX || !c->layout.part[MXA_LOW][MXA_KV_K].copy.info)
        return;
    const mxa_kv_view view = mxa_cache_view(c);
    for (int64_t h = 0; h < c->opts.heads_kv; h++)
        head_mean(&view, &view.sequences[b], h, c->sequences[b].mean + h * c->opts.head_dim);
}
