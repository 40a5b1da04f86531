/* SPDX-License-Identifier: Apache-2.0 */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bits.h"
#include "cpu/dequantize_cpu.h"
#include "cpu/features.h"
#include "format/format.h"
#include "format/mx.h"

#define ROW_MOST 64 /* elements of the longest stored row */

static FILE *open_vector(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/vectors/%s", name);
    FILE *stream = fopen(path, "r");
    if (!stream)
        fail_msg("%s cannot be opened from the source folder", path);
    return stream;
}

golden_lines golden_open(const char *name)
{
    return (golden_lines){ .stream = open_vector(name), .name = name };
}

bool golden_next(golden_lines *g)
{
    do {
        if (getline(&g->text, &g->capacity, g->stream) < 0) {
            fclose(g->stream);
            free(g->text);
            return false;
        }
        g->line++;
    } while (g->text[0] == '#');
    char *state = NULL;
    g->count = 0;
    for (char *f = strtok_r(g->text, " \n", &state); f; f = strtok_r(NULL, " \n", &state)) {
        assert_in_range(g->count, 0, GOLDEN_FIELDS - 1);
        g->fields[g->count++] = f;
    }
    return true;
}

json_t *golden_json(const char *name)
{
    FILE *stream = open_vector(name);
    json_error_t error;
    json_t *root = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    fclose(stream);
    if (!root)
        fail_msg("%s: line %d: %s", name, error.line, error.text);
    return root;
}

const char *golden_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text)
        fail_msg("no text \"%s\"", key);
    return text;
}

uint32_t golden_word(const char *hex, int digits)
{
    uint32_t word = 0;
    for (int i = 0; i < digits; i++) {
        const char *const all = "0123456789ABCDEF", *digit = hex[i] ? strchr(all, hex[i]) : NULL;
        if (!digit)
            fail_msg("\"%.16s\" does not start with %d hex digits", hex, digits);
        word = word << 4 | (uint32_t)(digit - all);
    }
    return word;
}

void golden_bytes(const char *hex, uint8_t *bytes, size_t n)
{
    assert_int_equal(strlen(hex), 2 * n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)golden_word(hex + 2 * i, 2);
}

void golden_floats(const char *hex, float *x, size_t n)
{
    assert_int_equal(strlen(hex), 8 * n);
    for (size_t i = 0; i < n; i++)
        x[i] = mxa_f32_from_bits(golden_word(hex + 8 * i, 8));
}

size_t golden_float_list(const json_t *list, float *x, size_t most)
{
    assert_in_range(json_array_size(list), 1, most);
    for (size_t i = 0; i < json_array_size(list); i++)
        golden_floats(json_string_value(json_array_get(list, i)), x + i, 1);
    return json_array_size(list);
}

size_t golden_byte_list(const json_t *list, uint8_t *bytes, size_t most)
{
    assert_in_range(json_array_size(list), 1, most);
    for (size_t i = 0; i < json_array_size(list); i++)
        golden_bytes(json_string_value(json_array_get(list, i)), bytes + i, 1);
    return json_array_size(list);
}

mxa_format golden_format(const char *name)
{
    static const struct {
        const char *name;
        mxa_format format;
    } formats[] = { { "E4M3", MXA_FORMAT_MXFP8_E4M3 }, { "E5M2", MXA_FORMAT_MXFP8_E5M2 },
                    { "E3M2", MXA_FORMAT_MXFP6_E3M2 }, { "E2M3", MXA_FORMAT_MXFP6_E2M3 },
                    { "E2M1", MXA_FORMAT_MXFP4 },      { "INT8", MXA_FORMAT_MXINT8 },
                    { "NVFP4", MXA_FORMAT_NVFP4 },     { "FP8", MXA_FORMAT_FP8 } };
    const char *element = strncmp(name, "MX-", 3) == 0 ? name + 3 : name;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, element) == 0)
            return formats[i].format;
    fail_msg("no format \"%s\"", name);
    return MXA_FORMAT_NONE;
}

