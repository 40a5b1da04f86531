/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies whose 128 rows of a tile share a factor that is computed: INT8 at level TOKEN_BLOCK, MXFP4 folded
 * into E5M2. Half of the rows stay in registers until the factor is known, the others wait in shared memory.
 */
#ifndef MXA_CUDA_QUANTIZE_TILE_CUH
#define MXA_CUDA_QUANTIZE_TILE_CUH

#include "cuda/quantize_hot.cuh"

namespace mxa
{

template <int lanes>
constexpr int tile_block = MXA_TILE / 2 * lanes;

/* [piece / 4][threads]: no two threads of an access meet in a bank. */
extern __shared__ float4 stash[];

template <int lanes>
__device__ __forceinline__ void put_aside(const Piece<lanes> &v)
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++)
        stash[i * tile_block<lanes> + threadIdx.x] =
            make_float4(v.x[4 * i], v.x[4 * i + 1], v.x[4 * i + 2], v.x[4 * i + 3]);
}

template <int lanes>
__device__ __forceinline__ void take_back(Piece<lanes> &v)
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        const float4 f = stash[i * tile_block<lanes> + threadIdx.x];
        v.x[4 * i] = f.x;
        v.x[4 * i + 1] = f.y;
        v.x[4 * i + 2] = f.z;
        v.x[4 * i + 3] = f.w;
    }
}

/* What the tile's factor is made of. */
template <Code code, int lanes>
__device__ __forceinline__ int tile_part(const QuantCopy &c, const Piece<lanes> &v)
{
    if constexpr (code == Code::mxfp4_e5m2)
        return piece_exponent(c, v);
    else
        return int(largest_finite_bits(v.x, v.amax));
}

template <Code code, int lanes>
__device__ __forceinline__ void code_with(const QuantCopy &c, const RowsOut &out, const Span &s,
                                          const Piece<lanes> &v, int exponent, float g)
{
    int n_bad;
    if constexpr (code == Code::mxfp4_e5m2)
        n_bad = code_folded<lanes, __NV_E5M2, false>(c, out, v, exponent);
    else
        n_bad = code_elements<lanes, true>(c, out, v, g);
    write_factor(c, s, v, g);
    report_nonfinite(c, s, v, n_bad);
}

template <int lanes, Code code>
__global__ void __launch_bounds__(tile_block<lanes>, small_block *small_blocks_per_sm / tile_block<lanes>)
    quantize_tile(const __grid_constant__ QuantParams p)
{
    __shared__ Shared<lanes> shared;
    const mxa_tensor &t = p.rows.x;
    const QuantCopy &c = p.copies[0];
    const Span s = grid_span(p.rows, MXA_TILE);
    const uint16_t *const rows = static_cast<const uint16_t *>(t.data) + row_offset(t, s, 0);
    const RowsOut out = rows_out(c, s);
    Piece<lanes> v;
    place_piece(s, v);
    const RawPiece upper = load_raw(rows + small_offset(t, s, v.row, v.lane));
    const RawPiece lower = load_raw(rows + small_offset(t, s, v.row + MXA_TILE / 2, v.lane));
    begin_link(p.awaits);
    if (c.mean) {
        load_mean(c, s, piece * lanes, shared);
        __syncthreads();
    }
    widen_as(t.dtype, upper, v);
    prepare_piece<lanes, true>(c, shared, piece * lanes, v);
    const uint32_t upper_amax = v.amax;
    const int upper_part = tile_part<code>(c, v);
    put_aside(v);

    v.row += MXA_TILE / 2;
    v.live = v.upper = v.row < s.rows;
    widen_as(t.dtype, lower, v);
    prepare_piece<lanes, true>(c, shared, piece * lanes, v);
    const int part = max(upper_part, tile_part<code>(c, v));
    int exponent = 0;
    float g;
    if constexpr (code == Code::mxfp4_e5m2) {
        exponent = container_scale<__NV_E5M2>(c, block_exponent(shared, part));
        g = ldexpf(1.0f, exponent);
    } else {
        g = mxa_second_level(c.divisor, c.nvfp4, __uint_as_float(block_max(shared, uint32_t(part))));
    }
    code_with<code>(c, out, s, v, exponent, g);

    v.row -= MXA_TILE / 2;
    v.live = v.upper = v.row < s.rows;
    v.amax = upper_amax;
    take_back(v);
    code_with<code>(c, out, s, v, exponent, g);
    end_link();
}

} // namespace mxa

#endif
