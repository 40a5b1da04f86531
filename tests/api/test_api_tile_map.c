/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile map: the examples of docs/numerics.md, "Precision map", and all pairs of a tile counted one by
 * one.
 */
#include "api_support.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static mxa_problem problem_of(int64_t q_len, int64_t kv_len, bool causal)
{
    mxa_problem p;
    mxa_problem_default(&p, 1, 1, 1, q_len, kv_len, 64);
    p.causal = causal;
    return p;
}

static mxa_recipe windows(int64_t diag, int64_t sink)
{
    mxa_recipe r;
    api_ok(mxa_recipe_parse("low=int8,high=bf16", &r));
    r.diag_window = diag;
    r.sink_window = sink;
    return r;
}

static mxa_precision precision_at(const mxa_problem *p, const mxa_recipe *r, int64_t b, int64_t q_tile,
                                  int64_t k_tile)
{
    mxa_precision precision = (mxa_precision)77;
    api_ok(mxa_tile_map_at(p, r, b, q_tile, k_tile, &precision));
    assert_in_range(precision, MXA_TILE_SKIP, MXA_TILE_HIGH);
    return precision;
}

/* The map as the specification writes it: rows of ".LH", separated by a blank. */
static const char *map_text(const mxa_problem *p, const mxa_recipe *r, int64_t b)
{
    mxa_tile_range range;
    api_ok(mxa_tile_map_range(p, b, &range));
    char *const text = api_bytes((size_t)(range.q_count * (range.k_count + 1) + 1));
    char *end = text;
    for (int64_t m = range.q_first; m < range.q_first + range.q_count; m++) {
        if (m > range.q_first)
            *end++ = ' ';
        for (int64_t n = 0; n < range.k_count; n++)
            *end++ = ".LH"[precision_at(p, r, b, m, n)];
    }
    *end = 0;
    return text;
}

