/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a consumer group keeps in registers: scores and P of 64 x 128, the 64 output rows with their running
 * maximum m and sum, and the softmax between them. No true maximum is taken after the first tile: m stays,
 * and rises by a power of two where a sum grows large, which is exact.
 */
#ifndef MXA_CUDA_PREFILL_SOFTMAX_SM90_CUH
#define MXA_CUDA_PREFILL_SOFTMAX_SM90_CUH

#include "cuda/sm90/prefill_item_sm90.h"

#include <float.h>

namespace mxa
{

/*
 * int32 scores are read as floats: the accumulators start from the bits of 1.5 * 2^23, so their bits are
 * this + score.
 */
constexpr uint32_t int_bias_bits = 0x4B400000u;
constexpr float int_bias = 0x1.8p23f;

/*
 * Accumulator i of a thread stands in row r + 8 * row_half(i) and column 8 * (i / 4) + 2 * (lane % 4) + i %
 * 2.
 */
__device__ __forceinline__ constexpr int row_half(int i)
{
    return i / 2 % 2;
}

/* Of the four lanes that share a row. */
__device__ __forceinline__ float row_largest(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float row_total(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

template <class T>
struct RowBlock {
    const PrefillParams &p;
    uint32_t scores[64];
    uint32_t prob[32]; /* P of the tile before, packed as the A operand of P V */
    float out[64];
    float row_max[2], row_sum[2];
    float factor[2], offset[2]; /* of a low logit in base 2: factor * gk * score + offset */
    int k_factors;              /* where those of this head begin, one a key tile */
    float gk;                   /* of the tile whose scores come next, loaded a step ahead */
    bool raised;                /* raw: m has left its start in some row of this warp */
    int lane, first_row;        /* first_row: of this thread, counted from the first query of the tile */
    float inverse[2];           /* of the sums of the row block whose last P V is under way, */
    uint16_t *dest;             /* and where its row r goes, */
    int dest_rows;              /* with bit i: row r + 8 i exists */

    __device__ explicit RowBlock(const PrefillParams &params) : p(params)
    {
    }

    /* Early: their latency passes behind other work. */
    __device__ __forceinline__ void load_factors(const PrefillItem &it)
    {
        offset[0] = offset[1] = 0.0f;
        if (!T::has_low)
            return;
        const int row = it.q_tile * tile + first_row - p.q_offset; /* of the query, which may not exist */
        k_factors = (it.b * p.heads_kv + it.h_kv) * p.k_tiles;
        load_k_factor(it.k_tile(0));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t at = it.row0 + first_row + min(max(8 * r, -row), p.q_len - 1 - row);
            if (!T::raw)
                factor[r] = __ldg(p.gq + at);
            if (p.bias_log2)
                offset[r] = __ldg(p.bias_log2 + at);
        }
    }

    /* A step ahead of its use. */
    __device__ __forceinline__ void load_k_factor(int kt)
    {
        if (T::has_low && !T::raw)
            gk = __ldg(p.gk + k_factors + max(kt, 0));
    }

    __device__ __forceinline__ void start()
    {
        raised = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (T::has_low && !T::raw)
                factor[r] *= p.scale_log2;
            row_sum[r] = 0.0f;
            row_max[r] = T::raw ? offset[r] : 0.0f;
        }
    }

    /* What a row does not see becomes the score of an infinitely small logit. */
    __device__ __forceinline__ void mask(const PrefillItem &it, int kt, bool high)
    {
        const bool negative = (high || !T::raw) && p.scale_log2 < 0;
        const uint32_t never = __float_as_uint(negative ? INFINITY : -INFINITY);
        const int column0 = kt * tile + 2 * (lane % 4);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int position = it.q_tile * tile + first_row + 8 * r;
            const int hi = p.window_right < 0 ? p.kv_len - 1 : min(p.kv_len - 1, position + p.window_right);
#pragma unroll
            for (int i = 0; i < 64; i++)
                if (row_half(i) == r)
                    scores[i] = 8 * (i / 4) + i % 2 <= hi - column0 ? scores[i] : never;
            if (p.window_left >= 0) {
                const int lo = position - p.window_left;
#pragma unroll
                for (int i = 0; i < 64; i++)
                    if (row_half(i) == r)
                        scores[i] = 8 * (i / 4) + i % 2 >= lo - column0 ? scores[i] : never;
            }
        }
    }

