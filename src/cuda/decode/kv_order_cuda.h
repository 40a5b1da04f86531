/* SPDX-License-Identifier: Apache-2.0 */
/* A page between the CPU's order (attn/kv_view.h) and the device's: K or V of one token and head. */
#ifndef MXA_CUDA_KV_ORDER_CUDA_H
#define MXA_CUDA_KV_ORDER_CUDA_H

#include "cuda/decode/kv_layout_cuda.h"

/* What a part of a record is made of. */
typedef struct mxa_kv_token {
    const mxa_kv_part *part;
    const mxa_kv_tile_part *order;
    uint8_t *rows; /* the head's record in the CPU's order */
    uint8_t *tile; /* the tile's record */
    int row;       /* of the page */
    int token;     /* of the tile */
} mxa_kv_token;

static inline mxa_kv_token mxa_kv_token_at(const mxa_kv_layout *l, const mxa_kv_tiles *t, int copy,
                                           int operand, uint8_t *rows, uint8_t *page, int64_t head, int row)
{
    return (mxa_kv_token){
        .part = &l->part[copy][operand],
        .order = &t->part[copy][operand],
        .rows = rows + head * l->head_bytes[copy],
        .tile = page + mxa_kv_tile_at(t, copy, head, row),
        .row = row,
        .token = row % t->tokens,
    };
}

/* Bytes of the token's row in the CPU's order. */
static inline uint8_t *mxa_kv_token_codes(const mxa_kv_token *k)
{
    return k->rows + k->part->codes + k->row * k->part->row_bytes;
}

static inline bool mxa_kv_token_has_nan(const mxa_kv_token *k)
{
    const uint8_t *const codes = mxa_kv_token_codes(k);
    bool found = false;
    for (int64_t d = 0; d < k->part->dim; d++)
        found = found || mxa_kv_code_is_nan(k->part->copy.info->format, codes[d]);
    return found;
}

static inline void mxa_kv_codes_to_tile(const mxa_kv_token *k)
{
    const uint8_t *const from = mxa_kv_token_codes(k);
    const int dim = (int)k->part->dim, bits = k->order->bits, bytes = bits / 8;
    if (bits == 0)
        memcpy(k->tile + mxa_kv_code_at(k->order, k->token, 0), from, (size_t)k->part->row_bytes);
    for (int d = 0; d < dim && bits >= 8; d++)
        for (int i = 0; i < bytes; i++)
            k->tile[mxa_kv_code_at(k->order, k->token, d) + i] =
                (uint8_t)(from[d * bytes + i] ^ k->order->flip);
    for (int d = 0; d < dim && bits == 4; d += d % 8 == 7 ? 9 : 1)
        k->tile[mxa_kv_code_at(k->order, k->token, d)] =
            mxa_kv_join(from[d / 2] >> d % 2 * 4 & 15u, from[d / 2 + 4] >> d % 2 * 4 & 15u);
}

static inline void mxa_kv_codes_from_tile(const mxa_kv_token *k)
{
    uint8_t *const to = mxa_kv_token_codes(k);
    const int dim = (int)k->part->dim, bits = k->order->bits, bytes = bits / 8;
    memset(to, 0, (size_t)k->part->row_bytes);
    if (bits == 0)
        memcpy(to, k->tile + mxa_kv_code_at(k->order, k->token, 0), (size_t)k->part->row_bytes);
    for (int d = 0; d < dim && bits >= 8; d++)
        for (int i = 0; i < bytes; i++)
            to[d * bytes + i] =
                (uint8_t)(k->tile[mxa_kv_code_at(k->order, k->token, d) + i] ^ k->order->flip);
    for (int d = 0; d < dim && bits == 4; d += d % 8 == 7 ? 9 : 1) {
        const uint8_t byte = k->tile[mxa_kv_code_at(k->order, k->token, d)];
        to[d / 2] |= (uint8_t)(mxa_kv_first(byte) << d % 2 * 4);
        to[d / 2 + 4] |= (uint8_t)(mxa_kv_second(byte) << d % 2 * 4);
    }
}

/* One row, with its scales and factor. */
static inline void mxa_kv_row_to_tile(const mxa_kv_token *k)
{
    mxa_kv_codes_to_tile(k);
    for (int c = 0; c < k->order->scale_cols; c++)
        k->tile[mxa_kv_scale_at(k->order, k->token, c)] =
            k->rows[k->part->scales + k->row * k->part->scale_cols + c];
    if (!k->order->has_g)
        return;
    uint32_t g;
    memcpy(&g, k->rows + k->part->g + k->row * (int)sizeof g, sizeof g);
    if (k->part->copy.info->scale == MXA_SCALE_NONE && mxa_kv_token_has_nan(k))
        g |= MXA_KV_G_NAN;
    memcpy(k->tile + mxa_kv_g_at(k->order, k->token), &g, sizeof g);
}

static inline void mxa_kv_row_from_tile(const mxa_kv_token *k)
{
    mxa_kv_codes_from_tile(k);
    for (int c = 0; c < k->order->scale_cols; c++)
        k->rows[k->part->scales + k->row * k->part->scale_cols + c] =
            k->tile[mxa_kv_scale_at(k->order, k->token, c)];
    if (!k->order->has_g)
        return;
    uint32_t g;
    memcpy(&g, k->tile + mxa_kv_g_at(k->order, k->token), sizeof g);
    g &= ~MXA_KV_G_NAN;
    memcpy(k->rows + k->part->g + k->row * (int)sizeof g, &g, sizeof g);
}

/* A whole page of one copy. */
static inline void mxa_kv_page_order(const mxa_kv_layout *l, int copy, uint8_t *rows, uint8_t *page,
                                     bool to_device)
{
    const mxa_kv_tiles t = mxa_kv_tiles_of(l);
    for (int64_t h = 0; h < l->heads_kv; h++)
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++)
            for (int row = 0; row < l->page_tokens && l->part[copy][operand].copy.info; row++) {
                const mxa_kv_token k = mxa_kv_token_at(l, &t, copy, operand, rows, page, h, row);
                if (to_device)
                    mxa_kv_row_to_tile(&k);
                else
                    mxa_kv_row_from_tile(&k);
            }
}

#endif
