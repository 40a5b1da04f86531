/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_run_cuda.h"

#include "core/bits.h"
#include "core/tensor.h"
#include "cuda/loader.h"

#include <string.h>

/* As the harness has them around the host's buffers. */
enum { GUARD_BYTES = 64 };

/* All that a call has on the device. */
enum { ARENA_BYTES = 256 << 20, ALIGNMENT = 256 };

static const mxa_device device = MXA_DEVICE_CUDA_0;
static const mxa_cuda_backend *backend;
static char *arena;
static size_t arena_used;

bool cuda_open(void)
{
    void *memory = NULL;
    if (mxa_device_count() == 0 || mxa_cuda_table(device, &backend) != MXA_OK ||
        mxa_device_alloc(device, ARENA_BYTES, &memory) != MXA_OK)
        return false;
    arena = memory;
    return true;
}

bool cuda_entry_at(int i, mxa_attention_impl *impl)
{
    mxa_cuda_entry entry;
    if (!backend->entry_at(i, &entry))
        return false;
    *impl = (mxa_attention_impl){
        .name = entry.name, .sum_eps = entry.sum_eps, .exp2_eps = entry.exp2_eps, .rounds_p = entry.rounds_p
    };
    return true;
}

static mxa_status make_plan(const attention_problem *a, const mxa_attention_impl *impl, mxa_plan **plan)
{
    mxa_problem p = a->p;
    p.device = device;
    p.cu_seqlens_q = p.cu_seqlens_q ? a->cu_q : NULL;
    p.cu_seqlens_k = p.cu_seqlens_k ? a->cu_k : NULL;
    mxa_plan *made = NULL;
    mxa_status status = mxa_plan_build(&p, &a->recipe, &made);
    if (status == MXA_OK)
        status = mxa_cuda_result(backend, backend->plan(made, impl->name));
    if (status == MXA_OK)
        *plan = made;
    else
        mxa_plan_free(made);
    return status;
}

bool cuda_runs(const attention_problem *a, const mxa_attention_impl *impl)
{
    mxa_plan *plan = NULL;
    const mxa_status status = make_plan(a, impl, &plan);
    mxa_plan_free(plan);
    if (status != MXA_OK && status != MXA_ERR_UNSUPPORTED && status != MXA_ERR_DEVICE)
        check_fail("%s, %s: %s", impl->name, a->recipe_text, mxa_error_text());
    return status == MXA_OK;
}

