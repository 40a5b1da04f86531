/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copies that attention and caches make most, of 16-bit tensors: quantize_pieces with everything about
 * the format known to the compiler. A small block of threads goes over the rows of a tile: the next ones are
 * loaded while these are coded.
 */
#include "cuda/quantize_bias.cuh"
#include "cuda/quantize_store.cuh"

namespace mxa
{

namespace
{

enum class Code { none, int8, fp8, mxfp4, mxfp8, mxfp4_e5m2 };

constexpr int small_block = 128; /* threads */
/* Leaves 80 registers to each thread: the next piece is in 16 of them. */
constexpr int small_blocks_per_sm = 6;
constexpr int enough_waves = 2;      /* of blocks, before they are made smaller */
constexpr int64_t most_grid = 65535; /* of a grid's second and third side */

/* The rows of this block: x counts them in the matrix, y heads, z batches. block_rows divides a tile. */
__device__ __forceinline__ Span grid_span(const mxa_cuda_rows &r, int block_rows)
{
    const int64_t length = r.x.shape[2];
    Span s;
    s.b = s.sequence = blockIdx.z;
    s.h = blockIdx.y;
    s.matrix = s.b * r.x.shape[1] + s.h;
    s.first = s.tensor_row = int64_t(blockIdx.x) * block_rows;
    s.row = s.matrix * length + s.first;
    s.block = s.matrix * ((length + MXA_TILE - 1) / MXA_TILE) + s.first / MXA_TILE;
    s.matrix_rows = length;
    s.rows = int(mxa_min(length - s.first, block_rows));
    return s;
}

/* piece_offset where it fits 32 bits. */
__device__ __forceinline__ int small_offset(const mxa_tensor &t, const Span &s, int row, int lane)
{
    return min(row, s.rows - 1) * int(t.stride[2]) + lane * piece;
}

template <int lanes>
__device__ __forceinline__ void widen_as(mxa_dtype dtype, const RawPiece &raw, Piece<lanes> &v)
{
    if (dtype == MXA_DTYPE_BF16)
        widen<true>(raw, v.x);
    else
        widen<false>(raw, v.x);
}

template <Code code, int lanes>
__device__ __forceinline__ void code_copy(const QuantParams &p, const QuantCopy &c, const RowsOut &out,
                                          const Span &s, const Piece<lanes> &v, Shared<lanes> &shared)
{
    __builtin_assume(c.layout == MXA_LAYOUT_ROW);
    int n_bad = 0;
    if constexpr (code == Code::mxfp4) {
        n_bad = code_mxfp4<lanes, false>(c, out, s, v);
    } else if constexpr (code == Code::mxfp8) {
        n_bad = code_mxfp8<lanes, __NV_E4M3>(c, out, s, v);
    } else {
        __builtin_assume(c.level != MXA_LEVEL_TOKEN_BLOCK || c.g_read);
        const float g = row_factor(c, p.rows.x, s, v, shared);
        n_bad = code_elements<lanes, code == Code::int8>(c, out, v, g);
        write_factor(c, s, v, g);
    }
    report_nonfinite(c, s, v, n_bad);
}

/* Groups of rows one after another; the next one is loaded while this one is coded. */
template <int lanes, Code first, Code second>
__global__ void __launch_bounds__(small_block, small_blocks_per_sm)
    quantize_rows(const __grid_constant__ QuantParams p, int block_rows)
{
    constexpr int group_rows = small_block / lanes;
    __shared__ Shared<lanes> shared;
    const mxa_tensor &t = p.rows.x;
    const bool with_bias = p.bias.bias;
    const Span s = grid_span(p.rows, block_rows);
    const uint16_t *const rows = static_cast<const uint16_t *>(t.data) + row_offset(t, s, 0);
    const RowsOut out = rows_out(p.copies[0], s), out2 = rows_out(p.copies[1], s);
    Piece<lanes> v;
    place_piece(s, v);
    RawPiece raw = load_raw(rows + small_offset(t, s, v.row, v.lane));
    if (p.copies[0].mean || with_bias) {
        load_mean(p.copies[0], s, shared);
        if (with_bias)
            load_bias_mean(p, s, shared);
        __syncthreads();
    }
#pragma unroll 1
    for (int group = 0; group < s.rows; group += group_rows) {
        widen_as(t.dtype, raw, v);
        if (group + group_rows < s.rows)
            raw = load_raw(rows + small_offset(t, s, v.row + group_rows, v.lane));
        v.live = v.row < s.rows;
        if (with_bias)
            shared.dot[threadIdx.x] = partial_dot<true>(v, shared);
        prepare_piece(p.copies[0], shared, v);
        if (with_bias)
            store_bias(p, s, v, shared);
        code_copy<first>(p, p.copies[0], out, s, v, shared);
        if constexpr (second != Code::none)
            code_copy<second>(p, p.copies[1], out2, s, v, shared);
        v.row += group_rows;
    }
}

/* ---------------------------------------------------------------- copies whose rows share a factor */

/* Half of a tile's rows stay in registers until the factor is known, the others wait in shared memory. */
template <int lanes>
constexpr int tile_block = MXA_TILE / 2 * lanes;

/* [piece / 4][threads]: no two threads of an access meet in a bank. */
extern __shared__ float4 stash[];

template <int lanes>
__device__ __forceinline__ void put_aside(const Piece<lanes> &v)
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++)
        stash[i * tile_block<lanes> + threadIdx.x] =
            make_float4(v.x[4 * i], v.x[4 * i + 1], v.x[4 * i + 2], v.x[4 * i + 3]);
}

