/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a token's codes, scales and factors lie in a page of a device's KV cache.
 *
 * A page has the records of attn/kv_view.h and their sizes: head h's begins at h * head_bytes. What differs
 * is the order inside a record. It is cut into tiles of 64 tokens (16 where pages are no multiple of 64),
 * each
 *
 *   K codes | K scales | K factors | V codes | V scales | V factors
 *
 * so that a warp gets K, or V, of a tile by one bulk copy. Codes of 4, 8 and 16 bits lie in slices of 16
 * tokens, in the order in which a warp's lanes hold the A operand of mma.sync: of K, tokens are its rows and
 * channels its columns; of V, channels are its rows and tokens its columns. A slice is [chunk][lane][16
 * bytes]: a chunk holds 64, 32 or 16 channels. Formats of other sizes, and dims that are no whole chunks, lie
 * in rows as on the CPU.
 */
#ifndef MXA_CUDA_KV_LAYOUT_CUDA_H
#define MXA_CUDA_KV_LAYOUT_CUDA_H

#include "attn/kv_view.h"
#include "format/element.h"

enum {
    MXA_KV_SLICE = 16,     /* tokens */
    MXA_KV_TILE_LARGE = 64 /* tokens */
};
/* The sign bit of a factor: a code of its row is NaN (INT8: 0x80; FP8: 0x7F, 0xFF). */
#define MXA_KV_G_NAN 0x80000000u

enum { MXA_KV_LANE_BYTES = 16, MXA_KV_CHUNK_BYTES = 512 };

/* K or V in the tiles of one copy: offsets in bytes from the tile's record. */
typedef struct mxa_kv_tile_part {
    int bits; /* of a code in slices: 4, 8 or 16; 0: rows */
    bool is_v;
    uint8_t flip; /* bits of a stored code that are turned over: INT8 V lies there plus 128 */
    bool has_g;
    int dim, row_bytes, scale_cols;
    int codes, scales, g;
} mxa_kv_tile_part;

typedef struct mxa_kv_tiles {
    int tokens;                                            /* of a tile */
    mxa_kv_tile_part part[MXA_COPIES][MXA_KV_OPERANDS];    /* dim 0: pages of this copy do not hold it */
    int k_bytes[MXA_COPIES], bytes[MXA_COPIES];            /* of K in a tile, and of all of it */
    int64_t heads_kv, page_tokens, head_bytes[MXA_COPIES]; /* as in mxa_kv_layout */
} mxa_kv_tiles;

/* Bits of a code that lies in slices, or 0. */
static inline int mxa_kv_slice_bits(const mxa_kv_part *part)
{
    const int bits = part->copy.info->element_bits;
    const bool whole = (bits == 4 || bits == 8 || bits == 16) && part->dim * bits % 256 == 0;
    return whole ? bits : 0;
}

static inline int mxa_kv_take(int *used, int64_t bytes)
{
    const int at = *used;
    *used += (int)bytes;
    return at;
}

static inline mxa_kv_tiles mxa_kv_tiles_of(const mxa_kv_layout *l)
{
    mxa_kv_tiles t;
    memset(&t, 0, sizeof t);
    t.tokens = l->page_tokens % MXA_KV_TILE_LARGE ? MXA_KV_SLICE : MXA_KV_TILE_LARGE;
    t.heads_kv = l->heads_kv;
    t.page_tokens = l->page_tokens;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        t.head_bytes[copy] = l->head_bytes[copy];
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_kv_part *const from = &l->part[copy][operand];
            mxa_kv_tile_part *const to = &t.part[copy][operand];
            t.k_bytes[copy] = operand == MXA_KV_V ? t.bytes[copy] : 0;
            if (!from->copy.info)
                continue;
            to->bits = mxa_kv_slice_bits(from);
            to->is_v = operand == MXA_KV_V;
            to->flip = to->is_v && to->bits && from->copy.info->format == MXA_FORMAT_INT8 ? 0x80 : 0;
            to->has_g = from->copy.level == MXA_LEVEL_TOKEN;
            to->dim = (int)from->dim;
            to->row_bytes = (int)from->row_bytes;
            to->scale_cols = (int)from->scale_cols;
            to->codes = mxa_kv_take(&t.bytes[copy], t.tokens * from->row_bytes);
            to->scales = mxa_kv_take(&t.bytes[copy], t.tokens * from->scale_cols);
            to->g = mxa_kv_take(&t.bytes[copy], to->has_g ? t.tokens * (int64_t)sizeof(float) : 0);
        }
    }
    return t;
}

/* From a page's beginning to the record of the tile that holds a token of the page. */
MXA_HD static inline int64_t mxa_kv_tile_at(const mxa_kv_tiles *t, int copy, int64_t head, int token)
{
    return head * t->head_bytes[copy] + (int64_t)(token / t->tokens) * t->bytes[copy];
}

