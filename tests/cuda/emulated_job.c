/* SPDX-License-Identifier: Apache-2.0 */
#include "emulated_job.h"

#include <string.h>

#include "core/bits.h"
#include "cpu/attention_work.h"

enum { BYTES_OF_16 = 2, ROW_ALIGNMENT = 16 };

static void *zeros(int64_t bytes)
{
    return memset(check_bytes((size_t)bytes).data, 0, (size_t)bytes);
}

static uint16_t narrow(float x, bool f16)
{
    return f16 ? mxa_f16_from_f32(x) : mxa_bf16_from_f32(x);
}

static bool is_of_type(const mxa_tensor *x, const mxa_copy_plan *copy)
{
    const mxa_format format = copy->info->format;
    return !copy->stored && ((format == MXA_FORMAT_F16 && x->dtype == MXA_DTYPE_F16) ||
                             (format == MXA_FORMAT_BF16 && x->dtype == MXA_DTYPE_BF16));
}

/* Rows of one head of a sequence, from its row in the operand on. */
static void fill_rows(mxa_cuda_operand *op, const mxa_rows *rows, int64_t first, int64_t n, int64_t dim,
                      bool f16)
{
    float row[MXA_DIM_MAX];
    for (int64_t i = 0; i < n; i++) {
        uint16_t *const to = (uint16_t *)(void *)(op->codes + (first + i) * op->row_bytes);
        mxa_rows_load(rows, i, 1, row, dim);
        for (int64_t d = 0; d < dim; d++)
            to[d] = narrow(row[d], f16);
        op->g[first + i] = mxa_rows_factor(rows, i);
    }
}

static mxa_cuda_operand make_copy(const mxa_attention_job *job, int copy, bool of_k, const mxa_tensor *x)
{
    const mxa_plan *const plan = job->plan;
    const mxa_copy_plan *const c = of_k ? &plan->k[copy] : &plan->q[copy];
    if (!c->info)
        return (mxa_cuda_operand){ 0 };
    if (is_of_type(x, c))
        return (mxa_cuda_operand){ .form = MXA_CUDA_TENSOR, .x = *x };
    const int64_t rows = of_k ? plan->k_rows : plan->q_rows, dim = plan->problem.head_dim;
    const bool f16 = c->info->format == MXA_FORMAT_F16;
    mxa_cuda_operand op = { .form = f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16, .g_level = MXA_LEVEL_TOKEN };
    op.row_bytes = (dim * BYTES_OF_16 + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
    op.codes = zeros(rows * op.row_bytes);
    op.g = zeros(rows * (int64_t)sizeof(float));
    for (int64_t b = 0; b < plan->n_sequences; b++) {
        const mxa_sequence *const s = &plan->sequences[b];
        const int64_t len = of_k ? s->map.kv_len : s->map.q_len;
        for (int64_t h = 0; h < x->shape[1]; h++) {
            const mxa_rows from = of_k ? mxa_job_k(job, copy, s, h) : mxa_job_q(job, copy, s, h);
            fill_rows(&op, &from, (of_k ? s->k_rows : s->q_rows) + h * len, len, dim, f16);
        }
    }
    return op;
}

static mxa_cuda_operand make_values(const mxa_plan *plan, const mxa_tensor *v)
{
    const bool f16 = plan->pv == MXA_PV_F16;
    const mxa_dtype type = f16 ? MXA_DTYPE_F16 : MXA_DTYPE_BF16;
    if (v->dtype == type)
        return (mxa_cuda_operand){ .form = MXA_CUDA_TENSOR, .x = *v };
    mxa_cuda_operand op = { .form = f16 ? MXA_CUDA_F16 : MXA_CUDA_BF16 };
    op.row_bytes = (v->shape[3] * BYTES_OF_16 + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
    op.codes = zeros(plan->k_rows * op.row_bytes);
    for (int64_t b = 0; b < plan->n_sequences; b++) {
        const mxa_sequence *const s = &plan->sequences[b];
        for (int64_t row = 0; row < v->shape[1] * s->map.kv_len; row++) {
            float x[MXA_DIM_MAX];
            uint16_t *const to = (uint16_t *)(void *)(op.codes + (s->k_rows + row) * op.row_bytes);
            mxa_row_load_as(v, s->batch, row / s->map.kv_len, s->k_first + row % s->map.kv_len, type, x);
            for (int64_t d = 0; d < v->shape[3]; d++)
                to[d] = narrow(x[d], f16);
        }
    }
    return op;
}

/* What the CPU's reference would read. */
static void prepare(const attention_problem *a, mxa_plan *plan, attention_result *r, mxa_attention_job *job)
{
    const mxa_attention_impl *reference = mxa_attention_impls;
    while (reference[1].name)
        reference++;
    mxa_attention_work layout;
    if (mxa_cpu_plan(plan, reference) != MXA_OK || !mxa_attention_layout(plan, &layout))
        check_fail("%s: %s", a->recipe_text, mxa_error_text());
    const mxa_attention_args args = { .size = sizeof args,
                                      .q = &a->q,
                                      .k = &a->k,
                                      .v = &a->v,
                                      .out = &r->tensor,
                                      .lse = (float *)(void *)r->lse.data,
                                      .sinks = a->sinks,
                                      .mean = a->mean,
                                      .work = check_bytes(plan->work_bytes).data,
                                      .work_bytes = plan->work_bytes };
    mxa_attention_prepare(plan, &args, &layout, job);
}

mxa_plan *emulated_job(const attention_problem *a, attention_result *r, mxa_cuda_job *job)
{
    mxa_problem p = a->p;
    mxa_plan *plan = NULL;
    p.threads = 1;
    p.cu_seqlens_q = p.cu_seqlens_q ? a->cu_q : NULL;
    p.cu_seqlens_k = p.cu_seqlens_k ? a->cu_k : NULL;
    if (mxa_plan_build(&p, &a->recipe, &plan) != MXA_OK) {
        check_fail("%s: %s", a->recipe_text, mxa_error_text());
        return NULL;
    }
    const int64_t batch = plan->packed ? 1 : p.batch, rows = batch * p.heads * p.q_len;
    r->out = check_bytes((size_t)(rows * p.head_dim_v) * sizeof(float));
    r->lse = check_bytes((size_t)rows * sizeof(float));
    r->tensor = mxa_tensor_contiguous(r->out.data, MXA_DTYPE_F32, batch, p.heads, p.q_len, p.head_dim_v);
    mxa_attention_job from;
    prepare(a, plan, r, &from);
    *job = (mxa_cuda_job){ .plan = plan,
                           .v = make_values(plan, &a->v),
                           .out = r->tensor,
                           .bias = from.bias,
                           .lse = from.lse,
                           .sinks = from.sinks,
                           .sequences = plan->sequences,
                           .tiles = plan->tiles };
    for (int i = 0; i < MXA_COPIES; i++) {
        job->q[i] = make_copy(&from, i, false, &a->q);
        job->k[i] = make_copy(&from, i, true, &a->k);
    }
    return plan;
}

void emulated_take_row(const attention_problem *a, const attention_result *reference, const mxa_sequence *s,
                       int64_t head, int64_t row, attention_result *r)
{
    const int64_t index = (s->batch * a->p.heads + head) * a->p.q_len + s->q_first + row,
                  dim = a->p.head_dim_v;
    memcpy((float *)(void *)r->out.data + index * dim, result_floats(reference->out) + index * dim,
           (size_t)dim * sizeof(float));
    memcpy((float *)(void *)r->lse.data + index, result_floats(reference->lse) + index, sizeof(float));
}
