/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small inputs that made published quantisers give a wrong answer, with the bytes or values that are right.
 */
#include "api_support.h"

#include <math.h>
#include <string.h>

/* The values of one block of 32 in a format, there and back. */
static void through(mxa_format format, mxa_rule rule, const float *values, int n, float *back)
{
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 32), y = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 32);
    for (int i = 0; i < 32; i++)
        api_set(&x, 0, 0, 0, i, i < n ? values[i] : 0);
    static const float one = 1;
    mxa_quant_opts opts = api_opts();
    opts.rule = rule;
    if (mxa_format_get(format)->default_level == MXA_LEVEL_TOKEN)
        opts.g = &one;
    const api_packed p = api_quantize(&x, format, &opts);
    api_ok(mxa_dequantize(&p.data, format, &opts, &y));
    memcpy(back, y.data, (size_t)n * sizeof *back);
}

/* S09: ties of E2M1 go to the even code; -0.25 becomes -0. */
static void test_s09_ties(void **state)
{
    (void)state;
    static const float x[] = { 6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -2.5f, -5 };
    static const float want[] = { 6, 0, 1, 1, 2, 2, 4, 4, -0.0f, -1, -2, -4 };
    float got[12];
    through(MXA_FORMAT_MXFP4, MXA_RULE_FLOOR, x, 12, got);
    assert_memory_equal(got, want, sizeof want);
    through(MXA_FORMAT_NVFP4, MXA_RULE_DEFAULT, x, 12, got);
    assert_memory_equal(got, want, sizeof want);
}

/* S10: decoding a code and encoding the value gives the code; NaN stays NaN. */
static void test_s10_every_code(void **state)
{
    for (int f = API_PLAIN; f < API_FORMATS; f++) {
        const mxa_format_info *const info = mxa_format_get(api_formats[f]);
        for (int code = 0; code < 1 << info->element_bits; code++) {
            float values[3] = { 0, (float)info->largest, 0x1.000002p-2f }, back[3];
            uint8_t codes[32] = { (uint8_t)code }, packed[32], scales[2] = { 127, 127 };
            if (info->scale == MXA_SCALE_UE4M3)
                memset(scales, 0x38, 2); /* 1.0 */
            float one = 1, decoded[32];
            const mxa_packed in = { .codes = packed, .scales = scales, .g = &one };
            const mxa_tensor out = mxa_tensor_contiguous(decoded, MXA_DTYPE_F32, 1, 1, 1, 32);
            api_ok(mxa_pack_codes(info->format, codes, 1, 32, packed));
            api_ok(mxa_dequantize(&in, info->format, NULL, &out));
            values[0] = decoded[0];
            through(info->format, info->scale == MXA_SCALE_E8M0 ? MXA_RULE_FLOOR : MXA_RULE_DEFAULT, values,
                    3, back);
            if (isnan(values[0]))
                assert_true(isnan(back[0]));
            else if (isfinite(values[0]) && fabsf(values[0]) <= (float)info->largest)
                assert_memory_equal(&values[0], &back[0], sizeof(float));
            if (info->element_bits == 4)
                assert_true(back[2] == 0.5f);
            api_teardown(state);
        }
    }
}

/* S11: the top of a block under each rule; nothing becomes NaN. */
static void test_s11_top_of_a_block(void **state)
{
    (void)state;
    static const float fp4[][4] = { { 7, 6, 8, 8 }, { 6.25f, 6, 6, 6 } }; /* x; floor, rceil, even */
    float x[32], got[32];
    for (int i = 0; i < 2 * 3; i++) {
        through(MXA_FORMAT_MXFP4, (mxa_rule)(MXA_RULE_FLOOR + i % 3), fp4[i / 3], 1, got);
        assert_true(got[0] == fp4[i / 3][1 + i % 3]);
    }
    static const float fp8[] = { 1.75f, 2, 2 };
    for (int i = 0; i < 32; i++)
        x[i] = 1.984375f;
    for (int i = 0; i < 3; i++) {
        through(MXA_FORMAT_MXFP8_E4M3, (mxa_rule)(MXA_RULE_FLOOR + i), x, 32, got);
        for (int j = 0; j < 32; j++)
            assert_true(got[j] == fp8[i]);
    }
    static const float large[] = { 464, 465, -1e30f, 0x1.fffffep127f };
    through(MXA_FORMAT_FP8, MXA_RULE_DEFAULT, large, 4, got);
    assert_true(got[0] == 448 && got[1] == 448 && got[2] == -448 && got[3] == 448);
}

/* S12: the even element lies in the low nibble. */
static void test_s12_nibble_order(void **state)
{
    (void)state;
    const mxa_tensor x = api_tensor(MXA_DTYPE_F32, 1, 1, 1, 32);
    api_set_all(&x, 0);
    api_set(&x, 0, 0, 0, 0, 1);
    api_set(&x, 0, 0, 0, 1, 6);
    const api_packed p = api_quantize(&x, MXA_FORMAT_MXFP4, NULL);
    assert_int_equal(p.data.codes[0], 0x72);
    assert_int_equal(p.data.scales[0], 127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_s09_ties),
        API_TEST(test_s10_every_code),
        API_TEST(test_s11_top_of_a_block),
        API_TEST(test_s12_nibble_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
