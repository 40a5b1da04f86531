/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the AMX attention share: one item's scratch. */
#ifndef MXA_CPU_AMX_ATTENTION_TILE_AMX_H
#define MXA_CPU_AMX_ATTENTION_TILE_AMX_H

#include "cpu/amx/tiles_amx.h"
#include "cpu/attention_rows.h"
#include "cpu/avx512/vector_avx512.h"

/* How a copy's Q and K are multiplied: INT8 by INT8 as integers, everything else as bf16. */
typedef struct mxa_amx_copy {
    bool integers;
    int64_t row_bytes; /* of Q and K, padded with zeros to whole rows of a tile */
    uint8_t *q;        /* [rows][row_bytes] */
    float *factor;     /* [rows] scale and g_q, in base 2 unless there is a softcap */
    float *bias;       /* [rows] in the same units */
    bool loaded;
} mxa_amx_copy;

/*
 * P and O carry this power of two, so that what tiles flush, below 2^-126, is nothing beside any product of P
 * with a normal number of V.
 */
#define MXA_AMX_P_LOG2  60.0f
#define MXA_AMX_P_SCALE 0x1p60f

/* A key tile as all items read it; keys beyond the sequence are zero. */
typedef struct mxa_amx_keys {
    uint8_t *k[MXA_COPIES]; /* [MXA_TILE / 16][row_bytes / 64] tiles */
    float *g_k[MXA_COPIES]; /* [MXA_TILE] NaN for keys that tiles do not hold */
    uint8_t *v;             /* [channels / 16][MXA_AMX_KEY_STEPS] tiles */
} mxa_amx_keys;

/* Memory for rows on their way into tiles. */
typedef struct mxa_amx_load {
    uint8_t *raw;     /* [MXA_TILE][row_bytes] */
    float *wide;      /* [MXA_TILE][head_dim] */
    uint16_t *v_rows; /* [2][channels] */
} mxa_amx_load;

/* Rows are those of the item in whole blocks. Parts with two places serve two blocks at a time. */
typedef struct mxa_amx_work {
    mxa_item_rows item; /* its sum holds what a sink adds; its o has whole blocks of rows */
    mxa_amx_copy copy[MXA_COPIES];
    mxa_amx_load load;
    float *lanes; /* [rows][MXA_AVX512_LANES] the row's sum of P, lane by lane */
    uint8_t *v;   /* the careful path's V of a key tile */

    mxa_amx_keys keys; /* of the present key tile */
    const uint8_t *k;  /* of its copy */
    const float *g_k;
    bool scaled; /* one of g_k is not 1 */

    float *dots[2]; /* [MXA_AMX_BLOCK][MXA_TILE] sums of products, int32_t where the copy is of integers */
    uint16_t *p[2]; /* [MXA_AMX_BLOCK][MXA_TILE] bf16 */
    float *logits;  /* [MXA_TILE] of one row */
} mxa_amx_work;

/* n in whole units. */
static inline int64_t mxa_amx_whole(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static inline int64_t mxa_amx_channels(const mxa_plan *plan)
{
    return mxa_amx_whole(plan->problem.head_dim_v, MXA_AMX_BLOCK);
}

/* The next part of some memory; NULL where only sizes are wanted. */
static inline void *mxa_amx_carve(char *base, int64_t *used, int64_t bytes)
{
    enum { ALIGNMENT = 64 };
    void *const part = base ? base + *used : NULL;
    *used += mxa_amx_whole(bytes, ALIGNMENT);
    return part;
}

/* How a pair of formats is multiplied: integers and row_bytes. */
mxa_amx_copy mxa_amx_copy_of(const mxa_plan *plan, int copy);

/* Lay out the parts; their size. */
int64_t mxa_amx_place_keys(mxa_amx_keys *keys, const mxa_plan *plan, char *base);
int64_t mxa_amx_place_load(mxa_amx_load *load, const mxa_plan *plan, char *base);

/* All rows of the item as a copy has them. */
void mxa_amx_load_q(mxa_amx_work *w, int copy);

/* V of a key tile without its Inf and NaN, whose keys the item then knows. */
void mxa_amx_load_careful_v(mxa_amx_work *w, const mxa_key_tile *t);

/* Take the tile's keys into all rows. */
void mxa_amx_add_tile(mxa_amx_work *w, const mxa_key_tile *t);

#endif
