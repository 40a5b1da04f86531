/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the AVX2 attention share: one item's scratch. */
#ifndef MXA_CPU_AVX2_ATTENTION_TILE_AVX2_H
#define MXA_CPU_AVX2_ATTENTION_TILE_AVX2_H

#include "cpu/attention_rows.h"
#include "cpu/avx2/products_avx2.h"
#include "format/mx.h"

/*
 * How a copy's Q and K are multiplied. Integers where both formats have them (INT8, MXINT8, MXFP4 doubled):
 * exact sums over a block, which then meet the block's scales; with INT8 on both sides there are none and a
 * block is the whole head_dim. Otherwise fp32.
 */
typedef struct mxa_avx2_copy {
    bool integers;
    int64_t dim, block; /* of integers: padded with zeros to whole blocks; else head_dim */
    void *q;            /* [rows][dim] int16_t or float */
    float *q_scale;     /* [rows][dim / block] of MX formats, else NULL */
    float *factor;      /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias;        /* [rows] in the same units */
    bool loaded;
} mxa_avx2_copy;

typedef struct mxa_avx2_work {
    mxa_item_rows item;
    mxa_avx2_copy copy[MXA_COPIES];
    void *raw;      /* rows as they are loaded: [MXA_TILE][dim] of up to 4 bytes */
    void *k;        /* [MXA_TILE / COLS][dim][COLS] float, or [MXA_TILE / COLS][dim / 2][COLS][2] int16_t */
    float *k_scale; /* [dim / block][MXA_TILE] of MX formats */
    float *g_k;     /* [MXA_TILE] */
    float *v;       /* [channels / COLS][MXA_TILE][COLS] */
    float *logits;  /* [MXA_AVX2_BLOCK][MXA_TILE], then P in their place */
} mxa_avx2_work;

/* n in whole groups of MXA_AVX2_COLS. */
static inline int64_t mxa_avx2_groups(int64_t n)
{
    return (n + MXA_AVX2_COLS - 1) / MXA_AVX2_COLS * MXA_AVX2_COLS;
}

/* How a pair of formats is multiplied: integers, dim and block of a copy, and whether q_scale is wanted. */
mxa_avx2_copy mxa_avx2_copy_of(const mxa_plan *plan, int copy, bool *q_scaled);

/* All rows of the item as a copy has them; the keys of a tile; their V. */
void mxa_avx2_load_q(mxa_avx2_work *w, int copy);
void mxa_avx2_load_k(mxa_avx2_work *w, const mxa_key_tile *t);
void mxa_avx2_load_v(mxa_avx2_work *w, const mxa_key_tile *t);

/* Take the tile's keys into rows [first, first + MXA_AVX2_BLOCK) of the item, as far as there are so many. */
void mxa_avx2_add_block(mxa_avx2_work *w, const mxa_key_tile *t, int64_t first);

#endif
