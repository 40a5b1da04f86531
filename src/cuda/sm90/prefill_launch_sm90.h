/* SPDX-License-Identifier: Apache-2.0 */
/* How the prefill kernel and what redoes its rows are launched. */
#ifndef MXA_CUDA_PREFILL_LAUNCH_SM90_H
#define MXA_CUDA_PREFILL_LAUNCH_SM90_H

#include "cuda/device_cuda.h"
#include "cuda/sm90/prefill_kernels_sm90.h"

namespace mxa
{

/* Rows that TMA reads: dim elements each, strides in bytes. */
struct PrefillTensor {
    const void *data;
    int element_bytes;
    int64_t dim, length, heads, batch;
    int64_t stride_s, stride_h, stride_b;
};

/* A copy: rows numbered as mxa_sequence says. */
PrefillTensor prefill_rows(const void *data, int element_bytes, int64_t dim, int64_t rows, int64_t row_bytes);

/* Why TMA cannot read it, NULL if it can. */
const char *prefill_unsuited(const PrefillTensor &t);

/* Boxes of 128 bytes by box_rows; what lies outside the tensor arrives as zeros. */
CUresult prefill_map(CUtensorMap *map, const PrefillTensor &t, int box_rows);

/* Query heads whose K and V the L2 cache holds together; divides heads. */
int prefill_heads_in_group(int64_t heads, int64_t heads_kv, int64_t kv_bytes_of_head, int64_t l2_bytes);

/* Shared memory for the kernel, once a device. */
cudaError_t prefill_prepare(const PrefillKernel &kernel);

cudaError_t prefill_launch(const PrefillKernel &kernel, const PrefillParams &p, int multiprocessors,
                           cudaStream_t stream);

} // namespace mxa

#endif
