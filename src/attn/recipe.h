/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: the named ones, what a recipe may say, and what it means for one copy of an operand. */
#ifndef MXA_ATTN_RECIPE_H
#define MXA_ATTN_RECIPE_H

#include <mxattn/mxattn.h>

/* Enumerators in range and no contradictions; the statuses of mxa_recipe_parse. */
mxa_status mxa_recipe_check(const mxa_recipe *recipe);

/* The recipe whose name is these characters; NULL if there is none. "auto" is the default. */
const mxa_recipe *mxa_recipe_find(const char *name, size_t length);

/* Does the copy take a second-level factor; at which level. */
bool mxa_copy_has_factor(const mxa_format_info *info);
mxa_level mxa_copy_level(const mxa_format_info *info, mxa_level level);

/* May some tile be low, or high. */
bool mxa_recipe_has_low(const mxa_recipe *recipe);
bool mxa_recipe_has_high(const mxa_recipe *recipe);

/* Words of recipe texts by enumerator, ended by NULL; docs/algorithm.md lists them. */
extern const char *const mxa_rule_words[];
extern const char *const mxa_level_words[];
extern const char *const mxa_smooth_words[];
extern const char *const mxa_pv_words[];

#endif
