/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the entries of a plan, and what is uploaded for them. */
#include "cuda/attention_plan_cuda.h"

#include <stdlib.h>
#include <string.h>

/* Between two tables in device memory. */
enum { ALIGNMENT = 128 };

static int64_t align(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) & -(int64_t)ALIGNMENT;
}

/* Why the forms that an entry wants cannot be made; NULL if they can. */
static const char *form_refusal(const mxa_cuda_attention_impl *impl, const mxa_plan *plan)
{
    const mxa_cuda_forms f = impl->forms(plan);
    const char *reason = NULL;
    for (int i = 0; i < MXA_COPIES && !reason; i++) {
        if (plan->q[i].info && f.q[i] != MXA_CUDA_TENSOR)
            reason = mxa_cuda_form_refuses(plan->q[i].info, f.q[i]);
        if (!reason && plan->k[i].info && f.k[i] != MXA_CUDA_TENSOR)
            reason = mxa_cuda_form_refuses(plan->k[i].info, f.k[i]);
    }
    return reason;
}

const char *mxa_cuda_attention_refusal(const mxa_cuda_attention_impl *impl, const mxa_plan *plan,
                                       const mxa_cuda_device *device, char text[MXA_CUDA_REFUSAL_BYTES])
{
    mxa_text out = { text, MXA_CUDA_REFUSAL_BYTES, 0 };
    if (impl->arch_exact ? device->arch != impl->arch : device->arch < impl->arch) {
        mxa_text_put(&out, "needs sm_%d%s", impl->arch, impl->arch_exact ? "" : " or later");
        return text;
    }
    const char *const reason = impl->refuses ? impl->refuses(plan) : NULL;
    return reason ? reason : form_refusal(impl, plan);
}

/* MXA_ERR_DEVICE if no entry is for the device, MXA_ERR_UNSUPPORTED with each entry's reason. */
static mxa_status refuse(const mxa_plan *plan, const mxa_cuda_device *device)
{
    enum { TEXT_BYTES = 400 };
    char all[TEXT_BYTES], one[MXA_CUDA_REFUSAL_BYTES];
    mxa_text out = { all, TEXT_BYTES, 0 };
    bool too_old = true;
    mxa_text_put(&out, "%s", "");
    for (const mxa_cuda_attention_impl *impl = mxa_cuda_attention_impls; impl->name; impl++) {
        too_old = too_old && device->arch < impl->arch;
        mxa_text_put(&out, "%s%s: %s", impl == mxa_cuda_attention_impls ? "" : "; ", impl->name,
                     mxa_cuda_attention_refusal(impl, plan, device, one));
    }
    return mxa_fail(too_old ? MXA_ERR_DEVICE : MXA_ERR_UNSUPPORTED,
                    "attention: no kernel runs this plan on cuda:%d, which is sm_%d (%s)", device->index,
                    device->arch, all);
}

/* Contiguous 16-bit rows of so many channels begin on 16 bytes. */
static bool are_vectors(int64_t dim)
{
    enum { CHANNELS_OF_VECTOR = 8 };
    return dim % CHANNELS_OF_VECTOR == 0;
}

/* The first entry that runs the plan and, if that may turn tensors down, what takes them instead. */
static void choose(const mxa_plan *plan, const char *only, mxa_cuda_plan *cuda)
{
    char text[MXA_CUDA_REFUSAL_BYTES];
    const bool copies = !are_vectors(plan->problem.head_dim) || !are_vectors(plan->problem.head_dim_v);
    for (const mxa_cuda_attention_impl *impl = mxa_cuda_attention_impls; impl->name; impl++) {
        if ((only && strcmp(only, impl->name) != 0) ||
            mxa_cuda_attention_refusal(impl, plan, &cuda->device, text))
            continue;
        const bool first = cuda->n_choices == 0;
        if (first || !impl->unsuited)
            cuda->choices[cuda->n_choices++].impl = impl;
        if (first && impl->unsuited && copies)
            cuda->choices[cuda->n_choices++] = (mxa_cuda_choice){ .impl = impl, .copies = true };
        if (!impl->unsuited)
            return;
    }
}

static int64_t table_bytes(const mxa_plan *plan, const mxa_cuda_plan *cuda, int i)
{
    const mxa_cuda_attention_impl *const impl = cuda->choices[i].impl;
    return impl->table_bytes ? align(impl->table_bytes(plan, &cuda->device)) : 0;
}

static mxa_status no_memory(int64_t bytes)
{
    return mxa_fail(MXA_ERR_MEMORY, "plan: no memory for %lld bytes of tables", (long long)bytes);
}

/*
 * One piece of device memory: sequences, tiles, the entries' tables. A copy from pageable memory may return
 * before it has arrived, and streams that are not blocking would not wait for it.
 */
