/* SPDX-License-Identifier: Apache-2.0 */
/* A piece's codes, scales and factor to memory. */
#ifndef MXA_CUDA_QUANTIZE_STORE_CUH
#define MXA_CUDA_QUANTIZE_STORE_CUH

#include "cuda/quantize_codes.cuh"
#include "cuda/quantize_rows.cuh"
#include "format/container.h"
#include "format/mx_scale.h"
#include "format/scale_layout.h"

namespace mxa
{

constexpr uint32_t bf16_nans = 0x7FC07FC0u, f16_nans = 0x7E007E00u; /* two */
constexpr int no_row_exponent = -1024; /* below that of any number: a block of zeros */

/* Where the span's first row begins: what all threads share is computed once. scales: in layout ROW. */
struct RowsOut {
    uint8_t *codes, *scales;
};

__device__ __forceinline__ RowsOut rows_out(const QuantCopy &c, const Span &s)
{
    return { c.codes + s.row * c.row_bytes, c.scales + s.row * c.scale_cols };
}

/* n of a piece; those of blocks that the row does not have are left out. */
template <int lanes>
__device__ __forceinline__ void store_scales(const QuantCopy &c, const RowsOut &out, const Span &s,
                                             const Piece<lanes> &v, int n, uint32_t scales)
{
    const int col = v.lane * n;
    if (c.layout == MXA_LAYOUT_ROW) {
        uint8_t *const to = out.scales + uint32_t(v.row * int(c.scale_cols) + col);
        for (int i = 0; i < n; i++)
            if (i == 0 || v.upper)
                to[i] = uint8_t(scales >> 8 * i);
    } else {
        uint8_t *const matrix = c.scales + s.matrix * c.matrix_scale_bytes;
        for (int i = 0; i < n; i++)
            if (i == 0 || v.upper)
                matrix[mxa_scale_offset(c.layout, c.scale_cols, s.first + v.row, col + i)] =
                    uint8_t(scales >> 8 * i);
    }
}

/* Codes of blocks of a piece fill the row's last one. */
template <int lanes, int words>
__device__ __forceinline__ void store_piece(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v,
                                            const uint32_t (&w)[words])
{
    if (!v.live)
        return;
    uint8_t *const to = out.codes + uint32_t(v.row * int(c.row_bytes) + v.lane * words * int(sizeof w[0]));
    const bool upper = v.upper || (c.form == MXA_CUDA_CODES && c.block == piece);
    if (words == 4 && !upper) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(w[0], w[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < words; i += 4)
        if (i < words / 2 || upper)
            reinterpret_cast<uint4 *>(to)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
}

/* Block scale 2^e as its byte, 2^-e and 2^e. */
struct MxBlock {
    uint32_t scale;
    float power, value;
    bool bad;
};

template <int lanes>
__device__ __forceinline__ MxBlock mx_block(const QuantCopy &c, const Piece<lanes> &v)
{
    MxBlock b;
    b.bad = v.amax >= MXA_F32_INF;
    b.scale = mxa_mx_scale(c.element, c.threshold, v.amax);
    b.power = mxa_pow2(127 - int(b.scale));
    b.value = mxa_pow2(int(b.scale) - 127);
    return b;
}

template <int lanes>
__device__ __forceinline__ int store_block(const QuantCopy &c, const RowsOut &out, const Span &s,
                                           const Piece<lanes> &v, const MxBlock &b)
{
    if (v.live)
        store_scales(c, out, s, v, 1, b.bad ? MXA_E8M0_NAN : b.scale);
    return b.bad;
}

/* capped: some magnitudes are larger than 6, as with the rule FLOOR. */
template <int lanes, bool capped>
__device__ __forceinline__ int code_mxfp4(const QuantCopy &c, const RowsOut &out, const Span &s,
                                          const Piece<lanes> &v)
{
    const MxBlock b = mx_block(c, v);
    uint32_t w[piece / 8];
    code_e2m1<capped>(v.x, b.power, w);
    if (b.bad)
        fill_words(0, w);
    store_piece(c, out, v, w);
    return store_block(c, out, s, v, b);
}

template <int lanes, __nv_fp8_interpretation_t type>
__device__ __forceinline__ int code_mxfp8(const QuantCopy &c, const RowsOut &out, const Span &s,
                                          const Piece<lanes> &v)
{
    const MxBlock b = mx_block(c, v);
    uint32_t w[piece / 4];
    code_fp8<type>(v.x, b.power, w);
    if (b.bad)
        fill_words(0, w);
    store_piece(c, out, v, w);
    return store_block(c, out, s, v, b);
}

template <int lanes>
__device__ __forceinline__ int code_mxint8(const QuantCopy &c, const RowsOut &out, const Span &s,
                                           const Piece<lanes> &v)
{
    const MxBlock b = mx_block(c, v);
    uint32_t w[piece / 4];
    mxint8_words(v.x, b.power, w);
    if (b.bad)
        fill_words(0, w);
    store_piece(c, out, v, w);
    return store_block(c, out, s, v, b);
}

/* FP8 and INT8. */
template <int lanes, bool int8>
__device__ __forceinline__ int code_elements(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v,
                                             float g)
{
    uint32_t w[piece / 4];
    const int n_bad = int8 ? code_int8_elements(v.x, g, v.amax, w) : code_fp8_elements(v.x, g, v.amax, w);
    store_piece(c, out, v, w);
    return n_bad;
}

template <int lanes>
__device__ __forceinline__ int code_nvfp4(const QuantCopy &c, const RowsOut &out, const Span &s,
                                          const Piece<lanes> &v, float g)
{
    uint32_t w[piece / 8], scales = 0;
    int n_bad = 0;
#pragma unroll
    for (int i = 0; i < piece / 8; i++) {
        const int first = i / 2 * MXA_NVFP4_BLOCK;
        const Nvfp4Block b = nvfp4_block(largest_bits(v.x, first, MXA_NVFP4_BLOCK), c.nvfp4, g);
        float t[8];
        nvfp4_divide(v.x + 8 * i, b, t);
        w[i] = b.bad ? 0 : e2m1_word<true>(t, v.x + 8 * i);
        if (i % 2 == 0) {
            scales |= b.scale << 4 * i;
            n_bad += b.bad;
        }
    }
    store_piece(c, out, v, w);
    if (v.live)
        store_scales(c, out, s, v, 2, scales);
    return n_bad;
}

/* The exponent of the largest number that the piece decodes to; no_row_exponent for zeros and NaN. */
template <int lanes>
__device__ __forceinline__ int piece_exponent(const QuantCopy &c, const Piece<lanes> &v)
{
    const MxBlock b = mx_block(c, v);
    const float largest = rounded(__uint_as_float(v.amax) * b.power, rounding_of(c.format));
    const bool counts = !b.bad && largest > 0.0f;
    return counts ? int(__float_as_uint(largest) >> 23) - 127 + int(b.scale) - 127 : no_row_exponent;
}

/* The exponent of the scale of a container, from that of the largest number of its 128 rows. */
template <__nv_fp8_interpretation_t type>
__device__ __forceinline__ int container_scale(const QuantCopy &c, int exponent)
{
    constexpr mxa_container container = type == __NV_E5M2 ? MXA_CONTAINER_E5M2 : MXA_CONTAINER_E4M3;
    return exponent == no_row_exponent ? 0 : mxa_fold_row_scale(c.format, container, exponent);
}

/* The largest exponent of all threads. */
template <int lanes>
__device__ __forceinline__ int block_exponent(Shared<lanes> &shared, int exponent)
{
    return int(block_max(shared, uint32_t(exponent - no_row_exponent))) + no_row_exponent;
}

template <int lanes, __nv_fp8_interpretation_t type, bool capped>
__device__ __forceinline__ int code_folded(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v,
                                           int scale)
{
    const MxBlock b = mx_block(c, v);
    const int step = max(int(b.scale) - 127 - scale, -127); /* below, all of it vanishes */
    uint32_t w[piece / 4];
    fold_mx<type, capped>(v.x, rounding_of(c.format), b.power, mxa_pow2(step), w);
    if (b.bad)
        fill_words(MXA_FP8_NAN * 0x01010101u, w);
    store_piece(c, out, v, w);
    return b.bad;
}

/* MX formats in bf16. */
template <int lanes>
__device__ __forceinline__ int code_mx_decoded(const QuantCopy &c, const RowsOut &out, const Piece<lanes> &v)
{
    const MxBlock b = mx_block(c, v);
    uint32_t w[piece / 2];
    if (c.format == MXA_FORMAT_MXINT8)
        decode_mx<true>(v.x, Rounding{}, b.power, b.value, w);
    else
        decode_mx<false>(v.x, rounding_of(c.format), b.power, b.value, w);
    if (b.bad)
        fill_words(bf16_nans, w);
    store_piece(c, out, v, w);
    return b.bad;
}

/* FP8 and INT8 in bf16 or fp16, without g. */
template <int lanes, bool int8, bool bf16>
__device__ __forceinline__ int code_elements_decoded(const QuantCopy &c, const RowsOut &out,
                                                     const Piece<lanes> &v, float g)
{
    uint32_t codes[piece / 4], w[piece / 2];
    const int n_bad =
        int8 ? code_int8_elements(v.x, g, v.amax, codes) : code_fp8_elements(v.x, g, v.amax, codes);
#pragma unroll
    for (int i = 0; i < piece / 2; i++)
        w[i] = decode_pair<int8, bf16>(codes[i / 2] >> 16 * (i % 2));
    if (n_bad)
#pragma unroll
        for (int i = 0; i < piece; i++)
            if (!mxa_f32_is_finite(v.x[i]))
                set_half(w[i / 2], i % 2, (bf16 ? bf16_nans : f16_nans) & 0xFFFFu);
    store_piece(c, out, v, w);
    return n_bad;
}

/* NVFP4 in bf16 or fp16, without g. */
template <int lanes, bool bf16>
__device__ __forceinline__ int code_nvfp4_decoded(const QuantCopy &c, const RowsOut &out,
                                                  const Piece<lanes> &v, float g)
{
    const Rounding r = rounding_of(MXA_FORMAT_NVFP4);
    uint32_t w[piece / 2];
    int n_bad = 0;
#pragma unroll
    for (int i = 0; i < piece / 8; i++) {
        const int first = i / 2 * MXA_NVFP4_BLOCK;
        const Nvfp4Block b = nvfp4_block(largest_bits(v.x, first, MXA_NVFP4_BLOCK), c.nvfp4, g);
        const float scale = b.scale ? mxa_ue4m3_decode(b.scale) : 1.0f;
        const float *const x = v.x + 8 * i;
        float t[8];
        nvfp4_divide(x, b, t);
#pragma unroll
        for (int j = 0; j < 8; j++)
            t[j] = copysignf(rounded(t[j], r) * scale, x[j]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[4 * i + j] = b.bad ? (bf16 ? bf16_nans : f16_nans) : half_pair<bf16>(t[2 * j], t[2 * j + 1]);
        n_bad += i % 2 == 0 && b.bad;
    }
    store_piece(c, out, v, w);
    return n_bad;
}

/* n_bad of this thread's; nonfinite_tiles were cleared before. */
template <int lanes>
__device__ __forceinline__ void report_nonfinite(const QuantCopy &c, const Span &s, const Piece<lanes> &v,
                                                 int n_bad)
{
    if (c.n_bad) {
        const unsigned all = __reduce_add_sync(0xFFFFFFFFu, unsigned(v.live ? n_bad : 0));
        if (all && threadIdx.x % warp_lanes == 0)
            atomicAdd(c.n_bad, static_cast<unsigned long long>(all));
    }
    if (c.nonfinite_tiles && v.amax >= MXA_F32_INF)
        c.nonfinite_tiles[s.block] = 1;
}

} // namespace mxa

#endif
