/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a 16-bit operand in shared memory. */
#ifndef MXA_CUDA_TILE_SM80_CUH
#define MXA_CUDA_TILE_SM80_CUH

#include "cuda/ref/operand_ref_cuda.cuh"
#include "cuda/sm80/ptx_sm80.cuh"

namespace mxa
{

constexpr int threads_sm80 = 128; /* of a block: 4 warps of 16 queries */
constexpr int vector = 8;         /* elements of a 16-byte load */

/* [rows][dim], each row 16 bytes longer, so that 8 rows lie in different banks. */
template <int rows, int dim>
struct Tile {
    alignas(16) uint16_t data[rows][dim + vector];
};

/* Is an element of a 16-bit type, in either half of a word, Inf or NaN. */
__device__ inline bool has_nonfinite(uint32_t two, uint32_t exponent)
{
    const uint32_t low = exponent, high = exponent << 16;
    return (two & low) == low || (two & high) == high;
}

/* 8 elements of a row from d on; those past dim are 0. whole: rows are 16-byte aligned. */
__device__ inline uint4 load_vector(const Rows &from, int64_t row, int d, int dim, bool whole)
{
    const auto *const data = reinterpret_cast<const uint16_t *>(from.first + row * from.row_bytes) + d;
    if (whole && d + vector <= dim)
        return *reinterpret_cast<const uint4 *>(data);
    uint32_t words[vector / 2];
    for (int i = 0; i < vector / 2; i++) {
        const uint32_t low = d + 2 * i < dim ? data[2 * i] : 0,
                       high = d + 2 * i + 1 < dim ? data[2 * i + 1] : 0;
        words[i] = low | high << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline bool is_aligned(const Rows &from)
{
    return (reinterpret_cast<uintptr_t>(from.first) | static_cast<uintptr_t>(from.row_bytes)) %
               sizeof(uint4) ==
           0;
}

/* Rows first .. first + rows - 1 of which those in [begin, end) exist; the others become zeros. */
template <int rows, int dim>
__device__ void load_tile(Tile<rows, dim> &to, const Rows &from, int64_t first, int64_t begin, int64_t end,
                          int n)
{
    constexpr int vectors = dim / vector;
    const bool whole = is_aligned(from);
    for (int i = threadIdx.x; i < rows * vectors; i += threads_sm80) {
        const int r = i / vectors, d = i % vectors * vector;
        const int64_t row = first + r;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row >= begin && row < end && d < n)
            x = load_vector(from, row, d, n, whole);
        *reinterpret_cast<uint4 *>(&to.data[r][d]) = x;
    }
}

/*
 * The same for V: Inf and NaN become 0, and their row is marked in bad. Rows that do not see such a key have
 * the bits they would have over zeros; the others are done again.
 */
template <int rows, int dim>
__device__ void load_values(Tile<rows, dim> &to, const Rows &from, int64_t first, int64_t end, int n,
                            bool f16, int *bad, int *any_bad)
{
    constexpr int vectors = dim / vector;
    const bool whole = is_aligned(from);
    const uint32_t exponent = f16 ? 0x7C00u : 0x7F80u;
    for (int i = threadIdx.x; i < rows * vectors; i += threads_sm80) {
        const int r = i / vectors, d = i % vectors * vector;
        uint32_t words[4] = { 0, 0, 0, 0 };
        if (first + r < end && d < n) {
            const uint4 x = load_vector(from, first + r, d, n, whole);
            words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
        }
        for (int w = 0; w < 4; w++)
            if (has_nonfinite(words[w], exponent)) {
                words[w] &= (words[w] & exponent) == exponent ? 0xFFFF0000u : ~0u;
                words[w] &= (words[w] >> 16 & exponent) == exponent ? 0x0000FFFFu : ~0u;
                bad[r] = *any_bad = 1;
            }
        *reinterpret_cast<uint4 *>(&to.data[r][d]) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

} // namespace mxa

#endif
