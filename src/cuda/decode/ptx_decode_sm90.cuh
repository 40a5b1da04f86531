/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wrapper for each PTX instruction that decode kernels use beside those of sm90/ptx_sm90.cuh. A host test
 * includes its own instead.
 */
#ifndef MXA_CUDA_PTX_DECODE_SM90_CUH
#define MXA_CUDA_PTX_DECODE_SM90_CUH

#ifdef MXA_EMULATED_DECODE
#include MXA_EMULATED_DECODE
#else

#include "cuda/sm90/ptx_sm90.cuh"

namespace mxa
{

/* bytes, a multiple of 16, to shared memory; completes on the barrier. */
__device__ __forceinline__ void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

/* An 8 x 8 matrix of 16-bit elements, transposed across the warp. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* c[16][8] += a[16][16] * b[16][8], sums in fp32. */
__device__ __forceinline__ void multiply_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* c[16][8] += a[16][32] * b[32][8] of signed bytes, exact. */
__device__ __forceinline__ void multiply_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                            uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t multiply_pairs_f16(uint32_t x, uint32_t y)
{
    uint32_t z;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

__device__ __forceinline__ uint32_t subtract_pairs_f16(uint32_t x, uint32_t y)
{
    uint32_t z;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* Two E4M3 codes, the first in the low byte, to a pair of fp16. */
__device__ __forceinline__ uint32_t pair_of_e4m3(uint16_t codes)
{
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(codes));
    return r;
}

/* The other way, rounded to nearest even and saturated. */
__device__ __forceinline__ uint16_t e4m3_of_pair(float low, float high)
{
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
    return r;
}

/* What the block stored before is seen by whoever adds later, and what earlier ones stored is seen here. */
__device__ __forceinline__ uint32_t add_in_order(uint32_t *counter, uint32_t x)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(x)
                 : "memory");
    return before;
}

/* The largest of the warp's numbers. */
__device__ __forceinline__ uint32_t warp_max(uint32_t x)
{
    uint32_t r;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x));
    return r;
}

__device__ __forceinline__ uint32_t warp_min(uint32_t x)
{
    uint32_t r;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(x));
    return r;
}

} // namespace mxa

#endif
#endif
