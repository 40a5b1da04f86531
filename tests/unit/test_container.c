/* SPDX-License-Identifier: Apache-2.0 */
/* Folding into containers against containers.json and against every code and shift, worked out in double. */
#include "golden.h"

#include <math.h>
#include <string.h>

#include "format/container.h"
#include "format/mx.h"
#include "format/nvfp4.h"

static const char *const sources[] = { "E4M3", "E5M2", "E3M2", "E2M3", "E2M1", "INT8" };
static const char *const containers[] = { "E5M2", "E4M3", "BF16" };

static double source_value(mxa_format format, uint32_t code)
{
    return (double)mxa_mx_decode(format, code);
}

static uint32_t code_count(mxa_format format)
{
    return 1u << mxa_format_get(format)->element_bits;
}

/* Whether p * 2^-d is a value of the container. */
static bool container_holds(mxa_container container, double t)
{
    if (container == MXA_CONTAINER_BF16)
        return (double)mxa_f32_from_bf16(mxa_bf16_from_f32((float)t)) == t;
    const mxa_element to = container == MXA_CONTAINER_E5M2 ? mxa_element_e5m2() : mxa_element_e4m3();
    return (double)mxa_element_decode(to, mxa_element_encode(to, (float)t)) == t;
}

/* All codes of a source but those of Inf and NaN, and -128 of MXINT8, which the quantiser does not write. */
static bool all_fold(mxa_format source, mxa_container container, int d)
{
    for (uint32_t code = 0; code < code_count(source); code++) {
        const double p = source_value(source, code);
        if (isfinite(p) && !(source == MXA_FORMAT_MXINT8 && code == 0x80) &&
            !container_holds(container, ldexp(p, -d)))
            return false;
    }
    return true;
}

static void check_range(const json_t *want, mxa_format source, mxa_container container)
{
    const mxa_fold_range range = mxa_fold_exact(source, container);
    if (json_is_null(want)) {
        assert_true(range.lowest > range.highest);
    } else {
        assert_int_equal(range.lowest, json_integer_value(json_array_get(want, 0)));
        assert_int_equal(range.highest, json_integer_value(json_array_get(want, 1)));
    }
    for (int d = -140; d <= 140; d++)
        assert_int_equal(all_fold(source, container, d), d >= range.lowest && d <= range.highest);
}

static void test_exact_ranges(void **state)
{
    (void)state;
    json_t *root = golden_json("containers.json");
    const json_t *table = json_object_get(root, "exact_d");
    for (int c = 0; c < 3; c++)
        for (int s = 0; s < 6; s++) {
            const json_t *want = json_object_get(json_object_get(table, containers[c]), sources[s]);
            assert_non_null(want);
            check_range(want, golden_format(sources[s]), (mxa_container)c);
        }
    json_decref(root);
}

/*
 * The largest error of folding a code at shift d, over R = 2^row_exponent, for the row scale of full
 * headroom.
 */
static double fold_error(mxa_format source, mxa_container container, int row_exponent, int scale)
{
    const mxa_element to = container == MXA_CONTAINER_E5M2 ? mxa_element_e5m2() : mxa_element_e4m3();
    const int row_scale = mxa_fold_row_scale(source, container, row_exponent);
    double worst = 0;
    for (uint32_t code = 0; code < code_count(source); code++) {
        const double p = source_value(source, code), x = ldexp(p, scale);
        if (!isfinite(p) || fabs(x) >= ldexp(2, row_exponent))
            continue;
        const uint8_t folded = mxa_fold(source, container, code, row_scale - scale);
        const double back = ldexp((double)mxa_element_decode(to, folded), row_scale);
        worst = fmax(worst, fabs(back - x) / fmax(ldexp(1, row_exponent), fabs(x)));
    }
    return worst;
}

