/* SPDX-License-Identifier: Apache-2.0 */
/* NVFP4 blocks against blocks.json and nvfp4_*.txt; both copies of a row against dual_rows.txt. */
#include "golden.h"

#include <stdio.h>
#include <string.h>

#include "cpu/features.h"
#include "format/format.h"
#include "format/nvfp4.h"
#include "format/second_level.h"

static void check_file(const char *option, unsigned nvfp4)
{
    char name[64];
    snprintf(name, sizeof name, "nvfp4_%s.txt", option);
    golden_lines g = golden_open(name);
    while (golden_next(&g)) {
        float factor, x[MXA_NVFP4_BLOCK], out[MXA_NVFP4_BLOCK];
        uint8_t codes[MXA_NVFP4_BLOCK], scale;
        assert_int_equal(g.count, 5);
        golden_floats(g.fields[0], &factor, 1);
        golden_floats(g.fields[1], x, MXA_NVFP4_BLOCK);
        golden_bytes(g.fields[2], &scale, 1);
        golden_bytes(g.fields[3], codes, MXA_NVFP4_BLOCK);
        golden_floats(g.fields[4], out, MXA_NVFP4_BLOCK);
        const mxa_code_spec spec = { mxa_format_get(MXA_FORMAT_NVFP4), MXA_RULE_DEFAULT, nvfp4 };
        const golden_row row = { spec, factor, MXA_NVFP4_BLOCK, x, codes, &scale, out };
        golden_check_row(name, &row);
    }
}

static void test_files(void **state)
{
    (void)state;
    check_file("default", 0);
    check_file("scale_up", MXA_NVFP4_SCALE_UP);
    check_file("flush_tiny", MXA_NVFP4_FLUSH_TINY);
    check_file("four_over_six", MXA_NVFP4_FOUR_OVER_SIX);
}

static float largest(const float *x, size_t n)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++) {
        const float mag = x[i] < 0 ? -x[i] : x[i];
        amax = mxa_f32_is_finite(x[i]) && mag > amax ? mag : amax;
    }
    return amax;
}

static void test_blocks(void **state)
{
    (void)state;
    json_t *root = golden_json("blocks.json"), *item;
    size_t i;
    json_array_foreach(root, i, item)
    {
        if (strcmp(golden_text(item, "format"), "NVFP4") != 0)
            continue;
        float x[MXA_NVFP4_BLOCK] = { 0 }, out[MXA_NVFP4_BLOCK] = { 0 }, g;
        uint8_t codes[MXA_NVFP4_BLOCK] = { 0 }, scale;
        golden_float_list(json_object_get(item, "in"), x, MXA_NVFP4_BLOCK);
        golden_byte_list(json_object_get(item, "codes"), codes, MXA_NVFP4_BLOCK);
        const size_t n = golden_float_list(json_object_get(item, "out"), out, MXA_NVFP4_BLOCK);
        golden_bytes(golden_text(item, "scale"), &scale, 1);
        golden_floats(golden_text(item, "g"), &g, 1);
        for (size_t k = n; k < MXA_NVFP4_BLOCK && scale == MXA_UE4M3_NAN; k++)
            out[k] = mxa_f32_from_bits(MXA_F32_NAN);
        const mxa_code_spec spec = { mxa_format_get(MXA_FORMAT_NVFP4), MXA_RULE_DEFAULT, 0 };
        if (json_is_true(json_object_get(item, "g_from_row"))) {
            const float computed = mxa_second_level(mxa_g_divisor(spec.info), 0, largest(x, MXA_NVFP4_BLOCK));
            golden_same_floats("g_from_row", &g, &computed, 1);
        }
        const golden_row row = { spec, g, MXA_NVFP4_BLOCK, x, codes, &scale, out };
        assert_int_equal(golden_check_row("blocks.json", &row), scale == MXA_UE4M3_NAN);
    }
    json_decref(root);
}

/*
 * u = amax / (6 g), in this association: the neighbours amax / 6 / g, amax * (1 / (6 g)) and amax / g / 6
 * each give another byte in one of these blocks. Found by search with NumPy and ml_dtypes over bf16 maxima.
 */
