/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One query of a KV cache in float64 by a block of threads: docs/numerics.md, section 8, on the decoded rows.
 * V takes part as it is stored, P is not rounded. It walks over tiles of 128 keys, since a tile decides the
 * precision: a thread computes the logit of one key, then channels of P V.
 */
#ifndef MXA_CUDA_DECODE_ROW_CUH
#define MXA_CUDA_DECODE_ROW_CUH

#include <math.h>

#include "cuda/decode/decode_element.cuh"
#include "format/hadamard.h"

extern "C" {
#include "core/tensor.h"
}

namespace mxa
{

struct RowShared {
    float q[MXA_COPIES][MXA_DIM_MAX]; /* codes as numbers */
    float q_factor[MXA_COPIES], bias;
    double p[MXA_TILE]; /* exp(logit - max); -1: the logit is -Inf */
    double warp[MXA_TILE / 32];
    float o[MXA_DIM_MAX];
};

/* The largest or the sum of a value of each key, for all threads, in a fixed order; NaN wins. */
template <bool is_max>
__device__ double reduce_keys(double x, RowShared &s)
{
    const auto join = [](double a, double b) {
        if (!is_max)
            return a + b;
        return a > b || isnan(a) ? a : b;
    };
    if (threadIdx.x < MXA_TILE) {
        for (int lane = 16; lane > 0; lane /= 2)
            x = join(x, __shfl_xor_sync(~0u, x, lane));
        if (threadIdx.x % 32 == 0)
            s.warp[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = s.warp[0];
    for (int w = 1; w < MXA_TILE / 32; w++)
        x = join(x, s.warp[w]);
    __syncthreads();
    return x;
}

/* A row and what it has so far; channels: those of a thread. */
template <int threads>
struct Row {
    static constexpr int channels = MXA_DIM_MAX / threads;
    mxa_tile_map map;
    int64_t b, h, h_kv, i;
    double max, sum; /* of exp(logit), relative to max */
    double o[channels];
    float nonfinite[channels]; /* sum of visible Inf and NaN in V: itself, or NaN */
};

/* Key j's logit; -Inf where the row does not see it. */
template <int threads>
__device__ double row_logit(const mxa_decode_params &p, const Row<threads> &r, const RowShared &s, int copy,
                            int64_t j, mxa_span seen)
{
    if (threadIdx.x >= MXA_TILE || j < seen.first || j >= seen.end)
        return -INFINITY;
    const mxa_kv_tile_part &part = p.tiles.part[copy][MXA_KV_K];
    const uint8_t *const tile = mxa_decode_tile(&p, copy, r.b, r.h_kv, j);
    const int token = int(j % p.tiles.page_tokens) % p.tiles.tokens;
    double dot = 0;
    for (int d = 0; d < part.dim; d++)
        dot += double(s.q[copy][d]) * tile_element(part, p.format[copy][MXA_KV_K], tile, token, d);
    const double bias = p.smooth[copy] ? s.bias : 0;
    const double t = double(p.softmax_scale) * s.q_factor[copy] * tile_factor(part, tile, token) * dot + bias;
    const double capped = p.softcap > 0 ? p.softcap * tanh(t / p.softcap) : t;
    return capped == INFINITY ? NAN : capped;
}

template <int threads>
__device__ void row_add_values(const mxa_decode_params &p, Row<threads> &r, const RowShared &s, int copy,
                               int64_t first, mxa_span seen)
{
    const int v_copy = mxa_decode_v_copy(&p, copy);
    const mxa_kv_tile_part &part = p.tiles.part[v_copy][MXA_KV_V];
    const int64_t begin = mxa_max(first, seen.first), end = mxa_min(first + MXA_TILE, seen.end);
    for (int64_t j = begin; j < end; j++) {
        const double weight = s.p[j - first];
        if (weight < 0) /* the logit is -Inf, which counts as masked */
            continue;
        const uint8_t *const tile = mxa_decode_tile(&p, v_copy, r.b, r.h_kv, j);
        const int token = int(j % p.tiles.page_tokens) % p.tiles.tokens;
        const double scaled = weight * tile_factor(part, tile, token);
        for (int c = 0; c < r.channels; c++) {
            const int d = c * threads + threadIdx.x;
            if (d >= part.dim)
                continue;
            const float x = tile_element(part, p.format[v_copy][MXA_KV_V], tile, token, d);
            if (mxa_f32_is_finite(x))
                r.o[c] += scaled * x;
            else
                r.nonfinite[c] += x;
        }
    }
}

template <int threads>
__device__ void row_add_tile(const mxa_decode_params &p, Row<threads> &r, RowShared &s, int64_t k_tile,
                             mxa_span seen)
{
    const int64_t first = k_tile * MXA_TILE;
    const int copy = mxa_tile_is_high(&r.map, mxa_tile_of(r.i + r.map.q_offset), k_tile) ? MXA_HIGH : MXA_LOW;
    const double x = row_logit(p, r, s, copy, first + threadIdx.x, seen);
    const double largest = reduce_keys<true>(x, s);
    if (isnan(largest))
        r.max = NAN;
    if (isnan(r.max) || largest == -INFINITY)
        return;
    const double max = fmax(r.max, largest), alpha = exp(r.max - max);
    const double weight = x == -INFINITY ? 0 : exp(x - max);
    if (threadIdx.x < MXA_TILE)
        s.p[threadIdx.x] = x == -INFINITY ? -1 : weight;
    r.sum = r.sum * alpha + reduce_keys<false>(weight, s);
    r.max = max;
    for (int c = 0; c < r.channels; c++)
        r.o[c] *= alpha;
    row_add_values(p, r, s, copy, first, seen);
    __syncthreads();
}

__device__ inline void store_element(const mxa_tensor &out, void *row, int d, float x)
{
    if (out.dtype == MXA_DTYPE_F32)
        static_cast<float *>(row)[d] = mxa_f32_from_bits(mxa_f32_canonical(x));
    else
        static_cast<uint16_t *>(row)[d] =
            out.dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(x) : mxa_bf16_from_f32(x);
}

/* s.o, which is in V's rotated basis if V is rotated, to the row of the output. */
template <int threads>
__device__ void store_output(const mxa_decode_params &p, RowShared &s, int64_t b, int64_t h, int64_t i)
{
    const int dim = int(p.out.shape[3]), group = p.rotate_v ? int(mxa_hadamard_group(dim)) : 1;
    __syncthreads();
    for (int step = 1; step < group; step *= 2) {
        const int at = int(threadIdx.x) / step * 2 * step + int(threadIdx.x) % step;
        const bool pairs = at + step < dim; /* a thread for each pair */
        const float x = pairs ? s.o[at] : 0, y = pairs ? s.o[at + step] : 0;
        if (pairs) {
            s.o[at] = x + y;
            s.o[at + step] = x - y;
        }
        __syncthreads();
    }
    const float norm = group > 1 ? mxa_hadamard_norm(group) : 1.0f;
    void *const row = mxa_row(&p.out, b, h, i);
    for (int d = int(threadIdx.x); d < dim; d += threads)
        store_element(p.out, row, d, s.o[d] * norm);
    __syncthreads();
}

template <int threads>
__device__ void row_store(const mxa_decode_params &p, const Row<threads> &r, RowShared &s)
{
    for (int c = 0; c < r.channels; c++) {
        const float sum = r.sum == 0 ? 0.0f : float(r.o[c] / r.sum);
        s.o[c * threads + threadIdx.x] = isnan(r.max) ? NAN : r.nonfinite[c] != 0 ? r.nonfinite[c] : sum;
    }
    store_output<threads>(p, s, r.b, r.h, r.i);
    if (threadIdx.x == 0 && p.lse)
        p.lse[(r.b * p.heads + r.h) * p.n + r.i] = isnan(r.max) ? NAN
                                                   : r.sum == 0 ? -INFINITY
                                                                : float(r.max + log(r.sum));
}

/* Query i of head h of sequence b, which there is; its numbers are in s. All threads of the block. */
template <int threads>
__device__ void attend_row(const mxa_decode_params &p, RowShared &s, int64_t b, int64_t h, int64_t i)
{
    static_assert(threads >= MXA_TILE && MXA_DIM_MAX % threads == 0, "a thread for each key of a tile");
    Row<threads> r{};
    r.map = mxa_decode_map(&p, p.lengths[b], mxa_decode_count(&p, b));
    r.b = b;
    r.h = h;
    r.h_kv = h / p.heads_per_kv;
    r.i = i;
    const double sink = p.sinks ? p.sinks[h] : -INFINITY;
    r.max = sink == INFINITY ? NAN : sink;
    r.sum = sink == -INFINITY ? 0 : 1;
    const int64_t position = i + r.map.q_offset;
    const mxa_span seen = mxa_visible_keys(&r.map, position, position);
    __syncthreads();
    for (int64_t t = seen.first / MXA_TILE; t * MXA_TILE < seen.end; t++)
        row_add_tile(p, r, s, t, seen);
    row_store(p, r, s);
}

/* A row without a query. */
template <int threads>
__device__ void clear_row(const mxa_decode_params &p, int64_t b, int64_t h, int64_t i)
{
    void *const row = mxa_row(&p.out, b, h, i);
    for (int d = int(threadIdx.x); d < int(p.out.shape[3]); d += threads)
        store_element(p.out, row, d, 0.0f);
    if (threadIdx.x == 0 && p.lse)
        p.lse[(b * p.heads + h) * p.n + i] = -INFINITY;
}

} // namespace mxa

#endif
