/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention of sm_90a (docs/kernels_decode.md): one block a multiprocessor, eight warps that work alone
 * on units of keys, each with its own buffer for K and for V, filled by bulk copies.
 */
#ifndef MXA_CUDA_DECODE_SM90_CUH
#define MXA_CUDA_DECODE_SM90_CUH

#include "cuda/decode/decode_merge_sm90.cuh"

namespace mxa
{

/* ---------------------------------------------------------------- schedule */

__device__ __forceinline__ mxa_decode_span span_of(const DecodeParams &p, int b)
{
    mxa_decode_span m = p.span;
    m.kv_len = int(p.d.lengths[b]);
    m.q_len = p.d.counts ? mxa_decode_min(int(p.d.counts[b]), p.d.n) : p.d.n;
    m.q_offset = m.kv_len - m.q_len;
    return m;
}

/* The pass and the keys of a pair; units is 0 if it has no queries. */
template <class C>
__device__ __forceinline__ void find_pair(const DecodeParams &p, int pair, Item &item)
{
    item.pair = pair;
    item.b = pair / p.passes;
    const mxa_decode_span m = span_of(p, item.b);
    item.q_offset = m.q_offset;
    item.keys.units = 0;
    if (m.q_len <= 0)
        return;
    item.pass = mxa_decode_pass_at(&m, p.d.heads_per_kv, C::columns, pair - item.b * p.passes);
    if (item.pass.n_rows > 0)
        item.keys = mxa_decode_keys_of(&m, &item.pass, p.d.heads_per_kv, p.segments_wanted);
}

/* scan[i]: units of all heads before pair i. */
template <class C>
__device__ __forceinline__ void scan_pairs(const DecodeParams &p, DecodeShared<C> &s)
{
    const int pairs = p.batch * p.passes;
    for (int pair = int(threadIdx.x); pair < pairs; pair += decode_threads) {
        Item item;
        find_pair<C>(p, pair, item);
        s.scan[pair + 1] = uint32_t(item.keys.units) * p.heads_kv;
    }
    __syncthreads();
    uint32_t before = 0;
#pragma unroll 1
    for (int first = 0; first < pairs && threadIdx.x < 32; first += 32) {
        const int pair = first + lane_of();
        uint32_t x = pair < pairs ? s.scan[pair + 1] : 0;
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, x, unsigned(lanes));
            x += lane_of() >= lanes ? other : 0;
        }
        if (pair < pairs)
            s.scan[pair + 1] = before + x;
        before += __shfl_sync(~0u, x, 31);
    }
    if (threadIdx.x == 0)
        s.scan[0] = 0;
    __syncthreads();
}

/* By one thread: the item at item.segment, or what follows where that is none; of this block, or segment -1. */
template <class C>
__device__ __noinline__ void settle_item(const DecodeParams &p, const DecodeShared<C> &s, Item &item)
{
    const int pairs = p.batch * p.passes;
    while (item.segment == item.keys.segments || item.keys.units == 0) {
        item.segment = 0;
        if (item.keys.units > 0 && ++item.h_kv < p.heads_kv)
            break;
        item.h_kv = 0;
        if (++item.pair == pairs) {
            item.segment = -1;
            return;
        }
        find_pair<C>(p, item.pair, item);
    }
    item.unit_first = mxa_decode_segment_first(&item.keys, item.segment);
    item.unit_end = mxa_decode_segment_first(&item.keys, item.segment + 1);
    const uint32_t begins = s.scan[item.pair] + uint32_t(item.h_kv * item.keys.units + item.unit_first);
    item.segment = begins < s.units_end ? item.segment : -1;
}

/* The block's first item. */
template <class C>
__device__ __forceinline__ void find_first_item(const DecodeParams &p, DecodeShared<C> &s)
{
    const int pairs = p.batch * p.passes;
    const uint64_t units = s.scan[pairs];
    const uint32_t begin = uint32_t(units * blockIdx.x / gridDim.x);
    s.units_end = uint32_t(units * (blockIdx.x + 1) / gridDim.x);
    int low = 0, high = pairs - 1; /* the last pair that begins at or before the unit */
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (s.scan[middle] <= begin)
            low = middle;
        else
            high = middle - 1;
    }
    Item &item = s.items[0];
    find_pair<C>(p, low, item);
    const int rest = int(begin - s.scan[low]);
    item.h_kv = item.keys.units ? rest / item.keys.units : 0;
    item.segment =
        item.keys.units ? mxa_decode_segment_from(&item.keys, rest - item.h_kv * item.keys.units) : 0;
    settle_item(p, s, item);
}

