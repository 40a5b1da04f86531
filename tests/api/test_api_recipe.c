/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes by name and by text, against the table of docs/algorithm.md. */
#include "api_support.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static mxa_recipe parsed(const char *text)
{
    mxa_recipe r;
    memset(&r, 0xFF, sizeof r);
    api_ok(mxa_recipe_parse(text, &r));
    assert_int_equal(r.size, sizeof r);
    return r;
}

static void same_recipe(const mxa_recipe *a, const mxa_recipe *b)
{
    assert_int_equal(a->exact, b->exact);
    assert_int_equal(a->low_q, b->low_q);
    assert_int_equal(a->low_k, b->low_k);
    assert_int_equal(a->high_q, b->high_q);
    assert_int_equal(a->high_k, b->high_k);
    assert_int_equal(a->diag_window, b->diag_window);
    assert_int_equal(a->sink_window, b->sink_window);
    assert_int_equal(a->rotate, b->rotate);
    assert_int_equal(a->smooth_k, b->smooth_k);
    assert_int_equal(a->rule_q, b->rule_q);
    assert_int_equal(a->rule_k, b->rule_k);
    assert_int_equal(a->level_q, b->level_q);
    assert_int_equal(a->level_k, b->level_k);
    assert_int_equal(a->pv, b->pv);
    assert_int_equal(a->v, b->v);
    assert_int_equal(a->rotate_v, b->rotate_v);
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        mxa_format low_q, low_k, high;
        int64_t diag, sink;
        bool rotate;
        mxa_smooth smooth_k;
    } table[] = {
        { "dma8", MXA_FORMAT_INT8, MXA_FORMAT_INT8, MXA_FORMAT_BF16, 128, 128, true, MXA_SMOOTH_PREFIX },
        { "dma4", MXA_FORMAT_INT8, MXA_FORMAT_MXFP4, MXA_FORMAT_BF16, 128, 128, true, MXA_SMOOTH_PREFIX },
        { "dma8-fp8", MXA_FORMAT_FP8, MXA_FORMAT_FP8, MXA_FORMAT_BF16, 128, 128, true, MXA_SMOOTH_PREFIX },
        { "dma4-fp8", MXA_FORMAT_FP8, MXA_FORMAT_MXFP4, MXA_FORMAT_BF16, 128, 128, true, MXA_SMOOTH_PREFIX },
        { "paper-mxfp4", MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP8_E4M3, 128, 128, false, 0 },
        { "paper-nvfp4", MXA_FORMAT_NVFP4, MXA_FORMAT_NVFP4, MXA_FORMAT_MXFP8_E4M3, 128, 128, false, 0 },
        { "int8", MXA_FORMAT_INT8, MXA_FORMAT_INT8, 0, 0, 0, false, 0 },
        { "fp8", MXA_FORMAT_FP8, MXA_FORMAT_FP8, 0, 0, 0, false, 0 },
        { "mxint8", MXA_FORMAT_MXINT8, MXA_FORMAT_MXINT8, 0, 0, 0, false, 0 },
        { "mxfp8", MXA_FORMAT_MXFP8_E4M3, MXA_FORMAT_MXFP8_E4M3, 0, 0, 0, false, 0 },
        { "mxfp6", MXA_FORMAT_MXFP6_E3M2, MXA_FORMAT_MXFP6_E3M2, 0, 0, 0, false, 0 },
        { "mxfp4", MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP4, 0, 0, 0, false, 0 },
        { "nvfp4", MXA_FORMAT_NVFP4, MXA_FORMAT_NVFP4, 0, 0, 0, false, 0 },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const mxa_recipe r = parsed(table[i].name);
        assert_false(r.exact);
        assert_int_equal(r.low_q, table[i].low_q);
        assert_int_equal(r.low_k, table[i].low_k);
        assert_int_equal(r.high_q, table[i].high);
        assert_int_equal(r.high_k, table[i].high);
        assert_int_equal(r.diag_window, table[i].diag);
        assert_int_equal(r.sink_window, table[i].sink);
        assert_int_equal(r.rotate, table[i].rotate);
        assert_int_equal(r.smooth_k, table[i].smooth_k);
        assert_int_equal(r.pv, MXA_PV_AUTO);
        assert_int_equal(r.v, MXA_FORMAT_NONE);
    }
    const mxa_recipe bf16 = parsed("bf16");
    assert_true(bf16.high_q == MXA_FORMAT_BF16 && bf16.high_k == MXA_FORMAT_BF16 &&
                bf16.low_q == MXA_FORMAT_NONE);
    assert_true(bf16.diag_window == MXA_ALL && !bf16.exact);
    assert_true(parsed("exact").exact);
}

