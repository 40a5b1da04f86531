/* SPDX-License-Identifier: Apache-2.0 */
/* What the host hands to the kernels that quantise. */
#ifndef MXA_CUDA_QUANTIZE_PARAMS_H
#define MXA_CUDA_QUANTIZE_PARAMS_H

#include "cuda/common/chain_cuda.cuh"
#include "format/element.h"

namespace mxa
{

/* One copy: mxa_cuda_copy without what only the host can read. */
struct QuantCopy {
    mxa_format format;
    int element_bits, block; /* as in mxa_format_info */
    bool is_mx;
    mxa_element element;
    uint32_t threshold; /* of the block scale of MX formats */
    bool rounds_up;     /* that scale: no element of the block is above the largest code */
    unsigned nvfp4;
    mxa_cuda_form form;
    mxa_axis axis;
    mxa_layout layout;
    bool rotate;
    const float *mean;
    uint8_t *codes, *scales, *nonfinite_tiles;
    int64_t row_bytes, scale_cols;
    int64_t matrix_scale_bytes; /* of layouts other than ROW */

    mxa_level level;
    float divisor;       /* of computed factors */
    const float *g_read; /* factors at read_level; NULL: none (level NONE), or computed by the kernel */
    mxa_level read_level;
    bool read_by_tensor_row; /* TOKEN factors are numbered as the tensor's rows */
    float *g_write;          /* factors at write_level; NULL: not written */
    mxa_level write_level;
    unsigned long long *n_bad;
};

constexpr int max_copies = MXA_COPIES;

struct QuantParams {
    mxa_cuda_rows rows; /* n_blocks is that of all sequences and heads */
    bool sanitize;
    bool same_steps; /* both copies see the same prepared rows */
    int n;
    QuantCopy copies[max_copies];
    mxa_cuda_bias bias;
    bool awaits; /* what the kernel in front writes: begin_link */
};

/*
 * What a pass over the rows looks for before copy c is coded: in each region of its level, the bits of the
 * largest finite magnitude raise amax; or the first block that holds NaN or Inf lowers *first_bad.
 */
struct QuantScan {
    unsigned *amax; /* NULL: first_bad */
    unsigned *first_bad;
};

/* The kernels below are queued; the caller asks CUDA whether scans were launched. n_blocks is not 0. */

/* Aligned rows of 16 n channels, 256 at most, and copies that quantize_codes.cuh has a code for. */
bool pieces_fit(const QuantParams &p);
/* Some of those: quantize_hot.cu lists them. */
bool hot_fits(const QuantParams &p);
cudaError_t quantize_hot(const QuantParams &p, mxa_cuda_chain *chain);
cudaError_t quantize_by_pieces(const QuantParams &p, mxa_cuda_chain *chain);
void scan_by_pieces(const QuantParams &p, const QuantScan &scan, int c, mxa_cuda_chain *chain);

/* Any rows and copies but those that this has a reason against, a sentence's end. Every factor is read. */
const char *any_refuses(const QuantParams &p);
void quantize_by_any(const QuantParams &p, int c, cudaStream_t stream);
void bias_by_any(const QuantParams &p, cudaStream_t stream);
void scan_by_any(const QuantParams &p, const QuantScan &scan, int c, cudaStream_t stream);

} // namespace mxa

#endif
