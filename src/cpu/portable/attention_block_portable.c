/* SPDX-License-Identifier: Apache-2.0 */
/* One block of query rows against one key tile: logits, softmax, P V. */
#include <math.h>

#include "attn/softmax.h"
#include "cpu/portable/attention_tile_portable.h"

/* Up to MXA_ROWS rows, and the keys of the tile that they see between them, in whole groups. */
typedef struct block {
    int64_t first; /* row of the query tile */
    int rows;
    int64_t begin, end;
} block;

static void multiply_qk(const mxa_tile_work *w, const mxa_key_tile *t, const block *b)
{
    const mxa_vec *const q = w->q[t->copy] + b->first * w->dim;
    for (int64_t j = b->begin; j < b->end; j += MXA_COLS) {
        mxa_vec sums[MXA_ROWS][2];
        mxa_row_sums(b->rows, 0, w->dim, q, (const mxa_vec *)(const void *)(w->k + j * w->dim), sums);
        for (int r = 0; r < b->rows; r++) {
            mxa_vec_store(w->logits + r * MXA_TILE + j, sums[r][0]);
            mxa_vec_store(w->logits + r * MXA_TILE + j + MXA_LANES, sums[r][1]);
        }
    }
}

/* Dot products to logits in base 2; -Inf for keys outside of seen. */
static void finish_logits(const mxa_tile_work *w, const mxa_key_tile *t, const block *b, int r, mxa_span seen)
{
    float *const s = w->logits + r * MXA_TILE;
    const float softcap = w->item.job->plan->problem.softcap;
    const mxa_vec factor = mxa_vec_all(w->factor[t->copy][b->first + r]);
    const mxa_vec bias = mxa_vec_all(w->bias[t->copy][b->first + r]);
    for (int64_t j = b->begin; j < b->end; j += MXA_LANES) {
        const mxa_vec x = mxa_vec_load(s + j) * mxa_vec_load(w->g_k + j) * factor + bias;
        /* Inf becomes NaN: the reference knows whether it is one, or a sum that fp32 cannot hold. */
        mxa_vec_store(s + j, x + (x - x));
    }
    if (softcap > 0) {
        const mxa_vec cap = mxa_vec_all(softcap), cap2 = mxa_vec_all((float)((double)softcap * MXA_LOG2_E));
        for (int64_t j = b->begin; j < b->end; j += MXA_LANES) {
            const mxa_vec x = cap2 * mxa_vec_tanh(mxa_vec_load(s + j) / cap);
            mxa_vec_store(s + j, x + (x - x)); /* a cap near the largest number is infinite in base 2 */
        }
    }
    for (int64_t j = b->begin; j < mxa_min(seen.first, b->end); j++)
        s[j] = -INFINITY;
    for (int64_t j = mxa_max(seen.end, b->begin); j < b->end; j++)
        s[j] = -INFINITY;
}

/* The largest logit so far. NaN wins where all others are -Inf; elsewhere it reaches the sum. */
static float new_max(const mxa_tile_work *w, const block *b, int r)
{
    const float *const s = w->logits + r * MXA_TILE;
    mxa_vec largest = mxa_vec_all(w->item.max[b->first + r]);
    for (int64_t j = b->begin; j < b->end; j += MXA_LANES)
        largest = mxa_vec_max(mxa_vec_load(s + j), largest);
    const float max = mxa_vec_largest(largest);
    for (int64_t j = b->begin; j < b->end && max == -INFINITY; j++)
        if (isnan(s[j]))
            return NAN;
    return max;
}

/* The lanes of row r's p for four keys, each spread over a vector. */
static inline void spread_p(mxa_vec p, mxa_vec *out)
{
    out[0] = __builtin_shufflevector(p, p, 0, 0, 0, 0);
    out[MXA_ROWS] = __builtin_shufflevector(p, p, 1, 1, 1, 1);
    out[2 * MXA_ROWS] = __builtin_shufflevector(p, p, 2, 2, 2, 2);
    out[3 * MXA_ROWS] = __builtin_shufflevector(p, p, 3, 3, 3, 3);
}