static void test_default_is_dma8(void **state)
{
    (void)state;
    mxa_recipe r;
    mxa_recipe_default(&r);
    assert_int_equal(r.size, sizeof r);
    const mxa_recipe dma8 = parsed("dma8");
    same_recipe(&r, &dma8);
}

/* The list holds each name of the table once, and nothing that does not parse. */
static void test_name_list(void **state)
{
    (void)state;
    int count = 0;
    for (; mxa_recipe_name(count) != NULL; count++) {
        parsed(mxa_recipe_name(count));
        for (int i = 0; i < count; i++)
            assert_string_not_equal(mxa_recipe_name(i), mxa_recipe_name(count));
    }
    for (int r = 0; api_recipes[r] != NULL; r++) {
        int found = 0;
        for (int i = 0; i < count; i++)
            found += strcmp(mxa_recipe_name(i), api_recipes[r]) == 0;
        assert_int_equal(found, 1);
    }
    assert_null(mxa_recipe_name(-1));
    assert_null(mxa_recipe_name(count + 1000));
}

static void test_written_out(void **state)
{
    (void)state;
    mxa_recipe r = parsed("low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=128,rotate,smooth-k=prefix");
    const mxa_recipe dma4 = parsed("dma4");
    same_recipe(&r, &dma4);
    r = parsed("low=int8,high_q=f16,rotate,smooth-k");
    assert_true(r.low_q == MXA_FORMAT_INT8 && r.low_k == MXA_FORMAT_INT8 && r.high_k == MXA_FORMAT_F16);
    assert_true(r.diag_window == 128 && r.sink_window == 128 && r.smooth_k == MXA_SMOOTH_PREFIX);
    r = parsed("low=mxfp4");
    assert_true(r.high_q == MXA_FORMAT_NONE && r.high_k == MXA_FORMAT_NONE && !r.rotate && r.smooth_k == 0);
    r = parsed("dma4,diag=256");
    assert_true(r.diag_window == 256 && r.sink_window == 128 && r.low_k == MXA_FORMAT_MXFP4 && r.rotate);
    r = parsed("paper-mxfp4,smooth-k=full,rule_q=floor,rule_k=rceil");
    assert_true(r.smooth_k == MXA_SMOOTH_FULL && r.rule_q == MXA_RULE_FLOOR && r.rule_k == MXA_RULE_RCEIL);
    r = parsed("dma8,level_k=token_block,level_q=head,pv=f16");
    assert_true(r.level_k == MXA_LEVEL_TOKEN_BLOCK && r.level_q == MXA_LEVEL_HEAD && r.pv == MXA_PV_F16);
    r = parsed("dma4,v=mxfp4,rotate-v");
    assert_true(r.v == MXA_FORMAT_MXFP4 && r.rotate_v);
    r = parsed("low=mxfp8-e5m2,high=f32,diag=0,sink=9223372036854775807");
    assert_true(r.low_q == MXA_FORMAT_MXFP8_E5M2 && r.diag_window == 0 && r.sink_window == INT64_MAX);
}

