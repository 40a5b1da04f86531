/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of a chain (mxa_cuda_chain) on the device, and their launch. The first one is launched in the order
 * of the stream; the others may begin while the one in front still runs, whose memory they see after
 * await_kernels_before. What was there before the chain they see at once.
 */
#ifndef MXA_CUDA_CHAIN_CUDA_CUH
#define MXA_CUDA_CHAIN_CUDA_CUH

#include "cuda/quantize_cuda.h"

namespace mxa
{

__device__ __forceinline__ void await_kernels_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel behind may begin once all blocks have said this. */
__device__ __forceinline__ void release_kernels_behind()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Before anything is read that the chain writes. awaits: the kernel in front writes some of it. */
__device__ __forceinline__ void begin_link(bool awaits)
{
    if (awaits)
        await_kernels_before();
    release_kernels_behind();
}

/* A kernel ends after all those before it, so the next one need not await them. */
__device__ __forceinline__ void end_link()
{
    await_kernels_before();
}

/* Whether the kernel that is launched next reads what the one in front of it may still be writing. */
inline bool next_awaits(const mxa_cuda_chain *chain)
{
    return chain->open && chain->read_next;
}

/* For work of other kinds: the kernel behind it begins in the order of the stream. */
inline cudaStream_t in_order(mxa_cuda_chain *chain)
{
    chain->open = false;
    return chain->stream;
}

/* kernel has begin_link and end_link. read_next: the next kernel reads what this one writes. */
template <class Params, class... More>
cudaError_t launch_link(mxa_cuda_chain *chain, bool read_next, void (*kernel)(Params, More...), dim3 grid,
                        int threads, size_t smem_bytes, const Params &params, More... more)
{
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = smem_bytes;
    config.stream = chain->stream;
    config.attrs = &early;
    config.numAttrs = chain->open;
    chain->open = chain->may_overlap;
    chain->read_next = read_next;
    return cudaLaunchKernelEx(&config, kernel, params, more...);
}

} // namespace mxa

#endif