template <int lanes>
__device__ __forceinline__ void take_back(Piece<lanes> &v)
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        const float4 f = stash[i * tile_block<lanes> + threadIdx.x];
        v.x[4 * i] = f.x;
        v.x[4 * i + 1] = f.y;
        v.x[4 * i + 2] = f.z;
        v.x[4 * i + 3] = f.w;
    }
}

/* What the tile's factor is made of. */
template <Code code, int lanes>
__device__ __forceinline__ int tile_part(const QuantCopy &c, const Piece<lanes> &v)
{
    if constexpr (code == Code::mxfp4_e5m2)
        return piece_exponent(c, v);
    else
        return int(largest_finite_bits(v.x, v.amax));
}

template <Code code, int lanes>
__device__ __forceinline__ void code_with(const QuantCopy &c, const RowsOut &out, const Span &s,
                                          const Piece<lanes> &v, int exponent, float g)
{
    int n_bad;
    if constexpr (code == Code::mxfp4_e5m2)
        n_bad = code_folded<lanes, __NV_E5M2, false>(c, out, v, exponent);
    else
        n_bad = code_elements<lanes, true>(c, out, v, g);
    write_factor(c, s, v, g);
    report_nonfinite(c, s, v, n_bad);
}

template <int lanes, Code code>
__global__ void __launch_bounds__(tile_block<lanes>, small_block *small_blocks_per_sm / tile_block<lanes>)
    quantize_tile(const __grid_constant__ QuantParams p)
{
    __shared__ Shared<lanes> shared;
    const mxa_tensor &t = p.rows.x;
    const QuantCopy &c = p.copies[0];
    const Span s = grid_span(p.rows, MXA_TILE);
    const uint16_t *const rows = static_cast<const uint16_t *>(t.data) + row_offset(t, s, 0);
    const RowsOut out = rows_out(c, s);
    Piece<lanes> v;
    place_piece(s, v);
    const RawPiece upper = load_raw(rows + small_offset(t, s, v.row, v.lane));
    const RawPiece lower = load_raw(rows + small_offset(t, s, v.row + MXA_TILE / 2, v.lane));
    if (c.mean) {
        load_mean(c, s, shared);
        __syncthreads();
    }
    widen_as(t.dtype, upper, v);
    prepare_piece(c, shared, v);
    const uint32_t upper_amax = v.amax;
    const int upper_part = tile_part<code>(c, v);
    put_aside(v);

    v.row += MXA_TILE / 2;
    v.live = v.row < s.rows;
    widen_as(t.dtype, lower, v);
    prepare_piece(c, shared, v);
    const int part = max(upper_part, tile_part<code>(c, v));
    int exponent = 0;
    float g;
    if constexpr (code == Code::mxfp4_e5m2) {
        exponent = container_scale<__NV_E5M2>(c, block_exponent(shared, part));
        g = ldexpf(1.0f, exponent);
    } else {
        g = mxa_second_level(c.divisor, c.nvfp4, __uint_as_float(block_max(shared, uint32_t(part))));
    }
    code_with<code>(c, out, s, v, exponent, g);

    v.row -= MXA_TILE / 2;
    v.live = v.row < s.rows;
    v.amax = upper_amax;
    take_back(v);
    code_with<code>(c, out, s, v, exponent, g);
}

/* ---------------------------------------------------------------- launches */

/* Rows of a block of threads: a tile's, or fewer groups where there would be too few blocks. */
template <int lanes>
int pick_block_rows(const int64_t shape[4], int multiprocessors)
{
    const int64_t enough = int64_t(multiprocessors) * small_blocks_per_sm * enough_waves;
    int rows = MXA_TILE;
    while (rows > small_block / lanes && shape[0] * shape[1] * ((shape[2] + rows - 1) / rows) < enough)
        rows /= 2;
    return rows;
}

dim3 grid_of(const int64_t shape[4], int block_rows)
{
    return dim3(unsigned((shape[2] + block_rows - 1) / block_rows), unsigned(shape[1]), unsigned(shape[0]));
}