/* What a recipe writes out parses to the same recipe, and is cut as snprintf cuts. */
static void check_text(const char *recipe)
{
    const mxa_recipe r = parsed(recipe);
    const size_t length = mxa_recipe_text(&r, NULL, 0);
    char *const text = api_bytes(length + 1), *const cut = api_bytes(4);
    assert_int_equal(mxa_recipe_text(&r, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    const mxa_recipe again = parsed(text);
    same_recipe(&r, &again);
    assert_int_equal(mxa_recipe_text(&r, cut, 4), length);
    assert_memory_equal(cut, text, 3);
    assert_int_equal(cut[3], 0);
}

static void test_text(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "dma4,diag=256,sink=1024",
        "low=mxfp6-e2m3,high_q=mxfp8-e5m2,high_k=f16,diag=7,sink=0,rotate",
        "low=nvfp4,smooth-k=full,level_q=tensor,level_k=head,pv=bf16",
        "low=mxfp4,high=mxint8,rule_q=floor,rule_k=even",
        "dma8,level_k=token_block,v=int8,rotate-v",
        "low=f32",
        "dma8,high=f32",
    };
    for (int i = 0; mxa_recipe_name(i) != NULL; i++)
        check_text(mxa_recipe_name(i));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_text(texts[i]);
}

static void refuse(const char *text, mxa_status want, const char *word)
{
    mxa_recipe *const r = api_bytes(sizeof *r);
    api_refused(mxa_recipe_parse(text, r), want, word, NULL);
    api_untouched(r);
}

static void test_unknown_words(void **state)
{
    (void)state;
    static const char *const names[] = { "dma5", "DMA4", "dma", "mxfp" };
    for (int i = 0; i < 4; i++) {
        refuse(names[i], MXA_ERR_ARG, names[i]);
        for (int known = 0; mxa_recipe_name(known) != NULL; known++)
            assert_non_null(strstr(mxa_error_text(), mxa_recipe_name(known)));
    }
    refuse("dma4,dig=3", MXA_ERR_ARG, "dig");
    static const char *const keys[] = { "low",    "low_q",    "high_k",  "diag", "sink",
                                        "rotate", "smooth-k", "level_q", "pv" };
    for (int i = 0; i < 9; i++)
        assert_non_null(strstr(mxa_error_text(), keys[i]));
    refuse("low=mxfp3", MXA_ERR_FORMAT, "mxfp3");
    assert_non_null(strstr(mxa_error_text(), "mxfp8-e5m2"));
    refuse("dma4,high=", MXA_ERR_FORMAT, "high");
    refuse("dma4,rule_k=nearest", MXA_ERR_RULE, "nearest");
    assert_non_null(strstr(mxa_error_text(), "rceil"));
    refuse("dma4,level_q=row", MXA_ERR_ARG, "row");
    refuse("dma4,smooth-k=mean", MXA_ERR_ARG, "mean");
    refuse("dma4,pv=f32", MXA_ERR_ARG, "f32");
}

static void test_broken_texts(void **state)
{
    (void)state;
    mxa_recipe r;
    api_refused(mxa_recipe_parse(NULL, &r), MXA_ERR_ARG, "text", "NULL");
    api_refused(mxa_recipe_parse("dma4", NULL), MXA_ERR_ARG, "recipe", "NULL");
    static const char *const broken[] = {
        "",        ",",           "dma4,",         ",dma4",         "dma4,,diag=1",
        "=",       "low",         "low=",          "dma4,dma8",     "low=int8,dma4",
        "dma4,=3", "dma4;diag=3", "dma4 , diag=3", "low=int8=mxfp4"
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        mxa_recipe *const untouched = api_bytes(sizeof r);
        const mxa_status status = mxa_recipe_parse(broken[i], untouched);
        if (status != MXA_ERR_ARG && status != MXA_ERR_FORMAT)
            fail_msg("\"%s\" gave %s", broken[i], mxa_status_name(status));
        api_untouched(untouched);
    }
    static const char *const numbers[] = {
        "-1", "x", "", "1e3", "0x10", "12 ", "1.5", "9223372036854775808", "99999999999999999999999"
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[64];
        snprintf(text, sizeof text, "dma4,diag=%s", numbers[i]);
        refuse(text, MXA_ERR_ARG, "diag");
        snprintf(text, sizeof text, "low=int8,high=bf16,sink=%s", numbers[i]);
        refuse(text, MXA_ERR_ARG, "sink");
    }
}

/*
 * docs/algorithm.md: low is required; the prefix mean needs 128 sinks and 16-bit high tiles; INT8 needs a
 * factor.
 */
static void test_contradictions(void **state)
{
    (void)state;
    refuse("high=bf16", MXA_ERR_ARG, "low");
    refuse("diag=128", MXA_ERR_ARG, "low");
    refuse("low_q=int8", MXA_ERR_ARG, "low_k");
    refuse("dma4,sink=127", MXA_ERR_ARG, "sink");
    refuse("dma4,high=mxfp8", MXA_ERR_ARG, "smooth-k");
    refuse("low=int8,smooth-k", MXA_ERR_ARG, "smooth-k");
    refuse("low=int8,level_k=none", MXA_ERR_ARG, "level_k");
    refuse("low=fp8,level_q=none", MXA_ERR_ARG, "level_q");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        API_TEST(test_names),        API_TEST(test_default_is_dma8),
        API_TEST(test_name_list),    API_TEST(test_written_out),
        API_TEST(test_text),         API_TEST(test_unknown_words),
        API_TEST(test_broken_texts), API_TEST(test_contradictions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