static mxa_status upload(const mxa_plan *plan, mxa_cuda_plan *cuda)
{
    const int64_t sequences = plan->n_sequences * (int64_t)sizeof *plan->sequences;
    const int64_t tiles = plan->n_tiles * (int64_t)sizeof *plan->tiles;
    int64_t total = align(sequences) + align(tiles);
    for (int i = 0; i < cuda->n_choices; i++)
        total += table_bytes(plan, cuda, i);
    if (total == 0)
        return MXA_OK;
    char *const host = calloc(1, (size_t)total);
    if (!host)
        return no_memory(total);
    mxa_status status =
        mxa_cuda_check(cudaMalloc(&cuda->tables, (size_t)total), "plan: cudaMalloc of tables");
    if (status == MXA_OK) {
        char *const device = cuda->tables;
        memcpy(host, plan->sequences, (size_t)sequences);
        memcpy(host + align(sequences), plan->tiles, (size_t)tiles);
        cuda->sequences = (const mxa_sequence *)(void *)device;
        cuda->tiles = (const mxa_query_tile *)(void *)(device + align(sequences));
        int64_t offset = align(sequences) + align(tiles);
        for (int i = 0; i < cuda->n_choices; offset += table_bytes(plan, cuda, i), i++)
            if (table_bytes(plan, cuda, i) > 0) {
                cuda->choices[i].impl->table(plan, &cuda->device, host + offset);
                cuda->choices[i].table = device + offset;
            }
        status = mxa_cuda_check(cudaMemcpy(device, host, (size_t)total, cudaMemcpyHostToDevice),
                                "plan: cudaMemcpy of tables");
    }
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaStreamSynchronize(NULL), "plan: cudaStreamSynchronize");
    free(host);
    return status;
}

static mxa_status lay_out(mxa_plan *plan, mxa_cuda_plan *cuda)
{
    for (int i = 0; i < cuda->n_choices; i++) {
        mxa_cuda_choice *const c = &cuda->choices[i];
        if (!mxa_cuda_layout(plan, &cuda->device, c))
            return mxa_fail(MXA_ERR_SHAPE, "plan: the workspace does not fit 63 bits of bytes");
        plan->work_bytes = (size_t)mxa_max((int64_t)plan->work_bytes, c->total);
        const mxa_status status = c->impl->prepare ? c->impl->prepare(plan, &cuda->device) : MXA_OK;
        if (status != MXA_OK)
            return status;
    }
    return MXA_OK;
}

/* Tables may be in use by queued calls: cudaFree waits for them. */
static void free_plan(void *backend)
{
    mxa_cuda_plan *const cuda = backend;
    mxa_cuda_scope scope;
    if (mxa_cuda_enter(cuda->device.index, &scope) == MXA_OK)
        (void)mxa_cuda_check(cudaFree(cuda->tables), "plan: cudaFree of tables");
    mxa_cuda_leave(&scope);
    free(cuda);
}

/* With the device current. On failure the plan's owner frees what was made. */
static mxa_status make_plan(mxa_plan *plan, const char *only)
{
    mxa_cuda_plan *const cuda = plan->backend;
    choose(plan, only, cuda);
    if (cuda->n_choices == 0)
        return refuse(plan, &cuda->device);
    const mxa_status status = lay_out(plan, cuda);
    return status == MXA_OK ? upload(plan, cuda) : status;
}

mxa_status mxa_cuda_attention_plan(mxa_plan *plan, const char *only)
{
    mxa_cuda_device device;
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_device_read(plan->problem.device - MXA_DEVICE_CUDA_0, &device);
    if (status != MXA_OK)
        return status;
    mxa_cuda_plan *const cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return no_memory((int64_t)sizeof *cuda);
    cuda->device = device;
    plan->backend = cuda;
    plan->backend_free = free_plan;
    status = mxa_cuda_enter(device.index, &scope);
    if (status == MXA_OK)
        status = make_plan(plan, only);
    mxa_cuda_leave(&scope);
    return status;
}

static void put_copy(const mxa_copy_plan *copy, const mxa_cuda_place *place, const char *which, mxa_text *out)
{
    static const char *const forms[] = { "read from the tensor", "its codes", "folded into e5m2",
                                         "folded into e4m3",     "in bf16",   "in f16" };
    if (copy->info)
        mxa_text_put(out, "%s %s: %s\n", which, copy->info->name, forms[place->form]);
}

void mxa_cuda_attention_describe(const mxa_plan *plan, mxa_text *out)
{
    const mxa_cuda_plan *const cuda = plan->backend;
    const mxa_cuda_choice *const c = &cuda->choices[0];
    char text[MXA_CUDA_REFUSAL_BYTES];
    mxa_text_put(out, "attention: %s", c->impl->name);
    for (int i = 1; i < cuda->n_choices; i++)
        mxa_text_put(out, ", or %s%s for tensors that it cannot take as they lie in memory",
                     cuda->choices[i].impl->name, cuda->choices[i].copies ? " with copies" : "");
    for (const mxa_cuda_attention_impl *impl = mxa_cuda_attention_impls; impl != c->impl; impl++)
        mxa_text_put(out, "; %s: %s", impl->name,
                     mxa_cuda_attention_refusal(impl, plan, &cuda->device, text));
    mxa_text_put(out, "\n");
    static const char *const names[MXA_COPIES][2] = { { "q low", "k low" }, { "q high", "k high" } };
    for (int i = 0; i < MXA_COPIES; i++) {
        put_copy(&plan->q[i], &c->q[i], names[i][0], out);
        put_copy(&plan->k[i], &c->k[i], names[i][1], out);
    }
    mxa_text_put(out, "v: met by P in %s\n", plan->pv == MXA_PV_F16 ? "f16" : "bf16");
}
