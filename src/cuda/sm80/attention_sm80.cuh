/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by mma.sync on 16-bit operands: quantised ones as bf16, which holds element * block scale
 * exactly, with their factors applied to the logits. A warp has 16 queries of a head and walks over the keys
 * that they see; the online softmax is that of docs/numerics.md, section 8, in base 2. Rows that fp32 cannot
 * hold, and those that see Inf or NaN, go to a list and are done again in float64.
 */
#ifndef MXA_CUDA_ATTENTION_SM80_CUH
#define MXA_CUDA_ATTENTION_SM80_CUH

#include "cuda/ref/attention_ref_cuda.h"
#include "cuda/sm80/tile_sm80.cuh"

namespace mxa
{

/* What all rows of a call share. */
struct MmaParams {
    Operand q[MXA_COPIES], k[MXA_COPIES], v;
    bool f16[MXA_COPIES], v_f16; /* else bf16 */
    bool has_bias[MXA_COPIES];
    mxa_tensor out;
    const float *bias, *sinks;
    float *lse;
    const mxa_sequence *sequences;
    const mxa_query_tile *tiles;
    mxa_cuda_row *redo; /* rows to be done again, maybe once for each part of the channels */
    int *redo_count;
    int heads, heads_kv, dim, dim_v;
    float scale_log2;   /* softmax_scale * log2 e */
    float softcap_log2; /* softcap * log2 e; 0: none */
};

/*
 * How a block's four warps share the work: each has 16 queries and all channels of V or, where registers
 * would not hold so many sums, a half of them.
 */
template <int dim>
struct ShapeSm80 {
    static constexpr int parts = dim > 128 ? 2 : 1;
    static constexpr int rows = 64 / parts; /* queries of a block; divides a tile */
    static constexpr int keys = 64 / parts; /* of a step; divides a tile */
    static constexpr int columns = dim / parts;
};

template <int dim>
struct SmemSm80 {
    static constexpr int keys = ShapeSm80<dim>::keys;
    Tile<ShapeSm80<dim>::rows, dim> q;
    Tile<keys, dim> k, v;
    float g_k[keys];
    int bad[keys]; /* V holds Inf or NaN */
    int any_bad;
    mxa_sequence s; /* the block's */
};

/* The two rows of a lane: lane / 4 and 8 further. */
constexpr int lane_rows = 2;

template <int dim>
class Block
{
    using Smem = SmemSm80<dim>;
    using Shape = ShapeSm80<dim>;
    static constexpr int keys = Shape::keys, key_tiles = keys / 8, column_tiles = Shape::columns / 8;
    static constexpr int steps = 16; /* of a product, in channels or keys */

    const MmaParams &p;
    Smem &smem;
    const mxa_sequence &s;
    int n, h, h_kv;          /* number of the sequence, heads */
    int64_t tile, first_row; /* of the sequence; the block's first may be negative */
    mxa_span valid;          /* rows of the block that exist */
    int copy = -1;           /* which Q is in shared memory */
    float factor[lane_rows], bias[lane_rows];
    float max[lane_rows], sum[lane_rows]; /* sum: this lane's keys only */
    bool redo[lane_rows] = {};
    float o[column_tiles][4] = {};

    __device__ int lane() const
    {
        return threadIdx.x % 32;
    }

    __device__ int warp_row() const
    {
        return threadIdx.x / 32 / Shape::parts * 16;
    }

    /* Of V, this warp's first. */
    __device__ int column() const
    {
        return threadIdx.x / 32 % Shape::parts * Shape::columns;
    }

    __device__ int64_t row(int r) const
    {
        return first_row + warp_row() + lane() / 4 + 8 * r;
    }

    __device__ bool sees(int64_t i, int64_t j) const
    {
        const int64_t distance = i + s.map.q_offset - j;
        return j < s.map.kv_len && distance <= s.map.window_left && -distance <= s.map.window_right;
    }

    /* Each row of the block sees each key of the step. */
    __device__ bool sees_all(int64_t first) const
    {
        const int64_t position = first_row + s.map.q_offset;
        return first + keys <= s.map.kv_len && position + Shape::rows - 1 - first <= s.map.window_left &&
               first + keys - 1 - position <= s.map.window_right;
    }

    __device__ void load_q(int wanted)
    {
        const Rows q = rows_of(p.q[wanted], s, n, false, p.heads, h);
        copy = wanted;
        load_tile(smem.q, q, first_row, valid.first, valid.end, p.dim);
#pragma unroll
        for (int r = 0; r < lane_rows; r++) {
            const bool exists = row(r) >= valid.first && row(r) < valid.end;
            const int64_t index = s.q_rows + h * s.map.q_len + row(r);
            factor[r] = exists ? q.factor(row(r)) * p.scale_log2 : 0.0f;
            bias[r] = exists && p.has_bias[copy] ? p.bias[index] * static_cast<float>(log2_e) : 0.0f;
        }
    }

