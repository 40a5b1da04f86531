/* SPDX-License-Identifier: Apache-2.0 */
/* The bias of smooth-K, made while Q is read: softmax_scale * <q, mean> in fp64. */
#ifndef MXA_CUDA_QUANTIZE_BIAS_CUH
#define MXA_CUDA_QUANTIZE_BIAS_CUH

#include "cuda/quantize_chunk.cuh"
#include "cuda/quantize_rows.cuh"

namespace mxa
{

/*
 * A float's bits moved into a double's, with the exponent field left as it is, are x * 2^-896, subnormal ones
 * too: two shifts, where the conversion unit has an eighth of the rate. The mean carries 2^896.
 */
constexpr double mean_scale = 0x1p896;

/* half: x was a 16-bit number, so the low word is 0. */
template <bool half>
__device__ __forceinline__ double shrunken(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return __hiloint2double(int(bits) >> 3 & 0x8FFFFFFF, half ? 0 : int(bits << 29));
}

/* A barrier has to follow. */
template <int lanes>
__device__ __forceinline__ void load_bias_mean(const QuantParams &p, const Span &s, Shared<lanes> &shared)
{
    const uint32_t per_kv = uint32_t(p.bias.heads_per_kv), heads_kv = uint32_t(p.rows.x.shape[1]) / per_kv;
    const int64_t matrix = s.sequence * heads_kv + uint32_t(s.h) / per_kv;
    for (int d = threadIdx.x; d < piece * lanes; d += blockDim.x)
        shared.bias_mean[d / piece][d % piece] = double(p.bias.mean[matrix * piece * lanes + d]) * mean_scale;
}

template <bool half, int lanes>
__device__ __forceinline__ double partial_dot(const Piece<lanes> &v, const Shared<lanes> &shared)
{
    double sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < piece; i++)
        sum[i % 4] = fma(shrunken<half>(v.x[i]), shared.bias_mean[v.lane][i], sum[i % 4]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The same of elements as they are in memory, NaN and Inf among them. */
template <int lanes>
__device__ double partial_dot_nonfinite(const QuantParams &p, const Span &s, const Piece<lanes> &v,
                                        const Shared<lanes> &shared)
{
    const mxa_tensor &t = p.rows.x;
    const int64_t offset = row_offset(t, s, v.row) + v.lane * piece;
    double sum = 0;
#pragma unroll 1
    for (int i = 0; i < piece; i++) {
        const float x = load_element(t, offset + i);
        sum += double(x) * (shared.bias_mean[v.lane][i] / mean_scale);
    }
    return sum;
}

template <int lanes>
__device__ __forceinline__ void store_bias(const QuantParams &p, const Span &s, const Piece<lanes> &v,
                                           const Shared<lanes> &shared)
{
    double dot = v.amax < MXA_F32_INF ? shared.dot[threadIdx.x] : partial_dot_nonfinite(p, s, v, shared);
#pragma unroll
    for (int o = 1; o < lanes; o *= 2)
        dot += __shfl_xor_sync(0xFFFFFFFFu, dot, o);
    if (v.live && v.lane == 0)
        p.bias.bias[s.row + v.row] = float(double(p.bias.softmax_scale) * dot);
}

} // namespace mxa

#endif
