/* SPDX-License-Identifier: Apache-2.0 */
#include "attn/recipe.h"

#include <string.h>

#include "core/status.h"
#include "core/text.h"
#include "format/format.h"

const char *const mxa_rule_words[] = { "default", "floor", "rceil", "even", NULL };
const char *const mxa_level_words[] = { "default", "none", "tensor", "head", "token_block", "token", NULL };
const char *const mxa_smooth_words[] = { "none", "prefix", "full", "given", NULL };
const char *const mxa_pv_words[] = { "auto", "f16", "bf16", NULL };

typedef struct named_recipe {
    const char *name;
    mxa_recipe recipe;
} named_recipe;

/* The diagonal and sink windows of the mixed recipes, in keys. */
enum { NEAR = 128 };

#define MIXED(q, k, high)                                                                                    \
    .size = sizeof(mxa_recipe), .low_q = MXA_FORMAT_##q, .low_k = MXA_FORMAT_##k,                            \
    .high_q = MXA_FORMAT_##high, .high_k = MXA_FORMAT_##high, .diag_window = NEAR, .sink_window = NEAR
#define UNIFORM(format) .size = sizeof(mxa_recipe), .low_q = MXA_FORMAT_##format, .low_k = MXA_FORMAT_##format
#define ALL_HIGH(format)                                                                                     \
    .size = sizeof(mxa_recipe), .high_q = MXA_FORMAT_##format, .high_k = MXA_FORMAT_##format,                \
    .diag_window = MXA_ALL

/* docs/algorithm.md, "Recipes". The first one is the default. */
static const named_recipe recipes[] = {
    { "dma8", { MIXED(INT8, INT8, BF16), .rotate = true, .smooth_k = MXA_SMOOTH_PREFIX } },
    { "dma4", { MIXED(INT8, MXFP4, BF16), .rotate = true, .smooth_k = MXA_SMOOTH_PREFIX } },
    { "dma8-fp8", { MIXED(FP8, FP8, BF16), .rotate = true, .smooth_k = MXA_SMOOTH_PREFIX } },
    { "dma4-fp8", { MIXED(FP8, MXFP4, BF16), .rotate = true, .smooth_k = MXA_SMOOTH_PREFIX } },
    { "paper-mxfp4", { MIXED(MXFP4, MXFP4, MXFP8_E4M3) } },
    { "paper-nvfp4", { MIXED(NVFP4, NVFP4, MXFP8_E4M3) } },
    { "int8", { UNIFORM(INT8) } },
    { "fp8", { UNIFORM(FP8) } },
    { "mxint8", { UNIFORM(MXINT8) } },
    { "mxfp8", { UNIFORM(MXFP8_E4M3) } },
    { "mxfp6", { UNIFORM(MXFP6_E3M2) } },
    { "mxfp4", { UNIFORM(MXFP4) } },
    { "nvfp4", { UNIFORM(NVFP4) } },
    { "bf16", { ALL_HIGH(BF16) } },
    { "exact", { ALL_HIGH(F32), .exact = true } },
};
enum { N_RECIPES = sizeof recipes / sizeof recipes[0] };

const mxa_recipe *mxa_recipe_find(const char *name, size_t length)
{
    if (length == strlen("auto") && memcmp(name, "auto", length) == 0)
        return &recipes[0].recipe;
    for (int i = 0; i < N_RECIPES; i++)
        if (strlen(recipes[i].name) == length && memcmp(name, recipes[i].name, length) == 0)
            return &recipes[i].recipe;
    return NULL;
}

const char *mxa_recipe_name(int i)
{
    return i >= 0 && i < N_RECIPES ? recipes[i].name : NULL;
}

void mxa_recipe_default(mxa_recipe *recipe)
{
    *recipe = recipes[0].recipe;
}

bool mxa_recipe_has_low(const mxa_recipe *recipe)
{
    return !recipe->exact && recipe->low_q != MXA_FORMAT_NONE && recipe->diag_window != MXA_ALL;
}

bool mxa_recipe_has_high(const mxa_recipe *recipe)
{
    return recipe->exact ||
           (recipe->high_q != MXA_FORMAT_NONE && (recipe->diag_window > 0 || recipe->sink_window > 0));
}

bool mxa_copy_has_factor(const mxa_format_info *info)
{
    return info->quantized && !mxa_format_is_mx(info);
}

