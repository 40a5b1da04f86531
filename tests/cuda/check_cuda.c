/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_cuda.h"
#include "core/tensor.h"

enum { GUARD_BYTES = 64, ARENA_BYTES = 64 << 20 };

static uint8_t *arena;
static size_t arena_used;

void arena_create(void)
{
    must(cudaMalloc((void **)&arena, ARENA_BYTES), "cudaMalloc");
}

void arena_clear(void)
{
    arena_used = 0;
}

void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static size_t guarded_bytes(check_buf b)
{
    return (b.bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + 2 * GUARD_BYTES;
}

uint8_t *upload(check_buf b, size_t shift)
{
    uint8_t *const to = arena + arena_used + shift;
    arena_used += (guarded_bytes(b) + shift + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
    if (arena_used > ARENA_BYTES) {
        fprintf(stderr, "check_quantize_cuda: the arena is too small\n");
        exit(1);
    }
    must(cudaMemcpy(to, b.data - GUARD_BYTES, guarded_bytes(b), cudaMemcpyHostToDevice), "upload");
    return to + GUARD_BYTES;
}

void download(const void *from, check_buf b)
{
    must(cudaMemcpy(b.data - GUARD_BYTES, (const uint8_t *)from - GUARD_BYTES, guarded_bytes(b),
                    cudaMemcpyDeviceToHost),
         "download");
}

/* ---------------------------------------------------------------- what is quantised */

int64_t pick_dim(void)
{
    static const int64_t powers[] = { 32, 64, 128, 256 };
    return check_pick(0, 2)   ? powers[check_pick(0, 3)]
           : check_pick(0, 2) ? 16 * check_pick(1, 18)
                              : check_pick(1, 300);
}

/* [batch][heads][seq][dim] with gaps between rows, or [batch][seq][heads][dim], or a head repeated. */
static void pick_strides(mxa_tensor *x)
{
    const int64_t gap = check_pick(0, 1) ? 0 : check_pick(0, 1) ? 16 : check_pick(1, 9);
    const int64_t row = x->shape[3] + gap;
    if (check_pick(0, 1)) {
        x->stride[2] = row;
        x->stride[1] = check_pick(0, 5) ? row * x->shape[2] : 0;
        x->stride[0] = row * x->shape[2] * x->shape[1];
    } else {
        x->stride[1] = row;
        x->stride[2] = row * x->shape[1];
        x->stride[0] = row * x->shape[2] * x->shape[1];
    }
    x->stride[3] = 1;
}

static check_buf fill(mxa_dtype dtype, int64_t n)
{
    const float *const x = check_floats(n > 0 ? n : 1, check_pick(0, 1) == 0);
    const check_buf b = check_bytes((size_t)(n * mxa_dtype_bytes(dtype)));
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = dtype == MXA_DTYPE_BF16 ? mxa_bf16_from_f32(x[i]) : mxa_f16_from_f32(x[i]);
        if (dtype == MXA_DTYPE_F32)
            memcpy(b.data + i * 4, &x[i], sizeof x[i]);
        else
            memcpy(b.data + i * 2, &half, sizeof half);
    }
    return b;
}

source pick_source(int64_t dim)
{
    source s = { .host = { .dtype = (mxa_dtype)check_pick(0, 2),
                           .shape = { check_pick(1, 2), check_pick(1, 3), 0, dim } } };
    s.host.shape[2] = check_pick(0, 9) ? check_pick(1, 150) : check_pick(0, 400);
    pick_strides(&s.host);
    const int64_t n =
        s.host.shape[0] * s.host.shape[1] * s.host.shape[2] * (dim + 16); /* no stride is larger */
    const check_buf data = fill(s.host.dtype, n);
    s.host.data = data.data;
    s.device = s.host;
    s.device.data = upload(data, check_pick(0, 4) ? 0 : (size_t)mxa_dtype_bytes(s.host.dtype));
    return s;
}

void add_mean(source *s)
{
    const int64_t n = s->host.shape[0] * s->host.shape[1] * s->host.shape[3];
    const check_buf mean = fill(MXA_DTYPE_F32, n);
    s->mean = (float *)(void *)mean.data;
    s->device_mean = (const float *)(const void *)upload(mean, 0);
}

const float *upload_floats(const float *x, int64_t n)
{
    return x ? (const float *)(const void *)upload(
                   (check_buf){ (uint8_t *)(uintptr_t)x, (size_t)n * sizeof *x }, 0)
             : NULL;
}

mxa_cuda_rows rows_of(const mxa_tensor *x)
{
    const int64_t matrices = x->shape[0] * x->shape[1];
    return (mxa_cuda_rows){ .x = *x,
                            .n_sequences = x->shape[0],
                            .n_rows = matrices * x->shape[2],
                            .n_blocks = matrices * mxa_token_blocks(x->shape[2]) };
}

void *work_for(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n, const mxa_cuda_copy *copies)
{
    return upload(check_bytes((size_t)mxa_cuda_quantize_work_bytes(rows, policy, n, copies) + 1), 0);
}
