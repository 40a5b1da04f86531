/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer group multiplies: the slots of K and V in turn, and whose turn it is. */
#ifndef MXA_CUDA_PREFILL_PRODUCTS_SM90_CUH
#define MXA_CUDA_PREFILL_PRODUCTS_SM90_CUH

#include "cuda/sm90/prefill_output_sm90.cuh"
#include "cuda/sm90/prefill_smem_sm90.cuh"

namespace mxa
{

/* The same value in all lanes, and known to be so: it can live in uniform registers. */
__device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return __shfl_sync(~0u, x, 0);
}

template <class T>
struct Products : RowOutput<T> {
    using RowBlock<T>::scores;
    using RowBlock<T>::prob;
    using RowBlock<T>::out;
    using RowBlock<T>::lane;

    PrefillSmem<T> &smem;
    Ring k_ring, v_ring;                      /* of the next to use */
    uint32_t k_next, v_next;                  /* descriptors of the next slots, */
    bool k_ready, v_ready;                    /* and whether they are full: found out a step ahead */
    uint32_t q_high, q_low, k_slots, v_slots; /* descriptors, lower halves */
    int group;
    /*
     * P of the last step waits for its product. If not, P V is issued with a P of zeros, and out is not
     * used.
     */
    bool pv_pending = false;

    __device__ Products(const PrefillParams &params, PrefillSmem<T> &shared)
        : RowOutput<T>(params), smem(shared)
    {
        const int thread = threadIdx.x - 128, warp = uniform(thread % 128 / 32);
        group = uniform(thread / 128);
        lane = thread % 32;
        this->first_row = group * rows + warp * 16 + lane / 4;
        /* Panels of Q and K are walked by their addresses; those of V are this far apart. */
        q_high = uniform(swizzled_descriptor(smem_address(smem.q_high[group][0]), 16));
        q_low = uniform(swizzled_descriptor(smem_address(smem.q_low[group][0]), 16));
        k_slots = uniform(swizzled_descriptor(smem_address(smem.k), 16));
        v_slots = uniform(swizzled_descriptor(smem_address(smem.v), T::panel_bytes));
    }

    __device__ __forceinline__ void look_ahead()
    {
        k_ready = barrier_look(smem_address(&smem.k_full[k_ring.slot]), k_ring.parity);
        v_ready = barrier_look(smem_address(&smem.v_full[v_ring.slot]), v_ring.parity);
        k_next = uniform(k_slots + k_ring.slot * (T::panel_bytes >> 4));
        v_next = uniform(v_slots + v_ring.slot * (T::v_slot_bytes >> 4));
    }

    /* The first panel's K has been looked at; the others are waited for. */
    template <bool high>
    __device__ __forceinline__ void issue_qk()
    {
        constexpr int panels = high ? T::high_panels : T::low_panels;
        constexpr int channels = high ? panel_channels : T::low_channels;
        constexpr int products = swizzle_bytes / product_bytes; /* of a panel */
        constexpr Product product = high ? T::high_product : T::low_product;
        if (!k_ready)
            barrier_wait(smem_address(&smem.k_full[k_ring.slot]), k_ring.parity);
        if constexpr (T::low_is_int && !high && !T::int_start_early) {
#pragma unroll
            for (int i = 0; i < T::keys / 2; i++)
                scores[i] = constant_here<int_bias_bits>();
        }
        Ring ring = k_ring;
        uint32_t b = k_next;
#pragma unroll
        for (int panel = 0; panel < panels; panel++) {
            if (panel > 0) {
                ring.next<T::k_slots>();
                barrier_wait(smem_address(&smem.k_full[ring.slot]), ring.parity);
                b = uniform(k_slots + ring.slot * (T::panel_bytes >> 4));
            }
            const uint32_t a = (high ? q_high : q_low) + panel * (q_panel_bytes >> 4);
            if (panel == 0)
                wgmma_fence();
#pragma unroll
            for (int i = 0; i < products; i++)
                if (panel * channels + i * (channels / products) < T::dim)
                    wgmma_qk<product>(scores, a + 2 * i, b + 2 * i,
                                      (T::low_is_int && !high) || panel + i > 0);
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
        for (int i = 0; i < T::keys / 16; i++) {
            const uint32_t a[4] = { prob[4 * i], prob[4 * i + 1], prob[4 * i + 2], prob[4 * i + 3] };
            wgmma_pv<T::pv == Half::f16>(out, a, v_next + i * (16 * swizzle_bytes >> 4), !start || i > 0);
        }
        wgmma_commit();
        if (pv_pending)
            v_ring.next<T::v_slots>();
    }

    template <bool high>
    __device__ __forceinline__ void advance_k()
    {
#pragma unroll
        for (int i = 0; i < (high ? T::high_panels : T::low_panels); i++)
            k_ring.next<T::k_slots>();
    }

    /* The slots of a step, from the first on. Factors of keys go back with their K. */
    template <bool high>
    __device__ __forceinline__ void release_k(Ring ring)
    {
#pragma unroll
        for (int i = 0; i < (high ? T::high_panels : T::low_panels); i++) {
            if (lane == 0)
                barrier_arrive(smem_address(&smem.k_empty[ring.slot]));
            ring.next<T::k_slots>();
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
};

} // namespace mxa

#endif
