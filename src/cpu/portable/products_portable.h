/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of a tile in fp32: blocks of up to MXA_ROWS query rows by MXA_COLS columns (keys, or
 * channels of V) that stay in registers. The rows' values are stored once for each lane, so that the inner
 * loop is loads, products and sums. A row's sums are taken in index order whatever the number of rows beside
 * it, so its bits do not depend on it.
 */
#ifndef MXA_CPU_PRODUCTS_PORTABLE_H
#define MXA_CPU_PRODUCTS_PORTABLE_H

#include "cpu/portable/vector_portable.h"

/* 6 x 2 sums, 2 columns and a product fill the 16 registers of SSE2. */
enum { MXA_ROWS = 6, MXA_COLS = 2 * MXA_LANES };

/*
 * sums[r] = sum over i in first..end - 1 of a[i][r] * b[i]
 *
 *   a  [n][MXA_ROWS] lanes all equal
 *   b  [n][2]
 */
__attribute__((always_inline)) static inline void
mxa_block_sums(int rows, int64_t first, int64_t end, const mxa_vec *a, const mxa_vec *b, mxa_vec (*sums)[2])
{
    mxa_vec acc[MXA_ROWS][2];
    for (int r = 0; r < rows; r++)
        acc[r][0] = acc[r][1] = mxa_vec_all(0.0f);
#if !defined(__clang__)
#pragma GCC unroll 2 /* 4 % faster with GCC 12; Clang 14 then spills sums and is slower */
#endif
    for (int64_t i = first; i < end; i++) {
        const mxa_vec b0 = b[2 * i], b1 = b[2 * i + 1];
        for (int r = 0; r < rows; r++) {
            const mxa_vec x = mxa_vec_keep(a[i * MXA_ROWS + r]);
            acc[r][0] += x * b0;
            acc[r][1] += x * b1;
        }
    }
    for (int r = 0; r < rows; r++) {
        sums[r][0] = acc[r][0];
        sums[r][1] = acc[r][1];
    }
}

static inline void mxa_row_sums(int rows, int64_t first, int64_t end, const mxa_vec *a, const mxa_vec *b,
                                mxa_vec (*sums)[2])
{
    switch (rows) {
    case 1: mxa_block_sums(1, first, end, a, b, sums); break;
    case 2: mxa_block_sums(2, first, end, a, b, sums); break;
    case 3: mxa_block_sums(3, first, end, a, b, sums); break;
    case 4: mxa_block_sums(4, first, end, a, b, sums); break;
    case 5: mxa_block_sums(5, first, end, a, b, sums); break;
    default: mxa_block_sums(MXA_ROWS, first, end, a, b, sums); break;
    }
}

/* One row's values in all lanes: a[d][0], where a row has MXA_ROWS columns. */
static inline void mxa_spread_row(const float *x, int64_t dim, mxa_vec *a)
{
    for (int64_t d = 0; d < dim; d++)
        a[d * MXA_ROWS] = mxa_vec_all(x[d]);
}

/* Eight keys' rows, [MXA_COLS][stride], into [dim][MXA_COLS]. */
static inline void mxa_transpose_keys(const float *x, int64_t stride, int64_t dim, float *out)
{
    const int64_t whole = dim & -(int64_t)MXA_LANES;
    for (int half = 0; half < MXA_COLS; half += MXA_LANES) {
        const float *const row = x + half * stride;
        for (int64_t d = 0; d < whole; d += MXA_LANES) {
            const mxa_vec a = mxa_vec_load(row + d), b = mxa_vec_load(row + stride + d);
            const mxa_vec c = mxa_vec_load(row + 2 * stride + d), e = mxa_vec_load(row + 3 * stride + d);
            const mxa_vec ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                          ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
            const mxa_vec ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5),
                          ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
            float *const to = out + d * MXA_COLS + half;
            mxa_vec_store(to, __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5));
            mxa_vec_store(to + MXA_COLS, __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7));
            mxa_vec_store(to + 2 * MXA_COLS, __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5));
            mxa_vec_store(to + 3 * MXA_COLS, __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7));
        }
        for (int64_t d = whole; d < dim; d++)
            for (int lane = 0; lane < MXA_LANES; lane++)
                out[d * MXA_COLS + half + lane] = row[lane * stride + d];
    }
}

#endif