mxa_rule golden_rule(const char *name)
{
    if (strcmp(name, "FLOOR") == 0)
        return MXA_RULE_FLOOR;
    return strcmp(name, "RCEIL") == 0 ? MXA_RULE_RCEIL : MXA_RULE_EVEN;
}

void golden_same_floats(const char *what, const float *want, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (mxa_f32_bits(want[i]) != mxa_f32_bits(got[i]))
            fail_msg("%s [%zu]: want %08X, got %08X", what, i, mxa_f32_bits(want[i]), mxa_f32_bits(got[i]));
}

void golden_same_bytes(const char *what, const uint8_t *want, const uint8_t *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i])
            fail_msg("%s [%zu]: want %02X, got %02X", what, i, want[i], got[i]);
}

static int64_t check_quantizer(const char *what, const mxa_quantize_impl *impl, const golden_row *row)
{
    const mxa_format_info *info = row->spec.info;
    uint8_t packed[ROW_MOST + 1], codes[ROW_MOST], scales[ROW_MOST];
    uint32_t amax[ROW_MOST];
    for (size_t i = 0; i < row->n; i += MXA_AMAX_BLOCK)
        amax[i / MXA_AMAX_BLOCK] =
            mxa_amax_bits(row->x + i, (int64_t)(row->n - i < MXA_AMAX_BLOCK ? row->n - i : MXA_AMAX_BLOCK));
    const mxa_prepared x = { row->x, amax, 1, (int64_t)row->n };
    const int64_t n_bad = impl->fn(&row->spec, &x, &row->g, 0, packed, scales);
    mxa_unpack(info->element_bits, packed, (int64_t)row->n, codes);
    if (info->block)
        golden_same_bytes(what, row->scales, scales, (size_t)mxa_scale_cols(info, (int64_t)row->n));
    golden_same_bytes(what, row->codes, codes, row->n);
    return n_bad;
}

static void check_decoder(const char *what, const golden_row *row)
{
    const mxa_format_info *info = row->spec.info;
    uint8_t packed[ROW_MOST], scales[ROW_MOST];
    float out[ROW_MOST], g = row->g;
    _Alignas(64) static char scratch[1 << 16];
    mxa_pack(info->element_bits, row->codes, (int64_t)row->n, packed);
    if (info->block)
        memcpy(scales, row->scales, (size_t)mxa_scale_cols(info, (int64_t)row->n));
    const mxa_tensor tensor = mxa_tensor_contiguous(out, MXA_DTYPE_F32, 1, 1, 1, (int64_t)row->n);
    const mxa_copy copy = { .spec = row->spec,
                            .level = g == 1.0f && info->block ? MXA_LEVEL_NONE : MXA_LEVEL_TENSOR,
                            .out = { packed, scales, &g, NULL } };
    assert_in_range(mxa_dequantize_scratch_bytes(tensor.shape, MXA_AXIS_HEAD, 1), 1, sizeof scratch);
    mxa_dequantize_copy(&copy, &tensor, 1, scratch);
    golden_same_floats(what, row->out, out, row->n);

    /* With g = 1 the decoders themselves must give the stored values. */
    for (const mxa_decode_impl *impl = mxa_decode_impls; impl->name && g == 1.0f; impl++) {
        if ((impl->format != MXA_FORMAT_NONE && impl->format != info->format) || !mxa_cpu_has(impl->needs))
            continue;
        impl->fn(info, packed, scales, 1, (int64_t)row->n, out, (int64_t)row->n);
        golden_same_floats(what, row->out, out, row->n);
    }
}

int64_t golden_check_row(const char *what, const golden_row *row)
{
    int64_t n_bad = -1;
    for (const mxa_quantize_impl *impl = mxa_quantize_impls; impl->name; impl++) {
        if ((impl->format != MXA_FORMAT_NONE && impl->format != row->spec.info->format) ||
            !mxa_cpu_has(impl->needs))
            continue;
        const int64_t count = check_quantizer(what, impl, row);
        if (n_bad >= 0)
            assert_int_equal(n_bad, count);
        n_bad = count;
    }
    check_decoder(what, row);
    return n_bad;
}
