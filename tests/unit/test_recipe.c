/* SPDX-License-Identifier: Apache-2.0 */
/* Recipe texts: what the words mean, that a recipe survives being written and read, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "attn/recipe.h"

static mxa_recipe parse(const char *text)
{
    mxa_recipe r;
    if (mxa_recipe_parse(text, &r) != MXA_OK)
        fail_msg("%s: %s", text, mxa_error_text());
    return r;
}

static void assert_formats(const mxa_recipe *r, mxa_format low_q, mxa_format low_k, mxa_format high_q,
                           mxa_format high_k)
{
    assert_int_equal(r->low_q, low_q);
    assert_int_equal(r->low_k, low_k);
    assert_int_equal(r->high_q, high_q);
    assert_int_equal(r->high_k, high_k);
}

/* The table of docs/numerics.md, section 10. */
static void named_recipes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        mxa_format low_q, low_k, high;
        int64_t window;
        bool rotate;
        mxa_smooth smooth;
    } table[] = {
        { "dma8", MXA_FORMAT_INT8, MXA_FORMAT_INT8, MXA_FORMAT_BF16, 128, true, MXA_SMOOTH_PREFIX },
        { "auto", MXA_FORMAT_INT8, MXA_FORMAT_INT8, MXA_FORMAT_BF16, 128, true, MXA_SMOOTH_PREFIX },
        { "dma4", MXA_FORMAT_INT8, MXA_FORMAT_MXFP4, MXA_FORMAT_BF16, 128, true, MXA_SMOOTH_PREFIX },
        { "dma8-fp8", MXA_FORMAT_FP8, MXA_FORMAT_FP8, MXA_FORMAT_BF16, 128, true, MXA_SMOOTH_PREFIX },
        { "dma4-fp8", MXA_FORMAT_FP8, MXA_FORMAT_MXFP4, MXA_FORMAT_BF16, 128, true, MXA_SMOOTH_PREFIX },
        { "paper-mxfp4", MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP8_E4M3, 128, false,
          MXA_SMOOTH_NONE },
        { "paper-nvfp4", MXA_FORMAT_NVFP4, MXA_FORMAT_NVFP4, MXA_FORMAT_MXFP8_E4M3, 128, false,
          MXA_SMOOTH_NONE },
        { "int8", MXA_FORMAT_INT8, MXA_FORMAT_INT8, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "fp8", MXA_FORMAT_FP8, MXA_FORMAT_FP8, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "mxint8", MXA_FORMAT_MXINT8, MXA_FORMAT_MXINT8, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "mxfp8", MXA_FORMAT_MXFP8_E4M3, MXA_FORMAT_MXFP8_E4M3, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "mxfp6", MXA_FORMAT_MXFP6_E3M2, MXA_FORMAT_MXFP6_E3M2, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "mxfp4", MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP4, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
        { "nvfp4", MXA_FORMAT_NVFP4, MXA_FORMAT_NVFP4, MXA_FORMAT_NONE, 0, false, MXA_SMOOTH_NONE },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const mxa_recipe r = parse(table[i].name);
        assert_formats(&r, table[i].low_q, table[i].low_k, table[i].high, table[i].high);
        assert_int_equal(r.diag_window, table[i].window);
        assert_int_equal(r.sink_window, table[i].window);
        assert_int_equal(r.rotate, table[i].rotate);
        assert_int_equal(r.smooth_k, table[i].smooth);
        assert_int_equal(r.level_q, MXA_LEVEL_DEFAULT);
        assert_false(r.exact);
    }
    const mxa_recipe bf16 = parse("bf16");
    assert_formats(&bf16, MXA_FORMAT_NONE, MXA_FORMAT_NONE, MXA_FORMAT_BF16, MXA_FORMAT_BF16);
    assert_true(bf16.diag_window == MXA_ALL);
    assert_true(parse("exact").exact);
}

static void every_name_parses(void **state)
{
    (void)state;
    int n = 0;
    for (; mxa_recipe_name(n); n++)
        parse(mxa_recipe_name(n));
    assert_int_equal(n, 15);
    assert_null(mxa_recipe_name(-1));
}

static void written_out(void **state)
{
    (void)state;
    const mxa_recipe full =
        parse("low_q=int8,low_k=mxfp4,high=bf16,diag=128,sink=128,rotate,smooth-k=prefix");
    const mxa_recipe dma4 = parse("dma4");
    assert_memory_equal(&full, &dma4, sizeof full);

    mxa_recipe r = parse("low=mxfp4,high_k=mxfp8-e5m2");
    assert_formats(&r, MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP4, MXA_FORMAT_MXFP8_E5M2, MXA_FORMAT_MXFP8_E5M2);
    assert_int_equal(r.diag_window, 128);
    assert_int_equal(r.sink_window, 128);
    r = parse("low_k=nvfp4,low=int8");
    assert_formats(&r, MXA_FORMAT_INT8, MXA_FORMAT_NVFP4, MXA_FORMAT_NONE, MXA_FORMAT_NONE);
    assert_int_equal(r.diag_window, 0);
    r = parse(
        "dma4,diag=256,smooth-k=full,rule_k=floor,level_q=token_block,pv=f16,v=int8,rotate-v,rotate=off");
    assert_int_equal(r.diag_window, 256);
    assert_int_equal(r.smooth_k, MXA_SMOOTH_FULL);
    assert_int_equal(r.rule_k, MXA_RULE_FLOOR);
    assert_int_equal(r.level_q, MXA_LEVEL_TOKEN_BLOCK);
    assert_int_equal(r.pv, MXA_PV_F16);
    assert_int_equal(r.v, MXA_FORMAT_INT8);
    assert_true(r.rotate_v && !r.rotate);
    assert_int_equal(parse("dma8,smooth-k").smooth_k, MXA_SMOOTH_PREFIX);
    assert_int_equal(parse("low=int8,high=f16,smooth-k").smooth_k, MXA_SMOOTH_PREFIX);
}

