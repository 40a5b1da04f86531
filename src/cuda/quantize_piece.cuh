/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's piece of a row: 32 channels in registers, which are one block of the MX formats and two of
 * NVFP4. How it is loaded, and what happens to it before it is coded.
 */
#ifndef MXA_CUDA_QUANTIZE_PIECE_CUH
#define MXA_CUDA_QUANTIZE_PIECE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/common/ptx_common.cuh"
#include "cuda/quantize_factor.cuh"
#include "format/hadamard.h"
#include "format/mx.h"

namespace mxa
{

constexpr int piece = MXA_MX_BLOCK;
constexpr int half_piece = piece / 2; /* rows are multiples of it */
constexpr int warp_lanes = 32;

/* 16-bit channels as they are in memory. */
struct RawPiece {
    uint4 words[piece / 8];
};

/* The halves of a piece lie where a row has them. */
__device__ __forceinline__ RawPiece load_raw(const uint16_t *lower, const uint16_t *upper)
{
    constexpr int vectors = half_piece / 8;
    RawPiece raw;
#pragma unroll
    for (int i = 0; i < vectors; i++) {
        raw.words[i] = __ldg(reinterpret_cast<const uint4 *>(lower) + i);
        raw.words[vectors + i] = __ldg(reinterpret_cast<const uint4 *>(upper) + i);
    }
    return raw;
}

__device__ __forceinline__ RawPiece load_raw(const uint16_t *from)
{
    return load_raw(from, from + half_piece);
}

template <bool bf16>
__device__ __forceinline__ void widen_pair(uint32_t pair, float &lo, float &hi)
{
    if (bf16) {
        lo = __uint_as_float(pair << 16);
        hi = __uint_as_float(pair & 0xFFFF0000u);
    } else {
        const float2 wide = __half22float2(reinterpret_cast<const __half2 &>(pair));
        lo = wide.x;
        hi = wide.y;
    }
}

template <bool bf16>
__device__ __forceinline__ void widen(const RawPiece &raw, float (&x)[piece])
{
#pragma unroll
    for (int i = 0; i < piece / 8; i++) {
        const uint4 w = raw.words[i];
        widen_pair<bf16>(w.x, x[8 * i], x[8 * i + 1]);
        widen_pair<bf16>(w.y, x[8 * i + 2], x[8 * i + 3]);
        widen_pair<bf16>(w.z, x[8 * i + 4], x[8 * i + 5]);
        widen_pair<bf16>(w.w, x[8 * i + 6], x[8 * i + 7]);
    }
}

__device__ __forceinline__ void load_floats(const float *lower, const float *upper, float (&x)[piece])
{
    constexpr int vectors = half_piece / 4;
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        const float *const from = i < vectors ? lower + 4 * i : upper + 4 * (i - vectors);
        const float4 w = __ldg(reinterpret_cast<const float4 *>(from));
        x[4 * i] = w.x;
        x[4 * i + 1] = w.y;
        x[4 * i + 2] = w.z;
        x[4 * i + 3] = w.w;
    }
}

/* mean is 16-byte aligned. */
__device__ __forceinline__ void subtract_mean(const float *mean, float (&x)[piece])
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        const float4 m = reinterpret_cast<const float4 *>(mean)[i];
        x[4 * i] -= m.x;
        x[4 * i + 1] -= m.y;
        x[4 * i + 2] -= m.z;
        x[4 * i + 3] -= m.w;
    }
}

/* format/hadamard.h on groups of channels, 16 or more: the same additions, so the same bits. */
template <int group>
__device__ __forceinline__ void rotate_piece(int lane, float (&x)[piece])
{
#pragma unroll
    for (int s = 1; s < piece && s < group; s *= 2)
#pragma unroll
        for (int i = 0; i < piece; i++)
            if ((i & s) == 0) {
                const float a = x[i], b = x[i + s];
                x[i] = a + b;
                x[i + s] = a - b;
            }
#pragma unroll
    for (int s = 1; s * piece < group; s *= 2) {
        const float sign = lane & s ? -1.0f : 1.0f; /* the upper one of a pair becomes a - b */
#pragma unroll
        for (int i = 0; i < piece; i++)
            x[i] = fmaf(x[i], sign, __shfl_xor_sync(0xFFFFFFFFu, x[i], s));
    }
    const float norm = mxa_hadamard_norm(group);
#pragma unroll
    for (int i = 0; i < piece; i++)
        x[i] *= norm;
}

/* The bits of the largest magnitude; of NaN or Inf if there is one. */
__device__ __forceinline__ uint32_t largest_bits(const float (&x)[piece], int first, int n)
{
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++)
        largest = max_magnitude(largest, x[first + i]);
    return __float_as_uint(largest) & 0x7FFFFFFFu;
}

__device__ __forceinline__ uint32_t largest_finite_bits(const float (&x)[piece], uint32_t largest)
{
    if (largest < MXA_F32_INF)
        return largest;
    uint32_t finite = 0;
#pragma unroll
    for (int i = 0; i < piece; i++) {
        const uint32_t mag = __float_as_uint(x[i]) & 0x7FFFFFFFu;
        finite = max(finite, mag < MXA_F32_INF ? mag : 0u);
    }
    return finite;
}

} // namespace mxa

#endif
