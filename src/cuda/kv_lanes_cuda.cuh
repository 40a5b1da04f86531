/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common rows of kv_row_cuda.cuh in registers: dims of 64, 128 and 256 in MXFP4, INT8, FP8 and 16 bits. A
 * lane has `each` channels beside each other. An append of one token is a few hundred instructions of each
 * warp this way.
 */
#ifndef MXA_CUDA_KV_LANES_CUDA_CUH
#define MXA_CUDA_KV_LANES_CUDA_CUH

#include "cuda/common/codes_cuda.cuh"
#include "cuda/kv_row_cuda.cuh"

namespace mxa
{

template <int each>
struct KvLane {
    float x[each];
    uint32_t code[each];
    uint32_t amax; /* bits of the largest magnitude of the lane */
    int lane;
};

/* As format/hadamard.h: a lane with the upper channel of a pair gets a - b. */
template <int each>
__device__ __forceinline__ void rotate_lane(KvLane<each> &v)
{
#pragma unroll
    for (int s = 1; s < each; s *= 2)
#pragma unroll
        for (int i = 0; i < each; i++)
            if ((i & s) == 0) {
                const float a = v.x[i], b = v.x[i + s];
                v.x[i] = a + b;
                v.x[i + s] = a - b;
            }
#pragma unroll
    for (int s = 1; s < warp_width; s *= 2) {
        const float sign = v.lane & s ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < each; i++)
            v.x[i] = fmaf(v.x[i], sign, warp_exchange(v.x[i], s));
    }
    const float norm = mxa_hadamard_norm(each * warp_width);
#pragma unroll
    for (int i = 0; i < each; i++)
        v.x[i] *= norm;
}

template <int each>
__device__ __forceinline__ void load_lane(const KvTarget &to, const mxa_tensor &x, int64_t offset,
                                          const float *mean, KvLane<each> &v)
{
#pragma unroll
    for (int i = 0; i < each; i++) {
        v.x[i] = load_channel(x, offset + v.lane * each + i);
        if (mean)
            v.x[i] -= mean[v.lane * each + i];
    }
    if (to.part.rotate)
        rotate_lane(v);
    v.amax = 0;
#pragma unroll
    for (int i = 0; i < each; i++)
        v.amax = mxa_max(v.amax, mxa_f32_bits(v.x[i]) & 0x7FFFFFFFu);
}

/* Codes, and the byte of the block scale. */
template <int each>
__device__ __forceinline__ void code_mxfp4_lane(const KvTarget &to, KvLane<each> &v)
{
    constexpr int lanes = MXA_MX_BLOCK / each; /* of a block */
    const uint32_t amax = warp_largest(v.amax, lanes);
    const bool bad = amax >= MXA_F32_INF;
    const uint32_t scale = bad ? MXA_E8M0_NAN : mxa_mx_scale(to.part.element, to.part.threshold, amax);
    const float power = mxa_pow2(127 - int(scale));
#pragma unroll
    for (int i = 0; i < each; i++) {
        const uint32_t code = e2m1_rounded<true>(fabsf(v.x[i]) * power) - mxa_f32_bits(round_whole);
        v.code[i] = bad ? 0 : code | (mxa_f32_bits(v.x[i]) >> 28 & 8);
    }
    if (v.lane % lanes == 0)
        to.tile[mxa_kv_scale_at(&to.at, to.row, v.lane / lanes)] = uint8_t(scale);
}

/* INT8 and FP8 of finite numbers, and the factor. */
template <int each>
__device__ __forceinline__ void code_elements_lane(const KvTarget &to, uint32_t amax, KvLane<each> &v)
{
    const float g = mxa_second_level(to.part.divisor, 0, mxa_f32_from_bits(amax));
    const Divisor d = make_divisor(g);
#pragma unroll
    for (int i = 0; i < each; i++) {
        const float t = copysignf(quotient(v.x[i], d), v.x[i]);
        v.code[i] = to.part.format == MXA_FORMAT_INT8 ? uint32_t(mxa_round_i8(t)) & 0xFF
                                                      : fp8_pair<__NV_E4M3>(t, 0.0f) & 0xFF;
    }
    if (v.lane == 0)
        *reinterpret_cast<float *>(to.tile + mxa_kv_g_at(&to.at, to.row)) = g;
}

/* Channels d and d + 8 share a byte: those of this lane, and of one that has the others. */
template <int each>
__device__ __forceinline__ void store_nibbles(const KvTarget &to, const KvLane<each> &v)
{
    constexpr int other = 8 / each;
    mxa_kv_tile_part at = to.at;
    at.bits = 4;
#pragma unroll
    for (int i = 0; i < each; i++) {
        const uint32_t second = warp_exchange(v.code[i], other);
        if ((v.lane & other) == 0)
            to.tile[mxa_kv_code_at(&at, to.row, v.lane * each + i)] = mxa_kv_join(v.code[i], second);
    }
}

template <int each>
__device__ __forceinline__ void store_bytes(const KvTarget &to, const KvLane<each> &v)
{
    mxa_kv_tile_part at = to.at;
    at.bits = 8;
#pragma unroll
    for (int i = 0; i < each; i++)
        to.tile[mxa_kv_code_at(&at, to.row, v.lane * each + i)] = uint8_t(v.code[i]) ^ at.flip;
}

template <int each>
__device__ __forceinline__ void store_halves(const KvTarget &to, const KvLane<each> &v)
{
    mxa_kv_tile_part at = to.at;
    at.bits = 16;
#pragma unroll
    for (int i = 0; i < each; i++)
        *reinterpret_cast<uint16_t *>(to.tile + mxa_kv_code_at(&at, to.row, v.lane * each + i)) =
            to.part.format == MXA_FORMAT_F16 ? mxa_f16_from_f32(v.x[i]) : mxa_bf16_from_f32(v.x[i]);
}

/* As store_row of a row that is read; false: it is for that, nothing was stored. All lanes agree. */
template <int each>
__device__ __forceinline__ bool store_lanes(const KvTarget &to, const mxa_tensor &x, int64_t offset,
                                            const float *mean, int lane)
{
    const mxa_format format = to.part.format;
    const bool is_half = format == MXA_FORMAT_F16 || format == MXA_FORMAT_BF16;
    const bool has_elements = format == MXA_FORMAT_INT8 || format == MXA_FORMAT_FP8;
    if ((!is_half && !has_elements && format != MXA_FORMAT_MXFP4) || to.at.has_g != has_elements)
        return false;
    KvLane<each> v;
    v.lane = lane;
    load_lane(to, x, offset, mean, v);
    if (is_half) {
        store_halves(to, v);
    } else if (format == MXA_FORMAT_MXFP4) {
        code_mxfp4_lane(to, v);
        store_nibbles(to, v);
    } else {
        const uint32_t amax = warp_largest(v.amax, warp_width);
        if (amax >= MXA_F32_INF)
            return false;
        code_elements_lane(to, amax, v);
        store_bytes(to, v);
    }
    return true;
}

} // namespace mxa

#endif
