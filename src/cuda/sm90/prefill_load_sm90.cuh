/* SPDX-License-Identifier: Apache-2.0 */
/* The producer warps: one for K, which also hands out the work, one for V, two for low and high Q. */
#ifndef MXA_CUDA_PREFILL_LOAD_SM90_CUH
#define MXA_CUDA_PREFILL_LOAD_SM90_CUH

#include "cuda/sm90/prefill_smem_sm90.cuh"

namespace mxa
{

template <class T>
__device__ __forceinline__ void load_k_slot(PrefillSmem<T> &s, Ring &ring, const CUtensorMap *map,
                                            const PrefillItem &it, int channel, int kt)
{
    barrier_wait(smem_address(&s.k_empty[ring.slot]), ring.parity ^ 1);
    const uint32_t full = smem_address(&s.k_full[ring.slot]);
    barrier_expect(full, T::panel_bytes);
    tensor_load(smem_address(s.k[ring.slot]), map, full, channel, kt * tile, it.h_kv, it.b);
    ring.next<T::k_slots>();
}

template <class T>
__device__ void produce_k(const PrefillParams &p, PrefillSmem<T> &s)
{
    Ring ring;
    ItemRing item_ring;
    int index = blockIdx.x;
    while (true) {
        barrier_wait(smem_address(&s.item_empty[item_ring.slot()]), item_ring.parity() ^ 1);
        PrefillItem &it = s.item[item_ring.slot()];
        if (index < p.items)
            set_item(p, index, it);
        else
            it.b = -1;
        barrier_arrive(smem_address(&s.item_full[item_ring.slot()]));
        item_ring.count++;
        if (index >= p.items)
            return;
        for (int n = 0; n < it.tiles(); n++) {
            if (T::has_low && !it.high(n)) {
                load_k_slot(s, ring, &p.k_low, it, 0, it.k_tile(n));
                continue;
            }
            for (int i = 0; i < T::panels; i++)
                load_k_slot(s, ring, &p.k_high, it, i * 64, it.k_tile(n));
        }
        index = atomicAdd(p.next_item, 1) + gridDim.x;
    }
}

template <class T>
__device__ void produce_v(const PrefillParams &p, PrefillSmem<T> &s)
{
    Ring ring;
    ItemRing item_ring;
    while (true) {
        barrier_wait(smem_address(&s.item_full[item_ring.slot()]), item_ring.parity());
        const PrefillItem &it = s.item[item_ring.slot()];
        if (it.b < 0)
            return;
        for (int n = 0; n < it.tiles(); n++) {
            barrier_wait(smem_address(&s.v_empty[ring.slot]), ring.parity ^ 1);
            const uint32_t full = smem_address(&s.v_full[ring.slot]);
            barrier_expect(full, T::panels * T::panel_bytes);
            for (int i = 0; i < T::panels; i++)
                tensor_load(smem_address(s.v[ring.slot][i]), &p.v, full, i * 64, it.k_tile(n) * tile, it.h_kv,
                            it.b);
            ring.next<T::v_slots>();
        }
        barrier_arrive(smem_address(&s.item_empty[item_ring.slot()]));
        item_ring.count++;
    }
}

/* One copy of Q. Its place is free once the group has multiplied its last key tile of that precision. */
template <class T, bool high>
__device__ void produce_q(const PrefillParams &p, PrefillSmem<T> &s)
{
    constexpr int panels = high ? T::panels : 1;
    ItemRing item_ring;
    uint32_t parity = 1;
    while (true) {
        barrier_wait(smem_address(&s.item_full[item_ring.slot()]), item_ring.parity());
        const PrefillItem &it = s.item[item_ring.slot()];
        if (it.b < 0)
            return;
        if (has_q<T>(it, high)) {
            for (int group = 0; group < groups; group++) {
                barrier_wait(smem_address(&s.q_empty[high][group]), parity);
                const uint32_t full = smem_address(&s.q_full[high][group]);
                const uint32_t to = high ? smem_address(s.q_high[group]) : smem_address(s.q_low[group]);
                const int row = it.q_tile * tile + group * rows - p.q_offset;
                barrier_expect(full, rows * swizzle_bytes * panels);
                for (int i = 0; i < panels; i++)
                    tensor_load(to + i * rows * swizzle_bytes, high ? &p.q_high : &p.q_low, full, i * 64, row,
                                it.h, it.b);
            }
            parity ^= 1;
        }
        barrier_arrive(smem_address(&s.item_empty[item_ring.slot()]));
        item_ring.count++;
    }
}

} // namespace mxa

#endif
