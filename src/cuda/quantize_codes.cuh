/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of a piece, and what they decode to in the containers of attention kernels, in registers. */
#ifndef MXA_CUDA_QUANTIZE_CODES_CUH
#define MXA_CUDA_QUANTIZE_CODES_CUH

#include "cuda/common/codes_cuda.cuh"
#include "cuda/quantize_piece.cuh"
#include "format/nvfp4.h"

namespace mxa
{

template <int words>
__device__ __forceinline__ void fill_words(uint32_t value, uint32_t (&w)[words])
{
#pragma unroll
    for (int i = 0; i < words; i++)
        w[i] = value;
}

/* MXFP4; power is 2^-e of the block scale 2^e. */
template <bool capped>
__device__ __forceinline__ void code_e2m1(const float (&x)[piece], float power, uint32_t (&w)[piece / 8])
{
#pragma unroll
    for (int i = 0; i < piece / 8; i++) {
        float t[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            t[j] = fabsf(x[8 * i + j]) * power;
        w[i] = e2m1_word<capped>(t, x + 8 * i);
    }
}

template <__nv_fp8_interpretation_t type>
__device__ __forceinline__ void code_fp8(const float (&x)[piece], float factor, uint32_t (&w)[piece / 4])
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++)
        w[i] = fp8_word<type>(x[4 * i] * factor, x[4 * i + 1] * factor, x[4 * i + 2] * factor,
                              x[4 * i + 3] * factor);
}

__device__ __forceinline__ void mxint8_words(const float (&x)[piece], float power, uint32_t (&w)[piece / 4])
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        uint32_t n[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            n[j] = uint32_t(mxa_round_i8(x[4 * i + j] * power * 64.0f));
        w[i] = low_bytes(n[0], n[1], n[2], n[3]);
    }
}

/* FP8 and INT8 where the bracket does not decide, or an element is NaN or Inf. Returns how many are. */
template <bool int8>
__device__ __forceinline__ int code_elements_exactly(const float (&x)[piece], float g,
                                                     uint32_t (&w)[piece / 4])
{
    const Divisor d = make_divisor(g);
    int n_bad = 0;
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        uint32_t code[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float v = x[4 * i + j], t = copysignf(quotient(v, d), v);
            const bool bad = !mxa_f32_is_finite(v);
            if (int8)
                code[j] = bad ? MXA_INT8_NAN : uint32_t(mxa_round_i8(t));
            else
                code[j] = bad ? MXA_FP8_NAN : fp8_pair<__NV_E4M3>(t, 0.0f);
            n_bad += bad;
        }
        w[i] = low_bytes(code[0], code[1], code[2], code[3]);
    }
    return n_bad;
}

__device__ __forceinline__ int code_fp8_elements(const float (&x)[piece], float g, uint32_t amax,
                                                 uint32_t (&w)[piece / 4])
{
    const Bracket r = bracket_reciprocal(g);
    uint32_t differ = 0;
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        const float *v = x + 4 * i;
        w[i] = fp8_word<__NV_E4M3>(v[0] * r.less, v[1] * r.less, v[2] * r.less, v[3] * r.less);
        differ |= w[i] ^ fp8_word<__NV_E4M3>(v[0] * r.more, v[1] * r.more, v[2] * r.more, v[3] * r.more);
    }
    return differ || amax >= MXA_F32_INF ? code_elements_exactly<false>(x, g, w) : 0;
}

__device__ __forceinline__ int code_int8_elements(const float (&x)[piece], float g, uint32_t amax,
                                                  uint32_t (&w)[piece / 4])
{
    const Bracket r = bracket_reciprocal(g);
    uint32_t differ = 0;
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        uint32_t n[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            n[j] = __float_as_uint(fmaf(x[4 * i + j], r.less, round_whole));
            differ |= n[j] ^ __float_as_uint(fmaf(x[4 * i + j], r.more, round_whole));
        }
        w[i] = low_bytes(n[0], n[1], n[2], n[3]);
    }
    const float largest_exact = 127.25f; /* rounds to 127, also as a product */
    const bool simple = amax < MXA_F32_INF && __uint_as_float(amax) * r.more < largest_exact;
    return simple && !differ ? 0 : code_elements_exactly<true>(x, g, w);
}

/* Rounded to nearest; what overflows becomes Inf. */
template <bool bf16>
__device__ __forceinline__ uint32_t half_pair(float lo, float hi)
{
    if (bf16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
        return reinterpret_cast<const uint32_t &>(pair);
    }
    const __half2 pair = __floats2half2_rn(lo, hi);
    return reinterpret_cast<const uint32_t &>(pair);
}

__device__ __forceinline__ void set_half(uint32_t &pair, int i, uint32_t half)
{
    pair = i ? (pair & 0x0000FFFFu) | half << 16 : (pair & 0xFFFF0000u) | half;
}

