/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a row block: its sums, its log-sum-exp, its output, and the list of rows to be done again. The
 * output comes later than the sums, behind the first softmax of the next row block.
 */
#ifndef MXA_CUDA_PREFILL_OUTPUT_SM90_CUH
#define MXA_CUDA_PREFILL_OUTPUT_SM90_CUH

#include "cuda/sm90/prefill_softmax_sm90.cuh"

namespace mxa
{

/* Lane q of four gets word q of each: w[n] is that of lane n. */
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane)
{
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t x0 = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    const uint32_t x1 = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    const uint32_t a[2] = { odd ? x0 : w[0], odd ? w[1] : x0 }, b[2] = { odd ? x1 : w[2], odd ? w[3] : x1 };
    const uint32_t y0 = __shfl_xor_sync(~0u, upper ? a[0] : b[0], 2);
    const uint32_t y1 = __shfl_xor_sync(~0u, upper ? a[1] : b[1], 2);
    w[0] = upper ? y0 : a[0];
    w[1] = upper ? y1 : a[1];
    w[2] = upper ? b[0] : y0;
    w[3] = upper ? b[1] : y1;
}

template <class T>
struct RowOutput : RowBlock<T> {
    using RowBlock<T>::p;
    using RowBlock<T>::lane;
    using RowBlock<T>::first_row;
    using RowBlock<T>::row_sum;
    using RowBlock<T>::row_max;

    float inverse[2]; /* of the sums of the row block whose last P V is under way, */
    uint8_t *dest;    /* where its row r and this thread's first column go, */
    int dest_row;     /* row r of the sequence's queries, */
    /* sequence * heads + head, above flags: i: row r + 8 i exists; 2 + i: its sum is out of range */
    int dest_head;

    using RowBlock<T>::RowBlock;

    __device__ __forceinline__ bool sees_keys(const PrefillItem &it, int position) const
    {
        const int hi = p.window_right < 0 ? it.kv_len - 1 : min(it.kv_len - 1, position + p.window_right);
        return hi >= (p.window_left < 0 ? 0 : max(0, position - p.window_left));
    }

    /* The sums are complete: what remains to be known of the row block until its output is. */
    __device__ __forceinline__ void finish(const PrefillItem &it, bool careful)
    {
        const int row = it.first + first_row;
        const int64_t offset = it.batch * p.out_stride_b + it.h * p.out_stride_h +
                               (it.q_row + first_row) * p.out_stride_s + 2 * (lane % 4);
        dest = static_cast<uint8_t *>(p.out) + offset * (p.out_is_float ? sizeof(float) : sizeof(uint16_t));
        dest_row = row;
        dest_head = (it.sequence * p.heads + it.h) << prefill_head_shift | (row >= 0 && row < it.q_len) |
                    (row >= -8 && row < it.q_len - 8) << 1;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float total = row_total(row_sum[r]);
            const bool in_range = total >= T::least_sum && total < INFINITY;
            if (!in_range && (total != 0.0f || sees_keys(it, it.q_tile * tile + first_row + 8 * r)))
                dest_head |= 4 << r;
            inverse[r] = total == 0.0f ? 0.0f : reciprocal_approx(total);
            if (careful && (dest_head >> (2 + r) & 1)) /* a sign that this result is none */
                inverse[r] = __int_as_float(MXA_F32_NAN);
            if (p.lse && (dest_head >> r & 1) && lane % 4 == 0) {
                const int64_t at =
                    (int64_t(it.batch) * p.heads + it.h) * p.tensor_q_len + it.q_row + first_row;
                p.lse[at + 8 * r] = (row_max[r] + log2_approx(total)) * ln_2; /* -inf if no key is seen */
            }
        }
    }

    /* Rows of this thread, a bit each, go to the list once, by the first of their lanes. */
    __device__ __forceinline__ void redo(int bad)
    {
        bad |= __shfl_xor_sync(~0u, bad, 1);
        bad |= __shfl_xor_sync(~0u, bad, 2);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (lane % 4 == 0 && (bad >> r & 1))
                p.redo[atomicAdd(p.redo_count, 1)] = { (dest_head >> prefill_head_shift) / p.heads,
                                                       (dest_head >> prefill_head_shift) % p.heads,
                                                       dest_row + 8 * r };
    }

    /*
     * The same, where a row's blocks of 8 columns are whole and aligned: each lane of a row stores one of
     * four.
     */
    __device__ __forceinline__ void store_blocks(uint32_t bad[2])
    {
        constexpr int blocks = T::dim_v / 8, block_bytes = 8 * sizeof(uint16_t);
        const int column = lane % 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int blocks_there = dest_head >> r & 1 ? p.dim_v / 8 - column : 0;
            uint8_t *to = dest + 8 * r * p.out_stride_s * sizeof(uint16_t) +
                          column * (block_bytes - 2 * int(sizeof(uint16_t)));
#pragma unroll
            for (int i = 0; i < blocks; i += 4) {
                uint32_t w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float *pair = this->out + 4 * (i + j) + 2 * r;
                    w[j] = T::pack(pair[0] * inverse[r], pair[1] * inverse[r]);
                    bad[r] = T::zero_times(w[j], bad[r]);
                }
                transpose_quad(w, lane);
                store_if(reinterpret_cast<uint4 *>(to + i * block_bytes), w, i < blocks_there);
            }
        }
    }

    /* In the type of P V. */
    __device__ __forceinline__ void store_half(uint32_t bad[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int columns = dest_head >> r & 1 ? p.dim_v - 2 * (lane % 4) : 0;
            uint32_t *pairs = reinterpret_cast<uint32_t *>(dest + 8 * r * p.out_stride_s * sizeof(uint16_t));
#pragma unroll
            for (int i = 0; i < T::dim_v / 8; i++) {
                const uint32_t pair =
                    T::pack(this->out[4 * i + 2 * r] * inverse[r], this->out[4 * i + 2 * r + 1] * inverse[r]);
                bad[r] = T::zero_times(pair, bad[r]);
                store_if(pairs + 4 * i, pair, 8 * i < columns);
            }
        }
    }

    __device__ __forceinline__ void store_float(uint32_t bad[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int columns = dest_head >> r & 1 ? p.dim_v - 2 * (lane % 4) : 0;
            float *to = reinterpret_cast<float *>(dest + 8 * r * p.out_stride_s * sizeof(float));
            float wrong = 0.0f;
#pragma unroll
            for (int i = 0; i < T::dim_v / 8; i++) {
                const float x = this->out[4 * i + 2 * r] * inverse[r];
                const float y = this->out[4 * i + 2 * r + 1] * inverse[r];
                wrong = fmaf(x, 0.0f, fmaf(y, 0.0f, wrong));
                store_if(to + 8 * i, x, y, 8 * i < columns);
            }
            bad[r] = wrong == 0.0f ? 0u : ~0u;
        }
    }

    /* Returns a bit for each row of this thread that is to be computed again. */
    __device__ __forceinline__ int store()
    {
        uint32_t wrong[2] = { 0u, 0u };
        if (p.out_is_float)
            store_float(wrong);
        else if (p.out_is_blocks)
            store_blocks(wrong);
        else
            store_half(wrong);
        /* A sum of zeros is +0 in both halves unless a NaN went in. */
        return ((wrong[0] != 0u) | (wrong[1] != 0u) << 1 | (dest_head >> 2 & 3)) & dest_head;
    }
};

} // namespace mxa

#endif
