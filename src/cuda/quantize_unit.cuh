/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a few elements in shared memory, by the functions of src/format; nothing is kept in an array. */
#ifndef MXA_CUDA_QUANTIZE_UNIT_CUH
#define MXA_CUDA_QUANTIZE_UNIT_CUH

#include "cuda/quantize_params.h"
#include "format/container.h"
#include "format/nvfp4.h"

namespace mxa
{

constexpr int no_exponent = -1024; /* below that of any number */

/* n elements of shared memory that are coded together. */
struct Unit {
    const float *x;
    int stride, n;

    __device__ float operator[](int i) const
    {
        return x[i * stride];
    }
};

/* Codes to bytes, lowest bits first. */
struct Writer {
    uint8_t *to;
    uint32_t bits;
    int n_bits;

    __device__ void put(uint32_t value, int width)
    {
        bits |= value << n_bits;
        for (n_bits += width; n_bits >= 8; n_bits -= 8, bits >>= 8)
            *to++ = uint8_t(bits);
    }
};

__device__ inline uint32_t unit_amax(const Unit &u)
{
    uint32_t amax = 0;
    for (int i = 0; i < u.n; i++)
        amax = max(amax, mxa_f32_bits(u[i]) & 0x7FFFFFFFu);
    return amax;
}

/* One code of a block format in the form that is asked for. */
__device__ inline void put_code(const QuantCopy &c, Writer &w, uint32_t code, uint32_t scale, int row_scale)
{
    const int d = row_scale - (int(scale) - 127);
    const bool bad = c.is_mx && scale == MXA_E8M0_NAN;
    if (c.form == MXA_CUDA_CODES) {
        w.put(code, c.element_bits);
    } else if (c.form == MXA_CUDA_E5M2) {
        w.put(bad ? MXA_FP8_NAN : mxa_fold(c.format, MXA_CONTAINER_E5M2, code, d), 8);
    } else if (c.form == MXA_CUDA_E4M3) {
        w.put(bad ? MXA_FP8_NAN : mxa_fold(c.format, MXA_CONTAINER_E4M3, code, d), 8);
    } else {
        const float value =
            c.is_mx ? mxa_mx_value(c.format, code, scale) : mxa_nvfp4_value(code, scale, 1.0f);
        w.put(c.form == MXA_CUDA_BF16 ? mxa_bf16_from_f32(value) : mxa_f16_from_f32(value), 16);
    }
}

/* What is put for elements past the end of a row: codes fill the block. */
__device__ inline void put_tail(const QuantCopy &c, Writer &w, int n)
{
    if (c.form == MXA_CUDA_CODES)
        for (int i = n; i < c.block; i++)
            w.put(0, c.element_bits);
}

/* The scale of a finite MX block and 2^-e. */
struct MxScale {
    uint32_t scale;
    float power;
};

__device__ inline MxScale mx_scale_of(const QuantCopy &c, uint32_t amax, float g)
{
    const float largest = mxa_saturate(mxa_f32_from_bits(amax) / g);
    const uint32_t scale = mxa_mx_scale(c.element, c.threshold, mxa_f32_bits(largest));
    return { scale, mxa_pow2(127 - int(scale)) };
}

__device__ inline int code_mx(const QuantCopy &c, const Unit &u, float g, int row_scale, Writer &w,
                              uint8_t *scale)
{
    const uint32_t amax = unit_amax(u);
    const bool bad = amax >= MXA_F32_INF;
    const MxScale m = bad ? MxScale{ MXA_E8M0_NAN, 0.0f } : mx_scale_of(c, amax, g);
    for (int i = 0; i < u.n; i++) {
        const uint32_t code = bad ? 0 : mxa_mx_encode(c.format, mxa_saturate(u[i] / g) * m.power);
        put_code(c, w, code, m.scale, row_scale);
    }
    put_tail(c, w, u.n);
    if (scale)
        *scale = uint8_t(m.scale);
    return bad;
}

__device__ inline uint32_t nvfp4_code(float x, uint32_t scale, float g)
{
    const float d = mxa_ue4m3_decode(scale) * g;
    return mxa_element_encode(mxa_element_e2m1(), scale ? x / d : x * 0.0f);
}

__device__ inline double nvfp4_error(const Unit &u, uint32_t scale, float g)
{
    double sum = 0;
    for (int i = 0; i < u.n; i++) {
        const double error = double(u[i]) - double(mxa_nvfp4_value(nvfp4_code(u[i], scale, g), scale, g));
        sum += error * error;
    }
    return sum;
}

__device__ inline uint32_t nvfp4_scale_of(const QuantCopy &c, const Unit &u, uint32_t amax, float g)
{
    if (amax >= MXA_F32_INF)
        return MXA_UE4M3_NAN;
    if (amax == 0)
        return 0;
    const float largest = mxa_f32_from_bits(amax), u4 = largest / (4.0f * g);
    const uint32_t scale = mxa_nvfp4_scale(largest / (6.0f * g), c.nvfp4);
    if (!(c.nvfp4 & MXA_NVFP4_FOUR_OVER_SIX) || !(u4 <= 448.0f))
        return scale;
    const uint32_t scale4 = mxa_nvfp4_scale(u4, c.nvfp4);
    return nvfp4_error(u, scale4, g) < nvfp4_error(u, scale, g) ? scale4 : scale;
}

__device__ inline int code_nvfp4(const QuantCopy &c, const Unit &u, float g, Writer &w, uint8_t *scale)
{
    const uint32_t s = nvfp4_scale_of(c, u, unit_amax(u), g);
    for (int i = 0; i < u.n; i++)
        put_code(c, w, s == MXA_UE4M3_NAN ? 0 : nvfp4_code(u[i], s, g), s, 0);
    put_tail(c, w, u.n);
    if (scale)
        *scale = uint8_t(s);
    return s == MXA_UE4M3_NAN;
}

/* FP8 and INT8. */
__device__ inline int code_elements(const QuantCopy &c, const Unit &u, float g, Writer &w)
{
    int n_bad = 0;
    for (int i = 0; i < u.n; i++) {
        const bool bad = !mxa_f32_is_finite(u[i]), int8 = c.format == MXA_FORMAT_INT8;
        const float t = bad ? 0.0f : u[i] / g;
        const uint32_t code = bad    ? int8 ? MXA_INT8_NAN : MXA_FP8_NAN
                              : int8 ? uint8_t(mxa_round_i8(t))
                                     : mxa_element_encode(mxa_element_e4m3(), t);
        const float value = int8 ? mxa_int8_decode(code) : mxa_element_decode(mxa_element_e4m3(), code);
        if (c.form == MXA_CUDA_CODES)
            w.put(code, 8);
        else
            w.put(c.form == MXA_CUDA_BF16 ? mxa_bf16_from_f32(value) : mxa_f16_from_f32(value), 16);
        n_bad += bad;
    }
    return n_bad;
}

__device__ inline int code_plain(const QuantCopy &c, const Unit &u, Writer &w)
{
    for (int i = 0; i < u.n; i++) {
        if (c.format == MXA_FORMAT_F32) {
            const uint32_t bits = mxa_f32_canonical(u[i]);
            w.put(bits & 0xFFFF, 16);
            w.put(bits >> 16, 16);
        } else {
            w.put(c.format == MXA_FORMAT_BF16 ? mxa_bf16_from_f32(u[i]) : mxa_f16_from_f32(u[i]), 16);
        }
    }
    return 0;
}

__device__ inline int code_unit(const QuantCopy &c, const Unit &u, float g, int row_scale, uint8_t *to,
                                uint8_t *scale)
{
    Writer w = { to, 0, 0 };
    if (c.is_mx)
        return code_mx(c, u, g, row_scale, w, scale);
    if (c.format == MXA_FORMAT_NVFP4)
        return code_nvfp4(c, u, g, w, scale);
    if (c.format == MXA_FORMAT_FP8 || c.format == MXA_FORMAT_INT8)
        return code_elements(c, u, g, w);
    return code_plain(c, u, w);
}

/* The exponent of the largest number that the unit decodes to; no_exponent for zeros and NaN. */
__device__ inline int unit_exponent(const QuantCopy &c, const Unit &u, float g)
{
    const uint32_t amax = unit_amax(u);
    if (amax >= MXA_F32_INF)
        return no_exponent;
    const MxScale m = mx_scale_of(c, amax, g);
    const float largest = mxa_saturate(mxa_f32_from_bits(amax) / g) * m.power;
    const float decoded = mxa_mx_decode(c.format, mxa_mx_encode(c.format, largest));
    return decoded > 0 ? int(mxa_f32_bits(decoded) >> 23) - 127 + int(m.scale) - 127 : no_exponent;
}

} // namespace mxa

#endif