/* bytes of the host on the device; NULL stays NULL. */
static void *upload(const void *host, size_t bytes)
{
    if (!host)
        return NULL;
    char *const to = arena + arena_used;
    arena_used += (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    if (arena_used > ARENA_BYTES || mxa_device_copy(device, to, host, bytes) != MXA_OK)
        check_fail("upload of %zu bytes: %s", bytes, mxa_error_text());
    return to;
}

static size_t guarded_bytes(check_buf b)
{
    return (b.bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + 2 * GUARD_BYTES;
}

/* With its guards, on both ways. */
static void *upload_guarded(check_buf b)
{
    return (char *)upload(b.data - GUARD_BYTES, guarded_bytes(b)) + GUARD_BYTES;
}

static void download_guarded(const char *what, const void *from, check_buf b)
{
    if (mxa_device_copy(device, b.data - GUARD_BYTES, (const char *)from - GUARD_BYTES, guarded_bytes(b)) !=
        MXA_OK)
        check_fail("%s: %s", what, mxa_error_text());
    check_guards(what, b);
}

/* The memory that a view with strides of 0 or more reaches. */
static mxa_tensor upload_tensor(const mxa_tensor *x)
{
    mxa_tensor copy = *x;
    int64_t last = x->shape[3];
    for (int axis = 0; axis < 3; axis++)
        last += mxa_max(x->shape[axis] - 1, 0) * x->stride[axis];
    copy.data = upload(x->data, (size_t)(last * mxa_dtype_bytes(x->dtype)));
    return copy;
}

/* The same numbers with rows that begin at multiples of 16 bytes, as some entries need them. */
static mxa_tensor upload_aligned(const mxa_tensor *x)
{
    enum { UNIT = 8 };
    const int64_t row = (x->shape[3] + UNIT - 1) / UNIT * UNIT,
                  rows = x->shape[0] * x->shape[1] * x->shape[2];
    const check_buf memory = check_bytes((size_t)(rows * row * mxa_dtype_bytes(x->dtype)));
    mxa_tensor copy = { memory.data,
                        x->dtype,
                        { x->shape[0], x->shape[1], x->shape[2], x->shape[3] },
                        { x->shape[1] * x->shape[2] * row, x->shape[2] * row, row, 1 } };
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++)
                memcpy(mxa_row(&copy, b, h, i), mxa_row(x, b, h, i),
                       (size_t)(x->shape[3] * mxa_dtype_bytes(x->dtype)));
    return upload_tensor(&copy);
}

static void widen(const attention_problem *a, check_buf narrow, attention_result *r)
{
    float *const wide = (float *)(void *)r->out.data;
    const uint16_t *const half = (const uint16_t *)(const void *)narrow.data;
    const int64_t n = (int64_t)(r->out.bytes / sizeof *wide);
    if (a->p.out_dtype == MXA_DTYPE_F32)
        memcpy(wide, narrow.data, r->out.bytes);
    else
        for (int64_t i = 0; i < n; i++)
            wide[i] =
                a->p.out_dtype == MXA_DTYPE_F16 ? mxa_f32_from_f16(half[i]) : mxa_f32_from_bf16(half[i]);
}

static mxa_status call(const attention_problem *a, const mxa_plan *plan, bool aligned, attention_result *r)
{
    const mxa_problem *const p = &a->p;
    const int64_t batch = plan->packed ? 1 : p->batch, rows = batch * p->heads * p->q_len;
    const check_buf work = check_bytes(mxa_plan_work_bytes(plan));
    const check_buf out = check_bytes((size_t)(rows * p->head_dim_v * mxa_dtype_bytes(p->out_dtype)));
    arena_used = 0;
    mxa_tensor (*const up)(const mxa_tensor *) = aligned ? upload_aligned : upload_tensor;
    const mxa_tensor q = up(&a->q), k = up(&a->k), v = up(&a->v);
    const mxa_tensor o =
        mxa_tensor_contiguous(upload_guarded(out), p->out_dtype, batch, p->heads, p->q_len, p->head_dim_v);
    const size_t means = (size_t)(p->batch * p->heads_kv * p->head_dim) * sizeof(float);
    const mxa_attention_args args = { .size = sizeof args,
                                      .q = &q,
                                      .k = &k,
                                      .v = &v,
                                      .out = &o,
                                      .lse = upload_guarded(r->lse),
                                      .sinks = upload(a->sinks, (size_t)p->heads * sizeof(float)),
                                      .mean = upload(a->mean, means),
                                      .work = upload_guarded(work),
                                      .work_bytes = work.bytes };
    mxa_status status = mxa_attention(plan, &args);
    if (status == MXA_OK)
        status = mxa_device_synchronize(device, NULL);
    if (status != MXA_OK)
        return status;
    download_guarded("out", o.data, out);
    download_guarded("lse", args.lse, r->lse);
    download_guarded("workspace", args.work, work);
    widen(a, out, r);
    return MXA_OK;
}

attention_result cuda_run(const attention_problem *a, const mxa_attention_impl *impl)
{
    const int64_t rows = (a->p.cu_seqlens_q ? 1 : a->p.batch) * a->p.heads * a->p.q_len;
    attention_result r = { check_bytes((size_t)(rows * a->p.head_dim_v) * sizeof(float)),
                           check_bytes((size_t)rows * sizeof(float)),
                           { 0 } };
    mxa_plan *plan = NULL;
    mxa_status status = make_plan(a, impl, &plan);
    if (status == MXA_OK)
        status = call(a, plan, false, &r);
    if (status == MXA_ERR_UNSUPPORTED) /* of the tensors as they lie in memory */
        status = call(a, plan, true, &r);
    mxa_plan_free(plan);
    if (status != MXA_OK)
        check_fail("%s, %s: %s", impl->name, a->recipe_text, mxa_error_text());
    return r;
}
