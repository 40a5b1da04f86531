/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of work: an item is 128 queries (an absolute query tile) of one head, with the keys that they see
 * in steps of 128 or 64.
 */
#ifndef MXA_CUDA_PREFILL_ITEM_SM90_H
#define MXA_CUDA_PREFILL_ITEM_SM90_H

#include "core/bits.h"
#include "cuda/sm90/prefill_params_sm90.h"
#include "cuda/sm90/tiles_sm90.h"

namespace mxa
{

/*
 * Steps in the order of work, n = 0, 1, ...: four descending runs, those near the diagonal, those of the
 * sink, the low ones above the diagonal's and those below. High ones come first, so that the 16-bit Q of the
 * next item is loaded while low tiles are at work, and m starts from the largest logits.
 */
struct PrefillSteps {
    int end[4]; /* of each run, as n; its keys begin at (base - n) * keys */
    int base[4];

    MXA_HD inline int count() const
    {
        return end[3];
    }

    MXA_HD inline bool high(int n) const
    {
        return n < end[1];
    }

    /* Counts from key 0. */
    MXA_HD inline int step(int n) const
    {
        return (n < end[0] ? base[0] : n < end[1] ? base[1] : n < end[2] ? base[2] : base[3]) - n;
    }
};

/* Rows are those of the tile's first position, also where that is no query, and of key 0. */
struct alignas(16) PrefillItem : PrefillSteps {
    int mask_above[groups],
        mask_below[groups]; /* steps of keys outside [mask_below, mask_above] need a mask */
    int q_tile;             /* counts from position 0 */
    int batch;              /* of the tensors; negative: no more work */
    int sequence, h, h_kv;
    int q_len, kv_len;
    int first;            /* query, may be negative */
    int q_row, k_row;     /* in the tensors */
    int q_copy, k_copy;   /* in copies */
    int q_block, k_block; /* in copies, of query 0 and key 0 */
};

/* Towards minus infinity: positions may be negative. */
MXA_HD inline int tile_of(int position)
{
    return position >> 7;
}
static_assert(tile == 1 << 7, "tile_of");

template <int keys>
MXA_HD inline int step_of(int position)
{
    static_assert(keys == 128 || keys == 64, "a power of two");
    return position >> (keys == 128 ? 7 : 6);
}

MXA_HD inline int blocks_of(int length)
{
    return (length + tile - 1) / tile;
}

/* Steps first..last, descending, as the next run; none if last < first. */
MXA_HD inline void set_run(PrefillSteps &it, int run, int first, int last)
{
    const int begin = run ? it.end[run - 1] : 0;
    it.base[run] = last + begin;
    it.end[run] = begin + max(last - first + 1, 0);
}

/* The rule of attn/tile_map.h for a whole row of tiles, whose queries see keys k_lo..k_hi between them. */
template <int keys>
MXA_HD inline void set_runs(const PrefillParams &p, PrefillItem &it, int k_lo, int k_hi)
{
    constexpr int steps = tile / keys;
    const int k_first = tile_of(k_lo), k_last = tile_of(k_hi);
    const int first_pos = it.q_tile * tile;
    const int lowest = max(p.window_right < 0 ? -p.far : -p.window_right, 1 - p.diag_window);
    const int highest = min(p.window_left < 0 ? p.far : p.window_left, p.diag_window - 1);
    int near_first = max(k_first, it.q_tile - tile_of(highest + tile - 1));
    int near_last = min(k_last, it.q_tile - tile_of(lowest));
    if (lowest > highest || near_last < near_first) {
        near_first = k_last + 1;
        near_last = k_last;
    }
    int sink_last = p.sink_window / tile - 1;
    if (p.sink_window % tile && (p.window_left < 0 || first_pos - (p.sink_window - 1) <= p.window_left))
        sink_last++;
    if (sink_last >= near_first) /* one run with the tiles near the diagonal */
        near_last = max(near_last, min(sink_last, k_last));
    sink_last = min(sink_last, near_first - 1);

    const int lo = step_of<keys>(k_lo), hi = step_of<keys>(k_hi);
    const auto run = [&](int index, int first, int last) {
        set_run(it, index, max(first * steps, lo), min(last * steps + steps - 1, hi));
    };
    run(0, near_first, near_last);
    run(1, k_first, sink_last);
    run(2, near_last + 1, k_last);
    run(3, max(k_first, sink_last + 1), near_first - 1);
}

/* Steps that all rows of a group see whole need no mask. */
template <int keys>
MXA_HD inline void set_mask_bounds(const PrefillParams &p, PrefillItem &it)
{
    for (int group = 0; group < groups; group++) {
        const int first = it.q_tile * tile + group * rows, last = first + rows - 1;
        const int hi = p.window_right < 0 ? it.kv_len : min(it.kv_len, first + p.window_right + 1);
        it.mask_above[group] = step_of<keys>(hi) - 1;
        it.mask_below[group] = p.window_left < 0 ? 0 : step_of<keys>(last - p.window_left + keys - 1);
    }
}

/*
 * Sequences of equal lengths: groups of heads whose K and V fit the L2 cache, in each the longest rows first.
 * Packed ones: the longest rows first, heads side by side.
 */
MXA_HD inline PrefillSequence set_place(const PrefillParams &p, int index, PrefillItem &it)
{
    PrefillSequence s = p.first;
    if (p.sequences) {
        const mxa_query_tile &entry = p.tiles[index / p.heads];
        const mxa_sequence &from = p.sequences[entry.sequence];
        s = { int(from.map.q_len), int(from.map.kv_len), int(from.map.q_offset), int(from.batch),
              int(from.q_first),   int(from.k_first),    int(from.q_rows),       int(from.k_rows),
              int(from.q_blocks),  int(from.k_blocks) };
        it.sequence = int(entry.sequence);
        it.q_tile = int(entry.tile);
        it.h = index % p.heads;
        return s;
    }
    const int per_group = p.heads_in_group * p.q_tiles;
    const int group = index / per_group, rest = index - group * per_group;
    const int bh = group * p.heads_in_group + rest % p.heads_in_group;
    it.q_tile = p.q_tile_first + p.q_tiles - 1 - rest / p.heads_in_group;
    it.sequence = s.batch = bh / p.heads;
    it.h = bh - s.batch * p.heads;
    s.q_rows = s.batch * p.heads * s.q_len;
    s.k_rows = s.batch * p.heads_kv * s.kv_len;
    s.q_blocks = s.batch * p.heads * blocks_of(s.q_len);
    s.k_blocks = s.batch * p.heads_kv * blocks_of(s.kv_len);
    return s;
}

template <int keys>
MXA_HD inline void set_item(const PrefillParams &p, int index, PrefillItem &it)
{
    const PrefillSequence s = set_place(p, index, it);
    it.batch = s.batch;
    it.h_kv = it.h / p.heads_per_kv;
    it.q_len = s.q_len;
    it.kv_len = s.kv_len;
    it.first = it.q_tile * tile - s.q_offset;
    it.q_row = s.q_first + it.first;
    it.k_row = s.k_first;
    it.q_copy = s.q_rows + it.h * s.q_len + it.first;
    it.k_copy = s.k_rows + it.h_kv * s.kv_len;
    it.q_block = s.q_blocks + it.h * blocks_of(s.q_len);
    it.k_block = s.k_blocks + it.h_kv * blocks_of(s.kv_len);
    compiler_fence(); /* producers have few registers */
    const int first_pos = it.q_tile * tile, last_pos = first_pos + tile - 1;
    const int k_hi = p.window_right < 0 ? it.kv_len - 1 : min(it.kv_len - 1, last_pos + p.window_right);
    const int k_lo = p.window_left < 0 ? 0 : max(0, first_pos - p.window_left);
    if (k_lo <= k_hi) {
        set_runs<keys>(p, it, k_lo, k_hi);
    } else { /* one step, all masked */
        it.end[0] = it.end[1] = it.end[2] = 0;
        set_run(it, 3, 0, 0);
    }
    compiler_fence();
    set_mask_bounds<keys>(p, it);
}

/* Whether an item needs this copy of Q. */
template <class T>
MXA_HD inline bool has_q(const PrefillSteps &it, bool high)
{
    if (!T::has_low)
        return high;
    return high ? it.high(0) : it.count() > it.end[1];
}

} // namespace mxa

#endif
