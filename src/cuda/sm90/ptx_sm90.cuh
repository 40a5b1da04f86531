/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wrapper for each PTX instruction of sm_90a that the kernels use, but for the products of
 * wgmma_sm90.cuh. Inline assembly stands nowhere else.
 */
#ifndef MXA_CUDA_PTX_SM90_CUH
#define MXA_CUDA_PTX_SM90_CUH

#include <cuda.h>
#include <stdint.h>

namespace mxa
{

/* ---------------------------------------------------------------- shared memory and barriers */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Memory is read again after this, so that its values need no registers. */
__host__ __device__ inline void compiler_fence()
{
    asm volatile("" ::: "memory");
}

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_barrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool barrier_test(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* The same without waiting even a little. */
__device__ __forceinline__ bool barrier_look(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    while (!barrier_test(bar, parity)) {
    }
}

/* A barrier among the threads of one warpgroup or CTA half; id 0 is __syncthreads. */
__device__ __forceinline__ void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Counts these threads in without waiting. */
__device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int registers>
__device__ __forceinline__ void registers_raise()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void registers_lower()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/*
 * What this thread stored in shared memory is seen by products and bulk copies that a barrier orders after
 * it.
 */
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The kernel behind may begin once all CTAs have said this. */
__device__ __forceinline__ void release_kernels_behind()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the kernels that this one was launched behind are done and their memory is seen. */
__device__ __forceinline__ void await_kernels_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---------------------------------------------------------------- bulk tensor copies */

/* The descriptor is wanted soon. */
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* One box of a 4-dimensional tensor (dim, seq, head, batch) to shared memory; completes on the barrier. */
__device__ __forceinline__ void tensor_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int d, int s,
                                            int h, int b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(d), "r"(s), "r"(h), "r"(b)
                 : "memory");
}

/* ---------------------------------------------------------------- stores without a branch */

__device__ __forceinline__ void store_if(uint32_t *to, uint32_t x, bool condition)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %2, 0;\n"
                 "@p st.global.b32 [%0], %1;\n"
                 "}" ::"l"(to),
                 "r"(x), "r"(int(condition))
                 : "memory");
}

__device__ __forceinline__ void store_if(float *to, float x, float y, bool condition)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %3, 0;\n"
                 "@p st.global.v2.f32 [%0], {%1, %2};\n"
                 "}" ::"l"(to),
                 "f"(x), "f"(y), "r"(int(condition))
                 : "memory");
}

__device__ __forceinline__ void store_if(uint4 *to, const uint32_t (&x)[4], bool condition)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %5, 0;\n"
                 "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
                 "}" ::"l"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(int(condition))
                 : "memory");
}

/* ---------------------------------------------------------------- arithmetic */

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Both within 2^-22. */
__device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two fp32 rounded to a pair of bf16; lo lands in the low half. */
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

/* The same to fp16. */
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

/* 0 x + y for pairs: NaN in a half where x is Inf or NaN, or y is. */
__device__ __forceinline__ uint32_t zero_times_bf16(uint32_t x, uint32_t y)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0), "r"(y));
    return d;
}

__device__ __forceinline__ uint32_t zero_times_f16(uint32_t x, uint32_t y)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(0), "r"(y));
    return d;
}

/* A constant that the compiler sets at this place and not where it is needed next. */
template <uint32_t value>
__device__ __forceinline__ uint32_t constant_here()
{
    uint32_t r;
    asm volatile("mov.b32 %0, %1;" : "=r"(r) : "n"(value));
    return r;
}

} // namespace mxa

#endif
