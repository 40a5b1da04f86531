/* SPDX-License-Identifier: Apache-2.0 */
/* The table that libmxattn.so reads: the one symbol that this library exports. */
#include "cuda/backend.h"

#include <stdio.h>
#include <string.h>

#include "cuda/attention_plan_cuda.h"
#include "cuda/kv_cuda.h"
#include "format/format.h"

/* Does an entry of the list run on arch; least: the smallest that one runs on, 0 without entries. */
static bool has_kernels(int arch, int *least)
{
    bool found = false;
    *least = 0;
    for (const mxa_cuda_attention_impl *impl = mxa_cuda_attention_impls; impl->name; impl++) {
        found = found || (impl->arch_exact ? arch == impl->arch : arch >= impl->arch);
        if (*least == 0 || impl->arch < *least)
            *least = impl->arch;
    }
    return found;
}

static mxa_status query(int index, mxa_device_info *info)
{
    struct cudaDeviceProp properties;
    mxa_cuda_device device;
    int least;
    mxa_status status = mxa_cuda_device_read(index, &device);
    if (status == MXA_OK)
        status =
            mxa_cuda_check(cudaGetDeviceProperties(&properties, index), "device: cudaGetDeviceProperties");
    if (status != MXA_OK)
        return status;
    *info = (mxa_device_info){ .arch_major = device.arch / 10,
                               .arch_minor = device.arch % 10,
                               .multiprocessors = device.multiprocessors,
                               .memory_bytes = (int64_t)properties.totalGlobalMem,
                               .usable = has_kernels(device.arch, &least) };
    snprintf(info->name, sizeof info->name, "%s", properties.name);
    if (!info->usable)
        snprintf(info->reason, sizeof info->reason, "kernels need sm_%d or later, this is sm_%d", least,
                 device.arch);
    return MXA_OK;
}

static bool entry_at(int i, mxa_cuda_entry *entry)
{
    for (const mxa_cuda_attention_impl *impl = mxa_cuda_attention_impls; impl->name; impl++)
        if (i-- == 0) {
            *entry =
                (mxa_cuda_entry){ impl->name, impl->arch, impl->sum_eps, impl->exp2_eps, impl->rounds_p };
            return true;
        }
    return false;
}

static mxa_status allocate(int device, size_t bytes, void **memory)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    void *made = NULL;
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaMalloc(&made, bytes > 0 ? bytes : 1), "memory: cudaMalloc");
    mxa_cuda_leave(&scope);
    if (status == MXA_OK)
        *memory = made;
    return status;
}

static mxa_status release(int device, void *memory)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaFree(memory), "memory: cudaFree");
    mxa_cuda_leave(&scope);
    return status;
}

/* The default stream waits for others, but not for those made non-blocking: so the whole device does. */
static mxa_status copy(int device, void *to, const void *from, size_t bytes)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaDeviceSynchronize(), "copy: cudaDeviceSynchronize");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy: cudaMemcpy");
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaDeviceSynchronize(), "copy: cudaDeviceSynchronize");
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status synchronize(int device, void *stream)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check(cudaStreamSynchronize(stream), "synchronize");
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status check_copy(const mxa_copy *c, int device)
{
    const struct {
        const char *name;
        const void *memory;
    } all[] = { { "codes", c->out.codes }, { "scales", c->out.scales },
                { "g", c->out.g },         { "nonfinite_tiles", c->out.nonfinite_tiles },
                { "mean", c->mean },       { "opts.g", c->g_given } };
    mxa_status status = MXA_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == MXA_OK; i++)
        status = mxa_cuda_check_memory(all[i].name, all[i].memory, device);
    return status;
}

static mxa_cuda_rows whole_tensor(const mxa_tensor *x)
{
    const int64_t matrices = x->shape[0] * x->shape[1];
    return (mxa_cuda_rows){ .x = *x,
                            .n_sequences = x->shape[0],
                            .n_rows = matrices * x->shape[2],
                            .n_blocks = matrices * mxa_token_blocks(x->shape[2]) };
}

