/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: share units and segments over threads, merge, store. */
#include "cpu/kv_attend_cpu.h"

#include <math.h>
#include <omp.h>

#include "attn/softmax.h"
#include "core/tensor.h"
#include "cpu/features.h"
#include "cpu/kv_work.h"
#include "cpu/row_items.h"
#include "cpu/steps_cpu.h"
#include "format/mx.h"

const mxa_kv_impl *mxa_kv_pick(void)
{
    const mxa_kv_impl *impl = mxa_kv_impls;
    while (!mxa_cpu_has(impl->needs))
        impl++;
    return impl;
}

mxa_tile_map mxa_kv_map(const mxa_recipe *recipe, int64_t length, int64_t count, int64_t window_left)
{
    return (mxa_tile_map){
        .q_len = count,
        .kv_len = length,
        .q_offset = length - count,
        .window_left = window_left,
        .window_right = 0,
        .diag_window = mxa_min(recipe->diag_window, MXA_FAR),
        .sink_window = mxa_min(recipe->sink_window, MXA_FAR),
    };
}

/* How units are numbered: heads of a key/value head in chunks, queries in blocks that end with their tile. */
typedef struct grid {
    int64_t group, chunk, chunks; /* query heads of a key/value head, of a unit, and units that makes */
    int64_t block, blocks;        /* queries of a unit, units in a query tile */
    int64_t tiles;                /* query tiles of a sequence at most */
    int64_t units;
} grid;

static grid grid_of(const mxa_kv_job *job, int64_t batch)
{
    grid g = { .group = job->heads / job->view->layout->heads_kv };
    g.chunk = mxa_min(g.group, MXA_KV_ROWS);
    g.chunks = (g.group + g.chunk - 1) / g.chunk;
    g.block = MXA_KV_ROWS / g.chunk;
    g.blocks = (mxa_min(job->n, MXA_TILE) + g.block - 1) / g.block;
    g.tiles = (job->n + MXA_TILE - 2) / MXA_TILE + 1;
    g.units = batch * job->view->layout->heads_kv * g.chunks * g.tiles * g.blocks;
    return g;
}

/* Unit number index; false if the sequence has no such queries. */
static bool unit_at(const mxa_kv_job *job, const grid *g, int64_t index, mxa_kv_unit *u)
{
    const int64_t block = index % g->blocks, tile = index / g->blocks % g->tiles;
    const int64_t rest = index / g->blocks / g->tiles, chunk = rest % g->chunks;
    const int64_t heads_kv = job->view->layout->heads_kv;
    *u = (mxa_kv_unit){ .b = rest / g->chunks / heads_kv, .h_kv = rest / g->chunks % heads_kv };
    const int64_t length = job->view->sequences[u->b].length, count = mxa_kv_count(job, u->b);
    u->map = mxa_kv_map(job->recipe, length, count, job->window_left);
    u->tile = mxa_tile_of(u->map.q_offset) + tile;
    u->h = u->h_kv * g->group + chunk * g->chunk;
    u->n_heads = mxa_min(g->chunk, g->group - chunk * g->chunk);
    const int64_t first = mxa_max(u->tile * MXA_TILE - u->map.q_offset, 0) + block * g->block;
    const int64_t end = mxa_min((u->tile + 1) * MXA_TILE - u->map.q_offset, count);
    u->i = first;
    u->n_queries = mxa_min(g->block, end - first);
    return u->n_queries > 0;
}

/* Key tiles of segment number index that the unit sees. */
static mxa_span segment_tiles(const mxa_kv_unit *u, int64_t index)
{
    const int64_t position = u->map.q_offset + u->i;
    const mxa_span keys = mxa_visible_keys(&u->map, position, position + u->n_queries - 1);
    const int64_t first = index * MXA_KV_SEGMENT_TILES;
    return (mxa_span){ mxa_max(first, keys.first / MXA_TILE),
                       mxa_min(first + MXA_KV_SEGMENT_TILES, (keys.end + MXA_TILE - 1) / MXA_TILE) };
}

/* Take a part in: sums are relative to the larger maximum then; NaN stays. */
static void merge_row(float *o, float *max, float *sum, const float *part_o, float part_max, float part_sum,
                      int64_t channels)
{
    if (part_max == -INFINITY)
        return;
    const float m = part_max > *max || isnan(part_max) ? part_max : *max;
    const float a = *max == -INFINITY ? 0.0f : exp2f(*max - m), part_a = exp2f(part_max - m);
    *max = m;
    *sum = *sum * a + part_sum * part_a;
    for (int64_t d = 0; d < channels; d++)
        o[d] = o[d] * a + part_o[d] * part_a;
}

