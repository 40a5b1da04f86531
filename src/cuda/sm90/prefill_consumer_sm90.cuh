/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer group: 64 queries of the item, walking over its steps of keys. Each step runs
 *     issue Q K of step n | issue P V of step n - 1 | softmax of step n while P V runs | pack P
 * and the last P V of an item runs behind the first softmax of the next one.
 */
#ifndef MXA_CUDA_PREFILL_CONSUMER_SM90_CUH
#define MXA_CUDA_PREFILL_CONSUMER_SM90_CUH

#include "cuda/sm90/prefill_products_sm90.cuh"

namespace mxa
{

template <class T>
struct Consumer : Products<T> {
    using RowBlock<T>::scores;
    using RowBlock<T>::prob;
    using RowBlock<T>::out;
    using RowBlock<T>::lane;
    using RowBlock<T>::p;
    using Products<T>::smem;
    using Products<T>::k_ring;
    using Products<T>::group;
    using Products<T>::pv_pending;

    ItemRing item_ring;
    Ring factor_ring;                /* of the step in hand, or the next low one */
    uint32_t q_parity[2] = { 0, 0 }; /* of q_low, q_high */
    PrefillSteps steps;              /* of the item in hand; the rest of it is read where it is used */
    int mask_above, mask_below;
    bool fresh = true; /* nothing is in out yet */
    static constexpr int first_plain = 2;

    using Products<T>::Products;

    __device__ __forceinline__ const PrefillItem &item() const
    {
        return smem.item[item_ring.slot()];
    }

    /* False: there is no more work. */
    __device__ __forceinline__ bool take_item()
    {
        barrier_wait(smem_address(&smem.item_full[item_ring.slot()]), item_ring.parity());
        if (item().batch < 0)
            return false;
        mask_above = uniform(min(item().mask_above[0], item().mask_above[1]));
        mask_below = uniform(max(item().mask_below[0], item().mask_below[1]));
#pragma unroll
        for (int run = 0; run < 4; run++) {
            steps.end[run] = uniform(item().end[run]);
            steps.base[run] = uniform(item().base[run]);
        }
        this->load_factors(item(), smem.careful);
        return true;
    }

    __device__ __forceinline__ void release_item()
    {
        __syncwarp(); /* all lanes have read it */
        if (lane == 0)
            barrier_arrive(smem_address(&smem.item_empty[item_ring.slot()]));
        item_ring.count++;
    }

    /* ------------------------------------------------------------ steps */

    template <bool high>
    __device__ __forceinline__ void multiply(bool start_out)
    {
        this->template issue_qk<high>();
        this->issue_pv(start_out);
        wgmma_results(scores);
    }

    /*
     * ptxas moves waits up over plain arithmetic, so P V would be awaited before the exponentials, were
     * there not a loop in front, here one with nothing to wait for. Warps raise m one by one, so no wait
     * may stand in that branch. In an item's first step out is that of the item before.
     */
    __device__ __forceinline__ void await_pv_and_raise(const float sum[2], bool first)
    {
        this->row_sum[0] += sum[0];
        this->row_sum[1] += sum[1];
        const bool raise = __any_sync(~0u, fmaxf(sum[0], sum[1]) > T::sum_limit);
        if (!this->k_ready)
            barrier_wait(smem_address(&smem.item_full[item_ring.slot()]), item_ring.parity());
        wgmma_wait<0>();
        wgmma_results(out);
        if (raise)
            this->raise_max(sum, first);
    }

    __device__ __forceinline__ void await_q(bool high)
    {
        barrier_wait(smem_address(&smem.q_full[high][group]), q_parity[high]);
        q_parity[high] ^= 1;
    }
    __device__ __forceinline__ void release_q(bool high)
    {
        if (lane == 0)
            barrier_arrive(smem_address(&smem.q_empty[high][group]));
    }

    /* P of a step in fp32. */
    template <bool high>
    __device__ __forceinline__ void softmax(float sum[2])
    {
        if (T::capped)
            cap_scores<high>();
        this->exponentials(high, !T::capped, sum);
    }

    template <bool high>
    __device__ __forceinline__ void cap_scores()
    {
        this->scores_to_logits(high);
        this->cap_logits();
    }

    /* The factors of a low step: the next ones of the ring. */
    template <bool high>
    __device__ __forceinline__ void take_k_factors()
    {
        if constexpr (high)
            return;
        this->k_factor = smem.k_factor[factor_ring.slot];
        factor_ring.next<T::factor_slots>();
    }

    __device__ __forceinline__ void await_scores()
    {
        wgmma_wait<1>();
        wgmma_results(scores);
    }

