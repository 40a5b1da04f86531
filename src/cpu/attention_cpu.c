/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: choose an entry of the list, prepare the operands, share the query tiles over threads. */
#include "cpu/attention_cpu.h"

#include <math.h>
#include <omp.h>

#include "core/status.h"
#include "cpu/attention_work.h"
#include "cpu/features.h"
#include "cpu/quantize_cpu.h"

/* Why an entry does not run a plan here, NULL if it does. */
static const char *refusal(const mxa_attention_impl *impl, const mxa_plan *plan)
{
    if (!mxa_cpu_has(impl->needs))
        return "needs CPU features that are absent or masked";
    return impl->refuses ? impl->refuses(plan) : NULL;
}

static mxa_status resolve_threads(mxa_plan *plan)
{
    if (plan->problem.threads > MXA_MAX_THREADS)
        return mxa_fail(MXA_ERR_ARG, "threads: %d is above %d", plan->problem.threads, MXA_MAX_THREADS);
    const int wanted = plan->problem.threads > 0 ? plan->problem.threads : omp_get_max_threads();
    plan->threads = wanted < MXA_MAX_THREADS ? wanted : MXA_MAX_THREADS;
    return MXA_OK;
}

enum { ITEMS_PER_THREAD = 4 };

/* Heads of a group go together as far as their rows fit an item and every thread still has several items. */
static void share_heads(mxa_plan *plan)
{
    const int64_t heads_kv = plan->problem.heads_kv, group = plan->problem.heads / heads_kv;
    int64_t rows = 1;
    for (int64_t b = 0; b < plan->n_sequences; b++)
        rows = mxa_max(rows, mxa_min(plan->sequences[b].map.q_len, MXA_TILE));
    const int64_t fit = mxa_max(1, mxa_min(group, MXA_ITEM_ROWS / rows));
    const int64_t spare = plan->n_tiles * plan->problem.heads / (ITEMS_PER_THREAD * plan->threads);
    const int64_t most = mxa_max(1, mxa_min(fit, spare)), items = (group + most - 1) / most;
    plan->item_heads = (group + items - 1) / items;
    plan->item_rows = plan->item_heads * rows;
    plan->head_items = heads_kv * ((group + plan->item_heads - 1) / plan->item_heads);
}

mxa_status mxa_cpu_plan(mxa_plan *plan, const mxa_attention_impl *impl)
{
    mxa_status status = mxa_cpu_mask_status();
    if (status == MXA_OK)
        status = resolve_threads(plan);
    if (status != MXA_OK)
        return status;
    if (!impl)
        for (impl = mxa_attention_impls; impl[1].name && refusal(impl, plan);)
            impl++;
    const char *const reason = refusal(impl, plan);
    if (reason)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "attention: %s does not run this plan: %s", impl->name, reason);
    plan->impl = impl;
    share_heads(plan);

    mxa_attention_work work;
    if (!mxa_attention_layout(plan, &work))
        return mxa_fail(MXA_ERR_SHAPE, "plan: the workspace does not fit 63 bits of bytes");
    plan->work_bytes = (size_t)work.total;
    return MXA_OK;
}

/* Rows of packed tensors that no sequence has. */
static void clear_tail(const mxa_plan *plan, const mxa_attention_args *args)
{
    const mxa_problem *const p = &plan->problem;
    const float zeros[MXA_DIM_MAX] = { 0 };
    for (int64_t h = 0; h < p->heads; h++)
        for (int64_t i = plan->q_used; i < p->q_len; i++) {
            mxa_row_store(args->out, 0, h, i, zeros);
            if (args->lse)
                args->lse[h * p->q_len + i] = -INFINITY;
        }
}

/* The key tiles that some row sees, for the items that will read them. */
static void share_keys(const mxa_attention_job *job, char *scratch, int64_t thread_bytes)
{
    const mxa_plan *const plan = job->plan;
    for (int64_t b = 0; b < plan->n_sequences && plan->impl->share; b++) {
        const mxa_sequence *const s = &plan->sequences[b];
        const mxa_span keys = mxa_visible_keys(&s->map, s->map.q_offset, s->map.q_offset + s->map.q_len - 1);
        const int64_t first = keys.first / MXA_TILE;
        const int64_t tiles = keys.end > keys.first ? (keys.end - 1) / MXA_TILE + 1 - first : 0;
#pragma omp parallel for schedule(static) num_threads(mxa_item_threads(plan))
        for (int64_t i = 0; i < plan->problem.heads_kv * tiles; i++)
            plan->impl->share(job, s, i / tiles, first + i % tiles,
                              scratch + omp_get_thread_num() * thread_bytes);
    }
}

