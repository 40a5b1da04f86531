/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention of sm_90a (docs/kernels_decode.md): one block a multiprocessor, eight warps that work
 * alone on units of keys, each with its own buffer for K and for V, filled by bulk copies.
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
__device__ __forceinline__ void set_pair(const DecodeParams &p, int pair, Item &item)
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

/* Into shared memory. */
template <class C>
__device__ __noinline__ void find_pair(const DecodeParams &p, int pair, Item &item)
{
    set_pair<C>(p, pair, item);
}

/* The units of the block: those of all before it, and those up to its end. */
template <class C>
__device__ __forceinline__ uint32_t share_units(uint32_t units, DecodeShared<C> &s)
{
    const uint32_t each = units / gridDim.x, more = units - each * gridDim.x;
    const uint32_t c = blockIdx.x;
    s.units_end = each * (c + 1) + more * (c + 1) / gridDim.x;
    return each * c + more * c / gridDim.x;
}

/*
 * By one thread: the item at item.segment, or what follows where that is none; of this block, or segment
 * -1.
 */
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

/* scan[i]: units of all heads before pair i; one thread for each of 256 pairs, and more in rounds. */
template <class C>
__device__ __forceinline__ void scan_pairs(DecodeShared<C> &s, int first, int pairs, uint32_t units)
{
    uint32_t x = units;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, x, unsigned(lanes));
        x += lane_of() >= lanes ? other : 0;
    }
    if (lane_of() == 31)
        s.warp_units[threadIdx.x / 32] = x;
    __syncthreads();
    uint32_t before = s.scan[first];
    for (int w = 0; w < int(threadIdx.x) / 32; w++)
        before += s.warp_units[w];
    if (first + int(threadIdx.x) < pairs)
        s.scan[first + int(threadIdx.x) + 1] = before + x;
    __syncthreads();
}

