/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefill attention on Hopper: a CTA takes 128 queries (an absolute query tile) of one head after another and
 * walks over the key tiles of 128 that they see. High tiles are 16-bit products, low tiles 8-bit ones, P V is
 * 16-bit. Warps of the first group load, two consumer groups multiply 64 queries each
 * (prefill_consumer_sm90.cuh). docs/kernels_sm90.md has the cycle budget, the shared-memory plan and what was
 * tried.
 */
#ifndef MXA_CUDA_PREFILL_SM90_CUH
#define MXA_CUDA_PREFILL_SM90_CUH

#include "cuda/sm90/prefill_consumer_sm90.cuh"
#include "cuda/sm90/prefill_kernels_sm90.h"
#include "cuda/sm90/prefill_load_sm90.cuh"

namespace mxa
{

template <class T>
__global__ void __launch_bounds__(prefill_threads, 1) prefill_sm90(const __grid_constant__ PrefillParams p)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    auto &s = *reinterpret_cast<PrefillSmem<T> *>(smem_bytes);
    if (threadIdx.x == 0)
        init_barriers(s);
    else if (threadIdx.x % 32 == 0)
        prefetch_maps<T>(p, threadIdx.x / 32);
    __syncthreads();
    release_kernels_behind();
    if (threadIdx.x < 128) {
        registers_lower<producer_registers>();
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (warp == 0)
            produce_k(p, s, lane);
        else if (warp == 1)
            produce_v(p, s, lane);
        else if (warp == 2)
            produce_q<T, true>(p, s, lane);
        else if (T::has_low)
            produce_q<T, false>(p, s, lane);
        else
            produce_nothing(s);
    } else {
        registers_raise<consumer_registers>();
        Consumer<T>(p, s).run();
    }
}

/* Its entry in a list of kernels. */
template <class T>
PrefillKernel prefill_kernel()
{
    static_assert(sizeof(PrefillSmem<T>) <= smem_limit, "shared memory of an SM");
    return { T::dim,
             T::dim_v,
             T::low,
             T::factor,
             T::high,
             T::pv,
             T::capped,
             T::keys,
             sizeof(PrefillSmem<T>),
             reinterpret_cast<const void *>(prefill_sm90<T>) };
}

} // namespace mxa

#endif