template <int lanes, Code first, Code second>
cudaError_t launch_rows(const QuantParams &p, int multiprocessors, cudaStream_t stream)
{
    const int block_rows = pick_block_rows<lanes>(p.rows.x.shape, multiprocessors);
    quantize_rows<lanes, first, second>
        <<<grid_of(p.rows.x.shape, block_rows), small_block, 0, stream>>>(p, block_rows);
    return cudaSuccess;
}

template <int lanes, Code code>
cudaError_t launch_tile(const QuantParams &p, cudaStream_t stream)
{
    constexpr int bytes = piece * sizeof(float) * tile_block<lanes>;
    const cudaError_t error =
        cudaFuncSetAttribute(quantize_tile<lanes, code>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        quantize_tile<lanes, code>
            <<<grid_of(p.rows.x.shape, MXA_TILE), tile_block<lanes>, bytes, stream>>>(p);
    return error;
}

template <Code first, Code second>
cudaError_t launch_rows_by_dim(const QuantParams &p, int multiprocessors, cudaStream_t stream)
{
    switch (p.rows.x.shape[3] / piece) {
    case 2: return launch_rows<2, first, second>(p, multiprocessors, stream);
    case 4: return launch_rows<4, first, second>(p, multiprocessors, stream);
    default: return launch_rows<8, first, second>(p, multiprocessors, stream);
    }
}

template <Code code>
cudaError_t launch_tile_by_dim(const QuantParams &p, int, cudaStream_t stream)
{
    switch (p.rows.x.shape[3] / piece) {
    case 2: return launch_tile<2, code>(p, stream);
    case 4: return launch_tile<4, code>(p, stream);
    default: return launch_tile<8, code>(p, stream);
    }
}

/* Every instance, by the codes of its copies. */
struct Entry {
    Code codes[max_copies];
    bool tile; /* needs_tile */
    cudaError_t (*launch)(const QuantParams &p, int multiprocessors, cudaStream_t stream);
};

const Entry entries[] = {
    { { Code::int8, Code::none }, false, launch_rows_by_dim<Code::int8, Code::none> },
    { { Code::int8, Code::none }, true, launch_tile_by_dim<Code::int8> },
    { { Code::fp8, Code::none }, false, launch_rows_by_dim<Code::fp8, Code::none> },
    { { Code::mxfp4_e5m2, Code::none }, true, launch_tile_by_dim<Code::mxfp4_e5m2> },
    { { Code::mxfp4, Code::none }, false, launch_rows_by_dim<Code::mxfp4, Code::none> },
    { { Code::mxfp8, Code::none }, false, launch_rows_by_dim<Code::mxfp8, Code::none> },
    { { Code::mxfp4, Code::mxfp8 }, false, launch_rows_by_dim<Code::mxfp4, Code::mxfp8> },
};

/* none: no entry has it. */
Code code_of(const QuantCopy &c)
{
    if (c.form == MXA_CUDA_E5M2)
        return c.format == MXA_FORMAT_MXFP4 && c.rounds_up ? Code::mxfp4_e5m2 : Code::none;
    if (c.form != MXA_CUDA_CODES || c.layout != MXA_LAYOUT_ROW)
        return Code::none;
    switch (c.format) {
    case MXA_FORMAT_INT8: return Code::int8;
    case MXA_FORMAT_FP8: return Code::fp8;
    case MXA_FORMAT_MXFP4: return c.rounds_up ? Code::mxfp4 : Code::none;
    case MXA_FORMAT_MXFP8_E4M3: return Code::mxfp8;
    default: return Code::none;
    }
}

/* A tile's rows share a factor that is computed. */
bool needs_tile(const QuantCopy &c)
{
    return c.form == MXA_CUDA_E5M2 || (c.level == MXA_LEVEL_TOKEN_BLOCK && !c.g_read);
}

const Entry *find_entry(const QuantParams &p)
{
    const Code first = p.n > 0 ? code_of(p.copies[0]) : Code::none;
    const Code second = p.n > 1 ? code_of(p.copies[1]) : Code::none;
    bool tile = false;
    for (int i = 0; i < p.n; i++)
        tile |= needs_tile(p.copies[i]);
    if (tile && p.bias.bias)
        return nullptr;
    for (const Entry &e : entries)
        if (e.codes[0] == first && e.codes[1] == second && e.tile == tile &&
            (p.n < 2 || second != Code::none))
            return &e;
    return nullptr;
}

} // namespace

bool hot_fits(const QuantParams &p)
{
    constexpr int64_t most_stride = 1 << 23; /* 128 rows within 32 bits */
    const mxa_tensor &x = p.rows.x;
    return x.dtype != MXA_DTYPE_F32 && x.stride[2] >= 0 && x.stride[2] < most_stride &&
           x.shape[0] <= most_grid && x.shape[1] <= most_grid && !p.rows.sequences && !p.sanitize &&
           p.same_steps && find_entry(p);
}

cudaError_t quantize_hot(const QuantParams &p, cudaStream_t stream)
{
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = find_entry(p)->launch(p, multiprocessors, stream);
    return error;
}

} // namespace mxa
