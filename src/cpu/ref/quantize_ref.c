/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md, section 4, written out. */
#include "cpu/ref/codes_ref.h"
#include "format/format.h"
#include "format/nvfp4.h"

static void copy_plain(mxa_format format, const float *x, int64_t cols, uint8_t *codes)
{
    for (int64_t i = 0; i < cols; i++) {
        if (format == MXA_FORMAT_F32) {
            const uint32_t canonical = mxa_f32_canonical(x[i]);
            memcpy(codes + i * (int64_t)sizeof canonical, &canonical, sizeof canonical);
        } else {
            const uint16_t half = format == MXA_FORMAT_F16 ? mxa_f16_from_f32(x[i]) : mxa_bf16_from_f32(x[i]);
            memcpy(codes + i * (int64_t)sizeof half, &half, sizeof half);
        }
    }
}

/* FP8 and INT8 have no block scale that could carry a NaN: the element does. */
static int64_t quantize_elements(mxa_format format, const float *x, int64_t cols, float g, uint8_t *codes)
{
    int64_t n_bad = 0;
    for (int64_t i = 0; i < cols; i++) {
        if (!mxa_f32_is_finite(x[i])) {
            codes[i] = format == MXA_FORMAT_FP8 ? MXA_FP8_NAN : MXA_INT8_NAN;
            n_bad++;
        } else if (format == MXA_FORMAT_FP8) {
            codes[i] = mxa_element_encode(mxa_element_e4m3(), x[i] / g);
        } else {
            codes[i] = (uint8_t)mxa_round_i8(x[i] / g);
        }
    }
    return n_bad;
}

static int64_t quantize_row(const mxa_code_spec *spec, const float *x, int64_t cols, float g, uint8_t *codes,
                            uint8_t *scales)
{
    const mxa_format_info *info = spec->info;
    if (!info->quantized) {
        copy_plain(info->format, x, cols, codes);
        return 0;
    }
    if (info->block == 0)
        return quantize_elements(info->format, x, cols, g, codes);

    int64_t n_bad = 0;
    for (int64_t first = 0; first < cols; first += info->block) {
        const int n = (int)(cols - first < info->block ? cols - first : info->block);
        uint8_t block[MXA_MX_BLOCK] = { 0 };
        uint8_t *scale = scales + first / info->block;
        n_bad += mxa_format_is_mx(info)
                     ? mxa_mx_quantize_block(info->format, spec->rule, x + first, n, g, block, scale)
                     : mxa_nvfp4_quantize_block(spec->nvfp4, x + first, n, g, block, scale);
        mxa_pack(info->element_bits, block, info->block, codes + mxa_packed_bytes(info->element_bits, first));
    }
    return n_bad;
}

int64_t mxa_quantize_ref(const mxa_code_spec *spec, const mxa_prepared *x, const float *g, int64_t g_step,
                         uint8_t *codes, uint8_t *scales)
{
    const mxa_format_info *const info = spec->info;
    const int64_t row_bytes = mxa_row_bytes(info, x->cols), scale_cols = mxa_scale_cols(info, x->cols);
    int64_t n_bad = 0;
    for (int64_t r = 0; r < x->rows; r++)
        n_bad += quantize_row(spec, x->x + r * x->cols, x->cols, g[r * g_step], codes + r * row_bytes,
                              info->block ? scales + r * scale_cols : NULL);
    return n_bad;
}
