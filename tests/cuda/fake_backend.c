/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libmxattn_cuda.so without CUDA for test_api_device.c and tests/cli. What goes wrong in it is the word in
 * MXA_FAKE: "number" or "version" of the interface, "driver" missing, "old" GPU, "launch" of a kernel; none:
 * nothing. Its one device has the host's memory; every byte of a result is 0x3C.
 */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "core/tensor.h"
#include "cuda/backend.h"
#include "format/format.h"

enum { ALIGNMENT = 256, FAKE_BYTE = 0x3C }; /* the first as cudaMalloc has it */

static bool is_wrong(const char *word)
{
    const char *const wrong = getenv("MXA_FAKE");
    return wrong && strcmp(wrong, word) == 0;
}

static mxa_status count(int *n)
{
    if (is_wrong("driver"))
        return mxa_fail(MXA_ERR_DEVICE, "device: no NVIDIA driver is installed");
    *n = 1;
    return MXA_OK;
}

static mxa_status find(int device)
{
    int n;
    const mxa_status status = count(&n);
    if (status == MXA_OK && device >= n)
        return mxa_fail(MXA_ERR_DEVICE, "device: cuda:%d is not there, CUDA shows %d", device, n);
    return status;
}

static mxa_status query(int device, mxa_device_info *info)
{
    const mxa_status status = find(device);
    if (status == MXA_OK)
        *info = (mxa_device_info){ .name = "fake", .arch_major = 7, .usable = !is_wrong("old") };
    return status;
}

static mxa_status allocate(int device, size_t bytes, void **memory)
{
    const mxa_status status = find(device);
    if (status == MXA_OK)
        *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    return status;
}

static mxa_status release(int device, void *memory)
{
    const mxa_status status = find(device);
    if (status == MXA_OK)
        free(memory);
    return status;
}

static mxa_status copy(int device, void *to, const void *from, size_t bytes)
{
    const mxa_status status = find(device);
    if (status == MXA_OK && bytes > 0)
        memcpy(to, from, bytes);
    return status;
}

static mxa_status synchronize(int device, void *stream)
{
    (void)stream;
    return find(device);
}

static bool entry_at(int i, mxa_cuda_entry *entry)
{
    (void)i, (void)entry;
    return false;
}

static mxa_status plan(mxa_plan *plan, const char *only)
{
    (void)only;
    const mxa_status status = find(plan->problem.device - MXA_DEVICE_CUDA_0);
    if (status == MXA_OK && is_wrong("old"))
        return mxa_fail(MXA_ERR_DEVICE, "attention: no kernel runs this plan on cuda:0, which is sm_70");
    return status;
}

static void describe(const mxa_plan *plan, mxa_text *out)
{
    (void)plan;
    mxa_text_put(out, "attention: fake\n");
}

static mxa_status attention(const mxa_plan *plan, const mxa_attention_args *args)
{
    const int64_t *const s = args->out->shape, rows = s[0] * s[1] * s[2];
    if (is_wrong("launch"))
        return mxa_fail(MXA_ERR_DEVICE, "attention: unspecified launch failure");
    memset(args->out->data, FAKE_BYTE, (size_t)(rows * s[3] * mxa_dtype_bytes(plan->problem.out_dtype)));
    if (args->lse)
        memset(args->lse, FAKE_BYTE, (size_t)rows * sizeof *args->lse);
    return MXA_OK;
}

static mxa_status quantize(int device, const mxa_tensor *x, mxa_nonfinite policy, int n,
                           const mxa_copy *copies, int64_t *n_bad, void *stream)
{
    (void)device, (void)policy, (void)stream;
    for (int c = 0; c < n; c++) {
        const int64_t row_bytes = mxa_row_bytes(copies[c].spec.info, x->shape[3]);
        memset(copies[c].out.codes, FAKE_BYTE, (size_t)(x->shape[0] * x->shape[1] * x->shape[2] * row_bytes));
        if (n_bad)
            n_bad[c] = 0;
    }
    return is_wrong("launch") ? mxa_fail(MXA_ERR_DEVICE, "quantize: unspecified launch failure") : MXA_OK;
}

static mxa_status dequantize(int device, const mxa_copy *copy, const mxa_tensor *out, void *stream)
{
    (void)device, (void)copy, (void)out, (void)stream;
    return is_wrong("launch") ? mxa_fail(MXA_ERR_DEVICE, "dequantize: unspecified launch failure") : MXA_OK;
}

static mxa_status channel_mean(int device, const mxa_tensor *x, int64_t n_tokens, float *mean, void *stream)
{
    (void)device, (void)x, (void)n_tokens, (void)mean, (void)stream;
    return is_wrong("launch") ? mxa_fail(MXA_ERR_DEVICE, "channel_mean: unspecified launch failure") : MXA_OK;
}

MXA_API const mxa_cuda_backend *mxa_cuda_backend_table(void);

const mxa_cuda_backend *mxa_cuda_backend_table(void)
{
    static mxa_cuda_backend table = {
        .abi = MXA_CUDA_ABI_HERE,
        .error_text = mxa_error_text,
        .device_count = count,
        .device_query = query,
        .device_alloc = allocate,
        .device_free = release,
        .device_copy = copy,
        .device_synchronize = synchronize,
        .entry_at = entry_at,
        .plan = plan,
        .describe = describe,
        .attention = attention,
        .quantize = quantize,
        .dequantize = dequantize,
        .channel_mean = channel_mean,
    };
    table.abi.number += is_wrong("number");
    table.abi.patch += is_wrong("version");
    return &table;
}
