/* SPDX-License-Identifier: Apache-2.0 */
/* The bias of smooth-K, made while Q is read: softmax_scale * <q, mean>, in fp32 or fp64. */
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

/* Of the span's KV head. */
__device__ __forceinline__ const float *bias_mean(const QuantParams &p, const Span &s)
{
    const uint32_t per_kv = uint32_t(p.bias.heads_per_kv), heads_kv = uint32_t(p.rows.x.shape[1]) / per_kv;
    return p.bias.mean + (s.sequence * heads_kv + uint32_t(s.h) / per_kv) * p.rows.x.shape[3];
}

/* Zeros past the end of a row. A barrier has to follow. */
template <int lanes>
__device__ __forceinline__ void load_bias_mean(const QuantParams &p, const Span &s, Shared<lanes> &shared)
{
    const float *const mean = bias_mean(p, s);
    for (int d = threadIdx.x; d < piece * lanes; d += blockDim.x) {
        const float m = d < p.rows.x.shape[3] ? mean[d] : 0.0f;
        if (p.bias.in_fp32)
            shared.bias_mean_fp32[d / piece][d % piece] = m;
        else
            shared.bias_mean[d / piece][d % piece] = double(m) * mean_scale;
    }
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

template <int lanes>
__device__ __forceinline__ float partial_dot_fp32(const Piece<lanes> &v, const Shared<lanes> &shared)
{
    float sum[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < piece; i += 4) {
        const float4 m = reinterpret_cast<const float4 *>(shared.bias_mean_fp32[v.lane])[i / 4];
        sum[0] = fmaf(v.x[i], m.x, sum[0]);
        sum[1] = fmaf(v.x[i + 1], m.y, sum[1]);
        sum[2] = fmaf(v.x[i + 2], m.z, sum[2]);
        sum[3] = fmaf(v.x[i + 3], m.w, sum[3]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* In fp64 of elements as they are in memory, NaN and Inf among them. */
template <int lanes>
__device__ double partial_dot_nonfinite(const QuantParams &p, const Span &s, const Piece<lanes> &v)
{
    const mxa_tensor &t = p.rows.x;
    const int64_t offset = row_offset(t, s, v.row) + v.lane * piece;
    const float *const mean = bias_mean(p, s) + v.lane * piece;
    const int n = min(piece, int(t.shape[3]) - v.lane * piece);
    double sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++)
        sum += double(load_element(t, offset + i)) * double(mean[i]);
    return sum;
}

template <int lanes, class Float>
__device__ __forceinline__ Float row_sum(Float x)
{
#pragma unroll
    for (int o = 1; o < lanes; o *= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, o);
    return x;
}

template <int lanes>
__device__ __forceinline__ void write_bias(const QuantParams &p, const Span &s, const Piece<lanes> &v,
                                           float bias)
{
    if (v.row < s.rows && v.lane == 0)
        p.bias.bias[s.row + v.row] = bias;
}

template <int lanes>
__device__ __forceinline__ void store_bias(const QuantParams &p, const Span &s, const Piece<lanes> &v,
                                           const Shared<lanes> &shared)
{
    const double own = v.amax < MXA_F32_INF ? shared.dot[threadIdx.x] : partial_dot_nonfinite(p, s, v);
    write_bias(p, s, v, float(double(p.bias.softmax_scale) * row_sum<lanes>(own)));
}

/* own: partial_dot_fp32. What overflowed on the way is summed again in fp64. */
template <int lanes>
__device__ __forceinline__ void store_bias_fp32(const QuantParams &p, const Span &s, const Piece<lanes> &v,
                                                float own)
{
    const float dot = row_sum<lanes>(own);
    float bias = p.bias.softmax_scale * dot;
    const bool again = v.row < s.rows && !mxa_f32_is_finite(dot);
    if (__any_sync(0xFFFFFFFFu, again)) {
        const double exact = row_sum<lanes>(again ? partial_dot_nonfinite(p, s, v) : 0.0);
        bias = again ? float(double(p.bias.softmax_scale) * exact) : bias;
    }
    write_bias(p, s, v, bias);
}

} // namespace mxa

#endif