mxa_level mxa_copy_level(const mxa_format_info *info, mxa_level level)
{
    return mxa_copy_has_factor(info) ? mxa_level_resolve(info, level) : MXA_LEVEL_NONE;
}

static mxa_status check_operand(char operand, mxa_format low, mxa_format high, mxa_rule rule, mxa_level level)
{
    if (rule < MXA_RULE_DEFAULT || rule > MXA_RULE_EVEN)
        return mxa_fail(MXA_ERR_RULE, "recipe: rule_%c %d is not a rule", operand, (int)rule);
    if (level < MXA_LEVEL_DEFAULT || level > MXA_LEVEL_TOKEN)
        return mxa_fail(MXA_ERR_ARG, "recipe: level_%c %d is not a level", operand, (int)level);
    const mxa_format formats[2] = { low, high };
    bool has_rule = false, has_factor = false;
    for (int i = 0; i < 2; i++) {
        const char *copy = i == 0 ? "low" : "high";
        if (formats[i] == MXA_FORMAT_NONE)
            continue;
        const mxa_format_info *info = mxa_format_get(formats[i]);
        if (!info)
            return mxa_fail(MXA_ERR_FORMAT, "recipe: %s_%c %d is not a format", copy, operand,
                            (int)formats[i]);
        if (level == MXA_LEVEL_NONE && mxa_copy_has_factor(info) && info->scale == MXA_SCALE_NONE)
            return mxa_fail(MXA_ERR_ARG,
                            "recipe: level_%c none, but %s_%c %s has no scale besides its factor", operand,
                            copy, operand, info->name);
        has_rule = has_rule || mxa_format_is_mx(info);
        has_factor = has_factor || mxa_copy_has_factor(info);
    }
    if (rule != MXA_RULE_DEFAULT && !has_rule)
        return mxa_fail(MXA_ERR_RULE, "recipe: rule_%c %s, but no copy of %c has an MX format", operand,
                        mxa_rule_words[rule], operand);
    if (level != MXA_LEVEL_DEFAULT && !has_factor)
        return mxa_fail(MXA_ERR_ARG, "recipe: level_%c %s, but no copy of %c is nvfp4, fp8 or int8", operand,
                        mxa_level_words[level], operand);
    return MXA_OK;
}

static mxa_status check_windows(const mxa_recipe *r)
{
    if (r->diag_window < 0 || r->sink_window < 0)
        return mxa_fail(MXA_ERR_ARG, "recipe: diag %lld and sink %lld must not be negative",
                        (long long)r->diag_window, (long long)r->sink_window);
    if ((r->low_q == MXA_FORMAT_NONE) != (r->low_k == MXA_FORMAT_NONE))
        return mxa_fail(MXA_ERR_ARG, "recipe: low_%c has a format and low_%c has none", r->low_q ? 'q' : 'k',
                        r->low_q ? 'k' : 'q');
    if ((r->high_q == MXA_FORMAT_NONE) != (r->high_k == MXA_FORMAT_NONE))
        return mxa_fail(MXA_ERR_ARG, "recipe: high_%c has a format and high_%c has none",
                        r->high_q ? 'q' : 'k', r->high_q ? 'k' : 'q');
    if (r->low_q == MXA_FORMAT_NONE && r->diag_window != MXA_ALL)
        return mxa_fail(MXA_ERR_ARG,
                        "recipe: no low format, but not all tiles are high (low=... or diag=all)");
    if (r->high_q == MXA_FORMAT_NONE && (r->diag_window > 0 || r->sink_window > 0))
        return mxa_fail(MXA_ERR_ARG,
                        "recipe: diag %lld and sink %lld want high tiles, but there is no high format",
                        (long long)r->diag_window, (long long)r->sink_window);
    return MXA_OK;
}