/* The block's first item, by the thread that knows its pair. */
template <class C>
__device__ __forceinline__ void find_first_item(const DecodeParams &p, DecodeShared<C> &s)
{
    const int pairs = p.batch * p.passes;
    Item own;
    own.keys.units = 0;
    s.scan[0] = 0;
    s.items[0].segment = -1;
    int own_pair = int(threadIdx.x);
#pragma unroll 1
    for (int first = 0; first < pairs; first += decode_threads) {
        own.keys.units = 0;
        own_pair = first + int(threadIdx.x);
        if (own_pair < pairs)
            set_pair<C>(p, own_pair, own);
        scan_pairs(s, first, pairs, uint32_t(own.keys.units) * unsigned(p.heads_kv));
    }
    const uint32_t begin = share_units(s.scan[pairs], s);
    int pair = int(threadIdx.x);
    for (; pair < pairs && !(s.scan[pair] <= begin && begin < s.scan[pair + 1]); pair += decode_threads)
        continue;
    if (pair < pairs) {
        Item &item = s.items[0];
        if (pair == own_pair)
            item = own;
        else
            find_pair<C>(p, pair, item);
        const int rest = int(begin - s.scan[pair]);
        item.h_kv = rest / item.keys.units;
        item.segment = mxa_decode_segment_from(&item.keys, rest - item.h_kv * item.keys.units);
        settle_item(p, s, item);
    }
    __syncthreads();
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
    const unsigned page = p.page_tiles == 1 ? tile : __umulhi(tile, p.page_reciprocal);
    const uint64_t address = p.d.tables[copy][item.b * p.d.table_pages + page];
    return reinterpret_cast<const uint8_t *>(address) + item.h_kv * tiles.head_bytes[copy] +
           (tile - page * p.page_tiles) * unsigned(tiles.bytes[copy]);
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

/* Buffers of a unit. */
struct Buffers {
    uint8_t *k, *v;
    uint32_t k_barrier, v_barrier, phase;
};

/* Those of the warp's unit number n since the launch. */
template <class C>
__device__ __forceinline__ Buffers buffers_of(DecodeShared<C> &s, uint32_t n)
{
    const int warp = int(threadIdx.x) / 32, stage = C::stages == 2 ? n % 2 : 0;
    Buffers b;
    b.k = s.ring[warp][stage];
    b.v = b.k + C::k_stage;
    b.k_barrier = smem_address(&s.barriers[warp][stage][0]);
    b.v_barrier = smem_address(&s.barriers[warp][stage][1]);
    b.phase = n / C::stages % 2;
    return b;
}

template <class C>
__device__ __forceinline__ void load_keys(const Buffers &b, const Source &from)
{
    __syncwarp();
    if (lane_of() != 0)
        return;
    const uint32_t bytes = from.key & 1 ? C::high_bytes : C::k_bytes;
    barrier_expect(b.k_barrier, bytes);
    bulk_load(smem_address(b.k), from.k, bytes, b.k_barrier);
}

template <class C>
__device__ __forceinline__ void load_values(const Buffers &b, const Source &from)
{
    __syncwarp();
    if (lane_of() != 0)
        return;
    const uint32_t bytes = from.key & 1 ? C::high_bytes : C::v_bytes;
    barrier_expect(b.v_barrier, bytes);
    bulk_load(smem_address(b.v), from.v, bytes, b.v_barrier);
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

/* The unit behind, and where it goes if there is room for two. */
struct Next {
    Source from;
    Buffers to;
    bool has;
};

template <class C>
__device__ __forceinline__ void load_ahead(const Next &next)
{
    if (C::stages == 1 || !next.has)
        return;
    load_keys<C>(next.to, next.from);
    load_values<C>(next.to, next.from);
}

template <class C>
__device__ __forceinline__ void attend_high(const DecodeParams &p, const Buffers &b, const UnitKeys &u,
                                            const Next &next, const LaneQueries<C> &q,
                                            const DecodeShared<C> &s, Sums<C> &t)
{
    Scores<C, 1> x;
    const float none[C::lane_columns] = {};
    barrier_wait(b.k_barrier, b.phase);
    load_ahead<C>(next);
    scores_high(b.k, s.q_high, x);
    if (C::stages == 1 && next.has)
        load_keys<C>(b, next.from);
    finish_scores(x, q.high_factor, none, u, s);
    softmax(x, t);
    for (int unit = 0; unit < C::units && !C::wide_values; unit++)
        change_unit(t, unit, 0);
    barrier_wait(b.v_barrier, b.phase);
    if (C::values == Values::f16 || (!C::wide_values && p.pv_f16))
        values_wide<C, 1, true>(b.v, x, u, t);
    else
        values_wide<C, 1, false>(b.v, x, u, t);
    if (C::stages == 1 && next.has)
        load_values<C>(b, next.from);
}

template <class C>
__device__ __forceinline__ void attend_low(const Buffers &b, const UnitKeys &u, const Next &next,
                                           const LaneQueries<C> &q, const DecodeShared<C> &s, Sums<C> &t)
{
    Scores<C, low_slices> x;
    barrier_wait(b.k_barrier, b.phase);
    load_ahead<C>(next);
    if constexpr (C::keys == Keys::mxfp4)
        scores_mxfp4<C>(b.k, q.q, x);
    else
        scores_int8<C>(b.k, q.q, x);
    if (C::stages == 1 && next.has)
        load_keys<C>(b, next.from);
    finish_scores(x, q.low_factor, q.bias, u, s);
    softmax(x, t);
    barrier_wait(b.v_barrier, b.phase);
    if constexpr (C::wide_values)
        values_wide<C, low_slices, C::values == Values::f16>(b.v, x, u, t);
    else if constexpr (C::values == Values::mxfp4)
        values_mxfp4(b.v, x, u, t);
    else
        values_bytes(b.v, x, u, t);
    if (C::stages == 1 && next.has)
        load_values<C>(b, next.from);
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
__device__ __forceinline__ void make_barriers(DecodeShared<C> &s)
{
    if (lane_of() != 0)
        return;
    for (uint32_t stage = 0; stage < C::stages; stage++) {
        const Buffers b = buffers_of(s, stage);
        barrier_init(b.k_barrier, 1);
        barrier_init(b.v_barrier, 1);
    }
    fence_barrier_init();
}

/*
 * All of the warp's units of an item. The last one loads the first of the next item. True if there was one.
 */
template <class C>
__device__ __forceinline__ void attend_item(const DecodeParams &p, const Item &item, Source batch,
                                            const Source &next_item, bool next_has, uint32_t &units,
                                            const LaneQueries<C> &q, DecodeShared<C> &s, Sums<C> &t)
{
    const int n = own_units(item);
    Source now = source_of_lane(batch, 0);
    for (int own = 0; own < n; own++) {
        const bool last = own + 1 == n;
        if (!last && (own + 1) % 32 == 0)
            batch = find_source<C>(p, item, own + 1 + lane_of());
        const Source from = { last ? next_item.k : batch.k, last ? next_item.v : batch.v,
                              last ? next_item.key : batch.key };
        const Next next = { source_of_lane(from, last ? 0 : (own + 1) % 32), buffers_of(s, units + 1),
                            !last || next_has };
        const UnitKeys u = keys_of_unit(item, now.key);
        if (now.key & 1)
            attend_high(p, buffers_of(s, units), u, next, q, s, t);
        else
            attend_low(buffers_of(s, units), u, next, q, s, t);
        units++;
        now = next.from;
    }
}

template <class C>
__global__ void __launch_bounds__(decode_threads, 1) decode_sm90(const __grid_constant__ DecodeParams p)
{
    extern __shared__ __align__(128) uint8_t memory[];
    DecodeShared<C> &s = *reinterpret_cast<DecodeShared<C> *>(memory);
    make_barriers(s);
    uint32_t units = 0; /* of the warp so far */
    await_kernels_before();
    s.last = false;
    find_first_item(p, s);
    Source batch = find_source<C>(p, s.items[0], lane_of());
    LaneQueries<C> queries;
    bool loaded = false; /* the warp's first unit of the item */
    for (int k = 0;; k++) {
        Item &item = s.items[k % 3], &next = s.items[(k + 1) % 3], &before = s.items[(k + 2) % 3];
        const bool has = item.segment >= 0;
        Sums<C> sums;
        clear_sums(sums);
        if (has) {
            if (!loaded && own_units(item) > 0) {
                load_keys<C>(buffers_of(s, units), source_of_lane(batch, 0));
                load_values<C>(buffers_of(s, units), source_of_lane(batch, 0));
            }
            if (threadIdx.x == decode_threads - 32)
                find_next_item(p, s, item, next);
            if (k == 0 || item.pair != before.pair || item.h_kv != before.h_kv)
                prepare_column(p, item, s);
            __syncthreads();
            load_lane_queries(s, queries);
            const Source next_batch = find_source<C>(p, next, lane_of());
            loaded = own_units(item) > 0 && own_units(next) > 0;
            attend_item(p, item, batch, next_batch, loaded, units, queries, s, sums);
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
