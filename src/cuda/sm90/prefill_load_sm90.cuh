/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer warps: one for K, which also hands out the work, one for V, two for low and high Q. They run
 * over the list of work, then over the items that the CTA has to do again with care.
 */
#ifndef MXA_CUDA_PREFILL_LOAD_SM90_CUH
#define MXA_CUDA_PREFILL_LOAD_SM90_CUH

#include "cuda/sm90/prefill_smem_sm90.cuh"

namespace mxa
{

/*
 * Factors of low K of a step, a few a lane. NaN stands for a tile of int8 codes that are none: its rows then
 * are not finite, and the item is done again with care. Then only rows that see such a key are wrong.
 */
template <class T>
struct KFactors {
    static constexpr int each = (T::slot_factors + 31) / 32; /* of a lane */
    float value[each];

    __device__ __forceinline__ void load(const PrefillParams &p, const PrefillItem &it, int step, int lane,
                                         bool careful)
    {
        const int block = it.k_block + step / T::steps;
        const bool there = p.gk && it.kv_len > 0;
        const bool bad = T::low_is_int && p.k_nonfinite && it.kv_len > 0 && !careful && p.k_nonfinite[block];
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

template <class T>
__device__ __forceinline__ void release_item(PrefillSmem<T> &s, ItemRing &ring, int lane)
{
    __syncwarp(); /* all lanes have read it */
    if (lane == 0)
        barrier_arrive(smem_address(&s.item_empty[ring.slot()]));
    ring.count++;
}

/* Of each tensor by one warp. */
template <class T>
__device__ __forceinline__ void prefetch_maps(const PrefillParams &p, int warp)
{
    switch (warp) {
    case 1: tensor_prefetch(&p.v); break;
    case 2: tensor_prefetch(&p.q_high); break;
    case 3: tensor_prefetch(&p.k_high); break;
    case 4: tensor_prefetch(T::has_low ? &p.q_low : &p.q_high); break;
    case 5: tensor_prefetch(T::has_low ? &p.k_low : &p.k_high); break;
    }
}

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
    factors.load(p, it, step, lane, s.careful);
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

/* The item after index, p.items if there is none. */
template <class T>
__device__ __forceinline__ int next_index(const PrefillParams &p, PrefillSmem<T> &s, int index)
{
    if (!s.careful)
        return atomicAdd(p.next_item, 1) + gridDim.x;
    int entry;
    do {
        entry = s.careful_first;
        if (entry == no_item)
            return p.items;
        s.careful_first = p.careful_next[entry];
    } while (entry / consumer_warps == index); /* another warp named it too */
    return entry / consumer_warps;
}

template <class T>
__device__ void produce_k(const PrefillParams &p, PrefillSmem<T> &s, int lane)
{
    Ring ring, factor_ring;
    ItemRing item_ring;
    int index = blockIdx.x;
    if (p.k_high_rows)
        await_kernels_before();
    while (true) {
        barrier_wait(smem_address(&s.item_empty[item_ring.slot()]), item_ring.parity() ^ 1);
        PrefillItem &it = s.item[item_ring.slot()];
        if (lane == 0) {
            s.item_index[item_ring.index_slot(0)] = index;
            if (index < p.items)
                set_item<T::keys>(p, index, it);
            else
                it.batch = -1;
            barrier_arrive(smem_address(&s.item_full[item_ring.slot()]));
        }
        __syncwarp();
        item_ring.count++;
        if (index >= p.items) {
            if (!another_pass(s))
                return;
            if (lane == 0)
                s.careful = true;
            __syncwarp();
            index = no_item;
        } else {
            for (int n = 0; n < it.count(); n++) {
                if (T::has_low && n == it.end[1])
                    await_kernels_before();
                if (T::has_low && !it.high(n))
                    load_k_low(p, s, it, it.step(n), ring, factor_ring, lane);
                else
                    load_k_high(p, s, it, it.step(n), ring, lane);
            }
        }
        await_kernels_before(); /* the counter */
        if (lane == 0)
            index = next_index(p, s, index);
        index = __shfl_sync(~0u, index, 0);
    }
}

/* Non-finite numbers of a slot of V become zeros, in 16-bit pairs. */
template <class T>
__device__ __forceinline__ void clean_v_slot(uint8_t *slot, int lane)
{
    constexpr uint32_t exponent = T::pv == Half::f16 ? 0x7C00u : 0x7F80u;
    uint32_t *const pairs = reinterpret_cast<uint32_t *>(slot);
    for (int i = lane; i < T::v_slot_bytes / int(sizeof *pairs); i += 32) {
        const uint32_t pair = pairs[i], low = pair & exponent, high = pair & exponent << 16;
        if (low == exponent || high == exponent << 16)
            pairs[i] =
                pair & (low == exponent ? 0xFFFF0000u : ~0u) & (high == exponent << 16 ? 0xFFFFu : ~0u);
    }
}

/*
 * A masked key's weight is 0, which makes nothing of a finite V. Rows that see a non-finite one are not
 * this kernel's.
 */
template <class T>
__device__ __forceinline__ void clean_v(PrefillSmem<T> &s, int slot, uint32_t &parity, int lane)
{
    barrier_wait(smem_address(&s.v_loaded), parity);
    parity ^= 1;
    clean_v_slot<T>(s.v[slot][0], lane);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0)
        barrier_arrive(smem_address(&s.v_full[slot]));
}

template <class T>
__device__ __forceinline__ void load_v_slot(const PrefillParams &p, PrefillSmem<T> &s, const PrefillItem &it,
                                            int step, int slot, uint32_t &loaded_parity, int lane)
{
    const uint32_t loaded = smem_address(s.careful ? &s.v_loaded : &s.v_full[slot]);
    const int row = (p.v_rows ? it.k_copy : it.k_row) + step * T::keys;
    if (lane == 0) {
        barrier_expect(loaded, T::v_slot_bytes);
        for (int i = 0; i < T::v_panels; i++)
            tensor_load(smem_address(s.v[slot][i]), &p.v, loaded, i * panel_channels, row,
                        p.v_rows ? 0 : it.h_kv, p.v_rows ? 0 : it.batch);
    }
    if (s.careful)
        clean_v(s, slot, loaded_parity, lane);
}

template <class T>
__device__ void produce_v(const PrefillParams &p, PrefillSmem<T> &s, int lane)
{
    Ring ring;
    ItemRing item_ring;
    uint32_t loaded_parity = 0;
    if (p.v_rows)
        await_kernels_before();
    while (true) {
        barrier_wait(smem_address(&s.item_full[item_ring.slot()]), item_ring.parity());
        const PrefillItem &it = s.item[item_ring.slot()];
        const bool ended = it.batch < 0;
        for (int n = 0; !ended && n < it.count(); n++) {
            barrier_wait(smem_address(&s.v_empty[ring.slot]), ring.parity ^ 1);
            load_v_slot(p, s, it, it.step(n), ring.slot, loaded_parity, lane);
            ring.next<T::v_slots>();
        }
        release_item(s, item_ring, lane);
        if (ended && !another_pass(s))
            return;
    }
}

/* A warp without work is counted where passes end. */
template <class T>
__device__ void produce_nothing(PrefillSmem<T> &s)
{
    while (another_pass(s)) {
    }
}

/* One copy of Q. Its place is free once the group has multiplied its last step of that precision. */
template <class T, bool high>
__device__ void produce_q(const PrefillParams &p, PrefillSmem<T> &s, int lane)
{
    constexpr int panels = high ? T::high_panels : T::low_panels;
    constexpr int channels = high ? panel_channels : T::low_channels;
    ItemRing item_ring;
    uint32_t parity = 1;
    if (!high || p.q_high_rows)
        await_kernels_before();
    while (true) {
        barrier_wait(smem_address(&s.item_full[item_ring.slot()]), item_ring.parity());
        const PrefillItem &it = s.item[item_ring.slot()];
        const bool ended = it.batch < 0;
        if (!ended && has_q<T>(it, high)) {
            const bool copy = !high || p.q_high_rows;
            for (int group = 0; group < groups; group++) {
                barrier_wait(smem_address(&s.q_empty[high][group]), parity);
                const uint32_t full = smem_address(&s.q_full[high][group]);
                const int row = (copy ? it.q_copy : it.q_row) + group * rows;
                if (lane == 0)
                    barrier_expect(full, q_panel_bytes * panels);
                for (int i = 0; lane == 0 && i < panels; i++)
                    tensor_load(smem_address(high ? s.q_high[group][i] : s.q_low[group][i]),
                                high ? &p.q_high : &p.q_low, full, i * channels, row, copy ? 0 : it.h,
                                copy ? 0 : it.batch);
            }
            parity ^= 1;
        }
        release_item(s, item_ring, lane);
        if (ended && !another_pass(s))
            return;
    }
}

} // namespace mxa

#endif