    /*
     * A step in the midst of a row block: low if there are low ones, and no mask. Both groups have as many.
     * They issue in turn here and nowhere else: other steps take long, and one group must not wait there
     * for the other.
     */
    __device__ __forceinline__ void plain_step()
    {
        constexpr bool high = !T::has_low;
        float sum[2];
        this->await_turn();
        multiply<high>(false);
        this->pass_turn();
        await_scores();
        const Ring used = k_ring;
        this->template advance_k<high>();
        if (high || !T::late_k_release)
            this->template release_k<high>(used);
        this->look_ahead();
        take_k_factors<high>();
        softmax<high>(sum);
        if (!high && T::late_k_release)
            this->template release_k<high>(used);
        await_pv_and_raise(sum, false);
        this->release_v();
        this->pack_p();
    }

    /* Masked if need be; then P. */
    template <bool high>
    __device__ __forceinline__ void edge_softmax(int n, float sum[2])
    {
        const int step = steps.step(n);
        const bool first = n == 0;
        if (T::capped)
            cap_scores<high>();
        if (step > mask_above || step < mask_below)
            this->mask(item(), step);
        bool fresh_rows[2];
        this->find_fresh(first, fresh_rows);
        if (__any_sync(~0u, fresh_rows[0] || fresh_rows[1]))
            this->start_rows(high, !T::capped, first, n > first_plain, fresh_rows);
        this->exponentials(high, !T::capped, sum);
    }

    /*
     * Any step: one body for the first and others, masked or not, since more code would be fetched anew in
     * each item. Behind the first step's softmax runs the last P V of the item before.
     */
    template <bool high>
    __device__ __forceinline__ void edge_step(int n)
    {
        const bool first = n == 0;
        float sum[2];
        multiply<high>(fresh);
        await_scores();
        fresh = false;
        const Ring used = k_ring;
        this->template advance_k<high>();
        this->look_ahead();
        take_k_factors<high>();
        if (high && n + 1 == (T::has_low ? steps.end[1] : steps.count()))
            release_q(true);
        if (first)
            this->start();
        edge_softmax<high>(n, sum);
        this->template release_k<high>(used);
        await_pv_and_raise(sum, first);
        if (pv_pending)
            this->release_v();
        if (first) {
            if (pv_pending)
                store_item();
            fresh = true;
        }
        pv_pending = true;
        this->pack_p();
    }

    /* ------------------------------------------------------------ items */

    /*
     * Where the plain steps from n on end: with their run, or at a masked one, or (no low tiles) at the last
     * one, which gives Q back. Steps 0 and 1 are not plain: they have to do with out's start.
     */
    __device__ __forceinline__ int plain_end(int n) const
    {
        const bool above = n < steps.end[2];
        const int base = above ? steps.base[2] : steps.base[3], step = base - n;
        if (n < first_plain || step > mask_above)
            return n;
        return min(above ? steps.end[2] : steps.count() - !T::has_low, base - mask_below + 1);
    }

    __device__ __forceinline__ void walk()
    {
        int n = 0;
        if (has_q<T>(steps, true))
            await_q(true);
        if constexpr (T::has_low) {
            for (; n < steps.end[1]; n++)
                edge_step<true>(n);
            if (n < steps.count())
                await_q(false);
        }
        while (n < steps.count()) {
            for (const int end = plain_end(n); n < end; n++)
                plain_step();
            if (n < steps.count() && n >= plain_end(n)) {
                edge_step<!T::has_low>(n);
                n++;
            }
        }
        if (T::has_low && n > steps.end[1])
            release_q(false);
        this->finish(item(), smem.careful);
        release_item();
    }

    /*
     * The item before. One with rows that are not finite is to be done again, unless that is what was done.
     */
    __device__ __forceinline__ void store_item()
    {
        const int bad = this->store();
        if (!__any_sync(~0u, bad != 0) || smem.careful)
            return;
        this->redo(bad);
        if (lane == 0) {
            const int warp = (threadIdx.x - 128) / 32;
            const int entry = smem.item_index[item_ring.index_slot(1)] * consumer_warps + warp;
            p.careful_next[entry] = atomicExch(&smem.careful_first, entry);
        }
    }

    /* The last P V when no products of another item follow at once. */
    __device__ __forceinline__ void drain()
    {
        this->issue_pv(fresh);
        wgmma_wait<0>();
        this->release_v();
        store_item();
        pv_pending = false;
        fresh = true;
    }

    __device__ __forceinline__ void run()
    {
        if (group == 1)
            named_barrier_arrive(1, 128 * groups);
#pragma unroll
        for (int i = 0; i < T::keys / 2; i++)
            scores[i] = int_bias_bits;
#pragma unroll
        for (int i = 0; i < T::keys / 4; i++)
            prob[i] = 0;
        await_kernels_before();
        do {
            this->look_ahead();
            while (take_item())
                walk();
            if (pv_pending)
                drain();
            release_item();
        } while (another_pass(smem));
        if (group == 0) /* the turn that the other one passed last */
            this->await_turn();
    }
};

} // namespace mxa

#endif
