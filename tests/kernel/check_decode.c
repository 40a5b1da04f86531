/* SPDX-License-Identifier: Apache-2.0 */
/* Every decoder gives the reference's bytes, and the reference gives the values that the formats define. */
#include "check_lists.h"

#include "check.h"
#include "core/bits.h"
#include "cpu/kernels.h"
#include "exact_values.h"
#include "row_shape.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const mxa_decode_impl *reference_decoder(void)
{
    const mxa_decode_impl *impl = mxa_decode_impls;
    while (impl[1].name)
        impl++;
    return impl;
}

static float exact_value(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales, int64_t d)
{
    const double element = exact_element(info->format, exact_code(codes, info->element_bits, d));
    double scale = 1;
    if (info->scale == MXA_SCALE_E8M0)
        scale = exact_e8m0(scales[d / info->block]);
    if (info->scale == MXA_SCALE_UE4M3)
        scale = exact_ue4m3(scales[d / info->block]);
    const double value = element * scale;
    if (isnan(value))
        return mxa_f32_from_bits(MXA_F32_NAN);
    return (float)(isinf(value) ? value : fmin(fmax(value, -FLT_MAX), FLT_MAX));
}

static void decode_exact(const mxa_format_info *info, const uint8_t *codes, const uint8_t *scales,
                         int64_t rows, int64_t cols, float *out, int64_t out_stride)
{
    const row_shape shape = row_shape_of(info, cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < cols; d++)
            out[r * out_stride + d] =
                exact_value(info, codes + r * shape.code_bytes, scales + r * shape.scale_bytes, d);
}

static void check_decoder(const mxa_decode_impl *impl, const mxa_format_info *info)
{
    const mxa_decode_impl *reference = reference_decoder();
    mxa_decode_rows_fn *want_fn = impl == reference ? decode_exact : reference->fn;
    while (check_round()) {
        const int64_t rows = check_pick(1, 40), cols = row_shape_pick_cols(info);
        const int64_t stride = cols + check_pick(0, 5);
        const row_shape shape = row_shape_of(info, cols);
        const check_buf codes = check_bytes((size_t)(rows * shape.code_bytes));
        const check_buf scales = check_bytes((size_t)(rows * shape.scale_bytes));
        const size_t out_bytes = (size_t)((rows - 1) * stride + cols) * sizeof(float);
        const check_buf want = check_bytes(out_bytes), got = check_bytes(out_bytes);

        memcpy(want.data, got.data, out_bytes); /* the gaps between rows stay as they are */
        want_fn(info, codes.data, scales.data, rows, cols, (float *)(void *)want.data, stride);
        impl->fn(info, codes.data, scales.data, rows, cols, (float *)(void *)got.data, stride);
        check_same_floats("out", want, got);
    }
}

static void time_decoder(const mxa_decode_impl *impl, const mxa_format_info *info)
{
    const int64_t rows = 512, cols = 128;
    const row_shape shape = row_shape_of(info, cols);
    const check_buf codes = check_bytes((size_t)(rows * shape.code_bytes));
    const check_buf scales = check_bytes((size_t)(rows * shape.scale_bytes));
    const check_buf out = check_bytes((size_t)(rows * cols) * sizeof(float));
    for (check_timer t = { .bytes = (double)(codes.bytes + scales.bytes + out.bytes) }; check_time(&t);)
        impl->fn(info, codes.data, scales.data, rows, cols, (float *)(void *)out.data, cols);
}

void check_decode(void)
{
    for (const mxa_decode_impl *impl = mxa_decode_impls; impl->name; impl++) {
        for (int format = MXA_FORMAT_F32; mxa_format_get((mxa_format)format); format++) {
            const mxa_format_info *info = mxa_format_get((mxa_format)format);
            if (impl->format != MXA_FORMAT_NONE && impl->format != info->format)
                continue;
            if (!check_entry("decode", impl->name, info->name, impl->needs))
                continue;
            check_decoder(impl, info);
            if (check_benching())
                time_decoder(impl, info);
        }
    }
}
