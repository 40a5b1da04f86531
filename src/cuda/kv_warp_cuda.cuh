/* SPDX-License-Identifier: Apache-2.0 */
/* What the lanes of a warp tell each other, and what blocks do. A host test includes its own instead. */
#ifndef MXA_CUDA_KV_WARP_CUDA_CUH
#define MXA_CUDA_KV_WARP_CUDA_CUH

#ifdef MXA_EMULATED_WARP
#include MXA_EMULATED_WARP
#else

#include <stdint.h>

namespace mxa
{

constexpr int warp_width = 32;

__device__ __forceinline__ void warp_barrier()
{
    __syncwarp();
}

/* Of the lanes that share lane / width; width is a power of two. */
__device__ __forceinline__ uint32_t warp_largest(uint32_t x, int width)
{
    if (width == warp_width)
        return __reduce_max_sync(0xFFFFFFFFu, x);
    for (int s = 1; s < width; s *= 2)
        x = max(x, __shfl_xor_sync(0xFFFFFFFFu, x, s));
    return x;
}

/* The lane whose number differs in the bits of mask. */
template <class T>
__device__ __forceinline__ T warp_exchange(T x, int mask)
{
    return __shfl_xor_sync(0xFFFFFFFFu, x, mask);
}

/* What other blocks have written. */
template <class T>
__device__ __forceinline__ T load_fresh(const T *from)
{
    return __ldcg(from);
}

/* The number, from 0, of a block among those that draw. */
__device__ __forceinline__ unsigned draw_ticket(unsigned *tickets)
{
    return atomicAdd(tickets, 1u);
}

/* What was written before is seen by blocks that draw later, what they wrote by this one after it. */
__device__ __forceinline__ void order_memory()
{
    __threadfence();
}

} // namespace mxa

#endif

#endif
