/* SPDX-License-Identifier: Apache-2.0 */
#include "api_support.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FILL = 0xFF, GUARD = 0xA7, GUARD_BYTES = 128, ALIGNMENT = 64 };

/* ------------------------------------------------------------------ memory */

typedef struct block {
    struct block *next;
    uint8_t *data;
    size_t bytes;
} block;

static block *blocks;

void *api_bytes(size_t bytes)
{
    block *b = malloc(sizeof *b);
    uint8_t *base = NULL;
    if (posix_memalign((void **)&base, ALIGNMENT, bytes + 2 * GUARD_BYTES) != 0 || b == NULL)
        abort();
    memset(base, GUARD, bytes + 2 * GUARD_BYTES);
    memset(base + GUARD_BYTES, FILL, bytes);
    *b = (block){ blocks, base + GUARD_BYTES, bytes };
    blocks = b;
    return b->data;
}

float *api_floats(size_t count)
{
    return api_bytes(count * sizeof(float));
}

static const block *block_of(const void *data)
{
    const block *b = blocks;
    while (b != NULL && b->data != data)
        b = b->next;
    assert_non_null(b);
    return b;
}

void api_untouched(const void *data)
{
    const block *b = block_of(data);
    for (size_t i = 0; i < b->bytes; i++)
        if (b->data[i] != FILL)
            fail_msg("byte %zu of %zu was written: 0x%02X", i, b->bytes, b->data[i]);
}

void api_fill_again(void *data)
{
    memset(data, FILL, block_of(data)->bytes);
}

static bool guards_hold(const block *b)
{
    for (size_t i = 1; i <= GUARD_BYTES; i++)
        if (b->data[-(ptrdiff_t)i] != GUARD || b->data[b->bytes + i - 1] != GUARD)
            return false;
    return true;
}

int api_teardown(void **state)
{
    (void)state;
    bool all_hold = true;
    while (blocks != NULL) {
        block *b = blocks;
        blocks = b->next;
        all_hold = all_hold && guards_hold(b);
        free(b->data - GUARD_BYTES);
        free(b);
    }
    if (!all_hold)
        print_error("a guard byte beside a buffer was written\n");
    return all_hold ? 0 : -1;
}

/* ------------------------------------------------------------------ random numbers */

/* splitmix64 */
static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double api_uniform(uint64_t *seed)
{
    return ldexp((double)(next_random(seed) >> 11), -53);
}

double api_normal(uint64_t *seed)
{
    const double radius = sqrt(-2 * log(1 - api_uniform(seed)));
    return radius * cos(2 * acos(-1.0) * api_uniform(seed));
}

int64_t api_pick(uint64_t *seed, int64_t lowest, int64_t highest)
{
    return lowest + (int64_t)(next_random(seed) % (uint64_t)(highest - lowest + 1));
}

/* ------------------------------------------------------------------ tensors */

static int64_t element_bytes(mxa_dtype dtype)
{
    return dtype == MXA_DTYPE_F32 ? 4 : 2;
}

mxa_tensor api_tensor(mxa_dtype dtype, int64_t batch, int64_t heads, int64_t seq, int64_t dim)
{
    void *data = api_bytes((size_t)(batch * heads * seq * dim * element_bytes(dtype)));
    return mxa_tensor_contiguous(data, dtype, batch, heads, seq, dim);
}

static uint8_t *element_at(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const int64_t index = b * t->stride[0] + h * t->stride[1] + s * t->stride[2] + d * t->stride[3];
    return (uint8_t *)t->data + index * element_bytes(t->dtype);
}

static double f16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
    if (exponent == 31)
        value = fraction == 0 ? INFINITY : NAN;
    return bits >> 15 ? -value : value;
}

static uint16_t f16_bits(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return 0x7E00;
    if (isinf(value))
        return sign | 0x7C00;
    if (value == 0)
        return sign;
    int exponent;
    frexp(value, &exponent);
    const int step = exponent < -13 ? -24 : exponent - 11;
    const double units = nearbyint(ldexp(fabs(value), -step));
    return sign | (uint16_t)(units + (step + 24) * 1024.0);
}

