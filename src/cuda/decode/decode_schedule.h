/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the blocks of a decode kernel do, from the lengths: plain functions, so that a host tests them.
 *
 * The queries of a sequence are cut into passes of up to 8 columns (query, head of the group) inside one
 * query tile, since a tile decides the precision. The keys that a pass sees are cut into units, each the
 * work of a warp: slices of 16 keys where tiles are high, tiles of 64 keys where they are low. Units lie in
 * the order high (sink window), low, high (near window). They are cut into segments, the work of a block,
 * whose number follows from the sequence's own length and the size of the batch: a row's bits do not depend
 * on what its batch mates are. Segments are numbered by pair (sequence, pass), head and segment, and block
 * c of G has those that begin in the c-th G-th of all units. Numbers are below 2^30 here: 64-bit divisions
 * take a GPU long.
 */
#ifndef MXA_CUDA_DECODE_SCHEDULE_H
#define MXA_CUDA_DECODE_SCHEDULE_H

#include "attn/tile_map.h"

enum {
    MXA_DECODE_QUERIES = 16, /* of a sequence */
    MXA_DECODE_COLUMNS = 8,
    MXA_DECODE_LOW_KEYS = 64,  /* of a unit */
    MXA_DECODE_HIGH_KEYS = 16, /* of a unit */
    MXA_DECODE_SEGMENT = 32,   /* units that a segment has at least, about */
    MXA_DECODE_SEGMENT_MOST = 512,
    MXA_DECODE_SEGMENTS = 128, /* of a pass and key/value head */
    MXA_DECODE_FAR = 1 << 30
};

/* Queries of a sequence: mxa_tile_map, causal. */
typedef struct mxa_decode_span {
    int q_len, kv_len, q_offset;
    int window_left, diag_window, sink_window; /* at most MXA_DECODE_FAR */
} mxa_decode_span;

MXA_HD static inline int mxa_decode_min(int a, int b)
{
    return a < b ? a : b;
}

MXA_HD static inline int mxa_decode_max(int a, int b)
{
    return a > b ? a : b;
}

/* Some (query, head) of one query tile and key/value head, queries outermost. */
typedef struct mxa_decode_pass {
    int q_tile;
    int first_query, n_queries; /* of the tile, in the call */
    int first_row;              /* of the n_queries * group rows */
    int n_rows;                 /* columns in use; 0: there is no such pass */
} mxa_decode_pass;

/* Passes that n queries make at most. */
MXA_HD static inline int mxa_decode_passes(int n, int group, int columns)
{
    return (n * group + columns - 1) / columns + (n > 1 ? 1 : 0);
}

