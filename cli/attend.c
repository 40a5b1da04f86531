/* SPDX-License-Identifier: Apache-2.0 */
#include "attend.h"

#include "cli.h"
#include "progress.h"

#include <stdlib.h>

/*
 * Scores of a KV head's queries from which its share of the work is worth a call, and a progress step, of
 * its own.
 */
#define PART_SCORES 4e6

/* Some heads of one batch entry. */
static mxa_tensor slice_heads(const mxa_tensor *t, int64_t b, int64_t first, int64_t count)
{
    const int64_t offset = b * t->stride[0] + first * t->stride[1];
    return mxa_tensor_contiguous((char *)t->data + offset * input_dtype_bytes(t->dtype), t->dtype, 1, count,
                                 t->shape[2], t->shape[3]);
}

static bool fail_library(const attend_call *call)
{
    cli_fail("%s: %s", call->path, mxa_error_text());
    return false;
}

static uint64_t tensor_bytes(const mxa_tensor *x)
{
    return (uint64_t)(x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3] * input_dtype_bytes(x->dtype));
}

/* Everything that the call reads and writes, on the device. */
static bool move_to_device(attend_call *call, mxa_device device)
{
    device_memory *m = &call->memory;
    mxa_attention_args *args = &call->args;
    const uint64_t rows = (uint64_t)(call->q.shape[0] * call->q.shape[1] * call->q.shape[2]);
    void *lse = NULL, *sinks = (void *)args->sinks;
    m->device = device;
    const bool ok = device_upload(m, tensor_bytes(&call->q), &call->q.data) &&
                    device_upload(m, tensor_bytes(&call->k), &call->k.data) &&
                    device_upload(m, tensor_bytes(&call->v), &call->v.data) &&
                    device_upload(m, (uint64_t)call->q.shape[1] * sizeof(float), &sinks) &&
                    device_alloc(m, tensor_bytes(&call->out), &call->out.data) &&
                    (args->lse == NULL || device_alloc(m, rows * sizeof(float), &lse)) &&
                    device_alloc(m, args->work_bytes, &args->work);
    args->lse = lse;
    args->sinks = sinks;
    return ok;
}

static bool open_call(attend_call *call, const mxa_problem *problem, const mxa_recipe *recipe)
{
    if (mxa_plan_create(problem, recipe, &call->plan) != MXA_OK)
        return fail_library(call);
    call->args.size = sizeof call->args;
    call->args.q = &call->q;
    call->args.k = &call->k;
    call->args.v = &call->v;
    call->args.out = &call->out;
    call->args.work_bytes = mxa_plan_work_bytes(call->plan);
    call->out_here = call->out.data;
    call->lse_here = call->args.lse;
    if (device_is_cuda(problem->device))
        return move_to_device(call, problem->device);
    call->args.work = cli_alloc(call->args.work_bytes, "the workspace of the attention");
    return call->args.work != NULL;
}

/* The whole input as a call without a plan. */
static attend_call whole_call(const attention_input *input, mxa_dtype out_dtype, void *out, float *lse)
{
    const mxa_tensor *q = &input->q;
    attend_call call = { .path = input->file.path, .q = *q, .k = input->k, .v = input->v };
    call.memory.device = MXA_DEVICE_CPU;
    call.out =
        mxa_tensor_contiguous(out, out_dtype, q->shape[0], q->shape[1], q->shape[2], input->v.shape[3]);
    call.args.lse = lse;
    call.args.sinks = input->sinks;
    return call;
}

bool attend_open(attend_call *call, const attention_input *input, const mxa_recipe *recipe,
                 mxa_dtype out_dtype, void *out, float *lse)
{
    mxa_problem problem = input->problem;
    problem.out_dtype = out_dtype;
    *call = whole_call(input, out_dtype, out, lse);
    return open_call(call, &problem, recipe);
}

bool attend_run(attend_call *call)
{
    mxa_status status = mxa_attention(call->plan, &call->args);
    if (status == MXA_OK && device_is_cuda(call->memory.device))
        status = mxa_device_synchronize(call->memory.device, NULL);
    return status == MXA_OK || fail_library(call);
}

bool attend_fetch(attend_call *call)
{
    const device_memory *m = &call->memory;
    const uint64_t rows = (uint64_t)(call->q.shape[0] * call->q.shape[1] * call->q.shape[2]);
    return !device_is_cuda(m->device) ||
           (device_download(m, call->out.data, tensor_bytes(&call->out), call->out_here) &&
            (call->lse_here == NULL ||
             device_download(m, call->args.lse, rows * sizeof(float), call->lse_here)));
}

void attend_close(attend_call *call)
{
    mxa_plan_free(call->plan);
    if (!device_is_cuda(call->memory.device))
        free(call->args.work);
    device_free(&call->memory);
    *call = (attend_call){ 0 };
}

/*
 * Heads of different KV heads share nothing but a factor of the whole tensor, so on the CPU each KV head can
 * be a call of its own, with the same result.
 */
static bool in_parts(const attention_input *input, const mxa_recipe *recipe)
{
    const mxa_problem *p = &input->problem;
    const int64_t group = p->heads / p->heads_kv;
    const double scores = (double)group * (double)p->q_len * (double)p->kv_len;
    return scores >= PART_SCORES && !device_is_cuda(p->device) && recipe->level_q != MXA_LEVEL_TENSOR &&
           recipe->level_k != MXA_LEVEL_TENSOR;
}

int64_t attend_steps(const attention_input *input, const mxa_recipe *recipe)
{
    return in_parts(input, recipe) ? input->k.shape[0] * input->k.shape[1] : 1;
}

/* The query heads of KV head h of batch entry b; whole is the call for everything. */
static bool run_part(const attention_input *input, const mxa_recipe *recipe, const attend_call *whole,
                     int64_t b, int64_t h)
{
    mxa_problem problem = input->problem;
    const int64_t group = problem.heads / problem.heads_kv, first = h * group;
    if (input->cu_seqlens[0] == NULL)
        problem.batch = 1;
    problem.heads = group;
    problem.heads_kv = 1;
    problem.out_dtype = whole->out.dtype;

    attend_call call = { .path = whole->path, .args = whole->args, .memory = whole->memory };
    call.q = slice_heads(&whole->q, b, first, group);
    call.k = slice_heads(&whole->k, b, h, 1);
    call.v = slice_heads(&whole->v, b, h, 1);
    call.out = slice_heads(&whole->out, b, first, group);
    if (call.args.lse != NULL)
        call.args.lse += (b * whole->q.shape[1] + first) * whole->q.shape[2];
    if (call.args.sinks != NULL)
        call.args.sinks += first;
    const bool ok = open_call(&call, &problem, recipe) && attend_run(&call);
    attend_close(&call);
    return ok;
}

bool attend_all(const attention_input *input, const mxa_recipe *recipe, mxa_dtype out_dtype, void *out,
                float *lse)
{
    if (!in_parts(input, recipe)) {
        attend_call call;
        const bool ok = attend_open(&call, input, recipe, out_dtype, out, lse) && attend_run(&call) &&
                        attend_fetch(&call);
        attend_close(&call);
        progress_step();
        return ok;
    }
    const attend_call whole = whole_call(input, out_dtype, out, lse);
    for (int64_t b = 0; b < input->k.shape[0]; b++)
        for (int64_t h = 0; h < input->k.shape[1]; h++, progress_step())
            if (!run_part(input, recipe, &whole, b, h))
                return false;
    return true;
}