/* p = 2^(s - max), its sum before it is rounded. Two vectors at a time hide the latency of the polynomial. */
static float weigh(const mxa_tile_work *w, const block *b, int r, float max)
{
    const float *const s = w->logits + r * MXA_TILE;
    const bool f16 = w->item.job->plan->pv == MXA_PV_F16;
    mxa_vec sum[2] = { mxa_vec_all(0.0f), mxa_vec_all(0.0f) };
    for (int64_t j = b->begin; j < b->end; j += MXA_COLS) {
        const mxa_vec p0 = mxa_vec_exp2(mxa_vec_load(s + j) - mxa_vec_all(max));
        const mxa_vec p1 = mxa_vec_exp2(mxa_vec_load(s + j + MXA_LANES) - mxa_vec_all(max));
        sum[0] += p0;
        sum[1] += p1;
        mxa_vec *const out = w->p + j * MXA_ROWS + r;
        spread_p(f16 ? mxa_vec_round_p_f16(p0) : mxa_vec_round_p_bf16(p0), out);
        spread_p(f16 ? mxa_vec_round_p_f16(p1) : mxa_vec_round_p_bf16(p1), out + MXA_LANES * MXA_ROWS);
    }
    return mxa_vec_sum(sum[0] + sum[1]);
}

/* One step of the online softmax for a row: what it had so far shrinks by 2^(old max - new max). */
static void softmax_row(mxa_tile_work *w, const block *b, int r)
{
    const int64_t row = b->first + r;
    const float max = new_max(w, b, r);
    if (max == -INFINITY) {
        for (int64_t j = b->begin; j < b->end; j++)
            w->p[j * MXA_ROWS + r] = mxa_vec_all(0.0f);
        return;
    }
    const float alpha =
        w->item.max[row] == -INFINITY ? 0.0f : mxa_vec_exp2(mxa_vec_all(w->item.max[row] - max))[0];
    w->item.sum[row] = w->item.sum[row] * alpha + weigh(w, b, r, max);
    w->item.max[row] = max;
    if (alpha != 1.0f)
        for (int64_t d = 0; d < w->item.channels; d += MXA_LANES)
            mxa_vec_store(w->item.o + row * w->item.channels + d,
                          mxa_vec_load(w->item.o + row * w->item.channels + d) * mxa_vec_all(alpha));
}

static void multiply_pv(mxa_tile_work *w, const block *b)
{
    for (int64_t c = 0; c < w->item.channels / MXA_COLS; c++) {
        mxa_vec sums[MXA_ROWS][2];
        mxa_row_sums(b->rows, b->begin, b->end, w->p,
                     (const mxa_vec *)(const void *)(w->v + c * MXA_TILE * MXA_COLS), sums);
        for (int r = 0; r < b->rows; r++) {
            float *const o = w->item.o + (b->first + r) * w->item.channels + c * MXA_COLS;
            mxa_vec_store(o, mxa_vec_load(o) + sums[r][0]);
            mxa_vec_store(o + MXA_LANES, mxa_vec_load(o + MXA_LANES) + sums[r][1]);
        }
    }
}

void mxa_tile_add_block(mxa_tile_work *w, const mxa_key_tile *t, int64_t first)
{
    block b = { first, (int)mxa_min(w->item.n - first, MXA_ROWS), MXA_TILE, 0 };
    mxa_span seen[MXA_ROWS];
    for (int r = 0; r < b.rows; r++) {
        seen[r] = mxa_item_seen(&w->item, t, first + r);
        if (seen[r].first < seen[r].end) {
            b.begin = mxa_min(b.begin, seen[r].first / MXA_COLS * MXA_COLS);
            b.end = mxa_max(b.end, mxa_whole_groups(seen[r].end));
        }
    }
    if (b.begin >= b.end)
        return;
    multiply_qk(w, t, &b);
    for (int r = 0; r < b.rows; r++) {
        finish_logits(w, t, &b, r, seen[r]);
        if (w->item.careful)
            mxa_item_collect(&w->item, t, b.first + r, w->logits + r * MXA_TILE);
        softmax_row(w, &b, r);
    }
    multiply_pv(w, &b);
}
