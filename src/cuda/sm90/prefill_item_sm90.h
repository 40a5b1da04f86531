/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of work: an item is 128 queries (an absolute query tile) of one head, with the key tiles that
 * they see.
 */
#ifndef MXA_CUDA_PREFILL_ITEM_SM90_H
#define MXA_CUDA_PREFILL_ITEM_SM90_H

#include "core/bits.h"
#include "cuda/sm90/prefill_params_sm90.h"
#include "cuda/sm90/tiles_sm90.h"

namespace mxa
{

/*
 * Key tiles in the order of work, n = 0, 1, ...: four descending runs, the tiles near the diagonal, those of
 * the sink, the low ones above the diagonal's and those below. High tiles come first, so that the 16-bit Q of
 * the next item is loaded while low tiles are at work, and m starts from the largest logits.
 */
struct alignas(16) PrefillItem {
    int end[4]; /* of each run, as n; the tile is base - n */
    int base[4];
    int b;      /* negative: no more work */
    int q_tile; /* counts from position 0 */
    int h, h_kv;
    int mask_above[groups], mask_below[groups]; /* key tiles outside [mask_below, mask_above] need a mask */
    int64_t row0; /* of the tile's first position in [batch][heads][q_len], also where that is no query */
    int64_t out0; /* the same in the output, in elements */

    MXA_HD inline int tiles() const
    {
        return end[3];
    }

    MXA_HD inline bool high(int n) const
    {
        return n < end[1];
    }

    MXA_HD inline int k_tile(int n) const
    {
        return (n < end[0] ? base[0] : n < end[1] ? base[1] : n < end[2] ? base[2] : base[3]) - n;
    }
};

/* Towards minus infinity: positions may be negative. */
MXA_HD inline int tile_of(int position)
{
    return position >> 7;
}
static_assert(tile == 1 << 7, "tile_of");

/* Tiles first..last, descending, as the next run; none if last < first. */
MXA_HD inline void set_run(PrefillItem &it, int run, int first, int last)
{
    const int begin = run ? it.end[run - 1] : 0;
    it.base[run] = last + begin;
    it.end[run] = begin + max(last - first + 1, 0);
}

/* The rule of attn/tile_map.h for a whole row of tiles, of which k_first..k_last have a visible pair. */
MXA_HD inline void set_runs(const PrefillParams &p, PrefillItem &it, int k_first, int k_last)
{
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
    set_run(it, 0, near_first, near_last);
    set_run(it, 1, k_first, sink_last);
    set_run(it, 2, near_last + 1, k_last);
    set_run(it, 3, max(k_first, sink_last + 1), near_first - 1);
}

/* Tiles that all rows of a group see whole need no mask. */
MXA_HD inline void set_mask_bounds(const PrefillParams &p, PrefillItem &it)
{
    for (int group = 0; group < groups; group++) {
        const int first = it.q_tile * tile + group * rows, last = first + rows - 1;
        const int hi = p.window_right < 0 ? p.kv_len : min(p.kv_len, first + p.window_right + 1);
        it.mask_above[group] = tile_of(hi) - 1;
        it.mask_below[group] = p.window_left < 0 ? 0 : tile_of(last - p.window_left + tile - 1);
    }
}

/* Groups of heads whose K and V fit the L2 cache, in each the longest rows first. */
MXA_HD inline void set_item(const PrefillParams &p, int index, PrefillItem &it)
{
    const int per_group = p.heads_in_group * p.q_tiles;
    const int group = index / per_group, rest = index - group * per_group;
    const int bh = group * p.heads_in_group + rest % p.heads_in_group;
    it.q_tile = p.q_tile_first + p.q_tiles - 1 - rest / p.heads_in_group;
    it.b = bh / p.heads;
    it.h = bh - it.b * p.heads;
    it.h_kv = it.h / p.heads_per_kv;
    compiler_fence(); /* producers have few registers */
    const int first_pos = it.q_tile * tile, last_pos = first_pos + tile - 1;
    const int k_hi = p.window_right < 0 ? p.kv_len - 1 : min(p.kv_len - 1, last_pos + p.window_right);
    const int k_lo = p.window_left < 0 ? 0 : max(0, first_pos - p.window_left);
    set_runs(p, it, k_lo / tile, k_hi < 0 ? -1 : k_hi / tile);
    compiler_fence();
    set_mask_bounds(p, it);
    compiler_fence();
    it.row0 = (int64_t(it.b) * p.heads + it.h) * p.q_len + first_pos - p.q_offset;
    it.out0 = it.b * p.out_stride_b + it.h * p.out_stride_h + (first_pos - p.q_offset) * p.out_stride_s;
}

/* Whether an item needs this copy of Q. */
template <class T>
MXA_HD inline bool has_q(const PrefillItem &it, bool high)
{
    if (!T::has_low)
        return high && it.tiles() > 0;
    return high ? it.high(0) : it.tiles() > it.end[1];
}

} // namespace mxa

#endif
