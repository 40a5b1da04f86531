/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory of the prefill kernel: operands in rings of slots, and the barriers that say what is full or
 * free.
 */
#ifndef MXA_CUDA_PREFILL_SMEM_SM90_CUH
#define MXA_CUDA_PREFILL_SMEM_SM90_CUH

#include "cuda/sm90/prefill_item_sm90.h"
#include "cuda/sm90/ptx_sm90.cuh"
#include "cuda/sm90/tiles_sm90.h"

namespace mxa
{

constexpr int item_slots = 2;
constexpr int no_item = -1;

template <class T>
struct alignas(1024) PrefillSmem {
    uint8_t q_high[groups][T::high_panels][q_panel_bytes]; /* [64 queries][128 bytes of the head dim] */
    uint8_t q_low[groups][T::low_panels ? T::low_panels : 1][T::has_low ? q_panel_bytes : 1024];
    uint8_t k[T::k_slots][T::panel_bytes]; /* [keys][128 bytes]; a step takes its panels in a row */
    uint8_t v[T::v_slots][T::v_panels][T::panel_bytes]; /* [keys][64 channels] */
    float k_factor[T::factor_slots][T::slot_factors];
    alignas(8) uint64_t q_full[2][groups], q_empty[2][groups]; /* of q_low, q_high */
    uint64_t k_full[T::k_slots], k_empty[T::k_slots], v_full[T::v_slots], v_empty[T::v_slots];
    uint64_t item_full[item_slots], item_empty[item_slots];
    uint64_t pass_ended;
    uint64_t v_loaded;            /* in the second pass, whose V is looked through before its slot is full */
    PrefillItem item[item_slots]; /* the work in hand and the next */
    int item_index[2 * item_slots]; /* of the last items in the list of work: one more is to be stored */
    /*
     * The second pass does those items again in which the first one met non-finite results: its list begins
     * with the entry consumer_warps * item + warp, or no_item, and goes on in careful_next.
     */
    bool careful;
    int careful_first;
};

/* Position in a ring of slots, with the parity that its barriers have in this round. */
struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    template <int slots>
    __device__ __forceinline__ void next()
    {
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* The same in one register, for the items. */
struct ItemRing {
    uint32_t count = 0;
    __device__ __forceinline__ int slot() const
    {
        return count % item_slots;
    }
    /* In item_index, n items earlier. */
    __device__ __forceinline__ int index_slot(int n) const
    {
        return (count - n) % (2 * item_slots);
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return count / item_slots % 2;
    }
};

/* Arrivals come from each warp: a warp that lags must not miss a phase. */
template <class T>
__device__ __forceinline__ void init_barriers(PrefillSmem<T> &s)
{
    constexpr int other_item_readers = T::has_low ? 3 : 2; /* V, high Q, low Q */
    for (int i = 0; i < 2 * groups; i++) {
        barrier_init(smem_address(&s.q_full[i / groups][i % groups]), 1);
        barrier_init(smem_address(&s.q_empty[i / groups][i % groups]), consumer_warps / groups);
    }
    for (int i = 0; i < T::k_slots; i++) {
        barrier_init(smem_address(&s.k_full[i]), 1);
        barrier_init(smem_address(&s.k_empty[i]), consumer_warps);
    }
    for (int i = 0; i < T::v_slots; i++) {
        barrier_init(smem_address(&s.v_full[i]), 1);
        barrier_init(smem_address(&s.v_empty[i]), consumer_warps);
    }
    barrier_init(smem_address(&s.pass_ended), prefill_threads / 32);
    barrier_init(smem_address(&s.v_loaded), 1);
    for (int i = 0; i < item_slots; i++) {
        barrier_init(smem_address(&s.item_full[i]), 1);
        barrier_init(smem_address(&s.item_empty[i]), consumer_warps + other_item_readers);
    }
    fence_barrier_init();
    s.careful = false;
    s.careful_first = no_item;
}

__device__ __forceinline__ void await_all_warps(uint64_t &barrier, uint32_t parity)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(smem_address(&barrier));
    barrier_wait(smem_address(&barrier), parity);
}

/* All warps at the end of a pass. */
template <class T>
__device__ __forceinline__ bool another_pass(PrefillSmem<T> &s)
{
    await_all_warps(s.pass_ended, 0);
    const bool again = !s.careful && s.careful_first != no_item;
    await_all_warps(s.pass_ended, 1);
    return again;
}

} // namespace mxa

#endif
