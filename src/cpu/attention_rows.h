/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of one item while tiled kernels work on them: their online softmax and output, which keys they
 * see, and what becomes of them at the end. Where Inf or NaN of V reach a result, the item is computed again
 * by the kernel's careful path, which keeps them apart (docs/numerics.md, section 8). A row that NaN, or a
 * number beyond fp32, leaves without a result goes to the reference, which tells the two apart.
 */
#ifndef MXA_CPU_ATTENTION_ROWS_H
#define MXA_CPU_ATTENTION_ROWS_H

#include "cpu/attention_cpu.h"

typedef struct mxa_item_rows mxa_item_rows;

/* O / l of a row, O where l is 0, into row [channels]; false if one of them is Inf or NaN. */
typedef bool mxa_divide_row_fn(const mxa_item_rows *w, int64_t row);

/* The rows are those of head h, then of the next head, and so on. */
struct mxa_item_rows {
    const mxa_attention_job *job;
    const mxa_sequence *s;
    int64_t h, h_kv, tile;
    mxa_span rows;        /* of the sequence, in each head */
    int64_t head_rows, n; /* rows of a head, and of all heads */
    int64_t dim_v;
    bool careful;

    int64_t channels;  /* dim_v padded as the kernel wants it */
    float *o;          /* [n][channels]; NULL: the kernel has it elsewhere, and a divide of its own */
    float *max, *sum;  /* [n] largest logit in base 2, sum of 2^(logit - max) */
    float *nonfinite;  /* [n][channels]: visible Inf and NaN of V, summed */
    bool *v_nonfinite; /* [MXA_TILE]: the careful path took Inf or NaN out of this key's V */
    float *row;        /* [channels] */
    mxa_divide_row_fn
        *divide; /* for kernels with an O of their own, which mxa_item_begin then does not clear */
};

/* One key tile: its keys that some row of the query tile sees, counted from the tile's first. */
typedef struct mxa_key_tile {
    int64_t first; /* key 0 of the tile */
    int64_t begin, end;
    int copy;
} mxa_key_tile;

/* Which rows an item has. The kernel sets channels and the memory, then begins. */
mxa_item_rows mxa_item_rows_of(const mxa_attention_job *job, const mxa_attention_item *item);
void mxa_item_begin(const mxa_item_rows *w);

/* Keys that some row sees, and those of one key tile among them. */
mxa_span mxa_item_keys(const mxa_item_rows *w);
mxa_key_tile mxa_item_key_tile(const mxa_item_rows *w, mxa_span keys, int64_t k_tile);

/* Keys of the tile that one row sees. */
mxa_span mxa_item_seen(const mxa_item_rows *w, const mxa_key_tile *t, int64_t row);

/*
 * Careful path: add Inf and NaN of V that a row sees. logits [MXA_TILE] of the row; one of -Inf counts as
 * masked, unless it only is beyond fp32: the reference decides.
 */
void mxa_item_collect(const mxa_item_rows *w, const mxa_key_tile *t, int64_t row, const float *logits);

/*
 * Store the rows that have a result, and mark them in stored [n]. False, before all are stored, if the
 * careful path has to do them again.
 */
bool mxa_item_end(const mxa_item_rows *w, bool *stored);

/* Rows that are not stored. The scratch is free by now, and large enough for the reference. */
void mxa_item_leave_to_reference(const mxa_item_rows *w, const bool *stored, void *scratch);

#endif