MXA_HD static inline mxa_decode_pass mxa_decode_pass_at(const mxa_decode_span *m, int group, int columns,
                                                        int index)
{
    mxa_decode_pass p;
    p.q_tile = m->q_offset / MXA_TILE;
    p.first_query = 0;
    p.n_queries = mxa_decode_min(m->q_len, (p.q_tile + 1) * MXA_TILE - m->q_offset);
    const int passes = (p.n_queries * group + columns - 1) / columns;
    if (index >= passes) {
        index -= passes;
        p.q_tile++;
        p.first_query = p.n_queries;
        p.n_queries = m->q_len - p.first_query;
    }
    p.first_row = index * columns;
    p.n_rows = mxa_decode_max(0, mxa_decode_min(columns, p.n_queries * group - p.first_row));
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

/* mxa_tile_is_high by the sink window, for the last tile that it reaches. */
MXA_HD static inline bool mxa_decode_sink_is_high(const mxa_decode_span *m, int q_tile, int k_tile)
{
    const int k_first = k_tile * MXA_TILE, k_sink = mxa_decode_min(k_first + MXA_TILE, m->sink_window) - 1;
    const int q_first = q_tile * MXA_TILE, q_last = q_first + MXA_TILE - 1;
    return mxa_decode_max(q_first - k_sink, 0) <= mxa_decode_min(q_last - k_first, m->window_left);
}

/*
 * Keys from first to end that are low for a query tile, both whole tiles or first and end. High ones are
 * those of the sink window, a prefix but for the last of its tiles, which a left window may have left, and
 * the near ones, a suffix.
 */
MXA_HD static inline void mxa_decode_low_keys(const mxa_decode_span *m, int q_tile, mxa_decode_keys *k)
{
    const int first = k->first / MXA_TILE, end = (k->end + MXA_TILE - 1) / MXA_TILE;
    const int sink = mxa_decode_min((m->sink_window + MXA_TILE - 1) / MXA_TILE, end);
    const int near = m->diag_window > 0 ? q_tile - (m->diag_window + MXA_TILE - 2) / MXA_TILE : end;
    int low = first;
    if (sink > first)
        low = sink - 1 >= near || mxa_decode_sink_is_high(m, q_tile, sink - 1) ? sink : sink - 1;
    const int low_end = mxa_decode_max(mxa_decode_min(near, end), low);
    k->low_first = mxa_decode_max(mxa_decode_min(low * MXA_TILE, k->end), k->first);
    k->low_end = mxa_decode_max(mxa_decode_min(low_end * MXA_TILE, k->end), k->low_first);
}

/* So many that units are enough for each, but not too many; else as many as fill the device. */
MXA_HD static inline int mxa_decode_segments_of(int units, int wanted)
{
    const int most = (units + MXA_DECODE_SEGMENT / 2) / MXA_DECODE_SEGMENT;
    const int least = (units + MXA_DECODE_SEGMENT_MOST - 1) / MXA_DECODE_SEGMENT_MOST;
    const int n = mxa_decode_max(mxa_decode_min(wanted, most), least);
    return mxa_decode_max(1, mxa_decode_min(n, MXA_DECODE_SEGMENTS));
}

/* wanted: segments of each pass and head that fill the device. */
MXA_HD static inline mxa_decode_keys mxa_decode_keys_of(const mxa_decode_span *m, const mxa_decode_pass *pass,
                                                        int group, int wanted)
{
    mxa_decode_keys k;
    k.all_last = m->q_offset + mxa_decode_query(pass, group, 0);
    const int newest = m->q_offset + mxa_decode_query(pass, group, pass->n_rows - 1);
    k.all_first = mxa_decode_max(0, newest - m->window_left);
    k.first = mxa_decode_max(0, k.all_last - m->window_left);
    k.end = newest + 1;
    mxa_decode_low_keys(m, pass->q_tile, &k);
    k.sink_units = mxa_decode_units(k.first, k.low_first, MXA_DECODE_HIGH_KEYS);
    k.low_units = mxa_decode_units(k.low_first, k.low_end, MXA_DECODE_LOW_KEYS);
    k.units = k.sink_units + k.low_units + mxa_decode_units(k.low_end, k.end, MXA_DECODE_HIGH_KEYS);
    k.segments = mxa_decode_segments_of(k.units, wanted);
    return k;
}

/* Segments that a sequence of at most length tokens has at most. */
MXA_HD static inline int mxa_decode_segments(int length, int wanted)
{
    return mxa_decode_segments_of(length / MXA_DECODE_HIGH_KEYS + 4, wanted); /* all high, and alignment */
}

/* Segments of each of n passes and heads that fill the device best; more of them cost a little. */
static inline int mxa_decode_segments_wanted(int64_t n, int multiprocessors)
{
    const double price = 0.004;
    double best = 0;
    int wanted = 1;
    for (int s = 1; s <= mxa_decode_min(multiprocessors, MXA_DECODE_SEGMENTS); s++) {
        const int64_t rounds = (n * s + multiprocessors - 1) / multiprocessors;
        const double share = (double)(n * s) / (double)(rounds * multiprocessors) * (1 - price * s);
        wanted = share > best ? s : wanted;
        best = share > best ? share : best;
    }
    return wanted;
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

/* The first unit of segment number index. */
MXA_HD static inline int mxa_decode_segment_first(const mxa_decode_keys *k, int index)
{
    const int each = k->units / k->segments, more = k->units - each * k->segments;
    return index * each + mxa_decode_min(index, more);
}

/* The first segment that begins at the unit or behind it; k->segments: none does. */
MXA_HD static inline int mxa_decode_segment_from(const mxa_decode_keys *k, int unit)
{
    const int each = k->units / k->segments;
    int s = each ? unit / (each + 1) : 0;
    while (s < k->segments && mxa_decode_segment_first(k, s) < unit)
        s++;
    return s;
}

#endif
