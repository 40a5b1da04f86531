/* SPDX-License-Identifier: Apache-2.0 */
/* A checked problem: what is computed and in which order, without hardware. The backend adds its choice. */
#ifndef MXA_ATTN_PLAN_H
#define MXA_ATTN_PLAN_H

#include "attn/recipe.h"
#include "attn/tile_map.h"

/* The largest head_dim and head_dim_v. */
enum { MXA_DIM_MAX = 256 };

/* The two copies of an operand. */
enum { MXA_LOW = 0, MXA_HIGH = 1, MXA_COPIES = 2 };

/* One copy of Q or K: which format it has and what is done to a row before it is rounded. */
typedef struct mxa_copy_plan {
    const mxa_format_info *info; /* NULL: no tile reads this copy */
    mxa_rule rule;
    mxa_level level;
    bool smooth; /* the mean is subtracted first */
    bool rotate;
    bool stored; /* false: a plain copy, the tensor's rows rounded on load */
} mxa_copy_plan;

/*
 * One sequence: a batch item, or a part of packed tensors. Copies hold the rows of matrix (sequence, head)
 * one after another, from row q_rows + head * q_len (k_rows + head * kv_len) on; TOKEN_BLOCK factors
 * likewise.
 */
typedef struct mxa_sequence {
    mxa_tile_map map;
    int64_t batch;            /* in the tensors */
    int64_t q_first, k_first; /* row of the tensors where it begins */
    int64_t q_rows, k_rows;
    int64_t q_blocks, k_blocks;
} mxa_sequence;

/* A unit of work for each query head. */
typedef struct mxa_query_tile {
    int64_t sequence, tile;
    int64_t cost; /* query-key pairs */
} mxa_query_tile;

struct mxa_attention_impl;

struct mxa_plan {
    mxa_problem problem; /* as given, without cu_seqlens */
    mxa_recipe recipe;
    mxa_pv pv; /* F16 or BF16 */
    bool packed;
    int64_t q_used, k_used; /* rows of the tensors that sequences cover (packed), or q_len and kv_len */
    int64_t q_rows, k_rows, q_blocks, k_blocks;
    mxa_copy_plan q[MXA_COPIES], k[MXA_COPIES];

    int64_t n_sequences;
    mxa_sequence *sequences;
    int64_t n_tiles;
    mxa_query_tile *tiles; /* longest first */

    const struct mxa_attention_impl *impl;
    int threads;
    int64_t item_heads; /* query heads of one key/value head that a kernel takes at once */
    int64_t item_rows;  /* the most rows that these have in a query tile */
    int64_t head_items; /* items that a query tile makes of all its heads */
    size_t work_bytes;

    void *backend; /* of a CUDA device: what its backend keeps with the plan, freed by backend_free */
    void (*backend_free)(void *backend);
};

/* Check the numbers of a problem; device and recipe aside. */
mxa_status mxa_problem_check(const mxa_problem *problem);

/* Check and build all but the backend's part. On failure *plan stays as it is. */
mxa_status mxa_plan_build(const mxa_problem *problem, const mxa_recipe *recipe, mxa_plan **plan);

/* The map of sequence b of a checked problem. recipe NULL: no high tiles. */
mxa_tile_map mxa_problem_map(const mxa_problem *problem, const mxa_recipe *recipe, int64_t b);

/* Positions and rows of a query tile that the call holds. */
static inline mxa_span mxa_tile_rows(const mxa_sequence *s, int64_t tile)
{
    const int64_t first = tile * MXA_TILE - s->map.q_offset;
    const mxa_span rows = { mxa_max(first, 0), mxa_min(first + MXA_TILE, s->map.q_len) };
    return rows;
}

static inline bool mxa_plan_smooths(const mxa_plan *plan)
{
    return plan->k[MXA_LOW].smooth || plan->k[MXA_HIGH].smooth;
}

#endif
