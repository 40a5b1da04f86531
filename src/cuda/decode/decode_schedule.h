/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the blocks of a decode kernel do, from the lengths: plain functions, so that a host tests them.
 *
 * The queries of a sequence are cut into passes of up to 8 columns (query, head of the group) inside one query
 * tile, since a tile decides the precision. The keys that a pass sees are cut into units, each the work of a
 * warp: slices of 16 keys where tiles are high, tiles of 64 keys where they are low. Units lie in the order
 * high (sink window), low, high (near window). They are cut into segments, the work of a block, whose number
 * follows from the sequence alone: so a row's bits do not depend on its batch mates.
 */
#ifndef MXA_CUDA_DECODE_SCHEDULE_H
#define MXA_CUDA_DECODE_SCHEDULE_H

#include "attn/tile_map.h"

enum {
    MXA_DECODE_QUERIES = 16, /* of a sequence */
    MXA_DECODE_COLUMNS = 8,
    MXA_DECODE_LOW_KEYS = 64,  /* of a unit */
    MXA_DECODE_HIGH_KEYS = 16, /* of a unit */
    MXA_DECODE_SEGMENT = 32    /* units that a segment has, about */
};

/* Some (query, head) of one query tile and key/value head, queries outermost. */
typedef struct mxa_decode_pass {
    int64_t q_tile;
    int first_query, n_queries; /* of the tile, in the call */
    int first_row;              /* of the n_queries * group rows */
    int n_rows;                 /* columns in use; 0: there is no such pass */
} mxa_decode_pass;

/* Passes that n queries make at most. */
MXA_HD static inline int mxa_decode_passes(int n, int group, int columns)
{
    return (n * group + columns - 1) / columns + (n > 1 ? 1 : 0);
}

MXA_HD static inline mxa_decode_pass mxa_decode_pass_at(const mxa_tile_map *map, int group, int columns,
                                                        int index)
{
    mxa_decode_pass p;
    p.q_tile = mxa_tile_of(map->q_offset);
    p.first_query = 0;
    p.n_queries = (int)mxa_min(map->q_len, (p.q_tile + 1) * MXA_TILE - map->q_offset);
    const int passes = (p.n_queries * group + columns - 1) / columns;
    if (index >= passes) {
        index -= passes;
        p.q_tile++;
        p.first_query = p.n_queries;
        p.n_queries = (int)map->q_len - p.first_query;
    }
    p.first_row = index * columns;
    p.n_rows = (int)mxa_max(0, mxa_min(columns, (int64_t)p.n_queries * group - p.first_row));
    return p;
}

/* Query of a column of the pass, counted in the call. */
MXA_HD static inline int mxa_decode_query(const mxa_decode_pass *p, int group, int column)
{
    return p->first_query + (p->first_row + column) / group;
}

/* Keys of a pass by precision, and the units that they make. */
typedef struct mxa_decode_keys {
    int first, end;          /* that some column sees */
    int all_first, all_last; /* that all columns see: all_first <= key <= all_last */
    int low_first, low_end;  /* whole tiles; keys before and behind are high */
    int sink_units, low_units, units;
    int segments;
} mxa_decode_keys;

MXA_HD static inline int mxa_decode_units(int first, int end, int keys)
{
    return end > first ? (end + keys - 1) / keys - first / keys : 0;
}

/*
 * Key tiles from first to end that are low for a query tile. High ones are those of the sink window, a prefix
 * but for the last of them, which a left window may have left, and the near ones, a suffix.
 */
MXA_HD static inline mxa_span mxa_decode_low_tiles(const mxa_tile_map *map, int64_t q_tile, int64_t first,
                                                   int64_t end)
{
    const int64_t sink = mxa_min((map->sink_window + MXA_TILE - 1) / MXA_TILE, end);
    const int64_t near = map->diag_window > 0 ? q_tile - (map->diag_window + MXA_TILE - 2) / MXA_TILE : end;
    mxa_span low;
    low.first = first;
    if (sink > first)
        low.first = mxa_tile_is_high(map, q_tile, sink - 1) ? sink : mxa_max(first, sink - 1);
    low.end = mxa_max(mxa_min(near, end), low.first);
    return low;
}

/* segments_most: of a sequence, one for each multiprocessor that a key/value head has. Lengths below 2^30. */
MXA_HD static inline mxa_decode_keys mxa_decode_keys_of(const mxa_tile_map *map, const mxa_decode_pass *pass,
                                                        int group, int segments_most)
{
    const int64_t oldest = map->q_offset + mxa_decode_query(pass, group, 0);
    const int64_t newest = map->q_offset + mxa_decode_query(pass, group, pass->n_rows - 1);
    const mxa_span seen = mxa_visible_keys(map, oldest, newest);
    const mxa_span low =
        mxa_decode_low_tiles(map, pass->q_tile, seen.first / MXA_TILE, (seen.end + MXA_TILE - 1) / MXA_TILE);
    mxa_decode_keys k;
    k.first = (int)seen.first;
    k.end = (int)seen.end;
    k.all_first = (int)mxa_max(0, newest - map->window_left);
    k.all_last = (int)oldest;
    k.low_first = (int)mxa_max(mxa_min(low.first * MXA_TILE, seen.end), seen.first);
    k.low_end = (int)mxa_max(mxa_min(low.end * MXA_TILE, seen.end), k.low_first);
    k.sink_units = mxa_decode_units(k.first, k.low_first, MXA_DECODE_HIGH_KEYS);
    k.low_units = mxa_decode_units(k.low_first, k.low_end, MXA_DECODE_LOW_KEYS);
    k.units = k.sink_units + k.low_units + mxa_decode_units(k.low_end, k.end, MXA_DECODE_HIGH_KEYS);
    k.segments =
        (int)mxa_max(1, mxa_min((k.units + MXA_DECODE_SEGMENT / 2) / MXA_DECODE_SEGMENT, segments_most));
    return k;
}

/* Segments that a sequence of length tokens has at most. */
MXA_HD static inline int64_t mxa_decode_segments(int64_t length, int segments_most)
{
    const int64_t units = length / MXA_DECODE_HIGH_KEYS + 4; /* all high, and what alignment adds */
    return mxa_max(1, mxa_min(units / MXA_DECODE_SEGMENT + 1, segments_most));
}

typedef struct mxa_decode_unit {
    int key; /* the first one; the others of the slice or tile follow */
    bool high;
} mxa_decode_unit;

MXA_HD static inline mxa_decode_unit mxa_decode_unit_at(const mxa_decode_keys *k, int index)
{
    mxa_decode_unit u;
    u.high = index < k->sink_units || index >= k->sink_units + k->low_units;
    if (index < k->sink_units)
        u.key = (k->first / MXA_DECODE_HIGH_KEYS + index) * MXA_DECODE_HIGH_KEYS;
    else if (!u.high)
        u.key = (k->low_first / MXA_DECODE_LOW_KEYS + index - k->sink_units) * MXA_DECODE_LOW_KEYS;
    else
        u.key =
            (k->low_end / MXA_DECODE_HIGH_KEYS + index - k->sink_units - k->low_units) * MXA_DECODE_HIGH_KEYS;
    return u;
}

/* Units of segment number index. */
MXA_HD static inline int mxa_decode_segment_first(const mxa_decode_keys *k, int index)
{
    return (int)((int64_t)k->units * index / k->segments);
}

#endif
