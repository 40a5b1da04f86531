/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the AVX-512 attention share: one item's scratch, and one block of its rows. */
#ifndef MXA_CPU_AVX512_ATTENTION_TILE_AVX512_H
#define MXA_CPU_AVX512_ATTENTION_TILE_AVX512_H

#include "cpu/attention_rows.h"
#include "cpu/avx512/products_avx512.h"
#include "format/mx.h"

/* Elements from one row of Q to the next, and of K before it is laid out. */
enum { MXA_AVX512_STRIDE = MXA_DIM_MAX };

/*
 * Where P meets V by vdpbf16ps, P and O carry this power of two, so that what it flushes, below 2^-126, is
 * nothing beside any product of P with a normal number of V.
 */
#define MXA_AVX512_P_LOG2  60.0f
#define MXA_AVX512_P_SCALE 0x1p60f

/*
 * How a copy's Q and K are multiplied. Integers where both formats have them: exact sums over the row of INT8
 * on both sides, or over blocks, which then meet the block's scales (INT8, MXINT8, MXFP4 doubled). Otherwise
 * bf16 where that is fast and holds the numbers of both formats, else fp32.
 */
typedef enum mxa_avx512_kind {
    MXA_AVX512_INT8,
    MXA_AVX512_BLOCKS, /* integers with a scale per MXA_MX_BLOCK */
    MXA_AVX512_BF16,
    MXA_AVX512_F32
} mxa_avx512_kind;

typedef struct mxa_avx512_copy {
    mxa_avx512_kind kind;
    int64_t element;    /* bytes of one */
    int64_t dim, block; /* padded with zeros to whole blocks, a multiple of MXA_MX_BLOCK */
    void *q;            /* [rows][MXA_AVX512_STRIDE] int8_t, bf16 or float */
    int32_t *q_start;   /* of integers [rows][dim / block]: what K's offset adds, taken away */
    float *q_scale;     /* [rows][dim / block] of MX formats, else NULL */
    float *factor;      /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias;        /* [rows] in the same units */
    bool loaded;
} mxa_avx512_copy;

typedef struct mxa_avx512_work {
    mxa_item_rows item; /* a row's sum is that of its sink logit until the end */
    mxa_avx512_copy copy[MXA_COPIES];
    bool bf16;      /* P and V meet by vdpbf16ps, else as floats */
    void *raw;      /* [MXA_TILE][MXA_AVX512_STRIDE] keys as they are loaded */
    void *k;        /* [MXA_TILE / COLS][words][COLS], words of 32 bits; bytes have their offset */
    float *k_scale; /* [dim / block][MXA_TILE] of MX formats */
    float *g_k;     /* [MXA_TILE] */
    void *v; /* [channels / COLS][MXA_TILE / 2][COLS][2] bf16, or [channels / COLS][MXA_TILE][COLS] float */
    float *logits; /* [MXA_AVX512_BLOCK][MXA_TILE]; then, as floats, P in their place */
    uint16_t *p;   /* [MXA_AVX512_BLOCK][MXA_TILE] bf16 */
    float *sums;   /* [rows][MXA_AVX512_LANES] sums of P */
} mxa_avx512_work;

/* Some rows, and the keys of the tile that they see between them, in whole groups. */
typedef struct mxa_avx512_block {
    int64_t first; /* row of the item */
    int rows;
    int64_t begin, end;
    mxa_span seen[MXA_AVX512_BLOCK];
    float alpha[MXA_AVX512_BLOCK]; /* what O so far is multiplied with */
} mxa_avx512_block;

/* n in whole groups of MXA_AVX512_COLS. */
static inline int64_t mxa_avx512_groups(int64_t n)
{
    return (n + MXA_AVX512_COLS - 1) / MXA_AVX512_COLS * MXA_AVX512_COLS;
}

/* How a pair of formats is multiplied, bf16 where allowed: kind, sizes, and whether q_scale is wanted. */
mxa_avx512_copy mxa_avx512_copy_of(const mxa_plan *plan, int copy, bool bf16, bool *q_scaled);

/* All rows of the item as a copy has them; the keys of a tile; their V. */
void mxa_avx512_load_q(mxa_avx512_work *w, int copy);
void mxa_avx512_load_k(mxa_avx512_work *w, const mxa_key_tile *t);
void mxa_avx512_load_v(mxa_avx512_work *w, const mxa_key_tile *t);

/* Dot products of the block's rows and keys, as floats: logits. */
void mxa_avx512_multiply_qk(const mxa_avx512_work *w, const mxa_avx512_copy *c, const mxa_avx512_block *b);

/* One step of the online softmax: logits become P, and alpha. */
void mxa_avx512_softmax(mxa_avx512_work *w, const mxa_key_tile *t, mxa_avx512_block *b);

/* O = O alpha + P V */
void mxa_avx512_multiply_pv(const mxa_avx512_work *w, const mxa_avx512_block *b);

#endif
