/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 and INT8 rows against fp8_rows.txt, int8_rows.txt and blocks.json. */
#include "golden.h"

#include <string.h>

#include "core/bits.h"
#include "format/second_level.h"

#define ROW 32

static float computed_factor(mxa_format format, const float *x, size_t n)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++) {
        const float mag = x[i] < 0 ? -x[i] : x[i];
        amax = mxa_f32_is_finite(x[i]) && mag > amax ? mag : amax;
    }
    return mxa_second_level(mxa_g_divisor(mxa_format_get(format)), 0, amax);
}

static int64_t non_finite(const float *x, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !mxa_f32_is_finite(x[i]);
    return count;
}

static void check_row(const char *what, mxa_format format, bool from_row, float g, const float *x, size_t n,
                      const uint8_t *codes, const float *out)
{
    if (from_row) {
        const float computed = computed_factor(format, x, n);
        golden_same_floats(what, &g, &computed, 1);
    }
    const golden_row row = { { mxa_format_get(format), MXA_RULE_DEFAULT, 0 }, g, n, x, codes, NULL, out };
    assert_int_equal(golden_check_row(what, &row), non_finite(x, n));
}

static void check_file(const char *name, mxa_format format)
{
    golden_lines g = golden_open(name);
    while (golden_next(&g)) {
        float factor, x[ROW], out[ROW];
        uint8_t codes[ROW];
        assert_int_equal(g.count, 5);
        golden_floats(g.fields[1], &factor, 1);
        golden_floats(g.fields[2], x, ROW);
        golden_bytes(g.fields[3], codes, ROW);
        golden_floats(g.fields[4], out, ROW);
        check_row(name, format, strcmp(g.fields[0], "token") == 0, factor, x, ROW, codes, out);
    }
}

static void test_fp8(void **state)
{
    (void)state;
    check_file("fp8_rows.txt", MXA_FORMAT_FP8);
}

static void test_int8(void **state)
{
    (void)state;
    check_file("int8_rows.txt", MXA_FORMAT_INT8);
}

static void test_blocks(void **state)
{
    (void)state;
    json_t *root = golden_json("blocks.json"), *item;
    size_t i;
    int checked = 0;
    json_array_foreach(root, i, item)
    {
        if (strcmp(golden_text(item, "format"), "FP8") != 0)
            continue;
        float x[ROW], out[ROW], g;
        uint8_t codes[ROW];
        const size_t n = golden_float_list(json_object_get(item, "in"), x, ROW);
        assert_int_equal(golden_byte_list(json_object_get(item, "codes"), codes, ROW), n);
        assert_int_equal(golden_float_list(json_object_get(item, "out"), out, ROW), n);
        golden_floats(golden_text(item, "g"), &g, 1);
        check_row("blocks.json", MXA_FORMAT_FP8, json_is_true(json_object_get(item, "g_from_row")), g, x, n,
                  codes, out);
        checked++;
    }
    assert_true(checked > 0);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
