/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/portable/codes_portable.h"
#include "cpu/ref/codes_ref.h"
#include "format/format.h"
#include "format/nvfp4.h"

#define SPECIALIZE static inline __attribute__((always_inline))

/*
 * mxa_element_decode without branches and without subnormal operands, which some processors take many cycles
 * for: a code below the smallest normal number is read with that number's exponent, which is then subtracted.
 * /
 */
SPECIALIZE float decode(mxa_element f, int32_t code, float scale)
{
    const int cut = 23 - f.man_bits;
    const int32_t mag = code & (int32_t)(f.sign - 1), sign = code & (int32_t)f.sign ? INT32_MIN : 0;
    const int32_t normal = (mag << cut) + ((127 - f.bias) << 23);
    const float lifted = mxa_f32_from_bits((uint32_t)(normal + (1 << 23)));
    const int32_t subnormal = (int32_t)mxa_f32_bits(lifted - mxa_pow2(1 - f.bias));
    const int32_t finite = (mag >> f.man_bits == 0 ? subnormal : normal) | sign;
    const int32_t inf = f.inf && mag == (int32_t)f.inf ? sign | (int32_t)MXA_F32_INF : (int32_t)MXA_F32_NAN;
    return mxa_f32_from_bits((uint32_t)(mag > (int32_t)f.largest ? inf : finite)) * scale;
}

SPECIALIZE float decode_mx(mxa_format format, int32_t code, float scale)
{
    return format == MXA_FORMAT_MXINT8 ? (float)(int8_t)code * (0x1p-6f * scale)
                                       : decode(mxa_element_of(format), code, scale);
}

SPECIALIZE void load_block(int bits, const uint8_t *packed, int n, uint8_t *codes)
{
    if (bits == 4) {
        for (int j = 0; j < n / 2; j++) {
            const uint16_t pair = (uint16_t)((packed[j] | packed[j] << 4) & 0x0F0F);
            memcpy(codes + 2 * j, &pair, sizeof pair);
        }
    } else {
        mxa_unpack(bits, packed, n, codes);
    }
}

/* Scales under which no product overflows or has a subnormal factor; others, and NaN, are the reference's. */
SPECIALIZE bool is_ordinary(mxa_format format, uint8_t scale)
{
    const int lowest = 7, highest = 254 - (mxa_element_of(format).emax + 1);
    return scale >= lowest && scale <= highest;
}

SPECIALIZE void mx_row(mxa_format format, int bits, const uint8_t *codes, const uint8_t *scales, int64_t cols,
                       float *out)
{
    for (int64_t first = 0; first < cols; first += MXA_MX_BLOCK) {
        uint8_t block[MXA_MX_BLOCK];
        float values[MXA_MX_BLOCK];
        const uint8_t scale = scales[first / MXA_MX_BLOCK];
        load_block(bits, codes + first / 8 * bits, MXA_MX_BLOCK, block);
        if (is_ordinary(format, scale)) {
            const float factor = mxa_e8m0_decode(scale);
            for (int i = 0; i < MXA_MX_BLOCK; i++)
                values[i] = decode_mx(format, block[i], factor);
        } else {
            for (int i = 0; i < MXA_MX_BLOCK; i++)
                values[i] = mxa_mx_value(format, block[i], scale);
        }
        const int64_t n = cols - first < MXA_MX_BLOCK ? cols - first : MXA_MX_BLOCK;
        memcpy(out + first, values, (size_t)n * sizeof *out);
    }
}

