/* SPDX-License-Identifier: Apache-2.0 */
/* One wrapper for each PTX instruction of sm_80 and later that CUDA C++ has no name for. */
#ifndef MXA_CUDA_PTX_COMMON_CUH
#define MXA_CUDA_PTX_COMMON_CUH

#include <stdint.h>

namespace mxa
{

/* max(a, |b|), NaN if one is NaN: fmaxf loses it. */
__device__ __forceinline__ float max_magnitude(float a, float b)
{
    float r;
    asm("{\n"
        ".reg .f32 m;\n"
        "abs.f32 m, %2;\n"
        "max.NaN.f32 %0, %1, m;\n"
        "}"
        : "=f"(r)
        : "f"(a), "f"(b));
    return r;
}

/* 1 / x within 2^-22 of it, for normal results; on the host rounded. */
__host__ __device__ __forceinline__ float reciprocal(float x)
{
#ifdef __CUDA_ARCH__
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#else
    return 1.0f / x;
#endif
}

} // namespace mxa

#endif
