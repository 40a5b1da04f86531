/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the output that no key reaches. */
#include "cuda/attention_plan_cuda.h"

namespace
{

constexpr int threads = 256;

struct FillParams {
    mxa_tensor out;
    float *lse;
    const float *sinks;
    int64_t first, rows; /* of each (batch, head) */
};

/* A block for each row. Zero has the same bits in all types. */
__global__ void fill_rows(const FillParams p)
{
    for (int64_t i = blockIdx.x; i < p.out.shape[0] * p.out.shape[1] * p.rows; i += gridDim.x) {
        const int64_t matrix = i / p.rows, b = matrix / p.out.shape[1], h = matrix % p.out.shape[1];
        const int64_t row = p.first + i % p.rows;
        const int64_t bytes = p.out.shape[3] * mxa_dtype_bytes(p.out.dtype) / 2;
        auto *const out = static_cast<uint16_t *>(mxa_row(&p.out, b, h, row));
        for (int64_t d = threadIdx.x; d < bytes; d += threads)
            out[d] = 0;
        if (threadIdx.x == 0 && p.lse)
            p.lse[matrix * p.out.shape[2] + row] = p.sinks ? p.sinks[h] : -INFINITY;
    }
}

} // namespace

mxa_status mxa_cuda_fill_rows(const mxa_tensor *out, float *lse, const float *sinks, int64_t first,
                              cudaStream_t stream)
{
    constexpr int64_t most_blocks = 1 << 20;
    const FillParams p = { *out, lse, sinks, first, out->shape[2] - first };
    const int64_t blocks = mxa_min(out->shape[0] * out->shape[1] * p.rows, most_blocks);
    if (blocks <= 0)
        return MXA_OK;
    fill_rows<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p);
    return mxa_cuda_launched("fill_rows");
}
