/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the portable attention share: one item's scratch. */
#ifndef MXA_CPU_ATTENTION_TILE_PORTABLE_H
#define MXA_CPU_ATTENTION_TILE_PORTABLE_H

#include "cpu/attention_rows.h"
#include "cpu/portable/products_portable.h"

/* Scratch of an item. V's channels are padded to whole groups of MXA_COLS. */
typedef struct mxa_tile_work {
    mxa_item_rows item;
    int64_t n_heads, dim;
    bool loaded[MXA_COPIES];

    mxa_vec *q[MXA_COPIES];    /* [blocks of MXA_ROWS rows][dim][MXA_ROWS] */
    float *factor[MXA_COPIES]; /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias[MXA_COPIES];   /* [rows] in the same units */
    float *raw;                /* rows as they are loaded: [MXA_TILE][dim], or one of dim_v */
    float *k;                  /* [MXA_TILE / MXA_COLS][dim][MXA_COLS] */
    float *v;                  /* [channels / MXA_COLS][MXA_TILE][MXA_COLS] */
    float *g_k;                /* [MXA_TILE] */
    float *logits;             /* [MXA_ROWS][MXA_TILE] */
    mxa_vec *p;                /* [MXA_TILE][MXA_ROWS] */
} mxa_tile_work;

/* n in whole groups of MXA_COLS. */
static inline int64_t mxa_whole_groups(int64_t n)
{
    return (n + MXA_COLS - 1) / MXA_COLS * MXA_COLS;
}

/* All rows of the item as a copy has them; the keys of a tile; their V. */
void mxa_tile_load_q(mxa_tile_work *w, int copy);
void mxa_tile_load_k(mxa_tile_work *w, const mxa_key_tile *t);
void mxa_tile_load_v(mxa_tile_work *w, const mxa_key_tile *t);

/* Take the tile's keys into rows [first, first + MXA_ROWS) of the item, as far as there are so many. */
void mxa_tile_add_block(mxa_tile_work *w, const mxa_key_tile *t, int64_t first);

#endif
