/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels that quantise ask: a row's factor, who writes it, what stands for NaN and Inf. */
#ifndef MXA_CUDA_QUANTIZE_FACTOR_CUH
#define MXA_CUDA_QUANTIZE_FACTOR_CUH

#include "cuda/common/span_cuda.cuh"
#include "cuda/quantize_params.h"

namespace mxa
{

__device__ __forceinline__ int64_t read_index(const QuantCopy &c, const mxa_tensor &x, const Span &s, int row)
{
    if (c.read_by_tensor_row)
        return (s.b * x.shape[1] + s.h) * x.shape[2] + s.tensor_row + row;
    return factor_index(c.read_level, s, row);
}

/* The first row of each region writes its factor. */
__device__ __forceinline__ bool writes_factor(const QuantCopy &c, const Span &s, int row)
{
    switch (c.write_level) {
    case MXA_LEVEL_TOKEN: return true;
    case MXA_LEVEL_TOKEN_BLOCK: return (s.first + row) % MXA_TILE == 0;
    case MXA_LEVEL_HEAD: return s.first + row == 0;
    default: return s.row + row == 0;
    }
}

/* NaN to +0, Inf to the input type's largest finite value. */
MXA_HD inline float sanitized(float x, mxa_dtype dtype)
{
    const uint32_t bits = mxa_f32_bits(x), mag = bits & 0x7FFFFFFFu;
    const float largest = dtype == MXA_DTYPE_F32   ? mxa_f32_from_bits(MXA_F32_MAX)
                          : dtype == MXA_DTYPE_F16 ? 65504.0f
                                                   : mxa_f32_from_bits(0x7F7F0000u);
    return mag < MXA_F32_INF ? x : mag > MXA_F32_INF ? 0.0f : bits >> 31 ? -largest : largest;
}

} // namespace mxa

#endif
