/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/attention_work.h"

#include "cpu/quantize_cpu.h"
#include "format/format.h"

enum { ALIGNMENT = 64 };

typedef struct layout {
    int64_t total;
    bool fits;
} layout;

/* The offset of an array of n elements of size bytes. */
static int64_t take(layout *l, int64_t n, int64_t size)
{
    const int64_t offset = l->total;
    int64_t bytes;
    l->fits = l->fits && mxa_mul(n, size, &bytes) && mxa_add(bytes, ALIGNMENT - 1, &bytes) &&
              mxa_add(l->total, bytes & -(int64_t)ALIGNMENT, &l->total);
    return offset;
}

static int64_t count_factors(const mxa_plan *plan, mxa_level level, bool of_k)
{
    const mxa_problem *const p = &plan->problem;
    switch (level) {
    case MXA_LEVEL_TENSOR: return 1;
    case MXA_LEVEL_HEAD: return plan->n_sequences * (of_k ? p->heads_kv : p->heads);
    case MXA_LEVEL_TOKEN_BLOCK: return of_k ? plan->k_blocks : plan->q_blocks;
    case MXA_LEVEL_TOKEN: return of_k ? plan->k_rows : plan->q_rows;
    default: return 0;
    }
}

static mxa_copy_work place_copy(layout *l, const mxa_plan *plan, const mxa_copy_plan *copy, bool of_k)
{
    mxa_copy_work w = { -1, -1, -1, 0, 0, 0 };
    if (!copy->stored)
        return w;
    const int64_t rows = of_k ? plan->k_rows : plan->q_rows;
    w.row_bytes = mxa_row_bytes(copy->info, plan->problem.head_dim);
    w.scale_cols = mxa_scale_cols(copy->info, plan->problem.head_dim);
    w.n_factors = count_factors(plan, copy->level, of_k);
    w.codes = take(l, rows, w.row_bytes);
    w.scales = take(l, rows, w.scale_cols);
    w.g = take(l, w.n_factors, sizeof(float));
    return w;
}

/* Scratch of the quantiser for the larger of Q and K. */
static void place_scratch(layout *l, const mxa_plan *plan, mxa_attention_work *work)
{
    const mxa_problem *const p = &plan->problem;
    const int64_t batch = plan->packed ? 1 : p->batch;
    const int64_t q[4] = { batch, p->heads, p->q_len, p->head_dim };
    const int64_t k[4] = { batch, p->heads_kv, p->kv_len, p->head_dim };
    const size_t for_q = mxa_quantize_scratch_bytes(q, MXA_AXIS_HEAD, plan->threads);
    const size_t for_k = mxa_quantize_scratch_bytes(k, MXA_AXIS_HEAD, plan->threads);
    const size_t larger = for_q > for_k ? for_q : for_k;
    layout kernel = *l, quantiser = *l;
    work->thread_bytes = plan->impl->scratch_bytes(plan);
    work->scratch = take(&kernel, mxa_item_threads(plan), work->thread_bytes);
    quantiser.fits = quantiser.fits && larger <= INT64_MAX;
    take(&quantiser, 1, quantiser.fits ? (int64_t)larger : 0);
    l->fits = kernel.fits && quantiser.fits;
    l->total = mxa_max(kernel.total, quantiser.total);
}

bool mxa_attention_layout(const mxa_plan *plan, mxa_attention_work *work)
{
    const mxa_problem *const p = &plan->problem;
    layout l = { 0, true };
    *work = (mxa_attention_work){ .mean = -1, .bias = -1 };
    if (mxa_plan_smooths(plan)) {
        int64_t means;
        l.fits = mxa_mul(plan->n_sequences, p->heads_kv * p->head_dim, &means);
        work->mean = take(&l, l.fits ? means : 0, sizeof(float));
        work->bias = take(&l, plan->q_rows, sizeof(float));
    }
    for (int i = 0; i < MXA_COPIES; i++) {
        work->q[i] = place_copy(&l, plan, &plan->q[i], false);
        work->k[i] = place_copy(&l, plan, &plan->k[i], true);
    }
    work->shared = take(&l, plan->k_blocks, mxa_shared_bytes(plan));
    place_scratch(&l, plan, work);
    work->total = l.total;
    return l.fits;
}
