/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On a CUDA device: the fused quantiser (two copies of smoothed and rotated keys from one read) against a
 * call for each copy, and against a copy of the input within the device. The mean of the first tokens is part
 * of both. A time is that of the calls and of waiting for them.
 */
#include "time_shape.h"

#include "cli.h"
#include "device_memory.h"

#include <stdlib.h>

#define LEAST_RUNS   10
#define MIN_SECONDS  0.5
#define PREFIX       128 /* tokens of the mean, as smooth-k=prefix has it */
#define SEED         4
#define BYTES_OF_F32 4
#define BYTES_OF_16  2

typedef struct quantizer {
    device_memory memory;
    mxa_tensor x;
    void *copy;
    float *mean;
    mxa_format formats[2]; /* low, high */
    mxa_quant_opts opts[2];
    mxa_packed packed[2];
    size_t input_bytes;
} quantizer;

static bool check(mxa_status status)
{
    if (status != MXA_OK)
        cli_fail("quantizer: %s", mxa_error_text());
    return status == MXA_OK;
}

static bool wait(const quantizer *z)
{
    return check(mxa_device_synchronize(z->memory.device, NULL));
}

static bool run_mean(const quantizer *z)
{
    return check(mxa_device_channel_mean(z->memory.device, &z->x, PREFIX, z->mean, NULL));
}

static bool run_memcpy(void *context)
{
    const quantizer *z = context;
    return check(mxa_device_copy(z->memory.device, z->copy, z->x.data, z->input_bytes));
}

static bool run_fused(void *context)
{
    const quantizer *z = context;
    return run_mean(z) &&
           check(mxa_quantize_pair(&z->x, z->formats[0], &z->opts[0], &z->packed[0], z->formats[1],
                                   &z->opts[1], &z->packed[1], NULL)) &&
           wait(z);
}

static bool run_unfused(void *context)
{
    const quantizer *z = context;
    return run_mean(z) && check(mxa_quantize(&z->x, z->formats[0], &z->opts[0], &z->packed[0], NULL)) &&
           check(mxa_quantize(&z->x, z->formats[1], &z->opts[1], &z->packed[1], NULL)) && wait(z);
}

static bool alloc_packed(quantizer *z, int i)
{
    mxa_packed_size size;
    void *codes = NULL, *scales = NULL, *g = NULL;
    const bool ok = check(mxa_packed_sizes(z->formats[i], &z->opts[i], z->x.shape, &size)) &&
                    device_alloc(&z->memory, (uint64_t)size.code_bytes, &codes) &&
                    device_alloc(&z->memory, (uint64_t)size.scale_bytes, &scales) &&
                    device_alloc(&z->memory, (uint64_t)size.g_count * sizeof(float), &g);
    z->packed[i] = (mxa_packed){ .codes = codes, .scales = scales, .g = g };
    return ok;
}

static bool open_quantizer(quantizer *z, const shape *s, mxa_device device)
{
    const int64_t matrices = s->batch * s->heads, elements = matrices * s->q_len * s->dim;
    *z = (quantizer){ .memory = { .device = device }, .formats = { s->low, s->high } };
    z->input_bytes = (size_t)elements * (s->type == MXA_DTYPE_F32 ? BYTES_OF_F32 : BYTES_OF_16);
    void *const here = random_tensor(s->type, elements, SEED), *x = here, *mean = NULL;
    bool ok = here != NULL && device_upload(&z->memory, z->input_bytes, &x) &&
              device_alloc(&z->memory, z->input_bytes, &z->copy) &&
              device_alloc(&z->memory, (uint64_t)(matrices * s->dim) * sizeof(float), &mean);
    free(here);
    z->x = mxa_tensor_contiguous(x, s->type, s->batch, s->heads, s->q_len, s->dim);
    z->mean = mean;
    for (int i = 0; i < 2 && ok; i++) {
        mxa_quant_default(&z->opts[i]);
        z->opts[i].fill_tail = z->opts[i].rotate = true;
        z->opts[i].mean = z->mean;
        z->opts[i].device = device;
        ok = alloc_packed(z, i);
    }
    return ok;
}

bool time_quantizer_cuda(const shape *s, mxa_device device, shape_time times[QUANTIZE_VARIANTS])
{
    static const char *const names[QUANTIZE_VARIANTS] = { "fused", "unfused", "memcpy" };
    quantizer z;
    const timed_call calls[QUANTIZE_VARIANTS] = { { run_fused, &z },
                                                  { run_unfused, &z },
                                                  { run_memcpy, &z } };
    timing results[QUANTIZE_VARIANTS];
    const bool ok = open_quantizer(&z, s, device) &&
                    timing_measure(calls, QUANTIZE_VARIANTS, LEAST_RUNS, MIN_SECONDS, results);
    for (int i = 0; i < QUANTIZE_VARIANTS && ok; i++)
        times[i] = (shape_time){ names[i], (double)z.input_bytes, results[i] };
    device_free(&z.memory);
    return ok;
}
