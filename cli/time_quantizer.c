/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused quantiser (two copies of smoothed and rotated keys from one read) against the same steps as
 * calls of their own, and against a copy of the input by as many threads. The mean of the first tokens is
 * part of both.
 */
#include "time_shape.h"

#include "cli.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_RUNS   10
#define MIN_SECONDS  0.5
#define PREFIX       128 /* tokens of the mean, as smooth-k=prefix has it */
#define SEED         4
#define BYTES_OF_F32 4
#define BYTES_OF_16  2

typedef struct quantizer {
    mxa_tensor x, wide; /* the input; fp32 values between the unfused steps */
    void *copy;
    float *mean;
    mxa_format formats[2];  /* low, high */
    mxa_quant_opts opts[2]; /* of the fused call */
    mxa_packed packed[2];
    size_t input_bytes;
    int threads;
} quantizer;

static bool check(mxa_status status)
{
    if (status != MXA_OK)
        cli_fail("quantizer: %s", mxa_error_text());
    return status == MXA_OK;
}

static bool run_memcpy(void *context)
{
    const quantizer *z = context;
    const size_t share = z->input_bytes / (size_t)z->threads + 1;
#pragma omp parallel for num_threads(z->threads) schedule(static, 1)
    for (int t = 0; t < z->threads; t++) {
        const size_t first = share * (size_t)t;
        if (first < z->input_bytes)
            memcpy((char *)z->copy + first, (const char *)z->x.data + first,
                   first + share < z->input_bytes ? share : z->input_bytes - first);
    }
    return true;
}

static bool run_fused(void *context)
{
    const quantizer *z = context;
    int64_t n_bad[2];
    return check(mxa_channel_mean(&z->x, PREFIX, z->mean)) &&
           check(mxa_quantize_pair(&z->x, z->formats[0], &z->opts[0], &z->packed[0], z->formats[1],
                                   &z->opts[1], &z->packed[1], n_bad));
}

static bool run_unfused(void *context)
{
    const quantizer *z = context;
    mxa_quant_opts plain;
    mxa_quant_default(&plain);
    plain.fill_tail = true;
    plain.threads = z->threads;
    return check(mxa_channel_mean(&z->x, PREFIX, z->mean)) &&
           check(mxa_subtract_mean(&z->x, z->mean, &z->wide)) && check(mxa_rotate(&z->wide, &z->wide)) &&
           check(mxa_quantize(&z->wide, z->formats[0], &plain, &z->packed[0], NULL)) &&
           check(mxa_quantize(&z->wide, z->formats[1], &plain, &z->packed[1], NULL));
}

static bool alloc_packed(mxa_format format, const mxa_quant_opts *opts, const int64_t shape[4],
                         mxa_packed *out)
{
    mxa_packed_size size;
    if (!check(mxa_packed_sizes(format, opts, shape, &size)))
        return false;
    out->codes = cli_alloc((uint64_t)size.code_bytes, "the codes");
    out->scales = cli_alloc((uint64_t)size.scale_bytes, "the scales");
    out->g = cli_alloc((uint64_t)size.g_count * sizeof(float), "the factors");
    return out->codes != NULL && out->scales != NULL && out->g != NULL;
}

static bool open_quantizer(quantizer *z, const shape *s, int threads)
{
    const int64_t matrices = s->batch * s->heads, elements = matrices * s->q_len * s->dim;
    *z = (quantizer){ .formats = { s->low, s->high },
                      .threads = threads > 0 ? threads : omp_get_max_threads() };
    z->input_bytes = (size_t)elements * (s->type == MXA_DTYPE_F32 ? BYTES_OF_F32 : BYTES_OF_16);
    z->x = mxa_tensor_contiguous(random_tensor(s->type, elements, SEED), s->type, s->batch, s->heads,
                                 s->q_len, s->dim);
    z->wide = mxa_tensor_contiguous(cli_alloc((uint64_t)elements * sizeof(float), "the steps between"),
                                    MXA_DTYPE_F32, s->batch, s->heads, s->q_len, s->dim);
    z->copy = cli_alloc(z->input_bytes, "a copy of the input");
    z->mean = cli_alloc((uint64_t)(matrices * s->dim) * sizeof(float), "the mean");
    if (z->x.data == NULL || z->wide.data == NULL || z->copy == NULL || z->mean == NULL)
        return false;
    for (int i = 0; i < 2; i++) {
        mxa_quant_default(&z->opts[i]);
        z->opts[i].fill_tail = z->opts[i].rotate = true;
        z->opts[i].mean = z->mean;
        z->opts[i].threads = z->threads;
        if (!alloc_packed(z->formats[i], &z->opts[i], z->x.shape, &z->packed[i]))
            return false;
    }
    return true;
}

static void close_quantizer(quantizer *z)
{
    free(z->x.data);
    free(z->wide.data);
    free(z->copy);
    free(z->mean);
    for (int i = 0; i < 2; i++) {
        free(z->packed[i].codes);
        free(z->packed[i].scales);
        free(z->packed[i].g);
    }
}

bool time_quantizer(const shape *s, int threads, shape_time times[QUANTIZE_VARIANTS])
{
    static const char *const names[QUANTIZE_VARIANTS] = { "fused", "unfused", "memcpy" };
    quantizer z;
    const timed_call calls[QUANTIZE_VARIANTS] = { { run_fused, &z },
                                                  { run_unfused, &z },
                                                  { run_memcpy, &z } };
    timing results[QUANTIZE_VARIANTS];
    const bool ok = open_quantizer(&z, s, threads) &&
                    timing_measure(calls, QUANTIZE_VARIANTS, LEAST_RUNS, MIN_SECONDS, results);
    for (int i = 0; i < QUANTIZE_VARIANTS && ok; i++)
        times[i] = (shape_time){ names[i], (double)z.input_bytes, results[i] };
    close_quantizer(&z);
    return ok;
}
