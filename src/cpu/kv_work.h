/* SPDX-License-Identifier: Apache-2.0 */
/* What lies where in the workspace of an attend, and the step that fills in the queries. */
#ifndef MXA_CPU_KV_WORK_H
#define MXA_CPU_KV_WORK_H

#include "cpu/kv_attend_cpu.h"

/* Offsets in bytes. */
typedef struct mxa_kv_work {
    int64_t codes[MXA_COPIES], scales[MXA_COPIES], g[MXA_COPIES];
    int64_t bias;
    int64_t o, max, sum; /* of segments: [segments][rows][channels], [segments][rows] */
    int64_t segments;
    int64_t scratch, thread_bytes;
    int64_t total;
    bool fits;
} mxa_kv_work;

static inline int64_t mxa_kv_segments(int64_t length)
{
    const int64_t keys = MXA_KV_SEGMENT_TILES * MXA_TILE;
    return (length + keys - 1) / keys;
}

/* Rows of sums of one unit in a thread's scratch, twice: a segment's, and those so far. */
static inline int64_t mxa_kv_sums_bytes(int64_t channels)
{
    return MXA_KV_ROWS * (channels + 2) * (int64_t)sizeof(float);
}

/* Threads that are asked for, or those of OpenMP. */
int mxa_kv_threads(int threads);

/* head_dim_v in whole MXA_KV_CHANNELS. */
int64_t mxa_kv_channels(const mxa_kv_view *view);

/* job has view, heads, n and channels. */
mxa_kv_work mxa_kv_work_plan(const mxa_kv_job *job, const mxa_copy_plan *q, int64_t batch, int64_t length,
                             int threads, const mxa_kv_impl *impl);

/* Both copies of the queries and their bias, into work. */
void mxa_kv_prepare(mxa_kv_job *job, const mxa_copy_plan *copies, const mxa_tensor *q, const mxa_kv_work *l,
                    char *work, int threads);

#endif
