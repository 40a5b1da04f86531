/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantiser of the CUDA backend: arguments are checked already, all pointers are device memory, work is
 * queued on a stream of the current device, nothing is allocated. The bytes are those of the CPU.
 */
#ifndef MXA_CUDA_QUANTIZE_CUDA_H
#define MXA_CUDA_QUANTIZE_CUDA_H

#include "cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "attn/plan.h"
#include "format/copy.h"

/* How a copy lies in memory for the kernel that reads it. */
typedef enum mxa_cuda_form {
    MXA_CUDA_TENSOR = 0, /* not at all: the tensor itself is read */
    MXA_CUDA_CODES = 1,  /* the format's codes, row scales and factors, as mxa_quantize writes them */
    MXA_CUDA_E5M2 = 2, /* element * block scale folded into E5M2 with one power of two, in g, for 128 rows */
    MXA_CUDA_E4M3 = 3, /* the same in E4M3 */
    MXA_CUDA_BF16 = 4, /* element * block scale in bf16, exactly; g apart */
    MXA_CUDA_F16 = 5,  /* the same in fp16 */
} mxa_cuda_form;

/* One copy to make. Only copy.out.codes, and what the form says, is written. */
typedef struct mxa_cuda_copy {
    mxa_copy copy;
    mxa_cuda_form form; /* not MXA_CUDA_TENSOR; other than CODES: AXIS_HEAD only */
    int64_t row_bytes;  /* from one row of codes to the next; what lies between is left alone */
    /*
     * How factors are written: copy.level, or a finer one that repeats them, TOKEN (one a row) or TOKEN_BLOCK
     * (one for 128 rows). Given factors are read at copy.level.
     */
    mxa_level g_written;
    bool tiles_are_zero; /* copy.out.nonfinite_tiles: else they are cleared here */
} mxa_cuda_copy;

/*
 * A tensor, or the sequences of an attention's Q or K.
 *
 * sequences is device memory. Then rows, blocks of 128 rows, scales and factors are numbered as mxa_sequence
 * says (q_rows and q_blocks, or of_k: k_rows and k_blocks), TOKEN_BLOCK and HEAD count inside each sequence,
 * means are [sequences][heads][dim], and given factors are those of the attention call: TOKEN [batch][heads]
 * [row of the tensor]. NULL: x is one tensor, batch and heads as it has them.
 */
typedef struct mxa_cuda_rows {
    mxa_tensor x;
    const mxa_sequence *sequences;
    int64_t n_sequences;
    int64_t n_rows, n_blocks; /* of all sequences and heads */
    bool of_k;
} mxa_cuda_rows;

/* bias[row] = softmax_scale * <row of Q as it comes, mean of its KV head>: of Q's pass. bias NULL: none. */
typedef struct mxa_cuda_bias {
    float *bias;       /* [rows] */
    const float *mean; /* [sequences][heads_kv][dim] */
    int64_t heads_per_kv;
    float softmax_scale;
    bool in_fp32; /* sums may be rounded to fp32: those of logits are no better */
} mxa_cuda_bias;

enum { MXA_CUDA_OVERLAP_ARCH = 90 };

/*
 * Kernels of one call, queued one after another. From sm_90 on each may begin before the one in front of it
 * ends (programmatic dependent launch) and ends after it. Starts as { .stream, .may_overlap }.
 */
typedef struct mxa_cuda_chain {
    cudaStream_t stream;
    bool may_overlap; /* the device is of MXA_CUDA_OVERLAP_ARCH or later */
    bool open;        /* the last kernel lets the next one begin early */
    bool read_next;   /* which reads what that one writes */
} mxa_cuda_chain;

/*
 * Make n copies (1 or 2) of x from one read of it; n = 0 with a bias: only that. n_bad: [n], or NULL.
 * out.nonfinite_tiles, where it is not NULL: [blocks]. MXA_NONFINITE_ERROR waits for a scan of the input.
 * work is device memory, 128-byte aligned, not cleared.
 */
mxa_status mxa_cuda_quantize(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                             const mxa_cuda_copy *copies, const mxa_cuda_bias *bias, int64_t *n_bad,
                             void *work, mxa_cuda_chain *chain);

/* 0 where every g_written is copy.level, unless the policy is MXA_NONFINITE_ERROR. Reads no pointer. */
int64_t mxa_cuda_quantize_work_bytes(const mxa_cuda_rows *rows, mxa_nonfinite policy, int n,
                                     const mxa_cuda_copy *copies);

/* Why a form cannot be made of a format, "mxint8 has no fold into E5M2"; NULL if it can. */
const char *mxa_cuda_form_refuses(const mxa_format_info *info, mxa_cuda_form form);

/* Bytes of a row of codes in a form. */
int64_t mxa_cuda_form_row_bytes(const mxa_format_info *info, mxa_cuda_form form, int64_t dim);

mxa_status mxa_cuda_dequantize(const mxa_copy *copy, const mxa_tensor *out, cudaStream_t stream);

/*
 * mean [sequences][heads][dim] over the first n_tokens keys of each sequence, or of x. clear_bytes of
 * clear, a multiple of 16, become 0 on the way.
 */
mxa_status mxa_cuda_channel_mean(const mxa_cuda_rows *rows, int64_t n_tokens, float *mean, void *clear,
                                 int64_t clear_bytes, mxa_cuda_chain *chain);

#ifdef __cplusplus
}
#endif

#endif
