/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where in the workspace of an attention call, and the step that fills it. */
#ifndef MXA_CPU_ATTENTION_WORK_H
#define MXA_CPU_ATTENTION_WORK_H

#include "cpu/attention_cpu.h"

/* Offsets and sizes in bytes, each part 64-byte aligned; absent parts have offset -1. */
typedef struct mxa_copy_work {
    int64_t codes, scales, g;
    int64_t row_bytes, scale_cols, n_factors;
} mxa_copy_work;

typedef struct mxa_attention_work {
    int64_t mean; /* [sequences][heads_kv][head_dim] fp32 */
    int64_t bias; /* [q rows] fp32 */
    mxa_copy_work q[MXA_COPIES], k[MXA_COPIES];
    int64_t shared;  /* of the kernel: a part for each key tile */
    int64_t scratch; /* of the quantiser, then of the kernel: [threads][thread_bytes] */
    int64_t thread_bytes;
    int64_t total;
} mxa_attention_work;

/* Threads that compute items: no more than there are items. */
static inline int mxa_item_threads(const mxa_plan *plan)
{
    const int64_t items = mxa_max(plan->n_tiles * plan->head_items, 1);
    return items < plan->threads ? (int)items : plan->threads;
}

/* False if the sizes do not fit 63 bits. */
bool mxa_attention_layout(const mxa_plan *plan, mxa_attention_work *work);

/* Mean, bias and the copies of Q and K. job gets what kernels read. */
void mxa_attention_prepare(const mxa_plan *plan, const mxa_attention_args *args,
                           const mxa_attention_work *work, mxa_attention_job *job);

#endif
