/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on CUDA: the contract of its kernels, their ordered list, and the driver. Fastest first; a plan
 * takes the first entry that runs it. A call whose tensors that entry cannot take as they lie in memory goes
 * to the next that runs it and takes any; if rows of this length are never such that it can take them, to
 * itself with copies of Q, K and V.
 */
#ifndef MXA_CUDA_ATTENTION_CUDA_H
#define MXA_CUDA_ATTENTION_CUDA_H

#include "cuda/quantize_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "core/text.h"

/* How an entry wants its operands. V: TENSOR, or BF16 or F16, then the type in which P meets it. */
typedef struct mxa_cuda_forms {
    mxa_cuda_form q[MXA_COPIES], k[MXA_COPIES], v;
    mxa_level q_factors[MXA_COPIES],
        k_factors[MXA_COPIES]; /* g_written of each copy; DEFAULT: its own level */
    bool nonfinite_tiles;      /* of each copy: which 128 rows hold NaN or Inf */
} mxa_cuda_forms;

/* One operand of a call. Rows are numbered as mxa_sequence says, but for TENSOR. */
typedef struct mxa_cuda_operand {
    mxa_cuda_form form;
    mxa_tensor x;    /* TENSOR: the caller's */
    uint8_t *codes;  /* [rows][row_bytes] in other forms; 128-byte aligned, row_bytes a multiple of 16 */
    uint8_t *scales; /* CODES of block formats: [rows][scale_cols] */
    float *g;        /* at g_level: [1], [sequences * heads], [blocks] or [rows]; NULL: 1 */
    uint8_t *nonfinite_tiles; /* [blocks], or NULL */
    int64_t row_bytes, scale_cols;
    mxa_level g_level; /* as written; NONE: g is NULL */
} mxa_cuda_operand;

enum { MXA_CUDA_COUNTER_BYTES = 128 };

/* One attention call: everything is checked, operands are queued on the stream. */
typedef struct mxa_cuda_job {
    const mxa_plan *plan; /* host memory */
    const mxa_cuda_device *device;
    mxa_cuda_operand q[MXA_COPIES], k[MXA_COPIES], v; /* absent copies are all zero */
    mxa_tensor out;
    const float *bias;             /* [q rows] b_i of smooth-K, natural units; NULL: none */
    float *lse;                    /* [tensor batch][heads][q_len], or NULL */
    const float *sinks;            /* [heads], or NULL */
    const mxa_sequence *sequences; /* device memory: plan->sequences */
    const mxa_query_tile *tiles;   /* device memory: plan->tiles */
    const void *table;             /* device memory: what the entry's table function wrote, or NULL */
    int *counters;                 /* device memory: MXA_CUDA_COUNTER_BYTES of zeros */
    void *work;                    /* device memory: the entry's work_bytes, 128-byte aligned, not cleared */
} mxa_cuda_job;

/*
 * An entry. Rows past plan->q_used are the driver's; every other row of out, and of lse, is the entry's, also
 * rows and sequences without keys.
 */
typedef struct mxa_cuda_attention_impl {
    const char *name;
    int arch;        /* 10 * major + minor that it needs at least */
    bool arch_exact; /* that one only: code for sm_90a runs nowhere else */

    /* Why no device runs a plan by it, a sentence's end such as "has no softcap"; NULL if it does. */
    const char *(*refuses)(const mxa_plan *plan);

    mxa_cuda_forms (*forms)(const mxa_plan *plan);

    /* Why it cannot take the tensors of a call as they lie in memory; NULL if it can. NULL: it takes any. */
    const char *(*unsuited)(const mxa_cuda_job *job);

    int64_t (*work_bytes)(const mxa_plan *plan, const mxa_cuda_device *device);

    /*
     * A table of the entry's own, made once with the plan: its size (0: none), and its contents in host
     * memory, which are then uploaded. NULL, NULL: none.
     */
    int64_t (*table_bytes)(const mxa_plan *plan, const mxa_cuda_device *device);
    void (*table)(const mxa_plan *plan, const mxa_cuda_device *device, void *out);

    /* Once for each plan, with the device current: attributes of kernels. NULL: nothing to do. */
    mxa_status (*prepare)(const mxa_plan *plan, const mxa_cuda_device *device);

    /*
     * Queue the kernels. Nothing is allocated, nothing waited for: the stream may be capturing a graph. A
     * first one that is launched early (programmatic dependent launch) sees the caller's tensors at once, all
     * else of the job after griddepcontrol.wait.
     */
    mxa_status (*run)(const mxa_cuda_job *job, cudaStream_t stream);

    double sum_eps;  /* relative error of one addition in sums of products */
    double exp2_eps; /* relative error of 2^x */
    bool rounds_p;   /* P is rounded to the P V type */
} mxa_cuda_attention_impl;

/* Terminated by an entry without name. */
extern const mxa_cuda_attention_impl mxa_cuda_attention_impls[];

#ifdef __cplusplus
}
#endif

#endif
