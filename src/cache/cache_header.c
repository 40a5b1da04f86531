/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "attn/recipe.h"
#include "cache/cache_file.h"
#include "core/tensor.h"
#include "core/text.h"

enum { HEADER_STEP = 8, RECIPE_TEXT = 512 };

static const char opening[] =
    "{\"__metadata__\":{\"format\":\"mxattn-cache\",\"version\":\"1\",\"checksum\":\"";

/* Says that low rows of V have the factors of their channels; without it, each its own. */
static const char channel_factors[] = ",\"level_v\":\"channel\"";

uint64_t mxa_cache_checksum(uint64_t sum, const void *data, size_t bytes)
{
    const uint64_t prime = UINT64_C(0x100000001B3);
    const uint8_t *const at = data;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * prime;
    return sum;
}

/* "name":"1 2 3", for one number of each sequence. */
static void put_list(mxa_text *out, const char *name, const mxa_cache_saved *saved, int64_t batch,
                     size_t offset)
{
    mxa_text_put(out, ",\"%s\":\"", name);
    for (int64_t b = 0; b < batch; b++) {
        int64_t number;
        memcpy(&number, (const char *)&saved[b] + offset, sizeof number);
        mxa_text_put(out, "%s%" PRId64, b ? " " : "", number);
    }
    mxa_text_put(out, "\"");
}

typedef struct list {
    const char *name;
    size_t offset;
} list;

static const list lists[] = {
    { "lengths", offsetof(mxa_cache_saved, length) },
    { "high_first", offsetof(mxa_cache_saved, high_first) },
    { "low_pages", offsetof(mxa_cache_saved, n_pages[MXA_LOW]) },
    { "high_pages", offsetof(mxa_cache_saved, n_pages[MXA_HIGH]) },
};
enum { N_LISTS = sizeof lists / sizeof lists[0] };

static void put_tensor(mxa_text *out, const char *dtype, int64_t rows, int64_t cols, int64_t bytes,
                       int64_t *at)
{
    mxa_text_put(out, "{\"dtype\":\"%s\",\"shape\":[%" PRId64 ",%" PRId64 "],\"data_offsets\":[%" PRId64,
                 dtype, rows, cols, *at);
    *at += bytes;
    mxa_text_put(out, ",%" PRId64 "]}", *at);
}

/* Of the vectors that a caller gave. */
static int64_t mean_bytes(const mxa_cache *c)
{
    const bool given = c->recipe.smooth_k == MXA_SMOOTH_GIVEN;
    return given ? c->opts.heads_kv * c->opts.head_dim * (int64_t)sizeof(float) : 0;
}

static int64_t factor_bytes(const mxa_cache *c)
{
    return c->has_g_v ? c->opts.heads_kv * c->opts.head_dim_v * (int64_t)sizeof(float) : 0;
}

static void put_tensors(mxa_text *out, const mxa_cache *c, const mxa_cache_saved *saved)
{
    static const char *const names[MXA_COPIES] = { "low", "high" };
    int64_t at = 0;
    if (c->has_g_v) {
        mxa_text_put(out, ",\"g_v\":");
        put_tensor(out, "F32", c->opts.heads_kv, c->opts.head_dim_v, factor_bytes(c), &at);
    }
    if (mean_bytes(c) > 0) {
        mxa_text_put(out, ",\"mean\":");
        put_tensor(out, "F32", c->opts.heads_kv, c->opts.head_dim, mean_bytes(c), &at);
    }
    for (int64_t b = 0; b < c->opts.batch; b++)
        for (int copy = 0; copy < MXA_COPIES; copy++) {
            const int64_t n = saved[b].n_pages[copy], bytes = c->layout.page_bytes[copy];
            mxa_text_put(out, ",\"%" PRId64 ".%s_index\":", b, names[copy]);
            put_tensor(out, "I32", n, 1, n * (int64_t)sizeof(int32_t), &at);
            mxa_text_put(out, ",\"%" PRId64 ".%s\":", b, names[copy]);
            put_tensor(out, "U8", n, bytes, n * bytes, &at);
        }
}

static void put_header(mxa_text *out, const mxa_cache *c, const mxa_cache_saved *saved, uint64_t checksum)
{
    const mxa_cache_opts *const o = &c->opts;
    char recipe[RECIPE_TEXT];
    mxa_recipe_text(&c->recipe, recipe, sizeof recipe);
    mxa_text_put(out, "%s%016" PRIx64 "\",\"batch\":\"%" PRId64 "\",\"heads_kv\":\"%" PRId64, opening,
                 checksum, o->batch, o->heads_kv);
    mxa_text_put(out, "\",\"head_dim\":\"%" PRId64 "\",\"head_dim_v\":\"%" PRId64, o->head_dim,
                 o->head_dim_v);
    mxa_text_put(out, "\",\"page_tokens\":\"%" PRId64 "\",\"rewind\":\"%" PRId64 "\",\"recipe\":\"%s\"",
                 o->page_tokens, o->rewind, recipe);
    if (c->has_g_v)
        mxa_text_put(out, "%s", channel_factors);
    for (int i = 0; i < N_LISTS; i++)
        put_list(out, lists[i].name, saved, o->batch, lists[i].offset);
    mxa_text_put(out, "}");
    put_tensors(out, c, saved);
    mxa_text_put(out, "}");
    while (out->length % HEADER_STEP != 0)
        mxa_text_put(out, " ");
}

