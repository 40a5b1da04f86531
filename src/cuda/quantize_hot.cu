/* SPDX-License-Identifier: Apache-2.0 */
/* The copies that attention and caches make most, of 16-bit tensors: the list of their kernels. */
#include "cuda/quantize_tile.cuh"

namespace mxa
{

namespace
{

constexpr int enough_waves = 2;      /* of blocks, before they are made smaller */
constexpr int64_t most_grid = 65535; /* of a grid's second and third side */

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
cudaError_t launch_rows(const QuantParams &p, int multiprocessors, mxa_cuda_chain *chain)
{
    const int block_rows = pick_block_rows<lanes>(p.rows.x.shape, multiprocessors);
    return launch_link(chain, false, quantize_rows<lanes, first, second>, grid_of(p.rows.x.shape, block_rows),
                       small_block, 0, p, block_rows);
}

template <int lanes, Code code>
cudaError_t launch_tile(const QuantParams &p, mxa_cuda_chain *chain)
{
    constexpr int bytes = piece * sizeof(float) * tile_block<lanes>;
    const cudaError_t error =
        cudaFuncSetAttribute(quantize_tile<lanes, code>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error != cudaSuccess ? error
                                : launch_link(chain, false, quantize_tile<lanes, code>,
                                              grid_of(p.rows.x.shape, MXA_TILE), tile_block<lanes>, bytes, p);
}

template <Code first, Code second>
cudaError_t launch_rows_by_dim(const QuantParams &p, int multiprocessors, mxa_cuda_chain *chain)
{
    switch (p.rows.x.shape[3] / piece) {
    case 2: return launch_rows<2, first, second>(p, multiprocessors, chain);
    case 4: return launch_rows<4, first, second>(p, multiprocessors, chain);
    default: return launch_rows<8, first, second>(p, multiprocessors, chain);
    }
}

template <Code code>
cudaError_t launch_tile_by_dim(const QuantParams &p, int, mxa_cuda_chain *chain)
{
    switch (p.rows.x.shape[3] / piece) {
    case 2: return launch_tile<2, code>(p, chain);
    case 4: return launch_tile<4, code>(p, chain);
    default: return launch_tile<8, code>(p, chain);
    }
}

/* Every instance, by the codes of its copies. */
struct Entry {
    Code codes[max_copies];
    bool tile; /* needs_tile */
    cudaError_t (*launch)(const QuantParams &p, int multiprocessors, mxa_cuda_chain *chain);
};

const Entry entries[] = {
    { { Code::int8, Code::none }, false, launch_rows_by_dim<Code::int8, Code::none> },
    { { Code::int8, Code::none }, true, launch_tile_by_dim<Code::int8> },
    { { Code::fp8, Code::none }, false, launch_rows_by_dim<Code::fp8, Code::none> },
    { { Code::mxfp4_e5m2, Code::none }, true, launch_tile_by_dim<Code::mxfp4_e5m2> },
    { { Code::mxfp4, Code::none }, false, launch_rows_by_dim<Code::mxfp4, Code::none> },
    { { Code::mxfp8, Code::none }, false, launch_rows_by_dim<Code::mxfp8, Code::none> },
    { { Code::mxfp4, Code::mxfp8 }, false, launch_rows_by_dim<Code::mxfp4, Code::mxfp8> },
    { { Code::int8_bf16, Code::none }, false, launch_rows_by_dim<Code::int8_bf16, Code::none> },
    { { Code::mxfp4_bf16, Code::none }, false, launch_rows_by_dim<Code::mxfp4_bf16, Code::none> },
};

/* none: no entry has it. */
Code code_of(const QuantCopy &c)
{
    if (c.form == MXA_CUDA_E5M2)
        return c.format == MXA_FORMAT_MXFP4 && c.rounds_up ? Code::mxfp4_e5m2 : Code::none;
    if (c.form == MXA_CUDA_BF16)
        return c.format == MXA_FORMAT_INT8    ? Code::int8_bf16
               : c.format == MXA_FORMAT_MXFP4 ? Code::mxfp4_bf16
                                              : Code::none;
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
    if (p.bias.bias && (tile || !may_have_bias(first, second)))
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
    const int64_t dim = x.shape[3];
    return (dim == 64 || dim == 128 || dim == 256) && x.dtype != MXA_DTYPE_F32 && x.stride[2] >= 0 &&
           x.stride[2] < most_stride && x.shape[0] <= most_grid && x.shape[1] <= most_grid &&
           !p.rows.sequences && !p.sanitize && p.same_steps && find_entry(p);
}

cudaError_t quantize_hot(const QuantParams &p, mxa_cuda_chain *chain)
{
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = find_entry(p)->launch(p, multiprocessors, chain);
    return error;
}

} // namespace mxa
