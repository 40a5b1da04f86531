/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantiser for rows of up to 256 channels, a multiple of 16: a block of threads for 128 rows, a thread
 * for each piece of 32 channels of 64, 128 or 256. Everything happens in registers; a row's lanes meet in
 * shuffles, the rows of a block in shared memory where they share a factor. quantize_hot.cu has the cases
 * that decide the speed.
 */
#include "cuda/quantize_bias.cuh"
#include "cuda/quantize_store.cuh"

namespace mxa
{

namespace
{

template <int lanes>
struct Block {
    Span span; /* in shared memory, since it would take many registers */
    Shared<lanes> shared;
};

template <int lanes>
__device__ __forceinline__ void begin_block(const QuantParams &p, Block<lanes> &block)
{
    if (threadIdx.x == 0)
        block.span = find_span(p.rows, blockIdx.x);
    __syncthreads();
}

/* Where a row has no channels, others of it are loaded and become 0. */
template <int lanes, bool whole>
__device__ __forceinline__ void load_piece(const QuantParams &p, const Span &s, Piece<lanes> &v)
{
    const mxa_tensor &t = p.rows.x;
    const int last = int(t.shape[3]) - half_piece, channel = v.lane * piece;
    const int first = whole ? channel : min(channel, last);
    const int step = whole ? half_piece : min(channel + half_piece, last) - first;
    const int64_t lower = row_offset(t, s, min(v.row, s.rows - 1)) + first;
    if (t.dtype == MXA_DTYPE_F32) {
        const auto *const data = static_cast<const float *>(t.data) + lower;
        load_floats(data, data + step, v.x);
    } else {
        const auto *const data = static_cast<const uint16_t *>(t.data) + lower;
        const RawPiece raw = load_raw(data, data + step);
        if (t.dtype == MXA_DTYPE_BF16)
            widen<true>(raw, v.x);
        else
            widen<false>(raw, v.x);
    }
    if (!whole)
#pragma unroll
        for (int i = 0; i < piece; i++)
            v.x[i] = (i < half_piece ? v.live : v.upper) ? v.x[i] : 0.0f;
    if (p.sanitize)
#pragma unroll
        for (int i = 0; i < piece; i++)
            v.x[i] = sanitized(v.x[i], t.dtype);
}

template <int lanes>
__device__ __forceinline__ int code_plain(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v)
{
    uint32_t w[piece / 2];
    if (c.format == MXA_FORMAT_BF16)
        round_halves<true>(v.x, v.amax, w);
    else
        round_halves<false>(v.x, v.amax, w);
    store_piece(c, out, v, w);
    return 0;
}

template <int lanes>
__device__ __forceinline__ int code_as_codes(const QuantCopy &c, const RowsOut &out, const Span &s,
                                             const Piece<lanes> &v, float g)
{
    switch (c.format) {
    case MXA_FORMAT_INT8: return code_elements<lanes, true>(c, out, v, g);
    case MXA_FORMAT_FP8: return code_elements<lanes, false>(c, out, v, g);
    case MXA_FORMAT_MXFP4: return code_mxfp4<lanes, true>(c, out, s, v);
    case MXA_FORMAT_MXFP8_E4M3: return code_mxfp8<lanes, __NV_E4M3>(c, out, s, v);
    case MXA_FORMAT_MXFP8_E5M2: return code_mxfp8<lanes, __NV_E5M2>(c, out, s, v);
    case MXA_FORMAT_MXINT8: return code_mxint8(c, out, s, v);
    case MXA_FORMAT_NVFP4: return code_nvfp4(c, out, s, v, g);
    default: return code_plain(c, out, v);
    }
}

/* factor is multiplied by the container's scale. */
template <int lanes, __nv_fp8_interpretation_t type>
__device__ __forceinline__ int code_fold(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v,
                                         Shared<lanes> &shared, float &factor)
{
    const int scale = container_scale<type>(c, block_exponent(shared, piece_exponent(c, v)));
    factor *= ldexpf(1.0f, scale);
    return code_folded<lanes, type, true>(c, out, v, scale);
}

template <int lanes, bool bf16>
__device__ __forceinline__ int code_decoded(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v,
                                            float g)
{
    switch (c.format) {
    case MXA_FORMAT_NVFP4: return code_nvfp4_decoded<lanes, bf16>(c, out, v, g);
    case MXA_FORMAT_INT8: return code_elements_decoded<lanes, true, bf16>(c, out, v, g);
    case MXA_FORMAT_FP8: return code_elements_decoded<lanes, false, bf16>(c, out, v, g);
    default: return code_mx_decoded(c, out, v); /* in bf16 */
    }
}

template <int lanes>
__device__ __forceinline__ void code_copy(const QuantParams &p, const QuantCopy &c, Block<lanes> &block,
                                          const Piece<lanes> &v)
{
    const Span &s = block.span;
    const float g = row_factor(c, p.rows.x, s, v, block.shared);
    const RowsOut out = rows_out(c, s);
    float factor = g;
    int n_bad;
    if (c.form == MXA_CUDA_CODES)
        n_bad = code_as_codes(c, out, s, v, g);
    else if (c.form == MXA_CUDA_E5M2)
        n_bad = code_fold<lanes, __NV_E5M2>(c, out, v, block.shared, factor);
    else if (c.form == MXA_CUDA_E4M3)
        n_bad = code_fold<lanes, __NV_E4M3>(c, out, v, block.shared, factor);
    else if (c.form == MXA_CUDA_BF16)
        n_bad = code_decoded<lanes, true>(c, out, v, g);
    else
        n_bad = code_decoded<lanes, false>(c, out, v, g);
    write_factor(c, s, v, factor);
    report_nonfinite(c, s, v, n_bad);
}

template <int lanes, bool whole>
__device__ __forceinline__ void begin_piece(const QuantParams &p, const Span &s, Piece<lanes> &v)
{
    place_piece(s, v);
    if (!whole)
        end_row(int(p.rows.x.shape[3]), v);
}

template <int lanes>
__device__ __forceinline__ void load_means(const QuantParams &p, const QuantCopy &c, bool with_bias,
                                           Block<lanes> &block)
{
    load_mean(c, block.span, int(p.rows.x.shape[3]), block.shared);
    if (with_bias)
        load_bias_mean(p, block.span, block.shared);
}

/* whole: rows of piece * lanes channels; else of fewer. */
template <int lanes, bool whole>
__global__ void __launch_bounds__(MXA_TILE *lanes, threads_per_sm / (MXA_TILE * lanes))
    quantize_pieces(const __grid_constant__ QuantParams p)
{
    __shared__ Block<lanes> block;
    begin_block(p, block);
    begin_link(p.awaits);
    const Span &s = block.span;
    Piece<lanes> v;
    begin_piece<lanes, whole>(p, s, v);
#pragma unroll 1
    for (int i = 0; i < max(p.n, 1); i++) { /* without a copy there is a bias */
        const QuantCopy &c = p.copies[i];
        if (i == 0 || !p.same_steps) {
            const bool with_bias = i == 0 && p.bias.bias, in_fp32 = with_bias && p.bias.in_fp32;
            float dot = 0.0f;
            __syncthreads(); /* the last mean is read */
            load_means(p, c, with_bias, block);
            load_piece<lanes, whole>(p, s, v);
            __syncthreads();
            if (in_fp32)
                dot = partial_dot_fp32(v, block.shared);
            else if (with_bias)
                block.shared.dot[threadIdx.x] = partial_dot<false>(v, block.shared);
            prepare_piece<lanes, whole>(c, block.shared, int(p.rows.x.shape[3]), v);
            if (in_fp32)
                store_bias_fp32(p, s, v, dot);
            else if (with_bias)
                store_bias(p, s, v, block.shared);
        }
        if (i < p.n)
            code_copy(p, c, block, v);
    }
    end_link();
}

/* What copy c is coded from, looked at only. */
template <int lanes, bool whole>
__global__ void __launch_bounds__(MXA_TILE *lanes, threads_per_sm / (MXA_TILE * lanes))
    scan_pieces(const __grid_constant__ QuantParams p, const QuantScan scan, int copy)
{
    __shared__ Block<lanes> block;
    begin_block(p, block);
    const Span &s = block.span;
    const QuantCopy &c = p.copies[copy];
    Piece<lanes> v;
    begin_piece<lanes, whole>(p, s, v);
    load_means(p, c, false, block);
    load_piece<lanes, whole>(p, s, v);
    __syncthreads();
    prepare_piece<lanes, whole>(c, block.shared, int(p.rows.x.shape[3]), v);
    if (scan.amax) {
        const uint32_t amax = block_max(block.shared, largest_finite_bits(v.x, v.amax));
        if (threadIdx.x == 0)
            atomicMax(scan.amax + factor_index(c.level, s, 0), amax);
    } else if (__syncthreads_or(v.amax >= MXA_F32_INF) && threadIdx.x == 0) {
        atomicMin(scan.first_bad, unsigned(s.block));
    }
}

constexpr int access_bytes = 16; /* of a load or store */
constexpr int64_t most_dim = 256;

bool aligned(const void *pointer, int64_t bytes)
{
    return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uint64_t>(bytes)) % access_bytes == 0;
}

bool tensor_fits(const mxa_tensor &x)
{
    const int64_t element = x.dtype == MXA_DTYPE_F32 ? 4 : 2;
    for (int i = 0; i < 3; i++)
        if (x.shape[i] > 1 && !aligned(nullptr, x.stride[i] * element))
            return false;
    const int64_t dim = x.shape[3];
    return aligned(x.data, 0) && dim > 0 && dim <= most_dim && dim % half_piece == 0;
}

bool copy_fits(const QuantCopy &c)
{
    constexpr int64_t most_row_bytes = 1 << 24; /* 128 rows within 32 bits */
    if (c.axis != MXA_AXIS_HEAD || !aligned(c.codes, c.row_bytes) || c.row_bytes >= most_row_bytes)
        return false;
    if (c.is_mx)
        return c.level == MXA_LEVEL_NONE && (c.form != MXA_CUDA_CODES || c.element_bits != 6);
    if (c.format == MXA_FORMAT_NVFP4)
        return !(c.nvfp4 & MXA_NVFP4_FOUR_OVER_SIX);
    return c.format != MXA_FORMAT_F32;
}

template <int lanes, bool whole>
cudaError_t launch(const QuantParams &p, const QuantScan *scan, int copy, mxa_cuda_chain *chain)
{
    const unsigned blocks = unsigned(p.rows.n_blocks);
    constexpr int threads = MXA_TILE * lanes;
    if (!scan)
        return launch_link(chain, false, quantize_pieces<lanes, whole>, dim3(blocks), threads, 0, p);
    scan_pieces<lanes, whole><<<blocks, threads, 0, in_order(chain)>>>(p, *scan, copy);
    return cudaSuccess; /* the caller asks */
}

cudaError_t launch_by_dim(const QuantParams &p, const QuantScan *scan, int copy, mxa_cuda_chain *chain)
{
    const int64_t dim = p.rows.x.shape[3];
    switch (dim) {
    case 64: return launch<2, true>(p, scan, copy, chain);
    case 128: return launch<4, true>(p, scan, copy, chain);
    case 256: return launch<8, true>(p, scan, copy, chain);
    default: break;
    }
    return dim < 128 ? launch<4, false>(p, scan, copy, chain) : launch<8, false>(p, scan, copy, chain);
}

} // namespace

bool pieces_fit(const QuantParams &p)
{
    for (int i = 0; i < p.n; i++)
        if (!copy_fits(p.copies[i]))
            return false;
    return tensor_fits(p.rows.x);
}

cudaError_t quantize_by_pieces(const QuantParams &p, mxa_cuda_chain *chain)
{
    return launch_by_dim(p, nullptr, 0, chain);
}

void scan_by_pieces(const QuantParams &p, const QuantScan &scan, int c, mxa_cuda_chain *chain)
{
    (void)launch_by_dim(p, &scan, c, chain);
}

} // namespace mxa