    /* A logit in base 2, less m, is f * score + o; f is never 0, since masked scores are infinite. */
    __device__ __forceinline__ void logit_line(bool high, float f[2], float o[2]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float low = factor[r] * gk;
            f[r] = high ? p.scale_log2 : low;
            f[r] = f[r] == 0.0f ? FLT_MIN : f[r];
            o[r] = (high ? 0.0f : offset[r] - (T::low_is_int ? int_bias * f[r] : 0.0f)) - row_max[r];
        }
    }

    /* Start a row block: m is the maximum over the first tile, 0 for a row that sees none of it. */
    __device__ __forceinline__ void first_max(bool high)
    {
        float f[2], o[2], most[2] = { -INFINITY, -INFINITY };
        logit_line(high, f, o);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int r = row_half(i);
            most[r] = fmaxf(most[r], fmaf(__uint_as_float(scores[i]), f[r], o[r]));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            most[r] = row_largest(most[r]);
            row_max[r] = most[r] == -INFINITY ? 0.0f : most[r];
        }
    }

    /* raw: scores that are not yet a logit less m. */
    __device__ __forceinline__ void scores_to_logits(bool high)
    {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int r = row_half(i);
            const float f = high ? p.scale_log2 : 1.0f, o = (high ? 0.0f : offset[r]) - row_max[r];
            scores[i] = __float_as_uint(fmaf(__uint_as_float(scores[i]), f, o));
        }
    }

    /* scores become P in fp32; sum receives this thread's part of the rows. */
    __device__ __forceinline__ void exponentials(bool high, float sum[2])
    {
        float f[2], o[2], part[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (!T::raw)
            logit_line(high, f, o);
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const float x = __uint_as_float(scores[i]);
            const float e = exp2_approx(T::raw ? x : fmaf(x, f[row_half(i)], o[row_half(i)]));
            part[i % 4] += e;
            scores[i] = __float_as_uint(e);
        }
        sum[0] = part[0] + part[1];
        sum[1] = part[2] + part[3];
    }

    /* Raise m by a power of two where a sum of the tile is large: exact, so nothing else changes. */
    __device__ __forceinline__ void raise_max(const float sum[2])
    {
        raised = true;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float largest = row_largest(sum[r]);
            const bool raise = largest > T::sum_limit && largest < INFINITY;
            const int e = raise ? min((__float_as_int(largest) >> 23) - 127, 126) : 0; /* down is normal */
            const float down = __int_as_float((127 - e) << 23);
            row_max[r] += e;
            row_sum[r] *= down;
#pragma unroll
            for (int i = 0; i < 64; i++)
                if (row_half(i) == r) {
                    scores[i] = __float_as_uint(__uint_as_float(scores[i]) * down);
                    out[i] *= down;
                }
        }
    }

    /* Frees the scores for the next tile. */
    __device__ __forceinline__ void pack_p()
    {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            prob[i] = T::pack(__uint_as_float(scores[2 * i]), __uint_as_float(scores[2 * i + 1]));
            if (T::low_is_int)
                scores[2 * i] = scores[2 * i + 1] = constant_here<int_bias_bits>();
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 64; i++)
            out[i] = 0.0f;
    }

    /* The sums are complete: what remains to be known of the row block until its output is. */
    __device__ __forceinline__ void finish(const PrefillItem &it)
    {
        constexpr float ln_2 = 0.693147180559945f;
        const int row = it.q_tile * tile + first_row - p.q_offset;
        dest = static_cast<uint16_t *>(p.out) + it.out0 + first_row * p.out_stride_s + 2 * (lane % 4);
        dest_rows = (row >= 0 && row < p.q_len) | (row >= -8 && row < p.q_len - 8) << 1;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float total = row_total(row_sum[r]);
            inverse[r] = total == 0.0f ? 0.0f : reciprocal_approx(total);
            if (p.lse && (dest_rows >> r & 1) && lane % 4 == 0)
                p.lse[it.row0 + first_row + 8 * r] =
                    (row_max[r] + log2_approx(total)) * ln_2; /* -inf if no key is seen */
        }
    }

    __device__ __forceinline__ void store()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!(dest_rows >> r & 1))
                continue;
            uint32_t *pairs = reinterpret_cast<uint32_t *>(dest + 8 * r * p.out_stride_s);
#pragma unroll
            for (int i = 0; i < 16; i++)
                pairs[4 * i] = T::pack(out[4 * i + 2 * r] * inverse[r], out[4 * i + 2 * r + 1] * inverse[r]);
        }
    }
};

} // namespace mxa

#endif
