/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which precision the score tile (q_tile, k_tile) gets, and whether a call computes it at all.
 *
 * Query i stands at position i + q_offset. Tiles are counted from position 0 and key 0, not from the first
 * query, so q_tile is negative where positions are. A tile holds every distance (position - key) between
 * those of its corners. An unlimited window is MXA_FAR; causal is window_right = 0. High or low depends on
 * the tile's numbers and the mask alone; only skipping looks at the call (docs/algorithm.md, "The precision
 * map").
 */
#ifndef MXA_ATTN_TILE_MAP_H
#define MXA_ATTN_TILE_MAP_H

#include <mxattn/mxattn.h>

#include "core/bits.h"

/* Beyond every distance: lengths and offsets stay below MXA_FAR / 4, so that no sum of a few overflows. */
#define MXA_FAR          (INT64_C(1) << 60)
#define MXA_POSITION_MAX (MXA_FAR / 4)

typedef struct mxa_tile_map {
    int64_t q_len, kv_len;
    int64_t q_offset;                  /* position of query 0 */
    int64_t window_left, window_right; /* 0..MXA_FAR */
    int64_t diag_window, sink_window;  /* 0..MXA_FAR */
} mxa_tile_map;

MXA_HD static inline int64_t mxa_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

MXA_HD static inline int64_t mxa_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The tile of a position, rounded towards minus infinity. */
MXA_HD static inline int64_t mxa_tile_of(int64_t position)
{
    return position >= 0 ? position / MXA_TILE : -((-position + MXA_TILE - 1) / MXA_TILE);
}

/*
 * High if one of the tile's pairs within the windows is less than diag_window from the diagonal or has a key
 * below sink_window. All 128 x 128 pairs count, also those that the call does not hold: so prefill, chunks
 * and decode steps give a tile the same precision.
 */
MXA_HD static inline bool mxa_tile_is_high(const mxa_tile_map *m, int64_t q_tile, int64_t k_tile)
{
    const int64_t q_first = q_tile * MXA_TILE, q_last = q_first + MXA_TILE - 1;
    const int64_t k_first = k_tile * MXA_TILE, k_last = k_first + MXA_TILE - 1;
    const int64_t k_sink = mxa_min(k_last, m->sink_window - 1);

    const int64_t lowest = mxa_max(q_first - k_last, -m->window_right);
    const int64_t highest = mxa_min(q_last - k_first, m->window_left);

    if (mxa_max(lowest, 1 - m->diag_window) <= mxa_min(highest, m->diag_window - 1))
        return true;
    return k_first <= k_sink && mxa_max(q_first - k_sink, -m->window_right) <= highest;
}

/* Skipped if the call has no visible pair in the tile. */
MXA_HD static inline mxa_precision mxa_tile_precision(const mxa_tile_map *m, int64_t q_tile, int64_t k_tile)
{
    const int64_t q_first = mxa_max(q_tile * MXA_TILE, m->q_offset);
    const int64_t q_last = mxa_min(q_tile * MXA_TILE + MXA_TILE, m->q_offset + m->q_len) - 1;
    const int64_t k_first = k_tile * MXA_TILE;
    const int64_t k_last = mxa_min(k_tile * MXA_TILE + MXA_TILE, m->kv_len) - 1;

    if (q_first > q_last || k_first > k_last)
        return MXA_TILE_SKIP;
    if (mxa_max(q_first - k_last, -m->window_right) > mxa_min(q_last - k_first, m->window_left))
        return MXA_TILE_SKIP;
    return mxa_tile_is_high(m, q_tile, k_tile) ? MXA_TILE_HIGH : MXA_TILE_LOW;
}

typedef struct mxa_span {
    int64_t first, end; /* empty if end <= first */
} mxa_span;

/* The keys that positions first..last see between them. */
MXA_HD static inline mxa_span mxa_visible_keys(const mxa_tile_map *m, int64_t first, int64_t last)
{
    const mxa_span keys = { mxa_max(0, first - m->window_left),
                            mxa_min(m->kv_len, last + m->window_right + 1) };
    return keys;
}

/* The query tiles of a call. */
MXA_HD static inline mxa_span mxa_query_tiles(const mxa_tile_map *m)
{
    const int64_t first = mxa_tile_of(m->q_offset);
    const mxa_span tiles = { first, m->q_len > 0 ? mxa_tile_of(m->q_offset + m->q_len - 1) + 1 : first };
    return tiles;
}

#endif
