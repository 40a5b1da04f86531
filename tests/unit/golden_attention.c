/* SPDX-License-Identifier: Apache-2.0 */
#include "golden_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bits.h"

double golden_number(const json_t *value)
{
    return json_is_string(value) ? strtod(json_string_value(value), NULL) : json_number_value(value);
}

double golden_field(const json_t *json, const char *key)
{
    return golden_number(json_object_get(json, key));
}

static uint32_t hex(const char *digits, int n)
{
    char word[9] = "";
    memcpy(word, digits, (size_t)n);
    return (uint32_t)strtoul(word, NULL, 16);
}

/* One string per head: "e2m1" with "log2_scale", "fp32" or "bf16". */
static float *load_values(const json_t *json, int64_t heads, int64_t n)
{
    static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    static const struct {
        const char *key;
        int digits;
    } kinds[] = { { "e2m1", 1 }, { "fp32", 8 }, { "bf16", 4 } };
    float *const out = calloc((size_t)(heads * n) + 1, sizeof *out);
    for (int kind = 0; kind < 3; kind++) {
        const json_t *strings = json_object_get(json, kinds[kind].key);
        const int digits = kinds[kind].digits;
        for (int64_t i = 0; strings && i < heads * n; i++) {
            const uint32_t bits =
                hex(json_string_value(json_array_get(strings, (size_t)(i / n))) + i % n * digits, digits);
            out[i] = digits == 8   ? mxa_f32_from_bits(bits)
                     : digits == 4 ? mxa_f32_from_bf16((uint16_t)bits)
                                   : ldexpf(bits & 8 ? -e2m1[bits & 7] : e2m1[bits],
                                            (int)golden_field(json, "log2_scale"));
        }
    }
    return out;
}

golden_case golden_load(const json_t *json)
{
    golden_case c = { .json = json, .name = json_string_value(json_object_get(json, "case")) };
    c.heads = (int64_t)golden_field(json, "heads");
    c.heads_kv = (int64_t)golden_field(json, "heads_kv");
    c.q_len = (int64_t)golden_field(json, "q_len");
    c.kv_len = (int64_t)golden_field(json, "kv_len");
    c.kv_rows = (int64_t)golden_field(json, "kv_rows");
    c.head_dim = (int64_t)golden_field(json, "head_dim");
    c.q = load_values(json_object_get(json, "q"), c.heads, c.q_len * c.head_dim);
    c.k = load_values(json_object_get(json, "k"), c.heads_kv, c.kv_rows * c.head_dim);
    c.v = load_values(json_object_get(json, "v"), c.heads_kv, c.kv_rows * c.head_dim);
    const json_t *sinks = json_object_get(json, "sink_logits"), *expected = json_object_get(json, "expected");
    if (json_is_array(sinks)) {
        c.sinks = calloc((size_t)c.heads, sizeof *c.sinks);
        for (int64_t h = 0; h < c.heads; h++)
            c.sinks[h] = (float)golden_number(json_array_get(sinks, (size_t)h));
    }
    const json_t *rows = json_object_get(expected, "rows");
    c.n_rows = (int64_t)json_array_size(rows);
    int64_t *const index = calloc((size_t)c.n_rows + 1, sizeof *index);
    c.rows = index;
    c.o = calloc((size_t)(c.heads * c.n_rows * c.head_dim) + 1, sizeof *c.o);
    c.lse = calloc((size_t)(c.heads * c.q_len) + 1, sizeof *c.lse);
    for (int64_t h = 0; h < c.heads; h++) {
        const json_t *o = json_array_get(json_object_get(expected, "o"), (size_t)h);
        const json_t *lse = json_array_get(json_object_get(expected, "lse"), (size_t)h);
        for (int64_t r = 0; r < c.n_rows; r++) {
            index[r] = (int64_t)json_integer_value(json_array_get(rows, (size_t)r));
            for (int64_t d = 0; d < c.head_dim; d++)
                c.o[(h * c.n_rows + r) * c.head_dim + d] =
                    golden_number(json_array_get(json_array_get(o, (size_t)r), (size_t)d));
        }
        for (int64_t i = 0; i < c.q_len; i++)
            c.lse[h * c.q_len + i] = golden_number(json_array_get(lse, (size_t)i));
    }
    return c;
}

void golden_free(golden_case *c)
{
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->sinks);
    free((void *)(uintptr_t)c->rows);
    free(c->o);
    free(c->lse);
}