char *mxa_cache_header(const mxa_cache *c, const mxa_cache_saved *saved, uint64_t checksum, size_t *bytes)
{
    mxa_text measured = { NULL, 0, 0 };
    put_header(&measured, c, saved, checksum);
    char *const text = malloc(measured.length + 1);
    if (!text)
        return NULL;
    mxa_text out = { text, measured.length + 1, 0 };
    put_header(&out, c, saved, checksum);
    *bytes = out.length;
    return text;
}

int64_t mxa_cache_data_bytes(const mxa_cache *c, const mxa_cache_saved *saved)
{
    int64_t total = mean_bytes(c) + factor_bytes(c), part;
    for (int64_t b = 0; b < c->opts.batch; b++)
        for (int copy = 0; copy < MXA_COPIES; copy++) {
            const int64_t each = c->layout.page_bytes[copy] + (int64_t)sizeof(int32_t);
            if (!mxa_mul(saved[b].n_pages[copy], each, &part) || !mxa_add(total, part, &total))
                return -1;
        }
    return total;
}

/* *at moves past text; NULL from the first mismatch on. */
static void expect(const char **at, const char *text)
{
    const size_t n = strlen(text);
    if (*at)
        *at = strncmp(*at, text, n) == 0 ? *at + n : NULL;
}

static int64_t number(const char **at)
{
    int64_t value = 0;
    const char *const first = *at;
    while (*at && **at >= '0' && **at <= '9') {
        if (!mxa_mul(value, 10, &value) || !mxa_add(value, **at - '0', &value))
            *at = NULL;
        else
            ++*at;
    }
    if (*at == first)
        *at = NULL;
    return value;
}

static int64_t named_number(const char **at, const char *name)
{
    expect(at, "\",\"");
    expect(at, name);
    expect(at, "\":\"");
    return number(at);
}

static uint64_t read_checksum(const char **at)
{
    char digits[MXA_CACHE_CHECKSUM_DIGITS + 1] = "";
    if (*at && strspn(*at, "0123456789abcdef") == MXA_CACHE_CHECKSUM_DIGITS) {
        memcpy(digits, *at, MXA_CACHE_CHECKSUM_DIGITS);
        *at += MXA_CACHE_CHECKSUM_DIGITS;
    } else {
        *at = NULL;
    }
    return strtoull(digits, NULL, 16);
}

static void read_recipe(const char **at, mxa_recipe *recipe)
{
    char text[RECIPE_TEXT];
    expect(at, "\",\"recipe\":\"");
    const size_t n = *at ? strcspn(*at, "\"") : 0;
    if (!*at || n >= sizeof text) {
        *at = NULL;
        return;
    }
    memcpy(text, *at, n);
    text[n] = 0;
    *at = mxa_recipe_parse(text, recipe) == MXA_OK ? *at + n + 1 : NULL;
}

bool mxa_cache_read_numbers(const char *header, mxa_cache_numbers *n)
{
    const char *at = header;
    expect(&at, opening);
    n->checksum = read_checksum(&at);
    const int64_t batch = named_number(&at, "batch"), heads_kv = named_number(&at, "heads_kv");
    mxa_cache_default(&n->opts, batch, heads_kv, named_number(&at, "head_dim"));
    n->opts.head_dim_v = named_number(&at, "head_dim_v");
    n->opts.page_tokens = named_number(&at, "page_tokens");
    n->opts.rewind = named_number(&at, "rewind");
    read_recipe(&at, &n->recipe);
    n->opts.recipe = &n->recipe;
    n->has_g_v = at && strncmp(at, channel_factors, strlen(channel_factors)) == 0;
    if (n->has_g_v)
        expect(&at, channel_factors);
    n->sequences = at;
    return at && batch <= (int64_t)strlen(at); /* each has its numbers there */
}

bool mxa_cache_read_sequences(const char *rest, int64_t batch, mxa_cache_saved *saved)
{
    const char *at = rest;
    for (int i = 0; i < N_LISTS; i++) {
        expect(&at, ",\"");
        expect(&at, lists[i].name);
        expect(&at, "\":\"");
        for (int64_t b = 0; b < batch; b++) {
            if (b > 0)
                expect(&at, " ");
            const int64_t value = number(&at);
            memcpy((char *)&saved[b] + lists[i].offset, &value, sizeof value);
        }
        expect(&at, "\"");
    }
    return at != NULL;
}
