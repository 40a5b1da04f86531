/* SPDX-License-Identifier: Apache-2.0 */
/* One call: is the memory the device's, which entry takes it, and what is queued. */
#include "cuda/attention_plan_cuda.h"

/* Half of a unit in the last place of 1 in fp32. */
#define FP32_EPS 0x1p-24

/* What there is to check of a tensor: an empty one may have any pointer. */
static const void *data_of(const mxa_tensor *x)
{
    const bool empty = x->shape[0] == 0 || x->shape[1] == 0 || x->shape[2] == 0 || x->shape[3] == 0;
    return empty ? NULL : x->data;
}

/* Pointers of a call against the device. */
static mxa_status check_memory(const mxa_plan *plan, const mxa_attention_args *a, int device)
{
    const struct {
        const char *name;
        const void *memory;
    } all[] = { { "q", data_of(a->q) },
                { "k", data_of(a->k) },
                { "v", data_of(a->v) },
                { "out", data_of(a->out) },
                { "work", plan->work_bytes > 0 ? a->work : NULL },
                { "lse", plan->problem.q_len > 0 ? a->lse : NULL },
                { "sinks", a->sinks },
                { "mean", a->mean },
                { "g_q", a->g_q },
                { "g_k", a->g_k } };
    mxa_status status = MXA_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == MXA_OK; i++)
        status = mxa_cuda_check_memory(all[i].name, all[i].memory, device);
    return status;
}

static void *at(const mxa_attention_args *args, int64_t offset)
{
    return offset >= 0 ? (char *)args->work + offset : NULL;
}

static mxa_cuda_operand make_operand(const mxa_cuda_place *place, const mxa_tensor *x,
                                     const mxa_attention_args *args)
{
    return (mxa_cuda_operand){
        .form = place->form,
        .x = *x,
        .codes = at(args, place->codes),
        .scales = at(args, place->scales),
        .g = at(args, place->g),
        .nonfinite_tiles = at(args, place->nonfinite_tiles),
        .row_bytes = place->row_bytes,
        .scale_cols = place->scale_cols,
        .g_level = place->g_level,
    };
}

static mxa_cuda_job make_job(const mxa_plan *plan, const mxa_cuda_choice *choice,
                             const mxa_attention_args *args)
{
    const mxa_cuda_plan *const cuda = plan->backend;
    mxa_cuda_job job = {
        .plan = plan,
        .device = &cuda->device,
        .v = make_operand(&choice->v, args->v, args),
        .out = *args->out,
        .bias = at(args, choice->bias),
        .lse = args->lse,
        .sinks = args->sinks,
        .sequences = cuda->sequences,
        .tiles = cuda->tiles,
        .table = choice->table,
        .counters = at(args, choice->zeros),
        .work = at(args, choice->work),
    };
    for (int i = 0; i < MXA_COPIES; i++) {
        if (plan->q[i].info)
            job.q[i] = make_operand(&choice->q[i], args->q, args);
        if (plan->k[i].info)
            job.k[i] = make_operand(&choice->k[i], args->k, args);
    }
    return job;
}

/* The mean that K's copies subtract; NULL: none. What begins as zeros is cleared on the way. */
static mxa_status queue_mean(const mxa_plan *plan, const mxa_cuda_choice *choice,
                             const mxa_attention_args *args, mxa_cuda_chain *chain, const float **mean)
{
    void *const zeros = at(args, choice->zeros);
    *mean = args->mean;
    if (!mxa_plan_smooths(plan) || args->mean)
        return mxa_cuda_check(cudaMemsetAsync(zeros, 0, (size_t)choice->zero_bytes, chain->stream),
                              "attention: cudaMemsetAsync");
    const mxa_cuda_rows rows = mxa_cuda_plan_rows(plan, MXA_CUDA_K, args->k);
    const int64_t most = plan->recipe.smooth_k == MXA_SMOOTH_PREFIX ? MXA_TILE : plan->problem.kv_len;
    float *const computed = at(args, choice->mean);
    *mean = computed;
    return mxa_cuda_channel_mean(&rows, most, computed, zeros, choice->zero_bytes, chain);
}

