/* SPDX-License-Identifier: Apache-2.0 */
/* The 128 rows that a block of threads works on, and what is numbered by them. */
#ifndef MXA_CUDA_SPAN_CUDA_CUH
#define MXA_CUDA_SPAN_CUDA_CUH

#include "cuda/quantize_cuda.h"

namespace mxa
{

constexpr int64_t max_blocks = INT64_C(1) << 31; /* of a launch, less one */

struct Span {
    int64_t b, h;        /* in the tensor */
    int64_t sequence;    /* or batch */
    int64_t matrix;      /* sequence * heads + h */
    int64_t first;       /* of the matrix's rows */
    int64_t tensor_row;  /* of the first row */
    int64_t row, block;  /* numbers among all rows and blocks of 128 rows */
    int64_t matrix_rows; /* all rows of the matrix */
    int rows;            /* at most MXA_TILE */
};

__device__ __forceinline__ int64_t first_block(const mxa_cuda_rows &r, int64_t sequence)
{
    return r.of_k ? r.sequences[sequence].k_blocks : r.sequences[sequence].q_blocks;
}

/* The last sequence that does not begin behind the block: the ones before it at the same block are empty. */
__device__ inline int64_t sequence_of(const mxa_cuda_rows &r, int64_t block)
{
    int64_t low = 0, high = r.n_sequences - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (first_block(r, middle) <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* block counts the blocks of all sequences and heads, fewer than 2^31. */
__device__ inline Span find_span(const mxa_cuda_rows &r, uint32_t block)
{
    const uint32_t heads = uint32_t(r.x.shape[1]);
    Span s;
    s.block = block;
    if (r.sequences) {
        s.sequence = sequence_of(r, block);
        const mxa_sequence &q = r.sequences[s.sequence];
        s.matrix_rows = r.of_k ? q.map.kv_len : q.map.q_len;
        const uint32_t per_matrix = uint32_t((s.matrix_rows + MXA_TILE - 1) / MXA_TILE);
        const uint32_t own = block - uint32_t(first_block(r, s.sequence));
        s.b = q.batch;
        s.h = own / per_matrix;
        s.matrix = s.sequence * heads + s.h;
        s.first = int64_t(own % per_matrix) * MXA_TILE;
        s.tensor_row = (r.of_k ? q.k_first : q.q_first) + s.first;
        s.row = (r.of_k ? q.k_rows : q.q_rows) + s.h * s.matrix_rows + s.first;
    } else {
        s.matrix_rows = r.x.shape[2];
        const uint32_t per_matrix = uint32_t((s.matrix_rows + MXA_TILE - 1) / MXA_TILE);
        const uint32_t matrix = block / per_matrix;
        s.b = s.sequence = matrix / heads;
        s.h = matrix % heads;
        s.matrix = matrix;
        s.first = int64_t(block % per_matrix) * MXA_TILE;
        s.tensor_row = s.first;
        s.row = s.matrix * s.matrix_rows + s.first;
    }
    s.rows = int(s.matrix_rows - s.first < MXA_TILE ? s.matrix_rows - s.first : MXA_TILE);
    return s;
}

/* Where row i of the span has its factor. */
__device__ __forceinline__ int64_t factor_index(mxa_level level, const Span &s, int i)
{
    switch (level) {
    case MXA_LEVEL_TOKEN: return s.row + i;
    case MXA_LEVEL_TOKEN_BLOCK: return s.block;
    case MXA_LEVEL_HEAD: return s.matrix;
    default: return 0;
    }
}

__device__ __forceinline__ int64_t row_offset(const mxa_tensor &x, const Span &s, int i)
{
    return s.b * x.stride[0] + s.h * x.stride[1] + (s.tensor_row + i) * x.stride[2];
}

} // namespace mxa

#endif
