/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps before quantising, one at a time, on the CPU. Arguments are checked already, nothing is
 * allocated.
 */
#ifndef MXA_CPU_STEPS_CPU_H
#define MXA_CPU_STEPS_CPU_H

#include "cpu/kernels.h"
#include "cpu/row_items.h"

/* mean [batch][heads][dim] of the first n_tokens <= seq tokens: mxa_channel_mean. */
void mxa_mean_cpu(const mxa_tensor *x, int64_t n_tokens, int threads, float *mean);

/* mean [dim] of a span's finite values, 0 where there is none: fp64 sums in token order, one division. */
void mxa_span_mean(const mxa_tensor *x, mxa_row_span s, float *mean);

/* out = x - mean (NULL: x), rotated if asked. out is F32 and may be x. */
void mxa_steps_cpu(const mxa_tensor *x, const float *mean, bool rotate, const mxa_tensor *out);

/*
 * The rows of a span as fp32 [rows][dim]: under SANITIZE without NaN and Inf, less their row of mean
 * [matrices][dim] (NULL: none), rotated if asked. amax as in mxa_prepare_rows_fn.
 */
void mxa_span_prepare(const mxa_tensor *x, mxa_row_span s, mxa_nonfinite policy, const float *mean,
                      bool rotate, float *rows, uint32_t *amax);

/* Rows [rows][cols] rotated in place. */
void mxa_rotate_rows(float *x, int64_t rows, int64_t cols);

/* Bits of the largest magnitude of prepared rows, and of the largest finite one. */
uint32_t mxa_prepared_amax(const mxa_prepared *x);
uint32_t mxa_prepared_finite_amax(const mxa_prepared *x);

/* The latter of row r. */
static inline uint32_t mxa_prepared_row_amax(const mxa_prepared *x, int64_t r)
{
    const mxa_prepared row = mxa_prepared_row(x, r);
    uint32_t amax = 0;
    for (int64_t b = 0; b < mxa_amax_count(row.cols); b++)
        amax = row.amax[b] > amax ? row.amax[b] : amax;
    return amax < MXA_F32_INF ? amax : mxa_prepared_finite_amax(&row);
}

#endif
