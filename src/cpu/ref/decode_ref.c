/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md, section 5, without the second-level factor. */
#include "cpu/ref/codes_ref.h"
#include "format/format.h"
#include "format/nvfp4.h"

static float plain_value(mxa_format format, const uint8_t *codes, int64_t i)
{
    if (format == MXA_FORMAT_F32) {
        float x;
        memcpy(&x, codes + i * (int64_t)sizeof x, sizeof x);
        return mxa_f32_from_bits(mxa_f32_canonical(x));
    }
    uint16_t half;
    memcpy(&half, codes + i * (int64_t)sizeof half, sizeof half);
    const float x = format == MXA_FORMAT_F16 ? mxa_f32_from_f16(half) : mxa_f32_from_bf16(half);
    return mxa_f32_from_bits(mxa_f32_canonical(x));
}

static void decode_block(const mxa_format_info *info, const uint8_t *codes, uint8_t scale, int n, float *out)
{
    uint8_t block[MXA_MX_BLOCK];
    mxa_unpack(info->element_bits, codes, info->block, block);
    for (int i = 0; i < n; i++)
        out[i] = mxa_format_is_mx(info) ? mxa_mx_value(info->format, block[i], scale)
                                        : mxa_nvfp4_value(block[i], scale, 1.0f);
}

static void decode_row(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t cols,
                       float *out)
{
    if (info->block == 0) {
        for (int64_t i = 0; i < cols; i++)
            out[i] = !info->quantized                  ? plain_value(info->format, codes, i)
                     : info->format == MXA_FORMAT_INT8 ? mxa_int8_decode(codes[i])
                                                       : mxa_element_decode(mxa_element_e4m3(), codes[i]);
        return;
    }
    for (int64_t first = 0; first < cols; first += info->block) {
        const int n = (int)(cols - first < info->block ? cols - first : info->block);
        decode_block(info, codes + mxa_packed_bytes(info->element_bits, first), scales[first / info->block],
                     n, out + first);
    }
}

void mxa_decode_ref(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t rows,
                    int64_t cols, float *out, int64_t out_stride)
{
    const int64_t row_bytes = mxa_row_bytes(info, cols), scale_cols = mxa_scale_cols(info, cols);
    for (int64_t r = 0; r < rows; r++)
        decode_row(info, codes + r * row_bytes, info->block ? scales + r * scale_cols : NULL, cols,
                   out + r * out_stride);
}