/* The one behind it. */
template <class C>
__device__ __forceinline__ void find_next_item(const DecodeParams &p, const DecodeShared<C> &s,
                                               const Item &before, Item &item)
{
    item = before;
    if (item.segment < 0)
        return;
    item.segment++;
    settle_item(p, s, item);
}

/* ---------------------------------------------------------------- loads */

/* A unit and where it lies. */
struct Source {
    const uint8_t *k, *v;
    int key; /* plus 1 if it is high: keys are multiples of 16 */
};

/* K, or V, of the tile that holds a key; pages are of few whole tiles. */
__device__ __forceinline__ const uint8_t *tile_of(const DecodeParams &p, int copy, const Item &item, int key)
{
    const mxa_kv_tiles &tiles = p.d.tiles;
    const unsigned tile = unsigned(key) / MXA_DECODE_LOW_KEYS;
    const unsigned each = unsigned(tiles.page_tokens) / MXA_DECODE_LOW_KEYS, page = tile / each;
    const uint64_t address = p.d.tables[copy][item.b * p.d.table_pages + page];
    return reinterpret_cast<const uint8_t *>(address) + item.h_kv * tiles.head_bytes[copy] +
           (tile - page * each) * unsigned(tiles.bytes[copy]);
}

/* Unit number own of the warp's units of an item; lanes ask for different ones. */
template <class C>
__device__ __forceinline__ Source find_source(const DecodeParams &p, const Item &item, int own)
{
    const int index = item.unit_first + int(threadIdx.x) / 32 + own * decode_warps;
    Source from{};
    if (item.segment < 0 || index >= item.unit_end)
        return from;
    const mxa_decode_unit u = mxa_decode_unit_at(&item.keys, index);
    const int copy = u.high ? MXA_HIGH : MXA_LOW, v_copy = C::wide_values ? MXA_LOW : copy;
    const int slice = u.high ? u.key % MXA_DECODE_LOW_KEYS / MXA_KV_SLICE * C::high_bytes : 0;
    const uint8_t *const tile = tile_of(p, copy, item, u.key);
    from.k = tile + slice;
    from.v = (v_copy == copy ? tile : tile_of(p, v_copy, item, u.key)) + p.d.tiles.k_bytes[v_copy] + slice;
    from.key = u.key | (u.high ? 1 : 0);
    return from;
}

__device__ __forceinline__ const uint8_t *pointer_of_lane(const uint8_t *x, int lane)
{
    return reinterpret_cast<const uint8_t *>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(x), lane));
}

__device__ __forceinline__ Source source_of_lane(const Source &from, int lane)
{
    return { pointer_of_lane(from.k, lane), pointer_of_lane(from.v, lane), __shfl_sync(~0u, from.key, lane) };
}

__device__ __forceinline__ int own_units(const Item &item)
{
    const int behind = item.unit_end - item.unit_first - int(threadIdx.x) / 32;
    return item.segment >= 0 && behind > 0 ? (behind + decode_warps - 1) / decode_warps : 0;
}

/* The warp's buffers. */
struct Buffers {
    uint8_t *k, *v;
    uint32_t k_address, v_address, k_barrier, v_barrier, phase;
};

template <class C>
__device__ __forceinline__ void load_keys(const Buffers &b, const Source &from)
{
    __syncwarp();
    if (lane_of() != 0)
        return;
    const uint32_t bytes = from.key & 1 ? C::high_bytes : C::k_bytes;
    barrier_expect(b.k_barrier, bytes);
    bulk_load(b.k_address, from.k, bytes, b.k_barrier);
}

