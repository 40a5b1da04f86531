/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a consumer group keeps in registers: scores and P of 64 rows by a step's keys, the 64 output rows with
 * their running maximum m and sum, and the softmax between them. No maximum is taken after the first step: m
 * stays, and rises by a power of two where a sum grows large, which is exact.
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
constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

/*
 * Accumulator i of a thread stands in row r + 8 * row_half(i) and column 8 * (i / 4) + 2 * (lane % 4) + i %
 * 2.
 */
__device__ __forceinline__ constexpr int row_half(int i)
{
    return i / 2 % 2;
}

/*
 * x rounded to fewer bits; NaN stays. With a factor f of 22 bits int_bias * f is exact. With 20 bits and o a
 * multiple of 2^-10, o - int_bias * f is exact as well, for f below 2^-13 and o / f below 2^23; for larger f
 * it is off by 0.75 f at most.
 */
template <int bits>
__device__ __forceinline__ float rounded(float x)
{
    const float large = __fmul_rn(x, float((1 << (24 - bits)) + 1));
    return __fsub_rn(large, __fsub_rn(large, x));
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
    static constexpr int n_scores = T::keys / 2, n_out = T::dim_v / 2; /* of a thread */

    const PrefillParams &p;
    uint32_t scores[n_scores];
    uint32_t prob[n_scores / 2]; /* P of the step before, packed as the A operand of P V */
    float out[n_out];
    float row_max[2], row_sum[2];
    float factor[2], offset[2]; /* of a low logit in base 2: factor * K's factor * score + offset */
    const float *k_factor;      /* of the step in hand, low ones only */
    uint8_t nonfinite[2];       /* of the int8 rows' 128 */
    int lane, first_row;        /* first_row: of this thread, counted from the first query of the tile */

    __device__ explicit RowBlock(const PrefillParams &params) : p(params)
    {
    }

    /* Early: their latency passes behind other work. */
    __device__ __forceinline__ void load_factors(const PrefillItem &it, bool careful)
    {
        offset[0] = offset[1] = 0.0f;
        factor[0] = factor[1] = 1.0f;
        nonfinite[0] = nonfinite[1] = 0;
        row_max[0] = row_max[1] = p.sinks ? __ldg(p.sinks + it.h) : -INFINITY;
        if (!T::has_low && !p.bias_in_high)
            return;
        const int row = it.first + first_row; /* query, which may not exist */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int there = min(max(row + 8 * r, 0), it.q_len - 1), at = it.q_copy + there - it.first;
            if (T::has_low && p.gq)
                factor[r] = __ldg(p.gq + at);
            nonfinite[r] =
                T::low_is_int && p.q_nonfinite && !careful ? p.q_nonfinite[it.q_block + there / tile] : 0;
            if (p.bias)
                offset[r] = __ldg(p.bias + at);
        }
    }

    __device__ __forceinline__ void start()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            factor[r] =
                T::low_is_int && nonfinite[r] ? __int_as_float(MXA_F32_NAN) : factor[r] * p.scale_log2;
            offset[r] *= log2_e;
            row_max[r] *= log2_e; /* the sink's logit, until a first maximum */
        }
    }

    /*
     * What a row does not see becomes the score of an infinitely small logit. Columns go by quarters of a
     * step: those that all rows of the warp see are passed over.
     */
    __device__ __forceinline__ void mask(const PrefillItem &it, int step)
    {
        constexpr int quarter = n_scores / 4, quarter_keys = T::keys / 4, warp_rows = 16;
        const uint32_t never = __float_as_uint(!T::capped && p.scale_log2 < 0 ? INFINITY : -INFINITY);
        const int position = it.q_tile * tile + first_row, warp_first = position - lane / 4;
        const int key0 = step * T::keys, most = it.kv_len - 1;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int key = key0 + n * quarter_keys, key_last = key + quarter_keys - 1;
            const bool mask_right =
                key_last > most || (p.window_right >= 0 && key_last > warp_first + p.window_right);
            const bool mask_left = p.window_left >= 0 && key < warp_first + warp_rows - 1 - p.window_left;
            if (!mask_right && !mask_left)
                continue;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = position + 8 * r, first = key + 2 * (lane % 4);
                const int hi = (p.window_right < 0 ? most : min(most, row + p.window_right)) - first;
                const int lo = (p.window_left < 0 ? 0 : row - p.window_left) - first;
#pragma unroll
                for (int i = 0; i < quarter; i++)
                    if (row_half(i) == r && 8 * (i / 4) + i % 2 > hi)
                        scores[n * quarter + i] = never;
                if (!mask_left)
                    continue;
#pragma unroll
                for (int i = 0; i < quarter; i++)
                    if (row_half(i) == r && 8 * (i / 4) + i % 2 < lo)
                        scores[n * quarter + i] = never;
            }
        }
    }

    /*
     * A logit in base 2, less m, is f * score + o; f is never 0, since masked scores are infinite. With a
     * factor a key: f * score, less the bias of integers, is to be multiplied by it, then o added.
     */
    struct Line {
        float f[2], o[2], bias[2];
    };

    __device__ __forceinline__ Line logit_line(bool high, bool less_m) const
    {
        Line line;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float low = T::has_low && !T::key_factors ? factor[r] * *k_factor : factor[r];
            const float f = high ? p.scale_log2 : low;
            line.f[r] = fabsf(f) < FLT_MIN ? FLT_MIN : f;
            if (T::low_is_int && !high)
                line.f[r] = rounded < T::key_factors ? 22 : 20 > (line.f[r]);
            line.bias[r] = T::low_is_int && !high ? -int_bias * line.f[r] : 0.0f;
            line.o[r] = high && !p.bias_in_high ? 0.0f : offset[r];
            line.o[r] -= less_m ? row_max[r] : 0.0f;
            if (!T::key_factors)
                line.o[r] += line.bias[r];
        }
        return line;
    }

    __device__ __forceinline__ float2 factors_of_keys(int block) const
    {
        return *reinterpret_cast<const float2 *>(k_factor + 8 * block + 2 * (lane % 4));
    }

    __device__ __forceinline__ float logit(const Line &line, int i, bool high, float2 g) const
    {
        const int r = row_half(i);
        const float x = __uint_as_float(scores[i]);
        if (!T::key_factors || high)
            return fmaf(x, line.f[r], line.o[r]);
        const float product = T::low_is_int ? fmaf(x, line.f[r], line.bias[r]) : x * line.f[r];
        return fmaf(product, i % 2 ? g.y : g.x, line.o[r]);
    }

    /* Rows that have met no key yet, nor a sink. */
    __device__ __forceinline__ void find_fresh(bool first, bool fresh[2]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            fresh[r] = first || row_total(row_sum[r]) == 0.0f;
    }

    /* Such that o of low logits is a multiple of 2^-10: see rounded. */
    __device__ __forceinline__ float in_units(float m, int r) const
    {
        return rintf((m - offset[r]) * 0x1p10f) * 0x1p-10f + offset[r];
    }

    /*
     * Start fresh rows: m is the maximum over some columns of the step, or 0 where none of these is seen. A
     * larger logit raises m as in any step. Both ends of the step are among the columns: a row that has keys
     * in other steps too sees one of them, so its sum does not vanish. In plain steps, which start no rows,
     * it may have vanished (after_plain): where m is small enough for that, the row is to be done again.
     */
    __device__ __forceinline__ void start_rows(bool high, bool linear, bool first, bool after_plain,
                                               const bool fresh[2])
    {
        constexpr int blocks = T::keys / 8, sampled = 4;
        const Line line = linear ? logit_line(high, false) : Line{ { 1.0f, 1.0f }, {}, {} };
        float most[2] = { -INFINITY, -INFINITY };
#pragma unroll
        for (int n = 0; n < sampled; n++) {
            const int block = n * (blocks - 1) / (sampled - 1);
            const float2 g = T::key_factors && !high && linear ? factors_of_keys(block) : float2{};
#pragma unroll
            for (int i = 4 * block; i < 4 * block + 4; i++)
                most[row_half(i)] = fmaxf(most[row_half(i)], logit(line, i, high || !linear, g));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sink = first ? row_max[r] : -INFINITY;
            const float largest = fmaxf(row_largest(most[r]), sink);
            const float m = largest == -INFINITY ? 0.0f : T::m_in_units ? in_units(largest, r) : largest;
            row_max[r] = fresh[r] ? m : row_max[r];
            if (first) /* one lane counts the sink */
                row_sum[r] = lane % 4 == 0 ? exp2_approx(sink - m) : 0.0f;
            else if (after_plain && fresh[r] && m < T::vanishing_m)
                row_sum[r] = __int_as_float(MXA_F32_NAN);
        }
    }

    /* Of scores that are logits in base 2 already. */
    __device__ __forceinline__ Line less_m_line() const
    {
        return { { 1.0f, 1.0f }, { -row_max[0], -row_max[1] }, { 0.0f, 0.0f } };
    }

    /* Scores become logits in base 2. */
    __device__ __forceinline__ void scores_to_logits(bool high)
    {
        const Line line = logit_line(high, false);
#pragma unroll
        for (int i = 0; i < n_scores; i++) {
            const float2 g = T::key_factors && !high ? factors_of_keys(i / 4) : float2{};
            scores[i] = __float_as_uint(logit(line, i, high, g));
        }
    }

    /* x = cap * tanh(x / cap), where tanh(y) = 1 - 2 / (1 + e^2y). */
    __device__ __forceinline__ void cap_logits()
    {
#pragma unroll
        for (int i = 0; i < n_scores; i++) {
            const float e = exp2_approx(__uint_as_float(scores[i]) * p.cap_rate);
            scores[i] = __float_as_uint(fmaf(-2.0f * p.cap_log2, reciprocal_approx(1.0f + e), p.cap_log2));
        }
    }

    /*
     * Scores become P in fp32; sum receives this thread's part of the rows. linear: they are not logits yet.
     */
    __device__ __forceinline__ void exponentials(bool high, bool linear, float sum[2])
    {
        float part[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        const Line line = linear ? logit_line(high, true) : less_m_line();
#pragma unroll
        for (int block = 0; block < n_scores / 4; block++) {
            const float2 g = T::key_factors && !high && linear ? factors_of_keys(block) : float2{};
#pragma unroll
            for (int i = 4 * block; i < 4 * block + 4; i++) {
                const float e = exp2_approx(logit(line, i, high || !linear, g));
                part[i % 4] += e;
                scores[i] = __float_as_uint(e);
            }
        }
        sum[0] = part[0] + part[1];
        sum[1] = part[2] + part[3];
    }

    /*
     * Raise m by a power of two where a sum of the step is large: exact, so nothing else changes. In the
     * first step out is not this row block's yet.
     */
    __device__ __forceinline__ void raise_max(const float sum[2], bool first)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float largest = row_largest(sum[r]);
            const bool raise = largest > T::sum_limit && largest < INFINITY;
            const int e = raise ? min((__float_as_int(largest) >> 23) - 127, 126) : 0; /* down is normal */
            const float down = __int_as_float((127 - e) << 23);
            row_max[r] += e;
            row_sum[r] *= down;
#pragma unroll
            for (int i = 0; i < n_scores; i++)
                if (row_half(i) == r)
                    scores[i] = __float_as_uint(__uint_as_float(scores[i]) * down);
            if (!first) {
#pragma unroll
                for (int i = 0; i < n_out; i++)
                    if (row_half(i) == r)
                        out[i] *= down;
            }
        }
    }

    /* Frees the scores for the next step. */
    __device__ __forceinline__ void pack_p()
    {
#pragma unroll
        for (int i = 0; i < n_scores / 2; i++) {
            prob[i] = T::pack(__uint_as_float(scores[2 * i]), __uint_as_float(scores[2 * i + 1]));
            if (T::int_start_early)
                scores[2 * i] = scores[2 * i + 1] = constant_here<int_bias_bits>();
        }
    }
};

} // namespace mxa

#endif
