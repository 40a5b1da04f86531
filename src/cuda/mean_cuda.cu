/* SPDX-License-Identifier: Apache-2.0 */
/* The mean of each channel over the first tokens: the additions of the CPU in its order, so its bits. */
#include "cuda/common/chain_cuda.cuh"
#include "cuda/common/span_cuda.cuh"

namespace mxa
{

namespace
{

constexpr int channels = 32;     /* of a block of threads */
constexpr int threads = 512;     /* they load; the first ones then add up a channel each */
constexpr int tokens = MXA_TILE; /* in shared memory at a time */
constexpr int rows = threads / channels, tokens_each = tokens / rows;

struct MeanParams {
    mxa_cuda_rows rows;
    int64_t n_tokens; /* at most */
    float *mean;      /* [sequences][heads][dim] */
    uint4 *clear;
    int64_t clear_words; /* of 16 bytes */
    bool awaits;
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

__device__ void clear_words(const MeanParams &p)
{
    const int64_t block = blockIdx.x + int64_t(gridDim.x) * blockIdx.y, step = int64_t(gridDim.x) * gridDim.y;
    for (int64_t i = block * threads + threadIdx.x; i < p.clear_words; i += step * threads)
        p.clear[i] = make_uint4(0, 0, 0, 0);
}

/* Tokens of a channel as fp64; NaN and Inf count as 0, which changes no sum: a sum never is -0. */
struct MeanTokens {
    double x[tokens][channels];
    int bad[channels]; /* how many were NaN or Inf */
};

/* All loads of a thread are under way before the first number is looked at. */
template <class Bits, class Widen>
__device__ __forceinline__ void load_tokens(const MeanParams &p, int64_t offset, int n, MeanTokens &chunk,
                                            Widen widen)
{
    const int first = threadIdx.x / channels, channel = threadIdx.x % channels;
    const auto *const from = static_cast<const Bits *>(p.rows.x.data) + offset + channel;
    Bits bits[tokens_each] = {};
    int bad = 0;
#pragma unroll
    for (int i = 0; i < tokens_each; i++)
        if (first + i * rows < n)
            bits[i] = from[(first + i * rows) * p.rows.x.stride[2]];
#pragma unroll
    for (int i = 0; i < tokens_each; i++) {
        const float v = widen(bits[i]);
        const bool finite = mxa_f32_is_finite(v);
        chunk.x[first + i * rows][channel] = finite ? double(v) : 0.0;
        bad += !finite;
    }
    if (bad)
        atomicAdd(&chunk.bad[channel], bad);
}

__device__ __forceinline__ void load_chunk(const MeanParams &p, int64_t offset, int n, MeanTokens &chunk)
{
    const mxa_dtype dtype = p.rows.x.dtype;
    if (dtype == MXA_DTYPE_F32)
        load_tokens<float>(p, offset, n, chunk, [](float v) { return v; });
    else if (dtype == MXA_DTYPE_BF16)
        load_tokens<uint16_t>(p, offset, n, chunk, [](uint16_t v) { return mxa_f32_from_bf16(v); });
    else
        load_tokens<uint16_t>(p, offset, n, chunk, [](uint16_t v) { return mxa_f32_from_f16(v); });
}

__global__ void __launch_bounds__(threads) channel_mean(const __grid_constant__ MeanParams p)
{
    __shared__ MeanTokens chunk;
    const mxa_tensor &x = p.rows.x;
    const int64_t heads = x.shape[1], dim = x.shape[3];
    const MeanRows place = rows_of(p, blockIdx.x / heads, blockIdx.x % heads);
    const int64_t channel = int64_t(blockIdx.y) * channels + threadIdx.x % channels;
    const bool adds = threadIdx.x < channels;
    if (adds)
        chunk.bad[threadIdx.x] = 0;
    begin_link(p.awaits);
    clear_words(p);

    double sum = 0;
    for (int64_t first = 0; first < place.n; first += tokens) {
        const int n = int(mxa_min(tokens, place.n - first));
        __syncthreads(); /* the last chunk is added up */
        if (channel < dim)
            load_chunk(p, place.first + first * x.stride[2] + blockIdx.y * channels, n, chunk);
        __syncthreads();
        if (adds)
#pragma unroll 16
            for (int t = 0; t < n; t++)
                sum += chunk.x[t][threadIdx.x];
    }
    __syncthreads();
    if (adds && channel < dim) {
        const int64_t count = place.n - chunk.bad[threadIdx.x];
        p.mean[int64_t(blockIdx.x) * dim + channel] = count > 0 ? float(sum / double(count)) : 0.0f;
    }
    end_link();
}

} // namespace

} // namespace mxa

mxa_status mxa_cuda_channel_mean(const mxa_cuda_rows *rows, int64_t n_tokens, float *mean, void *clear,
                                 int64_t clear_bytes, mxa_cuda_chain *chain)
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
    const MeanParams p = { *rows,
                           n_tokens,
                           mean,
                           static_cast<uint4 *>(clear),
                           clear_bytes / int64_t(sizeof(uint4)),
                           next_awaits(chain) };
    return mxa_cuda_check(
        launch_link(chain, true, channel_mean, dim3(unsigned(matrices), unsigned(blocks_y)), threads, 0, p),
        "channel_mean");
}
