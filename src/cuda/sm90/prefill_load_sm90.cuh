/* SPDX-License-Identifier: Apache-2.0 */
/* The producer warps: one for K, which also hands out the work, one for V, two for low and high Q. */
#ifndef MXA_CUDA_PREFILL_LOAD_SM90_CUH
#define MXA_CUDA_PREFILL_LOAD_SM90_CUH

#include "cuda/sm90/prefill_smem_sm90.cuh"

namespace mxa
{

/*
 * Factors of low K of a step, a few a lane. NaN stands for a tile of int8 codes that are none: its rows then
 * are not finite, and are redone.
 */
template <class T>
struct KFactors {
    static constexpr int each = (T::slot_factors + 31) / 32; /* of a lane */
    float value[each];

    __device__ __forceinline__ void load(const PrefillParams &p, const PrefillItem &it, int step, int lane)
    {
        const int block = it.k_block + step / T::steps;
        const bool there = p.gk && it.kv_len > 0;
        const bool bad = T::low_is_int && p.k_nonfinite && it.kv_len > 0 && p.k_nonfinite[block];
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int key = min(step * T::keys + i * 32 + lane, it.kv_len - 1);
            const float g = there ? __ldg(p.gk + (T::key_factors ? it.k_copy + key : block)) : 1.0f;
            value[i] = bad ? __int_as_float(MXA_F32_NAN) : g;
        }
    }

    __device__ __forceinline__ void store(float (&to)[T::slot_factors], int lane) const
    {
#pragma unroll
        for (int i = 0; i < each; i++)
            if (T::key_factors || lane == 0)
                to[T::key_factors ? i * 32 + lane : 0] = value[i];
        __syncwarp();
    }
};

/* All lanes wait, the first one loads. */
template <class T>
__device__ __forceinline__ void load_k_slot(PrefillSmem<T> &s, Ring &ring, const CUtensorMap *map, int lane,
                                            int channel, int row, int h, int b)
{
    if (lane == 0) {
        const uint32_t full = smem_address(&s.k_full[ring.slot]);
        barrier_expect(full, T::panel_bytes);
        tensor_load(smem_address(s.k[ring.slot]), map, full, channel, row, h, b);
    }
    ring.next<T::k_slots>();
}

template <class T>
__device__ __forceinline__ void await_k_slot(PrefillSmem<T> &s, const Ring &ring)
{
    barrier_wait(smem_address(&s.k_empty[ring.slot]), ring.parity ^ 1);
}

template <class T>
__device__ __forceinline__ void load_k_low(const PrefillParams &p, PrefillSmem<T> &s, const PrefillItem &it,
                                           int step, Ring &ring, Ring &factor_ring, int lane)
{
    KFactors<T> factors;
    factors.load(p, it, step, lane);
#pragma unroll
    for (int i = 0; i < T::low_panels; i++) {
        await_k_slot(s, ring);
        if (i == 0)
            factors.store(s.k_factor[factor_ring.slot], lane);
        load_k_slot(s, ring, &p.k_low, lane, i * T::low_channels, it.k_copy + step * T::keys, 0, 0);
    }
    factor_ring.next<T::factor_slots>();
}

template <class T>
__device__ __forceinline__ void load_k_high(const PrefillParams &p, PrefillSmem<T> &s, const PrefillItem &it,
                                            int step, Ring &ring, int lane)
{
    const int row = (p.k_high_rows ? it.k_copy : it.k_row) + step * T::keys;
    for (int i = 0; i < T::high_panels; i++) {
        await_k_slot(s, ring);
        load_k_slot(s, ring, &p.k_high, lane, i * panel_channels, row, p.k_high_rows ? 0 : it.h_kv,
                    p.k_high_rows ? 0 : it.batch);
    }
}

template <class T>
__device__ void produce_k(const PrefillParams &p, PrefillSmem<T> &s, int lane)
{
    Ring ring, factor_ring;
    ItemRing item_ring;
    int index = blockIdx.x;
    while (true) {
        barrier_wait(smem_address(&s.item_empty[item_ring.slot()]), item_ring.parity() ^ 1);
        PrefillItem &it = s.item[item_ring.slot()];
        if (lane == 0) {
            if (index < p.items)
                set_item<T::keys>(p, index, it);
            else
                it.batch = -1;
            barrier_arrive(smem_address(&s.item_full[item_ring.slot()]));
        }
        __syncwarp();
        item_ring.count++;
        if (index >= p.items)
            return;
        for (int n = 0; n < it.count(); n++) {
            if (T::has_low && !it.high(n))
                load_k_low(p, s, it, it.step(n), ring, factor_ring, lane);
            else
                load_k_high(p, s, it, it.step(n), ring, lane);
        }
        if (lane == 0)
            index = atomicAdd(p.next_item, 1) + gridDim.x;
        index = __shfl_sync(~0u, index, 0);
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
        if (it.batch < 0)
            return;
        for (int n = 0; n < it.count(); n++) {
            barrier_wait(smem_address(&s.v_empty[ring.slot]), ring.parity ^ 1);
            const uint32_t full = smem_address(&s.v_full[ring.slot]);
            const int row = (p.v_rows ? it.k_copy : it.k_row) + it.step(n) * T::keys;
            barrier_expect(full, T::v_slot_bytes);
            for (int i = 0; i < T::v_panels; i++)
                tensor_load(smem_address(s.v[ring.slot][i]), &p.v, full, i * panel_channels, row,
                            p.v_rows ? 0 : it.h_kv, p.v_rows ? 0 : it.batch);
            ring.next<T::v_slots>();
        }
        barrier_arrive(smem_address(&s.item_empty[item_ring.slot()]));
        item_ring.count++;
    }
}

/* One copy of Q. Its place is free once the group has multiplied its last step of that precision. */
template <class T, bool high>
__device__ void produce_q(const PrefillParams &p, PrefillSmem<T> &s)
{
    constexpr int panels = high ? T::high_panels : T::low_panels;
    constexpr int channels = high ? panel_channels : T::low_channels;
    ItemRing item_ring;
    uint32_t parity = 1;
    while (true) {
        barrier_wait(smem_address(&s.item_full[item_ring.slot()]), item_ring.parity());
        const PrefillItem &it = s.item[item_ring.slot()];
        if (it.batch < 0)
            return;
        if (has_q<T>(it, high)) {
            const bool copy = !high || p.q_high_rows;
            for (int group = 0; group < groups; group++) {
                barrier_wait(smem_address(&s.q_empty[high][group]), parity);
                const uint32_t full = smem_address(&s.q_full[high][group]);
                const int row = (copy ? it.q_copy : it.q_row) + group * rows;
                barrier_expect(full, q_panel_bytes * panels);
                for (int i = 0; i < panels; i++)
                    tensor_load(smem_address(high ? s.q_high[group][i] : s.q_low[group][i]),
                                high ? &p.q_high : &p.q_low, full, i * channels, row, copy ? 0 : it.h,
                                copy ? 0 : it.batch);
            }
            parity ^= 1;
        }
        barrier_arrive(smem_address(&s.item_empty[item_ring.slot()]));
        item_ring.count++;
    }
}

} // namespace mxa

#endif