/* With the device current. MXA_NONFINITE_ERROR waits anyway, so its scratch may be allocated here. */
static mxa_status quantize_rows(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                                const mxa_cuda_copy *copies, int64_t *n_bad, cudaStream_t stream)
{
    const int64_t bytes = mxa_cuda_quantize_work_bytes(rows, policy, n, copies);
    void *work = NULL;
    mxa_status status = MXA_OK;
    if (bytes > 0)
        status = mxa_cuda_check(cudaMalloc(&work, (size_t)bytes), "scratch: cudaMalloc");
    mxa_cuda_chain chain = { .stream = stream };
    if (status == MXA_OK)
        status = mxa_cuda_quantize(rows, policy, n, copies, NULL, n_bad, work, &chain);
    const mxa_status freed =
        work ? mxa_cuda_check(cudaFree(work), "scratch: cudaFree") : MXA_OK; /* after what is queued */
    return status == MXA_OK ? freed : status;
}

static mxa_status quantize(int device, const mxa_tensor *x, mxa_nonfinite policy, int n,
                           const mxa_copy *copies, int64_t *n_bad, void *stream)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("x", x->data, device);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("n_bad", n_bad, device);
    mxa_cuda_copy made[MXA_COPIES];
    for (int c = 0; c < n && status == MXA_OK; c++) {
        const bool by_token = copies[c].axis == MXA_AXIS_TOKEN;
        const int64_t row_bytes = mxa_row_bytes(copies[c].spec.info, x->shape[by_token ? 2 : 3]);
        made[c] = (mxa_cuda_copy){
            .copy = copies[c], .form = MXA_CUDA_CODES, .row_bytes = row_bytes, .g_written = copies[c].level
        };
        status = check_copy(&copies[c], device);
    }
    const mxa_cuda_rows rows = whole_tensor(x);
    if (status == MXA_OK)
        status = quantize_rows(&rows, policy, n, made, n_bad, stream);
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status dequantize(int device, const mxa_copy *copy, const mxa_tensor *out, void *stream)
{
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("out", out->data, device);
    if (status == MXA_OK)
        status = check_copy(copy, device);
    if (status == MXA_OK)
        status = mxa_cuda_dequantize(copy, out, stream);
    mxa_cuda_leave(&scope);
    return status;
}

static mxa_status channel_mean(int device, const mxa_tensor *x, int64_t n_tokens, float *mean, void *stream)
{
    const mxa_cuda_rows rows = whole_tensor(x);
    mxa_cuda_chain chain = { .stream = stream };
    mxa_cuda_scope scope;
    mxa_status status = mxa_cuda_enter(device, &scope);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("x", x->data, device);
    if (status == MXA_OK)
        status = mxa_cuda_check_memory("mean", mean, device);
    if (status == MXA_OK)
        status = mxa_cuda_channel_mean(&rows, n_tokens, mean, NULL, 0, &chain);
    mxa_cuda_leave(&scope);
    return status;
}

MXA_API const mxa_cuda_backend *mxa_cuda_backend_table(void);

const mxa_cuda_backend *mxa_cuda_backend_table(void)
{
    static const mxa_cuda_backend table = {
        .abi = MXA_CUDA_ABI_HERE,
        .error_text = mxa_error_text,
        .device_count = mxa_cuda_count,
        .device_query = query,
        .device_alloc = allocate,
        .device_free = release,
        .device_copy = copy,
        .device_synchronize = synchronize,
        .entry_at = entry_at,
        .plan = mxa_cuda_attention_plan,
        .describe = mxa_cuda_attention_describe,
        .attention = mxa_cuda_attention,
        .quantize = quantize,
        .dequantize = dequantize,
        .channel_mean = channel_mean,
        .kv = &mxa_cuda_kv_ops,
    };
    return &table;
}
