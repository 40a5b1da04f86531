/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiled attention in fp32 on any machine. For each key tile, K is decoded and transposed and V rounded to
 * the P V type once for the whole item; then blocks of query rows go through logits, softmax and P V while
 * their data is in the L1 cache. Keys that a row does not see get logit -Inf, whatever their memory holds.
 */
#include "cpu/portable/attention_portable.h"

#include "cpu/portable/attention_tile_portable.h"
#include "cpu/ref/attention_ref.h"

enum { ALIGNMENT = 64 };

/* The next part of the scratch; NULL where only sizes are wanted. */
static void *carve(char *base, int64_t *used, int64_t bytes)
{
    void *const part = base ? base + *used : NULL;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return part;
}

/* Lay out the parts; returns their size. */
static int64_t place(mxa_tile_work *w, const mxa_plan *plan, char *base)
{
    const int64_t dim = plan->problem.head_dim, channels = mxa_whole_groups(plan->problem.head_dim_v);
    const int64_t rows = plan->item_rows, blocks = (rows + MXA_ROWS - 1) / MXA_ROWS;
    const int64_t f32 = sizeof(float), lanes = sizeof(mxa_vec);
    int64_t used = 0;
    for (int copy = 0; copy < MXA_COPIES; copy++) {
        if (!plan->q[copy].info)
            continue;
        w->q[copy] = carve(base, &used, blocks * dim * MXA_ROWS * lanes);
        w->factor[copy] = carve(base, &used, rows * f32);
        w->bias[copy] = carve(base, &used, rows * f32);
    }
    w->raw = carve(base, &used, mxa_max(MXA_TILE * dim, channels) * f32);
    w->k = carve(base, &used, MXA_TILE * dim * f32);
    w->v = carve(base, &used, MXA_TILE * channels * f32);
    w->g_k = carve(base, &used, MXA_TILE * f32);
    w->item.v_nonfinite = carve(base, &used, MXA_TILE);
    w->logits = carve(base, &used, MXA_ROWS * MXA_TILE * f32);
    w->p = carve(base, &used, MXA_TILE * MXA_ROWS * lanes);
    w->item.channels = channels;
    w->item.o = carve(base, &used, rows * channels * f32);
    w->item.max = carve(base, &used, rows * f32);
    w->item.sum = carve(base, &used, rows * f32);
    w->item.nonfinite = carve(base, &used, rows * channels * f32);
    w->item.row = carve(base, &used, channels * f32);
    return used;
}

int64_t mxa_attention_portable_scratch(const mxa_plan *plan)
{
    mxa_tile_work w;
    return mxa_max(place(&w, plan, NULL), mxa_attention_ref_scratch(plan));
}

const char *mxa_attention_portable_refuses(const mxa_plan *plan)
{
    return plan->recipe.exact ? "computes in fp32, recipe exact wants float64" : NULL;
}

static void add_tiles(mxa_tile_work *w)
{
    const mxa_span keys = mxa_item_keys(&w->item);
    if (keys.first >= keys.end)
        return;
    for (int64_t k_tile = keys.first / MXA_TILE; k_tile * MXA_TILE < keys.end; k_tile++) {
        const mxa_key_tile t = mxa_item_key_tile(&w->item, keys, k_tile);
        if (!w->loaded[t.copy])
            mxa_tile_load_q(w, t.copy);
        mxa_tile_load_k(w, &t);
        mxa_tile_load_v(w, &t);
        for (int64_t first = 0; first < w->item.n; first += MXA_ROWS)
            mxa_tile_add_block(w, &t, first);
    }
}

void mxa_attention_portable(const mxa_attention_job *job, const mxa_attention_item *item, void *scratch)
{
    mxa_tile_work w = { .item = mxa_item_rows_of(job, item),
                        .n_heads = item->n_heads,
                        .dim = job->plan->problem.head_dim };
    place(&w, job->plan, scratch);
    bool stored[MXA_ITEM_ROWS];
    mxa_item_begin(&w.item);
    add_tiles(&w);
    if (!mxa_item_end(&w.item, stored)) {
        w.item.careful = true;
        mxa_item_begin(&w.item);
        add_tiles(&w);
        mxa_item_end(&w.item, stored);
    }
    mxa_item_leave_to_reference(&w.item, stored, scratch);
}
