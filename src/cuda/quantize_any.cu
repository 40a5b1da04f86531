/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantiser for any shape, stride, format and layout: a block of threads for 128 rows, which pass through
 * shared memory in chunks. A thread codes a block of the format, or 32 elements. Computed factors come from a
 * scan.
 */
#include "cuda/quantize_chunk.cuh"
#include "cuda/quantize_factor.cuh"
#include "cuda/quantize_unit.cuh"
#include "format/scale_layout.h"

namespace mxa
{

namespace
{

__device__ void load_chunk(const QuantParams &p, const QuantCopy &c, const Span &s, const Chunk &k, float *x)
{
    const mxa_tensor &t = p.rows.x;
    const int64_t first = row_offset(t, s, k.row) + k.channel;
    const float *const mean = c.mean ? c.mean + s.matrix * t.shape[3] + k.channel : nullptr;
    __syncthreads(); /* the last chunk is coded */
    for_each_element(k, x, [&](int row, int channel, float &element) {
        float v = load_element(t, first + row * t.stride[2] + channel);
        if (p.sanitize)
            v = sanitized(v, t.dtype);
        element = mean ? v - mean[channel] : v;
    });
    if (c.rotate)
        rotate_chunk(k, t.shape[3], x);
}

/* Where the codes and the scale of a unit go, which row's factor it has. */
struct Place {
    Unit unit;
    int row; /* of the span */
    int64_t code_row, code_col;
    int64_t matrix_row; /* the code's row in its matrix */
};

__device__ int unit_elements(const QuantCopy &c)
{
    return c.block ? c.block : MXA_MX_BLOCK;
}

__device__ int unit_count(const QuantCopy &c, const Chunk &k)
{
    const int n = unit_elements(c);
    return c.axis == MXA_AXIS_HEAD ? k.rows * ((k.channels + n - 1) / n)
                                   : k.channels * ((k.rows + n - 1) / n);
}

/* Neighbouring units lie in neighbouring rows, or channels: their reads meet in no bank. */
__device__ Place place_unit(const QuantCopy &c, const Span &s, const Chunk &k, int64_t dim, const float *x,
                            int i)
{
    const int n = unit_elements(c);
    Place p;
    if (c.axis == MXA_AXIS_HEAD) {
        const int row = i % k.rows, first = i / k.rows * n;
        p.unit = { x + row * k.stride + first, 1, min(n, k.channels - first) };
        p.row = k.row + row;
        p.code_row = s.row + p.row;
        p.code_col = k.channel + first;
        p.matrix_row = s.first + p.row;
    } else {
        const int channel = i % k.channels, first = i / k.channels * n;
        p.unit = { x + first * k.stride + channel, k.stride, min(n, k.rows - first) };
        p.row = k.row + first;
        p.matrix_row = k.channel + channel;
        p.code_row = s.matrix * dim + p.matrix_row;
        p.code_col = s.first + p.row;
    }
    return p;
}

__device__ int bits_of_form(const QuantCopy &c)
{
    return c.form == MXA_CUDA_CODES                             ? c.element_bits
           : c.form == MXA_CUDA_E5M2 || c.form == MXA_CUDA_E4M3 ? 8
                                                                : 16;
}

__device__ uint8_t *scale_of(const QuantCopy &c, const Span &s, const Place &p)
{
    if (c.form != MXA_CUDA_CODES || !c.block)
        return nullptr;
    const int64_t col = p.code_col / c.block;
    return c.scales + (c.layout == MXA_LAYOUT_ROW
                           ? p.code_row * c.scale_cols + col
                           : s.matrix * c.matrix_scale_bytes +
                                 mxa_scale_offset(c.layout, c.scale_cols, p.matrix_row, col));
}

__device__ float factor_of(const QuantParams &p, const QuantCopy &c, const Span &s, int row)
{
    return c.g_read ? c.g_read[read_index(c, p.rows.x, s, row)] : 1.0f;
}

/* The exponent that the FP8 container of the block's 128 rows is scaled by. */
__device__ int container_exponent(const QuantParams &p, const QuantCopy &c, const Span &s, ChunkShape shape,
                                  float *x)
{
    __shared__ int exponent;
    if (threadIdx.x == 0)
        exponent = no_exponent;
    const int64_t dim = p.rows.x.shape[3];
    for (int i = 0; i < chunks_of(shape, s, dim); i++) {
        const Chunk k = chunk_at(shape, s, dim, i);
        load_chunk(p, c, s, k, x);
        for (int j = threadIdx.x; j < unit_count(c, k); j += chunk_threads) {
            const Place place = place_unit(c, s, k, dim, x, j);
            atomicMax(&exponent, unit_exponent(c, place.unit, factor_of(p, c, s, place.row)));
        }
    }
    __syncthreads();
    if (exponent == no_exponent)
        return 0;
    return mxa_fold_row_scale(c.format, c.form == MXA_CUDA_E5M2 ? MXA_CONTAINER_E5M2 : MXA_CONTAINER_E4M3,
                              exponent);
}

/* ---------------------------------------------------------------- kernels */

extern __shared__ float chunk_floats[];

__global__ void __launch_bounds__(chunk_threads)
    quantize_any(const __grid_constant__ QuantParams p, int copy, ChunkShape shape)
{
    const Span s = find_span(p.rows, blockIdx.x);
    const QuantCopy &c = p.copies[copy];
    const int64_t dim = p.rows.x.shape[3];
    const bool folds = c.form == MXA_CUDA_E5M2 || c.form == MXA_CUDA_E4M3;
    const int row_scale = folds ? container_exponent(p, c, s, shape, chunk_floats) : 0;
    if (c.g_write)
        for (int row = threadIdx.x; row < s.rows; row += chunk_threads)
            if (writes_factor(c, s, row))
                c.g_write[factor_index(c.write_level, s, row)] =
                    factor_of(p, c, s, row) * ldexpf(1.0f, row_scale);

    int n_bad = 0;
    bool nonfinite = false;
    for (int i = 0; i < chunks_of(shape, s, dim); i++) {
        const Chunk k = chunk_at(shape, s, dim, i);
        load_chunk(p, c, s, k, chunk_floats);
        for (int j = threadIdx.x; j < unit_count(c, k); j += chunk_threads) {
            const Place place = place_unit(c, s, k, dim, chunk_floats, j);
            uint8_t *const to = c.codes + place.code_row * c.row_bytes + place.code_col * bits_of_form(c) / 8;
            n_bad +=
                code_unit(c, place.unit, factor_of(p, c, s, place.row), row_scale, to, scale_of(c, s, place));
            nonfinite |= unit_amax(place.unit) >= MXA_F32_INF;
        }
    }
    if (c.n_bad && n_bad)
        atomicAdd(c.n_bad, static_cast<unsigned long long>(n_bad));
    if (c.nonfinite_tiles && nonfinite)
        c.nonfinite_tiles[s.block] = 1;
}

__global__ void __launch_bounds__(chunk_threads)
    scan_any(const __grid_constant__ QuantParams p, const QuantScan scan, int copy, ChunkShape shape)
{
    const Span s = find_span(p.rows, blockIdx.x);
    const QuantCopy &c = p.copies[copy];
    const int64_t dim = p.rows.x.shape[3];
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize, warps = chunk_threads / warpSize;
    for (int i = 0; i < chunks_of(shape, s, dim); i++) {
        const Chunk k = chunk_at(shape, s, dim, i);
        load_chunk(p, c, s, k, chunk_floats);
        for (int row = warp; row < k.rows; row += warps) {
            uint32_t finite = 0, largest = 0;
            for (int d = lane; d < k.channels; d += warpSize) {
                const uint32_t mag = mxa_f32_bits(chunk_floats[row * k.stride + d]) & 0x7FFFFFFFu;
                largest = max(largest, mag);
                finite = max(finite, mag < MXA_F32_INF ? mag : 0u);
            }
            finite = __reduce_max_sync(0xFFFFFFFFu, finite);
            largest = __reduce_max_sync(0xFFFFFFFFu, largest);
            if (lane == 0 && scan.amax)
                atomicMax(scan.amax + factor_index(c.level, s, k.row + row), finite);
            if (lane == 0 && scan.first_bad && largest >= MXA_F32_INF)
                atomicMin(scan.first_bad, unsigned(s.block));
        }
    }
}

/* A warp for each row. */
__global__ void __launch_bounds__(chunk_threads) bias_any(const __grid_constant__ QuantParams p)
{
    const Span s = find_span(p.rows, blockIdx.x);
    const mxa_tensor &x = p.rows.x;
    const int64_t dim = x.shape[3], heads_kv = x.shape[1] / p.bias.heads_per_kv;
    const float *const mean = p.bias.mean + (s.sequence * heads_kv + s.h / p.bias.heads_per_kv) * dim;
    const int lane = threadIdx.x % warpSize;
    for (int row = threadIdx.x / warpSize; row < s.rows; row += chunk_threads / warpSize) {
        const int64_t first = row_offset(x, s, row);
        double dot = 0;
        for (int64_t d = lane; d < dim; d += warpSize)
            dot += double(load_element(x, first + d)) * double(mean[d]);
        for (int o = warpSize / 2; o > 0; o /= 2)
            dot += __shfl_xor_sync(0xFFFFFFFFu, dot, o);
        if (lane == 0)
            p.bias.bias[s.row + row] = float(double(p.bias.softmax_scale) * dot);
    }
}

ChunkShape shape_for(const QuantParams &p, int c)
{
    return chunk_shape(p.rows.x.shape[3], p.copies[c].rotate, p.copies[c].axis);
}

} // namespace

const char *any_refuses(const QuantParams &p)
{
    for (int c = 0; c < p.n; c++)
        if (shape_for(p, c).rows == 0)
            return "rotates groups of so many channels that a block of them does not fit in shared memory";
    return nullptr;
}

void quantize_by_any(const QuantParams &p, int c, cudaStream_t stream)
{
    const ChunkShape shape = shape_for(p, c);
    quantize_any<<<unsigned(p.rows.n_blocks), chunk_threads, chunk_bytes(shape), stream>>>(p, c, shape);
}

void bias_by_any(const QuantParams &p, cudaStream_t stream)
{
    bias_any<<<unsigned(p.rows.n_blocks), chunk_threads, 0, stream>>>(p);
}

void scan_by_any(const QuantParams &p, const QuantScan &scan, int c, cudaStream_t stream)
{
    const ChunkShape shape = shape_for(p, c);
    scan_any<<<unsigned(p.rows.n_blocks), chunk_threads, chunk_bytes(shape), stream>>>(p, scan, c, shape);
}

} // namespace mxa
