/* SPDX-License-Identifier: Apache-2.0 */
#include "exact_quantize.h"

#include <assert.h>
#include <float.h>
#include <math.h>

enum { E8M0_NAN = 0xFF, UE4M3_NAN = 0x7F, UE4M3_LARGEST = 0x7E };

typedef struct nvfp4_choice {
    uint8_t scale;
    double elements[16];
    double error; /* sum of squares */
} nvfp4_choice;

static double largest_magnitude(const double *t, int64_t n)
{
    double amax = 0;
    for (int64_t i = 0; i < n; i++)
        amax = fmax(amax, fabs(t[i]));
    return amax;
}

static void zeros_with_signs(mxa_format format, const float *x, int64_t n, double *elements)
{
    for (int64_t i = 0; i < n; i++)
        elements[i] = format == MXA_FORMAT_MXINT8 ? 0.0 : copysign(0.0, (double)x[i]);
}

static uint8_t quantize_mx_block(const mxa_code_spec *spec, const float *x, int64_t n, float g,
                                 double *elements)
{
    double t[32];
    for (int64_t i = 0; i < n; i++)
        t[i] = (double)fminf(fmaxf(x[i] / g, -FLT_MAX), FLT_MAX);
    const double amax = largest_magnitude(t, n);
    if (amax == 0) {
        zeros_with_signs(spec->info->format, x, n, elements);
        return 0;
    }
    const int e = exact_block_exponent(spec->info->format, spec->rule, amax);
    for (int64_t i = 0; i < n; i++)
        elements[i] = exact_nearest(spec->info->format, ldexp(t[i], -e));
    return (uint8_t)(e + 127);
}

/* The UE4M3 byte for u: the nearest one, or with SCALE_UP the smallest one not below. */
static uint8_t nvfp4_scale(unsigned options, float u)
{
    const double nearest = exact_nearest(MXA_FORMAT_FP8, (double)u);
    uint8_t byte = 0;
    while (byte < UE4M3_LARGEST &&
           (options & MXA_NVFP4_SCALE_UP ? exact_ue4m3(byte) < (double)u : exact_ue4m3(byte) < nearest))
        byte++;
    return byte == 0 && !(options & MXA_NVFP4_FLUSH_TINY) ? 1 : byte;
}

static nvfp4_choice choose_nvfp4(unsigned options, float u, const float *x, int64_t n, float g)
{
    nvfp4_choice c = { .scale = nvfp4_scale(options, u) };
    const float step = (float)exact_ue4m3(c.scale) * g;
    if (c.scale == 0)
        zeros_with_signs(MXA_FORMAT_NVFP4, x, n, c.elements);
    for (int64_t i = 0; i < n; i++) {
        if (c.scale != 0)
            c.elements[i] = exact_nearest(MXA_FORMAT_NVFP4, (double)(x[i] / step));
        const float decoded = fminf(fmaxf(step * (float)c.elements[i], -FLT_MAX), FLT_MAX);
        const double difference = (double)x[i] - (double)decoded;
        c.error += difference * difference;
    }
    return c;
}

static uint8_t quantize_nvfp4_block(const mxa_code_spec *spec, const float *x, int64_t n, float g,
                                    double *elements)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    if (amax == 0) {
        zeros_with_signs(MXA_FORMAT_NVFP4, x, n, elements);
        return 0;
    }
    nvfp4_choice best = choose_nvfp4(spec->nvfp4, amax / (6 * g), x, n, g);
    const float u4 = amax / (4 * g);
    if (spec->nvfp4 & MXA_NVFP4_FOUR_OVER_SIX && u4 <= 448) {
        const nvfp4_choice four = choose_nvfp4(spec->nvfp4, u4, x, n, g);
        if (four.error < best.error)
            best = four;
    }
    for (int64_t i = 0; i < n; i++)
        elements[i] = best.elements[i];
    return best.scale;
}

static void quantize_blocks(const mxa_code_spec *spec, const float *x, int64_t cols, float g, exact_row *row)
{
    const bool nvfp4 = spec->info->format == MXA_FORMAT_NVFP4;
    const int64_t block = spec->info->block;
    for (int64_t first = 0; first < cols; first += block) {
        const int64_t n = cols - first < block ? cols - first : block;
        bool finite = true;
        for (int64_t i = 0; i < n; i++)
            finite &= isfinite(x[first + i]) != 0;
        uint8_t *scale = &row->scales[first / block];
        double *elements = row->elements + first;
        if (!finite) {
            *scale = nvfp4 ? UE4M3_NAN : E8M0_NAN;
            for (int64_t i = 0; i < n; i++)
                elements[i] = 0;
            row->bad++;
        } else {
            *scale = nvfp4 ? quantize_nvfp4_block(spec, x + first, n, g, elements)
                           : quantize_mx_block(spec, x + first, n, g, elements);
        }
    }
}

static void quantize_elements(const mxa_code_spec *spec, const float *x, int64_t cols, float g,
                              exact_row *row)
{
    for (int64_t d = 0; d < cols; d++) {
        if (isfinite(x[d])) {
            row->elements[d] = exact_nearest(spec->info->format, (double)(x[d] / g));
        } else {
            row->elements[d] = spec->info->quantized ? NAN : (double)x[d];
            row->bad += spec->info->quantized;
        }
    }
}

void exact_quantize(const mxa_code_spec *spec, const float *x, int64_t cols, float g, exact_row *row)
{
    assert(cols <= EXACT_MAX_COLS);
    row->bad = 0;
    if (spec->info->block)
        quantize_blocks(spec, x, cols, g, row);
    else
        quantize_elements(spec, x, cols, g, row);
}
