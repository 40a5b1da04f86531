/* SPDX-License-Identifier: Apache-2.0 */
/* A KV cache in the memory of a device: what kernels read, and what they are asked for. */
#ifndef MXA_CUDA_KV_CUDA_H
#define MXA_CUDA_KV_CUDA_H

#include "cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "attn/kv_device.h"
#include "cuda/decode/kv_layout_cuda.h"

/* How K or V of one copy is coded: mxa_copy_plan without what only the host can read. */
typedef struct mxa_cuda_kv_part {
    mxa_format format; /* NONE: pages of this copy do not hold it */
    int element_bits, block;
    bool is_mx, rotate, smooth;
    mxa_element element;
    uint32_t threshold; /* of the block scale of MX formats */
    float divisor;      /* of factors */
} mxa_cuda_kv_part;

/* All arrays are device memory. */
typedef struct mxa_cuda_kv {
    int64_t batch;
    int heads_kv, page_tokens;
    mxa_cuda_kv_part part[MXA_COPIES][MXA_KV_OPERANDS];
    mxa_kv_tiles tiles;
    int64_t unread_end;
    bool makes_means;
    int64_t *lengths;    /* [batch] */
    unsigned *tickets;   /* [2][batch] blocks that have read the length, and stored rows; 0 between appends */
    float *mean;         /* [batch][heads_kv][head_dim], or NULL */
    uint32_t *counters;  /* of mxa_decode */
    int64_t *counts;     /* [batch] of an attend that has its own */
    int64_t table_pages; /* room in each table */
    uint64_t *tables[MXA_COPIES]; /* [batch][table_pages] addresses of pages; 0: none */
} mxa_cuda_kv;

/* Changes that go to the device together, as arguments of a kernel: nothing is read after the launch. */
enum { MXA_CUDA_KV_CHANGES = 128 };
typedef struct mxa_cuda_kv_letter {
    int n;
    int64_t *where[MXA_CUDA_KV_CHANGES];
    int64_t value[MXA_CUDA_KV_CHANGES];
} mxa_cuda_kv_letter;

/* Some sequences of an append. */
enum { MXA_CUDA_KV_SEQUENCES = 128 };
typedef struct mxa_cuda_kv_append {
    mxa_cuda_kv kv;
    mxa_tensor k, v;
    int64_t first;           /* of the sequences */
    int n_sequences;         /* at most MXA_CUDA_KV_SEQUENCES */
    int spans;               /* pages that the tokens of a sequence lie in, at most */
    bool copies[MXA_COPIES]; /* whose rows are stored */
    bool means;              /* of sequences that reach MXA_TILE tokens: the high rows are stored by then */
    bool lengths;            /* grow */
    bool early;              /* may begin while the kernel before still runs: sm_90 and later */
    int64_t counts[MXA_CUDA_KV_SEQUENCES];
} mxa_cuda_kv_append;

/* The queries of an attend in slices of each: what lengths and counts the sequences of a slice have. */
typedef struct mxa_cuda_kv_slices {
    int64_t batch, n, each;
    const int64_t *lengths, *counts;       /* [batch]; counts NULL: n */
    int64_t *slice_lengths, *slice_counts; /* [slices][batch] */
} mxa_cuda_kv_slices;

/* Of sequence b in a slice. */
MXA_HD static inline void mxa_cuda_kv_cut_one(const mxa_cuda_kv_slices *s, int64_t slice, int64_t b)
{
    const int64_t count = s->counts ? mxa_min(s->counts[b], s->n) : s->n, first = slice * s->each;
    const int64_t end = mxa_min(first + s->each, count);
    s->slice_lengths[slice * s->batch + b] = s->lengths[b] - count + end;
    s->slice_counts[slice * s->batch + b] = mxa_max(end - first, 0);
}

/* These only queue kernels. */
mxa_status mxa_cuda_kv_send(const mxa_cuda_kv_letter *letter, cudaStream_t stream);
mxa_status mxa_cuda_kv_store(const mxa_cuda_kv_append *append, cudaStream_t stream);
mxa_status mxa_cuda_kv_cut(const mxa_cuda_kv_slices *slices, cudaStream_t stream);
mxa_status mxa_cuda_kv_means(const mxa_cuda_kv *kv, cudaStream_t stream);

struct mxa_kv_device {
    mxa_cuda_device device;
    const mxa_kv_layout *layout;
    const mxa_recipe *recipe;
    const mxa_copy_plan *q;
    cudaStream_t stream;
    bool captured;        /* a graph reads the tables where they are */
    void *state, *tables; /* device memory that holds kv's arrays */
    uint8_t *host_page;   /* room for a page of either kind, in the order of a device */
    mxa_cuda_kv kv;
};

/* Whether the cache's stream records a graph; the device is current. */
mxa_status mxa_cuda_kv_capturing(mxa_kv_device *d, bool *capturing);

/* Of mxa_kv_device_ops. */
mxa_status mxa_cuda_kv_check_rows(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v);
mxa_status mxa_cuda_kv_append_rows(mxa_kv_device *d, const mxa_tensor *k, const mxa_tensor *v,
                                   const int64_t *counts);
size_t mxa_cuda_kv_work_bytes(const mxa_kv_device *d, int64_t heads, int64_t n, int64_t length);
mxa_status mxa_cuda_kv_attend(mxa_kv_device *d, const mxa_kv_device_call *call);

/* The backend's answers to a cache. */
extern const mxa_kv_device_ops mxa_cuda_kv_ops;

#ifdef __cplusplus
}
#endif

#endif
