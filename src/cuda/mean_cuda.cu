/* SPDX-License-Identifier: Apache-2.0 */
/* The mean of each channel over the first tokens: the additions of the CPU in its order, so its bits. */
#include "cuda/quantize_chunk.cuh"

namespace mxa
{

namespace
{

constexpr int channels = 32;     /* of a block of threads */
constexpr int threads = 512;     /* they load; the first ones then add up a channel each */
constexpr int tokens = MXA_TILE; /* in shared memory at a time */

struct MeanParams {
    mxa_cuda_rows rows;
    int64_t n_tokens; /* at most */
    float *mean;      /* [sequences][heads][dim] */
};

/* The rows that count, the first one's offset in the tensor. */
struct MeanRows {
    int64_t first, n;
};

__device__ MeanRows rows_of(const MeanParams &p, int64_t sequence, int64_t head)
{
    const mxa_tensor &x = p.rows.x;
    const int64_t in_head = head * x.stride[1];
    if (!p.rows.sequences)
        return { sequence * x.stride[0] + in_head, mxa_min(x.shape[2], p.n_tokens) };
    const mxa_sequence &s = p.rows.sequences[sequence];
    const int64_t first = p.rows.of_k ? s.k_first : s.q_first;
    const int64_t length = p.rows.of_k ? s.map.kv_len : s.map.q_len;
    return { s.batch * x.stride[0] + in_head + first * x.stride[2], mxa_min(length, p.n_tokens) };
}

/* One addition waits for the other; the loads need not. The sum never is -0, so 0 changes nothing. */
__device__ __forceinline__ void add_up(int n, const float *x, double &sum, int64_t &count)
{
#pragma unroll 8
    for (int t = 0; t < n; t++) {
        const float v = x[t * channels];
        const bool finite = mxa_f32_is_finite(v);
        sum += finite ? double(v) : 0.0;
        count += finite;
    }
}

__global__ void __launch_bounds__(threads) channel_mean(const __grid_constant__ MeanParams p)
{
    __shared__ float chunk[tokens][channels];
    const mxa_tensor &x = p.rows.x;
    const int64_t heads = x.shape[1], dim = x.shape[3];
    const MeanRows rows = rows_of(p, blockIdx.x / heads, blockIdx.x % heads);
    const int64_t channel = int64_t(blockIdx.y) * channels + threadIdx.x % channels;
    const bool adds = threadIdx.x < channels;

    double sum = 0;
    int64_t count = 0;
    for (int64_t first = 0; first < rows.n; first += tokens) {
        const int n = int(mxa_min(tokens, rows.n - first));
        for (int t = threadIdx.x / channels; t < n; t += threads / channels)
            if (channel < dim)
                chunk[t][threadIdx.x % channels] =
                    load_element(x, rows.first + (first + t) * x.stride[2] + channel);
        __syncthreads();
        if (adds && channel < dim)
            add_up(n, &chunk[0][threadIdx.x], sum, count);
        __syncthreads();
    }
    if (adds && channel < dim)
        p.mean[int64_t(blockIdx.x) * dim + channel] = count ? float(sum / double(count)) : 0.0f;
}

} // namespace

} // namespace mxa

mxa_status mxa_cuda_channel_mean(const mxa_cuda_rows *rows, int64_t n_tokens, float *mean,
                                 cudaStream_t stream)
{
    using namespace mxa;
    const int64_t matrices = rows->n_sequences * rows->x.shape[1];
    const int64_t blocks_y = (rows->x.shape[3] + channels - 1) / channels;
    constexpr int64_t most_y = 65535;
    if (matrices >= max_blocks || blocks_y > most_y)
        return mxa_fail(MXA_ERR_UNSUPPORTED,
                        "x: %lld matrices of %lld channels are more than a CUDA grid has",
                        (long long)matrices, (long long)rows->x.shape[3]);
    if (matrices == 0 || blocks_y == 0)
        return MXA_OK;
    channel_mean<<<dim3(unsigned(matrices), unsigned(blocks_y)), threads, 0, stream>>>(
        { *rows, n_tokens, mean });
    return mxa_cuda_launched("channel_mean");
}
