/* SPDX-License-Identifier: Apache-2.0 */
/* A random attention call: ragged shapes, any strides, masks, packed sequences, every kind of recipe. */
#ifndef ATTENTION_PROBLEM_H
#define ATTENTION_PROBLEM_H

#include "check.h"
#include "cpu/attention_cpu.h"

enum { PROBLEM_SEQUENCES = 3 };

typedef struct attention_problem {
    mxa_problem p;
    mxa_recipe recipe;
    const char *recipe_text;
    mxa_tensor q, k, v;
    float *sinks, *mean; /* or NULL */
    int32_t cu_q[PROBLEM_SEQUENCES + 1], cu_k[PROBLEM_SEQUENCES + 1];
} attention_problem;

/* Results of one run; out is F32, [batch][heads][q_len][head_dim_v]. */
typedef struct attention_result {
    check_buf out, lse;
    mxa_tensor tensor;
} attention_result;

static inline const float *result_floats(check_buf buf)
{
    return (const float *)(const void *)buf.data;
}

void attention_problem_pick(attention_problem *a);

/* Causal, one sequence of bf16 with as many queries as keys. */
void attention_problem_prefill(attention_problem *a, const char *recipe, int64_t heads, int64_t heads_kv,
                               int64_t length, int64_t dim);

/* Every element of out and lse must be written, nothing around them. */
attention_result attention_run(const attention_problem *a, const mxa_attention_impl *impl, int threads);

/* Element access of tensors of any type. */
float tensor_get(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d);
void tensor_set(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, int64_t d, float value);

/* The same numbers in memory of their own. */
mxa_tensor tensor_copy(const mxa_tensor *x);

#endif