static void text_round_trip(void **state)
{
    (void)state;
    static const char *const more[] = {
        "low=mxfp8-e5m2,high=nvfp4,diag=0,sink=7,rotate,smooth-k=given,rule_q=even,rule_k=rceil",
        "bf16,low=fp8,level_q=tensor,level_k=head,pv=bf16",
        "low_q=mxfp4,low_k=mxint8,high_q=f32,high_k=bf16,v=nvfp4,sink=9223372036854775807"
    };
    char text[512], again[512];
    for (int i = 0; i < 15 + 3; i++) {
        const mxa_recipe r = parse(i < 15 ? mxa_recipe_name(i) : more[i - 15]);
        const size_t length = mxa_recipe_text(&r, text, sizeof text);
        assert_int_equal(length, strlen(text));
        const mxa_recipe back = parse(text);
        assert_int_equal(mxa_recipe_text(&back, again, sizeof again), length);
        assert_string_equal(text, again);
        assert_memory_equal(&r, &back, sizeof r);

        char small[8];
        memset(small, 'x', sizeof small);
        assert_int_equal(mxa_recipe_text(&r, small, sizeof small - 1), length);
        assert_true(small[7] == 'x' && strlen(small) <= 6 && strncmp(small, text, strlen(small)) == 0);
        assert_int_equal(mxa_recipe_text(&r, NULL, 0), length);
    }
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *named;
        mxa_status status;
    } table[] = {
        { "", "dma8", MXA_ERR_ARG },
        { "dma5", "paper-nvfp4", MXA_ERR_ARG },
        { "dma4,", "low_q", MXA_ERR_ARG },
        { "dma4,dma8", "dma8", MXA_ERR_ARG },
        { "DMA4", "DMA4", MXA_ERR_ARG },
        { "dma4,diag", "diag", MXA_ERR_ARG },
        { "dma4,diag=-1", "-1", MXA_ERR_ARG },
        { "dma4,diag=1x", "1x", MXA_ERR_ARG },
        { "dma4,sink=99999999999999999999", "9999", MXA_ERR_ARG },
        { "dma4,diag=1,diag=1", "twice", MXA_ERR_ARG },
        { "dma4,sink=64", "sink", MXA_ERR_ARG },
        { "dma4,high=mxfp8", "mxfp8", MXA_ERR_ARG },
        { "low=int8,smooth-k", "sink", MXA_ERR_ARG },
        { "low_q=int8", "low", MXA_ERR_ARG },
        { "high=bf16", "low", MXA_ERR_ARG },
        { "low=int8,diag=1", "diag", MXA_ERR_ARG },
        { "bf16,diag=128", "low", MXA_ERR_ARG },
        { "low=int8,level_k=none", "level_k", MXA_ERR_ARG },
        { "dma8,level_q=row", "token_block", MXA_ERR_ARG },
        { "dma4,level_k=head", "level_k head", MXA_ERR_ARG },
        { "bf16,level_q=token", "level_q token", MXA_ERR_ARG },
        { "dma8,pv=f32", "bf16", MXA_ERR_ARG },
        { "dma8,rotate=yes", "yes", MXA_ERR_ARG },
        { "exact,diag=1", "exact", MXA_ERR_ARG },
        { "low=mxfp5", "mxfp6-e2m3", MXA_ERR_FORMAT },
        { "dma8,v=fp4", "fp4", MXA_ERR_FORMAT },
        { "dma8,rule_q=ceil", "rceil", MXA_ERR_RULE },
        { "dma4,rule_q=floor", "rule_q floor", MXA_ERR_RULE },
        { "nvfp4,rule_k=even", "rule_k even", MXA_ERR_RULE },
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        mxa_recipe r;
        memset(&r, 0x5A, sizeof r);
        const mxa_recipe before = r;
        assert_int_equal(mxa_recipe_parse(table[i].text, &r), table[i].status);
        if (!strstr(mxa_error_text(), table[i].named))
            fail_msg("%s: \"%s\" does not name %s", table[i].text, mxa_error_text(), table[i].named);
        assert_memory_equal(&r, &before, sizeof r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_recipes),   cmocka_unit_test(every_name_parses), cmocka_unit_test(written_out),
        cmocka_unit_test(text_round_trip), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
