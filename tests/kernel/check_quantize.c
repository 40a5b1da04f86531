/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every quantiser gives the reference's bytes, and the reference what exact_quantize.c works out in double.
 */
#include "check_lists.h"

#include "check.h"
#include "core/bits.h"
#include "cpu/kernels.h"
#include "exact_quantize.h"
#include "row_shape.h"

#include <math.h>

static const mxa_quantize_impl *reference_quantizer(void)
{
    const mxa_quantize_impl *impl = mxa_quantize_impls;
    while (impl[1].name)
        impl++;
    return impl;
}

static mxa_code_spec pick_spec(const mxa_format_info *info)
{
    mxa_code_spec spec = { .info = info };
    if (info->scale == MXA_SCALE_E8M0)
        spec.rule = (mxa_rule)check_pick(MXA_RULE_FLOOR, MXA_RULE_EVEN);
    if (info->format == MXA_FORMAT_NVFP4 && check_pick(0, 2))
        spec.nvfp4 = (unsigned)check_pick(0, MXA_NVFP4_FOUR_OVER_SIX * 2 - 1);
    return spec;
}

/*
 * 1, any legal one, the factor that the row's maximum suggests, or a power of two near it (which leaves
 * ties).
 */
static float pick_factor(const mxa_format_info *info, const float *x, int64_t cols)
{
    const double legal = 0x1p117, largest = info->largest * (info->scale == MXA_SCALE_UE4M3 ? 448 : 1);
    const int64_t choice = info->quantized ? check_pick(0, 7) : 0;
    if (choice == 0)
        return 1;
    if (choice == 1)
        return ldexpf(1 + (float)check_pick(0, 1023) / 1024, (int)check_pick(-117, 116));
    if (info->scale == MXA_SCALE_E8M0)
        return 1;
    double amax = 0;
    for (int64_t d = 0; d < cols; d++)
        if (mxa_f32_is_finite(x[d]))
            amax = fmax(amax, fabs((double)x[d]));
    if (amax == 0)
        return 1;
    const double g = choice < 5 ? amax / largest : ldexp(1, ilogb(amax / largest) + (int)check_pick(0, 2));
    return (float)fmin(fmax(g, 1 / legal), legal);
}

/* Of one row; returns how many non-finite blocks or elements it has. */
static int64_t compare_with_exact(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                                  check_buf codes, check_buf scales)
{
    exact_row row;
    exact_quantize(spec, x, cols, g, &row);
    for (size_t b = 0; b < scales.bytes; b++)
        if (scales.data[b] != row.scales[b])
            check_fail("scales[%zu]: want 0x%02X, got 0x%02X", b, row.scales[b], scales.data[b]);
    for (int64_t d = 0; d < cols; d++) {
        const double got =
            exact_element(spec->info->format, exact_code(codes.data, spec->info->element_bits, d));
        const double want = row.elements[d];
        if (isnan(want) ? !isnan(got) : want != got || !signbit(want) != !signbit(got))
            check_fail("element %lld of %lld (%.9g, g %.9g): want %g, got %g", (long long)d, (long long)cols,
                       (double)x[d], (double)g, want, got);
    }
    return row.bad;
}

/* The reference's rows, one after the other. */
static void compare_rows_with_exact(const mxa_code_spec *spec, const float *x, int64_t rows, int64_t cols,
                                    const float *g, int64_t g_step, check_buf codes, check_buf scales,
                                    int64_t bad)
{
    const row_shape shape = row_shape_of(spec->info, cols);
    int64_t want_bad = 0;
    for (int64_t r = 0; r < rows; r++) {
        const check_buf row_codes = { codes.data + r * shape.code_bytes, (size_t)shape.code_bytes };
        const check_buf row_scales = { scales.data + r * shape.scale_bytes, (size_t)shape.scale_bytes };
        want_bad += compare_with_exact(spec, x + r * cols, cols, g[r * g_step], row_codes, row_scales);
    }
    if (bad != want_bad)
        check_fail("want %lld non-finite, got %lld", (long long)want_bad, (long long)bad);
}