/* The sink logit is a key without value; if it is no number in base 2, the row goes to the reference. */
static void begin_row(const mxa_kv_job *job, int64_t h, float *o, float *max, float *sum)
{
    const float sink = job->sinks ? job->sinks[h] : -INFINITY, base2 = (float)((double)sink * MXA_LOG2_E);
    *max = mxa_f32_is_finite(base2) ? base2 : -INFINITY;
    *sum = sink == -INFINITY ? 0.0f : mxa_f32_is_finite(base2) ? 1.0f : NAN;
    memset(o, 0, (size_t)job->channels * sizeof *o);
}

static void store(const mxa_kv_job *job, int64_t b, int64_t h, int64_t i, float *o, float lse)
{
    if (job->view->layout->part[MXA_LOW][MXA_KV_V].copy.rotate)
        mxa_rotate_rows(o, 1, job->out->shape[3]);
    mxa_row_store(job->out, b, h, i, o);
    if (job->lse)
        job->lse[(b * job->heads + h) * job->n + i] = lse;
}

/* Divide and store row r of a unit, or leave it to the reference. */
static void end_row(const mxa_kv_job *job, const mxa_kv_unit *u, int64_t r, float *o, float max, float sum)
{
    const int64_t dim = job->out->shape[3];
    for (int64_t d = 0; d < dim && sum > 0; d++)
        o[d] /= sum;
    if (sum > 0 && mxa_f32_is_finite(sum) && mxa_amax_bits(o, dim) < MXA_F32_INF)
        store(job, u->b, u->h + r / u->n_queries, u->i + r % u->n_queries, o, mxa_lse(max, sum));
    else
        mxa_kv_attend_ref(job, u, r);
}

/* A thread's scratch: sums so far, a segment's sums, and the kernel's. */
typedef struct thread_scratch {
    mxa_kv_sums total, part;
    void *kernel;
} thread_scratch;

static mxa_kv_sums sums_at(char *base, int64_t channels)
{
    float *const o = (float *)(void *)base;
    return (mxa_kv_sums){ o, o + MXA_KV_ROWS * channels, o + MXA_KV_ROWS * (channels + 1) };
}

static thread_scratch scratch_of(const mxa_kv_job *job, const mxa_kv_work *l, char *work)
{
    char *const base = work + l->scratch + omp_get_thread_num() * l->thread_bytes;
    const int64_t bytes = mxa_kv_sums_bytes(job->channels);
    return (thread_scratch){ sums_at(base, job->channels), sums_at(base + bytes, job->channels),
                             base + 2 * bytes };
}

/* All segments of a unit one after another. */
static void attend_unit(const mxa_kv_job *job, const mxa_kv_impl *impl, const mxa_kv_unit *u,
                        thread_scratch t)
{
    const int64_t rows = u->n_heads * u->n_queries, channels = job->channels;
    for (int64_t r = 0; r < rows; r++)
        begin_row(job, u->h + r / u->n_queries, t.total.o + r * channels, &t.total.max[r], &t.total.sum[r]);
    for (int64_t segment = 0; segment < mxa_kv_segments(u->map.kv_len); segment++) {
        const mxa_span tiles = segment_tiles(u, segment);
        if (tiles.first >= tiles.end)
            continue;
        impl->segment(job, u, tiles, t.kernel, &t.part);
        for (int64_t r = 0; r < rows; r++)
            merge_row(t.total.o + r * channels, &t.total.max[r], &t.total.sum[r], t.part.o + r * channels,
                      t.part.max[r], t.part.sum[r], channels);
    }
    for (int64_t r = 0; r < rows; r++)
        end_row(job, u, r, t.total.o + r * channels, t.total.max[r], t.total.sum[r]);
}

/* The sums of row number row in one segment. */
static mxa_kv_sums cell(const mxa_kv_job *job, const mxa_kv_work *l, char *work, int64_t segment, int64_t row)
{
    const int64_t rows = job->out->shape[0] * job->heads * job->n, at = segment * rows + row;
    return (mxa_kv_sums){ (float *)(void *)(work + l->o) + at * job->channels,
                          (float *)(void *)(work + l->max) + at, (float *)(void *)(work + l->sum) + at };
}

