/* SPDX-License-Identifier: Apache-2.0 */
/* Random attention calls on the first CUDA device, through libmxattn_cuda.so as programs load it. */
#ifndef ATTENTION_RUN_CUDA_H
#define ATTENTION_RUN_CUDA_H

#include "attention_problem.h"
#include "cuda/backend.h"

/* False if there is no device; the sentence is mxa_error_text(). */
bool cuda_open(void);

/* Entry i of the backend's list with its errors; without functions. False past the end. */
bool cuda_entry_at(int i, mxa_attention_impl *impl);

/* Does the entry run the problem? */
bool cuda_runs(const attention_problem *a, const mxa_attention_impl *impl);

/*
 * As attention_run, on the device. An output of 16 bits is widened. Nothing around the outputs and the
 * workspace may be written.
 */
attention_result cuda_run(const attention_problem *a, const mxa_attention_impl *impl);

#endif
