/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of a block share while each works on its piece: means, maxima, a row's factor. */
#ifndef MXA_CUDA_QUANTIZE_ROWS_CUH
#define MXA_CUDA_QUANTIZE_ROWS_CUH

#include "cuda/quantize_piece.cuh"
#include "format/second_level.h"

namespace mxa
{

constexpr int threads_per_sm = 1024; /* leaves 64 registers to each */

/* x and what is known of it. */
template <int lanes>
struct Piece {
    float x[piece];
    uint32_t amax; /* bits of the largest magnitude; of NaN or Inf if there is one; 0 if not live */
    int row, lane;
    bool live;  /* there is such a row and it has these channels; else x is that of another one, or 0 */
    bool upper; /* and it has the upper half of them */
};

/* Rows of lanes start on different banks. */
template <int lanes>
struct Shared {
    float mean[lanes][piece + 4];       /* that copies subtract */
    double bias_mean[lanes][piece + 2]; /* of smooth-K, times mean_scale */
    float bias_mean_fp32[lanes][piece + 4];
    double dot[MXA_TILE * lanes]; /* of each thread, kept while its channels are rotated */
    uint32_t warp_max[MXA_TILE * lanes / warp_lanes];
};

template <int lanes>
__device__ __forceinline__ void place_piece(const Span &s, Piece<lanes> &v)
{
    v.row = threadIdx.x / lanes;
    v.lane = threadIdx.x % lanes;
    v.live = v.upper = v.row < s.rows;
}

/* Rows of dim channels, a multiple of a half piece. */
template <int lanes>
__device__ __forceinline__ void end_row(int dim, Piece<lanes> &v)
{
    v.live = v.live && v.lane * piece < dim;
    v.upper = v.live && v.lane * piece + piece / 2 < dim;
}

/* The mean of the span's head to shared memory, zeros past its end; a barrier has to follow. */
template <int lanes>
__device__ __forceinline__ void load_mean(const QuantCopy &c, const Span &s, int dim, Shared<lanes> &shared)
{
    for (int d = threadIdx.x; c.mean && d < piece * lanes; d += blockDim.x)
        shared.mean[d / piece][d % piece] = d < dim ? c.mean[s.matrix * dim + d] : 0.0f;
}

/* By the largest power of two that divides dim: 16, 32 or 64 where rows are not whole. */
template <int lanes, bool whole>
__device__ __forceinline__ void rotate_row(int dim, Piece<lanes> &v)
{
    if (whole)
        rotate_piece<piece * lanes>(v.lane, v.x);
    else if (dim % 64 == 0)
        rotate_piece<64>(v.lane, v.x);
    else if (dim % 32 == 0)
        rotate_piece<32>(v.lane, v.x);
    else
        rotate_piece<16>(v.lane, v.x);
}

/* From what was loaded to what copy c is coded from. whole: rows have piece * lanes channels. */
template <int lanes, bool whole>
__device__ __forceinline__ void prepare_piece(const QuantCopy &c, const Shared<lanes> &shared, int dim,
                                              Piece<lanes> &v)
{
    if (c.mean)
        subtract_mean(shared.mean[v.lane], v.x);
    if (c.rotate)
        rotate_row<lanes, whole>(dim, v);
    v.amax = v.live ? largest_bits(v.x, 0, piece) : 0;
}

/* The largest v of all threads. */
template <int lanes>
__device__ __forceinline__ uint32_t block_max(Shared<lanes> &shared, uint32_t v)
{
    const int warps = blockDim.x / warp_lanes;
    const uint32_t own = __reduce_max_sync(0xFFFFFFFFu, v);
    __syncthreads(); /* all have read the last maximum */
    if (threadIdx.x % warp_lanes == 0)
        shared.warp_max[threadIdx.x / warp_lanes] = own;
    __syncthreads();
    const int other = threadIdx.x % warp_lanes % warps;
    return __reduce_max_sync(0xFFFFFFFFu, shared.warp_max[other]);
}

template <int lanes>
__device__ __forceinline__ uint32_t row_max(uint32_t v)
{
#pragma unroll
    for (int s = 1; s < lanes; s *= 2)
        v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, s));
    return v;
}

template <int lanes>
__device__ __forceinline__ float row_factor(const QuantCopy &c, const mxa_tensor &tensor, const Span &s,
                                            const Piece<lanes> &v, Shared<lanes> &shared)
{
    if (c.level == MXA_LEVEL_NONE)
        return 1.0f;
    if (c.g_read) {
        if (!v.live)
            return 1.0f;
        return c.g_read[read_index(c, tensor, s, v.row)];
    }
    uint32_t amax = row_max<lanes>(largest_finite_bits(v.x, v.amax));
    if (c.level == MXA_LEVEL_TOKEN_BLOCK)
        amax = block_max(shared, amax);
    return mxa_second_level(c.divisor, c.nvfp4, __uint_as_float(amax));
}

template <int lanes>
__device__ __forceinline__ void write_factor(const QuantCopy &c, const Span &s, const Piece<lanes> &v,
                                             float g)
{
    if (c.g_write && v.live && v.lane == 0 && writes_factor(c, s, v.row))
        c.g_write[factor_index(c.write_level, s, v.row)] = g;
}

} // namespace mxa

#endif
