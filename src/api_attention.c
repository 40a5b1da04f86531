/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on plans, attention and the tile map. Arguments are checked here and in attn/plan.c. */
#include "attn/plan.h"
#include "core/status.h"
#include "core/tensor.h"
#include "cpu/attention_cpu.h"
#include "cuda/loader.h"
#include "format/second_level.h"

enum { WORK_ALIGNMENT = 64 };

static bool on_cuda(const mxa_problem *problem)
{
    return problem->device >= MXA_DEVICE_CUDA_0;
}

/* Whether a backend is there for the device; the table of CUDA's. */
static mxa_status open_backend(const mxa_problem *problem, const mxa_cuda_backend **cuda)
{
    if (problem->device < MXA_DEVICE_AUTO)
        return mxa_fail(MXA_ERR_ARG, "device: %d is not auto, cpu or a CUDA device", (int)problem->device);
    return on_cuda(problem) ? mxa_cuda_table(problem->device, cuda) : MXA_OK;
}

mxa_status mxa_plan_create(const mxa_problem *problem, const mxa_recipe *recipe, mxa_plan **plan)
{
    if (!plan)
        return mxa_fail(MXA_ERR_ARG, "plan: is NULL");
    mxa_recipe standard;
    mxa_recipe_default(&standard);
    const mxa_cuda_backend *cuda = NULL;
    mxa_status status = mxa_problem_check(problem);
    if (status == MXA_OK)
        status = open_backend(problem, &cuda);
    mxa_plan *made = NULL;
    if (status == MXA_OK)
        status = mxa_plan_build(problem, recipe ? recipe : &standard, &made);
    if (status == MXA_OK)
        status = cuda ? mxa_cuda_result(cuda, cuda->plan(made, NULL)) : mxa_cpu_plan(made, NULL);
    if (status != MXA_OK)
        mxa_plan_free(made);
    else
        *plan = made;
    return status;
}

size_t mxa_plan_work_bytes(const mxa_plan *plan)
{
    return plan ? plan->work_bytes : 0;
}

size_t mxa_plan_describe(const mxa_plan *plan, char *text, size_t capacity)
{
    mxa_text out = { text, capacity, 0 };
    mxa_text_put(&out, "%s", "");
    if (!plan)
        return 0;
    char recipe[512];
    mxa_recipe_text(&plan->recipe, recipe, sizeof recipe);
    const mxa_cuda_backend *cuda;
    if (!on_cuda(&plan->problem)) {
        mxa_text_put(&out, "device: cpu, %d threads\nrecipe: %s\n", plan->threads, recipe);
        mxa_cpu_describe(plan, &out);
    } else if (mxa_cuda_table(plan->problem.device, &cuda) == MXA_OK) {
        mxa_text_put(&out, "device: cuda:%d\nrecipe: %s\n", plan->problem.device - MXA_DEVICE_CUDA_0, recipe);
        cuda->describe(plan, &out);
    }
    return out.length;
}

/* One tensor of the call against what the plan's problem says about it. */
static mxa_status check_like(const char *name, const mxa_tensor *x, mxa_dtype dtype, int64_t batch,
                             int64_t heads, int64_t len, int64_t dim)
{
    const mxa_status status = mxa_check_tensor(name, x);
    if (status != MXA_OK)
        return status;
    if (x->dtype != dtype)
        return mxa_fail(MXA_ERR_ARG, "%s: dtype %d is not the plan's %d", name, (int)x->dtype, (int)dtype);
    const int64_t want[4] = { batch, heads, len, dim };
    for (int axis = 0; axis < 4; axis++)
        if (x->shape[axis] != want[axis])
            return mxa_fail(MXA_ERR_SHAPE, "%s: size %lld of axis %d is not the plan's %lld", name,
                            (long long)x->shape[axis], axis, (long long)want[axis]);
    return MXA_OK;
}

static mxa_status check_tensors(const mxa_plan *plan, const mxa_attention_args *args)
{
    const mxa_problem *const p = &plan->problem;
    const int64_t batch = plan->packed ? 1 : p->batch;
    mxa_status status = check_like("q", args->q, p->q_dtype, batch, p->heads, p->q_len, p->head_dim);
    if (status == MXA_OK)
        status = check_like("k", args->k, p->k_dtype, batch, p->heads_kv, p->kv_len, p->head_dim);
    if (status == MXA_OK)
        status = check_like("v", args->v, p->v_dtype, batch, p->heads_kv, p->kv_len, p->head_dim_v);
    if (status == MXA_OK)
        status = check_like("out", args->out, p->out_dtype, batch, p->heads, p->q_len, p->head_dim_v);
    return status == MXA_OK ? mxa_check_output("out", args->out) : status;
}

static mxa_status check_work(const mxa_plan *plan, const mxa_attention_args *args)
{
    if (plan->work_bytes > 0 && !args->work)
        return mxa_fail(MXA_ERR_ARG, "work: is NULL, the plan needs %zu bytes", plan->work_bytes);
    if ((uintptr_t)args->work % WORK_ALIGNMENT != 0)
        return mxa_fail(MXA_ERR_ALIGN, "work: %p is not aligned to %d bytes", args->work, WORK_ALIGNMENT);
    if (args->work_bytes < plan->work_bytes)
        return mxa_fail(MXA_ERR_WORKSPACE, "work_bytes: %zu is below the plan's %zu", args->work_bytes,
                        plan->work_bytes);
    return MXA_OK;
}

