/* SPDX-License-Identifier: Apache-2.0 */
/* What decode kernels get of a job, by value. */
#ifndef MXA_CUDA_DECODE_PARAMS_CUDA_H
#define MXA_CUDA_DECODE_PARAMS_CUDA_H

#include "cuda/decode/decode_cuda.h"

typedef struct mxa_decode_params {
    mxa_kv_tiles tiles;
    mxa_format format[MXA_COPIES][MXA_KV_OPERANDS]; /* NONE: there is no such part */
    bool smooth[MXA_COPIES];
    bool rotate_v;
    mxa_tensor q, out;
    const uint64_t *tables[MXA_COPIES];
    const int64_t *lengths, *counts;
    const float *mean, *sinks;
    float *lse;
    uint32_t *counters;
    void *work;
    int64_t table_pages;
    int64_t window_left, diag_window, sink_window;
    int heads, heads_per_kv, n;
    float softmax_scale, softcap;
} mxa_decode_params;

static inline mxa_decode_params mxa_decode_params_of(const mxa_decode_job *job)
{
    const mxa_kv_layout *const l = job->layout;
    mxa_decode_params p;
    memset(&p, 0, sizeof p);
    p.tiles = mxa_kv_tiles_of(l);
    p.rotate_v = l->part[MXA_LOW][MXA_KV_V].copy.rotate;
    p.q = job->q;
    p.out = job->out;
    p.lengths = job->lengths;
    p.counts = job->counts;
    p.mean = job->mean;
    p.sinks = job->sinks;
    p.lse = job->lse;
    p.counters = job->counters;
    p.work = job->work;
    p.table_pages = job->table_pages;
    p.window_left = job->window_left;
    p.diag_window = mxa_min(job->recipe->diag_window, MXA_FAR);
    p.sink_window = mxa_min(job->recipe->sink_window, MXA_FAR);
    p.heads = (int)job->q.shape[1];
    p.heads_per_kv = (int)(job->q.shape[1] / l->heads_kv);
    p.n = (int)job->q.shape[2];
    p.softmax_scale = job->softmax_scale;
    p.softcap = job->softcap;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        p.tables[copy] = job->tables[copy];
        p.smooth[copy] = l->part[copy][MXA_KV_K].copy.smooth;
        for (int operand = 0; operand < MXA_KV_OPERANDS; operand++) {
            const mxa_format_info *const info = l->part[copy][operand].copy.info;
            p.format[copy][operand] = info ? info->format : MXA_FORMAT_NONE;
        }
    }
    return p;
}

/* Of sequence b on the device: its queries stand at its newest tokens. */
MXA_HD static inline mxa_tile_map mxa_decode_map(const mxa_decode_params *p, int64_t length, int64_t count)
{
    mxa_tile_map map;
    map.q_len = count;
    map.kv_len = length;
    map.q_offset = length - count;
    map.window_left = p->window_left;
    map.window_right = 0;
    map.diag_window = p->diag_window;
    map.sink_window = p->sink_window;
    return map;
}

/* Queries of sequence b that there are. */
MXA_HD static inline int64_t mxa_decode_count(const mxa_decode_params *p, int64_t b)
{
    return p->counts ? mxa_min(p->counts[b], p->n) : p->n;
}

/* Which copy of V meets the probabilities of a tile whose keys have this copy. */
MXA_HD static inline int mxa_decode_v_copy(const mxa_decode_params *p, int copy)
{
    return p->format[copy][MXA_KV_V] != MXA_FORMAT_NONE ? copy : MXA_LOW;
}

/* The record of the tile that holds a token of sequence b; its page is in the table. */
MXA_HD static inline const uint8_t *mxa_decode_tile(const mxa_decode_params *p, int copy, int64_t b,
                                                    int64_t h_kv, int64_t token)
{
    const int64_t page = token / p->tiles.page_tokens;
    const uint64_t address = p->tables[copy][b * p->table_pages + page];
    return (const uint8_t *)(uintptr_t)address +
           mxa_kv_tile_at(&p->tiles, copy, h_kv, (int)(token - page * p->tiles.page_tokens));
}

#endif