    __device__ void load_keys(int64_t first)
    {
        const Rows k = rows_of(p.k[copy], s, n, true, p.heads_kv, h_kv);
        const Rows v = rows_of(p.v, s, n, true, p.heads_kv, h_kv);
        load_tile(smem.k, k, first, 0, s.map.kv_len, p.dim);
        for (int j = threadIdx.x; j < keys; j += threads_sm80)
            smem.g_k[j] = first + j < s.map.kv_len ? k.factor(first + j) : 1.0f;
        load_values(smem.v, v, first, s.map.kv_len, p.dim_v, p.v_f16, smem.bad, &smem.any_bad);
    }

    __device__ void multiply_qk(float (&x)[key_tiles][4])
    {
        const int l = lane();
#pragma unroll
        for (int t = 0; t < key_tiles; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[t][i] = 0;
#pragma unroll
        for (int d = 0; d < dim; d += steps) {
            uint32_t a[4], b[4];
            load_matrices(a, &smem.q.data[warp_row() + l % 16][d + l / 16 * 8]);
#pragma unroll
            for (int t = 0; t < key_tiles; t += 2) {
                load_matrices(b, &smem.k.data[8 * t + l % 8 + l / 16 * 8][d + l / 8 % 2 * 8]);
                if (p.f16[copy]) {
                    mma_f16(x[t], a, b[0], b[1]);
                    mma_f16(x[t + 1], a, b[2], b[3]);
                } else {
                    mma_bf16(x[t], a, b[0], b[1]);
                    mma_bf16(x[t + 1], a, b[2], b[3]);
                }
            }
        }
    }

    /* Sums of products to logits in base 2. Inf becomes NaN: the reference knows what it is. */
    __device__ void finish_logits(float (&x)[key_tiles][4])
    {
#pragma unroll
        for (int t = 0; t < key_tiles; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float y = x[t][i] * smem.g_k[8 * t + lane() % 4 * 2 + i % 2] * factor[i / 2] + bias[i / 2];
                if (p.softcap_log2 > 0)
                    y = p.softcap_log2 * tanhf(y / p.softcap_log2);
                x[t][i] = y + (y - y);
            }
    }

    /* Keys that a row does not see get logit -Inf, whatever their memory holds. */
    __device__ void mask(float (&x)[key_tiles][4], int64_t first)
    {
        if (sees_all(first))
            return;
#pragma unroll
        for (int t = 0; t < key_tiles; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!sees(row(i / 2), first + 8 * t + lane() % 4 * 2 + i % 2))
                    x[t][i] = -INFINITY;
    }

    __device__ void mark_bad(int64_t first)
    {
#pragma unroll
        for (int r = 0; r < lane_rows; r++)
            for (int j = 0; j < keys; j++)
                redo[r] |= smem.bad[j] && sees(row(r), first + j);
    }

    /* One step of the online softmax: x becomes p, what was so far shrinks. */
    __device__ void softmax(float (&x)[key_tiles][4])
    {
#pragma unroll
        for (int r = 0; r < lane_rows; r++) {
            float largest = max[r];
#pragma unroll
            for (int t = 0; t < key_tiles; t++)
                largest = fmaxf(largest, fmaxf(x[t][2 * r], x[t][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            const float base = largest == -INFINITY ? 0.0f : largest; /* then all x are -Inf or NaN */
            const float alpha = max[r] == -INFINITY ? 0.0f : exp2f(max[r] - base);
            max[r] = largest;
            sum[r] *= alpha;
#pragma unroll
            for (int t = 0; t < key_tiles; t++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) {
                    x[t][i] = exp2f(x[t][i] - base);
                    sum[r] += x[t][i];
                }
#pragma unroll
            for (int c = 0; c < column_tiles; c++) {
                o[c][2 * r] *= alpha;
                o[c][2 * r + 1] *= alpha;
            }
        }
    }

    __device__ uint32_t pack(float low, float high) const
    {
        return p.v_f16 ? pack_two_f16(low, high) : pack_two_bf16(low, high);
    }

    __device__ void multiply_pv(const float (&x)[key_tiles][4])
    {
        const int l = lane();
#pragma unroll
        for (int t = 0; t < key_tiles; t += 2) {
            const uint32_t a[4] = { pack(x[t][0], x[t][1]), pack(x[t][2], x[t][3]),
                                    pack(x[t + 1][0], x[t + 1][1]), pack(x[t + 1][2], x[t + 1][3]) };
#pragma unroll
            for (int c = 0; c < column_tiles; c += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, &smem.v.data[8 * t + l % 16][column() + 8 * c + l / 16 * 8]);
                if (p.v_f16) {
                    mma_f16(o[c], a, b[0], b[1]);
                    mma_f16(o[c + 1], a, b[2], b[3]);
                } else {
                    mma_bf16(o[c], a, b[0], b[1]);
                    mma_bf16(o[c + 1], a, b[2], b[3]);
                }
            }
        }
    }

    __device__ void add_keys(int64_t first)
    {
        float x[key_tiles][4];
        const bool high = mxa_tile_is_high(&s.map, tile, first / MXA_TILE);
        __syncthreads(); /* all are done with the step before */
        if (copy != (high ? MXA_HIGH : MXA_LOW))
            load_q(high ? MXA_HIGH : MXA_LOW);
        if (smem.any_bad)
            for (int j = threadIdx.x; j < keys; j += threads_sm80)
                smem.bad[j] = 0;
        __syncthreads();
        if (threadIdx.x == 0)
            smem.any_bad = 0;
        __syncthreads();
        load_keys(first);
        __syncthreads();
        multiply_qk(x);
        finish_logits(x);
        mask(x, first);
        if (smem.any_bad)
            mark_bad(first);
        softmax(x);
        multiply_pv(x);
    }

    __device__ void store_number(void *to, int d, float x) const
    {
        if (p.out.dtype == MXA_DTYPE_F32)
            static_cast<float *>(to)[d] = x;
        else
            static_cast<uint16_t *>(to)[d] =
                p.out.dtype == MXA_DTYPE_F16 ? mxa_f16_from_f32(x) : mxa_bf16_from_f32(x);
    }

    /* The four lanes of a row together: its sum, and whether all that it has is finite. */
    __device__ bool is_finite(int r, float total) const
    {
        bool finite = mxa_f32_is_finite(total) && !redo[r];
#pragma unroll
        for (int c = 0; c < column_tiles; c++)
            finite = finite && mxa_f32_is_finite(o[c][2 * r]) && mxa_f32_is_finite(o[c][2 * r + 1]);
        int all = finite;
        all &= __shfl_xor_sync(~0u, all, 1);
        all &= __shfl_xor_sync(~0u, all, 2);
        return all;
    }

    __device__ void store_row(int r)
    {
        float total = sum[r];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (p.sinks && p.sinks[h] != -INFINITY) /* its p shrank with the others */
            total += exp2f(p.sinks[h] * static_cast<float>(log2_e) - max[r]);
        const bool finite = is_finite(r, total);
        const int64_t i = row(r);
        if (i < valid.first || i >= valid.end)
            return;
        if (!finite) {
            if (lane() % 4 == 0)
                p.redo[atomicAdd(p.redo_count, 1)] = { static_cast<int32_t>(n), static_cast<int32_t>(h), i };
            return;
        }
        void *const to = mxa_row(&p.out, s.batch, h, s.q_first + i);
        const float inverse = total == 0 ? 0.0f : 1.0f / total;
#pragma unroll
        for (int c = 0; c < column_tiles; c++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int d = column() + 8 * c + lane() % 4 * 2 + e;
                if (d < p.dim_v)
                    store_number(to, d, o[c][2 * r + e] * inverse);
            }
        if (p.lse && lane() % 4 == 0 && column() == 0)
            p.lse[(s.batch * p.heads + h) * p.out.shape[2] + s.q_first + i] =
                total == 0 ? -INFINITY
                           : static_cast<float>(
                                 ln_2 * (static_cast<double>(max[r]) + log2(static_cast<double>(total))));
    }

  public:
    static constexpr int blocks = MXA_TILE / Shape::rows; /* of a tile */
    static constexpr double log2_e = 1.4426950408889634, ln_2 = 0.6931471805599453;

    __device__ Block(const MmaParams &params, Smem &memory) : p(params), smem(memory), s(memory.s)
    {
        const mxa_query_tile &t = p.tiles[blockIdx.x / blocks];
        n = static_cast<int>(t.sequence);
        if (threadIdx.x == 0)
            smem.s = p.sequences[n];
        __syncthreads();
        h = blockIdx.y;
        h_kv = h / (p.heads / p.heads_kv);
        tile = t.tile;
        first_row = tile * MXA_TILE + blockIdx.x % blocks * Shape::rows - s.map.q_offset;
        valid.first = mxa_max(first_row, 0);
        valid.end = mxa_min(first_row + Shape::rows, s.map.q_len);
#pragma unroll
        for (int r = 0; r < lane_rows; r++) {
            max[r] = p.sinks ? p.sinks[h] * static_cast<float>(log2_e) : -INFINITY;
            sum[r] = 0;
        }
    }

    __device__ void run()
    {
        if (valid.first >= valid.end)
            return;
        for (int j = threadIdx.x; j < keys; j += threads_sm80)
            smem.bad[j] = 0;
        if (threadIdx.x == 0)
            smem.any_bad = 0;
        const mxa_span seen =
            mxa_visible_keys(&s.map, valid.first + s.map.q_offset, valid.end - 1 + s.map.q_offset);
        for (int64_t first = seen.first / keys * keys; first < seen.end; first += keys)
            add_keys(first);
#pragma unroll
        for (int r = 0; r < lane_rows; r++)
            store_row(r);
    }
};

} // namespace mxa

#endif
