/* SPDX-License-Identifier: Apache-2.0 */
/* A call's operands in host memory as the CUDA backend lays them out, made by the CPU's quantisers. */
#ifndef EMULATED_JOB_H
#define EMULATED_JOB_H

#include "cuda/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "attention_problem.h"
#include "attention_tolerance.h"

/*
 * The job of a plan of the problem, with out and lse of the result. Copies are in 16 bits with a factor for
 * each row, or the tensor itself where it has the copy's type. Freed with the round, but for the plan.
 */
mxa_plan *emulated_job(const attention_problem *a, attention_result *r, mxa_cuda_job *job);

/* A row that was left to the reference. */
void emulated_take_row(const attention_problem *a, const attention_result *reference, const mxa_sequence *s,
                       int64_t head, int64_t row, attention_result *r);

#ifdef __cplusplus
}
#endif

#endif