template <class C>
__device__ __forceinline__ void load_values(const Buffers &b, const Source &from)
{
    __syncwarp();
    if (lane_of() != 0)
        return;
    const uint32_t bytes = from.key & 1 ? C::high_bytes : C::v_bytes;
    barrier_expect(b.v_barrier, bytes);
    bulk_load(b.v_address, from.v, bytes, b.v_barrier);
}

/* ---------------------------------------------------------------- units */

/* What a lane keeps of the item's queries. */
template <class C>
struct LaneQueries {
    uint2 q[C::low_steps];
    float low_factor[C::lane_columns], high_factor[C::lane_columns], bias[C::lane_columns];
};

template <class C>
__device__ __forceinline__ void load_lane_queries(const DecodeShared<C> &s, LaneQueries<C> &q)
{
    for (int step = 0; step < C::low_steps; step++)
        q.q[step] = s.q_low[step][lane_of()];
    for (int c = 0; c < C::lane_columns; c++) {
        q.low_factor[c] = s.low_factor[column_of<C>(c)];
        q.high_factor[c] = s.high_factor[column_of<C>(c)];
        q.bias[c] = s.bias[column_of<C>(c)];
    }
}

__device__ __forceinline__ UnitKeys keys_of_unit(const Item &item, int key)
{
    const int n = key & 1 ? MXA_DECODE_HIGH_KEYS : MXA_DECODE_LOW_KEYS;
    UnitKeys u;
    u.key = key & ~1;
    u.first = item.keys.first;
    u.last = item.keys.end - 1;
    u.edge = u.key < item.keys.all_first || u.key + n - 1 > item.keys.all_last;
    return u;
}

template <class C>
__device__ __forceinline__ void attend_high(const DecodeParams &p, const Buffers &b, const UnitKeys &u,
                                            const Source &next, bool has_next, const LaneQueries<C> &q,
                                            const DecodeShared<C> &s, Sums<C> &t)
{
    Scores<C, 1> x;
    const float none[C::lane_columns] = {};
    barrier_wait(b.k_barrier, b.phase);
    scores_high(b.k, s.q_high, x);
    if (has_next)
        load_keys<C>(b, next);
    finish_scores(x, q.high_factor, none, u, s);
    softmax(x, t);
    for (int unit = 0; unit < C::units && !C::wide_values; unit++)
        change_unit(t, unit, 0);
    barrier_wait(b.v_barrier, b.phase);
    if (C::values == Values::f16 || (!C::wide_values && p.pv_f16))
        values_wide<C, 1, true>(b.v, x, u, t);
    else
        values_wide<C, 1, false>(b.v, x, u, t);
    if (has_next)
        load_values<C>(b, next);
}

template <class C>
__device__ __forceinline__ void attend_low(const Buffers &b, const UnitKeys &u, const Source &next,
                                           bool has_next, const LaneQueries<C> &q, const DecodeShared<C> &s,
                                           Sums<C> &t)
{
    Scores<C, low_slices> x;
    barrier_wait(b.k_barrier, b.phase);
    if constexpr (C::keys == Keys::mxfp4)
        scores_mxfp4<C>(b.k, q.q, x);
    else
        scores_int8<C>(b.k, q.q, x);
    if (has_next)
        load_keys<C>(b, next);
    finish_scores(x, q.low_factor, q.bias, u, s);
    softmax(x, t);
    barrier_wait(b.v_barrier, b.phase);
    if constexpr (C::wide_values)
        values_wide<C, low_slices, C::values == Values::f16>(b.v, x, u, t);
    else if constexpr (C::values == Values::mxfp4)
        values_mxfp4(b.v, x, u, t);
    else
        values_bytes(b.v, x, u, t);
    if (has_next)
        load_values<C>(b, next);
}

/* ---------------------------------------------------------------- the kernel */

/* Rows past a sequence's count. */
__device__ inline void clear_rest(const DecodeParams &p)
{
    const int64_t rows = int64_t(p.batch) * p.d.heads * p.d.n;
    for (int64_t row = blockIdx.x; row < rows && p.d.counts; row += gridDim.x) {
        const int64_t b = row / p.d.n / p.d.heads;
        if (row % p.d.n >= p.d.counts[b])
            clear_row<decode_threads>(p.d, b, row / p.d.n % p.d.heads, row % p.d.n);
    }
}

