/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element codes against elements.json, midpoints.txt, decode.json and the streams over all 16-bit patterns.
 */
#include "golden.h"

#include <string.h>

#include "format/mx.h"
#include "sha256.h"

static void test_elements(void **state)
{
    (void)state;
    json_t *root = golden_json("elements.json"), *item;
    size_t i;
    json_array_foreach(root, i, item)
    {
        const mxa_format format = golden_format(golden_text(item, "format"));
        float x[16];
        uint8_t want[16], got[16];
        const size_t n = golden_float_list(json_object_get(item, "in"), x, 16);
        assert_int_equal(golden_byte_list(json_object_get(item, "codes"), want, 16), n);
        for (size_t k = 0; k < n; k++)
            got[k] = mxa_mx_encode(format, x[k]);
        golden_same_bytes(golden_text(item, "format"), want, got, n);
    }
    json_decref(root);
}

static void test_midpoints(void **state)
{
    (void)state;
    golden_lines g = golden_open("midpoints.txt");
    while (golden_next(&g)) {
        float x;
        uint8_t want;
        golden_floats(g.fields[1], &x, 1);
        golden_bytes(g.fields[2], &want, 1);
        const uint8_t got = mxa_mx_encode(golden_format(g.fields[0]), x);
        if (got != want)
            fail_msg("%s %s: want %02X, got %02X", g.fields[0], g.fields[1], want, got);
    }
}

static float decode_any(const char *name, uint32_t code)
{
    if (strcmp(name, "E8M0") == 0)
        return mxa_e8m0_decode(code);
    if (strcmp(name, "UE4M3") == 0)
        return mxa_ue4m3_decode(code);
    return mxa_mx_decode(golden_format(name), code);
}

static void test_decode(void **state)
{
    (void)state;
    json_t *root = golden_json("decode.json"), *list;
    const char *name;
    json_object_foreach(root, name, list)
    {
        float want[256], got[256];
        const size_t n = golden_float_list(list, want, 256);
        for (size_t code = 0; code < n; code++)
            got[code] = decode_any(name, (uint32_t)code);
        golden_same_floats(name, want, got, n);
    }
    json_decref(root);
}

/* Every code that is a number comes back from its value; -128 of MXINT8 is read but not written. */
static void test_round_trip(void **state)
{
    (void)state;
    for (int format = MXA_FORMAT_MXFP8_E4M3; format <= MXA_FORMAT_MXINT8; format++) {
        const int bits = mxa_format_get((mxa_format)format)->element_bits;
        for (uint32_t code = 0; code < 1u << bits; code++) {
            const float value = mxa_mx_decode((mxa_format)format, code);
            if (mxa_f32_is_finite(value) && !(format == MXA_FORMAT_MXINT8 && code == 0x80))
                assert_int_equal(mxa_mx_encode((mxa_format)format, value), code);
        }
    }
}

static float widen(const char *type, uint16_t pattern)
{
    return strcmp(type, "bf16") == 0 ? mxa_f32_from_bf16(pattern) : mxa_f32_from_f16(pattern);
}

static void check_stream(mxa_format format, const char *type, const json_t *want)
{
    static uint8_t stream[1 << 16];
    size_t n = 0;
    for (uint32_t pattern = 0; pattern < 1u << 16; pattern++) {
        const float x = widen(type, (uint16_t)pattern);
        if (mxa_f32_is_finite(x))
            stream[n++] = mxa_mx_encode(format, x);
    }
    char hex[65];
    sha256_hex(stream, n, hex);
    assert_int_equal(n, json_integer_value(json_object_get(want, "bytes")));
    assert_string_equal(hex, golden_text(want, "sha256"));
}

static void test_streams(void **state)
{
    (void)state;
    json_t *root = golden_json("streams_sha256.json"), *types, *want;
    const char *name, *type;
    json_object_foreach(json_object_get(root, "elements"), name, types)
    {
        json_object_foreach(types, type, want)
        {
            check_stream(golden_format(name), type, want);
        }
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),   cmocka_unit_test(test_midpoints), cmocka_unit_test(test_decode),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