/* As an mxa_prepare_rows_fn gives them. */
static const uint32_t *block_maxima(const float *x, int64_t rows, int64_t cols)
{
    const int64_t blocks = mxa_amax_count(cols);
    uint32_t *const amax = (uint32_t *)(void *)check_bytes((size_t)(rows * blocks) * sizeof *amax).data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b++) {
            uint32_t largest = 0;
            for (int64_t d = b * MXA_AMAX_BLOCK; d < cols && d < (b + 1) * MXA_AMAX_BLOCK; d++) {
                const uint32_t mag = mxa_f32_bits(x[r * cols + d]) & 0x7FFFFFFFu;
                largest = mag > largest ? mag : largest;
            }
            amax[r * blocks + b] = largest;
        }
    return amax;
}

static void check_quantizer(const mxa_quantize_impl *impl, const mxa_format_info *info)
{
    enum { MOST_ROWS = 9 };
    const mxa_quantize_impl *reference = reference_quantizer();
    while (check_round()) {
        const mxa_code_spec spec = pick_spec(info);
        const int64_t cols = row_shape_pick_cols(info), rows = check_pick(1, MOST_ROWS);
        const int64_t g_step = check_pick(0, 1);
        const row_shape shape = row_shape_of(info, cols);
        const float *x = check_floats(rows * cols, true);
        float g[MOST_ROWS];
        for (int64_t r = 0; r < rows; r++)
            g[r] = pick_factor(info, x + r * cols, cols);
        const check_buf codes = check_bytes((size_t)(rows * shape.code_bytes));
        const check_buf scales = check_bytes((size_t)(rows * shape.scale_bytes));
        const mxa_prepared prepared = { x, block_maxima(x, rows, cols), rows, cols };
        const int64_t bad = impl->fn(&spec, &prepared, g, g_step, codes.data, scales.data);
        if (impl == reference) {
            check_guards("codes", codes);
            check_guards("scales", scales);
            compare_rows_with_exact(&spec, x, rows, cols, g, g_step, codes, scales, bad);
            continue;
        }
        const check_buf want_codes = check_bytes(codes.bytes), want_scales = check_bytes(scales.bytes);
        const int64_t want_bad =
            reference->fn(&spec, &prepared, g, g_step, want_codes.data, want_scales.data);
        check_same("scales", want_scales, scales);
        check_same("codes", want_codes, codes);
        if (bad != want_bad)
            check_fail("want %lld non-finite, got %lld", (long long)want_bad, (long long)bad);
    }
}

static void time_quantizer(const mxa_quantize_impl *impl, const mxa_format_info *info)
{
    const int64_t rows = 256, cols = 128;
    const row_shape shape = row_shape_of(info, cols);
    const mxa_code_spec spec = { .info = info, .rule = info->default_rule };
    const check_buf x = check_bytes((size_t)(rows * cols) * sizeof(float));
    for (int64_t i = 0; i < rows * cols; i++)
        ((float *)(void *)x.data)[i] = check_normal();
    const check_buf codes = check_bytes((size_t)(rows * shape.code_bytes));
    const check_buf scales = check_bytes((size_t)(rows * shape.scale_bytes));
    /* near what the maximum of such a row gives; MX formats have none by default */
    const float g = info->default_level == MXA_LEVEL_NONE ? 1.0f : 0x1p-7f;
    const float *const numbers = (const float *)(const void *)x.data;
    const mxa_prepared prepared = { numbers, block_maxima(numbers, rows, cols), rows, cols };
    for (check_timer t = { .bytes = (double)(x.bytes + codes.bytes + scales.bytes) }; check_time(&t);)
        impl->fn(&spec, &prepared, &g, 0, codes.data, scales.data);
}

void check_quantize(void)
{
    for (const mxa_quantize_impl *impl = mxa_quantize_impls; impl->name; impl++) {
        for (int format = MXA_FORMAT_F32; mxa_format_get((mxa_format)format); format++) {
            const mxa_format_info *info = mxa_format_get((mxa_format)format);
            if (impl->format != MXA_FORMAT_NONE && impl->format != info->format)
                continue;
            if (!check_entry("quantize", impl->name, info->name, impl->needs))
                continue;
            check_quantizer(impl, info);
            if (check_benching())
                time_quantizer(impl, info);
        }
    }
}