double api_get(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d)
{
    const uint8_t *at = element_at(t, b, h, s, d);
    float value;
    if (t->dtype == MXA_DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, at, sizeof half);
    if (t->dtype == MXA_DTYPE_F16)
        return f16_value(half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void api_set(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, int64_t d, double value)
{
    uint8_t *at = element_at(t, b, h, s, d);
    const float single = (float)value;
    if (t->dtype == MXA_DTYPE_F32) {
        memcpy(at, &single, sizeof single);
        return;
    }
    uint16_t half;
    if (t->dtype == MXA_DTYPE_F16) {
        half = f16_bits(value);
    } else {
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        half = isnan(single) ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
    memcpy(at, &half, sizeof half);
}

void api_set_row(const mxa_tensor *t, int64_t b, int64_t h, int64_t s, double value)
{
    for (int64_t d = 0; d < t->shape[3]; d++)
        api_set(t, b, h, s, d, value);
}

void api_set_all(const mxa_tensor *t, double value)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t s = 0; s < t->shape[2]; s++)
                api_set_row(t, b, h, s, value);
}

void api_copy(const mxa_tensor *to, const mxa_tensor *from)
{
    const int64_t *n = to->shape;
    for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++) {
        const int64_t b = i / (n[1] * n[2] * n[3]), h = i / (n[2] * n[3]) % n[1], s = i / n[3] % n[2],
                      d = i % n[3];
        api_set(to, b, h, s, d, api_get(from, b, h, s, d));
    }
}

void api_set_normal(const mxa_tensor *t, uint64_t seed)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[1]; h++)
            for (int64_t s = 0; s < t->shape[2]; s++)
                for (int64_t d = 0; d < t->shape[3]; d++)
                    api_set(t, b, h, s, d, api_normal(&seed));
}

mxa_tensor api_rows(const mxa_tensor *t, int64_t first, int64_t count)
{
    mxa_tensor view = *t;
    view.data = element_at(t, 0, 0, first, 0);
    view.shape[2] = count;
    return view;
}

void api_same_bits(const mxa_tensor *a, const mxa_tensor *b)
{
    assert_int_equal(a->dtype, b->dtype);
    assert_memory_equal(a->shape, b->shape, sizeof a->shape);
    const int64_t *n = a->shape;
    for (int64_t i = 0; i < n[0] * n[1] * n[2]; i++)
        for (int64_t d = 0; d < n[3]; d++) {
            const int64_t at[3] = { i / (n[1] * n[2]), i / n[2] % n[1], i % n[2] };
            if (memcmp(element_at(a, at[0], at[1], at[2], d), element_at(b, at[0], at[1], at[2], d),
                       (size_t)element_bytes(a->dtype)) != 0)
                fail_msg("[%lld][%lld][%lld][%lld]: %.9g and %.9g", (long long)at[0], (long long)at[1],
                         (long long)at[2], (long long)d, api_get(a, at[0], at[1], at[2], d),
                         api_get(b, at[0], at[1], at[2], d));
        }
}

/* ------------------------------------------------------------------ errors */

static bool is_word_char(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        if ((at == text || !is_word_char(at[-1])) && !is_word_char(at[length]))
            return true;
    return false;
}

void api_refused(mxa_status got, mxa_status want, const char *argument, const char *value)
{
    const char *text = mxa_error_text();
    if (got != want)
        fail_msg("%s instead of %s for %s %s; the last sentence: \"%s\"", mxa_status_name(got),
                 mxa_status_name(want), argument, value == NULL ? "" : value, text);
    if (!has_word(text, argument))
        fail_msg("\"%s\" does not name %s", text, argument);
    if (value != NULL && !has_word(text, value))
        fail_msg("\"%s\" does not name the value %s", text, value);
    assert_null(strchr(text, '\n'));
}

void api_ok(mxa_status got)
{
    if (got != MXA_OK)
        fail_msg("%s: \"%s\"", mxa_status_name(got), mxa_error_text());
}
