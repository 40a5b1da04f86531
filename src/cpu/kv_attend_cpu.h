/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a few new queries to a KV cache: the contract of its kernels, their ordered list, and the
 * driver.
 *
 * All query heads of a key/value head go through its keys together. Keys are cut into segments at fixed
 * positions, whose results are merged in order, so that a row's bits depend on neither threads nor batch.
 */
#ifndef MXA_CPU_KV_ATTEND_CPU_H
#define MXA_CPU_KV_ATTEND_CPU_H

#include "attn/kv_view.h"
#include "cpu/kernels.h"

enum { MXA_KV_ROWS = 64, MXA_KV_SEGMENT_TILES = 16, MXA_KV_CHANNELS = 16 };

/* Up to this many queries of a sequence, segments are shared over threads, and each has its own sums. */
enum { MXA_KV_SPLIT_QUERIES = 16 };

/* One copy of the queries; row (b, h, i) is (b * heads + h) * n + i. */
typedef struct mxa_kv_query {
    const mxa_copy_plan *copy; /* info NULL: no tile reads it */
    int64_t row_bytes, scale_cols;
    uint8_t *codes, *scales;
    float *g; /* [rows], or NULL: 1 */
} mxa_kv_query;

/* One call: everything is checked, the queries are quantised. */
typedef struct mxa_kv_job {
    const mxa_kv_view *view;
    const mxa_recipe *recipe;
    mxa_kv_query q[MXA_COPIES];
    const float *bias; /* [rows] b_i of smooth-K, natural units; NULL: none */
    const mxa_tensor *out;
    const int64_t *counts; /* [batch], or NULL: n */
    float *lse;
    const float *sinks;
    float softmax_scale, softcap;
    int64_t heads, n;
    int64_t window_left; /* 0..MXA_FAR */
    int64_t channels;    /* head_dim_v in whole MXA_KV_CHANNELS */
} mxa_kv_job;

/* Some query heads of one key/value head, and some queries of one query tile: rows head by head. */
typedef struct mxa_kv_unit {
    mxa_tile_map map;
    int64_t b, h_kv, tile;
    int64_t h, n_heads;
    int64_t i, n_queries;
} mxa_kv_unit;

/*
 * O, largest logit in base 2 and sum of 2^(logit - max) of a unit's rows: [rows][channels], [rows], [rows].
 */
typedef struct mxa_kv_sums {
    float *o, *max, *sum;
} mxa_kv_sums;

/* Bytes of 64-byte aligned scratch of a thread. */
typedef int64_t mxa_kv_scratch_fn(const mxa_kv_job *job);

/*
 * Attention of a unit to the keys of some tiles, none of them skipped; V includes its factors, and is not
 * rotated back. A row's bits depend on that row, the keys and the mask alone. Rows whose result is not finite
 * are computed again by the reference.
 */
typedef void mxa_kv_segment_fn(const mxa_kv_job *job, const mxa_kv_unit *unit, mxa_span tiles, void *scratch,
                               const mxa_kv_sums *sums);

typedef struct mxa_kv_impl {
    const char *name;
    uint32_t needs; /* MXA_CPU_... */
    mxa_kv_scratch_fn *scratch_bytes;
    mxa_kv_segment_fn *segment; /* NULL: the reference */
} mxa_kv_impl;

/* Fastest first, the reference last; terminated by an entry without name. */
extern const mxa_kv_impl mxa_kv_impls[];
const mxa_kv_impl *mxa_kv_pick(void);

static inline int64_t mxa_kv_count(const mxa_kv_job *job, int64_t b)
{
    return job->counts ? job->counts[b] : job->n;
}

static inline int64_t mxa_kv_row(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t r)
{
    return (u->b * job->heads + u->h + r / u->n_queries) * job->n + u->i + r % u->n_queries;
}

/* Keys of a tile that some row of the unit sees, and that row r sees. */
static inline mxa_span mxa_kv_tile_keys(const mxa_kv_unit *u, int64_t k_tile, int64_t first_query, int64_t n)
{
    const int64_t position = u->map.q_offset + u->i + first_query;
    const mxa_span keys = mxa_visible_keys(&u->map, position, position + n - 1);
    return (mxa_span){ mxa_max(keys.first, k_tile * MXA_TILE), mxa_min(keys.end, (k_tile + 1) * MXA_TILE) };
}

/* The map of sequence b's queries, which end at its newest token. */
mxa_tile_map mxa_kv_map(const mxa_recipe *recipe, int64_t length, int64_t count, int64_t window_left);

/* 0 if they do not fit 63 bits. */
size_t mxa_kv_work_bytes(const mxa_kv_view *view, const mxa_copy_plan *q, int64_t batch, int64_t heads,
                         int64_t n, int64_t length, int threads, const mxa_kv_impl *impl);

/* q_copies [MXA_COPIES]; job has all but the queries and the bias, which go to work. */
void mxa_kv_attend(mxa_kv_job *job, const mxa_copy_plan *q_copies, const mxa_tensor *q, int threads,
                   const mxa_kv_impl *impl, void *work);

/* Row (b, h, i) in float64, stored. */
void mxa_kv_attend_ref(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t r);

#endif
