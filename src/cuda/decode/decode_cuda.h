/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of new queries to a KV cache in a device's memory: the contract of its kernels, their ordered
 * list, and the call.
 *
 * What is computed is mxa_kv_attend's (attn/kv_view.h, docs/numerics.md section 8). Lengths, counts and page
 * tables are read on the device, so that a captured graph replays with other lengths up to max_length.
 */
#ifndef MXA_CUDA_DECODE_CUDA_H
#define MXA_CUDA_DECODE_CUDA_H

#include "cuda/decode/kv_layout_cuda.h"
#include "cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of counters, which calls on one stream share. */
enum { MXA_DECODE_COUNTER_BYTES = 1 << 16 };

/* One call: everything is checked. Host memory but for what the pointers inside say. */
typedef struct mxa_decode_job {
    const mxa_cuda_device *device;
    const mxa_kv_layout *layout;
    const mxa_recipe *recipe;
    const mxa_copy_plan *q_copies; /* [MXA_COPIES] */

    /* Device memory from here on. */
    mxa_tensor q, out;                  /* [batch][heads][n][dim], any strides and types */
    const uint64_t *tables[MXA_COPIES]; /* [batch][table_pages] addresses of pages; 0: none */
    int64_t table_pages;                /* of a table */
    const int64_t *lengths;             /* [batch], the new tokens included */
    const int64_t *counts;              /* [batch] queries of each sequence, or NULL: n */
    const float *mean;                  /* [batch][heads_kv][head_dim] of smooth-K, or NULL */
    float *lse;                         /* [batch][heads][n], or NULL */
    const float *sinks;                 /* [heads], or NULL */
    uint32_t *counters; /* MXA_DECODE_COUNTER_BYTES, zero before the first call and after each */
    void *work;         /* mxa_decode_work_bytes, 128-byte aligned, not cleared */

    int64_t max_length; /* no length is above it */
    float softmax_scale, softcap;
    int64_t window_left; /* 0..MXA_FAR */
} mxa_decode_job;

typedef struct mxa_cuda_decode_impl {
    const char *name;
    int arch;        /* 10 * major + minor that it needs at least */
    bool arch_exact; /* that one only: code for sm_90a runs nowhere else */

    /*
     * Why it does not run a job, a sentence's end such as "has no softcap"; NULL if it does. Reads no
     * pointer.
     */
    const char *(*refuses)(const mxa_decode_job *job);

    /* 0 if they do not fit 63 bits. Reads no device pointer; shapes of q and out count. */
    int64_t (*work_bytes)(const mxa_decode_job *job);

    /* Queue the kernels. Nothing is allocated, nothing waited for: the stream may be capturing a graph. */
    mxa_status (*run)(const mxa_decode_job *job, cudaStream_t stream);
} mxa_cuda_decode_impl;

/* Fastest first; the last runs every job. Terminated by an entry without name. */
extern const mxa_cuda_decode_impl mxa_cuda_decode_impls[];

/* The first entry that runs the job. */
const mxa_cuda_decode_impl *mxa_cuda_decode_pick(const mxa_decode_job *job);

/*
 * Whatever entry takes the job, and others like it with fewer queries or a smaller max_length. 0 if they do
 * not fit 63 bits.
 */
int64_t mxa_decode_work_bytes(const mxa_decode_job *job);

/* Rows past a sequence's count are zero, their LSE -inf. The job's device is current. */
mxa_status mxa_decode(const mxa_decode_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
