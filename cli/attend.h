/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over an input file, on the device of its problem: one call with everything allocated, or all of
 * it in steps that a progress bar shows.
 */
#ifndef MXA_ATTEND_H
#define MXA_ATTEND_H

#include "attention_input.h"
#include "device_memory.h"

/* A plan with its workspace. On a CUDA device the arguments are copies there. */
typedef struct attend_call {
    const char *path;
    mxa_plan *plan;
    mxa_tensor q, k, v, out;
    mxa_attention_args args;
    device_memory memory;
    void *out_here; /* where attend_fetch brings the results */
    float *lse_here;
} attend_call;

/*
 * out [batch][heads][q_len][head_dim_v] of the type in the problem, lse [batch][heads][q_len] or NULL. False
 * after a message; attend_close may follow either way.
 */
bool attend_open(attend_call *call, const attention_input *input, const mxa_recipe *recipe,
                 mxa_dtype out_dtype, void *out, float *lse);
bool attend_run(attend_call *call);

/* Bring the results from a device to out and lse of attend_open; on the CPU they are there. */
bool attend_fetch(attend_call *call);

void attend_close(attend_call *call);

/* How many progress steps attend_all takes. */
int64_t attend_steps(const attention_input *input, const mxa_recipe *recipe);

/* Open, run, fetch and close, with the same result. */
bool attend_all(const attention_input *input, const mxa_recipe *recipe, mxa_dtype out_dtype, void *out,
                float *lse);

#endif
