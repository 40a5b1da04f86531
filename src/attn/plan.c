/* SPDX-License-Identifier: Apache-2.0 */
#include "attn/plan.h"

#include <math.h>
#include <stdlib.h>

#include "core/status.h"
#include "core/tensor.h"
#include "format/format.h"

void mxa_problem_default(mxa_problem *p, int64_t batch, int64_t heads, int64_t heads_kv, int64_t q_len,
                         int64_t kv_len, int64_t head_dim)
{
    *p = (mxa_problem){
        .size = sizeof *p,
        .batch = batch,
        .heads = heads,
        .heads_kv = heads_kv,
        .q_len = q_len,
        .kv_len = kv_len,
        .head_dim = head_dim,
        .head_dim_v = head_dim,
        .softmax_scale = head_dim > 0 ? (float)(1.0 / sqrt((double)head_dim)) : 1.0f,
        .window_left = MXA_UNLIMITED,
        .window_right = MXA_UNLIMITED,
        .q_offset = MXA_OFFSET_AUTO,
        .device = MXA_DEVICE_AUTO,
    };
}

static mxa_status check_lengths(const mxa_problem *p)
{
    const int64_t lengths[3] = { p->batch, p->q_len, p->kv_len };
    static const char *const names[3] = { "batch", "q_len", "kv_len" };
    for (int i = 0; i < 3; i++) {
        if (lengths[i] < 0)
            return mxa_fail(MXA_ERR_SHAPE, "%s: %lld is negative", names[i], (long long)lengths[i]);
        if (lengths[i] > MXA_POSITION_MAX)
            return mxa_fail(MXA_ERR_SHAPE, "%s: %lld is above 2^58", names[i], (long long)lengths[i]);
    }
    return MXA_OK;
}

static mxa_status check_sizes(const mxa_problem *p)
{
    if (p->heads_kv < 1 || p->heads < 1 || p->heads % p->heads_kv != 0)
        return mxa_fail(MXA_ERR_SHAPE, "heads: %lld is not a positive multiple of heads_kv %lld",
                        (long long)p->heads, (long long)p->heads_kv);
    const int64_t dims[2] = { p->head_dim, p->head_dim_v };
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "head_dim" : "head_dim_v";
        if (dims[i] < 1)
            return mxa_fail(MXA_ERR_SHAPE, "%s: %lld must be at least 1", name, (long long)dims[i]);
        if (dims[i] > MXA_DIM_MAX)
            return mxa_fail(MXA_ERR_UNSUPPORTED, "%s: %lld is above %d, the largest that a kernel has", name,
                            (long long)dims[i], MXA_DIM_MAX);
    }
    const bool packed = p->cu_seqlens_q != NULL;
    const int64_t batch = packed ? 1 : p->batch;
    const int64_t shapes[4][4] = { { batch, p->heads, p->q_len, p->head_dim },
                                   { batch, p->heads_kv, p->kv_len, p->head_dim },
                                   { batch, p->heads_kv, p->kv_len, p->head_dim_v },
                                   { batch, p->heads, p->q_len, p->head_dim_v } };
    static const char *const names[4] = { "q", "k", "v", "out" };
    for (int i = 0; i < 4; i++) {
        const mxa_status status = mxa_check_shape(names[i], shapes[i]);
        if (status != MXA_OK)
            return status;
    }
    return MXA_OK;
}

static mxa_status check_options(const mxa_problem *p)
{
    if (!isfinite(p->softmax_scale))
        return mxa_fail(MXA_ERR_ARG, "softmax_scale: %g is not finite", (double)p->softmax_scale);
    if (!isfinite(p->softcap) || p->softcap < 0)
        return mxa_fail(MXA_ERR_ARG, "softcap: %g is negative or not finite", (double)p->softcap);
    if (p->window_left < MXA_UNLIMITED)
        return mxa_fail(MXA_ERR_ARG, "window_left: %lld is below -1, which means no limit",
                        (long long)p->window_left);
    if (p->window_right < MXA_UNLIMITED)
        return mxa_fail(MXA_ERR_ARG, "window_right: %lld is below -1, which means no limit",
                        (long long)p->window_right);
    if (p->q_offset != MXA_OFFSET_AUTO && (p->q_offset > MXA_POSITION_MAX || p->q_offset < -MXA_POSITION_MAX))
        return mxa_fail(MXA_ERR_ARG, "q_offset: %lld is outside -2^58..2^58", (long long)p->q_offset);
    if (p->threads < 0)
        return mxa_fail(MXA_ERR_ARG, "threads: %d is negative", p->threads);
    const mxa_dtype dtypes[4] = { p->q_dtype, p->k_dtype, p->v_dtype, p->out_dtype };
    static const char *const names[4] = { "q_dtype", "k_dtype", "v_dtype", "out_dtype" };
    for (int i = 0; i < 4; i++)
        if (dtypes[i] < MXA_DTYPE_F32 || dtypes[i] > MXA_DTYPE_BF16)
            return mxa_fail(MXA_ERR_ARG, "%s: %d is not F32, F16 or BF16", names[i], (int)dtypes[i]);
    return MXA_OK;
}