mxa_status mxa_cpu_attention(const mxa_plan *plan, const mxa_attention_args *args)
{
    mxa_attention_work work;
    if (!mxa_attention_layout(plan, &work) || (size_t)work.total > args->work_bytes)
        return mxa_fail(MXA_ERR_WORKSPACE, "work_bytes: %zu is below the plan's %zu", args->work_bytes,
                        plan->work_bytes);
    mxa_attention_job job;
    mxa_attention_prepare(plan, args, &work, &job);

    const int64_t heads_kv = plan->problem.heads_kv, group = plan->problem.heads / heads_kv;
    const int64_t parts = plan->head_items / heads_kv, n = plan->n_tiles * plan->head_items;
    char *const scratch = (char *)args->work + work.scratch;
    job.shared = (char *)args->work + work.shared;
    share_keys(&job, scratch, work.thread_bytes);
#pragma omp parallel for schedule(dynamic) num_threads(mxa_item_threads(plan))
    for (int64_t i = 0; i < n; i++) {
        const mxa_query_tile *const t = &plan->tiles[i / plan->head_items];
        const int64_t first = i % parts * plan->item_heads;
        const mxa_attention_item item = { &plan->sequences[t->sequence], t->tile,
                                          i / parts % heads_kv * group + first,
                                          mxa_min(plan->item_heads, group - first) };
        plan->impl->run(&job, &item, scratch + omp_get_thread_num() * work.thread_bytes);
    }
    if (plan->packed)
        clear_tail(plan, args);
    return MXA_OK;
}

int64_t mxa_given_factors(const mxa_plan *plan, bool of_k, mxa_level *level)
{
    const mxa_problem *const p = &plan->problem;
    const mxa_copy_plan *const copies = of_k ? plan->k : plan->q;
    const int64_t heads = of_k ? p->heads_kv : p->heads, rows = of_k ? p->kv_len : p->q_len;
    *level = MXA_LEVEL_NONE;
    for (int i = 0; i < MXA_COPIES; i++)
        if (copies[i].info && copies[i].level != MXA_LEVEL_NONE)
            *level = copies[i].level;
    const int64_t matrices = p->batch * heads;
    switch (*level) {
    case MXA_LEVEL_TENSOR: return 1;
    case MXA_LEVEL_HEAD: return matrices;
    case MXA_LEVEL_TOKEN_BLOCK: return matrices * ((rows + MXA_TILE - 1) / MXA_TILE);
    case MXA_LEVEL_TOKEN: return (plan->packed ? heads : matrices) * rows;
    default: return 0;
    }
}

/* "avx2: not on this machine" for the features that an entry misses. */
static void put_missing(mxa_text *out, const char *name, uint32_t needs)
{
    char features[MXA_CPU_FLAGS_TEXT];
    mxa_cpu_flags_text(needs & ~mxa_cpu_flags(), features, sizeof features);
    if (needs & ~mxa_cpu_flags() & MXA_CPU_AMX)
        mxa_text_put(out, "; %s: %s", name, mxa_cpu_amx_reason());
    else if (*features)
        mxa_text_put(out, "; %s: needs %s", name, features);
    else
        mxa_text_put(out, "; %s: masked by MXA_CPU", name);
}

static void put_attention(const mxa_plan *plan, mxa_text *out)
{
    mxa_text_put(out, "attention: %s", plan->impl->name);
    for (const mxa_attention_impl *impl = mxa_attention_impls; impl != plan->impl; impl++) {
        if (!mxa_cpu_has(impl->needs))
            put_missing(out, impl->name, impl->needs);
        else
            mxa_text_put(out, "; %s: %s", impl->name,
                         refusal(impl, plan) ? refusal(impl, plan) : "not chosen");
    }
    mxa_text_put(out, "\n");
}

static void put_copy(const mxa_copy_plan *copy, const char *which, mxa_text *out)
{
    if (!copy->info)
        return;
    if (!copy->stored) {
        mxa_text_put(out, "%s %s: read from the tensor, rounded on load\n", which, copy->info->name);
        return;
    }
    const mxa_format format = copy->info->format;
    const mxa_quantize_impl *const quantizer = mxa_quantize_pick(format);
    mxa_text_put(out, "quantize %s %s: %s", which, copy->info->name, quantizer->name);
    for (const mxa_quantize_impl *impl = mxa_quantize_impls; impl != quantizer; impl++)
        if (impl->format == MXA_FORMAT_NONE || impl->format == format)
            put_missing(out, impl->name, impl->needs);
    const mxa_decode_impl *const decoder = mxa_decode_pick(format);
    mxa_text_put(out, "\ndecode %s %s: %s", which, copy->info->name, decoder->name);
    for (const mxa_decode_impl *impl = mxa_decode_impls; impl != decoder; impl++)
        if (impl->format == MXA_FORMAT_NONE || impl->format == format)
            put_missing(out, impl->name, impl->needs);
    mxa_text_put(out, "\n");
}

void mxa_cpu_describe(const mxa_plan *plan, mxa_text *out)
{
    put_attention(plan, out);
    static const char *const names[MXA_COPIES][2] = { { "q low", "k low" }, { "q high", "k high" } };
    for (int i = 0; i < MXA_COPIES; i++) {
        put_copy(&plan->q[i], names[i][0], out);
        put_copy(&plan->k[i], names[i][1], out);
    }
    const bool exact = plan->recipe.exact;
    mxa_text_put(out, "v: %s\n",
                 exact                    ? "as it comes"
                 : plan->pv == MXA_PV_F16 ? "met by P in f16"
                                          : "met by P in bf16");
}
