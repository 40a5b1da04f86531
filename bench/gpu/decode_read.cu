/* SPDX-License-Identifier: Apache-2.0 */
#include "decode_read.h"

namespace
{

constexpr int threads = 512, blocks_each = 4, multiprocessors = 132, unroll = 8;

__global__ void __launch_bounds__(threads) read_all(const uint4 *from, int64_t n, float *sink)
{
    uint32_t sum = 0;
    const int64_t step = int64_t(gridDim.x) * threads;
    int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    for (; i + (unroll - 1) * step < n; i += unroll * step) {
        uint4 x[unroll];
        for (int u = 0; u < unroll; u++)
            x[u] = __ldcs(from + i + u * step);
        for (int u = 0; u < unroll; u++)
            sum ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
    }
    for (; i < n; i += step)
        sum ^= from[i].x ^ from[i].w;
    if (sum == 0x9E3779B9u)
        *sink = 1;
}

} // namespace

void decode_read(const void *from, int64_t bytes, float *sink, cudaStream_t stream)
{
    read_all<<<multiprocessors * blocks_each, threads, 0, stream>>>(static_cast<const uint4 *>(from),
                                                                    bytes / 16, sink);
}