static void nvfp4_row(const uint8_t *codes, const uint8_t *scales, int64_t cols, float *out)
{
    for (int64_t first = 0; first < cols; first += MXA_NVFP4_BLOCK) {
        uint8_t block[MXA_NVFP4_BLOCK];
        float values[MXA_NVFP4_BLOCK];
        const uint8_t scale = scales[first / MXA_NVFP4_BLOCK] & 0x7F;
        const float factor = mxa_ue4m3_decode(scale);
        load_block(4, codes + first / 2, MXA_NVFP4_BLOCK, block);
        for (int i = 0; i < MXA_NVFP4_BLOCK; i++) {
            const float value = decode(mxa_element_e2m1(), block[i], factor);
            values[i] = scale == MXA_UE4M3_NAN ? factor : value; /* NaN without a sign */
        }
        const int64_t n = cols - first < MXA_NVFP4_BLOCK ? cols - first : MXA_NVFP4_BLOCK;
        memcpy(out + first, values, (size_t)n * sizeof *out);
    }
}

static void fp8_row(const uint8_t *codes, int64_t cols, float *out)
{
    for (int64_t i = 0; i < cols; i++)
        out[i] = decode(mxa_element_e4m3(), codes[i], 1.0f);
}

static void int8_row(const uint8_t *codes, int64_t cols, float *out)
{
    for (int64_t i = 0; i < cols; i++) {
        const uint32_t number = mxa_f32_bits((float)(int8_t)codes[i]);
        out[i] = mxa_f32_from_bits(codes[i] == MXA_INT8_NAN ? MXA_F32_NAN : number);
    }
}

static void bf16_row(const uint8_t *codes, int64_t cols, float *out)
{
    for (int64_t i = 0; i < cols; i++) {
        uint16_t half;
        memcpy(&half, codes + i * (int64_t)sizeof half, sizeof half);
        out[i] = mxa_f32_from_bits(mxa_f32_canonical(mxa_f32_from_bf16(half)));
    }
}

static void f16_row(const uint8_t *codes, int64_t cols, float *out)
{
    for (int64_t i = 0; i < cols; i++) {
        uint16_t half;
        memcpy(&half, codes + i * (int64_t)sizeof half, sizeof half);
        out[i] = mxa_f32_from_bits(mxa_f32_canonical(mxa_f32_from_f16(half)));
    }
}

static void decode_row(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t cols,
                       float *out)
{
    switch (info->format) {
    case MXA_FORMAT_MXFP8_E4M3: mx_row(MXA_FORMAT_MXFP8_E4M3, 8, codes, scales, cols, out); break;
    case MXA_FORMAT_MXFP8_E5M2: mx_row(MXA_FORMAT_MXFP8_E5M2, 8, codes, scales, cols, out); break;
    case MXA_FORMAT_MXFP6_E3M2: mx_row(MXA_FORMAT_MXFP6_E3M2, 6, codes, scales, cols, out); break;
    case MXA_FORMAT_MXFP6_E2M3: mx_row(MXA_FORMAT_MXFP6_E2M3, 6, codes, scales, cols, out); break;
    case MXA_FORMAT_MXFP4: mx_row(MXA_FORMAT_MXFP4, 4, codes, scales, cols, out); break;
    case MXA_FORMAT_MXINT8: mx_row(MXA_FORMAT_MXINT8, 8, codes, scales, cols, out); break;
    case MXA_FORMAT_NVFP4: nvfp4_row(codes, scales, cols, out); break;
    case MXA_FORMAT_FP8: fp8_row(codes, cols, out); break;
    case MXA_FORMAT_INT8: int8_row(codes, cols, out); break;
    case MXA_FORMAT_BF16: bf16_row(codes, cols, out); break;
    case MXA_FORMAT_F16: f16_row(codes, cols, out); break;
    default: mxa_decode_ref(info, codes, scales, 1, cols, out, cols); break;
    }
}

void mxa_decode_portable(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales,
                         int64_t rows, int64_t cols, float *out, int64_t out_stride)
{
    const int64_t row_bytes = mxa_row_bytes(info, cols), scale_cols = mxa_scale_cols(info, cols);
    for (int64_t r = 0; r < rows; r++)
        decode_row(info, codes + r * row_bytes, info->block ? scales + r * scale_cols : NULL, cols,
                   out + r * out_stride);
}