static mxa_status check_arrays(const mxa_attention_args *args)
{
    const float *const arrays[5] = { args->lse, args->sinks, args->mean, args->g_q, args->g_k };
    static const char *const names[5] = { "lse", "sinks", "mean", "g_q", "g_k" };
    for (int i = 0; i < 5; i++)
        if ((uintptr_t)arrays[i] % sizeof(float) != 0)
            return mxa_fail(MXA_ERR_ALIGN, "%s: %p is not aligned to its 4-byte elements", names[i],
                            (const void *)arrays[i]);
    return MXA_OK;
}

static mxa_status check_factors(const mxa_plan *plan, const char *name, const float *g, bool of_k)
{
    if (!g)
        return MXA_OK;
    mxa_level level;
    const int64_t n = mxa_given_factors(plan, of_k, &level);
    if (level == MXA_LEVEL_NONE)
        return mxa_fail(MXA_ERR_ARG, "%s: given, but no copy of %c has second-level factors", name,
                        of_k ? 'k' : 'q');
    if (plan->packed && level == MXA_LEVEL_TOKEN_BLOCK)
        return mxa_fail(MXA_ERR_ARG, "%s: given factors of level token_block do not go with cu_seqlens",
                        name);
    if (on_cuda(&plan->problem)) /* in memory of the device */
        return MXA_OK;
    const int64_t row = plan->packed ? of_k ? plan->problem.kv_len : plan->problem.q_len : 0;
    const int64_t used = of_k ? plan->k_used : plan->q_used;
    for (int64_t i = 0; i < n; i++) {
        if (plan->packed && level == MXA_LEVEL_TOKEN && i % row >= used)
            continue;
        if (!mxa_g_is_legal(g[i]))
            return mxa_fail(MXA_ERR_SCALE, "%s[%lld]: %g is outside 2^-117..2^117", name, (long long)i,
                            (double)g[i]);
    }
    return MXA_OK;
}

static mxa_status check_args(const mxa_plan *plan, const mxa_attention_args *args)
{
    if (!plan || !args)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", plan ? "args" : "plan");
    if (args->size != sizeof *args)
        return mxa_fail(MXA_ERR_ARG, "args: size %zu is not that of this version, %zu", args->size,
                        sizeof *args);
    mxa_status status = check_tensors(plan, args);
    if (status == MXA_OK)
        status = check_work(plan, args);
    if (status == MXA_OK)
        status = check_arrays(args);
    if (status != MXA_OK)
        return status;
    const bool given = !plan->recipe.exact && plan->recipe.smooth_k == MXA_SMOOTH_GIVEN;
    if (given != (args->mean != NULL))
        return mxa_fail(MXA_ERR_ARG, "mean: %s",
                        given ? "is NULL, but the recipe says smooth-k=given"
                              : "given, but the recipe does not say smooth-k=given");
    status = check_factors(plan, "g_q", args->g_q, false);
    return status == MXA_OK ? check_factors(plan, "g_k", args->g_k, true) : status;
}

mxa_status mxa_attention(const mxa_plan *plan, const mxa_attention_args *args)
{
    mxa_status status = check_args(plan, args);
    if (status != MXA_OK)
        return status;
    if (!on_cuda(&plan->problem))
        return mxa_cpu_attention(plan, args);
    const mxa_cuda_backend *cuda;
    status = mxa_cuda_table(plan->problem.device, &cuda);
    return status == MXA_OK ? mxa_cuda_result(cuda, cuda->attention(plan, args)) : status;
}

mxa_status mxa_tile_map_range(const mxa_problem *problem, int64_t b, mxa_tile_range *range)
{
    const mxa_status status = mxa_problem_check(problem);
    if (status != MXA_OK)
        return status;
    if (!range)
        return mxa_fail(MXA_ERR_ARG, "range: is NULL");
    if (b < 0 || b >= problem->batch)
        return mxa_fail(MXA_ERR_ARG, "b: %lld is not a sequence of the %lld", (long long)b,
                        (long long)problem->batch);
    const mxa_tile_map map = mxa_problem_map(problem, NULL, b);
    const mxa_span tiles = mxa_query_tiles(&map);
    *range = (mxa_tile_range){ tiles.first, tiles.end - tiles.first, (map.kv_len + MXA_TILE - 1) / MXA_TILE };
    return MXA_OK;
}

mxa_status mxa_tile_map_at(const mxa_problem *problem, const mxa_recipe *recipe, int64_t b, int64_t q_tile,
                           int64_t k_tile, mxa_precision *precision)
{
    mxa_recipe standard;
    mxa_recipe_default(&standard);
    recipe = recipe ? recipe : &standard;
    mxa_tile_range range;
    mxa_status status = mxa_tile_map_range(problem, b, &range);
    if (status == MXA_OK)
        status = mxa_recipe_check(recipe);
    if (status != MXA_OK)
        return status;
    if (!precision)
        return mxa_fail(MXA_ERR_ARG, "precision: is NULL");
    if (q_tile < range.q_first || q_tile >= range.q_first + range.q_count || k_tile < 0 ||
        k_tile >= range.k_count)
        return mxa_fail(MXA_ERR_ARG, "q_tile %lld, k_tile %lld: not in tiles %lld..%lld, 0..%lld",
                        (long long)q_tile, (long long)k_tile, (long long)range.q_first,
                        (long long)(range.q_first + range.q_count - 1), (long long)range.k_count - 1);
    const mxa_tile_map map = mxa_problem_map(problem, recipe, b);
    *precision = mxa_tile_precision(&map, q_tile, k_tile);
    return MXA_OK;
}
