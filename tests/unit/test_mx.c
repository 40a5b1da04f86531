/* SPDX-License-Identifier: Apache-2.0 */
/* MX blocks and their scales against scales.json, blocks.json, mx_*.txt and the streams of scale bytes. */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/mx.h"
#include "format/second_level.h"
#include "sha256.h"

static const char *const rules[] = { "FLOOR", "RCEIL", "EVEN" };

static uint8_t scale_of(mxa_format format, const char *rule, uint32_t amax_bits)
{
    const mxa_element element = mxa_element_of(format);
    return mxa_mx_scale(element, mxa_mx_threshold(element, golden_rule(rule)), amax_bits);
}

/* g of NVFP4, with and without POW2_G. */
static void check_factor(const json_t *item)
{
    const float divisor = mxa_g_divisor(mxa_format_get(MXA_FORMAT_NVFP4));
    const float amax = mxa_f32_from_bits(golden_word(golden_text(item, "amax"), 8));
    assert_int_equal(mxa_f32_bits(mxa_second_level(divisor, 0, amax)),
                     golden_word(golden_text(item, "g"), 8));
    assert_int_equal(mxa_f32_bits(mxa_second_level(divisor, MXA_NVFP4_POW2_G, amax)),
                     golden_word(golden_text(item, "g_pow2"), 8));
}

static void test_scales(void **state)
{
    (void)state;
    json_t *root = golden_json("scales.json"), *item;
    size_t i;
    json_array_foreach(root, i, item)
    {
        if (json_object_get(item, "g")) {
            check_factor(item);
        } else if (json_object_get(item, "e8m0")) {
            const uint32_t byte = golden_word(golden_text(item, "e8m0"), 2);
            assert_int_equal(mxa_f32_bits(mxa_e8m0_decode(byte)), golden_word(golden_text(item, "fp32"), 8));
        } else {
            for (int r = 0; r < 3; r++)
                assert_int_equal(scale_of(golden_format(golden_text(item, "format")), rules[r],
                                          golden_word(golden_text(item, "amax"), 8)),
                                 golden_word(golden_text(item, rules[r]), 2));
        }
    }
    json_decref(root);
}

static void test_blocks(void **state)
{
    (void)state;
    json_t *root = golden_json("blocks.json"), *item;
    size_t i;
    json_array_foreach(root, i, item)
    {
        if (strncmp(golden_text(item, "format"), "MX-", 3) != 0)
            continue;
        float x[MXA_MX_BLOCK] = { 0 }, out[MXA_MX_BLOCK] = { 0 };
        uint8_t codes[MXA_MX_BLOCK] = { 0 }, scale;
        golden_float_list(json_object_get(item, "in"), x, MXA_MX_BLOCK);
        golden_byte_list(json_object_get(item, "codes"), codes, MXA_MX_BLOCK);
        const size_t n = golden_float_list(json_object_get(item, "out"), out, MXA_MX_BLOCK);
        golden_bytes(golden_text(item, "scale"), &scale, 1);
        for (size_t k = n; k < MXA_MX_BLOCK && scale == MXA_E8M0_NAN; k++)
            out[k] = mxa_f32_from_bits(MXA_F32_NAN);
        const golden_row row = { .spec = { mxa_format_get(golden_format(golden_text(item, "format"))),
                                           golden_rule(golden_text(item, "rule")), 0 },
                                 .g = 1.0f,
                                 .n = MXA_MX_BLOCK,
                                 .x = x,
                                 .codes = codes,
                                 .scales = &scale,
                                 .out = out };
        assert_int_equal(golden_check_row("blocks.json", &row), scale == MXA_E8M0_NAN);
    }
    json_decref(root);
}

static void check_file(const char *element, const char *rule, mxa_format format, mxa_rule number)
{
    char name[64];
    snprintf(name, sizeof name, "mx_%s_%s.txt", element, rule);
    golden_lines g = golden_open(name);
    while (golden_next(&g)) {
        float x[MXA_MX_BLOCK], out[MXA_MX_BLOCK];
        uint8_t codes[MXA_MX_BLOCK], scale;
        assert_int_equal(g.count, 4);
        golden_floats(g.fields[0], x, MXA_MX_BLOCK);
        golden_bytes(g.fields[1], &scale, 1);
        golden_bytes(g.fields[2], codes, MXA_MX_BLOCK);
        golden_floats(g.fields[3], out, MXA_MX_BLOCK);
        const golden_row row = {
            { mxa_format_get(format), number, 0 }, 1.0f, MXA_MX_BLOCK, x, codes, &scale, out
        };
        golden_check_row(name, &row);
    }
}

static void test_files(void **state)
{
    (void)state;
    static const char *const elements[] = { "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8" };
    for (int i = 0; i < 6; i++) {
        const mxa_format format = (mxa_format)(MXA_FORMAT_MXFP8_E4M3 + i);
        check_file(elements[i], "floor", format, MXA_RULE_FLOOR);
        check_file(elements[i], "rceil", format, MXA_RULE_RCEIL);
        check_file(elements[i], "even", format, MXA_RULE_EVEN);
    }
}

static int compare_words(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The mantissa fields of a boundary stream, sorted, each once; returns their number. */
static size_t boundary_mantissas(mxa_format format, uint32_t mantissas[12])
{
    const mxa_element element = mxa_element_of(format);
    const uint32_t rceil = mxa_mx_threshold(element, MXA_RULE_RCEIL);
    const uint32_t even = mxa_mx_threshold(element, MXA_RULE_EVEN);
    size_t n = 0, kept = 0;
    mantissas[n++] = 0;
    mantissas[n++] = 1;
    mantissas[n++] = 0x7FFFFF;
    for (int i = -2; i <= 1; i++) {
        mantissas[n++] = rceil + (uint32_t)i;
        mantissas[n++] = even + (uint32_t)i;
    }
    qsort(mantissas, n, sizeof *mantissas, compare_words);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || mantissas[i] != mantissas[kept - 1])
            mantissas[kept++] = mantissas[i];
    return kept;
}

static void check_hash(const uint8_t *stream, size_t n, const json_t *want)
{
    char hex[65];
    sha256_hex(stream, n, hex);
    assert_int_equal(n, json_integer_value(json_object_get(want, "bytes")));
    assert_string_equal(hex, golden_text(want, "sha256"));
}

static void check_scale_streams(mxa_format format, const char *rule, const json_t *want)
{
    static uint8_t stream[1 << 16];
    size_t n = 0;
    for (uint32_t pattern = 0; pattern <= 0x7F7F; pattern++)
        stream[n++] = scale_of(format, rule, pattern << 16);
    check_hash(stream, n, json_object_get(want, "bf16"));

    uint32_t mantissas[12];
    const size_t count = boundary_mantissas(format, mantissas);
    n = 0;
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        for (size_t i = 0; i < count; i++)
            stream[n++] = scale_of(format, rule, exponent << 23 | mantissas[i]);
    check_hash(stream, n, json_object_get(want, "boundaries"));
}

static void test_scale_streams(void **state)
{
    (void)state;
    json_t *root = golden_json("streams_sha256.json"), *by_rule, *want;
    const char *name, *rule;
    json_object_foreach(json_object_get(root, "scales"), name, by_rule)
    {
        json_object_foreach(by_rule, rule, want)
        {
            check_scale_streams(golden_format(name), rule, want);
        }
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_scale_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