static mxa_status queue_copies(const mxa_plan *plan, const mxa_cuda_choice *choice, mxa_cuda_which which,
                               const mxa_attention_args *args, const float *mean, mxa_cuda_chain *chain)
{
    const mxa_tensor *const tensors[3] = { args->q, args->k, args->v };
    const float *const factors[3] = { args->g_q, args->g_k, NULL };
    const mxa_problem *const p = &plan->problem;
    const mxa_cuda_bias bias = { at(args, choice->bias), mean, p->heads / p->heads_kv, p->softmax_scale,
                                 choice->impl->sum_eps >= FP32_EPS };
    const bool has_bias = which == MXA_CUDA_Q && bias.bias;
    const mxa_cuda_rows rows = mxa_cuda_plan_rows(plan, which, tensors[which]);
    mxa_cuda_copy copies[MXA_COPIES];
    const int n = mxa_cuda_plan_copies(plan, choice, which, args->work, factors[which], mean, copies);
    if (n == 0 && !has_bias)
        return MXA_OK;
    return mxa_cuda_quantize(&rows, MXA_NONFINITE_PROPAGATE, n, copies, has_bias ? &bias : NULL, NULL,
                             at(args, choice->work), chain);
}

/* Rows without any key, and those past the last sequence. */
static mxa_status queue_empty(const mxa_plan *plan, const mxa_attention_args *args, cudaStream_t stream)
{
    mxa_status status = MXA_OK;
    if (plan->k_rows == 0)
        status = mxa_cuda_fill_rows(args->out, args->lse, args->sinks, 0, stream);
    if (status == MXA_OK && plan->q_used < plan->problem.q_len)
        status = mxa_cuda_fill_rows(args->out, args->lse, NULL, plan->q_used, stream);
    return status;
}

/* The first choice that takes the tensors as they lie in memory; NULL, with an error: there is none. */
static const mxa_cuda_choice *choice_for(const mxa_plan *plan, const mxa_attention_args *args,
                                         mxa_cuda_job *job)
{
    const mxa_cuda_plan *const cuda = plan->backend;
    const char *reason = NULL;
    for (int i = 0; i < cuda->n_choices; i++) {
        const mxa_cuda_choice *const choice = &cuda->choices[i];
        *job = make_job(plan, choice, args);
        reason = choice->impl->unsuited ? choice->impl->unsuited(job) : NULL;
        if (!reason)
            return choice;
    }
    mxa_fail(MXA_ERR_UNSUPPORTED, "attention: %s cannot take these tensors: %s", cuda->choices[0].impl->name,
             reason);
    return NULL;
}

static mxa_status queue(const mxa_plan *plan, const mxa_attention_args *args, cudaStream_t stream)
{
    const mxa_cuda_plan *const cuda = plan->backend;
    mxa_cuda_job job;
    const mxa_cuda_choice *const choice = choice_for(plan, args, &job);
    if (!choice)
        return MXA_ERR_UNSUPPORTED;
    static const mxa_cuda_which order[] = { MXA_CUDA_K, MXA_CUDA_Q, MXA_CUDA_V }; /* K awaits the mean */
    mxa_cuda_chain chain = { .stream = stream, .may_overlap = cuda->device.arch >= MXA_CUDA_OVERLAP_ARCH };
    const float *mean = NULL;
    mxa_status status = queue_mean(plan, choice, args, &chain, &mean);
    for (size_t i = 0; i < sizeof order / sizeof order[0] && status == MXA_OK; i++)
        status = queue_copies(plan, choice, order[i], args, mean, &chain);
    return status == MXA_OK ? choice->impl->run(&job, stream) : status;
}

mxa_status mxa_cuda_attention(const mxa_plan *plan, const mxa_attention_args *args)
{
    const mxa_cuda_plan *const cuda = plan->backend;
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(cuda->device.index, &scope);
    if (status == MXA_OK)
        status = check_memory(plan, args, cuda->device.index);
    if (status == MXA_OK)
        status = queue_empty(plan, args, args->stream);
    if (status == MXA_OK && plan->q_rows > 0 && plan->k_rows > 0)
        status = queue(plan, args, args->stream);
    mxa_cuda_leave(&scope);
    return status;
}
