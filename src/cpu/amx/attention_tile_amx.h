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

/*
 * Two blocks of 32 rows take turns: while one is in the softmax, tiles multiply for the other. Their rows lie
 * side by side, one block's in the odd places, since loads wait for an older store whose address has the
 * same last 12 bits, and sums of tiles are stored late: a stride of 1 KB keeps the one block's loads apart
 * from the other's stores.
 */
enum { MXA_AMX_PLACES = 2, MXA_AMX_GROUP = MXA_AMX_PLACES * MXA_AMX_BLOCK };

/* Key tiles that a group of rows takes one after the other: O comes once for all, K and V stay in L2. */
enum { MXA_AMX_CHUNK = 8 };

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

/* What is known of a key tile before its rows are. */
typedef struct mxa_amx_tile {
    mxa_key_tile t;
    const mxa_amx_copy *copy;
    const uint8_t *k, *v;
    const float *g_k;
    bool scaled; /* one of g_k is not 1 */
    bool whole;  /* all rows see all keys */
} mxa_amx_tile;

/* Rows are those of the item in whole groups. */
typedef struct mxa_amx_work {
    mxa_item_rows item; /* its sum holds what a sink adds; o is below */
    mxa_amx_copy copy[MXA_COPIES];
    mxa_amx_load load;
    float *o; /* [rows / MXA_AMX_GROUP][MXA_AMX_BLOCK][MXA_AMX_PLACES][o_row] */
    int64_t o_row;
    float *lanes; /* [rows][MXA_AVX512_LANES] the row's sum of P, lane by lane */
    uint8_t *v;   /* the careful path's V of a key tile */

    float *dots;   /* [MXA_AMX_BLOCK][MXA_AMX_PLACES][MXA_TILE] sums, int32_t where the copy is of integers */
    uint16_t *p;   /* [MXA_AMX_BLOCK][MXA_AMX_PLACES][MXA_TILE] bf16 */
    float *logits; /* [MXA_TILE] of one row */
} mxa_amx_work;

static inline float *mxa_amx_o(const mxa_amx_work *w, int64_t row)
{
    const int64_t block = row / MXA_AMX_BLOCK, in_group = row % MXA_AMX_BLOCK * MXA_AMX_PLACES;
    return w->o + (block / MXA_AMX_PLACES * MXA_AMX_GROUP + in_group + block % MXA_AMX_PLACES) * w->o_row;
}

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

/* Take the keys of some tiles, one after the other, into all rows. */
void mxa_amx_add_tiles(const mxa_amx_work *w, const mxa_amx_tile *tiles, int64_t n);

#endif
