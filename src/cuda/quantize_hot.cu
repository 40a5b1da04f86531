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

template <Code code, int lanes>
__device__ __forceinline__ void code_copy(const QuantParams &p, const QuantCopy &c, const Span &s,
                                          const Piece<lanes> &v, Shared<lanes> &shared)
{
    int n_bad = 0;
    if constexpr (code == Code::mxfp4) {
        n_bad = code_mxfp4<lanes, false>(c, s, v);
    } else if constexpr (code == Code::mxfp8) {
        n_bad = code_mxfp8<lanes, __NV_E4M3>(c, s, v);
    } else if constexpr (code == Code::mxfp4_e5m2) {
        write_factor(c, s, v, code_fold<lanes, __NV_E5M2>(c, s, v, shared));
    } else {
        const float g = row_factor(c, p.rows.x, s, v, shared);
        n_bad = code_elements<lanes, code == Code::int8>(c, s, v, g);
        write_factor(c, s, v, g);
    }
    report_nonfinite(c, s, v, n_bad);
}

/* tile: a block has a tile's 128 rows at once, and no next piece in its registers. */
template <int lanes, bool tile>
constexpr int block_threads = tile ? MXA_TILE *lanes : small_block;
template <int lanes, bool tile>
constexpr int blocks_per_sm = tile ? threads_per_sm / (MXA_TILE * lanes) : small_blocks_per_sm;

template <int lanes>
__device__ __forceinline__ void widen_as(mxa_dtype dtype, const RawPiece &raw, Piece<lanes> &v)
{
    if (dtype == MXA_DTYPE_BF16)
        widen<true>(raw, v.x);
    else
        widen<false>(raw, v.x);
}

template <int lanes, Code first, Code second>
__device__ __forceinline__ void code_piece(const QuantParams &p, const Span &s, Piece<lanes> &v,
                                           Shared<lanes> &shared)
{
    const bool with_bias = p.bias.bias;
    if (with_bias)
        shared.dot[threadIdx.x] = partial_dot(v, shared);
    prepare_piece(p.copies[0], shared, v);
    if (with_bias)
        store_bias(p, s, v, shared);
    code_copy<first>(p, p.copies[0], s, v, shared);
    if constexpr (second != Code::none)
        code_copy<second>(p, p.copies[1], s, v, shared);
}

template <int lanes, bool tile, Code first, Code second>
__global__ void __launch_bounds__(block_threads<lanes, tile>, blocks_per_sm<lanes, tile>)
    quantize_hot(const __grid_constant__ QuantParams p, int block_rows)
{
    constexpr int group_rows = block_threads<lanes, tile> / lanes;
    __shared__ Shared<lanes> shared;
    const mxa_tensor &t = p.rows.x;
    const Span s = grid_span(p.rows, block_rows);
    const uint16_t *const rows = static_cast<const uint16_t *>(t.data) + row_offset(t, s, 0);
    Piece<lanes> v;
    place_piece(s, v);
    RawPiece raw = load_raw(rows + piece_offset(t, s, v.row, v.lane));
    if (p.copies[0].mean || p.bias.bias) {
        load_mean(p.copies[0], s, shared);
        if (p.bias.bias)
            load_bias_mean(p, s, shared);
        __syncthreads();
    }
    if constexpr (tile) {
        widen_as(t.dtype, raw, v);
        code_piece<lanes, first, second>(p, s, v, shared);
    } else {
#pragma unroll 1
        for (int group = 0; group < s.rows; group += group_rows) {
            widen_as(t.dtype, raw, v);
            if (group + group_rows < s.rows)
                raw = load_raw(rows + piece_offset(t, s, v.row + group_rows, v.lane));
            v.live = v.row < s.rows;
            code_piece<lanes, first, second>(p, s, v, shared);
            v.row += group_rows;
        }
    }
}

