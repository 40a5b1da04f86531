/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries: both copies of a row by one warp, as mxa_quantize makes them, into B operands. A lane has four
 * consecutive elements; lanes past the row have zeros.
 */
#ifndef MXA_CUDA_DECODE_QUERY_SM90_CUH
#define MXA_CUDA_DECODE_QUERY_SM90_CUH

#include <cuda_fp16.h>

#include "attn/softmax.h"
#include "cuda/decode/decode_config_sm90.cuh"
#include "cuda/decode/ptx_decode_sm90.cuh"

namespace mxa
{

constexpr int lane_elements = 4;

/* Factors that are no farther from 1 keep the products of the fast path from overflowing or vanishing. */
constexpr float factor_most = 0x1p60f;

struct QueryRow {
    float x[lane_elements];     /* as it comes */
    float codes[lane_elements]; /* of the low copy; NaN where they are */
    float factor, bias;
};

template <int dim>
__device__ __forceinline__ void rotate_lanes(float (&x)[lane_elements])
{
    mxa_hadamard_step(x, lane_elements, 1);
    mxa_hadamard_step(x, lane_elements, 2);
    for (int lanes = 1; lanes < dim / lane_elements; lanes *= 2) {
        const bool upper = threadIdx.x & lanes;
        for (float &e : x) {
            const float other = __shfl_xor_sync(~0u, e, lanes);
            e = upper ? other - e : e + other;
        }
    }
    for (float &e : x)
        e *= mxa_hadamard_norm(dim);
}

__device__ __forceinline__ void load_elements(const mxa_tensor &t, int64_t b, int64_t h, int64_t i, bool has,
                                              float (&x)[lane_elements])
{
    const int first = int(threadIdx.x) % 32 * lane_elements;
    const void *const row = mxa_row(&t, b, h, i);
    for (int e = 0; e < lane_elements; e++)
        x[e] = 0;
    if (has && t.dtype == MXA_DTYPE_F32)
        for (int e = 0; e < lane_elements; e++)
            x[e] = static_cast<const float *>(row)[first + e];
    else if (has)
        for (int e = 0; e < lane_elements; e++) {
            const uint16_t bits = static_cast<const uint16_t *>(row)[first + e];
            x[e] = t.dtype == MXA_DTYPE_F16 ? __half2float(__ushort_as_half(bits)) : mxa_f32_from_bf16(bits);
        }
}

/* The factor as docs/numerics.md, section 4, has it; Inf and NaN do not take part. */
__device__ __forceinline__ float row_factor(const float (&x)[lane_elements], float largest)
{
    float amax = 0;
    for (const float e : x)
        amax = mxa_f32_is_finite(e) ? fmaxf(amax, fabsf(e)) : amax;
    amax = __uint_as_float(warp_max(__float_as_uint(amax)));
    constexpr float least = 0x1p-117f, most = 0x1p117f;
    return amax == 0 ? 1.0f : fminf(fmaxf(__fdiv_rn(amax, largest), least), most);
}

/* NaN where x is none; E4M3's codes are made and read by the hardware, which rounds and saturates alike. */
__device__ __forceinline__ float element_code(float x, float factor, bool fp8)
{
    const float t = __fdiv_rn(x, factor);
    const uint32_t pair = pair_of_e4m3(e4m3_of_pair(t, 0.0f));
    const float code = fp8 ? __half2float(__ushort_as_half(uint16_t(pair))) : float(mxa_round_i8(t));
    return mxa_f32_is_finite(x) ? code : NAN;
}

/* Query i of head h; has: the lane has elements of the row. */
template <int dim>
__device__ __forceinline__ QueryRow prepare_row(const DecodeParams &p, int64_t b, int64_t h, int64_t i,
                                                bool has)
{
    QueryRow q;
    load_elements(p.d.q, b, h, i, has, q.x);
    q.bias = 0;
    if (p.d.smooth[MXA_LOW]) {
        const float *const mean =
            p.d.mean + (b * p.heads_kv + h / p.d.heads_per_kv) * dim + int(threadIdx.x) % 32 * lane_elements;
        for (int e = 0; e < lane_elements; e++)
            q.bias += has ? q.x[e] * mean[e] : 0.0f;
        for (int lanes = 16; lanes > 0; lanes /= 2)
            q.bias += __shfl_xor_sync(~0u, q.bias, lanes);
        q.bias *= p.d.softmax_scale;
    }
    float turned[lane_elements];
    for (int e = 0; e < lane_elements; e++)
        turned[e] = q.x[e];
    if (p.rotate_q)
        rotate_lanes<dim>(turned);
    q.factor = row_factor(turned, p.q_fp8 ? 448.0f : 127.0f);
    for (int e = 0; e < lane_elements; e++)
        q.codes[e] = element_code(turned[e], q.factor, p.q_fp8);
    return q;
}

/* The lane's elements into a B operand of 16-bit pairs, whose column is `column`. */
template <int steps>
__device__ __forceinline__ void store_pairs(uint2 (&to)[steps][32], int column, uint32_t first,
                                            uint32_t second)
{
    const int d = int(threadIdx.x) % 32 * lane_elements, k = d % 16, lane = column * 4 + k % 8 / 2;
    auto *const words = reinterpret_cast<uint32_t *>(to[d / 16]);
    words[lane * 2 + k / 8] = first;
    words[(lane + 1) * 2 + k / 8] = second;
}

/* Four bytes into a B operand of signed bytes. */
template <int steps>
__device__ __forceinline__ void store_bytes(uint2 (&to)[steps][32], int column, uint32_t bytes)
{
    const int d = int(threadIdx.x) % 32 * lane_elements, k = d % 32, lane = column * 4 + k % 16 / 4;
    reinterpret_cast<uint32_t *>(to[d / 32])[lane * 2 + k / 16] = bytes;
}

__device__ __forceinline__ uint32_t byte_of(float code)
{
    return uint32_t(int(code)) & 0xFFu;
}

/* Column `warp` of the item's queries. */
template <class C>
__device__ __forceinline__ void prepare_column(const DecodeParams &p, const Item &item, DecodeShared<C> &s)
{
    const int column = int(threadIdx.x) / 32, at = C::paired ? column : 2 * column;
    const int group = p.d.heads_per_kv, lane = int(threadIdx.x) % 32;
    if (column >= C::columns)
        return;
    const bool used = column < item.pass.n_rows, has = lane < C::dim / lane_elements;
    const int row = used ? item.pass.first_row + column : item.pass.first_row;
    const int query = item.pass.first_query + row / group;
    const QueryRow q =
        prepare_row<C::dim>(p, item.b, int64_t(item.h_kv) * group + row % group, query, has && used);
    if (has && C::keys == Keys::int8)
        store_bytes(s.q_low, at,
                    byte_of(q.codes[0]) | byte_of(q.codes[1]) << 8 | byte_of(q.codes[2]) << 16 |
                        byte_of(q.codes[3]) << 24);
    else if (has)
        store_pairs(s.q_low, at, pack_f16(q.codes[0], q.codes[1]), pack_f16(q.codes[2], q.codes[3]));
    if (has)
        store_pairs(s.q_high, at, pack_bf16(q.x[0], q.x[1]), pack_bf16(q.x[2], q.x[3]));
    bool number = q.factor < factor_most && q.factor > 1 / factor_most;
    for (const float e : q.codes)
        number = number && !isnan(e);
    const bool good = __all_sync(~0u, number);
    if (lane > 0)
        return;
    const float unit = C::keys == Keys::mxfp4 ? e2m1_unit * e8m0_unit : 1.0f;
    const float scale = p.d.softmax_scale * float(MXA_LOG2_E);
    s.low_factor[column] = good ? scale * q.factor * unit : NAN;
    s.high_factor[column] = scale;
    s.bias[column] = q.bias * float(MXA_LOG2_E);
    const int position = item.q_offset + query;
    s.seen_first[column] = mxa_decode_max(0, position - p.span.window_left);
    s.seen_last[column] = position;
}

} // namespace mxa

#endif
