/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quantize_pieces with everything about the format known to the compiler. A small block of threads goes over
 * the rows of a tile: the next ones are loaded while these are coded.
 */
#ifndef MXA_CUDA_QUANTIZE_HOT_CUH
#define MXA_CUDA_QUANTIZE_HOT_CUH

#include "cuda/quantize_bias.cuh"
#include "cuda/quantize_store.cuh"

namespace mxa
{

enum class Code { none, int8, fp8, mxfp4, mxfp8, mxfp4_e5m2, int8_bf16, mxfp4_bf16 };

/* Copies of Q may come with smooth-K's bias. */
MXA_HD constexpr bool may_have_bias(Code first, Code second)
{
    return first == Code::int8 || first == Code::fp8 || first == Code::int8_bf16 || second != Code::none;
}

constexpr int small_block = 128; /* threads */
/* Leaves 80 registers to each thread: the next piece is in 16 of them. */
constexpr int small_blocks_per_sm = 6;

/* The rows of this block: x counts them in the matrix, y heads, z batches. block_rows divides a tile. */
__device__ __forceinline__ Span grid_span(const mxa_cuda_rows &r, int block_rows)
{
    const int64_t length = r.x.shape[2];
    Span s;
    s.b = s.sequence = blockIdx.z;
    s.h = blockIdx.y;
    s.matrix = s.b * r.x.shape[1] + s.h;
    s.first = s.tensor_row = int64_t(blockIdx.x) * block_rows;
    s.row = s.matrix * length + s.first;
    s.block = s.matrix * ((length + MXA_TILE - 1) / MXA_TILE) + s.first / MXA_TILE;
    s.matrix_rows = length;
    s.rows = int(mxa_min(length - s.first, block_rows));
    return s;
}

/* From the span's first row to a thread's channels, in elements; of the last row where there is none. */
__device__ __forceinline__ int small_offset(const mxa_tensor &t, const Span &s, int row, int lane)
{
    return min(row, s.rows - 1) * int(t.stride[2]) + lane * piece;
}

template <int lanes>
__device__ __forceinline__ void widen_as(mxa_dtype dtype, const RawPiece &raw, Piece<lanes> &v)
{
    if (dtype == MXA_DTYPE_BF16)
        widen<true>(raw, v.x);
    else
        widen<false>(raw, v.x);
}

template <Code code, int lanes>
__device__ __forceinline__ void code_copy(const QuantParams &p, const QuantCopy &c, const RowsOut &out,
                                          const Span &s, const Piece<lanes> &v, Shared<lanes> &shared)
{
    __builtin_assume(c.layout == MXA_LAYOUT_ROW);
    int n_bad = 0;
    if constexpr (code == Code::mxfp4) {
        n_bad = code_mxfp4<lanes, false>(c, out, s, v);
    } else if constexpr (code == Code::mxfp8) {
        n_bad = code_mxfp8<lanes, __NV_E4M3>(c, out, s, v);
    } else if constexpr (code == Code::mxfp4_bf16) {
        __builtin_assume(c.format == MXA_FORMAT_MXFP4);
        n_bad = code_mx_decoded(c, out, v);
    } else {
        __builtin_assume(c.level != MXA_LEVEL_TOKEN_BLOCK || c.g_read);
        const float g = row_factor(c, p.rows.x, s, v, shared);
        if constexpr (code == Code::int8_bf16)
            n_bad = code_elements_decoded<lanes, true, true>(c, out, v, g);
        else
            n_bad = code_elements<lanes, code == Code::int8>(c, out, v, g);
        write_factor(c, s, v, g);
    }
    report_nonfinite(c, s, v, n_bad);
}

/* Groups of rows one after another; the next one is loaded while this one is coded. */
template <int lanes, Code first, Code second>
__global__ void __launch_bounds__(small_block, small_blocks_per_sm)
    quantize_rows(const __grid_constant__ QuantParams p, int block_rows)
{
    constexpr int group_rows = small_block / lanes;
    __shared__ Shared<lanes> shared;
    const mxa_tensor &t = p.rows.x;
    const bool with_bias = may_have_bias(first, second) && p.bias.bias, in_fp32 = with_bias && p.bias.in_fp32;
    const Span s = grid_span(p.rows, block_rows);
    const uint16_t *const rows = static_cast<const uint16_t *>(t.data) + row_offset(t, s, 0);
    const RowsOut out = rows_out(p.copies[0], s), out2 = rows_out(p.copies[1], s);
    Piece<lanes> v;
    place_piece(s, v);
    RawPiece raw = load_raw(rows + small_offset(t, s, v.row, v.lane));
    begin_link(p.awaits);
    if (p.copies[0].mean || with_bias) {
        load_mean(p.copies[0], s, piece * lanes, shared);
        if (with_bias)
            load_bias_mean(p, s, shared);
        __syncthreads();
    }
#pragma unroll 1
    for (int group = 0; group < s.rows; group += group_rows) {
        widen_as(t.dtype, raw, v);
        if (group + group_rows < s.rows)
            raw = load_raw(rows + small_offset(t, s, v.row + group_rows, v.lane));
        v.live = v.upper = v.row < s.rows;
        float dot = 0.0f;
        if (in_fp32)
            dot = partial_dot_fp32(v, shared);
        else if (with_bias)
            shared.dot[threadIdx.x] = partial_dot<true>(v, shared);
        prepare_piece<lanes, true>(p.copies[0], shared, piece * lanes, v);
        if (in_fp32)
            store_bias_fp32(p, s, v, dot);
        else if (with_bias)
            store_bias(p, s, v, shared);
        code_copy<first>(p, p.copies[0], out, s, v, shared);
        if constexpr (second != Code::none)
            code_copy<second>(p, p.copies[1], out2, s, v, shared);
        v.row += group_rows;
    }
    end_link();
}

} // namespace mxa

#endif
