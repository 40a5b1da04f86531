/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps before quantising, one at a time, on the CPU. Arguments are checked already, nothing is
 * allocated.
 */
#ifndef MXA_CPU_STEPS_CPU_H
#define MXA_CPU_STEPS_CPU_H

#include <mxattn/mxattn.h>

/* mean [batch][heads][dim] of the first n_tokens <= seq tokens: mxa_channel_mean. */
void mxa_mean_cpu(const mxa_tensor *x, int64_t n_tokens, int threads, float *mean);

/* out = x - mean (NULL: x), rotated if asked. out is F32 and may be x. */
void mxa_steps_cpu(const mxa_tensor *x, const float *mean, bool rotate, const mxa_tensor *out);

#endif