/* The two lower codes of FP8 or INT8, not NaN, in bf16 or fp16. */
template <bool int8, bool bf16>
__device__ __forceinline__ uint32_t decode_pair(uint32_t codes)
{
    if (int8) {
        const float base = 0x1p23f + 128.0f; /* whose last byte is flipped by that of a number */
        const uint32_t flipped = codes ^ 0x8080u;
        const float lo = __uint_as_float(__byte_perm(flipped, 0x4B000000u, 0x7440)) - base;
        const float hi = __uint_as_float(__byte_perm(flipped, 0x4B000000u, 0x7441)) - base;
        return half_pair<bf16>(lo, hi);
    }
    const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(codes), __NV_E4M3);
    const __half2 pair = raw;
    if (!bf16)
        return reinterpret_cast<const uint32_t &>(pair);
    const float2 wide = __half22float2(pair);
    return half_pair<true>(wide.x, wide.y);
}

/* How an element of a format is rounded without making its code. */
struct Rounding {
    float smallest_normal, largest;
    float whole; /* a binade times this, added and subtracted, leaves whole multiples of the binade's unit */
};

MXA_HD inline Rounding rounding_of(mxa_format format)
{
    const mxa_element e = mxa_element_of(format);
    return { mxa_pow2(1 - e.bias), mxa_element_decode(e, e.largest), 1.5f * mxa_pow2(23 - e.man_bits) };
}

/* What the code of x >= 0 decodes to. capped: x may be above the largest. */
template <bool capped = true>
MXA_HD inline float rounded(float x, const Rounding &r)
{
    const float binade = mxa_f32_from_bits(mxa_f32_bits(fmaxf(x, r.smallest_normal)) & MXA_F32_INF);
    const float y = fmaf(binade, -r.whole, fmaf(binade, r.whole, x));
    return capped ? fminf(y, r.largest) : y;
}

/*
 * Element times block scale, within bf16; power is 2^-e, scale 2^e. MXINT8, unlike the others, has one zero
 * only.
 */
template <bool mxint8>
__device__ __forceinline__ float decode_element(float x, const Rounding &r, float power, float scale)
{
    const float largest = __uint_as_float(0x7F7F0000u); /* of bf16 */
    if (mxint8)
        return fminf(fmaxf(float(mxa_round_i8(x * power * 64.0f)) * 0x1p-6f * scale, -largest), largest);
    return copysignf(fminf(rounded(fabsf(x) * power, r) * scale, largest), x);
}

template <bool mxint8>
__device__ __forceinline__ void decode_mx(const float (&x)[piece], const Rounding &r, float power,
                                          float scale, uint32_t (&w)[piece / 2])
{
#pragma unroll
    for (int i = 0; i < piece / 2; i++)
        w[i] = half_pair<true>(decode_element<mxint8>(x[2 * i], r, power, scale),
                               decode_element<mxint8>(x[2 * i + 1], r, power, scale));
}

/* The same in an FP8 container: format/container.h. fold is the block scale over that of the container. */
template <__nv_fp8_interpretation_t type, bool capped>
__device__ __forceinline__ void fold_mx(const float (&x)[piece], const Rounding &r, float power, float fold,
                                        uint32_t (&w)[piece / 4])
{
#pragma unroll
    for (int i = 0; i < piece / 4; i++) {
        float t[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            t[j] = copysignf(rounded<capped>(fabsf(x[4 * i + j]) * power, r) * fold, x[4 * i + j]);
        w[i] = fp8_word<type>(t[0], t[1], t[2], t[3]);
    }
}

/* Rounded to 16 bits; NaN, Inf and saturation as in core/bits.h. amax: bits of the largest magnitude. */
template <bool bf16>
__device__ __forceinline__ void round_halves(const float (&x)[piece], uint32_t amax, uint32_t (&w)[piece / 2])
{
    const uint32_t never_saturates = bf16 ? 0x7F7F0000u : 0x477FE000u;
    if (amax <= never_saturates) {
#pragma unroll
        for (int i = 0; i < piece / 2; i++)
            w[i] = half_pair<bf16>(x[2 * i], x[2 * i + 1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < piece / 2; i++)
        w[i] = bf16 ? mxa_bf16_from_f32(x[2 * i]) | uint32_t(mxa_bf16_from_f32(x[2 * i + 1])) << 16
                    : mxa_f16_from_f32(x[2 * i]) | uint32_t(mxa_f16_from_f32(x[2 * i + 1])) << 16;
}

/* One block of NVFP4: its scale byte, and what its elements are divided by. */
struct Nvfp4Block {
    uint32_t scale;
    Divisor d; /* scale * g */
    bool bad;  /* holds NaN or Inf */
};

__device__ __forceinline__ Nvfp4Block nvfp4_block(uint32_t amax, unsigned options, float g)
{
    Nvfp4Block b;
    b.bad = amax >= MXA_F32_INF;
    const float u = quotient(__uint_as_float(amax), make_divisor(6.0f * g));
    b.scale = b.bad ? MXA_UE4M3_NAN : amax == 0 ? 0 : mxa_nvfp4_scale(u, options);
    b.d = make_divisor(mxa_ue4m3_decode(b.scale ? b.scale : 1) * g);
    return b;
}

/* Magnitudes of eight elements over scale * g; zeros where the scale is 0. */
__device__ __forceinline__ void nvfp4_divide(const float *x, const Nvfp4Block &b, float (&t)[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        t[j] = b.scale ? quotient(x[j], b.d) : 0.0f;
}

} // namespace mxa

#endif
