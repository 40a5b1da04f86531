/* SPDX-License-Identifier: Apache-2.0 */
/* How work on a tensor is divided: an item is 128 tokens of one (batch, head) matrix. */
#ifndef MXA_CPU_ROW_ITEMS_H
#define MXA_CPU_ROW_ITEMS_H

#include <omp.h>

#include "format/scale_layout.h"

#define MXA_ITEM_TOKENS  128 /* of a TOKEN_BLOCK, and of an entry of nonfinite_tiles */
#define MXA_CHUNK_ROWS   16  /* rows that go through the caches together where they need no others */
#define MXA_SCRATCH_UNIT 64  /* bytes of a cache line: parts of scratch start on one */

/* Tokens [first, first + rows) of matrix (b, h). */
typedef struct mxa_row_span {
    int64_t b, h, matrix, first, rows;
} mxa_row_span;

static inline int64_t mxa_items_per_matrix(const int64_t shape[4])
{
    return (shape[2] + MXA_ITEM_TOKENS - 1) / MXA_ITEM_TOKENS;
}

static inline int64_t mxa_item_count(const int64_t shape[4])
{
    return shape[0] * shape[1] * mxa_items_per_matrix(shape);
}

static inline mxa_row_span mxa_item_span(const int64_t shape[4], int64_t item)
{
    const int64_t per_matrix = mxa_items_per_matrix(shape), matrix = item / per_matrix;
    const int64_t first = item % per_matrix * MXA_ITEM_TOKENS, left = shape[2] - first;
    const mxa_row_span span = { matrix / shape[1], matrix % shape[1], matrix, first,
                                left < MXA_ITEM_TOKENS ? left : MXA_ITEM_TOKENS };
    return span;
}

/* *head takes the first n rows or fewer of span; returns the rest. */
static inline mxa_row_span mxa_span_split(mxa_row_span span, int64_t n, mxa_row_span *head)
{
    *head = span;
    head->rows = span.rows < n ? span.rows : n;
    span.first += head->rows;
    span.rows -= head->rows;
    return span;
}

/* Threads for that many items; asked 0: as OpenMP decides. */
static inline int mxa_token_threads(int asked, int64_t items)
{
    const int threads = asked > 0 ? asked : omp_get_max_threads();
    return items < threads ? items < 1 ? 1 : (int)items : threads;
}

/* Bytes of an item's rows as fp32; shape is small enough that scratch bytes were found to fit. */
static inline int64_t mxa_item_bytes(const int64_t shape[4])
{
    const int64_t rows = shape[2] < MXA_ITEM_TOKENS ? shape[2] : MXA_ITEM_TOKENS;
    return mxa_round_up(rows * shape[3] * (int64_t)sizeof(float), MXA_SCRATCH_UNIT);
}

#endif