static void test_scale_association(void **state)
{
    (void)state;
    static const struct {
        uint32_t amax, g;
        uint8_t scale;
    } cases[] = { { 0x3E370000, 0x3B39E79E, 0x53 },
                  { 0x3CAF0000, 0x3C155555, 0x2C },
                  { 0x3D9F0000, 0x3BA18618, 0x42 } };
    const mxa_code_spec spec = { mxa_format_get(MXA_FORMAT_NVFP4), MXA_RULE_DEFAULT, 0 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (const mxa_quantize_impl *impl = mxa_quantize_impls; impl->name; impl++) {
            const float x[MXA_NVFP4_BLOCK] = { mxa_f32_from_bits(cases[i].amax) };
            uint8_t packed[MXA_NVFP4_BLOCK / 2], scale;
            if (!mxa_cpu_has(impl->needs) || (impl->format && impl->format != MXA_FORMAT_NVFP4))
                continue;
            const float g = mxa_f32_from_bits(cases[i].g);
            const mxa_prepared prepared = { x, &cases[i].amax, 1, MXA_NVFP4_BLOCK };
            impl->fn(&spec, &prepared, &g, 0, packed, &scale);
            assert_int_equal(scale, cases[i].scale);
        }
}

#define DUAL_DIM 64

static void check_dual(const golden_lines *g)
{
    uint8_t halves[2 * DUAL_DIM], low_scales[4], low_codes[DUAL_DIM], high_scales[2], high_codes[DUAL_DIM];
    uint16_t input[DUAL_DIM];
    float factor, low_out[DUAL_DIM], high_out[DUAL_DIM];
    golden_bytes(g->fields[0], halves, sizeof halves);
    for (int i = 0; i < DUAL_DIM; i++)
        input[i] = (uint16_t)(halves[2 * i] << 8 | halves[2 * i + 1]);
    golden_floats(g->fields[1], &factor, 1);
    golden_bytes(g->fields[2], low_scales, sizeof low_scales);
    golden_bytes(g->fields[3], low_codes, sizeof low_codes);
    golden_floats(g->fields[4], low_out, DUAL_DIM);
    golden_bytes(g->fields[5], high_scales, sizeof high_scales);
    golden_bytes(g->fields[6], high_codes, sizeof high_codes);
    golden_floats(g->fields[7], high_out, DUAL_DIM);

    const mxa_tensor x = mxa_tensor_contiguous(input, MXA_DTYPE_BF16, 1, 1, 1, DUAL_DIM);
    uint8_t packed[DUAL_DIM / 2], codes[DUAL_DIM], scales[4], got_high[DUAL_DIM], got_high_scales[2];
    float got_factor;
    int64_t n_bad[2];
    const mxa_packed low = { packed, scales, &got_factor, NULL },
                     high = { got_high, got_high_scales, NULL, NULL };
    assert_int_equal(
        mxa_quantize_pair(&x, MXA_FORMAT_NVFP4, NULL, &low, MXA_FORMAT_MXFP8_E4M3, NULL, &high, n_bad),
        MXA_OK);
    assert_int_equal(n_bad[0] + n_bad[1], 0);
    golden_same_floats("g", &factor, &got_factor, 1);
    mxa_unpack(4, packed, DUAL_DIM, codes);
    golden_same_bytes("low scales", low_scales, scales, sizeof scales);
    golden_same_bytes("low codes", low_codes, codes, DUAL_DIM);
    golden_same_bytes("high scales", high_scales, got_high_scales, sizeof got_high_scales);
    golden_same_bytes("high codes", high_codes, got_high, DUAL_DIM);

    float out[DUAL_DIM];
    const mxa_tensor tensor = mxa_tensor_contiguous(out, MXA_DTYPE_F32, 1, 1, 1, DUAL_DIM);
    assert_int_equal(mxa_dequantize(&low, MXA_FORMAT_NVFP4, NULL, &tensor), MXA_OK);
    golden_same_floats("low values", low_out, out, DUAL_DIM);
    assert_int_equal(mxa_dequantize(&high, MXA_FORMAT_MXFP8_E4M3, NULL, &tensor), MXA_OK);
    golden_same_floats("high values", high_out, out, DUAL_DIM);
}

static void test_dual_rows(void **state)
{
    (void)state;
    golden_lines g = golden_open("dual_rows.txt");
    while (golden_next(&g)) {
        assert_int_equal(g.count, 8);
        check_dual(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_scale_association),
        cmocka_unit_test(test_dual_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
