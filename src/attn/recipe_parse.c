/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a recipe: items separated by commas, the first of which may be a name. A key may stand once;
 * low_q and low_k win over low, wherever they stand.
 */
#include <stdio.h>
#include <string.h>

#include "attn/recipe.h"
#include "core/status.h"

typedef enum key {
    KEY_LOW,
    KEY_LOW_Q,
    KEY_LOW_K,
    KEY_HIGH,
    KEY_HIGH_Q,
    KEY_HIGH_K,
    KEY_DIAG,
    KEY_SINK,
    KEY_ROTATE,
    KEY_SMOOTH_K,
    KEY_RULE_Q,
    KEY_RULE_K,
    KEY_LEVEL_Q,
    KEY_LEVEL_K,
    KEY_PV,
    KEY_V,
    KEY_ROTATE_V,
    N_KEYS,
} key;

static const char *const key_names[N_KEYS] = { "low",    "low_q",   "low_k",   "high",    "high_q",
                                               "high_k", "diag",    "sink",    "rotate",  "smooth-k",
                                               "rule_q", "rule_k",  "level_q", "level_k", "pv",
                                               "v",      "rotate-v" };

/* Characters of the text, not terminated. */
typedef struct word {
    const char *at;
    size_t length;
} word;

/* How much of a foreign word a sentence repeats. */
enum { SHOWN = 40 };

static int shown(word w)
{
    return w.length < SHOWN ? (int)w.length : SHOWN;
}

static bool is(word w, const char *name)
{
    return strlen(name) == w.length && memcmp(name, w.at, w.length) == 0;
}

static mxa_status unknown_key(word w)
{
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; mxa_recipe_name(i) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s ", mxa_recipe_name(i));
    char keys[256] = "";
    n = 0;
    for (int i = 0; i < N_KEYS && n < sizeof keys; i++)
        n += (size_t)snprintf(keys + n, sizeof keys - n, "%s%s", i ? " " : "", key_names[i]);
    return mxa_fail(MXA_ERR_ARG, "recipe: \"%.*s\" is no recipe (%sauto) and no key (%s)", shown(w), w.at,
                    known, keys);
}

static mxa_status parse_choice(const char *key_name, word value, const char *const *words, mxa_status status,
                               int *out)
{
    char known[128] = "";
    size_t n = 0;
    for (int i = 0; words[i]; i++) {
        if (is(value, words[i])) {
            *out = i;
            return MXA_OK;
        }
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", words[i]);
    }
    return mxa_fail(status, "recipe: %s \"%.*s\" is none of %s", key_name, shown(value), value.at, known);
}

static mxa_status parse_format(const char *key_name, word value, mxa_format *out)
{
    if (is(value, "none")) {
        *out = MXA_FORMAT_NONE;
        return MXA_OK;
    }
    char known[160] = "none";
    size_t n = strlen(known);
    for (int f = MXA_FORMAT_F32; mxa_format_get((mxa_format)f); f++) {
        const mxa_format_info *info = mxa_format_get((mxa_format)f);
        if (is(value, info->name)) {
            *out = info->format;
            return MXA_OK;
        }
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, ", %s", info->name);
    }
    return mxa_fail(MXA_ERR_FORMAT, "recipe: %s \"%.*s\" is none of %s", key_name, shown(value), value.at,
                    known);
}

/* Digits only; the largest number is MXA_ALL. */
static mxa_status parse_window(const char *key_name, word value, int64_t *out)
{
    int64_t n = 0;
    bool ok = value.length > 0;
    for (size_t i = 0; i < value.length && ok; i++) {
        const char c = value.at[i];
        ok = c >= '0' && c <= '9' && !__builtin_mul_overflow(n, 10, &n) &&
             !__builtin_add_overflow(n, c - '0', &n);
    }
    if (!ok)
        return mxa_fail(MXA_ERR_ARG, "recipe: %s \"%.*s\" is not a number of keys", key_name, shown(value),
                        value.at);
    *out = n;
    return MXA_OK;
}

static mxa_status parse_switch(const char *key_name, word value, bool has_value, bool *out)
{
    static const char *const words[] = { "off", "on", NULL };
    int on = 1;
    const mxa_status status = has_value ? parse_choice(key_name, value, words, MXA_ERR_ARG, &on) : MXA_OK;
    *out = on;
    return status;
}

/* What the text has said so far. */
typedef struct parse {
    mxa_recipe *recipe;
    bool named;
    bool given[N_KEYS];
    mxa_format low, high; /* of "low" and "high" */
} parse;