/*
 * The lane and the register of the A operand of mma.sync that hold (row, column) of 16 x 16 elements of 16
 * bits, or of 16 x 32 of 8 bits: a register is `wide` elements beside each other.
 */
MXA_HD static inline int mxa_kv_lane(int row, int column, int wide)
{
    return row % 8 * 4 + column % (4 * wide) / wide;
}

MXA_HD static inline int mxa_kv_register(int row, int column, int wide)
{
    return row / 8 + 2 * (column / (4 * wide));
}

/*
 * From the tile's record to the byte with the code of token (of the tile) and channel d. Of 4 bits, a byte
 * holds the codes of channels d and d + 8, d % 16 < 8: mxa_kv_join.
 */
MXA_HD static inline int mxa_kv_code_at(const mxa_kv_tile_part *p, int token, int d)
{
    if (p->bits == 0)
        return p->codes + token * p->row_bytes;
    const int slice = p->codes + token / MXA_KV_SLICE * MXA_KV_SLICE * p->row_bytes;
    const int r = token % MXA_KV_SLICE;
    if (p->bits == 16) {
        const int row = p->is_v ? d % 16 : r, column = p->is_v ? r : d % 16;
        return slice + d / 16 * MXA_KV_CHUNK_BYTES + mxa_kv_lane(row, column, 2) * MXA_KV_LANE_BYTES +
               mxa_kv_register(row, column, 2) * 4 + column % 2 * 2;
    }
    if (p->bits == 8 && !p->is_v)
        return slice + d / 32 * MXA_KV_CHUNK_BYTES + mxa_kv_lane(r, d % 32, 4) * MXA_KV_LANE_BYTES +
               mxa_kv_register(r, d % 32, 4) * 4 + d % 4;
    if (p->bits == 8) /* two products of 16 x 16 lie behind each other, four registers of two bytes each */
        return slice + d / 32 * MXA_KV_CHUNK_BYTES + mxa_kv_lane(d % 16, r, 2) * MXA_KV_LANE_BYTES +
               d % 32 / 16 * 8 + mxa_kv_register(d % 16, r, 2) * 2 + r % 2;
    /*
     * Four products of 16 x 16; a byte's codes differ by 8 in the channel, its neighbour's by 8 in the
     * token.
     */
    const int row = p->is_v ? d % 8 : r % 8, column = p->is_v ? r % 8 : d % 8;
    return slice + d / 64 * MXA_KV_CHUNK_BYTES + mxa_kv_lane(row, column, 2) * MXA_KV_LANE_BYTES +
           d % 64 / 16 * 4 + column % 2 * 2 + (r < 8 ? 1 : 0);
}

/*
 * Two E2M1 codes in a byte: sign, then exponent and mantissa, of the first at bits 7, 3, 2, 1, of the second
 * at bits 6, 5, 4, 0. With a byte of zeros below, both become fp16 by shifts and masks.
 */
MXA_HD static inline uint8_t mxa_kv_join(unsigned first, unsigned second)
{
    return (uint8_t)((first & 8) << 4 | (first & 7) << 1 | (second & 14) << 3 | (second & 1));
}

MXA_HD static inline unsigned mxa_kv_first(uint8_t byte)
{
    return (byte >> 4 & 8u) | (byte >> 1 & 7u);
}

MXA_HD static inline unsigned mxa_kv_second(uint8_t byte)
{
    return (byte >> 3 & 14u) | (byte & 1u);
}

/* Slot of a token in its slice: tokens r and r + 8 are beside each other. */
MXA_HD static inline int mxa_kv_slot(int token)
{
    const int r = token % MXA_KV_SLICE;
    return token - r + r % 8 * 2 + r / 8;
}

/* From the tile's record to the scale byte of a token and block c. */
MXA_HD static inline int mxa_kv_scale_at(const mxa_kv_tile_part *p, int token, int c)
{
    if (p->bits == 0)
        return p->scales + token * p->scale_cols + c;
    if (!p->is_v)
        return p->scales + mxa_kv_slot(token) * p->scale_cols + c;
    /* The four tokens of a lane in the B operand, for one block after another. */
    const int r = token % MXA_KV_SLICE, lane = r % 8 / 2, of_lane = r % 2 + r / 8 * 2;
    return p->scales + (token - r) * p->scale_cols + (lane * p->scale_cols + c) * 4 + of_lane;
}

/*
 * From the tile's record to the token's fp32 factor; where codes have no block scale, MXA_KV_G_NAN may be
 * set.
 */
MXA_HD static inline int mxa_kv_g_at(const mxa_kv_tile_part *p, int token)
{
    return p->g + (p->bits ? mxa_kv_slot(token) : token) * (int)sizeof(float);
}

/* Is a code of 8 bits that has no block scale NaN. */
MXA_HD static inline bool mxa_kv_code_is_nan(mxa_format format, uint8_t code)
{
    return format == MXA_FORMAT_INT8 ? code == MXA_INT8_NAN : (code & 0x7F) == MXA_FP8_NAN;
}

#endif