static void attend_segment(const mxa_kv_job *job, const mxa_kv_impl *impl, const mxa_kv_unit *u,
                           int64_t segment, const mxa_kv_work *l, char *work)
{
    const thread_scratch t = scratch_of(job, l, work);
    const mxa_span tiles = segment_tiles(u, segment);
    if (tiles.first < tiles.end)
        impl->segment(job, u, tiles, t.kernel, &t.part);
    for (int64_t r = 0; r < u->n_heads * u->n_queries; r++) {
        const mxa_kv_sums to = cell(job, l, work, segment, mxa_kv_row(job, u, r));
        *to.max = tiles.first < tiles.end ? t.part.max[r] : -INFINITY;
        *to.sum = tiles.first < tiles.end ? t.part.sum[r] : 0.0f;
        if (tiles.first < tiles.end)
            memcpy(to.o, t.part.o + r * job->channels, (size_t)job->channels * sizeof *to.o);
    }
}

static void merge_unit(const mxa_kv_job *job, const mxa_kv_unit *u, const mxa_kv_work *l, char *work)
{
    const thread_scratch t = scratch_of(job, l, work);
    for (int64_t r = 0; r < u->n_heads * u->n_queries; r++) {
        begin_row(job, u->h + r / u->n_queries, t.total.o, t.total.max, t.total.sum);
        for (int64_t segment = 0; segment < mxa_kv_segments(u->map.kv_len); segment++) {
            const mxa_kv_sums part = cell(job, l, work, segment, mxa_kv_row(job, u, r));
            merge_row(t.total.o, t.total.max, t.total.sum, part.o, *part.max, *part.sum, job->channels);
        }
        end_row(job, u, r, t.total.o, *t.total.max, *t.total.sum);
    }
}

/* Rows that a sequence has no queries for. */
static void clear_rest(const mxa_kv_job *job)
{
    for (int64_t head = 0; head < job->out->shape[0] * job->heads && job->counts; head++)
        for (int64_t i = job->counts[head / job->heads]; i < job->n; i++) {
            float zeros[MXA_DIM_MAX] = { 0 };
            mxa_row_store(job->out, head / job->heads, head % job->heads, i, zeros);
            if (job->lse)
                job->lse[head * job->n + i] = -INFINITY;
        }
}

static void attend_by_reference(const mxa_kv_job *job, const mxa_kv_unit *u)
{
    for (int64_t r = 0; r < u->n_heads * u->n_queries; r++)
        mxa_kv_attend_ref(job, u, r);
}

void mxa_kv_attend(mxa_kv_job *job, const mxa_copy_plan *q_copies, const mxa_tensor *q, int threads,
                   const mxa_kv_impl *impl, void *work)
{
    threads = mxa_kv_threads(threads);
    int64_t longest = 0;
    for (int64_t b = 0; b < q->shape[0]; b++)
        longest = mxa_max(longest, job->view->sequences[b].length);
    job->channels = mxa_kv_channels(job->view);
    const mxa_kv_work l = mxa_kv_work_plan(job, q_copies, q->shape[0], longest, threads, impl);
    mxa_kv_prepare(job, q_copies, q, &l, work, threads);
    const grid g = grid_of(job, q->shape[0]);
    const bool split = l.segments > 1 && impl->segment;
    const int64_t items = g.units * (split ? l.segments : 1);
#pragma omp parallel for schedule(dynamic) num_threads(mxa_token_threads(threads, items))
    for (int64_t item = 0; item < items; item++) {
        mxa_kv_unit u;
        if (!unit_at(job, &g, split ? item / l.segments : item, &u))
            continue;
        if (!impl->segment)
            attend_by_reference(job, &u);
        else if (split && item % l.segments < mxa_kv_segments(u.map.kv_len))
            attend_segment(job, impl, &u, item % l.segments, &l, work);
        else if (!split)
            attend_unit(job, impl, &u, scratch_of(job, &l, work));
    }
#pragma omp parallel for schedule(dynamic) num_threads(mxa_token_threads(threads, split ? g.units : 1))
    for (int64_t item = 0; item < (split ? g.units : 0); item++) {
        mxa_kv_unit u;
        if (unit_at(job, &g, item, &u))
            merge_unit(job, &u, &l, work);
    }
    clear_rest(job);
}
