/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warp codes a row of K or V and stores it in a page: the bytes of mxa_quantize. A lane has every 32nd
 * channel, so that a block of an MX format is one element of each lane.
 */
#ifndef MXA_CUDA_KV_ROW_CUDA_CUH
#define MXA_CUDA_KV_ROW_CUDA_CUH

#include "cuda/kv_cuda.h"
#include "cuda/kv_warp_cuda.cuh"
#include "format/hadamard.h"
#include "format/mx_scale.h"
#include "format/nvfp4.h"
#include "format/second_level.h"

namespace mxa
{

/* A warp's row in shared memory. */
struct KvRow {
    float x[MXA_DIM_MAX];
    uint8_t codes[MXA_DIM_MAX]; /* one a byte, a short last block filled with zeros */
};

/* How a row is coded and where it goes: a tile's record, the row's number in the tile. */
struct KvTarget {
    const mxa_cuda_kv_part &part;
    const mxa_kv_tile_part &at;
    uint8_t *tile;
    int row;
};

__device__ inline float load_channel(const mxa_tensor &x, int64_t offset)
{
    if (x.dtype == MXA_DTYPE_F32)
        return static_cast<const float *>(x.data)[offset];
    const uint16_t half = static_cast<const uint16_t *>(x.data)[offset];
    return x.dtype == MXA_DTYPE_BF16 ? mxa_f32_from_bf16(half) : mxa_f32_from_f16(half);
}

/* format/hadamard.h: the same additions in the same order. */
__device__ inline void rotate_row(float *x, int dim, int lane)
{
    const int group = int(mxa_hadamard_group(dim));
    if (group <= 1)
        return;
    for (int s = 1; s < group; s *= 2) {
        for (int i = lane; i < dim / 2; i += warp_width) {
            float *const lower = x + i / s * 2 * s + i % s;
            const float a = lower[0], b = lower[s];
            lower[0] = a + b;
            lower[s] = a - b;
        }
        warp_barrier();
    }
    const float norm = mxa_hadamard_norm(group);
    for (int d = lane; d < dim; d += warp_width)
        x[d] *= norm;
    warp_barrier();
}

/* What the codes are made of; mean is that of the head, or NULL. */
__device__ inline void prepare_row(const KvTarget &to, const mxa_tensor &x, int64_t offset, const float *mean,
                                   KvRow &row, int lane)
{
    for (int d = lane; d < to.at.dim; d += warp_width) {
        const float v = load_channel(x, offset + d);
        row.x[d] = mean ? v - mean[d] : v;
    }
    warp_barrier();
    if (to.part.rotate)
        rotate_row(row.x, to.at.dim, lane);
}

__device__ inline float row_factor(const KvTarget &to, const KvRow &row, int lane)
{
    uint32_t amax = 0;
    if (!to.at.has_g)
        return 1.0f;
    for (int d = lane; d < to.at.dim; d += warp_width) {
        const uint32_t magnitude = mxa_f32_bits(row.x[d]) & 0x7FFFFFFFu;
        if (magnitude < MXA_F32_INF && magnitude > amax)
            amax = magnitude;
    }
    return mxa_second_level(to.part.divisor, 0, mxa_f32_from_bits(warp_largest(amax, warp_width)));
}

/* Element x of a block whose largest magnitude has these bits; *scale: the block's byte. */
__device__ inline uint8_t code_mx(const mxa_cuda_kv_part &p, float x, uint32_t amax, float g, uint8_t *scale)
{
    if (amax >= MXA_F32_INF) {
        *scale = MXA_E8M0_NAN;
        return 0;
    }
    const float largest = mxa_saturate(mxa_f32_from_bits(amax) / g);
    *scale = mxa_mx_scale(p.element, p.threshold, mxa_f32_bits(largest));
    const float t = mxa_saturate(x / g) * mxa_pow2(127 - *scale);
    return p.format == MXA_FORMAT_MXINT8 ? mxa_mxint8_encode(t) : mxa_element_encode(p.element, t);
}

__device__ inline uint8_t code_nvfp4(float x, uint32_t amax, float g, uint8_t *scale)
{
    if (amax >= MXA_F32_INF) {
        *scale = MXA_UE4M3_NAN;
        return 0;
    }
    *scale = amax == 0 ? 0 : mxa_nvfp4_scale(mxa_f32_from_bits(amax) / (6.0f * g), 0);
    return mxa_element_encode(mxa_element_e2m1(), *scale ? x / (mxa_ue4m3_decode(*scale) * g) : x * 0.0f);
}

/* FP8 and INT8. */
__device__ inline uint8_t code_element(mxa_format format, float x, float g)
{
    if (!mxa_f32_is_finite(x))
        return format == MXA_FORMAT_FP8 ? MXA_FP8_NAN : MXA_INT8_NAN;
    return format == MXA_FORMAT_FP8 ? mxa_element_encode(mxa_element_e4m3(), x / g)
                                    : uint8_t(mxa_round_i8(x / g));
}

/* Codes of a quantised format to row.codes, its scales to the page. */
__device__ inline void code_row(const KvTarget &to, float g, KvRow &row, int lane)
{
    const mxa_cuda_kv_part &p = to.part;
    const int dim = to.at.dim;
    for (int first = 0; first < dim; first += warp_width) { /* all lanes: they meet in the maximum */
        const int d = first + lane;
        const float x = d < dim ? row.x[d] : 0.0f;
        uint8_t code, scale;
        if (p.block == 0) {
            code = d < dim ? code_element(p.format, x, g) : 0;
        } else {
            const uint32_t amax = warp_largest(mxa_f32_bits(x) & 0x7FFFFFFFu, p.block);
            code = p.is_mx ? code_mx(p, x, amax, g, &scale) : code_nvfp4(x, amax, g, &scale);
            if (d % p.block == 0 && d < dim)
                to.tile[mxa_kv_scale_at(&to.at, to.row, d / p.block)] = scale;
        }
        row.codes[d] = d < dim ? code : 0;
    }
    warp_barrier();
}

/* A row that no tile reads. */
__device__ inline void clear_row(const KvTarget &to, KvRow &row, int lane)
{
    for (int d = lane; d < MXA_DIM_MAX; d += warp_width) {
        row.x[d] = 0.0f;
        row.codes[d] = 0;
    }
    for (int c = lane; c < to.at.scale_cols; c += warp_width)
        to.tile[mxa_kv_scale_at(&to.at, to.row, c)] = 0;
    warp_barrier();
}

__device__ inline void store_plain(const KvTarget &to, const KvRow &row, int lane)
{
    const mxa_format format = to.part.format;
    for (int d = lane; d < to.at.dim; d += warp_width) {
        const float x = row.x[d];
        uint8_t *const codes = to.tile + mxa_kv_code_at(&to.at, to.row, d);
        if (format == MXA_FORMAT_F32)
            reinterpret_cast<uint32_t *>(codes)[d] = mxa_f32_canonical(x);
        else
            reinterpret_cast<uint16_t *>(codes)[to.at.bits ? 0 : d] =
                format == MXA_FORMAT_F16 ? mxa_f16_from_f32(x) : mxa_bf16_from_f32(x);
    }
}

/* Byte i of packed codes: docs/formats.md, "Packing". */
__device__ inline uint8_t packed_byte(const uint8_t *codes, int bits, int i)
{
    const int first = i * 8 / bits, shift = i * 8 % bits; /* the code that the byte begins in */
    uint32_t word = uint32_t(codes[first]) >> shift;
    if (bits < 8)
        word |= uint32_t(codes[first + 1]) << (bits - shift);
    return uint8_t(word);
}

__device__ inline void store_codes(const KvTarget &to, const KvRow &row, int lane)
{
    const int n = to.at.bits == 4 ? to.at.dim / 2 : to.at.row_bytes;
    for (int i = lane; i < n; i += warp_width) {
        const int d = to.at.bits == 4 ? i / 8 * 16 + i % 8 : i; /* a byte's channels are d and d + 8 */
        uint8_t *const codes = to.tile + mxa_kv_code_at(&to.at, to.row, d);
        if (to.at.bits == 4)
            *codes = mxa_kv_join(row.codes[d], row.codes[d + 8]);
        else if (to.at.bits == 8)
            *codes = row.codes[d] ^ to.at.flip;
        else
            codes[i] = packed_byte(row.codes, to.part.element_bits, i);
    }
}

/* The sign says that a code of the row is NaN. */
__device__ inline void store_factor(const KvTarget &to, float g, const KvRow &row, int lane)
{
    uint32_t is_nan = 0, bits = mxa_f32_bits(g);
    for (int d = lane; to.part.block == 0 && d < to.at.dim; d += warp_width)
        is_nan |= mxa_kv_code_is_nan(to.part.format, row.codes[d]);
    is_nan = warp_largest(is_nan, warp_width);
    if (lane == 0)
        *reinterpret_cast<uint32_t *>(to.tile + mxa_kv_g_at(&to.at, to.row)) =
            is_nan ? bits | MXA_KV_G_NAN : bits;
}

/* The tensor's row that begins at offset, or zeros. */
__device__ inline void store_row(const KvTarget &to, const mxa_tensor &x, int64_t offset, const float *mean,
                                 bool unread, KvRow &row, int lane)
{
    float g = 0.0f;
    if (unread) {
        clear_row(to, row, lane);
    } else {
        prepare_row(to, x, offset, mean, row, lane);
        g = row_factor(to, row, lane);
        if (to.part.element_bits <= 8)
            code_row(to, g, row, lane);
    }
    if (to.part.element_bits > 8)
        store_plain(to, row, lane);
    else
        store_codes(to, row, lane);
    if (to.at.has_g)
        store_factor(to, g, row, lane);
    warp_barrier(); /* the next row may come */
}

} // namespace mxa

#endif
