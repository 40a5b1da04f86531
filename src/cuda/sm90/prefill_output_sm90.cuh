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

template <class T>
struct RowOutput : RowBlock<T> {
    using RowBlock<T>::p;
    using RowBlock<T>::lane;
    using RowBlock<T>::first_row;
    using RowBlock<T>::row_sum;
    using RowBlock<T>::row_max;

    float inverse[2]; /* of the sums of the row block whose last P V is under way, */
    int64_t dest;     /* where its row r and this thread's first column go, */
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
    __device__ __forceinline__ void finish(const PrefillItem &it)
    {
        const int row = it.first + first_row;
        dest = it.batch * p.out_stride_b + it.h * p.out_stride_h + (it.q_row + first_row) * p.out_stride_s +
               2 * (lane % 4);
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
        bad &= dest_head;
        bad |= __shfl_xor_sync(~0u, bad, 1);
        bad |= __shfl_xor_sync(~0u, bad, 2);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (lane % 4 == 0 && (bad >> r & 1))
                p.redo[atomicAdd(p.redo_count, 1)] = { (dest_head >> prefill_head_shift) / p.heads,
                                                       (dest_head >> prefill_head_shift) % p.heads,
                                                       dest_row + 8 * r };
    }

    /* In the type of P V. */
    __device__ __forceinline__ void store_half(uint32_t bad[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int columns = dest_head >> r & 1 ? p.dim_v - 2 * (lane % 4) : 0;
            uint32_t *pairs = static_cast<uint32_t *>(p.out) + (dest + 8 * r * p.out_stride_s) / 2;
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
            float *to = static_cast<float *>(p.out) + dest + 8 * r * p.out_stride_s;
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

    __device__ __forceinline__ void store()
    {
        uint32_t wrong[2] = { 0u, 0u };
        if (p.out_is_float)
            store_float(wrong);
        else
            store_half(wrong);
        /* A sum of zeros is +0 in both halves unless a NaN went in. */
        const int bad = (wrong[0] != 0u) | (wrong[1] != 0u) << 1 | (dest_head >> 2 & 3);
        if (__any_sync(~0u, bad != 0))
            redo(bad);
    }
};

} // namespace mxa

#endif
