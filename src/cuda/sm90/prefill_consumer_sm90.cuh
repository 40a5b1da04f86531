/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer group: 64 queries of the item, walking over its key tiles. Each step runs
 *     issue Q K of tile n | issue P V of tile n + 1 | softmax of tile n while P V runs | pack P
 * and the last P V of an item runs behind the first softmax of the next one.
 */
#ifndef MXA_CUDA_PREFILL_CONSUMER_SM90_CUH
#define MXA_CUDA_PREFILL_CONSUMER_SM90_CUH

#include "cuda/sm90/prefill_smem_sm90.cuh"
#include "cuda/sm90/prefill_softmax_sm90.cuh"

namespace mxa
{

/* The same value in all lanes, and known to be so: it can live in uniform registers. */
__device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return __shfl_sync(~0u, x, 0);
}

template <class T>
struct Consumer : RowBlock<T> {
    using RowBlock<T>::scores;
    using RowBlock<T>::prob;
    using RowBlock<T>::out;
    using RowBlock<T>::lane;

    PrefillSmem<T> &smem;
    ItemRing item_ring;
    Ring k_ring, v_ring;                      /* of the next to use */
    uint32_t q_parity[2] = { 0, 0 };          /* of q_low, q_high */
    uint32_t k_next, v_next;                  /* descriptors of the next slots, */
    bool k_ready, v_ready;                    /* and whether they are full: found out a step ahead */
    uint32_t q_high, q_low, k_slots, v_slots; /* descriptors, lower halves */
    int group;
    PrefillItem it;
    int mask_above, mask_below;
    bool fresh = true; /* nothing is in out yet */
    /*
     * P of the last tile waits for its product. If not, P V is issued with a P of zeros, and out is not
     * used.
     */
    bool pv_pending = false;

    __device__ Consumer(const PrefillParams &params, PrefillSmem<T> &shared)
        : RowBlock<T>(params), smem(shared)
    {
        const int thread = threadIdx.x - 128, warp = uniform(thread % 128 / 32);
        group = uniform(thread / 128);
        lane = thread % 32;
        this->first_row = group * rows + warp * 16 + lane / 4;
        /* Panels of Q and K are walked by their addresses; those of V are this far apart. */
        q_high = uniform(swizzled_descriptor(smem_address(smem.q_high[group]), 16));
        q_low = uniform(swizzled_descriptor(smem_address(smem.q_low[group]), 16));
        k_slots = uniform(swizzled_descriptor(smem_address(smem.k), 16));
        v_slots = uniform(swizzled_descriptor(smem_address(smem.v), T::panel_bytes));
    }

    __device__ __forceinline__ void take_item()
    {
        barrier_wait(smem_address(&smem.item_full[item_ring.slot()]), item_ring.parity());
        it = smem.item[item_ring.slot()];
        it.b = uniform(it.b);
        it.q_tile = uniform(it.q_tile);
        mask_above = uniform(smem.item[item_ring.slot()].mask_above[group]);
        mask_below = uniform(smem.item[item_ring.slot()].mask_below[group]);
#pragma unroll
        for (int run = 0; run < 4; run++) {
            it.end[run] = uniform(it.end[run]);
            it.base[run] = uniform(it.base[run]);
        }
        if (lane == 0)
            barrier_arrive(smem_address(&smem.item_empty[item_ring.slot()]));
        item_ring.count++;
        if (it.b >= 0)
            this->load_factors(it);
    }

    __device__ __forceinline__ void look_ahead()
    {
        k_ready = barrier_look(smem_address(&smem.k_full[k_ring.slot]), k_ring.parity);
        v_ready = barrier_look(smem_address(&smem.v_full[v_ring.slot]), v_ring.parity);
        k_next = uniform(k_slots + k_ring.slot * (T::panel_bytes >> 4));
        v_next = uniform(v_slots + v_ring.slot * (T::panels * T::panel_bytes >> 4));
    }

    /* ------------------------------------------------------------ products */

    __device__ __forceinline__ void issue_qk_high()
    {
        Ring ring = k_ring;
        uint32_t b = k_next;
#pragma unroll
        for (int panel = 0; panel < T::panels; panel++) {
            if (panel > 0) {
                ring.next<T::k_slots>();
                barrier_wait(smem_address(&smem.k_full[ring.slot]), ring.parity);
                b = uniform(k_slots + ring.slot * (T::panel_bytes >> 4));
            }
            const uint32_t a = q_high + panel * (rows * swizzle_bytes >> 4);
            if (panel == 0)
                wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                T::qk_high(scores, a + 2 * i, b + 2 * i, panel + i > 0);
        }
    }