static void test_examples(void **state)
{
    (void)state;
    static const struct {
        int64_t q_len, kv_len;
        bool causal;
        int64_t diag, sink;
        const char *map;
    } cases[] = {
        { 512, 512, true, 1, 0, "H... LH.. LLH. LLLH" },
        { 512, 512, true, 1, 128, "H... HH.. HLH. HLLH" },
        { 512, 512, true, 2, 0, "H... HH.. LHH. LLHH" },
        { 512, 512, true, 129, 0, "H... HH.. LHH. LLHH" },
        { 512, 512, true, 130, 0, "H... HH.. HHH. LHHH" },
        { 512, 512, true, 257, 0, "H... HH.. HHH. LHHH" },
        { 512, 512, true, 0, 0, "L... LL.. LLL. LLLL" },
        { 512, 512, true, 0, 129, "H... HH.. HHL. HHLL" },
        { 128, 384, true, 1, 0, "LLH" },
        { 100, 300, true, 1, 0, "LH. LLH" },
        { 1, 1000, true, 256, 128, "HLLLLHHH" },
        { 1, 1000, true, 130, 0, "LLLLLHHH" },
        { 512, 512, false, 1, 0, "HLLL LHLL LLHL LLLH" },
        { 512, 512, false, 2, 0, "HHLL HHHL LHHH LLHH" },
        { 0, 512, true, 1, 0, "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mxa_problem p = problem_of(cases[i].q_len, cases[i].kv_len, cases[i].causal);
        const mxa_recipe r = windows(cases[i].diag, cases[i].sink);
        assert_string_equal(map_text(&p, &r, 0), cases[i].map);
    }
}

static bool visible(const mxa_problem *p, int64_t position, int64_t key)
{
    const int64_t right = p->causal ? 0 : p->window_right;
    return (p->window_left < 0 || key >= position - p->window_left) && (right < 0 || key <= position + right);
}

/*
 * The definition: high if a visible pair of the 128 x 128 is near or a sink; skipped if the call has none in
 * it.
 */
static mxa_precision counted(const mxa_problem *p, const mxa_recipe *r, int64_t m, int64_t n)
{
    const int64_t offset = p->q_offset == MXA_OFFSET_AUTO ? p->kv_len - p->q_len : p->q_offset;
    bool high = false, any = false;
    for (int64_t position = 128 * m; position < 128 * m + 128; position++)
        for (int64_t key = 128 * n; key < 128 * n + 128; key++) {
            if (!visible(p, position, key))
                continue;
            high = high || llabs(position - key) < r->diag_window || key < r->sink_window;
            any = any || (key < p->kv_len && position >= offset && position < offset + p->q_len);
        }
    return !any ? MXA_TILE_SKIP : high ? MXA_TILE_HIGH : MXA_TILE_LOW;
}

static void test_counted(void **state)
{
    uint64_t seed = 81;
    for (int i = 0; i < 150; i++) {
        mxa_problem p = problem_of(api_pick(&seed, 0, 400), api_pick(&seed, 0, 600), api_pick(&seed, 0, 1));
        if (api_pick(&seed, 0, 1))
            p.q_offset = api_pick(&seed, -500, 700);
        if (api_pick(&seed, 0, 1))
            p.window_left = api_pick(&seed, 0, 300);
        if (api_pick(&seed, 0, 1))
            p.window_right = api_pick(&seed, 0, 300);
        const mxa_recipe r = windows(api_pick(&seed, 0, 400), api_pick(&seed, 0, 300));
        mxa_tile_range range;
        api_ok(mxa_tile_map_range(&p, 0, &range));
        assert_int_equal(range.k_count, (p.kv_len + 127) / 128);
        for (int64_t m = range.q_first; m < range.q_first + range.q_count; m++)
            for (int64_t n = 0; n < range.k_count; n++)
                assert_int_equal(precision_at(&p, &r, 0, m, n), counted(&p, &r, m, n));
        api_teardown(state);
    }
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static void test_range(void **state)
{
    (void)state;
    static const int64_t offsets[] = { MXA_OFFSET_AUTO, 0, -1, -128, -129, -1000, 5, 127, 128, 100000 };
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        mxa_problem p = problem_of(200, 300, true);
        p.q_offset = offsets[i];
        const int64_t first = offsets[i] == MXA_OFFSET_AUTO ? 100 : offsets[i];
        mxa_tile_range range;
        api_ok(mxa_tile_map_range(&p, 0, &range));
        assert_int_equal(range.q_first, floor_div(first, 128));
        assert_int_equal(range.q_count, floor_div(first + 199, 128) - floor_div(first, 128) + 1);
        assert_int_equal(range.k_count, 3);
    }
}

/* Chunks, single steps and packed sequences have the precision that one call has there. */
static void test_same_in_every_call(void **state)
{
    (void)state;
    const mxa_problem whole = problem_of(900, 900, true);
    const mxa_recipe r = windows(200, 130);
    for (int64_t position = 0; position < 900; position += 37) {
        const mxa_problem step = problem_of(1, position + 1, true);
        for (int64_t n = 0; n <= position / 128; n++)
            assert_int_equal(precision_at(&step, &r, 0, position / 128, n),
                             precision_at(&whole, &r, 0, position / 128, n));
    }
    static const int32_t cu_q[] = { 0, 10, 910, 910, 911 }, cu_k[] = { 0, 0, 900, 900, 1900 };
    mxa_problem packed = problem_of(1000, 2000, true);
    packed.batch = 4;
    packed.cu_seqlens_q = cu_q;
    packed.cu_seqlens_k = cu_k;
    assert_string_equal(map_text(&packed, &r, 1), map_text(&whole, &r, 0));
    const mxa_problem last = problem_of(1, 1000, true);
    assert_string_equal(map_text(&packed, &r, 3), map_text(&last, &r, 0));
    mxa_tile_range range;
    api_ok(mxa_tile_map_range(&packed, 2, &range));
    assert_true(range.q_count == 0 && range.k_count == 0);
}

static void test_recipes_without_choice(void **state)
{
    (void)state;
    const mxa_problem p = problem_of(300, 300, true);
    mxa_recipe r;
    api_ok(mxa_recipe_parse("bf16", &r));
    assert_string_equal(map_text(&p, &r, 0), "H.. HH. HHH");
    api_ok(mxa_recipe_parse("mxfp4", &r));
    assert_string_equal(map_text(&p, &r, 0), "L.. LL. LLL");
    assert_string_equal(map_text(&p, NULL, 0), "H.. HH. HHH");
    const mxa_problem longer = problem_of(400, 400, true);
    assert_string_equal(map_text(&longer, NULL, 0), "H... HH.. HHH. HLHH");
}

static void refuse_at(const mxa_problem *p, const mxa_recipe *r, int64_t b, int64_t m, int64_t n,
                      mxa_status want, const char *argument, const char *value)
{
    mxa_precision *const precision = api_bytes(sizeof *precision);
    api_refused(mxa_tile_map_at(p, r, b, m, n, precision), want, argument, value);
    api_untouched(precision);
}

static void test_errors(void **state)
{
    (void)state;
    mxa_problem p = problem_of(300, 300, true);
    mxa_recipe r = windows(1, 0);
    mxa_precision precision;
    mxa_tile_range *const range = api_bytes(sizeof *range);
    api_refused(mxa_tile_map_range(NULL, 0, range), MXA_ERR_ARG, "problem", "NULL");
    api_refused(mxa_tile_map_range(&p, 0, NULL), MXA_ERR_ARG, "range", "NULL");
    api_refused(mxa_tile_map_range(&p, 1, range), MXA_ERR_ARG, "b", "1");
    api_refused(mxa_tile_map_range(&p, -1, range), MXA_ERR_ARG, "b", "-1");
    api_refused(mxa_tile_map_at(&p, &r, 0, 0, 0, NULL), MXA_ERR_ARG, "precision", "NULL");
    api_refused(mxa_tile_map_at(NULL, &r, 0, 0, 0, &precision), MXA_ERR_ARG, "problem", "NULL");
    refuse_at(&p, &r, 1, 0, 0, MXA_ERR_ARG, "b", "1");
    refuse_at(&p, &r, 0, -1, 0, MXA_ERR_ARG, "q_tile", "-1");
    refuse_at(&p, &r, 0, 3, 0, MXA_ERR_ARG, "q_tile", "3");
    refuse_at(&p, &r, 0, INT64_MAX, 0, MXA_ERR_ARG, "q_tile", NULL);
    refuse_at(&p, &r, 0, 0, -1, MXA_ERR_ARG, "k_tile", "-1");
    refuse_at(&p, &r, 0, 0, 3, MXA_ERR_ARG, "k_tile", "3");
    r.diag_window = -4;
    refuse_at(&p, &r, 0, 0, 0, MXA_ERR_ARG, "diag", "-4");
    r = windows(1, 0);
    p.window_left = -2;
    refuse_at(&p, &r, 0, 0, 0, MXA_ERR_ARG, "window_left", "-2");
    api_refused(mxa_tile_map_range(&p, 0, range), MXA_ERR_ARG, "window_left", "-2");
    p = problem_of(300, -3, true);
    refuse_at(&p, &r, 0, 0, 0, MXA_ERR_SHAPE, "kv_len", "-3");
    api_refused(mxa_tile_map_range(&p, 0, range), MXA_ERR_SHAPE, "kv_len", "-3");
    api_untouched(range);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_examples),           API_TEST(test_counted), API_TEST(test_range),
        API_TEST(test_same_in_every_call), API_TEST(test_errors),  API_TEST(test_recipes_without_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
