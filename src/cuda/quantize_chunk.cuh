/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some rows and channels of a tensor as fp32 in shared memory, for kernels that take any shape: rows of
 * `channels`, each behind a pad of one. Rotation groups lie whole in a chunk.
 */
#ifndef MXA_CUDA_QUANTIZE_CHUNK_CUH
#define MXA_CUDA_QUANTIZE_CHUNK_CUH

#include "cuda/common/span_cuda.cuh"
#include "format/hadamard.h"
#include "format/mx.h"

namespace mxa
{

constexpr int chunk_threads = 256;

/* The most rows and channels of a chunk. */
struct ChunkShape {
    int rows, channels;
};

/* Those of one chunk: rows [row, row + rows) of the span, channels [channel, channel + channels). */
struct Chunk {
    int row, rows;
    int64_t channel;
    int channels;
    int stride; /* of rows in shared memory */
};

/* The largest that keeps rotation groups whole and fits in usual shared memory; rows 0: none does. */
inline ChunkShape chunk_shape(int64_t dim, bool rotate, mxa_axis axis)
{
    constexpr int64_t most_rows = 32, floats = 8192, usual_channels = 128;
    static_assert(most_rows % MXA_MX_BLOCK == 0, "blocks along tokens lie whole in a chunk");
    const int64_t group = rotate ? mxa_hadamard_group(dim) : 1;
    const int64_t channels = mxa_max(usual_channels, group);
    const int64_t rows = mxa_min(most_rows, floats / channels);
    if (rows == 0 || (axis == MXA_AXIS_TOKEN && rows < most_rows))
        return { 0, 0 };
    return { int(rows), int(channels) };
}

inline int chunk_bytes(ChunkShape shape)
{
    return shape.rows * (shape.channels + 1) * int(sizeof(float));
}

__device__ inline int chunks_of(ChunkShape shape, const Span &s, int64_t dim)
{
    return (s.rows + shape.rows - 1) / shape.rows * int((dim + shape.channels - 1) / shape.channels);
}

__device__ inline Chunk chunk_at(ChunkShape shape, const Span &s, int64_t dim, int i)
{
    const int across = int((dim + shape.channels - 1) / shape.channels);
    Chunk c;
    c.row = i / across * shape.rows;
    c.rows = min(shape.rows, s.rows - c.row);
    c.channel = int64_t(i % across) * shape.channels;
    c.channels = int(mxa_min(shape.channels, dim - c.channel));
    c.stride = shape.channels + 1;
    return c;
}

/* do_element(row, channel, &element) for each of the chunk's, counted from its first. */
template <class DoElement>
__device__ __forceinline__ void for_each_element(const Chunk &c, float *x, DoElement do_element)
{
    for (int i = threadIdx.x; i < c.rows * c.channels; i += chunk_threads) {
        const int row = i / c.channels, channel = i % c.channels;
        do_element(row, channel, x[row * c.stride + channel]);
    }
    __syncthreads();
}

/* format/hadamard.h on every row: the same additions in the same order. */
__device__ inline void rotate_chunk(const Chunk &c, int64_t dim, float *x)
{
    const int64_t group = mxa_hadamard_group(dim);
    if (group <= 1)
        return;
    const int half = c.channels / 2;
    for (int s = 1; s < group; s *= 2) {
        for (int i = threadIdx.x; i < c.rows * half; i += chunk_threads) {
            const int pair = i % half;
            float *const lower = x + i / half * c.stride + (pair / s * 2 * s + pair % s);
            const float a = lower[0], b = lower[s];
            lower[0] = a + b;
            lower[s] = a - b;
        }
        __syncthreads();
    }
    const float norm = mxa_hadamard_norm(group);
    for_each_element(c, x, [=](int, int, float &element) { element *= norm; });
}

__device__ inline float load_element(const mxa_tensor &x, int64_t offset)
{
    if (x.dtype == MXA_DTYPE_F32)
        return static_cast<const float *>(x.data)[offset];
    const uint16_t half = static_cast<const uint16_t *>(x.data)[offset];
    return x.dtype == MXA_DTYPE_BF16 ? mxa_f32_from_bf16(half) : mxa_f32_from_f16(half);
}

} // namespace mxa

#endif