    template <bool high>
    __device__ __forceinline__ void issue_qk()
    {
        if (!k_ready)
            barrier_wait(smem_address(&smem.k_full[k_ring.slot]), k_ring.parity);
        if constexpr (high) {
            issue_qk_high();
        } else {
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; i++)
                T::qk_low(scores, q_low + 2 * i, k_next + 2 * i, T::low_is_int || i > 0);
        }
        wgmma_commit();
    }

    /* start: out is written, not added to. */
    __device__ __forceinline__ void issue_pv(bool start)
    {
        if (!v_ready)
            barrier_wait(smem_address(&smem.v_full[v_ring.slot]), v_ring.parity);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t a[4] = { prob[4 * i], prob[4 * i + 1], prob[4 * i + 2], prob[4 * i + 3] };
            T::pv(out, a, v_next + i * (16 * swizzle_bytes >> 4), !start || i > 0);
        }
        wgmma_commit();
        if (pv_pending)
            v_ring.next<T::v_slots>();
    }

    __device__ __forceinline__ void release_k(bool high)
    {
        const int slots = high ? T::panels : 1;
#pragma unroll
        for (int i = 0; i < slots; i++) {
            if (lane == 0)
                barrier_arrive(smem_address(&smem.k_empty[k_ring.slot]));
            k_ring.next<T::k_slots>();
        }
    }

    /* The slot of the last issued P V. */
    __device__ __forceinline__ void release_v()
    {
        const int slot = v_ring.slot == 0 ? T::v_slots - 1 : v_ring.slot - 1;
        if (lane == 0)
            barrier_arrive(smem_address(&smem.v_empty[slot]));
    }

    /*
     * The groups issue their products in turn, so that one multiplies while the other one is at its softmax.
     */
    __device__ __forceinline__ void await_turn()
    {
        named_barrier_sync(1 + group, 128 * groups);
    }
    __device__ __forceinline__ void pass_turn()
    {
        named_barrier_arrive(groups - group, 128 * groups);
    }

    /* ------------------------------------------------------------ steps */

    template <bool high>
    __device__ __forceinline__ void multiply(bool start_out)
    {
        await_turn();
        issue_qk<high>();
        issue_pv(start_out);
        pass_turn();
        wgmma_wait<1>();
        wgmma_results(scores);
    }

    /* This branch also keeps the next wait below it: ptxas moves waits up over plain arithmetic. */
    __device__ __forceinline__ void raise_if_large(const float sum[2], bool first)
    {
        this->row_sum[0] += sum[0];
        this->row_sum[1] += sum[1];
        if (__any_sync(~0u, fmaxf(sum[0], sum[1]) > T::sum_limit) && !first) {
            wgmma_wait<0>();
            this->raise_max(sum);
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

    /* A tile in the midst of a row block: low if there are low ones, and no mask. */
    __device__ __forceinline__ void plain_step(int n)
    {
        constexpr bool high = !T::has_low;
        float sum[2];
        multiply<high>(false);
        release_k(high);
        look_ahead();
        if (T::raw && this->raised)
            this->scores_to_logits(false);
        this->exponentials(high, sum);
        this->load_k_factor(it.k_tile(n + 1));
        raise_if_large(sum, false);
        wgmma_wait<0>();
        release_v();
        this->pack_p();
    }

    /*
     * Any tile: one body for the first and others, masked or not, since more code would be fetched anew in
     * each item. Behind the first tile's softmax runs the last P V of the item before.
     */
    template <bool high>
    __device__ __forceinline__ void edge_step(int n)
    {
        const bool first = n == 0;
        const int kt = it.k_tile(n);
        float sum[2];
        multiply<high>(fresh);
        fresh = false;
        release_k(high);
        look_ahead();
        if (high && n + 1 == (T::has_low ? it.end[1] : it.tiles()))
            release_q(true);
        if (first)
            this->start();
        if (kt > mask_above || kt < mask_below)
            this->mask(it, kt, high);
        if (T::raw)
            this->scores_to_logits(high);
        else if (first)
            this->first_max(high);
        this->exponentials(high, sum);
        this->load_k_factor(it.k_tile(n + 1));
        raise_if_large(sum, first);
        wgmma_wait<0>();
        wgmma_results(out);
        if (pv_pending)
            release_v();
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
     * Where the plain tiles from n on end: with their run, or at a masked tile, or (no low tiles) at the last
     * one, which gives Q back. Tiles 0 and 1 are not plain: they have to do with out's start.
     */
    __device__ __forceinline__ int plain_end(int n) const
    {
        const bool above = n < it.end[2];
        const int base = above ? it.base[2] : it.base[3], kt = base - n;
        if (n < 2 || kt > mask_above)
            return n;
        return min(above ? it.end[2] : it.tiles() - !T::has_low, base - mask_below + 1);
    }

    __device__ __forceinline__ void walk()
    {
        int n = 0;
        if (has_q<T>(it, true))
            await_q(true);
        if constexpr (T::has_low) {
            for (; n < it.end[1]; n++)
                edge_step<true>(n);
            if (n < it.tiles())
                await_q(false);
        }
        while (n < it.tiles()) {
            for (const int end = plain_end(n); n < end; n++)
                plain_step(n);
            if (n < it.tiles() && n >= plain_end(n)) {
                edge_step<!T::has_low>(n);
                n++;
            }
        }
        if (T::has_low && n > it.end[1])
            release_q(false);
        this->finish(it);
    }

    /* The last P V when no products of another item follow at once. */
    __device__ __forceinline__ void drain()
    {
        await_turn();
        issue_pv(fresh);
        pass_turn();
        wgmma_wait<0>();
        release_v();
        this->store();
        pv_pending = false;
    }

    __device__ __forceinline__ void run()
    {
        if (group == 1)
            named_barrier_arrive(1, 128 * groups);
#pragma unroll
        for (int i = 0; i < 64; i++)
            scores[i] = int_bias_bits;
#pragma unroll
        for (int i = 0; i < 32; i++)
            prob[i] = 0;
        look_ahead();
        take_item();
        while (it.b >= 0) {
            if (it.tiles() == 0) {
                if (pv_pending)
                    drain();
                this->start();
                this->clear();
                this->finish(it);
                this->store();
            } else {
                walk();
            }
            take_item();
        }
        if (pv_pending)
            drain();
    }
};

} // namespace mxa

#endif
