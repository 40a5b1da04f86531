/* SPDX-License-Identifier: Apache-2.0 */
/* Back to numbers: docs/numerics.md, section 5. A block of threads for 128 tokens, which pass in chunks. */
#include "cuda/quantize_chunk.cuh"
#include "format/format.h"
#include "format/nvfp4.h"

namespace mxa
{

namespace
{

/* mxa_copy without what only the host can read. */
struct DequantParams {
    mxa_cuda_rows rows; /* of the output */
    mxa_format format;
    int element_bits, block_log2;
    bool is_mx, plain;
    mxa_axis axis;
    mxa_layout layout;
    mxa_level level;
    bool rotate;
    const float *mean, *g;
    const uint8_t *codes, *scales;
    int64_t row_bytes, scale_cols, matrix_scale_bytes;
    int64_t matrix_rows; /* of codes */
};

__device__ uint32_t code_at(const uint8_t *row, int64_t col, int bits)
{
    if (bits == 8)
        return row[col];
    const int64_t first = col * bits;
    const int shift = int(first % 8), width = shift + bits;
    const uint32_t two = row[first / 8] | (width > 8 ? uint32_t(row[first / 8 + 1]) << 8 : 0u);
    return two >> shift & ((1u << bits) - 1);
}

__device__ float plain_at(mxa_format format, const uint8_t *row, int64_t col)
{
    uint32_t bits = 0;
    const int bytes = format == MXA_FORMAT_F32 ? 4 : 2;
    for (int i = 0; i < bytes; i++)
        bits |= uint32_t(row[col * bytes + i]) << 8 * i;
    const float x = format == MXA_FORMAT_F32   ? mxa_f32_from_bits(bits)
                    : format == MXA_FORMAT_F16 ? mxa_f32_from_f16(uint16_t(bits))
                                               : mxa_f32_from_bf16(uint16_t(bits));
    return mxa_f32_from_bits(mxa_f32_canonical(x));
}

__device__ uint32_t scale_at(const DequantParams &p, int64_t matrix, int64_t row, int64_t col)
{
    return p.scales[matrix * p.matrix_scale_bytes +
                    mxa_scale_offset(p.layout, p.scale_cols, row, col >> p.block_log2)];
}

/* Element times block scale times g. */
__device__ float value_at(const DequantParams &p, int64_t matrix, int64_t row, int64_t col, float g)
{
    const uint8_t *const codes = p.codes + (matrix * p.matrix_rows + row) * p.row_bytes;
    if (p.plain)
        return plain_at(p.format, codes, col);
    const uint32_t code = code_at(codes, col, p.element_bits);
    if (p.format == MXA_FORMAT_NVFP4)
        return mxa_nvfp4_value(code, scale_at(p, matrix, row, col), g);
    const float x = p.is_mx ? mxa_mx_value(p.format, code, scale_at(p, matrix, row, col))
                    : p.format == MXA_FORMAT_INT8 ? mxa_int8_decode(code)
                                                  : mxa_element_decode(mxa_element_e4m3(), code);
    return p.level != MXA_LEVEL_NONE && mxa_f32_is_finite(x) ? mxa_saturate(x * g) : x;
}

__device__ void store_element(const mxa_tensor &x, int64_t offset, float value)
{
    if (x.dtype == MXA_DTYPE_F32)
        static_cast<float *>(x.data)[offset] = mxa_f32_from_bits(mxa_f32_canonical(value));
    else
        static_cast<uint16_t *>(x.data)[offset] =
            x.dtype == MXA_DTYPE_BF16 ? mxa_bf16_from_f32(value) : mxa_f16_from_f32(value);
}

extern __shared__ float dequantized[];

__global__ void __launch_bounds__(chunk_threads)
    dequantize(const __grid_constant__ DequantParams p, ChunkShape shape)
{
    __shared__ Span s;
    if (threadIdx.x == 0)
        s = find_span(p.rows, blockIdx.x);
    __syncthreads();
    const mxa_tensor &out = p.rows.x;
    const int64_t dim = out.shape[3];
    for (int i = 0; i < chunks_of(shape, s, dim); i++) {
        const Chunk k = chunk_at(shape, s, dim, i);
        const int64_t first = row_offset(out, s, k.row) + k.channel;
        for_each_element(k, dequantized, [&](int row, int channel, float &element) {
            const int64_t token = s.first + k.row + row, d = k.channel + channel;
            const float g = p.g ? p.g[factor_index(p.level, s, k.row + row)] : 1.0f;
            element = p.axis == MXA_AXIS_HEAD ? value_at(p, s.matrix, token, d, g)
                                              : value_at(p, s.matrix, d, token, g);
        });
        if (p.rotate)
            rotate_chunk(k, dim, dequantized);
        for_each_element(k, dequantized, [&](int row, int channel, float &element) {
            const float mean = p.mean ? p.mean[s.matrix * dim + k.channel + channel] : 0.0f;
            store_element(out, first + row * out.stride[2] + channel, p.mean ? element + mean : element);
        });
    }
}

DequantParams describe(const mxa_copy &copy, const mxa_tensor &out)
{
    const mxa_format_info *const info = copy.spec.info;
    const bool by_token = copy.axis == MXA_AXIS_TOKEN;
    const int64_t matrices = out.shape[0] * out.shape[1];
    DequantParams p{};
    p.rows.x = out;
    p.rows.n_sequences = out.shape[0];
    p.rows.n_rows = matrices * out.shape[2];
    p.rows.n_blocks = matrices * mxa_token_blocks(out.shape[2]);
    p.format = info->format;
    p.element_bits = info->element_bits;
    p.block_log2 = info->block == 1 << 5 ? 5 : 4;
    p.is_mx = mxa_format_is_mx(info);
    p.plain = !info->quantized;
    p.axis = copy.axis;
    p.layout = copy.layout;
    p.level = copy.level;
    p.rotate = copy.rotate;
    p.mean = copy.mean;
    p.g = copy.level == MXA_LEVEL_NONE ? nullptr : copy.out.g;
    p.codes = copy.out.codes;
    p.scales = copy.out.scales;
    p.matrix_rows = out.shape[by_token ? 3 : 2];
    p.row_bytes = mxa_row_bytes(info, out.shape[by_token ? 2 : 3]);
    p.scale_cols = mxa_scale_cols(info, out.shape[by_token ? 2 : 3]);
    p.matrix_scale_bytes = mxa_layout_bytes(copy.layout, p.matrix_rows, p.scale_cols);
    return p;
}

} // namespace

} // namespace mxa

mxa_status mxa_cuda_dequantize(const mxa_copy *copy, const mxa_tensor *out, cudaStream_t stream)
{
    using namespace mxa;
    const DequantParams p = describe(*copy, *out);
    const ChunkShape shape = chunk_shape(out->shape[3], copy->rotate, MXA_AXIS_HEAD);
    if (shape.rows == 0)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "out: dim %lld: the CUDA backend rotates at most 8192 channels",
                        (long long)out->shape[3]);
    if (p.rows.n_blocks >= max_blocks)
        return mxa_fail(MXA_ERR_UNSUPPORTED, "out: %lld blocks of 128 rows are more than a CUDA grid has",
                        (long long)p.rows.n_blocks);
    if (p.rows.n_blocks == 0)
        return MXA_OK;
    dequantize<<<unsigned(p.rows.n_blocks), chunk_threads, chunk_bytes(shape), stream>>>(p, shape);
    return mxa_cuda_launched("dequantize");
}
