/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the prefill kernel. */
#ifndef MXA_CUDA_PREFILL_PARAMS_SM90_H
#define MXA_CUDA_PREFILL_PARAMS_SM90_H

#include <cuda.h>
#include <stdint.h>

namespace mxa
{

struct PrefillParams {
    /* (dim, seq, head, batch); 128-byte swizzle; boxes of 128 bytes by 64 rows (Q) or 128 rows (K, V) */
    CUtensorMap q_high, k_high, q_low, k_low, v;
    const float *gq;        /* [batch][heads][q_len]; not read by the raw form */
    const float *gk;        /* [batch][heads_kv][k_tiles], one factor a key tile; not read by the raw form */
    const float *bias_log2; /* [batch][heads][q_len] added to low logits in base 2 (smooth-K), or NULL */
    void *out;              /* 16-bit, dim contiguous; strides in elements */
    int64_t out_stride_b, out_stride_h, out_stride_s;
    float *lse;       /* [batch][heads][q_len], or NULL */
    int *next_item;   /* 0 at the start */
    float scale_log2; /* softmax_scale * log2 e */
    int heads, heads_kv, heads_per_kv, q_len, kv_len, q_offset;
    int window_left, window_right; /* -1: unlimited */
    int diag_window, sink_window;  /* 0 for the kernel without low tiles */
    int far;                       /* farther than any distance */
    int heads_in_group;            /* heads whose K and V fit the L2 cache; divides batch * heads */
    int q_tile_first, q_tiles, k_tiles;
    int items; /* batch * heads * q_tiles */
};

} // namespace mxa

#endif
