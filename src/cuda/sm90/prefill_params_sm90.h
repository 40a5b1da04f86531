/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the prefill kernel. */
#ifndef MXA_CUDA_PREFILL_PARAMS_SM90_H
#define MXA_CUDA_PREFILL_PARAMS_SM90_H

#include <cuda.h>
#include <stdint.h>

#include "cuda/ref/attention_ref_cuda.h"

namespace mxa
{

/* mxa_sequence in the integers that a GPU counts in. */
struct PrefillSequence {
    int q_len, kv_len, q_offset;
    int batch, q_first, k_first;            /* in tensors */
    int q_rows, k_rows, q_blocks, k_blocks; /* in copies */
};

struct PrefillParams {
    /* (dim, seq, head, batch); 128-byte swizzle; boxes of 128 bytes by 64 rows (Q) or a step's keys (K, V) */
    CUtensorMap q_high, k_high, q_low, k_low, v;
    /* These hold rows as mxa_sequence numbers them, (dim, row, 0, 0); low ones always do. */
    bool q_high_rows, k_high_rows, v_rows;
    const float *gq; /* [q rows], or NULL: 1 */
    const float *gk; /* [k blocks] or, with a factor a key, [k rows], or NULL: 1 */
    const uint8_t *q_nonfinite,
        *k_nonfinite;   /* [blocks] of low copies that hold NaN without a code, or NULL */
    const float *bias;  /* [q rows] added to low logits (smooth-K), or NULL */
    bool bias_in_high;  /* and to high ones */
    const float *sinks; /* [heads], or NULL */
    void *out;          /* dim contiguous, pairs aligned; strides in elements */
    int64_t out_stride_b, out_stride_h, out_stride_s;
    bool out_is_float;  /* else of the type of P V, */
    bool out_is_blocks; /* in aligned blocks of 8 columns */
    int dim_v;          /* columns of out */
    float *lse;         /* [tensor batch][heads][tensor q_len], or NULL */
    int tensor_q_len;
    int *next_item;     /* 0 at the start */
    int *redo_count;    /* 0 at the start */
    mxa_cuda_row *redo; /* rows whose result is to be computed again, unordered */
    int *careful_next;  /* [items][consumer_warps] links of the lists of items that CTAs do again */
    float scale_log2;   /* softmax_scale * log2 e */
    float cap_log2;     /* softcap * log2 e; 0: none */
    float cap_rate;     /* 2 / softcap: 2^(cap_rate * logit in base 2) = e^(2 logit / softcap) */
    int heads, heads_kv, heads_per_kv;
    int window_left, window_right; /* -1: unlimited */
    int diag_window, sink_window;  /* 0 for the kernel without low tiles */
    int far;                       /* farther than any distance */
    int items;                     /* query tiles of all heads */

    /* Sequences of equal lengths: */
    PrefillSequence first; /* that of batch 0 */
    int heads_in_group;    /* heads whose K and V fit the L2 cache; divides batch * heads */
    int q_tile_first, q_tiles;
    /* Of any lengths, packed: device memory, NULL otherwise */
    const mxa_sequence *sequences;
    const mxa_query_tile *tiles; /* longest first */
};

} // namespace mxa

#endif
