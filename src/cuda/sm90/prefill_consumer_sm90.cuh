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
        mask_above = uniform(item().mask_above[group]);
        mask_below = uniform(item().mask_below[group]);
#pragma unroll
        for (int run = 0; run < 4; run++) {
            steps.end[run] = uniform(item().end[run]);
            steps.base[run] = uniform(item().base[run]);
        }
        this->load_factors(item());
        return true;
    }

    __device__ __forceinline__ void release_item()
    {
        if (lane == 0)
            barrier_arrive(smem_address(&smem.item_empty[item_ring.slot()]));
        item_ring.count++;
    }

    /* ------------------------------------------------------------ steps */

    template <bool high>
    __device__ __forceinline__ void multiply(bool start_out)
    {
        this->await_turn();
        this->template issue_qk<high>();
        this->issue_pv(start_out);
        this->pass_turn();
        wgmma_wait<1>();
        wgmma_results(scores);
    }

    /* This branch also keeps the next wait below it: ptxas moves waits up over plain arithmetic. */
    __device__ __forceinline__ void raise_if_large(const float sum[2], bool first)
    {
        this->row_sum[0] += sum[0];
        this->row_sum[1] += sum[1];
        if (__any_sync(~0u, fmaxf(sum[0], sum[1]) > T::sum_limit)) {
            wgmma_wait<0>();
            this->raise_max(sum, first);
        }
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

    /* A step in the midst of a row block: low if there are low ones, and no mask. */
    __device__ __forceinline__ void plain_step()
    {
        constexpr bool high = !T::has_low;
        float sum[2];
        multiply<high>(false);
        const Ring used = k_ring;
        this->template advance_k<high>();
        if (high || !T::late_k_release)
            this->template release_k<high>(used);
        this->look_ahead();
        take_k_factors<high>();
        softmax<high>(sum);
        if (!high && T::late_k_release)
            this->template release_k<high>(used);
        raise_if_large(sum, false);
        wgmma_wait<0>();
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
        raise_if_large(sum, first);
        wgmma_wait<0>();
        wgmma_results(out);
        if (pv_pending)
            this->release_v();
        if (first) {
            if (pv_pending)
                this->store();
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
        this->finish(item());
        release_item();
    }

    /* The last P V when no products of another item follow at once. */
    __device__ __forceinline__ void drain()
    {
        this->await_turn();
        this->issue_pv(fresh);
        this->pass_turn();
        wgmma_wait<0>();
        this->release_v();
        this->store();
        pv_pending = false;
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
        this->look_ahead();
        while (take_item())
            walk();
        if (pv_pending)
            drain();
    }
};

} // namespace mxa

#endif