static mxa_status parse_value(parse *p, key k, word value, bool has_value)
{
    mxa_recipe *const r = p->recipe;
    const char *const name = key_names[k];
    mxa_status status = MXA_OK;
    int choice = 0;
    if (!has_value && k != KEY_ROTATE && k != KEY_ROTATE_V && k != KEY_SMOOTH_K)
        return mxa_fail(MXA_ERR_ARG, "recipe: %s has no value (%s=...)", name, name);
    switch (k) {
    case KEY_LOW: return parse_format(name, value, &p->low);
    case KEY_LOW_Q: return parse_format(name, value, &r->low_q);
    case KEY_LOW_K: return parse_format(name, value, &r->low_k);
    case KEY_HIGH: return parse_format(name, value, &p->high);
    case KEY_HIGH_Q: return parse_format(name, value, &r->high_q);
    case KEY_HIGH_K: return parse_format(name, value, &r->high_k);
    case KEY_V: return parse_format(name, value, &r->v);
    case KEY_DIAG:
        r->diag_window = MXA_ALL;
        return is(value, "all") ? MXA_OK : parse_window(name, value, &r->diag_window);
    case KEY_SINK: return parse_window(name, value, &r->sink_window);
    case KEY_ROTATE: return parse_switch(name, value, has_value, &r->rotate);
    case KEY_ROTATE_V: return parse_switch(name, value, has_value, &r->rotate_v);
    case KEY_SMOOTH_K:
        choice = MXA_SMOOTH_PREFIX;
        status = has_value ? parse_choice(name, value, mxa_smooth_words, MXA_ERR_ARG, &choice) : MXA_OK;
        r->smooth_k = (mxa_smooth)choice;
        return status;
    case KEY_RULE_Q:
    case KEY_RULE_K:
        status = parse_choice(name, value, mxa_rule_words, MXA_ERR_RULE, &choice);
        *(k == KEY_RULE_Q ? &r->rule_q : &r->rule_k) = (mxa_rule)choice;
        return status;
    case KEY_LEVEL_Q:
    case KEY_LEVEL_K:
        status = parse_choice(name, value, mxa_level_words, MXA_ERR_ARG, &choice);
        *(k == KEY_LEVEL_Q ? &r->level_q : &r->level_k) = (mxa_level)choice;
        return status;
    case KEY_PV:
        status = parse_choice(name, value, mxa_pv_words, MXA_ERR_ARG, &choice);
        r->pv = (mxa_pv)choice;
        return status;
    case N_KEYS: break;
    }
    return unknown_key(value);
}

static mxa_status parse_item(parse *p, word item, bool first)
{
    const char *const equals = memchr(item.at, '=', item.length);
    const word name = { item.at, equals ? (size_t)(equals - item.at) : item.length };
    const word value = { item.at + name.length + 1, equals ? item.length - name.length - 1 : 0 };
    const mxa_recipe *named = first && !equals ? mxa_recipe_find(name.at, name.length) : NULL;
    if (named) {
        *p->recipe = *named;
        p->named = true;
        return MXA_OK;
    }
    for (int k = 0; k < N_KEYS; k++) {
        if (!is(name, key_names[k]))
            continue;
        if (p->given[k])
            return mxa_fail(MXA_ERR_ARG, "recipe: %s stands twice", key_names[k]);
        if (p->recipe->exact)
            return mxa_fail(MXA_ERR_ARG, "recipe: exact takes no changes, not %s", key_names[k]);
        p->given[k] = true;
        return parse_value(p, (key)k, value, equals != NULL);
    }
    return unknown_key(name);
}

/* "low" and "high" fill in what is not said apart, one of high_q and high_k gives the other. */
static mxa_status complete(parse *p)
{
    mxa_recipe *const r = p->recipe;
    const bool *const given = p->given;
    if (given[KEY_LOW] && !given[KEY_LOW_Q])
        r->low_q = p->low;
    if (given[KEY_LOW] && !given[KEY_LOW_K])
        r->low_k = p->low;
    if (given[KEY_HIGH] && !given[KEY_HIGH_Q])
        r->high_q = p->high;
    if (given[KEY_HIGH] && !given[KEY_HIGH_K])
        r->high_k = p->high;
    if (!given[KEY_HIGH] && given[KEY_HIGH_Q] && !given[KEY_HIGH_K])
        r->high_k = r->high_q;
    if (!given[KEY_HIGH] && given[KEY_HIGH_K] && !given[KEY_HIGH_Q])
        r->high_q = r->high_k;
    if (p->named)
        return MXA_OK;
    if (!given[KEY_LOW] && (!given[KEY_LOW_Q] || !given[KEY_LOW_K]))
        return mxa_fail(MXA_ERR_ARG, "recipe: low (or low_q and low_k) is missing");
    const int64_t window = r->high_q == MXA_FORMAT_NONE && r->high_k == MXA_FORMAT_NONE ? 0 : MXA_TILE;
    if (!given[KEY_DIAG])
        r->diag_window = window;
    if (!given[KEY_SINK])
        r->sink_window = window;
    return MXA_OK;
}

mxa_status mxa_recipe_parse(const char *text, mxa_recipe *recipe)
{
    if (!text || !recipe)
        return mxa_fail(MXA_ERR_ARG, "%s: is NULL", text ? "recipe" : "text");
    mxa_recipe read = { .size = sizeof read };
    parse p = { .recipe = &read };
    bool first = true;
    for (const char *at = text;; first = false) {
        const size_t length = strcspn(at, ",");
        const mxa_status status = parse_item(&p, (word){ at, length }, first);
        if (status != MXA_OK)
            return status;
        if (at[length] == '\0')
            break;
        at += length + 1;
    }
    mxa_status status = complete(&p);
    if (status == MXA_OK)
        status = mxa_recipe_check(&read);
    if (status == MXA_OK)
        *recipe = read;
    return status;
}