static mxa_status check_smooth(const mxa_recipe *r)
{
    if (r->smooth_k < MXA_SMOOTH_NONE || r->smooth_k > MXA_SMOOTH_GIVEN)
        return mxa_fail(MXA_ERR_ARG, "recipe: smooth_k %d is not a kind of smoothing", (int)r->smooth_k);
    if (r->smooth_k != MXA_SMOOTH_PREFIX)
        return MXA_OK;
    if (r->sink_window < MXA_TILE && r->diag_window != MXA_ALL)
        return mxa_fail(MXA_ERR_ARG, "recipe: smooth-k=prefix needs sink of at least %d, not %lld", MXA_TILE,
                        (long long)r->sink_window);
    const mxa_format high[2] = { r->high_q, r->high_k };
    for (int i = 0; i < 2; i++)
        if (high[i] == MXA_FORMAT_NONE || mxa_format_get(high[i])->quantized)
            return mxa_fail(MXA_ERR_ARG,
                            "recipe: smooth-k=prefix needs bf16, f16 or f32 high tiles, not high_%c %s",
                            "qk"[i], high[i] ? mxa_format_get(high[i])->name : "none");
    return MXA_OK;
}

mxa_status mxa_recipe_check(const mxa_recipe *recipe)
{
    if (!recipe)
        return mxa_fail(MXA_ERR_ARG, "recipe: is NULL");
    if (recipe->size != sizeof *recipe)
        return mxa_fail(MXA_ERR_ARG, "recipe: size %zu is not that of this version, %zu", recipe->size,
                        sizeof *recipe);
    if (recipe->exact)
        return MXA_OK;
    mxa_status status = check_operand('q', recipe->low_q, recipe->high_q, recipe->rule_q, recipe->level_q);
    if (status == MXA_OK)
        status = check_operand('k', recipe->low_k, recipe->high_k, recipe->rule_k, recipe->level_k);
    if (status == MXA_OK)
        status = check_windows(recipe);
    if (status == MXA_OK)
        status = check_smooth(recipe);
    if (status != MXA_OK)
        return status;
    if (recipe->pv < MXA_PV_AUTO || recipe->pv > MXA_PV_BF16)
        return mxa_fail(MXA_ERR_ARG, "recipe: pv %d is not auto, f16 or bf16", (int)recipe->pv);
    if (recipe->v != MXA_FORMAT_NONE && !mxa_format_get(recipe->v))
        return mxa_fail(MXA_ERR_FORMAT, "recipe: v %d is not a format", (int)recipe->v);
    return MXA_OK;
}

static void put_format(mxa_text *out, const char *key, mxa_format format)
{
    const mxa_format_info *info = mxa_format_get(format);
    mxa_text_put(out, "%s=%s,", key, info ? info->name : "none");
}

/* Left out where it is the default, 0. */
static void put_word(mxa_text *out, const char *key, const char *const *words, int value)
{
    if (value > 0)
        mxa_text_put(out, ",%s=%s", key, words[value]);
}

size_t mxa_recipe_text(const mxa_recipe *recipe, char *text, size_t capacity)
{
    mxa_text out = { text, capacity, 0 };
    if (mxa_recipe_check(recipe) != MXA_OK) {
        mxa_text_put(&out, "%s", "");
        return 0;
    }
    if (recipe->exact) {
        mxa_text_put(&out, "exact");
        return out.length;
    }
    put_format(&out, "low_q", recipe->low_q);
    put_format(&out, "low_k", recipe->low_k);
    put_format(&out, "high_q", recipe->high_q);
    put_format(&out, "high_k", recipe->high_k);
    if (recipe->diag_window == MXA_ALL)
        mxa_text_put(&out, "diag=all");
    else
        mxa_text_put(&out, "diag=%lld", (long long)recipe->diag_window);
    mxa_text_put(&out, ",sink=%lld", (long long)recipe->sink_window);
    if (recipe->rotate)
        mxa_text_put(&out, ",rotate");
    put_word(&out, "smooth-k", mxa_smooth_words, (int)recipe->smooth_k);
    put_word(&out, "rule_q", mxa_rule_words, (int)recipe->rule_q);
    put_word(&out, "rule_k", mxa_rule_words, (int)recipe->rule_k);
    put_word(&out, "level_q", mxa_level_words, (int)recipe->level_q);
    put_word(&out, "level_k", mxa_level_words, (int)recipe->level_k);
    put_word(&out, "pv", mxa_pv_words, (int)recipe->pv);
    if (recipe->v != MXA_FORMAT_NONE)
        mxa_text_put(&out, ",v=%s", mxa_format_get(recipe->v)->name);
    if (recipe->rotate_v)
        mxa_text_put(&out, ",rotate-v");
    return out.length;
}
