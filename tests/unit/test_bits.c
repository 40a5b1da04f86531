/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit conversions, over all patterns and against rounding worked out in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "core/bits.h"

/* The value of a binary floating-point pattern with the given field widths. */
static double value_of(uint32_t pattern, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1, sign = (int)(pattern >> (exponent_bits + mantissa_bits));
    const int exponent = (int)(pattern >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double fraction = (double)(pattern & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    const double magnitude = exponent == 2 * bias + 1 ? (fraction > 0 ? (double)NAN : (double)INFINITY)
                             : exponent == 0          ? ldexp(fraction, 1 - bias)
                                                      : ldexp(1 + fraction, exponent - bias);
    return sign ? -magnitude : magnitude;
}

static void test_widen(void **state)
{
    (void)state;
    for (uint32_t pattern = 0; pattern < 1u << 16; pattern++) {
        const double half = value_of(pattern, 5, 10), brain = value_of(pattern, 8, 7);
        const float from_half = mxa_f32_from_f16((uint16_t)pattern);
        const float from_brain = mxa_f32_from_bf16((uint16_t)pattern);
        assert_true(isnan(half) ? isnan(from_half) : (double)from_half == half);
        assert_true(isnan(brain) ? isnan(from_brain) : (double)from_brain == brain);
        assert_int_equal(signbit(from_half) != 0, pattern >> 15);
        assert_int_equal(signbit(from_brain) != 0, pattern >> 15);
    }
}

/* x to the nearest multiple of the unit at x, ties to even, saturated; nearbyint rounds so by default. */
static double rounded(double x, int smallest_exponent, int mantissa_bits, double largest)
{
    int exponent;
    frexp(x, &exponent);
    const int unit = (exponent - 1 > smallest_exponent ? exponent - 1 : smallest_exponent) - mantissa_bits;
    const double nearest = ldexp(nearbyint(ldexp(x, -unit)), unit);
    return copysign(fmin(fabs(nearest), largest), x);
}

static void check_narrow(float x)
{
    const uint16_t half = mxa_f16_from_f32(x), brain = mxa_bf16_from_f32(x);
    const double want_half = rounded((double)x, -14, 10, 65504), got_half = value_of(half, 5, 10);
    const double want_brain = rounded((double)x, -126, 7, 0x1.FEp127), got_brain = value_of(brain, 8, 7);
    if (got_half != want_half || got_brain != want_brain || half >> 15 != !!signbit(x) ||
        brain >> 15 != !!signbit(x))
        fail_msg("%a: f16 %a, want %a; bf16 %a, want %a", (double)x, got_half, want_half, got_brain,
                 want_brain);
}

/* Each exponent with mantissas around every place where a bit could round. */
static void test_narrow(void **state)
{
    (void)state;
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        for (uint32_t bit = 0; bit < 23; bit++)
            for (int step = -1; step <= 1; step++)
                for (uint32_t upper = 0; upper < 8; upper++) {
                    const uint32_t mantissa = (1u << bit) * (2 * upper + 1) + (uint32_t)step;
                    const float x = mxa_f32_from_bits(exponent << 23 | (mantissa & 0x7FFFFFu));
                    check_narrow(x);
                    check_narrow(-x);
                }
}

static void test_special(void **state)
{
    (void)state;
    assert_int_equal(mxa_f16_from_f32(mxa_f32_from_bits(0xFFC12345u)), 0x7E00);
    assert_int_equal(mxa_bf16_from_f32(mxa_f32_from_bits(0xFF812345u)), 0x7FC0);
    assert_int_equal(mxa_f16_from_f32(-INFINITY), 0xFC00);
    assert_int_equal(mxa_bf16_from_f32(INFINITY), 0x7F80);
    assert_int_equal(mxa_f32_canonical(mxa_f32_from_bits(0xFFC12345u)), MXA_F32_NAN);
    assert_int_equal(mxa_f32_canonical(-0.0f), 0x80000000u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