template <class C>
__device__ __forceinline__ Buffers make_buffers(DecodeShared<C> &s)
{
    const int warp = int(threadIdx.x) / 32;
    Buffers b;
    b.k = s.ring[warp];
    b.v = s.ring[warp] + C::k_stage;
    b.k_address = smem_address(b.k);
    b.v_address = smem_address(b.v);
    b.k_barrier = smem_address(&s.barriers[warp][0]);
    b.v_barrier = smem_address(&s.barriers[warp][1]);
    b.phase = 0;
    if (lane_of() == 0) {
        barrier_init(b.k_barrier, 1);
        barrier_init(b.v_barrier, 1);
        fence_barrier_init();
    }
    __syncwarp();
    return b;
}

/* All of the warp's units of an item. The last one loads the first of the next item. True if there was one. */
template <class C>
__device__ __forceinline__ void attend_item(const DecodeParams &p, const Item &item, Source batch,
                                            const Source &next_item, bool next_has, Buffers &b,
                                            const LaneQueries<C> &q, const DecodeShared<C> &s, Sums<C> &t)
{
    const int n = own_units(item);
    Source now = source_of_lane(batch, 0);
    for (int own = 0; own < n; own++) {
        const bool last = own + 1 == n;
        if (!last && (own + 1) % 32 == 0)
            batch = find_source<C>(p, item, own + 1 + lane_of());
        const Source from = { last ? next_item.k : batch.k, last ? next_item.v : batch.v,
                              last ? next_item.key : batch.key };
        const Source next = source_of_lane(from, last ? 0 : (own + 1) % 32);
        const UnitKeys u = keys_of_unit(item, now.key);
        const bool has_next = !last || next_has;
        if (now.key & 1)
            attend_high(p, b, u, next, has_next, q, s, t);
        else
            attend_low(b, u, next, has_next, q, s, t);
        b.phase ^= 1;
        now = next;
    }
}

template <class C>
__global__ void __launch_bounds__(decode_threads, 1) decode_sm90(const __grid_constant__ DecodeParams p)
{
    extern __shared__ __align__(128) uint8_t memory[];
    DecodeShared<C> &s = *reinterpret_cast<DecodeShared<C> *>(memory);
    Buffers buffers = make_buffers(s);
    await_kernels_before();
    scan_pairs(p, s);
    if (threadIdx.x == 0) {
        find_first_item(p, s);
        find_next_item(p, s, s.items[0], s.items[1]);
        s.last = false;
    }
    __syncthreads();
    Source batch = find_source<C>(p, s.items[0], lane_of());
    LaneQueries<C> queries;
    bool loaded = false; /* the warp's first unit of the item */
    for (int k = 0;; k++) {
        const Item &item = s.items[k % 4], &next = s.items[(k + 1) % 4], &before = s.items[(k + 3) % 4];
        const bool has = item.segment >= 0;
        Sums<C> sums;
        clear_sums(sums);
        if (has) {
            if (!loaded && own_units(item) > 0) {
                load_keys<C>(buffers, source_of_lane(batch, 0));
                load_values<C>(buffers, source_of_lane(batch, 0));
            }
            if (k == 0 || item.pair != before.pair || item.h_kv != before.h_kv)
                prepare_column(p, item, s);
            __syncthreads();
            load_lane_queries(s, queries);
            const Source next_batch = find_source<C>(p, next, lane_of());
            loaded = own_units(item) > 0 && own_units(next) > 0;
            if (threadIdx.x == decode_threads - 1)
                find_next_item(p, s, next, s.items[(k + 2) % 4]);
            attend_item(p, item, batch, next_batch, loaded, buffers, queries, s, sums);
            batch = next_batch;
        }
        __syncthreads();
        if (s.last) /* of the item before */
            merge_parts(p, before, s);
        if (!has)
            break;
        store_part(p, item, sums, s);
        if (threadIdx.x == 0)
            count_part(p, item, s);
    }
    clear_rest(p);
}

} // namespace mxa

#endif
