/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps before quantising, one at a time, on the CPU. Arguments are checked already, nothing is
 * allocated.
 */
#ifndef MXA_CPU_STEPS_CPU_H
#define MXA_CPU_STEPS_CPU_H

#include "cpu/row_items.h"

/* mean [batch][heads][dim] of the first n_tokens <= seq tokens: mxa_channel_mean. */
void mxa_mean_cpu(const mxa_tensor *x, int64_t n_tokens, int threads, float *mean);

/* mean [dim] of a span's finite values, 0 where there is none: fp64 sums in token order, one division. */
void mxa_span_mean(const mxa_tensor *x, mxa_row_span s, float *mean);

/* out = x - mean (NULL: x), rotated if asked. out is F32 and may be x. */
void mxa_steps_cpu(const mxa_tensor *x, const float *mean, bool rotate, const mxa_tensor *out);

/* The rows of a span as fp32 [rows][dim]; under SANITIZE without NaN and Inf. */
void mxa_span_load(const mxa_tensor *x, mxa_row_span s, mxa_nonfinite policy, float *rows);

/* mean [matrices][dim] subtracted (NULL: none), then rotated if asked; from and to may be the same. */
void mxa_span_steps(const float *mean, bool rotate, mxa_row_span s, int64_t dim, const float *from,
                    float *to);

/* Bits of the largest finite magnitude. */
uint32_t mxa_finite_amax_bits(const float *x, int64_t n);

#endif