static mxa_status check_offsets(const char *name, const int32_t *offsets, int64_t batch, int64_t rows)
{
    if (offsets[0] != 0)
        return mxa_fail(MXA_ERR_ARG, "%s[0]: %d must be 0", name, offsets[0]);
    for (int64_t b = 0; b < batch; b++)
        if (offsets[b + 1] < offsets[b])
            return mxa_fail(MXA_ERR_ARG, "%s[%lld]: %d is below the offset before it, %d", name,
                            (long long)b + 1, offsets[b + 1], offsets[b]);
    if (offsets[batch] > rows)
        return mxa_fail(MXA_ERR_SHAPE, "%s[%lld]: %d is above the %lld rows of the tensor", name,
                        (long long)batch, offsets[batch], (long long)rows);
    return MXA_OK;
}

mxa_status mxa_problem_check(const mxa_problem *p)
{
    if (!p)
        return mxa_fail(MXA_ERR_ARG, "problem: is NULL");
    if (p->size != sizeof *p)
        return mxa_fail(MXA_ERR_ARG, "problem: size %zu is not that of this version, %zu", p->size,
                        sizeof *p);
    if (!p->cu_seqlens_q != !p->cu_seqlens_k)
        return mxa_fail(MXA_ERR_ARG, "cu_seqlens_%c: is NULL, but the other is not",
                        p->cu_seqlens_q ? 'k' : 'q');
    mxa_status status = check_lengths(p);
    if (status == MXA_OK)
        status = check_sizes(p);
    if (status == MXA_OK)
        status = check_options(p);
    if (status == MXA_OK && p->cu_seqlens_q)
        status = check_offsets("cu_seqlens_q", p->cu_seqlens_q, p->batch, p->q_len);
    if (status == MXA_OK && p->cu_seqlens_k)
        status = check_offsets("cu_seqlens_k", p->cu_seqlens_k, p->batch, p->kv_len);
    return status;
}

static int64_t limit(int64_t window)
{
    return window == MXA_UNLIMITED ? MXA_FAR : mxa_min(window, MXA_FAR);
}

mxa_tile_map mxa_problem_map(const mxa_problem *p, const mxa_recipe *recipe, int64_t b)
{
    const int64_t q_len = p->cu_seqlens_q ? p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b] : p->q_len;
    const int64_t kv_len = p->cu_seqlens_k ? p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b] : p->kv_len;
    const bool all_high = recipe && recipe->exact;
    return (mxa_tile_map){
        .q_len = q_len,
        .kv_len = kv_len,
        .q_offset = p->q_offset == MXA_OFFSET_AUTO ? kv_len - q_len : p->q_offset,
        .window_left = limit(p->window_left),
        .window_right = p->causal ? 0 : limit(p->window_right),
        .diag_window = all_high ? MXA_FAR
                       : recipe ? mxa_min(recipe->diag_window, MXA_FAR)
                                : 0,
        .sink_window = all_high ? 0
                       : recipe ? mxa_min(recipe->sink_window, MXA_FAR)
                                : 0,
    };
}

static mxa_copy_plan plan_copy(const mxa_recipe *r, mxa_format format, mxa_format partner, mxa_rule rule,
                               mxa_level level)
{
    const mxa_format_info *info = mxa_format_get(format);
    return (mxa_copy_plan){
        .info = info,
        .rule = mxa_rule_resolve(info, rule),
        .level = mxa_copy_level(info, level),
        .rotate = r->rotate && (info->quantized || mxa_format_get(partner)->quantized),
    };
}

static void plan_copies(mxa_plan *plan)
{
    const mxa_recipe *const r = &plan->recipe;
    if (mxa_recipe_has_low(r)) {
        plan->q[MXA_LOW] = plan_copy(r, r->low_q, r->low_k, r->rule_q, r->level_q);
        plan->k[MXA_LOW] = plan_copy(r, r->low_k, r->low_q, r->rule_k, r->level_k);
    }
    if (r->exact) {
        plan->q[MXA_HIGH].info = plan->k[MXA_HIGH].info = mxa_format_get(MXA_FORMAT_F32);
    } else if (mxa_recipe_has_high(r)) {
        plan->q[MXA_HIGH] = plan_copy(r, r->high_q, r->high_k, r->rule_q, r->level_q);
        plan->k[MXA_HIGH] = plan_copy(r, r->high_k, r->high_q, r->rule_k, r->level_k);
    }
    for (int i = 0; i < MXA_COPIES; i++) {
        mxa_copy_plan *const q = &plan->q[i], *const k = &plan->k[i];
        k->smooth = !r->exact && k->info && k->info->quantized && r->smooth_k != MXA_SMOOTH_NONE;
        q->stored = q->info && (q->info->quantized || q->rotate);
        k->stored = k->info && (k->info->quantized || k->rotate);
    }
}

static int64_t blocks(int64_t rows)
{
    return (rows + MXA_TILE - 1) / MXA_TILE;
}