/* All 128 rows of a tile in one block of threads. */
bool needs_tile(const QuantCopy &c)
{
    return c.form == MXA_CUDA_E5M2 || (c.level == MXA_LEVEL_TOKEN_BLOCK && !c.g_read);
}

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

template <int lanes, bool tile, Code first, Code second>
void launch(const QuantParams &p, int multiprocessors, cudaStream_t stream)
{
    const int64_t *const shape = p.rows.x.shape;
    const int block_rows = tile ? MXA_TILE : pick_block_rows<lanes>(shape, multiprocessors);
    const dim3 grid(unsigned((shape[2] + block_rows - 1) / block_rows), unsigned(shape[1]),
                    unsigned(shape[0]));
    quantize_hot<lanes, tile, first, second><<<grid, block_threads<lanes, tile>, 0, stream>>>(p, block_rows);
}

template <bool tile, Code first, Code second>
void launch_by_dim(const QuantParams &p, int multiprocessors, cudaStream_t stream)
{
    switch (p.rows.x.shape[3] / piece) {
    case 2: launch<2, tile, first, second>(p, multiprocessors, stream); break;
    case 4: launch<4, tile, first, second>(p, multiprocessors, stream); break;
    default: launch<8, tile, first, second>(p, multiprocessors, stream); break;
    }
}

/* Every instance, by the codes of its copies. */
struct Entry {
    Code codes[max_copies];
    bool tile;
    void (*launch)(const QuantParams &p, int multiprocessors, cudaStream_t stream);
};

const Entry entries[] = {
    { { Code::int8, Code::none }, false, launch_by_dim<false, Code::int8, Code::none> },
    { { Code::int8, Code::none }, true, launch_by_dim<true, Code::int8, Code::none> },
    { { Code::fp8, Code::none }, false, launch_by_dim<false, Code::fp8, Code::none> },
    { { Code::mxfp4_e5m2, Code::none }, true, launch_by_dim<true, Code::mxfp4_e5m2, Code::none> },
    { { Code::mxfp4, Code::none }, false, launch_by_dim<false, Code::mxfp4, Code::none> },
    { { Code::mxfp4, Code::mxfp8 }, false, launch_by_dim<false, Code::mxfp4, Code::mxfp8> },
};

/* none: no entry has it. */
Code code_of(const QuantCopy &c)
{
    if (c.form == MXA_CUDA_E5M2)
        return c.format == MXA_FORMAT_MXFP4 ? Code::mxfp4_e5m2 : Code::none;
    if (c.form != MXA_CUDA_CODES)
        return Code::none;
    switch (c.format) {
    case MXA_FORMAT_INT8: return Code::int8;
    case MXA_FORMAT_FP8: return Code::fp8;
    case MXA_FORMAT_MXFP4: return c.rounds_up ? Code::mxfp4 : Code::none;
    case MXA_FORMAT_MXFP8_E4M3: return Code::mxfp8;
    default: return Code::none;
    }
}

const Entry *find_entry(const QuantParams &p)
{
    const Code first = p.n > 0 ? code_of(p.copies[0]) : Code::none;
    const Code second = p.n > 1 ? code_of(p.copies[1]) : Code::none;
    bool tile = false;
    for (int i = 0; i < p.n; i++)
        tile |= needs_tile(p.copies[i]);
    for (const Entry &e : entries)
        if (e.codes[0] == first && e.codes[1] == second && e.tile == tile &&
            (p.n < 2 || second != Code::none))
            return &e;
    return nullptr;
}

} // namespace

bool hot_fits(const QuantParams &p)
{
    const mxa_tensor &x = p.rows.x;
    return x.dtype != MXA_DTYPE_F32 && x.shape[0] <= most_grid && x.shape[1] <= most_grid &&
           !p.rows.sequences && !p.sanitize && p.same_steps && find_entry(p);
}

cudaError_t quantize_hot(const QuantParams &p, cudaStream_t stream)
{
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        find_entry(p)->launch(p, multiprocessors, stream);
    return error;
}

} // namespace mxa