static void check_bound(const char *source, mxa_container container, int log2_bound)
{
    double worst = 0;
    for (int scale = -60; scale <= 20; scale++)
        worst = fmax(worst, fold_error(golden_format(source), container, 0, scale));
    assert_true(worst <= ldexp(1, log2_bound));
    assert_true(worst > ldexp(1, log2_bound - 1)); /* the bound is tight */
}

static void test_error_bounds(void **state)
{
    (void)state;
    json_t *root = golden_json("containers.json");
    const json_t *bounds = json_object_get(root, "error_over_row_max");
    assert_string_equal(golden_text(bounds, "E2M3 in E4M3, s_row = floor(log2 R) - 7"), "2^-17");
    json_decref(root);
    check_bound("E2M1", MXA_CONTAINER_E5M2, -32);
    check_bound("E3M2", MXA_CONTAINER_E5M2, -32);
    check_bound("E5M2", MXA_CONTAINER_E5M2, -32);
    check_bound("E2M1", MXA_CONTAINER_E4M3, -18);
    check_bound("E3M2", MXA_CONTAINER_E4M3, -18);
    check_bound("E2M3", MXA_CONTAINER_E4M3, -17);
}

static void test_special_codes(void **state)
{
    (void)state;
    for (uint32_t code = 0x7C; code <= 0x7F; code++)
        assert_int_equal(mxa_fold(MXA_FORMAT_MXFP8_E5M2, MXA_CONTAINER_E5M2, code, 0), code);
    assert_int_equal(mxa_fold(MXA_FORMAT_MXFP4, MXA_CONTAINER_E5M2, 8, 400), 0x80); /* -0 stays -0 */
    assert_int_equal(mxa_fold(MXA_FORMAT_MXFP4, MXA_CONTAINER_E4M3, 7, 400), 0);
}

/* Products of NVFP4 element and scale hold in both 16-bit types. */
static void test_nvfp4_products(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale < MXA_UE4M3_NAN; scale++)
        for (uint32_t code = 0; code < 16; code++) {
            const float y = mxa_nvfp4_value(code, scale, 1.0f);
            assert_true(mxa_f32_from_bf16(mxa_bf16_from_f32(y)) == y);
            assert_true(mxa_f32_from_f16(mxa_f16_from_f32(y)) == y);
        }
}

/* The largest |sum over 32| of products of integer codes. */
static int64_t block_sum(int64_t a, int64_t b)
{
    return MXA_MX_BLOCK * a * b;
}

static void test_integer_sums(void **state)
{
    (void)state;
    json_t *root = golden_json("containers.json");
    const json_t *bounds = json_object_get(root, "int8_block_sum_bound");
    const int64_t doubled = (int64_t)(2 * source_value(MXA_FORMAT_MXFP4, 7));
    const int64_t largest = (int64_t)(64 * source_value(MXA_FORMAT_MXINT8, 0x7F));
    const int64_t lowest = -(int64_t)(64 * source_value(MXA_FORMAT_MXINT8, 0x80));
    const struct {
        const char *key;
        int64_t sum;
    } cases[] = { { "INT8 x INT8", block_sum(largest, largest) },
                  { "INT8 x INT8 with code -128", block_sum(largest, lowest) },
                  { "INT8 x doubled E2M1", block_sum(largest, doubled) },
                  { "INT8 with code -128 x INT8 with code -128", block_sum(lowest, lowest) },
                  { "INT8 with code -128 x doubled E2M1", block_sum(lowest, doubled) },
                  { "doubled E2M1 x doubled E2M1", block_sum(doubled, doubled) } };
    assert_int_equal(json_object_size(bounds), sizeof cases / sizeof cases[0]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(json_integer_value(json_object_get(bounds, cases[i].key)), cases[i].sum);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_ranges),  cmocka_unit_test(test_error_bounds),
        cmocka_unit_test(test_special_codes), cmocka_unit_test(test_nvfp4_products),
        cmocka_unit_test(test_integer_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
