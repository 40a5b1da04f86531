/* SPDX-License-Identifier: Apache-2.0 */
/* What the backend keeps with a plan: the entries chosen, and what lies where in the workspace. */
#ifndef MXA_CUDA_ATTENTION_PLAN_CUDA_H
#define MXA_CUDA_ATTENTION_PLAN_CUDA_H

#include "cuda/attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "core/tensor.h"

/* One operand's place in the workspace. Offsets in bytes, each part 128-byte aligned; absent parts are -1. */
typedef struct mxa_cuda_place {
    mxa_cuda_form form;
    mxa_level g_level;
    int64_t codes, scales, g, nonfinite_tiles;
    int64_t row_bytes, scale_cols;
} mxa_cuda_place;

/* An entry, its operands and its workspace. */
typedef struct mxa_cuda_choice {
    const mxa_cuda_attention_impl *impl;
    bool copies; /* of what impl would read from the tensors: rows of 16-byte vectors */
    void *table; /* of the entry, in device memory, or NULL */
    mxa_cuda_place q[MXA_COPIES], k[MXA_COPIES], v;
    int64_t mean;              /* [sequences][heads_kv][head_dim] fp32 */
    int64_t bias;              /* [q rows] fp32 */
    int64_t zeros, zero_bytes; /* cleared when a call begins: the job's counters, then nonfinite_tiles */
    int64_t work;              /* of the quantiser, then of the entry */
    int64_t total;
} mxa_cuda_choice;

/* Later choices take the tensors that the first cannot take as they lie in memory, the last one any. */
enum { MXA_CUDA_CHOICES = 3 };

typedef struct mxa_cuda_plan {
    mxa_cuda_device device;
    void *tables; /* device memory that holds the next two and the entries' tables */
    const mxa_sequence *sequences;
    const mxa_query_tile *tiles;
    int n_choices;
    mxa_cuda_choice choices[MXA_CUDA_CHOICES];
} mxa_cuda_plan;

/*
 * Choose, lay out and upload; fills in plan->work_bytes, backend and backend_free. only: the name of the
 * entry to take, or NULL.
 */
mxa_status mxa_cuda_attention_plan(mxa_plan *plan, const char *only);

void mxa_cuda_attention_describe(const mxa_plan *plan, mxa_text *out);

enum { MXA_CUDA_REFUSAL_BYTES = 160 };

/* Why an entry does not run a plan on a device, NULL if it does; text has room for the answer. */
const char *mxa_cuda_attention_refusal(const mxa_cuda_attention_impl *impl, const mxa_plan *plan,
                                       const mxa_cuda_device *device, char text[MXA_CUDA_REFUSAL_BYTES]);

/* The forms of the entry, with copies for tensors where the choice has them. */
mxa_cuda_forms mxa_cuda_choice_forms(const mxa_plan *plan, const mxa_cuda_choice *choice);

/* Place the operands and the scratch of choice->impl. False if the sizes do not fit 63 bits. */
bool mxa_cuda_layout(const mxa_plan *plan, const mxa_cuda_device *device, mxa_cuda_choice *choice);

/* Q, K or V of a plan as the quantiser takes them. x NULL: only the shape counts. */
typedef enum mxa_cuda_which { MXA_CUDA_Q, MXA_CUDA_K, MXA_CUDA_V } mxa_cuda_which;
mxa_cuda_rows mxa_cuda_plan_rows(const mxa_plan *plan, mxa_cuda_which which, const mxa_tensor *x);

/*
 * The copies that a choice makes of Q, K or V in a workspace (NULL: sizes only); returns how many. g: given
 * factors; mean: what K's copies subtract.
 */
int mxa_cuda_plan_copies(const mxa_plan *plan, const mxa_cuda_choice *choice, mxa_cuda_which which,
                         char *work, const float *g, const float *mean, mxa_cuda_copy copies[MXA_COPIES]);

/* Queue a call whose arguments are checked as far as they can be without CUDA. */
mxa_status mxa_cuda_attention(const mxa_plan *plan, const mxa_attention_args *args);

/* Rows [first, q_len) of all heads: out = 0, lse = the head's sink (sinks NULL: -inf). */
mxa_status mxa_cuda_fill_rows(const mxa_tensor *out, float *lse, const float *sinks, int64_t first,
                              cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
