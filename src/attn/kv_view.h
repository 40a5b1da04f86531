/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a KV cache lies in memory, for whoever fills or reads it: what a page holds, and the pages of a
 * sequence by number (docs/cache.md draws a page to the byte).
 */
#ifndef MXA_ATTN_KV_VIEW_H
#define MXA_ATTN_KV_VIEW_H

#include "attn/plan.h"

enum { MXA_KV_K = 0, MXA_KV_V = 1, MXA_KV_OPERANDS = 2 };

/* K or V in the pages of one copy: offsets in bytes from the record of a head, rows of all its tokens. */
typedef struct mxa_kv_part {
    mxa_copy_plan copy; /* info NULL: pages of this copy do not hold it */
    int64_t dim, row_bytes, scale_cols;
    int64_t codes, scales, g; /* [page_tokens][row_bytes], [page_tokens][scale_cols], [page_tokens] fp32 */
} mxa_kv_part;

/* A page is [heads_kv][head_bytes]; its kind is the copy that it holds: MXA_LOW or MXA_HIGH. */
typedef struct mxa_kv_layout {
    int64_t heads_kv, page_tokens;
    mxa_kv_part part[MXA_COPIES][MXA_KV_OPERANDS];
    int64_t head_bytes[MXA_COPIES], page_bytes[MXA_COPIES]; /* 0: there are no pages of this copy */
    int64_t sink_end;   /* keys before it keep their high rows: whole tiles */
    int64_t unread_end; /* keys before it are high for every query that sees them, whatever its window */
    mxa_pv pv;          /* F16 or BF16 */
} mxa_kv_layout;

typedef struct mxa_kv_sequence {
    int64_t length;
    const int32_t *table[MXA_COPIES]; /* page numbers by token / page_tokens; -1: none */
    const float *mean;                /* [heads_kv][head_dim] of smooth-K, or NULL */
} mxa_kv_sequence;

typedef struct mxa_kv_view {
    const mxa_kv_layout *layout;
    const mxa_kv_sequence *sequences;
    uint8_t *const *pages[MXA_COPIES]; /* memory by page number */
    const float *g_v; /* [heads_kv][head_dim_v] factors of the channels of V's low rows, or NULL */
} mxa_kv_view;

/* Rows that lie one after another. */
typedef struct mxa_kv_rows {
    const mxa_kv_part *part;
    uint8_t *codes, *scales;
    float *g;
    int64_t n;
} mxa_kv_rows;

/* The rows of a head from token first on, at most up to end, that share a page. */
static inline mxa_kv_rows mxa_kv_rows_at(const mxa_kv_view *view, int copy, int operand,
                                         const mxa_kv_sequence *s, int64_t head, int64_t first, int64_t end)
{
    const mxa_kv_layout *const l = view->layout;
    const mxa_kv_part *const part = &l->part[copy][operand];
    const int64_t page = first / l->page_tokens, row = first % l->page_tokens;
    uint8_t *const record = view->pages[copy][s->table[copy][page]] + head * l->head_bytes[copy];
    return (mxa_kv_rows){
        .part = part,
        .codes = record + part->codes + row * part->row_bytes,
        .scales = part->scale_cols ? record + part->scales + row * part->scale_cols : NULL,
        .g = part->copy.level == MXA_LEVEL_TOKEN ? (float *)(void *)(record + part->g) + row : NULL,
        .n = mxa_min(end, (page + 1) * l->page_tokens) - first,
    };
}

/* Those of a head's V; NULL where there are none. */
static inline const float *mxa_kv_channels_g(const mxa_kv_view *view, int copy, int64_t head)
{
    const int64_t dim = view->layout->part[MXA_LOW][MXA_KV_V].dim;
    return copy == MXA_LOW && view->g_v ? view->g_v + head * dim : NULL;
}

/* Which copy of V meets the probabilities of a tile whose keys have this copy. */
static inline int mxa_kv_v_copy(const mxa_kv_layout *l, int copy)
{
    return l->part[copy][MXA_KV_V].copy.info ? copy : MXA_LOW;
}

/* A row that no tile reads, since the same token's high row is never given back: it is stored as zeros. */
static inline bool mxa_kv_is_unread(const mxa_kv_layout *l, int copy, int operand, int64_t token)
{
    return copy == MXA_LOW && l->part[MXA_HIGH][operand].copy.info && token < l->unread_end;
}

#endif
