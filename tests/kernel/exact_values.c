/* SPDX-License-Identifier: Apache-2.0 */
#include "exact_values.h"

#include <assert.h>
#include <math.h>

typedef struct float_shape {
    mxa_format format;
    int exponent_bits, mantissa_bits, bias;
    double largest;
    bool top_is_ieee; /* the largest exponent field means Inf and NaN; else what exceeds largest is NaN */
} float_shape;

static const float_shape shapes[] = {
    { MXA_FORMAT_MXFP8_E4M3, 4, 3, 7, 448, false },   { MXA_FORMAT_FP8, 4, 3, 7, 448, false },
    { MXA_FORMAT_MXFP8_E5M2, 5, 2, 15, 57344, true }, { MXA_FORMAT_MXFP6_E3M2, 3, 2, 3, 28, false },
    { MXA_FORMAT_MXFP6_E2M3, 2, 3, 1, 7.5, false },   { MXA_FORMAT_MXFP4, 2, 1, 1, 6, false },
    { MXA_FORMAT_NVFP4, 2, 1, 1, 6, false },          { MXA_FORMAT_F16, 5, 10, 15, 65504, true },
    { MXA_FORMAT_BF16, 8, 7, 127, 0x1.FEp127, true }, { MXA_FORMAT_F32, 8, 23, 127, 0x1.FFFFFEp127, true },
};

static const float_shape *shape_of(mxa_format format)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].format == format)
            return &shapes[i];
    return NULL;
}

static double float_value(const float_shape *s, uint32_t code)
{
    const uint32_t magnitude = code & ((1u << (s->exponent_bits + s->mantissa_bits)) - 1);
    const int field = (int)(magnitude >> s->mantissa_bits);
    const double fraction = ldexp(magnitude & ((1u << s->mantissa_bits) - 1), -s->mantissa_bits);
    const double sign = code >> (s->exponent_bits + s->mantissa_bits) ? -1 : 1;
    if (s->top_is_ieee && field == (1 << s->exponent_bits) - 1)
        return fraction == 0 ? sign * INFINITY : NAN;
    const double value = field == 0 ? ldexp(fraction, 1 - s->bias) : ldexp(1 + fraction, field - s->bias);
    return value > s->largest ? NAN : sign * value;
}

double exact_element(mxa_format format, uint32_t code)
{
    if (format == MXA_FORMAT_MXINT8)
        return (int8_t)code / 64.0;
    if (format == MXA_FORMAT_INT8)
        return code == 0x80 ? NAN : (int8_t)code;
    return float_value(shape_of(format), code);
}

double exact_nearest(mxa_format format, double t)
{
    if (format == MXA_FORMAT_MXINT8 || format == MXA_FORMAT_INT8) {
        const double unit = format == MXA_FORMAT_INT8 ? 1 : 1 / 64.0;
        return fmin(fmax(rint(t / unit), -127), 127) * unit + 0.0;
    }
    const float_shape *s = shape_of(format);
    const double magnitude = fmin(fabs(t), 2 * s->largest);
    const int exponent = magnitude == 0 ? 1 - s->bias : (int)fmax(ilogb(magnitude), 1 - s->bias);
    const double unit = ldexp(1, exponent - s->mantissa_bits);
    return copysign(fmin(rint(magnitude / unit) * unit, s->largest), t);
}

double exact_e8m0(uint8_t byte)
{
    return byte == 0xFF ? NAN : ldexp(1, byte - 127);
}

double exact_ue4m3(uint8_t byte)
{
    return exact_element(MXA_FORMAT_FP8, byte & 0x7Fu);
}

uint32_t exact_code(const uint8_t *row, int bits, int64_t k)
{
    uint32_t code = 0;
    for (int b = 0; b < bits; b++) {
        const int64_t at = k * bits + b;
        code |= (uint32_t)(row[at / 8] >> at % 8 & 1) << b;
    }
    return code;
}

/* Largest value and fraction bits of an MX element. */
static void element_limits(mxa_format format, double *largest, int *mantissa_bits)
{
    const float_shape *s = shape_of(format);
    *largest = s ? s->largest : 127 / 64.0;
    *mantissa_bits = s ? s->mantissa_bits : 6;
}

int exact_block_exponent(mxa_format format, mxa_rule rule, double amax)
{
    double largest;
    int mantissa_bits;
    element_limits(format, &largest, &mantissa_bits);
    const int emax = ilogb(largest);
    int e = ilogb(amax) - emax;
    if (rule == MXA_RULE_RCEIL && ldexp(largest, e) < amax)
        e++;
    if (rule == MXA_RULE_EVEN) {
        const double unit = ldexp(1, ilogb(amax) - mantissa_bits);
        e = ilogb(rint(amax / unit) * unit) - emax;
    }
    if (amax < 0x1p-126)
        e = -127;
    return (int)fmin(fmax(e, -127), 127);
}
