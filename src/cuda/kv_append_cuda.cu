/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/common/chain_cuda.cuh"
#include "cuda/kv_append_cuda.cuh"

namespace mxa
{

namespace
{

template <int each>
__global__ void __launch_bounds__(kv_threads) kv_append(const __grid_constant__ mxa_cuda_kv_append a)
{
    __shared__ KvShared shared;
    await_kernels_before(); /* the rows may be theirs */
    release_kernels_behind();
    append_block<each>(a, blockIdx.x, shared);
}

using KvAppend = void(mxa_cuda_kv_append);

KvAppend *pick_append(const mxa_cuda_kv &kv)
{
    switch (kv_channels_of_lane(kv)) {
    case 2: return kv_append<2>;
    case 4: return kv_append<4>;
    case 8: return kv_append<8>;
    default: return kv_append<0>;
    }
}

__global__ void __launch_bounds__(MXA_CUDA_KV_CHANGES) kv_send(const __grid_constant__ mxa_cuda_kv_letter l)
{
    if (int(threadIdx.x) < l.n)
        *l.where[threadIdx.x] = l.value[threadIdx.x];
}

__global__ void __launch_bounds__(kv_threads)
    kv_cut(const __grid_constant__ mxa_cuda_kv_slices s, int64_t slices)
{
    const int64_t i = int64_t(blockIdx.x) * kv_threads + threadIdx.x;
    if (i < slices * s.batch)
        mxa_cuda_kv_cut_one(&s, i / s.batch, i % s.batch);
}

__global__ void __launch_bounds__(kv_threads) kv_means(const __grid_constant__ mxa_cuda_kv kv)
{
    const int64_t b = blockIdx.x / unsigned(kv.heads_kv), h = blockIdx.x % unsigned(kv.heads_kv);
    if (kv.lengths[b] >= MXA_TILE)
        make_mean(kv, b, h);
}

} // namespace

} // namespace mxa

mxa_status mxa_cuda_kv_send(const mxa_cuda_kv_letter *letter, cudaStream_t stream)
{
    mxa::kv_send<<<1, MXA_CUDA_KV_CHANGES, 0, stream>>>(*letter);
    return mxa_cuda_launched("kv_send");
}

mxa_status mxa_cuda_kv_store(const mxa_cuda_kv_append *append, cudaStream_t stream)
{
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(append->n_sequences * append->kv.heads_kv * append->spans));
    config.blockDim = dim3(mxa::kv_threads);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = append->early;
    return mxa_cuda_check(cudaLaunchKernelEx(&config, mxa::pick_append(append->kv), *append), "kv_append");
}

mxa_status mxa_cuda_kv_cut(const mxa_cuda_kv_slices *s, cudaStream_t stream)
{
    const int64_t slices = (s->n - 1) / s->each + 1, blocks = (slices * s->batch - 1) / mxa::kv_threads + 1;
    mxa::kv_cut<<<unsigned(blocks), mxa::kv_threads, 0, stream>>>(*s, slices);
    return mxa_cuda_launched("kv_cut");
}

mxa_status mxa_cuda_kv_means(const mxa_cuda_kv *kv, cudaStream_t stream)
{
    mxa::kv_means<<<unsigned(kv->batch * kv->heads_kv), mxa::kv_threads, 0, stream>>>(*kv);
    return mxa_cuda_launched("kv_means");
}
