/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on the CPU: the contract of its kernels, their ordered list, and the driver. Fastest first, the
 * reference last; a plan takes the first entry that runs it.
 */
#ifndef MXA_CPU_ATTENTION_CPU_H
#define MXA_CPU_ATTENTION_CPU_H

#include "attn/plan.h"
#include "core/tensor.h"
#include "core/text.h"
#include "cpu/kernels.h"

/* One copy of Q or K as it lies in the workspace, rows as mxa_sequence numbers them. */
typedef struct mxa_operand {
    const mxa_copy_plan *plan;
    const mxa_decode_impl *decode;
    const mxa_tensor *x; /* the copy itself where it is not stored */
    uint8_t *codes;      /* [rows][row_bytes] */
    uint8_t *scales;     /* [rows][scale_cols] */
    float *g;            /* by level: [1], [sequences * heads], [blocks] or [rows] */
    int64_t row_bytes, scale_cols;
} mxa_operand;

/* One attention call: everything is checked, Q and K are quantised. */
typedef struct mxa_attention_job {
    const mxa_plan *plan;
    mxa_operand q[MXA_COPIES], k[MXA_COPIES];
    const float *bias; /* [q rows] b_i of smooth-K, natural units; NULL: none */
    const mxa_tensor *v, *out;
    char *shared;       /* [k_blocks][the entry's shared_bytes] */
    float *lse;         /* [tensor batch][heads][q_len], or NULL */
    const float *sinks; /* [heads], or NULL */
} mxa_attention_job;

/*
 * Rows of one (sequence, head) of a copy: packed codes for kernels that multiply them as they are, or loaded
 * as fp32 by mxa_rows_load.
 */
typedef struct mxa_rows {
    const mxa_operand *operand;
    const uint8_t *codes, *scales; /* of row 0; NULL where the tensor is the copy */
    const float *g;                /* of row 0; NULL: 1 */
    int64_t batch, head, first;    /* of row 0 in the tensor */
} mxa_rows;

mxa_rows mxa_job_q(const mxa_attention_job *job, int copy, const mxa_sequence *s, int64_t h);
mxa_rows mxa_job_k(const mxa_attention_job *job, int copy, const mxa_sequence *s, int64_t h_kv);

/* Rows [first, first + n) as element * block scale, exactly; row r goes to out + r * stride. */
void mxa_rows_load(const mxa_rows *rows, int64_t first, int64_t n, float *out, int64_t stride);

/* A row of a tensor rounded to a type as docs/numerics.md, section 5, says, and widened again. */
void mxa_row_load_as(const mxa_tensor *x, int64_t b, int64_t h, int64_t i, mxa_dtype type, float *row);

/* Second-level factor of row i. */
float mxa_rows_factor(const mxa_rows *rows, int64_t i);

/* The bias of query row i of head h, 0 in tiles whose copy of K is not quantised. */
static inline float mxa_job_bias(const mxa_attention_job *job, int copy, const mxa_sequence *s, int64_t h,
                                 int64_t i)
{
    return job->plan->k[copy].smooth ? job->bias[s->q_rows + h * s->map.q_len + i] : 0.0f;
}

static inline int64_t mxa_job_kv_head(const mxa_attention_job *job, int64_t h)
{
    return h / (job->plan->problem.heads / job->plan->problem.heads_kv);
}

/* Where row i of head h has its LSE, or NULL. */
static inline float *mxa_job_lse(const mxa_attention_job *job, const mxa_sequence *s, int64_t h, int64_t i)
{
    const mxa_problem *p = &job->plan->problem;
    return job->lse ? job->lse + (s->batch * p->heads + h) * p->q_len + s->q_first + i : NULL;
}

/* Why an entry does not run a plan: a sentence's end such as "computes in float64", or NULL if it does. */
typedef const char *mxa_attention_refuses_fn(const mxa_plan *plan);

/* Bytes of 64-byte aligned scratch of a thread. */
typedef int64_t mxa_attention_scratch_fn(const mxa_plan *plan);

/*
 * What all items read of a key tile, in a layout of the entry's own: its bytes, and the step that writes it
 * once for all of them. Entries without lay tiles out in each item.
 */
typedef int64_t mxa_attention_shared_fn(const mxa_plan *plan);
typedef void mxa_attention_share_fn(const mxa_attention_job *job, const mxa_sequence *s, int64_t h_kv,
                                    int64_t k_tile, void *scratch);

/* Rows of an item at most: enough to pay for the decoding of a key tile, few enough for the L2 cache. */
enum { MXA_ITEM_ROWS = 3 * MXA_TILE };

/* Some query heads of one key/value head and one query tile: they share the reading of K and V. */
typedef struct mxa_attention_item {
    const mxa_sequence *s;
    int64_t tile;
    int64_t h, n_heads;
} mxa_attention_item;

/*
 * Compute an item: rows of out and, if wanted, lse. A row's bits depend on that row, the keys and the mask
 * alone, not on the other rows of the item. The tolerance is that of docs/numerics.md, section 12, with the
 * entry's eps.
 */
typedef void mxa_attention_run_fn(const mxa_attention_job *job, const mxa_attention_item *item,
                                  void *scratch);

typedef struct mxa_attention_impl {
    const char *name;
    uint32_t needs; /* MXA_CPU_... */
    mxa_attention_refuses_fn *refuses;
    mxa_attention_scratch_fn *scratch_bytes;
    mxa_attention_run_fn *run;
    double sum_eps;                        /* relative error of one addition in sums of products */
    double exp2_eps;                       /* relative error of 2^x */
    bool rounds_p;                         /* P is rounded to the P V type */
    mxa_attention_shared_fn *shared_bytes; /* or NULL, and so is share */
    mxa_attention_share_fn *share;
} mxa_attention_impl;

static inline int64_t mxa_shared_bytes(const mxa_plan *plan)
{
    return plan->impl->shared_bytes ? plan->impl->shared_bytes(plan) : 0;
}

/* The shared part of a key tile, as TOKEN_BLOCK factors of K are numbered. */
static inline char *mxa_job_shared(const mxa_attention_job *job, const mxa_sequence *s, int64_t h_kv,
                                   int64_t k_tile)
{
    const int64_t tiles = (s->map.kv_len + MXA_TILE - 1) / MXA_TILE;
    return job->shared + (s->k_blocks + h_kv * tiles + k_tile) * mxa_shared_bytes(job->plan);
}

/* Terminated by an entry without name. */
extern const mxa_attention_impl mxa_attention_impls[];

/*
 * Choose the kernels of a plan and its workspace. impl NULL: the first that runs it; else this entry, or
 * MXA_ERR_UNSUPPORTED with its reason.
 */
mxa_status mxa_cpu_plan(mxa_plan *plan, const mxa_attention_impl *impl);

/* Run a call whose arguments are checked. */
mxa_status mxa_cpu_attention(const mxa_plan *plan, const mxa_attention_args *args);

/* Units of second-level factors that a caller gives: of Q (false) or K. 0: no copy takes any. */
int64_t mxa_given_factors(const mxa_plan *plan, bool of_k, mxa_level *level);

/* Which kernel runs each part and why the faster ones do not, one line each. */
void mxa_cpu_describe(const mxa_plan *plan, mxa_text *out);

#endif