/* Sequences, and where their rows lie in the copies. False if a sum overflows. */
static bool plan_sequences(mxa_plan *plan, const mxa_problem *p)
{
    bool fits = true;
    for (int64_t b = 0; b < p->batch; b++) {
        mxa_sequence *const s = &plan->sequences[b];
        s->map = mxa_problem_map(p, &plan->recipe, b);
        s->batch = plan->packed ? 0 : b;
        s->q_first = plan->packed ? p->cu_seqlens_q[b] : 0;
        s->k_first = plan->packed ? p->cu_seqlens_k[b] : 0;
        s->q_rows = plan->q_rows;
        s->k_rows = plan->k_rows;
        s->q_blocks = plan->q_blocks;
        s->k_blocks = plan->k_blocks;
        fits = fits && mxa_add(plan->q_rows, p->heads * s->map.q_len, &plan->q_rows) &&
               mxa_add(plan->k_rows, p->heads_kv * s->map.kv_len, &plan->k_rows);
        plan->q_blocks += p->heads * blocks(s->map.q_len);
        plan->k_blocks += p->heads_kv * blocks(s->map.kv_len);
        const mxa_span tiles = mxa_query_tiles(&s->map);
        fits = fits && mxa_add(plan->n_tiles, tiles.end - tiles.first, &plan->n_tiles);
    }
    return fits;
}

static int by_cost(const void *a, const void *b)
{
    const mxa_query_tile *const x = a, *const y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return x->tile < y->tile ? -1 : x->tile > y->tile;
}

static void plan_tiles(mxa_plan *plan)
{
    mxa_query_tile *out = plan->tiles;
    for (int64_t b = 0; b < plan->n_sequences; b++) {
        const mxa_sequence *const s = &plan->sequences[b];
        const mxa_span tiles = mxa_query_tiles(&s->map);
        for (int64_t t = tiles.first; t < tiles.end; t++, out++) {
            const mxa_span rows = mxa_tile_rows(s, t);
            const mxa_span keys =
                mxa_visible_keys(&s->map, rows.first + s->map.q_offset, rows.end - 1 + s->map.q_offset);
            const int64_t n_keys = mxa_min(mxa_max(keys.end - keys.first, 0), INT64_MAX / MXA_TILE);
            *out = (mxa_query_tile){ b, t, (rows.end - rows.first) * n_keys };
        }
    }
    qsort(plan->tiles, (size_t)plan->n_tiles, sizeof *plan->tiles, by_cost);
}

/* An array of n elements, at least one; NULL if there is no memory. */
static void *new_array(int64_t n, size_t size)
{
    return calloc((size_t)mxa_max(n, 1), size);
}

static mxa_status fill(mxa_plan *plan, const mxa_problem *p)
{
    plan->n_sequences = p->batch;
    plan->sequences = new_array(p->batch, sizeof *plan->sequences);
    if (!plan->sequences)
        return mxa_fail(MXA_ERR_MEMORY, "plan: no memory for %lld sequences", (long long)p->batch);
    if (!plan_sequences(plan, p))
        return mxa_fail(MXA_ERR_SHAPE, "q, k: rows of all heads and sequences do not fit 63 bits");
    plan->tiles = new_array(plan->n_tiles, sizeof *plan->tiles);
    if (!plan->tiles)
        return mxa_fail(MXA_ERR_MEMORY, "plan: no memory for %lld query tiles", (long long)plan->n_tiles);
    plan_tiles(plan);
    return MXA_OK;
}

mxa_status mxa_plan_build(const mxa_problem *problem, const mxa_recipe *recipe, mxa_plan **plan)
{
    mxa_status status = mxa_problem_check(problem);
    if (status == MXA_OK)
        status = mxa_recipe_check(recipe);
    if (status != MXA_OK)
        return status;
    if (!recipe->exact && (recipe->v != MXA_FORMAT_NONE || recipe->rotate_v))
        return mxa_fail(MXA_ERR_UNSUPPORTED, "recipe: %s belongs to caches, attention takes V as it comes",
                        recipe->v != MXA_FORMAT_NONE ? "v" : "rotate-v");

    mxa_plan *const made = calloc(1, sizeof *made);
    if (!made)
        return mxa_fail(MXA_ERR_MEMORY, "plan: no memory for %zu bytes", sizeof *made);
    made->problem = *problem;
    made->problem.cu_seqlens_q = made->problem.cu_seqlens_k = NULL;
    made->recipe = *recipe;
    made->packed = problem->cu_seqlens_q != NULL;
    made->q_used = made->packed ? problem->cu_seqlens_q[problem->batch] : problem->q_len;
    made->k_used = made->packed ? problem->cu_seqlens_k[problem->batch] : problem->kv_len;
    made->pv = recipe->pv != MXA_PV_AUTO           ? recipe->pv
               : problem->v_dtype == MXA_DTYPE_F16 ? MXA_PV_F16
                                                   : MXA_PV_BF16;
    plan_copies(made);
    status = fill(made, problem);
    if (status != MXA_OK)
        mxa_plan_free(made);
    else
        *plan = made;
    return status;
}

void mxa_plan_free(mxa_plan *plan)
{
    if (!plan)
        return;
    if (plan->backend)
        plan->backend_free(plan->backend);
    free(plan->sequences);
    free(plan->tiles);
    free(plan);
}
