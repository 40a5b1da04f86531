/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the sums of warps to those of a segment, from those of segments, by the last block that has one, to
 * rows of the output. Everything is added in a fixed order.
 */
#ifndef MXA_CUDA_DECODE_MERGE_SM90_CUH
#define MXA_CUDA_DECODE_MERGE_SM90_CUH

#include "cuda/decode/decode_unit_sm90.cuh"

namespace mxa
{

/* A segment's part: [columns][dim] sums, [columns] largest logits, [columns] sums of P. */
template <class C>
constexpr int part_floats = C::columns *(C::dim + 2);

template <class C>
__device__ __forceinline__ float *part_at(const DecodeParams &p, const Item &item, int segment)
{
    const int64_t head = int64_t(item.pair) * p.heads_kv + item.h_kv;
    return p.parts + (head * p.segment_stride + segment) * part_floats<C>;
}

/* exp2(max - largest), and 0 of nothing. */
__device__ __forceinline__ float weight_of(float max, float largest)
{
    return max == -INFINITY ? 0.0f : exp2_approx(max - largest);
}

/* The warp's sums of P and largest logits to shared memory. */
template <class C>
__device__ __forceinline__ void share_sums(Sums<C> &t, DecodeShared<C> &s)
{
    const int warp = int(threadIdx.x) / 32;
    for (int c = 0; c < C::lane_columns; c++) {
        for (int lanes = 4; lanes < 32; lanes *= 2)
            t.sum[c] += __shfl_xor_sync(~0u, t.sum[c], lanes);
        if (lane_of() < 4) {
            s.max[warp][column_of<C>(c)] = t.max[c];
            s.sum[warp][column_of<C>(c)] = t.sum[c];
        }
    }
}

template <class C>
__device__ __forceinline__ float largest_of_warps(const DecodeShared<C> &s, int column)
{
    float largest = s.max[0][column];
    for (int w = 1; w < decode_warps; w++)
        largest = fmaxf(largest, s.max[w][column]);
    return largest;
}

/* O of the warp's column c of each lane, relative to the block's largest logit, to shared memory. */
template <class C>
__device__ __forceinline__ void share_outputs(const Sums<C> &t, int c, DecodeShared<C> &s)
{
    const float weight = weight_of(t.max[c], largest_of_warps(s, column_of<C>(c)));
    float *const to = s.o[threadIdx.x / 32][lane_of() % 4];
    for (int tile = 0; tile < C::channel_tiles; tile++) {
        const float unit = power_of_two(t.unit[C::units == 1 ? 0 : tile / 2]);
        const int d = tile * 16 + lane_of() / 4;
        to[d] = t.o[tile][c] * unit * weight;
        to[d + 8] = t.o[tile][2 + c] * unit * weight;
    }
}

/* All warps' sums, added and stored as the segment's part. */
template <class C>
__device__ __forceinline__ void store_part(const DecodeParams &p, const Item &item, Sums<C> &t,
                                           DecodeShared<C> &s)
{
    float *const part = part_at<C>(p, item, item.segment);
    share_sums(t, s);
    __syncthreads();
    if (threadIdx.x < C::columns) {
        const int column = int(threadIdx.x);
        const float largest = largest_of_warps(s, column);
        float sum = 0;
        for (int w = 0; w < decode_warps; w++)
            sum += s.sum[w][column] * weight_of(s.max[w][column], largest);
        part[C::columns * C::dim + column] = largest;
        part[C::columns * (C::dim + 1) + column] = sum;
    }
    for (int c = 0; c < C::lane_columns; c++) {
        share_outputs(t, c, s);
        __syncthreads();
#pragma unroll 1
        for (int i = int(threadIdx.x); i < 4 * C::dim; i += decode_threads) {
            const int column = i / C::dim, d = i % C::dim;
            float sum = 0;
            for (int w = 0; w < decode_warps; w++)
                sum += s.o[w][column][d];
            part[(C::paired ? column * 2 + c : column) * C::dim + d] = sum;
        }
        __syncthreads();
    }
}

/* By one thread, after all have stored: s.last says whether the part is the last of its pass and head. */
template <class C>
__device__ __forceinline__ void count_part(const DecodeParams &p, const Item &item, DecodeShared<C> &s)
{
    uint32_t *const counter = p.d.counters + item.pair * p.heads_kv + item.h_kv;
    s.last = add_in_order(counter, 1) + 1 == uint32_t(item.keys.segments);
    if (s.last)
        *counter = 0;
}

/* Weights of all parts of a column by one warp, and its LSE's two numbers. */
template <class C>
__device__ __forceinline__ void weigh_parts(const DecodeParams &p, const Item &item, int column, float sink,
                                            DecodeShared<C> &s, float &largest, float &sum)
{
    constexpr int each = MXA_DECODE_SEGMENTS / 32;
    const float *const part = part_at<C>(p, item, 0) + C::columns * C::dim + column;
    float maxima[each], sums[each];
    for (int i = 0; i < each; i++) {
        const bool has = i * 32 + lane_of() < item.keys.segments;
        const float *const from = part + (i * 32 + lane_of()) * part_floats<C>;
        maxima[i] = has ? __ldcg(from) : -INFINITY;
        sums[i] = has ? __ldcg(from + C::columns) : 0;
    }
    largest = sink;
    for (const float max : maxima)
        largest = fmaxf(largest, max);
    for (int lanes = 16; lanes > 0; lanes /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    sum = 0;
    for (int i = 0; i < each; i++) {
        const float weight = weight_of(maxima[i], largest);
        s.parts.weights[column][i * 32 + lane_of()] = weight;
        sum += weight * sums[i];
    }
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(~0u, sum, lanes);
    sum += weight_of(sink, largest);
}

/* A finite number that is larger than the type has becomes its largest. */
__device__ __forceinline__ void store_number(const mxa_tensor &out, void *row, int d, float x)
{
    constexpr float f16_most = 65504, bf16_most = 0x1.FEp127f;
    if (out.dtype == MXA_DTYPE_F32)
        static_cast<float *>(row)[d] = x;
    else if (out.dtype == MXA_DTYPE_F16)
        static_cast<__half *>(row)[d] = __float2half_rn(fminf(fmaxf(x, -f16_most), f16_most));
    else
        static_cast<uint16_t *>(row)[d] = uint16_t(pack_bf16(fminf(fmaxf(x, -bf16_most), bf16_most), 0.0f));
}

/* One column by one warp: divide, turn back, store; false if it is no finite row. */
template <class C>
__device__ __forceinline__ bool store_column(const DecodeParams &p, const Item &item, int column,
                                             float largest, float sum, const DecodeShared<C> &s)
{
    const int group = p.d.heads_per_kv, row = item.pass.first_row + column;
    const int64_t i = item.pass.first_query + row / group;
    const int64_t h = int64_t(item.h_kv) * group + row % group;
    const bool has = lane_of() < C::dim / lane_elements;
    const int d = lane_of() * lane_elements, at = (column * C::dim + d) / lane_elements;
    const float inverse = 1.0f / sum;
    const float4 even = s.parts.sums[0][has ? at : 0], odd = s.parts.sums[1][has ? at : 0];
    float x[lane_elements] = { even.x + odd.x, even.y + odd.y, even.z + odd.z, even.w + odd.w };
    bool finite = sum > 0 && mxa_f32_is_finite(sum);
    for (float &e : x) {
        e = has ? e * inverse : 0.0f;
        finite = finite && mxa_f32_is_finite(e);
    }
    if (p.d.rotate_v)
        rotate_lanes<C::dim>(x);
    void *const to = mxa_row(&p.d.out, item.b, h, i);
    for (int e = 0; e < lane_elements && has; e++)
        store_number(p.d.out, to, d + e, x[e]);
    if (lane_of() == 0 && p.d.lse)
        p.d.lse[(int64_t(item.b) * p.d.heads + h) * p.d.n + i] = float(MXA_LN_2) * (largest + log2f(sum));
    return __all_sync(~0u, finite);
}

/* A row that is not finite, by the reference. */
template <class C>
__device__ __noinline__ void attend_carefully(const DecodeParams &p, const Item &item, int column,
                                              DecodeShared<C> &s)
{
    const int group = p.d.heads_per_kv, row = item.pass.first_row + column, lane = lane_of();
    const int64_t i = item.pass.first_query + row / group;
    const int64_t h = int64_t(item.h_kv) * group + row % group;
    const bool has = lane < C::dim / lane_elements;
    if (threadIdx.x < 32) {
        const QueryRow q = prepare_row<C::dim>(p, item.b, h, i, has);
        for (int e = 0; e < lane_elements && has; e++) {
            s.row.q[MXA_LOW][lane * lane_elements + e] = q.codes[e];
            s.row.q[MXA_HIGH][lane * lane_elements + e] = mxa_f32_from_bf16(mxa_bf16_from_f32(q.x[e]));
        }
        if (lane == 0) {
            s.row.q_factor[MXA_LOW] = q.factor;
            s.row.q_factor[MXA_HIGH] = 1;
            s.row.bias = q.bias;
        }
    }
    attend_row<decode_threads>(p.d, s.row, item.b, h, i);
    __syncthreads();
}

/* One half of the block adds the even parts, the other one the odd ones. */
template <class C>
__device__ __forceinline__ void add_parts(const DecodeParams &p, const Item &item, DecodeShared<C> &s)
{
    constexpr int threads = decode_threads / 2;
    const int first = int(threadIdx.x) / threads;
    const auto *const parts = reinterpret_cast<const float4 *>(part_at<C>(p, item, 0));
#pragma unroll 1
    for (int at = int(threadIdx.x) % threads; at < item.pass.n_rows * C::dim / 4; at += threads) {
        const float *const weights = s.parts.weights[at * 4 / C::dim];
        float4 x = {};
#pragma unroll 8
        for (int i = first; i < item.keys.segments; i += 2) {
            const float4 part = __ldcg(parts + i * (part_floats<C> / 4) + at);
            x.x += weights[i] * part.x;
            x.y += weights[i] * part.y;
            x.z += weights[i] * part.z;
            x.w += weights[i] * part.w;
        }
        s.parts.sums[first][at] = x;
    }
}

template <class C>
__device__ __forceinline__ void merge_parts(const DecodeParams &p, const Item &item, DecodeShared<C> &s)
{
    const int warp = int(threadIdx.x) / 32, group = p.d.heads_per_kv;
    const bool used = warp < item.pass.n_rows;
    float largest = 0, sum = 0;
    if (used) {
        const int64_t h = int64_t(item.h_kv) * group + (item.pass.first_row + warp) % group;
        const float sink = p.d.sinks ? p.d.sinks[h] * float(MXA_LOG2_E) : -INFINITY;
        weigh_parts(p, item, warp, sink, s, largest, sum);
    }
    __syncthreads();
    add_parts(p, item, s);
    __syncthreads();
    const bool good = !used || store_column(p, item, warp, largest, sum, s);
    if (lane_of() == 0)
        s.careful[warp] = !good;
    __syncthreads();
    for (int column = 0; column < item.pass.n_rows; column++)
        if (s.careful[column])
            attend_carefully(p, item, column, s);
}

} // namespace mxa

#endif
