/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES 300

const option_word option_dtypes[] = {
    { "f32", MXA_DTYPE_F32 }, { "f16", MXA_DTYPE_F16 }, { "bf16", MXA_DTYPE_BF16 }, { NULL, 0 }
};
const option_word option_rules[] = {
    { "floor", MXA_RULE_FLOOR }, { "rceil", MXA_RULE_RCEIL }, { "even", MXA_RULE_EVEN }, { NULL, 0 }
};
const option_word option_levels[] = { { "none", MXA_LEVEL_NONE },   { "tensor", MXA_LEVEL_TENSOR },
                                      { "head", MXA_LEVEL_HEAD },   { "token_block", MXA_LEVEL_TOKEN_BLOCK },
                                      { "token", MXA_LEVEL_TOKEN }, { NULL, 0 } };
const option_word option_layouts[] = {
    { "row", MXA_LAYOUT_ROW }, { "tile_128x4", MXA_LAYOUT_TILE_128X4 }, { "amd", MXA_LAYOUT_AMD }, { NULL, 0 }
};
const option_word option_axes[] = { { "head", MXA_AXIS_HEAD }, { "token", MXA_AXIS_TOKEN }, { NULL, 0 } };

void options_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    const error_t error = argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, input);
    if (error != 0)
        cli_usage("cannot read the command line: %s", strerror(error));
}

/* The option of argp and its children that has this long name. */
static const struct argp_option *find_long(const struct argp *argp, const char *name, size_t length)
{
    for (const struct argp_option *o = argp->options; o != NULL && o->name != NULL; o++)
        if (strncmp(o->name, name, length) == 0 && strlen(o->name) == length)
            return o;
    for (const struct argp_child *c = argp->children; c != NULL && c->argp != NULL; c++) {
        const struct argp_option *found = find_long(c->argp, name, length);
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* argp has stopped behind the word that it could not use. */
static _Noreturn void refuse_word(const struct argp_state *state)
{
    const char *verb = state->argv[0];
    const char *word = state->next > 0 ? state->argv[state->next - 1] : "";
    if (strncmp(word, "--", 2) == 0) {
        const size_t length = strcspn(word + 2, "=");
        const struct argp_option *option = find_long(state->root_argp, word + 2, length);
        if (option != NULL && option->arg != NULL)
            cli_usage("%s needs a value: %s", word, option->arg);
        if (option != NULL)
            cli_usage("--%s takes no value", option->name);
    } else if (strcmp(word, "-o") == 0) {
        cli_usage("-o needs a value: OUT");
    }
    cli_usage("unknown option %.80s; %s --help lists the known ones", word, verb);
}

error_t options_default(int key, struct argp_state *state)
{
    switch (key) {
    case 'h':
        setenv("ARGP_HELP_FMT", "no-dup-args-note", 0);
        argp_help(state->root_argp, stdout, ARGP_HELP_STD_HELP & ~ARGP_HELP_EXIT_OK, state->argv[0]);
        exit(cli_finish(CLI_DONE));
    case ARGP_KEY_ERROR: refuse_word(state);
    default: return ARGP_ERR_UNKNOWN;
    }
}

void options_one_input(const char **input, const char *arg)
{
    if (*input != NULL)
        cli_usage("\"%.80s\": there is one input, and it is \"%.80s\"", arg, *input);
    *input = arg;
}

bool option_word_find(const option_word *words, const char *text, int *value)
{
    for (; words->word != NULL; words++)
        if (strcmp(words->word, text) == 0) {
            *value = words->value;
            return true;
        }
    return false;
}

int option_word_value(const char *option, const option_word *words, const char *text)
{
    int value;
    if (option_word_find(words, text, &value))
        return value;
    char list[LIST_BYTES] = "";
    for (const option_word *w = words; w->word != NULL; w++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", w->word);
    cli_usage("%s: unknown \"%.80s\"; known:%s", option, text, list);
}

const char *option_word_text(const option_word *words, int value)
{
    for (; words->word != NULL; words++)
        if (words->value == value)
            return words->word;
    return NULL;
}

int64_t option_integer(const char *option, const char *text, int64_t least, int64_t most)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most)
        cli_usage("%s: \"%.80s\" is not an integer from %" PRId64 " to %" PRId64, option, text, least, most);
    return value;
}

float option_number(const char *option, const char *text)
{
    char *end;
    errno = 0;
    const float value = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(value))
        cli_usage("%s: \"%.80s\" is not a finite number", option, text);
    if (value == 0 && errno == ERANGE) /* 0 may mean something else than a tiny number: no softcap */
        cli_usage("%s: \"%.80s\" is not 0, but too small for fp32", option, text);
    return value;
}

mxa_format option_format(const char *option, const char *text)
{
    const mxa_format_info *info = mxa_format_find(text);
    if (info != NULL)
        return info->format;
    char list[LIST_BYTES] = "";
    for (int f = MXA_FORMAT_NONE + 1; (info = mxa_format_get((mxa_format)f)) != NULL; f++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", info->name);
    cli_usage("%s: unknown format \"%.80s\"; known:%s", option, text, list);
}

mxa_device option_device(const char *option, const char *text)
{
    mxa_device device;
    if (mxa_device_parse(text, &device) != MXA_OK)
        cli_usage("%s: %s", option, mxa_error_text());
    return device;
}

mxa_recipe option_recipe(const char *text)
{
    mxa_recipe recipe;
    if (mxa_recipe_parse(text, &recipe) != MXA_OK)
        cli_usage("--recipe %.80s: %s", text, mxa_error_text());
    return recipe;
}
